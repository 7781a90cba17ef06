"""Assignment 25: a layout of a tile in shared memory, a tiled product to repair, the two rates of a GPU."""

import numpy as np

from tools.course.papers.problems import Problem, functions, measure, number, pick, repair, stub

SOURCE = "def {0}(R, C):\n    i, lane = np.arange(R * C // {1})[:, None], np.arange({1})\n    return {2}\n"


def ways(W: int) -> dict:
    """Return {words: source of the rows and columns that the W lanes of each request i access in a tile [R, C]}."""
    line, other, made = f"i * {W} + lane", f"i // 2 * {2 * W} + 2 * lane + i % 2", {}
    for words, l in ((f"{W} neighbours", line), (f"every other one of {2 * W} neighbours", other)):
        made[f"{words} of a row"] = f"({l}) // C, ({l}) % C"
        made[f"{words} of a column"] = f"({l}) % R, ({l}) // R"
    for k in (1, 2, 3, 5):
        made[f"row r + l, column (c + {k} l) mod C"] = f"i // C * {W} + lane, (i + {k} * lane) % C"
        made[f"row (r + {k} l) mod R, column c + l"] = f"(i + {k} * lane) % R, i // R * {W} + lane"
    for wide in (2**k for k in range(1, W.bit_length() - 1)):
        row, column = f"i // (C // {wide}) * {W // wide} + lane // {wide}", f"i % (C // {wide}) * {wide}"
        made[f"a patch of {W // wide} rows and {wide} columns"] = f"{row}, {column} + lane % {wide}"
    return made


def derivation(rng):
    W = pick(rng, 16, 32, 64)
    at = lambda code, R, C: np.broadcast_arrays(*functions(SOURCE.format("at", W, code))["at"](R, C))
    clash = lambda banks: (np.diff(np.sort(banks % W, axis=1)) == 0).any(axis=1)  # bank conflicts of each request
    made = ways(W)  # `plain`: the ways for which a row-major (0) or column-major (1) layout already has no conflict
    plain = {x: {k for k in (0, 1) if not clash(at(made[x], 2 * W, 2 * W)[k]).any()} for x in made}
    write, read = pick(rng, *[(x, y) for x in made for y in made if x != y and not plain[x] & plain[y]])
    given = SOURCE.format("writes", W, made[write]) + "\n\n" + SOURCE.format("reads", W, made[read])
    text = f"""An unusual GPU has {W} banks and warps of {W} lanes. Word i of shared memory, a number of 4 bytes, is in
bank i mod {W}, and a bank reads or writes one word per transaction. A block stores a tile [R, C] in R C words, without
padding. R and C are powers of two and at least {2 * W}. Requests of {W} lanes, l = 0 to {W - 1}, write the whole tile,
and further requests read it. Choose a word for each number so that every request needs only one transaction, which is
always possible. `given.py` has the lanes' rows and columns.

* A request that writes accesses {write}.
* A request that reads accesses {read}.

```python\n{given.strip()}\n```"""
    contract = stub("words(rows, columns, shape)", "Return the word [n] of each (row, column); shape is [R, C].")
    tiles = W * np.array([[2, 2], [2, 4], [4, 2]])
    calls = lambda rng: [((*np.divmod(rng.permutation(t.prod()), t[1]), t), None) for t in tiles]

    def judge(inputs, _, returned):
        rows, columns, (R, C) = inputs
        right = len(returned) == 1 and returned[0].shape == rows.shape
        if not right or not np.array_equal(np.sort(returned[0]), np.arange(R * C)):
            return f"tile of {R} x {C}: must be integers {rows.shape}, each from 0 to {R * C - 1} exactly once"
        word = np.empty((R, C), int)
        word[rows, columns] = returned[0]
        for does, code in (("writes", made[write]), ("reads", made[read])):
            row, column = at(code, int(R), int(C))
            for k in np.flatnonzero(clash(word[row, column]))[:1]:
                takes = f"{does} ({row[k, 0]}, {column[k, 0]}) to ({row[k, -1]}, {column[k, -1]}) needs"
                turns = np.bincount(word[row[k], column[k]] % W).max()
                return f"tile of {R} x {C}: the request that {takes} {turns} transactions"
        return ""

    return Problem("words", 4, "A tile without bank conflicts", text, contract, calls, judge, given)


def mending(rng):
    constants = {"s": number(rng, 0.2, 0.8)} | {name: int(rng.integers(2, 7)) for name in "mnk"}
    draw = lambda k, n: lambda rng: (rng.normal(size=(k, k)), rng.normal(size=(k, n)), rng.normal(size=n))
    calls = [draw(13, 9), draw(1, 2), draw(7, 17), draw(24, 20)]
    return repair(rng, "25", calls, constants)


def measurement(rng):
    laws = [("the larger", np.maximum), ("the sum", np.add), ("the square root of the sum of the squares", np.hypot)]
    (words, joined), n, launch = pick(rng, *laws), int(rng.integers(200, 300)), number(rng, 3, 9)

    def draw(rng):
        F, B = rng.uniform(20, 70), rng.uniform(1, 4)
        M, N, K = np.exp(rng.uniform(np.log([[1], [300], [64]]), np.log(6000), (3, n))).astype(int)
        us = launch + joined(2e-6 * M * N * K / F, 4e-6 * (M * K + K * N + M * N) / B)
        return (M, N, K, us * np.exp(0.01 * rng.normal(size=n))), (F, B)

    text = f"""On an unknown GPU, {n} matrix products were timed: `M`, `N` and `K` [{n}] are the sizes, and `us` [{n}]
the times in microseconds, accurate to about one percent. A product takes {launch} microseconds for its launch, and then
{words} of two times: the time of its 2 M N K flops at the rate F, and the time of the bytes of its three float32
matrices at the rate B. Find F, between 20 and 70 TFLOP/s, and B, between 1 and 4 TB/s. The grader accepts an error of
4% in both."""
    return measure(
        "The two rates of a GPU", text, "M, N, K, us", "[F, B]", draw, lambda truth: (0.04 * truth[0], 0.04 * truth[1])
    )
