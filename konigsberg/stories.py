"""Define the eight kinds of story: their templates, their plots and the questions that a story can answer.

For each kind, the templates come first and then the function that generates or parses a story of this kind.
`grammar.py` explains `{name}`. No text of a step may be a prefix of another text of the step (`grammar.py` gives the
reason), so nearly all templates have exactly one full stop, at the end. Texts are short because the longest story must
fit in 128 tokens of a vocabulary of 512.
"""

from collections.abc import Callable
from typing import NamedTuple

from konigsberg.grammar import Among, Tale, Word, capitalised
from konigsberg.town import (
    ALIBIS,
    BRIDGE_NAMED,
    BRIDGES,
    CAST,
    CAUSES,
    CRIMES,
    CROSSINGS,
    DAYS,
    EXTRAS,
    LATENESS,
    MURR,
    NUMBERS,
    PEOPLE,
    PLACES,
    SHORES,
    SMALL,
    SPOTS,
    THINGS,
    TOWN,
    WALKS,
    WARES,
    across,
    euler_walk,
    odd_shores,
)


class Ask(NamedTuple):
    """A question that a story can answer: its template and an answer template whose last slot is the requested fact."""

    kind: str
    question: str
    answer: str


class Question(NamedTuple):
    """A question, its answer, the wrong answers from other values of the fact, and the step that stated the fact."""

    kind: str
    text: str
    answer: str
    alternatives: tuple[str, ...]
    step: int  # an index of `Story.steps`


PHRASES = {name: tuple(texts) for name, texts in TOWN["phrases"].items()}


ERRAND = (
    "{b} sent {a} across town with {thing}.",
    "{b} lent {a} {thing} until {day}.",
    "{a} was minding {thing} for {b}.",
    "{a} had borrowed {thing} from {b}.",
    "on {day} {b} gave {a} {thing} to carry.",
    "{b} trusted {a} with {thing}.",
    "{a} had to bring {thing} to church for {b}.",
    "{a} was walking {thing} home for {b}.",
    "{a}, {a.who}, was to carry {thing} for {b}.",
)
ERRAND_FIRST = ("{handover}", "{thing.line} {Handover}")
ERRAND_SECOND = {
    "again": ("{handover}", "then {handover}", "soon {handover}", "alas, {handover}"),
    "cat": ("while {giver} {dozed}, Murr made off with it.", "{giver} {dozed}, and Murr saw his chance."),
    "kept": (
        '{b} came for {thing}. "{giver} has it," said {a}.',
        "when {b} came for {thing}, {a} pointed at {giver}, who {giver.did}.",
        "{b} searched {a} for {thing}. {giver} {giver.did}.",
        '{a} told {b} it was safe. "{giver.says}" said {giver}.',
    ),
}
ERRAND_CHASE = (
    "{b} asked {a}, who sent {b.him} to {giver}, who sent {b.him} to {taker}.",
    '{b} came. "{giver} has it," said {a}. "{taker} has it," said {giver}.',
    "when {b} came, {a} pointed at {giver}, and {giver} pointed at {taker}.",
    "{a} blamed {giver}, {giver} blamed {taker}, and {taker} {taker.did}.",
    "{b} traced {thing} from {a} to {giver} and on to {taker}.",
    "{b} came. {a} knew nothing, {giver} less, and {taker} {taker.did}.",
)


def errand(tale: Tale) -> list[Ask]:
    """Generate or parse a story in which a thing passes from person to person until its owner follows the trail."""
    tale.alias("giver", "a")
    tale.say(ERRAND_FIRST, taker=PEOPLE, bridge=BRIDGES)
    tale.alias("giver", "taker")
    second = tale.say(ERRAND_SECOND, taker=PEOPLE, bridge=BRIDGES)
    if second == "kept":
        tale.alias("before", "a")
    else:
        if second == "cat":
            tale.know("taker", MURR, CAST)
        tale.alias("before", "giver")
        tale.say(ERRAND_CHASE)
    return [
        Ask("holder", "Who has {thing}?", "{taker}."),
        Ask("before", "Who had it before {taker}?", "{before}."),
        Ask("owner", "Who wants {thing} back?", "{b}."),
        Ask("first", "Who had {thing} at first?", "{a}."),
    ]


