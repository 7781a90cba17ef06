"""Assignment 06: attention with different scores and weights, attention with a window, the bias of a head."""

import math

import numpy as np

from tools.course.papers.problems import derive, measure, number, pick, repair


def derivation(rng):
    a, b, c = number(rng, 1.2, 3.0), number(rng, 0.4, 1.5), number(rng, 0.2, 0.9)
    scores = pick(
        rng,
        f"{a} * np.tanh(q @ k.T / ({a} * np.sqrt(q.shape[1])))",
        "-((q * q).sum(axis=1)[:, None] - 2 * q @ k.T + (k * k).sum(axis=1)) / (2 * np.sqrt(q.shape[1]))",
        f"{a} * q @ k.T / np.sqrt({b} + (k * k).sum(axis=1))",
        f"{a} * q @ k.T / np.sqrt({b} + (q * q).sum(axis=1, keepdims=True))",
        f"(q @ k.T + {c} * k.sum(axis=1)) / np.sqrt(q.shape[1])",
    )
    weights = pick(
        rng,
        f"e = mask * np.exp(s)\n    p = e / ({b} + e.sum(axis=1, keepdims=True))",
        f"e = mask / (1 + np.exp(-s))\n    p = e / ({b} + e.sum(axis=1, keepdims=True))",
        f"e = mask * s * s\n    p = e / ({b} + e.sum(axis=1, keepdims=True))",
        f"e = mask * np.log1p(np.exp(s))\n    p = e / np.sqrt({b} + (e * e).sum(axis=1, keepdims=True))",
    )
    window = int(rng.integers(3, 6))
    mask = pick(rng, "np.tril(np.ones((T, T)))", f"np.tri(T, T) - np.tri(T, T, -{window})", "np.tri(T, T, 1)")
    out = pick(rng, f"p @ v + {c} * v", f"p @ v * (1 + {c} * v)", f"p @ np.tanh(v) - {c} * q", f"p @ (v + {c} * k)")
    forward = f"""
def forward(q, k, v):
    T = len(q)
    mask = {mask}  # [T, T]: row t sees the columns with 1
    s = {scores}  # [T, T]
    {weights}
    return {out}  # [T, C]
"""
    text = "This is attention with one head; its scores and weights are not in the book. `q`, `k` and `v` are [T, C]."
    draw = lambda rng, t, c: tuple(rng.normal(size=(3, t, c)))
    return derive("A new attention", text, forward, ["q", "k", "v"], draw, [(1, 3), (2, 1), (7, 5), (400, 96)])


def mending(rng):
    constants = {"w": int(rng.integers(3, 7)), "b": number(rng, 0.4, 1.6), "c": number(rng, 2.0, 5.0)}
    draw = lambda t, c, size: lambda rng: tuple(size * rng.normal(size=(3, t, c)))
    return repair(rng, "06", [draw(1, 3, 1), draw(9, 5, 1), draw(23, 4, 2), draw(17, 3, 40)], constants)


def measurement(rng):
    words, shape = pick(
        rng,
        ("the distance t - s", lambda d: d),
        ("ln(1 + t - s)", np.log1p),
        ("the square root of t - s", np.sqrt),
        ("1 / (1 + t - s)", lambda d: 1 / (1 + d)),
    )
    T, C = int(rng.integers(30, 50)), int(rng.integers(6, 12))

    def draw(rng):
        q, k = rng.normal(size=(2, T, C))
        beta, slope = rng.uniform(0.3, 2.5), rng.uniform(0.05, 0.6) * rng.choice([-1, 1])
        t, s = np.arange(T)[:, None], np.arange(T)
        scores = beta * q @ k.T / math.sqrt(C) + slope * shape(np.maximum(t - s, 0)) + 0.02 * rng.normal(size=(T, T))
        e = np.where(s <= t, np.exp(scores - scores.max()), 0)
        return (e / e.sum(axis=1, keepdims=True), q, k), (beta, slope)

    text = (
        f"You have the weights `p` [{T}, {T}] of a causal head, and its `q` and `k` [{T}, {C}]. Row t of `p` is the "
        f"softmax of\n\n> b q_t k_s / sqrt({C}) + m times {words} + a little noise\n\nover all s up to t. Estimate the "
        "numbers b and m of this head. b is between 0.3 and 2.5, and m is between -0.6 and 0.6. The noise has a "
        "standard deviation of 0.02. The grader accepts an error of 0.01 in b and of 0.02 in m."
    )
    return measure("What a head adds to its scores", text, "p, q, k", "[b, m]", draw, (0.01, 0.02))
