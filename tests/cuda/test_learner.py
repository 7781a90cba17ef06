"""Test the messages that a learner reads after a mistake: its kind, its place and what to look at.

Each mistake is an edit of a sound kernel, with words that the message must contain. The mistakes are roughly in the
order in which learners make them. g++, Clang and the GPU's compiler, NVRTC, find the same mistakes.
"""

import re

import numpy as np
import pytest
from test_cuda_corpus import NOISE
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


def change(old, new):
    assert old in SCALE
    return SCALE.replace(old, new)


def before_guard(line):
    return change(GUARD, f"  {line}\n{GUARD}")


# mistake: text, line, words of the message
SYNTAX = {
    "a name of CUDA misspelt": (change("+ threadIdx", "+ treadIdx"), 2, "is not declared; did you mean 'threadIdx'?"),
    "a variable misspelt": (change("by * x", "bye * x"), 3, "did you mean 'by'?"),
    "a keyword misspelt": (before_guard("__shred__ float s[32];"), 3, "did you mean '__shared__'?"),
    "a parameter's type misspelt": (change("float by", "flot by"), 1, "`by` is a flot; did you mean float?"),
    "a parameter of another kind": (change("float by", "Scale* by"), 1, "a kernel takes pointers and numbers"),
    "a function that does not exist": (change("by * x[i]", "gelu(x[i])"), 3, "'gelu' is not declared"),
    "no such axis": (change("threadIdx.x", "threadIdx.w"), 2, "no member"),
    "a ; missing after a declaration": (change("threadIdx.x;", "threadIdx.x"), 2, "a ; is missing at the end"),
    "a ; missing before }": (change("x[i];", "x[i]"), 3, "a ; is missing at the end of this line"),
    "a ; missing, then a comment": (change(BODY, "  y[i] = 1  // here\n\n  // and\n  y[i] = 2;"), 3, "a ; is missing"),
    "a ; missing after shared memory": (before_guard("__shared__ float s[32]"), 3, "a ; is missing"),
    "a { never closed": (change("x[i];\n}", "x[i];"), 1, "this { is never closed"),
    "a [ never closed": (change("y[i]", "y[i"), 3, "this [ is never closed"),
    "one } too many": (SCALE + "}\n", 5, "this } closes nothing"),
    "a ( never closed": (change("(i < n)", "(i < n"), 3, "this ( is never closed"),
    "__global__ forgotten": (change("__global__ ", ""), 1, 'write: extern "C" __global__ void scale('),
    "nothing": ("", 0, "the text is empty"),
    "infinity": (change("by * x[i]", "-INFINITY"), 3, "'INFINITY' is not available in a kernel: write __int_as_float"),
    "a comment as in Python": (before_guard("# guard"), 3, "preprocess"),
    "a loop as in Python": (change("if (i < n)", "for i in range(n):"), 3, "expected"),
    "a launch from C++": (before_guard("scale<<<1, 32>>>(x, y, by, n);"), 3, "a kernel is launched from Python"),
    "a const array is written": (change("y[i] = by", "x[i] = by"), 3, "const"),
    "an atomic on a value": (change("y[i] = by * x[i]", "atomicAdd(y[i], 1.0f)"), 3, "atomicAdd"),
    "a function defined too late": (
        change("by * x[i]", "twice(x[i])") + "__device__ float twice(float v) { return 2 * v; }\n",
        3, "'twice' is not declared"),
    "an index of three": (change("y[i]", "y[threadIdx]"), 3, "threadIdx is three numbers: write threadIdx.x, .y or .z"),
    "( ) for [ ]": (change("y[i] =", "y(i) ="), 3, "function"),
    "print": (before_guard('print("here");'), 3, "'print' is not available in a kernel: write printf"),
    "a ; missing after a struct": ("struct Pair { float a, b; }\n" + SCALE, 1, "a ; is missing"),
    "shared memory without a size": (before_guard("__shared__ float s[];"), 3, "this __shared__ array has no size"),
    "main": (SCALE + "int main() { return 0; }\n", 5, "here Python is the host"),
    "a variable of the host": ("float by2 = 2;\n" + SCALE, 1, "`by2` is a variable of the host"),
    "a constant inside the kernel": (before_guard("__constant__ float w[2] = {1, 2};"), 3, "outside of functions"),
    "a kernel that calls a kernel": (
        SCALE + change("scale", "other").replace("y[i] = by * x[i]", "scale(x, y, by, n)"),
        7, "`scale` is a kernel, and a kernel cannot call another"),
    "refused code inside a macro": (
        "#define LANES __activemask()\n" + before_guard("by += LANES;"),
        1, "'__activemask' is not available in a kernel"),
    "a pointer to a function": (change("float by", "float (*by)(float)"), 1, "parameter `by` is a function"),
    "a template that is not named": (
        "template <int N>\n" + change('extern "C" ', ""),
        2, "scale is a template: name what to compile, as %%cuda -i 'scale<...>'"),
}  # fmt: skip

