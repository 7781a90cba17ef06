"""Print the built pages of the book to one PDF with Chromium: `make pdf`.

    python -m tools.book.pdf _build/html _build/nanoeuler.pdf

All pages are joined into one, in the order of _toc.yml. Each anchor gets the name of its page as a prefix, so that
links between chapters become links within the PDF. Chromium makes the outline from the headings, and numbers the pages
(custom.css). But Chromium cannot write page numbers into the contents, and it joins the words of a heading at a line
break; `finish` corrects both faults.
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
SECONDS = 3600
CONTENTS = "contents"  # anchor of the contents
MARGIN, SIZE, DIGIT = (
    42.5,
    9,
    0.556,
)  # right margin and font size of the page numbers in points; width of a digit relative to the font size
# A formula wider than the paper would shrink all pages, so wide formulas get a smaller font. All formulas are measured
# before the first one is changed, because each change makes the browser lay out the page again.
FIT = """
addEventListener("load", () => MathJax.startup.promise.then(() => {
  const letters = parseFloat(getComputedStyle(document.querySelector(".bd-article")).fontSize);
  const formulas = [...document.querySelectorAll("mjx-container")];
  const shares = formulas.map(formula => {
    const row = formula.closest("div.math"), number = row?.querySelector(".eqno") ? 50 : 0;
    const width = formula.firstElementChild.getBoundingClientRect().width * PRINTED / letters;
    return (WIDTH - number) / Math.max(width, 1);
  });
  formulas.forEach((formula, i) => {
    if (shares[i] < 1) formula.style.fontSize = `${shares[i] * parseFloat(formula.style.fontSize || "100")}%`;
  });
}));
""".replace("PRINTED", "13.33").replace("WIDTH", "600")  # pixels: font size and column width on paper, from custom.css


def chromium() -> str | None:
    """Return the path of Chromium: the program in NANOEULER_CHROMIUM, or the first in NAMES; None if none exists."""
    names = filter(None, (os.environ.get("NANOEULER_CHROMIUM"), *NAMES))
    return next((found for name in names if (found := shutil.which(name))), None)


def pages(toc: Path = ROOT / "_toc.yml") -> list[str]:
    """Return the names of all pages in the order of the book."""
    book = yaml.safe_load(toc.read_text("utf-8"))
    parts = book.get("parts", [book])
    return [book["root"], *(chapter["file"] for part in parts for chapter in part["chapters"])]


def parts(toc: Path = ROOT / "_toc.yml") -> dict[str, str]:
    """Return the caption of each part, by the name of its first page."""
    book = yaml.safe_load(toc.read_text("utf-8"))
    return {part["chapters"][0]["file"]: part["caption"] for part in book.get("parts", [])}


def anchor(page: str, name: str = "") -> str:
    """Return the name in the joined page of a page's anchor."""
    return "--".join(filter(None, (page.replace("/", "-"), name)))


def article(site: Path, page: str, all_pages: list[str]):
    """Return the article of a page, with anchors and links for the joined page, and with all folds open."""
    soup = BeautifulSoup((site / f"{page}.html").read_text("utf-8"), "html.parser")
    found = soup.select_one("article.bd-article")
    for tag in found.select("[id]"):
        tag["id"] = anchor(page, tag["id"])
    for link in found.select("a[href]"):
        url = urlsplit(link["href"])
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), url.path)) if url.path else f"{page}.html"
        target = path.removesuffix(".html")
        if not url.scheme and target in all_pages:
            link["href"] = f"#{anchor(target, url.fragment)}"
        elif not url.scheme:
            del link["href"]  # a link to a file, or to a page that is not printed
    for fold in found.select("details"):
        fold["open"] = ""
    found["id"] = anchor(page)
    return found


def mathjax(soup: BeautifulSoup) -> list:
    """Return a page's scripts for formulas: the settings of MathJax, and MathJax itself."""
    return [s for s in soup.select("script") if "mathjax" in s.get("src", "") or "window.MathJax" in s.text]


def entry(heading, name: str) -> str:
    """Return a line of the table of contents, which links a heading's words to the anchor `name`."""
    words = BeautifulSoup(heading.decode_contents(), "html.parser")
    for tag in words.select("a, [id]"):
        tag.extract() if "headerlink" in tag.get("class", "") else tag.attrs.clear()
    return f'<a href="#{name}">{words}</a>'


def contents(articles: list, captions: dict[str, str]) -> str:
    """Return the table of contents. captions: the caption of each part, by the anchor of the part's first page."""
    lines = []
    for found in articles:
        if caption := captions.get(found["id"]):
            lines.append(f"<h2>{caption}</h2>")
        sections = found.select("section > section > h2")
        named = [entry(h, h.parent["id"]) for h in sections if h.parent.get("id")]
        lines.append(f'<p class="page">{entry(found.h1, found["id"])}</p>')
        lines.append("".join(f'<p class="part">{line}</p>' for line in named))
    # The heading links to itself, because Chromium names only the places that a link leads to.
    head = f'<h1><a href="#{CONTENTS}">Contents</a></h1>'
    return f'<article class="bd-article" id="{CONTENTS}">{head}{"".join(lines)}</article>'


