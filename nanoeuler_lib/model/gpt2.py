"""The GPT-2 architecture (Radford et al. 2019) on the CPU, so that published GPT-2 weights can be used. Chapter 34.

    x = embed(tokens) + positions
    for each layer:  x = x + attention(layernorm(x));  x = x + gelu(layernorm(x) up) down
    losses of one head on layernorm(x), whose matrix is the embedding's transpose

Each product has a bias, and every query head has its own keys and values. `GPT2` inherits everything else from `GPT`.
Parameters, plans, training steps, optimisers and checkpoints work for both kinds of model: the class of the
configuration selects the shapes and the functions.
"""

import math

import numpy as np

from nanoeuler_lib.config import GPT2Config, ModelConfig
from nanoeuler_lib.model import plan as plan_module
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.model.gpt import GPT, KINDS
from nanoeuler_lib.model.parameters import Parameters, layer_tensors, parameter_shapes
from nanoeuler_lib.model.plan import Plan
from nanoeuler_lib.ops import reference

# Radford et al. 2019, table 2, by the names of the published weights: 124, 355, 774 and 1,558 million parameters
SIZES = {
    "gpt2": dict(dim=768, heads=12, layers=12, context=1024, vocab_size=50257),
    "gpt2-medium": dict(dim=1024, heads=16, layers=24, context=1024, vocab_size=50257),
    "gpt2-large": dict(dim=1280, heads=20, layers=36, context=1024, vocab_size=50257),
    "gpt2-xl": dict(dim=1600, heads=25, layers=48, context=1024, vocab_size=50257),
}


WEIGHTS = "norm1", "qkv", "out", "norm2", "up", "down"  # the tensors of a layer; each has a bias
BLOCK = (*WEIGHTS, *(f"{name}_bias" for name in WEIGHTS))


@parameter_shapes.register
def _(config: GPT2Config) -> dict[str, tuple[int, ...]]:  # type: ignore[misc]  # it is not a kind of ModelConfig
    D, F = config.dim, config.ffn
    block = dict(norm1=(D,), qkv=(D, 3 * D), out=(D, D), norm2=(D,), up=(D, F), down=(F, D))
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, D), "positions": (config.context, D)}
    for layer in range(config.layers):
        for name, shape in block.items():
            shapes |= {f"layers.{layer}.{name}": shape, f"layers.{layer}.{name}_bias": shape[-1:]}
    return shapes | {"norm_final": (D,), "norm_final_bias": (D,)}


@plan_module.shapes.register
def _(config: GPT2Config, batch: int, time: int) -> tuple[dict, dict, dict]:  # type: ignore[misc]  # as above
    N, D, F = batch * time, config.dim, config.ffn
    layer, step, scratch = plan_module.shapes.dispatch(ModelConfig)(config, batch, time)
    del layer["gate_up"], step["dgate_up"], scratch["work_qkv_weight"]
    layer |= dict(mean1=(N, 1), mean2=(N, 1), up=(N, F))  # `sigmoid` now holds sigmoid(2 u), u of GELU
    step |= dict(mean_final=(N, 1), dup=(N, F))
    scratch |= dict(work_rows=(N, max(2 * D, F)))
    return layer, step, scratch


def _divide_queries(qkv, config):
    """Divide the queries in packed qkv [N, 3D], or their gradients, by sqrt(C), which `attention` does not do."""
    qkv[:, : config.dim] *= 1 / math.sqrt(config.head_dim)


def forward(params: Parameters, plan: Plan, tokens: np.ndarray) -> None:
    """Run all layers: fill the plan's buffers up to `plan.y_final`, [N, D].

    tokens: integers [B, T], the shape of the plan.
    """
    op, x, update = plan.op, plan.layers[0].x1, None
    op.embed(x, tokens, params["embed"])
    op.positions(x, params["positions"], plan.time)
    for i, a in enumerate(plan.layers):
        w = layer_tensors(params, i, BLOCK)
        x, update = attend(op, plan, a, w, x, update)
        x, update = feed_forward(op, plan, a, w, x, update)
    gain, bias, eps = params["norm_final"], params["norm_final_bias"], plan.config.norm_eps
    op.add_layernorm(plan.x_final, plan.y_final, plan.mean_final, plan.rstd_final, x, update, gain, bias, eps)


