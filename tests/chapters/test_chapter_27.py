"""Chapter 27: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
import pytest
from chapters import accepts, rewritten_tests

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
