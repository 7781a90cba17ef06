"""Byte-level byte-pair encoding (BPE) with GPT-2's pretokenization, exact and fast, in pure Python. Chapter A4.

Text becomes token ids in three steps. GPT-2's pattern cuts it into words, each word becomes its UTF-8 bytes, and
neighbouring bytes are merged, pair by pair, in the order in which training found the pairs. `text.bpe` does exactly
this. This module computes the same ids faster, with three ideas:

1. A space before a non-space always starts a word. Cutting there with `str.split` gives coarse *pieces* at the speed
   of C. Text repeats itself, so the pattern and the merges have to process each distinct piece and word only once.
2. Merging within a word keeps a list of the ids that each neighbouring pair would become, and updates only the entries
   next to a merge.
3. Training keeps the total of every pair and the words that contain it, so that a merge visits only those words. Each
   token is represented by one character, so a word is a `str` and a merge is a single `str.replace`.

Sources: Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with Subword Units" (2016), for BPE on
words; Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), for bytes and pattern.
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
MAX_VOCAB_SIZE = sys.maxunicode + 1  # `find_merges` represents each token by one character
_FORMAT, _VERSION = "nanoeuler-bpe", 1
_MAX_FILE_BYTES = 1 << 26  # the file of the largest vocabulary has about 20 MB
_MAX_TOKEN_BYTES = 1 << 28  # of all tokens together, because a forged file could double a token forty times
_BLOCK = 1 << 14  # characters processed at a time, so that their pieces stay in the processor's cache
_TASK = 1 << 26  # bytes of a file processed at a time
_CACHED = 1 << 20  # pieces (and words) remembered before the cache is cleared
_LONG = 1000  # bytes; longer words are merged by `merge_by_sweep` and not cached

PathLike = str | os.PathLike


# Pretokenization: GPT-2's pattern 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
# written with the classes of `re`. Letters and numbers are those of Python's own Unicode tables.


def _pattern(letter: str, number: str, other: str, space: str) -> re.Pattern:
    """Compile GPT-2's pattern for the given character classes."""
    word = rf"'(?:[sdmt]|ll|ve|re)| ?{letter}+| ?{number}+| ?{other}++"
    return re.compile(rf"{word}|[{space}]+(?![^{space}])|[{space}]+")


def _ranges(characters: Iterable[str]) -> str:
    """Write sorted characters as ranges, because `re` tests those above U+FFFF one by one."""
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
    """Cut text into words with GPT-2's pattern; the words joined together are the text."""
    return (_ASCII_WORDS if text.isascii() else _UNICODE_WORDS).findall(text)


def _pieces(text: str) -> list[str]:
    """Cut text at each space before a non-space, and drop that space.

    No word crosses such a cut, because a space before a non-space always starts a word.
    """
    return _CUT.split(text) if _OTHER_SPACE.search(text) else text.split(" ")


def _blocks(text: str) -> Iterator[str]:
    """Cut text into blocks of about `_BLOCK` characters, at places where `_pieces` also cuts."""
    start = 0
    while start < len(text):
        cut = _CUT.search(text, start + _BLOCK)
        stop = cut.start() if cut else len(text)
        yield text[start:stop]
        start = stop


def _split_special(text: str, special_tokens: Collection[str]) -> list[str]:
    """Cut text into ordinary text and special tokens, alternately; the longest token wins."""
    if not special_tokens:
        return [text]
    names = sorted(special_tokens, key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, names))})", text)


# Training


def count_words(text: str, special_tokens: Collection[str] = ()) -> Counter[str]:
    """Count the words of a text, as Counter(split_words(text)) does but faster.

    special_tokens: texts that separate documents; they are not counted. Chapter A4.
    """
    words: Counter[str] = Counter()
    pieces: Counter[str] = Counter()
    for part in _split_special(text, special_tokens)[::2]:
        for number, block in enumerate(_blocks(part)):
            first, *rest = _pieces(block)
            pieces.update(rest)
            if number == 0:  # the only piece without a space before it
                words.update(split_words(first))
    # Most pieces occur once or twice, and a call for each of them would cost more than the
    # cutting itself. So all pieces with the same count are joined and cut together. ASCII
    # pieces form groups of their own, because their pattern is faster.
    groups: defaultdict[tuple[int, bool], list[str]] = defaultdict(list)
    for piece, count in pieces.items():
        groups[count, piece.isascii()].append(piece)
    for (count, _), group in groups.items():
        for word, times in Counter(split_words(" " + " ".join(group))).items():
            words[word] += count * times
    return words


