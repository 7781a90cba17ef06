"""Chapter 28: its checks accept what is right and reject wrong answers, each of them named."""

import math

import numpy as np
import pytest
from chapters import accepts, gap_tests, rewritten_tests

NOTEBOOK = "28_flash_backward", "xp", "MISTAKES"
pytestmark = pytest.mark.compiler


# ---- The gaps


def tile_with(mask=True, times=False, with_delta=True, turned=False, over=False):
    """A tile's parts, with a mistake."""

    def tile(q, k, v, dy, lse, delta, allowed):
        scale = 1 / math.sqrt(q.shape[1])
        s = scale * (q @ k.T)
        p = np.exp(s - lse[:, None])
        p = p * allowed if times else np.where(allowed, p, 0) if mask else p
        ds = scale * p * (dy @ v.T - (delta[:, None] if with_delta else 0))
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
    "infinity times the mask": dict(times=True),
    "no delta": dict(with_delta=False),
    "dk and dv change places": dict(turned=True),
    "q is overwritten": dict(over=True),
}


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
    "free one later": lambda start, keys, rows, T: (start // rows, (min(start + keys, T) - 1) // rows + 1),
    "keys behind the end": lambda start, keys, rows, T: (start // rows, -(-(start + keys - 1) // rows)),
    "never free": lambda start, keys, rows, T: (start // rows, -(-T // rows)),
}


RIGHT_KERNELS = {
    "exp2": (("__expf(scale * dot - lse[query])", "exp2f((scale * dot - lse[query]) * 1.44269504f)"),),
    "p first, ds from all p": (
        ("seen ? p[j] * (dp - delta[query]) : 0.0f", "p[j] * (dp - (query < T ? delta[query] : 0.0f))"),
    ),
}
WRONG_KERNELS = {
    "no barrier before the sums": ("__syncthreads();  // all", "// all"),
    "no barrier behind the sums": ("__syncthreads();  // nobody", "// nobody"),
    "infinity times the mask": (
        "seen ? __expf(scale * dot - lse[query]) : 0.0f",
        "__expf(scale * dot - (query < T ? lse[query] : 0.0f)) * (seen ? 1.0f : 0.0f)",
    ),
    "the diagonal left out": ("position <= query", "position < query"),
    "delta of the key": ("delta[query]", "delta[position]"),
    "a lane's own weights": ("__shfl_sync(0xffffffffu, p[j / 4], j % 4, 4)", "p[j / 4]"),
    "reads behind the end": ("position <= query && query < T", "position <= query"),
}
RIGHT_QUERIES = {
    "masked by a huge negative score": (
        (
            "seen ? __expf(scale * dot - lse) * (dp - delta) : 0.0f",
            "__expf((seen ? scale * dot : -1e30f) - lse) * (dp - delta)",
        ),
    ),
}
WRONG_QUERIES = {
    "no mask": ("bool seen = start + key <= position", "bool seen = true"),
    "the diagonal left out": ("start + key <= position", "start + key < position"),
    "infinity times the mask": (
        "seen ? __expf(scale * dot - lse) * (dp - delta) : 0.0f",
        "(seen ? 1.0f : 0.0f) * __expf(scale * dot - lse) * (dp - delta)",
    ),
    "values in the place of keys": ("* ks[j][4 * c + part]", "* vs[j][4 * c + part]"),
    "scaled twice": ("sum[c] += change", "sum[c] += scale * change"),
    "a lane's own": ("__shfl_sync(0xffffffffu, ds[j / 4], j % 4, 4)", "ds[j / 4]"),
}
test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_tile": (
            [
                tile_with(),
                tile_by_loops,
                tile_by_einsum,
                lambda *given: [x.tolist() for x in tile_with()(*given)],
            ],
            {mistake: tile_with(**change) for mistake, change in WRONG_TILES.items()},
        ),
        "check_query_tiles": ([count_tiles, walk_tiles], WRONG_QUERY_TILES),
    }
)
test_right_kernels, test_wrong_kernels = rewritten_tests(
    {
        "check_keys": ("keys_kernel", RIGHT_KERNELS, WRONG_KERNELS),
        "check_queries": ("queries_kernel", RIGHT_QUERIES, WRONG_QUERIES),
    }
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


test_other_launches_hide_as_well = accepts(
    {"check_launch": [lambda: {"A": (3, 1, 70), "B": np.array([3, 3, 5]), "C": [4, 2, 32], "D": None}]}
)
