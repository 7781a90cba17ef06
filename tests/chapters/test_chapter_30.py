"""Test that the checks of chapter 30 accept correct answers and reject named mistakes, and test the stored results."""

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
    "no addition to 0": ("return (flops, once)", "return (N * O * (2 * I - 1), once)"),
    "adding reads nothing": (LAST, "4 * w"),
    "added, and read twice": (LAST, "4 * w * (1 + 2 * add)"),
    "floats": ("2 * N * I * O, N * I", "2.0 * N * I * O, N * I"),
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
    "only the outer list is copied": ("copy.deepcopy(argument)", "copy.copy(argument)"),
    "kept once, not for each replay": ("*map(kept, arguments)", "*arguments"),
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
    "a ratio of medians": ("statistics.median(ratios)", "statistics.median(theirs) / statistics.median(ours)"),
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


def cost_in_numpy(N, I, O, number, add):
    """Count with NumPy's integers; a correct answer."""
    x, w, y = np.int64(N) * I, np.int64(I) * O, np.int64(N) * O
    once = 2 * x * O, number * (x + w + y)
    return [once, once, (2 * x * O, number * (x + y) + w * (8 if add else 4))]


def capture_with_inner_arrays(write):
    """Capture launches, and treat arrays inside lists, tuples and dicts as memory, too; a correct answer."""

    def kept(argument):
        if isinstance(argument, list | tuple):
            return type(argument)(map(kept, argument))
        if isinstance(argument, dict):
            return {key: kept(value) for key, value in argument.items()}
        return argument

    recorded = []
    write(lambda kernel, *arguments: recorded.append((kernel, kept(arguments))))
    return lambda: [kernel(*kept(arguments)) for kernel, arguments in recorded]


class Graph:
    """Capture launches in an object that is called, with new arguments for each replay; a correct answer."""

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


# ---- The stored results


def test_the_stored_steps_agree_with_their_profile():
    """The rounds give the stored medians, and the kinds of launches add up to the launches of a step."""
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


def test_the_benchmark_warms_up_and_compares_losses_as_the_chapter_says():
    """The losses of three steps, which are not timed, may differ by 0.5% in bfloat16 and by 0.1% in TF32."""
    text = (ROOT / "benchmarks/gpu_step.py").read_text()
    assert "STEPS, ROUNDS, AGREE = 5, 7, 3" in text and '"bfloat16": 5e-3, "float16": 2e-3, "tf32": 1e-3' in text
    assert "in_turns(contestants, batches[AGREE:]" in text


@pytest.mark.compiler
def test_the_benchmark_counts_what_the_engine_launches(chapter, monkeypatch):
    """On the CPU, the kinds of a small step add up to its launches, and its products cost what the chapter counts."""
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


# ---- Other correct answers; the mistakes that a solution names are tried in the notebook


test_other_right_answers = accepts(
    {
        "check_linear_cost": [cost_in_numpy],
        "check_capture": [Graph, capture_with_inner_arrays],
        "check_turns": [lambda rounds: rounds // 4 * ["BA", "AB", "AB", "BA"]],
        "check_least_share": [lambda t, size, rate: 1 / (1 + size / (rate * t))],
    }
)
