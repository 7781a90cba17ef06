"""Measure the time of a launch, and of a plain copy, with which the kernel chapters compare their kernels."""

import statistics
import time
from collections.abc import Callable

import numpy as np

from nanoeuler_lib.cuda.launch import array_module


def median_seconds(launch: Callable[[], None], launches: int = 30, where: str | None = None) -> float:
    """Return the median time of a number of launches in seconds, after one warm-up launch.

    launch: a bound launch, or any function that runs on the device; where: "gpu" (timed with two events each) or "cpu"
    (timed with the clock), by default `device()`. Arrays smaller than the device's cache stay in it, so their times do
    not measure memory bandwidth.
    """
    launch()
    xp = array_module(where)
    return statistics.median((_on_cpu if xp is np else _on_gpu)(launch) for _ in range(launches))


def copy_seconds(size: int, launches: int = 30, where: str | None = None) -> float:
    """Return the median seconds of a copy that moves `size` bytes, half read, half written; see `median_seconds`."""
    xp = array_module(where)
    source, target = xp.zeros(size // 8, np.float32), xp.ones(size // 8, np.float32)
    if xp is np:
        return median_seconds(lambda: np.copyto(target, source), launches, "cpu")
    return median_seconds(lambda: target.data.copy_from_device_async(source.data, source.nbytes), launches, "gpu")


def _on_cpu(launch) -> float:
    start = time.perf_counter()
    launch()
    return time.perf_counter() - start


def _on_gpu(launch) -> float:
    import cupy

    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    launch()
    end.record()
    end.synchronize()
    return cupy.cuda.get_elapsed_time(start, end) / 1e3
