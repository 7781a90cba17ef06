"""Compile and launch CUDA C++ kernels, on the GPU or, if there is none, on the CPU, with the same source and call.

    source = '''
    extern "C" __global__ void twice(const float* x, float* y, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) y[i] = 2 * x[i];
    }
    '''
    kernels = cuda.module(source)
    x = cuda.array_module().arange(1000, dtype="float32")
    y = cuda.array_module().empty_like(x)
    kernels["twice"]((4,), (256,), (x, y, x.size))

On the GPU, CuPy compiles and launches the kernels. On the CPU, the host's C++ compiler (g++, clang, or
`pip install ziglang`) compiles them, and `runtime.cpp` runs the blocks over NumPy arrays. There every load and store
is checked, unless `checked=False` asks for speed. A bug raises `KernelError`, whose `Finding` names the kernel, block,
thread and line.
"""

from cudacheck.findings import Finding
from nanoeuler_lib.cuda.clock import copy_seconds, median_seconds
from nanoeuler_lib.cuda.launch import (
    KERNELS,
    Kernel,
    KernelError,
    Launch,
    Module,
    array_module,
    describe,
    device,
    hopper,
    module,
)
from nanoeuler_lib.cuda.tensor_map import tensor_map

__all__ = [
    "KERNELS",
    "Finding",
    "Kernel",
    "KernelError",
    "Launch",
    "Module",
    "array_module",
    "copy_seconds",
    "describe",
    "device",
    "hopper",
    "median_seconds",
    "module",
    "tensor_map",
]
