"""Test that FlashAttention and its gradients equal ops/reference.py, for all number types, widths, tiles and odd sizes.

On the CPU the kernels run checked; with a CUDA device (NANOEULER_DEVICE=gpu) the same tests run there. The oracle is
the reference in float64. In low precision the error may be twice the error of the plain formulas in the same precision.
"""

import functools
import itertools
import re

import numpy as np
import pytest

from nanoeuler_lib import cuda
from nanoeuler_lib.cuda.blas import from_bfloat16, to_bfloat16
from nanoeuler_lib.engine import flash, flash_backward
from nanoeuler_lib.engine.memory import download
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.ops import reference

ON_GPU = cuda.device() == "gpu"
pytestmark = [] if ON_GPU else [pytest.mark.compiler]
xp = cuda.array_module()
K = 1024
TURING, OLD, AMPERE, HOPPER = (flash.Card(*of) for of in ((75, 48 * K), (80, 48 * K), (86, 99 * K), (90, 227 * K)))
T4, VOLTA = flash.Card(75, 64 * K), flash.Card(70, 96 * K)
KINDS = ["bfloat16", "float16", "tf32", "float32"]


# ----------------------------------------------------------------------------------------------------------------
# numbers, and attention in plain NumPy


def stored(x, kind):
    """Return the array that a kernel takes."""
    x = np.ascontiguousarray(x, np.float32)
    return xp.asarray(to_bfloat16(x) if kind == "bfloat16" else x.astype(np.float16 if kind == "float16" else x.dtype))


def rounded(x, kind):
    """Return float32 numbers after rounding to this type."""
    x = np.asarray(x, np.float32)
    if kind == "bfloat16":
        return from_bfloat16(to_bfloat16(x))
    return x.astype(np.float16).astype(np.float32) if kind == "float16" else x


