"""Test the runtime apart from the bugs of the corpus: shuffles of all types, memory, faults and printf."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from nanoeuler_lib import cuda
from nanoeuler_lib.errors import NanoEulerError

pytestmark = pytest.mark.compiler

HEAD = """#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <nanoeuler.cuh>
"""
K = 'extern "C" __global__ void k'


def zeros(n):
    return np.zeros(n, np.float32)


def run(text, grid, block, args, *shared, **options):
    cuda.module(HEAD + text, where="cpu")["k"](grid, block, args, *shared, seconds=3, **options)


SHUFFLED = {
    "__half": np.float16, "__half2": np.float16, "__nv_bfloat16": np.uint16, "__nv_bfloat162": np.uint16,
    "short": np.int16, "unsigned short": np.uint16, "signed char": np.int8, "double": np.float64, "long long": np.int64,
}  # fmt: skip


@pytest.fixture(scope="module")
def shuffles():
    text = "".join(
        f'extern "C" __global__ void {kind.replace(" ", "_")}_{function}({kind}* x, unsigned mask, int by) {{\n'
        f"  {kind} v = x[threadIdx.x];\n  v = __shfl{function}sync(mask, v, by);\n  x[threadIdx.x] = v;\n}}\n"
        for kind in SHUFFLED
        for function in ("_", "_up_", "_down_", "_xor_")
    )
    return cuda.module(HEAD + text, where="cpu")


@pytest.mark.parametrize("kind", SHUFFLED)
def test_shuffles_of_every_type_with_any_number_of_lanes(shuffles, kind):
    width = 2 if kind.endswith("2") else 1
    for lanes in (1, 2, 3, 8, 17, 31, 32):
        before = np.arange(1, 1 + lanes * width).astype(SHUFFLED[kind]).reshape(lanes, width)
        all_of = np.arange(lanes)
        source = {"_": 0 * all_of, "_up_": np.maximum(all_of - 1, 0)}
        if lanes == 32:
            source |= {"_down_": np.minimum(all_of + 1, 31), "_xor_": all_of ^ 1}
        for function, wanted in source.items():
            x, by = before.copy().ravel(), 0 if function == "_" else 1
            shuffles[f"{kind.replace(' ', '_')}_{function}"](1, lanes, (x, (1 << lanes) - 1, by))
            np.testing.assert_array_equal(x.reshape(lanes, width), before[wanted])


def test_shared_memory_is_summed_for_the_card_that_is_meant():
    text = K + "(float* x) { extern __shared__ float d[]; __shared__ float s[8192]; s[0] = d[0] = x[0]; }"
    kib = 1024
    run(text, 1, 1, (zeros(1),), 64 * kib)
    run(text, 1, 1, (zeros(1),), 67 * kib, shared_limit=99 * kib)
    with pytest.raises(cuda.KernelError, match=r"32768 bytes with s, and shared_mem 69632 more: a\s+block has 101376"):
        run(text, 1, 1, (zeros(1),), 68 * kib, shared_limit=99 * kib)
    with pytest.raises(NanoEulerError, match="shared_mem must be 0 to 49152 bytes, got 65536"):
        run(text, 1, 1, (zeros(1),), 64 * kib, shared_limit=48 * kib)
    with pytest.raises(NanoEulerError, match="shared_limit must be 0 to 232448 bytes"):
        run(text, 1, 1, (zeros(1),), shared_limit=300_000)


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
        with pytest.raises(cuda.KernelError, match=r"crash: .*run\s+with\s+the\s+checker:\s+without\s+--fast"):
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
    """Check that the handlers of unchecked texts stay installed, and that each passes other faults on."""
    ended = subprocess.run([sys.executable, "-c", OUTSIDE], capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["7.0"] * 3, ended.stderr
    assert ended.returncode == -signal.SIGSEGV
