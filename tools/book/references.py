"""Format the list of references: an entry begins with its citation (Vaswani et al., 2017) and ends with back links."""

import re

from docutils import nodes
from pybtex.database import Entry
from pybtex.richtext import Text
from sphinx.application import Sphinx

from tools.notebooks import numbering


def author_year(entry: Entry) -> str:
    """Return an entry's citation: one or two authors by name, or the first author and "et al.", and the year."""
    people = entry.persons.get("author") or entry.persons["editor"]
    names = [
        str(Text.from_latex(" ".join([*who.prelast_names, *who.last_names]))).replace("\xa0", " ") for who in people
    ]
    return f"{' and '.join(names) if len(names) < 3 else f'{names[0]} et al.'}, {entry.fields['year']}"


def list_references(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replace the citations of a bibliography by an ordinary list with links to the citing pages."""
    cite = app.env.get_domain("cite")
    entries = {c.citation_id: c for c in cite.citations if c.bibliography_key.docname == docname}
    for place in {node.parent for node in doctree.findall(nodes.citation)} if entries else ():
        items = nodes.bullet_list(classes=["references"])
        for node in place:
            citation = entries[node["ids"][0]]
            text = nodes.paragraph("", "", nodes.strong("", f"{author_year(citation.entry)}. "), *node[1].children)
            text += back_links(app, docname, citation.key)
            items += nodes.list_item("", text, ids=node["ids"])
        place.replace_self(items)


def back_links(app: Sphinx, docname: str, key: str) -> list[nodes.Node]:
    """Return a link to the first citation on each page that cites an entry."""
    places = {}
    for ref in app.env.get_domain("cite").citation_refs:
        if key in {target.key for target in ref.targets}:
            places.setdefault(ref.docname, ref.citation_ref_id)
    found = [nodes.Text(" Cited in ")] if places else []
    for n, page in enumerate(sorted(places)):
        title = app.env.titles[page].astext()
        name = re.split(r"\s", title)[0] if numbering.chapter(page) else title
        uri = f"{app.builder.get_relative_uri(docname, page)}#{places[page]}"
        found += [nodes.Text(", ")] * (n > 0) + [nodes.reference("", name, internal=True, refuri=uri, reftitle=title)]
    return found + [nodes.Text(".")] * bool(found)
