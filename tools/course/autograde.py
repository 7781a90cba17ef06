"""Grade a folder of submissions of a chapter with nbgrader: write a page for each student, and a CSV table.

    make autograde CH=08 FROM=FOLDER STUDENTS=roster.csv DUE=2026-12-01T12:00    # STUDENTS and DUE are optional
    make autograde CH=08    # write the table and the pages again, after a person has given points

The command writes into _build/assignments: autograded/, feedback/NAME/08/*.html and grades-08.csv. The table has for
each student the points of the checks, the points that wait for a person, the maximum, late days, a remark, students
with the same answers, and a column for each check. Its rows are in the order of the roster. If the roster comes from
a platform, a file for that platform is written too, such as grades-08-canvas.csv.

Each submission is repaired first (mend.py). The table is written after each student. Students graded earlier keep
their rows, and a notebook that has run does not run again. The checks only show that a student has worked through the
chapter; `nanoeuler assign` makes assignments for grades.
"""

import csv
import hashlib
import io
import json
import re
import shutil
import sys
import warnings
from pathlib import Path

import nbformat
from tqdm import tqdm

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import one_line, printable, write_text
from tools.course import feedback, roster
from tools.course.assignment import COURSE, ROOT, nbgrader, notebook_of
from tools.course.mend import mend
from tools.course.papers.papers import cell
from tools.course.roster import HandedIn, read_regular

HEAD = ("student", "points", "waiting for a person", "of", "late days", "remark", "same answers as")
LARGEST = 2**27  # bytes; a larger notebook is refused


def grade(
    chapter: str,
    folder: Path | None,
    course: Path = COURSE,
    notebooks: Path = ROOT / "notebooks",
    students: Path | None = None,
    due: str = "",
) -> list[dict]:
    """Grade all submissions of a folder, and return the rows of the CSV table, with those of earlier runs.

    folder: the submissions; if None, only the table and the pages are written again. students: the roster's file. due:
    a date, or a date and time. Ends the program with one line if the arguments cannot be used.
    """
    source = notebook_of(chapter, notebooks).name
    release = course / "release" / chapter / source
    if not release.exists():
        sys.exit(f"chapter {chapter} must be released first: make assignment CH={chapter}")
    rows = earlier(course / f"grades-{chapter}.csv")
    known, found = None, {}
    try:
        known = roster.read(students) if students else None
        until = roster.due_date(due)
        if folder is not None or not rows:
            found = roster.handed_in(folder or Path("FROM"), source, known)
    except NanoEulerError as error:
        sys.exit(str(error))
    if found and known is None:
        text = "warning: without STUDENTS=FILE, student names are taken from the names of the folders"
        print(text, file=sys.stderr)
    for student, handed in found.items():
        if handed.path or student not in rows:
            why = collect(course, chapter, student, handed, release)
            replaced = not why.startswith("not a notebook") or student not in rows
            late = handed.late_days(until) if replaced else rows[student]["late days"]
            rows[student] = {"late days": late, "remark": why}
    order = [student.name for student in known.students] if known else sorted(rows)
    order = [*(s for s in order if s in rows), *sorted(rows.keys() - set(order))]
    waiting = [s for s in order if s in found and found[s].path and waits(course, chapter, s, source)]
    copies, lines = same_answers(course, chapter, order, release), {}
    with tqdm(total=len(waiting), unit=" notebook", disable=None, leave=False) as bar:
        for student in sorted(order, key=waiting.__contains__):
            row = rows[student] | {"same answers as": ", ".join(copies.get(student, []))}
            if student in waiting:
                bar.set_description_str(printable(student))
                row["remark"] = "; ".join(filter(None, [run(course, chapter, student), row["remark"]]))
                bar.update()
            lines[student] = graded(course, chapter, student, row, source, student in (found or rows))
            write(course, chapter, [lines[s] for s in order if s in lines], known)
            with bar.external_write_mode():
                print(shown(lines[student]), flush=True)
    for group in sorted({", ".join(sorted([s, *others])) for s, others in copies.items() if others}):
        print(f"identical answers: {printable(group)}")
    return [lines[student] for student in order]


def shown(line: dict) -> str:
    """Format a student's row as one line for the terminal."""
    waiting = f", {line['waiting for a person']:g} wait for a person" if line["waiting for a person"] else ""
    late = f"  late days: {line['late days']}" if line["late days"] not in ("", "0", 0) else ""
    points = f"{line['points']:5g} of {line['of']:g}{waiting}{late}"
    return printable(f"{line['student']:20} {points}  {line['remark']}")


def same_answers(course: Path, chapter: str, students: list[str], release: Path) -> dict[str, list[str]]:
    """Map each student to the other students whose answers differ only in white space.

    Students who changed nothing in the release are left out.
    """
    groups = {}
    for student in students:
        path = place(course, "submitted", student, chapter) / release.name
        if path.exists():
            groups.setdefault(answers(path), []).append(student)
    groups.pop(answers(release), None)
    return {s: [other for other in group if other != s] for group in groups.values() for s in group}


def answers(path: Path) -> str:
    """Return the text of a notebook's gaps and written answers, without white space."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    given = ("".join(c["source"]) for c in cells if c["metadata"].get("nbgrader", {}).get("solution"))
    return "".join("".join(given).split())


def earlier(path: Path) -> dict[str, dict]:
    """Read the rows of an earlier run, by student; return an empty dict if there was no run."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {row.pop("student"): row for row in csv.DictReader(file)}


