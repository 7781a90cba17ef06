"""Chapter 04: a loss with another top, label smoothing and a penalty, and a scale in the data."""

import numpy as np

from nanoeuler_lib.school.assign.pieces import SMOOTH
from nanoeuler_lib.school.assign.problems import Problem, derive, measure, near, number, pick, repair


def paper(rng: np.random.Generator) -> list[Problem]:
    return [_derive(rng), _repair(rng), _measure(rng)]


def _derive(rng):
    inner, tau, kappa = pick(rng, SMOOTH), number(rng, 0.6, 1.9), number(rng, 0.3, 1.4)
    scale = number(rng, 0.4, 1.2)
    top = pick(
        rng,
        [
            f"np.log(np.exp({tau} * z).mean(axis=-1)) / {tau}",
            f"(z * np.exp({tau} * z)).sum(axis=-1) / np.exp({tau} * z).sum(axis=-1)",
            f"np.sqrt({tau} + (z * z).sum(axis=-1))",
            f"np.log({tau} + np.exp(z).sum(axis=-1))",
        ],
    )
    rest = pick(
        rng,
        [
            "z[:, 0]",
            "z[:, -1] * z[:, 0]",
            "z.mean(axis=-1) ** 2",
            "np.tanh(z).sum(axis=-1)",
            "(z**3).mean(axis=-1)",
        ],
    )
    forward = f"""
def forward(x, w):
    z = {inner.format(z=f"({scale} * (x @ w))")}  # [N, D] @ [D, V] -> [N, V]
    return {top} - {kappa} * {rest}  # [N]
"""
    text = (
        "A linear layer with a loss that the book does not have: `x` is [N, D], `w` is [D, V], `y` "
        "has one number a row."
    )
    draw = lambda rng, n, d, v: (rng.normal(size=(n, d)), 0.5 * rng.normal(size=(d, v)) / np.sqrt(d))
    return derive(
        "A loss of its own",
        text,
        forward,
        ["x", "w"],
        draw,
        [(1, 3, 2), (4, 5, 7), (7, 2, 3), (30, 3000, 40)],
    )


TEMPLATE = """
def loss_and_gradient(logits, targets):
    valid = targets >= 0
    z = logits / <t>
    shifted = np.exp(z - z.max(axis=-1, keepdims=True))
    p = shifted / shifted.sum(axis=-1, keepdims=True)
    lse = np.log(shifted.sum(axis=-1)) + z.max(axis=-1)
    hot = np.eye(logits.shape[-1])[np.where(valid, targets, 0)]
    {smooth}
    {penalty}
    {mean}
    losses = valid * (lse - (q * z).sum(axis=-1)) + penalty
    dz = valid[:, None] * (p - q) + dpenalty
    {wrt}
"""
CLAUSES = {
    "smooth": [
        ("The target distribution q has 1 - <e> on the target, and <e> spread evenly over all V "
         "tokens, the target among them.",
         "q = (1 - <e>) * hot + <e> / logits.shape[-1]"),
        ("The target distribution q has 1 - <e> on the target, and <e> spread evenly over the other "
         "V - 1 tokens.",
         "q = (1 - <e>) * hot + <e> * (1 - hot) / (logits.shape[-1] - 1)"),
    ],
    "penalty": [
        ("<k> times the square of a row's log-sum-exp is added to its loss, for rows with a target only.",
         "penalty = <k> * lse**2 * valid\ndpenalty = (2 * <k> * lse * valid)[:, None] * p"),
        ("<k> times the square of a row's log-sum-exp is added to its loss, for rows without a "
         "target, too.",
         "penalty = <k> * lse**2\ndpenalty = (2 * <k> * lse)[:, None] * p"),
        ("<k> times a row's log-sum-exp is added to its loss, for rows with a target only.",
         "penalty = <k> * lse * valid\ndpenalty = <k> * valid[:, None] * p"),
    ],
    "mean": [
        ("The loss is the sum over rows divided by the number of rows that have a target (by 1 if "
         "none has).",
         "count = max(int(valid.sum()), 1)"),
        ("The loss is the sum over rows divided by the number of all rows.", "count = len(targets)"),
    ],
    "wrt": [
        ("The gradient is with respect to the logits, before they are divided.",
         "return losses.sum() / count, dz / <t> / count"),
        ("The gradient is with respect to the logits divided by <t>.", "return losses.sum() / count, dz / count"),
    ],
}  # fmt: skip


def _repair(rng):
    constants = {"e": number(rng, 0.05, 0.3), "k": number(rng, 0.01, 0.09), "t": number(rng, 1.3, 2.6)}

    def draw(n, v, some):
        return lambda rng: (
            2 * rng.normal(size=(n, v)),
            np.where(rng.random(n) < some, rng.integers(0, v, n), -1),
        )

    text = (
        "`repaired(logits, targets)`, logits [N, V] and targets [N], returns a loss (a number) and its "
        "gradient [N, V]. A target of -1 "
        "means that the row has none. All logits are divided by <t>; a row's loss is log-sum-exp minus "
        "the sum of q times the divided logits."
    )
    calls = [draw(5, 7, 0.6), draw(1, 3, 1.0), draw(4, 2, 0.0), draw(40, 11, 0.7)]
    return repair(rng, "One rule broken", text, TEMPLATE, CLAUSES, calls, constants)


def _measure(rng):
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
        "Somebody changed a model's logits before the softmax: all were multiplied by a number a, and b "
        f"was added to that of token {c}. "
        f"You have the logits from before, [N, {V}] with N = {n}, and the tokens [N] that were drawn "
        "afterwards. Estimate a and b. "
        "For each a is between 0.5 and 1.6, b between -2 and 2. The grader accepts an error of 0.05 in a "
        "and of 0.12 in b."
    )
    judge = lambda _, truth, found: near("(a, b)", found, truth, (0.05, 0.12))
    return measure("Two numbers in the tokens", text, "logits, tokens", "The array [a, b].", draw, judge)
