"""The grammar's engine on sources small enough to list: what it writes, what it reads back, what each byte costs."""

import re
from collections import Counter
from math import log2
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from all_texts import every

from konigsberg import grammar
from nanoeuler_book.town import TokenReader
from nanoeuler_lib.text.tokenizer import Tokenizer

NAMES = [grammar.Word({"": name, "he": he}, weight=w) for name, he, w in (("Anna", "she", 1.0), ("Anton", "he", 3.0))]
PHRASES = {"how": ("sang", "sat", "sank")}


def play(tale):
    """A source small enough to list: its texts share beginnings, and a later slot depends on an earlier one."""
    tale.say(("{a} saw {b}.", "{a} and {b} met.", "an ant saw {a} {how}."), a=NAMES, b=NAMES)
    tale.say(("{a.he} ran.", "{a} ran.", "then {a.he} {how}."))


@pytest.fixture(scope="module")
def texts():
    """All texts of the toy with their probabilities."""
    found = {}
    for p, text, _ in every(play, PHRASES):
        assert text not in found
        found[text] = p
    assert len(found) > 30 and sum(found.values()) == pytest.approx(1)
    for name, share in ((b"Anna", 1 / 4), (b"Anton", 3 / 4)):  # words are drawn in proportion to their weight
        first = sum(p for text, p in found.items() if text.startswith(name))
        assert first == pytest.approx(2 / 3 * share)
    return found


def test_byte_costs_are_conditional_probabilities(texts):
    for text, p in texts.items():
        source = grammar.Reader(text)
        play(grammar.Tale(source, PHRASES))
        for i, bits in enumerate(source.bits):
            before = sum(q for other, q in texts.items() if other[:i] == text[:i])
            after = sum(q for other, q in texts.items() if other[: i + 1] == text[: i + 1])
            assert bits == pytest.approx(log2(before / after), abs=1e-12)
        assert sum(source.bits) == pytest.approx(-log2(p))


@pytest.mark.parametrize("vocab_size", [257, 262, 270, 300])
def test_next_tokens_are_those_of_all_texts(vocab_size, texts):
    """Every text of the source is written in tokens, and those that begin alike are counted by their probability."""
    tokenizer = Tokenizer.train(b" ".join(texts).decode(), vocab_size)
    spelt = {text: tokenizer.encode(text.decode()).tolist() for text in texts}
    for text, ids in spelt.items():
        source = TokenReader(text.decode(), tokenizer)
        play(grammar.Tale(source, PHRASES))
        assert source.ids == ids and len(source.next) == len(ids)
        for i, found in enumerate(source.next):
            expected = Counter()
            for other, p in texts.items():
                if spelt[other][:i] == ids[:i]:
                    expected[spelt[other][i]] += p
            assert found == pytest.approx({token: p / expected.total() for token, p in expected.items()})


def test_a_fact_is_as_old_as_its_last_telling():
    people = [grammar.Word({"": name, "he": he}) for name, he in (("Anna", "she"), ("Bert", "he"), ("Cora", "she"))]
    source = grammar.Reader(b"Anna came. It rained. Anna sat. She sat. She and Anna sat. Anna and Anna sat.")
    tale = grammar.Tale(source, {})
    tale.say(("{a} came.",), a=people)
    for template in ("it rained.", "{a} sat.", "{a.he} sat.", "{a.he} and {a} sat.", "{a} and {a} sat."):
        tale.say((template,))
    told = {at: step for at, step in enumerate(source.since) if step >= 0}
    text = source.text.decode()
    names = [match.start() for match in re.finditer("Anna", text)]
    pronouns = [match.start() for match in re.finditer("She", text)]
    assert [told.pop(at) for at in names[1:]] == [0, 2, 4, 5]  # the last one: told within the same step
    assert [told.pop(at) for at in pronouns] == [2, 2]  # "she" needs to know who, and does not tell
    assert not told


def test_the_writer_draws_what_the_reader_charges(texts):
    random, n = Random(1), 5_000
    seen = Counter()
    for _ in range(n):
        source = grammar.Writer(random)
        play(grammar.Tale(source, PHRASES))
        seen[bytes(source.text)] += 1
    for text, p in texts.items():
        assert abs(seen[text] - n * p) < 5 * np.sqrt(n * p)


@pytest.mark.parametrize(
    "templates",
    [("Murr sat.", "Murr sat. He purred."), ("Murr {how}.", "Murr sat."), ("Murr {how}.", "Murr {how}.")],
    ids=["one text begins another", "two ways to one text", "twice the same"],
)
def test_an_ambiguous_grammar_is_found(templates):
    with pytest.raises(grammar.KonigsbergError, match="ambiguous"):
        for text in (b"Murr sat.", b"Murr sat. He purred."):
            grammar.Tale(grammar.Reader(text), {"how": ("sat", "ran")}).say(templates)


@pytest.mark.parametrize("left, chosen", [(0.0, b"a"), (0.25, b"b"), (0.49, b"b"), (0.5, b"c"), (0.99, b"c")])
def test_shares_are_half_open_intervals(left, chosen):
    """A number on the border between two ways belongs to the second: `random` draws from [0, 1)."""
    source = grammar.Writer(SimpleNamespace(random=lambda: left))
    ways = [grammar.Branch(share, (text,)) for share, text in ((0.25, b"a"), (0.25, b"b"), (0.5, b"c"))]
    source.choose(ways, None)
    assert source.text == chosen
