"""Chapter 08: its checks accept what is right and reject wrong answers, each of them named."""

from functools import partial

import numpy as np
from chapters import accepts, rejects, slips

from nanoeuler_book.checks import verdict

NOTEBOOK = ("08_residual_stream", "SHAPES", "deep", "shapes", "exam", "rng", "with_division")


# ---- The gaps


def forward(x, gain, eps=1e-5, axis=-1, inside=True, use_gain=True, width=None):
    """RMSNorm; the arguments after eps are the mistakes that one can make."""
    squares = x * x
    m = np.mean(squares, axis=axis, keepdims=True) if width is None else squares.sum(-1, keepdims=True) / width
    m = m.astype(x.dtype)
    rstd = (1 / np.sqrt(m + eps) if inside else 1 / (np.sqrt(m) + eps)) * np.ones_like(x[..., :1])
    return x * rstd * (gain if use_gain else 1), (x * rstd, rstd, gain)


WRONG_FORWARD = {
    "eps outside the root": partial(forward, inside=False),
    "eps fixed": lambda x, g, e=1e-5: forward(x, g),
    "the mean over all vectors": partial(forward, axis=None),
    "a width of 7 written in": partial(forward, width=7),
    "the gain forgotten": partial(forward, use_gain=False),
    "LayerNorm": lambda x, g, e=1e-5: forward(x - x.mean(axis=-1, keepdims=True), g, e),
}


def backward(dy, saved, gain_in_mean=True, axis=-1, subtract=True, sum_rows=True, exact=False):
    """The backward pass of RMSNorm; the arguments after saved are the mistakes that one can make."""
    normed, rstd, gain = saved
    dgain = dy * normed
    dgain = dgain.reshape(-1, gain.size).sum(axis=0) if sum_rows else dgain
    dn = dy * gain
    along = np.mean((dn if gain_in_mean else dy) * normed, axis=axis, keepdims=True)
    if exact:  # as if eps were 0
        along = along / np.mean(normed * normed, axis=-1, keepdims=True)
    dx = rstd * (dn - normed * along * subtract)
    return dx, dgain


WRONG_BACKWARD = {
    "the gain forgotten in the mean": dict(gain_in_mean=False),
    "the mean over all vectors": dict(axis=None),
    "the root constant": dict(subtract=False),
    "the gain's gradient not summed": dict(sum_rows=False),
    "as if eps were 0": dict(exact=True),
}
test_wrong_gaps = rejects(
    {
        "check_rmsnorm": WRONG_FORWARD,
        "check_backward": slips(backward, WRONG_BACKWARD),
    }
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def partial_by_jacobian(dy, saved):
    x, s, g, k = saved
    D = len(g)
    first = np.arange(D) < k
    dx, dgain = np.empty_like(dy), np.zeros_like(g)
    for i in np.ndindex(dy.shape[:-1]):
        dx[i] = dy[i] @ (g[:, None] * (s[i] * np.eye(D) - s[i] ** 3 * np.outer(x[i], x[i] * first) / k))
        dgain += dy[i] * x[i] * s[i]
    return dx, dgain


def lists_for_bugs():
    return {
        "gain": ([[1, 2, -3]], [1, 2, 3]),
        "axis": ([[1, 2], [-3, 1]], [1, 1]),
        "eps": ([[0.002, -0.001, 0.003]], [1, 1, 1]),
    }


OTHERS = {
    "check_partial": [partial_by_jacobian],
    "check_inputs": [lists_for_bugs],
    "check_factors": [
        lambda: {"x": [1, 0.1, 1], "gain": [10, 10, 1]},
        lambda: {"gain": (10.0, 10.0, 1.0), "x": (1.0, 1 / 10, 1.0)},
        lambda: {"x": tuple(np.array([1, 0.1, 1])), "gain": tuple(np.array([10, 10, 1]))},
    ],
}
test_other_right_solutions = accepts(OTHERS)


def test_ratios_measured_otherwise_are_right(chapter):
    """As arrays of NumPy's, and rounded to half a percent."""
    with_, without = chapter.ratios()
    for other in ((np.array(with_), np.float32(without)), (1.004 * with_, 0.996 * without)):
        assert verdict(chapter.check_ratios, lambda other=other: other) == "right"
