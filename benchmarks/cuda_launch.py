"""What a launch costs on a GPU machine: CuPy's own call of a kernel beside a bound launch of the library; needs a GPU.

    python -m benchmarks.cuda_launch        # stores data/results/cuda_launch.json

The same compiled kernel with the same arguments on one small block, so that the processor's side alone is measured:
batches of 100 launches, timed until the last has been handed to the driver and alternated over 200 rounds; medians. The
aim: a bound launch costs less than 10 us on top of CuPy's.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np

from nanoeuler_lib import cuda
from tools.notebooks.results import save

BATCH, ROUNDS = 100, 200


def contenders(cupy) -> dict[str, dict[str, Callable[[], None]]]:
    """Kernel: the ways to launch it."""
    x, y, z, v = (cupy.ones(32, np.float32) for _ in range(4))
    factor, step, rates = cupy.ones(2, np.float32), cupy.ones(3, np.float32), np.full(4, 0.1, np.float32)
    arguments = {
        "vector_add": (x, y, z, np.int32(32)),
        "adamw": (x, y, z, v, factor, step, np.int32(32), np.int32(32), *rates),
    }
    ways = {}
    for name, args in arguments.items():
        module = cuda.module(cuda.KERNELS / f"{name}.cu", where="gpu")
        raw, kernel = module._functions[name], module[name]
        ways[name] = {
            "cupy": lambda raw=raw, args=args: raw((1,), (32,), args),
            "bound": kernel.bind(1, 32, args),
            "called": lambda kernel=kernel, args=args: kernel(
                1, 32, args
            ),  # every argument checked each time
        }
    return ways


def batch_seconds(launch: Callable[[], None], synchronize: Callable[[], None]) -> float:
    """Seconds a launch of the processor's time; the device is idle before and after."""
    start = time.perf_counter()
    for _ in range(BATCH):
        launch()
    took = time.perf_counter() - start
    synchronize()
    return took / BATCH


def main() -> None:
    import cupy

    synchronize, rows = cupy.cuda.Device().synchronize, []
    for name, ways in contenders(cupy).items():
        times = {way: [] for way in ways}
        for launch in ways.values():
            batch_seconds(launch, synchronize)  # the first ones load the kernel
        for _ in range(ROUNDS):
            for way, launch in ways.items():
                times[way].append(batch_seconds(launch, synchronize))
        row = {way: round(statistics.median(seconds) * 1e6, 2) for way, seconds in times.items()}
        differences = [bound - own for bound, own in zip(times["bound"], times["cupy"])]
        row["bound_on_top"] = round(statistics.median(differences) * 1e6, 2)
        rows.append({"kernel": name, "microseconds": row})
        print(
            f"{name:12} {row}  aim < 10 us on top{'' if row['bound_on_top'] < 10 else ': missed'}", flush=True
        )
    gpu = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    save("cuda_launch", {"gpu": gpu, "batch": BATCH, "rounds": ROUNDS}, rows)


if __name__ == "__main__":
    main()
