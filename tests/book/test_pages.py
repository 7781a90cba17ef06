"""Test the built pages: their content, and how a browser shows them on a desktop, on a phone and on paper."""

import json
import re
from collections import Counter
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("jupyter_book", reason="jupyter-book is not installed: pip install -e .[book]")

import pages
from bs4 import BeautifulSoup

from tools.book import pdf
from tools.book.references import author_year
from tools.notebooks import numbering

BASE = "https://book.example/nanoeuler/"
CHAPTERS = [f"notebooks/{name}" for name in pages.CHAPTERS]
TEMPLATES = [*pages.PAGES, *CHAPTERS, "search", "search?q=attention", "genindex", "404"]
CHAPTER = CHAPTERS[0]

in_a_browser = pytest.mark.skipif(bool(pages.missing()), reason=pages.missing() or "all is there")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return pages.build(tmp_path_factory.mktemp("book"), BASE)


def text(site, page: str) -> str:
    return (site / f"{page}.html").read_text("utf-8")


# ---- The content of the pages


def test_references_begin_as_they_are_cited_and_lead_back(site):
    found = text(site, "book/references")
    assert "doc-biblioentry" not in found
    entries = dict(re.findall(r'<li id="(ref-[\w-]+)">\s*<p><strong>(.+?)\. </strong>', found))
    assert entries["ref-dao2022"] == "Dao et al., 2022" and len(entries) >= 8
    for name in CHAPTERS:
        chapter = text(site, name)
        link = r'<a class="reference internal" href="\.\./book/references\.html#(ref-[\w-]+)"[^>]*>(.*?)</a>'
        cited = re.findall(link, chapter)
        assert cited
        for key, words in cited:
            label = entries[key].replace("&amp;", "&")
            plain = re.sub(r"<[^>]+>|[\[\]()]", "", words).strip()
            assert plain in (label, label.rpartition(", ")[0]) or plain in label.replace(",", ""), (plain, label)
        for place in re.findall(rf'href="\.\./{name}\.html#(\w+)"', found):
            assert f'id="{place}"' in chapter


def test_every_work_has_its_own_label_and_a_link():
    from pybtex.database import parse_file

    entries = parse_file(str(pages.ROOT / "book" / "references.bib")).entries
    labels = Counter(author_year(entry) for entry in entries.values())
    twice = [label for label, n in labels.items() if n > 1]
    assert not twice, f"two works have the same label, add a and b to their years: {twice}"


def test_search_does_not_know_the_map_of_the_book(site):
    index = json.loads((site / "searchindex.js").read_text("utf-8").removeprefix("Search.setIndex(")[:-1])
    assert "You are here" in text(site, CHAPTER)
    texts = {page: str(sections).lower() for page, (_, sections) in index["pages"].items()}
    assert "optimiser" not in texts[CHAPTER] and "speculative" not in texts[CHAPTER]  # only in the map's titles
    assert "softmax" in texts[CHAPTER]
    ids = set(re.findall(r'id="([^"]+)"', text(site, CHAPTER)))
    assert {anchor for anchor, *_ in index["pages"][CHAPTER][1]} <= ids


def test_a_shared_link_has_a_description_and_a_picture(site):
    for page in (CHAPTER, "book/intro"):
        found = dict(re.findall(r'<meta (?:name|property)="([\w:]+)" content="(.*?)" />', text(site, page)))
        assert 40 < len(found["description"]) <= 202 and found["og:description"] == found["description"]
        assert found["og:url"] == f"{BASE}{page}.html" and found["og:title"]
        assert (site / found["og:image"].removeprefix(BASE)).exists()


def test_a_page_that_does_not_exist_leads_back_from_any_address(site):
    found = text(site, "404")
    assert found.index(f'<base href="{BASE}"') < found.index("stylesheet")
    assert 'href="book/intro.html"' in found


