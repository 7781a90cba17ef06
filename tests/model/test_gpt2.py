"""GPT-2: its layers, gradients and decoder against formulas and difference quotients."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import oracles
import pytest

from nanoeuler_lib import ops
from nanoeuler_lib.config import GPT2Config, ModelConfig, TrainConfig
from nanoeuler_lib.engine.device import choose
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT, GPT2, Parameters, init, parameter_shapes
from nanoeuler_lib.model import step as step_module
from nanoeuler_lib.model.gpt2 import SIZES
from nanoeuler_lib.model.gradcheck import check_batch, check_model
from nanoeuler_lib.model.optim import optimizer_of
from nanoeuler_lib.model.plan import Layer, Plan, StepBuffers, shapes

TINY = oracles.TINY_GPT2
ODD = {
    "tiny": (TINY, 2, 5),
    "one position": (TINY, 3, 1),
    "one head, one layer": (replace(TINY, dim=5, heads=1, layers=1), 1, 9),
    "wide heads, narrow hidden": (replace(TINY, dim=22, heads=2, ffn=3), 2, 7),
}


@pytest.mark.parametrize("case", ODD)
def test_gradients_are_difference_quotients(case):
    oracles.check_gradients("cpu", *ODD[case])


@pytest.mark.parametrize("version", ["cpu", "plain"])
def test_every_element_of_a_small_model(version):
    """By what `nanoeuler check` runs."""
    with ops.use(version):
        for row in check_model(replace(TINY, dim=5, heads=1, layers=1), batch=1, time=9):
            assert row.ok, row


def test_masked_targets_and_sums_of_batches():
    targets = np.full((2, 5, 1), -1)
    oracles.check_gradients(config=TINY, targets=targets)
    targets[0, 3] = 2
    oracles.check_gradients(config=TINY, targets=targets)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("case", ODD)
def test_fast_is_plain(case, accumulate):
    config, batch, time = ODD[case]
    oracles.check_equality(config, batch, time, accumulate=accumulate)
    oracles.check_equality(config, batch, time, 1, accumulate, std=2.0, rtol=1e-9)
    oracles.check_equality(config, batch, time, accumulate=accumulate, dtype=np.float32, rtol=1e-5)


def formula(p, c, tokens):
    """Logits [T, V] of one sequence, one number at a time: Radford et al. 2019 with tanh's GELU."""
    C = c.dim // c.heads

    def norm(x, name):
        rows = [(row - row.mean()) / np.sqrt(row.var() + c.norm_eps) for row in x]
        return np.array(rows) * p[name] + p[f"{name}_bias"]

    def linear(x, name):
        return x @ p[name] + p[f"{name}_bias"]

    x = np.array([p["embed"][token] + p["positions"][t] for t, token in enumerate(tokens)])
    for layer in (f"layers.{i}." for i in range(c.layers)):
        q, k, v = np.split(linear(norm(x, f"{layer}norm1"), f"{layer}qkv"), 3, axis=1)
        rows = np.zeros_like(q)
        for h in range(c.heads):
            columns = slice(h * C, (h + 1) * C)
            for t in range(len(x)):
                e = np.exp([q[t, columns] @ k[s, columns] / C**0.5 for s in range(t + 1)])
                rows[t, columns] = sum(w / e.sum() * v[s, columns] for s, w in enumerate(e))
        x = x + linear(rows, f"{layer}out")
        up = linear(norm(x, f"{layer}norm2"), f"{layer}up")
        gelu = 0.5 * up * (1 + np.tanh((2 / np.pi) ** 0.5 * (up + 0.044715 * up**3)))
        x = x + linear(gelu, f"{layer}down")
    return norm(x, "norm_final") @ p["embed"].T


