"""The composites of a training step, fast on a CPU: NumPy into buffers that exist already.

Every function writes its results into arguments that stand first, returns nothing, and allocates nothing that grows
with the batch. Forward and backward stand side by side in the order of the model; `_back` functions add to `dx` of
the residual stream and, where `accumulate` is true, to weight gradients. `ops/plain.py` does the same with the pure
functions of `ops/reference.py`; the tests hold the two equal in every buffer.

What makes it fast: products write into place (`out=`); RoPE is one complex product, because q and k leave their
projection with pairs side by side; attention computes blocks of rows, and of the future only what lies in a block;
softmax is never normalised over its T x T entries, only the T x C result is, and no largest score is subtracted where
`exp` does not need it; the sums of rows are products with a vector; heads are strided views; logits exist for one
head and 256 positions at a time; what takes many passes over wide rows takes them block by block, in cache.

What a function takes by keyword alone, `work_...`, is scratch space: `plan.shapes` has its sizes, and `ops.bind` puts
it in, so that the model calls each function with what its equation names.
"""

import math

import numpy as np

from nanoeuler_lib.ops.reference import GELU, MOVE, QUINTIC, SCHULZ_STEPS, SMALLEST

BLOCK = 64  # rows that attention computes at a time
ROWS = 128  # rows that SwiGLU computes at a time
SAFE = 40.0  # for |x| up to here exp(x) neither overflows nor vanishes, in float32, nor do its sums and quotients


def _cut(work, start, *shape):
    """An array of this shape in scratch space, from its element `start` on."""
    flat = work.reshape(-1)
    return flat[start : start + math.prod(shape)].reshape(shape)


def _far_from_zero(z):
    """Whether a softmax of z needs its largest number subtracted: two passes to know it, where the rest takes four."""
    return max(z.max(), -z.min()) > SAFE


# --------------------------------------------------------------------------------------------------------------
# embedding


def embed(x, tokens, table):
    """x[n] = table[tokens[n]]. x: [N, D]; tokens: [B, T] with N = B T, or [N]; table: [V, D]."""
    np.take(table, tokens.reshape(-1), axis=0, out=x, mode="clip")  # with "clip" NumPy writes into `out` without a copy


