"""The loop of `nanoeuler chat` line by line: what it writes, what it hands on to the chat, what it refuses."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from oracles import error_of
from test_chat import CONFIG, HUMAN, MODEL, TOKENIZER, bigram

import konigsberg
from nanoeuler_lib.command.ask import HELP, Loop
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generation import chat
from nanoeuler_lib.generation.chat import Chat
from nanoeuler_lib.model import GPT


class Listener:
    """A chat that remembers what it is asked, and says so."""

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
    return SimpleNamespace(
        loop=made, chat=made.chat, line=lambda text: (made.line(text), "".join(written), written.clear())[:2]
    )


def test_a_line_is_a_turn_with_the_next_seed(loop):
    assert loop.line(" hi  there \n") == (True, "ab\n")
    assert loop.line("x") == (True, "ab\n") and loop.line(" \n") == (True, "")
    assert loop.chat.asked == [
        ("hi  there", 200, 0, {"temperature": 0.5}),
        ("x", 200, 1, {"temperature": 0.5}),
    ]
    made = Loop(Listener(), str, 7, 9, top_k=3)
    made.line("x")
    assert made.chat.asked == [("x", 7, 9, {"top_k": 3})]


def test_options_are_looked_at_before_the_first_line():
    assert error_of(Loop, Listener(), str, temperature=-1) == "temperature is -1, expected 0 to 100"
    with pytest.raises(TypeError):
        Loop(Listener(), str, warmth=1)


def told(seed):
    """What /story writes."""
    story = konigsberg.sample(seed)
    return f"{story.body}\n(It answers: {' '.join(question.text for question in story.questions)})\n"


def test_a_story_stands_before_every_question_and_none_before_it_is_heard(loop):
    body = konigsberg.sample(5).body
    assert loop.line("hi")[0] and loop.line("/story  5 ") == (True, told(5)) and loop.chat.turns == []
    for text in ("hello", "Who?", "Where?"):
        loop.line(text)
        assert loop.chat.turns == [(f"{body} {text}", "ü")]  # nothing else is in the conversation
    assert loop.line("/story") == (True, told(4))  # the next seed, of which the four turns took 0 to 3
    loop.line("x")
    assert loop.chat.asked[-1][:1] + loop.chat.asked[-1][2:3] == (f"{konigsberg.sample(4).body} x", 5)
    loop.line("/story 0")
    loop.line("/reset")
    for text in ("y", "z"):
        loop.line(text)
        assert loop.chat.asked[-1][0] == text
    assert len(loop.chat.turns) == 2  # a conversation again


@pytest.mark.parametrize("story", ["Käthe has the ring.", 'He came. "I knew it." Käthe has the ring.', 'Then: "So."'])
def test_a_story_of_ones_own_takes_the_place_of_the_one_before(loop, story):
    loop.line("/story 5")
    loop.line(f"{story}  Who has the ring?")
    loop.line("Who else?")
    assert [asked[0] for asked in loop.chat.asked] == [f"{story} Who has the ring?", f"{story} Who else?"]


def test_a_model_of_stories_asks_about_one_from_the_beginning():
    made = Loop(Listener(), str, stories=True)
    for text in ("hi", "It rained. Where?", "Who?", "/reset", "Who?"):
        made.line(text)
    assert [asked[0] for asked in made.chat.asked] == ["hi", "It rained. Where?", "It rained. Who?", "Who?"]
    assert len(made.chat.turns) == 1


def test_without_a_story_a_line_of_several_sentences_is_a_turn(loop):
    for text in ("It rained. Where?", "Who?"):
        loop.line(text)
    assert [turn[0] for turn in loop.chat.turns] == ["It rained. Where?", "Who?"]


def test_turns_that_are_forgotten_are_counted_out(loop):
    loop.chat.forgets = 2
    said = "ab\n(the model reads 128 tokens at a time: 2 earlier turns are forgotten)\n"
    assert loop.line("x") == loop.line("x") == (True, said)
    loop.chat.forgets = 1
    assert loop.line("x") == (True, said.replace("2 earlier turns are", "an earlier turn is"))
    loop.chat.forgets = 0
    assert loop.line("x") == (True, "ab\n")


def test_the_temperature_of_the_next_replies(loop):
    for text, value in (("0", 0.0), ("100", 100.0), (" 2.5 ", 2.5)):
        assert loop.line(f"/temperature {text}") == (True, "") and loop.loop.options == {"temperature": value}
    for text in ("", "-0.1", "100.1", "warm", "nan"):
        assert loop.line(f"/temperature {text}") == (
            True, f"temperature must be a number from 0 to 100, got {text!r}\n",
        )  # fmt: skip
    assert loop.loop.options == {"temperature": 2.5}


def test_the_seed_of_a_story(loop):
    for text in ("-1", str(2**63 + 1), "x", "1.5"):
        shown = f"{text!r}"
        assert loop.line(f"/story {text}") == (
            True,
            f"seed must be a number from 0 to {2**63}, got {shown}\n",
        )
    assert loop.line(f"/story {2**63}") == (True, told(2**63))


def test_each_conversation_about_a_story_is_saved_as_a_line(loop, tmp_path):
    """The first is no story's; /reset forgets them all."""
    for text in ("x", "y", "/story 5", "/story 6", "Who?", "Where?", f"/save {tmp_path / 'a'}"):
        said = loop.line(text)[1]
    assert said == f"{tmp_path / 'a'}: 4 turns\n"
    lines = [json.loads(line)["messages"] for line in (tmp_path / "a").read_text("utf-8").splitlines()]
    body = konigsberg.sample(6).body
    assert [[m["content"] for m in line if m["role"] == "u"] for line in lines] == [
        ["x", "y"], [f"{body} Who?"], [f"{body} Where?"]
    ]  # fmt: skip
    loop.line("/reset")
    assert loop.line(f"/save {tmp_path / 'b'}") == (True, "/save: there is no conversation yet\n")


