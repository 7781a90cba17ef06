"""The pages that the build computes: the status page, the library's reference, the glossary."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")
pytest.importorskip("sphinx", reason="sphinx is not installed: pip install -e .[book]")

from sphinx.application import Sphinx  # noqa: E402

from tools.book import api, status  # noqa: E402
from tools.notebooks import runs, terms  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def write(path: Path, *cells) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells)), path)
    return path


code, text = nbformat.v4.new_code_cell, nbformat.v4.new_markdown_cell


# ---- The record of runs


def test_a_run_is_recorded_once_for_the_same_code(tmp_path):
    path = write(tmp_path / "notebooks/00_x.ipynb", text("words"), code("a = 1"))
    runs.record(path, 12.345, 6.0, tmp_path)
    first = runs.file(tmp_path).read_text()
    assert runs.recorded(tmp_path)["00_x"]["seconds"] == 12.3
    write(path, text("other words"), code("a = 1", outputs=[nbformat.v4.new_output("stream", text="1")]))
    runs.record(path, 99, 99, tmp_path)
    assert runs.file(tmp_path).read_text() == first, "text or outputs changed the record"
    write(path, text("words"), code("a = 2"))
    runs.record(path, 7, 3, tmp_path)
    assert runs.recorded(tmp_path)["00_x"]["seconds"] == 7


MACHINE = {"cpu": "A  CPU", "cores": 2, "gpu": "G", "python": "3.12.0", "numpy": "2.4.0", "matplotlib": "3.11.2"}


def commit(root: Path, day: str, message: str = "x") -> None:
    who = {f"GIT_{role}_{what}": "x@y" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    dates = {f"GIT_{role}_DATE": f"{day}T12:00:00Z" for role in ("AUTHOR", "COMMITTER")}
    for arguments in (("add", "-A"), ("commit", "-qm", message)):
        subprocess.run(["git", *arguments], cwd=root, check=True, env=os.environ | who | dates)


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_dates_are_those_of_the_last_change(tmp_path):
    root = tmp_path / "whole"
    (root / "notebooks").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", "."], cwd=root, check=True)
    for day, name, words in (("2026-01-01", "a", "1"), ("2026-01-02", "b", "1"), ("2026-01-03", "b", "2")):
        (root / "notebooks" / f"{name}.ipynb").write_text(words)
        commit(root, day)
    assert status.committed("notebooks", root) == {"a.ipynb": "2026-01-01", "b.ipynb": "2026-01-03"}
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{root}", str(shallow)], check=True)
    assert status.committed("notebooks", shallow) == {}, "a shallow clone dates every file by its last commit"
    (tmp_path / "archive").mkdir()
    assert status.committed("notebooks", tmp_path / "archive") == {}


def test_each_stored_result_names_its_script(tmp_path):
    (tmp_path / "data/results").mkdir(parents=True)
    (tmp_path / "benchmarks").mkdir()
    made = {"date": "2026-01-02", "commit": "abc-dirty", "machine": MACHINE}
    for name in ("one", "two"):
        (tmp_path / f"data/results/{name}.json").write_text(json.dumps(made | {"config": {}}))
    (tmp_path / "benchmarks/first.py").write_text('save("one", {}, [])')
    rows = status.results(tmp_path).split("\n")[2:]
    assert [row.split("|")[-2].strip() for row in rows] == ["`benchmarks/first.py`", "not known"]
    assert "not known" not in status.results()


# ---- The library's reference


@pytest.mark.parametrize(
    ("docstring", "shown"),
    [
        ("x: [..., D]; returns `y`s.", "x: ``[..., D]``; returns ``y``\\ s."),
        ("a*b and |x|, _ and my_name", "a\\*b and \\|x\\|, \\_ and my_name"),
        ("`a[i]`[T] in [0, V)", "``a[i]``\\ ``[T]`` in [0, V)"),
    ],
)
def test_docstrings_are_read_as_they_are_meant(docstring, shown):
    assert "\n".join(api.restructured(docstring)) == shown


PACKAGES = "nanoeuler_lib", "nanoeuler_book", "konigsberg", "cudacheck"


def test_the_reference_knows_who_derives_what():
    found = api.derivations()
    assert found["nanoeuler_lib.ops.reference", "attention_backward"] == ["15_grouped_queries"]
    assert found["nanoeuler_lib.model.gradcheck", "compare"] == ["05_checking_gradients"]
    assert found["nanoeuler_lib/kernels/rmsnorm.cu", "rmsnorm_backward"] == ["24_reductions"]
    assert "14_sampling" in found["nanoeuler_lib.model.decoder", "Decoder"]


PAGE_OF = {"corpus": "text", "ops": "model"}


def test_every_module_stands_once_on_the_page_of_its_package():
    pages = {path.stem: path.read_text("utf-8") for path in (ROOT / "book/api").glob("*.md")}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        package, folder = path.relative_to(ROOT).parts[:2]
        page = package
        if package == "nanoeuler_lib":
            page = "command" if path.parent == ROOT / package else PAGE_OF.get(folder, folder)
            page = "index" if name == package else page
        on = [page for page, text in pages.items() for _ in range(text.count(f".. automodule:: {name}\n"))]
        assert on == [page] or name.endswith("._moved"), f"{name} stands on {on} of book/api, expected {page}.md"


def test_every_kernel_stands_on_the_page_of_kernels():
    page = (ROOT / "book/api/cuda.md").read_text("utf-8")
    for path in (ROOT / "nanoeuler_lib/kernels").iterdir():
        assert page.count(f"{{kernel-file}} {path.name}\n") == 1, path.name


# ---- The glossary

GLOSSARY = """# Glossary

