"""Runs on a text: they learn, draw what their seed says, see no validation text, and leave files that all can read."""

import json
import math
import os
import shutil
import time
from collections import Counter
from functools import partial
from unittest.mock import patch

import numpy as np
import oracles
import pytest
from oracles import RUN_CONFIG, RUN_MODEL, assert_same_run, changed, error_of, run_text

from nanoeuler_lib import machine
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.generation.generate import generate
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text import data
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import checkpoint, datasets, run_folder, train
from nanoeuler_lib.training.report import report

begin = partial(train.train, text=run_text(), model_config=RUN_MODEL, config=RUN_CONFIG, quiet=True)


def test_learns(tmp_path):
    """After 150 small steps a text needs far fewer bits than its single tokens' frequencies would."""
    text = "".join(f"the {a} cat sees the {a} dog and the {b} hen. " for a, b in zip("abcdefgh" * 20, "hgfedcba" * 20))
    config = ModelConfig(dim=32, heads=4, kv_heads=2, layers=2, context=32, vocab_size=280, predict=2)
    settings = TrainConfig(steps=150, batch=8, warmup=10, valid_every=50, sample_every=0, rate=1e-2)
    model = train.train(tmp_path / "run", text, config, settings, quiet=True)
    tokenizer = checkpoint.load(tmp_path / "run").tokenizer
    tokens = data.tokenize(data.split_text(text, settings.valid_fraction)[1], tokenizer)
    counts = Counter(tokens.ids.tolist())
    total = sum(counts.values())
    unigram = -sum(n * math.log2(n / total) for n in counts.values()) / tokens.bytes
    log = run_folder.read_log(tmp_path / "run")
    bits = [entry["valid_bits_per_byte"] for entry in log if "valid_bits_per_byte" in entry]
    assert bits[-1] < 0.35 * unigram < bits[0]
    with machine.one_blas_thread():  # as in training: the same products, so the same bits
        assert bits[-1] == datasets.bits_per_byte(model, tokens)
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert np.mean(losses[-10:]) < 0.2 * np.mean(losses[:5])
    assert losses[0] == pytest.approx(math.log(280), rel=0.05)  # before learning, every token is as likely


# The same results each time.


def test_the_seed_draws_the_batches_and_the_weights(tmp_path, monkeypatch):
    original, drawn, config = data.batch, [], changed(RUN_CONFIG, seed=3)

    def batch(tokens, rng, *arguments):
        drawn.append(rng.bit_generator.state["state"]["state"])
        return original(tokens, rng, *arguments)

    begin(tmp_path / "run", config=config)
    monkeypatch.setattr(data, "batch", batch)
    begin(tmp_path / "folders" / "not there yet", config=config)
    assert_same_run(tmp_path / "run", tmp_path / "folders" / "not there yet")
    expected = [np.random.default_rng([3, step]).bit_generator.state["state"]["state"] for step in range(config.steps)]
    assert drawn == expected
    begun = train.fresh(tmp_path, RUN_MODEL, config, Tokenizer([], ()), {})
    assert np.array_equal(begun.model.params.flat, GPT(RUN_MODEL, seed=3).params.flat)


def test_accumulation_is_a_larger_batch(tmp_path):
    for name, batch, accumulate in (("large", 6, 1), ("small", 2, 3)):
        begin(tmp_path / name, config=changed(RUN_CONFIG, batch=batch, accumulate=accumulate))
    assert_same_run(tmp_path / "large", tmp_path / "small")
    oracles.check_step(3, 2)


# What is learnt from and measured on.


