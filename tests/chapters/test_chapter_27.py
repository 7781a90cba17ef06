"""Chapter 27: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
import pytest
from chapters import accepts, rewritten_tests

from nanoeuler_lib import cuda
from tools.notebooks.cells import ROOT

LADDER = ROOT / "nanoeuler_book" / "ladder.cu"
NOTEBOOK = "27_flash_forward", "xp", "SWIZZLE"
pytestmark = pytest.mark.compiler


# ---- The gaps


FACTORS = "f1, f2 = np.exp(m1 - top), np.exp(m2 - top)"
WRONG_MERGES = {
    "nothing is scaled": (FACTORS, "f1 = f2 = np.ones_like(m1)"),
    "the factors change places": ("f1, f2 = np", "f2, f1 = np"),
    "the first maximum": ("np.maximum(m1, m2)", "m1"),
    "two empty sets make nan": ("np.where(np.isneginf(m), 0.0, m)", "m"),
    "o is overwritten": ("f2[..., None] * o2", "np.multiply(f2[..., None], o2, out=o2)"),
}
WRONG_TILES = {
    "free up to the last query": ("(first + 1) // keys", "(first + rows) // keys"),
    "the first query's own key left out": ("(first + 1) // keys", "first // keys"),
    "tiles behind the end": ("min(first + rows, T)", "(first + rows)"),
    "all tiles": ("min(first + rows, T)", "T"),
}
RIGHT_KERNELS = {
    "exp2": (
        ("__expf(m - larger)", "exp2f((m - larger) * 1.44269504f)"),
        ("__expf(p[j] - larger)", "exp2f((p[j] - larger) * 1.44269504f)"),
    )
}
WRONG_KERNELS = {
    "no barrier behind the product": ("__syncthreads();  // nobody", "// nobody"),
    "the tile's maximum alone": ("float larger = m;", "float larger = LOWEST;"),
    "o is not scaled": ("o[c] *= kept;", ";"),
    "no maximum subtracted": ("__expf(p[j] - larger)", "__expf(p[j])"),
}  # fmt: skip
test_right_kernels, test_wrong_gaps = rewritten_tests(
    {
        "check_merge": ("merge", {}, WRONG_MERGES),
        "check_tiles": ("tiles", {}, WRONG_TILES),
        "check_flash": ("flash_tiles", RIGHT_KERNELS, WRONG_KERNELS),
    }
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def entropy_of_whole_rows(tiles):
    """Another right answer, though not the one that is asked for: all rows at once."""
    scores = np.concatenate([s.copy() for s in tiles], axis=1)
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    return -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(axis=1)


test_right_entropies = accepts({"check_entropy": [entropy_of_whole_rows]})


# ---- Further on: the ladder


@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5])
def test_rungs_compute_attention(rung):
    """At odd lengths, with and without groups; outputs are rounded to 8 bits, so the tolerance is two roundings."""
    rng = np.random.default_rng(rung)
    kernel = cuda.module(LADDER, where="cpu", defines={"RUNG": rung})["ladder"]
    for heads, group, T, size in ((1, 1, 1, 1), (2, 2, 70, 1), (1, 1, 200, 20)):
        bits = [as_bits(rng.standard_normal((n, T, 64))) for n in (heads, heads // group, heads // group)]
        y, lse = np.full((heads, T, 64), 0x7FC0, np.uint16), np.full((heads, T), np.nan, np.float32)
        kernel((-(-T // (128 if rung == 5 else 64)), heads), 128, (*bits, y, lse, T, group, size / 8))
        q, k, v = map(from_bits, bits)
        for head in range(heads):
            scores = np.where(np.tri(T, dtype=bool), size / 8 * q[head] @ k[head // group].T, -np.inf)
            top = scores.max(axis=1, keepdims=True)
            e = np.exp(scores - top)
            wanted = e / e.sum(axis=1, keepdims=True) @ v[head // group]
            assert np.abs(from_bits(y[head]) - wanted).max() <= 2 * 2.0**-8 * np.abs(v).max()
            np.testing.assert_allclose(lse[head], top[:, 0] + np.log(e.sum(axis=1)), rtol=1e-5, atol=1e-5)


def as_bits(x):
    """Round to the nearest bfloat16, as uint16."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bits(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
