"""Many continuations at a time, drawn from the model on a CPU, each with its log-probability. Chapter 22."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model.decoder import Decoder, Weights, check_room
from nanoeuler_lib.ops import reference


class BatchDecoder:
    """The model one token after another for many sequences: several rows behind each of several prompts.

    A prompt is read once, and its keys and values serve all its rows; prompts may differ in length. Rows that are done
    are dropped (`keep`), so that nothing is computed for them. `logits()` of a row are those that `Decoder` gives for
    prompt and row alone. Weights are folded as there: when they change, make a new one.

    prompts: P sequences of token ids [T_p]; copies: rows of each; most: tokens that a row may get. Raises
    NanoEulerError where a prompt is empty or has no room for them.
    """

    def __init__(self, model: Weights, prompts: Sequence[Sequence[int]], copies: int, most: int):
        one = Decoder(model)
        c = self.config = one.config
        self.one, self.fed, self.most = one, 0, most
        self.rows = np.arange(len(prompts) * copies)  # which rows are still there: row r belongs to r // copies
        self.prompt = self.rows // copies
        self.lengths = np.array([len(ids) for ids in prompts])
        self.caches, streams = [], []  # of each prompt, its keys and values by layer: [2G, T_p, C]
        for ids in prompts:
            check_room(c, most, ids)
            one.length = 0
            place = one.read(np.asarray(ids))[-1]
            streams.append(one.stream[place])
            self.caches.append([layer.cache[:, : len(ids)].copy() for layer in one.layers])
        self.stream = np.repeat(np.array(streams), copies, axis=0)  # [R, D], normed but for the gain
        shape = (len(self.rows), 2 * c.kv_heads, most, c.head_dim)
        self.own = [np.empty(shape, self.stream.dtype) for _ in one.layers]  # keys and values behind the prompts

    def logits(self) -> np.ndarray:
        """Logits [R, V] of head 0 behind each row that is there."""
        return self.stream @ self.one.heads

    def keep(self, chosen: np.ndarray) -> None:
        """Drop the rows that are not chosen: booleans [R]."""
        if not chosen.all():
            self.rows, self.prompt, self.stream = self.rows[chosen], self.prompt[chosen], self.stream[chosen]
            self.own = [cache[chosen] for cache in self.own]

    def feed(self, tokens: np.ndarray) -> None:
        """Append a token to each row that is there: [R]. Raises NanoEulerError when rows are full."""
        if self.fed == self.most:
            raise NanoEulerError(f"rows are full: expected at most {self.most} tokens behind a prompt")
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
            scores = np.full((R, G, H // G, longest + end), -np.inf, x.dtype)  # a prompt's part, a row's own part
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
    """A continuation: its tokens [n], the end marker among them if it came, and the log-probability of each [n]."""

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
    """Draw `copies` continuations of each prompt, at temperature 1 from all tokens: a list of P times copies.

    A row ends with the token `end`, or has as many tokens as `draws`, [most, P copies], has rows: numbers drawn from 0
    to 1, one for each token. The log-probabilities are those of the distribution that a token was drawn from, which is
    the loss's own: no token is left out, and nothing is sharpened.
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
