"""Fine-tuning: only replies count, no example sees another, the base survives, runs go on exactly, files are read."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import oracles
import pytest
from oracles import contents, error_of
from test_chat import bigram, said

import konigsberg
from benchmarks import chat_model, pretrained
from nanoeuler_book.town import konigsberg_examples
from nanoeuler_lib.command import sources
from nanoeuler_lib.config import SFT_DATA_SEED, ModelConfig, TrainConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generation.chat import Chat
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT, head_weights
from nanoeuler_lib.model import step as step_module
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.model.step import Step
from nanoeuler_lib.text import sft_data as text_examples
from nanoeuler_lib.text.chat_template import ASSISTANT, USER, alpaca_prompt, markers
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import checkpoint, datasets, loop, run_folder, sft, train

CONFIG = ModelConfig(dim=16, heads=2, kv_heads=1, layers=1, context=48, vocab_size=258, predict=2)
BASE = Tokenizer([(97, 98)], (END_OF_TEXT,))
TOKENIZER = Tokenizer([(97, 98)], (END_OF_TEXT, USER, ASSISTANT))
END, HUMAN, MODEL = markers(TOKENIZER)
SETTINGS = TrainConfig(
    steps=8, batch=4, warmup=2, rate=3e-3, valid_every=4, sample_every=4, save_every=2, later_heads=0.25
)
EXAMPLES = [[(f"{a} and {b}?", f"{b}{a}.")] for a in "abcdef" for b in "uvwxyz"]
HELD_OUT = [[("g and h?", "hg.")], [("h and g?", "gh."), ("and again?", "gh.")]]


def base(dtype=np.float32) -> tuple[GPT, Tokenizer]:
    return GPT(CONFIG, oracles.random_parameters(CONFIG, 0, 0.1, dtype)), BASE


# Which tokens count.


def test_gradient_flows_only_from_replies():
    """The loss of a row is the sum over its reply's tokens alone, and so is the gradient: computed one by one."""
    model = GPT(ModelConfig(**CONFIG.to_dict() | {"vocab_size": 260}), dtype=np.float64)
    example = text_examples.encode([("hi", "ab!")], TOKENIZER)
    inputs, targets = text_examples.rows([example], 32, 2)
    _, grads = model.loss_and_gradients(inputs, targets)
    total, weights = 0, head_weights(model.config)
    for k in range(2):
        for at in np.flatnonzero(targets[0, :, k] >= 0):
            one = np.full_like(targets, -1)
            one[0, at, k] = example.ids[at + 1 + k]
            assert example.counted[at + 1 + k]
            alone = np.zeros(2)
            alone[k] = weights[k] / 3  # three counted tokens
            total = total + model.loss_and_gradients(inputs, one, alone)[1].flat
    oracles.close(grads.flat, total, 1e-12)


def test_no_example_sees_its_neighbour():
    """Changing one example of a batch changes neither loss nor gradient of another, bit for bit."""
    model = GPT(ModelConfig(**CONFIG.to_dict() | {"vocab_size": 260}), dtype=np.float64)
    mine = text_examples.encode([("hi", "ab!")], TOKENIZER)
    seen = []
    for other in ([("ho", "no")], [("something else", "ab ab ab"), ("x", "y")]):
        inputs, targets = text_examples.rows([text_examples.encode(other, TOKENIZER), mine], 48, 2)
        losses = model.losses(inputs, targets)[1]
        targets[0] = -1
        seen.append((losses.tobytes(), model.loss_and_gradients(inputs, targets)[1]["heads"]))
    assert seen[0][0] == seen[1][0]
    oracles.close(seen[0][1], seen[1][1], 1e-14)


def test_what_stands_behind_an_example_is_not_seen():
    model = GPT(ModelConfig(**CONFIG.to_dict() | {"vocab_size": 260}), dtype=np.float64)
    example = text_examples.encode([("hi", "ab!")], TOKENIZER)
    inputs, targets = text_examples.rows([example], 32, 2)
    changed = inputs.copy()
    changed[0, len(example.ids) - 1 :] = 77
    assert model.losses(inputs, targets).tobytes() == model.losses(changed, targets).tobytes()


# Batches.


def answers(examples=EXAMPLES, held_out=HELD_OUT, **settings) -> datasets.SFTDataset:
    config = ModelConfig(**CONFIG.to_dict() | {"vocab_size": 260})
    found = checkpoint.Checkpoint(None, GPT(config), TOKENIZER, 0, TrainConfig(**settings), None, {"template": "plain"})
    return datasets.SFTDataset(examples, held_out, found)


