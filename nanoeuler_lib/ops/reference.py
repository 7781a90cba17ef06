"""The reference implementation: each layer of the model as a pair of pure NumPy functions, in any float dtype.

Every layer is a pair

    y, saved = f_forward(x, ...)        # saved: what the backward pass needs, and nothing else
    grads    = f_backward(dy, saved)    # dy: gradient of the loss with respect to y

The functions do not change their arguments, keep no state and are not tuned for speed. The chapters derive them one by
one and show the same text. The tests compare `ops/cpu.py` and the GPU kernels with them.

Shapes: B batch, T time, D model width, H query heads, G key/value heads, C head width, F feed-forward width,
V vocabulary. A leading `...` means any number of axes. A gradient `dx` has the shape of `x`.
"""

import math

import numpy as np

# --------------------------------------------------------------------------------------------------------------
# embedding


def embed_forward(tokens, table):
    """Look up one row of `table` for each token.

    tokens: integers [B, T] in [0, V); table: [V, D]. Returns x [B, T, D]. Chapter 00.
    """
    x = table[tokens]  # [B, T] -> [B, T, D]
    return x, (tokens, table.shape)


def embed_backward(dx, saved):
    """Add the gradient at each position to the table row that was looked up there.

    dx: [B, T, D]. Returns dtable [V, D]. The row of a token that occurs n times
    receives the sum of n gradients.
    """
    tokens, shape = saved
    dtable = np.zeros(shape, dx.dtype)
    np.add.at(dtable, tokens, dx)  # dtable[tokens] += dx would count a repeated token once
    return dtable


# --------------------------------------------------------------------------------------------------------------
# linear


def linear_forward(x, w):
    """Multiply x by a weight matrix, without a bias.

    x: [..., I]; w: [I, O]. Returns y [..., O]. Chapter 03.
    """
    return x @ w, (x, w)  # [..., I] @ [I, O] -> [..., O]


def linear_backward(dy, saved):
    """Compute the gradients of the product x w with respect to x and w.

    dy: [..., O]. Returns dx [..., I] and dw [I, O]. Chapter 03.
    """
    x, w = saved
    dx = dy @ w.T  # [..., O] @ [O, I] -> [..., I]
    rows_x = x.reshape(-1, x.shape[-1])  # [N, I]; N is the product of the leading axes
    rows_dy = dy.reshape(-1, dy.shape[-1])  # [N, O]
    dw = rows_x.T @ rows_dy  # [I, N] @ [N, O] -> [I, O]
    return dx, dw


# --------------------------------------------------------------------------------------------------------------
# RMSNorm


def rmsnorm_forward(x, gain, eps=1e-5):
    """Divide each vector by its root mean square, then scale each coordinate.

    x: [..., D]; gain: [D]; eps: added to the mean square. Returns y [..., D].
    Zhang and Sennrich 2019, equation 4. Chapter 08.
    """
    rstd = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)  # [..., 1]
    normed = x * rstd  # [..., D], mean square 1
    return normed * gain, (normed, rstd, gain)


def rmsnorm_backward(dy, saved):
    """Compute the gradients of RMSNorm with respect to x and gain.

    dy: [..., D]. Returns dx [..., D] and dgain [D]. The subtracted term removes the
    component of the gradient along x, because scaling x does not change y (except for
    the effect of eps). Chapter 08.
    """
    normed, rstd, gain = saved
    dgain = (dy * normed).reshape(-1, gain.size).sum(axis=0)  # [..., D] -> [D]
    dnormed = dy * gain
    along = np.mean(dnormed * normed, axis=-1, keepdims=True)  # [..., 1]
    dx = rstd * (dnormed - normed * along)
    return dx, dgain


# --------------------------------------------------------------------------------------------------------------
# rotary position embedding (RoPE), half-split convention


def rope_tables(time, width, theta=10000.0, dtype=np.float64):
    """Compute the cosines and sines of the angles by which RoPE rotates each pair.

    time: T, for positions 0 to T-1; width: C, even; theta: base of the frequencies.
    Returns cos and sin, both [T, C/2]. The angle of pair j at position t is
    t * theta**(-2j/C), in radians. Su et al. 2021, equation 15. Chapter 07.
    """
    frequency = theta ** (-np.arange(0, width, 2) / width)  # [C/2]
    angle = np.outer(np.arange(time), frequency)  # [T, C/2]
    return np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)


