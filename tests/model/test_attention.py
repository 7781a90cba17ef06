"""Attention and softmax at scores of any size, wherever the large ones stand, in all five implementations.

The oracle subtracts the largest score of each row in float64. Scores from 39 to 500 stand at keys of
the same block of rows, of earlier blocks, at the first and the last position: exp overflows float32 at 88.7 and float64
at 709.8, and the sum of 70 terms of 85.5 overflows float32 as well.
"""

import math
from dataclasses import replace

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.model.plan import Plan
from nanoeuler_lib.ops import reference

H, G, C = 4, 2, 6
LONG = ModelConfig(dim=H * C, heads=H, kv_heads=G, layers=1, context=140, vocab_size=5, predict=1)
SIZES = [39.0, 44.0, 85.5, 89.0, 500.0, 1500.0]


def stable(q, k, v, dy):
    """y = softmax(q k^T) v of one sequence, causal, and dq, dk, dv for dy: q [H, T, C] divided by sqrt(C) already."""
    R, T = len(q) // len(k), q.shape[1]
    kh, vh = np.repeat(k, R, axis=0), np.repeat(v, R, axis=0)  # for each query head its own
    scores = np.einsum("htc,hsc->hts", q, kh)
    scores[:, np.arange(T) > np.arange(T)[:, None]] = -np.inf
    p = np.exp(scores - scores.max(axis=2, keepdims=True))
    p /= p.sum(axis=2, keepdims=True)
    dp = np.einsum("htc,hsc->hts", dy, vh)
    ds = p * (dp - np.einsum("hts,hts->ht", dp, p)[..., None])
    dk, dv = np.einsum("hts,htc->hsc", ds, q), np.einsum("hts,htc->hsc", p, dy)
    dk, dv = (x.reshape(len(k), R, T, -1).sum(axis=1) for x in (dk, dv))
    return p @ vh, ds @ kh, dk, dv


def composites(version, scratch):
    """The composites of a version with scratch space, arrays by name."""
    with ops.use(version):
        return ops.bind(vars(ops.active()), scratch)


def run(version, q, k, v, dy):
    """y, dq, dk, dv of an implementation: each [heads, T, C], for q that is divided by sqrt(C) already."""
    T, dtype = q.shape[1], q.dtype
    if version == "reference":
        y, saved = reference.attention_forward((q * math.sqrt(C))[None], k[None], v[None])
        dq, dk, dv = reference.attention_backward(dy[None], saved)
        return [x[0] for x in (y, dq * math.sqrt(C), dk, dv)]
    plan = oracles.poison(Plan(LONG, 1, T, dtype))
    op = composites(version, vars(plan.scratch))
    a = plan.layers[0]
    a.qkv[...] = np.concatenate([q, k, v]).swapaxes(0, 1).reshape(T, -1)
    op.attention(a.attended, a.probs, a.softmax_stats, a.qkv, LONG)
    y = a.attended.copy()
    plan.dattended[...] = dy.swapaxes(0, 1).reshape(T, -1)
    op.attention_back(plan.dqkv, plan.dattended, a.attended, a.probs, a.softmax_stats, a.qkv, LONG)
    found = plan.dqkv.reshape(T, -1, C).swapaxes(0, 1)
    return [y.reshape(T, H, C).swapaxes(0, 1), found[:H], found[H : H + G], found[H + G :]]


def case(levels, dtype, seed=0):
    """q, k, v, dy whose score between any query and key j is levels[j] and noise of size 1."""
    rng, T = np.random.default_rng(seed), len(levels)
    q, k, v, dy = (rng.standard_normal((n, T, C)) * 0.5 for n in (H, G, G, H))
    q[..., 0], k[..., 0] = 1, levels
    return [x.astype(dtype) for x in (q, k, v, dy)]


def at(T, place, level, rest=0.0):
    levels = np.full(T, rest)
    levels[place] = level
    return levels


def compare(version, arrays):
    """The implementation against the oracle; float32 may be as far off as its scores are rounded."""
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = run(version, *arrays)
    wide = [x.astype(np.float64) for x in arrays]
    expected = stable(*wide)
    q, k, v, dy = (np.abs(x).max() for x in wide)
    terms = {"y": v, "dq": C * dy * v * k, "dk": C * dy * v * q, "dv": dy}  # the size of what is added up
    rounding = (1e-14 if arrays[0].dtype == np.float64 else 5e-6) * max(1.0, q * k)  # exp(s) is off as s is
    for (name, size), a, b in zip(terms.items(), found, expected):
        apart = np.abs(a - b).max()
        assert apart <= rounding * size, f"{version}, {name}: {apart:.1e} apart, limit {rounding * size:.1e}"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("version", ["reference", "plain", "cpu"])
@pytest.mark.parametrize("size", SIZES)
def test_one_key_far_from_the_others(version, dtype, size):
    """The first key, one of each block, at a block's borders, the last: much larger than all others, or smaller."""
    for place in (0, 5, 63, 64, 128, 139):
        for sign in (1, -1):
            compare(version, case(at(140, place, sign * size), dtype, seed=place))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("version", ["reference", "plain", "cpu"])
