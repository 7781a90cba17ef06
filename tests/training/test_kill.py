"""A run that is killed, stopped, or shut out from its disk: it goes on, and ends with the same bits."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from oracles import RUN_CONFIG, RUN_MODEL, assert_same_run, run_python, run_text

from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.training import checkpoint, journal, loop, run_folder, train

ROOT = Path(__file__).resolve().parents[2]
LONG = TrainConfig(**RUN_CONFIG.to_dict() | {"steps": 60, "save_every": 3, "valid_every": 7, "sample_every": 10})


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize(
    "options, least", [(("--every", 16, "--random", 1), 8), pytest.param((), 150, marks=pytest.mark.slow)]
)
def test_killed_and_started_again(options, least):
    """kill -9 at file events and random moments of four commands: all end as if never killed, nothing is left."""
    command = [sys.executable, ROOT / "tests" / "release" / "kills.py", *options]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment, timeout=300)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    killed, wrong = (int(word) for word in re.findall(r"\d+", done.stdout.splitlines()[-1]))
    assert killed >= least and wrong == 0


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_command_saves_before_it_ends(tmp_path, number):
    """The command, stopped from outside: exit code 130, a checkpoint of the last whole step, one line that says so."""
    (tmp_path / "text.txt").write_text(run_text())
    shape = "--vocab-size 258 --dim 16 --heads 2 --kv-heads 1 --layers 1 --context 12 --predict 2".split()
    command = [
        sys.executable,
        "-m",
        "nanoeuler_lib.command.cli",
        "train",
        "--data",
        "text.txt",
        "--run",
        "run",
        *shape,
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--steps", "1000000", "--batch", "4", "--save-every", "1000000", "--valid-every", "1000000"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    log = tmp_path / "run" / "log.jsonl"
    until = time.monotonic() + 60
    while not (log.exists() and log.read_text().count('"loss"') > 5):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    step = checkpoint.load(tmp_path / "run", training=True).step
    assert step == max(json.loads(line)["step"] for line in log.read_text().splitlines())
    assert output.count("stopped") == 1 and "--resume run goes on" in output and "Traceback" not in output


def test_two_runs_into_one_folder(tmp_path):
    """The second is refused in one line, whether it starts or resumes; the first one's files stay as they are."""
    run, messages = tmp_path / "run", []

    def intrude(entry):
        if entry["step"] == 3 and "loss" in entry:
            for start in (
                lambda: loop.resume(run, run_text(), quiet=True),
                lambda: train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True),
            ):
                with pytest.raises(NanoEulerError) as caught:
                    start()
                messages.append(str(caught.value))

    train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True, on_entry=intrude)
    assert messages == [
        f"{run}: another process is training into this folder, expected one at a time",
        f"{run}: exists and is not an empty folder, expected a new one (or --resume {run})",
    ]
    train.train(tmp_path / "alone", run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    assert_same_run(tmp_path / "alone", run)
    loop.resume(run, run_text(), quiet=True)  # the lock is free again


@pytest.mark.full
def test_a_second_process_is_refused_at_the_very_start(tmp_path):
    """Before the first checkpoint is written, the lock alone tells that the folder is in use."""
    code = (
        "import sys, test_kill as t\nfrom nanoeuler_lib.training import run_folder\n"
        "with run_folder.sole_writer(t.Path(sys.argv[1])):\n print('held', flush=True)\n sys.stdin.read()\n"
    )
    run = tmp_path / "run"
    run.mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(NanoEulerError, match="another process is training into this folder"):
            train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
        holder.kill()
    train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    assert checkpoint.load(run).step == RUN_CONFIG.steps


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_log_on_a_full_disk(tmp_path):
    """Writing the log fails: one line, and the checkpoint that was written last is whole."""
    run = tmp_path / "run"
    train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    shutil.rmtree(run / "checkpoints" / "step-000006")
    log = (run / "log.jsonl").read_text()
    original = run_folder.trim_log

    def on_a_full_disk(file, step):
        original(file, step)
        file.unlink()
        file.symlink_to("/dev/full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "trim_log", on_a_full_disk)
        patch.setattr(journal, "entries", lambda file: iter(()))  # /dev/full never ends
        with pytest.raises(NanoEulerError) as caught:
            loop.resume(run, run_text(), quiet=True)
    assert str(caught.value) == (
        f"{run / 'log.jsonl'}: cannot be written (No space left on device); the checkpoint of step 4 is intact"
    )
    (run / "log.jsonl").unlink()
    (run / "log.jsonl").write_text(log)
    loop.resume(run, run_text(), quiet=True)
    train.train(tmp_path / "whole", run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    assert_same_run(tmp_path / "whole", run)


FULL = """
import os, resource, signal, sys
import test_kill as t
from nanoeuler_lib.training import train
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

def fill(entry):
    if entry["step"] == 10:
        while not t.Path(sys.argv[1], "checkpoints", "step-000009").exists():
            t.time.sleep(0.01)  # a thread writes it
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

try:
    train.train(sys.argv[1], t.run_text(), t.RUN_MODEL, t.LONG, quiet=True, on_entry=fill)
except train.NanoEulerError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's limit on file sizes")
def test_checkpoint_on_a_full_disk(tmp_path):
    """From step 10 no file may grow past 20 kB: step 12 cannot be saved, step 9 stays, and the run goes on from it."""
    done = run_python(FULL, tmp_path / "run")
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count("\n") == 1
    assert "step-000012: cannot write the checkpoint (" in done.stdout and "File too large" in done.stdout
    assert done.stdout.endswith("earlier ones are intact\n")
    assert [f.name for f in checkpoint.folders(tmp_path / "run")] == ["step-000006", "step-000009"]
    loop.resume(tmp_path / "run", run_text(), quiet=True)
    train.train(tmp_path / "whole", run_text(), RUN_MODEL, LONG, quiet=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


READ_ONLY = """
import os, sys, tempfile
import test_kill as t
from nanoeuler_lib.command import cli
from nanoeuler_lib.training import checkpoint, loop, train
with tempfile.TemporaryDirectory() as folder:  # imports what it needs: as nobody it may not read what is root's
    text = t.run_text()
    train.train(folder + "/run", text, t.RUN_MODEL, t.RUN_CONFIG, quiet=True)
if os.geteuid() == 0:  # the rights of a folder do not bind root
    os.setuid(65534)
for start in (
    lambda: train.train("new", text, t.RUN_MODEL, t.RUN_CONFIG, quiet=True),
    lambda: loop.resume("run", text, quiet=True),
    lambda: train.train("closed/run", text, t.RUN_MODEL, t.RUN_CONFIG, quiet=True),
    lambda: checkpoint.load("closed"),
    lambda: checkpoint.load("closed/run"),
):
    try:
        start()
    except train.NanoEulerError as error:
        print(error)
"""


def test_folder_without_rights(tmp_path):
    """Nothing may be written there, or not even looked at: one line each, and nothing changes."""
    train.train(tmp_path / "run", run_text(), RUN_MODEL, LONG, quiet=True)
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


def test_a_run_without_a_lock_file(tmp_path):
    """A folder where nothing can be written is told with the system's reason."""
    (tmp_path / "lock").mkdir()
    with pytest.raises(NanoEulerError) as told, run_folder.sole_writer(tmp_path):
        pass
    assert str(told.value) == f"{tmp_path}: cannot be written to (Is a directory), expected a folder to write to"
