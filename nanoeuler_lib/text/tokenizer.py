"""Byte-level byte-pair encoding (BPE) with GPT-2's pretokenization, exact and fast, in plain Python.

Text becomes token ids in three steps: GPT-2's pattern cuts it into words; each word becomes its UTF-8 bytes;
and neighbouring bytes are merged, pair by pair, in the order in which training found the pairs. This module
computes the same ids faster than by that plain rule, with three ideas:

1. A space before a non-space always starts a word. Cutting there with `str.split` gives coarse *pieces* at
   the speed of C; text repeats itself, so the pattern and the merges see each distinct piece and word once
   only.
2. Merging a word keeps a list of what each neighbouring pair would become, and mends it beside each merge.
3. Training keeps the total of every pair and the words that hold it, so that a merge visits those words
   alone; each token is written as one character there, which makes a word a `str` and a merge one
   `str.replace`.

Sources: Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with Subword Units" (2016), for
BPE on words; Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), for bytes and
pattern.
"""

import json
import multiprocessing
import os
import re
import sys
import warnings
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import groupby, pairwise, repeat
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import write_text

END_OF_TEXT = "<|endoftext|>"
MAX_VOCAB_SIZE = sys.maxunicode + 1  # `find_merges` writes a token as one character
_FORMAT, _VERSION = "nanoeuler-bpe", 1
_MAX_FILE_BYTES = 1 << 26  # the file of the largest vocabulary has about 20 MB
_MAX_TOKEN_BYTES = 1 << 28  # all tokens together: a forged file could double a token forty times
_BLOCK = 1 << 14  # characters handled at a time: their pieces stay in the processor's cache
_TASK = 1 << 26  # bytes of a file handled at a time
_CACHED = 1 << 20  # pieces (and words) remembered before the memory is cleared
_LONG = 1000  # bytes; a longer word is merged by a sweep, and not remembered

PathLike = str | os.PathLike


# Pretokenization: GPT-2's pattern 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
# written with the classes of `re`. What is a letter or a number is what Python's own Unicode tables say.


def _pattern(letter: str, number: str, other: str, space: str) -> re.Pattern:
    """GPT-2's pattern for the given character classes."""
    word = rf"'(?:[sdmt]|ll|ve|re)| ?{letter}+| ?{number}+| ?{other}++"
    return re.compile(rf"{word}|[{space}]+(?![^{space}])|[{space}]+")


def _ranges(characters: Iterable[str]) -> str:
    """Characters in order, as ranges for a class: `re` would try the many above U+FFFF one by one."""
    runs = groupby(enumerate(characters), lambda item: ord(item[1]) - item[0])
    return "".join(f"{run[0][1]}-{run[-1][1]}" for run in (list(run) for _, run in runs))


# GPT-2's \s is Unicode's White_Space; Python's adds the separators \x1c-\x1f. GPT-2's \p{N} is \d and _NUMBER
# (fractions, superscripts, Roman numerals, ...; all are below U+20000). Python's \w is \p{L}, \p{N} and _.
_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_NUMBER = _ranges(c for c in map(chr, range(0x20000)) if c.isnumeric() and not (c.isdecimal() or c.isalpha()))
_UNICODE_WORDS = _pattern(rf"[^\W\d_{_NUMBER}]", rf"[\d{_NUMBER}]", rf"(?:[^\w{_SPACE}]|_)", _SPACE)
_ASCII_WORDS = _pattern("[A-Za-z]", "[0-9]", r"[^A-Za-z0-9\t-\r ]", r"\t-\r ")

_CUT = re.compile(f" (?=[^{_SPACE}])")
_OTHER_SPACE = re.compile(f" (?![^{_SPACE}])")


def split_words(text: str) -> list[str]:
    """Cut text into words by GPT-2's pattern; joined again they are the text."""
    return (_ASCII_WORDS if text.isascii() else _UNICODE_WORDS).findall(text)


def _pieces(text: str) -> list[str]:
    """Cut text at each space that a non-space follows, and drop that space.

    No word crosses such a cut.
    """
    return _CUT.split(text) if _OTHER_SPACE.search(text) else text.split(" ")


