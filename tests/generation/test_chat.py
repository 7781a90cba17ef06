"""Chat: who speaks is decided by markers that nobody can type; replies end, can be broken off, and fit the context."""

from dataclasses import replace
from itertools import chain

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generation.chat import Chat
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.text.chat_template import ASSISTANT, USER, alpaca_prompt, encode_turn, markers
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer

CONFIG = ModelConfig(dim=16, heads=4, kv_heads=2, layers=2, context=48, vocab_size=260, predict=2)
TOKENIZER = Tokenizer([(97, 98)], (END_OF_TEXT, USER, ASSISTANT))
END, HUMAN, MODEL = markers(TOKENIZER)


@pytest.fixture
def model():
    return GPT(CONFIG, oracles.random_parameters(CONFIG, 3))


def bigram(follows: dict[int, int]) -> GPT:
    """A model that says these tokens after these, whatever came before; the end marker after all others."""
    config = ModelConfig(dim=300, heads=2, kv_heads=1, layers=1, context=48, vocab_size=300, predict=1)
    made = GPT(config, dtype=np.float64)
    for name in ("layers.0.out", "layers.0.down"):
        made.params[name][...] = 0
    made.params["embed"][...] = np.eye(300)
    made.params["heads"][:, END] = 1
    for before, after in follows.items():
        made.params["heads"][before] = np.eye(300)[after] * 2
    return made


def said(chat: Chat, text: str, **options) -> str:
    return "".join(chat.reply(text, **{"temperature": 0.0} | options))


# Markers.


@settings(max_examples=30)
@given(
    st.text(st.sampled_from(f"ab ü\n{USER}{ASSISTANT}{END_OF_TEXT}")), st.sampled_from([USER, ASSISTANT, END_OF_TEXT])
)
def test_nobody_can_type_a_marker(text, marker):
    ids = encode_turn(TOKENIZER, text + marker + text)
    assert ids[0] == HUMAN and ids[-1] == MODEL
    assert not {END, HUMAN, MODEL} & set(ids[1:-1])
    assert TOKENIZER.decode(ids[1:-1]) == text + marker + text


def test_alpaca_template_with_and_without_input():
    assert alpaca_prompt("Add.", "1 and 2") == (
        "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
        "response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1 and 2\n\n"
        "### Response:\n"
    )
    assert "Input" not in alpaca_prompt("Add.") and alpaca_prompt("Add.").endswith("### Response:\n")


@pytest.mark.parametrize("wanted", [HUMAN, MODEL, 290])
def test_a_reply_holds_no_marker_and_no_id_without_a_token(wanted):
    """Even a model that wants to speak for the user cannot: its next choice is taken."""
    made = bigram({MODEL: wanted, HUMAN: 65})
    made.params["heads"][MODEL, 66] = 1.5
    assert said(Chat(made, TOKENIZER), "hi") == "B"


@pytest.mark.parametrize(
    "names, template, message",
    [
        ((), "plain", r"tokenizer must have the token .*<\|assistant\|>: fine-tune"),
        ((END_OF_TEXT,), "plain", r"tokenizer must have the token .*<\|assistant\|>: fine-tune"),
        ((END_OF_TEXT, USER, ASSISTANT), "x", "template must be one of plain, alpaca, got 'x'"),
    ],
)
def test_models_that_cannot_chat_are_refused(model, names, template, message):
    with pytest.raises(NanoEulerError, match=message):
        Chat(model, Tokenizer([], names), template)


# Replies.


@pytest.mark.parametrize(
    "follows, tokens, spoken, pieces, ended",
    [
        ({}, 9, b"", [], True),
        ({MODEL: 72, 72: 0xC3, 0xC3: 0xBC}, 9, b"H\xc3\xbc", ["H", "ü"], True),
        ({MODEL: 72, 72: 0xC3, 0xC3: 0xBC}, 3, b"H\xc3\xbc", ["H", "ü"], False),
        ({MODEL: 72, 72: 0xC3, 0xC3: 0xBC}, 2, b"H\xc3", ["H", "\ufffd"], False),  # half a character
        ({MODEL: 72, 72: 72}, 1000, b"H" * 44, ["H"] * 44, False),  # the context ended
    ],
)
def test_a_reply_comes_in_whole_characters_and_says_whether_it_ended(follows, tokens, spoken, pieces, ended):
    chat = Chat(bigram(follows), TOKENIZER)
    assert not chat.ended
    assert list(chat.reply("hi", tokens=tokens, temperature=0.0)) == pieces
    assert chat.turns == [("hi", "".join(pieces))] and chat.ended is ended
    assert chat.rows == [[HUMAN, *b"hi", MODEL, *spoken, END]]


