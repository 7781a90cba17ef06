"""What the tests of the chapters share: the names a notebook defines, and the verdicts of its checks."""

import ast
import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")

ROOT = Path(__file__).resolve().parent.parent


def code_cells(name: str) -> list:
    """The code cells of notebooks/`name`.ipynb, in order."""
    cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


def definitions(name: str, *prefixes: str) -> SimpleNamespace:
    """The imports, functions and classes of all cells, and what is assigned to names that begin with `wrong_` or with
    one of `prefixes`; none of the experiments is run.
    """
    names = {}
    for cell in code_cells(name):
        for node in ast.parse(cell.source).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            target = target.elts[0] if isinstance(target, ast.Tuple) else target
            if getattr(target, "id", "").startswith(("wrong_", *prefixes)) or isinstance(
                node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
            ):
                exec(compile(ast.Module([node], []), name, "exec"), names)
    return SimpleNamespace(**names)


def run_tagged(name: str, *tags: str) -> dict:
    """The names that the cells with one of these tags define, run in order."""
    names = {"__name__": "chapter"}
    for cell in code_cells(name):
        if set(tags) & set(cell.metadata.get("tags", ())):
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(cell.source, name, "exec"), names)
    return names


def rejected(check: Callable, *answer) -> bool:
    """Whether a check says that an answer is wrong: by an AssertionError, or in words."""
    try:
        return check(*answer) not in ("right", "not written yet")
    except AssertionError:
        return True


def try_exercise(check: Callable, stub, solution, wrong_answers: dict) -> None:
    """An untouched gap is not written yet, the solution is right, and each of at least three wrong answers is wrong."""
    assert check(stub) == "not written yet"
    assert check(solution) == "right"
    assert len(wrong_answers) >= 3
    for name, wrong in wrong_answers.items():
        assert rejected(check, wrong), f"accepted: {name}"
