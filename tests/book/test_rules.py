"""The house rules of a chapter: every notebook keeps them, and each rule finds the fault that is planted for it."""

import ast
import copy
import functools
import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")
jupytext = pytest.importorskip("jupytext", reason="jupytext is not installed: pip install -e .[book]")

from tools.book import project  # noqa: E402
from tools.notebooks import cells, count, mirror, notebook, numbering  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TEMPLATE = ROOT / "tools" / "notebooks" / "chapter_template.md"
FOLDED = {"hide-input", "hide-cell"}
UNANSWERED = {"10_whole_model": 1}  # predictions that the text answers, without a cell
PLACE = re.compile(
    r"\b(?:last|first|second|third) lines? (?:of (?:the|this) cell|above|below|asserts?|but one)\b"
    r"|\b(?:last|first) assertion\b|\bcell's (?:last|first) line\b"
    r"|\((?:first|second|third|last) (?:line|row|column)\b",
    re.I,
)
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
    """By who cannot see them, and on a phone, which shows 144 pixels on 72 of its own: a point is a pixel there."""
    for cell in code_of(chapter):
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        if any(kind.startswith("image/") for output in cell.outputs for kind in output.get("data", ())):
            if len(alt.split()) < 4:
                yield f"a figure has no alt text (mystnb.image.alt): {cell.source}"
        for size in too_small(cell.source):
            yield f"letters of {size} points, expected 8 or more: {cell.source}"


def too_small(text: str) -> list[str]:
    return [size for size in LETTERS.findall(text) if "small" in size or float(size) < 8]


def captions_stand_alone_below_their_figures(chapter):
    """With other text in its cell a caption does not reach its figure in the book, whose build then fails."""
    for above, cell in itertools.pairwise(chapter.cells):
        if cell.cell_type == "markdown" and "{figure}\n" in cell.source:
            if not (numbering.CAPTION.match(cell.source) and draws(above)):
                yield f"a caption does not stand alone below its figure: {cell.source}"


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
        if tags(cell) & {"check", "claim", "solution"} and "hide-cell" not in tags(cell):
            yield f"a check, a claim or a solution is in view: {cell.source}"
        if "solution" in tags(cell) and not jupyter.get("outputs_hidden"):
            yield f"the output tells the answer: {cell.source}"
        if "check" in tags(cell) and jupyter.get("outputs_hidden"):
            yield f"JupyterLab hides the verdict: {cell.source}"
        if draws(cell) and not folded:
            yield f"a figure's code is in view: {cell.source}"
        asserts = any(isinstance(node, ast.Assert) for node in ast.parse(cells.python(cell)).body)
        if asserts and not folded and not tags(cell) & {"gap", "raises-exception"}:
            yield f"an assert is in view, move it to a cell tagged claim, hide-cell: {cell.source}"
        if "claim" in tags(cell):
            kinds = {type(node) for node in ast.parse(cell.source).body}
            if ast.Assert not in kinds or not kinds <= {ast.Assert, ast.Assign}:
                yield f"a claim is more or less than asserts and what they compare: {cell.source}"


def cells_in_view_are_short_and_narrow(chapter):
    for cell in code_of(chapter):
        lines, most = cell.source.split("\n"), 60 if cell.source.startswith("%%cuda") else 25
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


def prose_names_what_it_means(chapter):
    """No reader should count lines: "the last line of the cell" costs a search, and is wrong after the next edit."""
    for cell in chapter.cells:
        found = cell.cell_type == "markdown" and PLACE.search(" ".join(cell.source.split()))
        if found:
            yield f"name what stands there instead of its place: {found[0]}"


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
    captions_stand_alone_below_their_figures,
    folds,
    cells_in_view_are_short_and_narrow,
    predictions_are_answered_behind_a_fold,
    gaps_are_announced_checked_and_give_points,
    checks_end_in_judge_and_cut_nothing_short,
    prose_names_what_it_means,
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


# ---- The template, and a fault for each rule


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """The chapter template as an executed notebook."""
    path = tmp_path_factory.mktemp("notebooks") / "99_template.ipynb"
    chapter = jupytext.read(TEMPLATE)
    notebook.run(chapter, ROOT)
    nbformat.write(chapter, path)
    return path


def test_the_template_keeps_the_rules(template):
    assert faults(read(template)) == []
    assert mirror.check_notebook(template) == []


def planted(template: Path, old: str, new: str):
    """The template with another text at one place: of its file, or of what its cells have stored as JSON."""
    text = TEMPLATE.read_text("utf-8")
    chapter, changed = jupytext.reads(text.replace(old, new, 1), "md:myst"), old in text
    for cell, ran in zip(code_of(chapter), code_of(read(template)), strict=True):
        stored = json.dumps({"execution_count": ran.execution_count, "outputs": ran.outputs})
        changed |= old in stored
        cell.update(nbformat.from_dict(json.loads(stored if old in text else stored.replace(old, new))))
    assert changed, f"the template has no text {old!r}"
    chapter.metadata.setdefault("language_info", nbformat.NotebookNode())
    return chapter


