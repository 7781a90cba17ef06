"""Matrix products for the engine: cuBLAS on the GPU, NumPy on the CPU, one call for both.

    launch = product(c, a, b, transpose_a=True, add=True)     # bound once
    launch()                                                  # c += a^T b

Matrices are row-major, of float32 or of bfloat16 as its bits (uint16); sums are float32 in every case. Rows may lie
further apart than they are long, as in a view of some columns.
"""

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from nanoeuler_lib.errors import NanoEulerError


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """The bits of bfloat16 numbers (uint16), each the nearest to a float32; of two as near the one that ends in 0."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    nearest = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), nearest)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """The float32 numbers that bits of bfloat16 stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Product:
    """c (+)= op(a) op(b), ready to be called."""

    c: Any
    a: Any
    b: Any
    transpose_a: bool
    transpose_b: bool
    add: bool
    tf32: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N, K."""
        return *self.c.shape, self.a.shape[0 if self.transpose_a else 1]

    def __call__(self) -> None:
        (_cpu if isinstance(self.c, np.ndarray) else _gpu)(self)


def product(
    c, a, b, *, transpose_a: bool = False, transpose_b: bool = False, add: bool = False, tf32: bool = False
) -> Product:
    """A launch of c = op(a) op(b), or of c += op(a) op(b) with `add`.

    c: [M, N], float32 or of the type of a and b; a: [M, K], with transpose_a [K, M]; b: [K, N], with transpose_b
    [N, K], both float32 or both bfloat16 (uint16); tf32: float32 is rounded to TF32 for tensor cores, on the GPU.
    Raises NanoEulerError where shapes, types or strides do not fit.
    """
    rows, inner = a.shape[::-1] if transpose_a else a.shape
    deep, columns = b.shape[::-1] if transpose_b else b.shape
    if inner != deep or c.shape != (rows, columns):
        raise NanoEulerError(f"c [M, N] = a [M, K] b [K, N], got c {c.shape}, a {a.shape}, b {b.shape}")
    kinds = [str(x.dtype) for x in (c, a, b)]
    if kinds[1] not in ("float32", "uint16") or kinds[2] != kinds[1] or kinds[0] not in ("float32", kinds[1]):
        raise NanoEulerError(f"a and b are both float32 or uint16, c of their type or float32, got {kinds}")
    for name, x in (("c", c), ("a", a), ("b", b)):
        if x.strides[1] != x.itemsize or x.strides[0] < x.shape[1] * x.itemsize:
            raise NanoEulerError(f"the numbers of a row of {name} lie side by side, got strides {x.strides}")
    return Product(c, a, b, transpose_a, transpose_b, add, tf32)


def _cpu(p: Product) -> None:
    a, b = (from_bfloat16(x) if x.dtype == np.uint16 else x for x in (p.a, p.b))
    found = (a.T if p.transpose_a else a) @ (b.T if p.transpose_b else b)
    if p.c.dtype == np.uint16:
        p.c[...] = to_bfloat16(found + from_bfloat16(p.c) if p.add else found)
    elif p.add:
        np.add(p.c, found, out=p.c)
    else:
        p.c[...] = found


# Of cuBLAS: cublasOperation_t, cudaDataType, cublasComputeType_t, cublasGemmAlgo_t.
TRANSPOSED = {False: 0, True: 1}
TYPE = {"float32": 0, "uint16": 14}
COMPUTE, COMPUTE_TF32, DEFAULT = 68, 77, -1
FACTORS = np.array([0, 1], np.float32)  # beta and alpha, read by cuBLAS when it launches
WORKSPACE = 32 << 20  # bytes, what NVIDIA advises for Hopper
P, I = ctypes.c_void_p, ctypes.c_int
GEMM_EX = P, I, I, I, I, I, P, P, I, I, P, I, I, P, P, I, I, I, I


class _Cublas:
    """cuBLAS of one card, called through ctypes: CuPy's own call refuses to be captured in a CUDA graph."""

    def __init__(self):
        import cupy
        import cupy_backends.cuda.libs.cublas  # loads the library  # noqa: F401

        self.current_stream, self.stream = cupy.cuda.get_current_stream, None
        self.library = ctypes.CDLL(f"libcublas.so.{cupy.cuda.runtime.runtimeGetVersion() // 1000}")
        self.library.cublasGemmEx.argtypes = GEMM_EX
        self.handle, self.workspace = P(), cupy.empty(WORKSPACE, np.uint8)
        self._call("cublasCreate_v2", ctypes.byref(self.handle))

    def _call(self, name, *arguments):
        if status := getattr(self.library, name)(*arguments):
            raise NanoEulerError(f"{name} returned {status}, expected 0 (cublasStatus_t)")

    def gemm(self, *arguments) -> None:
        """cublasGemmEx on CuPy's current stream."""
        if (stream := self.current_stream().ptr) != self.stream:
            self._call("cublasSetStream_v2", self.handle, P(stream))  # which takes the workspace away
            self._call(
                "cublasSetWorkspace_v2", self.handle, P(self.workspace.data.ptr), ctypes.c_size_t(WORKSPACE)
            )
            self.stream = stream
        self._call("cublasGemmEx", self.handle, *arguments)


@functools.cache
def _cublas(card: int) -> _Cublas:
    return _Cublas()


def _gpu(p: Product) -> None:
    """cuBLAS has matrices by columns: what is c there is c^T here, = op(b)^T op(a)^T."""
    (M, N, K), one = p.shape, FACTORS[1:].ctypes.data
    _cublas(p.c.device.id).gemm(
        TRANSPOSED[p.transpose_b], TRANSPOSED[p.transpose_a], N, M, K, one,
        p.b.data.ptr, TYPE[str(p.b.dtype)], p.b.strides[0] // p.b.itemsize,
        p.a.data.ptr, TYPE[str(p.a.dtype)], p.a.strides[0] // p.a.itemsize,
        one if p.add else FACTORS.ctypes.data, p.c.data.ptr, TYPE[str(p.c.dtype)], p.c.strides[0] // p.c.itemsize,
        COMPUTE_TF32 if p.tf32 else COMPUTE, DEFAULT,
    )  # fmt: skip