def _merge_in_words(pair: str, new: str, tokens: list[str], indices: Iterable[int]) -> list[tuple[str, str, list[int]]]:
    """Merge a pair in the words tokens[index], in place, and list the neighbouring pairs that changed.

    Each entry has the pair before the merge, the pair after it, and the indices of the
    words where it changed, once per occurrence.
    """
    a, b = pair
    lefts: defaultdict[str, list[int]] = defaultdict(list)  # neighbour -> the words that have it on this side
    rights: defaultdict[str, list[int]] = defaultdict(list)
    for index in indices:
        word = tokens[index]
        start, stop = word.find(pair), -1
        if start < 0:
            continue
        while start >= 0:  # from left to right, so the left neighbour may already be a new token
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
    """Find the first `number` merges of byte-pair encoding, or fewer if no pair is left.

    words: number of occurrences of each distinct word; progress: show a progress bar.
    Returns pairs of ids, where 0 to 255 are bytes and merge i creates the id 256 + i.
    Each merge takes the most frequent pair, and of equally frequent pairs the greatest
    as (bytes, bytes). Sennrich et al. 2016, algorithm 1; the data structures are
    described at the top of this module. Chapter A4.
    """
    counts = list(words.values())
    tokens = [word.encode("utf-8", "surrogateescape").decode("latin-1") for word in words]  # a character per byte
    holders: defaultdict[str, list[int]] = defaultdict(list)  # pair -> its words, one per occurrence
    for index, word in enumerate(tokens):
        for pair in map(add, word, word[1:]):
            holders[pair].append(index)

    def occurrences(indices: list[int]) -> int:
        return sum(map(counts.__getitem__, indices))

    totals = defaultdict(int, {pair: occurrences(indices) for pair, indices in holders.items()})
    # The heap returns its smallest entry, so totals are negated and bytes complemented.
    # The mark at the end is greater than all bytes, so a token comes before its prefixes.
    order = {chr(byte): chr(255 - byte) + "\u0100" for byte in range(256)}
    heap = [(-total, order[pair[0]] + order[pair[1]], pair) for pair, total in totals.items()]
    heapify(heap)
    merges: list[tuple[int, int]] = []
    for new in map(chr, tqdm(range(256, 256 + number), "merging", disable=not progress)):
        while heap:
            negative, key, pair = heappop(heap)
            if totals[pair] == -negative:
                break
            if totals[pair]:  # earlier merges have removed some of its occurrences
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
    """Return the number of merges in a vocabulary of this size. Raises NanoEulerError if the size is impossible."""
    smallest = 256 + len(special_tokens)
    if not smallest <= vocab_size <= MAX_VOCAB_SIZE:
        expected = f"{smallest} (256 bytes and {len(special_tokens)} special tokens) to {MAX_VOCAB_SIZE}"
        raise NanoEulerError(f"vocab_size must be {expected}, got {vocab_size}")
    return vocab_size - smallest


# Encoding and decoding


def merge_by_rank(ids: list[int], id_of_pair: Mapping[tuple[int, int], int]) -> list[int]:
    """Merge neighbours in a word until no known pair is left, always the pair merged first in training.

    ids: the ids of the word's bytes, changed in place; id_of_pair: pair of ids -> new
    id, in the order of training. Returns the ids of the word's tokens. Chapter A4.
    """
    find, none = id_of_pair.get, MAX_VOCAB_SIZE
    new_ids = list(map(find, pairwise(ids), repeat(none)))  # the id that each neighbouring pair would become
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
    """Merge neighbours in a long word by one pass over all merges; the result is that of `merge_by_rank`.

    It is faster for long words, because it does not search for the smallest id after each merge. One pass in the order
    of training is enough, since the parts of a token come from earlier merges.
    """
    tokens = ids.decode("latin-1")
    for (a, b), new in id_of_pair.items():
        tokens = tokens.replace(chr(a) + chr(b), chr(new))
    return list(map(ord, tokens))


