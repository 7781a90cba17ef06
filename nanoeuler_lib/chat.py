"""Talking with a fine-tuned model: turns, markers, a reply that comes piece by piece, and the loop around it.

A conversation is one sequence of tokens:

    <|endoftext|> <|user|> what is asked <|assistant|> the reply <|endoftext|> <|user|> ...

The markers are special tokens. What a person types is encoded as plain text, in which no special token ever stands, so
typing a marker's name cannot end a turn or speak in the model's name. Chapter 20.
"""

import codecs
import json
import os
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from nanoeuler_lib import world
from nanoeuler_lib.errors import NanoEulerError, did_you_mean, short
from nanoeuler_lib.files import one_line, write_text
from nanoeuler_lib.generate import sample
from nanoeuler_lib.model import GPT
from nanoeuler_lib.tokenizer import END_OF_TEXT, Tokenizer

USER, ASSISTANT = "<|user|>", "<|assistant|>"


def plain_prompt(text: str) -> str:
    """What a user says, as it is: for stories whose questions need no introduction."""
    return text


def alpaca_prompt(text: str, context: str = "") -> str:
    """An instruction, and what it is about if anything, in the words of Stanford Alpaca (Taori et al. 2023)."""
    paired = ", paired with an input that provides further context" if context else ""
    about = f"### Input:\n{context}\n\n" if context else ""
    return (
        f"Below is an instruction that describes a task{paired}. "
        "Write a response that appropriately completes the request.\n\n"
        f"### Instruction:\n{text}\n\n{about}### Response:\n"
    )


TEMPLATES = {"plain": plain_prompt, "alpaca": alpaca_prompt}


