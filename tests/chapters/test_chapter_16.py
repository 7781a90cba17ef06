"""Chapter 16: its checks accept what is right and reject wrong answers, each of them named."""

import itertools
import math

import numpy as np
import pytest
from chapters import accepts, gap_tests, slips

from nanoeuler_lib.model.decoder import Decoder

NOTEBOOK = ("16_many_tokens", "model", "config", "END")


# ---- The gaps


def heads_backward(
    y, w, targets, scale, one_hot=1.0, masked=True, weight=lambda s: s, share=None, average=False, stable=True,
    kept=True,
):  # fmt: skip
    """Gradients of K heads one after the other, with one thing wrong, if asked."""
    V = w.shape[1] // targets.shape[1]
    dy, dw = np.zeros_like(y), np.zeros_like(w)
    for k, target in enumerate(targets.T):
        columns, rows = slice(V * k, V * k + V), np.arange(len(y))
        u = y @ w[:, columns]
        u = u - u.max(axis=1, keepdims=True) if stable else u
        du = np.exp(u) / np.exp(u).sum(axis=1, keepdims=True)
        du[rows, target] -= one_hot
        du *= y.dtype.type(weight(scale)[k]) if kept else weight(scale)[k]
        if masked:
            du[target < 0] = 0
        if share is None or k in share:
            dy += du @ w[:, columns].T
        dw[:, columns] = y.T @ du
    dy = dy / targets.shape[1] if average else dy
    return (dy, dw) if kept else (dy.astype(np.float64), dw.astype(np.float64))


WRONG_HEADS = {
    "targets of -1 count": dict(masked=False),
    "the trunk hears head 0 alone": dict(share=[0]),
    "the mean over heads": dict(average=True),
    "weights forgotten": dict(weight=np.ones_like),
    "softmax alone": dict(one_hot=0.0),
    "overflows": dict(stable=False),
}


def rule(p, q, token, chance=lambda p, q, t: min(1.0, p[t] / q[t]), redraw=lambda p, q, t: np.maximum(p - q, 0)):
    """Accept or redraw, with one thing wrong, if asked."""
    rest = redraw(p, q, token)
    return chance(p, q, token), rest / rest.sum() if rest.any() else p


WRONG_RULES = {
    "redrawn from p": dict(redraw=lambda p, q, t: p),
    "redrawn from p without the proposal": dict(redraw=lambda p, q, t: np.where(np.arange(len(p)) == t, 0, p)),
    "redrawn from the other side": dict(redraw=lambda p, q, t: np.maximum(q - p, 0)),
    "redrawn from the distance": dict(redraw=lambda p, q, t: np.abs(p - q)),
    "never accepted, drawn from p": dict(chance=lambda p, q, t: 0.0, redraw=lambda p, q, t: p),
    "right but timid": dict(
        chance=lambda p, q, t: min(1.0, p[t] / q[t]) / 2, redraw=lambda p, q, t: p - np.minimum(p, q) / 2
    ),
}
test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_heads": (
            [heads_backward],
            slips(heads_backward, WRONG_HEADS)
            | {"dy alone": lambda *given: heads_backward(*given)[:1], "nothing": lambda *given: ()},
        ),
        "check_rule": ([], slips(rule, WRONG_RULES)),
    }
)


# ---- Other right answers


def heads_by_rows(y, w, targets, scale):
    """Position by position, head by head."""
    V = w.shape[1] // targets.shape[1]
    dy, dw = np.zeros_like(y), np.zeros_like(w)
    for i, k in np.argwhere(targets >= 0):
        part = slice(k * V, (k + 1) * V)
        u = y[i] @ w[:, part]
        du = np.exp(u - np.logaddexp.reduce(u))
        du[targets[i, k]] -= 1
        du = du * scale[k]
        dy[i] += w[:, part] @ du
        dw[:, part] += np.outer(y[i], du)
    return dy, dw


