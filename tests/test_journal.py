"""What a training run says, logs and writes down: every line, every entry, in order; and what is handed on to it."""

import io
import json
import math
import os
import platform
import re
import signal
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call, patch

import numpy as np
import pytest
from checks import RUN_CONFIG, RUN_MODEL, run_text
from test_train import changed, error_of

from nanoeuler_lib import __version__, machine, world
from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.engine.device import CPU, Device
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.model.step import Step
from nanoeuler_lib.text import data
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import checkpoint, datasets, loop, run_folder, train
from nanoeuler_lib.training import journal as journal_module

CONFIG = TrainConfig(steps=2500, batch=3, accumulate=2, seed=11, valid_every=50, rate=0.25, clip=1.5)


class Bar(Mock):
    def get_lock(self):
        return nullcontext()


@pytest.fixture
def journal(tmp_path, monkeypatch):
    """Make a journal of a run that is not there: `told` holds its log, `out` what it prints, `bar` its bar."""

    def make(step=0, quiet=False, config=CONFIG, on_entry=None, **dataset):
        given = dict(
            row_tokens=20.4, tokens=1000, sizes={"train_tokens": 1000, "valid_tokens": 200}, warnings=["odd", "odder"],
            validation=lambda model, whole: {"valid_bits_per_byte": 1.23456},
            sample=lambda model, seed: f"{model.size} {seed}\n",
        )  # fmt: skip
        found = SimpleNamespace(
            step=step,
            train=config,
            info={},
            model=SimpleNamespace(size=1234567),
            copy=lambda: ("copy of", found),
        )
        monkeypatch.setattr(sys, "stdout", out := io.StringIO())
        with patch.object(journal_module, "tqdm", return_value=Bar()) as tqdm:
            made = journal_module.Journal(
                tmp_path, found, SimpleNamespace(**given | dataset), quiet, on_entry, Mock(name="still_there")
            )
        made.told = []
        made.append = made.told.append
        return SimpleNamespace(
            journal=made, told=made.told, lines=lambda: out.getvalue().splitlines(), tqdm=tqdm
        )

    return make


@pytest.mark.parametrize("quiet, disable", [(False, None), (True, True)])
def test_the_bar_counts_tokens(journal, quiet, disable):
    """Shown on a terminal only (None), and not where it is to be quiet; a run that goes on begins where it was."""
    made = journal(step=10, quiet=quiet)
    assert made.journal.step_tokens == 122  # 6 rows of 20.4 on average
    ((), given) = made.tqdm.call_args
    voice = given.pop("file")
    assert given == {
        "total": 2500 * 122,
        "initial": 1220,
        "unit": "tok",
        "unit_scale": True,
        "disable": disable,
    }
    assert isinstance(voice, journal_module.Voice) and voice.stream is sys.stderr
    assert made.journal.out.stream is sys.stdout
    assert (made.journal.append is not None, made.journal.saved, made.journal.validation_seconds) == (
        True,
        10,
        0.0,
    )


def test_what_is_said_before_the_first_step(journal):
    made = journal()
    made.journal.begin(["told"], False)
    passes = 2500 * 122 / 1000
    assert made.lines() == [
        "model: 1,234,567 parameters; data: 1,000 train tokens, 200 valid tokens",
        f"plan: 2,500 steps of 122 tokens, 305,000 in all, {passes:.1f} passes over the data",
        "warning: told",
        "warning: odd",
        "warning: odder",
        f"warning: {made.told[3]['warning']}",
        "step 0: validation 1.2346 bits per byte",
    ]
    assert [list(entry.items()) for entry in made.told[:3]] == [
        [("step", 0), ("warning", text)] for text in ("told", "odd", "odder")
    ]
    assert "the data will repeat" in made.told[3]["warning"]
    assert made.told[4].pop("seconds") == round(made.journal.validation_seconds, 6)
    assert made.told[4:] == [{"step": 0, "valid_bits_per_byte": 1.23456}]
    assert made.journal.found.info == {"valid_bits_per_byte": 1.23456}


@pytest.mark.parametrize(
    "tokens, said",
    [(305_000, "1.0"), (305_001, "1"), (1_000_000, "0.3"), (10_000_000, "0.03"), (10**10, "3e-05")],
)
def test_passes_below_one_have_two_digits(journal, tokens, said):
    made = journal(tokens=tokens)
    made.journal.begin([], False)
    assert made.lines()[1].endswith(f" in all, {said} passes over the data")


