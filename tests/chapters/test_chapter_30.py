"""Chapter 30: its checks accept what is right and reject wrong answers, each of them named."""

import json
import pickle

import numpy as np
import pytest
from chapters import ROOT, accepts, rewritten_tests

from experiments import ch30
from nanoeuler_lib import engine
from nanoeuler_lib.config import ModelConfig, TrainConfig

NOTEBOOK = "30_how_fast", "ROWS", "SHUFFLED"


# ---- The gaps

LAST = "4 * w * (1 + add)"
WRONG_COSTS = {
    "sums without their first": ("return (flops, once)", "return (N * O * (2 * I - 1), once)"),
    "adding reads nothing": (LAST, "4 * w"),
    "read twice where added": (LAST, "4 * w * (1 + 2 * add)"),
    "dw before dx": (
        f"(flops, once), (flops, number * (x + y) + {LAST})",
        f"(flops, number * (x + y) + {LAST}), (flops, once)",
    ),
}
NOTED = "noted.append((kernel, [kept(a) for a in arguments]))"
WRONG_CAPTURES = {
    "arrays are copied": (
        "argument if isinstance(argument, np.ndarray) else copy.deepcopy(argument)",
        "copy.deepcopy(argument)",
    ),
    "lists are kept as they are": ("copy.deepcopy(argument)", "argument"),
    "kernels run while they are noted": (NOTED, f"({NOTED}, kernel(*arguments))"),
    "Python runs again": (
        "def replay():\n",
        "def replay():\n        noted.clear()\n        write(lambda kernel, *given: noted.append((kernel, given)))\n",
    ),
    "only the first launch": ("in noted:", "in noted[:1]:"),
    "write runs twice": ("    noted = []", "    write(lambda *_: None)\n    noted = []"),
}
WRONG_RATIOS = {
    "the lower of two in the middle": ("statistics.median(", "statistics.median_low("),
    "one-sided": ("2 * math.comb", "math.comb"),
    "a ratio of medians": ("statistics.median(found)", "statistics.median(theirs) / statistics.median(ours)"),
    "both sorted first": ("zip(ours, theirs, strict=True)", "zip(sorted(ours), sorted(theirs))"),
    "not sorted": ("sorted(b / a", "list(b / a"),
}
_, test_wrong_gaps = rewritten_tests(
    {
        "check_linear_cost": ("linear_cost", {}, WRONG_COSTS),
        "check_capture": ("capture", {}, WRONG_CAPTURES),
        "check_ratio": ("ratio", {}, WRONG_RATIOS),
    }
)


class Graph:
    """Another right answer: an object that is called, with arguments that are new for each replay."""

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


test_other_right_answers = accepts(
    {
        "check_capture": [Graph],
        "check_turns": [lambda rounds: rounds // 4 * ["BA", "AB", "AB", "BA"]],
        "check_least_share": [lambda t, size, rate: 1 / (1 + size / (rate * t))],
    }
)
