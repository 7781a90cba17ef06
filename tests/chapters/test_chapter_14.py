"""Chapter 14: its checks accept what is right and reject wrong answers, each of them named."""

import math

import numpy as np
from chapters import definitions, gap_tests, slips

NOTEBOOK = ("14_sampling",)
BOOK = definitions(*NOTEBOOK)

# ---- The gaps


def last_possible(p):
    return np.where(p > 0, np.arange(p.shape[-1]), 0).max(axis=-1)


def draw(p, r, passed=lambda sums, r: sums <= r, last=last_possible, one=False):
    """The token on whose piece r falls, with one thing wrong, if asked."""
    r = np.broadcast_to(np.ravel(r)[0], np.shape(r)) if one else np.asarray(r)
    return np.minimum(passed(np.cumsum(p, axis=-1), r[..., None]).sum(axis=-1), last(p))


WRONG_DRAWS = {
    "a token of probability 0 at the edge": dict(passed=np.less),
    "a forbidden token beyond the last sum": dict(last=lambda p: p.shape[-1] - 1),
    "the first r for all rows": dict(one=True),
    "compared in float32": dict(passed=lambda sums, r: sums.astype("f4") <= r.astype("f4")),
}


def keep_top_p(p, threshold, sums=lambda q: np.cumsum(q, axis=-1) - q, order=lambda p: np.argsort(-p, axis=-1)):
    """The tokens that top-p keeps, with one thing wrong, if asked."""
    order = order(p)
    kept = np.empty(p.shape, bool)
    falling = np.take_along_axis(p, order, axis=-1)
    np.put_along_axis(kept, order, sums(falling) < threshold, axis=-1)
    return kept


WRONG_TOP_P = {
    "drops the token that reaches the threshold": dict(sums=lambda q: np.cumsum(q, axis=-1)),
    "in the vocabulary's order": dict(order=lambda p: np.broadcast_to(np.arange(p.shape[-1]), p.shape)),
}


def cached(q, k, v, keys, values, start=None, groups=np.repeat, order=1, longer=True, shift=True):
    """Attention with a cache, with one thing wrong, if asked."""
    H, G, m, C = q.shape[1], k.shape[1], *q.shape[2:]
    n = keys.shape[2] if start is None else start
    new_keys, new_values = (np.concatenate(pair[::order], axis=2) for pair in ((keys, k), (values, v)))
    serve = (lambda a: np.repeat(a, H // G, axis=1)) if groups is np.repeat else lambda a: np.tile(a, (1, H // G, 1, 1))
    scores = q @ serve(new_keys).swapaxes(-1, -2) / math.sqrt(C)
    places = np.arange(new_keys.shape[2])
    scores = np.where(places < np.arange(n, n + m)[:, None] + 1, scores, -np.inf)
    with np.errstate(invalid="ignore", over="ignore"):
        e = np.exp(scores - scores.max(axis=-1, keepdims=True) if shift else scores)
        y = e / e.sum(axis=-1, keepdims=True) @ serve(new_values)
    return y, *((new_keys, new_values) if longer else (keys, values))


WRONG_CACHED = {
    "the mask forgets the cache": dict(start=0),
    "query head h reads key head h mod G": dict(groups=np.tile),
    "new ones in front": dict(order=-1),
    "the cache does not grow": dict(longer=False),
    "exp of scores that overflow": dict(shift=False),
}
# Wrong answers that the checks once took for right


def count(p, r):
    return (np.cumsum(p, -1) <= np.asarray(r)[..., None]).sum(-1)


def likeliest_beyond(p, r):
    return np.where(count(p, r) == p.shape[-1], p.argmax(-1), count(p, r))


def one_back(p, r):
    n = np.minimum(count(p, r), p.shape[-1] - 1)
    return np.where(np.take_along_axis(p, n[..., None], -1)[..., 0] == 0, n - 1, n)


def two_axes(p, r):
    p2, r2 = np.atleast_2d(p), np.atleast_1d(r)
    out = np.minimum((np.cumsum(p2, 1) <= r2[:, None]).sum(1), last_possible(p2))
    return out if np.ndim(p) == 2 else out[0]


def ties_kept(p, t):
    falling = -np.sort(-p, -1)
    n = (np.cumsum(falling, -1) < t).sum(-1, keepdims=True)
    return p >= np.take_along_axis(falling, np.minimum(n, p.shape[-1] - 1), -1)


def sum_short_of_one(p, t):
    falling = -np.sort(-p, -1)
    return p >= np.take_along_axis(falling, (np.cumsum(falling, -1) < t).sum(-1, keepdims=True), -1)


def three_to_a_group(q, k, v, keys, values):
    K, V = np.concatenate([keys, k], 2), np.concatenate([values, v], 2)
    s = q @ np.repeat(K, 3, 1).mT / math.sqrt(q.shape[-1])
    m, n = s.shape[-2:]
    probs = BOOK.softmax(np.where(np.tri(m, n, n - m, dtype=bool), s, -np.inf))
    return probs @ np.repeat(V, 3, 1), K, V


def single_inside(*given):
    y = BOOK.cached_attention(*(a.astype(np.float32) for a in given))[0]
    return y.astype(given[0].dtype), *BOOK.cached_attention(*given)[1:]


test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_draw": (
            [draw],
            slips(draw, WRONG_DRAWS) | {f.__name__: f for f in (likeliest_beyond, one_back, two_axes)},
        ),
        "check_top_p": (
            [],
            slips(keep_top_p, WRONG_TOP_P) | {"ties kept": ties_kept, "short of one": sum_short_of_one},
        ),
        "check_cached": (
            [],
            slips(cached, WRONG_CACHED) | {"three to a group": three_to_a_group, "float32 inside": single_inside},
        ),
        "check_pairs": ([], {"a diagonal": lambda p: BOOK.pairs(p) + 0.007 * np.eye(len(p))}),
    }
)