@pytest.mark.parametrize("lengthened", [False, True])
def test_what_is_said_when_a_run_goes_on(journal, tmp_path, lengthened):
    """What was said is not said again, but for the repeats of data that more steps mean; nothing is validated."""
    made = journal(step=1200)
    seen = []
    with patch.object(journal_module, "entries", lambda file: iter([{"step": 1, "file": str(file)}])):
        with patch.object(made.journal.watch, "see", lambda entry: seen.append(entry) or []):
            made.journal.begin(["told"], lengthened)
    assert seen[0] == {"step": 1, "file": str(tmp_path / "log.jsonl")}
    assert made.lines()[1].startswith("plan: from step 1,200 on, 2,500 steps of 122 tokens, 305,000 in all, ")
    warnings = [entry["warning"] for entry in made.told]
    assert warnings[0] == "told" and len(warnings) == 1 + lengthened
    assert all(entry["step"] == 1200 for entry in made.told) and len(made.lines()) == 2 + len(warnings)


def test_lines_stand_above_the_bar(journal):
    made = journal()
    bar = made.journal.bar
    made.journal.say("one\x1b")
    assert bar.method_calls == [call.clear(nolock=True), call.refresh(nolock=True)]
    assert made.lines() == ["one\ufffd"]
    quiet = journal(quiet=True)
    quiet.journal.say("one")
    quiet.journal.say("two", always=True)
    assert quiet.lines() == ["two"]


def test_a_step_is_logged_and_moves_the_bar(journal):
    heard = []
    made = journal(on_entry=heard.append)
    made.journal.step(7, np.array([1.23456789, 2.3456789, 3.0]), 0.12345678, 0.5, 160, 0.3000004)
    expected = {
        "step": 7, "loss": 1.234568, "later": [2.345679, 3.0], "rate": 0.5, "norm": 0.123457, "seconds": 0.3,
        "tokens_per_second": 533,
    }  # fmt: skip
    assert made.told == heard == [expected] and list(made.told[0]) == list(expected)
    assert all(type(x) is float for x in (made.told[0]["loss"], *made.told[0]["later"]))
    assert made.journal.bar.method_calls == [
        call.update(122),
        call.set_postfix(step=7, loss="1.235", refresh=False),
    ]
    made.journal.still_there.assert_called_once_with()
    made.journal.vitals(7, {"embed": [0.123456, 1e-9 / 3], "heads": [np.float32(2), 3.0]})
    assert made.told[1:] == [{"step": 7, "groups": {"embed": [0.1235, 3.333e-10], "heads": [2.0, 3.0]}}]
    assert all(type(x) is float for pair in made.told[1]["groups"].values() for x in pair)


def test_what_the_watch_says_is_logged_and_said(journal):
    made = journal()
    with patch.object(made.journal.watch, "see", side_effect=[["one", "two"], [], []]):
        made.journal.note(step=9, loss=1.0)
    assert made.told == [
        {"step": 9, "loss": 1.0},
        {"step": 9, "warning": "one"},
        {"step": 9, "warning": "two"},
    ]
    assert made.lines() == ["warning: one", "warning: two"]


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_step_that_was_not_taken_is_an_error(journal, norm):
    made = journal()
    made.journal.saved = 5
    message = error_of(made.journal.step, 7, np.array([math.nan, 1.0]), norm, 0.5, 160, 0.3)
    assert message == (
        f"step 7: loss is nan and the gradient's norm {norm}, expected finite numbers: lower the rate (0.25) or the "
        "clip (1.5); the checkpoint of step 5 is intact"
    )
    assert not made.told


def test_a_validation_that_gives_no_number_is_an_error(journal):
    made = journal(validation=lambda model, whole: {"valid_bits_per_byte": math.inf})
    made.journal.saved = 3
    assert error_of(made.journal.validate, 4) == (
        "step 4: validation gives inf bits per byte; the checkpoint of step 3 is intact"
    )
    assert not made.told


def test_a_sample_has_the_seed_of_its_step(journal):
    made = journal()
    made.journal.sample(4)
    assert 0 <= made.told[0].pop("seconds") < 10
    assert made.told == [{"step": 4, "sample": "1234567 15\n"}] and made.lines() == [
        r"step 4: '1234567 15\n'"
    ]