def rope_forward(x, cos, sin):
    """Rotate each pair (x[j], x[j + C/2]) of a vector by the angle of its position.

    x: [..., T, C]; cos, sin: [T, C/2], from `rope_tables`. Returns y [..., T, C].
    Chapter 07.
    """
    x1, x2 = np.split(x, 2, axis=-1)  # [..., T, C/2] each
    y = np.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)
    return y, (cos, sin)


def rope_backward(dy, saved):
    """Rotate the gradient by the opposite angles.

    dy: [..., T, C]. Returns dx [..., T, C]. The gradient of y = R x is R^T dy, and the
    transpose of a rotation is the rotation by the opposite angle. Chapter 07.
    """
    cos, sin = saved
    return rope_forward(dy, cos, -sin)[0]


# --------------------------------------------------------------------------------------------------------------
# causal grouped-query attention


def attention_forward(q, k, v):
    """Average the values up to each position, weighted by softmax of q k^T / sqrt(C).

    q: [B, H, T, C]; k, v: [B, G, T, C], where H is a multiple of G, and each key/value
    head serves H/G query heads. Returns y [B, H, T, C]. Vaswani et al. 2017, equation 1;
    grouped queries: Ainslie et al. 2023. Chapters 06 and 15.
    """
    B, H, T, C = q.shape
    G = k.shape[1]
    qg = q.reshape(B, G, H // G, T, C)  # group the query heads by their key/value head
    kg, vg = k[:, :, None], v[:, :, None]  # [B, G, 1, T, C]
    # [B, G, H/G, T, C] @ [B, G, 1, C, T] -> [B, G, H/G, T, T]
    scores = qg @ kg.swapaxes(-1, -2) / math.sqrt(C)
    future = np.triu(np.ones((T, T), bool), 1)  # column (key) after row (query)
    scores = np.where(future, -np.inf, scores)
    probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probs /= probs.sum(axis=-1, keepdims=True)
    y = probs @ vg  # [B, G, H/G, T, T] @ [B, G, 1, T, C] -> [B, G, H/G, T, C]
    return y.reshape(B, H, T, C), (qg, kg, vg, probs)


def attention_backward(dy, saved):
    """Compute the gradients of causal attention with respect to q, k and v.

    dy: [B, H, T, C]. Returns dq [B, H, T, C], dk and dv [B, G, T, C]. The gradients
    from all query heads that share a key/value head are summed. Chapters 06 and 15.
    """
    qg, kg, vg, probs = saved
    B, G, R, T, C = qg.shape
    dyg = dy.reshape(B, G, R, T, C)
    dvg = probs.swapaxes(-1, -2) @ dyg  # [.., T, T]^T @ [.., T, C] -> [B, G, R, T, C]
    dprobs = dyg @ vg.swapaxes(-1, -2)  # [B, G, R, T, T]
    # dscores is 0 where probs is 0, so the future needs no mask here
    dscores = probs * (dprobs - (dprobs * probs).sum(axis=-1, keepdims=True))
    dscores /= math.sqrt(C)
    dqg = dscores @ kg  # [B, G, R, T, C]
    dkg = dscores.swapaxes(-1, -2) @ qg  # [B, G, R, T, C]
    return dqg.reshape(B, G * R, T, C), dkg.sum(axis=2), dvg.sum(axis=2)


# --------------------------------------------------------------------------------------------------------------
# SwiGLU


def swiglu_forward(gate, up):
    """Multiply `up` by SiLU(gate) = gate * sigmoid(gate), coordinate by coordinate.

    gate, up: [..., F]. Returns y = gate * sigmoid(gate) * up, [..., F]. Shazeer 2020,
    equation 5. Chapter 09.
    """
    with np.errstate(over="ignore"):  # if exp(-gate) overflows, sigmoid is 0, as it should be
        sigmoid = 1.0 / (1.0 + np.exp(-gate))
    return gate * sigmoid * up, (gate, up, sigmoid)


def swiglu_backward(dy, saved):
    """Compute the gradients of SwiGLU with respect to gate and up.

    dy: [..., F]. Returns dgate and dup, [..., F]. With the sigmoid s = s(g), the
    derivative of SiLU is d/dg [g s] = s + g s (1 - s). Chapter 09.
    """
    gate, up, sigmoid = saved
    silu = gate * sigmoid
    dgate = dy * up * (sigmoid + silu * (1.0 - sigmoid))
    dup = dy * silu
    return dgate, dup


# --------------------------------------------------------------------------------------------------------------
# GPT-2's layers: a bias, layer norm, GELU, learned positions


def affine_forward(x, w, b):
    """Multiply x by a weight matrix and add a bias.

    x: [..., I]; w: [I, O], the layout of GPT-2's files; b: [O]. Returns y [..., O].
    """
    y, saved = linear_forward(x, w)
    return y + b, saved


def affine_backward(dy, saved):
    """Compute the gradients of y = x w + b with respect to x, w and b.

    dy: [..., O]. Returns dx [..., I], dw [I, O] and db [O]. The bias is added at every position, so db is the sum of
    dy over all positions.
    """
    dx, dw = linear_backward(dy, saved)
    db = dy.reshape(-1, dy.shape[-1]).sum(axis=0)  # [..., O] -> [O]
    return dx, dw, db


def layernorm_forward(x, gain, bias, eps=1e-5):
    """Subtract each vector's mean, divide by its standard deviation, then scale and shift each coordinate.

    x: [..., D]; gain, bias: [D]; eps: added to the variance. Returns y [..., D]. The standard deviation of x is the
    root mean square of x - mean(x), so this is RMSNorm of x - mean(x), plus a bias. Ba, Kiros and Hinton 2016,
    equation 4.
    """
    centred = x - np.mean(x, axis=-1, keepdims=True)  # [..., D]
    y, saved = rmsnorm_forward(centred, gain, eps)
    return y + bias, saved


def layernorm_backward(dy, saved):
    """Compute the gradients of layer normalisation with respect to x, gain and bias.

    dy: [..., D]. Returns dx [..., D], dgain and dbias [D]. Subtracting the mean multiplies x by I - J/D, where all
    entries of J are 1. This matrix is symmetric, so the backward pass subtracts the mean of the gradient.
    """
    dcentred, dgain = rmsnorm_backward(dy, saved)
    dx = dcentred - np.mean(dcentred, axis=-1, keepdims=True)
    dbias = dy.reshape(-1, dy.shape[-1]).sum(axis=0)  # [..., D] -> [D]
    return dx, dgain, dbias


GELU = math.sqrt(2 / math.pi), 0.044715  # r and c of u = r (x + c x^3)


def gelu_forward(x):
    """Multiply each x by the normal distribution function at x, in the tanh approximation that GPT-2 uses.

    x: [..., F]. Returns y = x (1 + tanh u) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), [..., F]. Hendrycks and Gimpel
    2016, section 2.
    """
    r, c = GELU
    tanh = np.tanh(r * (x + c * x * x * x))
    return x * (1.0 + tanh) / 2, (x, tanh)


def gelu_backward(dy, saved):
    """Compute the gradient of GELU with respect to x.

    dy: [..., F]. Returns dx [..., F]. With u = r (x + c x^3), the derivative d/dx [x (1 + tanh u) / 2] is
    (1 + tanh u) / 2 + x (1 - tanh^2 u) / 2 du/dx, and du/dx = r (1 + 3 c x^2).
    """
    (r, c), (x, tanh) = GELU, saved
    slope = r * (1.0 + 3 * c * x * x)
    return dy * (1.0 + tanh + x * (1.0 - tanh * tanh) * slope) / 2


def positions_forward(x, table):
    """Add row t of a table to the vector at position t.

    x: [B, T, D]; table: [P, D], P >= T. Returns y [B, T, D]. Gehring et al. 2017, section 3.1.
    """
    return x + table[: x.shape[1]], table.shape  # [B, T, D] + [T, D]


def positions_backward(dy, saved):
    """Compute the gradients of learned positions with respect to x and the table.

    dy: [B, T, D]. Returns dx [B, T, D], which equals dy, and dtable [P, D]. Row t is added to every sequence of the
    batch, so its gradient is a sum over the batch; rows from T on are unused and get 0.
    """
    dtable = np.zeros(saved, dy.dtype)
    dtable[: dy.shape[1]] = dy.sum(axis=0)  # [B, T, D] -> [T, D]
    return dy, dtable


# --------------------------------------------------------------------------------------------------------------
# softmax cross-entropy


def cross_entropy_forward(logits, targets):
    """Compute the surprise at each target in nats; it is 0 where the target is -1.

    logits: [..., V]; targets: integers [...] in [-1, V). Returns losses [...]:
    log sum exp(logits) - logits[target]. Chapter 03.
    """
    valid = targets >= 0
    column = np.where(valid, targets, 0)[..., None]  # where the target is -1, any column will do
    shifted = logits - logits.max(axis=-1, keepdims=True)  # at most 0: exp cannot overflow
    log_sum = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))  # [..., 1]
    losses = (log_sum - np.take_along_axis(shifted, column, axis=-1))[..., 0]  # [...]
    return np.where(valid, losses, 0.0), (np.exp(shifted - log_sum), column, valid)


