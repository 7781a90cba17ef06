"""The folder of a run: who may write there, its log, and what a killed process leaves.

    run/
        run.json            configurations, data, machine
        log.jsonl           a line for each step, validation, sample and warning
        checkpoints/step-000500/ ...
        checkpoints/best/   the one with the lowest validation, without what going on takes
        lock                held while a process writes here

Everything here is true of any run, whatever it learns from: `loop` fills the folder, `report` reads it.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import (
    expect_writable,
    fits,
    from_json,
    hold,
    is_count,
    is_still,
    one_line,
    to_json,
    write_text,
    writing,
)
from nanoeuler_lib.training import checkpoint
from nanoeuler_lib.training.monitor import MEASURES, measured

# What a process may leave that was killed before its first checkpoint, and files that were never finished.
BEGUN = {"lock", "run.json", "checkpoints", "reference.safetensors"}
PARTIAL = re.compile(r"\.(run\.json|log\.jsonl)(\.\d+)?\.partial")

KEEP = 2  # checkpoints kept; older ones are removed


def save(run: Path, state: checkpoint.Checkpoint, step: int) -> None:
    """Write the state of a run as its checkpoint of a step, and remove those that are too old."""
    path = folder_of(run, step)
    checkpoint.save(path, state.model, state.tokenizer, step, state.train, state.optimizer, state.info)
    prune(run, state.train.keep_every if state.train else 0)


def folder_of(run: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return run / "checkpoints" / f"step-{step:06d}"


def drop(run: Path, step: int) -> None:
    """Remove the checkpoint of a step, unless it is the only one."""
    if len(checkpoint.folders(run)) > 1:
        checkpoint.remove(folder_of(run, step))


def write_tensors(file: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write what a run needs beside its checkpoints. Raises NanoEulerError where that cannot be done."""
    with writing(file):
        save_file(dict(tensors), file)


def read_tensors(file: Path, expected: str) -> dict[str, np.ndarray]:
    """What `write_tensors` wrote. Raises NanoEulerError, which says what was expected, where it cannot be read."""
    try:
        return load_file(file)
    except (OSError, SafetensorError, ValueError) as error:
        raise NanoEulerError(f"{file}: cannot be read ({one_line(str(error), 200)}), expected {expected}") from None


def save_best(run: Path, state: checkpoint.Checkpoint, step: int) -> None:
    """Write the model of a run after a step as its best."""
    path = run / "checkpoints" / checkpoint.BEST
    checkpoint.save(path, state.model, state.tokenizer, step, state.train, None, state.info)


def best(run: Path) -> float | None:
    """The validation of the best checkpoint that a run has kept; None: it has none that can be read."""
    try:
        info = checkpoint.read_head(run / "checkpoints" / checkpoint.BEST)["info"]
        return info.get(measured(info))
    except NanoEulerError:
        return None


def prune(run: Path, keep_every: int = 0) -> None:
    """Remove the checkpoint before the last ones, unless it is of every so many steps; earlier ones were kept so."""
    for old in checkpoint.folders(run)[:-KEEP][-1:]:
        if not keep_every or checkpoint.step_of(old) % keep_every:
            checkpoint.remove(old)


def expect_new(run: Path) -> None:
    """Refuse a folder that holds more than a run leaves if it is killed before its first checkpoint, or takes no file.

    An empty log is such a leftover: `import` writes one before its checkpoint.
    """
    try:
        names = os.listdir(run)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        new = not os.path.lexists(run)
    except OSError as error:
        raise NanoEulerError(f"{run}: cannot be looked at ({error.strerror}), expected a new folder") from None
    else:
        kept = checkpoint.folders(run) or (run / "checkpoints" / checkpoint.BEST).exists()
        log = run / "log.jsonl"
        begun = BEGUN | {log.name} if log.is_file() and not log.stat().st_size else BEGUN
        new = all(name in begun or PARTIAL.fullmatch(name) for name in names) and not kept
    if not new:
        hint = f" (or --resume {run})" if checkpoint.folders(run) else ""
        raise NanoEulerError(f"{run}: exists and is not an empty folder, expected a new one{hint}")
    expect_writable(run / "lock", parents=True)


@contextmanager
def sole_writer(run: Path) -> Iterator[Callable[[], None]]:
    """Hold the run's lock, and sweep away what was left half-done. The system frees the lock when the process ends.

    Gives a function that raises NanoEulerError when the folder is no longer there, or another one in its place.
    """
    try:
        file = open(run / "lock", "a")
    except OSError as error:
        raise NanoEulerError(f"{run}: cannot be written to ({error.strerror}), expected a folder to write to") from None

    def still_there():
        if not is_still(file, run / "lock"):
            raise NanoEulerError(f"{run}: the folder was removed or renamed while the run wrote to it")

    with file:
        hold(file, run, "training into this folder")
        _sweep(run)
        yield still_there


