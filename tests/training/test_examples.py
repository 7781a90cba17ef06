"""Test the examples of fine-tuning: messages about them, their rows, and reading them from files."""

import json
import lzma
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from oracles import changed, error_of

from konigsberg import wordings
from nanoeuler_book import town
from nanoeuler_book.town import konigsberg_examples
from nanoeuler_lib.command import sources
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text import sft_data as text_examples
from nanoeuler_lib.text.chat_template import ASSISTANT, USER, alpaca_prompt
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import datasets, sft

CONFIG = ModelConfig(dim=16, heads=2, kv_heads=1, layers=1, context=20, vocab_size=260, predict=2)
TOKENIZER = Tokenizer([(97, 98)], (END_OF_TEXT, USER, ASSISTANT))  # ids 257, 258, 259
FITS, LONG = [("a", "b")], [("a" * 50, "b")]
HELD = [[(f"{i}", "ab")] for i in range(8)]


def found(info=None, context=20):
    model = SimpleNamespace(config=changed(CONFIG, context=context), dtype=np.float32)
    settings = SimpleNamespace(seed=5, batch=2, accumulate=1)
    return SimpleNamespace(model=model, tokenizer=TOKENIZER, train=settings, info={"template": "plain"} | (info or {}))


def test_what_a_set_of_examples_says_of_itself():
    made = datasets.SFTDataset(iter([FITS, [("c", "dd")]]), iter(HELD), found())  # iterators are kept
    assert (made.warnings, made.tokens, made.row_tokens) == ([], 6 + 7, 6.5)
    assert list(made.sizes.items()) == [("train_examples", 2), ("valid_examples", 8)]
    assert (made.source, made.template, made.prompt) == ("examples", "plain", "0")
    assert datasets.SFTDataset([FITS], HELD, found({"source": "s" * 300})).source == "s" * 100 + " ... " + "s" * 100
    made = datasets.SFTDataset([FITS, FITS, LONG, FITS], HELD[:7] + [LONG], found())
    said = [
        "3 of 4 training examples",
        "7 of 8 validation examples",
        "2 of 3 training examples",
        "only 7 examples are held out",
    ]
    for warning, start in zip(made.warnings, said, strict=True):
        assert warning.startswith(start)
    for held_out, count in (([*HELD[:3], *[LONG] * 3], 3), ([*HELD, *[LONG] * 90], 8)):  # half, or eight, suffice
        assert datasets.SFTDataset([FITS], held_out, found()).sizes["valid_examples"] == count


@pytest.mark.parametrize("learnt, held_out, said", [
    ([LONG], HELD, "0 of 1 training examples fit in 20 tokens, expected at least 1"),
    ([], HELD, "0 of 0 training examples fit in 20 tokens, expected at least 1"),
    ([FITS], [], "0 of 0 validation examples fit in 20 tokens, expected at least 1"),
    ([FITS], [*HELD[:2], *[LONG] * 3], "2 of 5 validation examples fit in 20 tokens, expected at least 3"),
    ([FITS], [*HELD[:7], *[LONG] * 90], "7 of 97 validation examples fit in 20 tokens, expected at least 8"),
])  # fmt: skip
def test_too_few_examples_are_refused(learnt, held_out, said):
    message = error_of(datasets.SFTDataset, learnt, held_out, found({"source": "mine"}))
    assert message.startswith(f"mine: {said}: use a base model with a longer context (--base)")


def test_the_tokens_of_an_example():
    encoded = text_examples.encode([("ab", "c"), ("d", "")], TOKENIZER)
    assert encoded.ids.tolist() == [257, 258, 256, 259, 99, 257, 258, 100, 259, 257]
    assert encoded.counted.tolist() == [False] * 4 + [True] * 2 + [False] * 3 + [True]
    assert encoded.ids.dtype == np.int64 and encoded.counted.dtype == bool
    for most, kept in ((10, 10), (9, 6), (5, 1)):
        found = text_examples.encode([("ab", "c"), ("d", "")], TOKENIZER, most)
        assert found.ids.tolist() == encoded.ids[:kept].tolist()
    behind = text_examples.encode([("ab", "c"), ("d" * 9, ""), ("e", "")], TOKENIZER, 12)
    assert behind.ids.size == 6, "no turn may follow a turn that was left out"


TALK = [("a", "b"), ("c", "d"), ("e", "f" * 40), ("g", "h"), ("i", "j")]  # turns of 5, 5, 44, 5 and 5 tokens


