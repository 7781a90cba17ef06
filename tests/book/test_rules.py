"""The house rules of a chapter, and that every notebook keeps them."""

import ast
import copy
import functools
import itertools
import re
from collections import Counter
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")
jupytext = pytest.importorskip("jupytext", reason="jupytext is not installed: pip install -e .[book]")

from tools.book import project  # noqa: E402
from tools.notebooks import cells, count, mirror  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TEMPLATE = ROOT / "tools" / "notebooks" / "chapter_template.md"
FOLDED = {"hide-input", "hide-cell"}
UNANSWERED = {"10_whole_model": 1}  # predictions that the text answers, without a cell
LETTERS = re.compile(r"""(?:font|label|title)\.?size["']?\s*[=:]\s*["']?(x{1,2}-small|[\d.]+)""")


@functools.cache
def read(path: Path):
    """The notebook; the tests look at it and change nothing."""
    return nbformat.read(path, as_version=4)


def tags(cell) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def code_of(chapter) -> list:
    return [cell for cell in chapter.cells if cell.cell_type == "code"]


def printed(cell) -> str:
    return "".join(output.get("text", "") for output in cell.get("outputs", ()))


def draws(cell) -> bool:
    return any("image/png" in output.get("data", ()) for output in cell.get("outputs", ()))


# ---- The rules: each yields a sentence for every fault of a chapter


def run_in_order_and_normalised(chapter):
    code = [cell for cell in code_of(chapter) if cell.source.strip()]
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        yield "its cells were not run in order: make execute"
    if "version" in chapter.metadata.language_info:
        yield "it stores the version of Python"
    for cell in code:
        if "execution" in cell.metadata:
            yield f"it stores when a cell ran: {cell.source}"
        for output in cell.outputs:
            if output.get("name") == "stderr":
                yield f"it stores what came on stderr: {output.text}"
            if output.output_type == "error" and "raises-exception" not in tags(cell):
                yield f"a cell failed: {output.evalue}"
            if re.search(r"0x[0-9a-f]{8,}", str(output.get("text", ""))):
                yield f"it stores an address: {output.text}"


def figures_can_be_seen(chapter):
    """By who cannot see them, in dark mode, and on a phone, which shows 144 pixels on 72: a point is a pixel there."""
    for cell in code_of(chapter):
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        if any(kind.startswith("image/") for output in cell.outputs for kind in output.get("data", ())):
            if len(alt.split()) < 4:
                yield f"a figure has no alt text (mystnb.image.alt): {cell.source}"
        for size in too_small(cell.source):
            yield f"letters of {size} points, expected 8 or more: {cell.source}"
    for cell in chapter.cells:
        for caption in re.findall(r"^:::+\{figure\}\n(.*?)^:::", cell.source, re.M | re.S):
            if word := re.search(r"\b(dark|light|pale|white|black)(er|est)?\b", caption, re.I):
                yield f"dark mode inverts lightness, so a caption must not say {word[0]!r}: {caption}"


def too_small(text: str) -> list[str]:
    return [size for size in LETTERS.findall(text) if "small" in size or float(size) < 8]


def folds(chapter):
    """Imports, checks, solutions, code of figures and asserts on the book's own numbers need not be seen."""
    code = [cell for cell in code_of(chapter) if "library" not in tags(cell)]
    if not tags(code[0]) & FOLDED:
        yield "the imports are in view"
    for cell in code:
        folded, jupyter = bool(tags(cell) & FOLDED), cell.metadata.get("jupyter", {})
        if folded and "code_prompt_show" not in cell.metadata.get("mystnb", {}):
            yield f"a fold does not say what it hides: {cell.source}"
        if folded and not jupyter.get("source_hidden"):
            yield f"a fold is open in JupyterLab: {cell.source}"
        if tags(cell) & {"check", "solution"} and "hide-cell" not in tags(cell):
            yield f"a check or a solution is in view: {cell.source}"
        if "solution" in tags(cell) and not jupyter.get("outputs_hidden"):
            yield f"the output tells the answer: {cell.source}"
        if "check" in tags(cell) and jupyter.get("outputs_hidden"):
            yield f"JupyterLab hides the verdict: {cell.source}"
        if draws(cell) and not folded:
            yield f"a figure's code is in view: {cell.source}"
        asserts = any(isinstance(node, ast.Assert) for node in ast.parse(cells.python(cell)).body)
        if asserts and not folded and not tags(cell) & {"gap", "raises-exception", "claim"}:
            yield f"an assert is in view, move it to a cell tagged claim, remove-cell: {cell.source}"
        if "claim" in tags(cell):
            if not tags(cell) & {"remove-cell", "solution"} or not jupyter.get("source_hidden"):
                yield f"a claim is on the page, or open in JupyterLab: {cell.source}"
            kinds = {type(node) for node in ast.parse(cell.source).body}
            if ast.Assert not in kinds or not kinds <= {ast.Assert, ast.Assign}:
                yield f"a claim is more or less than asserts and what they compare: {cell.source}"


def cells_in_view_are_short_and_narrow(chapter):
    for cell in code_of(chapter):
        most = 14 if chapter.get("name", "11")[:2] <= "10" else 25
        lines, most = cell.source.split("\n"), 60 if cell.source.startswith("%%cuda") else most
        longest = max(map(len, lines))
        if not tags(cell) & (FOLDED | {"remove-cell"}) and (len(lines) > most or longest > 88):
            yield f"{len(lines)} lines of {longest} columns are in view, expected {most} of 88: {cell.source}"