def test_the_book_carries_no_weight_that_nothing_asks_for(site):
    static = site / "_static"
    assert not [*static.rglob("*.map"), *static.rglob("fontawesome.js"), *static.glob("mathjax/*svg*")]
    clicked = [*static.glob("live/english*.js")]  # loaded only after a click
    assert sum(path.stat().st_size for path in {*static.rglob("*")} - {*clicked}) < 10.5e6
    assert clicked and sum(path.stat().st_size for path in clicked) < 4.5e6
    assert "mathjax/tex" not in text(site, "search") and "mathjax/tex" in text(site, CHAPTER)
    every = "".join(text(site, page) for page in TEMPLATES if "?" not in page)
    icons = set(re.findall(r'class="fa[sb]? ?(?:fa-\w+ )?(fa-[a-z-]+)', every))
    drawn = set(re.findall(r"\.(fa-[a-z-]+)::before", (static / "custom.css").read_text()))
    assert icons and icons <= drawn | {"fa-lg"}, f"the web font has no glyph for {icons - drawn}"


def test_a_changed_chapter_gives_the_same_book_as_all_of_it_built_anew(site):
    whole = {file: file.read_bytes() for file in site.rglob("*") if file.is_file()}
    pages.rebuild(site.parents[1])
    again = {file: file.read_bytes() for file in site.rglob("*") if file.is_file()}
    assert again.keys() == whole.keys()
    assert not [file for file in whole if again[file] != whole[file]]


