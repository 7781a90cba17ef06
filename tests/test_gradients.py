"""Backward passes against difference quotients; and the quotients themselves against functions whose slope is known."""

from dataclasses import replace
from unittest.mock import patch

import checks
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler_lib import gradcheck, ops
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.gradcheck import CHECK_CONFIG, check_layer, check_model, compare, numeric_gradient

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


@settings(max_examples=30, deadline=None, derandomize=True)
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


@settings(max_examples=40, deadline=None, derandomize=True)
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


def test_layer_check_fails_on_wrong_gradients():
    w = np.random.default_rng(0).standard_normal((3, 4))
    forward = lambda w: (w**3, w)
    right = lambda dy, w: 3 * w**2 * dy
    assert check_layer(forward, right, {"w": w})[0].ok

    def one_element(dy, w):
        dw = right(dy, w)
        dw[1, 2] *= 1 + 3e-6  # one element of twelve, in its sixth decimal
        return dw

    def halves_in_place(dy, w):
        dy *= 0.5  # and with it what the check would compare with, if dy were not its own
        return right(dy, w)

    for wrong in (
        one_element,
        halves_in_place,
        lambda dy, w: 2 * w**2 * dy,
        lambda dy, w: -right(dy, w),
        lambda dy, w: np.zeros_like(w),
        lambda dy, w: np.where(w == w.max(), np.nan, right(dy, w)),
    ):
        row = check_layer(forward, wrong, {"w": w})[0]
        assert not row.ok and row.worst > 1
    with pytest.raises(NanoEulerError, match=r"gradient of w is \[4, 3\], expected \[3, 4\]"):
        check_layer(forward, lambda dy, w: right(dy, w).T, {"w": w})
    with pytest.raises(NanoEulerError, match="backward returned 2 gradients, expected 1"):
        check_layer(forward, lambda dy, w: (w, w), {"w": w})


# The difference quotient itself.


def test_quotient_meets_known_slopes():
    x = np.random.default_rng(0).standard_normal((3, 2, 2))
    for f, slope in (
        (lambda: np.sin(x).sum(), np.cos(x)),
        (lambda: np.exp(0.5 * x).sum(), 0.5 * np.exp(0.5 * x)),
        (lambda: float(x.prod()), x.prod() / x),
        (lambda: 7.0, np.zeros_like(x)),
    ):
        np.testing.assert_allclose(numeric_gradient(f, x), slope, rtol=1e-9, atol=1e-12)


def test_order_of_the_quotient():
    """Halving h divides the error by 2^order; polynomials below that degree come out exactly."""
    x = np.array([0.7])
    for order, h in ((2, 1e-2), (4, 1e-1)):
        errors = [
            abs(numeric_gradient(lambda: np.exp(2 * x[0]), x, h=step, order=order)[0] - 2 * np.exp(1.4))
            for step in (h, h / 2)
        ]
        assert errors[0] / errors[1] == pytest.approx(2**order, rel=0.05)
        polynomial = numeric_gradient(lambda order=order: x[0] ** order, x, h=0.1, order=order)
        assert polynomial == pytest.approx(order * x ** (order - 1), rel=1e-12)


def test_quotient_puts_x_back():
    x = np.random.default_rng(0).standard_normal((4, 3)).T  # not contiguous
    x[0, 0], x[1, 1] = 1e-300, 1e300
    before = x.copy()
    numeric_gradient(lambda: x[2].sum(), x)
    assert np.array_equal(x, before)


def test_quotient_of_a_scalar():
    x = np.array(2.0)
    assert numeric_gradient(lambda: float(x**2), x) == pytest.approx(4.0, rel=1e-9)


def test_quotient_refuses_float32():
    with pytest.raises(NanoEulerError, match="x is float32, expected float64"):
        numeric_gradient(lambda: 0.0, np.zeros(3, np.float32))


def test_comparison():
    n = np.array([1.0, -2.0, 0.0, 1e-13])
    assert compare("x", n, n).worst == 0 and compare("x", n, n).norm_rel == 0
    row = compare("x", n + np.array([5e-7, 0, 0, 0]), n)
    assert row.ok and row.max_abs == pytest.approx(5e-7) and row.max_rel == pytest.approx(5e-7)
    assert not compare("x", n + np.array([0, 0, 2e-12, 0]), n).ok  # a zero must be met to 1e-12
    assert compare("x", n + np.array([0, 0, 5e-13, 0]), n).ok
    for bad in (np.nan, np.inf):
        wrong = np.array([1.0, bad, 0.0, 1e-13])
        assert not compare("x", wrong, n).ok and not compare("x", n, wrong).ok
        assert compare("x", wrong, n).norm_rel == np.inf
    assert compare("x", np.zeros(2), np.zeros(2)).ok
    assert compare("x", np.ones(2), np.zeros(2)).norm_rel == np.inf


def test_table_names_what_is_wrong():
    good, bad = compare("good", np.ones(3), np.ones(3)), compare("bad", np.ones((3, 2)), 2 * np.ones((3, 2)))
    text = gradcheck.table([good, bad])
    assert "ok" in text.splitlines()[1] and "WRONG" in text.splitlines()[2] and "3x2" in text
    assert "WRONG" in gradcheck.table([bad], by_norm=True) and "ok" in gradcheck.table([good], by_norm=True)
