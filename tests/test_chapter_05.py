"""Chapter 05: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
import pytest
from chapters import definitions, rejected, try_exercise


@pytest.fixture(scope="module")
def chapter():
    return definitions("05_checking_gradients", "UNIT", "PARTS", "SUSPECTS", "BUGS", "cross_entropy_backward")


# ---- The gaps


def test_untouched_gaps_say_so(chapter):
    c = chapter
    assert c.check_gradient(c.my_gradient, 2) == c.check_gradient(c.my_gradient4, 4) == "not written yet"
    assert c.check_verdict(c.my_verdict) == "not written yet"


def test_the_book_fills_its_gaps(chapter):
    assert chapter.check_gradient(lambda f, x, h: chapter.numeric_gradient(f, x, h, order=2), 2) == "right"
    assert chapter.check_gradient(chapter.numeric_gradient, 4) == "right"
    assert chapter.check_verdict(chapter.verdict) == "right"


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


WRONG_VERDICT = {
    "always right": lambda a, n: True,
    "always wrong": lambda a, n: False,
    "relative to n, no floor": lambda a, n: a.shape == n.shape and bool(np.all(abs(a - n) <= 1e-6 * abs(n))),
    "absolute": lambda a, n: a.shape == n.shape and bool(np.all(abs(a - n) <= 1e-6)),
    "in norm": lambda a, n: a.shape == n.shape and np.linalg.norm(a - n) <= 1e-6 * np.linalg.norm(n),
    "nan passes": lambda a, n: a.shape == n.shape and not np.any(abs(a - n) > 1e-6 * abs(n) + 1e-12),
    "shapes broadcast": lambda a, n: bool(np.all(abs(a - n) <= 1e-6 * abs(n) + 1e-12)),
    "the mean of the errors": lambda a, n: a.shape == n.shape and np.mean(abs(a - n)) <= 1e-6 * abs(n).mean(),
    "signs ignored": lambda a, n: (
        a.shape == n.shape and bool(np.all(abs(abs(a) - abs(n)) <= 1e-6 * abs(n) + 1e-12))
    ),
}


@pytest.mark.parametrize("wrong", WRONG_VERDICT.values(), ids=WRONG_VERDICT)
def test_wrong_verdict_is_rejected(chapter, wrong):
    with np.errstate(invalid="ignore"):
        assert rejected(chapter.check_verdict, wrong)


def test_a_verdict_relative_to_n_with_the_floor_is_right(chapter):
    def verdict(a, n, rtol=1e-6, atol=1e-12):
        return a.shape == n.shape and bool(np.all(abs(a - n) <= rtol * abs(n) + atol))

    assert chapter.check_verdict(verdict) == "right"


# ---- The network of the gallery


def test_every_bug_changes_the_network_or_its_gradient(chapter):
    case = chapter.awkward()
    loss, grads = chapter.net(*case)
    for name, bug in chapter.BUGS.items():
        other_loss, other = chapter.net(*case, **bug)
        same = all(np.array_equal(other[tensor], grads[tensor]) for tensor in grads)
        assert other_loss != loss or not same, name


# ---- The exercises: check, stub, solution, and the wrong answers that the notebook itself names


EXERCISES = {
    "one-sided": lambda c: (c.check_one_sided, c.my_one_sided, c.one_sided, c.wrong_one_sided),
    "half": lambda c: (c.check_steps, c.my_steps, c.half_steps, c.wrong_steps),
    "diagnose": lambda c: (c.check_diagnosis, c.my_diagnosis, c.diagnosis, c.wrong_diagnoses),
    "directions": lambda c: (c.check_directions, c.my_directions, c.count_directions, c.wrong_directions),
}


@pytest.mark.parametrize("parts", EXERCISES.values(), ids=EXERCISES)
def test_exercise_check(chapter, parts):
    try_exercise(*parts(chapter))


def test_each_suspect_belongs_to_one_line(chapter):
    with np.errstate(invalid="ignore"):
        for name, suspect in chapter.SUSPECTS.items():
            accused = [line for line in "ABCD" if not chapter.colleague(suspect, line)]
            assert accused == [chapter.diagnosis()[name]]
