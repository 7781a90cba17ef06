"""Chapter 02: its trainers agree, its checks accept what is right and reject wrong answers, each of them named."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from chapters import accepts, rejects, slips

from nanoeuler_book.checks import verdict

NOTEBOOK = "02_fast_tokenizer", "_"


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


def test_a_heap_that_trusts_its_entries_finds_other_merges(chapter):
    words = chapter.count_plainly("abd abd bd ab ab bd " * 3)
    expected = chapter.train_heap(words, 9, chapter.merge_word)
    assert chapter.train_heap(words, 9, chapter.merge_word, pop=chapter.pop_trusting) != expected


# ---- The gaps


def by_places(word, pair, new):
    """Another right way: old word and new word walked side by side."""
    merged, lost, gained, i = [], [], [], 0
    while i < len(word):
        here = new if tuple(word[i : i + 2]) == pair else word[i]
        if merged and new in (merged[-1], here):
            lost.append((word[i - 1], word[i]))
            gained.append((merged[-1], here))
        merged.append(here)
        i += 2 if here == new else 1
    return merged, lost, gained


def counted(words, weigh=True, overlap=True, glue=False):
    """Pair counts with one thing wrong, if asked."""
    counts = Counter()
    sequences = [(sum(words, ()), 1)] if glue else words.items()
    for word, times in sequences:
        last = None
        for i, pair in enumerate(pairwise(word)):
            if overlap or pair[0] != pair[1] or last != i - 1:
                counts[pair] += times if weigh else 1
                last = i
    return counts


WRONG_COUNTS = {
    "every distinct word once": dict(weigh=False),
    "places that overlap counted once": dict(overlap=False),
    "pairs across words": dict(glue=True),
}


def recount(word, pair, new):
    merged = by_places(word, pair, new)[0]
    return merged, list(pairwise(word)), list(pairwise(merged))


def from_right(word, pair, new):
    merged = by_places(word[::-1], pair[::-1], new)[0][::-1]
    borders = [border for border in pairwise(merged) if new in border]
    return merged, [(pair[1] if a == new else a, pair[0] if b == new else b) for a, b in borders], borders


def beside(word, pair, new):
    """Looks left and right of each new token, and takes a new one there for an old one."""
    merged, lost, gained = by_places(word, pair, new)[0], [], []
    for i, id in enumerate(merged):
        if id == new and i > 0:
            lost.append((merged[i - 1], pair[0]))
            gained.append((merged[i - 1], new))
        if id == new and i < len(merged) - 1:
            lost.append((pair[1], merged[i + 1]))
            gained.append((new, merged[i + 1]))
    return merged, lost, gained


def for_letters(word, pair, new):
    """By str.replace, for ids below 128 alone."""
    merged = [ord(x) for x in bytes(word).decode().replace(chr(pair[0]) + chr(pair[1]), chr(new))]
    gained = [border for border in pairwise(merged) if new in border]
    return merged, [(pair[1] if a == new else a, pair[0] if b == new else b) for a, b in gained], gained


WRONG_MERGES = {
    "new neighbours taken for old ones": beside,
    "all pairs of the word listed": recount,
    "merged from the right": from_right,
    "lost pairs forgotten": lambda *a: (by_places(*a)[0], [], by_places(*a)[2]),
    "gained pairs forgotten": lambda *a: (*by_places(*a)[:2], []),
    "ids below 128 alone": for_letters,
}


def by_position(ids, made):
    """Merge the leftmost known pair, whatever its rank."""
    while known := [i for i, pair in enumerate(pairwise(ids)) if pair in made]:
        ids[known[0] : known[0] + 2] = [made[ids[known[0]], ids[known[0] + 1]]]
    return ids


def longest_first(ids, made):
    """Cut off the longest token that fits, from the left."""
    text = {i: (i,) for i in range(256)}
    for (a, b), new in sorted(made.items(), key=lambda item: item[1]):
        text[new] = text[a] + text[b]
    found = []
    while ids:
        best = max((i for i in text if tuple(ids[: len(text[i])]) == text[i]), key=lambda i: len(text[i]))
        found.append(best)
        ids = ids[len(text[best]) :]
    return found


def latest_first(ids, made):
    """Merge the pair that training found last."""
    while known := [(made[pair], -i) for i, pair in enumerate(pairwise(ids)) if pair in made]:
        new, minus_i = max(known)
        ids[-minus_i : 2 - minus_i] = [new]
    return ids


def rightmost_first(ids, made):
    """The least rank, but of equal pairs the last one."""
    while known := [(made[pair], -i) for i, pair in enumerate(pairwise(ids)) if pair in made]:
        new, minus_i = min(known)
        ids[-minus_i : 2 - minus_i] = [new]
    return ids


def merged_in_turn(ids, pair, new):
    found = []
    for id in ids:
        found.append(id)
        if tuple(found[-2:]) == pair:
            found[-2:] = [new]
    return found


def ids_from_256_on(ids, made):
    for new, pair in enumerate(made, 256):
        ids = merged_in_turn(ids, pair, new)
    return ids


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


WRONG_RANKS = {
    f.__name__: f
    for f in (
        by_position,
        longest_first,
        latest_first,
        rightmost_first,
        ids_from_256_on,
    )
}
test_other_right_answers = accepts(
    {
        "check_diagnosis": [lambda text=text: text for text in ("ab abbb", "aa aa a", "aababaaa")],
    }
)
test_wrong_answers = rejects(
    {
        "check_pair_counts": slips(counted, WRONG_COUNTS),
        "check_merge_word": WRONG_MERGES,
        "check_merge_by_rank": WRONG_RANKS,
    }
)


def test_changes_with_pairs_for_keys_are_told_so(chapter):
    wrong = lambda: tuple({tuple(pair): n for pair, n in given.items()} for given in chapter.changes())
    assert "changes by another number" in verdict(chapter.check_changes, wrong)
