"""CUDA C++ on the CPU: what the language offers computes what it should, and each bug is found where it is.

The checker's findings are compared with a mark in the text: `// BUG` stands on the line that is to be named.
"""

import copy
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cudacheck import compiler
from cudacheck.errors import CudaCheckError
from cudacheck.source import signatures
from nanoeuler_lib import cuda
from nanoeuler_lib.errors import NanoEulerError

pytestmark = pytest.mark.compiler

rng = np.random.default_rng(0)


def floats(*shape):
    return rng.standard_normal(shape, dtype=np.float32)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


# ----------------------------------------------------------------------------------------------------------------
# the language

FEATURES = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <nanoeuler.cuh>

extern "C" __global__ void grid_stride(const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = 2 * x[i];
}

extern "C" __global__ void three_axes(int* y, int nx, int ny) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
  int l = blockIdx.z * blockDim.z + threadIdx.z;
  y[(l * ny + j) * nx + i] = i + 100 * j + 10000 * l;
}

extern "C" __global__ void scan(int* y) {
  int lane = threadIdx.x % 32, v = y[threadIdx.x];
  for (int o = 1; o < 32; o *= 2) {
    int u = __shfl_up_sync(0xffffffffu, v, o);
    if (lane >= o) v += u;
  }
  y[threadIdx.x] = v;
}

extern "C" __global__ void shuffles(int* y) {
  int l = threadIdx.x;
  y[l] = __shfl_sync(0xffffffffu, l, 3, 16) + 100 * __shfl_down_sync(0xffffffffu, l, 4, 16);
  y[l] += 10000 * __shfl_xor_sync(0xffffffffu, l, 5);
}

extern "C" __global__ void votes(unsigned* y) {
  unsigned l = threadIdx.x, b = __ballot_sync(0xffffffffu, l % 3 == 0), r = 0;
  if (l < 16) r = __ballot_sync(0x0000ffffu, l & 1);
  else r = __ballot_sync(0xffff0000u, l & 2);
  y[l] = b ^ r ^ __popc(b) ^ (__any_sync(0xffffffffu, l == 40) << 8) ^ (__all_sync(0xffffffffu, l < 32) << 9);
}

extern "C" __global__ void warp_reduce(int* y) {
  int v = y[threadIdx.x];
  y[threadIdx.x] = __reduce_add_sync(0xffffffffu, v) * 1000 + __reduce_max_sync(0xffffffffu, v);
}

extern "C" __global__ void histogram(const int* x, int* counts, int n) {
  __shared__ int s[64];
  if (threadIdx.x < 64) s[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&s[x[i]], 1);
  __syncthreads();
  if (threadIdx.x < 64) atomicAdd(&counts[threadIdx.x], s[threadIdx.x]);
}

extern "C" __global__ void atomics(const float* x, float* sum, int* largest, int* lock) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(sum, x[i]);
  atomicMax(largest, i);
  atomicCAS(lock, 0, 7);
}

extern "C" __global__ void halves(const __half* x, __half* y, const __half2* x2, __half2* y2) {
  int i = threadIdx.x;
  y[i] = __hadd(x[i], __float2half(1.5f));
  if (i < 128) y2[i] = __hmul2(x2[i], __floats2half2_rn(2.0f, 3.0f));
}

extern "C" __global__ void bfloat16s(const __nv_bfloat16* x, __nv_bfloat16* y) {
  int i = threadIdx.x;
  y[i] = __float2bfloat16(__bfloat162float(x[i]) * 1.0009765625f);
}

__constant__ float coefficients[4] = {1, 2, 3, 4};
__device__ int counter;

template <typename T, int N> __device__ __forceinline__ T dot(const T* a, const T* b) {
  T s = 0;
#pragma unroll
  for (int i = 0; i < N; i++) s += a[i] * b[i];
  return s;
}

template <typename T, int N> __global__ void __launch_bounds__(64) polynomial(const float4* x, T* y) {
  float4 v = x[threadIdx.x];
  float a[N] = {v.x, v.y, v.z, v.w};
  atomicAdd(&counter, 1);
  y[threadIdx.x] = dot<float, N>(a, coefficients);
}

extern "C" __global__ void shared_kinds(const float* x, float* y) {
  extern __shared__ __align__(16) float d[];
  __shared__ int a[8], b;
  int i = threadIdx.x, n = __syncthreads_count(x[i] > 0);
  d[i] = x[i];
  if (i < 8) a[i] = i;
  if (i == 0) b = n;
  __syncthreads();
  y[i] = d[63 - i] + a[i % 8] + b;
}

__device__ unsigned done;
extern "C" __global__ void last_block_sums(const float* x, float* part, float* out) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    float s = 0;
    for (int i = 0; i < 100; i++) s += x[blockIdx.x * 100 + i];
    part[blockIdx.x] = s;
    __threadfence();
    last = atomicAdd(&done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float s = 0;
    for (int i = 0; i < gridDim.x; i++) s += part[i];
    *out = s;
    done = 0;
  }
}

extern "C" __global__ void spin_lock(int* lock, int* count) {
  while (atomicCAS(lock, 0, 1) != 0) {}
  atomicAdd(count, 1);
  atomicExch(lock, 0);
}

extern "C" __global__ void prints(int* y) {
  if (threadIdx.x == 3) printf("thread %d of block %d\n", threadIdx.x, blockIdx.x);
  y[threadIdx.x] = 1;
}

