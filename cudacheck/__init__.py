"""Run CUDA kernels on a CPU with every access checked.

Start with `kernel.py`: `compile(text)`, and kernels that check their arguments. `source/` reads a kernel's text without
a compiler. `compiler.py` compiles it to a shared library with the headers of `include/`, and `complaints.py` words the
compiler's errors. `cpu.py` launches it with `runtime.cpp` and `checker.cpp`. `findings.py` and `lines.py` describe the
bugs that were found and name their lines; `profile.py` and `flops.py` count. `errors.py` defines the exception.
"""

from cudacheck.errors import CudaCheckError
from cudacheck.findings import KernelError
from cudacheck.kernel import compile

__all__ = ["CudaCheckError", "KernelError", "compile"]
