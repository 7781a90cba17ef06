"""Generate text: sampling from logits, the loop over tokens, speculative decoding, and streaming of text."""

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
    """Return the token ids [V] in order of logits [V], most likely first; of equal logits, the lower id comes first.

    NumPy sorts integers several times faster than it argsorts. So each float32 logit becomes an integer: its upper half
    is the logit's bits, changed to have the logits' order, and its lower half is the token id.
    """
    if logits.dtype != np.float32:
        return np.argsort(-logits, kind="stable")
    bits = (0 - logits).view(np.int32)  # 0 - x, so that 0 and -0 have the same bits
    ordered = bits ^ (bits >> 31 & 0x7FFFFFFF)  # negative floats are ordered opposite to their bits
    keys = ordered.astype(np.int64) << 32 | np.arange(len(logits))
    keys.sort()
    return keys & 0xFFFFFFFF


def filtered_probs(
    logits: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens that may be sampled, most likely first, and their probabilities.

    logits: [V]; temperature: divides the logits; 0 keeps only the most likely token;
    top_k: keep the k most likely tokens (0: all); top_p: keep the most likely tokens
    whose probabilities add up to p, relative to what top_k keeps; min_p: keep tokens at
    least min_p times as likely as the most likely one. Returns two arrays [n].
    Raises NanoEulerError if an option is out of range, or the largest logit
    is not finite. Chapter 14.
    """
    if not 0 <= temperature <= 100:
        raise NanoEulerError(f"temperature must be 0 to 100, got {temperature}")
    if top_k < 0:
        raise NanoEulerError(f"top_k must be 0 (all) or more, got {top_k}")
    if not 0 < top_p <= 1:
        raise NanoEulerError(f"top_p must be more than 0 and at most 1, got {top_p}")
    if not 0 <= min_p <= 1:
        raise NanoEulerError(f"min_p must be 0 to 1, got {min_p}")
    if not math.isfinite(best := logits.max()):  # NaN if any is NaN; -inf means "never this token"
        raise NanoEulerError(f"the largest logit must be finite, got {best}: are the weights damaged?")
    if temperature == 0:
        return logits.argmax(keepdims=True), np.ones(1)
    order = by_likelihood(logits)[: top_k or None]
    probs = np.exp((logits[order] - logits[order[0]]).astype(np.float64) / temperature)
    probs /= probs.sum()
    n = len(order)
    if top_p < 1:
        n = int(np.searchsorted(np.cumsum(probs), top_p)) + 1  # the fewest tokens that reach top_p
    if min_p > 0:
        n = min(n, int(np.count_nonzero(probs >= min_p * probs[0])))
    return order[:n], probs[:n] / probs[:n].sum()


def pick(tokens: np.ndarray, probs: np.ndarray, rng: np.random.Generator) -> int:
    """Sample one of tokens [n] with probabilities probs [n]. Chapter 14."""
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
    """Sample a token id from logits [V]; options as for `filtered_probs`."""
    return pick(*filtered_probs(logits, temperature, top_k, top_p, min_p), rng)


def generate_tokens(
    model: GPT, ids: list[int], rng: np.random.Generator, size: int | None = None, **options: float
) -> Iterator[int]:
    """Yield tokens that continue ids, without end, with one forward pass per token.

    size: only ids below it are sampled; options: those of `filtered_probs`. When the
    context is full, its later half is read again. Chapter 14.
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
    """Return the probabilities [size] of all ids, given tokens [n] and probs [n] from `filtered_probs`."""
    p = np.zeros(size)
    p[tokens] = probs
    return p


def accept_or_redraw(p: np.ndarray, q: np.ndarray, token: int, rng: np.random.Generator) -> int:
    """Return the proposed token or a different one, so that the result is a sample from p.

    p, q: probabilities [V]; token: a sample from q. It is accepted with probability
    min(1, p / q); otherwise a token is sampled from the positive part of p - q.
    Leviathan et al. 2023, algorithm 1. Chapter 16.
    """
    if rng.random() * q[token] < p[token]:
        return token
    missing = np.maximum(p - q, 0)  # where q proposes too rarely
    if not missing.any():  # by rounding, nothing may be left to sample from
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
    """Yield tokens that continue ids, without end: 1 to propose + 1 tokens per forward pass.

    After the last token, head k proposes the token 1 + k positions ahead. The next pass
    reads the proposals as well, so head 0 gives a distribution for each of them. In
    order, each proposal is accepted or replaced by a new sample; the first replacement
    ends the round. If all are accepted, head 0 samples one more token. So every token is
    a sample from head 0, as without proposals.

    propose: 0 to K-1; end: nothing is proposed after this token; size: only ids below it
    are sampled; options: those of `filtered_probs`. When the context is full, its later
    half is read again. Raises NanoEulerError if propose is out of range. Chapter 16.
    """
    context, most = model.config.context, model.config.predict - 1
    if not 0 <= propose <= most:
        raise NanoEulerError(f"propose must be 0 to {most}, the model's number of later heads, got {propose}")
    decoder, ids, V = model.decoder(propose), list(ids), model.config.vocab_size
    fresh, guesses, qs = ids[-context:], [], []
    while True:
        if decoder.length + len(fresh) > context:
            decoder.length, fresh = 0, ids[-(context // 2 + 1) :]
        del guesses[context - decoder.length - len(fresh) :]
        places = decoder.read(np.array(fresh + guesses))[len(fresh) - 1 :]  # the last token and each guess
        new = []
        for place, guess, q in zip(places, guesses, qs):
            p = filtered_probs(decoder.logits(place)[:size], **options)
            alone = len(p[0]) == 1  # only one token is possible
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
    """Yield lists of tokens that continue ids, by the fastest method that fits the model.

    Arguments: of `speculate`. A GPU's decoder samples by itself; otherwise `speculate` or `generate_tokens` is used.
    """
    if hasattr(model, "draws") and model.draws(propose):
        filtered_probs(np.zeros(1, np.float32), **options)  # raises if an option is out of range
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
    """Yield the continuation of `prompt` piece by piece, whole characters only, up to `tokens` tokens or its end.

    Training rows start with the beginning of a document, so the token that begins a document, such as end-of-text, is
    put before the prompt. When the context is full, its later half is read again. temperature, top_k, top_p, min_p: see
    `filtered_probs`. propose: tokens per forward pass from the later heads (`speculate`), 0 to K-1; the distribution of
    samples stays the same, and at temperature 0 the text, unless two logits are equal to within rounding, because a
    pass over several tokens adds in a different order. repetition_penalty: of `penalised`, for the tokens of prompt and
    continuation, not together with proposals. stop: texts; the continuation ends before the first that occurs. Raises
    NanoEulerError if an option is out of range.
    """
    if not isinstance(tokens, int) or tokens < 0:
        raise NanoEulerError(f"tokens must be an integer of 0 or more, got {tokens!r}")
    if not 0 < repetition_penalty <= 100:
        raise NanoEulerError(
            f"repetition_penalty must be more than 0 and at most 100, got {repetition_penalty}; 1 turns it off"
        )
    if propose and repetition_penalty != 1:
        raise NanoEulerError(f"propose must be 0 with a repetition_penalty, got {propose}")
    if "" in stop:
        raise NanoEulerError("stop must be a non-empty text, got ''")
    rng, end, ids = np.random.default_rng(seed), tokenizer.end, _begin(tokenizer, prompt)
    if repetition_penalty != 1:
        model = _Penalising(model, repetition_penalty, end)
    options = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    new = chain.from_iterable(rounds(model, ids, rng, propose, end, tokenizer.vocab_size, **options))
    new = islice(new, min(tokens, sys.maxsize))
    yield from _until(_characters(tokenizer, takewhile(lambda token: token != end, new)), stop)


def _begin(tokenizer, prompt):
    """Return the ids that generation continues: the begin token and the prompt, or a line feed if both are empty."""
    begin = tokenizer.begin
    ids = ([] if begin is None else [begin]) + [int(token) for token in tokenizer.encode(prompt)]
    return ids or [int(token) for token in tokenizer.encode("\n")]  # the model needs at least one token


def unread(model: GPT, tokenizer: Tokenizer, prompt: str) -> int:
    """Return how many tokens at the start of a prompt `stream` ignores, because they do not fit into the context."""
    return max(0, len(_begin(tokenizer, prompt)) - model.config.context)


def _characters(tokenizer, tokens):
    """Yield the text of tokens as soon as characters are complete."""
    characters = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        if piece := characters.decode(tokenizer.token_bytes[token]):
            yield piece
    if piece := characters.decode(b"", final=True):
        yield piece


def _until(pieces, stop):
    """Yield pieces up to the first occurrence of a text in `stop`, holding back text that may be the start of one."""
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
    """Return logits [V] with a penalty on the tokens seen so far.

    seen: token ids; penalty: divides their positive logits and multiplies their negative ones, so above 1 makes
    repetition less likely. Keskar et al., "CTRL: A Conditional Transformer Language Model for Controllable Generation"
    (2019), section 4.1, always divides, which would make a token with a negative logit more likely; Hugging Face's
    `RepetitionPenaltyLogitsProcessor` multiplies too.
    """
    logits, at = logits.copy(), np.fromiter(seen, np.intp, len(seen))
    logits[at] = np.where(logits[at] < 0, logits[at] * penalty, logits[at] / penalty)
    return logits


class _Penalising:
    """A model and its decoder for `generate_tokens`, with a penalty on all tokens read so far except `free`."""

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
    """Return the continuation of `prompt` as one string; options as for `stream`."""
    return "".join(stream(model, tokenizer, prompt, tokens, **options))
