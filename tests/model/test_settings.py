"""Every setting counts: models whose numbers are all unlike the defaults, against formulas and quotients; new shapes.

A setting that some part of the library ignores goes unseen as long as tests keep the default, which that part has too.
A float32 model computes in float32, a float64 model in float64: a wider buffer would hide in every tolerance.
"""

from dataclasses import replace

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import TINY

from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT, Parameters, head_weights, init, loss_scale, parameter_shapes
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.model.gradcheck import check_batch
from nanoeuler_lib.model.optim import AdamW, clip_factor
from nanoeuler_lib.model.plan import Plan
from nanoeuler_lib.model.step import Step

ODD = {  # no value is a default, no two sizes are alike where shapes allow it
    "one": ModelConfig(16, 4, 2, 2, 11, 7, predict=3, ffn=10, rope_theta=7.0, norm_eps=0.3),
    "two": ModelConfig(18, 3, 1, 1, 9, 5, predict=2, ffn=13, rope_theta=3.5, norm_eps=0.9),
    "three": ModelConfig(12, 2, 2, 3, 8, 6, predict=1, ffn=3, rope_theta=1.0, norm_eps=1e-12),
}
VERSIONS = ["cpu", "plain"]
DTYPES = [np.float32, np.float64]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ODD)
def test_forward(name, version):
    oracles.check_forward(version, ODD[name], batch=3, time=ODD[name].context - 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ODD)
def test_gradients(name, version):
    oracles.check_gradients(version, ODD[name], batch=2, time=6, later_heads=0.6, elements=3)
    oracles.check_gradients(version, ODD[name], batch=1, time=1)


@pytest.mark.parametrize("name", ODD)
def test_logits_and_hidden(name):
    """`logits` of each head, from `hidden`, are the formula's, and what was handed out is not overwritten."""
    config = ODD[name]
    model = GPT(config, oracles.random_parameters(config, 1))
    tokens, _ = check_batch(config, 2, 5, 0)
    expected = oracles.naive_logits(model.params, config, tokens)
    first = model.hidden(tokens)
    kept = first.copy()
    for head in range(config.predict):
        oracles.close(model.logits(tokens, head), expected[:, :, head], 1e-12, f"head {head}")
    model.hidden((tokens + 1) % config.vocab_size)
    assert first.shape == (2, 5, config.dim) and np.array_equal(first, kept)


# Losses.


def test_loss_takes_its_weights():
    config = ODD["one"]
    model = GPT(config, oracles.random_parameters(config, 2))
    tokens, targets = check_batch(config, 2, 7, 3)
    losses = oracles.naive_losses(model.params, config, tokens, targets)
    means = [losses[..., k].sum() / (targets[..., k] >= 0).sum() for k in range(3)]
    for weights in ([1, 0.25, 0.25], [0.5, 2.0, 0.0], [0, 0, 3]):
        expected = float(np.dot(weights, means))
        oracles.close(model.loss(tokens, targets, np.array(weights)), expected, 1e-12)
        oracles.close(model.loss_and_gradients(tokens, targets, np.array(weights))[0], expected, 1e-12)
    oracles.close(model.loss(tokens, targets), np.dot([1, 0.25, 0.25], means), 1e-12)


# Shapes that change between calls.


SHAPES = [(4, 8), (8, 4), (2, 16), (1, 32), (32, 1), (16, 2), (4, 8), (3, 5), (5, 3)]


@pytest.mark.parametrize("version", VERSIONS)
def test_one_model_takes_any_shape_after_any_other(version):
    """Batches of the same number of positions in other rows, and of other numbers: as a new model has it."""
    config = replace(ODD["one"], context=32)
    params = oracles.random_parameters(config, 5)
    model = GPT(config, params)
    with ops.use(version):
        for batch, time in SHAPES:
            tokens, targets = check_batch(config, batch, time, batch)
            fresh = GPT(config, params)
            assert np.array_equal(model.logits(tokens), fresh.logits(tokens)), (batch, time)
            assert np.array_equal(model.losses(tokens, targets), GPT(config, params).losses(tokens, targets))
            found, expected = (m.loss_and_gradients(tokens, targets) for m in (model, GPT(config, params)))
            assert found[0] == expected[0] and np.array_equal(found[1].flat, expected[1].flat)
            plan = model.plan(batch, time)
            assert (plan.batch, plan.time) == (batch, time) and model.plan(batch, time) is plan


