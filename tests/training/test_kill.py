"""A run that is killed, stopped, or shut out from its disk: it goes on, and ends with the same bits."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from oracles import RUN_CONFIG, RUN_MODEL, assert_same_run, changed, error_of, run_text

from nanoeuler_lib.training import checkpoint, loop, train

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
    assert "another process is training into this folder" in messages[0] and "choose a new name" in messages[1]
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
