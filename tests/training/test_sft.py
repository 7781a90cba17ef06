"""Test fine-tuning: batches draw all examples, only replies count, the base survives, and accuracy is a chat's."""

import numpy as np
import oracles
import pytest
from oracles import error_of
from test_chat import bigram

import konigsberg
from nanoeuler_book.town import konigsberg_examples
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.generation.chat import Chat
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.model.step import Step
from nanoeuler_lib.text import sft_data as text_examples
from nanoeuler_lib.text.chat_template import ASSISTANT, USER, alpaca_prompt, markers
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import checkpoint, datasets, run_folder, sft

CONFIG = ModelConfig(dim=16, heads=2, kv_heads=1, layers=1, context=48, vocab_size=258, predict=2)
BASE = Tokenizer([(97, 98)], (END_OF_TEXT,))
TOKENIZER = Tokenizer([(97, 98)], (END_OF_TEXT, USER, ASSISTANT))
END, HUMAN, MODEL = markers(TOKENIZER)
SETTINGS = TrainConfig(steps=8, batch=4, warmup=2, rate=3e-3, valid_every=4, sample_every=4, save_every=2)
WIDE = ModelConfig(**CONFIG.to_dict() | {"vocab_size": 260})
EXAMPLES = [[(f"{a} and {b}?", f"{b}{a}.")] for a in "abcdef" for b in "uvwxyz"]
HELD_OUT = [[("g and h?", "hg.")], [("h and g?", "gh."), ("and again?", "gh.")]]


def base(dtype=np.float32) -> tuple[GPT, Tokenizer]:
    return GPT(CONFIG, oracles.random_parameters(CONFIG, 0, 0.1, dtype)), BASE


def answers(examples=EXAMPLES, held_out=HELD_OUT, **settings) -> datasets.SFTDataset:
    found = checkpoint.Checkpoint(None, GPT(WIDE), TOKENIZER, 0, TrainConfig(**settings), None, {"template": "plain"})
    return datasets.SFTDataset(examples, held_out, found)


# From a base model.


def test_extend_changes_no_logit_and_no_id():
    """Check that markers use free rows of the model, or else new rows, and that a vocabulary keeps its byte order."""
    model, tokenizer = base(np.float64)
    wide, names = sft.extend(model, tokenizer)
    assert list(names.special_tokens) == [END_OF_TEXT, USER, ASSISTANT] and wide.config.vocab_size == 260
    tokens = np.arange(40).reshape(2, 20) * 6
    for head in range(2):
        assert np.array_equal(wide.logits(tokens, head)[..., :258], model.logits(tokens, head))
    assert wide.params["embed"][258:].std() > 0
    assert sft.extend(wide, names) == (wide, names)
    roomy = GPT(ModelConfig(**CONFIG.to_dict() | {"vocab_size": 300}))
    backwards = Tokenizer([(97, 98)], (END_OF_TEXT,), list(range(255, -1, -1)))
    kept, names = sft.extend(roomy, backwards)
    assert (kept.config.vocab_size, names.vocab_size) == (300, 260)
    assert names.byte_order == backwards.byte_order and names.encode("hi").tolist() == backwards.encode("hi").tolist()


def test_it_learns_and_leaves_the_base_alone(tmp_path):
    """Train to swap two letters: nearly all examples are right at the end, and none before."""
    model, tokenizer = base()
    before = model.params.flat.copy()
    settings = TrainConfig(**SETTINGS.to_dict() | {"steps": 150, "batch": 12, "rate": 2e-2, "valid_every": 100})
    given = (model, tokenizer), EXAMPLES, HELD_OUT, settings, "plain", {"source": "mine"}
    tuned = sft.fine_tune(tmp_path / "run", *given, quiet=True, workers=1)
    assert np.array_equal(model.params.flat, before)
    found = checkpoint.load(tmp_path / "run")
    assert [found.info[name] for name in ("template", "source", "workers")] == ["plain", "mine", 1]
    assert np.array_equal(found.model.params.flat, tuned.params.flat)
    assert not sft.exact_match(*sft.extend(model, tokenizer), EXAMPLES).any()
    assert sft.exact_match(tuned, found.tokenizer, EXAMPLES).mean() > 0.9


