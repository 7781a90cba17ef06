"""Test `nanoeuler corpus`: the registry, dropped and held-out documents, complete folders, and the command's output."""

import hashlib
import json
import os
import re
import resource
import shutil
import sys
import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import error_of

from nanoeuler_lib import corpus, files
from nanoeuler_lib.command import arguments, cli
from nanoeuler_lib.corpus import dedup, held_out, make
from nanoeuler_lib.corpus.documents import Document, _book, examples, whole
from nanoeuler_lib.corpus.registry import File, corpora
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.text import data as text_data
from nanoeuler_lib.text import sft_data as text_examples
from nanoeuler_lib.text.data import SEPARATOR, read_text

DATA = Path(os.environ.get("NANOEULER_DATA", "nowhere"))
needs_data = pytest.mark.skipif(not (DATA / "sft").is_dir(), reason="NANOEULER_DATA is not there")
WORDS = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"]


@pytest.fixture
def register(monkeypatch):
    """Return a function that replaces the files of a corpus in the registry."""

    def give(name, *files):
        table = dict(corpora()) | {name: replace(corpora()[name], files=files)}
        monkeypatch.setattr(corpus, "corpora", lambda: table)

    return give


@pytest.fixture
def nanoeuler(capsys):
    def run(*words):
        code = cli.main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


# ---- The registry


def test_the_corpora():
    fetched, prepared = ["books", "web", "alpaca", "dolly", "shakespeare"], ["classics", "featured"]
    assert list(corpora()) == list(arguments.CORPORA) == fetched + prepared
    for name, found in corpora().items():
        names = [file.name for file in found.files]
        assert len(set(names)) == len(names) and found.licence and found.about and found.source.startswith("https://")
        for file in found.files:
            assert all(re.fullmatch(r"https://[\w.-]+/[\w./@-]+", url) for url in file.urls)
            assert bool(file.urls) == (name in fetched)
            assert len(set(file.urls)) == len(file.urls) and re.fullmatch(r"[\w.-]+", file.name)
            assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in file.sha256)
        pinned = {bool(file.sha256) for file in found.files}
        assert pinned == {name in ("alpaca", "dolly", "shakespeare", *prepared)}
    assert corpora()["books"].pause >= 2


def test_a_prepared_corpus_stays_as_it_is(tmp_path, monkeypatch, nanoeuler, register):
    """Hold out the second file, keep duplicates, refuse a different file, and fetch nothing."""
    texts = {"a.txt": ["One of two.", "One of two.", "Three."], "b.txt": ["Held out."]}
    files = []
    for name, documents in texts.items():
        content = "".join(document + SEPARATOR for document in documents)
        (tmp_path / name).write_text(content)
        files.append(File(name, (), sha256=(hashlib.sha256(content.encode()).hexdigest(),)))
    register("classics", *files)
    monkeypatch.chdir(tmp_path)
    code, _, err = nanoeuler("corpus", "classics", "--out", "o")
    assert code == 2 and "a.txt: cannot be fetched: it has no address" in err
    code, _, _ = nanoeuler("corpus", "classics", "--out", "o", "--from", ".")
    assert code == 0 and not Path(".o.partial").exists()
    for part, name in (("train.txt", "a.txt"), ("valid.txt", "b.txt")):
        assert Path("o", part).read_text() == SEPARATOR.join(texts[name])
    (tmp_path / "b.txt").write_text("Held in." + SEPARATOR)
    code, _, err = nanoeuler("corpus", "classics", "--out", "p", "--from", ".")
    assert code == 2 and "b.txt: SHA-256 must be" in err and not Path("p").exists()


# ---- The same document twice


def text_of(rng, words):
    return " ".join(rng.choice(WORDS, words)) + "."


def test_the_same_words_are_seen_in_another_dress():
    seen = dedup.Seen()
    assert seen.twin("a", "“Is it far?” — asked Käthe’s cat.") is None
    assert seen.twin("b", "is it   far\n'ASKED' KÄTHE's _cat_") == dedup.Twin("a")
    assert seen.twin("c", "is it far asked käthe's dog") is None
    assert seen.twin("d", "...") is None and seen.twin("e", "...") == dedup.Twin("d") and seen.twin("f", "?!") is None


