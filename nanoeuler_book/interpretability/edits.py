"""Edit a model's residual stream or attention heads during a forward pass, and measure the effect. Chapter 18.

    forward(model, tokens, {("stream", 2): patched(places, values)})        # [B, T] -> log-probabilities [B, T, V]

A site is ("stream", depth), where depth 0 is the embedding and depth l is the output of block l, or ("heads", layer),
the outputs of a block's attention heads before the output projection. An edit is a function of the array at its site.

The model does not necessarily use a direction that a probe reads. `causal_subspace` finds the directions of a patch
that carry its effect. A null result at one position does not prove that the model ignores the name, because attention
may already have copied the name to other positions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from nanoeuler_book.interpretability.twins import Batch, bits
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.gpt import backward
from nanoeuler_lib.model.gpt import forward as upper_forward
from nanoeuler_lib.model.plan import Plan
from nanoeuler_lib.ops import reference as f

STREAM, HEADS = "stream", "heads"
Site = tuple[str, int]
Edit = Callable[[np.ndarray], np.ndarray]


def forward(
    model: GPT, tokens: np.ndarray, edits: Mapping[Site, Edit] | None = None, kept: dict | None = None
) -> np.ndarray:
    """Run a model with edits: tokens [B, T] -> log-probabilities of the next token, in nats [B, T, V].

    edits: {site: function}, from the stream [B, T, D] or the heads' outputs [B, H, T, C] to a new array of that shape;
    kept: a dict that receives the edited array of every site, and under ("weights", layer) the attention weights
    [B, H, T, T]. Calls the functions of `ops.reference` in the order of `model.gpt.forward`. Raises NanoEulerError for
    an unknown site.
    """
    w, config, eps = model.params, model.config, model.config.norm_eps
    H, G, C, (B, T) = config.heads, config.kv_heads, config.head_dim, tokens.shape
    cos, sin = f.rope_tables(T, C, config.rope_theta, model.dtype)
    edits, L = edits or {}, config.layers
    known = {*((STREAM, i) for i in range(L + 1)), *((HEADS, i) for i in range(L))}
    if unknown := [site for site in edits if site not in known]:
        raise NanoEulerError(f"a site must be ('stream', 0..{L}) or ('heads', 0..{L - 1}), got {unknown[0]}")

    def at(site, x):
        x = edits[site](x) if site in edits else x
        if kept is not None:
            kept[site] = x
        return x

    x = f.embed_forward(tokens, w["embed"])[0]  # [B, T, D]
    for i in range(L):
        x = at((STREAM, i), x)
        y = f.rmsnorm_forward(x, w[f"layers.{i}.norm1"], eps)[0]
        packed = (y @ w[f"layers.{i}.qkv"]).reshape(B, T, H + 2 * G, C).swapaxes(1, 2)  # [B, H+2G, T, C]
        q, k = (f.rope_forward(part, cos, sin)[0] for part in (packed[:, :H], packed[:, H : H + G]))
        heads, (*_, weights) = f.attention_forward(q, k, packed[:, H + G :])  # [B, H, T, C]
        if kept is not None:
            kept["weights", i] = weights.reshape(B, H, T, T)
        heads = at((HEADS, i), heads)
        x = x + heads.swapaxes(1, 2).reshape(B, T, H * C) @ w[f"layers.{i}.out"]
        y = f.rmsnorm_forward(x, w[f"layers.{i}.norm2"], eps)[0]
        gate, up = np.split(y @ w[f"layers.{i}.gate_up"], 2, axis=-1)  # [B, T, F] each
        x = x + f.swiglu_forward(gate, up)[0] @ w[f"layers.{i}.down"]
    x = at((STREAM, L), x)
    logits = f.rmsnorm_forward(x, w["norm_final"], eps)[0] @ model.heads[:, : config.vocab_size]
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


# ---- Edits


def patched(places: np.ndarray, values: np.ndarray) -> Edit:
    """Return an edit that puts values [B, D] into the stream: values[i] at position places[i] of row i."""

    def edit(x):
        x = x.copy()
        x[np.arange(len(places)), places] = values
        return x

    return edit


def instead(heads: Sequence[int], values: np.ndarray, where: np.ndarray | bool = True) -> Edit:
    """Return an edit that replaces the outputs of some heads by values that broadcast to [B, H, T, C].

    The values may be the twin's outputs or a mean. where: bool [B, T], the positions to replace (default: all).
    """

    def edit(outputs):
        chosen = np.isin(np.arange(outputs.shape[1]), heads)[:, None] & np.atleast_1d(where)[..., None, :]
        return np.where(chosen[..., None], values, outputs)

    return edit


def along(stream: np.ndarray, twin: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Move streams [B, D] along a probe's direction, [D] or [B, D], until the probe's output is as for the twin.

    The probe computes x . direction, so the move is the projection of twin minus stream onto the direction. A zero
    direction, for example for a name that is not in the probe's training data, leaves the stream unchanged.
    """
    unit = direction / np.maximum(np.linalg.norm(direction, axis=-1, keepdims=True), 1e-30)
    return stream + ((twin - stream) * unit).sum(axis=-1, keepdims=True) * unit


