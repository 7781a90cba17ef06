"""The appendix on Muon: its checks accept what is right and reject wrong answers by name; its stored results are its
own, and the rule that made them is the library's.
"""

import json
import math

import numpy as np
import pytest
from chapters import ROOT, accepts, rewritten_tests, run_tagged

from experiments import qk_norm
from nanoeuler_book import frame
from nanoeuler_lib import ops
from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.model import GPT, Parameters
from nanoeuler_lib.model.optim import Muon

NOTEBOOK = "A2_muon", "QUINTIC", "SCHULZ_STEPS", "SMALLEST", "MOVE"


# ---- The gaps

SIZE = "max(np.linalg.norm(x), SMALLEST)"
WRONG_ITERATIONS = {
    "not divided by the norm": (SIZE, "1.0"),
    "a matrix of zeros divided by 0": (SIZE, "np.linalg.norm(x)"),
    "a standing matrix comes back lying": ("return x if u.shape[0] <= u.shape[1] else x.T", "return x"),
    "the gentler polynomial": ("a, b, c = QUINTIC", "a, b, c = 1.5, -0.5, 0.0"),
    "in float32": ("x = u if ", "u = u.astype(np.float32).astype(u.dtype)\n    x = u if "),
    "U V^T itself": (f"x / {SIZE}", "(lambda s: s[0] @ s[2])(np.linalg.svd(x, full_matrices=False))\n    return x"),
}
WRONG_STEPS = {
    "momentum as a mean": ("m = beta * m + g", "m = beta * m + (1 - beta) * g"),
    "no look ahead": ("u = g + beta * m", "u = m"),
    "the rows": ("max(part.shape)", "part.shape[0]"),
    "sides of the whole array": ("max(part.shape)", "max(p.shape)"),
    "parts not taken apart": ("if widths else", "if False else"),
    "momentum not kept": ("m = beta * m + g\n    u = g + beta * m", "u = g + beta * (beta * m + g)"),
}
_, test_wrong_gaps = rewritten_tests(
    {"check_newton_schulz": ("newton_schulz", {}, WRONG_ITERATIONS), "check_muon_step": ("muon_step", {}, WRONG_STEPS)}
)
test_other_right_answers = accepts(
    {
        "check_rows": [lambda dW, eta: np.array([-eta * g / np.hypot.reduce(g) if g.any() else 0 * g for g in dW])],
        "check_share": [lambda R, C, N: 5 * min(R, C) * (2 + min(R, C) / max(R, C)) / 3 / N],
    }
)


# ---- The comparison


@pytest.fixture(scope="module")
def ways():
    """What the script takes from the appendix."""
    return run_tagged("A2_muon", "experiment")


def test_muon_by_shape_is_the_librarys_muon(ways):
    """Two steps of the miniature's rule move every tensor as `optim.Muon` does."""
    config = TrainConfig(warmup=0, rate=0.02, rate_end=1.0, optimizer="muon")
    rng, shape = np.random.default_rng(0), ways["MINI"]
    own, theirs, grads, m, v = (Parameters(shape, np.float64) for _ in range(5))
    own.flat[...] = theirs.flat[...] = rng.standard_normal(own.flat.shape)
    rule, optimizer = ways["MUONS"]["Muon, each matrix by itself"], Muon(shape, config, np.float64)
    for step in (1, 2):
        grads.flat[...] = rng.standard_normal(own.flat.shape)
        optimizer.step += 1
        optimizer.update(theirs, grads, list(theirs), 1.0)
        for name, p in own.items():
            numbers = config.beta1, config.beta2, config.adam_eps, config.decay if p.ndim > 1 else 0.0
            p[...], m[name][...], v[name][...] = rule(p, grads[name], m[name], v[name], step, config.rate, *numbers)
    np.testing.assert_allclose(own.flat, theirs.flat, rtol=1e-9, atol=1e-12)
    for name, changed in ways["MUONS"].items():
        p = own["layers.0.qkv"]
        moved = changed(p, grads["layers.0.qkv"], m["layers.0.qkv"], 0 * p, 3, 0.02, 0.9, 0.95, 1e-8, 0.1)[0]
        usual = rule(p, grads["layers.0.qkv"], m["layers.0.qkv"], 0 * p, 3, 0.02, 0.9, 0.95, 1e-8, 0.1)[0]
        same = name in OUTSIDE_QKV
        assert np.array_equal(moved, usual) == same, name