def _blocks(text: str) -> Iterator[str]:
    """Cut text into blocks of some `_BLOCK` characters; each but the first starts where `_pieces` cuts."""
    start = 0
    while start < len(text):
        cut = _CUT.search(text, start + _BLOCK)
        stop = cut.start() if cut else len(text)
        yield text[start:stop]
        start = stop


def _split_special(text: str, special_tokens: Collection[str]) -> list[str]:
    """Cut text into ordinary text and special tokens by turns; where two could start, the longer does."""
    if not special_tokens:
        return [text]
    names = sorted(special_tokens, key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, names))})", text)


# Training


def count_words(text: str, special_tokens: Collection[str] = ()) -> Counter[str]:
    """Count the words of text between special tokens: Counter(split_words(text)), faster."""
    words: Counter[str] = Counter()
    pieces: Counter[str] = Counter()
    for part in _split_special(text, special_tokens)[::2]:
        for number, block in enumerate(_blocks(part)):
            first, *rest = _pieces(block)
            pieces.update(rest)
            if number == 0:  # the one piece that no space precedes
                words.update(split_words(first))
    # Most pieces occur once or twice, and a call for each would cost more than the work in it. So all pieces
    # with the same count are cut together, those in ASCII apart from the others because their pattern is
    # faster.
    groups: defaultdict[tuple[int, bool], list[str]] = defaultdict(list)
    for piece, count in pieces.items():
        groups[count, piece.isascii()].append(piece)
    for (count, _), group in groups.items():
        for word, times in Counter(split_words(" " + " ".join(group))).items():
            words[word] += count * times
    return words


def _merge_in_words(pair: str, new: str, tokens: list[str], indices: Iterable[int]) -> list[tuple[str, str, list[int]]]:
    """Merge the pair in the words tokens[index], in place, and say what the borders beside new tokens became.

    Each neighbour of a new token gives one entry: the pair before, the pair after, and the words, once per place.
    """
    a, b = pair
    lefts: defaultdict[str, list[int]] = defaultdict(list)  # neighbour -> the words that have it on this side
    rights: defaultdict[str, list[int]] = defaultdict(list)
    for index in indices:
        word = tokens[index]
        start, stop = word.find(pair), -1
        if start < 0:
            continue
        while start >= 0:  # from left to right, so the neighbour on the left may be a new token already
            if start:
                lefts[new if start == stop else word[start - 1]].append(index)
            stop = start + 2
            if stop < len(word):
                rights[word[stop]].append(index)
            start = word.find(pair, stop)
        tokens[index] = word.replace(pair, new)
    changes = [(left + a, left + new, indices) for left, indices in lefts.items()]
    return changes + [(b + right, new + right, indices) for right, indices in rights.items()]


def find_merges(words: Mapping[str, int], number: int, progress: bool = False) -> list[tuple[int, int]]:
    """Find the first `number` merges of byte-pair encoding, or fewer if every word becomes one token before.

    words: how often each distinct word occurs. Gives pairs of ids: 0..255 are bytes, 256 + i is what merge i
    makes. Each merge takes the most frequent pair; of equally frequent ones the greatest as (bytes, bytes).
    Source: Sennrich et al. (2016), algorithm 1; the bookkeeping is described at the top of this module.
    """
    counts = list(words.values())
    tokens = [word.encode("utf-8", "surrogateescape").decode("latin-1") for word in words]  # a character each
    holders: defaultdict[str, list[int]] = defaultdict(list)  # pair -> the words that hold it, once per place
    for index, word in enumerate(tokens):
        for pair in map(add, word, word[1:]):
            holders[pair].append(index)

    def occurrences(indices: list[int]) -> int:
        return sum(map(counts.__getitem__, indices))

    totals = defaultdict(int, {pair: occurrences(indices) for pair, indices in holders.items()})
    # The heap gives its least entry, so totals are negated and bytes complemented; the mark above all bytes
    # makes a longer token come before its own beginning.
    order = {chr(byte): chr(255 - byte) + "\u0100" for byte in range(256)}
    heap = [(-total, order[pair[0]] + order[pair[1]], pair) for pair, total in totals.items()]
    heapify(heap)
    merges: list[tuple[int, int]] = []
    for new in map(chr, tqdm(range(256, 256 + number), "merging", disable=not progress)):
        while heap:
            negative, key, pair = heappop(heap)
            if totals[pair] == -negative:
                break
            if totals[pair]:  # earlier merges took some of its places since it was pushed
                heappush(heap, (-totals[pair], key, pair))
        else:
            break
        a, b = pair
        merges.append((ord(a), ord(b)))
        order[new] = order[a][:-1] + order[b]
        changes = _merge_in_words(pair, new, tokens, set(holders.pop(pair)))
        for before, after, indices in changes:
            total = occurrences(indices)
            totals[before] -= total
            totals[after] += total
            holders[after] = indices
        for after in {after for _, after, _ in changes if totals[after]}:
            heappush(heap, (-totals[after], order[after[0]] + order[after[1]], after))
    return merges


