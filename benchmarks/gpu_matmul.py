"""Compare the library's matrix products with cuBLAS's; needs a GPU and PyTorch.

    python -m benchmarks.gpu_matmul                # stores gpu_matmul.json and gpu_matmul16.json in data/results
    python -m benchmarks.gpu_matmul --out FOLDER   # writes the JSON there
    python -m benchmarks.gpu_matmul --quick        # few rounds, printed but not stored

The first file is for plain float32, the second for tensor cores. A row is one version at one size. Before it is timed,
the version multiplies fresh random matrices into an array of NaN, and every element is compared with float64. In plain
float32, the largest error must be within the bound that holds for K additions in any order; on tensor cores, within
twice the largest error of torch.mm in the same precision. Then the version and torch.mm (cuBLAS, with TF32 if the
version uses it) alternate in rounds. A round is the time of several consecutive launches, each on the next of several
sets of matrices, which together are several times as large as the cache. The row has cuBLAS's time divided by the
version's: the median over rounds, the smallest and the largest.
"""

import argparse
import functools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.config import preset
from nanoeuler_lib.cuda import matmul16
from tools.notebooks.results import FOLDER, save

BASE, ROWS = preset("base"), 64 * 512  # tokens of a step
SIZES = {  # name: M, N, K
    "4096^3": (4096, 4096, 4096),
    "base: attention's output": (ROWS, BASE.dim, BASE.dim),
    "base: gate and up": (ROWS, 2 * BASE.ffn, BASE.dim),
    "base: down": (ROWS, BASE.dim, BASE.ffn),
    "odd": (4001, 3999, 4093),
}
ROUNDS, LAUNCHES = 9, 5
UNIT = 2.0**-24  # the unit roundoff of float32
TOGETHER = 256 << 20  # bytes of all sets of matrices, at least

Launch = Callable[[], None]


@dataclass(frozen=True)
class Version:
    """A kernel of the library. dtype: of the matrices, a name of torch's; bind: from CuPy's a, b and c to a launch.
    tensor_cores: it takes b as [N, K], which it multiplies transposed, K a multiple of 8, and float32 as TF32."""

    name: str
    dtype: str
    bind: Callable[..., Launch]
    tensor_cores: bool = False


