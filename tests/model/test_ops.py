"""Test that fast operations equal plain ones, that `ops.use` switches between them, and a step without allocation."""

from unittest.mock import patch

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler_book import checks
from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT, Parameters
from nanoeuler_lib.model import step as step_module
from nanoeuler_lib.model.gradcheck import check_batch
from nanoeuler_lib.model.optim import AdamW, Muon
from nanoeuler_lib.model.plan import Plan
from nanoeuler_lib.ops import cpu, plain, reference

# Equality in every buffer that both versions have.


@pytest.mark.parametrize(
    "config, batch, time, std, dtype, rtol",
    [
        (oracles.TINY, 2, 5, 0.3, np.float32, 1e-5),
        (preset("small", layers=2), 2, 127, 0.02, np.float64, 1e-12),
        (preset("small", layers=1), 3, 127, 0.02, np.float32, 1e-4),
    ],
)
def test_fast_is_plain(config, batch, time, std, dtype, rtol):
    oracles.check_equality(config, batch, time, std=std, dtype=dtype, rtol=rtol)


@st.composite
def cases(draw):
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    config = ModelConfig(
        dim=heads * draw(st.sampled_from([2, 4, 6, 8])),
        heads=heads,
        kv_heads=kv_heads,
        layers=draw(st.integers(1, 3)),
        context=9,
        vocab_size=draw(st.integers(1, 12)),
        predict=draw(st.integers(1, 4)),
        ffn=draw(st.integers(1, 11)),
    )
    return config, draw(st.integers(1, 4)), draw(st.integers(1, 9)), draw(st.integers(0, 99))


# Weights of deviation 2 make sums with cancelling terms: the worst of 5,000 models differed by 3e-11.
@settings(max_examples=80)
@given(cases(), st.booleans(), st.sampled_from([0.02, 0.3, 2.0]), *[st.sampled_from([1, 2, 3, 4, 5, 64])] * 2)
def test_equal_at_any_size(case, accumulate, std, block, rows):
    """Use blocks that do and do not divide the number of rows of scores and of SwiGLU."""
    with patch.object(cpu, "BLOCK", block), patch.object(cpu, "ROWS", rows):
        oracles.check_equality(*case, accumulate=accumulate, std=std, rtol=1e-9)


def composites(version, scratch):
    """Return the composites of a version, with scratch space as arrays by name."""
    with ops.use(version):
        return ops.bind(vars(ops.active()), scratch)


def heads_loss(version, y, w, targets, scale, before=None):
    """Return losses, dy and dw, computed three rows at a time; dw is added to `before`."""
    N, K = targets.shape
    losses, dy = np.empty((N, K), y.dtype), np.empty_like(y)
    dw = np.full_like(w, np.nan) if before is None else before.copy()
    rows = np.empty((3, w.shape[1] // K + y.shape[1]), y.dtype)
    op = composites(version, dict(work_logits=rows, work_weight=np.empty(w.size, y.dtype)))
    op.heads_loss(losses, dy, dw, y, w, targets, scale, before is not None)
    return losses, dy, dw


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_head_of_weight_zero_has_no_gradient(accumulate):
    """Check that its losses still equal the plain version's, and that old values in its gradient are overwritten."""
    rng = np.random.default_rng(0)
    y, w, targets = rng.normal(size=(5, 3)), rng.normal(size=(3, 12)), rng.integers(-1, 4, (5, 3))
    before = rng.normal(size=(3, 12)) if accumulate else None
    found, expected = (
        heads_loss(version, y, w, targets, np.array([0.5, 0.0, 2.0]), before) for version in ("cpu", "plain")
    )
    for one, other in zip(found, expected):
        oracles.close(one, other, 1e-12)
    np.testing.assert_array_equal(found[2][:, 4:8], before[:, 4:8] if accumulate else 0)


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 1000), st.integers(0, 99))
def test_adamw_in_blocks(size, block, step, seed):
    rng = np.random.default_rng(seed)
    p, g, m = rng.standard_normal((3, size))
    v = rng.random(size)
    expected = reference.adamw_step(p, g, m, v, step, 0.1, 0.9, 0.95, 1e-8, 0.2)
    kept = g.copy()
    cpu.adamw(p, g, m, v, step, 0.1, 0.9, 0.95, 1e-8, 0.2, block=block)
    for found, wanted in zip((p, m, v), expected):
        oracles.close(found, wanted, 1e-12)
    assert np.array_equal(g, kept)