extern "C" __global__ void pipeline(const float* x, float* y, int tiles) {  // copies one tile ahead
  __shared__ __align__(16) float tile[2][128];
  int t = threadIdx.x;
  copy_async<16>(&tile[0][4 * t], &x[4 * t]);
  copy_async_commit();
  for (int k = 0; k < tiles; k++) {
    if (k + 1 < tiles) copy_async<16>(&tile[(k + 1) % 2][4 * t], &x[(k + 1) * 128 + 4 * t]);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    for (int j = t; j < 128; j += 32) y[k * 128 + j] = tile[k % 2][127 - j];
    __syncthreads();
  }
}
"""

x1000, ints, half, brain = floats(1000), rng.integers(0, 64, 10000), floats(256), floats(256)
half = half.astype(np.float16)
brain = (brain.view(np.uint32) >> 16).astype(np.uint16)
lanes = np.arange(32)


def as_float(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values):
    u = values.view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def three_axes():
    return np.arange(8) + 100 * np.arange(6)[:, None] + 10000 * np.arange(6)[:, None, None]


def down(by, width):
    return np.where(lanes % width + by < width, lanes + by, lanes)


PAIRS = half.reshape(-1, 2) * np.array([2, 3], np.float16)
POINTS = floats(32, 4)
# kernel: grid, block, arguments, what the arguments are afterwards (by number), bytes of shared memory
CASES = {
    "grid_stride": ((3,), (100,), (x1000, zeros(1000), 1000), {1: 2 * x1000}),
    "three_axes": ((2, 3, 2), (4, 2, 3), (zeros(6, 6, 8, dtype=np.int32), 8, 6), {0: three_axes()}),
    "scan": (1, 64, (np.arange(64, dtype=np.int32),), {0: np.arange(64).reshape(2, 32).cumsum(1).ravel()}),
    "shuffles": (
        1, 32, (zeros(32, dtype=np.int32),),
        {0: lanes // 16 * 16 + 3 + 100 * down(4, 16) + 10000 * (lanes ^ 5)},
    ),
    "votes": (
        1, 32, (zeros(32, dtype=np.uint32),),
        {0: 0x49249249 ^ np.where(lanes < 16, 0xAAAA, 0xCCCC0000) ^ (0x49249249).bit_count() ^ 512},
    ),
    "warp_reduce": (1, 32, (np.arange(32, dtype=np.int32),), {0: np.full(32, 496 * 1000 + 31)}),
    "histogram": (
        16, 128, (ints.astype(np.int32), zeros(64, dtype=np.int32), 10000), {1: np.bincount(ints, minlength=64)},
    ),
    "atomics": (
        8, 64, (np.ones(512, np.float32), zeros(1), zeros(1, dtype=np.int32), zeros(1, dtype=np.int32)),
        {1: 512, 2: 511, 3: 7},
    ),
    "halves": (
        1, 256, (half, zeros(256, dtype=np.float16), half, zeros(256, dtype=np.float16)),
        {1: half + np.float16(1.5), 3: PAIRS.ravel()},
    ),
    "bfloat16s": (
        1, 256, (brain, zeros(256, dtype=np.uint16)), {1: rounded(as_float(brain) * np.float32(1.0009765625))},
    ),
    "polynomial<float, 4>": (1, 32, (POINTS, zeros(32)), {1: POINTS @ np.float32([1, 2, 3, 4])}),
    "shared_kinds": (
        1, 64, (x1000, zeros(64)), {1: x1000[:64][::-1] + np.arange(64) % 8 + (x1000[:64] > 0).sum()}, 256,
    ),
    "last_block_sums": (10, 32, (x1000, zeros(10), zeros(1)), {2: x1000.reshape(10, 100).sum(1).sum()}),
    "spin_lock": (2, 64, (zeros(1, dtype=np.int32), zeros(1, dtype=np.int32)), {0: 0, 1: 128}),
    "prints": (1, 8, (zeros(8, dtype=np.int32),), {0: 1}),
    "pipeline": (1, 32, (floats(5, 128), zeros(5, 128), 5), None),
}  # fmt: skip


SHARED = r"""
#include <cuda_fp16.h>
extern "C" __global__ void shared_declarations(float* x) {
  __shared__ union { __half h[64]; unsigned u[32]; } both;
  __shared__ struct Pair { float a, b; } pairs[32],
      last;
  __shared__ __half one, row[(32 >= 16) ? 32 : 16], square[4][8];
  int t = threadIdx.x;
  both.u[t] = 0x40003c00u;  // 2 and 1
  pairs[t] = {x[t], 1};
  row[t] = square[t / 8][t % 8] = __float2half(t);
  if (t == 0) last.a = last.b = 3, one = __float2half(1);
  __syncthreads();
  float of_half = __half2float(both.h[2 * t + 1]) + __half2float(row[31 - t]) * __half2float(one);
  x[t] = pairs[31 - t].a + pairs[t].b + last.a + of_half + __half2float(square[3][t % 8]);
}
"""


@pytest.mark.full
@pytest.mark.parametrize("checked", [True, False])
def test_however_shared_memory_is_declared(checked):
    x = floats(32)
    wanted = x[::-1] + 1 + 3 + 2 + lanes[::-1] + 24 + lanes % 8
    cuda.module(SHARED, where="cpu", checked=checked)["shared_declarations"](1, 32, (x,))
    np.testing.assert_allclose(x, wanted, rtol=1e-6)


@pytest.fixture(scope="module", params=[True, False], ids=["checked", "fast"])
def features(request):
    return cuda.module(FEATURES, where="cpu", checked=request.param, instantiate=("polynomial<float, 4>",))


@pytest.mark.parametrize("name", CASES)
def test_language(features, name, capsys):
    grid, block, args, wanted, *shared = CASES[name]
    args = copy.deepcopy(args)
    features[name](grid, block, args, *shared)
    if name == "pipeline":
        wanted = {1: args[0][:, ::-1]}
    for number, value in wanted.items():
        np.testing.assert_allclose(
            np.asarray(args[number], np.float64),
            np.broadcast_to(value, args[number].shape),
            rtol=1e-5,
            atol=1e-6,
        )
    assert capsys.readouterr().out == ("thread 3 of block 0\n" if name == "prints" else "")


@pytest.mark.full
def test_a_struct_of_floats_needs_no_more_alignment_than_a_float():
    if not Path(compiler.find_compiler()[0]).name.startswith("g++"):
        pytest.skip("Clang does not tell the alignment of what it copies")
    text = """struct Quad { float a, b, c, d; };
extern "C" __global__ void k(const float* x, float* y) {
  Quad q = *reinterpret_cast<const Quad*>(x + 1 + 4 * threadIdx.x);
  *reinterpret_cast<Quad*>(y + 3 + 4 * threadIdx.x) = q;
}
"""
    x, y = floats(33), zeros(35)
    cuda.module(text, where="cpu")["k"](1, 8, (x, y))
    assert (y[3:] == x[1:]).all()


@pytest.mark.full
def test_every_kernel_of_the_text_has_a_case(features):
    assert set(features) == set(CASES)


# ----------------------------------------------------------------------------------------------------------------
# planted bugs

BUGS = r"""
#include <nanoeuler.cuh>
#define FULL 0xffffffffu