def test_a_run_on_mixed_documents_says_what_it_reaches_and_has_held(tmp_path):
    """Old settings name no cutting: such a run draws the rows that it drew."""
    text = data.SEPARATOR.join(["the cat", "a hat", "her red mat " * 40, "the mat", "a cat", "ran to her"] * 20)
    shares = {}
    for cut in (False, True):
        run = tmp_path / str(cut)
        begin(run, text=text, config=changed(RUN_CONFIG, cut_documents=cut, steps=12), valid_text="the hat")
        head = json.loads((run / "run.json").read_text())["data"]
        seen = [entry["seen"] for entry in run_folder.read_log(run) if "seen" in entry]
        assert seen[0] == 0 < seen[1] < seen[-1] <= head["reach"] and head["unit"] == "tokens"
        shares[cut] = head["reach"]
        dataset = datasets.TextDataset(text, "the hat", checkpoint.load(run, training=True))
        drawn = {int(i) for step in range(12) for i in held(dataset, step)}
        assert seen[-1] == pytest.approx(len(drawn) / head["train_tokens"], abs=1e-6)
        assert dataset.tokens == round(head["reach"] * head["train_tokens"]), "passes count what is reached"
    assert shares[True] == 1 and shares[False] < 0.5
    older = {key: value for key, value in RUN_CONFIG.to_dict().items() if key != "cut_documents"}
    assert TrainConfig.from_dict(older).cut_documents is False


def held(dataset, step):
    """The places of the text that stand in a step's rows, found by drawing from a text of places."""
    places = data.Tokens(np.arange(len(dataset.part.ids)), None, np.ones(1))
    with patch.object(dataset, "part", places):
        inputs, targets = dataset.batch(step, 4)
    return {*inputs.ravel(), *targets.ravel()}


def test_end_of_text_has_no_bytes_but_costs_bits():
    config = ModelConfig(dim=8, heads=2, kv_heads=1, layers=1, context=9, vocab_size=257, predict=1)
    model = GPT(config)
    model.params["heads"][...] = 0  # log2(257) bits each
    tokens = data.tokenize(data.SEPARATOR.join(["abc", "de", "fghi"]), Tokenizer([], (END_OF_TEXT,)))
    assert datasets.bits_per_byte(model, tokens) == pytest.approx((9 + 3) * math.log2(257) / 9, rel=1e-6)
    nothing = data.Tokens(np.array([256, 256]), None, tokens.lengths)
    assert math.isfinite(datasets.bits_per_byte(model, nothing)), "a text of no byte divides nothing by 0"


