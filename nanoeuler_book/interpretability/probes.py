"""Fit probes to activations and score them, in bits, against the exact posterior given the prefix. Chapter 18.

A probe predicts a distribution over the values of a fact from one vector. The probe is fitted to the exact posterior
given the prefix, and its loss is the cross-entropy with this posterior, in bits. Compared with the prior of the values,
a probe can reduce the loss by at most

    I(state; prefix) = H(state) - E H(posterior)

bits, and its reduction is below this bound by KL(posterior || probe). If the fact has been stated, the posterior of its
value is 1, and the same formulas describe an ordinary classifier.
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
PATIENCE = 60  # a probe's fit ends after so many steps without improvement
LEAST = 1e-3  # smallest output of a ridge probe for any value, before normalisation


class Reading(NamedTuple):
    """A story with its posteriors and the positions at which probes are applied.

    row: an end of text and the story's tokens [T+1]; beliefs: the posterior after each token of the row, [T+1, n];
    places: {position: kind of position}.
    """

    text: str
    row: np.ndarray
    beliefs: np.ndarray
    places: Mapping[int, str]


def part_of(text: str) -> str:
    """Return the split that a story belongs to: "train", "choose" (for early stopping) or "test".

    A hash of the text determines the split, so no story is in two splits.
    """
    return PARTS[sha256(text.encode()).digest()[0] % len(PARTS)]


@dataclass(frozen=True)
class Sites:
    """The inputs and targets of probes at m positions.

    x: activations [L+1, m, D], by depth; beliefs: posteriors [m, n]; kinds, parts: [m] strings, the kind of position
    and the split; last: the last k tokens at each position, [m, k], oldest first, -1 before the start.
    """

    x: np.ndarray
    beliefs: np.ndarray
    kinds: np.ndarray
    parts: np.ndarray
    last: np.ndarray

    def of(self, kind: str) -> "Sites":
        """Return the sites of one kind of position. Raises NanoEulerError if a split has no such site."""
        here = self.kinds == kind
        if missing := set(PARTS) - set(self.parts[here]):
            none = ", ".join(sorted(missing))
            raise NanoEulerError(f"every split must have sites of kind {kind!r}, got none in {none}: use more stories")
        return replace(
            self, x=self.x[:, here], **{n: getattr(self, n)[here] for n in ("beliefs", "kinds", "parts", "last")}
        )

    def shuffled(self, seed: int) -> "Sites":
        """Return the same activations with posteriors shuffled within each split, as a control without information."""
        order, rng = np.arange(len(self.parts)), np.random.default_rng(seed)
        for part in set(PARTS):
            order[self.parts == part] = rng.permutation(order[self.parts == part])
        return replace(self, beliefs=self.beliefs[order])


def sites(model: GPT, readings: Iterable[Reading], last: int = 8) -> Sites:
    """Run a model over stories and collect activations and posteriors at every position in `places`.

    last: number of preceding tokens to store for each position (for `last_tokens`).
    """
    readings = [reading for reading in readings if reading.places]
    x, beliefs, kinds, parts, tokens = [], [], [], [], []
    for start in range(0, len(readings), 64):  # limits the memory for residual streams
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
    """A fitted probe: it standardises x [m, D], then applies a matrix [D, n], or [D, H] and [H, n] with a ReLU.

    Each matrix has an additional last row, the bias. linear_law: True if the output is the distribution itself, cut off
    below LEAST and normalised (a ridge probe); False if the output is logits for a softmax.
    """

    mean: np.ndarray
    scale: np.ndarray
    weights: tuple[np.ndarray, ...]
    linear_law: bool = False

    def law(self, x: np.ndarray) -> np.ndarray:
        """Return the probe's predicted distributions [m, n] for vectors [m, D]."""
        h = _with_one((x - self.mean) / self.scale)
        for w in self.weights[:-1]:
            h = _with_one(np.maximum(h @ w, 0))
        out = h @ self.weights[-1]
        return _normal(np.maximum(out, LEAST)) if self.linear_law else softmax(out)


def ridge(x: np.ndarray, y: np.ndarray, strength: float = 1.0) -> Probe:
    """Fit a ridge probe to posteriors by least squares in closed form: W = (X^T X + strength m I)^-1 X^T Y.

    x: [m, D], standardised before the fit; y: posteriors [m, n]. The bias, the mean of y, is not penalised.
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
    """Fit a multinomial logistic probe by full-batch Adam with early stopping on a second set of sites.

    x: [m, D]; y: posteriors [m, n]; x_choose, y_choose: the sites for early stopping; hidden: the width of a hidden
    layer, 0 for none; steps: maximum number of steps; rate: initial learning rate, which falls linearly to 0; decay: L2
    penalty.
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
    """Return the gradients of the L2 penalty plus the mean cross-entropy for inputs z [m, D + 1], targets y [m, n]."""
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
    """A probe's score on the test sites, in bits: gain over the prior, its upper bound, and KL(posterior || probe)."""

    won: float
    bound: float
    kl: float


def score(given: Sites, x: np.ndarray, kind: str = "linear", seed: int = 0) -> Score:
    """Fit a probe on the training sites and score it on the test sites.

    x: the probe's input at each site, [m, D]: `given.x[depth]`, or the input of a control; kind: "prior", "ridge",
    "linear" or "hidden" (64 units). The prior is the mean of the training posteriors. Raises NanoEulerError for any
    other kind.
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
        raise NanoEulerError(f"kind must be prior, ridge, linear or hidden, got {kind!r}")
    floor, at_prior, read = (float(bits(y[test], q).mean()) for q in (y[test], prior, law))
    return Score(at_prior - read, at_prior - floor, read - floor)


def last_tokens(given: Sites, embedding: np.ndarray) -> np.ndarray:
    """Return a control's input, the embeddings of the last k tokens at each site: [m, k D], 0 for missing tokens.

    embedding: [V, D].
    """
    found = embedding[np.maximum(given.last, 0)] * (given.last >= 0)[..., None]
    return found.reshape(len(found), -1)


def bits(beliefs: np.ndarray, laws: np.ndarray) -> np.ndarray:
    """Return the cross-entropy of posteriors [m, n] with predicted distributions [m, n], in bits: [m].

    If the predictions are the posteriors themselves, the result is the entropy of the posteriors.
    """
    return -(beliefs * np.log2(np.maximum(laws, 1e-30))).sum(axis=-1)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the distributions [m, n] of logits [m, n]."""
    return _normal(np.exp(logits - logits.max(axis=-1, keepdims=True)))


def _normal(p: np.ndarray) -> np.ndarray:
    return p / p.sum(axis=-1, keepdims=True)


def _with_one(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.ones((len(x), 1), x.dtype)], axis=1)
