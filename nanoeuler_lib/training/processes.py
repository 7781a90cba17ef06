"""Coordinate the processes of a run: one process alone, or one for each of several GPUs."""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.engine import data_parallel
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.model import GPT
from nanoeuler_lib.training import checkpoint

HASH_EVERY = 10  # steps between hashes of the weights


class Processes:
    """The processes of a run. group: None for a run in this process alone, which waits for no other one.

    alone: whether there is no group; is_rank0: whether this process writes the run's folder.
    """

    def __init__(self, group: data_parallel.Group | None = None):
        self.group, self.alone, self.is_rank0 = group, group is None, group is None or group.rank == 0

    def barrier(self) -> None:
        """Wait until every process is here."""
        if not self.alone:
            self.group.barrier()

    def any(self, value: bool) -> bool:
        """Whether the value is true in any process. Every process has to call it."""
        return value if self.alone else any(self.group.all_gather(value))

    def shards(self, config: TrainConfig) -> dict[str, int]:
        """What the header of a new run says about its shards. Raises NanoEulerError for an impossible number."""
        if self.alone:
            return {}
        data_parallel.expect_shards(config, self.group.size)
        return {"shards": config.accumulate}

    def begin(self, run: Path, state: checkpoint.Checkpoint, take_step: Any) -> list[str]:
        """Get ready for the first step. Returns warnings where what the bits depend on has changed."""
        if self.alone:
            return []
        now = take_step.bits()
        before, warnings = state.info.get("bits", now), []
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                was, now_is = (short(x.get(name)) for x in (before, now))
                warnings += [f"numbers round otherwise from here on: {name} was {was}, is {now_is}"]
        if any(other != now for other in self.group.all_gather(now)):
            warnings += ["the cards are not all alike: another number of them would give other bits"]
        state.info["bits"] = now

        def last_checkpoint():
            if not (folders := checkpoint.folders(run)):
                return ""
            return f"; the checkpoint of step {checkpoint.step_of(folders[-1])} is whole: --resume {run} goes on"

        self.group.say_when_lost(last_checkpoint)
        self.group.barrier()
        return warnings

    @contextmanager
    def drawing(self, draw: Callable[[int], tuple]) -> Iterator[Callable[[int], tuple]]:
        """Give the function that returns the batch of a step.

        Batches of several processes have many rows, so each is drawn while the step before it is computed.
        """
        if self.alone:
            yield draw
            return
        coming = {}

        def drawn_ahead(step):
            batch = coming.pop(step, None) or pool.submit(draw, step)
            coming[step + 1] = pool.submit(draw, step + 1)
            return batch.result()

        with ThreadPoolExecutor(1) as pool:
            yield drawn_ahead

    def hash(self, step: int, config: TrainConfig, norm: float, take_step: Any) -> dict[str, str]:
        """The hash of the weights for the log, where it is due. Every process has to call it."""
        due = step % HASH_EVERY == 0 or step == config.steps
        return {"hash": take_step.hash()} if not self.alone and due and math.isfinite(norm) else {}

    def validation(self, model: GPT, work: Callable[[GPT], Any]) -> Any:
        """What `work(model)` returns. Every process has to call it."""
        return work(model) if self.alone else data_parallel.shared_out(model, work)


def processes_before(run: Path, state: checkpoint.Checkpoint, group: data_parallel.Group | None) -> Processes:
    """The processes that go on with a run: those that are there, or this one with the sums of many.

    Raises NanoEulerError for several, or for GPUs, where the run adds its gradients in another order.
    """
    if "shards" in state.info:
        processes = Processes(group or data_parallel.Group())
        processes.shards(state.train)
        return processes
    if group is not None:
        raise NanoEulerError(
            f"{run}: was begun without --gpus and adds its gradients in another order: resume it without --gpus"
        )
    return Processes()
