"""A student's paper: handed out as a folder, marked by running its answers.py in a process of its own."""

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
from nanoeuler_lib.files import one_line, printable, read_regular, write_text
from tools.course.papers import worker
from tools.course.papers.problems import Problem
from tools.course.roster import canonical, check_name

CHAPTERS = ("03", "04", "05", "06", "07", "08", "10", "11", "14", "20", "25")
POINTS = 10  # of a paper
WALL_SECONDS = 180
LARGEST = 2**26  # bytes of what a student hands in, or a process of the student leaves

README = """# Chapter {chapter}: paper of {student}

Three problems, {points} points. Write the functions in `answers.py`, with NumPy and what comes with Python; other
modules are not there when the paper is marked. `given.py` has the functions that a problem gives you, `examples.npz`
inputs to try yours on, and `python try_answers.py` does so. Hand in `answers.py`.

Your functions take arrays and return arrays; a number is an array without axes. They are called with other arrays than
those of the examples, larger ones among them, in a process that has {seconds} seconds for a problem and {memory} GiB
of memory. What they print is not read. Every student's paper is another one.

{problems}"""

TRY = '''"""Calls each function of answers.py with the inputs in examples.npz, and prints what came back."""

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
        print(f"    found {parts[0]}, the example was made from {examples[name + '/truth']}")
'''


@dataclass(frozen=True)
class Mark:
    """What a problem earned: its points if the sentence is empty, else none."""

    problem: str
    points: int
    of: int
    said: str


# ---- Handing out


def paper(chapter: str, seed: str, student: str) -> list[Problem]:
    """The problems of a student. NanoEulerError for a chapter that has no paper."""
    if chapter not in CHAPTERS:
        raise NanoEulerError(f"chapter is {short(chapter)}, expected one of {', '.join(CHAPTERS)}")
    module = importlib.import_module(f"tools.course.papers.ch{chapter}")
    rng = _generator(chapter, seed, student, "problems")
    return [module.derivation(rng), module.mending(rng), module.measurement(rng)]


def _generator(chapter: str, seed: str, student: str, *words: str) -> np.random.Generator:
    """Numbers that depend on all of the words, and tell nothing of them."""
    text = "\0".join([chapter, seed, canonical(student), *words])
    return np.random.default_rng(list(hashlib.sha256(text.encode()).digest()))


def hand_out(chapter: str, seed: str, student: str, folder: Path) -> None:
    """Write a student's paper into a new folder: README.md, answers.py, given.py, examples.npz, try_answers.py."""
    check_name(student)
    problems = paper(chapter, seed, student)
    if folder.exists():
        raise NanoEulerError(f"{folder} exists, expected a new folder")
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
    """Of each problem one call's inputs, and what a measurement's data was made from."""
    examples = {}
    for problem in problems:
        calls = problem.calls(rng)
        inputs, truth = calls[min(2, len(calls) - 1)]
        examples |= {f"{problem.name}/in{i}": array for i, array in enumerate(inputs)}
        if isinstance(truth, tuple):
            examples[f"{problem.name}/truth"] = np.array(truth)
    return examples


# ---- Marking


def grade(chapter: str, seed: str, student: str, answers: Path, user: str = "") -> list[Mark]:
    """Mark a student's answers.py. Whatever is in the file, this returns. user: as whom it runs, see `check_user`."""
    _hide()
    problems = paper(chapter, seed, student)
    return [
        _mark(problem, _given(problems), answers, _generator(chapter, seed, student, "data", problem.name), user)
        for problem in problems
    ]


def check_user(name: str) -> None:
    """NanoEulerError unless answers can run here, and as this user, if one is named: `run` ends all its processes."""
    if os.name == "nt":
        raise NanoEulerError("papers must be marked on Linux or macOS, got Windows: use WSL")
    if not name:
        return
    if not Path("/proc/self").exists():
        raise NanoEulerError(
            f"--user must be left out on a system without /proc, got {name}: its other processes would be ended unseen"
        )
    import pwd

    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        raise NanoEulerError(f"user is {short(name)}, expected one that this machine knows") from None
    if os.geteuid() != 0:
        raise NanoEulerError(f"user is {name}, and another user can be chosen by root alone")
    if uid == 0 or any(_owner(process) == uid for process in Path("/proc").glob("[0-9]*")):
        raise NanoEulerError(f"{name} has processes of its own, expected a user that has none")
    probe = "import sys, numpy; open(sys.argv[1])"
    try:
        command = [sys.executable, "-I", "-c", probe, worker.__file__]
        done = subprocess.run(command, capture_output=True, cwd="/", **as_user(name)).returncode == 0
    except OSError:
        done = False
    if not done:
        raise NanoEulerError(
            f"{name} cannot run {sys.executable}, expected Python and the library in folders open to everybody"
        )


def _owner(process: Path) -> int:
    with suppress(OSError):
        return process.stat().st_uid
    return -1


def as_user(user: str) -> dict:
    """The arguments by which subprocess runs something as a user."""
    import pwd

    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}


def end_processes(user: str) -> None:
    """End every process of a user, those too that left their session."""
    if user:
        command = [sys.executable, "-I", "-c", "import os; os.kill(-1, 9)"]
        subprocess.run(command, stderr=subprocess.DEVNULL, cwd="/", **as_user(user))


def _hide() -> None:
    """Let no process of the same user read this one's memory, where the seed is: Linux alone can."""
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
    except Exception as error:  # a full disk, a folder too deep to remove: others are marked nevertheless
        sentence = f"it could not be marked ({type(error).__name__})"
    return Mark(problem.name, 0 if sentence else problem.points, problem.points, sentence)