BELIEF = (
    "{a} and {b} hid {small} in {place}.",
    "{b} kept watch while {a} put {small} in {place}.",
    "{a} showed {b} {small} and hid it in {place}.",
    "to be safe, {a} and {b} kept {small} in {place}.",
    '"Nobody looks in {place}," said {a}. {b} hid {small} there.',
    "{b} helped {a} to hide {small} in {place}.",
    "on {day} {a} and {b} put {small} in {place}.",
    "only {a} and {b} knew that {small} was in {place}.",
)
BELIEF_MOVES = (
    "while {out} was {gone}, {mover} moved it to {other}.",
    "{out} was {gone} when {mover} put it in {other}.",
    "with {out} {gone}, {mover} hid it in {other}, {tidy}.",
    "{mover} put it in {other} while {out} was {gone}.",
    "as {out} was {gone}, {mover} dropped it into {other}.",
)
BELIEF_WITNESS = {
    "saw": ("{home} saw it and {hush}.", "{home} watched and {hush}.", "{home} {hush}, having seen it all."),
    "slept": ("{home} slept through it.", "{home} saw nothing.", "{home} {dozed} and missed it."),
    "told": (
        "{home} saw it and ran to tell {out}.",
        "{out} heard of it from {home}.",
        "{out} saw it, and so did {home}.",
    ),
}
BELIEF_FALSE = (
    "{out} came back, and in {place} there was {dust}.",
    '{out} opened {place} in vain. "{out.says}" {out.he} said.',
    "back home, {out} found {dust} in {place}.",
    "{out} searched {place} and blamed Murr, wrongly.",
    "{out} looked in {place} in vain, and {mover} {mover.did}.",
    "in {place} {out} found {dust}, and {out.did}.",
)
BELIEF_TRUE = (
    "so {out} came back and went straight to {other}.",
    "so {out} looked in {other}, and {mover} {mover.did}.",
    '{out} opened {other} at once. "{out.says}" {out.he} said.',
    "{out} left {place} alone and tried {other}.",
    "in {other} {out} found {small}, and {out.did}.",
)


def belief(tale: Tale) -> list[Ask]:
    """Generate or parse a story about false belief: a thing is moved while one of two friends is out."""
    tale.say(BELIEF_MOVES, out=Among((tale["a"], tale["b"])), mover=PEOPLE, other=PLACES)
    tale.alias("home", "b" if tale["out"] is tale["a"] else "a")
    witness = tale.say(BELIEF_WITNESS)
    tale.say(BELIEF_TRUE if witness == "told" else BELIEF_FALSE)
    tale.alias("looked", "other" if witness == "told" else "place")
    tale.alias("thinks", "place" if witness == "slept" else "other")
    return [
        Ask("where", "Where is {small}?", "In {other}."),
        Ask("looks", "Where did {out} look?", "In {looked}."),
        Ask("believes", "Where would {home} look?", "In {thinks}."),
        Ask("mover", "Who moved {small}?", "{mover}."),
    ]


DEBT = (
    "{a} owed {b} {owed.coins} for {debt}.",
    "{b} had lent {a} {owed.coins} for {debt}.",
    "it was {owed.coins} that {a} owed {b} for {debt}.",
    "for {debt} {a} owed {b} {owed.coins}.",
    "{a}, {a.who}, owed {b} {owed.coins}.",
    "{a} lost {owed.coins} to {b} at {game}.",
    "{b} kept a list: {a}, {owed.coins}, for {debt}.",
    "{a} had {debt} from {b} for {owed.coins}, unpaid.",
)
DEBT_STEP = {
    "pays": (
        "{when} {a} paid back {paid}, {somehow}.",
        "{a} sold {trifle} and paid back {paid}.",
        "{a} paid {paid} {somehow}.",
        "{b} took {trifle} for {paid} of them.",
        "{b} forgave {a.him} {paid}.",
        "{a} paid {paid} {when}.",
    ),
    "borrows": (
        "{when} {a} borrowed {more} more {treat}.",
        "{a} needed {more} more {treat}.",
        "{a} came back for {more} more, {treat}.",
        "{a} lost {more} more at {game}.",
        "{b} added {more} for waiting.",
        "{when} {a} talked {b} into {more} more.",
        "{b} lent {a.him} {more} more {treat}.",
    ),
}
DEBT_TOTAL = (
    '"{owed}," {cried} {b}.',
    "that made {owed}.",
    "{b} wrote {owed} on the door.",
    "now it was {owed}.",
    "{owed}, and {b} {b.did}.",
)
DEBT_END = (
    "{a} still owes {b} {owed}, and {a.did}.",
    '"{owed}," {cried} {b}, and {a} {a.did}.',
    '{b} waits for {owed}. "{a.says}" said {a}.',
    "{b} dreams of {owed.coins} from {a}.",
    "{a} greets {b} from afar now, for {owed.coins}.",
    "{owed.coins} stand between {a} and {b}.",
)
DEBT_QUITS = (
    "so {a} owes {b} nothing, and {a.did}.",
    "{a} and {b} were quits. {b} {b.did}.",
    '"Nothing," {cried} {b}, and {a} {a.did}.',
)
MOST = 10  # largest debt, in Groschen


