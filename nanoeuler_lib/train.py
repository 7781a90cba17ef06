"""Pretraining: from a text to a run folder (`run_folder`) with a trained model in it.

A run is a function of its configuration and its number of workers. The batch of step s is drawn from a generator
seeded with (seed, s), so going on from a checkpoint needs no random state: it continues with the same batches as if
it had never stopped. The first checkpoint is that of step 0, so a run that was killed can go on, or, before that
checkpoint is written, be started again in the same folder.
"""

import math
import os
import platform
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nanoeuler_lib import __version__, checkpoint, data, world
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.device import CPU, Device, chosen_before, step_of
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import Voice, from_json, to_json, write_text
from nanoeuler_lib.generate import generate
from nanoeuler_lib.model import GPT, Parameters, parameter_shapes
from nanoeuler_lib.optim import learning_rate, optimizer_of
from nanoeuler_lib.run_folder import appending, entries, expect_new, read_log, sole_writer, trim_log
from nanoeuler_lib.step import Step, cores, memory, one_blas_thread
from nanoeuler_lib.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.watch import Watch, text_warnings, vitals

__all__ = ["Step", "TextDataset", "bits_per_byte", "fingerprint", "read_log", "resume", "start_run", "train"]
KEEP = 2  # checkpoints kept; older ones are removed
WHOLE_EVERY = 10  # of so many validations one scores every token, as the last does


def bits_per_byte(model: GPT, tokens: data.Tokens, rows: int = 8) -> float:
    """Bits that head 0 needs for each byte of a text, every token scored once (`data.validation_rows`)."""
    inputs, targets = data.validation_rows(tokens, model.config.context)
    plans = range(0, len(inputs), rows)
    nats = nats_of(model, ((inputs[i : i + rows], targets[i : i + rows]) for i in plans))
    scored = tokens.lengths[targets[targets >= 0]]
    return nats / math.log(2) / max(1, int(scored.sum()))


def nats_of(model: GPT, parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """Nats that head 0 needs for all targets that count (-1 does not), over parts of inputs and targets [B, T]."""
    return sum(float(model.losses(inputs, targets).sum(dtype=np.float64)) for inputs, targets in parts)


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
    files: dict[str, str] | None = None,
    device: Device = CPU,
    profile: int = 0,
) -> GPT:
    """Train a model on a text and leave a run folder.

    run: a folder that does not hold a run yet; tokenizer: by default one of `model_config.vocab_size` tokens is
    trained on the training part; source: what to call the text in run.json; valid_text: by default the last
    `config.valid_fraction` of the text; workers: threads, by default one for each core (another number gives other
    rounding); on_entry: called with each entry of the log (`report.Live` draws them); files: where the texts were read
    from, kept for whoever resumes the run; device: where it runs (`device.choose`); profile: on a GPU, time every
    launch of so many steps, the second and those behind it, and say where the time goes. Returns the trained model.
    Raises NanoEulerError when the folder holds a run, the text is too short, the model does not find room in memory, or
    the loss is not finite.
    """
    run = Path(run)
    expect_new(run)
    expect_memory(model_config)
    part, valid = _split(text, valid_text, config)
    if tokenizer is None:
        special = (END_OF_TEXT,) if data.SEPARATOR in part else ()
        tokenizer = Tokenizer.train(part, model_config.vocab_size, special_tokens=special)
    info = {"source": source, "workers": workers or cores(), "floor_bits_per_byte": _floor(valid)}
    info |= {"files": files} if files else {}
    found = fresh(run, model_config, config, tokenizer, info, device, profile)
    return start_run(run, found, TextDataset(part, valid, found), quiet, on_entry, profile)


def expect_memory(config: ModelConfig) -> None:
    """Raises NanoEulerError for a model whose parameters, gradients and first moments find no room in memory.

    That is what every optimiser needs, 12 bytes a parameter. Some systems promise memory that they do not have, and end
    whoever uses it: nothing would be said then.
    """
    count, there = sum(math.prod(shape) for shape in parameter_shapes(config).values()), memory()
    if there is None or (need := 12 * count) <= there:
        return
    needs, has = (f"{size / 2**30:,.1f} GiB" for size in (need, there))
    raise NanoEulerError(
        f"the model has {count:,} parameters: a run takes {needs} at least, and this machine has {has}: "
        "expected a smaller dim, ffn or vocab_size, or fewer layers"
    )


