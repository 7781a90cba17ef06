"""Token-by-token generation on a GPU: `Decoder`, with a key-value cache and its own kernels (kernels/decode.cu)."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.engine import flash, program
from nanoeuler_lib.engine.memory import mapped, pinned, upload
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model.decoder import check_room
from nanoeuler_lib.ops import reference

ROWS = 8  # most tokens per launch
MOST_SORTED = 16 * 1024  # largest vocabulary that one block can sort
UNIFORMS = 1024  # random numbers that are uploaded at a time
SLOTS = 4  # rounds whose results stay readable for the host


def most_rows(config: ModelConfig, on: flash.Card) -> int:
    """Return the most tokens per launch, ROWS or fewer, that fit into the shared memory of a block.

    For each token, `project` holds up to F inputs and 140 other numbers there, and `project_glu` D inputs and 268.
    """
    each = 4 * max(config.ffn + 140, config.dim + 268)
    return max(rows for rows in program.TOGETHER if rows == 1 or rows * each <= on.shared)


def draws(config: ModelConfig, ahead: int, on: flash.Card) -> bool:
    """Return whether `Decoder.rounds` works: a block can sort the logits, a round fits into half of the context."""
    most = min(most_rows(config, on), config.context - config.context // 2)
    return config.vocab_size <= MOST_SORTED and ahead < most


class Decoder:
    """Run the model incrementally on the GPU, with the interface of `decoder.Decoder`.

    The decoder copies the weights transposed, with the gains of RMSNorm multiplied in, in the model's precision; so
    make a new decoder when the weights change. A cache holds the keys and values of the tokens seen. Up to `most_rows`
    tokens are processed at a time, and their number does not affect the results. ahead: number of later prediction
    heads whose logits are computed too.
    """

    def __init__(self, owner, ahead: int = 0):
        c, self.config, self.program = owner.config, owner.config, owner.program
        self.length, self.ahead, self.number = 0, ahead, owner.program.number
        self.rows = most_rows(c, owner.program.on)
        self.xp = xp = cuda.array_module(owner.program.where)
        p, matrices = owner.params, {}  # each [inputs, outputs] and the gain before it, in the order of use
        for i in range(c.layers):
            for name, norm in (("qkv", "norm1"), ("out", None), ("gate_up", "norm2"), ("down", None)):
                matrices[i, name] = p[f"layers.{i}.{name}"], norm and p[f"layers.{i}.{norm}"]
        matrices["heads"] = p["heads"][:, : (1 + ahead) * c.vocab_size], p["norm_final"]
        flat, at = xp.empty(sum(w.size for w, _ in matrices.values()), owner.half), 0
        self.weights = {}
        for key, (w, gain) in matrices.items():
            part, at = slice(at, at + w.size), at + w.size
            self.weights[key] = flat[part].reshape(w.shape[::-1])
            exact = xp.ascontiguousarray((w if gain is None else gain[:, None] * w).T)  # float32, one at a time
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
        self.inputs = xp.zeros(1 + ROWS, np.int32)  # the first token's position, then the tokens
        self.sent = pinned(self.program.where, self.inputs.shape, np.int32)
        sizes = dict(x=c.dim, qkv=c.qkv_dim, attended=c.heads * c.head_dim, hidden=c.ffn)
        sizes["logits"] = (1 + ahead) * c.vocab_size
        self.buffers = SimpleNamespace(**{name: xp.empty((ROWS, size), np.float32) for name, size in sizes.items()})
        self.received = pinned(self.program.where, self.buffers.logits.shape, np.float32)
        self.lists = {}
        self.all_logits = self.received[:0]  # [T, (1 + ahead) V], after each token of the last call of `read`

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens [T]; return logits [V] of head 0. Raises NanoEulerError if T is 0 or they do not fit."""
        return self.feed_all(tokens)[-1]

    def feed_all(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens [T] and return the logits [T, V] of head 0 after each of them. Raises as `feed` does."""
        self.read(tokens)
        return self.all_logits[:, : self.config.vocab_size].copy()

    def read(self, tokens: np.ndarray) -> range:
        """Append tokens [T]; return range(T), their places for `logits` until the next call. Raises as `feed` does."""
        check_room(self.config, self.length, tokens)
        pieces = []
        for start in range(0, len(tokens), self.rows):
            some = tokens[start : start + self.rows]
            self.sent[0], self.sent[1 : 1 + len(some)] = self.length, some
            launches = self._list(len(some))
            program.run(launches)
            program.wait(launches)
            self.length += len(some)
            logits = self.received[: len(some)]
            pieces.append(logits.copy() if len(tokens) > self.rows else logits)
        self.all_logits = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return range(len(tokens))

    def logits(self, place: int) -> np.ndarray:
        """Return the logits [V] of head 0 after the token at a place of the last `read`."""
        return self.all_logits[place, : self.config.vocab_size]

    def later_logits(self, place: int) -> np.ndarray:
        """Return the logits [ahead, V] of heads 1 to `ahead` after the token at a place of the last `read`."""
        return self.all_logits[place, self.config.vocab_size :].reshape(-1, self.config.vocab_size)

    def _list(self, rows):
        """Return the launches for so many tokens: copy the tokens to the GPU, run the model, copy the logits back."""
        if rows not in self.lists:
            op = self.program
            op.copy("tokens", self.inputs, self.sent)
            self._pass(rows)
            op.copy("logits", self.received[:rows], self.buffers.logits[:rows])
            self.lists[rows] = op.take()
        return self.lists[rows]

    def _pass(self, rows):
        """Record the launches from tokens to logits, five per layer."""
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

    # ---- sampling on the device ------------------------------------------------------------------------------

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
        """Generate tokens as `generate.speculate` does, with `ahead` proposals per round, but sample on the GPU.

        Yields the new tokens of each round. Both functions use the uniform random numbers of `rng` in the same way.
        Each round is one list of launches, and the next round starts while the host reads the tokens of the last one;
        so when you stop the iteration, the GPU has already begun one more round. When a whole round no longer fits into
        the context, its later half is read again. Raises NanoEulerError if the largest logit is not finite. Chapter 16.
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
                raise NanoEulerError("the largest logit must be finite, got NaN or infinity: check the weights")
            self.length += len(new)
            ids += new
            yield new


class Drawn:
    """Hold the device arrays of `Decoder.rounds` (see `kernels/draw.cu`) and upload random numbers of `rng`."""

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
        """Set the inputs of a round without proposals: one token at position `length`."""
        upload(inputs[:2], [length, token])
        upload(self.turn, [0, self.used, 0, self.round])

    def run(self, launches: program.Launches) -> tuple[int, Any]:
        """Start a round; return its number and an event that completes with it."""
        while self.given - self.used < UNIFORMS:  # more than two rounds need
            start = self.given % len(self.uniforms)
            upload(self.uniforms[start : start + UNIFORMS], self.rng.random(UNIFORMS))
            self.given += UNIFORMS
        program.run(launches)
        self.round += 1
        return self.round - 1, program.mark(launches)

    def read(self, begun: tuple[int, Any]) -> list[int]:
        """Wait for a round and return its new tokens; an empty list if its largest logit was not finite."""
        number, event = begun
        if event is not None:
            event.synchronize()
        round, self.used, count, *tokens = self.lines[number % SLOTS].tolist()
        assert round == number
        return tokens[:count]