def test_later_turns_go_into_windows_or_the_last_alone_counts():
    turns = lambda found: [TOKENIZER.decode(e.ids[e.counted & (e.ids < 256)]) for e in found]
    encode_all = text_examples.encode_all
    assert turns([text_examples.encode(TALK, TOKENIZER, 11)]) == ["bd"]
    assert turns(encode_all(TALK, TOKENIZER, 11, "windows")) == ["bd", "hj"], "a turn that never fits must be left out"
    assert turns(encode_all(TALK, TOKENIZER, 6, "windows")) == ["b", "d", "h", "j"]
    assert turns(encode_all(TALK, TOKENIZER, 200, "windows")) == ["bd" + "f" * 40 + "hj"]
    assert [e.ids[0] for e in encode_all(TALK, TOKENIZER, 6, "windows")] == [257] * 4
    (last,) = encode_all(TALK, TOKENIZER, 11, "last")
    assert TOKENIZER.decode(last.ids).count("g") == 1 and last.counted.tolist() == [False] * 9 + [True] * 2
    assert encode_all(TALK[:3], TOKENIZER, 11, "last") == []


@pytest.mark.parametrize("turns, count, share, left", [
    (None, 9, 4 / 49, "3 later turns of 1 training examples do not fit in 10 tokens and are left out: 8.16% of the"),
    ("windows", 10, 8 / 49, "1 later turns of 1 training examples do not fit in 10 tokens and are left out: 16.32% of"),
    ("last", 9, 1, ""),
])  # fmt: skip
def test_the_share_of_reply_tokens_that_is_learnt_from_is_told(turns, count, share, left):
    """Check that lost replies are reported; without `turns`, as in an older run, the first turns that fit are kept."""
    made = datasets.SFTDataset([TALK], HELD, found({"turns": turns} if turns else {}, context=10))
    assert len(made.part) == count - 8 and made.reach == pytest.approx(share)
    assert any(w.startswith(left) for w in made.warnings if "left out" in w) == bool(left)
    assert made.seen(0) == 0 and made.seen(9) == pytest.approx(share)


def test_empty_replies_are_told_and_give_no_bits_per_byte():
    silent = [[("a", "")], [("b", " ")], [("c", "")]]
    made = datasets.SFTDataset([*silent, FITS], silent * 3, found())
    assert any(w.startswith("3 of 4 training replies are empty") for w in made.warnings)
    assert datasets.SFTDataset(silent[:1], silent[:1] * 8, found()).validation(None) == {}


def test_rows_of_examples_are_written_out():
    encoded = [text_examples.encode([("ab", "c")], TOKENIZER), text_examples.encode([("", "")], TOKENIZER)]
    inputs, targets = text_examples.rows(encoded, 6, 2)
    assert inputs.dtype == targets.dtype == np.int64
    assert inputs.tolist() == [[257, 258, 256, 259, 99, 0], [257, 258, 259, 0, 0, 0]]
    assert targets[..., 0].tolist() == [[-1, -1, -1, 99, 257, -1], [-1, -1, 257, -1, -1, -1]]
    assert targets[..., 1].tolist() == [[-1, -1, 99, 257, -1, -1], [-1, 257, -1, -1, -1, -1]]
    many = text_examples.rows(encoded[1:], 4, 9)[1]
    assert (many[0, :, 3:] == -1).all() and many.shape == (1, 4, 9)


def test_a_batch_is_a_run_of_neighbours_by_length():
    """Check that equal lengths keep their order, and that a batch starts by seed and step and wraps around."""
    learnt = [[("a", "b" * n)] for n in (3, 1, 2, 1)]
    made = datasets.SFTDataset(learnt, HELD, found())
    assert made.order.tolist() == [1, 3, 2, 0]
    for step in range(6):
        inputs, targets = made.batch(step, 3)
        start = np.random.default_rng([5, step]).integers(4)
        chosen = [made.part[made.order[(start + i) % 4]] for i in range(3)]
        expected = text_examples.rows(chosen, 20, 2)
        assert np.array_equal(inputs, expected[0]) and np.array_equal(targets, expected[1])


# From a base to a run.


def test_a_vocabulary_is_widened_to_a_multiple():
    """Widen to a multiple of 8 for the GPU's kernels, and not on the CPU; the additional tokens occur in no text."""
    base = GPT(changed(CONFIG, vocab_size=258), seed=2), Tokenizer([(97, 98)], (END_OF_TEXT,))
    for multiple, size in ((1, 260), (4, 260), (8, 264), (261, 261), (130, 260)):
        wide, tokenizer = sft.extend(*base, multiple=multiple)
        assert (wide.config.vocab_size, tokenizer.vocab_size) == (size, 260)
        heads = [m.params["heads"].reshape(16, 2, -1)[..., :258] for m in (wide, base[0])]
        assert np.array_equal(*heads)


