"""Which block adds what in the embedding's backward pass (kernels/embedding.cu), planned where tokens are sorted.

The row of a token that stands at many places is cut into columns, so that no block has many more numbers to add than
another; rarer tokens go together, as long as their rows begin in one piece. Every sum belongs to one block: none waits
for another, and its order is the same in each run.
"""

import numpy as np

# The best of 450 combinations on an H100 (benchmarks/cuda_bandwidth.py); near them little changes.
PIECE = 10  # rows moved, read and written: rare tokens whose rows begin in one piece are a share
OFTEN = 28  # a token at more places has shares of its own
LONGEST = 215  # such a share is a 215th of all rows at most, as far as COLUMNS allow
COLUMNS = 32  # of a share, or a multiple of twice as many: 128 bytes, a line of the cache
ROOM = 24  # rows to a share, in a launch; beside 2 LONGEST shares of frequent tokens


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

    A row has the places [from, to) of the sorted list, the tokens [token, end), and of one token's row the columns from
    `left` on and how many they are; 0 for all columns of several tokens. Behind the last share rows are 0: without a
    place and a token.

    Where there is no room, as for many tokens that stand just often, pieces grow. That ends: R rows with H frequent
    tokens make at most R / PIECE + 3 H + 2 shares and 2 LONGEST more, and H is below R / OFTEN.
    """
    room, times = most_shares(int(start[-1]), len(start) - 1), 1
    while len(table := _shares(start, D, int(times * PIECE), int(times * OFTEN))) > room:
        times *= 1.25
    return np.pad(table, [(0, room - len(table)), (0, 0)]).astype(np.int32)


def _shares(start, D, most, often):
    """Of one piece and one bound for frequent tokens. First stand the shares that are large for their kind, so that no
    long one is left over at the end and both kinds are always under way.
    """
    counts, rows = np.diff(start), start[-1] + len(start) - 1  # read at each place, written for each token
    alone, piece = counts > often, (start[:-1] + np.arange(len(counts))) // most
    first = np.flatnonzero(np.append(True, alone[1:] | alone[:-1] | (piece[1:] != piece[:-1])))
    end = np.append(first[1:], len(counts))
    fit = D * rows // (LONGEST * counts[first].clip(1))  # columns of a share that is not too long
    unit = np.where(fit < 2 * COLUMNS, COLUMNS, 2 * COLUMNS)
    parts = -(-D // ((fit // unit).clip(1) * unit))
    columns = np.where(alone[first], -(-D // (parts * unit)) * unit, D)  # as even as units allow
    parts = -(-D // columns)
    table = np.stack([start[first], start[end], first, end, columns], axis=1).repeat(parts, axis=0)
    left = table[:, 4] * (np.arange(len(table)) - np.repeat(np.cumsum(parts) - parts, parts))
    columns, cut = np.minimum(table[:, 4], D - left), alone[table[:, 2]]
    size = (table[:, 1] - table[:, 0] + table[:, 3] - table[:, 2]) * columns
    size = size / np.where(cut, rows / LONGEST, 2 * most)
    return np.column_stack([table[:, :4], left, columns * cut])[np.argsort(-size, kind="stable")]
