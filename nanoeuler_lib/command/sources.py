"""Functions that return examples, pairs, questions and verifiers for the names that options and run headers use."""

import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import one_line
from nanoeuler_lib.text.data import SEPARATOR
from nanoeuler_lib.text.sft_data import Example, Pair
from nanoeuler_lib.training import preferences, sft

NAMES = KONIGSBERG, REWORDED, ROUTES = "konigsberg", "konigsberg-reworded", "konigsberg-routes"
STORIES, PAIRS, HELD_OUT = 10_000, 2000, 200


def verifiers(own: str | None = None) -> dict[str, Callable]:
    """Return the verifiers by name; the first one is correct, the next two are flawed on purpose.

    own: "MODULE:FUNCTION", a verifier of the user's, which is added under this name; any other text is ignored. Raises
    NanoEulerError if it cannot be imported.
    """
    import konigsberg

    found = {name: getattr(konigsberg, f"route_reward_{name}") for name in ("hackable", "brief")}
    found = {"route": konigsberg.route_reward} | found
    return found | ({own: _imported(own)} if own and ":" in own else {})


def _imported(name):
    """Import a function by its name, MODULE:FUNCTION; the module may be a file in the working directory."""
    module, _, function = name.partition(":")
    if module.endswith(".py") or not re.fullmatch(r"[\w.]*\w:\w+", name):
        raise NanoEulerError(
            f"--reward must be MODULE:FUNCTION, such as mine:reward for reward in mine.py, got {short(name)}"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(import_module(module), function, None)
    except Exception as error:  # the module is the user's, and may raise anything
        told = one_line(f"{type(error).__name__}: {error}", 200)
        raise NanoEulerError(f"--reward {name}: the module {module} cannot be imported ({told})") from error
    if not callable(found):
        raise NanoEulerError(
            f"--reward {name}: {function} must be a function of the module {module}, got {short(found)}"
        )
    return found


def examples(
    source: str | Path, count: int = 0, seed: int = 0, valid_fraction: float = 0.1
) -> tuple[list[Example], list[Example], str]:
    """Return examples to train on, examples held out, and their template; the arguments determine them.

    source: "konigsberg" for `count` stories (0: 10,000) with questions in the words of the corpus,
    "konigsberg-reworded" for many wordings (both hold out stories of the next seed); "konigsberg-routes" for `count`
    (0: 2,000) answered questions about a route; or a file (`sft.examples_of`), of which `valid_fraction` is held out.
    """
    from konigsberg.tasks import route_sets
    from nanoeuler_book.town import konigsberg_examples, route_examples

    if source == ROUTES:
        return *(route_examples(part, seed) for part in route_sets(count, seed)), "plain"
    if source in NAMES:
        parts = ((count or STORIES, seed), (HELD_OUT, seed + 1))
        return *(konigsberg_examples(*part, reworded=source == REWORDED) for part in parts), "plain"
    return sft.examples_of(source, count, seed, valid_fraction)


def pairs(
    source: str | Path, count: int = 0, seed: int = 0, valid_fraction: float = 0.1
) -> tuple[list[Pair], list[Pair]]:
    """Return pairs to train on and pairs held out; the arguments determine them.

    source: "konigsberg" for `count` (0: 2,000) stories, the next seed's held out; or a file (`preferences.pairs_of`).
    """
    from nanoeuler_book.town import konigsberg_pairs

    if source == KONIGSBERG:
        return konigsberg_pairs(count or PAIRS, seed), konigsberg_pairs(HELD_OUT, seed + 1)
    return preferences.pairs_of(source, count, seed, valid_fraction)


def questions(source: str, count: int = 0, seed: int = 0, valid_fraction: float = 0.1) -> tuple[list, list]:
    """Return questions about routes, to train on and held out (`route_sets`); source and valid_fraction are unused."""
    from konigsberg.tasks import route_sets

    return route_sets(count, seed)


def floor(text: str) -> float | None:
    """Return the bits per byte of a text under its source, for stories from Königsberg; None for other text."""
    import konigsberg

    try:
        return round(konigsberg.floor(text), 6) if SEPARATOR in text else None
    except konigsberg.KonigsbergError:
        return None