def fresh(
    run: Path,
    model_config: ModelConfig,
    config: TrainConfig,
    tokenizer: Tokenizer,
    info: dict,
    device: Device = CPU,
    profile: int = 0,
) -> checkpoint.Checkpoint:
    """What a run begins with: a model of the configuration's seed, an optimiser at rest; info: what to keep beside.

    Raises NanoEulerError for more tokens than the model has, and for a profile on the CPU.
    """
    if tokenizer.vocab_size > model_config.vocab_size:
        raise NanoEulerError(
            f"tokenizer has {tokenizer.vocab_size} tokens, expected at most vocab_size ({model_config.vocab_size})"
        )
    if profile and device == CPU:
        raise NanoEulerError(
            "profile times the launches of a GPU, and this run is on the CPU: expected --device gpu"
        )
    model, optimizer = GPT(model_config, seed=config.seed), optimizer_of(model_config, config)
    return checkpoint.Checkpoint(Path(run), model, tokenizer, 0, config, optimizer, info | device.info)


def resume(
    run: str | Path,
    text: str,
    valid_text: str | None = None,
    quiet: bool = False,
    on_entry: Callable[[dict], None] | None = None,
    files: dict[str, str] | None = None,
    steps: int | None = None,
    device: str | None = None,
) -> GPT:
    """Go on with a run from its latest checkpoint; ends with the same weights as a run that never stopped.

    text, valid_text: as given to `train`; files: where they were read from this time. steps: how many steps the run
    shall have in all, more or fewer than it was begun with. From here on the rate then follows the schedule of a run
    of so many steps: behind the end of a run it rises again, as far as that schedule has it at this step. device: the
    name of one, by default that of the run; on another its numbers round otherwise. Raises NanoEulerError when the text
    is another one, and when another process is training into the folder.
    """

    def again(found):
        return TextDataset(*_split(text, valid_text, found.train), found)

    return resume_run(Path(run), again, quiet, on_entry, files, steps, device)


class TextDataset:
    """What a run learns from and is measured on: here a text, tokenised, in rows of the model's context.

    Others have the same members, `shards.ShardDataset` for text that lies on the disk and `sft.SFTDataset`: the
    fingerprints tell one text from another, `sizes` goes into run.json, `tokens` is how many there are to learn from,
    `row_tokens` how many a row has on average, `warnings` what to say first, `sampled` whether there is so much to
    validate on that most validations score a part of it.
    Raises NanoEulerError when a part is too short for a row.
    """

    sampled = False

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

    def batch(self, step: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs [B, T] and targets [B, T, K] of step 0, 1, ..."""
        rng = np.random.default_rng([self.train.seed, step])
        return data.batch(self.part, rng, rows, self.model.context, self.model.predict)

    def validation(self, model: GPT, whole: bool = True) -> dict:
        """What the log says of a validation; whole: false where a part of the text would do."""
        return {"valid_bits_per_byte": bits_per_byte(model, self.valid)}

    def sample(self, model: GPT, seed: int) -> str:
        """Something for the reader of the log."""
        return generate(model, self.tokenizer, "", 100, seed=seed)


def start_run(
    run: Path,
    found: checkpoint.Checkpoint,
    dataset: TextDataset,
    quiet: bool = False,
    on_entry: Callable[[dict], None] | None = None,
    profile: int = 0,
) -> GPT:
    """Make a run folder with a checkpoint of step 0, and train. Raises NanoEulerError when the folder is not new."""
    found.info |= {"fingerprint": dataset.fingerprint, "valid_fingerprint": dataset.valid_fingerprint}
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NanoEulerError(
            f"{run}: cannot be made ({error.strerror}), expected a folder to write to"
        ) from None
    with sole_writer(run) as still_there:
        expect_new(run)
        place = chosen_before(found.info, None, found.model.config)
        write_text(run / "run.json", to_json(_description(found, dataset), indent=1) + "\n")
        _save(run, found, 0)
        _move(found, place)
        return _train(_Journal(run, found, dataset, quiet, on_entry, still_there), profile=profile)


def resume_run(
    run: Path,
    dataset_of: Callable[[checkpoint.Checkpoint], TextDataset],
    quiet: bool = False,
    on_entry: Callable[[dict], None] | None = None,
    files: dict[str, str] | None = None,
    steps: int | None = None,
    device: str | None = None,
) -> GPT:
    """Go on with a run from its latest checkpoint; dataset_of makes of it what the run began with."""
    if (path := checkpoint.find(run)) == run:  # a folder without any checkpoint is left alone as well
        raise NanoEulerError(f"{run}: is a checkpoint, expected its run folder: {path.parent.parent}")
    with sole_writer(run) as still_there:
        found = checkpoint.load(run, training=True)
        dataset = dataset_of(found)
        _expect_the_same(run, found, dataset)
        place = chosen_before(found.info, device, found.model.config)
        found.info = {k: v for k, v in found.info.items() if k not in ("device", "precision")} | place.info
        _prune(run)  # a kill may have come between writing the last checkpoint and that
        found.info |= {"files": files} if files else {}
        told = trim_log(run / "log.jsonl", found.step or -1)
        if lengthened := steps is not None and steps != found.train.steps:
            _lengthen(run, found, steps)
        _update_description(run / "run.json", found, dataset)
        _move(found, place)
        warnings = [told] if told else []
        return _train(_Journal(run, found, dataset, quiet, on_entry, still_there), warnings, lengthened)


def _expect_the_same(run, found, dataset):
    """Refuse to go on with other data than the run began with, or an impossible number of workers."""
    pairs = (
        ("text", "--data", dataset.fingerprint),
        ("validation text", "--valid", dataset.valid_fingerprint),
    )
    for what, option, now in pairs:
        then = found.info.get("fingerprint" if what == "text" else "valid_fingerprint")
        if now != then:
            raise NanoEulerError(
                f"{run}: {what} has fingerprint {now}, expected {then}: not the {what} the run began with, "
                f"which {'--data' if 'examples' in found.info else option} FILE names"
            )
    if type(workers := found.info.get("workers")) is not int or not 1 <= workers <= 4096:
        raise NanoEulerError(f"{found.path}: workers is {short(workers)}, expected 1 to 4096: edited")


def _move(found, device):
    """Put the model and the optimiser's state where they are to run."""
    found.model = device.place(found.model)
    found.optimizer = device.optimizer(found.optimizer, found.model.config)


def _lengthen(run, found, steps):
    """Give a run another number of steps, and write that down before a step is taken."""
    if steps <= found.step:
        raise NanoEulerError(f"{run}: steps is {steps}, expected more than the {found.step} that are done")
    found.train = found.optimizer.config = replace(found.train, steps=steps)
    _save(run, found, found.step)


def _description(found, dataset):
    """What run.json says."""
    return {
        "version": __version__,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}",
        "model": found.model.config.to_dict(),
        "train": found.train.to_dict(),
        "data": {**dataset.sizes, **found.info},
    }


