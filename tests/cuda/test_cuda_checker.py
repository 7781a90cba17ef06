# ruff: noqa: E501 -- a kernel's text stays on its line
"""Orders that a checked kernel can rely on, and those it cannot: barriers, flags, locks, fences, named barriers.

A kernel that is right must run without a finding; each bug stands beside it as an edit or a twin, and must be found.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from cudacheck.source.variables import announce_variables
from nanoeuler_lib import cuda
from nanoeuler_lib.errors import NanoEulerError

pytestmark = pytest.mark.compiler

HEAD = """#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <named_barrier.cuh>
#include <nanoeuler.cuh>
#include <reduce.cuh>
"""
K = 'extern "C" __global__ void k'


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def ints(n):
    return zeros(n, dtype=np.int32)


def run(text, grid, block, args, *shared, **options):
    cuda.module(HEAD + text, where="cpu")["k"](grid, block, args, *shared, seconds=3, **options)


FLAG = (
    K
    + """(float* x) {
  __shared__ float s[32];
  __shared__ int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    s[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    if (threadIdx.x == 0) {
      __threadfence_block();
      atomicExch(&flag, 1);
    }
  } else {
    if (threadIdx.x == 32) while (atomicAdd(&flag, 0) == 0) {}
    __syncwarp();
    x[threadIdx.x] = s[threadIdx.x - 32];
  }
}"""
)
VOLATILE = (
    K
    + """(float* x) {
  __shared__ float s;
  __shared__ volatile int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    s = x[0];
    __threadfence_block();
    flag = 1;
  }
  if (threadIdx.x == 32) {
    while (flag == 0) {}
    x[1] = s;
  }
}"""
)
LOCK = (
    K
    + """(int* lock, int* count) {
  for (bool done = false; !done;)
    if (atomicCAS(lock, 0, 1) == 0) {
      __threadfence();
      count[0] += 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
}"""
)
LAST = (
    """__device__ unsigned done;
"""
    + K
    + """(const float* x, float* part, float* out) {
  __shared__ bool last;
  part[blockIdx.x * 64 + threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(&done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float s = 0;
    for (int i = 0; i < gridDim.x * 64; i++) s += part[i];
    *out = s;
    done = 0;
  }
}"""
)
LOOK_BACK = (
    """__device__ unsigned ticket;
__device__ volatile int status[64];
__device__ volatile float sums[64];
"""
    + K
    + """(const float* x, float* y) {
  if (threadIdx.x) return;
  int b = atomicAdd(&ticket, 1u);
  float before = 0;
  if (b > 0) {
    while (status[b - 1] == 0) {}
    __threadfence();
    before = sums[b - 1];
  }
  sums[b] = before + x[b];
  __threadfence();
  status[b] = 1;
  y[b] = before;
}"""
)
NAMED = (
    K
    + """(const float* x, float* y) {
  __shared__ float s[2][32];
  int t = threadIdx.x;
  for (int k = 0; k < 6; k++) {
    if (t < 32) {
      if (k >= 2) named_barrier_sync(3 + k % 2, 96);
      s[k % 2][t] = x[k * 32 + t];
      named_barrier_arrive(1 + k % 2, 96);
    } else {
      named_barrier_sync(1 + k % 2, 96);
      y[k * 64 + t - 32] = s[k % 2][(t + 5) % 32];
      if (k + 2 < 6) named_barrier_arrive(3 + k % 2, 96);
    }
  }
}"""
)
HELPER = (
    """__device__ float turned(float v) {
  __shared__ float s[64];
  __syncthreads();
  s[threadIdx.x] = v;
  __syncthreads();
  return s[63 - threadIdx.x];
}
"""
    + K
    + """(float* x) {
  float v = x[threadIdx.x];
  for (int i = 0; i < 3; i++) v = turned(v) + turned(v + 1);
  x[threadIdx.x] = v + __syncthreads_count(v > 0);
}"""
)
COUNTS = (
    "__device__ int counts[4];\n"
    + K
    + """(int* x) {
  int* p = counts;
  atomicAdd(&p[x[threadIdx.x] % 4], 1);
  __syncthreads();
  x[threadIdx.x] = p[threadIdx.x % 4];
}"""
)
CONSTANTS = (
    "__constant__ float c[64] = {1, 2};\n"
    + K
    + "(float* x) {\n  const float* p = c;\n  x[threadIdx.x] = p[threadIdx.x];\n}"
)
HALF_WARP = (
    K
    + """(float* x) {
  __shared__ float s;
  if (threadIdx.x == 0) s = 1;
  __syncthreads();
  float v = s;
  __syncwarp();
  if (threadIdx.x >= 16) {
    __syncwarp(0xffff0000u);
    v += s;
    __syncwarp(0xffff0000u);
    if (threadIdx.x == 16) x[1] = v;
  }
}"""
)
IN_PLACE = (
    K
    + """(const float* x, float* y, int n) {
  float s = 0;
  for (int j = blockIdx.x * 64; j < n; j++) s += x[j];
  __syncthreads();
  y[blockIdx.x * 64 + threadIdx.x] = s;
}"""
)

# name: text, grid, block, arguments
SOUND = {
    "flag": (FLAG, 1, 64, (zeros(64),)),
    "volatile flag": (VOLATILE, 1, 64, (zeros(64),)),
    "lock": (LOCK, 2, 64, (ints(1), ints(1))),
    "last block": (LAST, 4, 64, (zeros(64), zeros(256), zeros(1))),
    "look-back": (LOOK_BACK, 8, 32, (zeros(8), zeros(8))),
    "named": (NAMED, 1, 96, (zeros(192), zeros(384))),
    "helper": (HELPER, 1, 64, (zeros(64),)),
    "counts": (COUNTS, 1, 64, (ints(64),)),
    "constants": (CONSTANTS, 1, 64, (zeros(64),)),
    "half a warp": (HALF_WARP, 1, 32, (zeros(32),)),
    "in place": (IN_PLACE, 4, 64, (zeros(256), zeros(256), 256)),
}
# bug: the sound kernel, what is replaced by what, and the finding's kind
BUGS = {
    "flag: the warp does not meet": (
        "flag", "    __syncwarp();\n    if (threadIdx.x == 0)", "    if (threadIdx.x == 0)", "race"),
    "flag: no fence": ("flag", "__threadfence_block();", "", "race"),
    "flag: another flag is read": (
        "flag", "atomicAdd(&flag, 0) == 0", "atomicAdd(&flag + 0 * threadIdx.x, 0) < 0", "race"),
    "volatile flag: no fence": ("volatile flag", "__threadfence_block();", "", "race"),
    "lock: no fence": ("lock", "      __threadfence();\n", "", "race"),
    "last block: no fence": ("last block", "    __threadfence();\n", "", "race"),
    "last block: the block does not meet": (
        "last block", "__syncthreads();\n  if (threadIdx.x == 0) {\n    __th",
        "if (threadIdx.x == 0) {\n    __th", "race"),
    "look-back: no fence": ("look-back", "__threadfence();\n  status", "status", "race"),
    "named: nobody waits for full": (
        "named", "named_barrier_sync(1 + k % 2, 96);", "named_barrier_arrive(1 + k % 2, 96);", "race"),
    "named: a warp is forgotten": ("named", "96", "64", "race"),
    "named: two counts": ("named", "sync(1 + k % 2, 96", "sync(1 + k % 2, 64", "divergent barrier"),
    "named: number 16": ("named", "(1 + k % 2", "(16 + k % 2", "divergent barrier"),
    "named: nobody waits for empty": (
        "named", "      if (k >= 2) named_barrier_sync(3 + k % 2, 96);\n", "", "divergent barrier"),
    "helper: from two branches": (
        "helper", "v = turned(v) + turned(v + 1);",
        "if (threadIdx.x < 32) v = turned(v); else v = turned(v + 1);", "divergent barrier"),
    "helper: two on one line": (
        "helper", "for (int i",
        "if (threadIdx.x < 32) { __syncthreads(); } else { __syncthreads(); }\n  for (int i", "divergent barrier"),
    "counts: no atomic": ("counts", "atomicAdd(&p[x[threadIdx.x] % 4], 1)", "p[x[threadIdx.x] % 4] += 1", "race"),
    "counts: no barrier": ("counts", "__syncthreads();", "", "race"),
    "counts: beyond the end": ("counts", "p[threadIdx.x % 4]", "p[threadIdx.x % 5]", "out of bounds"),
    "constants: beyond the end": ("constants", "p[threadIdx.x]", "p[threadIdx.x + 1]", "out of bounds"),
    "constants: written": (
        "constants", "x[threadIdx.x] = p[threadIdx.x];", "((float*)p)[threadIdx.x] = x[0];", "read-only"),
    "in place: const by a cast": (
        "in place", "y[blockIdx.x * 64 + threadIdx.x] = s;",
        "((float*)x)[blockIdx.x * 64 + threadIdx.x] = s;", "read-only"),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_kernel_runs_without_a_finding(name):
    run(*SOUND[name])


@pytest.mark.parametrize("bug", BUGS)
def test_its_bugs_are_found(bug):
    name, old, new, kind = BUGS[bug]
    text, *launch = SOUND[name]
    assert old in text
    with pytest.raises(cuda.KernelError) as caught:
        run(text.replace(old, new), *launch)
    finding = caught.value.finding
    assert finding.kind == kind, finding.text
    assert finding.line and f"line {finding.line}: " in finding.text, finding.text


def test_an_earlier_reader_is_not_lost():
    """Within a warp that meets in parts, and of an earlier block behind four readers of the own one."""
    text = HALF_WARP.replace("  __syncwarp();\n  if", "  if").replace("x[1] = v;", "s = v;")
    with pytest.raises(cuda.KernelError, match=r"race: .*: s\n"):
        run(text, 1, 32, (zeros(32),))
    x = zeros(256)
    with pytest.raises(cuda.KernelError, match="a thread of another block"):
        run(IN_PLACE, 4, 64, (x, x, 256))


@pytest.mark.parametrize("what", ["threadIdx.x == 31", "blockIdx.x == 3"])
def test_atomics_of_others_are_not_lost_behind_the_own_one(what):
    grid, block = (1, 32) if "thread" in what else (4, 1)
    text = K + "(int* n, int* y) {\n  atomicAdd(n, 1);\n  if (" + what + ") y[0] = n[0];\n}"
    with pytest.raises(cuda.KernelError, match="an atomic and a plain access race, too") as caught:
        run(text, grid, block, (ints(1), ints(1)))
    assert caught.value.finding.kind == "race"


def test_a_fence_before_the_store_publishes_nothing():
    text = LAST.replace("  part[blockIdx.x * 64 + threadIdx.x] = x[threadIdx.x];\n  __syncthreads();\n", "")
    text = text.replace("__threadfence();", "__threadfence();\n    part[blockIdx.x * 64] = x[0];").replace(
        "i++", "i += 64"
    )
    with pytest.raises(cuda.KernelError, match=r"race: .*part"):
        run(text, 4, 64, (zeros(64), zeros(256), zeros(1)))


SHUFFLED = {
    "__half": np.float16, "__half2": np.float16, "__nv_bfloat16": np.uint16, "__nv_bfloat162": np.uint16,
    "short": np.int16, "unsigned short": np.uint16, "signed char": np.int8, "double": np.float64, "long long": np.int64,
}  # fmt: skip


@pytest.mark.parametrize("kind", SHUFFLED)
def test_shuffles_of_every_type_with_any_number_of_lanes(kind):
    name = kind.replace(" ", "_")
    text = "".join(
        f'extern "C" __global__ void {name}_{function}({kind}* x, unsigned mask, int by) {{\n'
        f"  {kind} v = x[threadIdx.x];\n  v = __shfl{function}sync(mask, v, by);\n  x[threadIdx.x] = v;\n}}\n"
        for function in ("_", "_up_", "_down_", "_xor_")
    )
    module = cuda.module(HEAD + text, where="cpu")
    width = 2 if kind.endswith("2") else 1
    for lanes in (1, 2, 3, 8, 17, 31, 32):
        before = np.arange(1, 1 + lanes * width).astype(SHUFFLED[kind]).reshape(lanes, width)
        all_of = np.arange(lanes)
        source = {"_": 0 * all_of, "_up_": np.maximum(all_of - 1, 0)}
        if lanes == 32:
            source |= {"_down_": np.minimum(all_of + 1, 31), "_xor_": all_of ^ 1}
        for function, wanted in source.items():
            x = before.copy().ravel()
            by = 0 if function == "_" else 1
            module[f"{name}_{function}"](1, lanes, (x, (1 << lanes) - 1, by))
            np.testing.assert_array_equal(x.reshape(lanes, width), before[wanted])


@pytest.mark.parametrize(
    "body, message",
    [
        ("x[0] = __shfl_down_sync(0xffffffff, x[0], 1, 24);", "width is 1, 2, 4, 8, 16 or 32, got 24"),
        ("x[0] = __shfl_sync(0xffffffff, make_float2(1, 2), 0).x;", "a shuffle moves one number"),
        ("__builtin_exit(3);", "exit.. would end the whole process|'__builtin_exit' is not declared"),  # Clang has none
        ("__builtin_abort();", "abort.. would end the whole process"),
    ],
)  # fmt: skip
def test_what_no_kernel_may_call(body, message):
    with pytest.raises(NanoEulerError, match=message):
        run(K + "(float* x) {\n  " + body + "\n}", 1, 32, (zeros(32),))


def test_shared_memory_is_summed_for_the_card_that_is_meant():
    text = (
        K
        + """(float* x) {
  extern __shared__ float d[];
  __shared__ float s[8192];
  s[0] = d[0] = x[0];
}"""
    )
    kib = 1024
    run(text, 1, 1, (zeros(1),), 64 * kib)
    run(text, 1, 1, (zeros(1),), 67 * kib, shared_limit=99 * kib)
    with pytest.raises(cuda.KernelError, match=r"32768 bytes with s, and shared_mem 69632 more: a\s+block has 101376"):
        run(text, 1, 1, (zeros(1),), 68 * kib, shared_limit=99 * kib)
    with pytest.raises(NanoEulerError, match="shared_mem is 0 to 49152 bytes, got 65536"):
        run(text, 1, 1, (zeros(1),), 64 * kib, shared_limit=48 * kib)
    with pytest.raises(NanoEulerError, match="shared_limit is 0 to 232448 bytes"):
        run(text, 1, 1, (zeros(1),), shared_limit=300_000)


def test_a_local_array_that_a_pointer_overruns():
    text = "__device__ void fill(float* a, int n) {\n  for (int i = 0; i < n; i++) a[i] = i;\n}\n" + K
    text += "(float* x, int n) {\n  float a[8];\n  fill(a, n);\n  x[0] = a[1];\n}"
    run(text, 1, 1, (zeros(1), 8))
    with pytest.raises(cuda.KernelError, match=r"was written beyond its end\s+through a pointer"):
        run(text, 1, 1, (zeros(1), 32))


# What a finding says beside its place: text of a kernel, (x, n) = (64 floats, 64), words.
TOLD = {
    "an unwritten index": (
        "__shared__ int s[32];\n  x[s[threadIdx.x]] = 1;", "uninitialised: shared memory",
        "what was found serves as an index or address: s[0]", "what came of it: line 8:"),
    "an unwritten index of an array in brackets": (
        "__shared__ int s[32], t[32];\n  s[t[threadIdx.x]] = 1;", "serves as an index or address: t[0]", "line 8:"),
    "an update": ("x[0] += 1;", "race: ", "atomicAdd does it in one step"),
    "an update by name": ("x[n / 64] = 2 * x[n / 64];", "race: ", "atomicAdd does it in one step"),
    "a tree without its barrier": (
        "__shared__ float s[64];\n  int t = threadIdx.x;\n  s[t] = x[t];\n  __syncthreads();\n"
        "  for (int d = 32; d; d /= 2) if (t < d) s[t] += s[t + d];", "race: ", "no __syncthreads()"),
    "a place that is read by all and written by one": (
        "__shared__ float s[64];\n  s[threadIdx.x] = 1;\n  __syncthreads();\n  float all = s[0];\n"
        "  s[threadIdx.x] = all;", "race: ", "no __syncthreads()"),
    "a histogram that nobody zeroed": (
        "__shared__ int s[4];\n  atomicAdd(&s[threadIdx.x % 4], 1);", "uninitialised: ", "s[0]", "line 8:"),
    "a copy that a wait leaves": (
        "__shared__ float s[128];\n  for (int i = 0; i < 2; i++) {\n    copy_async<4>(s + 64 * i + threadIdx.x, x + threadIdx.x);\n"
        "    copy_async_commit();\n  }\n  copy_async_wait<1>();\n  x[threadIdx.x] = s[64 + threadIdx.x];",
        "copy_async_wait<1> leaves the newest 1 on their way, and it is number 1 of them: s[64]", "the copy: line 9:",
        "copy_async_wait<0>() waits for all"),
    "a copy in no group": (
        "__shared__ float s[64];\n  copy_async<4>(s + threadIdx.x, x + threadIdx.x);\n  copy_async_wait<0>();\n"
        "  x[threadIdx.x] = s[threadIdx.x];", "is in no group yet", "copy_async_commit() has not come after it"),
    "an absent lane": (
        "if (threadIdx.x < 8) x[0] = __shfl_down_sync(0xff, n, 4);", "takes no part in it: __shfl_down_sync of lane 7 reads "
        "lane 11, which is not in the mask 0x000000ff"),
    "a lane that has left": (
        "if (threadIdx.x % 32 > 7) return;\n  x[0] = __shfl_xor_sync(~0u, n, 8);", "of lane 0 reads lane 8, which has left the "
        "kernel, or never was, though it is in the mask 0xffffffff"),
    "two masks": (
        "n = __ballot_sync(threadIdx.x % 32 < 16 ? ~0u : 0xffff0000u, 1);", "come to one __ballot_sync with different masks: lane 0 "
        "says 0xffffffff, and lane 16 said 0xffff0000"),
    "one lane at a named barrier": (
        "if (threadIdx.x == 3) named_barrier_arrive(2, 32);", "named barrier 2: lane 3 of warp 0 came to it, and lane 0 did not"),
    "a warp that comes twice": (
        "for (int i = 0; i < 2; i++) named_barrier_arrive(1, 96);", "named barrier 1: a warp comes a second time before the "
        "others of its 96 threads have come once"),
    "33 threads": ("named_barrier_sync(5, 33);", "divergent barrier: named barrier 5: whole warps meet"),
    "both sides of an overflow": (
        "int a = 65536 * (n / 64);\n  x[0] = a * -a;", "int overflow: 65536 * -65536 is too large for 'int'"),
    "an overflow of a long long": (
        "long long a = 1ll << (n - 2);\n  x[0] = a + (a - 1) + 1 + n;", "int overflow: 9223372036854775807 + 1 is too large for 'long long"),
    "a shift": ("x[0] = 1 << (n - 65);", "shift of 'int' by -1 bits"),
    "nowhere to multiply to": ("unsigned a[4] = {};\n  mma<tf32>(nullptr, a, a);", "write through a null pointer", "line 8:"),
    "below the stack": ("volatile char c = 0, *p = &c;\n  for (int i = 4096; i < 1 << 20; i++) p[-i] = 1;", "a local variable ends"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_a_finding_says_what_to_look_at(name):
    body, *words = TOLD[name]
    with pytest.raises(cuda.KernelError) as caught:
        run(K + "(float* x, int n) {\n  " + body + "\n}", 1, 64, (zeros(64), 64))
    told = caught.value.finding.text.replace("\n    ", " ")
    assert all(word in told for word in words), told


def test_an_exchange_may_be_the_first_to_write():
    text = """(float* x) {
  __shared__ int s[2];
  if (threadIdx.x < 2) atomicExch(&s[threadIdx.x], 3);
  __syncthreads();
  atomicAdd(&s[threadIdx.x % 2], 1);
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x % 2];
}"""
    x = zeros(32)
    run(K + text, 1, 32, (x,))
    assert (x == 3 + 16).all()


@pytest.mark.parametrize("loop", ["for (;;) ;", "for (;;) {}", "while (true) ;", "again: goto again;"])
def test_an_empty_loop_ends_with_its_seconds(loop):
    kernel = cuda.module(K + "(float* x) {\n  if (threadIdx.x == 5)\n    " + loop + "\n}", where="cpu")["k"]
    start = time.monotonic()
    with pytest.raises(cuda.KernelError, match="endless: ") as caught:
        kernel(1, 32, (zeros(1),), seconds=0.3)
    assert caught.value.finding.line == 3 and time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("call", "kind", "told"),
    [
        ('printf("%d %s", 1, (const char*)0x1234)', "out of bounds", "the text of %s stands at an address that is in no"),
        ('printf("%5.2f %lld %s", 1.0, 2ll, (const char*)x)', "out of bounds", "the text of %s has no end"),
        ("printf((const char*)0)", "out of bounds", "the format is a null pointer"),
        ('printf("%n", (int*)x)', "failure", "a GPU has no %n"),
        ('printf("%-*d", 2147483647, 1)', "failure", "a width or precision of 2147483647, and a launch keeps 65536"),
        ('printf("%.99999f", 1.0)', "failure", "a width or precision of 99999"),
    ],
)  # fmt: skip
def test_printf_names_what_it_cannot_print(call, kind, told):
    with pytest.raises(cuda.KernelError) as caught:
        run(K + "(float* x) {\n  x[0] = -1.2345678f;\n  " + call + ";\n}", 1, 1, (zeros(1),))
    finding = caught.value.finding
    assert (finding.kind, finding.line, finding.thread) == (kind, 8, (0, 0, 0))
    assert f"printf: {told}" in finding.text.replace("\n    ", " ")


def test_printf_prints_what_it_can(capsys):
    text = """(char* x) {
  int* none = nullptr;
  printf("%5.2f|%-4d|%lld|%c|%s|%.3s|%%|%x|%p|%*d\\n", 1.5, 7, 1ll << 40, 'c', "text", x, 255, none, 3, 9);
}"""
    run(K + text, 1, 1, (np.frombuffer(b"abcdef", np.int8).copy(),))
    assert capsys.readouterr().out == " 1.50|7   |1099511627776|c|text|abc|%|ff|(nil)|  9\n"


FAST = (
    K + "(volatile float* x, int n) {\n  if (n == 0) x[0] = 7 / (int)x[0];\n  if (n == 1) while (x[0] == 0) {}\n"
    "  if (n == 2) *(volatile float*)0x123456789000 = 1;\n  x[threadIdx.x] = 1;\n}"
)


@pytest.mark.parametrize("grid", [1, 100])
def test_a_fast_launch_ends_by_a_fault_and_by_ctrl_c(grid):
    kernel = cuda.module(FAST, where="cpu", checked=False)["k"]
    faults = [2, 0] if os.uname().machine == "x86_64" else [2]  # arm64 divides by zero without a fault
    for n in faults:
        with pytest.raises(cuda.KernelError, match=r"crash: .*the checker\s+says where: leave out --fast"):
            kernel(grid, 64, (zeros(64), n))
    timer = threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        kernel(grid, 64, (zeros(64), 1))
        time.sleep(1)
    timer.join()
    x = zeros(64)
    kernel(grid, 64, (x, 3))
    assert (x == 1).all()


OUTSIDE = f"""
import ctypes
import numpy as np
from nanoeuler_lib import cuda
from nanoeuler_lib.errors import NanoEulerError
for n in 1, 2, 1:
    text = {K!r} + f"(float* x, int n) {{{{ if (n == {{n}}) *(volatile float*)0x123456789000 = 1; x[0] = n; }}}}"
    kernel, x = cuda.module(text, where="cpu", checked=False)["k"], np.zeros(1, np.float32)
    try:
        kernel(1, 1, (x, n))
    except NanoEulerError:
        kernel(1, 1, (x, 7))
    print(x[0], flush=True)
ctypes.string_at(16)
"""


def test_a_fault_outside_of_a_launch_is_none_of_a_kernel():
    """The handlers of unchecked texts stay, each with the one before it to turn to."""
    ended = subprocess.run([sys.executable, "-c", OUTSIDE], capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["7.0"] * 3, ended.stderr
    assert ended.returncode == -signal.SIGSEGV


DECLARATIONS = """static __constant__ float a[4] = {1, 2};
static __device__ unsigned b = 3, c[4][5], d{7};
namespace inner { __device__ Pair<int, float> e[3]; struct S { static __device__ int no; }; }
extern "C" { __device__ volatile int f; }
__constant__ struct P { int x, y; } g;
extern __device__ int no;
template <int N> __device__ float no[N];
__device__ float no(float x) { static int no; return x; }
__device__ void (*no[2])(int);
#define MACRO __device__ int no;
// __device__ int no;
"""


def test_the_variables_of_a_text_announce_themselves():
    text = announce_variables(DECLARATIONS)
    found = [word.split(",")[0] for word in text.split("DEVICE_VARIABLE(")[1:]]
    assert found == list("abcdefg") and text.count("\n") == DECLARATIONS.count("\n")
    assert "DEVICE_VARIABLE(a, true)" in text and "DEVICE_VARIABLE(b, false)" in text