def test_the_book_and_jupyterlab_number_alike(site):
    """Compare figures, equations, exercises and theorems, also in a chapter that follows another chapter."""
    number = r"\(?(?:[A-Z]\w+ )?(\w+\.\d+)"
    boxes = rf'id="((?:fig|ex|thm)-[\w-]+)"(?:(?!\bid="(?:fig|ex|thm)-).)*?caption-number">{number}'
    equations = rf'id="equation-(eq-[\w-]+)">\s*<span class="eqno">{number}'
    for name in pages.CHAPTERS:
        chapter, page = (pages.ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8"), text(site, f"notebooks/{name}")
        found = numbering.in_jupyterlab(json.loads(chapter))
        assert {label: n for pattern in (boxes, equations) for label, n in re.findall(pattern, page, re.S)} == found
        assert {re.sub("-.*", "", label) for label in found} >= {"fig", "eq", "ex"}
        assert not re.search(r"enumerator|:enumerated:|:nonumber:", page), "this is only for JupyterLab"
        assert page.count("<figcaption") == page.count('caption-number">Figure') > 0
    assert "Figure 6.1</span></a>" in text(site, CHAPTER)
    assert re.search(r'href="#equation-eq-attention-score">\(6\.\d\)</a>', text(site, CHAPTER))


# ---- What a browser shows


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=pdf.chromium(), args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def visit(site, browser):
    """Open a page at the book's address; a request to another server, or an error on the page, fails the test."""
    opened, outside, errors = [], [], []

    def answer(route):
        url = route.request.url
        path = site / unquote(urlsplit(url).path.removeprefix(urlsplit(BASE).path))
        if url.startswith(BASE) and path.is_file():
            route.fulfill(path=path)
        elif path.name == "basic.css":  # Chromium's scanner also looks for an import of theme.css next to the page
            route.fulfill(body="", content_type="text/css")
        else:
            (errors if url.startswith(BASE) else outside).append(f"not there: {url}")
            route.fulfill(status=404)

    def opened_page(page: str, width: int = 1400, theme: str = "light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        context.set_default_timeout(120_000)
        opened.append(context)
        context.route("**/*", answer)
        tab = context.new_page()
        tab.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        name, _, query = page.partition("?")
        tab.goto(f"{BASE}{name}.html" + (f"?{query}" if query else ""))
        if "mathjax/tex" in tab.content():
            tab.evaluate("() => MathJax.startup.promise")
            tab.wait_for_timeout(300)
        return tab

    yield opened_page
    for context in opened:
        context.close()
    assert not outside, f"requested from another server: {outside}"
    assert not errors, errors


@in_a_browser
@pytest.mark.parametrize("page", TEMPLATES)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_no_fault_of_wcag_21(visit, page, theme, width):
    tab = visit(page, width, theme)
    assert tab.evaluate("document.documentElement.dataset.theme") == theme
    if page.startswith("notebooks/"):
        tab.evaluate("document.querySelectorAll('details').forEach(fold => (fold.open = true))")
    tab.evaluate(pages.axe())
    tab.wait_for_function("!document.getAnimations().length")  # an element that fades has neither colour
    result = tab.evaluate("axe.run(document)")
    assert len(result["passes"]) > 10
    faults = [
        f"{v['id']} ({v['impact']}) x {len(v['nodes'])}: {v['nodes'][0]['html'][:200]}" for v in result["violations"]
    ]
    assert not faults, "\n".join(faults)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"


@in_a_browser
@pytest.mark.parametrize("page", ["book/intro", CHAPTER, "search"])
def test_the_keyboard_sees_where_it_is_and_stops_at_no_formula(visit, page):
    tab = visit(page)
    stops = []
    for _ in range(60):
        tab.keyboard.press("Tab")
        stops.append(
            tab.evaluate("""() => {
                const e = document.activeElement, s = getComputedStyle(e);
                const ring = parseFloat(s.outlineWidth) > 0 && s.outlineStyle !== 'none';
                return [e.tagName, e.outerHTML.slice(0, 120), ring];
            }""")
        )
    assert len({html for _, html, _ in stops}) > 10
    assert not [html for tag, html, ring in stops if tag != "BODY" and not ring]
    assert not tab.locator("mjx-container[tabindex]:not([data-wide])").count()


@in_a_browser
def test_a_phone_shows_formulas_beside_their_numbers_and_figures_that_can_be_read(visit):
    tab = visit(CHAPTER, 390)
    rows = tab.evaluate("""() => [...document.querySelectorAll('div.math:has(> .eqno)')].map(row => {
        const [n, f] = ['.eqno', 'mjx-container'].map(s => row.querySelector(s).getBoundingClientRect());
        return !(n.left < f.right - 1 && f.left < n.right - 1 && n.top < f.bottom - 1 && f.top < n.bottom - 1);
    })""")
    assert len(rows) > 3 and all(rows), "a number overlaps its formula"
    wide = tab.locator("mjx-container[data-wide]")
    assert wide.count() and wide.first.get_attribute("tabindex") == "0"
    assert "gradient" in wide.first.evaluate("e => getComputedStyle(e).maskImage")
    figure = tab.locator(".cell_output a.image-reference img").first
    assert figure.evaluate("e => e.getBoundingClientRect().width / e.naturalWidth") >= 0.45  # 20 pixels high: 9
    target = figure.evaluate("e => e.parentElement.getAttribute('href')")
    assert target.endswith(".png")
    assert not tab.evaluate("""() => [...document.querySelectorAll('.bd-article span.math')].filter(f =>
        /^[.,;:]/.test(f.nextSibling?.data ?? '')
        && getComputedStyle(f.parentElement).whiteSpace !== 'nowrap').length"""), "a full stop leaves its formula"
    assert tab.locator("span[style*=nowrap] > span.math").count() > 5


@in_a_browser
@pytest.mark.parametrize("page", TEMPLATES)
def test_a_mistake_can_be_reported_from_every_page_on_a_phone(visit, page):
    tab = visit(page, 390)
    name = page.partition("?")[0]
    wanted = f"{pages.REPOSITORY}/issues/new?title=Mistake%20in%20{name}"
    link = tab.get_by_role("link", name="Report a mistake on this page").last
    assert link.get_attribute("href") == wanted and link.is_visible()
    assert {link.get_attribute("href") for link in tab.locator("a[href*='/issues/new']").all()} == {wanted}


@in_a_browser
@pytest.mark.parametrize("page", ["book/intro", CHAPTER])
def test_a_finger_meets_what_it_aims_at(visit, page):
    """Require 24 pixels of height and width, as WCAG 2.2 does; links within a line of text may be lower."""
    tab = visit(page, 390)
    if page == "book/intro":
        tab.wait_for_selector(".live")
    small = tab.evaluate("""() => [...document.querySelectorAll(
        'button, summary, input, select, textarea, .book-parts a, .chapter-map a, .paths a'
    )].filter(e => {
        const box = e.getBoundingClientRect(), shown = box.width && getComputedStyle(e).visibility === 'visible';
        return shown && Math.min(box.width, box.height) < 24;
    }).map(e => e.outerHTML.slice(0, 100))""")
    assert not small


@in_a_browser
def test_folds_open_by_their_names_and_only_what_a_reader_types_has_a_copy_button(visit):
    tab = visit(CHAPTER)
    tab.get_by_role("button", name=re.compile("^Click to show: Hint")).first.click()
    assert tab.get_by_role("button", name=re.compile("^Click to hide: Hint")).count() == 1
    assert tab.locator(".cell_input .copybtn").count() > 10
    assert not tab.locator(".cell_output .copybtn").count()


@in_a_browser
def test_paper_is_white_and_shows_all_but_solutions_and_plumbing(visit):
    tab = visit(CHAPTER, theme="dark")
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert not tab.locator("article details:not([open]), article .toggle-hidden").count()
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background in ("rgb(255, 255, 255)", "rgba(0, 0, 0, 0)")
    for place in (".solution", ".tag_solution", ".tag_check", ".tag_setup", ".tag_hide-input:has(img) .above-input"):
        assert tab.locator(place).count() and not tab.locator(f"{place} >> visible=true").count(), place
    assert tab.locator(".tag_hide-output .cell_output >> visible=true").count(), "the answers to predictions"
    unseen = tab.evaluate("""() => [...document.querySelectorAll('details.hide > summary ~ *')].filter(
        e => getComputedStyle(e).animationName !== 'none').length""")
    assert not unseen, "an animation is printed in its first state"
    cut = tab.evaluate("""() => [...document.querySelectorAll('article pre')].filter(
        e => e.getClientRects().length && e.scrollWidth > e.clientWidth + 1).length""")
    assert not cut, f"{cut} cells are cut off at the edge"


@in_a_browser
def test_search_finds_a_misspelt_word_and_shows_it_in_its_context(visit):
    tab = visit("search?q=attnetion")
    tab.wait_for_selector("#search-results li a")
    assert "attnetion" in tab.locator(".search-summary").text_content()
    assert tab.locator("#search-results .context mark").count()
    links = tab.eval_on_selector_all("#search-results li > a", "all => all.map(a => a.getAttribute('href'))")
    assert "06_attention" in next(link for link in links if "notebooks/" in link), links


# ---- The whole book as one PDF


def test_the_whole_book_keeps_every_anchor_and_link(site):
    every = pdf.pages(site.parent.parent / "_toc.yml")
    assert every == [*pages.PAGES, *(f"notebooks/{name}" for name in pages.CHAPTERS)]
    found = pdf.whole(site, every)
    ids = re.findall(r'\bid="([^"]+)"', found)
    assert len(ids) == len(set(ids))
    inside = [link for link in re.findall(r'href="#([^"]+)"', found) if "--" in link]
    inside = [link for link in inside if not link.endswith((".ipynb", ".md"))]  # links to pages that are left out here
    assert len(inside) > 100 and set(inside) <= set(ids)
    assert found.count("<article") == len(every) + 1 and 'href="#notebooks-06_attention"' in found
    assert not re.search(r"<details(?![^>]*\bopen)", found)


@pytest.mark.skipif(not pdf.chromium(), reason="no Chromium found (NANOEULER_CHROMIUM names its program)")
def test_every_formula_of_the_whole_book_is_typeset(site):
    every = pdf.pages(site.parent.parent / "_toc.yml")
    shown = pdf.browse(site, every, "--dump-dom").stdout
    formulas = len(BeautifulSoup(pdf.whole(site, every), "html.parser").select("article .math"))
    assert formulas > 300 and shown.count("<mjx-container") == formulas


def test_without_chromium_a_pdf_says_what_is_missing(site, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NANOEULER_CHROMIUM", raising=False)
    with pytest.raises(SystemExit, match=r"needs Chromium or Chrome.*NANOEULER_CHROMIUM"):
        pdf.make(site, tmp_path / "book.pdf")
    assert not list(site.rglob("_whole.html"))
