"""A Sphinx extension for features that Jupyter Book lacks: numbers by chapter, references, fixes of the pages."""

import copy
import html
import os
import re
import zlib
from pathlib import Path

import sphinx.search
from docutils import nodes
from myst_parser.mdit_to_docutils.sphinx_ import SphinxRenderer
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from tools.book.references import list_references
from tools.book.search_index import Index
from tools.notebooks import numbering

REFERENCES = "book/references"
REPEATED = {"exercise-content", "solution-content", "proof-content", "proof"}
BUNDLES = (
    "latest",
    "loader",
    "startup",
    "core",
    "node-main",
    "mml-*",
    "tex-mml-*",
    "tex-svg*",
    "tex-chtml-*",
)
# Parts that the bundle in use already contains, and input formats that no page uses.
PARTS = (
    "input/tex.js",
    "input/tex-base.js",
    "input/tex-full.js",
    "input/tex/extensions/all-packages.js",
    "input/asciimath.js",
    "input/mml/extensions/*",
    "output/chtml.js",
    "output/chtml/fonts/tex.js",
    "ui/menu.js",
    "adaptors/liteDOM.js",
)
# Handlers of sphinx_proof and sphinx_exercise, sphinx-mathjax-offline, and myst_nb.
COPIED_LAST = {"copy_asset_files", "copy_mathjax_files", "add_global_html_resources"}
PARAMETERS = re.compile(r'<dl>\n((?:<dd><em class="sig-param">.*</dd>\n)+)</dl>')
NO_HEADER = re.compile(r"<th( class=\"head[^\"]*\")?>(?:<p></p>|\s*)</th>")
UNUSED = [
    "**/*.map",  # source maps of the theme's scripts and styles
    "scripts/fontawesome.js",  # the pages take the icons from the web font: _templates/static/webpack-macros.html
    "vendor/**/*.ttf",  # every browser of the last ten years uses the woff2 file instead
    *(f"mathjax/{bundle}.js" for bundle in BUNDLES),  # only the bundle tex-chtml.js is used
    *(f"mathjax/{part}" for part in PARTS),
    "mathjax/sre/**/*",
]