# Code that compiles but is nearly always a bug: a checked module refuses it, and a fast module accepts it.
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
    "printf with a wrong type": (before_guard('printf("%d\\n", x[i]);'), 3, "format"),
    "local arrays too large": (
        before_guard("float big[20000];\n  big[i] = 1;"),
        None, "large arrays in shared memory"),
}  # fmt: skip
HARMLESS = {
    "several ifs on a line": change(BODY, "  if (i < n) { y[i] = by; } else if (i == n && n > 0 || n < 0) y[0] = 1;"),
    "int and unsigned": change(BODY, "  for (int k = 0; k < gridDim.x; k++) if (k + i < n) y[k + i] = 1;"),
    "unused variables": change(BODY, "  float unused; int also = 3;"),
    "inline PTX in an unused macro": '#define LANE(r) asm("mov.u32 %0, %laneid;" : "=r"(r))\n' + SCALE,
    "a loop that waits": before_guard("while (atomicAdd(y, 0.0f) > 1) ;"),
}  # fmt: skip


def complaint(text, **options):
    with pytest.raises(NanoEulerError) as caught:
        cuda.module(text, where="cpu", **options)
    return caught.value


def check(error, text, line, words):
    told = str(error)
    assert words in told, told
    assert not line or getattr(error, "finding", None) is None or error.finding.line == line
    assert not NOISE.search(told) and not re.search("nanoeuler_|NE_|[‘’]", told.split("\n")[0]), told
    assert len(told) < 500 and max(map(len, told.split("\n"))) < 240, told
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
        return  # no code calls it, so the text is sound
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
def test_a_compiler_that_speaks_german_is_understood(monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    assert "did you mean 'by'?" in str(complaint(change("by * x", "bye * x")))


@pytest.mark.full
@pytest.mark.parametrize(
    "name, words",
    [("k", "got k: name its"), ("k<float>", "<typename T, int N>, got k<float>"), ("k<4, 4, 4>", "as in k<...>"),
     ("l<4>", "l must be a template of the text, which has k")],
)  # fmt: skip
def test_a_template_named_wrongly(name, words):
    text = "template <typename T, int N>\n__global__ void k(T* x) { x[0] = N; }\n"
    assert words in str(complaint(text, instantiate=(name,)))


@pytest.mark.full
def test_the_same_finding_has_the_same_words_each_time():
    """Check that a finding contains no address, because a notebook's stored output is compared with the next run's."""
    text = 'extern "C" __global__ void k(float* x) { x[threadIdx.x + 100000000] = 1; }'
    told = set()
    for size in (32, 1_000_000):
        with pytest.raises(cuda.KernelError, match="write at an address that is in no array") as caught:
            cuda.module(text, where="cpu")["k"](1, 32, (np.zeros(size, np.float32),))
        told.add(str(caught.value))
    assert len(told) == 1


def test_the_magic_names_an_open_quote():
    with pytest.raises(NanoEulerError, match="o closing quotation"):
        magic._options("-i 'k<4>")
