"""Answers to the papers of `nanoeuler assign`, right ones and named wrong ones, as a student's answers.py holds them.

A derivation is answered by differentiating the paper's forward pass with a small tape, another way than the grader's;
the repaired function is put together from the specification that the seed drew; each measurement has an estimator.
"""

import re

from nanoeuler_lib.school.assign import papers, problems

TAPE = '''
import numpy as np


class Tape:
    """A value, and how a gradient goes back from it to the values that it was made of."""

    __array_ufunc__ = None

    def __init__(self, value, *parents):
        self.value, self.parents, self.grad = np.asarray(value, float), parents, 0
        self.shape, self.T_ = self.value.shape, None

    def __len__(self):
        return len(self.value)

    def __add__(self, other):
        other = wrap(other)
        return Tape(self.value + other.value, (self, lambda d: d), (other, lambda d: d))

    def __mul__(self, other):
        other = wrap(other)
        return Tape(self.value * other.value, (self, lambda d: d * other.value), (other, lambda d: d * self.value))

    def __truediv__(self, other):
        return self * wrap(other) ** -1.0

    def __rtruediv__(self, other):
        return wrap(other) * self ** -1.0

    def __pow__(self, n):
        return Tape(self.value**n, (self, lambda d: d * n * self.value ** (n - 1)))

    def __matmul__(self, other):
        other = wrap(other)
        return Tape(self.value @ other.value, (self, lambda d: d @ other.value.T), (other, lambda d: self.value.T @ d))

    def __neg__(self):
        return self * -1.0

    def __sub__(self, other):
        return self + -wrap(other)

    def __rsub__(self, other):
        return wrap(other) + -self

    __radd__, __rmul__ = __add__, __mul__

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
        return self.value.max(axis=axis, keepdims=keepdims)  # subtracted from what it is taken of: no gradient


def wrap(x):
    return x if isinstance(x, Tape) else Tape(x)


class Shim:
    SLOPES = {
        "tanh": lambda x: 1 / np.cosh(x) ** 2, "arctan": lambda x: 1 / (1 + x * x), "sin": np.cos, "exp": np.exp,
        "log": lambda x: 1 / x, "log1p": lambda x: 1 / (1 + x), "sqrt": lambda x: 0.5 / np.sqrt(x),
    }

    def __getattr__(self, name):
        if name == "roll":
            return lambda x, n, axis: Tape(np.roll(x.value, n, axis), (x, lambda d: np.roll(d, -n, axis)))
        if name not in self.SLOPES:
            return getattr(np, name)

        def call(x):
            if not isinstance(x, Tape):
                return getattr(np, name)(x)
            return Tape(getattr(np, name)(x.value), (x, lambda d: d * self.SLOPES[name](x.value)))

        return call


def unbroadcast(d, shape):
    d = d.sum(axis=tuple(range(d.ndim - len(shape))))
    return d.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1 and d.shape[i] != 1), keepdims=True)


def gradients(source, dy, *inputs):
    names = {"np": Shim()}
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

MEASURED = {
    "04": """
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
    "08": """
depth = lambda x: AT


def measured(x):
    L = len(x)
    usual = np.abs(x).max(axis=(0, 2)) < 20 * np.median(np.abs(x[-1]), axis=1) * L
    usual &= np.abs(x).max(axis=(0, 2)) < 1000 * np.median(np.abs(x[0]))
    size = np.log((x[:, usual] ** 2).mean(axis=2)).mean(axis=1) / 2
    return np.array([np.polyfit(depth(x), size, 1)[0]])
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
}
WRONG = {  # {problem, or chapter's measurement: {name: what the right function, `full`, becomes}}
    "backward": {
        "the other sign": "lambda *a: tuple(-d for d in full(*a))",
        "the first gradient alone": "lambda *a: (full(*a)[0], *(0 * x for x in full(*a)[1:]))",
        "dy left out": "lambda dy, *a: full(np.ones_like(dy), *a)",
        "another shape": "lambda *a: tuple(d[..., None] for d in full(*a))",
        "one part in a thousand": "lambda *a: tuple(1.001 * d for d in full(*a))",
        "not a number": "lambda *a: tuple(d * np.nan for d in full(*a))",
        "one array too many": "lambda *a: (*full(*a), a[0])",
    },
    "weights": {
        "the other sign": "lambda o: -full(o)",
        "sorted offsets": "lambda o: full(np.sort(o))",
        "not a number": "lambda o: full(o) * np.nan",
    },
    "repaired": {
        "one part in ten thousand": "lambda *a: tuple(1.0001 * np.asarray(x) for x in parts(full(*a)))",
        "not a number": "lambda *a: tuple(np.nan * np.asarray(x) for x in parts(full(*a)))",
    },
    "04": {"b left out": "lambda logits, tokens: full(logits, tokens, with_b=False)"},
    "05": {"the spread of the values themselves": "lambda values: np.array([values.std()])"},
    "06": {"the bias left out": "lambda p, q, k: full(p, q, k) * np.array([1.0, 0.0])"},
    "08": {
        "unusual tokens, too": "lambda x: np.array([np.polyfit(depth(x), np.log((x**2).mean(axis=(1, 2))) / 2, 1)[0]])"
    },
    "11": {
        "half of the rate": "lambda w, g: 0.5 * full(w, g)",
        "twice the rate": "lambda w, g: 2 * full(w, g)",
    },
    "14": {"temperature 1": "lambda logits, tokens: np.array([1.0, full(logits, tokens)[1]])"},
}


def constants(chapter: str, statement: str) -> dict[str, str]:
    """What an estimator must know and a paper says in its words."""
    if chapter == "04":
        return {"TOKEN": re.search(r"that of token (\d+)", statement)[1]}
    if chapter == "05":
        return {"KIND": "1" if "|f(x)|" in statement else "2" if "uniform" in statement else "0"}
    if chapter == "06":
        words = re.search(r"m times (.*) plus a little noise|m times (.*) \+ a little noise", statement)
        name = next(w for w in words.groups() if w)
        shapes = {
            "the distance t - s": "d",
            "ln(1 + t - s)": "np.log1p(d)",
            "the root of t - s": "np.sqrt(d)",
        }
        return {"BIAS": shapes.get(name, "1 / (1 + d)")}
    if chapter == "08":
        return {"AT": "np.log(np.arange(1, len(x) + 1))" if "(l + 1)^a" in statement else "np.arange(len(x))"}
    if chapter == "11":
        found = re.search(r"> (.*)\.\n", statement)[1]
        b = re.search(r"(0\.\d+|1\.0) u", found)[1]
        if "the step's gradient before" in found:
            rule = f"[[1 - l, -r * {b}], [top, 0]]"
        elif "g is the gradient at" in found:
            rule = f"[[1 - l, {b} * (1 - l)], [-l, {b} * (1 - l)]]"
        elif "then w' = w + u'" in found:
            rule = f"[[1 - l, {b}], [-l, {b}]]"
        else:
            a = re.search(r"r \((\S+) u' \+ g\)", found)[1]
            rule = f"[[1 - l * (1 + {a}), -r * {a} * {b}], [top, {b}]]"
        return {"RULE": rule}
    return {"SHARE": str("times as likely" in statement)}


def right_repairs(chapter: str, seed: str, student: str, monkeypatch) -> str:
    """The function that obeys every rule, as the grader puts it together."""
    seen, real = [], problems.functions
    monkeypatch.setattr(problems, "functions", lambda source: seen.append(source) or real(source))
    papers.paper(chapter, seed, student)
    monkeypatch.undo()
    return [source for source in seen if source.startswith("def repaired")][-1]


def right(chapter: str, seed: str, student: str, monkeypatch) -> dict[str, str]:
    """{problem: source} of right answers; they need TAPE before them."""
    made = {}
    for problem in papers.paper(chapter, seed, student):
        if problem.name == "backward":
            made["backward"] = f"def backward(*arrays):\n    return gradients({problem.given!r}, *arrays)\n"
        elif problem.name == "weights":
            made["weights"] = weights(problem.statement)
        elif problem.name == "measured":
            source = MEASURED[chapter]
            for name, value in constants(chapter, problem.statement).items():
                source = re.sub(rf"\b{name}\b", lambda _, v=value: v, source)
            made["measured"] = source
    return made | {"repaired": right_repairs(chapter, seed, student, monkeypatch)}


def weights(statement: str) -> str:
    """Weights from the moments: the functional's words as numbers."""
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
    formula = next(
        code.format(*m.groups()) for form, code in moments.items() if (m := re.fullmatch(form, words))
    )
    return f"""
def weights(offsets):
    D = lambda k, x: k * x ** (k - 1) if k else 0.0
    D2 = lambda k, x: k * (k - 1) * x ** (k - 2) if k > 1 else 0.0
    M = lambda k, a, b: (b ** (k + 1) - a ** (k + 1)) / (k + 1) / (b - a)
    n = len(offsets)
    return np.linalg.solve(offsets ** np.arange(n)[:, None], np.array([{formula} for k in range(n)], float))
"""


def wrong(chapter: str, problem: str, source: str, contract: str) -> dict[str, str]:
    """Named wrong answers to a problem, each a source made from the right one; what was handed out is one of them."""
    parts = "parts = lambda r: r if isinstance(r, tuple) else (r,)"
    changes = WRONG[chapter if problem == "measured" else problem]
    made = {
        name: f"{source}\n\n{parts}\nfull = {problem}\n{problem} = {change}\n"
        for name, change in changes.items()
    }
    return made | {"as it was handed out": contract}


def file(answers: dict[str, str]) -> str:
    return TAPE + "\n\n" + "\n\n".join(answers.values())


def contracts(chapter: str, seed: str, student: str) -> dict[str, str]:
    return {p.name: p.contract for p in papers.paper(chapter, seed, student)}
