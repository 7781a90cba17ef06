"""The class that coordinates the processes of a run: a single process, or one for each of several GPUs."""

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
    """Coordinate the processes of a run. group: the processes; None for a run with this process only."""

    def __init__(self, group: data_parallel.Group | None = None):
        self.group, self.alone, self.is_rank0 = group, group is None, group is None or group.rank == 0

    def barrier(self) -> None:
        """Wait until every process has called this method."""
        if not self.alone:
            self.group.barrier()

    def any(self, value: bool) -> bool:
        """Return whether the value is true in any process. Every process has to call it."""
        return value if self.alone else any(self.group.all_gather(value))

    def shards(self, config: TrainConfig) -> dict[str, int]:
        """Return the number of shards of a step. Raises NanoEulerError if its batches cannot be divided."""
        if self.alone:
            return {}
        data_parallel.expect_shards(config, self.group.size)
        return {"shards": config.accumulate}

    def begin(self, run: Path, state: checkpoint.Checkpoint, take_step: Any) -> list[str]:
        """Prepare for the first step. Returns a warning for each change after which rounding may differ."""
        if self.alone:
            return []
        now = take_step.bits()
        before, warnings = state.info.get("bits", now), []
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                was, now_is = (short(x.get(name)) for x in (before, now))
                warnings += [f"rounding may differ from this step on: {name} was {was}, is now {now_is}"]
        if any(other != now for other in self.group.all_gather(now)):
            warnings += ["the GPUs are of different kinds, so a different number of them would round differently"]
        state.info["bits"] = now

        def last_checkpoint():
            if not (folders := checkpoint.folders(run)):
                return ""
            step = checkpoint.step_of(folders[-1])
            return f"; the checkpoint of step {step} is intact: continue with --resume {run}"

        self.group.say_when_lost(last_checkpoint)
        self.group.barrier()
        return warnings

    @contextmanager
    def drawing(self, draw: Callable[[int], tuple]) -> Iterator[Callable[[int], tuple]]:
        """Give a function that returns a step's batch; with several processes, a thread draws it one step ahead."""
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
        """Return {"hash": hash of the weights} if it is due at this step, else {}. Every process has to call it."""
        due = step % HASH_EVERY == 0 or step == config.steps
        return {"hash": take_step.hash()} if not self.alone and due and math.isfinite(norm) else {}

    def validation(self, model: GPT, work: Callable[[GPT], Any]) -> Any:
        """Return `work(model)`, computed by all processes together. Every process has to call it."""
        return work(model) if self.alone else data_parallel.shared_out(model, work)


def processes_before(run: Path, state: checkpoint.Checkpoint, group: data_parallel.Group | None) -> Processes:
    """Return the processes that resume a run: the group, or a group of one if the run began with --gpus.

    Raises NanoEulerError for a group if the run began without --gpus, because it adds gradients in a different order.
    """
    if "shards" in state.info:
        processes = Processes(group or data_parallel.Group())
        processes.shards(state.train)
        return processes
    if group is not None:
        raise NanoEulerError(
            f"{run}: began without --gpus and adds its gradients in a different order: resume it without --gpus"
        )
    return Processes()
