"""Test `nanoeuler chat` line by line: what it writes, passes to the chat, and refuses."""

import json
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from oracles import error_of
from test_chat import CONFIG, TOKENIZER

import konigsberg
from nanoeuler_lib.command import ask
from nanoeuler_lib.command.ask import HELP, Loop
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generation import chat
from nanoeuler_lib.generation.chat import Chat
from nanoeuler_lib.model import GPT
from nanoeuler_lib.training import checkpoint


class Listener:
    """A chat that records its questions."""

    def __init__(self):
        self.turns, self.forgotten, self.asked, self.forgets = [], 0, [], 0
        self.model = SimpleNamespace(config=SimpleNamespace(context=128))

    def reply(self, text, tokens, seed, **options):
        self.asked.append((text, tokens, seed, options))
        self.forgotten += self.forgets
        self.turns.append((text, "ü"))
        yield from ("a", "b")

    def messages(self):
        return [{"role": role, "content": text} for turn in self.turns for role, text in zip("ua", turn)]

    def reset(self):
        self.turns = []


@pytest.fixture
def loop():
    written = []
    made = Loop(Listener(), written.append, temperature=0.5)

    def line(text):
        """Return what the loop writes for a line; the loop must continue."""
        assert made.line(text)
        said = "".join(written)
        written.clear()
        return said

    return SimpleNamespace(loop=made, chat=made.chat, line=line)


def test_a_line_is_a_turn_with_the_next_seed(loop):
    assert [loop.line(text) for text in (" hi  there \n", "x", " \n")] == ["ab\n", "ab\n", ""]
    warm = {"temperature": 0.5}
    assert loop.chat.asked == [("hi  there", 200, 0, warm), ("x", 200, 1, warm)]
    made = Loop(Listener(), str, 7, 9, top_k=3)
    made.line("x")
    assert made.chat.asked == [("x", 7, 9, {"top_k": 3})]
    assert error_of(Loop, Listener(), str, temperature=-1) == "temperature must be 0 to 100, got -1"


def told(seed):
    """What /story writes."""
    story = konigsberg.sample(seed)
    return f"{story.body}\n(It answers: {' '.join(question.text for question in story.questions)})\n"


def test_a_story_stands_before_every_question_and_none_before_it_is_heard(loop):
    body = konigsberg.sample(5).body
    loop.line("hi")
    assert loop.line("/story  5 ") == told(5) and loop.chat.turns == []
    for text in ("hello", "Who?", "Where?"):
        loop.line(text)
        assert loop.chat.turns == [(f"{body} {text}", "ü")]  # the conversation contains nothing else
    assert loop.line("/story") == told(4)  # the next seed, since the four turns used seeds 0 to 3
    loop.line("x")
    assert loop.chat.asked[-1][:1] + loop.chat.asked[-1][2:3] == (f"{konigsberg.sample(4).body} x", 5)
    loop.line("/story 0")
    loop.line("/reset")
    for text in ("y", "z"):
        loop.line(text)
        assert loop.chat.asked[-1][0] == text
    assert len(loop.chat.turns) == 2  # a conversation again
    assert loop.line(f"/story {2**63}") == told(2**63)


