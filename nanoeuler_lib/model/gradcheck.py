"""Gradient check: compare gradients with difference quotients (finite differences) in float64, tensor by tensor.

A backward pass computes dL/dx analytically. We can also measure the slope: change one number by +h, -h, +2h and -2h,
and compute the loss each time. By Taylor's theorem

    (8 (L(x+h) - L(x-h)) - (L(x+2h) - L(x-2h))) / 12h  =  L'(x) + O(h^4)

Chapter 05 derives the formula and the choice of h; chapter 10 runs the check on the whole model. `nanoeuler check`
runs it from the command line.
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
    """Hold the difference between the analytic gradient a and the numeric gradient n of one tensor.

    max_abs: largest |a - n|; max_rel: largest |a - n| / max(|a|, |n|) over elements with a != n; worst: largest
    |a - n| / (rtol * max(|a|, |n|) + atol), at most 1 if the check passes; norm_rel: ||a - n|| / ||n||.
    """

    name: str
    shape: tuple[int, ...]
    max_abs: float
    max_rel: float
    worst: float
    norm_rel: float

    @property
    def ok(self) -> bool:
        """Whether every element is within the tolerance."""
        return self.worst <= 1


def numeric_gradient(f: Callable[[], float], x: np.ndarray, h: float = STEP, order: int = 4) -> np.ndarray:
    """Measure the slope of f() with respect to each element of x by difference quotients.

    f: reads x and returns a number; x: a float64 array of any shape, changed in place
    and restored exactly; h: step; order: 2 or 4, the power of h in the error. Returns
    an array of the shape of x. Raises NanoEulerError if x is not float64. Chapter 05.
    """
    if x.dtype != np.float64:
        raise NanoEulerError(f"x must be float64, got {x.dtype}: in float32 the quotient is mostly rounding error")
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
    """Measure the difference of two gradients; it is infinite if any element is NaN or infinite.

    analytic, numeric: arrays of the same shape; rtol, atol: tolerances of `Row.worst`.
    Raises NanoEulerError if the shapes differ. Chapter 05.
    """
    if analytic.shape != numeric.shape:
        raise NanoEulerError(f"gradient of {name} must be {list(numeric.shape)}, got {list(analytic.shape)}")
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
    """Check the backward function of one layer: a pair from `ops/reference.py`, or your own.

    forward(*inputs) must return y and saved; backward(dy, saved) the gradients of the float64 inputs, in order. Other
    inputs (tokens, targets) are passed on. (y * dy).sum() for a random dy is differentiated, so every output element
    contributes. Returns a row per float64 input. Raises NanoEulerError if the number of gradients or a shape is wrong.
    """
    y, saved = forward(*inputs.values())
    dy = np.random.default_rng(seed).standard_normal(y.shape)
    analytic = backward(dy.copy(), saved)  # a backward that changes its dy in place must not change ours
    analytic = analytic if isinstance(analytic, tuple) else (analytic,)
    checked = {name: x for name, x in inputs.items() if x.dtype == np.float64}
    if len(analytic) != len(checked):
        raise NanoEulerError(f"backward must return {len(checked)} gradients, {list(checked)}, got {len(analytic)}")

    def loss():
        return float((forward(*inputs.values())[0] * dy).sum())

    return [compare(name, a, numeric_gradient(loss, x)) for (name, x), a in zip(checked.items(), analytic)]


# The model that `nanoeuler check` checks: 4 query heads share 2 key/value heads, and there are 4 prediction heads.
CHECK_CONFIG = ModelConfig(dim=16, heads=4, kv_heads=2, layers=2, context=8, vocab_size=11, predict=4, ffn=12)


def check_batch(config: ModelConfig, batch: int, time: int, seed: int, masked: float = 0.2) -> tuple:
    """Return random tokens [B, T] and targets [B, T, K]; about the fraction `masked` of the targets is -1."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, config.vocab_size, (batch, time))
    targets = rng.integers(0, config.vocab_size, (batch, time, config.predict))
    return tokens, np.where(rng.random(targets.shape) < masked, -1, targets)


@ops.again()
def check_model(
    config: ModelConfig = CHECK_CONFIG, std: float = 0.3, batch: int = 2, time: int = 7, seed: int = 0
) -> list[Row]:
    """Check the gradient of every element of every parameter tensor of a model, with the operations in use (`ops.use`).

    std: standard deviation of the matrices and of the gains' noise, because equal gains would hide a gain in the wrong
    place. batch, time: of the random tokens [B, T]. Returns a row per tensor (tolerance: DEFINITION). Chapter 10.
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


# The model that `check --device` runs: small sizes that the GPU kernels support, and an odd number of positions.
ENGINE_CONFIG = ModelConfig(dim=64, heads=2, kv_heads=1, layers=2, context=37, vocab_size=96, predict=2, ffn=176)
DEFINITION_ENGINE = (
    "against the reference in float64, per tensor: ||g - g64|| <= ||g64|| times the larger of 1e-6 and twice what "
    "NumPy's float32 is off by; tf32: times 1e-2; bfloat16: times 8e-2; float16: times 1.5e-2"
)
COARSE = {"tf32": 1e-2, "bfloat16": 8e-2, "float16": 1.5e-2}


def check_engine(placed_by: Callable[[GPT], GPT], precision: str, std: float = 0.2, seed: int = 0):
    """Compare the gradients of the GPU engine, and of NumPy in float32, with those of NumPy in float64.

    placed_by: moves a model to the GPU, `device.Device.place`; precision: as for `engine.GPT`. Returns for each tensor
    (row, error of NumPy's float32 in norm, allowed error in norm); see DEFINITION_ENGINE.
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
    """Return the rows of `check_engine` as a text table: tensor, shape, errors in norm, verdict."""
    lines = [f"{'tensor':<18} {'shape':<12} {'in norm':>8} {'float32':>8}  verdict"]
    for row, single_off, allowed in rows:
        verdict = "ok" if row.norm_rel <= allowed else f"WRONG (allowed {allowed:.1e})"
        shape = "x".join(map(str, row.shape))
        lines.append(f"{row.name:<18} {shape:<12} {row.norm_rel:8.1e} {single_off:8.1e}  {verdict}")
    return "\n".join(lines)


def table(rows: list[Row], by_norm: bool = False) -> str:
    """Return rows as a text table with verdicts. by_norm: judge the error in norm (DEFINITION_NORM), not elements."""
    lines = [f"{'tensor':<18} {'shape':<12} {'max abs':>8} {'max rel':>8} {'in norm':>8}  verdict"]
    for r in rows:
        shape = "x".join(map(str, r.shape)) or "scalar"
        times = r.norm_rel / 1e-6 if by_norm else r.worst
        verdict = "ok" if times <= 1 else f"WRONG ({times:.3g} x the tolerance)"
        lines.append(f"{r.name:<18} {shape:<12} {r.max_abs:8.1e} {r.max_rel:8.1e} {r.norm_rel:8.1e}  {verdict}")
    return "\n".join(lines)
