"""Generate stories from a grammar, parse them and compute the exact probability of every byte.

A story consists of steps. Each step chooses one of several templates (such as "{A} gave it to {b}.") and a word for
each free slot of the template, and the text of the step shows all these choices. The possible texts of one step form a
prefix-free code (no text is a prefix of another text). A parser that knows the state of the story can therefore
identify the text of the step and its end without backtracking, so every story has exactly one derivation. The
probability of a prefix is the total probability of the texts that begin with it, so the cost of every byte can be
computed exactly.

A slot `{name.form}` is filled from the first source that has the name: the words already drawn in this step; the free
names of this step, for which a word is drawn now; the facts of the story; the phrases of the town's vocabulary, drawn
again each time. A capital letter in the slot (`{A}`, `{a.He}`) capitalises its text. If a form is a tuple (such as a
person's sayings), one entry of the tuple is drawn uniformly.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import log2
from random import Random

from konigsberg.errors import KonigsbergError

# templates, grouped under labels or not; all are equally likely
Options = Sequence[str] | Mapping[str, Sequence[str]]


@dataclass(frozen=True, eq=False)
class Word:
    """A person, thing, number or similar word in every form that sentences need; `forms[""]` is its name.

    once: True if a story may draw the word for one role only (people and things, but not numbers); weight: the relative
    probability of the word in a draw.
    """

    forms: Mapping[str, str | tuple[str, ...]]
    once: bool = True
    weight: float = 1.0

    def __str__(self) -> str:
        return self.forms[""]


class Among(tuple):
    """Words that may be drawn even if they already have a role in the story, such as suspects."""


@dataclass
class Fact:
    """A fact of the story: its value, its possible values, and the last step that stated the fact."""

    value: Word
    domain: tuple[Word, ...]
    step: int


@dataclass(frozen=True)
class Slot:
    """A slot of a template, parsed from `{name.form}`."""

    name: str
    form: str
    capital: bool

    def fill(self, word: Word) -> str | tuple[str, ...]:
        """Return the text of a word in this slot's form, or a tuple of texts if one of several texts is to be drawn."""
        text = word.forms[self.form]
        return capitalised(text) if self.capital and isinstance(text, str) else text


@dataclass(frozen=True)
class Mark:
    """A piece of text that comes from a known fact, with the texts that other values of the fact would give."""

    text: bytes
    rivals: frozenset[bytes]
    fact: Fact
    names: bool  # whether the text identifies the value; "she" does not
    at: int = 0


@cache
def capitalised(template: str) -> str:
    """Return the template with its first letter capitalised; a slot at the beginning is capitalised too."""
    return re.sub(r"^(\{(?:\w+\.)?)?(\w)", lambda match: (match[1] or "") + match[2].upper(), template)


@cache
def parts_of(template: str) -> tuple[bytes | Slot, ...]:
    """Split a template into literal UTF-8 bytes and slots; capitalise slots that begin a sentence or quotation."""
    template = re.sub(r'((?:[.!?] |^| )"|[.!?] )(\{[^}]*\})', lambda match: match[1] + capitalised(match[2]), template)
    parts: list[bytes | Slot] = []
    for i, piece in enumerate(re.split(r"\{([^}]*)\}", template)):
        if i % 2 == 0:
            parts += [piece.encode()] if piece else []
        else:
            name, _, form = piece.partition(".")
            parts.append(Slot(_small(name), _small(form), (form or name)[0].isupper()))
    return tuple(parts)


def _small(name: str) -> str:
    """Return a slot's name with its first letter in lower case; the other letters are in lower case already."""
    return name[:1].lower() + name[1:]


@cache
def rivals_of(domain: tuple[Word, ...], slot: Slot) -> frozenset[bytes]:
    """Return all texts that a slot can have if its word comes from the given domain."""
    fills = [slot.fill(word) for word in domain]
    return frozenset(text.encode() for fill in fills for text in ((fill,) if isinstance(fill, str) else fill))


@dataclass(frozen=True)
class Branch:
    """One way to fill a slot: its probability, the parts of its text, and the fact that it draws, if any."""

    share: float
    parts: tuple[bytes | Slot, ...]
    draws: Fact | None = None


@dataclass(frozen=True)
class Path:
    """A partial derivation of a step."""

    at: int  # index of the next byte of the text
    choices: tuple[int, ...] = ()
    drawn: Mapping[str, Fact] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()


