"""Write the notebooks for programs that do not know MyST, such as VS Code, Colab, Kaggle and GitHub: `make plain`.

    python -m tools.book.plain [FOLDER]    # default: _build/plain

In the copies, directives are HTML or ordinary Markdown, and roles are words and links. Cells keep their ids, code, tags
and outputs, so a copy can be run, graded and tested like the notebook itself. Links to other pages of the book lead to
the book's address (project.toml); if it is unknown, only their words stay.

As a Sphinx extension: the download button of a chapter gives its copy, and all copies are in nanoeuler-notebooks.zip.
The buttons for Colab and Kaggle open the copy in the repository's branch `plain`, which the workflow book.yml writes.
"""

import base64
import json
import mimetypes
import re
import sys
import zipfile
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from tools.book import project
from tools.book.lab import Links, pages, slug
from tools.notebooks import numbering

ROOT = Path(__file__).resolve().parents[2]
BRANCH, ZIP = "plain", "nanoeuler-notebooks.zip"
KAGGLE = "https://www.kaggle.com/kernels/welcome?src="
OPEN = re.compile(r"(?P<fence>`{3,}|:{3,})\{(?P<name>[\w:-]+)\} ?(?P<title>.*)")
CODE = re.compile(r"`{3,}|~{3,}")
OPTION = re.compile(r":([\w-]+): *(.*)")
LABEL = re.compile(r"\([\w-]+\)=")
ALIGN = re.compile(r"^\\begin\{align(\*?)\}$(.*?)^\\end\{align\1\}$", re.M | re.S)
DISPLAY = re.compile(r"^\$\$(.+?)\$\$$", re.M | re.S)
PAGE = re.compile(r"\[([^\]]*)\]\(\.\./([\w./-]+?)\.(md|ipynb)(#[\w-]+)?\)")


class Plain:
    """Convert MyST text to Markdown. file: the notebook's name; book: the book's address, "" if unknown.

    Raises ValueError for a directive that is unknown here or has no end.
    """

    def __init__(self, links: Links, file: str, book: str = "", root: Path = ROOT):
        self.links, self.file, self.book, self.root = links, file, book, root
        self.anchors = {
            slug(term): "term-" + re.sub(r"\W+", "-", term).strip("-") for term in links.terms
        }  # as in Sphinx
        self.attachments: dict[str, dict[str, str]] = {}  # of the cell that `markdown` has converted last

    def markdown(self, source: str) -> str:
        """Return the text of a cell without directives and roles."""
        self.attachments = {}
        source = self.links.markdown(numbering.FRONT.sub("", source), self.file)
        source = re.sub(r"\{math\}`([^`]+)`", r"$\1$", source)
        return "\n".join(self.blocks(self.page_links(source).split("\n"))).strip("\n")

    def page_links(self, source: str) -> str:
        """Replace links to pages that are not in the folder by links to the book, or by their words."""
        if not self.book:
            return PAGE.sub(r"\1", source)
        source = PAGE.sub(rf"[\1]({self.book}/\2.html\4)", source)
        source = re.sub(r"(?<=glossary\.md#)term-[\w-]+", lambda m: self.anchors[m[0]], source)
        return re.sub(r"\]\((glossary|references)\.md", rf"]({self.book}/book/\1.html", source)

    def blocks(self, lines: list[str]) -> list[str]:
        """Convert a list of lines, with the directives in it."""
        out, text, i = [], [], 0

        def flush():
            out.extend(one_line_formulas("\n".join(text)).split("\n") if text else [])
            text.clear()

        while i < len(lines):
            line = lines[i]
            directive, code = OPEN.fullmatch(line), CODE.match(line)
            if not directive and not code:
                if not LABEL.fullmatch(line):
                    text.append(line)
                i += 1
                continue
            flush()
            fence = directive["fence"] if directive else code[0]
            end = self.closing(lines, i, fence)
            if directive:
                out += ["", *self.directive(directive["name"], directive["title"], lines[i + 1 : end]), ""]
            else:
                out += lines[i : end + 1]
            i = end + 1
        flush()
        return out

    def directive(self, name: str, title: str, lines: list[str]) -> list[str]:
        """Convert a directive: its name, the rest of its first line, and the lines between its fences."""
        options = {}
        while lines and (option := OPTION.fullmatch(lines[0])):
            options[option[1]] = option[2]
            lines = lines[1:]
        number = self.links.labels.get(options.get("label", ""), ("", ""))[1]
        anchor = [f'<a id="{options["label"]}"></a>', ""] if "label" in options else []
        if name == "math":
            formula = " ".join(line.strip() for line in lines if line.strip())
            tag = rf" \tag{{{number}}}" if "enumerated" in options else ""
            return [*anchor, f"$${formula}{tag}$$"]
        if name == "list-table":
            return table(lines, header="header-rows" in options)
        if name == "image":
            return [self.image(title, options.get("alt", ""))]
        body = self.blocks(lines)
        if name == "figure":
            return [*anchor, f"**Figure {number}.** {' '.join(body).strip()}"]
        if name == "exercise":
            return [*anchor, f"**Exercise {number}{f': {title}' if title else ''}**", "", *body]
        if name == "solution":
            number = self.links.labels.get(title, ("", ""))[1]
            return folded(f"Solution of exercise {number}", body)
        if name == "hint" or "dropdown" in options.get("class", ""):
            return folded(title or "Hint", body)
        if name == "admonition":
            return quoted([f"**{title}**", "", *body])
        if name == "prf:proof":
            return quoted(["*Proof.*", "", *body])
        if name.startswith("prf:"):
            kind = name.removeprefix("prf:").capitalize()
            return [*anchor, *quoted([f"**{kind} {number}{f' ({title})' if title else ''}.**", "", *body])]
        raise ValueError(f"a directive must be one that tools/book/plain.py converts, got {name} in {self.file}")

    def closing(self, lines: list[str], start: int, fence: str) -> int:
        """Return the index of the line that closes the fence at `start`. Raises ValueError if there is none."""
        closes = re.compile(rf"{re.escape(fence[0])}{{{len(fence)},}}\s*")
        for i in range(start + 1, len(lines)):
            if closes.fullmatch(lines[i]):
                return i
        raise ValueError(f"{self.file}: a fence must be closed, got {lines[start]!r} without an end")

    def image(self, path: str, alt: str) -> str:
        """Store a picture in the cell, and return the Markdown that shows it."""
        picture = (self.root / "notebooks" / path).resolve()
        kind = mimetypes.guess_type(picture.name)[0]
        self.attachments[picture.name] = {kind: base64.b64encode(picture.read_bytes()).decode()}
        return f"![{alt}](attachment:{picture.name})"