CHECK = ":tags: [check, hide-cell]"
CLAIM = "assert np.allclose(y, y10)\n"
ANSWER = ":jupyter: {outputs_hidden: true}\n:mystnb: {code_prompt_show: Show what happened"
FAULTS = [  # old text, new text, what the rule says
    ('"execution_count": 2', '"execution_count": 7', "not run in order"),
    ("nanoeuler:\n", "language_info: {name: python, version: '3.12'}\nnanoeuler:\n", "the version of Python"),
    (":tags: [hide-output]", ":execution: {a: b}\n:tags: [hide-output]", "when a cell ran"),
    ('"name": "stdout"', '"name": "stderr"', "on stderr"),
    ('"text": "change', '"text": "<object at 0x7f12345678ab>', "an address"),
    (":  image:\n:    alt: Line plot. The", ":  image:\n:    alt: Line\n:    title: The", "no alt text"),
    ("ax.legend()", "ax.legend(fontsize=7)", "letters of 7 points"),
    (":::{figure}\n", "A word.\n\n:::{figure}\n", "stand alone below its figure"),
    ("Hide the imports}\n:tags: [hide-input]", "Hide the imports}", "the imports are in view"),
    ("code_prompt_show: Show the imports, ", "", "does not say what it hides"),
    (":jupyter: {source_hidden: true}\n:mystnb: {code_prompt_show: Show the imp",
     ":mystnb: {code_prompt_show: Show the imp", "open in JupyterLab"),
    (CHECK, ":tags: [check]", "a check, a claim or a solution is in view"),
    (":jupyter: {source_hidden: true, outputs_hidden: true}", ":jupyter: {source_hidden: true}", "tells the answer"),
    (":jupyter: {source_hidden: true}\n:mystnb: {code_prompt_show: Show the check",
     ":jupyter: {source_hidden: true, outputs_hidden: true}\n:mystnb: {code_prompt_show: Show the check",
     "hides the verdict"),
    ("stays at one.\n:tags: [hide-input]", "stays at one.", "a figure's code is in view"),
    ('print("change, to', 'assert 1\nprint("change, to', "an assert is in view"),
    (CLAIM, CLAIM + "print(1)\n", "more or less than asserts"),
    (CLAIM, "z = 1\n", "more or less than asserts"),
    ("y, _ = rmsnorm_forward", "\n" * 25 + "y, _ = rmsnorm_forward", "lines of"),
    ("y, _ = rmsnorm_forward", "#" * 89 + "\ny, _ = rmsnorm_forward", "of 89 columns"),
    (ANSWER, ANSWER.partition("\n")[2], "the answer to a prediction is in view"),
    (SHOW, "Show it", "1 predictions and 0 cells"),
    ("Its check tries", "You find", "does not say what its check will try"),
    ("None  # your code here", "None", "where to write"),
    (CHECK, ":tags: [hide-cell]", "no check comes after"),
    ("locked: true, points: 3", "locked: false, points: 3", "nbgrader's marks are"),
    ("points: 3", "points: 0", "gives no points"),
    ("grade_id: template-rmsnorm-check", "grade_id: other-check", "gives no points"),
    ("not written yet\\n", "right\\n", 'does not print "not written yet"'),
    ("own_rmsnorm = judge(", "print(", "does not end in own_... = judge(...)"),
    ("    gain = rng.normal(size=7)\n", "    zip(x, y, strict=False)\n    gain = rng.normal(size=7)\n",
     "zip stops at the shorter"),
    ("The flat line is", "The last line of the cell is", "instead of its place: last line of the cell"),
    ("{solution} ex-template-open", "{solution} ex-template-centre", "exercises and solutions are not the same"),
    ('+++ {"tags": ["solution"]}\n', "+++\n", "would keep a solution"),
    ("rejected, RMSNorm alone", "accepted, RMSNorm alone", "fewer than three wrong answers"),
    ("layernorm: right", "layernorm: wrong", "1 gaps of exercises, 0 solutions"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), FAULTS, ids=[said for *_, said in FAULTS])
def test_each_rule_finds_its_planted_fault(template, old, new, said):
    found = faults(planted(template, old, new))
    assert any(said in fault for fault in found), found


def test_running_again_changes_nothing(template):
    before = template.read_text()
    notebook.execute(template)
    assert template.read_text() == before


def test_text_and_back_keeps_cells_and_metadata(template, tmp_path, monkeypatch):
    monkeypatch.setattr(notebook, "TEXT", tmp_path / "text")
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    monkeypatch.setattr(notebook, "run", lambda *_: (0.0, 0.0))
    monkeypatch.setattr(notebook.runs, "record", lambda *_: None)
    (tmp_path / "notebooks").mkdir()
    there = tmp_path / "notebooks" / template.name
    there.write_bytes(template.read_bytes())
    notebook.to_text(template)
    notebook.from_text(tmp_path / "text" / "99_template.md")
    old, new = (nbformat.read(path, as_version=4) for path in (template, there))
    assert [(c.id, c.source, c.metadata) for c in new.cells] == [(c.id, c.source, c.metadata) for c in old.cells]
    assert new.metadata.nanoeuler == old.metadata.nanoeuler