class _Words(dict):
    """A cache of the ids of each word, as the bytes of an array; the first `words[word]` computes them."""

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
    """A cache of the ids of each piece and the space before it, as the bytes of an array."""

    def __init__(self, words: _Words) -> None:
        self.words = words

    def __missing__(self, piece: str) -> bytes:
        words = [" " + piece] if piece.isalpha() else split_words(" " + piece)
        ids = b"".join(map(self.words.__getitem__, words))
        if len(piece) <= _LONG:
            self[piece] = ids
        return ids


class Tokenizer:
    """Encode text to token ids and decode them, with a byte-level BPE vocabulary.

    Ids 0 to 255 are bytes, then come the tokens that merges create, in the order of training, then special tokens.
    merges: pairs of ids, each smaller than the id that the merge creates. special_tokens: their texts, in the order of
    their ids. byte_order: the 256 byte values in the order of their ids, by default 0 to 255; GPT-2's differs. Raises
    NanoEulerError if a merge could never be applied, or if special tokens are empty, repeated or not printable.

    Attributes: merges; vocab_size; token_bytes, the bytes of each id; token_lengths, an int32 array [vocab_size] with
    the number of bytes of text of each id (0 for a special token, which is not text); special_tokens, text -> id; dtype
    of arrays of ids (uint16 for at most 65,536 tokens, else uint32); byte_order; begin and end, the ids before and
    after a document: both are the id of <|endoftext|>, or None.
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
        """Learn a vocabulary of vocab_size tokens, including special tokens, or fewer if the text has no more pairs.

        source: a text (str), a file (Path), or several of either. Special tokens in it separate documents and are
        not learnt from. processes: number of processes that count words in files (a text is counted by one);
        progress: show progress bars. Raises NanoEulerError if a file cannot be read or vocab_size is impossible.
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
        """Encode a text to ids, a new array [n] of `dtype`.

        The text of a special token is treated as ordinary text, unless allowed_special contains it or is "all".
        Raises NanoEulerError if the text contains half a surrogate pair, which has no UTF-8 form.
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
                    if number == 0:  # the only piece without a space before it
                        ids += map(words.__getitem__, split_words(first))
                    ids.append(b"".join(map(pieces.__getitem__, rest)))
                    for cache in (words, pieces):
                        if len(cache) > _CACHED:
                            cache.clear()
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            raise NanoEulerError(f"text must be Unicode, got {half}, half a surrogate pair") from None
        return np.frombuffer(bytearray().join(ids), self.dtype)

    def encode_bytes(self, data: bytes, allowed_special: Collection[str] = frozenset()) -> np.ndarray:
        """Encode UTF-8 bytes as `encode` does text; invalid bytes are kept, and pretokenized like punctuation."""
        return self.encode(data.decode("utf-8", "surrogateescape"), allowed_special)

    def encode_file(
        self, path: PathLike, allowed_special: Collection[str] = frozenset(), processes: int = 1
    ) -> np.ndarray:
        """Encode a UTF-8 file as `encode_bytes`, by several processes. Raises NanoEulerError if it cannot be read."""
        encode = partial(self.encode, allowed_special=list(self._allowed(allowed_special)))
        tasks = _file_tasks([path], self.special_tokens, processes)
        return np.concatenate(list(_run(encode, tasks, processes)))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Decode ids [n] to bytes. Raises NanoEulerError if ids is not a row of integers in the vocabulary."""
        ids = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids))
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise NanoEulerError(f"ids must be one row of integers, got {ids.dtype} of shape {ids.shape}")
        for id in (ids.min(), ids.max()) if ids.size else ():
            if not 0 <= id < self.vocab_size:
                raise NanoEulerError(f"token ids must be 0 to {self.vocab_size - 1}, got {id}")
        return b"".join(map(self.token_bytes.__getitem__, ids.tolist()))

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids [n] to text; invalid UTF-8, as in half a character, becomes U+FFFD. Raises as `decode_bytes`."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def _allowed(self, allowed_special: Collection[str]) -> Collection[str]:
        if allowed_special == "all":
            return self.special_tokens
        if isinstance(allowed_special, str) or not self.special_tokens.keys() >= set(allowed_special):
            expected = f'"all" or some of {list(self.special_tokens)}'
            raise NanoEulerError(f"allowed_special must be {expected}, got {allowed_special!r}")
        return allowed_special

    def __reduce__(self) -> tuple:
        return Tokenizer, (self.merges, list(self.special_tokens), self.byte_order)

    # Files

    def save(self, path: PathLike) -> None:
        """Write the vocabulary to a JSON file. Raises NanoEulerError if that fails, and then leaves no partial file."""
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
        """Read a vocabulary that `save` wrote. Raises NanoEulerError, which names the fault, for any other file."""
        content = read_json(path)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise NanoEulerError(f'{path}: must be a tokenizer, a JSON object with "format": "{_FORMAT}"')
        if content.get("version") != _VERSION:
            raise NanoEulerError(f"{path}: version must be {_VERSION}, got {short(content.get('version'))}")
        merges, names, byte_order = (content.get(key, ()) for key in ("merges", "special_tokens", "byte_order"))
        if not all(isinstance(value, list) for value in (merges, names, byte_order)):
            raise NanoEulerError(f"{path}: merges, special_tokens and byte_order must be lists")
        for number, pair in enumerate(merges):
            if not (isinstance(pair, list) and len(pair) == 2 and all(type(id) is int for id in pair)):
                raise NanoEulerError(f"{path}: merge {number} must be two token ids, got {short(pair)}")
        try:
            tokenizer = cls(merges, names, byte_order)
        except NanoEulerError as error:
            raise NanoEulerError(f"{path}: {error}") from None
        if content.get("vocab_size") != tokenizer.vocab_size:
            size = short(content.get("vocab_size"))
            expected = f"256 + {len(merges)} merges + {len(names)} special tokens = {tokenizer.vocab_size}"
            raise NanoEulerError(f"{path}: vocab_size must be {expected}, got {size}")
        return tokenizer

    @classmethod
    def from_gpt2(cls, encoder_json: PathLike, vocab_bpe: PathLike) -> "Tokenizer":
        """Read GPT-2's original files, which write each byte as a character.

        encoder_json: token -> id; vocab_bpe: the merges in order. Raises NanoEulerError unless the ids are in our
        order: bytes, merges, special tokens.
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
            raise NanoEulerError(f"{encoder_json} must fit {vocab_bpe}: {expected}")
        merges = [(id_of.get(a, -1), id_of.get(b, -1)) for a, b in pairs]
        return cls(merges, tokens[first_special:], [byte_of[token] for token in tokens[:256]])


def byte_characters() -> dict[str, int]:
    """Return the characters that GPT-2's files write for bytes: character -> byte."""
    byte_values = [*range(33, 127), *range(161, 173), *range(174, 256)]  # these bytes are written as they are,
    byte_values += [byte for byte in range(256) if byte not in byte_values]  # the others as characters from 256 on
    return {chr(byte if i < 188 else i + 68): byte for i, byte in enumerate(byte_values)}


