"""A grammar that can be written, read back and charged for: one choice is one prefix-free code.

A story is told in steps. At each step the state of the town offers a list of templates ("{A} gave it to {b}."), and
everything random is drawn there and shown at once: which template, and who fills each free slot. The texts that one
step can give form a prefix-free code (none begins another), so a reader who knows the state always knows which one it
sees and where it ends: no backtracking, one derivation a text. And the probability of a prefix is the share of the
texts that still agree with it, so the cost of every single byte is exact.

A slot `{name.form}` is filled, in this order, by: what this step already drew for the name; a value drawn now, if the
name is free at this step; a fact of the story; a phrase of the town's vocabulary, drawn anew each time. A capital
(`{A}`, `{a.He}`) capitalises. A form that is a tuple (a person's sayings) is drawn from uniformly.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import log2
from random import Random

from konigsberg.errors import KonigsbergError

# templates, under labels or not; each is equally likely
Options = Sequence[str] | Mapping[str, Sequence[str]]


@dataclass(frozen=True, eq=False)
class Word:
    """A person, a thing, a number, ... in every form that a sentence needs; `forms[""]` is its plain name.

    `once` says that one story never draws it for two roles (people, things), while numbers may come back. Words are
    drawn in proportion to their `weight`.
    """

    forms: Mapping[str, str | tuple[str, ...]]
    once: bool = True
    weight: float = 1.0

    def __str__(self) -> str:
        return self.forms[""]


class Among(tuple):
    """Words that may be drawn although they have a role already, such as two suspects."""


@dataclass
class Fact:
    """A fact of the story: its value, the values that it might have had, and the step that said so last."""

    value: Word
    domain: tuple[Word, ...]
    step: int


@dataclass(frozen=True)
class Slot:
    """A parsed `{name.form}`."""

    name: str
    form: str
    capital: bool

    def fill(self, word: Word) -> str | tuple[str, ...]:
        """Return the word in this slot's form: one text, or several to draw from."""
        text = word.forms[self.form]
        return capitalised(text) if self.capital and isinstance(text, str) else text


@dataclass(frozen=True)
class Mark:
    """A piece of text that a known fact filled, beside the texts that other values of the fact would have given."""

    text: bytes
    rivals: frozenset[bytes]
    fact: Fact
    names: bool  # whether the text tells the value; "she" does not
    at: int = 0


@cache
def capitalised(template: str) -> str:
    """Return the template with its first letter, or that of its first slot's text, as a capital."""
    return re.sub(r"^(\{(?:\w+\.)?)?(\w)", lambda match: (match[1] or "") + match[2].upper(), template)


@cache
def parts_of(template: str) -> tuple[bytes | Slot, ...]:
    """Split a template into literal UTF-8 bytes and slots; slots that begin a sentence or a quotation are capital."""
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
    """The name without a capital at its beginning; elsewhere there is none."""
    return name[:1].lower() + name[1:]


@cache
def rivals_of(domain: tuple[Word, ...], slot: Slot) -> frozenset[bytes]:
    """Return the texts that the words of a domain would put into a slot."""
    fills = [slot.fill(word) for word in domain]
    return frozenset(text.encode() for fill in fills for text in ((fill,) if isinstance(fill, str) else fill))


@dataclass(frozen=True)
class Branch:
    """One way to fill a slot: its share of the probability, what it reads, and the fact that it draws, if any."""

    share: float
    parts: tuple[bytes | Slot, ...]
    draws: Fact | None = None


@dataclass(frozen=True)
class Path:
    """The beginning of one derivation of a step."""

    at: int  # the byte of the text that comes next
    choices: tuple[int, ...] = ()
    drawn: Mapping[str, Fact] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()


