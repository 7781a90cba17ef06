"""The function that repeats steps of a run from a checkpoint, and compares the results with the log."""

from pathlib import Path

import numpy as np

from nanoeuler_lib.engine.data_parallel import Group
from nanoeuler_lib.engine.device import chosen_before, step_of
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.training import checkpoint
from nanoeuler_lib.training.loop import expect_the_same
from nanoeuler_lib.training.processes import processes_before
from nanoeuler_lib.training.run_data import dataset_of
from nanoeuler_lib.training.run_folder import read_log


def replay(
    run: str | Path, part, valid, first: int, last: int, device: str | None = None, group: Group | None = None
) -> tuple[int, list[dict]]:
    """Repeat a run's steps from the last checkpoint at or before step `first` up to step `last`, without writing.

    part, valid, device, group: as for `loop.resume`. Returns the checkpoint's step, and a dict for each repeated step:
    step, loss, norm, losses of the later heads, with several GPUs the hash of the weights, and "differs", a list of
    differences from the log. Raises NanoEulerError if no such checkpoint was kept or the log has no step `last`.
    """
    run = Path(run)
    kept = [folder for folder in checkpoint.folders(run) if 0 <= checkpoint.step_of(folder) <= first]
    if not kept:
        raise NanoEulerError(
            f"{run}: has no checkpoint at or before step {first}: nanoeuler train --keep-every N keeps checkpoints"
        )
    log: dict[int, dict] = {}
    for entry in read_log(run):
        log[entry["step"]] = log.get(entry["step"], {}) | ({} if "loss" not in entry else entry)
    if not log.get(last):
        raise NanoEulerError(f"{run}: the log has no step {last}: name steps that the run has taken")
    state = checkpoint.load(kept[-1], training=True)
    processes = processes_before(run, state, group)
    dataset = dataset_of(part, valid, state)
    expect_the_same(run, state, dataset)
    place = chosen_before(state.info, device, state.model.config, processes.group)
    model, config = place.place(state.model, state.train.optimizer), state.train
    optimizer, rows = place.optimizer(state.optimizer, model.config), config.batch * config.accumulate
    found = []
    with (
        one_blas_thread(),
        np.errstate(all="ignore"),
        step_of(model)(model, optimizer, config, rows, state.info.get("workers")) as take_step,
    ):
        for step in range(state.step, last):
            losses, norm = take_step(*dataset.batch(step, rows))
            told = log[step + 1]
            row = {"step": step + 1, "loss": round(float(losses[0]), 6), "norm": round(norm, 6)}
            row["later"] = [round(float(x), 6) for x in losses[1:]]
            if processes.group is not None and "hash" in told:
                row["hash"] = take_step.hash()
            differs = [name for name in row if row[name] != told.get(name)]
            found += [row | {"differs": [f"{name} was {told.get(name)}, is {row[name]}" for name in differs]}]
    return state.step, found
