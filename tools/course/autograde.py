"""Grade a folder of submissions of a chapter with nbgrader: feedback for each student, and a CSV.

    python -m tools.course.autograde 08 FOLDER    # FOLDER/NAME/08_residual_stream.ipynb, or FOLDER/NAME.ipynb

In _build/assignments then stand autograded/NAME/08/, feedback/NAME/08/*.html and grades-08.csv: student, points of
the checks, points that wait for a person, the most there is, a remark where a notebook could not be read or run, and a
column for each check. A student whose notebook cannot be graded has 0 points and the reason. The checks only say that
a student has worked through the chapter; what is marked is `nanoeuler assign`.
"""

import csv
import re
import shutil
import sys
from pathlib import Path

import nbformat

from tools.course.assignment import COURSE, ROOT, nbgrader, notebook_of


def collect(chapter: str, folder: Path, course: Path, name: str) -> dict[str, str]:
    """Copy the submissions into the course. Returns the students, each with what is wrong with the file, or ""."""
    if not folder.is_dir():
        sys.exit(f"submissions are in {folder}, expected a folder: make autograde CH={chapter} FROM=FOLDER")
    files = {path.parent.name: path for path in sorted(folder.glob(f"*/{name}"))}
    files |= {path.stem: path for path in sorted(folder.glob("*.ipynb"))}
    for path in sorted(
        folder.iterdir()
    ):  # a folder without the notebook is a student who handed in something else
        if path.is_dir() and not path.name.startswith("."):
            files.setdefault(path.name, None)
    if not files:
        sys.exit(f"{folder} holds no submission, expected NAME/{name} or NAME.ipynb")
    students = {}
    for kind in ("submitted", "autograded", "feedback"):  # an earlier run's
        for earlier in (course / kind).glob(f"*/{chapter}"):
            shutil.rmtree(earlier)
    for student, path in files.items():
        if not (students.setdefault(student, unreadable(student, path, name))):
            (course / "submitted" / student / chapter).mkdir(parents=True)
            shutil.copy(path, course / "submitted" / student / chapter / name)
    return students


def unreadable(student: str, path: Path | None, name: str) -> str:
    """Why a submission cannot be run; "" if it can."""
    if not re.fullmatch(r"[\w.-]+", student):
        return "the student's name has characters other than letters, digits, . - and _"
    if path is None:
        return f"no file {name}"
    try:
        nbformat.validate(nbformat.read(path, as_version=4))
    except Exception as error:  # whatever a file that is no notebook makes nbformat raise
        return f"no notebook: {str(error).splitlines()[0][:80]}"
    return ""


def grade(
    chapter: str, folder: Path, course: Path = COURSE, notebooks: Path = ROOT / "notebooks"
) -> list[dict]:
    """Grade all submissions; the rows of the CSV."""
    source = notebook_of(chapter, notebooks).name
    if not (course / "release" / chapter / source).exists():
        sys.exit(f"there is no release of chapter {chapter}: make assignment CH={chapter}")
    students = collect(chapter, folder, course, source)
    readable = [student for student, why in students.items() if not why]
    nbgrader(course, "autograde", chapter, "--force")
    for student in readable:
        if not (course / "autograded" / student / chapter / source).exists():  # by itself: what was wrong?
            said, failed = nbgrader(course, "autograde", chapter, "--student", student, "--force")
            students[student] = reason(said) if failed else ""
    if not all(students.values()):
        nbgrader(course, "generate_feedback", chapter, "--force")
    rows = [row(course, chapter, student, why) for student, why in sorted(students.items())]
    with (course / f"grades-{chapter}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(max(rows, key=len)), restval=0)
        writer.writeheader()
        writer.writerows(rows)
    return rows


def reason(said: str) -> str:
    """The line of nbgrader's log that says why it gave up."""
    told = [line for line in said.splitlines() if re.search(r"(Error|Exception|unresponsive)\b.*", line)]
    found = [line.split("]", 2)[-1].strip() for line in told if "NbGraderException" not in line]
    return "cannot be run: " + (found[-1][:120] if found else "nbgrader gave up")


def row(course: Path, chapter: str, student: str, why: str) -> dict:
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        assignment = gradebook.find_assignment(chapter)
        line = {
            "student": student,
            "points": 0,
            "waiting for a person": 0,
            "of": assignment.max_score,
            "remark": why,
        }
        if why:
            return line
        grades = gradebook.find_submission(chapter, student).notebooks[0].grades
        for found in grades:
            if found.needs_manual_grade:
                line["waiting for a person"] += found.max_score
            line[found.name.removesuffix("-check")] = found.score or 0
        line["points"] = sum(found.score or 0 for found in grades)
    return line


if __name__ == "__main__":
    if len(sys.argv) != 3 or not all(sys.argv[1:]):
        sys.exit("which chapter, and where are the submissions? make autograde CH=08 FROM=FOLDER")
    for line in grade(sys.argv[1], Path(sys.argv[2])):
        print(f"{line['student']:16} {line['points']:5g} of {line['of']:g}  {line['remark']}")
    print(COURSE / f"grades-{sys.argv[1]}.csv")