def change_debt(tale: Tale) -> None:
    """Generate or parse a step in which part of a debt is paid or more money is borrowed, and set the new debt."""
    owed = NUMBERS.index(tale["owed"])
    payable = owed - 1 if len(tale.ends) == 1 else owed  # the first payment leaves a debt, for the story continues
    paid, more = NUMBERS[1 : min(payable, 3) + 1], NUMBERS[1 : min(MOST - owed, 3) + 1]
    possible = {"pays": paid, "borrows": more}
    step = tale.say({label: DEBT_STEP[label] for label in possible if possible[label]}, paid=paid, more=more)
    change = NUMBERS.index(tale["paid" if step == "pays" else "more"])
    owed += -change if step == "pays" else change
    tale.alias("was", "owed")
    tale.know("owed", NUMBERS[owed], NUMBERS, "owed", "paid" if step == "pays" else "more")


def debt(tale: Tale) -> list[Ask]:
    """Generate or parse a story about a debt in Groschen that rises and falls."""
    tale.alias("start", "owed")
    change_debt(tale)
    tale.say(DEBT_TOTAL)
    change_debt(tale)
    tale.say(DEBT_END if tale["owed"] is not NUMBERS[0] else DEBT_QUITS)
    return [
        Ask("owes", "How much does {a} owe now?", "It is {owed}."),
        Ask("start", "How much was it at first?", "It was {start}."),
        Ask("creditor", "Whom did {a} owe?", "{b}."),
        Ask("debtor", "Who owed {b}?", "{a}."),
    ]


MARKET = (
    "{a} bought {count} {ware} at {price} Groschen each.",
    "{a} took {count} {ware} for {price} Groschen each.",
    "on {day} {a} bought {count} {ware} for {price} Groschen each.",
    "{a} needed {count} {ware}, {price} Groschen each.",
    "{a}, {a.who}, took {count} {ware} at {price} each.",
    "{count} {ware} at {price} Groschen each tempted {a}.",
)
MARKET_MORE = (
    "the {ware} made {cost}. Then {a.he} saw {extra} for {more}.",
    "the {ware} came to {cost}, and {extra} cost {more}.",
    '"{cost}," {cried} {b}, "and {more} for {extra}."',
    "that made {cost}, and {extra} was {more} on top.",
    "{b} asked {cost}, and {more} for {extra}.",
    "{cost} for {ware}; but {b} had {extra} for {more}.",
)
MARKET_SUM = (
    "{friend} made it {wrong}, but it was {total}.",
    '"{wrong}," said {friend}. "{total}," said {a}, and was right.',
    "{friend} said {total} and {friend.did}.",
    '"That makes {total}," said {friend}, {friend.who}.',
    "all told it was {total}, and {friend} {friend.did}.",
    "{friend} found {wrong} by algebra. It was {total}.",
)
MARKET_PAYS = (
    "{a} put down twenty and got back {change}.",
    "{a} paid with twenty and put {change} in a sock.",
    "{change} of twenty were left. {friend} carried {extra.that}.",
    "twenty less {total} is {change}, and {a} has {extra.that}.",
    "so {a} kept {change} of twenty. Murr got the {ware}.",
    "of twenty {change} were left, and {a} gave {friend} {extra.that}.",
)


def market(tale: Tale) -> list[Ask]:
    """Generate or parse a story about a purchase: some wares at one price, another ware, and the change from twenty."""
    count, price = (NUMBERS.index(tale[name]) for name in ("count", "price"))
    tale.know("cost", NUMBERS[count * price], NUMBERS, "count", "price")
    tale.say(MARKET_MORE, b=PEOPLE, extra=EXTRAS, more=NUMBERS[1:7])
    total = count * price + NUMBERS.index(tale["more"])
    tale.know("total", NUMBERS[total], NUMBERS, "cost", "more")
    tale.say(MARKET_SUM, b=PEOPLE, friend=PEOPLE, wrong=(*NUMBERS[total - 2 : total], *NUMBERS[total + 1 : total + 3]))
    tale.know("change", NUMBERS[20 - total], NUMBERS, "total")
    tale.say(MARKET_PAYS)
    return [
        Ask("cost", "What did the {ware} cost?", "They cost {cost}."),
        Ask("total", "What did {a} spend?", "It was {total}."),
        Ask("change", "What was left of twenty?", "There were {change}."),
        Ask("extra", "What came on top?", "{extra}."),
    ]


