"""Compute the source's distribution over the tokens of a tokenizer, and the cost of each token of a story.

A model predicts tokens. `story.byte_costs` has a cost for each byte, and a token's bytes together have the cost of what
the source decides within it; but a model pays where it has to decide, which may be a token earlier. If ` out` is spelt
` ` + `ou` + `t`, and most words are one token with their space, then a bare space says already that a rare word comes.
By bytes the space costs nothing, since all words begin with one; by tokens it costs 3 bits, and `ou` next to nothing.
The two costs have the same sum over a story. Whoever compares a model with the source token by token takes the costs of
this module.
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
    """Return the ids [T] of a story, and what the source might say at each and after the last.

    The second list has T+1 entries {token: probability}, exact but for rounding: entry i is given the tokens before
    token i, and the last one is the end of text. Raises KonigsbergError if the text is no story of Königsberg. Chapters
    00 and 03.
    """
    reader = TokenReader(text, tokenizer)
    tell(Tale(reader, PHRASES))
    return reader.ids, [*reader.next, {tokenizer.special_tokens[END_OF_TEXT]: 1.0}]


@lru_cache(maxsize=1 << 12)  # a run measures the same stories again and again
def token_costs(text: str, tokenizer: Tokenizer) -> np.ndarray:
    """Return -log2 P(token | the tokens before it) for the tokens of a story, in bits, float64 [T], not to be written.

    Their sum is `code_length(text)`. Raises KonigsbergError if the text is no story of Königsberg.
    """
    ids, rows = next_tokens(text, tokenizer)
    bits = -np.log2([row[token] for token, row in zip(ids, rows, strict=False)]) + 0.0  # not -0
    bits.setflags(write=False)
    return bits


class Beginning(NamedTuple):
    """A text that a step may give, as far as it has been followed."""

    told: bytes
    rest: tuple[bytes | Slot | Mark, ...]
    share: float
    drawn: dict
    root: int  # the template it began with, by its place among the step's


class TokenReader(Reader):
    """Reads a story as `Reader` does, and says at each of its tokens what the source might have said there.

    The source chooses texts and not tokens, so the probability of a token is that of all texts whose tokens begin as
    ours and go on with it. No token crosses the space before a word, and which tokens a word becomes is known when the
    word is complete: so each text is followed word by word. A step of a story begins and ends where a word does.

    `next[i]` is {token: probability} before token i of the story.
    """

    def __init__(self, text: str, tokenizer: Tokenizer):
        super().__init__(text.encode())
        self.ids = tokenizer.encode(text).tolist()
        self.next: list[dict[int, float]] = []
        self.token_bytes = tokenizer.token_bytes
        self.encode = cache(lambda word: tokenizer.encode(word.decode()).tolist())

    def choose(self, roots: list[Branch], branches: Callable[..., list[Branch]]) -> Path:
        """Find the derivation of a step, as `Reader` does, and what might have stood at each token of it."""
        start, at = self.at, 0
        path = super().choose(roots, branches)
        step = self.text[start : path.at]
        # every text whose tokens begin as ours, each behind those of its tokens that are known and still to come
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
        """Take down what the next token may be: the first of each of these texts, in proportion to their shares."""
        found = defaultdict(float)
        for ids, text in ahead:
            found[ids[0]] += text.share
        total = sum(found.values())
        self.next.append({token: share / total for token, share in found.items()})


def word_end(text: bytes, at: int) -> int | None:
    """Return where the word that begins at a byte ends, before the next space; None if `text` has none."""
    end = text.find(b" ", at + 1)
    return None if end < 0 else end


def followed(texts: list[Beginning], known: bytes, branches: Callable[..., list[Branch]]) -> list[Beginning]:
    """Return those texts that begin with `known`, each as far as the end of the word behind it."""
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


# ---- Stories as turns of a conversation, for fine-tuning and for preferences. Chapters 20 and 21


def konigsberg_examples(count: int, seed: int, reworded: bool = False) -> list[Example]:
    """Stories, each with all its questions in a random order; only the first turn holds the story.

    reworded: each question in one of the wordings that may be taught (`konigsberg.wordings`), not always in the
    corpus's.
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
    """Stories, each with a question and two replies to it: one that gives the true reason, and one a wrong one."""
    random, pairs = Random(seed), []
    for _ in range(count):
        drawn = preference(random.getrandbits(32))
        prompt = " ".join(drawn.prompt.split("\n")).strip()
        pairs.append(([(prompt, drawn.chosen)], [(prompt, drawn.rejected)]))
    return pairs


def route_examples(problems: list[RouteProblem], seed: int) -> list[Example]:
    """Questions after a route, each with one of its right answers, drawn from those of at most three bridges."""
    random, right = Random(seed), {}
    for problem in problems:
        if (question := question_of(problem)) not in right:
            right[question] = valid_answers(problem)
    return [[(problem.prompt, random.choice(right[question_of(problem)]))] for problem in problems]
