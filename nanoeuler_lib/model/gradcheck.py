"""Is the gradient right? Difference quotients in float64, tensor by tensor.

A backward pass claims dL/dx. Moving one number by +h, -h, +2h, -2h and looking at the loss gives the same slope
without any calculus but Taylor's:

    (8 (L(x+h) - L(x-h)) - (L(x+2h) - L(x-2h))) / 12h  =  L'(x) + O(h^4)

Chapter 05 derives the formula and the choice of h, chapter 10 runs the check on the whole model.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT, head_weights, init, loss_scale

STEP = 1e-3
DEFINITION = (
    "fourth-order central differences, float64, h = 1e-3; every element of every tensor: "
    "|analytic - numeric| <= 1e-6 * max(|analytic|, |numeric|) + 1e-12"
)
DEFINITION_NORM = "the same differences, per tensor: ||analytic - numeric|| <= 1e-6 * ||numeric||"


@dataclass(frozen=True)
class Row:
    """What a check found for one tensor.

    max_abs: largest |a - n|; max_rel: largest |a - n| / max(|a|, |n|), elements with a = n left out; worst: the
    largest |a - n| / (rtol * max(|a|, |n|) + atol), so at most 1 is a pass; norm_rel: ||a - n|| / ||n||.
    """

    name: str
    shape: tuple[int, ...]
    max_abs: float
    max_rel: float
    worst: float
    norm_rel: float

    @property
    def ok(self) -> bool:
        return self.worst <= 1


def numeric_gradient(f: Callable[[], float], x: np.ndarray, h: float = STEP, order: int = 4) -> np.ndarray:
    """Slope of f() with respect to each element of x, by difference quotients.

    f: reads x and returns a number; x: a float64 array of any shape, changed in place and put back exactly; order:
    2 or 4, the power of h in the error. Returns an array like x. Raises NanoEulerError if x is not float64.
    """
    if x.dtype != np.float64:
        raise NanoEulerError(f"x is {x.dtype}, expected float64: in float32 the quotient would be mostly rounding")
    slope = np.empty_like(x)
    for i in np.ndindex(x.shape):
        kept = x[i]
        at = {}
        for k in (1, -1, 2, -2)[: 2 if order == 2 else 4]:
            x[i] = kept + k * h
            at[k] = f()
        x[i] = kept
        slope[i] = (at[1] - at[-1]) / (2 * h)
        if order == 4:
            slope[i] = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * h)
    return slope


def compare(name: str, analytic: np.ndarray, numeric: np.ndarray, rtol: float = 1e-6, atol: float = 1e-12) -> Row:
    """How far two gradients of one shape are apart. NaN or infinity anywhere counts as infinitely far."""
    if analytic.shape != numeric.shape:
        raise NanoEulerError(f"gradient of {name} is {list(analytic.shape)}, expected {list(numeric.shape)}")
    if not (np.isfinite(analytic).all() and np.isfinite(numeric).all()):
        return Row(name, numeric.shape, np.inf, np.inf, np.inf, np.inf)
    apart = np.abs(analytic - numeric)
    size = np.maximum(np.abs(analytic), np.abs(numeric))
    relative = np.divide(apart, size, out=np.zeros_like(apart), where=apart > 0)
    norm = float(np.linalg.norm(numeric))
    norm_rel = float(np.linalg.norm(apart)) / norm if norm else (np.inf if apart.any() else 0.0)
    worst = float((apart / (rtol * size + atol)).max(initial=0))
    return Row(name, numeric.shape, float(apart.max(initial=0)), float(relative.max(initial=0)), worst, norm_rel)


def check_layer(forward: Callable, backward: Callable, inputs: dict[str, np.ndarray], seed: int = 0) -> list[Row]:
    """Check a pure pair of `ops/reference.py`, or a reader's own.

    forward(*inputs) -> y, saved; backward(dy, saved) -> the gradients of the float64 inputs, in their order (one
    array, or a tuple of arrays). Inputs that are not float64 (tokens, targets) are passed on and not checked. The
    scalar differentiated is (y * dy).sum() for a random dy, so every output element takes part.
    """
    y, saved = forward(*inputs.values())
    dy = np.random.default_rng(seed).standard_normal(y.shape)
    analytic = backward(dy.copy(), saved)  # a pass that scales dy in place must not change the oracle's
    analytic = analytic if isinstance(analytic, tuple) else (analytic,)
    checked = {name: x for name, x in inputs.items() if x.dtype == np.float64}
    if len(analytic) != len(checked):
        raise NanoEulerError(f"backward returned {len(analytic)} gradients, expected {len(checked)}: {list(checked)}")

    def loss():
        return float((forward(*inputs.values())[0] * dy).sum())

    return [compare(name, a, numeric_gradient(loss, x)) for (name, x), a in zip(checked.items(), analytic)]


# The model that `nanoeuler check` takes apart: grouped queries 4/2, four prediction heads, an odd number of positions.
CHECK_CONFIG = ModelConfig(dim=16, heads=4, kv_heads=2, layers=2, context=8, vocab_size=11, predict=4, ffn=12)


def check_batch(config: ModelConfig, batch: int, time: int, seed: int, masked: float = 0.2) -> tuple:
    """Random tokens [B, T] and targets [B, T, K], about a fifth of them -1."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, config.vocab_size, (batch, time))
    targets = rng.integers(0, config.vocab_size, (batch, time, config.predict))
    return tokens, np.where(rng.random(targets.shape) < masked, -1, targets)


