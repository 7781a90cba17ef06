"""Chapter 08: train sixteen layers without residual connections, with them, and with norms; pre-norm against post-norm.

The stacks and their training loop are in the notebook: its cells tagged `experiment` are run here. The initial spread
and the learning rate of a stack are those with the best worst case over five seeds, which the comparison does not use.
For plain descent, a setting is only eligible if the next higher learning rate did not diverge either. (Without this
rule, the chosen settings of two stacks diverged with other seeds.)
"""

import itertools
import math
from contextlib import nullcontext
from types import SimpleNamespace
from unittest import mock

import numpy as np

from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT, gradcheck
from nanoeuler_lib.model.optim import AdamW, clip_factor
from nanoeuler_lib.ops.reference import rmsnorm_backward, rmsnorm_forward
from nanoeuler_lib.text import data
from nanoeuler_lib.text.tokenizer import Tokenizer
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

STEPS, SEEDS, CHOOSING_SEEDS = 200, [0, 1, 2, 3, 4], [95, 96, 97, 98, 99]
FACTORS = {
    "plain": (0.06, 1.0, 1.2, 1.4),
    "residual": (0.06, 1.0),
    "pre-norm": (0.06, 1.0),
}  # a, at the start
RATES = {
    "descent": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    "clipped": (0.03, 0.1, 0.3),
    "Adam": (0.001, 0.003, 0.01),
}
ORDER_STEPS, ORDER_SEEDS = 40, list(range(7))
TINY = ModelConfig(dim=32, heads=4, kv_heads=2, layers=6, context=32, vocab_size=384, predict=1)


def clipped(params: list, grads: list, rate: float) -> None:
    """A step of gradient descent whose gradient has at most the length 1."""
    length = math.sqrt(sum(float(np.sum(g * g)) for g in grads))
    for p, g in zip(params, grads, strict=True):
        p -= rate * g / max(1.0, length)


def adam():
    """A fresh Adam without decay, with the averages of the book's AdamW."""
    means, squares, step = {}, {}, 0

    def update(params, grads, rate):
        nonlocal step
        step += 1
        for i, (p, g) in enumerate(zip(params, grads, strict=True)):
            means[i] = 0.9 * means.get(i, 0) + 0.1 * g
            squares[i] = 0.95 * squares.get(i, 0) + 0.05 * g * g
            root = np.sqrt(squares[i] / (1 - 0.95**step))
            p -= rate * means[i] / (1 - 0.9**step) / (root + 1e-8)

    return update


def until_it_diverges(update):
    """The update, ended by FloatingPointError once a gradient is not finite."""

    def guarded(params, grads, rate):
        if not all(np.isfinite(g).all() for g in grads):
            raise FloatingPointError
        update(params, grads, rate)

    return guarded


def stacks(names: dict) -> tuple[list[dict], dict]:
    """Each stack with each update at its best spread and rate: rows, and what was chosen."""
    pairs = {
        "plain": (names["layer_forward"], names["layer_backward"]),
        "residual": (names["residual_forward"], names["residual_backward"]),
        "pre-norm": (names["prenorm_forward"], names["prenorm_backward"]),
    }
    updates = {"descent": lambda: names["descend"], "clipped": lambda: clipped, "Adam": adam}
    rows, chosen = [], {}

    def run(stack: str, update: str, factor: float, rate: float, seed: int) -> float:
        spread = math.sqrt(factor / math.sqrt(names["width"] * names["inner"] / 2))
        row = {
            "part": "stack",
            "stack": stack,
            "update": update,
            "factor": factor,
            "rate": rate,
            "seed": seed,
        }
        try:
            guarded = until_it_diverges(updates[update]())
            losses, _ = names["train_stack"](pairs[stack], spread, rate, seed, STEPS, guarded)
            row["end"] = round(float(losses[-5:].mean()), 5)
        except FloatingPointError:
            row["end"] = None
        rows.append(row)
        print(*(f"{row[key]!s:9}" for key in ("stack", "update", "factor", "rate", "seed", "end")), flush=True)
        return math.inf if row["end"] is None else row["end"]

    for update, rates in RATES.items():
        for stack, factors in FACTORS.items():
            if update == "clipped" and stack != "plain":
                continue  # a remedy for the stack that needs one
            worst = {}  # setting -> the worst loss of the choosing seeds
            for factor in factors:
                for rate in rates:
                    worst[factor, rate] = -math.inf
                    for seed in CHOOSING_SEEDS:
                        end = run(stack, update, factor, rate, seed)
                        worst[factor, rate] = max(worst[factor, rate], end)
                        if end == math.inf:
                            break
            above = dict(itertools.pairwise(rates))
            eligible = [
                (factor, rate)
                for factor, rate in worst
                if update != "descent" or worst.get((factor, above.get(rate)), math.inf) < math.inf
            ]
            best = min(eligible, key=worst.get)
            chosen[f"{stack}, {update}"] = best
            for seed in SEEDS:
                run(stack, update, *best, seed)
    return rows, chosen


