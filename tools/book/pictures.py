"""Copy figures of chapters to book/_static, from which the landing page and README.md load them.

python -m tools.book.pictures    # after a chapter was executed
"""

import base64
import itertools
from pathlib import Path

import nbformat

from tools.notebooks import numbering

ROOT = Path(__file__).resolve().parents[2]

# file in book/_static: (notebook, label of the figure)
PICTURES = {"story.png": ("00_start_here.ipynb", "fig-start-surprise")}


def drawn(notebook: str, figure: str) -> nbformat.NotebookNode:
    """Return the cell that draws a notebook's figure. Raises LookupError if the notebook has no such figure."""
    cells = nbformat.read(ROOT / "notebooks" / notebook, as_version=4).cells
    for cell, below in itertools.pairwise(cells):
        if (caption := numbering.CAPTION.match(below.source)) and caption["name"] == figure:
            return cell
    raise LookupError(f"{notebook}: no figure {figure}")


def picture(notebook: str, figure: str) -> bytes:
    """Return the PNG of a notebook's figure. Raises LookupError if the notebook has no such figure or has not run."""
    for output in drawn(notebook, figure).outputs:
        if "image/png" in output.get("data", {}):
            return base64.b64decode(output.data["image/png"])
    raise LookupError(f"{notebook} must be run first: figure {figure} has not been drawn")


def described(notebook: str, figure: str) -> str:
    """Return the alt text of a notebook's figure. Raises LookupError if the notebook has no such figure."""
    return drawn(notebook, figure).metadata["mystnb"]["image"]["alt"]


def stale() -> list[str]:
    """Return the names of the files in book/_static that differ from the notebooks' figures."""
    folder = ROOT / "book" / "_static"
    return [
        name
        for name, source in PICTURES.items()
        if not (folder / name).exists() or (folder / name).read_bytes() != picture(*source)
    ]


if __name__ == "__main__":
    for name in stale():
        (ROOT / "book" / "_static" / name).write_bytes(picture(*PICTURES[name]))
        print(f"book/_static/{name}")
