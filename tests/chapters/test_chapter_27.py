"""Chapter 27: its checks accept right answers and reject named wrong answers; its comparison runs on any GPU."""

import math

import numpy as np
import pytest
from chapters import accepts, rejects, rewritten_tests

from nanoeuler_book.checks import verdict
from nanoeuler_lib import cuda
from nanoeuler_lib.cuda.blas import from_bfloat16, to_bfloat16
from nanoeuler_lib.engine import flash
from tools.notebooks.cells import ROOT

NOTEBOOK = "27_flash_forward", "xp", "SWIZZLE", "MATRIX", "HALVES"
LADDER = ROOT / "nanoeuler_book" / "ladder.cu"
pytestmark = pytest.mark.compiler


# ---- The gaps


FACTORS = "f1, f2 = np.exp(m1 - top), np.exp(m2 - top)"
WRONG_MERGES = {
    "nothing is scaled": (FACTORS, "f1 = f2 = np.ones_like(m1)"),
    "the factors are swapped": ("f1, f2 = np", "f2, f1 = np"),
    "only the first maximum": ("np.maximum(m1, m2)", "m1"),
    "two empty sets give NaN": ("np.where(np.isneginf(m), 0.0, m)", "m"),
    "o is overwritten": ("f2[..., None] * o2", "np.multiply(f2[..., None], o2, out=o2)"),
}
WRONG_TILES = {
    "free for the last query only": ("(first + 1) // keys", "(first + rows) // keys"),
    "without the first query's own key": ("(first + 1) // keys", "first // keys"),
    "tiles beyond the end": ("min(first + rows, T)", "(first + rows)"),
    "all tiles": ("min(first + rows, T)", "T"),
}
RIGHT_KERNELS = {
    "exp2": (
        ("__expf(m - larger)", "exp2f((m - larger) * 1.44269504f)"),
        ("__expf(p[j] - larger)", "exp2f((p[j] - larger) * 1.44269504f)"),
    )
}
WRONG_KERNELS = {
    "no barrier after the product": ("__syncthreads();  // no thread", "// no thread"),
    "only the tile's maximum": ("float larger = m;", "float larger = LOWEST;"),
    "o is not scaled": ("o[c] *= kept;", ";"),
    "eight outputs for every width": ("c < C / 4; c++) o[c] *= kept", "c < 8; c++) o[c] *= kept"),
    "no maximum subtracted": ("__expf(p[j] - larger)", "__expf(p[j])"),
}  # fmt: skip
test_right_kernels, test_wrong_gaps = rewritten_tests(
    {
        "check_merge": ("merge", {}, WRONG_MERGES),
        "check_tiles": ("tiles", {}, WRONG_TILES),
        "check_flash": ("flash_tiles", RIGHT_KERNELS, WRONG_KERNELS),
    }
)


def merge_with_nan(a, b):
    """The merge without a special case: e^(m1 - m) is NaN if both sets are empty."""
    (m1, l1, o1), (m2, l2, o2) = a, b
    m = np.maximum(m1, m2)
    f1, f2 = np.exp(m1 - m), np.exp(m2 - m)
    return m, f1 * l1 + f2 * l2, f1[..., None] * o1 + f2[..., None] * o2


def test_a_nan_of_two_empty_sets_is_named(chapter):
    line = verdict(chapter.check_merge, merge_with_nan)
    assert line == "l is NaN, in a row where both sets are empty"


