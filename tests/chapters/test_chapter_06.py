"""Chapter 06: its checks accept what is right and reject wrong answers, each of them named."""

import math

import numpy as np
import pytest
from chapters import accepts, rejects, slips

from nanoeuler_book.checks import verdict

NOTEBOOK = ("06_attention", "SIZES", "SINKS")


# ---- The gaps


def attention(q, k, v, mask="before", interleaved=False, stable=True, hidden=-np.inf):
    """Attention with one thing wrong, if asked."""
    H, G, T, C = q.shape[1], k.shape[1], *q.shape[2:]
    k, v = (np.tile(a, (1, H // G, 1, 1)) if interleaved else np.repeat(a, H // G, axis=1) for a in (k, v))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(C)
    future = np.triu(np.ones((T, T), bool), 1)
    if mask == "before":
        scores = np.where(future, hidden, scores)
    if mask == "added":
        scores = scores + future * scores.dtype.type(hidden)
    with np.errstate(all="ignore"):
        e = np.exp(scores - (scores.max(axis=-1, keepdims=True) if stable else 0))
        probs = e / e.sum(axis=-1, keepdims=True)
    if mask.startswith("after"):
        probs = np.where(future, 0, probs)
    if mask == "after, divided once more":
        with np.errstate(all="ignore"):
            probs = probs / probs.sum(axis=-1, keepdims=True)
    return probs @ v


def attending(q, k, v, **wrong):
    return attention(q, k, v, **wrong), None


WRONG_FORWARD = {
    "no mask": dict(mask="none"),
    "weights of the future zeroed after softmax": dict(mask="after"),
    "the same, each row divided once more": dict(mask="after, divided once more"),
    "query head h reads key head h mod G": dict(interleaved=True),
    "no maximum subtracted": dict(stable=False),
    "masked with -1e4": dict(hidden=-1e4),
    "masked with -1e9": dict(hidden=-1e9),
}


def backward(dy, saved, row_axis=-1, row_term=True, group="sum"):
    """The backward pass with one thing wrong, if asked."""
    q, k, v, probs = saved  # as the book's forward pass saves them
    B, G, R, T, C = q.shape
    dy = dy.reshape(q.shape)
    dprobs = dy @ v.swapaxes(-1, -2)
    along = (dprobs * probs).sum(axis=row_axis, keepdims=True) if row_term else 0
    dscores = probs * (dprobs - along) / math.sqrt(C)
    first = lambda a, axis: a[:, :, 0]
    shared = {"sum": np.sum, "mean": np.mean, "first": first}[group]
    dk = dscores.swapaxes(-1, -2) @ q
    dv = probs.swapaxes(-1, -2) @ dy
    return (dscores @ k).reshape(B, G * R, T, C), shared(dk, axis=2), shared(dv, axis=2)


WRONG_BACKWARD = {
    "softmax row term summed over queries": dict(row_axis=-2),
    "softmax row term left out": dict(row_term=False),
    "mean over shared heads": dict(group="mean"),
    "first of the shared heads only": dict(group="first"),
}
test_wrong_gaps = rejects(
    {
        "check_forward": slips(attending, WRONG_FORWARD),
        "check_backward": slips(backward, WRONG_BACKWARD),
    },
    {"check_backward": "attention_forward"},
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def test_a_sink_with_only_the_forward_pass_is_told_so(chapter):
    said = verdict(chapter.check_sink, (chapter.sink_forward, chapter.my_sink_backward))
    assert said == "my_sink_forward is right; my_sink_backward returns None"


def sink_as_a_column(q, k, v, b):
    """The sink is one more score, whose value is zero."""
    T = q.shape[2]
    s = np.where(np.tri(T, dtype=bool), np.einsum("bhic,bhjc->bhij", q, k) / math.sqrt(q.shape[3]), -np.inf)
    s = np.concatenate([s, np.broadcast_to(b[None, :, None, None], (*s.shape[:3], 1))], axis=3)
    p = np.exp(s - s.max(axis=3, keepdims=True))
    p /= p.sum(axis=3, keepdims=True)
    return p[..., :-1] @ v, (q, k, v, p)


def sink_as_a_column_backward(dy, saved):
    q, k, v, p = saved
    dp = np.concatenate([dy @ v.swapaxes(2, 3), np.zeros((*p.shape[:3], 1))], axis=3)
    ds = p * (dp - (dp * p).sum(axis=3, keepdims=True))
    ds, db = ds[..., :-1] / math.sqrt(q.shape[3]), ds[..., -1].sum(axis=(0, 2))
    return ds @ k, ds.swapaxes(2, 3) @ q, p[..., :-1].swapaxes(2, 3) @ dy, db


MASKS = {
    "-1e4": lambda s, past: np.where(past, s, -1e4),
    "-1e9": lambda s, past: np.where(past, s, -1e9),
    "-1e5 added": lambda s, past: s - 1e5 * ~past,
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_sink_with_a_finite_mask_is_rejected(chapter, mask):
    def forward(q, k, v, b):
        T = q.shape[2]
        s = mask(q @ k.swapaxes(2, 3) / math.sqrt(q.shape[3]), np.tri(T, dtype=bool))
        top = np.maximum(s.max(axis=3, keepdims=True), b[:, None, None])
        e = np.exp(s - top)
        probs = e / (e.sum(axis=3, keepdims=True) + np.exp(b[:, None, None] - top))
        return probs @ v, (q, k, v, probs)

    said = verdict(chapter.check_sink, (forward, chapter.sink_backward))
    assert said.startswith("y[") and "near -" in said, said


def sink_by_loops(q, k, v, b):
    y = np.zeros_like(q)
    for n, h, i in np.ndindex(q.shape[:3]):
        s = np.append(k[n, h, : i + 1] @ q[n, h, i] / math.sqrt(q.shape[3]), b[h])
        p = np.exp(s - s.max())
        y[n, h, i] = p[:-1] @ v[n, h, : i + 1] / p.sum()
    return y, (q, k, v, b)


def sink_by_loops_backward(dy, saved):
    q, k, v, b = saved
    *_, (_, _, _, p) = sink_as_a_column(q, k, v, b)
    return sink_as_a_column_backward(dy, (q, k, v, p))


OTHERS = {
    "check_sink": [(sink_as_a_column, sink_as_a_column_backward), (sink_by_loops, sink_by_loops_backward)],
    "check_swap": [lambda: ([2, 3, 4, 5], frozenset(range(2, 9)))],
    "check_diagnosis": [
        lambda: [[1, 1, 1, 2, 2], (1, 2, 1, 1, 1)],
        lambda: ((6, 6, 6, 6, 6), (3, 3, 1, 1, 6)),
    ],
}
test_other_right_solutions = accepts(OTHERS)


def shapes(rng):
    """Any B, H, G, T, C with H a multiple of G."""
    B, G, R, T, C = rng.integers(1, (4, 4, 4, 8, 7))
    return B, G * R, G, T, C


def low(q, k, *others):
    """The same with all scores negative."""
    return -np.abs(q), np.abs(k), *others


def qkv(rng, size=None, scale=1.0, dtype=float):
    B, H, G, T, C = size or shapes(rng)
    return tuple((scale * rng.normal(size=(B, heads, T, C))).astype(dtype) for heads in (H, G, G))


EDGE = np.random.default_rng(5)
EDGES = [
    qkv(EDGE, size) for size in [(1, 1, 1, 1, 1), (1, 4, 2, 1, 3), (2, 3, 3, 7, 1), (1, 6, 2, 9, 4), (3, 4, 1, 2, 8)]
]
EDGES += [
    qkv(EDGE, (2, 4, 2, 5, 3), 1e-3),
    qkv(EDGE, (2, 4, 2, 5, 3), 1e4),
    qkv(EDGE, (1, 2, 1, 6, 3), dtype=np.float32),
    low(*qkv(EDGE, (2, 4, 2, 5, 3), 1e6)),
    low(*qkv(EDGE, (1, 3, 1, 6, 2), 1e12)),
]
