"""Chapter 28: its checks accept what is right and reject wrong answers, each of them named."""

import math

import numpy as np
import pytest
from chapters import definitions, rejected, try_exercise

from nanoeuler_lib import cuda
from nanoeuler_lib.practice import verdict
from tools.chapter_mutants import Gap, Value

NOTEBOOK = "28_flash_backward", "xp", "MISTAKES"
pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module")
def chapter():
    return definitions(*NOTEBOOK)


# ---- The gaps


def test_untouched_gaps_say_so(chapter):
    c = chapter
    assert c.check_tile(c.my_tile_back) == "not written yet"
    assert c.check_query_tiles(c.my_query_tiles) == "not written yet"
    assert c.check_keys(c.my_keys) == "not written yet"


def test_the_book_fills_its_gaps(chapter):
    assert verdict(chapter.check_tile, chapter.tile_back) == "right"
    assert verdict(chapter.check_query_tiles, chapter.query_tiles) == "right"
    assert verdict(chapter.check_keys, chapter.keys_kernel) == "right"


def tile_with(mask=True, with_lse=True, with_delta=True, in_s=True, in_ds=True, turned=False, over=False):
    """A tile's parts, with a mistake."""

    def tile(q, k, v, dy, lse, delta, allowed):
        scale = 1 / math.sqrt(q.shape[1])
        s = (scale if in_s else 1) * (q @ k.T)
        p = np.exp(s - (lse[:, None] if with_lse else 0))
        p = np.where(allowed, p, 0) if mask else p
        ds = (scale if in_ds else 1) * p * (dy @ v.T - (delta[:, None] if with_delta else 0))
        if over:
            q *= 2
        dk, dv = ds.T @ q, p.T @ dy
        return (ds @ k, dv, dk) if turned else (ds @ k, dk, dv)

    return tile


def tile_by_loops(q, k, v, dy, lse, delta, allowed):
    """Another right answer: a pair at a time."""
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for i, j in np.argwhere(allowed):
        weight = math.exp(q[i] @ k[j] / math.sqrt(q.shape[1]) - lse[i])
        ds = weight * (dy[i] @ v[j] - delta[i]) / math.sqrt(q.shape[1])
        dq[i] += ds * k[j]
        dk[j] += ds * q[i]
        dv[j] += weight * dy[i]
    return dq, dk, dv


def tile_by_einsum(q, k, v, dy, lse, delta, allowed):
    """Another: masked before the exponential, all sums by einsum."""
    s = np.einsum("ic,jc->ij", q, k) / math.sqrt(q.shape[1]) - lse[:, None]
    p = np.exp(np.where(allowed, s, -np.inf))
    ds = p * (np.einsum("ic,jc->ij", dy, v) - delta[:, None]) / math.sqrt(q.shape[1])
    return np.einsum("ij,jc->ic", ds, k), np.einsum("ij,ic->jc", ds, q), np.einsum("ij,ic->jc", p, dy)


WRONG_TILES = {
    "no mask": dict(mask=False),
    "no lse": dict(with_lse=False),
    "no delta": dict(with_delta=False),
    "scores not scaled": dict(in_s=False),
    "ds not scaled": dict(in_ds=False),
    "dk and dv change places": dict(turned=True),
    "q is overwritten": dict(over=True),
}


@pytest.mark.parametrize("right", [tile_with(), tile_by_loops, tile_by_einsum])
def test_right_tiles(chapter, right):
    assert verdict(chapter.check_tile, right) == "right"


@pytest.mark.parametrize("mistake", WRONG_TILES)
def test_wrong_tiles(chapter, mistake):
    assert verdict(chapter.check_tile, tile_with(**WRONG_TILES[mistake])) not in ("right", "not written yet")


def count_tiles(start, keys, rows, T):
    """Another right answer: ask every pair."""
    kinds = []
    for first in range(0, T, rows):
        queries, own = range(first, min(first + rows, T)), range(start, min(start + keys, T))
        seen = [j <= i for i in queries for j in own]
        kinds.append((any(seen), all(seen)))
    return sum(not some for some, _ in kinds), sum(not every for _, every in kinds)


def walk_tiles(start, keys, rows, T):
    """Another: step by step."""
    begin = free = 0
    while (begin + 1) * rows <= start:
        begin += 1
    while free * rows < min(start + keys, T) - 1 and free * rows < T:
        free += 1
    return begin, free


