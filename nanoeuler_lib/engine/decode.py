"""Continuing a text on a GPU: a few launches of own kernels for each token."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.engine import program
from nanoeuler_lib.engine.memory import mapped, pinned, upload
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model.decoder import check_room
from nanoeuler_lib.ops import reference

ROWS = 8  # tokens that a launch takes at most
MOST_SORTED = 16 * 1024  # tokens of a vocabulary that one block sorts
UNIFORMS = 1024  # numbers that are uploaded at a time
SLOTS = 4  # rounds whose tokens the host finds


def draws(config: ModelConfig, ahead: int) -> bool:
    """Whether `Decoder.rounds` is for a model: one block sorts its logits, half a context has room for a round."""
    return config.vocab_size <= MOST_SORTED and ahead < min(ROWS, config.context - config.context // 2)


class Decoder:
    """The model one piece of text after another, on the GPU: the face of `decoder.Decoder`.

    Weights lie transposed, with the gains of RMSNorm multiplied into them, in the model's precision; keys and values of
    the tokens seen lie in a cache. Tokens go through up to ROWS at a time, and no sum depends on how many there are.
    ahead: how many of the later heads are asked as well, behind every token. When the model's weights change, make a
    new decoder.
    """

    def __init__(self, owner, ahead: int = 0):
        c, self.config, self.program = owner.config, owner.config, owner.program
        self.length, self.ahead, self.number = 0, ahead, owner.program.number
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
            exact = xp.ascontiguousarray((w if gain is None else gain[:, None] * w).T)  # of one matrix at a time
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
        self.buffers = SimpleNamespace(**{name: xp.empty((ROWS, size), np.float32) for name, size in sizes.items()})
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
        """The launches for so many tokens, between the copies of the tokens and of the logits."""
        if rows not in self.lists:
            op = self.program
            op.copy("tokens", self.inputs, self.sent)
            self._pass(rows)
            op.copy("logits", self.received[:rows], self.buffers.logits[:rows])
            self.lists[rows] = op.take()
        return self.lists[rows]

    def _pass(self, rows):
        """Write the launches from tokens to logits, five a layer."""
        c, b, op = self.config, self.buffers, self.program
        position, tokens = self.inputs[:1], self.inputs[1 : 1 + rows]
        op.embed(b.x[:rows], tokens, self.embed)
        for i, cache in enumerate(self.caches):
            w = {name: self.weights[i, name] for name in ("qkv", "out", "gate_up", "down")}
            op.project(b.qkv[:rows], b.x[:rows], w["qkv"], c.norm_eps)
            op.attend(b.attended[:rows], b.qkv[:rows], self.cos, self.sin, cache, position, c)
            op.project(b.x[:rows], b.attended[:rows], w["out"], None)
            op.project_glu(b.hidden[:rows], b.x[:rows], w["gate_up"], c.norm_eps)
            op.project(b.x[:rows], b.hidden[:rows], w["down"], None)
        op.project(b.logits[:rows], b.x[:rows], self.weights["heads"], c.norm_eps)

    # ---- tokens that are drawn on the device -----------------------------------------------------------------

    def rounds(
        self,
        ids: Sequence[int],
        rng: np.random.Generator,
        end: int | None = None,
        size: int | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
    ) -> Iterator[list[int]]:
        """`generate.speculate` with as many proposals as `ahead`, drawn on the device: from the same uniform numbers.

        Each round is one list of launches, and the next one begins while the host reads the tokens of the last: so one
        round more has been read when the iterator is left. Where the context has no room for a whole round, the later
        half of it is read again. Raises NanoEulerError where a largest logit is no finite number.
        """
        c, ids, rows = self.config, list(ids), 1 + self.ahead
        drawn = Drawn(self, rng)
        size = c.vocab_size if size is None else size
        options = size, float(temperature), int(top_k), float(top_p), float(min_p)
        self._pass(rows)
        self.program.order(drawn, self.buffers.logits[:rows], *options)
        self.program.judge(drawn, self.inputs, -1 if end is None else int(end))
        launches = self.program.take()
        unread, under_way = ids[-c.context :], []
        while True:
            if not under_way:
                if self.length + max(len(unread), 1) - 1 + rows > c.context:
                    self.length, unread = 0, ids[-(c.context // 2 + 1) :]
                if unread:
                    if unread[:-1]:
                        self.read(np.array(unread[:-1]))
                    drawn.begin(self.inputs, self.length, unread[-1])
                    unread = []
                under_way.append(drawn.run(launches))
            if self.length + 2 * rows <= c.context and len(under_way) < 2:
                under_way.append(drawn.run(launches))
            new = drawn.read(under_way.pop(0))
            if not new:
                raise NanoEulerError("a largest logit is no finite number, expected one: are the weights sound?")
            self.length += len(new)
            ids += new
            yield new


class Drawn:
    """The device's memory for `Decoder.rounds`, as `kernels/draw.cu` describes it, and the uniform numbers of `rng`."""

    def __init__(self, decoder: Decoder, rng: np.random.Generator):
        xp, V, rows, where = decoder.xp, decoder.config.vocab_size, 1 + decoder.ahead, decoder.program.where
        self.rng, self.where, self.round, self.used = rng, where, 0, 0
        self.tokens, self.sums = xp.zeros((rows, rows, V), np.int32), xp.zeros((rows, rows, V), np.float64)
        self.counts, self.turn = xp.zeros((rows, rows), np.int32), xp.zeros(4, np.int32)
        self.dense = xp.zeros((2, rows, rows, V), np.float64)
        self.uniforms, self.given = xp.zeros(2 * UNIFORMS, np.float64), 0
        self.lines, self.results = mapped(where, (SLOTS, 4 + decoder.ahead), np.int32)
        self.events = []

    def begin(self, inputs, length: int, token: int) -> None:
        """Without proposals: the next round reads a token at a place."""
        upload(inputs[:2], [length, token])
        upload(self.turn, [0, self.used, 0, self.round])

    def run(self, launches: program.Launches) -> tuple[int, Any]:
        """Begin a round: its number, and an event that ends with it."""
        while self.given - self.used < UNIFORMS:  # more than two rounds need
            start = self.given % len(self.uniforms)
            upload(self.uniforms[start : start + UNIFORMS], self.rng.random(UNIFORMS))
            self.given += UNIFORMS
        program.run(launches)
        self.round += 1
        return self.round - 1, program.mark(launches)

    def read(self, begun: tuple[int, Any]) -> list[int]:
        """The new tokens of a round, once it has ended; none where a largest logit is no finite number."""
        number, event = begun
        if event is not None:
            event.synchronize()
        round, self.used, count, *tokens = self.lines[number % SLOTS].tolist()
        assert round == number
        return tokens[:count]
