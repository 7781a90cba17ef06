"""Decoding on a CPU: run the model token by token with a key/value cache. `generation.generate` samples from it."""

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
    """The attributes of a model that a decoder reads."""

    config: ModelConfig
    params: Parameters

    @property
    def dtype(self) -> np.dtype: ...


class Decoder:
    """Run the model on one sequence, a few tokens at a time, with a key/value cache.

    The keys and values of earlier tokens are kept, so one more token costs one position. `Decoder(model).feed(tokens)`
    gives the same logits as `model.logits(tokens[None])[0, -1]`. `length`: number of tokens read; set it to a smaller n
    to forget all but the first n. Buffers and views are created once, here, because in a step for one token NumPy's
    allocations would cost as much as the arithmetic. The gains of RMSNorm are multiplied into copies of the weights
    after them, so make a new decoder when the model's weights have changed. Chapter 14.
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
        # residual stream after each token of the last `read`, normed, without the gain: [T, D]
        self.stream = np.empty((0, c.dim), dtype)
        self.x, self.y, self.update = np.empty((3, c.dim), dtype)
        self.qkv, self.gate_up = np.empty(c.qkv_dim, dtype), np.empty(2 * c.ffn, dtype)
        self.gate, self.up, self.hidden = *self.gate_up.reshape(2, c.ffn), np.empty(c.ffn, dtype)
        self.pairs = self.qkv[: (H + G) * C].view(rope.turn.dtype)
        self.q, self.kv = self.qkv[: H * C].reshape(G, H // G, C), self.qkv[H * C :].reshape(2 * G, C)
        self.attended = np.empty((G, H // G, C), dtype)

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens [T] and return the logits [V] of head 0 for the next token. Raises what `check_room` raises."""
        return self.logits(self.read(tokens)[-1])

    def feed_all(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens [T] and return the logits [T, V] of head 0 after each of them. Raises what `feed` raises."""
        self.read(tokens)
        return self.stream @ self.heads

    def read(self, tokens: np.ndarray) -> range:
        """Append tokens [T] and return their places, 0 to T-1, as arguments for `logits` and `later_logits`.

        The next `read` or `feed` makes these places invalid. Raises what `feed` raises.
        """
        check_room(self.config, self.length, tokens)
        self.stream = self._one(tokens[0])[None] if len(tokens) == 1 else self._many(tokens)
        return range(len(tokens))

    def logits(self, place: int) -> np.ndarray:
        """Return the logits [V] of head 0 after the token at `place`, an index into the last `read`."""
        return self.stream[place] @ self.heads

    def later_logits(self, place: int) -> np.ndarray:
        """Return the logits [K-1, V] of heads 1 to K-1 after the token at `place`, an index into the last `read`."""
        return ((self.stream[place] * self.gain) @ self.later).reshape(-1, self.config.vocab_size)

    def _one(self, token):
        """Append one token and return the normed residual stream after it, [D]."""
        c, x, y, update, hidden, attended = self.config, self.x, self.y, self.update, self.hidden, self.attended
        position, end = self.length, self.length + 1
        x[...] = self.embed[token]
        turn = self.turn[position]
        with np.errstate(over="ignore"):  # if exp overflows, the sigmoid is 0
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
        """Append tokens [T] and return the normed residual stream after each of them, [T, D]."""
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
        """RMSNorm without its gain, which is part of the weights."""
        return x / np.sqrt(np.vecdot(x, x)[:, None] / self.config.dim + self.config.norm_eps)


def check_room(config: ModelConfig, length: int, tokens: Sequence[int] | np.ndarray) -> None:
    """Raise NanoEulerError for no tokens, too many after `length` others for the context, or ids outside [0, V)."""
    room, T = config.context - length, len(tokens)
    if not 1 <= T <= room:
        used = f"{length} of {config.context} positions are used"
        raise NanoEulerError(f"the number of tokens must be 1 to {room} ({used}), got {T}")
    if not 0 <= min(tokens) <= max(tokens) < config.vocab_size:
        raise NanoEulerError(f"tokens must be in 0..{config.vocab_size - 1}, got {min(tokens)}..{max(tokens)}")
