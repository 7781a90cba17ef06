"""Pretraining: from a run folder and a text to a trained model.

    run/
        run.json            configurations, data, machine: written once
        log.jsonl           a line for each step, validation, sample and warning
        checkpoints/step-000500/ ...
        lock                held while a process writes here

A run is a function of its configuration and its number of workers. The batch of step s is drawn from a generator
seeded with (seed, s), so going on from a checkpoint needs no random state: it continues with the same batches as if
it had never stopped. A run folder appears whole, with a checkpoint of step 0, so that there is always one to go on
from, whenever the process is killed.
"""

import json
import math
import os
import platform
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nanoeuler_lib import __version__, checkpoint, data, world
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import write_text
from nanoeuler_lib.generate import generate
from nanoeuler_lib.model import GPT
from nanoeuler_lib.optim import AdamW, learning_rate
from nanoeuler_lib.step import Step, cores, one_blas_thread
from nanoeuler_lib.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.watch import Watch, text_warnings, vitals

try:
    import fcntl
except ImportError:  # Windows: there two runs into one folder are not refused
    fcntl = None

KEEP = 2  # checkpoints kept; older ones are removed


def bits_per_byte(model: GPT, tokens: data.Tokens, rows: int = 8) -> float:
    """Bits that head 0 needs for each byte of a text, every token scored once (`data.validation_rows`)."""
    inputs, targets = data.validation_rows(tokens, model.config.context)
    plans = range(0, len(inputs), rows)
    nats = sum(
        float(model.losses(inputs[i : i + rows], targets[i : i + rows]).sum(dtype=np.float64)) for i in plans
    )
    scored = tokens.lengths[np.where(targets >= 0, targets, 0)] * (targets >= 0)
    return nats / math.log(2) / int(scored.sum())


def train(
    run: str | Path,
    text: str,
    model_config: ModelConfig,
    config: TrainConfig,
    tokenizer: Tokenizer | None = None,
    source: str = "text",
    valid_text: str | None = None,
    quiet: bool = False,
    workers: int | None = None,
    on_entry: Callable[[dict], None] | None = None,
) -> GPT:
    """Train a model on a text and leave a run folder.

    run: a folder that does not hold a run yet; tokenizer: by default one of `model_config.vocab_size` tokens is
    trained on the training part; source: what to call the text in run.json; valid_text: by default the last
    `config.valid_fraction` of the text; workers: threads, by default one for each core (another number gives other
    rounding); on_entry: called with each entry of the log (`report.Live` draws them). Returns the trained model.
    Raises NanoEulerError when the folder holds a run, the text is too short, or the loss is not finite.
    """
    run = Path(run)
    _expect_new(run)
    part, valid = _split(text, valid_text, config)
    if tokenizer is None:
        special = (END_OF_TEXT,) if data.SEPARATOR in part else ()
        tokenizer = Tokenizer.train(part, model_config.vocab_size, special_tokens=special)
    if tokenizer.vocab_size > model_config.vocab_size:
        raise NanoEulerError(
            f"tokenizer has {tokenizer.vocab_size} tokens, expected at most vocab_size ({model_config.vocab_size})"
        )
    model = GPT(model_config, seed=config.seed)
    info = {"source": source, "workers": workers or cores(), "floor_bits_per_byte": _floor(valid)}
    found = checkpoint.Checkpoint(run, model, tokenizer, 0, config, AdamW(model_config, config), info)
    return start_run(run, found, TextDataset(part, valid, found), quiet, on_entry)


def resume(
    run: str | Path,
    text: str,
    valid_text: str | None = None,
    quiet: bool = False,
    on_entry: Callable[[dict], None] | None = None,
) -> GPT:
    """Go on with a run from its latest checkpoint; ends with the same weights as a run that never stopped.

    text, valid_text: as given to `train`. Raises NanoEulerError when the text is another one, and when another
    process is training into the folder.
    """

    def again(found):
        return TextDataset(*_split(text, valid_text, found.train), found)

    return resume_run(Path(run), again, quiet, on_entry)


