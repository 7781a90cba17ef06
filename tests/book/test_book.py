"""The book: its notebooks are clean and equal to the library where they say so; the tools that check it can fail."""

import ast
import functools
import itertools
import json
import re
import shutil
import tomllib
import zlib
from collections import Counter
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")

from docutils import nodes  # noqa: E402

from tools.book import check_site, extension  # noqa: E402
from tools.notebooks import cells, maps, mirror, numbering, results, terms  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TEMPLATE = ROOT / "tools" / "notebooks" / "chapter_template.md"
FOLDED = {"hide-input", "hide-cell"}
UNANSWERED = {"10": 1}  # chapter: predictions that the text answers, without a cell
PLACE = re.compile(
    r"\b(?:last|first|second|third) lines? (?:of (?:the|this) cell|above|below|asserts?|but one)\b"
    r"|\b(?:last|first) assertion\b|\bcell's (?:last|first) line\b"
    r"|\((?:first|second|third|last) (?:line|row|column)\b",
    re.I,
)


@functools.cache
def read(path: Path):
    """The notebook; the tests look at it and change nothing."""
    return nbformat.read(path, as_version=4)


each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def tags(cell) -> set[str]:
    return set(cell.metadata.get("tags", ()))


# ---- Every notebook


@each_notebook
def test_mirror_cells_equal_the_library(path):
    assert mirror.check_notebook(path) == []


@each_notebook
def test_notebook_was_run_in_order_and_normalised(path):
    notebook = read(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), (
        f"make execute NB=notebooks/{path.name}"
    )
    assert "version" not in notebook.metadata.language_info
    assert not [cell for cell in code if "execution" in cell.metadata]
    for cell in code:
        for output in cell.outputs:
            assert output.get("name") != "stderr", f"stored on stderr: {output.text}"
            assert output.output_type != "error" or "raises-exception" in tags(cell), output.get("evalue")


def test_maps_and_readme_list_the_chapters():
    """Each chapter's map of the book and the README's table follow the table of contents: `make maps`."""
    assert not maps.outdated()
    titles = [maps.title(read(f)) for _, files in maps.parts() for f in files]
    table = re.findall(
        r"^\| \[([\dA]\d .+?)\]\(notebooks/\S+\.ipynb\) \| .+ \|$", (ROOT / "README.md").read_text(), re.M
    )
    assert table == titles


@each_notebook
def test_every_figure_has_alt_text_and_no_number_is_an_address(path):
    for cell in read(path).cells:
        for output in cell.get("outputs", ()):
            if any(kind.startswith("image/") for kind in output.get("data", ())):
                alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
                assert len(alt.split()) >= 4, (
                    f"figure without alt text in the cell metadata (mystnb.image.alt):\n{cell.source}"
                )
            assert not re.search(r"0x[0-9a-f]{8,}", str(output.get("text", ""))), output.text


LETTERS = re.compile(r"""(?:font|label|title)\.?size["']?\s*[=:]\s*["']?(x{1,2}-small|[\d.]+)""")


def too_small(text: str) -> list[str]:
    """Sizes of letters below 8 points. A phone shows 144 pixels of a figure on 72 of its own, so a point is a pixel."""
    return [size for size in LETTERS.findall(text) if "small" in size or float(size) < 8]


@pytest.mark.parametrize(
    "path",
    [*NOTEBOOKS, ROOT / "nanoeuler_book/figures.py", ROOT / "nanoeuler_lib/nanoeuler.mplstyle"],
    ids=lambda path: path.stem,
)
def test_the_letters_of_figures_can_be_read_on_a_phone(path):
    if path.suffix == ".ipynb":
        code = (cell for cell in read(path).cells if cell.cell_type == "code")
        assert [(size, cell.source) for cell in code for size in too_small(cell.source)] == []
    else:
        assert too_small(path.read_text("utf-8")) == []


@each_notebook
def test_a_caption_stands_alone_below_the_cell_that_draws_its_figure(path):
    """With other text in its cell it does not reach its figure in the book, whose build then fails."""
    cells = read(path).cells
    for above, cell in itertools.pairwise(cells):
        if cell.cell_type == "markdown" and "{figure}\n" in cell.source:
            assert numbering.CAPTION.match(cell.source), cell.source
            assert any("image/png" in output.get("data", ()) for output in above.get("outputs", ())), cell.source


