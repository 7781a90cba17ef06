"""Run CUDA kernels on a CPU and check every memory access.

Start with `kernel.py`: its `compile(text)` returns kernels that check their arguments. `source/` parses their text.
`compiler.py` compiles the text to a shared library with the headers of `include/`, and `complaints.py` explains the
compiler's errors. `cpu.py` launches kernels with `runtime.cpp` and `checker.cpp`. `findings.py` describes bugs in
kernels, and `lines.py` finds their lines. `profile.py` counts memory transactions, and `flops.py` counts operations.
"""

from cudacheck.errors import CudaCheckError
from cudacheck.findings import KernelError
from cudacheck.kernel import compile

__all__ = ["CudaCheckError", "KernelError", "compile"]
