"""Draw stories from a seed, parse them, and compute the cost of every byte and token under the true source.

A corpus consists of stories joined by SEPARATOR. The last line of a story (a question with its answer, or `Ende.`)
shows that the story is over, so the separator is certain and costs 0 bits. The floor of a corpus is therefore the code
length of its stories. The bits per byte are the code length divided by the number of bytes in the stories. Separators
are not counted, because training treats a separator as one special token without bytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise
from random import Random

import numpy as np

from konigsberg.errors import KonigsbergError
from konigsberg.grammar import Reader, Tale, Writer
from konigsberg.stories import KINDS, PHRASES, Question, tell

SEPARATOR = "\n<|endoftext|>\n"  # between two stories
FREE, GRAMMAR, FACT = 0, 1, 2  # the tags of `token_truth`
NEARLY = 0.2  # bits; a token that costs at least this much is free, even if it also names a fact


@dataclass(frozen=True)
class Story:
    """A story: its text with the last line, its facts after the last step, and all questions that it can answer."""

    kind: str
    text: str
    facts: dict[str, str]  # role -> the person or thing in that role
    questions: tuple[Question, ...]
    steps: tuple[str, ...]  # the text, split into the grammar's steps
    choices: tuple[int, ...] = field(repr=False)  # the derivation: every choice in order

    @property
    def body(self) -> str:
        """The story without its last line."""
        return self.text.rpartition("\n")[0]


@dataclass(frozen=True)
class TokenTruth:
    """The cost of each token under the source and the tag of the token, as arrays [n] for n tokens.

    bits: float64, the sum of `byte_costs` over the token's bytes (to compare with a model that predicts tokens, use
    `nanoeuler_book.town.token_costs`); tag: int8, FREE, GRAMMAR or FACT; words, bytes: int32, the distance in words and
    in bytes from the end of the step that stated the fact to the token, or -1 if the tag is not FACT.
    """

    bits: np.ndarray
    tag: np.ndarray
    words: np.ndarray
    bytes: np.ndarray


def sample(seed: int, kind: str | None = None) -> Story:
    """Draw a story from a seed; the same seed always gives the same story.

    kind: the kind of story, a key of KINDS, or None for a random kind. Raises KonigsbergError for any other value.
    """
    if kind is not None and kind not in KINDS:
        raise KonigsbergError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    return _draw(Random(seed), kind)


def stories(n: int, seed: int) -> Iterator[Story]:
    """Draw n stories from one seed."""
    return islice(_stream(seed), n)


def corpus(n_bytes: int, seed: int) -> str:
    """Draw a corpus: complete stories joined by SEPARATOR, as few as needed for `n_bytes` bytes of UTF-8.

    Raises KonigsbergError if `n_bytes` is below 1.
    """
    if n_bytes < 1:
        raise KonigsbergError(f"n_bytes must be at least 1, got {n_bytes}")
    texts, size = [], -len(SEPARATOR)
    for story in _stream(seed):
        texts.append(story.text)
        size += len(SEPARATOR) + len(story.text.encode())
        if size >= n_bytes:
            return SEPARATOR.join(texts)


def parse(text: str) -> Story:
    """Parse the text of a story and return the story.

    Every story has exactly one derivation. Raises KonigsbergError if the text is not a story.
    """
    return _read(text)[0]


def byte_costs(text: str) -> np.ndarray:
    """Return -log2 P(byte | the bytes before it) for the UTF-8 bytes of a story, in bits, float64 [n].

    Raises KonigsbergError if the text is not a story.
    """
    return np.array(_read(text)[1].bits)


def code_length(text: str) -> float:
    """Return -log2 of the probability of a story, in bits. Raises KonigsbergError if the text is not a story."""
    return float(byte_costs(text).sum())


def floor(texts: str | Iterable[str]) -> float:
    """Return the bits per byte of stories, or of a corpus, under their true source; no model does better on average."""
    texts = texts.split(SEPARATOR) if isinstance(texts, str) else texts
    costs = [byte_costs(text) for text in texts]
    return float(sum(cost.sum() for cost in costs) / sum(map(len, costs)))


def token_truth(text: str, lengths: Sequence[int]) -> TokenTruth:
    """Compute the cost of each token of a story, and tag the token by its cause: the grammar, a fact or a free choice.

    lengths: number of bytes of each token. A token is forced if its bytes cost less than 0.2 bits; its cost need not be
    0, because several templates may begin almost alike. A forced token has the tag FACT if one of its bytes
    distinguishes the value of a fact from another possible value, and GRAMMAR otherwise (such as the rest of a name).
    The distance of a FACT token is measured from the end of the last step that stated the fact. If several facts are
    needed (such as for a sum), it is measured from the oldest fact. The distance within a step is 0. Raises
    KonigsbergError if the text is not a story or the lengths do not add up to its number of bytes.
    """
    story, reader = _read(text)
    data = text.encode()
    edges = list(accumulate(map(int, lengths), initial=0))
    if edges[-1] != len(data):
        raise KonigsbergError(f"lengths must add up to the story's {len(data)} bytes, got {edges[-1]}")
    step_ends = list(accumulate(len(step.encode()) for step in story.steps))
    words_before = list(accumulate((not _space(a) and _space(b) for a, b in pairwise(data + b" ")), initial=0))
    total = np.concatenate([[0.0], np.cumsum(reader.bits)])
    rows = []
    for start, end in pairwise(edges):
        bits = total[end] - total[start]
        step = next((step for step in reader.since[start:end] if step >= 0), -1)
        if bits >= NEARLY:
            rows.append((bits, FREE, -1, -1))
        elif step < 0:
            rows.append((bits, GRAMMAR, -1, -1))
        else:
            told_at = min(step_ends[step], start)
            rows.append((bits, FACT, words_before[start] - words_before[told_at], start - told_at))
    bits, tag, words, distance = zip(*rows)
    return TokenTruth(np.array(bits), np.array(tag, np.int8), np.array(words, np.int32), np.array(distance, np.int32))


def _space(byte: int) -> bool:
    return byte in b" \n"


def _stream(seed: int) -> Iterator[Story]:
    random = Random(seed)
    while True:
        yield _draw(random, None)


def _draw(random: Random, kind: str | None) -> Story:
    source = Writer(random)
    tale = Tale(source, PHRASES)
    kind, questions = tell(tale, kind)
    return _story(tale, kind, bytes(source.text), questions)


def _read(text: str) -> tuple[Story, Reader]:
    source = Reader(text.encode())
    tale = Tale(source, PHRASES)
    kind, questions = tell(tale)
    if source.at != len(source.text):
        more = source.text[source.at :][:20]
        raise KonigsbergError(f"the text must end with the story, at byte {source.at}, got {more!r} after it")
    return _story(tale, kind, source.text, questions), source


def _story(tale: Tale, kind: str, data: bytes, questions: tuple[Question, ...]) -> Story:
    return Story(
        kind=kind,
        text=data.decode(),
        facts={role: str(fact.value) for role, fact in tale.facts.items()},
        questions=questions,
        steps=tuple(data[a:b].decode() for a, b in pairwise([0, *tale.ends])),
        choices=tuple(tale.choices),
    )
