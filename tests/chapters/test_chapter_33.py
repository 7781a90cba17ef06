"""Chapter 33: its checks accept what is right and reject wrong answers, each of them named."""

import json
import math

import numpy as np
import pytest
from chapters import ROOT, accepts, rejects, rewritten_tests, slips

NOTEBOOK = "33_many_cards", "DEALS", "PROGRAMS", "FAULTS", "SECRET"


# ---- The gaps


def butterfly(parts):
    while len(parts) > 1:
        middle = len(parts) // 2
        parts = [a + b for a, b in zip(parts[:middle], parts[middle:])]
    return parts[0]


def in_order(parts):
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


WRONG_TREES = {
    "in order": in_order,
    "from the last": lambda parts: in_order(parts[::-1]),
    "first and middle": butterfly,
}


def units_of(start, stop, rank, size, unit=64, first=None):
    """Return the GPU's slice by units instead of parts; the arguments add one mistake."""
    count = (stop - start) // unit
    at = [count * (8 * r // size) for r in (rank, rank + 1)]
    ends = [(start if first is None else first) + unit * (a // 8) for a in at]
    return slice(ends[0], ends[1])


WRONG_OWNED = slips(units_of, {"by numbers": dict(unit=1), "the bucket begins at 0": dict(first=0)}) | {
    "by turns": lambda start, stop, rank, size: slice(start + 64 * rank, stop, size),
    "the whole bucket": lambda start, stop, rank, size: slice(start, stop),
    "from the other end": lambda start, stop, rank, size: units_of(start, stop, size - 1 - rank, size),
}


CHUNK = "(r - 1 - step) % N"
WRONG_RINGS = {
    "the neighbour's chunk": (CHUNK, "(r - step) % N"),
    "the other way round": ("(r + 1) % N", "(r - 1) % N"),
    "all-gather as well": ("range(N - 1)", "range(2 * N - 2)"),
    "chunks without remainder": (CHUNK, "r - 1 - step"),
}
test_wrong_gaps = rejects({"check_tree": WRONG_TREES, "check_owned": WRONG_OWNED})
_, test_wrong_rings = rewritten_tests({"check_ring": ("ring", {}, WRONG_RINGS)})


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def of_int64(answer):
    """Return the answer with NumPy's integers."""
    return lambda *sizes: [[tuple(map(np.int64, triple)) for triple in step] for step in answer(*sizes)]


def owned_int64(start, stop, rank, size):
    at = (start + 64 * np.int64((stop - start) // 64 * (8 * r // size) // 8) for r in (rank, rank + 1))
    return slice(*at)


def ring(N):
    return [[(r, (r + 1) % N, (r - 1 - step) % N) for r in range(N)] for step in range(N - 1)]


def halves(parts):
    """Add the two halves of the list, each by the same rule."""
    middle = len(parts) // 2
    return parts[0] if middle == 0 else halves(parts[:middle]) + halves(parts[middle:])


def in_place(parts):
    """Add by the tree, but into the arrays that the check still needs."""
    parts = list(parts)
    while len(parts) > 1:
        for k in range(0, len(parts), 2):
            parts[k] += parts[k + 1]
        parts = parts[::2]
    return parts[0]


test_other_right_answers = accepts(
    {
        "check_tree": [halves],
        "check_owned": [owned_int64],
        "check_ring": [of_int64(ring)],
        "check_crossover": [
            lambda N, alpha, beta: alpha * beta * N * (N - 1 - math.log2(N)) / (N * math.log2(N) - N + 1)
        ],
        "check_deals": [lambda: frozenset("ACDFG"), lambda: "GFDCA", lambda: list("ACDFG")],
    }
)
test_wrong_answers = rejects(
    {
        "check_deals": {"a letter twice": lambda: "AACDFG", "one string": lambda: {"ACDFG"}, "a number": lambda: 5},
        "check_crossover": {"NaN": lambda N, alpha, beta: math.nan},
        "check_tree": {"in place": in_place},
    }
)


# ---- What the chapter draws


def test_the_ring_drawn_is_the_ring_run(chapter):
    """What the figure counts is what a schedule on sets holds after each step."""
    for N in (2, 4, 7):
        held = [[{r} for _ in range(N)] for r in range(N)]
        for step, counts in zip(chapter.ring(N), chapter.ring_counts(N)[1:], strict=True):
            before = [[set(c) for c in row] for row in held]
            for a, b, c in step:
                held[b][c] |= before[a][c]
            assert counts.tolist() == [[len(c) for c in row] for row in held]


# ---- What is stored


def test_stored_moves_are_whole():
    """Each operation has a row for each size; a median is that of its rounds; every piece of a sum has an order."""
    rows = json.loads((ROOT / "data/results/collectives.json").read_text())["rows"]
    moves = [row for row in rows if row["row"] == "move"]
    kinds = {(row["cards"], row["what"], row["bytes"]) for row in moves}
    assert len(kinds) == len(moves) == 2 * 5 * 11
    for row in moves:
        assert np.median(row["rounds"]) == pytest.approx(row["ms"], abs=1e-5)
    for row in (row for row in rows if row["row"] == "order"):
        assert row["cards_agree"] and sum(row["pieces"].values()) == 4096
