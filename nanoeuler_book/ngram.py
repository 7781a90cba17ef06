"""Interpolated n-gram models: predict a token from the counts of what followed the last few tokens before it."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Table:
    """The n-grams of one order. A context is known by its number; the number of a gram is its place in `keys`.

    keys: [grams] context * V + token, sorted; seen: [grams] how often; first: [contexts + 1] where the grams of each
    context begin; total: [contexts] sum of `seen`; rest: [contexts] weight of the context that is one token shorter.
    """

    keys: np.ndarray
    seen: np.ndarray
    first: np.ndarray
    total: np.ndarray
    rest: np.ndarray

    @classmethod
    def of(cls, keys: np.ndarray, seen: np.ndarray, contexts: int, vocab_size: int) -> "Table":
        """The table where a shorter context's weight is the number of different tokens seen (Witten-Bell)."""
        first = np.searchsorted(keys, np.arange(contexts + 1) * vocab_size)
        total = np.bincount(keys // vocab_size, seen, contexts)
        return cls(keys, seen, first, total, np.diff(first))


class Ngrams:
    """Every order from 1 to `order`, interpolated down to the uniform distribution over the vocabulary.

    ids: the training text, [n] token ids below vocab_size; strength: factor of the weight of shorter contexts, to be
    chosen on held-out text. Source: Witten & Bell, "The Zero-Frequency Problem" (1991), method C. Chapter 03.
    """

    def __init__(self, ids: np.ndarray, vocab_size: int, order: int, strength: float = 1.0):
        self.vocab_size, self.strength, self.tables = vocab_size, strength, []
        ids, context, contexts = np.asarray(ids, np.int64), np.zeros(len(ids), np.int64), 1
        for n in range(order):
            grams, numbers, seen = np.unique(context * vocab_size + ids[n:], return_inverse=True, return_counts=True)
            self.tables.append(Table.of(grams, seen, contexts, vocab_size))
            context, contexts = numbers[:-1], len(grams)  # a gram is a context of the token after it

    def contexts(self, tokens: np.ndarray) -> list[np.ndarray]:
        """For n = 0, 1, ... the number of the gram of the last n tokens, [B, T]; -1 where it was never seen."""
        numbers = [np.zeros(tokens.shape, np.int64)]
        for n, table in enumerate(self.tables):
            before = np.full(tokens.shape, -1 if n else 0)
            before[:, 1:] = numbers[-1][:, :-1]
            keys = before * self.vocab_size + tokens
            at = np.minimum(np.searchsorted(table.keys, keys), len(table.keys) - 1)
            # behind -1 keys are negative: found nowhere
            numbers.append(np.where(table.keys[at] == keys, at, -1))
        return numbers

    def probabilities(self, tokens: np.ndarray, order: int | None = None) -> np.ndarray:
        """P(next token) behind each position of tokens [B, T]: [B, T, V]. order: use no more than so many."""
        p = np.full((tokens.size, self.vocab_size), 1 / self.vocab_size)
        for table, context in zip(self.tables[:order], self.contexts(tokens)):
            context = context.reshape(-1)
            rows = np.flatnonzero((context >= 0) & (table.total[context] > 0))
            start, end = table.first[context[rows]], table.first[context[rows] + 1]
            rest = self.strength * table.rest[context[rows]]
            whole = table.total[context[rows]] + rest
            p[rows] *= (rest / whole)[:, None]
            row = np.repeat(np.arange(len(rows)), end - start)  # one entry for each token that followed
            at = np.arange(len(row)) + np.repeat(end - np.cumsum(end - start), end - start)
            p[rows[row], table.keys[at] % self.vocab_size] += table.seen[at] / whole[row]
        return p.reshape(*tokens.shape, self.vocab_size)

    def probability(self, tokens: np.ndarray, targets: np.ndarray, order: int | None = None) -> np.ndarray:
        """P(target) behind each position, for one target each: tokens, targets [B, T] -> [B, T].

        Where a target is -1, the number means nothing.
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
