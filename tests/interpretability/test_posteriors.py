"""What a reader may believe, against counting: all texts of a step, all stories of a toy town, and many drawn ones."""

import sys
from collections import defaultdict
from random import Random

import numpy as np
import pytest

from konigsberg import KonigsbergError, sample
from konigsberg.grammar import Path, Reader, Slot, Writer
from konigsberg.town import GOLDBACH, JOHANNA, JUERGEN, KAETHE, MOELLER
from nanoeuler_book.interpretability import posteriors
from nanoeuler_book.interpretability.posteriors import FACTS, Labelled, belief, role
from nanoeuler_book.town import next_tokens
from nanoeuler_lib.training.checkpoint import load_pretrained

STORIES = sys.modules["konigsberg.stories"]  # `konigsberg.stories` is a function
TOKENIZER = load_pretrained()[1]


class Scripted(Writer):
    """Takes given choices first, then the first of all; notes the share of every choice and how many there were."""

    def __init__(self, script):
        super().__init__(None)
        self.script, self.shares, self.counts, self.taken = script, [], [], []

    def choose(self, roots, branches):
        stack, drawn = [Slot("", "", False)], {}
        first = len(self.taken)
        while stack:
            part = stack.pop()
            if isinstance(part, Slot):
                ways = roots if part.name == "" else branches(part, drawn)
                at = len(self.taken)
                self.taken.append(self.script[at] if at < len(self.script) else 0)
                way = ways[self.taken[-1]]
                self.shares.append(way.share)
                self.counts.append(len(ways))
                if way.draws:
                    drawn[part.name] = way.draws
                stack += reversed(way.parts)
            else:
                self.text += part if isinstance(part, bytes) else part.text
        return Path(len(self.text), tuple(self.taken[first:]), drawn)


def every(kind):
    """All stories of a kind: the probability, the text and the tale of each."""
    script = []
    while True:
        source = Scripted(script)
        tale = Labelled(source, STORIES.PHRASES)
        STORIES.tell(tale, kind)
        yield np.prod(source.shares), source.text.decode(), tale
        last = len(source.taken)
        while last and source.taken[last - 1] + 1 == source.counts[last - 1]:
            last -= 1
        if not last:
            return
        script = [*source.taken[: last - 1], source.taken[last - 1] + 1]


FINAL = {
    "culprit": lambda tale: str(tale["culprit"]),
    "holder": lambda tale: str(tale["taker"]),
    "witness": lambda tale: tale.labels[2],
    "way back": lambda tale: tale.labels[3],
}
TOY = {  # a kind's globals in a town of few people, two templates a step
    "culprit": dict(
        CULPRIT=("it was {a}, {b} or {c} who had {crime}.", "either {a}, {b} or {c} had {crime}."),
        CULPRIT_FIRST=("{x} had been {alibi}.", "but {x} was {alibi}."),
        CULPRIT_SECOND=("{y} had been away.", "and {y} was in bed."),
        CULPRIT_LEFT=("that left {culprit}.", "{culprit} did it, while {y} was in bed."),
        ALIBIS=STORIES.ALIBIS[:2],
        PEOPLE=(KAETHE, JUERGEN, JOHANNA),
    ),
    "errand": dict(
        ERRAND=("{b} sent {a} with {thing}.", "{a} had {thing} from {b}."),
        ERRAND_FIRST=("{giver} gave it to {taker}.", "{taker} had it from {giver}."),
        ERRAND_SECOND={
            "again": ("then {giver} gave it to {taker}.", "{giver} lost it to {taker}."),
            "cat": ("{giver} slept, and Murr saw his chance.",),
            "kept": ("{giver} kept it.", "{giver} has it, and {b} sang."),
        },
        ERRAND_CHASE=("{b} asked {a}.", "{b} blamed {taker}."),
        PEOPLE=(KAETHE, JUERGEN, GOLDBACH, MOELLER),
    ),
    "belief": dict(
        BELIEF=("{a} and {b} hid {small} in {place}.", "{b} helped {a} to hide {small} in {place}."),
        BELIEF_MOVES=("{mover} moved it to {other}, without {out}.", "without {out} {mover} hid it in {other}."),
        BELIEF_WITNESS={
            "saw": ("{home} saw it and kept silent.", "{home} watched."),
            "slept": ("{home} slept.",),
            "told": ("{home} saw it and told {out}.", "{out} heard of it."),
        },
        BELIEF_FALSE=("{out} searched {place}.",),
        BELIEF_TRUE=("{out} tried {other}.",),
        PEOPLE=(KAETHE, JUERGEN, JOHANNA),
        PLACES=STORIES.PLACES[:2],
    ),
}


