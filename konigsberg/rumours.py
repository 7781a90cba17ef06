"""Generate rumours: short texts in which the place of a thing is uncertain until the last words. Used in chapter 18.

A thing is missing and is at one of twelve places, all equally likely. Each witness names a place. Sharp witnesses are
right more often than dull witnesses, and a witness who is wrong names one of the other places at random. At the end the
thing is found. Bayes' rule gives the posterior after each witness in closed form. An example of a rumour:

    Käthe misses the hen . Grete says oven . Murr says boot . found in oven .

Each word is one token, and this module defines the vocabulary. If a tokenizer split the name of a place, the first
piece of the name would already rule out other places, but only the witnesses should give such information. The stories
of `KINDS` do not use this module.
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
SHARP, DULL = 0.7, 0.3  # probability that they are right; 1/12 would be a guess
RATE = dict.fromkeys("Jürgen Goldbach Grete Möller".split(), SHARP) | dict.fromkeys(
    "Bernoulli Ulrike Euler Murr".split(), DULL
)
WITNESSES = tuple(RATE)
FOUND, MOST = 0.1, 10  # probability that the search ends after a witness; the largest number of witnesses
WORDS = (END_OF_TEXT, *"misses the . says found in".split(), *OWNERS, *THINGS, *WITNESSES, *PLACES)
ID = {word: i for i, word in enumerate(WORDS)}
LONGEST = 5 + 4 * MOST + 4  # words of the longest rumour


@dataclass(frozen=True)
class Rumour:
    """One rumour: its text, as words joined by spaces, and the true place of the thing."""

    text: str
    place: str

    @property
    def ids(self) -> np.ndarray:
        """The token ids [T], as indices into WORDS."""
        return np.array([ID[word] for word in self.text.split()])


def sample(seed: int) -> Rumour:
    """Draw a rumour from a seed; the same seed always gives the same rumour."""
    return _draw(Random(seed))


def rumours(n: int, seed: int) -> Iterator[Rumour]:
    """Draw n rumours from one seed."""
    random = Random(seed)
    return (_draw(random) for _ in range(n))


def corpus(n: int, seed: int) -> np.ndarray:
    """Draw n rumours and return their ids [n, LONGEST + 1]; end-of-text tokens begin and pad each row."""
    rows = np.full((n, LONGEST + 1), ID[END_OF_TEXT])
    for row, rumour in zip(rows, rumours(n, seed), strict=True):
        ids = rumour.ids
        row[1 : len(ids) + 1] = ids
    return rows


def posterior(text: str) -> np.ndarray:
    """Return the posterior over the places before each word and after the last word, [T+1, 12]; each row sums to 1.

    A witness who is right with probability r multiplies the probability of the named place by r and the probability of
    every other place by (1 - r) / 11; then the row is normalised. Raises KonigsbergError if the text is not a prefix of
    a rumour.
    """
    return _beliefs_and_laws(text)[0]


def law(text: str) -> np.ndarray:
    """Return the source's distribution over the next word at every position, [T+1, V]; columns are ordered as in WORDS.

    Row i is conditioned on the first i words. After a complete rumour, the end of text has probability 1. Raises
    KonigsbergError if the text is not a prefix of a rumour.
    """
    return _beliefs_and_laws(text)[1]


def heard(beliefs: np.ndarray, rate: float, place: int) -> np.ndarray:
    """Return the posterior [n] after a witness names a place, by Bayes' rule.

    beliefs: the prior [n]; rate: probability that the witness is right; place: index of the named place.
    """
    likelihood = np.full(len(beliefs), (1 - rate) / (len(beliefs) - 1))
    likelihood[place] = rate
    return beliefs * likelihood / (beliefs * likelihood).sum()


def testimony(beliefs: np.ndarray, rate: float) -> np.ndarray:
    """Return the probability [12] of each place to be named by a witness who is right with probability `rate`."""
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
    """Return posteriors and next-word distributions before each word and after the last word."""
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
            raise KonigsbergError(f"word {at} of a rumour must be one of {', '.join(now)}, got {word!r}")
        if word in RATE and at > 0:
            witness, told = word, told + 1
        elif word in PLACES and words[at - 1] == "says":
            beliefs = heard(beliefs, RATE[witness], PLACES.index(word))
        elif word in PLACES:
            beliefs = np.eye(len(PLACES))[PLACES.index(word)]


def _next(words: list[str], beliefs: np.ndarray, witness: str | None, told: int) -> dict[str, float]:
    """Return the distribution over the next word of a rumour, {word: probability}."""
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