@ops.again()
def check_model(
    config: ModelConfig = CHECK_CONFIG, std: float = 0.3, batch: int = 2, time: int = 7, seed: int = 0
) -> list[Row]:
    """Check every element of every parameter tensor of a model, with the operations now in use.

    std: standard deviation of the matrices; the gains are 1 plus noise of the same size, since equal gains would
    hide a gain that is used in the wrong place. Returns a row for each tensor. See DEFINITION.
    """
    model = GPT(config, init(config, seed, std, np.float64))
    rng = np.random.default_rng(seed + 1)
    for p in model.params.values():
        if p.ndim == 1:
            p += std * rng.standard_normal(p.shape)
    tokens, targets = check_batch(config, batch, time, seed + 2)
    _, grads = model.loss_and_gradients(tokens, targets)
    plan, flat_targets = model.plan(batch, time), targets.reshape(-1, config.predict)
    scale = loss_scale(targets, head_weights(config))

    def loss():
        model.forward(plan, tokens)
        plan.op.heads_loss(plan.losses, None, None, plan.y_final, model.heads, flat_targets, scale, False)
        return float((plan.losses * scale).sum())

    return [compare(name, grads[name], numeric_gradient(loss, p)) for name, p in model.params.items()]


# The model that `check --device` runs: what the GPU's kernels take, small, and an odd number of positions.
ENGINE_CONFIG = ModelConfig(dim=64, heads=2, kv_heads=1, layers=2, context=37, vocab_size=96, predict=2, ffn=176)
DEFINITION_ENGINE = (
    "against the reference in float64, per tensor: ||g - g64|| <= ||g64|| times the larger of 1e-6 and twice what "
    "NumPy's float32 is off by; tf32: times 1e-2; bfloat16: times 8e-2"
)
COARSE = {"tf32": 1e-2, "bfloat16": 8e-2}


def check_engine(placed_by: Callable[[GPT], GPT], precision: str, std: float = 0.2, seed: int = 0):
    """Compare the engine's gradients with the reference's in float64, and NumPy's float32 beside it.

    placed_by: puts a model where it is to run, `device.Device.place`. Returns (row, float32's error in norm, the error
    allowed) of each tensor. See DEFINITION_ENGINE.
    """
    params = init(ENGINE_CONFIG, seed, std, np.float64)
    pair = check_batch(ENGINE_CONFIG, 2, ENGINE_CONFIG.context, seed + 2)
    single = init(ENGINE_CONFIG, seed, std)
    _, expected = GPT(ENGINE_CONFIG, params).loss_and_gradients(*pair)
    _, rounded = GPT(ENGINE_CONFIG, single).loss_and_gradients(*pair)
    _, placed = placed_by(GPT(ENGINE_CONFIG, single)).loss_and_gradients(*pair)
    rows = []
    for name, g in expected.items():
        single_off = compare(name, rounded[name], g).norm_rel
        allowed = COARSE.get(precision, max(1e-6, 2 * single_off))
        rows.append((compare(name, placed[name], g), single_off, allowed))
    return rows


def engine_table(rows: list[tuple[Row, float, float]]) -> str:
    """The rows of `check_engine` as text."""
    lines = [f"{'tensor':<18} {'shape':<12} {'in norm':>8} {'float32':>8}  verdict"]
    for row, single_off, allowed in rows:
        verdict = "ok" if row.norm_rel <= allowed else f"WRONG (allowed {allowed:.1e})"
        shape = "x".join(map(str, row.shape))
        lines.append(f"{row.name:<18} {shape:<12} {row.norm_rel:8.1e} {single_off:8.1e}  {verdict}")
    return "\n".join(lines)


def table(rows: list[Row], by_norm: bool = False) -> str:
    """The rows as text: name, shape, largest absolute and relative error, error in norm, verdict.

    by_norm: the verdict is about the error in norm (DEFINITION_NORM) and not about each element (DEFINITION).
    """
    lines = [f"{'tensor':<18} {'shape':<12} {'max abs':>8} {'max rel':>8} {'in norm':>8}  verdict"]
    for r in rows:
        shape = "x".join(map(str, r.shape)) or "scalar"
        times = r.norm_rel / 1e-6 if by_norm else r.worst
        verdict = "ok" if times <= 1 else f"WRONG ({times:.3g} x the tolerance)"
        lines.append(f"{r.name:<18} {shape:<12} {r.max_abs:8.1e} {r.max_rel:8.1e} {r.norm_rel:8.1e}  {verdict}")
    return "\n".join(lines)
