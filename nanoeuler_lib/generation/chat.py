"""Chat with a fine-tuned model. `text.chat_template` defines the format of the turns; chapter 20."""

import codecs
from collections.abc import Iterator
from itertools import chain

import numpy as np

from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.generation.generate import sample
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text.chat_template import TEMPLATES, encode_turn, markers
from nanoeuler_lib.text.tokenizer import Tokenizer


class Chat:
    """Hold a conversation with a model: `reply` answers a text, and `turns` lists the pairs (text, reply) so far.

    template: a name in TEMPLATES, as in fine-tuning; ended: whether the last reply reached its end marker. When the
    context is full, the oldest turns are forgotten, except the very first, which often states the topic; `forgotten`
    counts them. Raises NanoEulerError if the model was not fine-tuned for chat or the template is unknown.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, template: str = "plain"):
        if template not in TEMPLATES:
            raise NanoEulerError(f"template must be one of {', '.join(TEMPLATES)}, got {short(template)}")
        self.model, self.tokenizer, self.prompt_of = model, tokenizer, TEMPLATES[template]
        self.end, *others = markers(tokenizer)
        self.never = np.array(others)  # the user and assistant markers never occur in a reply
        self.decoder, self.fed = model.decoder(), []
        self.reset()

    def reset(self) -> None:
        """Forget the whole conversation."""
        self.turns: list[tuple[str, str]] = []
        self.rows: list[list[int]] = []  # the tokens of each remembered turn
        self.forgotten, self.ended = 0, False

    def reply(self, text: str, tokens: int = 200, seed: int = 0, **options: float) -> Iterator[str]:
        """Yield the reply to a text piece by piece, whole characters only, until its end marker.

        tokens: maximum number; options: those of `generate.sample`. An interrupted reply (iterator closed, Ctrl-C) is
        remembered so far. Raises NanoEulerError if the text leaves no room for a reply in the context.
        """
        context, prompt = self.model.config.context, encode_turn(self.tokenizer, self.prompt_of(text))
        if len(prompt) > (most := context - 2):
            raise NanoEulerError(
                f"text must have at most {most} tokens with its markers, got {len(prompt)}: the context is {context} "
                "tokens, for a story and its question together"
            )
        room = min(tokens, max(context // 16, 1))  # turns are forgotten if a reply has less room than this
        while self.rows and 1 + sum(map(len, self.rows)) + len(prompt) + room > context:
            self.rows.pop(1 if len(self.rows) > 1 else 0)
            self.forgotten += 1
        rng, characters = np.random.default_rng(seed), codecs.getincrementaldecoder("utf-8")("replace")
        fresh = self._not_yet_fed([self.end, *chain(*self.rows), *prompt])
        ids, pieces, self.ended = [], [], False
        try:
            while len(ids) < tokens and self.decoder.length + len(fresh) <= context:
                logits = self.decoder.feed(np.array(fresh))[: self.tokenizer.vocab_size]
                logits[self.never] = -np.inf
                token = sample(logits, rng, **options)
                if token == self.end:
                    self.ended = True
                    break
                ids.append(token)
                self.fed.append(token)
                fresh = [token]
                if piece := characters.decode(self.tokenizer.token_bytes[token]):
                    pieces.append(piece)
                    yield piece
            if piece := characters.decode(b"", final=True):
                pieces.append(piece)
                yield piece
        finally:
            if ids or self.ended:
                self.rows.append([*prompt, *ids, self.end])
                self.turns.append((text, "".join(pieces)))

    def _not_yet_fed(self, wanted):
        """Reset the decoder to the longest common prefix of its tokens and `wanted`; return the rest of `wanted`."""
        seen, same = self.fed[: self.decoder.length], 0
        while same < min(len(seen), len(wanted) - 1) and seen[same] == wanted[same]:
            same += 1
        self.decoder.length, self.fed = same, wanted
        return wanted[same:]

    def messages(self) -> list[dict[str, str]]:
        """Return the conversation as a list of messages with role and content, the usual format of chat data."""
        roles = ("user", "assistant")
        return [{"role": role, "content": text} for turn in self.turns for role, text in zip(roles, turn)]
