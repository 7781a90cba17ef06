"""Round to numbers of four or eight bits: E4M3, E5M2, E2M1 and the block formats MXFP4 and NVFP4.

A `Format` has `exponent` exponent bits, `mantissa` mantissa bits and a sign. Its values are held in ordinary floats, so
only the rounding is simulated, and products are computed in float32. Chapter 37.
"""

from collections.abc import Callable
from functools import wraps
from typing import NamedTuple

import numpy as np

from nanoeuler_lib.ops.reference import adamw_step, attention_forward, linear_backward, linear_forward


class Format(NamedTuple):
    """A floating-point format with a sign, `exponent` and `mantissa` bits, and the largest finite value `largest`."""

    exponent: int
    mantissa: int
    largest: float

    @property
    def least(self) -> int:
        """The exponent of the smallest normal value: 1 - bias, and the bias is 2**(exponent - 1) - 1."""
        return 2 - 2 ** (self.exponent - 1)


E4M3, E5M2, E2M1 = Format(4, 3, 448.0), Format(5, 2, 57344.0), Format(2, 1, 6.0)
BFLOAT16 = Format(8, 7, float(2.0**127 * (2 - 2.0**-7)))


def codes(exponent: int, mantissa: int, largest: float) -> np.ndarray:
    """Return all finite values of a format in ascending order, with 0 once.

    exponent, mantissa: numbers of bits; largest: codes with larger values are infinity or NaN.
    """
    bias = 2 ** (exponent - 1) - 1
    e, m = np.arange(2**exponent)[:, None], np.arange(2**mantissa) / 2**mantissa  # one row per exponent
    values = np.where(e == 0, m * 2.0 ** (1 - bias), (1 + m) * 2.0 ** (e - bias)).ravel()
    positive = values[(values > 0) & (values <= largest)]
    return np.concatenate([-positive[::-1], [0.0], positive])


def spacing(x: np.ndarray, form: Format) -> np.ndarray:
    """Return the distance between neighbours in a format around x, which is not 0."""
    e = np.frexp(x)[1]  # |x| is in [2**(e - 1), 2**e)
    e -= 1 + form.mantissa  # in place: new arrays would take three times as long
    np.maximum(e, form.least - form.mantissa, out=e)
    return np.ldexp(x.dtype.type(1), e)


def nearest(x: np.ndarray, form: Format) -> np.ndarray:
    """Round x to the nearest value of a format, and a midpoint to the even code; limit to plus or minus `largest`."""
    gap = spacing(x, form)
    y = x / gap
    np.rint(y, out=y)  # to the nearest integer, and a midpoint to the even integer
    y *= gap
    return np.clip(y, -form.largest, form.largest, out=y)


def stochastic(x: np.ndarray, form: Format, u: np.ndarray) -> np.ndarray:
    """Round x up with a probability equal to its share of the way to the next value, otherwise down.

    u: random numbers, uniform in [0, 1), of the shape of x.
    """
    gap = spacing(x, form)
    y = x / gap
    y += u
    np.floor(y, out=y)
    y *= gap
    return np.clip(y, -form.largest, form.largest, out=y)


def random_rounding(rng: np.random.Generator) -> Callable[[np.ndarray, Format], np.ndarray]:
    """Return `stochastic` with random numbers from a generator."""
    return lambda x, form: stochastic(x, form, rng.random(x.shape, x.dtype))


def spread(p: np.ndarray, values: np.ndarray, step: float) -> np.ndarray:
    """Return the distribution of a weight after a step and stochastic rounding.

    p: probabilities of `values`, both [n], ascending; step: added to the weight. Beyond
    the ends the weight is limited.
    """
    x = np.clip(values + step, values[0], values[-1])
    low = np.clip(np.searchsorted(values, x, side="right") - 1, 0, len(values) - 2)
    up = (x - values[low]) / (values[low + 1] - values[low])  # their probability
    n = len(p)
    return np.bincount(low, p * (1 - up), n) + np.bincount(low + 1, p * up, n)


# ---- Scales: functions of an array and of the axis along which a product sums


def one_scale(x: np.ndarray, form: Format, rounding: Callable = nearest) -> np.ndarray:
    """Round an array with one scale, max|x| / largest.

    rounding: a function of an array and a format.
    """
    scale = np.abs(x).max() / x.dtype.type(form.largest)
    return scaled(x, scale, lambda quotient: rounding(quotient, form))


def scaled(x: np.ndarray, scale: np.ndarray, rounding: Callable) -> np.ndarray:
    """Divide x by a scale, round, and multiply by the scale.

    Where the scale is 0, the result is 0. rounding: a function of an array.
    """
    return rounding(x / np.where(scale > 0, scale, 1)) * scale


