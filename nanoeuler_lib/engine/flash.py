"""FlashAttention: causal grouped-query attention without a T x T matrix in memory. Chapters 27 and 28.

    out, lse = attention(qkv, heads=12, groups=4)               # one call, which allocates its results
    launches = forward(out, lse, qkv, heads, groups, scale)     # bound once to run often, allocates nothing
    run(launches)

qkv: [B, T, (H + 2 G) C], packed: at each position H queries, G keys and G values of width C = 32, 64 or 128, after
RoPE; head h reads group h // (H // G). out: [B, T, H C]. lse: [B, H, T] float32, the natural logarithm of the sum of
exp(scale q k), which the backward pass needs. Arrays are NumPy's or CuPy's, of bfloat16 (also as uint16), float16 or
float32.

The kernels are in `kernels/attention_forward.cu`; this module chooses their tiles. `ops/reference.py` has the same
computation in NumPy.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.cuda import launch
from nanoeuler_lib.cuda.tensor_map import tensor_map
from nanoeuler_lib.errors import NanoEulerError

NUMBERS = {"bfloat16": "__nv_bfloat16", "uint16": "__nv_bfloat16", "float16": "__half", "float32": "float"}
WIDTHS = 32, 64, 128
# Groups, or heads, whose blocks run at the same time, so that their keys and values stay in the L2 cache.
TOGETHER, TOGETHER_HOPPER = 32, 64


@dataclass(frozen=True)
class Card:
    """Hold the properties of a GPU that the choice of a tile depends on.

    capability: compute capability times 10 (75, 80, 86, ...), 90 only if the kernels may use wgmma; shared: bytes of
    shared memory that a block may have; processors: number of multiprocessors, 2 on the CPU.
    """

    capability: int
    shared: int
    processors: int = 2

    @property
    def has_mma(self) -> bool:
        """Whether tensor cores multiply bfloat16 and TF32, and copies can be asynchronous: both exist from 8.0 on."""
        return self.capability >= 80

    def expect_cores(self, number: str) -> None:
        """Raise NanoEulerError if tensor cores do not multiply a C++ type; "float" stands for TF32."""
        least = 75 if number == "__half" else 80
        if self.capability < least:
            what = {"float": "TF32", "__half": "float16"}.get(number, "bfloat16")
            raise NanoEulerError(f"{what} needs compute capability {least / 10} or later, this GPU has {self.version}")

    @property
    def version(self) -> str:
        """The compute capability as NVIDIA writes it, such as 8.6."""
        return f"{self.capability / 10}"


@functools.cache
def card(where: str | None = None) -> Card:
    """Return the GPU's properties; on the CPU, those of capability 8.6.

    NANOEULER_ARCH=80 hides Hopper's wgmma; 75 hides all that a T4 lacks, also its larger shared memory.
    """
    if (where or cuda.device()) == "cpu":
        return Card(launch.ON_CPU if where else launch.capability(), 99 * 1024)
    import cupy

    attributes, capability = cupy.cuda.Device().attributes, launch.capability()
    shared, processors = (attributes[name] for name in ("MaxSharedMemoryPerBlockOptin", "MultiProcessorCount"))
    return Card(capability, min(shared, 64 << 10) if capability == 75 else shared, processors)


@dataclass(frozen=True)
class Tile:
    """Describe one instance of a kernel: a block of `warps` warps handles `rows` queries, `keys` keys at a time."""

    kernel: str
    rows: int
    keys: int
    warps: int
    bytes: int  # of shared memory

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def multiplies_by(self) -> str:
        """The instruction that multiplies: "wgmma", "mma.sync", or "float32" without tensor cores."""
        if self.kernel.startswith("attention_forward_hopper"):
            return "wgmma"
        return "float32" if ", PLAIN, " in self.kernel else "mma.sync"


def _tile(number: str, how: str, width: int, keys: int, warps: int, bands: int, blocks: int) -> Tile:
    arguments = f"{number}, {how}, {width}, {keys}, {warps}, {bands}, {blocks}"
    rows = 16 * bands * warps
    at_once = 4 * keys + rows if how == "SPLIT" else max(4 * keys, 2 * keys + rows)  # rows of q, k and v
    shared = at_once * width * (4 if number == "float" else 2)
    return Tile(f"attention_forward<{arguments}>", rows, keys, warps, shared)


def _hopper_tile(number: str, width: int, keys: int, warpgroups: int, stages: int) -> Tile:
    arguments = f"{number}, {width}, {keys}, {warpgroups}, {stages}"
    shared = (2 * stages * keys + 192 * warpgroups) * width * 2
    return Tile(f"attention_forward_hopper<{arguments}>", 64 * warpgroups, keys, 4 * warpgroups + 4, shared)


# For each head width: the tile for short texts, which takes at most 48 KB of shared memory; the tile for long texts;
# the length up to which a text is short. A tile is (keys, warps, rows per warp / 16, blocks per multiprocessor). If one
# tile is best for all lengths, it is listed twice. (Chosen on an H200 among three to nine tiles each;
# benchmarks/gpu_attention.py measures the chosen ones.)
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
SPLIT = {
    32: ((32, 4, 1, 3), (32, 4, 1, 3), 0),
    64: ((16, 4, 2, 2), (16, 4, 2, 2), 0),
    128: ((16, 2, 1, 2), (16, 4, 1, 2), 0),
}
PLAIN = {32: ((32, 4, 1, 2),) * 2 + (0,), 64: ((32, 4, 1, 2),) * 2 + (0,), 128: ((16, 4, 1, 1),) * 2 + (0,)}
# For each head width: keys of a tile, warpgroups that multiply, stages. (Chosen on an H200.)
HOPPER = {64: (64, 4, 6), 128: (128, 2, 2)}


def mode(number: str, on: Card, tf32: bool) -> str:
    """Return how the kernels multiply: "CORES", "SPLIT" or "PLAIN", which attention.cuh explains.

    number: C++ type; tf32: round float32 to TF32. Otherwise float32 keeps its precision: tensor cores multiply it by
    three products of TF32 from compute capability 8.0 on, and older GPUs multiply it without tensor cores. Raises
    NanoEulerError if the GPU has no tensor-core instructions for this type.
    """
    if number == "float" and not tf32:
        return "SPLIT" if on.has_mma else "PLAIN"
    on.expect_cores(number)
    return "CORES"


def tile(number: str, width: int, time: int, on: Card, tf32: bool = False) -> Tile:
    """Return the tile for texts of `time` positions.

    number: C++ type, a value of NUMBERS; width: of a head; tf32: as for `mode`. Raises NanoEulerError if the GPU has no
    tensor-core instructions for this type.
    """
    how = mode(number, on, tf32)
    if number != "float" and on.capability == 90 and width in HOPPER:
        return _hopper_tile(number, width, *HOPPER[width])
    of_float = {"CORES": TF32, "SPLIT": SPLIT, "PLAIN": PLAIN}
    few, many, long = (of_float[how] if number == "float" else SIXTEEN_BITS)[width]
    large = _tile(number, how, width, *many)
    return large if time > long and large.bytes <= on.shared else _tile(number, how, width, *few)


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
    """Return the launches that compute `out` and `lse` from `qkv`, bound to these arrays (shapes: see the module).

    scale: factor of the scores, 1 / sqrt(C), or 1 if the queries already contain it; tf32: round float32 to TF32, which
    takes one product instead of three (see `mode`); where, checked: as for cuda.module; on: the GPU to choose the tile
    for, by default the present one. Raises NanoEulerError for arrays that do not fit each other or the kernels.
    A launch must not run on two streams at once: Hopper's kernel counts in memory what its blocks have taken.
    """
    where, on = where or cuda.device(), on or card(where)
    number, batch, time, width = _checked_shapes(out, lse, qkv, heads, groups)
    chosen = tile(number, width, time, on, tf32)
    kernel = _kernel(chosen, where, checked)
    if chosen.multiplies_by == "wgmma":
        pairs, tiles = batch * heads, -(-time // chosen.rows)
        grid, taken = (min(pairs * tiles, on.processors), 1, 1), cuda.array_module(where).zeros(1, np.int32)
        maps = tensor_map(qkv, 64), qkv, out, lse, taken
        arguments = *maps, pairs, min(TOGETHER_HOPPER, pairs), time, heads, groups, float(scale)
    else:
        pairs = batch * groups
        grid = side_by_side(pairs, -(-time * (heads // groups) // chosen.rows), TOGETHER)
        arguments = qkv, out, lse, pairs, time, heads, groups, float(scale)
    return [kernel.bind(grid, chosen.threads, arguments, chosen.bytes, seconds=60.0)]


def side_by_side(pairs: int, tiles: int, together: int) -> tuple[int, int, int]:
    """Return a grid for `tiles` tiles of each pair (text and head, or text and group), `together` pairs at a time.

    Blocks start in the order of x, y, z: the first tile of `together` pairs, then their second tile, and so on.
    """
    together = min(together, pairs)
    return together, tiles, -(-pairs // together)


def _checked_shapes(out, lse, qkv, heads: int, groups: int) -> tuple[str, int, int, int]:
    """Check the shapes and return the C++ type of the numbers, B, T and C."""
    if not (heads >= 1 and groups >= 1 and heads % groups == 0):
        raise NanoEulerError(f"heads must be a multiple of groups, got {heads} and {groups}")
    if qkv.ndim != 3 or qkv.shape[2] % (heads + 2 * groups) or qkv.size == 0:
        raise NanoEulerError(f"qkv must be [B, T, ({heads} + 2 x {groups}) C], got {qkv.shape}")
    batch, time, columns = qkv.shape
    width = columns // (heads + 2 * groups)
    if width not in WIDTHS:
        raise NanoEulerError(f"head width must be 32, 64 or 128, got {width}: qkv is {qkv.shape}")
    number = NUMBERS.get(qkv.dtype.name)
    if number is None:
        raise NanoEulerError(f"qkv must be bfloat16 (or uint16), float16 or float32, got {qkv.dtype}")
    for name, array, shape, dtype in (
        ("out", out, (batch, time, heads * width), qkv.dtype),
        ("lse", lse, (batch, heads, time), np.dtype("float32")),
    ):
        if array.shape != shape or array.dtype != dtype:
            raise NanoEulerError(f"{name} must be {shape} of {dtype}, got {array.shape} of {array.dtype}")
    for name, array in (("qkv", qkv), ("out", out)):
        if _address(array) % 16:
            raise NanoEulerError(f"{name} must start at a multiple of 16 bytes, got {_address(array) % 16} more")
    return number, batch, time, width


def _address(array) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def run(launches: list[cuda.Launch]) -> None:
    """Run the launches one after another."""
    for each in launches:
        each()


def attention(qkv, heads: int, groups: int, scale: float | None = None, **options):
    """Return `out` and `lse` of causal attention in new arrays. scale: default 1 / sqrt(C); options: of `forward`."""
    xp = cuda.array_module(options.get("where"))
    batch, time, columns = qkv.shape
    width = columns // (heads + 2 * groups)
    out, lse = xp.empty((batch, time, heads * width), qkv.dtype), xp.empty((batch, heads, time), np.float32)
    run(forward(out, lse, qkv, heads, groups, 1 / math.sqrt(width) if scale is None else scale, **options))
    return out, lse
