"""Chapter 10: its checks accept what is right and reject wrong answers by name; its stored results are its own."""

import json

import numpy as np
from chapters import ROOT, accepts, rejects, rewritten_tests

from nanoeuler_book.checks import verdict
from nanoeuler_lib.config import ModelConfig

NOTEBOOK = ("10_whole_model", "TINY", "BLOCK", "OWN", "MINI", "small", "bugs", "norm_back", "no_", "late_")


# ---- The gaps


WRONG_SCALE = {
    "mean over all positions": lambda targets, weights: weights / targets[..., 0].size,
    "one count for all heads": lambda targets, weights: weights / max(1, (targets >= 0).sum()) * len(weights),
    "nan for an empty head": lambda targets, weights: weights / (targets >= 0).sum(axis=(0, 1)),
    "token 0 taken for no target": lambda targets, weights: weights / np.maximum((targets > 0).sum((0, 1)), 1),
}
test_wrong_scales = rejects({"check_loss_scale": WRONG_SCALE})


WRONG_BLOCK = {  # the book's version with one fragment replaced
    "upper fork lost": ("dx = dx + through", "dx = through"),
    "lower fork lost": ("return dx + through, dw", "return through, dw"),
    "k not turned back": ('rope_backward(dk, saved["rope_k"])', "dk"),
    "heads laid out wrongly": (
        "dqkv = from_heads(np.concatenate([dq, dk, dv], axis=1))",
        "dqkv = np.concatenate([dq, dk, dv], axis=1).reshape(*dx.shape[:2], -1)",
    ),
    "out misses the stream": ('linear_backward(dx, saved["out"])', 'linear_backward(through, saved["out"])'),
    "width of a head written in": ("config.head_dim", "2"),
}


RIGHT_BLOCK = {
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
    "check_tied_backward": [tied_by_loops],
    "check_test": [by_perturbation],
    "check_longest_row": [longest_by_walking],
}
test_other_right_solutions = accepts(OTHERS)


Z, PLACES = np.array([[0.3, -0.2], [0.1, 0.7], [-0.5, 0.4]]), np.array([0, 1, -1])


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
