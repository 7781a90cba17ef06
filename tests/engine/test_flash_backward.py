"""engine/flash_backward.py computes what ops/reference.py does in float64, at odd sizes and in every number type.

On the CPU every launch is checked; with a CUDA device (NANOEULER_DEVICE=gpu) the same tests run there. On the CPU, too:
a kernel that lacks one of its barriers, commits or waits is reported, or computes something else.
"""

import itertools
import re

import numpy as np
import pytest

from nanoeuler_lib import cuda
from nanoeuler_lib.engine import flash, flash_backward
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.ops import reference

ON_GPU = cuda.device() == "gpu"
pytestmark = [] if ON_GPU else [pytest.mark.compiler]
xp = cuda.array_module()


def host(array):
    return array.get() if ON_GPU else array


def to_bits(x):
    """The nearest bfloat16, as uint16."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def from_bits(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(x, kind):
    """float32 numbers that the type has; of TF32 arrays hold what float32 does."""
    return from_bits(to_bits(x)) if kind == "bfloat16" else np.asarray(x, np.float32)


def on_device(x, kind):
    if kind != "bfloat16":
        return xp.asarray(np.ascontiguousarray(x, np.float32))
    bits = to_bits(x)
    return xp.asarray(bits)


def from_device(array, kind):
    array = host(array)
    return from_bits(array.view(np.uint16)) if kind == "bfloat16" else array


def tf32(x):
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x1000) & 0xFFFFE000).view(np.float32)


def heads_apart(x, C):
    """[B, T, heads C] -> [B, heads, T, C]"""
    B, T, row = x.shape
    return x.reshape(B, T, row // C, C).swapaxes(1, 2)


def side_by_side(*parts):
    """Several [B, heads, T, C] -> [B, T, all heads C]"""
    return np.concatenate([x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1) for x in parts], axis=-1)


class Problem:
    """Random inputs and their gradients in float64."""

    def __init__(self, kind, C, B, T, H, G, *, turn=False, magnitude=1.0):
        rng = np.random.default_rng([C, B, T, H, G])
        self.kind, self.C, self.T, self.H, self.G, self.scale = kind, C, T, H, G, 1 / np.sqrt(C)
        qkv, dout = (rng.standard_normal((B, T, n * C), dtype=np.float32) for n in (H + 2 * G, H))
        qkv[..., : H * C] *= magnitude
        self.qkv, self.dout = rounded(qkv, kind), rounded(dout, kind)
        self.slopes = heads_apart(self.dout.astype(np.float64), C)
        self.q, self.k, self.v = self.split(heads_apart(self.qkv.astype(np.float64), C))
        _, saved = reference.attention_forward(self.q, self.k, self.v)
        self.wanted = reference.attention_backward(self.slopes, saved)
        # The forward pass multiplies what the backward pass will: TF32 in place of float32.
        q, k, v = (tf32(x).astype(np.float64) if kind == "tf32" else x for x in (self.q, self.k, self.v))
        self.out = rounded(side_by_side(reference.attention_forward(q, k, v)[0]), kind)
        scores = np.repeat(k, H // G, axis=1) @ q.swapaxes(-1, -2) * self.scale  # [.., key, query]
        scores = np.where(np.tri(T, T, -1, bool), -np.inf, scores)
        most = scores.max(axis=-2)
        self.lse = (most + np.log(np.exp(scores - most[..., None, :]).sum(axis=-2))).astype(np.float32)
        self.delta = (self.slopes * heads_apart(self.out.astype(np.float64), C)).sum(axis=-1)
        self.tables = None
        if turn:
            tables = reference.rope_tables(T, C)
            turned = [reference.rope_backward(x, tables) for x in self.wanted[:2]]
            self.wanted = (*turned, self.wanted[2])
            self.tables = tuple(np.ascontiguousarray(table, np.float32) for table in tables)

    def split(self, x):
        return x[:, : self.H], x[:, self.H : self.H + self.G], x[:, self.H + self.G :]

    def arrays(self):
        """dqkv, delta, dout, out, lse, qkv; the first two hold NaN."""
        nothing = np.full(self.lse.shape, np.nan, np.float32)
        dqkv, dout, out, qkv = (
            on_device(x, self.kind) for x in (np.full_like(self.qkv, np.nan), self.dout, self.out, self.qkv)
        )
        return dqkv, xp.asarray(nothing), dout, out, xp.asarray(self.lse), qkv

    def launches(self, arrays, atomic=False, shared=None):
        """shared: bytes of the card's shared memory, by default of this one's."""
        tables = self.tables and tuple(map(xp.asarray, self.tables))
        work = xp.full((*self.lse.shape, self.C), np.nan, np.float32) if atomic else None
        on = flash.Card(80, shared) if shared else None
        return flash_backward.backward(
            *arrays, self.H, self.G, self.scale, tables=tables, work=work, tf32=self.kind == "tf32", on=on
        )

    def run(self, **options):
        """dq, dk and dv, and the arrays that were written."""
        arrays = self.arrays()
        for launch in self.launches(arrays, **options):
            launch()
        return self.split(heads_apart(from_device(arrays[0], self.kind), self.C)), arrays


def distance(got, wanted):
    """The error relative to the whole; NaN is one."""
    return np.linalg.norm(np.asarray(got, np.float64) - wanted) / (np.linalg.norm(wanted) or 1.0)


def plain(problem):
    """dq, dk and dv as the formulas stand, each array rounded to the type as it is made."""
    kind, G, R = problem.kind, problem.G, problem.H // problem.G

    def keep(x):
        return tf32(x) if kind == "tf32" else rounded(x, kind)

    def product(a, b):  # mma reads float32 as TF32
        return (keep(a).astype(np.float64) @ keep(b).astype(np.float64)).astype(np.float32)

    q, k, v, slope = (x.astype(np.float32) for x in (problem.q, problem.k, problem.v, problem.slopes))
    k, v = np.repeat(k, R, axis=1), np.repeat(v, R, axis=1)
    scores = product(q, k.swapaxes(-1, -2)) * np.float32(problem.scale)
    scores = np.where(np.tri(problem.T, dtype=bool), scores if kind != "bfloat16" else keep(scores), -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p = p / p.sum(axis=-1, keepdims=True)
    dp = product(slope, v.swapaxes(-1, -2))
    if kind == "bfloat16":
        p, dp = keep(p), keep(dp)
    ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True)) * np.float32(problem.scale)
    dq, dk, dv = product(ds, k), product(ds.swapaxes(-1, -2), q), product(p.swapaxes(-1, -2), slope)
    B, _, T, C = dk.shape
    dk, dv = (x.reshape(B, G, R, T, C).sum(axis=2) for x in (dk, dv))
    return [rounded(x, kind) for x in (dq, dk, dv)]


# ----------------------------------------------------------------------------------------------------------------
# gradients

K = 1024
# number, C, B, T, H, G; then what else
CASES = [
    (("bfloat16", 64, 1, 130, 3, 1), {}),
    (("bfloat16", 64, 1, 1, 1, 1), {}),
    (("bfloat16", 64, 2, 37, 4, 2), {"shared": 48 * K}),
    (("bfloat16", 64, 1, 201, 3, 1), {"shared": 227 * K}),
    (("bfloat16", 64, 1, 65, 6, 2), {"turn": True}),
    (("bfloat16", 64, 1, 65, 3, 1), {"atomic": True}),
    (("bfloat16", 32, 2, 130, 4, 2), {"shared": 227 * K, "turn": True}),
    (("bfloat16", 128, 1, 65, 1, 1), {}),
    (("bfloat16", 128, 1, 37, 3, 1), {"shared": 227 * K, "turn": True}),
    (("tf32", 32, 2, 37, 4, 2), {"turn": True}),
    (("tf32", 32, 1, 130, 2, 1), {"shared": 163 * K, "atomic": True, "turn": True}),
    (("tf32", 64, 1, 65, 3, 1), {"shared": 48 * K}),
    (("tf32", 128, 1, 37, 1, 1), {"shared": 64 * K}),
    (("tf32", 128, 1, 65, 2, 1), {"shared": 99 * K, "turn": True}),
    (("float", 32, 1, 37, 4, 2), {}),
    (("float", 64, 1, 37, 2, 2), {"shared": 64 * K, "turn": True}),
]
BOUND = {"bfloat16": 4e-3, "tf32": 1e-3, "float": 2e-6}  # half a unit of the last bit, three times on the way


def name_of(value):
    return "-".join(map(str, value)) if isinstance(value, tuple) else "-".join(f"{k}={v}" for k, v in value.items())


@pytest.mark.full(but=["bfloat16-64-1-1-1-1-"])
@pytest.mark.parametrize("sizes, options", CASES, ids=name_of)
def test_gradients_equal_the_reference(sizes, options):
    options = dict(options)
    problem = Problem(*sizes, turn=options.pop("turn", False))
    got, (_, delta, *_) = problem.run(**options)
    for name, mine, wanted in zip("qkv", got, problem.wanted):
        assert mine.shape == wanted.shape
        error = distance(mine, wanted) if problem.T > 1 or name == "v" else np.abs(mine).max()  # of T=1 dq, dk are 0
        assert error <= BOUND[problem.kind], f"d{name}: {error:.1e}"
    np.testing.assert_allclose(host(delta), problem.delta, rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["bfloat16", "tf32"])
@pytest.mark.parametrize("magnitude", [1.0, 8.0, 300.0])
def test_the_error_is_at_most_twice_that_of_the_formulas_in_the_same_precision(kind, magnitude):
    """FlashAttention's rule; with 300 most of a softmax is 0 and 1, and scores are near 1e4."""
    problem = Problem(kind, 64 if kind == "bfloat16" else 32, 1, 130, 2, 1, magnitude=magnitude)
    got, _ = problem.run()
    for name, mine, simple, wanted in zip("qkv", got, plain(problem), problem.wanted):
        assert np.isfinite(mine).all()
        ours, theirs = distance(mine, wanted), distance(simple, wanted)
        assert ours <= 2 * theirs, f"d{name}: {ours:.1e}, the formulas {theirs:.1e}"