@pytest.mark.parametrize("texts, kept", [
    ([letter * 4 for letter in "abcdefghij"], "aghij"), (["a" * 15, "b" * 15, "c" * 5], "ac"),
])  # fmt: skip
def test_a_full_context_forgets_the_second_turn_first(texts, kept):
    chat = Chat(bigram({MODEL: 72}), TOKENIZER)
    for text in texts:
        assert said(chat, text) == "H"
    assert bytes(row[1] for row in chat.rows).decode() == kept and chat.forgotten == len(texts) - len(kept)


def test_a_reply_broken_off_is_remembered_as_far_as_it_came(model):
    chat = Chat(model, TOKENIZER)
    whole = list(Chat(model, TOKENIZER).reply("ab", tokens=8, temperature=0.0))
    for _ in (reply := chat.reply("ab", tokens=8, temperature=0.0)):
        reply.close()
        break
    assert chat.turns == [("ab", whole[0])] and chat.rows[0][-1] == END and len(chat.rows[0]) < 3 + 8
    again = Chat(model, TOKENIZER)
    again.rows = [list(chat.rows[0])]
    assert said(chat, "b", tokens=5) == said(again, "b", tokens=5)  # nothing of the rest is left in the cache


def test_a_text_too_long_is_refused_and_nothing_is_lost(model):
    chat = Chat(model, TOKENIZER)
    said(chat, "ab", tokens=3)
    before = (list(chat.turns), [list(row) for row in chat.rows])
    with pytest.raises(NanoEulerError, match="text must have at most 46 tokens with its markers, got 49: the context"):
        said(chat, "x" * 47)
    with pytest.raises(NanoEulerError, match="temperature must be 0 to 100, got -1"):
        said(chat, "ab", temperature=-1)
    assert (chat.turns, chat.rows) == before
    assert len(said(chat, "x" * 44, tokens=9)) <= 3  # what room there is, is used


# Whole conversations.


def test_every_reply_is_what_the_model_says_after_what_is_remembered(model):
    """Through forgotten turns and a reset: tokens one by one from whole forward passes, without a cache."""
    chat = Chat(model, TOKENIZER)
    for number, text in enumerate("ab what c be abba why x yes no more ab".split()):
        if number == 10:
            assert chat.forgotten > 0
            chat.reset()
            assert chat.forgotten == 0
        said(chat, text * 2, tokens=4)
        prompt = [HUMAN, *TOKENIZER.encode(text * 2).tolist(), MODEL]
        assert chat.rows[-1][: len(prompt)] == prompt
        before, found = [END, *chain(*chat.rows[:-1]), *prompt], chat.rows[-1][len(prompt) : -1]
        for token in [*found, END]:
            if len(before) > 48 or (token == END and len(found) == 4):
                break
            logits = model.logits(np.array([before]))[0, -1]
            logits[[HUMAN, MODEL]] = -np.inf
            assert token == logits.argmax()
            before.append(token)


def test_a_turn_feeds_what_is_new(model, monkeypatch):
    chat, fed, feed = Chat(model, TOKENIZER), [], Decoder.feed
    monkeypatch.setattr(Decoder, "feed", lambda self, tokens: fed.append(len(tokens)) or feed(self, tokens))
    said(chat, "ab", tokens=4)
    fed.clear()
    said(chat, "b", tokens=4)
    assert fed[0] <= 1 + 1 + 3 and set(fed[1:]) <= {1}  # the last token said, its end marker, the turn


@pytest.mark.parametrize("length", [1, 2, 7, 12, 18, 23])
def test_every_reply_has_room(length):
    """At least a sixteenth of the context, 3 tokens, however full it is; and the context is used to its last token."""
    chat = Chat(bigram({MODEL: 72, 72: 72}), TOKENIZER)
    for _ in range(6):
        assert 3 <= len(said(chat, "x" * length, tokens=5)) <= 5
    assert len(said(Chat(bigram({MODEL: 72, 72: 72}), TOKENIZER), "x" * length, tokens=99)) == 48 - length - 2


def test_the_template_is_put_on_and_kept_out_of_what_was_said():
    chat = Chat(GPT(replace(CONFIG, context=400)), TOKENIZER, "alpaca")
    said(chat, "Sing.", tokens=3)
    prompt = [HUMAN, *TOKENIZER.encode(alpaca_prompt("Sing.")).tolist(), MODEL]
    assert chat.rows[0][: len(prompt)] == prompt and chat.turns[0][0] == "Sing."


def test_options_reach_the_sampler(model):
    greedy = said(Chat(model, TOKENIZER), "ab", tokens=8)
    for options in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        assert said(Chat(model, TOKENIZER), "ab", tokens=8, temperature=50.0, **options) == greedy
