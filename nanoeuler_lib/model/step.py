"""One optimisation step on a CPU, distributed over its cores. `training.loop` runs it."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import ClassVar

import numpy as np

from nanoeuler_lib import ops
from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.machine import cores
from nanoeuler_lib.model import GPT, Parameters, RowLoss, head_weights, loss_scale
from nanoeuler_lib.model.optim import AdamW, clip_factor, moved
from nanoeuler_lib.model.plan import Plan

# Positions that a worker computes at a time. More would not fit its cache. With fewer, NumPy calls are so short that
# workers mostly wait for Python's lock (16 sequences of `small` on 16 cores: 92 ms with 4 workers, 220 ms with 16).
MICRO_TOKENS = 512


class Step:
    """Run optimisation steps on batches with several threads.

    Each worker has its own plan and gradient, takes every n-th micro-batch, and uses one BLAS thread (call it inside
    `one_blas_thread()`). The gradients are added in the order of the workers: on a machine, the same number of workers
    gives bitwise identical results; a different number rounds differently. BLAS and NumPy release Python's lock while
    they compute. As a context manager, it ends the threads. rows: sequences per batch; workers: threads, by default one
    per core, at most one per micro-batch; together: neighbouring rows that must stay in one micro-batch (2 for pairs);
    it must divide `rows`.
    """

    def __init__(
        self,
        model: GPT,
        optimizer: AdamW,
        config: TrainConfig,
        rows: int,
        workers: int | None = None,
        together: int = 1,
    ):
        self.model, self.optimizer, self.config = model, optimizer, config
        time = model.config.context
        limit = max(together, MICRO_TOKENS // time)
        self.micro = max(m for m in range(together, min(limit, rows) + 1, together) if rows % m == 0)
        self.workers = min(workers or cores(), rows // self.micro)
        self.weights = head_weights(model.config, config.later_heads)
        self.lengths: dict[int, list[Plan]] = {}
        self.fit(time)
        self.grads = [Parameters(model.config, model.dtype) for _ in range(self.workers)]
        # An overflow shows in the loss or the norm, which are checked, so NumPy's warnings are turned off.
        self.pool = ThreadPoolExecutor(self.workers, initializer=lambda: np.seterr(all="ignore"))
        self.names = list(model.params)

    memory_line = bad_rank = ""  # set by GPU steps: a line about memory, and the GPU whose numbers are not finite
    info: ClassVar[dict[str, list[int]]] = {}  # set by GPU steps: what a checkpoint has to store of their state

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.pool.shutdown()

    def fit(self, time: int) -> None:
        """Switch the workers to plans for rows of `time` tokens, which are created on first use."""
        if time not in self.lengths:
            config, dtype = self.model.config, self.model.dtype
            self.lengths[time] = [Plan(config, self.micro, time, dtype) for _ in range(self.workers)]
        self.plans = self.lengths[time]

    def _each(self, work: Callable) -> list:
        """Run `work` for each worker and return the results; an error is raised after all have ended."""
        futures = [self.pool.submit(work, worker) for worker in range(self.workers)]
        wait(futures)
        return [future.result() for future in futures]

    @ops.again()
    def gradient(self, tokens: np.ndarray, targets: np.ndarray, weigh: RowLoss | None = None) -> np.ndarray:
        """Compute the gradient of a batch into `grads`, one summand per worker. Returns mean nats per head, [K].

        tokens: [B, T]; targets: [B, T, K], -1 for "no target"; weigh: `RowLoss`, whose figures are then returned.
        """
        self.fit(tokens.shape[1])
        by_head = loss_scale(targets, self.weights)
        starts = range(0, len(tokens), self.micro)

        def work(worker):
            plan, grads, total = self.plans[worker], self.grads[worker], 0.0
            for count, start in enumerate(starts[worker :: self.workers]):
                part = slice(start, start + self.micro)
                self.model.forward(plan, tokens[part])
                scale = by_head
                if weigh:
                    figures, scale = self.model.weights(plan, targets[part], part, weigh)
                self.model.backward(grads, plan, tokens[part], targets[part], scale, accumulate=count > 0)
                if weigh:
                    total = total + figures
                else:
                    total = total + plan.losses.sum(axis=0, dtype=np.float64)
            return total

        sums = sum(self._each(work))
        if weigh:
            return sums
        return sums / np.maximum((targets >= 0).reshape(-1, targets.shape[-1]).sum(axis=0), 1)

    def apply(self) -> float:
        """Add the gradients, clip, and update parameters if the norm is finite. Returns the norm before clipping."""

        def add(worker):
            squares = 0.0
            for name in self.names[worker :: self.workers]:
                total = self.grads[0][name]
                for other in self.grads[1:]:
                    total += other[name]
                squares += float(np.vdot(total, total))
            return squares

        norm = math.sqrt(sum(self._each(add)))
        if not math.isfinite(norm):
            return norm  # the caller stops the run; the parameters are still those of the last good step
        self.optimizer.step += 1
        self._move(self.model.params, self.grads[0], clip_factor(norm, self.config.clip))
        return norm

    @ops.again(lambda self, *arguments: moved(self.optimizer, *arguments))
    def _move(self, params: Parameters, grads: Parameters, factor: float) -> None:
        update, names = self.optimizer.update, self.names
        self._each(lambda worker: update(params, grads, names[worker :: self.workers], factor))

    def whole_gradient(self) -> Parameters:
        """Return the gradient of the last step, summed over workers and clipped."""
        return self.grads[0]

    def __call__(self, *batch) -> tuple[np.ndarray, float]:
        """Run a step with the arguments of `gradient`, updating only if finite. Returns its result and the norm."""
        losses = self.gradient(*batch)
        return losses, self.apply() if np.isfinite(losses).all() else math.nan
