"""Right answers and named wrong answers to the papers of `nanoeuler assign`, as in a student's answers.py.

A derivation is answered by differentiating the paper's forward pass with a small tape, which the grader does not do.
The repaired function is composed from the specification that the seed drew, and each measurement has an estimator.
"""

import re

from tools.course.papers import ch07, papers, problems

TAPE = '''
import itertools

import numpy as np

SLOPES = {  # derivatives of each ufunc by its inputs
    "add": lambda x, y: (1, 1), "subtract": lambda x, y: (1, -1), "multiply": lambda x, y: (y, x),
    "divide": lambda x, y: (1 / y, -x / y**2), "power": lambda x, n: (n * x ** (n - 1), 0),
    "negative": lambda x: (-1,), "sqrt": lambda x: (0.5 / np.sqrt(x),), "exp": lambda x: (np.exp(x),),
    "log": lambda x: (1 / x,), "log1p": lambda x: (1 / (1 + x),), "sin": lambda x: (np.cos(x),),
    "cos": lambda x: (-np.sin(x),), "tanh": lambda x: (1 / np.cosh(x) ** 2,), "arctan": lambda x: (1 / (1 + x * x),),
}


class Tape(np.lib.mixins.NDArrayOperatorsMixin):
    """A value, and how its gradient propagates back to the values from which it was computed."""

    def __init__(self, value, *parents):
        self.value, self.parents, self.grad = np.asarray(value, float), parents, 0
        self.shape = self.value.shape

    def __len__(self):
        return len(self.value)

    def __array_ufunc__(self, ufunc, method, *inputs):
        values = [x.value if isinstance(x, Tape) else x for x in inputs]
        if ufunc is np.matmul:
            backs = (lambda d: d @ values[1].T, lambda d: values[0].T @ d)
        else:
            backs = [lambda d, slope=slope: d * slope for slope in SLOPES[ufunc.__name__](*values)]
        return Tape(ufunc(*values), *((x, back) for x, back in zip(inputs, backs) if isinstance(x, Tape)))

    def __array_function__(self, function, types, args, named):
        x, n, axis = *args, named["axis"]  # np.roll
        return Tape(np.roll(x.value, n, axis), (x, lambda d: np.roll(d, -n, axis)))

    def __getitem__(self, key):
        def back(d):
            full = np.zeros(self.shape)
            np.add.at(full, key, d)
            return full

        return Tape(self.value[key], (self, back))

    @property
    def T(self):
        return Tape(self.value.T, (self, lambda d: d.T))

    def sum(self, axis=None, keepdims=False):
        def back(d):
            return np.broadcast_to(d if keepdims or axis is None else np.expand_dims(d, axis), self.shape)

        return Tape(self.value.sum(axis=axis, keepdims=keepdims), (self, back))

    def mean(self, axis=None, keepdims=False):
        return self.sum(axis, keepdims) * (1 / (self.value.size if axis is None else self.shape[axis]))

    def max(self, axis=None, keepdims=False):
        return self.value.max(axis=axis, keepdims=keepdims)  # a constant shift of the softmax: needs no gradient


def unbroadcast(d, shape):
    d = d.sum(axis=tuple(range(d.ndim - len(shape))))
    return d.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1 and d.shape[i] != 1), keepdims=True)


def gradients(source, dy, *inputs):
    names = {"np": np}
    exec(source, names)
    leaves = [Tape(x) for x in inputs]
    y = names["forward"](*leaves)
    order, seen = [], set()

    def visit(node):
        if id(node) not in seen:
            seen.add(id(node))
            for parent, _ in node.parents:
                visit(parent)
            order.append(node)

    visit(y)
    y.grad = dy
    for node in reversed(order):
        for parent, back in node.parents:
            parent.grad = parent.grad + unbroadcast(np.asarray(back(node.grad)), parent.shape)
    return tuple(leaf.grad + np.zeros(leaf.shape) for leaf in leaves)
'''