def merges_for(vocab_size: int, special_tokens: Collection[str]) -> int:
    """How many merges fill a vocabulary of this size. Raises NanoEulerError for a size that cannot be."""
    smallest = 256 + len(special_tokens)
    if not smallest <= vocab_size <= MAX_VOCAB_SIZE:
        expected = f"{smallest} (256 bytes and {len(special_tokens)} special tokens) to {MAX_VOCAB_SIZE}"
        raise NanoEulerError(f"vocab_size is {vocab_size}: expected {expected}")
    return vocab_size - smallest


# Encoding and decoding


def merge_by_rank(ids: list[int], id_of_pair: Mapping[tuple[int, int], int]) -> list[int]:
    """Merge neighbours until no pair is known, each time the pair that training merged first.

    ids: the bytes of one word, changed in place; id_of_pair: what each pair becomes. Gives the word's tokens.
    """
    find, none = id_of_pair.get, MAX_VOCAB_SIZE
    new_ids = list(map(find, pairwise(ids), repeat(none)))  # what each neighbouring pair would become
    while new_ids:
        new = min(new_ids)
        if new == none:
            break
        i = new_ids.index(new)
        ids[i] = new
        del ids[i + 1], new_ids[i]
        if i:
            new_ids[i - 1] = find((ids[i - 1], new), none)
        if i < len(new_ids):
            new_ids[i] = find((new, ids[i + 1]), none)
    return ids


def merge_by_sweep(ids: bytes, id_of_pair: Mapping[tuple[int, int], int]) -> list[int]:
    """The same for long words, where the least entry is slow to find. A merge is made of earlier ones, so one sweep
    over all merges in their order meets each at its turn."""
    tokens = ids.decode("latin-1")
    for (a, b), new in id_of_pair.items():
        tokens = tokens.replace(chr(a) + chr(b), chr(new))
    return list(map(ord, tokens))


class _Words(dict):
    """The ids of each word, as the bytes of an array; the first `words[word]` computes them."""

    def __init__(self, merges: Sequence[tuple[int, int]], id_of_byte: bytes, typecode: str) -> None:
        self.id_of_byte, self.typecode = id_of_byte, typecode
        self.id_of_pair = {pair: 256 + i for i, pair in enumerate(merges)}

    def __missing__(self, word: str) -> bytes:
        ids = word.encode("utf-8", "surrogateescape").translate(self.id_of_byte)
        if len(ids) > _LONG:
            return array(self.typecode, merge_by_sweep(ids, self.id_of_pair)).tobytes()
        self[word] = result = array(self.typecode, merge_by_rank(list(ids), self.id_of_pair)).tobytes()
        return result


class _Pieces(dict):
    """The ids of each piece together with the space before it, as in `_Words`."""

    def __init__(self, words: _Words) -> None:
        self.words = words

    def __missing__(self, piece: str) -> bytes:
        words = [" " + piece] if piece.isalpha() else split_words(" " + piece)
        ids = b"".join(map(self.words.__getitem__, words))
        if len(piece) <= _LONG:
            self[piece] = ids
        return ids


