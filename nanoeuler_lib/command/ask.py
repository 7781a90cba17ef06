"""The loop of `nanoeuler chat`, which answers lines and runs commands such as /story."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from nanoeuler_lib.errors import NanoEulerError, did_you_mean, short
from nanoeuler_lib.files import one_line, write_text
from nanoeuler_lib.generation.chat import Chat
from nanoeuler_lib.generation.generate import sample

HELP = """/story [SEED]     show a new story from Königsberg and questions it answers; your next lines ask about it.
                  To use a story of your own, write it in one line, followed by a question
/reset            forget the story and the conversation
/temperature T    set the sampling temperature; 0, the default, gives the most likely answer
/save FILE        write the conversation as lines of JSON that `nanoeuler sft --data FILE` reads
/quit             end the chat, as Ctrl-D does; Ctrl-C stops a reply"""
COMMANDS = [line.split()[0] for line in HELP.splitlines() if line.startswith("/")]
STORY_AND_QUESTION = re.compile(r'(.*\."?) +(\S.*)')  # a story, and its question after the last full stop


class Loop:
    """Answer lines with a chat model and run commands such as /story.

    After /story, each line asks about the story in a new conversation, so that the context has no earlier story or
    answer. Without a story, the lines are the turns of one conversation. write: called with each piece of text; tokens,
    seed, options: of `Chat.reply`, each turn with the next seed; stories: begin with an empty story, for a model that
    answers only about stories. Raises NanoEulerError if `generate.sample` does not accept the options.
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
        # raise an error for bad options now, not in the first reply
        sample(np.zeros(1), np.random.default_rng(0), **options)
        self.chat, self.write, self.tokens, self.seed, self.options = chat, write, tokens, seed, options
        self.no_story = "" if stories else None
        self.story: str | None = self.no_story
        self.over: list[list[dict[str, str]]] = []  # earlier conversations, as messages

    def line(self, text: str) -> bool:
        """Answer a line or run its command. Returns whether the chat continues."""
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
            if match := STORY_AND_QUESTION.fullmatch(text):
                story, text = match.groups()
            text = f"{story} {text}".strip()
            self._end_conversation()
        forgotten = self.chat.forgotten
        try:
            for piece in self.chat.reply(text, self.tokens, self._next_seed(), **self.options):
                self.write(piece)
        except KeyboardInterrupt:
            self.write(" ...")
        self.story = story  # set only now, because a story that is too long must not replace the one before
        self.write("\n")
        if lost := self.chat.forgotten - forgotten:
            context = self.chat.model.config.context
            turns = "an earlier turn is" if lost == 1 else f"{lost} earlier turns are"
            self.write(f"(the model reads at most {context} tokens, so {turns} forgotten)\n")

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
            import konigsberg

            story = konigsberg.sample(seed)
            self.story = story.body
            asks = " ".join(question.text for question in story.questions)
            self.write(f"{story.body}\n(It answers: {asks})\n")
        elif command == "/save":
            self._save(argument)
        elif command == "/help":
            self.write(f"{HELP}\n")
        else:
            name, hint = one_line(command, 60), did_you_mean(command, COMMANDS) or ","
            raise NanoEulerError(f"{name} is not a command{hint} expected one of these:\n{HELP}")

    def _save(self, name):
        conversations = [*self.over, *([self.chat.messages()] if self.chat.turns else [])]
        if not conversations:
            raise NanoEulerError("/save: there is no conversation yet")
        if not name or _taken(name):
            raise NanoEulerError(f"/save: FILE must be the name of a new file, got {short(name)}")
        lines = [json.dumps({"messages": messages}, ensure_ascii=False) + "\n" for messages in conversations]
        write_text(Path(name), "".join(lines))
        turns = sum(map(len, conversations)) // 2
        self.write(f"{name}: {turns} turn{'s' * (turns != 1)}\n")


def _taken(name):
    """Return whether a new file cannot have this name. Since Python 3.14, Path.exists() hides the system's errors."""
    try:
        os.stat(name)
    except (FileNotFoundError, NotADirectoryError):  # a missing folder is reported when the file is written
        return False
    except (OSError, ValueError):  # the name is too long or has a NUL
        return True
    return True


def _number(text, kind, name, low, high):
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise NanoEulerError(f"{name} must be a number from {low} to {high}, got {short(text)}")
    return value
