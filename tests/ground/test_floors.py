"""The house: which wing may import which. Nothing goes up, and nothing of the package hides inside a function."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "nanoeuler_lib"
GROUND = {"errors", "config", "files", "machine"}
TOWN = {"world/tokens.py", "world/conversations.py"}  # of the town these two need the tokenizer
MAY_IMPORT = {  # a wing: those below it, beside itself and the ground
    "ops": set(),
    "cuda": set(),
    "text": set(),
    "model": {"ops"},
    "world": set(),  # not even the ground
    "town": {"text", "world"},
    "corpus": {"text"},
    "engine": {"model", "ops", "cuda"},
    "speaking": {"text", "model"},
    "training": {"text", "model", "ops", "engine", "speaking"},
    "formats": {"model", "text", "training"},
    "plots": set(),
    "shapes": set(),
    "significance": set(),
    "practice": {"ops"},
    "understanding": {"significance", "training", "text", "model", "ops", "world", "speaking"},
    "school": {"training", "text", "model", "world", "speaking"},
}

# The town's measure and routes, which notebooks import from here; they move out together with the town.
LEAVING = {("training/evaluate.py", "world"), ("training/rewards.py", "world")}


def imports(file):
    """(wing that is imported, whether at the top) for each import of the package in a file."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        assert not getattr(node, "level", 0), f"{file}: a relative import"
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        for path in (name.split(".") for name in names):
            if path[0] == "nanoeuler_lib" and path[1:] not in ([], ["__version__"]):
                yield path[1], node.col_offset == 0


def test_nothing_is_imported_upward():
    seen, wrong = set(), []
    for file in PACKAGE.rglob("*.py"):
        path = file.relative_to(PACKAGE)
        wing = "town" if path.as_posix() in TOWN else path.parts[0].removesuffix(".py")
        seen.add(wing)
        below = MAY_IMPORT.get(wing, set()) | {wing} | (set() if wing == "world" else GROUND)
        for other, at_the_top in imports(file):
            if wing == "command" or (path.as_posix(), other) in LEAVING:
                continue
            if other not in below or not at_the_top:
                wrong.append(f"{path} imports {other}{'' if at_the_top else ', inside a function'}")
    assert not wrong, "\n".join(wrong)
    assert seen - {"__init__", "command"} == GROUND | MAY_IMPORT.keys()