def test_a_checkpoint_is_remembered_once_it_is_written(journal, tmp_path):
    """By a thread, one at a time; what went wrong with it is raised where it is next looked at, once."""
    made, may_end = journal(), threading.Event()
    with (
        patch.object(run_folder, "save", side_effect=lambda *a: may_end.wait(60)) as save,
    ):
        made.journal.save(4)
        made.journal.settle(wait=False)
        assert made.journal.saved == 0, "it is still being written"
        may_end.set()
        made.journal.settle()
        save.assert_called_once_with(tmp_path, ("copy of", made.journal.found), 4)
        assert made.journal.saved == 4
        save.side_effect = NanoEulerError("full")
        made.journal.save(5)
        for look in (
            lambda: made.journal.step(6, np.array([1.0]), 1.0, 0.5, 160, 0.3),
            lambda: made.journal.save(6),
        ):
            made.journal.pending[1].exception()
            assert error_of(look) == "full" and made.journal.saved == 4 and made.journal.pending is None
            made.journal.save(5)
        made.journal.pending = None
        count = save.call_count
        made.journal.still_there.side_effect = OSError
        with pytest.raises(OSError):
            made.journal.save(7)
        assert save.call_count == count and made.journal.saved == 4


def test_a_copy_stays_what_it_is():
    model, optimizer = GPT(RUN_MODEL), AdamW(RUN_MODEL, RUN_CONFIG)
    optimizer.m.flat[...], optimizer.v.flat[...], optimizer.step = 1.0, 2.0, 9
    found = checkpoint.Checkpoint(Path("run"), model, Tokenizer([]), 3, RUN_CONFIG, optimizer, {"a": 1})
    made, weights = found.copy(), model.params.flat.copy()
    for array in (model.params.flat, optimizer.m.flat, optimizer.v.flat):
        array += 1
    found.info["a"] = 2
    assert np.array_equal(made.model.params.flat, weights) and made.model.config == RUN_MODEL
    assert made.optimizer.m.flat.max() == 1 and made.optimizer.v.flat.max() == 2 and made.optimizer.step == 9
    assert (made.info, made.step, made.train, made.tokenizer) == ({"a": 1}, 3, RUN_CONFIG, found.tokenizer)


def clock(monkeypatch, *seconds):
    """Each measurement takes the next of these times."""
    times = [
        t for i in range(len(seconds)) for t in (sum(seconds[:i]) + 100.0, sum(seconds[: i + 1]) + 100.0)
    ]
    monkeypatch.setattr(journal_module.time, "perf_counter", lambda: times.pop(0))
    return times


@pytest.mark.parametrize(
    "seconds, said", [((3.0, 1.0, 0.5), "0.5"), ((2.0, 2.5, 2.25), "2"), ((4.0, 1.0), "1"), ((6.0,), "6")]
)
def test_the_time_to_go_is_that_of_the_fastest_of_a_few_steps(journal, monkeypatch, seconds, said):
    """At most three gradients, and no further one after five seconds; and the validations that are left."""
    asked, taken = [], []
    made = journal(step=2400, batch=lambda step, rows: asked.append((step, rows)) or ("inputs", "targets"))
    made.journal.validation_seconds = 300.0
    left = clock(monkeypatch, *seconds)
    made.journal.estimate(SimpleNamespace(gradient=lambda *batch: taken.append(batch)))
    whole = 100 * float(said) + 2 * 300.0
    assert (
        made.lines() == [f"about {journal.duration(whole)} to go, at {said} s a step, measured now"]
        and not left
    )
    assert asked == [(2400, 6)]
    assert taken == [("inputs", "targets")] * len(seconds)


@pytest.mark.parametrize("step, quiet, said", [(2480, False, True), (2481, False, False), (0, True, False)])
def test_no_time_is_measured_for_a_few_steps_or_where_it_is_quiet(journal, step, quiet, said):
    made = journal(step=step, quiet=quiet, batch=lambda step, rows: ())
    made.journal.estimate(SimpleNamespace(gradient=lambda: None))
    assert bool(made.lines()) is said


def test_the_validation_s_time_is_kept(journal, monkeypatch):
    made = journal()
    clock(monkeypatch, 2.5)
    made.journal.validate(3)
    assert made.journal.validation_seconds == 2.5


