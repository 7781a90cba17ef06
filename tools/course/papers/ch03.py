"""Assignment 03: a linear layer under a new loss, label smoothing with a penalty, scale and shift of logits."""

import numpy as np

from tools.course.papers.pieces import SMOOTH
from tools.course.papers.problems import derive, measure, number, pick, repair


def derivation(rng):
    inner, tau, kappa = pick(rng, *SMOOTH), number(rng, 0.6, 1.9), number(rng, 0.3, 1.4)
    scale = number(rng, 0.4, 1.2)
    top = pick(
        rng,
        f"np.log(np.exp({tau} * z).mean(axis=-1)) / {tau}",
        f"(z * np.exp({tau} * z)).sum(axis=-1) / np.exp({tau} * z).sum(axis=-1)",
        f"np.sqrt({tau} + (z * z).sum(axis=-1))",
        f"np.log({tau} + np.exp(z).sum(axis=-1))",
    )
    rest = pick(
        rng, "z[:, 0]", "z[:, -1] * z[:, 0]", "z.mean(axis=-1) ** 2", "np.tanh(z).sum(axis=-1)", "(z**3).mean(axis=-1)"
    )
    forward = f"""
def forward(x, w):
    z = {inner.format(z=f"({scale} * (x @ w))")}  # [N, D] @ [D, V] -> [N, V]
    return {top} - {kappa} * {rest}  # [N]
"""
    text = (
        "This is a linear layer with a loss that is not in the book: `x` is [N, D], `w` is [D, V], and `y` [N] has one "
        "number per row."
    )
    draw = lambda rng, n, d, v: (rng.normal(size=(n, d)), 0.5 * rng.normal(size=(d, v)) / np.sqrt(d))
    return derive("A new loss", text, forward, ["x", "w"], draw, [(1, 3, 2), (4, 5, 7), (7, 2, 3), (30, 3000, 40)])


def mending(rng):
    constants = {"e": number(rng, 0.05, 0.3), "k": number(rng, 0.01, 0.09), "t": number(rng, 1.3, 2.6)}

    def draw(n, v, some):
        return lambda rng: (2 * rng.normal(size=(n, v)), np.where(rng.random(n) < some, rng.integers(0, v, n), -1))

    calls = [draw(5, 7, 0.6), draw(1, 3, 1.0), draw(4, 2, 0.0), draw(40, 11, 0.7)]
    return repair(rng, "03", calls, constants)


def measurement(rng):
    V = int(rng.integers(9, 20))
    c = int(rng.integers(V))
    n = 20_000

    def draw(rng):
        a, b = rng.uniform(0.5, 1.6), rng.uniform(0.8, 2.0) * rng.choice([-1, 1])
        logits = rng.normal(size=(n, V)) * rng.uniform(0.8, 1.6)
        z = a * logits
        z[:, c] += b
        tokens = (z + rng.gumbel(size=z.shape)).argmax(axis=-1)
        return (logits, tokens), (a, b)

    text = (
        "Someone changed a model's logits before the softmax: all logits were multiplied by a number a, and then b was "
        f"added to the logit of token {c}. You have the original logits [N, {V}], N = {n}, and the tokens [N] that "
        "were sampled from the changed logits. Estimate a and b. a is between 0.5 and 1.6, and b is between -2 and 2. "
        "The grader accepts an error of 0.05 in a and of 0.12 in b."
    )
    return measure("Two changes to the logits", text, "logits, tokens", "[a, b]", draw, (0.05, 0.12))
