"""Test runs that stop and resume: for any data and any kind of end, they lose nothing and give the same bits."""

import json
import math
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import oracles
import pytest
import test_preferences
import test_rewards
import test_sft
import test_shards
from oracles import (
    RUN_CONFIG,
    RUN_MODEL,
    Crash,
    assert_same_run,
    changed,
    contents,
    error_of,
    run_text,
    seal,
    stopped_at,
)  # fmt: skip

import konigsberg
from nanoeuler_lib.config import RewardConfig
from nanoeuler_lib.engine import device, loss_scale
from nanoeuler_lib.engine import step as engine_step
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.model.step import Step
from nanoeuler_lib.text import data
from nanoeuler_lib.training import checkpoint, datasets, loop, preferences, rewards, run_folder, sft, train

# Every kind of run.


class Kind(NamedTuple):
    """A kind of run: its dataset, a function that starts it in a folder, its data (train, validation), other data."""

    dataset: type
    begin: Callable
    data: tuple
    others: list
    verifiers: dict | None = None


def of_text(folder, text=None, valid=None, config=RUN_CONFIG, **named):
    text = text or run_text()
    begin = partial(train.train, text=text, model_config=RUN_MODEL, config=config, valid_text=valid, **named)
    return Kind(
        datasets.TextDataset, begin, (text, valid), [(run_text().replace("cat", "cot"), valid), (text, "a cat")]
    )


DOCUMENTS = data.SEPARATOR.join(["the cat", "a hat", "her red mat " * 40, "the mat", "a cat", "ran to her"] * 20)


def of_an_older_text(folder):
    """Return a kind with three texts and without a split rule in the header."""
    texts = [run_text()[:900], run_text()[900:], run_text()[::-1]]
    kind = of_text(folder, texts)

    def begin(run, **named):
        with patch.object(train, "_split", return_value={}):
            kind.begin(run, **named)
        assert "split" not in checkpoint.read_head(run)["info"]

    return kind._replace(begin=begin, others=[(texts[::-1], None)])


def of_shards(folder, sets=True):
    found, (one, two) = test_shards.made(folder), test_shards.valid_sets(folder)
    other = test_shards.made(folder, test_shards.text_of(range(30)).replace("mat", "hat", 1), "other")
    valid, config = [one, two] if sets else None, changed(RUN_CONFIG, sample_every=4)
    begin = partial(train.pretrain, shards=found, valid=valid, model_config=test_shards.MODEL, config=config)
    others = [(other, valid), (found, [one]), (found, [two, one]), (found, None if sets else [one, two])]
    return Kind(datasets.ShardDataset, begin, (found, valid), others)


def of_examples(folder):
    examples, held_out, config = test_sft.EXAMPLES, test_sft.HELD_OUT, test_sft.SETTINGS
    begin = partial(sft.fine_tune, base=test_sft.base(), examples=examples, held_out=held_out, config=config)
    others = [(examples[1:], held_out), ([examples[1], examples[0], *examples[2:]], held_out), (examples, held_out[:1])]
    return Kind(datasets.SFTDataset, begin, (examples, held_out), others)


def of_pairs(folder):
    pairs, held_out, config = test_preferences.PAIRS, test_preferences.HELD_OUT, test_preferences.SETTINGS
    base = test_preferences.base()
    begin = partial(train.prefer, base=base, pairs=pairs, held_out=held_out, config=config, beta=0.5, label_noise=0.1)
    others = [(pairs[1:], held_out), ([pair[::-1] for pair in pairs], held_out), (pairs, held_out[1:])]
    return Kind(preferences.PairsDataset, begin, (pairs, held_out), others)


def of_questions(folder, kl=0.0):
    """Return a kind in which each answer serves two steps, so that a run can stop between them."""
    problems, held_out = ([konigsberg.route_problem(seed) for seed in part] for part in (range(20), range(20, 29)))
    config = RewardConfig(group=4, answer_tokens=8, updates=2, kl=kl, kl_by="k3")
    given = dict(base=test_rewards.base(), problems=problems, held_out=held_out, rewards=config, workers=2)
    verifiers = {"route": test_rewards.short_reward}
    begin = partial(train.reinforce, **given, verifiers=verifiers, config=test_rewards.SETTINGS)
    others = [(problems[1:], held_out), (problems, held_out[1:])]
    return Kind(rewards.RewardDataset, begin, (problems, held_out), others, verifiers)


