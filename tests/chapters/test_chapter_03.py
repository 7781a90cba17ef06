"""Chapter 03: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
from chapters import accepts, rejects, slips

NOTEBOOK = ("03_first_gradients",)


def linear(dy, saved, transposed=True, swapped=False, mean=False):
    """The backward pass of the linear layer with one thing wrong, if asked."""
    x, w = saved
    square = w.shape[0] == w.shape[1]
    flat_x, flat_dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    dw = flat_x.T @ flat_dy / (len(flat_x) if mean else 1)
    return dy @ (w if square and not transposed else w.T), dw.T if swapped and square else dw


WRONG_LINEAR = {
    "w in place of its transpose, where the shapes allow it": dict(transposed=False),
    "dw transposed, where the shapes allow it": dict(swapped=True),
    "the mean over rows": dict(mean=True),
}


def cross_entropy(u, targets, shift=True, masked=True, late=False):
    """Losses with one thing wrong, if asked."""
    top = u.max(axis=-1, keepdims=True) if shift else 0.0
    e = np.exp(u - top)
    total = e.sum(axis=-1, keepdims=True)
    log_p = np.log(e / total) if late else u - top - np.log(total)  # late: of a softmax that has already become 0
    losses = -np.take_along_axis(log_p, np.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    return np.where((targets >= 0) | (not masked), losses, 0.0).astype(u.dtype), None


WRONG_LOSS = {
    "no shift": dict(shift=False),
    "a target of -1 costs": dict(masked=False),
    "the logarithm after the softmax": dict(late=True),
}


def cross_entropy_back(dlosses, saved, mask=True, incoming=True):
    """The gradient of the losses with one thing wrong, if asked."""
    probs, column, valid = saved
    d = probs.copy()
    np.put_along_axis(d, column, np.take_along_axis(d, column, -1) - 1, -1)
    weight = np.where(valid | (not mask), dlosses if incoming else np.ones_like(dlosses), 0.0)
    return d * weight[..., None]


WRONG_GRADIENT = {
    "a gradient where there is no target": dict(mask=False),
    "what arrives from above left out": dict(incoming=False),
}
FORWARD = {"check_cross_entropy_backward": "cross_entropy_forward"}  # what this check takes besides
test_wrong_gaps = rejects(
    {
        "check_linear": slips(linear, WRONG_LINEAR),
        "check_cross_entropy": slips(cross_entropy, WRONG_LOSS),
        "check_cross_entropy_backward": slips(cross_entropy_back, WRONG_GRADIENT),
    },
    FORWARD,
)


def repeated_behind():
    """A token that occurs twice, first without a target: what is kept is all there is. B is right."""
    return (
        ([[0, 0, 1], [2, 3, 4]], [[-1, 3, 3], [3, 3, 3]]),
        ([[0, 0, 1], [2, 3, 4]], [[3, 3, 3], [3, 3, 3]]),
        ([[0, 5, 1], [2, 3, 4]], [[3, 3, 3], [3, 3, 3]]),
    )


test_other_right_answers = accepts({"check_batches": [repeated_behind]}, given=FORWARD)
