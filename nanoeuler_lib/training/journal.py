"""The journal of a run, which writes its log, its terminal output and its checkpoints."""

import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from nanoeuler_lib.engine.memory import OutOfMemory, out_of_memory
from nanoeuler_lib.engine.step import LESS
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import Voice, one_line
from nanoeuler_lib.model.optim import learning_rate
from nanoeuler_lib.training import checkpoint, run_folder, run_json
from nanoeuler_lib.training.monitor import MEASURES, Watch, percent, vitals
from nanoeuler_lib.training.run_folder import appending, entries


class Taken(NamedTuple):
    """Hold the results of a step. losses: mean nats of each head [K]; norm: gradient norm; tokens: of its batch."""

    step: int
    losses: np.ndarray | None = None
    norm: float = 0.0
    tokens: int = 0
    seconds: float = 0.0


class Journal:
    """Write a run's log and checkpoints, and print its progress. still_there: raises if the folder was removed."""

    def __init__(self, run, state, dataset, options, processes, still_there):
        self.run, self.state, self.dataset, self.config = run, state, dataset, state.train
        self.options, self.processes, self.still_there = options, processes, still_there
        self.append = None  # set while the log is open
        self.writer, self.pending = ThreadPoolExecutor(1, "checkpoint"), []
        self.saved, self.taken = state.step, Taken(state.step)  # step of the last checkpoint; the last complete step
        # set until the validation and sample of the last checkpoint's step are done: number of the step's log entries,
        # and the arguments of `look`
        self.due = state.info.pop("due", None)
        self.at, self.entries = state.step, 0  # step of the last log entry, and number of entries of that step
        self.validation_seconds = 0.0
        self.best = run_folder.best(run)  # lowest validation loss so far; None: no best checkpoint
        self.began = time.perf_counter()
        # seconds in which the steps had to wait
        self.spent = dict(validation=0.0, samples=0.0, checkpoints=0.0)
        self.rows = self.config.batch * self.config.accumulate
        self.step_tokens = round(self.rows * dataset.row_tokens)
        guess = None if dataset.frequencies is None else math.log(state.model.config.vocab_size)
        self.watch = Watch(self.config, self.step_tokens, dataset.tokens, dataset.frequencies, guess)
        self.out = Voice(sys.stdout)
        self.bar = tqdm(
            total=self.config.steps * self.step_tokens, initial=state.step * self.step_tokens, unit="tok",
            unit_scale=True, disable=options.quiet or None, file=Voice(sys.stderr),  # None: shown on a terminal only
        )  # fmt: skip

    @contextmanager
    def open(self):
        """Open the log and show the progress bar for the duration of the block."""
        with self.bar, self.writer, appending(self.run / "log.jsonl", lambda: self.saved) as self.append:
            yield

    def say(self, text, always=False):
        """Print a line above the progress bar, unless the run is quiet; always: also if it is quiet."""
        if always or not self.options.quiet:
            with self.bar.get_lock():
                self.bar.clear(nolock=True)
                self.out.line(text)
                self.bar.refresh(nolock=True)

    def note(self, **entry):
        """Write an entry to the log, and any warnings that it causes."""
        self.append(entry)
        self.entries = self.entries + 1 if entry["step"] == self.at else 1
        self.at = entry["step"]
        if self.options.on_entry is not None:
            self.options.on_entry(entry)
        for warning in self.watch.see(entry):
            self.warn(entry["step"], warning)

    def warn(self, step, warning):
        """Log and print a warning."""
        self.note(step=step, warning=warning)
        self.say(f"warning: {warning}")

    def _without(self, step, what, error):
        """Warn that the validation or the sample of a step failed; training continues."""
        self.warn(step, f"no {what}: {one_line(str(error) if isinstance(error, NanoEulerError) else repr(error))}")

    def begin(self, take_step, warnings, changed):
        """Print the plan and the warnings, validate before step 1, and print an estimate of the remaining time."""
        self.take_step, first = take_step, self.state.step
        if take_step.memory_line:
            self.say(take_step.memory_line)
        planned = self.config.steps * self.step_tokens
        sizes = ", ".join(f"{size:,} {name.replace('_', ' ')}" for name, size in self.dataset.sizes.items())
        self.say(f"model: {self.state.model.size:,} parameters; data: {sizes}")
        whence = f"continue after step {first:,} up to " if first else ""
        passes, held_out = planned / self.dataset.tokens, ""
        if "split" in self.state.info:
            train, valid = self.dataset.sizes["train_tokens"], self.dataset.sizes["valid_tokens"]
            held_out = f"; {valid / (train + valid):.1%} held out"
        self.say(
            f"plan: {whence}{self.config.steps:,} steps of {self.step_tokens:,} tokens, {planned:,} in all, "
            f"{passes:{'.1f' if passes >= 1 else '.2g'}} passes over the data; rows cover "
            f"{percent(self.dataset.reach)} of its {self.dataset.unit}{held_out}"
        )
        ahead = self.watch.begin()
        said = set()  # changes that the log has at this step already, because a process was killed after writing them
        if first == 0:
            warnings = [*warnings, *self.dataset.warnings, *ahead]
        else:
            warnings = [*warnings, *(ahead if changed else ())]
            for entry in entries(self.run / "log.jsonl"):
                self.watch.see(entry)  # its warnings were printed when it was written
                said |= {entry["changed"]} if entry["step"] == first and "changed" in entry else set()
        if self.due:
            self.look(first, *self.due[1:])
            self.wait_for_checkpoint()
        for change in changed:
            if change not in said:
                self.note(step=first, changed=change)
            self.say(f"from step {first:,} on: {change}")
        for warning in warnings:
            self.warn(first, warning)
        if self.processes.is_rank0:
            run_json.update(self.run, self.state, self.dataset)
        if first == 0:
            self.validate(0)
        if self.processes.alone:
            self.estimate()

    def estimate(self):
        """Print how long the run will take, estimated from the time of the next batch's gradient; change no state."""
        left = self.config.steps - self.state.step
        if self.options.quiet or left < 20:
            return
        batch = self.dataset.batch(self.state.step, self.rows)
        times = []
        while len(times) < 3 and sum(times) < 5:  # the first one is slower, because it allocates memory
            began = time.perf_counter()
            self.take_step.gradient(*batch)
            times.append(time.perf_counter() - began)
        validations = left // self.config.valid_every * self.validation_seconds
        whole = duration(left * min(times) + validations)
        self.say(f"about {whole} to go, at {min(times):.2g} s per step, measured now")

    def start_profile(self, step):
        """Start timing every launch."""
        self.profile = self.take_step.watched()

    def end_profile(self, step):
        """Print where the time of the launches went, and stop timing them."""
        self.say(self.profile.table(self.options.profile), always=True)
        self.take_step.unwatched()

    def log(self, step):
        """Log the last step. Raises NanoEulerError if it was skipped because its loss or gradient is not finite."""
        _, losses, norm, tokens, seconds = self.taken
        more = self.processes.hash(step, self.config, norm, self.take_step)
        if not math.isfinite(norm):
            self.wait_for_checkpoint()
            clip = f"lower --clip ({self.config.clip:g})" if self.config.clip else "set --clip (it is 0: off)"
            raise NanoEulerError(
                f"step {step}: loss and gradient norm must be finite, got {losses[0]:.4g} and {norm}"
                f"{self.take_step.bad_rank}: lower the learning rate ({self.config.rate:g}) or {clip}; the checkpoint "
                f"of step {self.saved} is intact, and --resume {self.run} --lr X continues from it with a new rate"
            )
        self.state.info |= self.take_step.info
        self.still_there()
        self.wait_for_checkpoint(wait=False)
        loss, *others = (round(float(x), 6) for x in losses)
        names = self.dataset.figures
        beside = {"figures": dict(zip(names, others, strict=True))} if names else {"later": others}
        self.note(
            step=step, loss=loss, **beside, rate=learning_rate(step - 1, self.config), norm=round(norm, 6),
            seconds=round(seconds, 6), tokens_per_second=round(tokens / seconds), **more,
        )  # fmt: skip
        self.bar.update(self.step_tokens)
        self.bar.set_postfix(step=step, loss=f"{losses[0]:.3f}", refresh=False)

    def keep_weights(self, step):
        """Copy the weights before a step, which `vitals` needs. Every process has to call it."""
        self.weights = self.state.model.params.host().flat.copy()

    def vitals(self, step):
        """Log the gradient norm and update ratio of each layer group. Every process has to call it."""
        before, self.weights = self.weights, None
        after, gradient = self.state.model.params.host(), self.take_step.whole_gradient()
        signs = vitals(before, after, gradient, self.taken.norm)
        self.note(step=step, groups={group: [float(f"{x:.4g}") for x in pair] for group, pair in signs.items()})

    def look(self, step, validates, whole, samples):
        """Validate and sample as the flags say, then add the validation to the step's checkpoint."""
        if validates:
            self.validate(step, whole)
        if samples:
            self.sample(step)
        self.renew(step)

    def renew(self, step):
        """Update the header of a step's checkpoint, if it was written before the validation and the sample."""
        if self.due and self.processes.is_rank0:
            path, info = run_folder.folder_of(self.run, step), dict(self.state.info)
            self.pending += [(step, self.writer.submit(checkpoint.renew, path, info))]
        self.due = None

    def validate(self, step, whole=True):
        """Validate (whole: on all data), log, and save the best. Raises NanoEulerError if the loss is not finite."""
        began = time.perf_counter()
        try:
            work = lambda model: self.dataset.validation(model, whole)
            entry = self.processes.validation(self.state.model, work)
        except Exception as error:
            # before step 1 nothing is lost; with several processes, the others would wait forever
            if step == 0 or not self.processes.alone:
                raise
            for name in (self.dataset.measure, "valid_sets"):  # results of an earlier step
                self.state.info.pop(name, None)
            self._without(step, "validation", error)
            return
        seen = round(self.dataset.seen(step), 6)
        if not entry:
            self.note(step=step, seen=seen)
            if step == 0:
                self.say("there is no validation data, so there are no validation results and no best checkpoint")
            return
        measure, sets = self.dataset.measure, entry.get("valid_sets", {})
        bits, unit = entry[measure], MEASURES[measure]
        self.state.info |= {name: entry[name] for name in (measure, "valid_sets") if name in entry}
        self.validation_seconds = time.perf_counter() - began
        self.spent["validation"] += self.validation_seconds
        if not math.isfinite(bits):
            self.wait_for_checkpoint()
            if self.due and self.processes.is_rank0:  # training cannot continue from this checkpoint
                run_folder.drop(self.run, step)
                self.saved = checkpoint.step_of(checkpoint.folders(self.run)[-1])
            raise NanoEulerError(
                f"step {step}: validation loss must be finite, got {bits} {unit}; the checkpoint of step {self.saved} "
                "is intact"
            )
        self.note(step=step, **entry, seen=seen, seconds=round(self.validation_seconds, 6))
        of_each = "".join(f", {name} {bits:.4f}" for name, bits in sets.items())
        share = f" (of {entry['valid_share']:.0%} of the text)" if "valid_share" in entry else ""
        figures = "".join(f", {name} {x:.4g}" for name, x in entry.get("figures", {}).items())
        self.say(f"step {step}: validation loss {bits:.4f} {unit}{of_each}{share}{figures}")
        if step and not share and (self.best is None or bits < self.best):
            self.best = bits
            for of_step, written in self.pending:
                if of_step is None:  # an earlier best checkpoint that is not yet being written: no longer needed
                    written.cancel()
            self._write(run_folder.save_best, step, training=False)

    def sample(self, step):
        """Generate a text with the model, log it and print it."""
        began = time.perf_counter()
        try:
            text = self.dataset.sample(self.state.model, self.config.seed + step)
        except Exception as error:
            self._without(step, "sample", error)
            return
        seconds = time.perf_counter() - began
        self.spent["samples"] += seconds
        self.note(step=step, sample=text, seconds=round(seconds, 6))
        self.say(f"step {step}: {text!r}")

    def save(self, step, *looks):
        """Write the checkpoint of a step in the background, after the previous one is complete.

        looks: flags of `look`. Until it is done, the header says what is due, so that a resumed run does it.
        """
        self.wait_for_checkpoint()
        self.due = [self.entries, *looks] if any(looks) else None
        self._write(run_folder.save, step)

    def _write(self, function, step, training=True):
        """Write a copy of the state in a thread; training: with the optimiser, so that a run can resume from it."""
        self.still_there()
        began = time.perf_counter()
        state = self.state.copy(training)
        state.info |= {"due": self.due} if training and self.due else {}
        written = self.writer.submit(function, self.run, state, step)
        self.pending += [(step if training else None, written)]
        self.spent["checkpoints"] += time.perf_counter() - began

    def wait_for_checkpoint(self, wait=True):
        """Wait for the checkpoints being written, and raise their errors; wait=False: check only completed ones."""
        while self.pending and (wait or self.pending[0][1].done()):
            step, written = self.pending.pop(0)
            began = time.perf_counter()
            if not written.cancelled():
                written.result()
            self.spent["checkpoints"] += time.perf_counter() - began
            self.saved = self.saved if step is None else step

    @contextmanager
    def saved_when_full(self):
        """If the GPU runs out of memory in the block, save the last complete step, then raise OutOfMemory.

        A failed step changes no weights. With several processes nothing is saved: the others would wait forever.
        """
        try:
            yield
        except (MemoryError, RuntimeError, OutOfMemory) as error:
            if "device" not in self.state.info or not out_of_memory(error):
                raise
            step = self.taken.step
            if self.processes.alone and step > self.saved and step % self.dataset.span == 0:
                self.save(step)
            self.wait_for_checkpoint()
            told = error if isinstance(error, OutOfMemory) else f"out of memory ({one_line(str(error), 120)}): {LESS}"
            raise OutOfMemory(
                f"{told}; the checkpoint of step {self.saved} is intact: continue with --resume {self.run}"
            ) from None

    def finish(self, step):
        """Wait for the last checkpoint, and print how much time was spent outside the steps."""
        self.wait_for_checkpoint()
        share = sum(self.spent.values()) / (time.perf_counter() - self.began)
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.spent.items())
        self.say(f"time outside the steps: {parts}, {share:.1%} of the total")

    def stop(self, step, saved):
        """End the run after a step by raising KeyboardInterrupt; saved: whether the step has a checkpoint already."""
        if not saved:
            self.save(step)
        self.finish(step)
        self.say(f"stopped; the checkpoint of step {step} is saved: continue with --resume {self.run}", always=True)
        raise KeyboardInterrupt


class Follower(Journal):
    """Do what every rank has to do together, without printing or writing: the journal of all ranks but rank 0."""

    @contextmanager
    def open(self):
        with self.bar, self.writer:
            yield

    def say(self, text, always=False):
        pass

    def note(self, **entry):
        pass

    def warn(self, step, warning):
        pass

    def vitals(self, step):
        self.state.model.params.host(), self.take_step.whole_gradient()  # collective calls, which rank 0 makes too

    def sample(self, step):
        self.state.model.params.host()  # a collective call, which rank 0 makes for its decoder

    def _write(self, function, step, training=True):
        self.state.copy(training)


def duration(seconds: float) -> str:
    """Return a time as short text, such as "45 s", "12 min" or "2.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
