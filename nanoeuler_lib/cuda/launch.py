"""The call `module(source)[name](grid, block, args, shared_mem=...)`, which compiles and launches on GPU and CPU alike.

The checker (`cudacheck`) compiles and launches for the CPU; this module does it for the GPU. The checker also checks
the arguments for both: CuPy by itself would silently pass a Python float as an 8-byte double to a kernel that expects a
float.
"""

import functools
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cudacheck import compiler, findings, kernel
from cudacheck.complaints import first_error
from cudacheck.cpu import CpuLaunch
from cudacheck.errors import CudaCheckError
from cudacheck.kernel import SECONDS, SHARED_LIMIT, Launch
from cudacheck.source import Text
from nanoeuler_lib.cuda.overlap import OverlappingLaunch, overlaps
from nanoeuler_lib.errors import NanoEulerError

KERNELS = Path(__file__).parents[1] / "kernels"
ON_CPU = 86  # the compute capability, times 10, whose tiles the CPU runs
CUPY = 14, 2  # the oldest version of CuPy, as in pyproject.toml


class KernelError(findings.KernelError, NanoEulerError):
    """Report a kernel that does not compile, or in which the checker found a bug; `finding` has the details."""


class _BadKernel(CudaCheckError, NanoEulerError):
    """Report a source text or a launch that the checker rejects."""


def _errors_of_ours(function: Callable) -> Callable:
    """Wrap a function so that each error of the checker is a NanoEulerError too."""

    @functools.wraps(function)
    def call(*args, **options):
        try:
            return function(*args, **options)
        except NanoEulerError:
            raise
        except findings.KernelError as error:
            raise KernelError(error.finding) from None
        except CudaCheckError as error:
            raise _BadKernel(str(error)) from None

    return call


@functools.cache
def device() -> str:
    """Return where kernels run: "gpu" if CuPy finds a device, else "cpu".

    The environment variable NANOEULER_DEVICE overrides this. Raises NanoEulerError if its value is not gpu or cpu, or
    is gpu and there is none, and if CuPy is too old.
    """
    wanted = os.environ.get("NANOEULER_DEVICE", "")
    if wanted not in ("", "gpu", "cpu"):
        raise NanoEulerError(f"NANOEULER_DEVICE must be gpu or cpu, got {wanted!r}")
    if wanted == "cpu":
        return "cpu"
    try:
        import cupy

        usable = cupy.cuda.is_available()  # importing CuPy succeeds without a driver
    except ImportError:
        usable = False
    if wanted == "gpu" and not usable:
        raise NanoEulerError("NANOEULER_DEVICE is gpu, but CuPy finds no CUDA device")
    if usable:
        check_cupy()
    return "gpu" if usable else "cpu"


def check_cupy() -> None:
    """Check that CuPy, which must be installed, is new enough. Raises NanoEulerError if it is older than `CUPY`."""
    import cupy

    if tuple(map(int, cupy.__version__.split(".")[:2])) >= CUPY:
        return
    from importlib import metadata

    package = metadata.packages_distributions().get("cupy", ["cupy"])[0]  # such as cupy-cuda12x
    oldest, next_major = f"{CUPY[0]}.{CUPY[1]}", CUPY[0] + 1
    raise NanoEulerError(
        f"CuPy must be {oldest} or newer, got {cupy.__version__}: "
        f"pip install '{package}>={oldest},<{next_major}', then restart Python"
    )


def wanted_arch() -> str:
    """Return the environment variable NANOEULER_ARCH, "" if it is not set. Raises NanoEulerError for unknown values.

    75: use no instruction that compute capability 7.5 lacks; 80: none of Hopper's; 90: all that the GPU has.
    """
    wanted = os.environ.get("NANOEULER_ARCH", "")
    if wanted not in ("", "75", "80", "90"):
        raise NanoEulerError(f"NANOEULER_ARCH must be 75, 80 or 90, got {wanted!r}")
    return wanted


@functools.cache
def hopper() -> bool:
    """Return whether kernels are compiled for sm_90a (for wgmma): true on a GPU of compute capability 9.0.

    The environment variable NANOEULER_ARCH=80 or 75 makes it false there too; the emulation in `hopper.cuh` then
    replaces the Hopper instructions. Raises NanoEulerError as `wanted_arch` does.
    """
    if wanted_arch() in ("75", "80") or device() == "cpu":
        return False
    import cupy

    return cupy.cuda.Device().compute_capability == "90"


def capability() -> int:
    """Return the compute capability, times 10, whose instructions kernels may use (75, 80, 86, ...); 86 on the CPU.

    On a GPU of compute capability 9.0, NANOEULER_ARCH=80 makes it 80; on any newer GPU, 75 makes it 75.
    """
    if device() == "cpu":
        return ON_CPU
    import cupy

    found = int(cupy.cuda.Device().compute_capability)
    if wanted_arch() == "75":
        return min(found, 75)
    return 80 if found == 90 and not hopper() else found


def describe(launch: Launch) -> str:
    """Return a bound launch in words: its kernel, grid, block and bytes of dynamic shared memory."""
    grid, block = (re.sub("( x 1)+$", "", " x ".join(map(str, sides))) for sides in (launch.grid, launch.block))
    return f"{launch.name}, grid {grid}, block {block}, {launch.shared_mem} bytes"


