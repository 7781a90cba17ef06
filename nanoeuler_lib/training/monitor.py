"""Watching a run: the vital signs of each group of layers, and warnings that say what they mean and what to try."""

import math
from collections import deque
from statistics import fmean, pvariance

import numpy as np

from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.model.parameters import Parameters

WINDOW = 50  # steps over which a loss is averaged before two of them are compared
# repeating a text teaches about as much as new text for this many passes (Muennighoff et al. 2023)
PASSES = 4
# what validations are judged by, less being better: its name in a log, and its unit
MEASURES = {"valid_bits_per_byte": "bits per byte", "valid_loss": "nats a pair", "valid_missed": "of the reward"}
# So many windows of the validation text, each of so many characters, are searched in the training text; a warning is
# given if more than this share is found. In ordinary text none is; in stories made by a grammar some of 100 characters
# are.
WINDOWS, LENGTH, LEAKED = 25, 200, 0.1
EQUAL_REWARDS = "frac_reward_zero_std"  # a figure of learning from rewards, by the name that TRL gives it
COLLAPSED = 3  # a warning is given after so many steps in a row without two different rewards in any group
LEARNT = 0.95  # a run that ends above this share of the token frequencies' entropy has learnt nearly nothing
VANISHED = 1e-5  # a group with less than this share of the gradient's norm gets nothing that matters


def group_of(name: str) -> str:
    """The group of layers that a parameter tensor belongs to: embed, layers.0, ..., heads."""
    if name.startswith("layers."):
        return name.rsplit(".", 1)[0]
    return "embed" if name in ("embed", "positions") else "heads"


def vitals(before: np.ndarray, params: Parameters, grads: Parameters, norm: float) -> dict[str, list[float]]:
    """Gradient norm and update-to-weight ratio of each group of layers, for one step.

    before: the parameters before the step, flat [P]; params: after it; grads: the step's gradient up to a factor;
    norm: its norm before clipping. Returns {group: [norm, ratio]}; the squares of the norms add up to norm squared.
    A ratio near 1e-3 is usual while the rate is high; 1e-5 hardly learns, 1e-1 hardly remembers.
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
    """Reads a run's log entries as they come, and says each thing once.

    tokens_per_step: positions in a step; train_tokens: tokens of the training text; frequencies: entropy of its token
    frequencies, and guess: entropy of the uniform distribution, both in nats per token (None: unknown, as for rewards).
    Give it the entries of a resumed run, and it knows what it has warned of.
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
        # mean, variance and end of the best window of losses
        self.best: tuple[float, float, int] | None = None if guess is None else (guess, 0.0, 0)
        self.valid: list[tuple[int, float]] = []
        self.warned: set[str] = set()
        self.equal: list[bool] = []  # of the last steps: whether every group's rewards were equal

    def begin(self) -> list[str]:
        """Warnings before the first step: too many passes over the data, a warm-up that does not end."""
        steps, warmup, found = self.config.steps, self.config.warmup, []
        if steps * self.tokens_per_step >= PASSES * self.train_tokens:
            self.warned.add("repeats")
            found += [f"the data will repeat: {self._passes(steps)}"]
        if warmup > steps:
            found += [
                f"the warm-up of {warmup} steps is longer than the run of {steps}: the rate ends at "
                f"{self.config.rate * steps / warmup:.2g}, short of its peak of {self.config.rate:g}. Take "
                f"--warmup {max(1, steps // 10)} or so"
            ]
        return found

    def see(self, entry: dict) -> list[str]:
        """The warnings that a log entry gives rise to, usually none."""
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
            f"step {self.best[2]}. Most often the rate is too high (it is {entry['rate']:.2g} now): try half of it, a "
            "longer warm-up, or a lower clip"
        )

    def _nothing_is_learnt(self, entry):
        self.recent.append(entry["loss"])
        ends = entry["step"] == self.config.steps >= 2 * WINDOW
        if self.frequencies is None or not ends or (mean := fmean(self.recent)) < LEARNT * self.frequencies:
            return None
        return (
            f"step {entry['step']}: the model has learnt nearly nothing: {mean:.3f} nats over the last "
            f"{len(self.recent)} steps, where knowing how frequent each token is gives {self.frequencies:.3f}. Most "
            f"often the rate is too high or too low (its peak is {self.config.rate:g}), or the steps are few"
        )

    def _data_repeats(self, step):
        if step * self.tokens_per_step < PASSES * self.train_tokens:
            return None
        return f"step {step}: the data repeats: {self._passes(step)}"

    def _passes(self, steps):
        drawn = steps * self.tokens_per_step
        return (
            f"{steps} steps draw {drawn} tokens from a text of {self.train_tokens}, {drawn / self.train_tokens:.1f} "
            f"passes. After about {PASSES}, repeated text teaches little and is learnt by heart: compare training with "
            "validation loss; take more text, fewer steps, or a smaller model"
        )

    def _validation_rises(self, now, value, unit):
        self.valid.append((now, value))
        step, best = min(self.valid, key=lambda pair: pair[1])
        last_three = self.valid[-3:]
        if len(self.valid) < 4 or min(bits for _, bits in last_three) < 1.02 * best:
            return None
        return (
            f"step {now}: validation rises: {value:.4f} {unit}, {best:.4f} at "
            f"step {step}, and worse three times in a row. Where the training loss still falls, the model learns its "
            "text by heart: take more text, stop earlier, or use more decay; where both rise, the rate is too high"
        )

    def _rewards_collapse(self, entry):
        figures = entry.get("figures", {})
        if EQUAL_REWARDS not in figures:
            return None
        self.equal = [*self.equal[1 - COLLAPSED :], figures[EQUAL_REWARDS] == 1]
        if not any(self.equal):
            self.warned.discard("collapse")  # the next one is told again
        if len(self.equal) < COLLAPSED or not all(self.equal):
            return None
        return (
            f"step {entry['step']}: no group has two different rewards, so nothing is learnt: {COLLAPSED} steps in a "
            f"row have {EQUAL_REWARDS} 1 and reward {figures['reward']:g}. Where no answer is right, teach the task "
            "first (nanoeuler sft) or draw more answers per question (--group); where all are, nothing is left to learn"
        )

    def _gradient_vanishes(self, entry):
        if self.equal[-1:] == [True]:  # no group has an advantage: not the layers' fault
            return None
        norm = math.hypot(*(g for g, _ in entry["groups"].values()))
        gone = [group for group, (g, _) in entry["groups"].items() if not g > VANISHED * norm]
        if not gone:
            return None
        return (
            f"step {entry['step']}: the gradient vanishes in {', '.join(gone)}: {entry['groups'][gone[0]][0]:.1e} of a "
            f"whole of {norm:.1e}. Nothing these weights do reaches the loss: look at their backward pass "
            "(`nanoeuler check`), at how they were initialised, and at what stands between them and the loss"
        )


