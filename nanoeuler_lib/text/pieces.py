"""Vocabularies that other programs made: pieces in any order, merged by rank inside words as that program cuts them.

Two kinds are read. Byte-level ones (GPT-2, SmolLM2, Llama 3) cut a text by a pattern, and each word begins as bytes.
SentencePiece's (Llama 2, TinyLlama, Mistral, llama2.c) put a space before the text and cut nothing: it begins as
characters, or as the bytes of a character that is no piece. Both then merge the two neighbours whose merge ranks first.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np

from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import write_text
from nanoeuler_lib.text.tokenizer import (
    _NUMBER,
    _SPACE,
    PathLike,
    Tokenizer,
    _split_special,
    read_json,
    split_words,
)

FORMAT = "nanoeuler-pieces-1"
META = "▁"  # how SentencePiece writes a space

_DIGIT = re.compile(rf"([\d{_NUMBER}])")
_LLAMA3 = re.compile(
    rf"'(?i:[sdmt]|ll|ve|re)|(?:[^\w\r\n]|_)?[^\W\d_{_NUMBER}]+|[\d{_NUMBER}]{{1,3}}"
    rf"| ?(?:[^\w{_SPACE}]|_)+[\r\n]*|[{_SPACE}]*[\r\n]+|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
)


def split_digits(text: str) -> list[str]:
    """Cut text into words by GPT-2's pattern, each digit apart (SmolLM2)."""
    parts = enumerate(_DIGIT.split(text))
    return [word for turn, part in parts for word in ([part] if turn % 2 else split_words(part))]


def after_space(text: str) -> list[str]:
    """The text behind a space, as one word (llama2.c)."""
    return [" " + text] if text else []


def after_meta(text: str) -> list[str]:
    """As `after_space`; SentencePiece's sign for a space is one (Llama 2)."""
    return after_space(text.replace(META, " "))


def after_one_space(text: str) -> list[str]:
    """As `after_meta`, where no space begins the text already (Hugging Face's newer conversions)."""
    text = text.replace(META, " ")
    return [text] if text.startswith(" ") else after_space(text)


CUTS: dict[str, Callable[[str], list[str]]] = {
    "gpt2": split_words, "digits": split_digits, "llama3": _LLAMA3.findall,
    "space": after_space, "meta": after_meta, "one space": after_one_space,
}  # fmt: skip
BYTE_LEVEL = "gpt2", "digits", "llama3"


def merge_by_priority(ids: Iterable[int], merges: Mapping[tuple[int, int], tuple[int, int]]) -> list[int]:
    """Merge neighbours until no pair is known, each time the pair of the lowest priority, of equals the leftmost.

    merges: pair of ids -> (priority, the id it becomes). In n log n steps, for words as long as a text.
    """
    ids = list(ids)
    n = len(ids)
    before, behind = list(range(-1, n - 1)), list(range(1, n + 1))  # the neighbours that are left of each place

    def entry(i):
        pair = (ids[i], ids[behind[i]])
        return (merges[pair][0], i, pair) if pair in merges else None

    heap = [found for i in range(n - 1) if (found := entry(i))]
    heapify(heap)
    while heap:
        _, i, pair = heappop(heap)
        j = behind[i]
        if j == n or (ids[i], ids[j]) != pair:  # one of the two is merged already
            continue
        ids[i], ids[j], behind[i] = merges[pair][1], -1, behind[j]
        if behind[i] < n:
            before[behind[i]] = i
        for left in (before[i], i):
            if left >= 0 and behind[left] < n and (found := entry(left)):
                heappush(heap, found)
    return [id for id in ids if id >= 0]


