"""The composites of a training step, fast on a CPU: NumPy into buffers that exist already.

Every function writes its results into arguments that stand first, returns nothing, and allocates nothing that grows
with the batch. Forward and backward stand side by side in the order of the model; `_back` functions add to `dx` of
the residual stream and, where `accumulate` is true, to weight gradients. `ops/plain.py` does the same with the pure
functions of `ops/reference.py`; the tests hold the two equal in every buffer.

What makes it fast: products write into place (`out=`); RoPE is one complex
product, because q and k leave their projection with pairs side by side; softmax is never normalised over its T x T
entries, only the T x C result is; heads are strided views, never copies; logits exist for 256 positions at a time.
Arguments named `work...` are scratch space.
"""

import numpy as np

# --------------------------------------------------------------------------------------------------------------
# embedding


def embed(x, tokens, table):
    """x[n] = table[tokens[n]]. x: [N, D]; tokens: [N]; table: [V, D]."""
    np.take(table, tokens, axis=0, out=x, mode="clip")  # with "clip" NumPy writes into `out` without a copy


def embed_back(dtable, dx, tokens, work, accumulate):
    """dtable[v] (+)= sum of dx[n] over positions n with tokens[n] = v, in the order of n: always the same bits."""
    if not accumulate:
        dtable[...] = 0
    order = np.argsort(tokens, kind="stable")
    ordered = tokens[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    rows = work[:, : dx.shape[1]]
    np.take(dx, order, axis=0, out=rows, mode="clip")
    dtable[ordered[first]] += np.add.reduceat(rows, first, axis=0)


# --------------------------------------------------------------------------------------------------------------
# linear


def linear(y, x, w):
    """y = x w. x: [N, I]; w: [I, O]; y: [N, O]."""
    np.matmul(x, w, out=y)


def linear_back(dx, dw, dy, x, w, work_weight, accumulate):
    """dx = dy w^T, dw (+)= x^T dy. `dx` None skips it."""
    if dx is not None:
        np.matmul(dy, w.T, out=dx)
    _weight_gradient(dw, x, dy, work_weight, accumulate)


def _weight_gradient(dw, x, dy, work_weight, accumulate):
    if not accumulate:
        np.matmul(x.T, dy, out=dw)
        return
    product = work_weight[: dw.size].reshape(dw.shape)
    np.matmul(x.T, dy, out=product)
    dw += product


# --------------------------------------------------------------------------------------------------------------
# residual add and RMSNorm


def add_rmsnorm(x, y, rstd, before, delta, gain, eps):
    """x = before + delta, y = rmsnorm(x). All [N, D] but rstd [N, 1]; delta None adds nothing (x is before)."""
    if delta is not None:
        np.add(before, delta, out=x)
    np.einsum("nd,nd->n", x, x, out=rstd[:, 0])
    rstd *= 1.0 / x.shape[1]
    rstd += eps
    np.sqrt(rstd, out=rstd)
    np.reciprocal(rstd, out=rstd)
    np.multiply(x, rstd, out=y)
    y *= gain


def add_rmsnorm_back(dx, dgain, dy, x, rstd, gain, eps, work, accumulate):
    """dx += the gradient through rmsnorm; dgain (+)= its own. Overwrites dy.

    The sum x = before + delta hands dx to both of its terms unchanged, so there is nothing more to do.
    """
    normed = work[:, : x.shape[1]]
    np.multiply(x, rstd, out=normed)
    if accumulate:
        dgain += np.einsum("nd,nd->d", dy, normed)
    else:
        np.einsum("nd,nd->d", dy, normed, out=dgain)
    dy *= gain
    along = np.einsum("nd,nd->n", dy, normed)[:, None]
    along *= 1.0 / x.shape[1]
    normed *= along
    dy -= normed
    dy *= rstd
    dx += dy


# --------------------------------------------------------------------------------------------------------------
# query, key and value projection with RoPE


def qkv_rope(qkv, y, w, rope, config, work_weight):
    """qkv = y w, then turn q and k by their positions and divide q by sqrt(C). y: [N, D]; w: [D, (H+2G)C].

    The columns of each head of q and k come out paired (`Rope.order`), which no score can see: q k^T sums over them.
    """
    np.take(w, rope.order, axis=1, out=work_weight, mode="clip")
    np.matmul(y, work_weight, out=qkv)
    _turn(qkv, rope.turn)


def qkv_rope_back(dy, dw, dqkv, y, w, rope, config, work_weight, work_sum, accumulate):
    """dy and dw of `qkv_rope`. Turns dqkv back in place."""
    _turn(dqkv, rope.turn_back)
    np.take(w, rope.order, axis=1, out=work_weight, mode="clip")
    np.matmul(dqkv, work_weight.T, out=dy)
    product = work_sum[: dw.size].reshape(dw.shape)
    np.matmul(y.T, dqkv, out=product)
    if accumulate:
        dw[:, rope.order] += product
    else:
        dw[:, rope.order] = product


def _turn(qkv, turn):
    time, pairs = turn.shape
    z = qkv.view(turn.dtype).reshape(-1, time, qkv.shape[1] // 2)[:, :, :pairs]  # [B, T, (H+G) C/2]
    z *= turn


# --------------------------------------------------------------------------------------------------------------
# causal grouped-query attention


def attention(y, probs, inv_sum, qkv, config):
    """y = softmax(q k^T + mask) v per head. y: [N, HC]; qkv: [N, (H+2G)C]; probs, inv_sum: see `plan.shapes`."""
    q, k, v = _heads(qkv, config, probs.shape)
    np.matmul(q, k.swapaxes(-1, -2), out=probs)
    probs += _mask(probs.shape[-1], probs.dtype)
    probs -= probs.max(axis=-1, keepdims=True)
    np.exp(probs, out=probs)
    np.sum(probs, axis=-1, keepdims=True, out=inv_sum)
    np.reciprocal(inv_sum, out=inv_sum)
    out = _query_heads(y, config, probs.shape)
    np.matmul(probs, v, out=out)
    out *= inv_sum


def attention_back(dqkv, dy, y, probs, inv_sum, qkv, config, work_heads, work_probs):
    """dqkv of `attention`. Overwrites dy."""
    q, k, v = _heads(qkv, config, probs.shape)
    dq, dk, dv = _heads(dqkv, config, probs.shape)
    out, dout = _query_heads(y, config, probs.shape), _query_heads(dy, config, probs.shape)
    dout *= inv_sum  # probs lack this factor, so dout carries it
    along = np.einsum("bgrtc,bgrtc->bgrt", dout, out)[..., None]  # sum_j dP_ij P_ij equals dout_i . out_i
    np.matmul(probs.swapaxes(-1, -2), dout, out=work_heads)
    np.sum(work_heads, axis=2, out=dv[:, :, 0])
    np.matmul(dout, v.swapaxes(-1, -2), out=work_probs)
    work_probs -= along
    work_probs *= probs
    np.matmul(work_probs, k, out=dq)
    np.matmul(work_probs.swapaxes(-1, -2), q, out=work_heads)
    np.sum(work_heads, axis=2, out=dk[:, :, 0])


def _heads(qkv, config, shape):
    """Views of packed qkv: q [B, G, H/G, T, C], k and v [B, G, 1, T, C]."""
    B, G, R, T, _ = shape
    C = config.head_dim
    packed = qkv.reshape(B, T, -1)
    q = packed[:, :, : G * R * C].reshape(B, T, G, R, C).transpose(0, 2, 3, 1, 4)
    k, v = (
        packed[:, :, s : s + G * C].reshape(B, T, G, 1, C).transpose(0, 2, 3, 1, 4)
        for s in _kv_columns(config)
    )
    return q, k, v


def _kv_columns(config):
    C = config.head_dim
    return config.heads * C, (config.heads + config.kv_heads) * C


def _query_heads(y, config, shape):
    B, G, R, T, _ = shape
    return y.reshape(B, T, G, R, config.head_dim).transpose(0, 2, 3, 1, 4)


_masks = {}


def _mask(time, dtype):
    """[T, T]: 0 up to the diagonal, -inf after it; made once for each length."""
    if (time, dtype) not in _masks:
        _masks[time, dtype] = np.triu(np.full((time, time), -np.inf, dtype), 1)
    return _masks[time, dtype]


# --------------------------------------------------------------------------------------------------------------
# SwiGLU


def swiglu(hidden, sigmoid, gate_up):
    """hidden = gate * sigmoid(gate) * up. gate_up: [N, 2F]; hidden, sigmoid: [N, F]."""
    gate, up = np.split(gate_up, 2, axis=1)
    np.negative(gate, out=sigmoid)
    with np.errstate(over="ignore"):  # exp may reach infinity, its sigmoid is then 0
        np.exp(sigmoid, out=sigmoid)
    sigmoid += 1.0
    np.reciprocal(sigmoid, out=sigmoid)
    np.multiply(gate, sigmoid, out=hidden)
    hidden *= up


def swiglu_back(dgate_up, dhidden, sigmoid, gate_up, work):
    """dgate_up of `swiglu`. Overwrites dhidden."""
    gate, up = np.split(gate_up, 2, axis=1)
    dgate, dup = np.split(dgate_up, 2, axis=1)
    silu = work[:, : gate.shape[1]]
    np.multiply(gate, sigmoid, out=silu)
    np.multiply(dhidden, silu, out=dup)
    dhidden *= up
    np.subtract(1.0, sigmoid, out=dgate)
    dgate *= silu
    dgate += sigmoid  # d silu / d gate = s + silu (1 - s)
    dgate *= dhidden


# --------------------------------------------------------------------------------------------------------------
# prediction heads with softmax cross-entropy


def heads_loss(losses, dy, dw, y, w, targets, scale, work_logits, work_weight, accumulate):
    """Losses of all prediction heads at all positions, and the gradients of their weighted sum; logits are not kept.

    losses: [N, K], nats; y: [N, D]; w: [D, K V]; targets: [N, K] with -1 for "no target"; scale: [K], the weight of
    one position in the loss, so that the loss is (losses * scale).sum(). dy: [N, D]; dw: [D, K V]. With dy and dw
    None only the losses are computed.
    """
    N, K = losses.shape
    rows = len(work_logits)
    V = w.shape[1] // K
    for start in range(0, N, rows):
        part = slice(start, min(start + rows, N))
        logits = work_logits[: part.stop - start, : K * V]
        np.matmul(y[part], w, out=logits)
        z = logits.reshape(-1, V)  # a row for each position and head
        target = targets[part].reshape(-1)
        weight = np.where(target >= 0, np.broadcast_to(scale, (part.stop - start, K)).reshape(-1), 0).astype(
            y.dtype
        )
        pick = (np.arange(len(z)), target)  # -1 picks the last column, whose weight is then 0
        z -= z.max(axis=1, keepdims=True)
        at_target = z[pick]
        np.exp(z, out=z)
        total = z.sum(axis=1, keepdims=True)
        losses[part] = np.where(target >= 0, np.log(total[:, 0]) - at_target, 0).reshape(-1, K)
        if dw is None:
            continue
        z *= weight[:, None] / total
        z[pick] -= weight
        np.matmul(logits, w.T, out=dy[part])
        _weight_gradient(dw, y[part], logits, work_weight, accumulate or start > 0)


# --------------------------------------------------------------------------------------------------------------
# AdamW


def adamw(p, g, m, v, step, rate, beta1, beta2, eps, decay, block=32768):
    """One AdamW step in place, block by block so that all that a block needs stays in cache. All [n], flat."""
    a, b = np.empty((2, min(block, p.size)), p.dtype)
    correct1, correct2 = 1 - beta1**step, 1 - beta2**step
    for start in range(0, p.size, block):
        part = slice(start, start + block)
        pp, gg, mm, vv = p[part], g[part], m[part], v[part]
        aa, bb = a[: pp.size], b[: pp.size]
        np.subtract(gg, mm, out=aa)
        aa *= 1 - beta1
        mm += aa
        np.multiply(gg, gg, out=aa)
        aa -= vv
        aa *= 1 - beta2
        vv += aa
        np.divide(vv, correct2, out=aa)
        np.sqrt(aa, out=aa)
        aa += eps
        np.divide(mm, aa, out=aa)
        aa *= rate / correct1
        np.multiply(pp, rate * decay, out=bb)
        pp -= bb
        pp -= aa
