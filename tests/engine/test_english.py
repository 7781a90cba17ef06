"""benchmarks/english.py from the texts to the model in the package, tiny, through the CPU runtime."""

import json
import lzma

import pytest

import konigsberg
from benchmarks import english
from nanoeuler_lib.text import data
from nanoeuler_lib.training import checkpoint

SIZES = {3: {304: (32, 1, 1, 1), 336: (32, 1, 1, 1)}, 6: {304: (64, 2, 1, 1), 336: (64, 2, 1, 1)}}


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The script on shapes and texts that take seconds, and a call of it."""
    for name, value in dict(SHAPES=SIZES, PASSES={3: 1, 6: 2}, CONTEXT=16, ROWS=2, PROMPTS=("Murr",)).items():
        monkeypatch.setattr(english, name, value)
    monkeypatch.setattr(english, "RATES", english.RATES[:2])
    monkeypatch.setattr(english, "XZ", [dict(id=lzma.FILTER_LZMA2, preset=1)])
    monkeypatch.setenv("NANOEULER_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "books").mkdir(parents=True)
    for file, stories in ((english.BOOKS["train"], 12), (english.BOOKS["valid"], 5)):
        books = data.SEPARATOR.join(f"Title {i}\n\n{konigsberg.sample(100 * stories + i).text}" for i in range(stories))
        (tmp_path / "data" / "books" / file).write_bytes(lzma.compress(books.encode()))
    common = [
        "--folder",
        tmp_path / "work",
        "--runs",
        tmp_path / "runs",
        "--device",
        "checked",
        "--sizes",
        3,
        6,
    ]
    common += ["--steps", 2, "--tokens", 3, "--package", tmp_path / "package", "--results", tmp_path]
    return lambda *words: english.main([*map(str, words), *map(str, common)])


@pytest.mark.compiler
def test_from_the_books_to_the_model_in_the_package(tiny, tmp_path):
    tiny("prepare", "xz", "ngrams")
    texts, found = (
        {row["text"]: row for row in english.rows_of(tmp_path / "work") if row["what"] == "text"},
        [],
    )
    assert [texts[name]["books"] for name in english.TEXTS] == [12, 3, 2]
    assert texts["choose"]["titles"] == ["Title 0", "Title 2", "Title 4"] and "Title 1" in texts["held_out"]["titles"]
    tiny("pilot", "train", "measure", "--out", tmp_path / "out")
    rows = english.rows_of(tmp_path / "out")
    pilots = [row for row in rows if row["what"] == "pilot"]
    assert [(row["size"], row["vocabulary"]) for row in pilots if row["rate"] == english.RATES[0]] == [
        (size, vocabulary) for size in SIZES for vocabulary in SIZES[size]
    ]  # fmt: skip
    for size in SIZES:
        best = min((row for row in pilots if row["size"] == size), key=lambda row: row["bits"])
        (run,) = (row for row in rows if row["what"] == "run" and row["size"] == size)
        assert (run["vocabulary"], run["rate"], run["steps"]) == (best["vocabulary"], best["rate"], 2)
        (measured,) = (row for row in rows if row["what"] == "measured" and row["size"] == size)
        whole, small = measured["float32"], measured["int8"]
        assert len(whole["books"]) == 2 and whole["bits_per_byte"] != small["bits_per_byte"]
        assert abs(whole["bits_per_byte"] - small["bits_per_byte"]) < 0.02 and measured["largest_error"] < 0.004
    tiny("collect", "--from", tmp_path / "out", "--ship", 6)
    found = checkpoint.load(tmp_path / "package" / english.NAME)
    assert found.model.config.dim == 64 and "United States" in found.info["licence"] and "files" not in found.info
    result = json.loads((tmp_path / "english.json").read_text())
    assert (
        result["config"]["shipped"] == 6
        and result["config"]["saved"][0]["sizes"] == "3 to 6 MB"
        and len(result["rows"]) == len(rows) + 6
    )


def test_a_vocabulary_is_the_beginning_of_a_larger_one(tiny, tmp_path):
    tiny("prepare")
    options = english.argparse.Namespace(folder=tmp_path / "work")
    small, large = (english.tokenizer_of(options, vocabulary) for vocabulary in (304, 336))
    assert (small.vocab_size, large.vocab_size) == (304, 336) and large.merges[: len(small.merges)] == small.merges
    assert small.end == 303 and large.end == 335


def test_shapes_have_about_as_many_bytes_as_their_size_says():
    for size, of in english.SHAPES.items():
        for vocabulary in of:
            shape = english.shape_of(size, vocabulary)
            assert shape.predict == 1 and shape.head_dim in (32, 64)
            assert abs(english.GPT(shape).size / 1e6 / size - 1) < 0.08, (size, vocabulary)


def test_what_a_larger_size_saves_is_paired_by_book():
    row, larger = (dict(size=n, int8=dict(books=books)) for n, books in ((3, [2.0, 3.0]), (6, [1.8, 2.4])))
    found = english.saved(row, larger)  # 0.1 and 0.2: t at one degree of freedom is 12.71, the standard error 0.05
    assert found == dict(sizes="3 to 6 MB", share=0.15, half_width=0.6353)


@pytest.mark.parametrize(
    "bits, shipped", [((2, 1.9, 1.81), 6), ((2, 1.91, 1.6), 3), ((2, 1.8, 1.72), 6), ((2, 1.8, 1.7), 12)]
)
def test_a_larger_size_has_to_be_worth_it(bits, shipped):
    rows = [dict(size=size, int8=dict(bits_per_byte=b)) for size, b in zip((3, 6, 12), bits, strict=True)]
    assert english.worth(rows) == shipped