@each_notebook
def test_hidden_cells_say_what_they_hide(path):
    for cell in read(path).cells:
        if tags(cell) & {"hide-input", "hide-cell"}:
            assert "code_prompt_show" in cell.metadata.get("mystnb", {}), cell.source
            assert cell.metadata.get("jupyter", {}).get("source_hidden"), f"open in JupyterLab:\n{cell.source}"


@each_notebook
def test_what_a_reader_need_not_see_is_folded(path):
    """Imports, checks, solutions with their outputs, code of figures, and asserts on the book's own numbers."""
    code = [cell for cell in read(path).cells if cell.cell_type == "code"]
    code = [cell for cell in code if "library" not in tags(cell)]
    assert tags(code[0]) & FOLDED, "the imports are in view"
    for cell in code:
        folded = bool(tags(cell) & FOLDED)
        if tags(cell) & {"check", "claim", "solution"}:
            assert "hide-cell" in tags(cell), cell.source
        if "solution" in tags(cell):
            assert cell.metadata.jupyter.get("outputs_hidden"), f"the output tells the answer:\n{cell.source}"
        if "check" in tags(cell):
            assert not cell.metadata.jupyter.get("outputs_hidden"), f"JupyterLab hides the verdict:\n{cell.source}"
        figure = any("image/png" in output.get("data", ()) for output in cell.outputs)
        assert folded or not figure, f"a figure's code is in view:\n{cell.source}"
        asserts = [node for node in ast.parse(cells.python(cell)).body if isinstance(node, ast.Assert)]
        in_view = asserts and not folded and not tags(cell) & {"gap", "raises-exception"}
        assert not in_view, f"move it to a cell tagged claim, hide-cell:\n{ast.unparse(asserts[0])}"


@each_notebook
def test_claims_are_asserts_with_what_they_compare(path):
    for cell in read(path).cells:
        if "claim" in tags(cell):
            kinds = {type(node) for node in ast.parse(cell.source).body}
            assert ast.Assert in kinds and kinds <= {ast.Assert, ast.Assign}, cell.source


@each_notebook
def test_a_cell_in_view_is_short_and_narrow(path):
    """At most 25 lines, 60 of CUDA, of 88 columns."""
    for cell in read(path).cells:
        if cell.cell_type == "code" and not tags(cell) & (FOLDED | {"remove-cell"}):
            lines = cell.source.split("\n")
            longest = max(map(len, lines))
            most = 60 if cell.source.startswith("%%cuda") else 25
            assert len(lines) <= most and longest <= 88, f"{len(lines)} lines of {longest} columns:\n{cell.source}"


@each_notebook
def test_a_prediction_is_answered_behind_a_fold(path):
    """The cell that answers says "Show what happened"; the conclusion follows in the open."""
    shows = 0
    for cell in read(path).cells:
        assert "answer dropdown" not in cell.source
        if cell.metadata.get("mystnb", {}).get("code_prompt_show") == "Show what happened":
            shows += 1
            assert tags(cell) & {"hide-output", "hide-cell"} and cell.metadata.jupyter.outputs_hidden
    predictions = sum("class: predict" in cell.source for cell in read(path).cells)
    assert shows >= predictions > 0 or shows >= predictions - UNANSWERED.get(path.stem[:2], 0)


@each_notebook
def test_every_gap_says_what_its_check_will_try(path):
    """In the box above it, in a sentence about the check."""
    for cell in read(path).cells:
        for box in re.findall(r"\{admonition\} Your turn\n(.*?)\n:::", cell.source, re.DOTALL):
            assert re.search(r"\b[Cc]hecks?\s|\bIt tries\b", box), f"{cell.id}: {box[:200]}"


@each_notebook
def test_every_gap_gives_points(path):
    code = [cell for cell in read(path).cells if cell.cell_type == "code"]
    for number, cell in enumerate(code):
        if "gap" in tags(cell):
            stub, check = cell.metadata.nbgrader, code[number + 1].metadata.nbgrader
            assert (stub.solution, stub.grade, stub.locked) == (True, False, False)
            assert (check.solution, check.grade, check.locked) == (False, True, True)
            assert check.points > 0
            assert check.grade_id == f"{stub.grade_id}-check"


@each_notebook
def test_checks_end_in_judge_and_cut_nothing_short(path):
    for cell in read(path).cells:
        if "check" not in tags(cell):
            continue
        tree = ast.parse(cell.source)
        assert re.match(r"own_\w+ = judge\(", ast.unparse(tree.body[-1])), f"no judge at the end of\n{cell.source}"
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "zip":
                said = f"zip stops at the shorter: strict=True in {ast.unparse(call)}"
                assert any(k.arg == "strict" and k.value.value is True for k in call.keywords), said


