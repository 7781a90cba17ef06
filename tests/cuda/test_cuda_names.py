"""Test that a kernel may use names which the CPU's headers define for themselves, and names of the C library."""

import numpy as np
import pytest

from nanoeuler_lib import cuda

pytestmark = [pytest.mark.full, pytest.mark.compiler]

INCLUDES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuda_pipeline.h>\n#include <nanoeuler.cuh>\n"
# Macros, types, functions, parameters and variables of those headers: words that a kernel is likely to use.
NAMES = ["alone"]
NAMES += """
A B C E F I K M N P S T ASYNC ATOMIC CACHE CLASS CONSTANT DOWN FROM LINE LOAD MAX MIN NAME NORM NUMBER ONE PAIR RAW
READ REDUCE SHUFFLE SINE SIZES SQRT STORE STRING SUM TO TRANS TWO UP UPDATE WARP WHOLE WORDS WRITE XOR Add And
Bits16 Block Change Count Fiber Kernel Layout Long Match Max Min Operation Sequence Shared Signature Sum Variable
Vote Warp accumulator address argument arguments array atomic barrier bits block both by bytes call caller
change column columns condition config count_flops dot element eq expected exponent fail fence format fragment from
given global got gt half_way high host how kernel kind lane lanes launch layout least length load lost low mask
matrix_a matrix_b message middle mine more most name named_barrier names nanoseconds next number object old
operation other others packed part path place predicate print product quotient reduce rest result reversed row
row_major run runtime same selector self shared shuffle stack_base start stride sum thread threads to to_half top
type u uint ull ushort v value vote wait waits warp whole width zeros zone
""".split()
K = 'extern "C" __global__ void k(float* x) { *x = 1; }\n'
USES = {
    "function": "__device__ float NAME(float a, int b) { return a + b; }",
    "variable": "__device__ int NAME;",
    "type": "struct NAME { float f; };",
    "macro": "#define NAME(a) ((a) + 1)",
    "kernel": 'extern "C" __global__ void NAME(float* q) { *q = 1; }',
    "kernel with overloads": "__global__ void NAME(const char* q, int n) {}",
}


@pytest.mark.parametrize("includes", ["", INCLUDES], ids=["alone", "with headers"])
@pytest.mark.parametrize("use", USES)
def test_a_name_of_the_headers_is_free(includes, use):
    text = includes + "\n".join(USES[use].replace("NAME", name) for name in NAMES)
    assert "k" in list(cuda.module(f"{text}\n{K}", where="cpu"))


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "fast"])
def test_kernels_and_variables_may_be_called_as_functions_of_c(checked):
    """Check that such names do not replace the functions that the runtime calls."""
    names, kernels = "free calloc exit abort sigaction mmap vsnprintf".split(), "read write malloc index signal".split()
    text = "".join(f"__device__ int {name} = {i};\n" for i, name in enumerate(names)) + "__device__ int raise[2];\n"
    body = f'*x = {" + ".join(names)} + raise[1]; printf("here %d\\n", 3); __syncthreads();'
    text += "".join(K.replace(" k(", f" {name}(").replace("*x = 1;", body) for name in kernels)
    module = cuda.module(text, where="cpu", checked=checked)
    for name in kernels:
        x = np.zeros(64, np.float32)
        module[name](1, 1 if checked else 32, (x,))
        assert x[0] == sum(range(len(names)))
