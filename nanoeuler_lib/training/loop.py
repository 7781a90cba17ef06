"""The loop of every run: begin in a new folder, or go on from the latest checkpoint, and end with a trained model.

A run is a function of its configuration and its number of workers. The batch of step s is drawn from a generator
seeded with (seed, s), so going on from a checkpoint needs no random state: it continues with the same batches as if
it had never stopped. The first checkpoint is that of step 0, so a run that was killed can go on, or, before that
checkpoint is written, be started again in the same folder.
"""

import math
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from nanoeuler_lib.config import CHANGEABLE, TrainConfig
from nanoeuler_lib.engine import data_parallel
from nanoeuler_lib.engine.device import CPU, Device, chosen_before, step_of
from nanoeuler_lib.engine.memory import OutOfMemory, out_of_memory
from nanoeuler_lib.engine.step import LESS
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import one_line
from nanoeuler_lib.machine import cores, memory, one_blas_thread
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.optim import learning_rate, optimizer_of
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import checkpoint, run_folder, run_json
from nanoeuler_lib.training.datasets import Dataset
from nanoeuler_lib.training.journal import Follower, Journal
from nanoeuler_lib.training.monitor import vitals
from nanoeuler_lib.training.run_data import dataset_of, kind_of
from nanoeuler_lib.training.run_folder import appending, expect_new, sole_writer, trim_log
from nanoeuler_lib.training.run_options import DEFAULTS, RunOptions

WHOLE_EVERY = 10  # of so many validations one scores every token, as the last does
HASH_EVERY = 10  # steps between hashes of the weights on many cards


def first_checkpoint(
    run: str | Path, model: GPT, tokenizer: Tokenizer, config: TrainConfig, info: dict, options: RunOptions
) -> checkpoint.Checkpoint:
    """The checkpoint of step 0 of a run: this model, an optimiser at rest, and what the header says (info)."""
    device = options.device or CPU
    expect_launches(options.profile, device)
    info = {"workers": options.workers or cores()} | info | ({"files": options.files} if options.files else {})
    optimizer = optimizer_of(model.config, config)
    return checkpoint.Checkpoint(Path(run), model, tokenizer, 0, config, optimizer, info | device.info)


def start_run(run: str | Path, state: checkpoint.Checkpoint, dataset: Dataset, options: RunOptions = DEFAULTS) -> GPT:
    """Make a run folder with a checkpoint of step 0, and train. Raises NanoEulerError when the folder is not new."""
    run, group = Path(run), options.device.group if options.device else None
    _expect_room_for_tokens(state)
    state.info |= {"fingerprint": dataset.fingerprint, "valid_fingerprint": dataset.valid_fingerprint}
    if group is not None:
        data_parallel.expect_shards(state.train, group.size)
        state.info |= {"shards": state.train.accumulate}
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NanoEulerError(f"{run}: cannot be made ({error.strerror}), expected a folder to write to") from None
    with _held(run, group) as still_there, _memory_told():
        device = chosen_before(state.info, None, state.model.config, group)
        device.expect_room(state.model.config, state.train)
        if _is_rank0(group):
            expect_new(run)
            dataset.prepare(run, state)
            run_json.write(run, state, dataset)
            run_folder.save(run, state, 0)
        return _train(_journal(run, state, dataset, options, still_there, device, group), profile=options.profile)


def _journal(run, state, dataset, options, still_there, device, group):
    """Move the model and the optimiser's state to the device; return what logs the steps there."""
    state.model = device.place(state.model)
    state.optimizer = device.optimizer(state.optimizer, state.model.config)
    journal = Journal if _is_rank0(group) else Follower
    return journal(run, state, dataset, options.quiet, options.on_entry, still_there)


def _is_rank0(group):
    """Whether this process writes the run: rank 0, or the only one."""
    return group is None or group.rank == 0