LETTER = (
    '{a} wrote to {b} on {sent}: "Bring {thing} to {spot}."',
    'on {sent} {a} wrote to {b}: "Come to {spot} with {thing}."',
    'on {sent} {a} wrote to {b}: "{thing}! {spot}!"',
    '{a} to {b}, {sent}: "Bring {thing} to {spot}."',
    '"To {spot} with {thing}!" wrote {a} to {b} on {sent}.',
    '{b} was sent a note on {sent}: "Bring {thing} to {spot}. {a}"',
    '"Dear {b}, bring {thing} to {spot}," wrote {a} on {sent}.',
)
LETTER_WAITS = (
    "{carrier} {kept} until {opened}.",
    "{carrier} {kept}, and brought it on {opened}.",
    "it lay under Murr until {carrier} brought it on {opened}.",
    "{carrier} hurried, and brought it on {opened}.",
    "{carrier} {kept}, and thought of it on {opened}.",
    "{carrier}, {carrier.who}, delivered it on {opened}.",
)
LETTER_READ = (
    "{b} ran to {spot} with {thing}, {late} late.",
    "so {b} went to {spot} with {thing}, {oddly}.",
    "{b} took {thing} to {spot}, {oddly}.",
    "{late} late, {b} came to {spot} with {thing}.",
    "{b} brought {thing} to {spot}.",
    "with {thing} {b} hurried to {spot}, {oddly}.",
)
LETTER_END = (
    "only {other} was there, {other.who}.",
    "{a} was there still, and {a.did}.",
    '"{late} late," {cried} {a}.',
    "{a} had gone home. {b} blamed {carrier}.",
    "{other} was there, but not {a}.",
    '"{b.says}" said {b} to {a}.',
    "there {a} {a.did}, but {carrier} hid.",
)


def letter(tale: Tale) -> list[Ask]:
    """Generate or parse a story about a letter that asks for a thing, waits for days, and is obeyed when opened."""
    sent = DAYS.index(tale["sent"])
    tale.say(LETTER_WAITS, carrier=PEOPLE, opened=DAYS[sent + 1 :])
    late = DAYS.index(tale["opened"]) - sent
    tale.know("late", LATENESS[late - 1], LATENESS, "sent", "opened")
    tale.say(LETTER_READ)
    tale.say(LETTER_END, other=PEOPLE)
    return [
        Ask("brings", "What was {b} to bring?", "{thing}."),
        Ask("meets", "Where was {b} to come?", "To {spot}."),
        Ask("late", "How late was it?", "It was {late}."),
        Ask("carrier", "Who brought the letter?", "{carrier}."),
        Ask("writer", "Who wrote the letter?", "{a}."),
    ]


WALK = (
    "{a} left {shore} with {thing} {purpose}.",
    "on {day} {a} left {shore} with {thing}.",
    "{a} lives in {shore}, and went out with {thing}.",
    "from {shore} {a} set off {purpose}, with {thing}.",
    "{a} took {thing} for a walk from {shore}.",
    "{a}, {a.who}, left {shore} with {thing}.",
)
WALK_OUT = (
    "{a.he} took {out} to {out.to} and forgot it there.",
    "over {out} {a.he} came to {out.to}, put it down and {pause}.",
    "{a.he} crossed {out}, {pause} in {out.to} and forgot {thing}.",
    "{thing.line} {a.He} left it in {out.to}, over {out}.",
    "{a.he} carried it over {out} and lost it in {out.to}.",
)
WALK_ON = (
    "then {a.he} crossed {on} to {on.to}.",
    "next came {on}, and in {on.to} {a.he} {pause}.",
    "{a.he} went on over {on} to {on.to}.",
    "by {on} {a.he} got to {on.to} and {pause}.",
)
WALK_END = {
    "back": (
        "there {a.he} missed {thing}, and went back to {out.to}.",
        '"{a.says}" said {a}, and ran back to {out.to}.',
        "{b} asked for {thing}, so {a} went back to {out.to}.",
        "so {a} went back to {out.to} for {thing}.",
    ),
    "stays": (
        "there {a.he} missed {thing}, but {b} had found it in {out.to}.",
        "{a} is in {on.to} still, and {thing} in {out.to}.",
        "{a} sent {b} from {on.to} to {out.to} for {thing}.",
        "{b} sat down on {thing} in {out.to}.",
    ),
}


