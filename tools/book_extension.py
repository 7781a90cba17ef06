"""Three repairs of the built pages that no option of Jupyter Book makes."""

from docutils import nodes
from sphinx.application import Sphinx

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


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", colour_cuda)
    app.connect("doctree-resolved", drop_repeated_ids)
    app.connect("html-page-context", drop_thebe, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
