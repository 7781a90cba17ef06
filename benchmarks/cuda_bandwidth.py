"""How near the first kernels come to the bandwidth of a plain copy, at the shapes of `base`; needs a GPU.

    python -m benchmarks.cuda_bandwidth        # stores data/results/cuda_bandwidth.json

Each row: the bytes that a kernel must move (each array once), the median time of 30 launches in each of two rounds, and
the share of the bandwidth that the driver's own device-to-device copy of the same size reaches between them.
"""

import statistics

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.config import preset
from tools.results import save

ROWS, ROUNDS = 64 * 512, 2  # rows of 64 texts of `base`'s context


def contenders(cupy, block: int) -> dict:
    """Name: (bytes that must move, a bound launch)."""
    config = preset("base")
    D, V = config.dim, config.vocab_size
    rng = cupy.random.default_rng(0)
    x, delta, dy, y, dx = (rng.standard_normal((ROWS, D), dtype=np.float32) for _ in range(5))
    gain, rstd = cupy.ones(D, np.float32), cupy.empty(ROWS, np.float32)
    logits = rng.standard_normal((ROWS, V), dtype=np.float32)
    targets = rng.integers(0, V, ROWS).astype(np.int32)
    losses, dlosses = cupy.empty(ROWS, np.float32), cupy.full(ROWS, 1e-3, np.float32)
    norm = cuda.module(cuda.KERNELS / "rmsnorm.cu", defines={"KEEP": -(-D // block)})
    entropy = cuda.module(cuda.KERNELS / "cross_entropy.cu")
    blocks = 24 * cupy.cuda.Device().attributes["MultiProcessorCount"]
    share = cupy.empty((blocks, D), np.float32)
    eps = config.norm_eps
    return {
        "rmsnorm_forward": (2 * x.nbytes, norm["rmsnorm_forward"].bind(ROWS, block, (x, gain, y, rstd, D, eps))),
        "add_rmsnorm_forward": (
            4 * x.nbytes,
            norm["add_rmsnorm_forward"].bind(ROWS, block, (x, delta, gain, y, rstd, D, eps)),
        ),
        "rmsnorm_backward": (
            4 * x.nbytes,
            norm["rmsnorm_backward"].bind(blocks, block, (dy, x, gain, rstd, dx, share, ROWS, D)),
        ),
        "cross_entropy_forward": (
            logits.nbytes,
            entropy["cross_entropy_forward"].bind(ROWS, block, (logits, targets, losses, V)),
        ),
        "cross_entropy_backward": (
            2 * logits.nbytes,
            entropy["cross_entropy_backward"].bind(ROWS, block, (logits, targets, dlosses, losses, V)),
        ),
    }  # fmt: skip


def main() -> None:
    import cupy

    rows = []
    for block in (64, 128, 192, 256, 512):
        for name, (size, launch) in contenders(cupy, block).items():
            shares, speeds = [], []
            for _ in range(ROUNDS):
                copy, took = cuda.copy_seconds(size), cuda.median_seconds(launch)
                shares.append(copy / took)
                speeds.append(size / took / 1e9)
            row = {
                "kernel": name,
                "block": block,
                "gigabytes_per_second": round(statistics.median(speeds)),
                "share_of_copy": round(statistics.median(shares), 3),
            }
            print(row, flush=True)
            rows.append(row)
    gpu = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    save("cuda_bandwidth", {"gpu": gpu, "rows": ROWS, "rounds": ROUNDS}, rows)


if __name__ == "__main__":
    main()
