"""Compute parts of the first page when the book is built: hours, the map of the chapters, and reading paths.

The module defines the directives `{book-parts}`, `{chapter-map}` and `{reading-paths}`, and the substitutions
`chapters`, `hours` and `hours_with_exercises`. A chapter's title and prerequisites come from its header, its question
from book/chapters.toml, and its hours from `tools.notebooks.count`. `readme_table` makes the table of chapters that
`tools.book.project` writes into README.md.
"""

import html
import math
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from sphinx.config import Config

from tools.book import pictures
from tools.notebooks import heads

ROOT = Path(__file__).resolve().parents[2]
# By the beginning of a part's caption in _toc.yml: a chapter of it, and that chapter's figure for the part.
FIGURES = {
    "I": ("01_bytes_and_pairs", "fig-bytes-tree"),
    "II": ("06_attention", "fig-attention-map"),
    "III": ("12_pretraining", "fig-pretraining-ladder"),
    "IV": ("18_what_the_model_knows", "fig-knows-penalty"),
    "V": ("20_chat", "fig-chat-gradient"),
    "VI": ("26_tensor_cores", "fig-tensor-cores-swizzle"),
    "VII": ("32_116_million", "fig-million-run"),
    "Appendix": ("A1_cpu_runtime", "fig-cpu-runtime-schedule"),
}
# name: (its chapters, what for)
PATHS = {
    "A weekend": ("00 03 04 06 12", "from a first guess to a trained model, with attention by hand"),
    "On a laptop": (
        "00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 17 18 19 20 21 22 31 32 34",
        "the whole model, without a GPU",
    ),
    "Kernels": ("03 06 09 23 24 A1 25 26 27 28 29 30 33", "CUDA by hand, with or without a GPU"),
    "A fast run": ("03 04 06 08 11 12 A2 A3 31 32", "from the optimiser to 116 million parameters"),
}


@dataclass(frozen=True)
class Chapter:
    number: str
    title: str
    address: str  # from the first page
    question: str
    your_model: str  # what the reader's model can do after it; "" while the chapter does not show it
    needs: tuple[str, ...]  # numbers of chapters
    hours: tuple[float, float]  # of the page, and with the exercises


@cache
def texts(root: Path = ROOT) -> dict:
    """Read book/chapters.toml. Raises LookupError if a chapter has missing or unknown entries."""
    found = tomllib.loads((root / "book/chapters.toml").read_text("utf-8"))
    for number, entry in found["chapters"].items():
        if entry.keys() != {"question", "your_model"}:
            raise LookupError(f"book/chapters.toml: {number} must have question and your_model, got {list(entry)}")
    return found


@cache
def parts(root: Path = ROOT) -> list[tuple[str, list[Chapter]]]:
    """Return (caption, chapters) of each part. Raises LookupError if book/chapters.toml and _toc.yml disagree."""
    entries, chapters, found = texts(root)["chapters"], heads.chapters(root), {}
    if different := entries.keys() ^ chapters.keys():
        raise LookupError(f"book/chapters.toml must name the chapters of _toc.yml, but differs in {different}")
    for number, chapter in chapters.items():
        address = f"../notebooks/{chapter.name}.html"
        needs, hours = tuple(chapter.needs), chapter.length.hours
        entry = Chapter(number, chapter.title, address, **entries[number], needs=needs, hours=hours)
        found.setdefault(chapter.part, []).append(entry)
    return list(found.items())


def all_chapters(root: Path = ROOT) -> dict[str, Chapter]:
    """Return the chapters by number."""
    return {chapter.number: chapter for _, chapters in parts(root) for chapter in chapters}


def total(chapters: list[Chapter]) -> tuple[float, float]:
    """Return the total hours of these chapters, without and with all exercises."""
    return sum(c.hours[0] for c in chapters), sum(c.hours[1] for c in chapters)


def hours_text(hours: tuple[float, float]) -> str:
    """Format hours without decimals, such as "11–24 h": the hours without and with all exercises."""
    low, high = (max(1, math.floor(amount + 0.5)) for amount in hours)
    return f"{low} h" if low == high else f"{low}–{high} h"


# ---- The parts


def given(caption: str) -> tuple[str, str, str]:
    """Return the result that the reader has after a part, and the chapter and the label of the part's figure."""
    start = caption.split()[0]
    return texts()["parts"][start], *FIGURES[start]


def book_parts(root: Path = ROOT) -> str:
    """Return a box for each part: a figure, the hours, the reader's result, and a link to the first chapter."""
    cards = []
    for caption, chapters in parts(root):
        gives, chapter, figure = given(caption)
        alt = html.escape(pictures.described(f"{chapter}.ipynb", figure))
        cards.append(
            f'<li><img src="../_static/parts/{figure}.png" alt="{alt}" loading="lazy">'
            f'<a class="name" href="{chapters[0].address}">{html.escape(caption)}</a>'
            f'<span class="gives">{gives}</span><span class="hours">{hours_text(total(chapters))}</span></li>'
        )
    return f'<ul class="book-parts">{"".join(cards)}</ul>'


