"""The checks of gradients that readers and `nanoeuler check` run: what they find, and what they say."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import oracles
import pytest

from nanoeuler_lib import ops
from nanoeuler_lib.config import GPT2Config, ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT, gradcheck, parameter_shapes
from nanoeuler_lib.model.gradcheck import CHECK_CONFIG, check_layer, check_model, compare, numeric_gradient

R = ops.reference
SMALLER = ModelConfig(dim=8, heads=4, kv_heads=2, layers=1, context=5, vocab_size=6, predict=4, ffn=5)
MODELS = {"GPT": SMALLER, "GPT-2": GPT2Config(dim=5, heads=1, layers=1, context=9, vocab_size=7, ffn=10)}


@pytest.mark.parametrize("version", ["cpu", "plain"])
@pytest.mark.parametrize("name", MODELS)
def test_every_element_of_a_model_is_right(name, version):
    with ops.use(version):
        rows = check_model(MODELS[name], time=MODELS[name].context)
    assert [row.name for row in rows] == list(parameter_shapes(MODELS[name]))
    for row in rows:
        assert row.ok, row


def test_small_weights_are_right_in_norm():
    assert all(row.norm_rel <= 1e-6 for row in check_model(SMALLER, std=0.02, time=5))


@pytest.mark.parametrize("version", ["cpu", "plain"])
@pytest.mark.parametrize("config", [SMALLER, oracles.TINY_GPT2])
def test_no_valid_target_means_no_gradient(config, version):
    model = GPT(config, oracles.random_parameters(config))
    with ops.use(version):
        loss, grads = model.loss_and_gradients(np.zeros((2, 5), int), np.full((2, 5, config.predict), -1))
    assert loss == 0 and not grads.flat.any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", oracles.layer_pairs())
def test_a_layer_keeps_the_dtype_and_changes_nothing_that_it_is_given(name, dtype):
    """Neither its inputs, nor what was saved, nor the incoming gradient: a second backward pass gives the same."""
    forward, backward, inputs = oracles.layer_pairs(dtype=dtype)[name]
    given = copy.deepcopy(inputs)
    y, saved = forward(*inputs.values())
    kept, dy = copy.deepcopy(saved), np.random.default_rng(1).standard_normal(y.shape).astype(dtype)
    before, found = dy.copy(), [copy.deepcopy(backward(dy, saved)) for _ in range(2)]
    assert {array.dtype for array in (y, *arrays(found[0]))} == {np.dtype(dtype)}
    for one, other in ((dy, before), (saved, kept), found, *zip(inputs.values(), given.values())):
        for pair in zip(arrays(one), arrays(other), strict=True):
            assert np.array_equal(*pair)


def arrays(value):
    """The arrays in nested tuples."""
    return [x for part in value for x in arrays(part)] if isinstance(value, tuple) else [np.asarray(value)]


# What the checks find.


def halves_in_place(dy, w):
    dy *= 0.5
    return 3 * w**2 * dy


WRONG_FOR_A_CUBE = {
    "a factor": lambda dy, w: 2 * w**2 * dy,
    "the sign": lambda dy, w: -3 * w**2 * dy,
    "no gradient": lambda dy, w: np.zeros_like(w),
    "one element, in its sixth decimal": lambda dy, w: 3 * w**2 * dy * np.where(w == w[1, 2], 1 + 3e-6, 1),
    "one element is NaN": lambda dy, w: np.where(w == w.max(), np.nan, 3 * w**2 * dy),
    "what the check would compare with is changed": halves_in_place,
}


@pytest.mark.parametrize("name", WRONG_FOR_A_CUBE)
def test_the_layer_check_finds(name):
    row = check_layer(lambda w: (w**3, w), WRONG_FOR_A_CUBE[name], {"w": cube_input()})[0]
    assert not row.ok and row.worst > 1


def cube_input():
    return np.random.default_rng(0).standard_normal((3, 4))


def test_the_layer_check_of_a_right_layer_and_of_other_shapes():
    forward, right = lambda w: (w**3, w), lambda dy, w: 3 * w**2 * dy
    assert check_layer(forward, right, {"w": cube_input()})[0].ok
    with pytest.raises(NanoEulerError, match=r"gradient of w must be \[3, 4\], got \[4, 3\]"):
        check_layer(forward, lambda dy, w: right(dy, w).T, {"w": cube_input()})
    with pytest.raises(NanoEulerError, match=r"backward must return 1 gradients.*, got 2"):
        check_layer(forward, lambda dy, w: (w, w), {"w": cube_input()})


def test_a_layer_whose_outputs_sum_to_a_constant_is_checked():
    """For a dy of ones the gradient of softmax is 0, and a backward pass of zeros would be right."""

    def softmax(x):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True), None

    row = check_layer(softmax, lambda dy, _: np.zeros_like(dy), {"x": cube_input()})[0]
    assert not row.ok and row.max_rel == 1 and row.norm_rel == pytest.approx(1, rel=1e-6)


def gain_in_reverse(dy, saved):
    normed, rstd, gain = saved
    return R.rmsnorm_backward(dy, (normed, rstd, gain[::-1]))[0], R.rmsnorm_backward(dy, saved)[1]


def dv_off_by_its_mean(dy, saved):
    dq, dk, dv = R.attention_backward(dy, saved)
    return dq, dk, dv + 1e-4 * dv.mean(axis=2, keepdims=True)


# Mistakes that would vanish if all gains, all weights of the heads, or both sequences were equal.
WRONG_IN_THE_MODEL = {
    "a gain used in reverse": dict(rmsnorm_backward=gain_in_reverse),
    "every head counts as the first": dict(
        cross_entropy_backward=lambda d, saved: R.cross_entropy_backward(np.broadcast_to(d[:, :1], d.shape), saved)
    ),
    "a small term too many": dict(attention_backward=dv_off_by_its_mean),
    "the first sequence's tokens": dict(
        embed_backward=lambda dx, saved: R.embed_backward(dx, (np.resize(saved[0][:1], saved[0].shape), saved[1]))
    ),
}


@pytest.mark.parametrize("name", WRONG_IN_THE_MODEL)
def test_the_model_check_finds(name):
    with ops.use(**WRONG_IN_THE_MODEL[name]):
        rows = check_model(replace(SMALLER, dim=4, heads=2, kv_heads=1, ffn=3, predict=2, vocab_size=4), time=3)
    assert not all(row.ok for row in rows)


def test_check_batch_is_drawn_from_the_seed():
    """Tokens and targets of the whole vocabulary, about the share asked for masked; another seed is another batch."""
    tokens, targets = gradcheck.check_batch(CHECK_CONFIG, 40, 8, 3)
    assert set(tokens.ravel()) == set(range(11)) and set(targets.ravel()) == set(range(-1, 11))
    assert (targets == -1).mean() == pytest.approx(0.2, abs=0.04)
    assert (gradcheck.check_batch(CHECK_CONFIG, 40, 8, 3, 0.5)[1] == -1).mean() == pytest.approx(0.5, abs=0.05)
    assert np.array_equal(targets, gradcheck.check_batch(CHECK_CONFIG, 40, 8, 3)[1])
    assert not np.array_equal(targets, gradcheck.check_batch(CHECK_CONFIG, 40, 8, 4)[1])


# The difference quotient.


def test_order_of_the_quotient():
    """Halving h divides the error by 2^order; polynomials below that degree come out exactly."""
    x = np.array([0.7])
    for order, h in ((2, 1e-2), (4, 1e-1)):
        found = [numeric_gradient(lambda: np.exp(2 * x[0]), x, h=step, order=order)[0] for step in (h, h / 2)]
        errors = np.abs(np.array(found) - 2 * np.exp(1.4))
        assert errors[0] / errors[1] == pytest.approx(2**order, rel=0.05)
        polynomial = numeric_gradient(lambda order=order: x[0] ** order, x, h=0.1, order=order)
        assert polynomial == pytest.approx(order * x ** (order - 1), rel=1e-12)


def test_quotient_puts_x_back_and_refuses_float32():
    x = np.random.default_rng(0).standard_normal((4, 3)).T  # not contiguous
    x[0, 0], x[1, 1] = 1e-300, 1e300
    before = x.copy()
    numeric_gradient(lambda: x[2].sum(), x)
    assert np.array_equal(x, before)
    with pytest.raises(NanoEulerError, match="x must be float64, got float32"):
        numeric_gradient(lambda: 0.0, np.zeros(3, np.float32))


# Rows and their table.


@pytest.mark.parametrize("off, ok", [
    ([5e-7, 0, 0, 0], True), ([5e-6, 0, 0, 0], False), ([0, np.nan, 0, 0], False), ([0, np.inf, 0, 0], False),
    ([0, 0, 5e-13, 0], True), ([0, 0, 2e-12, 0], False),  # a zero must be met to 1e-12
])  # fmt: skip
def test_comparison(off, ok):
    n = np.array([1.0, -2.0, 0.0, 1e-13])
    assert compare("x", n + off, n).ok is compare("x", n, n + off).ok is ok
    if not np.isfinite(off).all():
        assert compare("x", n + off, n).norm_rel == np.inf


def test_a_row_says_how_far():
    """Each figure of a row is what its docstring says, for errors that differ in size from element to element."""
    n = np.array([[1.0, -2.0], [4.0, 0.0]])
    row = compare("w", n + [[1e-3, 0.0], [-8e-3, 1e-5]], n)
    figures = [8e-3, 1.0, np.sqrt((1e-6 + 64e-6 + 1e-10) / 21), 1e-5 / (1e-11 + 1e-12)]  # worst where 0 is expected
    assert [row.max_abs, row.max_rel, row.norm_rel, row.worst] == pytest.approx(figures, rel=1e-9)
    assert compare("w", n + [[1e-3, 0.0], [-8e-3, 1e-5]], n, rtol=1e-2, atol=1e-3).ok
    assert compare("w", np.zeros((0, 3)), np.zeros((0, 3))).max_abs == 0
    assert compare("w", np.zeros(2), np.zeros(2)).norm_rel == 0 and compare("w", n, 0 * n).norm_rel == np.inf


def test_table_names_what_is_wrong():
    good, bad = compare("good", np.ones(3), np.ones(3)), compare("bad", np.ones((3, 2)), 2 * np.ones((3, 2)))
    for by_norm in (False, True):
        _, first, second = gradcheck.table([good, bad], by_norm).splitlines()
        assert "ok" in first and "WRONG" in second and "3x2" in second


# The check of an engine.


def test_the_engine_is_compared_with_float64_and_beside_float32():
    """What is placed is the model in float32, on a batch with an odd number of positions, some without a target."""
    asked = []

    def exact(model):
        def loss_and_gradients(*pair):
            asked.append((model, *pair))
            loss, grads = model.loss_and_gradients(*pair)
            grads["norm_final"][...] *= 1.5
            return loss, grads

        return SimpleNamespace(loss_and_gradients=loss_and_gradients)

    rows = gradcheck.check_engine(exact, "float32", seed=3)
    ((model, tokens, targets),) = asked
    assert model.dtype == np.float32 and tokens.shape[1] % 2 and (targets == -1).any()
    double, single = (GPT(model.config, gradcheck.init(model.config, 3, 0.2, t)) for t in (np.float64, np.float32))
    assert np.array_equal(model.params.flat, single.params.flat)
    truth, rounded = (one.loss_and_gradients(tokens, targets)[1] for one in (double, single))
    assert [row.name for row, _, _ in rows] == list(truth)
    for row, own, allowed in rows:
        g = truth[row.name]
        assert own == pytest.approx(np.linalg.norm(rounded[row.name] - g) / np.linalg.norm(g), rel=1e-3)
        assert 0 < own < 1e-5 and allowed == max(1e-6, 2 * own)
        assert row.norm_rel == pytest.approx(0.5 if row.name == "norm_final" else own, rel=1e-3)
    for precision, allowed in (("tf32", 0.01), ("bfloat16", 0.08)):
        assert {row[2] for row in gradcheck.check_engine(exact, precision)} == {allowed}
