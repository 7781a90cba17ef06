"""Evaluate a model token by token on Königsberg's stories, whose source is known, and find malformed replies."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from konigsberg import GRAMMAR, Story, token_truth
from nanoeuler_book.town import token_costs
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text.chat_template import ASSISTANT, USER, alpaca_prompt
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer


@dataclass(frozen=True)
class Measured:
    """A model compared with the source over many stories. All arrays are [n] for n tokens.

    nats: the model's loss at each token; right: whether the model's most likely token is the actual token; bits: the
    source's loss at each token (`town.token_costs`); tag: konigsberg.FREE, GRAMMAR or FACT (`konigsberg.token_truth`);
    words: distance to the fact in words, -1 if no fact decides the token; bytes: total size of the stories.
    """

    nats: np.ndarray
    right: np.ndarray
    bits: np.ndarray
    tag: np.ndarray
    words: np.ndarray
    bytes: int

    @property
    def bits_per_byte(self) -> float:
        """The model's loss on the stories, in bits per byte."""
        return float(self.nats.sum() / np.log(2) / self.bytes)

    @property
    def floor(self) -> float:
        """The source's loss on the same stories, in bits per byte."""
        return float(self.bits.sum() / self.bytes)

    def accuracy(self, tag: int, beyond: int = -1) -> float:
        """Return the model's accuracy on the tokens with a tag; NaN if no token has the tag.

        beyond: count only tokens more than `beyond` words after their fact; -1: count all tokens with the tag.
        """
        chosen = (self.tag == tag) & ((self.words > beyond) if beyond >= 0 else True)
        return float(self.right[chosen].mean()) if chosen.any() else float("nan")


def measure(
    model: GPT | Callable[[np.ndarray], np.ndarray], tokenizer: Tokenizer, stories: Iterable[Story], rows: int = 16
) -> Measured:
    """Compare a model with the source on stories, one per row after an end-of-text token.

    model: a GPT, or a function from tokens [B, T] to log-probabilities [B, T, V] of the next token, in nats; rows:
    stories per batch. Stories longer than a GPT's context are skipped. The end of a story is scored too (its cost under
    the source is 0 bits). Raises NanoEulerError if no story is left. Chapter 02.
    """
    end, longest = tokenizer.special_tokens[END_OF_TEXT], math.inf
    if isinstance(model, GPT):
        longest, model = model.config.context, partial(log_probabilities, model)
    pairs = [(story, np.asarray(tokenizer.encode(story.text)).astype(np.int64)) for story in stories]
    pairs = [(story, ids) for story, ids in pairs if len(ids) < longest]
    if not pairs:
        raise NanoEulerError(f"stories must include one of fewer than {longest} tokens, got none")
    time = 1 + max(len(ids) for _, ids in pairs)
    nats, right, truths, costs = [], [], [], []
    for start in range(0, len(pairs), rows):
        group = pairs[start : start + rows]
        inputs = np.full((len(group), time), end, np.int64)
        targets = np.full((len(group), time), -1, np.int64)
        for row, (_, ids) in enumerate(group):
            inputs[row, 1 : len(ids) + 1] = ids
            targets[row, : len(ids) + 1] = np.append(ids, end)
        log_p, scored = model(inputs), targets >= 0
        nats.append(-log_p[scored, targets[scored]])
        right.append((log_p.argmax(axis=-1) == targets)[scored])
        truths += [token_truth(story.text, tokenizer.token_lengths[ids]) for story, ids in group]
        costs += [token_costs(story.text, tokenizer) for story, _ in group]

    def joined(values, at_end):
        return np.concatenate([np.append(value, at_end) for value in values])

    return Measured(
        nats=np.concatenate(nats).astype(np.float64),
        right=np.concatenate(right),
        bits=joined(costs, 0.0),
        tag=joined([truth.tag for truth in truths], GRAMMAR),
        words=joined([truth.words for truth in truths], -1),
        bytes=sum(len(story.text.encode()) for story, _ in pairs),
    )


def log_probabilities(model: GPT, tokens: np.ndarray) -> np.ndarray:
    """Return the log-probabilities of the next token (head 0) in nats: tokens [B, T] -> [B, T, V]."""
    logits = model.logits(tokens)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


# ---- Malformed replies

# Text that belongs in prompts only: special markers, and the headings and first words of Alpaca's template.
TEMPLATE = (
    END_OF_TEXT,
    USER,
    ASSISTANT,
    *re.findall(r"^### .*|^Below is an instruction", alpaca_prompt("x", "x"), re.M),
)
PERIOD, TIMES = 12, 4  # a loop: at most PERIOD words, repeated TIMES times in a row,
SENTENCE, COPIES = 5, 3  # or a sentence of at least SENTENCE words that occurs COPIES times


def fault(reply: str, ended: bool) -> str | None:
    """Return the fault in the form of a reply: "unended", "empty", "marker", "loop", or None if the form is correct.

    ended: whether the model ended the reply itself (`chat.Chat.ended`). A marker is a piece of the prompt's template. A
    loop is a sequence of 1 to PERIOD words that occurs TIMES times in a row, or a sentence of at least SENTENCE words
    that occurs COPIES times. Of the human replies in Dolly, fewer than one in a thousand have a fault.
    """
    if not ended:
        return "unended"
    if not reply.strip():
        return "empty"
    if any(piece in reply for piece in TEMPLATE):
        return "marker"
    return "loop" if loops(reply) else None


def loops(text: str) -> bool:
    """Return whether a text repeats itself, as `fault` defines a loop."""
    words = text.lower().split()
    for period in range(1, PERIOD + 1):
        run = 0  # successive words equal to the word one period earlier
        for before, word in zip(words, words[period:]):
            run = run + 1 if word == before else 0
            if run == period * (TIMES - 1):
                return True
    sentences = (part.split() for part in re.split(r"(?<=[.!?])\s+|\n", text.lower()))
    copies = Counter(" ".join(part) for part in sentences if len(part) >= SENTENCE)
    return max(copies.values(), default=0) >= COPIES
