"""Continuing a text on a GPU: a few launches of own kernels for each token."""

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.cuda.blas import to_bfloat16
from nanoeuler_lib.engine.memory import download, upload
from nanoeuler_lib.generate import check_room
from nanoeuler_lib.ops import gpu, reference

if TYPE_CHECKING:
    from nanoeuler_lib.engine.gpt import GPT

ROWS = 8  # tokens that a launch takes at most


class Decoder:
    """The model one piece of text after another, on the GPU: the face of `generate.Decoder`.

    Weights lie transposed, with the gains of RMSNorm multiplied into them, in the model's precision; keys and values of
    the tokens seen lie in a cache. Tokens go through up to ROWS at a time, and no sum depends on how many there are.
    When the model's weights change, make a new decoder.
    """

    def __init__(self, owner: "GPT"):
        c, self.config, self.program = owner.config, owner.config, owner.program
        self.length, self.number = 0, owner.program.number
        self.xp = xp = cuda.array_module(owner.program.where)
        host = owner.params.host()

        self.embed, self.gain = owner.params["embed"], host["norm_final"]
        self.heads = self.gain[:, None] * host["heads"][:, : c.vocab_size]
        self.later = host["heads"][:, c.vocab_size :]
        matrices = {}  # as they are read: [inputs, outputs], each row times the gain of the norm before it
        for i in range(c.layers):
            for name, norm in (("qkv", "norm1"), ("out", None), ("gate_up", "norm2"), ("down", None)):
                w = host[f"layers.{i}.{name}"]
                matrices[i, name] = w if norm is None else host[f"layers.{i}.{norm}"][:, None] * w
        matrices["head"] = self.heads
        flat, end, self.weights = xp.empty(sum(w.size for w in matrices.values()), owner.half), {}, {}
        at = 0
        for key, w in matrices.items():
            at += w.size
            self.weights[key], end[key] = flat[at - w.size : at].reshape(w.shape[::-1]), at
            put = to_bfloat16 if owner.half == np.uint16 else np.asarray
            upload(self.weights[key], put(np.ascontiguousarray(w.T)))
        shape = 2 * c.kv_heads, c.context, c.head_dim
        self.caches = [xp.zeros(shape, owner.half) for _ in range(c.layers)]
        read_next = [(i, "qkv") for i in range(1, c.layers)] + [
            "head"
        ]  # the last weights before the next cache
        self.behind = [flat[end[i, "qkv"] : end[key]] for i, key in enumerate(read_next)]
        cos, sin = reference.rope_tables(c.context, c.head_dim, c.rope_theta)
        self.cos, self.sin = xp.asarray(cos, np.float32), xp.asarray(sin, np.float32)
        self.inputs = xp.zeros(1 + ROWS, np.int32)  # the first token's position, the tokens
        sizes = dict(x=c.dim, qkv=c.qkv_dim, attended=c.heads * c.head_dim, hidden=c.ffn, logits=c.vocab_size)
        self.buffers = SimpleNamespace(
            **{name: xp.empty((ROWS, size), np.float32) for name, size in sizes.items()}
        )
        self.lists = {}

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens [T] and return the logits [V] of head 0 for the token that comes next.

        Raises NanoEulerError when there is nothing to feed or the context is full.
        """
        return self._through(tokens, "logits")[-1]

    def feed_all(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens [T] and return the logits [T, V] of head 0 behind each of them. Raises what `feed` does."""
        return self._through(tokens, "logits")

    def read(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens [T] and return the residual stream behind each, normed but for the gain: [T, D].

        Raises what `feed` does.
        """
        x = self._through(tokens, "x")
        return x / np.sqrt(np.vecdot(x, x)[:, None] / self.config.dim + np.float32(self.config.norm_eps))

    def later_logits(self, y: np.ndarray) -> np.ndarray:
        """Logits [K-1, V] of heads 1 to K-1 for one row y [D] of what `read` returned."""
        return ((y * self.gain) @ self.later).reshape(-1, self.config.vocab_size)

    def _through(self, tokens, wanted):
        """What stands in a buffer behind each of the tokens: [T, D] of "x", the residual stream, [T, V] of "logits"."""
        check_room(self.config, self.length, tokens)
        found = []
        for start in range(0, len(tokens), ROWS):
            some = np.asarray(tokens[start : start + ROWS])
            upload(self.inputs[: 1 + len(some)], [self.length, *some])
            gpu.run(self._list(len(some)))
            self.length += len(some)
            found.append(download(getattr(self.buffers, wanted)[: len(some)]))
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _list(self, rows):
        """The launches for so many tokens, five a layer."""
        if rows not in self.lists:
            c, b, op = self.config, self.buffers, self.program
            position, tokens = self.inputs[:1], self.inputs[1 : 1 + rows]
            op.embed(b.x[:rows], tokens, self.embed)
            for i, cache in enumerate(self.caches):
                w = {name: self.weights[i, name] for name in ("qkv", "out", "gate_up", "down")}
                op.project(b.qkv[:rows], b.x[:rows], w["qkv"], c.norm_eps)
                op.attend(
                    b.attended[:rows], b.qkv[:rows], self.cos, self.sin, cache, position, c, self.behind[i]
                )
                op.project(b.x[:rows], b.attended[:rows], w["out"], None)
                op.project_glu(b.hidden[:rows], b.x[:rows], w["gate_up"], c.norm_eps)
                op.project(b.x[:rows], b.hidden[:rows], w["down"], None)
            op.project(b.logits[:rows], b.x[:rows], self.weights["head"], c.norm_eps)
            self.lists[rows] = op.take()
        return self.lists[rows]
