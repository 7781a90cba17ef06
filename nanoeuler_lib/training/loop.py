"""The loop of every run: begin in a new folder, or go on from the latest checkpoint, and end with a trained model.

The data, the configuration, the starting weights, the device and the number of workers determine a run. The batch of
step s is drawn from a generator seeded with (seed, s), so going on from a checkpoint needs no random state: it
continues with the same batches as if it had never stopped. The first checkpoint is that of step 0, so a run that was
killed can go on, or, before that checkpoint is written, be started again in the same folder.
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
from nanoeuler_lib.files import one_line
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

WHOLE_EVERY = 10  # of so many validations one scores every token, as the last does


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
    run, processes = Path(run), Processes(options.device.group if options.device else None)
    _expect_room_for_tokens(state)
    state.info |= {"fingerprint": dataset.fingerprint, "valid_fingerprint": dataset.valid_fingerprint}
    state.info |= processes.shards(state.train)
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NanoEulerError(f"{run}: cannot be made ({error.strerror}), expected a folder to write to") from None
    with _held(run, processes) as still_there, _memory_told():
        device = chosen_before(state.info, None, state.model.config, processes.group)
        device.expect_room(state.model.config, state.train)
        if processes.is_rank0:
            expect_new(run)
            dataset.prepare(run, state)
            run_json.write(run, state, dataset)
            run_folder.save(run, state, 0)
        return _train(_journal(run, state, dataset, options, device, processes, still_there))


def _journal(run, state, dataset, options, device, processes, still_there):
    """Move the model and the optimiser's state to the device; return what logs the steps there."""
    state.model = device.place(state.model)
    state.optimizer = device.optimizer(state.optimizer, state.model.config)
    journal = Journal if processes.is_rank0 else Follower
    return journal(run, state, dataset, options, processes, still_there)


@contextmanager
def _held(run, processes):
    """Hold the run's lock; the other processes of a run wait until rank 0 has it."""
    with sole_writer(run) if processes.is_rank0 else nullcontext(lambda: None) as still_there:
        processes.barrier()
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
        processes.barrier()  # all have read the checkpoint
        warnings = _mend_folder(run, state, before) if processes.is_rank0 else []
        changed = run_json.changed_settings(run, before, state.train)
        return _train(_journal(run, state, dataset, options, device, processes, still_there), warnings, changed)


def _mend_folder(run, state, before):
    """Finish what a kill may have cut off after the last checkpoint, and save new settings. Returns warnings."""
    run_folder.prune(run, before.keep_every)
    trouble = trim_log(run / "log.jsonl", state.step or -1, *state.info.get("due", [])[:1])
    if state.train != before:
        run_folder.save(run, state, state.step)
    return [trouble] if trouble else []


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


def _train(journal, warnings=(), changed=()):
    """Take the steps that are left, and return the trained model.

    warnings: what to say first; changed: which settings are new.
    """
    state, dataset, config, processes = journal.state, journal.dataset, journal.state.train, journal.processes
    model, rows = state.model, config.batch * config.accumulate * dataset.together
    pairs = {"together": dataset.together} if dataset.together > 1 else {}
    take_step = step_of(model)(model, state.optimizer, config, rows, state.info.get("workers"), **pairs)
    warnings = [*warnings, *processes.begin(journal.run, state, take_step)]
    with (
        one_blas_thread(),
        np.errstate(all="ignore"),  # as in the workers
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
            # log it; once in a while: measure, save, validate, sample; where a signal asks for it: stop
            _call_due(after, done)
    return model


def _hooks(journal, stop):
    """What is called before a step and after it, in this order: [(whether it is due, the function)], both of a step.

    A step has the number of steps that are done after it. stop: as `_stop_between_steps` gives it.
    """
    config, dataset, first = journal.config, journal.dataset, journal.state.step
    profile, watched = journal.options.profile, first + 2  # the step before has compiled and taken memory
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
        # always: log
        (lambda step: True, journal.log),
        # once in a while: vital signs
        (measures, journal.vitals),
        # once in a while: save, first of all, so that these steps are not lost whatever comes of validation and sample
        (saves, lambda step: journal.save(step, validates(step), whole(step), samples(step))),
        # once in a while: validate
        (validates, lambda step: journal.validate(step, whole(step))),
        # once in a while: sample
        (samples, journal.sample),
        # then the checkpoint gets the validation
        (saves, journal.renew),
        # where a signal asks for it: stop
        (asked, lambda step: journal.stop(step, saves(step))),
        # at the end: wait for the last checkpoint
        (last, journal.finish),
    ]
    return before, after


def _call_due(hooks, step):
    """Call each hook that is due."""
    for due, hook in hooks:
        if due(step):
            hook(step)


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