def whole(site: Path, all_pages: list[str], captions: dict[str, str] | None = None) -> str:
    """Join all articles in the HTML of the first page, with the contents after the first. captions: see `parts`."""
    soup = BeautifulSoup((site / f"{all_pages[0]}.html").read_text("utf-8"), "html.parser")
    frame = soup.select_one("article.bd-article")
    articles = [article(site, page, all_pages) for page in all_pages]
    for found in articles:
        frame.insert_before(found)
    named = {anchor(page): caption for page, caption in (captions or {}).items()}
    articles[0].insert_after(BeautifulSoup(contents(articles[1:], named), "html.parser"))
    frame.decompose()
    soup.title.string = "NanoEuler"
    for script in soup.select('script[src*="book.js"]'):
        script.decompose()  # it fits formulas to the screen, with a new layout of a thousand pages for each formula
    fit = soup.new_tag("script")
    fit.string = FIT
    soup.head.append(fit)
    for page in all_pages:  # if the first page has no formula, it has no MathJax
        if not mathjax(soup):
            soup.head.extend(mathjax(BeautifulSoup((site / f"{page}.html").read_text("utf-8"), "html.parser")))
    return str(soup)


def browse(
    site: Path, all_pages: list[str], *options: str, captions: dict[str, str] | None = None
) -> subprocess.CompletedProcess:
    """Run Chromium with `options` on the joined page, after MathJax has typeset the formulas."""
    page = site / posixpath.dirname(all_pages[0]) / "_whole.html"  # in this folder, relative addresses stay valid
    page.write_text(whole(site, all_pages, captions), "utf-8")
    command = [chromium(), "--headless", "--disable-gpu", "--virtual-time-budget=1000000", *options]
    command += ["--no-sandbox"] * (os.geteuid() == 0) + [page.resolve().as_uri()]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    finally:
        page.unlink()


def headings(site: Path, all_pages: list[str]) -> dict[str, str]:
    """Return the headings of the pages; a heading's key is its text without spaces."""
    found = {}
    for page in all_pages:
        soup = BeautifulSoup((site / f"{page}.html").read_text("utf-8"), "html.parser")
        for heading in soup.select("article.bd-article :is(h1, h2, h3, h4)"):
            words = " ".join(heading.get_text().removesuffix("#").split())
            found["".join(words.split())] = words
    return found


def finish(target: Path, titles: dict[str, str]) -> int:
    """Add page numbers to the contents, fix spaces in the outline, compress the file; return the number of pages."""
    import pikepdf  # from the extra `pdf`; other users of this module do not need it

    NAME = pikepdf.Name
    with pikepdf.open(target, allow_overwriting_input=True) as book:
        numbers = {page.objgen: number for number, page in enumerate(book.pages, 1)}
        first = page_of(book, CONTENTS, numbers)
        font = book.make_indirect(pikepdf.Dictionary(Type=NAME.Font, Subtype=NAME.Type1, BaseFont=NAME.Helvetica))
        lines = [line for line in linked(book, book.pages[first - 1], numbers).values() if line[0] > first]
        for page in book.pages[first - 1 : min(lines)[0] - 1]:
            lines = [line for line in linked(book, page, numbers).values() if line[0] > first]
            right = float(page.mediabox[2]) - MARGIN
            text = "".join(
                f"1 0 0 1 {right - DIGIT * SIZE * len(str(number)):.2f} {low + 0.25 * SIZE:.2f} Tm ({number}) Tj "
                for number, low in lines
            )
            page.contents_add(b"q", prepend=True)
            page.contents_add(f"Q /Artifact BMC BT /Contents {SIZE} Tf {text}ET EMC".encode())
            page.add_resource(font, NAME.Font, NAME.Contents)
        space(book.Root.get("/Outlines"), titles)
        book.docinfo["/Title"] = "NanoEuler"
        book.save(target, object_stream_mode=pikepdf.ObjectStreamMode.generate, recompress_flate=True)
        return len(numbers)


def space(entry, titles: dict[str, str]) -> None:
    """Replace the titles of all entries below an entry of the outline by the headings of the pages."""
    below = entry.get("/First") if entry is not None else None
    while below is not None:
        title = str(below.Title)
        below.Title = titles.get("".join(title.split()), title)
        space(below, titles)
        below = below.get("/Next")


def linked(book, page, numbers: dict) -> dict[str, tuple[int, float]]:
    """Return, for each destination that a page links to, the page number and the height of the link's last line."""
    found = {}
    for link in page.get("/Annots", []):
        if number := page_of(book, link.get("/Dest"), numbers):
            low = float(link.Rect[1])
            found[str(link.Dest)] = (number, min(low, found.get(str(link.Dest), (0, low))[1]))
    return found


def page_of(book, name, numbers: dict) -> int:
    """Return the page number of a named destination, 0 if there is no such destination."""
    place = book.Root.get("/Dests", {}).get(f"/{str(name).removeprefix('/')}") if name is not None else None
    return numbers.get(place[0].objgen, 0) if place is not None else 0


def make(site: Path, target: Path, toc: Path = ROOT / "_toc.yml") -> None:
    """Print the built book in `site` to the PDF file `target`."""
    if chromium() is None:
        sys.exit(
            f"make pdf needs Chromium or Chrome, and none of {', '.join(NAMES)} was found: "
            "install one, or set NANOEULER_CHROMIUM to its path"
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
        captions=parts(toc),
    )
    if printed.returncode or not target.exists():
        sys.exit(f"{chromium()} wrote no PDF:\n{printed.stderr[-2000:]}")
    sheets = finish(target, headings(site, all_pages))
    print(f"{target}: {sheets} pages, {target.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
