"""Make twins, two prompts that differ in one name, with the exact distribution over continuations. Chapter 18.

    story   Käthe trusted Jürgen with the key.
    twin    Käthe trusted Leonhard with the key.

Both are prefixes of an errand with the same template, thing, pronoun and number of tokens. The continuation has two
possible distributions. The person's distribution is the source's distribution after the twin: Leonhard has been in the
story from the start, and Jürgen has not appeared. The fact's distribution is the source's distribution after the story
with one fact changed: Jürgen received the key, but Leonhard has it now. The two distributions differ if a person has
more than one role (for example, the holder also set out or may still appear). They are equal if the holder was named
once and has no other role.

A story's own continuation is impossible after its twin. Continuations are therefore drawn from the distribution that
they are scored against.
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

PERSON, FACT = "person", "fact"  # the two distributions
PERSON_NAMED = {str(person): person for person in PEOPLE}


class Replayed(Tale):
    """A `Tale` in which a different person has the thing after a given step, with everything else unchanged.

    told: number of steps before the change; holder: the new holder (None: no change).
    """

    def __init__(self, source, told: int = 0, holder: Word | None = None):
        super().__init__(source, PHRASES)
        self.told, self.holder = told, holder

    def say(self, *options, **free) -> str:
        if self.holder is not None and len(self.ends) == self.told:
            before = self.facts["giver"]
            for role in ("giver", "taker"):  # but not "a": who set out with the thing stays the same
                if self.facts.get(role) is before:
                    self.facts[role] = replace(before, value=self.holder)
        return super().say(*options, **free)


class Continued:
    """A source that parses a given prefix and draws the continuation."""

    def __init__(self, beginning: str, random: Random):
        self.reader, self.writer = Reader(beginning.encode()), Writer(random)
        self.writer.text += beginning.encode()

    def choose(self, *step):
        reading = self.reader.at < len(self.reader.text)
        return (self.reader if reading else self.writer).choose(*step)


@dataclass(frozen=True)
class Twins:
    """A pair of prompts, prefixes of a story and of its twin.

    told: number of steps in both; was, becomes: the holder in the story and in the twin; place: position of the name in
    a row of tokens after an end-of-text token; cut: the position that predicts the first token of the continuation.
    """

    story: str
    twin: str
    told: int
    was: str
    becomes: str
    place: int
    cut: int

    def tale(self, law: str, source) -> Tale:
        """Return a `Tale` for the distribution `law`, PERSON or FACT; the source must begin with `beginning(law)`."""
        return Replayed(source, self.told, PERSON_NAMED[self.becomes] if law == FACT else None)

    def beginning(self, law: str) -> str:
        """Return the prompt that the distribution `law` continues: the twin for PERSON, the story for FACT."""
        return self.twin if law == PERSON else self.story

    def drawn(self, law: str, random: Random) -> str:
        """Draw a continuation up to the end of the story from the distribution `law`, PERSON or FACT."""
        beginning = self.beginning(law)
        source = Continued(beginning, random)
        tell(self.tale(law, source))
        return source.writer.text.decode().removeprefix(beginning)

    def law(self, law: str, continuation: str, tokenizer: Tokenizer) -> list[dict[int, float]]:
        """Return the distribution over the next token under `law` (PERSON or FACT), before and after each new token.

        Entries are {token: probability}. Raises KonigsbergError if the continuation is impossible under `law`.
        """
        reader = TokenReader(self.beginning(law) + continuation, tokenizer)
        tell(self.tale(law, reader))
        return [*reader.next[self.cut :], {tokenizer.special_tokens[END_OF_TEXT]: 1.0}]


def names_of(tokenizer: Tokenizer) -> dict[str, list[str]]:
    """Return the people whose name is one token after a space, grouped by their pronoun."""
    found = {}
    for name, person in PERSON_NAMED.items():
        if len(tokenizer.encode(f" {name}")) == 1:
            found.setdefault(person.forms["he"], []).append(name)
    return found


def twins_of(story: Story, told: int, tokenizer: Tokenizer, random: Random) -> Twins | None:
    """Return the first `told` steps (1 or 2) of an errand, and a random twin of this prefix.

    Returns None if the holder's name is not a single token that occurs once, or if no other name fits.
    """
    facts, beginning = story.facts, "".join(story.steps[:told])
    first = facts["taker"] if facts["before"] == facts["a"] else facts["before"]  # the first taker
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
    """A source's distributions at selected positions of rows: arrays [n], one entry per possible token."""

    row: np.ndarray
    place: np.ndarray
    token: np.ndarray
    probability: np.ndarray


