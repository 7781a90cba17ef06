"""What a reader may believe, against counting all stories of toy towns."""

import sys
from collections import defaultdict
from random import Random

import numpy as np
import pytest
from all_texts import every

from konigsberg import KonigsbergError, sample
from konigsberg.town import GOLDBACH, JOHANNA, JUERGEN, KAETHE, MOELLER
from nanoeuler_book.interpretability import posteriors
from nanoeuler_book.interpretability.posteriors import FACTS, Labelled, belief, role
from nanoeuler_lib.training.checkpoint import load_pretrained

STORIES = sys.modules["konigsberg.stories"]  # `konigsberg.stories` is a function
TOKENIZER = load_pretrained()[1]
FINAL = {  # what a whole story says
    "culprit": lambda tale: str(tale["culprit"]),
    "holder": lambda tale: str(tale["taker"]),
    "way back": lambda tale: tale.labels[3],
    "thing": lambda tale: str(tale["thing"]),
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
    "walk": dict(
        WALK=("{a} left {shore} with {thing}.", "from {shore} {a} took {thing}."),
        WALK_OUT=("{a.he} took {out} to {out.to}.", "over {out} {a.he} came to {out.to}."),
        WALK_ON=("by {on} {a.he} got to {on.to}.",),
        WALK_END={
            "back": ("{b} asked, so {a} went back to {out.to}.",),
            "stays": ("{b} had found {thing}.", "{a} is in {on.to} still."),
        },
        PEOPLE=(KAETHE, JUERGEN),
    ),
}


@pytest.mark.parametrize("name", FINAL)
def test_beliefs_are_the_shares_of_all_stories_of_a_toy_town(name, monkeypatch):
    """To the end of the story, by token prefixes: whole stories are counted whose tokens begin as ours."""
    kind = FACTS[name].kind if name in FACTS else "walk"
    people = TOY[kind]["PEOPLE"]
    toy = {**TOY[kind], "THINGS": STORIES.THINGS[:2], "CRIMES": STORIES.CRIMES[:1]}
    roles = dict(a=people, b=people, c=people, thing=toy["THINGS"], crime=toy["CRIMES"], shore=STORIES.SHORES[:1])
    toy["ROLES"] = STORIES.ROLES | roles
    play = STORIES.KINDS[kind][1]
    toy["KINDS"] = {kind: (toy[kind.upper()], lambda tale: play(tale)[:1])}  # one question suffices
    for module in (STORIES, posteriors):
        for key in toy.keys() & vars(module).keys():
            monkeypatch.setattr(module, key, toy[key])
    fact = FACTS.get(name) or role(kind, name)
    share, seen, some = defaultdict(lambda: np.zeros(len(fact.values))), 0.0, []
    for p, text, tale in every(lambda tale: STORIES.tell(tale, kind), STORIES.PHRASES, Labelled):
        seen += p
        some.append(text.decode())
        value = fact.values.index(FINAL[name](tale))
        ids = tuple(TOKENIZER.encode(some[-1]).tolist())
        for end in range(len(ids) + 1):
            share[ids[:end]][value] += p
    assert seen == pytest.approx(1) and len(some) > 250
    for text in Random(1).sample(some, 12):
        found = belief(text, TOKENIZER, fact)
        for end, row in enumerate(found.beliefs):
            counted = share[tuple(found.ids[:end].tolist())]
            assert np.allclose(row, counted / counted.sum(), atol=1e-9), (text, end)


@pytest.mark.parametrize("name", FACTS)
def test_a_real_story_ends_certain_and_says_how_many_steps_are_told(name):
    text = sample(4, FACTS[name].kind).text
    found = belief(text, TOKENIZER, FACTS[name])
    assert found.beliefs[-1].max() == 1 == found.beliefs[-1, found.state] and found.entropy[-1] == 0
    assert np.allclose(found.beliefs.sum(axis=1), 1) and found.entropy[0] >= 1 - 1e-12
    assert found.steps[0] == 0 and set(np.diff(found.steps)) == {0, 1}


def test_a_story_of_another_kind_is_refused():
    with pytest.raises(KonigsbergError, match="not a story of Königsberg"):
        belief(sample(1, "debt").text, TOKENIZER, FACTS["holder"])
