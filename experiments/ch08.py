"""Chapter 08: sixteen layers without the plus sign, with it, and with a norm before each; pre-norm against post-norm.

Stacks, models and training loops are the notebook's own: its cells tagged `experiment` are run here. Spread and rate of
a stack are chosen by the worst of five seeds that are not among those of the comparison; for plain descent only such
settings are eligible of which the next higher rate did not diverge either. (Without that rule the chosen settings of
two stacks diverged with other seeds.)
"""

import itertools
import math

import numpy as np

from nanoeuler_lib.machine import one_blas_thread
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
            losses = names["train_stack"](pairs[stack], spread, rate, seed, STEPS, guarded)
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


def orders(names: dict) -> list[dict]:
    """The norm before the block or after the sum, with and without warm-up, clipping and a larger embedding."""
    rows = []
    settings = [
        (order, rate, warmup, clip, 1)
        for rate, clip in ((0.01, 1.0), (0.02, 1.0), (0.02, 0.0))  # a clip of 0 is none
        for order in ("pre", "post")
        for warmup in (0, 20)
    ]
    settings += [("pre", rate, 0, 1.0, 50) for rate in (0.01, 0.02)]
    for order, rate, warmup, clip, embedding in settings:
        for seed in ORDER_SEEDS:
            with names["norm_order"](order):
                losses = names["train"](ORDER_STEPS, rate, warmup, seed, embedding, clip)
            rows.append(
                {"part": "order", "order": order, "rate": rate, "warmup": warmup, "clip": clip}
                | {"embedding": embedding, "seed": seed, "losses": [round(float(x), 4) for x in losses]}
            )
        worst = max(max(row["losses"][1:]) for row in rows[-len(ORDER_SEEDS) :])
        print(order, rate, warmup, clip, embedding, f"worst {worst:.2f}", flush=True)
    return rows


def main() -> None:
    with one_blas_thread(), np.errstate(all="ignore"):  # a rate that is too high is part of the comparison
        names = run_tagged("08_residual_stream", "experiment", "mirror")
        rows, chosen = stacks(names)
        rows += orders(names)
    config = {
        "steps": STEPS,
        "seeds": SEEDS,
        "choosing_seeds": CHOOSING_SEEDS,
        "factors": FACTORS,
        "rates": RATES,
        "chosen": chosen,
        "order_steps": ORDER_STEPS,
        "order_seeds": ORDER_SEEDS,
        "model": names["tiny"].to_dict(),
    }
    save("ch08", config, rows)


if __name__ == "__main__":
    main()
