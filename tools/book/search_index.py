"""The search index: each page's sections with their text, so that a hit has its excerpt from a file too.

`book/_static/search.js` ranks them. `book/search.yml` has readers' words for what the book calls otherwise.
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
    """Of each section, glossary term and function of a page: anchor, heading, text, and the names in its code.

    The map of the book, which names every chapter, the facts at the head, and what cells printed are left out.
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
    """The anchor and the words of what begins an entry; None if it has neither."""
    if isinstance(node, addnodes.desc):
        signature = node.children[0]
        ids = signature.get("ids")
        return (ids[0], signature.get("fullname") or ids[0]) if ids else None
    kind = nodes.title if isinstance(node, nodes.section) else nodes.term
    head = next((child for child in node.children if isinstance(child, kind)), None)
    ids = (node if isinstance(node, nodes.section) else head or {}).get("ids")
    return (ids[0], " ".join(head.astext().split())) if head and ids else None


def leads(pages: list[str], said: dict[str, str]) -> dict[str, list[str]]:
    """The pages that search shows first, by readers' words. Raises ValueError where a chapter does not exist.

    said: as in book/search.yml, `words, separated: numbers of chapters`.
    """
    found = {}
    for listed, numbers in said.items():
        chapters = [next(ROOT.glob(f"notebooks/{number}_*.ipynb"), None) for number in numbers.split()]
        if None in chapters:
            raise ValueError(f"book/search.yml: {listed}: no chapter for one of {numbers}")
        there = [page for chapter in chapters if (page := f"notebooks/{chapter.stem}") in pages]
        found |= {words.strip(): there for words in listed.split(",") if there}
    return found


class Index(IndexBuilder):
    """`pages`: of each page its title and `sections`; `leads`; `introduced`: each term's chapter."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.pages: dict[str, list] = {}

    def load(self, stream, format) -> None:
        """Take over from the last build what is not read again."""
        frozen = format.load(stream)
        if frozen.get("envversion") != self.env.version:
            raise ValueError("made by another version")
        self.pages = frozen["pages"]

    def prune(self, docnames) -> None:
        """Forget the pages that are no longer there."""
        self.pages = {name: page for name, page in self.pages.items() if name in set(docnames)}

    def feed(self, docname: str, filename: str, title: str, doctree: nodes.document) -> None:
        self.pages[docname] = [re.sub(r"<[^>]+>", "", title), sections(doctree)]

    def freeze(self) -> dict:
        pages = dict(sorted(self.pages.items()))
        said = yaml.safe_load((ROOT / "book" / "search.yml").read_text("utf-8"))
        introduced = {term: f"notebooks/{chapter}" for term, chapter in terms.introductions(ROOT).items()}
        return {
            "envversion": self.env.version,
            "pages": pages,
            "leads": leads(list(pages), said),
            "introduced": introduced,
        }
