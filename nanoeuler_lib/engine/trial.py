"""`engine.use`: run the engine on a reader's kernels, after each was compared with the reference in a small step."""

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

# The learning rate is large, so that an error in any term of the update shows. The eps is large too: with a small one,
# an update of a tiny gradient could change sign by rounding.
SETTINGS = TrainConfig(steps=2, warmup=0, rate=0.1, rate_end=1.0, adam_eps=0.01, decay=0.3, clip=0.1, later_heads=0.5)


def errors_of(config: ModelConfig, time: int, kernels: Module) -> dict[str, float]:
    """Return the relative errors of one training step with a reader's kernels, compared with the float64 reference.

    The step is a forward pass, a gradient over two micro-batches and an update, for two rows of `time` tokens. kernels:
    with names from `unfused.py`; the chapters' kernels do the rest. Returns {"the loss": ..., "the gradient of embed":
    ..., "embed after a step": ...}; an error may be NaN or infinite.
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
    """Make float32 models on the engine run on these kernels inside the `with` block.

    Each kernel replaces the chapters' kernel of the same name and parameter types; the library's kernels do the rest of
    the step. Before that, each is tested by itself on three odd shapes. Raises NanoEulerError for an unknown name or
    wrong types, for a kernel with wrong results, and at the end of the block if no model on the engine used the
    kernels. (A model on the CPU does not.)
    """
    unfused.check_names(kernels)
    unfused.tried(kernels, errors_of)
    unfused.offered.append(unfused.Offered(kernels))
    try:
        yield
        if not unfused.offered[-1].asked:
            raise NanoEulerError(
                "engine.use(kernels): no model on the engine ran in the block, so your kernels did not run: "
                'move a model there with device.choose("gpu").place(model)'
            )
    finally:
        unfused.offered.pop()