# Where examples come from.


def lines(count):
    return "\n".join(json.dumps({"instruction": f"{n}", "output": "x"}) for n in range(count))


def test_the_examples_of_a_source(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(20))
    whole = [[(alpaca_prompt(f"{n}"), "x")] for n in range(20)]
    learnt, held_out, template = sft.examples_of(tmp_path / "a.jsonl")
    assert (len(learnt), len(held_out), template) == (18, 2, "alpaca")
    assert sorted(learnt + held_out) == sorted(whole) and learnt + held_out != whole
    assert sft.examples_of(str(tmp_path / "a.jsonl"), 0, 0, 0.1) == (learnt, held_out, template)
    learnt, held_out, _ = sft.examples_of(tmp_path / "a.jsonl", 5, 3, 0.0)
    assert sorted(learnt + held_out) == sorted(whole[:5]) and len(held_out) == 1, "one is held out at least"
    assert [len(part) for part in sft.examples_of(tmp_path / "a.jsonl", 2)[:2]] == [1, 1]
    assert "a.jsonl: must have at least two examples" in error_of(sft.examples_of, tmp_path / "a.jsonl", 1)
    assert sources.examples(tmp_path / "a.jsonl", 5, 3, 0.0) == (learnt, held_out, "alpaca")
    with patch.object(town, "konigsberg_examples", lambda *part, reworded: (*part, reworded)):
        for source, reworded in (("konigsberg", False), ("konigsberg-reworded", True)):
            parts = ((30, 7, reworded), (200, 8, reworded))
            assert sources.examples(source, 30, 7) == (*parts, "plain")
        assert sources.examples("konigsberg")[:2] == ((10_000, 0, False), (200, 1, False))


ASK, REPLY, ODD = (
    json.dumps({"role": role, "content": said}) for role, said in (("user", "a"), ("assistant", "b"), ("assistant", 1))
)
TEXTS = (
    "texts under instruction and output, instruction and response, messages, conversations, or prompt and completion"
)
REFUSED = {
    "[]": "must hold at least one example, got none",
    "[7]": f"item 1 must be an object with {TEXTS}, got a int",
    "\n\n7": f"line 3 must be an object with {TEXTS}, got a int",
    '{"output": "a", "instruction": 1}': "line 1: instruction must be text, got 1",
    '{"instruction": "a", "input": 1, "output": "b"}': "line 1: input must be text, got 1",
    '{"instruction": "a", "answer": "b"}': f"line 1 must have {TEXTS}, got keys ['answer', 'instruction']",
    '{"prompt": "a", "completion": null}': "line 1: completion must be text, got null",
    '{"messages": []}': "line 1: messages must be a list of messages, got []",
    '{"messages": [1, 2]}': "line 1: messages 1 must be an object with role and content, got 1",
    f'{{"messages": [{ASK}, {ODD}]}}': "line 1: messages 2: content must be text, got 1",
    '{"messages": [{"role": "user", "content": [{"type": "image"}]}]}':
        "line 1: messages 1: content must consist of parts of text, got {'type': 'image'}",
    f'{{"messages": [{ASK}, {ASK}]}}':
        "line 1: messages 2 must be from assistant, got user: user and assistant must alternate, after "
        "at most one system message",
    f"[[{ASK}]]": "item 1: 1, the last one, must be from assistant, got user",
    '{"conversations": [{"from": "tool", "value": "a"}]}':
        "line 1: conversations 1: from must be one of user, human, assistant, gpt, system, got 'tool'",
    f'[{{"messages": [{ASK}, {REPLY}]}}, {{"instruction": "a", "output": "b"}}]':
        "item 2 must be of the same kind as those before, got a different kind",
    '{"instruction": "a", "output": "b"}\nx': "line 2 must be JSON (",
    "[" * 100_000: "the file must be JSON (",
    '{"instruction": "a", "output": "b\\udc00"}': r"line 1 must be Unicode, got '\udc00', half a surrogate pair",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:40])
def test_files_that_hold_something_else(tmp_path, text):
    (tmp_path / "file").write_text(text)
    message = error_of(text_examples.read_examples, str(tmp_path / "file"))
    assert message.startswith(f"{tmp_path}/file: {REFUSED[text]}")
    if "not JSON" in message:
        assert message.endswith("a file must hold one array, or one object per line")


