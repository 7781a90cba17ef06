"""Chapter 09: its checks accept what is right and reject wrong answers, each of them named."""

import itertools
import json
import math

import numpy as np
import pytest
from chapters import ROOT, rejects, slips, verdict

NOTEBOOK = ("09_swiglu", "SHAPES", "WIDTHS", "FUNCTIONS", "MINI")


# ---- The gaps


def forward(gate, up, bend=None, stable=True, saved=None):
    """SwiGLU; the arguments after up are the mistakes that one can make."""
    s = 1 / (1 + np.exp(-gate)) if stable else np.exp(gate) / (1 + np.exp(gate))
    return (bend(gate) if bend else gate * s) * up, (saved or (lambda *kept: kept))(gate, up, s)


WRONG_FORWARD = {
    "GELU": dict(bend=lambda g: g / (1 + np.exp(-1.702 * g))),
    "nan for large gates": dict(stable=False),
    "a sigmoid saved as nan far out": dict(
        saved=lambda gate, up, s: (gate, up, np.where(np.abs(gate) > 500, np.nan, s))
    ),
    "gates clipped to 50": dict(bend=lambda g: np.clip(g, -50, 50) / (1 + np.exp(-np.clip(g, -50, 50)))),
}


def sigmoid_recomputed(dy, saved):
    """The slope of SiLU from e^g/(1 + e^g), which is NaN for large gates."""
    gate, up, _ = saved
    s = np.exp(gate) / (1 + np.exp(gate))
    return dy * up * (s + gate * s * (1 - s)), dy * gate * s


WRONG_BACKWARD = {
    "the second term dropped": lambda dy, saved: (dy * saved[1] * saved[2], dy * saved[0] * saved[2]),
    "the sigmoid recomputed as e^g/(1 + e^g)": sigmoid_recomputed,
}
test_wrong_gaps = rejects({"check_swiglu": slips(forward, WRONG_FORWARD), "check_backward": WRONG_BACKWARD})


def test_the_sentence_names_the_mistake(chapter):
    gelu = slips(forward, WRONG_FORWARD)["GELU"]
    assert verdict(chapter.check_swiglu, gelu).startswith("this is GELU's approximation")
    said = verdict(chapter.check_backward, WRONG_BACKWARD["the second term dropped"])
    assert "the second term of the product rule is missing" in said


def test_tuples_and_arrays_are_inputs(chapter):
    other = {"a": (np.ones(1), np.ones(1)), "b": ((35.0,), (35.0,)), "c": ([60.0, 45.0], [1, 1])}
    assert chapter.check_inputs(lambda: other) == "right"


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


def test_auc_against_counting_pairs(chapter):
    draw = np.random.default_rng(1)
    h, positive = draw.normal(size=(17, 3)), draw.random(17) < 0.4
    pairs = h[positive][:, None] > h[~positive][None]  # [positives, others, units]
    assert np.allclose(chapter.auc(h, positive), pairs.mean(axis=(0, 1)))
