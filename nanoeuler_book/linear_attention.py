"""Replace attention by a memory of fixed size, the gated delta rule, or by attention within a window.

The memory of a head is a matrix S [C, M]. A token writes its value v [M] under its key k [C], and a query q [C] reads
q @ S. Pairs of functions (forward, backward) have the arguments of `attention_forward` and `attention_backward` of
`ops/reference.py`, so they run in the book's model: `frame.by_layer` gives each layer its own pair. Chapter 36.
"""

import math
from collections.abc import Callable, Iterable
from functools import wraps

import numpy as np

import konigsberg
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.ops.reference import (
    attention_backward,
    attention_forward,
    rope_backward,
    rope_forward,
    rope_tables,
)
from nanoeuler_lib.text.tokenizer import Tokenizer

Pair = tuple[Callable, Callable]
KEEP = 4.0  # added to the logit of alpha, so that a fresh layer forgets slowly: sigmoid(4) = 0.98
FULL: Pair = (attention_forward, attention_backward)


# ---- The gated delta rule


def delta_forward(q, k, v, beta, alpha):
    """Compute the gated delta rule token by token.

    q, k: [..., T, C]; v: [..., T, M]; beta, alpha: [..., T]. Returns y [..., T, M] and (q, k, v, beta, alpha, states):
    a list of T + 1 memories S [..., C, M], the first of which is 0.
    """
    S = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), v.dtype)
    states, y = [S], []
    for t in range(k.shape[-2]):
        key, b, a = k[..., t, :], beta[..., t, None], alpha[..., t, None, None]
        kept = a * S
        error = v[..., t, :] - np.einsum("...c,...cm->...m", key, kept)  # v - k @ kept
        S = kept + key[..., :, None] * (b * error)[..., None, :]
        y.append(np.einsum("...c,...cm->...m", q[..., t, :], S))  # q @ S
        states.append(S)
    return np.stack(y, axis=-2), (q, k, v, beta, alpha, states)


def delta_backward(dy, saved):
    """Compute the gradients of the gated delta rule, from the last token to the first.

    dy: [..., T, M]; saved: from `delta_forward`. Returns dq, dk, dv, dbeta and dalpha, with the shapes of q, k, v, beta
    and alpha.
    """
    q, k, v, beta, alpha, states = saved
    dq, dk, dv, dbeta, dalpha = map(np.empty_like, (q, k, v, beta, alpha))
    dS = np.zeros_like(states[0])
    for t in reversed(range(k.shape[-2])):
        key, b, a = k[..., t, :], beta[..., t, None], alpha[..., t, None, None]
        kept = a * states[t]
        error = v[..., t, :] - np.einsum("...c,...cm->...m", key, kept)
        dq[..., t, :] = np.einsum("...cm,...m->...c", states[t + 1], dy[..., t, :])
        dS += q[..., t, :, None] * dy[..., t, None, :]
        dwrite = np.einsum("...c,...cm->...m", key, dS)  # of b * error
        dbeta[..., t] = (dwrite * error).sum(axis=-1)
        dv[..., t, :] = derror = b * dwrite
        dk[..., t, :] = np.einsum("...cm,...m->...c", dS, b * error) - np.einsum("...cm,...m->...c", kept, derror)
        dS -= key[..., :, None] * derror[..., None, :]  # now the gradient of kept
        dalpha[..., t] = np.einsum("...cm,...cm->...", dS, states[t])
        dS *= a
    return dq, dk, dv, dbeta, dalpha


def delta_chunked(q, k, v, beta, alpha, size=16):
    """Compute y of the gated delta rule chunk by chunk, with matrix products.

    The arguments are those of `delta_forward`, with alpha greater than 0; size: tokens
    per chunk. Returns y [..., T, M]. Yang et al. (2024), arXiv 2406.06484, 2412.06464.
    """
    rows, (T, C), M = k.shape[:-2], k.shape[-2:], v.shape[-1]
    y, S = np.empty_like(v), np.zeros((*rows, C, M), v.dtype)
    for start in range(0, T, size):
        at = slice(start, start + size)
        Q, K, V, b = q[..., at, :], k[..., at, :], v[..., at, :], beta[..., at, None]
        Kt, log = K.swapaxes(-1, -2), np.cumsum(np.log(alpha[..., at]), axis=-1)
        between = log[..., :, None] - log[..., None, :]  # above 0 for s > t only
        P, p = np.tril(np.exp(np.minimum(between, 0))), np.exp(log)[..., None]
        L = np.tril(b * P * (K @ Kt), -1)
        U = np.linalg.solve(np.eye(L.shape[-1]) + L, b * (V - p * (K @ S)))
        y[..., at, :] = p * (Q @ S) + (P * (Q @ Kt)) @ U
        S = p[..., -1:, :] * S + (P[..., -1, None, :] * Kt) @ U
    return y


# ---- In the model


def unit_forward(x):
    """Scale vectors x [..., C] to length 1. Returns them and (the scaled vectors, 1 / length [..., 1])."""
    scale = 1 / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)
    return x * scale, (x * scale, scale)


