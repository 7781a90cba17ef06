"""Chapter 10: its checks accept what is right and reject wrong answers by name; its stored results are its own."""

import json

import numpy as np
from chapters import ROOT, accepts, rejects, rewritten_tests

from nanoeuler_book.checks import verdict
from nanoeuler_lib.config import ModelConfig

NOTEBOOK = ("10_whole_model", "TINY", "BLOCK", "OWN", "MINI", "small", "bugs", "norm_back", "no_", "late_", "swapped")


# ---- The gaps


WRONG_SCALE = {
    "one count for all heads": lambda targets, weights: weights / max(1, (targets >= 0).sum()) * len(weights),
    "nan for an empty head": lambda targets, weights: weights / (targets >= 0).sum(axis=(0, 1)),
    "token 0 taken for no target": lambda targets, weights: weights / np.maximum((targets > 0).sum((0, 1)), 1),
}
test_wrong_scales = rejects({"check_loss_scale": WRONG_SCALE})


WRONG_BLOCK = {  # the book's version with one fragment replaced
    "lower fork lost": ("return dx + through, dw", "return through, dw"),
    "k not turned back": ('rope_backward(dk, saved["rope_k"])', "dk"),
    "heads laid out wrongly": (
        "dqkv = from_heads(np.concatenate([dq, dk, dv], axis=1))",
        "dqkv = np.concatenate([dq, dk, dv], axis=1).reshape(*dx.shape[:2], -1)",
    ),
    "width of a head written in": ("config.head_dim", "2"),
}


test_right_block, test_wrong_blocks = rewritten_tests(
    {"check_block_backward": ("block_backward", {"as it is": ()}, WRONG_BLOCK)}
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def by_perturbation(f):
    """Moves each of twelve logits, some of them at masked positions."""
    logits, targets, h = np.random.default_rng(3).normal(size=(4, 3)), np.array([2, -1, 0, -1]), 1e-5
    _, claimed = f(logits, targets)
    for i in np.ndindex(logits.shape):
        up, down = logits.copy(), logits.copy()
        up[i] += h
        down[i] -= h
        if not abs((f(up, targets)[0] - f(down, targets)[0]) / (2 * h) - claimed[i]) < 1e-7:
            return False
    return True


test_other_right_solutions = accepts({"check_test": [by_perturbation]})


Z, PLACES = np.array([[0.3, -0.2], [0.1, 0.7], [-0.5, 0.4]]), np.array([0, 1, -1])


def test_a_test_that_asks_for_the_book_s_bits_is_rejected(chapter):
    bits = chapter.masked_loss(Z, PLACES)[1]
    said = verdict(chapter.check_test, lambda f: bool((f(Z, PLACES)[1] == bits).all()))
    assert "written differently" in said


# ---- What the experiments rest on


def test_stored_results_are_of_this_experiment(chapter):
    result = json.loads((ROOT / "data" / "results" / "ch10.json").read_text("utf-8"))
    assert ModelConfig.from_dict(result["config"]["model"]) == chapter.MINI
    assert {row["bug"] for row in result["rows"]} == {"healthy", "exercise", *chapter.bugs}
    assert len({row["seed"] for row in result["rows"]}) >= 5