def test_the_bill_says_what_the_steps_waited_for(journal, monkeypatch):
    """Of 20 seconds 2 for a validation, 1 for a sample, and of the checkpoint the copy and the end of its writing."""
    made = journal(sample=lambda model, seed: "text")
    clock(monkeypatch, 2.0, 1.0, 0.5, 0.25)
    monkeypatch.setattr(run_folder, "save", lambda *given: None)
    made.journal.validate(3)
    made.journal.sample(3)
    made.journal.save(3)
    made.journal.settle()
    made.journal.began = 100.0
    monkeypatch.setattr(journal_module.time, "perf_counter", lambda: 120.0)
    made.journal.bill()
    said = "beside the steps: validation 2.0 s, samples 1.0 s, checkpoints 0.8 s, 18.8% of the time"
    assert made.lines()[-1] == said and made.journal.saved == 3


# A whole run.


def test_what_a_run_logs_and_in_which_order(tmp_path):
    """A step, its vital signs at the first, at validations and at the end, the validation, the sample."""
    config = changed(RUN_CONFIG, steps=7, valid_every=3, sample_every=2, save_every=4)
    heard, errors = [], []

    def on_entry(entry):
        heard.append(entry)
        errors.append(set(np.geterr().values()))

    with (
        patch.object(checkpoint, "save", wraps=checkpoint.save) as save,
        patch.object(loop, "appending", wraps=run_folder.appending) as appending,
    ):
        train.train(tmp_path / "run", run_text(), RUN_MODEL, config, quiet=True, on_entry=on_entry)
    file, saved = appending.call_args.args
    assert (file, saved()) == (tmp_path / "run" / "log.jsonl", 7), "what it says when the disk is full"
    assert [call.args[3] for call in save.call_args_list] == [0, 4, 7]
    log = run_folder.read_log(tmp_path / "run")
    assert log == heard
    kinds = ("loss", "groups", "valid_bits_per_byte", "sample")
    found = [(entry["step"], kind) for entry in log for kind in kinds if kind in entry]
    assert found == [
        (0, "valid_bits_per_byte"), (1, "loss"), (1, "groups"), (2, "loss"), (2, "sample"), (3, "loss"), (3, "groups"),
        (3, "valid_bits_per_byte"), (4, "loss"), (4, "sample"), (5, "loss"), (6, "loss"), (6, "groups"),
        (6, "valid_bits_per_byte"), (6, "sample"), (7, "loss"), (7, "groups"), (7, "valid_bits_per_byte"),
    ]  # fmt: skip
    assert all(error == {"ignore"} for error in errors), (
        "NumPy's warnings are noise: what overflows is looked at"
    )


def test_no_samples_where_none_are_wanted(tmp_path):
    train.train(tmp_path / "run", run_text(), RUN_MODEL, changed(RUN_CONFIG, sample_every=0), quiet=True)
    assert not [entry for entry in run_folder.read_log(tmp_path / "run") if "sample" in entry]


def test_workers_take_no_notice_of_overflow():
    step = Step(GPT(RUN_MODEL), AdamW(RUN_MODEL, RUN_CONFIG), RUN_CONFIG, RUN_CONFIG.batch, 2)
    assert set(step.pool.submit(np.geterr).result().values()) == {"ignore"}
    step.pool.shutdown()


def test_what_run_json_says(tmp_path):
    files = {"text": "/a", "valid": None}
    train.train(
        tmp_path / "run",
        run_text(),
        RUN_MODEL,
        RUN_CONFIG,
        source="söurce",
        quiet=True,
        workers=2,
        files=files,
    )
    text = (tmp_path / "run" / "run.json").read_text("utf-8")
    head = json.loads(text)
    assert (
        list(head) == ["version", "started", "machine", "model", "train", "data"]
        and head["version"] == __version__
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", head["started"])
    assert head["machine"] == (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}"
    )
    assert (head["model"], head["train"]) == (RUN_MODEL.to_dict(), RUN_CONFIG.to_dict())
    found = checkpoint.load(tmp_path / "run")
    part, valid = data.split_text(run_text(), RUN_CONFIG.valid_fraction)
    ids = [found.tokenizer.encode(text) for text in (part, valid)]
    assert list(head["data"].items()) == [
        ("train_tokens", len(ids[0])), ("valid_tokens", len(ids[1])), ("source", "söurce"), ("workers", 2),
        ("floor_bits_per_byte", None), ("files", files), ("fingerprint", datasets.fingerprint(ids[0])),
        ("valid_fingerprint", datasets.fingerprint(ids[1])),
    ]  # fmt: skip
    assert text.startswith('{\n "version": ') and text.endswith("\n}\n") and "söurce" in text


