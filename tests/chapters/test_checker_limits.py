"""What the appendix on the runtime says that the checker does not see passes; where it is strict, it refuses."""

import json
import re

import numpy as np
import pytest
from chapters import ROOT

from cudacheck import compiler
from nanoeuler_lib import cuda

# ---- What the checker cannot see, and where it is stricter: each point of the two lists by a kernel

HEAD = """#include <nanoeuler.cuh>
__device__ unsigned done, other;
__device__ float eight[8];
__device__ float first_of(float4 v) { return v.x; }
__device__ int deep(int n) { return n < 1 ? 0 : 1 + deep(n - 1); }
"""
# A point of the list; a kernel (x has 64 zeros, n as many), with its grid and block.
UNSEEN = {
    "1": ("wraps", "if (threadIdx.x < (unsigned)n[0] - 1) x[threadIdx.x] = 1;", 1, 2),
    "2": ("of_the_last_launch", "x[0] = eight[0]; eight[0] = 5;", 1, 1),
    "3": ("path", "if (n[0] == 1) x[-1] = 0;", 1, 1),
    "4": ("place_in_a_list", "x[atomicAdd(n, 1) % 64] = threadIdx.x;", 1, 64),
    "5": ("address", "if (blockIdx.x == 0) { x[0] = 1; __threadfence(); atomicAdd(&done, 1u); }"
          "else { atomicAdd(&other, 1u); x[1] = x[0]; }", 2, 1),
    "6": ("next_array", "__shared__ float a[64]; __shared__ float b[64]; a[threadIdx.x] = b[threadIdx.x] = 1;"
          "__syncthreads(); float* p = a; x[threadIdx.x] = p[64];", 1, 64),
    "7": ("read_behind", "float a[4] = {1, 2, 3, 4}; float* p = a; x[0] = p[5 + n[0]];", 1, 1),
    "8": ("by_value", "float4* v = (float4*)x; x[0] = first_of(v[16]);", 1, 1),
    "9": ("third_warp", "__shared__ int s, flag; if (threadIdx.x == 0) s = flag = 0; __syncthreads();"
          "if (threadIdx.x % 32 == 0 && threadIdx.x < 96) { n[threadIdx.x / 32] = s; __threadfence_block();"
          "if (threadIdx.x != 64) atomicAdd(&flag, 1); }"
          "if (threadIdx.x == 96) { while (atomicAdd(&flag, 0) < 2) {} s = 1; }", 1, 128),
    "10": ("source", "__shared__ __align__(16) float s[4]; copy_async<16>(s, x); copy_async_commit(); x[0] = 3;"
           "copy_async_wait<0>(); __syncthreads(); x[4] = s[0];", 1, 1),
    "11": ("deep_recursion", "n[0] = deep(100);", 1, 1),
    "12": ("two_lines", "float v = 1;\nif (threadIdx.x < 16) v += __shfl_xor_sync(~0u, v, 1);\n"
           "else v -= __shfl_xor_sync(~0u, v, 1);\nx[threadIdx.x] = v;", 1, 32),
}  # fmt: skip
STRICT = {
    "returned": ("if (threadIdx.x == 1) return; __syncthreads(); x[threadIdx.x] = 1;", 1, 2),
    "same_value": ("x[0] = 1;", 1, 2),
    "plain_read": ("atomicAdd(n, 1); n[threadIdx.x + 1] = n[0];", 1, 2),
    "volatile_alone": ("__shared__ volatile int s; if (threadIdx.x == 0) s = 1; n[threadIdx.x] = s;", 1, 2),
    "lane_apart": ("if (threadIdx.x < 16) x[threadIdx.x] = __shfl_down_sync(0xffff, x[threadIdx.x], 8);", 1, 32),
    "hash": ("n[1] = (n[0] + 2147483647) * 31;", 1, 1),
    "padding": ("__shared__ float s[4]; x[0] = 0 * s[3]; __syncthreads();", 1, 1),
    "waits_for_later": ("if (blockIdx.x == 0) while (atomicAdd(n, 0) == 0) {} else atomicAdd(n, 1);", 2, 1),
    "lanes_not_met": (
        "__shared__ int s[2], flag; if (threadIdx.x == 0) flag = 0; __syncthreads();"
        "if (threadIdx.x < 2) s[threadIdx.x] = 1; if (threadIdx.x == 0) { __threadfence_block(); atomicAdd(&flag, 1); }"
        "if (threadIdx.x == 32) { while (atomicAdd(&flag, 0) == 0) {} n[0] = s[1]; }", 1, 64),
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels():
    bodies = {name: body for name, body, *_ in UNSEEN.values()} | {name: body for name, (body, *_) in STRICT.items()}
    head = 'extern "C" __global__ void {}(float* x, int* n)'
    text = HEAD + "\n".join(f"{head.format(name)} {{ {body} }}" for name, body in bodies.items())
    return cuda.module(text, where="cpu")


def launch(kernel, grid, block):
    kernel(grid, block, (np.zeros(64, np.float32), np.zeros(64, np.int32)), seconds=0.5)


@pytest.mark.compiler
@pytest.mark.parametrize("point", UNSEEN)
def test_what_the_checker_cannot_see(kernels, point):
    if point == "8" and "g++" not in " ".join(map(str, compiler.find_compiler())):
        pytest.skip("only g++ does not tell it")
    name, _, grid, block = UNSEEN[point]
    launch(kernels[name], grid, block)


@pytest.mark.compiler
@pytest.mark.parametrize("name", STRICT)
def test_where_the_checker_is_strict(kernels, name):
    with pytest.raises(cuda.KernelError):
        launch(kernels[name], *STRICT[name][1:])


def test_every_point_of_the_list_has_its_kernel():
    cells = json.loads((ROOT / "notebooks" / "A1_cpu_runtime.ipynb").read_text("utf-8"))["cells"]
    listed = next(t for t in map("".join, (c["source"] for c in cells)) if "### What the checker cannot see" in t)
    assert set(re.findall(r"^(\d+)\. \*\*", listed, re.M)) == set(UNSEEN)
