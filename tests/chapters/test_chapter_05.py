"""Chapter 05: its checks accept what is right and reject wrong answers, each of them named."""

import itertools
import math

import numpy as np
import pytest
from chapters import accepts, rejected, rejects

from nanoeuler_book.checks import verdict
from tools.release.chapter_mutants import Gap, Value

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
    "the 2 of 2h forgotten": (2, dict(weights=((1, 1), (-1, -1)))),
    "wrong sign": (2, dict(weights=((1, -0.5), (-1, 0.5)))),
    "h subtracted again instead of the number put back": (2, dict(put_back=False)),
    "only the first element": (2, dict(once=True)),
    "second order where the fourth is due": (4, {}),
    "weights exchanged": (4, dict(weights=((1, 1 / 12), (-1, -1 / 12), (2, -8 / 12), (-2, 8 / 12)))),
    "the outer pair added": (4, dict(weights=(*FOURTH[:2], (2, 1 / 12), (-2, -1 / 12)))),
    "divided by 6h": (4, dict(weights=tuple((d, 2 * w) for d, w in FOURTH))),
}


def test_any_quotient_of_the_right_order_is_right(chapter):
    assert chapter.check_gradient(gradient, 2) == "right"
    assert chapter.check_gradient(lambda f, x, h: gradient(f, x, h, FOURTH), 4) == "right"


@pytest.mark.parametrize("order, wrong", WRONG_GRADIENT.values(), ids=WRONG_GRADIENT)
def test_wrong_quotient_is_rejected(chapter, order, wrong):
    assert rejected(chapter.check_gradient, lambda f, x, h: gradient(f, x, h, **wrong), order)


DEFINED = lambda a, n: 1e-6 * np.maximum(abs(a), abs(n)) + 1e-12
WRONG_VERDICT = {
    "always right": lambda a, n: True,
    "always wrong": lambda a, n: False,
    "relative to n, no floor": lambda a, n: a.shape == n.shape and bool(np.all(abs(a - n) <= 1e-6 * abs(n))),
    "absolute": lambda a, n: a.shape == n.shape and bool(np.all(abs(a - n) <= 1e-6)),
    "in norm": lambda a, n: a.shape == n.shape and np.linalg.norm(a - n) <= 1e-6 * np.linalg.norm(n),
    "nan passes": lambda a, n: a.shape == n.shape and not np.any(abs(a - n) > 1e-6 * abs(n) + 1e-12),
    "lengths for shapes": lambda a, n: len(a) == len(n) and bool(np.all(abs(a - n) <= DEFINED(a, n))),
    "a row for its rows": lambda a, n: (a - n).shape == a.shape and bool(np.all(abs(a - n) <= DEFINED(a, n))),
    "shapes broadcast": lambda a, n: bool(np.all(abs(a - n) <= 1e-6 * abs(n) + 1e-12)),
    "the mean of the errors": lambda a, n: a.shape == n.shape and np.mean(abs(a - n)) <= 1e-6 * abs(n).mean(),
    "signs ignored": lambda a, n: a.shape == n.shape and bool(np.all(abs(abs(a) - abs(n)) <= 1e-6 * abs(n) + 1e-12)),
}


WRONG_TOLERANCES = {
    "rtol forgotten": lambda a, n, rtol=1e-6, atol=1e-12: within(a, n, 1e-6, atol),
    "atol forgotten": lambda a, n, rtol=1e-6, atol=1e-12: within(a, n, rtol, 1e-12),
    "the larger of the two for their sum": lambda a, n, rtol=1e-6, atol=1e-12: (
        a.shape == n.shape and bool(np.all(abs(a - n) <= np.maximum(rtol * np.maximum(abs(a), abs(n)), atol)))
    ),
    "size for shape": lambda a, n, rtol=1e-6, atol=1e-12: within(a.ravel(), n.ravel(), rtol, atol),
    "relative to n": lambda a, n, rtol=1e-6, atol=1e-12: (
        a.shape == n.shape and bool(np.isfinite(a - n).all() and np.allclose(a, n, rtol, atol))
    ),
    "too small is never wrong": lambda a, n, rtol=1e-6, atol=1e-12: (
        a.shape == n.shape
        and bool(np.isfinite(a - n).all())
        and bool(np.all(a - n <= rtol * np.maximum(abs(a), abs(n)) + atol))
    ),
    "less, and never equal": lambda a, n, rtol=1e-6, atol=1e-12: (
        a.shape == n.shape
        and bool(np.isfinite(a - n).all())
        and bool(np.all(abs(a - n) < rtol * np.maximum(abs(a), abs(n)) + atol))
    ),
    "the smaller size": lambda a, n, rtol=1e-6, atol=1e-12: (
        a.shape == n.shape and bool(np.all(abs(a - n) <= rtol * np.minimum(abs(a), abs(n)) + atol))
    ),
    "infinity passes": lambda a, n, rtol=1e-6, atol=1e-12: (
        a.shape == n.shape
        and not np.isnan(a - n).any()
        and bool(np.all(abs(a - n) <= rtol * np.maximum(abs(a), abs(n)) + atol))
    ),
}