@pytest.mark.parametrize("case", ODD)
def test_logits_and_the_decoder_are_the_formula(case):
    """All tokens at once, one by one, and in two pieces, and again after a part was forgotten."""
    config, _, time = ODD[case]
    model = GPT(config, oracles.random_parameters(config))
    tokens = check_batch(config, 1, time, 0)[0][0]
    expected = formula(model.params, config, tokens)
    oracles.close(model.logits(tokens[None])[0], expected, 1e-12)
    for pieces in ([tokens], tokens[:, None], [part for part in (tokens[:2], tokens[2:]) if len(part)]):
        decoder = model.decoder()
        found = np.concatenate([decoder.feed_all(piece) for piece in pieces])
        oracles.close(found, expected, 1e-12)
        decoder.length = time // 2
        oracles.close(decoder.feed(tokens[time // 2 :]), expected[-1], 1e-12)
        assert decoder.later_logits(0).shape == (0, config.vocab_size)


def test_large_numbers_do_not_overflow():
    params = oracles.random_parameters(TINY, dtype=np.float32)
    for name in params:
        if name.endswith((".qkv", ".up", "embed")):
            params[name][...] *= 300
    with np.errstate(all="raise", under="ignore"):
        loss, grads = GPT2(TINY, params).loss_and_gradients(*check_batch(TINY, 2, 9, 0))
    assert np.isfinite(loss) and np.isfinite(grads.flat).all()


def test_fresh_parameters():
    params = init(replace(TINY, dim=300, heads=3), 1)
    for name, p in params.items():
        if p.ndim == 1:
            assert (p == (0 if name.endswith("_bias") else 1)).all()
        else:
            expected = 0.02 / (2 * TINY.layers) ** 0.5 if name.endswith((".out", ".down")) else 0.02
            assert p.std() == pytest.approx(expected, rel=0.1), name


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_of_two_workers_is_the_gradient_and_learns(optimizer):
    config = TrainConfig(steps=60, warmup=5, rate=0.02, batch=4, optimizer=optimizer)
    model = GPT2(TINY, oracles.random_parameters(TINY, std=0.1))
    tokens, targets = check_batch(TINY, 4, 9, 0)
    _, expected = model.loss_and_gradients(tokens, targets)
    optimizer = optimizer_of(TINY, config, np.float64)
    with (
        patch.object(step_module, "MICRO_TOKENS", TINY.context),
        one_blas_thread(),
        step_module.Step(model, optimizer, config, 4, 2) as step,
    ):
        first = step.gradient(tokens, targets)
        oracles.close(sum(grads.flat for grads in step.grads), expected.flat, 1e-12)
        for _ in range(config.steps):
            last, _ = step(tokens, targets)
    assert last[0] < 0.5 * first[0]


def test_a_plan_has_what_it_says():
    layer, step, scratch = shapes(TINY, 2, 5)
    plan = Plan(TINY, 2, 5)
    assert set(layer) == vars(plan.layers[1]).keys() and set(scratch) == vars(plan.scratch).keys()
    assert all(getattr(plan, name).shape == shape for name, shape in step.items())
    assert set(layer) <= Layer.__annotations__.keys() and set(step) <= StepBuffers.__annotations__.keys()


def test_the_four_sizes():
    """Parameters as published: 124, 355, 774 and 1,558 million."""
    sizes = []
    for size in SIZES.values():
        counts = [np.prod(shape) for shape in parameter_shapes(GPT2Config(**size)).values()]
        sizes.append(round(sum(counts) / 1e6))
    assert sizes == [124, 355, 774, 1558]


def test_files_say_which_architecture(tmp_path):
    assert ModelConfig.from_dict(TINY.to_dict()) == TINY and TINY.to_dict()["architecture"] == "gpt2"
    assert ModelConfig.from_dict(oracles.TINY.to_dict()) == oracles.TINY
    assert GPT2Config(6, 2, 1, 4, 9).ffn == 24 and Parameters(TINY)["positions"].shape == (9, 15)
    good = TINY.to_dict()
    for values, message in (
        (good | {"architecture": "gpt3"}, "ModelConfig has .*architecture"),
        (good | {"kv_heads": 3}, "GPT2Config has .*kv_heads"),
        ({name: x for name, x in good.items() if name != "dim"}, "lacks .*dim"),
        (good | {"heads": 4}, r"dim is 15, expected a multiple of heads \(4\)"),
        (good | {"dim": "15"}, "dim is '15', expected a whole number"),
        (good | {"norm_eps": -1.0}, "norm_eps is -1.0, expected a number from"),
    ):
        with pytest.raises(NanoEulerError, match=message):
            ModelConfig.from_dict(values)


def test_the_engine_refuses_in_one_line():
    with pytest.raises(NanoEulerError, match=r"is a GPT-2, .* expected --device cpu"):
        choose("checked", None, TINY)
    assert choose("auto", None, TINY).name == "cpu"
