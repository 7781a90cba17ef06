"""The whole book as one PDF, printed by Chromium from the built pages: `make pdf`.

    python -m tools.book.pdf _build/html _build/nanoeuler.pdf

The articles of all pages stand in one page, in the order of _toc.yml, their anchors told apart by the page's name, so
that a link from chapter to chapter is one within the PDF. Chromium makes the outline from the headings, and numbers the
pages (custom.css); it cannot say in the contents on which page a chapter begins, and joins the words of a heading where
its line ends: `finish` mends both.
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
CONTENTS = "contents"  # the anchor
MARGIN, SIZE, DIGIT = (
    42.5,
    9,
    0.556,
)  # points right of the text, of the numbers' letters; a digit's width in letters
# A formula wider than the paper would shrink all pages. All are measured before one changes: each change lays out anew.
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
""".replace("PRINTED", "13.33").replace("WIDTH", "600")  # pixels: the letters and the column of custom.css on paper


def chromium() -> str | None:
    """The browser's program: NANOEULER_CHROMIUM names it, else the first of the usual names."""
    names = filter(None, (os.environ.get("NANOEULER_CHROMIUM"), *NAMES))
    return next((found for name in names if (found := shutil.which(name))), None)


def pages(toc: Path = ROOT / "_toc.yml") -> list[str]:
    """The pages in the order of the book."""
    book = yaml.safe_load(toc.read_text("utf-8"))
    parts = book.get("parts", [book])
    return [book["root"], *(chapter["file"] for part in parts for chapter in part["chapters"])]


def parts(toc: Path = ROOT / "_toc.yml") -> dict[str, str]:
    """The caption of each part by its first page."""
    book = yaml.safe_load(toc.read_text("utf-8"))
    return {part["chapters"][0]["file"]: part["caption"] for part in book.get("parts", [])}


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
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), url.path)) if url.path else f"{page}.html"
        target = path.removesuffix(".html")
        if not url.scheme and target in all_pages:
            link["href"] = f"#{anchor(target, url.fragment)}"
        elif not url.scheme:
            del link["href"]  # a file of the site, or a page that is not printed
    for fold in found.select("details"):
        fold["open"] = ""
    found["id"] = anchor(page)
    return found


def mathjax(soup: BeautifulSoup) -> list:
    """A page's scripts for formulas: MathJax, and before it the settings that say where it looks for them."""
    return [s for s in soup.select("script") if "mathjax" in s.get("src", "") or "window.MathJax" in s.text]


def entry(heading, name: str) -> str:
    """A line of the contents: a heading's words, leading to the anchor of that name."""
    words = BeautifulSoup(heading.decode_contents(), "html.parser")
    for tag in words.select("a, [id]"):
        tag.extract() if "headerlink" in tag.get("class", "") else tag.attrs.clear()
    return f'<a href="#{name}">{words}</a>'


def contents(articles: list, captions: dict[str, str]) -> str:
    """The contents: parts, their pages, and the sections of each. captions: of a part, by its first page's anchor."""
    lines = []
    for found in articles:
        if caption := captions.get(found["id"]):
            lines.append(f"<h2>{caption}</h2>")
        sections = found.select("section > section > h2")
        named = [entry(h, h.parent["id"]) for h in sections if h.parent.get("id")]
        lines.append(f'<p class="page">{entry(found.h1, found["id"])}</p>')
        lines.append("".join(f'<p class="part">{line}</p>' for line in named))
    # It links to itself: Chromium names the places alone that something leads to.
    head = f'<h1><a href="#{CONTENTS}">Contents</a></h1>'
    return f'<article class="bd-article" id="{CONTENTS}">{head}{"".join(lines)}</article>'


def whole(site: Path, all_pages: list[str], captions: dict[str, str] | None = None) -> str:
    """All articles in the frame of the first page, the contents behind the first. captions: of parts, as `parts`."""
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
        script.decompose()  # it fits each formula to a screen: a thousand pages would be laid out for each anew
    fit = soup.new_tag("script")
    fit.string = FIT
    soup.head.append(fit)
    for page in all_pages:  # the first page may have no formula, and then no MathJax
        if not mathjax(soup):
            soup.head.extend(mathjax(BeautifulSoup((site / f"{page}.html").read_text("utf-8"), "html.parser")))
    return str(soup)


def browse(
    site: Path, all_pages: list[str], *options: str, captions: dict[str, str] | None = None
) -> subprocess.CompletedProcess:
    """Run Chromium with `options` on the whole book's page, its formulas typeset."""
    page = site / posixpath.dirname(all_pages[0]) / "_whole.html"  # beside the others: their addresses hold
    page.write_text(whole(site, all_pages, captions), "utf-8")
    command = [chromium(), "--headless", "--disable-gpu", "--virtual-time-budget=1000000", *options]
    command += ["--no-sandbox"] * (os.geteuid() == 0) + [page.resolve().as_uri()]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    finally:
        page.unlink()


def headings(site: Path, all_pages: list[str]) -> dict[str, str]:
    """The headings of the pages by their letters without spaces."""
    found = {}
    for page in all_pages:
        soup = BeautifulSoup((site / f"{page}.html").read_text("utf-8"), "html.parser")
        for heading in soup.select("article.bd-article :is(h1, h2, h3, h4)"):
            words = " ".join(heading.get_text().removesuffix("#").split())
            found["".join(words.split())] = words
    return found


def finish(target: Path, titles: dict[str, str]) -> int:
    """Number the lines of the contents, space the outline's titles, name the file, pack it; how many pages it has."""
    import pikepdf  # of the extra pdf; whoever looks for a browser alone needs none

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
    """Give the entries of an outline below one their titles as the pages have them."""
    below = entry.get("/First") if entry is not None else None
    while below is not None:
        title = str(below.Title)
        below.Title = titles.get("".join(title.split()), title)
        space(below, titles)
        below = below.get("/Next")


def linked(book, page, numbers: dict) -> dict[str, tuple[int, float]]:
    """Of each destination that a page links to: its page's number, and where the link's last line stands."""
    found = {}
    for link in page.get("/Annots", []):
        if number := page_of(book, link.get("/Dest"), numbers):
            low = float(link.Rect[1])
            found[str(link.Dest)] = (number, min(low, found.get(str(link.Dest), (0, low))[1]))
    return found


def page_of(book, name, numbers: dict) -> int:
    """The number of the page where a named destination stands; 0 if it is none."""
    place = book.Root.get("/Dests", {}).get(f"/{str(name).removeprefix('/')}") if name is not None else None
    return numbers.get(place[0].objgen, 0) if place is not None else 0


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
        captions=parts(toc),
    )
    if printed.returncode or not target.exists():
        sys.exit(f"{chromium()} made no PDF:\n{printed.stderr[-2000:]}")
    sheets = finish(target, headings(site, all_pages))
    print(f"{target}: {sheets} pages, {target.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
