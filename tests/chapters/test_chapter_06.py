"""Chapter 06: its checks accept what is right and reject wrong answers, each of them named."""

import functools
import math

import numpy as np
import pytest
from chapters import accepts

from nanoeuler_book.checks import verdict

NOTEBOOK = ("06_attention", "SIZES", "SINKS")


# ---- The gaps


def attention(q, k, v, mask="before", stable=True, hidden=-np.inf, root=None, axis=-1):
    """Attention with one thing wrong, if asked."""
    T, C = q.shape[-2:]
    scores = q @ k.swapaxes(-1, -2) / (root(T, C) if root else math.sqrt(C))
    future = np.triu(np.ones((T, T), bool), 1)
    scores = np.where(future & (mask == "before"), hidden, scores)
    e = np.exp(scores - (scores.max(axis=axis, keepdims=True) if stable else 0))
    probs = e / e.sum(axis=axis, keepdims=True)
    probs = np.where(future, 0, probs) if mask.startswith("after") else probs
    return probs / (probs.sum(axis=-1, keepdims=True) if "again" in mask else 1) @ v, None


WRONG_FORWARD = {  # what the check says of it
    "the future is set to 0 after the softmax": dict(mask="after"),
    "y[": dict(mask="after, divided again"),
    "the future is not masked": dict(mask="no"),
    "the largest score of the row is not subtracted": dict(stable=False),
    "the masked scores are a finite number": dict(hidden=-1e9),
    "right if the scores were divided by sqrt(C)": dict(root=lambda T, C: 1),
    "the scores are divided by C": dict(root=lambda T, C: C),
    "the scores are divided by sqrt(T)": dict(root=lambda T, C: math.sqrt(T)),
    "the softmax sums over the queries": dict(axis=-2),
}


def backward(dy, saved, row_axis=-1, root=None, turn=True, row=1):
    """The backward pass with one thing wrong, if asked."""
    q, k, v, probs = saved  # as the book's forward pass saves them
    dprobs = dy @ v.swapaxes(-1, -2)
    dscores = (
        probs * (dprobs - row * (dprobs * probs).sum(axis=row_axis, keepdims=True)) / (root or math.sqrt(q.shape[-1]))
    )
    turned, weights = (a.swapaxes(-1, -2) if turn else a for a in (dscores, probs))
    return dscores @ k, turned @ q, weights @ dy


WRONG_BACKWARD = {
    "the sum runs over the queries": dict(row_axis=-2),
    "the sum over the row is not subtracted": dict(row=0),
    "right if it were divided by sqrt(C)": dict(root=1),
    "dk needs dS transposed": dict(turn=False),
}


@pytest.mark.parametrize("said", [*WRONG_FORWARD, *WRONG_BACKWARD])
def test_the_checks_name_the_mistake(chapter, said):
    if said in WRONG_BACKWARD:
        wrong = functools.partial(backward, **WRONG_BACKWARD[said])
        assert verdict(chapter.check_backward, wrong, chapter.heads_forward).startswith(said)
    else:
        wrong = functools.partial(attention, **WRONG_FORWARD[said])
        assert verdict(chapter.check_forward, wrong).startswith(said)
        assert verdict(chapter.check_head, lambda *x: wrong(*x)[0]).startswith(said)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def test_a_sink_with_only_the_forward_pass_is_told_so(chapter):
    said = verdict(chapter.check_sink, (chapter.sink_forward, chapter.my_sink_backward))
    assert said == "my_sink_forward is right; my_sink_backward returns None"


def sink_as_a_column(q, k, v, b, hidden=-np.inf):
    """The sink is one more score, whose value is zero."""
    s = np.einsum("bhic,bhjc->bhij", q, k) / math.sqrt(q.shape[3])
    s = np.where(np.tri(q.shape[2], dtype=bool), s, hidden)
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


def test_a_sink_with_a_finite_mask_is_rejected(chapter):
    finite = lambda *given: sink_as_a_column(*given, hidden=-1e9)
    said = verdict(chapter.check_sink, (finite, sink_as_a_column_backward))
    assert said.startswith("y[") and "near -" in said, said


OTHERS = {
    "check_sink": [(sink_as_a_column, sink_as_a_column_backward)],
    "check_swap": [lambda: ([2, 3, 4, 5], frozenset(range(2, 9)))],
    "check_diagnosis": [lambda: [[1, 1, 2, 2], (1, 2, 2, 1)], lambda: ((6, 1, 6, 6), (3, 6, 6, 1))],
}
test_other_right_solutions = accepts(OTHERS)
