"""Continuing a text: a key/value cache, sampling, several tokens a pass, and a loop that yields text as it comes."""

import codecs
import math
from collections.abc import Iterator
from itertools import chain, islice
from types import SimpleNamespace

import numpy as np

from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT
from nanoeuler_lib.ops import reference
from nanoeuler_lib.plan import Rope
from nanoeuler_lib.tokenizer import END_OF_TEXT, Tokenizer


class Decoder:
    """The model one piece of text after another, for a single sequence.

    Keys and values of the tokens seen so far are kept, so feeding one more token costs one position, not all of them.
    `Decoder(model).feed(tokens)` gives the same logits as `model.logits(tokens[None])[0, -1]`. `length` is the number
    of tokens seen; setting it back to n forgets all but the first n.

    A step for one token does so little arithmetic that NumPy's calls and allocations would cost as much: every buffer
    and every view of it is made here, once, and the gains of RMSNorm are multiplied into the weights behind them. When
    the model's weights change, make a new decoder.
    """

    def __init__(self, model: GPT):
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
        self.x, self.y, self.delta = np.empty((3, c.dim), dtype)
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
        return self.logits(self.read(tokens))

    def logits(self, y: np.ndarray) -> np.ndarray:
        """Logits [..., V] of head 0 for rows y [..., D] of what `read` returned."""
        return y @ self.heads

    def later_logits(self, y: np.ndarray) -> np.ndarray:
        """Logits [K-1, V] of heads 1 to K-1 for one row y [D] of what `read` returned."""
        return ((y * self.gain) @ self.later).reshape(-1, self.config.vocab_size)

    def read(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens [T] and return the residual stream behind each, normed but for the gain: [T, D].

        Raises what `feed` does.
        """
        check_room(self.config, self.length, tokens)
        return self._one(tokens[0])[None] if len(tokens) == 1 else self._many(tokens)

    def _one(self, token):
        """The residual stream behind one more token, normed: [D]."""
        c, x, y, delta, hidden, attended = self.config, self.x, self.y, self.delta, self.hidden, self.attended
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
                np.dot(attended.reshape(-1), a.out, out=delta)
                x += delta
                np.multiply(x, 1 / math.sqrt(np.dot(x, x) / c.dim + c.norm_eps), out=y)
                np.dot(y, a.gate_up, out=self.gate_up)
                np.negative(self.gate, out=hidden)
                np.exp(hidden, out=hidden)
                hidden += 1
                np.divide(self.gate, hidden, out=hidden)
                hidden *= self.up
                np.dot(hidden, a.down, out=delta)
                x += delta
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


def check_room(config: ModelConfig, length: int, tokens: np.ndarray) -> None:
    """Raises NanoEulerError where tokens cannot follow `length` others: none, too many, or outside the vocabulary."""
    room, T = config.context - length, len(tokens)
    if not 1 <= T <= room:
        raise NanoEulerError(
            f"context is {config.context}, {length} used: got {T} tokens, expected 1 to {room}"
        )
    if not 0 <= min(tokens) <= max(tokens) < config.vocab_size:
        raise NanoEulerError(
            f"tokens lie in {min(tokens)}..{max(tokens)}, expected 0..{config.vocab_size - 1}"
        )


def by_likelihood(logits: np.ndarray) -> np.ndarray:
    """The tokens [V], most likely first, of equal logits [V] the lower number first.

    What a stable argsort of -logits gives. NumPy sorts whole numbers several times as fast as it argsorts, so for
    float32 each key holds a logit's bits, changed so that they are ordered as the logits are, and below them its place.
    """
    if logits.dtype != np.float32:
        return np.argsort(-logits, kind="stable")
    bits = (0 - logits).view(np.int32)  # 0 - x, so that 0 and -0 have the same
    ordered = bits ^ (bits >> 31 & 0x7FFFFFFF)  # of a negative number more bits are less
    keys = ordered.astype(np.int64) << 32 | np.arange(len(logits))
    keys.sort()
    return keys & 0xFFFFFFFF


def filtered_probs(
    logits: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that logits [V] leave to be drawn, most likely first, and their probabilities; both [n].

    temperature: 0 takes the most likely token; top_k: only the k most likely (0: all); top_p: only the most likely
    whose probabilities together reach p; min_p: only those at least min_p times as likely as the most likely.
    top_p counts the probability that top_k has left as 1. Raises NanoEulerError on values outside these ranges.
    Chapter 14.
    """
    if not 0 <= temperature <= 100:
        raise NanoEulerError(f"temperature is {temperature}, expected 0 to 100")
    if top_k < 0:
        raise NanoEulerError(f"top_k is {top_k}, expected 0 (all) or more")
    if not 0 < top_p <= 1:
        raise NanoEulerError(f"top_p is {top_p}, expected more than 0 and at most 1")
    if not 0 <= min_p <= 1:
        raise NanoEulerError(f"min_p is {min_p}, expected 0 to 1")
    if not math.isfinite(best := logits.max()):  # NaN if there is one; -inf says "never this token"
        raise NanoEulerError(f"the largest logit is {best}, expected a finite number: are the weights sound?")
    if temperature == 0:
        return logits.argmax(keepdims=True), np.ones(1)
    order = by_likelihood(logits)[: top_k or None]
    probs = np.exp((logits[order] - logits[order[0]]).astype(np.float64) / temperature)
    probs /= probs.sum()
    kept = len(order)
    if top_p < 1:
        kept = int(np.searchsorted(np.cumsum(probs), top_p)) + 1  # the first ones that reach top_p
    if min_p > 0:
        kept = min(kept, int(np.count_nonzero(probs >= min_p * probs[0])))
    return order[:kept], probs[:kept] / probs[:kept].sum()


def pick(tokens: np.ndarray, probs: np.ndarray, rng: np.random.Generator) -> int:
    """One of tokens [n], drawn with probabilities [n]. Chapter 14."""
    at = int(np.searchsorted(np.cumsum(probs), rng.random(), side="right"))
    return int(tokens[min(at, len(tokens) - 1)])


def sample(
    logits: np.ndarray,
    rng: np.random.Generator,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> int:
    """Draw a token id from logits [V]; options as for `filtered_probs`."""
    return pick(*filtered_probs(logits, temperature, top_k, top_p, min_p), rng)


def dense(tokens: np.ndarray, probs: np.ndarray, size: int) -> np.ndarray:
    """Probabilities [size] of all ids, from those [n] of the tokens that `filtered_probs` left."""
    p = np.zeros(size)
    p[tokens] = probs
    return p


def accept_or_redraw(p: np.ndarray, q: np.ndarray, token: int, rng: np.random.Generator) -> int:
    """The proposed token, or another in its place, so that what is returned is a draw from p.

    p, q: probabilities [V]; token: a draw from q. It is accepted with probability min(1, p / q), otherwise a token is
    drawn from the positive part of p - q. Leviathan et al. 2023, algorithm 1. Chapter 16.
    """
    if rng.random() * q[token] < p[token]:
        return token
    missing = np.maximum(p - q, 0)  # where q proposes too rarely
    if not missing.any():  # rounding may leave nothing to draw from
        return token
    tokens = np.flatnonzero(missing)
    return pick(tokens, missing[tokens] / missing.sum(), rng)


def speculate(
    model: GPT,
    ids: list[int],
    rng: np.random.Generator,
    propose: int = 0,
    end: int | None = None,
    size: int | None = None,
    **options: float,
) -> Iterator[list[int]]:
    """Continue token ids without end, one forward pass a round; yield the 1 to propose + 1 tokens that it gave.

    Behind the last token, head k proposes the token 1 + k places ahead. The next pass reads the proposals as well, and
    head 0, which then has seen what stands before each, accepts or redraws them in turn, up to the first redrawn one;
    if all are accepted it draws one more. So every token is a draw from head 0, as without proposals.

    propose: 0 to K-1; end: no proposal stands behind this token; size: only ids below it are drawn; options: those of
    `filtered_probs`. When the context is full, the later half of it is read again. Chapter 16.
    """
    context, most = model.config.context, model.config.predict - 1
    if not 0 <= propose <= most:
        raise NanoEulerError(f"propose is {propose}, expected 0 to {most}: the model has {most} later heads")
    decoder, ids, V = model.decoder(propose), list(ids), model.config.vocab_size
    fresh, guesses, qs = ids[-context:], [], []
    while True:
        if decoder.length + len(fresh) > context:
            decoder.length = 0
            fresh = ids[-(context // 2 + 1) :]
        del guesses[context - decoder.length - len(fresh) :]
        ys = decoder.read(np.array(fresh + guesses))[len(fresh) - 1 :]  # behind the last token and each guess
        new = []
        for y, guess, q in zip(ys, guesses, qs):
            p = filtered_probs(decoder.logits(y)[:size], **options)
            if len(p[0]) == 1:  # nothing to draw
                new.append(int(p[0][0]))
            else:
                new.append(accept_or_redraw(dense(*p, V), dense(*q, V), guess, rng))
            if new[-1] != guess:
                break
        else:
            y = ys[len(guesses)]
            new.append(sample(decoder.logits(y)[:size], rng, **options))
        decoder.length -= len(guesses) - (len(new) - 1)  # forget the guesses that were not accepted
        yield new
        ids += new
        fresh, guesses, qs = new[-1:], [], []
        for logits in decoder.later_logits(y)[:propose] if propose else ():
            qs.append(filtered_probs(logits[:size], **options))
            guesses.append(pick(*qs[-1], rng))
            if guesses[-1] == end:
                break


def stream(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str,
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    propose: int = 0,
) -> Iterator[str]:
    """Yield the continuation of `prompt` piece by piece, whole characters only, until `tokens` or the text's end.

    A document's beginning is what the model saw first in training, so the end-of-text token stands before the prompt
    if the tokenizer has one. When the context is full, the later half of it is read again and generation goes on.
    propose: tokens that the later heads propose for each forward pass (`speculate`), 0 to K-1: other draws from the
    same distribution. At temperature 0 the same text, unless two logits are equal to within rounding: a pass over
    several tokens adds in another order than one over a single token.
    """
    rng = np.random.default_rng(seed)
    end = tokenizer.special_tokens.get(END_OF_TEXT)
    ids = ([] if end is None else [end]) + [int(token) for token in tokenizer.encode(prompt)]
    ids = ids or [int(token) for token in tokenizer.encode("\n")]  # there must be something to continue
    options = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    new = chain.from_iterable(speculate(model, ids, rng, propose, end, tokenizer.vocab_size, **options))
    characters = codecs.getincrementaldecoder("utf-8")("replace")
    for token in islice(new, tokens):
        if token == end:
            break
        if piece := characters.decode(tokenizer.token_bytes[token]):
            yield piece
    if piece := characters.decode(b"", final=True):
        yield piece


def generate(model: GPT, tokenizer: Tokenizer, prompt: str, tokens: int = 200, **options) -> str:
    """The continuation of `prompt` as one string; options as for `stream`."""
    return "".join(stream(model, tokenizer, prompt, tokens, **options))
