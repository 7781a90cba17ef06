"""Chapter 10: its checks accept what is right and reject wrong answers by name; its stored results are its own."""

import json

import numpy as np
import pytest
from chapters import ROOT, accepts, rejects, rewritten_tests

from nanoeuler_book.checks import verdict
from nanoeuler_lib.config import ModelConfig

NOTEBOOK = ("10_whole_model", "TINY", "BLOCK", "OWN", "MINI", "small", "bugs", "norm_back", "no_", "late_")


# ---- The gaps


WRONG_SCALE = {
    "mean over all positions": lambda targets, weights: weights / targets[..., 0].size,
    "sum in place of the mean": lambda targets, weights: np.asarray(weights, float),
    "one count for all heads": lambda targets, weights: weights / max(1, (targets >= 0).sum()) * len(weights),
    "weights forgotten": lambda targets, weights: 1 / np.maximum((targets >= 0).sum(axis=(0, 1)), 1),
    "nan for an empty head": lambda targets, weights: weights / (targets >= 0).sum(axis=(0, 1)),
    "the weight for an empty head": lambda targets, weights: weights / np.maximum((targets >= 0).sum((0, 1)), 1),
    "token 0 taken for no target": lambda targets, weights: weights / np.maximum((targets > 0).sum((0, 1)), 1),
}
test_wrong_scales = rejects({"check_loss_scale": WRONG_SCALE})


WRONG_BLOCK = {  # the book's version with one fragment replaced
    "upper fork lost": ("dx = dx + through", "dx = through"),
    "lower fork lost": ("return dx + through, dw", "return through, dw"),
    "stream passed by": ("dx = dx + through", "dx = dx"),
    "gate and up swapped": (
        'np.concatenate(swiglu_backward(dhidden, saved["swiglu"])',
        'np.concatenate(swiglu_backward(dhidden, saved["swiglu"])[::-1]',
    ),
    "k not turned back": ('rope_backward(dk, saved["rope_k"])', "dk"),
    "heads laid out wrongly": (
        "dqkv = from_heads(np.concatenate([dq, dk, dv], axis=1))",
        "dqkv = np.concatenate([dq, dk, dv], axis=1).reshape(*dx.shape[:2], -1)",
    ),
    "out misses the stream": ('linear_backward(dx, saved["out"])', 'linear_backward(through, saved["out"])'),
    "width of a head written in": ("config.head_dim", "2"),
    "a gradient missing": ("return dx + through, dw", 'del dw["norm1"]; return dx + through, dw'),
}


