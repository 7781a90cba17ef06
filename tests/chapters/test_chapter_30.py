"""Chapter 30: its checks accept what is right and reject wrong answers, each of them named."""

import copy
import itertools
import json
import math
import pickle

import numpy as np
import pytest
from chapters import ROOT, accepts, gap_tests

from experiments import ch30
from nanoeuler_lib import engine
from nanoeuler_lib.config import ModelConfig, TrainConfig

NOTEBOOK = "30_how_fast", "ROWS", "SHUFFLED"


def costs(added=1, order=(0, 1, 2)):
    """Costs of the three products with something changed."""

    def count(N, I, O, number, add):
        flops, x, w, y = 2 * N * I * O, N * I, I * O, N * O
        forward = (flops, number * (x + w + y))
        weights = (flops, number * (x + y) + 4 * w * (1 + added * add))
        return tuple((forward, forward, weights)[i] for i in order)

    return count


def costs_by_shapes(N, I, O, number, add):
    """Another right answer: each product by its own shape."""
    found = []
    for rows, inner, columns, out, again in (
        (N, I, O, number, 0), (N, O, I, number, 0), (I, N, O, 4, int(add)),
    ):  # fmt: skip
        moved = number * inner * (rows + columns) + out * rows * columns * (1 + again)
        found.append([rows * columns * inner * 2, moved])
    return found


WRONG_COSTS = {
    "sums without their first": lambda N, I, O, number, add: (
        (N * O * (2 * I - 1), costs()(N, I, O, number, add)[0][1]), *costs()(N, I, O, number, add)[1:]),
    "adding reads nothing": costs(added=0),
    "read twice where added": costs(added=2),
    "dw before dx": costs(order=(0, 2, 1)),
    "flops of three in one": lambda *given: tuple((3 * f, b) for f, b in costs()(*given)),
}  # fmt: skip


def captures(arrays="kept", others="copied", at_once=False, again=False, order=1):
    """A capture with something changed."""

    def capture(write):
        noted = []

        def keep(argument):
            if isinstance(argument, np.ndarray):
                return argument.copy() if arrays == "copied" else argument
            return (
                copy.deepcopy(argument) if others == "copied" else copy.copy(argument) if others == "flat" else argument
            )

        def note(kernel, *arguments):
            noted.append((kernel, [keep(a) for a in arguments]))
            if at_once:
                kernel(*arguments)

        write(note)

        def replay():
            if again:
                noted.clear()
                write(note)
            for kernel, arguments in noted[::order]:
                kernel(*[keep(a) for a in arguments])

        return replay

    return capture


class Graph:
    """Another right answer: an object that is called, with arguments that are made anew for each replay."""

    def __init__(self, write):
        self.launches = ()
        write(self.note)

    def note(self, kernel, *arguments):
        memory = {i: a for i, a in enumerate(arguments) if isinstance(a, np.ndarray)}
        numbers = pickle.dumps({i: a for i, a in enumerate(arguments) if i not in memory})
        self.launches += ((kernel, memory, numbers),)

    def __call__(self):
        for kernel, memory, numbers in self.launches:
            every = memory | pickle.loads(numbers)
            kernel(*[every[i] for i in range(len(every))])


def first_launch(write):
    noted = []
    write(lambda kernel, *arguments: noted.append((kernel, copy.deepcopy(arguments))))
    return lambda: noted and noted[0][0](*noted[0][1])


WRONG_CAPTURES = {
    "arrays are copied": captures(arrays="copied"),
    "lists are kept as they are": captures(others="kept"),
    "kernels run while they are noted": captures(at_once=True),
    "Python runs again": captures(again=True),
    "the first launch alone": first_launch,
    "write runs twice": lambda write: (write(lambda *_: None), captures()(write))[1],
}  # fmt: skip


def ratios(quotient=lambda a, b: b / a, middle=np.median, sides=2, other=None):
    """A ratio with its interval, with something changed."""

    def find(ours, theirs):
        found = sorted(quotient(a, b) for a, b in zip(ours, theirs))
        n, k = len(found), 0
        while k < n // 2 and sides * sum(math.comb(n, i) for i in range(k + 1)) <= 0.05 * 2**n:
            k += 1
        if other:
            return other(ours, theirs, found, k)
        ends = (found[k - 1], found[n - k]) if k else (0.0, math.inf)
        return float(middle(found)), *ends

    return find


