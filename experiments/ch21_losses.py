"""Chapter 21: train the chapter's small model with eight losses on the same pairs, and measure what each one reaches.

    python -m experiments.ch21_losses

The world, the reference and the pairs are those of the notebook: its cells are run up to the function `preferred`.
Each loss has an optimum of its own, computed here by Newton's method on the 16 scores of a question. All beta are set
so that this optimum is as far from the reference as pi* is, in nats, with three exceptions. The runs "means" and
"length-normalised" have the chapter's two beta. KTO has no finite optimum, so it keeps the beta of DPO.
"""

import contextlib
import io

import numpy as np

from nanoeuler_lib.machine import one_blas_thread
from tools.notebooks.cells import code_cells, python
from tools.notebooks.results import save

SEEDS = [1, 2, 3, 4, 5]
STEPS, RATE, LOOK = 250, 1e-3, 50
EPSILON, GAMMA = 0.1, 1.0  # assumed fraction of wrong labels; SimPO's target margin
WITHOUT = {"check", "claim", "library", "solution"}


def chapter() -> dict:
    """The variables of the notebook up to the cell that defines `preferred`."""
    names = {"__name__": "chapter", "own_optimum": None, "own_dpo": None}
    for cell in code_cells("21_preferences"):
        if not WITHOUT & set(cell.metadata.get("tags", ())):
            with contextlib.redirect_stdout(io.StringIO()):
                source = python(cell).replace('results("ch21_losses")', "None")  # this script's own results
                exec(compile(source, "21_preferences", "exec"), names)
            if "preferred" in names:
                return names
    raise SystemExit("21_preferences.ipynb must define preferred, got a notebook without it")


with one_blas_thread():
    N = chapter()
BEFORE, RIGHT, LENGTH, BETA, STAR = (N[name] for name in ("BEFORE", "RIGHT", "LENGTH", "BETA", "STAR"))


def sigmoid(a):
    return np.exp(-np.logaddexp(0, -a))


def normalised(logps):
    return logps - np.logaddexp.reduce(logps, axis=-1, keepdims=True)


START = normalised(BEFORE)  # the reference on S


def kl(one, other):
    return float((np.exp(one) * (one - other)).sum(axis=1).mean())


# ---- The optimum of each loss


def balanced(push, bend, chance=None):
    """Scores [12, 16] that minimise the mean loss of all pairs, by Newton's method. push, bend: -loss' and loss''."""
    start = np.exp(START)
    met = start[:, :, None] * start[:, None, :] / (1 - start[:, :, None]) * (1 - np.eye(16))
    met = met + met.transpose(0, 2, 1)
    chance = chance or (lambda p: p)
    p = chance(sigmoid(RIGHT[:, :, None] - RIGHT[:, None, :]))
    s = np.zeros(BEFORE.shape)
    for _ in range(300):
        m = s[:, :, None] - s[:, None, :]
        slope = met * (p * -push(m) + (1 - p) * push(-m))
        curve = met * (p * bend(m) + (1 - p) * bend(-m))
        hessian = curve.sum(axis=2)[:, :, None] * np.eye(16) - curve + 1 / 16
        step = np.linalg.solve(hessian, slope.sum(axis=2)[..., None])[..., 0]
        s = s - step * min(1, 1 / abs(step).max())
        if abs(step).max() < 1e-11:
            return s - s.mean(axis=1, keepdims=True)
    raise SystemExit("Newton's method did not converge")


def on_s(base, change):
    """base + change + c n(y), with the c of each question that puts all mass on S."""
    low, high = np.full((len(BEFORE), 1), -90.0), np.full((len(BEFORE), 1), 90.0)
    for _ in range(90):
        c = (low + high) / 2
        found = base + change + c * LENGTH
        much = np.logaddexp.reduce(found, axis=1, keepdims=True) > 0
        low, high = np.where(much, low, c), np.where(much, c, high)
    return found


def logistic(gamma=0.0):
    return lambda m: sigmoid(gamma - m), lambda m: sigmoid(gamma - m) * sigmoid(m - gamma)


def square(m):
    return 0.5 - m


SCORES = {
    "DPO": balanced(*logistic()),
    "conservative": balanced(*logistic(), lambda p: (1 - EPSILON) * p + EPSILON * (1 - p)),
    "robust": balanced(*logistic(), lambda p: (p - EPSILON) / (1 - 2 * EPSILON)),
    "IPO": balanced(square, lambda m: 1 + 0 * m),
    "length-normalised": balanced(*logistic()),
    "SimPO": balanced(*logistic(GAMMA)),
}


def optimum(name, beta):
    if name == "length-normalised":
        return on_s(BEFORE, SCORES[name] * LENGTH / beta)
    if name == "SimPO":
        return on_s(0, SCORES[name] * LENGTH / beta)
    return normalised(BEFORE + SCORES[name] / beta)


