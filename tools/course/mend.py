"""Mend a submission from its release before nbgrader runs: a copied, split, lost or unmarked cell costs no points.

nbgrader finds the graded cells of a notebook by a mark in their metadata, and gives a whole notebook up in which a
mark stands twice or is missing. Students copy cells, split and merge them, delete them, and use editors that drop
metadata. Afterwards each mark of the release stands once in the submission, with the release's points and locks.
"""

import copy
import re
import uuid

from nbformat import NotebookNode

KERNEL = re.compile(r"\b__global__\s+(?:__launch_bounds__\([^)]*\)|[^;{}(])*?(?!__launch)\b(\w+)\(")
DEFINED = re.compile(r"^(?:def|class) (\w+)|^(\w+) *=(?!=)", re.M)


def mark(cell) -> str:
    """The name by which nbgrader knows a cell, or ""."""
    marks = cell.metadata.get("nbgrader")
    return str(marks.get("grade_id") or "") if isinstance(marks, dict) else ""


def defines(cell) -> set[str]:
    """What a code cell defines at its outer level, or which kernels; it need not be Python that can be read."""
    if cell.cell_type != "code":
        return set()
    return {name for found in DEFINED.findall(cell.source) for name in found if name} | {*KERNEL.findall(cell.source)}


def asked(wanted) -> set[str]:
    """The names by which a gap or a check of the release is known again: `my_...`, `check_...`, or a kernel's."""
    names = defines(wanted)
    return {name for name in names if name.startswith(("my_", "check_"))} or names


def mend(notebook: NotebookNode, release: NotebookNode) -> str:
    """Mend the notebook in place; one line that names the cells, "" if there was nothing to do."""
    marked = {mark(cell): cell for cell in release.cells if mark(cell)}
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
            continue  # a gap that was merged into another cell: its stub would undo the answer
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
        "unknown: {}": unknown,
        "found without its mark: {}": found,
        "put back: {}": put_back,
    }
    return "; ".join(what.format(_few(names)) for what, names in told.items() if names)


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _last(same: list, wanted):
    """Of the copies of a cell the last, or the last that a student has changed."""
    changed = [cell for cell in same if cell.source.strip() not in ("", wanted.source.strip())]
    return (same if wanted.metadata.nbgrader.locked else changed or same)[-1]


def _unmarked(cells: list, release: list, wanted):
    """The cell that is the wanted one without its mark: by nbformat's id, by equal text, by a name, by its place."""
    free = [cell for cell in cells if not mark(cell)]
    by_id = [cell for cell in free if wanted.get("id") and cell.get("id") == wanted.id]
    by_text = [cell for cell in free if cell.source.strip() == wanted.source.strip()]
    names = asked(wanted)
    if not wanted.metadata.nbgrader.grade:  # a gap may have been merged behind a check, which is put back then
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
    """Where a cell of the release belongs: behind the nearest cell before it that still stands."""
    for before in reversed(release[: release.index(wanted)]):
        for at in reversed(range(len(cells))):
            same_mark = mark(before) and mark(cells[at]) == mark(before)
            same_id = before.get("id") and cells[at].get("id") == before.id
            if same_mark or same_id or cells[at].source.strip() == before.source.strip() != "":
                return at + 1
    return 0
