"""tokenizer.json, out and in: the ids and texts are those of Hugging Face's own library, on hostile strings."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import error_of

import konigsberg
from nanoeuler_lib.formats import tokenizers
from nanoeuler_lib.text import other_tokenizers
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer

theirs = pytest.importorskip("tokenizers", reason="tokenizers is not installed: make oracle")
TEXT = konigsberg.corpus(40_000, 3) + " 12 345 6789 don't DON'T I'LL \n\n  x\r\n\ty  日本語 日本 ½ Ⅷ " * 20
# Characters that Unicode's tables of all versions agree about, and the names of special tokens, which are text here.
PARTS = list("aAbzZ019 \n\r\t'.,!-_<>|▁½Ⅷ²é日本語ñßſ\u00a0\u2003\u200d\u0300😀\x00\x1c\x7f")
PARTS += ["'s", "'LL", "<s>", END_OF_TEXT, "<0x41>", "   ", "▁the", " of", "123", "\r\n"]
HOSTILE = st.lists(st.sampled_from(PARTS), max_size=24).map("".join)


def byte_level(cutter, ignore_merges=False):
    made = theirs.Tokenizer(theirs.models.BPE(ignore_merges=ignore_merges))
    made.pre_tokenizer, made.decoder = cutter, theirs.decoders.ByteLevel()
    alphabet = theirs.pre_tokenizers.ByteLevel.alphabet()
    options = dict(vocab_size=600, special_tokens=[END_OF_TEXT, "<s>"], show_progress=False)
    trainer = theirs.trainers.BpeTrainer(initial_alphabet=alphabet, **options)
    made.train_from_iterator([TEXT], trainer)
    return made


def sentencepiece(newer=False):
    """As Llama 2's: unknown, begin, end, 256 bytes, pieces; a space before the text; no words."""
    trained = theirs.Tokenizer(theirs.models.BPE())
    trained.normalizer = theirs.normalizers.Replace(" ", "▁")
    words = TEXT.replace(" ", "\0 ").split("\0")
    trained.train_from_iterator(words, theirs.trainers.BpeTrainer(vocab_size=400, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {name: id for id, name in enumerate(names + sorted(model["vocab"], key=model["vocab"].get))}
    merges = [tuple(pair) for pair in model["merges"]]
    bpe = theirs.models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    made, d = theirs.Tokenizer(bpe), theirs.decoders
    if newer:
        made.pre_tokenizer = theirs.pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    else:
        n = theirs.normalizers
        made.normalizer = n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")])
    made.decoder = d.Sequence([d.Replace("▁", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)])
    made.add_special_tokens([theirs.AddedToken(name, special=True, normalized=False) for name in names[:3]])
    return made


def ours():
    """A vocabulary of this library, as it writes it."""
    trained = Tokenizer.train(TEXT, 500)
    return theirs.Tokenizer.from_str(json.dumps(tokenizers.to_json(trained)))


def llama3():
    p = theirs.pre_tokenizers
    split = p.Split(theirs.Regex(tokenizers._LLAMA3), "isolated")
    return byte_level(p.Sequence([split, p.ByteLevel(add_prefix_space=False, use_regex=False)]), True)


def digits():
    p = theirs.pre_tokenizers
    return byte_level(p.Sequence([p.Digits(individual_digits=True), p.ByteLevel(add_prefix_space=False)]))


KINDS = {
    "ours": ours, "gpt2": lambda: byte_level(theirs.pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "digits": digits, "llama3": llama3, "meta": sentencepiece, "one space": lambda: sentencepiece(True),
}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    """Their tokenizer, and ours from its file, saved and read again."""
    folder, their = tmp_path_factory.mktemp("both"), KINDS[request.param]()
    their.save(str(folder / "tokenizer.json"))
    end = their.token_to_id(END_OF_TEXT) if request.param == "ours" else None
    found = tokenizers.read(folder / "tokenizer.json", end, end)
    found.save(folder / "saved.json")
    again = other_tokenizers.load(folder / "saved.json")
    assert again.__reduce__() == found.__reduce__()
    assert (type(again) is Tokenizer) == (request.param == "ours") and getattr(again, "cut", "ours") == request.param
    their.encode_special_tokens = True  # the names of special tokens are text
    return their, again


@settings(max_examples=150)
@given(text=HOSTILE)
def test_ids_and_texts_are_theirs(both, text):
    their, our = both
    ids = our.encode(text).tolist()
    assert ids == their.encode(text, add_special_tokens=False).ids
    assert our.decode(ids) == their.decode(ids, skip_special_tokens=False)
    if "▁" not in text and getattr(our, "cut", "") != "one space":
        assert our.decode(ids) == text


def test_real_text_and_a_second_round(both, tmp_path):
    their, our = both
    assert our.encode(TEXT).tolist() == their.encode(TEXT, add_special_tokens=False).ids
    assert our.decode_bytes(our.encode(TEXT)) == TEXT.encode() or getattr(our, "cut", "") == "one space"
    (tmp_path / "again.json").write_text(json.dumps(tokenizers.to_json(our)), "utf-8")
    again = tokenizers.read(tmp_path / "again.json", our.begin, our.end)
    assert again.__reduce__() == our.__reduce__()
    name, id = next(iter(our.special_tokens.items()))
    assert id in our.encode(f"a{name}b", allowed_special="all") and id not in our.encode(f"a{name}b")
    assert our.token_lengths[id] == 0 and our.token_bytes[id] == name.encode()
    assert "half a surrogate pair" in error_of(our.encode, "a\ud800")


def test_damaged_vocabularies_of_pieces_are_refused(tmp_path):
    sentencepiece().save(str(tmp_path / "tokenizer.json"))
    found, file = tokenizers.read(tmp_path / "tokenizer.json", 1, 2), tmp_path / "saved.json"
    assert (found.begin, found.end) == (1, 2) and found.dtype == np.uint16
    found.save(file)
    whole = json.loads(file.read_text("utf-8"))
    for number, value in ((0, 3), (0, ["a"]), (0, whole["arguments"][0][:5]), (1, [[1, 2]]), (1, [[0, 1, -1, 0]]),
                          (2, {"<s>": 10**6}), (2, 3), (3, list(range(256))), (4, "other"), (5, "1")):  # fmt: skip
        spoilt = whole["arguments"].copy()
        spoilt[number] = value
        file.write_text(json.dumps(whole | {"arguments": spoilt}))
        assert str(file) in error_of(other_tokenizers.load, file)
    assert "only to a vocabulary of this library" in error_of(lambda: found.byte_order)
    assert "use encode(text)" in error_of(found.encode_file, file)
