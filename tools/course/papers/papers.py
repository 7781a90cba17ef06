"""Individual assignments: write a student's folder, and grade the student's answers.py in a separate process.

In code and file names, an individual assignment is called a paper, and its points are called marks.
"""

import csv
import ctypes
import hashlib
import importlib
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import one_line, printable, write_text
from tools.course.papers import worker
from tools.course.papers.problems import Problem
from tools.course.roster import canonical, check_name, read_regular

CHAPTERS = ("02", "03", "05", "06", "07", "08", "10", "11", "14", "20", "25")
SEEDS = {"02": "03", "03": "04"}  # numbers that these chapters had when assignments were first handed out
POINTS = 10  # maximum of an assignment
WALL_SECONDS = 180
LARGEST = 2**26  # bytes; limit for a submitted file, and for the results that its process writes

README = """# Chapter {chapter}: assignment for {student}

There are three problems with {points} points in all. Write your functions in `answers.py`. You may use NumPy and
Python's standard library, because other modules cannot be imported when your answers are graded. `given.py` has the
functions that a problem gives you, and `examples.npz` has example inputs. `python try_answers.py` calls your functions
with these inputs. Hand in `answers.py`.

Your functions take arrays and return arrays; a number is an array without axes. The grader calls them with different
arrays, some of them larger than the examples, in a process that has {seconds} seconds per problem and {memory} GiB of
memory. It ignores what they print. Every student has a different assignment.

{problems}"""

TRY = '''"""Call each function of answers.py with the inputs in examples.npz, and print what it returns."""

import time

import answers
import numpy as np

with np.load("examples.npz") as file:
    examples = {key: file[key] for key in file.files}
for name in sorted({key.partition("/")[0] for key in examples}):
    keys = sorted(key for key in examples if key.startswith(name + "/") and "/in" in key)
    began = time.perf_counter()
    result = getattr(answers, name)(*(examples[key] for key in keys))
    parts = result if isinstance(result, tuple) else (result,)
    said = ", ".join("None: not written yet" if p is None else f"{np.asarray(p).dtype} {np.shape(p)}" for p in parts)
    print(f"{name}: {said}, {time.perf_counter() - began:.2f} s")
    if f"{name}/truth" in examples:
        print(f"    your result is {parts[0]}, the example was made from {examples[name + '/truth']}")
'''


@dataclass(frozen=True)
class Mark:
    """The points of a problem: all points if `said` is ""; else 0 points, and `said` describes the error."""

    problem: str
    points: int
    of: int
    said: str


# ---- Handing out


def paper(chapter: str, seed: str, student: str) -> list[Problem]:
    """Generate a student's three problems. Raises NanoEulerError if the chapter has no individual assignment."""
    if chapter not in CHAPTERS:
        raise NanoEulerError(f"CHAPTER must be one of {', '.join(CHAPTERS)}, got {short(chapter)}")
    module = importlib.import_module(f"tools.course.papers.ch{chapter}")
    rng = _generator(chapter, seed, student, "problems")
    return [module.derivation(rng), module.mending(rng), module.measurement(rng)]


def _generator(chapter: str, seed: str, student: str, *words: str) -> np.random.Generator:
    """Return a random generator seeded by a hash of all arguments; its numbers do not reveal the arguments."""
    text = "\0".join([SEEDS.get(chapter, chapter), seed, canonical(student), *words])
    return np.random.default_rng(list(hashlib.sha256(text.encode()).digest()))


