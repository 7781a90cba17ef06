"""Shares of the embedding's backward pass: every token's row belongs to one, and no block has too much to keep."""

import numpy as np
import pytest

from nanoeuler_lib.ops import embedding

SHARES = 1 / np.arange(2, 4097)  # of all places, by Zipf: the second token's, the third's, ...


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
        order, there, start = embedding.sort(tokens, vocab)
        assert np.array_equal(order, np.argsort(tokens, kind="stable"))
        assert np.array_equal(there, tokens[order])
        shares = embedding.shares(start, D)
        written, added = np.zeros((vocab, D), np.uint8), np.zeros((len(tokens), D), np.uint8)
        assert shares.dtype == np.int32 and shares.shape == (embedding.most_shares(len(tokens), vocab), 6)
        for begin, end, token, last, left, columns in shares.tolist():
            assert (begin, end) == (start[token], start[last])
            if columns:
                assert last == token + 1 and left % embedding.COLUMNS == 0 and left + columns <= D
                assert columns % embedding.COLUMNS == 0 or left + columns == D
                assert columns == D or D >= 2 * embedding.COLUMNS
            else:
                assert last - token <= embedding.TOKENS and end - begin <= embedding.PIECE + embedding.OFTEN
            part = slice(left, left + columns if columns else D)
            written[token:last, part] += 1
            added[begin:end, part] += 1
        assert (written == 1).all() and (added == 1).all(), turn


@pytest.mark.parametrize("vocab", [1 << 16, (1 << 16) + 1])
def test_tokens_are_sorted_whatever_their_width(vocab):
    tokens = np.array([[vocab - 1, 3], [3, 0]])
    order, there, start = embedding.sort(tokens, vocab)
    assert order.tolist() == [3, 1, 2, 0] and there.tolist() == [0, 3, 3, vocab - 1]
    assert start[[0, 1, 3, 4, -2, -1]].tolist() == [0, 1, 1, 3, 3, 4]


def test_frequent_tokens_come_first_and_none_waits_for_one_block():
    """A tenth of all places, as the most frequent token of a text has: no share has a tenth of the work."""
    rare = np.random.default_rng(0).choice(np.arange(1, 4096), 29491, p=SHARES / SHARES.sum())
    tokens = np.concatenate([np.zeros(3277, int), rare])
    shares = embedding.shares(embedding.sort(tokens, 4096)[2], 768)
    work = (shares[:, 1] - shares[:, 0]) * np.where(shares[:, 5], shares[:, 5], 768) / 768
    assert (np.diff(work) <= 0).all() and work[0] <= 2 * embedding.OFTEN
    cut = shares[shares[:, 5] > 0]
    assert set(cut[cut[:, 2] == 0, 5]) == {embedding.COLUMNS} and min(cut[:, 5]) == embedding.COLUMNS
    place = shares[:, 2] * 1000 + shares[:, 4]  # of as large ones, that of the first token, its first part
    assert (np.diff(place[work > 0])[np.diff(work[work > 0]) == 0] > 0).all()


def test_how_many_shares_a_launch_has_room_for():
    """The launch is the same for all texts, so what it has too many of costs each of them."""
    pieces, often = 32768 // embedding.PIECE, 32768 // embedding.OFTEN
    assert embedding.most_shares(32768, 4096) == pieces + 3 * often + 4096 // embedding.TOKENS + 2