def test_every_example_is_drawn_and_rows_are_hardly_longer_than_they_must_be():
    examples = [[("q" * (n % 40), f"{n}")] for n in range(60)]
    made, drawn, empty, full = answers(examples), Counter(), 0, 0
    for step in range(600):
        inputs, targets = made.batch(step, 4)
        assert inputs.shape[1] in (32, 48) and targets.shape == (*inputs.shape, 2)
        used = 1 + np.max(np.where(targets[..., 0] >= 0, np.arange(inputs.shape[1]), 0), axis=1)
        assert inputs.shape[1] == 48 or used.max() <= 32
        drawn.update(row[:n].tobytes() for row, n in zip(inputs, used))
        empty, full = empty + (inputs.shape[1] - used).sum(), full + inputs.size
    assert len(drawn) == 60
    assert max(drawn.values()) < 2.2 * min(drawn.values()), drawn
    assert empty < 0.5 * full


def test_bits_per_byte_is_the_mean_over_replies():
    made, config = answers(), ModelConfig(**CONFIG.to_dict() | {"vocab_size": 260})
    model = GPT(config)
    model.params["heads"][...] = 0  # every token is as likely: log2(260) bits each
    assert made.bits_per_byte(model) == pytest.approx(12 * np.log2(260) / 9)  # 9 bytes and 3 end markers
    silent = answers(held_out=[[("a", "")]] * 8)
    assert np.isfinite(silent.bits_per_byte(model)), "replies of no byte"


# From a base model.


def test_extend_changes_no_logit():
    model, tokenizer = base(np.float64)
    wide, names = sft.extend(model, tokenizer)
    assert list(names.special_tokens) == [END_OF_TEXT, USER, ASSISTANT] and wide.config.vocab_size == 260
    tokens = np.arange(40).reshape(2, 20) * 6
    for head in range(2):
        assert np.array_equal(wide.logits(tokens, head)[..., :258], model.logits(tokens, head))
    assert wide.params["embed"][258:].std() > 0
    assert sft.extend(wide, names) == (wide, names)


def test_extend_uses_room_that_the_model_has():
    config = ModelConfig(**CONFIG.to_dict() | {"vocab_size": 300})
    wide, names = sft.extend(GPT(config), Tokenizer([(97, 98)], ()))
    assert wide.config.vocab_size == 300 and names.vocab_size == 260


def test_it_learns_and_leaves_the_base_alone(tmp_path):
    """Swapping two letters: nearly all examples are answered in the end, and none before."""
    model, tokenizer = base()
    before = model.params.flat.copy()
    settings = TrainConfig(**SETTINGS.to_dict() | {"steps": 300, "batch": 12, "rate": 1e-2, "valid_every": 100})
    tuned = sft.fine_tune(tmp_path / "run", (model, tokenizer), EXAMPLES, HELD_OUT, settings, quiet=True)
    assert np.array_equal(model.params.flat, before)
    found = checkpoint.load(tmp_path / "run")
    assert found.info["template"] == "plain" and np.array_equal(found.model.params.flat, tuned.params.flat)
    untaught = sft.extend(model, tokenizer)
    assert not sft.exact_match(*untaught, EXAMPLES).any()
    assert sft.exact_match(tuned, found.tokenizer, EXAMPLES).mean() > 0.9


def test_right_is_what_a_greedy_chat_says(tmp_path):
    model = GPT(ModelConfig(**CONFIG.to_dict() | {"vocab_size": 260}), dtype=np.float64)
    settings = TrainConfig(**SETTINGS.to_dict() | {"steps": 40, "rate": 1e-2})
    tuned = sft.fine_tune(tmp_path / "run", (model, TOKENIZER), EXAMPLES, HELD_OUT, settings, quiet=True)
    found = sft.exact_match(tuned, TOKENIZER, EXAMPLES)
    greedy = ["".join(Chat(tuned, TOKENIZER).reply(e[0][0], temperature=0.0)) == e[0][1] for e in EXAMPLES]
    assert found.tolist() == greedy
    two = [[EXAMPLES[0][0], turn[0]] for turn in EXAMPLES[1:9]]
    chats = []
    for first, second in two:
        chat = Chat(tuned, TOKENIZER)
        chat.rows = [text_examples.encode([first], TOKENIZER).ids[1:].tolist()]
        chats.append("".join(chat.reply(second[0], temperature=0.0)) == second[1])
    assert sft.exact_match(tuned, TOKENIZER, two).tolist() == chats
    with pytest.raises(NanoEulerError, match="expected at most 49"):
        sft.exact_match(tuned, TOKENIZER, [[("x" * 60, "y")]])