class Batch(NamedTuple):
    """Pairs of twins with a continuation, as rows that start with an end-of-text token and are padded with it.

    story, twin: int64 [B, T], the two prompts, both with the same drawn continuation; place: [B], position of the name;
    cut: [B], the position that predicts the continuation's first token; end: [B], the position that predicts the end of
    text; `law`: the distributions at positions cut..end.
    """

    story: np.ndarray
    twin: np.ndarray
    place: np.ndarray
    cut: np.ndarray
    end: np.ndarray
    law: Law

    @property
    def rows(self) -> np.ndarray:
        """The row indices 0 .. B-1."""
        return np.arange(len(self.place))

    @property
    def behind(self) -> np.ndarray:
        """Whether a position predicts a token of the continuation or its end: bool [B, T]."""
        places = np.arange(self.story.shape[1])
        return (places >= self.cut[:, None]) & (places <= self.end[:, None])


def pairs(count: int, seed: int, told: int, tokenizer: Tokenizer, kind: str = "errand") -> list[Twins]:
    """Draw `count` pairs of twins, each from a different story. told: number of steps in the prompts, 1 or 2.

    Raises NanoEulerError for any other `told`, or if no two names with the same pronoun are single tokens.
    """
    if told not in (1, 2):
        raise NanoEulerError(f"told must be 1 or 2, the number of steps in the prompts, got {told}")
    if not any(len(names) > 1 for names in names_of(tokenizer).values()):
        raise NanoEulerError("the tokenizer must have two names of one pronoun as single tokens, got none")
    random, found = Random(seed), []
    while len(found) < count:
        story = sample(int(random.random() * 2**32), kind)
        if (pair := twins_of(story, told, tokenizer, random)) is not None:
            found.append(pair)
    return found


def batch_of(some: Sequence[Twins], law: str, tokenizer: Tokenizer, seed: int, longest: int = 128) -> Batch:
    """Draw a continuation for each pair from a distribution, PERSON or FACT, and put the pairs into rows.

    longest: maximum number of tokens per row. A continuation that does not fit is drawn again; with the package's
    tokenizer, all continuations fit. Raises NanoEulerError if none of a hundred continuations fits.
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
            raise NanoEulerError(f"longest must leave room for a continuation of {pair.twin!r}, got {longest} tokens")
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
    """Return KL(source || model) in bits per position, for each row: float64 [B].

    log_p: [B, T, V], the model's log-probabilities in nats. The KL is averaged over the
    positions of the continuation, including the end of the story.
    """
    row, place, token, p = batch.law
    each = p * (np.log2(p) - log_p[row, place, token] / np.log(2))
    return np.bincount(row, each, len(batch.place)) / (batch.end - batch.cut + 1)


def named(log_p: np.ndarray, batch: Batch) -> dict[str, float]:
    """Return the mean probabilities {"new": p, "old": p} of both names where the continuation says the new one, else 0.

    log_p: as in `bits`. An edit that writes the new name raises "new"; erasing the old name only lowers "old".
    """
    new, old = (tokens[batch.rows, batch.place] for tokens in (batch.twin, batch.story))
    rows, places = np.nonzero((np.roll(batch.twin, -1, axis=1) == new[:, None]) & batch.behind)
    p = {name: np.exp(log_p[rows, places, token[rows]]) for name, token in (("new", new), ("old", old))}
    return {name: float(values.sum() / max(len(rows), 1)) for name, values in p.items()}
