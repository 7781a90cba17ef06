"""Probes: what can be read from activations, in bits, beside what the prefix allows.

A probe reads a law over the values of a fact from one vector. It is fitted to what a reader of the prefix may believe,
and its loss is the cross-entropy with that, in bits. Behind the prior of the values it wins at most

    I(state; prefix) = H(state) - E H(posterior)

bits, and what it stays behind that is KL(posterior || probe). A told fact has a posterior of one value: its probe is a
probe of labels, by the same sums.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nanoeuler_book.interpretability.activations import streams
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT

PARTS = ("train", "train", "train", "train", "train", "train", "choose", "test", "test", "test")
PATIENCE = 60  # steps without a better one behind which a probe's fit ends
LEAST = 1e-3  # of the probability that a ridge probe leaves to any value


class Reading(NamedTuple):
    """A story that probes read: its text; its tokens behind an end of text [T+1]; what a reader of so many of them may
    believe [T+1, n]; and where the probes read, {index into both: kind of position}."""

    text: str
    row: np.ndarray
    beliefs: np.ndarray
    places: Mapping[int, str]


def part_of(text: str) -> str:
    """Return what a story is for: "train", "choose" (when to stop) or "test".

    It follows from the text alone, so no story, and no part of one, ever stands on both sides of a split.
    """
    return PARTS[sha256(text.encode()).digest()[0] % len(PARTS)]


@dataclass(frozen=True)
class Sites:
    """Vectors that probes read, m in all, and what is to be read from them.

    x: [L+1, m, D], by depth; beliefs: [m, n]; kinds, parts: [m] words; last: the last tokens at each, [m, k], oldest
    first, -1 before the beginning.
    """

    x: np.ndarray
    beliefs: np.ndarray
    kinds: np.ndarray
    parts: np.ndarray
    last: np.ndarray

    def of(self, kind: str) -> "Sites":
        """The sites of one kind of position. Raises NanoEulerError if there is no such site in every part."""
        here = self.kinds == kind
        if missing := set(PARTS) - set(self.parts[here]):
            raise NanoEulerError(f"no site of kind {kind!r} is for {', '.join(sorted(missing))}: more stories")
        return replace(
            self, x=self.x[:, here], **{n: getattr(self, n)[here] for n in ("beliefs", "kinds", "parts", "last")}
        )

    def shuffled(self, seed: int) -> "Sites":
        """The same vectors, each with the beliefs of another site of its part: nothing is left to be read."""
        order, rng = np.arange(len(self.parts)), np.random.default_rng(seed)
        for part in set(PARTS):
            order[self.parts == part] = rng.permutation(order[self.parts == part])
        return replace(self, beliefs=self.beliefs[order])


def sites(model: GPT, readings: Iterable[Reading], last: int = 8) -> Sites:
    """Run a model over stories, and take down every place where probes read. last: how many tokens to keep of each."""
    readings = [reading for reading in readings if reading.places]
    x, beliefs, kinds, parts, tokens = [], [], [], [], []
    for start in range(0, len(readings), 64):  # whole streams take memory
        some = readings[start : start + 64]
        for reading, stream in zip(some, streams(model, [reading.row for reading in some]), strict=True):
            at = list(reading.places)
            x.append(stream[:, at])
            beliefs.append(reading.beliefs[at])
            kinds += reading.places.values()
            parts += [part_of(reading.text)] * len(at)
            padded = np.concatenate([np.full(last, -1), reading.row])
            tokens += [padded[i + 1 : i + 1 + last] for i in at]
    return Sites(np.concatenate(x, axis=1), np.concatenate(beliefs), np.array(kinds), np.array(parts), np.array(tokens))


class Probe(NamedTuple):
    """A fitted probe: x [m, D] is centred and scaled, then goes through one or two matrices [D, n], [D, H] [H, n].

    Each matrix has its constants in its last row. With two, max(0, .) stands between. `linear_law`: what comes out is
    the law itself, cut off below LEAST, as of a ridge probe; else its logarithm, up to a constant.
    """

    mean: np.ndarray
    scale: np.ndarray
    weights: tuple[np.ndarray, ...]
    linear_law: bool = False

    def law(self, x: np.ndarray) -> np.ndarray:
        """What the probe says of vectors [m, D]: laws [m, n]."""
        h = _with_one((x - self.mean) / self.scale)
        for w in self.weights[:-1]:
            h = _with_one(np.maximum(h @ w, 0))
        out = h @ self.weights[-1]
        return _normal(np.maximum(out, LEAST)) if self.linear_law else softmax(out)


def ridge(x: np.ndarray, y: np.ndarray, strength: float = 1.0) -> Probe:
    """Fit a probe in closed form: W = (X^T X + strength m I)^-1 X^T Y, the least squares to beliefs [m, n].

    x: [m, D], centred and scaled before; the constants are free, being the mean of y.
    """
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-6
    z = (x - mean) / scale
    gram = z.T @ z + strength * len(z) * np.eye(z.shape[1])
    w = np.linalg.solve(gram, z.T @ (y - y.mean(axis=0)))
    return Probe(mean, scale, (np.vstack([w, y.mean(axis=0)]),), linear_law=True)


def logistic(
    x: np.ndarray,
    y: np.ndarray,
    x_choose: np.ndarray,
    y_choose: np.ndarray,
    hidden: int = 0,
    steps: int = 300,
    rate: float = 0.03,
    decay: float = 1e-3,
    seed: int = 0,
) -> Probe:
    """Fit a multinomial logistic probe by Adam on all sites at once, and keep the step that reads the other ones best.

    x: [m, D]; y: beliefs [m, n]; x_choose, y_choose: the sites that choose the step; hidden: the width of a hidden
    layer, 0 for none; decay: of the weights in the loss; rate: at first, it falls to 0.
    """
    rng = np.random.default_rng(seed)
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-6
    z = _with_one((x - mean) / scale).astype(np.float32)
    sizes = [x.shape[1], *([hidden] if hidden else []), y.shape[1]]
    weights = [
        rng.normal(0, (2 / a) ** 0.5 if i + 2 < len(sizes) else 0.01 / a**0.5, (a + 1, b)).astype(np.float32)
        for i, (a, b) in enumerate(pairwise(sizes))
    ]
    weights[-1][-1] = np.log(np.maximum(y.mean(axis=0), LEAST))  # begin with the prior
    moments = [(np.zeros_like(w), np.zeros_like(w)) for w in weights]
    y, best, kept, at = y.astype(np.float32), np.inf, None, 0
    for step in range(steps + 1):
        if step % 10 == 0:
            probe = Probe(mean, scale, tuple(w.copy() for w in weights))
            if (loss := bits(y_choose, probe.law(x_choose)).mean()) < best:
                best, kept, at = loss, probe, step
            elif step - at > PATIENCE:
                break
        for w, g, (m, v) in zip(weights, _gradients(weights, z, y, decay), moments, strict=True):
            m += 0.1 * (g - m)
            v += 0.01 * (g * g - v)
            corrected = np.sqrt(v / (1 - 0.99 ** (step + 1))) + 1e-8
            w -= rate * (1 - step / (steps + 1)) * (m / (1 - 0.9 ** (step + 1))) / corrected
    return kept


def _gradients(weights, z, y, decay):
    """Return the gradients of the mean cross-entropy at z [m, D + 1], beliefs y [m, n], with those of the decay."""
    h = [z]
    for w in weights[:-1]:
        h.append(_with_one(np.maximum(h[-1] @ w, 0)))
    d = (softmax(h[-1] @ weights[-1]) - y) / len(y)
    grads = []
    for i in reversed(range(len(weights))):
        grads.append(h[i].T @ d)
        grads[-1][:-1] += decay * weights[i][:-1]
        if i:
            d = (d @ weights[i][:-1].T) * (h[i][:, :-1] > 0)
    return grads[::-1]


class Score(NamedTuple):
    """How a probe reads the test sites, in bits: won over the prior; the bound of that; KL(posterior || probe)."""

    won: float
    bound: float
    kl: float


def score(given: Sites, x: np.ndarray, kind: str = "linear", seed: int = 0) -> Score:
    """Fit a probe on the training sites and score it on the test sites.

    x: what it reads at each site, [m, D]: `given.x[depth]`, or a control's; kind: "prior", "ridge", "linear" or
    "hidden" (64 units). The prior is the mean of the training beliefs. Raises NanoEulerError on another kind.
    """
    train, choose, test = (given.parts == part for part in ("train", "choose", "test"))
    y = given.beliefs
    prior = np.broadcast_to(_normal(np.maximum(y[train].mean(axis=0), 1e-6)), y[test].shape)

    def best(probes: list[Probe]) -> np.ndarray:
        return min(probes, key=lambda probe: bits(y[choose], probe.law(x[choose])).mean()).law(x[test])

    if kind == "ridge":
        law = best([ridge(x[train], y[train], 10.0**power) for power in range(-3, 3)])
    elif kind in ("linear", "hidden"):
        width = 64 if kind == "hidden" else 0
        data = x[train], y[train], x[choose], y[choose]
        law = best([logistic(*data, width, decay=decay, seed=seed) for decay in (3e-4, 1e-2)])
    elif kind == "prior":
        law = prior
    else:
        raise NanoEulerError(f"kind of probe is {kind!r}, expected prior, ridge, linear or hidden")
    floor, at_prior, read = (float(bits(y[test], q).mean()) for q in (y[test], prior, law))
    return Score(at_prior - read, at_prior - floor, read - floor)


def last_tokens(given: Sites, embedding: np.ndarray) -> np.ndarray:
    """What the last tokens alone say: the rows of an embedding [V, D] of the k last ones, [m, k D], 0 for none."""
    found = embedding[np.maximum(given.last, 0)] * (given.last >= 0)[..., None]
    return found.reshape(len(found), -1)


def bits(beliefs: np.ndarray, laws: np.ndarray) -> np.ndarray:
    """The cross-entropy of laws with beliefs, both [m, n], in bits: [m]; of beliefs with themselves their entropy."""
    return -(beliefs * np.log2(np.maximum(laws, 1e-30))).sum(axis=-1)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Laws [m, n] from their logarithms, up to a constant each."""
    return _normal(np.exp(logits - logits.max(axis=-1, keepdims=True)))


def _normal(p: np.ndarray) -> np.ndarray:
    return p / p.sum(axis=-1, keepdims=True)


def _with_one(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.ones((len(x), 1), x.dtype)], axis=1)
