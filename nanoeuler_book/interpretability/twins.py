"""Twins: two beginnings of an errand that differ in one name, and the exact law of what the source says behind them.

    story   Käthe trusted Jürgen with the key.
    twin    Käthe trusted Leonhard with the key.

Template, thing, pronoun and number of tokens are the same. What comes next has two laws. By the person's law Leonhard
has been in the tale from the beginning, and Jürgen never was: that is the source behind the twin. By the fact's law the
tale was told of Jürgen, and then Leonhard has the key: the tale is replayed, and one fact of it changed. They differ
where a person has more than one role: who set out, who may still come in. Where the holder was named once and
has no other role, they are one law.

A story's own continuation is impossible behind its twin. Continuations are therefore drawn from the law they are scored
by.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

import numpy as np

from konigsberg import Story, sample
from konigsberg.grammar import Reader, Tale, Word, Writer
from konigsberg.stories import PHRASES, tell
from konigsberg.town import PEOPLE
from nanoeuler_book.town import TokenReader
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer

PERSON, FACT = "person", "fact"  # the two laws
PERSON_NAMED = {str(person): person for person in PEOPLE}


class Replayed(Tale):
    """A tale in which somebody else has the thing, from the end of a step on; all else is as it was told.

    told: how many steps are told of the one who had it; holder: who has it then (None: the same as before).
    """

    def __init__(self, source, told: int = 0, holder: Word | None = None):
        super().__init__(source, PHRASES)
        self.told, self.holder = told, holder

    def say(self, *options, **free) -> str:
        if self.holder is not None and len(self.ends) == self.told:
            before = self.facts["giver"]
            for role in ("giver", "taker"):  # who set out with it has set out with it
                if self.facts.get(role) is before:
                    self.facts[role] = replace(before, value=self.holder)
        return super().say(*options, **free)


class Continued:
    """A source that reads the beginning it is given, and draws what comes behind."""

    def __init__(self, beginning: str, random: Random):
        self.reader, self.writer = Reader(beginning.encode()), Writer(random)
        self.writer.text += beginning.encode()

    def choose(self, *step):
        reading = self.reader.at < len(self.reader.text)
        return (self.reader if reading else self.writer).choose(*step)


@dataclass(frozen=True)
class Twins:
    """A story's beginning and its twin's.

    told: steps of both; was, becomes: who has the thing in either; place: where the name stands in a row of tokens
    behind an end-of-text token; cut: the place of the row that predicts the first token behind the beginning.
    """

    story: str
    twin: str
    told: int
    was: str
    becomes: str
    place: int
    cut: int

    def tale(self, law: str, source) -> Tale:
        """The tale of a law, to be told by a source that begins as `beginning` does."""
        return Replayed(source, self.told, PERSON_NAMED[self.becomes] if law == FACT else None)

    def beginning(self, law: str) -> str:
        """What the source of a law has told: the twin, or for the fact's law the story itself."""
        return self.twin if law == PERSON else self.story

    def drawn(self, law: str, random: Random) -> str:
        """Draw a continuation, to the end of the story, from a law."""
        beginning = self.beginning(law)
        source = Continued(beginning, random)
        tell(self.tale(law, source))
        return source.writer.text.decode().removeprefix(beginning)

    def law(self, law: str, continuation: str, tokenizer: Tokenizer) -> list[dict[int, float]]:
        """Return what a law says at each token of a continuation and behind it: {token: probability}, exact.

        Raises NanoEulerError if the continuation is impossible under that law.
        """
        reader = TokenReader(self.beginning(law) + continuation, tokenizer)
        tell(self.tale(law, reader))
        return [*reader.next[self.cut :], {tokenizer.special_tokens[END_OF_TEXT]: 1.0}]


def names_of(tokenizer: Tokenizer) -> dict[str, list[str]]:
    """Return the people whose name is one token behind a space, by their pronoun."""
    found = {}
    for name, person in PERSON_NAMED.items():
        if len(tokenizer.encode(f" {name}")) == 1:
            found.setdefault(person.forms["he"], []).append(name)
    return found


