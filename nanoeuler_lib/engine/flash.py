"""FlashAttention: causal grouped-query attention with no T x T matrix in memory. Chapters 27 and 28.

    out, lse = attention(qkv, heads=12, groups=4)               # one call
    launches = forward(out, lse, qkv, heads, groups, scale)     # bound once, to run often: nothing is allocated
    run(launches)

qkv: [B, T, (H + 2 G) C], as one product makes it: at each position H queries, G keys, G values of width C = 32, 64 or
128, after RoPE; head h reads group h // (H // G). out: [B, T, H C]. lse: [B, H, T] float32, the natural logarithm of
the sum of exp(scale q k), for the backward pass. Arrays are NumPy's or CuPy's, of bfloat16 (uint16, too), float16 or
float32.

`ops/reference.py` has the mathematics, `kernels/attention_forward.cu` the kernels; here the tiles are chosen.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.cuda.launch import hopper
from nanoeuler_lib.errors import NanoEulerError

NUMBERS = {"bfloat16": "__nv_bfloat16", "uint16": "__nv_bfloat16", "float16": "__half", "float32": "float"}
WIDTHS = 32, 64, 128
TOGETHER = 32  # groups whose blocks run side by side, so that their keys and values stay in the cache


@dataclass(frozen=True)
class Card:
    """What the choice of a tile depends on. capability: 75, 80, 86, ...; 90 only if wgmma is to be used; shared: the
    bytes of shared memory that a block may have; processors: multiprocessors, on the CPU two."""

    capability: int
    shared: int
    processors: int = 2


@functools.cache
def card(where: str | None = None) -> Card:
    """The GPU that kernels run on; on the CPU one of compute capability 8.6. NANOEULER_ARCH=80 hides Hopper's wgmma."""
    if (where or cuda.device()) == "cpu":
        return Card(86, 99 * 1024)
    import cupy

    gpu = cupy.cuda.Device()
    capability = int(gpu.compute_capability)
    if capability == 90 and not hopper():
        capability = 80
    shared, processors = (gpu.attributes[name] for name in ("MaxSharedMemoryPerBlockOptin", "MultiProcessorCount"))
    return Card(capability, shared, processors)


@dataclass(frozen=True)
class Tile:
    """One instance of a kernel: a block of `warps` warps takes `rows` rows of queries, and `keys` keys at a time."""

    kernel: str
    rows: int
    keys: int
    warps: int
    bytes: int  # of shared memory

    @property
    def threads(self) -> int:
        return 32 * self.warps


def _tile(number: str, cores: bool, width: int, keys: int, warps: int, bands: int, blocks: int) -> Tile:
    arguments = f"{number}, {str(cores).lower()}, {width}, {keys}, {warps}, {bands}, {blocks}"
    rows = 16 * bands * warps
    shared = max(4 * keys, 2 * keys + rows) * width * (4 if number == "float" else 2)
    return Tile(f"attention_forward<{arguments}>", rows, keys, warps, shared)


def _hopper_tile(number: str, width: int, values: int, blocks: int) -> Tile:
    shared = (64 + (2 + values) * 64) * width * 2
    return Tile(f"attention_forward_hopper<{number}, {width}, {values}, {blocks}>", 64, 64, 4, shared)


# By width: keys, warps, rows of a warp / 16 and blocks that share a multiprocessor, of the tile for short texts, which
# takes 48 KB of shared memory at most, and of that for long ones; the longest text that is short. Where one is best for
# all it stands twice. (Chosen on an H200 among three to nine tiles each; benchmarks/gpu_attention.py times the chosen.)
SIXTEEN_BITS = {
    32: ((64, 4, 1, 4), (64, 4, 1, 4), 0),
    64: ((64, 4, 1, 4), (64, 4, 2, 2), 1024),
    128: ((32, 4, 1, 3), (64, 4, 1, 2), 0),
}
TF32 = {
    32: ((32, 4, 1, 4), (32, 4, 2, 2), 256),
    64: ((32, 4, 1, 4), (32, 4, 2, 2), 256),
    128: ((16, 4, 1, 1), (32, 8, 1, 1), 128),
}
PLAIN = {32: ((32, 4, 1, 2),) * 2 + (0,), 64: ((32, 4, 1, 2),) * 2 + (0,), 128: ((16, 4, 1, 1),) * 2 + (0,)}
# By width: tiles of values and blocks that share a multiprocessor, of Hopper's tile of 64 rows and 64 keys.
HOPPER = {64: (2, 4), 128: (1, 3)}