def test_runs_of_another_kind_and_other_examples_are_refused(tmp_path):
    sft.fine_tune(tmp_path / "run", base(), EXAMPLES, HELD_OUT, SETTINGS, quiet=True)
    before = contents(tmp_path)
    assert "fingerprint" in error_of(loop.resume, tmp_path / "run", EXAMPLES[1:], HELD_OUT, quiet=True)
    assert "exists and is not an empty folder" in error_of(
        sft.fine_tune, tmp_path / "run", base(), EXAMPLES, HELD_OUT, SETTINGS, quiet=True
    )
    assert contents(tmp_path) == before
    train.train(tmp_path / "text", oracles.run_text(), oracles.RUN_MODEL, oracles.RUN_CONFIG, quiet=True)
    assert "was not begun by fine-tuning" in error_of(loop.resume, tmp_path / "text", EXAMPLES, HELD_OUT)
    assert "template is 'x'" in error_of(
        sft.fine_tune, tmp_path / "new", base(), EXAMPLES, HELD_OUT, SETTINGS, template="x"
    )
    assert not (tmp_path / "new").exists()


def test_the_chat_model_of_the_package_answers():
    """On stories that no model was trained on: all kinds of questions, each asked alone and in one conversation."""
    model, tokenizer = checkpoint.load_pretrained("konigsberg-chat")
    talks = konigsberg_examples(40, 987)
    alone = [
        [(f"{story.text.rpartition(chr(10))[0]} {q.text}", q.answer)]
        for story in konigsberg.stories(40, 987)
        for q in story.questions
    ]
    assert sft.exact_match(model, tokenizer, alone).mean() > 0.97
    two = [talk[:2] for talk in talks if len(text_examples.encode(talk[:2], tokenizer).ids) <= 129]
    assert len(two) > 20 and sft.exact_match(model, tokenizer, two).mean() > 0.9
    chat = Chat(model, tokenizer)
    text, answer = alone[0][0]
    assert "".join(chat.reply(text, temperature=0.0)) == answer


def test_other_held_out_examples_or_another_mask_are_refused(tmp_path):
    sft.fine_tune(tmp_path / "run", base(), EXAMPLES, HELD_OUT, SETTINGS, quiet=True)
    assert "validation text has fingerprint" in error_of(loop.resume, tmp_path / "run", EXAMPLES, HELD_OUT[:1])
    swapped = [EXAMPLES[1], EXAMPLES[0], *EXAMPLES[2:]]
    assert "text has fingerprint" in error_of(loop.resume, tmp_path / "run", swapped, HELD_OUT)
    ids = np.array([5, 9, 7])
    assert len({datasets.fingerprint(a) for a in (ids, ids[[1, 0, 2]], ids[[0, 2, 1]], ids[:2])}) == 4


def test_the_fingerprint_sees_the_mask_and_the_last_token(monkeypatch):
    """The same tokens, another one of them counted; a change at the very end of many."""
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
    """What stands in a reply or a prompt of a data file never becomes a special token: it could end a turn."""
    example = [(f"a{USER}b", f"c{ASSISTANT}{END_OF_TEXT}d")]
    found = text_examples.encode(example, TOKENIZER)
    special = [i for i in found.ids if i in (END, HUMAN, MODEL)]
    assert special == [END, HUMAN, MODEL, END]
    assert USER in TOKENIZER.decode(found.ids[2:]) and found.counted.sum() == len(f"c{ASSISTANT}{END_OF_TEXT}d") + 1


def test_an_example_fits_whose_inputs_fill_the_context():
    """Of n tokens n - 1 are inputs: the last one is a target only."""
    for letters, kept in ((43, 1), (44, 0)):
        example = [("x" * letters, "no")]
        assert len(text_examples.encode(example, TOKENIZER).ids) == letters + 6
        assert answers([*EXAMPLES, example]).sizes["train_examples"] == len(EXAMPLES) + kept


def many(count=40):
    rng = np.random.default_rng(0)
    return [[("q" * int(rng.integers(1, 40)), "r" * int(rng.integers(0, 5)))] for _ in range(count)]


def test_bits_per_byte_counts_each_held_out_example_once():
    config = ModelConfig(**CONFIG.to_dict() | {"vocab_size": 260})
    tuned, nats = GPT(config, oracles.random_parameters(config, 1, 0.5)), 0.0
    for example in many():
        e = text_examples.encode(example, TOKENIZER)
        logits = tuned.logits(e.ids[None, :-1])[0]
        log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        nats -= log_p[np.arange(len(e.ids) - 1), e.ids[1:]][e.counted[1:]].sum()
    length = sum(len(reply) for ((_, reply),) in many())
    assert answers(held_out=many()).bits_per_byte(tuned) == pytest.approx(nats / np.log(2) / length, rel=1e-9)


