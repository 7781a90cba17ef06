"""Measure the length of each chapter: words, lines of code and long sentences, with an estimate of the time.

    python -m tools.notebooks.count             # a table over all chapters: `make count`
    python -m tools.notebooks.count --long 06   # and the sentences of over 35 words: `make count ARGS="--long 06"`
    python -m tools.notebooks.count --write     # and write the estimates into the headers: `make count ARGS=--write`

Words are counted in the text before the exercises, without code, formulas, captions, folded text, and the facts and the
map in the header. Lines are visible lines of code that are not blank. The section "Further on" is not counted.
Sentences are all visible sentences, including exercises and captions, without headings, tables and solutions; a formula
or a piece of code is one word. At most 3% of the sentences may have more than 35 words. The time in minutes is words /
110 + lines / 10 + formulas * 0.3 + 16 per gap. Each exercise adds 18, and the open exercise adds 75; the sum is rounded
up to half an hour. These weights were fitted to the times that readers of 21 chapters estimated.
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
WORDS, LINES = 2400, 250  # at most this many for one evening
EXERCISE, OPEN = 18, 75  # minutes
LONG, SHARE = 35, 0.03  # words per sentence, and the fraction of sentences that may have more
TIME = re.compile(r"(?<=\* - Time\n  - ).+(?:\n    .+)*")
FOLDS = {"hide-input", "hide-cell", "remove-input", "remove-cell", "check", "solution"}

# Markup that is not text. A box is dropped entirely if it contains the facts, the map or code, or is folded.
BOX = re.compile(r"^(?P<fence>`{3,}|:{3,})(?P<kind>[^\n]*)\n(?P<body>.*?)^(?P=fence)$", re.S | re.M)
DROPPED = re.compile(r"\{(?:list-table|code\S*)\}|[a-z+]*$")
FOLDED = re.compile(r"(?::[\w-]+:[^\n]*\n)*:class:[^\n]*\b(?:dropdown|here)\b")
FORMULA = re.compile(r"\s*(?:\$\$(.+?)\$\$|\$([^$]+)\$|\\begin\{(\w+\*?)\}(.+?)\\end\{\3\})(?:\s*(?=\s))?", re.S)
MARKUP = re.compile(r"^\([\w-]+\)=$|^:[\w-]+:.*$|\]\([^)]*\)", re.M)
CODE = re.compile(r"`[^`\n]+`")
ROLE = re.compile(r"\{[\w:]+\}`(?:([^`<]*?)\s*<[^`>]+>|([^`]+))`")
NONE = re.compile(r"^(?:#+ |\s*\|).*$", re.M)  # headings and tables have no sentences
PIECE = re.compile(r"\n\s*\n|^\s*(?:[-*]|\d+\.)\s", re.M)  # paragraphs, items of a list
STOP = re.compile(r"(?<=[.?!])[\"')\]*_]*\s+(?=[^a-z\s])")


@dataclass(frozen=True)
class Length:
    """The counts of a chapter."""

    words: int
    lines: int
    gaps: int
    exercises: int
    first: int = 0  # words before the first gap
    open: int = 0  # exercises without a check, also counted in `exercises`
    formulas: int = 0
    sentences: int = 0
    long: int = 0

    @property
    def hours(self) -> tuple[float, float]:
        """Return the estimated time in hours, rounded to half hours, of the page without and with its exercises."""
        page = self.words / 110 + self.lines / 10 + 0.3 * self.formulas + 16 * self.gaps
        whole = page + EXERCISE * (self.exercises - self.open) + OPEN * self.open
        return tuple(-(-minutes // 30) / 2 for minutes in (page, whole))

    @property
    def share(self) -> float:
        """Return the fraction of sentences that are long."""
        return self.long / max(self.sentences, 1)

    @property
    def time(self) -> str:
        """Return the text of the row `Time` in the chapter's header."""
        page, whole = (f"{hours:g}".replace(".5", "½").lstrip("0") for hours in self.hours)
        hours = f"about {page} h for the page, {whole} h with the exercises"
        return f"{hours}: an estimate from its words, formulas, code and gaps"


def prose(source: str, captions: bool = False, sign: str = " ") -> str:
    """Return the counted text of a Markdown cell; each formula and piece of code is replaced by `sign`."""

    def box(match):
        kind = match["kind"].split(" ")[0]
        if kind == "{math}":
            return f"$${match['body']}$$"
        if DROPPED.fullmatch(kind) or FOLDED.match(match["body"]) or (kind == "{figure}" and not captions):
            return "\n\n"
        return f"\n\n{prose(match['body'], captions, sign)}\n\n"

    def formula(match):
        ends = next(filter(None, match.groups()[::-1])).rstrip().endswith(".")  # the formula ends a sentence
        displayed = "$$" in match[0] or "\\begin" in match[0]  # a capital after it begins a new sentence
        ends = ends or (displayed and match.string[match.end() :].lstrip()[:1].isupper())
        return f" {sign}. " if ends and sign.strip() else f" {sign} "

    text = FORMULA.sub(formula, MARKUP.sub(" ", BOX.sub(box, source)))
    text = ROLE.sub(lambda role: sign if role[0].startswith("{cite") else role[1] or role[2], text)
    return CODE.sub(sign, text)


