"""What the profiler counts besides requests: bytes and floating-point operations by line, of kernels that are known."""

import shutil
import sys

import numpy as np
import pytest
from test_cuda_matrix import FOLDER

from cudacheck import compiler, flops
from cudacheck.errors import CudaCheckError
from nanoeuler_lib import cuda

COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]
if not COMPILERS or not shutil.which("objdump") or sys.platform != "linux":
    pytest.skip("operations are counted with objdump, in what g++ or Clang compiles", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True, params=COMPILERS)
def cxx(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOEULER_CXX", request.param)
        compiler.find_compiler.cache_clear()
        yield
    compiler.find_compiler.cache_clear()


def profile(source, name, grid, block, args, shared=0, **options):
    return cuda.module(source, where="cpu")[name].profile(grid, block, args, shared, **options)


def ones(*shape):
    return np.ones(shape, np.float32)


def sums(p):
    return tuple(sum(getattr(w, k) for w in p.work) for k in ("global_read", "global_written", "flops", "functions"))


def test_vector_add():
    args = (ones(1000), ones(1000), ones(1000), 1000)
    p = profile(cuda.KERNELS / "vector_add.cu", "vector_add", 4, 256, args)
    (work,) = p.work
    assert "c[i] = a[i] + b[i]" in work.code
    assert (work.global_read, work.global_written, work.shared, work.flops) == (2048, 1024, 0, 256)
    assert p.intensity() == 256 / 3072
    last = profile(cuda.KERNELS / "vector_add.cu", "vector_add", 4, 256, args, block_index=3)
    assert sums(last) == (8 * 232, 4 * 232, 232, 0)  # the guard leaves 232 of the 1000


def test_matmul_on_tensor_cores_counts_the_same():
    bits = np.zeros((64, 64), np.uint16)
    p = profile(FOLDER / "matmul.cu", "matmul", (2, 2), 128, (bits, bits.copy(), ones(64, 64), 64, 64))
    assert sums(p) == (2 * 2 * 32 * 64, 4 * 32 * 32, 2 * 32 * 32 * 64, 0)
    lines = {w.code[: w.code.index("(")]: (w.shared, w.flops) for w in p.work}
    assert lines["mma<__nv_bfloat16>"] == (0, 32 * 32 * 64)  # one of two
    assert lines["ldmatrix<4>"] == (4 * 4 * 32 * 16, 0)  # warps, calls, lanes, bytes


def test_an_atomic_reads_and_writes():
    source = 'extern "C" __global__ void add(float* x) { atomicAdd(x, 1.0f); }'
    assert sums(profile(source, "add", 1, 32, (ones(1),)))[:2] == (128, 128)


def test_rmsnorm():
    D, threads, keep = 100, 64, 8
    args = (ones(4, D), ones(D), ones(4, D), ones(4), D, 1e-5)
    p = profile(cuda.KERNELS / "rmsnorm.cu", "rmsnorm_forward", 4, threads, args)
    squares = 2 * threads * keep  # a thread squares and adds all that it keeps, zeros too
    trees = 2 * 5 * threads  # five steps of adding among lanes, in each warp and then over the warps' sums
    assert sums(p) == (8 * D, 4 * D + 4, squares + trees + 2 * threads + 2 * D, threads)
    assert sum(w.functions for w in p.work if "rsqrtf" in w.code) == threads
    assert p.text.find(next(w.line for w in p.work if w.flops == trees))[0] == "reduce.cuh"


KINDS = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void kinds(float* x, float* y, double* z, int n) {
  float a = x[threadIdx.x], b = n;
  y[3 * 0 + threadIdx.x] = a + b * a - b / a;  // 4 0
  y[3 * 1 + threadIdx.x] = __fadd_rn(a, __fmul_rn(b, a)) + __fdividef(a, b);  // 4 0
  y[3 * 2 + threadIdx.x] = fmaf(a, b, __fmaf_rn(a, b, 1.0f));  // 4 0
  y[3 * 3 + threadIdx.x] = fmaxf(a, b) > fabsf(a) ? -a : (float)n;  // 0 0
  y[3 * 4 + threadIdx.x] = expf(a) * __logf(b) + sqrtf(a);  // 2 3
  y[3 * 5 + threadIdx.x] = rsqrtf(a) + powf(a, b) + tanhf(a);  // 2 3
  z[3 * 6 + threadIdx.x] = 2.0 * n + sin(1.0 + n);  // 3 1
  __half h = __float2half(a), k = __hadd(h, h) * h;  // 2 0
  __half2 p = __hfma2(__half2half2(k), __half2half2(h), __half2half2(h));  // 4 0
  __nv_bfloat16 m = __float2bfloat16(a) + __float2bfloat16(b);  // 1 0
  y[3 * 7 + threadIdx.x] = __low2float(p) + __bfloat162float(m);  // 1 0
  atomicAdd(&y[99], a);  // 1 0
  for (int i = 0; i < n; i++)
    if (i % 2) a += 1;  // 2 0
    else a = a / 2 * 3;  // 4 0
  y[3 * 8 + threadIdx.x] = a;
}
"""


def test_every_kind_of_operation():
    threads = 3
    p = profile(KINDS, "kinds", 1, threads, (ones(3), ones(100), np.ones(30), 4))
    marks = [line.split(" // ") for line in KINDS.split("\n")]
    wanted = {i: tuple(map(int, m[1].split())) for i, m in enumerate(marks, 1) if len(m) == 2}
    counted = {w.line: (w.flops / threads, w.functions / threads) for w in p.work if w.flops or w.functions}
    assert counted == {line: work for line, work in wanted.items() if work != (0, 0)}


def test_without_a_disassembler(monkeypatch):
    p = profile(cuda.KERNELS / "vector_add.cu", "vector_add", 1, 32, (ones(32), ones(32), ones(32), 32))
    monkeypatch.setattr(flops.shutil, "which", lambda name: None)
    assert "sectors" in str(p)  # the requests need none
    with pytest.raises(CudaCheckError, match="needs objdump, found none: install binutils"):
        _ = p.work


def test_a_part_of_an_array_lies_where_it_lies():
    x, y = ones(100), ones(100)
    text = 'extern "C" __global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }'
    for start, sectors in ((0, 4), (1, 5), (8, 4)):
        rows = profile(text, "k", 1, 32, (x[start:], y)).rows
        assert {r.array: (r.cost, r.ideal) for r in rows} == {"x": (sectors, 4), "y": (4, 4)}
