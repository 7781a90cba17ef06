"""The appendix on the race: its checks accept what is right and reject wrong answers by name; its polynomials come
nearest to 1, and its table's rule is the one that the race was run by.
"""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from chapters import ROOT, accepts, gap_tests, rejects, slips

from benchmarks import race

NOTEBOOK = ("A3_the_race",)


# ---- The gaps


def quintic(low, high, rounds=60, powers=(1, 3, 5), ends=(0, 1), size=abs):
    """The exchange, with one thing wrong, if asked."""
    first, last = (low + (high - low) * end for end in ends)
    points = np.array([first, 0.75 * first + 0.25 * last, 0.25 * first + 0.75 * last, last])
    for _ in range(rounds):
        columns = [points**power for power in powers] + [(-1.0) ** np.arange(4)]
        a, b, c, e = np.linalg.solve(np.stack(columns, axis=1), np.ones(4))
        turns = np.sort(np.roots([5 * c, 3 * b, a]).real).clip(low**2, high**2)
        points[1:3] = np.sqrt(turns)
    return a, b, c, size(e)


WRONG_QUINTICS = {
    "one exchange": dict(rounds=1),
    "powers of any parity": dict(powers=(0, 1, 2)),
    "points inside alone": dict(ends=(0.1, 0.9)),
    "the error's sign kept": dict(size=lambda e: -abs(e)),
}


def least_squares(low, high):
    """Close to 1 on the whole, and not where it is farthest off."""
    s = np.linspace(low, high, 5001)
    a, b, c = np.linalg.lstsq(np.stack([s, s**3, s**5], axis=1), np.ones_like(s), rcond=None)[0]
    return a, b, c, float(np.abs(a * s + b * s**3 + c * s**5 - 1).max())


def by_newton(low, high):
    """Another right answer: the square of s in the place of s, and its two turning points as unknowns of Newton's."""
    at = np.array([0.75 * low + 0.25 * high, 0.25 * low + 0.75 * high])
    for _ in range(100):
        s = np.array([low, *at, high])
        a, b, c, e = np.linalg.solve(np.array([[x, x**3, x**5, (-1) ** i] for i, x in enumerate(s)]), [1] * 4)
        slope, bend = a + 3 * b * at**2 + 5 * c * at**4, 6 * b * at + 20 * c * at**3
        at = (at - slope / bend).clip(low, high)
        at = np.sort(at)
    return [float(a), float(b), float(c), abs(float(e))]


OTHERS = {
    "check_quintic": (by_newton,),
    "check_steps": (
        lambda steps, bits, slope, sigma, n, goal=1.7, bound=4.3: next(
            s for s in range(steps - 2000, 10**6) if (goal - bits + slope * (s - steps)) * math.sqrt(n) >= bound * sigma
        ),
    ),
    "check_luck": (lambda p, tries: [-math.expm1(tries * math.log1p(-p)), -math.expm1(math.log1p(-p) / tries)],),
    "check_saving": (lambda stairs, P, L, D: float(counted(stairs, P, L, D)),),
}


def counted(stairs, P, L, D):
    whole, before, total = P + D * L * (stairs[-1][1] + 1), Fraction(0), Fraction(0)
    for share, T in stairs:
        end = Fraction(share).limit_denominator(100)
        total += (end - before) * (P + D * L * (T + 1))
        before = end
    return total / whole


MORE_WRONG = {
    "check_quintic": {
        "least squares": least_squares,
        "A2's polynomial": lambda low, high: (3.4445, -4.7750, 2.0315, 0.3),
    },
}


test_right_gaps, test_wrong_gaps = gap_tests({"check_quintic": ([quintic], slips(quintic, WRONG_QUINTICS))})
test_other_right_answers = accepts(OTHERS)
test_more_wrong_answers = rejects(MORE_WRONG)


def stairs(rng):
    ends = np.sort(rng.uniform(0.05, 0.95, rng.integers(0, 4))).tolist() + [1.0]
    lengths = rng.integers(1, 600, len(ends)).tolist()
    return tuple(zip(ends, lengths, strict=True)), *map(int, rng.integers(1, 1000, 3))


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
