"""Return the residual stream of a model that reads stories, at every depth and position. Chapter 18."""

from collections.abc import Sequence

import numpy as np

from nanoeuler_lib import ops
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer


@ops.again()
def residuals(model: GPT, ids: np.ndarray) -> np.ndarray:
    """Return a copy of a model's residual stream for tokens [T] or [B, T]: [L+1, T, D] or [L+1, B, T, D].

    Entry 0 is the embedding, entry l is the output of block l, and entry L is the input of the last norm. The dtype is
    the model's dtype. Raises NanoEulerError for tokens that the model cannot read.
    """
    ids = np.asarray(ids)
    tokens = model._check(ids[None] if ids.ndim == 1 else ids)
    plan = model.plan(*tokens.shape)
    model.forward(plan, tokens)
    stream = np.stack([*(layer.x1 for layer in plan.layers), plan.x_final])
    return stream.reshape(len(stream), *ids.shape, model.config.dim)


def row_of(text: str, tokenizer: Tokenizer) -> np.ndarray:
    """Return an end-of-text token followed by a story's tokens, int64 [T+1]; position i follows i story tokens."""
    return np.append(tokenizer.special_tokens[END_OF_TEXT], tokenizer.encode(text)).astype(np.int64)


def streams(model: GPT, rows: Sequence[np.ndarray], at_once: int = 32) -> list[np.ndarray]:
    """Return the residual streams of rows of tokens (`row_of`), one array [L+1, T, D] per row of T tokens.

    at_once: rows per batch. Shorter rows are padded at the end, which does not affect a causal model. Raises
    NanoEulerError if a row is longer than the context.
    """
    time = max(map(len, rows), default=0)
    if time > model.config.context:
        raise NanoEulerError(f"a row must have at most {model.config.context} tokens, the context, got {time}")
    found = []
    for start in range(0, len(rows), at_once):
        part = rows[start : start + at_once]
        tokens = np.zeros((len(part), time), np.int64)
        for i, row in enumerate(part):
            tokens[i, : len(row)] = row
        stream = residuals(model, tokens)
        found += [stream[:, i, : len(row)].copy() for i, row in enumerate(part)]
    return found