# Softmax at scores of any size. exp overflows float32 at 88.7 and float64 at 709.8, a sum of 20 at 85.7 in float32.
# The plain version in float64 is the oracle; its forward pass at such scores is compared in test_decoders.py.

T = 20
LARGE = ModelConfig(dim=24, heads=4, kv_heads=2, layers=1, context=T, vocab_size=5, predict=1)
SIZES = [39.0, 44.0, 87.0, 89.0, 500.0, 1500.0]
LIMIT = {np.float32: 5e-6, np.float64: 1e-14}
CASES = [("plain", np.float32), ("cpu", np.float32), ("cpu", np.float64)]


def attention(version, qkv, dy):
    """Return y and dqkv, [T, heads, C], computed in blocks of 8 rows."""
    with np.errstate(over="raise", invalid="raise", divide="raise"), patch.object(cpu, "BLOCK", 8):
        plan = oracles.poison(Plan(LARGE, 1, len(qkv), qkv.dtype))
        op, a = composites(version, vars(plan.scratch)), plan.layers[0]
        a.qkv[...], plan.dattended[...] = qkv.reshape(a.qkv.shape), dy.reshape(a.attended.shape)
        op.attention(a.attended, a.probs, a.softmax_stats, a.qkv, LARGE)
        y = a.attended.copy()
        op.attention_back(plan.dqkv, plan.dattended, a.attended, a.probs, a.softmax_stats, a.qkv, LARGE)
    return y.reshape(dy.shape), plan.dqkv.reshape(qkv.shape)


def check_attention(version, dtype, levels, queries=1.0):
    """Compare with float64, where the score of a query and key j is queries * levels[j] plus noise of size 1."""
    rng = np.random.default_rng(0)
    qkv, dy = 0.5 * rng.standard_normal((len(levels), 8, 6)), 0.5 * rng.standard_normal((len(levels), 4, 6))
    qkv[:, :4, 0], qkv[:, 4:6, 0] = np.transpose([queries]), np.transpose([levels])
    qkv, dy = qkv.astype(dtype), dy.astype(dtype)
    y, dqkv = attention(version, qkv, dy)
    expected_y, expected_dqkv = attention("plain", qkv.astype(np.float64), dy.astype(np.float64))
    q, k, v = (np.abs(part).max() for part in np.split(qkv.astype(np.float64), [4, 6], axis=1))
    d = np.abs(dy).max()
    sizes = np.repeat([6 * d * v * k, 6 * d * v * q, d], [4, 2, 2])[:, None]  # sizes of the terms in dq, dk, dv
    limit = LIMIT[dtype] * max(1.0, q * k)  # the error of exp(s) is proportional to s
    assert np.abs(y - expected_y).max() <= limit * v and (np.abs(dqkv - expected_dqkv) <= limit * sizes).all()


@pytest.mark.parametrize("version, dtype", CASES)
@pytest.mark.parametrize("size", SIZES)
def test_attention_at_large_scores(version, dtype, size):
    """Test one distant key, inside a block or at its border, and equal, rising, falling and alternating scores."""
    alone, ramp, place = size * np.eye(T)[[0, 5, 7, 8, 16, 19]], np.linspace(0, 1, T), np.arange(T)
    for levels in (*alone, np.full(T, size), size - alone[1], size * ramp, size * (ramp - 0.5)):
        check_attention(version, dtype, levels)
        check_attention(version, dtype, -levels)
    check_attention(version, dtype, np.where(place % 2, size, -size))
    check_attention(version, dtype, np.ones(T), np.select([place % 7 == 0, place % 7 == 1], [size, -size], 1))


@pytest.mark.parametrize("version, dtype", CASES)
@pytest.mark.parametrize("size", SIZES)
def test_losses_at_large_logits(version, dtype, size):
    """Test losses and gradients if one logit, or every logit, is far from 0, with extreme and normal rows mixed."""
    for added, times in ((size * (np.arange(80) == 11), 1), (size, 1), (-size, 1), (0, size)):
        rng = np.random.default_rng(0)
        y, w = rng.standard_normal((7, 3)).astype(dtype), 0.3 * rng.standard_normal((3, 80)).astype(dtype)
        y[:, 0] = 1
        y[::3] *= dtype(times)
        w[0] += added
        targets, scale = rng.integers(-1, 40, (7, 2)), rng.random(2)
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            found = heads_loss(version, y, w, targets, scale)
        wide = y.astype(np.float64), w.astype(np.float64)
        limit = LIMIT[dtype] * max(1.0, np.abs(wide[0] @ wide[1]).max())
        for name, one, expected in zip(("losses", "dy", "dw"), found, heads_loss("plain", *wide, targets, scale)):
            assert np.abs(one - expected).max() <= limit * max(1.0, np.abs(expected).max()), name


