"""Test appendix A3: its checks, its polynomials, and the stored race."""

import json
import math

import numpy as np
import pytest
from chapters import ROOT, accepts, rejects, rewritten_tests

from benchmarks import race

NOTEBOOK = ("A3_the_race",)


# ---- The gaps


WRONG_QUINTICS = {
    "one round of the exchange": ("range(50)", "range(1)"),
    "a negative error": ("float(abs(off))", "-float(abs(off))"),
    "A2's polynomial": ("return float(a)", "return 3.4445, -4.7750, 2.0315, 0.3\n    return float(a)"),
}
_, test_wrong_gaps = rewritten_tests({"check_quintic": ("best_quintic", {}, WRONG_QUINTICS)})


def least_squares(low, high):
    """Minimise the sum of squared errors instead of the largest error."""
    s = np.linspace(low, high, 5001)
    a, b, c = np.linalg.lstsq(np.stack([s, s**3, s**5], axis=1), np.ones_like(s), rcond=None)[0]
    return a, b, c, float(np.abs(a * s + b * s**3 + c * s**5 - 1).max())


test_least_squares = rejects({"check_quintic": {"least squares": least_squares}})


def steps_needed(steps, bits, slope, sigma, n, goal=1.70, bound=4.3):
    return steps + math.ceil((bits - goal + bound * sigma / n**0.5) / slope)


test_other_right_answers = accepts(
    {
        "check_luck": [lambda p, tries: [-math.expm1(tries * math.log1p(-p)), -math.expm1(math.log1p(-p) / tries)]],
        "check_steps": [lambda *given: np.int64(steps_needed(*given)), lambda *given: np.array(steps_needed(*given))],
    }
)
test_no_integer = rejects(
    {
        "check_steps": {
            "a float": lambda *given: float(steps_needed(*given)),
            "an array": lambda *given: [steps_needed(*given)],
        }
    }
)


# ---- The race


@pytest.mark.parametrize("low, high", [(0.003, 1.0), (0.2, 1.8), (0.7, 1.3)])
def test_no_other_polynomial_is_closer(low, high):
    """Compare with a thousand polynomials whose coefficients differ a little or a lot."""
    *best, off = race.best_quintic(low, high)
    s = np.linspace(low, high, 2001)
    rng = np.random.default_rng(0)
    for size in np.geomspace(1e-4, 1, 1000):
        a, b, c = np.array(best) * (1 + size * rng.standard_normal(3))
        assert np.abs(a * s + b * s**3 + c * s**5 - 1).max() > off


def test_the_stored_race_used_the_settings_of_this_script():
    stored = json.loads((ROOT / "data/results/race.json").read_text("utf-8"))
    config = json.loads(json.dumps(dict(recipe=race.RECIPE, adamw=race.ADAMW, four=race.ROUNDS["four"])))
    assert {name: stored["config"][name] for name in ("recipe", "adamw")} == {
        name: config[name] for name in ("recipe", "adamw")
    }
    np.testing.assert_allclose(stored["config"]["four"], config["four"], rtol=1e-9)
    assert (stored["config"]["goal"], stored["config"]["bound"]) == (race.GOAL, race.BOUND)
    seeds = {name: {r["seed"] for r in stored["rows"] if r["section"] == name} for name in ("sigma", "search")}
    assert seeds == {"sigma": set(race.PILOTS), "search": {race.SEARCH}}
