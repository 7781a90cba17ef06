"""Chapter 08: its checks accept right answers, and name the mistake of wrong answers."""

from functools import partial

import numpy as np
import pytest
from chapters import accepts, slips

from nanoeuler_book.checks import verdict

NOTEBOOK = ("08_residual_stream", "SHAPES", "deep", "shapes", "exam", "rng", "with_division")


def forward(x, gain, eps=1e-5, axis=-1, inside=True):
    """RMSNorm; the arguments after eps are the mistakes that one can make."""
    m = np.mean(x * x, axis=axis, keepdims=True).astype(x.dtype)
    rstd = (1 / np.sqrt(m + eps) if inside else 1 / (np.sqrt(m) + eps)) * np.ones_like(x[..., :1])
    return x * rstd * gain, (x * rstd, rstd, gain)


WRONG_FORWARD = {
    "eps is added after the root": partial(forward, inside=False),
    "right if eps were always 1e-5": lambda x, g, e=1e-5: forward(x, g),
    "the mean is taken over all vectors": partial(forward, axis=None),
    "this is LayerNorm": lambda x, g, e=1e-5: forward(x - x.mean(axis=-1, keepdims=True), g, e),
}


def backward(dy, saved, gain_in_mean=True, axis=-1, exact=False):
    """The backward pass of RMSNorm; the arguments after saved are the mistakes that one can make."""
    normed, rstd, gain = saved
    dgain = (dy * normed).reshape(-1, gain.size).sum(axis=0)
    dn = dy * gain
    along = np.mean((dn if gain_in_mean else dy) * normed, axis=axis, keepdims=True)
    if exact:  # as if eps were 0
        along = along / np.mean(normed * normed, axis=-1, keepdims=True)
    return rstd * (dn - normed * along), dgain


WRONG_BACKWARD = {
    "the gain is forgotten in the mean": dict(gain_in_mean=False),
    "the mean is taken over all vectors": dict(axis=None),
    "right if eps were 0": dict(exact=True),
}
WRONG = {"check_rmsnorm": WRONG_FORWARD, "check_backward": slips(backward, WRONG_BACKWARD)}


@pytest.mark.parametrize("check, mistake", [(check, mistake) for check in WRONG for mistake in WRONG[check]])
def test_wrong_gaps_are_told_their_mistake(chapter, check, mistake):
    assert mistake in verdict(getattr(chapter, check), WRONG[check][mistake])


# The wrong answers that a solution names are tried where the notebook runs.
test_other_right_solutions = accepts(
    {"check_factors": [lambda: {"x": tuple(np.array([1, 0.1, 1])), "gain": [10, 10, 1]}]}
)


def test_ratios_measured_otherwise_are_right(chapter):
    with_, without = chapter.ratios()
    for other in ((np.array(with_), np.float32(without)), (1.004 * with_, 0.996 * without)):
        assert verdict(chapter.check_ratios, lambda other=other: other) == "right"