extern "C" __global__ void wrong_stride(const float* x, float* y, int rows, int columns) {
  int c = threadIdx.x, r = threadIdx.y;
  y[c * rows + r] =
      x[c * columns + r];  // BUG
}
extern "C" __global__ void wild_pointer(float* x) {
  float* p = (float*)0x123456789000;
  p[threadIdx.x] = x[0];  // BUG
}
typedef void (*Function)(float*);
extern "C" __global__ void wild_call(float* x) {
  volatile Function f = (Function)0x1234;
  f(x);  // NO LINE
}
extern "C" __global__ void neighbour_in_shared(float* x) {
  __shared__ float s[32];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x + 1];  // BUG
}
extern "C" __global__ void three_at_once(const float3* x, float* y) {
  float3 v =
      x[threadIdx.x];  // BUG
  y[threadIdx.x] = v.x + v.y + v.z;
}
extern "C" __global__ void copies_too_much(const float* x, float* y) {
  float a[8];
  memcpy(a, x + 4 * threadIdx.x, sizeof(a));  // BUG
  y[threadIdx.x] = a[7];
}
struct Pair { int key; float value; };
extern "C" __global__ void struct_beyond_the_end(float* x) {
  Pair p = {1, 2.0f};
  Pair* pairs = (Pair*)x;
  pairs[threadIdx.x] =
      p;
}
extern "C" __global__ void asserts(float* x) {
  assert(x[threadIdx.x] < 3.0f);  // BUG
}

// ---- races