@each_notebook
def test_prose_names_what_it_means(path):
    """No reader should count lines: "the last line of the cell" costs a search, and is wrong after the next edit."""
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            found = PLACE.search(" ".join(cell.source.split()))
            assert not found, f"name what stands there instead of its place: {found[0]!r}"


@each_notebook
def test_every_gap_runs_untouched_and_is_checked(path):
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    for number, cell in enumerate(cells):
        if "gap" in tags(cell):
            assert "your code here" in cell.source
            assert "check" in tags(cells[number + 1]), f"no check cell after\n{cell.source}"
        if "check" in tags(cell):
            printed = "".join(output.get("text", "") for output in cell.outputs)
            assert "not written yet" in printed, f"an untouched gap must print so:\n{cell.source}"


@each_notebook
def test_every_exercise_has_a_solution(path):
    cells = read(path).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    exercises = re.findall(r"\{exercise(?:-start)?\}[^\n]*\n:label: *(\S+)", text)
    assert sorted(exercises) == sorted(re.findall(r"\{solution(?:-start)?\} *(\S+)", text))
    for cell in cells:
        if "{solution}" in cell.source:
            assert "solution" in tags(cell), f"the students' version would keep it:\n{cell.source}"


@each_notebook
def test_every_exercise_shows_a_right_answer_and_why_wrong_ones_are_rejected(path):
    """`show_rejected` fails where a check takes a wrong answer: a chapter that ran has tried all that it names."""
    cells, gaps, shown = read(path).cells, 0, 0
    start = next(i for i, cell in enumerate(cells) if re.search(r"^## Exercises", cell.source, re.M))
    for cell in cells[start:]:
        gaps += "gap" in tags(cell)
        if "solution" in tags(cell) and "show_rejected" in cell.source:
            printed = "".join(output.get("text", "") for output in cell.outputs)
            shown += bool(re.search(r"^\w+: right\b", printed, re.M))
            assert len(re.findall(r"^rejected, .+: \S", printed, re.M)) >= 3, cell.source
    assert shown == gaps >= 3


def test_grade_ids_are_unique():
    marks = [cell.metadata.nbgrader for path in NOTEBOOKS for cell in read(path).cells if "nbgrader" in cell.metadata]
    assert [name for name, count in Counter(mark.grade_id for mark in marks).items() if count > 1] == []
    assert all(mark.schema_version == 3 for mark in marks)


def test_every_notebook_is_in_the_table_of_contents():
    listed = set(re.findall(r"notebooks/(\S+)", (ROOT / "_toc.yml").read_text()))
    assert listed == {path.stem for path in NOTEBOOKS}


def test_terms_and_symbols_are_introduced_before_they_are_used():
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


def mirror_notebook(folder: Path, source: str, tag: str = "mirror", module: str | None = "nanoeuler_lib.thing") -> Path:
    (folder / "nanoeuler_lib").mkdir(exist_ok=True)
    (folder / "nanoeuler_lib" / "thing.py").write_text(LIBRARY)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source, metadata={"tags": [tag]})])
    if module:
        notebook.metadata["nanoeuler"] = {"module": module}
    path = folder / "chapter.ipynb"
    nbformat.write(notebook, path)
    return path


@pytest.mark.parametrize("source", [BRIEF, FULL, "LIMIT = 3", BRIEF + "\n\n\nprint(double(2))"])
def test_mirror_accepts_the_library_text(tmp_path, source):
    assert mirror.check_notebook(mirror_notebook(tmp_path, source), root=tmp_path) == []


@pytest.mark.parametrize(
    "source",
    [
        BRIEF.replace("return x + x", "return  x + x"),  # a blank counts
        BRIEF.replace("Twice x.", "Twice y."),
        FULL.replace("a number. R", "a string. R"),
        "LIMIT = 4",
        "def triple(x):\n    return 3 * x",
        "print(1)",
        "%time print(1)",
    ],
)
def test_mirror_rejects_a_change(tmp_path, source):
    assert len(mirror.check_notebook(mirror_notebook(tmp_path, source), root=tmp_path)) == 1


def test_mirror_rejects_every_change_of_one_character(tmp_path):
    body = BRIEF.index("# addition")
    for at in range(body, len(BRIEF)):
        changed = BRIEF[:at] + ("?" if BRIEF[at] != "?" else "!") + BRIEF[at + 1 :]
        assert mirror.check_notebook(mirror_notebook(tmp_path, changed), root=tmp_path), changed