def unit_backward(dy, saved):
    """Compute the gradient of `unit_forward` with respect to x [..., C]: the part of dy across y, times the scale."""
    y, scale = saved
    return scale * (dy - y * (dy * y).sum(axis=-1, keepdims=True))


def sigmoid(x):
    """Return 1 / (1 + exp(-x)), computed by a tanh that cannot overflow."""
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def delta_attention(
    forward: Callable = delta_forward, backward: Callable = delta_backward, unrotate: bool = False
) -> Pair:
    """Return the pair that runs the gated delta rule in place of attention.

    The last two channels of v are the logits of beta and of alpha. The other channels are the value, and the last two
    channels of y are 0. Queries and keys are scaled to length 1. forward, backward: functions with the arguments and
    results of `delta_forward` and `delta_backward`; unrotate: undo the rotation of q and k by RoPE.
    """

    @wraps(forward)
    def forward_pass(q, k, v):
        heads, turn = q.shape[1] // k.shape[1], rope_tables(*q.shape[2:], dtype=q.dtype)
        if unrotate:  # rotate by the opposite angles
            q, k = rope_backward(q, turn), rope_backward(k, turn)
        k, v = np.repeat(k, heads, axis=1), np.repeat(v, heads, axis=1)  # [B, H, T, C]
        (q, of_q), (k, of_k) = unit_forward(q), unit_forward(k)
        beta, alpha = sigmoid(v[..., -2]), sigmoid(v[..., -1] + KEEP)
        y, saved = forward(q, k, v[..., :-2], beta, alpha)
        return np.concatenate([y, np.zeros_like(v[..., -2:])], axis=-1), (turn, heads, of_q, of_k, beta, alpha, saved)

    def backward_pass(dy, saved):
        turn, heads, of_q, of_k, beta, alpha, saved = saved
        dq, dk, dv, dbeta, dalpha = backward(dy[..., :-2], saved)
        logits = dbeta * beta * (1 - beta), dalpha * alpha * (1 - alpha)
        dv = np.concatenate([dv, np.stack(logits, axis=-1)], axis=-1)
        grouped = lambda d: d.reshape(len(d), -1, heads, *d.shape[2:]).sum(axis=2)  # [B, H, ...] -> [B, G, ...]
        dq, dk = unit_backward(dq, of_q), grouped(unit_backward(dk, of_k))
        if unrotate:
            dq, dk = rope_forward(dq, *turn)[0], rope_forward(dk, *turn)[0]
        return dq, dk, grouped(dv)

    return forward_pass, backward_pass


def window_attention(window: int) -> Pair:
    """Return the pair for attention in which a token reads itself and the window - 1 tokens before it."""

    def forward_pass(q, k, v):
        B, H, T, C = q.shape
        G = k.shape[1]
        qg, kg, vg = q.reshape(B, G, H // G, T, C), k[:, :, None], v[:, :, None]
        scores = qg @ kg.swapaxes(-1, -2) / math.sqrt(C)  # [B, G, H/G, T, T]
        back = np.subtract.outer(np.arange(T), np.arange(T))  # how far before the query a key is
        scores = np.where((back >= 0) & (back < window), scores, -np.inf)
        probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probs /= probs.sum(axis=-1, keepdims=True)
        return (probs @ vg).reshape(q.shape), (qg, kg, vg, probs)

    return forward_pass, attention_backward  # it reads the window from probs, which is 0 outside


def memory_bytes(
    config: ModelConfig, tokens: int, full: int = 0, window: int = 0, delta: int = 0, width: int = 0
) -> int:
    """Return the bytes per sequence that a model in float32 keeps after `tokens` tokens.

    full, window, delta: number of layers of each kind; width: tokens per window. The query heads of a group have the
    same keys, values and gates. So one matrix per key/value head is counted.
    """
    cached = full * tokens + window * min(tokens, width)
    return 4 * config.head_dim * config.kv_heads * (2 * cached + delta * (config.head_dim - 2))


# ---- Facts by distance


def fact_distances(stories: Iterable[konigsberg.Story], tokenizer: Tokenizer) -> np.ndarray:
    """Return how many tokens before the prediction of each token its fact was last stated, -1 where no fact decides.

    One entry per token of each story and one for its end, in the order of `evaluate.measure`. Token i is predicted at
    token i - 1. The distance is from there to the token with the last byte of the sentence that stated the fact.
    """
    distances = []
    for story in stories:
        lengths = tokenizer.token_lengths[np.asarray(tokenizer.encode(story.text))]
        truth, ends = konigsberg.token_truth(story.text, lengths), np.cumsum(lengths)
        stated = np.searchsorted(ends, ends - lengths - truth.bytes)
        distance = np.maximum(np.arange(len(ends)) - 1 - stated, 0)  # 0: the sentence is not complete yet
        distances.append(np.append(np.where(truth.tag == konigsberg.FACT, distance, -1), -1))
    return np.concatenate(distances)
