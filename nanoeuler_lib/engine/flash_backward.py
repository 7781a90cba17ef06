"""FlashAttention's backward pass: gradients of `flash.forward` without a T x T matrix in memory. Chapter 28.

    launches = backward(dqkv, delta, dout, out, lse, qkv, heads, groups, scale)   # bound once to run often
    run(launches)

By default there are two kernels. In one, each block owns some queries and computes their dq and delta; in the other,
each block owns some keys and computes their dk and dv. No number is written by two blocks, so two runs give bitwise
identical results. The kernels are in `kernels/attention_backward.cu`; this module chooses their tiles.
"""

import functools
from dataclasses import dataclass, replace

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.cuda.tensor_map import tensor_map
from nanoeuler_lib.engine.flash import Card, _address, _checked_shapes, card, mode, side_by_side
from nanoeuler_lib.errors import NanoEulerError

HEADS_TOGETHER, GROUPS_TOGETHER = 32, 64  # heads or groups whose blocks run at the same time, longest blocks first
SHORT = 64  # positions up to which a block of 128 rows would be half empty


@dataclass(frozen=True)
class Tile:
    """Describe a block's tile: `warps` warps own `rows` queries (or keys) and read `step` keys (or queries) at once.

    blocks: number of blocks per multiprocessor, which limits a thread's registers; hold: how many of the block's two
    own matrices stay in registers as fragments, 0 to 2 (0 or 2 in the queries' kernel).
    """

    rows: int
    step: int
    warps: int
    blocks: int = 1
    hold: int = 2

    def bytes(self, width: int, size: int) -> int:
        """Return the bytes of shared memory for heads of `width` numbers of `size` bytes each."""
        return (2 * self.rows + 4 * self.step) * width * size + 16 * self.step


# By bytes per row: (KB of shared memory needed, tile of the queries' kernel, tile of the keys' kernel). Two blocks or
# more fit on a multiprocessor, except for the widest rows. (Found by sweeps on an H200; the tiles for less shared
# memory are untested.)
SMALL, MEDIUM = Tile(64, 32, 4), Tile(64, 64, 4, 3)
TILES = {
    64: [(150, *[Tile(128, 128, 4, 3)] * 2), (99, *[Tile(128, 64, 4)] * 2), (48, SMALL, SMALL)],
    128: [
        (200, Tile(128, 128, 4), Tile(128, 128, 4, hold=1)),
        (132, Tile(128, 64, 4), Tile(128, 64, 4, hold=1)),
        (99, MEDIUM, MEDIUM),
        (48, SMALL, SMALL),
    ],
    256: [(200, *[Tile(64, 64, 4)] * 2), (132, SMALL, SMALL), (48, *[Tile(32, 16, 2)] * 2)],
    512: [(99, Tile(64, 16, 4), Tile(64, 16, 4, hold=0)), (64, Tile(16, 16, 1), Tile(16, 16, 1, hold=0))],
}
FLOAT = {  # the same for float32 that is not rounded to TF32: without room to hold a matrix in registers
    128: [(132, *[Tile(128, 64, 4, 2, 0)] * 2), (48, *[Tile(64, 32, 4, 1, 0)] * 2)],
    256: [
        (200, *[Tile(64, 64, 4, 2, 0)] * 2),
        (132, *[Tile(64, 32, 4, 2, 0)] * 2),
        (99, *[Tile(64, 16, 4, 2, 0)] * 2),
        (48, *[Tile(32, 16, 2, 2, 0)] * 2),
    ],
    512: [(99, *[Tile(64, 16, 4, 2, 0)] * 2), (64, *[Tile(16, 16, 1, 1, 0)] * 2)],
}


@dataclass(frozen=True)
class HopperTile:
    """Describe a tile of the kernels for Hopper: a block owns `rows` queries (or keys), 64 per warpgroup.

    stages: number of steps, of 64 keys (or queries) each, whose tiles are in shared memory; blocks: number of blocks
    per multiprocessor.
    """

    rows: int
    stages: int
    blocks: int

    def bytes(self, width: int) -> int:
        """Return the bytes of shared memory for heads of `width` numbers; each warp has room for lse and delta."""
        return 4 * (self.rows + 64 * self.stages) * width + 64 * self.rows


# By head width: the tile of the queries' kernel and the tile of the keys' kernel. (Found by a sweep on an H200.)
HOPPER = {
    64: (HopperTile(128, 3, 2), HopperTile(64, 3, 3)),
    128: (HopperTile(64, 2, 2), HopperTile(128, 3, 1)),
}


def tiles(size: int, width: int, time: int, shared: int, how: str = "CORES") -> tuple[Tile, Tile]:
    """Return the tiles of the queries' kernel and of the keys' kernel for texts of `time` positions.

    size: bytes per number; width: of a head; shared: bytes of shared memory that a block may have; how: how the kernels
    multiply, see `flash.mode`. Raises NanoEulerError if no tile fits.
    """
    for least, *pair in (TILES if how == "CORES" else FLOAT)[size * width]:
        if shared >= least << 10 and (time > SHORT or pair[0].rows <= SHORT):
            return tuple(pair)
    raise NanoEulerError(f"heads of {width} numbers need {least} KB of shared memory, got {shared} bytes")


