"""What a learner reads after a mistake: what it is, where, and what to look at, without a compiler's noise.

Each mistake is an edit of a sound kernel, about in the order in which people meet them, with words that the message
must hold. g++, Clang and the GPU's own compiler, NVRTC, find the same ones.
"""

import re

import numpy as np
import pytest
from test_nvrtc import cubin, nvrtc

from cudacheck.complaints import first_error
from cudacheck.errors import CudaCheckError
from cudacheck.source import prepare, signatures
from nanoeuler_lib import cuda
from nanoeuler_lib.cuda import magic
from nanoeuler_lib.errors import NanoEulerError

pytestmark = pytest.mark.compiler

SCALE = """extern "C" __global__ void scale(const float* x, float* y, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = by * x[i];
}
"""
GUARD, BODY = "  if (i < n) ", "  if (i < n) y[i] = by * x[i];"
NOISE = re.compile(
    r"runtime::|self\(\)|candidate|included|note:|device\.h|\.cpp|\[-W|expansion|poison|/tmp|<command|error:"
)


def change(old, new):
    assert old in SCALE
    return SCALE.replace(old, new)


def before_guard(line):
    return change(GUARD, f"  {line}\n{GUARD}")


# mistake: text, line, words of the message
SYNTAX = {
    "a name of CUDA misspelt": (
        change("+ threadIdx", "+ treadIdx"),
        2, "'treadIdx' is not declared; did you mean 'threadIdx'?"),
    "a name of CUDA in small letters": (change("+ threadIdx", "+ threadidx"), 2, "did you mean 'threadIdx'?"),
    "a variable misspelt": (change("by * x", "bye * x"), 3, "did you mean 'by'?"),
    "a function misspelt": (before_guard("__syncthread();"), 3, "did you mean '__syncthreads'?"),
    "a keyword misspelt": (before_guard("__shred__ float s[32];"), 3, "did you mean '__shared__'?"),
    "a type misspelt": (change("by * x", "(flot)x"), 3, "did you mean 'float'?"),
    "a parameter's type misspelt": (change("float by", "flot by"), 1, "`by` is a flot; did you mean float?"),
    "a parameter that is no number": (change("float by", "Scale* by"), 1, "a kernel takes pointers and numbers"),
    "a function that is nowhere": (change("by * x[i]", "gelu(x[i])"), 3, "'gelu' is not declared"),
    "no such axis": (change("threadIdx.x", "threadIdx.w"), 2, "no member"),
    "a ; missing after a declaration": (
        change("threadIdx.x;", "threadIdx.x"),
        2, "a ; is missing at the end of this line"),
    "a ; missing before }": (change("x[i];", "x[i]"), 3, "a ; is missing at the end of this line"),
    "a ; missing, then a comment": (
        change(BODY, "  y[i] = 1  // here\n\n  // and\n  y[i] = 2;"),
        3, "a ; is missing"),
    "a ; missing after shared memory": (before_guard("__shared__ float s[32]"), 3, "a ; is missing"),
    "a { never closed": (change("x[i];\n}", "x[i];"), 1, "this { is never closed"),
    "a } too many": (SCALE + "}\n", 5, "this } closes nothing"),
    "a ( never closed": (change("(i < n)", "(i < n"), 3, "this ( is never closed"),
    "a ( of the parameters never closed": (change("int n)", "int n"), 1, "this ( is never closed"),
    "a [ never closed": (change("y[i]", "y[i"), 3, "this [ is never closed"),
    "__global__ forgotten": (
        change("__global__ ", ""),
        1, '`scale` would be one as: extern "C" __global__ void scale('),
    "__global__ misspelt": (change("__global__", "__gobal__"), 1, "holds no kernel"),
    "a kernel that returns something": (change("void", "float"), 1, "holds no kernel"),
    "nothing": ("", 0, "the text is empty"),
    "a header of C++": ("#include <vector>\n" + SCALE, 1, "vector"),
    "the C++ library": (
        change("by * x[i]", "std::max(x[i], 0.0f)"),
        3, ""),
    "a type of a C header": (change("int i", "int32_t i"), 2, "'int32_t' is not there for a kernel: write int"),
    "infinity": (change("by * x[i]", "-INFINITY"), 3, "'INFINITY' is not there for a kernel: write __int_as_float"),
    "a comment as in Python": (before_guard("# guard"), 3, "preprocess"),
    "a loop as in Python": (change("if (i < n)", "for i in range(n):"), 3, "expected"),
    "a launch from C++": (before_guard("scale<<<1, 32>>>(x, y, by, n);"), 3, "a kernel is launched from Python"),
    "a const array is written": (change("y[i] = by", "x[i] = by"), 3, "const"),
    "the index forgotten": (change("x[i];", "x;"), 3, ""),
    "an index that is a float": (change("int i", "float i"), 3, ""),
    "a name declared twice": (before_guard("int i = 3;"), 3, ""),
    "an atomic on a value": (
        change("y[i] = by * x[i]", "atomicAdd(y[i], 1.0f)"),
        3, "atomicAdd"),
    "an else without its if": (change("x[i];", "x[i]; y[0] = 1; else y[i] = 0;"), 3, ""),
    "a value for void": (change("if (i < n)", "if (i >= n) return 0; else"), 3, "return"),
    "a variable of the if": (
        change(BODY, "  if (i < n) float v = by * x[i]; y[i] = v;"),
        3, "'v' is not declared"),
    "a function that comes too late": (
        change("by * x[i]", "twice(x[i])") + "__device__ float twice(float v) { return 2 * v; }\n",
        3, "'twice' is not declared"),
    "an index of three": (change("y[i]", "y[threadIdx]"), 3, "threadIdx is three numbers: write threadIdx.x, .y or .z"),
    "a product of three": (
        change("blockIdx.x * blockDim.x + threadIdx.x", "blockIdx * blockDim + threadIdx"),
        2, "blockIdx is three numbers: write blockIdx.x"),
    "( ) for [ ]": (change("y[i] =", "y(i) ="), 3, "function"),
    "print": (before_guard('print("here");'), 3, "'print' is not there for a kernel: write printf"),
    "a function without a type": (
        "__device__ twice(float v) { return 2 * v; }\n" + SCALE,
        1, "type"),
    "a ; missing after a struct": ("struct Pair { float a, b; }\n" + SCALE, 1, "a ; is missing"),
    "a function of a header": (before_guard("by = block_sum(by);"), 3, "'block_sum' is not declared"),
    "wgmma without its header": (before_guard("wgmma_fence();"), 3, "write #include <hopper.cuh> at the top"),
    "shared memory without a size": (before_guard("__shared__ float s[];"), 3, "this __shared__ array has no size"),
    "main": (SCALE + "int main() { return 0; }\n", 5, "here Python is the host"),
    "a variable of the host": ("float by2 = 2;\n" + SCALE, 1, "`by2` is a variable of the host"),
    "an array of the host": ("static float t[2] = {1, 2};\n" + SCALE, 1, "write __device__ before it, or __constant__"),
    "a constant inside the kernel": (before_guard("__constant__ float w[2] = {1, 2};"), 3, "outside of functions"),
    "a kernel that calls a kernel": (
        SCALE + change("scale", "other").replace("y[i] = by * x[i]", "scale(x, y, by, n)"),
        7, "`scale` is a kernel, and a kernel cannot call another"),
    "calloc": (before_guard("float* p = (float*)calloc(n, 4);"), 3, "'calloc' is not there for a kernel"),
    "what is refused, behind a macro": (
        "#define LANES __activemask()\n" + before_guard("by += LANES;"),
        1, "'__activemask' is not there for a kernel"),
    "a pointer to a function": (change("float by", "float (*by)(float)"), 1, "parameter `by` is a function"),
    "a template that nobody names": (
        "template <int N>\n" + change('extern "C" ', ""),
        2, "scale is a template: name what to compile, as %%cuda -i 'scale<...>'"),
}  # fmt: skip

