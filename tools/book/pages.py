"""Sphinx directives for the computed parts of the instructor guide (`guide.py`) and the status page (`status.py`).

Each directive is replaced by Markdown. Sphinx reads a page with such a directive again when the sources of this
Markdown change.
"""

from pathlib import Path

import yaml
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from nanoeuler_book import gpus
from tools.book import guide, status
from tools.notebooks import heads
from tools.notebooks.heads import ROOT


class Computed(SphinxDirective):
    """A directive that is replaced by the Markdown from its method `markdown`; a GuideError fails the build."""

    has_content = True

    def markdown(self) -> str:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        for path in (ROOT / "notebooks").glob("*.ipynb"):
            if self.arguments == [] or path.stem.startswith(f"{self.arguments[0]}_"):
                self.env.note_dependency(str(path))
        try:
            text = self.markdown()
        except guide.GuideError as error:
            raise self.error(str(error)) from error
        found = nodes.container()
        self.state.nested_parse(StringList(text.split("\n")), self.content_offset, found)
        return found.children


class ChapterSheet(Computed):
    required_arguments = 1

    def markdown(self) -> str:
        book, number = heads.chapters(), self.arguments[0]
        return f"{guide.chapter(book, number)}\n\n{guide.board(book, number)}"


class Errors(Computed):
    required_arguments = 1

    def markdown(self) -> str:
        return guide.errors(heads.chapters(), self.arguments[0], "\n".join(self.content))


class Plan(Computed):
    option_spec = {"without": str.split}  # noqa: RUF012  (docutils requires it)

    def markdown(self) -> str:
        return guide.plan(heads.chapters(), "\n".join(self.content), self.options.get("without", ()))


class Needs(Computed):
    def markdown(self) -> str:
        return guide.needs(heads.chapters())


class Status(Computed):
    optional_arguments = 1

    def markdown(self) -> str:
        for path in ("data/runs.json", "data/results/*.json", "benchmarks/*.py", "experiments/*.py"):
            for found in ROOT.glob(path):
                self.env.note_dependency(str(found))
        made = {
            "build": status.build,
            "notebooks": lambda: status.notebooks(heads.chapters().values()),
            "results": status.results,
            "gpus": lambda: f"```text\n{gpus.tables()}\n```",
        }
        return made[self.arguments[0]]()


class Citation(Computed):
    def markdown(self) -> str:
        self.env.note_dependency(str(ROOT / "CITATION.cff"))
        return f"```bibtex\n{bibtex(ROOT / 'CITATION.cff', self.config.html_baseurl)}\n```"


def bibtex(path: Path, url: str = "") -> str:
    """Return the preferred citation of CITATION.cff as BibTeX, with the book's address if there is one."""
    book = yaml.safe_load(path.read_text("utf-8"))["preferred-citation"]
    authors = " and ".join(f"{{{author['name']}}}" for author in book["authors"])
    fields = {
        "author": authors,
        "title": f"{{{book['title']}}}",
        "year": str(book["year"]),
        "note": f"Version {book['version']}",
        "url": url,
    }
    rows = [f"  {name:<6} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@book{{nanoeuler{book['year']},", *rows, "}"])


def changes_without_a_source(app: Sphinx, env, added: set, changed: set, removed: set) -> set[str]:
    """Return the status page if the commit or the versions have changed, because Sphinx does not notice this change."""
    before, env.build_told = getattr(env, "build_told", None), status.build()
    return {"book/status"} & env.found_docs if before != env.build_told else set()


def setup(app: Sphinx) -> dict:
    app.add_directive("chapter-sheet", ChapterSheet)
    app.add_directive("errors", Errors)
    app.add_directive("plan", Plan)
    app.add_directive("needs", Needs)
    app.add_directive("status", Status)
    app.add_directive("citation", Citation)
    app.connect("env-get-outdated", changes_without_a_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