WRONG_RATIOS = {
    "the lower of two in the middle": ratios(middle=lambda x: x[(len(x) - 1) // 2]),
    "one-sided": ratios(sides=1),
    "a ratio of medians": ratios(other=lambda a, b, f, k: (
        np.median(b) / np.median(a), *((f[k - 1], f[len(f) - k]) if k else (0.0, math.inf)))),
    "both sorted first": ratios(other=lambda a, b, f, k: ratios()(sorted(a), sorted(b))),
    "not sorted": ratios(other=lambda a, b, f, k: (
        float(np.median(f)), *((b[k - 1] / a[k - 1], b[-k] / a[-k]) if k else (0.0, math.inf)))),
}  # fmt: skip

GAPS = {
    "check_linear_cost": ([costs(), costs_by_shapes], WRONG_COSTS),
    "check_capture": ([captures(), Graph], WRONG_CAPTURES),
    "check_ratio": ([ratios()], WRONG_RATIOS),
}
test_right_gaps, test_wrong_gaps = gap_tests(GAPS)


# ---- What the chapter stands on


def test_the_stored_steps_and_their_profile_are_one():
    """Launches, rounds and milliseconds in the file belong together; the engine's own list has as many launches."""
    rows = json.loads((ROOT / "data/results/ch30.json").read_text())["rows"]
    steps = {row["rows"]: row for row in rows if row["row"] == "step"}
    assert set(steps) == {1, 2, 4, 8, 16, 32, 64}
    for row in steps.values():
        for way, rounds in row["rounds"].items():
            assert len(rounds) == 15 and np.median(rounds) == pytest.approx(row["ms"][way], abs=1e-3)
    for count in (64, 16, 1):
        kinds = [row for row in rows if row["row"] == "profile" and row["rows"] == count]
        assert sum(kind["count"] for kind in kinds) == steps[count]["launches"]
        assert all(kind["ms"] > 0 and kind["count"] > 0 for kind in kinds)


def test_a_drift_reaches_blocks_and_turns(chapter):
    """With a clock that stands, both ways of racing hold the truth; the race's own drift is what blocks tell."""
    race = chapter.race
    still = type("Still", (), {"standard_normal": lambda self, n: np.zeros(n)})()
    ours, theirs = race(still, True)
    assert np.median(theirs / ours) == pytest.approx(1.01 * (1 + 0.03 / 30), rel=1e-4)
    ours, theirs = race(still, False)
    assert theirs.mean() / ours.mean() == pytest.approx(1.01 * 1.0149, rel=1e-3)


@pytest.mark.compiler
def test_the_benchmark_counts_what_the_engine_launches(chapter, monkeypatch):
    """A small step on the CPU: its kinds make up its launches, its products cost what the chapter says."""
    monkeypatch.setattr(ch30, "SETTINGS", TrainConfig(steps=9, warmup=0))
    config = ModelConfig(32, 1, 1, 1, context=9, vocab_size=24, predict=2, ffn=40)
    model = engine.GPT(config, precision="bfloat16", where="cpu", checked=False)
    step, *kinds = ch30.steps(model, 2, True, 1, ch30.Clock("cpu", lambda: None))
    assert sum(kind["count"] for kind in kinds) == step["launches"]
    assert set(step["ms"]) == {"graph", "loop"} and all(ms > 0 for ms in step["ms"].values())
    D, F = config.dim, config.ffn
    expected = []
    for inputs, outputs in ((D, config.qkv_dim), (D, D), (D, 2 * F), (F, D), (D, 2 * 24)):
        expected += chapter.linear_cost(2 * 9, inputs, outputs, 2, False)
    found = [(kind["flops"], kind["bytes"]) for kind in kinds if " x " in kind["what"] for _ in range(kind["count"])]
    assert sum(flops for flops, _ in found) == sum(flops for flops, _ in expected)
    assert sum(moved for _, moved in found) == sum(moved for _, moved in expected)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def finish_by_gaps(host, times):
    """Another right answer: the idle time first."""
    busy = idle = 0
    for written, took in zip(itertools.count(host, host) if host else itertools.repeat(0), times):
        idle += max(0, written - busy - idle)
        busy += took
    return busy + idle, idle


def turns_the_other_way(rounds):
    return rounds // 4 * ["BA", "AB", "AB", "BA"]


test_other_right_answers = accepts(
    {
        "check_finish": [finish_by_gaps],
        "check_turns": [turns_the_other_way],
        "check_least_share": [lambda t, size, rate: 1 / (1 + size / (rate * t))],
    }
)
