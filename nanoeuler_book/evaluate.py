"""How well a model does: on Königsberg, where the truth behind each token is known, and in the form of its replies."""

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
    """A model beside the truth, token by token over many stories. All arrays are [n] for n tokens.

    nats: the model's surprise; right: whether its most likely token is the one that stands there; bits: the surprise of
    the source, which predicts the same tokens (`town.token_costs`); tag: konigsberg.FREE, GRAMMAR or FACT, by what the
    token's bytes cost (`konigsberg.token_truth`); words: distance to the fact in words, -1 where there is none; bytes:
    bytes of the stories.
    """

    nats: np.ndarray
    right: np.ndarray
    bits: np.ndarray
    tag: np.ndarray
    words: np.ndarray
    bytes: int

    @property
    def bits_per_byte(self) -> float:
        return float(self.nats.sum() / np.log(2) / self.bytes)

    @property
    def floor(self) -> float:
        """Bits per byte of the source itself, on the same stories."""
        return float(self.bits.sum() / self.bytes)

    def accuracy(self, tag: int, beyond: int = -1) -> float:
        """Share of right tokens among those of a tag, whose fact is more than `beyond` words away; NaN if none."""
        chosen = (self.tag == tag) & ((self.words > beyond) if beyond >= 0 else True)
        return float(self.right[chosen].mean()) if chosen.any() else float("nan")


def measure(
    model: GPT | Callable[[np.ndarray], np.ndarray],
    tokenizer: Tokenizer,
    stories: Iterable[Story],
    rows: int = 16,
) -> Measured:
    """Run a model over stories, each in a row of its own behind an end-of-text token.

    model: a GPT, or any function from tokens [B, T] to log-probabilities [B, T, V] of the token that comes next, in
    nats. Stories longer than a GPT's context are left out. The end of a story is scored as well (0 bits at the
    source). Raises NanoEulerError if no story is left. Chapter 03.
    """
    end, longest = tokenizer.special_tokens[END_OF_TEXT], math.inf
    if isinstance(model, GPT):
        longest, model = model.config.context, partial(log_probabilities, model)
    pairs = [(story, np.asarray(tokenizer.encode(story.text)).astype(np.int64)) for story in stories]
    pairs = [(story, ids) for story, ids in pairs if len(ids) < longest]
    if not pairs:
        raise NanoEulerError(f"there are no stories of fewer than {longest} tokens, expected at least one")
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
    """Head 0's log-probabilities, [B, T] -> [B, T, V]."""
    logits = model.logits(tokens)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


# ---- Replies of any content

# What only a prompt has: markers, and of Alpaca's template its headings and first words.
TEMPLATE = (
    END_OF_TEXT,
    USER,
    ASSISTANT,
    *re.findall(r"^### .*|^Below is an instruction", alpaca_prompt("x", "x"), re.M),
)
PERIOD, TIMES = 12, 4  # so many words, so often in a row, are a loop
SENTENCE, COPIES = 5, 3  # and so is a sentence of at least so many words that stands there so often


def fault(reply: str, ended: bool) -> str | None:
    """What is wrong with the form of a reply, whatever it says: "unended", "empty", "marker" or "loop"; None: nothing.

    ended: whether the model ended it (`chat.Chat.ended`). A marker is a piece of the template that only the prompt has;
    a loop the same 1 to PERIOD words TIMES in a row, or a sentence of SENTENCE words or more that stands there COPIES
    times. Of the replies that people wrote for Dolly fewer than one in a thousand have a fault.
    """
    if not ended:
        return "unended"
    if not reply.strip():
        return "empty"
    if any(piece in reply for piece in TEMPLATE):
        return "marker"
    return "loop" if loops(reply) else None


def loops(text: str) -> bool:
    """Whether a text says the same over and over (`fault`)."""
    words = text.lower().split()
    for period in range(1, PERIOD + 1):
        run = 0  # words in a row that are the one a period before
        for before, word in zip(words, words[period:]):
            run = run + 1 if word == before else 0
            if run == period * (TIMES - 1):
                return True
    sentences = (part.split() for part in re.split(r"(?<=[.!?])\s+|\n", text.lower()))
    copies = Counter(" ".join(part) for part in sentences if len(part) >= SENTENCE)
    return max(copies.values(), default=0) >= COPIES
