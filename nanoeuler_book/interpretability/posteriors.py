"""Compute the exact posterior of a latent fact of a story after every token. Chapter 18.

Most facts are stated in the step that draws them. Some facts stay uncertain for longer: the culprit, the final holder
of the thing, the witness, and whether a person goes back. A name of several tokens is uncertain until its last token.
The posterior is computed in two parts. Within a step, `nanoeuler_book.town` enumerates all texts that agree with the
tokens so far, with their probabilities. For each of these texts, symmetry gives the distribution of later steps: every
person without a role is equally likely to get a role that is still open.

All posteriors are conditioned on the kind of the story from the first token on, since probes are trained and tested on
stories of one kind.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from konigsberg.grammar import Fact, Options, Tale, Word
from konigsberg.stories import BELIEF_WITNESS, ERRAND_SECOND, PHRASES, ROLES, WALK_END, tell
from konigsberg.town import CAST, MURR, PEOPLE
from nanoeuler_book.town import Beginning, TokenReader
from nanoeuler_lib.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Belief:
    """The tokens of a story, and the posterior of a fact given the first i tokens, for i = 0 to T.

    ids: [T]; beliefs: the posterior over `values`, float64 [T+1, n]; steps: number of complete steps in each prefix,
    [T+1].
    """

    ids: np.ndarray
    values: tuple[str, ...]
    beliefs: np.ndarray
    steps: np.ndarray

    @property
    def state(self) -> int:
        """Index of the true value, which is the most likely value after the last token."""
        return int(self.beliefs[-1].argmax())

    @property
    def entropy(self) -> np.ndarray:
        """Entropy of the posterior after each prefix, in bits, [T+1]."""
        return -(self.beliefs * np.log2(np.maximum(self.beliefs, 1e-300))).sum(axis=1) + 0.0


class Certain:
    """The known facts and step labels of one derivation, including the known part of the current step."""

    def __init__(self, tale: "Labelled", label: str | None = None, drawn: Mapping[str, Fact] | None = None):
        self.done, self.labels, self.drawn = len(tale.ends), [*tale.labels, label], drawn or {}
        self.facts = {name: fact.value for name, fact in {**tale.facts, **self.drawn}.items()}

    def role(self, name: str, domain: Sequence[Word]) -> dict[str, float]:
        """Return the distribution over words for a role: one word if known, else uniform over words without a role."""
        return {str(self.facts[name]): 1.0} if name in self.facts else self.anyone(domain)

    def anyone(self, domain: Sequence[Word]) -> dict[str, float]:
        """Return the uniform distribution over the domain's words that have no role yet."""
        taken = {id(word) for word in self.facts.values()}
        free = [str(word) for word in domain if id(word) not in taken]
        return dict.fromkeys(free, 1 / len(free)) if free else {}

    def label(self, step: int, options: Mapping[str, Sequence[str]]) -> dict[str, float]:
        """Return the distribution of a step's label: the label if known, else by the number of templates."""
        label = self.labels[step] if step < len(self.labels) else None
        total = sum(map(len, options.values()))
        return {label: 1.0} if label else {name: len(group) / total for name, group in options.items()}


@dataclass(frozen=True)
class Open:
    """A latent fact: its kind of story, its values, and a function from a derivation to their probabilities."""

    kind: str
    values: tuple[str, ...]
    law: Callable[[Certain], dict[str, float]]


def culprit(told: Certain) -> dict[str, float]:
    """Return the distribution of the culprit: uniform over the suspects not yet cleared."""
    cleared = [id(told.facts[role]) for role in "xy" if role in told.facts]
    left = [role for role in "abc" if role not in told.facts or id(told.facts[role]) not in cleared]
    return _mixed((1 / len(left), told.role(role, PEOPLE)) for role in left)


def holder(told: Certain) -> dict[str, float]:
    """Return the distribution of the final holder, who is the first taker, the cat or a new person."""
    taker = told.role("taker", PEOPLE)
    if told.done > 2:
        return taker
    new = taker if told.done == 2 and "taker" in told.drawn else told.anyone(PEOPLE)
    laws = {"again": new, "cat": {str(MURR): 1.0}, "kept": taker}
    return _mixed((share, laws[label]) for label, share in told.label(2, ERRAND_SECOND).items())


def role(kind: str, name: str) -> Open:
    """Return the fact of who has a role, such as `a`; it is uncertain only until all tokens of the name are read."""
    domain = ROLES[name]
    return Open(kind, tuple(map(str, domain)), lambda told: told.role(name, domain))


FACTS = {
    "culprit": Open("culprit", tuple(map(str, PEOPLE)), culprit),
    "holder": Open("errand", tuple(map(str, CAST)), holder),
    "witness": Open("belief", tuple(BELIEF_WITNESS), lambda told: told.label(2, BELIEF_WITNESS)),
    "way back": Open("walk", tuple(WALK_END), lambda told: told.label(3, WALK_END)),
}


def belief(text: str, tokenizer: Tokenizer, fact: Open) -> Belief:
    """Return the posterior of a fact before each token of a story and after the last token.

    Raises KonigsbergError if the text is not a story of the fact's kind.
    """
    reader = Believer(text, tokenizer, fact)
    reader.tale = tale = Labelled(reader, PHRASES)
    tell(tale, fact.kind)
    rows = [*reader.beliefs, reader.vector(fact.law(Certain(tale)))]
    return Belief(np.array(reader.ids), fact.values, np.array(rows), np.array([*reader.steps, len(tale.ends)]))


class Labelled(Tale):
    """A `Tale` that records the label of each step, and the labels of the current step's templates."""

    def __init__(self, *source):
        super().__init__(*source)
        self.labels: list[str] = []
        self.offered: list[str] = []

    def say(self, options: Options, lead: str = " ", **free: Sequence[Word]) -> str:
        labelled = options.items() if isinstance(options, Mapping) else [("", options)]
        self.offered = [label for label, group in labelled for _ in group]
        self.labels.append(super().say(options, lead, **free))
        return self.labels[-1]


class Believer(TokenReader):
    """Parse a story token by token, and compute a fact's posterior before each token from all possible texts."""

    tale: Labelled

    def __init__(self, text: str, tokenizer: Tokenizer, fact: Open):
        super().__init__(text, tokenizer)
        self.fact, self.place = fact, {value: i for i, value in enumerate(fact.values)}
        self.beliefs: list[np.ndarray] = []
        self.steps: list[int] = []

    def before(self, ahead: list[tuple[list[int], Beginning]]) -> None:
        super().before(ahead)
        shares, told = defaultdict(float), {}
        for _, text in ahead:
            drawn = frozenset((name, id(fact.value)) for name, fact in text.drawn.items())
            key = self.tale.offered[text.root], drawn
            shares[key] += text.share
            told[key] = text.drawn
        laws = (self.vector(self.fact.law(Certain(self.tale, key[0], told[key]))) for key in shares)
        self.beliefs.append(sum(p * law for p, law in zip(shares.values(), laws)) / sum(shares.values()))
        self.steps.append(len(self.tale.ends))

    def vector(self, law: Mapping[str, float]) -> np.ndarray:
        """Return a distribution as an array [n] over the fact's values."""
        row = np.zeros(len(self.place))
        for value, p in law.items():
            row[self.place[value]] = p
        return row


def _mixed(parts: Iterable[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Return the mixture of distributions, given as pairs (weight, distribution)."""
    found = defaultdict(float)
    for share, law in parts:
        for value, p in law.items():
            found[value] += share * p
    return found
