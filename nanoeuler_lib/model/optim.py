"""Optimisers: the learning-rate schedule, clipping by the global norm, AdamW and Muon for the tensors of a model."""

import math

import numpy as np

from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.model.parameters import Parameters


def learning_rate(step: int, config: TrainConfig) -> float:
    """Return the learning rate of a step: linear warm-up, then a cosine decay.

    step: 0 for the first. The rate rises linearly to `config.rate` over `config.warmup`
    steps and falls along half a cosine to `config.rate_end * config.rate` at
    `config.steps`, where it stays. Chapter 11.
    """
    if step < config.warmup:
        return config.rate * (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.rate * (config.rate_end + (1 - config.rate_end) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


def clip_factor(norm: float, limit: float) -> float:
    """Return the factor that scales a gradient down to a norm of at most `limit`.

    norm: global norm of the gradient. The factor is 1 if the norm is within the limit,
    or if limit is 0, which turns clipping off. Chapter 11.
    """
    return limit / norm if limit and norm > limit else 1.0


def moved(optimizer: "AdamW", params: Parameters, grads: Parameters, *_, **__) -> tuple[np.ndarray, ...]:
    """Return the arrays that `AdamW.update` changes, for `ops.again`."""
    return params.flat, grads.flat, optimizer.m.flat, optimizer.v.flat


class AdamW:
    """Hold the first and second moments of all parameters, `m` and `v`, and update parameters with AdamW.

    Weight decay applies to matrices (with embedding and heads), not to gains and biases: decaying the matrix after a
    gain is enough, because only their product matters. `step` counts the steps. Loshchilov and Hutter 2019; chapter 11.
    """

    def __init__(self, model: ModelConfig, config: TrainConfig, dtype=np.float32):
        self.model, self.config = model, config
        self.m, self.v = Parameters(model, dtype), Parameters(model, dtype)
        self.step = 0  # steps taken

    @ops.again(moved)
    def update(self, params: Parameters, grads: Parameters, names: list[str], factor: float) -> None:
        """Update the named tensors with their gradients times `factor`.

        First add 1 to `self.step`; then pass every name in exactly one call per step. grads is scaled in place.
        """
        c, adamw = self.config, ops.active().adamw
        rate = learning_rate(self.step - 1, c)
        for name in names:
            p, g, m, v = (t[name].reshape(-1) for t in (params, grads, self.m, self.v))
            if factor != 1.0:
                g *= factor
            decay = c.decay if params[name].ndim == 2 else 0.0
            adamw(p, g, m, v, self.step, rate, c.beta1, c.beta2, c.adam_eps, decay)


MUON_BETA = 0.95  # fraction of the momentum kept per step, Jordan et al. 2024
MUON_MATRICES = ".qkv", ".out", ".gate_up", ".down", ".up"


def moved_by_muon(name: str) -> bool:
    """Return whether Muon updates the tensor: a matrix in a block. Embedding and heads have a vector per token."""
    return name.endswith(MUON_MATRICES)


def muon_widths(name: str, model: ModelConfig) -> list[int]:
    """Return the numbers of columns of the matrices that are packed in one tensor: q, k and v, or gate and up.

    Muon orthogonalises each separately, as Jordan et al. 2024 do with q, k and v. A single matrix has one entry.
    """
    heads, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    widths = {".qkv": [heads, keys, keys], ".gate_up": [model.ffn, model.ffn], ".up": [model.ffn]}
    return widths.get(name[name.rindex(".") :], [model.dim])


class Muon(AdamW):
    """Update the matrices inside blocks with Muon, and embedding, heads, gains and biases with AdamW.

    Both use the same rate and decay. Muon keeps its momentum in `m`. Jordan et al. 2024; Liu et al. 2025; chapter A2.
    """

    @ops.again(moved)
    def update(self, params: Parameters, grads: Parameters, names: list[str], factor: float) -> None:
        """Update the named tensors with their gradients times `factor`; see `AdamW.update`."""
        rate, muon = learning_rate(self.step - 1, self.config), ops.active().muon
        AdamW.update(self, params, grads, [name for name in names if not moved_by_muon(name)], factor)
        for name in filter(moved_by_muon, names):
            g = grads[name]
            if factor != 1.0:
                g *= factor
            widths = muon_widths(name, self.model)
            muon(params[name], g, self.m[name], rate, MUON_BETA, self.config.decay, widths)


def optimizer_of(model: ModelConfig, config: TrainConfig, dtype=np.float32) -> AdamW:
    """Return a new optimiser of the kind in `config.optimizer`, "adamw" or "muon", with all moments 0."""
    return {"adamw": AdamW, "muon": Muon}[config.optimizer](model, config, dtype)