@pytest.mark.parametrize("name", ["culprit", "holder", "witness"])
def test_beliefs_are_the_shares_of_all_stories_of_a_toy_town(name, monkeypatch):
    """To the end of the story, by token prefixes: whole stories are counted whose tokens begin as ours."""
    fact = FACTS[name]
    people = TOY[fact.kind]["PEOPLE"]
    toy = {**TOY[fact.kind], "THINGS": STORIES.THINGS[:2], "SMALL": STORIES.SMALL[:2], "CRIMES": STORIES.CRIMES[:2]}
    roles = dict(a=people, b=people, c=people, thing=toy["THINGS"], small=toy["SMALL"], crime=toy["CRIMES"])
    toy["ROLES"] = STORIES.ROLES | roles | {"place": toy.get("PLACES", ())}
    play = STORIES.KINDS[fact.kind][1]
    toy["KINDS"] = {fact.kind: (toy[fact.kind.upper()], lambda tale: play(tale)[:1])}  # one question suffices
    for module in (STORIES, posteriors):
        for key in toy.keys() & vars(module).keys():
            monkeypatch.setattr(module, key, toy[key])
    share, seen, some = defaultdict(lambda: np.zeros(len(fact.values))), 0.0, []
    for p, text, tale in every(fact.kind):
        seen += p
        some.append(text)
        value = fact.values.index(FINAL[name](tale))
        ids = tuple(TOKENIZER.encode(text).tolist())
        for end in range(len(ids) + 1):
            share[ids[:end]][value] += p
    assert seen == pytest.approx(1) and len(some) > 500
    for text in Random(1).sample(some, 40):
        found = belief(text, TOKENIZER, fact)
        for end, row in enumerate(found.beliefs):
            counted = share[tuple(found.ids[:end].tolist())]
            assert np.allclose(row, counted / counted.sum(), atol=1e-9), (text, end)


def told_steps(text, kind, steps):
    """The derivation of a story's first steps, one path each."""
    paths = []

    class Recorder(Reader):
        def choose(self, roots, branches):
            paths.append(super().choose(roots, branches))
            return paths[-1]

    STORIES.tell(Labelled(Recorder(text.encode()), STORIES.PHRASES), kind)
    return paths[:steps]


def texts(parts, share, drawn, branches):
    """All texts that parts of a template may give: (share, text, what it draws)."""
    if not parts:
        yield share, b"", drawn
        return
    part, rest = parts[0], parts[1:]
    if isinstance(part, Slot):
        for way in branches(part, drawn):
            now = drawn | {part.name: way.draws} if way.draws else drawn
            yield from texts(way.parts + rest, share * way.share, now, branches)
        return
    for p, text, last in texts(rest, share, drawn, branches):
        yield p, (part if isinstance(part, bytes) else part.text) + text, last


class Told(Exception):
    """The step to be enumerated is reached."""


