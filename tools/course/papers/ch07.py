"""Assignment 07: scores under a different rotation, RoPE to repair, the frequencies and offset of a head."""

import numpy as np

from tools.course.papers.problems import derive, measure, number, pick, repair

PAIRS = {  # for coordinate c of C: its pair, its partner, the sign of the partner's sine
    "j and j + C/2": "c % (C // 2), (c + C // 2) % C, np.where(c < C // 2, -1, 1)",
    "2j and 2j + 1": "c // 2, c ^ 1, np.where(c % 2, 1, -1)",
    "j and C - 1 - j": "np.minimum(c, C - 1 - c), C - 1 - c, np.where(c < C // 2, -1, 1)",
}


def derivation(rng):
    a, b, r = number(rng, 0.4, 1.6), number(rng, 0.3, 0.9), number(rng, 0.02, 0.05)
    slow, bent = f"(t + {b}) ** 0.4 * w[j]", f"{r} * t * w[j] + np.sin(w[j])"
    angle = pick(rng, f"{r} * t * np.tanh(w[j])", slow, "np.log1p(t) * w[j]", f"{r} * t / (1 + w[j] ** 2)", bent)
    fades, opens = f"np.exp({b} * t * np.sin(w[j]) / T)", f"1 / (1 + {b} * t * w[j] ** 2 / T)"
    size = pick(rng, fades, opens, f"1 + {b / 3:.2f} * np.cos(z)")
    outs = [f"s + {b} * q @ k.T / C", f"{a} * np.tanh(s)", "s * np.tri(T) @ k / T"]
    out = pick(rng, *outs, "s * np.tri(T) @ turn(k, g) / T", f"s - {b} * turn(q, g) @ turn(q, 1 / g).T / C")
    forward = f"""
def forward(q, k, w):
    T, C = q.shape
    t, c = np.arange(T)[:, None], np.arange(C)
    j, partner, sign = {PAIRS[pick(rng, *PAIRS)]}
    z = {angle}  # [T, C]
    g = {size}  # [T, C]
    turn = lambda x, g: g * (x * np.cos(z) + sign * x[:, partner] * np.sin(z))
    s = turn(q, g) @ turn(k, 1 / g).T / np.sqrt(C)  # [T, T]
    return {out}
"""
    text = """Queries `q` and keys `k` are [T, C] with an even C. Their coordinates are rotated and scaled in pairs; the
angles and scales depend on learnt parameters `w` [C/2]. Coordinates c and `partner[c]` are pair `j[c]`."""
    draw = lambda rng, t, c: (*rng.normal(size=(2, t, c)), rng.normal(size=c // 2))
    return derive("A new rotation", text, forward, ["q", "k", "w"], draw, [(1, 2), (2, 6), (7, 8), (150, 128)])


def mending(rng):
    R, B, L = 2 * int(rng.integers(3, 6)), int(rng.integers(20, 400)), int(rng.integers(14, 30))
    draw = lambda t, d: lambda rng: (rng.normal(size=(t, R + d)), (np.arange(t) == 0) | (rng.random(t) < 0.2))
    constants = {"R": R, "B": B, "L": L, "b": number(rng, 0.2, 0.7)}
    calls = [draw(9, 3), draw(25, 2), draw(12, 0), draw(40, 7)]
    return repair(rng, "07", calls, constants)


def measurement(rng):
    law = pick(rng, "e^(-a j)", "1 / (1 + a j)", "e^(-a j) + 1/10", "1 - a j / C")
    words, T, C = pick(rng, *PAIRS), int(rng.integers(30, 50)), 2 * int(rng.integers(4, 8))
    j, partner, sign = eval(PAIRS[words], {"np": np, "c": np.arange(C), "C": C})

    def draw(rng):
        a, b, (q, k) = rng.uniform(0.2, 1.2), rng.uniform(-2.5, 2.5), rng.normal(size=(2, T, C))
        w = {"1 - a j / C": 1 - a * j / C, "1 / (1 + a j)": 1 / (1 + a * j)}.get(
            law, np.exp(-a * j) + 0.1 * ("10" in law)
        )
        z = np.arange(T)[:, None] * w
        turn = lambda x, z: x * np.cos(z) + sign * x[:, partner] * np.sin(z)
        s = turn(q, z + b * w) @ turn(k, z).T + 0.5 * rng.normal(size=(T, T))
        return (np.tri(T) * s, q, k), (a, b)

    text = f"""`q` and `k` [{T}, {C}] are the queries and keys of a causal head before their rotation. `s` [{T}, {T}]
holds its scores, unscaled, with 0 at masked positions. With C = {C}, pair j has the coordinates {words}; it is
rotated from its lower towards its higher coordinate, by {law} radians per position. But each query is rotated as if
its position were larger by b. Each score has a random error with a standard deviation of 0.5.

Find a, between 0.2 and 1.2, and b, between -2.5 and 2.5. The grader accepts an error of 0.03 in a and of 0.1 in b."""
    return measure("The offset of the queries", text, "s, q, k", "[a, b]", draw, (0.03, 0.1))
