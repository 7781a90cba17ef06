"""Old names of modules, which still work and print one line with the new name.

They are for readers' own copies of notebooks, assignments and drills. For example, `import nanoeuler_lib.world` gives
the package `konigsberg`. `school.assign` and `school.roster` work only in a clone of the repository, because only a
clone has `tools`. The old names are from November 2026 and will be removed in version 0.4.
"""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.util import spec_from_loader

from nanoeuler_lib.errors import NanoEulerError

LIBRARY = "nanoeuler_lib."
MODULES = {  # old -> new; of several keys that begin a name, the longest counts
    "cuda.checker": "cudacheck",
    "cuda.source": "cudacheck.source",
    "engine.many": "nanoeuler_lib.engine.data_parallel",
    "plots": "nanoeuler_book.figures",
    "practice": "nanoeuler_book.checks",
    "school": "nanoeuler_book",
    "school.assign": "tools.course.papers",
    "school.drills": "nanoeuler_book.drills",
    "school.roster": "tools.course.roster",
    "shapes": "nanoeuler_book.shapes",
    "significance": "nanoeuler_book.significance",
    "speaking": "nanoeuler_lib.generation",
    "text.examples": "nanoeuler_lib.text.sft_data",
    "text.ngram": "nanoeuler_book.ngram",
    "text.turns": "nanoeuler_lib.text.chat_template",
    "text.vocabularies": "nanoeuler_lib.text.other_tokenizers",
    "training.evaluate": "nanoeuler_book.evaluate",
    "training.watch": "nanoeuler_lib.training.monitor",
    "understanding": "nanoeuler_book.interpretability",
    "understanding.scaling": "nanoeuler_book.scaling",
    "world": "konigsberg",
    "world.conversations": "nanoeuler_book.town",
    "world.more_wordings": "konigsberg.wordings",
    "world.tokens": "nanoeuler_book.town",
}
NAMES = {
    "cuda.checker.compiler.KERNELS": "nanoeuler_lib.cuda.KERNELS",
    "model.Weigh": "nanoeuler_lib.model.RowLoss",
    "training.rewards.problems_of": "konigsberg.tasks.route_sets",
    "understanding.edits.as_far": "nanoeuler_book.interpretability.edits.random_moves",
    "understanding.posteriors.believed": "nanoeuler_book.interpretability.posteriors.belief",
    "understanding.scaling": "nanoeuler_book.scaling",
    "world.conversations": "nanoeuler_book.town",
    "world.next_tokens": "nanoeuler_book.town.next_tokens",
    "world.token_costs": "nanoeuler_book.town.token_costs",
    "world.more_wordings": "konigsberg.wordings",
    "world.tokens": "nanoeuler_book.town",
}


def address(name: str) -> str | None:
    """Return the new name of a module; None if the name is not an old one."""
    parts = name.removeprefix(LIBRARY).split(".") if name.startswith(LIBRARY) else []
    for count in range(len(parts), 0, -1):
        if new := MODULES.get(".".join(parts[:count])):
            return ".".join([new, *parts[count:]])


def name_of(old: str) -> object:
    """Return the object that an old name means now; `old` has no `nanoeuler_lib.` in front.

    Raises AttributeError for any other name.
    """
    if old not in NAMES:
        raise AttributeError(f"there is no {LIBRARY}{old}")
    module, _, name = NAMES[old].rpartition(".")
    return getattr(importlib.import_module(module), name, None) or importlib.import_module(NAMES[old])


class Finder(MetaPathFinder, Loader):
    """Import modules by their old names; the first such import prints a line to standard error."""

    noted = False

    def find_spec(self, name, path=None, target=None):
        return spec_from_loader(name, self) if address(name) else None

    def exec_module(self, module):
        old, new = module.__name__, address(module.__name__)
        sys.modules[old] = importlib.import_module(new)
        for name in NAMES:
            owner, _, last = (LIBRARY + name).rpartition(".")
            if f"{owner}.".startswith(f"{old}."):
                setattr(importlib.import_module(address(owner)), last, name_of(name))
        if old == "nanoeuler_lib.world":  # old code catches its errors as NanoEulerError, which they were
            town = [part for key, part in sys.modules.items() if key.split(".")[0] == "konigsberg"]
            error = type("KonigsbergError", (sys.modules[old].KonigsbergError, NanoEulerError), {})
            for part in town:
                if hasattr(part, "KonigsbergError"):
                    part.KonigsbergError = error
        if not Finder.noted:
            print(f"{old} is now {new}: old names work until version 0.4", file=sys.stderr)
        Finder.noted = True


sys.meta_path.insert(0, Finder())
