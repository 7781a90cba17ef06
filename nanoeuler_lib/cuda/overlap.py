"""Launches that may begin while the previous one still runs (CUDA's programmatic dependent launch).

A launch takes about a microsecond to begin, and its first reads take another. If the previous launch does not write the
data that is read first (weights, for example), both can happen before that launch ends. CuPy cannot set this launch
attribute, so this module calls the driver. Requires compute capability 9.0 or later. CUDA Programming Guide,
"Programmatic Dependent Launch and Synchronization".
"""

import ctypes
import functools
import sys

import numpy as np

from nanoeuler_lib.errors import NanoEulerError

PROGRAMMATIC_STREAM_SERIALIZATION = 6  # a value of CUlaunchAttributeID
DRIVER = 12030  # the first driver version that supports such launches in a CUDA graph


class _Attribute(ctypes.Structure):
    """Mirror the C struct CUlaunchAttribute, whose value is a union of 64 bytes."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_int * 15),
    )


class _Config(ctypes.Structure):
    """Mirror the C struct CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_mem", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    )  # fmt: skip


@functools.cache
def overlaps() -> bool:
    """Return whether the GPU and its driver support overlapping launches."""
    import cupy

    return can_overlap(int(cupy.cuda.Device().compute_capability), cupy.cuda.runtime.driverGetVersion())


def can_overlap(capability: int, driver: int = DRIVER) -> bool:
    """Return whether a GPU of this compute capability, times 10, overlaps launches with this version of the driver."""
    return capability >= 90 and driver >= DRIVER


@functools.cache
def _driver():
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


class OverlappingLaunch:
    """Launch a CuPy kernel on the current stream when called; it may begin while the previous launch runs.

    function: a cupy.RawKernel; grid, block: three numbers each; values: the arguments, as checked by `Kernel.bind`;
    shared_mem: bytes of dynamic shared memory.
    """

    def __init__(self, name, function, grid, block, values, shared_mem):
        self.name, self.grid, self.block, self.shared_mem = name, grid, block, shared_mem
        self.function, self.values = function.kernel.ptr, values  # `values` keeps the arrays alive
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
            raise NanoEulerError(f"{self.name}: the driver refused the launch with error {status}")