RIGHT_BLOCK = {
    "dx added in place, on a copy": [("dw = {}\n", "dw, dx = {}, dx.copy()\n")],
    "the fork by np.add": [("dx = dx + through  #", "dx = np.add(through, dx)  #")],
}
test_right_blocks, test_wrong_blocks = rewritten_tests(
    {"check_block_backward": ("block_backward", RIGHT_BLOCK, WRONG_BLOCK)}
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def tied_by_loops(dlogits, saved):
    """Position by position; the norm's Jacobian written out."""
    (ids, *_), (normed, rstd, gain), y, table, logits, cap = saved
    dtable, dgain = np.zeros_like(table), np.zeros_like(gain)
    for b, t in np.ndindex(ids.shape):
        dz = dlogits[b, t] * (1 - np.tanh(np.arctanh(logits[b, t] / cap)) ** 2)
        dtable += np.outer(dz, y[b, t])
        dy, n = dz @ table, normed[b, t]
        dgain += dy * n
        jacobian = gain[:, None] * (np.eye(len(n)) - np.outer(n, n) / len(n)) * rstd[b, t]
        dtable[ids[b, t]] += dy @ jacobian
    return dtable, dgain


def tied_by_one_hot(dlogits, saved):
    """The embedding's part as a product with one-hot rows."""
    (ids, *_), (normed, rstd, gain), y, table, logits, cap = saved
    dz = (dlogits * (cap - logits) * (cap + logits) / cap**2).reshape(-1, len(table))
    dy = dz @ table
    n = normed.reshape(dy.shape)
    dn = dy * gain
    dx = (dn - n * np.mean(dn * n, axis=1, keepdims=True)) * rstd.reshape(-1, 1)
    return dz.T @ y.reshape(dy.shape) + np.eye(len(table), dtype=dx.dtype)[ids.ravel()].T @ dx, (dy * n).sum(axis=0)


def by_perturbation(f):
    """Moves each of twelve logits, some of them at masked positions."""
    logits, targets, h = np.random.default_rng(3).normal(size=(4, 3)), np.array([2, -1, 0, -1]), 1e-5
    _, claimed = f(logits, targets)
    for i in np.ndindex(logits.shape):
        up, down = logits.copy(), logits.copy()
        up[i] += h
        down[i] -= h
        if not abs((f(up, targets)[0] - f(down, targets)[0]) / (2 * h) - claimed[i]) < 1e-7:
            return False
    return True


def formula_test(f):
    """p - delta over the number of valid targets, by hand."""
    logits, targets = np.array([[1.0, 0.0, -1.0], [0.0, 2.0, 0.5], [0.3, 0.3, 0.1]]), np.array([0, -1, 2])
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    p[[0, 2], [0, 2]] -= 1
    p[1] = 0
    return np.allclose(f(logits, targets)[1], p / 2, rtol=1e-6, atol=1e-12)


def by_reference(f):
    """Random logits; a float64 reference of its own, moved in the complex plane."""
    logits, targets = np.random.default_rng(11).standard_normal((4, 3)), np.array([-1, 2, 0, 2])
    reference = np.zeros_like(logits)
    for i in np.ndindex(logits.shape):
        z = logits.astype(complex)
        z[i] += 1e-30j
        rows = np.flatnonzero(targets >= 0)
        losses = np.log(np.exp(z[rows]).sum(axis=1)) - z[rows, targets[rows]]
        reference[i] = losses.mean().imag / 1e-30
    return np.abs(f(logits, targets)[1] - reference).max() < 1e-12


def longest_by_walking(budget):
    """Steps of 64, then of 1: needs the chapter's names, which the test hands over."""
    from nanoeuler_lib.config import preset
    from nanoeuler_lib.model import parameter_shapes
    from nanoeuler_lib.model.plan import shapes

    base = preset("base")

    def needed(T):
        layer, step, scratch = shapes(base, 1, T)
        numbers = sum(int(np.prod(s)) for s in (*step.values(), *scratch.values()))
        numbers += base.layers * sum(int(np.prod(s)) for s in layer.values())
        return 4 * numbers + 16 * sum(int(np.prod(s)) for s in parameter_shapes(base).values())

    T = 256
    for stride in (64, 1):
        while needed(T + stride) <= budget:
            T += stride
    return T


def rows_by_the_walk(bug):
    """Walks from the loss until the layer with the mistake has run."""
    order = ["heads", "norm_final"]
    order += [f"layers.{i}.{n}" for i in (1, 0) for n in ("down", "gate_up", "norm2", "out", "qkv", "norm1")]
    stop = {"swiglu": "layers.1.gate_up", "embed": "embed"}
    order.append("embed")
    if bug == "norm":
        return {name for name in order if name.split(".")[-1] not in ("norm1", "norm2", "norm_final")}
    return set(order[: order.index(stop[bug])])


OTHERS = {
    "check_right_rows": [rows_by_the_walk, lambda bug: list(rows_by_the_walk(bug))],
    "check_tied_backward": [tied_by_loops, tied_by_one_hot],
    "check_test": [by_perturbation, formula_test, by_reference],
    "check_longest_row": [longest_by_walking],
}
test_other_right_solutions = accepts(OTHERS)


Z, PLACES = np.array([[0.3, -0.2], [0.1, 0.7], [-0.5, 0.4]]), np.array([0, 1, -1])


def formula_at(logits, targets):
    """A test that compares all numbers with the formula, on these logits."""
    return lambda f: np.allclose(f(logits, targets)[1], surprise(logits, targets)[1], atol=1e-9)


def size_of_gradient(f):
    return bool(np.isclose((f(Z, PLACES)[1] ** 2).sum(), (surprise(Z, PLACES)[1] ** 2).sum()))


WRONG = {
    "tied: always in float64": (
        "check_tied_backward",
        lambda d, s: tuple(np.float64(g) for g in tied_by_one_hot(d, s)),
    ),
    "test: the size of the gradient": ("check_test", size_of_gradient),
    "test: two of six numbers": (
        "check_test",
        lambda f: bool(np.allclose(f(np.zeros((3, 2)), np.array([0, 1, -1]))[1].flat[[0, 4]], [-0.25, 0.0], atol=1e-9)),
    ),
    "test: rows that mirror each other": (
        "check_test",
        formula_at(np.array([[0.7, 0.2], [0.2, 0.7], [-0.5, 0.4]]), PLACES),
    ),
    "test: nothing surprises": ("check_test", formula_at(np.array([[2, -2], [-2, 2.5], [0, 1]]), PLACES)),
    "longest: a parabola rounded to 64": (
        "check_longest_row",
        lambda budget: longest_by_walking(budget) // 64 * 64,
    ),
    "longest: a float": ("check_longest_row", lambda budget: float(longest_by_walking(budget))),
    "longest: one too many": ("check_longest_row", lambda budget: longest_by_walking(budget) + 1),
    "longest: nan": ("check_longest_row", lambda budget: np.nan),
}


@pytest.mark.parametrize("check, wrong", WRONG.values(), ids=WRONG)
def test_wrong_solutions_are_rejected(chapter, check, wrong):
    assert verdict(getattr(chapter, check), wrong) not in ("right", "not written yet")


def test_a_test_that_asks_for_the_book_s_bits_is_rejected(chapter):
    bits = chapter.masked_loss(Z, PLACES)[1]
    said = verdict(chapter.check_test, lambda f: bool((f(Z, PLACES)[1] == bits).all()))
    assert "written differently" in said


# ---- What the experiments rest on


def test_bytes_are_no_parabola_between_multiples_of_64(chapter):
    """Why the exercise asks for a search."""
    total = {T: sum(chapter.buffer_bytes(chapter.base, 1, T).values()) for T in (256, 300, 384, 512, 640)}
    parabola = np.polyfit([256, 384, 512], [total[T] for T in (256, 384, 512)], 2)
    assert np.isclose(np.polyval(parabola, 640), total[640], rtol=1e-12)
    assert abs(np.polyval(parabola, 300) - total[300]) > 1e5


def test_stored_results_are_of_this_experiment(chapter):
    result = json.loads((ROOT / "data" / "results" / "ch10.json").read_text("utf-8"))
    assert ModelConfig.from_dict(result["config"]["model"]) == chapter.MINI
    assert {row["bug"] for row in result["rows"]} == {"healthy", "exercise", *chapter.bugs}
    assert len({row["seed"] for row in result["rows"]}) >= 5


def surprise(logits, targets, divide=None, change=None):
    """Mean surprise and its gradient by the formula; `change` spoils the gradient."""
    valid = targets >= 0
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    rows = np.flatnonzero(valid)
    loss = -np.log(p[rows, targets[rows]]).sum() / len(rows)
    p[rows, targets[rows]] -= 1
    p[~valid] = 0
    p /= len(rows) if divide is None else divide(targets)
    return loss, p if change is None else change(p, valid)
