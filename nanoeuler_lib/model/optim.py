"""The optimiser: learning-rate schedule, clipping by the global norm, AdamW and Muon over the tensors of a model."""

import math

import numpy as np

from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.model.parameters import Parameters


def learning_rate(step: int, config: TrainConfig) -> float:
    """The rate of step 0, 1, ...: linear warm-up to `rate`, then half a cosine down to `rate_end * rate`."""
    if step < config.warmup:
        return config.rate * (step + 1) / config.warmup
    done = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.rate * (config.rate_end + (1 - config.rate_end) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


def clip_factor(norm: float, limit: float) -> float:
    """What to multiply a gradient of this global norm by, so that its norm is at most `limit`; 1 if limit is 0."""
    return limit / norm if limit and norm > limit else 1.0


def moved(optimizer: "AdamW", params: Parameters, grads: Parameters, *_, **__) -> tuple[np.ndarray, ...]:
    """The arrays that an update changes."""
    return params.flat, grads.flat, optimizer.m.flat, optimizer.v.flat


class AdamW:
    """First and second moments of every parameter, and the step that uses them.

    Weight decay applies to matrices (the embedding and heads included) and not to the gains of RMSNorm: a gain and
    the matrix behind it make up for each other, so one of the two needs no pull. Chapter 11;
    Loshchilov and Hutter 2019.
    """

    def __init__(self, model: ModelConfig, config: TrainConfig, dtype=np.float32):
        self.model, self.config = model, config
        self.m, self.v = Parameters(model, dtype), Parameters(model, dtype)
        self.step = 0  # steps taken

    @ops.again(moved)
    def update(self, params: Parameters, grads: Parameters, names: list[str], factor: float) -> None:
        """Move the named tensors by the gradients times `factor`. Call with every name once, after `step += 1`."""
        c, adamw = self.config, ops.active().adamw
        rate = learning_rate(self.step - 1, c)
        for name in names:
            p, g, m, v = (t[name].reshape(-1) for t in (params, grads, self.m, self.v))
            if factor != 1.0:
                g *= factor
            decay = c.decay if params[name].ndim == 2 else 0.0
            adamw(p, g, m, v, self.step, rate, c.beta1, c.beta2, c.adam_eps, decay)


MUON_BETA = 0.95  # share of the momentum that stays, Jordan et al. 2024
MUON_MATRICES = ".qkv", ".out", ".gate_up", ".down", ".up"


def moved_by_muon(name: str) -> bool:
    """Whether a tensor is one of the matrices inside blocks. Those outside stand for tokens, row by row."""
    return name.endswith(MUON_MATRICES)


def muon_widths(name: str, model: ModelConfig) -> list[int]:
    """Columns of the matrices that stand side by side in one tensor: queries, keys and values, or gate and up.

    Each is orthogonalised alone, as Jordan et al. 2024 do with queries, keys and values.
    """
    heads, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    widths = {".qkv": [heads, keys, keys], ".gate_up": [model.ffn, model.ffn], ".up": [model.ffn]}
    return widths.get(name[name.rindex(".") :], [model.dim])


class Muon(AdamW):
    """Muon for the matrices inside blocks, AdamW for embedding, heads and gains; rate and decay are the same for both.

    `m` holds the momentum of Muon's matrices, whose part of `v` stays 0. Jordan et al. 2024; Liu et al. 2025.
    """

    @ops.again(moved)
    def update(self, params: Parameters, grads: Parameters, names: list[str], factor: float) -> None:
        """Move the named tensors by the gradients times `factor`. Call with every name once, after `step += 1`."""
        rate, muon = learning_rate(self.step - 1, self.config), ops.active().muon
        AdamW.update(self, params, grads, [name for name in names if not moved_by_muon(name)], factor)
        for name in filter(moved_by_muon, names):
            g = grads[name]
            if factor != 1.0:
                g *= factor
            widths = muon_widths(name, self.model)
            muon(params[name], g, self.m[name], rate, MUON_BETA, self.config.decay, widths)


def optimizer_of(model: ModelConfig, config: TrainConfig, dtype=np.float32) -> AdamW:
    """The optimiser that a configuration names, at rest."""
    return {"adamw": AdamW, "muon": Muon}[config.optimizer](model, config, dtype)