def embed_back(dtable, dx, tokens, accumulate, *, work_rows):
    """dtable[v] (+)= sum of dx[n] over positions n with tokens[n] = v, in the order of n: always the same bits."""
    if not accumulate:
        dtable[...] = 0
    tokens = tokens.reshape(-1)
    order = np.argsort(tokens, kind="stable")
    ordered = tokens[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    rows = work_rows[:, : dx.shape[1]]
    np.take(dx, order, axis=0, out=rows, mode="clip")
    dtable[ordered[first]] += np.add.reduceat(rows, first, axis=0)


# --------------------------------------------------------------------------------------------------------------
# linear


def linear(y, x, w):
    """y = x w. x: [N, I]; w: [I, O]; y: [N, O]."""
    np.matmul(x, w, out=y)


def linear_back(dx, dw, dy, x, w, accumulate, *, work_weight):
    """dx = dy w^T, dw (+)= x^T dy. `dx` None skips it."""
    if dx is not None:
        np.matmul(dy, w.T, out=dx)
    _product(dw, x, dy, work_weight, accumulate)


def _product(dw, x, dy, work, accumulate):
    """dw (+)= x^T dy, over the last two axes."""
    if not accumulate:
        np.matmul(x.mT, dy, out=dw)
        return
    product = _cut(work, 0, *dw.shape)
    np.matmul(x.mT, dy, out=product)
    dw += product


# --------------------------------------------------------------------------------------------------------------
# residual add and RMSNorm


def add_rmsnorm(x, y, rstd, residual, update, gain, eps):
    """x = residual + update, y = rmsnorm(x). All [N, D] but rstd [N, 1]; update None adds nothing (x is residual)."""
    if update is not None:
        np.add(residual, update, out=x)
    np.vecdot(x, x, out=rstd[:, 0])
    rstd *= 1.0 / x.shape[1]
    rstd += eps
    np.sqrt(rstd, out=rstd)
    np.reciprocal(rstd, out=rstd)
    np.multiply(x, rstd, out=y)
    y *= gain


def add_rmsnorm_back(dx, dgain, dy, x, y, rstd, gain, eps, accumulate, *, work_rows):
    """dx += the gradient through rmsnorm; dgain (+)= its own. Overwrites dy; y, the norm's output, is for the GPU.

    The sum x = residual + update hands dx to both of its terms unchanged, so there is nothing more to do.
    """
    product = _cut(work_rows, 0, *x.shape)
    np.multiply(dy, x, out=product)
    along = (product @ gain)[:, None]  # dnormed . x
    along *= rstd**3 / x.shape[1]
    if accumulate:
        dgain += rstd[:, 0] @ product
    else:
        np.matmul(rstd[:, 0], product, out=dgain)
    dy *= gain
    dy *= rstd
    np.multiply(x, along, out=product)
    dy -= product
    dx += dy


# --------------------------------------------------------------------------------------------------------------
# query, key and value projection with RoPE


def qkv_rope(qkv, y, w, rope, config, *, work_qkv_weight):
    """qkv = y w, then turn q and k by their positions and divide q by sqrt(C). y: [N, D]; w: [D, (H+2G)C].

    The columns of each head of q and k come out paired (`Rope.order`), which no score can see: q k^T sums over them.
    """
    np.take(w, rope.order, axis=1, out=work_qkv_weight, mode="clip")
    np.matmul(y, work_qkv_weight, out=qkv)
    _turn(qkv, rope.turn)


def qkv_rope_back(dy, dw, dqkv, y, w, rope, config, accumulate, *, work_qkv_weight, work_weight):
    """dy and dw of `qkv_rope`. Turns dqkv back in place."""
    _turn(dqkv, rope.turn_back)
    np.take(w, rope.order, axis=1, out=work_qkv_weight, mode="clip")
    np.matmul(dqkv, work_qkv_weight.T, out=dy)
    product = _cut(work_weight, 0, *dw.shape)
    np.matmul(y.T, dqkv, out=product)
    np.take(product, rope.place, axis=1, out=work_qkv_weight, mode="clip")
    if accumulate:
        dw += work_qkv_weight
    else:
        dw[...] = work_qkv_weight


def _turn(qkv, turn):
    time, pairs = turn.shape
    z = qkv.view(turn.dtype).reshape(-1, time, qkv.shape[1] // 2)[:, :, :pairs]  # [B, T, (H+G) C/2]
    z *= turn


# --------------------------------------------------------------------------------------------------------------
# causal grouped-query attention


def attention(y, probs, softmax_stats, qkv, config):
    """y = softmax(q k^T + mask) v per head. y: [N, HC]; qkv: [N, (H+2G)C]; probs: see `plan.shapes`.

    softmax_stats: [B, G, H/G, T, 1], 1 / row sums of exp(scores).
    """
    q, k, v = _heads(qkv, config, softmax_stats.shape)
    out = _query_heads(y, config, softmax_stats.shape)
    for rows, end, scores in score_blocks(probs, softmax_stats.shape):
        np.matmul(q[:, :, :, rows], k[:, :, None, :end].mT, out=scores)
        _exp_scores(scores)
        softmax_stats[:, :, :, rows, 0] = scores @ np.ones(end, scores.dtype)
        np.matmul(scores, v[:, :, None, :end], out=out[:, :, :, rows])
    np.reciprocal(softmax_stats, out=softmax_stats)
    out *= softmax_stats


def attention_back(dqkv, dy, y, probs, softmax_stats, qkv, config, *, work_heads, work_probs):
    """dqkv of `attention`. Overwrites dy.

    The rows of the query heads that share a key stand below each other (`group_...`), so that one product adds up what
    all of them send back to it.
    """
    q, k, v = _heads(qkv, config, softmax_stats.shape)
    dq, dk, dv = _heads(dqkv, config, softmax_stats.shape)
    out, dout = _query_heads(y, config, softmax_stats.shape), _query_heads(dy, config, softmax_stats.shape)
    dout *= softmax_stats  # probs lack this factor, so dout carries it
    along = np.vecdot(dout, out)[..., None]  # sum_j dP_ij P_ij equals dout_i . out_i
    for rows, end, p in reversed(score_blocks(probs, softmax_stats.shape)):  # first the one that reaches every key
        B, G, R, t, _ = p.shape
        dp, block = _cut(work_probs, 0, *p.shape), _cut(work_heads, 0, B, G, R, t, config.head_dim)
        group_p, group_dp, group = (x.reshape(B, G, R * t, -1) for x in (p, dp, block))
        work, accumulate = work_heads[block.size :], end < softmax_stats.shape[3]
        block[...] = dout[:, :, :, rows]
        _product(dv[:, :, :end], group_p, group, work, accumulate)
        np.matmul(group, v[:, :, :end].mT, out=group_dp)
        dp -= along[:, :, :, rows]
        dp *= p
        block[...] = q[:, :, :, rows]
        _product(dk[:, :, :end], group_dp, group, work, accumulate)
        np.matmul(dp, k[:, :, None, :end], out=dq[:, :, :, rows])


def row_blocks(time):
    """Slices of the rows of scores that attention computes together; no row of a slice sees a key from its end on."""
    return [slice(start, min(start + BLOCK, time)) for start in range(0, time, BLOCK)]


def score_blocks(probs, shape):
    """(rows, end, scores) of each block: scores [B, G, R, rows, end], a part of `probs`, where block follows block."""
    blocks, start = [], 0
    for rows in row_blocks(shape[3]):
        scores = _cut(probs, start, *shape[:3], rows.stop - rows.start, rows.stop)
        blocks.append((rows, rows.stop, scores))
        start += scores.size
    return blocks


def _exp_scores(scores):
    """exp in place, 0 for keys in the future: above the diagonal of the last columns, which are the rows' own."""
    last, far = scores[..., -scores.shape[-2] :], _far_from_zero(scores)
    last += _mask(last.shape[-1], scores.dtype)
    if far:
        scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)


_masks: dict[tuple, np.ndarray] = {}


def _mask(time, dtype):
    """[T, T]: 0 up to the diagonal, -inf after it; made once for each length."""
    if (time, dtype) not in _masks:
        _masks[time, dtype] = np.triu(np.full((time, time), -np.inf, dtype), 1)
    return _masks[time, dtype]


def _heads(qkv, config, shape):
    """Views of packed qkv: q [B, G, H/G, T, C], k and v [B, G, T, C]."""
    B, G, R, T, _ = shape
    C = config.head_dim
    heads = qkv.reshape(B, T, -1, C).swapaxes(1, 2)  # [B, H+2G, T, C]
    q = heads[:, : G * R].reshape(B, G, R, T, C)
    return q, heads[:, G * R : G * R + G], heads[:, G * R + G :]


def _query_heads(y, config, shape):
    B, G, R, T, _ = shape
    return y.reshape(B, T, G, R, config.head_dim).transpose(0, 2, 3, 1, 4)


# --------------------------------------------------------------------------------------------------------------
# SwiGLU


def swiglu(hidden, sigmoid, gate_up):
    """hidden = gate * sigmoid(gate) * up. gate_up: [N, 2F]; hidden, sigmoid: [N, F]."""
    for h, s, gu in _row_blocks(hidden, sigmoid, gate_up):
        gate, up = _halves(gu)
        np.negative(gate, out=s)
        with np.errstate(over="ignore"):  # exp may reach infinity, its sigmoid is then 0
            np.exp(s, out=s)
        s += 1.0
        np.reciprocal(s, out=s)
        np.multiply(gate, s, out=h)
        h *= up


def swiglu_back(dgate_up, dhidden, sigmoid, gate_up, *, work_rows):
    """dgate_up of `swiglu`. Overwrites dhidden."""
    for dgu, dh, s, gu in _row_blocks(dgate_up, dhidden, sigmoid, gate_up):
        (gate, up), (dgate, dup) = _halves(gu), _halves(dgu)
        silu = _cut(work_rows, 0, *s.shape)
        np.multiply(gate, s, out=silu)
        np.multiply(dh, silu, out=dup)
        dh *= up
        dh *= s
        slope = np.subtract(gate, silu, out=silu)
        slope += 1.0  # d silu / d gate = s (1 + gate - silu)
        np.multiply(dh, slope, out=dgate)


def _halves(gate_up):
    F = gate_up.shape[1] // 2
    return gate_up[:, :F], gate_up[:, F:]


def _row_blocks(*arrays):
    """The same rows of all arrays, some at a time: what is read and written in many passes stays in cache."""
    for start in range(0, len(arrays[0]), ROWS):
        yield [array[start : start + ROWS] for array in arrays]


# --------------------------------------------------------------------------------------------------------------
# GPT-2's layers


def positions(x, table, time):
    """x[b, t] += table[t]. x: [N, D] with N = B T; table: [P, D]; time: T."""
    x.reshape(-1, time, x.shape[1])[...] += table[:time]


def positions_back(dtable, dx, time, accumulate, *, work_rows):
    """dtable[t] (+)= sum of dx[b, t] over b; 0 for rows that no position used."""
    total = _cut(work_rows, 0, time, dx.shape[1])
    np.sum(dx.reshape(-1, *total.shape), axis=0, out=total)
    if not accumulate:
        dtable[...] = 0
    dtable[:time] += total


def affine(y, x, w, b):
    """y = x w + b. x: [N, I]; w: [I, O]; b: [O]; y: [N, O]."""
    np.matmul(x, w, out=y)
    y += b


def affine_back(dx, dw, db, dy, x, w, accumulate, *, work_weight):
    """dx = dy w^T, dw (+)= x^T dy, db (+)= sum of dy over positions."""
    linear_back(dx, dw, dy, x, w, accumulate, work_weight=work_weight)
    _sum_rows(db, dy, accumulate)


def _sum_rows(total, rows, accumulate):
    """total (+)= sum of the rows, as a product with ones."""
    ones = np.ones(len(rows), rows.dtype)
    if accumulate:
        total += ones @ rows
    else:
        np.matmul(ones, rows, out=total)


def add_layernorm(x, y, mean, rstd, residual, update, gain, bias, eps):
    """x = residual + update, y = layernorm(x). All [N, D] but mean and rstd [N, 1]; update None adds nothing."""
    if update is not None:
        np.add(residual, update, out=x)
    np.matmul(x, _mean(x), out=mean)
    np.subtract(x, mean, out=y)
    add_rmsnorm(y, y, rstd, y, None, gain, eps)
    y += bias


def add_layernorm_back(dx, dgain, dbias, dy, x, mean, rstd, gain, eps, accumulate, *, work_rows):
    """dx += the gradient through layernorm; dgain and dbias (+)= their own. Overwrites dy."""
    centred = _cut(work_rows, x.size, *x.shape)  # behind what `add_rmsnorm_back` takes
    np.subtract(x, mean, out=centred)
    _sum_rows(dbias, dy, accumulate)
    add_rmsnorm_back(dx, dgain, dy, centred, None, rstd, gain, eps, accumulate, work_rows=work_rows)
    dx -= dy @ _mean(x)  # dy is now the gradient of x - mean


def _mean(x):
    """[D, 1], whose product with x [N, D] is the mean of each row."""
    return np.full((x.shape[1], 1), 1 / x.shape[1], x.dtype)


def gelu(hidden, sigmoid, up):
    """hidden = up (1 + tanh u) / 2 = up * sigmoid(2 u), u as in `reference.gelu_forward`. All [N, F]."""
    r, c = GELU
    for h, s, x in _row_blocks(hidden, sigmoid, up):
        np.multiply(x, x, out=s)
        s *= -2 * r * c
        s -= 2 * r
        s *= x
        with np.errstate(over="ignore"):  # exp may reach infinity, its sigmoid is then 0
            np.exp(s, out=s)
        s += 1.0
        np.reciprocal(s, out=s)
        np.multiply(x, s, out=h)


def gelu_back(dup, dhidden, sigmoid, up, *, work_rows):
    """dup of `gelu`: dhidden s (1 + x (1 - s) 2 du/dx)."""
    r, c = GELU
    for dx, dh, s, x in _row_blocks(dup, dhidden, sigmoid, up):
        slope = _cut(work_rows, 0, *s.shape)
        np.multiply(x, x, out=slope)
        slope *= 6 * r * c
        slope += 2 * r
        slope *= x
        np.subtract(1.0, s, out=dx)
        slope *= dx
        slope += 1.0
        slope *= s
        np.multiply(dh, slope, out=dx)


# --------------------------------------------------------------------------------------------------------------
# prediction heads with softmax cross-entropy


def heads_loss(losses, dy, dw, y, w, targets, scale, accumulate, *, work_logits, work_weight):
    """Losses of all prediction heads at all positions, and the gradients of their weighted sum; logits are not kept.

    losses: [N, K], nats; y: [N, D]; w: [D, K V]; targets: [N, K] with -1 for "no target"; scale: [K], the weight of
    one position in the loss, or [N, K], a weight of either sign for each, so that the loss is (losses * scale).sum().
    dy: [N, D]; dw: [D, K V]. With dy and dw None only the losses are computed.
    """
    (N, D), K = y.shape, losses.shape[1]
    scale = np.broadcast_to(scale, (N, K))
    V = w.shape[1] // K
    for start in range(0, N, len(work_logits)):
        rows = slice(start, min(start + len(work_logits), N))
        for head in range(K):
            columns, target = slice(head * V, (head + 1) * V), targets[rows, head]
            z = _cut(work_logits, 0, len(target), V)
            np.matmul(y[rows], w[:, columns], out=z)
            if _far_from_zero(z):
                z -= z.max(axis=1, keepdims=True)
            pick = (np.arange(len(z)), target)  # -1 picks the last column, whose weight is then 0
            at_target = z[pick]
            np.exp(z, out=z)
            total = z @ np.ones(V, z.dtype)
            losses[rows, head] = np.where(target >= 0, np.log(total) - at_target, 0)
            if dw is None:
                continue
            # no gradient: 8% of a step of `small` when no later head counts
            if head > 0 and not scale[:, head].any():
                if not accumulate:
                    dw[:, columns] = 0
                continue
            weight = np.where(target >= 0, scale[rows, head], 0).astype(z.dtype)
            z *= (weight / total)[:, None]
            z[pick] -= weight
            _product(dw[:, columns], y[rows], z, work_weight, accumulate or start > 0)
            if head == 0:
                np.matmul(z, w[:, columns].T, out=dy[rows])
            else:
                part = _cut(work_logits, z.size, len(target), D)
                np.matmul(z, w[:, columns].T, out=part)
                dy[rows] += part


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


# --------------------------------------------------------------------------------------------------------------
# Muon


def muon(p, g, m, rate, beta, decay, widths=None):
    """One step of Muon in place. p, g, m: [R, C]; widths: as of `reference.muon_step`."""
    m *= beta
    m += g
    u = m * beta
    u += g
    p *= 1 - rate * decay
    start = 0
    for width in widths or [u.shape[1]]:
        columns = slice(start, start := start + width)
        move = _newton_schulz(u[:, columns])
        move *= rate * MOVE * math.sqrt(max(move.shape))
        p[:, columns] -= move


def _newton_schulz(u):
    """`reference.newton_schulz` without transposing: of a tall matrix the smaller Gram matrix stands on the right."""
    (a, b, c), wide = QUINTIC, u.shape[0] <= u.shape[1]
    x = u / max(float(np.linalg.norm(u)), SMALLEST)
    y, side = np.empty_like(x), min(x.shape)
    gram, square = np.empty((2, side, side), x.dtype)
    for _ in range(SCHULZ_STEPS):
        np.matmul(x, x.T, out=gram) if wide else np.matmul(x.T, x, out=gram)
        np.matmul(gram, gram, out=square)
        square *= c
        gram *= b
        gram += square
        np.matmul(gram, x, out=y) if wide else np.matmul(x, gram, out=y)
        x *= a
        x += y
    return x
