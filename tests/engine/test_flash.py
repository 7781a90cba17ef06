"""FlashAttention computes what ops/reference.py computes: every kind of number, width, tile and odd size.

On the CPU the kernels run checked; with a CUDA device (NANOEULER_DEVICE=gpu) the same tests run there. The oracle is
the reference in float64. In low precision the error may be twice that of the plain computation in the same precision.
"""

import itertools
import re

import numpy as np
import pytest

from nanoeuler_lib import cuda
from nanoeuler_lib.engine import flash
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.ops import reference

ON_GPU = cuda.device() == "gpu"
pytestmark = [] if ON_GPU else [pytest.mark.compiler]
on_cpu = pytest.mark.skipif(ON_GPU, reason="the checker runs on the CPU")
xp = cuda.array_module()
TURING, AMPERE, HOPPER = flash.Card(75, 48 * 1024), flash.Card(86, 99 * 1024), flash.Card(90, 227 * 1024)
KINDS = ["bfloat16", "float16", "tf32", "float32"]


# ----------------------------------------------------------------------------------------------------------------
# numbers, and attention in plain NumPy


def rounded(x, kind):
    """float64 numbers as this kind holds them, or as tensor cores take them."""
    x = np.asarray(x, np.float32)
    if kind == "float16":
        return x.astype(np.float16).astype(np.float64)
    if kind == "float32":
        return x.astype(np.float64)
    bits, drop = x.view(np.uint32).astype(np.uint64), 16 if kind == "bfloat16" else 13
    half = 1 << drop - 1  # tf32: of two equally near numbers the one farther from 0
    if kind == "bfloat16":  # the even one
        half = half - 1 + (bits >> drop & 1)
    return (((bits + half) >> drop << drop).astype(np.uint32)).view(np.float32).astype(np.float64)


def stored(x, kind):
    """The array that a kernel takes."""
    x = np.asarray(x, np.float32)
    if kind == "bfloat16":
        return xp.asarray((rounded(x, kind).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16))
    return xp.asarray(x.astype(np.float16 if kind == "float16" else np.float32))


