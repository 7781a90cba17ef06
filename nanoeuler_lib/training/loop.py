"""The training loop, and the functions that begin a run in a new folder or resume one from its latest checkpoint.

A run is determined by its data, settings, initial weights, device and number of workers. The batch of step s is drawn
from a generator seeded with (seed, s), so checkpoints store no random state, and a resumed run draws the same batches
as if it had never stopped. The first checkpoint is written before step 1. A run that is killed later can be resumed; a
run that is killed earlier can be started again in the same folder.
"""

import signal
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np

from nanoeuler_lib.config import CHANGEABLE, TrainConfig
from nanoeuler_lib.engine.device import CPU, Device, chosen_before, step_of
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import one_line, write_text
from nanoeuler_lib.machine import cores, memory, one_blas_thread
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.optim import optimizer_of
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import checkpoint, run_folder, run_json
from nanoeuler_lib.training.datasets import Dataset
from nanoeuler_lib.training.journal import Follower, Journal, Taken
from nanoeuler_lib.training.processes import Processes, processes_before
from nanoeuler_lib.training.run_data import dataset_of, kind_of
from nanoeuler_lib.training.run_folder import expect_new, sole_writer, trim_log
from nanoeuler_lib.training.run_options import DEFAULTS, RunOptions

WHOLE_EVERY = 10  # if validations use samples, every tenth one and the last one score every token


def first_checkpoint(
    run: str | Path, model: GPT, tokenizer: Tokenizer, config: TrainConfig, info: dict, options: RunOptions
) -> checkpoint.Checkpoint:
    """Return the checkpoint of step 0, with a new optimiser. Raises NanoEulerError for a profile on the CPU."""
    device = options.device or CPU
    expect_launches(options.profile, device)
    info = {"workers": options.workers or cores()} | info | ({"files": options.files} if options.files else {})
    optimizer = optimizer_of(model.config, config)
    return checkpoint.Checkpoint(Path(run), model, tokenizer, 0, config, optimizer, info | device.info)


def start_run(run: str | Path, state: checkpoint.Checkpoint, dataset: Dataset, options: RunOptions = DEFAULTS) -> GPT:
    """Train in a new folder and return the model. Raises NanoEulerError if folder, memory or disk is insufficient."""
    run, processes = Path(run), Processes(options.device.group if options.device else None)
    _expect_room_for_tokens(state)
    state.info |= {"fingerprint": dataset.fingerprint, "valid_fingerprint": dataset.valid_fingerprint}
    state.info |= processes.shards(state.train)
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NanoEulerError(f"{run}: cannot be created ({error.strerror}): choose a writable folder") from None
    with _held(run, processes) as still_there, _memory_told():
        device = chosen_before(state.info, None, state.model.config, processes.group)
        device.expect_room(state.model.config, state.train)
        if processes.is_rank0:
            expect_new(run)
            dataset.prepare(run, state)
            run_json.write(run, state, dataset)
            if options.settings is not None:
                write_text(run / "settings.toml", options.settings)
            run_folder.save(run, state, 0)
        return _train(_journal(run, state, dataset, options, device, processes, still_there))


def _journal(run, state, dataset, options, device, processes, still_there):
    """Move the model and the optimiser's state to the device, and return the run's journal."""
    state.model = device.place(state.model, state.train.optimizer)
    state.optimizer = device.optimizer(state.optimizer, state.model.config)
    journal = Journal if processes.is_rank0 else Follower
    return journal(run, state, dataset, options, processes, still_there)


@contextmanager
def _held(run, processes):
    """Hold the run's lock in rank 0; the other processes wait until rank 0 has it."""
    with sole_writer(run) if processes.is_rank0 else nullcontext(lambda: None) as still_there:
        processes.barrier()
        yield still_there


