"""How long is a chapter? Words and lines of code in view before its exercises, and an estimate of the time.

    python -m tools.notebooks.count            # a table over all chapters: `make count`
    python -m tools.notebooks.count --write    # put the estimates into the chapters' heads: `make count ARGS=--write`

Words: those of the text, without code, formulas, captions, the facts and the map at the head, and what is folded.
Lines: those of code that a reader sees, blank ones apart. "Further on" counts nowhere.
Minutes: words / 150 + lines / 10, and 12 for each gap and each exercise, rounded up to the half hour.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

from tools.notebooks.numbering import FRONT

ROOT = Path(__file__).resolve().parents[2]
WORDS, LINES = 2400, 250  # an evening
TIME = re.compile(r"(?<=\* - Time\n  - ).+(?:\n    .+)*")
FOLDS = {"hide-input", "hide-cell", "remove-input", "remove-cell", "check", "solution"}

# What no reader reads as text. A box is dropped whole if it is a caption, facts, the map, code, a formula, or folded.
BOX = re.compile(r"^(?P<fence>`{3,}|:{3,})(?P<kind>[^\n]*)\n(?P<body>.*?)^(?P=fence)$", re.S | re.M)
DROPPED = re.compile(r"\{(?:figure|list-table|math|code\S*)\}|[a-z+]*$")
FOLDED = re.compile(r"(?::[\w-]+:[^\n]*\n)*:class:[^\n]*\b(?:dropdown|here)\b")
FORMULA = re.compile(r"\$\$.+?\$\$|\$[^$]+\$|\\begin\{(\w+\*?)\}.+?\\end\{\1\}", re.S)
MARKUP = re.compile(r"^\([\w-]+\)=$|^:[\w-]+:.*$|\]\([^)]*\)", re.M)
CODE = re.compile(r"`[^`\n]+`")
ROLE = re.compile(r"\{[\w:]+\}`(?:([^`<]*?)\s*<[^`>]+>|([^`]+))`")


@dataclass(frozen=True)
class Length:
    """What a chapter asks of its reader."""

    words: int
    lines: int
    gaps: int
    exercises: int

    @property
    def hours(self) -> tuple[float, float]:
        """Half hours, as hours: of the page, and of the page with its exercises."""
        page = self.words / 150 + self.lines / 10 + 12 * self.gaps
        return tuple(-(-minutes // 30) / 2 for minutes in (page, page + 12 * self.exercises))

    @property
    def time(self) -> str:
        """What the head says."""
        page, whole = (f"{hours:g}".replace(".5", "½").lstrip("0") for hours in self.hours)
        return f"about {page} h for the page, {whole} h with the exercises: an estimate from its words, code and gaps"


def prose(source: str) -> str:
    """The words of a Markdown cell that count."""

    def box(match):
        if DROPPED.fullmatch(match["kind"].split(" ")[0]) or FOLDED.match(match["body"]):
            return " "
        return prose(match["body"])

    text = BOX.sub(box, source)
    text = ROLE.sub(lambda role: " " if role[0].startswith("{cite") else role[1] or role[2], text)
    return CODE.sub(" ", MARKUP.sub(" ", FORMULA.sub(" ", text)))


def words(source: str) -> int:
    """How many: what holds a letter or a digit."""
    return sum(any(map(str.isalnum, word)) for word in prose(source).split())


def parts(notebook: nbformat.NotebookNode) -> Iterator[tuple[str, nbformat.NotebookNode]]:
    """Each cell with the part that it stands in: "page", "Exercises", "Further on" or "Next"."""
    part = "page"
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            yield part, cell
            continue
        text = FRONT.sub("", cell.source)
        pieces = re.split(r"^## (Exercises|Further on|Next)\b.*$", text, flags=re.M)
        names = [part, *pieces[1::2]]
        for name, piece in zip(names, pieces[::2], strict=True):
            yield name, nbformat.NotebookNode(cell | {"source": piece})
        part = names[-1]


def seen(cell: nbformat.NotebookNode) -> int:
    """The lines of a code cell that a reader sees."""
    folded = cell.metadata.get("jupyter", {}).get("source_hidden") or FOLDS & set(
        cell.metadata.get("tags", ())
    )
    return 0 if folded else sum(bool(line.strip()) for line in cell.source.split("\n"))


def count(notebook: nbformat.NotebookNode) -> Length:
    """The length of a chapter."""
    total = {"words": 0, "lines": 0, "gaps": 0, "exercises": 0}
    for part, cell in parts(notebook):
        tags = set(cell.metadata.get("tags", ()))
        if part == "Exercises" and cell.cell_type == "markdown":
            total["exercises"] += len(re.findall(r"^`{3,}\{exercise\}", cell.source, re.M))
        if part != "page" or "solution" in tags:
            continue
        if cell.cell_type == "markdown":
            total["words"] += words(cell.source)
        else:
            total["lines"] += seen(cell)
            total["gaps"] += "gap" in tags
    return Length(**total)


def timed(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook with its estimate in its head."""
    head = notebook.cells[0]
    if not TIME.search(head.source):
        raise LookupError("the head has no row `Time`")
    head.source = TIME.sub(count(notebook).time, head.source)
    return notebook


def table(lengths: dict[str, Length]) -> str:
    """A line for each chapter; what exceeds an evening is marked."""
    rows = [
        f"{'chapter':<22} {'words':>7} {'lines':>6} {'gaps':>5} {'exercises':>9} {'page':>6} {'with exercises':>14}"
    ]
    for name, length in lengths.items():
        much, long = "*" if length.words > WORDS else " ", "*" if length.lines > LINES else " "
        page, whole = length.hours
        rows.append(
            f"{name:<22} {length.words:>6}{much} {length.lines:>5}{long} {length.gaps:>5} {length.exercises:>9}"
            f" {page:>4.1f} h {whole:>12.1f} h"
        )
    over = sum(length.words > WORDS or length.lines > LINES for length in lengths.values())
    return "\n".join(
        [*rows, f"an evening: {WORDS} words, {LINES} lines; {over} of {len(lengths)} exceed it (*)"]
    )


def main() -> int:
    arguments = argparse.ArgumentParser(prog="make count", description=__doc__.split("\n")[0])
    arguments.add_argument("--write", action="store_true", help="put the estimates into the heads")
    write = arguments.parse_args().write
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    notebooks = {path: nbformat.read(path, as_version=4) for path in paths}
    print(table({path.stem: count(notebook) for path, notebook in notebooks.items()}))
    for path, notebook in notebooks.items() if write else ():
        path.write_text(nbformat.writes(timed(notebook)) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
