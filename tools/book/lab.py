"""Make the reader's working copies of the notebooks for JupyterLab: `make lab`.

    python -m tools.book.lab    # writes work/*.ipynb, and updates copies that the reader has not changed

The folder work/ belongs to the reader, and git ignores it. If the book has a newer version of a chapter, an unchanged
copy is updated. A copy that the reader has changed stays as it is, and a printed line announces the newer version.
work/.given.json has a hash of the cells, without outputs, that each notebook had when the reader got it.

JupyterLab cannot show the book's glossary, references and boxes. In the copies, terms and citations are therefore links
to work/glossary.md and work/references.md, and each kind of box gets one of JupyterLab's colours.
"""

import hashlib
import json
import re
from pathlib import Path

from pybtex.database import parse_file
from pybtex.plugin import find_plugin

from tools.book.references import author_year
from tools.notebooks import numbering

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "work"
GIVEN = ".given.json"
# The book's boxes in the colours that JupyterLab has: green, orange, red, blue.
COLOURS = {"predict": "tip", "your-turn": "warning", "mistake": "danger", "borrowed": "note"}
PAGES = {"py:": "https://docs.python.org/3/search.html?q={}"}
NUMPY = "https://numpy.org/doc/stable/search.html?q={}"
ROLE = re.compile(r"\{(?P<role>cite:[pt]|term|numref|ref|eq|prf:ref|py:\w+)\}`(?P<text>[^`]+)`")
TERM = re.compile(r"^(?P<name>[^\s:`].*)\n((?:[ \t]+\S.*\n|\n(?=[ \t]))+)", re.M)


# ---- The text of a copy


def slug(name: str) -> str:
    """Return the anchor of a term in work/glossary.md."""
    return "term-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def glossary(root: Path = ROOT) -> dict[str, str]:
    """Return the definition of each term in the book's glossary."""
    page = (root / "book" / "glossary.md").read_text("utf-8")
    return {m["name"].strip(): " ".join(m[2].split()) for m in TERM.finditer(page)}


class Links:
    """Convert the book's roles, such as {term}, to links that JupyterLab can follow."""

    def __init__(self, root: Path = ROOT):
        self.terms = glossary(root)
        self.entries = parse_file(str(root / "book" / "references.bib")).entries
        self.labels = {}  # label: (file, number or title that the link shows)
        for path in sorted((root / "notebooks").glob("*.ipynb")):
            notebook = json.loads(path.read_text("utf-8"))
            for label, number in numbering.in_jupyterlab(notebook).items():
                self.labels[label] = (path.name, number)
            for cell in notebook["cells"]:
                for label, title in re.findall(r"^\((ch-[\w-]+)\)=\n# (.+)$", numbering.text(cell), re.M):
                    self.labels[label] = (path.name, title)

    def markdown(self, source: str, file: str) -> str:
        """Return a Markdown cell of the notebook `file` with links instead of roles, and with coloured boxes."""
        source = re.sub(
            r"^:class: (predict|your-turn|mistake|borrowed)$",
            lambda m: f":class: {COLOURS[m[1]]}",
            source,
            flags=re.M,
        )
        return ROLE.sub(lambda m: self.link(m["role"], m["text"], file) or m[0], source)

    def link(self, role: str, text: str, file: str) -> str | None:
        """Return a role as a link; None if JupyterLab shows the role correctly."""
        named = re.fullmatch(r"(.*\S)\s*<(.*)>", text, re.S)
        shown, target = named.groups() if named else (text, text)
        if role.startswith("cite"):
            return self.cite(text, role)
        if role == "term":
            return f"[{shown}](glossary.md#{slug(target)})"
        if role.startswith("py:"):
            page = NUMPY if target.startswith("numpy") else PAGES["py:"]
            return f"[`{shown.lstrip('~')}`]({page.format(target.lstrip('~'))})"
        place, number = self.labels.get(target, (None, None))
        if place is None:
            return None
        place = f"#{target}" if place == file else place
        word = "" if role == "ref" else {"fig": "Figure ", "thm": "Theorem ", "tab": "Table "}.get(target[:3], "")
        words = shown if named else f"({number})" if role == "eq" else word + number
        return f"[{words}]({place})"

    def cite(self, keys: str, role: str) -> str:
        found = []
        for key in keys.split(","):
            names, _, year = author_year(self.entries[key.strip()]).rpartition(", ")
            words = f"{names}, {year}" if role == "cite:p" else f"{names} ({year})"
            found.append(f"[{words}](references.md#ref-{key.strip()})")
        return f"({'; '.join(found)})" if role == "cite:p" else " and ".join(found)


def copy_of(notebook: dict, file: str, links: Links) -> dict:
    """Return a copy of a notebook for JupyterLab."""
    cells = [
        {**cell, "source": links.markdown(numbering.text(cell), file)} if cell["cell_type"] == "markdown" else cell
        for cell in notebook["cells"]
    ]
    return notebook | {"cells": cells}


def pages(links: Links) -> dict[str, str]:
    """Return the texts of the pages that the copies link to, by file name."""
    style, plain = (
        find_plugin("pybtex.style.formatting", "plain")(),
        find_plugin("pybtex.backends", "markdown")(),
    )
    entries = sorted(links.entries.items(), key=lambda entry: author_year(entry[1]).lower())
    shown = zip(entries, style.format_entries([entry for _, entry in entries]), strict=True)
    references = [
        f"(ref-{key})=\n**{author_year(entry)}.** {formatted.text.render(plain)}" for (key, entry), formatted in shown
    ]
    terms = [
        f"({slug(name)})=\n**{name}**: {links.markdown(words, 'glossary.md')}"
        for name, words in sorted(links.terms.items(), key=lambda term: term[0].lower())
    ]
    return {
        "references.md": "# References\n\n" + "\n\n".join(references) + "\n",
        "glossary.md": "# Glossary\n\n" + "\n\n".join(terms) + "\n",
    }


# ---- Which copies are updated


def content(notebook: dict) -> str:
    """Return a hash of the types and texts of a notebook's cells, without outputs, because a run restores them."""
    cells = [[cell["cell_type"], numbering.text(cell)] for cell in notebook["cells"]]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def renew(root: Path = ROOT, work: Path = WORK) -> list[str]:
    """Update the copies, and return messages for the reader about the changes."""
    links = Links(root)
    work.mkdir(exist_ok=True)
    record = work / GIVEN
    given = json.loads(record.read_text("utf-8")) if record.exists() else {}
    said = []
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        wanted, there = copy_of(json.loads(path.read_text("utf-8")), path.name, links), work / path.name
        new, old = content(wanted), given.get(path.name)
        if there.exists():
            try:
                mine = content(json.loads(there.read_text("utf-8")))
            except (ValueError, KeyError, TypeError):
                mine = None  # not a valid notebook: leave it to the reader
            if mine == new:
                given[path.name] = new
                continue
            if mine != old:
                if new != old:
                    said.append(f"work/{path.name}: yours was kept; the book has a newer one (rename yours to get it)")
                continue
            said.append(f"work/{path.name}: updated, because you had not changed it")
        there.write_text(json.dumps(wanted, indent=1, ensure_ascii=False) + "\n", "utf-8")
        given[path.name] = new
    for name, text in pages(links).items():
        (work / name).write_text(text, "utf-8")
    record.write_text(json.dumps(given, indent=1) + "\n", "utf-8")
    return said


def main() -> None:
    for line in renew():
        print(line)


if __name__ == "__main__":
    main()
