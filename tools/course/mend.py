"""Repair a submission before nbgrader runs, so that a copied, split or unmarked cell costs no points.

nbgrader finds the graded cells of a notebook by an id in their metadata, called the mark here. If a mark is missing or
occurs twice, nbgrader refuses the whole notebook. Students copy, split, merge and delete cells, and use editors that
drop metadata. After the repair each mark of the release occurs exactly once in the submission, with the release's
points and locks.
"""

import copy
import re
import uuid

from nbformat import NotebookNode

KERNEL = re.compile(r"\b__global__\s+(?:__launch_bounds__\([^)]*\)|[^;{}(])*?(?!__launch)\b(\w+)\(")
BOOK = re.compile(r"^from book_\w+ import ", re.M)
DEFINED = re.compile(r"^(?:def|class) (\w+)|^(\w+) *=(?!=)", re.M)


def mark(cell) -> str:
    """Return the id by which nbgrader identifies a cell, "" if the cell has none."""
    marks = cell.metadata.get("nbgrader")
    return str(marks.get("grade_id") or "") if isinstance(marks, dict) else ""


def defines(cell) -> set[str]:
    """Return the names and CUDA kernels that a code cell defines at its top level, even if it has syntax errors."""
    if cell.cell_type != "code":
        return set()
    return {name for found in DEFINED.findall(cell.source) for name in found if name} | {*KERNEL.findall(cell.source)}


def asked(wanted) -> set[str]:
    """Return the names that identify a gap or check: `my_...` and `check_...`, or else all names that it defines."""
    names = defines(wanted)
    return {name for name in names if name.startswith(("my_", "check_"))} or names


def mend(notebook: NotebookNode, release: NotebookNode) -> str:
    """Repair the notebook in place; return one line that lists the changed cells, "" if nothing was changed."""
    marked = {mark(cell): cell for cell in release.cells if mark(cell)}
    books = {found for cell in release.cells for found in BOOK.findall(cell.source)}
    for cell in notebook.cells if len(books) == 1 else ():  # handed out when the chapter had a different number
        cell.source = BOOK.sub(*books, cell.source)
    cells, copied, unknown, found, put_back = notebook.cells, [], [], [], []
    for name in dict.fromkeys(map(mark, cells)):
        same = [cell for cell in cells if mark(cell) == name]
        if name in marked:
            copied += [name] * (len(same) > 1)
            same.remove(_last(same, marked[name]))
        elif name:
            unknown.append(name)
        for cell in same:
            cell.metadata.pop("nbgrader", None)
    for name, wanted in sorted(marked.items(), key=lambda item: bool(item[1].metadata.nbgrader.grade)):
        standing = [cell for cell in cells if mark(cell) == name]
        if not standing and (cell := _unmarked(cells, release.cells, wanted)) is not None:
            found.append(name)
            standing = [cell]
        if (
            not standing
            and not wanted.metadata.nbgrader.grade
            and any(asked(wanted) <= defines(c) for c in cells if asked(wanted))
        ):
            continue  # the gap was merged into a different cell; restoring its stub would overwrite the answer
        if not standing:
            put_back.append(name)
            standing = [copy.deepcopy(wanted)]
            if notebook.nbformat_minor < 5:
                standing[0].pop("id", None)
            elif standing[0].id in [cell.id for cell in cells]:
                standing[0].id = uuid.uuid4().hex[:8]
            cells.insert(_place(cells, release.cells, wanted), standing[0])
        standing[0].metadata.nbgrader = copy.deepcopy(wanted.metadata.nbgrader)
    told = {
        "copies of {} count once": copied,
        "not in the release: {}": unknown,
        "found without its mark: {}": found,
        "restored: {}": put_back,
    }
    return "; ".join(what.format(_few(names)) for what, names in told.items() if names)


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _last(same: list, wanted):
    """Return the last copy of a cell; for a gap, return the last copy that the student has changed."""
    changed = [cell for cell in same if cell.source.strip() not in ("", wanted.source.strip())]
    return (same if wanted.metadata.nbgrader.locked else changed or same)[-1]


def _unmarked(cells: list, release: list, wanted):
    """Find the wanted cell among the cells without a mark by nbformat's id, defined names, text or position."""
    free = [cell for cell in cells if not mark(cell)]
    by_id = [cell for cell in free if wanted.get("id") and cell.get("id") == wanted.id]
    by_text = [cell for cell in free if cell.source.strip() == wanted.source.strip()]
    names = asked(wanted)
    if not wanted.metadata.nbgrader.grade:  # a gap may have been merged into a check, which is restored later
        free = [cell for cell in cells if not mark(cell) or mark(cell).endswith("-check")]
    by_name = [cell for cell in free if names and names <= defines(cell)]
    if candidates := by_id or by_name or by_text:
        return _last(candidates, wanted)
    if wanted.cell_type == "markdown":
        known = {cell.source.strip() for cell in release}
        at = _place(cells, release, wanted)
        if at < len(cells) and not mark(cells[at]) and cells[at].source.strip() not in known:
            return cells[at]
    return None


def _place(cells: list, release: list, wanted) -> int:
    """Return the index at which a cell of the release belongs, after its nearest predecessor that still exists."""
    for before in reversed(release[: release.index(wanted)]):
        for at in reversed(range(len(cells))):
            same_mark = mark(before) and mark(cells[at]) == mark(before)
            same_id = before.get("id") and cells[at].get("id") == before.id
            if same_mark or same_id or cells[at].source.strip() == before.source.strip() != "":
                return at + 1
    return 0
