"""Work plan of the embedding's backward pass (kernels/embedding.cu): which block adds which rows of the gradient.

The kernel reads one row for each position and writes one row for each token. The plan splits this work into shares, one
per block. The row of a frequent token is split by columns into several shares, and rare tokens are put together in one;
so no share is much longer than the others, unless a token fills more than a tenth of all positions. A single block sums
each number of the gradient, so no block waits for another, and the order of the additions is the same in each run.
"""

import numpy as np

# Tuned on an H100, for batches of 64 and of 16 texts of the preset `base`.
PIECE = 10  # rows per piece: the rare tokens whose rows begin in the same piece form one share
OFTEN = 28  # a token at more than so many positions is frequent
LONGEST = 215  # a share of a frequent token reads at most 1/215 of all rows, as far as COLUMNS allows
COLUMNS = 32  # fewest columns of such a share: one cache line, 128 bytes; wider shares take an even number of lines
ROOM = 24  # a launch has room for one share per 24 rows, and for 2 LONGEST more


def sort(tokens: np.ndarray, vocab: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sort the positions of tokens [...], N in all, by token.

    Returns order [N], the positions sorted by token; the tokens at these positions [N]; and start [vocab + 1], the
    index in `order` where the positions of each token begin.
    """
    if vocab <= 1 << 16:
        tokens = tokens.astype(np.uint16)  # NumPy uses radix sort for 16 bits, in a fifth of the time
    tokens = tokens.reshape(-1)
    order = np.argsort(tokens, kind="stable")
    return order, tokens[order], np.concatenate([[0], np.cumsum(np.bincount(tokens, minlength=vocab))])


def most_shares(N: int, vocab: int) -> int:
    """Return how many shares a launch for N positions has room for.

    It does not depend on the text, so that a CUDA graph can be reused, and is small because empty shares take time.
    """
    return (N + vocab) // ROOM + 2 * LONGEST + 2


def shares(start: np.ndarray, D: int) -> np.ndarray:
    """Return the table of shares, [most_shares, 6] int32. start: from `sort`; D: columns of a token's row.

    A row of the table is (from, to, token, end, left, columns): a share adds the gradients at the places from:to of the
    sorted list, for the tokens token:end. For a part of a frequent token, `left` is its first column and `columns`
    their number; columns = 0 means all columns. The rows after the last share are zeros, which means no work.

    If there are too many shares, as for many tokens that are only just frequent, PIECE and OFTEN are increased. That
    ends: R rows and H frequent tokens make at most R / PIECE + 3 H + 2 LONGEST + 2 shares, and H is below R / OFTEN, so
    five times these constants suffice.
    """
    room, times = most_shares(int(start[-1]), len(start) - 1), 1
    while len(table := _shares(start, D, int(times * PIECE), int(times * OFTEN))) > room:
        times *= 1.25
    return np.pad(table, [(0, room - len(table)), (0, 0)]).astype(np.int32)


def _shares(start, D, piece, often):
    """Return the shares, largest first relative to the usual size of their kind, so that no long one is left over."""
    counts, rows = np.diff(start), start[-1] + len(start) - 1
    frequent = counts > often
    before = start[:-1] + np.arange(len(counts))  # rows of all earlier tokens
    new_piece = before[1:] // piece != before[:-1] // piece
    first = np.flatnonzero(np.append(True, frequent[1:] | frequent[:-1] | new_piece))
    end = np.append(first[1:], len(counts))
    fit = D * rows // (LONGEST * counts[first].clip(1))  # most columns of a share that is not too long
    unit = np.where(fit < 2 * COLUMNS, COLUMNS, 2 * COLUMNS)
    parts = np.where(frequent[first], -(-D // ((fit // unit).clip(1) * unit)), 1)
    widths = np.where(frequent[first], -(-D // (parts * unit)) * unit, D)  # as equal as whole units allow
    table = np.stack([start[first], start[end], first, end, widths], axis=1).repeat(parts, axis=0)
    left = table[:, 4] * (np.arange(len(table)) - np.repeat(np.cumsum(parts) - parts, parts))
    columns, cut = np.minimum(table[:, 4], D - left), frequent[table[:, 2]]
    size = (table[:, 1] - table[:, 0] + table[:, 3] - table[:, 2]) * columns
    size = size / np.where(cut, rows / LONGEST, 2 * piece)
    return np.column_stack([table[:, :4], left, columns * cut])[np.argsort(-size, kind="stable")]
