"""The page "What this model is not": its measured numbers are the stored ones, and its exercises have these answers."""

import json
import math
import re
from functools import reduce
from itertools import product
from pathlib import Path

import numpy as np

from experiments import other_models
from nanoeuler_book.linear_attention import window_attention
from nanoeuler_lib import ops
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.ops import reference
from nanoeuler_lib.training.checkpoint import load_pretrained

ROOT, RNG = Path(__file__).resolve().parents[2], np.random.default_rng(0)


def test_the_measured_numbers_are_the_stored_ones():
    page = (ROOT / "book/other_models.md").read_text("utf-8")
    row = {row["change"]: row for row in json.loads((ROOT / "data/results/other_models.json").read_text())["rows"]}
    plain, angles, window, clip = (row[name] for name in ("none", "angles", "window", "QK-clip"))
    bits = {n: np.array(row[f"{n} bits"]["first_more"]) * 1000 / math.log(2) for n in (8, 4, 3, 2)}
    pairs = [(plain["first"], 2), (plain["last"], 1), (angles["first"], 1), (angles["last"], 1)]
    pairs += [(angles["last_more"], 1), (angles["first_more"], 1), (window["last"], 2), (window["last_more"], 1)]
    pairs += [(clip["first_more"], 3), (bits[8], 1), (bits[4], 0), (bits[3], -1), (bits[2], -2)]
    rounded = [tuple(f"{round(abs(x), digits):,.{max(digits, 0)}f}" for x in pair) for pair, digits in pairs]
    assert re.findall(r"([\d.,]+) ± ([\d.]*\d)", page) == rounded
    assert f"measured is {clip['absolute']:.0f}," in page and f"measured $S = {clip['largest']:.1f}$" in page
    assert f"rose from {plain['first'][0]:.3f} to {clip['first'][0]:.3f} nats" in page
    least = 2.04 * clip["first_more"][1]  # the 95% quantile of Student's t with 31 degrees of freedom
    assert f"at least {least:.3f} nats would" in page and clip["first_more"][0] < least
    t = [mean / error for mean, error in bits.values()]
    assert t[0] < 2.04 and t[1] < 2.36 and min(t[2:]) > 2.65, "the rule with Holm's correction"


def test_the_exercises_with_the_model():
    model, tokens = load_pretrained()[0], RNG.integers(0, 500, (4, 140))
    with ops.use(attention_forward=window_attention(4)[0]):
        a, b = (model.hidden(tokens[:1, :64] + (np.arange(64) == changed)) for changed in (-1, 10))
    assert np.flatnonzero((a != b).any(axis=-1))[[0, -1]].tolist() == [10, 22]
    found = other_models.later_heads(model, tokens)
    assert found["largest_of_later_heads"] == 0 and found["largest_difference"] < 1e-5
    assert sum(layer.cache.nbytes for layer in Decoder(model).layers) == 8 * 4 * 2 * 32 * 128 == 262_144
    w = model.params["layers.0.qkv"][:, 128:].astype(float)
    u, s, v = np.linalg.svd(w)
    assert math.isclose(((w - u[:, :24] * s[:24] @ v[:24]) ** 2).sum(), (s[24:] ** 2).sum()) and len(s) == 128


def test_the_exercises_without_the_model():
    q, k = (reference.rmsnorm_forward(900 * RNG.normal(size=(9, 8)), np.ones(8), 0.0)[0] for _ in "qk")
    assert abs(q @ k.T / math.sqrt(8)).max() <= math.sqrt(8) + 1e-12
    key, added, delta = k[0] / np.linalg.norm(k[0]), np.zeros((8, 8)), np.zeros((8, 8))
    for value in q[:2]:
        added, delta = added + np.outer(key, value), delta + np.outer(key, value - key @ delta)
    assert np.allclose([key @ added, key @ delta], [q[0] + q[1], q[1]])
    one, p = reference.swiglu_forward(q, k)[0], np.sort(RNG.dirichlet(np.ones(4), 9))[:, 2:]
    assert np.allclose(sum(p[:, [i]] / p.sum(axis=1, keepdims=True) * one for i in range(2)), one)
    mixes = [sum(w * np.eye(4)[RNG.permutation(4)] for w in RNG.dirichlet(np.ones(5))) for _ in range(64)]
    assert math.isclose(np.linalg.norm(np.linalg.multi_dot(mixes), 2), 1)
    joint = RNG.dirichlet(np.ones(20)).reshape(4, 5)
    first, second, entropy = joint.sum(axis=1), joint.sum(axis=0), lambda p: -(p * np.log(p)).sum()
    cost = (joint * np.log(joint / np.outer(first, second))).sum()
    assert math.isclose(cost, entropy(first) + entropy(second) - entropy(joint))


def test_the_exercises_about_rounding_and_drawing():
    differ = lambda stories: np.not_equal.outer(stories, stories).mean()
    for stories in ((0, 1, 2), (0, 0, 1), (0, 0, 0)):  # from 2/3, five generations lead to (2/3)^6
        assert math.isclose(np.mean([differ(drawn) for drawn in product(stories, repeat=3)]), 2 / 3 * differ(stories))
    e4m3 = np.array([max(m, (e > 0) * (8 + m)) / 8 * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)][:-1])
    nearest = lambda x: e4m3[min(range(127), key=lambda i: (abs(e4m3[i] - x), i % 2))]  # ties: the even code
    ends = [reduce(lambda x, _: nearest(x + step), range(99), 1.0) for step in (1 / 16, 0.05, 0.07)]
    assert ends == [1, 1, 2] and e4m3[-1] == 448
    i, p = np.searchsorted(e4m3, e4m3 + 0.05).clip(max=126), (e4m3 == 1) * 1.0
    up = (e4m3 + 0.05 - e4m3[i - 1]) / (e4m3[i] - e4m3[i - 1])
    for _ in range(16):
        p = np.bincount(i - 1, p * (1 - up), 127) + np.bincount(i, p * up, 127)
    assert math.isclose(p @ e4m3, 1.8)
