"""A GPU without a GPU: kernels compiled for the processor, run with every access checked, and what that finds.

`kernel.py` is the way in: `compile(text)`, and kernels that check their arguments. `compiler.py` makes a library of a
text, `complaints.py` reads what the compiler says; `cpu.py` launches, with `runtime.cpp` and `checker.cpp` beneath;
`findings.py` and `lines.py` say what went wrong and where; `profile.py` and `flops.py` count.
"""

from cudacheck.errors import CudaCheckError
from cudacheck.findings import Finding, KernelError
from cudacheck.kernel import compile

__all__ = ["CudaCheckError", "Finding", "KernelError", "compile"]
