"""Training: it learns, gives the same bits each time, goes on as if it had never stopped, and loses nothing."""

import json
import math
import os
import shutil
import signal
import threading
import time
from collections import Counter
from unittest.mock import patch

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import RUN_CONFIG, RUN_MODEL, Crash, changed, contents, error_of, run_text, seal, stopped_at
from safetensors.numpy import load_file, save_file

from nanoeuler_lib import __version__, files, machine, ops
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generation.generate import generate
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model import gpt as gpt_module
from nanoeuler_lib.model import step as step_module
from nanoeuler_lib.model.gradcheck import check_batch
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.text import data
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import checkpoint, datasets, loop, run_folder, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, to be copied before it is changed."""
    run = tmp_path_factory.mktemp("finished") / "run"
    train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    return run


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


# Learning.


def test_learns(tmp_path):
    """After 150 small steps a text needs far fewer bits than its single tokens' frequencies would."""
    text = "".join(f"the {a} cat sees the {a} dog and the {b} hen. " for a, b in zip("abcdefgh" * 40, "hgfedcba" * 40))
    config = ModelConfig(dim=32, heads=4, kv_heads=2, layers=2, context=32, vocab_size=280, predict=2)
    settings = TrainConfig(steps=150, batch=8, warmup=10, valid_every=50, sample_every=0, rate=1e-2)
    model = train.train(tmp_path / "run", text, config, settings, quiet=True)
    tokenizer = checkpoint.load(tmp_path / "run").tokenizer
    _, valid = data.split_text(text, settings.valid_fraction)
    tokens = data.tokenize(valid, tokenizer)
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


@pytest.mark.parametrize("layers, later", [(1, 0.0), (2, 0.25)])
def test_learns_one_batch_by_heart(layers, later):
    config = ModelConfig(dim=32, heads=4, kv_heads=2, layers=layers, context=9, vocab_size=20, predict=2)
    settings = TrainConfig(steps=120, batch=4, warmup=5, rate=1e-2, decay=0.0, later_heads=later)
    model = GPT(config)
    step = step_module.Step(model, AdamW(config, settings), settings, 4)
    tokens, targets = check_batch(config, 4, 9, 0, masked=0.0)
    tokens = np.arange(36).reshape(4, 9) % 20  # each first token tells the row
    losses = [step(tokens, targets)[0] for _ in range(120)]
    step.pool.shutdown()
    assert losses[-1][0] < 0.05 < losses[0][0]
    assert (losses[-1][1] < 0.2) == (later > 0), "a head of weight 0 must not learn"


# The same results each time.


