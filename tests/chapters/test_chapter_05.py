"""Chapter 05: its checks accept what is right and reject wrong answers, each of them named."""

import math

import numpy as np
import pytest
from chapters import accepts, rejected

from nanoeuler_book.checks import verdict

NOTEBOOK = ("05_checking_gradients", "UNIT", "PARTS", "SUSPECTS", "BUGS", "cross_entropy_backward")


# ---- The gaps


def gradient(f, x, h, weights=((1, 0.5), (-1, -0.5)), put_back=True, once=False):
    """A quotient from (distance, weight) pairs, with one thing wrong if asked."""
    slope = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        kept = x[i]
        for distance, weight in weights:
            x[i] = kept + distance * h
            slope[i] += weight * f() / h
        x[i] = kept if put_back else x[i] - weights[-1][0] * h
        if once:
            break
    return slope


FOURTH = ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12))
WRONG_GRADIENT = {
    "one-sided": (2, dict(weights=((1, 1), (0, -1)))),
    "h subtracted again instead of the number put back": (2, dict(put_back=False)),
    "only the first element": (2, dict(once=True)),
    "second order where the fourth is due": (4, {}),
}


def test_any_quotient_of_the_right_order_is_right(chapter):
    assert chapter.check_gradient(gradient, 2) == "right"
    assert chapter.check_gradient(lambda f, x, h: gradient(f, x, h, FOURTH), 4) == "right"


@pytest.mark.parametrize("order, wrong", WRONG_GRADIENT.values(), ids=WRONG_GRADIENT)
def test_wrong_quotient_is_rejected(chapter, order, wrong):
    assert rejected(chapter.check_gradient, lambda f, x, h: gradient(f, x, h, **wrong), order)


def one_sided_by_extrapolation(f, x, h):
    """Richardson: twice the near slope less the far one."""
    return 2 * (f(x + h) - f(x)) / h - (f(x + 2 * h) - f(x)) / (2 * h)


def one_sided_by_parabola(f, x, h):
    """The slope at x of the parabola through the three points."""
    a, b, c = f(x), f(x + h), f(x + 2 * h)
    bend = (a - 2 * b + c) / h**2
    return (b - a) / h - bend * h / 2


def counted_up(m, w, rho, tolerance, chance):
    """One direction more until the chance is small enough."""
    missed, k = math.atan2(tolerance * math.sqrt(m), rho * math.sqrt(w)) / (math.pi / 2), 1
    while missed**k > chance:
        k += 1
    return k


def by_numpy(m, w, rho, tolerance, chance):
    missed = 2 / np.pi * np.arctan(tolerance / rho * np.sqrt(m / w))
    return np.ceil(np.log(chance) / np.log(missed))


OTHERS = {
    "check_one_sided": [one_sided_by_extrapolation, one_sided_by_parabola],
    "check_steps": [
        lambda: (0.1136, 0.2272),
        lambda: (0.11, 0.23),
        lambda: [math.cbrt(3 / 2048), np.float64(3 / 256) ** (1 / 3)],
    ],
    "check_diagnosis": [lambda: dict(zip(("four", "three", "two", "one"), "BACD", strict=True))] * 2,
    "check_directions": [counted_up, by_numpy],
}


test_other_right_answers = accepts(OTHERS)


def test_a_point_too_far_and_too_few_places_are_rejected(chapter):
    too_far = lambda f, x, h: (-3 * f(x) + 4 * f(x + h / 2) - f(x + h)) / h
    rows_and_columns = lambda f, x, h: [[gradient(f, x, h)[i, j] for j in range(x.shape[1])] for i in range(2)]
    assert verdict(chapter.check_one_sided, too_far) not in ("right", "not written yet")
    assert verdict(chapter.check_gradient, rows_and_columns, 2) not in ("right", "not written yet")


# ---- The network of the gallery


def test_every_bug_changes_the_network_or_its_gradient(chapter):
    case = chapter.awkward()
    loss, grads = chapter.net(*case)
    for name, bug in chapter.BUGS.items():
        other_loss, other = chapter.net(*case, **bug)
        same = all(np.array_equal(other[tensor], grads[tensor]) for tensor in grads)
        assert other_loss != loss or not same, name


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def test_each_suspect_belongs_to_one_line(chapter):
    with np.errstate(invalid="ignore"):
        for name, suspect in chapter.SUSPECTS.items():
            accused = [line for line in "ABCD" if not chapter.colleague(suspect, line)]
            assert accused == [chapter.diagnosis()[name]]
