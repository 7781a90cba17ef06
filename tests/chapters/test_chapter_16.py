"""Chapter 16: its checks accept what is right and reject wrong answers, each of them named."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from chapters import accepts, gap_tests, slips

from nanoeuler_lib.model.decoder import Decoder

NOTEBOOK = ("16_many_tokens", "model", "config", "END", "joint")


# ---- The gaps


def heads_backward(y, w, targets, scale, masked=True, weight=lambda s: s, share=None, stable=True):
    """Gradients of K heads one after the other, with one thing wrong, if asked."""
    V = w.shape[1] // targets.shape[1]
    dy, dw = np.zeros_like(y), np.zeros_like(w)
    for k, target in enumerate(targets.T):
        columns, rows = slice(V * k, V * k + V), np.arange(len(y))
        u = y @ w[:, columns]
        du = np.exp(u - u.max(axis=1, keepdims=True) if stable else u)
        du /= du.sum(axis=1, keepdims=True)
        du[rows, target] -= 1
        du *= y.dtype.type(weight(scale)[k])
        if masked:
            du[target < 0] = 0
        if share is None or k in share:
            dy += du @ w[:, columns].T
        dw[:, columns] = y.T @ du
    return dy, dw


WRONG_HEADS = {
    "targets of -1 count": dict(masked=False),
    "the trunk receives only from head 0": dict(share=[0]),
    "weights forgotten": dict(weight=np.ones_like),
    "overflows": dict(stable=False),
}


def rule(p, q, token, chance=lambda p, q, t: min(1.0, p[t] / q[t]), redraw=lambda p, q, t: np.maximum(p - q, 0)):
    """Accept or redraw, with one thing wrong, if asked."""
    rest = redraw(p, q, token)
    return chance(p, q, token), rest / rest.sum() if rest.any() else p


WRONG_RULES = {
    "redrawn from p": dict(redraw=lambda p, q, t: p),
    "redrawn from p without the proposal": dict(redraw=lambda p, q, t: np.where(np.arange(len(p)) == t, 0, p)),
    "right but timid": dict(
        chance=lambda p, q, t: min(1.0, p[t] / q[t]) / 2, redraw=lambda p, q, t: p - np.minimum(p, q) / 2
    ),
}
test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_heads": (
            [heads_backward],
            slips(heads_backward, WRONG_HEADS) | {"dy alone": lambda *given: heads_backward(*given)[:1]},
        ),
        "check_rule": ([], slips(rule, WRONG_RULES)),
    }
)


# ---- Other right answers


def rule_by_cases(p, q, token):
    gap = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
    if p[token] >= q[token] or sum(gap) == 0:
        return 1, np.full(len(p), 1 / len(p))
    return p[token] / q[token], [g / sum(gap) for g in gap]


test_other_right_answers = accepts(
    {
        "check_rule": [rule_by_cases],
        "check_hiding": [
            lambda p, A: np.where(np.arange(len(p)) == p.argmin(), 1 - A, A * p),
            lambda p, A: (A * p + (1 - A) * np.eye(len(p))[np.flatnonzero(p == 0)[-1]]).tolist(),
        ],
    }
)


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


# ---- Masked diffusion


def test_the_loss_of_every_text_is_its_code_length(chapter):
    """Mask each token with probability t, by loops over the texts, and integrate over t with the midpoint rule."""
    joint, n = chapter.joint, 4
    texts = list(itertools.product(range(3), repeat=n))

    def probability(x, places):
        return sum(joint[y] for y in texts if all(y[i] == x[i] for i in places))

    steps = (np.arange(400) + 0.5) / 400
    for x in texts[::9]:
        loss = 0.0
        for masked in itertools.product((False, True), repeat=n):
            hidden = [i for i in range(n) if masked[i]]
            seen = [i for i in range(n) if not masked[i]]
            cost = sum(math.log2(probability(x, seen) / probability(x, [*seen, i])) for i in hidden)
            loss += (steps ** len(hidden) * (1 - steps) ** len(seen) / steps).mean() * cost
        assert loss == pytest.approx(-math.log2(joint[x]), rel=1e-4)


def test_information_is_counted_as_defined(chapter):
    a, b = np.random.default_rng(0).integers(0, 5, (2, 40))
    b[:25] = a[:25]
    pairs = Counter(zip(a.tolist(), b.tolist(), strict=True))
    first, second = Counter(a.tolist()), Counter(b.tolist())
    expected = sum(c / 40 * math.log2(c * 40 / (first[i] * second[j])) for (i, j), c in pairs.items())
    assert chapter.counted(a, b) == pytest.approx(expected) and chapter.counted(a, a * 0) == pytest.approx(0)
