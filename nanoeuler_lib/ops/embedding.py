"""Which block adds what in the embedding's backward pass (kernels/embedding.cu), planned where tokens are sorted.

The row of a token that stands at many places is cut into columns, so that no block has many more numbers to add than
another; rarer tokens go together, as long as their places begin in one piece of the sorted list. Every sum belongs to
one block: none waits for another, and its order is the same in each run.
"""

import numpy as np

PIECE = 32  # places of the sorted list: the tokens that begin in one of these pieces are a share
OFTEN = 48  # a token at more places has shares of its own
TOKENS = 64  # of a share at most: those that do not occur get zeros
COLUMNS = 16  # of a share, and multiples: 64 bytes, which memory gives at once


def sort(tokens: np.ndarray, vocab: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """order [N], the positions of tokens [...] sorted by token, the tokens there [N], and start [vocab + 1], where each
    token's begin."""
    if vocab <= 1 << 16:
        tokens = tokens.astype(np.uint16)  # NumPy sorts 16 bits by their digits, in a fifth of the time
    tokens = tokens.reshape(-1)
    order = np.argsort(tokens, kind="stable")
    return order, tokens[order], np.concatenate([[0], np.cumsum(np.bincount(tokens, minlength=vocab))])


def most_shares(N: int, vocab: int) -> int:
    """How many shares N positions have at most, whatever the tokens.

    H tokens stand often, at n of the places. They have at most n / OFTEN + H shares. The others begin a share in each
    piece, in each run of them (H + 1), in another piece within a run (H + 1 more), and at every TOKENS-th token.
    """
    return -(-N // PIECE) + 3 * (N // OFTEN) + -(-vocab // TOKENS) + 2


def shares(start: np.ndarray, D: int) -> np.ndarray:
    """Who adds what: [most_shares, 6], int32, the largest first. `start` as of `sort`; D: columns of a token's row.

    A row has the places [from, to) of the sorted list, the tokens [token, end), and of one token's row the columns from
    `left` on and how many they are; 0 for all columns of several tokens. Behind the last share rows are 0: without a
    place and a token.
    """
    counts, vocab = np.diff(start), len(start) - 1
    often, piece = counts > OFTEN, start[:-1] // PIECE
    new = often | (np.arange(vocab) % TOKENS == 0)
    new[1:] |= often[:-1] | (piece[1:] != piece[:-1])
    first = np.flatnonzero(new)
    end = np.append(first[1:], vocab)
    parts = np.minimum(-(-counts[first] // OFTEN), D // COLUMNS).clip(1)
    columns = np.where(often[first], np.minimum(D, -(-D // (parts * COLUMNS)) * COLUMNS), D)
    parts = -(-D // columns)  # shares of each row below
    rows = np.stack([start[first], start[end], first, end, columns], axis=1).repeat(parts, axis=0)
    left = rows[:, 4] * (np.arange(len(rows)) - np.repeat(np.cumsum(parts) - parts, parts))
    columns = np.minimum(rows[:, 4], D - left)
    size = (rows[:, 1] - rows[:, 0]) * columns
    columns *= often[rows[:, 2]]
    rows = np.column_stack([rows[:, :4], left, columns])[np.argsort(-size, kind="stable")]
    return np.pad(rows, [(0, most_shares(int(start[-1]), vocab) - len(rows)), (0, 0)]).astype(np.int32)
