"""Chapter 04: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
import pytest
from chapters import definitions, rejected, try_exercise


@pytest.fixture(scope="module")
def chapter():
    return definitions("04_first_gradients", "zeros", "my_zeros")


# ---- The gaps


def test_untouched_gaps_say_so(chapter):
    c = chapter
    assert c.check_linear(c.my_linear_backward) == "not written yet"
    assert c.check_cross_entropy(c.my_cross_entropy_forward) == "not written yet"
    verdict = c.check_cross_entropy_backward(c.my_cross_entropy_backward, c.cross_entropy_forward)
    assert verdict == "not written yet"


def test_the_book_fills_its_gaps(chapter):
    c = chapter
    assert c.check_linear(c.linear_backward) == "right"
    assert c.check_cross_entropy(c.cross_entropy_forward) == "right"
    assert c.check_cross_entropy_backward(c.cross_entropy_backward, c.cross_entropy_forward) == "right"


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


def test_linear_is_right_without_a_mistake(chapter):
    assert chapter.check_linear(linear) == "right"


@pytest.mark.parametrize("wrong", WRONG_LINEAR.values(), ids=WRONG_LINEAR)
def test_wrong_linear_is_rejected(chapter, wrong):
    assert rejected(chapter.check_linear, lambda dy, saved: linear(dy, saved, **wrong))


def cross_entropy(u, targets, shift=True, masked=True, base=np.e, late=False, axis=-1):
    """Losses with one thing wrong, if asked."""
    top = u.max(axis=-1, keepdims=True) if shift else 0.0
    with np.errstate(all="ignore"):
        if late:  # the logarithm of a softmax that has already become 0
            e = np.exp(u - top)
            log_p = np.log(e / e.sum(axis=axis, keepdims=True))
        else:
            log_p = u - top - np.log(np.exp(u - top).sum(axis=axis, keepdims=True))
    losses = -np.take_along_axis(log_p, np.maximum(targets, 0)[..., None], axis=-1)[..., 0] / np.log(base)
    return np.where((targets >= 0) | (not masked), losses, 0.0), None


WRONG_LOSS = {
    "no shift": dict(shift=False),
    "a target of -1 costs": dict(masked=False),
    "bits": dict(base=2.0),
    "the logarithm after the softmax": dict(late=True),
}


def test_cross_entropy_is_right_without_a_mistake(chapter):
    assert chapter.check_cross_entropy(cross_entropy) == "right"


@pytest.mark.parametrize("wrong", WRONG_LOSS.values(), ids=WRONG_LOSS)
def test_wrong_cross_entropy_is_rejected(chapter, wrong):
    assert rejected(chapter.check_cross_entropy, lambda u, targets: cross_entropy(u, targets, **wrong))


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


@pytest.mark.parametrize("wrong", WRONG_GRADIENT.values(), ids=WRONG_GRADIENT)
def test_wrong_cross_entropy_backward_is_rejected(chapter, wrong):
    check, forward = chapter.check_cross_entropy_backward, chapter.cross_entropy_forward
    assert check(cross_entropy_back, forward) == "right"
    assert rejected(check, lambda dlosses, saved: cross_entropy_back(dlosses, saved, **wrong), forward)


# ---- The exercises: check, stub, solution, and the wrong answers that the notebook itself names

EXERCISES = {
    "zeros": lambda c: (c.check_zeros, c.my_zeros, c.zeros, c.wrong_zeros),
    "temperature": lambda c: (
        c.check_temperature,
        c.my_temperature_backward,
        c.temperature_backward,
        c.wrong_temperatures,
    ),
    "suspects": lambda c: (c.check_batches, c.my_batches, c.three_batches, c.wrong_batches),
    "exponent": lambda c: (c.check_exponent, c.my_exponent, c.exponent, c.wrong_exponents),
}


@pytest.mark.parametrize("parts", EXERCISES.values(), ids=EXERCISES)
def test_exercise_check(chapter, parts):
    try_exercise(*parts(chapter))


# ---- The real mistake: it hides exactly where the chapter says


def test_the_tempting_line_is_right_for_different_tokens_alone(chapter):
    c, dx = chapter, np.random.default_rng(0).normal(size=(3, 2))
    for tokens, same in (([4, 0, 2], True), ([4, 0, 4], False)):
        saved = (np.array(tokens), (5, 2))
        assert np.allclose(c.tempting_backward(dx, saved), c.embed_backward(dx, saved)) == same
