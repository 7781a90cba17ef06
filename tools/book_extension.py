"""What no option of Jupyter Book does: numbers by chapter, and three repairs of the built pages."""

import copy

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from tools import numbering

REPEATED = {"exercise-content", "solution-content", "proof-content", "proof"}


def drop_repeated_ids(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """sphinx-exercise and sphinx-proof give every box, and every proof, the same id; nothing refers to it."""
    for box in [*doctree.findall(nodes.section), *doctree.findall(nodes.admonition)]:
        box["ids"] = [name for name in box["ids"] if name not in REPEATED]


def drop_thebe(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Jupyter Book always includes Thebe, which would fetch its code from another server; the book does not use it."""
    context["script_files"] = [
        script for script in context["script_files"] if "thebe" not in str(script) + str(script.attributes)
    ]


def colour_cuda(app: Sphinx, doctree: nodes.document) -> None:
    """A cell that begins with %%cuda holds C++; the first line, which does not, may not stop the lexer."""
    for block in doctree.findall(nodes.literal_block):
        if block.astext().startswith("%%cuda"):
            block["language"], block["force"] = "cuda", True


def read_for_sphinx(app: Sphinx, docname: str, content: list[str]) -> None:
    """A notebook's text, without what it says to JupyterLab alone."""
    if app.env.doc2path(docname).endswith(".ipynb"):
        content[0] = numbering.for_sphinx(content[0])


def restore_numbers(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Give Sphinx the numbers that it gave last time, before it compares: else it writes every page anew."""
    env.toc_fignumbers = getattr(env, "numbers_through_the_book", env.toc_fignumbers)
    return []


def number_by_chapter(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Count figures, equations, exercises and theorems from 1 in each chapter: 6.1, 6.2, ..."""
    env.numbers_through_the_book = copy.deepcopy(env.toc_fignumbers)
    for docname, kinds in env.toc_fignumbers.items():
        if number := numbering.chapter(docname):
            for counted in kinds.values():
                for n, label in enumerate(sorted(counted, key=counted.get), 1):
                    counted[label] = (number, n)
    return []


def setup(app: Sphinx) -> dict:
    app.connect("source-read", read_for_sphinx)
    app.connect("env-get-updated", restore_numbers, priority=100)  # Sphinx numbers at 500
    app.connect("env-get-updated", number_by_chapter, priority=900)
    app.connect("doctree-read", colour_cuda)
    app.connect("doctree-resolved", drop_repeated_ids)
    app.connect("html-page-context", drop_thebe, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
