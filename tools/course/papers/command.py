"""The command `nanoeuler assign`: hand out individual assignments, or grade the answers."""

import sys
from collections.abc import Callable
from pathlib import Path

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import Voice, expect_new, printable, write_text
from tools.course import roster
from tools.course.papers import papers


def assign(args, stdin_text: Callable[[], str]) -> tuple[dict, str]:
    """Hand out or grade assignments, depending on the options; return data for --json and a line to print.

    args: the parsed options. stdin_text: a function that reads standard input, for `--seed -`. Raises NanoEulerError
    for options that do not go together.
    """
    if not (args.student or args.students or args.grade) or (args.student and args.students):
        got = "--student and --students" if args.student else "none"
        raise NanoEulerError(f"one of --student, --students and --grade must be given, got {got}")
    seed = stdin_text().strip() if args.seed == "-" else args.seed
    if not seed:
        raise NanoEulerError("--seed must be a text that nobody can guess, got an empty one")
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
    line = f"{out or folder}: {len(folders)} assignment{'s' * (len(folders) != 1)} for chapter {args.chapter}"
    if len(seed) < 12:
        line += "; the seed is short: someone who tries all seeds of this length can find the grading data"
    return {"out": str(out or folder), "papers": {s: str(f) for s, f in folders.items()}}, line


def mark(args, seed: str) -> tuple[dict, str]:
    """Grade the submissions in a folder, and write the table after each student."""
    out = args.out or Path(f"marks-{args.chapter}")
    problems = papers.paper(args.chapter, seed, "")  # refuses a wrong chapter before the first student is graded
    papers.check_user(args.user)
    known, due = roster.read(args.students) if args.students else None, roster.due_date(args.due or "")
    students = roster.handed_in(args.grade, "answers.py", known)
    path = out / "marks.csv"
    if not path.exists():
        expect_new(out, parents=True)
        out.mkdir(parents=True)
    table = papers.read_marks(path, problems)
    papers.write_marks(path, problems, list(table.values()))  # a later call continues with this table
    if known is None:
        text = "without --students, names are taken from the folders; they must be the names used for handing out"
        Voice(sys.stderr).line(f"nanoeuler: warning: {text}")
    for student, found in students.items():
        name, before = papers.cell(student), ""
        row = table.get(name, {})
        if found.path or not row:
            seen = papers.fingerprint(args.chapter, seed, student, found.path) if found.path else ""
            if seen and seen == row.get("fingerprint"):
                before = "graded before  "
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
    line = f"{path}: {len(table)} students, with a page for each"
    line += f" except {absent} without a readable submission" if absent else ""
    by_student = {name: papers.marks_in(problems, row) for name, row in table.items()}
    return {"out": str(out), "students": by_student}, line
