"""The copies of the notebooks for VS Code, Colab, Kaggle and GitHub have no MyST, and everything else."""

import copy
import json
import re
from types import SimpleNamespace

import pytest

nbconvert = pytest.importorskip("nbconvert", reason="nbconvert is not installed: pip install -e .[book]")
import nbformat  # noqa: E402
from bs4 import BeautifulSoup  # noqa: E402
from sphinx_book_theme.header_buttons import launch  # noqa: E402

from tools.book import plain, project  # noqa: E402
from tools.book.lab import Links  # noqa: E402

SHOWN = ("06_attention", "10_whole_model", "A4_fast_tokenizer")  # figures, theorems, a picture, all kinds of boxes
MYST = re.compile(
    r"^(?:`{3,}|:{3,})\{|^:::|\{[\w:]+\}`[^`]+`|^:(?:label|class|enumerated|nonumber):|^\([\w-]+\)=$", re.M
)
BOOK = "https://anna.github.io/euler"


@pytest.fixture(scope="module")
def links():
    return Links()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All copies, where the book has no address."""
    folder = tmp_path_factory.mktemp("plain")
    assert plain.write(folder) == len(list((plain.ROOT / "notebooks").glob("*.ipynb")))
    return folder


def markdown(notebook):
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]


def test_no_copy_has_a_directive_or_a_role_or_a_formula_of_several_lines(folder):
    for path in folder.glob("*.ipynb"):
        for text in markdown(json.loads(path.read_text("utf-8"))):
            words = re.sub(r"^```.*?^```|``[^`]+``|`[^`{}]*\{[^`]*`", "", text, flags=re.M | re.S)
            assert not MYST.search(words), f"{path.name}: {MYST.search(words)[0]} in {text[:200]}"
            titles = re.findall(r"<summary>(.*?)</summary>", text)
            assert not [title for title in titles if re.search(r"[$`*\\]", title)], f"{path.name}: {titles}"
            assert "\\begin{align" not in text.replace("\\begin{aligned", ""), path.name
            assert all(line.count("$$") % 2 == 0 for line in text.split("\n")), path.name


@pytest.mark.parametrize("name", SHOWN)
def test_a_rendered_copy_has_its_boxes_numbers_and_links(folder, name):
    copied = nbformat.read(folder / f"{name}.ipynb", as_version=4)
    nbformat.validate(copied)
    page = BeautifulSoup(nbconvert.HTMLExporter(template_name="basic").from_notebook_node(copied)[0], "html.parser")
    anchors = {tag["id"] for tag in page.find_all(id=True)}
    for link in page.find_all("a", href=True):
        file, _, anchor = link["href"].partition("#")
        if not file:
            assert not anchor or anchor in anchors, link
        elif "://" not in file:
            there = (folder / file).read_text("utf-8")
            assert not anchor or f'id=\\"{anchor}\\"' in there or f'id="{anchor}"' in there, link
    number = plain.numbering.chapter(name)
    summaries = [tag.get_text() for tag in page.find_all("summary")]
    assert "Hint" in summaries and f"Solution of exercise {number}.1" in summaries
    text = page.get_text()
    assert f"Exercise {number}.1" in text and f"Figure {number}.1." in text
    assert all(picture.get("alt") for picture in page.find_all("img")) and ":::" not in text


def test_cells_keep_their_ids_code_and_outputs(folder, links):
    for name in SHOWN:
        original = json.loads((plain.ROOT / f"notebooks/{name}.ipynb").read_text("utf-8"))
        before = copy.deepcopy(original)
        copied = plain.plain(original, f"{name}.ipynb", links)
        assert original == before, "the copy shares a changed cell with the notebook"
        assert [cell["id"] for cell in copied["cells"]] == [cell["id"] for cell in original["cells"]]
        for old, new in zip(original["cells"], copied["cells"], strict=True):
            if old["cell_type"] == "code":
                assert (new["source"], new["outputs"]) == (old["source"], old["outputs"])
                assert old["metadata"].items() <= new["metadata"].items()


def test_links_to_other_pages_need_the_books_address(links):
    text = "See [the symbols](../book/notation.md#shapes) and {term}`logits`, {term}`AUC`."
    assert (
        plain.Plain(links, "06_attention.ipynb").markdown(text).startswith("See the symbols and [logits](glossary.md#")
    )
    with_book = plain.Plain(links, "06_attention.ipynb", BOOK).markdown(text)
    assert f"[the symbols]({BOOK}/book/notation.html#shapes)" in with_book
    assert f"[logits]({BOOK}/book/glossary.html#term-logits), [AUC]({BOOK}/book/glossary.html#term-AUC)" in with_book


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (":::{admonition} Predict\nWhat?", "06_attention.ipynb: a fence must be closed, got ':::{admonition} Predict'"),
        (":::{spoiler}\nNo.\n:::", "a directive must be one that tools/book/plain.py converts, got spoiler"),
    ],
)
def test_a_box_without_an_end_or_of_an_unknown_kind_is_named(links, text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        plain.Plain(links, "06_attention.ipynb").markdown(text)


@pytest.mark.parametrize(
    ("place", "shown"),
    [("github.com/anna/euler", "Binder Colab Kaggle"), ("gitlab.com/anna/euler", "Binder"), ("anna.org/euler", "")],
)
def test_launch_buttons_lead_to_the_repository(monkeypatch, place, shown):
    """Let the theme make the buttons; Colab and Kaggle open the copy, Binder the notebook of the branch."""
    monkeypatch.setenv("NANOEULER_REPOSITORY", f"https://{place}")
    config = SimpleNamespace(myst_substitutions={}, html_theme_options={}, html_baseurl="")
    project.configure(None, config)
    page, options = "notebooks/06_attention", config.html_theme_options
    here = SimpleNamespace(doc2path=lambda name: f"{name}.ipynb", metadata={page: {"kernelspec": {}}})
    app = SimpleNamespace(config={"html_theme_options": options}, env=here)
    buttons = [{"label": "source-buttons", "buttons": []}]
    provider = place.partition(".")[0]
    context = {"pagename": page, "header_buttons": buttons, "sourcename": f"{page}.ipynb"}
    context |= {f"{provider}_url": f"https://{provider}.com", f"{provider}_user": "anna", f"{provider}_repo": "euler"}
    launch.add_launch_buttons(app, page, "page.html", context, None)
    plain.launch_copies(app, page, "page.html", context, None)
    copied = f"{place}/blob/plain/06_attention.ipynb"
    host = "gl/anna%2Feuler" if "gitlab" in place else "gh/anna/euler"
    urls = {
        "Binder": f"https://mybinder.org/v2/{host}/main?urlpath=lab/tree/notebooks/06_attention.ipynb",
        "Colab": f"https://colab.research.google.com/{copied.replace('.com', '')}",
        "Kaggle": f"https://www.kaggle.com/kernels/welcome?src=https://{copied}",
    }
    made = {button["text"]: button["url"] for group in buttons for button in group["buttons"]}
    assert made == {name: urls[name] for name in shown.split()}