@pytest.mark.full
def test_gradients_are_difference_quotients():
    """Of the sum of out * dout in float64, along a random direction."""
    problem = Problem("float", 32, 1, 37, 2, 1)
    got, _ = problem.run()
    rng, size = np.random.default_rng(5), 1e-5
    ways = [rng.standard_normal(x.shape) for x in (problem.q, problem.k, problem.v)]

    def loss(step):
        moved = (x + step * way for x, way in zip((problem.q, problem.k, problem.v), ways))
        return (reference.attention_forward(*moved)[0] * problem.slopes).sum()

    quotient = (loss(size) - loss(-size)) / (2 * size)
    parts = np.concatenate([(mine.astype(np.float64) * way).ravel() for mine, way in zip(got, ways)])
    assert abs(parts.sum() - quotient) <= 1e-7 * np.abs(parts).sum()  # float32's rounding, while large parts cancel
    assert np.abs(parts).sum() < 1e4 * abs(quotient)


@pytest.mark.full
def test_two_runs_agree_to_the_bit():
    problem = Problem("bfloat16", 64, 2, 65, 6, 2)
    runs = [problem.run()[1] for _ in range(2)]
    for first, second in zip(*runs):
        assert host(first).tobytes() == host(second).tobytes()


@pytest.mark.full
def test_inputs_stay_as_they_are():
    problem = Problem("tf32", 32, 1, 37, 3, 1)
    _, after = problem.run()
    for got, before in zip(after[2:], problem.arrays()[2:]):
        assert host(got).tobytes() == host(before).tobytes()


