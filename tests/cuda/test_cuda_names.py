# ruff: noqa: E501 -- a kernel's text stays on its line
"""A kernel's text may use every name that CUDA does not: what the headers of the CPU define for themselves stays theirs.

The names are all words of the headers as the compiler sees them; NVRTC tells which of them CUDA knows.
"""

import re
import subprocess

import numpy as np
import pytest
from test_nvrtc import cubin, nvrtc

from cudacheck.compiler import INCLUDE, find_compiler
from nanoeuler_lib import cuda

pytestmark = [
    pytest.mark.full,
    pytest.mark.compiler,
    pytest.mark.skipif(nvrtc() is None, reason="the nvidia-cuda-nvrtc wheel is not installed: make oracle"),
]

INCLUDES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuda_pipeline.h>\n#include <nanoeuler.cuh>\n"
KEYWORDS = set(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const const_cast constexpr
    continue assert printf decltype default defined delete define do double dynamic_cast elif else endif enum error explicit extern false
    float for friend goto if ifdef ifndef include inline int line long mutable namespace new noexcept not not_eq nullptr
    operator or or_eq pragma private protected public register reinterpret_cast return short signed sizeof static
    static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename undef union
    unsigned using virtual void volatile wchar_t while xor xor_eq final override concept requires export""".split()
)
K = 'extern "C" __global__ void k(float* x) { *x = 1; }\n'


def free_names(includes):
    """The words of the headers that are neither reserved to the compiler nor known to CUDA."""
    command = [*find_compiler(), "-std=c++17", "-E", "-dD", "-DCHECKED", f"-I{INCLUDE / 'cpu'}", f"-I{INCLUDE}"]
    command += ["-x", "c++", "-"]
    source = f'#include "device.h"\n{includes}'
    text = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    text = "".join(part for part in re.split(r"^(?=# \d+ )", text, flags=re.M) if str(INCLUDE) in part.split("\n")[0])
    words = set(re.findall(r"\b[A-Za-z_]\w*", re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)))
    words = sorted(w for w in words - KEYWORDS if "__" not in w and not re.match(r"_[A-Z]|NANOEULER_|nanoeuler_", w))
    return [word for start in range(0, len(words), 90) for word in unknown(words[start : start + 90], includes)]


def unknown(words, includes):
    """Those that NVRTC does not know; it tells of at most 100 errors."""
    uses = "".join(f"  {word};\n" for word in words)
    try:
        cubin(f"{includes}__global__ void uses() {{\n{uses}}}\n", "sm_90")
    except AssertionError as log:
        return [word for word in words if f'identifier "{word}" is undefined' in str(log)]
    return []


@pytest.fixture(scope="module", params=["", INCLUDES], ids=["alone", "with headers"])
def names(request):
    found = free_names(request.param)
    assert len(found) > 100 and {"barrier", "RAW", "launch", "runtime"} <= set(found)
    return request.param, found


USES = {
    "function": "__device__ float NAME(float a, int b) { return a + b; }",
    "function of an int": "__device__ void NAME(int line) {}",
    "variable": "__device__ int NAME;",
    "type": "struct NAME { float f; };",
    "macro": "#define NAME(a) ((a) + 1)",
    "kernel": 'extern "C" __global__ void NAME(float* q) { *q = 1; }',
    "kernel with overloads": "__global__ void NAME(const char* q, int n) {}",
}


@pytest.mark.parametrize("use", USES)
def test_a_name_of_the_headers_is_free(names, use):
    includes, found = names
    text = includes + "\n".join(USES[use].replace("NAME", name) for name in found if name != "k")
    module = cuda.module(f"{text}\n{K}", where="cpu")
    assert "k" in list(module)


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "fast"])
def test_variables_may_be_called_as_functions_of_c(checked):
    names = "free calloc realloc exit abort read write sigaction mmap vsnprintf pthread_self".split()
    text = "".join(f"__device__ int {name} = {i};\n" for i, name in enumerate(names)) + "__device__ int raise[2];"
    body = f'*x = {" + ".join(names)} + raise[1]; printf("here %d\\n", 3);'
    x = np.zeros(1, np.float32)
    cuda.module(text + K.replace("*x = 1;", body), where="cpu", checked=checked)["k"](1, 1, (x,))
    assert x[0] == sum(range(len(names)))


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "fast"])
def test_a_kernel_may_be_called_as_a_function_of_c(checked):
    """It must not take the place of the function that the runtime calls."""
    for name in "read write malloc random exit index select signal clone memcmp".split():
        text = K.replace(" k(", f" {name}(").replace("*x = 1;", '*x = 1; printf("here %d\\n", 3); __syncthreads();')
        x = np.zeros(64, np.float32)
        cuda.module(text, where="cpu", checked=checked)[name](1, 1 if checked else 32, (x,))
        assert x[0] == 1
