"""A matrix in the GPU's memory as its copy engine of tiles (TMA) wants it described: the TensorMap of hopper.cuh."""

import ctypes as C
import functools

import numpy as np

from nanoeuler_lib.errors import NanoEulerError

# What cuda.h calls CU_TENSOR_MAP_DATA_TYPE_... TMA rounds float32 to TF32 on the way, which wgmma would only cut off.
_KINDS = {"float16": 6, "bfloat16": 9, "uint16": 9, "float32": 11}
_SWIZZLE_128, _PROMOTE_256 = 3, 3  # CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B
_ROW = 128  # bytes of a row of a box


def tensor_map(matrix, rows: int) -> dict:
    """The argument for a kernel's TensorMap: a matrix that `copy_tile` copies in boxes of `rows` rows of 128 bytes.

    matrix: [any, K], 16-bit numbers (uint16 stands for bfloat16) or float32, which arrives rounded to TF32; contiguous,
    from a multiple of 16 bytes on, a row a multiple of 16 bytes. rows: 1 to 256. A box is swizzled as `wgmma_tile` of
    hopper.cuh says, and what of it lies outside the matrix arrives as zeros. For a NumPy array, which no copy engine
    reads, the words are 0. Raises NanoEulerError for a matrix that TMA does not take. (CUDA driver API,
    cuTensorMapEncodeTiled.)
    """
    _check(matrix, rows)
    words = np.zeros(16 + 8, np.uint64)
    words = words[-words.ctypes.data % 64 // 8 :][:16]  # the driver wants a multiple of 64 bytes
    if isinstance(matrix, np.ndarray):
        return {"words": words}
    height, width = matrix.shape
    failed = _driver().cuTensorMapEncodeTiled(
        C.c_void_p(words.ctypes.data), _KINDS[str(matrix.dtype)], 2, C.c_void_p(matrix.data.ptr),
        (C.c_uint64 * 2)(width, height), (C.c_uint64 * 1)(width * matrix.itemsize),
        (C.c_uint32 * 2)(_ROW // matrix.itemsize, rows), (C.c_uint32 * 2)(1, 1),
        0, _SWIZZLE_128, _PROMOTE_256, 0,
    )  # fmt: skip
    if failed:
        raise NanoEulerError(f"the driver makes no TensorMap of a {matrix.dtype} matrix {matrix.shape}: error {failed}")
    return {"words": words}


def _check(matrix, rows: int) -> None:
    if getattr(matrix, "ndim", 0) != 2 or not matrix.size or str(matrix.dtype) not in _KINDS:
        got = f"{matrix.dtype} {matrix.shape}" if hasattr(matrix, "shape") else type(matrix).__name__
        raise NanoEulerError(f"a TensorMap is of a matrix of {', '.join(_KINDS)}, got {got}")
    if not matrix.flags.c_contiguous or matrix.shape[1] * matrix.itemsize % 16:
        raise NanoEulerError(
            f"a TensorMap wants contiguous rows of a multiple of 16 bytes, got {matrix.dtype} {matrix.shape} with "
            f"strides {matrix.strides}"
        )
    if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= 256:
        raise NanoEulerError(f"a box of a TensorMap has 1 to 256 rows, got {rows!r}")


@functools.cache
def _driver() -> C.CDLL:
    try:
        return C.CDLL("libcuda.so.1")
    except OSError as error:
        raise NanoEulerError(f"a TensorMap takes the CUDA driver: {error}") from None
