"""Backward passes against difference quotients; and the checks themselves: what they find, what they say."""

import copy
from dataclasses import replace

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT, gradcheck
from nanoeuler_lib.model.gradcheck import CHECK_CONFIG, check_layer, check_model, compare, numeric_gradient

SMALLER = ModelConfig(dim=8, heads=4, kv_heads=2, layers=1, context=5, vocab_size=6, predict=4, ffn=5)


# The whole model, every element of every tensor.


@pytest.mark.parametrize("version, std", [("cpu", 0.3), ("cpu", 0.02), ("plain", 0.3)])
def test_model(version, std):
    c = CHECK_CONFIG if version == "cpu" else replace(CHECK_CONFIG, layers=1)  # the plain one takes its time
    assert (c.heads, c.kv_heads, c.predict) == (4, 2, 4)  # what the definition promises
    with ops.use(version):
        rows = check_model(c, std)
    assert len(rows) == 3 + 6 * c.layers
    for row in rows:
        assert row.ok if std == 0.3 else row.norm_rel <= 1e-6, row


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
    oracles.check_gradients(version, **case, elements=2)


@pytest.mark.parametrize("version", ["cpu", "plain"])
def test_no_valid_target_means_no_gradient(version):
    model = oracles.GPT(SMALLER, oracles.random_parameters(SMALLER))
    with ops.use(version):
        loss, grads = model.loss_and_gradients(np.zeros((2, 5), int), np.full((2, 5, 4), -1))
    assert loss == 0 and not grads.flat.any()


# Each layer's pure pair, at odd sizes.


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", oracles.layer_pairs())
def test_layer(name, seed):
    forward, backward, inputs = oracles.layer_pairs(seed)[name]
    before = {key: x.copy() for key, x in inputs.items()}
    for row in check_layer(forward, backward, inputs, seed):
        assert row.ok, row
    for key, x in inputs.items():
        assert np.array_equal(x, before[key]), f"{key} was changed"


@pytest.mark.parametrize("name", oracles.layer_pairs())
def test_a_backward_pass_changes_neither_what_was_saved_nor_the_gradient_given(name):
    forward, backward, inputs = oracles.layer_pairs()[name]
    y, saved = forward(*inputs.values())
    kept, dy = copy.deepcopy(saved), np.random.default_rng(1).standard_normal(np.shape(y))
    given, found = dy.copy(), [copy.deepcopy(backward(dy, saved)) for _ in range(2)]
    for one, other in ((dy, given), (saved, kept), found):
        for pair in zip(arrays(one), arrays(other), strict=True):
            assert np.array_equal(*pair)


def arrays(value):
    """The arrays in nested tuples."""
    return [x for part in value for x in arrays(part)] if isinstance(value, tuple) else [np.asarray(value)]


# The checks themselves.


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


# What the checks are not blind to: mistakes that vanish where all incoming gradients, or all gains, are equal.


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    return p, p


def layernorm(x):
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return centred * scale, scale


@pytest.mark.parametrize("forward", [softmax, layernorm])
def test_a_layer_whose_outputs_sum_to_a_constant_is_checked(forward):
    """For dy of ones the gradient is 0 whatever the layer does, and a backward pass of zeros would be right."""
    x = np.random.default_rng(1).standard_normal((3, 5))
    row = check_layer(forward, lambda dy, saved: np.zeros_like(dy), {"x": x})[0]
    assert not row.ok and row.max_rel == 1 and row.norm_rel == pytest.approx(1, rel=1e-6)