OUTSIDE_QKV = ("Muon, each matrix by itself", "gate and up as one", "embedding and head too")


def test_stored_results_of_muon_are_of_this_experiment(ways):
    folder = ROOT / "data" / "results"
    of_adamw = json.loads((folder / "ch11.json").read_text("utf-8"))["config"]
    result = json.loads((folder / "ch11_muon.json").read_text("utf-8"))
    config, rows = result["config"], result["rows"]
    assert all(config[key] == of_adamw[key] for key in ("model", "steps", "seeds", "choosing_seed"))
    assert {row["name"] for row in rows} == set(ways["MUONS"])
    for name in ways["MUONS"]:
        own = [row for row in rows if row["name"] == name]
        tried = {row["rate"]: row["bits_per_byte"] for row in own if row["seed"] == config["choosing_seed"]}
        assert set(tried) == set(ways["MUON_RATES"])
        best = min(tried, key=lambda rate: math.inf if tried[rate] is None else tried[rate])
        assert config["chosen"][name] == best
        final = [(row["seed"], row["rate"]) for row in own if row["seed"] != config["choosing_seed"]]
        assert final == [(seed, best) for seed in config["seeds"]]


# ---- The norm of queries and keys


@pytest.mark.parametrize("factor", qk_norm.FACTORS)
def test_watching_the_scores_changes_no_gradient_and_finds_the_largest(factor):
    model = GPT(frame.CONFIG, seed=1)
    model.params.flat *= 4  # so that scores are not close to 0
    tokens = np.random.default_rng(3).integers(0, 512, (2, 129))
    batch = tokens[:, :-1], tokens[:, 1:, None]
    with ops.use(**qk_norm.pair(factor)):
        loss, grads = model.loss_and_gradients(*batch)
        expected = grads.flat.copy()
    seen = []
    with ops.use(**qk_norm.watched(factor, seen)):
        again, grads = model.loss_and_gradients(*batch)
    assert again == loss and np.array_equal(grads.flat, expected)
    for layer, largest in zip(model.plan(2, 128).layers, seen, strict=True):
        q, k, _ = np.split(np.asarray(layer.qkv, float).reshape(2, 128, 12, 16), 3, axis=2)  # q is divided by 4
        if factor is not None:
            q, k = (x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True)) for x in (q, k))
            q = q * factor / 4
        brute = max(
            abs(float(q[b, i, h] @ k[b, j, h]))
            for b in range(2)
            for h in range(4)
            for i in range(128)
            for j in range(i + 1)
        )
        assert abs(largest - brute) <= 1e-3 * brute


def test_stored_results_of_the_norm_are_of_this_experiment():
    result = json.loads((ROOT / "data" / "results" / "qk_norm.json").read_text("utf-8"))
    config, rows = result["config"], result["rows"]
    assert config["model"] == frame.CONFIG.to_dict() and config["bound"] == qk_norm.BOUND
    assert config["steps"] == frame.STEPS and config["rates"] == qk_norm.RATES and len(config["seeds"]) >= 5
    found = [(row["optimizer"], row["rate"], row["factor"], row["seed"]) for row in rows]
    wanted = [
        (o, r, f, s)
        for o in qk_norm.OPTIMIZERS
        for r in qk_norm.RATES
        for f in qk_norm.FACTORS
        for s in config["seeds"]
    ]
    assert found == wanted
    for row in rows:
        if row["factor"] is not None:
            assert row["last"] <= row["largest"] <= 1.001 * row["factor"] * math.sqrt(frame.CONFIG.head_dim)