@contextmanager
def _held(run, group):
    """Hold the run's lock; the other processes of a group wait until rank 0 has it."""
    with sole_writer(run) if _is_rank0(group) else nullcontext(lambda: None) as still_there:
        if group is not None:
            group.barrier()
        yield still_there


def resume(run: str | Path, part, valid=None, **named) -> GPT:
    """Go on with a run of any kind from its latest checkpoint; ends with the same weights as a run that never stopped.

    part, valid: what the run learns from and is measured on, as given to the function that began it. named: new values
    of the settings in `CHANGEABLE`, and options of `RunOptions`. With other `steps`, more or fewer, the learning rate
    follows the schedule of a run of so many steps from here on, so it rises again after the end of a run; `rate` is its
    new peak. The log says which settings have changed. On another device the numbers round differently. Raises
    NanoEulerError when the data are not those of the run, and when another process is training into the folder.
    """
    changes, run = {name: named.pop(name, None) for name in CHANGEABLE}, Path(run)
    options = RunOptions(**named)
    if kept := [name for name in ("workers", "base", "floor") if getattr(options, name) is not None]:
        raise TypeError(f"resume() got {kept[0]}, which a run keeps from its beginning")
    if (path := checkpoint.find(run)) == run:  # a folder without any checkpoint is left alone as well
        raise NanoEulerError(f"{run}: is a checkpoint, expected its run folder: {path.parent.parent}")
    with _held(run, options.group) as still_there, _memory_told():
        state = checkpoint.load(run, training=True)
        group, before = group_of(run, state, options.group), state.train
        _change(run, state, changes)
        dataset = dataset_of(part, valid, state, options.verifiers)
        expect_the_same(run, state, dataset)
        device = chosen_before(state.info, options.device, state.model.config, group)
        device.expect_room(state.model.config, state.train)
        expect_launches(options.profile, device)
        state.info = {k: v for k, v in state.info.items() if k not in ("device", "precision")} | device.info
        state.info |= {"files": options.files} if options.files else {}
        dataset.prepare(run, state)
        if group is not None:
            group.barrier()  # all have read the checkpoint
        warnings = _mend_folder(run, state, before) if _is_rank0(group) else []
        changed = run_json.changed_settings(run, before, state.train)
        journal = _journal(run, state, dataset, options, still_there, device, group)
        return _train(journal, warnings, changed, options.profile)


def _mend_folder(run, state, before):
    """Finish what a kill may have cut off after the last checkpoint, and save new settings. Returns warnings."""
    run_folder.prune(run, before.keep_every)
    trouble = trim_log(run / "log.jsonl", state.step or -1, *state.info.get("due", [])[:1])
    if state.train != before:
        run_folder.save(run, state, state.step)
    return [trouble] if trouble else []


def group_of(run: Path, state: checkpoint.Checkpoint, group: data_parallel.Group | None) -> data_parallel.Group | None:
    """The processes that go on with a run: those that are there, or this one alone with the sums of many.

    Raises NanoEulerError for several, or for cards, where the run adds its gradients in another order.
    """
    if "shards" not in state.info:
        if group is not None:
            raise NanoEulerError(
                f"{run}: was begun without --gpus and adds its gradients in another order: resume it without --gpus"
            )
        return None
    group = group or data_parallel.Group()
    data_parallel.expect_shards(state.train, group.size)
    return group


def expect_launches(profile: int, device: Device) -> None:
    """Raises NanoEulerError for a profile on the CPU, where no launches can be timed."""
    if profile and device == CPU:
        raise NanoEulerError("profile times the launches of a GPU, and this run is on the CPU: expected --device gpu")