def markers(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """The ids of the end, user and assistant markers. Raises NanoEulerError for a tokenizer without them."""
    names = (END_OF_TEXT, USER, ASSISTANT)
    if missing := [name for name in names if name not in tokenizer.special_tokens]:
        raise NanoEulerError(
            f"tokenizer has no {' '.join(missing)}, expected that of a model made to answer (nanoeuler sft)"
        )
    return tuple(tokenizer.special_tokens[name] for name in names)


def encode_turn(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """A user's turn as token ids, up to where the model's reply begins. Special tokens in the prompt are plain text."""
    _, user, assistant = markers(tokenizer)
    return [user, *tokenizer.encode(prompt).tolist(), assistant]


class Chat:
    """A conversation with a model. `reply` answers; `turns` holds what was said, as pairs (text, reply).

    ended: whether the last reply came to its end marker; else it was cut where `tokens` or the context ended.
    template: a name in TEMPLATES, the one that the model was fine-tuned with. When the context is full, turns are
    forgotten, the oldest first but for the very first, which often says what all is about; `forgotten` counts them.
    Raises NanoEulerError if the model was not fine-tuned, or there is no such template.
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
        said, pieces, self.ended = [], [], False
        try:
            while len(said) < tokens and self.decoder.length + len(fresh) <= context:
                logits = self.decoder.feed(np.array(fresh))[: self.tokenizer.vocab_size]
                logits[self.never] = -np.inf
                token = sample(logits, rng, **options)
                if token == self.end:
                    self.ended = True
                    break
                said.append(token)
                self.fed.append(token)
                fresh = [token]
                if piece := characters.decode(self.tokenizer.token_bytes[token]):
                    pieces.append(piece)
                    yield piece
            if piece := characters.decode(b"", final=True):
                pieces.append(piece)
                yield piece
        finally:
            if said or self.ended:
                self.rows.append([*prompt, *said, self.end])
                self.turns.append((text, "".join(pieces)))

    def _not_yet_fed(self, wanted):
        """Set the decoder back to where the tokens that it has seen part from those wanted. Returns the rest."""
        seen, same = self.fed[: self.decoder.length], 0
        while same < min(len(seen), len(wanted) - 1) and seen[same] == wanted[same]:
            same += 1
        self.decoder.length, self.fed = same, wanted
        return wanted[same:]

    def messages(self) -> list[dict[str, str]]:
        """What was said, in the form that chat data usually has: role and content."""
        roles = ("user", "assistant")
        return [{"role": role, "content": said} for turn in self.turns for role, said in zip(roles, turn)]


HELP = """/story [SEED]     a new story from Königsberg and the questions it answers; each line after it asks about it.
                  A story of your own, in one line with its question, takes its place
/reset            forget the story and what was said
/temperature T    0, the likeliest answer, is the default
/save FILE        write what was said, in lines of JSON that `nanoeuler sft --data FILE` reads
/quit             end; so does Ctrl-D. Ctrl-C stops a reply"""
COMMANDS = [line.split()[0] for line in HELP.splitlines() if line.startswith("/")]
TOLD_AND_ASKED = re.compile(r'(.*\."?) +(\S.*)')  # a story, and its question behind the last full stop


class Loop:
    """The loop of `nanoeuler chat`: lines in, replies and what commands say out.

    While a story stands, each line asks about it in a conversation of its own, so that no earlier story or answer is in
    the model's context. Without one, lines are the turns of one conversation.

    write: called with each piece of text; tokens, seed, options: those of `Chat.reply`; each turn takes the next seed.
    stories: begin with an empty story: for a model that was taught to answer about stories and nothing else. Raises
    NanoEulerError on options that `generate.sample` refuses.
    """

    def __init__(
        self,
        chat: Chat,
        write: Callable[[str], None],
        tokens: int = 200,
        seed: int = 0,
        stories: bool = False,
        **options,
    ):
        # bad options end here, not in the first reply
        sample(np.zeros(1), np.random.default_rng(0), **options)
        self.chat, self.write, self.tokens, self.seed, self.options = chat, write, tokens, seed, options
        self.no_story = "" if stories else None
        self.story: str | None = self.no_story
        self.over: list[list[dict[str, str]]] = []  # conversations that are over, as messages

    def line(self, text: str) -> bool:
        """Answer a line, or do what it commands. Returns whether to go on."""
        command, _, argument = text.strip().partition(" ")
        if command == "/quit":
            return False
        try:
            if command.startswith("/"):
                self._command(command, argument.strip())
            elif command:
                self._answer(text.strip())
        except NanoEulerError as error:
            self.write(f"{error}\n")
        return True

    def _answer(self, text):
        story = self.story
        if story is not None:
            if own := TOLD_AND_ASKED.fullmatch(text):
                story, text = own.groups()
            text = f"{story} {text}".strip()
            self._end_conversation()
        forgotten = self.chat.forgotten
        try:
            for piece in self.chat.reply(text, self.tokens, self._next_seed(), **self.options):
                self.write(piece)
        except KeyboardInterrupt:
            self.write(" ...")
        self.story = story  # not before: a story that was refused takes no other's place
        self.write("\n")
        if lost := self.chat.forgotten - forgotten:
            context = self.chat.model.config.context
            turns = "an earlier turn is" if lost == 1 else f"{lost} earlier turns are"
            self.write(f"(the model reads {context} tokens at a time: {turns} forgotten)\n")

    def _end_conversation(self):
        if self.chat.turns:
            self.over.append(self.chat.messages())
        self.chat.reset()

    def _next_seed(self):
        self.seed += 1
        return self.seed - 1

    def _command(self, command, argument):
        if command == "/reset":
            self.chat.reset()
            self.story, self.over = self.no_story, []
        elif command == "/temperature":
            self.options["temperature"] = _number(argument, float, "temperature", 0, 100)
        elif command == "/story":
            seed = _number(argument, int, "seed", 0, 2**63) if argument else self._next_seed()
            self._end_conversation()
            story = world.sample(seed)
            self.story = story.body
            asks = " ".join(question.text for question in story.questions)
            self.write(f"{story.body}\n(It answers: {asks})\n")
        elif command == "/save":
            self._save(argument)
        elif command == "/help":
            self.write(f"{HELP}\n")
        else:
            hint = did_you_mean(command, COMMANDS)
            raise NanoEulerError(
                f"{one_line(command, 60)} is no command{hint or ','} expected one of these:\n{HELP}"
            )

    def _save(self, name):
        said = [*self.over, *([self.chat.messages()] if self.chat.turns else [])]
        if not said:
            raise NanoEulerError("/save: nothing was said yet, expected a turn")
        if not name or _taken(name):
            raise NanoEulerError(f"/save: got {short(name)}, expected the name of a new file")
        lines = [json.dumps({"messages": messages}, ensure_ascii=False) + "\n" for messages in said]
        write_text(Path(name), "".join(lines))
        turns = sum(map(len, said)) // 2
        self.write(f"{name}: {turns} turn{'s' * (turns != 1)}\n")


def _taken(name):
    """Whether no new file can have this name. Path.exists() hides the system's errors since Python 3.14."""
    try:
        os.stat(name)
    except (FileNotFoundError, NotADirectoryError):  # of its folder speaks who writes the file
        return False
    except (OSError, ValueError):  # too long, or with a NUL
        return True
    return True


def _number(text, kind, name, low, high):
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise NanoEulerError(f"{name} is {short(text)}, expected a number from {low} to {high}")
    return value
