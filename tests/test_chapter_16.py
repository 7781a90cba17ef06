"""Chapter 16: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
import pytest
from chapters import definitions, rejected, try_exercise, try_gap, wrong_answers_of


@pytest.fixture(scope="module")
def chapter():
    return definitions("16_many_tokens", "model", "config", "END")


# ---- The gaps


def heads_backward(
    y, w, targets, scale, one_hot=1.0, masked=True, weight=lambda s: s, share=None, average=False
):
    """Gradients of K heads one after the other, with one thing wrong, if asked."""
    V = w.shape[1] // targets.shape[1]
    dy, dw = np.zeros_like(y), np.zeros_like(w)
    for k, target in enumerate(targets.T):
        columns, rows = slice(V * k, V * k + V), np.arange(len(y))
        u = y @ w[:, columns]
        du = np.exp(u) / np.exp(u).sum(axis=1, keepdims=True)
        du[rows, target] -= one_hot
        du *= weight(scale)[k]
        if masked:
            du[target < 0] = 0
        if share is None or k in share:
            dy += du @ w[:, columns].T
        dw[:, columns] = y.T @ du
    return (dy / targets.shape[1] if average else dy), dw


WRONG_HEADS = {
    "targets of -1 count": dict(masked=False),
    "the trunk hears head 0 alone": dict(share=[0]),
    "the trunk hears the last head alone": dict(share=[2]),
    "the mean over heads": dict(average=True),
    "weights forgotten": dict(weight=np.ones_like),
    "head 0's weight for all": dict(weight=lambda s: np.full_like(s, s[0])),
    "softmax alone": dict(one_hot=0.0),
}


def rule(
    p, q, token, chance=lambda p, q, t: min(1.0, p[t] / q[t]), redraw=lambda p, q, t: np.maximum(p - q, 0)
):
    """Accept or redraw, with one thing wrong, if asked."""
    rest = redraw(p, q, token)
    return chance(p, q, token), rest / rest.sum() if rest.any() else p


WRONG_RULES = {
    "redrawn from p": dict(redraw=lambda p, q, t: p),
    "redrawn from p without the proposal": dict(
        redraw=lambda p, q, t: np.where(np.arange(len(p)) == t, 0, p)
    ),
    "redrawn from the other side": dict(redraw=lambda p, q, t: np.maximum(q - p, 0)),
    "redrawn from the distance": dict(redraw=lambda p, q, t: np.abs(p - q)),
    "accepted with p alone": dict(chance=lambda p, q, t: p[t]),
    "accepted with q / p": dict(chance=lambda p, q, t: min(1.0, q[t] / p[t]) if p[t] else 0.0),
    "always accepted": dict(chance=lambda p, q, t: 1.0),
    "never accepted, drawn from p": dict(chance=lambda p, q, t: 0.0, redraw=lambda p, q, t: p),
    "right but timid": dict(
        chance=lambda p, q, t: min(1.0, p[t] / q[t]) / 2, redraw=lambda p, q, t: p - np.minimum(p, q) / 2
    ),
}

GAPS = {
    "heads": (heads_backward, WRONG_HEADS, "check_heads", "my_heads_backward", "heads_backward"),
    "rule": (rule, WRONG_RULES, "check_rule", "my_rule", "book_rule"),
}


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
def test_gap(chapter, gap):
    try_gap(chapter, gap)


@pytest.mark.parametrize("gap, wrong", wrong_answers_of(GAPS))
def test_wrong_answer_to_a_gap_is_rejected(chapter, gap, wrong):
    assert rejected(getattr(chapter, gap[2]), wrong)


# ---- The exercises: check, stub, solution, and the wrong answers that the notebook itself names


EXERCISES = {
    "rates": lambda c: (c.check_sizes, c.my_sizes, c.sizes_of, c.wrong_sizes),
    "gumbel": lambda c: (c.check_agreement, c.my_agreement, c.agreement, c.wrong_agreements),
    "diagnose": lambda c: (c.check_suspicions, c.my_suspicions, c.suspicions, c.wrong_suspicions),
    "temperature": lambda c: (c.check_temperature, c.my_temperature, lambda: 0.5, c.wrong_temperatures),
}


@pytest.mark.parametrize("parts", EXERCISES.values(), ids=EXERCISES)
def test_exercise_check(chapter, parts):
    try_exercise(*parts(chapter))
