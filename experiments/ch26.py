"""Chapter 26: measure the error of sums on tensor cores by their length, and whether mma.sync and wgmma agree bitwise.

    python -m experiments.ch26              # on a GPU: sums of up to 65,536 products
    python -m experiments.ch26 --small      # short sums: a test that it runs on a CPU, which adds in double

Five seeds; products of 128 x K and K x 64 numbers with float32 results. The numbers come from a normal distribution,
where sums cancel, and from the uniform distribution between 0 and 1, where sums only grow. `error` is the norm of the
difference from float64, relative to the norm of the result. `bias` is the sum of the differences, relative to the sum
of absolute values. `plain` is the error of NumPy's float32 product of the same rounded numbers.
"""

import argparse

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.cuda import matmul16
from tools.notebooks.results import save

SEEDS = range(5)
VERSIONS = matmul16.PIPELINED, matmul16.WARPGROUPS


def rounded(x: np.ndarray, numbers: str) -> tuple[np.ndarray, np.ndarray]:
    """float32 numbers as a kernel takes them, bfloat16 as its bits, and in float64 what these are."""
    if numbers == "bfloat16":
        u = x.view(np.uint32)
        bits = ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)
        return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.astype(numbers), x.astype(numbers).astype(np.float64)


def row(numbers: str, draw: str, K: int, seed: int) -> dict:
    rng = np.random.default_rng([seed, K])
    draws = {"normal": rng.standard_normal, "uniform": rng.random}[draw]
    (a, a64), (b, b64) = (rounded(draws((n, K), dtype=np.float32), numbers) for n in (128, 64))
    xp, wanted = cuda.array_module(), a64 @ b64.T
    results = []
    for version in VERSIONS if cuda.hopper() else VERSIONS[:1]:
        c = xp.full(wanted.shape, np.nan, np.float32)
        matmul16.bind(xp.asarray(a), xp.asarray(b), c, version)()
        results.append(np.asarray(c.get() if xp is not np else c))
    off = results[0].astype(np.float64) - wanted
    plain = a64.astype(np.float32) @ b64.astype(np.float32).T - wanted
    return {
        "numbers": numbers,
        "draw": draw,
        "K": K,
        "seed": seed,
        "error": float(np.linalg.norm(off) / np.linalg.norm(wanted)),
        "bias": float(off.sum() / np.abs(wanted).sum()),
        "plain": float(np.linalg.norm(plain) / np.linalg.norm(wanted)),
        "kernels": len(results),
        "same_bits": all(r.tobytes() == results[0].tobytes() for r in results),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="short sums")
    small = parser.parse_args().small
    rows = [
        row(numbers, draw, 4**k, seed)
        for numbers in ("bfloat16", "float16", "float32")
        for draw in ("normal", "uniform")
        for k in range(2, 4 if small else 9)
        for seed in SEEDS
    ]
    for r in rows[:: len(SEEDS)]:
        print(r, flush=True)
    save("ch26", {"device": cuda.device(), "seeds": list(SEEDS), "small": small}, rows)


if __name__ == "__main__":
    main()