class Tale:
    """A story being told: its facts, and the source that writes it or reads it back.

    A kind of story is a function of a tale. It calls `say` for each step and looks at nothing but labels and facts, so
    that the same lines run when the text is drawn, parsed and charged for.
    """

    def __init__(self, source: "Writer | Reader", phrases: Mapping[str, Sequence[str]]):
        self.source, self.phrases = source, phrases
        self.facts: dict[str, Fact] = {}
        self.ends: list[int] = []  # the byte after each step
        self.choices: list[int] = []  # the derivation

    def __getitem__(self, name: str) -> Word:
        return self.facts[name].value

    def say(self, options: Options, lead: str = " ", **free: Sequence[Word]) -> str:
        """Tell one step, drawing its free slots from the given words; return the label of its template."""
        labelled = options.items() if isinstance(options, Mapping) else [("", options)]
        templates = [(label, template) for label, group in labelled for template in group]
        lead = lead if self.ends else ""
        roots = [Branch(1 / len(templates), parts_of(lead + capitalised(text))) for _, text in templates]
        path = self.source.choose(roots, lambda slot, drawn: self.branches(slot, drawn, free))
        for mark in path.marks:
            if mark.names:
                mark.fact.step = len(self.ends)  # told again: remembered from here
        self.facts.update(path.drawn)
        self.choices += path.choices
        self.ends.append(path.at)
        return templates[path.choices[0]][0]

    def know(self, name: str, value: Word, domain: Sequence[Word], *because: str) -> None:
        """Settle a fact that follows from others; it is as old as the oldest of them."""
        step = min((self.facts[source].step for source in because), default=len(self.ends) - 1)
        self.facts[name] = Fact(value, tuple(domain), step)

    def alias(self, name: str, role: str) -> None:
        """Let the word that plays a role play another one as well; it stays one fact."""
        self.facts[name] = self.facts[role]

    def tell(self, template: str, **facts: Word) -> str:
        """Fill a template from the facts of the story, or from the ones given instead."""
        known = {name: fact.value for name, fact in self.facts.items()} | facts
        parts = parts_of(template)
        return "".join(part.decode() if isinstance(part, bytes) else part.fill(known[part.name]) for part in parts)

    def answers(self, template: str) -> tuple[str, tuple[str, ...], int]:
        """Return an answer, those that other values of its last fact would give, and the step that decides it."""
        name = [part.name for part in parts_of(template) if isinstance(part, Slot)][-1]
        fact = self.facts[name]
        answer = self.tell(template)
        others = dict.fromkeys(self.tell(template, **{name: word}) for word in fact.domain)
        return answer, tuple(other for other in others if other != answer), fact.step

    def branches(self, slot: Slot, drawn: Mapping[str, Fact], free: Mapping[str, Sequence[Word]]) -> list[Branch]:
        """Return the ways to fill a slot, in the order that the module's docstring gives."""
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
    """The source that draws: its choices come from `Random.random()` alone, which no Python version changes."""

    def __init__(self, random: Random):
        self.random = random
        self.text = bytearray()

    def choose(self, roots: list[Branch], branches: Callable[..., list[Branch]]) -> Path:
        """Draw one derivation of a step and append its text."""
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
    """The source that reads a given text, and counts the bits of each byte: how much probability it rules out.

    `bits[i]` is -log2 P(byte i | the bytes before it). `since[i]` is the step that holds the fact which decides byte i,
    -1 where no fact does: a forced slot decides a byte where another value of the same slot, equal so far, differs.
    """

    def __init__(self, text: bytes):
        self.text, self.at, self.step = text, 0, 0
        self.bits: list[float] = []
        self.since: list[int] = []

    def choose(self, roots: list[Branch], branches: Callable[..., list[Branch]]) -> Path:
        """Find the one derivation of a step that the text goes on with, and charge for it.

        Raises KonigsbergError if there is none, or if the grammar is at fault: two derivations, or a text of the step
        that begins another.
        """
        start, text = self.at, self.text
        left = defaultdict(float)  # the probability of the texts that part from ours at a byte
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
            raise KonigsbergError(f"{story}: nothing there goes on like byte {at}, {text[at : at + 20]!r}")
        (share, path), *others = whole
        if others or max(left, default=0) >= path.at:
            raise KonigsbergError(f"the grammar is ambiguous at bytes {start}..{path.at}: {text[start : path.at]!r}")
        self._charge(path, share, left)
        return path

    def _charge(self, path: Path, share: float, left: Mapping[int, float]) -> None:
        """Note the bits of a step's bytes, and for each byte the step that holds the fact which decides it."""
        bits = [0.0] * (path.at - self.at)
        for at in sorted(left, reverse=True):
            bits[at - self.at] = log2((share + left[at]) / share)
            share += left[at]
        self.bits += bits
        self.since += [-1] * len(bits)
        told = set()  # facts that this step has told already
        for mark in path.marks:
            for i in deciding_bytes(mark.text, mark.rivals):
                self.since[mark.at + i] = self.step if id(mark.fact) in told else mark.fact.step
            if mark.names:
                told.add(id(mark.fact))
        self.at, self.step = path.at, self.step + 1


def common_prefix(a: bytes, b: bytes) -> int:
    """Return how many bytes two byte strings share at their beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@cache
def deciding_bytes(text: bytes, rivals: frozenset[bytes]) -> tuple[int, ...]:
    """Return the positions in `text` at which some rival, equal until there, goes on otherwise."""
    return tuple(sorted({common_prefix(text, rival) for rival in rivals if rival != text} - {len(text)}))