def test_right_by_hand():
    assert sft.exact_match(bigram({MODEL: 72}), TOKENIZER, [[("a", "X"), ("b", "H")]]).tolist() == [
        True
    ]  # the last turn
    assert sft.exact_match(bigram({MODEL: 72, 72: 72}), TOKENIZER, [[("a", "H")]]).tolist() == [False]  # it goes on
    made = bigram({MODEL: HUMAN})
    made.params["heads"][MODEL, 66] = 1.5  # the best that a chat may say
    assert sft.exact_match(made, TOKENIZER, [[("hi", "B")]]).tolist() == [True]


def test_the_sample_is_the_greedy_reply_to_the_first_held_out_prompt():
    held_out = [[(alpaca_prompt("g?"[:1]), "x")]]
    config = ModelConfig(**CONFIG.to_dict() | {"vocab_size": 260, "context": 300})
    tuned = GPT(config, oracles.random_parameters(config, 1, 0.5))
    found = checkpoint.Checkpoint(None, tuned, TOKENIZER, 0, SETTINGS, None, {"template": "alpaca"})
    full = [[("~" * 297, "")]]  # fits into a row, and leaves a chat no room
    made = datasets.SFTDataset(EXAMPLES, full + held_out, found)
    expected = "".join(Chat(tuned, TOKENIZER, "alpaca").reply("g", 60, temperature=0.0))
    assert made.sample(tuned, 1) == made.sample(tuned, 2) == expected