def test_same_bits_each_time(finished, tmp_path):
    train.train(tmp_path / "again", run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    oracles.assert_same_run(finished, tmp_path / "again")
    train.train(tmp_path / "other", run_text(), RUN_MODEL, changed(RUN_CONFIG, seed=1), quiet=True)
    with pytest.raises(AssertionError, match="parameters"):
        oracles.assert_same_run(finished, tmp_path / "other")


def _three_steps(workers, rows=8, accumulate=1, dtype=np.float32):
    settings = changed(RUN_CONFIG, batch=rows // accumulate, accumulate=accumulate)
    model = GPT(RUN_MODEL, oracles.random_parameters(RUN_MODEL, 0, 0.1, dtype))
    with patch.object(step_module, "MICRO_TOKENS", 2 * RUN_MODEL.context), machine.one_blas_thread():
        step = step_module.Step(model, AdamW(RUN_MODEL, settings, dtype), settings, rows, workers)
        assert step.workers == workers
        for number in range(3):
            step(*check_batch(RUN_MODEL, rows, RUN_MODEL.context, number))
        step.pool.shutdown()
    return model.params.flat


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers(workers):
    """The same number of workers gives the same bits; another number the same up to rounding."""
    results = {_three_steps(workers).tobytes() for _ in range(3)}
    assert len(results) == 1
    oracles.close(_three_steps(workers, dtype=np.float64), _three_steps(1, dtype=np.float64), 1e-12)


def test_no_more_workers_than_micro_batches():
    step = step_module.Step(GPT(RUN_MODEL), AdamW(RUN_MODEL, RUN_CONFIG), RUN_CONFIG, 4, workers=16)
    assert step.workers * step.micro <= 4
    step.pool.shutdown()


@pytest.mark.parametrize("rows", [1, 3, 5, 7, 8])
def test_every_row_counts_once(rows):
    """Whatever the number of rows and threads, the gradient is that of the whole batch."""
    model = GPT(RUN_MODEL, oracles.random_parameters(RUN_MODEL))
    tokens, targets = check_batch(RUN_MODEL, rows, RUN_MODEL.context, 0)
    _, expected = model.loss_and_gradients(tokens, targets)
    with patch.object(step_module, "MICRO_TOKENS", 3 * RUN_MODEL.context):
        step = step_module.Step(model, AdamW(RUN_MODEL, RUN_CONFIG, np.float64), RUN_CONFIG, rows, workers=2)
        step.gradient(tokens, targets)
        step.pool.shutdown()
    oracles.close(sum(grads.flat for grads in step.grads), expected.flat, 1e-12)


def test_accumulation_is_a_larger_batch(tmp_path):
    for name, batch, accumulate in (("large", 6, 1), ("small", 2, 3)):
        settings = changed(RUN_CONFIG, batch=batch, accumulate=accumulate)
        train.train(tmp_path / name, run_text(), RUN_MODEL, settings, quiet=True)
    oracles.assert_same_run(tmp_path / "large", tmp_path / "small")


@pytest.mark.parametrize("workers, accumulate", [(1, 1), (2, 1), (3, 1), (3, 2)])
def test_step_is_the_whole_batch(workers, accumulate):
    oracles.check_step(workers, accumulate)


def test_schedule():
    oracles.check_schedule()


def test_fresh_parameters():
    oracles.check_init()


# Going on.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signal_saves_a_whole_step(finished, tmp_path, capfd, number):
    """While the parameters move: that step is finished and saved, and the run goes on from it."""
    original, sent = AdamW.update, []

    def update(self, *arguments):
        if self.step == 3 and not sent:  # save_every is 2
            sent.append(number)
            signal.pthread_kill(threading.main_thread().ident, number)
            time.sleep(0.2)
        original(self, *arguments)

    run, before = tmp_path / "run", signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), patch.object(AdamW, "update", update):
        train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    assert checkpoint.load(run, training=True).step == 3
    assert f"--resume {run}" in "".join(capfd.readouterr())
    assert signal.getsignal(number) == before
    loop.resume(run, run_text(), quiet=True)
    oracles.assert_same_run(finished, run)


def test_resume_of_a_finished_run_changes_nothing(run):
    before = contents(run)
    model = loop.resume(run, run_text(), quiet=True)
    assert contents(run) == before
    assert np.array_equal(model.params.flat, checkpoint.load(run).model.params.flat)


def test_resume_wants_the_same_text(run):
    before = contents(run)
    message = error_of(loop.resume, run, run_text().replace("cat", "cot"), quiet=True)
    assert "not the text the run began with" in message
    assert contents(run) == before


def test_log_cut_off_by_a_crash(finished, tmp_path):
    """A last line that a crash cut short is dropped; the log ends up the same."""
    run = tmp_path / "run"
    with pytest.raises(Crash), stopped_at(5):
        train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    with open(run / "log.jsonl", "a") as log:
        log.write('{"step": 6, "lo')
    loop.resume(run, run_text(), quiet=True)
    oracles.assert_same_run(finished, run)


# What goes wrong.


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_loss_that_is_not_finite(tmp_path, bad):
    original = gpt_module.forward

    def forward(params, plan, tokens):
        original(params, plan, tokens)
        if optimizer_step[0] == 4:
            plan.y_final[0, 0] = bad

    optimizer_step = [0]
    step_call = step_module.Step.__call__

    def call(self, *batch):
        optimizer_step[0] = self.optimizer.step
        return step_call(self, *batch)

    run = tmp_path / "run"
    with patch.object(gpt_module, "forward", forward), patch.object(step_module.Step, "__call__", call):
        message = error_of(train.train, run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    assert message.startswith("step 5: loss is nan") and "lower the learning rate" in message
    assert "the checkpoint of step 4 is intact" in message
    found = checkpoint.load(run, training=True)
    assert found.step == 4 and np.isfinite(found.model.params.flat).all()
    loop.resume(run, run_text(), quiet=True)
    assert checkpoint.load(run).step == 6


def test_gradient_that_is_not_finite(tmp_path):
    """The loss may still be a number when the gradient is none: the step is not taken."""
    original, steps = gpt_module.backward, []

    def backward(params, grads, *rest, **named):
        original(params, grads, *rest, **named)
        steps.append(params.flat.copy())
        if len(steps) == 4:
            grads["heads"][0, 0] = np.inf

    with patch.object(gpt_module, "backward", backward):
        message = error_of(train.train, tmp_path / "run", run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    assert message.startswith("step 4: loss is 5.") and "the gradient's norm inf" in message
    assert "the checkpoint of step 2 is intact" in message
    model = GPT(RUN_MODEL)
    step = step_module.Step(model, AdamW(RUN_MODEL, RUN_CONFIG), RUN_CONFIG, 4)
    before = model.params.flat.copy()
    with patch.object(gpt_module, "backward", lambda params, grads, *rest, **named: grads.flat.fill(np.nan)):
        for plan in step.plans:
            plan.losses[...] = 1
        _, norm = step(*check_batch(RUN_MODEL, 4, 12, 0))
    step.pool.shutdown()
    assert math.isnan(norm) and np.array_equal(model.params.flat, before) and step.optimizer.step == 0


@pytest.mark.parametrize("bad", ["norm", "later head"])
def test_nothing_moves_after_an_infinite_norm_or_a_later_heads_nan(bad):
    model = GPT(RUN_MODEL)
    optimizer = AdamW(RUN_MODEL, RUN_CONFIG)
    step, before = step_module.Step(model, optimizer, RUN_CONFIG, 4), model.params.flat.copy()

    def gradient(*batch):
        for grads in step.grads:
            grads.flat.fill(1e30 if bad == "norm" else 1e-3)  # its square is no float32
        return np.array([1.0, 2.0 if bad == "norm" else np.nan])

    step.gradient = gradient
    with np.errstate(all="ignore"):
        losses, norm = step(*check_batch(RUN_MODEL, 4, 12, 0))
    step.pool.shutdown()
    assert not math.isfinite(norm) and losses[0] == 1 and optimizer.step == 0
    assert np.array_equal(model.params.flat, before) and not optimizer.m.flat.any() and not optimizer.v.flat.any()


@pytest.mark.parametrize("number", [1, 2, 3, 5, 6, 9])
def test_ended_between_two_unlinks(finished, tmp_path, number):
    """While an old checkpoint or an old best one is removed: what is left of it is taken for none."""
    unlink, count = os.unlink, [0]

    def counted(*given, **named):
        count[0] += 1
        if count[0] == number:
            raise Crash
        unlink(*given, **named)

    run = tmp_path / "run"
    with patch.object(os, "unlink", counted), pytest.raises(Crash):
        train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    loop.resume(run, run_text(), quiet=True)
    oracles.assert_same_run(finished, run)
    assert [f.name for f in sorted((run / "checkpoints").iterdir())] == ["best", "step-000004", "step-000006"]


def test_rate_far_too_high_ends_in_one_line_or_a_finite_loss(tmp_path):
    settings = changed(RUN_CONFIG, rate=10.0, warmup=0, clip=0.0, steps=40, decay=10.0)
    message = error_of(train.train, tmp_path / "run", run_text(), RUN_MODEL, settings, quiet=True)
    assert message.startswith("step ") and "expected finite numbers" in message


@pytest.mark.parametrize(
    "name, value",
    [("steps", 0), ("batch", 1.5), ("batch", True), ("rate", math.nan), ("rate", -1), ("beta1", 1), ("clip", -1),
     ("decay", "x"), ("valid_fraction", 0.95), ("seed", -1), ("later_heads", math.inf), ("save_every", 0),
     ("keep_every", -1), ("optimizer", "sgd"), ("optimizer", None), ("optimizer", ["muon"])],
)  # fmt: skip
def test_train_config_refuses(name, value):
    assert error_of(TrainConfig, **{name: value}).startswith(f"{name} is {value!r}, expected")


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"heads": 3}, "dim is 128, expected a multiple of heads (3)"),
        ({"kv_heads": 3}, "heads is 4, expected a multiple of kv_heads (3)"),
        ({"dim": 12}, "head width dim/heads is 3, expected an even number"),
        ({"layers": 0}, "layers is 0, expected a whole number from 1"),
        ({"context": 2.0}, "context is 2.0, expected a whole number"),
        ({"predict": True}, "predict is True"),
        ({"rope_theta": math.nan}, "rope_theta is nan, expected a number from 1 to 1000000000"),
        ({"norm_eps": 0}, "norm_eps is 0, expected a number from 1e-12 to 1"),
    ],
)
def test_model_config_refuses(changes, expected):
    assert expected in error_of(preset, "small", **changes)