def test_mirror_part_shows_some_methods(tmp_path):
    assert mirror.check_notebook(mirror_notebook(tmp_path, METHOD, "mirror-part"), root=tmp_path) == []
    assert mirror.check_notebook(mirror_notebook(tmp_path, METHOD, "mirror"), root=tmp_path)
    wrong = METHOD.replace("+=", "-=")
    assert mirror.check_notebook(mirror_notebook(tmp_path, wrong, "mirror-part"), root=tmp_path)


@pytest.mark.parametrize(
    ("stale", "tag", "fresh"),
    [
        (BRIEF.replace("x + x", "x * 2"), "mirror", BRIEF),
        (METHOD.replace("+=", "-="), "mirror-part", METHOD),
        ("LIMIT = 4\n\n\n" + BRIEF.replace("exact", "fine"), "mirror", "LIMIT = 3\n\n\n" + BRIEF),
    ],
)
def test_mirror_write_copies_the_library(tmp_path, stale, tag, fresh):
    path = mirror_notebook(tmp_path, stale, tag)
    assert mirror.check_notebook(path, write=True, root=tmp_path) == []
    assert nbformat.read(path, as_version=4).cells[0].source == fresh
    assert mirror.check_notebook(path, root=tmp_path) == []


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


def cuda_notebook(folder: Path, source: str) -> Path:
    path = mirror_notebook(folder, f"%%cuda --cpu\n{source}", module="nanoeuler_lib/thing.cu")
    (folder / "nanoeuler_lib" / "thing.cu").write_text(KERNELS)
    return path


@pytest.mark.parametrize(
    "source",
    [
        HALF_OF,
        HALVE,
        "#define TILE 32",
        "// other words\n" + HALVE,
        f"#include <reduce.cuh>\n\n{HALVE}\n\n{HALF_OF}\n",
    ],
)
def test_mirror_accepts_a_kernel(tmp_path, source):
    assert mirror.check_notebook(cuda_notebook(tmp_path, source), root=tmp_path) == []


@pytest.mark.parametrize(
    "source",
    [
        HALF_OF.replace("exact", "inexact"),
        HALVE.replace("__launch_bounds__(512)", "__launch_bounds__(256)"),
        HALVE.replace("in a comment", "in no comment"),
        HALF_OF + "\n" + HALVE.replace("i < n", "i <= n"),
        "#define TILE 33",
        HALVE[:-1],
        "// nothing",
    ],
)
def test_mirror_rejects_a_changed_kernel(tmp_path, source):
    assert len(mirror.check_notebook(cuda_notebook(tmp_path, source), root=tmp_path)) == 1


def test_mirror_write_copies_a_kernel(tmp_path):
    path = cuda_notebook(tmp_path, f"{HALF_OF.replace('2', '3')}\n\n{HALVE.replace('x[i]', 'y[i]')}")
    assert mirror.check_notebook(path, write=True, root=tmp_path) == []
    assert nbformat.read(path, as_version=4).cells[0].source == f"%%cuda --cpu\n{HALF_OF}\n\n{HALVE}"


# ---- Cells of CUDA


def test_cells_of_cuda_are_coloured_as_cuda():
    document = nodes.document("", "")
    for text in ("%%cuda -D TILE=32\nint i;", "x = 1", "print('%%cuda')"):
        document += nodes.literal_block(text, text, language="ipython3")
    extension.colour_cuda(None, document)
    languages = [block["language"] for block in document.findall(nodes.literal_block)]
    assert languages == ["cuda", "ipython3", "ipython3"]


def test_jupyterlab_finds_the_extension_that_colours_them():
    """The files that its package.json names are there, and pyproject.toml installs them where JupyterLab looks."""
    folder = ROOT / "nanoeuler_lib" / "cuda" / "labextension"
    package = json.loads((folder / "package.json").read_text())
    entry = folder / package["jupyterlab"]["_build"]["load"]
    assert f"_JUPYTERLAB['{package['name']}']" in entry.read_text()
    installed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    place = f"share/jupyter/labextensions/{package['name']}"
    for file in (folder / "package.json", entry):
        target = place if file.parent == folder else f"{place}/{file.parent.name}"
        assert installed[target] == [str(file.relative_to(ROOT))]


