"""Every setting counts: models whose numbers are all unlike the defaults, against formulas and quotients; new shapes.

A setting that some part of the library ignores goes unseen as long as tests keep the default, which that part has too.
"""

import math
from dataclasses import fields, replace

import checks
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT, Parameters, gradcheck, head_weights, init, loss_scale, parameter_shapes
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.model.gradcheck import check_batch, check_model
from nanoeuler_lib.model.optim import AdamW, clip_factor, learning_rate
from nanoeuler_lib.model.plan import Plan, Rope
from nanoeuler_lib.model.step import Step
from nanoeuler_lib.ops import reference

ODD = {  # no value is a default, no two sizes are alike where shapes allow it
    "one": ModelConfig(16, 4, 2, 2, 11, 7, predict=3, ffn=10, rope_theta=7.0, norm_eps=0.3),
    "two": ModelConfig(18, 3, 1, 1, 9, 5, predict=2, ffn=13, rope_theta=3.5, norm_eps=0.9),
    "three": ModelConfig(12, 2, 2, 3, 8, 6, predict=1, ffn=3, rope_theta=1.0, norm_eps=1e-12),
}
VERSIONS = ["cpu", "plain"]


def test_no_setting_is_a_default():
    defaults = {
        f.name: f.default
        for f in fields(ModelConfig)
        if f.name in ("predict", "ffn", "rope_theta", "norm_eps")
    }
    for config in ODD.values():
        assert not [name for name, value in defaults.items() if getattr(config, name) == value]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ODD)
def test_forward(name, version):
    checks.check_forward(version, ODD[name], batch=3, time=ODD[name].context - 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ODD)
def test_gradients(name, version):
    checks.check_gradients(version, ODD[name], batch=2, time=6, later_heads=0.6, elements=3)
    checks.check_gradients(version, ODD[name], batch=1, time=1)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("name", ODD)
def test_versions_are_equal(name, accumulate):
    checks.check_equality(ODD[name], 3, 5, accumulate=accumulate)


@pytest.mark.parametrize("name", ODD)
def test_decoder(name):
    config = ODD[name]
    checks.check_decoder(config)
    model = GPT(config, checks.random_parameters(config, 3))
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, config.context)
    expected = checks.naive_logits(model.params, config, tokens[None])[0]
    for pieces in (tokens[:, None], [tokens]):
        decoder = Decoder(model)
        ys = np.concatenate([decoder.read(piece) for piece in pieces])
        checks.close(ys @ decoder.heads, expected[:, 0], 1e-12, "head 0")
        for y, row in zip(ys, expected):
            found = decoder.later_logits(y)
            assert found.shape == (config.predict - 1, config.vocab_size)
            checks.close(found, row[1:], 1e-12, "later heads")


@pytest.mark.parametrize("name", ODD)
def test_logits_and_hidden(name):
    """`logits` of each head, from `hidden`, are the formula's, and what was handed out is not overwritten."""
    config = ODD[name]
    model = GPT(config, checks.random_parameters(config, 1))
    tokens, _ = check_batch(config, 2, 5, 0)
    expected = checks.naive_logits(model.params, config, tokens)
    first = model.hidden(tokens)
    kept = first.copy()
    for head in range(config.predict):
        checks.close(model.logits(tokens, head), expected[:, :, head], 1e-12, f"head {head}")
    model.hidden((tokens + 1) % config.vocab_size)
    assert first.shape == (2, 5, config.dim) and np.array_equal(first, kept)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["one", "two"])
def test_gradcheck_passes_and_checks_the_given_model(name, version):
    """Rows for exactly the tensors of this configuration, all right."""
    config = replace(ODD[name], dim=8 if name == "one" else 6, layers=1, context=6, ffn=5)
    with ops.use(version):
        rows = check_model(config, batch=3, time=5, seed=4)
    assert {row.name: row.shape for row in rows} == parameter_shapes(config)
    assert all(row.ok for row in rows), gradcheck.table(rows)


# Weights of the heads.


@given(st.integers(1, 6), st.floats(0, 5))
def test_head_weights(predict, later):
    config = ModelConfig(4, 2, 1, 1, 4, 3, predict=predict)
    assert head_weights(config, later).tolist() == [1.0] + [later] * (predict - 1)
    assert head_weights(config).tolist() == [1.0] + [0.25] * (predict - 1)