WRONG_QUERY_TILES = {
    "from the first tile": lambda start, keys, rows, T: (0, -(-(min(start + keys, T) - 1) // rows)),
    "rounded up": lambda start, keys, rows, T: (-(-start // rows), -(-(min(start + keys, T) - 1) // rows)),
    "free one later": lambda start, keys, rows, T: (start // rows, (min(start + keys, T) - 1) // rows + 1),
    "keys behind the end": lambda start, keys, rows, T: (start // rows, -(-(start + keys - 1) // rows)),
    "one key too many": lambda start, keys, rows, T: (start // rows, -(-min(start + keys, T) // rows)),
    "never free": lambda start, keys, rows, T: (start // rows, -(-T // rows)),
}


@pytest.mark.parametrize("right", [count_tiles, walk_tiles])
def test_right_query_tiles(chapter, right):
    assert verdict(chapter.check_query_tiles, right) == "right"


@pytest.mark.parametrize("mistake", WRONG_QUERY_TILES)
def test_wrong_query_tiles(chapter, mistake):
    wrong = WRONG_QUERY_TILES[mistake]
    assert verdict(chapter.check_query_tiles, wrong) not in ("right", "not written yet")


RIGHT_KERNELS = {
    "exp2": (("__expf(scale * dot - lse[query])", "exp2f((scale * dot - lse[query]) * 1.44269504f)"),),
    "p first, ds from all p": (
        ("seen ? p[j] * (dp - delta[query]) : 0.0f", "p[j] * (dp - (query < T ? delta[query] : 0.0f))"),
    ),
}
WRONG_KERNELS = {
    "no mask": ("position <= query && query < T", "query < T"),
    "the diagonal left out": ("position <= query", "position < query"),
    "the mask turned": ("position <= query", "position >= query"),
    "no lse": (" - lse[query])", ")"),
    "no delta": ("(dp - delta[query])", "dp"),
    "delta of the key": ("delta[query]", "delta[position]"),
    "dv from ds": ("sum_v[c] += weight", "sum_v[c] += slope"),
    "dk from p": ("sum_k[c] += slope", "sum_k[c] += weight"),
    "dv from q": ("* gs[j][4 * c + part]", "* qs[j][4 * c + part]"),
    "overwritten": ("sum_v[c] += weight", "sum_v[c] = weight"),
    "scores not scaled": ("scale * dot", "dot"),
    "a lane's own weights": ("__shfl_sync(0xffffffffu, p[j / 4], j % 4, 4)", "p[j / 4]"),
    "half of the queries": ("for (int j = 0; j < ROWS; j++)", "for (int j = 0; j < ROWS / 2; j++)"),
    "reads behind the end": ("position <= query && query < T", "position <= query"),
}


@pytest.mark.parametrize("name", RIGHT_KERNELS)
def test_right_kernels(chapter, name):
    assert verdict(chapter.check_keys, changed(chapter.keys_kernel, *RIGHT_KERNELS[name])) == "right"


@pytest.mark.parametrize("mistake", WRONG_KERNELS)
def test_wrong_kernels(chapter, mistake):
    wrong = changed(chapter.keys_kernel, WRONG_KERNELS[mistake])
    assert verdict(chapter.check_keys, wrong) not in ("right", "not written yet")


def changed(kernel, *changes):
    text = kernel.module.source
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return cuda.module(text)[kernel.name]


@pytest.mark.parametrize("barrier", ["__syncthreads();  // nobody", "__syncthreads();  // all"])
def test_a_deleted_barrier_is_reported(chapter, barrier):
    assert rejected(chapter.check_keys, changed(chapter.keys_kernel, (barrier, "//")))


@pytest.mark.parametrize("heads, group, T, size", [(1, 1, 1, 1), (2, 2, 37, 1), (4, 2, 70, 8)])
def test_the_queries_kernel(chapter, heads, group, T, size):
    """dq and delta against the whole matrix in float64."""
    rng = np.random.default_rng(T)
    q, dy = rng.standard_normal((2, heads, T, 32), dtype=np.float32)
    k, v = rng.standard_normal((2, heads // group, T, 32), dtype=np.float32)
    q *= size
    ends = [chapter.forward(q[h], k[h // group], v[h // group])[:2] for h in range(heads)]
    y, lse = (np.stack(x).astype(np.float32) for x in zip(*ends, strict=True))
    dq, delta = np.full_like(q, np.nan), np.full_like(lse, np.nan)
    arrays = q, k, v, y, dy, lse, delta, dq
    chapter.queries_kernel.on_cpu()((-(-T // 32), heads), 128, (*arrays, T, group, 1 / math.sqrt(32)))
    for h in range(heads):
        wanted = chapter.gradients(q[h], k[h // group], v[h // group], dy[h])[0]
        np.testing.assert_allclose(dq[h], wanted, atol=2e-4 * (1 + np.abs(wanted).max()))
        np.testing.assert_allclose(delta[h], (dy[h] * ends[h][0]).sum(axis=1), atol=1e-3)


# ---- The exercises: check, stub, solution, and the wrong answers that the notebook itself names

EXERCISES = {
    "predict": lambda c: (c.check_predictions, c.my_predictions, c.predictions, c.wrong_predictions),
    "cap": lambda c: (c.check_cap, c.my_capped_tile, c.capped_tile, c.wrong_caps),
    "launch": lambda c: (c.check_launch, c.my_launch, c.launch, c.wrong_launches),
    "exact": lambda c: (c.check_exactness, c.my_exactness, c.exactness, c.wrong_exactness),
}


@pytest.mark.parametrize("parts", EXERCISES.values(), ids=EXERCISES)
def test_exercise_check(chapter, parts):
    try_exercise(*parts(chapter))


@pytest.mark.parametrize("launch", [(2, 2, 33), (3, 3, 70)])
def test_other_launches_tell_as_well(chapter, launch):
    assert verdict(chapter.check_launch, lambda: launch) == "right"


# ---- What the mutants of `make mutants CH=28` are compared on


def tiles_of(rng, cap=False):
    R, K, C = (int(n) for n in rng.integers(1, 6, 3))
    q, dy = rng.choice([1.0, 10.0]) * rng.normal(size=(2, R, C))
    k, v = rng.normal(size=(2, K, C))
    allowed = rng.random((R, K)) < 0.7
    a = float(rng.choice([0.7, 5.0]))
    s = q @ k.T / math.sqrt(C)
    s = a * np.tanh(s / a) if cap else s
    lse = np.logaddexp.reduce(s, axis=1) + rng.random(R)
    given = q, k, v, dy, lse, rng.normal(size=R), allowed
    return (*given, a) if cap else given


def sizes_of(rng):
    T, rows, keys = (int(n) for n in rng.integers(1, (70, 20, 20)))
    return int(rng.integers(0, -(-T // keys))) * keys, keys, rows, T


def launches(rng, size=None):
    heads, group, T = size or (*[(1, 1), (2, 1), (2, 2), (4, 2)][rng.integers(4)], int(rng.integers(1, 70)))
    q, dy = rng.normal(size=(2, heads, T, 32)).astype(np.float32)
    k, v = rng.normal(size=(2, heads // group, T, 32)).astype(np.float32)
    return q, k, v, dy


def outputs(c, given):
    return tuple(np.round(x.astype(np.float64), 2) for x in c.keys_of(c.keys_kernel, *given))


def rounded(parts):
    return tuple(np.round(x, 9) + 0.0 for x in parts)


def tells(c, launch):
    """By what the mistakes are: a group, a ragged text, and a second tile in some block's loop."""
    heads, group, T = launch
    return 1 <= T <= 70 and 1 <= heads <= 4 and heads % group == 0 and group > 1 and T % 32 != 0


EDGE = np.random.default_rng(0)
DOMAINS = [
    Gap("check_tile", ("tile_back",), lambda c: verdict(c.check_tile, c.tile_back),
        lambda c, x: rounded(c.tile_back(*x)), tiles_of),
    Gap("check_query_tiles", ("query_tiles",), lambda c: verdict(c.check_query_tiles, c.query_tiles),
        lambda c, x: tuple(c.query_tiles(*x)), sizes_of, [(0, 8, 8, 1), (32, 8, 16, 33)]),
    Gap("check_keys", ("keys_kernel",), lambda c: verdict(c.check_keys, c.keys_kernel),
        outputs, launches, [launches(EDGE, (1, 1, 1)), launches(EDGE, (4, 2, 65))]),
    Gap("check_cap", ("capped_tile",), lambda c: verdict(c.check_cap, c.capped_tile),
        lambda c, x: rounded(c.capped_tile(*x)), lambda rng: tiles_of(rng, cap=True)),
    Value("check_launch", "launch", lambda c, value: verdict(c.check_launch, lambda: value), tells),
]  # fmt: skip