FITTED = """
def fitted(gap, grids):
    x, step = min(itertools.product(*grids), key=gap), [g[1] - g[0] for g in grids]
    while step[0] > 1e-4:
        near = itertools.product(*([v, v - h, v + h] for v, h in zip(x, step, strict=True)))
        last, x = x, min(near, key=gap)
        step = [0.6 * h for h in step] if x == last else step
    return np.array(x)
"""
MEASURED = {
    "02": """
def measured(n, d, high, low):
    def gap(x):
        t = n / (n + x[0] * LAW)
        return -np.log((1 - x[1]) * (t * high + (1 - t) * low) + x[1] / VOCABULARY).sum()

    return fitted(gap, (np.linspace(0.5, 4, 15), np.linspace(0.05, 0.4, 8)))
""",
    "03": """
def measured(logits, tokens, with_b=True):
    rows = np.arange(len(tokens))
    a, b = 1.0, 0.0
    for _ in range(30):
        z = a * logits
        z[:, TOKEN] += b
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        features = np.stack([logits, np.zeros_like(logits)])
        features[1, :, TOKEN] = 1
        means = (p * features).sum(axis=2)
        slope = (features[:, rows, tokens] - means).sum(axis=1)
        curve = np.einsum("nv,inv,jnv->ij", p, features, features) - means @ means.T
        if not with_b:
            slope[1], curve = 0, np.diag([curve[0, 0], 1])
        a, b = np.array([a, b]) + np.linalg.solve(curve, slope)
    return np.array([a, b])
""",
    "05": """
def measured(values):
    d = np.diff(values, 3)
    if KIND == 1:
        d = d / values[1:-2]
    return np.array([np.sqrt((d * d).mean() / 20) * (np.sqrt(3) if KIND == 2 else 1)])
""",
    "06": """
def measured(p, q, k):
    T, C = q.shape
    scores, rows = q @ k.T / np.sqrt(C), []
    for t in range(1, T):
        s = np.arange(t + 1)
        d = (t - s).astype(float)
        one = np.stack([scores[t, s], BIAS, np.log(p[t, s])])
        rows.append(one - one.mean(axis=1, keepdims=True))
    x = np.concatenate(rows, axis=1)
    return np.linalg.lstsq(x[:2].T, x[2], rcond=None)[0]
""",
    "07": """
def measured(s, q, k):
    T, C = q.shape
    c, t = np.arange(C), np.arange(T)[:, None]
    j, partner, sign = PAIRING
    turn = lambda x, z: x * np.cos(z) + sign * x[:, partner] * np.sin(z)

    def gap(x):
        a, b = x
        w = LAW
        return ((np.tri(T) * (turn(q, (t + b) * w) @ turn(k, t * w).T - s)) ** 2).sum()

    return fitted(gap, (np.linspace(0.2, 1.2, 21), np.linspace(-2.5, 2.5, 26)))
""",
    "08": """
depth = lambda x: AT


def measured(x):
    L = len(x)
    usual = np.abs(x).max(axis=(0, 2)) < 20 * np.median(np.abs(x[-1]), axis=1) * L
    usual &= np.abs(x).max(axis=(0, 2)) < 1000 * np.median(np.abs(x[0]))
    size = np.log((x[:, usual] ** 2).mean(axis=2)).mean(axis=1) / 2
    return np.array([np.polyfit(depth(x), size, 1)[0]])
""",
    "10": """
def measured(x, y):
    S, T, D = x.shape
    lags = range(-12, 9)
    near = np.concatenate([x[:, 12 + l : T - 8 + l] for l in lags], axis=2).reshape(-1, len(lags) * D)
    found = np.linalg.lstsq(near, y[:, 12 : T - 8].ravel(), rcond=None)[0].reshape(-1, D)
    ahead = found[13:] @ found[12] / np.linalg.norm(found[12])
    return np.array([ahead.argmax() + 1, ahead.max()])
""",
    "11": """
def measured(w, g):
    A = np.concatenate([w, np.ones((len(w), 1))], axis=1)
    H = np.linalg.lstsq(A, g, rcond=None)[0][:-1]
    top = np.linalg.eigvalsh((H + H.T) / 2).max()
    low, high = 0.0, 100.0
    for _ in range(80):
        r = (low + high) / 2
        l = r * top
        radius = np.abs(np.linalg.eigvals(np.array(RULE, float))).max()
        low, high = (r, high) if radius <= 1 else (low, r)
    return np.array([low])
""",
    "14": """
def measured(logits, tokens):
    rows = np.arange(len(tokens))
    drawn = logits[rows, tokens]
    gap = logits.max(axis=1) - drawn
    k = int((logits > drawn[:, None]).sum(axis=1).max()) + 1

    def likelihood(tau):
        z = logits / tau
        if SHARE:
            kept = z >= z.max(axis=1, keepdims=True) - gap.max() / tau - 1e-9
        else:
            kept = z >= -np.sort(-z, axis=1)[:, k - 1 : k]
        z = z - z.max(axis=1, keepdims=True)
        return z[rows, tokens].mean() - np.log((np.exp(z) * kept).sum(axis=1)).mean()

    best, step = 0.95, 0.2
    while step > 0.005:
        best = max((best - step, best, best + step), key=likelihood)
        step *= 0.6
    return np.array([best, np.exp(-gap.max() / best) if SHARE else k])
""",
    "20": """
def measured(l, role, loss):
    def gap(x):
        w = np.array([0, x[0], 1, x[1]])[role]
        whole = w.sum(axis=2 if ROWS else (1, 2)) ** POWER
        return ((((w * l).sum(axis=2) / whole.reshape(len(l), -1)).sum(axis=1) / loss - 1) ** 2).sum()

    return fitted(gap, (np.linspace(0.1, 0.8, 8), np.linspace(0.3, 3, 10)))
""",
    "25": """
def measured(M, N, K, us):
    parts = 2e-6 * M * N * K, 4e-6 * (M * K + K * N + M * N)
    gap = lambda x: (((LAUNCH + JOINED(parts[0] / x[0], parts[1] / x[1])) / us - 1) ** 2).sum()
    return fitted(gap, (np.linspace(20, 70, 26), np.linspace(1, 4, 16)))
""",
}
WORDS = """
def words(rows, columns, shape):
    R, C = shape.tolist()
    sides = [np.empty((R, C), int) for _ in range(2)]
    for side, at in zip(sides, (writes, reads), strict=True):
        row, column = np.broadcast_arrays(*at(R, C))
        W, side[row, column] = row.shape[1], np.arange(len(row))[:, None]
    parts, bank = [np.arange(R * C)], np.zeros(R * C, int)
    for bit in range(W.bit_length() - 1):  # halve each part such that every request keeps half of its lanes
        halves = []
        for part in parts:
            mates = []
            for side in sides:
                order = part[np.argsort(side.ravel()[part], kind="stable")].tolist()
                pairs = list(zip(order[::2], order[1::2], strict=True))
                mates.append(dict(pairs) | {b: a for a, b in pairs})
            half = {}
            for at in part.tolist():
                while at not in half:
                    half[at], half[mates[0][at]] = 0, 1
                    at = mates[1][mates[0][at]]
            of = np.array([half[at] for at in part.tolist()])
            halves += [part[of == 0], part[of == 1]]
            bank[part] += of << bit
        parts = halves
    word = np.empty(R * C, int)
    for k in range(W):
        word[bank == k] = k + W * np.arange(R * C // W)
    return word[rows * C + columns]
"""
CHEAPEST = """
def cheapest(q, c):
    V = len(q)
    m, g = WEIGHTS, GROUP
    n, M, C = np.bincount(g), np.bincount(g, m), CHARGE * np.bincount(g, c)
    f = np.bincount(g, FLOOR) / n

    def made(slope):
        y = (slope * n / KEPT + C) / M
        return np.maximum(0, INVERSE - f) * n / KEPT

    low = (-C * KEPT / n).max()
    high = low + 2.0**40
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if made(middle).sum() > 1 else (low, middle)
    p = made(high)
    return (p / p.sum())[g] / n[g]
"""
RULES = {  # wrong answers to every problem: changes of the arrays that the right function returns
    "the other sign": "[-x for x in arrays]",
    "one part in ten thousand": "[1.0001 * x for x in arrays]",
    "a different shape": "[x[..., None] for x in arrays]",
    "one array too many": "[*arrays, arrays[0]]",
}
CLOSE = {"one part in ten thousand"}  # allowed as an error of a measurement
WRONG = {  # {problem, or chapter of a measurement: {name: a change of the right function, `full`}}
    "backward": {
        "only the first gradient": "lambda *a: (full(*a)[0], *(0 * x for x in full(*a)[1:]))",
        "dy left out": "lambda dy, *a: full(np.ones_like(dy), *a)",
    },
    "weights": {"sorted offsets": "lambda o: full(np.sort(o))"},
    "cheapest": {
        "the shares": "lambda q, c: q / q.sum()",
        "a wave on it": "lambda q, c: full(q * (1 + 1e-4 * np.sin(np.arange(len(q)))), c)",
        "the charge left out": "lambda q, c: full(q, np.ones_like(c))",
        "only one outcome": "lambda q, c: np.eye(1, len(q))[0]",
    },
    "words": {
        "row by row": "lambda r, c, shape: r * shape[1] + c",
        "a word left free": "lambda r, c, shape: full(r, c, shape) + 1",
        "two words swapped": "lambda r, c, s: np.array([1, 0, *range(2, s.prod())])[full(r, c, s)]",
    },
    "repaired": {},
    "02": {"e left out": "lambda *a: full(*a) * np.array([1.0, 0.0])"},
    "03": {"b left out": "lambda logits, tokens: full(logits, tokens, with_b=False)"},
    "05": {"the spread of the values themselves": "lambda values: np.array([values.std()])"},
    "06": {"the bias left out": "lambda p, q, k: full(p, q, k) * np.array([1.0, 0.0])"},
    "07": {"turned the other way": "lambda *a: full(*a) * np.array([1.0, -1.0])"},
    "08": {"strange tokens": "lambda x: np.polyfit(depth(x), np.log((x**2).mean(axis=(1, 2))) / 2, 1)[:1]"},
    "10": {"one place further": "lambda x, y: full(x, y) + np.array([1.0, 0.0])"},
    "11": {"half of the rate": "lambda w, g: 0.5 * full(w, g)"},
    "14": {"temperature 1": "lambda logits, tokens: np.array([1.0, full(logits, tokens)[1]])"},
    "20": {"all tokens count": "lambda l, role, loss: np.array([1.0, 1.0])"},
    "25": {"no launch": "lambda M, N, K, us: np.array([(2e-6 * M * N * K / us).max(), 4.0])"},
}