def blockwise(x: np.ndarray, axis: int, size: int, rounded: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Cut x into blocks of `size` numbers along an axis, and apply `rounded` to the blocks [..., blocks, size].

    The last block is filled up with zeros.
    """
    rows = np.moveaxis(x, axis, -1)
    width = rows.shape[-1]
    if width % size:
        rows = np.pad(rows, [(0, 0)] * (x.ndim - 1) + [(0, -width % size)])
    blocks = rounded(rows.reshape(*rows.shape[:-1], -1, size))
    return np.moveaxis(blocks.reshape(rows.shape)[..., :width], -1, axis)


def mxfp4(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Round blocks of 32 numbers along an axis to MXFP4.

    The numbers are of E2M1, and the scale is a power of two. Rouhani et al. 2023,
    algorithm 1.
    """

    def rounded(blocks: np.ndarray) -> np.ndarray:
        largest = np.abs(blocks).max(axis=-1, keepdims=True)
        e = np.frexp(largest)[1]  # largest is in [2**(e - 1), 2**e)
        scale = np.where(largest > 0, np.ldexp(x.dtype.type(1), e - 3), 0)
        return scaled(blocks, scale, lambda quotient: nearest(quotient, E2M1))

    return blockwise(x, axis, 32, rounded)


def nvfp4(x: np.ndarray, axis: int = -1, rounding: Callable = nearest) -> np.ndarray:
    """Round blocks of 16 numbers along an axis to NVFP4.

    The numbers are of E2M1. The scale is a number of E4M3, times a scale of the array.
    rounding: of the numbers; scales are always rounded to nearest. NVIDIA 2025.
    """
    outer = np.abs(x).max() / x.dtype.type(E2M1.largest * E4M3.largest)  # t

    def rounded(blocks: np.ndarray) -> np.ndarray:
        scale = np.abs(blocks).max(axis=-1, keepdims=True)
        scale = scale / x.dtype.type(E2M1.largest)  # the largest number becomes 6
        scale = scaled(scale, outer, lambda quotient: nearest(quotient, E4M3))
        return scaled(blocks, scale, lambda quotient: rounding(quotient, E2M1))

    return blockwise(x, axis, 16, rounded)


def integers(x: np.ndarray, axis: int, bits: int) -> np.ndarray:
    """Round blocks of 32 numbers along an axis to integers of some bits times a scale, as in chapter 34."""
    most = 2 ** (bits - 1) - 1

    def rounded(blocks: np.ndarray) -> np.ndarray:
        return scaled(blocks, np.abs(blocks).max(axis=-1, keepdims=True) / x.dtype.type(most), np.rint)

    return blockwise(x, axis, 32, rounded)


# name -> bits per number, with the scale of its block (16 bits for integers); rounding of an array along an axis
FORMATS: dict[str, tuple[float, Callable[[np.ndarray, int], np.ndarray]]] = {
    "int8": (8.5, lambda x, axis: integers(x, axis, 8)),
    "E4M3": (8.0, lambda x, axis: one_scale(x, E4M3)),
    "E5M2": (8.0, lambda x, axis: one_scale(x, E5M2)),
    "NVFP4": (4.5, nvfp4),
    "int4": (4.5, lambda x, axis: integers(x, axis, 4)),
    "MXFP4": (4.25, mxfp4),
    "int3": (3.5, lambda x, axis: integers(x, axis, 3)),
    "int2": (2.5, lambda x, axis: integers(x, axis, 2)),
}


def decibels(x: np.ndarray, rounded: np.ndarray) -> float:
    """Return the signal-to-noise ratio in decibels: ten times the logarithm of the ratio of mean squares."""
    return float(10 * np.log10((x**2).mean(dtype=np.float64) / ((rounded - x) ** 2).mean(dtype=np.float64)))


# ---- Inside a model: functions for `ops.use`


def fp8(rounding: Callable = nearest) -> dict[str, Callable]:
    """Return the pair of functions that rounds all three products with a weight to FP8.

    Every factor has one scale. rounding: a function of an array and a format.
    """

    @wraps(rounding)
    def forward(x, w):
        x, w = one_scale(x, E4M3, rounding), one_scale(w, E4M3, rounding)
        return linear_forward(x, w)  # `saved` has the rounded x and w

    @wraps(rounding)
    def backward(dy, saved):  # straight through: no derivative of the rounding
        return linear_backward(one_scale(dy, E5M2, rounding), saved)

    return {"linear_forward": forward, "linear_backward": backward}


def blocks(forward: Callable, backward: Callable) -> dict[str, Callable]:
    """Return the pair of functions that rounds all three products with a weight in blocks.

    forward: rounds inputs and weights, backward: rounds gradients; both (x, axis) -> x. A block lies along the axis
    over which the product sums, so the backward pass rounds inputs and weights again, along their other axis.
    """

    def product(x, w):
        return forward(x, -1) @ forward(w, 0), (x, w)  # [..., I] @ [I, O] -> [..., O]

    def product_backward(dy, saved):
        x, w = saved
        dx = backward(dy, -1) @ forward(w, 1).T  # [..., O] @ [O, I] -> [..., I]
        x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        return dx, forward(x, 0).T @ backward(dy, 0)  # [I, N] @ [N, O] -> [I, O]

    return {"linear_forward": product, "linear_backward": product_backward}


def stored(form: Format, rounding: Callable = nearest, scale: float = 1 / 64) -> dict[str, Callable]:
    """Return AdamW that stores every matrix in a format, times a fixed scale, after each step.

    Gains, which have no weight decay, remain in float32, as do the moments.
    """

    @wraps(rounding)
    def few_bits_step(p, g, m, v, step, rate, beta1, beta2, eps, decay):
        p, m, v = adamw_step(p, g, m, v, step, rate, beta1, beta2, eps, decay)
        if decay:
            p = rounding(p / p.dtype.type(scale), form) * p.dtype.type(scale)
        return p, m, v

    return {"adamw_step": few_bits_step}


def cached(rounded: Callable) -> dict[str, Callable]:
    """Return attention that rounds its keys and values, as a cache would store them: each vector along its numbers."""
    return {"attention_forward": lambda q, k, v: attention_forward(q, rounded(k, -1), rounded(v, -1))}