@pytest.mark.parametrize("profile", [0, 1, 2, 9])
def test_a_profile_is_of_the_second_step_and_those_behind_it(tmp_path, capfd, profile):
    """What the device takes is said first; the table of so many steps as soon as the last of them is done."""
    heard = []

    class Timed(Step):
        told = "takes a lot"

        def __call__(self, *batch):
            heard.append(self.optimizer.step + 1)
            return super().__call__(*batch)

        def watched(self):
            heard.append("watched")
            return SimpleNamespace(table=lambda steps: f"where {steps} steps went")

        def unwatched(self):
            heard.append("unwatched")

    config = changed(RUN_CONFIG, steps=5, valid_every=9, sample_every=0)
    with patch.object(loop, "step_of", return_value=Timed) as step_of:
        loop.start_run(tmp_path / "run", *_found(tmp_path, config), False, None, profile)
        assert type(step_of.call_args.args[0]) is GPT
    out = capfd.readouterr().out.splitlines()
    assert out[0] == "takes a lot" and out[1].startswith("model: ")
    expected = {
        0: [1, 2, 3, 4, 5],
        1: [1, "watched", 2, "unwatched", 3, 4, 5],
        2: [1, "watched", 2, 3, "unwatched", 4, 5],
        9: [1, "watched", 2, 3, 4, 5],
    }
    assert heard == expected[profile]
    tables = [line for line in out if line.startswith("where")]
    assert tables == ([f"where {profile} steps went"] if profile in (1, 2) else [])


def _found(folder, config):
    """A checkpoint of step 0 and its text."""
    tokenizer = Tokenizer.train(run_text(), RUN_MODEL.vocab_size, special_tokens=())
    model = GPT(RUN_MODEL, seed=config.seed)
    found = checkpoint.Checkpoint(
        folder / "run", model, tokenizer, 0, config, AdamW(RUN_MODEL, config), {"workers": 1}
    )
    return found, datasets.TextDataset(*data.split_text(run_text(), 0.1), found)


def test_a_run_s_device_is_asked_for_and_stored(tmp_path):
    """The one it has, or another when it goes on there; its model and its optimiser's state are put where it is."""
    moved = []

    class Somewhere:
        def __init__(self, info):
            self.info = info

        def place(self, model):
            moved.append(("model", type(model)))
            return model

        def optimizer(self, optimizer, shape):
            moved.append(("optimizer", optimizer.step, shape))
            return optimizer

    first = Somewhere({"device": "gpu", "precision": "tf32"})
    with patch.object(loop, "chosen_before", return_value=first) as chosen:
        train.train(
            tmp_path / "run", run_text(), RUN_MODEL, RUN_CONFIG, quiet=True, device=Device("gpu", "tf32"),
        )  # fmt: skip
        info, asked, shape = chosen.call_args.args
        assert (info["device"], info["precision"], asked, shape) == ("gpu", "tf32", None, RUN_MODEL)
    assert moved == [("model", GPT), ("optimizer", 0, RUN_MODEL)]
    stored = checkpoint.load(tmp_path / "run").info
    assert (stored["device"], stored["precision"]) == ("gpu", "tf32")
    then = stored
    for name, info in (("checked", {"device": "checked", "precision": "float32"}), ("cpu", {}), (None, {})):
        del moved[:]
        with patch.object(loop, "chosen_before", return_value=Somewhere(info)) as chosen:
            steps = checkpoint.load(tmp_path / "run").step + 1
            loop.resume(tmp_path / "run", run_text(), quiet=True, steps=steps, device=name)
            before, asked, shape = chosen.call_args.args
            assert (asked, shape) == (name, RUN_MODEL)
            assert before == then, "as it was stored"
        assert moved == [("model", GPT), ("optimizer", steps - 1, RUN_MODEL)]
        then = checkpoint.load(tmp_path / "run").info
        assert {k: then[k] for k in ("device", "precision") if k in then} == info
        described = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))["data"]
        assert {k: described[k] for k in ("device", "precision") if k in described} == info