R = ops.reference
WRONG_IN_THE_MODEL = {
    "a gain left out of RMSNorm's gradient": dict(
        rmsnorm_backward=lambda dy, saved: (
            R.rmsnorm_backward(dy, (saved[0], saved[1], np.ones_like(saved[2])))[0],
            R.rmsnorm_backward(dy, saved)[1],
        )
    ),
    "a gain used in reverse": dict(
        rmsnorm_backward=lambda dy, saved: (
            R.rmsnorm_backward(dy, (saved[0], saved[1], saved[2][::-1]))[0],
            R.rmsnorm_backward(dy, saved)[1],
        )
    ),
    "the mean of all gains": dict(
        rmsnorm_backward=lambda dy, saved: (
            R.rmsnorm_backward(dy, (saved[0], saved[1], np.full_like(saved[2], saved[2].mean())))[0],
            R.rmsnorm_backward(dy, saved)[1],
        )
    ),
    "masked targets count": dict(
        cross_entropy_backward=lambda d, saved: R.cross_entropy_backward(d, (*saved[:2], np.ones_like(saved[2])))
    ),
    "every position counts as the first": dict(
        cross_entropy_backward=lambda d, saved: R.cross_entropy_backward(np.broadcast_to(d[:, :1], d.shape), saved)
    ),
    "softmax's gradient without its sum": dict(
        attention_backward=lambda dy, saved: (
            lambda dq, dk, dv: (dq, dk, dv + 1e-4 * dv.mean(axis=2, keepdims=True))
        )(*R.attention_backward(dy, saved))
    ),
    "the first sequence's tokens": dict(
        embed_backward=lambda dx, saved: R.embed_backward(dx, (np.resize(saved[0][:1], saved[0].shape), saved[1]))
    ),
    "angles of the position before": dict(
        rope_backward=lambda dy, saved: R.rope_backward(dy, tuple(np.roll(x, 1, axis=0) for x in saved))
    ),
    "silu for its slope": dict(
        swiglu_backward=lambda dy, saved: (dy * saved[1] * saved[2], R.swiglu_backward(dy, saved)[1])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_IN_THE_MODEL)
def test_the_model_check_finds(name):
    with ops.use(**WRONG_IN_THE_MODEL[name]):
        rows = check_model(replace(SMALLER, predict=2), time=4)
    assert not all(row.ok for row in rows)


def test_check_batch_is_drawn_from_the_seed():
    """Tokens and targets of the whole vocabulary, about the share asked for masked; another seed is another batch."""
    tokens, targets = gradcheck.check_batch(CHECK_CONFIG, 40, 8, 3)
    assert set(tokens.ravel()) == set(range(11)) and set(targets.ravel()) == set(range(-1, 11))
    assert (targets == -1).mean() == pytest.approx(0.2, abs=0.04)
    assert (gradcheck.check_batch(CHECK_CONFIG, 40, 8, 3, 0.5)[1] == -1).mean() == pytest.approx(0.5, abs=0.05)
    again, other = (
        gradcheck.check_batch(CHECK_CONFIG, 40, 8, 3),
        gradcheck.check_batch(CHECK_CONFIG, 40, 8, 4),
    )
    assert np.array_equal(tokens, again[0]) and np.array_equal(targets, again[1])
    assert not np.array_equal(tokens, other[0]) and not np.array_equal(targets, other[1])


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


def test_a_row_says_how_far():
    """Each figure of a row is what its docstring says, for errors that differ in size from element to element."""
    n = np.array([[1.0, -2.0], [4.0, 0.0]])
    a = n + np.array([[1e-3, 0.0], [-8e-3, 1e-5]])
    row = compare("w", a, n)
    assert row.name == "w" and row.shape == (2, 2)
    assert row.max_abs == pytest.approx(8e-3, rel=1e-9) and row.max_rel == pytest.approx(1.0)
    assert row.norm_rel == pytest.approx(np.sqrt(1e-6 + 64e-6 + 1e-10) / np.sqrt(21), rel=1e-9)
    assert row.worst == pytest.approx(1e-5 / (1e-6 * 1e-5 + 1e-12), rel=1e-6)  # where nothing should be
    loose = compare("w", a, n, rtol=1e-2, atol=1e-3)
    assert loose.worst == pytest.approx(max(8e-3 / (4e-2 + 1e-3), 1e-3 / (1.001e-2 + 1e-3)), rel=1e-6) and loose.ok
    assert compare("w", np.zeros((0, 3)), np.zeros((0, 3))).max_abs == 0
    shortened = compare("w", 0.5 * n, n)
    assert shortened.max_rel == pytest.approx(0.5) and shortened.norm_rel == pytest.approx(0.5)


def test_table_names_what_is_wrong():
    good, bad = compare("good", np.ones(3), np.ones(3)), compare("bad", np.ones((3, 2)), 2 * np.ones((3, 2)))
    text = gradcheck.table([good, bad])
    assert "ok" in text.splitlines()[1] and "WRONG" in text.splitlines()[2] and "3x2" in text
    assert "WRONG" in gradcheck.table([bad], by_norm=True) and "ok" in gradcheck.table([good], by_norm=True)


# The check of an engine.


def test_the_engine_is_compared_with_float64_and_beside_float32():
    """What is placed is the model in float32, on a batch with an odd number of positions, some without a target."""
    asked = []

    class Exact:
        def __init__(self, model):
            self.model = model

        def loss_and_gradients(self, *pair):
            asked.append((self.model, *pair))
            loss, grads = self.model.loss_and_gradients(*pair)
            grads["norm_final"][...] *= 1.5
            return loss, grads

    rows = gradcheck.check_engine(Exact, "float32", seed=3)
    ((model, tokens, targets),) = asked
    config = gradcheck.ENGINE_CONFIG
    assert model.dtype == np.float32 and model.config == config
    expected = gradcheck.init(config, 3, 0.2, np.float64)
    assert np.allclose(model.params.flat, expected.flat, rtol=1e-6)
    again = gradcheck.check_batch(config, 2, 37, 5)
    assert np.array_equal(tokens, again[0]) and np.array_equal(targets, again[1])
    truth = GPT(config, expected).loss_and_gradients(tokens, targets)[1]
    single = GPT(config, gradcheck.init(config, 3, 0.2)).loss_and_gradients(tokens, targets)[1]
    assert [row.name for row, _, _ in rows] == list(truth)
    for row, own, allowed in rows:
        g = truth[row.name]
        off = np.linalg.norm((single[row.name] - g).ravel()) / np.linalg.norm(g.ravel())
        assert own == pytest.approx(off, rel=1e-3) and 0 < own < 1e-5
        assert allowed == max(1e-6, 2 * own) and row.shape == g.shape
        assert row.norm_rel == pytest.approx(0.5 if row.name == "norm_final" else own, rel=1e-3)
    for precision, allowed in (("tf32", 0.01), ("bfloat16", 0.08)):
        assert {row[2] for row in gradcheck.check_engine(Exact, precision)} == {allowed}
