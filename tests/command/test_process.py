"""The command as a process: streams that are closed or full, locales, terminals, containers, limits, file systems."""

import errno
import io
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from commands import SMALL

from nanoeuler_lib.command import cli
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import checkpoint, run_folder

ROOT = str(Path(cli.__file__).parents[2])
ENVIRONMENT = {"PYTHONPATH": ROOT, "OPENBLAS_NUM_THREADS": "1"}
TINY = f"--data text.txt {SMALL} --batch 4 --warmup 1 --valid-every 1 --workers 1"


def shell(line, **environment):
    """Run a line in bash, in which NE is the command."""
    line = line.replace("NE ", f"{sys.executable} -m nanoeuler_lib.command.cli ")
    environment = os.environ | ENVIRONMENT | environment
    return subprocess.run(["bash", "-c", line], capture_output=True, timeout=120, env=environment)


GONE = {
    "reader of both": f"NE train --run new --steps 12 {TINY} 2>&1 | head -n 1; exit ${{PIPESTATUS[0]}}",
    "all three": f"NE train --run new --steps 12 {TINY} <&- >&- 2>&-",
    "full": f"NE train --run new --steps 12 {TINY} >/dev/full 2>/dev/full",
}


@pytest.mark.parametrize("gone", GONE)
def test_training_outlives_its_output(here, gone):
    """Nobody reads what it prints: it goes on to the end, and its files are those of any run."""
    done = shell(GONE[gone])
    assert done.returncode == 0 and b"Traceback" not in done.stderr and b"Exception" not in done.stderr
    assert checkpoint.load("new", training=True).step == 12
    assert [e["step"] for e in run_folder.read_log("new") if "loss" in e] == list(range(1, 13))
    assert json.loads(Path("new/run.json").read_text())["train"]["steps"] == 12
    assert sorted(f.name for f in Path("new").iterdir()) == [
        "checkpoints",
        "lock",
        "log.jsonl",
        "run.json",
        "settings.toml",
    ]


@pytest.mark.parametrize("line, code, said", [  # output is what these commands are for
    ("NE generate a --run run >/dev/full", 2, "nanoeuler: standard output: No space left on device"),
    ("NE --help >/dev/full", 2, "nanoeuler: standard output: No space left on device"),
    ("NE info >&-", 2, "nanoeuler: standard output: Bad file descriptor"),
    ("NE info --run none >/dev/full 2>/dev/full", 2, ""),  # the exit code still says what happened
    ("NE info --run run | head -1 >&2; exit ${PIPESTATUS[0]}", 0, "checkpoint: run/checkpoints/step-000004"),
])  # fmt: skip
def test_output_that_cannot_be_written(here, line, code, said):
    done = shell(line)
    assert (done.returncode, done.stderr.decode().splitlines()) == (code, [said] if said else [])


def test_a_locale_without_umlauts(here):
    """The bytes of an argument are UTF-8 whatever the locale; standard input and a file are UTF-8."""
    posix = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = shell("NE generate Käthe --run run --tokens 0", **posix)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Käthe\n".encode(), b"")
    done = shell("printf ü | NE tokenizer encode --tokenizer bpe.json", **posix)
    assert done.returncode == 0 and len(done.stdout.split()) == len(Tokenizer.load("bpe.json").encode("ü"))


@pytest.mark.parametrize("terminal", [True, False])
def test_what_streams_do_with_letters_they_do_not_have(monkeypatch, terminal):
    """Input is UTF-8 whatever the locale, and its other bytes come back as they were; a file gets UTF-8."""

    class Ascii(io.TextIOWrapper):
        def __init__(self, content=b""):
            super().__init__(io.BytesIO(content), "ascii")

        def isatty(self):
            return terminal

    monkeypatch.setattr(sys, "stdin", Ascii("ü".encode() + b"\xff"))
    monkeypatch.setattr(sys, "stdout", Ascii())
    cli._prepare_streams()
    assert sys.stdin.read() == "ü\udcff"
    sys.stdout.write("aü\ud800")
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue() == (b"a??" if terminal else "aü?".encode())
    assert cli._utf8("ü") == "ü" and cli._utf8("\udcc3\udcbc") == "ü"
    monkeypatch.setattr(cli.os, "fsencode", lambda text: text.encode("ascii"))  # a letter that came from elsewhere
    assert cli._utf8("ü") == "ü"


FIRST = "import os; os.getpid = lambda: 1; from nanoeuler_lib.command import cli; raise SystemExit(cli.main())"


def test_the_first_process_of_a_container_ends_when_it_is_told_to():
    command = [sys.executable, "-c", FIRST, "generate", "a", "--tokens", "1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(1) == b"a"  # it is at work
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 130 and process.stderr.read() == b""


def test_the_command_starts_fast():
    """`--help` does not wait for NumPy: the command imports what it needs when it needs it."""
    code = "import sys, nanoeuler_lib.command.cli as c; c.parser().format_help(); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=os.environ | ENVIRONMENT)
    assert done.stdout == b"False\n", done.stderr


REPORT = "import os; from nanoeuler_lib.command import cli; code = cli.main(['report', 'run'])"
REPORT += "; raise SystemExit(code or os.environ['MPLBACKEND'] != 'module://nowhere')"


def test_a_report_needs_no_backend_of_a_notebook(here):
    environment = os.environ | ENVIRONMENT | {"MPLBACKEND": "module://nowhere"}
    done = subprocess.run([sys.executable, "-c", REPORT], capture_output=True, env=environment)
    assert done.returncode == 0 and Path("run/report/loss.png").exists(), done.stderr


# File systems and limits.


def refusing(error, folders_only=False, real=os.fsync):
    def refuse(handle, *_):
        if not folders_only or stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(error, os.strerror(error))
        return real(handle)

    return refuse


@pytest.mark.parametrize("name, error, folders_only, said", [
    ("fsync", errno.EINVAL, True, ""), ("fsync", errno.ENOSYS, False, ""), ("fsync", errno.EACCES, True, ""),
    ("chmod", errno.EPERM, False, ""), ("fsync", errno.EIO, False, "Input/output error"),  # a broken disk
])  # fmt: skip
def test_a_file_system_that_cannot_sync_is_no_reason_not_to_train(
    here, nanoeuler, monkeypatch, name, error, folders_only, said
):
    monkeypatch.setattr(os, name, refusing(error, folders_only))
    code, _, err = nanoeuler("TRAIN text.txt --quiet")
    assert code == (2 if said else 0) and said in err
    assert said or checkpoint.load("new", training=True).step == 4


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are not forked")
@pytest.mark.parametrize("forks", [0, 2])
def test_a_limit_of_processes_is_told_with_what_helps(here, nanoeuler, monkeypatch, forks):
    real, begun = os.fork, []

    def fork():
        if len(begun) == forks:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        begun.append(real())
        return begun[-1]

    Tokenizer([], ("<|endoftext|>",)).save("t.json")
    monkeypatch.setattr(os, "fork", fork)
    code, _, said = nanoeuler("shards text.txt --tokenizer t.json --out s --workers 3")
    assert code == 2 and said.endswith(
        "nanoeuler: 3 processes cannot be started (Resource temporarily unavailable): use fewer --workers; "
        "--workers 1 starts none\n"
    )
    assert not multiprocessing.active_children() and not Path("s").exists()
    assert nanoeuler("shards text.txt --tokenizer t.json --out s --workers 1")[0] == 0