def test_presets():
    assert GPT(preset("small")).size == 1_053_824
    c = preset("small")
    assert (c.dim, c.heads, c.kv_heads, c.head_dim, c.layers, c.ffn, c.context) == (
        128,
        4,
        2,
        32,
        4,
        344,
        128,
    )
    assert error_of(preset, "huge") == "preset is 'huge', expected one of small, big, base, large"
    for name in ("small", "big", "base", "large"):
        assert ModelConfig.from_dict(json.loads(json.dumps(preset(name).to_dict()))) == preset(name)
    assert error_of(ModelConfig.from_dict, c.to_dict() | {"depth": 3}) == (
        f"ModelConfig has ['depth'], unknown to nanoeuler {__version__}: expected the newer version that wrote it"
    )
    assert "list" in error_of(TrainConfig.from_dict, [1])


# Checkpoints.


@pytest.fixture
def saved(run):
    """The latest checkpoint of a run that may be damaged."""
    return run / "checkpoints" / "step-000006"


def test_seal_keeps_a_good_checkpoint_good(saved):
    seal(saved)
    assert checkpoint.load(saved, training=True).step == 6


def test_round_trip(tmp_path):
    model = GPT(RUN_MODEL, oracles.random_parameters(RUN_MODEL, dtype=np.float32))
    optimizer = AdamW(RUN_MODEL, RUN_CONFIG)
    optimizer.m.flat[...] = np.random.default_rng(0).standard_normal(model.size)
    optimizer.v.flat[...] = np.random.default_rng(1).random(model.size)
    tokenizer = Tokenizer([(97, 98)], (END_OF_TEXT,))
    info = {"fingerprint": "1-a", "title": "Königsberg"}
    checkpoint.save(tmp_path / "c", model, tokenizer, 3, RUN_CONFIG, optimizer, info)
    found = checkpoint.load(tmp_path / "c", training=True)
    assert found.model.config == RUN_MODEL and found.train == RUN_CONFIG and found.info == info
    assert found.step == found.optimizer.step == 3
    assert found.tokenizer.merges == [(97, 98)] and found.tokenizer.special_tokens == {END_OF_TEXT: 257}
    for a, b in (
        (model.params, found.model.params),
        (optimizer.m, found.optimizer.m),
        (optimizer.v, found.optimizer.v),
    ):
        assert np.array_equal(a.flat, b.flat)
    assert load_file(tmp_path / "c" / "model.safetensors").keys() == model.params.keys()
    assert sorted(f.name for f in tmp_path.iterdir()) == ["c"], "something half-written was left"


def test_export_is_half_the_size_and_generates(saved, tmp_path):
    found = checkpoint.load(saved)
    checkpoint.export(found, tmp_path / "small")
    small = checkpoint.load(tmp_path / "small")
    np.testing.assert_allclose(small.model.params.flat, found.model.params.flat, rtol=1e-3, atol=1e-7)
    assert small.model.dtype == np.float32 and small.optimizer is None
    sizes = [(f / "model.safetensors").stat().st_size for f in (saved, tmp_path / "small")]
    assert sizes[1] < 0.6 * sizes[0]
    assert "holds no optimizer state" in error_of(checkpoint.load, tmp_path / "small", training=True)


def _truncate(file, size):
    file.write_bytes(file.read_bytes()[:size])


def _edit(file, old, new):
    content = file.read_bytes()
    assert content.count(old) >= 1
    file.write_bytes(content.replace(old, new, 1))


def _flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _tensors(saved, change, name="model.safetensors"):
    tensors = load_file(saved / name)
    change(tensors)
    save_file(tensors, saved / name)
    seal(saved)


def _set(tensors, name, value):
    tensors[name] = value


def _put(tensors, name, value):
    tensors[name].flat[0] = value