def expect_the_same(run: Path, state: checkpoint.Checkpoint, dataset: Dataset) -> None:
    """Refuse to go on with other data than the run began with, or an impossible number of workers."""
    held_out = "--valid FILE names" if state.info.get("files", {}).get("valid") else "is the end of --data FILE"
    pairs = (
        ("text", "fingerprint", dataset.fingerprint, "--data FILE names"),
        ("validation text", "valid_fingerprint", dataset.valid_fingerprint, held_out),
    )
    for what, name, now, where in pairs:
        if now != (then := state.info.get(name)):
            if kind_of(state.info):
                where = "--data FILE names"
            raise NanoEulerError(
                f"{run}: {what} has fingerprint {now}, expected {then}: not the {what} the run began with, which "
                f"{where}; to learn from another text, begin a new run with this one's model: nanoeuler train --from"
            )
    if type(workers := state.info.get("workers")) is not int or not 1 <= workers <= 4096:
        raise NanoEulerError(f"{state.path}: workers is {short(workers)}, expected 1 to 4096: edited")


def _change(run, state, settings):
    """Give a run other settings; None: as it is."""
    steps, new = settings["steps"], {name: value for name, value in settings.items() if value is not None}
    if steps not in (None, state.train.steps) and steps <= state.step:
        raise NanoEulerError(f"{run}: steps is {steps}, expected more than the {state.step} that are done")
    state.train = state.optimizer.config = replace(state.train, **new)


def _expect_room_for_tokens(state):
    """Raises NanoEulerError where the token ids of a step, inputs and targets, are more than the memory holds."""
    shape, rows, there = state.model.config, state.train.batch * state.train.accumulate, memory()
    row = 8 * (shape.context + shape.predict) * (shape.predict + 2)
    if there is not None and rows * row > there:
        raise NanoEulerError(
            f"batch times accumulate must be at most {there // row:,}, got {rows:,}: the token ids of a step take "
            f"{rows * row / 2**30:,.0f} GiB, and this machine has {there / 2**30:,.1f} GiB"
        )


@contextmanager
def _memory_told():
    """Raises NanoEulerError, with what would take less, where memory does not suffice."""
    try:
        yield
    except MemoryError as error:
        raise NanoEulerError(
            f"not enough memory ({one_line(str(error), 200)}): take a smaller --batch, --context, --dim or --vocab-size"
        ) from None


def _train(journal, warnings=(), changed=(), profile=0):
    """The loop. warnings: what to say first; changed: which settings are new; profile: as for `train.train`."""
    state, dataset, config = journal.state, journal.dataset, journal.state.train
    model, rows = state.model, config.batch * config.accumulate * dataset.together
    pairs = {"together": dataset.together} if dataset.together > 1 else {}
    take_step = step_of(model)(model, state.optimizer, config, rows, state.info.get("workers"), **pairs)
    group = model.group if isinstance(model, data_parallel.GPT) else None
    if group is not None:
        warnings = [*warnings, *_bits(journal, take_step)]
        group.say_when_lost(lambda: _last_whole(journal.run))
        group.barrier()
    with (
        one_blas_thread(),
        np.errstate(all="ignore"),  # as in the workers
        _stop_between_steps() as stop,
        take_step,
        journal.bar,
        journal.writer,
        appending(journal.run / "log.jsonl", lambda: journal.saved)
        if journal.is_rank0
        else nullcontext() as journal.append,
        ThreadPoolExecutor(1) as ahead,
        _saved_when_full(journal, group),
    ):
        if take_step.memory_line:
            journal.say(take_step.memory_line)
        journal.begin(warnings, changed)
        if _is_rank0(group):
            run_json.update(journal.run, state, dataset)
        if group is None:
            journal.estimate(take_step)
        draw = (lambda step: dataset.batch(step, rows)) if group is None else _drawn_ahead(dataset, rows, ahead)
        for step in range(state.step, config.steps):
            done = step + 1
            validates = done % config.valid_every == 0 or done == config.steps
            whole = not dataset.sampled or done % (WHOLE_EVERY * config.valid_every) == 0 or done == config.steps
            before = model.params.host().flat.copy() if (validates and whole) or done == 1 else None
            began = time.perf_counter()
            if profile and step == state.step + 1:  # the first one has compiled and taken memory
                times = take_step.watched()
            batch = draw(step)
            losses, norm = take_step(*batch)
            journal.taken = done
            seconds = time.perf_counter() - began
            if profile and done == state.step + 1 + profile:
                journal.say(times.table(profile), always=True)
                take_step.unwatched()
            more = {}
            if group is not None and math.isfinite(norm) and (done % HASH_EVERY == 0 or done == config.steps):
                more["hash"] = take_step.hash()
            rate = learning_rate(step, config)
            journal.step(done, losses, norm, rate, batch[0].size, seconds, take_step.bad_rank, **more)
            if before is not None:
                after, gradient = model.params.host(), take_step.whole_gradient()
                if journal.is_rank0:
                    journal.vitals(done, vitals(before, after, gradient, norm))
            samples = bool(config.sample_every) and done % config.sample_every == 0
            kept = bool(config.keep_every) and done % config.keep_every == 0
            saves = done % config.save_every == 0 or done == config.steps or kept
            if saves:  # whatever comes of the look, these steps are not lost
                journal.save(done, validates, whole and validates, samples)
            journal.look(done, validates, whole, samples)
            ends = bool(stop) if group is None else any(group.all_gather(bool(stop)))
            ends = ends and done % dataset.span == 0
            if ends and not saves:
                journal.save(done)
            if ends or done == config.steps:
                journal.wait_for_checkpoint()
                journal.bill()
            if ends and done < config.steps:
                journal.say(
                    f"stopped; the checkpoint of step {done} is saved: --resume {journal.run} goes on",
                    always=True,
                )
                raise KeyboardInterrupt
    return model


