"""What this machine has for a process: cores, memory, threads of BLAS."""

import os
from pathlib import Path

from threadpoolctl import threadpool_limits


def cores() -> int:
    """Threads to use: OMP_NUM_THREADS, else the cores of this process: `taskset` or a container may give it few."""
    if (asked := os.environ.get("OMP_NUM_THREADS", "")).isdigit() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Where Linux says how much memory a container may have: control groups of version 2, and of version 1.
LIMITS = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"


def memory() -> int | None:
    """Bytes of memory that this process may have: the machine's, or fewer in a container; None if nobody says."""
    if not hasattr(os, "sysconf"):  # Windows
        return None
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in LIMITS:
        try:
            limit = Path(file).read_text("utf-8").strip()
        except OSError:
            continue
        limits += [int(limit)] if limit.isdigit() else []  # "max": no limit
    return min(limits)


def one_blas_thread():
    """Context manager: every BLAS call inside uses one thread."""
    return threadpool_limits(1, user_api="blas")