extern "C" __global__ void no_syncwarp(const float* x, float* y) {
  __shared__ float s[32];
  s[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = s[31 - threadIdx.x];
}
extern "C" __global__ void syncwarp_for_two_warps(float* x) {
  __shared__ float s;
  if (threadIdx.x == 0) s = x[0];
  __syncthreads();
  x[threadIdx.x] = s;
  __syncwarp();
  if (threadIdx.x == 1)
    s = 2;  // BUG
}
extern "C" __global__ void last_reader_writes(float* x) {
  __shared__ float s;
  if (threadIdx.x == 0) s = x[0];
  __syncthreads();
  x[threadIdx.x] = s;
  if (threadIdx.x == 31)
    s = 2;  // BUG
}
extern "C" __global__ void half_the_warp_synchronised(float* x) {
  __shared__ float s;
  if (threadIdx.x == 0) s = x[0];  // BUG
  if (threadIdx.x < 16) __syncwarp(0x0000ffffu);
  x[threadIdx.x] = s;
}
extern "C" __global__ void two_halves_synchronised_apart(float* x) {
  __shared__ float s[32];
  s[threadIdx.x] = x[threadIdx.x];
  __syncwarp(threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u);
  x[threadIdx.x] = s[(threadIdx.x + 1) % 32];  // BUG
}
extern "C" __global__ void met_before_it_wrote(float* x) {  // 0 and 8 meet, 8 and 16 meet: 16 knows what 0 did before
  __shared__ float s[2];
  if (threadIdx.x == 0) s[0] = 1;
  if (threadIdx.x % 8 == 0 && threadIdx.x < 16) __syncwarp(0x00000101u);
  if (threadIdx.x == 0) s[1] = 2;
  if (threadIdx.x == 8 || threadIdx.x == 16) __syncwarp(0x00010100u);
  if (threadIdx.x == 16) x[0] = s[0];
  if (threadIdx.x == 16) x[1] = s[1];  // BUG
}
extern "C" __global__ void shuffle_for_a_barrier(float* x) {
  __shared__ float s;
  if (threadIdx.x == 0) s = x[0];
  __syncthreads();
  float v = s;
  v += __shfl_xor_sync(FULL, v, 1);  // every lane has read s by now, but a shuffle does not order memory
  if (threadIdx.x == 31)
    s = v;  // BUG
  x[threadIdx.x] = v;
}
extern "C" __global__ void forgotten_axis(float* x) {
  x[threadIdx.x] = threadIdx.y;  // BUG
}

// ---- barriers and warp functions

extern "C" __global__ void barrier_or_spin(volatile float* x) {
  if (threadIdx.x < 16) __syncthreads();
  else while (!x[0]) __syncwarp(0xffff0000u);
}
extern "C" __global__ void endless_without_memory(float* x, int n) {
  int i = 0;
  while (i < 10) n ^= 1;  // BUG
  x[0] = n;
}

// ---- asynchronous copies

extern "C" __global__ void copy_beyond_the_end(const float* x, float* y) {
  __shared__ __align__(16) float s[128];
  copy_async<16>(&s[4 * threadIdx.x], &x[4 * threadIdx.x]);  // BUG
  copy_async_commit();
  copy_async_wait<0>();
}
"""

# kernel: the finding's kind, grid, block, arguments
PLANTED = {
    "wrong_stride": ("out of bounds", 1, (7, 5), (floats(5, 7), zeros(7, 5), 5, 7)),
    "wild_pointer": ("out of bounds", 1, 1, (zeros(1),)),
    "wild_call": ("crash", 1, 1, (zeros(1),)),
    "neighbour_in_shared": ("out of bounds", 1, 32, (floats(32),)),
    "three_at_once": ("out of bounds", 1, 4, (floats(3, 3), zeros(4))),
    "copies_too_much": ("out of bounds", 1, 2, (floats(8), zeros(2))),
    "struct_beyond_the_end": ("out of bounds", 1, 4, (zeros(7),)),
    "asserts": ("failure", 1, 32, (np.arange(32, dtype=np.float32),)),
    "no_syncwarp": ("race", 1, 32, (floats(32), zeros(32))),
    "syncwarp_for_two_warps": ("race", 1, 64, (floats(64),)),
    "last_reader_writes": ("race", 1, 32, (floats(32),)),
    "half_the_warp_synchronised": ("race", 1, 32, (floats(32),)),
    "two_halves_synchronised_apart": ("race", 1, 32, (floats(32),)),
    "met_before_it_wrote": ("race", 1, 32, (floats(32),)),
    "shuffle_for_a_barrier": ("race", 1, 32, (floats(32),)),
    "forgotten_axis": ("race", 1, (8, 8), (zeros(64),)),
    "barrier_or_spin": ("endless", 1, 32, (zeros(4),)),
    "endless_without_memory": ("endless", 1, 1, (zeros(4), 1)),
    "copy_beyond_the_end": ("out of bounds", 1, 32, (floats(100), zeros(32))),
}


@pytest.fixture(scope="module")
def bugs():
    return cuda.module(BUGS, where="cpu")


def lines_of(kernel):
    """First and last line of a kernel's text, and the line with its mark (None: any of its lines will do)."""
    lines = BUGS.split("\n")
    first = next(i for i, line in enumerate(lines, 1) if f" {kernel}(" in line and line.startswith("extern"))
    last = next(i for i, line in enumerate(lines, 1) if i >= first and line.startswith("}"))
    return first, last, next((i for i in range(first, last + 1) if "// BUG" in lines[i - 1]), None)


@pytest.mark.full
def test_a_copy_never_waited_for_is_the_first_threads_by_number():
    """Whichever thread returns first: here those with higher numbers do."""
    kernel = cuda.module(
        """
#include <nanoeuler.cuh>
extern "C" __global__ void late(const float* x, float* y) {
  __shared__ float s[64];
  copy_async<4>(&s[threadIdx.x], &x[threadIdx.x]);
  copy_async_commit();
  if (threadIdx.x < 5) copy_async_wait<0>();
  if (threadIdx.x < 32) __syncwarp();
}
""",
        where="cpu",
    )["late"]
    with pytest.raises(cuda.KernelError) as caught:
        kernel(1, 64, (floats(64), zeros(64)))
    assert caught.value.finding.kind == "missing wait" and caught.value.finding.thread == (5, 0, 0)


@pytest.mark.full
def test_the_thread_that_a_finding_names_does_not_hang_on_how_many_basic_blocks_the_threads_run():
    """Each compiler makes another number of them of one text: the length of a loop stands for that.

    All threads are at fault, and the last to come to a barrier goes on first.
    """
    kernel = cuda.module(
        """
extern "C" __global__ void beyond(float* x, int n) {
  __shared__ float s[64];
  s[threadIdx.x] = 0;
  for (int i = 0; i < n; i++) s[threadIdx.x] += i;
  __syncthreads();
  for (int i = 0; i < n; i++) s[threadIdx.x] += i;
  x[64 + threadIdx.x] = s[threadIdx.x];
}
""",
        where="cpu",
    )["beyond"]
    named = []
    for n in range(2000, 6000, 200):
        with pytest.raises(cuda.KernelError, match="out of bounds") as caught:
            kernel(1, 64, (zeros(64), n))
        named.append(caught.value.finding.thread)
    assert set(named) == {(63, 0, 0)}, named


@pytest.mark.full
@pytest.mark.parametrize("setter", [0, 40, 63])
def test_a_thread_that_polls_lets_the_others_run(setter):
    kernel = cuda.module(
        """
extern "C" __global__ void poll(int* y, int setter) {
  volatile __shared__ int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  __threadfence();
  if (threadIdx.x == setter) flag = 1;
  else while (flag == 0) {}
  y[threadIdx.x] = 1;
}
""",
        where="cpu",
    )["poll"]
    y = zeros(64, dtype=np.int32)
    kernel(1, 64, (y, setter))
    assert y.all()


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bug(bugs, name):
    kind, grid, block, args = PLANTED[name]
    with pytest.raises(cuda.KernelError) as caught:
        bugs[name](grid, block, copy.deepcopy(args), seconds=0.3)
    finding = caught.value.finding
    assert finding.kind == kind, finding.text
    assert finding.kernel == name and name in finding.text
    assert finding.block is not None and finding.thread is not None
    assert all(t < b for t, b in zip(finding.thread, (*np.atleast_1d(block), 1, 1)))
    first, last, marked = lines_of(name)
    if name == "wild_call":
        return  # a jump out of the text
    if name == "barrier_or_spin" and not finding.line:
        return  # g++ 11 counts the steps inside __syncwarp, too, which is no line of the text
    assert f"line {finding.line}: " in finding.text
    assert first <= finding.line <= last, finding.text
    if kind == "race":  # which of the two comes second depends on the order of the threads
        assert first <= finding.other_line <= last
        assert marked is None or marked in (finding.line, finding.other_line), finding.text
    else:
        assert marked is None or finding.line == marked, finding.text


PIPELINE = "#include <nanoeuler.cuh>\n" + FEATURES[FEATURES.index('extern "C" __global__ void pipeline') :]
ORDERING = re.compile(r"(?:__syncthreads|copy_async_commit|copy_async_wait<1>)\(\);")


@pytest.mark.full
@pytest.mark.parametrize("number", range(len(ORDERING.findall(PIPELINE))))
def test_a_pipeline_without_one_of_its_barriers_waits_or_commits(number):
    at = list(ORDERING.finditer(PIPELINE))[number]
    kernel = cuda.module(PIPELINE[: at.start()] + ";" + PIPELINE[at.end() :], where="cpu")["pipeline"]
    with pytest.raises(cuda.KernelError) as caught:
        kernel(1, 32, (floats(5, 128), zeros(5, 128), 5))
    assert caught.value.finding.kind in ("missing wait", "race")


def test_every_planted_bug_is_launched(bugs):
    assert set(bugs) == set(PLANTED)


@pytest.mark.full
def test_a_launch_after_a_finding_is_sound(bugs):
    """Whatever the findings above left behind: the same library runs the next launch from a clean slate."""
    y = zeros(7, 5)
    with pytest.raises(cuda.KernelError):
        bugs["wrong_stride"](1, (7, 5), (floats(5, 7), y, 5, 7))
    x = floats(6, 6)
    y = zeros(6, 6)
    bugs["wrong_stride"](1, (6, 6), (x, y, 6, 6))
    assert (x == y).all()


# ----------------------------------------------------------------------------------------------------------------
# the launch

SCALE = """extern "C" __global__ void __launch_bounds__(256) scale(const float* x, float* y, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = by * x[i];
}
"""


@pytest.fixture(scope="module")
def scale():
    return cuda.module(SCALE, where="cpu")["scale"]


@pytest.mark.full
@pytest.mark.parametrize(
    "change, message",
    [
        (dict(args=(zeros(8), zeros(8), 2.0)), r"takes 4 arguments \(x, y, by, n\), got 3"),
        (
            dict(args=(zeros(8, dtype=np.float64), zeros(8), 2.0, 8)),
            r"array of float32, got float64: pass x.astype\(.float32.\)",
        ),
        (
            dict(args=([1.0], zeros(8), 2.0, 8)),
            r"`x` is a float.*numpy array, got list: pass numpy.asarray\(..., numpy.float32\)",
        ),
        (dict(args=(zeros(8), zeros(8), 2.0, 8.0)), r"`n` is an int, got float 8.0: pass int\(8.0\)"),
        (
            dict(args=(zeros(8), zeros(8), np.float64(2), 8)),
            r"`by` is a float, got numpy.float64 2.0: pass float\(2.0\)",
        ),
        (dict(args=(zeros(8), zeros(8), 2.0, 1 << 31)), "holds -2147483648 to 2147483647, got 2147483648"),
        (dict(args=(zeros(8, 2)[:, 0], zeros(8), 2.0, 8)), "strided view: pass numpy.ascontiguousarray"),
        (dict(args=(zeros(8), np.broadcast_to(np.float32(0), 1), 2.0, 8)), "read-only"),
        (dict(block=257), "__launch_bounds__ allows 256 threads a block, got 257"),
        (dict(block=(32, 33)), "at most 1024 threads"),
        (dict(grid=0), "grid is one to three whole numbers from 1 on, as 4 or .*got int 0"),
        (dict(grid=(1.5,)), r"grid is one to three whole numbers from 1 on.*got \(1.5,\)"),
        (dict(block=None), "block is one to three whole numbers.*got NoneType"),
        (dict(args=zeros(4)), "args is one tuple of the kernel's arguments, got numpy.ndarray"),
        (dict(grid=(1, 65536)), "at most 65535 blocks"),
        (dict(shared_mem=300_000), "0 to 232448 bytes, got 300000"),
    ],
)
def test_a_wrong_launch_is_refused_at_the_door(scale, change, message):
    launch = dict(grid=1, block=8, args=(zeros(8), zeros(8), 2.0, 8)) | change
    with pytest.raises(NanoEulerError, match=message):
        scale(**launch)


X, Y = zeros(8), zeros(8)


@pytest.mark.full
@pytest.mark.parametrize(
    "change",
    [
        dict(grid=-1), dict(grid="1"), dict(grid=None), dict(grid=()), dict(grid=(1, 1, 1, 1)), dict(grid=2**31),
        dict(grid=float("nan")), dict(block={"x": 1}), dict(block=((32,),)), dict(block=(1, 1, 65)),
        dict(shared_mem=-1), dict(args=(None, Y, 2.0, 8)), dict(args=(7, Y, 2.0, 8)), dict(args=(X, Y, "2", 8)),
        dict(args=(X.astype(">f4"), Y, 2.0, 8)), dict(args=(X.astype(np.complex64), Y, 2.0, 8)),
        dict(args=(X, Y, 2.0, np.arange(2))), dict(args=(X[:0], Y, 2.0, 8)),
    ],
)  # fmt: skip
def test_nonsense_is_refused_at_the_door(scale, change):
    with pytest.raises(NanoEulerError):
        scale(**dict(grid=1, block=8, args=(X, Y, 2.0, 8)) | change)


@pytest.mark.full
@pytest.mark.parametrize(
    "launch", [(), (zeros(8), zeros(8), 2.0, 8), (1, 8, zeros(8), zeros(8), 2.0, 8), ((zeros(8),),)]
)
def test_a_launch_without_its_grid_or_its_tuple_says_what_a_launch_is(scale, launch):
    words = r"scale\(grid, block, args\): args is one tuple of the kernel's arguments, got "
    with pytest.raises(NanoEulerError, match=words):
        scale(*launch)


@pytest.mark.full
def test_a_python_float_and_int_become_the_type_of_the_parameter(scale):
    x, y = floats(100), zeros(100)
    scale(1, 128, (x, y, 3, 100))
    assert (y == 3 * x).all()
    scale(1, 128, (x, y, 0.1, np.int32(100)))
    assert (y == np.float32(0.1) * x).all()


@pytest.mark.full
def test_a_bound_launch_sees_what_the_arrays_hold_now(scale):
    x, y = floats(100), zeros(100)
    launch = scale.bind(1, 128, (x, y, 2.0, 100))
    for _ in range(2):
        x += 1
        launch()
        assert (y == 2 * x).all()


@pytest.mark.full
@pytest.mark.parametrize("checked", [True, False])
def test_in_place_and_overlapping_arrays(checked):
    kernel = cuda.module(SCALE, where="cpu", checked=checked)["scale"]
    x = floats(100)
    before = x.copy()
    kernel(1, 128, (x, x, 2.0, 100))
    assert (x == 2 * before).all()
    whole = before.copy()
    kernel(1, 64, (whole[:50], whole[50:], 2.0, 50))
    assert (whole == np.concatenate([before[:50], 2 * before[:50]])).all()


@pytest.mark.full
def test_two_threads_launch_at_once(scale):
    x, results = floats(1000), [zeros(1000) for _ in range(4)]
    threads = [threading.Thread(target=scale, args=(4, 256, (x, y, float(k), 1000))) for k, y in enumerate(results)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, y in enumerate(results):
        assert (y == k * x).all()


@pytest.mark.full
@pytest.mark.parametrize(
    "text, line, message",
    [
        (SCALE.replace("by * x[i];", "by * x[i]"), 3, "a ; is missing"),
        (SCALE.replace("by * x", "bye * x"), 3, "bye"),
        (SCALE.replace("threadIdx.x", "threadIdx.w"), 2, "w"),
        (SCALE.rstrip()[:-1], 1, "this { is never closed"),
        (SCALE.replace("by * x", "INFINITY * x"), 3, "INFINITY"),  # NVRTC does not have it either
    ],
)
def test_what_does_not_compile_says_where(text, line, message):
    with pytest.raises(cuda.KernelError) as caught:
        cuda.module(text, where="cpu")
    assert caught.value.finding.kind == "compilation"
    assert caught.value.finding.line == line
    assert message in str(caught.value) and text.split("\n")[line - 1].strip() in str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize(
    "text, message",
    [
        ("void f() {}", "holds no kernel"),
        ("template <int N> __global__ void k(float* x) { x[0] = N; }", r"instantiate=\('k<...>',\)"),
        (
            "__shared__ float s[3];\n__global__ void k(float* x) { x[0] = s[0]; }",
            "line 1: declare __shared__",
        ),
        (
            "__global__ void k(float* x) {\n  __shared__ float s = 0;\n  x[0] = s;\n}",
            "line 2: __shared__ memory has no value at first",
        ),
    ],
)
def test_a_text_that_cannot_be_launched(text, message):
    with pytest.raises(NanoEulerError, match=message):
        cuda.module(text, where="cpu")


ALIASES = """
#define N_THREADS 64
#define T float
using Count = unsigned int;
extern "C" __global__ void __launch_bounds__(N_THREADS, 2) k(
    const T *__restrict__ x, T y[], Count n, float4 const* z) {}
template <typename U, int W> __global__ void t(volatile U* u, bool b) {}
"""


@pytest.mark.full
def test_signatures():
    k, t = signatures(ALIASES, ["t<long long, 3>"])
    assert [(p.name, p.dtype, p.pointer, p.const, p.width) for p in k.parameters] == [
        ("x", "float32", True, True, 1),
        ("y", "float32", True, False, 1),
        ("n", "uint32", False, False, 1),
        ("z", "float32", True, True, 4),
    ]
    assert [(p.name, p.dtype, p.pointer, p.const) for p in t.parameters] == [
        ("u", "int64", True, False),
        ("b", "bool", False, False),
    ]
    assert (k.max_threads, t.max_threads, k.mangled, t.mangled) == (64, 1024, False, True)


@pytest.mark.full
def test_a_finding_in_a_header_names_the_header():
    text = """#include <reduce.cuh>
extern "C" __global__ void k(float* x) {
  if (threadIdx.x < 64) x[threadIdx.x] = block_sum(x[threadIdx.x]);
}
"""
    with pytest.raises(cuda.KernelError) as caught:
        cuda.module(text, where="cpu")["k"](1, 128, (zeros(128),))
    header = (cuda.KERNELS / "reduce.cuh").read_text("utf-8").split("\n")
    finding = caught.value.finding
    assert finding.kind == "divergent barrier" and finding.file == "reduce.cuh"
    assert "__syncthreads()" in header[finding.line - 1]
    assert f"reduce.cuh, line {finding.line}: __syncthreads();" in finding.text


class FakeKernel:
    """Stands where CuPy's kernel does: keeps what it is launched with."""

    max_dynamic_shared_size_bytes = 48 * 1024
    shared_size_bytes = 1024  # of __shared__ arrays

    def __call__(self, *launch, shared_mem):
        self.launch = (*launch, shared_mem)


@pytest.mark.full
def test_the_gpu_side_checks_and_converts_alike(monkeypatch):
    """Without a GPU: what CuPy would be given. The arguments meet the same door as on the CPU."""
    made, kernel = {}, FakeKernel()

    def raw_module(**options):
        made.update(options)
        return SimpleNamespace(get_function=lambda name: kernel)

    cupy = SimpleNamespace(
        __name__="cupy",
        ndarray=np.ndarray,
        RawModule=raw_module,
        cuda=SimpleNamespace(compiler=SimpleNamespace(CompileException=RuntimeError)),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr("nanoeuler_lib.cuda.launch.hopper", lambda: False)  # it asks CuPy once
    text = SCALE + "template <int N> __global__ void power(float* x) { x[0] = N; }"
    module = cuda.module(text, where="gpu", defines={"TILE": 16}, instantiate=("power<4>",))
    assert made["code"] == text and made["name_expressions"] == ["power<4>"]
    assert "-DTILE=16" in made["options"] and "-std=c++17" in made["options"]
    x, y = floats(8), zeros(8)
    module["scale"].bind(1, 8, (x, y, 2, 8), 60_000)()
    grid, block, args, shared_mem = kernel.launch
    assert (grid, block, shared_mem) == ((1, 1, 1), (8, 1, 1), 60_000)
    assert args[0] is x and args[1] is y
    assert [type(a) for a in args[2:]] == [np.float32, np.int32]  # a bare 2 would be passed as an int
    assert kernel.max_dynamic_shared_size_bytes == 60_000
    module["scale"].bind(1, 8, (x, y, 2, 8), 50_000)
    assert kernel.max_dynamic_shared_size_bytes == 60_000, "the launch bound before needs it still"
    with pytest.raises(NanoEulerError, match="take 1024 bytes and shared_mem 65000 more: a block has 65536 on"):
        module["scale"].bind(1, 8, (x, y, 2, 8), 65_000, shared_limit=64 * 1024)
    with pytest.raises(NanoEulerError, match=r"`n` is an int, got float 8.0"):
        module["scale"](1, 8, (x, y, 2.0, 8.0))
    assert {r.array for r in module["scale"].profile(1, 8, (x, y, 2.0, 8)).rows} == {"x", "y"}
    assert (y == 2 * x).all()

    def refuse(**_):
        raise RuntimeError('/home/me/.cupy/0a1b.cubin.cu(3): error: identifier "bye" is undefined\n  bye\n  ^\n')

    cupy.RawModule = refuse
    with pytest.raises(cuda.KernelError, match="line 3: 'bye' is not declared; did you mean 'by'"):
        cuda.module(SCALE.replace("by * x", "bye * x"), where="gpu")
    cupy.RawModule = lambda **_: (_ for _ in ()).throw(RuntimeError("nvrtc: out of memory"))
    with pytest.raises(NanoEulerError, match=r"does not compile with NVRTC:\nnvrtc: out of memory"):
        cuda.module(SCALE, where="gpu")


@pytest.mark.full
def test_the_checked_twin_of_a_kernel():
    text = "template <int N> __global__ void power(float* x) { x[threadIdx.x] = N * BY; }"
    fast = cuda.module(text, where="cpu", checked=False, defines={"BY": 3}, instantiate=("power<4>",))["power<4>"]
    x = zeros(8)
    twin = fast.on_cpu()
    twin(1, 8, (x,))
    assert (x == 12).all() and twin.module.checked and twin.on_cpu() is twin
    with pytest.raises(cuda.KernelError, match=r"out of bounds: write: x\[8\]"):
        twin(1, 9, (x,))
    twin.on_cpu("N * BY", "N + BY")(1, 8, (x,))
    assert (x == 7).all()
    with pytest.raises(NanoEulerError, match=r"kernel\.cu does not hold 'N - BY'"):
        fast.on_cpu("N - BY", "N + BY")
    file = cuda.module(cuda.KERNELS / "vector_add.cu", where="cpu", checked=False)["vector_add"]
    with pytest.raises(cuda.KernelError) as caught:
        file.on_cpu("if (i < n)", "")(1, 9, (x, x, x, 8))
    assert caught.value.finding.file == "vector_add.cu"


@pytest.mark.full
def test_a_variable_without_a_value_holds_one_that_is_seen():
    text = """extern "C" __global__ void k(float* y, int* i, int n) {
  float sum;
  int count;
  for (int k = 0; k < n; k++) sum += 1, count += 1;
  *y = sum;
  *i = count;
}
"""
    try:
        y, i = zeros(1), zeros(1, dtype=np.int32)
        cuda.module(text, where="cpu")["k"](1, 1, (y, i, 5))
    except cuda.KernelError as error:
        assert "'sum' is used before it has a value" in str(error)  # what Clang says
        return
    if compiler._version(compiler.find_compiler())[1] < 12:
        pytest.skip("this g++ fills nothing")
    assert not abs(y[0]) < 1e30 and i[0] < -(1 << 20)


@pytest.mark.full
def test_a_launch_on_nothing():
    x = zeros(0)
    cuda.module(SCALE, where="cpu")["scale"](1, 32, (x, x, 1.0, 0))


# ----------------------------------------------------------------------------------------------------------------
# compilers and the cache

RUN = f"""
import numpy as np
from nanoeuler_lib import cuda
x = np.arange(8, dtype=np.float32)
cuda.module({SCALE!r}, where="cpu")["scale"](1, 8, (x, x, 2.0, 8))
assert (x == 2 * np.arange(8)).all()
"""


def process(cache, **environment):
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "OPENBLAS_NUM_THREADS": "1"} | environment
    return subprocess.Popen(
        [sys.executable, "-c", RUN],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.full
def test_processes_share_the_cache(tmp_path):
    running = [process(tmp_path) for _ in range(3)]
    for each in running:
        _, errors = each.communicate()
        assert each.returncode == 0, errors
    made = sorted(file.suffix for file in (tmp_path / "nanoeuler").iterdir())
    assert made == [".o", ".so"]  # one of each, and nothing half-written
    stamps = [file.stat().st_mtime_ns for file in sorted((tmp_path / "nanoeuler").iterdir())]
    again = process(tmp_path)
    assert again.wait() == 0
    assert stamps == [file.stat().st_mtime_ns for file in sorted((tmp_path / "nanoeuler").iterdir())]


@pytest.mark.full
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "nanoeuler").write_text("a file where the folder should be")
    running = process(tmp_path)
    assert running.wait() == 0


@pytest.mark.full
def test_the_cache_forgets_what_nobody_uses(tmp_path, monkeypatch):
    day, now = 86_400, time.time()
    for name, days, size in [
        ("kernel-old.so", 31, 1), ("kernel-used.so", 29, 600), ("kernel-new.so", 0, 600), ("runtime-older.o", 29.5, 1),
        ("notes.txt", 99, 1),
    ]:  # fmt: skip
        (tmp_path / name).write_bytes(bytes(size))
        os.utime(tmp_path / name, (now - days * day,) * 2)
    (tmp_path / "tmpabc").mkdir()  # left by a process that was killed
    os.utime(tmp_path / "tmpabc", (now - 31 * day,) * 2)
    used = compiler._keep(tmp_path / "kernel-used.so", tmp_path / "kernel-used.so")
    os.utime(used, (now - 29 * day,) * 2)
    assert compiler._cached(used) and not compiler._cached(tmp_path / "kernel-none.so")
    compiler._prune(tmp_path)
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {"kernel-used.so", "kernel-new.so", "runtime-older.o", "notes.txt"}
    os.utime(tmp_path / "kernel-used.so", (now - 2 * day,) * 2)
    monkeypatch.setattr(compiler, "CACHE_BYTES", 1000)
    compiler._prune(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"kernel-new.so", "notes.txt"}


@pytest.mark.full
def test_a_kernel_whose_library_was_pruned_is_made_again_and_use_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "cache_folder", lambda: tmp_path)
    library = cuda.module(SCALE, where="cpu").library
    os.utime(library.path, (0, 0))
    cuda.module(SCALE, where="cpu")
    assert library.path.stat().st_mtime > time.time() - 60
    os.utime(library.path, (0, 0))
    cuda.module(SCALE.replace("scale", "other"), where="cpu")  # making another one prunes
    assert not library.path.exists()
    x = floats(8)
    cuda.module(SCALE, where="cpu")["scale"](1, 8, (x, x, 2.0, 8))
    assert library.path.exists()


@pytest.mark.full
def test_no_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("NANOEULER_CXX", raising=False)
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    compiler.find_compiler.cache_clear()
    with pytest.raises(NanoEulerError, match=r"install g\+\+ or clang, or `pip install ziglang`"):
        cuda.module(SCALE.replace("scale", "other"), where="cpu")
    compiler.find_compiler.cache_clear()


@pytest.mark.full
@pytest.mark.parametrize(
    "command, message",
    [
        ("no-such-compiler", "NANOEULER_CXX is 'no-such-compiler', but there is no such command"),
        ("false", "with false"),
    ],
)
def test_a_compiler_that_is_none(monkeypatch, command, message):
    monkeypatch.setenv("NANOEULER_CXX", command)
    compiler.find_compiler.cache_clear()
    with pytest.raises(NanoEulerError, match=message):
        cuda.module(SCALE, where="cpu")
    monkeypatch.undo()
    compiler.find_compiler.cache_clear()


@pytest.mark.full
def test_device_is_chosen_by_the_environment(monkeypatch):
    monkeypatch.setenv("NANOEULER_DEVICE", "tpu")
    cuda.device.cache_clear()
    with pytest.raises(NanoEulerError, match="expected gpu or cpu"):
        cuda.device()
    monkeypatch.setenv("NANOEULER_DEVICE", "cpu")
    assert cuda.device() == "cpu" and cuda.array_module() is np
    cuda.device.cache_clear()


# ----------------------------------------------------------------------------------------------------------------
# the profiler


def profiled(file, kernel, grid, block, args):
    return cuda.module(cuda.KERNELS / f"{file}.cu", where="cpu")[kernel].profile(grid, block, args)


@pytest.mark.full
def test_profile_of_both_transposes():
    x, y = floats(64, 64), zeros(64, 64)
    plain = profiled("transpose", "transpose_plain", (2, 8), (32, 8), (x, y, 64, 64))
    assert {(r.array, r.operation): (r.requests, r.cost, r.ideal) for r in plain.rows} == {
        ("x", "read"): (8, 4, 4),
        ("y", "write"): (8, 32, 4),  # every lane a sector of its own
    }
    assert (y == x.T).all()
    tiled = profiled("transpose", "transpose_tiled", (2, 2), (32, 8), (x, y, 64, 64))
    assert {(r.array, r.operation, r.requests, r.cost, r.ideal) for r in tiled.rows} == {
        ("x", "read", 32, 4, 4),
        ("tile", "write", 32, 1, 1),
        ("tile", "read", 32, 1, 1),
        ("y", "write", 32, 4, 4),
    }
    assert all(r.array in r.code and r.bytes == 32 * 32 * 4 for r in tiled.rows)


BANKS = """
extern "C" __global__ void banks(float* y, float4* z, int stride) {
  __shared__ float s[1024];
  __shared__ float4 v[128];
  s[threadIdx.x * stride] = threadIdx.x;  // stride
  v[threadIdx.x] = make_float4(1, 2, 3, 4);  // vector
  __syncthreads();
  y[threadIdx.x] = s[0] + v[threadIdx.x].x;
  z[threadIdx.x] = v[threadIdx.x];
}
"""


@pytest.mark.full
@pytest.mark.parametrize("stride, turns", [(1, 1), (2, 2), (3, 1), (4, 4), (5, 1), (8, 8), (16, 16), (32, 32)])
def test_bank_conflicts(stride, turns):
    kernel = cuda.module(BANKS, where="cpu")["banks"]
    profile = kernel.profile(1, 32, (zeros(32), zeros(128), stride))
    rows = {(r.array, r.operation, r.code[-6:]): r for r in profile.rows}
    assert rows["s", "write", "stride"].cost == turns
    assert rows["s", "read", "ad.x].x;"[-6:]].cost == 1  # one word for all lanes
    assert rows["z", "write", "Idx.x];"[-6:]].cost == 16 == rows["z", "write", "Idx.x];"[-6:]].ideal


@pytest.mark.full
def test_profile_plots(tmp_path):
    import matplotlib

    matplotlib.use("Agg")
    profile = profiled("transpose", "transpose_plain", 1, (32, 8), (floats(8, 32), zeros(32, 8), 8, 32))
    line = profile.rows[0].line
    assert len(profile.plot().patches) == len(profile.rows) == 2
    assert profile.plot_request(line, "y").images[0].get_array().shape == (32, 32)  # 32 sectors of 32 bytes
    assert profile.plot_request(line, "x").images[0].get_array().shape == (4, 32)
    ax = profile.plot_request(line, "y", colorbar=False)
    assert ax.images[0].get_array().mask[0].tolist() == 4 * [False] + 28 * [True]  # one number of the sector
    with pytest.raises(CudaCheckError, match="makes 8 requests to x, asked for number 8"):
        profile.plot_request(line, "x", 8)
    assert f"{line:4}  global  write   y" in str(profile)


# ----------------------------------------------------------------------------------------------------------------
# the cell magic


@pytest.mark.full
@pytest.mark.parametrize("beyond", [0, 15, 100, 700, 1000, 1100, 1300, 2000, 5000, 16000])
def test_the_end_of_an_array_is_not_the_start_of_another(beyond):
    """However far an index flies, up to 64 KB, it lands between the arrays, whatever lies beside them."""
    text = """extern "C" __global__ void k(const float* a, const float* b, const float* c, float* d, int i) {
  d[0] = b[i];
}
"""
    arrays = [zeros(1024) for _ in range(4)]
    with pytest.raises(cuda.KernelError, match=rf"out of bounds: read: b\[{1024 + beyond}\]"):
        cuda.module(text, where="cpu")["k"](1, 1, (*arrays, 1024 + beyond))


@pytest.mark.full
def test_cell_magic(capsys):
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "nanoeuler_lib.cuda.magic")
    shell.run_cell_magic("cuda", "--cpu -D FACTOR=3", SCALE.replace("by *", "FACTOR * by *"))
    shell.push(dict(x=floats(8), y=zeros(8)))
    assert shell.run_cell("scale(1, 8, (x, y, 2.0, 8))").success
    np.testing.assert_allclose(shell.user_ns["y"], 6 * shell.user_ns["x"], rtol=1e-6)
    loop = "for (int i = 1; i < N; i++) x[i] = x[i - 1] * x[0];"
    template = "template <int N> __global__ void power(float* x) {" + loop + "}"
    shell.run_cell_magic("cuda", "--cpu --fast -i 'power<4>'", template)
    assert not shell.user_ns["power_4"].module.checked and shell.user_ns["scale"].module.checked
    shell.run_cell("z = x[:4].copy(); power_4(1, 1, (z,))")
    np.testing.assert_allclose(shell.user_ns["z"], shell.user_ns["x"][0] ** np.arange(1, 5), rtol=1e-5)
    capsys.readouterr()
    assert not shell.run_cell("%%cuda --cpu\n" + SCALE.replace("x[i];", "x[i]")).success
    shown = capsys.readouterr()
    assert shown.out.startswith("kernel.cu, line 4: a ; is missing"), shown.out  # line 1 is the magic's
    assert "Traceback" not in shown.out + shown.err
    assert not shell.run_cell("%%cuda --cpu\n" + SCALE.replace("i < n", "i <= n")).error_before_exec
    assert not shell.run_cell("scale(1, 16, (x, y, 2.0, 8))").success
    shown = capsys.readouterr()
    assert shown.out.startswith("out of bounds: read: x[8]") and "line 4: if (i <= n) y[i]" in shown.out
    assert "Traceback" not in shown.out + shown.err
    assert not shell.run_cell("scale(1, 8, (x, y, 2.0))").success  # the same for what is refused at the door
    assert capsys.readouterr().out == "scale takes 4 arguments (x, y, by, n), got 3\n"
    with pytest.raises(NanoEulerError, match="it takes --fast"):
        shell.run_cell_magic("cuda", "--quick", SCALE)
    with pytest.raises(NanoEulerError, match="`sum` is a name of Python's own: call the kernel sum_kernel, say"):
        shell.run_cell_magic("cuda", "--cpu", SCALE.replace("scale(", "sum("))
    assert "sum" not in shell.user_ns
