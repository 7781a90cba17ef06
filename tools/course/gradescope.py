"""Autograders for Gradescope: `make gradescope` packs a zip, and this module runs in the container made from it.

    make gradescope CH=08                                      # chapter-08.zip: the notebook, for completion
    make gradescope CH=08 SEED=secret.txt STUDENTS=roster.csv  # paper-08.zip: the individual assignment, for a grade

The zip contains setup.sh and run_autograder (tools/course/container), and in nanoeuler/ the library, the tools and the
list of locked packages. The seed and the list of students stay in source/, which only root can read; the students'
code runs as the user nobody. Formats: https://gradescope-autograders.readthedocs.io/en/latest/specs/
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import nbformat

from nanoeuler_lib.errors import NanoEulerError, short
from tools.course import assignment, autograde, feedback, roster
from tools.course.assignment import ROOT
from tools.course.mend import mark
from tools.course.papers import papers

SECONDS = 540  # time limit of a notebook; Gradescope stops a container after ten minutes by default
USER = "nobody"
NEEDED = (
    "nanoeuler_lib",
    "nanoeuler_book",
    "konigsberg",
    "cudacheck",
    "tools",
    "pyproject.toml",
    "requirements.txt",
    "README.md",
    "LICENSE",
)
STUDENT = "student"  # stands in for the name, which Gradescope knows


# ---- The zip


def pack(chapter: str, seed: Path | None = None, students: Path | None = None, out: Path | None = None) -> Path:
    """Write the zip for a chapter's notebook, or for its individual assignment if `seed` is given; return its path.

    seed: a file with the secret seed. students: the roster; required with `seed`. Raises NanoEulerError if the seed is
    too short, or the chapter or the roster cannot be used.
    """
    kind = "paper" if seed else "chapter"
    out = out or ROOT / "_build" / "gradescope" / f"{kind}-{chapter}.zip"
    with tempfile.TemporaryDirectory() as name:
        box = Path(name)
        tree = box / "nanoeuler"
        for needed in NEEDED:
            copy = shutil.copytree if (ROOT / needed).is_dir() else shutil.copy
            tree.mkdir(exist_ok=True)
            copy(ROOT / needed, tree / needed, **_ignored(ROOT / needed))
        if seed:
            _secrets(box, chapter, seed, students)
        else:
            release = assignment.make(chapter, course=tree / "_build" / "assignments")
            (tree / "notebooks").mkdir()
            shutil.copy(release, tree / "notebooks")  # autograde looks for a chapter's name there
        (box / "job.json").write_text(json.dumps({"kind": kind, "chapter": chapter}))
        for script in ("setup.sh", "run_autograder"):
            shutil.copy(ROOT / "tools" / "course" / "container" / script, box)
        out.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
            for path in sorted(path for path in box.rglob("*") if path.is_file()):
                file.write(path, path.relative_to(box))
    return out


def _ignored(path: Path) -> dict:
    return {"ignore": shutil.ignore_patterns("__pycache__", "*.pyc")} if path.is_dir() else {}


def _secrets(box: Path, chapter: str, seed: Path, students: Path | None) -> None:
    if students is None:
        raise NanoEulerError("STUDENTS must be given with SEED: the list from which the assignments were handed out")
    text = seed.read_text("utf-8").strip()
    papers.paper(chapter, text, "")  # refuses a chapter without an assignment
    if len(text) < 12:
        raise NanoEulerError(f"{seed}: the seed must have at least 12 characters, got {len(text)}")
    roster.read(students)
    (box / "seed").write_text(text, "utf-8")
    shutil.copy(students, box / "students.csv")


# ---- In the container


def results(root: Path, user: str = USER) -> dict:
    """Grade the submission in root/submission, and return the content of results.json.

    A submission that cannot be graded gets 0 points and the reason.
    """
    try:
        job = json.loads((root / "source" / "job.json").read_text("utf-8"))
        papers.check_user(user)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / STUDENT
            _copy(root / "submission", folder)
            grade = paper if job["kind"] == "paper" else notebook
            return grade(job["chapter"], folder, root, user)
    except NanoEulerError as error:
        reason = str(error)
    except Exception as error:  # students see one sentence; the log has the details
        reason = f"the autograder failed, {type(error).__name__}. Your instructor can run it again"
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return {"score": 0, "output": f"Not graded: {reason}.", "tests": []}


def _copy(submission: Path, folder: Path) -> None:
    """Copy the regular files of a submission, without links."""
    folder.mkdir()
    for path in sorted(submission.rglob("*")):
        to = folder / path.relative_to(submission)
        if roster.is_own(path, submission):
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
            shutil.copystat(path, to)


def paper(chapter: str, folder: Path, root: Path, user: str) -> dict:
    """Grade an individual assignment with one test per problem; students see it when the grades are published.

    Raises NanoEulerError if there is no answers.py, or if the submission does not belong to one student of the roster.
    """
    told = json.loads((root / "submission_metadata.json").read_text("utf-8"))
    known = roster.read(root / "source" / "students.csv")
    student = student_of(told.get("users") or [], known)
    found = roster.handed_in(folder.parent, "answers.py")[STUDENT]
    if found.path is None:
        raise NanoEulerError(f"{found.remark} was handed in")
    seed = (root / "source" / "seed").read_text("utf-8")
    problems = papers.paper(chapter, seed, student)
    marks = papers.grade(chapter, seed, student, found.path, user)
    tests = [
        _test(f"{m.problem}: {p.title}", m.points, m.of, m.said or "Right.") | {"visibility": "after_published"}
        for p, m in zip(problems, marks, strict=True)
    ]
    return {"output": f"Graded {found.path.name} of {student}. {found.remark}".strip(), "tests": tests}


def student_of(users: list[dict], known: roster.Roster) -> str:
    """Return the name on the roster of the student who handed in, found by email address or by name.

    Raises NanoEulerError unless exactly one student handed in and has one entry on the roster.
    """
    names = [str(user.get("name") or user.get("email")) for user in users]
    if len(users) != 1:
        raise NanoEulerError(f"a submission must have one student, got {', '.join(names) or 'none'}")
    email = str(users[0].get("email") or "")
    for spelling in (email, email.partition("@")[0], names[0]):
        found = known.matches(spelling) if roster.fold(spelling) else []
        if len(found) == 1:
            return found[0].name
    raise NanoEulerError(f"{short(names[0])} must be on the list of students exactly once: ask your instructor")


def _test(name: str, score: float, of: float, said: str) -> dict:
    status = "passed" if score == of else "failed"
    return {"name": name, "score": score, "max_score": of, "status": status, "output": said}


def notebook(chapter: str, folder: Path, root: Path, user: str) -> dict:
    """Grade a notebook with one test per check, which students see at once. Written answers are not included.

    Raises NanoEulerError if the notebook cannot be run within the limits.
    """
    tree = root / "nanoeuler"
    course = tree / "_build" / "assignments"
    (release,) = (course / "release" / chapter).glob("*.ipynb")
    asked = [
        (exercise, cell)
        for exercise, _, cell in feedback.exercises(nbformat.read(release, as_version=4).cells)
        if cell.cell_type == "code"
    ]
    home = tree / "_build"
    for path in [folder.parent, *folder.parent.rglob("*")] if user else ():
        shutil.chown(path, user)
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.course.autograde", chapter, str(folder.parent)],
        cwd=tree, stdin=subprocess.DEVNULL, start_new_session=True, **papers.as_user(user),
        env=os.environ | {"HOME": str(home), "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    try:
        process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        raise NanoEulerError(f"the notebook did not finish within {SECONDS // 60} minutes") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        papers.end_processes(user)
    row = autograde.earlier(course / f"grades-{chapter}.csv").get(STUDENT)
    if process.returncode == -signal.SIGKILL:
        raise NanoEulerError("the notebook ended the grading program, or used up the memory")
    if row is None:
        raise RuntimeError(f"tools.course.autograde ended with code {process.returncode}")
    if not autograde.ran(row):
        raise NanoEulerError(row["remark"])
    ran = autograde.place(course, "autograded", STUDENT, chapter) / release.name
    cells = nbformat.read(ran, as_version=4).cells if ran.is_file() and not ran.is_symlink() else []
    checks = {mark(cell): (cell, answer) for _, answer, cell in feedback.exercises(cells)}
    tests = []
    for exercise, cell in asked:
        name, of = mark(cell), cell.metadata.nbgrader.points
        score = min(max(float(row.get(name.removesuffix("-check")) or 0), 0), of)
        checked, answer = checks.get(name, (None, None))
        said = feedback.sentence(checked, answer if score < of else None) if checked else ""
        tests.append(_test(exercise, score, of, said or row["remark"] or "This check did not run."))
    return {"output": row["remark"], "tests": tests}


def main(words: list[str]) -> None:
    if len(words) == 1:  # in the container
        root = Path(words[0])
        found = {"stdout_visibility": "hidden"} | results(root)
        (root / "results" / "results.json").write_text(json.dumps(found, indent=1), "utf-8")
        return
    chapter, *files = words
    if not chapter:
        sys.exit("CH must be given: make gradescope CH=08, with SEED=FILE STUDENTS=FILE for an individual assignment")
    try:
        out = pack(chapter, *(Path(text) if text else None for text in files))
    except (NanoEulerError, OSError) as error:
        sys.exit(str(error))
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
