"""Test releases: they have no solutions, are complete and run from any folder; each gap gives only its own points."""

import ast
import copy
import csv
import functools
import itertools
import json
import os
import re
import unicodedata
from datetime import datetime

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")
pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install -e .[instructor]")

from nbgrader.api import Gradebook  # noqa: E402
from submissions import Answers, fill, kinds  # noqa: E402

from nanoeuler_book import checks  # noqa: E402
from tools.course import assignment, autograde  # noqa: E402
from tools.course.assignment import ROOT, instructor_version, notebook_of, tags  # noqa: E402
from tools.course.mend import mark, mend  # noqa: E402
from tools.notebooks.cells import python  # noqa: E402

pytestmark = pytest.mark.full

CHAPTERS = sorted(path.name.partition("_")[0] for path in (ROOT / "notebooks").glob("*.ipynb"))
KERNELS = {"23", "24", "25", "26", "27", "28", "29", "A1"}
each_chapter = pytest.mark.parametrize("chapter", CHAPTERS)


@functools.cache
def version(chapter: str) -> tuple:
    notebook = nbformat.read(notebook_of(chapter, ROOT / "notebooks"), as_version=4)
    return instructor_version(notebook, f"book_{chapter}")


# ---- What a release contains


@each_chapter
def test_a_release_has_no_solution_and_imports_the_answers_of_the_book(chapter):
    notebook, book = version(chapter)
    source = nbformat.read(notebook_of(chapter, ROOT / "notebooks"), as_version=4)
    assert not [cell for cell in notebook.cells if "solution" in tags(cell)]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    defined = {name for cell in code for node in ast.parse(python(cell)).body for name in _bound(node)}
    imports = [cell for cell in code if cell.source.startswith("from book_")]
    imported = {alias.name for cell in imports for alias in ast.parse(cell.source).body[0].names}
    text = "\n".join(cell.source for cell in source.cells if cell.cell_type == "code")
    in_its_place = {n for found in assignment.IN_ITS_PLACE.findall(text) for n in found if n}
    assert imported
    assert not (imported | in_its_place) & (defined - {"merge", "tiles", "tile_back", "query_tiles"})
    assert imported <= {name for node in ast.parse(book).body for name in _bound(node)}
    assert "own_" not in book


def _bound(node):
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return {target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)}