def _update_description(file, found, dataset):
    """Write run.json anew where it is not that of the checkpoint: the run has other steps now, or it was damaged."""
    try:
        old = from_json(file.read_bytes().decode())
    except (OSError, ValueError, RecursionError):
        old = None
    old, new = old if isinstance(old, dict) else {}, _description(found, dataset)
    if old.get("train") != new["train"] or old.get("model") != new["model"]:
        kept = {
            name: old[name] for name in ("version", "started", "machine") if isinstance(old.get(name), str)
        }
        write_text(file, to_json(new | kept, indent=1) + "\n")


def _split(text, valid_text, config):
    if valid_text is None:
        return data.split_text(text, config.valid_fraction)
    return data.without_outer_separators(text), data.without_outer_separators(valid_text)


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
    _prune(run)


def _prune(run):
    for old in checkpoint.folders(run)[:-KEEP]:
        checkpoint.remove(old)


def _train(journal, warnings=(), lengthened=False, profile=0):
    """The loop. warnings: what to say first; lengthened: whether the number of steps is a new one; profile: `train`."""
    found, dataset, config = journal.found, journal.dataset, journal.found.train
    model, rows = found.model, config.batch * config.accumulate
    take_step = step_of(model)(model, found.optimizer, config, rows, found.info.get("workers"))
    with (
        one_blas_thread(),
        np.errstate(all="ignore"),  # as in the workers
        _stop_between_steps() as stop,
        take_step,
        journal.bar,
        journal.writer,
        appending(journal.run / "log.jsonl", lambda: journal.saved) as journal.append,
    ):
        if take_step.told:
            journal.say(take_step.told)
        journal.begin(warnings, lengthened)
        journal.estimate(take_step)
        for step in range(found.step, config.steps):
            done = step + 1
            validates = done % config.valid_every == 0 or done == config.steps
            whole = (
                not dataset.sampled or done % (WHOLE_EVERY * config.valid_every) == 0 or done == config.steps
            )
            before = model.params.host().flat.copy() if (validates and whole) or done == 1 else None
            began = time.perf_counter()
            if profile and step == found.step + 1:  # the first one has compiled and taken memory
                times = take_step.watched()
            inputs, targets = dataset.batch(step, rows)
            losses, norm = take_step(inputs, targets)
            seconds = time.perf_counter() - began
            if profile and done == found.step + 1 + profile:
                journal.say(times.table(profile), always=True)
                take_step.unwatched()
            journal.step(done, losses, norm, learning_rate(step, config), inputs.size, seconds)
            if before is not None:
                journal.vitals(done, vitals(before, model.params.host(), take_step.whole_gradient(), norm))
            if validates:
                journal.validate(done, whole)
            if config.sample_every and done % config.sample_every == 0:
                journal.sample(done)
            if done % config.save_every == 0 or done == config.steps or stop:
                journal.save(done)
            if stop or done == config.steps:
                journal.settle()
                journal.bill()
            if stop and done < config.steps:
                journal.say(
                    f"stopped; the checkpoint of step {done} is saved: --resume {journal.run} goes on",
                    always=True,
                )
                raise KeyboardInterrupt
    return model