def on_cores(x, kind):
    """Return numbers as tensor cores read them; TF32 rounds half-way cases away from 0."""
    if kind != "tf32":
        return rounded(x, kind)
    return ((np.asarray(x, np.float32).view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)


def heads_apart(x, C):
    """[B, T, heads C] -> [B, heads, T, C]"""
    B, T, row = x.shape
    return x.reshape(B, T, row // C, C).swapaxes(1, 2)


def side_by_side(x):
    """[B, heads, T, C] -> [B, T, heads C]"""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


class Problem:
    """Random inputs, and their results in float64. size: factor of scores; turn: gradients pass back through RoPE."""

    def __init__(self, kind, C, B, T, H, G, *, turn=False, size=1.0, scale=None):
        rng = np.random.default_rng([C, B, T, H, G])
        self.kind, self.C, self.T, self.H, self.G = kind, C, T, H, G
        self.scale = C**-0.5 if scale is None else scale
        stretch = self.scale * C**0.5  # the reference itself divides by the square root
        qkv, dout = (rng.standard_normal((B, T, n * C), dtype=np.float32) for n in (H + 2 * G, H))
        qkv[..., : H * C] *= size
        self.qkv, self.dout = rounded(qkv, kind), rounded(dout, kind)
        self.slopes = heads_apart(self.dout.astype(np.float64), C)
        self.q, self.k, self.v = self.split(heads_apart(self.qkv.astype(np.float64), C))
        y, saved = reference.attention_forward(self.q * stretch, self.k, self.v)
        dq, dk, dv = reference.attention_backward(self.slopes, saved)
        self.y, self.lse, self.wanted = side_by_side(y), self.logsums(self.q, self.k), (dq * stretch, dk, dv)
        # The inputs of the backward pass come from a forward pass that multiplied the same rounded numbers.
        q, k, v = (on_cores(x, kind).astype(np.float64) if kind == "tf32" else x for x in (self.q, self.k, self.v))
        self.given_out = rounded(side_by_side(reference.attention_forward(q * stretch, k, v)[0]), kind)
        self.given_lse = self.logsums(q, k).astype(np.float32)
        self.delta = (self.slopes * heads_apart(self.given_out.astype(np.float64), C)).sum(axis=-1)
        self.tables = None
        if turn:
            tables = reference.rope_tables(T, C)
            self.wanted = (*(reference.rope_backward(x, tables) for x in self.wanted[:2]), dv)
            self.tables = tuple(np.ascontiguousarray(table, np.float32) for table in tables)

    def split(self, x):
        return x[:, : self.H], x[:, self.H : self.H + self.G], x[:, self.H + self.G :]

    def logsums(self, q, k):
        scores = q @ np.repeat(k, self.H // self.G, axis=1).swapaxes(-1, -2) * self.scale
        scores = np.where(np.tri(self.T, dtype=bool), scores, -np.inf)
        most = scores.max(axis=-1)
        return most + np.log(np.exp(scores - most[..., None]).sum(axis=-1))

    def forward(self, on, checked=True):
        """Return out and lse of the kernel; places that it does not write stay NaN."""
        out, lse = stored(np.full(self.y.shape, np.nan), self.kind), xp.full(self.lse.shape, np.nan, np.float32)
        options = dict(tf32=self.kind == "tf32", on=on, checked=checked)
        launches = flash.forward(out, lse, stored(self.qkv, self.kind), self.H, self.G, self.scale, **options)
        flash.run(launches)
        if on is HOPPER:  # whose kernel counts what is done, and must begin again at 0
            out[...] = lse[...] = 0
            flash.run(launches)
        return download(out).astype(np.float64), download(lse)

    def arrays(self):
        """Return dqkv, delta, dout, out, lse, qkv; the first two are filled with NaN."""
        dqkv, dout, out, qkv = (
            stored(x, self.kind) for x in (np.full_like(self.qkv, np.nan), self.dout, self.given_out, self.qkv)
        )
        return dqkv, xp.full(self.lse.shape, np.nan, np.float32), dout, out, xp.asarray(self.given_lse), qkv

    def backward(self, shared=None, atomic=False, capability=None):
        """Return dq, dk and dv, and the written arrays. shared, capability: of the GPU."""
        arrays = self.arrays()
        tables = self.tables and tuple(map(xp.asarray, self.tables))
        work = xp.full((*self.lse.shape, self.C), np.nan, np.float32) if atomic else None
        capability = capability or (75 if self.kind == "float16" else 80)
        options = dict(tf32=self.kind == "tf32", on=flash.Card(capability, shared) if shared else None)
        launches = flash_backward.backward(
            *arrays, self.H, self.G, self.scale, tables=tables, work=work, **options
        )  # fmt: skip
        flash.run(launches)
        return self.split(heads_apart(download(arrays[0]), self.C)), arrays


def distance(got, wanted):
    """Return the norm of the error divided by the norm of `wanted`; NaN stays NaN."""
    return np.linalg.norm(np.asarray(got, np.float64) - wanted) / (np.linalg.norm(wanted) or 1.0)


def plain(problem):
    """Return out, dq, dk and dv by the plain formulas, with each array rounded to the type."""
    kind, G, R = problem.kind, problem.G, problem.H // problem.G
    product = lambda a, b: on_cores(a, kind).astype(np.float32) @ on_cores(b, kind).astype(np.float32)
    q, k, v, slope = (x.astype(np.float32) for x in (problem.q, problem.k, problem.v, problem.slopes))
    k, v = np.repeat(k, R, axis=1), np.repeat(v, R, axis=1)
    scores = product(q, k.swapaxes(-1, -2)) * np.float32(problem.scale)
    scores = np.where(np.tri(problem.T, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p = rounded(p / p.sum(axis=-1, keepdims=True), kind)
    dp = rounded(product(slope, v.swapaxes(-1, -2)), kind)
    ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True)) * np.float32(problem.scale)
    dq, dk, dv = product(ds, k), product(ds.swapaxes(-1, -2), q), product(p.swapaxes(-1, -2), slope)
    B, _, T, C = dk.shape
    dk, dv = (x.reshape(B, G, R, T, C).sum(axis=2) for x in (dk, dv))
    return [rounded(x, kind) for x in (side_by_side(product(p, v)), dq, dk, dv)]


# ----------------------------------------------------------------------------------------------------------------
# all types, widths and sizes

FORWARD = [  # type, C, B, T, H, G; the GPU; further options
    *((("bfloat16", 64, 1, T, 3, 1), on, {}) for T in (1, 37, 130) for on in (AMPERE, HOPPER)),
    (("bfloat16", 32, 2, 37, 4, 2), AMPERE, {}),
    *((("bfloat16", 64, 1, 70, H, 2), on, {}) for H, on in ((2, AMPERE), (6, HOPPER))),
    *((("bfloat16", 128, 1, 70, 2, 1), on, {}) for on in (AMPERE, HOPPER)),
    *((("float16", C, 1, T, 3, 1), AMPERE, {}) for C, T in ((32, 65), (64, 37), (128, 37))),
    *((("float16", C, 1, 70, 2, 1), HOPPER, {}) for C in (64, 128)),
    *((("float16", C, 2, T, 6, 2), TURING, {}) for C, T in ((32, 1), (64, 65), (128, 19))),
    *((("tf32", C, 1, T, 3, 1), AMPERE, {}) for C, T in ((32, 1), (32, 65), (64, 70), (128, 37))),
    *((("float32", C, 1, T, 2, 1), TURING, {}) for C, T in ((32, 1), (64, 37), (128, 19))),
    *((("float32", 32, 2, 67, 6, 2), on, {}) for on in (TURING, AMPERE)),
    *((("float32", C, 1, T, 3, 1), AMPERE, {}) for C, T in ((32, 1), (64, 70), (128, 37))),
    # Equal scores, or scores so far apart that exp overflows unless the largest score is subtracted.
    *(((kind, 64, 1, 66, 2, 1), AMPERE, dict(size=size)) for kind in KINDS for size in (0.0, 300.0)),
    *((("bfloat16", 64, 1, 200, 2, 1), HOPPER, dict(size=size)) for size in (0.0, 300.0)),
    (("bfloat16", 32, 1, 40, 2, 2), AMPERE, dict(scale=1.0, size=0.2)),
]
WGMMA = dict(shared=227 * K, capability=90)
BACKWARD = [  # type, C, B, T, H, G; options of `backward`; further options
    (("bfloat16", 64, 1, 130, 3, 1), {}, {}),
    (("bfloat16", 64, 1, 1, 1, 1), {}, {}),
    (("bfloat16", 64, 2, 37, 4, 2), dict(shared=48 * K), {}),
    (("bfloat16", 64, 1, 201, 3, 1), dict(shared=227 * K), {}),
    (("bfloat16", 64, 1, 65, 6, 2), {}, dict(turn=True)),
    (("bfloat16", 64, 1, 65, 3, 1), dict(atomic=True), {}),
    *((("float16", C, 1, T, 3, 1), dict(shared=64 * K), dict(turn=True)) for C, T in ((32, 37), (64, 130), (128, 65))),
    (("float16", 64, 1, 1, 1, 1), dict(shared=64 * K), {}),
    (("float16", 32, 2, 37, 4, 2), dict(shared=64 * K), {}),
    (("float16", 64, 1, 65, 3, 1), dict(atomic=True), dict(turn=True)),
    (("bfloat16", 32, 2, 130, 4, 2), dict(shared=227 * K), dict(turn=True)),
    (("bfloat16", 128, 1, 65, 1, 1), {}, {}),
    (("bfloat16", 128, 1, 37, 3, 1), dict(shared=227 * K), dict(turn=True)),
    *((("bfloat16", C, 1, T, 3, 1), WGMMA, dict(turn=True)) for C, T in ((64, 201), (128, 130))),
    *((("float16", C, 2, T, 4, 2), WGMMA, {}) for C, T in ((64, 37), (128, 1))),
    (("tf32", 32, 2, 37, 4, 2), {}, dict(turn=True)),
    (("tf32", 32, 1, 130, 2, 1), dict(shared=163 * K, atomic=True), dict(turn=True)),
    (("tf32", 64, 1, 65, 3, 1), dict(shared=48 * K), {}),
    (("tf32", 128, 1, 37, 1, 1), dict(shared=64 * K), {}),
    (("tf32", 128, 1, 65, 2, 1), dict(shared=99 * K), dict(turn=True)),
    (("float32", 32, 1, 37, 4, 2), dict(shared=64 * K, capability=75), {}),
    *((("float32", 64, 1, 37, 2, 2), dict(shared=64 * K, capability=of), dict(turn=True)) for of in (75, 80)),
    (("float32", 32, 2, 130, 4, 2), dict(shared=163 * K), {}),
    *((("float32", 64, 1, T, 3, 1), dict(shared=KB * K), {}) for T, KB in ((65, 99), (70, 163), (130, 227))),
    (("float32", 128, 1, 65, 2, 1), dict(shared=99 * K), dict(turn=True)),
]
BOUND = {
    "bfloat16": 4e-3,
    "float16": 5e-4,
    "tf32": 1e-3,
    "float32": 2e-6,
}  # three roundings of half a unit in the last place


def name_of(part):
    if isinstance(part, flash.Card):
        return f"sm{part.capability}"
    return "-".join(map(str, part if isinstance(part, tuple) else itertools.chain(*part.items())))


def check_forward(sizes, on, checked=True, **options):
    problem = Problem(*sizes, **options)
    out, lse = problem.forward(on, checked)
    assert distance(out, problem.y) <= 2 * distance(plain(problem)[0], problem.y) + 1e-6
    rounding = options.get("size", 1.0) * (2.0**-11 if problem.kind == "tf32" else 2.0**-23)  # of a score's factors
    np.testing.assert_allclose(lse, problem.lse, rtol=1e-6, atol=1e-5 + 8 * rounding)


@pytest.mark.full(but=["bfloat16-64-1-37-3-1-sm86"])
@pytest.mark.parametrize("sizes, on, more", FORWARD, ids=name_of)
def test_attention_is_the_references(sizes, on, more):
    check_forward(sizes, on, **more)


def number_of(kind):
    return flash.NUMBERS["float32" if kind == "tf32" else kind]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["bfloat16", "tf32", "float32"])  # float16 uses the tiles of bfloat16
def test_every_tile_is_the_references(kind, monkeypatch):
    """Test also the tile for long texts, at a size that fills no tile; unchecked, to save time."""
    cards = [OLD, AMPERE, TURING if kind == "float32" else HOPPER]
    choices = [(C, T, on) for C in flash.WIDTHS for T in (1, 10**6) for on in cards]
    tiles = {flash.tile(number_of(kind), C, T, on, kind == "tf32"): (C, on) for C, T, on in choices}
    for chosen, (C, on) in tiles.items():
        monkeypatch.setattr(flash, "tile", lambda *_, chosen=chosen: chosen)
        check_forward((kind, C, 1, 100, 2, 1), on, checked=False)


@pytest.mark.full(but=["bfloat16-64-1-1-1-1-"])
@pytest.mark.parametrize("sizes, options, more", BACKWARD, ids=name_of)
def test_gradients_are_the_references(sizes, options, more):
    problem = Problem(*sizes, **more)
    got, (_, delta, *_) = problem.backward(**options)
    for name, mine, wanted in zip("qkv", got, problem.wanted, strict=True):
        assert mine.shape == wanted.shape
        error = distance(mine, wanted) if problem.T > 1 or name == "v" else np.abs(mine).max()  # dq and dk are 0 at T=1
        assert error <= BOUND[problem.kind], f"d{name}: {error:.1e}"
    np.testing.assert_allclose(download(delta), problem.delta, rtol=1e-4, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    "kind, C", [("bfloat16", 64), ("tf32", 32), *itertools.product(("float16", "float32"), flash.WIDTHS)]
)
@pytest.mark.parametrize("size", [1.0, 8.0, 300.0])
def test_the_error_of_gradients_is_at_most_twice_the_formulas_in_the_same_precision(kind, C, size):
    """Apply FlashAttention's rule; at size 300, a softmax is mostly 0 and 1, and scores are near 1e4.

    For float32, the formulas are those of the kernel without tensor cores, which also gets lse in float32.
    """
    problem = Problem(kind, C, 1, 130, 2, 1, size=size)
    got, _ = problem.backward()
    formulas = problem.backward(64 * K, capability=75)[0] if kind == "float32" else plain(problem)[1:]
    for name, mine, simple, wanted in zip("qkv", got, formulas, problem.wanted, strict=True):
        assert np.isfinite(mine).all()
        ours, theirs = distance(mine, wanted), distance(simple, wanted)
        assert ours <= 2 * theirs, f"d{name}: {ours:.1e}, the formulas {theirs:.1e}"


@pytest.mark.full(but=["64"])
@pytest.mark.skipif(ON_GPU, reason="the checker copies at once")
@pytest.mark.parametrize("C", flash.WIDTHS)
def test_copies_of_compute_capability_7_5_have_the_same_results(C, monkeypatch):
    """Let the checker copy at once, as a GPU without asynchronous copies does: no tile may still be in use then."""
    problem = Problem("float16", C, 1, 130, 3, 1, turn=True)
    results = []
    for module in (cuda.module, functools.partial(cuda.module, defines={"NANOEULER_ARCH": 75})):
        monkeypatch.setattr(cuda, "module", module)
        monkeypatch.setattr(flash, "_kernel", getattr(flash._kernel, "__wrapped__", flash._kernel))
        monkeypatch.setattr(
            flash_backward, "_module", getattr(flash_backward._module, "__wrapped__", flash_backward._module)
        )
        results.append([*problem.forward(TURING), *problem.backward(64 * K)[0]])
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


@pytest.mark.full
def test_in_one_call():
    problem = Problem("float32", 32, 1, 20, 2, 1)
    out, lse = flash.attention(stored(problem.qkv, "float32"), 2, 1)
    np.testing.assert_allclose(download(out), problem.y, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(download(lse), problem.lse, rtol=1e-5, atol=1e-5)


@pytest.mark.full
@pytest.mark.skipif(not ON_GPU or flash.card().capability < 90, reason="wgmma is Hopper's")
@pytest.mark.parametrize("C", [64, 128])
def test_wgmma_equals_its_twin(C):
    """Compare the two, which round the same numbers and differ only in the order of sums."""
    problem = Problem("bfloat16", C, 3, 333, 6, 2)
    one, other = (problem.forward(on) for on in (HOPPER, AMPERE))
    assert distance(one[0], other[0]) < 2e-3
    np.testing.assert_allclose(one[1], other[1], rtol=1e-5, atol=1e-5)


# ----------------------------------------------------------------------------------------------------------------
# the choice of tiles, and refused inputs


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_fit_the_card(kind):
    cards = [OLD, AMPERE, HOPPER, *{"float32": [TURING], "float16": [T4]}.get(kind, [])]
    for C, T, on in itertools.product(flash.WIDTHS, (128, 512, 4096), cards):
        assert flash.tile(number_of(kind), C, T, on, kind == "tf32").bytes <= on.shared


def test_tiles_of_the_backward_pass_fit_the_card():
    ways, sizes = ((2, "CORES"), (4, "CORES"), (4, "SPLIT")), (1, 64, 65, 512, 4096)
    for (size, how), C, shared, T in itertools.product(ways, flash.WIDTHS, (48, 64, 99, 163, 227), sizes):
        if (size, C, shared) == (4, 128, 48):  # GPUs from 7.5 on have 64
            with pytest.raises(NanoEulerError, match="need 64 KB of shared memory, got 49152"):
                flash_backward.tiles(size, C, T, shared * K, how)
            continue
        for tile in flash_backward.tiles(size, C, T, shared * K, how):
            assert tile.bytes(C, size) <= shared * K
            assert tile.rows // tile.warps in (16, 32) and tile.step % 16 == 0 and tile.rows % tile.step == 0
    for C, pair in flash_backward.HOPPER.items():  # each block takes 1 KB for its barriers, and CUDA 1 KB
        assert all(tile.blocks * (tile.bytes(C) + 2 * K) <= 228 * K for tile in pair)


def zeros(shape, dtype=np.float32, more=0):
    """Return zeros. more: floats between a multiple of 16 bytes and the first element."""
    return xp.zeros(int(np.prod(shape)) + more, dtype)[more:].reshape(shape)


# for B 1, T 5, H 4, G 2, C 32
FITS = dict(out=(1, 5, 128), lse=(1, 4, 5), qkv=(1, 5, 256), dout=(1, 5, 128), delta=(1, 4, 5), dqkv=(1, 5, 256))
REFUSED = [  # pass; argument that does not fit; words of the message
    ("forward", dict(heads=3), "heads must be a multiple of groups, got 3 and 2"),
    ("forward", dict(qkv=zeros((1, 5, 8 * 24))), "32, 64 or 128, got 24"),
    ("forward", dict(qkv=zeros((1, 5, 256), np.float64)), "float64"),
    ("forward", dict(out=zeros((1, 5, 127))), "out must be (1, 5, 128) of float32, got (1, 5, 127) of float32"),
    ("forward", dict(out=zeros((1, 5, 128), more=1)), "out must start at a multiple of 16 bytes, got 4 more"),
    ("backward", dict(dout=zeros((1, 4, 128))), "dout must be (1, 5, 128) of float32, got (1, 4, 128) of float32"),
    ("backward", dict(tables=(zeros((5, 32)),) * 2), "tables[0] must be (5, 16) of float32, got (5, 32) of float32"),
    (
        "backward",
        dict(work=zeros((1, 5, 4, 32))),
        "work must be (1, 4, 5, 32) of float32, got (1, 5, 4, 32) of float32",
    ),
    ("backward", dict(on=TURING, tf32=True), "TF32 needs compute capability 8.0 or later, this GPU has 7.5"),
    (
        "backward",
        {name: zeros(FITS[name], np.float16) for name in ("qkv", "out", "dout", "dqkv")} | dict(on=VOLTA),
        "float16 needs compute capability 7.5 or later, this GPU has 7.0",
    ),
]


@pytest.mark.parametrize("way, change, words", REFUSED, ids=lambda part: part if isinstance(part, str) else "")
def test_what_does_not_fit_is_refused(way, change, words):
    names = ("out", "lse", "qkv") if way == "forward" else ("dqkv", "delta", "dout", "out", "lse", "qkv")
    given = {name: zeros(FITS[name]) for name in names} | dict(heads=4, groups=2, scale=1.0)
    with pytest.raises(NanoEulerError, match=re.escape(words)):
        getattr(flash if way == "forward" else flash_backward, way)(**given | change)


@pytest.mark.parametrize(
    "number, tf32, on, words",
    [
        ("__nv_bfloat16", False, TURING, "bfloat16 needs compute capability 8.0 or later"),
        ("float", True, TURING, "TF32 needs compute capability 8.0 or later"),
        ("__half", False, VOLTA, "float16 needs compute capability 7.5 or later"),
    ],
)
def test_a_card_takes_the_types_that_its_tensor_cores_multiply(number, tf32, on, words):
    assert flash.mode("float", on, tf32=False) == "PLAIN"
    with pytest.raises(NanoEulerError, match=words):
        flash.tile(number, 64, 512, on, tf32)
