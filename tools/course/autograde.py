"""Grade a folder of submissions of a chapter with nbgrader: a page for each student, and a CSV.

    make autograde CH=08 FROM=FOLDER STUDENTS=roster.csv DUE=2026-12-01T12:00    # STUDENTS and DUE may be left out
    make autograde CH=08    # the table and the pages again, after a person has given points

In _build/assignments then stand autograded/, feedback/NAME/08/*.html and grades-08.csv: student, points of the checks,
points that wait for a person, the most there is, days late, a remark, a column for each check; and, if the roster is a
platform's, grades-08-canvas.csv or the like. Rows stand in the roster's order. A submission is mended first (mend.py).
Students graded earlier keep their rows. The checks only say that a student has worked through the chapter; what is
marked is `nanoeuler assign`.
"""

import csv
import hashlib
import re
import shutil
import sys
from pathlib import Path

import nbformat

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.school import roster
from nanoeuler_lib.school.roster import HandedIn
from tools.course import feedback
from tools.course.assignment import COURSE, ROOT, nbgrader, notebook_of
from tools.course.mend import mend

HEAD = ("student", "points", "waiting for a person", "of", "late days", "remark")


def grade(
    chapter: str,
    folder: Path | None,
    course: Path = COURSE,
    notebooks: Path = ROOT / "notebooks",
    students: Path | None = None,
    due: str = "",
) -> list[dict]:
    """Grade all submissions of a folder; the rows of the CSV, those of earlier runs among them."""
    source = notebook_of(chapter, notebooks).name
    release = course / "release" / chapter / source
    if not release.exists():
        sys.exit(f"there is no release of chapter {chapter}: make assignment CH={chapter}")
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
        print("warning: names are taken from the folders as they are: STUDENTS=FILE", file=sys.stderr)
    for student, handed in found.items():
        if handed.path or student not in rows:
            why = collect(course, chapter, student, handed, release)
            replaced = not why.startswith("no notebook") or student not in rows
            late = handed.late_days(until) if replaced else rows[student]["late days"]
            rows[student] = {"late days": late, "remark": why}
    for student, why in run(course, chapter, [s for s in found if found[s].path], source).items():
        rows[student]["remark"] = "; ".join(filter(None, [why, rows[student]["remark"]]))
    order = [student.name for student in known.students] if known else sorted(rows)
    listed = [student for student in order if student in rows]
    table = [{"student": s} | rows[s] for s in [*listed, *sorted(rows.keys() - set(listed))]]
    fill(course, chapter, table, source, found or rows)
    write(course, chapter, table, known)
    return table


def earlier(path: Path) -> dict[str, dict]:
    """The rows of an earlier run."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {row.pop("student"): row for row in csv.DictReader(file)}


def place(course: Path, kind: str, student: str, chapter: str) -> Path:
    """A student's folder in the course. nbgrader knows a student by a name without spaces, the feedback by the name."""
    known = re.sub(r"[^\w.-]+", "-", student)
    if kind != "feedback" and (known != student or known[0] in ".-"):
        known = f"{known.strip('.-')}-{hashlib.sha256(student.encode()).hexdigest()[:6]}"
    return course / kind / (student if kind == "feedback" else known) / chapter


def collect(course: Path, chapter: str, student: str, handed: HandedIn, release: Path) -> str:
    """Copy a submission into the course, mended; the remark. One that cannot be read replaces no earlier one."""
    if handed.path is None:
        return handed.remark
    try:
        notebook = nbformat.read(handed.path, as_version=4)
        nbformat.validate(notebook)
        mended = mend(notebook, nbformat.read(release, as_version=4))
        nbformat.validate(notebook)
    except Exception as error:  # whatever a file that is no notebook makes nbformat raise
        return f"no notebook: {(str(error).splitlines() or [type(error).__name__])[0][:80]}"
    for kind in ("submitted", "autograded", "feedback"):  # an earlier submission of this student's
        shutil.rmtree(place(course, kind, student, chapter), ignore_errors=True)
    place(course, "submitted", student, chapter).mkdir(parents=True)
    nbformat.write(notebook, place(course, "submitted", student, chapter) / release.name)
    return "; ".join(filter(None, [handed.remark, mended]))


