"""What the first page says of the chapters, computed when it is built: hours, the map, and ways through the book.

Directives `{book-parts}`, `{chapter-map}` and `{reading-paths}`, and the substitutions `chapters`, `hours` and
`hours_with_exercises`. Titles and what a chapter needs come from its head, its question from README.md's table, its
hours from `tools.notebooks.count`.
"""

import html
import re
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
QUESTION = re.compile(r"^\| \[?([A\d]\d) [^|]+ \| (.+) \|$", re.M)

# By the beginning of a part's caption in _toc.yml: what you have when you have read it, and a chapter's figure for it.
GIVES = {
    "I ": ("a tokenizer, a measure of prediction, and gradients that you can trust",
           "01_bytes_and_pairs", "fig-bytes-tree"),
    "II ": ("each layer of the model, forward and backward, and the whole of them checked",
            "06_attention", "fig-attention-map"),
    "III ": ("a trained model, what its curves say, and how it becomes fast and speaks",
             "12_pretraining", "fig-pretraining-ladder"),
    "IV ": ("what depth does, and what a model knows and uses, put to the test",
            "18_what_the_model_knows", "fig-knows-penalty"),
    "V ": ("a model that answers", "20_chat", "fig-chat-gradient"),
    "VI ": ("kernels for a graphics card, which a processor runs and checks",
            "26_tensor_cores", "fig-tensor-cores-swizzle"),
    "VII ": ("text from elsewhere, cleaned, and a model of 116 million parameters that read it",
             "32_116_million", "fig-million-run"),
    "Appendix": ("how that checker works, and an optimiser that moves whole matrices",
                 "A1_cpu_runtime", "fig-cpu-runtime-schedule"),
}  # fmt: skip
# name: (its chapters, what for)
PATHS = {
    "A weekend": ("00 04 06 12", "from a first guess to a trained model, with attention by hand"),
    "On a laptop": (
        "00 01 03 04 05 06 07 08 09 10 11 12 13 14 15 16 17 18 19 20 21 22 31 32 34",
        "the whole model, no graphics card",
    ),
    "Kernels": ("04 06 09 23 24 A1 25 26 27 28 29 30 33", "CUDA by hand, on graphics cards or without one"),
    "A fast run": ("04 06 08 11 12 A2 A3 31 32", "from the optimiser to 116 million parameters"),
}


@dataclass(frozen=True)
class Chapter:
    number: str
    title: str
    address: str  # from the first page
    question: str
    needs: tuple[str, ...]  # numbers of chapters
    hours: tuple[float, float]  # of the page, and with the exercises


@cache
def parts(root: Path = ROOT) -> list[tuple[str, list[Chapter]]]:
    """(caption, chapters) of each part. Raises LookupError on a chapter without a question or a row of needs."""
    questions = dict(QUESTION.findall((root / "README.md").read_text()))
    found = {}
    for number, chapter in heads.chapters(root).items():
        if number not in questions:
            raise LookupError(f"{chapter.name}.ipynb: no question in README.md")
        address = f"../notebooks/{chapter.name}.html"
        entry = Chapter(number, chapter.title, address, questions[number], tuple(chapter.needs), chapter.length.hours)
        found.setdefault(chapter.part, []).append(entry)
    return list(found.items())


def all_chapters(root: Path = ROOT) -> dict[str, Chapter]:
    """By number."""
    return {chapter.number: chapter for _, chapters in parts(root) for chapter in chapters}


def total(chapters: list[Chapter]) -> tuple[float, float]:
    """Hours of the pages, and with their exercises."""
    return sum(c.hours[0] for c in chapters), sum(c.hours[1] for c in chapters)


def hours_text(hours: tuple[float, float]) -> str:
    return f"{hours[0]:g} h, {hours[1]:g} with exercises"


# ---- The parts


def given(caption: str) -> tuple[str, str, str]:
    """What a part gives; the chapter and the label of its figure."""
    return next(found for start, found in GIVES.items() if caption.startswith(start))


def book_parts(root: Path = ROOT) -> str:
    """A card for each part: a figure out of it, its hours and what it gives; it leads to the part's first chapter."""
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
    """The figures of the cards, as the chapters' last runs drew them. Raises LookupError if a chapter lacks its one."""
    folder = Path(app.outdir, "_static", "parts")
    folder.mkdir(parents=True, exist_ok=True)
    for chapter, label in (figure for _, *figure in GIVES.values()) if exception is None else ():
        (folder / f"{label}.png").write_bytes(pictures.picture(f"{chapter}.ipynb", label))


# ---- The map


def chapter_map(root: Path = ROOT) -> str:
    """A list of all chapters by part; at its side an arc leads from each chapter to those that need it."""
    rows, row_of = [], {}
    for caption, chapters in parts(root):
        rows.append(
            f'<li class="part"><span class="name">{html.escape(caption)}</span>'
            f'<span class="hours">{hours_text(total(chapters))}</span></li>'
        )
        for chapter in chapters:
            row_of[chapter.number] = len(rows)
            needs = f"; needs {', '.join(chapter.needs)}" if chapter.needs else ""
            rows.append(
                f'<li><a href="{chapter.address}">{html.escape(chapter.title)}</a>'
                f'<span class="hours">{chapter.hours[1]:g} h</span>'
                f'<span class="question">{html.escape(chapter.question)}</span>'
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
    """From one row to another, the wider the farther."""
    reach = max(4, 100 - 18 * abs(below - above) ** 0.55)
    return f'<path d="M100 {y(above):g} C{reach:.0f} {y(above):g} {reach:.0f} {y(below):g} 100 {y(below):g}"/>'


# ---- Ways through the book


def reading_paths(root: Path = ROOT) -> str:
    """A table of the ways, with their hours and links to their chapters."""
    chapters = all_chapters(root)
    rows = []
    for name, (numbers, what) in PATHS.items():
        way = [chapters[number] for number in numbers.split()]
        links = " ".join(f'<a href="{c.address}" title="{html.escape(c.title)}">{c.number}</a>' for c in way)
        rows.append(
            f'<tr><th scope="row">{name}</th><td>{what}</td><td>{hours_text(total(way))}</td><td>{links}</td></tr>'
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("way", "what for", "hours", "chapters"))
    return (
        '<div class="pst-scrollable-table-container"><table class="table paths">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


# ---- In the build


def directive(make) -> type[Directive]:
    """A directive without content that puts HTML where it stands."""

    class Computed(Directive):
        def run(self) -> list[nodes.Node]:
            environment = self.state.document.settings.env
            for path in [ROOT / "README.md", *(ROOT / "notebooks").glob("*.ipynb")]:
                environment.note_dependency(str(path))
            return [nodes.raw("", make(), format="html")]

    return Computed


def substitute(app: Sphinx, config: Config) -> None:
    """The numbers that the first page names."""
    chapters = list(all_chapters().values())
    page, whole = total(chapters)
    config.myst_substitutions |= {
        "chapters": len(chapters),
        "hours": f"{page:g}",
        "hours_with_exercises": f"{whole:g}",
    }


def setup(app: Sphinx) -> dict:
    app.add_directive("chapter-map", directive(chapter_map))
    app.add_directive("book-parts", directive(book_parts))
    app.add_directive("reading-paths", directive(reading_paths))
    app.connect("config-inited", substitute, priority=400)  # MyST reads them at 500
    app.connect("build-finished", copy_figures)
    app.add_css_file("landing.css")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
