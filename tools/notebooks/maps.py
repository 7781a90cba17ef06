"""Keep the "You are here" map of every chapter equal to `_toc.yml`.

    python -m tools.notebooks.maps            # check; exit status 1 on a difference
    python -m tools.notebooks.maps --write    # update the maps

A map has a line for each part of the book. It names each chapter by its title (`# 06 Attention`); the title of the
notebook itself is bold.
"""

import argparse
import re
import sys
from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[2]
MAP = re.compile(r"(:::\{admonition\} You are here\n:class: here dropdown\n).*?(\n:::)", re.S)


def parts(root: Path = ROOT) -> list[tuple[str, list[Path]]]:
    """Return (caption, notebooks) for each part of the book that has chapters."""
    toc = yaml.safe_load((root / "_toc.yml").read_text("utf-8"))
    found = []
    for part in toc["parts"]:
        files = [root / f"{chapter['file']}.ipynb" for chapter in part["chapters"]]
        if chapters := [file for file in files if file.parent.name == "notebooks"]:
            found.append((" ".join(part["caption"].split()), chapters))
    return found


def title(notebook: nbformat.NotebookNode) -> str:
    """Return the text of a notebook's first heading."""
    headings = (re.search(r"^# (.+)$", cell.source, re.M) for cell in notebook.cells)
    return next(found[1] for found in headings if found)


def outdated(root: Path = ROOT) -> dict[Path, nbformat.NotebookNode]:
    """Return corrected copies of the notebooks whose map differs from the table of contents."""
    book = parts(root)
    notebooks = {file: nbformat.read(file, as_version=4) for _, files in book for file in files}
    names = {file: title(notebook) for file, notebook in notebooks.items()}
    found = {}
    for here, notebook in notebooks.items():
        lines = []
        for caption, files in book:
            chapters = [f"**{names[f]}**" if f == here else f"[{names[f]}]({f.name})" for f in files]
            lines.append(f"{caption}: {' → '.join(chapters)}")
        cell = next((cell for cell in notebook.cells if MAP.search(cell.source)), None)
        if cell is None:
            raise LookupError(f"{here.name}: must have an admonition `You are here`, got none")
        wanted = MAP.sub(lambda m, lines=lines: m[1] + "\\\n".join(lines) + m[2], cell.source)
        if wanted != cell.source:
            cell.source = wanted
            found[here] = notebook
    return found


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--write", action="store_true")
    write = arguments.parse_args().write
    found = outdated()
    for file, notebook in found.items():
        if write:
            file.write_text(nbformat.writes(notebook) + "\n", "utf-8")
        print(f"{file.name}: the map of the book {'was updated' if write else 'is out of date'}")
    return 0 if write else len(found) > 0


if __name__ == "__main__":
    sys.exit(main())