def _sweep(run):
    """Remove what a killed process left half-done. Call it with the lock held: then nobody is still at it."""
    with suppress(OSError):  # what cannot be removed does no harm
        checkpoint.sweep(run / "checkpoints")
        for file in run.iterdir():
            if PARTIAL.fullmatch(file.name):
                file.unlink(missing_ok=True)


# ---- The log


@contextmanager
def appending(file: Path, saved: Callable[[], int]) -> Iterator[Callable[[dict], None]]:
    """A function that appends an entry to a log as one line. Unbuffered: what was written survives the process.

    saved: says which step's checkpoint is the last, for the message when the disk is full.
    """
    try:
        log = open(file, "ab", buffering=0)
    except OSError as error:
        raise NanoEulerError(f"{file}: cannot be written ({error.strerror})") from None

    def append(entry):
        line = (to_json(entry) + "\n").encode()
        try:
            written = log.write(line)
        except OSError as error:
            written, reason = 0, error.strerror
        else:
            reason = "No space left on device"
        if written < len(line):
            raise NanoEulerError(f"{file}: cannot be written ({reason}); the checkpoint of step {saved()} is intact")

    with log:
        yield append


def read_log(run: str | Path) -> list[dict]:
    """The entries of a run's log, in order. Raises NanoEulerError when there is none or a line is not an entry."""
    return list(entries(Path(run) / "log.jsonl"))


def entries(file: Path, faults: list[str] | None = None) -> Iterator[dict]:
    """The entries of a log file. Lines end with line feeds only: text may hold all other separators of Unicode.

    faults: takes what is wrong, and the entries that can be read follow. Without it, raises NanoEulerError at the first
    line that is no entry.
    """
    try:
        if file.exists() and not file.is_file():
            raise NanoEulerError(f"{file}: is no regular file, expected a run's log")
        with open(file, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if (entry := _entry(line)) is not None:
                    yield entry
                elif line.endswith(b"\n"):  # else the last line, which a crash cut off
                    fault = f"{file}: line {number} is no entry of a log: damaged or edited"
                    if faults is None:
                        raise NanoEulerError(fault)
                    faults.append(fault)
    except OSError as error:
        raise NanoEulerError(f"{file}: cannot be read ({error.strerror}), expected a run's log") from None


def trim_log(file: Path, step: int, last: int | None = None) -> str | None:
    """Drop what was logged after the checkpoint that a run goes on from.

    last: how many entries of the step itself stay (None: all). A log that cannot be read is no reason not to go on: it
    is set aside, the lines of it that can be read are kept, and what to say about it is returned.
    """
    faults, readable = [], []
    try:
        readable += entries(file, faults) if os.path.lexists(file) else ()
    except NanoEulerError as error:
        faults, readable = [str(error)], []
    kept = [entry for entry in readable if entry["step"] <= step]
    kept = kept if last is None else kept[: sum(entry["step"] < step for entry in kept) + last]
    text, trouble = "".join(to_json(entry) + "\n" for entry in kept), None
    if faults:
        try:
            os.rename(file, aside := _free_name(file))
        except OSError as error:
            raise NanoEulerError(f"{file}: cannot be set aside ({error.strerror})") from None
        trouble = (
            f"{faults[0]}. It is set aside as {aside.name}, and the {len(readable)} entries that can be read go on"
        )
    write_text(file, text)
    return trouble


def _free_name(file):
    names = (file.with_name(f"{file.stem}.aside-{n}{file.suffix}") for n in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def _is_number(value):
    return type(value) in (int, float) and abs(value) < 1e300  # false for NaN


ENTRY = {  # the kinds of what an entry of a log may hold
    **dict.fromkeys("loss rate norm seconds tokens_per_second valid_share seen".split(), _is_number),
    **dict.fromkeys(MEASURES, _is_number), **dict.fromkeys(("sample", "warning", "changed"), str), "step": is_count,
    "valid_sets": {str: _is_number}, "figures": {str: _is_number}, "groups": {str: [_is_number, _is_number]},
}  # fmt: skip


def _entry(line: bytes) -> dict | None:
    """The entry that a line of a log holds, or None."""
    try:
        entry = from_json(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    if type(entry) is not dict or "step" not in entry:
        return None
    good = all(fits(entry[name], kind) for name, kind in ENTRY.items() if name in entry)
    return entry if good and ("loss" not in entry or {"rate", "norm", "tokens_per_second"} <= entry.keys()) else None
