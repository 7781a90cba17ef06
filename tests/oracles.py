"""Checks that several test modules share; each raises AssertionError if the library is wrong.

`test_mutations.py` plants bugs and requires that these functions catch them. They compare with difference quotients,
with formulas that are written out here in float64, or with brute force, and never with the function that they check.
"""

import hashlib
import json
import math
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from functools import wraps
from inspect import signature
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest

from nanoeuler_lib import machine, ops
from nanoeuler_lib.config import GPT2Config, ModelConfig, TrainConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generation.generate import sample
from nanoeuler_lib.model import GPT, Parameters, head_weights, init, loss_scale, optim
from nanoeuler_lib.model import plan as plan_module
from nanoeuler_lib.model import step as step_module
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.model.gradcheck import check_batch, check_layer, numeric_gradient
from nanoeuler_lib.model.plan import Plan
from nanoeuler_lib.ops import cpu, reference
from nanoeuler_lib.text import data
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import checkpoint, datasets, loop, run_folder, train

# All sizes are different where the shapes allow it, so that a swapped axis is noticed.
FLOOR = 1e-14  # smaller differences are rounding errors of numbers of about 1, which may have cancelled
TINY = ModelConfig(dim=16, heads=4, kv_heads=2, layers=2, context=9, vocab_size=7, predict=3, ffn=10)
TINY_GPT2 = GPT2Config(dim=15, heads=3, layers=2, context=9, vocab_size=7, ffn=10)


def random_parameters(config: ModelConfig, seed: int = 0, std: float = 0.3, dtype=np.float64) -> Parameters:
    """Return random parameters without symmetries: the gains, which `init` makes equal, get noise as well."""
    params, rng = init(config, seed, std, np.float64), np.random.default_rng([seed, 1])
    for p in params.values():
        if p.ndim == 1:
            p += std * rng.standard_normal(p.shape)
    return _as(params, config, dtype)


def _as(params, config, dtype):
    result = Parameters(config, dtype)
    result.flat[...] = params.flat
    return result


