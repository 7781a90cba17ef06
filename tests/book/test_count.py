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


NOTEBOOK = [
    markdown("# 06 T\n\none two"),
    code("a = 1\n\nb = 2"),
    code("def mine():\n    return None  # your code here", "gap"),
    code("def check(f):\n    return f()", "check", "hide-cell"),
    code("x\ny", "mirror", "hide-input"),
    code("folded", jupyter={"source_hidden": True}),
    markdown("not read", "solution"),
    markdown("three\n\n## Exercises\n\n````{exercise} One\nmany words\n````"),
    code("return None", "gap"),
    markdown("````{exercise} Two\nmany words\n````"),
    markdown("## Further on\n\n````{exercise} Three\n````"),
    code("more", "gap"),
    markdown("## Next\n\nmany words"),
]  # fmt: skip


def test_a_chapter_is_counted_up_to_its_exercises():
    assert count.count(chapter(*NOTEBOOK)) == count.Length(words=2 + 2 + 1, lines=4, gaps=1, exercises=2)


@pytest.mark.parametrize(
    ("length", "hours"),
    [
        (count.Length(words=2400, lines=240, gaps=2, exercises=5), (16 + 24 + 24, 16 + 24 + 24 + 60)),
        (count.Length(words=150, lines=0, gaps=0, exercises=0), (1, 1)),
        (count.Length(words=0, lines=300, gaps=0, exercises=5), (30, 90)),
        (count.Length(words=0, lines=301, gaps=5, exercises=0), (90.1, 90.1)),
        (count.Length(words=4500, lines=0, gaps=0, exercises=0), (30, 30)),
        (count.Length(words=4501, lines=0, gaps=0, exercises=0), (31, 31)),
    ],
)
def test_minutes_are_rounded_up_to_the_half_hour(length, hours):
    assert length.hours == tuple(-(-minutes // 30) / 2 for minutes in hours)


def test_the_head_says_the_time_and_nothing_else_changes():
    head = (
        "# 06 T\n\n```{list-table}\n:class: facts\n* - Time\n  - two hours,\n    or three\n* - You need\n```"
    )
    notebook = count.timed(chapter(markdown(head), *NOTEBOOK[1:]))
    assert notebook.cells[0].source == head.replace(
        "two hours,\n    or three",
        "about ½ h for the page, 1 h with the exercises: an estimate from its words, code and gaps",
    )
    assert count.timed(notebook) == notebook
    with pytest.raises(LookupError, match="no row `Time`"):
        count.timed(chapter(*NOTEBOOK))


NOTEBOOKS = sorted((count.ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_heads_say_what_is_counted(path):
    notebook = nbformat.read(path, as_version=4)
    assert count.count(notebook).time in notebook.cells[0].source, "make count ARGS=--write"
