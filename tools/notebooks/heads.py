"""What the head of a chapter says of it: the table of facts, and the chapters that it builds on.

The heads are the one place that says so; the instructor guide and its plans read it here.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import nbformat

from tools.notebooks import count, maps

ROOT = Path(__file__).resolve().parents[2]
FACTS = re.compile(r"^(`{3,}|:{3,})\{list-table\}[^\n]*\n:class: facts\n(.*?)^\1", re.S | re.M)
FACT = re.compile(r"^\* - (?P<name>.+)\n  - (?P<text>.+(?:\n    .+)*)", re.M)
EXERCISE = re.compile(r"^(`{3,})\{exercise\} (.+)\n:label: ex-(\S+)\n(.*?)^\1$", re.M | re.S)
LINK = re.compile(r"\]\((?:\.\./notebooks/)?(\w+)\.ipynb\)")


@dataclass(frozen=True)
class Chapter:
    """A chapter as its head, its marks and its length tell of it."""

    name: str  # of the notebook, "06_attention"
    title: str
    part: str
    facts: dict[str, str]  # name of the row: its Markdown
    length: count.Length
    points: int  # of all marks of nbgrader
    exercises: dict[str, tuple[str, bool]] = field(default_factory=dict)  # label: title, and whether it is open

    @property
    def number(self) -> str:
        """What stands before its name: "06", "A1"."""
        return self.name.partition("_")[0]

    @property
    def needs(self) -> list[str]:
        """The numbers of the chapters that its head links to as what a reader needs."""
        return list(dict.fromkeys(name.partition("_")[0] for name in LINK.findall(self.facts["You need"])))


def chapters(root: Path = ROOT) -> dict[str, Chapter]:
    """Every chapter of _toc.yml by its number, in its order; read once, whether the book is named or not."""
    return _chapters(root)


@cache
def _chapters(root: Path) -> dict[str, Chapter]:
    book = [read(path, part) for part, paths in maps.parts(root) for path in paths]
    return {chapter.number: chapter for chapter in book}


def read(path: Path, part: str = "") -> Chapter:
    """The chapter in this file. LookupError if its head has no facts, or lacks one of the rows that are read here."""
    notebook = nbformat.read(path, as_version=4)
    table = FACTS.search(notebook.cells[0].source)
    facts = {m["name"]: " ".join(m["text"].split()) for m in FACT.finditer(table[2])} if table else {}
    for row in ("You need", "Hardware", "Afterwards you can"):
        if row not in facts:
            raise LookupError(f"{path.name}: the head has no row `{row}`, found {list(facts)}")
    points = sum(cell.metadata.get("nbgrader", {}).get("points", 0) for cell in notebook.cells)
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    exercises = {
        label: (title, "Rubric" in text) for source in texts for _, title, label, text in EXERCISE.findall(source)
    }
    return Chapter(path.stem, maps.title(notebook), part, facts, count.count(notebook), points, exercises)
