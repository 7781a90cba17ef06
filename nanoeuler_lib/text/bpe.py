"""Byte-pair encoding on a page, as chapter 01 derives it: plain and slow.

Training counts the pairs of neighbouring tokens, merges the most frequent pair everywhere, and repeats. Encoding merges
a word's neighbours in the order in which training found their pairs. A merge is a pair of ids: 0..255 are bytes, and
merge i makes the id 256 + i. `text.tokenizer` computes the same merges and ids faster, and is tested against this.
"""

from collections import Counter
from itertools import pairwise

from nanoeuler_lib.text.tokenizer import split_words


def count_pairs(words: list[list[int]]) -> Counter[tuple[int, int]]:
    """How often each pair of neighbours (a, b) occurs in the words, lists of ids; places that overlap all count."""
    counts = Counter()
    for word in words:
        counts.update(pairwise(word))
    return counts


def merge_pair(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """A new list in which each place of the pair, from left to right, has become the id `new`."""
    merged, i = [], 0
    while i < len(ids):
        if tuple(ids[i : i + 2]) == pair:
            merged.append(new)
            i += 2
        else:
            merged.append(ids[i])
            i += 1
    return merged


def train_bpe(words: list[bytes], number: int) -> list[tuple[int, int]]:
    """The first `number` merges of words, or fewer if no pair is left; of equally frequent pairs the greater bytes."""
    words = [list(word) for word in words]
    tokens = [bytes([byte]) for byte in range(256)]
    merges = []
    for new in range(256, 256 + number):
        counts = count_pairs(words)
        if not counts:
            break
        a, b = max(counts, key=lambda pair: (counts[pair], tokens[pair[0]], tokens[pair[1]]))
        words = [merge_pair(word, (a, b), new) for word in words]
        merges.append((a, b))
        tokens.append(tokens[a] + tokens[b])
    return merges


def bytes_of_tokens(merges: list[tuple[int, int]]) -> list[bytes]:
    """The bytes that each id stands for."""
    tokens = [bytes([byte]) for byte in range(256)]
    for a, b in merges:
        tokens.append(tokens[a] + tokens[b])
    return tokens


def encode_word(word: bytes, merges: list[tuple[int, int]]) -> list[int]:
    """The ids of a word: while a pair of neighbours is a merge, the earliest such merge is made."""
    number = {pair: i for i, pair in enumerate(merges)}
    ids = list(word)
    while pairs := number.keys() & set(pairwise(ids)):
        pair = min(pairs, key=number.get)
        ids = merge_pair(ids, pair, 256 + number[pair])
    return ids


def train(text: str, vocab_size: int) -> list[tuple[int, int]]:
    """The merges of a vocabulary of vocab_size tokens, the 256 bytes counted, from the words of a text."""
    return train_bpe([_bytes(word) for word in split_words(text)], vocab_size - 256)


def encode(text: str, merges: list[tuple[int, int]]) -> list[int]:
    """The ids of a text: those of its words, one after another."""
    return [id for word in split_words(text) for id in encode_word(_bytes(word), merges)]


def decode(ids: list[int], merges: list[tuple[int, int]]) -> str:
    """The text of ids; what is not UTF-8, such as half a character, becomes U+FFFD."""
    tokens = bytes_of_tokens(merges)
    return b"".join(tokens[id] for id in ids).decode("utf-8", "replace")


def _bytes(word: str) -> bytes:
    """UTF-8, in which "surrogateescape" stands for bytes that are none, as in `Tokenizer.encode_bytes`."""
    return word.encode("utf-8", "surrogateescape")
