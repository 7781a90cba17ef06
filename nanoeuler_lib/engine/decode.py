"""Continuing a text on a GPU: a few launches of own kernels for each token."""

from types import SimpleNamespace

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.engine import program
from nanoeuler_lib.engine.memory import pinned
from nanoeuler_lib.model.decoder import check_room
from nanoeuler_lib.ops import reference

ROWS = 8  # tokens that a launch takes at most


class Decoder:
    """The model one piece of text after another, on the GPU: the face of `decoder.Decoder`.

    Weights lie transposed, with the gains of RMSNorm multiplied into them, in the model's precision; keys and values of
    the tokens seen lie in a cache. Tokens go through up to ROWS at a time, and no sum depends on how many there are.
    ahead: how many of the later heads are asked as well, behind every token. When the model's weights change, make a
    new decoder.
    """

    def __init__(self, owner, ahead: int = 0):
        c, self.config, self.program = owner.config, owner.config, owner.program
        self.length, self.number = 0, owner.program.number
        self.xp = xp = cuda.array_module(owner.program.where)
        p, matrices = owner.params, {}  # [inputs, outputs] and the gain before them, in the order of reading
        for i in range(c.layers):
            for name, norm in (("qkv", "norm1"), ("out", None), ("gate_up", "norm2"), ("down", None)):
                matrices[i, name] = p[f"layers.{i}.{name}"], norm and p[f"layers.{i}.{norm}"]
        matrices["heads"] = p["heads"][:, : (1 + ahead) * c.vocab_size], p["norm_final"]
        flat, at = xp.empty(sum(w.size for w, _ in matrices.values()), owner.half), 0
        self.weights = {}
        for key, (w, gain) in matrices.items():
            part, at = slice(at, at + w.size), at + w.size
            self.weights[key] = flat[part].reshape(w.shape[::-1])
            exact = xp.ascontiguousarray(
                (w if gain is None else gain[:, None] * w).T
            )  # of one matrix at a time
            if flat.dtype == exact.dtype:
                flat[part] = exact.reshape(-1)
            else:
                self.program.round_to(flat[part], exact.reshape(-1))
                program.run(self.program.take())
        self.embed = p["embed"]
        shape = 2 * c.kv_heads, c.context, c.head_dim
        self.caches = [xp.zeros(shape, owner.half) for _ in range(c.layers)]
        cos, sin = reference.rope_tables(c.context, c.head_dim, c.rope_theta)
        self.cos, self.sin = xp.asarray(cos, np.float32), xp.asarray(sin, np.float32)
        self.inputs = xp.zeros(1 + ROWS, np.int32)  # the first token's position, the tokens
        self.sent = pinned(self.program.where, self.inputs.shape, np.int32)
        sizes = dict(x=c.dim, qkv=c.qkv_dim, attended=c.heads * c.head_dim, hidden=c.ffn)
        sizes["logits"] = (1 + ahead) * c.vocab_size
        self.buffers = SimpleNamespace(
            **{name: xp.empty((ROWS, size), np.float32) for name, size in sizes.items()}
        )
        self.received = pinned(self.program.where, self.buffers.logits.shape, np.float32)
        self.lists = {}
        self.all_logits = self.received[:0]  # [T, (1 + ahead) V], behind each token that was read last

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens [T] and return the logits [V] of head 0 for the token that comes next.

        Raises NanoEulerError when there is nothing to feed or the context is full.
        """
        return self.feed_all(tokens)[-1]

    def feed_all(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens [T] and return the logits [T, V] of head 0 behind each of them. Raises what `feed` does."""
        self.read(tokens)
        return self.all_logits[:, : self.config.vocab_size].copy()

    def read(self, tokens: np.ndarray) -> range:
        """Append tokens [T] and return the place of each, 0 to T-1, for `logits` and `later_logits`.

        A place means a token among those read last: with the next call of `read` or `feed` it means another one.
        Raises what `feed` does.
        """
        check_room(self.config, self.length, tokens)
        pieces = []
        for start in range(0, len(tokens), ROWS):
            some = tokens[start : start + ROWS]
            self.sent[0], self.sent[1 : 1 + len(some)] = self.length, some
            launches = self._list(len(some))
            program.run(launches)
            program.wait(launches)
            self.length += len(some)
            logits = self.received[: len(some)]
            pieces.append(logits.copy() if len(tokens) > ROWS else logits)
        self.all_logits = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return range(len(tokens))

    def logits(self, place: int) -> np.ndarray:
        """Logits [V] of head 0 behind the token at a place of those read last."""
        return self.all_logits[place, : self.config.vocab_size]

    def later_logits(self, place: int) -> np.ndarray:
        """Logits [ahead, V] of heads 1 to `ahead` behind the token at a place of those read last."""
        return self.all_logits[place, self.config.vocab_size :].reshape(-1, self.config.vocab_size)

    def _list(self, rows):
        """The launches for so many tokens, five a layer, between the copies of the tokens and of the logits."""
        if rows not in self.lists:
            c, b, op = self.config, self.buffers, self.program
            position, tokens = self.inputs[:1], self.inputs[1 : 1 + rows]
            op.copy("tokens", self.inputs, self.sent)
            op.embed(b.x[:rows], tokens, self.embed)
            for i, cache in enumerate(self.caches):
                w = {name: self.weights[i, name] for name in ("qkv", "out", "gate_up", "down")}
                op.project(b.qkv[:rows], b.x[:rows], w["qkv"], c.norm_eps)
                op.attend(b.attended[:rows], b.qkv[:rows], self.cos, self.sin, cache, position, c)
                op.project(b.x[:rows], b.attended[:rows], w["out"], None)
                op.project_glu(b.hidden[:rows], b.x[:rows], w["gate_up"], c.norm_eps)
                op.project(b.x[:rows], b.hidden[:rows], w["down"], None)
            op.project(b.logits[:rows], b.x[:rows], self.weights["heads"], c.norm_eps)
            op.copy("logits", self.received[:rows], b.logits[:rows])
            self.lists[rows] = op.take()
        return self.lists[rows]
