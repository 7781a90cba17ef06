"""A student's paper: handed out as a folder, marked by running its answers.py in a process of its own."""

import csv
import ctypes
import hashlib
import importlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import write_text
from nanoeuler_lib.school.assign import worker
from nanoeuler_lib.school.assign.problems import Problem
from nanoeuler_lib.school.roster import canonical, check_name

CHAPTERS = ("03", "04", "05", "06", "07", "08", "10", "11", "14", "20", "25")
POINTS = 10  # of a paper
WALL_SECONDS = 180
LARGEST = 2**28  # bytes of arrays that come back from a problem

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
    module = importlib.import_module(f"nanoeuler_lib.school.assign.ch{chapter}")
    return module.paper(_generator(chapter, seed, student, "problems"))


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
    head = {
        "seconds": worker.CPU_SECONDS,
        "memory": worker.MEMORY // 2**30,
        "points": sum(p.points for p in problems),
    }
    write_text(
        folder / "README.md",
        README.format(chapter=chapter, student=student, problems="\n".join(texts), **head),
    )
    write_text(folder / "answers.py", "\n\n".join(["import numpy as np\n", *(p.contract for p in problems)]))
    write_text(folder / "given.py", _given(problems))
    write_text(folder / "try_answers.py", TRY)
    np.savez_compressed(
        folder / "examples.npz", **_examples(problems, _generator(chapter, seed, student, "examples"))
    )


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
        _mark(
            problem, _given(problems), answers, _generator(chapter, seed, student, "data", problem.name), user
        )
        for problem in problems
    ]


def check_user(name: str) -> None:
    """NanoEulerError unless answers can run as this user, of whom `run` ends every process."""
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
    results, sentence = run(problem.name, [inputs for inputs, _ in calls], given, answers, user)
    for number, (inputs, truth) in enumerate(calls if not sentence else []):
        with np.errstate(all="ignore"):
            sentence = problem.judge(inputs, truth, results[number])
        if sentence:
            sentence = f"call {number + 1} of {len(calls)}: {sentence}"
            break
    return Mark(problem.name, 0 if sentence else problem.points, problem.points, sentence)


def run(
    function: str, calls: list, given: str, answers: Path, user: str = ""
) -> tuple[list[list[np.ndarray]], str]:
    """Call a function of a student's file in a process of its own: the arrays of each call, or why there are none."""
    with tempfile.TemporaryDirectory(prefix="nanoeuler-") as name:
        box = Path(name)
        try:
            shutil.copyfile(answers, box / "answers.py")
        except OSError:
            return [], "there is no answers.py"
        (box / "given.py").write_text(given)
        inputs, results = box / "calls.npz", box / "results.npz"
        np.savez(inputs, **{f"{n}/{i}": a for n, call in enumerate(calls) for i, a in enumerate(call)})
        command = [
            sys.executable,
            "-I",
            "-B",
            str(Path(worker.__file__).resolve()),
            function,
            inputs.name,
            results.name,
        ]
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
        with zipfile.ZipFile(results) as file:
            if sum(item.file_size for item in file.infolist()) > LARGEST:
                return [], f"more than {LARGEST // 2**20} MiB came back"
        with np.load(results, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except Exception:  # whatever a spoilt file makes them raise
        return [], f"its process ended without a result (exit code {code})"
    if "error" in arrays:
        return [], str(arrays["error"])[:240]
    returned = [
        [arrays[f"{n}/{i}"] for i in range(sum(key.startswith(f"{n}/") for key in arrays))]
        for n in range(count)
    ]
    return returned, "" if all(returned) else "not every call returned something"


def write_marks(
    folder: Path, chapter: str, marks: dict[str, list[Mark]], notes: dict[str, tuple] | None = None
):
    """Make a folder with marks.csv, a row for each student, and a page for each to hand back.

    Who handed in nothing has no marks, and no page. notes: for each student the days late and a remark.
    """
    folder.mkdir(parents=True)
    problems = [mark.problem for mark in next((row for row in marks.values() if row), [])]
    rows = [
        [
            "student",
            "points",
            "of",
            "late days",
            "remark",
            *problems,
            *(f"{p}: what was wrong" for p in problems),
        ]
    ]
    for student, row in marks.items():
        points, of = sum(m.points for m in row), sum(m.of for m in row) or POINTS
        late, remark = (notes or {}).get(student, ("", ""))
        head = [_cell(student), points, of, late, _cell(remark)]
        rows.append([*head, *(m.points for m in row), *(_cell(m.said) for m in row)])
        if row:
            lines = [f"{m.problem}: {m.points} of {m.of}. {m.said or 'Right.'}" for m in row]
            page = f"Chapter {chapter}, {student}: {points} of {of} points\n\n" + "\n".join(lines) + "\n"
            write_text(folder / f"{student}.txt", page)
    table = io.StringIO()
    csv.writer(table).writerows(rows)
    write_text(folder / "marks.csv", table.getvalue())


def _cell(text: str) -> str:
    """Text that a spreadsheet takes for text: a student's error may begin like a formula."""
    return "'" + text if re.match(r"[=+\-@\t\r]", text) else text
