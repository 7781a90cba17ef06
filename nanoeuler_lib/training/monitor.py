"""Per-layer training diagnostics ("vital signs"), and the monitor that warns of problems in a run or its data."""

import math
from collections import deque
from statistics import fmean, pvariance

import numpy as np

from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.model.parameters import Parameters

WINDOW = 50  # steps over which losses are averaged before two averages are compared
# for about this many passes, repeating a text helps as much as new text (Muennighoff et al. 2023)
PASSES = 4
# validation losses (lower is better): name in the log -> unit
MEASURES = {"valid_bits_per_byte": "bits per byte", "valid_loss": "nats per pair", "valid_missed": "of the reward"}
# To detect a leak, WINDOWS pieces of the validation text, each of LENGTH characters, are searched in the training text;
# a warning is given if more than the fraction LEAKED is found. In ordinary text no piece is found. In stories from a
# grammar, pieces of 100 characters sometimes are.
WINDOWS, LENGTH, LEAKED = 25, 200, 0.1
EQUAL_REWARDS = "frac_reward_zero_std"  # fraction of groups whose rewards are all equal; TRL uses this name too
COLLAPSED = 3  # a warning is given after this many steps in a row in which all groups have equal rewards
LEARNT = 0.95  # a final loss above this fraction of the token frequencies' entropy means that little was learnt
VANISHED = 1e-5  # the gradient of a layer group vanishes below this fraction of the whole gradient norm


def group_of(name: str) -> str:
    """Return the layer group of a parameter tensor: embed, layers.0, ..., heads."""
    if name.startswith("layers."):
        return name.rsplit(".", 1)[0]
    return "embed" if name in ("embed", "positions") else "heads"


def vitals(before: np.ndarray, params: Parameters, grads: Parameters, norm: float) -> dict[str, list[float]]:
    """Compute the gradient norm and the update-to-weight ratio of each layer group.

    before: the parameters before a step, flat [P]; params: after the step; grads: the
    step's gradient, up to a factor; norm: its norm before clipping. Returns {group: [norm,
    ratio]}; the squares of the group norms add up to norm squared. While the learning rate
    is high, a ratio near 1e-3 is usual; at 1e-5 a group hardly learns, at 1e-1 it forgets
    what it has learnt. Chapter 12.
    """
    squares: dict[str, np.ndarray] = {}
    start = 0
    for name, after in params.items():
        old = before[start : start + after.size]
        new, gradient = after.reshape(-1), grads[name].reshape(-1)
        start += after.size
        moved = new - old
        parts = np.array([np.vdot(x, x) for x in (gradient, moved, old)], np.float64)
        squares[group_of(name)] = squares.get(group_of(name), 0.0) + parts
    whole = math.sqrt(sum(s[0] for s in squares.values())) or 1.0
    return {
        group: [norm * math.sqrt(g) / whole, math.sqrt(moved / max(weight, 1e-30))]
        for group, (g, moved, weight) in squares.items()
    }