def test_weight_of_a_position():
    targets = np.array([[[1, -1, 0], [-1, -1, 2]], [[0, -1, -1], [5, -1, 3]]])  # 3, 0 and 3 valid
    assert np.allclose(loss_scale(targets, [1.0, 2.0, 0.6]), [1 / 3, 0, 0.2])
    assert np.allclose(loss_scale(targets, np.array([1.0, 2.0, 0.6])), [1 / 3, 0, 0.2])
    assert np.allclose(loss_scale(np.array([[0], [-1], [2]]), [5.0]), [2.5])


def test_loss_takes_its_weights():
    config = ODD["one"]
    model = GPT(config, checks.random_parameters(config, 2))
    tokens, targets = check_batch(config, 2, 7, 3)
    losses = checks.naive_losses(model.params, config, tokens, targets)
    means = [losses[..., k].sum() / (targets[..., k] >= 0).sum() for k in range(3)]
    for weights in ([1, 0.25, 0.25], [0.5, 2.0, 0.0], [0, 0, 3]):
        expected = float(np.dot(weights, means))
        checks.close(model.loss(tokens, targets, np.array(weights)), expected, 1e-12)
        checks.close(model.loss_and_gradients(tokens, targets, np.array(weights))[0], expected, 1e-12)
    checks.close(model.loss(tokens, targets), np.dot([1, 0.25, 0.25], means), 1e-12)


@pytest.mark.parametrize("later", [0.0, 0.25, 0.8])
def test_a_step_weighs_later_heads_as_its_configuration_says(later):
    config = ODD["one"]
    settings_ = TrainConfig(later_heads=later, batch=4)
    model = GPT(config, checks.random_parameters(config, 2))
    tokens, targets = check_batch(config, 4, config.context, 3)
    with one_blas_thread():
        step = Step(model, AdamW(config, settings_, np.float64), settings_, 4, 1)
        losses = step.gradient(tokens, targets)
        step.pool.shutdown()
    expected = model.loss_and_gradients(tokens, targets, np.array([1, later, later]))[1]
    checks.close(step.grads[0].flat, expected.flat, 1e-12)
    naive = checks.naive_losses(model.params, config, tokens, targets)
    checks.close(losses, naive.reshape(-1, 3).sum(axis=0) / (targets >= 0).reshape(-1, 3).sum(axis=0), 1e-12)


# Shapes that change between calls.


SHAPES = [(4, 8), (8, 4), (2, 16), (1, 32), (32, 1), (16, 2), (4, 8), (3, 5), (5, 3)]


@pytest.mark.parametrize("version", VERSIONS)
def test_one_model_takes_any_shape_after_any_other(version):
    """Batches of the same number of positions in other rows, and of other numbers: as a new model has it."""
    config = replace(ODD["one"], context=32)
    params = checks.random_parameters(config, 5)
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
        model = GPT(config, checks.random_parameters(config, 5))
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


def test_a_mask_is_made_for_each_length_and_dtype():
    for time, dtype in ((3, np.float32), (3, np.float64), (5, np.float32), (3, np.float32)):
        mask = ops.cpu._mask(time, np.dtype(dtype))
        assert mask.dtype == dtype and mask.shape == (time, time)
        assert (
            np.array_equal(np.isneginf(mask), np.triu(np.ones((time, time)), 1)) and not np.tril(mask).any()
        )


# Tables and parameters.


