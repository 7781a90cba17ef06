"""Figures, equations, exercises and theorems have one number, by chapter, in the book and in JupyterLab."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")

from tools.notebooks import numbering  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = "06_attention"


def read(name: str) -> dict:
    return json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8"))


@pytest.fixture(scope="module")
def chapter() -> dict:
    return numbering.numbered(read(CHAPTER), "6")


@pytest.fixture(scope="module")
def page(chapter, tmp_path_factory) -> str:
    """The chapter as HTML, in a book where another with a figure, an equation, ... stands before it."""
    pytest.importorskip("jupyter_book", reason="jupyter-book is not installed: pip install -e .[book]")
    book = tmp_path_factory.mktemp("book")
    (book / "notebooks").mkdir()
    before = numbering.numbered(read("05_checking_gradients"), "5")
    for name, notebook in ((CHAPTER, chapter), ("05_checking_gradients", before)):
        (book / "notebooks" / f"{name}.ipynb").write_text(json.dumps(notebook), "utf-8")
    (book / "index.md").write_text("# Two chapters\n")
    files = "".join(f"  - file: notebooks/{name}\n" for name in ("05_checking_gradients", CHAPTER))
    (book / "_toc.yml").write_text(f"format: jb-book\nroot: index\nchapters:\n{files}")
    for shared in ("_config.yml", "book", "tools"):
        (book / shared).symlink_to(ROOT / shared)
    entry = "import sys; from jupyter_book.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", entry, "build", str(book), "--quiet"]
    built = subprocess.run(command, capture_output=True, text=True)
    html = book / "_build" / "html" / "notebooks" / f"{CHAPTER}.html"
    assert html.exists(), built.stdout + built.stderr
    return html.read_text("utf-8")


def in_the_book(page: str) -> dict[str, str]:
    """Each label's number on a built page."""
    number = r"\(?(?:[A-Z]\w+ )?(\w+\.\d+)"
    boxes = rf'id="((?:fig|ex|thm)-[\w-]+)"(?:(?!\bid="(?:fig|ex|thm)-).)*?caption-number">{number}'
    equations = rf'id="equation-(eq-[\w-]+)">\s*<span class="eqno">{number}'
    return {label: n for pattern in (boxes, equations) for label, n in re.findall(pattern, page, re.S)}


def test_the_book_and_jupyterlab_count_alike(chapter, page):
    found = numbering.in_jupyterlab(chapter)
    assert in_the_book(page) == found
    assert {"6.1"} == {found[name] for name in ("fig-attention-causal", "eq-attention-average", "ex-attention-swap")}
    assert {re.sub("-.*", "", name) for name in found} == {"fig", "eq", "thm", "ex"}


@pytest.mark.full
def test_references_say_the_same_numbers(chapter, page):
    found = numbering.in_jupyterlab(chapter)
    assert f"Figure {found['fig-attention-causal']}</span></a>" in page
    assert f'href="#equation-eq-attention-forward">({found["eq-attention-forward"]})</a>' in page


def test_what_is_for_jupyterlab_alone_is_not_in_the_book(page):
    assert not re.search(r"enumerator|:enumerated:|:nonumber:", page)
    assert page.count("<figcaption") == page.count('caption-number">Figure') > 0


@pytest.mark.full
def test_numbering_twice_changes_nothing(chapter):
    before = copy.deepcopy(chapter)
    assert numbering.numbered(chapter, "6") == before == chapter


def cells(*sources: str) -> dict:
    return {
        "cells": [{"cell_type": "markdown", "id": f"c{n}", "metadata": {}, "source": s} for n, s in enumerate(sources)]
    }


@pytest.mark.full
def test_only_labelled_equations_and_no_proofs_are_numbered():
    first = "# 07 T\n\n$$\na\n$$\n\n```{math}\n:label: eq-a\na\n```\n\n```{math}\nb\n```"
    theorem, lemma = (f":::{{prf:{kind}}} T\n:label: {kind}-a\nx\n:::" for kind in ("theorem", "lemma"))
    sources = [first, theorem, ":::{prf:proof}\ny\n:::", lemma, "```{math}\n:label: eq-b\nc\n```"]
    notebook = numbering.numbered(cells(*sources), "7")
    numbers = {"eq-a": "7.1", "theorem-a": "7.1", "lemma-a": "7.1", "eq-b": "7.2"}
    assert numbering.in_jupyterlab(notebook) == numbers
    assert notebook["cells"][2]["source"] == ":::{prf:proof}\n:nonumber:\ny\n:::"
    back = json.loads(numbering.for_sphinx(json.dumps(notebook)))
    assert [cell["source"] for cell in back["cells"]] == sources


@pytest.mark.full
def test_a_caption_goes_below_its_figure_and_back():
    figure = {"caption": "Two\n\nparagraphs.", "name": "fig-a"}
    code = {
        "cell_type": "code",
        "id": "f",
        "metadata": {"mystnb": {"figure": figure}},
        "source": "plot()",
        "outputs": [],
    }
    notebook = cells("# 08 T")
    notebook["cells"].append(code)
    there = numbering.numbered(notebook, "8")
    assert there["cells"][2]["source"] == ":::{figure}\n:label: fig-a\n\nTwo\n\nparagraphs.\n:::"
    assert numbering.in_jupyterlab(there) == {"fig-a": "8.1"}
    back = json.loads(numbering.for_sphinx(json.dumps(there)))["cells"]
    assert len(back) == 2 and back[1]["metadata"]["mystnb"]["figure"] == figure


@pytest.mark.full
def test_every_notebook_is_numbered_by_chapter():
    assert not numbering.outdated(), "make numbers"