def cross_entropy_backward(dlosses, saved):
    """Compute the gradient of the surprises with respect to the logits.

    dlosses: [...]. Returns dlogits [..., V]: (softmax - one-hot target) * dloss, and 0
    where the target is -1. Chapter 03.
    """
    probs, column, valid = saved
    dlogits = probs.copy()
    at_target = np.take_along_axis(probs, column, axis=-1) - 1.0
    np.put_along_axis(dlogits, column, at_target, axis=-1)
    return dlogits * np.where(valid, dlosses, 0.0)[..., None]


# --------------------------------------------------------------------------------------------------------------
# AdamW


def adamw_step(p, g, m, v, step, rate, beta1, beta2, eps, decay):
    """Take one step of AdamW for one tensor.

    p, g, m, v: parameter, gradient, first and second moment, all of the same shape;
    step: 1 for the first; rate: learning rate; beta1, beta2: decay of the moments; eps:
    added to the denominator; decay: weight decay. Returns the new p, m and v.
    Loshchilov and Hutter 2019, algorithm 2. Chapter 11.
    """
    m = m + (1 - beta1) * (g - m)
    v = v + (1 - beta2) * (g * g - v)
    m_hat = m / (1 - beta1**step)
    v_hat = v / (1 - beta2**step)
    p = p - rate * decay * p - rate * m_hat / (np.sqrt(v_hat) + eps)
    return p, m, v


