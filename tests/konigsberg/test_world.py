"""Königsberg: a story reads back, its tokens cost what its bytes cost, it is true, and its questions are right.

The checkers of the second part read a story's text with their own regular expressions, tables and searches, and know
nothing of the generator's bookkeeping.
"""

import re
from collections import Counter, defaultdict
from itertools import combinations, pairwise
from math import log2

import numpy as np
import pytest
from euler_map import ENDS, SHORE, walks_over

import konigsberg
from konigsberg.town import BRIDGE_NAMED, euler_walk
from nanoeuler_book import town
from nanoeuler_lib.text.tokenizer import Tokenizer

SAMPLE = list(konigsberg.stories(3000, seed=2024))
TOKENIZER = Tokenizer.train(konigsberg.SEPARATOR.join(story.text for story in SAMPLE[:300]), 512)
OF_KIND = {kind: [story for story in SAMPLE if story.kind == kind] for kind in konigsberg.KINDS}


def test_a_text_gives_its_derivation_back():
    for story in SAMPLE[::30]:
        assert konigsberg.parse(story.text) == story


# Tokens ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", konigsberg.KINDS)
def test_the_sources_tokens_cost_what_the_story_costs(kind):
    """By tokens of any length the costs are as many bits as by bytes; where a token is a byte, they are the same."""
    for tokenizer in (TOKENIZER, Tokenizer([])):
        for story in OF_KIND[kind][:3]:
            ids, rows = town.next_tokens(story.text, tokenizer)
            costs, by_bytes = town.token_costs(story.text, tokenizer), konigsberg.byte_costs(story.text)
            assert ids == tokenizer.encode(story.text).tolist() and tokenizer.decode(ids) == story.text
            assert len(rows) == len(ids) + 1 and rows[-1] == {tokenizer.vocab_size - 1: 1.0}
            assert np.allclose([sum(row.values()) for row in rows], 1, atol=1e-12)
            assert np.allclose(costs, [-log2(row[token]) for token, row in zip(ids, rows)], atol=1e-12)
            assert abs(costs.sum() - by_bytes.sum()) < 1e-9
            assert tokenizer is TOKENIZER or np.allclose(costs, by_bytes, atol=1e-9)
            with pytest.raises(ValueError, match="read-only"):
                costs[0] = 0  # kept for the next who asks


# The stories ----------------------------------------------------------------------------------------------------------