def run(function: str, calls: list, given: str, answers: Path, user: str = "") -> tuple[list[list[np.ndarray]], str]:
    """Call a function of a student's file in a process of its own: the arrays of each call, or why there are none."""
    with tempfile.TemporaryDirectory(prefix="nanoeuler-") as name:
        box = Path(name)
        try:
            (box / "answers.py").write_bytes(read_regular(answers, LARGEST))
        except NanoEulerError:
            return [], "there is no answers.py that can be read"
        (box / "given.py").write_text(given)
        inputs, results = box / "calls.npz", box / "results.npz"
        np.savez(inputs, **{f"{n}/{i}": a for n, call in enumerate(calls) for i, a in enumerate(call)})
        program = Path(worker.__file__).resolve()
        command = [sys.executable, "-I", "-B", program, function, inputs.name, results.name]
        for path in [box, *box.iterdir()] if user else ():
            shutil.chown(path, user)
        threads = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        process = subprocess.Popen(
            command, cwd=box, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, env={"PATH": os.defpath, "HOME": name, "TMPDIR": name} | threads, **as_user(user),
        )  # fmt: skip
        try:
            code = process.wait(WALL_SECONDS)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        with suppress(ProcessLookupError, PermissionError):  # it, and what it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        end_processes(user)
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return [], f"no end after {worker.CPU_SECONDS} seconds of the processor, or {WALL_SECONDS} in all"
        return _read(results, len(calls), code)


def _read(results: Path, count: int, code: int) -> tuple[list[list[np.ndarray]], str]:
    """The arrays that a student's process left: a file from somebody else, which may hold anything."""
    try:
        with np.load(io.BytesIO(read_regular(results, LARGEST)), allow_pickle=False) as file:
            items = file.zip.infolist()
            if any(item.compress_type for item in items) or sum(item.file_size for item in items) > LARGEST:
                raise ValueError("it unpacks to more than was written")
            if "error" in file:
                return [], one_line(str(file["error"]), 240)
            names, returned = set(file.files), []
            for n in range(count):
                keys = itertools.takewhile(names.__contains__, (f"{n}/{i}" for i in itertools.count()))
                returned.append(worker.arrays_of(tuple(file[key] for key in keys)))
    except Exception:  # whatever a spoilt file makes them raise
        return [], f"its process ended without a result (exit code {code})"
    return returned, "" if all(returned) else "not every call returned something"


# ---- The table of a class


def columns(problems: list[Problem]) -> list[str]:
    """The columns of marks.csv."""
    names = [problem.name for problem in problems]
    wrong = [f"{name}: what was wrong" for name in names]
    return ["student", "points", "of", "late days", "remark", *names, *wrong, "fingerprint"]


def row(problems: list[Problem], marks: list[Mark]) -> dict:
    """What a student's row of marks.csv says of the marks; without any it is the row of who handed in nothing."""
    made = dict.fromkeys(columns(problems), "") | {problem.name: 0 for problem in problems}
    made |= {mark.problem: mark.points for mark in marks}
    made |= {f"{mark.problem}: what was wrong": mark.said for mark in marks}
    return made | {"points": sum(m.points for m in marks), "of": sum(p.points for p in problems)}


def marks_in(problems: list[Problem], row: dict) -> list[dict]:
    """The marks in a row, none of who handed in nothing."""
    return [
        vars(Mark(p.name, row[p.name], p.points, row[f"{p.name}: what was wrong"]))
        for p in problems
        if row["fingerprint"]
    ]


def fingerprint(chapter: str, seed: str, student: str, answers: Path) -> str:
    """What tells whether a student's answers have been marked; "" if they cannot be read."""
    text = "\0".join([chapter, seed, canonical(student), ""])
    with suppress(NanoEulerError):
        return hashlib.sha256(text.encode() + read_regular(answers, LARGEST)).hexdigest()[:16]
    return ""


def read_marks(path: Path, problems: list[Problem]) -> dict[str, dict]:
    """The rows of marks.csv by student, none if there is no such file."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
            for found in rows:
                if list(found) != columns(problems):
                    raise ValueError("its columns are others")
                for name in ("points", *(problem.name for problem in problems)):
                    found[name] = json.loads(found[name])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise NanoEulerError(f"{path}: must be the table of an earlier marking, got another ({error})") from None
    return {found["student"]: found for found in rows}


def write_marks(path: Path, problems: list[Problem], rows: list[dict]) -> None:
    """Write marks.csv anew, as a whole or not at all."""
    table = io.StringIO()
    writer = csv.DictWriter(table, columns(problems))
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in found.items()} for found in rows)
    write_text(path, table.getvalue())


def page(chapter: str, student: str, marks: list[Mark]) -> str:
    """A page to hand back."""
    lines = [f"{m.problem}: {m.points} of {m.of}. {m.said or 'Right.'}" for m in marks]
    points = f"{sum(m.points for m in marks)} of {sum(m.of for m in marks)} points"
    return printable(f"Chapter {chapter}, {student}: {points}\n\n" + "\n".join(lines) + "\n")


def cell(value: object) -> object:
    """A value that a spreadsheet takes for what it is: a student's error may begin like a formula."""
    if not isinstance(value, str):
        return value
    return "'" + printable(value) if re.match(r"[=+\-@\t\r]", value) else printable(value)
