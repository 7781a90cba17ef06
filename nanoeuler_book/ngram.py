"""Interpolated n-gram models, which predict a token from counts of what followed the last few tokens. Chapter 02."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Table:
    """The n-grams of one order n and their counts, grouped by context (the n - 1 tokens before).

    An n-gram's number is its index in `keys`; it is also its number as a context of order
    n + 1. keys: [grams], context * V + token, sorted; seen: [grams], counts; first:
    [contexts + 1], where each context's n-grams begin; total: [contexts], sum of `seen`;
    rest: [contexts], weight of the context that is one token shorter.
    """

    keys: np.ndarray
    seen: np.ndarray
    first: np.ndarray
    total: np.ndarray
    rest: np.ndarray

    @classmethod
    def of(cls, keys: np.ndarray, seen: np.ndarray, contexts: int, vocab_size: int) -> "Table":
        """Build a table in which `rest` is the number of different tokens seen (Witten-Bell)."""
        first = np.searchsorted(keys, np.arange(contexts + 1) * vocab_size)
        total = np.bincount(keys // vocab_size, seen, contexts)
        return cls(keys, seen, first, total, np.diff(first))


class Ngrams:
    """An n-gram model of orders 1 to `order`, interpolated with the uniform distribution.

    ids: the training text, [n] token ids below vocab_size; strength: factor on the weight of
    shorter contexts, chosen on held-out text. Source: Witten & Bell, "The Zero-Frequency
    Problem" (1991), method C. Chapter 02.
    """

    def __init__(self, ids: np.ndarray, vocab_size: int, order: int, strength: float = 1.0):
        self.vocab_size, self.strength, self.tables = vocab_size, strength, []
        ids, context, contexts = np.asarray(ids, np.int64), np.zeros(len(ids), np.int64), 1
        for n in range(order):
            grams, numbers, seen = np.unique(context * vocab_size + ids[n:], return_inverse=True, return_counts=True)
            self.tables.append(Table.of(grams, seen, contexts, vocab_size))
            context, contexts = numbers[:-1], len(grams)  # an n-gram is the context of the next token

    def contexts(self, tokens: np.ndarray) -> list[np.ndarray]:
        """Return, for n = 0, 1, ..., the number of the n-gram that ends at each token, [B, T].

        The number is -1 for an n-gram that is not in the training text.
        """
        numbers = [np.zeros(tokens.shape, np.int64)]
        for n, table in enumerate(self.tables):
            before = np.full(tokens.shape, -1 if n else 0)
            before[:, 1:] = numbers[-1][:, :-1]
            keys = before * self.vocab_size + tokens
            at = np.minimum(np.searchsorted(table.keys, keys), len(table.keys) - 1)
            # an unseen context, -1, gives a negative key, which is not in the table
            numbers.append(np.where(table.keys[at] == keys, at, -1))
        return numbers

    def probabilities(self, tokens: np.ndarray, order: int | None = None) -> np.ndarray:
        """Return P(next token) after each position of tokens [B, T] as [B, T, V].

        order: the largest order to use; None: all.
        """
        p = np.full((tokens.size, self.vocab_size), 1 / self.vocab_size)
        for table, context in zip(self.tables[:order], self.contexts(tokens)):
            context = context.reshape(-1)
            rows = np.flatnonzero((context >= 0) & (table.total[context] > 0))
            start, end = table.first[context[rows]], table.first[context[rows] + 1]
            rest = self.strength * table.rest[context[rows]]
            whole = table.total[context[rows]] + rest
            p[rows] *= (rest / whole)[:, None]
            row = np.repeat(np.arange(len(rows)), end - start)  # one entry per token seen next
            at = np.arange(len(row)) + np.repeat(end - np.cumsum(end - start), end - start)
            p[rows[row], table.keys[at] % self.vocab_size] += table.seen[at] / whole[row]
        return p.reshape(*tokens.shape, self.vocab_size)

    def probability(self, tokens: np.ndarray, targets: np.ndarray, order: int | None = None) -> np.ndarray:
        """Return P(target) after each position: tokens, targets [B, T] -> [B, T].

        Entries whose target is -1 are meaningless.
        """
        p = np.full(tokens.shape, 1 / self.vocab_size)
        for table, context in zip(self.tables[:order], self.contexts(tokens)):
            keys = context * self.vocab_size + targets
            at = np.minimum(np.searchsorted(table.keys, keys), len(table.keys) - 1)
            seen = np.where(table.keys[at] == keys, table.seen[at], 0)
            rest = self.strength * table.rest[context]
            known = (context >= 0) & (table.total[context] > 0)
            p = np.where(known, (seen + rest * p) / np.maximum(table.total[context] + rest, 1e-300), p)
        return p