def after(pattern: str, known: dict[str, str] | None = None, otherwise: str = ""):
    """Return a function that reads the pattern's group from a statement and translates it by `known`."""

    def read(statement):
        found = re.search(pattern, statement)
        return (known or {}).get(found[1], otherwise or found[1]) if found else otherwise

    return read


def rule(statement: str) -> str:
    """Return a step of the method as a matrix, where l is the learning rate times the curvature."""
    b = re.search(r"(0\.\d+|1\.0) u", statement)[1]
    if "the gradient of the previous step" in statement:
        return f"[[1 - l, -r * {b}], [top, 0]]"
    if "g is the gradient at w +" in statement:
        return f"[[1 - l, {b} * (1 - l)], [-l, {b} * (1 - l)]]"
    if "then w' = w + u'" in statement:
        return f"[[1 - l, {b}], [-l, {b}]]"
    a = re.search(r"r \((\S+) u' \+ g\)", statement)[1]
    return f"[[1 - l * (1 + {a}), -r * {a} * {b}], [top, {b}]]"


DISTANCES = {"the distance t - s": "d", "ln(1 + t - s)": "np.log1p(d)", "the square root of t - s": "np.sqrt(d)"}
SAID = {  # {chapter: {name in an estimator: a function that reads its value from the paper's statement}}
    "02": {
        "LAW": lambda s: re.sub(r"\b(sqrt|log)", r"np.\1", after(r"n / \(n \+ a (.*?)\)\.")(s).replace("ln", "log")),
        "VOCABULARY": after(r"V = (\d+)"),
    },
    "03": {"TOKEN": after(r"logit of token (\d+)")},
    "05": {"KIND": after(r"(\|f\(x\)\||uniform)", {"|f(x)|": "1", "uniform": "2"}, "0")},
    "06": {"BIAS": after(r"m times (.*?) (?:plus|\+) a little noise", DISTANCES, "1 / (1 + d)")},
    "07": {
        "LAW": lambda s: re.sub(r"e\^\((.*?)\)", r"np.exp(\1)", after(r"coordinate, by (.*?) radians")(s)).replace(
            "a j", "a * j"
        ),
        "PAIRING": after(r"has the coordinates (.*?);", ch07.PAIRS),
    },
    "08": {"AT": after(r"(\(l \+ 1\)\^a)", {"(l + 1)^a": "np.log(np.arange(1, len(x) + 1))"}, "np.arange(len(x))")},
    "11": {"RULE": rule},
    "14": {"SHARE": lambda s: str("times as likely" in s)},
    "20": {"ROWS": lambda s: str("each row divided" in s), "POWER": lambda s: "0.5" if "square root" in s else "1"},
    "25": {
        "LAUNCH": after(r"takes ([\d.]+)"),
        "JOINED": after(r"then (.*?) of two times", {"the larger": "np.maximum", "the sum": "np.add"}, "np.hypot"),
    },
}


