"""Figures, equations, exercises and theorems are numbered by chapter in JupyterLab; test_pages.py looks at the book."""

import copy
import json

import pytest

from tools.notebooks import numbering


def cells(*sources: str) -> dict:
    return {
        "cells": [{"cell_type": "markdown", "id": f"c{n}", "metadata": {}, "source": s} for n, s in enumerate(sources)]
    }


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
    assert numbering.numbered(copy.deepcopy(notebook), "7") == notebook, "numbering twice changes nothing"


def test_a_caption_goes_below_its_figure_and_back():
    figure = {"caption": "Two\n\nparagraphs.", "name": "fig-a"}
    notebook = cells("# 08 T", "plot()")
    notebook["cells"][1] |= {"cell_type": "code", "metadata": {"mystnb": {"figure": figure}}, "outputs": []}
    there = numbering.numbered(notebook, "8")
    assert there["cells"][2]["source"] == ":::{figure}\n:label: fig-a\n\nTwo\n\nparagraphs.\n:::"
    assert numbering.in_jupyterlab(there) == {"fig-a": "8.1"}
    back = json.loads(numbering.for_sphinx(json.dumps(there)))["cells"]
    assert len(back) == 2 and back[1]["metadata"]["mystnb"]["figure"] == figure


@pytest.mark.parametrize(("name", "number"), [("06_attention", "6"), ("notebooks/A1_cpu", "A1"), ("intro", None)])
def test_a_chapters_number_is_in_its_name(name, number):
    assert numbering.chapter(name) == number
