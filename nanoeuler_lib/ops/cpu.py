"""The composites of a training step for the CPU, in fast NumPy. The model calls them through `plan.op`.

Every function writes its results into its first arguments, which are existing buffers. It returns nothing and allocates
nothing that grows with the batch. Forward and backward (`_back`) of each layer follow each other, in the order of the
model. The backward functions of the norms add to `dx`, the gradient of the residual stream. In the docstrings,
dw (+)= ... means that the value is added to dw if `accumulate` is true and overwrites dw otherwise. N = B T is the
number of positions. The tests compare every buffer with what `ops/plain.py` computes from `ops/reference.py`.

These choices make the code fast (chapter 13). Products write directly into their destination (`out=`). RoPE is one
complex product, because the projection puts the two coordinates of a pair next to each other. Attention computes blocks
of rows, with the keys up to the end of the block only. Softmax normalises its result (T x C), not its T x T entries,
and subtracts the maximum only if `exp` could overflow or vanish. Row sums are products with a vector. Heads are strided
views. Logits exist for one head and 256 positions at a time. Element-wise functions process blocks of rows that stay in
cache.

The keyword-only arguments `work_...` are scratch space: `plan.shapes` lists their sizes, and `ops.bind` fills them in.
So the model calls each function with only the arguments that occur in its equation.
"""

import math

import numpy as np

from nanoeuler_lib.ops.reference import GELU, MOVE, QUINTIC, SCHULZ_STEPS, SMALLEST

BLOCK = 64  # rows of scores that attention computes at a time
ROWS = 128  # rows that SwiGLU and GELU compute at a time
SAFE = 40.0  # for |x| up to SAFE, float32 exp(x) and its sums and quotients neither overflow nor vanish


def _cut(work, start, *shape):
    """Return a view of scratch space with this shape, from its element `start` on."""
    flat = work.reshape(-1)
    return flat[start : start + math.prod(shape)].reshape(shape)


def _far_from_zero(z):
    """Return whether softmax must subtract the maximum of z before `exp`."""
    return max(z.max(), -z.min()) > SAFE


# ---- embedding


def embed(x, tokens, table):
    """Compute x[n] = table[tokens[n]]. x: [N, D]; tokens: integers [B, T] or [N]; table: [V, D]."""
    np.take(table, tokens.reshape(-1), axis=0, out=x, mode="clip")  # with "clip" NumPy writes into `out` without a copy