class Tokenizer:
    """A byte-level BPE vocabulary with its encoder and decoder.

    Ids 0..255 are bytes; then come the tokens that merges make, in the order of training; then special tokens.

    merges: pairs of ids, each below the id that it makes. special_tokens: their texts, in the order of their
    ids. byte_order: the 256 byte values in the order of their ids; GPT-2 has its own, else they are in order.
    Raises NanoEulerError if a merge could never happen, or for special tokens that are empty, repeated or not
    printable.

    Attributes: merges; vocab_size; token_bytes, the bytes of each id; token_lengths, an int32 array
    [vocab_size] of how many bytes of text each id stands for (0 for a special token, which is no text);
    special_tokens, text -> id; dtype, of arrays of ids (uint16 for at most 65,536 tokens, else uint32);
    byte_order; begin and end, the ids that stand before and behind a document, both that of <|endoftext|>, or None.
    """

    def __init__(
        self,
        merges: Iterable[Sequence[int]],
        special_tokens: Iterable[str] = (END_OF_TEXT,),
        byte_order: Iterable[int] = range(256),
    ) -> None:
        self.merges = [(a, b) for a, b in merges]
        self.byte_order = list(byte_order)
        names = _checked_special_tokens(special_tokens)
        texts = _checked_tokens(self.merges, self.byte_order, len(names))
        self.special_tokens = {name: id for id, name in enumerate(names, len(texts))}
        self.token_bytes = texts + [name.encode() for name in names]
        self.token_lengths = np.array([len(text) for text in texts] + [0] * len(names), dtype=np.int32)
        self.vocab_size = len(self.token_bytes)
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)
        self.begin = self.end = self.special_tokens.get(END_OF_TEXT)
        self._words = _Words(self.merges, bytes(map(self.byte_order.index, range(256))), self.dtype.char)
        self._pieces = _Pieces(self._words)

    @classmethod
    def train(
        cls,
        source: PathLike | Iterable[PathLike],
        vocab_size: int,
        special_tokens: Iterable[str] = (END_OF_TEXT,),
        processes: int = 1,
        progress: bool = False,
    ) -> "Tokenizer":
        """Learn a vocabulary of vocab_size tokens, special ones counted; of fewer if the text gives no more.

        source: a text (str), a file (Path), or several of either. Special tokens in it separate texts, and
        nothing is learnt from them. processes: how many share the counting of files (a text is counted by
        one). Raises NanoEulerError for a file that cannot be read and a vocab_size that cannot be.
        """
        names = _checked_special_tokens(special_tokens)
        number = merges_for(vocab_size, names)
        sources = [source] if isinstance(source, str | os.PathLike) else list(source)
        tasks: list[_Task] = [text for text in sources if isinstance(text, str)]
        tasks += _file_tasks([path for path in sources if not isinstance(path, str)], names, processes)
        counted = _run(partial(count_words, special_tokens=names), tasks, processes)
        words: Counter[str] = Counter()
        for more in tqdm(counted, "counting words", len(tasks), disable=not progress):
            words.update(more)
        return cls(find_merges(words, number, progress), names)

    def encode(self, text: str, allowed_special: Collection[str] = frozenset()) -> np.ndarray:
        """Turn text into ids, a new array [tokens] of `dtype`.

        The text of a special token is ordinary text, unless allowed_special holds it or is "all". Raises
        NanoEulerError for half a surrogate pair, which has no UTF-8 form.
        """
        words, pieces = self._words, self._pieces
        ids: list[bytes] = []
        try:
            for turn, part in enumerate(_split_special(text, self._allowed(allowed_special))):
                if turn % 2:
                    ids.append(np.array(self.special_tokens[part], self.dtype).tobytes())
                    continue
                for number, block in enumerate(_blocks(part)):
                    first, *rest = _pieces(block)
                    if number == 0:  # the one piece that no space precedes
                        ids += map(words.__getitem__, split_words(first))
                    ids.append(b"".join(map(pieces.__getitem__, rest)))
                    for cache in (words, pieces):
                        if len(cache) > _CACHED:
                            cache.clear()
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            raise NanoEulerError(f"text holds {half}, half a surrogate pair: expected Unicode") from None
        return np.frombuffer(bytearray().join(ids), self.dtype)

    def encode_bytes(self, data: bytes, allowed_special: Collection[str] = frozenset()) -> np.ndarray:
        """As `encode`, for UTF-8; bytes that are not UTF-8 are kept, and pretokenized like punctuation."""
        return self.encode(data.decode("utf-8", "surrogateescape"), allowed_special)

    def encode_file(
        self, path: PathLike, allowed_special: Collection[str] = frozenset(), processes: int = 1
    ) -> np.ndarray:
        """As `encode_bytes`, for a file that processes share. Raises NanoEulerError if it cannot be read."""
        encode = partial(self.encode, allowed_special=list(self._allowed(allowed_special)))
        tasks = _file_tasks([path], self.special_tokens, processes)
        return np.concatenate(list(_run(encode, tasks, processes)))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that ids [tokens] stand for. Raises NanoEulerError for an id outside the vocabulary."""
        ids = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids))
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise NanoEulerError(f"ids are {ids.dtype} of shape {ids.shape}: expected one row of integers")
        for id in (ids.min(), ids.max()) if ids.size else ():
            if not 0 <= id < self.vocab_size:
                raise NanoEulerError(f"token id is {id}: expected 0 to {self.vocab_size - 1}")
        return b"".join(map(self.token_bytes.__getitem__, ids.tolist()))

    def decode(self, ids: Iterable[int]) -> str:
        """As `decode_bytes`, for text; what is not UTF-8, such as half a character, becomes U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def _allowed(self, allowed_special: Collection[str]) -> Collection[str]:
        if allowed_special == "all":
            return self.special_tokens
        if isinstance(allowed_special, str) or not self.special_tokens.keys() >= set(allowed_special):
            expected = f'"all" or some of {list(self.special_tokens)}'
            raise NanoEulerError(f"allowed_special is {allowed_special!r}: expected {expected}")
        return allowed_special

    def __reduce__(self) -> tuple:
        return Tokenizer, (self.merges, list(self.special_tokens), self.byte_order)

    # Files

    def save(self, path: PathLike) -> None:
        """Write the vocabulary as one JSON file, all or nothing. Raises NanoEulerError if that fails."""
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "vocab_size": self.vocab_size,
            "special_tokens": list(self.special_tokens),
            "byte_order": self.byte_order,
            "merges": self.merges,
        }
        write_text(os.fspath(path), json.dumps(content, separators=(",", ":")) + "\n")

    @classmethod
    def load(cls, path: PathLike) -> "Tokenizer":
        """Read what `save` wrote. Raises NanoEulerError, which says what is wrong, for anything else."""
        content = read_json(path)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise NanoEulerError(f'{path}: no tokenizer, expected a JSON object with "format": "{_FORMAT}"')
        if content.get("version") != _VERSION:
            raise NanoEulerError(f"{path}: version is {short(content.get('version'))}, expected {_VERSION}")
        merges, names, byte_order = (content.get(key, ()) for key in ("merges", "special_tokens", "byte_order"))
        if not all(isinstance(value, list) for value in (merges, names, byte_order)):
            raise NanoEulerError(f"{path}: expected lists of merges, special_tokens and byte_order")
        for number, pair in enumerate(merges):
            if not (isinstance(pair, list) and len(pair) == 2 and all(type(id) is int for id in pair)):
                raise NanoEulerError(f"{path}: merge {number} is {short(pair)}, expected two token ids")
        try:
            tokenizer = cls(merges, names, byte_order)
        except NanoEulerError as error:
            raise NanoEulerError(f"{path}: {error}") from None
        if content.get("vocab_size") != tokenizer.vocab_size:
            size = short(content.get("vocab_size"))
            expected = f"256 + {len(merges)} merges + {len(names)} special tokens = {tokenizer.vocab_size}"
            raise NanoEulerError(f"{path}: vocab_size is {size}, expected {expected}")
        return tokenizer

    @classmethod
    def from_gpt2(cls, encoder_json: PathLike, vocab_bpe: PathLike) -> "Tokenizer":
        """Read GPT-2's own files: token -> id, and the merges in order; both write a byte as a character.

        Raises NanoEulerError unless ids are numbered as everywhere here: bytes, merges, special tokens.
        """
        id_of: Any = read_json(encoder_json)
        pairs = [line.partition(" ")[::2] for line in _read_text(vocab_bpe).split("\n")]
        pairs = [(a, b) for a, b in pairs if a and a != "#version:"]
        byte_of = byte_characters()
        numbered = isinstance(id_of, dict) and all(type(id) is int for id in id_of.values())
        tokens = sorted(id_of, key=id_of.get) if numbered else []
        first_special = 256 + len(pairs)
        named = set(tokens[:256]) == byte_of.keys() and tokens[256:first_special] == [a + b for a, b in pairs]
        if not (named and sorted(id_of.values()) == list(range(len(tokens)))):
            expected = "256 bytes, the merges in order, special tokens, numbered from 0"
            raise NanoEulerError(f"{encoder_json} does not fit {vocab_bpe}: expected {expected}")
        merges = [(id_of.get(a, -1), id_of.get(b, -1)) for a, b in pairs]
        return cls(merges, tokens[first_special:], [byte_of[token] for token in tokens[:256]])


