"""Assignment 02: the best predictor under a new loss, an n-gram model to repair, the parameters of a source."""

import numpy as np

from tools.course.papers.problems import Problem, functions, measure, number, pick, repair, stub


def derivation(rng):
    a, e, k = number(rng, 0.3, 0.7), number(rng, 0.2, 0.6), number(rng, 0.5, 2.0)
    halves = "np.tile(r.reshape(2, -1).mean(axis=0), 2)"
    m = pick(rng, f"q * c**{a + 1:.2f}", f"q + {a / 9:.3f} * c", f"q * ({a} + c)")
    r = pick(rng, f"{1 - e:.2f} * p + {e} / len(p)", f"{1 - e:.2f} * p + {e} * c / c.sum()", "p")
    s = pick(rng, "r", "(r + r[::-1]) / 2", "np.repeat(r.reshape(-1, 3).mean(axis=1), 3)", halves)
    cost = pick(rng, "-(m * np.log2(s)).sum()", f"-(m * s**{a}).sum()", "(m / s).sum() / len(p)")
    given = f"""
def charge(p, q, c):
    m = {m}
    r = {r}
    s = {s}
    return {cost}{f" + {k} * (c * s).sum()" if r == "p" else ""}
"""
    text = f"""One of V outcomes is drawn, outcome j with probability `q[j]`, and `c` [V] has a positive number for each
outcome. A predictor gives probabilities `p` [V], which are not negative and have the sum 1. Its loss is not the
cross-entropy, but the charge

```python\n{given.strip()}\n```

V is a multiple of 6. Find the `p` with the lowest charge. (If the charge were the cross-entropy, this would be `q`.)
If several `p` have the lowest charge, any of them is right."""
    contract = stub(
        "cheapest(q, c)", "Return the p [V] with the lowest charge, right to a millionth. V is up to 24,000."
    )
    charge = functions(given)["charge"]

    def calls(rng):
        drawn = lambda V: (rng.dirichlet(np.full(V, 1.5)) * 0.9 + 0.1 / V, rng.uniform(0.3, 3.0, V))
        return [(drawn(V), None) for V in (6, 12, 60, 24_000)]

    def judge(inputs, _, returned):
        if len(returned) != 1 or returned[0].shape != inputs[0].shape or returned[0].dtype.kind != "f":
            return f"one array of floats of shape {inputs[0].shape} must be returned"
        p, V = returned[0], len(inputs[0])
        if not (p >= 0).all() or not abs(p.sum() - 1) <= 1e-9:
            return f"V = {V}: p must be >= 0 with the sum 1, got the sum {p.sum():.10g} and the minimum {p.min():.3g}"
        along = lambda u: float(charge(p + 1e-30j * u, *inputs).imag) / 1e-30  # a complex step: no rounding error
        mean = along(p)  # at the minimum no slope is smaller than this mean, and where p > 0 none is larger
        for j in np.random.default_rng(0).permutation(V)[:100]:
            more, size = along(np.eye(1, V, j)[0]) - mean, 1e-5 * (abs(mean) + 1e-3)
            if not more >= -size or (p[j] > 1e-6 / V and not more <= size):
                return f"V = {V}: the charge falls if outcome {j} gets {'more' if more < 0 else 'less'} probability"
        return ""

    return Problem("cheapest", 4, "The best predictor under a new loss", text, contract, calls, judge, given)


def mending(rng):
    walk = lambda rng, V, n: np.cumsum(rng.integers(0, 3, n)) % V
    draw = lambda V, n, m: lambda rng: (walk(rng, V, n), walk(rng, V, m), np.r_[0, rng.integers(1, 5, V - 1)])
    calls = [draw(4, 40, 12), draw(3, 9, 10), draw(6, 40, 12)]
    return repair(rng, "02", calls, {"s": number(rng, 0.4, 2.5)})


def measurement(rng):
    size, V, N = pick(rng, "d", "sqrt(n)", "sqrt(d)", "ln(1 + n)"), int(rng.integers(10, 20)), 20_000

    def draw(rng):
        a, e, n = rng.uniform(0.5, 4.0), rng.uniform(0.05, 0.4), rng.integers(1, 25, N)
        counts, low = rng.multinomial(n, rng.dirichlet(np.full(V, 0.3), N)), rng.dirichlet(np.full(V, 0.5), N)
        d, high = (counts > 0).sum(axis=1), counts / n[:, None]
        t = (n / (n + a * eval(size, {"n": n, "d": d, "sqrt": np.sqrt, "ln": np.log})))[:, None]
        p = (1 - e) * (t * high + (1 - t) * low) + e / V
        at = np.arange(N), (np.log(p) + rng.gumbel(size=p.shape)).argmax(axis=1)
        return (n, d, high[at], low[at]), (a, e)

    text = f"""At each of {N} positions of a text, the context has occurred `n` times before, followed by `d` different
tokens. `high` is the fraction of these n occurrences that were followed by the token that comes now, and `low` is the
probability that a shorter context gives this token. The text was sampled: among V = {V} tokens, the token that comes
now had the probability

> (1 - e) (t high + (1 - t) low) + e / V, where t = n / (n + a {size}).

Find a, between 0.5 and 4, and e, between 0.05 and 0.4. The grader accepts an error of 20% in a and of 0.03 in e."""
    return measure(
        "The parameters of the source", text, "n, d, high, low", "[a, e]", draw, lambda truth: (0.2 * truth[0], 0.03)
    )
