"""Build the search index, which has the text of each section, so a result can show an excerpt even offline.

`book/_static/search.js` ranks the sections. `book/search.yml` lists common words for which the book uses a different
word, and topics that the book does not treat.
"""

import re
from pathlib import Path

import yaml
from docutils import nodes
from sphinx import addnodes
from sphinx.search import IndexBuilder

from tools.notebooks import terms

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = "cell_output"
HEADS = (nodes.section, addnodes.desc, nodes.definition_list_item)  # what gets an entry of its own


def sections(doctree: nodes.document) -> list[list[str]]:
    """Return anchor, heading, text and names in code for each section, glossary term and function of a page.

    The result leaves out the map of the book, the facts in the header, and the outputs of cells.
    """
    found = []

    def read(node: nodes.Node, entry: dict) -> None:
        if isinstance(node, HEADS) and (head := heading(node)):
            entry = {"head": head, "text": [], "code": set()}
            found.append(entry)
        elif isinstance(node, nodes.Text):
            entry["text"].append(node.astext())
            return
        elif isinstance(node, nodes.literal_block):
            entry["code"].update(re.findall(r"[^\W\d]\w{2,}", node.astext().lower()))
            return
        elif isinstance(node, nodes.math | nodes.math_block):
            text = node.astext()
            entry["text"].append(text if re.fullmatch(r"[\w+\-=/ ]{1,12}", text) else "…")
            return
        elif isinstance(node, nodes.title | nodes.term | addnodes.desc_signature | nodes.raw | nodes.comment):
            if isinstance(node.parent, HEADS) or isinstance(node, nodes.raw | nodes.comment):
                return
        elif isinstance(node, nodes.Element) and {"here", "facts", OUTPUT} & set(node.get("classes", ())):
            return
        for child in node.children:
            read(child, entry)
        if not isinstance(node, nodes.Inline):
            entry["text"].append(" ")

    read(doctree, {"text": [], "code": set()})
    return [
        [*entry["head"], " ".join("".join(entry["text"]).split()), " ".join(sorted(entry["code"]))] for entry in found
    ]


def heading(node: nodes.Element) -> tuple[str, str] | None:
    """Return the anchor and the words of an entry's heading; None if the node has no heading with an anchor."""
    if isinstance(node, addnodes.desc):
        signature = node.children[0]
        ids = signature.get("ids")
        return (ids[0], signature.get("fullname") or ids[0]) if ids else None
    kind = nodes.title if isinstance(node, nodes.section) else nodes.term
    head = next((child for child in node.children if isinstance(child, kind)), None)
    ids = (node if isinstance(node, nodes.section) else head or {}).get("ids")
    return (ids[0], " ".join(head.astext().split())) if head and ids else None


def leads(pages: list[str], listed: dict[str, str]) -> dict[str, list[str]]:
    """Map readers' words to the pages that search shows first. Raises ValueError if a page does not exist.

    listed: a part of book/search.yml, `words, with commas: pages`; each page is a chapter's number or a path.
    """
    found = {}
    for several, names in listed.items():
        paths = [next(ROOT.glob(f"notebooks/{name}_*.ipynb"), ROOT / f"{name}.md") for name in names.split()]
        if missing := [path for path in paths if not path.exists()]:
            raise ValueError(f"book/search.yml: {several}: there is no {missing[0].name}")
        there = [page for path in paths if (page := path.relative_to(ROOT).with_suffix("").as_posix()) in pages]
        found |= {words.strip(): there for words in several.split(",") if there}
    return found


class Index(IndexBuilder):
    """The index of the book: pages with their `sections`, `leads`, `absent` topics, and the chapter of each term."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.pages: dict[str, list] = {}

    def load(self, stream, format) -> None:
        """Load the pages of the last build, from which Sphinx reads only changed pages again."""
        frozen = format.load(stream)
        if frozen.get("envversion") != self.env.version:
            raise ValueError("made by another version")
        self.pages = frozen["pages"]

    def prune(self, docnames) -> None:
        """Remove pages that no longer exist from the index."""
        self.pages = {name: page for name, page in self.pages.items() if name in set(docnames)}

    def feed(self, docname: str, filename: str, title: str, doctree: nodes.document) -> None:
        self.pages[docname] = [re.sub(r"<[^>]+>", "", title), sections(doctree)]

    def freeze(self) -> dict:
        pages = dict(sorted(self.pages.items()))
        listed = yaml.safe_load((ROOT / "book" / "search.yml").read_text("utf-8"))
        introduced = {term: f"notebooks/{chapter}" for term, chapter in terms.introductions(ROOT).items()}
        return {
            "envversion": self.env.version,
            "pages": pages,
            "leads": leads(list(pages), listed["leads"]),
            "absent": leads(list(pages), listed["absent"]),
            "introduced": introduced,
        }
