"""A notebook's code cells, and what those with a tag define: for a chapter's long experiment and for its tests."""

import contextlib
import io
from pathlib import Path

import nbformat

from nanoeuler_lib import cuda

ROOT = Path(__file__).resolve().parents[2]


def code_cells(name: str) -> list:
    """The code cells of notebooks/`name`.ipynb, in order."""
    cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


def python(cell) -> str:
    """A cell's Python: nothing of a cell in another language, and no line that is a magic."""
    if cell.source.startswith("%%"):
        return ""
    return "\n".join("" if line.startswith("%") else line for line in cell.source.split("\n"))


def kernels(cell, checked: bool = True) -> dict:
    """The kernels of a cell that begins with %%cuda alone, by name; of any other cell none."""
    magic, _, text = cell.source.partition("\n")
    if magic != "%%cuda":
        return {}
    module = cuda.module(text, checked=checked)
    return {name: module[name] for name in module}


def run_tagged(name: str, *tags: str) -> dict:
    """The names that the cells with one of these tags define, run in order; what they print is dropped.

    Kernels are compiled without the checker: this is for experiments.
    """
    names = {"__name__": "chapter"}
    for cell in code_cells(name):
        if set(tags) & set(cell.metadata.get("tags", ())):
            names |= kernels(cell, checked=False)
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(python(cell), name, "exec"), names)
    return names