# What compiles, and is nearly always a bug: a checked module refuses it, and a fast one takes it.
SUSPECT = {
    "= for ==": (change("i < n", "i = n"), 3, "assignment"),
    "== for =": (change("y[i] =", "y[i] =="), 3, ""),
    "a variable without a value": (before_guard("float s;\n  s += by;"), 4, "uninitialized"),
    "two indices in one bracket": (change("x[i]", "x[i, n]"), 3, "comma"),
    "a function without return": ("__device__ float f(float x) { x *= 2; }\n" + SCALE, 1, "non-void"),
    "an integer divided by zero": (change("threadIdx.x;", "threadIdx.x + n / 0;"), 2, "division by zero"),
    "an indented line without braces": (
        change(BODY, "  if (i < n)\n    y[i] = 1;\n    y[i] = 2;"),
        None, "between { and }"),
    "printf with another type": (before_guard('printf("%d\\n", x[i]);'), 3, "format"),
    "local arrays too large": (
        before_guard("float big[20000];\n  big[i] = 1;"),
        None, "large arrays belong in shared memory"),
}  # fmt: skip
HARMLESS = {
    "several on a line": change(BODY, "  if (i < n) { y[i] = by; } else if (i == n && n > 0 || n < 0) y[0] = 1;"),
    "int and unsigned": change(BODY, "  for (int k = 0; k < gridDim.x; k++) if (k + i < n) y[k + i] = 1;"),
    "nothing used": change(BODY, "  float unused; int also = 3;"),
    "variables of every kind": (
        "const float a = 2;\nconstexpr int b[2] = {1, 2};\n__device__ float c;\n__constant__ float d[2] = {1, 2};\n"
        "struct Pair { float first, second; };\nnamespace mine { const int e = 3; }\n"
        + change("by * x[i]", "a + b[0] + c + d[1] + mine::e")
    ),
    "inline PTX in a macro that nobody uses": '#define LANE(r) asm("mov.u32 %0, %laneid;" : "=r"(r))\n' + SCALE,
    "a loop that waits": before_guard("while (atomicAdd(y, 0.0f) > 1) ;"),
}  # fmt: skip


