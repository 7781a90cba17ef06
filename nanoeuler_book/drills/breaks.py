"""Plant one bug in a copy of the package for the reader to find, and run the reader's test (`nanoeuler break`).

    broken-7/
        README.md           figures of a healthy run, the tools, how to hand in
        run.py              a small training run
        test_found.py       where the reader writes the smallest failing test
        nanoeuler_lib/      the copy, with nanoeuler_book next to it; one fragment of one file is replaced
        .planted            the seed and a digest of the bug's name, which identify the bug without naming it

The bugs are listed in `breaks.toml`.
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

ROOT = Path(nanoeuler_lib.__file__).parents[1]  # the folder that holds the packages
COPIED = "nanoeuler_lib", "nanoeuler_book"
SECONDS = 60  # time limit for a reader's test
# the runner's exit codes
ENDS = {10: "passes", 11: "fails", 12: "holds no function whose name begins with test"}


@dataclass(frozen=True)
class Bug:
    """One bug to plant; `breaks.toml` explains the fields."""

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
        """Return the source text of the bug's file with the bug planted.

        Raises NanoEulerError unless the fragment to replace occurs exactly once in the file.
        """
        text = (ROOT / self.file).read_text("utf-8")
        if (times := text.count(self.old)) != 1:
            raise NanoEulerError(f"{self.file}: {self.old!r} must occur once, got {times} times")
        return text.replace(self.old, self.new)


@cache
def texts() -> dict:
    """Return the contents of `breaks.toml`."""
    return tomllib.loads(Path(__file__).with_name("breaks.toml").read_text("utf-8"))


def bugs() -> list[Bug]:
    """Return all bugs, sorted by area."""
    return [Bug(**entry) for entry in texts()["bug"]]


def bug_of(seed: int) -> Bug:
    """Return the bug that belongs to a seed (any integer); neighbouring seeds give bugs far apart in the list."""
    number = len(texts()["bug"])  # the stride, near the golden section of it, spreads neighbouring seeds
    stride = next(stride for stride in range(round(0.618 * number), 2 * number) if gcd(stride, number) == 1)
    return bugs()[seed * stride % number]


def plant(seed: int, out: str | Path | None = None, bug: Bug | None = None) -> Path:
    """Write the drill of a seed into a new folder, by default broken-SEED, and return its path.

    bug: a bug to plant instead of the bug that belongs to the seed. Raises NanoEulerError if the folder exists or
    cannot be written.
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
    """Copy the packages, without weights, stored results and the list of bugs, and plant a bug (None: no bug)."""
    left_out = shutil.ignore_patterns("breaks.*", "__pycache__", "pretrained", "results")
    for package in COPIED:
        shutil.copytree(ROOT / package, out / package, ignore=left_out)
    if bug is not None:
        write_text(out / bug.file, bug.planted())
    for file in out.rglob("*"):
        os.utime(file, (0, 0))  # else the newest file would give the bug away


def _digest(bug):
    return hashlib.sha256(bug.name.encode()).hexdigest()[:16]


def found_in(folder: str | Path) -> tuple[int, Bug]:
    """Return the seed and the bug of a folder that `plant` wrote. Raises NanoEulerError for any other folder."""
    try:
        seed, digest = Path(folder, ".planted").read_text("utf-8").split()
        return int(seed), next(bug for bug in bugs() if _digest(bug) == digest)
    except (OSError, ValueError, StopIteration):
        raise NanoEulerError(f"{folder}: must be made by --seed with this version, got another folder") from None


def hand_in(folder: str | Path, seconds: float = SECONDS) -> tuple[bool, str]:
    """Run the reader's test with the broken copy, where it must fail, and with the correct package, where it must pass.

    folder: the folder that `plant` wrote; seconds: time limit per run. Returns whether both conditions are met, and the
    message to print. Raises NanoEulerError if the folder has no test.
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
    """Run the functions `test...` of a file in a separate process, which imports the packages from folder `parent`.

    Returns the outcome ("passes", "fails" or a sentence) and the last line that the process printed.
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
    """Return the description of a bug: the change, its origin and effect, the tool that finds it, the output of this
    tool, and the smallest failing test."""
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
    """Return the output of `nanoeuler diagnose --tool ...` in a copy with the bug (None: a correct copy)."""
    with tempfile.TemporaryDirectory() as folder:
        _copy(Path(folder), bug)
        command = [sys.executable, "-m", "nanoeuler_lib.command.cli", "diagnose", "--tool", *tools]
        environment = os.environ | {"PYTHONPATH": folder, "PYTHONUTF8": "1"}
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8", env=environment)
    return done.stdout + done.stderr