def attend(op, plan, a, w, x, update):
    """Run the attention sublayer. Arguments and results are those of `model.gpt.attend`."""
    eps = plan.config.norm_eps
    op.add_layernorm(a.x1, a.y1, a.mean1, a.rstd1, x, update, w.norm1, w.norm1_bias, eps)
    op.affine(a.qkv, a.y1, w.qkv, w.qkv_bias)
    _divide_queries(a.qkv, plan.config)
    op.attention(a.attended, a.probs, a.softmax_stats, a.qkv, plan.config)
    op.affine(plan.update, a.attended, w.out, w.out_bias)
    return a.x1, plan.update


def feed_forward(op, plan, a, w, x, update):
    """Run the feed-forward sublayer. Arguments and results are those of `model.gpt.feed_forward`."""
    eps = plan.config.norm_eps
    op.add_layernorm(a.x2, a.y2, a.mean2, a.rstd2, x, update, w.norm2, w.norm2_bias, eps)
    op.affine(a.up, a.y2, w.up, w.up_bias)
    op.gelu(a.hidden, a.sigmoid, a.up)
    op.affine(plan.update, a.hidden, w.down, w.down_bias)
    return a.x2, plan.update


def backward(
    params: Parameters,
    grads: Parameters,
    plan: Plan,
    tokens: np.ndarray,
    targets: np.ndarray,
    scale: np.ndarray,
    accumulate: bool = False,
) -> None:
    """Compute losses and gradients after `forward`: fill `plan.losses` [N, 1] and set grads.

    grads: of (plan.losses * scale).sum(); targets: [B, T, 1], -1 for "no target"; scale: [1] or [N, 1]; accumulate: add
    to grads. The embedding is both the table and the head's matrix, so its gradient is the sum of two.
    """
    op, dx, dy, add, targets = plan.op, plan.dx, plan.dy, accumulate, targets.reshape(-1, 1)
    op.heads_loss(plan.losses, dy, grads["embed"].T, plan.y_final, params["embed"].T, targets, scale, add)
    plan.clear(dx)
    gain, dgain, dbias = params["norm_final"], grads["norm_final"], grads["norm_final_bias"]
    eps = plan.config.norm_eps
    op.add_layernorm_back(dx, dgain, dbias, dy, plan.x_final, plan.mean_final, plan.rstd_final, gain, eps, add)
    for i, a in reversed(list(enumerate(plan.layers))):
        w, dw = layer_tensors(params, i, BLOCK), layer_tensors(grads, i, BLOCK)
        feed_forward_back(op, plan, a, w, dw, dx, add)
        attend_back(op, plan, a, w, dw, dx, add)
    op.positions_back(grads["positions"], dx, plan.time, add)
    op.embed_back(grads["embed"], dx, tokens, True)


def feed_forward_back(op, plan, a, w, dw, dx, add):
    """Backpropagate through `feed_forward`. Arguments are those of `model.gpt.feed_forward_back`."""
    dy, eps = plan.dy, plan.config.norm_eps
    op.affine_back(plan.dhidden, dw.down, dw.down_bias, dx, a.hidden, w.down, add)
    op.gelu_back(plan.dup, plan.dhidden, a.sigmoid, a.up)
    op.affine_back(dy, dw.up, dw.up_bias, plan.dup, a.y2, w.up, add)
    op.add_layernorm_back(dx, dw.norm2, dw.norm2_bias, dy, a.x2, a.mean2, a.rstd2, w.norm2, eps, add)