def walk(tale: Tale) -> list[Ask]:
    """Generate or parse a story about a walk over two bridges by a person who leaves a thing and may go back for it."""
    tale.say(WALK_OUT, out=CROSSINGS[tale["shore"]])
    first = tale["out"]
    there = across(BRIDGE_NAMED[str(first)], tale["shore"])
    tale.say(WALK_ON, on=[way for way in CROSSINGS[there] if str(way) != str(first)])
    on = across(BRIDGE_NAMED[str(tale["on"])], there)
    end = tale.say(WALK_END, b=PEOPLE)
    tale.know("there", there, SHORES, "out")
    tale.know("now", *((there, SHORES, "out") if end == "back" else (on, SHORES, "on")))
    return [
        Ask("place", "Where is {a} now?", "In {now}."),
        Ask("left", "Where was {thing} left?", "In {there}."),
        Ask("crossed", "Which bridge came first?", "{out}."),
        Ask("home", "Where did {a} start?", "In {shore}."),
    ]


BRIDGE = (
    "{cause.sat} on {bridge}, so it was closed.",
    "{bridge} was closed, for {cause.sat} on it.",
    "on {day} {cause.sat} on {bridge} and closed it.",
    "nobody crossed {bridge}: {cause.sat} on it.",
    "as {cause.sat} on it, {bridge} was closed.",
)
BRIDGE_WORKED = (
    "{a} walked the other six once each, from {tour.from} to {tour.to}.",
    "{a} crossed the other six, none twice, from {tour.from} to {tour.to}.",
    '"Now it works," said {a}, and it did, from {tour.from} to {tour.to}.',
    "{a} won a bet: all six, once each, from {tour.from} to {tour.to}.",
    "from {tour.from} {a} took the other six, none twice, to {tour.to}.",
)
BRIDGE_CHANGE = {
    "opens": (
        "then {cause.gone}, and it opened again.",
        "when {cause.gone}, the bridge opened.",
        "{when} {cause.gone}, and all were open.",
    ),
    "closes": (
        "then {trouble.sat} on {second} too.",
        "{when} {trouble.sat} on {second}.",
        "soon {trouble.sat} on {second} as well.",
    ),
    "stays": (
        "{friend} did it too, from {tour.to} to {tour.from}.",
        "{friend} went the other way, from {tour.to} to {tour.from}.",
        "{cause} stayed, and {friend} {friend.did}.",
    ),
}
BRIDGE_END = (
    "with {open} bridges {euler.so}.",
    '"With {open}, {euler.so}," {cried} {a}.',
    '"{open} too many," said Hinrich, but {euler.so}.',
    "so there are {open}, and {euler.so}.",
)


def bridges(tale: Tale) -> list[Ask]:
    """Generate or parse a story in which one bridge is closed, and then may reopen or a second bridge may close."""
    open_now = [bridge for bridge in BRIDGES if bridge is not tale["bridge"]]
    one, other = odd_shores(open_now)
    tours = {Word({"": f"{x} to {y}", "from": str(x), "to": str(y)}): y for x, y in ((one, other), (other, one))}
    tale.say(BRIDGE_WORKED, a=PEOPLE, tour=tuple(tours))
    change = tale.say(BRIDGE_CHANGE, second=BRIDGES, trouble=CAUSES, friend=PEOPLE)
    because = ["bridge"]
    if change == "opens":
        open_now = BRIDGES
    elif change == "closes":
        open_now.remove(tale["second"])
        because.append("second")
    tale.know("open", NUMBERS[len(open_now)], NUMBERS, *because)
    tale.know("euler", euler_walk(open_now), WALKS.values(), *because)
    tale.say(BRIDGE_END)
    tale.know("goal", tours[tale["tour"]], SHORES, "tour")
    return [
        Ask("walk", "Is there a walk now?", "{euler}."),
        Ask("open", "How many bridges are open?", "There are {open}."),
        Ask("closed", "Which one closed first?", "{bridge}."),
        Ask("ended", "Where did {a} end?", "In {goal}."),
        Ask("walker", "Who crossed six bridges first?", "{a}."),
    ]