@each_chapter
def test_a_check_ends_in_the_points_it_gives(chapter):
    notebook, _ = version(chapter)
    graded = [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade") and c.cell_type == "code"]
    assert len(graded) >= 4
    for cell in graded:
        last = ast.parse(cell.source).body[-1]
        assert isinstance(last, ast.Expr)
        names = {node.id for node in ast.walk(last) if isinstance(node, ast.Name)}
        assert names == set(assignment.JUDGED.findall(cell.source))
        points = cell.metadata.nbgrader.points
        assert eval(ast.unparse(last), dict.fromkeys(names)) == 0
        assert eval(ast.unparse(last), dict.fromkeys(names, 1)) == points


@each_chapter
def test_a_release_needs_no_other_folder(chapter):
    notebook, _ = version(chapter)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert "../" not in code
    stored = {path.stem for path in assignment.results_of(notebook)}
    named = set(re.findall(r'\bresults\("([\w-]+)"\)', code))
    assert named <= stored
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert not re.search(r"\]\([^)]*\.ipynb", text)


@each_chapter
def test_a_mark_that_was_lost_comes_back_where_it_stood(chapter):
    release, _ = version(chapter)
    names = [mark(cell) for cell in release.cells if mark(cell)]
    for lost in names:
        notebook = copy.deepcopy(release)
        without(notebook, lost)
        assert mend(notebook, release) == f"restored: {lost}"
        assert [mark(cell) for cell in notebook.cells if mark(cell)] == names
    for how in ("answered", "untouched", "rewritten"):
        notebook = copy.deepcopy(release)
        for cell in notebook.cells:  # as after a different editor, which removes marks and perhaps ids
            if mark(cell) and not cell.metadata.nbgrader.locked and how != "untouched":
                mine = "\n// mine" if cell.source.startswith("%%") else "\n# mine"
                more = mine if cell.cell_type == "code" else "An answer in words."
                cell.source = cell.source + more if how == "answered" else "words = 1"
            kept = cell.id
            anew(cell)
            cell.id = kept if how == "rewritten" else cell.id
        assert "restored" not in mend(notebook, release), how
        assert [mark(cell) for cell in notebook.cells if mark(cell)] == names


@pytest.mark.parametrize("said, points", [(("right", "right"), 3), (("right", "no"), 1.5), (("no", "no"), 0)])
def test_a_check_of_two_functions_gives_half_for_one(said, points):
    made = assignment.check_with_points("own_a = judge(check_a, 1)\nown_b = judge(check_b, 2)", 3)
    *most, last = made.split("\n")
    names = {"judge": lambda check, mine: mine, "check_a": lambda f: said[0], "check_b": lambda f: said[1]}
    exec("\n".join(most), names)
    assert eval(last, names) == points, "even if a gap defined its own judge"


def test_a_gap_that_cannot_be_read_leaves_the_rest_runnable():
    names = {}
    with pytest.raises(NameError):
        exec(assignment.check_with_points("own_a = judge(check_a, my_a)", 3), names)
    assert names["own_a"] is None


def points_of(cells):
    """Return the points of each graded check by its gap."""
    checks = [
        c.metadata.nbgrader for c in cells if c.cell_type == "code" and c.metadata.get("nbgrader", {}).get("grade")
    ]
    return {check.grade_id.removesuffix("-check"): check.points for check in checks}


# ---- The whole pipeline


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    """Make a course with a release of the chapter template, which is small and has every construct."""
    jupytext = pytest.importorskip("jupytext")
    folder = tmp_path_factory.mktemp("mini")
    notebooks = folder / "notebooks"
    notebooks.mkdir()
    nbformat.write(jupytext.read(ROOT / "tools" / "notebooks" / "chapter_template.md"), notebooks / "99_template.ipynb")
    release = assignment.make("99", notebooks, folder / "course")
    return folder, notebooks, release


def marked(notebook, name):
    return next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == name)


def copied(notebook, name, at=None):
    """Insert a second copy of a cell after the cell itself, or at a place; return the cell."""
    cell = marked(notebook, name)
    again = nbformat.from_dict({**cell, "id": "again"})
    notebook.cells.insert(notebook.cells.index(cell) + 1 if at is None else at, again)
    return cell


def without(notebook, *names):
    for name in names:
        notebook.cells.remove(marked(notebook, name))


def anew(cell):
    """Change a cell as a different editor does: remove its mark and its id."""
    cell.metadata.pop("nbgrader", None)
    cell.id = f"x{next(COUNT)}"


def cheat(notebook):
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("grade") and cell.cell_type == "code":
            cell.source, cell.metadata.nbgrader["points"] = "print('right')\n50", 50


def split(notebook):
    first = copied(notebook, "template-rmsnorm-check")
    last = notebook.cells[notebook.cells.index(first) + 1]
    first.source, last.source = first.source[:200], first.source[200:]


def strip(notebook):
    for cell in notebook.cells:
        anew(cell)


def merge(notebook, into="template-rmsnorm"):
    marked(notebook, into).source += "\n\n\n" + marked(notebook, "template-centre").source
    without(notebook, "template-centre")


def merge_behind(notebook):
    merge(notebook, "template-rmsnorm-check")


def move(notebook):
    cell = marked(notebook, "template-rmsnorm-check")
    notebook.cells.remove(cell)
    notebook.cells.append(cell)


def unknown(notebook):
    copied(notebook, "template-rmsnorm").metadata.nbgrader.grade_id = "mine"
    marked(notebook, "mine").source = "x = 1"


