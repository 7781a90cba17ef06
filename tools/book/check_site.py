"""Check the pages of the built book, without using a network.

The checks: links and anchors resolve; pictures have alt text that is not a file name; ids are unique; each page has a
title and a language; no formula is printed as text; and no page loads a script, style sheet, picture, frame or font
from a server.

    python -m tools.book.check_site _build/html
"""

import os
import re
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADING_TAGS = {"audio", "embed", "iframe", "img", "link", "object", "script", "source", "video"}
LINK_ONLY_RELATIONS = {
    "author",
    "canonical",
    "license",
    "next",
    "prev",
    "search",
}  # values of <link rel> that load nothing
# The tags of highlighted code: most of a page's tags, with nothing to check.
COLOURED = re.compile(r'<span class="\w+">|</span>')
CSS_URL = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")


class Page(HTMLParser):
    """A parser that collects the ids, links and problems of one page."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: Counter[str] = Counter()
        self.links: list[tuple[str, str, bool]] = []  # tag, address, whether the browser loads it
        self.problems: list[str] = []
        self.title = ""
        self.inside = ""
        self.redirects = False
        self.feed(COLOURED.sub("", text))
        if not self.title.strip() and not self.redirects:
            self.problems.append("no title")
        self.problems += [f"id {name!r} occurs twice" for name, n in self.ids.items() if n > 1]

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.inside = tag
        self.redirects |= tag == "meta" and (values.get("http-equiv") or "").lower() == "refresh"
        if tag == "html" and not values.get("lang"):
            self.problems.append("no language on <html>")
        if values.get("id"):
            self.ids[values["id"]] += 1
        loads = tag in LOADING_TAGS and not LINK_ONLY_RELATIONS & set((values.get("rel") or "").split())
        self.links += [(tag, values[key], loads) for key in ("href", "src", "poster") if values.get(key)]
        for candidate in filter(None, (values.get("srcset") or "").split(",")):
            self.links.append((tag, candidate.split()[0], True))
        if tag == "img":
            self.check_alt(values)
        if outside := CSS_URL.search(values.get("style") or ""):
            self.problems.append(f"style loads {outside[1]} from outside")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "title":
            self.title += data
        if self.inside == "style" and (outside := CSS_URL.search(data)):
            self.problems.append(f"style loads {outside[1]} from outside")
        if self.inside in ("p", "li", "td", "dd") and "\\begin{" in data:
            self.problems.append(f"a formula is printed as text: {' '.join(data.split())[:60]}")

    def check_alt(self, values: dict[str, str | None]) -> None:
        alt, source = values.get("alt"), values.get("src") or ""
        name = Path(urlsplit(source).path).name
        if alt is None or (not alt.strip() and values.get("role") != "presentation"):
            self.problems.append(f"picture without alt text: {source[:80]}")
        elif alt in (source, name, Path(name).stem) or alt.endswith((".png", ".svg", ".jpg")):
            self.problems.append(f"alt text is a file name: {alt}")


def read(path: Path) -> Page:
    return Page(path.read_text("utf-8"))


def check(root: Path) -> tuple[list[str], int, int]:
    """Check all pages in the folder `root`; return the problems, the number of pages and the number of links."""
    root = root.resolve()
    paths = [p for p in sorted(root.rglob("*.html")) if "_static" not in p.relative_to(root).parts]
    with ProcessPoolExecutor() as pool:
        pages = dict(zip(paths, pool.map(read, paths), strict=True))
    problems = [f"{path.relative_to(root)}: {problem}" for path, page in pages.items() for problem in page.problems]
    find = cache(find_file)  # cached, because every page has the links of the sidebar
    for path, page in pages.items():
        for tag, link, loads in page.links:
            if fault := check_link(path, link, loads, pages, find):
                problems.append(f"{path.relative_to(root)}: <{tag}> {fault}")
    for path in root.rglob("*.css"):
        problems += [
            f"{path.relative_to(root)}: loads {link} from outside" for link in CSS_URL.findall(path.read_text("utf-8"))
        ]
    return problems, len(pages), sum(len(page.links) for page in pages.values())


def find_file(folder: Path, address: str) -> Path | None:
    """Return the file that an address on a page in `folder` refers to; None if there is no such file."""
    target = Path(os.path.normpath(folder / unquote(address)))
    if target.is_dir():
        target /= "index.html"
    return target if target.exists() else None


def check_link(path: Path, link: str, loads: bool, pages: dict[Path, Page], find=find_file) -> str:
    """Return the problem of a link, "" if it has none."""
    url = urlsplit(link)
    if url.scheme or url.netloc:
        return f"loads {link} from outside" if loads and url.scheme != "data" else ""
    target = find(path.parent, url.path) if url.path else path
    if target is None:
        return f"{link} does not exist"
    if url.fragment and target in pages and unquote(url.fragment) not in pages[target].ids:
        return f"{link}: the page has no such anchor"
    return ""


def main() -> int:
    problems, pages, links = check(Path(sys.argv[1]))
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{pages} pages, {links} links checked, {len(problems)} problems")
    return bool(problems) or not pages


if __name__ == "__main__":
    sys.exit(main())
