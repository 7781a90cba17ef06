"""Tokenizers for the vocabularies of other models, such as SmolLM2, Llama and Mistral. Used by `formats`; chapter 34.

There are two kinds. Byte-level tokenizers (GPT-2, SmolLM2, Llama 3) cut a text into words by a pattern and start from
the bytes of each word. SentencePiece tokenizers (Llama 2, TinyLlama, Mistral, llama2.c) put a space before the text,
treat it as a single word and start from its characters; a character without a token of its own is replaced by its
bytes. Then both kinds repeatedly merge the neighbouring pair with the best rank.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np

from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import one_line, write_text
from nanoeuler_lib.text.tokenizer import _NUMBER, _SPACE, PathLike, Tokenizer, _split_special, read_json, split_words

FORMAT = "nanoeuler-pieces-1"
META = "▁"  # SentencePiece's character for a space

_DIGIT = re.compile(rf"([\d{_NUMBER}])")
_LLAMA3 = re.compile(
    rf"'(?i:[sdmt]|ll|ve|re)|(?:[^\w\r\n]|_)?[^\W\d_{_NUMBER}]+|[\d{_NUMBER}]{{1,3}}"
    rf"| ?(?:[^\w{_SPACE}]|_)+[\r\n]*|[{_SPACE}]*[\r\n]+|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
)


def split_digits(text: str) -> list[str]:
    """Cut text into words by GPT-2's pattern, with every digit as a separate word."""
    parts = enumerate(_DIGIT.split(text))
    return [word for turn, part in parts for word in ([part] if turn % 2 else split_words(part))]


_Cut = Callable[[str], Iterable[str]]
BYTE_LEVEL: dict[str, _Cut] = {"gpt2": split_words, "digits": split_digits, "llama3": _LLAMA3.findall}
WHOLE: dict[str, _Cut] = {  # a space and the text, as one word
    "space": lambda text: [" " + text] if text else [],  # llama2.c
    "meta": lambda text: [" " + text.replace(META, " ")] if text else [],  # Llama 2
    "one space": lambda text: [re.sub(r"^(?=[^ ])", " ", text.replace(META, " "))] if text else [],  # newer conversions
}


def merge_by_priority(ids: Iterable[int], merges: Mapping[tuple[int, int], tuple[int, int]]) -> list[int]:
    """Merge neighbouring ids until no pair is in `merges`, always the pair with the lowest priority number.

    merges: pair of ids -> (priority, new id). Of pairs with the same priority, the leftmost is merged first. Returns
    the new ids. The time grows as n log n, since a word can be as long as a whole text.
    """
    ids = list(ids)
    n = len(ids)
    before, behind = list(range(-1, n - 1)), list(range(1, n + 1))  # nearest remaining places
    heap = [(merges[pair][0], i, pair) for i, pair in enumerate(pairwise(ids)) if pair in merges]
    heapify(heap)
    while heap:
        _, i, pair = heappop(heap)
        j = behind[i]
        if j == n or (ids[i], ids[j]) != pair:  # one of the two has already been merged
            continue
        ids[i], ids[j], behind[i] = merges[pair][1], -1, behind[j]
        if behind[i] < n:
            before[behind[i]] = i
        for left in (before[i], i):
            if left >= 0 and behind[left] < n and (new := (ids[left], ids[behind[left]])) in merges:
                heappush(heap, (merges[new][0], left, new))
    return [id for id in ids if id >= 0]