def embed_back(dtable, dx, tokens, accumulate, *, work_rows):
    """Compute dtable[v] (+)= the sum of dx[n] over all positions n with tokens[n] = v.

    dtable: [V, D]; dx: [N, D]. The sum runs in the order of n, so that the result is always bitwise the same.
    """
    if not accumulate:
        dtable[...] = 0
    tokens = tokens.reshape(-1)
    order = np.argsort(tokens, kind="stable")
    ordered = tokens[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    rows = work_rows[:, : dx.shape[1]]
    np.take(dx, order, axis=0, out=rows, mode="clip")
    dtable[ordered[first]] += np.add.reduceat(rows, first, axis=0)


# ---- linear


def linear(y, x, w):
    """Compute y = x w. x: [N, I]; w: [I, O]; y: [N, O]."""
    np.matmul(x, w, out=y)


def linear_back(dx, dw, dy, x, w, accumulate, *, work_weight):
    """Compute dx = dy w^T and dw (+)= x^T dy. If `dx` is None, compute only dw."""
    if dx is not None:
        np.matmul(dy, w.T, out=dx)
    _product(dw, x, dy, work_weight, accumulate)


def _product(dw, x, dy, work, accumulate):
    """Compute dw (+)= x^T dy over the last two axes."""
    if not accumulate:
        np.matmul(x.mT, dy, out=dw)
        return
    product = _cut(work, 0, *dw.shape)
    np.matmul(x.mT, dy, out=product)
    dw += product


# ---- residual add and RMSNorm


def add_rmsnorm(x, y, rstd, residual, update, gain, eps):
    """Compute x = residual + update, then y = rmsnorm(x) with rstd = 1 / root mean square of x.

    x, y, residual, update: [N, D]; rstd: [N, 1]; gain: [D]. If update is None, x is residual, and nothing is added.
    """
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
    """Add the gradient through RMSNorm to dx, and compute dgain (+)= the gradient of the gain. Overwrites dy.

    dx, dy, x: [N, D]; rstd: [N, 1]; y, the output of the norm, is used on the GPU only. The sum x = residual + update
    needs no code of its own, because dx is the gradient with respect to both terms.
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


# ---- query, key and value projection with RoPE


def qkv_rope(qkv, y, w, rope, config, *, work_qkv_weight):
    """Compute qkv = y w, rotate q and k by their positions, and divide q by sqrt(C).

    qkv: [N, (H+2G)C]; y: [N, D]; w: [D, (H+2G)C]; rope: `plan.Rope`. Within each head of
    q and k, the columns come out in the order `rope.order`, with the two coordinates of
    each pair next to each other. Scores do not depend on that order, because q k^T sums
    over the columns. Chapter 13.
    """
    np.take(w, rope.order, axis=1, out=work_qkv_weight, mode="clip")
    np.matmul(y, work_qkv_weight, out=qkv)
    _turn(qkv, rope.turn)


def qkv_rope_back(dy, dw, dqkv, y, w, rope, config, accumulate, *, work_qkv_weight, work_weight):
    """Compute dy = dqkv w^T and dw (+)= y^T dqkv, after undoing the rotation of dqkv in place."""
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


# ---- causal grouped-query attention


def attention(y, probs, softmax_stats, qkv, config):
    """Compute y = softmax(q k^T + causal mask) v for each head, with q already divided by sqrt(C).

    y: [N, HC]; qkv: [N, (H+2G)C]; probs: exp(scores), flat, in blocks of rows (`score_blocks`); softmax_stats:
    [B, G, H/G, T, 1], 1 / row sums of exp(scores).
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
    """Compute dqkv, the gradient of attention with respect to q, k and v. Overwrites dy.

    dqkv, qkv: [N, (H+2G)C]; dy, y: [N, HC]. The rows of all query heads that share a key/value head are stacked into
    one matrix (`group_...`), so that one product sums their gradients for its keys or values.
    """
    q, k, v = _heads(qkv, config, softmax_stats.shape)
    dq, dk, dv = _heads(dqkv, config, softmax_stats.shape)
    out, dout = _query_heads(y, config, softmax_stats.shape), _query_heads(dy, config, softmax_stats.shape)
    dout *= softmax_stats  # probs are not normalised, so dout takes the factor 1 / sum
    along = np.vecdot(dout, out)[..., None]  # sum_j dP_ij P_ij equals dout_i . out_i
    for rows, end, p in reversed(score_blocks(probs, softmax_stats.shape)):  # the last one has all keys
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
    """Return slices of at most BLOCK of `time` rows of scores; no row attends to keys from its slice's end on."""
    return [slice(start, min(start + BLOCK, time)) for start in range(0, time, BLOCK)]


def score_blocks(probs, shape):
    """Return (rows, end, scores) of each block of rows; scores [B, G, R, rows, end] is a view of `probs`.

    probs: flat, the blocks one after another; shape: [B, G, R, T, 1] with R = H/G.
    """
    blocks, start = [], 0
    for rows in row_blocks(shape[3]):
        scores = _cut(probs, start, *shape[:3], rows.stop - rows.start, rows.stop)
        blocks.append((rows, rows.stop, scores))
        start += scores.size
    return blocks


def _exp_scores(scores):
    """Replace a block of scores by exponentials, 0 for future keys; its last columns belong to its own rows."""
    last, far = scores[..., -scores.shape[-2] :], _far_from_zero(scores)
    last += _mask(last.shape[-1], scores.dtype)
    if far:
        scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)


_masks: dict[tuple, np.ndarray] = {}


def _mask(time, dtype):
    """Return the causal mask [T, T], 0 up to the diagonal and -inf after it; each is computed once."""
    if (time, dtype) not in _masks:
        _masks[time, dtype] = np.triu(np.full((time, time), -np.inf, dtype), 1)
    return _masks[time, dtype]


def _heads(qkv, config, shape):
    """Return views of packed qkv: q [B, G, H/G, T, C], k and v [B, G, T, C]."""
    B, G, R, T, _ = shape
    C = config.head_dim
    heads = qkv.reshape(B, T, -1, C).swapaxes(1, 2)  # [B, H+2G, T, C]
    q = heads[:, : G * R].reshape(B, G, R, T, C)
    return q, heads[:, G * R : G * R + G], heads[:, G * R + G :]


def _query_heads(y, config, shape):
    B, G, R, T, _ = shape
    return y.reshape(B, T, G, R, config.head_dim).transpose(0, 2, 3, 1, 4)


# ---- SwiGLU


def swiglu(hidden, sigmoid, gate_up):
    """Compute hidden = gate * sigmoid(gate) * up, and keep sigmoid(gate).

    gate_up: [N, 2F]; hidden, sigmoid: [N, F]. Chapter 13.
    """
    for h, s, gu in _row_blocks(hidden, sigmoid, gate_up):
        gate, up = _halves(gu)
        np.negative(gate, out=s)
        with np.errstate(over="ignore"):  # if exp overflows, the sigmoid is 0
            np.exp(s, out=s)
        s += 1.0
        np.reciprocal(s, out=s)
        np.multiply(gate, s, out=h)
        h *= up


def swiglu_back(dgate_up, dhidden, sigmoid, gate_up, *, work_rows):
    """Compute dgate_up [N, 2F], the gradient of SwiGLU with respect to gate and up. Overwrites dhidden [N, F]."""
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
    """Yield the same ROWS rows of all arrays at a time, so that they stay in cache."""
    for start in range(0, len(arrays[0]), ROWS):
        yield [array[start : start + ROWS] for array in arrays]


# ---- GPT-2's layers


def positions(x, table, time):
    """Compute x[b, t] += table[t]. x: [N, D]; table: [P, D]; time: T."""
    x.reshape(-1, time, x.shape[1])[...] += table[:time]


