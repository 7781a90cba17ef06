"""Documents that say the same: word for word, or nearly.

Two texts are compared by their words: capitals, punctuation and spaces do not count, nor how Unicode writes a letter
(composed or not, NFC) and signs that are not seen. In scripts without spaces between words (Chinese, Japanese, Thai,
...) each character counts as a word. Nearly the same are texts that
share most of their shingles (five consecutive words): Jaccard similarity, shared shingles over all shingles of both, of
0.8 or more. It is estimated by MinHash (Broder 1997): in a random order of all shingles, the first of one text is the
first of the other with just that probability. Of 128 such firsts about 0.8 x 128 agree, with a standard error of 0.035.
One hash of each shingle gives them all: it falls into one of 128 bins, the first of each bin counts, and an empty bin
takes the first of another bin, by a fixed list (Shrivastava 2017, "Optimal Densification").

To find candidates without comparing all with all, ten bands of six firsts are looked up (Leskovec, Rajaraman, Ullman,
"Mining of Massive Datasets", 3.4): a pair at 0.8 is found with probability 1 - (1 - 0.8^6)^10 = 0.95, at 0.9 with
0.9995, at 0.5 with 0.15, and is then measured. A text that is a small part of another does not count as the same: a
story in a book of stories stays.
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
# Thai, Lao, Myanmar, Khmer, kana, Chinese characters; and the first bytes in UTF-8 of what may be one.
UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff])"
)
LEADS = b"\xe0\xe1\xe3\xe4\xe5\xe6\xe7\xe8\xe9\xef\xf0"
SPACES = bytes(code if code > 127 or chr(code).isalnum() else 32 for code in range(256))


@dataclass(frozen=True)
class Twin:
    """An earlier document like this one: its name, and the estimated similarity, None if its words are the same."""

    name: str
    similarity: float | None = None


class Seen:
    """The documents so far. seed: of the random order; near: whether nearly the same counts. Holds 2 KB a document."""

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
        """In words, when a document counts as there before."""
        return "the same words" + f", or {THRESHOLD} of the shingles of {SHINGLE} words" * self.near

    def twin(self, name: str, text: str) -> Twin | None:
        """The earlier document like this one. If there is none, this one is remembered under its name."""
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
        """The earlier document nearly like this one. If there is none, this one's sketch is kept at the next index."""
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
        """The first shingle of each bin: [BINS] uint32."""
        hashes, first = _shingles(words, self.salt), np.full(BINS, EMPTY)
        np.minimum.at(first, (hashes % np.uint64(BINS)).astype(np.intp), hashes // np.uint64(BINS))
        if len(hashes) and (empty := np.flatnonzero(first == EMPTY)).size:
            others = self.others[empty]  # [n, BINS]: where each empty bin looks, in this order
            filled = (first[others] != EMPTY).argmax(axis=1)
            first[empty] = first[others[np.arange(len(empty)), filled]]
        return first.astype(np.uint32)


def words_of(text: str) -> list[bytes]:
    """The words of a text as they are compared, in UTF-8."""
    text = unicodedata.normalize("NFC", text).casefold()
    if not text.isascii():
        for mark in MARKS:
            text = text.replace(mark, " ")
        for sign in UNSEEN:
            text = text.replace(sign, "")
    data = text.encode()
    if any(lead in data for lead in LEADS):  # else no character need be looked at
        data = UNSPACED.sub(r" \1 ", text).encode()
    return data.translate(SPACES).split()


def _shingles(words, salt):
    """A hash of each five consecutive words, of all of them if they are fewer: [n] uint64."""
    hashes = np.fromiter(map(zlib.crc32, words), np.uint64, len(words)) ^ salt
    width = min(SHINGLE, len(words))
    shingles = np.zeros(max(0, len(words) - width + 1), np.uint64)
    for place in range(width):
        shingles = (shingles + hashes[place : place + len(shingles)]) * np.uint64(0x9E3779B97F4A7C15)
        shingles ^= shingles >> np.uint64(29)
    return shingles