def place(course: Path, kind: str, student: str, chapter: str) -> Path:
    """Return a student's folder in the course.

    nbgrader needs names without spaces; only the feedback folders are named like the students.
    """
    known = re.sub(r"[^\w.-]+", "-", student)
    if kind != "feedback" and (known != student or known[0] in ".-"):
        known = f"{known.strip('.-')}-{hashlib.sha256(student.encode()).hexdigest()[:6]}"
    return course / kind / (student if kind == "feedback" else known) / chapter


def collect(course: Path, chapter: str, student: str, handed: HandedIn, release: Path) -> str:
    """Copy a repaired submission into the course, and return the remark about it.

    A submission that cannot be read does not replace an earlier one.
    """
    if handed.path is None:
        return handed.remark
    try:
        notebook = nbformat.reads(read_regular(handed.path, LARGEST).decode(), as_version=4)
        nbformat.validate(notebook)
        mended = mend(notebook, nbformat.read(release, as_version=4))
        nbformat.validate(notebook)
        text = nbformat.writes(notebook).encode()
    except Exception as error:  # nbformat raises errors of many types for a file that is not a notebook
        return f"not a notebook: {one_line((str(error).splitlines() or [type(error).__name__])[0][:80])}"
    path = place(course, "submitted", student, chapter) / release.name
    if not path.exists() or path.read_bytes() != text:
        for kind in ("submitted", "autograded", "feedback"):  # remove the student's earlier submission
            shutil.rmtree(place(course, kind, student, chapter), ignore_errors=True)
        path.parent.mkdir(parents=True)
        path.write_bytes(text)
    return "; ".join(filter(None, [handed.remark, mended]))


def waits(course: Path, chapter: str, student: str, source: str) -> bool:
    """Return whether a student's submission has not run yet."""
    submitted, run = (place(course, kind, student, chapter) / source for kind in ("submitted", "autograded"))
    return submitted.exists() and not run.exists()


def run(course: Path, chapter: str, student: str) -> str:
    """Run a student's submission with nbgrader; return the reason if nbgrader failed, else ""."""
    known = place(course, "submitted", student, chapter).parent.name
    said, stopped = nbgrader(course, "autograde", chapter, "--student", known, "--force")
    if stopped:  # nbgrader may have left a half-finished notebook
        shutil.rmtree(place(course, "autograded", student, chapter), ignore_errors=True)
    return reason(said) if stopped else ""


def reason(said: str) -> str:
    """Return the line of nbgrader's log that gives the reason for the failure."""
    told = [line for line in said.splitlines() if re.search(r"(Error|Exception|unresponsive)\b.*", line)]
    found = [line.split("]", 2)[-1].strip() for line in told if "NbGraderException" not in line]
    return "cannot be run: " + (one_line(found[-1][:120]) if found else "nbgrader gave up")


def graded(course: Path, chapter: str, student: str, row: dict, source: str, paged: bool) -> dict:
    """Return a student's row of the table, with the points in nbgrader's gradebook; if `paged`, write the page too."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        line = {"student": student, "points": 0, "waiting for a person": 0}
        line |= {"of": gradebook.find_assignment(chapter).max_score}
        line |= {key: row.get(key, "") for key in ("late days", "remark", "same answers as")}
        ran = place(course, "autograded", student, chapter)
        if not (ran / source).exists():
            return line
        submission = gradebook.find_submission(chapter, ran.parent.name).notebooks[0]
        comments = {comment.name: comment.comment or "" for comment in submission.comments}
        cells = {}
        for found in submission.grades:
            if found.needs_manual_grade:
                line["waiting for a person"] += found.max_score
            line[found.name.removesuffix("-check")] = found.score or 0
            cells[found.name] = {
                "score": found.score or 0,
                "of": found.max_score,
                "waiting": found.needs_manual_grade,
                "comment": comments.get(found.name, ""),
            }
        line["points"] = sum(one["score"] for one in cells.values())
        if paged:
            page = place(course, "feedback", student, chapter) / Path(source).with_suffix(".html")
            feedback.write(page, ran / source, f"Chapter {chapter}, {student}", line, cells)
    return line


def ran(line: dict) -> bool:
    """Return whether a row holds a grade.

    A notebook that was not handed in or could not be run has no grade until a person has given it points.
    """
    return float(line["points"]) > 0 or not re.match(
        f"{roster.ABSENT}|cannot be run|not a notebook|no file", line["remark"]
    )


def write(course: Path, chapter: str, table: list[dict], known: roster.Roster | None) -> None:
    """Write grades-08.csv, and the file that the roster's platform imports."""
    text = io.StringIO()
    columns = list(dict.fromkeys([*HEAD, *(key for line in table for key in line)]))
    writer = csv.DictWriter(text, columns, restval=0)
    writer.writeheader()
    writer.writerows({key: cell(value) for key, value in line.items()} for line in table)
    write_text(course / f"grades-{chapter}.csv", text.getvalue())
    if known and known.platform:
        points = {line["student"]: line["points"] if ran(line) else None for line in table}
        path = course / f"grades-{chapter}-{known.platform}.csv"
        roster.write_grades(path, known, f"Chapter {chapter}", points, table[0]["of"])


if __name__ == "__main__":
    chapter, folder, students, due = (sys.argv[1:] + [""] * 4)[:4]
    if not chapter or not (folder or earlier(COURSE / f"grades-{chapter}.csv")):
        sys.exit("CH and FROM (a folder of submissions) must be given: make autograde CH=08 FROM=FOLDER")
    warnings.simplefilter("ignore", FutureWarning)  # nbformat warns of cells without ids or with equal ids
    paths = [Path(text) if text else None for text in (folder, students)]
    table = grade(chapter, paths[0], students=paths[1], due=due)
    print(COURSE / f"grades-{chapter}.csv")
    if any(line["waiting for a person"] for line in table):
        print("points that wait for a person are in no total yet: give them in Formgrader, then type this again")
