"""Make submissions of a chapter's release, as students hand them in: right, untouched, or with named wrong answers.

The right answer to a gap is the book's own version, as in gap_runs.py: the name after `own_x or`, or what the
solution passes to the check. The wrong answers are those that the solution names in `show_rejected`. A gap in the text
has no such names; it gets the right answer with changed numbers. All answers are written into the gap as Python text.
"""

import ast
import inspect
import re
from pathlib import Path

import nbformat
from gap_runs import BOOK, changed, other, spoiled

from tools.course.assignment import ROOT, notebook_of
from tools.notebooks.bindings import Bindings, reads
from tools.notebooks.cells import python

OTHER_NUMBERS = "other numbers in its result"
CHANGED = "import functools\n\nimport numpy as np\n\n" + "\n".join(map(inspect.getsource, (other, changed, spoiled)))


class Answers:
    """The answers of a chapter: for each graded check, the source of a right answer and of named wrong ones."""

    def __init__(self, chapter: str, notebooks: Path = ROOT / "notebooks"):
        self.cells = nbformat.read(notebook_of(chapter, notebooks), as_version=4).cells
        self.bindings = Bindings(self.cells)
        self.text = "\n\n".join(cell.source for cell in self.cells if cell.cell_type == "code")
        self.gaps = {}  # grade_id of the gap -> (right source, {name: wrong source})
        for at, cell in enumerate(self.cells):
            marks = cell.metadata.get("nbgrader", {})
            if cell.cell_type == "code" and marks.get("grade"):
                gap = marks.grade_id.removesuffix("-check")
                judged = [self._judged(node) for node in ast.parse(python(cell)).body if _is_judged(node)]
                right = "\n".join(self._source(mine, answer, at, stands) for _, mine, answer, stands in judged)
                wrong = {}
                for check, mine, _, _ in judged:
                    for name, answer, stands in self._wrong(check):
                        wrong[name] = self._source(mine, answer, at, stands)
                if not wrong:
                    _, mine, answer, stands = judged[-1]
                    made = f"spoiled({answer})" if "in_place=True" in cell.source else f"changed({answer}, other)"
                    wrong[OTHER_NUMBERS] = CHANGED + self._source(mine, made, at, stands)
                self.gaps[gap] = right, wrong

    def _judged(self, node: ast.Assign) -> tuple:
        """Return check, targets, right expression and its last cell, of `own_x = judge(check, my_x, ...)`."""
        own, call = node.targets[0].id, node.value
        check, mine = ast.unparse(call.args[0]), ast.unparse(call.args[1]).strip("()")
        name = own.removeprefix("own_")
        if own in BOOK:
            return check, mine, BOOK[own], None
        if found := re.search(rf"\b{own} or (\([^)]*\)|\w+)", self.text):
            return check, mine, found[1], None
        for number, cell in enumerate(self.cells):
            if "solution" in cell.metadata.get("tags", ()) and f", {check}(" in cell.source:
                for call in ast.walk(ast.parse(python(cell))):
                    if isinstance(call, ast.Call) and getattr(call.func, "id", "") == check:
                        return check, mine, ast.unparse(call.args[0]), number
        bound = {n for s in self.bindings.statements for n in s.binds}
        return check, mine, next(n for n in (name, f"book_{name}", f"{name}_forward") if n in bound), None

    def _wrong(self, check: str) -> list[tuple[str, str, int]]:
        """Return (name, expression, cell) of each answer that show_rejected gets for this check."""
        found = []
        for number, cell in enumerate(self.cells):
            if cell.cell_type != "code" or "show_rejected" not in cell.source:
                continue
            for node in ast.walk(ast.parse(python(cell))):
                called = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "show_rejected"
                if called and ast.unparse(node.args[0]) == check:
                    table = node.args[1]
                    names = self._keys(table, number)
                    found += [(name, f"{ast.unparse(table)}[{name!r}]", number) for name in names]
        return found

    def _keys(self, table: ast.expr, number: int) -> list[str]:
        if isinstance(table, ast.Name):
            places = [s for s in self.bindings.statements if table.id in s.binds and s.cell <= number]
            table = ast.parse(places[-1].source).body[0].value
        return [ast.literal_eval(key) for key in table.keys] if isinstance(table, ast.Dict) else []

    def _source(self, mine: str, expression: str, at: int, stands: int | None = None) -> str:
        """Return the statements below cell `at` that give `mine` the value of an expression from cell `stands`."""
        needed = self.bindings.needed(reads(expression) - {"changed", "other", "spoiled"}, stands or at)
        return "\n".join([*(s.source for s in needed if s.cell > at), f"{mine} = {expression}"])


def _is_judged(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and getattr(getattr(node.value, "func", None), "id", "") == "judge"


def kinds(gaps: dict[str, tuple]) -> dict[str, dict[str, str]]:
    """Return the submissions of a chapter: {"right", "untouched", "wrong0", "wrong1"} -> {gap: answer's source}."""
    made = {"untouched": {}, "right": {gap: right for gap, (right, _) in gaps.items()}}
    for parity in (0, 1):
        made[f"wrong{parity}"] = {
            gap: next(iter(wrong.values())) if number % 2 == parity else right
            for number, (gap, (right, wrong)) in enumerate(gaps.items())
        }
    return made


def fill(release: Path, sources: dict[str, str], out: Path) -> None:
    """Write the released notebook with these sources in its gaps."""
    notebook = nbformat.read(release, as_version=4)
    for cell in notebook.cells:
        gap = cell.metadata.get("nbgrader", {}).get("grade_id")
        if gap in sources:
            cell.source = sources[gap] if cell.source.startswith("%%") else f"{cell.source}\n\n\n{sources[gap]}"
        elif sources and cell.cell_type == "markdown" and gap:
            cell.source = "An answer in words."
    out.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, out)