def test_what_was_said_is_saved_as_one_line(loop, tmp_path):
    file = tmp_path / "a b.json"
    assert loop.line(f"/save {file}") == (True, "/save: there is no conversation yet\n")
    loop.line("x")
    loop.line("y")
    assert loop.line(f"/save  {file} ") == (True, f"{file}: 2 turns\n")
    assert file.read_text("utf-8") == json.dumps({"messages": loop.chat.messages()}, ensure_ascii=False) + "\n"
    for name in ("", str(file), "a\0b", "x" * 300):
        assert loop.line(f"/save {name}") == (
            True, f"/save: FILE must be the name of a new file, got {chat.short(name)}\n",
        )  # fmt: skip
    none = tmp_path / "none" / "x"
    assert loop.line(f"/save {none}") == (True, f"{none}: cannot be written (No such file or directory)\n")


def test_commands_are_told(loop):
    assert loop.line("/help") == (True, f"{HELP}\n") and loop.line("/quit") == (False, "")
    assert loop.line(" /quit now") == (False, "")
    assert loop.line("/rest me") == (
        True, f"/rest is not a command, did you mean /reset? expected one of these:\n{HELP}\n",
    )  # fmt: skip
    assert loop.line("/x\x1by") == (True, f"/x\ufffdy is not a command, expected one of these:\n{HELP}\n")
    assert loop.line("/" + "x" * 99)[1].startswith("/" + "x" * 29 + " ... " + "x" * 30 + " is not a command,")
    for name in ("/reset", "/temperature", "/story", "/save", "/quit"):
        assert f"\n{name}" in f"\n{HELP}"


def test_a_reply_that_is_stopped(loop):
    def reply(*_, **__):
        yield "a"
        raise KeyboardInterrupt

    loop.chat.reply = reply
    assert loop.line("x") == (True, "a ...\n")

    def refuse(*_, **__):
        raise NanoEulerError("too long")
        yield

    loop.chat.reply = refuse
    loop.line("/story 5")
    assert loop.line("x") == (True, "too long\n") and loop.loop.story == konigsberg.sample(5).body
    assert loop.line("My own. x") == (True, "too long\n") and loop.loop.story == konigsberg.sample(5).body


# The chat itself.


def test_every_turn_stands_in_the_messages():
    made = Chat(bigram({MODEL: 72}), TOKENIZER)
    for text in ("ab", "c"):
        list(made.reply(text, temperature=0.0))
    assert made.messages() == [
        {"role": role, "content": said}
        for role, said in (("user", "ab"), ("assistant", "H"), ("user", "c"), ("assistant", "H"))
    ]
    assert list(made.messages()[0]) == ["role", "content"]


def test_the_draws_of_a_reply_are_those_of_its_seed():
    """One draw for each token, from a generator of its own."""
    model = GPT(CONFIG, seed=5)
    replies = {seed: "".join(Chat(model, TOKENIZER).reply("ab", 6, seed, temperature=1.0)) for seed in range(5)}
    assert len(set(replies.values())) == 5
    made = Chat(model, TOKENIZER)
    decoder, rng = model.decoder(), np.random.default_rng(3)
    ids = [257, HUMAN, *TOKENIZER.encode("ab").tolist(), MODEL]
    said = []
    fresh = ids
    while len(said) < 6:
        logits = decoder.feed(np.array(fresh))
        logits[[258, 259]] = -np.inf
        token = chat.sample(logits, rng, temperature=1.0)
        if token == 257:
            break
        said.append(token)
        fresh = [token]
    list(made.reply("ab", 6, 3, temperature=1.0))
    assert made.rows[0][len(ids) - 1 : -1] == said
