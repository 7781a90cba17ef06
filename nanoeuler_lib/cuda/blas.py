"""Matrix products for the engine, by cuBLASLt on the GPU and by NumPy on the CPU, with the same call.

    launch = product(c, a, b, transpose_a=True, add=True)     # bound once
    launch()                                                  # c += a^T b
    product(d, a, b, alpha=2.0, plus=c, beta=-3.0)()          # d = 2 a b - 3 c

Matrices are row-major, in float32, float16 or in bfloat16 stored as uint16; sums are always float32. Rows need not be
adjacent, as in a view of some columns. An array with three axes is a stack of matrices, which one launch multiplies.
"""

import ctypes
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler_lib.errors import NanoEulerError


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Round float32 numbers to the nearest bfloat16 (ties to even) and return their bits as uint16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    nearest = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), nearest)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Convert the bits (uint16) of bfloat16 numbers to float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Product:
    """Compute c = alpha op(a) op(b) + beta plus when called, where op transposes or does nothing; see `product`."""

    c: Any
    a: Any
    b: Any
    transpose_a: bool
    transpose_b: bool
    plus: Any
    tf32: bool
    alpha: float = 1.0
    beta: float = 1.0
    small_clusters: bool = False

    @property
    def add(self) -> bool:
        """Whether the product is added to the present contents of c."""
        return self.plus is self.c

    @property
    def shape(self) -> tuple[int, int, int]:
        """The sizes (M, N, K) of the product [M, K] x [K, N]."""
        return *self.c.shape[-2:], self.a.shape[-2 if self.transpose_a else -1]

    @property
    def times(self) -> int:
        """The number of products in one launch."""
        return 1 if self.c.ndim == 2 else len(self.c)

    def __str__(self):
        a, b = (f"{x.dtype}{'^T' * t}" for x, t in ((self.a, self.transpose_a), (self.b, self.transpose_b)))
        tf32, sign = " (TF32)" if self.tf32 else "", "+=" if self.add else "="
        if self.plus is not None and not self.add:
            sign = f"x {self.alpha:g} + {self.beta:g} {self.plus.dtype} ="
        times = f"{self.times} times " if self.c.ndim == 3 else ""
        return f"{times}{' x '.join(map(str, self.shape))} of {a} {b} {sign} {self.c.dtype}{tf32}"

    @functools.cached_property
    def _launch(self):
        if isinstance(self.c, np.ndarray):
            return functools.partial(_cpu, self)
        return on_card(self.c.device.id).launch(self)

    def __call__(self) -> None:
        self._launch()

    @property
    def algorithm(self) -> str:
        """The algorithm in words: the numbers that identify cuBLASLt's algorithm, or NumPy and its version."""
        if isinstance(self.c, np.ndarray):
            return f"NumPy {np.__version__}"
        return on_card(self.c.device.id).describe(self._launch.args[0])


def product(
    c,
    a,
    b,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    add: bool = False,
    tf32: bool = False,
    plus=None,
    alpha: float = 1.0,
    beta: float = 1.0,
    small_clusters: bool = False,
) -> Product:
    """Return a launch of c = op(a) op(b), of c += op(a) op(b) with `add`, or of c = alpha op(a) op(b) + beta plus.

    c: [M, N], float32 or of the type of a and b; a: [M, K], or [K, M] with transpose_a; b: [K, N], or [N, K] with
    transpose_b; both float32, float16 or bfloat16 (uint16). In a stack, each array has an axis [n] before these. plus:
    [M, N], of the type of c, in other memory than c; tf32: on the GPU, round float32 to TF32 for tensor cores;
    small_clusters: choose the algorithm of cuBLASLt with the smallest thread-block clusters. (On an H100 shared with
    another process, a kernel with clusters of eight blocks crashed Muon's update with an illegal instruction within
    seconds; the dump named nvjet_sm90_tst_64x80_64x11_4x2_h_bx_NNT.) Raises NanoEulerError if shapes, types or strides
    do not fit.
    """
    rows, inner = a.shape[-1:-3:-1] if transpose_a else a.shape[-2:]
    deep, columns = b.shape[-1:-3:-1] if transpose_b else b.shape[-2:]
    stack = c.shape[:-2]
    if inner != deep or c.shape[-2:] != (rows, columns) or not (a.shape[:-2] == b.shape[:-2] == stack):
        raise NanoEulerError(f"shapes must be c [M, N] = a [M, K] b [K, N], got c {c.shape}, a {a.shape}, b {b.shape}")
    kinds = [str(x.dtype) for x in (c, a, b)]
    if kinds[1] not in TYPE or kinds[2] != kinds[1] or kinds[0] not in ("float32", kinds[1]):
        types = "float32, float16 or uint16"
        raise NanoEulerError(f"a and b must both be {types}, and c of their type or float32, got {kinds}")
    if plus is not None and (add or plus.shape != c.shape or plus.dtype != c.dtype):
        got = f"{plus.dtype} {plus.shape}, add={add}"
        raise NanoEulerError(f"plus must be {kinds[0]} {c.shape}, as c, and given without add, got {got}")
    for name, x in (("c", c), ("a", a), ("b", b), *((("plus", plus),) if plus is not None else ())):
        if x.strides[-1] != x.itemsize or x.strides[-2] < x.shape[-1] * x.itemsize:
            raise NanoEulerError(f"the numbers of a row of {name} must be contiguous, got strides {x.strides}")
    return Product(c, a, b, transpose_a, transpose_b, c if add else plus, tf32, alpha, beta, small_clusters)


