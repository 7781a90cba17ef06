"""How well a model does on Königsberg, where the truth behind each token is known."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from nanoeuler_lib.model import GPT
from nanoeuler_lib.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.world import Story, token_truth


@dataclass(frozen=True)
class Measured:
    """A model beside the truth, token by token over many stories. All arrays are [n] for n tokens.

    nats: the model's surprise; right: whether its most likely token is the one that stands there; bits: the source's
    own surprise; tag: world.FREE, GRAMMAR or FACT; words: distance to the fact in words, -1 where there is none;
    bytes: bytes of the stories.
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


def measure(model: GPT, tokenizer: Tokenizer, stories: Iterable[Story], rows: int = 16) -> Measured:
    """Run a model over stories, each in a row of its own behind an end-of-text token.

    Stories longer than the model's context are left out. The end of a story is scored as well (0 bits at the source).
    """
    end, context = tokenizer.special_tokens[END_OF_TEXT], model.config.context
    pairs = [(story, np.asarray(tokenizer.encode(story.text)).astype(np.int64)) for story in stories]
    pairs = [(story, ids) for story, ids in pairs if len(ids) < context]
    nats, right, truths = [], [], []
    for start in range(0, len(pairs), rows):
        group = pairs[start : start + rows]
        inputs = np.full((len(group), context), end, np.int64)
        targets = np.full((len(group), context), -1, np.int64)
        for row, (_, ids) in enumerate(group):
            inputs[row, 1 : len(ids) + 1] = ids
            targets[row, : len(ids) + 1] = np.append(ids, end)
        losses, best = model.losses(inputs, targets), model.logits(inputs).argmax(axis=-1)
        scored = targets >= 0
        nats.append(losses[scored])
        right.append((best == targets)[scored])
        truths += [token_truth(story.text, tokenizer.token_lengths[ids]) for story, ids in group]

    def joined(values, at_end):
        return np.concatenate([np.append(value, at_end) for value in values])

    return Measured(
        nats=np.concatenate(nats).astype(np.float64),
        right=np.concatenate(right),
        bits=joined([truth.bits for truth in truths], 0.0),
        tag=joined([truth.tag for truth in truths], 1),
        words=joined([truth.words for truth in truths], -1),
        bytes=sum(len(story.text.encode()) for story, _ in pairs),
    )
