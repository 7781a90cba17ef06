"""Chapter 04: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
from chapters import accepts, rejects, slips

NOTEBOOK = ("04_first_gradients",)


# ---- The gaps


def linear(dy, saved, transposed=True, swapped=False, rows="sum", order="dx dw"):
    """The backward pass of the linear layer with one thing wrong, if asked."""
    x, w = saved
    square = w.shape[0] == w.shape[1]
    dx = dy @ (w if square and not transposed else w.T)
    flat_x, flat_dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    dw = flat_x.T @ flat_dy
    if rows == "mean":
        dw = dw / len(flat_x)
    if rows == "last":
        dw = np.outer(flat_x[-1], flat_dy[-1])
    if swapped and square:
        dw = dw.T
    return (dx, dw) if order == "dx dw" else (dw, dx)


WRONG_LINEAR = {
    "w in place of its transpose, where the shapes allow it": dict(transposed=False),
    "dw transposed, where the shapes allow it": dict(swapped=True),
    "the mean over rows": dict(rows="mean"),
    "the last row only": dict(rows="last"),
    "dw first": dict(order="dw dx"),
}


def cross_entropy(u, targets, shift=True, masked=True, base=np.e, late=False, axis=-1):
    """Losses with one thing wrong, if asked."""
    top = u.max(axis=-1, keepdims=True) if shift else 0.0
    with np.errstate(all="ignore"):
        if late:  # the logarithm of a softmax that has already become 0
            e = np.exp(u - top)
            log_p = np.log(e / e.sum(axis=axis, keepdims=True))
        else:
            log_p = u - top - np.log(np.exp(u - top).sum(axis=axis, keepdims=True))
    losses = -np.take_along_axis(log_p, np.maximum(targets, 0)[..., None], axis=-1)[..., 0] / float(np.log(base))
    return np.where((targets >= 0) | (not masked), losses, 0.0), None


WRONG_LOSS = {
    "no shift": dict(shift=False),
    "a target of -1 costs": dict(masked=False),
    "bits": dict(base=2.0),
    "the logarithm after the softmax": dict(late=True),
}


def cross_entropy_back(dlosses, saved, sign=1, onehot=1.0, mask=True, incoming=True):
    """The gradient of the losses with one thing wrong, if asked."""
    probs, column, valid = saved
    d = sign * probs.copy()
    np.put_along_axis(d, column, np.take_along_axis(d, column, -1) - sign * onehot, -1)
    weight = np.where(valid | (not mask), dlosses if incoming else np.ones_like(dlosses), 0.0)
    return d * weight[..., None]


WRONG_GRADIENT = {
    "one-hot minus softmax": dict(sign=-1),
    "softmax alone": dict(onehot=0.0),
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


# ---- Other right answers


def exponent_by_covariance(steps, distances):
    s, d = np.log(steps), np.log(distances)
    return -np.mean((s - s.mean()) * d) / np.var(s)


def exponent_by_solving(steps, distances):
    lines = np.stack([np.log(steps), np.ones(len(steps))], axis=1)
    return -np.linalg.lstsq(lines, np.log(distances), rcond=None)[0][0]


def other_batches():
    return (
        ([[6, 5, 4], [3, 2, 1]], [[0, 0, 0], [0, 0, -1]]),
        (np.zeros((2, 3), int), np.full((2, 3), 4)),
        [np.arange(6).reshape(2, 3), np.zeros((2, 3), int)],
    )


def repeated_behind():
    """A token that occurs twice, first without a target: what is kept is all there is. B is right."""
    return (
        ([[0, 0, 1], [2, 3, 4]], [[-1, 3, 3], [3, 3, 3]]),
        ([[0, 0, 1], [2, 3, 4]], [[3, 3, 3], [3, 3, 3]]),
        ([[0, 5, 1], [2, 3, 4]], [[3, 3, 3], [3, 3, 3]]),
    )


OTHERS = {
    "check_zeros": [lambda: ({2}, set(), set(), {(1, 2)}), lambda: [frozenset({2}), set(), set(), {(1, 2)}]],
    "check_batches": [other_batches, repeated_behind],
    "check_exponent": [exponent_by_covariance, exponent_by_solving],
}
test_other_right_answers = accepts(OTHERS, given=FORWARD)


# ---- The real mistake: it hides exactly where the chapter says


def test_the_tempting_line_is_right_for_different_tokens_alone(chapter):
    c, dx = chapter, np.random.default_rng(0).normal(size=(3, 2))
    for tokens, same in (([4, 0, 2], True), ([4, 0, 4], False)):
        saved = (np.array(tokens), (5, 2))
        assert np.allclose(c.tempting_backward(dx, saved), c.embed_backward(dx, saved)) == same
