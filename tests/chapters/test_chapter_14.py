"""Chapter 14: its checks accept what is right and reject wrong answers, each of them named."""

import math

import numpy as np
import pytest
from chapters import gap_tests, slips

from nanoeuler_book.checks import verdict

# ---- The gaps


def last_possible(p):
    return np.where(p > 0, np.arange(p.shape[-1]), 0).max(axis=-1)


def draw(
    p,
    r,
    passed=lambda sums, r: sums <= r,
    sums=lambda p: np.cumsum(p, axis=-1),
    last=last_possible,
    one=False,
):
    """The token on whose piece r falls, with one thing wrong, if asked."""
    r = np.broadcast_to(np.ravel(r)[0], np.shape(r)) if one else np.asarray(r)
    found = passed(sums(p), r[..., None]).sum(axis=-1)
    return np.minimum(found, last(p)) if last else found


WRONG_DRAWS = {
    "a token of probability 0 at the edge": dict(passed=np.less),
    "a forbidden token beyond the last sum": dict(last=lambda p: p.shape[-1] - 1),
    "the first r for all rows": dict(one=True),
    "probabilities not summed": dict(sums=lambda p: p),
    "compared in float32": dict(passed=lambda sums, r: sums.astype("f4") <= r.astype("f4")),
    "counted from the other end": dict(passed=np.greater),
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
    "a threshold for single tokens": dict(sums=lambda q: 1 - q),
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
    "no mask": dict(start=100),
    "query head h reads key head h mod G": dict(groups=np.tile),
    "new ones in front": dict(order=-1),
    "the cache does not grow": dict(longer=False),
    "exp of scores that overflow": dict(shift=False),
}
test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_draw": ([draw], slips(draw, WRONG_DRAWS)),
        "check_top_p": ([], slips(keep_top_p, WRONG_TOP_P)),
        "check_cached": ([], slips(cached, WRONG_CACHED)),
    }
)


def answers_once_accepted(c):
    """(check, answer) of wrong answers that the checks once took for right."""

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
        probs = c.softmax(np.where(np.tri(m, n, n - m, dtype=bool), s, -np.inf))
        return probs @ np.repeat(V, 3, 1), K, V

    def single_y(*given):
        y, keys, values = c.cached_attention(*given)
        return y.astype(np.float32), keys, values

    def single_inside(*given):
        y = c.cached_attention(*(a.astype(np.float32) for a in given))[0]
        return y.astype(given[0].dtype), *c.cached_attention(*given)[1:]

    return [
        (c.check_draw, likeliest_beyond),
        (c.check_draw, one_back),
        (c.check_draw, two_axes),
        (c.check_draw, lambda p, r: c.book_draw(p, r) * 1.0),
        (c.check_top_p, ties_kept),
        (c.check_top_p, sum_short_of_one),
        (c.check_top_p, lambda p, t: c.book_keep_top_p(p, t).astype(int)),
        (c.check_cached, three_to_a_group),
        (c.check_cached, lambda *a: tuple(x.astype(np.float64) for x in c.cached_attention(*a))),
        (c.check_cached, single_y),
        (c.check_cached, single_inside),
        (c.check_pairs, lambda p: c.pairs(p) + 0.007 * np.eye(len(p))),
        (c.check_pairs, lambda p: np.outer(p / (1 - p), p) * (1 - np.eye(4))),
        (c.check_bytes, lambda config, n, t: 32 * config.kv_heads * config.layers * n * t),
    ]


@pytest.mark.parametrize("which", range(14))
def test_an_answer_that_was_once_accepted_is_refused(chapter, which):
    check, answer = answers_once_accepted(chapter)[which]
    assert verdict(check, answer) != "right"


NOTEBOOK = ("14_sampling",)


# ---- Domains for the mutants, written from the contracts
