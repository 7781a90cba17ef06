"""A reader's word leads to the chapter that treats it, in the whole book as it was last built."""

import pytest

pytest.importorskip("jupyter_book", reason="jupyter-book is not installed: pip install -e .[book]")

import pages

from tools.book import pdf

SEARCH = pages.ROOT / "_build" / "html" / "search.html"
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
def found():
    if missing := pages.missing() or ("" if SEARCH.exists() else "the book is not built: make book"):
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=pdf.chromium(), args=["--no-sandbox"])
        tab = browser.new_page()
        tab.goto(SEARCH.as_uri())
        yield lambda query: tab.evaluate(FIND, query)
        browser.close()


@pytest.mark.parametrize("word", WORDS)
def test_a_readers_word_leads_to_its_chapter(found, word):
    first = [page.removeprefix("notebooks/") for page in found(word)[:3]]
    wanted = WORDS[word].split()
    assert [page[: len(name)] for page, name in zip(first, wanted, strict=False)] == wanted, first
