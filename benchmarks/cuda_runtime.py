"""How long a reader waits for CUDA on the CPU: the first kernel from an empty cache, a launch, a checked product.

    python -m benchmarks.cuda_runtime

Prints each figure beside its aim, the best of several tries, and the processor time of a try: on a machine that other
programs share the clock measures them, too.
"""

from benchmarks.contest import quiet_environment

quiet_environment()

import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402

import numpy as np  # noqa: E402

from nanoeuler_lib import cuda  # noqa: E402
from nanoeuler_lib.cuda.checker import compiler  # noqa: E402

MATMUL = """
#define TILE 16
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float at[TILE][TILE], bt[TILE][TILE];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
  float sum = 0;
  for (int k0 = 0; k0 < n; k0 += TILE) {
    at[y][x] = a[row * n + k0 + x];
    bt[y][x] = b[(k0 + y) * n + column];
    __syncthreads();
    for (int k = 0; k < TILE; k++) sum += at[y][k] * bt[k][x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}
"""

FIRST_KERNEL = """
import resource, time
import numpy as np
from nanoeuler_lib import cuda
start = time.perf_counter()
a, c = np.ones(1000, np.float32), np.empty(1000, np.float32)
cuda.module(cuda.KERNELS / "vector_add.cu", where="cpu")["vector_add"](4, 256, (a, a, c, 1000))
children = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.perf_counter() - start, children.ru_utime + children.ru_stime)
"""


def best(function, tries: int) -> tuple[float, float]:
    """Seconds by the clock and of processor time, of the fastest tries."""
    clock, processor = [], []
    for _ in range(tries):
        start = time.perf_counter(), time.process_time()
        function()
        clock.append(time.perf_counter() - start[0])
        processor.append(time.process_time() - start[1])
    return min(clock), min(processor)


def first_kernel() -> tuple[float, float]:
    """Seconds in a fresh process with an empty cache, and the processor time of the compilers."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"XDG_CACHE_HOME": folder}
        command = [sys.executable, "-c", FIRST_KERNEL]
        out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        clock, processor = map(float, out.split())
        return clock, processor


def show(what: str, seconds: tuple[float, float], aim: float, unit: float, name: str) -> None:
    clock, processor = seconds
    verdict = "" if clock < aim else "  missed"
    figures = f"{clock * unit:8.2f} {name} (processor {processor * unit:8.2f} {name})"
    print(f"{what:36} {figures}   aim < {aim * unit:g} {name}{verdict}")


def main() -> None:
    print(f"compiler: {' '.join(compiler.find_compiler())}")
    show("first kernel, empty cache, checked", min(first_kernel() for _ in range(4)), 1.0, 1, "s ")
    x, y, z = (np.ones(256, np.float32) for _ in range(3))
    kernel = cuda.module(cuda.KERNELS / "vector_add.cu", where="cpu", checked=False)["vector_add"]
    show("launch of 256 threads", best(lambda: kernel(1, 256, (x, y, z, 256)), 2000), 50e-6, 1e6, "us")
    show("launch of 256 threads, bound", best(kernel.bind(1, 256, (x, y, z, 256)), 2000), 50e-6, 1e6, "us")
    n = 256
    a, b = np.random.default_rng(0).standard_normal((2, n, n), dtype=np.float32)
    c = np.empty_like(a)
    for checked, aim in ((True, 0.6), (False, 0.1)):
        product = cuda.module(MATMUL, where="cpu", checked=checked)["matmul"]
        seconds = best(product.bind((n // 16, n // 16), (16, 16), (a, b, c, n)), 7)
        assert np.allclose(c, a @ b, atol=1e-3)
        show(f"tiled matmul {n}^3, {'checked' if checked else 'fast'}", seconds, aim, 1, "s ")


if __name__ == "__main__":
    main()
