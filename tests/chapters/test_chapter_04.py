"""Chapter 04: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
from chapters import accepts, gap_tests, slips

from nanoeuler_book.checks import verdict
from tools.release.chapter_mutants import Gap, Value

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
test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_linear": ([linear], slips(linear, WRONG_LINEAR)),
        "check_cross_entropy": ([cross_entropy], slips(cross_entropy, WRONG_LOSS)),
        "check_cross_entropy_backward": ([cross_entropy_back], slips(cross_entropy_back, WRONG_GRADIENT)),
    },
    FORWARD,
)


# ---- Other right answers


def linear_by_einsum(dy, saved):
    x, w = saved
    return np.einsum("...o,io->...i", dy, w), np.einsum("ni,no->io", *(a.reshape(-1, a.shape[-1]) for a in (x, dy)))


def linear_by_loop(dy, saved):
    x, w = saved
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    for n in np.ndindex(x.shape[:-1]):
        dx[n] = w @ dy[n]
        dw += np.outer(x[n], dy[n])
    return dx, dw


def entropy_by_logaddexp(logits, targets):
    column = np.maximum(targets, 0)[..., None]
    losses = np.logaddexp.reduce(logits, axis=-1) - np.take_along_axis(logits, column, -1)[..., 0]
    return (losses * (targets >= 0)).astype(logits.dtype), ()


def gradient_by_onehot(dlosses, saved):
    probs, column, valid = saved
    onehot = np.arange(probs.shape[-1]) == column
    return (probs - onehot) * (dlosses * valid)[..., None]


def gradient_by_loop(dlosses, saved):
    probs, column, valid = saved
    found = np.zeros_like(probs)
    for n in np.ndindex(valid.shape):
        if valid[n]:
            found[n] = probs[n] * dlosses[n]
            found[n][column[n][0]] -= dlosses[n]
    return found


def temperature_by_formula(dlosses, logits, targets, tau):
    p = np.exp(logits / tau - (logits / tau).max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    weight = dlosses * (targets >= 0)
    onehot = np.eye(logits.shape[1])[np.maximum(targets, 0)]
    dtau = (weight * ((onehot - p) * logits).sum(axis=1)).sum() / tau**2
    return weight[:, None] * (p - onehot) / tau, dtau


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
    "check_linear": [linear_by_einsum, lambda *given: list(linear_by_loop(*given))],
    "check_cross_entropy_backward": [gradient_by_onehot, gradient_by_loop],
    "check_cross_entropy": [entropy_by_logaddexp],
    "check_zeros": [lambda: ({2}, set(), set(), {(1, 2)}), lambda: [frozenset({2}), set(), set(), {(1, 2)}]],
    "check_temperature": [temperature_by_formula],
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


# ---- What `make mutants CH=04` changes, and the inputs that the contracts allow


def shape_of(rng, axes=3):
    return tuple(rng.integers(1, 5, rng.integers(0, axes + 1)).tolist())


def with_matrix(rng, shape=None, I=None, O=None):
    """dy, and what the linear layer saved."""
    shape = shape_of(rng) if shape is None else shape
    I, O = I or int(rng.integers(1, 6)), O or int(rng.integers(1, 6))
    x, w = 3 * rng.normal(size=(*shape, I)), rng.normal(size=(I, O))
    return rng.normal(size=(*shape, O)), (x, w)


def with_targets(rng, shape=None, V=None, scale=None, dtype=None):
    """Logits of any size, and targets of which some are -1."""
    shape = shape_of(rng) if shape is None else shape
    V, scale = V or int(rng.integers(1, 7)), scale or float(rng.choice([1.0, 5.0, 1000.0]))
    targets = rng.integers(-1, V, shape)
    dtype = dtype or rng.choice([np.float64, np.float32], p=[0.8, 0.2])
    return (scale * rng.normal(size=(*shape, V))).astype(dtype), np.asarray(targets)


def with_saved(rng, *given):
    """What arrives, and what the forward pass saved of moderate logits."""
    logits, targets = with_targets(rng, *given)
    valid = targets >= 0
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return rng.normal(size=targets.shape), (
        p.astype(np.float64),
        np.where(valid, targets, 0)[..., None],
        valid,
    )


def with_temperature(rng, N=None):
    logits, targets = with_targets(rng, (N or int(rng.integers(1, 8)),), None, 2.0, np.float64)
    return rng.normal(size=len(targets)), logits, targets, float(rng.choice([0.3, 1.0, 1.7, 4.0]))


def power_law(rng):
    steps = np.sort(rng.choice(1000, rng.integers(2, 8), replace=False)) + 1.0
    return steps, rng.uniform(0.1, 5) * steps ** -rng.uniform(0.2, 3) * rng.uniform(0.5, 2, len(steps))


def zeros_by_sums(_, answer):
    """By the two sums: dW_io has the factors x_ni and dy_no, dx_bti the factors dy_bto and W_io."""
    return tuple(map(set, answer)) == ({2}, set(), set(), {(1, 2)}) and all(isinstance(a, set) for a in answer)


def accused_by_reasoning(_, answer):
    """A is wrong if a target is -1; B if an occurrence of a token that is not its last one has a target."""
    found = []
    for tokens, targets in answer:
        tokens, targets = np.array(tokens), np.array(targets)
        if not tokens.shape == targets.shape == (2, 3) or not (targets >= 0).any():
            return False
        if not (np.isin(tokens, range(7)).all() and np.isin(targets, range(-1, 7)).all()):
            return False
        last = {token: i for i, token in enumerate(tokens.ravel())}
        lost = [i for i, token in enumerate(tokens.ravel()) if i != last[token] and targets.ravel()[i] >= 0]
        found.append(((targets < 0).any(), bool(lost)))
    return found == [(True, False), (False, True), (False, False)]


EDGE = np.random.default_rng(5)
DOMAINS = [
    Gap("check_linear", ("linear_backward",), lambda c: verdict(c.check_linear, c.linear_backward),
        lambda c, given: c.linear_backward(*given), with_matrix,
        [with_matrix(EDGE, *given) for given in [((), 1, 1), ((1,), 3, 3), ((4, 2), 1, 5), ((2, 1, 3), 2, 2)]]),
    Gap("check_cross_entropy", ("cross_entropy_forward",),
        lambda c: verdict(c.check_cross_entropy, c.cross_entropy_forward),
        lambda c, given: c.cross_entropy_forward(*given)[0], with_targets,
        [with_targets(EDGE, *given) for given in [((), 1, 1.0), ((3,), 5, 1e4, np.float32), ((2, 2, 2), 3, 300.0)]]),
    Gap("check_cross_entropy_backward", ("cross_entropy_backward",),
        lambda c: verdict(c.check_cross_entropy_backward, c.cross_entropy_backward, c.cross_entropy_forward),
        lambda c, given: c.cross_entropy_backward(*given), with_saved,
        [with_saved(EDGE, *given) for given in [((), 1, 1.0), ((3,), 5, 1.0), ((2, 2, 2), 3, 5.0)]]),
    Value("check_zeros", "zeros", lambda c, value: verdict(c.check_zeros, lambda: value), zeros_by_sums),
    Gap("check_temperature", ("temperature_backward",),
        lambda c: verdict(c.check_temperature, c.temperature_backward),
        lambda c, given: c.temperature_backward(*given), with_temperature, [with_temperature(EDGE, 1)]),
    Value("check_batches", "three_batches", lambda c, value: verdict(c.check_batches, lambda: value),
        accused_by_reasoning),
    Gap("check_exponent", ("exponent",), lambda c: verdict(c.check_exponent, c.exponent),
        lambda c, given: float(c.exponent(*given)), power_law),
]  # fmt: skip