def tile(number: str, width: int, time: int, on: Card, tf32: bool = False) -> Tile:
    """The tile for texts of `time` positions. number: as in NUMBERS; tf32: float32 on tensor cores, rounded to TF32.

    Raises NanoEulerError where the card has no instructions for these numbers.
    """
    cores = number != "float" or tf32
    if cores and on.capability < 80:
        what = "TF32" if number == "float" else number
        raise NanoEulerError(f"{what} needs tensor cores of compute capability 8.0, this card has {on.capability / 10}")
    if number != "float" and on.capability == 90 and width in HOPPER:
        return _hopper_tile(number, width, *HOPPER[width])
    few, many, long = (SIXTEEN_BITS if number != "float" else TF32 if tf32 else PLAIN)[width]
    large = _tile(number, cores, width, *many)
    return large if time > long and large.bytes <= on.shared else _tile(number, cores, width, *few)


@functools.cache
def _kernel(chosen: Tile, where: str, checked: bool) -> cuda.Kernel:
    path = cuda.KERNELS / "attention_forward.cu"
    return cuda.module(path, where=where, checked=checked, instantiate=(chosen.kernel,))[chosen.kernel]


def forward(
    out,
    lse,
    qkv,
    heads: int,
    groups: int,
    scale: float,
    *,
    tf32: bool = False,
    where: str | None = None,
    checked: bool = True,
    on: Card | None = None,
) -> list[cuda.Launch]:
    """The launches that fill `out` and `lse` (shapes above), bound to these arrays.

    scale: what scores are multiplied by, 1 / sqrt(C), or 1 where the queries have it already; tf32: float32 on tensor
    cores, rounded to TF32; where, checked: as for cuda.module; on: the card to choose for, by default the one there is.
    Raises NanoEulerError for arrays that do not fit each other or the kernels.
    """
    where = where or cuda.device()
    on = on or card(where)
    number, batch, time, width = _checked_shapes(out, lse, qkv, heads, groups)
    chosen = tile(number, width, time, on, tf32)
    pairs = batch * groups
    grid = side_by_side(pairs, -(-time * (heads // groups) // chosen.rows), TOGETHER)
    arguments = qkv, out, lse, pairs, time, heads, groups, float(scale)
    kernel = _kernel(chosen, where, checked)
    return [kernel.bind(grid, chosen.threads, arguments, chosen.bytes, seconds=60.0)]


def side_by_side(pairs: int, tiles: int, together: int) -> tuple[int, int, int]:
    """A grid of the tiles of all pairs (a text, and a head or group): the first tile of so many, the second, ..."""
    together = min(together, pairs)
    return together, tiles, -(-pairs // together)


def _checked_shapes(out, lse, qkv, heads: int, groups: int) -> tuple[str, int, int, int]:
    """The type of the numbers, B, T and C."""
    if not (heads >= 1 and groups >= 1 and heads % groups == 0):
        raise NanoEulerError(f"heads is a multiple of groups, got {heads} and {groups}")
    if qkv.ndim != 3 or qkv.shape[2] % (heads + 2 * groups) or qkv.size == 0:
        raise NanoEulerError(f"qkv is [B, T, ({heads} + 2 x {groups}) C], got {qkv.shape}")
    batch, time, columns = qkv.shape
    width = columns // (heads + 2 * groups)
    if width not in WIDTHS:
        raise NanoEulerError(f"the width of a head is 32, 64 or 128, got {width}: qkv is {qkv.shape}")
    number = NUMBERS.get(qkv.dtype.name)
    if number is None:
        raise NanoEulerError(f"qkv is of bfloat16 (or uint16), float16 or float32, got {qkv.dtype}")
    for name, array, shape, dtype in (
        ("out", out, (batch, time, heads * width), qkv.dtype),
        ("lse", lse, (batch, heads, time), np.dtype("float32")),
    ):
        if array.shape != shape or array.dtype != dtype:
            raise NanoEulerError(f"{name} is {shape} of {dtype}, got {array.shape} of {array.dtype}")
    for name, array in (("qkv", qkv), ("out", out)):
        if _address(array) % 16:
            raise NanoEulerError(f"{name} starts at a multiple of 16 bytes, got {_address(array) % 16} more")
    return number, batch, time, width


def _address(array) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def run(launches: list[cuda.Launch]) -> None:
    """One after another."""
    for launch in launches:
        launch()


def attention(qkv, heads: int, groups: int, scale: float | None = None, **options):
    """out and lse of `forward`, in new arrays. scale: by default 1 / sqrt(C); options: those of `forward`."""
    xp = cuda.array_module(options.get("where"))
    batch, time, columns = qkv.shape
    width = columns // (heads + 2 * groups)
    out, lse = xp.empty((batch, time, heads * width), qkv.dtype), xp.empty((batch, heads, time), np.float32)
    run(forward(out, lse, qkv, heads, groups, 1 / math.sqrt(width) if scale is None else scale, **options))
    return out, lse