def backward(
    dqkv,
    delta,
    dout,
    out,
    lse,
    qkv,
    heads: int,
    groups: int,
    scale: float,
    *,
    tables=None,
    work=None,
    tf32: bool = False,
    where: str | None = None,
    checked: bool = True,
    on: Card | None = None,
) -> list[cuda.Launch]:
    """Return the launches, in the order to run them, that compute dqkv and delta from the other arrays.

    qkv, dqkv: [B, T, (H + 2G) C]; out, dout: [B, T, H C]; lse, delta: [B, H, T] float32; scale, tf32, where, checked,
    on: as for `flash.forward`. tables: RoPE's cosines and sines, [T, C/2] float32 each, to get the gradients with
    respect to q and k before RoPE. work: [B, H, T, C] float32, in which atomic additions sum dq: that takes five
    products instead of seven, but the order of the additions varies from run to run. A launch allocates nothing. Raises
    NanoEulerError for arrays that do not fit each other or the kernels. Dao 2023, algorithm 2; chapter 28.
    """
    where, on = where or cuda.device(), on or card(where)
    number, B, T, C = _checked_shapes(out, lse, qkv, heads, groups)
    _check_arrays(dqkv, delta, dout, lse, qkv, out, tables, work, C)
    how = mode(number, on, tf32)
    size, turn = qkv.dtype.itemsize, tables is not None
    cosine, sine = tables if turn else (lse, lse)  # without tables, any arrays do: the kernels do not read them
    shape, options = (T, heads, groups, float(scale)), {"seconds": 60.0}
    if on.capability == 90 and size == 2 and C in HOPPER and work is None:
        names = _hopper_names(number, C, turn)
        kernels, maps = _module(names, where, checked), (tensor_map(qkv, 64), tensor_map(dout, 64))
        arrays = (qkv, out, dout, lse, delta, dqkv, cosine, sine), (qkv, dout, lse, delta, dqkv, cosine, sine)
        return [
            kernels[name].bind(
                side_by_side(pairs, -(-T // tile.rows), together), 2 * tile.rows,
                (*maps, *given, pairs, *shape), tile.bytes(C), **options,
            )
            for name, tile, given, pairs, together in zip(
                names, HOPPER[C], arrays, (B * heads, B * groups), (HEADS_TOGETHER, GROUPS_TOGETHER), strict=True
            )
        ]  # fmt: skip
    of_queries, of_keys = tiles(size, C, T, on.shared, how)
    if work is not None:  # dS needs shared memory as well
        of_keys = replace(of_keys, step=min(of_keys.step, 64), hold=0)
    if work is not None and size * of_keys.step < 64:
        raise NanoEulerError(f"`work` with heads of {C} numbers needs 80 KB of shared memory, got {on.shared} bytes")
    names = _names(number, how, C, of_queries, of_keys, turn, work is not None)
    kernels = _module(names, where, checked)
    keys = kernels[names[1]].bind(
        side_by_side(B * groups, -(-T // of_keys.rows), GROUPS_TOGETHER), 32 * of_keys.warps,
        (qkv, dout, lse, delta, dqkv, lse if work is None else work, cosine, sine, B * groups, *shape),
        of_keys.bytes(C, size) + (of_keys.rows * of_keys.step * size if work is not None else 0), **options,
    )  # fmt: skip
    if work is None:
        arguments = (qkv, out, dout, lse, delta, dqkv, cosine, sine, B * heads, *shape)
        grid = side_by_side(B * heads, -(-T // of_queries.rows), HEADS_TOGETHER)
        shared = of_queries.bytes(C, size)
        return [kernels[names[0]].bind(grid, 32 * of_queries.warps, arguments, shared, **options), keys]
    few = min(1024, -(-B * heads * T // 8))  # blocks, each of which takes eight rows at a time
    return [
        kernels[names[0]].bind(few, 256, (out, dout, delta, work, B, T, heads), **options),
        keys,
        kernels[names[2]].bind(few, 256, (work, dqkv, cosine, sine, B, *shape), **options),
    ]


def _hopper_names(number: str, C: int, turn: bool):
    turned = str(turn).lower()
    return tuple(
        f"attention_backward_{kernel}_hopper<{number}, {C}, {tile.rows}, {tile.stages}, {tile.blocks}, {turned}>"
        for kernel, tile in zip(("queries", "keys"), HOPPER[C], strict=True)
    )


def _names(number: str, how: str, C: int, of_queries: Tile, of_keys: Tile, turn: bool, atomic: bool):
    def name(kernel, *arguments):
        written = (str(a).lower() if isinstance(a, bool) else str(a) for a in arguments)
        return f"attention_backward_{kernel}<{', '.join(written)}>"

    def tiled(kernel, tile, *flags):
        hold = tile.hold if kernel == "keys" else tile.hold > 0
        return name(kernel, number, how, C, tile.rows, tile.step, tile.warps, tile.blocks, hold, *flags)

    keys = tiled("keys", of_keys, turn, atomic)
    if atomic:
        return name("delta", number, C), keys, name("finish", number, C, turn)
    return tiled("queries", of_queries, turn), keys


@functools.cache
def _module(names: tuple[str, ...], where: str, checked: bool) -> cuda.Module:
    return cuda.module(cuda.KERNELS / "attention_backward.cu", where=where, checked=checked, instantiate=names)


def _check_arrays(dqkv, delta, dout, lse, qkv, out, tables, work, C: int) -> None:
    single = np.dtype("float32")
    wanted = [("dqkv", dqkv, qkv.shape, qkv.dtype), ("dout", dout, out.shape, qkv.dtype)]
    wanted += [("delta", delta, lse.shape, single)]
    wanted += [(f"tables[{i}]", table, (qkv.shape[1], C // 2), single) for i, table in enumerate(tables or ())]
    wanted += [("work", work, (*lse.shape, C), single)] if work is not None else []
    for name, array, shape, dtype in wanted:
        if array.shape != shape or array.dtype != dtype:
            raise NanoEulerError(f"{name} must be {shape} of {dtype}, got {array.shape} of {array.dtype}")
        if name != "delta" and _address(array) % 16:
            raise NanoEulerError(f"{name} must start at a multiple of 16 bytes, got {_address(array) % 16} more")