WIDE = files.to_json(
    {"format": "nanoeuler-bpe", "version": 1, "vocab_size": 259, "special_tokens": [], "byte_order": [*range(256)],
     "merges": [[97, 98], [98, 99], [99, 100]]}
).encode()  # fmt: skip
DAMAGE = {
    "weights cut in half": (lambda c: _truncate(c / "model.safetensors", 500), "truncated or edited"),
    "weights empty": (lambda c: _truncate(c / "model.safetensors", 0), "truncated or edited"),
    "one bit of the weights": (lambda c: _flip(c / "model.safetensors"), "truncated or edited"),
    "one bit of the moments": (lambda c: _flip(c / "optimizer.safetensors"), "truncated or edited"),
    "weights missing": (lambda c: (c / "model.safetensors").unlink(), "no such file"),
    "tokenizer missing": (lambda c: (c / "tokenizer.json").unlink(), "no such file"),
    "tokenizer edited": (lambda c: _edit(c / "tokenizer.json", b"[", b"[ "), "truncated or edited"),
    "tokenizer emptied": (
        lambda c: ((c / "tokenizer.json").write_text("{}"), seal(c)), 'expected a JSON object with "format"'),
    "JSON cut": (lambda c: _truncate(c / "checkpoint.json", 300), "not readable as JSON"),
    "JSON empty": (lambda c: _truncate(c / "checkpoint.json", 0), "not readable as JSON"),
    "JSON not UTF-8": (lambda c: (c / "checkpoint.json").write_bytes(b"\xff\xfe{}"), "not readable as JSON"),
    "JSON a list": (lambda c: (c / "checkpoint.json").write_text("[1]"), "format is 'list'"),
    "JSON of another kind": (lambda c: (c / "checkpoint.json").write_text('{"format": "x"}'), "format is 'x'"),
    "JSON: step edited": (lambda c: _edit(c / "checkpoint.json", b'"step": 6', b'"step": 7'), "edited"),
    "JSON: width edited": (lambda c: _edit(c / "checkpoint.json", b'"dim": 16', b'"dim": 32'), "edited"),
    "JSON: step gone": (lambda c: _edit(c / "checkpoint.json", b'"step"', b'"stop"'), "step is None"),
    "JSON: width of another model": (
        lambda c: seal(c, model=changed(RUN_MODEL, dim=32).to_dict()), "embed is [258, 16], expected [258, 32]"),
    "JSON: impossible model": (lambda c: seal(c, model=RUN_MODEL.to_dict() | {"heads": 3}), "expected a multiple"),
    "JSON: model without layers": (
        lambda c: seal(c, model={k: v for k, v in RUN_MODEL.to_dict().items() if k != "layers"}), "['layers']"),
    "JSON: settings of a wrong kind": (
        lambda c: seal(c, train=RUN_CONFIG.to_dict() | {"rate": "fast"}), "rate is 'fast'"),
    "JSON: file outside the folder": (
        lambda c: seal(c, sha256={"../../run.json": "0", "model.safetensors": "0"}), "lists files"),
    "JSON: infinity": (lambda c: seal(c, info={"title": math.inf}), "not readable as JSON (a number is Infinity"),
    "JSON: a number past all": (
        lambda c: _edit(c / "checkpoint.json", b'"step": 6', b'"step": 6e999'), "a number is 6e999, expected a finite"),
    "JSON: a megabyte": (
        lambda c: (c / "checkpoint.json").write_text(" " * 1_000_001), "has 1000001 bytes, expected at most 1000000"),
    "JSON: a digest that is none": (
        lambda c: seal(c, sha256={f.name: 7 for f in c.iterdir() if f.stem != "checkpoint"}), "sha256 is {"),
    "JSON: step in letters": (lambda c: seal(c, step="6"), "step is '6': truncated or edited"),
    "JSON: no facts": (lambda c: seal(c, info=None), "info is None: truncated or edited"),
    "vocabulary of another model": (
        lambda c: (_edit(c / "tokenizer.json", (c / "tokenizer.json").read_bytes(), WIDE), seal(c)),
        "tokenizer has 259 tokens, expected at most the model's 258"),
    "JSON: file unlisted": (lambda c: seal(c, sha256={"model.safetensors": "0"}), "lists files"),
    "tensor missing": (lambda c: _tensors(c, lambda t: t.pop("embed")), "missing or unknown tensors ['embed']"),
    "tensor too many": (
        lambda c: _tensors(c, lambda t: _set(t, "bias", np.zeros(3, np.float32))), "unknown tensors ['bias']"),
    "tensor transposed": (
        lambda c: _tensors(c, lambda t: _set(t, "embed", np.ascontiguousarray(t["embed"].T))),
        "embed is [16, 258], expected [258, 16]"),
    "tensor float64": (
        lambda c: _tensors(c, lambda t: _set(t, "embed", t["embed"].astype(np.float64))), "embed is float64"),
    "tensor of integers": (
        lambda c: _tensors(c, lambda t: _set(t, "embed", t["embed"].astype(np.int32))), "embed is int32"),
    "NaN in a weight": (lambda c: _tensors(c, lambda t: _put(t, "norm_final", np.nan)), "norm_final holds NaN"),
    "infinity in a weight": (lambda c: _tensors(c, lambda t: _put(t, "heads", -np.inf)), "heads holds NaN or inf"),
    "NaN in a moment": (
        lambda c: _tensors(c, lambda t: _put(t, "v.embed", np.nan), "optimizer.safetensors"), "v.embed holds NaN"),
    "moments of another model": (
        lambda c: (shutil.copy(c / "model.safetensors", c / "optimizer.safetensors"), seal(c)),
        "missing or unknown tensors"),
    "weights not safetensors": (
        lambda c: ((c / "model.safetensors").write_bytes(b"\x80\x04pickle"), seal(c)), "not readable as safetensors"),
    "header of 2^60 bytes": (
        lambda c: ((c / "model.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + b"{}"), seal(c)),
        "not readable as safetensors"),
    "bfloat16": (lambda c: (_edit(c / "model.safetensors", b'"F32"', b'"BF16"'), seal(c)), "model.safetensors"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_checkpoint(saved, damage):
    spoil, expected = DAMAGE[damage]
    spoil(saved)
    before = contents(saved.parent)
    message = error_of(checkpoint.load, saved.parent.parent, training=True)
    assert expected in message, message
    assert "step-000006" in message, "which file is it?"
    assert error_of(loop.resume, saved.parent.parent, run_text(), quiet=True) == message
    assert contents(saved.parent) == before


def test_stray_file_is_ignored(saved):
    (saved / "notes.txt").write_text("mine")
    assert checkpoint.load(saved).step == 6


def test_folder_that_cannot_be_written(tmp_path, saved):
    found = checkpoint.load(saved)
    (tmp_path / "file").write_text("")
    message = error_of(checkpoint.save, tmp_path / "file" / "c", found.model, found.tokenizer, 1)
    assert "cannot write the checkpoint (Not a directory)" in message


@pytest.mark.parametrize("workers", [0, 5000, "2", True])
def test_resume_refuses_a_strange_number_of_workers(saved, run, workers):
    seal(saved, info=checkpoint.load(saved).info | {"workers": workers})
    assert f"workers is {workers!r}, expected 1 to 4096" in error_of(loop.resume, run, run_text(), quiet=True)


# The log.


@pytest.mark.parametrize("line", ["[1]", "7", '{"loss": 1}', '{"step": "x"}', '{"step": 1, "later": [NaN]}'])
def test_log_with_a_strange_line(tmp_path, line):
    """A line that is no entry stops a reader in one line, and no resume: the log is set aside, and that is said."""
    run = tmp_path / "run"
    with pytest.raises(Crash), stopped_at(5):
        train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    file = run / "log.jsonl"
    damaged = line + "\n" + file.read_text()
    file.write_text(damaged)
    assert "log.jsonl: line 1 is no entry" in error_of(run_folder.read_log, run)
    loop.resume(run, run_text(), quiet=True)
    assert (run / "log.aside-1.jsonl").read_text() == damaged
    log = run_folder.read_log(run)
    (warning,) = [entry["warning"] for entry in log if "warning" in entry]
    assert "set aside as log.aside-1.jsonl" in warning and "line 1 is no entry" in warning
    assert [entry["step"] for entry in log if "loss" in entry] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("log", ["folder", "fifo", "device", "lost link", "latin", "missing"])
def test_no_log_blocks_a_resume(finished, tmp_path, log):
    """Checkpoints are all that a run needs to go on."""
    run = shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(run / "checkpoints" / "step-000006")
    file = run / "log.jsonl"
    file.unlink()
    {
        "folder": file.mkdir, "fifo": lambda: os.mkfifo(file), "device": lambda: file.symlink_to("/dev/zero"),
        "lost link": lambda: file.symlink_to("nowhere"), "latin": lambda: file.write_bytes(b"\xff\xfe\n" * 9),
        "missing": lambda: None,
    }[log]()  # fmt: skip
    loop.resume(run, run_text(), quiet=True)
    assert np.array_equal(checkpoint.load(run).model.params.flat, checkpoint.load(finished).model.params.flat)
    assert os.path.lexists(run / "log.aside-1.jsonl") == (log != "missing")
    steps = [entry["step"] for entry in run_folder.read_log(run) if "loss" in entry]
    assert steps == [5, 6]


SEPARATORS = '\u2028 \u2029 \x85 \x0b \x0c \x1c \x1d \x1e \r \x00 \x7f \x1b[2J \ufeff \U0001f600 \u200b " \\'


def test_odd_characters_in_a_sample_survive_the_log(tmp_path, monkeypatch):
    """U+2028 and its like are line ends to Python's str, and not to JSON: resume and report read them back."""
    from nanoeuler_lib.training.report import report

    settings = changed(RUN_CONFIG, sample_every=1)
    monkeypatch.setattr(datasets.TextDataset, "sample", lambda self, model, seed: SEPARATORS)
    train.train(tmp_path / "whole", run_text(), RUN_MODEL, settings, quiet=True)
    run = tmp_path / "run"
    with pytest.raises(Crash), stopped_at(5):
        train.train(run, run_text(), RUN_MODEL, settings, quiet=True)
    loop.resume(run, run_text(), quiet=True)
    oracles.assert_same_run(tmp_path / "whole", run)
    assert [e["sample"] for e in run_folder.read_log(run) if "sample" in e] == [SEPARATORS] * 6
    assert not list(run.glob("*aside*"))
    assert "Step 6" in report(run).read_text("utf-8")


# Longer, shorter.


@pytest.mark.parametrize("steps", [9, 5])
def test_another_number_of_steps(tmp_path, steps):
    """From there on the schedule is that of a run of so many steps; a kill after it is written down changes nothing."""
    run = tmp_path / "run"
    with pytest.raises(Crash), stopped_at(4):
        train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    shutil.copytree(run, tmp_path / "parts")
    loop.resume(run, run_text(), quiet=True, steps=steps)
    with pytest.raises(Crash), stopped_at(0):
        loop.resume(tmp_path / "parts", run_text(), quiet=True, steps=steps)
    loop.resume(tmp_path / "parts", run_text(), quiet=True)
    oracles.assert_same_run(run, tmp_path / "parts")
    settings, found = changed(RUN_CONFIG, steps=steps), checkpoint.load(run)
    assert found.step == steps and found.train == settings
    rates = [entry["rate"] for entry in run_folder.read_log(run) if "loss" in entry]
    expected = [oracles.expected_rate(step, RUN_CONFIG if step < 4 else settings) for step in range(steps)]
    assert rates == pytest.approx(expected)
    for folder in (run, tmp_path / "parts"):
        assert json.loads((folder / "run.json").read_text())["train"]["steps"] == steps


def test_longer_behind_the_end(run):
    loop.resume(run, run_text(), quiet=True, steps=10)
    assert checkpoint.load(run).step == 10
    assert "steps is 8, expected more than the 10 that are done" in error_of(
        loop.resume, run, run_text(), quiet=True, steps=8
    )


# The folder.


LEFT = (".run.json.partial", ".run.json.123.partial", ".log.jsonl.partial")


def test_what_a_kill_leaves_is_no_obstacle_and_is_swept(finished, tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints" / ".step-000000.partial").mkdir(parents=True)
    for name in (*LEFT, "lock", "run.json"):
        (run / name).touch()
    train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    oracles.assert_same_run(finished, run)
    assert {f.name for f in run.rglob("*")} == {f.name for f in finished.rglob("*")}
    (run / "checkpoints" / "step-000006").rename(run / "checkpoints" / ".step-000006.replaced")
    for what in ("partial", "removed", "replaced"):
        shutil.copytree(run / "checkpoints" / "step-000004", run / "checkpoints" / f".step-000004.{what}")
    for name in LEFT:
        (run / name).touch()
    loop.resume(run, run_text(), quiet=True)
    oracles.assert_same_run(finished, run)
    assert {f.name for f in run.rglob("*")} == {f.name for f in finished.rglob("*")}


def test_nobody_sweeps_while_another_writes(finished, tmp_path):
    run, seen = shutil.copytree(finished, tmp_path / "run"), []
    shutil.rmtree(run / "checkpoints" / "step-000006")

    def intrude(entry):
        partial = run / "checkpoints" / ".step-000099.partial"
        partial.mkdir(exist_ok=True)
        seen.append(error_of(loop.resume, run, run_text(), quiet=True))
        assert partial.exists()

    loop.resume(run, run_text(), quiet=True, on_entry=intrude)
    assert all("another process is training into this folder" in message for message in seen) and seen


@pytest.mark.parametrize("what", ["removed", "renamed", "made anew"])
def test_a_folder_that_goes_away_is_noticed(tmp_path, what):
    """Training on would write checkpoints that nobody finds, beside a log and a lock that are gone."""
    run = tmp_path / "run"

    def go_away(entry):
        if entry["step"] == 3 and "loss" in entry:
            while not (run / "checkpoints" / "step-000002").exists():
                time.sleep(0.01)  # a thread writes it
            shutil.rmtree(run) if what != "renamed" else run.rename(tmp_path / "elsewhere")
            if what == "made anew":
                run.mkdir()

    message = error_of(train.train, run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True, on_entry=go_away)
    assert message == f"{run}: the folder was removed or renamed while the run wrote to it"
    assert not run.exists() or list(run.iterdir()) == []


def test_files_can_be_read_by_whom_the_umask_lets(tmp_path):
    before = os.umask(0o027)
    try:
        train.train(tmp_path / "run", run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    finally:
        os.umask(before)
    modes = {f.name: f.stat().st_mode & 0o777 for f in (tmp_path / "run").rglob("*") if f.is_file()}
    assert set(modes.values()) == {0o640}, modes
    assert "model.safetensors" in modes and "optimizer.safetensors" in modes


def test_names_that_are_not_utf8_are_written_down(tmp_path):
    named = {"text": "/tmp/k\udce4the.txt", "valid": None}
    train.train(tmp_path / "run", run_text(), RUN_MODEL, RUN_CONFIG, quiet=True, source="k\udce4the", files=named)
    assert checkpoint.load(tmp_path / "run").info["files"] == named
    from nanoeuler_lib.training.report import report

    assert "k\ufffdthe" in report(tmp_path / "run").read_text("utf-8")


# Data.


def test_a_run_on_mixed_documents_says_what_it_reaches_and_has_held(tmp_path):
    """Old settings name no cutting: such a run draws the rows that it drew."""
    text = data.SEPARATOR.join(["the cat", "a hat", "her red mat " * 40, "the mat", "a cat", "ran to her"] * 20)
    shares = {}
    for cut in (False, True):
        config = changed(RUN_CONFIG, cut_documents=cut, steps=12)
        train.train(tmp_path / str(cut), text, RUN_MODEL, config, valid_text="the hat", quiet=True)
        head = json.loads((tmp_path / str(cut) / "run.json").read_text())["data"]
        seen = [entry["seen"] for entry in run_folder.read_log(tmp_path / str(cut)) if "seen" in entry]
        assert seen[0] == 0 < seen[1] < seen[-1] <= head["reach"] and head["unit"] == "tokens"
        shares[cut] = head["reach"]
        found = checkpoint.load(tmp_path / str(cut), training=True)
        dataset = datasets.TextDataset(text, "the hat", found)
        drawn = {int(i) for s in range(12) for i in _held(dataset, s)}
        assert seen[-1] == pytest.approx(len(drawn) / head["train_tokens"], abs=1e-6)
        assert dataset.tokens == round(head["reach"] * head["train_tokens"]), "passes count what is reached"
    assert shares[True] == 1 and shares[False] < 0.5
    older = {key: value for key, value in RUN_CONFIG.to_dict().items() if key != "cut_documents"}
    assert TrainConfig.from_dict(older).cut_documents is False


def _held(dataset, step):
    """The places of the text that stand in a step's rows, found by drawing from a text of places."""
    places = data.Tokens(np.arange(len(dataset.part.ids)), None, np.ones(1))
    with patch.object(dataset, "part", places):
        inputs, targets = dataset.batch(step, 4)
    return {*inputs.ravel(), *targets.ravel()}


def test_targets():
    oracles.check_targets()


def test_validation_scores_every_token_once():
    oracles.check_validation_rows()


def test_bits_per_byte():
    oracles.check_bits_per_byte()


def test_uniform_model_needs_log2_v_bits_a_token():
    """Heads of zeros make every token as likely: log2(V) bits each."""
    tokenizer = oracles.tiny_tokenizer()
    config = ModelConfig(dim=8, heads=2, kv_heads=1, layers=1, context=6, vocab_size=259, predict=1)
    model = GPT(config)
    model.params["heads"][...] = 0
    tokens = data.tokenize("xabcd abcd äb", tokenizer)  # x, abcd, space, abcd, space, two bytes of ä, b
    assert len(tokens.ids) == 8
    expected = 7 * math.log2(259) / (len("xabcd abcd äb".encode()) - 1)
    assert datasets.bits_per_byte(model, tokens) == pytest.approx(expected, rel=1e-6)


def test_end_of_text_has_no_bytes_but_costs_bits():
    """Documents: the bits of the end-of-text tokens count, over the bytes of the text alone."""
    tokenizer = Tokenizer([], (END_OF_TEXT,))
    config = ModelConfig(dim=8, heads=2, kv_heads=1, layers=1, context=9, vocab_size=257, predict=1)
    model = GPT(config)
    model.params["heads"][...] = 0
    tokens = data.tokenize(data.SEPARATOR.join(["abc", "de", "fghi"]), tokenizer)
    assert datasets.bits_per_byte(model, tokens) == pytest.approx((9 + 3) * math.log2(257) / 9, rel=1e-6)


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=12),
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(0, 9),
)
def test_rows_of_documents(lengths, time, predict, seed):
    """Rows begin where documents do, if at least half of these fit; validation scores each token once."""
    starts = np.concatenate([[0], np.cumsum([1 + n for n in lengths])])
    tokens = oracles.numbered(int(starts[-1]) + 1, starts[:-1])
    if len(tokens.ids) < time + predict:
        with pytest.raises(NanoEulerError, match="expected at least"):
            data.batch(tokens, np.random.default_rng(seed), 5, time, predict)
    else:
        inputs, targets = data.batch(tokens, np.random.default_rng(seed), 5, time, predict)
        if data.starts_at_documents(tokens, time):
            assert set(inputs[:, 0]) <= set(starts[:-1])
        assert (targets == inputs[..., None] + 1 + np.arange(predict)).all()
    inputs, targets = data.validation_rows(tokens, time)
    scored = targets[targets >= 0]
    assert len(set(scored)) == len(scored) and (scored == inputs[targets >= 0] + 1).all()
    if not data.starts_at_documents(tokens, time):
        assert sorted(scored) == list(range(1, len(tokens.ids)))


def test_split():
    oracles.check_split()


@pytest.mark.parametrize("sizes", [[400], [400, 400], [300, 300, 4000], [4000, 300]])
def test_the_share_that_was_asked_for_is_held_out_of_each_text(sizes):
    texts = [letter * size for letter, size in zip("abc", sizes)]
    part, valid = datasets.split_text(texts, None, changed(RUN_CONFIG, valid_fraction=0.1))
    tenths = [letter * (size // 10) for letter, size in zip("abc", sizes)]
    assert valid == data.SEPARATOR.join(tenths) and part == data.SEPARATOR.join(9 * tenth for tenth in tenths)
    whole = [data.SEPARATOR.join([text[:31]] * 29) for text in texts]  # documents near the share stay whole
    part, valid = (side.split(data.SEPARATOR) for side in datasets.split_text(whole, None, RUN_CONFIG))
    assert {len(document) for document in part + valid} == {31} and len(valid) == 5 * len(texts)


def test_a_run_that_names_no_rule_goes_on_with_the_rows_it_began_with(tmp_path):
    texts = [run_text()[:900], run_text()[900:], run_text()[::-1]]
    with patch.object(train, "_split", return_value={}), stopped_at(4), pytest.raises(Crash):
        train.train(tmp_path / "run", texts, RUN_MODEL, RUN_CONFIG, quiet=True)
    loop.resume(tmp_path / "run", texts, quiet=True)
    assert "split" not in checkpoint.load(tmp_path / "run").info


def test_a_folder_is_the_texts_directly_in_it(tmp_path):
    for name in ("b.txt", "a.md", "c.html", ".d.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "e.txt").mkdir()
    assert data.read_text(tmp_path) == f"a.md{data.SEPARATOR}b.txt"


MARK = END_OF_TEXT
LINE_ENDS = ["\n", "\r\n"]


@pytest.mark.parametrize("end", LINE_ENDS)
@pytest.mark.parametrize("closing", ["", "{end}{MARK}{end}", "{end}{MARK}", "{end}{MARK}{end}{MARK}{end}"])
@pytest.mark.parametrize("opening", ["", "{MARK}{end}", "{end}{MARK}{end}"])
def test_separators_on_lines_of_their_own(tmp_path, opening, closing, end):
    """Before the first document, behind the last, in files from Windows: the documents and the parts are the same."""
    documents = [f"story {i}:{end}  {'abc ' * (40 * i)}" for i in range(5)]
    text = f"{end}{MARK}{end}".join(documents)
    around = [part.format(end=end, MARK=MARK) for part in (opening, closing)]
    (tmp_path / "text.txt").write_bytes((around[0] + text + around[1]).encode())
    read = data.read_text(tmp_path / "text.txt")
    part, valid = data.split_text(read, 0.1)
    assert (part.split(data.SEPARATOR), valid) == (documents[:-1], documents[-1])
    tokenizer = Tokenizer([], (MARK,))
    expected = MARK + "".join(document + MARK for document in documents)
    assert tokenizer.decode(data.tokenize(read, tokenizer).ids) == expected


def test_one_document_with_a_closing_separator():
    part, valid = data.split_text("abc " * 100 + data.SEPARATOR, 0.1)
    assert part + valid == "abc " * 100 and len(valid) == 40
    assert data.split_text(data.SEPARATOR * 3, 0.1) == ("", "")


def test_training_sees_no_validation_text(tmp_path):
    """Neither tokenizer nor batches know the held-out part."""
    text = run_text() + "ZQ" * len(run_text())  # what is held out would rule the merges if it were seen
    seen = set()
    original = data.batch

    def batch(*arguments):
        inputs, targets = original(*arguments)
        seen.update(inputs.ravel().tolist(), targets.ravel().tolist())
        return inputs, targets

    with patch.object(data, "batch", batch):
        train.train(tmp_path / "run", text, RUN_MODEL, changed(RUN_CONFIG, valid_fraction=0.7), quiet=True)
    tokenizer = checkpoint.load(tmp_path / "run").tokenizer
    assert not any(b"Z" in tokenizer.token_bytes[i] for i in seen)
    assert not any(b"Z" in token for token in tokenizer.token_bytes[256:])


def test_validation_text_of_its_own(tmp_path):
    text, valid = run_text(), "a red cat ran to the mat. " * 8
    model = train.train(tmp_path / "run", text, RUN_MODEL, RUN_CONFIG, valid_text=valid, quiet=True)
    found = checkpoint.load(tmp_path / "run")
    bits = datasets.bits_per_byte(model, data.tokenize(valid, found.tokenizer))
    assert found.info["valid_bits_per_byte"] == pytest.approx(bits, rel=1e-12)


def test_documents_train_a_tokenizer_with_end_of_text(tmp_path):
    text = data.SEPARATOR.join(["the cat sat", "a hat", "the red mat"] * 40)
    train.train(tmp_path / "run", text, changed(RUN_MODEL, vocab_size=262), RUN_CONFIG, quiet=True)
    tokenizer = checkpoint.load(tmp_path / "run").tokenizer
    assert tokenizer.special_tokens == {END_OF_TEXT: 261}
    assert not any(b"endoftext" in token for token in tokenizer.token_bytes[256:261])


# The model's door.


def test_model_refuses_tokens():
    model = GPT(RUN_MODEL)
    assert "tokens lie in 0..258, expected 0..257" in error_of(model.hidden, np.array([[0, 258]]))
    assert "tokens lie in -1..3" in error_of(model.logits, np.array([[3, -1]]))
    assert "tokens are float64 [1, 2], expected integers [B, T]" in error_of(model.hidden, np.zeros((1, 2)))
    assert "tokens are int64 [2], expected integers [B, T]" in error_of(model.hidden, np.zeros(2, int))
    too_long = np.zeros((1, 13), int)
    assert "context is 12, got 13 tokens: expected 1 to 12" in error_of(model.hidden, too_long)
    assert "context is 12, got 13" in error_of(model.losses, too_long, too_long)


def test_no_position_sees_the_future():
    """Changing token t changes no output before t, and every output from t on."""
    model = GPT(oracles.TINY, oracles.random_parameters(oracles.TINY))
    tokens = np.random.default_rng(0).integers(0, 7, (1, 9))
    for version in ("cpu", "plain"):
        with ops.use(version):
            before = model.hidden(tokens)
            for t in range(9):
                other = tokens.copy()
                other[0, t] = (tokens[0, t] + 1) % 7
                same = (model.hidden(other) == before).all(axis=-1)[0]
                assert same[:t].all() and not same[t:].any()


def test_the_seed_draws_the_batches_and_the_weights(tmp_path, monkeypatch):
    original, drawn = data.batch, []

    def batch(tokens, rng, *arguments):
        drawn.append(rng.bit_generator.state["state"]["state"])
        return original(tokens, rng, *arguments)

    monkeypatch.setattr(data, "batch", batch)
    config = TrainConfig(**RUN_CONFIG.to_dict() | {"seed": 3})
    train.train(tmp_path / "run", run_text(), RUN_MODEL, config, quiet=True)
    expected = [np.random.default_rng([3, step]).bit_generator.state["state"]["state"] for step in range(config.steps)]
    assert drawn == expected
    begun = train.fresh(tmp_path, RUN_MODEL, config, Tokenizer([], ()), {})
    assert np.array_equal(begun.model.params.flat, GPT(RUN_MODEL, seed=3).params.flat)


def test_samples_differ_by_step(tmp_path):
    config = TrainConfig(**RUN_CONFIG.to_dict() | {"sample_every": RUN_CONFIG.steps})
    model = train.train(tmp_path / "run", run_text(), RUN_MODEL, config, quiet=True)
    last = [e for e in run_folder.read_log(tmp_path / "run") if "sample" in e][-1]
    assert last["step"] == RUN_CONFIG.steps, "no sample at the end"
    tokenizer = checkpoint.load(tmp_path / "run").tokenizer
    assert last["sample"] == generate(model, tokenizer, "", 100, seed=config.seed + last["step"])


def test_later_heads_are_logged(tmp_path):
    run = tmp_path / "run"
    train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    first = next(e for e in run_folder.read_log(run) if "loss" in e)
    fresh = GPT(RUN_MODEL, seed=RUN_CONFIG.seed)
    found = checkpoint.load(run, training=True)
    dataset = datasets.TextDataset(*datasets.split_text(run_text(), None, found.train), found)
    inputs, targets = dataset.batch(0, found.train.batch * found.train.accumulate)
    assert len(first["later"]) == RUN_MODEL.predict - 1 > 0
    for k, loss in enumerate([first["loss"], *first["later"]]):
        logits = fresh.logits(inputs, k).astype(np.float64)
        log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        expected = -np.take_along_axis(log_p, targets[..., k : k + 1], -1).mean()
        assert loss == pytest.approx(expected, abs=2e-5), f"head {k}"


def test_a_second_signal_interrupts_and_handlers_come_back():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with loop._stop_between_steps() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        for _ in range(3):  # a terminal and the shell in it both send it
            signal.raise_signal(signal.SIGHUP)
        assert stop[1:] == [signal.SIGHUP] * 3
    assert [signal.getsignal(number) for number in numbers] == before


def test_under_nohup_a_hangup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with loop._stop_between_steps() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop == []
    finally:
        signal.signal(signal.SIGHUP, before)
