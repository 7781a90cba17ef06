"""Deduplication: find documents with the same words as an earlier one, or nearly the same (MinHash). Chapter 31.

Two texts are compared by their words. Capitals, punctuation, spaces, invisible characters and the Unicode form of a
letter (composed or not; we use NFC) are ignored. In scripts without spaces between words (Chinese, Japanese, Thai, ...)
each character is a word. Two texts are near-duplicates if their shingles (runs of five consecutive words) have a
Jaccard similarity of at least 0.8: the number of shared shingles divided by the number of all shingles of both.

MinHash (Broder 1997) estimates the similarity: in a random order of all shingles, it is the probability that the first
shingle of one text is also the first of the other. We compare 128 such first shingles, which at 0.8 gives a standard
error of 0.035. A single hash per shingle is enough: it puts the shingle into one of 128 bins, the smallest hash of each
bin is kept, and an empty bin copies another bin, chosen by a fixed list (Shrivastava 2017, "Optimal Densification").

To avoid comparing all pairs, ten bands of six bins each are looked up in a table (Leskovec, Rajaraman, Ullman, "Mining
of Massive Datasets", 3.4). A pair with similarity 0.8 is found with probability 1 - (1 - 0.8^6)^10 = 0.95, with 0.9 in
0.9995 and with 0.5 in 0.15 of cases, and its similarity is then measured. A text that is a small part of another one is
not a duplicate, so a story stays even if a book of stories contains it.
"""

import hashlib
import re
import unicodedata
import zlib
from dataclasses import dataclass

import numpy as np

SHINGLE = 5  # words
BINS, BANDS, ROWS = 128, 10, 6
THRESHOLD = 0.8
EMPTY = np.uint64(2**64 - 1)
MARKS = "“”„‘’—–…«»\u00a0"  # punctuation and spaces outside ASCII
MARKS += "\u2010\u2011\u2028\u2029\u202f\u205f\u3000、。「」『』【】〈〉《》〜・！？，．：；（）" + "".join(
    map(chr, range(0x2000, 0x200B))
)
UNSEEN = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u202a\u202b\u202c\u2066\u2067\u2068\u2069"
# Thai, Lao, Myanmar, Khmer, kana and Chinese characters. LEADS are the bytes that can start one of them in UTF-8.
UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff])"
)
LEADS = b"\xe0\xe1\xe3\xe4\xe5\xe6\xe7\xe8\xe9\xef\xf0"
SPACES = bytes(code if code > 127 or chr(code).isalnum() else 32 for code in range(256))


@dataclass(frozen=True)
class Twin:
    """Name an earlier document that this one duplicates, with the estimated similarity, or None for equal words."""

    name: str
    similarity: float | None = None


class Seen:
    """Remember the documents seen so far, in about 2 KB each, and find duplicates among them.

    seed: determines the random order of shingles; near: whether to find near-duplicates as well as equal words.
    """

    def __init__(self, seed: int = 0, near: bool = True):
        rng = np.random.default_rng(seed)
        self.salt = rng.integers(0, 2**64, dtype=np.uint64)
        self.others = np.stack([rng.permutation(BINS) for _ in range(BINS)])  # [BINS, BINS]
        self.near, self.names = near, []
        self.sketches = np.empty((64, BINS), np.uint32)
        self.exact: dict[bytes, int] = {}
        self.bands: dict[bytes, int] = {}

    @property
    def rule(self) -> str:
        """The rule for duplicates in words, for report.json."""
        return "the same words" + f", or {THRESHOLD} of the shingles of {SHINGLE} words" * self.near

    def twin(self, name: str, text: str) -> Twin | None:
        """Return the earlier document that this one duplicates; if there is none, remember it and return None."""
        words = words_of(text)
        digest = hashlib.blake2b(b" ".join(words) or text.strip().encode(), digest_size=12).digest()
        if digest in self.exact:
            return Twin(self.names[self.exact[digest]])
        twin = self._nearly(words) if self.near and words else None
        if twin is None:
            self.exact[digest] = len(self.names)
            self.names.append(name)
        return twin

    def _nearly(self, words):
        """Return the earlier near-duplicate; if there is none, store this document's sketch and return None."""
        sketch = self._sketch(words)
        keys = [bytes([band]) + sketch[ROWS * band : ROWS * (band + 1)].tobytes() for band in range(BANDS)]
        for index in sorted({self.bands[key] for key in keys if key in self.bands}):
            similarity = float(np.mean(self.sketches[index] == sketch))
            if similarity >= THRESHOLD:
                return Twin(self.names[index], similarity)
        index = len(self.names)
        if index >= len(self.sketches):
            self.sketches = np.concatenate([self.sketches, np.empty((1 + index, BINS), np.uint32)])
        self.sketches[index] = sketch
        for key in keys:
            self.bands.setdefault(key, index)
        return None

    def _sketch(self, words):
        """Return the smallest hash of each bin, [BINS] uint32."""
        hashes, first = _shingles(words, self.salt), np.full(BINS, EMPTY)
        np.minimum.at(first, (hashes % np.uint64(BINS)).astype(np.intp), hashes // np.uint64(BINS))
        if len(hashes) and (empty := np.flatnonzero(first == EMPTY)).size:
            others = self.others[empty]  # [n, BINS]: the bins to copy from, in order
            filled = (first[others] != EMPTY).argmax(axis=1)
            first[empty] = first[others[np.arange(len(empty)), filled]]
        return first.astype(np.uint32)


def words_of(text: str) -> list[bytes]:
    """Return the words of a text in UTF-8, normalised for comparison: small letters, no punctuation."""
    text = unicodedata.normalize("NFC", text).casefold()
    if not text.isascii():
        for mark in MARKS:
            text = text.replace(mark, " ")
        for sign in UNSEEN:
            text = text.replace(sign, "")
    data = text.encode()
    if any(lead in data for lead in LEADS):  # otherwise no character can be in UNSPACED
        data = UNSPACED.sub(r" \1 ", text).encode()
    return data.translate(SPACES).split()


def _shingles(words, salt):
    """Return a hash of each run of five consecutive words, uint64 [n]; a shorter text is a single run."""
    hashes = np.fromiter(map(zlib.crc32, words), np.uint64, len(words)) ^ salt
    width = min(SHINGLE, len(words))
    shingles = np.zeros(max(0, len(words) - width + 1), np.uint64)
    for place in range(width):
        shingles = (shingles + hashes[place : place + len(shingles)]) * np.uint64(0x9E3779B97F4A7C15)
        shingles ^= shingles >> np.uint64(29)
    return shingles