def hand_out(chapter: str, seed: str, student: str, folder: Path) -> None:
    """Write a student's assignment into a new folder: README.md, answers.py, given.py, examples.npz, try_answers.py.

    Raises NanoEulerError for a chapter without an assignment, a name that cannot be a folder's, or an existing folder.
    """
    check_name(student)
    problems = paper(chapter, seed, student)
    if folder.exists():
        raise NanoEulerError(f"{folder}: exists already, expected a new folder")
    folder.mkdir(parents=True)
    texts = [
        f"## {i}. {p.title} ({p.points} points)\n\n{p.statement}\n\nWrite `{p.name}`.\n"
        for i, p in enumerate(problems, 1)
    ]
    head = {"seconds": worker.CPU_SECONDS, "memory": worker.MEMORY // 2**30, "points": sum(p.points for p in problems)}
    write_text(folder / "README.md", README.format(chapter=chapter, student=student, problems="\n".join(texts), **head))
    write_text(folder / "answers.py", "\n\n".join(["import numpy as np\n", *(p.contract for p in problems)]))
    write_text(folder / "given.py", _given(problems))
    write_text(folder / "try_answers.py", TRY)
    np.savez_compressed(folder / "examples.npz", **_examples(problems, _generator(chapter, seed, student, "examples")))


def _given(problems: list[Problem]) -> str:
    return "\n\n".join(["import numpy as np\n", *(p.given.strip() + "\n" for p in problems if p.given)])


def _examples(problems: list[Problem], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return example inputs for each problem, and the numbers from which the data of a measurement was made."""
    examples = {}
    for problem in problems:
        calls = problem.calls(rng)
        inputs, truth = calls[min(2, len(calls) - 1)]
        examples |= {f"{problem.name}/in{i}": array for i, array in enumerate(inputs)}
        if isinstance(truth, tuple):
            examples[f"{problem.name}/truth"] = np.array(truth)
    return examples


# ---- Grading


def grade(chapter: str, seed: str, student: str, answers: Path, user: str = "") -> list[Mark]:
    """Grade a student's answers.py with one mark per problem. Any content of the file leads to a normal return.

    user: the system user that runs the student's code, see `check_user`; "" for the current one.
    """
    _hide()
    problems = paper(chapter, seed, student)
    return [
        _mark(problem, _given(problems), answers, _generator(chapter, seed, student, "data", problem.name), user)
        for problem in problems
    ]


def check_user(name: str) -> None:
    """Raise NanoEulerError if answers cannot run on this system, or not as the user `name` ("": the current user).

    The user must have no running processes, because `run` ends all of the user's processes.
    """
    if os.name == "nt":
        raise NanoEulerError("assignments must be graded on Linux or macOS, got Windows: use WSL")
    if not name:
        return
    if not Path("/proc/self").exists():
        raise NanoEulerError(
            f"--user must be left out on a system without /proc, got {name}: its processes cannot be checked"
        )
    import pwd

    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        raise NanoEulerError(f"--user must be an account of this machine, got {short(name)}") from None
    if os.geteuid() != 0:
        raise NanoEulerError(f"--user must be left out unless you are root, got {name}")
    if uid == 0 or any(_owner(process) == uid for process in Path("/proc").glob("[0-9]*")):
        raise NanoEulerError(f"--user must have no running processes, got {name}, which has some")
    probe = "import sys, numpy; open(sys.argv[1])"
    try:
        command = [sys.executable, "-I", "-c", probe, worker.__file__]
        done = subprocess.run(command, capture_output=True, cwd="/", **as_user(name)).returncode == 0
    except OSError:
        done = False
    if not done:
        raise NanoEulerError(
            f"--user must be able to run {sys.executable}, got {name}: keep Python and the library where all may read"
        )


def _owner(process: Path) -> int:
    with suppress(OSError):
        return process.stat().st_uid
    return -1


def as_user(user: str) -> dict:
    """Return the keyword arguments with which subprocess runs a command as a user, or {} if the name is ""."""
    import pwd

    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}


def end_processes(user: str) -> None:
    """End every process of a user, including processes that left their session."""
    if user:
        command = [sys.executable, "-I", "-c", "import os; os.kill(-1, 9)"]
        subprocess.run(command, stderr=subprocess.DEVNULL, cwd="/", **as_user(user))


def _hide() -> None:
    """Prevent the user's other processes from reading this process's memory, which has the seed (Linux only)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def _mark(problem: Problem, given: str, answers: Path, rng: np.random.Generator, user: str) -> Mark:
    calls = problem.calls(rng)
    try:
        results, sentence = run(problem.name, [inputs for inputs, _ in calls], given, answers, user)
        for number, (inputs, truth) in enumerate(calls if not sentence else []):
            with np.errstate(all="ignore"):
                sentence = problem.judge(inputs, truth, results[number])
            if sentence:
                sentence = f"call {number + 1} of {len(calls)}: {sentence}"
                break
    except Exception as error:  # for example a full disk; the other problems and students are still graded
        sentence = f"this problem could not be graded ({type(error).__name__})"
    return Mark(problem.name, 0 if sentence else problem.points, problem.points, sentence)


def run(function: str, calls: list, given: str, answers: Path, user: str = "") -> tuple[list[list[np.ndarray]], str]:
    """Call a function of a student's file in a separate process.

    calls: the arguments of each call. given: the source of given.py. Returns the arrays of each call and "", or an
    empty list and the reason.
    """
    with tempfile.TemporaryDirectory(prefix="nanoeuler-") as name:
        box = Path(name)
        try:
            (box / "answers.py").write_bytes(read_regular(answers, LARGEST))
        except NanoEulerError:
            return [], "answers.py is missing or cannot be read"
        (box / "given.py").write_text(given, "utf-8")
        inputs, results = box / "calls.npz", box / "results.npz"
        np.savez(inputs, **{f"{n}/{i}": a for n, call in enumerate(calls) for i, a in enumerate(call)})
        program = Path(worker.__file__).resolve()
        command = [sys.executable, "-I", "-B", program, function, inputs.name, results.name]
        for path in [box, *box.iterdir()] if user else ():
            shutil.chown(path, user)
        threads = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")}
        process = subprocess.Popen(
            command, cwd=box, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, env={"PATH": os.defpath, "HOME": name, "TMPDIR": name} | threads, **as_user(user),
        )  # fmt: skip
        try:
            code = process.wait(WALL_SECONDS)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        with suppress(ProcessLookupError, PermissionError):  # end the process, and the processes that it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        end_processes(user)
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return [], f"no end after {worker.CPU_SECONDS} seconds of processor time, or {WALL_SECONDS} seconds in all"
        return _read(results, len(calls), code)


def _read(results: Path, count: int, code: int) -> tuple[list[list[np.ndarray]], str]:
    """Read the arrays that a student's process wrote. The student's code can put anything into this file."""
    try:
        with np.load(io.BytesIO(read_regular(results, LARGEST)), allow_pickle=False) as file:
            items = file.zip.infolist()
            if any(item.compress_type for item in items) or sum(item.file_size for item in items) > LARGEST:
                raise ValueError("the unpacked file is too large")
            if "error" in file:
                return [], one_line(str(file["error"]), 240)
            names, returned = set(file.files), []
            for n in range(count):
                keys = itertools.takewhile(names.__contains__, (f"{n}/{i}" for i in itertools.count()))
                returned.append(worker.arrays_of(tuple(file[key] for key in keys)))
    except Exception:  # a forged file can raise errors of many types
        return [], f"the process ended without a result (exit code {code})"
    return returned, "" if all(returned) else "not every call returned a result"


# ---- The table of a class


def columns(problems: list[Problem]) -> list[str]:
    """Return the names of the columns of marks.csv."""
    names = [problem.name for problem in problems]
    wrong = [f"{name}: what was wrong" for name in names]
    return ["student", "points", "of", "late days", "remark", *names, *wrong, "fingerprint"]


def row(problems: list[Problem], marks: list[Mark]) -> dict:
    """Return a student's row of marks.csv; a student without marks has handed in nothing."""
    made = dict.fromkeys(columns(problems), "") | {problem.name: 0 for problem in problems}
    made |= {mark.problem: mark.points for mark in marks}
    made |= {f"{mark.problem}: what was wrong": mark.said for mark in marks}
    return made | {"points": sum(m.points for m in marks), "of": sum(p.points for p in problems)}


def marks_in(problems: list[Problem], row: dict) -> list[dict]:
    """Return the marks in a row of marks.csv as dicts, or [] if the student handed in nothing."""
    return [
        vars(Mark(p.name, row[p.name], p.points, row[f"{p.name}: what was wrong"]))
        for p in problems
        if row["fingerprint"]
    ]


def fingerprint(chapter: str, seed: str, student: str, answers: Path) -> str:
    """Return a hash that tells whether these answers have been graded before; "" if they cannot be read."""
    text = "\0".join([SEEDS.get(chapter, chapter), seed, canonical(student), ""])
    with suppress(NanoEulerError):
        return hashlib.sha256(text.encode() + read_regular(answers, LARGEST)).hexdigest()[:16]
    return ""


def read_marks(path: Path, problems: list[Problem]) -> dict[str, dict]:
    """Read the rows of marks.csv, by student; return an empty dict if there is no such file.

    Raises NanoEulerError if the file is not a table of these problems.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
            for found in rows:
                if list(found) != columns(problems):
                    raise ValueError("different columns")
                for name in ("points", *(problem.name for problem in problems)):
                    found[name] = json.loads(found[name])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise NanoEulerError(
            f"{path}: must be a table from grading the same problems, got a different file ({error})"
        ) from None
    return {found["student"]: found for found in rows}


def write_marks(path: Path, problems: list[Problem], rows: list[dict]) -> None:
    """Write marks.csv completely, or keep the old file if writing fails."""
    table = io.StringIO()
    writer = csv.DictWriter(table, columns(problems))
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in found.items()} for found in rows)
    write_text(path, table.getvalue())


def page(chapter: str, student: str, marks: list[Mark]) -> str:
    """Return the text of the page that the student gets back."""
    lines = [f"{m.problem}: {m.points} of {m.of}. {m.said or 'Right.'}" for m in marks]
    points = f"{sum(m.points for m in marks)} of {sum(m.of for m in marks)} points"
    return printable(f"Chapter {chapter}, {student}: {points}\n\n" + "\n".join(lines) + "\n")


def cell(value: object) -> object:
    """Return a table cell that no spreadsheet reads as a formula: a student's error message may begin with "="."""
    if not isinstance(value, str):
        return value
    return "'" + printable(value) if re.match(r"[=+\-@\t\r]", value) else printable(value)
