"""Changing a model's mind: its residual stream edited while it reads, and what that does to what it says next.

    forward(model, tokens, {("stream", 2): patched(places, values)})        # [B, T] -> log-probabilities [B, T, V]

A site is ("stream", depth), with depth 0 the embedding and l what leaves block l, or ("heads", layer), the outputs of a
block's attention heads before they are mixed. An edit is a function of the array at its site.

A direction that a probe reads need not be one that the model uses. Which directions of a patch carry its effect is
found by `causal_subspace`; a null at one place is no proof of disuse, since attention may have read the name before.
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
    """Run a model that is edited on the way: tokens [B, T] to log-probabilities of what comes next, in nats [B, T, V].

    edits: by site, a function of the stream [B, T, D] or of the heads' outputs [B, H, T, C] that returns another array
    of that shape; kept: a dictionary to be filled with the arrays at all sites, as edited, and under ("weights", layer)
    with where each head looks, [B, H, T, T]. The pure functions of `ops.reference` in the order of `model.gpt.forward`.
    Raises NanoEulerError for a site that is none, whose edit would do nothing.
    """
    w, config, eps = model.params, model.config, model.config.norm_eps
    H, G, C, (B, T) = config.heads, config.kv_heads, config.head_dim, tokens.shape
    cos, sin = f.rope_tables(T, C, config.rope_theta, model.dtype)
    edits, L = edits or {}, config.layers
    known = {*((STREAM, i) for i in range(L + 1)), *((HEADS, i) for i in range(L))}
    if unknown := [site for site in edits if site not in known]:
        raise NanoEulerError(f"there is no site {unknown[0]}, expected ('stream', 0..{L}) or ('heads', 0..{L - 1})")

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
    """Put values [B, D] into the stream, each at its row's place [B]: those of a twin, or moved ones."""

    def edit(x):
        x = x.copy()
        x[np.arange(len(places)), places] = values
        return x

    return edit


def instead(heads: Sequence[int], values: np.ndarray, where: np.ndarray | bool = True) -> Edit:
    """Put other outputs in the place of some heads': values [B, H, T, C], those of a twin, or a mean that broadcasts.

    where: bool [B, T], at which places; by default at all.
    """

    def edit(outputs):
        chosen = np.isin(np.arange(outputs.shape[1]), heads)[:, None] & np.atleast_1d(where)[..., None, :]
        return np.where(chosen[..., None], values, outputs)

    return edit


def along(stream: np.ndarray, twin: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Move streams [B, D] along a probe's direction, [D] or [B, D], until the probe reads what it reads of the twin's.

    The probe reads x . direction; so the move is the part of the twin's difference that lies along the direction. A
    direction of zeros, as of a name that a probe has not met, moves nothing.
    """
    unit = direction / np.maximum(np.linalg.norm(direction, axis=-1, keepdims=True), 1e-30)
    return stream + ((twin - stream) * unit).sum(axis=-1, keepdims=True) * unit


def random_moves(stream: np.ndarray, moved: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Move streams [B, D] as far as they were moved, each in a random direction."""
    random = rng.normal(size=stream.shape)
    length = np.linalg.norm(moved - stream, axis=-1, keepdims=True)
    return stream + random * (length / np.linalg.norm(random, axis=-1, keepdims=True))


def scaled_moves(
    effect: Callable[[np.ndarray], float], stream: np.ndarray, random: np.ndarray, wanted: float, steps: int = 10
) -> tuple[np.ndarray, float]:
    """Scale random moves until they change the logits as much as is wanted; return the streams [B, D] and the scale.

    effect: of streams, how much they change the logits, growing with the scale; it is met by halving an interval of
    scales, 0 to 32. If 32 times the move has less effect, that is returned: the scale says so.
    """
    low, high = 0.0, 32.0
    for _ in range(steps):
        middle = np.sqrt(max(low, 1 / 32) * high)
        low, high = (middle, high) if effect(stream + middle * (random - stream)) < wanted else (low, middle)
    return stream + high * (random - stream), high


# ---- Which head carries the name


def carriers(model: GPT, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Return for each head how much of the twin it carries, and how much is lost without it: [L, H] each.

    The first: the model reads the story, but the head's outputs are those it has on the twin; the share of the gap
    between story and twin that this closes. The second: the model reads the twin, but the head's outputs are those it
    has on the story (a resample ablation); the share that this opens. Gaps are of KL(law || model).
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


# ---- Which directions of a patch carry its effect


def gradient(model: GPT, batch: Batch, depth: int, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what the continuations cost from a stream on, in nats a row [B], and its gradient [B, T, D].

    stream: [B, T, D] at a depth. The blocks above it are run as a model of their own whose embedding is the stream.
    Raises NanoEulerError for a depth with no block above it.
    """
    B, T, D = stream.shape
    if not 0 <= depth < model.config.layers:
        raise NanoEulerError(f"depth is {depth}, expected 0 to {model.config.layers - 1}: a block above it")
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
    following = np.append(batch.twin[:, 1:], batch.twin[:, :1], axis=1)  # a row's last token is followed by the end
    targets[..., 0] = np.where(batch.behind, following, -1)
    scale = np.zeros(config.predict)
    scale[0] = 1.0
    upper_forward(params, plan, tokens)
    backward(params, grads, plan, tokens, targets, scale)
    return plan.losses[:, 0].reshape(B, T).sum(axis=1), grads["embed"].reshape(B, T, D)


def patch_effects(model: GPT, batch: Batch, depth: int, points: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return how the twin's stream at the name differs [B, D], and the mean gradient on the way there [B, D].

    The gradient is of the nats that the twin's continuation is cheaper, the mean over `points` places of Gauss's rule
    between the story's stream and the twin's; so its product with the difference is, but for the rule's error, what the
    whole patch saves (Sundararajan, Taly and Yan 2017: integrated gradients).
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
    """Return the k directions of a patch that carry most of its effect, [D, k] orthonormal, and the effect of each [k].

    difference, gradients: [N, D] of `patch_effects`. To first order, a patch of the part P d of each difference d, for
    an orthogonal projection P, saves the sum of g . P d = tr(P M), with M = sum d g^T. Only M's symmetric part counts,
    and among projections of rank k the one onto its k leading eigenvectors has the largest trace (Fan 1949). All
    eigenvalues together are the effect of the whole patch; effect: in nats, the mean over the N pairs.
    """
    M = difference.T @ gradients / len(difference)
    values, vectors = np.linalg.eigh((M + M.T) / 2)
    return vectors[:, ::-1][:, :k].copy(), values[::-1][:k].copy()


def share_inside(directions: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Return the squared cosine of the angle between directions [..., D] and a subspace, basis [D, k] orthonormal."""
    inside = ((directions @ basis) ** 2).sum(axis=-1)
    return inside / (directions**2).sum(axis=-1)


def random_subspace(dim: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """An orthonormal basis [D, k] of a subspace, each as likely; a direction's mean share in it is k / D."""
    return np.linalg.qr(rng.normal(size=(dim, k)))[0]
