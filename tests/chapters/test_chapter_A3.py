"""The appendix on the race: its checks accept what is right and reject wrong answers by name; its polynomials come
nearest to 1, and its table's rule is the one that the race was run by.
"""

import json
import math

import numpy as np
import pytest
from chapters import ROOT, accepts, rejects, rewritten_tests

from benchmarks import race

NOTEBOOK = ("A3_the_race",)


# ---- The gaps


WRONG_QUINTICS = {
    "one exchange": ("range(50)", "range(1)"),
    "the error's sign kept": ("float(abs(off))", "-float(abs(off))"),
    "A2's polynomial": ("return float(a)", "return 3.4445, -4.7750, 2.0315, 0.3\n    return float(a)"),
}
_, test_wrong_gaps = rewritten_tests({"check_quintic": ("best_quintic", {}, WRONG_QUINTICS)})


def least_squares(low, high):
    """Close to 1 on the whole, and not where it is farthest off."""
    s = np.linspace(low, high, 5001)
    a, b, c = np.linalg.lstsq(np.stack([s, s**3, s**5], axis=1), np.ones_like(s), rcond=None)[0]
    return a, b, c, float(np.abs(a * s + b * s**3 + c * s**5 - 1).max())


test_least_squares = rejects({"check_quintic": {"least squares": least_squares}})
test_other_right_answers = accepts(
    {"check_luck": [lambda p, tries: [-math.expm1(tries * math.log1p(-p)), -math.expm1(math.log1p(-p) / tries)]]}
)


# ---- The race


@pytest.mark.parametrize("low, high", [(0.003, 1.0), (0.2, 1.8), (0.7, 1.3)])
def test_no_other_polynomial_is_nearer(low, high):
    """Against a thousand that differ a little or much in their coefficients."""
    *best, off = race.best_quintic(low, high)
    s = np.linspace(low, high, 2001)
    rng = np.random.default_rng(0)
    for size in np.geomspace(1e-4, 1, 1000):
        a, b, c = np.array(best) * (1 + size * rng.standard_normal(3))
        assert np.abs(a * s + b * s**3 + c * s**5 - 1).max() > off


def test_the_stored_race_is_of_this_script():
    stored = json.loads((ROOT / "data/results/race.json").read_text("utf-8"))
    config = json.loads(json.dumps(dict(recipe=race.RECIPE, adamw=race.ADAMW, four=race.ROUNDS["four"])))
    assert {name: stored["config"][name] for name in ("recipe", "adamw")} == {
        name: config[name] for name in ("recipe", "adamw")
    }
    np.testing.assert_allclose(stored["config"]["four"], config["four"], rtol=1e-9)
    assert (stored["config"]["goal"], stored["config"]["bound"]) == (race.GOAL, race.BOUND)
    seeds = {name: {r["seed"] for r in stored["rows"] if r["section"] == name} for name in ("sigma", "search")}
    assert seeds == {"sigma": set(race.PILOTS), "search": {race.SEARCH}}
