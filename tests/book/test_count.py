"""`make count`: what is counted of a chapter, and that its head says the time that follows."""

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")

from tools.notebooks import count  # noqa: E402

PROSE = """(ch-a)=
# Three words here

```{list-table}
:class: facts
* - Time
  - two hours
```

:::{admonition} You are here
:class: here
I Text: **here**
:::

Four words of $a + b$ text, {term}`one token <token>`, [two words](06_attention.ipynb) and `code`.

$$
x y z
$$

\\begin{align*}
a &= b && \\text{rule}
\\end{align*}

```{math}
:label: eq-a
:enumerated:
c = d
```

````{admonition} Predict
:class: predict
Two words.

```{hint}
:class: dropdown
folded away
```
````

:::{figure}
:label: fig-a

A caption.
:::

```python
print("not counted")
```

| a | b |
|:--|--:|
| c | d |
"""


def markdown(source: str, *tags: str):
    return nbformat.v4.new_markdown_cell(source, metadata={"tags": list(tags)} if tags else {})


def code(source: str, *tags: str, **metadata):
    return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags), **metadata})


def chapter(*cells):
    return nbformat.v4.new_notebook(cells=list(cells))


def test_only_words_that_are_read_count():
    assert count.words(PROSE) == 3 + 4 + 2 + 2 + 1 + 2 + 4


SAID = """## No heading

One of $a.b$ words, with `code. Here` and
$$
x = y.
$$
One and a half:
$$
x
$$
Two (of 3.5 parts). "Three?" four

* Five
* six, {term}`seven <eight>` {cite:p}`nine`

| no | table |

:::{figure}
:label: fig-a

A caption. Of two.
:::

```{hint}
:class: dropdown
Folded.
```
"""


def test_sentences_end_where_a_reader_sees_it():
    assert count.sentences(SAID) == [
        "One of X words, with X and X.", "One and a half: X.", "Two (of 3.5 parts).", '"Three?" four', "Five",
        "six, seven X", "A caption.", "Of two.",
    ]  # fmt: skip


def test_a_long_sentence_has_more_than_35_words():
    long = count.count(chapter(markdown(" ".join(["word"] * 36) + ". " + " ".join(["Word"] * 35) + ".")))
    assert (long.sentences, long.long, long.share) == (2, 1, 0.5)
    assert "50.0%*" in count.table({"06_a": long})


NOTEBOOK = [
    markdown("# 06 T\n\none two $x$"),
    code("a = 1\n\nb = 2"),
    code("def mine():\n    return None  # your code here", "gap"),
    code("def check(f):\n    return f()", "check", "hide-cell"),
    code("x\ny", "mirror", "hide-input"),
    code("folded", jupyter={"source_hidden": True}),
    markdown("not read", "solution"),
    markdown("three\n\n## Exercises\n\n````{exercise} One\nmany words\n````"),
    code("return None", "gap"),
    markdown("````{exercise} Two\nmany words\n\n**Rubric**, ten points\n````"),
    markdown("## Further on\n\n````{exercise} Three\n````"),
    code("more", "gap"),
    markdown("## Next\n\nmany words"),
]  # fmt: skip


def test_a_chapter_is_counted_up_to_its_exercises():
    length = count.count(chapter(*NOTEBOOK))
    assert (length.words, length.lines, length.gaps, length.formulas) == (2 + 2 + 1, 4, 1, 1)
    assert (length.exercises, length.open) == (2, 1)


@pytest.mark.parametrize(
    ("length", "minutes"),
    [
        (count.Length(2200, 240, gaps=2, exercises=5), (20 + 24 + 32, 20 + 24 + 32 + 90)),
        (count.Length(2200, 240, gaps=2, exercises=5, open=1, formulas=50), (91, 91 + 72 + 75)),
        (count.Length(110, 0, 0, 0), (1, 1)),
        (count.Length(0, 300, 0, 5), (30, 120)),
        (count.Length(0, 301, 0, 0), (31, 31)),
    ],
)
def test_minutes_are_rounded_up_to_the_half_hour(length, minutes):
    assert length.hours == tuple(-(-m // 30) / 2 for m in minutes)


def test_the_head_says_the_time_and_nothing_else_changes():
    head = "# 06 T\n\n```{list-table}\n:class: facts\n* - Time\n  - two hours,\n    or three\n* - You need\n```"
    notebook = count.timed(chapter(markdown(head), *NOTEBOOK[1:]))
    assert notebook.cells[0].source == head.replace(
        "two hours,\n    or three",
        "about ½ h for the page, 2 h with the exercises: an estimate from its words, formulas, code and gaps",
    )
    assert count.timed(notebook) == notebook
    with pytest.raises(LookupError, match="no row `Time`"):
        count.timed(chapter(*NOTEBOOK))