def test_conversations_and_their_forms(tmp_path):
    turns = [("user", "a"), ("assistant", "b"), ("user", "ä"), ("assistant", "")]
    talk = {"messages": [{"role": role, "content": said} for role, said in turns], "source": "kept out"}
    (tmp_path / "file").write_text("\n" + json.dumps(talk, ensure_ascii=False) + "\n")
    assert text_examples.read_examples(tmp_path / "file") == ([[("a", "b"), ("ä", "")]], "plain")
    for put, reply in (("input", "output"), ("context", "response")):  # Alpaca's keys and Dolly's
        items = [{"instruction": "a", put: "c", reply: "r", "category": "x"}, {"instruction": "a", reply: "r"}]
        (tmp_path / "file").write_text(json.dumps(items))
        expected = [[(alpaca_prompt("a", "c"), "r")], [(alpaca_prompt("a"), "r")]], "alpaca"
        assert text_examples.read_examples(tmp_path / "file") == expected


FORMS = {
    "messages": {"messages": [("user", "a"), ("assistant", "b")]},
    "a system turn comes first": {"messages": [("system", "s"), ("user", "a"), ("assistant", "b")]},
    "ShareGPT": {"conversations": [("human", "a"), ("gpt", "b")]},
    "a list": [("user", "a"), ("assistant", "b")],
    "parts": {"messages": [("user", [{"type": "text", "text": "a"}]), ("assistant", "b")]},
    "prompt and completion": {"prompt": "a", "completion": "b"},
    "prompt and completion as messages": {"prompt": [("user", "a")], "completion": [("assistant", "b")]},
    "null under input": {"instruction": "a", "input": None, "output": "b"},
    "nothing under input": {"instruction": "a", "input": "", "output": "b"},
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("as_array", [False, True])
def test_dialogues_as_others_write_them(tmp_path, name, as_array):
    keys = ("from", "value") if name == "ShareGPT" else ("role", "content")
    message = lambda pair: dict(zip(keys, pair)) if isinstance(pair, tuple) else pair
    shown = lambda value: [message(one) for one in value] if isinstance(value, list) else value
    form = FORMS[name]
    value = {key: shown(one) for key, one in form.items()} if isinstance(form, dict) else shown(form)
    (tmp_path / "file").write_text(json.dumps([value, value]) if as_array else f"{json.dumps(value)}\n" * 2)
    prompt, template = ("s\n\na" if "system" in name else "a"), "plain"
    if "under input" in name:
        prompt, template = alpaca_prompt("a"), "alpaca"
    assert text_examples.read_examples(tmp_path / "file") == ([[(prompt, "b")]] * 2, template)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.xz"])
def test_a_file_larger_than_memory_is_refused(tmp_path, name):
    text, file = lines(3).encode(), tmp_path / name  # a small .xz may contain terabytes, so reading is bounded
    file.write_bytes(lzma.compress(text) if name.endswith("xz") else text)
    with patch.object(text_examples, "LARGEST", len(text)):
        assert len(text_examples.read_examples(file)[0]) == 3
    with patch.object(text_examples, "LARGEST", len(text) - 1):
        assert f"{file}: must hold at most {len(text) - 1} bytes when decompressed" in error_of(
            text_examples.read_examples, file
        )


UNREADABLE = {
    "cut.xz": (lzma.compress(b"x" * 999)[:-20], "Compressed file ended"),
    "none.xz": (None, "No such file or directory"),
    "a\0": (None, "embedded null byte"),
    "latin": (b'"\xff"', "'utf-8' codec can't decode byte 0xff"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read(tmp_path, name):
    content, reason = UNREADABLE[name]
    if content:
        (tmp_path / name).write_bytes(content)
    message = error_of(text_examples.read_examples, tmp_path / name)
    assert message.startswith(f"{tmp_path}/{name}: cannot be read ({reason}")
    assert message.endswith("), expected UTF-8 JSON, also as .xz or .gz")


def test_stories_in_other_words(monkeypatch):
    """Check that the given function rewords each question, with one generator for all; all else stays the same."""
    plain, drawn = konigsberg_examples(12, 5), set()

    def reworded(story, question, random):
        assert question in story.questions
        drawn.add(id(random))
        return f"<{question.text}>"

    monkeypatch.setattr(wordings, "reworded", reworded)
    assert konigsberg_examples(12, 5) == plain and not drawn
    found = konigsberg_examples(12, 5, True)
    assert all(text.endswith(">") and text.count("<") == 1 for example in found for text, _ in example)
    assert [[(text.translate({60: None, 62: None}), said) for text, said in example] for example in found] == plain
    assert len(drawn) == 1