CULPRIT = (
    "somebody had {crime}. It was {a}, {b} or {c}.",
    "who had {crime}? {a}, {b} and {c} looked at the floor.",
    "on {day} somebody had {crime}: {a}, {b} or {c}.",
    "it was {a}, {b} or {c} who had {crime}.",
    "either {a}, {b} or {c} had {crime}.",
    "{a}, {b} or {c} had {crime}, that was clear.",
    "had {a} {crime}, or {b}, or {c}?",
)
CULPRIT_FIRST = (
    "{x} had been {alibi}, as {witness} swore.",
    "{witness} had seen {x} {alibi}.",
    "but {x} was {alibi} with {witness}.",
    "{x} was {alibi}, said {witness}, {witness.who}.",
    "{witness} came upon {x} {alibi}.",
)
CULPRIT_SECOND = (
    "{y} had been at {game} with {friend}.",
    "and {y} was with {friend}, as ever.",
    "{y} was playing {game} with {friend}.",
    "{y}, luckily, was with {friend}.",
    "{friend} was with {y} and saw nothing.",
    "{friend} was losing to {y} at {game}.",
)
CULPRIT_LEFT = (
    "that left {culprit}, who {culprit.did}.",
    '"Then it was {culprit}," said {witness}. "{culprit.says}" said {culprit}.',
    'all turned to {culprit}. "{culprit.says}" {culprit.he} said.',
    "so it was {culprit}, and {x} forgave {culprit.him}, but {y} did not.",
    "so {culprit} owes {x} and {y} an eel pie.",
    "{culprit} it was, and for once not Murr.",
    "{culprit} did it, while {x} was {alibi}.",
    "{culprit} did it, while {y} was with {friend}.",
    "that left {culprit}, and {friend} {friend.did}.",
    "it was {culprit}. {witness} still laughs at {x} {alibi}.",
)


def culprit(tale: Tale) -> list[Ask]:
    """Generate or parse a story about a misdeed with three suspects, two of whom turn out to have an alibi."""
    suspects = {tale[role]: role for role in "abc"}
    tale.say(CULPRIT_FIRST, x=Among(suspects), alibi=ALIBIS, witness=PEOPLE)
    del suspects[tale["x"]]
    tale.say(CULPRIT_SECOND, y=Among(suspects), friend=PEOPLE)
    del suspects[tale["y"]]
    tale.alias("culprit", *suspects.values())
    tale.say(CULPRIT_LEFT)
    return [
        Ask("culprit", "Who {crime.did}?", "{culprit}."),
        Ask("alibi", "Where was {x}?", "{alibi}."),
        Ask("friend", "Who was with {y}?", "{friend}."),
        Ask("witness", "Who spoke for {x}?", "{witness}."),
    ]


KINDS: dict[str, tuple[tuple[str, ...], Callable[[Tale], list[Ask]]]] = {
    "errand": (ERRAND, errand),
    "belief": (BELIEF, belief),
    "debt": (DEBT, debt),
    "market": (MARKET, market),
    "letter": (LETTER, letter),
    "walk": (WALK, walk),
    "bridges": (BRIDGE, bridges),
    "culprit": (CULPRIT, culprit),
}
ROLES = dict(
    a=PEOPLE, b=PEOPLE, c=PEOPLE, thing=THINGS, small=SMALL, place=PLACES, bridge=BRIDGES, shore=SHORES, day=DAYS,
    sent=DAYS[:4], spot=SPOTS, owed=NUMBERS[3:10], count=NUMBERS[2:5], price=NUMBERS[1:4], ware=WARES, cause=CAUSES,
    crime=CRIMES,
)  # fmt: skip
NO_QUESTION = "Ende."


def tell(tale: Tale, kind: str | None = None) -> tuple[str, tuple[Question, ...]]:
    """Generate or parse a complete story; return its kind and its questions. kind: a key of KINDS, or None: random."""
    openings = {name: templates for name, (templates, _) in KINDS.items() if kind in (None, name)}
    kind = tale.say(openings, **ROLES)
    asks = KINDS[kind][1](tale)
    questions = tuple(
        Question(ask.kind, tale.tell(ask.question), *tale.answers(capitalised(ask.answer))) for ask in asks
    )
    tale.say([*(f"{ask.question} {capitalised(ask.answer)}" for ask in asks), NO_QUESTION], lead="\n")
    return kind, questions