def versions() -> Iterator[Version]:
    """All that are measured; a precision is a few lines here."""
    matmul = cuda.module(cuda.KERNELS / "matmul.cu", checked=False)["matmul"]

    def bind(a, b, c):
        (M, K), N = a.shape, b.shape[1]
        return matmul.bind((-(-N // 128), -(-M // 128)), 256, (a, b, c, M, N, K))

    yield Version("matmul", "float32", bind)
    fast = (matmul16.PIPELINED, matmul16.WARPGROUPS) if cuda.hopper() else (matmul16.PIPELINED,)
    for dtype, rungs in {
        "bfloat16": (matmul16.PLAIN, *fast),
        "float16": (matmul16.PLAIN, *fast),
        "float32": fast,
    }.items():
        for rung in rungs:
            yield Version(rung.kernel, dtype, functools.partial(matmul16.bind, version=rung), True)


class Matrices:
    """Sets of a, b and c of one size for torch and for a version, and what both launch."""

    def __init__(self, torch, cupy, version: Version, size: tuple[int, int, int]):
        M, N, K = size
        self.version, self.cupy, dtype = version, cupy, getattr(torch, version.dtype)
        torch.backends.cuda.matmul.allow_tf32 = version.tensor_cores
        shape = (N, K) if version.tensor_cores else (K, N)
        count = max(2, -(-TOGETHER // (dtype.itemsize * (M * K + K * N + M * N))))
        self.sets = [
            (torch.randn(M, K, device="cuda", dtype=dtype), torch.randn(*shape, device="cuda", dtype=dtype),
             torch.empty(M, N, device="cuda", dtype=dtype)) for _ in range(count)
        ]  # fmt: skip

        def as_cupy(x):  # of bfloat16 its bits
            bits = dtype == torch.bfloat16
            return cupy.from_dlpack(x.view(torch.int16)).view("uint16") if bits else cupy.from_dlpack(x)

        self.ours = [version.bind(*map(as_cupy, matrices)) for matrices in self.sets]
        if version.tensor_cores:
            self.sets = [(a, b.T, c) for a, b, c in self.sets]
        self.theirs = [lambda a=a, b=b, c=c: torch.mm(a, b, out=c) for a, b, c in self.sets]

    def error(self) -> float:
        """The largest error of a product, as a share of what it may be. Raises AssertionError above 1 or for a NaN."""
        (a, b, c), K = self.sets[0], self.sets[0][0].shape[1]
        wanted = a.double() @ b.double()
        if self.version.tensor_cores:
            self.theirs[0]()
            allowed = 2 * (c.double() - wanted).abs().max()
        else:
            allowed = (a.double().abs() @ b.double().abs()) * (K * UNIT / (1 - K * UNIT))
        c.fill_(float("nan"))
        self.ours[0]()
        share = ((c.double() - wanted).abs() / allowed).max().item()
        assert share <= 1, f"{self.version.name}, {tuple(c.shape)}, K {K}: the error is {share:.3g} of what it may be"
        return share

    def seconds(self, launches: list[Launch], times: int) -> float:
        start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        launches[-1]()  # the device is busy while the processor prepares the rest
        start.record()
        for k in range(times):
            launches[k % len(launches)]()
        end.record()
        end.synchronize()
        return self.cupy.cuda.get_elapsed_time(start, end) / 1e3 / times


def measure(torch, cupy, version: Version, size: tuple[int, int, int], rounds: int = ROUNDS) -> dict:
    matrices = Matrices(torch, cupy, version, size)
    error = matrices.error()
    pairs = [
        (matrices.seconds(matrices.theirs, LAUNCHES), matrices.seconds(matrices.ours, LAUNCHES)) for _ in range(rounds)
    ]
    theirs, ours = (statistics.median(times) for times in zip(*pairs))
    shares, flops = [a / b for a, b in pairs], 2 * int(np.prod(size))
    return {
        "version": version.name,
        "dtype": version.dtype,
        "size": list(size),
        "gflops_per_second": round(flops / ours / 1e9),
        "cublas_gflops_per_second": round(flops / theirs / 1e9),
        "share_of_cublas": round(statistics.median(shares), 3),
        "share_min": round(min(shares), 3),
        "share_max": round(max(shares), 3),
        "error_share_of_bound": float(f"{error:.2g}"),
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing stored")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the JSON goes, by default data/results")
    options = parser.parse_args()
    import cupy
    import torch

    torch.manual_seed(0)
    gpu, rows = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(), {}
    print(f"{gpu}\n{'version':14} {'numbers':9} {'size':26}  GFLOP/s   cuBLAS  share  (min, max)")
    for version in versions():
        for name, size in SIZES.items():
            size = (*size[:2], size[2] // 8 * 8) if version.tensor_cores else size
            row = measure(torch, cupy, version, size, 3 if options.quick else ROUNDS)
            file = "gpu_matmul16" if version.tensor_cores else "gpu_matmul"
            rows.setdefault(file, []).append({"name": name} | row)
            print(f"{version.name:14} {version.dtype:9} {name:26} {row['gflops_per_second']:8}", end=" ")
            print(f"{row['cublas_gflops_per_second']:8} {row['share_of_cublas']:6.1%}", end="  ")
            print(f"({row['share_min']:.1%}, {row['share_max']:.1%})", flush=True)
    for file in rows if not options.quick else ():
        config = {"gpu": gpu, "torch": torch.__version__, "launches": LAUNCHES}
        save(file, config, rows[file], options.out)


if __name__ == "__main__":
    main()
