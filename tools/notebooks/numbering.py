"""Number figures, equations, exercises and theorems by chapter (6.5, A1.2), alike in the book and in JupyterLab.

    python -m tools.notebooks.numbering            # check; exit status 1 on a notebook that lacks something
    python -m tools.notebooks.numbering --write    # add what is lacking: `make numbers`

JupyterLab-MyST numbers by the YAML at the top of the first cell, and only what Markdown says: so a figure's caption
stands in a cell under it, a numbered equation has a label and `:enumerated:`, a proof has `:nonumber:`. Sphinx knows
none of the three; `for_sphinx`, which the book's extension calls on each notebook as it is read, puts things as Sphinx
and MyST-NB want them.
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
    """The number in a notebook's name: "6" of "06_attention", "A1" of "A1_cpu_runtime"; None of a page."""
    found = CHAPTER.match(name.rpartition("/")[2])
    return found and (found[1].lstrip("0") or "0")


# ---- Notebooks are JSON as nbformat writes it: a cell's source may be one string or a list of lines.


def text(cell: dict) -> str:
    """A cell's source."""
    return "".join(cell["source"])


def numbered(notebook: dict, number: str) -> dict:
    """The notebook as JupyterLab wants it."""
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
    """What puts an option behind a directive's opening lines, where it is not there yet."""

    def replaced(match):
        there = match[0] + match.string[match.end() :].partition("\n\n")[0]
        return match[0] if f"\n{option}" in there else match[0] + option

    return replaced


def for_sphinx(source: str) -> str:
    """The text of a notebook without what is for JupyterLab alone; each caption in the metadata of its figure."""
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
    """Each label's number by the rule of JupyterLab-MyST 2.7: kinds count apart, in the order of the page."""
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
    """The notebooks that JupyterLab would number otherwise, as they should be."""
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
