"""Stories drawn from a seed and read back: text, facts, questions, and what every byte and token costs.

A corpus is stories joined by SEPARATOR. A story's last line (a question with its answer, or `Ende.`) says that it is
over, so the separator is forced and costs 0 bits: the floor of a corpus is the code length of its stories. Bits per
byte divide it by the bytes of the stories alone: a trainer takes a separator for one special token without bytes.
Counting the separators' bytes too would divide by more.
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
NEARLY = 0.2  # bits; a token that costs more is free, whatever else it holds


@dataclass(frozen=True)
class Story:
    """A story: its text with the last line, its facts as they stand at the end, and all that may be asked about it."""

    kind: str
    text: str
    facts: dict[str, str]  # role -> who or what plays it
    questions: tuple[Question, ...]
    steps: tuple[str, ...]  # the text, cut as the grammar told it
    choices: tuple[int, ...] = field(repr=False)  # the derivation: every choice in order

    @property
    def body(self) -> str:
        """The story without its last line."""
        return self.text.rpartition("\n")[0]


@dataclass(frozen=True)
class TokenTruth:
    """What the source knows of each token: arrays of one length.

    bits: float64, what the token's bytes cost (`byte_costs`; who predicts tokens is compared with `token_costs`); tag:
    int8, FREE, GRAMMAR or FACT; words, bytes: int32, the distance from the end of the step that holds the fact to the
    token, -1 where the tag is not FACT.
    """

    bits: np.ndarray
    tag: np.ndarray
    words: np.ndarray
    bytes: np.ndarray


def sample(seed: int, kind: str | None = None) -> Story:
    """Draw the story of a seed, of one kind if wanted; a seed's text never changes.

    Raises KonigsbergError if there is no such kind.
    """
    if kind is not None and kind not in KINDS:
        raise KonigsbergError(f"there is no kind of story {kind!r}, expected one of {', '.join(KINDS)}")
    return _draw(Random(seed), kind)


def stories(n: int, seed: int) -> Iterator[Story]:
    """Draw n stories, one after another from one seed."""
    return islice(_stream(seed), n)


def corpus(n_bytes: int, seed: int) -> str:
    """Draw whole stories joined by SEPARATOR, as few as reach `n_bytes` bytes of UTF-8.

    Raises KonigsbergError if `n_bytes` is not positive.
    """
    if n_bytes < 1:
        raise KonigsbergError(f"the corpus is to have {n_bytes} bytes, expected at least 1")
    texts, size = [], -len(SEPARATOR)
    for story in _stream(seed):
        texts.append(story.text)
        size += len(SEPARATOR) + len(story.text.encode())
        if size >= n_bytes:
            return SEPARATOR.join(texts)


def parse(text: str) -> Story:
    """Read a story back; its text has one derivation, or none, which raises KonigsbergError."""
    return _read(text)[0]


def byte_costs(text: str) -> np.ndarray:
    """Return -log2 P(byte | the bytes before it) for the UTF-8 bytes of a story, in bits, float64 [n]."""
    return np.array(_read(text)[1].bits)


def code_length(text: str) -> float:
    """Return -log2 of the probability of a story, in bits."""
    return float(byte_costs(text).sum())


def floor(texts: str | Iterable[str]) -> float:
    """Return the bits per byte of stories, or of a corpus, under their true source: no model does better on average."""
    texts = texts.split(SEPARATOR) if isinstance(texts, str) else texts
    costs = [byte_costs(text) for text in texts]
    return float(sum(cost.sum() for cost in costs) / sum(map(len, costs)))


def token_truth(text: str, lengths: Sequence[int]) -> TokenTruth:
    """Say of each token of a story, given the tokens' lengths in bytes, what its bytes cost and what decides it.

    A token whose bytes cost less than 0.2 bits is forced (several templates may begin almost alike, so not all cost 0).
    Forced tokens are FACT where a byte of theirs parts the value of a fact from another that the slot might have held,
    GRAMMAR otherwise (the rest of a name, set phrases). The distance of a FACT runs back to the end of the step that
    told the fact last; where several facts are needed together (a sum), of the oldest; within one step it is 0.
    Raises KonigsbergError if the lengths do not add up to the story.
    """
    story, reader = _read(text)
    data = text.encode()
    edges = list(accumulate(map(int, lengths), initial=0))
    if edges[-1] != len(data):
        raise KonigsbergError(f"the tokens have {edges[-1]} bytes in all, expected {len(data)} as the story has")
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
        raise KonigsbergError(f"the story is over at byte {source.at}, found {more!r} after it")
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
