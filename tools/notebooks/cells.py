"""Read the code cells of a notebook, and run those with a tag, for the chapter's long experiments and tests."""

import contextlib
import io
import json
from pathlib import Path
from types import SimpleNamespace

from nanoeuler_lib import cuda

ROOT = Path(__file__).resolve().parents[2]


def code_cells(name: str) -> list[SimpleNamespace]:
    """Return the code cells of notebooks/`name`.ipynb, in order: id, source and metadata.

    The file is read without nbformat, because GPU machines often have no Jupyter.
    """
    cells = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8"))["cells"]
    return [
        SimpleNamespace(id=cell["id"], source="".join(cell["source"]), metadata=cell["metadata"])
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def python(cell) -> str:
    """Return a cell's Python without lines that are magics; "" for a cell in a different language."""
    if cell.source.startswith("%%"):
        return ""
    return "\n".join("" if line.startswith("%") else line for line in cell.source.split("\n"))


def kernels(cell, checked: bool = True) -> dict:
    """Compile the kernels of a cell that begins with %%cuda, and return them by name; other cells have none.

    checked: whether the kernels run with cudacheck's checks.
    """
    magic, _, text = cell.source.partition("\n")
    if magic != "%%cuda":
        return {}
    module = cuda.module(text, checked=checked)
    return {name: module[name] for name in module}


def run_tagged(name: str, *tags: str) -> dict:
    """Run the cells that have one of these tags, in order, and return the variables that the cells define.

    Printed output is dropped. Kernels are compiled without checks, because experiments need the speed.
    """
    names = {"__name__": "chapter"}
    for cell in code_cells(name):
        if set(tags) & set(cell.metadata.get("tags", ())):
            names |= kernels(cell, checked=False)
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(python(cell), name, "exec"), names)
    return names