def close(found, expected, rtol: float, name: str = "") -> None:
    """Assert that two arrays differ by at most rtol times the largest expected number."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, f"{name}: {found.shape} instead of {expected.shape}"
    apart = np.abs(found - expected).max(initial=0)  # NaN makes the comparison below fail
    size = np.abs(expected).max(initial=0)
    assert apart <= rtol * size + FLOOR, f"{name}: {apart:.2e} apart at size {size:.2e}"


def poison(plan: Plan) -> Plan:
    """Fill every buffer of a plan with NaN, so that reading a buffer before writing it is noticed."""
    for buffer in plan.buffers.values():
        buffer[...] = np.nan
    return plan


# ---- forward: the model written out position by position


def naive_losses(params: Parameters, config: ModelConfig, tokens, targets) -> np.ndarray:
    """Compute the losses in nats [B, T, K] at each position and head, 0 where the target is -1."""
    losses, logits = np.zeros(targets.shape), naive_logits(params, config, tokens)
    for at in np.ndindex(targets.shape):
        if targets[at] >= 0:
            z = logits[at] - logits[at].max()
            losses[at] = math.log(np.exp(z).sum()) - z[targets[at]]
    return losses


def naive_logits(params: Parameters, config: ModelConfig, tokens) -> np.ndarray:
    """Compute logits [B, T, K, V] in float64 by the formulas of the notation page, stable for scores of any size."""
    H, G, C = config.heads, config.kv_heads, config.dim // config.heads
    params = {name: np.asarray(p, np.float64) for name, p in params.items()}
    logits = np.zeros((*tokens.shape, config.predict, config.vocab_size))

    def norm(x, gain):
        return np.array([row * gain / math.sqrt((row @ row) / len(row) + config.norm_eps) for row in x])

    def turned(x):
        rows = []
        for t, row in enumerate(x):
            z = row[: C // 2] + 1j * row[C // 2 :]
            z = [pair * np.exp(1j * t / config.rope_theta ** (2 * j / C)) for j, pair in enumerate(z)]
            rows.append(np.concatenate([np.real(z), np.imag(z)]))
        return np.array(rows)

    for b, sequence in enumerate(tokens):
        x = np.array([params["embed"][token] for token in sequence])
        for layer in range(config.layers):
            w = {name: params[f"layers.{layer}.{name}"] for name in ("norm1", "qkv", "out")}
            columns = np.split(norm(x, w["norm1"]) @ w["qkv"], H + 2 * G, axis=1)
            heads = []
            for h in range(H):
                g = h // (H // G)
                q, k, v = turned(columns[h]), turned(columns[H + g]), columns[H + G + g]
                rows = []
                for t in range(len(sequence)):
                    scores = np.array([q[t] @ k[s] / math.sqrt(C) for s in range(t + 1)])
                    e = np.exp(scores - scores.max())
                    rows.append(sum(p * v[s] for s, p in enumerate(e / e.sum())))
                heads.append(rows)
            x = x + np.concatenate(heads, axis=1) @ w["out"]
            w = {name: params[f"layers.{layer}.{name}"] for name in ("norm2", "gate_up", "down")}
            gate, up = np.split(norm(x, w["norm2"]) @ w["gate_up"], 2, axis=1)
            sigmoid = np.exp(-np.logaddexp(0, -gate))
            x = x + (gate * sigmoid * up) @ w["down"]
        logits[b] = (norm(x, params["norm_final"]) @ params["heads"]).reshape(logits[b].shape)
    return logits


def check_forward(version: str = "cpu", config: ModelConfig = TINY, batch: int = 2, time: int = 5, seed=0):
    """Check that the losses and their weighted sum equal those of the formulas."""
    model = GPT(config, random_parameters(config, seed))
    tokens, targets = check_batch(config, batch, time, seed)
    expected = naive_losses(model.params, config, tokens, targets)
    with ops.use(version), patch.object(plan_module, "LOGIT_ROWS", 4):
        poison(model.plan(batch, time))
        loss, _ = model.loss_and_gradients(tokens, targets)
        losses = model.plan(batch, time).losses.reshape(targets.shape)
        close(losses, expected, 1e-11, "losses")
        close(model.losses(tokens, targets[..., 0]), expected[..., 0], 1e-11, "GPT.losses")
    total = 0.0
    for k in range(config.predict):
        valid = (targets[..., k] >= 0).sum()
        total += (1.0 if k == 0 else 0.25) * (expected[..., k].sum() / valid if valid else 0.0)
    close(loss, total, 1e-11, "loss")


# ---- backward: difference quotients


def check_gradients(
    version: str = "cpu",
    config: ModelConfig = TINY,
    batch: int = 2,
    time: int = 5,
    seed: int = 0,
    targets: np.ndarray | None = None,
    elements: int = 6,
    later_heads: float = 0.25,
) -> None:
    """Check every tensor's gradient along random directions, and for some elements separately (all, if 1-d).

    Along a random unit direction, an error of the gradient g appears as about |error| / sqrt(n), whichever elements are
    wrong; the limit is a millionth of ||g|| / sqrt(n). The difference quotients are of fourth order. h is a quarter of
    `gradcheck.STEP`, because 1e-3 is large for a random model with a short embedding; halving h divides the error of
    the quotient by 16.
    """
    rng = np.random.default_rng([seed, 2])
    model = GPT(config, random_parameters(config, seed))
    tokens, random_targets = check_batch(config, batch, time, seed)
    targets = random_targets if targets is None else targets
    weights = np.array([1.0] + [later_heads] * (config.predict - 1))
    with ops.use(version), patch.object(plan_module, "LOGIT_ROWS", 4):
        plan = poison(model.plan(batch, time))
        _, grads = model.loss_and_gradients(tokens, targets, None if later_heads == 0.25 else weights)
        grads = {name: g.copy() for name, g in grads.items()}
        valid = (targets >= 0).reshape(-1, config.predict).sum(axis=0)

        def loss():
            model.forward(plan, tokens)
            ones, flat = np.ones(config.predict), targets.reshape(-1, config.predict)
            plan.op.heads_loss(plan.losses, None, None, plan.y_final, model.heads, flat, ones, False)
            return float(plan.losses.sum(axis=0) @ (weights / np.maximum(valid, 1)))

        def slope(p, direction):
            along = np.zeros(1)
            kept = p.copy()

            def moved():
                p[...] = kept + along[0] * direction
                return loss()

            result = numeric_gradient(moved, along, h=2.5e-4)[0]
            p[...] = kept
            return result

        for name, p in model.params.items():
            g = grads[name]
            assert np.isfinite(g).all(), f"{name}: not finite"
            limit = 1e-6 * np.linalg.norm(g) / math.sqrt(g.size) + 1e-11
            for _ in range(3):
                direction = rng.standard_normal(p.shape)
                direction /= np.linalg.norm(direction)
                apart = abs(slope(p, direction) - float((g * direction).sum()))
                assert apart <= limit, f"{name}: {apart:.2e} apart along a direction, limit {limit:.2e}"
            chosen = rng.permutation(p.size)[: p.size if p.ndim == 1 else elements]
            for i in chosen:
                unit = np.zeros(p.size)
                unit[i] = 1
                n = slope(p, unit.reshape(p.shape))
                apart, size = abs(n - g.flat[i]), max(abs(n), abs(g.flat[i]))
                assert apart <= 4e-6 * size + 1e-11, f"{name}, element {i}: {g.flat[i]:.8g}, quotient {n:.8g}"


def layer_pairs(seed: int = 0, dtype=np.float64) -> dict[str, tuple]:
    """Return the pure layer functions with inputs of odd sizes: name -> (forward, backward, inputs)."""
    rng = np.random.default_rng(seed)
    x = lambda *shape: rng.standard_normal(shape).astype(dtype)
    cos, sin = reference.rope_tables(5, 6, dtype=dtype)
    masked = rng.integers(-1, 7, (3, 5))
    masked[0, :2] = -1, 3
    inputs = {
        "embed": {"tokens": rng.integers(0, 4, (3, 5)), "table": x(7, 3)},
        "linear": {"x": x(2, 3, 5), "w": x(5, 7)},
        "rmsnorm": {"x": x(2, 3, 5), "gain": x(5)},
        "rope": {"x": x(2, 3, 5, 6)},
        "attention": {"q": x(2, 6, 5, 3), "k": x(2, 2, 5, 3), "v": x(2, 2, 5, 3)},
        "attention, T=1": {"q": x(1, 3, 1, 5), "k": x(1, 1, 1, 5), "v": x(1, 1, 1, 5)},
        "swiglu": {"gate": x(3, 5), "up": x(3, 5)},
        "affine": {"x": x(2, 3, 5), "w": x(5, 7), "b": x(7)},
        "layernorm": {"x": x(2, 3, 5) + 2, "gain": x(5), "bias": x(5)},
        "gelu": {"x": 2 * x(3, 5)},
        "positions": {"x": x(2, 3, 5), "table": x(7, 5)},
        "cross_entropy": {"logits": x(3, 5, 7), "targets": masked},
    }
    pairs = {}
    for name, given in inputs.items():
        layer = name.partition(",")[0]
        forward, backward = (getattr(reference, f"{layer}_{way}") for way in ("forward", "backward"))
        pairs[name] = (forward, backward, given)
    pairs["rope"] = (lambda x: reference.rope_forward(x, cos, sin), *pairs["rope"][1:])
    return pairs


def check_layers(seed: int = 0) -> None:
    """Check every pure forward and backward pair against difference quotients, element by element."""
    for name, (forward_, backward_, inputs) in layer_pairs(seed).items():
        for row in check_layer(forward_, backward_, inputs, seed):
            assert row.ok, f"{name}: {row}"


# ---- operations: what each call of a composite writes, fast against plain

WRITES = dict(
    embed="x", embed_back="dtable",
    linear="y", linear_back="dx dw",
    add_rmsnorm="x y rstd", add_rmsnorm_back="dx dgain",
    qkv_rope="qkv", qkv_rope_back="dy dw",
    attention="y", attention_back="dqkv",
    swiglu="hidden", swiglu_back="dgate_up",
    positions="x", positions_back="dtable",
    add_layernorm="x y mean rstd", add_layernorm_back="dx dgain dbias",
    affine="y", affine_back="dx dw db",
    gelu="hidden", gelu_back="dup",
    heads_loss="losses dy dw", adamw="p m v", muon="p m",
)  # fmt: skip


@contextmanager
def recording(version: str):
    """Run on `version`, and list (composite, argument, its value after the call) for all outputs of composites.

    Values are copied directly after the call, because a later composite may overwrite a gradient after its last use.
    """
    calls = []

    def recorded(name, function):
        parameters = signature(function).parameters

        @wraps(function)
        def call(*arguments, **scratch):
            function(*arguments, **scratch)
            named = dict(zip(parameters, arguments))
            calls.extend((name, key, named[key].copy()) for key in WRITES[name].split() if named[key] is not None)

        return call

    with ops.use(version):
        active = {name: recorded(name, function) for name, function in vars(ops.active()).items()}
        assert set(active) == set(WRITES)
        with patch.object(ops, "active", lambda: SimpleNamespace(**active)):
            yield calls


def run_recorded(
    version, config, params, tokens, targets, accumulate, dtype=np.float64, rows=4, passes=1
) -> tuple[list, Plan, Parameters]:
    """Run forward and backward pass on poisoned buffers; return the record, the plan and the gradients."""
    batch, time = tokens.shape
    scale = loss_scale(targets, head_weights(config))
    with patch.object(plan_module, "LOGIT_ROWS", rows):
        plan = poison(Plan(config, batch, time, dtype))
    grads = Parameters(config, dtype)
    grads.flat[...] = np.random.default_rng(7).standard_normal(grads.flat.size) if accumulate else np.nan
    model = GPT(config, params)
    with recording(version) as calls:
        for _ in range(passes):
            model.forward(plan, tokens)
            model.backward(grads, plan, tokens, targets, scale, accumulate=accumulate)
    return calls, plan, grads


def check_equality(
    config: ModelConfig = TINY,
    batch: int = 2,
    time: int = 5,
    seed: int = 0,
    accumulate: bool = False,
    std: float = 0.3,
    dtype=np.float64,
    rtol: float = 1e-12,
) -> None:
    """Check that `ops/cpu` writes the same as `ops/plain` in each call; its extra buffers must equal their formula."""
    params = random_parameters(config, seed, std, dtype)
    tokens, targets = check_batch(config, batch, time, seed)
    fast, plan, fast_grads = run_recorded("cpu", config, params, tokens, targets, accumulate, dtype)
    plain, plain_plan, plain_grads = run_recorded("plain", config, params, tokens, targets, accumulate, dtype)
    assert [call[:2] for call in fast] == [call[:2] for call in plain]
    for (name, key, found), (_, _, expected) in zip(fast, plain):
        if key in ("qkv", "dqkv") and plan.rope:  # ops/cpu stores the two coordinates of a RoPE pair next to each other
            expected = expected[:, plan.rope.order]
        close(found, expected, rtol, f"{name}, {key}")
    for name in params:
        close(fast_grads[name], plain_grads[name], rtol, f"gradient of {name}")
    for a, b in zip(plan.layers, plain_plan.layers):
        if plan.rope:
            gate, up = np.split(b.gate_up, 2, axis=1)
            close(a.sigmoid, reference.swiglu_forward(gate, up)[1][2], rtol, "sigmoid")
        q, k, v = _heads(b.qkv, config, batch, time)
        probs = reference.attention_forward(q * math.sqrt(config.head_dim), k, v)[1][3]
        found = np.zeros((*a.softmax_stats.shape[:-1], time), dtype)  # ops/cpu leaves out blocks of masked positions
        for rows, end, scores in cpu.score_blocks(a.probs, a.softmax_stats.shape):
            found[:, :, :, rows, :end] = scores
        close((found * a.softmax_stats).reshape(probs.shape), probs, rtol, "probs * softmax_stats")


def _heads(qkv, config, batch, time):
    H, G = config.heads, config.kv_heads
    heads = qkv.reshape(batch, time, H + 2 * G, config.head_dim).swapaxes(1, 2)
    return heads[:, :H], heads[:, H : H + G], heads[:, H + G :]


def check_accumulate(config: ModelConfig = TINY) -> None:
    """Check in both versions that gradients accumulate if required: g after two equal passes becomes g + 2 dL."""
    params = random_parameters(config)
    tokens, targets = check_batch(config, 2, 5, 0)
    for version in ("cpu", "plain"):
        _, _, once = run_recorded(version, config, params, tokens, targets, False)
        _, _, twice = run_recorded(version, config, params, tokens, targets, True, passes=2)
        start = np.random.default_rng(7).standard_normal(once.flat.size)
        close(twice.flat, start + 2 * once.flat, 1e-12, f"{version}: accumulated gradients")
    check_equality(config, accumulate=True)


def check_extremes(version: str = "cpu", config: ModelConfig = TINY) -> None:
    """Check that scores and logits 300 times as large give finite losses and gradients, without any overflow."""
    params = random_parameters(config, std=0.5)
    for name in params:
        if name.endswith((".qkv", "up", "heads")) or (name == "embed" and "heads" not in params):
            params[name][...] *= 300
    tokens, targets = check_batch(config, 2, 9, 0)
    targets[0] = -1
    model = GPT(config, params)
    with ops.use(version), np.errstate(all="raise", under="ignore"):
        poison(model.plan(2, 9))
        try:
            loss, grads = model.loss_and_gradients(tokens, targets)
        except FloatingPointError as error:
            raise AssertionError(error) from None
    assert math.isfinite(loss) and np.isfinite(grads.flat).all()


# ---- optimiser and training step


def expected_rate(step: int, c: TrainConfig) -> float:
    """Return the learning rate of a step: a line up to the peak, half a cosine down to the last value, constant."""
    if step < c.warmup:
        return c.rate / c.warmup * (step + 1)
    left = c.steps - c.warmup
    x = min((step - c.warmup) / left, 1) if left > 0 else min(step - c.warmup, 1)
    low = c.rate * c.rate_end
    return low + (c.rate - low) * math.cos(math.pi * x / 2) ** 2


def check_schedule() -> None:
    """Check that the learning rate follows the formula, rises to the peak, falls to the last value, and is never 0."""
    for steps, warmup in ((50, 8), (50, 0), (9, 9), (5, 9), (1, 0)):
        c = TrainConfig(steps=steps, warmup=warmup, rate=0.02, rate_end=0.1)
        rates = [optim.learning_rate(step, c) for step in range(61)]
        close(rates, [expected_rate(step, c) for step in range(61)], 1e-12, f"rates of {steps} steps")
        assert math.isclose(rates[warmup], 0.02) and math.isclose(rates[60], 0.002)
        assert np.argmax(rates) in (warmup - 1, warmup) and min(rates) > 0


def check_adamw(version: str = "cpu") -> None:
    """Check five steps of AdamW against the paper's formulas, with weight decay only on matrices."""
    c = TrainConfig(steps=6, warmup=2, rate=0.05, beta1=0.7, beta2=0.6, decay=0.3, adam_eps=1e-3, clip=0)
    params, rng = random_parameters(TINY, 3), np.random.default_rng(4)
    expected = {name: p.copy() for name, p in params.items()}
    m, v = (Parameters(TINY, np.float64) for _ in "mv")
    optimizer = optim.AdamW(TINY, c, np.float64)
    with ops.use(version):
        for step in range(1, 6):
            grads, factor = Parameters(TINY, np.float64), 0.5
            grads.flat[...] = rng.standard_normal(grads.flat.size)
            for name, p in expected.items():
                g = grads[name] * factor
                m[name][...] = c.beta1 * m[name] + (1 - c.beta1) * g
                v[name][...] = c.beta2 * v[name] + (1 - c.beta2) * g**2
                move = (m[name] / (1 - c.beta1**step)) / (np.sqrt(v[name] / (1 - c.beta2**step)) + c.adam_eps)
                decay = 0.0 if "norm" in name else c.decay
                expected[name] = p - expected_rate(step - 1, c) * (move + decay * p)
            optimizer.step += 1
            optimizer.update(params, grads, list(params), factor)
    for name in params:
        close(params[name], expected[name], 1e-12, name)


