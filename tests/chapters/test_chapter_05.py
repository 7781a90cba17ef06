"""Chapter 05: its checks accept what is right and reject wrong answers, each of them named."""

import math
import re

import numpy as np
import pytest
from chapters import accepts, rejected

NOTEBOOK = ("05_checking_gradients", "UNIT", "PARTS", "SUSPECTS", "BUGS", "RULES", "cross_entropy_backward")


# ---- The gaps


def gradient(f, x, h, weights=((1, 0.5), (-1, -0.5)), put_back=True):
    """A quotient from (distance, weight) pairs, with one thing wrong if asked."""
    slope = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        kept = x[i]
        for distance, weight in weights:
            x[i] = kept + distance * h
            slope[i] += weight * f() / h
        x[i] = kept if put_back else x[i] - weights[-1][0] * h
    return slope


FOURTH = ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12))
WRONG_GRADIENT = {
    "that is the one-sided quotient": (2, dict(weights=((1, 1), (0, -1)))),
    "distance between the two points is 2h, not h": (2, dict(weights=((1, 1), (-1, -1)))),
    "do not subtract h again": (2, dict(put_back=False)),
    "that is the central quotient, expected four points": (4, {}),
    "that is the quotient of order 4": (2, dict(weights=FOURTH)),
}


def test_any_quotient_of_the_right_order_is_right(chapter):
    assert chapter.check_gradient(gradient, 2) == "right"
    assert chapter.check_gradient(lambda f, x, h: gradient(f, x, h, FOURTH), 4) == "right"


@pytest.mark.parametrize("why", WRONG_GRADIENT)
def test_wrong_quotient_is_named(chapter, why):
    order, wrong = WRONG_GRADIENT[why]
    with pytest.raises(AssertionError, match=why):
        chapter.check_gradient(lambda f, x, h: gradient(f, x, h, **wrong), order)


def by(rule):
    """A verdict that is right about shapes and NaN, and otherwise follows a rule."""
    fine = lambda a, n: a.shape == n.shape and np.isfinite([a, n]).all()
    return lambda a, n, rtol=1e-6, atol=1e-12: bool(fine(a, n) and rule(a, n, rtol, atol))


def test_wrong_verdict_is_named(chapter):
    for why, rule in chapter.RULES.items():
        with pytest.raises(AssertionError, match=re.escape(why)):
            chapter.check_verdict(by(rule))


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def one_sided_by_extrapolation(f, x, h):
    """Richardson: twice the near slope less the far one."""
    return 2 * (f(x + h) - f(x)) / h - (f(x + 2 * h) - f(x)) / (2 * h)


def directions_by_numpy(m, w, rho, tolerance, chance):
    missed = 2 / np.pi * np.arctan(tolerance / rho * np.sqrt(m / w))
    return np.ceil(np.log(chance) / np.log(missed))


test_other_right_answers = accepts(
    {
        "check_one_sided": [one_sided_by_extrapolation],
        "check_steps": [lambda: (0.11, 0.23), lambda: [math.cbrt(3 / 2048), np.float64(3 / 256) ** (1 / 3)]],
        "check_directions": [directions_by_numpy],
    }
)


def test_a_point_within_the_step_is_rejected(chapter):
    assert rejected(chapter.check_one_sided, lambda f, x, h: (-3 * f(x) + 4 * f(x + h / 2) - f(x + h)) / h)


def test_each_suspect_belongs_to_one_line(chapter):
    with np.errstate(invalid="ignore"):
        for name, suspect in chapter.SUSPECTS.items():
            accused = [line for line in "ABCD" if not chapter.colleague(suspect, line)]
            assert accused == [chapter.diagnosis()[name]]