OWN = 'He came. "I knew it." Käthe has the ring.'
ASKED = {  # does the model know only stories; the lines; the model's questions; turns of the last conversation
    "a typed story": (
        False, ["/story 5", f"{OWN}  Who has it?", "Who else?"], [f"{OWN} Who has it?", f"{OWN} Who else?"], 1),
    "a typed story that ends with a quotation": (False, ["/story 5", 'Then: "So."  Why?'], ['Then: "So." Why?'], 1),
    "a model of stories": (
        True, ["hi", "It rained. Where?", "Who?", "/reset", "Who?"],
        ["hi", "It rained. Where?", "It rained. Who?", "Who?"], 1),
    "without a story": (False, ["It rained. Where?", "Who?"], ["It rained. Where?", "Who?"], 2),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_which_story_a_question_is_about(case):
    stories, lines, asked, turns = ASKED[case]
    made = Loop(Listener(), str, stories=stories)
    for text in lines:
        made.line(text)
    assert [words[0] for words in made.chat.asked] == asked and len(made.chat.turns) == turns


@pytest.mark.parametrize("forgets, said", [
    (0, ""), (1, "(the model reads at most 128 tokens, so an earlier turn is forgotten)\n"),
    (2, "(the model reads at most 128 tokens, so 2 earlier turns are forgotten)\n"),
])  # fmt: skip
def test_turns_that_are_forgotten_are_counted_out(loop, forgets, said):
    loop.chat.forgets = forgets
    assert loop.line("x") == loop.line("x") == f"ab\n{said}"


def test_each_conversation_about_a_story_is_saved_as_a_line(loop, tmp_path):
    """Check that the first conversation has no story, and that /reset forgets all conversations."""
    file = tmp_path / "a b.json"
    for text in ("x", "y", "/story 5", "/story 6", "Who?", "Where?", f"/save  {file} "):
        said = loop.line(text)
    assert said == f"{file}: 4 turns\n"
    lines = [json.loads(line)["messages"] for line in file.read_text("utf-8").splitlines()]
    body = konigsberg.sample(6).body
    asked = [[m["content"] for m in line if m["role"] == "u"] for line in lines]
    assert asked == [["x", "y"], [f"{body} Who?"], [f"{body} Where?"]]
    last = json.dumps({"messages": loop.chat.messages()}, ensure_ascii=False)
    assert file.read_text("utf-8").endswith(f"\n{last}\n")
    for name in ("", str(file), "a\0b", "x" * 300):
        assert loop.line(f"/save {name}") == f"/save: FILE must be the name of a new file, got {chat.short(name)}\n"
    none = tmp_path / "none" / "x"
    assert loop.line(f"/save {none}") == f"{none}: cannot be written (No such file or directory)\n"
    loop.line("/reset")
    assert loop.line(f"/save {tmp_path / 'b'}") == "/save: there is no conversation yet\n"


@pytest.mark.parametrize("text, said", [
    ("/help", HELP),
    ("/rest me", f"/rest is not a command, did you mean /reset? expected one of these:\n{HELP}"),
    ("/x\x1by", f"/x\ufffdy is not a command, expected one of these:\n{HELP}"),
    ("/" + "x" * 99, "/" + "x" * 29 + " ... " + "x" * 30 + f" is not a command, expected one of these:\n{HELP}"),
    *((f"/story {x}", f"seed must be a number from 0 to {2**63}, got '{x}'") for x in (-1, 2**63 + 1, "x", 1.5)),
    *((f"/temperature {x}", f"temperature must be a number from 0 to 100, got '{x}'") for x in ("", -1, 101, "nan")),
])  # fmt: skip
def test_commands_are_told(loop, text, said):
    assert loop.line(text) == f"{said}\n" and loop.loop.options == {"temperature": 0.5}
    assert loop.line("/temperature  100 ") == "" and loop.loop.options == {"temperature": 100.0}
    assert not loop.loop.line("/quit") and not loop.loop.line(" /quit now")
    assert all(f"\n{name}" in f"\n{HELP}" for name in ("/reset", "/temperature", "/story", "/save", "/quit"))


def test_a_reply_that_is_stopped(loop):
    def stopped(*_, **__):
        yield "a"
        raise KeyboardInterrupt

    def refused(*_, **__):
        raise NanoEulerError("too long")
        yield

    loop.chat.reply = stopped
    assert loop.line("x") == "a ...\n"
    loop.chat.reply = refused
    loop.line("/story 5")
    for text in ("x", "My own. x"):
        assert loop.line(text) == "too long\n" and loop.loop.story == konigsberg.sample(5).body


# The command that runs the loop.


@pytest.fixture
def talk():
    """Start a conversation that records its lines."""
    lines = []

    class Heard:
        def __init__(self, chat, write, tokens, **options):
            self.write = write

        def line(self, text):
            lines.append(text)
            self.write(f"<{text}\x1b>\n")
            return text != "/quit"

    found = SimpleNamespace(model="model", tokenizer="tokens", info={"template": "alpaca"})
    with (
        patch.object(checkpoint, "load", return_value=found), patch.object(ask, "Loop", Heard),
        patch.object(chat, "Chat", lambda *given: given),
    ):  # fmt: skip
        yield SimpleNamespace(lines=lines, info=found.info)


def test_a_line_that_is_not_utf_8_ends_no_conversation(nanoeuler, talk):
    code, out, err = nanoeuler("chat", stdin=b"a\xff\nb\n")
    assert (code, err, talk.lines) == (0, "", ["b"])
    assert out == "text: must be UTF-8, but character 1 is not UTF-8\n<b\x1b>\n"


def test_ctrl_c_at_the_prompt(nanoeuler, talk):
    """Start a new line on a terminal; without a terminal, end like a program that was interrupted."""
    with patch("builtins.input", side_effect=KeyboardInterrupt):
        assert nanoeuler("chat") == (130, "\n", "")
    with patch("builtins.input", side_effect=[KeyboardInterrupt, "b", EOFError]) as read:
        code, out, err = nanoeuler("chat", terminal=True)
    assert (code, err, talk.lines) == (0, "", ["b"]) and [call.args for call in read.mock_calls] == [("> ",)] * 3
    first, *rest = out.splitlines()
    assert first == "Ask, or /story for a story and its questions, or /help. Ctrl-D ends, Ctrl-C stops a reply."
    assert rest == ["", "<b\ufffd>"]
    talk.info["source"] = "konigsberg"
    with patch("builtins.input", side_effect=EOFError):
        first, *rest = nanoeuler("chat", terminal=True)[1].splitlines()
    assert first == "This model knows stories from Königsberg and a few questions about each, and nothing else."
    assert [line[:5] for line in rest] == ["Ask, "]


# The chat itself.


def test_the_draws_of_a_reply_are_those_of_its_seed():
    model = GPT(CONFIG, seed=5)
    said = lambda seed: "".join(Chat(model, TOKENIZER).reply("ab", 6, seed, temperature=1.0))
    replies = [said(seed) for seed in range(5)]
    assert len(set(replies)) == 5 and replies == [said(seed) for seed in range(5)]
