"""The residual stream of a model that reads stories, at every depth and behind every token."""

from collections.abc import Sequence

import numpy as np

from nanoeuler_lib import ops
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer


@ops.again()
def residuals(model: GPT, ids: np.ndarray) -> np.ndarray:
    """Return the residual stream of a model for tokens [T] or [B, T]: [L+1, T, D] or [L+1, B, T, D], a copy.

    Entry 0 is the embedding, entry l what leaves block l, entry L what the last norm reads; the model's own dtype.
    Raises NanoEulerError for tokens that the model cannot read.
    """
    ids = np.asarray(ids)
    tokens = model._check(ids[None] if ids.ndim == 1 else ids)
    plan = model.plan(*tokens.shape)
    model.forward(plan, tokens)
    stream = np.stack([*(layer.x1 for layer in plan.layers), plan.x_final])
    return stream.reshape(len(stream), *ids.shape, model.config.dim)


def row_of(text: str, tokenizer: Tokenizer) -> np.ndarray:
    """Return the tokens of a story behind an end-of-text token, int64 [T+1]: place i has seen i tokens of the story."""
    return np.append(tokenizer.special_tokens[END_OF_TEXT], tokenizer.encode(text)).astype(np.int64)


def streams(model: GPT, rows: Sequence[np.ndarray], at_once: int = 32) -> list[np.ndarray]:
    """Return the residual stream of each of several rows, [L+1, T, D] with a T of its own (`row_of`).

    Shorter rows are filled up behind their end, which a causal model does not see. Raises NanoEulerError if a row is
    longer than the context.
    """
    time = max(map(len, rows), default=0)
    if time > model.config.context:
        raise NanoEulerError(f"a row has {time} tokens, expected at most {model.config.context}, the context")
    found = []
    for start in range(0, len(rows), at_once):
        part = rows[start : start + at_once]
        tokens = np.zeros((len(part), time), np.int64)
        for i, row in enumerate(part):
            tokens[i, : len(row)] = row
        stream = residuals(model, tokens)
        found += [stream[:, i, : len(row)].copy() for i, row in enumerate(part)]
    return found