def positions_back(dtable, dx, time, accumulate, *, work_rows):
    """Compute dtable[t] (+)= the sum of dx[b, t] over b, 0 for t >= T. dtable: [P, D]; dx: [N, D]; time: T."""
    total = _cut(work_rows, 0, time, dx.shape[1])
    np.sum(dx.reshape(-1, *total.shape), axis=0, out=total)
    if not accumulate:
        dtable[...] = 0
    dtable[:time] += total


def affine(y, x, w, b):
    """Compute y = x w + b. x: [N, I]; w: [I, O]; b: [O]; y: [N, O]."""
    np.matmul(x, w, out=y)
    y += b


def affine_back(dx, dw, db, dy, x, w, accumulate, *, work_weight):
    """Compute dx = dy w^T, dw (+)= x^T dy, and db (+)= the sum of dy over positions."""
    linear_back(dx, dw, dy, x, w, accumulate, work_weight=work_weight)
    _sum_rows(db, dy, accumulate)


def _sum_rows(total, rows, accumulate):
    """Compute total (+)= the sum of the rows, as a product with a vector of ones."""
    ones = np.ones(len(rows), rows.dtype)
    if accumulate:
        total += ones @ rows
    else:
        np.matmul(ones, rows, out=total)


def add_layernorm(x, y, mean, rstd, residual, update, gain, bias, eps):
    """Compute x = residual + update, then y = layernorm(x) with the mean of x and rstd = 1 / its standard deviation.

    x, y, residual, update (None: nothing is added): [N, D]; mean, rstd: [N, 1]; gain, bias: [D].
    """
    if update is not None:
        np.add(residual, update, out=x)
    np.matmul(x, _mean(x), out=mean)
    np.subtract(x, mean, out=y)
    add_rmsnorm(y, y, rstd, y, None, gain, eps)
    y += bias


def add_layernorm_back(dx, dgain, dbias, dy, x, mean, rstd, gain, eps, accumulate, *, work_rows):
    """Add the gradient through layer normalisation to dx, and compute dgain and dbias (+)= theirs. Overwrites dy."""
    centred = _cut(work_rows, x.size, *x.shape)  # `add_rmsnorm_back` uses the scratch space before this
    np.subtract(x, mean, out=centred)
    _sum_rows(dbias, dy, accumulate)
    add_rmsnorm_back(dx, dgain, dy, centred, None, rstd, gain, eps, accumulate, work_rows=work_rows)
    dx -= dy @ _mean(x)  # dy is now the gradient of x - mean


def _mean(x):
    """Return a column [D, 1] of 1/D: x [N, D] times it is the mean of each row."""
    return np.full((x.shape[1], 1), 1 / x.shape[1], x.dtype)


def gelu(hidden, sigmoid, up):
    """Compute hidden = up (1 + tanh u) / 2 = up * sigmoid(2 u), all [N, F]; u: see `reference.gelu_forward`."""
    r, c = GELU
    for h, s, x in _row_blocks(hidden, sigmoid, up):
        np.multiply(x, x, out=s)
        s *= -2 * r * c
        s -= 2 * r
        s *= x
        with np.errstate(over="ignore"):  # if exp overflows, the sigmoid is 0
            np.exp(s, out=s)
        s += 1.0
        np.reciprocal(s, out=s)
        np.multiply(x, s, out=h)


def gelu_back(dup, dhidden, sigmoid, up, *, work_rows):
    """Compute dup = dhidden s (1 + x (1 - s) 2 du/dx), the gradient of GELU, with x = up and s = sigmoid(2 u)."""
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


# ---- prediction heads with softmax cross-entropy


def heads_loss(losses, dy, dw, y, w, targets, scale, accumulate, *, work_logits, work_weight):
    """Compute the losses of all prediction heads at all positions, and the gradients of their weighted sum.

    losses: [N, K] in nats, 0 without a target; y: [N, D]; w: [D, K V]; targets: [N, K], -1 for "no target"; scale: [K],
    a weight per head, or [N, K], a weight of either sign per position and head. The loss is (losses * scale).sum().
    dy: [N, D]; dw (+)=: [D, K V]. If dy and dw are None, only the losses are computed. Logits are not kept.
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
            pick = (np.arange(len(z)), target)  # a target of -1 reads the last column; its weight is 0
            at_target = z[pick]
            np.exp(z, out=z)
            total = z @ np.ones(V, z.dtype)
            losses[rows, head] = np.where(target >= 0, np.log(total) - at_target, 0)
            if dw is None:
                continue
            # a head with weight 0 has no gradient: skipping it saves 8% of a step of `small` if only head 0 counts
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


# ---- AdamW


def adamw(p, g, m, v, step, rate, beta1, beta2, eps, decay, block=32768):
    """Take an AdamW step in place, in blocks that stay in cache. p, g, m, v: [n]; see `reference.adamw_step`."""
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


# ---- Muon


def muon(p, g, m, rate, beta, decay, widths=None):
    """Take one step of Muon in place. p, g, m: [R, C]; the other arguments: see `reference.muon_step`."""
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
    """Compute `reference.newton_schulz` without transposing: a tall x is multiplied by its Gram matrix on the right."""
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
