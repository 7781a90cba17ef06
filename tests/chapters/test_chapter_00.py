"""Chapter 00: its checks accept what is right, reject wrong answers, and name the mistake."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from chapters import accepts, verdict

NOTEBOOK = ("00_start_here", "BRIDGES", "BATCHES", "surprise")


def pairs(train):
    counts = np.zeros((256, 256))
    np.add.at(counts, tuple(np.array(list(pairwise(train)), int).reshape(-1, 2).T), 1)
    return counts


def lost_repeats(dx, saved):
    grad = np.zeros(saved[1], dx.dtype)
    grad[saved[0]] += dx
    return grad


def row_by_row(dx, saved):
    """Each text for itself, repeats within a text lost."""
    return sum(lost_repeats(d[None], (t[None], saved[1])) for d, t in zip(dx, saved[0], strict=True))


# check: {a part of the sentence that names the mistake: wrong answer}
GAPS = {
    "check_bigram": {
        "counts once": lambda train: pairs(train) > 0,
        "swapped": lambda train: pairs(train).T,
        "may overlap": lambda train: [[train.count(bytes([a, b])) for b in range(256)] for a in range(256)],
        "not form a pair": lambda train: pairs(train + train[:1]),
        "the last pair is missing": lambda train: pairs(train[:-1]),
        "1 more": lambda train: pairs(train) + 1,
        "the first byte of the pair is not used": lambda train: np.tile(pairs(train).sum(0), (256, 1)),
        "has the count": lambda train: pairs(train[::2]),
    },
    "check_surprise": {
        "in nats": lambda p: -np.log(p),
        "minus sign": lambda p: np.log2(p),
        "without a logarithm": lambda p: 1 / p,
        "expected the same": lambda p: -np.log2(p).sum(),
    },
    "check_embed_forward": {
        "counted from 0": lambda tokens, table: (table[tokens - 1], (tokens, table.shape)),
        "begin with the tokens": lambda tokens, table: (table[tokens], (tokens.ravel(), table.shape)),
    },
    "check_embed_backward": {"only its last gradient": lost_repeats, "is left, those of": row_by_row},
}


@pytest.mark.parametrize("check, named", [(check, named) for check, wrong in GAPS.items() for named in wrong])
def test_wrong_answers_are_named(chapter, check, named):
    assert named in verdict(getattr(chapter, check), GAPS[check][named])


test_other_right_solutions = accepts(
    {"check_forecast_bits": [lambda: np.array([1.75, 2, 2.5]), lambda: (Fraction(7, 4), 2, Fraction(5, 2))]}
)


def test_bridges_are_those_of_the_world(chapter):
    from konigsberg import town

    assert chapter.BRIDGES == {name: tuple(map(str, shores)) for name, shores in town.SPAN.items()}


def test_pictures_in_the_pages_come_from_the_notebook():
    from tools.book import pictures

    assert pictures.stale() == []
