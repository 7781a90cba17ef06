"""Launches that may begin while the one before them still runs: CUDA's programmatic dependent launch.

A launch takes a microsecond to begin, and its first reads take another. If what it reads first (weights, say) is not
written by the launch before it, both can happen before that launch ends. CuPy launches no kernel with this attribute,
so the driver is called here. Compute capability 9.0 and later; CUDA Programming Guide, "Programmatic Dependent Launch
and Synchronization".
"""

import ctypes
import functools
import sys

import numpy as np

from nanoeuler_lib.errors import NanoEulerError

PROGRAMMATIC_STREAM_SERIALIZATION = 6  # of CUlaunchAttributeID
DRIVER = 12030  # the first one that keeps such launches in a graph


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, whose value is a union of 64 bytes."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_int * 15),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_mem", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    )  # fmt: skip


@functools.cache
def overlaps() -> bool:
    """Whether the card and its driver can."""
    import cupy

    new = int(cupy.cuda.Device().compute_capability) >= 90
    return new and cupy.cuda.runtime.driverGetVersion() >= DRIVER


@functools.cache
def _driver():
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


class OverlappingLaunch:
    """A launch of a CuPy kernel with the attribute: call it to launch on the current stream.

    function: a cupy.RawKernel; grid, block: three numbers each; values: as `Kernel.bind` checked them.
    """

    def __init__(self, name, function, grid, block, values, shared_mem):
        self.name, self.grid, self.block, self.shared_mem = name, grid, block, shared_mem
        self.function, self.values = function.kernel.ptr, values  # which keep the arrays alive
        self._numbers = [
            np.array(v.data.ptr, np.uint64) if hasattr(v, "data") and hasattr(v.data, "ptr") else np.asarray(v)
            for v in values
        ]
        self._arguments = (ctypes.c_void_p * len(values))(*(number.ctypes.data for number in self._numbers))
        self._attribute = _Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1)
        self._config = _Config(
            (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), shared_mem, None,
            ctypes.pointer(self._attribute), 1,
        )  # fmt: skip

    def __call__(self) -> None:
        import cupy

        self._config.stream = cupy.cuda.get_current_stream().ptr
        status = _driver().cuLaunchKernelEx(
            ctypes.byref(self._config), ctypes.c_void_p(self.function), self._arguments, None
        )
        if status:
            raise NanoEulerError(f"{self.name}: the driver refused the launch with error {status}, expected 0")
