"""Test twins: they differ in only one name, and their distributions are those of the source."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest

import konigsberg
from nanoeuler_book import town
from nanoeuler_book.interpretability.twins import FACT, PERSON, Batch, Law, batch_of, bits, names_of, pairs
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training.checkpoint import load_pretrained

TOKENIZER = load_pretrained()[1]
PAIRS = {told: pairs(8, 5, told, TOKENIZER) for told in (1, 2)}


@pytest.mark.parametrize("told", [1, 2])
def test_a_twin_differs_in_one_token_that_is_a_name(told):
    groups = names_of(TOKENIZER)
    assert {len(names) for names in groups.values()} == {4}
    for pair in PAIRS[told]:
        ids, other = (TOKENIZER.encode(text) for text in (pair.story, pair.twin))
        assert np.flatnonzero(ids != other).tolist() == [pair.place - 1] and pair.cut == len(ids)
        names = [TOKENIZER.decode([row[pair.place - 1]]) for row in (ids, other)]
        assert names == [f" {pair.was}", f" {pair.becomes}"]
        assert any({pair.was, pair.becomes} <= set(names) for names in groups.values())
        whole = konigsberg.parse(pair.twin + pair.drawn(PERSON, Random(1)))
        roles = [role for role, who in whole.facts.items() if who == pair.becomes]
        assert pair.was not in pair.twin and roles and "".join(whole.steps[:told]) == pair.twin
        assert ("a" in roles) == (told == 1)


def test_the_persons_law_is_the_source_behind_the_twin():
    for pair in PAIRS[1]:
        told = pair.drawn(PERSON, Random(2))
        law = pair.law(PERSON, told, TOKENIZER)
        ids, rows = town.next_tokens(pair.twin + told, TOKENIZER)
        assert len(law) == len(rows) - pair.cut and law == rows[pair.cut :]
        before = sum(-np.log2(row[token]) for token, row in zip(ids[: pair.cut], rows))
        behind = sum(-np.log2(row[token]) for token, row in zip(ids[pair.cut :], law))
        assert before + behind == pytest.approx(konigsberg.code_length(pair.twin + told))


def test_both_laws_are_one_where_the_holder_has_no_other_role():
    for pair in PAIRS[2]:
        told = pair.drawn(PERSON, Random(6))
        assert pair.law(PERSON, told, TOKENIZER) == pair.law(FACT, told, TOKENIZER)
    pair = PAIRS[1][0]
    told = pair.drawn(FACT, Random(6))
    assert pair.was in told  # this person is asked, blamed or owed later in the story
    with pytest.raises(konigsberg.KonigsbergError):
        pair.law(PERSON, told, TOKENIZER)


def test_the_law_itself_scores_nothing_and_an_even_guess_what_it_should():
    batch = batch_of(PAIRS[1], FACT, TOKENIZER, seed=7)
    B, T = batch.story.shape
    row, place, token, p = batch.law
    log_p = np.full((B, T, 512), -30.0)
    log_p[row, place, token] = np.log(p)
    assert np.allclose(bits(log_p, batch), 0, atol=1e-12)
    count = np.bincount(row, minlength=B)
    entropy = np.bincount(row, -p * np.log2(p), B)
    places = [len(set(place[row == i])) for i in range(B)]
    assert count.min() > 50 and np.allclose(np.bincount(row, p, B), places)
    assert np.allclose(bits(np.full((B, T, 512), -np.log(512)), batch), 9 - entropy / places)
    told = [TOKENIZER.decode(x[1 : end + 1]) for x, end in zip(batch.story, batch.end)]
    assert all(text.startswith(pair.story) for text, pair in zip(told, PAIRS[1], strict=True))
    assert all(a < b <= c for a, b, c in zip(batch.place, batch.cut, batch.end))
    assert [list(np.flatnonzero(b)) for b in batch.behind] == [sorted(set(place[row == i])) for i in range(B)]
    small = Batch(
        *batch[:2], np.zeros(1), np.array([1]), np.array([2]), Law(*map(np.array, ([0, 0], [1, 1], [3, 4], [0.5, 0.5])))
    )
    assert bits(np.log(np.full((1, 3, 8), 0.25)), small) == pytest.approx(0.5)  # 1 bit at one of two places


def test_bad_input_is_met_with_one_line():
    with pytest.raises(NanoEulerError, match="told must be 1 or 2, the number of steps in the prompts, got 3"):
        pairs(1, 0, 3, TOKENIZER)
    with pytest.raises(NanoEulerError, match="must have two names of one pronoun"):
        pairs(1, 0, 1, Tokenizer.train("ab" * 50, 257))
    with pytest.raises(NanoEulerError, match=r"longest must leave room for a continuation of .*, got 25 tokens"):
        batch_of(PAIRS[1], PERSON, TOKENIZER, 0, longest=25)
    assert all(a != b for a, b in pairwise(pairs(5, 1, 1, TOKENIZER)))
