"""Releases: without solutions, complete, runnable from any folder; each gap gives its own points, and no others."""

import ast
import csv
import functools
import json
import re

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")
pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install -e .[instructor]")

from submissions import Answers, fill, kinds  # noqa: E402

from tools.course import assignment, autograde  # noqa: E402
from tools.course.assignment import ROOT, instructor_version, notebook_of, tags  # noqa: E402
from tools.notebooks.cells import python  # noqa: E402

CHAPTERS = sorted(path.name.partition("_")[0] for path in (ROOT / "notebooks").glob("*.ipynb"))
QUICK = ["04", "05", "06", "08", "11", "14"]  # those that have papers, too
KERNELS = {"23", "24", "25", "26", "27", "28", "29", "A1"}
each_chapter = pytest.mark.parametrize("chapter", CHAPTERS)


def marks(chapter: str) -> list:
    slow = [] if chapter in QUICK else [pytest.mark.slow]
    return slow + [pytest.mark.compiler] * (chapter in KERNELS)


each_run = pytest.mark.parametrize("chapter", [pytest.param(c, marks=marks(c)) for c in CHAPTERS])


@functools.cache
def version(chapter: str) -> tuple:
    notebook = nbformat.read(notebook_of(chapter, ROOT / "notebooks"), as_version=4)
    return instructor_version(notebook, f"book_{chapter}")


@functools.cache
def answers(chapter: str) -> Answers:
    return Answers(chapter)


# ---- What a release holds


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
    assert len(imported) >= 2
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
    graded = [
        c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade") and c.cell_type == "code"
    ]
    assert len(graded) >= 5
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
    assert not re.search(r"\.\./|KERNELS\.parents", code)
    stored = {path.stem for path in assignment.results_of(notebook)}
    named = set(re.findall(r"data/results/([\w-]+)\.json", code))
    assert named <= stored
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert not re.search(r"\]\([^)]*\.ipynb", text)


def test_a_check_of_two_functions_gives_half_for_one():
    source = "own_a = judge(check_a, my_a)\nown_b = judge(check_b, my_b)"
    made = assignment.check_with_points(source, 3)
    for judged, points in (((1, 1), 3), ((1, None), 1.5), ((None, None), 0)):
        names = {"judge": lambda check, mine: mine, "check_a": 0, "check_b": 0}
        names |= dict(zip(("my_a", "my_b"), judged, strict=True))
        *most, last = made.split("\n")
        exec("\n".join(most), names)
        assert eval(last, names) == points


def test_a_gap_that_cannot_be_read_leaves_the_rest_runnable():
    made = assignment.check_with_points("own_a = judge(check_a, my_a)", 3)
    names = {}
    with pytest.raises(NameError):
        exec(made, names)
    assert names["own_a"] is None


def test_a_chapter_that_is_none_is_told_in_one_line():
    with pytest.raises(
        SystemExit, match=r"^chapter is '99', expected one of 00, 01, .*: make assignment CH=06$"
    ):
        assignment.make("99")


# ---- Points, check by check


@each_run
def test_each_named_wrong_answer_loses_its_points_and_the_right_one_none(chapter):
    for gap, (right, wrong) in answers(chapter).gaps.items():
        points = answers(chapter).score(gap, right)
        assert points > 0, gap
        assert points == next(
            cell.metadata.nbgrader.points
            for cell in answers(chapter).cells
            if cell.metadata.get("nbgrader", {}).get("grade_id") == gap + "-check"
        )
        assert wrong
        for name, source in wrong.items():
            assert answers(chapter).score(gap, source) == 0, f"{gap}: {name}"


# ---- The whole pipeline


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    """A course with a release of the chapter template: small, with every construct."""
    jupytext = pytest.importorskip("jupytext")
    folder = tmp_path_factory.mktemp("mini")
    notebooks = folder / "notebooks"
    notebooks.mkdir()
    nbformat.write(
        jupytext.read(ROOT / "tools" / "notebooks" / "chapter_template.md"), notebooks / "99_template.ipynb"
    )
    release = assignment.make("99", notebooks, folder / "course")
    return folder, notebooks, release


