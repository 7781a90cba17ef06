"""A notebook's code cells, and what those with a tag define: for a chapter's long experiment and for its tests."""

import contextlib
import io
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent


def code_cells(name: str) -> list:
    """The code cells of notebooks/`name`.ipynb, in order."""
    cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


def run_tagged(name: str, *tags: str) -> dict:
    """The names that the cells with one of these tags define, run in order; what they print is dropped."""
    names = {"__name__": "chapter"}
    for cell in code_cells(name):
        if set(tags) & set(cell.metadata.get("tags", ())):
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(cell.source, name, "exec"), names)
    return names
