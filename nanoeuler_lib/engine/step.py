"""One training step on a GPU (`Step`), and a profile of the time that its launches take (`Profile`)."""

import math
import time
from itertools import pairwise

import numpy as np

from nanoeuler_lib import cuda, model
from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.engine import program
from nanoeuler_lib.engine.gpt import GPT
from nanoeuler_lib.engine.loss_scale import LossScale
from nanoeuler_lib.engine.memory import (
    RESERVED,
    AdamW,
    OutOfMemory,
    Parameters,
    bytes_needed,
    download,
    free_bytes,
    gib,
    layout,
    muon_groups,
    muon_work,
    room_for,
    upload,
)
from nanoeuler_lib.model import backward, forward, head_weights, optim

LESS = "take a shorter --context, a smaller model (--preset, --dim, --layers), or --device cpu"


class Step:
    """Run optimisation steps on the GPU, with the interface of `model.step.Step`.

    The batch is split into micro-batches of `micro` rows, by default the most that memory allows, and their gradients
    are summed. The host uploads tokens, targets and four numbers and downloads the K losses and the norm; nothing else
    waits for the host. If a loss or the norm is not finite, the GPU leaves the parameters unchanged. In float16,
    gradients are scaled, and a step whose gradient overflows is taken again: `LossScale`.
    """

    bad_rank = ""  # with several GPUs, words that name the ranks whose numbers are not finite

    def __init__(
        self,
        owner: GPT,
        optimizer: AdamW,
        config: TrainConfig,
        rows: int,
        workers: int | None = None,
        micro: int | None = None,
    ):
        self._begin(owner, optimizer, config, rows, micro or fitting(owner, rows, config.optimizer))
        where, self.work = owner.program.where, None
        owner.plan(self.micro, owner.config.context)  # the largest plan first: all others fit into its memory
        with room_for("the gradient", 4 * layout(owner.config)[2], where, LESS):
            self.grads = Parameters(owner.config, where)
            self.sums = cuda.array_module(where).empty(owner.config.predict, np.float32)
            if config.optimizer == "muon":
                [self.work] = muon_work([muon_groups(owner.config)], owner.precision, where)

    def _begin(self, owner, optimizer, config, rows, micro):
        self.model, self.optimizer, self.config, self.rows = owner, optimizer, config, rows
        self.weights, self.micro = head_weights(owner.config, config.later_heads), micro
        self.run, self.profile, self.key = program.run, None, object()  # key: marks this step's lists in a plan
        xp = cuda.array_module(owner.program.where)
        self.factor, self.numbers = xp.empty(2, np.float32), xp.empty(4, np.float32)
        self.scaled = owner.precision == "float16"
        self.loss_scale = LossScale(*optimizer.loss_scale) if self.scaled else LossScale(1)
        self.used = 1  # the scale of the gradient in `grads`

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    @property
    def info(self) -> dict[str, list[int]]:
        """The state of the step that a checkpoint has to store: in float16 the loss scale, else nothing."""
        return {"loss_scale": [self.loss_scale.value, self.loss_scale.steps]} if self.scaled else {}

    @property
    def memory_line(self) -> str:
        """A line of text with the memory that a step takes, printed when a run starts."""
        m, config = self.model, self.model.config
        sizes = config, self.micro, config.context, m.precision, m.keep_x
        need = bytes_needed(*sizes, self.config.optimizer)
        shares = ", ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in need.items())
        return f"GPU: {m.precision}, {self.micro} of {self.rows} rows at a time; {shares}"

    def watched(self) -> "Profile":
        """Time each launch from now on, and return the profile that collects the times."""
        self.profile = Profile(self.model.program.where)
        self.run = self.profile.run
        return self.profile

    def unwatched(self) -> None:
        """Stop timing launches."""
        self.run, self.profile = program.run, None

    def _gradient_lists(self, plan, accumulate):
        """Return the launches of a gradient in two lists: those before the embedding's gradient, and the rest."""
        m, key = self.model, ("gradient", accumulate, self.key)
        if key not in plan.lists:
            forward(m.weights, plan, plan.tokens)
            backward(m.weights, self.grads, plan, plan.tokens, plan.targets, plan.scale, accumulate)
            plan.op.sum_losses(self.sums, plan.losses, accumulate)
            plan.lists[key] = plan.program.take().cut("embed_back")
        return plan.lists[key]

    def _update_list(self, plan):
        m, o, c = self.model, self.optimizer, self.config

        def record():
            plan.op.norm(self.factor, self.grads.flat, c.clip)
            self._unscale(plan.program)
            plan.program.refuse(self.factor, self.sums)
            copy = None if m.copy is None else m.copy.flat
            arrays = m.params.flat, self.grads.flat, o.m.flat, o.v.flat, copy
            if c.optimizer == "adamw":
                plan.op.adamw(*arrays, self.factor, self.numbers, m.params.decayed, c)
                return
            for part in m.params.outside:
                of = (x if x is None else x[part] for x in arrays)
                decayed = min(part.stop, m.params.decayed) - part.start
                plan.op.adamw(*of, self.factor, self.numbers, decayed, c)
            arrays = m.params.flat, self.grads.flat, o.m.flat, copy
            plan.op.muon(*arrays, self.factor, self.numbers, optim.MUON_BETA, c.decay, self.work)

        return plan.list(("update", self.key), record)

    def _unscale(self, p):
        if self.scaled:
            p.unscale(self.factor, self.numbers, self.config.clip)

    def gradient(self, tokens: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Compute the gradient into `grads` for tokens [B, T], targets [B, T, K]; return mean nats by head [K]."""
        self._start_gradient(tokens, targets)
        return self._losses()

    def _scale(self):
        self.used = self.loss_scale.value
        return np.where(self.valid > 0, self.used * self.weights / np.maximum(self.valid, 1), 0.0)

    def _start_gradient(self, tokens, targets):
        self.valid = valid_targets(targets)
        scale, plan = self._scale(), self.model.plan(min(self.micro, len(tokens)), tokens.shape[1])
        for start in range(0, len(tokens), plan.batch):
            part = slice(start, start + plan.batch)
            plan.put(tokens[part], targets[part], scale)
            most, last = self._gradient_lists(plan, start > 0)
            self.run(most)
            plan.sort(tokens[part])  # while the GPU works
            self.run(last)

    def _losses(self):
        return download(self.sums) / np.maximum(self.valid, 1)

    def apply(self) -> float:
        """Clip the gradient and update the parameters; return the norm before clipping, NaN if a loss is not finite."""
        self._tell()
        return self._move()

    def _tell(self):
        """Upload what changes from step to step: learning rate, bias corrections of the moments, 1 / loss scale."""
        c, t = self.config, self.optimizer.step + 1
        rate = optim.learning_rate(self.optimizer.step, c)
        upload(self.numbers, [rate, 1 / (1 - c.beta1**t), 1 / (1 - c.beta2**t), 1 / self.loss_scale.value])

    def _move(self):
        self.run(self._update_list(self.model._plan))
        norm = float(download(self.factor)[1])
        if math.isfinite(norm):
            self.optimizer.step += 1
        return norm

    def whole_gradient(self) -> model.Parameters:
        """Return the gradient of the last step, before clipping."""
        return self._unscaled(self.grads)

    def _unscaled(self, grads):
        host = grads.host()
        host.flat /= self.used
        return host

    def __call__(self, tokens: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, float]:
        """Run a step on tokens [B, T], targets [B, T, K]; return mean nats [K] and the norm before clipping."""
        while True:
            self._tell()  # an upload waits for running launches, so it must not come between gradient and update
            self._start_gradient(tokens, targets)
            norm = self._move()
            losses = self._losses()
            if not self.scaled or self.loss_scale.accepts(norm, losses):
                return losses, norm


def valid_targets(targets: np.ndarray) -> np.ndarray:
    """Count the targets [..., K] of each head that are not -1: [K]. The GPU waits for this, so it must be fast."""
    if targets.min() >= 0:
        return np.full(targets.shape[-1], targets[..., 0].size)
    return np.array([np.count_nonzero(head >= 0) for head in np.moveaxis(targets, -1, 0)])


def fitting(owner: GPT, rows: int, optimizer: str = "adamw") -> int:
    """Return the largest divisor of `rows` whose buffers, with the gradient, fit into the free memory.

    The weights and the optimiser's state must have been allocated before. Raises OutOfMemory if not even one row fits.
    """
    config, where, needs = owner.config, owner.program.where, {}
    free, least = free_bytes(where) + owner.block_bytes, RESERVED if where == "gpu" else 0
    for micro in sorted((m for m in range(1, rows + 1) if rows % m == 0), reverse=True):
        need = bytes_needed(config, micro, config.context, owner.precision, owner.keep_x, optimizer)
        needs[micro] = least + need["buffers"] + 4 * layout(config)[2]
        if needs[micro] <= free:
            return micro
    raise OutOfMemory(
        f"out of memory: one row of {config.context} tokens and the gradient take {gib(needs[1])}, {gib(free)} are "
        f"free: {LESS}"
    )


class Profile:
    """Measure the time of each launch, by operation. `run` replaces `program.run` and times every launch separately."""

    def __init__(self, where: str):
        self.where = where
        self.of: dict[str, list[float]] = {}  # composite: [launches, seconds, bytes, floating-point operations]

    def run(self, entries: program.Launches) -> None:
        """Run the launches one after another and time each: with GPU events, or on the CPU with its clock."""
        marks = [_mark(self.where)]
        for entry in entries:
            entry.launch()
            marks.append(_mark(self.where))
        for entry, (before, after) in zip(entries, pairwise(marks), strict=True):
            totals = self.of.setdefault(entry.composite, [0, 0.0, 0, 0])
            for k, value in enumerate((1, _seconds(before, after), entry.bytes, entry.flops)):
                totals[k] += value

    def table(self, steps: int) -> str:
        """Return launches, ms, GB/s, TFLOP/s (products only) and fraction of time by operation, for an average step."""
        whole = sum(seconds for _, seconds, _, _ in self.of.values())
        lines = [f"{'composite':<18} {'launches':>8} {'ms':>9} {'GB/s':>8} {'TFLOP/s':>8} {'share':>6}"]
        for name, (count, seconds, moved, flops) in sorted(self.of.items(), key=lambda item: -item[1][1]):
            rate = f"{flops / seconds / 1e12:8.3g}" if flops else " " * 8
            lines.append(
                f"{name:<18} {count / steps:8.0f} {1e3 * seconds / steps:9.3f} {moved / seconds / 1e9:8.3g} {rate} "
                f"{seconds / whole:6.1%}"
            )
        count = sum(totals[0] for totals in self.of.values())
        lines.append(f"{'all':<18} {count / steps:8.0f} {1e3 * whole / steps:9.3f}")
        return "\n".join(lines)


def _mark(where):
    """Return a point in time: an event on the GPU's current stream, or the CPU's clock."""
    if where == "cpu":
        return time.perf_counter()
    import cupy

    event = cupy.cuda.Event()
    event.record()
    return event


def _seconds(before, after) -> float:
    if isinstance(before, float):
        return after - before
    import cupy

    after.synchronize()
    return cupy.cuda.get_elapsed_time(before, after) / 1e3