def complaint(text, **options):
    with pytest.raises(NanoEulerError) as caught:
        cuda.module(text, where="cpu", **options)
    return caught.value


def check(error, text, line, words):
    told = str(error)
    assert words in told, told
    assert not NOISE.search(told) and not re.search("[‘’]", told.split("\n")[0]), told
    assert len(told) < 400 and max(map(len, told.split("\n"))) < 240, told
    if not line:
        return
    assert f"line {line}:" in told.split("\n")[0], told
    assert text.split("\n")[line - 1].strip() in told, told


@pytest.mark.full(but=["race"])
@pytest.mark.parametrize("mistake", [*SYNTAX, *SUSPECT])
def test_a_text_that_is_wrong(mistake):
    text, line, words = (SYNTAX | SUSPECT)[mistake]
    check(complaint(text), text, line, words)


@pytest.mark.full
@pytest.mark.skipif(nvrtc() is None, reason="the nvidia-cuda-nvrtc wheel is not installed: make oracle")
@pytest.mark.parametrize("mistake", SYNTAX)
def test_the_compiler_of_the_gpu_names_the_same_line(mistake):
    text, line, words = SYNTAX[mistake]
    with pytest.raises(CudaCheckError) as caught:
        signatures(text)
        prepared = prepare("kernel.cu", text, cuda.KERNELS)
        with pytest.raises(AssertionError) as log:
            cubin(text, "sm_80")
        raise first_error(prepared, str(log.value).replace("kernel.cu(", "/home/me/.cupy/0123.cubin.cu("))
    check(caught.value, text, line, words)


@pytest.mark.full(but=["race"])
@pytest.mark.parametrize("mistake", SUSPECT)
def test_a_fast_module_takes_what_compiles(mistake):
    if mistake == "a function without return":
        return  # nothing calls it: the text is sound
    cuda.module(SUSPECT[mistake][0], where="cpu", checked=False)


@pytest.mark.full
@pytest.mark.parametrize("text", HARMLESS.values(), ids=HARMLESS)
def test_a_checked_module_takes_what_is_no_bug(text):
    cuda.module(text, where="cpu")


@pytest.mark.full
def test_the_caret_stands_below_the_place():
    told = str(complaint(change("+ threadIdx", "+ treadIdx"))).split("\n")
    assert told[1][told[2].index("^") :].startswith("treadIdx")


