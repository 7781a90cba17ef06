"""Test chapter 01: each check accepts a right answer, and rejects wrong answers with the name of the mistake."""

import re
from collections import Counter
from itertools import pairwise

from chapters import gap_tests, run_tagged, verdict

NOTEBOOK = "01_bytes_and_pairs", "_", "LATIN", "TABLE"
CHAPTER = run_tagged("01_bytes_and_pairs", "setup", "gap", "check")
count_pairs, merge_pair = CHAPTER["count_pairs"], CHAPTER["merge_pair"]
train_bpe, encode_word = CHAPTER["train_bpe"], CHAPTER["encode_word"]


def without_overlaps(words):
    lines = ["".join(map(chr, word)) for word in words]
    pairs = {pair for word in words for pair in pairwise(word)}
    return {(a, b): sum(line.count(chr(a) + chr(b)) for line in lines) for a, b in pairs}


def train(words, number, greatest):
    """Train with a different order of pairs, by greatest(count, tokens of the pair); words are lists of ids."""
    words, merges, tokens = [list(word) for word in words], [], [bytes([byte]) for byte in range(256)]
    while len(merges) < number and (counts := count_pairs(words)):
        pair = max(counts, key=lambda pair: greatest(counts[pair], *(tokens[id] for id in pair)))
        words = [merge_pair(word, pair, 256 + len(merges)) for word in words]
        merges.append(pair)
        tokens.append(tokens[pair[0]] + tokens[pair[1]])
    return merges


def encode_once(word, merges):
    line = "".join(map(chr, word))
    for new, (a, b) in enumerate(merges, 256):
        line = line.replace(chr(a) + chr(b), chr(new), 1)
    return [ord(c) for c in line]


def premium_with_spaces_apart(merges, one, other):
    count = lambda text: sum(len(encode_word(w.encode(), merges)) for w in re.findall(r"\s|\S+", text))
    return count(other) / count(one)


# check: ([right answers], {part of the check's message: wrong answer})
GAPS = {
    "check_count_pairs": (
        [count_pairs],
        {
            "places that overlap are counted once": without_overlaps,
            "across the end of a word": lambda words: count_pairs([[id for word in words for id in word]]),
            "equal words are counted once": lambda words: Counter(
                p for word in set(map(tuple, words)) for p in pairwise(word)
            ),
        },
    ),
    "check_merge_pair": (
        [merge_pair],
        {
            "replaced from right to left": lambda ids, pair, new: merge_pair(ids[::-1], pair[::-1], new)[::-1],
            "the list that was passed in has changed": lambda ids, *how: (merge_pair(ids, *how), ids.reverse())[0],
        },
    ),
    "check_train_bpe": (
        [train_bpe],
        {
            "ties go to the pair that is met first": lambda words, number: train(words, number, lambda n, *_: n),
            "pairs cross the end of a word": lambda words, number: train_bpe([b"".join(words)], number),
            "characters are merged, not bytes": lambda words, number: train(
                [map(ord, word.decode()) for word in words], number, lambda *of: of
            ),
            "joins": lambda words, number: train(
                words, number, lambda n, *of: [n, *(token.decode("utf-8", "replace") for token in of)]
            ),
        },
    ),
    "check_encode_word": (
        [encode_word],
        {
            "the longest token is taken at each place": CHAPTER["suspect_a"],
            "the leftmost pair is merged first": CHAPTER["suspect_b"],
            "each merge is applied at one place only": encode_once,
        },
    ),
    "check_premium": ([], {"gives 0.33, expected 0.50": premium_with_spaces_apart}),
}
test_right_answers, test_wrong_answers = gap_tests(GAPS)


def test_the_mistake_is_named():
    for check, (_, wrong) in GAPS.items():
        for sentence, answer in wrong.items():
            assert sentence in verdict(CHAPTER[check], answer)