```{glossary}
:sorted:

zeta
  The last; see {term}`alpha`.

alpha
  The first, with $a^2$.

never
  In no chapter.
```
"""
CHAPTER = "# 01 One\n\nFirst {term}`zeta`, then {term}`alphas <alpha>` and {term}`zeta` again.\n"


def test_introductions_follow_the_table_of_contents(tmp_path):
    (tmp_path / "_toc.yml").write_text("parts:\n- chapters:\n  - file: notebooks/02_b\n  - file: notebooks/01_a\n")
    write(tmp_path / "notebooks/01_a.ipynb", text("{term}`one`, {term}`two`"))
    write(tmp_path / "notebooks/02_b.ipynb", text("{term}`Twos <two>`"), code("{term}`one`"))
    assert terms.introductions(tmp_path) == {"two": "02_b", "one": "01_a"}
    known = {term.lower() for term in terms.glossary_terms((ROOT / "book/glossary.md").read_text("utf-8"))}
    assert set(terms.introductions()) <= known


@pytest.fixture(scope="module")
def glossary_site(tmp_path_factory) -> Path:
    """A book of a glossary and a chapter, built; its chapter is a notebook as well, for tools/notebooks/terms.py."""
    root = tmp_path_factory.mktemp("book")
    (root / "book/_static").mkdir(parents=True)
    (root / "notebooks").mkdir()
    (root / "index.md").write_text("# Book\n\n```{toctree}\nbook/glossary\nnotebooks/01_one\n```\n")
    (root / "book/glossary.md").write_text(GLOSSARY)
    (root / "notebooks/01_one.md").write_text(CHAPTER)
    write(root / "notebooks/01_one.ipynb", text(CHAPTER))
    (root / "_toc.yml").write_text("parts:\n- chapters:\n  - file: notebooks/01_one\n")
    settings = {
        "extensions": ["myst_parser", "sphinx.ext.mathjax", "tools.book.glossary"],
        "myst_enable_extensions": ["dollarmath"],
        "html_static_path": [str(ROOT / "book/_static")],
    }
    app = Sphinx(root, None, root / "out", root / "trees", "html", settings, status=None, warningiserror=True)
    app.build()
    return root / "out"


def test_each_entry_says_where_it_is_introduced(glossary_site):
    page = (glossary_site / "book/glossary.html").read_text()
    assert page.count("Introduced in") == 2
    for name in ("alpha", "zeta"):
        assert f'href="../notebooks/01_one.html#first-{name}">01 One</a>' in page
    assert '<a href="#term-alpha">A</a> <a href="#term-never">N</a> <a href="#term-zeta">Z</a></nav>' in page


def test_a_page_carries_the_definitions_of_its_own_terms(glossary_site):
    page = (glossary_site / "notebooks/01_one.html").read_text()
    assert page.count('id="first-zeta"') == 1
    store = page.partition('<template id="glossary-definitions">')[2].partition("</template>")[0]
    assert [part.partition('"')[0] for part in store.split('data-term="')[1:]] == ["term-alpha", "term-zeta"]
    assert "see alpha." in store and "\\(a^2\\)" in store
    assert "mathjax" in page.lower(), "a definition has a formula, the page has none of its own"
    assert "<template" not in (glossary_site / "index.html").read_text()
