"""Assignment 11: the gradient of an optimiser's step, an optimiser to repair, the largest stable learning rate."""

import numpy as np

from tools.course.papers.problems import derive, measure, number, pick, repair


def derivation(rng):
    b1, b2, eps = number(rng, 0.5, 0.95), number(rng, 0.6, 0.95), number(rng, 0.1, 0.5)
    rate, c, t = number(rng, 0.1, 0.9), number(rng, 0.5, 2.0), int(rng.integers(2, 7))
    cut = pick(
        rng,
        "g",
        f"g * {c} / np.sqrt({c} ** 2 + (g * g).sum())",
        f"{c} * np.tanh(g / {c})",
        f"g - {eps} * g.mean()",
        f"g + {eps} * p",
    )
    scale = pick(
        rng,
        f"np.sqrt(s / (1 - {b2} ** {t})) + {eps}",
        f"np.sqrt(s + {eps})",
        f"(s + {eps}) ** 0.25",
        f"np.sqrt(s.mean() + {eps}) + 0 * s",
        f"np.sqrt(np.sqrt(s * s.mean() + {eps}))",
    )
    ahead = pick(rng, f"a / (1 - {b1} ** {t})", f"{b1} * a + (1 - {b1}) * h", f"a + {c} * (a - m)")
    out = pick(
        rng, f"p - {rate} * n / r", f"(1 - {rate * 0.1:.3f}) * p - {rate} * n / r", f"p - {rate} * np.tanh(n / r)"
    )
    forward = f"""
def forward(p, g, m, v):
    h = {cut}
    a = {b1} * m + (1 - {b1}) * h
    s = {b2} * v + (1 - {b2}) * h * h
    n = {ahead}
    r = {scale}
    return {out}  # the parameters after the step, [D]
"""
    text = (
        "This is one step of an optimiser that is not in the book, with parameters `p`, gradient `g`, and first and "
        "second moments `m` and `v`, all [D]; v is positive. Learning an optimiser requires these gradients."
    )
    draw = lambda rng, d: (*rng.normal(size=(3, d)), rng.normal(size=d) ** 2 + 0.3)
    return derive("Through a step", text, forward, ["p", "g", "m", "v"], draw, [(1,), (2,), (9,), (150_000,)])


def mending(rng):
    constants = {
        "a": number(rng, 0.6, 0.95), "b": number(rng, 0.8, 0.99), "r": number(rng, 0.05, 0.3),
        "d": number(rng, 0.05, 0.4), "c": number(rng, 0.5, 1.5), "e": number(rng, 0.01, 0.2),
    }  # fmt: skip
    draw = lambda steps, d, size: lambda rng: (rng.normal(size=d), size * rng.normal(size=(steps, d)))
    calls = [draw(1, 3, 1), draw(4, 1, 3), draw(7, 5, 0.2), draw(20, 8, 2)]
    return repair(rng, "11", calls, constants)


def measurement(rng):
    D, beta, alpha = int(rng.integers(6, 14)), number(rng, 0.3, 0.9), number(rng, 0.2, 0.6)
    words, move = pick(
        rng,
        (f"w' = w - r (g + {beta} u), where u is the gradient of the previous step, 0 at first",
             lambda w, u, r, H: (w - r * (H @ w + beta * u), H @ w)),
            (f"u' = {beta} u - r g, then w' = w + u'",
             lambda w, u, r, H: (w + beta * u - r * (H @ w), beta * u - r * (H @ w))),
            (f"u' = {beta} u - r g, where g is the gradient at w + {beta} u, then w' = w + u'",
             lambda w, u, r, H: (w + beta * u - r * (H @ (w + beta * u)), beta * u - r * (H @ (w + beta * u)))),
            (f"u' = {beta} u + g, then w' = w - r ({alpha} u' + g)",
             lambda w, u, r, H: (w - r * (alpha * (beta * u + H @ w) + H @ w), beta * u + H @ w)),
    )  # fmt: skip

    def draw(rng):
        axes = np.linalg.qr(rng.normal(size=(D, D)))[0]
        curvatures = np.exp(rng.uniform(np.log(0.01), np.log(5), D))
        H = axes * curvatures @ axes.T
        lowest = rng.normal(size=D)
        w = lowest + rng.normal(size=(3 * D, D))
        return (w, (w - lowest) @ H + 1e-6 * rng.normal(size=w.shape)), H

    def diverges(H, rate):
        """Return whether a run moves away from the minimum; the run's start has a component along every axis."""
        w, u = np.linspace(1, 2, D), np.zeros(D)
        for _ in range(3000):
            w, u = move(w, u, rate, H)
            if not np.abs(w).max() < 1e6:
                return True
        return np.abs(w).max() > 1e3

    def judge(_, H, returned):
        sentence = near_one(returned)
        if sentence:
            return sentence
        rate = float(returned[0][0])
        if not 0 < rate < 1e6:
            return f"r must be positive and less than a million, got {rate:.4g}"
        if diverges(H, 0.98 * rate):
            return "a run with 0.98 times this learning rate diverges"
        return "" if diverges(H, 1.02 * rate) else "a run with 1.02 times this learning rate does not diverge"

    text = (
        f"A loss is quadratic, with a positive curvature along each of {D} axes. You have its gradients `g` at the "
        f"points `w`, both [{3 * D}, {D}], up to an error of a millionth. The loss is minimised with this method, with "
        f"the learning rate r:\n\n> {words}.\n\nUnless the method says otherwise, g is the gradient at w. Find the "
        "largest r for which the method does not diverge. The grader runs it with 0.98 and 1.02 times your r."
    )
    return measure("The largest stable learning rate", text, "w, g", "[r]", draw, judge=judge)


def near_one(returned: list[np.ndarray]) -> str:
    right = len(returned) == 1 and returned[0].shape == (1,) and returned[0].dtype.kind == "f"
    return "" if right else "one array of floats of shape (1,) must be returned: [r]"
