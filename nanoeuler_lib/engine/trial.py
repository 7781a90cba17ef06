"""`engine.use`: a reader's kernels in the engine, each tried in a small step beside the reference first."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from nanoeuler_lib import model
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.cuda import Module
from nanoeuler_lib.engine import unfused
from nanoeuler_lib.engine.gpt import GPT
from nanoeuler_lib.engine.memory import AdamW
from nanoeuler_lib.engine.step import Step
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import head_weights, optim

# So large a rate that every term of the update shows, so large an eps that no update hangs on the sign of a rounding.
SETTINGS = TrainConfig(steps=2, warmup=0, rate=0.1, rate_end=1.0, adam_eps=0.01, decay=0.3, clip=0.1, later_heads=0.5)


def errors_of(config: ModelConfig, time: int, kernels: Module) -> dict[str, float]:
    """What a forward pass, a gradient over two micro-batches and a step with some kernels are off by, each as a share.

    kernels: names of `unfused.py`; the others are the chapters'. Returns {"the loss": ..., "the gradient of embed":
    ..., "embed after a step": ...}, of two rows of `time` tokens; NaN or infinity stays what it is.
    """
    rng = np.random.default_rng(time)
    params = model.init(config, 0, 0.2, np.float64)
    for p in params.values():
        if p.ndim == 1:
            p[...] = rng.uniform(0.5, 1.5, p.shape)
    tokens = rng.integers(0, config.vocab_size, (2, time)) // rng.integers(1, 9, (2, time))
    targets = rng.integers(-1, config.vocab_size, (2, time, config.predict))
    where = kernels.module.where if hasattr(kernels, "module") else kernels.where
    mine = GPT(config, params, where=where, kernels=kernels)
    theirs = model.GPT(config, params)
    weights = head_weights(config, SETTINGS.later_heads)
    wanted = theirs.losses(tokens, targets)
    errors = {"the loss": _apart(mine.losses(tokens, targets), wanted)}
    with Step(mine, AdamW(config, SETTINGS, where), SETTINGS, 2, micro=1) as step:
        means = step.gradient(tokens, targets)
        _, grads = theirs.loss_and_gradients(tokens, targets, weights)
        counts = np.maximum((targets >= 0).reshape(-1, config.predict).sum(axis=0), 1)
        errors["the mean loss of a step"] = _apart(means, wanted.reshape(-1, config.predict).sum(axis=0) / counts)
        mean = step.whole_gradient()
        errors |= {f"the gradient of {name}": _apart(mean[name], g) for name, g in grads.items()}
        norm = float(np.linalg.norm(grads.flat))
        errors["the gradient's norm"] = _apart(step.apply(), norm)
    optimizer = optim.AdamW(config, replace(SETTINGS), np.float64)
    optimizer.step = 1
    optimizer.update(theirs.params, grads, list(theirs.params), optim.clip_factor(norm, SETTINGS.clip))
    moved = mine.params.host()
    return errors | {f"{name} after a step": _apart(moved[name], p) for name, p in theirs.params.items()}


def _apart(got, wanted) -> float:
    size = float(np.linalg.norm(wanted))
    return float(np.linalg.norm(np.asarray(got) - wanted)) / (size or 1.0)


@contextmanager
def use(kernels: Module):
    """Inside the `with` block models on the engine, in float32, run on these kernels.

    Each kernel of the module with the name and the types of one of the chapters' takes its place; the rest of the step
    stays the library's. Before that each is tried alone on three odd shapes. Raises NanoEulerError for a name or types
    without a place, for a kernel that computes something else, and at the block's end if no model asked for them: a
    model on the CPU does not know them.
    """
    unfused.check_names(kernels)
    unfused.tried(kernels, errors_of)
    unfused.offered.append(unfused.Offered(kernels))
    try:
        yield
        if not unfused.offered[-1].asked:
            raise NanoEulerError(
                "engine.use(kernels): no model on the engine ran in the block, so your kernels did not: "
                'device.choose("gpu").place(model) moves a model there'
            )
    finally:
        unfused.offered.pop()