def attend_back(op, plan, a, w, dw, dx, add):
    """Backpropagate through `attend`. Arguments are those of `model.gpt.attend_back`."""
    dy, eps = plan.dy, plan.config.norm_eps
    op.affine_back(plan.dattended, dw.out, dw.out_bias, dx, a.attended, w.out, add)
    op.attention_back(plan.dqkv, plan.dattended, a.attended, a.probs, a.softmax_stats, a.qkv, plan.config)
    _divide_queries(plan.dqkv, plan.config)
    op.affine_back(dy, dw.qkv, dw.qkv_bias, plan.dqkv, a.y1, w.qkv, add)
    op.add_layernorm_back(dx, dw.norm1, dw.norm1_bias, dy, a.x1, a.mean1, a.rstd1, w.norm1, eps, add)


class GPT2(GPT):
    """Compute logits, losses and gradients of a GPT-2; the methods are those of `GPT`. config: a `GPT2Config`."""

    @property
    def heads(self) -> np.ndarray:
        """The matrix of the prediction head, [D, V]: a view of the embedding."""
        return self.params["embed"].T

    def forward(self, plan: Plan, tokens: np.ndarray) -> None:
        """Run all layers on tokens [B, T]: the function `forward` of this module."""
        forward(self.params, plan, tokens)

    def backward(self, grads: Parameters, plan: Plan, tokens, targets, scale, *, accumulate: bool = False) -> None:
        """Compute losses and gradients after `forward`: the function `backward` of this module."""
        backward(self.params, grads, plan, tokens, targets, scale, accumulate)

    def decoder(self, ahead: int = 0) -> Decoder:
        """Return a new decoder of this model with an empty context. ahead: ignored, since GPT-2 has one head."""
        return GPT2Decoder(self)


KINDS[GPT2Config] = GPT2


class GPT2Decoder(Decoder):
    """Run a GPT-2 on one sequence like `Decoder`, with the model's own arrays, so that large models fit in memory."""

    def __init__(self, model: GPT2):
        c, p = model.config, model.params
        self.config, self.params, self.heads, self.later = c, p, model.heads, model.heads[:, c.vocab_size :]
        self.layers = [layer_tensors(p, i, BLOCK) for i in range(c.layers)]
        # keys, then values
        self.caches = [np.empty((2 * c.heads, c.context, c.head_dim), model.dtype) for _ in self.layers]
        self.gain, self.length = 1, 0
        self.stream = np.empty((0, c.dim), model.dtype)  # after each token of the last `read`, normed: [T, D]

    def _one(self, token):
        return self._many(np.array([token]))[0]

    def _many(self, tokens):
        """Append tokens [T] and return the normed residual stream after each of them, [T, D]."""
        c, p, start, T = self.config, self.params, self.length, len(tokens)
        H, C, end = c.heads, c.head_dim, start + T
        future = np.arange(end) > np.arange(start, end)[:, None]  # [T, end]
        x = p["embed"][tokens] + p["positions"][start:end]  # [T, D]
        for w, cache in zip(self.layers, self.caches):
            qkv = self._layernorm(x, w.norm1, w.norm1_bias) @ w.qkv + w.qkv_bias
            heads = qkv.reshape(T, 3 * H, C).swapaxes(0, 1)  # [3H, T, C]
            cache[:, start:end] = heads[H:]
            keys, values = cache[:H, :end], cache[H:, :end]  # [H, end, C]
            scores = np.where(future, -np.inf, heads[:H] @ keys.mT / math.sqrt(C))
            probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
            probs /= probs.sum(axis=-1, keepdims=True)
            attended = (probs @ values).swapaxes(0, 1).reshape(T, H * C)
            x += attended @ w.out + w.out_bias
            up = self._layernorm(x, w.norm2, w.norm2_bias) @ w.up + w.up_bias
            x += reference.gelu_forward(up)[0] @ w.down + w.down_bias
        self.length = end
        return self._layernorm(x, p["norm_final"], p["norm_final_bias"])

    def _layernorm(self, x, gain, bias):
        return reference.layernorm_forward(x, gain, bias, self.config.norm_eps)[0]
