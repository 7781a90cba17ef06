"""The command as people meet it: on other file systems, under limits, in containers and notebooks; and its uses."""

import errno
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from oracles import run_text

from nanoeuler_lib.command import cli
from nanoeuler_lib.training import checkpoint

TINY = "--steps 2 --batch 2 --dim 16 --heads 2 --kv-heads 1 --layers 1 --context 16 --vocab-size 300".split()


@pytest.fixture
def nanoeuler(capsys, tmp_path, monkeypatch):
    """Run the command in an empty folder with a text in it: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(run_text())

    def run(*words):
        code = cli.main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


def refusing(error, folders_only=False, real=os.fsync):
    def refuse(handle, *_):
        if not folders_only or stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(error, os.strerror(error))
        return real(handle)

    return refuse


@pytest.mark.parametrize("name, error, folders_only", [
    ("fsync", errno.EINVAL, True), ("fsync", errno.ENOSYS, False), ("fsync", errno.EACCES, True),
    ("chmod", errno.EPERM, False),
])  # fmt: skip
def test_a_file_system_that_cannot_do_it_is_no_reason_not_to_train(
    nanoeuler, monkeypatch, name, error, folders_only
):
    monkeypatch.setattr(os, name, refusing(error, folders_only))
    assert nanoeuler("train", "--data", "a.txt", "--run", "r", "--quiet", *TINY)[0] == 0
    assert checkpoint.load("r", training=True).step == 2
    assert nanoeuler("report", "r")[0] == 0


def test_a_broken_disk_is_one(nanoeuler, monkeypatch):
    monkeypatch.setattr(os, "fsync", refusing(errno.EIO))
    code, _, said = nanoeuler("train", "--data", "a.txt", "--run", "r", "--quiet", *TINY)
    assert code == 2 and "Input/output error" in said


def test_a_report_needs_no_backend_of_a_notebook(nanoeuler):
    assert nanoeuler("train", "--data", "a.txt", "--run", "r", "--quiet", *TINY)[0] == 0
    for backend in ("module://nowhere", "nonsense"):
        command = [sys.executable, "-m", "nanoeuler_lib.command.cli", "report", "r"]
        done = subprocess.run(
            command, env=os.environ | {"MPLBACKEND": backend}, capture_output=True, text=True
        )
        assert done.returncode == 0 and Path("r/report/loss.png").exists(), done.stderr
        shutil.rmtree("r/report")


FIRST = (
    "import os; os.getpid = lambda: 1; from nanoeuler_lib.command import cli; raise SystemExit(cli.main())"
)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
def test_the_first_process_of_a_container_ends_when_it_is_told_to(nanoeuler):
    command = [sys.executable, "-c", FIRST, "corpus", "konigsberg", "--bytes", "100000000", "--out", "a"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        time.sleep(3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 130 and process.stderr.read() == b"" and not Path("a").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are not forked")
@pytest.mark.parametrize("forks", [0, 1, 2])
def test_a_limit_of_processes_is_told_with_what_helps(nanoeuler, monkeypatch, forks):
    real, begun = os.fork, []

    def fork():
        if len(begun) == forks:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        begun.append(real())
        return begun[-1]

    assert nanoeuler("tokenizer", "train", "--data", "a.txt", "--out", "t.json", "--end-of-text")[0] == 0
    monkeypatch.setattr(os, "fork", fork)
    code, _, said = nanoeuler("shards", "a.txt", "--tokenizer", "t.json", "--out", "s", "--workers", 3)
    assert code == 2 and said.endswith(
        "nanoeuler: 3 processes cannot be started (Resource temporarily unavailable): expected fewer --workers; with "
        "--workers 1 none is\n"
    )
    assert not multiprocessing.active_children() and not Path("s").exists()
    assert nanoeuler("shards", "a.txt", "--tokenizer", "t.json", "--out", "s", "--workers", 1)[0] == 0