def filled(source: str, names: dict[str, str]) -> str:
    """Replace the names in capitals in a source."""
    return re.sub(rf"\b({'|'.join(names)})\b", lambda name: names[name[0]], source) if names else source


def measured(chapter: str, statement: str) -> str:
    """Return the source of a chapter's estimator for the drawn statement."""
    source, statement = MEASURED[chapter], " ".join(statement.split())
    names = {name: says(statement) for name, says in SAID.get(chapter, {}).items()}
    return filled(FITTED + source if "fitted" in source else source, names)


def right(chapter: str, seed: str, student: str, monkeypatch) -> dict[str, str]:
    """Return {problem: source} of right answers; they need TAPE in front."""
    seen, real = [], problems.functions
    monkeypatch.setattr(problems, "functions", lambda source: seen.append(source) or real(source))
    paper = papers.paper(chapter, seed, student)
    monkeypatch.undo()
    makes = {
        "backward": lambda p: f"def backward(*arrays):\n    return gradients({p.given!r}, *arrays)\n",
        "weights": lambda p: weights(p.statement),
        "words": lambda p: p.given + WORDS,
        "cheapest": lambda p: cheapest(p.given),
        "measured": lambda p: measured(chapter, p.statement),
        # the function that obeys every rule, as the grader composes it
        "repaired": lambda _: [source for source in seen if source.startswith("def repaired")][-1],
    }
    return {problem.name: makes[problem.name](problem) for problem in paper}


