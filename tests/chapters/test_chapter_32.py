"""Chapter 32: its checks accept what is right and reject wrong answers, each of them named."""

import json
import math

import numpy as np
from chapters import ROOT, accepts, rewritten_tests

from nanoeuler_book import evaluate

NOTEBOOK = "32_116_million", "PERIOD", "SENTENCE", "TIMES", "COPIES"


WRONG_FLOPS = {
    "the embedding multiplies": (' and name != "embed"', ""),
    "forward only": ("return 6", "return 2"),
    "later positions as well": ("(time + 1)", "2 * time"),
    "key heads in attention": ("config.heads", "config.kv_heads"),
    "gains as well": ("len(s) == 2 and ", ""),
}
CHANCE = "sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))"
WRONG_BOUNDS = {
    "fewer than k": ("range(k + 1)", "range(k)"),
    "two-sided": (">= alpha", ">= alpha / 2"),
    "the rule of three": ("    low, high = 0.0, 1.0", "    return min(1.0, (k + 3) / n)\n    low, high = 0.0, 1.0"),
    "all of them": ("return high", "return 1 - alpha ** (1 / n)"),
    # right, but for (1 - p)**n where float64 has no such small number
    "a running product": (CHANCE, f"({CHANCE} if (1 - p) ** n else 0.0)"),
}
SPLIT = r"(?<=[.!?])\s+|\n"
WRONG_LOOPS = {
    "capitals count": (".lower()", ""),
    "full stops anywhere": (SPLIT, r"[.!?]|\n"),
    "sentences end behind commas": (SPLIT, r"(?<=[.!?,])\s+|\n"),
    "at the end alone": ("== period * (TIMES - 1):", "== period * (TIMES - 1) and word is words[-1]:"),
    "three copies are too few": (">= COPIES", "> COPIES"),
    "copies of words": ("copies = Counter(", "copies = Counter(words) or ("),
}
_, test_wrong_gaps = rewritten_tests(
    {
        "check_step_flops": ("step_flops", {}, WRONG_FLOPS),
        "check_upper": ("upper", {}, WRONG_BOUNDS),
        "check_loops": ("loops", {}, WRONG_LOOPS),
    }
)


# ---- What the chapter stands on


def test_the_stored_run_is_one_run():
    """Steps, passes and interruption in the file belong together."""
    stored = json.loads((ROOT / "data/results/ch32.json").read_text())
    run = next(row for row in stored["rows"] if row["what"] == "run" and row["run"] == "base")
    train = run["about"]["train"]
    assert run["curve"][-1][0] == train["steps"] == run["valid"][-1]["step"]
    steps = [step for step, _ in run["curve"]]
    assert steps == sorted(set(steps)) and max(np.diff(steps)) == 22  # no step twice, none missing
    for row in stored["rows"]:
        if row["what"] == "replies":
            assert sum(row["faults"].values()) == row["count"] == 100


def test_a_loop_is_what_the_library_calls_one(chapter):
    names = "PERIOD", "TIMES", "SENTENCE", "COPIES"
    assert [getattr(chapter, name) for name in names] == [getattr(evaluate, name) for name in names]


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def by_solving(sampled, whole):
    weights = np.linalg.solve([[whole[0], whole[1]], [1, 1]], [whole[2], 1])
    return float(weights @ sampled[:2])


test_other_right_answers = accepts(
    {
        "check_draws": [lambda p, alpha: -math.floor(-math.log2(alpha) / math.log2(1 - p))],
        "check_size": [lambda s, r, per: [(s * r / 6 / per) ** 0.5, (s * r / 6 * per) ** 0.5]],
        "check_together": [by_solving],
    }
)
