"""Continuing a text: a key/value cache, sampling, and a loop that yields text as it comes."""

import codecs
import math
from collections.abc import Iterator

import numpy as np

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT
from nanoeuler_lib.ops import reference
from nanoeuler_lib.tokenizer import END_OF_TEXT, Tokenizer


class Decoder:
    """The model one piece of text after another, for a single sequence.

    Keys and values of the tokens seen so far are kept, so feeding one more token costs one position, not all of them.
    `Decoder(model).feed(tokens)` gives the same logits as `model.logits(tokens[None])[0, -1]`.
    """

    def __init__(self, model: GPT):
        self.model = model
        c = self.config = model.config
        self.cos, self.sin = reference.rope_tables(c.context, c.head_dim, c.rope_theta, model.dtype)
        self.keys = np.empty((c.layers, c.kv_heads, c.context, c.head_dim), model.dtype)
        self.values = np.empty_like(self.keys)
        self.length = 0  # tokens seen

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        """Append tokens [T] and return the logits [V] of head 0 for the token that comes next.

        Raises NanoEulerError when there is nothing to feed or the context is full.
        """
        c, p, start, T = self.config, self.model.params, self.length, len(tokens)
        if T == 0 or start + T > c.context:
            raise NanoEulerError(
                f"context is {c.context}, {start} used: got {T} tokens, expected 1 to {c.context - start}"
            )
        H, G, C = c.heads, c.kv_heads, c.head_dim
        turn = self.cos[start : start + T], self.sin[start : start + T]
        future = np.arange(start + T) > np.arange(start, start + T)[:, None]  # [T, start + T]
        x = p["embed"][tokens]  # [T, D]
        for i in range(c.layers):
            y = reference.rmsnorm_forward(x, p[f"layers.{i}.norm1"], c.norm_eps)[0]
            qkv = (y @ p[f"layers.{i}.qkv"]).reshape(T, H + 2 * G, C).swapaxes(0, 1)  # [H+2G, T, C]
            q = reference.rope_forward(qkv[:H], *turn)[0].reshape(G, H // G, T, C)
            self.keys[i, :, start : start + T] = reference.rope_forward(qkv[H : H + G], *turn)[0]
            self.values[i, :, start : start + T] = qkv[H + G :]
            k, v = (
                self.keys[i, :, None, : start + T],
                self.values[i, :, None, : start + T],
            )  # [G, 1, start + T, C]
            scores = np.where(future, -np.inf, q @ k.swapaxes(-1, -2) / math.sqrt(C))
            probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
            probs /= probs.sum(axis=-1, keepdims=True)
            attended = (probs @ v).reshape(H, T, C).swapaxes(0, 1).reshape(T, H * C)
            x = x + attended @ p[f"layers.{i}.out"]
            y = reference.rmsnorm_forward(x, p[f"layers.{i}.norm2"], c.norm_eps)[0]
            gate, up = np.split(y @ p[f"layers.{i}.gate_up"], 2, axis=-1)
            x = x + reference.swiglu_forward(gate, up)[0] @ p[f"layers.{i}.down"]
        self.length += T
        last = reference.rmsnorm_forward(x[-1], p["norm_final"], c.norm_eps)[0]
        return last @ p["heads"][:, : c.vocab_size]


def sample(
    logits: np.ndarray, rng: np.random.Generator, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> int:
    """Draw a token id from logits [V].

    temperature: 0 takes the most likely token; top_k: only the k most likely (0: all); top_p: only the most likely
    whose probabilities together reach p. Raises NanoEulerError on values outside these ranges.
    """
    if not 0 <= temperature <= 100:
        raise NanoEulerError(f"temperature is {temperature}, expected 0 to 100")
    if top_k < 0:
        raise NanoEulerError(f"top_k is {top_k}, expected 0 (all) or more")
    if not 0 < top_p <= 1:
        raise NanoEulerError(f"top_p is {top_p}, expected more than 0 and at most 1")
    if not math.isfinite(best := logits.max()):  # NaN if there is one; -inf says "never this token"
        raise NanoEulerError(f"the largest logit is {best}, expected a finite number: are the weights sound?")
    if temperature == 0:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")[: top_k or None]  # most likely first
    probs = np.exp((logits[order] - logits[order[0]]).astype(np.float64) / temperature)
    probs /= probs.sum()
    if top_p < 1:
        kept = int(np.searchsorted(np.cumsum(probs), top_p)) + 1  # the first ones that reach top_p
        order, probs = order[:kept], probs[:kept] / probs[:kept].sum()
    return int(order[min(int(np.searchsorted(np.cumsum(probs), rng.random(), side="right")), len(order) - 1)])


def stream(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str,
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Iterator[str]:
    """Yield the continuation of `prompt` piece by piece, whole characters only, until `tokens` or the text's end.

    A document's beginning is what the model saw first in training, so the end-of-text token stands before the prompt
    if the tokenizer has one. When the context is full, the later half of it is read again and generation goes on.
    """
    rng = np.random.default_rng(seed)
    end = tokenizer.special_tokens.get(END_OF_TEXT)
    ids = ([] if end is None else [end]) + [int(token) for token in tokenizer.encode(prompt)]
    ids = ids or [int(token) for token in tokenizer.encode("\n")]  # there must be something to continue
    decoder = Decoder(model)
    characters = codecs.getincrementaldecoder("utf-8")("replace")
    fresh = ids[-model.config.context :]
    for _ in range(tokens):
        if decoder.length + len(fresh) > model.config.context:
            decoder.length = 0
            fresh = ids[-(model.config.context // 2 + 1) :]
        logits = decoder.feed(np.array(fresh))
        token = sample(logits[: tokenizer.vocab_size], rng, temperature, top_k, top_p)
        if token == end:
            break
        ids.append(token)
        fresh = [token]
        if piece := characters.decode(tokenizer.token_bytes[token]):
            yield piece
    if piece := characters.decode(b"", final=True):
        yield piece


def generate(model: GPT, tokenizer: Tokenizer, prompt: str, tokens: int = 200, **options) -> str:
    """The continuation of `prompt` as one string; options as for `stream`."""
    return "".join(stream(model, tokenizer, prompt, tokens, **options))