def _read_text(path: PathLike) -> str:
    try:
        if os.path.getsize(path) > _MAX_FILE_BYTES:
            raise NanoEulerError(f"{path}: a tokenizer must have at most {_MAX_FILE_BYTES} bytes, got more")
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise NanoEulerError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise NanoEulerError(f"{path}: must be a UTF-8 text file, got other bytes at byte {error.start}") from None


def read_json(path: PathLike) -> object:
    """Return the content of a JSON file. Raises NanoEulerError if it cannot be read, is too large or is not JSON."""
    text = _read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also if a number has thousands of digits
        raise NanoEulerError(f"{path}: not JSON ({error})") from None


# Checking a vocabulary


def _checked_special_tokens(special_tokens: Iterable[str]) -> list[str]:
    names = [special_tokens] if isinstance(special_tokens, str) else list(special_tokens)
    for name in names:
        if not (isinstance(name, str) and name and name.isprintable() and names.count(name) == 1):
            raise NanoEulerError(f"special tokens must be printable texts that occur once each, got {short(name)}")
    return names


def _checked_tokens(merges: Sequence[tuple[int, int]], byte_order: Sequence[int], specials: int) -> list[bytes]:
    """Return the bytes of each id below the special tokens, after checking that encoding can apply every merge."""
    if not all(type(byte) is int for byte in byte_order) or sorted(byte_order) != list(range(256)):
        raise NanoEulerError(f"byte_order must hold each integer from 0 to 255 once, got {short(byte_order)}")
    if (size := 256 + len(merges) + specials) > MAX_VOCAB_SIZE:
        raise NanoEulerError(f"a vocabulary must have at most {MAX_VOCAB_SIZE} tokens, got {size}")
    tokens = [bytes([byte]) for byte in byte_order]
    id_of_pair: dict[tuple[int, int], int] = {}
    length = 0
    for new, (a, b) in enumerate(merges, 256):
        if not (0 <= a < new and 0 <= b < new):
            merge = f"merge {new - 256} must be two earlier ids, 0 to {new - 1}"
            raise NanoEulerError(f"{merge}, got {short((a, b))}")
        merge = f"merge {new - 256}"
        if (a, b) in id_of_pair:
            raise NanoEulerError(f"{merge} must be a new pair, got ({a}, {b}), which is merge {id_of_pair[a, b] - 256}")
        if _merged_across(a, b, merges, id_of_pair):
            raise NanoEulerError(f"{merge} must be a pair that earlier merges leave as neighbours, got ({a}, {b})")
        length += len(tokens[a]) + len(tokens[b])
        if length > _MAX_TOKEN_BYTES:
            raise NanoEulerError(f"all tokens must have at most {_MAX_TOKEN_BYTES} bytes together, got more at {merge}")
        tokens.append(tokens[a] + tokens[b])
        id_of_pair[a, b] = new
    return tokens