def random_moves(stream: np.ndarray, moved: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Move each stream [B, D] in a random direction, by its distance from `moved` [B, D], as a control for an edit."""
    random = rng.normal(size=stream.shape)
    length = np.linalg.norm(moved - stream, axis=-1, keepdims=True)
    return stream + random * (length / np.linalg.norm(random, axis=-1, keepdims=True))


# ---- Effect of single heads


def carriers(model: GPT, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of the name's effect that each head transmits, and the share lost without the head: [L, H] each.

    First array: the model reads the story with the head's outputs patched in from the twin; the entry is the fraction
    of the gap between story and twin that the patch closes. Second array: the model reads the twin with the head's
    outputs from the story (a resample ablation); the entry is the fraction of the gap that the ablation opens. The gap
    is the difference in KL(source || model).
    """
    kept, twin = {}, {}
    before = bits(forward(model, batch.story, kept=kept), batch).mean()
    best = bits(forward(model, batch.twin, kept=twin), batch).mean()
    carries, without = np.zeros((2, model.config.layers, model.config.heads))
    for layer, head in np.ndindex(carries.shape):
        for found, tokens, other, start in ((carries, batch.story, twin, before), (without, batch.twin, kept, best)):
            site = {(HEADS, layer): instead([head], other[HEADS, layer])}
            after = bits(forward(model, tokens, site), batch).mean()
            found[layer, head] = (after - start) / (before - best)
    return -carries, without


# ---- Directions that carry a patch's effect


def gradient(model: GPT, batch: Batch, depth: int, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss on the continuations given a stream, in nats per row [B], and its gradient [B, T, D].

    stream: [B, T, D] at `depth`. The blocks above that depth run as a separate model whose embedding is the stream.
    Raises NanoEulerError for a depth without a block above it.
    """
    B, T, D = stream.shape
    if not 0 <= depth < model.config.layers:
        raise NanoEulerError(f"depth must be 0 to {model.config.layers - 1}, so that a block is above it, got {depth}")
    config = replace(model.config, layers=model.config.layers - depth)
    own = {
        f"layers.{i}.{name}": f"layers.{i + depth}.{name}"
        for i in range(config.layers)
        for name in ("norm1", "qkv", "out", "norm2", "gate_up", "down")
    } | {"norm_final": "norm_final", "heads": "heads"}
    params = {name: model.params[there] for name, there in own.items()}
    params["embed"] = stream.reshape(B * T, D).astype(model.dtype)
    grads = {name: np.empty_like(value) for name, value in params.items()}
    plan, tokens = Plan(config, B, T, model.dtype), np.arange(B * T).reshape(B, T)
    targets = np.full((B, T, config.predict), -1, np.int64)
    following = np.append(batch.twin[:, 1:], batch.twin[:, :1], axis=1)  # the end of text follows a row's last token
    targets[..., 0] = np.where(batch.behind, following, -1)
    scale = np.zeros(config.predict)
    scale[0] = 1.0
    upper_forward(params, plan, tokens)
    backward(params, grads, plan, tokens, targets, scale)
    return plan.losses[:, 0].reshape(B, T).sum(axis=1), grads["embed"].reshape(B, T, D)


def patch_effects(model: GPT, batch: Batch, depth: int, points: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return the twin's stream minus the story's at the name [B, D], and the mean gradient between the two [B, D].

    The function differentiates the reduction in the loss of the twin's continuation, in nats; the gradient is averaged
    over `points` nodes of Gauss-Legendre quadrature between both streams. Its dot product with the difference is the
    effect of the whole patch, up to quadrature error (integrated gradients: Sundararajan, Taly and Yan 2017).
    """
    kept, twin = {}, {}
    forward(model, batch.story, kept=kept)
    forward(model, batch.twin, kept=twin)
    rows, stream = batch.rows, kept[STREAM, depth]
    there = twin[STREAM, depth][rows, batch.place]
    difference = there - stream[rows, batch.place]
    mean = np.zeros_like(difference)
    for at, weight in zip(*np.polynomial.legendre.leggauss(points), strict=True):
        between = patched(batch.place, there - (1 - at) / 2 * difference)(stream)
        mean -= weight / 2 * gradient(model, batch, depth, between)[1][rows, batch.place]
    return difference, mean


def causal_subspace(difference: np.ndarray, gradients: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k directions of a patch that carry most of its effect, [D, k] orthonormal, and their effects [k].

    difference, gradients: [N, D], from `patch_effects`. Let P be an orthogonal projection. To first order, patching
    only the part P d of each difference d reduces the loss by the sum of g . P d = tr(P M), with M = sum d g^T. Only
    the symmetric part of M matters, and the projection of rank k with the largest trace is the projection onto the k
    leading eigenvectors of this part (Fan 1949). Effects are means over the N pairs, in nats; the sum of all
    eigenvalues is the effect of the complete patch.
    """
    M = difference.T @ gradients / len(difference)
    values, vectors = np.linalg.eigh((M + M.T) / 2)
    return vectors[:, ::-1][:, :k].copy(), values[::-1][:k].copy()


def share_inside(directions: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Return the squared cosine of the angle between directions [..., D] and the span of an orthonormal basis."""
    return ((directions @ basis) ** 2).sum(axis=-1) / (directions**2).sum(axis=-1)
