"""How long is a chapter? Words, lines of code and long sentences, and an estimate of the time.

    python -m tools.notebooks.count             # a table over all chapters: `make count`
    python -m tools.notebooks.count --long 06   # and the sentences of over 35 words: `make count ARGS="--long 06"`
    python -m tools.notebooks.count --write     # put the estimates into the chapters' heads: `make count ARGS=--write`

Words: those of the text before the exercises, without code, formulas, captions, the facts and the map at the head, and
what is folded. Lines: those of code that a reader sees, blank ones apart. "Further on" counts nowhere.
Sentences: all that is in view, exercises and captions too, without headings, tables and solutions; a formula or a
piece of code is one word. At most 3% of them may have more than 35 words.
Minutes: words / 110 + lines / 10 + formulas * 0.3 + 16 for each gap, and 18 for each exercise, 75 for the open one,
rounded up to the half hour. The weights come nearest to the times that readers of 21 chapters estimated.
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
EXERCISE, OPEN = 18, 75  # minutes
LONG, SHARE = 35, 0.03  # words of a sentence, and how many may have more
TIME = re.compile(r"(?<=\* - Time\n  - ).+(?:\n    .+)*")
FOLDS = {"hide-input", "hide-cell", "remove-input", "remove-cell", "check", "solution"}

# What no reader reads as text. A box is dropped whole if it is facts, the map, code or folded.
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
    """What a chapter asks of its reader."""

    words: int
    lines: int
    gaps: int
    exercises: int
    open: int = 0  # of these, those without a check
    formulas: int = 0
    sentences: int = 0
    long: int = 0

    @property
    def hours(self) -> tuple[float, float]:
        """Half hours, as hours: of the page, and of the page with its exercises."""
        page = self.words / 110 + self.lines / 10 + 0.3 * self.formulas + 16 * self.gaps
        whole = page + EXERCISE * (self.exercises - self.open) + OPEN * self.open
        return tuple(-(-minutes // 30) / 2 for minutes in (page, whole))

    @property
    def share(self) -> float:
        """The long sentences among all."""
        return self.long / max(self.sentences, 1)

    @property
    def time(self) -> str:
        """What the head says."""
        page, whole = (f"{hours:g}".replace(".5", "½").lstrip("0") for hours in self.hours)
        hours = f"about {page} h for the page, {whole} h with the exercises"
        return f"{hours}: an estimate from its words, formulas, code and gaps"


def prose(source: str, captions: bool = False, sign: str = " ") -> str:
    """The words of a Markdown cell that count; `sign` stands for each formula and each piece of code."""

    def box(match):
        kind = match["kind"].split(" ")[0]
        if kind == "{math}":
            return f"$${match['body']}$$"
        if DROPPED.fullmatch(kind) or FOLDED.match(match["body"]) or (kind == "{figure}" and not captions):
            return "\n\n"
        return f"\n\n{prose(match['body'], captions, sign)}\n\n"

    def formula(match):
        ends = next(filter(None, match.groups()[::-1])).rstrip().endswith(".")  # inside it, a sentence
        displayed = "$$" in match[0] or "\\begin" in match[0]  # behind it a capital begins another one
        ends = ends or (displayed and match.string[match.end() :].lstrip()[:1].isupper())
        return f" {sign}. " if ends and sign.strip() else f" {sign} "

    text = FORMULA.sub(formula, MARKUP.sub(" ", BOX.sub(box, source)))
    text = ROLE.sub(lambda role: sign if role[0].startswith("{cite") else role[1] or role[2], text)
    return CODE.sub(sign, text)


def size(text: str) -> int:
    """How many words: what holds a letter or a digit."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


def sentences(source: str) -> list[str]:
    """The sentences of a Markdown cell, those of captions and lists too; a formula is a word, X."""
    pieces = PIECE.split(NONE.sub("\n\n", prose(source, captions=True, sign="X")))
    found = [" ".join(sentence.split()) for piece in pieces for sentence in STOP.split(piece)]
    return [sentence for sentence in found if size(sentence)]


def words(source: str) -> int:
    """How many words of a Markdown cell count."""
    return size(prose(source))


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
    folded = cell.metadata.get("jupyter", {}).get("source_hidden") or FOLDS & set(cell.metadata.get("tags", ()))
    return 0 if folded else sum(bool(line.strip()) for line in cell.source.split("\n"))


def count(notebook: nbformat.NotebookNode) -> Length:
    """The length of a chapter."""
    total = dict.fromkeys(("words", "lines", "gaps", "exercises", "open", "formulas"), 0)
    for part, cell in parts(notebook):
        tags = set(cell.metadata.get("tags", ()))
        if part == "Exercises" and cell.cell_type == "markdown" and "solution" not in tags:
            total["exercises"] += len(re.findall(r"^`{3,}\{exercise\}", cell.source, re.M))
            total["open"] += "Rubric" in cell.source
        if part != "page" or "solution" in tags:
            continue
        if cell.cell_type == "markdown":
            total["words"] += words(cell.source)
            total["formulas"] += len(FORMULA.findall(cell.source))
        else:
            total["lines"] += seen(cell)
            total["gaps"] += "gap" in tags
    said = all_sentences(notebook)
    return Length(**total, sentences=len(said), long=len(long_ones(said)))


def all_sentences(notebook: nbformat.NotebookNode) -> list[str]:
    """The sentences of a chapter that stand in view."""
    texts = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    texts = [cell for cell in texts if "solution" not in cell.metadata.get("tags", ())]
    return [sentence for cell in texts for sentence in sentences(FRONT.sub("", cell.source))]


def long_ones(said: list[str]) -> list[str]:
    """Those of more than 35 words."""
    return [sentence for sentence in said if size(sentence) > LONG]


def timed(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook with its estimate in its head."""
    head = notebook.cells[0]
    if not TIME.search(head.source):
        raise LookupError("the head has no row `Time`")
    head.source = TIME.sub(count(notebook).time, head.source)
    return notebook


def table(lengths: dict[str, Length]) -> str:
    """A line for each chapter; what exceeds an evening, or the share of long sentences, is marked."""
    rows = [
        f"{'chapter':<24} {'words':>6}  {'lines':>5}  {'long sentences':>18}  {'gaps':>4} {'exercises':>9}"
        f" {'page':>6} {'with exercises':>14}"
    ]
    for name, length in lengths.items():
        much, long = "*" if length.words > WORDS else " ", "*" if length.lines > LINES else " "
        winding = "*" if length.share > SHARE else " "
        page, whole = length.hours
        rows.append(
            f"{name:<24} {length.words:>6}{much} {length.lines:>5}{long}"
            f" {length.long:>3} of {length.sentences:>3} {length.share:>6.1%}{winding}"
            f" {length.gaps:>4} {length.exercises:>9} {page:>4.1f} h {whole:>12.1f} h"
        )
    over = sum(length.words > WORDS or length.lines > LINES for length in lengths.values())
    winding = sum(length.share > SHARE for length in lengths.values())
    return "\n".join(
        [
            *rows,
            f"an evening: {WORDS} words, {LINES} lines; {over} of {len(lengths)} exceed it (*); sentences of more"
            f" than {LONG} words: at most {SHARE:.0%}; {winding} have more (*)",
        ]
    )


def main() -> int:
    arguments = argparse.ArgumentParser(prog="make count", description=__doc__.split("\n")[0])
    arguments.add_argument("--write", action="store_true", help="put the estimates into the heads")
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