def test_one_step_takes_rows_of_any_length():
    """`Step` after rows of other lengths gives the gradient that it gives at once."""
    config, settings_ = replace(ODD["one"], context=32), TrainConfig(batch=6)

    def step_of():
        model = GPT(config, oracles.random_parameters(config, 5))
        return Step(model, AdamW(config, settings_, np.float64), settings_, 6, 2)

    used = step_of()
    for time in (32, 5, 17, 5, 32, 1):
        tokens, targets = check_batch(config, 6, time, time)
        fresh = step_of()
        assert np.array_equal(used.gradient(tokens, targets), fresh.gradient(tokens, targets))
        for a, b in zip(used.grads, fresh.grads):
            assert np.array_equal(a.flat, b.flat)
        fresh.pool.shutdown()
    used.pool.shutdown()


# Parameters.


def test_fresh_parameters_are_those_of_their_seed():
    config = ODD["one"]
    for seed, other in ((0, 1), (4, 0)):
        assert np.array_equal(GPT(config, seed=seed).params.flat, init(config, seed).flat)
        assert not np.array_equal(init(config, seed).flat, init(config, other).flat)
        wide = init(config, seed, dtype=np.float64).flat
        assert wide.dtype == np.float64 and np.array_equal(wide.astype(np.float32), init(config, seed).flat)
    assert np.array_equal(GPT(config).params.flat, init(config, 0, 0.02).flat)


def test_parameters_are_views_of_one_array():
    config = ODD["two"]
    for dtype in (np.float32, np.float64):
        params = Parameters(config, dtype)
        assert params.flat.dtype == dtype and not params.flat.any() and len(params) == len(parameter_shapes(config))
        params.flat[...] = np.arange(params.flat.size)
        start = 0
        for name, shape in parameter_shapes(config).items():
            assert params[name].shape == shape
            assert np.array_equal(params[name].reshape(-1), start + np.arange(params[name].size))
            params[name][...] = -1
            start += params[name].size
        assert start == params.flat.size and (params.flat == -1).all()
    assert Parameters(config).flat.dtype == np.float32


# The optimiser.


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_clipping_brings_a_norm_down_to_its_limit(norm, limit):
    factor = clip_factor(norm, limit)
    assert factor == 1.0 if norm <= limit else factor * norm == pytest.approx(limit, rel=1e-12)
    assert clip_factor(norm, 0) == clip_factor(norm, 0.0) == 1.0


# Sums and threads.


def test_losses_are_added_in_float64():
    """One position among 480 of nearly no loss: a sum in float32 would round it away."""
    config = ModelConfig(4, 1, 1, 1, 60, 3, predict=1)
    model, settings_ = GPT(config), TrainConfig(batch=8)
    model.params.flat[...] = 0
    model.params["embed"][...], model.params["norm_final"][...] = 1, 1
    model.params["heads"][:, 0] = 2.1
    tokens, targets = np.zeros((8, 60), int), np.zeros((8, 60, 1), int)
    targets[0, 0] = 1
    expected = model.losses(tokens, targets).astype(np.float64).mean()
    with one_blas_thread(), Step(model, AdamW(config, settings_), settings_, 8, 1) as step:
        found = step.gradient(tokens, targets)
    assert found.dtype == np.float64 and found[0] == pytest.approx(expected, rel=1e-12)
    assert model.loss(tokens, targets) == pytest.approx(expected, rel=1e-12)


