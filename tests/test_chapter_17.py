"""Chapter 17: its checks accept what is right and reject wrong answers, each of them named."""

from dataclasses import replace

import numpy as np
import pytest
from chapters import definitions, rejected, try_exercise, try_gap, wrong_answers_of

from nanoeuler_lib.model import GPT


@pytest.fixture(scope="module")
def chapter():
    return definitions("17_eulers_method")


# ---- The gaps


def rebuilt(
    model, order, scale=1.0, wrote=(".out", ".down"), at=lambda order, i: order[i], reads=False, own=False
):
    """The model with its layers in another order, with one thing wrong, if asked."""
    new = GPT(replace(model.config, layers=len(order)), dtype=model.dtype)
    for name, tensor in new.params.items():
        parts = name.split(".")
        if len(parts) == 3:
            parts[1] = str(at(order, int(parts[1])))
        factor = scale if name.endswith(wrote) or (reads and name.endswith(".qkv")) else 1.0
        tensor[...] = model.params[".".join(parts)] * factor
    if own:
        model.params["heads"][...] *= 2
    return new


WRONG_REBUILT = {
    "attention's write not scaled": dict(wrote=(".down",)),
    "SwiGLU's write not scaled": dict(wrote=(".out",)),
    "nothing scaled": dict(wrote=("nothing",)),
    "what is read scaled as well": dict(reads=True),
    "order ignored": dict(at=lambda order, i: i % 3),
    "order from behind": dict(at=lambda order, i: order[-1 - i]),
    "the given model changed": dict(own=True),
}


def heun(f, x, h, inside=1.0, weight=0.5, second=True):
    """Heun's step, with one thing wrong, if asked."""
    here = f(x)
    there = f(x + (h if inside == 1.0 else inside(h)) * here) if second else here
    return x + h * ((1 - weight) * here + weight * there)


WRONG_HEUN = {
    "Euler's step": dict(second=False),
    "the step missing inside": dict(inside=lambda h: 1.0),
    "the midpoint method": dict(inside=lambda h: h / 2, weight=1.0),
    "the slope half way": dict(inside=lambda h: h / 2),
    "the later slope alone": dict(weight=1.0),
    "back along the slope": dict(inside=lambda h: -h),
}


def adjoint(x, W, a, n, back=1.0, down=1.0, keep=False, scale=True, last=False):
    """The adjoint, with one thing wrong, if asked."""
    h, dW = 1 / n, np.zeros_like(W)
    for _ in range(n):
        u = np.tanh(x @ W)
        du = a * (1 - u**2)
        step = x.T @ du
        dW = step * h if last else dW + step * (h if scale else 1)
        x, a = x if keep else x - back * h * u, a + down * h * du @ W.T
    return x, a, dW


WRONG_ADJOINT = {
    "x walks on in place of back": dict(back=-1.0),
    "x left at its end": dict(keep=True),
    "the sign of a": dict(down=-1.0),
    "no step in the integral": dict(scale=False),
    "only the last term of the integral": dict(last=True),
}

GAPS = {
    "rebuilt": (rebuilt, WRONG_REBUILT, "check_rebuilt", "my_rebuilt", "book_rebuilt"),
    "heun": (heun, WRONG_HEUN, "check_heun", "my_heun", "book_heun"),
    "adjoint": (adjoint, WRONG_ADJOINT, "check_adjoint", "my_adjoint", "book_adjoint"),
}


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
def test_gap(chapter, gap):
    try_gap(chapter, gap)


@pytest.mark.parametrize("gap, wrong", wrong_answers_of(GAPS))
def test_wrong_answer_to_a_gap_is_rejected(chapter, gap, wrong):
    assert rejected(getattr(chapter, gap[2]), wrong)


# ---- The exercises: check, stub, solution, and the wrong answers that the notebook itself names


EXERCISES = {
    "factors": lambda c: (c.check_factors, c.my_factors, c.factors, c.wrong_factors),
    "back": lambda c: (c.check_heun_back, c.my_heun_back, c.heun_back, c.wrong_backs),
    "orders": lambda c: (c.check_orders, c.my_orders, c.orders, c.wrong_orders),
}


@pytest.mark.parametrize("parts", EXERCISES.values(), ids=EXERCISES)
def test_exercise_check(chapter, parts):
    try_exercise(*parts(chapter))