def heads_in_one_block(y, w, targets, scale):
    """An einsum over heads, one-hot targets."""
    D, K = y.shape[1], targets.shape[1]
    W = w.reshape(D, K, -1)
    u = np.einsum("nd,dkv->nkv", y, W)
    e = np.exp(u - u.max(axis=2, keepdims=True))
    hot = targets[:, :, None] == np.arange(W.shape[2])
    du = (e / e.sum(axis=2, keepdims=True) - hot) * np.where(targets >= 0, scale, 0)[:, :, None]
    dy, dw = np.einsum("nkv,dkv->nd", du, W), np.einsum("nd,nkv->dkv", y, du).reshape(w.shape)
    return [dy.astype(y.dtype), dw.astype(y.dtype)]


def rule_by_cases(p, q, token):
    gap = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
    if p[token] >= q[token] or sum(gap) == 0:
        return 1, np.full(len(p), 1 / len(p))
    return p[token] / q[token], [g / sum(gap) for g in gap]


def rule_by_overlap(p, q, token):
    both = np.minimum(p, q)
    left = p - both
    return both[token] / q[token], left / left.sum() if left.sum() > 0 else q


def sizes_by_loop(rates):
    found, before = [], 1.0
    for rate in rates:
        found.append(before * (1 - rate))
        before *= rate
    return [*found, before]


def agreement_by_logs(p, q):
    ratio = np.maximum(np.log(p)[None] - np.log(p)[:, None], np.log(q)[None] - np.log(q)[:, None])
    return float(np.exp(-np.logaddexp.reduce(ratio, axis=1)).sum())


OTHERS = {
    "heads": [heads_by_rows, heads_in_one_block],
    "rule": [rule_by_cases, rule_by_overlap],
    "sizes": [
        sizes_by_loop,
        lambda rates: -np.diff(np.concatenate([[1.0], np.cumprod(rates), [0.0]])),
    ],
    "agreement": [
        lambda p, q: sum(1 / sum(max(a / p[i], b / q[i]) for a, b in zip(p, q, strict=True)) for i in range(len(p))),
        agreement_by_logs,
    ],
    "hiding": [
        lambda p, A: np.where(np.arange(len(p)) == p.argmin(), 1 - A, A * p),
        lambda p, A: (A * p + (1 - A) * np.eye(len(p))[np.flatnonzero(p == 0)[-1]]).tolist(),
    ],
    "accepted": [
        lambda p, q, tau: np.mean([
            np.minimum(a, np.exp(np.log(b / b.max()) / tau) / np.exp(np.log(b / b.max()) / tau).sum()).sum()
            if tau else a[b.argmax()] for a, b in zip(p, q, strict=True)
        ]),
        lambda p, q, tau: 1 - np.abs(
            p - (lambda w: w / w.sum(axis=1, keepdims=True))((q / q.max(axis=1, keepdims=True)) ** (1 / (tau or 1e-5)))
        ).sum(axis=1).mean() / 2,
    ],
}  # fmt: skip
test_other_right_answers = accepts({f"check_{name}": answers for name, answers in OTHERS.items()})


# ---- The experiment


def test_the_three_terms_add_up_to_the_loss_of_head_1(chapter):
    """Brute force over both tokens: sum of p(z) p(a | z) times -ln q(a), with head 0 in the place of the truth."""
    from nanoeuler_lib.config import ModelConfig
    from nanoeuler_lib.model import GPT

    small = GPT(ModelConfig(8, 2, 1, 1, context=6, vocab_size=5, predict=2, ffn=5), dtype=np.float64)
    small.params.flat[...] = np.random.default_rng(3).normal(size=small.params.flat.size) * 0.5
    text = [2, 0, 3]
    decoder = Decoder(small)
    found, m, q = chapter.terms(decoder, decoder.read(np.array(text))[-1])
    softmax = lambda u: np.exp(u - np.logaddexp.reduce(u))
    first = softmax(small.logits(np.array([text]))[0, -1])
    behind = [softmax(small.logits(np.array([[*text, z]]))[0, -1]) for z in range(5)]
    ahead = softmax(small.logits(np.array([text]), 1)[0, -1])
    loss = -sum(first[z] * behind[z][a] * math.log(ahead[a]) for z, a in itertools.product(range(5), repeat=2))
    assert decoder.length == len(text) and np.allclose(q, ahead)
    assert sum(found) == pytest.approx(loss, rel=0.02) and min(found) > 0  # z of the last thousandth are left out
    assert np.allclose(m, sum(f * b for f, b in zip(first, behind, strict=True)), atol=2e-3)