COUNT = itertools.count()
CHECK, GAP = "template-rmsnorm-check", "template-rmsnorm"
RIGHT = """def my_rmsnorm(x, gain, eps=1e-5):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain"""
CLASS = {  # name in the roster: answers, change of the notebook, points, points that wait, remark
    "All Right": ("right", None, 5, 4, ""),
    "Not Begun": ("untouched", None, 0, 0, ""),
    "Half Wrong": ("wrong0", None, 2, 4, ""),
    "Not Python": ("unreadable", None, 2, 4, ""),
    "Never Ends": ("loops", None, 2, 4, ""),
    "Loops Itself": ("waits", None, 2, 4, ""),
    "Ends Kernel": ("dies", None, 0, 0, "cannot be run"),
    "Empty Folder": (None, None, 0, 0, "no file 99_template.ipynb"),
    "Torn File": (None, None, 0, 0, "not a notebook"),
    "Own Points": ("untouched", cheat, 0, 0, ""),
    "Copy Behind": ("right", lambda n: copied(n, CHECK, len(n.cells)), 5, 4, f"copies of {CHECK} count once"),
    "Check Split": ("right", split, 5, 4, f"copies of {CHECK} count once"),
    "All Deleted": ("right", lambda n: n.cells.clear(), 0, 0, "restored: "),
    "Marks Stripped": ("right", strip, 5, 4, "found without its mark: "),
    "Gaps Merged": ("right", merge, 5, 4, ""),
    "Merged Behind": ("right", merge_behind, 5, 4, f"found without its mark: template-centre; restored: {CHECK}"),
    "Check Moved": ("right", move, 5, 4, ""),
    "Unknown Mark": ("right", unknown, 5, 4, "not in the release: mine"),
    "Sébastien O'Müller-Käthe": ("right", None, 5, 4, ""),
    "Comes Late": (None, None, 0, 0, "nothing handed in"),
    "Never Comes": (None, None, 0, 0, "nothing handed in"),
}


def hand_in(student, folder, release, sources):
    """Write a student's notebook, under a name that a platform or a browser gives."""
    answers, done, *_ = CLASS[student]
    number, last = list(CLASS).index(student), "".join(reversed(student.lower().split()))
    path = [
        folder / student / release.name,
        folder / f"{last}_LATE_{100 + number}_9_{release.name}",
        folder / f"{student}_77_assignsubmission_file" / release.name.replace(".", " (1)."),
        folder / f"{unicodedata.normalize('NFD', student.upper())} (1).ipynb",
    ][number % 4 if answers else 0]
    fill(release, sources.get(answers, {}), path)
    notebook = nbformat.read(path, as_version=4)
    (done or (lambda notebook: None))(notebook)
    nbformat.write(notebook, path)
    if student == "Torn File":
        path.write_text(path.read_text().replace("your code here", "\\ud800"))
    if student == "Empty Folder":
        path.rename(path.with_suffix(".txt"))
    return path


@pytest.mark.parametrize("student", [student for student, (_, done, *_) in CLASS.items() if done])
def test_a_mark_stands_once(student):
    jupytext = pytest.importorskip("jupytext")
    template = jupytext.read(ROOT / "tools" / "notebooks" / "chapter_template.md")
    release, _ = instructor_version(template, "book_99")
    notebook = copy.deepcopy(release)
    marked(notebook, GAP).source += f"\n\n\n{RIGHT}"
    marked(notebook, "template-open").source = "An answer in words."
    CLASS[student][1](notebook)
    said = mend(notebook, release)
    assert said.startswith(CLASS[student][4]) and bool(said) == bool(CLASS[student][4])
    marks = {mark(cell): cell for cell in notebook.cells if mark(cell)}
    if student == "Copy Behind":
        assert mark(notebook.cells[-1]) == CHECK, "the last copy counts"
    assert len(marks) == sum(bool(mark(cell)) for cell in notebook.cells)
    wanted = {mark(cell) for cell in release.cells if mark(cell)}
    assert marks.keys() == wanted - ({"template-centre"} if student == "Gaps Merged" else set())
    for cell in release.cells:
        if mark(cell) in marks:
            assert marks[mark(cell)].metadata.nbgrader == cell.metadata.nbgrader, "the release sets points and locks"
    if "Deleted" not in student:
        *_, last = (cell for cell in notebook.cells if "def my_rmsnorm" in cell.source)
        assert RIGHT in last.source
        assert marks["template-open"].source == "An answer in words."


