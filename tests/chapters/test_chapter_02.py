"""Chapter 02: every check accepts a right answer and rejects wrong ones, each by the name of its mistake."""

import math

import numpy as np
from chapters import accepts, definitions, gap_tests

NOTEBOOK = ("02_measuring_prediction",)
BOOK = definitions(*NOTEBOOK)
cross_entropy, bits_per_byte, followers = BOOK.book_cross_entropy, BOOK.book_bits_per_byte, BOOK.book_followers


def next_probs(counts, context, strength, V, kinds=len, shorter=lambda rest: rest[1:], unseen=None):
    """The right answer as a recursion; each keyword changes one thing."""
    p = np.full(V, 1 / V) if not context else next_probs(counts, shorter(context), strength, V, kinds, shorter, unseen)
    followers = counts.get(context)
    if not followers:
        return p if unseen is None else np.full(V, unseen)
    rest = strength * kinds(followers)
    seen = np.array([followers.get(w, 0) for w in range(V)])
    return (seen + rest * p) / (seen.sum() + rest)


# check: (the right answer, {name of the mistake: wrong answer})
GAPS = {
    "check_cross_entropy": (
        [cross_entropy],
        {
            "source and predictor exchanged": lambda q, p: cross_entropy(p, q + 1e-9),
            "NaN where nothing happens": lambda q, p: np.sum(q * np.where(p > 0, -np.log2(p + (p == 0)), np.inf)),
            "a little added to p": lambda q, p: cross_entropy(q, p + 1e-12),
        },
    ),
    "check_bits_per_byte": (
        [bits_per_byte],
        {
            "the end left out": lambda nats, lengths: nats[lengths > 0].sum() / np.log(2) / lengths.sum(),
            "infinite at the end": lambda nats, lengths: nats.sum() / np.log(2) / lengths.sum() / (lengths.min() > 0),
        },
    ),
    "check_followers": (
        [lambda ids, order: dict(followers(ids, order))],
        {
            "one token too long": lambda ids, order: followers(ids, order + 1),
            "contexts reversed": lambda ids, order: {u[::-1]: seen for u, seen in followers(ids, order).items()},
            "the text reversed": lambda ids, order: followers(ids[::-1], order),
        },
    ),
    "check_next_probs": (
        [next_probs],
        {
            "every context weighs one": lambda *a: next_probs(*a, kinds=lambda followers: 1),
            "the last token dropped": lambda *a: next_probs(*a, shorter=lambda context: context[:-1]),
            "unseen contexts are uniform": lambda *a: next_probs(*a, unseen=1 / 6),
            "unseen contexts added to the counts": lambda counts, context, *rest: (
                counts[context],
                next_probs(counts, context, *rest),
            )[1],
        },
    ),
}
test_right_answers, test_wrong_answers = gap_tests(GAPS)


def spends_by_walk(probability, tokens, context=()):
    """Depth first, with an exact sum."""
    if abs(math.fsum(probability(context, w) for w in tokens) - 1) > 1e-6:
        return False
    return len(context) == 3 or all(spends_by_walk(probability, tokens, (*context, w)) for w in tokens)


test_other_right_answers = accepts({"check_spends_one": [spends_by_walk]})
