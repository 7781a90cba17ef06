"""Chapter 08: its checks accept right answers, and name the mistake of wrong answers; the norm of queries and keys."""

from functools import partial

import numpy as np
import pytest
from chapters import accepts, slips

from nanoeuler_book import frame
from nanoeuler_book.checks import verdict
from nanoeuler_book.qk_norm import qk_norm_backward, qk_norm_forward
from nanoeuler_lib.model import gradcheck

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


# ---- The norm of queries and keys


def drawn(dtype=float):
    """Queries, keys, values and an output's gradient; B, H, G, T and C are all different."""
    rng = np.random.default_rng(4)
    sizes = (2, 6, 5, 7), (2, 3, 5, 7), (2, 3, 5, 7), (2, 6, 5, 7)
    return [(size * rng.normal(size=shape)).astype(dtype) for size, shape in zip((3, 0.1, 1, 2), sizes, strict=True)]


@pytest.mark.parametrize("factor, eps", [(1.0, 1e-6), (2.5, 0.3)])
def test_the_gradients_of_qk_norm_are_difference_quotients(factor, eps):
    q, k, v, dy = drawn()
    forward = partial(qk_norm_forward, factor=factor, eps=eps)
    found = qk_norm_backward(dy, forward(q, k, v)[1])
    for gradient, x in zip(found, (q, k, v), strict=True):
        slope = gradcheck.numeric_gradient(lambda: float((forward(q, k, v)[0] * dy).sum()), x)
        assert np.abs(gradient - slope).max() <= 1e-6 * np.abs(slope).max()


def test_qk_norm_is_that_of_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make oracle")
    q, k, v, dy = drawn()
    y, saved = qk_norm_forward(q, k, v, factor=2.5, eps=1e-6)
    tensors = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    normed = [torch.nn.functional.rms_norm(x, (7,), eps=1e-6) for x in tensors[:2]]
    keys, values = (x.repeat_interleave(2, dim=1) for x in (normed[1], tensors[2]))
    theirs = torch.nn.functional.scaled_dot_product_attention(2.5 * normed[0], keys, values, is_causal=True)
    (theirs * torch.tensor(dy)).sum().backward()
    assert np.abs(theirs.detach().numpy() - y).max() <= 1e-10
    for mine, tensor in zip(qk_norm_backward(dy, saved), tensors, strict=True):
        assert np.abs(mine - tensor.grad.numpy()).max() <= 1e-10 * np.abs(mine).max()


def test_qk_norm_ignores_lengths_and_bounds_every_weight():
    q, k, v, dy = drawn()
    y, (_, _, saved) = qk_norm_forward(q, k, v, factor=2.0, eps=0.0)
    longer, _ = qk_norm_forward(1000 * q, 1000 * k, v, factor=2.0, eps=0.0)
    assert np.abs(longer - y).max() <= 1e-12
    scores = saved[0] @ saved[1].swapaxes(-1, -2) / np.sqrt(7)
    assert np.abs(scores).max() <= 2 * np.sqrt(7) + 1e-12
    last = saved[3][..., -1, :]  # the weights of the last query, which reads all five keys
    assert last.min() >= 1 / (1 + 4 * np.exp(4 * np.sqrt(7))) and last.max() <= 1 / (1 + 4 * np.exp(-4 * np.sqrt(7)))
    dq, dk, _ = qk_norm_backward(dy, qk_norm_forward(q, k, v, eps=0.0)[1])
    assert np.abs((q * dq).sum(axis=-1)).max() <= 1e-12 and np.abs((k * dk).sum(axis=-1)).max() <= 1e-12


def test_the_bound_is_reached_and_a_zero_query_is_allowed():
    key = np.ones((1, 1, 2, 3)) * [[[[1.0], [-1.0]]]]  # opposite keys
    _, (_, _, saved) = qk_norm_forward(np.array([[[[2.0] * 3] * 2]]), key, key, eps=0.0)
    assert abs(saved[3][0, 0, 0, 1, 0] - 1 / (1 + np.exp(-2 * np.sqrt(3)))) <= 1e-12
    y, saved = qk_norm_forward(0 * key, key, key)
    assert all(np.isfinite(x).all() for x in (y, *qk_norm_backward(key, saved)))


def test_qk_norm_keeps_float32_and_trains_in_the_frame():
    q, k, v, dy = drawn(np.float32)
    y, saved = qk_norm_forward(q, k, v, factor=2.0)
    assert all(x.dtype == np.float32 for x in (y, *qk_norm_backward(dy, saved)))
    trained = frame.train(2, attention_forward=qk_norm_forward, attention_backward=qk_norm_backward)
    assert trained.functions["attention_forward"] is qk_norm_forward