def array_module(where: str | None = None):
    """Return the array module for a device, by default `device()`: NumPy for "cpu", CuPy for "gpu"."""
    if (where or device()) == "cpu":
        return np
    import cupy

    return cupy


def module(
    source: str | Path,
    *,
    where: str | None = None,
    checked: bool = True,
    defines: dict[str, Any] | None = None,
    instantiate: Sequence[str] = (),
) -> "Module":
    """Compile CUDA C++ source code.

    source: the text, or the path of a .cu file; where: "gpu" or "cpu" (default `device()`); checked: on the CPU, check
    every memory access, which is about ten times slower and takes 16 more bytes for each byte touched. Unchecked, a
    race or a wrong index gives wrong numbers without a message, and only a crash or Ctrl-C ends a launch early.
    defines: macros, {"TILE": 32}; instantiate: the template instances to compile, ("matmul<16>",). Raises KernelError
    with the compiler's first error, NanoEulerError for a text without a kernel.
    """
    name, text = "kernel.cu", source
    if isinstance(source, Path):
        name, text = source.name, source.read_text("utf-8")
    return Module(text, (KERNELS,), name, checked, defines, instantiate, where=where or device())


class Module(kernel.Module):
    """Hold a compiled source text: `module["name"]` is a kernel, `list(module)` the names of all kernels."""

    @_errors_of_ours
    def __init__(self, *args, where: str = "cpu"):
        self.where, self.arrays = where, array_module(where)
        super().__init__(*args)

    def _build(self, text: Text, macros: list[str]) -> None:
        if self.where == "gpu":
            self.functions = _compile_for_gpu(self, text, macros)
        else:
            super()._build(text, macros)

    @_errors_of_ours
    def __getitem__(self, name: str) -> "Kernel":
        return Kernel(self, super().__getitem__(name).signature)


class _CpuLaunch(CpuLaunch):
    __call__ = _errors_of_ours(CpuLaunch.__call__)


class Kernel(kernel.Kernel):
    """Launch one kernel: call it with grid, block and arguments, or `bind` these once to launch it often."""

    launch = _CpuLaunch
    __call__ = _errors_of_ours(kernel.Kernel.__call__)
    on_cpu = _errors_of_ours(kernel.Kernel.on_cpu)
    profile = _errors_of_ours(kernel.Kernel.profile)

    @_errors_of_ours
    def bind(
        self,
        grid,
        block,
        args: Sequence,
        shared_mem: int = 0,
        *,
        seconds: float = SECONDS,
        shared_limit: int = SHARED_LIMIT,
        overlap: bool = False,
    ) -> Launch:
        """Check the arguments and return a launch, a function without arguments; see the checker's `Kernel.bind`.

        On the GPU, this also permits the kernel more than 48 KB of shared memory per block if needed. overlap: let the
        launch begin while the previous one on the stream still runs, if the GPU can. The kernel must then call
        `grid_dependency_wait()` (nanoeuler.cuh) before it writes anything or reads what other launches write. Raises
        NanoEulerError for a grid, block or arguments that do not fit the kernel. On the CPU, the launch raises
        KernelError on a bug.
        """
        if self.module.where == "cpu":
            return super().bind(grid, block, args, shared_mem, seconds=seconds, shared_limit=shared_limit)
        grid, block, values = self.check(grid, block, args, shared_mem, seconds, shared_limit)
        function = self.module.functions[self.name]
        static = function.shared_size_bytes
        if static + shared_mem > shared_limit:
            raise NanoEulerError(
                f"{self.name}: shared memory must be at most {shared_limit} bytes per block on this GPU, got "
                f"{static} of __shared__ arrays and {shared_mem} of shared_mem"
            )
        if static + shared_mem > 48 * 1024:
            most = function.max_dynamic_shared_size_bytes  # an earlier launch may have needed more
            function.max_dynamic_shared_size_bytes = max(shared_mem, most)
        if overlap and overlaps():
            return OverlappingLaunch(self.name, function, grid, block, values, shared_mem)
        launch = functools.partial(function, grid, block, tuple(values), shared_mem=shared_mem)
        launch.name, launch.grid, launch.block, launch.shared_mem = self.name, grid, block, shared_mem
        return launch


def _compile_for_gpu(owner: Module, text: Text, macros: list[str]) -> dict:
    """Compile with CuPy and return its functions by name.

    The options contain a digest of the headers, because CuPy caches compiled code by source text and options only.
    """
    import cupy

    digest = hashlib.sha256((compiler.headers() + text.prepared).encode()).hexdigest()[:8]
    options = ("-std=c++17", f"-I{compiler.INCLUDE}", f"-I{KERNELS}", f"-DNANOEULER_HEADERS=0x{digest}")
    if hopper():
        options += ("-arch=sm_90a",)
    if wanted_arch() == "75":  # an -arch would be overridden by CuPy's own, which comes after it
        options += ("-DNANOEULER_ARCH=75",)
    mangled = [s.name for s in owner.signatures.values() if s.mangled]
    options += tuple(f"-D{m}" for m in macros)
    try:
        raw = cupy.RawModule(code=owner.source, options=options, name_expressions=mangled or None)
        return {name: raw.get_function(name) for name in owner.signatures}
    except cupy.cuda.compiler.CompileException as error:
        unread = NanoEulerError(f"{owner.name} does not compile with NVRTC:\n{str(error)[:2000]}")
        raise (first_error(text, str(error)) or unread) from None
