"""Descriptions of matrices for Hopper's Tensor Memory Accelerator (TMA): the `TensorMap` of hopper.cuh."""

import ctypes as C
import functools

import numpy as np

from nanoeuler_lib.errors import NanoEulerError

# Values of CU_TENSOR_MAP_DATA_TYPE_... in cuda.h. For float32 it is the TF32 type: TMA then rounds to TF32 during the
# copy, whereas wgmma would truncate.
_KINDS = {"float16": 6, "bfloat16": 9, "uint16": 9, "float32": 11}
_SWIZZLE_128, _PROMOTE_256 = 3, 3  # CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B
_ROW = 128  # bytes per row of a box


def tensor_map(matrix, rows: int) -> dict:
    """Return a kernel's TensorMap argument for a matrix that `copy_tile` copies in boxes of `rows` rows of 128 bytes.

    matrix: [any, K], or several matrices [any, any, K], 16-bit numbers (uint16 stands for bfloat16) or float32, which
    is rounded to TF32 by the copy; contiguous, beginning at a multiple of 16 bytes, with rows of a multiple of 16
    bytes. rows: 1 to 256. A box lies in one matrix, is swizzled as `wgmma_tile` of hopper.cuh expects, and its part
    outside the matrix is filled with zeros. For a NumPy array, which TMA never reads, the words are 0. Raises
    NanoEulerError for a matrix that TMA does not support. (CUDA driver API, cuTensorMapEncodeTiled.)
    """
    _check(matrix, rows)
    words = np.zeros(16 + 8, np.uint64)
    words = words[-words.ctypes.data % 64 // 8 :][:16]  # the driver requires an address that is a multiple of 64
    if isinstance(matrix, np.ndarray):
        return {"words": words}
    rank, sizes, strides = matrix.ndim, matrix.shape[::-1], matrix.strides[-2::-1]  # the columns first, for the driver
    box = (_ROW // matrix.itemsize, rows, 1)[:rank]
    failed = _driver().cuTensorMapEncodeTiled(
        C.c_void_p(words.ctypes.data), _KINDS[str(matrix.dtype)], rank, C.c_void_p(matrix.data.ptr),
        (C.c_uint64 * rank)(*sizes), (C.c_uint64 * (rank - 1))(*strides), (C.c_uint32 * rank)(*box),
        (C.c_uint32 * rank)(*[1] * rank), 0, _SWIZZLE_128, _PROMOTE_256, 0,
    )  # fmt: skip
    if failed:
        raise NanoEulerError(f"the driver refused a TensorMap of {matrix.dtype} {matrix.shape} with error {failed}")
    return {"words": words}


def _check(matrix, rows: int) -> None:
    if getattr(matrix, "ndim", 0) not in (2, 3) or not matrix.size or str(matrix.dtype) not in _KINDS:
        got = f"{matrix.dtype} {matrix.shape}" if hasattr(matrix, "shape") else type(matrix).__name__
        raise NanoEulerError(f"a TensorMap's array must be a matrix of {' or '.join(_KINDS)}, or several, got {got}")
    if not matrix.flags.c_contiguous or matrix.shape[-1] * matrix.itemsize % 16:
        raise NanoEulerError(
            f"a TensorMap's rows must be contiguous and of a multiple of 16 bytes, got {matrix.dtype} {matrix.shape} "
            f"with strides {matrix.strides}"
        )
    if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= 256:
        raise NanoEulerError(f"a TensorMap's box must have 1 to 256 rows, got {rows!r}")


@functools.cache
def _driver() -> C.CDLL:
    try:
        return C.CDLL("libcuda.so.1")
    except OSError as error:
        raise NanoEulerError(f"a TensorMap requires the CUDA driver: {error}") from None