def test_what_a_fine_tuning_stores(tmp_path):
    sft.fine_tune(tmp_path / "run", base(), EXAMPLES, HELD_OUT, SETTINGS, "alpaca", {"source": "mine"}, True, 1)
    info = checkpoint.load(tmp_path / "run").info
    assert (info["template"], info["source"], info["workers"]) == ("alpaca", "mine", 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_base_with_markers_is_left_alone(tmp_path, dtype):
    wide, names = sft.extend(*base(dtype))
    before = wide.params.flat.copy()
    tuned = sft.fine_tune(tmp_path / "run", (wide, names), EXAMPLES, HELD_OUT, SETTINGS, quiet=True)
    assert np.array_equal(wide.params.flat, before) and tuned.dtype == dtype


def test_extend_keeps_the_order_of_bytes():
    order = list(range(255, -1, -1))
    _, names = sft.extend(base()[0], Tokenizer([(97, 98)], (END_OF_TEXT,), order))
    assert names.byte_order == Tokenizer([(97, 98)], (END_OF_TEXT,), order).byte_order
    assert names.encode("hi").tolist() == Tokenizer([(97, 98)], (END_OF_TEXT,), order).encode("hi").tolist()


def test_held_out_stories_are_others():
    learnt, held_out, template = sources.examples(sources.KONIGSBERG, 300, 7)
    assert (len(learnt), len(held_out), template) == (300, sources.HELD_OUT, "plain")
    assert not {e[0][0] for e in learnt} & {e[0][0] for e in held_out}
    assert held_out == konigsberg_examples(sources.HELD_OUT, 8)


def test_a_run_uses_the_workers_it_stores(tmp_path, monkeypatch):
    made = []

    class Watched(Step):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(arguments[4])

    monkeypatch.setattr(step_module, "Step", Watched)
    sft.fine_tune(tmp_path / "run", base(), EXAMPLES, HELD_OUT, SETTINGS, quiet=True, workers=3)
    loop.resume(tmp_path / "run", EXAMPLES, HELD_OUT, quiet=True)
    assert made == [3, 3]


def test_warnings_and_speed_are_logged(tmp_path):
    sft.fine_tune(tmp_path / "run", base(), [*EXAMPLES, EXAMPLES[0]], HELD_OUT, SETTINGS, quiet=True)
    log = run_folder.read_log(tmp_path / "run")
    assert "stand there more than once" in next(e["warning"] for e in log if "warning" in e)
    for entry in (e for e in log if "loss" in e):  # rows of 32 tokens, shorter than the context
        assert entry["tokens_per_second"] * entry["seconds"] == pytest.approx(4 * 32, rel=0.02)


def test_losses_are_means_over_counted_targets_at_any_length():
    config = ModelConfig(**CONFIG.to_dict() | {"vocab_size": 260})
    tuned = GPT(config, dtype=np.float64)
    step = Step(tuned, AdamW(config, SETTINGS, np.float64), SETTINGS, 22, 2)
    with one_blas_thread():
        for time in (32, 48, 32):
            inputs, targets = text_examples.rows([text_examples.encode(e, TOKENIZER) for e in EXAMPLES[:22]], time, 2)
            losses = step.gradient(inputs, targets)
            _, grads = tuned.loss_and_gradients(inputs, targets, head_weights(config, SETTINGS.later_heads))
            counted = (targets[..., 0] >= 0).sum()
            nats = tuned.losses(inputs, targets[..., 0]).sum()
            oracles.close(losses[:1], np.array([nats / counted]), 1e-12)
            oracles.close(sum(g.flat for g in step.grads), grads.flat, 1e-10)
            assert step.plans[0].time == time
    assert len(step.lengths) == 2 and step.lengths[32][0] is not step.lengths[32][1]
    step.pool.shutdown()


def test_how_often_the_data_was_seen(tmp_path):
    """20 steps of 4 of 36 are 2.2 times, whatever the rows' empty places."""
    settings = TrainConfig(**SETTINGS.to_dict() | {"steps": 20})
    sft.fine_tune(tmp_path / "run", base(), EXAMPLES, HELD_OUT, settings, quiet=True)
    assert not any("repeats" in e.get("warning", "") for e in run_folder.read_log(tmp_path / "run"))


def test_right_says_no_id_without_a_token():
    config = ModelConfig(**CONFIG.to_dict() | {"vocab_size": 300})
    tuned = GPT(config, dtype=np.float64)
    tuned.params["embed"][...] = 1
    for name in ("layers.0.out", "layers.0.down"):
        tuned.params[name][...] = 0
    tuned.params["heads"][:, 290], tuned.params["heads"][:, END] = 0.2, 0.1
    assert said(Chat(tuned, TOKENIZER), "hi") == "" and sft.exact_match(tuned, TOKENIZER, [[("hi", "")]])[0]


def test_a_head_without_a_target_has_loss_0():
    config = ModelConfig(**CONFIG.to_dict() | {"vocab_size": 260})
    tuned = GPT(config)
    step = Step(tuned, AdamW(config, SETTINGS), SETTINGS, 4, 1)
    inputs, targets = text_examples.rows([text_examples.encode(e, TOKENIZER) for e in EXAMPLES[:4]], 32, 2)
    targets[..., 1] = -1
    with one_blas_thread():
        losses, norm = step(inputs, targets)
    step.pool.shutdown()
    assert losses[1] == 0 and losses[0] > 0 and np.isfinite(norm)


def test_the_exam_of_the_chat_model_is_about_other_stories():
    learnt = {SFT_DATA_SEED, SFT_DATA_SEED + 1, *pretrained.SEEDS, pretrained.VALID_SEED}
    assert not learnt & {chat_model.TEST_SEED, chat_model.MAJORITY_SEED}
    assert chat_model.TEST_SEED != chat_model.MAJORITY_SEED
    asked = {one["body"] for one in chat_model.questions(200, chat_model.TEST_SEED)}
    assert not asked & {story.text.rpartition("\n")[0] for story in konigsberg.stories(sources.STORIES, SFT_DATA_SEED)}


# Where examples come from.


def test_konigsberg_examples_are_its_questions():
    examples = konigsberg_examples(40, 7)
    assert examples == konigsberg_examples(40, 7) != konigsberg_examples(40, 8)
    kinds = Counter()
    for example, story in zip(examples, konigsberg.stories(40, 7), strict=True):
        asked = {question.text: question for question in story.questions}
        body = story.text.rpartition("\n")[0]
        first, *others = example
        assert first[0].startswith(f"{body} ")
        turns = [(first[0].removeprefix(f"{body} "), first[1]), *others]
        assert {text: answer for text, answer in turns} == {q.text: q.answer for q in asked.values()}
        kinds[list(asked).index(turns[0][0])] += 1
    assert len(kinds) >= 4  # not always the same question first


@pytest.mark.skipif("NANOEULER_DATA" not in os.environ, reason="NANOEULER_DATA names no folder of test data")
@pytest.mark.parametrize(
    "name, count", [("alpaca_data.json.xz", 52_002), ("databricks-dolly-15k.nocategory.jsonl.xz", 15_015)]
)
def test_alpaca_and_dolly_are_read_whole(name, count):
    examples, template = text_examples.read_examples(Path(os.environ["NANOEULER_DATA"]) / "sft" / name)
    assert (len(examples), template) == (count, "alpaca")
