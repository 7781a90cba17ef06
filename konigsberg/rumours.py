"""Rumours: a small world beside the stories, in which no reader is sure of the fact before the last words.

Something is missing and lies at one of twelve places, each as likely. Witnesses say where; who is sharp is right more
often than who is dull, and a wrong witness names any other place. At last it is found. What a reader may believe
after each witness follows from Bayes' rule in closed form:

    Käthe misses the hen . Grete says oven . Murr says boot . found in oven .

The tokens are words, by a vocabulary of this module: a place that a pair tokenizer cuts into pieces would be half
known between them, and it is the witnesses that should make it so. No story of `KINDS` is touched. Chapter 18.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from konigsberg.errors import KonigsbergError

END_OF_TEXT = "<|endoftext|>"
PLACES = tuple("drawer teapot oven boot piano cradle hat bucket stove barrel chest attic".split())
OWNERS = tuple("Käthe Johanna Leonhard Immanuel Hinrich Kühn".split())
THINGS = tuple("hen lantern globe cheese clock lute".split())
SHARP, DULL = 0.7, 0.3  # how often they are right; 1/12 would be a guess
RATE = dict.fromkeys("Jürgen Goldbach Grete Möller".split(), SHARP) | dict.fromkeys(
    "Bernoulli Ulrike Euler Murr".split(), DULL
)
WITNESSES = tuple(RATE)
FOUND, MOST = 0.1, 10  # the chance that a search ends behind a witness, and behind how many it must
WORDS = (END_OF_TEXT, *"misses the . says found in".split(), *OWNERS, *THINGS, *WITNESSES, *PLACES)
ID = {word: i for i, word in enumerate(WORDS)}
LONGEST = 5 + 4 * MOST + 4  # words of the longest rumour


@dataclass(frozen=True)
class Rumour:
    """What was said, in words joined by spaces, and where the thing lies."""

    text: str
    place: str

    @property
    def ids(self) -> np.ndarray:
        """The words as integers [T], by WORDS."""
        return np.array([ID[word] for word in self.text.split()])


def sample(seed: int) -> Rumour:
    """Draw the rumour of a seed; a seed's text never changes."""
    return _draw(Random(seed))


def rumours(n: int, seed: int) -> Iterator[Rumour]:
    """Draw n rumours, one after another from one seed."""
    random = Random(seed)
    return (_draw(random) for _ in range(n))


def corpus(n: int, seed: int) -> np.ndarray:
    """Return the ids of n rumours, each behind an end of text, one row each: [n, LONGEST + 1], filled with ends."""
    rows = np.full((n, LONGEST + 1), ID[END_OF_TEXT])
    for row, rumour in zip(rows, rumours(n, seed), strict=True):
        ids = rumour.ids
        row[1 : len(ids) + 1] = ids
    return rows


def posterior(text: str) -> np.ndarray:
    """Return what a reader may believe of the place before each word and behind the last: [T+1, 12], rows sum to 1.

    A witness who is right with rate r multiplies the place that they name by r, every other by (1 - r) / 11.
    Raises KonigsbergError if the text is no beginning of a rumour.
    """
    return _beliefs_and_laws(text)[0]


def law(text: str) -> np.ndarray:
    """Return the probability of every next word before each word and behind the last: [T+1, V], by WORDS.

    Behind a whole rumour the end of text is certain. Raises KonigsbergError if the text is no beginning of a rumour.
    """
    return _beliefs_and_laws(text)[1]


def heard(beliefs: np.ndarray, rate: float, place: int) -> np.ndarray:
    """Return the beliefs [n] behind a witness of a rate who names a place, an index: Bayes' rule."""
    likelihood = np.full(len(beliefs), (1 - rate) / (len(beliefs) - 1))
    likelihood[place] = rate
    return beliefs * likelihood / (beliefs * likelihood).sum()


def testimony(beliefs: np.ndarray, rate: float) -> np.ndarray:
    """Return the probability [12] of each place that a witness of a rate may name."""
    return rate * beliefs + (1 - rate) * (1 - beliefs) / (len(PLACES) - 1)


def _draw(random: Random) -> Rumour:
    def one(words: Sequence[str]) -> str:
        return words[int(random.random() * len(words))]

    place = one(PLACES)
    words = [one(OWNERS), "misses", "the", one(THINGS), "."]
    for _ in range(MOST):
        witness = one(WITNESSES)
        right = random.random() < RATE[witness]
        words += [witness, "says", place if right else one([other for other in PLACES if other != place]), "."]
        if random.random() < FOUND:
            break
    return Rumour(" ".join([*words, "found", "in", place, "."]), place)


def _beliefs_and_laws(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Beliefs and law before each word and behind the last."""
    words, beliefs = text.split(), np.full(len(PLACES), 1 / len(PLACES))
    believed, laws, witness, told = [], [], None, 0
    for at in range(len(words) + 1):
        now = _next(words[:at], beliefs, witness, told)
        row = np.zeros(len(WORDS))
        for word, p in now.items():
            row[ID[word]] = p
        believed.append(beliefs)
        laws.append(row)
        if at == len(words):
            return np.array(believed), np.array(laws)
        word = words[at]
        if not now.get(word):
            raise KonigsbergError(f"word {at} is {word!r}, expected one of {', '.join(now)}: no rumour")
        if word in RATE and at > 0:
            witness, told = word, told + 1
        elif word in PLACES and words[at - 1] == "says":
            beliefs = heard(beliefs, RATE[witness], PLACES.index(word))
        elif word in PLACES:
            beliefs = np.eye(len(PLACES))[PLACES.index(word)]


def _next(words: list[str], beliefs: np.ndarray, witness: str | None, told: int) -> dict[str, float]:
    """What may come behind some words of a rumour, {word: probability}."""
    opening = (OWNERS, ("misses",), ("the",), THINGS, (".",))
    if len(words) < len(opening):
        return dict.fromkeys(opening[len(words)], 1 / len(opening[len(words)]))
    match words[-1]:
        case "." if "found" in words:
            return {END_OF_TEXT: 1.0}
        case ".":
            found = 0.0 if told == 0 else FOUND if told < MOST else 1.0
            return {word: (1 - found) / len(WITNESSES) for word in WITNESSES} | {"found": found}
        case "found":
            return {"in": 1.0}
        case "in":
            return dict(zip(PLACES, beliefs, strict=True))
        case "says":
            return dict(zip(PLACES, testimony(beliefs, RATE[witness]), strict=True))
        case word:
            return {"says": 1.0} if word in RATE else {".": 1.0}
