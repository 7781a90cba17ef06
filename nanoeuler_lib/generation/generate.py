"""Continuing a text: sampling, the loop over tokens, several tokens a pass, and text that is yielded as it comes."""

import codecs
import math
import sys
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice, takewhile

import numpy as np

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text.tokenizer import Tokenizer


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
    n = len(order)
    if top_p < 1:
        n = int(np.searchsorted(np.cumsum(probs), top_p)) + 1  # the first ones that reach top_p
    if min_p > 0:
        n = min(n, int(np.count_nonzero(probs >= min_p * probs[0])))
    return order[:n], probs[:n] / probs[:n].sum()


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


def generate_tokens(
    model: GPT, ids: list[int], rng: np.random.Generator, size: int | None = None, **options: float
) -> Iterator[int]:
    """Continue token ids without end, one forward pass a token. `speculate` draws several a pass.

    size: only ids below it are drawn; options: those of `filtered_probs`. When the context is full, the later half of
    it is read again. Chapter 14.
    """
    decoder, context, ids = model.decoder(), model.config.context, list(ids)
    unread = ids[-context:]
    while True:
        if decoder.length + len(unread) > context:
            decoder.length, unread = 0, ids[-(context // 2 + 1) :]
        logits = decoder.feed(np.array(unread))
        ids.append(sample(logits[:size], rng, **options))
        yield ids[-1]
        unread = ids[-1:]


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
    """Continue token ids without end; each round is one forward pass and yields 1 to propose + 1 tokens.

    Behind the last token, head k proposes the token 1 + k places ahead. The next pass reads the proposals as well. Head
    0 has then seen what stands before each of them: it accepts or redraws them in turn, up to the first redrawn one; if
    all are accepted it draws one more. So every token is a draw from head 0, as without proposals.

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
            decoder.length, fresh = 0, ids[-(context // 2 + 1) :]
        del guesses[context - decoder.length - len(fresh) :]
        places = decoder.read(np.array(fresh + guesses))[len(fresh) - 1 :]  # of the last token and each guess
        new = []
        for place, guess, q in zip(places, guesses, qs):
            p = filtered_probs(decoder.logits(place)[:size], **options)
            alone = len(p[0]) == 1  # nothing to draw
            new.append(int(p[0][0]) if alone else accept_or_redraw(dense(*p, V), dense(*q, V), guess, rng))
            if new[-1] != guess:
                break
        else:
            place = places[len(guesses)]
            new.append(sample(decoder.logits(place)[:size], rng, **options))
        decoder.length -= len(guesses) - (len(new) - 1)  # forget the guesses that were not accepted
        yield new
        ids += new
        fresh, guesses, qs = new[-1:], [], []
        for logits in decoder.later_logits(place)[:propose] if propose else ():
            qs.append(filtered_probs(logits[:size], **options))
            guesses.append(pick(*qs[-1], rng))
            if guesses[-1] == end:
                break


def rounds(
    model: GPT,
    ids: list[int],
    rng: np.random.Generator,
    propose: int = 0,
    end: int | None = None,
    size: int | None = None,
    **options: float,
) -> Iterator[list[int]]:
    """`speculate`, without proposals `generate_tokens`; where a decoder can draw itself, as on a GPU, it does."""
    if hasattr(model, "draws") and model.draws(propose):
        filtered_probs(np.zeros(1, np.float32), **options)  # whose ranges they have to keep
        return model.decoder(propose).rounds(ids, rng, end, size, **options)
    if propose == 0:
        return ([token] for token in generate_tokens(model, ids, rng, size, **options))
    return speculate(model, ids, rng, propose, end, size, **options)


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
    repetition_penalty: float = 1.0,
    stop: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the continuation of `prompt` piece by piece, whole characters only, until `tokens` or the text's end.

    A document's beginning is what the model saw first in training, so the token that begins one, such as end-of-text,
    stands before the prompt if the tokenizer has it. When the context is full, the later half of it is read again and
    generation goes on. propose: tokens that the later heads propose for each forward pass (`speculate`), 0 to K-1:
    other draws from the same distribution. At temperature 0 the same text, unless two logits are equal to within
    rounding: a pass over several tokens adds in another order than one over a single token. repetition_penalty: see
    `penalised`; it counts the tokens of prompt and continuation, and refuses proposals. stop: texts; the first of them
    to come ends the continuation before it.
    """
    if not isinstance(tokens, int) or tokens < 0:
        raise NanoEulerError(f"tokens must be an integer of 0 or more, got {tokens!r}")
    if not 0 < repetition_penalty <= 100:
        raise NanoEulerError(
            f"repetition_penalty is {repetition_penalty}, expected more than 0 and at most 100; 1 is none"
        )
    if propose and repetition_penalty != 1:
        raise NanoEulerError(f"propose is {propose} beside a repetition_penalty, expected one of them")
    if "" in stop:
        raise NanoEulerError("stop is empty, expected a text")
    rng, end, ids = np.random.default_rng(seed), tokenizer.end, _begin(tokenizer, prompt)
    if repetition_penalty != 1:
        model = _Penalising(model, repetition_penalty, end)
    options = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    new = chain.from_iterable(rounds(model, ids, rng, propose, end, tokenizer.vocab_size, **options))
    new = islice(new, min(tokens, sys.maxsize))
    yield from _until(_characters(tokenizer, takewhile(lambda token: token != end, new)), stop)


def _begin(tokenizer, prompt):
    """The ids that a continuation of the prompt begins behind."""
    begin = tokenizer.begin
    ids = ([] if begin is None else [begin]) + [int(token) for token in tokenizer.encode(prompt)]
    return ids or [int(token) for token in tokenizer.encode("\n")]  # there must be something to continue


def unread(model: GPT, tokenizer: Tokenizer, prompt: str) -> int:
    """How many tokens at a prompt's beginning `stream` leaves out, for the model reads no more than its context."""
    return max(0, len(_begin(tokenizer, prompt)) - model.config.context)


def _characters(tokenizer, tokens):
    """The text of tokens, as soon as its characters are whole."""
    characters = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        if piece := characters.decode(tokenizer.token_bytes[token]):
            yield piece
    if piece := characters.decode(b"", final=True):
        yield piece


def _until(pieces, stop):
    """The pieces up to the first text of `stop`; what may turn out to be its beginning is held back."""
    held = ""
    for piece in pieces:
        held += piece
        if found := [held.index(text) for text in stop if text in held]:
            held = held[: min(found)]
            break
        kept = max((n for text in stop for n in range(1, len(text)) if held.endswith(text[:n])), default=0)
        if kept < len(held):
            yield held[: len(held) - kept]
            held = held[len(held) - kept :]
    if held:
        yield held


def penalised(logits: np.ndarray, seen: Collection[int], penalty: float) -> np.ndarray:
    """Logits [V] with those of the tokens seen so far divided by the penalty, or multiplied by it where negative.

    More than 1 makes what was said less likely, less than 1 more. Keskar et al., "CTRL: A Conditional Transformer
    Language Model for Controllable Generation" (2019), 4.1, whose formula divides; where a logit is negative that would
    make its token more likely, so Hugging Face's `RepetitionPenaltyLogitsProcessor`, which others follow, multiplies.
    """
    logits, at = logits.copy(), np.fromiter(seen, np.intp, len(seen))
    logits[at] = np.where(logits[at] < 0, logits[at] * penalty, logits[at] / penalty)
    return logits


class _Penalising:
    """A model for `generate_tokens`, and its decoder, whose logits are `penalised` for what it has read but `free`."""

    def __init__(self, model, penalty, free):
        self.config, self.inner, self.seen = model.config, model.decoder(), set()
        self.penalty, self.free = penalty, free

    def decoder(self):
        return self

    length = property(lambda self: self.inner.length, lambda self, length: setattr(self.inner, "length", length))

    def feed(self, tokens):
        self.seen.update(tokens.tolist())
        self.seen.discard(self.free)
        return penalised(self.inner.feed(tokens), self.seen, self.penalty)


def generate(model: GPT, tokenizer: Tokenizer, prompt: str, tokens: int = 200, **options) -> str:
    """The continuation of `prompt` as one string; options as for `stream`."""
    return "".join(stream(model, tokenizer, prompt, tokens, **options))
