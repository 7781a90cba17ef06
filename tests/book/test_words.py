"""Private words are refused where they are wrong and pass where they are right; search knows the field's words."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tools.book import lab, search_index, words

WORDS = words.load(words.LIST)
CASES = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))


def refused(sentence: str) -> list[str]:
    """What to write in place of each wrong word of a sentence."""
    return [word.use for word in WORDS for _ in word.find(sentence)]


@pytest.mark.parametrize("sentence", CASES["right"])
def test_a_right_sentence_passes(sentence):
    assert refused(sentence) == []


@pytest.mark.parametrize(("sentence", "use"), CASES["wrong"])
def test_a_wrong_sentence_fails_and_says_what_to_write(sentence, use):
    assert any(use in said for said in refused(sentence)), refused(sentence)


PLANTED = {
    "page.md": "# Title\n\nPeak rate, reached\nbehind the warm-up.\n",
    "comment.py": '"""A module."""\n\nprint(1)  # reached\n# behind the warm-up\n',
    "docstring.py": 'def f():\n    """Return.\n\n    rate: behind the warm-up\n    """\n',
    "error.py": 'def f(x):\n    if x:\n        raise ValueError(\n            f"{x} is behind the " f"warm-up")\n',
    "help.py": 'HELP = {\n    "x": "width",\n    "rate": "peak, reached "\n    "behind the warm-up",\n}\n',
    "kernel.cu": "int a;  // behind the door\nfloat b;\n\n// behind the warm-up\n",
    "Makefile": "all:\n\n\nlint:  ## what comes behind the warm-up\n",
    "text.ipynb": {"cell_type": "markdown", "source": ["A\n", "b\n", "c\n", "behind the warm-up\n"]},
    "code.ipynb": {"cell_type": "code", "source": ["x = 1\n", "\n", "\n", "y = 2  # behind the warm-up\n"]},
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_word_is_found_in_line_4_of_every_kind_of_file(tmp_path, name):
    text = PLANTED[name] if isinstance(PLANTED[name], str) else json.dumps({"cells": [PLANTED[name]]})
    (tmp_path / name).write_text(text, "utf-8")
    cell = ":cell 1" if name.endswith(".ipynb") else ""
    assert words.check(name, WORDS, tmp_path) == [f'{name}{cell}:4: "behind" -> after; following']


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("code.md", "```bash\n# behind the warm-up\n```\n\n`a told fact`, $\\text{law}$, [19 Laws](19_laws.ipynb)\n"),
        ("code.py", 'behind = law\ncall("behind", "law")\nprint(f"the first {behind} is before {law}")\n'),
        ("kernel.cu", "behind(law);\n"),
    ],
)
def test_code_is_not_read(tmp_path, name, text):
    (tmp_path / name).write_text(text, "utf-8")
    assert words.check(name, WORDS, tmp_path) == []


@pytest.mark.full
def test_lint_passes_and_fails_on_a_planted_word(tmp_path, capsys):
    assert re.search(r"^lint:.*(\n\t.*)*-m tools.book.words$", (words.ROOT / "Makefile").read_text("utf-8"), re.M)
    assert (words.main([]), capsys.readouterr().out) == (0, "")
    (page := tmp_path / "page.md").write_text(PLANTED["page.md"], "utf-8")
    assert words.main([str(page)]) == 1
    assert capsys.readouterr().out == f'{page}:4: "behind" -> after; following\n'


# ---- The words of book/search.yml

LISTED = yaml.safe_load((words.ROOT / "book" / "search.yml").read_text("utf-8"))
SEARCH = """
const { searcher } = require("./book/_static/search.js"), [index, queries] = JSON.parse(require("fs").readFileSync(0));
const { find } = searcher(index, word => word.replace(/s$/, ""), ["of", "the"]);
console.log(JSON.stringify(queries.map(find).map(({ hits, absent }) => [absent, hits.map(hit => hit.page)])));
"""
ALL = [path.relative_to(words.ROOT).with_suffix("").as_posix() for path in words.ROOT.glob("*book*/*.*")]


@pytest.mark.skipif(not shutil.which("node"), reason="there is no node, which runs search.js")
def test_search_leads_from_the_fields_words_and_says_what_the_book_does_not_treat():
    index = {part: search_index.leads(ALL, LISTED[part]) for part in LISTED} | {"introduced": {}}
    index["pages"] = {page: ["A title", [["", "A heading", "of a size, a width", ""]]] for page in ALL}
    given = json.dumps([index, list(CASES["search"])])
    found = json.loads(subprocess.check_output(["node", "-e", SEARCH], cwd=words.ROOT, input=given, text=True))
    for (query, (first, absent)), (said, hits) in zip(CASES["search"].items(), found, strict=True):
        assert (said or "") == absent and hits[0].startswith(first) and (not said or len(hits) < 3), (query, said, hits)


def test_no_chapter_has_a_heading_about_what_the_book_is_said_not_to_treat():
    text = "".join(path.read_text("utf-8") for path in words.ROOT.glob("notebooks/*.ipynb"))
    heads = re.findall(r'^ *"(#+ .*)"', text, re.M)
    for absent in (word.strip() for several in LISTED["absent"] for word in several.split(",")):
        assert not [head for head in heads if re.search(rf"\b{absent}s?\b", head, re.I)], absent


def test_no_term_of_the_glossary_is_said_to_be_absent():
    absent = {word.strip().lower() for several in LISTED["absent"] for word in several.split(",")}
    assert absent & {term.lower() for term in lab.glossary()} == set()