# --------------------------------------------------------------------------------------------------------------
# Muon

QUINTIC = 3.4445, -4.7750, 2.0315  # of f, Jordan et al. 2024: steep at 0, so small values grow fast
SCHULZ_STEPS = 5
MOVE = 0.2  # RMS of a step / learning rate, as measured for AdamW: Liu et al. 2025, section 2.2
SMALLEST = 1e-15  # least norm to divide by: squares of smaller float32 numbers underflow


def newton_schulz(u):
    """Bring all singular values of a matrix close to 1, and keep its singular vectors.

    u: [R, C]. If u / ||u|| = U S V^T, returns U f(f(f(f(f(S))))) V^T, [R, C], where
    f(s) = 3.4445 s - 4.7750 s^3 + 2.0315 s^5 acts on each singular value. An odd
    polynomial of a matrix needs only matrix products. f maps [0.6818, 1.2024] into
    itself, and five applications bring every value from 0.00151 to 1 into this interval;
    smaller values grow up to 485-fold. Jordan et al. 2024. Chapter A2.
    """
    a, b, c = QUINTIC
    x = u if u.shape[0] <= u.shape[1] else u.T  # so that x x^T is the smaller Gram matrix
    x = x / max(np.linalg.norm(x), SMALLEST)  # singular values at most 1
    for _ in range(SCHULZ_STEPS):
        gram = x @ x.T  # U S^2 U^T
        x = a * x + (b * gram + c * gram @ gram) @ x  # U (a S + b S^3 + c S^5) V^T
    return x if u.shape[0] <= u.shape[1] else x.T


def muon_step(p, g, m, rate, beta, decay, widths=None):
    """Take one step of Muon for one matrix: move equally far in all singular directions.

    p, g, m: parameter, gradient and momentum, [R, C]; rate: learning rate; beta: decay
    of the momentum; decay: weight decay; widths: numbers of columns of the matrices that
    p consists of, by default one matrix; each is orthogonalised separately. Returns the
    new p and m. Jordan et al. 2024, with Nesterov momentum. The factor is from Liu et
    al. 2025, section 2.2: it makes the root mean square of a step about 0.2 times the
    learning rate for every shape, as they measured for AdamW. Chapter A2.
    """
    m = beta * m + g
    u = g + beta * m
    parts = np.split(u, np.cumsum(widths)[:-1], axis=1) if widths else [u]
    moves = [MOVE * math.sqrt(max(part.shape)) * newton_schulz(part) for part in parts]
    return p - rate * (np.concatenate(moves, axis=1) + decay * p), m
