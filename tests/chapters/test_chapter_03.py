"""Chapter 03: every check accepts a right answer and rejects wrong ones, each by the name of its mistake."""

import math
from itertools import product

import numpy as np
from chapters import accepts, definitions, gap_tests

NOTEBOOK = ("03_measuring_prediction",)
BOOK = definitions(*NOTEBOOK)
cross_entropy, bits_per_byte = BOOK.book_cross_entropy, BOOK.book_bits_per_byte


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
        cross_entropy,
        {
            "source and predictor exchanged": lambda q, p: cross_entropy(p, q + 1e-9),
            "the entropy of the source": lambda q, p: cross_entropy(q, q),
            "the divergence": lambda q, p: cross_entropy(q, p) - cross_entropy(q, q),
            "NaN where nothing happens": lambda q, p: np.sum(q * np.where(p > 0, -np.log2(p + (p == 0)), np.inf)),
            "what had p = 0 left out": lambda q, p: float(-(q[p > 0] * np.log2(p[p > 0])).sum()),
            "a little added to p": lambda q, p: cross_entropy(q, p + 1e-12),
        },
    ),
    "check_bits_per_byte": (
        bits_per_byte,
        {
            "per token": lambda nats, lengths: nats.mean() / np.log(2),
            "the end left out": lambda nats, lengths: nats[lengths > 0].sum() / np.log(2) / lengths.sum(),
            "the mean of ratios": lambda nats, lengths: np.mean(nats / np.maximum(lengths, 1)) / np.log(2),
            "infinite at the end": lambda nats, lengths: nats.sum() / lengths.sum() / np.min(lengths * 1.0),
        },
    ),
    "check_next_probs": (
        next_probs,
        {
            "the share alone": lambda *a: next_probs(*a, kinds=lambda followers: 0),
            "every context weighs one": lambda *a: next_probs(*a, kinds=lambda followers: 1),
            "the last token dropped": lambda *a: next_probs(*a, shorter=lambda context: context[:-1]),
            "unseen contexts are uniform": lambda *a: next_probs(*a, unseen=1 / 6),
            "unseen contexts are impossible": lambda *a: next_probs(*a, unseen=0.0),
            "unseen contexts added to the counts": lambda counts, context, *rest: (
                counts[context],
                next_probs(counts, context, *rest),
            )[1],
        },
    ),
}


def sums(probability, tokens, lengths=range(4)):
    """Of the probabilities after each context of these lengths."""
    contexts = (context for k in lengths for context in product(tokens, repeat=k))
    return np.array([sum(probability(context, w) for w in tokens) for context in contexts])


test_right_answers, test_wrong_answers = gap_tests({check: ([right], wrong) for check, (right, wrong) in GAPS.items()})


def spends_by_arrays(probability, tokens):
    return bool(np.allclose(sums(probability, tokens), 1))


def spends_by_walk(probability, tokens, context=()):
    """Depth first, with an exact sum."""
    if abs(math.fsum(probability(context, w) for w in tokens) - 1) > 1e-6:
        return False
    return len(context) == 3 or all(spends_by_walk(probability, tokens, (*context, w)) for w in tokens)


OTHERS = {
    "check_spends_one": [spends_by_arrays, spends_by_walk],
}
test_other_right_answers = accepts(OTHERS)


def spender(place, more, number):
    """Probabilities that sum to 1 + more after the context with this number among those of its length."""

    def probability(context, token):
        length, which = place
        extra = len(context) == length and number(context) == which
        return (1 + more * extra) / 2

    return probability


TWO = ("x", "y")
NUMBER = lambda context: sum(2**i * (token == "y") for i, token in enumerate(context))
# None of these is in the check: eight honest predictors, then twelve that are not.
PREDICTORS = [
    lambda context, token: 0.5,
    lambda context, token: 0.3 if token == "x" else 0.7,
    lambda context, token: (0.9 if token == "x" else 0.1) if len(context) % 2 else 0.5,
    lambda context, token: float(token == (context[-1] if context else "x")),
    lambda context, token: (NUMBER(context) + 1) / 9 if token == "x" else 1 - (NUMBER(context) + 1) / 9,
    spender((4, 3), 0.5, NUMBER),
    spender((5, 0), -0.5, NUMBER),
    lambda context, token: 0.5 + 1e-12,
    spender((0, 0), 0.01, NUMBER),
    spender((1, 1), -0.01, NUMBER),
    spender((2, 2), 0.3, NUMBER),
    spender((3, 7), 0.001, NUMBER),
    spender((3, 0), -0.001, NUMBER),
    spender((2, 0), 1.0, NUMBER),
    lambda context, token: 0.0,
    lambda context, token: 1.0,
    lambda context, token: 0.25,
    lambda context, token: 0.6 if token == "x" else 0.5,
    lambda context, token: 0.5 if token == "x" else 0.45,
    lambda context, token: math.nan,
]


def test_the_domain_of_spends_one_holds_both_kinds(chapter):
    """Brute force: the right test tells the eight honest ones from the twelve."""
    assert [chapter.spends_one(p, TWO) for p in PREDICTORS] == [True] * 8 + [False] * 12
