"""Chapter 09: its checks accept what is right and reject wrong answers, each of them named."""

import itertools
import json
import math

import numpy as np
import pytest
from chapters import ROOT, accepts, rejects, slips

NOTEBOOK = ("09_swiglu", "SHAPES", "WIDTHS", "FUNCTIONS", "MINI")


# ---- The gaps


def forward(gate, up, bend=None, use_up=True, stable=True, saved=None):
    """SwiGLU; the arguments after up are the mistakes that one can make."""
    with np.errstate(all="ignore"):
        s = 1 / (1 + np.exp(-gate)) if stable else np.exp(gate) / (1 + np.exp(gate))
        y = (bend(gate) if bend else gate * s) * (up if use_up else 1)
    return y, (saved or (lambda *kept: kept))(gate, up, s)


WRONG_FORWARD = {
    "ReLU": dict(bend=lambda g: np.maximum(g, 0)),
    "GELU": dict(bend=lambda g: g / (1 + np.exp(-1.702 * g))),
    "up forgotten": dict(use_up=False),
    "nan for large gates": dict(stable=False),
    "a sigmoid saved as nan far out": dict(
        saved=lambda gate, up, s: (gate, up, np.where(np.abs(gate) > 500, np.nan, s))
    ),
    "gates clipped to 50": dict(bend=lambda g: np.clip(g, -50, 50) / (1 + np.exp(-np.clip(g, -50, 50)))),
}


def backward(dy, saved, inner=1.0, use_up=True, bent=True):
    """The backward pass of SwiGLU; the arguments after saved are the mistakes that one can make."""
    gate, up, s = saved
    slope = s + inner * gate * s * (1 - s)
    return dy * (up if use_up else 1) * slope, dy * (gate * s if bent else s)


WRONG_BACKWARD = {
    "the sigmoid's slope for SiLU's": lambda dy, saved: (
        dy * saved[1] * saved[2] * (1 - saved[2]),
        dy * saved[0] * saved[2],
    ),
    "the second term of the product rule dropped": dict(inner=0.0),
    "up forgotten": dict(use_up=False),
    "dup without g": dict(bent=False),
    "the sigmoid computed anew as e^g/(1 + e^g)": lambda dy, saved: backward(
        dy, (saved[0], saved[1], np.exp(saved[0]) / (1 + np.exp(saved[0])))
    ),
}


BY_ONE_CHANGE = {name: wrong for name, wrong in WRONG_BACKWARD.items() if not callable(wrong)}
test_wrong_gaps = rejects(
    {
        "check_swiglu": slips(forward, WRONG_FORWARD),
        "check_backward": WRONG_BACKWARD | slips(backward, BY_ONE_CHANGE),
    }
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def symmetries_by_rule(function):
    """By what f does to a factor: f(3g) = 3 f(g), f(-g) = -f(g), f(g) u = g f(u)."""
    f = {"SiLU": lambda g: g / (1 + math.exp(-g)), "ReLU": lambda g: max(g, 0.0), "linear": lambda g: g}[function]
    keeps = {"scale up", "negate up"}
    keeps |= {"scale gate"} if all(math.isclose(f(3 * g), 3 * f(g)) for g in (-1, 2)) else set()
    keeps |= {"negate gate"} if all(math.isclose(f(-g), -f(g)) for g in (-1, 2)) else set()
    return keeps | ({"exchange"} if all(math.isclose(f(g) * u, g * f(u)) for g, u in ((1, 2), (-1, 2))) else set())


def beta_by_loops(dy, saved):
    gate, up, beta, s = saved
    dgate, dup, dbeta = np.zeros_like(gate), np.zeros_like(up), np.zeros_like(beta)
    for i in np.ndindex(gate.shape):
        g, u, b, o = gate[i], up[i], beta[i[-1]], s[i]
        dgate[i] = dy[i] * u * o * (1 + b * g * (1 - o))
        dup[i] = dy[i] * g * o
        dbeta[i[-1]] += dy[i] * u * g * g * o * (1 - o)
    return dgate, dup, dbeta


OTHERS = {
    "check_symmetries": [symmetries_by_rule],
    "check_beta": [beta_by_loops],
    "check_inputs": [
        lambda: {"a": ([1, 1, 1], [1, 1, 1]), "b": ([50.0, 60.0], [50.0, 60.0]), "c": ([60.0, 45.0], [1, 1])},
        lambda: {"a": (np.ones(1), np.ones(1)), "b": ((35.0,), (35.0,)), "c": ((40.0,), (1.0,))},
    ],
}
test_other_right_solutions = accepts(OTHERS)


# ---- What the experiments rest on


def test_stored_results_are_of_this_experiment(chapter):
    result = json.loads((ROOT / "data" / "results" / "ch09.json").read_text("utf-8"))
    config, rows = result["config"], result["rows"]
    assert config["model"] == chapter.MINI and config["widths"] == chapter.WIDTHS
    assert len(config["seeds"]) >= 5 and config["choosing_seed"] not in config["seeds"]
    for form, function in itertools.product(chapter.WIDTHS, chapter.FUNCTIONS):
        own = [r for r in rows if (r["form"], r["function"]) == (form, function)]
        tried = {r["rate"]: r["bits_per_byte"] for r in own if r["seed"] == config["choosing_seed"]}
        used = {(r["seed"], r["rate"]) for r in own if r["seed"] != config["choosing_seed"]}
        assert used == {(seed, min(tried, key=tried.get)) for seed in config["seeds"]}


def test_the_runs_with_large_gates_differ_in_the_gates_alone(chapter):
    """And the one run that stands in both files came out the same."""
    usual, large = (
        json.loads((ROOT / "data" / "results" / f"{name}.json").read_text("utf-8")) for name in ("ch09", "ch09_gates")
    )
    assert all(large["config"][what] == usual["config"][what] for what in large["config"])
    key = lambda row: (row["form"], row["function"], row["rate"], row["seed"])
    first = {key(row): row["bits_per_byte"] for row in usual["rows"]}
    again = [row for row in large["rows"] if row["gates"] == 1]
    assert len(again) == 1 and math.isclose(first[key(again[0])], again[0]["bits_per_byte"], abs_tol=1e-3)
    runs = {key(row) for row in large["rows"] if row["gates"] == 10}
    assert runs == {one for one in first if one[3] in usual["config"]["seeds"]}


@pytest.mark.parametrize("function", ["SiLU", "GELU", "ReLU", "linear"])
@pytest.mark.parametrize("form", ["plain", "gated"])
def test_every_pair_of_the_comparison_has_the_right_gradient(chapter, form, function):
    draw = np.random.default_rng(0)
    inputs = {"gate": draw.normal(size=(3, 5)) * 2, "up": draw.normal(size=(3, 5))}
    pair = chapter.pair_of(form, function)
    rows = chapter.gradcheck.check_layer(pair["swiglu_forward"], pair["swiglu_backward"], inputs)
    assert all(row.ok for row in rows)


def test_both_forms_have_equally_many_parameters(chapter):
    D = 48
    assert 2 * D * chapter.WIDTHS["plain"] == 3 * D * chapter.WIDTHS["gated"] == 8 * D * D


def test_auc_against_counting_pairs(chapter):
    draw = np.random.default_rng(1)
    h, positive = draw.normal(size=(17, 3)), draw.random(17) < 0.4
    pairs = h[positive][:, None] > h[~positive][None]  # [positives, others, units]
    assert np.allclose(chapter.auc(h, positive), pairs.mean(axis=(0, 1)))
