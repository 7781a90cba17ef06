"""Assignment 10: a model with new parts in a new order, the loss of several heads, a model that looks ahead."""

import numpy as np

from tools.course.papers.pieces import SMOOTH
from tools.course.papers.problems import derive, measure, number, pick, repair


def derivation(rng):
    a, b, eps, act = number(rng, 0.3, 0.9), number(rng, 0.3, 0.9), number(rng, 0.1, 0.6), pick(rng, *SMOOTH)
    fading = f"np.tri(T) * {b} ** np.abs(np.arange(T)[:, None] - np.arange(T))"
    past = pick(rng, "np.tri(T) / np.arange(1, T + 1)[:, None]", fading, "(np.tri(T) - np.tri(T, T, -3)) / 3")
    mixes = ["past @ y @ m", "past @ np.tanh(y @ m)", "(past @ y) * (y @ m)", "(past @ (y @ m)) @ m.T"]
    hidden = act.format(z="(y @ w)")
    feeds = [f"{hidden} @ w.T", f"({hidden} * (y @ w)) @ w.T", f"y @ w @ w.T * {act.format(z='y')}"]
    body = [
        "x = x + mix(norm(x))\n    x = x + feed(norm(x))",
        "y = norm(x)\n    x = x + mix(y) + feed(y)",
        "x = norm(x + mix(x))\n    x = norm(x + feed(x))",
        "x = x + norm(mix(norm(x)))\n    x = x + norm(feed(norm(x)))",
        f"for _ in range(2):  # the same block twice\n        x = x + mix(norm(x)) + {a} * feed(x)",
        f"x = x + feed(norm(x))\n    x = {a} * x + mix(norm(x))",
    ]
    forward = f"""
def forward(e, g, m, w):
    V, D = e.shape
    T = 2 * V + 1
    tokens, targets = np.arange(T) ** 2 % V, np.arange(1, T + 1) ** 2 % V
    past = {past}  # [T, T]
    norm = lambda x: g * x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + {eps})
    mix = lambda y: {pick(rng, *mixes, "(past * (y @ m @ y.T)) @ y / D")}
    feed = lambda y: {pick(rng, *feeds)}
    x = e[tokens]  # [T, D]
    {pick(rng, *body)}
    z = norm(x) @ e.T  # logits [T, V]
    return np.log(np.exp(z).sum(axis=-1)) - z[np.arange(T), targets]  # surprises [T]
"""
    text = """This is a whole model with different parts in a different order: `e` [V, D] is the embedding and,
transposed, the output head; `g` [D] is the gain of every norm; `m` is [D, D], and `w` is [D, F]."""

    def draw(rng, v, d, f):
        wide = rng.normal(size=(d, d)) / d, rng.normal(size=(d, f)) / np.sqrt(d * f)
        return rng.normal(size=(v, d)), rng.normal(size=d) / 2 + 1, *wide

    sizes = [(1, 2, 1), (3, 2, 5), (4, 5, 3), (120, 80, 150)]
    return derive("A new model", text, forward, ["e", "g", "m", "w"], draw, sizes)


def mending(rng):
    draw = lambda t, k, v: lambda rng: (2 * rng.normal(size=(t, k, v)), rng.integers(0, v, t))
    calls = [draw(9, 3, 4), draw(1, 2, 5), draw(3, 5, 2), draw(30, 4, 7)]
    constants = {"w": number(rng, 0.2, 0.7), "c": number(rng, 1.5, 4.0)}
    return repair(rng, "10", calls, constants)


def measurement(rng):
    T, D, S = int(rng.integers(40, 60)), int(rng.integers(3, 6)), int(rng.integers(120, 160))
    law = pick(rng, "r^i", "1 / (1 + r i)", "(1 + i)^(-1 / r)")
    weight = law.replace("^", "**").replace("r i", "r * i")

    def draw(rng):
        d, c, r = int(rng.integers(1, 9)), rng.uniform(0.05, 0.4), rng.uniform(0.3, 0.8)
        x, w = rng.normal(size=(S, T + 9, D)), rng.normal(size=D)
        read, back = x @ w / np.linalg.norm(w), eval(weight, {"r": r, "i": np.arange(T)})
        y = sum(back[i] * np.pad(read, ((0, 0), (i, 0)))[:, :T] for i in range(T)) + c * read[:, d : d + T]
        return (x[:, :T], y + 0.2 * rng.normal(size=y.shape)), (float(d), c)

    text = f"""An unknown model read {S} rows of {T} vectors, `x` [{S}, {T}, {D}], and returned one number per position,
`y` [{S}, {T}]. The number at position t should be a weighted sum of w · x over position t and the positions before it,
where w is a vector of length 1. The position i places before t has the weight {law}. You know neither w nor r. But the
mask has a mistake: the number at position t also contains w · x at position t + d, with the weight c. (The model read
more vectors after the last position, which you do not have.) Each number of `y` has a random error with a standard
deviation of 0.2.

Find d, an integer from 1 to 8, and c, between 0.05 and 0.4. The grader accepts an error of less than 0.5 in d and of
0.03 in c."""
    return measure("A model that looks ahead", text, "x, y", "[d, c]", draw, (0.49, 0.03))
