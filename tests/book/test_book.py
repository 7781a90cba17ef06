"""Test the tools that keep the book consistent: mirror, maps, terms, cells, and the check of built pages."""

import json
import re
import tomllib
import zlib
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")

from docutils import nodes  # noqa: E402

from tools.book import check_site, extension, inventories  # noqa: E402
from tools.notebooks import maps, mirror, numbering, results, terms  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def test_maps_readme_and_contents_list_the_same_chapters():
    assert not maps.outdated(), "make maps"
    files = [file for _, chapters in maps.parts() for file in chapters]
    titles = [maps.title(nbformat.read(file, as_version=4)) for file in files]
    readme = (ROOT / "README.md").read_text()
    assert re.findall(r"\[([\dA]\d [^]]+)\]\(notebooks/\w+\.ipynb\)", readme) == titles
    assert {file.stem for file in files} == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}


def test_what_is_counted_and_introduced_is_up_to_date():
    assert not numbering.outdated(), "make numbers"
    assert terms.check() == []


# ---- The mirror

LIBRARY = '''
LIMIT = 3


def double(x):
    """Twice x.

    x: a number. Returns a number.
    """
    # addition is exact
    return x + x


class Counter:
    """Counts."""

    def __init__(self):
        self.n = 0

    def add(self, k):
        """Add k.

        k: an integer.
        """
        self.n += k
'''
BRIEF = 'def double(x):\n    """Twice x."""\n    # addition is exact\n    return x + x'
FULL = LIBRARY.split("\n\n\n")[1]
METHOD = 'class Counter:\n    def add(self, k):\n        """Add k."""\n        self.n += k'
KERNELS = """// kernels
#define TILE 32

__device__ float half_of(float v) {
  // exact
  return v / 2;
}

// halves x
extern "C" __global__ void __launch_bounds__(512)
halve(float* x, int n) {
  int i = threadIdx.x;
  if (i < n) { x[i] = half_of(x[i]); }  // { in a comment
}
"""
HALF_OF = "__device__ float half_of(float v) {\n  // exact\n  return v / 2;\n}"
HALVE = KERNELS[KERNELS.index("extern") :].rstrip()


def mirrored(folder: Path, source: str, part: bool = False) -> Path:
    """Write a chapter with one mirror cell, of Python or CUDA, and the library that the cell shows; return its path."""
    (folder / "nanoeuler_lib").mkdir(exist_ok=True)
    (folder / "nanoeuler_lib" / "thing.py").write_text(LIBRARY)
    (folder / "nanoeuler_lib" / "thing.cu").write_text(KERNELS)
    metadata = {"tags": ["mirror-part" if part else "mirror"]}
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source, metadata=metadata)])
    cuda = source.startswith("%%cuda")
    notebook.metadata["nanoeuler"] = {"module": "nanoeuler_lib/thing.cu" if cuda else "nanoeuler_lib.thing"}
    nbformat.write(notebook, folder / "chapter.ipynb")
    return folder / "chapter.ipynb"


def cuda(text: str) -> str:
    return f"%%cuda --cpu\n{text}"


CHANGED = [  # a cell, and part of the mirror's message
    (FULL.replace("a number. R", "a string. R"), "double differs"),
    ("LIMIT = 4", "LIMIT differs"),
    ("def triple(x):\n    return 3 * x", "triple must be defined in"),
    ("print(1)", "the cell must define something"),
    ("%time print(1)", "invalid syntax"),
    (METHOD, "Counter differs"),  # only a cell tagged mirror-part may leave methods out
    (cuda(HALF_OF.replace("exact", "inexact")), "half_of differs"),
    (cuda(HALVE.replace("__launch_bounds__(512)", "__launch_bounds__(256)")), "halve differs"),
    (cuda(HALF_OF + "\n" + HALVE.replace("i < n", "i <= n")), "halve differs"),
    (cuda("#define TILE 33"), "TILE differs"),
    (cuda(HALVE[:-1]), "must begin a complete definition"),
]


@pytest.mark.parametrize(("source", "said"), CHANGED)
def test_mirror_rejects_a_change(tmp_path, source, said):
    (problem,) = mirror.check_notebook(mirrored(tmp_path, source), root=tmp_path)
    assert said in problem


def test_mirror_rejects_every_change_of_one_character(tmp_path):
    mirrored(tmp_path, BRIEF)
    for at in range(BRIEF.index("# addition"), len(BRIEF)):
        changed = BRIEF[:at] + ("?" if BRIEF[at] != "?" else "!") + BRIEF[at + 1 :]
        try:
            problems = mirror.check_cell(changed, "nanoeuler_lib.thing", False, tmp_path)[1]
        except (LookupError, SyntaxError):
            continue
        assert problems, changed


@pytest.mark.parametrize(
    ("stale", "fresh"),
    [
        (BRIEF.replace("x + x", "x * 2"), BRIEF),
        (METHOD.replace("+=", "-="), METHOD),
        ("LIMIT = 4\n\n\n" + BRIEF.replace("exact", "fine"), "LIMIT = 3\n\n\n" + BRIEF),
        (cuda(f"{HALF_OF.replace('2', '3')}\n\n{HALVE.replace('x[i]', 'y[i]')}"), cuda(f"{HALF_OF}\n\n{HALVE}")),
    ],
)
def test_mirror_write_copies_the_library(tmp_path, stale, fresh):
    path = mirrored(tmp_path, stale, part=fresh == METHOD)
    assert mirror.check_notebook(path, root=tmp_path)
    assert mirror.check_notebook(path, write=True, root=tmp_path) == []
    assert nbformat.read(path, as_version=4).cells[0].source == fresh
    assert mirror.check_notebook(path, root=tmp_path) == []