@pytest.mark.full
def test_an_error_in_a_header_names_the_header(tmp_path):
    (tmp_path / "mine.cuh").write_text("#pragma once\n\n__device__ float f(float x) { return x + why; }\n")
    text = prepare("kernel.cu", '#include "mine.cuh"\n' + SCALE, tmp_path)
    log = "kernel.cu:100003:42: error: 'why' was not declared in this scope"
    assert str(first_error(text, log)).startswith("mine.cuh, line 3: 'why' is not declared")
    log = '/home/me/mine.cuh(3): error: identifier "why" is undefined'
    assert str(first_error(text, log)).startswith("mine.cuh, line 3: 'why' is not declared")


@pytest.mark.full
def test_a_log_without_an_error_is_none():
    text = prepare("kernel.cu", SCALE, cuda.KERNELS)
    assert first_error(text, "kernel.cu:2:3: warning: something [-Wsomething]\n") is None
    assert first_error(text, "") is None


@pytest.mark.full
def test_a_compiler_that_speaks_german_is_understood(monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    assert "did you mean 'by'?" in str(complaint(change("by * x", "bye * x")))


# ----------------------------------------------------------------------------------------------------------------
# what compiles and goes wrong


def zeros(n, dtype=np.float32):
    return np.zeros(n, dtype)


# mistake: body of `k` with its parameters before it, grid, block, arguments, words of the message
FINDINGS = {
    "a barrier forgotten": (
        "(const float* x, float* y) { __shared__ float s[64];\n"
        "  s[threadIdx.x] = x[threadIdx.x];\n  y[threadIdx.x] = s[63 - threadIdx.x];\n}",
        1, 64, (zeros(64), zeros(64)),
        ["race: one thread writes, another reads: s[", "line 2:", "line 3:", "the other: thread (", "no __sync"],
    ),
    "a barrier in a branch": (
        "(float* x) {\n  if (threadIdx.x < 32) __syncthreads();\n  x[threadIdx.x] = 2;\n}",
        1, 64, (zeros(64),),
        ["divergent barrier: ", "line 2:", "the other: thread (63,0,0)", "guard the work, not the barrier"],
    ),
    "no guard": (
        "(float* y, int n) {\n  int i = blockIdx.x * blockDim.x + threadIdx.x;\n  y[i] = n;\n}",
        4, 256, (zeros(1000), 1000),
        ["out of bounds: write: y[1000]  (y: float32 of shape (1000,), 1000 elements)",
         "block (3,0,0), thread (232,0,0)", "line 3: y[i] = n;", "the last element is y[999]: is a guard missing"],
    ),
    "one step too many": (
        "(const float* x, float* y, int n) {\n  float s = 0;\n  for (int i = 0; i <= n; i++) s += x[i];\n  *y = s;\n}",
        1, 1, (zeros(10), zeros(1), 10),
        ["out of bounds: read: x[10]", "line 3:", "< meant where <= stands?"],
    ),
    "before the start": (
        "(const float* x, float* y) {\n  int i = threadIdx.x;\n  y[i] = x[i - 1];\n}", 1, 32, (zeros(32), zeros(32)),
        ["out of bounds: read: x[-1]", "thread (0,0,0)", "line 3:", "the first element is x[0]"],
    ),
    "before the start, unsigned": (
        "(const float* x, float* y) {\n  y[threadIdx.x] = x[threadIdx.x - 1];\n}", 1, 32, (zeros(32), zeros(32)),
        ["out of bounds: read: x[4294967295]", "thread (0,0,0)", "line 2:", "the index is unsigned and fell below 0"],
    ),
    "an index too large for int": (
        "(float* x, int n) {\n  int i = n * n + threadIdx.x;\n  x[i] = 1;\n}", 1, 32, (zeros(32), 100_000),
        ["int overflow: 100000 * 100000 is too large for 'int'", "line 2:", "compute large indices as long long"],
    ),
    "an endless loop": (
        "(float* x, int n) {\n  int i = 0;\n  while (i < n) {\n    x[i] = 1;\n  }\n}", 1, 1, (zeros(32), 10),
        ["endless: the launch takes too long", "thread (0,0,0)", "does its condition ever become false?"],
    ),
    "shared memory without its size": (
        "(float* x) {\n  extern __shared__ float s[];\n  s[threadIdx.x] = x[threadIdx.x];\n}", 1, 32, (zeros(32),),
        ["out of bounds: write: s[0]", "line 3:", "the launch gives s its size: shared_mem, in bytes"],
    ),
    "shared memory that nobody wrote": (
        "(float* x) {\n  __shared__ float s[64];\n  __syncthreads();\n  x[threadIdx.x] = s[threadIdx.x];\n}",
        1, 32, (zeros(32),), ["uninitialised: shared memory is read before", "line 4:", "which thread was to write it"],
    ),
    "a sum without an atomic": (
        "(const float* x, float* sum) {\n  *sum += x[threadIdx.x];\n}", 1, 32, (zeros(32), zeros(1)),
        ["race: ", "sum[0]", "line 2:", "the other: thread (", "atomicAdd does it in one step"],
    ),
    "the same from two blocks": (
        "(const float* x, float* sum) {\n  *sum += x[blockIdx.x];\n}", 2, 1, (zeros(32), zeros(1)),
        ["race: ", "sum[0]", "a thread of another block, line 2:", "use atomicAdd, or give every block its own place"],
    ),
    "a shuffle in a branch": (
        "(float* x) {\n  float v = x[threadIdx.x];\n  if (threadIdx.x < 16)\n"
        "    v += __shfl_down_sync(0xffffffff, v, 8);\n  x[threadIdx.x] = v;\n}",
        1, 32, (zeros(32),),
        ["a shuffle reads from a lane that takes no part in it", "line 4:", "is the call inside a branch?"],
    ),
    "a pointer that points nowhere": (
        "(float* x) {\n  float* p = nullptr;\n  p[threadIdx.x] = x[0];\n}", 1, 32, (zeros(32),),
        ["out of bounds: write through a null pointer", "line 3:", "was not set to an array"],
    ),
    "a float4 at an odd place": (
        "(float* x) {\n  ((float4*)(x + 1))[threadIdx.x].x = 1;\n  float4 v = *(float4*)(x + 1);\n  x[0] = v.x;\n}",
        1, 1, (zeros(32),),
        ["misaligned: 16 bytes at once need an address that is a multiple of 16: x[1]\n", "line 2:"],
    ),
    "an index that the compiler judges": (
        "(float* x) {\n  __shared__ float t[4][16];\n  t[(int)x[2]][threadIdx.x + 1] = 3;\n}",
        1, 16, (zeros(32),),
        ["out of bounds: index 16 of an array 'float [16]': t[(int)x[2]][threadIdx.x + 1]\n", "thread (15,0,0)",
         "line 3:"],
    ),
    "a long finding": (
        "(unsigned* x) {\n  if (threadIdx.x < 16) x[threadIdx.x] = __ballot_sync(0xffffffff, 1);\n"
        "  else x[threadIdx.x] = __any_sync(0xffffffff, 1);\n}",
        1, 32, (zeros(32, np.uint32),),
        ["warp function: lanes of one warp meet at different warp functions: ", "\n    ", "__any_sync (line 3, mask"],
    ),
    "a barrier in a function": (
        "(float* x);\n__device__ void wait() { __syncthreads(); }\n"
        'extern "C" __global__ void k(float* x) {\n  if (threadIdx.x < 32) wait();\n  x[threadIdx.x] = 2;\n}',
        1, 64, (zeros(64),), ["line 2:", "called in line 4: if (threadIdx.x < 32) wait();", "the other: thread ("],
    ),
    "a barrier by two calls": (
        "(float* x);\n__device__ void wait() { __syncthreads(); }\n"
        'extern "C" __global__ void k(float* x) {\n  if (threadIdx.x < 32)\n    wait();\n  else\n    wait();\n}',
        1, 64, (zeros(64),), ["line 2:", "called in line 7: wait();", "the other in line 5: wait();"],
    ),
    "an index past a table": (
        "(float* x) {\n  float w[3] = {1, 2, 3};\n  for (int j = 0; j <= 3; j++) x[threadIdx.x] = w[j];\n}",
        1, 1, (zeros(64),), ["index 3 of an array 'float [3]'", "line 3:", "the last element is [2]: is a guard"],
    ),
    "one place for all": (
        "(float* x, float* y) {\n  if (x[threadIdx.x] > y[0]) y[0] = x[threadIdx.x];\n}",
        1, 32, (np.arange(32, dtype=np.float32), zeros(1)),
        ["race: ", "y[0]", "line 2:", "all threads meet in this one place: let one of them do it"],
    ),
    "a lock without fences": (
        "(float* y, int* lock) {\n  while (atomicCAS(lock, 0, 1)) ;\n  y[0] = y[0] + 1;\n  atomicExch(lock, 0);\n}",
        4, 1, (zeros(1), zeros(1, np.int32)), ["race: ", "y[0]", "line 3:", "behind a lock, __threadfence() follows"],
    ),
    "a volatile flag without fences": (
        "(float* y) {\n  __shared__ volatile int ready;\n  __shared__ float v;\n"
        "  if (threadIdx.x == 0) ready = 0;\n  __syncthreads();\n  if (threadIdx.x == 0) { v = 3; ready = 1; }\n"
        "  else { while (!ready) ; y[threadIdx.x] = v; }\n}",
        1, 64, (zeros(64),), ["race: one thread writes, another reads: ready\n", "line 6:", "volatile orders nothing"],
    ),
    "shared memory that no card has": (
        "(float* x) {\n\n  __shared__ float tile[256][256];\n  tile[0][0] = x[0];\n}",
        1, 1, (zeros(1),), ["take 262144 bytes with tile", "line 3: __shared__ float tile", "does a smaller tile do?"],
    ),
    "a division by zero": (
        "(int* x, int n) {\n  x[threadIdx.x] = 7 / n;\n}", 1, 32, (zeros(32, np.int32), 0),
        ["integer division of 7 by zero", "line 2:"],
    ),
    "a function that calls itself": (
        "(int* x, int n);\n__device__ int f(int n) {\n  return n < 0 ? 0 : f(n + 1) + 1;\n}\n"
        'extern "C" __global__ void k(int* x, int n) {\n  x[0] = f(n);\n}',
        1, 1, (zeros(1, np.int32), 0), ["stack is full: endless recursion", "line 2:", "no recursion"],
    ),
}  # fmt: skip


@pytest.mark.full(but=["guard"])
@pytest.mark.parametrize("mistake", FINDINGS)
def test_a_kernel_that_goes_wrong(mistake):
    text, grid, block, args, words = FINDINGS[mistake]
    kernel = cuda.module('extern "C" __global__ void k' + text, where="cpu")["k"]
    with pytest.raises(cuda.KernelError) as caught:
        kernel(grid, block, args, seconds=0.3)
    told = str(caught.value)
    for word in ("in kernel k, block (", "line ", *words):
        assert word in told, told
    assert not NOISE.search(told) and "0x" not in told.replace("0xffffffff", ""), told
    assert len(told.split("\n")) <= 7 and max(map(len, told.split("\n"))) <= 95, told


@pytest.mark.full
@pytest.mark.parametrize(
    "name, words",
    [("k", "got k: name its"), ("k<float>", "<typename T, int N>, got k<float>"), ("k<4, 4, 4>", "as in k<...>"),
     ("l<4>", "the text holds no template l, found k")],
)  # fmt: skip
def test_a_template_named_wrongly(name, words):
    text = "template <typename T, int N>\n__global__ void k(T* x) { x[0] = N; }\n"
    assert words in str(complaint(text, instantiate=(name,)))


@pytest.mark.full
def test_the_magic_names_an_open_quote():
    with pytest.raises(NanoEulerError, match="no closing quotation; it takes --fast"):
        magic._options("-i 'k<4>")


@pytest.mark.full
def test_the_same_finding_has_the_same_words_each_time():
    """A notebook's stored output is compared with the next run's: no address may stand in it."""
    text = 'extern "C" __global__ void k(float* x) { x[threadIdx.x + 100000000] = 1; }'
    told = set()
    for size in (32, 1_000_000):
        with pytest.raises(cuda.KernelError, match="write at an address that is in no array") as caught:
            cuda.module(text, where="cpu")["k"](1, 32, (zeros(size),))
        told.add(str(caught.value))
    assert len(told) == 1