def test_right_is_what_a_greedy_chat_says(tmp_path):
    model = GPT(WIDE, dtype=np.float64)
    before, settings = model.params.flat.copy(), TrainConfig(**SETTINGS.to_dict() | {"steps": 40, "rate": 1e-2})
    tuned = sft.fine_tune(tmp_path / "run", (model, TOKENIZER), EXAMPLES, HELD_OUT, settings, quiet=True)
    assert np.array_equal(model.params.flat, before) and tuned.dtype == np.float64, "it must not change either"
    found = sft.exact_match(tuned, TOKENIZER, EXAMPLES)
    greedy = lambda chat, turn: "".join(chat.reply(turn[0], temperature=0.0)) == turn[1]
    assert found.tolist() == [greedy(Chat(tuned, TOKENIZER), example[0]) for example in EXAMPLES]
    two, chats = [[EXAMPLES[0][0], example[0]] for example in EXAMPLES[1:9]], []
    for first, second in two:
        chat = Chat(tuned, TOKENIZER)
        chat.rows = [text_examples.encode([first], TOKENIZER).ids[1:].tolist()]
        chats.append(greedy(chat, second))
    assert sft.exact_match(tuned, TOKENIZER, two).tolist() == chats
    assert "must have at most 49 tokens" in error_of(sft.exact_match, tuned, TOKENIZER, [[("x" * 60, "y")]])
    given = base(), EXAMPLES, HELD_OUT, SETTINGS, "x"
    assert "template must be" in error_of(sft.fine_tune, tmp_path / "new", *given) and not (tmp_path / "new").exists()


def test_the_chat_model_of_the_package_answers():
    model, tokenizer = checkpoint.load_pretrained("konigsberg-chat")
    talks = konigsberg_examples(40, 987)
    stories = [(story.text.rpartition("\n")[0], story.questions) for story in konigsberg.stories(40, 987)]
    alone = [[(f"{body} {question.text}", question.answer)] for body, asked in stories for question in asked]
    assert sft.exact_match(model, tokenizer, alone).mean() > 0.97
    two = [talk[:2] for talk in talks if len(text_examples.encode(talk[:2], tokenizer).ids) <= 129]
    assert len(two) > 20 and sft.exact_match(model, tokenizer, two).mean() > 0.9


def test_the_fingerprint_sees_the_mask_and_the_last_token(monkeypatch):
    """Change which tokens count, and change the last of many tokens."""
    ids = np.arange(9)
    table = {
        "first": text_examples.Encoded(ids, ids > 5),
        "other mask": text_examples.Encoded(ids, ids > 4),
        "other end": text_examples.Encoded(np.where(ids == 8, 7, ids), ids > 5),
    }
    monkeypatch.setattr(datasets, "encode", lambda example, *_: table[example[0][0]])
    made = [answers([*[[("first", "")]] * 500, [(last, "")]], [[("first", "")]] * 8) for last in table]
    assert len({one.fingerprint for one in made}) == 3


def test_markers_in_a_file_are_plain_text():
    example = [(f"a{USER}b", f"c{ASSISTANT}{END_OF_TEXT}d")]
    found = text_examples.encode(example, TOKENIZER)
    special = [i for i in found.ids if i in (END, HUMAN, MODEL)]
    assert special == [END, HUMAN, MODEL, END]
    assert USER in TOKENIZER.decode(found.ids[2:]) and found.counted.sum() == len(f"c{ASSISTANT}{END_OF_TEXT}d") + 1


