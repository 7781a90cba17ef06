"""A Sphinx extension that builds the library's reference from its docstrings, with autodoc.

The docstrings are plain text with Markdown's backticks, and this module converts them to reStructuredText. An object
that a chapter shows in a mirror cell gets a line that links to the chapter.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

from tools.notebooks import maps, mirror

ROOT = Path(__file__).resolve().parents[2]
PAGES = "book/api/"
DERIVED = "Derived in "
RENAMED = {  # old page: new page in the same folder
    "book/api/practice": "nanoeuler_book",
    "book/api/speaking": "generation",
    "book/api/understanding": "nanoeuler_book",
    "notebooks/02_fast_tokenizer": "A4_fast_tokenizer",
    "notebooks/03_measuring_prediction": "02_measuring_prediction",
    "notebooks/04_first_gradients": "03_first_gradients",
}
DEFAULT = re.compile(r"<class '([\w.]+)'>|<(?:built-in )?function (\w+)>|<function \S*<lambda>>|<factory>")
INLINE = re.compile(r"`([^`]+)`|(\[[^\[\]`]*\])|([\\*|]|_(?!\w))")


# ---- Which chapter derives what


def mirrored(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) for each definition in a notebook's mirror cells; a method's name is "Class.name"."""
    notebook = json.loads(path.read_text("utf-8"))
    default = notebook["metadata"].get("nanoeuler", {}).get("module")
    for cell in notebook["cells"]:
        tags = set(cell["metadata"].get("tags", ()))
        if cell["cell_type"] != "code" or not tags & {"mirror", "mirror-part"}:
            continue
        source = "".join(cell["source"])
        modules = cell["metadata"].get("nanoeuler", {}).get("module", default)
        for module in [modules] if isinstance(modules, str) else modules:
            if source.startswith("%%"):
                there = mirror.cpp_definitions((ROOT / module).read_text("utf-8"))
                names = [name for name in mirror.cpp_definitions(source) if name in there]
            else:
                names = mirror.definitions(ast.parse(source))
                if "mirror-part" in tags:
                    names = [*names, *mirror.with_methods(names)]
            yield from ((module, name) for name in names)


def derivations(root: Path = ROOT) -> dict[tuple[str, str], list[str]]:
    """Map each (module, name) to the notebooks that show this definition, in the order of the book."""
    found = {}
    for _, paths in maps.parts(root):
        for path in paths:
            for key in mirrored(path):
                if path.stem not in found.setdefault(key, []):
                    found[key].append(path.stem)
    return found


def derived(app: Sphinx) -> dict[tuple[str, str], list[str]]:
    if not hasattr(app, "derivations"):
        app.derivations = derivations()
    return app.derivations


def chapters_changed(app: Sphinx, env: BuildEnvironment, added: set, changed: set, removed: set) -> set[str]:
    """Return the reference's pages if a definition is now derived in another chapter, so Sphinx reads them again."""
    before, env.derivations = getattr(env, "derivations", None), derived(app)
    return {page for page in env.found_docs if page.startswith(PAGES)} if before != env.derivations else set()


# ---- Python, by autodoc


def restructured(text: str) -> list[str]:
    """Convert a docstring of this library to lines of reStructuredText: literals, shapes and indented blocks."""
    lines, before = [], ""
    for line in text.split("\n"):
        indented = line.startswith("    ")
        if indented and not before.strip() and not (lines and lines[-1].startswith("    ")):
            lines += ["::", ""] if not in_block(lines) else []
        lines.append(line if indented else INLINE.sub(inline, line))
        before = line
    return lines


def in_block(lines: list[str]) -> bool:
    """Return whether the last line that is not blank belongs to an indented block."""
    last = next((line for line in reversed(lines) if line.strip()), "")
    return last.startswith("    ")


def inline(found: re.Match) -> str:
    """Convert backticks and shapes to literals, and escape characters that have a meaning in reStructuredText."""
    literal = found[1] or found[2]
    if not literal:
        return "\\" + found[3]
    before = "\\ " if found.start() and re.match(r"[\w)\].,]", found.string[found.start() - 1]) else ""
    after = "\\ " if re.match(r"[\w(\[]", found.string[found.end() :]) else ""
    return f"{before}``{literal}``{after}"


