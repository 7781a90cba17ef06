"""Which block adds what in the embedding's backward pass (kernels/embedding.cu), planned where tokens are sorted.

Rows are moved: one is read for each position, one is written for each token. A frequent token has shares of its own,
each for some columns of its row, so that no share is much longer than the others, except for tokens at a tenth of all
positions or more. Rarer tokens go together. Every sum belongs to one block: none waits for another, and its order is
the same in each run.
"""

import numpy as np

# Chosen by trial on an H100, for batches of 64 and of 16 texts of `base`.
PIECE = 10  # rows: the rare tokens whose rows begin in the same piece are a share
OFTEN = 28  # positions: a token at more of them is frequent
LONGEST = 215  # a share of a frequent token reads a 215th of all rows at most, as far as COLUMNS allow
COLUMNS = 32  # of such a share at least, 128 bytes: a line of the cache; from two lines on, multiples of two
ROOM = 24  # a launch has room for a share for every 24 rows, and for 2 LONGEST more


def sort(tokens: np.ndarray, vocab: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """order [N], the positions of tokens [...] sorted by token, the tokens there [N], and start [vocab + 1], where each
    token's begin."""
    if vocab <= 1 << 16:
        tokens = tokens.astype(np.uint16)  # NumPy sorts 16 bits by their digits, in a fifth of the time
    tokens = tokens.reshape(-1)
    order = np.argsort(tokens, kind="stable")
    return order, tokens[order], np.concatenate([[0], np.cumsum(np.bincount(tokens, minlength=vocab))])


def most_shares(N: int, vocab: int) -> int:
    """How many shares a launch for N positions has room for. It is the same for all texts: empty ones cost time."""
    return (N + vocab) // ROOM + 2 * LONGEST + 2


def shares(start: np.ndarray, D: int) -> np.ndarray:
    """Who adds what: [most_shares, 6], int32. `start` as of `sort`; D: columns of a token's row.

    A row has the places [from, to) of the sorted list, the tokens [token, end), and which columns of a frequent token's
    row: the first, `left`, and how many; 0 means all columns of all these tokens. Behind the last share rows are 0:
    without a place and a token.

    Where there is no room, as for many tokens that are just frequent, PIECE and OFTEN grow. That ends: R rows and H
    frequent tokens make at most R / PIECE + 3 H + 2 LONGEST + 2 shares, and H is below R / OFTEN, so that five times
    these constants suffice.
    """
    room, times = most_shares(int(start[-1]), len(start) - 1), 1
    while len(table := _shares(start, D, int(times * PIECE), int(times * OFTEN))) > room:
        times *= 1.25
    return np.pad(table, [(0, room - len(table)), (0, 0)]).astype(np.int32)


def _shares(start, D, piece, often):
    """The shares, those first that are large for their kind (a rare one: against two pieces). So no long one is left
    over at the end, and both kinds are always under way.
    """
    counts, rows = np.diff(start), start[-1] + len(start) - 1
    frequent = counts > often
    before = start[:-1] + np.arange(len(counts))  # rows of the tokens before each
    new_piece = before[1:] // piece != before[:-1] // piece
    first = np.flatnonzero(np.append(True, frequent[1:] | frequent[:-1] | new_piece))
    end = np.append(first[1:], len(counts))
    fit = D * rows // (LONGEST * counts[first].clip(1))  # columns of a share that is not too long
    unit = np.where(fit < 2 * COLUMNS, COLUMNS, 2 * COLUMNS)
    parts = np.where(frequent[first], -(-D // ((fit // unit).clip(1) * unit)), 1)
    widths = np.where(frequent[first], -(-D // (parts * unit)) * unit, D)  # as even as units allow
    table = np.stack([start[first], start[end], first, end, widths], axis=1).repeat(parts, axis=0)
    left = table[:, 4] * (np.arange(len(table)) - np.repeat(np.cumsum(parts) - parts, parts))
    columns, cut = np.minimum(table[:, 4], D - left), frequent[table[:, 2]]
    size = (table[:, 1] - table[:, 0] + table[:, 3] - table[:, 2]) * columns
    size = size / np.where(cut, rows / LONGEST, 2 * piece)
    return np.column_stack([table[:, :4], left, columns * cut])[np.argsort(-size, kind="stable")]
