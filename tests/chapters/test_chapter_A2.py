"""The appendix on Muon: its checks accept what is right and reject wrong answers by name; its stored results are its
own, and the rule that made them is the library's.
"""

import json
import math

import numpy as np
import pytest
from chapters import ROOT, accepts, gap_tests, rejects, run_tagged, slips

from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.model import Parameters
from nanoeuler_lib.model.optim import Muon

NOTEBOOK = "A2_muon", "QUINTIC", "SCHULZ_STEPS", "SMALLEST", "MOVE"
A, B, C = 3.4445, -4.7750, 2.0315


# ---- The gaps


def newton_schulz(u, rounds=5, smallest=1e-15, coefficients=(A, B, C), norm=np.linalg.norm, flip=True, back=True):
    """The iteration with one thing wrong, if asked."""
    a, b, c = coefficients
    size = norm(u)
    x = u / max(size, smallest) if smallest else u / size
    lies = u.shape[0] <= u.shape[1] or not flip
    x = x if lies else x.T
    for _ in range(rounds):
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ (gram @ x)
    return x if lies or not back else x.T


def from_the_right(u):
    """Another right answer: the Gram matrix of the columns, whatever the shape."""
    x = u / max(np.sqrt((u * u).sum()), 1e-15)
    for _ in range(5):
        gram = x.T @ x
        x = x @ (A * np.eye(len(gram), dtype=u.dtype) + B * gram + C * gram @ gram)
    return x


def decomposed(u, exact=False):
    left, s, right = np.linalg.svd(u, full_matrices=False)
    s = s / max(np.sqrt((s * s).sum()), 1e-15)
    for _ in range(5):
        s = A * s + B * s**3 + C * s**5
    return left @ right if exact else left * s @ right


WRONG_ITERATIONS = {
    "not divided by the norm": dict(norm=lambda u: 1.0),
    "a matrix of zeros divided by 0": dict(smallest=0),
    "a standing matrix comes back lying": dict(back=False),
    "the gentler polynomial": dict(coefficients=(1.5, -0.5, 0.0)),
}


def muon_step(
    p, g, m, rate, beta, decay, widths=None, mean=False, ahead=True, side=max, whole=False, parts=True,
    decays=lambda rate, decay, p: rate * decay * p, scaled=True, returns=lambda m, u: m,
):  # fmt: skip
    """One step with one thing wrong, if asked."""
    m = beta * m + (1 - beta if mean else 1) * g
    u = g + beta * m if ahead else m
    ends = np.cumsum(widths if widths and parts else [p.shape[1]])
    moves = [
        (0.2 * math.sqrt(side(p.shape if whole else part.shape)) if scaled else 0.2) * newton_schulz(part)
        for part in np.split(u, ends[:-1], axis=1)
    ]
    return p - decays(rate, decay, p) - rate * np.concatenate(moves, axis=1), returns(m, u)


WRONG_STEPS = {
    "momentum as a mean": dict(mean=True),
    "no look ahead": dict(ahead=False),
    "the rows": dict(side=lambda shape: shape[0]),
    "sides of the whole array": dict(whole=True),
    "parts not taken apart": dict(parts=False),
    "no factor for the shape": dict(scaled=False),
}


def muon_step_in_place_of_parts(p, g, m, rate, beta, decay, widths=None):
    """Another right answer: part by part into a copy."""
    new, kept, start = p * (1 - rate * decay), g + beta * m, 0
    for width in widths or [p.shape[1]]:
        part = slice(start, start + width)
        u = (1 + beta) * g[:, part] + beta * beta * m[:, part]
        new[:, part] -= rate * (0.04 * max(u.shape)) ** 0.5 * decomposed(u)
        start += width
    return new, kept


OTHERS = {
    "check_newton_schulz": (from_the_right, decomposed),
    "check_muon_step": (muon_step_in_place_of_parts,),
    "check_rows": (lambda dW, eta: np.array([-eta * g / np.hypot.reduce(g) if g.any() else 0 * g for g in dW]),),
    "check_products": (lambda start, goal: list(counted(start, goal)),),
    "check_share": (lambda R, C, N: 5 * min(R, C) * (2 + min(R, C) / max(R, C)) / 3 / N,),
}
MORE_WRONG = {
    "check_newton_schulz": {
        "U V^T itself": lambda u: decomposed(u, exact=True),
        "in float32": lambda u: newton_schulz(u.astype(np.float32)).astype(u.dtype),
    },
    "check_muon_step": {
        "momentum not kept": lambda p, g, m, *given: (muon_step(p, g, m, *given)[0], m),
    },
}  # fmt: skip


def counted(start, goal):
    found = []
    for products, (a, b, c) in ((2, (1.5, -0.5, 0.0)), (3, (A, B, C))):
        s, rounds = start, 0
        while s < goal:
            s, rounds = a * s + b * s**3 + c * s**5, rounds + 1
        found.append(products * rounds)
    return tuple(found)


test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_newton_schulz": ([], slips(newton_schulz, WRONG_ITERATIONS)),
        "check_muon_step": ([muon_step], slips(muon_step, WRONG_STEPS)),
    }
)


test_other_right_answers = accepts(OTHERS)
test_more_wrong_answers = rejects(MORE_WRONG)


def step(rng):
    widths = rng.integers(1, 6, rng.integers(1, 4)).tolist()
    shape = int(rng.integers(1, 7)), sum(widths)
    p, g, m = rng.standard_normal((3, *shape)) * 10.0 ** rng.integers(-3, 3, (3, 1, 1))
    numbers = rng.uniform(1e-3, 1), rng.uniform(0, 0.99), rng.uniform(0, 1)
    return p, g, m, *map(float, numbers), widths if rng.random() < 0.7 else None


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


OUTSIDE_QKV = (
    "Muon, each matrix by itself",
    "gate and up as one",
    "embedding and head too",
)


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


def test_muons_small_example_by_hand(chapter):
    """newton_schulz of the page's 2 x 2 matrix, whose singular vectors are (1, 1) and (1, -1)."""
    s = np.array([4.0, 2.0]) / np.sqrt(20)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    found = chapter.newton_schulz(np.array([[3.0, 1.0], [1.0, 3.0]]))
    half = (s[0] + s[1]) / 2, (s[0] - s[1]) / 2
    np.testing.assert_allclose(found, [[half[0], half[1]], [half[1], half[0]]], rtol=1e-12)
