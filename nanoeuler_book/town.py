"""Compute the source's distribution over the tokens of a tokenizer, and the cost of each token of a story.

`story.byte_costs` gives the cost of each byte, but a model predicts tokens, and the two costs differ token by token.
For example, let ` out` be tokenized as ` ` + `ou` + `t`, while most words are one token that includes their space. Then
a bare space already reveals that a rare word follows. Byte by byte, the space costs nothing, because every word begins
with a space. Token by token, the space costs 3 bits, and `ou` costs almost nothing. Over a complete story both costs
have the same sum. To compare a model with the source token by token, use the costs of this module.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import cache, lru_cache
from random import Random
from typing import NamedTuple

import numpy as np

from konigsberg import wordings
from konigsberg.grammar import Branch, Mark, Path, Reader, Slot, Tale
from konigsberg.stories import PHRASES, tell
from konigsberg.story import stories
from konigsberg.tasks import RouteProblem, preference, question_of, valid_answers
from nanoeuler_lib.text.sft_data import Example, Pair
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer


def next_tokens(text: str, tokenizer: Tokenizer) -> tuple[list[int], list[dict[int, float]]]:
    """Return the ids [T] of a story, and the source's distribution over the next token at every position.

    The second list has T+1 entries {token: probability}, exact up to rounding: entry i is conditioned on the tokens
    before token i; the last entry is the end of text. Raises KonigsbergError if the text is not a story of Königsberg.
    Chapters 00 and 02.
    """
    reader = TokenReader(text, tokenizer)
    tell(Tale(reader, PHRASES))
    return reader.ids, [*reader.next, {tokenizer.special_tokens[END_OF_TEXT]: 1.0}]


@lru_cache(maxsize=1 << 12)  # a run measures the same stories many times
def token_costs(text: str, tokenizer: Tokenizer) -> np.ndarray:
    """Return -log2 P(token | the tokens before it) for the tokens of a story, in bits, read-only float64 [T].

    They sum to `code_length(text)`. Raises KonigsbergError if the text is not a story of Königsberg.
    """
    ids, rows = next_tokens(text, tokenizer)
    bits = -np.log2([row[token] for token, row in zip(ids, rows, strict=False)]) + 0.0  # not -0
    bits.setflags(write=False)
    return bits


class Beginning(NamedTuple):
    """A partly expanded text of a step: the bytes so far and the parts still to come."""

    told: bytes
    rest: tuple[bytes | Slot | Mark, ...]
    share: float  # its probability within the step
    drawn: dict
    root: int  # index of its template among the step's


class TokenReader(Reader):
    """Parse a story as `Reader` does, and compute the source's distribution over the next token before each token.

    The source chooses texts, not tokens. So the probability of a token is the probability of all texts whose tokens
    begin with the tokens read so far and continue with that token. No token crosses the space before a word, and a
    word's tokens are known once the word is complete, so each text is expanded word by word. Steps begin and end at
    word boundaries.

    `next[i]` is {token: probability} before token i of the story.
    """

    def __init__(self, text: str, tokenizer: Tokenizer):
        super().__init__(text.encode())
        self.ids = tokenizer.encode(text).tolist()
        self.next: list[dict[int, float]] = []
        self.token_bytes = tokenizer.token_bytes
        self.encode = cache(lambda word: tokenizer.encode(word.decode()).tolist())

    def choose(self, roots: list[Branch], branches: Callable[..., list[Branch]]) -> Path:
        """Find the derivation of a step, as `Reader` does, and compute the distribution at each token of the step."""
        start, at = self.at, 0
        path = super().choose(roots, branches)
        step = self.text[start : path.at]
        # every text whose tokens agree with ours so far, each with those of its next tokens that are known
        ahead = [([], Beginning(b"", root.parts, root.share, {}, i)) for i, root in enumerate(roots)]
        while at < len(step):
            token = self.ids[len(self.next)]
            texts = followed([text for ids, text in ahead if not ids], step[:at], branches)
            ahead = [pair for pair in ahead if pair[0]]
            ahead += [(self.encode(text.told[at : word_end(text.told, at)]), text) for text in texts]
            self.before(ahead)
            ahead = [(ids[1:], text) for ids, text in ahead if ids[0] == token]
            at += len(self.token_bytes[token])
        return path

    def before(self, ahead: list[tuple[list[int], Beginning]]) -> None:
        """Record the distribution over the next token: the first token of each text, weighted by its probability."""
        found = defaultdict(float)
        for ids, text in ahead:
            found[ids[0]] += text.share
        total = sum(found.values())
        self.next.append({token: share / total for token, share in found.items()})


def word_end(text: bytes, at: int) -> int | None:
    """Return the end of the word that begins at a byte, which is the next space; None if no space follows."""
    end = text.find(b" ", at + 1)
    return None if end < 0 else end


def followed(texts: list[Beginning], known: bytes, branches: Callable[..., list[Branch]]) -> list[Beginning]:
    """Return the texts that agree with `known`, each expanded to the end of the word that follows `known`."""
    stack, found = list(texts), []
    while stack:
        text = stack.pop()
        told, rest, share, drawn, root = text
        if not (told.startswith(known) or known.startswith(told)):
            continue
        if not rest or word_end(told, len(known)) is not None:
            found.append(text)
        elif isinstance(rest[0], Slot):
            for way in branches(rest[0], drawn):
                now = drawn | {rest[0].name: way.draws} if way.draws else drawn
                stack.append(Beginning(told, way.parts + rest[1:], share * way.share, now, root))
        else:
            part = rest[0].text if isinstance(rest[0], Mark) else rest[0]
            stack.append(Beginning(told + part, rest[1:], share, drawn, root))
    return found


# ---- Stories as turns of a conversation, for fine-tuning and preference training. Chapters 20 and 21


def konigsberg_examples(count: int, seed: int, reworded: bool = False) -> list[Example]:
    """Make one conversation per story with all its questions in random order; the first message contains the story.

    reworded: draw the wording of each question from the training wordings (`konigsberg.wordings`) instead of always
    using the corpus's wording.
    """
    random = Random(seed)
    examples = []
    for story in stories(count, seed):
        questions = random.sample(story.questions, len(story.questions))
        asked = [wordings.reworded(story, question, random) if reworded else question.text for question in questions]
        asked[0] = f"{story.body} {asked[0]}"
        examples.append([(text, question.answer) for text, question in zip(asked, questions, strict=True)])
    return examples


def konigsberg_pairs(count: int, seed: int) -> list[Pair]:
    """Make preference pairs: a story with a question, a reply with the true reason and a reply with a wrong reason."""
    random, pairs = Random(seed), []
    for _ in range(count):
        drawn = preference(random.getrandbits(32))
        prompt = " ".join(drawn.prompt.split("\n")).strip()
        pairs.append(([(prompt, drawn.chosen)], [(prompt, drawn.rejected)]))
    return pairs


def route_examples(problems: list[RouteProblem], seed: int) -> list[Example]:
    """Make examples from route problems: the question and one of its valid answers of at most three bridges."""
    random, right = Random(seed), {}
    for problem in problems:
        if (question := question_of(problem)) not in right:
            right[question] = valid_answers(problem)
    return [[(problem.prompt, random.choice(right[question_of(problem)]))] for problem in problems]
