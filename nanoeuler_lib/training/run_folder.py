"""Functions for the folder of a run: its lock, its checkpoints and its log, and the cleanup after a killed process.

    run/
        run.json            settings, data, machine
        settings.toml       options of the command that began the run, for --config
        log.jsonl           a line for each step, validation, sample and warning
        checkpoints/step-000500/ ...
        checkpoints/best/   the checkpoint with the lowest validation loss, without the optimiser's state
        lock                held while a process writes here

All kinds of runs use the same folder: `loop` and `journal` write to it, `report` reads it.
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

# Files that may remain if a process is killed before its first checkpoint, and the names of unfinished files.
BEGUN = {"lock", "run.json", "settings.toml", "checkpoints", "reference.safetensors"}
PARTIAL = re.compile(r"\.(run\.json|settings\.toml|log\.jsonl)(\.\d+)?\.partial")

KEEP = 2  # number of latest checkpoints that are kept


def save(run: Path, state: checkpoint.Checkpoint, step: int) -> None:
    """Write a run's checkpoint of a step, and remove the oldest one if it is no longer kept."""
    path = folder_of(run, step)
    checkpoint.save(path, state.model, state.tokenizer, step, state.train, state.optimizer, state.info)
    prune(run, state.train.keep_every if state.train else 0)