def test_a_run_that_gets_more_steps_is_told_what_they_mean(tmp_path):
    """That the data will repeat is said when the number of steps changes, at the step from which it goes on."""
    run, begun = tmp_path / "run", journal_module.Journal.begin
    config = changed(RUN_CONFIG, steps=2, valid_every=9, sample_every=0)
    train.train(run, run_text(), RUN_MODEL, config, quiet=True)
    with patch.object(journal_module.Journal, "begin", autospec=True, side_effect=begun) as begin:
        for steps, lengthened in ((None, False), (2, False), (4, True), (4, False)):
            with patch.object(journal_module.Watch, "begin", return_value=["the data will repeat"]):
                loop.resume(run, run_text(), quiet=True, steps=steps)
            assert begin.call_args.args[1:] == ([], lengthened)
    warnings = [entry for entry in run_folder.read_log(run) if "repeat" in entry.get("warning", "")]
    assert warnings == [{"step": 2, "warning": "the data will repeat"}]


def test_only_launches_of_a_gpu_are_profiled(begun, tmp_path):
    assert error_of(train.train, tmp_path / "run", run_text(), RUN_MODEL, RUN_CONFIG, profile=1) == (
        "profile times the launches of a GPU, and this run is on the CPU: expected --device gpu"
    )
    begun.assert_not_called()
    train.train(
        tmp_path / "run", run_text(), RUN_MODEL, RUN_CONFIG, device=Device("checked", "float32"), profile=3
    )
    assert begun.call_args.args[5] == 3
    info = begun.call_args.args[1].info
    assert (info["device"], info["precision"]) == ("checked", "float32")
    train.train(tmp_path / "run", run_text(), RUN_MODEL, RUN_CONFIG, device=CPU)
    assert begun.call_args.args[5] == 0 and "device" not in begun.call_args.args[1].info