def test_an_example_fits_whose_inputs_fill_the_context():
    """Check that n tokens have n - 1 inputs, because the last token is only a target."""
    for letters, kept in ((43, 1), (44, 0)):
        example = [("x" * letters, "no")]
        assert len(text_examples.encode(example, TOKENIZER).ids) == letters + 6
        assert answers([*EXAMPLES, example]).sizes["train_examples"] == len(EXAMPLES) + kept


def test_bits_per_byte_counts_each_held_out_example_once():
    tuned, nats, rng = GPT(WIDE, oracles.random_parameters(WIDE, 1, 0.5)), 0.0, np.random.default_rng(0)
    many = [[("q" * int(rng.integers(1, 40)), "r" * int(rng.integers(0, 5)))] for _ in range(40)]
    for example in many:
        e = text_examples.encode(example, TOKENIZER)
        logits = tuned.logits(e.ids[None, :-1])[0]
        log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        nats -= log_p[np.arange(len(e.ids) - 1), e.ids[1:]][e.counted[1:]].sum()
    length = sum(len(reply) for ((_, reply),) in many)
    assert answers(held_out=many).bits_per_byte(tuned) == pytest.approx(nats / np.log(2) / length, rel=1e-9)
    silent = answers(held_out=[[("a", "")]] * 8)
    assert np.isfinite(silent.bits_per_byte(tuned)), "empty replies must give a finite number"


@pytest.mark.parametrize("follows, turns, right", [
    ({MODEL: 72}, [("a", "X"), ("b", "H")], True),  # the last turn counts
    ({MODEL: 72, 72: 72}, [("a", "H")], False),  # the reply continues
    ({MODEL: HUMAN}, [("hi", "B")], True),  # a chat must not sample the most likely token, a marker
    ({MODEL: 290}, [("hi", "B")], True),  # an id without a token
])  # fmt: skip
def test_right_by_hand(follows, turns, right):
    made = bigram(follows)
    made.params["heads"][MODEL, 66] = 1.5  # the second best
    assert sft.exact_match(made, TOKENIZER, [turns]).tolist() == [right]


def test_the_sample_is_the_greedy_reply_to_the_first_held_out_prompt():
    held_out = [[(alpaca_prompt("g?"[:1]), "x")]]
    config = ModelConfig(**CONFIG.to_dict() | {"vocab_size": 260, "context": 300})
    tuned = GPT(config, oracles.random_parameters(config, 1, 0.5))
    found = checkpoint.Checkpoint(None, tuned, TOKENIZER, 0, SETTINGS, None, {"template": "alpaca"})
    full = [[("~" * 297, "")]]  # fits into a row, but leaves no room for a chat
    made = datasets.SFTDataset(EXAMPLES, full + held_out, found)
    expected = "".join(Chat(tuned, TOKENIZER, "alpaca").reply("g", 60, temperature=0.0))
    assert made.sample(tuned, 1) == made.sample(tuned, 2) == expected


def test_warnings_and_speed_are_logged(tmp_path):
    sft.fine_tune(tmp_path / "run", base(), [*EXAMPLES, EXAMPLES[0]], HELD_OUT, SETTINGS, quiet=True)
    log = run_folder.read_log(tmp_path / "run")
    assert "are copies of earlier ones" in next(e["warning"] for e in log if "warning" in e)
    for entry in (e for e in log if "loss" in e):  # rows of 32 tokens, shorter than the context
        assert entry["tokens_per_second"] * entry["seconds"] == pytest.approx(4 * 32, rel=0.02)


def test_a_head_without_a_target_has_loss_0():
    tuned = GPT(WIDE)
    inputs, targets = text_examples.rows([text_examples.encode(e, TOKENIZER) for e in EXAMPLES[:4]], 32, 2)
    targets[..., 1] = -1
    with one_blas_thread(), Step(tuned, AdamW(WIDE, SETTINGS), SETTINGS, 4, 1) as step:
        losses, norm = step(inputs, targets)
    assert losses[1] == 0 and losses[0] > 0 and np.isfinite(norm)