class Tale:
    """The state of a story that is being generated or parsed: its facts, and the `Writer` or `Reader` of its text.

    Each kind of story is a function that takes a `Tale` and calls its method `say` for each step. The function depends
    only on labels and facts, so the same code generates a text, parses it and computes its cost.
    """

    def __init__(self, source: "Writer | Reader", phrases: Mapping[str, Sequence[str]]):
        self.source, self.phrases = source, phrases
        self.facts: dict[str, Fact] = {}
        self.ends: list[int] = []  # the byte after each step
        self.choices: list[int] = []  # the derivation

    def __getitem__(self, name: str) -> Word:
        return self.facts[name].value

    def say(self, options: Options, lead: str = " ", **free: Sequence[Word]) -> str:
        """Generate or parse a step and return its template's label; words for free slots are drawn from `free`."""
        labelled = options.items() if isinstance(options, Mapping) else [("", options)]
        templates = [(label, template) for label, group in labelled for template in group]
        lead = lead if self.ends else ""
        roots = [Branch(1 / len(templates), parts_of(lead + capitalised(text))) for _, text in templates]
        path = self.source.choose(roots, lambda slot, drawn: self.branches(slot, drawn, free))
        for mark in path.marks:
            if mark.names:
                mark.fact.step = len(self.ends)  # this step restates the fact
        self.facts.update(path.drawn)
        self.choices += path.choices
        self.ends.append(path.at)
        return templates[path.choices[0]][0]

    def know(self, name: str, value: Word, domain: Sequence[Word], *because: str) -> None:
        """Set a fact that follows from the facts in `because`; its step is the step of the oldest of these facts."""
        step = min((self.facts[source].step for source in because), default=len(self.ends) - 1)
        self.facts[name] = Fact(value, tuple(domain), step)

    def alias(self, name: str, role: str) -> None:
        """Give a fact a second name, so that one word has two roles."""
        self.facts[name] = self.facts[role]

    def tell(self, template: str, **facts: Word) -> str:
        """Fill a template with the facts of the story; facts given as arguments take precedence."""
        known = {name: fact.value for name, fact in self.facts.items()} | facts
        parts = parts_of(template)
        return "".join(part.decode() if isinstance(part, bytes) else part.fill(known[part.name]) for part in parts)

    def answers(self, template: str) -> tuple[str, tuple[str, ...], int]:
        """Return an answer, wrong answers from other values of its last fact, and the step that stated this fact."""
        name = [part.name for part in parts_of(template) if isinstance(part, Slot)][-1]
        fact = self.facts[name]
        answer = self.tell(template)
        others = dict.fromkeys(self.tell(template, **{name: word}) for word in fact.domain)
        return answer, tuple(other for other in others if other != answer), fact.step

    def branches(self, slot: Slot, drawn: Mapping[str, Fact], free: Mapping[str, Sequence[Word]]) -> list[Branch]:
        """Return the ways to fill a slot from the first source (see the module's docstring) that has its name."""
        fact = drawn.get(slot.name)
        if fact is None and slot.name in free:
            words = free[slot.name]
            if not isinstance(words, Among):
                taken = {id(other.value) for other in (*self.facts.values(), *drawn.values())}
                words = [word for word in words if not (word.once and id(word) in taken)]
            domain, step, total = tuple(free[slot.name]), len(self.ends), sum(word.weight for word in words)
            return [
                Branch(word.weight / total, (slot.fill(word).encode(),), Fact(word, domain, step)) for word in words
            ]
        fact = fact or self.facts.get(slot.name)
        if fact is None:
            texts = self.phrases[slot.name]
            return [Branch(1 / len(texts), parts_of(capitalised(t) if slot.capital else t)) for t in texts]
        fill, rivals = slot.fill(fact.value), rivals_of(fact.domain, slot)
        names = isinstance(fill, str) and len(rivals) == len(fact.domain)
        texts = (fill,) if isinstance(fill, str) else fill
        return [Branch(1 / len(texts), (Mark(text.encode(), rivals, fact, names),)) for text in texts]