def drop_repeated_ids(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Remove the repeated ids that sphinx-exercise and sphinx-proof give to every box and proof; no link uses them."""
    for box in [*doctree.findall(nodes.section), *doctree.findall(nodes.admonition)]:
        box["ids"] = [name for name in box["ids"] if name not in REPEATED]


def link_pictures(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Give each picture a scale, so that Sphinx links the picture to its file (html_scaled_image_link)."""
    for picture in doctree.findall(nodes.image):
        picture["scale"] = 100


def drop_scripts(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Drop two scripts: Thebe, which uses a server, and MathJax on pages without formulas."""
    unused = ["thebe"] + ["mathjax"] * ('class="math' not in context.get("body", ""))
    context["script_files"] = [
        script
        for script in context["script_files"]
        if not any(name in str(script).lower() + str(script.attributes) for name in unused)
    ]


def name_folds(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Give a folded cell's button its visible name ("Show the check"), and make empty table headers ordinary cells."""
    if "body" in context:
        body = context["body"].replace(' aria-label="Toggle hidden content"', "")
        context["body"] = NO_HEADER.sub(r"<td\1></td>", body)


def list_parameters(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Replace the definition lists without terms in long signatures, because screen readers cannot read such lists."""

    def lines(found: re.Match) -> str:
        spans = found[1].replace("<dd>", "<span>").replace("</dd>", "</span>")
        return f'<span class="sig-lines">{spans}</span>'

    if "body" in context:
        context["body"] = PARAMETERS.sub(lines, context["body"])


def name_arrows(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Name each arrow in the sidebar, for screen readers, by the page whose list the arrow opens."""
    make = context.get("generate_toctree_html")

    def named(*given, **options):
        found = make(*given, **options)
        for arrow in found.select("summary") if hasattr(found, "select") else ():
            arrow["aria-label"] = f"Pages under {arrow.find_parent('li').a.get_text(strip=True)}"
        return found

    if make:
        context["generate_toctree_html"] = named


def describe(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Add the metadata of a shared link: the page's first paragraph, and a picture if the book's address is known."""
    words = next((p.astext() for p in doctree.findall(nodes.paragraph)), "") if doctree else ""
    words = words or "Build a language model by hand, and know that each part is right."
    if len(words) > 200:
        words = words[:200].rpartition(" ")[0] + " …"
    words = html.escape(" ".join(words.split()))
    title = html.escape(" ".join(doctree.next_node(nodes.title).astext().split())) if doctree else "NanoEuler"
    tags = [
        ("name", "description", words),
        ("property", "og:title", title),
        ("property", "og:description", words),
    ]
    tags += [("property", "og:type", "article"), ("property", "og:site_name", "NanoEuler")]
    if base := app.config.html_baseurl:
        tags += [
            ("property", "og:url", f"{base}{page}.html"),
            ("name", "twitter:card", "summary_large_image"),
        ]
        tags += [("property", "og:image", f"{base}_static/story.png")]
    found = "".join(f'\n<meta {kind}="{name}" content="{value}" />' for kind, name, value in tags)
    if page == "404" and base:  # this page is shown at any address, so its links need the book's address
        found = f'\n<base href="{html.escape(base)}" />{found}'
    context["metatags"] = context.get("metatags", "") + found


def page_not_found(app: Sphinx) -> list[tuple[str, dict, str]]:
    """Make 404.html, which GitHub Pages and other hosts show for an address that does not exist."""
    body = (
        "<section><h1>There is no such page</h1><p>It may have been renamed. The chapters are listed at the side "
        'and on <a href="book/intro.html">the first page</a>. <a href="search.html">The search</a> looks for a word '
        "in all chapters.</p></section>"
    )
    return [("404", {"title": "There is no such page", "body": body}, "page.html")]


def search_here(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Add the book's own script for ranking and showing results to the search page."""
    if page == "search":
        app.add_js_file("search.js", priority=100)


def drop_unused(app: Sphinx, exception: Exception | None) -> None:
    """Delete files that no page loads, which are half of the bytes that the theme and MathJax copy into the book."""
    for pattern in UNUSED if exception is None else ():
        for path in Path(app.outdir, "_static").glob(pattern):
            if path.is_file():
                path.unlink()


def colour_cuda(app: Sphinx, doctree: nodes.document) -> None:
    """Highlight a cell that begins with %%cuda as CUDA C++, even though its first line is not C++."""
    for block in doctree.findall(nodes.literal_block):
        if block.astext().startswith("%%cuda"):
            block["language"], block["force"] = "cuda", True


def read_for_sphinx(app: Sphinx, docname: str, content: list[str]) -> None:
    """Remove the markup that only JupyterLab needs from a notebook."""
    if app.env.doc2path(docname).endswith(".ipynb"):
        content[0] = numbering.for_sphinx(content[0])


def write_in_parallel(app: Sphinx, env: BuildEnvironment) -> None:
    """Let Sphinx write pages in parallel; Sphinx reads pages serially, because some extensions require it."""
    app.parallel = os.cpu_count() or 1


def copy_first(app: Sphinx, env: BuildEnvironment) -> None:
    """Copy the extensions' styles and scripts before the pages are written, since pages contain their checksums."""
    Path(app.outdir, "_static").mkdir(parents=True, exist_ok=True)
    for listener in list(app.events.listeners["build-finished"]):
        if listener.handler.__name__ in COPIED_LAST:
            app.disconnect(listener.id)
            listener.handler(app, None)


def formula_name(renderer: SphinxRenderer) -> str:
    """Name an equation that has no label; this name is the same in every build, unlike the name from MyST."""
    env = renderer.sphinx_env
    return f"{env.docname.replace('/', '-')}-{env.new_serialno('formula')}"


def restore_numbers(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Restore the numbers of the last build before Sphinx compares them; otherwise Sphinx writes all pages again."""
    env.toc_fignumbers = getattr(env, "numbers_through_the_book", env.toc_fignumbers)
    return []


def write_again(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Return pages to write again: the references if citations have changed, all pages if a title has changed."""
    names = {page: title.astext() for page, title in env.titles.items()}
    cited = {(ref.docname, *(t.key for t in ref.targets)) for ref in env.get_domain("cite").citation_refs}
    before = getattr(env, "names_written", names), getattr(env, "cited_written", cited)
    env.names_written, env.cited_written = names, cited
    return list(env.found_docs) if before[0] != names else [REFERENCES] if before[1] != cited else []


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
    sphinx.search.IndexBuilder = Index
    SphinxRenderer._random_label = formula_name
    app.connect("source-read", read_for_sphinx)
    app.connect("env-get-updated", restore_numbers, priority=100)  # Sphinx numbers at 500
    app.connect("env-get-updated", number_by_chapter, priority=900)
    app.connect("env-get-updated", write_again)
    app.connect("env-updated", write_in_parallel)
    app.connect("env-updated", copy_first)
    app.connect("doctree-read", colour_cuda)
    app.connect("doctree-resolved", drop_repeated_ids)
    app.connect("doctree-resolved", link_pictures)
    app.connect("doctree-resolved", list_references)
    app.connect("html-collect-pages", page_not_found)
    for change in (search_here, name_folds, list_parameters, name_arrows, describe, drop_scripts):
        app.connect("html-page-context", change, priority=900)
    app.connect("build-finished", drop_unused, priority=900)
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parents[1].rglob("*.py")))
    # After a change of the tools, all pages are read again.
    return {"env_version": zlib.crc32(sources), "parallel_read_safe": True, "parallel_write_safe": True}
