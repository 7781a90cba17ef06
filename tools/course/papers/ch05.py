"""Assignment 05: a difference formula for given points, the result of a gradient check, the noise of a function."""

import numpy as np

from tools.course.papers.problems import Problem, measure, number, pick, repair, stub


def derivation(rng):
    s, d, kappa = number(rng, -0.6, 0.6), number(rng, 0.3, 1.2), number(rng, 0.2, 0.9)
    slope = lambda k, x: k * x ** (k - 1) if k else 0.0
    bend = lambda k, x: k * (k - 1) * x ** (k - 2) if k > 1 else 0.0
    mean = lambda k: ((s + d) ** (k + 1) - s ** (k + 1)) / ((k + 1) * d)
    options = [
        (f"f'({s})", lambda k: slope(k, s)),
        (f"f'({s}) + {kappa} f({s + 1:.2f})", lambda k: slope(k, s) + kappa * (round(s + 1, 2)) ** k),
        (f"the mean of f over [{s}, {s + d:.2f}]", mean),
        (f"f({s}) - {kappa} f'({s})", lambda k: s**k - kappa * slope(k, s)),
        (f"f''({s}) + {kappa} f'({s})", lambda k: bend(k, s) + kappa * slope(k, s)),
        (f"f'({s + d:.2f}) - f'({s})", lambda k: slope(k, round(s + d, 2)) - slope(k, s)),
        (f"{kappa} f({s}) plus the mean of f over [{s}, {s + d:.2f}]", lambda k: kappa * s**k + mean(k)),
    ]
    words, moment = pick(rng, *options)
    text = (
        "You know the values of a function f only at n points, the `offsets`. Find weights w such that the sum of w[i] "
        f"f(offsets[i]) is\n\n> {words}\n\nfor every polynomial f of degree less than n. There are 1 to 6 different "
        "offsets, in any order."
    )
    contract = stub("weights(offsets)", "Return the weights [n] for offsets [n].")

    def calls(rng):
        return [((rng.permutation(np.cumsum(rng.uniform(0.4, 0.9, n))) - 1.5,), None) for n in (1, 2, 3, 4, 5, 6)]

    def judge(inputs, _, returned):
        (offsets,) = inputs
        if len(returned) != 1 or returned[0].shape != offsets.shape or returned[0].dtype.kind != "f":
            return f"one array of floats of shape {offsets.shape} must be returned"
        if not np.isfinite(returned[0]).all():
            return "the weights must be finite"
        for k in range(len(offsets)):
            products = returned[0] * offsets**k
            value, terms = float(products.sum()), float(np.abs(products).sum())
            if not abs(value - moment(k)) <= 1e-8 * (1 + terms):
                return f"with {len(offsets)} offsets, the sum for f(x) = x^{k} is {value:.6g}, which is wrong"
        return ""

    return Problem("weights", 4, "A difference formula for given points", text, contract, calls, judge)


def mending(rng):
    constants = {"a": number(rng, 0.01, 0.09), "r": number(rng, 0.02, 0.2)}

    def draw(rows, n, spoil):
        def drawn(rng):
            expected = rng.normal(size=(rows, n)) * np.exp(2 * rng.normal(size=(rows, 1)))
            found = expected + 0.3 * rng.normal(size=(rows, n))
            for array in (found, expected)[: 2 if spoil else 0]:
                array[rng.integers(rows), rng.integers(n)] = rng.choice([np.nan, np.inf])
            return found, expected

        return drawn

    calls = [draw(4, 5, False), draw(1, 1, False), draw(9, 3, True), draw(6, 4, True), draw(30, 20, False)]
    return repair(rng, "05", calls, constants)


def measurement(rng):
    kind = int(rng.integers(3))
    words = [
        "a normal distribution with standard deviation s",
        "a normal distribution whose standard deviation at x is s |f(x)|",
        "a uniform distribution from -s to s",
    ][kind]
    n = int(rng.integers(3, 6)) * 1000

    def draw(rng):
        x = np.linspace(0, 1, n)
        f = 2 + sum(rng.normal() * np.sin((k + 1) * 2 * x + rng.uniform(0, 6)) / (k + 1) for k in range(4))
        f = f + 3 * x * rng.normal() + 6
        s = float(np.exp(rng.uniform(np.log(1e-4), np.log(1e-2))))
        noise = rng.uniform(-1, 1, n) if kind == 2 else rng.normal(size=n) * (np.abs(f) if kind == 1 else 1)
        return (f + s * noise,), (s,)

    text = (
        f"`values` holds a function f at {n} equally spaced points of an interval, in order. f is smooth: the sum of a "
        f"few slow sines and a linear function. Each value has an independent random error from {words}. The error "
        "limits the accuracy of every difference quotient of f. Estimate s. It is between 0.0001 and 0.01, and the "
        "grader accepts a relative error of 8%."
    )
    return measure("How noisy is the function?", text, "values", "[s]", draw, lambda truth: (0.08 * truth[0],))