def _cpu(p: Product) -> None:
    a, b, plus = (None if x is None else _as_float32(x) for x in (p.a, p.b, p.plus))
    a, b = (x.swapaxes(-1, -2) if turned else x for x, turned in ((a, p.transpose_a), (b, p.transpose_b)))
    with np.errstate(over="ignore", invalid="ignore"):  # a number too large for float16 becomes infinite, as on a GPU
        result = np.float32(p.alpha) * (a @ b)
        if plus is not None:
            result += np.float32(p.beta) * plus
        p.c[...] = to_bfloat16(result) if p.c.dtype == np.uint16 else result


def _as_float32(x):
    return from_bfloat16(x) if x.dtype == np.uint16 else x.astype(np.float32, copy=False)


# Constants of cuBLASLt: cudaDataType, cublasComputeType_t, and attributes of a product, a layout and a search.
TYPE = {"float32": 0, "float16": 2, "uint16": 14}
COMPUTE, COMPUTE_TF32, SCALE = 68, 77, TYPE["float32"]
TRANSA, TRANSB = 3, 4
BATCH_COUNT, BATCH_OFFSET = 5, 6  # of a layout: the matrices in a stack, and the distance of two in numbers
MAX_WORKSPACE_BYTES, MIN_ALIGNMENT = 1, (5, 6, 7, 8)  # the alignments are those of A, B, C and D
WORKSPACE = 32 << 20  # bytes, as NVIDIA recommends for Hopper
CANDIDATES = 8  # algorithms that we ask cuBLASLt for; it returns them by its own estimate of their speed
# attributes of an algorithm, uint32 each: its number, its tile, its splits of K, its pipeline stages
WHICH = {"algorithm": 0, "tile": 1, "splits": 2, "stages": 6}
# the attribute for an algorithm's cluster shape, and the number of blocks for each of its values
CLUSTER, BLOCKS = 8, {0: 1, 2: 1, 3: 2, 5: 2, 4: 4, 6: 4, 8: 4, 7: 8, 9: 8}
# by GPU and cuBLASLt version: the index of the candidate measured as the fastest (by `benchmarks/gpu_products.py`)
CHOSEN = Path(__file__).with_name("products.json")


