"""Test the tokenizer against the plain byte-pair encoding of chapter 01, `regex`, and GPT-2's own ids."""

import json
import os
import pickle
import random
import sys
import time
import unicodedata
from collections import Counter
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracles import error_of

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.text import bpe
from nanoeuler_lib.text import tokenizer as module
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer, count_words, find_merges, split_words

GPT2_PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
DATA = Path(os.environ.get("NANOEULER_DATA", "/nowhere"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="NANOEULER_DATA is not set")

# Text for every branch of the pattern: all kinds of spaces, letters, numbers, marks and contractions.
SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000"
TRICKY = SPACES + "   \n\n''stmdlrve_aAbß漢字é0٣²½Ⅳ.,!—\x00\x1c\x1d\x1e\x1f\u200b\u0301🙂𝐀𐄇\udc80\udcff"
tricky_text = st.text(st.sampled_from(TRICKY), max_size=40) | st.text(max_size=40)
small_text = st.text(st.sampled_from("aaab  b\ncß."), max_size=60)


# The plain functions of chapter 01


def test_plain_encoding_by_hand():
    """Merge Gage's example: aa, then aaa (the tie goes to the greater first token), then aaab."""
    merges = bpe.train("aaabdaaabac", 259)
    assert merges == [(97, 97), (256, 97), (257, 98)]
    assert bpe.encode("aaabdaaabac", merges) == [258, 100, 258, 97, 99]
    assert bpe.decode([258, 100, 0xC3, 258], merges) == "aaabd\ufffdaaab"


# Pretokenization


def encodable(text):
    """Return the text without halves of surrogate pairs, except those of surrogateescape, which UTF-8 can write."""
    return "".join(c for c in text if not "\ud800" <= c <= "\udfff" or "\udc80" <= c <= "\udcff")


def known(text):
    """Return the text without code points that this Python's Unicode tables do not have yet."""
    return "".join(c for c in encodable(text) if unicodedata.category(c) != "Cn")


def test_words_are_those_of_the_pattern():
    regex = pytest.importorskip("regex", reason="regex is not installed: make oracle")

    @settings(max_examples=150)
    @given(tricky_text)
    @example("I're you've he'll don't 'm's'd x'RE 'lve  're")
    def check(text):
        text = known(text)
        assert split_words(text) == regex.findall(GPT2_PATTERN, text)
        assert "".join(split_words(text)) == text

    check()


def test_every_code_point_is_in_its_class():
    """Compare the classes of code points with `regex`, which has newer Unicode tables: the two may differ only in code
    points that Python's tables do not have yet."""
    regex = pytest.importorskip("regex", reason="regex is not installed: make oracle")
    points = [chr(point) for point in range(sys.maxunicode + 1)]
    assigned = [c for c in points if unicodedata.category(c) not in ("Cn", "Cs")]
    text = "".join(f"ä{c}5{c}  " for c in assigned)
    assert split_words(text) == regex.findall(GPT2_PATTERN, text)
    newer = regex.findall(r"[\p{L}\p{N}\s]", "".join(c for c in points if unicodedata.category(c) == "Cn"))
    print(f"Unicode {unicodedata.unidata_version}: {len(newer)} letters and numbers of `regex` are later")
    assert not any(c.isalnum() or c.isspace() for c in newer)


def test_ascii_text_has_the_same_words_with_either_pattern():
    rng, letters = random.Random(0), [chr(i) for i in range(128)] + list("  '\n")
    text = "".join(rng.choices(letters, k=60_000))
    assert split_words(text) == module._UNICODE_WORDS.findall(text)


# Training


@settings(max_examples=120)
@given(small_text | tricky_text, st.integers(0, 40))
@example("a" * 40, 30)
@example("abab" * 9 + " abab", 30)
@example("aab" * 12, 30)
@example("aaa aaaa aaaaa", 30)
@example("ab" + "c" * 9 + "ab", 30)
def test_training_is_plain_training(text, number):
    text = encodable(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", 3)
        words = count_words(text)
    assert words == Counter(split_words(text))
    assert count_words(f"{text}<|x|>{text}", ["<|x|>"]) == words + words
    assert find_merges(words, number) == bpe.train(text, 256 + number)


@needs_data
def test_training_finds_the_reference_merges():
    alphabet = gpt2_alphabet()
    lines = (DATA / "tokenizer_fixtures/train-bpe-reference-merges.txt").read_text("utf-8").split("\n")
    reference = [tuple(line.split(" ")) for line in lines if line]
    tokenizer = Tokenizer.train(DATA / "tokenizer_fixtures/corpus.en", vocab_size=500)
    written = ["".join(alphabet[byte] for byte in token) for token in tokenizer.token_bytes]
    assert len(reference) == 243
    assert [(written[a], written[b]) for a, b in tokenizer.merges] == reference
    assert tokenizer.vocab_size == 500


@pytest.mark.parametrize(
    "text, size, special, learnt",
    [
        ("ab ab", 300, [END_OF_TEXT], ["ab", " ab"]),  # no more merges than the text has
        ("", 300, [END_OF_TEXT], []),
        (f"ab{END_OF_TEXT}ab<|x|>" * 20, 400, [END_OF_TEXT, "<|x|>"], ["ab"]),  # no merges from special tokens
    ],
)
def test_what_is_learnt(text, size, special, learnt):
    tokens = Tokenizer.train(text, size, special).token_bytes[256:]
    assert [token.decode() for token in tokens] == learnt + special


def test_files_texts_and_processes_train_the_same(tmp_path, monkeypatch):
    rng = random.Random(1)
    words = ["the", "then", " there", "süß", "12", "\n\n", f"\n{END_OF_TEXT}\n", "  ", "don't"]
    texts = [" ".join(rng.choices(words, k=2000)) for _ in range(2)]
    paths = [tmp_path / name for name in ("one", "two")]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    expected = Tokenizer.train(texts, 280)
    assert expected.vocab_size == 280
    monkeypatch.setattr(module, "_TASK", 1000)
    for processes in (1, 2, 3):
        assert Tokenizer.train(paths, 280, processes=processes).merges == expected.merges
    assert Tokenizer.train([paths[0], texts[1]], 280, processes=2, progress=True).merges == expected.merges


# Encoding


@settings(max_examples=120)
@given(small_text | tricky_text, small_text | tricky_text, st.integers(0, 30))
def test_encoding_is_plain_encoding(learnt, text, number):
    """Test also merges that were learnt across word borders, which encoding must not cross."""
    learnt, text = encodable(learnt), encodable(text)
    glued = bpe.train_bpe([learnt.encode("utf-8", "surrogateescape")], number)
    for merges in (find_merges(count_words(learnt), number), glued):
        expected = bpe.encode(text, merges)
        tokenizer = Tokenizer(merges)
        assert tokenizer.encode(text).tolist() == expected
        assert tokenizer.decode(expected) == bpe.decode(expected, merges)
        with pytest.MonkeyPatch.context() as patch:  # again with small blocks and caches, and with the sweep
            for name, value in {"_BLOCK": 3, "_CACHED": 2, "_LONG": 4}.items():
                patch.setattr(module, name, value)
            assert Tokenizer(merges).encode(text).tolist() == expected
            assert tokenizer.encode(text).tolist() == expected


@pytest.fixture(scope="module")
def every_pair():
    return Tokenizer([(a, b) for a in range(256) for b in range(256)])


@settings(max_examples=200)
@given(st.binary(max_size=60) | st.lists(st.sampled_from([b"a", b" ", b"\n", b"\xc3", b"\x9f"])).map(b"".join))
def test_every_byte_string_round_trips(data):
    tokenizer = Tokenizer([(0xC3, 0x9F), (256, 256), (32, 97)], ["<|x|>"])
    ids = tokenizer.encode_bytes(data)
    assert tokenizer.decode_bytes(ids) == data
    assert tokenizer.decode(ids) == data.decode("utf-8", "replace")
    assert tokenizer.token_lengths[ids].sum() == len(data)
    ids[...] = 99  # the caller may change this array
    assert tokenizer.decode_bytes(tokenizer.encode_bytes(data)) == data


def test_ids_have_the_least_type(every_pair):
    for merges, size, dtype in ((0, 257, np.uint16), (65279, 65536, np.uint16), (65280, 65537, np.uint32)):
        tokenizer = Tokenizer(every_pair.merges[:merges])
        assert tokenizer.vocab_size == size and tokenizer.dtype == tokenizer.encode("ab").dtype == dtype
    assert every_pair.encode_bytes(b"\xff" * 4).tolist() == [65791, 65791]
    assert every_pair.decode_bytes(every_pair.encode_bytes(b"\xff" * 4)) == b"\xff" * 4
    assert every_pair.encode(END_OF_TEXT, "all").tolist() == [65792]


def test_tokens_beyond_the_surrogates_are_found_in_long_words(every_pair, monkeypatch):
    """Check the sweep, which writes tokens as characters, for ids that are halves of surrogate pairs."""
    monkeypatch.setattr(module, "_LONG", 3)
    word = bytes([0xDC, 0xFF] * 3)  # the pair has the id 0xDDFF
    assert Tokenizer(every_pair.merges).encode_bytes(word).tolist() == [256 + 0xDC * 256 + 0xFF] * 3


@pytest.mark.parametrize("character", ["a", "_", "\n", " ", "ß", "漢", "7", "—"])
def test_time_is_linear_in_the_length_of_a_run(character):
    text = ("x" + character * 60_000) * 2
    start = time.process_time()  # counts only this process, on a busy machine too
    tokenizer = Tokenizer.train(text + " " + text[:1000], 270)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert time.process_time() - start < 10  # linear: 0.1; a quadratic step would take minutes


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_CACHED", 50)
    monkeypatch.setattr(module, "_BLOCK", 100)
    tokenizer = Tokenizer.train("abc", 258)
    for text in (" ".join(map(str, range(2000))), " ".join("abc." * 300 + str(i) for i in range(20))):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert len(tokenizer._pieces) <= 150 and len(tokenizer._words) <= 150
    assert max(map(len, tokenizer._pieces)) <= module._LONG


# Special tokens


SPECIAL = Tokenizer([(97, 97), (32, 32)], [END_OF_TEXT, "<|x|>", "<|x|>y"])  # 258, 259, 260


@pytest.mark.parametrize(
    "text, allowed, expected",
    [
        (f"a{END_OF_TEXT}b<|x|>y", [], [97, END_OF_TEXT, 98, "<|x|>y"]),
        (f"a{END_OF_TEXT}b<|x|>y", "all", [97, 258, 98, 260]),
        (f"a{END_OF_TEXT}b<|x|>y", {END_OF_TEXT}, [97, 258, 98, "<|x|>y"]),
        (f"a{END_OF_TEXT}b<|x|>y", ["<|x|>"], [97, END_OF_TEXT, 98, 259, "y"]),
        (END_OF_TEXT * 2, "all", [258, 258]),
        (f"aa  {END_OF_TEXT}  aa", "all", ["aa  ", 258, "  aa"]),  # the text around it is encoded separately
        (f"\n \n{END_OF_TEXT} a", "all", ["\n \n", 258, " a"]),
        (f"{END_OF_TEXT}  ", "all", [258, "  "]),
    ],
)
def test_special_text_is_ordinary_unless_allowed(text, allowed, expected):
    ids = SPECIAL.encode(text, allowed)
    assert ids.tolist() == [id for x in expected for id in ([x] if isinstance(x, int) else list(SPECIAL.encode(x)))]
    assert SPECIAL.decode(ids) == text


def test_special_tokens_come_last_and_count_no_bytes():
    assert SPECIAL.special_tokens == {END_OF_TEXT: 258, "<|x|>": 259, "<|x|>y": 260} and SPECIAL.vocab_size == 261
    assert SPECIAL.token_bytes[258:] == [END_OF_TEXT.encode(), b"<|x|>", b"<|x|>y"]
    assert SPECIAL.token_lengths[[97, 256, 258, 260]].tolist() == [1, 2, 0, 0]


# Files and processes


@settings(max_examples=100)
@given(
    st.lists(
        st.sampled_from(["a", " b", "  ", " <|x|>", "<|x|>", " <|y z|>", "\n", " abc", "ß", "\udcff"]), max_size=30
    ),
    st.integers(1, 4),
)
def test_parts_of_a_file_are_encoded_as_the_whole(parts, processes):
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(module, "_BLOCK", 8)
        patch.setattr(module, "_TASK", 5)
        patch.setattr(module, "_run", lambda function, tasks, _: map(function, map(module._text, tasks)))
        tokenizer = Tokenizer([(32, 98), (97, 98), (257, 99)], ["<|x|>", "<|y z|>"])
        data = "".join(parts).encode("utf-8", "surrogateescape")
        path = Path(folder) / "text"
        path.write_bytes(data)
        for allowed in ("all", ["<|y z|>"], ()):
            found = tokenizer.encode_file(path, allowed, processes)
            assert found.tolist() == tokenizer.encode_bytes(data, allowed).tolist()


@pytest.mark.parametrize("platform", [sys.platform, "darwin"])  # fork where it exists, and spawn
def test_processes_encode_the_same(platform, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(module, "_TASK", 5000)
    path, text = tmp_path / "text", f"the thing  and 3 others {END_OF_TEXT} süß\n" * 500
    path.write_text(text, encoding="utf-8")
    tokenizer = Tokenizer.train(text, 280)
    assert len(module._file_tasks([path], tokenizer.special_tokens, 2)) > 3
    ids = tokenizer.encode_file(path, "all", processes=2)
    assert ids.dtype == tokenizer.dtype
    assert ids.tolist() == tokenizer.encode(text, "all").tolist()


# Saving and loading


@pytest.mark.parametrize("way", ["file", "process"])
def test_a_copy_is_the_same(way, tmp_path):
    tokenizer = Tokenizer([(255, 254), (256, 0)], [END_OF_TEXT, "<|ü|>"], range(255, -1, -1))
    if way == "file":
        tokenizer.save(tmp_path / "t.json")
        copy = Tokenizer.load(tmp_path / "t.json")
        copy.save(tmp_path / "again.json")
        assert (tmp_path / "again.json").read_bytes() == (tmp_path / "t.json").read_bytes()
        assert len(list(tmp_path.iterdir())) == 2  # no temporary file stays
    else:
        copy = pickle.loads(pickle.dumps(tokenizer))
    for name in ("token_bytes", "merges", "special_tokens"):
        assert getattr(copy, name) == getattr(tokenizer, name)
    assert copy.token_lengths.tolist() == tokenizer.token_lengths.tolist()
    assert copy.encode("\0\1\xff<|ü|>", "all").tolist() == tokenizer.encode("\0\1\xff<|ü|>", "all").tolist()


BAD_FILES = [
    (b"{", "not JSON"),
    (b"\xff\xfe{}", "must be a UTF-8 text file"),
    (b"[]", "must be a tokenizer"),
    ({"format": "other"}, "must be a tokenizer"),
    ({"version": 2}, "version must be 1, got 2"),
    ({"merges": ...}, "merges, special_tokens and byte_order must be lists"),
    ([[97, 98, 99]], "merge 0 must be two token ids, got [97, 98, 99]"),
    ([[True, 98]], "merge 0 must be two token ids, got [True, 98]"),
    ([[97, 256]], "merge 0 must be two earlier ids, 0 to 255, got (97, 256)"),
    ([[-1, 98]], "merge 0 must be two earlier ids, 0 to 255, got (-1, 98)"),
    ([[97, 98], [97, 98]], "merge 1 must be a new pair, got (97, 98), which is merge 0"),
    ([[97, 98], [256, 99], [98, 99], [97, 258]], "that earlier merges leave as neighbours"),
    ([[97, 98], [98, 99], [97, 257]], "merge 2 must be a pair that earlier merges leave as neighbours, got (97, 257)"),
    ([[97, 97], *([256 + i, 256 + i] for i in range(60))], "bytes together"),
    ({"vocab_size": 300}, "must be 256 + 2 merges + 1 special tokens = 259, got 300"),
    ({"byte_order": [0, *range(255)]}, "each integer from 0 to 255 once"),
    ({"byte_order": ["a"] * 256}, "each integer from 0 to 255 once"),
    ({"special_tokens": ["<a>", "<a>"]}, "once each, got '<a>'"),
    ({"special_tokens": [""]}, "once each, got ''"),
    ({"special_tokens": [3]}, "once each, got 3"),
    ({"special_tokens": ["\ud800"]}, "once each, got '\\ud800'"),
]


def written(path, changes):
    """Write a file of these bytes, or a valid tokenizer with these changes or these merges; return its path."""
    content = {"format": "nanoeuler-bpe", "version": 1, "vocab_size": 259, "special_tokens": [END_OF_TEXT]}
    content |= {"byte_order": list(range(256)), "merges": [[97, 98], [256, 99]]}
    if not isinstance(changes, bytes):
        content |= {"merges": changes} if isinstance(changes, list) else changes
        changes = json.dumps({key: value for key, value in content.items() if value is not ...}).encode()
    path.write_bytes(changes)
    return path


@pytest.mark.parametrize("changes, expected", BAD_FILES)
def test_a_bad_file_is_told_in_one_line(changes, expected, tmp_path):
    good = Tokenizer.load(written(tmp_path / "good.json", {}))
    assert good.token_bytes[256:] == [b"ab", b"abc", END_OF_TEXT.encode()]
    message = error_of(Tokenizer.load, written(tmp_path / "bad.json", changes))
    assert expected in message and message.startswith(f"{tmp_path}/bad.json")


def test_missing_and_oversized_files_are_told(tmp_path, monkeypatch):
    with open(tmp_path / "large.json", "wb") as file:
        file.truncate(1 << 27)
    assert "missing.json: cannot be read (No such file" in error_of(Tokenizer.load, tmp_path / "missing.json")
    assert "cannot be read (Is a directory" in error_of(Tokenizer.load, tmp_path)
    assert "at most 67108864 bytes" in error_of(Tokenizer.load, tmp_path / "large.json")
    assert "cannot be written (No such file" in error_of(Tokenizer([]).save, tmp_path / "no" / "where.json")
    monkeypatch.setattr(module, "MAX_VOCAB_SIZE", 258)
    assert "must have at most 258 tokens, got 259" in error_of(Tokenizer, [(97, 98), (98, 99)])


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8))
def test_only_merges_that_encoding_can_make_are_taken(draws):
    """Check that merges of an accepted vocabulary encode their own text to themselves, and that refused ones do not."""
    ids = [97, 98, *range(256, 264)]
    merges, token = [], {byte: [byte] for byte in range(256)}
    for a, b in ((ids[i], ids[j]) for i, j in draws):
        if max(a, b) >= 256 + len(merges):
            continue
        reachable = bpe.encode_word(bytes(token[a] + token[b]), merges) == [a, b]
        try:
            Tokenizer([*merges, (a, b)])
            accepted = True
        except NanoEulerError:
            accepted = False
        assert accepted == reachable, (merges, (a, b))
        if accepted:
            token[256 + len(merges)] = token[a] + token[b]
            merges.append((a, b))


# Bad arguments


BYTES = Tokenizer([])


@pytest.mark.parametrize(
    "function, arguments, expected",
    [
        (Tokenizer.train, ("ab", 256), "vocab_size must be 257 (256 bytes and 1 special tokens) to 1114112, got 256"),
        (Tokenizer.train, (Path("/no/file"), 300), "/no/file: cannot be read (No such file"),
        (partial(Tokenizer.train, processes=0), (Path(__file__), 300), "processes must be 1 or more, got 0"),
        (Tokenizer.train, ("ab", 300, ["<a>", "<a>"]), "once each, got '<a>'"),
        (BYTES.encode, ("a", ["<b>"]), 'allowed_special must be "all" or some of'),
        (BYTES.encode, ("a", END_OF_TEXT), "got '<|endoftext|>'"),
        (BYTES.encode, ("a\ud800",), "text must be Unicode, got '\\ud800', half a surrogate pair"),
        (BYTES.encode_file, ("/no/file",), "/no/file: cannot be read (No such file"),
        (BYTES.decode, ([257],), "token ids must be 0 to 256, got 257"),
        (BYTES.decode, ([-1],), "token ids must be 0 to 256, got -1"),
        (BYTES.decode, ([1.5],), "got float64 of shape (1,)"),
        (BYTES.decode, (np.zeros((2, 2), int),), "got int64 of shape (2, 2)"),
    ],
)
def test_bad_arguments_are_told_in_one_line(function, arguments, expected):
    assert expected in error_of(function, *arguments)


# GPT-2


def gpt2_alphabet():
    """Return the character with which GPT-2's files write each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        alphabet.setdefault(byte, chr(256 + len(alphabet) - len(printable)))
    return alphabet


@pytest.fixture(scope="module")
def gpt2():
    return Tokenizer.from_gpt2(DATA / "gpt2/encoder.json", DATA / "gpt2/vocab.bpe")


@needs_data
def test_gpt2_ids_are_the_reference_ids(gpt2):
    cases = json.loads((DATA / "gpt2/test_vectors.json").read_text("utf-8"))["cases"]
    assert len(cases) >= 20
    for case in cases:
        assert gpt2.encode(case["text"]).tolist() == case["ids"]
        assert gpt2.decode(case["ids"]) == case["text"]
    assert gpt2.vocab_size == 50257 and gpt2.special_tokens == {END_OF_TEXT: 50256}


ALPHABET = {character: byte for byte, character in gpt2_alphabet().items()}
ABC = ALPHABET | {"ab": 256, "abc": 257, "bc": 258}


def from_gpt2(folder, id_of, lines):
    files = folder / "encoder.json", folder / "vocab.bpe"
    files[0].write_text(json.dumps(id_of))
    files[1].write_text("\n".join(["#version: 0.2", *lines, ""]), encoding="utf-8")
    return Tokenizer.from_gpt2(*files)


def test_small_gpt2_files_are_read(tmp_path):
    id_of = {character: 255 - byte for character, byte in ALPHABET.items()}
    tokenizer = from_gpt2(tmp_path, id_of | {"Ġa": 256, "Ġab": 257, END_OF_TEXT: 258}, ["Ġ a", "Ġa b"])
    assert tokenizer.encode(" ab b").tolist() == [257, 255 - 32, 255 - 98]
    assert tokenizer.special_tokens == {END_OF_TEXT: 258}


@pytest.mark.parametrize(
    "id_of, lines, expected",
    [
        (ALPHABET | {"ab": 256, "cd": 257}, ["c d", "a b"], "must fit"),
        (ABC, ["ab c", "a b"], "must fit"),
        (ABC | {"bc": 300}, ["a b", "ab c"], "must fit"),
        (ABC | {"ab": "256"}, ["a b", "ab c"], "must fit"),
        (
            ALPHABET | {"ab": 256, "abc": 257, "xyz": 258},
            ["a b", "ab c", "x yz"],
            "merge 2 must be two earlier ids, 0 to 257, got (120, -1)",
        ),
        (
            ALPHABET | {"ab": 256, "abc": 257, "xyz": 258},
            ["a b", "ab c", "xy z"],
            "merge 2 must be two earlier ids, 0 to 257, got (-1, 122)",
        ),
    ],
)
def test_gpt2_files_that_do_not_fit_are_told(id_of, lines, expected, tmp_path):
    assert expected in error_of(from_gpt2, tmp_path, id_of, lines)