class Watch:
    """Read a run's log entries as they are written, and return warnings, each kind once.

    train_tokens: of the training text; frequencies: entropy of its tokens' frequencies, guess: of uniform ones, in nats
    per token, None if they do not apply. On resuming, call `see` with the old entries first, to repeat no warning.
    """

    def __init__(
        self,
        config: TrainConfig,
        tokens_per_step: int,
        train_tokens: int,
        frequencies: float | None = None,
        guess: float | None = None,
    ):
        self.frequencies, self.recent = frequencies, deque(maxlen=WINDOW)
        self.config, self.tokens_per_step, self.train_tokens = config, tokens_per_step, train_tokens
        self.losses: list[float] = []
        # mean and variance of the window with the lowest loss, and its last step
        self.best: tuple[float, float, int] | None = None if guess is None else (guess, 0.0, 0)
        self.valid: list[tuple[int, float]] = []
        self.warned: set[str] = set()
        self.equal: list[bool] = []  # for each of the latest steps: whether all groups had equal rewards

    def begin(self) -> list[str]:
        """Return warnings about the plan: too many passes over the data, or a warm-up longer than the run."""
        steps, warmup, found = self.config.steps, self.config.warmup, []
        if steps * self.tokens_per_step >= PASSES * self.train_tokens:
            self.warned.add("repeats")
            found += [f"the data will repeat: {self._passes(steps)}"]
        if warmup > steps:
            found += [
                f"the warm-up of {warmup} steps is longer than the run of {steps}, so the learning rate ends at "
                f"{self.config.rate * steps / warmup:.2g} and never reaches its peak of {self.config.rate:g}: use "
                f"about --warmup {max(1, steps // 10)}"
            ]
        return found

    def see(self, entry: dict) -> list[str]:
        """Return the new warnings that a log entry causes, usually none."""
        warnings = {}
        if "loss" in entry:
            warnings["rises"] = self._loss_rises(entry)
            warnings["repeats"] = self._data_repeats(entry["step"])
            warnings["nothing"] = self._nothing_is_learnt(entry)
            warnings["collapse"] = self._rewards_collapse(entry)
        if measure := measured(entry):
            warnings["valid"] = self._validation_rises(entry["step"], entry[measure], MEASURES[measure])
        if "groups" in entry:
            warnings["vanishes"] = self._gradient_vanishes(entry)
        new = [kind for kind, text in warnings.items() if text and kind not in self.warned]
        self.warned.update(new)
        return [warnings[kind] for kind in new]

    def _loss_rises(self, entry):
        self.losses.append(entry["loss"])
        if len(self.losses) < WINDOW:
            return None
        mean, variance = fmean(self.losses), pvariance(self.losses)
        self.losses.clear()
        step = entry["step"]
        if self.best is None or mean < self.best[0]:
            self.best = mean, variance, step
            return None
        error = math.sqrt((variance + self.best[1]) / WINDOW)
        if mean - self.best[0] < max(5 * error, 0.03 * self.best[0]):
            return None
        return (
            f"step {step}: the loss rises: {mean:.3f} nats over the last {WINDOW} steps, {self.best[0]:.3f} up to "
            f"step {self.best[2]}. Usually the learning rate is too high (it is {entry['rate']:.2g} now): try half of "
            "it, a longer warm-up, or a lower --clip"
        )

    def _nothing_is_learnt(self, entry):
        self.recent.append(entry["loss"])
        ends = entry["step"] == self.config.steps >= 2 * WINDOW
        if self.frequencies is None or not ends or (mean := fmean(self.recent)) < LEARNT * self.frequencies:
            return None
        return (
            f"step {entry['step']}: the model has learnt nearly nothing: {mean:.3f} nats over the last "
            f"{len(self.recent)} steps, while predicting each token by its frequency alone gives "
            f"{self.frequencies:.3f}. Usually the learning rate is too high or too low (its peak is "
            f"{self.config.rate:g}), or there are too few steps"
        )

    def _data_repeats(self, step):
        if step * self.tokens_per_step < PASSES * self.train_tokens:
            return None
        return f"step {step}: the data repeats: {self._passes(step)}"

    def _passes(self, steps):
        drawn = steps * self.tokens_per_step
        return (
            f"{steps} steps draw {drawn} tokens from a text of {self.train_tokens}, {drawn / self.train_tokens:.1f} "
            f"passes. After about {PASSES} passes, a model learns little more from the text and memorises it: compare "
            "training and validation loss; use more text, fewer steps, or a smaller model"
        )

    def _validation_rises(self, now, value, unit):
        self.valid.append((now, value))
        step, best = min(self.valid, key=lambda pair: pair[1])
        last_three = self.valid[-3:]
        if len(self.valid) < 4 or min(bits for _, bits in last_three) < 1.02 * best:
            return None
        return (
            f"step {now}: the validation loss rises: {value:.4f} {unit}, {best:.4f} at step {step}, and higher three "
            "times in a row. If the training loss still falls, the model memorises its text: use more text, stop "
            "earlier, or use more weight decay. If both rise, the learning rate is too high"
        )

    def _rewards_collapse(self, entry):
        figures = entry.get("figures", {})
        if EQUAL_REWARDS not in figures:
            return None
        self.equal = [*self.equal[1 - COLLAPSED :], figures[EQUAL_REWARDS] == 1]
        if not any(self.equal):
            self.warned.discard("collapse")  # warn again at the next collapse
        if len(self.equal) < COLLAPSED or not all(self.equal):
            return None
        return (
            f"step {entry['step']}: no group has two different rewards, so nothing is learnt: {COLLAPSED} steps in a "
            f"row have {EQUAL_REWARDS} 1 and reward {figures['reward']:g}. If no answer is correct, fine-tune on the "
            "task first (nanoeuler sft) or sample more answers per question (--group). If all are, nothing is left to "
            "learn"
        )

    def _gradient_vanishes(self, entry):
        if self.equal[-1:] == [True]:  # all advantages are 0, so the gradient vanishes in every layer
            return None
        norm = math.hypot(*(g for g, _ in entry["groups"].values()))
        gone = [group for group, (g, _) in entry["groups"].items() if not g > VANISHED * norm]
        if not gone:
            return None
        return (
            f"step {entry['step']}: the gradient vanishes in {', '.join(gone)}: its norm is "
            f"{entry['groups'][gone[0]][0]:.1e}, while the whole gradient has norm {norm:.1e}. These weights hardly "
            "affect the loss: check their backward pass (`nanoeuler check`), their initialisation, and the layers "
            "between them and the loss"
        )


