"""Shares of the embedding's backward pass: every token's row belongs to one, and no block has too much to keep."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from nanoeuler_lib import cuda
from nanoeuler_lib.ops import embedding


def texts():
    """Tokens of many sizes and frequencies: one alone, one at most places, many that never occur."""
    rng = np.random.default_rng(0)
    for turn in range(300):
        N, vocab, steep = int(rng.integers(1, 6000)), int(rng.integers(1, 700)), int(rng.integers(0, 12))
        occurs = rng.permutation(vocab)[: rng.integers(1, vocab + 1)]
        share = rng.random(len(occurs)) ** steep
        yield rng.choice(occurs, N, p=share / share.sum()), vocab, int(rng.integers(1, 300)), turn
    yield np.arange(embedding.OFTEN + 1).repeat(embedding.OFTEN + 1), embedding.OFTEN + 2, 768, 300


def test_every_row_is_written_once_and_every_place_added_once():
    for tokens, vocab, D, turn in texts():
        order, start = embedding.sort(tokens, vocab)
        assert np.array_equal(order, np.argsort(tokens, kind="stable"))
        shares = embedding.shares(start, D)
        rows, places = Counter(), Counter()
        assert shares.dtype == np.int32 and shares.shape == (embedding.most_shares(len(tokens), vocab), 6)
        for begin, end, token, last, part, parts in shares.tolist():
            assert 0 <= part < max(parts, 1) and (begin, end) == (start[token], start[last])
            if parts:
                assert last == token + 1 and -(-D // parts) >= min(D, embedding.COLUMNS)
            else:
                assert last - token <= embedding.TOKENS and end - begin <= embedding.PIECE + embedding.OFTEN
            for v in range(token, last):
                rows[v] += Fraction(1, max(parts, 1))
            for place in range(begin, end):
                places[place] += Fraction(1, max(parts, 1))
        assert rows == Counter(range(vocab)), turn
        assert places == Counter(range(len(tokens))), turn


def test_the_kernel_keeps_as_many_places():
    text = (cuda.KERNELS / "embedding.cu").read_text()
    assert f"#define MOST {embedding.PIECE + embedding.OFTEN} " in text


@pytest.mark.parametrize("vocab", [1 << 16, (1 << 16) + 1])
def test_tokens_are_sorted_whatever_their_width(vocab):
    tokens = np.array([[vocab - 1, 3], [3, 0]])
    order, start = embedding.sort(tokens, vocab)
    assert order.tolist() == [3, 1, 2, 0] and start[[0, 1, 3, 4, -2, -1]].tolist() == [0, 1, 1, 3, 3, 4]


def test_frequent_tokens_come_first_and_none_waits_for_one_block():
    """A tenth of all places, as the most frequent token of a text has: no share has a tenth of the work."""
    tokens = np.concatenate([np.zeros(3277, int), np.random.default_rng(0).integers(1, 4096, 29491)])
    shares = embedding.shares(embedding.sort(tokens, 4096)[1], 768)
    work = (shares[:, 1] - shares[:, 0]) / np.maximum(shares[:, 5], 1)
    assert (
        (np.diff(work) <= 0).all()
        and work[0] <= 2 * embedding.OFTEN
        and shares[0, 5] == 768 // embedding.COLUMNS
    )
    place = shares[:, 2] * 100 + shares[:, 4]  # of as large ones, that of the first token, its first part
    assert (np.diff(place[work > 0])[np.diff(work[work > 0]) == 0] > 0).all()


def test_how_many_shares_a_launch_has_room_for():
    """The launch is the same for all texts, so what it has too many of costs each of them."""
    pieces, often = 32768 // embedding.PIECE, 32768 // embedding.OFTEN
    assert embedding.most_shares(32768, 4096) == pieces + 3 * often + 4096 // embedding.TOKENS + 2
