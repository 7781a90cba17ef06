"""Number figures, equations, exercises and theorems by chapter (6.5, A1.2), equally in the book and in JupyterLab.

    python -m tools.notebooks.numbering            # check; exit status 1 if a notebook lacks something
    python -m tools.notebooks.numbering --write    # add what is missing: `make numbers`

JupyterLab-MyST reads the numbering from the YAML at the top of the first cell, and only numbers items in Markdown. So
the caption of a figure is in a cell below it, a numbered equation has a label and `:enumerated:`, and a proof has
`:nonumber:`. Sphinx understands none of these. The book's extension therefore calls `for_sphinx` on each notebook that
it reads, which converts the markup to the form that Sphinx and MyST-NB need.
"""

import argparse
import copy
import json
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = re.compile(r"(\d\d|A\d+)_")
FRONT = re.compile(r"\A---\n.*?\n---\n\n?", re.S)
CAPTION = re.compile(r"\A:::\{figure\}\n:label: (?P<name>\S+)\n\n(?P<caption>(?:(?!\n:::).)+)\n:::\s*\Z", re.S)
EQUATION = re.compile(r"^(`{3,}|:{3,})\{math\}\n((?::\w+:.*\n)*:label: .+\n)", re.M)
PROOF = re.compile(r"^((?:`{3,}|:{3,})\{prf:proof\}.*\n)", re.M)
NUMBERED = re.compile(
    r"^(?:`{3,}|:{3,})\{(?P<kind>math|figure|exercise|prf:\w+)\}.*\n(?P<options>(?::[\w-]+:.*\n)+)", re.M
)


def chapter(name: str) -> str | None:
    """Return the number in a notebook's name: "6" for "06_attention", "A1" for "A1_cpu_runtime"; else None."""
    found = CHAPTER.match(name.rpartition("/")[2])
    return found and (found[1].lstrip("0") or "0")


# ---- Notebooks are JSON here: the source of a cell may be one string or a list of lines


def text(cell: dict) -> str:
    """Return a cell's source as one string."""
    return "".join(cell["source"])


def numbered(notebook: dict, number: str) -> dict:
    """Return a copy of a notebook with the markup that JupyterLab needs for its numbers."""
    front = f"---\nnumbering:\n  enumerator: {number}.%s\n  equation: false\n---\n\n"
    cells = []
    for cell in copy.deepcopy(notebook["cells"]):
        if cell["cell_type"] == "markdown":
            source = EQUATION.sub(_with(":enumerated:\n"), text(cell))
            source = PROOF.sub(_with(":nonumber:\n"), source)
            cells.append({**cell, "source": source} if source != text(cell) else cell)
            continue
        cells.append(cell)
        figure = cell["metadata"].get("mystnb", {}).pop("figure", None)
        if figure:
            source = f":::{{figure}}\n:label: {figure['name']}\n\n{figure['caption']}\n:::"
            caption = {
                "cell_type": "markdown",
                "id": f"caption-{cell['id']}",
                "metadata": {},
                "source": source,
            }
            cells.append(caption)
    cells[0] = {**cells[0], "source": front + FRONT.sub("", text(cells[0]))}
    return {**notebook, "cells": cells}


def _with(option):
    """Return a replacement function that adds an option to a directive that lacks this option."""

    def replaced(match):
        there = match[0] + match.string[match.end() :].partition("\n\n")[0]
        return match[0] if f"\n{option}" in there else match[0] + option

    return replaced


def for_sphinx(source: str) -> str:
    """Remove the markup for JupyterLab from a notebook's text, and move captions into the metadata of their figures."""
    notebook = json.loads(source)
    cells = []
    for cell in notebook["cells"]:
        words = text(cell)
        caption = CAPTION.match(words) if cell["cell_type"] == "markdown" and cells else None
        if caption:
            cells[-1]["metadata"].setdefault("mystnb", {})["figure"] = caption.groupdict()
            continue
        if cell["cell_type"] == "markdown":
            words = FRONT.sub("", words) if not cells else words
            cell["source"] = re.sub(r"^:(?:enumerated|nonumber):\n", "", words, flags=re.M)
        cells.append(cell)
    return json.dumps(notebook | {"cells": cells})


def in_jupyterlab(notebook: dict) -> dict[str, str]:
    """Return the number of each label in JupyterLab-MyST 2.7, which counts each kind separately, in page order."""
    front = FRONT.match(text(notebook["cells"][0]))
    template = re.search(r"^  enumerator: (.+)$", front[0], re.M)[1] if front else "%s"
    counts, found = Counter(), {}
    for cell in notebook["cells"]:
        for match in NUMBERED.finditer(text(cell)) if cell["cell_type"] == "markdown" else ():
            label = re.search(r"^:label: *(\S+)", match["options"], re.M)
            if ":nonumber:" in match["options"] or (match["kind"] == "math" and ":enumerated:" not in match[0]):
                continue
            counts[match["kind"]] += 1
            if label:
                found[label[1]] = template.replace("%s", str(counts[match["kind"]]))
    return found


def outdated(root: Path = ROOT) -> dict[Path, dict]:
    """Return corrected copies of the notebooks that JupyterLab would number differently from the book."""
    found = {}
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text("utf-8"))
        wanted = numbered(notebook, chapter(path.stem))
        if [text(cell) for cell in wanted["cells"]] != [text(cell) for cell in notebook["cells"]]:
            found[path] = wanted
    return found


def main() -> int:
    arguments = argparse.ArgumentParser(prog="make numbers", description=__doc__.split("\n")[0])
    arguments.add_argument("--write", action="store_true")
    write = arguments.parse_args().write
    found = outdated()
    for path, notebook in found.items():
        if write:
            import nbformat

            path.write_text(nbformat.writes(nbformat.reads(json.dumps(notebook), 4)) + "\n", "utf-8")
        print(f"{path.name}: {'numbered by chapter' if write else 'not numbered by chapter: make numbers'}")
    return 0 if write else len(found) > 0


if __name__ == "__main__":
    sys.exit(main())
