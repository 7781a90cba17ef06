"""Chapter 34: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
from chapters import accepts, rejects, rewritten_tests

NOTEBOOK = "34_formats", "model", "END", "exchange", "NAMES", "TRUE", "CONVENTIONS", "MADE"


# ---- The gaps


WRONG_UNPACKED = {
    "keys first": ("np.split(w, 3, axis=1)", "[np.split(w, 3, axis=1)[i] for i in (1, 0, 2)]"),
    "cut along the rows": ("np.split(w, 3, axis=1)", "np.split(w.reshape(3 * len(w), -1), 3)"),
    "by turns": ("np.split(w, 3, axis=1)", "(w[:, i::3] for i in range(3))"),
}
HALVES = "w.reshape(heads, 2, -1, w.shape[-1])"
WRONG_PAIRS = {
    "the inverse": (HALVES, "w.reshape(heads, -1, 2, w.shape[-1])"),
    "all heads as one": (HALVES, "w.reshape(1, 2, -1, w.shape[-1])"),
    "in place": ("    return ", "    w[:] = halves.swapaxes(1, 2).reshape(w.shape)\n    return w\n    return "),
    "the heads by turns": ("halves.swapaxes(1, 2)", "w.reshape(heads, -1, w.shape[1]).swapaxes(0, 1)"),
}
WRONG_CODES = {
    "cut off": ("np.rint", "np.trunc"),
    "by columns": ("w.reshape(-1, group)", "w.T.reshape(-1, group)"),
    "the largest, not its size": ("np.abs(groups)", "groups"),
    "one scale for all": (".max(axis=1, keepdims=True)", ".max() + np.zeros((len(groups), 1), np.float32)"),
    "the matrix's shape": ("codes.astype(np.int8)", "codes.astype(np.int8).reshape(w.shape)"),
}
_, test_wrong_gaps = rewritten_tests(
    {
        "check_unpacked": ("unpacked", {}, WRONG_UNPACKED),
        "check_to_pairs": ("to_pairs", {}, WRONG_PAIRS),
        "check_quantise": ("quantise", {}, WRONG_CODES),
    }
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def searched(row, most):
    scales = np.geomspace(0.1, 1.1, 900) * np.abs(row).max() / most
    return min(scales, key=lambda s: ((row - s * np.clip(np.rint(row / s), -most, most)) ** 2).sum())


test_zeros = rejects({"check_partial": {"rows of zeros": lambda w, heads, turned: 0 * w}})
test_other_right_answers = accepts(
    {"check_first": [lambda: frozenset("ABEG"), lambda: ["G", "E", "B", "A"]], "check_scale": [searched]}
)