def values(array):
    array = array.get() if ON_GPU else array
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def split(qkv, heads, groups):
    """[B, T, (H + 2 G) C] as q [B, H, T, C], k and v [B, G, T, C]."""
    B, T, columns = qkv.shape
    x = qkv.reshape(B, T, heads + 2 * groups, columns // (heads + 2 * groups)).swapaxes(1, 2)
    return x[:, :heads], x[:, heads : heads + groups], x[:, heads + groups :]


def exact(qkv, heads, groups, scale):
    """out [B, T, H C] and lse [B, H, T] in float64; the reference divides by sqrt(C) itself."""
    q, k, v = split(qkv, heads, groups)
    y, _ = reference.attention_forward(q * scale * np.sqrt(q.shape[-1]), k, v)
    scores = scale * (q @ np.repeat(k, heads // groups, 1).swapaxes(-1, -2))
    scores = np.where(np.triu(np.ones(scores.shape[-2:], bool), 1), -np.inf, scores)
    top = scores.max(-1)
    return joined(y), top + np.log(np.exp(scores - top[..., None]).sum(-1))


def joined(y):
    B, H, T, C = y.shape
    return y.swapaxes(1, 2).reshape(B, T, H * C)


def plain(qkv, heads, groups, scale, kind):
    """The same with what stands in memory or enters a product rounded: scores are summed in float32, as everywhere."""
    q, k, v = (rounded(x, kind) for x in split(qkv, heads, groups))
    k, v = (np.repeat(x, heads // groups, 1) for x in (k, v))
    scores = (scale * (q.astype(np.float32) @ k.astype(np.float32).swapaxes(-1, -2))).astype(np.float32)
    scores = np.where(np.triu(np.ones(scores.shape[-2:], bool), 1), -np.inf, scores)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    y = rounded(p / p.sum(-1, keepdims=True), kind).astype(np.float32) @ v.astype(np.float32)
    return joined(rounded(y, kind) if kind in ("bfloat16", "float16") else y.astype(np.float64))


def inputs(B, T, heads, groups, C, kind, size=1.0):
    x = np.random.default_rng([B, T, heads, groups, C]).standard_normal((B, T, (heads + 2 * groups) * C))
    x[..., : (heads + groups) * C] *= np.sqrt(size)  # queries and keys: scores grow by `size`
    return rounded(x, kind if kind != "tf32" else "float32")


def attend(qkv, heads, groups, kind, scale, on, checked=True):
    """out and lse of the kernel, in float64. What it does not write stays NaN."""
    B, T, columns = qkv.shape
    C = columns // (heads + 2 * groups)
    given = stored(qkv, kind)
    out, lse = xp.empty((B, T, heads * C), given.dtype), xp.full((B, heads, T), np.nan, np.float32)
    out.view(xp.uint8)[...] = 0xFF
    options = dict(tf32=kind == "tf32", on=on, checked=checked)
    flash.run(flash.forward(out, lse, given, heads, groups, scale, **options))
    return values(out), values(lse)


def error(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def check(B, T, heads, groups, C, kind, on, size=1.0, scale=None, checked=True):
    qkv, scale = inputs(B, T, heads, groups, C, kind, size), C**-0.5 if scale is None else scale
    out, lse = attend(qkv, heads, groups, kind, scale, on, checked)
    wanted, logsum = exact(qkv, heads, groups, scale)
    allowed = 2 * error(plain(qkv, heads, groups, scale, kind), wanted)
    assert error(out, wanted) <= allowed + 1e-6
    rounding = size * {"tf32": 2.0**-11}.get(kind, 2.0**-23)  # of the factors of a score, of its sum
    np.testing.assert_allclose(lse, logsum, rtol=1e-6, atol=1e-5 + 8 * rounding)


# ----------------------------------------------------------------------------------------------------------------
# every kind, width and size

CASES = [
    *((1, T, 3, 1, 64, "bfloat16", on) for T in (1, 37, 65, 130) for on in (AMPERE, HOPPER)),
    *((2, 37, *heads, 32, "bfloat16", AMPERE) for heads in ((1, 1), (4, 2))),
    *((1, 70, *heads, 64, "bfloat16", on) for heads in ((2, 2), (6, 2)) for on in (AMPERE, HOPPER)),
    *((1, T, 2, 1, 128, "bfloat16", on) for T in (1, 70) for on in (AMPERE, HOPPER)),
    *((1, T, 3, 1, C, "float16", AMPERE) for T, C in ((65, 32), (37, 64), (37, 128))),
    *((1, 70, 2, 1, C, "float16", HOPPER) for C in (64, 128)),
    *((1, T, 3, 1, C, "tf32", AMPERE) for T, C in ((1, 32), (65, 32), (70, 64), (37, 128))),
    *((1, T, 2, 1, C, "float32", TURING) for T, C in ((1, 32), (37, 32), (37, 64), (19, 128))),
]


def name_of(case):
    return "-".join(f"sm{part.capability}" if isinstance(part, flash.Card) else str(part) for part in case)


@pytest.mark.full(but=["1-37-3-1-64-bfloat16-sm86"])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_equals_the_reference(case):
    check(*case)


def tiles(kind):
    """Every tile of a kind, with a width and a card that it is for."""
    choices = [(C, T, on) for C in flash.WIDTHS for T in (1, 10**6) for on in cards(kind)]
    return {flash.tile(*number_of(kind), C, T, on, kind == "tf32"): (C, on) for C, T, on in choices}


@pytest.mark.full
@pytest.mark.parametrize("kind", ["bfloat16", "tf32", "float32"])  # float16 has the tiles of bfloat16
def test_every_tile_equals_the_reference(kind, monkeypatch):
    """The tile for long texts, too, at a size that fills none; unchecked, for its time."""
    for chosen, (C, on) in tiles(kind).items():
        monkeypatch.setattr(flash, "tile", lambda *_, chosen=chosen: chosen)
        check(1, 100, 2, 1, C, kind, on, checked=False)


def number_of(kind):
    return (flash.NUMBERS["float32" if kind == "tf32" else kind],)


def cards(kind):
    return [flash.Card(80, 48 * 1024), AMPERE, HOPPER] if kind != "float32" else [TURING]


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0.0, 300.0])
def test_scores_of_any_size(kind, size):
    """All equal, or so far apart that exp overflows unless the largest is subtracted."""
    for on in cards(kind):
        check(1, 66, 2, 1, 64, kind, on, size=size)


@pytest.mark.full
def test_the_scale_is_the_callers():
    check(1, 40, 2, 2, 32, "bfloat16", AMPERE, scale=1.0, size=0.2)


@pytest.mark.full
def test_a_group_reads_its_own_keys_and_no_later_ones():
    """Values say who they are, text and group and position; queries of zero average positions 0 to t."""
    B, T, heads, groups, C = 2, 67, 6, 2, 32
    qkv = np.zeros((B, T, heads + 2 * groups, C))
    qkv[:, :, heads : heads + groups] = np.random.default_rng(0).standard_normal((B, T, groups, C))
    for text in range(B):
        for g in range(groups):
            qkv[text, :, heads + groups + g, 0] = 2 * text + g
            qkv[text, :, heads + groups + g, 1] = np.arange(T)
    out, lse = attend(qkv.reshape(B, T, -1), heads, groups, "float32", 1.0, TURING)
    out = out.reshape(B, T, heads, C)
    for head in range(heads):
        owner = 2 * np.arange(B)[:, None] + head // (heads // groups)
        np.testing.assert_allclose(out[:, :, head, 0], np.broadcast_to(owner, (B, T)), rtol=1e-6)
        np.testing.assert_allclose(out[:, :, head, 1], np.broadcast_to(np.arange(T) / 2, (B, T)), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(lse, np.broadcast_to(np.log(np.arange(1, T + 1)), (B, heads, T)), rtol=1e-6, atol=1e-6)


@pytest.mark.full
@pytest.mark.skipif(not ON_GPU or flash.card().capability < 90, reason="wgmma is Hopper's")
def test_wgmma_equals_its_twin():
    """Both round the same numbers: they differ by the order of sums alone."""
    for C in (64, 128):
        qkv = inputs(3, 333, 6, 2, C, "bfloat16")
        one, other = (attend(qkv, 6, 2, "bfloat16", C**-0.5, on) for on in (HOPPER, AMPERE))
        assert error(one[0], other[0]) < 2e-3
        np.testing.assert_allclose(one[1], other[1], rtol=1e-5, atol=1e-5)


# ----------------------------------------------------------------------------------------------------------------
# which tile


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_tiles_fit_the_card(kind):
    for C, T, on in itertools.product(flash.WIDTHS, (128, 512, 4096), (*cards(kind), TURING)):
        if on is not TURING or kind == "float32":
            assert flash.tile(*number_of(kind), C, T, on, kind == "tf32").bytes <= on.shared


def test_a_card_without_tensor_cores_takes_float32_alone():
    assert "false" in flash.tile("float", 64, 512, TURING).kernel
    for number, tf32 in (("__nv_bfloat16", False), ("__half", False), ("float", True)):
        with pytest.raises(NanoEulerError, match="tensor cores of compute capability"):
            flash.tile(number, 64, 512, TURING, tf32)


# ----------------------------------------------------------------------------------------------------------------
# the door


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(heads=3), "a multiple of groups, got 3 and 2"),
        (dict(qkv=xp.zeros((1, 5, 8 * 24), np.float32)), "32, 64 or 128, got 24"),
        (dict(qkv=xp.zeros((1, 5, 257), np.float32)), r"\(4 \+ 2 x 2\) C"),
        (dict(qkv=xp.zeros((1, 5, 256), np.float64)), "float64"),
        (dict(out=xp.zeros((1, 5, 127), np.float32)), r"out is \(1, 5, 128\) of float32, got \(1, 5, 127\)"),
        (dict(out=xp.zeros((1, 5, 128), np.float16)), "got .* of float16"),
        (dict(lse=xp.zeros((1, 5, 4), np.float32)), r"lse is \(1, 4, 5\)"),
        (dict(out=xp.zeros(641, np.float32)[1:].reshape(1, 5, 128)), "16 bytes, got 4 more"),
    ],
)
def test_what_does_not_fit_is_refused(change, words):
    given = dict(
        out=xp.zeros((1, 5, 128), np.float32), lse=xp.zeros((1, 4, 5), np.float32),
        qkv=xp.zeros((1, 5, 256), np.float32), heads=4, groups=2, scale=1.0,
    )  # fmt: skip
    with pytest.raises(NanoEulerError, match=words):
        flash.forward(**given | change)


@pytest.mark.full
def test_in_one_call():
    qkv = inputs(1, 20, 2, 1, 32, "float32")
    out, lse = flash.attention(stored(qkv, "float32"), 2, 1)
    wanted, logsum = exact(qkv, 2, 1, 32**-0.5)
    np.testing.assert_allclose(values(out), wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(values(lse), logsum, rtol=1e-5, atol=1e-5)


# ----------------------------------------------------------------------------------------------------------------
# without one of its barriers, commits and waits

TEXT = (cuda.KERNELS / "attention_forward.cu").read_text("utf-8")
ORDERING = re.compile(r"(?:__sync(?:threads|warp)|copy_async_commit|copy_async_wait<\d>)\(\);")
PLACES = list(ORDERING.finditer(TEXT))


@pytest.mark.full
@on_cpu
@pytest.mark.parametrize("number", range(len(PLACES)))
def test_without_one_of_its_barriers_waits_or_commits(number, monkeypatch):
    """The checker reports it, or the numbers are wrong."""
    text = TEXT[: PLACES[number].start()] + ";" + TEXT[PLACES[number].end() :]

    def kernel(chosen, *_):
        return cuda.module(text, where="cpu", instantiate=(chosen.kernel,))[chosen.kernel]

    monkeypatch.setattr(flash, "_kernel", kernel)
    hopper = PLACES[number].start() > TEXT.index("\nattention_forward_hopper(")
    with pytest.raises((cuda.KernelError, AssertionError)):
        if hopper:  # with one tile of values
            check(1, 100, 2, 1, 128, "bfloat16", HOPPER)
        check(1, 100, 2, 1, 64, "bfloat16", HOPPER if hopper else AMPERE)


@pytest.mark.full
def test_there_are_places_to_delete():
    assert len(PLACES) >= 10