def run(course: Path, chapter: str, students: list[str], source: str) -> dict[str, str]:
    """Let nbgrader run the submissions of these students; why it gave up, of those of whom it did."""
    new = [s for s in students if place(course, "submitted", s, chapter).exists()]
    new = [s for s in new if not (place(course, "autograded", s, chapter) / source).exists()]
    ids = {place(course, "submitted", s, chapter).parent.name: s for s in new}
    others = [path.parent.name for path in (course / "submitted").glob(f"*/{chapter}")]
    exclude = ",".join(other for other in others if other not in ids)
    if ids:
        nbgrader(course, "autograde", chapter, "--force", f"--CourseDirectory.student_id_exclude={exclude}")
    failed = {}
    for known, student in ids.items():
        if not (course / "autograded" / known / chapter / source).exists():  # by itself: what was wrong?
            said, stopped = nbgrader(course, "autograde", chapter, "--student", known, "--force")
            failed |= {student: reason(said)} if stopped else {}
    return failed


def reason(said: str) -> str:
    """The line of nbgrader's log that says why it gave up."""
    told = [line for line in said.splitlines() if re.search(r"(Error|Exception|unresponsive)\b.*", line)]
    found = [line.split("]", 2)[-1].strip() for line in told if "NbGraderException" not in line]
    return "cannot be run: " + (found[-1][:120] if found else "nbgrader gave up")


def fill(course: Path, chapter: str, table: list[dict], source: str, pages) -> None:
    """Put the points of nbgrader's gradebook into the rows, and write the pages of the students in `pages`."""
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        most = gradebook.find_assignment(chapter).max_score
        for line in table:
            student, remark = line["student"], line.get("remark", "")
            ran = place(course, "autograded", student, chapter)
            kept = {"late days": line.get("late days", ""), "remark": remark}
            line.clear()
            line |= {"student": student, "points": 0, "waiting for a person": 0, "of": most} | kept
            if not (ran / source).exists():
                continue
            submission = gradebook.find_submission(chapter, ran.parent.name).notebooks[0]
            comments = {comment.name: comment.comment or "" for comment in submission.comments}
            graded = {}
            for found in submission.grades:
                if found.needs_manual_grade:
                    line["waiting for a person"] += found.max_score
                line[found.name.removesuffix("-check")] = found.score or 0
                graded[found.name] = {
                    "score": found.score or 0,
                    "of": found.max_score,
                    "waiting": found.needs_manual_grade,
                }
                graded[found.name]["comment"] = comments.get(found.name, "")
            line["points"] = sum(one["score"] for one in graded.values())
            if student in pages:
                page = place(course, "feedback", student, chapter) / Path(source).with_suffix(".html")
                feedback.write(page, ran / source, f"Chapter {chapter}, {student}", line, graded)


def ran(line: dict) -> bool:
    """Whether a row holds a grade. What was not handed in or could not be run has none until a person has looked."""
    return float(line["points"]) > 0 or not re.match(
        f"{roster.ABSENT}|cannot be run|no notebook|no file", line["remark"]
    )


def write(course: Path, chapter: str, table: list[dict], known: roster.Roster | None) -> None:
    """Write grades-08.csv, and the table that the roster's platform imports."""
    with (course / f"grades-{chapter}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(
            file, list(dict.fromkeys([*HEAD, *(key for line in table for key in line)])), restval=0
        )
        writer.writeheader()
        writer.writerows(table)
    if known and known.platform:
        points = {line["student"]: line["points"] if ran(line) else None for line in table}
        path = course / f"grades-{chapter}-{known.platform}.csv"
        roster.write_grades(path, known, f"Chapter {chapter}", points, table[0]["of"])


if __name__ == "__main__":
    chapter, folder, students, due = (sys.argv[1:] + [""] * 4)[:4]
    if not chapter or not (folder or earlier(COURSE / f"grades-{chapter}.csv")):
        sys.exit(
            "which chapter, and where are the submissions? make autograde CH=08 FROM=FOLDER STUDENTS=FILE"
        )
    paths = [Path(text) if text else None for text in (folder, students)]
    table = grade(chapter, paths[0], students=paths[1], due=due)
    for line in table:
        waiting = (
            f", {line['waiting for a person']:g} wait for a person" if line["waiting for a person"] else ""
        )
        late = f"  days late: {line['late days']}," if line["late days"] not in ("", 0, "0") else ""
        print(f"{line['student']:20} {line['points']:5g} of {line['of']:g}{waiting}{late}  {line['remark']}")
    print(COURSE / f"grades-{chapter}.csv")
    if any(line["waiting for a person"] for line in table):
        print(
            "points that wait for a person are in no total yet: give them in Formgrader, then type this again"
        )