def readable(app: Sphinx, what: str, name: str, documented: object, options: dict, lines: list[str]) -> None:
    """Convert a docstring for autodoc, and append the line that links to the chapters."""
    lines[:] = restructured("\n".join(lines))
    module = getattr(documented, "__module__", None) or ""
    key = (module, getattr(documented, "__qualname__", name.removeprefix(f"{module}.")))
    if notebooks := derived(app).get(key):
        chapters = ", ".join(f":doc:`/notebooks/{name}`" for name in notebooks)
        lines += ["", f"{DERIVED}{chapters}.", ""]


def named_defaults(
    app: Sphinx,
    what: str,
    name: str,
    documented: object,
    options: dict,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Show defaults that are classes or functions by their names, because Sphinx cannot parse `<class ...>`."""
    return signature and DEFAULT.sub(lambda found: found[1] or found[2] or "...", signature), returns


def shown_by_package(app: Sphinx, what: str, name: str, documented: object, skip: bool, options: dict) -> bool | None:
    """Skip a module's member that the package exports, because the page of the package describes this member.

    The page of nanoeuler_lib does not describe its exported names, so the pages of their modules describe them.
    """
    module = app.env.temp_data.get("autodoc:module", "")
    while what == "module" and (module := module.rpartition(".")[0]) not in ("", "nanoeuler_lib"):
        package = sys.modules.get(module)
        if name in getattr(package, "__all__", ()) and getattr(package, name) is documented:
            return True
    return None


def mark_derived(app: Sphinx, doctree: nodes.document) -> None:
    """Give the line that links to the chapters a CSS class of its own."""
    if app.env.docname.startswith(PAGES):
        for line in doctree.findall(nodes.paragraph):
            if line.astext().startswith(DERIVED):
                line["classes"].append("derived")


def lead_on(app: Sphinx, error: Exception | None) -> None:
    """Write a page at the old address of each renamed page that redirects to the new address."""
    for old, new in RENAMED.items() if error is None and app.builder.name == "html" else ():
        text = f'<meta http-equiv="refresh" content="0; url={new}.html"><a href="{new}.html">{new}</a>'
        Path(app.outdir, f"{old}.html").write_text(f'<!DOCTYPE html><html lang="en">{text}</html>\n', "utf-8")


def plain_type(app: Sphinx, env: BuildEnvironment, node: nodes.Element, content: nodes.Node) -> nodes.Node | None:
    """Show a type in a signature as plain text if it has no page, for example a type of a different library."""
    return content if node.get("refdoc", "").startswith(PAGES) and node["refdomain"] == "py" else None


# ---- CUDA C++, which autodoc cannot read


def comment_above(source: list[str], first: int) -> str:
    """Return the first sentence of the comment that ends directly above line `first`, counted from 1."""
    said = []
    for line in reversed(source[: first - 1]):
        if not line.startswith("//"):
            break
        said.insert(0, line.removeprefix("//").strip())
    return re.split(r"(?<=[.:;])\s", " ".join(said), maxsplit=1)[0].rstrip(":;")


class KernelFile(SphinxDirective):
    """A directive that lists the definitions in a file of nanoeuler_lib/kernels: name, purpose and chapter."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        path = f"nanoeuler_lib/kernels/{self.arguments[0]}"
        self.env.note_dependency(str(ROOT / path))
        text = (ROOT / path).read_text("utf-8")
        source, titles = (
            text.split("\n"),
            {path.stem: path for _, paths in maps.parts(ROOT) for path in paths},
        )
        rows = ["| name | | derived in |", "|:--|:--|:--|"]
        for name, lines in sorted(mirror.cpp_definitions(text).items(), key=lambda item: item[1].first):
            shown = derived(self.env.app).get((path, name), [])
            said = re.sub(r"([|*_<$\[\]])", r"\\\1", comment_above(source, lines.first))
            where = ", ".join(f"[{n.partition('_')[0]}](/notebooks/{n}.ipynb)" for n in shown if n in titles)
            kernel = " `__global__`" if "__global__" in "\n".join(lines.lines).partition("{")[0] else ""
            rows.append(f"| `{name}`{kernel} | {said} | {where} |")
        found = nodes.container()
        self.state.nested_parse(StringList(rows), self.content_offset, found)
        return found.children


def setup(app: Sphinx) -> dict:
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", readable)
    app.connect("autodoc-process-signature", named_defaults)
    app.connect("autodoc-skip-member", shown_by_package)
    app.connect("doctree-read", mark_derived)
    app.connect("missing-reference", plain_type, priority=900)  # after intersphinx has looked in the inventories
    app.connect("env-get-outdated", chapters_changed)
    app.connect("build-finished", lead_on)
    app.add_directive("kernel-file", KernelFile)
    app.add_css_file("api.css")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