KINDS = {
    "a text": of_text,
    "documents": partial(of_text, text=DOCUMENTS, valid="the hat", config=changed(RUN_CONFIG, cut_documents=True)),
    "an older run": of_an_older_text,
    "Muon": partial(of_text, config=changed(RUN_CONFIG, optimizer="muon")),
    "several workers": partial(of_text, config=changed(RUN_CONFIG, accumulate=2), workers=3),
    "shards": partial(of_shards, sets=False),
    "shards and validation sets": of_shards,
    "fine-tuning": of_examples,
    "preferences": of_pairs,
    "rewards": of_questions,
    "rewards near a reference": partial(of_questions, kl=0.4),
}


def stopped(kind, step):
    """Raise Crash when a run of this kind draws the batch of this step (0, 1, ...)."""
    original = kind.dataset.batch

    def batch(self, number, rows):
        if number == step:
            raise Crash
        return original(self, number, rows)

    return patch.object(kind.dataset, "batch", batch)


@pytest.mark.parametrize("name, step", [("a text", 1), *((name, 5) for name in KINDS)])
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path, name, step):
    """Stop after one step, with only the first checkpoint, or after five; the log's last line may be incomplete."""
    kind, whole, run = KINDS[name](tmp_path), tmp_path / "whole", tmp_path / "run"
    kind.begin(whole, quiet=True)
    with pytest.raises(Crash), stopped(kind, step):
        kind.begin(run, quiet=True)
    assert checkpoint.load(run, training=True).step == step // 2 * 2
    with open(run / "log.jsonl", "a") as log:
        log.write('{"step": 6, "lo')
    loop.resume(run, *kind.data, quiet=True, verifiers=kind.verifiers)
    assert_same_run(whole, run)
    assert not list(run.glob("*aside*"))


