"""Chapter 14: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
import pytest
from chapters import definitions, rejected, try_exercise, try_gap, wrong_answers_of


@pytest.fixture(scope="module")
def chapter():
    return definitions("14_sampling")


# ---- The gaps


def draw(p, r, passed=lambda sums, r: sums <= r, sums=lambda p: np.cumsum(p, axis=-1), last=True):
    """The token on whose piece r falls, with one thing wrong, if asked."""
    found = passed(sums(p), r[..., None]).sum(axis=-1)
    return np.minimum(found, p.shape[-1] - 1) if last else found


WRONG_DRAWS = {
    "a token of probability 0 at the edge": dict(passed=np.less),
    "the last token out of range": dict(last=False),
    "probabilities not summed": dict(sums=lambda p: p),
    "counted from the other end": dict(passed=np.greater),
    "summed over rows and columns": dict(sums=lambda p: np.cumsum(p).reshape(p.shape)),
}


def keep_top_p(
    p, threshold, sums=lambda q: np.cumsum(q, axis=-1) - q, order=lambda p: np.argsort(-p, axis=-1)
):
    """The tokens that top-p keeps, with one thing wrong, if asked."""
    order = order(p)
    kept = np.empty(p.shape, bool)
    falling = np.take_along_axis(p, order, axis=-1)
    np.put_along_axis(kept, order, sums(falling) < threshold, axis=-1)
    return kept


WRONG_TOP_P = {
    "drops the token that reaches the threshold": dict(sums=lambda q: np.cumsum(q, axis=-1)),
    "a threshold for single tokens": dict(sums=lambda q: 1 - q),
    "the unlikely ones first": dict(order=lambda p: np.argsort(p, axis=-1)),
    "in the vocabulary's order": dict(order=lambda p: np.broadcast_to(np.arange(p.shape[-1]), p.shape)),
    "keeps one more": dict(sums=lambda q: np.cumsum(q, axis=-1) - q - np.roll(q, 1, axis=-1)),
}


def cached(q, k, v, keys, values, start=None, groups=np.repeat, scale=True, order=1, itself=1, longer=True):
    """Attention with a cache, with one thing wrong, if asked."""
    H, G, m, C = q.shape[1], k.shape[1], *q.shape[2:]
    n = keys.shape[2] if start is None else start
    new_keys, new_values = (np.concatenate(pair[::order], axis=2) for pair in ((keys, k), (values, v)))
    serve = (
        (lambda a: np.repeat(a, H // G, axis=1))
        if groups is np.repeat
        else lambda a: np.tile(a, (1, H // G, 1, 1))
    )
    scores = q @ serve(new_keys).swapaxes(-1, -2) / (np.sqrt(C) if scale else 1)
    places = np.arange(new_keys.shape[2])
    scores = np.where(places < np.arange(n, n + m)[:, None] + itself, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(axis=-1, keepdims=True))
        y = e / e.sum(axis=-1, keepdims=True) @ serve(new_values)
    return y, *((new_keys, new_values) if longer else (keys, values))


WRONG_CACHED = {
    "the mask forgets the cache": dict(start=0),
    "no mask": dict(start=100),
    "query head h reads key head h mod G": dict(groups=np.tile),
    "no 1/sqrt(C)": dict(scale=False),
    "new ones in front": dict(order=-1),
    "the position itself hidden": dict(itself=0),
    "one future position read": dict(itself=2),
    "the cache does not grow": dict(longer=False),
}

GAPS = {
    "draw": (draw, WRONG_DRAWS, "check_draw", "my_draw", "book_draw"),
    "top_p": (keep_top_p, WRONG_TOP_P, "check_top_p", "my_keep_top_p", "book_keep_top_p"),
    "cached": (cached, WRONG_CACHED, "check_cached", "my_cached_attention", "cached_attention"),
}


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
def test_gap(chapter, gap):
    try_gap(chapter, gap)


@pytest.mark.parametrize("gap, wrong", wrong_answers_of(GAPS))
def test_wrong_answer_to_a_gap_is_rejected(chapter, gap, wrong):
    assert rejected(getattr(chapter, gap[2]), wrong)


# ---- The exercises: check, stub, solution, and the wrong answers that the notebook itself names


EXERCISES = {
    "order": lambda c: (c.check_ratio, c.my_ratio, c.ratio, c.wrong_ratios),
    "two": lambda c: (c.check_pairs, c.my_pairs, c.pairs, c.wrong_pairs),
    "diagnose": lambda c: (c.check_cuts, c.my_cuts, c.cuts, c.wrong_cuts),
    "bytes": lambda c: (c.check_bytes, c.my_cache_bytes, c.cache_bytes, c.wrong_bytes),
}


@pytest.mark.parametrize("parts", EXERCISES.values(), ids=EXERCISES)
def test_exercise_check(chapter, parts):
    try_exercise(*parts(chapter))
