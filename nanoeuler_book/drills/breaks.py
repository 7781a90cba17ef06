"""Bugs to find: a copy of the package with one bug in it, a small run that suffers from it, and the reader's test.

    broken-7/
        README.md           what a healthy run prints, the tools, how to hand in
        run.py              a small training run
        test_found.py       where the reader writes the smallest failing test
        nanoeuler_lib/      the copy, and beside it that of nanoeuler_book; one fragment of one file is replaced
        .planted            the seed, and a digest of the bug's name: enough to reveal it, and nothing to read

The bugs are data, in `breaks.toml`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from dataclasses import dataclass
from difflib import unified_diff
from functools import cache
from math import gcd
from pathlib import Path

import nanoeuler_lib
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import write_text

ROOT = Path(nanoeuler_lib.__file__).parents[1]  # of the packages
COPIED = "nanoeuler_lib", "nanoeuler_book"
SECONDS = 60  # a reader's test may take so long
# the runner's exit codes
ENDS = {10: "passes", 11: "fails", 12: "holds no function whose name begins with test"}


@dataclass(frozen=True)
class Bug:
    """One planted bug; `breaks.toml` says what the fields mean."""

    name: str
    area: str
    file: str
    old: str
    new: str
    visible: str
    tool: str
    story: str
    effect: str
    test: str

    def planted(self) -> str:
        """The text of its file with the bug in it."""
        text = (ROOT / self.file).read_text("utf-8")
        if (times := text.count(self.old)) != 1:
            raise NanoEulerError(f"{self.file}: {self.old!r} stands there {times} times, expected 1")
        return text.replace(self.old, self.new)


@cache
def texts() -> dict:
    """What `breaks.toml` holds."""
    return tomllib.loads(Path(__file__).with_name("breaks.toml").read_text("utf-8"))


def bugs() -> list[Bug]:
    """All bugs, by area."""
    return [Bug(**entry) for entry in texts()["bug"]]


def bug_of(seed: int) -> Bug:
    """The bug of a seed, any whole number. Steps of the golden section put the bugs of neighbouring seeds far apart."""
    number = len(texts()["bug"])
    stride = next(stride for stride in range(round(0.618 * number), 2 * number) if gcd(stride, number) == 1)
    return bugs()[seed * stride % number]


def plant(seed: int, out: str | Path | None = None, bug: Bug | None = None) -> Path:
    """Make the folder of a seed, by default broken-SEED. Returns its path.

    bug: another one than the seed's. Raises NanoEulerError if the folder exists or cannot be written.
    """
    out, bug, files = Path(out or f"broken-{seed}"), bug or bug_of(seed), dict(texts()["folder"])
    if out.exists():
        raise NanoEulerError(f"{out}: exists already, expected a new folder")
    table = "".join(f"| {name} | {mean:g} | {apart:g} |\n" for name, (mean, apart) in texts()["healthy"].items())
    files["README.md"] = files["README.md"].format(seed=seed, figures=table, out=out)
    files[".planted"] = f"{seed} {_digest(bug)}\n"
    try:
        _copy(out, bug)
        for name, text in files.items():
            write_text(out / name, text)
    except OSError as error:
        raise NanoEulerError(f"{out}: cannot be written ({error.strerror})") from None
    return out


def _copy(out, bug):
    """Copy the packages without weights, stored results and the list of bugs; `bug` None: sound."""
    left_out = shutil.ignore_patterns("breaks.*", "__pycache__", "pretrained", "results")
    for package in COPIED:
        shutil.copytree(ROOT / package, out / package, ignore=left_out)
    if bug is not None:
        write_text(out / bug.file, bug.planted())
    for file in out.rglob("*"):
        os.utime(file, (0, 0))  # the newest file would tell


def _digest(bug):
    return hashlib.sha256(bug.name.encode()).hexdigest()[:16]


def found_in(folder: str | Path) -> tuple[int, Bug]:
    """The seed and the bug of a folder that `plant` made. Raises NanoEulerError on any other."""
    try:
        seed, digest = Path(folder, ".planted").read_text("utf-8").split()
        return int(seed), next(bug for bug in bugs() if _digest(bug) == digest)
    except (OSError, ValueError, StopIteration):
        raise NanoEulerError(f"{folder}: no broken copy of this version, expected a folder made by --seed") from None


def hand_in(folder: str | Path, seconds: float = SECONDS) -> tuple[bool, str]:
    """Run the reader's test against the broken copy, where it must fail, and the sound package, where it must pass.

    Returns whether both held, and what to say. Raises NanoEulerError when there is no test.
    """
    _, bug = found_in(folder)
    test = Path(folder) / "test_found.py"
    if not test.is_file():
        raise NanoEulerError(f"{test}: no such file, expected the test to hand in")
    text = test.read_text("utf-8", "replace")
    broken, sound = (run_test(test, parent, seconds) for parent in (Path(folder), ROOT))
    verdict = texts()["verdict"].get(f"{broken[0]}, {sound[0]}", "It has to fail or to pass, in both.")
    if right := verdict == "Found.":
        lines = [sum(bool(line.strip()) for line in x.splitlines()) for x in (text, bug.test)]
        verdict += f" {lines[0]} lines; the book's test has {lines[1]} (nanoeuler break --reveal {folder})."
        if "diagnose" in text:
            right, verdict = (False, "It asks the tool: write what the tool looks at, and what you expect there.")
    ends = [f"{end}: {last}" if last and end == "fails" else end for end, last in (broken, sound)]
    return right, f"broken copy, must fail:    {ends[0]}\nsound package, must pass:  {ends[1]}\n{verdict}"


def run_test(test: Path, parent: Path, seconds: float = SECONDS) -> tuple[str, str]:
    """Run the functions `test...` of a file in a process of its own, which imports the package from folder `parent`.

    Returns how that ends, "passes", "fails" or in other words, and the last line that it printed.
    """
    path = os.pathsep.join([str(parent.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-c", texts()["runner"], str(test.resolve())]
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryDirectory() as elsewhere:
        try:
            code = subprocess.run(
                command, cwd=elsewhere, timeout=seconds, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed,
                env=os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"does not end within {seconds:g} seconds", ""
        printed.seek(0)
        lines = printed.read().decode("utf-8", "replace").strip().splitlines()
    return ENDS.get(code, f"ends the process with code {code}"), lines[-1] if lines else ""


def reveal(bug: Bug) -> str:
    """All about a bug: what was changed, its story, the tool that sees it and what it prints, the smallest test."""
    before, name = (ROOT / bug.file).read_text("utf-8"), bug.file
    pair = before.splitlines(), bug.planted().splitlines()
    return texts()["reveal"].format(
        bug=bug,
        changed="\n".join(unified_diff(*pair, f"sound/{name}", f"broken/{name}", lineterm="")),
        story=textwrap.fill(bug.story, 100),
        effect=textwrap.fill(bug.effect, 100),
        shows=texts()["visible"][bug.visible],
        printed=tool_output(bug, bug.tool),
    )


def tool_output(bug: Bug | None, *tools: str) -> str:
    """What `nanoeuler diagnose` prints in a copy with the bug."""
    with tempfile.TemporaryDirectory() as folder:
        _copy(Path(folder), bug)
        command = [sys.executable, "-m", "nanoeuler_lib.command.cli", "diagnose", "--tool", *tools]
        environment = os.environ | {"PYTHONPATH": folder, "PYTHONUTF8": "1"}
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8", env=environment)
    return done.stdout + done.stderr