def tiles_of_numpy(first, rows, keys, T):
    return np.int64((first + 1) // keys), np.int64(-(-min(first + rows, T) // keys))


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def predictions_of_numpy():
    return {
        "tiles": [np.int64(10), np.int32(4)],
        "smaller": [np.int64, lambda n: np.int64(1)],
        "moved": np.array([0, 5]),
    }


def entropy_by_rows(tiles):
    """A different right answer: floats in lists, and the weighted sum of scores instead of t."""
    state = []
    for tile in tiles:
        state = state or [[-math.inf, 0.0, 0.0] for _ in tile]
        for row, scores in zip(state, tile.tolist(), strict=True):
            for s in scores:
                if s > -math.inf:
                    m, l, u = row
                    top = max(m, s)
                    old, new = math.exp(m - top), math.exp(s - top)
                    row[:] = top, old * l + new, old * (u + (m - top) * l if l else 0.0) + new * (s - top)
    return [math.log(l) - u / l for _, l, u in state]


def rounding_by_rows(size, mean, rng):
    """A different right answer, row by row, from one draw of both arrays."""
    scores, rests = rng.standard_normal((2, 200, 512))
    errors = []
    for s, rest in zip(size * scores, rests, strict=True):
        exact, v = np.exp(s - max(s)), rest + mean
        fraction, exponent = np.frexp(exact.astype(np.float32))
        rounded = np.ldexp(np.rint(256.0 * fraction), exponent - 8).astype(np.float64)
        errors.append([rounded @ v / below.sum() - exact @ v / exact.sum() for below in (rounded, exact)])
    return np.sqrt(np.mean(np.square(errors), axis=0))


def rounding_of_one_row(size, mean, rng):
    scores, values = size * rng.standard_normal(512), mean + rng.standard_normal(512)
    return abs(scores.mean() / 1e3), abs(values.mean() / 1e3)


test_right_answers = accepts(
    {
        "check_tiles": [tiles_of_numpy],
        "check_predictions": [predictions_of_numpy],
        "check_entropy": [entropy_by_rows],
        "check_rounding": [rounding_by_rows],
    }
)
test_wrong_answers = rejects(
    {
        "check_entropy": {"all scores in a list": lambda tiles: entropy_by_rows([tile.copy() for tile in tiles])},
        "check_rounding": {"one row": rounding_of_one_row},
    }
)


# ---- The comparison


def tried(chapter, name):
    size, make = chapter.versions(1, 2, 1, 34, 64)[name]
    return chapter.try_version(size, make, launches=1)


@pytest.mark.parametrize("capability, missing", [(75, {"TF32", "bfloat16"}), (86, set()), (90, set())])
def test_a_gpu_skips_only_versions_without_its_instructions(chapter, monkeypatch, capability, missing):
    monkeypatch.setattr(flash, "card", lambda where=None: flash.Card(capability, 99 << 10))
    monkeypatch.setitem(chapter.versions.__globals__, "card", flash.card)
    for name in chapter.versions(1, 2, 1, 34, 64):
        found = tried(chapter, name)
        skipped = name.split(", ")[1] in missing
        assert isinstance(found, str) == skipped, name
        assert not skipped or "needs compute capability 8.0 or later, this GPU has 7.5" in found


def test_a_version_that_does_not_fit_is_skipped(chapter, monkeypatch):
    names = chapter.measure_attention.__globals__
    monkeypatch.setitem(names, "free_bytes", lambda where: 300_000)
    sizes = {name: size for name, (size, _) in chapter.versions(1, 2, 1, 34, 64).items()}
    assert max(sizes.values()) < 300_000  # here everything fits
    rows = chapter.measure_attention(shapes=((1, 2, 1, 200),), launches=1)
    assert [("ms" in row, "skipped" in row) for row in rows] == [(False, True)] * len(sizes)
    assert rows[0]["skipped"] == "needs 0.0 GB of memory, 0.0 GB are free"
    monkeypatch.setitem(names, "free_bytes", lambda where: 9_000_000)
    rows = chapter.measure_attention(shapes=((1, 2, 1, 1024),), launches=1)
    assert {row["version"] for row in rows if "skipped" in row} == {"whole matrix, float32", "whole matrix, bfloat16"}


# ---- Further on: the ladder


@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5])
def test_rungs_compute_attention(rung):
    """At odd lengths, with and without groups; outputs are rounded to 8 bits, so the tolerance is two roundings."""
    rng = np.random.default_rng(rung)
    kernel = cuda.module(LADDER, where="cpu", defines={"RUNG": rung})["ladder"]
    for heads, group, T, size in ((1, 1, 1, 1), (2, 2, 70, 1), (1, 1, 200, 20)):
        bits = [to_bfloat16(rng.standard_normal((n, T, 64))) for n in (heads, heads // group, heads // group)]
        y, lse = np.full((heads, T, 64), 0x7FC0, np.uint16), np.full((heads, T), np.nan, np.float32)
        kernel((-(-T // (128 if rung == 5 else 64)), heads), 128, (*bits, y, lse, T, group, size / 8))
        q, k, v = (from_bfloat16(x).astype(np.float64) for x in bits)
        for head in range(heads):
            scores = np.where(np.tri(T, dtype=bool), size / 8 * q[head] @ k[head // group].T, -np.inf)
            top = scores.max(axis=1, keepdims=True)
            e = np.exp(scores - top)
            wanted = e / e.sum(axis=1, keepdims=True) @ v[head // group]
            assert np.abs(from_bfloat16(y[head]) - wanted).max() <= 2 * 2.0**-8 * np.abs(v).max()
            np.testing.assert_allclose(lse[head], top[:, 0] + np.log(e.sum(axis=1)), rtol=1e-5, atol=1e-5)