def one_line_formulas(text: str) -> str:
    """Put each formula of several lines on one line, because a quotation mark before its lines would break it."""
    text = ALIGN.sub(r"$$\\begin{aligned}\2\\end{aligned}$$", text)
    return DISPLAY.sub(lambda m: f"$${' '.join(m[1].split())}$$", text)


def quoted(lines: list[str]) -> list[str]:
    return [f"> {line}".rstrip() for line in "\n".join(lines).strip("\n").split("\n")]


def folded(title: str, lines: list[str]) -> list[str]:
    """Fold lines under a title; the title is HTML, in which no program reads Markdown."""
    title = re.sub(r"`([^`]+)`", r"<code>\1</code>", title)
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>"]


def table(lines: list[str], header: bool) -> list[str]:
    """Convert the list of lists of a `list-table`; a table without a header gets an empty one."""
    rows: list[list[str]] = []
    for line in lines:
        if line.startswith("* - "):
            rows.append([line[4:]])
        elif line.startswith("  - "):
            rows[-1].append(line[4:])
        elif line.strip():
            rows[-1][-1] += f" {line.strip()}"
    rows = rows if header else [[""] * len(rows[0]), *rows]
    shown = [f"| {' | '.join(cell.strip() for cell in row)} |" for row in rows]
    return [shown[0], f"|{' :-- |' * len(rows[0])}", *shown[1:]]


def plain(notebook: dict, file: str, links: Links, book: str = "", root: Path = ROOT) -> dict:
    """Return a copy of a notebook without MyST. In Colab, the cells that the book folds are folded, too."""
    converter, cells = Plain(links, file, book, root), []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            source = converter.markdown(numbering.text(cell))
            cell = {**cell, "source": source}
            if converter.attachments:
                cell["attachments"] = converter.attachments
        elif cell["metadata"].get("jupyter", {}).get("source_hidden"):
            cell = {**cell, "metadata": {**cell["metadata"], "cellView": "form"}}
        cells.append(cell)
    return notebook | {"cells": cells}


def write(folder: Path, root: Path = ROOT) -> int:
    """Write all notebooks, the glossary and the references into the folder; return the number of notebooks."""
    folder.mkdir(parents=True, exist_ok=True)
    links, book = Links(root), project.load(root / "project.toml").book
    paths = sorted((root / "notebooks").glob("*.ipynb"))
    for path in paths:
        copy = plain(json.loads(path.read_text("utf-8")), path.name, links, book, root)
        (folder / path.name).write_text(json.dumps(copy, indent=1, ensure_ascii=False) + "\n", "utf-8")
    for name, text in pages(links).items():
        text = re.sub(r"^\(([\w-]+)\)=$", r'<a id="\1"></a>\n', text, flags=re.M)
        (folder / name).write_text(text, "utf-8")
    return len(paths)


# ---- In the build


def publish(app: Sphinx, error: Exception | None) -> None:
    """Let the download buttons give the copies, and put all copies into one file."""
    sources = Path(app.outdir) / "_sources" / "notebooks"
    if error or not sources.is_dir():
        return
    write(sources)
    with zipfile.ZipFile(Path(app.outdir) / ZIP, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(sources.iterdir()):
            if path.suffix in (".ipynb", ".md"):  # without its date, so that equal books have equal files
                entry = zipfile.ZipInfo(f"nanoeuler/{path.name}")
                file.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


def launch_copies(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Let the launch buttons for Colab open the copy instead of the notebook, and add one for Kaggle."""
    found = project.load()
    for group in context.get("header_buttons", ()):
        for button in list(group.get("buttons", ())) if group.get("label") == "launch-buttons" else ():
            if button["text"] == "Colab":
                name = page.rpartition("/")[2]
                button["url"] = button["url"].partition("/blob/")[0] + f"/blob/{BRANCH}/{name}.ipynb"
                url = f"{KAGGLE}{found.repository}/blob/{BRANCH}/{name}.ipynb"
                more = {"text": "Kaggle", "tooltip": "Launch on Kaggle", "icon": "fas fa-cloud", "url": url}
                group["buttons"].append({"type": "link"} | more)


def setup(app: Sphinx) -> dict:
    app.connect("build-finished", publish)
    app.connect("html-page-context", launch_copies, priority=900)  # the theme adds its buttons at 501
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "_build" / "plain"
    print(f"{write(folder)} notebooks in {folder}")


if __name__ == "__main__":
    main()