def resume(run: str | Path, part, valid=None, **named) -> GPT:
    """Resume a run of any kind from its latest checkpoint, and return the trained model.

    The final weights are those of a run that never stopped; on a different device, rounding differs. part, valid: data,
    as given to the function that began the run. named: new values of the settings in `CHANGEABLE`, and options of
    `RunOptions`. With new `steps`, the learning rate from here on is that of a run with this number of steps, so it
    rises again if the run had ended; `rate` is the new peak. Raises NanoEulerError if the data differ from those of the
    run, or if another process is training into the folder.
    """
    changes, run = {name: named.pop(name, None) for name in CHANGEABLE}, Path(run)
    options = RunOptions(**named)
    if kept := [name for name in ("workers", "base", "floor") if getattr(options, name) is not None]:
        raise TypeError(f"resume() got {kept[0]}, which cannot change when a run is resumed")
    if (path := checkpoint.find(run)) == run:  # raises if there is no checkpoint, before a lock is created
        raise NanoEulerError(f"{run}: must be a run folder, got a checkpoint: use {path.parent.parent}")
    with _held(run, Processes(options.group)) as still_there, _memory_told():
        state = checkpoint.load(run, training=True)
        processes, before = processes_before(run, state, options.group), state.train
        _change(run, state, changes)
        dataset = dataset_of(part, valid, state, options.verifiers)
        expect_the_same(run, state, dataset)
        device = chosen_before(state.info, options.device, state.model.config, processes.group)
        device.expect_room(state.model.config, state.train)
        expect_launches(options.profile, device)
        state.info = {k: v for k, v in state.info.items() if k not in ("device", "precision")} | device.info
        state.info |= {"files": options.files} if options.files else {}
        dataset.prepare(run, state)
        processes.barrier()  # until all processes have read the checkpoint
        warnings = _mend_folder(run, state, before) if processes.is_rank0 else []
        changed = run_json.changed_settings(run, before, state.train)
        return _train(_journal(run, state, dataset, options, device, processes, still_there), warnings, changed)


def _mend_folder(run, state, before):
    """Repair the folder of a run that was killed after its last checkpoint, and save new settings. Returns warnings."""
    run_folder.prune(run, before.keep_every)
    trouble = trim_log(run / "log.jsonl", state.step or -1, *state.info.get("due", [])[:1])
    if state.train != before:
        run_folder.save(run, state, state.step)
    return [trouble] if trouble else []


def expect_launches(profile: int, device: Device) -> None:
    """Raise NanoEulerError for a profile on the CPU, which has no launches to time."""
    if profile and device == CPU:
        raise NanoEulerError("--profile must be 0 on the CPU, because it times the launches of a GPU: use --device gpu")


def expect_the_same(run: Path, state: checkpoint.Checkpoint, dataset: Dataset) -> None:
    """Raise NanoEulerError if the data differ from those the run began with, or the number of workers is impossible."""
    held_out = "--valid FILE" if state.info.get("files", {}).get("valid") else "--data FILE, which ends in it"
    pairs = (
        ("text", "fingerprint", dataset.fingerprint, "--data FILE"),
        ("validation text", "valid_fingerprint", dataset.valid_fingerprint, held_out),
    )
    for what, name, now, where in pairs:
        if now != (then := state.info.get(name)):
            if kind_of(state.info):
                where = "--data FILE"
            raise NanoEulerError(
                f"{run}: {what} must be the one that the run began with (fingerprint {then}), got a different one "
                f"({now}): give the old one with {where}, or begin a new run with this run's model: nanoeuler train "
                "--from"
            )
    if type(workers := state.info.get("workers")) is not int or not 1 <= workers <= 4096:
        raise NanoEulerError(
            f"{state.path}: workers must be 1 to 4096, got {short(workers)}: checkpoint.json was edited"
        )


def _change(run, state, settings):
    """Change settings of a run; a value of None leaves a setting as it is."""
    steps, new = settings["steps"], {name: value for name, value in settings.items() if value is not None}
    if steps not in (None, state.train.steps) and steps <= state.step:
        raise NanoEulerError(f"{run}: --steps must be more than the {state.step} steps that are done, got {steps}")
    state.train = state.optimizer.config = replace(state.train, **new)


def _expect_room_for_tokens(state):
    """Raise NanoEulerError if the token ids of a step, inputs and targets, do not fit in memory."""
    shape, rows, there = state.model.config, state.train.batch * state.train.accumulate, memory()
    row = 8 * (shape.context + shape.predict) * (shape.predict + 2)
    if there is not None and rows * row > there:
        raise NanoEulerError(
            f"--batch times --accumulate must be at most {there // row:,}, got {rows:,}: the token ids of a step take "
            f"{rows * row / 2**30:,.0f} GiB, and this machine has {there / 2**30:,.1f} GiB"
        )