def test_the_same_signal_once_more_interrupts_at_once_and_another_does_not():
    """In a thread that is not the main one no handler is set, and nothing is stopped."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    before = [signal.getsignal(number) for number in numbers]
    with loop._stop_between_steps() as stop:
        for number in numbers:
            signal.raise_signal(number)
        assert stop == numbers
        for number in numbers:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    assert [signal.getsignal(number) for number in numbers] == before
    ignored = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with loop._stop_between_steps() as stop:
            signal.raise_signal(signal.SIGUSR1)
            assert stop == []
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, ignored)
    found = []

    def elsewhere():
        with loop._stop_between_steps() as stop:
            found.append((stop, [signal.getsignal(number) for number in numbers]))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [([], before)]


@pytest.fixture
def begun():
    with patch.object(train, "start_run", return_value="model") as start:
        yield start


def test_a_run_is_begun_with_what_was_given(begun, tmp_path):
    heard = print
    tokenizer = Tokenizer([], (END_OF_TEXT,))
    config = changed(RUN_CONFIG, seed=5)
    model = changed(RUN_MODEL, vocab_size=257)
    got = train.train(
        str(tmp_path / "run"),
        run_text(),
        model,
        config,
        tokenizer,
        "mine",
        "a valid text",
        True,
        3,
        heard,
        {"a": "b"},
    )
    assert got == "model"
    run, found, dataset, quiet, on_entry, profile = begun.call_args.args
    assert profile == 0
    assert run == found.path == tmp_path / "run" and (quiet, on_entry) == (True, heard)
    assert (found.step, found.train, found.tokenizer) == (0, config, tokenizer)
    assert found.info == {"source": "mine", "workers": 3, "floor_bits_per_byte": None, "files": {"a": "b"}}
    assert np.array_equal(found.model.params.flat, GPT(model, seed=5).params.flat)
    assert (found.optimizer.step, found.optimizer.config) == (0, config)
    assert dataset.valid.ids.tolist() == tokenizer.encode("a valid text").tolist()
    assert dataset.part.ids.tolist() == tokenizer.encode(run_text()).tolist()
    train.train(tmp_path / "other", run_text(), RUN_MODEL, config)
    run, found, dataset, quiet, on_entry, _ = begun.call_args.args
    assert (quiet, on_entry, found.info["source"]) == (False, None, "text") and "files" not in found.info
    assert found.info["workers"] == machine.cores() and found.tokenizer.vocab_size == RUN_MODEL.vocab_size
    assert error_of(
        train.train, tmp_path / "run", run_text(), changed(RUN_MODEL, vocab_size=256), config, tokenizer
    ) == ("tokenizer has 257 tokens, expected at most vocab_size (256)")


def test_a_run_goes_on_with_what_was_given(tmp_path):
    heard, found = print, SimpleNamespace(train=RUN_CONFIG)
    with (
        patch.object(loop, "resume", return_value="model") as again,
        patch.object(train, "TextDataset") as dataset,
    ):
        assert loop.resume("r", "a text", "a valid text", True, heard, {"a": "b"}, 9) == "model"
        run, make, *rest = again.call_args.args
        assert str(run) == "r" and rest == [True, heard, {"a": "b"}, 9, None]
        make(found)
        dataset.assert_called_once_with("a text", "a valid text", found)
        loop.resume("r", "a" * 100)
        run, make, *rest = again.call_args.args
        assert rest == [False, None, None, None, None]
        make(found)
        held_out = round(100 * RUN_CONFIG.valid_fraction)
        dataset.assert_called_with("a" * (100 - held_out), "a" * held_out, found)


def test_the_floor_is_that_of_the_held_out_stories():
    text = world.corpus(20_000, 3)
    assert train._floor(text) == round(world.floor(text), 6) > 0
    assert train._floor("no story") is None
    assert train._floor(f"no{data.SEPARATOR}story") is None


def test_a_part_that_is_too_short_is_named():
    found = SimpleNamespace(
        model=SimpleNamespace(config=changed(RUN_MODEL, context=9, predict=2)), train=RUN_CONFIG,
        tokenizer=Tokenizer([]), info={"source": "mine"},
    )  # fmt: skip
    made = datasets.TextDataset("a" * 11, "ab", found)
    assert (made.tokens, made.row_tokens, made.sizes) == (11, 9, {"train_tokens": 11, "valid_tokens": 2})
    assert (
        error_of(datasets.TextDataset, "a" * 10, "ab", found)
        == "mine: training part has 10 tokens, expected at least 11"
    )
    found.info = {}
    assert (
        error_of(datasets.TextDataset, "a" * 11, "a", found)
        == "text: validation part has 1 tokens, expected at least 2"
    )


def test_a_sample_begins_a_text_of_its_own():
    made = SimpleNamespace(tokenizer="tokens")
    with patch.object(datasets, "generate") as generate:
        datasets.TextDataset.sample(made, "model", 7)
        generate.assert_called_once_with("model", "tokens", "", 100, seed=7)


def test_what_is_known_of_a_run_is_kept_when_it_gets_other_steps(tmp_path):
    """run.json is written anew where its settings are not the checkpoint's: who began it, when and where stays."""
    run = tmp_path / "run"
    train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    old = json.loads((run / "run.json").read_text("utf-8"))
    old |= {"version": "0.0", "started": "long ago", "machine": "another"}
    for change in ({"train": {}}, {"model": {}}, {"train": {}, "started": 7}):
        (run / "run.json").write_text(json.dumps(old | change), "utf-8")
        loop.resume(run, run_text(), quiet=True)
        new = json.loads((run / "run.json").read_text("utf-8"))
        assert (new["version"], new["machine"]) == ("0.0", "another")
        assert (new["started"] == "long ago") is ("started" not in change)
        assert (new["train"], new["model"]) == (RUN_CONFIG.to_dict(), RUN_MODEL.to_dict())
        assert list(new) == list(old) and (run / "run.json").read_text("utf-8").startswith('{\n "version"')
    for damage in ("[]", "{", '{"a": NaN}', "\xff"):
        (run / "run.json").write_bytes(damage.encode("latin-1"))
        loop.resume(run, run_text(), quiet=True)
        assert json.loads((run / "run.json").read_text("utf-8"))["version"] == __version__
    (run / "run.json").write_text(json.dumps(old))
    loop.resume(run, run_text(), quiet=True)
    assert json.loads((run / "run.json").read_text("utf-8")) == old, "nothing to be written"


def test_another_text_is_refused_by_its_fingerprint():
    def check(info, **now):
        given = {"fingerprint": "a", "valid_fingerprint": "b"} | now
        found = SimpleNamespace(
            info={"fingerprint": "a", "valid_fingerprint": "b", "workers": 1} | info, path="p"
        )
        return loop._expect_the_same("run", found, SimpleNamespace(**given))

    check({})
    check({"workers": 4096})
    refused = "run: {} has fingerprint x, expected {}: not the {} the run began with, which {} FILE names"
    for info, now, what, then, option in (
        ({}, "fingerprint", "text", "a", "--data"),
        ({}, "valid_fingerprint", "validation text", "b", "--valid"),
        ({"examples": []}, "valid_fingerprint", "validation text", "b", "--data"),
    ):
        assert error_of(check, info, **{now: "x"}) == refused.format(what, then, what, option)
    for workers in (0, 4097, 2.0, True, "1", None):
        expected = f"p: workers is {workers!r}, expected 1 to 4096: edited"
        assert error_of(check, {"workers": workers}) == expected


