"""Divide queries and keys by their root mean square before attention computes its scores (QK-norm).

The functions replace `attention_forward` and `attention_backward` in `ops.use`, so a model of the book can train with
the norm. Its RoPE has already rotated the queries and keys. A rotation does not change a root mean square, so the
result is the same as with the norm before RoPE. Chapters 08 and A2.
"""

import numpy as np

from nanoeuler_lib.ops.reference import attention_backward, attention_forward, rmsnorm_backward, rmsnorm_forward


def qk_norm_forward(q, k, v, factor=1.0, eps=1e-6):
    """Compute causal attention with normalised queries and keys.

    q: [B, H, T, C]; k, v: [B, G, T, C]; factor: multiplies all scores; eps: as in `rmsnorm_forward`. Returns
    y [B, H, T, C] and what the backward pass needs. No score exceeds factor * sqrt(C) in absolute value.
    """
    ones = np.ones(q.shape[-1], q.dtype)
    q, saved_q = rmsnorm_forward(q, factor * ones, eps)
    k, saved_k = rmsnorm_forward(k, ones, eps)
    y, saved = attention_forward(q, k, v)
    return y, (saved_q, saved_k, saved)


def qk_norm_backward(dy, saved):
    """Compute the gradients of `qk_norm_forward` with respect to q, k and v.

    dy: [B, H, T, C]; saved: from `qk_norm_forward`. Returns dq [B, H, T, C], dk and dv [B, G, T, C].
    """
    saved_q, saved_k, saved = saved
    dq, dk, dv = attention_backward(dy, saved)
    return rmsnorm_backward(dq, saved_q)[0], rmsnorm_backward(dk, saved_k)[0], dv
