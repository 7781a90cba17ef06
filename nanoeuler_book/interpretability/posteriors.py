"""What a reader of a story may believe of a fact that is open: the exact posterior behind every token.

The grammar tells most facts where it draws them. Open for longer are who did it, who will hold the thing at last, who
saw it, whether somebody goes back; and for some tokens a name that is spelt in halves. The posterior has two parts.
Within a step `nanoeuler_book.town` follows all texts that agree with the tokens so far, each with its share. And for
each of them the town's symmetry says what is to come: whoever is not drawn yet is anyone who has no role, each as
likely.

Everything is given the kind of the story, from its first token on: probes are trained and tried on one kind.
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
    """A story's tokens, and what a reader of each prefix may believe. Entry i of T+1 has seen i tokens.

    ids: [T]; beliefs: float64 [T+1, n] over the `values`; steps: how many steps each prefix has told whole, [T+1].
    """

    ids: np.ndarray
    values: tuple[str, ...]
    beliefs: np.ndarray
    steps: np.ndarray

    @property
    def state(self) -> int:
        """Which value it is; the whole story tells."""
        return int(self.beliefs[-1].argmax())

    @property
    def entropy(self) -> np.ndarray:
        """Bits that each prefix leaves open, [T+1]."""
        return -(self.beliefs * np.log2(np.maximum(self.beliefs, 1e-300))).sum(axis=1) + 0.0


class Certain:
    """What is certain along one derivation: the facts of the steps before and of this one, and this one's label."""

    def __init__(self, tale: "Labelled", label: str | None = None, drawn: Mapping[str, Fact] | None = None):
        self.done, self.labels, self.drawn = len(tale.ends), [*tale.labels, label], drawn or {}
        self.facts = {name: fact.value for name, fact in {**tale.facts, **self.drawn}.items()}

    def role(self, name: str, domain: Sequence[Word]) -> dict[str, float]:
        """The law of a role that somebody has, or else one of the domain who has none yet."""
        return {str(self.facts[name]): 1.0} if name in self.facts else self.anyone(domain)

    def anyone(self, domain: Sequence[Word]) -> dict[str, float]:
        """Each of the domain who has no role yet is as likely."""
        taken = {id(word) for word in self.facts.values()}
        free = [str(word) for word in domain if id(word) not in taken]
        return dict.fromkeys(free, 1 / len(free)) if free else {}

    def label(self, step: int, options: Mapping[str, Sequence[str]]) -> dict[str, float]:
        """The law of the label that a step has, or will have: in proportion to its templates."""
        label = self.labels[step] if step < len(self.labels) else None
        total = sum(map(len, options.values()))
        return {label: 1.0} if label else {name: len(group) / total for name, group in options.items()}


@dataclass(frozen=True)
class Open:
    """A fact that may be open: the kind of its stories, its values, and their law along a derivation, by value."""

    kind: str
    values: tuple[str, ...]
    law: Callable[[Certain], dict[str, float]]


def culprit(told: Certain) -> dict[str, float]:
    """A third for each of the three, a half for each of the two whom nobody has cleared, one for the last."""
    cleared = [id(told.facts[role]) for role in "xy" if role in told.facts]
    left = [role for role in "abc" if role not in told.facts or id(told.facts[role]) not in cleared]
    return _mixed((1 / len(left), told.role(role, PEOPLE)) for role in left)


def holder(told: Certain) -> dict[str, float]:
    """Who has the thing at last: the first taker if they keep it, the cat, or somebody new."""
    taker = told.role("taker", PEOPLE)
    if told.done > 2:
        return taker
    new = taker if told.done == 2 and "taker" in told.drawn else told.anyone(PEOPLE)
    laws = {"again": new, "cat": {str(MURR): 1.0}, "kept": taker}
    return _mixed((share, laws[label]) for label, share in told.label(2, ERRAND_SECOND).items())


def role(kind: str, name: str) -> Open:
    """A fact that a story of a kind tells where it draws it, such as who is `a`: open while its name is spelt."""
    domain = ROLES[name]
    return Open(kind, tuple(map(str, domain)), lambda told: told.role(name, domain))


FACTS = {
    "culprit": Open("culprit", tuple(map(str, PEOPLE)), culprit),
    "holder": Open("errand", tuple(map(str, CAST)), holder),
    "witness": Open("belief", tuple(BELIEF_WITNESS), lambda told: told.label(2, BELIEF_WITNESS)),
    "way back": Open("walk", tuple(WALK_END), lambda told: told.label(3, WALK_END)),
}


def belief(text: str, tokenizer: Tokenizer, fact: Open) -> Belief:
    """Return what a reader of a story may believe of a fact before each token and behind the last.

    Raises NanoEulerError if the text is no story of the fact's kind.
    """
    reader = Believer(text, tokenizer, fact)
    reader.tale = tale = Labelled(reader, PHRASES)
    tell(tale, fact.kind)
    rows = [*reader.beliefs, reader.vector(fact.law(Certain(tale)))]
    return Belief(np.array(reader.ids), fact.values, np.array(rows), np.array([*reader.steps, len(tale.ends)]))


class Labelled(Tale):
    """A tale that keeps the label of each step, and those of the templates of the step that it tells."""

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
    """Reads a story by tokens, and believes before each what follows from all texts that agree with those before."""

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
        """A law as an array [n] over the fact's values."""
        row = np.zeros(len(self.place))
        for value, p in law.items():
            row[self.place[value]] = p
        return row


def _mixed(parts: Iterable[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Laws in given shares."""
    found = defaultdict(float)
    for share, law in parts:
        for value, p in law.items():
            found[value] += share * p
    return found
