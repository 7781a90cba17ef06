"""The warnings of a run in whole sentences, each at the first entry that earns it and not one entry before."""

import json
import math
import os

import numpy as np
import pytest
from test_train import error_of

from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.training import checkpoint, run_folder, watch
from nanoeuler_lib.training.watch import WINDOW, Watch, text_warnings

ADVICE = {
    "rises": "Most often the rate is too high (it is 0.12 now): try half of it, a longer warm-up, or a lower clip",
    "repeats": "After about 4, repeated text teaches little and is learnt by heart: compare training with validation "
    "loss; take more text, fewer steps, or a smaller model",
}


def watching(steps=100, tokens_per_step=10, train_tokens=10**9):
    return Watch(TrainConfig(steps=steps), tokens_per_step, train_tokens)


def losses(made, values, start=1):
    said = []
    for step, loss in enumerate(values, start):
        said += [(step, text) for text in made.see({"step": step, "loss": loss, "rate": 0.123})]
    return said


def test_data_that_will_repeat():
    """Four passes over the data are about as good as new data; what is said before is not said again."""
    assert watching(100, 10, 251).begin() == []
    made = watching(100, 10, 250)
    assert made.begin() == [
        f"the data will repeat: 100 steps draw 1000 tokens from a text of 250, 4.0 passes. {ADVICE['repeats']}"
    ]
    assert losses(made, [1.0] * 40, 100) == []


def test_data_that_repeats_is_said_at_the_step_at_which_it_does():
    made = watching(9, 10, 20)
    assert losses(made, [1.0] * 20) == [
        (
            8,
            f"step 8: the data repeats: 8 steps draw 80 tokens from a text of 20, 4.0 passes. {ADVICE['repeats']}",
        )
    ]


@pytest.mark.parametrize("rise, told", [(1.029, False), (1.031, True)])
def test_a_loss_that_rises_by_three_per_cent(rise, told):
    """Windows of equal losses have no noise; then three per cent count."""
    made = watching()
    first = [2.0] * WINDOW
    expected = (
        f"step 150: the loss rises: {2 * rise:.3f} nats over the last 50 steps, 2.000 up to step "
        f"100. {ADVICE['rises']}"
    )
    said = losses(made, [3.0] * WINDOW + first + [2.0 * rise] * WINDOW)
    assert said == ([(150, expected)] if told else [])
    assert losses(made, [9.0] * (WINDOW - 1), 151) == [], "a window has to be full"
    assert bool(losses(made, [9.0], 200)) is not told, "said once"


def test_a_loss_that_is_the_same_again_is_no_rise():
    made = watching()
    assert losses(made, [2.0] * (5 * WINDOW)) == [] and made.best == (2.0, 0.0, WINDOW)