def twins_of(story: Story, told: int, tokenizer: Tokenizer, random: Random) -> Twins | None:
    """Return an errand's beginning of `told` steps, 1 or 2, and a twin; None where the name is not one token, once."""
    facts, beginning = story.facts, "".join(story.steps[:told])
    first = facts["taker"] if facts["before"] == facts["a"] else facts["before"]  # who took it first
    was = (facts["a"], first)[told - 1]
    names = next((names for names in names_of(tokenizer).values() if was in names), [])
    others = [name for name in names if name not in beginning]
    if not others or beginning.count(was) != 1:
        return None
    becomes = others[int(random.random() * len(others))]
    twin = beginning.replace(was, becomes)
    ids, other = tokenizer.encode(beginning), tokenizer.encode(twin)
    places = np.flatnonzero(ids != other) if len(ids) == len(other) else ()
    if len(places) != 1:  # the name begins the story or a remark, where it has no space before it
        return None
    return Twins(beginning, twin, told, was, becomes, int(places[0]) + 1, len(ids))


class Law(NamedTuple):
    """What a source says at some places of some rows: arrays [n], an entry for each token that it may say there."""

    row: np.ndarray
    place: np.ndarray
    token: np.ndarray
    probability: np.ndarray


class Batch(NamedTuple):
    """Pairs in rows of one length, behind an end-of-text token and filled up with it, and a law of what comes.

    story, twin: int64 [B, T], the two beginnings, each with the continuation that was drawn from the law; place: [B],
    of the name; cut: [B], the first place behind the beginning; end: [B], the place behind the last token; law: of the
    places cut..end.
    """

    story: np.ndarray
    twin: np.ndarray
    place: np.ndarray
    cut: np.ndarray
    end: np.ndarray
    law: Law

    @property
    def rows(self) -> np.ndarray:
        """0 .. B-1."""
        return np.arange(len(self.place))

    @property
    def behind(self) -> np.ndarray:
        """Whether a place is one of the continuation's: bool [B, T]."""
        places = np.arange(self.story.shape[1])
        return (places >= self.cut[:, None]) & (places <= self.end[:, None])


def pairs(count: int, seed: int, told: int, tokenizer: Tokenizer, kind: str = "errand") -> list[Twins]:
    """Draw so many pairs of twins, each from a story of its own. told: steps of the beginnings, 1 or 2.

    Raises NanoEulerError for another number of steps, or a tokenizer to which no name is one token.
    """
    if told not in (1, 2):
        raise NanoEulerError(f"told is {told}, expected 1 or 2 steps of an errand")
    if not any(len(names) > 1 for names in names_of(tokenizer).values()):
        raise NanoEulerError("the tokenizer has no two names of one pronoun as one token each, expected some")
    random, found = Random(seed), []
    while len(found) < count:
        story = sample(int(random.random() * 2**32), kind)
        if (pair := twins_of(story, told, tokenizer, random)) is not None:
            found.append(pair)
    return found


def batch_of(some: Sequence[Twins], law: str, tokenizer: Tokenizer, seed: int, longest: int = 128) -> Batch:
    """Draw a continuation of each pair from a law, and put them into rows of at most `longest` tokens.

    Under the package's tokenizer all fit; one that does not is drawn anew. Raises NanoEulerError if none of a hundred
    fits.
    """
    random, end = Random(seed), tokenizer.special_tokens[END_OF_TEXT]
    rows, entries = [], []
    for i, pair in enumerate(some):
        for _ in range(100):
            told = pair.drawn(law, random)
            both = [[end, *tokenizer.encode(text + told).tolist()] for text in (pair.story, pair.twin)]
            if len(both[0]) <= longest:
                break
        else:
            raise NanoEulerError(f"no continuation of {pair.twin!r} was found that fits {longest} tokens")
        rows.append(both)
        for j, row in enumerate(pair.law(law, told, tokenizer)):
            entries += [(i, pair.cut + j, token, p) for token, p in row.items()]
    time = max(len(both[0]) for both in rows)
    tokens = np.full((2, len(rows), time), end, np.int64)
    for i, both in enumerate(rows):
        for k in range(2):
            tokens[k, i, : len(both[k])] = both[k]
    row, place, token, p = zip(*entries, strict=True)
    found = Law(np.array(row), np.array(place), np.array(token), np.array(p))
    ends = np.array([len(both[0]) - 1 for both in rows])
    return Batch(*tokens, np.array([p.place for p in some]), np.array([p.cut for p in some]), ends, found)


def bits(log_p: np.ndarray, batch: Batch) -> np.ndarray:
    """Return KL(law || model) in bits a place, for each row: float64 [B].

    log_p: [B, T, V], the model's log-probabilities in nats. The sum goes over what the source may say; places: those of
    the continuation, and the end of the story.
    """
    row, place, token, p = batch.law
    each = p * (np.log2(p) - log_p[row, place, token] / np.log(2))
    return np.bincount(row, each, len(batch.place)) / (batch.end - batch.cut + 1)