def _merged_across(
    a: int, b: int, merges: Sequence[tuple[int, int]], id_of_pair: Mapping[tuple[int, int], int]
) -> bool:
    """Return whether encoding the text of a and b merges across the border between them, and so never reaches (a, b).

    To the left of the border, the last byte of a grows step by step until it is a; to the right, the first byte of b
    grows until it is b. Two such neighbours merge across the border if their pair is merged before either grows. Equal
    pairs merge from left to right, so if the same merge also makes the right one grow, the merge across comes first.
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


# Distributing work over processes

_Task = str | tuple[PathLike, int, int]  # a text, or a file with the bytes where to start and stop


def _file_tasks(paths: Sequence[PathLike], special_tokens: Collection[str], processes: int) -> list[_Task]:
    """Cut files where the parts can be tokenized separately: before a space and a letter, away from special tokens."""
    if processes < 1:
        raise NanoEulerError(f"processes must be 1 or more, got {processes}")
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
    """Yield function(text) for the text of each task in order, computed by at most `processes` processes."""
    processes = min(processes, len(tasks))
    if processes <= 1:
        yield from (function(_text(task)) for task in tasks)
        return
    # On Linux we fork, so workers start at once and share the tokenizer's memory. Python 3.12 warns about locks that
    # other threads may hold during a fork; the workers only read files and run Python code, which needs no lock.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pool = context.Pool(processes, _start_worker, (function,))
    with pool:
        yield from pool.imap(_work, tasks)


_function: Callable[[str], object]  # a worker's function, kept between tasks, because a tokenizer caches pieces


def _start_worker(function: Callable[[str], object]) -> None:
    global _function
    _function = function


def _work(task: _Task) -> object:
    return _function(_text(task))