def within(a, n, rtol=1e-6, atol=1e-12):
    """Element by element."""
    if a.shape != n.shape:
        return False
    for x, y in zip(a.ravel().tolist(), n.ravel().tolist(), strict=True):
        if math.isinf(x) or math.isinf(y) or not abs(x - y) <= rtol * max(abs(x), abs(y)) + atol:
            return False
    return True


def by_worst(a, n, rtol=1e-6, atol=1e-12):
    if np.shape(a) != np.shape(n):
        return False
    worst = np.abs(a - n) - rtol * np.maximum(np.abs(a), np.abs(n))
    return bool(np.isfinite(worst).all() and worst.max(initial=0) <= atol)


def by_flat_view(f, x, h, order):
    """Through the flat index, which sees a transposed array's elements as well."""
    found = np.empty(x.size)
    for i in range(x.size):
        kept, asked = x.flat[i], []
        for k in (1, -1, 2, -2):
            x.flat[i] = kept + k * h
            asked.append(f())
        x.flat[i] = kept
        near, far = asked[0] - asked[1], asked[2] - asked[3]
        found[i] = near / (2 * h) if order == 2 else (8 * near - far) / (12 * h)
    return found.reshape(x.shape)


def by_moves(f, x, h, order):
    """The whole array overwritten by a moved copy, and put back from a copy."""
    kept, found = x.copy(), np.empty(x.shape)
    for i in np.ndindex(x.shape):

        def at(k, i=i):
            x[...] = kept
            x[i] += k * h
            return f()

        one = (at(1) - at(-1)) / (2 * h)
        found[i] = one if order == 2 else (4 * one - (at(2) - at(-2)) / (4 * h)) / 3
    x[...] = kept
    return found


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
    "check_verdict": [within, by_worst],
    "check_one_sided": [one_sided_by_extrapolation, one_sided_by_parabola],
    "check_steps": [
        lambda: (0.1136, 0.2272),
        lambda: (0.11, 0.23),
        lambda: [math.cbrt(3 / 2048), np.float64(3 / 256) ** (1 / 3)],
    ],
    "check_diagnosis": [lambda: dict(zip(("four", "three", "two", "one"), "BACD", strict=True))] * 2,
    "check_directions": [counted_up, by_numpy],
}


@pytest.mark.parametrize(("order", "other"), list(itertools.product((2, 4), (by_flat_view, by_moves))))
def test_other_right_quotients_are_right(chapter, order, other):
    assert verdict(chapter.check_gradient, lambda f, x, h: other(f, x, h, order), order, in_place=True) == "right"


WRONG_DIRECTIONS = {
    "rounded down": lambda m, w, rho, tol, chance: counted_up(m, w, rho, tol, chance) - 1,
    "not rounded": lambda m, w, rho, tol, chance: (
        math.log(chance) / math.log(2 / math.pi * math.atan(tol / rho * math.sqrt(m / w)))
    ),
    "chance ignored": lambda m, w, rho, tol, chance: counted_up(m, w, rho, tol, 1e-6),
    "one too many": lambda m, w, rho, tol, chance: counted_up(m, w, rho, tol, chance) + 1,
}
test_other_right_answers = accepts(OTHERS)
test_wrong_answers = rejects({"check_verdict": WRONG_VERDICT | WRONG_TOLERANCES, "check_directions": WRONG_DIRECTIONS})


def test_a_point_too_far_and_too_few_places_are_rejected(chapter):
    too_far = lambda f, x, h: (-3 * f(x) + 4 * f(x + h / 2) - f(x + h)) / h
    rows_and_columns = lambda f, x, h: [[by_flat_view(f, x, h, 2)[i, j] for j in range(x.shape[1])] for i in range(2)]
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


# ---- What `make mutants CH=05` changes, and the inputs that the contracts allow


def place_to_move(rng, shape=None):
    """A float64 array of up to three axes, perhaps transposed, weights for a function of it, and a step."""
    shape = tuple(rng.integers(1, 4, rng.integers(0, 4)).tolist()) if shape is None else shape
    x = rng.normal(size=shape)
    return (x.T if rng.random() < 0.3 else x), float(rng.normal()), float(rng.choice([0.1, 0.01, 1e-3]))