# ----------------------------------------------------------------------------------------------------------------
# tiles, and what is refused


def test_tiles_fit_the_card():
    """The table that `pytest -s` prints: rows x step and warps, of the queries' kernel, of the keys' one, and bytes."""
    seen = {}
    for size, C, shared, T in itertools.product((2, 4), flash.WIDTHS, (48, 64, 99, 163, 227), (1, 64, 65, 512, 4096)):
        if (size, C, shared) == (4, 128, 48):  # cards from 7.5 on have 64
            with pytest.raises(NanoEulerError, match="take 64 KB of shared memory, got 49152"):
                flash_backward.tiles(size, C, T, shared * K)
            continue
        pair = flash_backward.tiles(size, C, T, shared * K)
        most = max(tile.bytes(C, size) for tile in pair)
        assert most <= shared * K
        for tile in pair:
            assert tile.rows // tile.warps in (16, 32) and tile.step % 16 == 0 and tile.rows % tile.step == 0
        words = ", ".join(f"{t.rows:3} x {t.step}, {t.warps} warps, {t.hold} held" for t in pair)
        seen.setdefault((size, C, words, most), []).append(f"{shared} KB T={T}")
    for (size, C, words, most), cards in sorted(seen.items()):
        print(f"{size} bytes, C {C:3} | {words} | {most:6} bytes | {', '.join(cards)}")
    counts = {key: sum(row[:2] == key for row in seen) for key in itertools.product((2, 4), flash.WIDTHS)}
    assert counts == {(2, 32): 3, (2, 64): 4, (2, 128): 3, (4, 32): 4, (4, 64): 3, (4, 128): 2}


