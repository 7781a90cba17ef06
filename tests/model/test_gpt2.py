"""GPT-2: fast against plain. `test_decoders.py` has the logits by formula, `test_gradcheck.py` the gradients."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import oracles
import pytest

from nanoeuler_lib.config import GPT2Config, ModelConfig, TrainConfig
from nanoeuler_lib.engine.device import choose
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT2, Parameters, parameter_shapes
from nanoeuler_lib.model import step as step_module
from nanoeuler_lib.model.gpt2 import SIZES
from nanoeuler_lib.model.gradcheck import check_batch
from nanoeuler_lib.model.optim import optimizer_of

TINY = oracles.TINY_GPT2
ODD = {
    "tiny": TINY,
    "one head, one layer": replace(TINY, dim=5, heads=1, layers=1),
    "wide heads, narrow hidden": replace(TINY, dim=22, heads=2, ffn=3),
}
SHAPES = [("tiny", 3, 1), ("one head, one layer", 1, 9), ("wide heads, narrow hidden", 2, 7)]


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("name, batch, time", SHAPES)
def test_fast_is_plain(name, batch, time, accumulate):
    oracles.check_equality(ODD[name], batch, time, accumulate=accumulate)
    oracles.check_equality(ODD[name], batch, time, 1, accumulate, std=2.0, rtol=1e-9)
    oracles.check_equality(ODD[name], batch, time, accumulate=accumulate, dtype=np.float32, rtol=1e-5)


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


def test_fresh_parameters():
    oracles.check_init(replace(TINY, dim=240, layers=3, vocab_size=300, context=200, ffn=100))


def test_the_four_sizes():
    """Parameters as published: 124, 355, 774 and 1,558 million."""
    counts = [sum(map(np.prod, parameter_shapes(GPT2Config(**size)).values())) for size in SIZES.values()]
    assert [round(count / 1e6) for count in counts] == [124, 355, 774, 1558]


def test_settings_say_which_architecture():
    assert ModelConfig.from_dict(TINY.to_dict()) == TINY and TINY.to_dict()["architecture"] == "gpt2"
    assert ModelConfig.from_dict(oracles.TINY.to_dict()) == oracles.TINY
    assert GPT2Config(6, 2, 1, 4, 9).ffn == 24 and Parameters(TINY)["positions"].shape == (9, 15)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"architecture": "gpt3"}, "ModelConfig has .*architecture"),
        ({"kv_heads": 3}, "GPT2Config has .*kv_heads"),
        ({"heads": 4}, r"dim must be a multiple of heads \(4\), got 15"),
        ({"dim": "15"}, "dim must be an integer from 1 to 1048576, got '15'"),
    ],
)
def test_settings_that_are_refused(changes, message):
    with pytest.raises(NanoEulerError, match=message):
        ModelConfig.from_dict(TINY.to_dict() | changes)


def test_the_engine_is_not_for_gpt2():
    with pytest.raises(NanoEulerError, match="no kernels for GPT-2: take --device cpu"):
        choose("checked", None, TINY)
    assert choose("auto", None, TINY).name == "cpu"