# ---- Cells of CUDA


def test_cells_of_cuda_are_coloured_as_cuda():
    document = nodes.document("", "")
    for text in ("%%cuda -D TILE=32\nint i;", "x = 1", "print('%%cuda')"):
        document += nodes.literal_block(text, text, language="ipython3")
    extension.colour_cuda(None, document)
    languages = [block["language"] for block in document.findall(nodes.literal_block)]
    assert languages == ["cuda", "ipython3", "ipython3"]


def test_jupyterlab_finds_the_extension_that_colours_them():
    """Check that the files in package.json exist, and that pyproject.toml installs them where JupyterLab looks."""
    folder = ROOT / "nanoeuler_lib" / "cuda" / "labextension"
    package = json.loads((folder / "package.json").read_text())
    entry = folder / package["jupyterlab"]["_build"]["load"]
    assert f"_JUPYTERLAB['{package['name']}']" in entry.read_text()
    installed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    place = f"share/jupyter/labextensions/{package['name']}"
    for file in (folder / "package.json", entry):
        target = place if file.parent == folder else f"{place}/{file.parent.name}"
        assert installed[target] == [str(file.relative_to(ROOT))]


# ---- The built pages

PAGE = (
    '<html lang="en"><head><title>t</title></head><body><h1 id="top">t</h1>'
    '<a href="b.html#here">b</a><a href="https://example.org">e</a><img src="p.png" alt="A rising line"></body></html>'
)
OTHER_PAGE = '<html lang="en"><head><title>b</title></head><body><p id="here"></p></body></html>'
FAULTS = [  # old text, new text, the sentence that the check prints
    ("b.html#here", "c.html", "<a> c.html does not exist"),
    ("b.html#here", "b.html#there", "<a> b.html#there: the page has no such anchor"),
    (' alt="A rising line"', "", "picture without alt text: p.png"),
    ("A rising line", "p.png", "alt text is a file name: p.png"),
    ("<body>", '<body><i id="top"></i>', "id 'top' occurs twice"),
    ("<body>", '<body><script src="https://a.org/x.js"></script>', "<script> loads https://a.org/x.js from outside"),
    ("</title>", '</title><style>@import "//a.org/x.css"</style>', "style loads //a.org/x.css from outside"),
    ("<title>t</title>", "", "no title"),
    ("</h1>", "</h1><p>Proof. \\begin{align} a</p>", "a formula is printed as text: Proof. \\begin{align} a"),
    (' lang="en"', "", "no language on <html>"),
]


@pytest.mark.parametrize(("old", "new", "said"), [("t", "t", None), *FAULTS])
def test_check_site_finds_a_planted_fault_and_nothing_else(tmp_path, old, new, said):
    assert old in PAGE
    (tmp_path / "a.html").write_text(PAGE.replace(old, new))
    (tmp_path / "b.html").write_text(OTHER_PAGE)
    (tmp_path / "p.png").touch()
    assert check_site.check(tmp_path)[0] == ([f"a.html: {said}"] if said else [])


def test_check_site_reads_style_sheets(tmp_path):
    (tmp_path / "s.css").write_text('@import "https://a.org/x.css"; a { background: url(//a.org/y) }')
    assert check_site.check(tmp_path)[0] == [f"s.css: loads {at}a.org/{x} from outside"
                                             for at, x in (("https://", "x.css"), ("//", "y"))]  # fmt: skip


# ---- Results, inventories, the lock


def test_results_say_where_they_come_from(tmp_path):
    path = results.save("ch99", {"steps": 2}, [{"seed": 0, "loss": 1.5}], folder=tmp_path)
    stored = json.loads(path.read_text())
    assert stored["rows"] == [{"seed": 0, "loss": 1.5}] and stored["config"] == {"steps": 2}
    assert {"commit", "date", "machine"} <= stored.keys()
    assert {"cpu", "cores", "gpu", "python", "numpy"} <= stored["machine"].keys()
    with pytest.raises(ValueError, match="JSON compliant"):
        results.save("ch99", {}, [{"loss": float("nan")}], folder=tmp_path)
    assert json.loads(path.read_text()) == stored


def test_inventories_are_fresh():
    for name, (version, links) in inventories.LINKS.items():
        stored = (inventories.FOLDER / f"{name}.inv").read_bytes()
        fresh = inventories.inventory(name, version, links)
        rows = [zlib.decompress(data.split(b"\n", 4)[4]) for data in (stored, fresh)]
        assert rows[0] == rows[1], "python tools/book/inventories.py"


def test_lock_holds_what_pyproject_asks_for_and_names_no_server():
    lock = (ROOT / "requirements.txt").read_text()
    assert not re.search(r"^--|://|file:", lock, re.M)
    names = set(re.findall(r"^([\w-]+)==", lock, re.M))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + extras["book"] + extras["dev"] + extras["instructor"]
    assert {re.match(r"[\w-]+", line)[0] for line in wanted} <= names
    assert "torch" not in names
