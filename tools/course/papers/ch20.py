"""Assignment 20: a loss on replies with a different mask, targets of conversations, the weights in a script's loss."""

import numpy as np

from tools.course.papers.pieces import SMOOTH
from tools.course.papers.problems import derive, measure, number, pick, repair


def derivation(rng):
    a, b, n = number(rng, 0.1, 0.6), number(rng, 0.2, 0.9), int(rng.integers(5, 9))
    q = int(rng.integers(2, n - 1))
    own, past = "(talk[:, None] == talk)", "(t[:, None] >= t)"
    sees = [f"{past} & {own}", f"({past} | (place < {q})) & {own}", f"{past} & ((place < {q}) | {own})"]
    read = pick(rng, "p @ x", f"p @ {pick(rng, *SMOOTH).format(z='x')}", "x * (p @ x)")
    closer, even = f"m * l + {a} * m * ((z - x @ w) ** 2).mean(axis=1)", f"each(c) / np.sqrt({b} + each(m))"
    costs = ["m * l", f"m * l + {a} * (1 - m) * l", "m * (1 - np.exp(-l)) ** 2 * l", closer]
    means = [f"each(c) / ({b} + each(m))", even, f"np.log({b} + each(np.exp({a} * c)))"]
    forward = f"""
def forward(x, w):
    t, V = np.arange(len(x)), w.shape[1]
    talk, place = t // {n}, t % {n}  # each conversation has {q} tokens of a question and {n - q} of a reply
    m = 1.0 * (place >= {q - 1}) * (place < {n - 1})  # 1 where the next token belongs to the reply
    sees = {pick(rng, *sees, f"{past} & ((place >= {q}) | {own})")}
    e = np.exp(x @ x.T / x.shape[1]) * sees
    p = e / e.sum(axis=1, keepdims=True)  # [T, T]
    z = (x + {read}) @ w  # [T, V]
    l = np.log(np.exp(z).sum(axis=1)) - z[t, (7 * t + 3) % V]
    c = {pick(rng, *costs)}
    each = lambda u: (u * (np.arange(talk[-1] + 1)[:, None] == talk)).sum(axis=1)
    return {pick(rng, *means, f"np.sqrt({b} + each(c * c))")}  # [conversations]
"""
    text = """A row contains conversations one after the other, each with a question and a reply; the last one may be
incomplete. One layer of attention and the matrix `w` [D, V] compute logits from the vectors `x` [T, D]. `forward`
returns one loss per conversation."""
    draw = lambda rng, t, d, v: (rng.normal(size=(t, d)), rng.normal(size=(d, v)) / np.sqrt(d))
    sizes = [(1, 2, 3), (n + 1, 3, 2), (2 * n, 2, 5), (190, 120, 130)]
    return derive("The loss of a reply", text, forward, ["x", "w"], draw, sizes)


def mending(rng):
    def tokens(rng, turns):
        ids, words = [], lambda: rng.integers(4, 30, rng.integers(1, 5))
        for turn in range(turns):
            ids += [0] * (turn % 3 == 0) + [1, *words(), 2, *words()] + [3] * (rng.random() < 0.7)
        return np.array(ids)

    draw = lambda turns, cut: lambda rng: (tokens(rng, turns)[:-cut],)
    calls = [draw(3, 1), draw(2, 2), draw(8, 3), draw(12, 1)]
    return repair(rng, "20", calls, {})


def measurement(rng):
    row = "each row divided by the sum of its weights before the rows are added"
    laws = ["divided by the sum of the weights", "divided by the square root of the sum of the weights", row]
    law = pick(rng, *laws)
    N, B, T = int(rng.integers(40, 70)), int(rng.integers(3, 6)), int(rng.integers(24, 40))

    def draw(rng):
        a, b, t = rng.uniform(0.1, 0.8), rng.uniform(0.3, 3.0), np.arange(T)
        asked, said = rng.integers(2, T // 2, (2, N, B, 1))
        role = np.where(t < asked, 1, 2) * (t < asked + said) + (t == asked + said - 1)
        l = rng.gamma(2.0, np.array([0.4, 1.5, 0.8, 0.4])[role] * np.exp(0.5 * rng.normal(size=(N, B, 1))))
        w = np.array([0, a, 1, b])[role]
        whole = w.sum(axis=2 if law == row else (1, 2)) ** (0.5 if "root" in law else 1)
        loss = ((w * l).sum(axis=2) / whole.reshape(N, -1)).sum(axis=1)
        return (l, role, loss * (1 + 0.002 * rng.normal(size=N))), (a, b)

    text = f"""A colleague's script fine-tunes on batches of {B} rows of {T} tokens, and you cannot see how it weights
the tokens. For {N} batches you have the surprise of each token, `l` [{N}, {B}, {T}], the token's `role` (0 padding, 1
question, 2 reply, 3 the end marker after the reply), and the `loss` [{N}], to about 0.2%. The loss is the sum of weight
times surprise over the batch, {law}. The weight is 1 for a token of a reply, 0 for padding, a for a token of a question
and b for the end marker.

Find a, between 0.1 and 0.8, and b, between 0.3 and 3. The grader accepts an error of 0.03 in a and of 0.2 in b."""
    return measure("The weights in a script's loss", text, "l, role, loss", "[a, b]", draw, (0.03, 0.2))
