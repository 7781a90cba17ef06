"""Write a run's log, its console output and its checkpoints."""

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
    """A step that was taken. losses: mean nats by head [K]; norm: of the gradient; tokens: of its batch."""

    step: int
    losses: np.ndarray | None = None
    norm: float = 0.0
    tokens: int = 0
    seconds: float = 0.0


class Journal:
    """Write a run's log, its lines and progress bar on the terminal, its warnings and its checkpoints.

    options: `RunOptions`; processes: those of the run; still_there: raises when the run's folder is gone.
    """

    def __init__(self, run, state, dataset, options, processes, still_there):
        self.run, self.state, self.dataset, self.config = run, state, dataset, state.train
        self.options, self.processes, self.still_there = options, processes, still_there
        self.append = None  # set while the log is open
        self.writer, self.pending = ThreadPoolExecutor(1, "checkpoint"), []
        self.saved, self.taken = state.step, Taken(state.step)  # the step of the last checkpoint; the last whole step
        # what the last checkpoint still needs: its step's entries in the log, and the arguments of `look`
        self.due = state.info.pop("due", None)
        self.at, self.entries = state.step, 0  # the step of the last entry, and how many it has
        self.validation_seconds = 0.0
        self.best = run_folder.best(run)  # validation of the best checkpoint kept, None: there is none
        self.began = time.perf_counter()
        # seconds that the steps waited for each
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
        """Inside, the bar is shown and the log takes entries."""
        with self.bar, self.writer, appending(self.run / "log.jsonl", lambda: self.saved) as self.append:
            yield

    def say(self, text, always=False):
        """A line above the bar."""
        if always or not self.options.quiet:
            with self.bar.get_lock():
                self.bar.clear(nolock=True)
                self.out.line(text)
                self.bar.refresh(nolock=True)

    def note(self, **entry):
        """An entry of the log, and what the watch has to say about it."""
        self.append(entry)
        self.entries = self.entries + 1 if entry["step"] == self.at else 1
        self.at = entry["step"]
        if self.options.on_entry is not None:
            self.options.on_entry(entry)
        for warning in self.watch.see(entry):
            self.warn(entry["step"], warning)

    def warn(self, step, warning):
        self.note(step=step, warning=warning)
        self.say(f"warning: {warning}")

    def _without(self, step, what, error):
        """Warn that a step has no validation or no sample; its weights are what they are."""
        self.warn(step, f"no {what}: {one_line(str(error) if isinstance(error, NanoEulerError) else repr(error))}")

    def begin(self, take_step, warnings, changed):
        """What will be done, what is odd about it, and the validation before the first step.

        changed: what of the settings was changed, for the log.
        """
        self.take_step, first = take_step, self.state.step
        if take_step.memory_line:
            self.say(take_step.memory_line)
        planned = self.config.steps * self.step_tokens
        sizes = ", ".join(f"{size:,} {name.replace('_', ' ')}" for name, size in self.dataset.sizes.items())
        self.say(f"model: {self.state.model.size:,} parameters; data: {sizes}")
        whence = f"from step {first:,} on, " if first else ""
        passes, held_out = planned / self.dataset.tokens, ""
        if "split" in self.state.info:
            train, valid = self.dataset.sizes["train_tokens"], self.dataset.sizes["valid_tokens"]
            held_out = f"; held out {valid / (train + valid):.1%}"
        self.say(
            f"plan: {whence}{self.config.steps:,} steps of {self.step_tokens:,} tokens, {planned:,} in all, "
            f"{passes:{'.1f' if passes >= 1 else '.2g'}} passes over the data; rows reach "
            f"{percent(self.dataset.reach)} of its {self.dataset.unit}{held_out}"
        )
        ahead = self.watch.begin()
        said = set()  # changes that the log names for this step: a process was killed after it wrote them
        if first == 0:
            warnings = [*warnings, *self.dataset.warnings, *ahead]
        else:
            warnings = [*warnings, *(ahead if changed else ())]
            for entry in entries(self.run / "log.jsonl"):
                self.watch.see(entry)  # it was said before
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
        """Say how long the run will take, from the time of the next batch's gradient; nothing is changed."""
        left = self.config.steps - self.state.step
        if self.options.quiet or left < 20:
            return
        batch = self.dataset.batch(self.state.step, self.rows)
        times = []
        while len(times) < 3 and sum(times) < 5:  # the first one also takes memory
            began = time.perf_counter()
            self.take_step.gradient(*batch)
            times.append(time.perf_counter() - began)
        validations = left // self.config.valid_every * self.validation_seconds
        whole = duration(left * min(times) + validations)
        self.say(f"about {whole} to go, at {min(times):.2g} s a step, measured now")

    def start_profile(self, step):
        """Have every launch timed from now on."""
        self.profile = self.take_step.watched()

    def end_profile(self, step):
        self.say(self.profile.table(self.options.profile), always=True)
        self.take_step.unwatched()

    def log(self, step):
        """Log the step that was taken; an error if it was not, because its loss or gradient is no finite number."""
        _, losses, norm, tokens, seconds = self.taken
        more = self.processes.hash(step, self.config, norm, self.take_step)
        if not math.isfinite(norm):
            self.wait_for_checkpoint()
            clip = f"the clip ({self.config.clip:g})" if self.config.clip else "set a clip (it is 0: none)"
            raise NanoEulerError(
                f"step {step}: loss is {losses[0]:.4g} and the gradient's norm {norm}{self.take_step.bad_rank}, "
                f"expected finite numbers: lower the learning rate ({self.config.rate:g}) or {clip}; the checkpoint "
                f"of step {self.saved} is intact, and --resume {self.run} --lr X continues from it with another rate"
            )
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
        """Keep the weights before a step, for its vital signs. Every process has to call it."""
        self.weights = self.state.model.params.host().flat.copy()

    def vitals(self, step):
        """Log the vital signs of a step. Every process has to call it."""
        before, self.weights = self.weights, None
        after, gradient = self.state.model.params.host(), self.take_step.whole_gradient()
        signs = vitals(before, after, gradient, self.taken.norm)
        self.note(step=step, groups={group: [float(f"{x:.4g}") for x in pair] for group, pair in signs.items()})

    def look(self, step, validates, whole, samples):
        """Validate and sample, where a step has that; its checkpoint then gets the validation."""
        if validates:
            self.validate(step, whole)
        if samples:
            self.sample(step)
        self.renew(step)

    def renew(self, step):
        """Write the header of a step's checkpoint again, if it said that validation and sample were due."""
        if self.due and self.processes.is_rank0:
            path, info = run_folder.folder_of(self.run, step), dict(self.state.info)
            self.pending += [(step, self.writer.submit(checkpoint.renew, path, info))]
        self.due = None

    def validate(self, step, whole=True):
        began = time.perf_counter()
        try:
            work = lambda model: self.dataset.validation(model, whole)
            entry = self.processes.validation(self.state.model, work)
        except Exception as error:
            if step == 0 or not self.processes.alone:  # nothing is lost yet; the other processes would wait
                raise
            for name in (self.dataset.measure, "valid_sets"):  # of an earlier step
                self.state.info.pop(name, None)
            self._without(step, "validation", error)
            return
        seen = round(self.dataset.seen(step), 6)
        if not entry:
            self.note(step=step, seen=seen)
            if step == 0:
                self.say("there is nothing to validate on: no bits per byte, no best checkpoint")
            return
        measure, sets = self.dataset.measure, entry.get("valid_sets", {})
        bits, unit = entry[measure], MEASURES[measure]
        self.state.info |= {name: entry[name] for name in (measure, "valid_sets") if name in entry}
        self.validation_seconds = time.perf_counter() - began
        self.spent["validation"] += self.validation_seconds
        if not math.isfinite(bits):
            self.wait_for_checkpoint()
            if self.due and self.processes.is_rank0:  # nobody could go on from it
                run_folder.drop(self.run, step)
                self.saved = checkpoint.step_of(checkpoint.folders(self.run)[-1])
            raise NanoEulerError(
                f"step {step}: validation gives {bits} {unit}; the checkpoint of step {self.saved} is intact"
            )
        self.note(step=step, **entry, seen=seen, seconds=round(self.validation_seconds, 6))
        of_each = "".join(f", {name} {bits:.4f}" for name, bits in sets.items())
        share = f" (of {entry['valid_share']:.0%} of the text)" if "valid_share" in entry else ""
        figures = "".join(f", {name} {x:.4g}" for name, x in entry.get("figures", {}).items())
        self.say(f"step {step}: validation {bits:.4f} {unit}{of_each}{share}{figures}")
        if step and not share and (self.best is None or bits < self.best):
            self.best = bits
            for of_step, written in self.pending:
                if of_step is None:  # a better one comes: if it has not begun, it is not needed
                    written.cancel()
            self._write(run_folder.save_best, step, training=False)

    def sample(self, step):
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
        """Have the checkpoint of a step written while the run goes on. One at a time: see `wait_for_checkpoint`.

        looks: those of `look` that come now. Until they are done the checkpoint says that they are due.
        """
        self.wait_for_checkpoint()
        self.due = [self.entries, *looks] if any(looks) else None
        self._write(run_folder.save, step)

    def _write(self, function, step, training=True):
        """Have a thread write a copy of the state; training: as a checkpoint that a run goes on from."""
        self.still_there()
        began = time.perf_counter()
        state = self.state.copy(training)
        state.info |= {"due": self.due} if training and self.due else {}
        written = self.writer.submit(function, self.run, state, step)
        self.pending += [(step if training else None, written)]
        self.spent["checkpoints"] += time.perf_counter() - began

    def wait_for_checkpoint(self, wait=True):
        """Take note of the checkpoints that were being written; raises what went wrong with them."""
        while self.pending and (wait or self.pending[0][1].done()):
            step, written = self.pending.pop(0)
            began = time.perf_counter()
            if not written.cancelled():
                written.result()
            self.spent["checkpoints"] += time.perf_counter() - began
            self.saved = self.saved if step is None else step

    @contextmanager
    def saved_when_full(self):
        """Where a GPU's memory ends between checkpoints, write one of the last whole step before the error goes on.

        Writing takes no memory of the GPU, and a step that fails has moved nothing. Other processes would wait.
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
                f"{told}; the checkpoint of step {self.saved} is whole: --resume {self.run} goes on"
            ) from None

    def finish(self, step):
        """Wait for the last checkpoint, and say what the run's time outside its steps went into."""
        self.wait_for_checkpoint()
        share = sum(self.spent.values()) / (time.perf_counter() - self.began)
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.spent.items())
        self.say(f"outside the steps: {parts}, {share:.1%} of the time")

    def stop(self, step, saved):
        """End the run between its steps; saved: whether the step has its checkpoint."""
        if not saved:
            self.save(step)
        self.finish(step)
        self.say(f"stopped; the checkpoint of step {step} is saved: --resume {self.run} goes on", always=True)
        raise KeyboardInterrupt


class Follower(Journal):
    """The journal of a rank that only follows rank 0: nothing is told or written, and what all ranks do is done."""

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
        self.state.model.params.host(), self.take_step.whole_gradient()  # rank 0 collects them

    def sample(self, step):
        self.state.model.params.host()  # as rank 0 does for its decoder

    def _write(self, function, step, training=True):
        self.state.copy(training)


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