def byte_characters() -> dict[str, int]:
    """The characters that GPT-2's files write for bytes, and the byte of each."""
    byte_values = [*range(33, 127), *range(161, 173), *range(174, 256)]  # written as they are; the others
    byte_values += [byte for byte in range(256) if byte not in byte_values]  # as characters from 256 on
    return {chr(byte if i < 188 else i + 68): byte for i, byte in enumerate(byte_values)}


def _read_text(path: PathLike) -> str:
    try:
        if os.path.getsize(path) > _MAX_FILE_BYTES:
            raise NanoEulerError(f"{path}: expected a tokenizer of at most {_MAX_FILE_BYTES} bytes")
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise NanoEulerError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise NanoEulerError(f"{path}: byte {error.start} is not UTF-8, expected a text file") from None


def read_json(path: PathLike) -> object:
    text = _read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also for a number of thousands of digits
        raise NanoEulerError(f"{path}: not JSON ({error})") from None


# What a vocabulary must be


def _checked_special_tokens(special_tokens: Iterable[str]) -> list[str]:
    names = [special_tokens] if isinstance(special_tokens, str) else list(special_tokens)
    for name in names:
        if not (isinstance(name, str) and name and name.isprintable() and names.count(name) == 1):
            raise NanoEulerError(f"special token {short(name)}: expected printable text, each one once")
    return names