class PieceTokenizer(Tokenizer):
    """A vocabulary of pieces, with the methods of a `Tokenizer` (but for training and for files of text).

    pieces: the bytes of each id; merges: rows (left id, right id, new id, priority); special_tokens: text -> id;
    fallback: the 256 ids that stand for single bytes; cut: a name in CUTS; begin, end: ids before and behind a
    document, or None; whole: a word that is a piece is not merged. Where a space is put before the text, decoding takes
    it away, and it counts as a byte of the text. Raises NanoEulerError for what does not fit together.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        merges: Iterable[Sequence[int]],
        special_tokens: Mapping[str, int],
        fallback: Sequence[int],
        cut: str,
        begin: int | None = None,
        end: int | None = None,
        whole: bool = False,
    ) -> None:
        self.token_bytes, self.merges = list(pieces), [tuple(row) for row in merges]
        self.special_tokens, self.fallback, self.cut = dict(special_tokens), list(fallback), cut
        self.begin, self.end, self.whole = begin, end, whole
        size = self.vocab_size = len(self.token_bytes)
        named = [*self.special_tokens.values(), *(id for id in (begin, end) if id is not None)]
        known = [*named, *self.fallback, *(id for row in self.merges for id in row[:3])]
        if odd := [id for id in known if not 0 <= id < size]:
            raise NanoEulerError(f"token id is {short(odd[0])}, expected 0 to {size - 1}")
        if [self.token_bytes[id] for id in self.fallback] != [bytes([byte]) for byte in range(256)]:
            raise NanoEulerError("fallback: expected the id of each single byte, in their order")
        lengths = np.array([len(piece) for piece in self.token_bytes], np.int32)
        lengths[list(self.special_tokens.values())] = 0
        self.token_lengths, self.dtype = lengths, np.dtype(np.uint16 if size <= 1 << 16 else np.uint32)
        self._known: dict[str, list[int]] = {}

    @cached_property
    def _merges(self):
        return {(left, right): (priority, new) for left, right, new, priority in self.merges}

    @cached_property
    def _id_of(self):
        """The id of each piece that text may begin or be as: bytes and special tokens are none."""
        if self.cut in BYTE_LEVEL:
            others = set(self.special_tokens.values())
        else:
            others = {*self.special_tokens.values(), *self.fallback}
        return {piece: id for id, piece in enumerate(self.token_bytes) if id not in others}

    def encode(self, text: str, allowed_special: Collection[str] = frozenset()) -> np.ndarray:
        """As `Tokenizer.encode`."""
        ids: list[int] = []
        try:
            for turn, part in enumerate(_split_special(text, self._allowed(allowed_special))):
                if turn % 2:
                    ids.append(self.special_tokens[part])
                    continue
                for word in CUTS[self.cut](part):
                    if word not in self._known:
                        if len(self._known) > 1 << 16:
                            self._known.clear()
                        self._known[word] = self._word(word)
                    ids += self._known[word]
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            raise NanoEulerError(f"text holds {half}, half a surrogate pair: expected Unicode") from None
        return np.array(ids, self.dtype)

    def _word(self, word):
        data = word.encode()
        if self.whole and data in self._id_of:
            return [self._id_of[data]]
        if self.cut in BYTE_LEVEL:
            return merge_by_priority((self.fallback[byte] for byte in data), self._merges)
        ids: list[int] = []
        for character in word:
            id = self._id_of.get(character.encode())
            ids += [self.fallback[byte] for byte in character.encode()] if id is None else [id]
        return merge_by_priority(ids, self._merges)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """As `Tokenizer.decode_bytes`; the space that was put before a text is taken away again."""
        data = super().decode_bytes(ids)
        return data if self.cut in BYTE_LEVEL else data.removeprefix(b" ")

    def encode_file(self, path, allowed_special=frozenset(), processes=1):
        """Not for these vocabularies: raises NanoEulerError."""
        raise NanoEulerError(f"{path}: this vocabulary is another program's, expected text in memory")

    def with_special(self, names: Iterable[str]) -> "PieceTokenizer":
        """The same vocabulary with further special tokens behind it."""
        names = list(names)
        special = self.special_tokens | {name: id for id, name in enumerate(names, self.vocab_size)}
        pieces = self.token_bytes + [name.encode() for name in names]
        return PieceTokenizer(pieces, self.merges, special, *self._rest())

    def _rest(self):
        return self.fallback, self.cut, self.begin, self.end, self.whole

    def __reduce__(self) -> tuple:
        return PieceTokenizer, (self.token_bytes, self.merges, self.special_tokens, *self._rest())

    def save(self, path: PathLike) -> None:
        """As `Tokenizer.save`."""
        content = {
            "format": FORMAT, "pieces": [piece.decode("latin-1") for piece in self.token_bytes],
            "merges": self.merges, "special_tokens": self.special_tokens, "fallback": self.fallback,
            "cut": self.cut, "begin": self.begin, "end": self.end, "whole": self.whole,
        }  # fmt: skip
        write_text(os.fspath(path), json.dumps(content, separators=(",", ":")) + "\n")


def load(path: PathLike) -> Tokenizer:
    """The tokenizer that `Tokenizer.save` or `PieceTokenizer.save` wrote. Raises NanoEulerError for anything else."""
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return Tokenizer.load(path)
    try:
        if content["cut"] not in CUTS or type(content["whole"]) is not bool:
            raise ValueError(f"cut is {short(content['cut'])}, expected one of {', '.join(CUTS)}")
        rows = [(int(a), int(b), int(new), int(rank)) for a, b, new, rank in content["merges"]]
        pieces = [piece.encode("latin-1") for piece in content["pieces"]]
        special = {name: int(id) for name, id in content["special_tokens"].items()}
        fallback = [int(id) for id in content["fallback"]]
        edges = [None if content[name] is None else int(content[name]) for name in ("begin", "end")]
        return PieceTokenizer(pieces, rows, special, fallback, content["cut"], *edges, content["whole"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise NanoEulerError(f"{path}: {short(str(error))}: truncated or edited") from None
