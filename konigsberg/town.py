"""Königsberg, the town: its people and their voices, its things and places, its seven bridges and their true graph.

The words are in `town.toml`, beside this module.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from konigsberg.grammar import Word

TOWN = tomllib.loads(Path(__file__).with_name("town.toml").read_text("utf-8"))
PRONOUNS = {"he": {"his": "his", "him": "him"}, "she": {"his": "her", "him": "her"}}


def word(name: str, once: bool = True, **forms: str | Sequence[str]) -> Word:
    """Return a word of the town: its plain name and its other forms, of which a list becomes a tuple."""
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
    """Return the ways over a bridge from a shore, each with the shore it leads `to`; every such shore is as likely."""
    over = [(bridge, across(bridge, shore)) for bridge in BRIDGES if shore in shores_of(bridge)]
    ends = [end for _, end in over]
    return tuple(
        Word({"": str(bridge), "to": str(end)}, once=False, weight=1 / ends.count(end)) for bridge, end in over
    )


CROSSINGS = {shore: crossings(shore) for shore in SHORES}


def odd_shores(bridges: Sequence[Word]) -> tuple[Word, ...]:
    """Return the shores at which an odd number of the given bridges ends."""
    ends = [shore for bridge in bridges for shore in shores_of(bridge)]
    return tuple(shore for shore in SHORES if ends.count(shore) % 2)


def joined(bridges: Sequence[Word]) -> bool:
    """Say whether the given bridges hang together, so that one can get from each to every other."""
    reached, grown = set(), set(shores_of(bridges[0]))
    while grown - reached:
        reached |= grown
        grown = {shore for bridge in bridges if reached & set(shores_of(bridge)) for shore in shores_of(bridge)}
    return all(reached >= set(shores_of(bridge)) for bridge in bridges)


def euler_walk(bridges: Sequence[Word]) -> Word:
    """Say between which shores a walk crosses every given bridge just once, as Euler decided it in 1736."""
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