def arrays_for(change):
    """Arguments of `backward` for B 1, T 5, H 2, G 1, C 32, with shapes or types changed."""
    shapes = {
        "dqkv": (1, 5, 128),
        "delta": (1, 2, 5),
        "dout": (1, 5, 64),
        "out": (1, 5, 64),
        "lse": (1, 2, 5),
    }
    shapes |= {"qkv": (1, 5, 128)} | change
    made = {
        name: xp.zeros(shape, np.float32) if isinstance(shape, tuple) else xp.zeros(shapes["qkv"], shape)
        for name, shape in shapes.items()
        if name not in ("H", "G", "on")
    }
    tables = (made.pop("tables"),) * 2 if "tables" in made else None
    arrays = (made[name] for name in ("dqkv", "delta", "dout", "out", "lse", "qkv"))
    return (*arrays, shapes.get("H", 2), shapes.get("G", 1), 0.1), {
        "tables": tables, "work": made.get("work"), "on": shapes.get("on"), "tf32": "on" in shapes,
    }  # fmt: skip


REFUSED = {
    "heads": ({"H": 3, "G": 2}, "heads is a multiple of groups, got 3 and 2"),
    "out": ({"out": (1, 5, 128)}, "out is (1, 5, 64) of float32, got (1, 5, 128) of float32"),
    "dout": ({"dout": (1, 4, 64)}, "dout is (1, 5, 64) of float32, got (1, 4, 64) of float32"),
    "delta": ({"delta": (1, 5, 2)}, "delta is (1, 2, 5) of float32, got (1, 5, 2) of float32"),
    "dqkv": ({"dqkv": (1, 4, 128)}, "dqkv is (1, 5, 128) of float32, got (1, 4, 128) of float32"),
    "tables": ({"tables": (5, 32)}, "tables[0] is (5, 16) of float32, got (5, 32) of float32"),
    "work": ({"work": (1, 5, 2, 32)}, "work is (1, 2, 5, 32) of float32, got (1, 5, 2, 32) of float32"),
    "TF32 on Turing": (
        {"on": flash.Card(75, 65536)},
        "TF32 takes compute capability 8.0 or later, this card has 7.5",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    change, words = REFUSED[name]
    arguments, options = arrays_for(change)
    with pytest.raises(NanoEulerError) as caught:
        flash_backward.backward(*arguments, **options)
    assert words in str(caught.value)


def test_a_view_is_refused_where_16_bytes_are_copied_at_once():
    arguments, options = arrays_for({})
    view = xp.zeros(129 * 5, np.float32)[1 : 1 + 128 * 5].reshape(1, 5, 128)
    with pytest.raises(NanoEulerError, match="dqkv starts at a multiple of 16 bytes, got 4 more"):
        flash_backward.backward(view, *arguments[1:], **options)


# ----------------------------------------------------------------------------------------------------------------
# without one of its barriers, commits or waits

TEXT = (cuda.KERNELS / "attention_backward.cu").read_text("utf-8")
ORDER = re.compile(r"__sync(?:threads|warp)\(\);|copy_async_(?:commit|wait<\d>)\(\);")
PLACES = list(ORDER.finditer(TEXT))


@pytest.mark.full
@pytest.mark.skipif(ON_GPU, reason="the checker runs on the CPU")
@pytest.mark.parametrize("number", range(len(PLACES)), ids=lambda i: f"{i}-{PLACES[i][0][:-3]}")
def test_what_orders_the_threads_is_missed(number, monkeypatch):
    """One after the other is deleted: the checker reports it, or gradients are wrong."""
    place = PLACES[number]
    line = TEXT[TEXT.rindex("\n", 0, place.start()) : TEXT.index("\n", place.end())]
    broken = TEXT[: place.start()] + "{}" + TEXT[place.end() :]
    kernel = re.findall(r"\n(attention_backward_\w+)\(", TEXT[: place.start()])[-1:]  # none: a function of them all

    def compiled(names, where, checked):
        hurt = tuple(name for name in names if not kernel or name.startswith(f"{kernel[0]}<"))
        modules = [cuda.module(broken, instantiate=hurt)]
        if rest := tuple(name for name in names if name not in hurt):
            modules.append(sound(rest, where, checked))
        return {name: module[name] for module in modules for name in module}

    sound = flash_backward._module
    monkeypatch.setattr(flash_backward, "_module", compiled)
    if place[0] == "__syncwarp();":  # rows that are held are read long before
        problem, options = Problem("tf32", 128, 1, 16, 1, 1), {"shared": 64 * K}
    else:
        problem, options = (
            Problem("bfloat16", 32, 1, 70, 2, 1),
            {"shared": 48 * K, "atomic": "all warps" in line},
        )
    try:
        got, _ = problem.run(**options)
    except cuda.KernelError as error:
        assert error.finding.kind in ("race", "missing wait", "uninitialised"), error
        return
    assert max(map(distance, got, problem.wanted)) > 2 * BOUND["bfloat16"]