class Writer:
    """A source that generates a text. It uses only `Random.random()`, which is the same in every Python version."""

    def __init__(self, random: Random):
        self.random = random
        self.text = bytearray()

    def choose(self, roots: list[Branch], branches: Callable[..., list[Branch]]) -> Path:
        """Draw a derivation of a step and append the text of the step."""
        choices, drawn, marks = [], {}, []

        def draw(ways: list[Branch]) -> Branch:
            left = self.random.random() if len(ways) > 1 else 0.0
            choice = 0
            while choice < len(ways) - 1 and left >= ways[choice].share:
                left -= ways[choice].share
                choice += 1
            choices.append(choice)
            return ways[choice]

        stack = list(reversed(draw(roots).parts))
        while stack:
            part = stack.pop()
            if isinstance(part, Slot):
                way = draw(branches(part, drawn))
                if way.draws:
                    drawn[part.name] = way.draws
                stack += reversed(way.parts)
                continue
            if isinstance(part, Mark):
                marks.append(part)
                part = part.text
            self.text += part
        return Path(len(self.text), tuple(choices), drawn, tuple(marks))


class Reader:
    """A source that parses a given text and computes the cost of each byte in bits.

    `bits[i]` is -log2 P(byte i | the bytes before it). `since[i]` is the step that stated the fact which decides byte
    i, or -1 if no fact decides it. A known fact decides a byte if another value of the fact would give a text that
    first differs at this byte.
    """

    def __init__(self, text: bytes):
        self.text, self.at, self.step = text, 0, 0
        self.bits: list[float] = []
        self.since: list[int] = []

    def choose(self, roots: list[Branch], branches: Callable[..., list[Branch]]) -> Path:
        """Find the derivation of the step that comes next in the text, and record the cost of its bytes.

        Raises KonigsbergError if no derivation gives the text, or if the grammar is wrong because two derivations give
        the text or one text of the step is a prefix of another text.
        """
        start, text = self.at, self.text
        left = defaultdict(float)  # byte -> total probability of the texts that first differ from ours there
        whole: list[tuple[float, Path]] = []
        stack = [(root.parts, root.share, Path(start, (i,))) for i, root in enumerate(roots)][::-1]
        while stack:
            parts, share, path = stack.pop()
            if not parts:
                whole.append((share, path))
                continue
            part, rest, marks = parts[0], parts[1:], path.marks
            if isinstance(part, Slot):
                ways = []
                for i, way in enumerate(branches(part, path.drawn)):
                    drawn = path.drawn | {part.name: way.draws} if way.draws else path.drawn
                    ways.append((way.parts + rest, share * way.share, Path(path.at, path.choices + (i,), drawn, marks)))
                stack += reversed(ways)
                continue
            if isinstance(part, Mark):
                marks += (replace(part, at=path.at),)
                part = part.text
            end = path.at + len(part)
            if text[path.at : end] == part:
                stack.append((rest, share, Path(end, path.choices, path.drawn, marks)))
            else:
                left[path.at + common_prefix(part, text[path.at : end])] += share
        if not whole:
            at, story = max(left), "not a story of Königsberg"
            raise KonigsbergError(f"{story}: no story continues with {text[at : at + 20]!r} at byte {at}")
        (share, path), *others = whole
        if others or max(left, default=0) >= path.at:
            raise KonigsbergError(f"the grammar is ambiguous at bytes {start}..{path.at}: {text[start : path.at]!r}")
        self._charge(path, share, left)
        return path

    def _charge(self, path: Path, share: float, left: Mapping[int, float]) -> None:
        """Record the cost of each byte of a step, and the step that stated the fact which decides the byte."""
        bits = [0.0] * (path.at - self.at)
        for at in sorted(left, reverse=True):
            bits[at - self.at] = log2((share + left[at]) / share)
            share += left[at]
        self.bits += bits
        self.since += [-1] * len(bits)
        told = set()  # facts that this step has already stated
        for mark in path.marks:
            for i in deciding_bytes(mark.text, mark.rivals):
                self.since[mark.at + i] = self.step if id(mark.fact) in told else mark.fact.step
            if mark.names:
                told.add(id(mark.fact))
        self.at, self.step = path.at, self.step + 1


def common_prefix(a: bytes, b: bytes) -> int:
    """Return the length of the common prefix of two byte strings."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@cache
def deciding_bytes(text: bytes, rivals: frozenset[bytes]) -> tuple[int, ...]:
    """Return the positions in `text` at which at least one rival text first differs from it."""
    return tuple(sorted({common_prefix(text, rival) for rival in rivals if rival != text} - {len(text)}))
