"""Chapter 34: its checks accept right answers and reject the named wrong answers."""

import numpy as np
import pytest
from chapters import accepts, rejects, rewritten, rewritten_tests, verdict

NOTEBOOK = "34_formats", "model", "END", "swapped", "NAMES", "TRUE", "CONVENTIONS", "MADE"


# ---- The gaps


WRONG_UNPACKED = {
    "keys first": ("np.split(w, 3, axis=1)", "[np.split(w, 3, axis=1)[i] for i in (1, 0, 2)]"),
    "cut along the rows": ("np.split(w, 3, axis=1)", "np.split(w.reshape(3 * len(w), -1), 3)"),
    "every third column": ("np.split(w, 3, axis=1)", "(w[:, i::3] for i in range(3))"),
}
HALVES = "w.reshape(heads, 2, -1, w.shape[-1])"
WRONG_PAIRS = {
    "the inverse": (HALVES, "w.reshape(heads, -1, 2, w.shape[-1])"),
    "all heads as one": (HALVES, "w.reshape(1, 2, -1, w.shape[-1])"),
    "in place": ("    return ", "    w[:] = halves.swapaxes(1, 2).reshape(w.shape)\n    return w\n    return "),
    "rows of all heads interleaved": ("halves.swapaxes(1, 2)", "w.reshape(heads, -1, w.shape[1]).swapaxes(0, 1)"),
    "a view for C = 2": (".copy()", ""),
}
WRONG_CODES = {
    "cut off": ("np.rint", "np.trunc"),
    "down the columns": ("w.reshape(-1, group)", "w.T.reshape(-1, group)"),
    "0/0 for a group of zeros": ("np.where(scales > 0, scales, 1)", "scales"),
    "a code of 1 for zeros": ("codes.astype(np.int8)", "np.where(scales > 0, codes, 1).astype(np.int8)"),
    "the largest, not its size": ("np.abs(groups)", "groups"),
    "one scale for all": (".max(axis=1, keepdims=True)", ".max() + np.zeros((len(groups), 1), np.float32)"),
    "the matrix's shape": ("codes.astype(np.int8)", "codes.astype(np.int8).reshape(w.shape)"),
}
RIGHT_UNPACKED = {
    "one array [3, D, D]": [("tuple(part.T", "np.array([part.T"), ("axis=1))", "axis=1)])")],
    "a list": [("tuple(part.T", "list(part.T")],
}
RIGHT_PAIRS = {"the book's": [], "an index": [("halves.swapaxes(1, 2).copy()", "np.array(halves.swapaxes(1, 2))")]}
RIGHT_CODES = {
    "the book's": [],
    "divided only above 0": [
        (
            "groups / np.where(scales > 0, scales, 1)",
            "np.divide(groups, scales, np.zeros_like(groups), where=scales > 0)",
        )
    ],
}
test_right_gaps, test_wrong_gaps = rewritten_tests(
    {
        "check_unpacked": ("unpacked", RIGHT_UNPACKED, WRONG_UNPACKED),
        "check_to_pairs": ("to_pairs", RIGHT_PAIRS, WRONG_PAIRS),
        "check_quantise": ("quantise", RIGHT_CODES, WRONG_CODES),
    }
)


@pytest.mark.parametrize(
    "mistake, words", [("down the columns", "down the columns"), ("0/0 for a group of zeros", "zeros")]
)
def test_the_check_of_the_quantiser_names_the_mistake(chapter, mistake, words):
    wrong = rewritten(NOTEBOOK[0], chapter, "quantise", WRONG_CODES[mistake])
    assert words in verdict(chapter.check_quantise, wrong)


# ---- The exercises. The notebook itself tests the wrong answers that a solution names.


def searched(row, most):
    scales = np.geomspace(0.1, 1.1, 900) * np.abs(row).max() / most
    return min(scales, key=lambda s: ((row - s * np.clip(np.rint(row / s), -most, most)) ** 2).sum())


test_wrong_exercises = rejects(
    {
        "check_partial": {"rows of zeros": lambda w, heads, rotated: 0 * w},
        "check_first": {"a letter twice": lambda: "ABEGG", "with commas": lambda: "A, B, E, G", "a number": lambda: 4},
        "check_folders": {"a list as a name": lambda: {letter: ["base"] for letter in "VWXYZ"}},
    }
)
test_other_right_answers = accepts(
    {
        "check_first": [lambda: frozenset("ABEG"), lambda: ["G", "E", "B", "A"], lambda: "ABEG"],
        "check_scale": [searched],
    }
)
