"""Chapter 01: every check accepts a right answer and rejects wrong ones, each by the name of its mistake."""

import re
from collections import Counter
from itertools import pairwise

from chapters import gap_tests, rejects, run_tagged
from hypothesis import given
from hypothesis import strategies as st

from nanoeuler_lib.text import tokenizer

NOTEBOOK = "01_bytes_and_pairs", "_", "LATIN", "TABLE"
CHAPTER = run_tagged("01_bytes_and_pairs", "setup", "gap", "check")
count_pairs, merge_pair = CHAPTER["count_pairs"], CHAPTER["merge_pair"]
train_bpe, encode_word = CHAPTER["train_bpe"], CHAPTER["encode_word"]


def without_overlaps(words):
    counts = Counter()
    for word in words:
        for pair in set(pairwise(word)):
            text = "".join(map(chr, word))
            counts[pair] += text.count(chr(pair[0]) + chr(pair[1]))
    return counts


def right_to_left(ids, pair, new):
    return merge_pair(ids[::-1], pair[::-1], new)[::-1]


def overlapping_merges(ids, pair, new):
    places = [i for i, found in enumerate(pairwise(ids)) if found == pair]
    return [new if i in places else id for i, id in enumerate(ids) if i - 1 not in places]


def in_place(ids, pair, new):
    ids[:] = merge_pair(ids, pair, new)
    return ids


def by_rule(n, pair, tokens):
    return n, tokens[pair[0]], tokens[pair[1]]


def train(words, number, *, greatest=by_rule, count=count_pairs, merge=merge_pair):
    """The trainer with one part exchanged."""
    words, merges = [list(word) for word in words], []
    tokens = [bytes([byte]) for byte in range(256)]
    for new in range(256, 256 + number):
        counts = count(words)
        if not counts:
            break
        pair = max(counts.items(), key=lambda item: greatest(item[1], item[0], tokens))[0]
        words = [merge(word, pair, new) for word in words]
        merges.append(pair)
        tokens.append(tokens[pair[0]] + tokens[pair[1]])
    return merges


def train_characters(words, number):
    """The trainer on code points in place of bytes."""
    words, merges = [[ord(letter) for letter in word.decode()] for word in words], []
    tokens = [bytes([byte]) for byte in range(256)]
    for new in range(256, 256 + number):
        counts = count_pairs(words)
        if not counts:
            break
        a, b = max(counts, key=lambda pair: (counts[pair], tokens[pair[0]], tokens[pair[1]]))
        words = [merge_pair(word, (a, b), new) for word in words]
        merges.append((a, b))
        tokens.append(tokens[a] + tokens[b])
    return merges


def as_text(token):
    return token.decode("utf-8", "replace")


def complement(token):
    return [-byte for byte in token]


# check: (the right answer, {name of the mistake: wrong answer})
GAPS = {
    "check_count_pairs": (
        count_pairs,
        {
            "overlaps counted once": without_overlaps,
            "across words": lambda words: count_pairs([[id for word in words for id in word]]),
            "words, not places": lambda words: Counter(p for word in words for p in set(pairwise(word))),
            "distinct words": lambda words: Counter(
                p for word in {tuple(word) for word in words} for p in pairwise(word)
            ),
        },
    ),
    "check_merge_pair": (
        merge_pair,
        {
            "from right to left": right_to_left,
            "the first place only": lambda ids, pair, new: next(
                (ids[:i] + [new] + ids[i + 2 :] for i, found in enumerate(pairwise(ids)) if found == pair),
                list(ids),
            ),
            "overlapping places too": overlapping_merges,
            "in place": in_place,
        },
    ),
    "check_train_bpe": (
        train_bpe,
        {
            "ties to the smaller pair": lambda words, number: train(
                words,
                number,
                greatest=lambda n, pair, tokens: (
                    n,
                    complement(tokens[pair[0]]),
                    complement(tokens[pair[1]]),
                ),
            ),
            "ties to the pair met first": lambda words, number: train(words, number, greatest=lambda n, pair, _: n),
            "overlaps counted once": lambda words, number: train(words, number, count=without_overlaps),
            "merged across words": lambda words, number: train_bpe([b"".join(words)], number),
            "merged from right to left": lambda words, number: train(words, number, merge=right_to_left),
            "characters for bytes": train_characters,
            "tokens kept as text": lambda words, number: train(
                words,
                number,
                greatest=lambda n, pair, tokens: (n, as_text(tokens[pair[0]]), as_text(tokens[pair[1]])),
            ),
        },
    ),
    "check_encode_word": (
        encode_word,
        {
            "the longest token first": CHAPTER["suspect_a"],
            "the leftmost pair first": CHAPTER["suspect_b"],
            "each merge once": lambda word, merges: encode_once(word, merges),
        },
    ),
}


def encode_once(word, merges):
    ids = list(word)
    for new, pair in enumerate(merges, 256):
        at = next((i for i, found in enumerate(pairwise(ids)) if found == pair), None)
        if at is not None:
            ids[at : at + 2] = [new]
    return ids


test_right_answers, test_wrong_answers = gap_tests({check: ([right], wrong) for check, (right, wrong) in GAPS.items()})


@given(st.lists(st.binary(max_size=30), max_size=5), st.sampled_from(["ab", "abc", "abü"]))
def test_plain_trainer_and_encoder_equal_the_library(words, letters):
    words = ["".join(letters[byte % 3 % len(letters)] for byte in word) for word in words]
    merges = train_bpe([word.encode() for word in words], 20)
    tokens = CHAPTER["bytes_of_tokens"](merges)
    if len(set(tokens)) < len(tokens):  # two ids for the same bytes: the tie rule does not tell them apart
        return
    assert merges == tokenizer.find_merges(Counter(words), 20)
    library = tokenizer.Tokenizer(merges, [])
    for word in words:  # letters alone, so that GPT-2's pattern takes it as one word
        ids = encode_word(word.encode(), merges)
        assert b"".join(tokens[id] for id in ids).decode() == word
        assert ids == library.encode(word).tolist()


def premium_with_spaces_apart(merges, one, other):
    """Each space is a word of its own."""
    count = lambda text: sum(len(encode_word(w.encode(), merges)) for w in re.findall(r"\s|\S+", text))
    return count(other) / count(one)


test_wrong_premium = rejects({"check_premium": {"each space apart": premium_with_spaces_apart}})