@pytest.mark.parametrize(
    ("name", "step"), [("culprit", 1), ("culprit", 2), ("holder", 2), ("witness", 2), ("way back", 3), ("thing", 0)]
)
def test_beliefs_are_the_shares_of_all_texts_of_the_step(name, step):
    """In the real town: every text that the current step may give, with what follows from it, by hand."""
    fact = FACTS.get(name) or role("walk", "thing")
    text = sample(4, fact.kind).text
    paths = told_steps(text, fact.kind, step)

    class Enumerator:
        def choose(self, roots, branches):
            if paths:
                return paths.pop(0)
            self.texts = [
                (i, *found) for i, root in enumerate(roots) for found in texts(root.parts, root.share, {}, branches)
            ]
            raise Told

    source = Enumerator()
    tale = Labelled(source, STORIES.PHRASES)
    with pytest.raises(Told):
        STORIES.tell(tale, fact.kind)
    share = defaultdict(lambda: np.zeros(len(fact.values)))
    for root, p, given, drawn in source.texts:
        facts = {key: str(one.value) for key, one in (tale.facts | drawn).items()}
        label = tale.offered[root]
        match name:
            case "culprit":
                follows = {facts[key] for key in "abc"} - {facts.get(key) for key in "xy"}
            case "holder":
                follows = {"Murr" if label == "cat" else facts["taker"]}
            case "thing":
                follows = {facts["thing"]}
            case _:
                follows = {label}
        row = np.isin(fact.values, list(follows)) / len(follows)
        ids = tuple(TOKENIZER.encode(given.decode()).tolist())
        for end in range(len(ids) + 1):
            share[ids[:end]] += p * row
    found = belief(text, TOKENIZER, fact)
    inside = np.flatnonzero(found.steps == step)
    assert len(source.texts) > 30 and len(inside) > 5
    for at in inside:
        counted = share[tuple(found.ids[inside[0] : at].tolist())]
        assert np.allclose(found.beliefs[at], counted / counted.sum(), atol=1e-9), at


class Continued(Writer):
    """Tells known steps again; draws the next until its tokens begin as given; then goes on as it likes."""

    def __init__(self, random, paths, ids):
        super().__init__(random)
        self.paths, self.ids, self.tries = list(paths), ids, 0

    def choose(self, roots, branches):
        if self.paths:
            return self.paths.pop(0)
        while True:
            start = len(self.text)
            path = super().choose(roots, branches)
            self.tries += 1
            if self.ids is None or TOKENIZER.encode(self.text[start:].decode())[: len(self.ids)].tolist() == self.ids:
                self.ids = None
                return path
            del self.text[start:]


def test_beliefs_lie_within_what_the_source_draws_on_from_thirty_prefixes():
    """Monte Carlo: chi-square of the final values of 120 drawn endings, at prefixes that are not too rare to meet."""
    random, total, freedom, tried = Random(3), 0.0, 0, 0
    while tried < 30:
        name = ("culprit", "holder", "witness", "way back")[tried % 4]
        fact = FACTS[name]
        text = sample(random.randrange(10**9), fact.kind).text
        found = belief(text, TOKENIZER, fact)
        _, laws = next_tokens(text, TOKENIZER)
        at = random.choice(np.flatnonzero(found.entropy > 0.1).tolist())
        start = int(np.flatnonzero(found.steps == found.steps[at])[0])
        chance = np.prod([laws[i][found.ids[i]] for i in range(start, at)])
        if chance < 1 / 30:
            continue
        paths, counts = told_steps(text, fact.kind, found.steps[at]), np.zeros(len(fact.values))
        for _ in range(120):
            tale = Labelled(Continued(random, paths, found.ids[start:at].tolist()), STORIES.PHRASES)
            STORIES.tell(tale, fact.kind)
            counts[fact.values.index(FINAL[name](tale))] += 1
        expected = 120 * found.beliefs[at]
        assert not counts[expected == 0].any(), (text, at)
        some = expected > 0
        total += ((counts - expected)[some] ** 2 / expected[some]).sum()
        freedom += some.sum() - 1
        tried += 1
    assert abs(total - freedom) < 4 * (2 * freedom) ** 0.5, (total, freedom)


def test_a_story_of_another_kind_is_refused():
    with pytest.raises(KonigsbergError, match="not a story of Königsberg"):
        belief(sample(1, "debt").text, TOKENIZER, FACTS["holder"])
