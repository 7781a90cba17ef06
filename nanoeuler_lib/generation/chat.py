"""Chat with a fine-tuned model: yield its reply piece by piece. `text.chat_template` says how turns are written."""

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
    """A conversation with a model. `reply` answers; `turns` holds what was said, as pairs (text, reply).

    ended: whether the last reply came to its end marker; else it was cut where `tokens` or the context ended.
    template: a name in TEMPLATES, the one that the model was fine-tuned with. When the context is full, the oldest
    turns are forgotten, except the very first, which often says what all is about; `forgotten` counts them. Raises
    NanoEulerError if the model was not fine-tuned, or there is no such template.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, template: str = "plain"):
        if template not in TEMPLATES:
            raise NanoEulerError(f"template is {short(template)}, expected one of {', '.join(TEMPLATES)}")
        self.model, self.tokenizer, self.prompt_of = model, tokenizer, TEMPLATES[template]
        self.end, *others = markers(tokenizer)
        self.never = np.array(others)  # a reply holds no marker but its end
        self.decoder, self.fed = model.decoder(), []
        self.reset()

    def reset(self) -> None:
        """Forget all that was said."""
        self.turns: list[tuple[str, str]] = []
        self.rows: list[list[int]] = []  # the tokens of each turn that is remembered
        self.forgotten, self.ended = 0, False

    def reply(self, text: str, tokens: int = 200, seed: int = 0, **options: float) -> Iterator[str]:
        """Yield the reply to a text piece by piece, whole characters only, until its end marker.

        tokens: at most this many; options: those of `generate.sample`. A reply that is broken off (its iterator closed,
        Ctrl-C) is remembered as far as it came. Raises NanoEulerError when the text alone fills the context.
        """
        context, prompt = self.model.config.context, encode_turn(self.tokenizer, self.prompt_of(text))
        if len(prompt) > (most := context - 2):
            raise NanoEulerError(
                f"text has {len(prompt)} tokens with its markers, expected at most {most}: the model reads {context} "
                "at a time, a story and a question together"
            )
        room = min(tokens, max(context // 16, 1))  # what a reply gets at least, before turns are forgotten
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
        """Set the decoder back to where its tokens begin to differ from those wanted. Returns the rest of these."""
        seen, same = self.fed[: self.decoder.length], 0
        while same < min(len(seen), len(wanted) - 1) and seen[same] == wanted[same]:
            same += 1
        self.decoder.length, self.fed = same, wanted
        return wanted[same:]

    def messages(self) -> list[dict[str, str]]:
        """What was said, in the form that chat data usually has: role and content."""
        roles = ("user", "assistant")
        return [{"role": role, "content": text} for turn in self.turns for role, text in zip(roles, turn)]