def copy_figures(app: Sphinx, exception: Exception | None) -> None:
    """Copy the figures of the parts from the chapters' last runs. Raises LookupError if a chapter lacks its figure."""
    folder = Path(app.outdir, "_static", "parts")
    folder.mkdir(parents=True, exist_ok=True)
    for chapter, label in FIGURES.values() if exception is None else ():
        (folder / f"{label}.png").write_bytes(pictures.picture(f"{chapter}.ipynb", label))


# ---- README.md's table


def readme_table(root: Path = ROOT) -> str:
    """Return README.md's table, a row per part: chapters, the reader's result, and abilities of the reader's model."""
    rows = ["| part | chapters | what you have after it | your model can |", "|:--|:--|:--|:--|"]
    for caption, chapters in parts(root):
        links = ", ".join(f"[{c.title}]({c.address.removeprefix('../').replace('.html', '.ipynb')})" for c in chapters)
        can = "<br>".join(f"{c.number}: {c.your_model}" for c in chapters if c.your_model) or "not yet"
        rows.append(f"| {' '.join(caption.split())} | {links} | {given(caption)[0]} | {can} |")
    page, whole = total(list(all_chapters(root).values()))
    hours = f"{len(all_chapters(root))} chapters, about {page:.0f} hours to read and {whole:.0f} with all exercises"
    return "\n".join([*rows, "", f"{hours}: an estimate from their length, not measured.", ""])


# ---- The map


def chapter_map(root: Path = ROOT) -> str:
    """Return a list of all chapters by part, with arcs from each chapter to the chapters that need it."""
    rows, row_of = [], {}
    for caption, chapters in parts(root):
        rows.append(
            f'<li class="part"><span class="name">{html.escape(caption)}</span>'
            f'<span class="hours">{hours_text(total(chapters))}</span></li>'
        )
        for chapter in chapters:
            row_of[chapter.number] = len(rows)
            needs = f"; needs {', '.join(chapter.needs)}" if chapter.needs else ""
            can = html.escape(chapter.your_model)
            after = f'<br><span class="can">After this your model can {can}.</span>' if can else ""
            rows.append(
                f'<li><a href="{chapter.address}">{html.escape(chapter.title)}</a>'
                f'<span class="hours">{hours_text(chapter.hours)}</span>'
                f'<span class="question">{html.escape(chapter.question)}{after}</span>'
                f'<span class="visually-hidden">{needs}</span></li>'
            )
    arcs = "".join(
        arc(row_of[need], row_of[chapter.number]) for chapter in all_chapters(root).values() for need in chapter.needs
    )
    size = f'viewBox="0 0 100 {ROW * len(rows)}" preserveAspectRatio="none"'
    return (
        f'<div class="chapter-map"><svg {size} aria-hidden="true" focusable="false">{arcs}</svg>'
        f"<ol>{''.join(rows)}</ol></div>"
    )


ROW = 40  # height of a row in the drawing's own units


def y(row: int) -> float:
    return ROW * (row + 0.5)


def arc(above: int, below: int) -> str:
    """Return an arc between two rows; the arc is wider if the rows are further apart."""
    reach = max(4, 100 - 18 * abs(below - above) ** 0.55)
    return f'<path d="M100 {y(above):g} C{reach:.0f} {y(above):g} {reach:.0f} {y(below):g} 100 {y(below):g}"/>'


# ---- Paths through the book


def reading_paths(root: Path = ROOT) -> str:
    """Return a table of the reading paths, with the hours of each path and links to its chapters."""
    chapters = all_chapters(root)
    rows = []
    for name, (numbers, what) in PATHS.items():
        way = [chapters[number] for number in numbers.split()]
        links = " ".join(f'<a href="{c.address}" title="{html.escape(c.title)}">{c.number}</a>' for c in way)
        rows.append(
            f'<tr><th scope="row">{name}</th><td>{what}</td><td>{hours_text(total(way))}</td><td>{links}</td></tr>'
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("path", "what for", "hours", "chapters"))
    return (
        '<div class="pst-scrollable-table-container"><table class="table paths">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


# ---- In the build


def directive(make) -> type[Directive]:
    """Return a directive without content that inserts the HTML that `make` returns."""

    class Computed(Directive):
        def run(self) -> list[nodes.Node]:
            environment = self.state.document.settings.env
            for path in [ROOT / "book/chapters.toml", *(ROOT / "notebooks").glob("*.ipynb")]:
                environment.note_dependency(str(path))
            return [nodes.raw("", make(), format="html")]

    return Computed


def substitute(app: Sphinx, config: Config) -> None:
    """Set the numbers of chapters and hours that the first page shows."""
    chapters = list(all_chapters().values())
    page, whole = total(chapters)
    config.myst_substitutions |= {
        "chapters": len(chapters),
        "hours": f"{page:.0f}",
        "hours_with_exercises": f"{whole:.0f}",
    }


def setup(app: Sphinx) -> dict:
    app.add_directive("chapter-map", directive(chapter_map))
    app.add_directive("book-parts", directive(book_parts))
    app.add_directive("reading-paths", directive(reading_paths))
    app.connect("config-inited", substitute, priority=400)  # MyST reads them at 500
    app.connect("build-finished", copy_figures)
    app.add_css_file("landing.css")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
