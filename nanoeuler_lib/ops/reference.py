"""The truth: each layer of the model as a pure pair of functions, in NumPy, in any float dtype.

Every layer is a pair

    y, saved = f_forward(x, ...)        # saved: what the backward pass needs, and nothing else
    grads    = f_backward(dy, saved)    # dy: gradient of the loss with respect to y

and nothing here changes its arguments, keeps state or is tuned for speed. The chapters derive these functions one
by one and show the same text; `ops/cpu.py` and the kernels are checked against them.

Shapes: B batch, T time, D model width, H query heads, G key/value heads, C head width, F feed-forward width,
V vocabulary. A leading `...` stands for any number of axes.
"""

import math

import numpy as np

# --------------------------------------------------------------------------------------------------------------
# embedding


def embed_forward(tokens, table):
    """Look up one row of `table` for each token.

    tokens: integers [B, T] in [0, V); table: [V, D]. Returns x [B, T, D].
    """
    x = table[tokens]  # [B, T] -> [B, T, D]
    return x, (tokens, table.shape)


def embed_backward(dx, saved):
    """Add each position's gradient to the row that it came from.

    dx: [B, T, D]. Returns dtable [V, D]. A token that occurs n times receives n gradients.
    """
    tokens, shape = saved
    dtable = np.zeros(shape, dx.dtype)
    np.add.at(dtable, tokens, dx)  # unlike dtable[tokens] += dx, repeated tokens all count
    return dtable


# --------------------------------------------------------------------------------------------------------------
# linear


def linear_forward(x, w):
    """Multiply by a weight matrix, without a bias.

    x: [..., I]; w: [I, O]. Returns y [..., O].
    """
    return x @ w, (x, w)  # [..., I] @ [I, O] -> [..., O]


