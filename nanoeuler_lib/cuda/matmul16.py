"""Launch the matrix products of kernels/matmul16.cu, with the grid, block and shared memory of each version."""

import functools
from dataclasses import dataclass

import numpy as np

from nanoeuler_lib.cuda.launch import KERNELS, Launch, Module, hopper, module
from nanoeuler_lib.cuda.tensor_map import tensor_map
from nanoeuler_lib.errors import NanoEulerError

NUMBERS = {"uint16": "__nv_bfloat16", "bfloat16": "__nv_bfloat16", "float16": "__half", "float32": "float"}
ROW = 128  # bytes per row of a tile


@dataclass(frozen=True)
class Version:
    """Describe a version of the product: a kernel of matmul16.cu, a block's tile of c, the stages of its pipeline."""

    kernel: str
    rows: int = 64
    columns: int = 64
    stages: int = 1

    def name(self, a, c) -> str:
        """Return the kernel's name with its template arguments, for matrices of these types."""
        sizes = {
            "matmul16_plain": (),
            "matmul16": (self.rows, self.columns, self.stages),
            "matmul16_wgmma": (self.columns, self.stages),
        }
        types = NUMBERS[str(a.dtype)], NUMBERS[str(c.dtype)]
        return f"{self.kernel}<{', '.join(map(str, types + sizes[self.kernel]))}>"


PLAIN = Version("matmul16_plain")
PIPELINED = Version("matmul16", 128, 128, 3)
WARPGROUPS = Version("matmul16_wgmma", 128, 256, 4)


def bind(a, b, c, version: Version | None = None, *, of: Module | None = None, checked: bool = False) -> Launch:
    """Return a launch of c = a b^T. Chapter 26.

    a: [M, K], b: [N, K], of bfloat16 (or uint16, its bits), float16 or float32, which is multiplied as TF32; c: [M, N]
    of the same type or float32; NumPy arrays run on the CPU, CuPy arrays on the GPU. version: by default the fastest
    that the device supports; of: a compiled module that contains it, instead of matmul16.cu; checked: on the CPU, check
    every memory access. Raises NanoEulerError for other types or shapes.
    """
    _check(a, b, c)
    version = version or (WARPGROUPS if hopper() else PIPELINED)
    name, where = version.name(a, c), "cpu" if isinstance(a, np.ndarray) else "gpu"
    kernel = (of or _compiled(name, where, checked))[name]
    return kernel.bind(*shape(a, b, c, version))


def shape(a, b, c, version: Version) -> tuple:
    """Return grid, block, arguments and bytes of shared memory of a launch. a, b, c: as for `bind`."""
    (M, K), N = a.shape, b.shape[0]
    down, across = -(-M // version.rows), -(-N // version.columns)
    arguments = a, b, c, M, N, K
    shared = version.stages * (version.rows + version.columns) * ROW
    if version.kernel == "matmul16_plain":
        return (across, down), 128, arguments, 0
    if version.kernel == "matmul16":
        return down * across, version.rows * version.columns // 128, arguments, shared
    maps = tensor_map(a, version.rows), tensor_map(b, version.columns)
    return min(down * across, _processors(a)), 384, (*maps, *arguments), shared


def _check(a, b, c) -> None:
    kinds = [str(getattr(x, "dtype", type(x).__name__)) for x in (a, b, c)]
    if kinds[0] not in NUMBERS or kinds[1] != kinds[0] or kinds[2] not in (kinds[0], "float32"):
        raise NanoEulerError(
            f"a and b must both be {' or '.join(NUMBERS)}, and c of their type or float32, got {', '.join(kinds)}"
        )
    shapes = [x.shape for x in (a, b, c)]
    if (
        any(len(shape) != 2 or 0 in shape for shape in shapes)
        or shapes[2] != (len(a), len(b))
        or a.shape[1] != b.shape[1]
    ):
        got = ", ".join(map(str, shapes))
        raise NanoEulerError(f"shapes must be a [M, K], b [N, K] and c [M, N], got {got}")


@functools.cache
def _compiled(name: str, where: str, checked: bool) -> Module:
    return module(KERNELS / "matmul16.cu", where=where, checked=checked, instantiate=(name,))


def _processors(a) -> int:
    """Return the multiprocessors of the GPU that holds an array; 2 on the CPU, so that a block takes several tiles."""
    return 2 if isinstance(a, np.ndarray) else a.device.attributes["MultiProcessorCount"]
