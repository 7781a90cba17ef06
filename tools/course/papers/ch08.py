"""Assignment 08: a new norm, a norm in groups to repair, the growth of a residual stream."""

import numpy as np

from tools.course.papers.pieces import SMOOTH
from tools.course.papers.problems import derive, measure, number, pick, repair


def derivation(rng):
    a, b, eps = number(rng, 0.2, 0.9), number(rng, 0.3, 1.2), number(rng, 0.1, 0.6)
    power = pick(rng, 3, 4, 6)
    size = pick(
        rng,
        f"np.sqrt((z * z).mean(axis=-1, keepdims=True) + {eps})",
        f"({eps} + np.sqrt((z * z).mean(axis=-1, keepdims=True) + {b}))",
        f"((z * z + {eps}) ** {power / 2}).mean(axis=-1, keepdims=True) ** {round(1 / power, 4)}",
        f"(np.log(np.exp({b} * z).mean(axis=-1, keepdims=True)) ** 2 + {eps})",
        f"np.sqrt((z * z * np.arange(1, x.shape[-1] + 1)).mean(axis=-1, keepdims=True) + {eps})",
    )
    centre = pick(
        rng,
        "x",
        f"x - {a} * x.mean(axis=-1, keepdims=True)",
        f"x - {a} * x[..., :1]",
        f"x + {a} * np.roll(x, 1, axis=-1)",
    )
    out = pick(
        rng,
        "gain * z / r",
        f"gain * z / r + {b} * x",
        f"(1 + gain) * {pick(rng, *SMOOTH).format(z='(z / r)')}",
        f"gain * z / r * ({b} + r)",
        f"{pick(rng, *SMOOTH).format(z='(gain * z / r)')} + {a} * gain",
    )
    forward = f"""
def forward(x, gain):
    z = {centre}
    r = {size}  # [..., 1]
    return {out}  # [..., D]
"""
    text = "This norm is not in the book: `x` is [..., D] with one or more axes, and `gain` is [D]."
    draw = lambda rng, *shape: (rng.normal(size=shape) + 0.3, rng.normal(size=shape[-1]))
    return derive("A new norm", text, forward, ["x", "gain"], draw, [(1,), (5,), (4, 3), (2, 3, 7), (2, 3, 20_000)])


def mending(rng):
    constants = {"G": int(rng.integers(2, 5)), "e": number(rng, 0.05, 0.5), "m": number(rng, 0.3, 0.8)}
    G = constants["G"]
    draw = lambda n, d, size: lambda rng: (size * (rng.normal(size=(n, d)) + 0.5), rng.normal(size=d))
    calls = [draw(5, 3 * G, 2), draw(1, G, 1), draw(4, 5 * G, 0.05), draw(7, 2 * G, 100)]
    return repair(rng, "08", calls, constants)


def measurement(rng):
    L, N, D = int(rng.integers(14, 25)), int(rng.integers(60, 90)), int(rng.integers(24, 40))
    power = bool(rng.integers(2))
    share = number(rng, 0.05, 0.2)
    law, tolerance = ("c (l + 1)^a", 0.04) if power else ("c e^(a l)", 0.006)

    def draw(rng):
        a, c = rng.uniform(0.2, 0.8) * (1 if power else 0.3), rng.uniform(0.5, 2)
        depth = np.arange(L)
        size = c * ((depth + 1) ** a if power else np.exp(a * depth))
        x = size[:, None, None] * rng.normal(size=(L, N, D)) * np.exp(0.2 * rng.normal(size=(1, N, 1)))
        strange = rng.random(N) < share
        x[L // 3 :, strange, int(rng.integers(D))] += 2000 * c
        return (x,), (a,)

    text = (
        f"`x` [{L}, {N}, {D}] is the residual stream after each of {L} layers, at {N} tokens. At most tokens, the root "
        f"mean square after layer l (0 to {L - 1}) is\n\n> {law}\n\ntimes a factor that depends on the token. But "
        f"about {share:.0%} of the tokens are unusual: from some layer on, one of their coordinates is enormous, as in "
        f"many trained models. Estimate a. The grader accepts an error of {tolerance}."
    )
    return measure("How fast does the stream grow?", text, "x", "[a]", draw, (tolerance,))
