"""The model one token after another: a key/value cache, on a CPU. `generate` samples from what it says."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Protocol

import numpy as np

from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model.parameters import Parameters
from nanoeuler_lib.model.plan import Rope
from nanoeuler_lib.ops import reference


class Weights(Protocol):
    """What a decoder reads of a model."""

    config: ModelConfig
    params: Parameters

    @property
    def dtype(self) -> np.dtype: ...


class Decoder:
    """The model one piece of text after another, for a single sequence.

    Keys and values of the tokens seen so far are kept, so feeding one more token costs one position, not all of them.
    `Decoder(model).feed(tokens)` gives the same logits as `model.logits(tokens[None])[0, -1]`. `length` is the number
    of tokens seen; setting it back to n forgets all but the first n.

    A step for one token does so little arithmetic that NumPy's calls and allocations would cost as much: every buffer
    and every view of it is made here, once, and the gains of RMSNorm are multiplied into the weights behind them. When
    the model's weights change, make a new decoder.
    """

    def __init__(self, model: Weights):
        c, p, dtype = model.config, model.params.host(), model.dtype
        H, G, C = c.heads, c.kv_heads, c.head_dim
        rope = Rope(c, c.context, dtype)  # q and k are paired and q divided by sqrt(C), as in `ops/cpu.py`
        self.config, self.turn, self.embed = c, rope.turn, p["embed"]
        self.layers = [
            SimpleNamespace(
                qkv=p[f"layers.{i}.norm1"][:, None] * p[f"layers.{i}.qkv"][:, rope.order],
                cache=np.empty((2 * G, c.context, C), dtype),  # keys, then values
                out=p[f"layers.{i}.out"],
                gate_up=p[f"layers.{i}.norm2"][:, None] * p[f"layers.{i}.gate_up"],
                down=p[f"layers.{i}.down"],
            )
            for i in range(c.layers)
        ]
        self.heads = p["norm_final"][:, None] * p["heads"][:, : c.vocab_size]
        self.gain, self.later = p["norm_final"], p["heads"][:, c.vocab_size :]
        self.length = 0
        # the residual stream behind each token that was read last, normed but for the gain: [T, D]
        self.stream = np.empty((0, c.dim), dtype)
        self.x, self.y, self.update = np.empty((3, c.dim), dtype)
        self.qkv, self.gate_up = np.empty(c.qkv_dim, dtype), np.empty(2 * c.ffn, dtype)
        self.gate, self.up, self.hidden = *self.gate_up.reshape(2, c.ffn), np.empty(c.ffn, dtype)
        self.pairs = self.qkv[: (H + G) * C].view(rope.turn.dtype)
        self.q, self.kv = self.qkv[: H * C].reshape(G, H // G, C), self.qkv[H * C :].reshape(2 * G, C)
        self.attended = np.empty((G, H // G, C), dtype)

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens [T] and return the logits [V] of head 0 for the token that comes next.

        Raises NanoEulerError when there is nothing to feed or the context is full.
        """
        return self.logits(self.read(tokens)[-1])

    def feed_all(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens [T] and return the logits [T, V] of head 0 behind each of them. Raises what `feed` does."""
        self.read(tokens)
        return self.stream @ self.heads

    def read(self, tokens: np.ndarray) -> range:
        """Append tokens [T] and return the place of each, 0 to T-1, for `logits` and `later_logits`.

        A place means a token among those read last: with the next call of `read` or `feed` it means another one.
        Raises what `feed` does.
        """
        check_room(self.config, self.length, tokens)
        self.stream = self._one(tokens[0])[None] if len(tokens) == 1 else self._many(tokens)
        return range(len(tokens))

    def logits(self, place: int) -> np.ndarray:
        """Logits [V] of head 0 behind the token at a place of those read last."""
        return self.stream[place] @ self.heads

    def later_logits(self, place: int) -> np.ndarray:
        """Logits [K-1, V] of heads 1 to K-1 behind the token at a place of those read last."""
        return ((self.stream[place] * self.gain) @ self.later).reshape(-1, self.config.vocab_size)

    def _one(self, token):
        """The residual stream behind one more token, normed: [D]."""
        c, x, y, update, hidden, attended = self.config, self.x, self.y, self.update, self.hidden, self.attended
        position, end = self.length, self.length + 1
        x[...] = self.embed[token]
        turn = self.turn[position]
        with np.errstate(over="ignore"):  # exp may reach infinity, its sigmoid is then 0
            for a in self.layers:
                np.multiply(x, 1 / math.sqrt(np.dot(x, x) / c.dim + c.norm_eps), out=y)
                np.dot(y, a.qkv, out=self.qkv)
                np.multiply(self.pairs, turn, out=self.pairs)
                a.cache[:, position] = self.kv
                keys, values = a.cache[: c.kv_heads, :end], a.cache[c.kv_heads :, :end]
                scores = np.matmul(self.q, keys.mT)  # [G, H/G, end]
                scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
                np.exp(scores, out=scores)
                np.matmul(scores, values, out=attended)
                attended /= np.add.reduce(scores, axis=-1, keepdims=True)
                np.dot(attended.reshape(-1), a.out, out=update)
                x += update
                np.multiply(x, 1 / math.sqrt(np.dot(x, x) / c.dim + c.norm_eps), out=y)
                np.dot(y, a.gate_up, out=self.gate_up)
                np.negative(self.gate, out=hidden)
                np.exp(hidden, out=hidden)
                hidden += 1
                np.divide(self.gate, hidden, out=hidden)
                hidden *= self.up
                np.dot(hidden, a.down, out=update)
                x += update
        self.length = end
        return x / math.sqrt(np.dot(x, x) / c.dim + c.norm_eps)

    def _many(self, tokens):
        """The residual stream behind each of several more tokens, normed: [T, D]. What `_one` does, in matrices."""
        c, start, T = self.config, self.length, len(tokens)
        H, G, C, end = c.heads, c.kv_heads, c.head_dim, start + T
        future = np.arange(end) > np.arange(start, end)[:, None]  # [T, end]
        x = self.embed[tokens]  # [T, D]
        for a in self.layers:
            qkv = self._normed(x) @ a.qkv
            qkv[:, : (H + G) * C].view(self.turn.dtype)[...] *= self.turn[start:end]
            heads = qkv.reshape(T, H + 2 * G, C).swapaxes(0, 1)  # [H+2G, T, C]
            a.cache[:, start:end] = heads[H:]
            keys, values = a.cache[:G, None, :end], a.cache[G:, None, :end]  # [G, 1, end, C]
            scores = np.where(future, -np.inf, heads[:H].reshape(G, H // G, T, C) @ keys.mT)
            probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
            probs /= probs.sum(axis=-1, keepdims=True)
            attended = (probs @ values).reshape(H, T, C).swapaxes(0, 1).reshape(T, H * C)
            x += attended @ a.out
            gate, up = np.split(self._normed(x) @ a.gate_up, 2, axis=-1)
            x += reference.swiglu_forward(gate, up)[0] @ a.down
        self.length = end
        return self._normed(x)

    def _normed(self, x):
        """RMSNorm but for its gain, which is in the weights."""
        return x / np.sqrt(np.vecdot(x, x)[:, None] / self.config.dim + self.config.norm_eps)


def check_room(config: ModelConfig, length: int, tokens: Sequence[int] | np.ndarray) -> None:
    """Raises NanoEulerError where tokens cannot follow `length` others: none, too many, or outside the vocabulary."""
    room, T = config.context - length, len(tokens)
    if not 1 <= T <= room:
        raise NanoEulerError(f"context is {config.context}, {length} used: got {T} tokens, expected 1 to {room}")
    if not 0 <= min(tokens) <= max(tokens) < config.vocab_size:
        raise NanoEulerError(f"tokens lie in {min(tokens)}..{max(tokens)}, expected 0..{config.vocab_size - 1}")
