"""Assignment 14: a statistic of a changed distribution, a truncation to repair, the settings of a sampler."""

import numpy as np

from tools.course.papers.problems import derive, measure, number, pick, repair


def derivation(rng):
    tau, kappa, mix = number(rng, 0.6, 1.8), number(rng, 0.2, 0.9), number(rng, 0.05, 0.4)
    order = pick(rng, 0.5, 1.5, 2.0, 3.0)
    z = pick(
        rng,
        f"(u + {kappa} * n) / {tau}",
        f"u / ({tau} + n * n)",
        f"{tau} * np.tanh(u) + {kappa} * n",
        f"u * (1 + {kappa} * np.tanh(n))",
    )
    changed = pick(
        rng,
        f"(1 - {mix}) * p + {mix} / p.shape[-1]",
        f"p**{order} / (p**{order}).sum(axis=-1, keepdims=True)",
        f"(p + {mix} * p * p) / (1 + {mix} * (p * p).sum(axis=-1, keepdims=True))",
        f"{mix} * np.roll(p, 1, axis=-1) + (1 - {mix}) * p",
    )
    out = pick(
        rng,
        "-(w * np.log(w)).sum(axis=-1)",
        f"(1 - (w**{order + 0.25}).sum(axis=-1)) / {order - 0.75}",
        "np.log((w * w).sum(axis=-1))",
        "(w * np.sqrt(np.arange(w.shape[-1]))).sum(axis=-1)",
        f"(w * u).sum(axis=-1) + {kappa} * np.log(w[..., 0])",
    )
    forward = f"""
def forward(u, n):
    z = {z}
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    w = {changed}
    return {out}  # [N]
"""
    text = (
        "`forward` computes one number per row of logits `u` [N, V] and noise `n` [N, V], from a distribution that it "
        "changes first."
    )
    draw = lambda rng, rows, v: (1.5 * rng.normal(size=(rows, v)), rng.normal(size=(rows, v)))
    return derive(
        "A statistic of a changed distribution", text, forward, ["u", "n"], draw, [(1, 2), (3, 5), (6, 4), (30, 5000)]
    )


def mending(rng):
    constants = {
        "t": number(rng, 0.5, 1.8),
        "p": number(rng, 0.4, 0.85),
        "m": number(rng, 0.05, 0.2),
        "k": int(rng.integers(2, 6)),
    }
    draw = lambda n, v, size: lambda rng: (size * rng.normal(size=(n, v)),)
    return repair(rng, "14", [draw(60, 9, 1), draw(40, 23, 1.5), draw(1, 6, 2), draw(30, 7, 0.3)], constants)


def measurement(rng):
    V, n = int(rng.integers(12, 24)), 20_000
    by_share = bool(rng.integers(2))
    rule = (
        "it removed tokens less than c times as likely as the most likely one, at that temperature (c is "
        "between 0.05 and 0.3)"
        if by_share
        else "it kept only the c most likely tokens of each row (c is an integer from 4 to 9)"
    )

    def draw(rng):
        tau = rng.uniform(0.5, 1.4)
        cut = rng.uniform(0.05, 0.3) if by_share else float(rng.integers(4, 10))
        logits = rng.normal(size=(n, V)) * rng.uniform(1.0, 2.0)
        z = logits / tau
        if by_share:
            kept = z >= z.max(axis=-1, keepdims=True) + np.log(cut)
        else:
            kept = z >= -np.sort(-z, axis=-1)[:, int(cut) - 1 : int(cut)]
        tokens = np.where(kept, z + rng.gumbel(size=z.shape), -np.inf).argmax(axis=-1)
        return (logits, tokens), (tau, cut)

    text = (
        f"A server sampled the tokens [N] from the logits [N, {V}], with N = {n}. It used a temperature t between 0.5 "
        f"and 1.4, and {rule}. Find t and c. "
        "The grader accepts an error of 0.1 in t, and of " + ("0.03" if by_share else "less than 0.5") + " in c."
    )
    return measure(
        "The settings of a server", text, "logits, tokens", "[t, c]", draw, (0.1, 0.03 if by_share else 0.49)
    )
