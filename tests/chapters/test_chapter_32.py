"""Test that the checks of chapter 32 accept right answers and reject named wrong answers."""

import json
import math

import numpy as np
from chapters import ROOT, accepts, rejects, rewritten_tests

from nanoeuler_book import evaluate

NOTEBOOK = "32_116_million", "PERIOD", "SENTENCE", "TIMES", "COPIES"

RIGHT_FLOPS = {"a NumPy integer": [("return 6 * batch", "return np.int64(6) * batch")]}
WRONG_FLOPS = {
    "the embedding multiplies": (' and name != "embed"', ""),
    "forward only": ("return 6", "return 2"),
    "later positions as well": ("(time + 1)", "2 * time"),
    "key heads in attention": ("config.heads", "config.kv_heads"),
    "gains as well": ("len(s) == 2 and ", ""),
    "a float": ("return 6", "return 6.0"),
}
RIGHT_BOUNDS = {"the integer 1": [("return high", "return 1")]}
CHANCE = "sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))"
WRONG_BOUNDS = {
    "fewer than k": ("range(k + 1)", "range(k)"),
    "two-sided": (">= alpha", ">= alpha / 2"),
    "the rule of three": ("    low, high = 0.0, 1.0", "    return min(1.0, (k + 3) / n)\n    low, high = 0.0, 1.0"),
    "only hits": ("return high", "return 1 - alpha ** (1 / n)"),
    "NaN": ("return low", "return float('nan')"),
    # right, except if (1 - p)**n is too small for float64
    "a running product": (CHANCE, f"({CHANCE} if (1 - p) ** n else 0.0)"),
}
LOOPS = "max(copies.values(), default=0) >= COPIES"
RIGHT_LOOPS = {"a NumPy bool": [(LOOPS, f"np.bool_({LOOPS})")]}
SPLIT = r"(?<=[.!?])\s+|\n"
WRONG_LOOPS = {
    "capitals count": (".lower()", ""),
    "full stops anywhere": (SPLIT, r"[.!?]|\n"),
    "sentences end after commas": (SPLIT, r"(?<=[.!?,])\s+|\n"),
    "only at the end": ("== period * (TIMES - 1):", "== period * (TIMES - 1) and word is words[-1]:"),
    "three copies are too few": (">= COPIES", "> COPIES"),
    "copies of words": ("copies = Counter(", "copies = Counter(words) or ("),
}
test_right_gaps, test_wrong_gaps = rewritten_tests(
    {
        "check_step_flops": ("step_flops", RIGHT_FLOPS, WRONG_FLOPS),
        "check_upper": ("upper", RIGHT_BOUNDS, WRONG_BOUNDS),
        "check_loops": ("loops", RIGHT_LOOPS, WRONG_LOOPS),
    }
)


# ---- The stored results and the library


def test_the_stored_run_is_one_run():
    """The curve, the validations and the replies in the file fit the run's configuration."""
    stored = json.loads((ROOT / "data/results/ch32.json").read_text())
    run = next(row for row in stored["rows"] if row["what"] == "run" and row["run"] == "base")
    train = run["about"]["train"]
    assert run["curve"][-1][0] == train["steps"] == run["valid"][-1]["step"]
    steps = [step for step, _ in run["curve"]]
    assert steps == sorted(set(steps)) and max(np.diff(steps)) == 22  # no step is missing or occurs twice
    for row in stored["rows"]:
        if row["what"] == "replies":
            assert sum(row["faults"].values()) == row["count"] == 100


def test_the_chapter_defines_loops_as_the_library_does(chapter):
    names = "PERIOD", "TIMES", "SENTENCE", "COPIES"
    assert [getattr(chapter, name) for name in names] == [getattr(evaluate, name) for name in names]


# ---- The exercises (the notebook tests the wrong answers that its solutions name)


def by_solving(sampled, whole):
    weights = np.linalg.solve([[whole[0], whole[1]], [1, 1]], [whole[2], 1])
    return float(weights @ sampled[:2])


def draws(p, alpha):
    return -math.floor(-math.log2(alpha) / math.log2(1 - p))


def times(step, rows, windows):
    found, counts = np.unique(np.arange(step * rows, (step + 1) * rows) // windows + 1, return_counts=True)
    return dict(zip(found, counts, strict=True))


def size(seconds, rate, per):
    return np.sqrt([seconds * rate / 6 / per, seconds * rate / 6 * per])


test_other_right_answers = accepts(
    {
        "check_draws": [draws, lambda p, alpha: np.int64(draws(p, alpha))],
        "check_size": [size, lambda *given: size(*given).tolist()],
        "check_times": [times],
        "check_together": [by_solving],
    }
)
test_wrong_types = rejects(
    {
        "check_draws": {"a float": lambda p, alpha: float(draws(p, alpha))},
        "check_size": {"one number": lambda *given: size(*given)[:1]},
        "check_times": {"floats": lambda *given: {float(time): float(n) for time, n in times(*given).items()}},
        "check_together": {"NaN": lambda sampled, whole: float("nan")},
    }
)