def linear_backward(dy, saved):
    """Gradients of `linear_forward`.

    dy: [..., O]. Returns dx [..., I] and dw [I, O].
    """
    x, w = saved
    dx = dy @ w.T  # [..., O] @ [O, I] -> [..., I]
    rows_x = x.reshape(-1, x.shape[-1])  # [N, I], N the product of the leading axes
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
    """Gradients of `rmsnorm_forward`.

    dy: [..., D]. Returns dx [..., D] and dgain [D]. The subtracted term removes the part of the gradient that points
    along x, because scaling x leaves y unchanged (but for eps).
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
    """Cosines and sines of the angles by which RoPE turns each pair of coordinates.

    time: T positions 0..T-1; width: C, even; theta: the base. Returns cos, sin, both [T, C/2]; pair j at position t
    turns by the angle t * theta**(-2j/C), in radians. Su et al. 2021, equation 15.
    """
    frequency = theta ** (-np.arange(0, width, 2) / width)  # [C/2]
    angle = np.outer(np.arange(time), frequency)  # [T, C/2]
    return np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)


def rope_forward(x, cos, sin):
    """Turn the pair (x[j], x[j + C/2]) of each vector by the angle of its position.

    x: [..., T, C]; cos, sin: [T, C/2]. Returns y [..., T, C].
    """
    x1, x2 = np.split(x, 2, axis=-1)  # [..., T, C/2] each
    y = np.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)
    return y, (cos, sin)


def rope_backward(dy, saved):
    """Turn the gradient back: the transpose of a rotation is the rotation by the opposite angle.

    dy: [..., T, C]. Returns dx [..., T, C].
    """
    cos, sin = saved
    return rope_forward(dy, cos, -sin)[0]


# --------------------------------------------------------------------------------------------------------------
# causal grouped-query attention


def attention_forward(q, k, v):
    """Let every position average the values at itself and before it, weighted by how well query and key agree.

    q: [B, H, T, C]; k, v: [B, G, T, C] with H a multiple of G: each key/value head serves H/G query heads.
    Returns y [B, H, T, C]. Vaswani et al. 2017, equation 1; Ainslie et al. 2023 for the groups. Chapter 06.
    """
    B, H, T, C = q.shape
    G = k.shape[1]
    qg = q.reshape(B, G, H // G, T, C)  # query heads that share a key/value head stand together
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
    """Gradients of `attention_forward`.

    dy: [B, H, T, C]. Returns dq [B, H, T, C], dk and dv [B, G, T, C]; the gradients of the query heads that share a
    key/value head add up.
    """
    qg, kg, vg, probs = saved
    B, G, R, T, C = qg.shape
    dyg = dy.reshape(B, G, R, T, C)
    dvg = probs.swapaxes(-1, -2) @ dyg  # [.., T, T]^T @ [.., T, C] -> [B, G, R, T, C]
    dprobs = dyg @ vg.swapaxes(-1, -2)  # [B, G, R, T, T]
    # 0 where probs is 0: no mask needed
    dscores = probs * (dprobs - (dprobs * probs).sum(axis=-1, keepdims=True))
    dscores /= math.sqrt(C)
    dqg = dscores @ kg  # [B, G, R, T, C]
    dkg = dscores.swapaxes(-1, -2) @ qg  # [B, G, R, T, C]
    return dqg.reshape(B, G * R, T, C), dkg.sum(axis=2), dvg.sum(axis=2)


# --------------------------------------------------------------------------------------------------------------
# SwiGLU


def swiglu_forward(gate, up):
    """Multiply `up` by the SiLU of `gate`, coordinate by coordinate.

    gate, up: [..., F]. Returns y = gate * sigmoid(gate) * up, [..., F]. Shazeer 2020, equation 5.
    """
    with np.errstate(over="ignore"):  # exp(-gate) may reach infinity; the sigmoid is then 0, as it should be
        sigmoid = 1.0 / (1.0 + np.exp(-gate))
    return gate * sigmoid * up, (gate, up, sigmoid)


def swiglu_backward(dy, saved):
    """Gradients of `swiglu_forward`.

    dy: [..., F]. Returns dgate and dup [..., F]. d/dg [g s(g)] = s + g s (1 - s).
    """
    gate, up, sigmoid = saved
    silu = gate * sigmoid
    dgate = dy * up * (sigmoid + silu * (1.0 - sigmoid))
    dup = dy * silu
    return dgate, dup


# --------------------------------------------------------------------------------------------------------------
# GPT-2's layers: a bias, layer norm, GELU, learned positions


def affine_forward(x, w, b):
    """Multiply by a weight matrix and add a bias.

    x: [..., I]; w: [I, O], as GPT-2's files have it; b: [O]. Returns y [..., O].
    """
    y, saved = linear_forward(x, w)
    return y + b, saved


def affine_backward(dy, saved):
    """Gradients of `affine_forward`.

    dy: [..., O]. Returns dx [..., I], dw [I, O] and db [O]. The bias is added at every position, so their gradients
    add up.
    """
    dx, dw = linear_backward(dy, saved)
    db = dy.reshape(-1, dy.shape[-1]).sum(axis=0)  # [..., O] -> [O]
    return dx, dw, db


def layernorm_forward(x, gain, bias, eps=1e-5):
    """Take each vector's mean away, divide by its standard deviation, then scale and shift each coordinate.

    x: [..., D]; gain, bias: [D]; eps: added to the variance. Returns y [..., D]. Of a vector without a mean, standard
    deviation and root mean square are one: this is RMSNorm of x - mean(x). Ba, Kiros and Hinton 2016, equation 4.
    """
    centred = x - np.mean(x, axis=-1, keepdims=True)  # [..., D]
    y, saved = rmsnorm_forward(centred, gain, eps)
    return y + bias, saved


def layernorm_backward(dy, saved):
    """Gradients of `layernorm_forward`.

    dy: [..., D]. Returns dx [..., D], dgain and dbias [D]. x - mean(x) is x times the matrix I - 1/D, whose entries
    off the diagonal are all -1/D; it is symmetric, so the gradient loses its mean as x did.
    """
    dcentred, dgain = rmsnorm_backward(dy, saved)
    dx = dcentred - np.mean(dcentred, axis=-1, keepdims=True)
    dbias = dy.reshape(-1, dy.shape[-1]).sum(axis=0)  # [..., D] -> [D]
    return dx, dgain, dbias


GELU = math.sqrt(2 / math.pi), 0.044715  # r and c of u = r (x + c x^3)


def gelu_forward(x):
    """Multiply each number by the chance that a normal one is below it, in the approximation that GPT-2 uses.

    x: [..., F]. Returns y = x (1 + tanh u) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), [..., F]. Hendrycks and Gimpel
    2016, section 2.
    """
    r, c = GELU
    tanh = np.tanh(r * (x + c * x * x * x))
    return x * (1.0 + tanh) / 2, (x, tanh)


def gelu_backward(dy, saved):
    """Gradient of `gelu_forward`.

    dy: [..., F]. Returns dx [..., F]. d/dx [x (1 + tanh u) / 2] = (1 + tanh u) / 2 + x (1 - tanh^2 u) / 2 du/dx, and
    du/dx = r (1 + 3 c x^2).
    """
    (r, c), (x, tanh) = GELU, saved
    slope = r * (1.0 + 3 * c * x * x)
    return dy * (1.0 + tanh + x * (1.0 - tanh * tanh) * slope) / 2


def positions_forward(x, table):
    """Add row t of a table to the vector at position t.

    x: [B, T, D]; table: [P, D] with P at least T. Returns y [B, T, D]. Gehring et al. 2017, section 3.1.
    """
    return x + table[: x.shape[1]], table.shape  # [B, T, D] + [T, D]


def positions_backward(dy, saved):
    """Gradients of `positions_forward`.

    dy: [B, T, D]. Returns dx [B, T, D], which is dy, and dtable [P, D]: row t is added to every sequence, so their
    gradients add up; rows from T on were not used.
    """
    dtable = np.zeros(saved, dy.dtype)
    dtable[: dy.shape[1]] = dy.sum(axis=0)  # [B, T, D] -> [T, D]
    return dy, dtable


# --------------------------------------------------------------------------------------------------------------
# softmax cross-entropy


def cross_entropy_forward(logits, targets):
    """Surprise at each target, in nats; a target of -1 costs nothing.

    logits: [..., V]; targets: integers [...] in [-1, V). Returns losses [...]: log sum exp(logits) - logits[target].
    """
    valid = targets >= 0
    column = np.where(valid, targets, 0)[..., None]  # any column will do where the target is -1
    shifted = logits - logits.max(axis=-1, keepdims=True)  # exp cannot overflow
    log_sum = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))  # [..., 1]
    losses = (log_sum - np.take_along_axis(shifted, column, axis=-1))[..., 0]  # [...]
    return np.where(valid, losses, 0.0), (np.exp(shifted - log_sum), column, valid)


def cross_entropy_backward(dlosses, saved):
    """Gradient of `cross_entropy_forward`: softmax minus one-hot, times the incoming gradient.

    dlosses: [...]. Returns dlogits [..., V], zero where the target is -1.
    """
    probs, column, valid = saved
    dlogits = probs.copy()
    at_target = np.take_along_axis(probs, column, axis=-1) - 1.0
    np.put_along_axis(dlogits, column, at_target, axis=-1)
    return dlogits * np.where(valid, dlosses, 0.0)[..., None]


# --------------------------------------------------------------------------------------------------------------
# AdamW


def adamw_step(p, g, m, v, step, rate, beta1, beta2, eps, decay):
    """One step of AdamW for one tensor.

    p, g, m, v: parameter, gradient, first and second moment, of one shape; step: 1 for the first; rate, beta1,
    beta2, eps, decay: numbers. Returns the new p, m, v. Loshchilov and Hutter 2019, algorithm 2.
    """
    m = m + (1 - beta1) * (g - m)
    v = v + (1 - beta2) * (g * g - v)
    m_hat = m / (1 - beta1**step)
    v_hat = v / (1 - beta2**step)
    p = p - rate * decay * p - rate * m_hat / (np.sqrt(v_hat) + eps)
    return p, m, v


# --------------------------------------------------------------------------------------------------------------
# Muon

QUINTIC = 3.4445, -4.7750, 2.0315  # Jordan et al. 2024: steep at 0, so that small singular values grow fast
SCHULZ_STEPS = 5
MOVE = 0.2  # root mean square of a step in rates, as AdamW's was seen to be: Liu et al. 2025, section 2.2
SMALLEST = 1e-15  # a norm below is none: squares of float32 are not numbers to divide by there


def newton_schulz(u):
    """Make all singular values of a matrix about 1, and leave its singular vectors as they are.

    u: [R, C]. For u / ||u|| = U S V^T returns U f(f(f(f(f(S))))) V^T, [R, C], with f(s) = 3.4445 s - 4.7750 s^3 +
    2.0315 s^5 for each singular value: an odd polynomial of a matrix needs products alone. f takes [0.6818, 1.2024]
    into itself, and five times f takes all from 0.00151 to 1 there; smaller ones grow up to 485-fold. Jordan et al.
    2024.
    """
    a, b, c = QUINTIC
    x = u if u.shape[0] <= u.shape[1] else u.T  # the smaller Gram matrix
    x = x / max(np.linalg.norm(x), SMALLEST)  # singular values up to 1
    for _ in range(SCHULZ_STEPS):
        gram = x @ x.T  # U S^2 U^T
        x = a * x + (b * gram + c * gram @ gram) @ x  # U (a S + b S^3 + c S^5) V^T
    return x if u.shape[0] <= u.shape[1] else x.T


def muon_step(p, g, m, rate, beta, decay, widths=None):
    """One step of Muon for one matrix: the gradient's directions, all at the same speed.

    p, g, m: parameter, gradient, momentum, [R, C]; rate, beta, decay: numbers; widths: columns of matrices that stand
    side by side in p and are orthogonalised each alone, by default one. Returns the new p and m. Jordan et al. 2024
    with Nesterov's momentum; Liu et al. 2025, section 2.2, for the factor: with it the root mean square of a step is
    about 0.2 rates, whatever the shape, as they saw of AdamW.
    """
    m = beta * m + g
    u = g + beta * m
    parts = np.split(u, np.cumsum(widths)[:-1], axis=1) if widths else [u]
    moves = [MOVE * math.sqrt(max(part.shape)) * newton_schulz(part) for part in parts]
    return p - rate * (np.concatenate(moves, axis=1) + decay * p), m
