"""What this machine has for a process: cores, memory, threads of BLAS."""

import math
import os
import re
from pathlib import Path

from threadpoolctl import threadpool_limits

MOST = 4096  # threads

# Where Linux says how much a container may have, of memory and of time on cores, in control groups of version 2 and of
# version 1: bytes; microseconds that all cores together work in a period, and the period.
LIMITS = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"
QUOTAS = (("/sys/fs/cgroup/cpu.max",), ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"))


def cores() -> int:
    """Threads to use: OMP_NUM_THREADS, or its first number if it is a list; else the cores that this process may use.

    Those may be few under `taskset` and in a container, by their number or by the time that all of them may work.
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