def test_how_unicode_writes_a_text_does_not_count():
    for text in ("Người Việt nói tiếng Việt ở Königsberg", "한국어 문장이 여기 있다", "Ὀδυσσεύς"):
        seen = dedup.Seen()
        assert seen.twin("a", unicodedata.normalize("NFC", text)) is None
        assert seen.twin("b", unicodedata.normalize("NFD", text).upper().lower()) == dedup.Twin("a")
        assert seen.twin("c", "\u200b".join(text).replace(" ", "\u202f") + "\ufeff") == dedup.Twin("a")
        assert seen.twin("d", text[:-2]) is None
    assert dedup.words_of("co\u00adop zwei\u2009drei") == [b"coop", b"zwei", b"drei"]


@pytest.mark.parametrize("first", ["\u3042", "\u4e00", "\u0e01", "\u1000", "\U00020000"])
def test_near_copies_are_found_in_scripts_without_spaces(first):
    """Find a copy with one character in a hundred changed, but not a text with the same characters in a new order."""
    rng = np.random.default_rng(8)
    letters = [chr(ord(first) + number) for number in range(40)]
    a, other = ("".join(letters[i] for i in rng.integers(0, 40, 600)) for _ in range(2))
    copy = list(a)
    for place in rng.choice(600, 6, replace=False):
        copy[place] = "x"
    seen = dedup.Seen()
    assert seen.twin("a", a) is None and seen.twin("other", other) is None
    assert seen.twin("copy", "".join(copy)).name == "a"
    assert seen.twin("broken", "、\u3000\n".join(a[i : i + 30] for i in range(0, 600, 30))) == dedup.Twin("a")


def jaccard(a, b):
    """Return the similarity by its definition."""
    shingles = [{tuple(w[i : i + 5]) for i in range(max(1, len(w) - 4))} for w in (a.split(), b.split())]
    return len(shingles[0] & shingles[1]) / len(shingles[0] | shingles[1])


def test_nearly_the_same_is_found_and_measured():
    """Find a copy with 1% of its words changed, estimated within four standard errors; do not find one with 10%."""
    rng, found = np.random.default_rng(1), Counter()
    for number in range(100):
        a = text_of(rng, 600).removesuffix(".")
        for changed in (6, 60):
            words = a.split()
            for place in rng.choice(600, changed, replace=False):
                words[place] = "changed"
            b, seen = " ".join(words), dedup.Seen(number)
            assert seen.twin("a", a) is None
            twin, true = seen.twin("b", b), jaccard(a, b)
            assert (0.88 < true < 0.97) if changed == 6 else true < 0.55
            found[changed] += twin is not None
            assert twin is None or abs(twin.similarity - true) < 4 * (true * (1 - true) / dedup.BINS) ** 0.5
    assert found[6] >= 97 and found[60] == 0


def test_the_estimate_is_that_of_short_texts_too():
    """With fewer shingles than bins, fill the empty bins so that equal bins still estimate the similarity."""
    rng, errors = np.random.default_rng(2), []
    for number in range(300):
        a = text_of(rng, 40).removesuffix(".")
        b = " ".join([*a.split()[:30], *text_of(rng, 10).removesuffix(".").split()])
        seen = dedup.Seen(number)
        agree = np.mean(seen._sketch(dedup.words_of(a)) == seen._sketch(dedup.words_of(b)))
        errors.append(agree - jaccard(a, b))
    assert abs(np.mean(errors)) < 4 * np.std(errors) / 300**0.5 and np.std(errors) < 0.12


@settings(max_examples=200)
@given(st.text(), st.integers(0, 5))
def test_any_text_is_its_own_twin(text, seed):
    seen = dedup.Seen(seed)
    assert seen.twin("a", text) is None and seen.twin("b", text) == dedup.Twin("a")


def test_the_examples_of_sft_are_compared_word_for_word():
    """Keep two questions on one long passage, although they share nearly all their shingles."""
    passage = text_of(np.random.default_rng(4), 500)
    near, exact = dedup.Seen(), dedup.Seen(near=False)
    for seen, kept in ((near, False), (exact, True)):
        assert seen.twin("a", f"Who? {passage} Euler.") is None
        assert (seen.twin("b", f"Where? {passage} In Basel.") is None) == kept
        assert seen.twin("c", f"who {passage} euler") == dedup.Twin("a")