class _Candidate(ctypes.Structure):
    """Mirror the C struct cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


class _CublasLt:
    """Call cuBLASLt on one GPU through ctypes, because CuPy's own products cannot be captured in a CUDA graph."""

    def __init__(self):
        import cupy
        import cupy_backends.cuda.libs.cublas  # loads the libraries  # noqa: F401

        self.stream = cupy.cuda.get_current_stream
        self.library = ctypes.CDLL(f"libcublasLt.so.{cupy.cuda.runtime.runtimeGetVersion() // 1000}")
        self.library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.workspace = cupy.empty(WORKSPACE, np.uint8)
        self.handle = self._create("cublasLtCreate")
        self.card = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
        known = json.loads(CHOSEN.read_text("utf-8")).get(self.card, {})
        self.version = int(self.library.cublasLtGetVersion())
        self.chosen = known.get("fastest", {}) if known.get("cublaslt") == self.version else {}

    def _call(self, name, *arguments):
        if status := getattr(self.library, name)(*arguments):
            raise NanoEulerError(f"{name} failed with cublasStatus_t {status}")

    def _create(self, name, *arguments):
        handle = ctypes.c_void_p()
        self._call(name, ctypes.byref(handle), *arguments)
        return handle

    def _set(self, name, what, attribute, value):
        self._call(name, what, ctypes.c_int(attribute), ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def _layout(self, x):
        """Describe a matrix to cuBLASLt, which is column-major, so that x appears there as x^T."""
        rows, columns = map(ctypes.c_uint64, x.shape[-2:])
        pitch = ctypes.c_int64(x.strides[-2] // x.itemsize)
        layout = self._create("cublasLtMatrixLayoutCreate", ctypes.c_int(TYPE[str(x.dtype)]), columns, rows, pitch)
        if x.ndim == 3:
            apart = ctypes.c_int64(x.strides[0] // x.itemsize)
            self._set("cublasLtMatrixLayoutSetAttribute", layout, BATCH_COUNT, ctypes.c_int32(len(x)))
            self._set("cublasLtMatrixLayoutSetAttribute", layout, BATCH_OFFSET, apart)
        return layout

    def algorithms(self, p: "Product") -> list[Callable[[], None]]:
        """Return launches that compute a product, one per algorithm, cuBLASLt's first choice first.

        They compute c^T = op(b)^T op(a)^T, because cuBLASLt is column-major.
        """
        compute = ctypes.c_int(COMPUTE_TF32 if p.tf32 else COMPUTE)
        what = self._create("cublasLtMatmulDescCreate", compute, ctypes.c_int(SCALE))
        for attribute, transposed in ((TRANSA, p.transpose_b), (TRANSB, p.transpose_a)):
            self._set("cublasLtMatmulDescSetAttribute", what, attribute, ctypes.c_int(transposed))
        arrays = p.b, p.a, p.c if p.plus is None else p.plus, p.c
        layouts = [self._layout(x) for x in arrays]
        search = self._create("cublasLtMatmulPreferenceCreate")
        limits = [(MAX_WORKSPACE_BYTES, ctypes.c_uint64(WORKSPACE))]
        limits += [(k, ctypes.c_uint32(_alignment(x.data.ptr))) for k, x in zip(MIN_ALIGNMENT, arrays, strict=True)]
        for attribute, value in limits:
            self._set("cublasLtMatmulPreferenceSetAttribute", search, attribute, value)
        candidates, count = (_Candidate * CANDIDATES)(), ctypes.c_int()
        self._call(
            "cublasLtMatmulAlgoGetHeuristic", self.handle, what, *layouts, search, ctypes.c_int(CANDIDATES), candidates,
            ctypes.byref(count),
        )  # fmt: skip
        candidates = candidates[: count.value]
        if p.small_clusters:
            candidates.sort(key=lambda one: BLOCKS.get(self._cluster(one), 16))
        alpha, beta = ctypes.c_float(p.alpha), ctypes.c_float(0 if p.plus is None else p.beta)
        b, a, plus, c = (ctypes.c_void_p(x.data.ptr) for x in arrays)
        before = (
            self.handle,
            what,
            ctypes.byref(alpha),
            b,
            layouts[0],
            a,
            layouts[1],
            ctypes.byref(beta),
            plus,
            layouts[2],
        )
        before = *before, c, layouts[3]
        space = ctypes.c_void_p(self.workspace.data.ptr), ctypes.c_size_t(WORKSPACE)

        def launch(one):
            self._call("cublasLtMatmul", *before, ctypes.byref(one), *space, ctypes.c_void_p(self.stream().ptr))

        return [functools.partial(launch, one.algorithm) for one in candidates]

    def _cluster(self, one: _Candidate) -> int:
        return self._attribute(one.algorithm, CLUSTER, ctypes.c_uint16)

    def _attribute(self, algorithm, number: int, kind=ctypes.c_uint32) -> int:
        value, written = kind(), ctypes.c_size_t()
        self._call(
            "cublasLtMatmulAlgoConfigGetAttribute", ctypes.byref(algorithm), ctypes.c_int(number),
            ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)), ctypes.byref(written),
        )  # fmt: skip
        return value.value

    def describe(self, algorithm) -> str:
        """Return the numbers that identify an algorithm, in words, with its cluster last."""
        numbers = {name: self._attribute(algorithm, number) for name, number in WHICH.items()}
        numbers["cluster"] = self._attribute(algorithm, CLUSTER, ctypes.c_uint16)
        return ", ".join(f"{name} {number}" for name, number in numbers.items())

    def launch(self, p: "Product") -> Callable[[], None]:
        """Return the launch that was measured as the fastest on this GPU, else cuBLASLt's first choice.

        Raises NanoEulerError if cuBLASLt has no algorithm for the product.
        """
        each = self.algorithms(p)
        if not each:
            raise NanoEulerError(f"cuBLASLt has no algorithm for {p} on {self.card}")
        index = self.chosen.get(str(p).replace("+=", "="), 0)
        return each[index if index < len(each) else 0]


def _alignment(address: int) -> int:
    """Return the largest power of 2 that divides an address, at most 256."""
    return min(address & -address, 256)


@functools.cache
def on_card(number: int) -> _CublasLt:
    """Return the cuBLASLt handle of a GPU, created on the first call."""
    return _CublasLt()