def predictions_are_answered_behind_a_fold(chapter):
    answers = [c for c in code_of(chapter) if c.metadata.get("mystnb", {}).get("code_prompt_show") == SHOW]
    for cell in answers:
        if not (tags(cell) & {"hide-output", "hide-cell"} and cell.metadata.get("jupyter", {}).get("outputs_hidden")):
            yield f"the answer to a prediction is in view: {cell.source}"
    asked = sum("class: predict" in cell.source for cell in chapter.cells)
    if asked == 0 or len(answers) < asked - UNANSWERED.get(chapter.get("name"), 0):
        yield f"{asked} predictions and {len(answers)} cells that answer, expected one each, and at least one"


SHOW = "Show what happened"


def gaps_are_announced_checked_and_give_points(chapter):
    for cell in chapter.cells:
        for box in re.findall(r"\{admonition\} Your turn\n(.*?)\n:::", cell.source, re.DOTALL):
            if not re.search(r"\b[Cc]hecks?\s|\bIt tries\b", box):
                yield f"a box does not say what its check will try: {box}"
    code = code_of(chapter)
    for cell, after in itertools.pairwise(code):
        if "gap" not in tags(cell):
            continue
        if "your code here" not in cell.source:
            yield f"a gap does not say where to write: {cell.source}"
        if "check" not in tags(after):
            yield f"no check comes after the gap: {cell.source}"
            continue
        stub, check = (one.metadata.get("nbgrader", {}) for one in (cell, after))
        marks = [one.get(key) for one in (stub, check) for key in ("solution", "grade", "locked")]
        if marks != [True, False, False, False, True, True]:
            yield f"nbgrader's marks are {marks}: {cell.source}"
        elif not check.get("points", 0) > 0 or check.grade_id != f"{stub.grade_id}-check":
            yield f"a check gives no points to its gap: {cell.source}"


def checks_end_in_judge_and_cut_nothing_short(chapter):
    for cell in code_of(chapter):
        if "check" not in tags(cell):
            continue
        tree = ast.parse(cell.source)
        if "not written yet" not in printed(cell):
            yield f'a check does not print "not written yet" of an untouched gap: {cell.source}'
        if not re.match(r"own_\w+ = judge\(", ast.unparse(tree.body[-1])):
            yield f"a check does not end in own_... = judge(...): {cell.source}"
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "zip":
                if not any(k.arg == "strict" and k.value.value is True for k in call.keywords):
                    yield f"zip stops at the shorter, expected strict=True: {ast.unparse(call)}"


def exercises_have_solutions_that_show_wrong_answers_too(chapter):
    """`show_rejected` fails where a check takes a wrong answer: a chapter that ran has tried all that it names."""
    text = "\n".join(cell.source for cell in chapter.cells if cell.cell_type == "markdown")
    exercises = re.findall(r"\{exercise(?:-start)?\}[^\n]*\n:label: *(\S+)", text)
    if sorted(exercises) != sorted(re.findall(r"\{solution(?:-start)?\} *(\S+)", text)):
        yield f"exercises and solutions are not the same: {exercises}"
    start = next(i for i, cell in enumerate(chapter.cells) if re.search(r"^## Exercises", cell.source, re.M))
    gaps = shown = 0
    for number, cell in enumerate(chapter.cells):
        if "{solution}" in cell.source and "solution" not in tags(cell):
            yield f"the students' version would keep a solution: {cell.source}"
        gaps += number > start and "gap" in tags(cell)
        if number > start and "solution" in tags(cell) and "show_rejected" in cell.source:
            shown += bool(re.search(r"^\w+: right\b", printed(cell), re.M))
            if len(re.findall(r"^rejected, .+: \S", printed(cell), re.M)) < 3:
                yield f"a solution shows fewer than three wrong answers: {cell.source}"
    if shown != gaps:
        yield f"{gaps} gaps of exercises, {shown} solutions that print a right answer"


RULES = [
    run_in_order_and_normalised,
    figures_can_be_seen,
    folds,
    cells_in_view_are_short_and_narrow,
    predictions_are_answered_behind_a_fold,
    gaps_are_announced_checked_and_give_points,
    checks_end_in_judge_and_cut_nothing_short,
    exercises_have_solutions_that_show_wrong_answers_too,
]


def faults(chapter) -> list[str]:
    return [fault for rule in RULES for fault in rule(chapter)]


# ---- The chapters


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_chapter_keeps_the_house_rules(path):
    chapter = copy.copy(read(path))
    chapter["name"] = path.stem
    assert faults(chapter) == []
    start = next(i for i, cell in enumerate(chapter.cells) if re.search(r"^## Exercises", cell.source, re.M))
    assert sum("gap" in tags(cell) for cell in chapter.cells[start:]) >= 3
    assert mirror.check_notebook(path) == [], "make mirror"
    length = count.count(chapter)
    assert length.time in chapter.cells[0].source, "make count ARGS=--write"
    assert path.stem[:2] > "10" or length.first <= 800, "words before the first gap"
    assert length.share <= count.SHARE, f'make count ARGS="--long {path.stem[:2]}"'
    wanted = project.library_cell(project.load(environment={}))
    libraries = [(cell.source, cell.metadata) for cell in chapter.cells if "library" in tags(cell)]
    assert libraries == [(wanted.source, wanted.metadata)] and "library" in tags(chapter.cells[1]), (
        "python -m tools.book.project --write"
    )


def test_grade_ids_are_unique():
    marks = [cell.metadata.nbgrader for path in NOTEBOOKS for cell in read(path).cells if "nbgrader" in cell.metadata]
    assert [name for name, n in Counter(mark.grade_id for mark in marks).items() if n > 1] == []
    assert all(mark.schema_version == 3 for mark in marks)


@pytest.mark.parametrize("file", ["nanoeuler_book/figures.py", "nanoeuler_lib/nanoeuler.mplstyle"])
def test_the_style_of_figures_has_letters_that_a_phone_shows(file):
    assert too_small((ROOT / file).read_text("utf-8")) == []
