"""Test the way from a text to batches and rows on small cases, with all numbers written out."""

import gzip
import json
import lzma
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
from oracles import error_of, numbered

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.text import data
from nanoeuler_lib.text.data import SEPARATOR
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer, count_words

# test_mutations.py runs further checks: `check_targets`, `check_validation_rows` and `check_split` of oracles.py.


def cut(count, starts):
    return replace(numbered(count, starts), cut=True)


@pytest.mark.parametrize(
    "tokens, time, inputs, targets",
    [
        (numbered(7), 3, [[0, 1, 2], [3, 4, 5]], [[1, 2, 3], [4, 5, 6]]),
        (numbered(8), 3, [[0, 1, 2], [3, 4, 5], [6, 0, 0]], [[1, 2, 3], [4, 5, 6], [7, -1, -1]]),
        (numbered(2), 3, [[0, 0, 0]], [[1, -1, -1]]),
        (numbered(8, [0, 3]), 4, [[0, 1, 2, 0], [3, 4, 5, 6]], [[1, 2, 3, -1], [4, 5, 6, 7]]),  # with the closing end
        (numbered(9, [0, 3]), 4, [[0, 1, 2, 0], [3, 4, 5, 6]], [[1, 2, 3, -1], [4, 5, 6, 7]]),  # the rest is left out
        (numbered(8, [0, 3]), 5, [[0, 1, 2, 0, 0], [3, 4, 5, 6, 0]], [[1, 2, 3, -1, -1], [4, 5, 6, 7, -1]]),
        (numbered(5, [0, 4]), 3, [[0, 1, 2], [3, 0, 0]], [[1, 2, 3], [4, -1, -1]]),  # no document fits: windows
    ],
)
def test_validation_rows(tokens, time, inputs, targets):
    found = data.validation_rows(tokens, time)
    assert [x.tolist() for x in found] == [inputs, targets] and found[0].dtype == found[1].dtype == np.int64


def test_longer_documents_go_on_in_further_rows():
    """Check that a document of 8 tokens takes three rows of 3 plus 2 to predict; the last row ends with the text."""
    tokens = cut(23, [0, 3, 11, 14, 17, 20])
    assert data.row_starts(tokens, 3, 2).tolist() == [0, 3, 6, 9, 11, 14, 17, 18]
    assert data.row_starts(replace(tokens, cut=False), 3, 2).tolist() == [0, 3, 11, 14, 17]
    assert data.row_starts(cut(23, [0, 3, 6, 10, 13, 16, 19]), 3, 2).tolist() == [0, 3, 6, 10, 13, 16], "4 fit"
    inputs, targets = data.batch(tokens, np.random.default_rng(0), 60, 3, 2)
    assert set(inputs[:, 0].tolist()) == {0, 3, 6, 9, 11, 14, 17, 18}
    assert np.array_equal(targets, inputs[..., None] + [1, 2]), "targets continue after the piece"
    inputs, targets = data.validation_rows(tokens, 3)
    assert inputs[1:4].tolist() == [[3, 4, 5], [6, 7, 8], [9, 10, 0]]
    assert targets[1:4].tolist() == [[4, 5, 6], [7, 8, 9], [10, 11, -1]]


@pytest.mark.parametrize("seed", range(12))
def test_every_token_of_a_text_with_longer_documents_is_reached_and_scored_once(seed):
    rng = np.random.default_rng(seed)
    time, predict = int(rng.integers(2, 9)), int(rng.integers(1, 4))
    lengths = [*rng.integers(1, time + 1, 12), *rng.integers(time + predict, 9 * time, 7)]
    rng.shuffle(lengths)
    starts = np.cumsum([0, *lengths])
    tokens = cut(int(starts[-1]) + 1, starts[:-1])
    begins = data.row_starts(tokens, time, predict)
    assert begins.max() + time + predict == len(tokens.ids) and set(tokens.starts[:-6]) <= set(begins)
    assert {int(at) + i for at in begins for i in range(time)} >= set(range(len(tokens.ids) - predict))
    inputs, targets = data.validation_rows(tokens, time)
    scored = targets[targets >= 0]
    assert sorted(scored) == list(range(1, len(tokens.ids))) and (scored == inputs[targets >= 0] + 1).all()


def test_a_batch_is_that_of_its_generator():
    """Check that a resumed run gets the same batches: each row takes one integer from the given generator."""
    starts = [0, 2, 5, 8, 11]
    for tokens, places in ((numbered(20), np.arange(16)), (numbered(20, starts), np.array(starts))):
        found, _ = data.batch(tokens, np.random.default_rng(7), 6, 3, 2)
        expected = places[np.random.default_rng(7).integers(0, len(places), 6)]
        assert found[:, 0].tolist() == expected.tolist()


