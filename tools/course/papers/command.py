"""Hand out and grade assignments, for `nanoeuler assign`."""

import sys
from collections.abc import Callable
from pathlib import Path

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import Voice, expect_new, printable, write_text
from tools.course import roster
from tools.course.papers import papers


def assign(args, stdin_text: Callable[[], str]) -> tuple[dict, str]:
    """Hand papers out or mark them, as the options of the command say; returns the facts and a line about them.

    stdin_text: reads standard input, for the seed. Raises NanoEulerError for options that do not go together.
    """
    if not (args.student or args.students or args.grade) or (args.student and args.students):
        got = "--student and --students" if args.student else "none"
        raise NanoEulerError(f"one of --student, --students and --grade must be given, got {got}")
    seed = stdin_text().strip() if args.seed == "-" else args.seed
    if not seed:
        raise NanoEulerError("--seed is empty, expected a text that cannot be guessed")
    if args.grade:
        return mark(args, seed)
    out = args.out
    if args.student is not None:
        folders = {args.student: out or Path(f"paper-{args.chapter}-{args.student}")}
    else:
        out = out or Path(f"papers-{args.chapter}")
        folders = {name: out / name for name in (s.name for s in roster.read(args.students).students)}
    for student, folder in folders.items():
        papers.hand_out(args.chapter, seed, student, folder)
    line = f"{out or folder}: {len(folders)} of chapter {args.chapter}"
    if len(seed) < 12:
        line += "; the seed is short: somebody who tries all seeds of that length finds the grading data"
    return {"out": str(out or folder), "papers": {s: str(f) for s, f in folders.items()}}, line


def mark(args, seed: str) -> tuple[dict, str]:
    """Mark what is in a folder; the table is written after each student."""
    out = args.out or Path(f"marks-{args.chapter}")
    problems = papers.paper(args.chapter, seed, "")  # a wrong chapter is told before the first student
    papers.check_user(args.user)
    known, due = roster.read(args.students) if args.students else None, roster.due_date(args.due or "")
    students = roster.handed_in(args.grade, "answers.py", known)
    path = out / "marks.csv"
    if not path.exists():
        expect_new(out, parents=True)
        out.mkdir(parents=True)
    table = papers.read_marks(path, problems)
    papers.write_marks(path, problems, list(table.values()))  # from now on another call goes on with it
    if known is None:
        text = "names are taken from the folders as they are, and a paper depends on its name: --students FILE"
        Voice(sys.stderr).line(f"nanoeuler: warning: {text}")
    for student, found in students.items():
        name, before = papers.cell(student), ""
        row = table.get(name, {})
        if found.path or not row:
            seen = papers.fingerprint(args.chapter, seed, student, found.path) if found.path else ""
            if seen and seen == row.get("fingerprint"):
                before = "marked before  "
            else:
                marks = papers.grade(args.chapter, seed, student, found.path, args.user) if found.path else []
                row = papers.row(problems, marks) | {"student": student, "fingerprint": seen}
                if marks:
                    write_text(out / f"{student}.txt", papers.page(args.chapter, student, marks))
            row = table[name] = row | {"late days": found.late_days(due), "remark": found.remark}
            papers.write_marks(path, problems, list(table.values()))
        if not args.json:
            each = "  ".join(f"{p.name} {row[p.name]}" for p in problems if row["fingerprint"])
            said = printable(f"{each}  {before}{row['remark']}".strip())
            print(f"{printable(student):20} {row['points']} of {papers.POINTS:<5} {said}", flush=True)
    if known and known.platform:
        points = {name: row["points"] if row["fingerprint"] else None for name, row in table.items()}
        grades = out / f"marks-{known.platform}.csv"
        roster.write_grades(grades, known, f"Chapter {args.chapter}: paper", points, papers.POINTS)
    absent = sum(not row["fingerprint"] for row in table.values())
    line = f"{path}: {len(table)} students, and a page for each"
    line += f" but {absent} who handed in nothing that can be read" if absent else ""
    by_student = {name: papers.marks_in(problems, row) for name, row in table.items()}
    return {"out": str(out), "students": by_student}, line