def test_the_python_of_a_cell_is_what_is_left_without_magics():
    sources = ["%load_ext x\na = 1\nb = 3 % 2", "%%cuda\nint i;"]
    found = [cells.python(nbformat.v4.new_code_cell(source)) for source in sources]
    assert found == ["\na = 1\nb = 3 % 2", ""]


@pytest.mark.compiler
def test_the_kernels_of_a_cell_are_those_for_the_device():
    text = 'extern "C" __global__ void one(float* x) { x[threadIdx.x] = 1; }'
    for magic, names in (("%%cuda", ["one"]), ("%%cuda --cpu", []), ("%%cuda_text", []), ("# %%cuda", [])):
        cell = nbformat.v4.new_code_cell(f"{magic}\n{text}")
        assert list(cells.kernels(cell)) == names


# ---- The built pages

GOOD_PAGE = (
    '<html lang="en"><head><title>t</title></head><body><h1 id="top">t</h1>'
    '<a href="b.html#here">b</a><a href="https://example.org">e</a><img src="p.png" alt="A rising line"></body></html>'
)
OTHER_PAGE = '<html lang="en"><head><title>b</title></head><body><p id="here"></p></body></html>'


def site(folder: Path, page: str, css: str = "") -> list[str]:
    (folder / "a.html").write_text(page)
    (folder / "b.html").write_text(OTHER_PAGE)
    (folder / "p.png").write_bytes(b"")
    (folder / "s.css").write_text(css)
    return check_site.check(folder)[0]


def test_check_site_accepts_a_good_page(tmp_path):
    assert site(tmp_path, GOOD_PAGE) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("b.html#here", "c.html"),
        ("b.html#here", "b.html#there"),
        ("b.html#here", "#nowhere"),
        (' alt="A rising line"', ""),
        ("A rising line", "p.png"),
        ("A rising line", ""),
        ("<body>", '<body><i id="top"></i>'),
        ("<body>", '<body><script src="https://cdn.example.org/x.js"></script>'),
        ("<body>", '<body><iframe src="//example.org"></iframe>'),
        ("<body>", '<body style="background: url(https://example.org/x.png)">'),
        ("</title>", '</title><link rel="stylesheet" href="https://example.org/x.css">'),
        ("<title>t</title>", ""),
        ("</h1>", "</h1><p>Proof. \\begin{align} a</p>"),
        (' lang="en"', ""),
    ],
)
def test_check_site_finds_a_planted_fault(tmp_path, old, new):
    assert old in GOOD_PAGE
    assert len(site(tmp_path, GOOD_PAGE.replace(old, new))) == 1


def test_check_site_reads_style_sheets(tmp_path):
    assert (
        len(
            site(
                tmp_path,
                GOOD_PAGE,
                '@import "https://example.org/x.css"; a { background: url(//example.org/y) }',
            )
        )
        == 2
    )


# ---- The order of terms and symbols


def small_book(folder: Path, first: str, second: str) -> list[str]:
    (folder / "book").mkdir(exist_ok=True)
    (folder / "_toc.yml").write_text(
        "format: jb-book\nroot: book/intro\nparts:\n  - chapters:\n      - file: 00_a\n      - file: 01_b\n"
    )
    (folder / "book" / "glossary.md").write_text("```{glossary}\ntoken\n  A unit.\n\nbyte pair\n  Two tokens.\n```\n")
    (folder / "book" / "notation.md").write_text(
        "| symbol | meaning | from |\n|--|--|--|\n| $T$ | time | {ref}`ch-b` |\n"
    )
    for name, text in (("00_a", first), ("01_b", second)):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
        nbformat.write(notebook, folder / f"{name}.ipynb")
    return terms.check(folder)


@pytest.mark.parametrize(
    ("first", "second", "faults"),
    [
        ("(ch-a)=\n# A\nA {term}`token` is a token.", "(ch-b)=\n# B\nTokens, $T$.", 0),
        ("(ch-a)=\n# A\nWords.", "(ch-b)=\n# B\nA {term}`tokens <token>`, then tokens.", 0),
        ("(ch-a)=\n# A\nA token.", "(ch-b)=\n# B\nA {term}`token`.", 1),
        ("(ch-a)=\n# A\nTokens, then a {term}`token`.", "(ch-b)=\n# B", 1),
        ("(ch-a)=\n# A\nA byte pair.", "(ch-b)=\n# B", 1),
        ("(ch-a)=\n# A\nThe code `token` and $token$ are no prose.", "(ch-b)=\n# B", 0),
        ("(ch-a)=\n# A\nShape $B \\times T$.", "(ch-b)=\n# B", 1),
        ("(ch-a)=\n# A\n$\\text{T}$ and $\\Theta$, $dT$.", "(ch-b)=\n# B\n$T$", 0),
        ("(ch-a)=\n# A", "(ch-c)=\n# C", 1),  # notation.md names a chapter that is not there
    ],
)
def test_terms_finds_what_comes_too_early(tmp_path, first, second, faults):
    assert len(small_book(tmp_path, first, second)) == faults


