"""Chapter 04: its checks name the usual mistakes; its real mistake hides exactly where the chapter says."""

import numpy as np
import pytest
from chapters import accepts, slips
from other_answers import Chapter04

from nanoeuler_book.checks import verdict

NOTEBOOK = ("04_learning_table",)
CASES = [  # a wrong answer, and what the check must say of it
    ("step", "divide by B", dict(mean=False)),
    ("step", "uphill", dict(sign=1)),
    ("full_gradient", "divide by N", dict(total=lambda counts: 1)),
    ("full_gradient", "its own count", dict(total=lambda counts: counts.sum(axis=1, keepdims=True))),
    ("talk", "most likely", dict(pick=lambda p, _: p.argmax())),
    ("talk", "one token too far", dict(pick=lambda p, number: min(sum(np.cumsum(p) < number) + 1, len(p) - 1))),
    ("talk", "end is in the result", dict(keep=True)),
    ("talk", "row of end", dict(follow=False)),
    ("largest_rate", "1 / curvature", dict(times=1.0)),
    ("largest_rate", "0.98 times", dict(times=3.0)),
    ("weights", "upside down", dict(power=-1)),
]


def exponent_by_covariance(steps, distances):
    s, d = np.log(steps), np.log(distances)
    return -np.mean((s - s.mean()) * d) / np.var(s)


test_other_right_answers = accepts({"check_exponent": [exponent_by_covariance]})


@pytest.mark.parametrize("name, said, change", CASES)
def test_a_mistake_is_named(chapter, name, said, change):
    answer = slips(getattr(Chapter04, f"my_{name}"), {said: change})[said]
    assert said in verdict(getattr(chapter, f"check_{name}"), answer)


def test_the_tempting_line_is_right_for_different_tokens_alone(chapter):
    table, after = np.random.default_rng(0).normal(size=(5, 5)), np.array([1, 3, 1])
    for before, same in (([4, 0, 2], True), ([4, 0, 4], False)):
        steps = (f(table, np.array(before), after, 0.5) for f in (chapter.tempting_step, chapter.step))
        assert np.allclose(*steps) == same
