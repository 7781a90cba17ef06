"""The composites of a training step, built from the pure functions of `ops/reference.py`.

They take the arguments of `ops/cpu.py` without the scratch space, and are slow. The tests compare the fast operations
with them, and `ops.use` runs a reader's own function inside the real model through them. No value is kept between the
forward and the backward pass: each `_back` method first runs the forward function again, which is slow but simple.
"""

import math

import numpy as np

from nanoeuler_lib.errors import NanoEulerError


class Plain:
    """Compute each composite with a table of pure functions, {"rmsnorm_forward": function, ...}.

    Each method has the arguments of the function of the same name in `ops/cpu.py`, and writes the same results.
    Raises NanoEulerError if a function of the table returns a wrong shape, or values that are not real numbers.
    """

    def __init__(self, functions: dict):
        self.f = functions

    def embed(self, x, tokens, table):
        _store(x.reshape(*tokens.shape, -1), self.f["embed_forward"](tokens, table)[0])

    def embed_back(self, dtable, dx, tokens, accumulate):
        _, saved = self.f["embed_forward"](tokens, dtable)
        _store(dtable, self.f["embed_backward"](dx.reshape(*tokens.shape, -1), saved), accumulate)

    def linear(self, y, x, w):
        _store(y, self.f["linear_forward"](x, w)[0])

    def linear_back(self, dx, dw, dy, x, w, accumulate):
        _, saved = self.f["linear_forward"](x, w)
        new_dx, new_dw = self.f["linear_backward"](dy, saved)
        if dx is not None:
            _store(dx, new_dx)
        _store(dw, new_dw, accumulate)

    def add_rmsnorm(self, x, y, rstd, residual, update, gain, eps):
        if update is not None:
            x[...] = residual + update
        # the backward pass of `ops/cpu.py` reads rstd
        rstd[...] = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
        _store(y, self.f["rmsnorm_forward"](x, gain, eps)[0])

    def add_rmsnorm_back(self, dx, dgain, dy, x, y, rstd, gain, eps, accumulate):
        _, saved = self.f["rmsnorm_forward"](x, gain, eps)
        new_dx, new_dgain = self.f["rmsnorm_backward"](dy, saved)
        _store(dx, new_dx, accumulate=True)
        _store(dgain, new_dgain, accumulate)

    def qkv_rope(self, qkv, y, w, rope, config):
        q, k, v = _split(self.f["linear_forward"](y, w)[0], len(rope.cos), config)
        q, k = (self.f["rope_forward"](x, rope.cos, rope.sin)[0] for x in (q, k))
        _pack(qkv, np.divide(q, math.sqrt(config.head_dim)), k, v)

    def qkv_rope_back(self, dy, dw, dqkv, y, w, rope, config, accumulate):
        packed, saved = self.f["linear_forward"](y, w)
        turned = [self.f["rope_forward"](x, rope.cos, rope.sin)[1] for x in _split(packed, len(rope.cos), config)[:2]]
        dq, dk, dv = _split(dqkv, len(rope.cos), config)
        dq = self.f["rope_backward"](dq / math.sqrt(config.head_dim), turned[0])
        dk = self.f["rope_backward"](dk, turned[1])
        dqkv = np.empty_like(dqkv)
        _pack(dqkv, dq, dk, dv)
        new_dy, new_dw = self.f["linear_backward"](dqkv, saved)
        _store(dy, new_dy)
        _store(dw, new_dw, accumulate)

    def attention(self, y, probs, softmax_stats, qkv, config):
        q, k, v = _split(qkv, softmax_stats.shape[3], config)
        _pack(y, self.f["attention_forward"](q * math.sqrt(config.head_dim), k, v)[0])

    def attention_back(self, dqkv, dy, y, probs, softmax_stats, qkv, config):
        root = math.sqrt(config.head_dim)
        q, k, v = _split(qkv, softmax_stats.shape[3], config)
        _, saved = self.f["attention_forward"](q * root, k, v)
        B, H, T, C = q.shape
        dq, dk, dv = self.f["attention_backward"](dy.reshape(B, T, H, C).swapaxes(1, 2), saved)
        _pack(dqkv, np.multiply(dq, root), dk, dv)

    def swiglu(self, hidden, sigmoid, gate_up):
        _store(hidden, self.f["swiglu_forward"](*np.split(gate_up, 2, axis=1))[0])

    def swiglu_back(self, dgate_up, dhidden, sigmoid, gate_up):
        _, saved = self.f["swiglu_forward"](*np.split(gate_up, 2, axis=1))
        dgate, dup = self.f["swiglu_backward"](dhidden, saved)
        _store(dgate_up, np.concatenate([dgate, dup], axis=1))

    def positions(self, x, table, time):
        _store(_rows(x, time), self.f["positions_forward"](_rows(x, time), table)[0])

    def positions_back(self, dtable, dx, time, accumulate):
        _, saved = self.f["positions_forward"](_rows(dx, time), dtable)
        _store(dtable, self.f["positions_backward"](_rows(dx, time), saved)[1], accumulate)

    def affine(self, y, x, w, b):
        _store(y, self.f["affine_forward"](x, w, b)[0])

    def affine_back(self, dx, dw, db, dy, x, w, accumulate):
        _, saved = self.f["affine_forward"](x, w, np.zeros_like(db))
        new_dx, new_dw, new_db = self.f["affine_backward"](dy, saved)
        _store(dx, new_dx)
        _store(dw, new_dw, accumulate)
        _store(db, new_db, accumulate)

    def add_layernorm(self, x, y, mean, rstd, residual, update, gain, bias, eps):
        if update is not None:
            x[...] = residual + update
        # the backward pass of `ops/cpu.py` reads mean and rstd
        mean[...] = x.mean(axis=-1, keepdims=True)
        rstd[...] = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + eps)
        _store(y, self.f["layernorm_forward"](x, gain, bias, eps)[0])

    def add_layernorm_back(self, dx, dgain, dbias, dy, x, mean, rstd, gain, eps, accumulate):
        _, saved = self.f["layernorm_forward"](x, gain, np.zeros_like(gain), eps)
        new_dx, new_dgain, new_dbias = self.f["layernorm_backward"](dy, saved)
        _store(dx, new_dx, accumulate=True)
        _store(dgain, new_dgain, accumulate)
        _store(dbias, new_dbias, accumulate)

    def gelu(self, hidden, sigmoid, up):
        _store(hidden, self.f["gelu_forward"](up)[0])

    def gelu_back(self, dup, dhidden, sigmoid, up):
        _store(dup, self.f["gelu_backward"](dhidden, self.f["gelu_forward"](up)[1]))

    def heads_loss(self, losses, dy, dw, y, w, targets, scale, accumulate):
        N, K = losses.shape
        logits, saved_linear = self.f["linear_forward"](y, w)
        new_losses, saved = self.f["cross_entropy_forward"](np.reshape(logits, (N, K, -1)), targets)
        _store(losses, new_losses)
        if dw is None:
            return
        dlogits = self.f["cross_entropy_backward"](np.broadcast_to(scale, (N, K)).astype(y.dtype), saved)
        new_dy, new_dw = self.f["linear_backward"](np.reshape(dlogits, (N, -1)), saved_linear)
        _store(dy, new_dy)
        _store(dw, new_dw, accumulate)

    def adamw(self, p, g, m, v, step, rate, beta1, beta2, eps, decay):
        for out, value in zip(
            (p, m, v), self.f["adamw_step"](p, g, m, v, step, rate, beta1, beta2, eps, decay), strict=True
        ):
            _store(out, value)

    def muon(self, p, g, m, rate, beta, decay, widths=None):
        for out, value in zip((p, m), self.f["muon_step"](p, g, m, rate, beta, decay, widths), strict=True):
            _store(out, value)


def _store(out, value, accumulate=False):
    """Write a function's result, an array or nested lists of real numbers, into `out`, or add it."""
    value = np.asarray(value)
    if value.shape != out.shape or value.dtype.kind not in "fiu":
        found, wanted = f"{value.dtype} {list(value.shape)}", f"{out.dtype} {list(out.shape)}"
        raise NanoEulerError(f"the result of a function of the model must be {wanted}, got {found}")
    if accumulate:
        out += value
    else:
        out[...] = value


def _rows(x, time):
    return x.reshape(-1, time, x.shape[1])


def _split(qkv, time, config):
    """Return q [B, H, T, C], k and v [B, G, T, C] of packed qkv [N, (H+2G)C]."""
    H, G, C = config.heads, config.kv_heads, config.head_dim
    packed = np.reshape(qkv, (-1, time, H + 2 * G, C)).swapaxes(1, 2)  # [B, H+2G, T, C]
    return packed[:, :H], packed[:, H : H + G], packed[:, H + G :]


def _pack(out, *heads):
    """Write arrays of heads [B, *, T, C] next to each other into out [N, ...]."""
    _store(out, np.concatenate(heads, axis=1).swapaxes(1, 2).reshape(out.shape))
