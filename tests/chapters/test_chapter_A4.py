"""Chapter A4: its trainers agree, its checks accept what is right and reject wrong answers, each of them named."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from chapters import accepts, definitions, rejects

NOTEBOOK = "A4_fast_tokenizer", "_"
BOOK = definitions(*NOTEBOOK)
merge_pair, merge_word = BOOK.merge_pair, BOOK.merge_word


# ---- The ladder


@pytest.mark.parametrize("seed", range(30))
def test_every_trainer_finds_the_plain_trainer_s_merges(chapter, seed):
    c, draw = chapter, random.Random(seed)
    text = "".join(draw.choices("ab cü\n.", [6, 4, 3, 1, 1, 1, 1], k=draw.randrange(60)))
    expected = c.train_bpe(c.split_words(text), 25)
    words = c.count_plainly(text)
    assert c.train_distinct(words, 25, c.pair_counts) == expected
    assert c.train_indexed(words, 25, c.merge_word) == expected
    assert c.train_heap(words, 25, c.merge_word) == expected
    assert c.find_merges(c.count_words(text), 25) == expected


# ---- The gaps


def recount(word, pair, new):
    merged = merge_pair(word, pair, new)
    return merged, list(pairwise(word)), list(pairwise(merged))


def from_right(word, pair, new):
    merged = merge_word(word[::-1], pair[::-1], new)[0][::-1]
    borders = [border for border in pairwise(merged) if new in border]
    return merged, [(pair[1] if a == new else a, pair[0] if b == new else b) for a, b in borders], borders


def beside(word, pair, new):
    """Looks left and right of each new token, and takes a new one there for an old one."""
    merged, lost, gained = merge_word(word, pair, new)[0], [], []
    for i, id in enumerate(merged):
        if id == new and i > 0:
            lost.append((merged[i - 1], pair[0]))
            gained.append((merged[i - 1], new))
        if id == new and i < len(merged) - 1:
            lost.append((pair[1], merged[i + 1]))
            gained.append((new, merged[i + 1]))
    return merged, lost, gained


WRONG_MERGES = {
    "new neighbours taken for old ones": beside,
    "all pairs of the word listed": recount,
    "merged from the right": from_right,
    "lost pairs forgotten": lambda *a: (merge_word(*a)[0], [], merge_word(*a)[2]),
}


def by_position(ids, made):
    """Merge the leftmost known pair, whatever its rank."""
    while known := [i for i, pair in enumerate(pairwise(ids)) if pair in made]:
        ids[known[0] : known[0] + 2] = [made[ids[known[0]], ids[known[0] + 1]]]
    return ids


def rightmost_first(ids, made):
    """The least rank, but of equal pairs the last one."""
    while known := [(made[pair], -i) for i, pair in enumerate(pairwise(ids)) if pair in made]:
        new, minus_i = min(known)
        ids[-minus_i : 2 - minus_i] = [new]
    return ids


def ids_from_256_on(ids, made):
    """Takes the order of the dictionary for the order of the merges."""
    for new, pair in enumerate(made, 256):
        ids = merge_pair(ids, pair, new)
    return ids


test_wrong_answers = rejects(
    {
        "check_pair_counts": {
            "every distinct word once": lambda words: Counter(p for word in words for p in pairwise(word)),
            "pairs across words": lambda words: Counter(pairwise(sum(words, ()))),
        },
        "check_merge_word": WRONG_MERGES,
        "check_merge_by_rank": {f.__name__: f for f in (by_position, rightmost_first, ids_from_256_on)},
    }
)
test_other_right_answers = accepts(
    {"check_diagnosis": [lambda text=text: text for text in ("ab abbb", "aa aa a", "aababaaa")]}
)