def orthogonalised(u):
    """Compute the Newton-Schulz iteration by the singular values: apply the polynomial to each of them five times."""
    left, s, right = np.linalg.svd(np.asarray(u, np.float64), full_matrices=False)
    s = s / np.sqrt((s**2).sum())
    for _ in range(5):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    return (left * s) @ right


SIDES = ModelConfig(8, 2, 1, 2, 4, 5, predict=2, ffn=13)  # gives wide matrices, a square one and a tall one


def check_muon(version: str = "cpu") -> None:
    """Check five steps of Muon: its matrices by singular values, other parameters by AdamW, all with weight decay."""
    c = TrainConfig(steps=6, warmup=2, rate=0.05, decay=0.3, clip=0, optimizer="muon")
    params, rng = random_parameters(SIDES, 3), np.random.default_rng(4)
    twins, grads = random_parameters(SIDES, 3), Parameters(SIDES, np.float64)
    inside = [name for name in params if name.count(".") == 2 and "norm" not in name]
    assert len(inside) == 4 * SIDES.layers
    expected, m = ({name: source[name].copy() for name in inside} for source in (params, grads))
    optimizer, adamw = (make(SIDES, c, np.float64) for make in (optim.optimizer_of, optim.AdamW))
    with ops.use(version):
        for step in range(1, 6):
            drawn = rng.standard_normal(grads.flat.size)
            for name, p in expected.items():
                grads.flat[...] = drawn
                g = 0.5 * grads[name]
                m[name] = 0.95 * m[name] + g
                columns = {"qkv": [8, 4, 4], "gate_up": [13, 13]}.get(name.split(".")[2], [8])
                ends = np.cumsum(columns)[:-1]
                moves = [
                    0.2 * math.sqrt(max(part.shape)) * orthogonalised(part)
                    for part in np.split(g + 0.95 * m[name], ends, axis=1)
                ]
                expected[name] = p - expected_rate(step - 1, c) * (np.hstack(moves) + c.decay * p)
            for one, moved in ((optimizer, params), (adamw, twins)):
                one.step += 1
                grads.flat[...] = drawn
                one.update(moved, grads, list(params), 0.5)
    for name in params:
        close(params[name], expected.get(name, twins[name]), 1e-10, name)
        close(optimizer.m[name], m.get(name, adamw.m[name]), 1e-12, f"m of {name}")
        assert np.array_equal(optimizer.v[name], 0 * adamw.v[name] if name in inside else adamw.v[name])


