"""Byte-pair encoding (BPE) in its simplest form, short and slow. Chapter 01 derives it.

Training counts the pairs of neighbouring tokens, merges the most frequent pair everywhere, and repeats. Encoding merges
the neighbours in a word in the order in which training found their pairs. A merge is a pair of ids. Ids 0 to 255 are
bytes, and merge i creates the id 256 + i. `text.tokenizer` computes the same merges and ids faster; its tests use this
module as the reference.
"""

from collections import Counter
from itertools import pairwise

from nanoeuler_lib.text.tokenizer import split_words


def count_pairs(words: list[list[int]]) -> Counter[tuple[int, int]]:
    """Count how often each pair of neighbours (a, b) occurs in words, which are lists of ids.

    Overlapping occurrences all count: [1, 1, 1] contains (1, 1) twice.
    """
    counts = Counter()
    for word in words:
        counts.update(pairwise(word))
    return counts


def merge_pair(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """Return a copy of ids with each occurrence of the pair, from the left, replaced by `new`.

    For example, [1, 1, 1] becomes [new, 1] for the pair (1, 1).
    """
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
    """Find the first `number` merges; of equally frequent pairs, take the greater bytes.

    words: all words of the text as bytes. The list is shorter if no pair is left.
    Sennrich et al. 2016, algorithm 1.
    """
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
    """Return the bytes of each id: the 256 bytes, then the tokens that merges create."""
    tokens = [bytes([byte]) for byte in range(256)]
    for a, b in merges:
        tokens.append(tokens[a] + tokens[b])
    return tokens


def encode_word(word: bytes, merges: list[tuple[int, int]]) -> list[int]:
    """Encode a word: apply the earliest merge that occurs in it, until no merge occurs.

    Returns the ids of the word's tokens.
    """
    number = {pair: i for i, pair in enumerate(merges)}
    ids = list(word)
    while pairs := number.keys() & set(pairwise(ids)):
        pair = min(pairs, key=number.get)
        ids = merge_pair(ids, pair, 256 + number[pair])
    return ids


def train(text: str, vocab_size: int) -> list[tuple[int, int]]:
    """Learn the merges of a vocabulary of vocab_size tokens from a text; the 256 bytes are included in vocab_size."""
    return train_bpe([_bytes(word) for word in split_words(text)], vocab_size - 256)


def encode(text: str, merges: list[tuple[int, int]]) -> list[int]:
    """Encode a text: return the ids of its words in one list."""
    return [id for word in split_words(text) for id in encode_word(_bytes(word), merges)]


def decode(ids: list[int], merges: list[tuple[int, int]]) -> str:
    """Decode ids to text. Bytes that are not valid UTF-8, such as half a character, become U+FFFD."""
    tokens = bytes_of_tokens(merges)
    return b"".join(tokens[id] for id in ids).decode("utf-8", "replace")


def _bytes(word: str) -> bytes:
    """Return the UTF-8 of a word; lone surrogates mean bytes that are not UTF-8, as in `Tokenizer.encode_bytes`."""
    return word.encode("utf-8", "surrogateescape")