@pytest.mark.parametrize("name", KINDS)
def test_a_run_goes_on_with_its_own_data_only(tmp_path, name):
    kind, run = KINDS[name](tmp_path), tmp_path / "run"
    with patch.object(loop, "_train"):  # the checkpoint of step 0 is enough
        kind.begin(run, quiet=True)
    before = contents(run)
    for part, valid in kind.others:
        message = error_of(loop.resume, run, part, valid, quiet=True, verifiers=kind.verifiers)
        assert message.startswith(f"{run}: ") and "the run began with" in message
    assert contents(run) == before
    if kind.dataset is datasets.TextDataset:
        message = error_of(loop.resume, run, test_sft.EXAMPLES, test_sft.HELD_OUT)
        assert "must be a fine-tuning run (nanoeuler sft, dpo or grpo), got another kind" in message


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Make a finished run on a text; a test copies it before changing it."""
    run = tmp_path_factory.mktemp("finished") / "run"
    train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    return run


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


begin = partial(train.train, text=run_text(), model_config=RUN_MODEL, config=RUN_CONFIG, quiet=True)
resume = partial(loop.resume, part=run_text(), quiet=True)


def test_a_finished_run_goes_on_only_if_it_gets_more_steps(run):
    before = contents(run)
    model = resume(run)
    assert contents(run) == before
    assert np.array_equal(model.params.flat, checkpoint.load(run).model.params.flat)
    resume(run, steps=10)
    assert checkpoint.load(run).step == 10
    assert "--steps must be more than the 10 steps that are done, got 8" in error_of(resume, run, steps=8)


@pytest.mark.parametrize("steps", [9, 5])
def test_another_number_of_steps(tmp_path, steps):
    """Check that the rate continues as in a run with this many steps, and that a kill after the change does no harm."""
    run, parts = tmp_path / "run", tmp_path / "parts"
    with pytest.raises(Crash), stopped_at(4):
        begin(run)
    shutil.copytree(run, parts)
    resume(run, steps=steps)
    with pytest.raises(Crash), stopped_at(0):
        resume(parts, steps=steps)
    resume(parts)
    assert_same_run(run, parts)
    settings, found = changed(RUN_CONFIG, steps=steps), checkpoint.load(run)
    assert found.step == steps and found.train == settings
    rates = [entry["rate"] for entry in run_folder.read_log(run) if "loss" in entry]
    expected = [oracles.expected_rate(step, RUN_CONFIG if step < 4 else settings) for step in range(steps)]
    assert rates == pytest.approx(expected)
    for folder in (run, parts):
        assert json.loads((folder / "run.json").read_text())["train"]["steps"] == steps


def test_a_strange_number_of_workers(run):
    saved = run / "checkpoints" / "step-000006"
    oracles.seal(saved, info=checkpoint.load(saved).info | {"workers": 0})
    assert "workers must be 1 to 4096, got 0" in error_of(resume, run)


def test_how_often_something_is_done_may_change_and_changes_no_weight(finished, tmp_path):
    run = tmp_path / "run"
    with stopped_at(4), pytest.raises(Crash):
        begin(run, config=changed(RUN_CONFIG, save_every=1, keep_every=1))
    often = dict(valid_every=9, sample_every=5, save_every=3, keep_every=2)
    resume(run, **often)
    assert np.array_equal(*(checkpoint.load(folder).model.params.flat for folder in (finished, run)))
    said = [entry["changed"] for entry in run_folder.read_log(run) if "changed" in entry]
    assert said == ["valid_every 3 -> 9", "sample_every 0 -> 5", "save_every 1 -> 3", "keep_every 1 -> 2"]
    assert json.loads((run / "run.json").read_text("utf-8"))["train"] == changed(RUN_CONFIG, **often).to_dict()
    kept = [checkpoint.step_of(folder) for folder in checkpoint.folders(run)]
    assert kept == [0, 1, 2, 4, 6], "checkpoints that were kept before must stay"


# Signals.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_saves_a_whole_step(finished, tmp_path, capfd, number):
    """Send a signal during an update: the step is finished and saved, and the run resumes from it."""
    original, sent = AdamW.update, []

    def update(self, *arguments):
        if self.step == 3 and not sent:  # save_every is 2
            sent.append(number)
            signal.pthread_kill(threading.main_thread().ident, number)
            time.sleep(0.1)
        original(self, *arguments)

    run, before = tmp_path / "run", signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), patch.object(AdamW, "update", update):
        begin(run)
    assert checkpoint.load(run, training=True).step == 3
    assert f"--resume {run}" in "".join(capfd.readouterr())
    assert signal.getsignal(number) == before
    resume(run)
    assert_same_run(finished, run)


def test_a_signal_in_the_last_step_stops_nothing(tmp_path, capfd):
    def send(entry):
        if entry.get("step") == RUN_CONFIG.steps and "loss" in entry:
            signal.raise_signal(signal.SIGTERM)

    begin(tmp_path / "run", on_entry=send)
    assert "".join(capfd.readouterr()) == ""


def test_a_second_signal_interrupts_at_once_and_handlers_come_back():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with loop._stop_between_steps() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        for _ in range(3):  # a terminal and its shell both send the signal
            signal.raise_signal(signal.SIGHUP)
        assert stop[1:] == [signal.SIGHUP] * 3
    assert [signal.getsignal(number) for number in numbers] == before


def test_under_nohup_a_hangup_stays_ignored_and_another_thread_sets_no_handler():
    before, found = signal.signal(signal.SIGHUP, signal.SIG_IGN), []

    def elsewhere():
        with loop._stop_between_steps() as stop:  # Python sets handlers only in the main thread
            found.append(stop)

    try:
        with loop._stop_between_steps() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop == []
    finally:
        signal.signal(signal.SIGHUP, before)
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [[]]


# What goes wrong.


@pytest.mark.parametrize("slope, losses, said", [
    (1e-3, [np.nan, 1], "got nan and"), (1e-3, [2, np.nan], "got 2 and"),  # the loss of a later head
    (np.inf, [2, 1], "got 2 and inf"),
    (1e30, [2, 1], "got 2 and inf"),  # 1e60 exceeds float32
])  # fmt: skip
def test_a_step_that_is_not_finite_is_not_taken(tmp_path, slope, losses, said):
    """Check that nothing changes, the run stops, and it can be resumed from its checkpoint."""
    original, run, kept = Step.gradient, tmp_path / "run", []

    def gradient(self, *batch):
        found = original(self, *batch)
        if self.optimizer.step < 4:
            return found
        kept.extend([self, *(x.flat.copy() for x in (self.model.params, self.optimizer.m, self.optimizer.v))])
        self.grads[0].flat.fill(slope)
        return np.array(losses)

    with patch.object(Step, "gradient", gradient):
        message = error_of(begin, run)
    assert message.startswith(f"step 5: loss and gradient norm must be finite, {said}")
    assert "lower the learning rate" in message and "the checkpoint of step 4 is intact" in message
    step, *before = kept
    assert step.optimizer.step == 4
    for was, now in zip(before, (step.model.params, step.optimizer.m, step.optimizer.v), strict=True):
        assert np.array_equal(was, now.flat) and np.isfinite(was).all()
    assert np.array_equal(checkpoint.load(run, training=True).model.params.flat, before[0])
    resume(run)
    assert checkpoint.load(run).step == 6


@pytest.mark.parametrize("number", [1, 3, 6, 9])
def test_ended_between_two_unlinks(finished, tmp_path, number):
    """Stop while an old or an old best checkpoint is being removed: the rest of it must not count as a checkpoint."""
    unlink, count = os.unlink, [0]

    def counted(*given, **named):
        count[0] += 1
        if count[0] == number:
            raise Crash
        unlink(*given, **named)

    run = tmp_path / "run"
    with patch.object(os, "unlink", counted), pytest.raises(Crash):
        begin(run)
    resume(run)
    assert_same_run(finished, run)
    assert [f.name for f in sorted((run / "checkpoints").iterdir())] == ["best", "step-000004", "step-000006"]


LOGS = {
    "a pipe": os.mkfifo,
    "a strange line": lambda file: file.write_text('{"step": 1, "later": [NaN]}\n{"step": 1}\n'),
    "none": lambda file: None,
}


@pytest.mark.parametrize("log", LOGS)
def test_no_log_blocks_a_resume(finished, run, log):
    """Check that a run needs only checkpoints to resume; an invalid log is moved aside, and the new log reports it."""
    shutil.rmtree(run / "checkpoints" / "step-000006")
    (run / "log.jsonl").unlink()
    LOGS[log](run / "log.jsonl")
    resume(run)
    assert np.array_equal(*(checkpoint.load(folder).model.params.flat for folder in (run, finished)))
    assert os.path.lexists(run / "log.aside-1.jsonl") == (log != "none")
    entries = run_folder.read_log(run)
    assert [entry["step"] for entry in entries if "loss" in entry] == [5, 6]
    told = ["renamed to log.aside-1.jsonl" in entry["warning"] for entry in entries if "warning" in entry]
    assert told == ([] if log == "none" else [True])


@pytest.mark.parametrize("what", ["validation", "sample"])
def test_a_look_that_fails_costs_no_step(tmp_path, what):
    config, real = changed(RUN_CONFIG, sample_every=3), getattr(datasets.TextDataset, what)
    begin(tmp_path / "whole", config=config)
    for error in (ValueError("odd\nshape"), SystemExit()):
        run = tmp_path / type(error).__name__

        def look(*given, run=run, error=error):
            if '"step": 6' in (run / "log.jsonl").read_text("utf-8"):
                raise error
            return real(*given)

        with patch.object(datasets.TextDataset, what, look), suppress(SystemExit):
            begin(run, config=config)
        assert (end := checkpoint.load(run)).step == 6
        if isinstance(error, ValueError):
            said = [entry for entry in run_folder.read_log(run) if "warning" in entry]
            assert said == [{"step": 6, "warning": f"no {what}: ValueError('odd\\nshape')"}]
            assert ("valid_bits_per_byte" in end.info) is (what == "sample"), "no value of an earlier step"
    resume(run)
    assert_same_run(tmp_path / "whole", run)


def test_a_validation_that_gives_no_number_is_an_error(tmp_path):
    with patch.object(datasets, "bits_per_byte", side_effect=[2.0, math.inf]):
        message = error_of(begin, tmp_path / "run")
    told = "step 3: validation loss must be finite, got inf bits per byte; the checkpoint of step 2 is intact"
    assert message == told
    assert checkpoint.load(tmp_path / "run").step == 2


@pytest.mark.compiler
def test_a_loss_scale_goes_on_in_a_resumed_run(tmp_path, monkeypatch):
    """Let the first gradient overflow and the scale grow later; a run that crashes between ends with the same bits."""
    made = loss_scale.LossScale
    monkeypatch.setattr(engine_step, "LossScale", lambda *given: made(*(given or (2**40, 0))))
    monkeypatch.setattr(loss_scale, "GROWS_AFTER", 3)
    shape = changed(RUN_MODEL, dim=32, heads=1, kv_heads=1, layers=1, context=8, vocab_size=264, ffn=48)
    config = changed(RUN_CONFIG, steps=6, save_every=2, valid_every=3)
    options = dict(quiet=True, device=device.Device("checked", "float16"))
    train.train(tmp_path / "whole", run_text(), shape, config, **options)
    with pytest.raises(Crash), stopped_at(5):
        train.train(tmp_path / "run", run_text(), shape, config, **options)
    halved, steps = checkpoint.load(tmp_path / "run").info["loss_scale"]
    assert 1 < halved < 2**40 and steps == 1, "four steps are done, and the third one doubled the scale"
    loop.resume(tmp_path / "run", run_text(), quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    assert checkpoint.load(tmp_path / "whole").info["loss_scale"] == [2 * halved, 0]
    path = checkpoint.find(tmp_path / "run")
    seal(path, info=checkpoint.read_head(path)["info"] | {"loss_scale": [3, 0]})
    with pytest.raises(NanoEulerError, match=r"loss_scale must be a power of two and a number of steps, got \[3, 0\]"):
        checkpoint.load(path)