def test_steps_that_are_done_already_are_refused(tmp_path):
    train.train(tmp_path / "run", run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    steps = RUN_CONFIG.steps
    message = error_of(loop.resume, tmp_path / "run", run_text(), quiet=True, steps=steps - 1)
    assert message == f"{tmp_path}/run: steps is {steps - 1}, expected more than the {steps} that are done"
    loop.resume(tmp_path / "run", run_text(), quiet=True, steps=steps)  # as planned: nothing to be done
    found = checkpoint.load(tmp_path / "run", training=True)
    assert found.train.steps == found.optimizer.config.steps == found.step == steps


def test_a_run_needs_a_folder(tmp_path):
    (tmp_path / "file").touch()
    message = error_of(train.train, tmp_path / "file" / "run", run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    assert message == f"{tmp_path}/file/run: cannot be made (Not a directory), expected a folder to write to"
    train.train(tmp_path / "a" / "b", run_text(), RUN_MODEL, changed(RUN_CONFIG, steps=1), quiet=True)
    assert (tmp_path / "a" / "b" / "run.json").is_file()
    message = error_of(loop.resume, tmp_path / "a" / "b" / "checkpoints" / "step-000001", run_text())
    assert (
        message
        == f"{tmp_path}/a/b/checkpoints/step-000001: is a checkpoint, expected its run folder: {tmp_path}/a/b"
    )


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="Windows has no such signal")
def test_a_job_that_is_about_to_end_is_saved(tmp_path, capfd):
    """SIGUSR1, as clusters send it: the step is finished and saved, and the run says how it goes on."""

    def send(entry):
        if entry.get("step") == 3 and "loss" in entry:
            signal.raise_signal(signal.SIGUSR1)

    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(KeyboardInterrupt):
        train.train(tmp_path / "run", run_text(), RUN_MODEL, RUN_CONFIG, quiet=True, on_entry=send)
    assert (
        checkpoint.load(tmp_path / "run", training=True).step == 3
        and signal.getsignal(signal.SIGUSR1) == before
    )
    out = capfd.readouterr().out
    assert out == f"stopped; the checkpoint of step 3 is saved: --resume {tmp_path}/run goes on\n"


def test_a_signal_in_the_last_step_stops_nothing(tmp_path, capfd):
    def send(entry):
        if entry.get("step") == RUN_CONFIG.steps and "loss" in entry:
            signal.raise_signal(signal.SIGTERM)

    train.train(tmp_path / "run", run_text(), RUN_MODEL, RUN_CONFIG, quiet=True, on_entry=send)
    assert "".join(capfd.readouterr()) == ""


def test_bits_per_byte_in_parts_are_those_of_the_whole():
    tokenizer = Tokenizer([(97, 98)])
    model = GPT(changed(RUN_MODEL, vocab_size=257, context=5), seed=3)
    tokens = data.tokenize("abcab bca " * 9, tokenizer)
    inputs, targets = data.validation_rows(tokens, 5)
    with patch.object(model, "losses", wraps=model.losses) as losses:
        bits = datasets.bits_per_byte(model, tokens)
    assert [len(call.args[0]) for call in losses.call_args_list][:-1] == [8] * (len(inputs) // 8)
    nats = model.losses(inputs, targets).sum(dtype=np.float64)
    size = len("abcab bca " * 9) - 2  # the first token, "ab", is no target
    assert bits == pytest.approx(nats / math.log(2) / size, rel=1e-6)
    assert datasets.bits_per_byte(model, tokens, 3) == pytest.approx(bits, rel=1e-6)
    one = data.tokenize("bb", tokenizer)
    nats = model.losses(np.array([[98]]), np.array([[98]])).sum()
    assert datasets.bits_per_byte(model, one) == pytest.approx(nats / math.log(2), rel=1e-5), (
        "one byte is one"
    )
    special = data.tokenize(END_OF_TEXT * 2, Tokenizer([], (END_OF_TEXT,)))
    special = data.Tokens(np.array([256, 256]), None, special.lengths)
    assert math.isfinite(datasets.bits_per_byte(model, special)), "no byte at all: no division by 0"
