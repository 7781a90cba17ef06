"""Euler's map, typed by hand, and walks over it by trial."""

from functools import cache
from itertools import permutations

ENDS = {
    "Blacksmith's": "AK", "Merchant's": "AK", "Wooden": "AL", "Honey": "KL", "Green": "KV", "Giblet": "KV",
    "High": "VL",
}  # fmt: skip
SHORE = {"Altstadt": "A", "Kneiphof": "K", "Lomse": "L", "Vorstadt": "V"}


def walk(here, bridges):
    """The shore where a walk over these bridges ends; None if one of them is not there to be crossed."""
    for bridge in bridges:
        if here not in ENDS[bridge]:
            return None
        here = ENDS[bridge].replace(here, "")
    return here


@cache
def walks_over(bridges):
    """All (first, last) shores of walks that cross every one of these bridges once; bridges: a frozenset."""
    orders = list(permutations(bridges))
    return {(first, last) for first in "AKLV" for order in orders if (last := walk(first, order))}