def test_a_class_is_graded(mini, capsys, monkeypatch):
    folder, notebooks, release = mini
    config = folder / "course" / "nbgrader_config.py"
    assert checks.SECONDS * checks.PATIENCE < 300, "a check must stop before its cell is stopped"
    config.write_text(config.read_text().replace("SECONDS = 300", "SECONDS = 10"))
    monkeypatch.setenv("NANOEULER_CHECK_SECONDS", "2")
    gaps = Answers("99", notebooks).gaps
    gaps[GAP] = (RIGHT, gaps[GAP][1])
    sources, course = kinds(gaps), folder / "course"
    sources["unreadable"] = sources["right"] | {GAP: "def my_rmsnorm(:"}
    sources["loops"] = sources["right"] | {GAP: "def my_rmsnorm(*a):\n print('\\x1b]\\x07')\n while 1: pass"}
    sources["waits"] = sources["right"] | {GAP: "while True: pass"}
    sources["dies"] = sources["right"] | {GAP: "import os\nos.kill(os.getppid(), 9)"}
    names = [student.split() for student in CLASS]
    lines = [f'"{last}, {first}",{100 + n},,login{n},S1' for n, (first, last) in enumerate(names)]
    (folder / "roster.csv").write_text("\n".join(["Student,ID,SIS User ID,SIS Login ID,Section", *lines]))
    handed = [w for w, (_, done, *_) in CLASS.items() if done in (None, cheat, strip, merge_behind)]
    for student in handed[:-2]:
        hand_in(student, folder / "work", release, sources)
    given = {"course": course, "notebooks": notebooks, "students": folder / "roster.csv"}
    rows = {row["student"]: row for row in autograde.grade("99", folder / "work", **given)}
    assert list(rows) == list(CLASS), "in the order of the roster"
    for student in handed:
        row, (_, _, points, waiting, remark) = rows[student], CLASS[student]
        assert (row["points"], row["waiting for a person"]) == (points, waiting), row
        assert row["remark"].startswith(remark) and bool(remark) == bool(row["remark"]), row
    page = (course / "feedback" / "Half Wrong" / "99" / "99_template.html").read_text()
    assert '<h2 class="right">A norm that centres: 2 of 2 points</h2>\n<p>layernorm: right</p>' in page
    assert '<h2 class="wrong">Your turn: 0 of 3 points</h2>' in page and "http" not in page
    for student, said in {
        "Not Python": r"<p>SyntaxError in line \d+: invalid syntax</p>",
        "Never Ends": "<p>\ufffd]\ufffd\nmy_rmsnorm, wrong: no end after [2468] seconds</p>",
        "Loops Itself": "<p>stopped: no end after 10 seconds. my_rmsnorm: not written yet</p>",
    }.items():
        page = (course / "feedback" / student / "99" / "99_template.html").read_text()
        assert re.search(said, page) and "\x1b" not in page, page
    same = ["All Right", "Marks Stripped", "Sébastien O'Müller-Käthe"]
    assert [rows[who]["same answers as"] for who in ("All Right", "Not Begun")] == [", ".join(same[1:]), ""]
    told = capsys.readouterr().out
    assert told.count(" of 9") == len(CLASS) and told.endswith(f"\nidentical answers: {', '.join(same)}\n")
    assert not [row for row in csv.reader((course / "grades-99.csv").open()) if "" in row[7:]]

    ran = autograde.place(course, "autograded", "All Right", "99") / release.name
    before = ran.stat().st_mtime_ns
    late = hand_in("All Right", folder / "late", release, sources)
    late.parent.rename(late.parents[1] / "comes.late")
    os.utime(late.parents[1] / "comes.late" / late.name, (1.8e9, 1.8e9))
    (folder / "late" / "half wrong.ipynb").write_text("{")
    due = datetime.fromtimestamp(1.8e9 - 90_000).isoformat()
    after = {row["student"]: row for row in autograde.grade("99", folder / "late", due=due, **given)}
    assert (after["Comes Late"]["points"], after["Comes Late"]["late days"]) == (5, 2)
    assert after["Never Comes"]["remark"] == "nothing handed in"
    half = after["Half Wrong"]
    assert half["late days"] == str(rows["Half Wrong"]["late days"])
    assert half["points"] == 2 and half["remark"].startswith("not a notebook"), "it must not replace a readable file"
    for student in CLASS.keys() - {"Comes Late", "Half Wrong"}:
        was, now = ({k: str(row[student][k]) for k in row[student]} for row in (rows, after))
        assert was == now | {"same answers as": was["same answers as"]}, "earlier rows stay"
    assert ran.stat().st_mtime_ns == before, "their notebooks must not run again"
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:  # as Formgrader does it
        words = gradebook.find_grade("template-open", "99_template", "99", ran.parents[1].name)
        words.manual_score, words.needs_manual_grade = 3, False
        gradebook.db.commit()
    again = {row["student"]: row for row in autograde.grade("99", None, **given)}
    assert (again["All Right"]["points"], again["All Right"]["waiting for a person"]) == (8, 0)
    page = (course / "feedback" / "All Right" / "99" / "99_template.html").read_text()
    assert "An open question: 3 of 4 points" in page
    table = list(csv.DictReader((course / "grades-99-canvas.csv").open()))
    marks = {row["ID"]: row["Chapter 99"] for row in table}
    of = {who: marks[f"{100 + n}"] for n, who in enumerate(CLASS)} | {"": marks[""]}
    assert [of[who] for who in ("All Right", "Not Begun", "Comes Late", "Never Comes", "")] == ["8", "0", "5", "", "9"]
    waiting = ("Ends Kernel", "Empty Folder", "Torn File")
    assert [of[who] for who in waiting] == ["", "", ""], "there must be no 0 before a person has checked"
    assert autograde.ran({"points": 7, "remark": "cannot be run: the last cell"})