# ---- Held out


def test_a_share_of_names_is_held_out_and_none_moves():
    names = [f"n{i}" for i in range(20_000)]
    for seed in (0, 1):
        few = {name for name in names if held_out(name, seed, 0.01)}
        many = {name for name in names if held_out(name, seed, 0.05)}
        assert few < many and abs(len(few) - 200) < 60 and abs(len(many) - 1000) < 130
    assert {n for n in names if held_out(n, 0, 0.05)} != many
    books = [held_out(file.name, 0, arguments.VALID_FRACTION["books"]) for file in corpora()["books"].files]
    assert 2 <= sum(books) <= 9


# ---- Whole folders


@pytest.fixture
def own(monkeypatch, tmp_path):
    """Return a function that makes a corpus "books" from the test's documents, without files."""
    monkeypatch.chdir(tmp_path)

    def make_of(texts, name="books", **options):
        given = [text if isinstance(text, Document) else Document(f"d{i}", text) for i, text in enumerate(texts)]
        monkeypatch.setitem(corpus.READERS, name, lambda get, files, note: iter(given))
        return make(name, "out", quiet=True, **options)

    return make_of


def documents(path):
    return Path(path).read_text("utf-8").split(SEPARATOR)


def lines(path):
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


def test_what_is_kept_and_dropped_and_why(own):
    rng = np.random.default_rng(5)
    texts = [text_of(rng, 300) for _ in range(40)]
    bad = ["  \n", "a\0b", "x\n<|endoftext|>\ny", "<|endoftext|>", texts[3].upper(), texts[4] + " And more."]
    Path(".out.partial/left").mkdir(parents=True)  # left by a killed process
    report = own([*texts, *bad, Document("e", "x", fault="no answer")], valid_fraction=0.2)
    train, valid = documents("out/train.txt"), documents("out/valid.txt")
    assert sorted(train + valid) == sorted(texts) and 2 <= len(valid) <= 16
    assert [t for t in texts if t in set(train)] == train
    told = lines("out/documents.jsonl")
    assert [line["name"] for line in told] == [*(f"d{i}" for i in range(46)), "e"]
    for line, text in zip(told, texts):
        assert line["bytes"] == len(text.encode()) and text in documents(f"out/{line['part']}")
    reasons = [line["dropped"] for line in told[40:]]
    assert reasons[:5] == ["empty", "holds NUL", *2 * ["holds the line that divides documents"], "same words as d3"]
    assert re.fullmatch(r"nearly d4: similarity (0\.9\d|1\.00)", reasons[5]) and reasons[6] == "no answer"
    assert json.loads(Path("out/report.json").read_text("utf-8")) == report
    assert sum(report["dropped"].values()) == 7 and report["licence"] == corpora()["books"].licence
    for name, part in report["parts"].items():
        content = Path("out", name).read_bytes()
        assert part["bytes"] == len(content) and part["sha256"] == hashlib.sha256(content).hexdigest()
    assert read_text("out/train.txt").split(SEPARATOR) == train  # as training reads the file
    assert sorted(os.listdir("out")) == ["documents.jsonl", "report.json", "train.txt", "valid.txt"]


def test_the_same_arguments_give_the_same_bytes_up_to_a_budget(own):
    texts = [text_of(np.random.default_rng(i), 50) for i in range(30)]
    first = own(texts, valid_fraction=0.3, seed=2)
    shutil.move("out", "first")
    assert own(texts, valid_fraction=0.3, seed=2) == first
    assert all(Path("out", n).read_bytes() == Path("first", n).read_bytes() for n in os.listdir("first"))
    shutil.rmtree("out")
    assert own(texts, valid_fraction=0.3, seed=3)["parts"] != first["parts"]
    shutil.rmtree("out")  # a budget ends with the document that reaches it
    report = own(texts, size=sum(len(t) for t in texts[:10]) + 1)
    assert report["parts"]["train.txt"]["documents"] == 11 and report["notes"] == []
    shutil.rmtree("out")
    assert re.search(r"9,999,999 were asked for: the files hold no more", own(texts, size=9_999_999)["notes"][0])


