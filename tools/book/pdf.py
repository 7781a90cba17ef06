"""The whole book as one PDF, printed by Chromium from the built pages: `make pdf`.

    python -m tools.book.pdf _build/html _build/nanoeuler.pdf

The articles of all pages stand in one page, in the order of _toc.yml, their anchors told apart by the page's name, so
that a link from chapter to chapter is one within the PDF. Chromium makes the outline from the headings.
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


def whole(site: Path, all_pages: list[str]) -> str:
    """All articles in the frame of the first page."""
    soup = BeautifulSoup((site / f"{all_pages[0]}.html").read_text("utf-8"), "html.parser")
    frame = soup.select_one("article.bd-article")
    for page in all_pages:
        frame.insert_before(article(site, page, all_pages))
    frame.decompose()
    for page in all_pages:  # the first page may have no formula, and then no MathJax
        if not soup.select("script[src*=mathjax]"):
            parsed = BeautifulSoup((site / f"{page}.html").read_text("utf-8"), "html.parser")
            soup.head.extend(parsed.select("script[src*=mathjax]"))
    return str(soup)


def make(site: Path, target: Path, toc: Path = ROOT / "_toc.yml") -> None:
    """Print the book of `site` to `target`."""
    browser = chromium()
    if browser is None:
        sys.exit(
            f"a PDF needs Chromium or Chrome, and none of {', '.join(NAMES)} is there: "
            "install one, or name its program in NANOEULER_CHROMIUM"
        )
    all_pages = pages(toc)
    page = (
        site / posixpath.dirname(all_pages[0]) / "_whole.html"
    )  # beside the others: their relative addresses hold
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    page.write_text(whole(site, all_pages), "utf-8")
    command = [
        browser,
        "--headless",
        "--disable-gpu",
        "--no-pdf-header-footer",
        "--generate-pdf-document-outline",
    ]
    command += ["--virtual-time-budget=1000000", f"--print-to-pdf={target.resolve()}"]
    command += ["--no-sandbox"] * (os.geteuid() == 0) + [page.resolve().as_uri()]
    try:
        printed = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    finally:
        page.unlink()
    if printed.returncode or not target.exists():
        sys.exit(f"{browser} made no PDF:\n{printed.stderr[-2000:]}")
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB, {len(all_pages)} pages of the book")


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
