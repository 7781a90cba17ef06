"""Functions that report the cores and the memory that this process may use, and limit the threads of BLAS."""

import math
import os
import re
from pathlib import Path

from threadpoolctl import threadpool_limits

MOST = 4096  # maximum number of threads

# Files in which Linux states the limits of a container, in control groups of version 2 and of version 1. LIMITS:
# memory in bytes. QUOTAS: CPU time of all cores together per period, and the period, both in microseconds.
LIMITS = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"
QUOTAS = (("/sys/fs/cgroup/cpu.max",), ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"))


def cores() -> int:
    """Return the number of threads to use: OMP_NUM_THREADS if it is set, else the cores available to this process.

    If OMP_NUM_THREADS is a list, its first number counts. `taskset` and containers can limit the available cores.
    """
    asked = re.match(r"\s*0*([1-9][0-9]{0,8})\s*(?:,|$)", os.environ.get("OMP_NUM_THREADS", ""))
    if asked:
        return min(int(asked[1]), MOST)
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for files in QUOTAS:
        try:
            words = " ".join(Path(file).read_text("utf-8") for file in files).split()
        except OSError:
            continue
        # "max" or -1: no quota
        if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):
            there = min(there, math.ceil(int(words[0]) / int(words[1])))
    return there


def memory() -> int | None:
    """Return the bytes of memory available to this process: the machine's, or a container's limit; None if unknown."""
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
    """Return a context manager inside which every BLAS call uses one thread."""
    return threadpool_limits(1, user_api="blas")