def test_a_full_disk_leaves_no_corpus(own):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(NanoEulerError, match=r"^out: cannot be written \(File too large\)"):
            own([text_of(np.random.default_rng(i), 2000) for i in range(30)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir() == ["downloads"]


def test_a_file_that_is_one_document_is_named_by_it(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"One.\r\n\r\nTwo.")
    found = whole(lambda file: SimpleNamespace(path=tmp_path / file.name), [File("a.txt", ())], print)
    assert list(found) == [Document("a.txt", "One.\r\n\r\nTwo.")]


def test_a_folder_that_someone_removed_hides_no_error(tmp_path):
    with pytest.raises(NanoEulerError, match="the first error"), files.new_folder(tmp_path / "out") as folder:
        shutil.rmtree(folder)
        raise NanoEulerError("the first error")
    assert os.listdir(tmp_path) == []


# ---- Books from files


BOOK = """\ufeffTitle: {title}

Author: {author}

*** START OF THE PROJECT GUTENBERG EBOOK {title} ***

{text}

*** END OF THE PROJECT GUTENBERG EBOOK {title} ***
"""


@pytest.fixture
def shelf(monkeypatch, tmp_path, register):
    """Write twelve books to a folder `have`, and register them."""
    monkeypatch.chdir(tmp_path)
    Path("have").mkdir()
    files, texts = [], {}
    for n in range(12):
        name, title, text = f"pg{n}.txt", f"The Book of {WORDS[n]}", text_of(np.random.default_rng(n), 500)
        files.append(File(name, ("http://127.0.0.1:9/x",), (f"{n}-0.txt",), (), len(text), n, title, "A Euler"))
        texts[name] = text
        Path("have", name).write_text(BOOK.format(title=title, author="Leonhard Euler", text=text))
    register("books", *files)
    return texts


def test_books_from_files(shelf, capsys):
    """Leave out two books, make one nearly equal to another, and check the kept books and the command's output."""
    twin = Path("have/pg1.txt").read_text().replace(f"Book of {WORDS[1]}", f"Book of {WORDS[4]}")
    Path("have/pg4.txt").write_text(twin)
    words = "corpus books --out o --from have --valid-fraction 0.3 --skip 3 pg5.txt --seed 2"
    assert cli.main(words.split()) == 0
    out, report = capsys.readouterr().out, json.loads(Path("o/report.json").read_text())
    told = lines("o/documents.jsonl")
    assert (report["seed"], report["valid_fraction"], report["skipped"]) == (2, 0.3, ["pg3.txt", "pg5.txt"])
    assert len(report["files"]) == 10 and report["notes"] == []
    assert {line["name"] for line in told} == set(shelf) - set(report["skipped"])
    kept = documents("o/train.txt") + documents("o/valid.txt")
    assert sorted(kept) == sorted(text for name, text in shelf.items() if name not in ("pg3.txt", "pg4.txt", "pg5.txt"))
    assert told[0]["title"] == f"The Book of {WORDS[0]}"
    assert re.match(r"o/train\.txt: \d+ documents, [\d,]+ bytes\no/valid\.txt: \d+ documents, [\d,]+ bytes\n", out)
    assert "dropped: 1, same words as an earlier one\n" in out and "skipped: pg3.txt\nskipped: pg5.txt\n" in out
    assert f"licence: {corpora()['books'].licence}\n" in out
    assert out.endswith("nanoeuler train --data o/train.txt --valid o/valid.txt --run RUN\n")


HALF = "\n\n*** END OF THE PROJECT GUTENBERG EBOOK ***"
SPOILT = [
    (
        lambda text: text.replace("Title: The Book", "Title: A Story"),
        "its header must name 'The Book of .* by .*, got 'A Story of .* wrong number",
    ),
    (lambda text: text[: len(text) // 3] + HALF, "bytes of a book, got"),
    (lambda text: text.replace("\n\n*** END", "\nsee gutenberg.org/license\n\n*** END"), "got 'gutenberg.org/license'"),
    (lambda text: "", "must hold a book, got nothing between"),
]


def test_a_wrong_file_is_one_line_and_a_book_without_an_end_a_note(shelf):
    path = Path("have/pg2.txt")
    whole = path.read_text()
    for change, said in SPOILT:
        path.write_text(change(whole))
        assert re.match(rf"have/pg2\.txt.*{said}", error_of(make, "books", "out", have="have", quiet=True))
        assert not Path("out").exists()
    path.write_text(whole.split("\n\n*** END")[0])
    report = make("books", "out", have="have", valid_fraction=0.3, quiet=True)
    assert len(report["notes"]) == 1 and report["notes"][0].startswith("have/pg2.txt: has no end marker or licence")
    with pytest.raises(
        NanoEulerError, match=r"must have an end marker, got .* bytes of a book without one: the file was cut off"
    ):
        _book(path, True, corpus.corpora()["books"].files[2])


# ---- Web pages from parquet


@pytest.fixture
def pages(monkeypatch, tmp_path, register):
    """Write two parquet files of 60 pages in row groups of 7, and register them."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install pyarrow)")
    from pyarrow import parquet

    monkeypatch.chdir(tmp_path)
    Path("have").mkdir()
    rng = np.random.default_rng(7)
    texts = [text_of(rng, 200) + "\r\nÜber die Brücken." for _ in range(120)]
    for part in range(2):
        some = range(60 * part, 60 * part + 60)
        table = {"text": texts[60 * part : 60 * part + 60], "id": [f"<{i}>" for i in some]}
        table["url"] = [f"https://e/{i}" for i in some]
        parquet.write_table(pyarrow.table(table), f"have/{part}.parquet", row_group_size=7)
    register("web", *(File(f"{part}.parquet", ("http://127.0.0.1:9/x",)) for part in range(2)))
    return [text.replace("\r\n", "\n") for text in texts]


def test_web_pages_from_parquet(pages):
    report = make("web", "out", have="have", valid_fraction=0.1, quiet=True)
    told = lines("out/documents.jsonl")
    assert [line["name"] for line in told] == [f"<{i}>" for i in range(120)] and told[5]["url"] == "https://e/5"
    assert sorted(documents("out/train.txt") + documents("out/valid.txt")) == sorted(pages)
    assert [file["name"] for file in report["files"]] == ["0.parquet", "1.parquet"]
    Path("have/1.parquet").unlink()  # a smaller budget does not need this file
    shutil.rmtree("out")
    size = sum(len(text.encode()) for text in pages[:50])
    report = make("web", "out", have="have", size=size, seed=3, quiet=True)
    assert [report[name] for name in ("seed", "valid_fraction", "bytes_asked_for")] == [3, 0.0, size]
    assert documents("out/train.txt") == pages[:50] and len(report["files"]) == 1


def test_spoilt_parquet_is_one_line(pages):
    import pyarrow
    from pyarrow import parquet

    file, said = Path("have/0.parquet"), []
    whole = file.read_bytes()
    for spoilt in (whole[:-100], whole[:1000] + bytes(8000) + whole[9000:]):
        file.write_bytes(spoilt)
        said.append(error_of(make, "web", "out", have="have", quiet=True))
    for table in ({"label": [1]}, *({"text": column} for column in ([1], [1.5], [["a"]], [{"a": "b"}]))):
        parquet.write_table(pyarrow.table(table), file)
        said.append(error_of(make, "web", "out", have="have", quiet=True))
    for line, expected in zip(said, [
        *2 * [r"must be a readable parquet file \("], r"must have a column \"text\", got \['label'\]",
        *(f'column "text" must hold texts, got {kind}$' for kind in ("int64", "double", "list<.*>", "struct<.*>")),
    ], strict=True):  # fmt: skip
        assert re.match(rf"have/0\.parquet: {expected}", line), line
    assert not Path("out").exists()


def test_the_texts_of_a_column_may_be_bytes_or_a_dictionary(pages):
    import pyarrow
    from pyarrow import parquet

    texts = ["Über die Brücken.", "", "Käthe\nging."]
    for column in (pyarrow.array([t.encode() for t in texts]), pyarrow.array(texts).dictionary_encode()):
        table = {"text": column, "id": [b"a", b"b", b"c"], "url": [b"x", b"y", None]}
        parquet.write_table(pyarrow.table(table), "have/0.parquet", row_group_size=2)
        assert text_data.documents(read_text("have/0.parquet")) == [texts[0], texts[2]]
    parquet.write_table(pyarrow.table({"text": [b"\xff", *(t.encode() for t in texts)]}), "have/0.parquet")
    report = make("web", "out", have="have", quiet=True)
    assert report["dropped"] == {"bytes that are not UTF-8": 1, "empty": 1}
    with pytest.raises(NanoEulerError, match=r"have/0\.parquet: row 1 must be text, got bytes that are not UTF-8"):
        read_text("have/0.parquet")


@pytest.mark.parametrize("name, package", [("web", "pyarrow"), ("books", "pooch"), ("web", "huggingface_hub")])
def test_a_missing_package_is_named(monkeypatch, tmp_path, name, package):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NanoEulerError, match=f"needs {package}: pip install pooch huggingface_hub pyarrow"):
        make(name, "out")
    assert not Path("out").exists()


# ---- The command


@needs_data
def test_examples(nanoeuler, monkeypatch, tmp_path):
    """Read Dolly's 15,015 examples, 17 of which repeat an earlier one."""
    monkeypatch.chdir(tmp_path)
    code, out, _ = nanoeuler("corpus", "dolly", "--out", "e", "--from", DATA / "sft", "--json")
    report = json.loads(out)
    assert code == 0 and report["out"] == "e" and corpora()["dolly"].licence == report["licence"]
    assert report["dropped"] == {"same words as an earlier one": 17}
    before, template = text_examples.read_examples(next((DATA / "sft").glob("*dolly*.xz")))
    after, _ = text_examples.read_examples("e/examples.jsonl")
    assert len(before) == 15_015 and len(after) == 15_015 - 17 and template == "alpaca"
    kept = [line for line in lines("e/documents.jsonl") if "part" in line]
    assert [before[int(line["name"].split(":")[1]) - 1] for line in kept] == after


@pytest.mark.parametrize("names", [("input", "output"), ("context", "response")])
@pytest.mark.parametrize("whole", [True, False])
def test_the_words_of_an_example_are_those_of_its_format(tmp_path, names, whole):
    """Accept a list, or one example per line; keep further keys; refuse an answer of only white space."""
    values = [{"instruction": "add", names[0]: "1 + 1", names[1]: "2", "more": 3}, {"instruction": "i", names[1]: " "}]
    text = json.dumps(values) if whole else "\n\n".join(map(json.dumps, values)) + "\n"
    (tmp_path / "f.json").write_text(text)

    def get(file, check):
        check(tmp_path / file.name, False)
        return SimpleNamespace(path=tmp_path / file.name)

    first, second = examples(get, [SimpleNamespace(name="f.json")], None)
    assert (first.name, first.text, first.fault) == ("f.json:1", "add\n1 + 1\n2", "")
    assert json.loads(first.written) == values[0] and "\n" not in first.written
    assert (second.name, second.text, second.fault) == ("f.json:2", "i\n\n ", "no answer")


REFUSED = {  # arguments of `nanoeuler corpus`, with books of one short document: the error
    "books --out o --from no": "no: no such folder",
    "web --out o --bytes 0": "--bytes must be at least 1, got 0",
    "books --out o --seed -1": "--seed must be 0 or more, got -1",
    "books --out o --valid-fraction 1": "--valid-fraction must be at least 0 and less than 1, got 1.0",
    "books --out o --valid-fraction nan": "--valid-fraction must be at least 0 and less than 1, got nan",
    "books --out o --valid-fraction 0.5": ".txt must have at least one of the 1 documents, got none",
    "books --out o --skip 134": "--skip must name a file of books, got '134', did you mean 1342",
    "books --out file": "file: already exists: choose a new name",
    "books --out no/o": "no/o: cannot be written (No such file or directory)",
    "books --out o --downloads file": "file/books: cannot be written (Not a",
}


@pytest.mark.parametrize("words", REFUSED)
def test_wrong_words_are_one_line_and_leave_nothing(words, own, nanoeuler):
    own(["one"])
    shutil.rmtree("out")
    Path("file").write_text("mine")
    code, out, err = nanoeuler("corpus", *words.split())
    assert (code, out) == (2, "") and err.startswith("nanoeuler: ") and err.count("\n") == 1 and REFUSED[words] in err
    assert Path("file").read_text() == "mine" and sorted(set(os.listdir()) - {"downloads"}) == ["file"]
