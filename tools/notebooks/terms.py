"""List glossary terms and symbols that the chapters use before they introduce them, in the order of _toc.yml.

The first {term} link introduces a term of book/glossary.md, so the term must not occur in the prose before this link.
The row of a symbol in book/notation.md links to the chapter that introduces the symbol ({ref}`ch-...`), so the symbol
must not occur in the formulas of an earlier chapter. The pages of book/ are not checked.

    python -m tools.notebooks.terms    # exit status 1 if there are any
"""

import json
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
TERM = re.compile(r"\{term\}`(?:[^`<]*<([^`>]+)>|([^`]+))`")
MATH = re.compile(r"\$\$.+?\$\$|\$[^$]+\$|\\begin\{(align\*?|equation\*?)\}.+?\\end\{\1\}|```\{math\}.+?```", re.DOTALL)
# The map of chapters, the facts in the header, captions, titles and links to chapters may use later terms.
NOT_PROSE = re.compile(
    r"^:::\{(?:admonition\} You are here|figure\}).+?^:::$|^```\{list-table\}.+?^```$|^#[^\n]*$"
    r"|\[[^\]]*\]\([^)]*\.ipynb\)"
    r"|```\{math\}.+?```|\$\$.+?\$\$|\$[^$]+\$|`[^`\n]+`|^\(ch-[^\n]*$|^(?:```|:)[^\n]*$|\]\([^)]*\)|<[^>]+>",
    re.DOTALL | re.M,
)


@dataclass
class Chapter:
    name: str
    text: str  # all markdown cells

    @cached_property
    def prose(self) -> str:
        """Return the chapter's words, with each {term} link as \x00term\x00."""
        linked = TERM.sub(lambda link: f"\x00{' '.join((link[1] or link[2]).split()).lower()}\x00", self.text)
        return NOT_PROSE.sub(" ", linked)

    @cached_property
    def mathematics(self) -> str:
        return " ".join(match[0] for match in MATH.finditer(self.text))


def chapters(root: Path) -> list[Chapter]:
    """Read the notebooks of _toc.yml, in order."""
    toc = yaml.safe_load((root / "_toc.yml").read_text("utf-8"))
    files = [entry["file"] for part in toc.get("parts", []) for entry in part["chapters"]]
    paths = [root / f"{name}.ipynb" for name in files if (root / f"{name}.ipynb").exists()]
    return [
        Chapter(
            path.stem,
            "\n\n".join(
                "".join(cell["source"])
                for cell in json.loads(path.read_text("utf-8"))["cells"]
                if cell["cell_type"] == "markdown"
            ),
        )
        for path in paths
    ]


def glossary_terms(text: str) -> list[str]:
    """Return the terms of the glossary directive, which are the lines at the left margin inside it."""
    body = re.search(r"^(`{3,}|:{3,})\{glossary\}[^\n]*\n(.*?)^\1", text, re.DOTALL | re.M)
    lines = body[2].splitlines() if body else []
    return [line.strip() for line in lines if line.strip() and not line[0].isspace() and not line.startswith(":")]


def notation_symbols(text: str) -> list[tuple[str, str]]:
    """Return (symbol in TeX, label of its chapter) for each row of the notation that has both."""
    rows = re.findall(r"^\|\s*\$([^$]+)\$\s*\|.*\{ref\}`(?:[^`<]*<)?(ch-[\w-]+)>?`", text, re.M)
    return [(symbol.strip(), label) for symbol, label in rows]


def introductions(root: Path = ROOT) -> dict[str, str]:
    """Return the chapter with the first {term} link to each term, by the term in lower case."""
    found = {}
    for chapter in chapters(root):
        for link in TERM.finditer(chapter.text):
            found.setdefault(" ".join((link[1] or link[2]).split()).lower(), chapter.name)
    return found


def term_problems(terms: list[str], book: list[Chapter]) -> list[str]:
    problems = []
    for term in terms:
        link = f"\x00{term.lower()}\x00"
        plain = re.compile(rf"(?<![\w\x00-]){re.escape(term)}s?(?![\w\x00-])", re.I)
        for chapter in book:
            prose = chapter.prose
            introduced, used = prose.find(link), plain.search(prose)
            if used and (introduced < 0 or used.start() < introduced):
                line = " ".join(prose[max(0, used.start() - 40) : used.end() + 30].replace("\x00", "").split())
                problems.append(f"{chapter.name}: {term!r} is used before its first {{term}} link: ...{line}...")
            if used or introduced >= 0:
                break
    return problems


def symbol_problems(symbols: list[tuple[str, str]], book: list[Chapter]) -> list[str]:
    labels = [re.findall(r"^\((ch-[\w-]+)\)=", chapter.text, re.M) for chapter in book]
    problems = []
    for symbol, label in symbols:
        at = next((number for number, names in enumerate(labels) if label in names), None)
        if at is None:
            problems.append(f"notation.md: the chapter of ${symbol}$ must be in the book, got {label}")
            continue
        pattern = re.compile(rf"(?<![A-Za-z\\]){re.escape(symbol)}(?![A-Za-z])")
        problems += [
            f"{chapter.name}: ${symbol}$ is used before {label}, which introduces it"
            for chapter in book[:at]
            if pattern.search(re.sub(r"\\(?:text|mathrm|mathcal|operatorname)\{[^}]*\}", " ", chapter.mathematics))
        ]
    return problems


def check(root: Path = ROOT) -> list[str]:
    """Return a line for each term or symbol that is used before it is introduced."""
    book = chapters(root)
    glossary, notation = root / "book" / "glossary.md", root / "book" / "notation.md"
    terms = glossary_terms(glossary.read_text("utf-8")) if glossary.exists() else []
    symbols = notation_symbols(notation.read_text("utf-8")) if notation.exists() else []
    return term_problems(terms, book) + symbol_problems(symbols, book)


if __name__ == "__main__":
    found = check()
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