@contextmanager
def _memory_told():
    """Convert a MemoryError in the block into a NanoEulerError that names options which reduce memory."""
    try:
        yield
    except MemoryError as error:
        raise NanoEulerError(
            f"not enough memory ({one_line(str(error), 200)}): use a smaller --batch, --context, --dim or --vocab-size"
        ) from None


def _train(journal, warnings=(), changed=()):
    """Take the remaining steps, and return the trained model."""
    state, dataset, config, processes = journal.state, journal.dataset, journal.state.train, journal.processes
    model, rows = state.model, config.batch * config.accumulate * dataset.together
    pairs = {"together": dataset.together} if dataset.together > 1 else {}
    take_step = step_of(model)(model, state.optimizer, config, rows, state.info.get("workers"), **pairs)
    warnings = [*warnings, *processes.begin(journal.run, state, take_step)]
    with (
        one_blas_thread(),
        np.errstate(all="ignore"),  # `log` checks for infinity and NaN; the workers ignore NumPy's warnings too
        _stop_between_steps() as stop,
        take_step,
        journal.open(),
        processes.drawing(lambda step: dataset.batch(step, rows)) as draw,
        journal.saved_when_full(),
    ):
        journal.begin(take_step, warnings, changed)
        before, after = _hooks(journal, stop)
        for step in range(state.step, config.steps):
            done = step + 1
            _call_due(before, done)
            began = time.perf_counter()
            # draw a batch
            batch = draw(step)
            # take a step
            losses, norm = take_step(*batch)
            journal.taken = Taken(done, losses, norm, batch[0].size, time.perf_counter() - began)
            # log it; when due, also measure, save, validate, sample; stop after a signal
            _call_due(after, done)
    return model


def _hooks(journal, stop):
    """Return the functions to call before and after a step (from 1), in order, as lists of (is_due, function)."""
    config, dataset, first = journal.config, journal.dataset, journal.state.step
    profile, watched = journal.options.profile, first + 2  # the first step also compiles and allocates memory
    every = lambda n, step: n > 0 and step % n == 0
    last = lambda step: step == config.steps
    validates = lambda step: every(config.valid_every, step) or last(step)
    scores_all = lambda step: not dataset.sampled or every(WHOLE_EVERY * config.valid_every, step) or last(step)
    whole = lambda step: validates(step) and scores_all(step)
    samples = lambda step: every(config.sample_every, step)
    saves = lambda step: every(config.save_every, step) or every(config.keep_every, step) or last(step)
    measures = lambda step: step == 1 or whole(step)
    asked = lambda step: journal.processes.any(bool(stop)) and step % dataset.span == 0 and not last(step)
    before = [
        (measures, journal.keep_weights),
        (lambda step: profile and step == watched, journal.start_profile),
    ]
    after = [
        (lambda step: profile and step == watched + profile - 1, journal.end_profile),
        (lambda step: True, journal.log),
        (measures, journal.vitals),
        # save before validating and sampling, so that these steps are not lost if one of those fails
        (saves, lambda step: journal.save(step, validates(step), whole(step), samples(step))),
        (validates, lambda step: journal.validate(step, whole(step))),
        (samples, journal.sample),
        # add the validation to the checkpoint
        (saves, journal.renew),
        (asked, lambda step: journal.stop(step, saves(step))),
        (last, journal.finish),
    ]
    return before, after


def _call_due(hooks, step):
    for due, hook in hooks:
        if due(step):
            hook(step)


@contextmanager
def _stop_between_steps():
    """Collect Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP in a list, which the loop reads after each step.

    A repeated signal interrupts at once, except SIGHUP: the closing terminal and the ending shell both send one.
    """
    stop = []

    def remember(number, frame):
        if number in stop and number != hangup:
            raise KeyboardInterrupt
        stop.append(number)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield stop
        return
    hangup = getattr(signal, "SIGHUP", None)
    numbers = [signal.SIGINT, signal.SIGTERM]
    for number in (hangup, getattr(signal, "SIGUSR1", None)):  # Windows has neither
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # ignored under nohup
            numbers.append(number)
    before = {number: signal.signal(number, remember) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
