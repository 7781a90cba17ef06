"""Test the shares of the embedding's backward pass: each column of a row is in one share, and no share is long."""

from unittest.mock import patch

import numpy as np
import pytest

from nanoeuler_lib.engine import embedding

SHARES = 1 / np.arange(2, 4097)  # fractions of all places by Zipf's law: the second token, the third, ...


def texts():
    """Yield texts of many sizes and frequencies: a single token, a token at most places, tokens that never occur."""
    rng = np.random.default_rng(0)
    for turn in range(100):
        N, vocab, steep = int(rng.integers(1, 6000)), int(rng.integers(1, 700)), int(rng.integers(0, 12))
        occurs = rng.permutation(vocab)[: rng.integers(1, vocab + 1)]
        share = rng.random(len(occurs)) ** steep
        yield rng.choice(occurs, N, p=share / share.sum()), vocab, int(rng.integers(1, 300)), turn
    yield np.arange(embedding.OFTEN + 1).repeat(embedding.OFTEN + 1), embedding.OFTEN + 2, 768, 300
    many = np.arange(0, 4096, 2).repeat(embedding.OFTEN + 1)  # too many shares, unless the pieces grow
    yield many, 4096, 8, 301


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


def test_no_share_is_long():
    """Check that no share has a tenth of the work if one token, as in a text, has a tenth of all places."""
    rare = np.random.default_rng(0).choice(np.arange(1, 4096), 29491, p=SHARES / SHARES.sum())
    tokens = np.concatenate([np.zeros(3277, int), rare])
    shares = embedding.shares(embedding.sort(tokens, 4096)[2], 768)
    places, zeros, cut = shares[:, 1] - shares[:, 0], shares[:, 3] - shares[:, 2], shares[:, 5] > 0
    moved = (places + zeros) * np.where(cut, shares[:, 5], 768) / 768
    longest = moved.sum() / embedding.LONGEST
    assert moved[~cut].max() <= embedding.PIECE + embedding.OFTEN
    assert moved[cut & (shares[:, 5] > embedding.COLUMNS)].max() <= longest + 1  # 1 for the row that a share writes
    size = moved / np.where(cut, longest, 2 * embedding.PIECE)
    assert (np.diff(size) < 1e-9).all(), "large shares of both kinds must come first"


def test_pieces_grow_until_there_is_room_and_no_further():
    """Use equally frequent tokens: pieces of 8 + 1 rows, more than twice as many as there is room for."""
    start = embedding.sort(np.arange(4096).repeat(8), 4096)[2]
    shares, room = embedding.shares(start, 8), embedding.most_shares(32768, 4096)
    assert room / 1.25 < (shares[:, 3] > 0).sum() <= room < len(embedding._shares(start, 8, 15, 43))
    table = embedding._shares(start, 8, embedding.PIECE, embedding.OFTEN)
    with patch.object(embedding, "most_shares", return_value=len(table)):
        assert (embedding.shares(start, 8) == table).all()