@pytest.mark.parametrize("sizes", [[400], [400, 400], [300, 300, 4000], [4000, 300]])
def test_the_share_that_was_asked_for_is_held_out_of_each_text(sizes):
    texts = [letter * size for letter, size in zip("abc", sizes)]
    part, valid = datasets.split_text(texts, None, changed(RUN_CONFIG, valid_fraction=0.1))
    tenths = [letter * (size // 10) for letter, size in zip("abc", sizes)]
    assert valid == data.SEPARATOR.join(tenths) and part == data.SEPARATOR.join(9 * tenth for tenth in tenths)
    whole = [data.SEPARATOR.join([text[:31]] * 29) for text in texts]  # documents near the share stay whole
    part, valid = (side.split(data.SEPARATOR) for side in datasets.split_text(whole, None, RUN_CONFIG))
    assert {len(document) for document in part + valid} == {31} and len(valid) == 5 * len(texts)


def test_a_folder_is_the_texts_directly_in_it(tmp_path):
    for name in ("b.txt", "a.md", "c.html", ".d.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "e.txt").mkdir()
    assert data.read_text(tmp_path) == f"a.md{data.SEPARATOR}b.txt"


def test_training_sees_no_validation_text(tmp_path):
    text = run_text() + "ZQ" * len(run_text())  # what is held out would rule the merges if it were seen
    seen, original = set(), data.batch

    def batch(*arguments):
        inputs, targets = original(*arguments)
        seen.update(inputs.ravel().tolist(), targets.ravel().tolist())
        return inputs, targets

    with patch.object(data, "batch", batch):
        begin(tmp_path / "run", text=text, config=changed(RUN_CONFIG, valid_fraction=0.7))
    tokenizer = checkpoint.load(tmp_path / "run").tokenizer
    assert not any(b"Z" in tokenizer.token_bytes[i] for i in seen)
    assert not any(b"Z" in token for token in tokenizer.token_bytes[256:])


def test_documents_train_a_tokenizer_with_end_of_text(tmp_path):
    text, valid = data.SEPARATOR.join(["the cat sat", "a hat", "the red mat"] * 40), "a red cat ran to the mat. " * 8
    model = begin(tmp_path / "run", text=text, model_config=changed(RUN_MODEL, vocab_size=262), valid_text=valid)
    found = checkpoint.load(tmp_path / "run")
    assert found.tokenizer.special_tokens == {END_OF_TEXT: 261}
    assert not any(b"endoftext" in token for token in found.tokenizer.token_bytes[256:261])
    bits = datasets.bits_per_byte(model, data.tokenize(valid, found.tokenizer))
    assert found.info["valid_bits_per_byte"] == pytest.approx(bits, rel=1e-12)


@pytest.mark.parametrize("tokens, said", [
    (np.array([[0, 258]]), "tokens must be in 0..257, got 0..258"),
    (np.array([[3, -1]]), "tokens must be in 0..257, got -1..3"),
    (np.zeros((1, 2)), "tokens must be integers [B, T], got float64 [1, 2]"),
    (np.zeros(2, int), "tokens must be integers [B, T], got int64 [2]"),
    (np.zeros((1, 13), int), "the number of tokens must be 1 to 12, the context, got 13"),
])  # fmt: skip
def test_model_refuses_tokens(tokens, said):
    model = GPT(RUN_MODEL)
    for function in (model.hidden, model.logits, partial(model.losses, targets=tokens)):
        assert said in error_of(function, tokens)


# What is logged and left.


def test_the_log_has_the_loss_of_each_head_and_samples_of_their_step(tmp_path):
    model = begin(tmp_path / "run", config=changed(RUN_CONFIG, sample_every=6))
    log, found = run_folder.read_log(tmp_path / "run"), checkpoint.load(tmp_path / "run", training=True)
    dataset = datasets.TextDataset(*datasets.split_text(run_text(), None, RUN_CONFIG), found)
    inputs, targets = dataset.batch(0, RUN_CONFIG.batch)
    fresh = GPT(RUN_MODEL, seed=RUN_CONFIG.seed)
    expected = oracles.naive_losses(fresh.params, RUN_MODEL, inputs, targets).mean(axis=(0, 1))
    first = next(entry for entry in log if "loss" in entry)
    assert [first["loss"], *first["later"]] == pytest.approx(expected, abs=2e-5)
    (last,) = [entry for entry in log if "sample" in entry]
    assert last["step"] == 6 and last["sample"] == generate(model, found.tokenizer, "", 100, seed=RUN_CONFIG.seed + 6)


@pytest.mark.parametrize("go_away", [
    shutil.rmtree, lambda run: run.rename(run.with_name("elsewhere")), lambda run: (shutil.rmtree(run), run.mkdir())
], ids=["removed", "renamed", "made anew"])  # fmt: skip
def test_a_folder_that_goes_away_is_noticed(tmp_path, go_away):
    """Training on would write checkpoints that nobody finds, next to a log and a lock that are gone."""
    run, steps = tmp_path / "run", []

    def on_entry(entry):
        steps.append(entry["step"])
        if entry["step"] == 3 and "loss" in entry:
            while not (run / "checkpoints" / "step-000002").exists():
                time.sleep(0.01)  # a thread writes it
            go_away(run)

    message = error_of(begin, run, on_entry=on_entry)
    assert message == f"{run}: was removed or renamed while the run wrote to it"
    assert (not run.exists() or list(run.iterdir()) == []) and steps[-1] == 3


def test_files_can_be_read_by_whom_the_umask_lets_and_name_any_file(tmp_path):
    """A name that is not UTF-8 is kept as it is, and shown."""
    run, named, before = tmp_path / "run", {"text": "/tmp/k\udce4the.txt", "valid": None}, os.umask(0o027)
    try:
        begin(run, source="k\udce4the", files=named)
    finally:
        os.umask(before)
    modes = {f.name: f.stat().st_mode & 0o777 for f in run.rglob("*") if f.is_file()}
    assert set(modes.values()) == {0o640}, modes
    assert "model.safetensors" in modes and "optimizer.safetensors" in modes
    assert checkpoint.load(run).info["files"] == named
    assert "k\ufffdthe" in report(run).read_text("utf-8")