@pytest.mark.parametrize(
    "written, read",
    [
        ("a\r\nb\r\nEND\r\nc\r\n", "a\r\nb\nEND\nc\r\n"),
        ("END\r\na\r\nEND", "END\na\nEND"),
        ("a\r\nENDx\r\nb\rc", "a\r\nENDx\r\nb\rc"),
        ("a\nEND\nb", "a\nEND\nb"),
        ("a\r\r\nEND\r\nb", "a\r\nEND\nb"),
    ],
)
def test_line_ends_within_a_document_stay(tmp_path, written, read):
    written, read = (text.replace("END", END_OF_TEXT) for text in (written, read))
    (tmp_path / "text.txt").write_bytes(written.encode())
    assert data.read_text(tmp_path / "text.txt") == data.read_text(str(tmp_path / "text.txt")) == read


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 64])
def test_a_bad_byte_is_told_where_it_stands_in_the_file(tmp_path, size):
    """Check this for any division of the file, also within a character."""
    for content, place, found in ((b"ab\xc3\xbc\xe2\x82x", 4, "e2"), (b"ab\xc3", 2, "c3"), (b"a\xff", 1, "ff")):
        (tmp_path / "text").write_bytes(content)
        with pytest.raises(NanoEulerError, match=f"must be UTF-8 text, got 0x{found} at byte {place}"):
            list(data.read_blocks(tmp_path / "text", size))
    (tmp_path / "text").write_bytes("aüb日\n".encode())
    assert "".join(data.read_blocks(tmp_path / "text", size)) == "aüb日\n"