REFUSED = [  # chapter, folder, the error
    ("99", "nowhere", "no such folder"),
    ("99", ".", "got no submission"),
    ("05", ".", "chapter 05 must be released first: make assignment CH=05"),
    ("98", ".", r"^CH must be one of 99, got '98': make assignment CH=06$"),
]


@pytest.mark.parametrize("chapter, found, said", REFUSED)
def test_what_cannot_be_graded_is_told_in_one_line(chapter, found, said, mini, tmp_path):
    folder, notebooks, _ = mini
    with pytest.raises(SystemExit, match=said):
        autograde.grade(
            chapter, tmp_path / found, folder / "course", ROOT / "notebooks" if chapter == "05" else notebooks
        )


@pytest.mark.slow
@pytest.mark.parametrize("chapter", [pytest.param(c, marks=[pytest.mark.compiler] * (c in KERNELS)) for c in CHAPTERS])
def test_a_chapter_through_the_pipeline(chapter, tmp_path):
    """Submit right, untouched and half-wrong answers; no cell may end in an error, except those that should."""
    release = assignment.make(chapter, course=tmp_path / "course")
    gaps = Answers(chapter).gaps
    for kind, filled in kinds(gaps).items():
        fill(release, filled, tmp_path / "work" / kind / release.name)
    rows = {row["student"]: row for row in autograde.grade(chapter, tmp_path / "work", tmp_path / "course")}
    points = points_of(nbformat.read(release, as_version=4).cells)
    assert points.keys() == gaps.keys()
    for kind, row in rows.items():
        wrong = {"right": (), "untouched": points, "wrong0": [*points][::2], "wrong1": [*points][1::2]}[kind]
        assert {gap: row[gap] for gap in points} == {gap: p * (gap not in wrong) for gap, p in points.items()}, kind
        ran = tmp_path / "course" / "autograded" / kind / chapter / release.name
        for cell in json.loads(ran.read_text())["cells"]:
            if "raises-exception" not in cell["metadata"].get("tags", []):
                failed = [o for o in cell.get("outputs", []) if o["output_type"] == "error"]
                assert not failed, (kind, failed[0]["ename"], failed[0]["evalue"][:200], cell["source"])