def size(text: str) -> int:
    """Return the number of words; a word has at least one letter or digit."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


def sentences(source: str) -> list[str]:
    """Return the sentences of a Markdown cell, including captions and lists; a formula becomes the word X."""
    pieces = PIECE.split(NONE.sub("\n\n", prose(source, captions=True, sign="X")))
    found = [" ".join(sentence.split()) for piece in pieces for sentence in STOP.split(piece)]
    return [sentence for sentence in found if size(sentence)]


def words(source: str) -> int:
    """Return the number of counted words in a Markdown cell."""
    return size(prose(source))


def parts(notebook: nbformat.NotebookNode) -> Iterator[tuple[str, nbformat.NotebookNode]]:
    """Yield each cell with the part of the chapter that contains it: "page", "Exercises", "Further on" or "Next"."""
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
    """Return the number of visible lines in a code cell; 0 if the cell is folded."""
    folded = cell.metadata.get("jupyter", {}).get("source_hidden") or FOLDS & set(cell.metadata.get("tags", ()))
    return 0 if folded else sum(bool(line.strip()) for line in cell.source.split("\n"))


def count(notebook: nbformat.NotebookNode) -> Length:
    """Count the words, lines, gaps, exercises and sentences of a chapter."""
    total = dict.fromkeys(("words", "first", "lines", "gaps", "exercises", "open", "formulas"), 0)
    for part, cell in parts(notebook):
        tags = set(cell.metadata.get("tags", ()))
        if part == "Exercises" and cell.cell_type == "markdown" and "solution" not in tags:
            total["exercises"] += len(re.findall(r"^`{3,}\{exercise\}", cell.source, re.M))
            total["open"] += "Rubric" in cell.source
        if part != "page" or "solution" in tags:
            continue
        if cell.cell_type == "markdown":
            total["words"] += words(cell.source)
            total["first"] += 0 if total["gaps"] else words(cell.source)
            total["formulas"] += len(FORMULA.findall(cell.source))
        else:
            total["lines"] += seen(cell)
            total["gaps"] += "gap" in tags
    said = all_sentences(notebook)
    return Length(**total, sentences=len(said), long=len(long_ones(said)))


def all_sentences(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the visible sentences of a chapter."""
    texts = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    texts = [cell for cell in texts if "solution" not in cell.metadata.get("tags", ())]
    return [sentence for cell in texts for sentence in sentences(FRONT.sub("", cell.source))]


def long_ones(said: list[str]) -> list[str]:
    """Return the sentences with more than 35 words."""
    return [sentence for sentence in said if size(sentence) > LONG]


def timed(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Write the estimated time into a notebook's header; return the notebook. Raises LookupError without such a row."""
    head = notebook.cells[0]
    if not TIME.search(head.source):
        raise LookupError("the header must have a row `Time`, got none")
    head.source = TIME.sub(count(notebook).time, head.source)
    return notebook


def table(lengths: dict[str, Length]) -> str:
    """Return a table with a line per chapter; numbers that exceed a limit are marked with *."""
    rows = [
        f"{'chapter':<24} {'words':>6} {'to gap':>7}  {'lines':>5}  {'long sentences':>18}  {'gaps':>4}"
        f" {'exercises':>9} {'page':>6} {'with exercises':>14}"
    ]
    for name, length in lengths.items():
        much, long = "*" if length.words > WORDS else " ", "*" if length.lines > LINES else " "
        winding = "*" if length.share > SHARE else " "
        page, whole = length.hours
        rows.append(
            f"{name:<24} {length.words:>6}{much} {length.first:>7} {length.lines:>5}{long}"
            f" {length.long:>3} of {length.sentences:>3} {length.share:>6.1%}{winding}"
            f" {length.gaps:>4} {length.exercises:>9} {page:>4.1f} h {whole:>12.1f} h"
        )
    over = sum(length.words > WORDS or length.lines > LINES for length in lengths.values())
    winding = sum(length.share > SHARE for length in lengths.values())
    return "\n".join(
        [
            *rows,
            f"limit for an evening: {WORDS} words, {LINES} lines; {over} of {len(lengths)} chapters exceed it (*)."
            f" Limit for sentences of more than {LONG} words: {SHARE:.0%}; {winding} chapters exceed it (*)",
        ]
    )


def main() -> int:
    arguments = argparse.ArgumentParser(prog="make count", description=__doc__.split("\n")[0])
    arguments.add_argument("--write", action="store_true", help="write the estimates into the headers")
    arguments.add_argument("--long", metavar="NN", help="print the long sentences of a chapter, or of `all`")
    options = arguments.parse_args()
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    notebooks = {path: nbformat.read(path, as_version=4) for path in paths}
    print(table({path.stem: count(notebook) for path, notebook in notebooks.items()}))
    for path, notebook in notebooks.items() if options.long else ():
        if options.long in ("all", path.stem, path.stem.partition("_")[0]):
            print(f"\n{path.stem}")
            print("\n".join(f"{size(s):>4} {s}" for s in long_ones(all_sentences(notebook))))
    for path, notebook in notebooks.items() if options.write else ():
        path.write_text(nbformat.writes(timed(notebook)) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