def test_cores_and_blas_threads(monkeypatch, tmp_path):
    """What is asked for; else cores of this process; if the system tells none, of the machine; 1 if nobody knows."""
    import os

    from threadpoolctl import threadpool_info

    from nanoeuler_lib import machine
    from nanoeuler_lib.machine import cores

    with one_blas_thread():
        blas = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
        assert blas and set(blas) == {1}
    monkeypatch.setattr(machine, "QUOTAS", ())  # the tests may run in a container
    for asked, expected in (
        *(("5", 5), ("1", 1), ("0", 3), ("-2", 3), ("many", 3), ("", 3)),
        *(("\u00b2", 3), ("4,2", 4), ("0,2", 3), (" 007 ", 7), ("5000", 4096), ("9" * 5000, 3), ("1.5", 3)),
    ):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 4, 9}, raising=False)
        assert cores() == expected
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 4, 9} if process == 0 else {1}, raising=False)
    assert cores() == 3
    group = [tmp_path / name for name in ("cpu.max", "quota", "period")]
    monkeypatch.setattr(machine, "QUOTAS", ((group[0],), group[1:]))
    for max_, quota, period, expected in (
        ("200000 100000", None, None, 2), ("150000 100000\n", None, None, 2), ("5000 100000", None, None, 1),
        ("900000 100000", None, None, 3), ("max 100000", None, None, 3), ("", None, None, 3),
        (None, "200000\n", "100000\n", 2), (None, "-1", "100000", 3), (None, "100000", None, 3),
    ):  # fmt: skip
        for file, text in zip(group, (max_, quota, period)):
            file.unlink(missing_ok=True)
            if text is not None:
                file.write_text(text)
        assert cores() == expected, (max_, quota, period)
    for file in group:
        file.unlink(missing_ok=True)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1


# Dtypes.


def arrays(value):
    """Every array that an object holds, with its name."""
    for name, x in vars(value).items():
        for part in x if isinstance(x, list) else [x]:
            if isinstance(part, np.ndarray):
                yield name, part
            elif hasattr(part, "__dict__") and name == "layers":
                yield from arrays(part)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_decoder_s_arrays(dtype):
    model = GPT(TINY, oracles.random_parameters(TINY, dtype=dtype))
    decoder = Decoder(model)
    wide = np.result_type(dtype, np.complex64)
    found = {name: x.dtype for name, x in arrays(decoder)}
    assert len(found) >= 18 and found.pop("turn") == found.pop("pairs") == wide
    assert set(found.values()) == {np.dtype(dtype)}
    for tokens in ([1], [2, 3], [4]):
        assert {decoder.logits(place).dtype for place in decoder.read(np.array(tokens))} == {np.dtype(dtype)}
    assert decoder.feed(np.array([1])).dtype == decoder.feed_all(np.array([1, 2])).dtype == dtype
    assert decoder.later_logits(decoder.read(np.array([3]))[0]).dtype == dtype
    assert decoder.length == 8


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_plan_s_arrays(dtype):
    plan = Plan(TINY, 2, 5, dtype)
    assert {x.dtype for x in plan.buffers.values()} == {np.dtype(dtype)} and plan.dtype == dtype
    assert plan.rope.cos.dtype == plan.rope.sin.dtype == dtype
    assert plan.rope.turn.dtype == plan.rope.turn_back.dtype == np.result_type(dtype, np.complex64)
    assert plan.rope.order.dtype.kind == plan.rope.place.dtype.kind == "i"
    assert Plan(TINY, 2, 5).dtype == Parameters(TINY).flat.dtype == init(TINY).flat.dtype == np.float32


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_and_its_moments(dtype):
    settings_ = TrainConfig(steps=9, batch=4)
    model = GPT(TINY, oracles.random_parameters(TINY, dtype=dtype))
    optimizer = AdamW(TINY, settings_, dtype)
    assert optimizer.m.flat.dtype == optimizer.v.flat.dtype == dtype and optimizer.step == 0
    step = Step(model, optimizer, settings_, 4, 2)
    assert {grads.flat.dtype for grads in step.grads} == {np.dtype(dtype)}
    assert {plan.dtype for plan in step.plans} == {np.dtype(dtype)}
    with one_blas_thread():
        losses, norm = step(*check_batch(TINY, 4, TINY.context, 0))
    step.pool.shutdown()
    assert losses.dtype == np.float64 and type(norm) is float and model.dtype == dtype
    assert AdamW(TINY, settings_).m.flat.dtype == np.float32


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_model_gives(dtype):
    model = GPT(TINY, oracles.random_parameters(TINY, dtype=dtype))
    tokens, targets = check_batch(TINY, 2, 5, 0)
    for result in (model.hidden(tokens), model.logits(tokens), model.logits(tokens, 2), model.losses(tokens, targets)):
        assert result.dtype == dtype
    loss, grads = model.loss_and_gradients(tokens, targets)
    assert type(loss) is type(model.loss(tokens, targets)) is float and grads.flat.dtype == dtype
    assert head_weights(TINY).dtype == loss_scale(targets, head_weights(TINY)).dtype == np.float64