def said_of_both(c):
    """What the check says of the quotient of order 2, or if that is right of the one of order 4."""
    of = lambda order: verdict(c.check_gradient, lambda f, x, h: c.numeric_gradient(f, x, h, order=order), order)
    return said if (said := of(2)) != "right" else of(4)


def both_orders(c, given):
    """The slopes of one number that depends on all elements, by both quotients, and the array afterwards."""
    x, w, h = given
    weights = 1 + np.arange(x.size).reshape(x.shape)
    found = [
        c.numeric_gradient(lambda: float(np.sin(w + (weights * x).sum()) + (x**3).sum()), x, h, order=order)
        for order in (2, 4)
    ]
    return [np.round(a, 8) for a in found], x


def pair_of_gradients(rng):
    """Two arrays of mostly one shape, apart by about what the tolerances allow; now and then nan or infinity."""
    shape = tuple(rng.integers(0, 4, rng.integers(1, 4)).tolist())
    n = rng.normal(size=shape) * 10.0 ** rng.integers(-14, 4)
    rtol, atol = float(rng.choice([1e-6, 1e-2, 0.3])), float(rng.choice([0.0, 1e-12, 1e-3]))
    size = rtol * np.abs(n) + atol
    a = n + rng.choice([-1, 1], shape) * size * rng.choice([0.5, 0.9, 1.5], p=[0.6, 0.35, 0.05])
    if n.size and rng.random() < 0.2:
        (a if rng.random() < 0.5 else n).flat[rng.integers(n.size)] = rng.choice([np.nan, np.inf, -np.inf])
    if rng.random() < 0.2:
        a = a.T if rng.random() < 0.5 else a.ravel()
    return a, n, rtol, atol


def slope_at_a_place(rng):
    return float(rng.normal()), float(rng.uniform(0.05, 0.5))


def slope_and_places(c, given):
    """The slope of a function at x, and where it was asked."""
    x, h = given
    asked = []
    slope = c.one_sided(lambda at: asked.append(at) or math.exp(at) + math.sin(3 * at), x, h)
    return slope, sorted(asked)


def numbers_of_a_bug(rng):
    m, w = int(rng.integers(1000, 200_000)), int(rng.integers(1, 5))
    return m, w, float(rng.uniform(0.2, 3)), float(rng.uniform(1e-4, 0.02)), float(rng.uniform(1e-6, 0.4))


def steps_by_calculus(_, answer):
    """(3u)^(1/3), within the five percent that the exercise allows."""
    right = [(3 * 2.0**-p) ** (1 / 3) for p in (11, 8)]
    return len(answer) == 2 and all(abs(h / best - 1) < 0.05 for h, best in zip(answer, right, strict=True))


def accused_by_trying(c, answer):
    if not isinstance(answer, dict) or answer.keys() != c.SUSPECTS.keys():
        return False
    with np.errstate(invalid="ignore"):
        return all(len(line) == 1 and not c.colleague(c.SUSPECTS[name], line) for name, line in answer.items())


EDGE = np.random.default_rng(5)
ONE = np.ones((2, 3))
DOMAINS = [
    Gap("check_gradient", ("numeric_gradient",), said_of_both,
        both_orders, place_to_move, [place_to_move(EDGE, shape) for shape in [(), (1,), (2, 1, 3), (3, 2)]]),
    Gap("check_verdict", ("verdict",), lambda c: verdict(c.check_verdict, c.verdict),
        lambda c, given: c.verdict(*given), pair_of_gradients,
        [(1.005 * ONE, ONE, 1e-2, 0.0), (ONE, 1.9 * ONE, 0.5, 0.0), (1.9 * ONE, ONE, 0.5, 0.0),
         (ONE, 2.5 * ONE, 0.2, 1.1),
         (ONE * np.inf, ONE * np.inf, 1e-6, 1e-12), (ONE[:0], ONE[:0], 1e-6, 1e-12), (-ONE, ONE, 1e-6, 1e-12),
         (ONE.T, ONE, 1e-6, 1e-12)]),
    Gap("check_one_sided", ("one_sided",), lambda c: verdict(c.check_one_sided, c.one_sided),
        slope_and_places, slope_at_a_place),
    Value("check_steps", "half_steps", lambda c, value: verdict(c.check_steps, lambda: value), steps_by_calculus),
    Value("check_diagnosis", "diagnosis", lambda c, value: verdict(c.check_diagnosis, lambda: value),
        accused_by_trying),
    Gap("check_directions", ("count_directions",), lambda c: verdict(c.check_directions, c.count_directions),
        lambda c, given: float(c.count_directions(*given)), numbers_of_a_bug),
]  # fmt: skip