NO_TEXT = {
    "none": (None, "no such file, expected a UTF-8 text file"),
    "a\0b": (None, "cannot be read (embedded null byte), expected a UTF-8 text file"),
    "x" * 300: (None, "cannot be read (File name too long), expected a UTF-8 text file"),
    "empty": (b"", "must hold UTF-8 text, got 0 bytes without text"),
    "nul": (b"ab\0c\0", "must be UTF-8 text, got NUL at byte 2: is it a binary file?"),
    "first": (b"\x8f", "must be UTF-8 text, got 0x8f at byte 0"),
    "after the mark": (b"\xef\xbb\xbfabc\xfc", "must be UTF-8 text, got 0xfc at byte 6"),
    **{f"utf{n}": ("ab".encode(f"utf{n}"), f"must be UTF-8 text, got UTF-{n}: save it as UTF-8, or convert it with "
                   "iconv") for n in (16, 32)},
    "big": ("ab".encode("utf-16-be"), "must be UTF-8 text, got UTF-16 "
            "without its mark: save it as UTF-8, or convert it with iconv"),
    "zip": (b"PK\3\4\x14\0", "must be UTF-8 text, got NUL at byte 5: is it a binary file?"),
    "short.gz": (gzip.compress(b"text" * 99)[:-9], "cannot be read (Compressed file ended before the end-of-stream "
                 "marker was reached), expected a UTF-8 text file"),
    "a.jsonl": (b'{"text": "a"}\n\n["b"]', 'line 3 must be an object with a text under "text", got a list'),
    "b.jsonl": (b'{"text": 1}', 'line 1 must be an object with a text under "text", got 1 under text'),
    "c.jsonl": (b'{"messages": []}', "line 1 must be an object with a text under \"text\", got keys ['messages']: "
                "nanoeuler sft reads conversations"),
    "d.jsonl": (b'{"text": null}\n{"text": " "}', 'must hold at least one text under "text", got none'),
    "e.jsonl": (b'{"text": "a\\ud83d"}', "line 1 must be Unicode text, got NUL or half a surrogate pair"),
    "f.jsonl": (b'{"text": "a\\u0000"}', "line 1 must be Unicode text, got NUL or half a surrogate pair"),
    "a.parquet": (b"PAR1", "must be a readable parquet file (Parquet file size is 4 bytes, smaller than the minimum "
                  "file footer (8 bytes))"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_TEXT)
def test_what_is_no_text_is_told_in_one_line(tmp_path, name):
    content, said = NO_TEXT[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert error_of(data.read_text, f"{tmp_path}/{name}") == f"{tmp_path / name}: {said}"


@pytest.mark.parametrize("size", [1, 3, 1 << 24])
def test_texts_in_any_form_are_the_same_documents(tmp_path, size):
    """Read texts with Windows' mark, compressed under any name, or as lines of JSON; several files are joined."""
    first, second = "Käthe\u2028went.\nHome.", "Jürgen \U0001f468 stayed."
    lines = "".join(json.dumps({"id": 1, "text": text}) + "\r\n" for text in (first, "", second))
    files = {
        "plain.txt": f"{first}{SEPARATOR}{second}".encode(), "lines.jsonl": lines.encode(),
        "marked.txt": f"\ufeff{END_OF_TEXT}\n{first}{SEPARATOR}{second}".encode(),
    }  # fmt: skip
    files |= {f"{name}.xz": lzma.compress(content) for name, content in files.items()}
    files |= {f"{name}.gz": gzip.compress(files[name]) for name in ("plain.txt", "lines.jsonl")}
    files["misnamed.txt"] = files["plain.txt.gz"]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        assert data.documents("".join(data.read_blocks(tmp_path / name, size))) == [first, second], name
    both = [tmp_path / "plain.txt", tmp_path / "lines.jsonl.gz"]
    assert data.documents(data.read_text(*both)) == [first, second] * 2


@pytest.mark.parametrize("size", [24, 33, 40, 64, 90, 300])
def test_words_are_those_of_the_whole_text_wherever_it_is_cut(tmp_path, size):
    """Test texts with and without separator lines, with both line ends, and with the separator's name inside a line."""
    line, end = "Don't  go, Käthe: 12 € \n\n\tor “stay”…  \n天 地\n", "<|endoftext|>"
    texts = [line * 9, f"{line}{end}\n{line} {end} x\n{end}", f"{line} {end} {line}", "<|endof text|> " * 9]
    texts += [text.replace("\n", "\r\n") for text in texts]
    files = [tmp_path / f"{number}.txt" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, "utf-8", newline="")
    cuts = 0
    for some in (*((file,) for file in files), files, files[:2]):
        text, cuts = data.read_text(*some), cuts + len([*data.read_parts(*some, size=size)]) - len(some)
        for reserved in (False, True):
            special = (end,) if reserved or data.SEPARATOR in text else ()
            expected = count_words(text, special), special
            with patch.object(data, "read_parts", partial(data.read_parts, size=size)):
                assert data.count_file_words(*some, end_of_text=reserved) == expected
    assert cuts > 0


def test_a_text_just_long_enough_for_a_row():
    inputs, targets = data.batch(numbered(5), np.random.default_rng(0), 3, 3, 2)
    assert inputs.tolist() == [[0, 1, 2]] * 3 and targets[0].tolist() == [[1, 2], [2, 3], [3, 4]]
    assert inputs.dtype == targets.dtype == np.int64
    assert error_of(data.batch, numbered(4), None, 3, 3, 2) == (
        "text must have at least 5 tokens, 3 for a row and 2 to predict, got 4"
    )


@pytest.mark.parametrize("lengths, time, begins", [
    ([3, 3], 3, True), ([3, 4], 3, False), ([2, 4], 3, True), ([2, 3, 9], 3, True), ([2, 4, 9], 3, False),
])  # fmt: skip
def test_rows_begin_at_documents_when_half_of_them_fit(lengths, time, begins):
    assert data.starts_at_documents(numbered(50, np.cumsum([0, *lengths])), time) is begins


@pytest.mark.parametrize("text, with_end, ids, starts", [
    ("abc", True, [256, 99], None), (f"{SEPARATOR}abc{SEPARATOR}", True, [256, 99], None),  # one document has no starts
    ("abc", False, [256, 99], None), (f"{SEPARATOR}abc{SEPARATOR}", False, [256, 99], None),
    (f"{SEPARATOR[1:]}abc{SEPARATOR[:-1]}", True, [256, 99], None),  # the first and the last line of a file
    (f"a\n\n{SEPARATOR * 2}", False, [97, 10, 10], None), ("a>\n<|endoftext|", True, [*b"a>\n<|endoftext|"], None),
    (f"abc{SEPARATOR}d", True, [257, 256, 99, 257, 100, 257], [0, 3]),
    (f"a{SEPARATOR}{SEPARATOR}b", True, [257, 97, 257, 98, 257], [0, 2]),  # an empty document does not count
    (f"a{SEPARATOR}b", False, [*f"a{SEPARATOR}b".encode()], None),
])  # fmt: skip
def test_the_tokens_of_a_text(text, with_end, ids, starts):
    """Check the tokenizer's ids, with the token for the end of text around documents if the tokenizer has it."""
    tokenizer = Tokenizer([(97, 98)], (END_OF_TEXT,) if with_end else ())
    found = data.tokenize(text, tokenizer)
    assert found.ids.tolist() == ids and found.ids.dtype == tokenizer.encode("abc").dtype == np.uint16
    assert (found.starts if found.starts is None else found.starts.tolist()) == starts
    assert found.lengths.tolist() == tokenizer.token_lengths.tolist() and type(found.bytes) is int
    assert with_end or starts or found.bytes == len(tokenizer.decode_bytes(ids))


@pytest.mark.parametrize("text, fraction, part, valid", [
    ("abcdefghij", 0.3, "abcdefg", "hij"), ("abcdefghij", 0.0, "abcdefghij", ""), ("abc", 0.5, "ab", "c"),
    (f"abc{SEPARATOR}defgh", 0.0, f"abc{SEPARATOR}defgh", ""), (f"abc{SEPARATOR}de", 0.05, "abc", "de"),
    (f"abc{SEPARATOR}de", 0.9, "abc", "de"), (f"{SEPARATOR}abcd\n\nef{SEPARATOR}", 0.5, "abcd", "\n\nef"),
])  # fmt: skip
def test_a_cut_falls_where_the_fraction_says(text, fraction, part, valid):
    assert data.split_text(text, fraction) == (part, valid)


def test_a_cut_within_a_separator_cuts_no_separator():
    """Check for any cut that both sides have complete documents and that no document is lost."""
    text = SEPARATOR.join(["a" * 9, "b" * 20, "c" * 20])
    for per_cent in range(1, 100, 2):
        assert SEPARATOR.join(data.split_text(text, per_cent / 100)) == text