def test_a_class_is_graded(mini):
    folder, notebooks, release = mini
    gaps = Answers("99", notebooks).gaps
    sources, first = kinds(gaps), next(iter(gaps))
    work = folder / "work"
    name = release.name
    for kind in ("right", "untouched", "wrong0"):
        fill(release, sources[kind], work / kind / name)
    unreadable = f"def my_{first.partition('-')[2]}(:"
    fill(release, sources["right"] | {first: unreadable}, work / "unreadable" / name)
    fill(release, sources["right"] | {first: "import os\nos._exit(1)"}, work / "dies" / name)
    (work / "empty").mkdir()
    (work / "torn").mkdir()
    (work / "torn" / name).write_text('{"cells": [')
    cheat = nbformat.read(work / "untouched" / name, as_version=4)
    for cell in cheat.cells:
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("grade") and cell.cell_type == "code":
            cell.source, marks["points"] = "print('right')\n50", 50
    nbformat.write(cheat, work / "cheat.ipynb")
    thief = nbformat.read(work / "right" / name, as_version=4)
    thief.cells = [
        c for c in thief.cells if c.metadata.get("nbgrader", {}).get("grade_id") != f"{first}-check"
    ]
    nbformat.write(thief, work / "removes.ipynb")

    rows = {row["student"]: row for row in autograde.grade("99", work, folder / "course", notebooks)}
    most = {gap: Answers("99", notebooks).score(gap, right) for gap, (right, _) in gaps.items()}
    assert rows["right"]["points"] == sum(most.values())
    assert rows["right"]["waiting for a person"] == 4
    assert rows["untouched"]["points"] == rows["cheat"]["points"] == 0
    assert rows["untouched"]["waiting for a person"] == 0
    assert rows["removes"]["points"] == sum(most.values()), "a check that was deleted is put back"
    wrong = {gap: points * (number % 2) for number, (gap, points) in enumerate(most.items())}
    assert {gap: rows["wrong0"][gap] for gap in gaps} == wrong
    assert rows["unreadable"]["points"] == sum(most.values()) - most[first]
    for student, why in (("dies", "cannot be run"), ("empty", "no file"), ("torn", "no notebook")):
        assert rows[student]["points"] == 0
        assert rows[student]["remark"].startswith(why)
    course = folder / "course"
    table = list(csv.DictReader((course / "grades-99.csv").open()))
    assert [row["student"] for row in table] == sorted(rows)
    assert (course / "feedback" / "right" / "99" / "99_template.html").exists()


def test_submissions_that_are_nowhere_are_told_in_one_line(mini, tmp_path):
    folder, notebooks, _ = mini
    for found, said in ((tmp_path / "nowhere", "expected a folder"), (tmp_path, "holds no submission")):
        with pytest.raises(SystemExit, match=said):
            autograde.grade("99", found, folder / "course", notebooks)
    with pytest.raises(SystemExit, match="there is no release of chapter 05: make assignment CH=05"):
        autograde.grade("05", tmp_path, folder / "course")


@pytest.mark.slow
@pytest.mark.parametrize("chapter", [pytest.param(c, marks=marks(c)) for c in CHAPTERS])
def test_a_chapter_through_the_pipeline(chapter, tmp_path):
    """Right, untouched, and every second answer wrong; no cell ends in an error but those that do so on purpose."""
    release = assignment.make(chapter, course=tmp_path / "course")
    gaps = answers(chapter).gaps
    for kind, filled in kinds(gaps).items():
        fill(release, filled, tmp_path / "work" / kind / release.name)
    rows = {row["student"]: row for row in autograde.grade(chapter, tmp_path / "work", tmp_path / "course")}
    points = {
        cell.metadata.nbgrader.grade_id.removesuffix("-check"): cell.metadata.nbgrader.points
        for cell in nbformat.read(release, as_version=4).cells
        if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("grade")
    }
    assert points.keys() == gaps.keys()
    for kind, row in rows.items():
        wrong = {"right": (), "untouched": points, "wrong0": [*points][::2], "wrong1": [*points][1::2]}[kind]
        assert {gap: row[gap] for gap in points} == {
            gap: p * (gap not in wrong) for gap, p in points.items()
        }, kind
        ran = tmp_path / "course" / "autograded" / kind / chapter / release.name
        for cell in json.loads(ran.read_text())["cells"]:
            if "raises-exception" not in cell["metadata"].get("tags", []):
                failed = [o for o in cell.get("outputs", []) if o["output_type"] == "error"]
                assert not failed, (kind, failed[0]["ename"], failed[0]["evalue"][:200], cell["source"])
