"""Define the town's people, things and places, and its seven bridges with their graph. The words are in `town.toml`."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from konigsberg.grammar import Word

TOWN = tomllib.loads(Path(__file__).with_name("town.toml").read_text("utf-8"))
PRONOUNS = {"he": {"his": "his", "him": "him"}, "she": {"his": "her", "him": "her"}}


def word(name: str, once: bool = True, **forms: str | Sequence[str]) -> Word:
    """Return a word of the town with its name and its other forms; a form given as a list becomes a tuple."""
    forms = {form: text if isinstance(text, str) else tuple(text) for form, text in forms.items()}
    return Word({"": name} | forms, once)


def words(kind: str, once: bool = True) -> tuple[Word, ...]:
    """Return the words that `town.toml` lists under `kind`."""
    return tuple(word(row, once) if isinstance(row, str) else word(**row, once=once) for row in TOWN[kind])


CAST = tuple(word(**row, **PRONOUNS[row["he"]]) for row in TOWN["people"])
PEOPLE, MURR = CAST[:-1], CAST[-1]
(
    KAETHE, JUERGEN, JOHANNA, GOLDBACH, BERNOULLI, LEONHARD, IMMANUEL, HINRICH, KUEHN, ULRIKE, MOELLER, GRETE,
) = PEOPLE  # fmt: skip
SMALL, LARGE = words("small"), words("large")
THINGS = SMALL + LARGE
PLACES, SPOTS, ALIBIS = words("places"), words("spots"), words("alibis")
NUMBERS = tuple(
    word(name, once=False, coins=name if name == "nothing" else f"{name} Groschen") for name in TOWN["numbers"]
)
DAYS, LATENESS = words("days"), words("lateness")
WARES, EXTRAS = words("wares"), words("extras")
CRIMES, CAUSES = words("crimes"), words("causes")

KNEIPHOF, ALTSTADT, VORSTADT, LOMSE = SHORES = words("shores", once=False)
_NAMED = {str(shore): shore for shore in SHORES}
SPAN = {bridge: (_NAMED[one], _NAMED[other]) for bridge, (one, other) in TOWN["bridges"].items()}
BRIDGES = tuple(Word({"": f"the {name} Bridge", "name": name}) for name in SPAN)
BRIDGE_NAMED = {str(bridge): bridge for bridge in BRIDGES}


def shores_of(bridge: Word) -> tuple[Word, Word]:
    """Return the two shores that a bridge joins."""
    return SPAN[bridge.forms["name"]]


def across(bridge: Word, shore: Word) -> Word:
    """Return the shore at the other end of a bridge."""
    one, other = shores_of(bridge)
    return other if shore is one else one


def crossings(shore: Word) -> tuple[Word, ...]:
    """Return the bridges from a shore, with the other shore as form `to`; reachable shores are equally likely."""
    over = [(bridge, across(bridge, shore)) for bridge in BRIDGES if shore in shores_of(bridge)]
    ends = [end for _, end in over]
    return tuple(
        Word({"": str(bridge), "to": str(end)}, once=False, weight=1 / ends.count(end)) for bridge, end in over
    )


CROSSINGS = {shore: crossings(shore) for shore in SHORES}


def odd_shores(bridges: Sequence[Word]) -> tuple[Word, ...]:
    """Return the shores where an odd number of the given bridges end."""
    ends = [shore for bridge in bridges for shore in shores_of(bridge)]
    return tuple(shore for shore in SHORES if ends.count(shore) % 2)


def joined(bridges: Sequence[Word]) -> bool:
    """Return whether the given bridges are connected, so that you can walk from each bridge to every other bridge."""
    reached, grown = set(), set(shores_of(bridges[0]))
    while grown - reached:
        reached |= grown
        grown = {shore for bridge in bridges if reached & set(shores_of(bridge)) for shore in shores_of(bridge)}
    return all(reached >= set(shores_of(bridge)) for bridge in bridges)


def euler_walk(bridges: Sequence[Word]) -> Word:
    """Return an answer that states whether a walk can cross every given bridge exactly once, and from where to where.

    By Euler's criterion of 1736, the walk exists if the bridges are connected and at most two shores have an odd number
    of bridges.
    """
    odd = odd_shores(bridges)
    return WALKS[odd if joined(bridges) and len(odd) <= 2 else None]


WALKS = {
    None: Word({"": "No", "so": "there is no such walk"}),
    (): Word({"": "Yes, from anywhere", "so": "the walk can start anywhere"}),
} | {
    (one, other): Word({"": f"Yes, from {one} to {other}", "so": f"the walk leads from {one} to {other}"})
    for i, one in enumerate(SHORES)
    for other in SHORES[i + 1 :]
}