def cheapest(given: str) -> str:
    """Return a source that makes all slopes equal by bisection, for the drawn charge."""
    m, r, s, cost = re.search(r"m = (.*)\n +r = (.*)\n +s = (.*)\n +return (.*)\n", given).groups()
    kept, floor = re.match(r"(?:([\d.]+) \* )?p(?: \+ (.*))?", r).groups()
    group = "V - 1 - np.maximum(at, V - 1 - at)" if "::-1" in s else "at // 3" if "3" in s else "at % (V // 2)"
    price, power = re.search(r"\+ ([\d.]+) \* \(c", cost), re.search(r"s\*\*([\d.]+)", cost)
    inverse = "(V * y) ** -0.5" if "m / s" in cost else "1 / (np.log(2) * y)"
    names = {
        "WEIGHTS": m,
        "KEPT": kept or "1.0",
        "FLOOR": (floor or "0 * c").replace("/ len(p)", "* np.ones(V) / V"),
        "GROUP": "np.arange(V)" if s == "r" else group.replace("at", "np.arange(V)"),
        "CHARGE": price[1] if price else "0",
        "INVERSE": f"(y / {power[1]}) ** (1 / ({power[1]} - 1))" if power else inverse,
    }
    return filled(CHEAPEST, names)


def weights(statement: str) -> str:
    """Return a source that computes weights from moments; the statement's functional becomes a formula."""
    words = re.search(r"> (.*)\n", statement)[1]
    n = r"(-?[\d.]+)"
    moments = {
        rf"f'\({n}\)": "D(k, {0})",
        rf"f'\({n}\) \+ {n} f\({n}\)": "D(k, {0}) + {1} * {2} ** k",
        rf"the mean of f over \[{n}, {n}\]": "M(k, {0}, {1})",
        rf"f\({n}\) - {n} f'\({n}\)": "({0}) ** k - {1} * D(k, {2})",
        rf"f''\({n}\) \+ {n} f'\({n}\)": "D2(k, {0}) + {1} * D(k, {2})",
        rf"f'\({n}\) - f'\({n}\)": "D(k, {0}) - D(k, {1})",
        rf"{n} f\({n}\) plus the mean of f over \[{n}, {n}\]": "{0} * ({1}) ** k + M(k, {2}, {3})",
    }
    formula = next(code.format(*m.groups()) for form, code in moments.items() if (m := re.fullmatch(form, words)))
    return f"""
def weights(offsets):
    D = lambda k, x: k * x ** (k - 1) if k else 0.0
    D2 = lambda k, x: k * (k - 1) * x ** (k - 2) if k > 1 else 0.0
    M = lambda k, a, b: (b ** (k + 1) - a ** (k + 1)) / (k + 1) / (b - a)
    n = len(offsets)
    return np.linalg.solve(offsets ** np.arange(n)[:, None], np.array([{formula} for k in range(n)], float))
"""


def wrong(chapter: str, problem: str, source: str, contract: str) -> dict[str, str]:
    """Return named wrong answers to a problem: changes of the right source, and the unchanged contract."""
    measures = problem == "measured"
    changes = {name: f"spoilt(lambda arrays: {to})" for name, to in RULES.items() if not measures or name not in CLOSE}
    changes |= WRONG[chapter if measures else problem]
    made = {name: f"{source}\n{SPOILT}\nfull = {problem}\n{problem} = {to}\n" for name, to in changes.items()}
    return made | {"as it was handed out": contract}


SPOILT = """
def spoilt(change):
    def answer(*given):
        result = full(*given)
        arrays = [np.asarray(part) for part in (result if isinstance(result, tuple) else (result,))]
        return tuple(change(arrays))

    return answer
"""


def file(answers: dict[str, str]) -> str:
    return TAPE + "\n\n" + "\n\n".join(answers.values())
