"""Chapter 27: its checks accept what is right and reject wrong answers, each of them named."""

import math

import numpy as np
import pytest
from chapters import accepts, gap_tests, rewritten_tests

NOTEBOOK = "27_flash_forward", "xp", "SWIZZLE"
pytestmark = pytest.mark.compiler


# ---- The gaps


def merge_with(shift=True, swap=False, empties=True, over=False, largest=np.maximum):
    """The rule, with a mistake."""

    def merge(a, b):
        (m1, l1, o1), (m2, l2, o2) = a, b
        m = largest(m1, m2)
        top = np.where(np.isneginf(m), 0.0, m) if empties else m
        f1, f2 = (np.exp(x - top) if shift else np.ones_like(x) for x in (m1, m2))
        f1, f2 = (f2, f1) if swap else (f1, f2)
        l = f1 * l1 + f2 * l2
        o = f1[..., None] * o1 + f2[..., None] * o2
        if over:
            np.copyto(o1, o)
        return m, l, o

    return merge


def merge_one_row_at_a_time(a, b):
    """Another right answer: numbers of Python, and no exponential of an empty set."""
    (m1, l1, o1), (m2, l2, o2) = a, b
    m, l, o = m1.copy(), l1.copy(), o1.copy()
    for at in np.ndindex(m.shape):
        if m2[at] == -math.inf:
            continue
        if m1[at] == -math.inf:
            m[at], l[at], o[at] = m2[at], l2[at], o2[at]
            continue
        m[at] = max(m1[at], m2[at])
        f1, f2 = math.exp(m1[at] - m[at]), math.exp(m2[at] - m[at])
        l[at], o[at] = f1 * l1[at] + f2 * l2[at], f1 * o1[at] + f2 * o2[at]
    return m, l, o


WRONG_MERGES = {
    "nothing is scaled": dict(shift=False),
    "the factors change places": dict(swap=True),
    "two empty sets make nan": dict(empties=False),
    "o is overwritten": dict(over=True),
    "the first maximum": dict(largest=lambda a, b: a),
}


def count_tiles(first, rows, keys, T):
    """Another right answer: ask every pair."""
    kinds = []
    for start in range(0, T, keys):
        seen = [j <= i for i in range(first, min(first + rows, T)) for j in range(start, start + keys)]
        kinds.append((all(seen), any(seen)))
    return sum(every for every, _ in kinds), sum(some for _, some in kinds)


def walk_tiles(first, rows, keys, T):
    """Another: step by step."""
    free = end = 0
    while (free + 1) * keys - 1 <= first:
        free += 1
    while end * keys < min(first + rows, T):
        end += 1
    return free, end


FREE_UP_TO_THE_LAST = lambda first, rows, keys, T: ((first + rows) // keys, -(-min(first + rows, T) // keys))
OWN_KEY_LEFT_OUT = lambda first, rows, keys, T: (first // keys, -(-min(first + rows, T) // keys))
WRONG_TILES = {
    "free up to the last query": FREE_UP_TO_THE_LAST,
    "the first query's own key left out": OWN_KEY_LEFT_OUT,
    "tiles behind the end": lambda first, rows, keys, T: ((first + 1) // keys, -(-(first + rows) // keys)),
    "all tiles": lambda first, rows, keys, T: ((first + 1) // keys, -(-T // keys)),
    "none is free": lambda first, rows, keys, T: (0, -(-min(first + rows, T) // keys)),
    "mixed ones counted, not ended": lambda first, rows, keys, T: (
        (first + 1) // keys, -(-min(first + rows, T) // keys) - (first + 1) // keys,
    ),
}  # fmt: skip


RIGHT_KERNELS = {
    "exp2": (
        ("__expf(m - larger)", "exp2f((m - larger) * 1.44269504f)"),
        ("__expf(p[j] - larger)", "exp2f((p[j] - larger) * 1.44269504f)"),
    ),
    "the maximum of all, by its own shuffles": (
        (
            "larger = quad_max(larger);",
            "for (int d = 1; d < 4; d *= 2) larger = fmaxf(larger, __shfl_xor_sync(0xffffffffu, larger, d));",
        ),
    ),
}
WRONG_KERNELS = {
    "no barrier before the product": ("__syncthreads();  // all", "// all"),
    "no barrier behind the product": ("__syncthreads();  // nobody", "// nobody"),
    "a lane's own maximum": ("larger = quad_max(larger);", ""),
    "the tile's maximum alone": ("float larger = m;", "float larger = LOWEST;"),
    "o is not scaled": ("o[c] *= kept;", ";"),
    "no maximum subtracted": ("__expf(p[j] - larger)", "__expf(p[j])"),
}  # fmt: skip
test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_merge": (
            [
                merge_with(),
                merge_one_row_at_a_time,
                lambda a, b: [x.tolist() for x in merge_with()(a, b)],
            ],
            {mistake: merge_with(**change) for mistake, change in WRONG_MERGES.items()},
        ),
        "check_tiles": ([count_tiles, walk_tiles], WRONG_TILES),
    }
)
test_right_kernels, test_wrong_kernels = rewritten_tests({"check_flash": ("flash_tiles", RIGHT_KERNELS, WRONG_KERNELS)})


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def entropy_of_whole_rows(tiles):
    """Another right answer, though not the one that is asked for: all rows at once."""
    scores = np.concatenate([s.copy() for s in tiles], axis=1)
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    return -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(axis=1)


def entropy_by_mean_score(tiles):
    """Another: lse minus the mean score, both carried along as quotients."""
    m, l, u = -np.inf, 0.0, 0.0  # u: the weighted sum of scores, measured from m
    rows = None
    for s in tiles:
        if rows is None:
            rows = len(s)
            m, l, u = np.full(rows, -np.inf), np.zeros(rows), np.zeros(rows)
        for r in range(rows):
            for x in s[r][s[r] > -np.inf]:
                top = max(m[r], x)
                old = math.exp(m[r] - top) if l[r] else 0.0
                drop = m[r] - top if l[r] else 0.0
                u[r] = old * (u[r] + drop * l[r]) + math.exp(x - top) * (x - top)
                l[r] = old * l[r] + math.exp(x - top)
                m[r] = top
    return np.log(l) - u / l


test_right_entropies = accepts({"check_entropy": [entropy_of_whole_rows, entropy_by_mean_score]})