class TextDataset:
    """What a run learns from and is measured on: here a text, tokenised, in rows of the model's context.

    Fine-tuning has another one (`sft.SFTDataset`) with the same members: the fingerprints tell one text from another,
    `sizes` goes into run.json, `tokens` is how many there are to learn from, `row_tokens` how many a row has on
    average, `warnings` what to say first.
    Raises NanoEulerError when a part is too short for a row.
    """

    def __init__(self, part: str, valid: str, found: checkpoint.Checkpoint):
        self.model, self.train, self.tokenizer = found.model.config, found.train, found.tokenizer
        self.part, self.valid = data.tokenize(part, found.tokenizer), data.tokenize(valid, found.tokenizer)
        need = self.model.context + self.model.predict
        for name, have, least in (("training", self.part, need), ("validation", self.valid, 2)):
            if len(have.ids) < least:
                source = found.info.get("source", "text")
                raise NanoEulerError(
                    f"{source}: {name} part has {len(have.ids)} tokens, expected at least {least}"
                )
        self.tokens, self.row_tokens = len(self.part.ids), self.model.context
        self.sizes = {"train_tokens": self.tokens, "valid_tokens": len(self.valid.ids)}
        self.fingerprint, self.valid_fingerprint = fingerprint(self.part.ids), fingerprint(self.valid.ids)
        self.warnings = text_warnings(part, valid, data.SEPARATOR)

    def batch(self, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs [B, T] and targets [B, T, K] of a step."""
        return data.batch(self.part, rng, rows, self.model.context, self.model.predict)

    def bits_per_byte(self, model: GPT) -> float:
        """Validation."""
        return bits_per_byte(model, self.valid)

    def sample(self, model: GPT, seed: int) -> str:
        """Something for the reader of the log."""
        return generate(model, self.tokenizer, "", 100, seed=seed)


def start_run(
    run: Path,
    found: checkpoint.Checkpoint,
    dataset: TextDataset,
    quiet: bool = False,
    on_entry: Callable[[dict], None] | None = None,
) -> GPT:
    """Make a run folder with a checkpoint of step 0, and train. Raises NanoEulerError when the folder is not new."""
    found.info |= {"fingerprint": dataset.fingerprint, "valid_fingerprint": dataset.valid_fingerprint}
    head = {
        "version": __version__,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}",
        "model": found.model.config.to_dict(),
        "train": found.train.to_dict(),
        "data": {**dataset.sizes, **found.info},
    }
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NanoEulerError(
            f"{run}: cannot be made ({error.strerror}), expected a folder to write to"
        ) from None
    with _sole_writer(run):
        _expect_new(run)
        write_text(run / "run.json", json.dumps(head, indent=1, ensure_ascii=False) + "\n")
        _save(run, found, 0)
        return _train(run, found, dataset, quiet, on_entry)


def resume_run(
    run: Path,
    dataset_of: Callable[[checkpoint.Checkpoint], TextDataset],
    quiet: bool = False,
    on_entry: Callable[[dict], None] | None = None,
) -> GPT:
    """Go on with a run from its latest checkpoint; dataset_of makes of it what the run began with."""
    if (path := checkpoint.find(run)) == run:  # a folder without any checkpoint is left alone as well
        raise NanoEulerError(f"{run}: is a checkpoint, expected its run folder: {path.parent.parent}")
    with _sole_writer(run):
        found = checkpoint.load(run, training=True)
        dataset = dataset_of(found)
        for what, now in (("text", dataset.fingerprint), ("validation text", dataset.valid_fingerprint)):
            then = found.info.get("fingerprint" if what == "text" else "valid_fingerprint")
            if now != then:
                raise NanoEulerError(
                    f"{run}: {what} has fingerprint {now}, expected {then}: not the {what} the run began with"
                )
        if type(workers := found.info.get("workers")) is not int or not 1 <= workers <= 4096:
            raise NanoEulerError(f"{found.path}: workers is {workers!r}, expected 1 to 4096: edited")
        _trim_log(run / "log.jsonl", found.step or -1)
        return _train(run, found, dataset, quiet, on_entry)


def _expect_new(run):
    """Refuse a folder that holds anything but what a run leaves that was killed before its first checkpoint."""
    try:
        leftovers = {"lock", "run.json", "checkpoints"}
        new = not run.exists() or (run.is_dir() and {file.name for file in run.iterdir()} <= leftovers)
        new = new and not checkpoint.folders(run)
    except OSError as error:
        raise NanoEulerError(
            f"{run}: cannot be looked at ({error.strerror}), expected a new folder"
        ) from None
    if not new:
        raise NanoEulerError(
            f"{run}: exists and is not an empty folder, expected a new one (or --resume {run})"
        )


@contextmanager
def _sole_writer(run):
    """Hold the run's lock. The system lets go of it when the process ends, however it ends."""
    try:
        file = open(run / "lock", "a")
    except OSError as error:
        raise NanoEulerError(
            f"{run}: cannot be written to ({error.strerror}), expected a folder to write to"
        ) from None
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise NanoEulerError(
                    f"{run}: another process is training into this folder, expected one at a time"
                ) from None
        yield


def _split(text, valid_text, config):
    return (text, valid_text) if valid_text is not None else data.split_text(text, config.valid_fraction)


def fingerprint(ids: np.ndarray) -> str:
    """A short string that tells one sequence of token ids from another."""
    return f"{len(ids)}-{zlib.crc32(np.ascontiguousarray(ids, '<i8')):08x}"


def _floor(valid):
    """Bits per byte that the source of the text needs: known for stories from Königsberg, None for other text."""
    try:
        return round(world.floor(valid), 6) if data.SEPARATOR in valid else None
    except NanoEulerError:
        return None


def _save(run, found, step):
    path = run / "checkpoints" / f"step-{step:06d}"
    checkpoint.save(path, found.model, found.tokenizer, step, found.train, found.optimizer, found.info)
    for old in checkpoint.folders(run)[:-KEEP]:
        checkpoint.remove(old)


def _train(run, found, dataset, quiet, on_entry):
    model, config = found.model, found.train
    rows = config.batch * config.accumulate
    step_tokens = round(rows * dataset.row_tokens)
    take_step = Step(model, found.optimizer, config, rows, found.info.get("workers"))
    watch = Watch(config, step_tokens, dataset.tokens)
    saved = found.step
    bar = tqdm(
        total=config.steps * step_tokens, initial=found.step * step_tokens, unit="tok", unit_scale=True,
        disable=quiet or None,  # None: shown on a terminal only
    )  # fmt: skip

    def say(text):
        if not quiet:
            bar.write(text)

    with (
        one_blas_thread(),
        np.errstate(all="ignore"),  # as in the workers
        _stop_between_steps() as stop,
        bar,
        take_step.pool,
        _appending(run / "log.jsonl", lambda: saved) as append,
    ):

        def note(**entry):
            append(entry)
            if on_entry is not None:
                on_entry(entry)
            for warning in watch.see(entry):
                warn(entry["step"], warning)

        def warn(step, warning):
            note(step=step, warning=warning)
            say(f"warning: {warning}")

        def validate(step):
            bits = found.info["valid_bits_per_byte"] = dataset.bits_per_byte(model)
            if not math.isfinite(bits):
                raise NanoEulerError(
                    f"step {step}: validation gives {bits} bits per byte; the checkpoint of step {saved} is intact"
                )
            note(step=step, valid_bits_per_byte=bits)
            say(f"step {step}: validation {bits:.4f} bits per byte")

        if found.step == 0:
            for warning in dataset.warnings:
                warn(0, warning)
            validate(0)
        else:
            for entry in _entries(run / "log.jsonl"):
                watch.see(entry)  # it was said before
        for step in range(found.step, config.steps):
            began, done = time.perf_counter(), step + 1
            rng = np.random.default_rng([config.seed, step])
            validates = done % config.valid_every == 0 or done == config.steps
            before = model.params.flat.copy() if validates or done == 1 else None
            inputs, targets = dataset.batch(rng, rows)
            losses, norm = take_step(inputs, targets)
            if not math.isfinite(norm):
                raise NanoEulerError(
                    f"step {done}: loss is {losses[0]:.4g} and the gradient's norm {norm}, expected finite "
                    f"numbers: lower the rate ({config.rate:g}) or the clip ({config.clip:g}); the checkpoint of "
                    f"step {saved} is intact"
                )
            seconds = time.perf_counter() - began
            note(
                step=done, loss=round(float(losses[0]), 6), later=[round(float(x), 6) for x in losses[1:]],
                rate=learning_rate(step, config), norm=round(norm, 6), seconds=round(seconds, 6),
                tokens_per_second=round(inputs.size / seconds),
            )  # fmt: skip
            bar.update(step_tokens)
            bar.set_postfix(step=done, loss=f"{losses[0]:.3f}", refresh=False)
            if before is not None:
                signs = vitals(before, model.params, take_step.grads[0], norm)
                note(
                    step=done,
                    groups={group: [float(f"{x:.4g}") for x in pair] for group, pair in signs.items()},
                )
            if validates:
                validate(done)
            if config.sample_every and done % config.sample_every == 0:
                sample = dataset.sample(model, config.seed + done)
                note(step=done, sample=sample)
                say(f"step {done}: {sample!r}")
            if done % config.save_every == 0 or done == config.steps or stop:
                _save(run, found, done)
                saved = done
            if stop and done < config.steps:
                bar.write(f"stopped; the checkpoint of step {saved} is saved: --resume {run} goes on")
                raise KeyboardInterrupt
    return model


@contextmanager
def _stop_between_steps():
    """Ctrl-C and SIGTERM fill the list given, which the loop looks at after a whole step; a second one interrupts."""
    stop = []

    def remember(number, frame):
        if stop:
            raise KeyboardInterrupt
        stop.append(number)

    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield stop
        return
    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _appending(file, saved):
    """A function that appends an entry to a log as one line. Unbuffered: what was written survives the process."""
    try:
        log = open(file, "ab", buffering=0)
    except OSError as error:
        raise NanoEulerError(f"{file}: cannot be written ({error.strerror})") from None

    def append(entry):
        line = (json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n").encode()
        try:
            written = log.write(line)
        except OSError as error:
            written, reason = 0, error.strerror
        else:
            reason = "No space left on device"
        if written < len(line):
            raise NanoEulerError(
                f"{file}: cannot be written ({reason}); the checkpoint of step {saved()} is intact"
            )

    with log:
        yield append


def read_log(run: str | Path) -> list[dict]:
    """The entries of a run's log, in order. Raises NanoEulerError when there is none or a line is not JSON."""
    return list(_entries(Path(run) / "log.jsonl"))


def _entries(file) -> Iterator[dict]:
    try:
        lines = file.read_text("utf-8", errors="replace").splitlines()
    except OSError as error:
        raise NanoEulerError(f"{file}: cannot be read ({error.strerror}), expected a run's log") from None
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            if number < len(lines):  # the last line may be cut off by a crash
                raise NanoEulerError(f"{file}: line {number} is not JSON: edited") from None
            return
        if not _is_entry(entry):
            raise NanoEulerError(f"{file}: line {number} is not an entry with a step: edited")
        yield entry


def _is_entry(entry):
    numbers = ("loss", "rate", "norm", "seconds", "tokens_per_second", "valid_bits_per_byte")
    groups = entry.get("groups", {}) if isinstance(entry, dict) else None
    return (
        isinstance(groups, dict)
        and type(entry.get("step")) is int
        and 0 <= entry["step"] < 2**53
        and all(_is_number(entry[name]) for name in numbers if name in entry)
        and all(isinstance(entry.get(name, ""), str) for name in ("sample", "warning"))
        and all(
            isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair))
            for pair in groups.values()
        )
        and (("loss" in entry) <= ("rate" in entry and "norm" in entry and "tokens_per_second" in entry))
    )


def _is_number(value):
    return type(value) in (int, float) and abs(value) < 1e300  # false for NaN


def _trim_log(file, step):
    """Drop what was logged after the checkpoint that a run goes on from."""
    kept = [entry for entry in _entries(file) if entry["step"] <= step] if file.exists() else []
    write_text(file, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in kept))
