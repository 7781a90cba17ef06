"""The folder of a run: who may begin in it, one writer at a time, and its log line by line."""

import json
import os
from unittest.mock import MagicMock, patch

import pytest
from oracles import error_of

from nanoeuler_lib.training import checkpoint, run_folder


def test_who_may_begin_in_a_folder(tmp_path):
    run, taken = tmp_path / "run", "must be a new or an empty folder, got an existing one: choose a new name"
    run_folder.expect_new(run)
    run.mkdir()
    run_folder.expect_new(run)
    for name in ("lock", "run.json", ".run.json.partial", ".log.jsonl.partial", ".log.jsonl.12.partial", "log.jsonl"):
        (run / name).touch()
    (run / "checkpoints").mkdir()
    run_folder.expect_new(run)
    for name in ("log.jsonl", "x", ".run.json.x.partial", "a.run.json.partial", ".run.json.partial2"):
        (run / name).write_text("x\n")
        assert error_of(run_folder.expect_new, run) == f"{run}: {taken}"
        (run / name).unlink()
    (run / "checkpoints" / "step-000000").mkdir()
    assert error_of(run_folder.expect_new, run) == f"{run}: {taken}, or continue the run with --resume {run}"
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        assert error_of(run_folder.expect_new, tmp_path / name) == f"{tmp_path / name}: {taken}"


def test_one_writer_at_a_time(tmp_path):
    for name in (".run.json.partial", ".log.jsonl.7.partial", "kept.partial"):
        (tmp_path / name).touch()
    (tmp_path / "checkpoints" / ".step-000001.partial").mkdir(parents=True)
    with run_folder.sole_writer(tmp_path) as still_there:
        assert sorted(f.name for f in tmp_path.iterdir()) == ["checkpoints", "kept.partial", "lock"]
        assert not list((tmp_path / "checkpoints").iterdir())
        still_there()
        message = f"{tmp_path}: another process is training into this folder: wait until it has finished"
        assert error_of(run_folder.sole_writer(tmp_path).__enter__) == message
        for change in (lambda: (tmp_path / "lock").unlink(), lambda: (tmp_path / "lock").touch()):
            change()
            assert error_of(still_there) == (f"{tmp_path}: was removed or renamed while the run wrote to it")
    with run_folder.sole_writer(tmp_path):
        pass  # the lock is let go of
    (tmp_path / "odd" / "lock").mkdir(parents=True)
    for name, reason in (("none", "No such file or directory"), ("odd", "Is a directory")):
        message = f"{tmp_path / name}: cannot be written to ({reason}): choose a writable folder"
        assert error_of(run_folder.sole_writer(tmp_path / name).__enter__) == message


# Its log.


SEPARATORS = '\u2028 \u2029 \x85 \x0b \x0c \x1c \x1d \x1e \r \n \x00 \x7f \x1b[2J \ufeff \U0001f600 \u200b " \\'


def test_an_entry_is_a_line_that_stands_there_at_once(tmp_path):
    """U+2028 and its like are line ends to Python's str, and not to JSON: a log that is trimmed keeps them."""
    file = tmp_path / "log.jsonl"
    with run_folder.appending(file, lambda: 7) as append:
        append({"step": 1, "sample": "ü\n"})
        assert file.read_bytes() == '{"step": 1, "sample": "ü\\n"}\n'.encode()
        append({"step": 2, "sample": SEPARATORS})
    with run_folder.appending(file, lambda: 7) as append:
        append({"step": 3})
    assert run_folder.trim_log(file, 2) is None
    log = run_folder.read_log(str(tmp_path))
    assert log == [{"step": 1, "sample": "ü\n"}, {"step": 2, "sample": SEPARATORS}]
    message = f"{tmp_path}/none/log.jsonl: cannot be written (No such file or directory)"
    assert error_of(run_folder.appending(tmp_path / "none" / "log.jsonl", int).__enter__) == message


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_ends_a_run_with_the_step_that_is_saved():
    with run_folder.appending("/dev/full", lambda: 7) as append:
        message = error_of(append, {"step": 1})
    assert message == "/dev/full: cannot be written (No space left on device); the checkpoint of step 7 is intact"


def test_half_a_line_is_a_full_disk(tmp_path, monkeypatch):
    log = MagicMock(write=lambda line: len(line) - 1)
    log.__enter__.return_value = log
    monkeypatch.setattr("builtins.open", lambda *_, **__: log)
    with run_folder.appending(tmp_path / "log", lambda: 7) as append:
        assert "log: cannot be written (No space left on device)" in error_of(append, {"step": 1})


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
    assert "log.jsonl: line 2 is not a log entry: the file was" in error_of(run_folder.read_log, tmp_path)


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
        said = run_folder.trim_log(file, 1)
        assert said.startswith(f"{file}: line 2 is not a log entry: the file was damaged or edited. It was")
        assert said.endswith(f"-{number}.jsonl, and its 3 readable entries are kept in a new log")
        assert file.read_text("utf-8") == '{"step": 0}\n{"step": 1, "sample": "\ufffd"}\n'
        assert b"\xff" in (tmp_path / f"log.aside-{number}.jsonl").read_bytes()
    file.unlink()
    file.mkdir()
    assert "must be a regular file, the log of a run. It was renamed" in run_folder.trim_log(file, 1)


def test_a_damaged_log_that_cannot_be_set_aside_is_left_as_it_is(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text("x\n")
    with patch.object(run_folder.os, "rename", side_effect=PermissionError(13, "Permission denied")):
        assert error_of(run_folder.trim_log, file, 1) == f"{file}: cannot be renamed (Permission denied)"
    assert [f.name for f in tmp_path.iterdir()] == ["log.jsonl"] and file.read_text() == "x\n"


def test_a_log_that_cannot_be_read(tmp_path):
    file = tmp_path / "log.jsonl"
    assert f"{file}: cannot be read (No such file or directory)" in error_of(run_folder.read_log, tmp_path)
    file.mkdir()
    assert error_of(run_folder.read_log, tmp_path) == f"{file}: must be a regular file, the log of a run"


def test_checkpoints_come_in_the_order_of_their_steps(tmp_path):
    names = ["step-000000", "step-000002", "step-000010", "step-999999", "step-1000000"]
    for name in reversed(names):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert [folder.name for folder in checkpoint.folders(tmp_path)] == names