def test_a_loss_is_the_distance_to_the_only_large_logit():
    logits, targets = np.array([[0, 1e3, 0], [0, 1e3, 0], [-1e3, -1e3, -1e3]]), np.array([1, 2, 0])
    losses, saved = reference.cross_entropy_forward(logits, targets)
    np.testing.assert_allclose(losses, [0, 1e3, np.log(3)], rtol=1e-14)
    expected = [[0, 0, 0], [0, 1, -1], [-2 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(reference.cross_entropy_backward(np.ones(3), saved), expected, rtol=1e-14)


@pytest.mark.parametrize("version", ["cpu", "plain"])
def test_a_gpt2_does_not_overflow_at_large_scores(version):
    oracles.check_extremes(version, oracles.TINY_GPT2)


# The switch.


def test_use_switches_and_restores():
    """Check that an inner `use` keeps the outer one's version and functions, and that an error restores them."""
    assert ops.active().attention is cpu.attention
    with ops.use("plain"), ops.use(swiglu_forward=lambda gate, up: (gate * 0 + 7, None)):
        assert isinstance(ops.active().attention.__self__, plain.Plain)
        with ops.use("cpu"):
            hidden = np.empty((2, 3))
            ops.active().swiglu(hidden, None, np.ones((2, 6)))
            assert (hidden == 7).all() and ops.active().attention is cpu.attention
        assert isinstance(ops.active().attention.__self__, plain.Plain)
    with pytest.raises(ZeroDivisionError), ops.use("plain"):
        raise ZeroDivisionError
    assert ops.active().attention is cpu.attention


@pytest.mark.parametrize("name", sorted(ops.FUNCTIONS))
def test_readers_function_runs_in_the_model(name):
    """Check that its layer uses it, forward and backward, and that all other layers stay fast."""
    function, calls = ops.FUNCTIONS[name], []

    def mine(*arguments):
        calls.append(1)
        return function(*arguments)

    of_gpt2 = name.startswith(("affine", "layernorm", "gelu", "positions"))
    config = oracles.TINY_GPT2 if of_gpt2 else oracles.TINY
    model = GPT(config, oracles.random_parameters(config))
    tokens, targets = check_batch(model.config, 2, 5, 0)
    expected_loss, expected = model.loss_and_gradients(tokens, targets)
    with ops.use(**{name: mine}):
        active = vars(ops.active())
        for group, needs in ops.ALL_LAYERS.items():
            assert all((active[layer] is getattr(cpu, layer)) == (name not in needs) for layer in group)
        loss, grads = model.loss_and_gradients(tokens, targets)
    assert calls or name in ("adamw_step", "muon_step")
    oracles.close(loss, expected_loss, 1e-12)
    oracles.close(grads.flat, expected.flat, 1e-12)


def updated(optimizer, **own):
    """Return parameters and moments after a step with a reader's function, on a gradient of zeros."""
    params = Parameters(oracles.TINY)
    optimizer.step = 1
    with ops.use(**own):
        optimizer.update(params, Parameters(oracles.TINY), list(params), 1.0)
    return params, optimizer.m, optimizer.v


def test_readers_step_runs_in_the_optimiser():
    found = updated(AdamW(oracles.TINY, TrainConfig()), adamw_step=lambda p, g, m, v, *_: (p + 1, m + 2, v + 3))
    assert [set(one.flat.tolist()) for one in found] == [{1}, {2}, {3}]
    c, seen = TrainConfig(warmup=0, optimizer="muon"), []

    def muon_step(p, g, m, *numbers):
        seen.append((p.shape, numbers))
        return p + 1, m - 1

    params, m, _ = updated(Muon(oracles.TINY, c), muon_step=muon_step)
    assert seen[0] == (params["layers.0.qkv"].shape, (c.rate, 0.95, c.decay, [16, 8, 8]))  # widths of q, k, v
    assert (params["layers.0.qkv"] == 1).all() and (m["layers.0.down"] == -1).all()
    assert len(seen) == 4 * oracles.TINY.layers and not params["embed"].any()


def late(function, fails):
    """Return the function, whose results are changed by `fails` from its second call on."""
    calls = []

    def my_function(*arguments):
        calls.append(1)
        return fails(function(*arguments)) if len(calls) > 1 else function(*arguments)

    return my_function


def first_of(change):
    """Return a function that applies `change` to the first array of a result."""
    return lambda result: (change(result[0]), *result[1:]) if isinstance(result, tuple) else change(result)


FAILS = {
    "raises": (lambda result: 1 / 0, "ZeroDivisionError at `return fails(function(*arguments))"),
    "one row": (first_of(lambda x: x[..., :1]), "its return value cannot be used, "),
    "complex": (first_of(lambda x: x * 1j), "got complex128 ["),
    "none": (lambda result: None, "its return value cannot be used, "),
}


def trained():
    """Return parameters, moments and the step's number after two steps of two workers."""
    tokens, targets = check_batch(oracles.TINY, 4, oracles.TINY.context, 0)
    model = GPT(oracles.TINY, oracles.random_parameters(oracles.TINY), dtype=np.float64)
    optimizer = AdamW(oracles.TINY, TrainConfig(), np.float64)
    with (
        patch.object(step_module, "MICRO_TOKENS", oracles.TINY.context),
        step_module.Step(model, optimizer, TrainConfig(), len(tokens), workers=2) as step,
        one_blas_thread(),
    ):
        for _ in range(2):
            step(tokens, targets)
    return np.concatenate([model.params.flat, optimizer.m.flat, optimizer.v.flat, [optimizer.step]])


@pytest.mark.parametrize("fails", FAILS)
@pytest.mark.parametrize("name", ["embed_backward", "linear_forward", "attention_backward", "adamw_step"])
def test_in_a_notebook_the_whole_step_is_taken_again(monkeypatch, capsys, name, fails):
    """Check for the same bits as without the failed function: the work of the other functions is undone too."""
    change, said = FAILS[fails]
    with pytest.raises((ZeroDivisionError, NanoEulerError, TypeError, ValueError)):
        with ops.use(**{name: late(ops.FUNCTIONS[name], change)}):
            trained()
    monkeypatch.setattr(ops, "on_failure", checks.say_failure)
    with ops.use(**{name: late(ops.FUNCTIONS[name], change)}):
        found = trained()
        assert name not in ops.functions()
    assert np.array_equal(found, trained())
    told = capsys.readouterr().out
    assert told.count("\n") == 1 and said in told and told.endswith(f"with the book's {name}.\n")


def test_the_embedding_keeps_rows_and_positions():
    """Check the shapes of its docstring, and that a reader may return lists instead of arrays."""

    def backward(dx, saved):
        assert dx.shape[:2] == saved[0].shape == (2, 5)
        return reference.embed_backward(dx, saved).tolist()

    def forward(tokens, table):
        return table[tokens].tolist(), (tokens, table.shape)

    params, pair = oracles.random_parameters(oracles.TINY), check_batch(oracles.TINY, 2, 5, 0)
    loss, grads = GPT(oracles.TINY, params).loss_and_gradients(*pair)
    with ops.use(embed_forward=forward, embed_backward=backward):
        again, found = GPT(oracles.TINY, params).loss_and_gradients(*pair)
    assert again == loss
    oracles.close(found.flat, grads.flat, 1e-12)


@pytest.mark.parametrize(
    "version, own, message",
    [
        ("gpu2", {}, "version must be 'cpu' or 'plain'"),
        ("CPU", {}, "version must be 'cpu' or 'plain'"),
        (None, {"rmsnorm": max}, "to replace must be one of .*rmsnorm_forward.*, got 'rmsnorm'"),
        (None, {"rmsnorm_forward": None}, "rmsnorm_forward must be a function, got None"),
        (None, {"kernels": {}}, r"use your kernels with engine\.use\(kernels\)"),
    ],
)
def test_use_refuses(version, own, message):
    with pytest.raises(NanoEulerError, match=message), ops.use(version, **own):
        pass
    assert ops.active().attention is cpu.attention


# Memory.


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_plan_s_buffers_start_at_cache_lines_and_are_counted(dtype):
    plan = Plan(oracles.TINY, 3, 7, dtype)
    for name, buffer in plan.buffers.items():
        assert buffer.ctypes.data % 64 == 0 and buffer.flags.c_contiguous and buffer.dtype == dtype, name
    assert plan.nbytes == sum(buffer.nbytes for buffer in plan.buffers.values())
    for time in (0, 10):
        with pytest.raises(NanoEulerError, match=f"the number of tokens must be 1 to 9, the context, got {time}"):
            Plan(oracles.TINY, 2, time)
