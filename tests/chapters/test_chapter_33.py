"""Chapter 33: its checks accept what is right and reject wrong answers; what it stores and draws belongs together."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from chapters import ROOT, gap_tests, rejects, slips

from nanoeuler_lib.config import preset
from nanoeuler_lib.engine.data_parallel.cut import buckets

NOTEBOOK = "33_many_cards", "DEALS", "PROGRAMS", "FAULTS", "SECRET"
FAULTS = "early", "owner", "means", "stale", "data"


# ---- The gaps


def butterfly(parts):
    while len(parts) > 1:
        middle = len(parts) // 2
        parts = [a + b for a, b in zip(parts[:middle], parts[middle:])]
    return parts[0]


def in_order(parts, start=0):
    total = parts[start]
    for part in [*parts[start + 1 :], *parts[:start]]:
        total = total + part
    return total


WRONG_TREES = {
    "in order": in_order,
    "from the last": lambda parts: in_order(parts[::-1]),
    "Python's sum": sum,
    "first and middle": butterfly,
    "in place": lambda parts: [parts[0].__iadd__(part) for part in parts[1:]] and parts[0],
}


def units_of(start, stop, rank, size, unit=64, first=None):
    """The card's slice by whole units, with one thing wrong, if asked."""
    count = (stop - start) // unit
    at = [count * (8 * r // size) for r in (rank, rank + 1)]
    ends = [(start if first is None else first) + unit * (a // 8) for a in at]
    return slice(ends[0], ends[1])


WRONG_OWNED = slips(
    units_of,
    {
        "by numbers": dict(unit=1),
        "the bucket begins at 0": dict(first=0),
    },
) | {
    "by turns": lambda start, stop, rank, size: slice(start + 64 * rank, stop, size),
    "the whole bucket": lambda start, stop, rank, size: slice(start, stop),
    "from the other end": lambda start, stop, rank, size: units_of(start, stop, size - 1 - rank, size),
}


def ring(N, shift=1, way=1):
    """A schedule, with one thing wrong, if asked."""
    return [[(r, (r + way) % N, (r - shift - s) % N) for r in range(N)] for s in range(N - 1)]


WRONG_RINGS = slips(
    ring,
    {
        "the neighbour's chunk": dict(shift=0),
        "the other way round": dict(way=-1),
    },
) | {
    "all-gather as well": lambda N: ring(N) + ring(N, shift=0),
    "chunks without remainder": lambda N: [[(r, (r + 1) % N, r - 1 - s) for r in range(N)] for s in range(N - 1)],
}

test_wrong_gaps = rejects(
    {
        "check_tree": WRONG_TREES,
        "check_owned": WRONG_OWNED,
        "check_ring": WRONG_RINGS,
    }
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def stuck_by_messages(programs):
    """Another right answer: a card is looked for whose message can pass, again and again from the beginning."""
    left = [list(program) for program in programs]
    while True:
        for a, program in enumerate(left):
            if program and program[0][0] == "receive":
                b = program[0][1]
                if left[b] and left[b][0] == ("send", a):
                    del program[0], left[b][0]
                    break
        else:
            return {card for card, program in enumerate(left) if program}


test_other_right_answers, test_more_wrong_answers = gap_tests(
    {
        "check_stuck": (
            [stuck_by_messages],
            {
                "those that end": lambda programs: set(range(len(programs))) - stuck_by_messages(programs),
                "none": lambda programs: set(),
            },
        ),
        "check_crossover": (
            [lambda N, alpha, beta: alpha * beta * N * (N - 1 - math.log2(N)) / (N * math.log2(N) - N + 1)],
            {"NaN": lambda N, alpha, beta: math.nan, "for one way": lambda N, alpha, beta: alpha * beta * N},
        ),
        "check_deals": ([lambda: frozenset("ACDFG")], {"a text": lambda: "ACDFG", "empty": set}),
        "check_faults": ([], {"none": dict, "a list": lambda: list(FAULTS)}),
    }
)


# ---- What the chapter stands on


def test_the_ring_drawn_is_the_ring_run(chapter):
    """What a schedule on sets holds after each step is what the figure counts; arrays are added in that order."""
    for N in (2, 3, 4, 7):
        held = [[{r} for _ in range(N)] for r in range(N)]
        for step, counts in zip(chapter.ring(N), chapter.ring_counts(N)[1:], strict=True):
            before = [[set(c) for c in row] for row in held]
            for a, b, c in step:
                held[b][c] |= before[a][c]
            assert counts.tolist() == [[len(c) for c in row] for row in held]
        arrays = np.random.default_rng(N).normal(size=(N, 3 * N + 1)).astype(np.float32)
        for chunk, found in enumerate(chapter.run_ring(list(arrays), chapter.ring(N))):
            pieces = [np.array_split(array, N)[chunk] for array in arrays]
            assert np.array_equal(found, in_order(pieces, (chunk + 1) % N))


def test_the_library_cuts_as_the_chapter_says(chapter):
    """The buckets cover the array once, from the last layers on, and every gap's slice is the library's."""
    cut = buckets(preset("base"))
    ends = sorted((b.start, b.stop) for b in cut)
    assert ends[0][0] == 0 and all(a[1] == b[0] for a, b in pairwise(ends))
    assert [b.start for b in cut[:4]] == sorted((b.start for b in cut[:4]), reverse=True)
    for bucket in cut:
        for size in (1, 2, 4, 8):
            for rank in range(size):
                assert units_of(bucket.start, bucket.stop, rank, size) == bucket.of(rank, size)


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
