"""The whole book as one PDF, printed by Chromium from the built pages: `make pdf`.

    python -m tools.book.pdf _build/html _build/nanoeuler.pdf

The articles of all pages stand in one page, in the order of _toc.yml, their anchors told apart by the page's name, so
that a link from chapter to chapter is one within the PDF. Chromium makes the outline from the headings. Where qpdf is
installed, it halves the file.
"""

import os
import posixpath
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 1800


def chromium() -> str | None:
    """The browser's program: NANOEULER_CHROMIUM names it, else the first of the usual names."""
    names = filter(None, (os.environ.get("NANOEULER_CHROMIUM"), *NAMES))
    return next((found for name in names if (found := shutil.which(name))), None)


def pages(toc: Path = ROOT / "_toc.yml") -> list[str]:
    """The pages in the order of the book."""
    book = yaml.safe_load(toc.read_text("utf-8"))
    parts = book.get("parts", [book])
    return [book["root"], *(chapter["file"] for part in parts for chapter in part["chapters"])]


def anchor(page: str, name: str = "") -> str:
    """What an anchor of a page is called in the whole book."""
    return "--".join(filter(None, (page.replace("/", "-"), name)))


def article(site: Path, page: str, all_pages: list[str]):
    """A page's article with its anchors and links as they are in the whole book, and with its folds open."""
    soup = BeautifulSoup((site / f"{page}.html").read_text("utf-8"), "html.parser")
    found = soup.select_one("article.bd-article")
    for tag in found.select("[id]"):
        tag["id"] = anchor(page, tag["id"])
    for link in found.select("a[href]"):
        url = urlsplit(link["href"])
        path = (
            posixpath.normpath(posixpath.join(posixpath.dirname(page), url.path))
            if url.path
            else f"{page}.html"
        )
        target = path.removesuffix(".html")
        if not url.scheme and target in all_pages:
            link["href"] = f"#{anchor(target, url.fragment)}"
    for fold in found.select("details"):
        fold["open"] = ""
    found["id"] = anchor(page)
    return found


def mathjax(soup: BeautifulSoup) -> list:
    """A page's scripts for formulas: MathJax, and before it the settings that say where it looks for them."""
    return [s for s in soup.select("script") if "mathjax" in s.get("src", "") or "window.MathJax" in s.text]


def whole(site: Path, all_pages: list[str]) -> str:
    """All articles in the frame of the first page, a list of their titles behind the first."""
    soup = BeautifulSoup((site / f"{all_pages[0]}.html").read_text("utf-8"), "html.parser")
    frame = soup.select_one("article.bd-article")
    articles = [article(site, page, all_pages) for page in all_pages]
    for found in articles:
        frame.insert_before(found)
    lines = []
    for found in articles[1:]:
        for link in found.h1.select("a.headerlink"):
            link.decompose()
        lines.append(f'<li><a href="#{found["id"]}">{found.h1.decode_contents()}</a></li>')
    contents = (
        f'<article class="bd-article" id="contents"><h1>Contents</h1><ul>{"".join(lines)}</ul></article>'
    )
    articles[0].insert_after(BeautifulSoup(contents, "html.parser"))
    frame.decompose()
    soup.title.string = "NanoEuler"
    for script in soup.select('script[src*="book.js"]'):
        script.decompose()  # it fits each formula to a screen: a thousand pages would be laid out for each anew
    for page in all_pages:  # the first page may have no formula, and then no MathJax
        if not mathjax(soup):
            soup.head.extend(
                mathjax(BeautifulSoup((site / f"{page}.html").read_text("utf-8"), "html.parser"))
            )
    return str(soup)


def browse(site: Path, all_pages: list[str], *options: str) -> subprocess.CompletedProcess:
    """Run Chromium with `options` on the whole book's page, its formulas typeset."""
    page = site / posixpath.dirname(all_pages[0]) / "_whole.html"  # beside the others: their addresses hold
    page.write_text(whole(site, all_pages), "utf-8")
    command = [chromium(), "--headless", "--disable-gpu", "--virtual-time-budget=1000000", *options]
    command += ["--no-sandbox"] * (os.geteuid() == 0) + [page.resolve().as_uri()]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    finally:
        page.unlink()


def make(site: Path, target: Path, toc: Path = ROOT / "_toc.yml") -> None:
    """Print the book of `site` to `target`."""
    if chromium() is None:
        sys.exit(
            f"a PDF needs Chromium or Chrome, and none of {', '.join(NAMES)} is there: "
            "install one, or name its program in NANOEULER_CHROMIUM"
        )
    all_pages = pages(toc)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    printed = browse(
        site,
        all_pages,
        "--no-pdf-header-footer",
        "--generate-pdf-document-outline",
        f"--print-to-pdf={target.resolve()}",
    )
    if printed.returncode or not target.exists():
        sys.exit(f"{chromium()} made no PDF:\n{printed.stderr[-2000:]}")
    if shutil.which("qpdf"):
        subprocess.run(["qpdf", "--object-streams=generate", "--replace-input", target])
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB, {len(all_pages)} pages of the book")


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