def measured(entry: dict) -> str | None:
    """Return the name of the validation loss in a log entry or a checkpoint's info, None if it has none."""
    return next((name for name in MEASURES if name in entry), None)


def percent(share: float) -> str:
    """Return a fraction as a percentage, rounded down, so that 100% means all."""
    return f"{math.floor(1e4 * share + 1e-9) / 100:.4g}%"


def text_warnings(text: str, valid: str, separator: str) -> list[str]:
    """Return warnings about repeated documents, text in both parts, and separators not on a line of their own."""
    documents = [document for document in text.split(separator) if document]
    distinct = set(documents)
    held_out = [document for document in valid.split(separator) if document]
    leaked = sum(document in distinct for document in held_out) if len(documents) > 1 else 0
    warnings = document_warnings(len(documents), len(distinct), len(held_out), leaked)
    starts = {*np.linspace(0, len(valid) - LENGTH, WINDOWS, dtype=int).tolist()} if len(valid) >= LENGTH else ()
    found = sum(valid[start : start + LENGTH] in text for start in starts)
    if not leaked and found > LEAKED * len(starts):
        warnings.append(
            f"validation leaks: {found} of {len(starts)} windows of {LENGTH} characters of the validation text appear "
            "in the training text, so the validation loss will be too low: hold out a different text"
        )
    mark = separator.strip()
    if inside := sum(document.count(mark) for document in documents):
        warnings.append(
            f"{mark} appears {inside} times within a line, where it is ordinary text: to separate documents, it needs "
            "a line of its own"
        )
    return warnings


def document_warnings(documents: int, distinct: int, held_out: int, leaked: int) -> list[str]:
    """Return warnings about repeated documents, from the numbers of documents, distinct, held-out and leaked ones."""
    warnings = []
    if distinct < 0.9 * documents:
        warnings.append(
            f"the data repeats: {documents - distinct} of {documents} training documents are copies of earlier ones: "
            "remove the copies, or the model memorises them"
        )
    if leaked:
        warnings.append(
            f"validation leaks: {leaked} of {held_out} validation documents appear in the training text, so the "
            "validation loss will be too low: remove them from one part"
        )
    return warnings