class PieceTokenizer(Tokenizer):
    """Encode and decode with another program's vocabulary; the methods are those of `Tokenizer`.

    Training and encoding of files are not supported. pieces: the bytes of each id; merges: rows (left id, right id,
    new id, priority); special_tokens: text -> id; fallback: the 256 ids of the single bytes; cut: a name in BYTE_LEVEL
    or WHOLE; begin, end: ids before and after a document, or None; whole: if a complete word has an id, use it without
    merging. A space that is put before a text is counted as one of its bytes; decoding removes it. Raises
    NanoEulerError if an id is out of range or `fallback` does not list the single bytes.
    """

    merges: list[tuple[int, ...]]  # type: ignore[assignment]  # left, right, new, priority

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
        self.begin, self.end, self.whole, size = begin, end, whole, len(self.token_bytes)
        special = set(self.special_tokens.values())
        edges, in_merges = {begin, end} - {None}, {id for row in self.merges for id in row[:3]}
        known = {*special, *self.fallback} | in_merges | edges
        if odd := [id for id in known if type(id) is not int or not 0 <= id < size]:
            raise NanoEulerError(f"token ids must be 0 to {size - 1}, got {short(odd[0])}")
        if [self.token_bytes[id] for id in self.fallback] != [bytes([byte]) for byte in range(256)]:
            raise NanoEulerError("fallback must hold the ids of the bytes 0 to 255 in order, got other tokens")
        self.vocab_size, self.dtype = size, np.dtype(np.uint16 if size <= 1 << 16 else np.uint32)
        self.token_lengths = np.array([len(piece) for piece in self.token_bytes], np.int32)
        self.token_lengths[list(special)] = 0
        self._cut = (BYTE_LEVEL | WHOLE)[cut]
        self._pairs = {(left, right): (priority, new) for left, right, new, priority in self.merges}
        unread = special if cut in BYTE_LEVEL else special.union(self.fallback)
        self._id_of = {piece: id for id, piece in enumerate(self.token_bytes) if id not in unread}
        self._ids_of = lru_cache(1 << 16)(self._word)

    def encode(self, text: str, allowed_special: Collection[str] = frozenset()) -> np.ndarray:
        """Encode a text to ids, as `Tokenizer.encode` does; the errors are the same."""
        ids: list[int] = []
        try:
            for turn, part in enumerate(_split_special(text, self._allowed(allowed_special))):
                for word in () if turn % 2 else self._cut(part):
                    ids += self._ids_of(word)
                ids += [self.special_tokens[part]] if turn % 2 else []
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])
            raise NanoEulerError(f"text must be Unicode, got {half}, half a surrogate pair") from None
        return np.array(ids, self.dtype)

    def _word(self, word):
        data = word.encode()
        if self.whole and data in self._id_of:
            return [self._id_of[data]]
        parts = [data] if self.cut in BYTE_LEVEL else map(str.encode, word)
        start = {} if self.cut in BYTE_LEVEL else self._id_of
        ids = (
            id for part in parts for id in ([start[part]] if part in start else map(self.fallback.__getitem__, part))
        )
        return merge_by_priority(ids, self._pairs)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Decode ids to bytes, as `Tokenizer.decode_bytes` does, without the space that encoding puts before a text."""
        data = super().decode_bytes(ids)
        return data if self.cut in BYTE_LEVEL else data.removeprefix(b" ")

    def encode_file(self, path, allowed_special=frozenset(), processes=1):
        """Raise NanoEulerError: words of these vocabularies may cross every place where a file could be cut."""
        raise NanoEulerError(f"{path}: files cannot be encoded with another program's vocabulary: use encode(text)")

    @property
    def byte_order(self) -> list[int]:  # type: ignore[override]  # it only raises
        """Raise NanoEulerError, because special tokens cannot be added to these vocabularies."""
        raise NanoEulerError("tokens can be added only to a vocabulary of this library, got another program's")

    def __reduce__(self) -> tuple:
        rest = self.fallback, self.cut, self.begin, self.end, self.whole
        return PieceTokenizer, (self.token_bytes, self.merges, self.special_tokens, *rest)

    def save(self, path: PathLike) -> None:
        """Write the vocabulary as one JSON file, which `load` reads. Raises NanoEulerError if that fails."""
        pieces, *rest = self.__reduce__()[1]
        content = {"format": FORMAT, "arguments": [[piece.decode("latin-1") for piece in pieces], *rest]}
        write_text(os.fspath(path), json.dumps(content, separators=(",", ":")) + "\n")


def load(path: PathLike) -> Tokenizer:
    """Read a tokenizer that `save` wrote. Raises NanoEulerError if the file is missing, damaged or of another kind."""
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return Tokenizer.load(path)
    try:
        pieces, *rest = content["arguments"]
        return PieceTokenizer([piece.encode("latin-1") for piece in pieces], *rest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NanoEulerError(f"{path}: {one_line(str(error), 200)}: the file is truncated or was edited") from None
