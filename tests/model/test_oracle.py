"""The model, the optimiser and the schedule against PyTorch, an independent implementation of all of them."""

import math

import numpy as np
import oracles
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `oracle`)")
F = torch.nn.functional

from nanoeuler_lib import machine, ops  # noqa: E402
from nanoeuler_lib.config import ModelConfig, TrainConfig  # noqa: E402
from nanoeuler_lib.model import GPT, Parameters  # noqa: E402
from nanoeuler_lib.model import step as step_module  # noqa: E402
from nanoeuler_lib.model.gradcheck import CHECK_CONFIG, check_batch  # noqa: E402
from nanoeuler_lib.model.optim import AdamW, clip_factor, learning_rate  # noqa: E402
from nanoeuler_lib.training.preferences import weigher  # noqa: E402

CONFIGS = {
    "check": CHECK_CONFIG,
    "one head": ModelConfig(dim=10, heads=1, kv_heads=1, layers=1, context=9, vocab_size=5, predict=1, ffn=7),
    "groups of three": ModelConfig(dim=24, heads=6, kv_heads=2, layers=3, context=16, vocab_size=13, predict=2),
    "one key head": ModelConfig(dim=16, heads=4, kv_heads=1, layers=2, context=7, vocab_size=300, predict=3),
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def twin_logits(p: dict, config: ModelConfig, tokens):
    """Logits [B, T, K, V], by PyTorch's own operations. p: parameter tensors by their names in the library."""
    H, G, C, eps = config.heads, config.kv_heads, config.head_dim, config.norm_eps
    B, T = tokens.shape
    inverse = config.rope_theta ** (-torch.arange(0, C, 2, dtype=torch.float64) / C)
    angle = torch.outer(torch.arange(T, dtype=torch.float64), inverse)
    angle = torch.cat([angle, angle], dim=-1)  # [T, C], as Hugging Face's Llama has it

    def rope(x):
        half = torch.cat([-x[..., C // 2 :], x[..., : C // 2]], dim=-1)
        return x * angle.cos() + half * angle.sin()

    x = F.embedding(tokens, p["embed"])
    for i in range(config.layers):
        w = {name: p[f"layers.{i}.{name}"] for name in ("norm1", "qkv", "out", "norm2", "gate_up", "down")}
        y = F.rms_norm(x, (config.dim,), w["norm1"], eps)
        q, k, v = (y @ w["qkv"]).split([H * C, G * C, G * C], dim=-1)
        q, k, v = (z.view(B, T, -1, C).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True, enable_gqa=True)
        x = x + y.transpose(1, 2).reshape(B, T, H * C) @ w["out"]
        gate, up = (F.rms_norm(x, (config.dim,), w["norm2"], eps) @ w["gate_up"]).chunk(2, dim=-1)
        x = x + (F.silu(gate) * up) @ w["down"]
    return (F.rms_norm(x, (config.dim,), p["norm_final"], eps) @ p["heads"]).view(B, T, config.predict, -1)


def twin_loss(p: dict, config: ModelConfig, tokens, targets, weights):
    logits = twin_logits(p, config, tokens)
    losses = [
        weight * F.cross_entropy(logits[:, :, k].flatten(0, 1), targets[:, :, k].flatten(), ignore_index=-1)
        for k, weight in enumerate(weights)
        if (targets[:, :, k] >= 0).any()
    ]
    return sum(losses, start=torch.zeros((), dtype=torch.float64))


def twin_of(params) -> dict:
    return {name: torch.tensor(p.copy(), requires_grad=True) for name, p in params.items()}


@pytest.mark.parametrize("version", ["cpu", "plain"])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_and_gradients(name, version, seed):
    config = CONFIGS[name]
    model = GPT(config, oracles.random_parameters(config, seed))
    tokens, targets = check_batch(config, 3, config.context - seed, seed)
    targets[..., -1] = -1 if seed else targets[..., -1]  # once with a head that has no target at all
    weights = [1.0, 0.25, 0.4, 0.1][: config.predict]
    twin = twin_of(model.params)
    expected = twin_loss(twin, config, torch.tensor(tokens), torch.tensor(targets), weights)
    if expected.requires_grad:  # without any target the loss is the number 0
        expected.backward()
    with ops.use(version):
        loss, grads = model.loss_and_gradients(tokens, targets, weights)
    oracles.close(loss, expected.item(), 1e-10, "loss")
    for tensor, parameter in twin.items():
        g = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad.numpy()
        oracles.close(grads[tensor], g, 1e-10, tensor)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_loss_of_preferences(name):
    config, beta, noise = CONFIGS[name], 0.2, 0.1
    model, rng = GPT(config, oracles.random_parameters(config)), np.random.default_rng(3)
    tokens, targets = check_batch(config, 6, config.context, 3)
    reference = rng.normal(-9, 3, 6)
    twin, goals = twin_of(model.params), torch.tensor(targets[..., 0])
    chances = F.log_softmax(twin_logits(twin, config, torch.tensor(tokens))[:, :, 0], dim=-1)
    logps = (chances.gather(-1, goals.clamp(min=0)[..., None])[..., 0] * (goals >= 0)).sum(dim=1)
    gains = (logps - torch.tensor(reference)).view(3, 2)
    margin = beta * (gains[:, 0] - gains[:, 1])
    expected = (-(1 - noise) * F.logsigmoid(margin) - noise * F.logsigmoid(-margin)).mean()
    expected.backward()
    figures, grads = model.weighted_gradients(tokens, targets, weigher(reference, beta, noise))
    oracles.close(figures[0], expected.item(), 1e-10, "loss")
    for tensor, parameter in twin.items():
        oracles.close(grads[tensor], parameter.grad.numpy(), 1e-10, tensor)


def test_float32_is_close():
    config = CONFIGS["groups of three"]
    params = oracles.random_parameters(config, 0, std=0.1)
    tokens, targets = check_batch(config, 3, 16, 0)
    twin = twin_of(params)
    expected = twin_loss(twin, config, torch.tensor(tokens), torch.tensor(targets), [1.0, 0.25])
    expected.backward()
    single = oracles.random_parameters(config, 0, std=0.1, dtype=np.float32)
    loss, grads = GPT(config, single).loss_and_gradients(tokens, targets)
    oracles.close(loss, expected.item(), 1e-5)
    for tensor, parameter in twin.items():
        oracles.close(grads[tensor], parameter.grad.numpy(), 1e-5, tensor)


@pytest.mark.parametrize("version", ["cpu", "plain"])
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_training(version, clip):
    """Eight steps: loss, norm, clipping, warm-up and cosine, AdamW with decay on matrices, against torch.optim."""
    config = CONFIGS["groups of three"]
    c = TrainConfig(steps=8, warmup=3, rate=0.01, rate_end=0.2, decay=0.3, clip=clip, adam_eps=1e-6)
    model = GPT(config, oracles.random_parameters(config, 0))
    twin = twin_of(model.params)
    matrices = [p for p in twin.values() if p.ndim == 2]
    gains = [p for p in twin.values() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": c.decay}, {"params": gains, "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, lr=c.rate, betas=(c.beta1, c.beta2), eps=c.adam_eps)
    warm = torch.optim.lr_scheduler.LinearLR(theirs, 1 / c.warmup, 1.0, c.warmup - 1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, c.steps - c.warmup, c.rate * c.rate_end)
    schedule = torch.optim.lr_scheduler.SequentialLR(theirs, [warm, cosine], [c.warmup])
    ours = AdamW(config, c, np.float64)
    clipped = 0
    for step in range(c.steps):
        tokens, targets = check_batch(config, 4, 16, 100 + step)
        theirs.zero_grad()
        expected = twin_loss(twin, config, torch.tensor(tokens), torch.tensor(targets), [1.0, 0.25])
        expected.backward()
        with ops.use(version):
            loss, grads = model.loss_and_gradients(tokens, targets)
            norm = math.sqrt(sum(float((g**2).sum()) for g in grads.values()))
            ours.step += 1
            ours.update(model.params, grads, list(model.params), clip_factor(norm, c.clip))
        oracles.close(loss, expected.item(), 1e-8, f"loss of step {step + 1}")
        if clip:
            their_norm = float(torch.nn.utils.clip_grad_norm_(twin.values(), clip))
            oracles.close(norm, their_norm, 1e-8, "norm")
            clipped += norm > clip
            for p in twin.values():  # PyTorch divides by norm + 1e-6
                p.grad *= (their_norm + 1e-6) / their_norm if norm > clip else 1.0
        oracles.close(learning_rate(step, c), theirs.param_groups[0]["lr"], 1e-12, "rate")
        theirs.step()
        schedule.step()
        for name, p in twin.items():
            oracles.close(model.params[name], p.detach().numpy(), 1e-9, f"{name} after step {step + 1}")
    assert clipped >= 4 or not clip


def test_whole_steps_in_threads():
    """`step.Step`, micro-batches on two threads, against the whole batch in PyTorch."""
    config = CONFIGS["groups of three"]
    c = TrainConfig(steps=4, warmup=0, rate=0.01, batch=6, clip=0)
    model = GPT(config, oracles.random_parameters(config, 0))
    twin = twin_of(model.params)
    with pytest.MonkeyPatch.context() as patch, machine.one_blas_thread():
        patch.setattr("nanoeuler_lib.model.step.MICRO_TOKENS", 32)
        step_of = step_module.Step(model, AdamW(config, c, np.float64), c, 6, workers=2)
        tokens, targets = check_batch(config, 6, 16, 0)
        losses, norm = step_of(tokens, targets)
        step_of.pool.shutdown()
    assert step_of.micro == 2 and step_of.workers == 2
    expected = twin_loss(twin, config, torch.tensor(tokens), torch.tensor(targets), [1.0, 0.25])
    expected.backward()
    oracles.close(losses @ [1.0, 0.25], expected.item(), 1e-10)
    oracles.close(norm, math.sqrt(sum(float((p.grad**2).sum()) for p in twin.values())), 1e-10)
    total = Parameters(config, np.float64)
    for name, p in twin.items():
        total[name][...] = p.grad.numpy()
        oracles.close(step_of.grads[0][name], total[name], 1e-10, name)


def test_logits_of_every_head():
    """`GPT.logits`, and the decoder's for head 0, are those that PyTorch's loss sees."""
    config = CONFIGS["check"]
    model = GPT(config, oracles.random_parameters(config, 5))
    tokens, _ = check_batch(config, 2, 8, 5)
    for head in range(config.predict):
        targets = np.full((2, 8, config.predict), -1)
        logits = model.logits(tokens, head)
        targets[..., head] = logits.argmin(axis=-1)
        weights = np.eye(config.predict)[head]
        expected = twin_loss(twin_of(model.params), config, torch.tensor(tokens), torch.tensor(targets), weights)
        found = F.cross_entropy(torch.tensor(logits).flatten(0, 1), torch.tensor(targets[..., head]).flatten())
        oracles.close(float(found), expected.item(), 1e-12, f"head {head}")


@pytest.mark.parametrize("name", CONFIGS)
def test_decoder_equals_the_full_forward(name):
    oracles.check_decoder(CONFIGS[name])