@pytest.mark.parametrize("theta", [1.0, 3.5, 10000.0, 5e5])
@pytest.mark.parametrize("width", [2, 6, 16])
def test_rope_tables(theta, width):
    """Pair j at position t turns by t / theta^(2j / C); q's part is divided by sqrt(C), k's is not."""
    config = ModelConfig(3 * width, 3, 1, 1, 9, 5, rope_theta=theta)
    rope = Rope(config, 9, np.dtype(np.float64))
    cos, sin = reference.rope_tables(9, width, theta)
    assert (
        cos.shape == sin.shape == (9, width // 2)
        and reference.rope_tables(9, width, theta, np.float32)[0].dtype == np.float32
    )
    for t, j in np.ndindex(9, width // 2):
        angle = t / theta ** (2 * j / width)
        for found, expected in (
            (cos[t, j], math.cos(angle)), (sin[t, j], math.sin(angle)), (rope.cos[t, j], math.cos(angle)),
            (rope.sin[t, j], math.sin(angle)), (rope.turn[t, width // 2 + j], np.exp(1j * angle) / math.sqrt(width)),
            (rope.turn[t, 3 * width // 2 + j], np.exp(1j * angle)),
            (rope.turn_back[t, 3 * width // 2 + j], np.exp(-1j * angle)),
        ):  # fmt: skip
            assert abs(found - expected) < 1e-12
    assert np.array_equal(rope.order[rope.place], np.arange(5 * width))
    assert np.allclose(reference.rope_tables(5, 6)[0], reference.rope_tables(5, 6, 10000.0)[0])


def test_fresh_parameters_have_the_deviation_that_is_asked_for():
    """Gains are 1; matrices have deviation std, `out` and `down` std / sqrt(2L); another seed, other numbers."""
    config = ModelConfig(64, 4, 2, 5, 8, 50, predict=2, ffn=48)
    for std in (0.02, 0.7):
        params = init(config, 3, std)
        for name, p in params.items():
            assert p.dtype == np.float32
            if p.ndim == 1:
                assert (p == 1).all()
            else:
                expected = std / math.sqrt(10) if name.endswith(("out", "down")) else std
                assert p.std() == pytest.approx(expected, rel=0.05) and abs(p.mean()) < 0.05 * expected
    assert np.array_equal(init(config, 3, dtype=np.float64).flat.astype(np.float32), init(config, 3).flat)
    assert init(config, 3, dtype=np.float64).flat.dtype == np.float64
    assert np.array_equal(init(config).flat, init(config, 0, 0.02).flat) and not np.array_equal(
        init(config, 1).flat, init(config).flat
    )
    assert np.array_equal(GPT(config, seed=4).params.flat, init(config, 4).flat)
    assert np.array_equal(GPT(config).params.flat, init(config).flat)
    assert GPT(config, seed=4, dtype=np.float64).dtype == np.float64 and GPT(config).dtype == np.float32
    assert GPT(config).size == sum(math.prod(shape) for shape in parameter_shapes(config).values())


def test_parameters_are_views_of_one_array():
    config = ODD["two"]
    for dtype in (np.float32, np.float64):
        params = Parameters(config, dtype)
        assert (
            params.flat.dtype == dtype
            and not params.flat.any()
            and len(params) == len(parameter_shapes(config))
        )
        params.flat[...] = np.arange(params.flat.size)
        start = 0
        for name, shape in parameter_shapes(config).items():
            assert params[name].shape == shape
            assert np.array_equal(params[name].reshape(-1), start + np.arange(params[name].size))
            params[name][...] = -1
            start += params[name].size
        assert start == params.flat.size and (params.flat == -1).all()
    assert Parameters(config).flat.dtype == np.float32


@settings(max_examples=30)
@given(st.integers(1, 4), st.integers(1, 9), st.sampled_from(list(ODD)))
def test_plan_has_the_shapes_of_the_notation(batch, time, name):
    config = ODD[name]
    if time > config.context:
        time = config.context
    plan, N = Plan(config, batch, time, np.float64), batch * time
    D, F, H, G, C = config.dim, config.ffn, config.heads, config.kv_heads, config.head_dim
    expected = dict(
        x1=D,
        rstd1=1,
        y1=D,
        qkv=(H + 2 * G) * C,
        attended=H * C,
        x2=D,
        rstd2=1,
        y2=D,
        gate_up=2 * F,
        hidden=F,
        sigmoid=F,
    )
    assert len(plan.layers) == config.layers
    for index, layer in enumerate(plan.layers):
        for key, width in expected.items():
            assert getattr(layer, key).shape == (N, width), key
            assert plan.buffers[f"layers.{index}.{key}"] is getattr(layer, key)
    assert plan.losses.shape == (N, config.predict) and plan.dtype == np.float64 and plan.config is config
    assert Plan(config, batch, time).dtype == np.float32


# The optimiser.


@settings(max_examples=60)
@given(st.integers(0, 20), st.integers(1, 40), st.floats(1e-5, 10), st.floats(0, 1), st.integers(0, 60))
def test_learning_rate_is_the_formula(warmup, steps, rate, end, step):
    """A line to the peak, half a cosine to its last value, and that value ever after."""
    c = TrainConfig(steps=steps, warmup=warmup, rate=rate, rate_end=end)
    if step < warmup:
        expected = rate / warmup * (step + 1)
    else:
        done = min((step - warmup) / (steps - warmup), 1.0) if steps > warmup else min(step - warmup, 1)
        low = rate * end
        expected = low + (rate - low) * math.cos(math.pi * done / 2) ** 2
    assert learning_rate(step, c) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_clipping_brings_a_norm_down_to_its_limit(norm, limit):
    factor = clip_factor(norm, limit)
    assert factor == 1.0 if norm <= limit else factor * norm == pytest.approx(limit, rel=1e-12)
    assert clip_factor(norm, 0) == clip_factor(norm, 0.0) == 1.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_adamw_uses_every_setting(dtype):
    """Moments of the parameters' kind; betas, eps, decay, rate and factor, each unlike its default."""
    config, rng = ODD["two"], np.random.default_rng(0)
    c = TrainConfig(
        steps=9, warmup=3, rate=0.07, rate_end=0.4, beta1=0.7, beta2=0.6, adam_eps=0.02, decay=0.5
    )
    optimizer = AdamW(config, c, dtype)
    assert optimizer.m.flat.dtype == optimizer.v.flat.dtype == dtype and optimizer.step == 0
    assert AdamW(config, c).m.flat.dtype == AdamW(config, c).v.flat.dtype == np.float32
    params, grads = Parameters(config, dtype), Parameters(config, dtype)
    params.flat[...] = rng.standard_normal(params.flat.size)
    p = {name: x.astype(np.float64) for name, x in params.items()}
    m = {name: 0 * x for name, x in p.items()}
    v = {name: 0 * x for name, x in p.items()}
    for step in range(1, 7):
        grads.flat[...] = rng.standard_normal(params.flat.size)
        factor = [1.0, 0.3, 2.0][step % 3]
        rate = 0.07 * step / 3 if step <= 3 else 0.028 + 0.042 * (1 + math.cos(math.pi * (step - 4) / 6)) / 2
        for name in p:
            g = grads[name] * factor
            m[name] = 0.7 * m[name] + 0.3 * g
            v[name] = 0.6 * v[name] + 0.4 * g * g
            move = m[name] / (1 - 0.7**step) / (np.sqrt(v[name] / (1 - 0.6**step)) + 0.02)
            p[name] = p[name] - rate * (move + (0.5 * p[name] if p[name].ndim == 2 else 0))
        optimizer.step += 1
        names = list(params)
        optimizer.update(params, grads, names[::2], factor)
        optimizer.update(params, grads, names[1::2], factor)
        for name in p:
            checks.close(
                params[name], p[name], 1e-5 if dtype == np.float32 else 1e-12, f"{name}, step {step}"
            )


# What is refused.


@pytest.mark.parametrize("tokens, expected", [
    (np.zeros((2, 3)), r"tokens are float64 \[2, 3\], expected integers \[B, T\]"),
    (np.zeros(3, int), r"tokens are int64 \[3\], expected integers \[B, T\]"),
    (np.array([[0, 7]]), r"tokens lie in 0..7, expected 0..6"),
    (np.array([[-1, 3]]), r"tokens lie in -1..3, expected 0..6"),
    (np.array([[8, 3]]), r"tokens lie in 3..8, expected 0..6"),
])  # fmt: skip
def test_a_model_refuses_tokens(tokens, expected):
    model = GPT(ODD["one"])
    targets = np.zeros((*tokens.shape, 3), int)
    for call in (
        model.hidden,
        model.logits,
        lambda t: model.losses(t, targets),
        lambda t: model.loss(t, targets),
        lambda t: model.loss_and_gradients(t, targets),
    ):
        with pytest.raises(NanoEulerError, match=f"^{expected}$"):
            call(tokens)
    model.hidden(np.array([[0, 6]]))
    model.hidden([[0, 6]])


def test_losses_have_the_dtype_of_the_model_and_of_float64_where_they_are_added():
    """One position among 600 of nearly no loss: a sum in float32 would round it away."""
    for dtype in (np.float32, np.float64):
        model = GPT(ODD["two"], checks.random_parameters(ODD["two"], 0, dtype=dtype))
        tokens, targets = check_batch(ODD["two"], 2, 9, 0)
        assert model.losses(tokens, targets).dtype == model.logits(tokens).dtype == dtype
        assert model.loss_and_gradients(tokens, targets)[1].flat.dtype == dtype
    config = ModelConfig(4, 1, 1, 1, 60, 3, predict=1)
    model, settings_ = GPT(config), TrainConfig(batch=8)
    model.params.flat[...] = 0
    model.params["embed"][...], model.params["norm_final"][...] = 1, 1
    model.params["heads"][:, 0] = 2.1
    tokens, targets = np.zeros((8, 60), int), np.zeros((8, 60, 1), int)
    targets[0, 0] = 1
    each = model.losses(tokens, targets).astype(np.float64)
    with one_blas_thread():
        step = Step(model, AdamW(config, settings_), settings_, 8, 1)
        found = step.gradient(tokens, targets)
        step.pool.shutdown()
    assert found.dtype == np.float64 and found[0] == pytest.approx(each.mean(), rel=1e-12)
    assert model.loss(tokens, targets) == pytest.approx(each.mean(), rel=1e-12)


def test_cores_and_blas_threads(monkeypatch):
    """What is asked for; else cores of this process; if the system tells none, of the machine; 1 if nobody knows."""
    import os

    from threadpoolctl import threadpool_info

    from nanoeuler_lib.machine import cores

    with one_blas_thread():
        blas = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
        assert blas and set(blas) == {1}
    for asked, expected in (("5", 5), ("1", 1), ("0", 3), ("-2", 3), ("many", 3), ("", 3)):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 4, 9}, raising=False)
        assert cores() == expected
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda process: {1, 4, 9} if process == 0 else {1}, raising=False
    )
    assert cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1


@pytest.mark.parametrize("context, rows, workers, micro, expected", [
    (600, 4, 2, 1, 2), (600, 2, 5, 1, 2), (256, 6, 4, 2, 3), (100, 7, 3, 1, 3), (100, 10, 9, 5, 2), (512, 3, 1, 1, 1),
    (513, 3, 2, 1, 2), (8, 64, 3, 64, 1), (8, 128, 3, 64, 2),
])  # fmt: skip
def test_rows_are_dealt_out(context, rows, workers, micro, expected):
    """A micro-batch is the largest divisor of the rows with at most 512 positions, and of one row at least."""
    config, settings_ = ModelConfig(2, 1, 1, 1, context, 3, predict=1, ffn=2), TrainConfig()
    step = Step(GPT(config), AdamW(config, settings_), settings_, rows, workers)
    assert (step.micro, step.workers, len(step.grads), len(step.plans)) == (
        micro,
        expected,
        expected,
        expected,
    )
    assert [(plan.batch, plan.time) for plan in step.plans] == [(micro, context)] * expected
    step.pool.shutdown()


def test_scratch_space_is_what_the_operations_need():
    """`Plan.nbytes` before a run: every buffer's size, from the shapes of one step of the model."""
    config, B, T = ModelConfig(16, 4, 2, 3, 150, 300, predict=3, ffn=10), 3, 150
    plan = Plan(config, B, T, np.float64)
    N, D, F, H, G, C, K, V = B * T, 16, 10, 4, 2, 4, 3, 300
    pairs = 64 * 64 + 64 * 128 + 22 * 150  # of the three blocks of rows
    layer = 2 * (2 * N * D + N) + N * (H + 2 * G) * C + B * H * pairs + B * H * T + N * H * C + 4 * N * F
    step = 5 * N * D + N + N * K + N * (H + 2 * G) * C + N * H * C + 3 * N * F
    scratch = (
        N * 16
        + (B * H * 64 * C + B * G * T * C)
        + B * H * 64 * 128
        + 256 * (V + D)
        + D * K * V
        + D * (H + 2 * G) * C
    )
    assert plan.nbytes == 8 * (3 * layer + step + scratch)
    assert {name for name, x in plan.buffers.items() if x.size == 0} == set()