def post_norm(x, y, rstd, residual, update, gain, eps):
    """The sum of residual and update, normalised, into both the stream x and the half-block's input y."""
    total = residual if update is None else residual + update
    y[...], (_, rstd[...], _) = rmsnorm_forward(total, gain, eps)
    x[...] = y


def post_norm_back(dx, dgain, dy, x, y, rstd, gain, eps, accumulate):
    """The gradients that arrive through x and through y add up and pass through the norm together."""
    dx[...], dgain[...] = rmsnorm_backward(dx + dy, (x / gain, rstd, gain))


def norm_order(name: str):
    """Return a context in which the model runs in the order "pre" (the library's) or "post"."""
    if name == "pre":
        return nullcontext()
    own = dict(add_rmsnorm=post_norm, add_rmsnorm_back=post_norm_back)
    composites = SimpleNamespace(**vars(ops.active()) | own)
    return mock.patch.object(ops, "active", return_value=composites)


def train(tokens: data.Tokens, rate: float, warmup: int, seed: int, embedding: float, clip: float) -> list[float]:
    """Return the losses in nats of a fresh tiny model, in float64; the rate stays constant after warm-up."""
    model = GPT(TINY, seed=seed, dtype=np.float64)
    model.params["embed"][...] *= embedding
    config = TrainConfig(steps=10**6, rate=rate, rate_end=1.0, warmup=warmup)
    optimizer, losses = AdamW(TINY, config, np.float64), []
    for step in range(ORDER_STEPS):
        batch = data.batch(tokens, np.random.default_rng([seed, step]), rows=8, time=32, predict=1)
        loss, grads = model.loss_and_gradients(*batch)
        losses.append(round(float(loss), 4))
        optimizer.step += 1
        shrink = clip_factor(float(np.linalg.norm(grads.flat)), clip)
        optimizer.update(model.params, grads, list(grads), shrink)
    return losses


def orders(text: str) -> list[dict]:
    """The norm before the block or after the sum, with and without warm-up, clipping and a larger embedding."""
    small = ModelConfig(dim=8, heads=2, kv_heads=1, layers=2, ffn=8, context=3, vocab_size=5, predict=1)
    with norm_order("post"):
        assert all(row.norm_rel < 1e-6 for row in gradcheck.check_model(small, batch=1, time=3))
    rows, tokens = [], data.tokenize(text, Tokenizer.train(text, TINY.vocab_size))
    settings = [
        (order, rate, warmup, clip, 1)
        for rate, clip in ((0.01, 1.0), (0.02, 1.0), (0.02, 0.0))  # a clip of 0 is none
        for order in ("pre", "post")
        for warmup in (0, 20)
    ]
    settings += [("pre", rate, 0, 1.0, 50) for rate in (0.01, 0.02)]
    for order, rate, warmup, clip, embedding in settings:
        for seed in ORDER_SEEDS:
            with norm_order(order):
                losses = train(tokens, rate, warmup, seed, embedding, clip)
            rows.append(
                {"part": "order", "order": order, "rate": rate, "warmup": warmup, "clip": clip}
                | {"embedding": embedding, "seed": seed, "losses": losses}
            )
        worst = max(max(row["losses"][1:]) for row in rows[-len(ORDER_SEEDS) :])
        print(order, rate, warmup, clip, embedding, f"worst {worst:.2f}", flush=True)
    return rows


def main() -> None:
    with one_blas_thread(), np.errstate(all="ignore"):  # a rate that is too high is part of the comparison
        names = run_tagged("08_residual_stream", "experiment", "mirror", "gap", "check")
        rows, chosen = stacks(names)
        rows += orders(names["text"])
    config = {
        "steps": STEPS,
        "seeds": SEEDS,
        "choosing_seeds": CHOOSING_SEEDS,
        "factors": FACTORS,
        "rates": RATES,
        "chosen": chosen,
        "order_steps": ORDER_STEPS,
        "order_seeds": ORDER_SEEDS,
        "model": TINY.to_dict(),
    }
    save("ch08", config, rows)


if __name__ == "__main__":
    main()