def as_far(name):
    """The beta whose optimum is as far from the reference as pi*."""
    low, high = 0.02, 20.0
    for _ in range(60):
        beta = np.sqrt(low * high)
        low, high = (beta, high) if kl(optimum(name, beta), START) > kl(STAR, START) else (low, beta)
    return float(beta)


BETAS = {name: as_far(name) for name in SCORES} | {"length-normalised": BETA * LENGTH.mean()}
OPTIMA = {name: optimum(name, BETAS[name]) for name in SCORES}
BETAS |= {"means": BETA, "KTO": BETA}
OPTIMA |= {"means": on_s(BEFORE, SCORES["DPO"] * LENGTH / BETA), "KTO": None}


# ---- Training


def slopes_of(name, logps, before, n, excess):
    """d loss / d log-probability, [pairs, 2], summed over pairs. excess: beta times the model's divergence, for KTO."""
    beta, sign = BETAS[name], np.array([1.0, -1.0])
    gain = logps - (0 if name == "SimPO" else before)
    if name in ("means", "length-normalised", "SimPO"):
        gain = gain / n
    else:
        n = np.ones_like(logps)
    if name == "KTO":
        u = beta * gain - excess
        return -beta * sign * sigmoid(u) * sigmoid(-u)
    m = beta * (gain @ sign)
    if name == "conservative":
        push = (1 - EPSILON) * sigmoid(-m) - EPSILON * sigmoid(m)
    elif name == "robust":
        push = ((1 - EPSILON) * sigmoid(-m) + EPSILON * sigmoid(m)) / (1 - 2 * EPSILON)
    elif name == "IPO":
        push = 2 * (0.5 - m) / beta**2
    else:
        push = sigmoid((GAMMA if name == "SimPO" else 0) - m)
    return -beta * push[:, None] * sign / n


def measured(name, model):
    logps = N["log_probabilities"](model)
    own = normalised(logps)
    right, up, down = N["on_pairs"](logps)
    return {
        "kl_star": kl(own, STAR),
        "kl_own": None if OPTIMA[name] is None else kl(own, OPTIMA[name]),
        "kl_reference": kl(own, START),
        "outside": float(1 - np.exp(logps).sum(axis=1).mean()),
        "true": float(np.exp(own)[RIGHT == 2].mean()),
        "reward": float((np.exp(own) * RIGHT).sum(axis=1).mean()),
        "pairs_right": float(right), "preferred": float(up), "other": float(down),
    }  # fmt: skip


def learn(name, seed):
    """Train a copy of the reference on pairs drawn with this seed; return a row for each look."""
    rng, model, found = np.random.default_rng(seed), N["twin"](N["reference"]), []
    replies, encode_rows, context = N["REPLIES"], N["rows"], N["CONFIG"].context

    def batch():
        some = [(q, y) for q, good, bad in N["pairs_of"](rng) for y in (good, bad)]
        before = np.array([BEFORE[q, y] for q, y in some]).reshape(-1, 2)
        n = np.array([LENGTH[y] for _, y in some]).reshape(-1, 2)
        excess = 0.0
        if name == "KTO":
            logps = N["log_probabilities"](model)
            excess = BETAS[name] * max(0.0, float((np.exp(logps) * (logps - BEFORE)).sum(axis=1).mean()))

        def weigh(part, nats):
            some = np.arange(2 * len(n))[part].reshape(-1, 2)[:, 0] // 2
            logps = -nats.sum(axis=1).reshape(-1, 2)
            slopes = slopes_of(name, logps, before[some], n[some], excess) / len(n)
            return np.zeros(1), np.broadcast_to(-slopes.reshape(-1, 1), nats.shape)

        return *encode_rows([replies[q][y] for q, y in some], context, 1), weigh

    def look(step, model):
        if step % LOOK == 0:
            found.append({"loss": name, "seed": seed, "step": step} | measured(name, model))

    N["trained"](model, batch, STEPS, RATE, look)
    return found


def main():
    exact = {}
    for name, star in OPTIMA.items():
        if star is not None:
            exact[name] = {
                "beta": BETAS[name], "kl_star": kl(star, STAR), "kl_reference": kl(star, START),
                "true": float(np.exp(star)[RIGHT == 2].mean()),
                "reward": float((np.exp(star) * RIGHT).sum(axis=1).mean()),
            }  # fmt: skip
            print(name, exact[name], flush=True)
    rows = []
    with one_blas_thread():
        for seed in SEEDS:
            for name in OPTIMA:
                rows += learn(name, seed)
                print(rows[-1], flush=True)
    config = {
        "seeds": SEEDS, "steps": STEPS, "rate": RATE, "epsilon": EPSILON, "gamma": GAMMA,
        "betas": BETAS, "optima": exact,
    }  # fmt: skip
    save("ch21_losses", config, rows)


if __name__ == "__main__":
    main()
