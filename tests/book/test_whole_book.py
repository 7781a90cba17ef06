"""Test the whole book as it was last built: words lead to their chapters, and pages are as narrow as a phone."""

import re

import pytest

pytest.importorskip("jupyter_book", reason="jupyter-book is not installed: pip install -e .[book]")

import pages

from tools.book import pdf

HTML = pages.ROOT / "_build" / "html"
TOC = (pages.ROOT / "_toc.yml").read_text("utf-8")
PAGES = [*re.findall(r"^[ -]*(?:root|file): *(\S+)", TOC, re.M), "404", "genindex", "search"]
FIND = """query => {
    const stemmer = new Stemmer();
    globalThis.found ??= searcher(Search._index, word => stemmer.stemWord(word), stopwords);
    return found.find(query).hits.map(hit => hit.page);
}"""
# a word, and the beginnings of the pages that come first
WORDS = {
    "backprop": "03 05", "RoPE": "07", "cross-entropy": "02 03", "transformer": "10 00", "attnetion": "06",
    "embeding": "10", "KV cache": "14", "learning rate": "11", "overfitting": "12", "byte pair encoding": "01",
    "GELU": "09", "muon": "A2", "grouped queries": "15", "gradient check": "05", "flash attention": "27 28",
    "warp": "23", "GGUF": "34", "my own text": "12 32", "rmsnorm_forward": "book/api/model",
}  # fmt: skip


@pytest.fixture(scope="module")
def tab():
    if missing := pages.missing() or ("" if (HTML / "search.html").exists() else "the book is not built: make book"):
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=pdf.chromium(), args=["--no-sandbox"])
        tab = browser.new_page()
        tab.set_default_timeout(120_000)
        yield tab
        browser.close()


@pytest.mark.parametrize("word", WORDS)
def test_a_readers_word_leads_to_its_chapter(tab, word):
    if not tab.url.endswith("search.html"):
        tab.goto((HTML / "search.html").as_uri())
    first = [page.removeprefix("notebooks/") for page in tab.evaluate(FIND, word)[:3]]
    wanted = WORDS[word].split()
    assert [page[: len(name)] for page, name in zip(first, wanted, strict=False)] == wanted, first


OPEN = """() => {
    document.querySelectorAll("details").forEach(fold => (fold.open = true));
    document.querySelectorAll(".toggle-hidden").forEach(box => box.classList.remove("toggle-hidden"));
}"""


@pytest.mark.full(but=["20_chat", "api/nanoeuler_book"])
@pytest.mark.parametrize("page", PAGES)
def test_no_page_is_wider_than_a_phone(tab, page):
    """Measure each page with its folds open, at 390 and at 360 pixels."""
    tab.set_viewport_size({"width": 390, "height": 844})
    tab.goto((HTML / f"{page}.html").as_uri())
    tab.evaluate("() => window.MathJax?.startup?.promise")
    tab.evaluate(OPEN)
    for width in (390, 360):
        tab.set_viewport_size({"width": width, "height": 844})
        tab.wait_for_timeout(400)  # book.js fits the formulas 0.2 s after a change
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
