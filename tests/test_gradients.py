"""Backward passes against difference quotients (`test_gradcheck.py` is about the quotients themselves)."""

from dataclasses import replace
from unittest.mock import patch

import checks
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.model import gradcheck
from nanoeuler_lib.model.gradcheck import CHECK_CONFIG, check_layer, check_model, numeric_gradient

SMALLER = ModelConfig(dim=8, heads=4, kv_heads=2, layers=1, context=5, vocab_size=6, predict=4, ffn=5)


# The whole model, every element of every tensor.


@pytest.mark.parametrize("version", ["cpu", "plain"])
@pytest.mark.parametrize("std", [0.3, 0.02])
def test_model(version, std):
    c = CHECK_CONFIG if version == "cpu" else replace(CHECK_CONFIG, layers=1)  # the plain one takes its time
    assert (c.heads, c.kv_heads, c.predict) == (4, 2, 4)  # what the definition promises
    with ops.use(version):
        rows = check_model(c, std)
    assert len(rows) == 3 + 6 * c.layers
    for row in rows:
        assert row.ok if std == 0.3 else row.norm_rel <= 1e-6, row


@pytest.mark.parametrize("version", ["cpu", "plain"])
@pytest.mark.parametrize("seed", [2, 3, 5])
def test_smaller_model(version, seed):
    with ops.use(version):
        assert all(row.ok for row in check_model(SMALLER, time=5, seed=seed))
        assert all(row.norm_rel <= 1e-6 for row in check_model(SMALLER, std=0.02, time=3, seed=seed))


def test_truncation():
    """Where an embedding is short, the quotient is off and not the gradient: half of h, 1/16 of the error."""
    coarse, fine = (_embedding_row(h) for h in (1e-3, 5e-4))
    assert not coarse.ok and fine.ok
    assert coarse.max_abs / fine.max_abs == pytest.approx(16, rel=0.05)


def _embedding_row(h):
    def only_embed(f, x, step=h):
        return numeric_gradient(f, x, step) if x.shape == (11, 16) else np.zeros(x.shape)

    with patch.object(gradcheck, "numeric_gradient", only_embed):
        return check_model(seed=1)[0]


def test_check_batch_masks_some_targets():
    tokens, targets = gradcheck.check_batch(CHECK_CONFIG, 2, 7, 2)
    assert tokens.shape == (2, 7) and targets.shape == (2, 7, 4)
    assert 0 < (targets == -1).mean() < 0.5 and (targets >= -1).all()


@st.composite
def cases(draw):
    """A random model and batch: groups, layers, odd lengths, masked targets up to all of them."""
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    config = ModelConfig(
        dim=heads * draw(st.sampled_from([2, 4, 6])),
        heads=heads,
        kv_heads=kv_heads,
        layers=draw(st.integers(1, 2)),
        context=8,
        vocab_size=draw(st.integers(1, 7)),
        predict=draw(st.integers(1, 4)),
        ffn=draw(st.integers(1, 9)),
    )
    batch, time, seed = draw(st.integers(1, 3)), draw(st.integers(1, 8)), draw(st.integers(0, 99))
    _, targets = gradcheck.check_batch(config, batch, time, seed, draw(st.sampled_from([0.0, 0.3, 0.9])))
    for head in draw(st.sets(st.integers(0, config.predict - 1))):
        targets[..., head] = -1
    return dict(config=config, batch=batch, time=time, seed=seed, targets=targets)


@settings(max_examples=30)
@given(case=cases(), version=st.sampled_from(["cpu", "plain"]))
def test_any_model(case, version):
    checks.check_gradients(version, **case, elements=2)


@pytest.mark.parametrize("version", ["cpu", "plain"])
def test_no_valid_target_means_no_gradient(version):
    model = checks.GPT(SMALLER, checks.random_parameters(SMALLER))
    with ops.use(version):
        loss, grads = model.loss_and_gradients(np.zeros((2, 5), int), np.full((2, 5, 4), -1))
    assert loss == 0 and not grads.flat.any()


# Each layer's pure pair, at odd sizes.


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", checks.layer_pairs())
def test_layer(name, seed):
    forward, backward, inputs = checks.layer_pairs(seed)[name]
    before = {key: x.copy() for key, x in inputs.items()}
    for row in check_layer(forward, backward, inputs, seed):
        assert row.ok, row
    for key, x in inputs.items():
        assert np.array_equal(x, before[key]), f"{key} was changed"


@settings(max_examples=40)
@given(
    groups=st.integers(1, 3), repeat=st.integers(1, 3), time=st.integers(1, 5), width=st.integers(1, 5),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_attention_at_any_size(groups, repeat, time, width, seed):
    x = np.random.default_rng(seed).standard_normal
    inputs = {
        "q": x((1, groups * repeat, time, width)),
        "k": x((1, groups, time, width)),
        "v": x((1, groups, time, width)),
    }
    assert all(
        row.ok
        for row in check_layer(ops.reference.attention_forward, ops.reference.attention_backward, inputs)
    )