@pytest.mark.parametrize("size", SIZES)
def test_all_keys_alike_far_from_zero(version, dtype, size):
    """Every score is large, or every one is very negative; all but one; falling and rising along the sequence."""
    ramp = np.linspace(0, 1, 70)
    for levels in (
        np.full(70, size), np.full(70, -size), at(70, 3, 0, size), at(70, 66, 0, -size), size * ramp, -size * ramp,
        size * (ramp - 0.5), np.where(np.arange(70) % 2, size, -size),
    ):  # fmt: skip
        compare(version, case(levels, dtype))


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([0.0, 20, 39.5, 44, 85, 88, 300, -45, -88, -300]), min_size=1, max_size=75),
    st.sampled_from(["plain", "cpu"]), st.sampled_from([np.float32, np.float64]),
)  # fmt: skip
def test_any_mixture_of_sizes(levels, version, dtype):
    compare(version, case(np.array(levels), dtype))


@pytest.mark.parametrize("version", ["plain", "cpu"])
def test_scores_that_come_from_the_queries(version):
    """A query may be large where keys are not: rows of one block that need their maximum beside rows that do not."""
    q, k, v, dy = case(np.zeros(70), np.float32)
    k[..., 0] = 1
    q[:, ::7, 0], q[:, 1::7, 0] = 300, -300
    compare(version, (q, k, v, dy))


# The decoder: one token at a time and several at once, against the whole model in float64.


def sharp(config: ModelConfig, size: float, dtype=np.float64, seed: int = 0) -> GPT:
    """A model whose largest score is about `size`."""
    params = oracles.random_parameters(config, seed, 0.3)
    tokens = np.arange(config.context) % config.vocab_size
    params["layers.0.qkv"][:, : (H + G) * C] *= 1 / math.sqrt(_largest_score(params, config, tokens))
    for layer in range(config.layers):
        params[f"layers.{layer}.qkv"][:, : (H + G) * C] *= math.sqrt(size)
    return GPT(config, oracles._as(params, config, dtype))


def _largest_score(params, config, tokens):
    plan = Plan(config, 1, len(tokens), np.float64)
    GPT(config, params).forward(plan, tokens[None])
    q, k, _ = np.split(plan.layers[0].qkv.reshape(len(tokens), H + 2 * G, C), [H, H + G], axis=1)
    return max(np.abs(q[:, h] @ k[:, h // (H // G)].T).max() for h in range(H))


@pytest.mark.parametrize("size", [1.0, 39.0, 89.0, 500.0, 3000.0])
@pytest.mark.parametrize("cuts", [range(1, 101), [100], [1, 70, 71, 100], [64, 65, 99, 100]], ids=len)
def test_decoder_at_large_scores(size, cuts):
    """Pieces of any size, beyond one block of rows, give the logits of the formula."""
    config = replace(LONG, context=100)
    tokens = np.random.default_rng(1).integers(0, 5, 100)
    model = sharp(config, size)
    expected = oracles.naive_logits(model.params, config, tokens[None])[0, :, 0]
    oracles.close(model.logits(tokens[None])[0], expected, 1e-12 * size + 1e-12, "GPT.logits")
    decoder, start = Decoder(model), 0
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for end in cuts:
            found = decoder.feed_all(tokens[start:end])
            oracles.close(found, expected[start:end], 1e-12 * size + 1e-12, f"tokens {start} to {end}")
            start = end


# Softmax over a vocabulary.


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("version", ["plain", "cpu"])
@pytest.mark.parametrize("size", SIZES)
def test_losses_at_large_logits(version, dtype, size):
    """Losses and gradients where one logit, or every one, is far from 0; rows that need it beside rows that do not."""
    N, K, V, D = 7, 2, 40, 3
    rng = np.random.default_rng(0)
    for kind in ("one", "all", "none below", "rows"):
        y, w = rng.standard_normal((N, D)), 0.3 * rng.standard_normal((D, K * V))
        y[:, 0] = 1
        w[0] += {"one": at(K * V, 11, size), "all": size, "none below": -size, "rows": 0.0}[kind]
        if kind == "rows":
            y[::3] *= size
        targets = rng.integers(-1, V, (N, K))
        y, w, scale = y.astype(dtype), w.astype(dtype), rng.random(K)
        losses, dy, dw = np.empty((N, K), dtype), np.empty((N, D), dtype), np.empty((D, K * V), dtype)
        scratch = dict(work_logits=np.empty((3, V + D), dtype), work_weight=np.empty(D * K * V, dtype))
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            composites(version, scratch).heads_loss(losses, dy, dw, y, w, targets, scale, False)
        z = (y.astype(np.float64) @ w.astype(np.float64)).reshape(N, K, V)
        e = np.exp(z - z.max(axis=-1, keepdims=True))
        p = e / e.sum(axis=-1, keepdims=True)
        expected, dz = np.zeros((N, K)), np.zeros((N, K, V))
        for n, k in np.ndindex(N, K):
            if targets[n, k] >= 0:
                one = np.arange(V) == targets[n, k]
                expected[n, k] = math.log(e[n, k].sum()) + z[n, k].max() - z[n, k][one][0]
                dz[n, k] = scale[k] * (p[n, k] - one)
        dz = dz.reshape(N, -1)
        largest = max(1.0, np.abs(z).max())
        rtol = (1e-14 if dtype == np.float64 else 1e-6) * largest
        for name, a, b in (("losses", losses, expected), ("dy", dy, dz @ w.T), ("dw", dw, y.T @ dz)):
            apart = np.abs(a - b).max()
            assert apart <= rtol * max(1.0, np.abs(b).max()), f"{kind}, {name}: {apart:.1e} apart at {largest:.0f}"
