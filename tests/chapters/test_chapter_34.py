"""Chapter 34: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
from chapters import gap_tests, slips

NOTEBOOK = "34_formats", "model", "END", "exchange", "NAMES", "TRUE", "CONVENTIONS", "MADE"


# ---- The gaps


def unpacked(w, first="qkv", axis=1):
    """The three parts by rows of w.T, with one thing wrong, if asked."""
    D = len(w)
    rows = w.T if axis == 1 else w.reshape(-1, D)
    parts = {name: rows[i * D : (i + 1) * D] for i, name in enumerate(first)}
    return [parts[name] for name in "qkv"]


WRONG_UNPACKED = slips(
    unpacked,
    {
        "keys first": dict(first="kqv"),
        "cut along the rows": dict(axis=0),
    },
) | {
    "by turns": lambda w: tuple(w[:, i::3].T for i in range(3)),
}


def pairs(w, heads, back=False, whole=False, copy=True, order=(0, 1)):
    """Row by row, with one thing wrong, if asked."""
    made = w.copy() if copy else w
    source, C = w.copy(), len(w) // (1 if whole else heads)
    for row in range(len(w)):
        at, i = divmod(row, C)
        j = i // 2 + (C // 2) * order[i % 2]
        if back:
            made[at * C + j] = source[row]
        else:
            made[row] = source[at * C + j]
    return made


WRONG_PAIRS = slips(
    pairs,
    {
        "the inverse": dict(back=True),
        "all heads as one": dict(whole=True),
        "in place": dict(copy=False),
    },
) | {
    "the heads by turns": lambda w, heads: w.reshape(heads, -1, w.shape[1]).swapaxes(0, 1).reshape(w.shape),
    "as many halves as heads": lambda w, heads: w.reshape(2, -1, w.shape[1]).swapaxes(0, 1).reshape(w.shape),
}


def codes_of(w, group, cut=np.rint, axis=1, top=None):
    """Group by group, with one thing wrong, if asked."""
    codes, scales = [], []
    groups = w.reshape(-1, group) if axis == 1 else w.T.reshape(-1, group)
    for part in groups:
        s = (np.abs(part).max() if top is None else top(part)) / 127.0
        codes.append(cut(part / (s if s > 0 else 1.0)))
        scales.append([s])
    with np.errstate(invalid="ignore"):
        return np.array(codes).astype(np.int8), np.array(scales, np.float32)


WRONG_CODES = slips(
    codes_of,
    {
        "cut off": dict(cut=np.trunc),
        "by columns": dict(axis=0),
        "the largest, not its size": dict(top=lambda part: part.max()),
    },
) | {
    "one scale for all": lambda w, group: (
        np.rint(w / np.abs(w).max() * 127).astype(np.int8).reshape(-1, group),
        np.full((w.size // group, 1), np.abs(w).max() / 127, np.float32),
    ),
    "the matrix's shape": lambda w, group: (codes_of(w, group)[0].reshape(w.shape), codes_of(w, group)[1]),
}


def away_from_zero(x):
    return np.sign(x) * np.floor(np.abs(x) + 0.5)


def turned_first(w, heads, turned):
    """Row by row: of each head the first `turned` rows."""
    made, C = w.copy(), len(w) // heads
    for h in range(heads):
        for j in range(turned // 2):
            made[h * C + 2 * j] = w[h * C + j]
            made[h * C + 2 * j + 1] = w[h * C + j + turned // 2]
    return made


def searched(row, most, tries=900):
    scales = np.geomspace(0.1, 1.1, tries) * np.abs(row).max() / most
    return min(scales, key=lambda s: ((row - s * np.clip(np.rint(row / s), -most, most)) ** 2).sum())


test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_unpacked": ([unpacked, lambda w: tuple(w.T.reshape(3, len(w), len(w)))], WRONG_UNPACKED),
        "check_to_pairs": (
            [
                pairs,
                lambda w, heads: np.stack(np.split(w.reshape(heads, -1, w.shape[1]), 2, 1), 2).reshape(w.shape),
            ],
            WRONG_PAIRS,
        ),
        "check_quantise": ([codes_of, lambda w, group: codes_of(w, group, cut=away_from_zero)], WRONG_CODES),
        "check_first": (
            [lambda: frozenset("ABEG"), lambda: ["G", "E", "B", "A"]],
            {
                "none": lambda: set(),
                "all": lambda: set("ABCDEFG"),
                "a text": lambda: "ABEG",
                "H": lambda: {"H"},
            },
        ),
        "check_partial": (
            [turned_first],
            {
                "turned counts pairs": lambda w, heads, turned: turned_first(w, heads, 2 * (turned // 4) or 2),
                "heads and turned exchanged": lambda w, heads, turned: turned_first(w, 1, turned),
                "the rest zero": lambda w, heads, turned: (
                    turned_first(w, heads, turned) * (np.arange(len(w)) % (len(w) // heads) < turned)[:, None]
                ),
            },
        ),
        "check_scale": (
            [searched],
            {
                "few tries": lambda row, most: searched(row, most, 3),
                "an array": lambda row, most: np.array([searched(row, most)]),
                "below zero": lambda row, most: -searched(row, most),
                "without most": lambda row, most: searched(row, 7),
            },
        ),
        "check_folders": (
            [],
            {
                "one missing": lambda: dict.fromkeys("VWXY", "base"),
                "another name": lambda: dict.fromkeys("VWXYZ", "theta"),
                "all base": lambda: dict.fromkeys("VWXYZ", "base"),
            },
        ),
    }
)


def test_the_five_folders_can_be_told_apart(chapter):
    """Each of the five names stands once, in an order that the names' own does not give away."""
    assert sorted(chapter.TRUE.values()) == sorted(chapter.NAMES) != list(chapter.TRUE.values())
