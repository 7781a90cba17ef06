"""`make count`: what is counted of a chapter; test_rules.py compares the time that follows with each chapter's head."""

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")

from tools.notebooks import count  # noqa: E402


def markdown(source: str, *tags: str):
    return nbformat.v4.new_markdown_cell(source, metadata={"tags": list(tags)} if tags else {})


def code(source: str, *tags: str, **metadata):
    return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags), **metadata})


def chapter(*cells):
    return nbformat.v4.new_notebook(cells=list(cells))


def test_a_long_sentence_has_more_than_35_words_and_a_formula_ends_none():
    assert count.sentences("One of $a.b$ words, with `code. Here`. Two (of 3.5 parts).\n\n* Three") == [
        "One of X words, with X.", "Two (of 3.5 parts).", "Three",
    ]  # fmt: skip
    long = count.count(chapter(markdown(" ".join(["word"] * 36) + ". " + " ".join(["Word"] * 35) + ".")))
    assert (long.sentences, long.long, long.share) == (2, 1, 0.5)


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
    assert (length.words, length.first, length.lines, length.gaps, length.formulas) == (2 + 2 + 1, 4, 4, 1, 1)
    assert (length.exercises, length.open) == (2, 1)


@pytest.mark.parametrize(
    ("length", "minutes"),
    [
        (count.Length(2200, 240, gaps=2, exercises=5), (20 + 24 + 32, 20 + 24 + 32 + 90)),
        (count.Length(2200, 240, gaps=2, exercises=5, open=1, formulas=50), (91, 91 + 72 + 75)),
        (count.Length(0, 301, 0, 0), (31, 31)),
    ],
)
def test_minutes_are_rounded_up_to_the_half_hour(length, minutes):
    assert length.hours == tuple(-(-m // 30) / 2 for m in minutes)