class _Journal:
    """What a run tells: the entries of its log, lines and a bar for who watches, warnings, and its checkpoints.

    quiet: no lines and no bar; on_entry: called with each entry; still_there: raises when the run's folder is gone.
    """

    def __init__(self, run, found, dataset, quiet, on_entry, still_there):
        self.run, self.found, self.dataset, self.config = run, found, dataset, found.train
        self.quiet, self.on_entry, self.still_there = quiet, on_entry, still_there
        self.append = None  # set while the log is open
        self.writer, self.pending = ThreadPoolExecutor(1, "checkpoint"), None
        self.saved, self.validation_seconds = found.step, 0.0
        self.began = time.perf_counter()
        # seconds that the steps waited for each
        self.spent = dict(validation=0.0, samples=0.0, checkpoints=0.0)
        self.rows = self.config.batch * self.config.accumulate
        self.step_tokens = round(self.rows * dataset.row_tokens)
        self.watch = Watch(self.config, self.step_tokens, dataset.tokens)
        self.out = Voice(sys.stdout)
        self.bar = tqdm(
            total=self.config.steps * self.step_tokens, initial=found.step * self.step_tokens, unit="tok",
            unit_scale=True, disable=quiet or None, file=Voice(sys.stderr),  # None: shown on a terminal only
        )  # fmt: skip

    def say(self, text, always=False):
        """A line above the bar."""
        if always or not self.quiet:
            with self.bar.get_lock():
                self.bar.clear(nolock=True)
                self.out.line(text)
                self.bar.refresh(nolock=True)

    def note(self, **entry):
        """An entry of the log, and what the watch has to say about it."""
        self.append(entry)
        if self.on_entry is not None:
            self.on_entry(entry)
        for warning in self.watch.see(entry):
            self.warn(entry["step"], warning)

    def warn(self, step, warning):
        self.note(step=step, warning=warning)
        self.say(f"warning: {warning}")

    def begin(self, warnings, lengthened):
        """What will be done, what is odd about it, and the validation before the first step."""
        first, found = self.found.step, self.found
        planned = self.config.steps * self.step_tokens
        sizes = ", ".join(f"{size:,} {name.replace('_', ' ')}" for name, size in self.dataset.sizes.items())
        self.say(f"model: {found.model.size:,} parameters; data: {sizes}")
        whence = f"from step {first:,} on, " if first else ""
        passes = planned / self.dataset.tokens
        self.say(
            f"plan: {whence}{self.config.steps:,} steps of {self.step_tokens:,} tokens, {planned:,} in all, "
            f"{passes:{'.1f' if passes >= 1 else '.2g'}} passes over the data"
        )
        ahead = self.watch.begin()
        if first == 0:
            warnings = [*warnings, *self.dataset.warnings, *ahead]
        else:
            warnings = [*warnings, *(ahead if lengthened else ())]
            for entry in entries(self.run / "log.jsonl"):
                self.watch.see(entry)  # it was said before
        for warning in warnings:
            self.warn(first, warning)
        if first == 0:
            self.validate(0)

    def estimate(self, take_step):
        """Say how long it will take: the gradient of the next batch is computed for it, and nothing changed."""
        left = self.config.steps - self.found.step
        if self.quiet or left < 20:
            return
        batch = self.dataset.batch(self.found.step, self.rows)
        times = []
        while len(times) < 3 and sum(times) < 5:  # the first one also takes memory
            began = time.perf_counter()
            take_step.gradient(*batch)
            times.append(time.perf_counter() - began)
        validations = left // self.config.valid_every * self.validation_seconds
        whole = duration(left * min(times) + validations)
        self.say(f"about {whole} to go, at {min(times):.2g} s a step, measured now")

    def step(self, done, losses, norm, rate, tokens, seconds):
        """A step was taken; an error if it was not, because its loss or gradient is no finite number."""
        if not math.isfinite(norm):
            self.settle()
            raise NanoEulerError(
                f"step {done}: loss is {losses[0]:.4g} and the gradient's norm {norm}, expected finite numbers: lower "
                f"the rate ({self.config.rate:g}) or the clip ({self.config.clip:g}); the checkpoint of step "
                f"{self.saved} is intact"
            )
        self.still_there()
        self.settle(wait=False)
        self.note(
            step=done, loss=round(float(losses[0]), 6), later=[round(float(x), 6) for x in losses[1:]],
            rate=rate, norm=round(norm, 6), seconds=round(seconds, 6), tokens_per_second=round(tokens / seconds),
        )  # fmt: skip
        self.bar.update(self.step_tokens)
        self.bar.set_postfix(step=done, loss=f"{losses[0]:.3f}", refresh=False)

    def vitals(self, step, signs):
        self.note(
            step=step, groups={group: [float(f"{x:.4g}") for x in pair] for group, pair in signs.items()}
        )

    def validate(self, step, whole=True):
        began = time.perf_counter()
        entry = self.dataset.validation(self.found.model, whole)
        bits, sets = entry["valid_bits_per_byte"], entry.get("valid_sets", {})
        self.found.info |= {
            name: entry[name] for name in ("valid_bits_per_byte", "valid_sets") if name in entry
        }
        self.validation_seconds = time.perf_counter() - began
        self.spent["validation"] += self.validation_seconds
        if not math.isfinite(bits):
            self.settle()
            raise NanoEulerError(
                f"step {step}: validation gives {bits} bits per byte; the checkpoint of step {self.saved} is intact"
            )
        self.note(step=step, **entry, seconds=round(self.validation_seconds, 6))
        of_each = "".join(f", {name} {bits:.4f}" for name, bits in sets.items())
        share = f" (of {entry['valid_share']:.0%} of the text)" if "valid_share" in entry else ""
        self.say(f"step {step}: validation {bits:.4f} bits per byte{of_each}{share}")

    def sample(self, step):
        began = time.perf_counter()
        text = self.dataset.sample(self.found.model, self.config.seed + step)
        seconds = time.perf_counter() - began
        self.spent["samples"] += seconds
        self.note(step=step, sample=text, seconds=round(seconds, 6))
        self.say(f"step {step}: {text!r}")

    def save(self, step):
        """Have a checkpoint written by a thread, from a copy, while the run goes on. One at a time: see `settle`."""
        self.still_there()
        self.settle()
        began = time.perf_counter()
        self.pending = step, self.writer.submit(_save, self.run, copied(self.found), step)
        self.spent["checkpoints"] += time.perf_counter() - began

    def settle(self, wait=True):
        """Note that the checkpoint which was being written is there; raises what went wrong with it."""
        if self.pending is not None and (wait or self.pending[1].done()):
            (step, written), self.pending = self.pending, None
            began = time.perf_counter()
            written.result()
            self.spent["checkpoints"] += time.perf_counter() - began
            self.saved = step

    def bill(self):
        """Say what the run's time went into beside its steps."""
        share = sum(self.spent.values()) / (time.perf_counter() - self.began)
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.spent.items())
        self.say(f"beside the steps: {parts}, {share:.1%} of the time")


