"""Chapter 00: its checks accept what is right and reject wrong answers, each of them named."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
from chapters import accepts, rejects

from nanoeuler_book.checks import verdict

NOTEBOOK = ("00_start_here", "BRIDGES", "BATCHES", "surprise")


# ---- The gaps


def frequencies(train, valid, ones=1):
    """Bits per byte from counts, with one thing wrong, if asked."""
    counted = np.bincount(list(train), minlength=256)[:256].astype(np.int64) + np.int64(ones)
    return np.mean(-np.log2((counted / (len(train) + 256))[list(valid)]))


def of_text(train, valid):
    """Letters for bytes, as far as the text is UTF-8."""
    train, valid = train.decode(errors="ignore"), valid.decode(errors="ignore")
    seen = Counter(train)
    return np.mean([-math.log2((seen[c] + 1) / (len(train) + 256)) for c in valid])


def saving(save):
    """The right x, with something else saved."""
    return lambda tokens, table: (table[tokens], save(tokens, table))


def collected(dx, saved):
    tokens, shape = saved
    grad = np.zeros(shape, dx.dtype)
    np.add.at(grad, tokens, dx)
    return grad


def lost_repeats(dx, saved):
    tokens, shape = saved
    grad = np.zeros(shape, dx.dtype)
    grad[tokens] += dx
    return grad


def row_by_row(dx, saved):
    """Each text for itself, repeats within a text lost."""
    return sum(lost_repeats(d[None], (t[None], saved[1])) for d, t in zip(dx, saved[0], strict=True))


# check: (right answers, {name of the mistake: wrong answer})
GAPS = {
    "check_surprise": {
        "one over p": lambda p: 1 / p - 1,
        "the chance of being wrong": lambda p: 2 * (1 - p),
        "not for arrays": lambda p: float(-np.log2(np.ravel(p)[0])),
        "the sum over an array": lambda p: -np.log2(p).sum(),
    },
    "check_frequency_bits": {
        "counts from the text that is scored": lambda train, valid: frequencies(valid, valid),
        "nothing added": lambda train, valid: frequencies(train, valid, ones=0),
        "every letter counted once": lambda train, valid: frequencies(train, sorted(set(valid))),
        "letters for bytes": of_text,
        "both texts counted": lambda train, valid: frequencies(train + valid, valid),
    },
    "check_embed_forward": {
        "the first rows": lambda tokens, table: (
            np.broadcast_to(table[: tokens.shape[1]], (*tokens.shape, table.shape[1])),
            (tokens, table.shape),
        ),
        "off by one": lambda tokens, table: (table[tokens - 1], (tokens, table.shape)),
        "the table saved": saving(lambda tokens, table: (table, table.shape)),
        "the tokens in a row": saving(lambda tokens, table: (tokens.ravel(), table.shape)),
    },
    "check_embed_backward": {
        "repeats lost": lost_repeats,
        "repeats lost within a text": row_by_row,
        "divided by the number of positions": lambda dx, saved: collected(dx, saved) / saved[0].size,
        "the first text only": lambda dx, saved: collected(dx[:1], (saved[0][:1], saved[1])),
    },
}
test_wrong_answers = rejects(GAPS)


# ---- The exercises


BRIDGE_NAMES = {"Blacksmith's", "Merchant's", "Green", "Giblet", "Honey", "Wooden", "High"}
OTHERS = {
    "check_closures": [lambda: BRIDGE_NAMES, lambda: frozenset(BRIDGE_NAMES)],
    "check_forecast_bits": [
        lambda: [1.75, 2, 2.5],
        lambda: np.array([1.75, 2, 2.5]),
        lambda: (Fraction(7, 4), 2, Fraction(5, 2)),
    ],
}
test_other_right_solutions = accepts(OTHERS)


def bigrams(train, valid, ones=1):
    """Bits per byte from pairs, with one thing wrong, if asked."""
    n = np.zeros((256, 256), np.int64)
    np.add.at(n, (list(train[:-1]), list(train[1:])), 1)
    n = n + np.int64(ones)
    p = n / n.sum(axis=1, keepdims=True)
    return (8 - np.log2(p[list(valid[:-1]), list(valid[1:])]).sum()) / len(valid)


def test_the_helper_with_nothing_wrong_is_right(chapter):
    """So that a wrong answer is rejected for what is wrong with it."""
    assert verdict(chapter.check_bigram_bits, bigrams) == "right"


def test_bridges_are_those_of_the_world(chapter):
    from konigsberg import town

    assert chapter.BRIDGES == {name: tuple(map(str, shores)) for name, shores in town.SPAN.items()}


def test_pictures_in_the_pages_come_from_the_notebook():
    from tools.book import pictures

    assert pictures.stale() == []


def seeing(which):
    """A predictor whose row i depends on the bytes that which(text, i) picks, in their order."""

    def predict(text):
        rows = np.ones((len(text), 256))
        for i in range(len(text)):
            for n, byte in enumerate(which(text, i)):
                rows[i, byte] += 1 + n
        return rows / rows.sum(axis=1, keepdims=True)

    return predict


# None of these is in the check: eight honest ones, then twelve that peek.
IMPLEMENTATIONS = [
    lambda t, i: t[:i][::-1],
    lambda t, i: t[max(0, i - 3) : i],
    lambda t, i: t[: i // 2],
    lambda t, i: bytes([i % 256]),
    lambda t, i: t[:i] if i % 2 else b"",
    lambda t, i: bytes(sorted(t[:i])),
    lambda t, i: t[i - 1 : i] if i % 3 else b"",
    lambda t, i: t[:i].lower(),
    lambda t, i: t[: i + 1],
    lambda t, i: t[: i + 2],
    lambda t, i: t[i + 2 : i + 3] + t[:i],
    lambda t, i: t[::-1],
    lambda t, i: bytes(sorted(t)),
    lambda t, i: t[i : i + 1] if i % 2 else t[:i],
    lambda t, i: t[i : i + 1] if i % 2 == 0 else t[:i],
    lambda t, i: t[i + 1 : i + 2] if i == 0 else t[:i],
    lambda t, i: t[-1:] if i == len(t) // 3 else t[:i],
    lambda t, i: t[i:] if i >= len(t) // 2 else t[:i],
    lambda t, i: t[i : i + 1] if i == len(t) - 1 else b"",
    lambda t, i: t[i : i + 1] if i == 0 else b"",
]


def test_the_domain_of_peeks_holds_both_kinds(chapter):
    """Brute force: the right test tells the eight honest ones from the twelve."""
    assert [chapter.peeks(seeing(which)) for which in IMPLEMENTATIONS] == [False] * 8 + [True] * 12