def folder_of(run: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step."""
    return run / "checkpoints" / f"step-{step:06d}"


def drop(run: Path, step: int) -> None:
    """Remove the checkpoint of a step, unless the run has no other."""
    if len(checkpoint.folders(run)) > 1:
        checkpoint.remove(folder_of(run, step))


def write_tensors(file: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write tensors to a safetensors file. Raises NanoEulerError if it cannot be written."""
    with writing(file):
        save_file(dict(tensors), file)


def read_tensors(file: Path, expected: str) -> dict[str, np.ndarray]:
    """Read the tensors that `write_tensors` wrote. Raises NanoEulerError, which names `expected`, if that fails."""
    try:
        return load_file(file)
    except (OSError, SafetensorError, ValueError) as error:
        raise NanoEulerError(f"{file}: cannot be read ({one_line(str(error), 200)}), expected {expected}") from None


def save_best(run: Path, state: checkpoint.Checkpoint, step: int) -> None:
    """Write the model after this step as the run's best checkpoint, without the optimiser's state."""
    path = run / "checkpoints" / checkpoint.BEST
    checkpoint.save(path, state.model, state.tokenizer, step, state.train, None, state.info)


def best(run: Path) -> float | None:
    """Return the validation loss of a run's best checkpoint; None if there is none or it cannot be read."""
    try:
        info = checkpoint.read_head(run / "checkpoints" / checkpoint.BEST)["info"]
        return info.get(measured(info))
    except NanoEulerError:
        return None


def prune(run: Path, keep_every: int = 0) -> None:
    """Remove the checkpoint before the last `KEEP`, unless its step is a multiple of `keep_every` (0: never)."""
    for old in checkpoint.folders(run)[:-KEEP][-1:]:
        if not keep_every or checkpoint.step_of(old) % keep_every:
            checkpoint.remove(old)


def expect_new(run: Path) -> None:
    """Raise NanoEulerError unless a run can begin in this folder: it is missing, or empty, and can be written to.

    Files of a run that was killed before its first checkpoint are ignored, as is `nanoeuler import`'s empty log.
    """
    try:
        names = os.listdir(run)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        new = not os.path.lexists(run)
    except OSError as error:
        raise NanoEulerError(f"{run}: cannot be read ({error.strerror}): choose a new folder") from None
    else:
        kept = checkpoint.folders(run) or (run / "checkpoints" / checkpoint.BEST).exists()
        log = run / "log.jsonl"
        begun = BEGUN | {log.name} if log.is_file() and not log.stat().st_size else BEGUN
        new = all(name in begun or PARTIAL.fullmatch(name) for name in names) and not kept
    if not new:
        hint = f", or continue the run with --resume {run}" if checkpoint.folders(run) else ""
        raise NanoEulerError(f"{run}: must be a new or an empty folder, got an existing one: choose a new name{hint}")
    expect_writable(run / "lock", parents=True)


@contextmanager
def sole_writer(run: Path) -> Iterator[Callable[[], None]]:
    """Hold the run's lock during the block, and remove what a killed process left unfinished.

    Gives a function that raises NanoEulerError if the folder is gone; raises it too if the folder cannot be locked.
    """
    try:
        file = open(run / "lock", "ab")
    except OSError as error:
        raise NanoEulerError(f"{run}: cannot be written to ({error.strerror}): choose a writable folder") from None

    def still_there():
        if not is_still(file, run / "lock"):
            raise NanoEulerError(f"{run}: was removed or renamed while the run wrote to it")

    with file:
        hold(file, run, "training into this folder")
        _sweep(run)
        yield still_there


def _sweep(run):
    """Remove what a killed process left unfinished. Hold the lock, so that no process is still writing."""
    with suppress(OSError):  # files that cannot be removed do no harm
        checkpoint.sweep(run / "checkpoints")
        for file in run.iterdir():
            if PARTIAL.fullmatch(file.name):
                file.unlink(missing_ok=True)


# ---- The log


@contextmanager
def appending(file: Path, saved: Callable[[], int]) -> Iterator[Callable[[dict], None]]:
    """Give a function that appends an entry to a log as one line, unbuffered, so that it survives a crash.

    saved: returns the last checkpoint's step, for the message. Raises NanoEulerError if the log cannot be written.
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
    """Return the entries of a run's log, in order. Raises NanoEulerError if there is no log or a line is damaged."""
    return list(entries(Path(run) / "log.jsonl"))


def entries(file: Path, faults: list[str] | None = None) -> Iterator[dict]:
    """Yield the entries of a log file. Only line feeds end lines, because texts may contain Unicode's other separators.

    faults: a list to which a message for each damaged line is added; then the line is skipped. Without it, raises
    NanoEulerError at the first damaged line. An incomplete last line, which a crash can leave, is ignored.
    """
    try:
        if file.exists() and not file.is_file():
            raise NanoEulerError(f"{file}: must be a regular file, the log of a run")
        with open(file, "rb") as lines:
            for number, line in enumerate(lines, 1):
                if (entry := _entry(line)) is not None:
                    yield entry
                elif line.endswith(b"\n"):  # a line without line feed is the last one, cut off by a crash
                    fault = f"{file}: line {number} is not a log entry: the file was damaged or edited"
                    if faults is None:
                        raise NanoEulerError(fault)
                    faults.append(fault)
    except OSError as error:
        raise NanoEulerError(f"{file}: cannot be read ({error.strerror}), expected a run's log") from None


def trim_log(file: Path, step: int, last: int | None = None) -> str | None:
    """Remove the log entries after the step of the checkpoint from which a run is resumed.

    last: number of entries of that step to keep (None: all). A damaged log does not stop the run: it is renamed, its
    readable entries are kept in a new log, and a warning is returned. Raises NanoEulerError if it cannot be renamed.
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
            raise NanoEulerError(f"{file}: cannot be renamed ({error.strerror})") from None
        trouble = (
            f"{faults[0]}. It was renamed to {aside.name}, and its {len(readable)} readable entries are kept in a new "
            "log"
        )
    write_text(file, text)
    return trouble


def _free_name(file):
    names = (file.with_name(f"{file.stem}.aside-{n}{file.suffix}") for n in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def _is_number(value):
    return type(value) in (int, float) and abs(value) < 1e300  # false for NaN


ENTRY = {  # name of a value in a log entry -> its kind, in terms of `files.fits`
    **dict.fromkeys("loss rate norm seconds tokens_per_second valid_share seen".split(), _is_number),
    **dict.fromkeys(MEASURES, _is_number), **dict.fromkeys(("sample", "warning", "changed"), str), "step": is_count,
    "valid_sets": {str: _is_number}, "figures": {str: _is_number}, "groups": {str: [_is_number, _is_number]},
}  # fmt: skip


def _entry(line: bytes) -> dict | None:
    """Parse a line of a log; None if it is not a valid entry."""
    try:
        entry = from_json(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    if type(entry) is not dict or "step" not in entry:
        return None
    good = all(fits(entry[name], kind) for name, kind in ENTRY.items() if name in entry)
    return entry if good and ("loss" not in entry or {"rate", "norm", "tokens_per_second"} <= entry.keys()) else None