def copied(found: checkpoint.Checkpoint) -> checkpoint.Checkpoint:
    """The state of a run in this machine's memory, which stays what it is while the run goes on."""
    config = found.model.config

    def copy(params):
        host = params.host()
        if host is params:
            host = Parameters(config, params.flat.dtype)
            host.flat[...] = params.flat
        return host

    optimizer = optimizer_of(config, found.train)
    optimizer.step = found.optimizer.step
    optimizer.m, optimizer.v = copy(found.optimizer.m), copy(found.optimizer.v)
    model = GPT(config, copy(found.model.params))
    return replace(found, model=model, optimizer=optimizer, info=dict(found.info))


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def _stop_between_steps():
    """Ctrl-C, SIGTERM, SIGUSR1 and a closed terminal fill the list given, which the loop looks at after a whole step.

    SIGUSR1 is what clusters can be told to send before they end a job. The same signal once more interrupts at once,
    but for SIGHUP: a shell that ends sends it after the terminal has.
    """
    stop = []

    def remember(number, frame):
        if number in stop and number != hangup:
            raise KeyboardInterrupt
        stop.append(number)

    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield stop
        return
    hangup = getattr(signal, "SIGHUP", None)
    numbers = [signal.SIGINT, signal.SIGTERM]
    for number in (hangup, getattr(signal, "SIGUSR1", None)):  # Windows has none
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # ignored under nohup
            numbers.append(number)
    before = {number: signal.signal(number, remember) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
