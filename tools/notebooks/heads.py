"""Read the header of a chapter: the table of facts, and the chapters that it needs.

These facts are written only in the headers; the instructor guide and its plans read them with this module.
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
    """A chapter: the facts in its header, its points, its exercises and its length."""

    name: str  # of the notebook: "06_attention"
    title: str
    part: str
    facts: dict[str, str]  # name of the row: its Markdown
    length: count.Length
    points: int  # the sum of nbgrader's points
    exercises: dict[str, tuple[str, bool]] = field(default_factory=dict)  # label: title, and whether it is open

    @property
    def number(self) -> str:
        """Return the number at the beginning of the chapter's name: "06", "A1"."""
        return self.name.partition("_")[0]

    @property
    def needs(self) -> list[str]:
        """Return the numbers of the chapters to which the row `You need` in the header links."""
        return list(dict.fromkeys(name.partition("_")[0] for name in LINK.findall(self.facts["You need"])))


def chapters(root: Path = ROOT) -> dict[str, Chapter]:
    """Return the chapters of _toc.yml by number, in order; the chapters of a folder are read only once."""
    return _chapters(root)


@cache
def _chapters(root: Path) -> dict[str, Chapter]:
    book = [read(path, part) for part, paths in maps.parts(root) for path in paths]
    return {chapter.number: chapter for chapter in book}


def read(path: Path, part: str = "") -> Chapter:
    """Read a chapter from a notebook. Raises LookupError if a row is missing from the facts in its header."""
    notebook = nbformat.read(path, as_version=4)
    table = FACTS.search(notebook.cells[0].source)
    facts = {m["name"]: " ".join(m["text"].split()) for m in FACT.finditer(table[2])} if table else {}
    for row in ("You need", "Hardware", "Afterwards you can"):
        if row not in facts:
            raise LookupError(f"{path.name}: the header must have a row `{row}`, got {list(facts)}")
    points = sum(cell.metadata.get("nbgrader", {}).get("points", 0) for cell in notebook.cells)
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    exercises = {
        label: (title, "Rubric" in text) for source in texts for _, title, label, text in EXERCISE.findall(source)
    }
    return Chapter(path.stem, maps.title(notebook), part, facts, count.count(notebook), points, exercises)
