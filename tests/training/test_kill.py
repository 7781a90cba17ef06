"""A run that is killed, stopped, or shut out from its disk: it goes on, and ends with the same bits."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from oracles import RUN_CONFIG, RUN_MODEL, assert_same_run, changed, error_of, run_python, run_text

from nanoeuler_lib.training import checkpoint, loop, run_folder, train

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OPENBLAS_NUM_THREADS": "1"}


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize(
    "options, least", [(("--every", 16, "--random", 1), 8), pytest.param((), 150, marks=pytest.mark.slow)]
)
def test_killed_and_started_again(options, least):
    """kill -9 at file events and random moments of four commands: all end as if never killed, nothing is left."""
    command = [sys.executable, ROOT / "tests" / "release" / "kills.py", *options]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=ENVIRONMENT, timeout=300)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    killed, wrong = (int(word) for word in re.findall(r"\d+", done.stdout.splitlines()[-1]))
    assert killed >= least and wrong == 0


def test_two_runs_into_one_folder(tmp_path):
    run, messages = tmp_path / "run", []
    begin = lambda run, **named: train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True, **named)

    def intrude(entry):
        if entry["step"] == 3 and "loss" in entry:
            partial = run / "checkpoints" / ".step-000099.partial"
            partial.mkdir()
            messages.extend([error_of(loop.resume, run, run_text(), quiet=True), error_of(begin, run)])
            assert partial.exists(), "only the one that writes sweeps"

    begin(run, on_entry=intrude)
    assert "another process is training into this folder" in messages[0] and "expected a new one" in messages[1]
    begin(tmp_path / "alone")
    assert_same_run(tmp_path / "alone", run)
    loop.resume(run, run_text(), quiet=True)  # the lock is free again


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's limit on file sizes")
@pytest.mark.parametrize("step", [4, 6])
def test_a_checkpoint_on_a_full_disk(tmp_path, step):
    """In the middle of a run or at its end no file may grow past 20 kB: the checkpoint before stays, and goes on."""
    import resource

    run, before = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    config = changed(RUN_CONFIG, valid_every=6)
    begin = lambda run, **named: train.train(run, run_text(), RUN_MODEL, config, quiet=True, **named)

    def fill(entry):
        if entry["step"] == step - 1 and "loss" in entry:
            while not (run / "checkpoints" / f"step-{step - 2:06d}" / "checkpoint.json").exists():
                time.sleep(0.01)  # a thread writes it
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))

    try:
        message = error_of(begin, run, on_entry=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"step-{step:06d}: cannot write the checkpoint (" in message and "File too large" in message
    assert message.endswith("earlier ones are intact")
    assert checkpoint.load(run, training=True).step == step - 2
    loop.resume(run, run_text(), quiet=True)
    begin(tmp_path / "whole")
    assert_same_run(tmp_path / "whole", run)


READ_ONLY = """
import os, tempfile
from oracles import RUN_CONFIG, RUN_MODEL, run_text
from nanoeuler_lib.command import cli
from nanoeuler_lib.training import checkpoint, loop, train
with tempfile.TemporaryDirectory() as folder:  # imports what it needs: as nobody it may not read what is root's
    text = run_text()
    train.train(folder + "/run", text, RUN_MODEL, RUN_CONFIG, quiet=True)
if os.geteuid() == 0:  # the rights of a folder do not bind root
    os.setuid(65534)
for start in (
    lambda: train.train("new", text, RUN_MODEL, RUN_CONFIG, quiet=True),
    lambda: loop.resume("run", text, quiet=True),
    lambda: train.train("closed/run", text, RUN_MODEL, RUN_CONFIG, quiet=True),
    lambda: checkpoint.load("closed"),
    lambda: checkpoint.load("closed/run"),
):
    try:
        start()
    except train.NanoEulerError as error:
        print(error)
"""


def test_folder_without_rights(tmp_path):
    train.train(tmp_path / "run", run_text(), RUN_MODEL, changed(RUN_CONFIG, steps=1), quiet=True)
    (tmp_path / "closed").mkdir()
    (tmp_path / "run" / "lock").chmod(0o400)
    (tmp_path / "closed").chmod(0o000)
    tmp_path.chmod(0o555)
    try:
        done = run_python(READ_ONLY, cwd=tmp_path)
    finally:
        tmp_path.chmod(0o700)
        (tmp_path / "closed").chmod(0o700)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "new/lock: cannot be written (Permission denied)",
        "run: cannot be written to (Permission denied), expected a folder to write to",
        "closed/run: cannot be looked at (Permission denied), expected a new folder",
        "closed: cannot be looked at (Permission denied), expected a checkpoint or a run folder",
        "closed/run: cannot be looked at (Permission denied), expected a checkpoint or a run folder",
    ]
    assert sorted(f.name for f in tmp_path.iterdir()) == ["closed", "run"]
    (tmp_path / "run" / "lock").unlink()
    (tmp_path / "run" / "lock").mkdir()
    message = error_of(run_folder.sole_writer(tmp_path / "run").__enter__)
    assert message == f"{tmp_path}/run: cannot be written to (Is a directory), expected a folder to write to"