@pytest.mark.parametrize("sigmas, told", [(4.9, False), (5.1, True)])
def test_a_noisy_loss_rises_by_five_standard_errors(sigmas, told):
    """The error is that of the difference of two means of 50."""
    noise = np.array([-1.0, 1.0] * (WINDOW // 2))  # variance 1 in both windows
    rise = sigmas * math.sqrt(2 / WINDOW)
    assert rise > 0.03 * 5
    assert bool(losses(watching(), [*(5 + noise), *(5 + rise + noise)])) is told


def test_a_validation_that_rises():
    """Three times in a row two per cent above the best, which itself came before them."""
    made, said = watching(), []
    for step, bits in enumerate([3.0, 2.0, 2.05, 2.04, 2.039, 2.06, 2.07, 2.08]):
        said += [(step, text) for text in made.see({"step": step, "valid_bits_per_byte": bits})]
    assert said == [
        (
            7,
            "step 7: validation rises: 2.0800 bits per byte, 2.0000 at step 1, and worse three times in a "
            "row. Where the "
            "training loss still falls, the model learns its text by heart: take more text, stop earlier, or use more "
            "decay; where both rise, the rate is too high",
        )
    ]
    made, said = watching(), []
    for step, bits in enumerate([2.0, 2.1, 2.1]):
        said += made.see({"step": step, "valid_bits_per_byte": bits})
    assert said == [] and len(made.see({"step": 3, "valid_bits_per_byte": 2.04})) == 1, (
        "exactly two per cent count"
    )


@pytest.mark.parametrize("norm, told", [(0.99e-4, True), (1.01e-4, False), (math.nan, True), (0.0, True)])
def test_a_gradient_that_vanishes(norm, told):
    """Below a hundred-thousandth of the whole."""
    groups = {"embed": [6.0, 0.1], "layers.0": [norm, 0.1], "heads": [8.0, 0.1]}
    said = watching().see({"step": 3, "groups": groups})
    assert bool(said) is told
    if norm == 0.99e-4:
        assert said == [
            "step 3: the gradient vanishes in layers.0: 9.9e-05 of a whole of 1.0e+01. Nothing these "
            "weights do reaches the "
            "loss: look at their backward pass (`nanoeuler check`), at how they were initialised, and at what stands "
            "between them and the loss"
        ]


def test_two_groups_that_get_nothing_are_both_named():
    groups = {"embed": [3.0, 0.1], "layers.0": [0.0, 0.1], "layers.1": [0.0, 0.1]}
    assert (
        "vanishes in layers.0, layers.1: 0.0e+00 of a whole of 3.0e+00."
        in watching().see({"step": 3, "groups": groups})[0]
    )


def test_one_entry_may_earn_several_warnings():
    made = watching(9, 10, 1)
    entry = {"step": 9, "loss": 1.0, "rate": 0.1, "groups": {"embed": [0.0, 0.0]}}
    said = made.see(entry)
    assert [text.split(":")[1] for text in said] == [" the data repeats", " the gradient vanishes in embed"]
    assert made.see(entry) == []


def test_groups_of_layers():
    assert [watch.group_of(name) for name in ("embed", "layers.12.qkv", "norm_final", "heads")] == [
        "embed", "layers.12", "heads", "heads",
    ]  # fmt: skip


SEPARATOR = "\n<mark>\n"


def test_texts_that_repeat_or_leak():
    ten = [f"document {i}" for i in range(10)]

    def said(documents, valid=()):
        return text_warnings(SEPARATOR.join(documents), SEPARATOR.join(valid), SEPARATOR)

    assert said(ten, ["another"]) == [] and said(["alone"], ["alone"]) == [] and said([]) == []
    assert said([*ten[:9], ten[0]]) == [], "one copy of ten is no matter"
    assert said([*ten[:8], ten[0], ten[1]]) == [
        "the data repeats: 2 of 10 training documents stand there more than once. Remove the copies, or "
        "they are learnt "
        "by heart"
    ]
    assert said(ten, [ten[3], "another", "", ten[3]]) == [
        "validation leaks: 2 of 3 validation documents stand in the training text too. Its figure will "
        "look better than "
        "the model is; remove them from one part"
    ]
    assert said(["a <mark> b <mark>", "<mark>c"]) == [
        "<mark> stands in the text 3 times within a line: there it is ordinary letters. Between documents "
        "it wants a line "
        "of its own"
    ]
    assert said(["a", "", "b"], [""]) == [], "empty documents are none"


# The folder of a run.


def test_who_may_begin_in_a_folder(tmp_path):
    run = tmp_path / "run"
    run_folder.expect_new(run)
    run.mkdir()
    run_folder.expect_new(run)
    for name in ("lock", "run.json", ".run.json.partial", ".log.jsonl.partial", ".log.jsonl.12.partial"):
        (run / name).touch()
    (run / "checkpoints").mkdir()
    run_folder.expect_new(run)
    for name in ("log.jsonl", "x", ".run.json.x.partial", "a.run.json.partial", ".run.json.partial2"):
        (run / name).touch()
        assert error_of(run_folder.expect_new, run) == (
            f"{run}: exists and is not an empty folder, expected a new one"
        )
        (run / name).unlink()
    (run / "checkpoints" / "step-000000").mkdir()
    assert error_of(run_folder.expect_new, run) == (
        f"{run}: exists and is not an empty folder, expected a new one (or --resume {run})"
    )
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        assert error_of(run_folder.expect_new, tmp_path / name) == (
            f"{tmp_path / name}: exists and is not an empty folder, expected a new one"
        )


def test_a_folder_that_cannot_be_looked_at(tmp_path, monkeypatch):
    def listdir(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.listdir", listdir)
    assert error_of(run_folder.expect_new, tmp_path) == (
        f"{tmp_path}: cannot be looked at (Permission denied), expected a new folder"
    )


def test_one_writer_at_a_time(tmp_path):
    for name in (".run.json.partial", ".log.jsonl.7.partial", "kept.partial"):
        (tmp_path / name).touch()
    (tmp_path / "checkpoints" / ".step-000001.partial").mkdir(parents=True)
    with run_folder.sole_writer(tmp_path) as still_there:
        assert sorted(f.name for f in tmp_path.iterdir()) == ["checkpoints", "kept.partial", "lock"]
        assert not list((tmp_path / "checkpoints").iterdir())
        still_there()
        message = f"{tmp_path}: another process is training into this folder, expected one at a time"
        assert error_of(run_folder.sole_writer(tmp_path).__enter__) == message
        for change in (lambda: (tmp_path / "lock").unlink(), lambda: (tmp_path / "lock").touch()):
            change()
            assert error_of(still_there) == (
                f"{tmp_path}: the folder was removed or renamed while the run wrote to it"
            )
    with run_folder.sole_writer(tmp_path):
        pass  # the lock is let go of
    message = (
        f"{tmp_path}/none: cannot be written to (No such file or directory), expected a folder to write to"
    )
    assert error_of(run_folder.sole_writer(tmp_path / "none").__enter__) == message


# Its log.


def test_an_entry_is_a_line_that_stands_there_at_once(tmp_path):
    file = tmp_path / "log.jsonl"
    with run_folder.appending(file, lambda: 7) as append:
        append({"step": 1, "sample": "ü\n"})
        assert file.read_bytes() == '{"step": 1, "sample": "ü\\n"}\n'.encode()
        append({"step": 2})
    with run_folder.appending(file, lambda: 7) as append:
        append({"step": 3})
    assert [entry["step"] for entry in run_folder.read_log(str(tmp_path))] == [1, 2, 3]
    message = f"{tmp_path}/none/log.jsonl: cannot be written (No such file or directory)"
    assert error_of(run_folder.appending(tmp_path / "none" / "log.jsonl", int).__enter__) == message


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_ends_a_run_with_the_step_that_is_saved(tmp_path):
    with run_folder.appending("/dev/full", lambda: 7) as append:
        assert error_of(append, {"step": 1}) == (
            "/dev/full: cannot be written (No space left on device); the checkpoint of step 7 is intact"
        )


def test_half_a_line_is_a_full_disk(tmp_path, monkeypatch):
    class Log:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def write(self, line):
            return len(line) - 1

    monkeypatch.setattr("builtins.open", lambda *_, **__: Log())
    with run_folder.appending(tmp_path / "log", lambda: 7) as append:
        assert error_of(append, {"step": 1}) == (
            f"{tmp_path}/log: cannot be written (No space left on device); the checkpoint of step 7 is intact"
        )


STEP = {"step": 3, "loss": 1.0, "rate": 0.1, "norm": 1.0, "tokens_per_second": 5}
NO_ENTRIES = [
    [], 7, None, {}, {"step": True}, {"step": 1.0}, {"step": -1}, {"step": 2**53}, {"step": 1, "sample": 7},
    {"step": 1, "warning": None}, {"step": 1, "groups": []}, {"step": 1, "groups": {"a": [1]}},
    {"step": 1, "groups": {"a": [1, 2, 3]}}, {"step": 1, "groups": {"a": [1, "2"]}}, {"step": 1, "groups": {"a": 7}},
    *({k: v for k, v in STEP.items() if k != name} for name in ("step", "rate", "norm", "tokens_per_second")),
    *(STEP | {name: bad} for name in (*STEP, "seconds", "valid_bits_per_byte") if name != "step"
      for bad in ("1", True, None, 1e300, -1e300)),
]  # fmt: skip
ENTRIES = [
    {"step": 0}, {"step": 2**53 - 1}, STEP, STEP | {"loss": -9.9e299, "seconds": 0, "valid_bits_per_byte": 1},
    {"step": 1, "sample": "", "warning": "x"}, {"step": 1, "groups": {}}, {"step": 1, "groups": {"a": [1, 2.5]}},
    {"step": 1, "rate": 0.5}, {"step": 1, "unknown": [None]},
]  # fmt: skip


@pytest.mark.parametrize("entry", NO_ENTRIES, ids=str)
def test_a_line_that_is_no_entry(tmp_path, entry):
    (tmp_path / "log.jsonl").write_text(json.dumps({"step": 0}) + "\n" + json.dumps(entry) + "\n")
    assert error_of(run_folder.read_log, tmp_path) == (
        f"{tmp_path}/log.jsonl: line 2 is no entry of a log: damaged or edited"
    )


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_a_line_that_is_one(tmp_path, entry):
    (tmp_path / "log.jsonl").write_text(json.dumps(entry) + "\n")
    assert run_folder.read_log(tmp_path) == [entry]


def test_what_is_logged_behind_a_checkpoint_is_dropped(tmp_path):
    file = tmp_path / "log.jsonl"
    lines = [json.dumps({"step": step, "sample": "ü"}, ensure_ascii=False) + "\n" for step in (0, 1, 2, 2, 3)]
    file.write_text("".join(lines) + '{"step": 3, "lo')
    assert run_folder.trim_log(file, 2) is None and file.read_text("utf-8") == "".join(lines[:4])
    assert run_folder.trim_log(file, -1) is None and file.read_text("utf-8") == ""
    file.unlink()
    assert run_folder.trim_log(file, 2) is None and file.read_bytes() == b"", "no log is an empty one"


def test_a_damaged_log_is_set_aside(tmp_path):
    file = tmp_path / "log.jsonl"
    for number in (1, 2):
        file.write_bytes(b'{"step": 0}\nx\xff\n{"step": 1, "sample": "\xff"}\n{"step": 9}\n')
        assert run_folder.trim_log(file, 1) == (
            f"{file}: line 2 is no entry of a log: damaged or edited. It is set aside as "
            f"log.aside-{number}.jsonl, and the "
            "3 entries that can be read go on"
        )
        assert file.read_text("utf-8") == '{"step": 0}\n{"step": 1, "sample": "\ufffd"}\n'
        assert b"\xff" in (tmp_path / f"log.aside-{number}.jsonl").read_bytes()
    file.unlink()
    file.mkdir()
    assert run_folder.trim_log(file, 1) == (
        f"{file}: is no regular file, expected a run's log. It is set aside as log.aside-3.jsonl, and the "
        f"0 entries that can "
        "be read go on"
    )


def test_a_damaged_log_that_cannot_be_set_aside_is_left_as_it_is(tmp_path, monkeypatch):
    file = tmp_path / "log.jsonl"
    file.write_text("x\n")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(run_folder.os, "rename", refuse)
    assert error_of(run_folder.trim_log, file, 1) == f"{file}: cannot be set aside (Permission denied)"
    assert [f.name for f in tmp_path.iterdir()] == ["log.jsonl"] and file.read_text() == "x\n"


def test_a_log_that_cannot_be_read(tmp_path):
    assert error_of(run_folder.read_log, tmp_path) == (
        f"{tmp_path}/log.jsonl: cannot be read (No such file or directory), expected a run's log"
    )
    (tmp_path / "log.jsonl").mkdir()
    assert error_of(run_folder.read_log, tmp_path) == (
        f"{tmp_path}/log.jsonl: is no regular file, expected a run's log"
    )


def test_checkpoints_come_in_the_order_of_their_steps(tmp_path):
    names = ["step-000000", "step-000002", "step-000010", "step-999999", "step-1000000"]
    for name in reversed(names):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert [folder.name for folder in checkpoint.folders(tmp_path)] == names