# ---- The template, assignments, results


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """The chapter template as an executed notebook."""
    jupytext = pytest.importorskip("jupytext")
    from tools.notebooks import notebook

    path = tmp_path_factory.mktemp("notebooks") / "99_template.ipynb"
    chapter = jupytext.read(TEMPLATE)
    notebook.run(chapter, ROOT)
    nbformat.write(chapter, path)
    return path


def test_template_follows_its_own_rules(template):
    test_mirror_cells_equal_the_library(template)
    test_notebook_was_run_in_order_and_normalised(template)
    test_every_figure_has_alt_text_and_no_number_is_an_address(template)
    test_hidden_cells_say_what_they_hide(template)
    test_every_gap_runs_untouched_and_is_checked(template)
    test_every_exercise_has_a_solution(template)
    test_what_a_reader_need_not_see_is_folded(template)
    test_claims_are_asserts_with_what_they_compare(template)
    test_a_cell_in_view_is_short_and_narrow(template)
    test_a_prediction_is_answered_behind_a_fold(template)
    test_every_gap_gives_points(template)
    test_checks_end_in_judge_and_cut_nothing_short(template)
    test_prose_names_what_it_means(template)


def test_running_again_changes_nothing(template):
    from tools.notebooks import notebook

    before = template.read_text()
    notebook.execute(template)
    assert template.read_text() == before


def test_text_and_back_keeps_cells_and_metadata(template, tmp_path, monkeypatch):
    from tools.notebooks import notebook

    monkeypatch.setattr(notebook, "TEXT", tmp_path / "text")
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    (tmp_path / "notebooks").mkdir()
    shutil.copy(template, tmp_path / "notebooks")
    notebook.to_text(template)
    monkeypatch.setattr(notebook, "run", lambda *_: (0.0, 0.0))
    monkeypatch.setattr(notebook.runs, "record", lambda *_: None)
    notebook.from_text(tmp_path / "text" / "99_template.md")
    old, new = (nbformat.read(path, as_version=4) for path in (template, tmp_path / "notebooks" / template.name))
    assert [(c.id, c.source, c.metadata) for c in new.cells] == [(c.id, c.source, c.metadata) for c in old.cells]
    assert new.metadata.nanoeuler == old.metadata.nanoeuler


def test_results_say_where_they_come_from(tmp_path):
    path = results.save("ch99", {"steps": 2}, [{"seed": 0, "loss": 1.5}], folder=tmp_path)
    stored = json.loads(path.read_text())
    assert stored["rows"] == [{"seed": 0, "loss": 1.5}]
    assert stored["config"] == {"steps": 2}
    assert {"commit", "date", "machine"} <= stored.keys()
    assert {"cpu", "cores", "gpu", "python", "numpy"} <= stored["machine"].keys()
    with pytest.raises(ValueError, match="JSON compliant"):
        results.save("ch99", {}, [{"loss": float("nan")}], folder=tmp_path)
    assert json.loads(path.read_text()) == stored


def test_inventories_are_fresh():
    from tools.book import inventories

    for project, (version, links) in inventories.LINKS.items():
        stored = (inventories.FOLDER / f"{project}.inv").read_bytes()
        fresh = inventories.inventory(project, version, links)
        rows = [zlib.decompress(data.split(b"\n", 4)[4]) for data in (stored, fresh)]
        assert rows[0] == rows[1], "python tools/book/inventories.py"


def test_lock_holds_what_pyproject_asks_for_and_names_no_server():
    lock = (ROOT / "requirements.txt").read_text()
    assert not re.search(r"^--|://|file:", lock, re.M)
    names = {line.split("==")[0] for line in lock.splitlines() if "==" in line and not line.startswith(" ")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = project["dependencies"] + extras["book"] + extras["dev"] + extras["instructor"]
    assert {re.match(r"[\w-]+", line)[0] for line in wanted} <= names
    assert "torch" not in names