def _checked_tokens(merges: Sequence[tuple[int, int]], byte_order: Sequence[int], specials: int) -> list[bytes]:
    """The bytes of each id below the special tokens, if every merge is one that encoding can come to."""
    if not all(type(byte) is int for byte in byte_order) or sorted(byte_order) != list(range(256)):
        raise NanoEulerError("byte_order: expected each of the integers 0 to 255 once")
    if (size := 256 + len(merges) + specials) > MAX_VOCAB_SIZE:
        raise NanoEulerError(f"the vocabulary has {size} tokens: expected at most {MAX_VOCAB_SIZE}")
    tokens = [bytes([byte]) for byte in byte_order]
    id_of_pair: dict[tuple[int, int], int] = {}
    length = 0
    for new, (a, b) in enumerate(merges, 256):
        if not (0 <= a < new and 0 <= b < new):
            merge = f"merge {new - 256} is {short((a, b))}"
            raise NanoEulerError(f"{merge}: expected ids made before it, 0 to {new - 1}")
        merge = f"merge {new - 256} is ({a}, {b})"
        if (a, b) in id_of_pair:
            raise NanoEulerError(f"{merge}, as merge {id_of_pair[a, b] - 256} was: expected each pair once")
        if _merged_across(a, b, merges, id_of_pair):
            raise NanoEulerError(f"{merge}: expected a pair that the merges before it leave side by side")
        length += len(tokens[a]) + len(tokens[b])
        if length > _MAX_TOKEN_BYTES:
            raise NanoEulerError(f"{merge}: expected tokens of at most {_MAX_TOKEN_BYTES} bytes in all")
        tokens.append(tokens[a] + tokens[b])
        id_of_pair[a, b] = new
    return tokens