def measured(entry: dict) -> str | None:
    """The name, in an entry of a log or in a checkpoint's info, of what validations are judged by."""
    return next((name for name in MEASURES if name in entry), None)


def percent(share: float) -> str:
    """A share in per cent, never rounded up: 100% is all."""
    return f"{math.floor(1e4 * share + 1e-9) / 100:.4g}%"


def text_warnings(text: str, valid: str, separator: str) -> list[str]:
    """What is wrong with a text before a step is taken: documents that occur twice, or text that stands in both parts.

    Also a separator that stands within a line, where it separates nothing.
    """
    documents = [document for document in text.split(separator) if document]
    distinct = set(documents)
    held_out = [document for document in valid.split(separator) if document]
    leaked = sum(document in distinct for document in held_out) if len(documents) > 1 else 0
    warnings = document_warnings(len(documents), len(distinct), len(held_out), leaked)
    starts = {*np.linspace(0, len(valid) - LENGTH, WINDOWS, dtype=int).tolist()} if len(valid) >= LENGTH else ()
    found = sum(valid[start : start + LENGTH] in text for start in starts)
    if not leaked and found > LEAKED * len(starts):
        warnings.append(
            f"validation leaks: {found} of {len(starts)} windows of {LENGTH} characters of the validation text stand "
            "in the training text too. Its figure will look better than the model is; hold out another text"
        )
    mark = separator.strip()
    if inside := sum(document.count(mark) for document in documents):
        warnings.append(
            f"{mark} stands in the text {inside} times within a line: there it is ordinary letters. Between documents "
            "it wants a line of its own"
        )
    return warnings


def document_warnings(documents: int, distinct: int, held_out: int, leaked: int) -> list[str]:
    """What is wrong with a text of so many training documents, of which so many are distinct, and so many held-out
    ones, of which so many (leaked) are in the training text."""
    warnings = []
    if distinct < 0.9 * documents:
        warnings.append(
            f"the data repeats: {documents - distinct} of {documents} training documents stand there "
            "more than once. Remove the copies, or they are learnt by heart"
        )
    if leaked:
        warnings.append(
            f"validation leaks: {leaked} of {held_out} validation documents stand in the training text too. Its "
            "figure will look better than the model is; remove them from one part"
        )
    return warnings
