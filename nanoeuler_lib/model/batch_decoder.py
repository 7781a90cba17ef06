"""Sample many continuations at a time on a CPU, each with its log-probability. Used by GRPO; chapter 22."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model.decoder import Decoder, Weights, check_room
from nanoeuler_lib.ops import reference


class BatchDecoder:
    """Extend several rows after each of several prompts, one token at a time.

    Each prompt is read once; all its rows use its keys and values. Finished rows can be dropped (`keep`). Each row gets
    the logits that `Decoder` computes for its prompt and row; as there, make a new object when the model's weights have
    changed. prompts: P sequences of token ids [T_p]; copies: rows per prompt; most: maximum number of tokens after a
    prompt. Raises NanoEulerError if a prompt is empty or leaves no room for `most` tokens.
    """

    def __init__(self, model: Weights, prompts: Sequence[Sequence[int]], copies: int, most: int):
        one = Decoder(model)
        c = self.config = one.config
        self.one, self.fed, self.most = one, 0, most
        self.rows = np.arange(len(prompts) * copies)  # remaining rows; row r belongs to prompt r // copies
        self.prompt = self.rows // copies
        self.lengths = np.array([len(ids) for ids in prompts])
        self.caches, streams = [], []  # for each prompt and layer, its keys and values [2G, T_p, C]
        for ids in prompts:
            check_room(c, most, ids)
            one.length = 0
            place = one.read(np.asarray(ids))[-1]
            streams.append(one.stream[place])
            self.caches.append([layer.cache[:, : len(ids)].copy() for layer in one.layers])
        self.stream = np.repeat(np.array(streams), copies, axis=0)  # [R, D], normed, without the gain
        shape = (len(self.rows), 2 * c.kv_heads, most, c.head_dim)
        self.own = [np.empty(shape, self.stream.dtype) for _ in one.layers]  # keys and values after the prompts

    def logits(self) -> np.ndarray:
        """Return the logits [R, V] of head 0 for the next token of each remaining row."""
        return self.stream @ self.one.heads

    def keep(self, chosen: np.ndarray) -> None:
        """Drop the rows that are not chosen. chosen: booleans [R] for the remaining rows."""
        if not chosen.all():
            self.rows, self.prompt, self.stream = self.rows[chosen], self.prompt[chosen], self.stream[chosen]
            self.own = [cache[chosen] for cache in self.own]

    def feed(self, tokens: np.ndarray) -> None:
        """Append one token to each remaining row. tokens: ids [R]. Raises NanoEulerError if the rows are full."""
        if self.fed == self.most:
            raise NanoEulerError(f"rows must have at most {self.most} tokens after the prompt, got {self.most + 1}")
        c, one, R = self.config, self.one, len(self.rows)
        H, G, C = c.heads, c.kv_heads, c.head_dim
        turn = one.turn[self.lengths[self.prompt] + self.fed]  # [R, (H+G)C/2]
        groups = [(p, np.flatnonzero(self.prompt == p)) for p in np.unique(self.prompt)]
        longest, end = self.lengths[self.prompt].max(), self.fed + 1
        x = one.embed[tokens]  # [R, D]
        for i, (a, own) in enumerate(zip(one.layers, self.own, strict=True)):
            qkv = one._normed(x) @ a.qkv
            qkv[:, : (H + G) * C].view(turn.dtype)[...] *= turn
            q = qkv[:, : H * C].reshape(R, G, H // G, C)
            own[:, :, self.fed] = qkv[:, H * C :].reshape(R, 2 * G, C)
            scores = np.full((R, G, H // G, longest + end), -np.inf, x.dtype)  # columns: the prompt, then the row
            for p, rows in groups:
                keys = self.caches[p][i][:G]  # [G, T_p, C]
                scores[rows, ..., : keys.shape[1]] = q[rows] @ keys.mT
            scores[..., longest:] = q @ own[:, :G, :end].mT
            probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
            probs /= probs.sum(axis=-1, keepdims=True)
            attended = probs[..., longest:] @ own[:, G:, :end]  # [R, G, H/G, C]
            for p, rows in groups:
                values = self.caches[p][i][G:]
                attended[rows] += probs[rows, ..., : values.shape[1]] @ values
            x += attended.reshape(R, H * C) @ a.out
            gate, up = np.split(one._normed(x) @ a.gate_up, 2, axis=-1)
            x += reference.swiglu_forward(gate, up)[0] @ a.down
        self.fed, self.stream = end, one._normed(x)


@dataclass(frozen=True)
class Sampled:
    """Hold a continuation: token ids [n], log-probabilities [n] in nats, and whether it reached the end marker."""

    ids: np.ndarray
    logps: np.ndarray
    ended: bool


def sample_rows(
    model: Weights,
    prompts: Sequence[Sequence[int]],
    copies: int,
    end: int,
    draws: np.ndarray,
) -> list[Sampled]:
    """Sample `copies` continuations of each prompt at temperature 1 from all tokens. Returns P * copies of them.

    prompts: P sequences of token ids; end: token that ends a row; draws: uniform random numbers in [0, 1), [most, P *
    copies]. No token is excluded, so the log-probabilities are exactly the model's. Chapter 22.
    """
    most = len(draws)
    decoder = BatchDecoder(model, prompts, copies, most)
    ids, logps = np.zeros((2, len(decoder.rows), most))
    lengths, ended = np.full(len(decoder.rows), most), np.zeros(len(decoder.rows), bool)
    for step in range(most):
        rows = decoder.rows
        z = decoder.logits().astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        sums = np.cumsum(np.exp(z), axis=1)  # [R, V]
        tokens = (sums <= draws[step, rows, None] * sums[:, -1:]).sum(axis=1)
        tokens = np.minimum(tokens, z.shape[1] - 1)
        ids[rows, step] = tokens
        logps[rows, step] = z[np.arange(len(rows)), tokens] - np.log(sums[:, -1])
        done = tokens == end
        lengths[rows[done]], ended[rows[done]] = step + 1, True
        if done.all() or step + 1 == most:
            break
        decoder.keep(~done)
        decoder.feed(tokens[~done])
    ids = ids.astype(np.int64)
    return [Sampled(ids[r, :n], logps[r, :n], bool(ended[r])) for r, n in enumerate(lengths)]