@contextmanager
def _saved_when_full(journal, group):
    """Where a GPU's memory ends between checkpoints, one of the last whole step is written before the error goes on.

    Writing takes no memory of the GPU, and a step that fails has moved nothing. On many cards the others would wait.
    """
    try:
        yield
    except (MemoryError, RuntimeError, OutOfMemory) as error:
        if "device" not in journal.state.info or not out_of_memory(error):
            raise
        if group is None and journal.taken > journal.saved and journal.taken % journal.dataset.span == 0:
            journal.save(journal.taken)
        journal.wait_for_checkpoint()
        told = error if isinstance(error, OutOfMemory) else f"out of memory ({one_line(str(error), 120)}): {LESS}"
        raise OutOfMemory(
            f"{told}; the checkpoint of step {journal.saved} is whole: --resume {journal.run} goes on"
        ) from None


def _drawn_ahead(dataset, rows, pool):
    """Batches of step after step, each drawn while the one before is computed: on many cards they have many rows."""
    coming = {}

    def draw(step):
        batch = coming.pop(step, None) or pool.submit(dataset.batch, step, rows)
        coming[step + 1] = pool.submit(dataset.batch, step + 1, rows)
        return batch.result()

    return draw


def _bits(journal, take_step):
    """Note what the bits of a run depend on in its folder; warnings where that is not what it was."""
    state, now = journal.state, take_step.bits()
    before, warnings = state.info.get("bits", now), []
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            was, now_is = (short(x.get(name)) for x in (before, now))
            warnings += [f"numbers round otherwise from here on: {name} was {was}, is {now_is}"]
    if any(other != now for other in journal.state.model.group.all_gather(now)):
        warnings += ["the cards are not all alike: another number of them would give other bits"]
    state.info["bits"] = now
    if journal.is_rank0:
        run_json.update(journal.run, state, journal.dataset)
    return warnings


def _last_whole(run):
    """What to say of a run's last checkpoint when a process is lost."""
    folders = checkpoint.folders(run)
    return (
        f"; the checkpoint of step {checkpoint.step_of(folders[-1])} is whole: --resume {run} goes on"
        if folders
        else ""
    )


@contextmanager
def _stop_between_steps():
    """Give a list that Ctrl-C, SIGTERM, SIGUSR1 and a closed terminal fill; the loop reads it after each step.

    Clusters can be told to send SIGUSR1 before they end a job. The same signal once more interrupts at once, except
    SIGHUP, which an ending shell sends after the terminal has sent it.
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
