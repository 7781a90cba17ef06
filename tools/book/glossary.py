"""A Sphinx extension for the glossary: links to letters, the chapter of each term, and definitions on hover or focus.

A chapter's first link to a term gets an id, to which "Introduced in" in the glossary links. Each page contains the
definitions of its terms in a <template>, so that a definition needs no request and also works on a page opened as a
file. `_static/glossary.js` shows the definitions.
"""

from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from tools.notebooks import terms

LETTERS = "glossary-letters"


def first_id(term: str) -> str:
    """Return the id of a chapter's first link to a term."""
    return nodes.make_id(f"first-{term}")


def mark_first_links(app: Sphinx, doctree: nodes.document) -> None:
    """Give an id to a page's first link to each term."""
    marked = set()
    for link in doctree.findall(addnodes.pending_xref):
        name = first_id(link["reftarget"]) if link.get("reftype") == "term" else None
        if name and name not in marked:
            marked.add(name)
            link.children[0]["ids"].append(name)


def items(doctree: nodes.document) -> dict[str, nodes.definition_list_item]:
    """Return the entries of a page's glossary in order, by the ids of their terms."""
    found = {}
    for entry in doctree.findall(addnodes.glossary):
        for item in entry.findall(nodes.definition_list_item):
            found |= {term["ids"][0]: item for term in item.findall(nodes.term)}
    return found


def finish_glossary(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Add the letters above the glossary, and after each definition the chapter that introduces the term."""
    entries = items(doctree)
    if not entries:
        return
    introduced = terms.introductions(Path(app.srcdir))
    for item in entries.values():
        term = next(item.findall(nodes.term)).astext()
        chapter = f"notebooks/{introduced.get(term.lower())}"
        if chapter in app.env.titles:
            address = app.builder.get_relative_uri(docname, chapter) + f"#{first_id(term)}"
            link = nodes.reference("", app.env.titles[chapter].astext(), refuri=address, internal=True)
            said = nodes.paragraph("", "", nodes.Text("Introduced in "), link, nodes.Text("."), classes=["introduced"])
            next(item.findall(nodes.definition)).append(said)
    letters = {}
    for name, item in entries.items():
        letters.setdefault(next(item.findall(nodes.term)).astext()[0].upper(), name)
    links = " ".join(f'<a href="#{name}">{letter}</a>' for letter, name in letters.items())
    bar = nodes.raw("", f'<nav class="{LETTERS}" aria-label="Letters">{links}</nav>', format="html")
    glossary = next(doctree.findall(addnodes.glossary))
    glossary.parent.insert(glossary.parent.index(glossary), bar)


def definitions(app: Sphinx) -> dict[str, str]:
    """Return each definition as HTML without links, by the id of its term; a build computes this once."""
    if not hasattr(app, "glossary_definitions"):
        pages = {page for *_, kind, page, _, _ in app.env.get_domain("std").get_objects() if kind == "term"}
        app.glossary_definitions = {}
        for page in pages:
            for name, item in items(app.env.get_doctree(page)).items():
                text = next(item.findall(nodes.definition))
                for link in list(text.findall(addnodes.pending_xref)):
                    link.replace_self(nodes.Text(link.astext()))
                parts = (app.builder.render_partial(part)["fragment"] for part in text.children)
                app.glossary_definitions[name] = "".join(parts).strip()
    return app.glossary_definitions


def add_definitions(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Append the definitions of the terms that a page links to, hidden from readers and from the search."""
    names = {
        link.parent.get("refid") or link.parent["refuri"].rpartition("#")[2]
        for link in (doctree.findall(nodes.inline) if doctree else ())
        if "std-term" in link["classes"] and isinstance(link.parent, nodes.reference)
    }
    found = {name: html for name, html in definitions(app).items() if name in names} if names else {}
    if found:
        shown = "".join(f'<div data-term="{name}">{html}</div>' for name, html in found.items())
        context["body"] += f'<template id="glossary-definitions">{shown}</template>'
    if any('class="math' in html for html in found.values()):  # the page itself may have no formula
        app.env.get_domain("math").data["has_equations"][page] = True


def glossary_is_read(app: Sphinx, env: BuildEnvironment, added: set, changed: set, removed: set) -> set[str]:
    """Read the glossary again after any change, because a different chapter may now introduce a term."""
    return {"book/glossary"} & env.found_docs if added | changed | removed else set()


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", mark_first_links)
    app.connect("doctree-resolved", finish_glossary)
    app.connect("html-page-context", add_definitions, priority=400)  # at 500 MathJax looks for formulas in the page
    app.connect("env-get-outdated", glossary_is_read)
    app.add_css_file("glossary.css")
    app.add_js_file("glossary.js", loading_method="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