NAMES = (
    "Käthe|Jürgen|Johanna|Frau Goldbach|Herr Bernoulli|Leonhard|Immanuel|Hinrich|Doktor Kühn|Ulrike|"
    "Kantor Möller|Grete|Murr"
)
WORD = (
    "nothing one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
).split()
NUMBER = {word: i for i, word in enumerate(WORD)}
DAY = {day: i for i, day in enumerate(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"))}


def names_in(text):
    return re.findall(NAMES, text)


def numbers_in(text):
    """Number words that count Groschen or wares, in order; sayings and trifles with numbers in them are struck out."""
    trifles = "Seven is odd|That makes one|ten drops|who is seven|nine geese|two clocks|two plums|past three"
    text = re.sub(f"{trifles}|proved nothing", "", text, flags=re.I)
    return [NUMBER[word] for word in re.findall(r"\w+", text.lower()) if word in NUMBER]


def bridges_in(text):
    return re.findall(r"the ([\w']+) Bridge", text, re.I)


def errand(steps):
    """Who had it, from the sentences that hand it on."""
    chain = []
    n = f"({NAMES})"
    forward = (
        "N gave it to N", "N left it with N", "N lost it to N", "N let N hold", "N traded it to N",
        r"from N to N\.", "N sold it to N", "N hid it in a hat, and N took",
    )  # fmt: skip
    backward = ("N begged for it, and N gave in", "N had it from N")
    patterns = [(pattern.replace("N", n), 1) for pattern in forward]
    patterns += [(pattern.replace("N", n), -1) for pattern in backward]
    for step in steps[1:3]:
        for pattern, order in patterns:
            if match := re.search(pattern, step):
                chain.append(match.groups()[::order])
                break
        else:
            if "Murr made off" in step or "Murr saw his chance" in step:
                chain.append((names_in(step)[0], "Murr"))
    assert all(one[1] == other[0] for one, other in pairwise(chain))
    carriers = [chain[0][0], *(taker for _, taker in chain)]
    assert len(set(carriers)) == len(carriers)
    owner = (set(names_in(steps[0])) - {carriers[0]}).pop()
    last = steps[-1]
    if len(steps) == 4:  # a chase: the names come in the order of the chain
        told = [name for name in names_in(last) if name != owner]
        if '"' not in last:
            assert list(dict.fromkeys(told)) == carriers
        else:
            assert told == [carriers[1], carriers[0], carriers[2], carriers[1]]
    return {"holder": carriers[-1], "before": carriers[-2], "first": carriers[0], "owner": owner}


def belief(steps):
    place = re.search(r"in (the \w+)", steps[0])[1]
    moved = re.sub("in the garden|down the well", "", steps[1])
    other = re.search(r"(?:in|to) (the \w+)(?=[.,]| while)", moved)[1]
    friends = list(dict.fromkeys(names_in(steps[0])))
    away = next(name for name in names_in(steps[1]) if name in friends)
    mover = next(name for name in names_in(steps[1]) if name not in friends)
    knows_all = bool(re.search(r"ran to tell|heard of it|so did", steps[2]))
    asleep = bool(re.search(r"slept through|saw nothing|missed it", steps[2]))
    looked = other if knows_all else place
    assert re.search(looked if not re.search("left the", steps[3]) else f"tried {looked}", steps[3])
    assert away in steps[3]
    return {
        "where": f"In {other}", "looks": f"In {looked}", "believes": f"In {place if asleep else other}", "mover": mover,
    }  # fmt: skip


def debt(steps):
    owed = start = numbers_in(steps[0])[0]
    for change, total in ((steps[1], steps[2]), (steps[3], steps[4])):
        sign = 1 if re.search(r"\bmore\b|added", change) else -1
        owed += sign * numbers_in(change)[0]
        assert numbers_in(total)[:1] == [owed] or (owed == 0 and "quits" in total)
    assert 0 <= owed <= 10
    debtor, lender = names_in(steps[0])[:2]
    if re.search(r"had lent|kept a list", steps[0]):
        debtor, lender = lender, debtor
    return {"owes": f"It is {WORD[owed]}", "start": f"It was {WORD[start]}", "debtor": debtor, "creditor": lender}


def market(steps):
    count, price = numbers_in(steps[0])
    cost, more = numbers_in(steps[1])
    sums = numbers_in(steps[2])
    total = count * price + more
    assert cost == count * price and sums[-1] == total
    assert len(sums) == 1 or sums[0] != total
    paid = [n for n in numbers_in(steps[3]) if n not in (20, total)] or [total]
    assert paid == [20 - total]
    change = f"There were {WORD[20 - total]}"
    return {"cost": f"They cost {WORD[cost]}", "total": f"It was {WORD[total]}", "change": change}


def letter(steps):
    sent, opened = (DAY[re.search("|".join(DAY), step)[0]] for step in steps[:2])
    late = f"{WORD[opened - sent]} day{'s' * (opened - sent > 1)}"
    assert opened > sent
    for step in steps[2:]:
        for told in re.findall(r"(\w+ days?) late", step):
            assert told.lower() == late
    sentence = re.sub(r"the (\w+)! the", r"the \1! The", steps[0])
    thing = re.search(r"(?:(?:with|bring|take) |\")(the \w+)", sentence, re.I)[1]
    assert thing.lower() in steps[2].lower()
    carrier = next(name for name in names_in(steps[1]) if name != "Murr")
    return {"late": f"It was {late}", "brings": thing, "carrier": carrier}


def walk(steps):
    start = re.search("|".join(SHORE), re.sub("It left out Lomse", "", steps[0]))[0]
    here, places, crossed = SHORE[start], [], []
    for step in steps[1:3]:
        step = step.replace("It left out Lomse", "")
        (bridge,) = bridges_in(step)
        (there,) = set(re.findall("|".join(SHORE), step))
        assert here in ENDS[bridge] and ENDS[bridge].replace(here, "") == SHORE[there]
        here = SHORE[there]
        places.append(there)
        crossed.append(f"The {bridge} Bridge")
    assert places[0] in steps[3]
    now = places[0 if re.search(r"went back|ran back", steps[3]) else 1]
    return {"place": f"In {now}", "left": f"In {places[0]}", "home": f"In {start}", "crossed": crossed[0]}


def verdicts(bridges):
    """What may be said of a walk over all of these bridges, by search."""
    found = walks_over(frozenset(bridges))
    if all(first == last for first, last in found):
        return {"Yes, from anywhere"} if found else {"No"}
    name = {letter: shore for shore, letter in SHORE.items()}
    return {f"Yes, from {name[first]} to {name[last]}" for first, last in found}


def bridges(steps):
    closed = bridges_in(steps[0])[0]
    six = [bridge for bridge in ENDS if bridge != closed]
    walker = names_in(steps[1])[0]
    first, last = re.findall("|".join(SHORE), steps[1])
    assert (SHORE[first], SHORE[last]) in walks_over(frozenset(six))
    more = bridges_in(steps[2])
    left = [bridge for bridge in six if bridge not in more]
    if not more and re.search(r"opened\.|opened the|opened again|open\.", steps[2]):
        left = list(ENDS)
    told = [word for word in re.findall(r"\w+", steps[3].lower()) if word in ("five", "six", "seven")]
    assert NUMBER[told[0]] == len(left)
    if "no such walk" in steps[3]:
        verdict = "No"
    elif "start anywhere" in steps[3]:
        verdict = "Yes, from anywhere"
    else:
        verdict = "Yes, from {} to {}".format(*re.findall("|".join(SHORE), steps[3]))
    assert verdict in verdicts(left)
    return {
        "walk": verdict, "open": f"There are {told[0]}", "closed": f"The {closed} Bridge", "ended": f"In {last}",
        "walker": walker,
    }  # fmt: skip


def culprit(steps):
    suspects = names_in(steps[0])
    assert len(set(suspects)) == 3
    cleared = [next(name for name in names_in(step) if name in suspects) for step in steps[1:3]]
    (left,) = set(suspects) - set(cleared)
    assert left in steps[3]
    helpers = [next(name for name in names_in(step) if name not in suspects) for step in steps[1:3]]
    alibi = re.search(r"in the \w+", steps[1])[0]
    for there in re.findall(rf"({NAMES})(?: was)? (in the \w+)", steps[3]):
        assert there == (cleared[0], alibi)
    return {"culprit": left, "witness": helpers[0], "friend": helpers[1], "alibi": alibi}


CHECKERS = {check.__name__: check for check in (errand, belief, debt, market, letter, walk, bridges, culprit)}


@pytest.mark.parametrize("kind", konigsberg.KINDS)
def test_stories_are_true_and_questions_right(kind):
    assert len(OF_KIND[kind]) > 200
    for story in OF_KIND[kind]:
        found = CHECKERS[kind](story.steps[:-1])
        answers = {question.kind: question.answer for question in story.questions}
        for asked, answer in found.items():
            assert answers[asked].rstrip(".").lower() == answer.lower(), (asked, story.text)


def test_stories_are_well_formed():
    for story in SAMPLE:
        assert re.fullmatch(r"[^\n]+\n[^\n]+\.", story.text)
        assert "  " not in story.text and "{" not in story.text and " ." not in story.text
        assert story.text.count('"') % 2 == 0
        for sentence in re.split(r"(?<=[.?!]) |\n", re.sub(r'[!?]" \w', "", story.text)):
            assert not sentence.lstrip('"')[:1].islower(), story.text


def test_euler_decides_every_set_of_bridges_as_a_search_does():
    for n in range(1, 8):
        for names in combinations(ENDS, n):
            assert str(euler_walk([BRIDGE_NAMED[f"the {name} Bridge"] for name in names])) in verdicts(names)


def test_questions_are_not_guessed_by_the_commonest_answer():
    answers = defaultdict(Counter)
    for story in SAMPLE:
        for question in story.questions:
            answers[story.kind, question.kind][question.answer] += 1
            assert question.answer not in question.alternatives and len(question.alternatives) >= 2
            assert 0 <= question.step < len(story.steps) - 1
    assert set(kind for kind, _ in answers) == set(konigsberg.KINDS)
    for kind, counted in answers.items():
        assert counted.most_common(1)[0][1] <= 0.40 * counted.total(), (kind, counted)


def test_validation_is_not_in_training():
    train, valid = (
        konigsberg.corpus(size, seed).split(konigsberg.SEPARATOR) for seed, size in ((0, 200_000), (1, 30_000))
    )
    assert not set(train) & set(valid)


# Tasks ----------------------------------------------------------------------------------------------------------------


REASON = {  # how a true reason ends
    "debt": lambda steps: f"{WORD[numbers_in(steps[2])[0]]} before.",
    "culprit": lambda steps: f"{re.search(r'in the [a-z]+', steps[1])[0]}.",
}


@pytest.mark.parametrize("kind", konigsberg.KINDS)
def test_preferences_differ_in_the_reason_alone(kind):
    for seed in range(30):
        pair = konigsberg.preference(seed, kind)
        assert pair.chosen != pair.rejected and pair.kind == kind
        body, question = pair.prompt[:-1].split("\n")
        story = konigsberg.parse(f"{body}\nEnde.")
        right = next(q.answer for q in story.questions if q.text == question).rstrip(".")
        assert pair.chosen.startswith(right) and pair.rejected.startswith(right)
        if kind in REASON:
            true = REASON[kind](story.steps)
            assert pair.chosen.endswith(true) and not pair.rejected.endswith(true)