def _merged_across(
    a: int, b: int, merges: Sequence[tuple[int, int]], id_of_pair: Mapping[tuple[int, int], int]
) -> bool:
    """Whether encoding the text of a and b merges across their border, and so never comes to a and b.

    Left of the border stands the last byte of a at first, then the tokens that grow from it until they are a;
    right of it likewise, until b. Two such neighbours merge at the turn of their pair if neither has grown by
    then. Equal pairs merge from left to right: if the same turn makes the right one grow, the merge across
    comes first.
    """
    never = MAX_VOCAB_SIZE
    left, left_grows = a, never
    while True:
        right, right_grows = b, never
        while True:
            turn = id_of_pair.get((left, right), never)
            if turn < left_grows and turn <= right_grows:
                return True
            if right < 256:
                break
            right, right_grows = merges[right - 256][0], right
        if left < 256:
            return False
        left, left_grows = merges[left - 256][1], left


# Sharing work among processes

_Task = str | tuple[PathLike, int, int]  # a text, or a file and where to start and stop in it


def _file_tasks(paths: Sequence[PathLike], special_tokens: Collection[str], processes: int) -> list[_Task]:
    """Cut files where the parts can be tokenized apart: a space before a letter, no special token near."""
    if processes < 1:
        raise NanoEulerError(f"processes is {processes}: expected 1 or more")
    names = [name.encode() for name in special_tokens]
    reach = max(map(len, names), default=0)
    tasks: list[_Task] = []
    try:
        sizes = [os.path.getsize(path) for path in paths]
        step = min(_TASK, sum(sizes) // processes + 1)
        for path, size in zip(paths, sizes):
            start, stop = 0, step
            with open(path, "rb") as file:
                while stop < size:
                    file.seek(stop)
                    data = file.read(_BLOCK + 2 * reach)
                    for space in re.finditer(rb" (?=[A-Za-z])", data[reach : len(data) - reach]):
                        near = data[space.start() : space.end() + 2 * reach]
                        if not any(name in near for name in names):
                            tasks.append((path, start, stop + reach + space.start()))
                            start = stop + reach + space.start()
                            stop = start + step
                            break
                    else:
                        stop += _BLOCK
            tasks.append((path, start, size))
    except OSError as error:
        raise NanoEulerError(f"{error.filename}: cannot be read ({error.strerror})") from None
    return tasks


def _text(task: _Task) -> str:
    if isinstance(task, str):
        return task
    path, start, stop = task
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(stop - start).decode("utf-8", "surrogateescape")


def _run(function: Callable[[str], object], tasks: Sequence[_Task], processes: int) -> Iterator:
    """Yield function(text) for the text of each task in order, computed by up to so many processes."""
    processes = min(processes, len(tasks))
    if processes <= 1:
        yield from (function(_text(task)) for task in tasks)
        return
    # Linux can fork: workers start at once and share what the tokenizer knows. Python 3.12 warns of locks that
    # other threads may hold at that moment; the workers only read files and run Python code, which takes none.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pool = context.Pool(processes, _start_worker, (function,))
    with pool:
        yield from pool.imap(_work, tasks)


_function: Callable[[str], object]  # of a worker, kept from task to task: a tokenizer remembers the pieces it has met


def _start_worker(function: Callable[[str], object]) -> None:
    global _function
    _function = function


def _work(task: _Task) -> object:
    return _function(_text(task))