def check_step(workers: int = 2, accumulate: int = 1) -> None:
    """Check that three steps with micro-batches on several threads equal steps with the whole batch and clipping."""
    c = TrainConfig(steps=6, batch=6, accumulate=accumulate, warmup=2, rate=0.05, clip=0.7, later_heads=0.3)
    weights = np.array([1.0, 0.3, 0.3])
    rows = c.batch * accumulate
    model = GPT(TINY, random_parameters(TINY))
    twin = GPT(TINY, random_parameters(TINY))
    optimizer, own = optim.AdamW(TINY, c, np.float64), optim.AdamW(TINY, c, np.float64)
    clipped = 0
    with ops.use(), patch.object(step_module, "MICRO_TOKENS", 2 * TINY.context), machine.one_blas_thread():
        step_of = step_module.Step(model, optimizer, c, rows, workers)
        assert step_of.micro == 2 and step_of.workers == workers
        for plan, grads in zip(step_of.plans, step_of.grads):
            poison(plan)
            grads.flat[...] = np.nan
        for step in range(1, 4):
            tokens, targets = check_batch(TINY, rows, TINY.context, step)
            targets[: rows // 2, :, 1] = -1  # micro-batches have different numbers of valid targets
            losses, norm = step_of(tokens, targets)
            naive = naive_losses(twin.params, TINY, tokens, targets)
            valid = (targets >= 0).reshape(-1, TINY.predict).sum(axis=0)
            close(losses, naive.reshape(-1, TINY.predict).sum(axis=0) / valid, 1e-10, "mean losses")
            grads = Parameters(TINY, np.float64)
            twin.forward(plan := twin.plan(rows, TINY.context), tokens)
            twin.backward(grads, plan, tokens, targets, weights / valid)
            expected_norm = math.sqrt(sum(float((g**2).sum()) for g in grads.values()))
            close(norm, expected_norm, 1e-10, "norm")
            if expected_norm > c.clip:
                grads.flat[...] *= c.clip / expected_norm
                clipped += 1
            own.step = step
            own.update(twin.params, grads, list(twin.params), 1.0)
            close(model.params.flat, twin.params.flat, 1e-10, f"parameters after step {step}")
        step_of.pool.shutdown()
    assert clipped, "no step was clipped: the check has lost its power"


WIDE = ModelConfig(dim=96, heads=4, kv_heads=2, layers=8, context=8, vocab_size=300)


def check_init(config: ModelConfig = WIDE) -> None:
    """Check fresh parameters: standard deviations, gains of 1, biases of 0."""
    for name, p in init(config, 0).items():
        if p.ndim == 1:
            assert (p == (0 if name.endswith("_bias") else 1)).all(), name
        else:
            std = 0.02 / math.sqrt(2 * config.layers) if name.endswith(("out", "down")) else 0.02
            assert abs(p.std() / std - 1) < 0.03 and abs(p.mean()) < std / 20, f"{name}: {p.std():.5f}"


# ---- data


def numbered(count: int, starts=None, vocab: int = 10_000) -> data.Tokens:
    """Return a text with the tokens 0, 1, 2, ..., each of one byte, so that a target shows its position."""
    starts = None if starts is None else np.asarray(starts)
    return data.Tokens(np.arange(count, dtype=np.uint16), starts, np.ones(vocab, np.int32))


def check_targets() -> None:
    """Check that target k of position t is token t+1+k, that rows stay inside the text, and that all can be drawn."""
    T, K = 5, 3
    tokens = numbered(12)
    inputs, targets = data.batch(tokens, np.random.default_rng(0), 400, T, K)
    assert inputs.shape == (400, T) and targets.shape == (400, T, K)
    assert (np.diff(inputs, axis=1) == 1).all()
    for k in range(K):
        assert (targets[:, :, k] == inputs + 1 + k).all(), f"head {k}"
    assert set(inputs[:, 0]) == set(range(12 - T - K + 1)), "first tokens of rows"
    starts = [0, 4, 7, 11, 14]  # short documents: rows start where documents do, if a whole row fits
    inputs, targets = data.batch(numbered(20, starts), np.random.default_rng(0), 200, T, K)
    assert set(inputs[:, 0]) == {0, 4, 7, 11}
    inputs, _ = data.batch(numbered(40, [0, 20]), np.random.default_rng(0), 600, T, K)  # long documents: anywhere
    assert set(inputs[:, 0]) == set(range(40 - T - K + 1))


def check_validation_rows() -> None:
    """Check that each token except the first is a target exactly once, after the tokens before it as context."""
    for count in (2, 5, 6, 7, 11, 12, 13):
        tokens = numbered(count)
        inputs, targets = data.validation_rows(tokens, 5)
        valid = targets >= 0
        assert sorted(targets[valid]) == list(range(1, count)), f"{count} tokens"
        assert (targets[valid] == inputs[valid] + 1).all()
    starts, end = [0, 4, 9, 12], 14  # documents of 3, 4, 2 and 1 tokens, each after an end-of-text token
    inputs, targets = data.validation_rows(numbered(end + 1, starts), 5)
    valid = targets >= 0
    assert sorted(targets[valid]) == list(range(1, end + 1))
    assert (targets[valid] == inputs[valid] + 1).all()
    assert list(inputs[:, 0]) == starts


def check_split() -> None:
    """Check that both parts have whole documents, without loss or overlap, in about the required proportion."""
    documents = [f"story {i}: " + "abc " * (i % 7) for i in range(40)]
    text = data.SEPARATOR.join(documents)
    part, valid = data.split_text(text, 0.25)
    assert part.split(data.SEPARATOR) + valid.split(data.SEPARATOR) == documents
    assert 0.15 < len(valid) / len(text) < 0.3
    plain = "".join(chr(97 + i % 26) for i in range(1000))
    part, valid = data.split_text(plain, 0.1)
    assert part + valid == plain and len(valid) == 100


def check_bits_per_byte() -> None:
    """Check that bits per byte are the bits of head 0 over all windows, divided by the bytes of the scored tokens."""
    tokenizer = Tokenizer([(97, 98), (99, 100), (256, 257)], ())  # "ab", "cd", "abcd"
    config = ModelConfig(dim=8, heads=2, kv_heads=1, layers=1, context=6, vocab_size=260, predict=2)
    model = GPT(config, random_parameters(config, 1))
    text = "xabcdab, cdabcd! aöbcdcdabxyzab" * 3
    tokens = data.tokenize(text, tokenizer)
    ids, bits, size = [int(i) for i in tokens.ids], 0.0, 0
    for start in range(0, len(ids) - 1, 6):
        window, following = ids[start : start + 6], ids[start + 1 : start + 7]
        window = window[: len(following)]
        nats = naive_losses(model.params, config, np.array([window]), np.array(following)[None, :, None])
        bits += float(nats.sum()) / math.log(2)
        size += sum(len(tokenizer.decode_bytes([i])) for i in following)
    assert size == len(text.encode()) - 1
    close(datasets.bits_per_byte(model, tokens, rows=3), bits / size, 1e-10, "bits per byte")


# ---- generation


def check_decoder(config: ModelConfig = TINY, seed: int = 0) -> None:
    """Check that tokens in pieces of any size give the same logits as one pass over all of them."""
    rng = np.random.default_rng(seed)
    model = GPT(config, random_parameters(config, seed))
    tokens = rng.integers(0, config.vocab_size, config.context)
    full = model.logits(tokens[None])[0]
    cuts = sorted(set(rng.integers(1, config.context, 3)) | {config.context}) if config.context > 1 else [1]
    for ends in (range(1, config.context + 1), cuts, [config.context]):
        decoder, start = Decoder(model), 0
        for end in ends:
            close(decoder.feed(tokens[start:end]), full[end - 1], 1e-12, f"logits after {end} tokens")
            start = end


def expected_distribution(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> np.ndarray:
    """Compute the distribution of `sample`: the most likely tokens, up to the limits top_k, top_p and min_p."""
    p = np.array([math.exp(x / temperature) for x in logits])
    p /= p.sum()
    kept, mass = np.zeros(len(p), bool), 0.0
    order = sorted(range(len(p)), key=lambda i: -p[i])[: top_k or len(p)]
    total = sum(p[i] for i in order)
    for i in order:
        if p[i] < min_p * max(p):
            break
        kept[i] = True
        mass += p[i] / total
        if mass >= top_p:
            break
    p = np.where(kept, p, 0)
    return p / p.sum()


SAMPLING = [
    {}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 2}, {"top_p": 0.6}, {"top_k": 4, "top_p": 0.8},
    {"min_p": 0.2}, {"temperature": 2.0, "min_p": 0.5}, {"top_p": 0.9, "min_p": 0.3},
]  # fmt: skip


def check_sampling(draws: int = 500) -> None:
    """Check with equally spaced numbers from 0 to 1 that each token is sampled with its probability, up to one number.

    This finds errors of more than about 1/250. A chi-square test with 20,000 random numbers, at one in a million, would
    miss an error of 4%.
    """
    logits = np.array([1.5, -0.3, 0.9, 0.0, 2.0, -1.2])
    for case in SAMPLING:
        grid = SimpleNamespace(random=iter((np.arange(draws) + 0.5) / draws).__next__)
        drawn = np.bincount([sample(logits, grid, **case) for _ in range(draws)], minlength=6)
        p = expected_distribution(logits, **case)
        assert (drawn[p == 0] == 0).all(), f"{case}: drew a token of probability 0"
        assert np.abs(drawn - draws * p).max() <= 1, f"{case}: {drawn} of {draws}, expected {draws * p}"


# ---- runs

RUN_MODEL = ModelConfig(dim=16, heads=2, kv_heads=1, layers=1, context=12, vocab_size=258, predict=2)
RUN_CONFIG = TrainConfig(
    steps=6, batch=4, warmup=2, valid_every=3, sample_every=0, save_every=2, valid_fraction=0.2, clip=0.5
)


def run_text() -> str:
    rng = np.random.default_rng(0)
    words = "the cat on a mat sat and ran to her red hat".split()
    return " ".join(words[i] for i in rng.integers(0, len(words), 700)) + "."


class Crash(Exception):
    """Raised where a test simulates the end of the process."""


def stopped_at(step: int):
    """Raise Crash when the batch of this step (0, 1, ...) is read."""
    original, count = data.batch, [0]

    def batch(*arguments):
        count[0] += 1
        if count[0] == step + 1:
            raise Crash
        return original(*arguments)

    return patch.object(data, "batch", batch)


def check_resume(folder) -> None:
    """Check that a run that crashes in step 6, after a checkpoint at 4, ends bitwise like an uninterrupted run."""
    text = run_text()
    with ops.use():
        train.train(folder / "whole", text, RUN_MODEL, RUN_CONFIG, quiet=True)
        with suppress(Crash), stopped_at(5):
            train.train(folder / "parts", text, RUN_MODEL, RUN_CONFIG, quiet=True)
        try:
            loop.resume(folder / "parts", text, quiet=True)
        except NanoEulerError as error:
            raise AssertionError(f"resume: {error}") from None
    assert_same_run(folder / "whole", folder / "parts")


def assert_same_run(a, b) -> None:
    """Assert that two runs have bitwise equal last checkpoints, and logs with equal numbers except times."""
    a_end, b_end = (checkpoint.load(run, training=True) for run in (a, b))
    assert a_end.step == b_end.step and a_end.optimizer.step == b_end.optimizer.step
    assert np.array_equal(a_end.model.params.flat, b_end.model.params.flat), "parameters"
    assert np.array_equal(a_end.optimizer.m.flat, b_end.optimizer.m.flat), "first moments"
    assert np.array_equal(a_end.optimizer.v.flat, b_end.optimizer.v.flat), "second moments"
    assert without(a_end.info, "files") == without(b_end.info, "files"), "what a checkpoint says of its run"
    logs = [[without(entry, "seconds", "tokens_per_second") for entry in run_folder.read_log(run)] for run in (a, b)]
    assert logs[0] == logs[1], "logs"


def without(entry, *names) -> dict:
    return {name: x for name, x in entry.items() if name not in names}


def check_batches_differ(folder) -> None:
    """Check that all steps of a run have different batches, and that a different seed gives different batches."""
    seen = []
    original = data.batch

    def batch(*arguments):
        inputs, targets = original(*arguments)
        seen.append(inputs.tobytes())
        return inputs, targets

    for seed in (0, 1):
        config = TrainConfig(**RUN_CONFIG.to_dict() | {"seed": seed})
        with patch.object(data, "batch", batch), ops.use():
            train.train(folder / str(seed), run_text(), RUN_MODEL, config, quiet=True)
    assert len(set(seen)) == len(seen) == 2 * RUN_CONFIG.steps


# ---- Helpers for tests of runs and of error messages


def changed(config, **values):
    return type(config)(**config.to_dict() | values)


def error_of(function, *arguments, **named) -> str:
    """Return the message of the NanoEulerError that a call raises; it must be one line."""
    with pytest.raises(NanoEulerError) as caught:
        function(*arguments, **named)
    message = str(caught.value)
    assert message and "\n" not in message
    return message


def contents(folder) -> dict:
    """Return the bytes of every file below a folder, by path."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def seal(folder, **changes):
    """Update the digests in a changed checkpoint, so that only its content is wrong."""
    file = folder / "checkpoint.json"
    head = json.loads(file.read_text())
    head.pop("digest")
    head |= changes
    if "sha256" not in changes:
        head["sha256"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in head["sha256"]}
    head["digest"] = hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps(head))


def run_python(code, *arguments, **options):
    """Run Python code in a process that can import the library and the tests; the arguments are its sys.argv[1:]."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, **options)
