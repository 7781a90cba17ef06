"""The working copies that `make lab` opens: never overwritten when changed, renewed when not, with links that work."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")

from tools.book import lab  # noqa: E402
from tools.notebooks import numbering  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
NAME = "06_attention.ipynb"


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """A book of two chapters."""
    root = tmp_path_factory.mktemp("book")
    (root / "notebooks").mkdir()
    for name in (NAME, "07_positions.ipynb"):
        shutil.copy(ROOT / "notebooks" / name, root / "notebooks")
    (root / "book").mkdir()
    shutil.copy(ROOT / "book/glossary.md", root / "book")
    told = "".join(path.read_text("utf-8") for path in root.glob("*/*"))
    entries = re.split(r"\n(?=@)", (ROOT / "book/references.bib").read_text("utf-8"))
    cited = [entry for entry in entries if entry[0] == "@" and re.split("[{,]", entry)[1] in told]
    (root / "book/references.bib").write_text("\n".join(cited), "utf-8")  # to read all of them takes a second
    return root


@pytest.fixture
def work(book, tmp_path):
    folder = tmp_path / "work"
    assert lab.renew(book, folder) == []
    return folder


def edit(path: Path, change) -> None:
    notebook = json.loads(path.read_text("utf-8"))
    change(notebook)
    path.write_text(json.dumps(notebook), "utf-8")


def answer(notebook):
    notebook["cells"][3]["source"] = "x = 1  # mine"


def run(notebook):
    """What JupyterLab does to a notebook that is only read and run."""
    notebook["metadata"].setdefault("language_info", {})["version"] = "3.12.1"
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], 99


@pytest.fixture
def newer(book, tmp_path):
    """The same book after an update of chapter 06."""
    root = tmp_path / "newer"
    shutil.copytree(book, root, symlinks=True)
    edit(root / "notebooks" / NAME, lambda nb: nb["cells"][-1].update(source="A new last paragraph."))
    return root


@pytest.mark.parametrize(
    "change",
    [
        lambda path: edit(path, answer),
        lambda path: edit(path, lambda nb: nb["cells"].pop()),
        lambda path: edit(path, lambda nb: nb["cells"].append(nb["cells"][2])),
        lambda path: path.write_text("{half"),
        lambda path: path.with_name(lab.GIVEN).unlink(),  # the record is gone, or the notebook came from elsewhere
    ],
)
def test_a_changed_copy_is_never_overwritten(work, newer, change):
    change(work / NAME)
    mine = (work / NAME).read_bytes()
    said = lab.renew(newer, work)
    assert len(said) == 1 and NAME in said[0] and "yours was kept" in said[0]
    assert (work / NAME).read_bytes() == mine
    assert lab.renew(newer, work) == said


def test_a_copy_that_was_only_run_is_renewed(book, work, newer):
    before = {path.name: path.read_bytes() for path in work.iterdir()}
    assert lab.renew(book, work) == [] and before == {path.name: path.read_bytes() for path in work.iterdir()}
    edit(work / NAME, run)
    ran = (work / NAME).read_bytes()
    assert lab.renew(book, work) == [] and (work / NAME).read_bytes() == ran
    said = lab.renew(newer, work)
    assert len(said) == 1 and "updated" in said[0]
    assert "A new last paragraph." in (work / NAME).read_text("utf-8")
    assert lab.renew(newer, work) == []


def test_a_copy_that_was_renamed_is_given_again(newer, work):
    (work / NAME).rename(work / "mine.ipynb")
    assert lab.renew(newer, work) == []
    assert "A new last paragraph." in (work / NAME).read_text("utf-8")


def test_a_copy_is_the_chapter_with_links_that_lead_somewhere(links):
    made = lab.pages(links)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text("utf-8"))
        copy = lab.copy_of(notebook, path.name, links)
        words = "\n".join(numbering.text(cell) for cell in copy["cells"] if cell["cell_type"] == "markdown")
        assert not re.search(r"\{(?:cite:[pt]|term|numref|ref|eq|prf:ref|py:\w+)\}`", words), path.name
        assert not re.search(r"^:class: (?:predict|your-turn|mistake|borrowed)$", words, re.M), path.name
        for page, place in re.findall(r"\]\((glossary\.md|references\.md)#([\w-]+)\)", words):
            assert f"({place})=" in made[page], (path.name, page, place)
        for file in re.findall(r"\]\((\d\d_\w+\.ipynb)\)", words):
            assert (ROOT / "notebooks" / file).exists(), (path.name, file)
        both = zip(notebook["cells"], copy["cells"], strict=True)
        assert all(cell == copied for cell, copied in both if cell["cell_type"] == "code"), path.name
    nbformat.validate(nbformat.from_dict(copy))


@pytest.fixture(scope="module")
def links():
    return lab.Links()


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("{cite:p}`dao2022`", "([Dao et al., 2022](references.md#ref-dao2022))"),
        ("{cite:t}`jain2019` say", "[Jain and Wallace (2019)](references.md#ref-jain2019) say"),
        ("{term}`tokens <token>`", "[tokens](glossary.md#term-token)"),
        ("{numref}`fig-attention-causal`", "[Figure 6.1](06_attention.ipynb)"),
        ("{py:func}`numpy.mean`", "[`numpy.mean`](https://numpy.org/doc/stable/search.html?q=numpy.mean)"),
        (":class: predict", ":class: tip"),
    ],
)
def test_roles_become_links(links, source, shown):
    assert links.markdown(source, "07_positions.ipynb") == shown
    assert links.markdown("{numref}`fig-attention-causal`", NAME) == "[Figure 6.1](#fig-attention-causal)"


# ---- Formulas


KATEX = """
const katex = require("katex");
for (const [place, formula] of JSON.parse(require("fs").readFileSync(0)))
  try { katex.renderToString(formula, {displayMode: true, strict: "ignore"}); }
  catch (error) { console.log(`${place}: ${error.message}\\n${formula}`); }
"""
MODULES = os.pathsep.join([f"{sys.prefix}/node_modules", os.environ.get("NODE_PATH", "")])


def formulas(text: str):
    """The formulas of a MyST text, those in boxes too."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins import amsmath, colon_fence, dollarmath

    parser = MarkdownIt().enable("table").use(dollarmath.dollarmath_plugin).use(amsmath.amsmath_plugin)
    for block in parser.use(colon_fence.colon_fence_plugin).parse(text):
        for token in [block, *(block.children or [])]:
            if "math" in token.type or token.info.startswith("{math}"):
                yield token.content
            elif token.info.startswith("{"):
                yield from formulas(token.content)


def katex(*texts: str) -> str:
    """What KaTeX, by which JupyterLab sets formulas, cannot read in (place, formula) pairs."""
    run = subprocess.run(
        ["node", "-e", KATEX],
        input=json.dumps(texts),
        text=True,
        capture_output=True,
        env=os.environ | {"NODE_PATH": MODULES},
    )
    if "Cannot find module 'katex'" in run.stderr:
        pytest.skip("KaTeX is not installed: make browser")
    assert not run.returncode, run.stderr
    return run.stdout


@pytest.mark.skipif(not shutil.which("node"), reason="node is not installed, and KaTeX runs on it")
def test_jupyterlab_can_set_every_formula():
    assert "Expected 'EOF'" in katex(("planted", r"\texttt{inv_Z}"))
    found = []
    for path in sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("book/*.md")]):
        text = path.read_text("utf-8")
        if path.suffix == ".ipynb":
            cells = json.loads(text)["cells"]
            text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        found += [(path.name, formula) for formula in formulas(text)]
    assert len(found) > 3900 and not katex(*found)
