"""The model: its forward and backward pass, written as one straight sequence of operations. Chapter 10.

    x = embed(tokens)
    for each layer:  x = x + attend(norm(x));  x = x + feed_forward(norm(x))
    losses of K heads on norm(x)

Pre-norm RMSNorm, RoPE, grouped-query attention, SwiGLU, no biases, untied heads; head k predicts token t+1+k.
`forward` and `backward` call only composites (`ops`), so the same code runs on the CPU and on the GPU. The composite
`add_rmsnorm` computes a sum and the norm after it in one pass. Therefore each sublayer returns x and its update
separately, and the next sublayer adds them.
"""

from collections.abc import Callable

import numpy as np

from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.model.parameters import Parameters, init, layer_tensors
from nanoeuler_lib.model.plan import Plan

BLOCK = "norm1", "qkv", "out", "norm2", "gate_up", "down"  # the tensors of a layer


def loss_scale(targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Compute the weight of one position in the loss, for each prediction head.

    targets: [..., K], -1 for "no target"; weights: [K]. Returns [K]. The loss is the
    sum over heads of weight times mean loss over the head's valid targets. So each
    position counts weight / (number of valid targets), or 0 if the head has none.
    """
    valid = (targets >= 0).reshape(-1, targets.shape[-1]).sum(axis=0)
    return np.where(valid > 0, np.asarray(weights) / np.maximum(valid, 1), 0.0)


def head_weights(config: ModelConfig, later_heads: float = 0.25) -> np.ndarray:
    """Return the weights of the heads in the loss, [K]: 1 for head 0, `later_heads` for the others."""
    return np.array([1.0] + [later_heads] * (config.predict - 1))


def forward(params: Parameters, plan: Plan, tokens: np.ndarray) -> None:
    """Run all layers: fill the plan's buffers up to `plan.y_final`, [N, D].

    tokens: integers [B, T], the shape of the plan. The losses are not computed here.
    """
    op, x, update = plan.op, plan.layers[0].x1, None
    op.embed(x, tokens, params["embed"])
    for i, a in enumerate(plan.layers):
        w = layer_tensors(params, i, BLOCK)
        x, update = attend(op, plan, a, w, x, update)
        x, update = feed_forward(op, plan, a, w, x, update)
    gain, eps = params["norm_final"], plan.config.norm_eps
    op.add_rmsnorm(plan.x_final, plan.y_final, plan.rstd_final, x, update, gain, eps)


def attend(op, plan, a, w, x, update):
    """Run the attention sublayer: x = x + update; update = attention(norm(x)).

    op: the composites; a: the layer's buffers; w: its tensors; x, update: [N, D], where
    update is None before the first layer. Returns x and update.
    """
    op.add_rmsnorm(a.x1, a.y1, a.rstd1, x, update, w.norm1, plan.config.norm_eps)
    op.qkv_rope(a.qkv, a.y1, w.qkv, plan.rope, plan.config)
    op.attention(a.attended, a.probs, a.softmax_stats, a.qkv, plan.config)
    op.linear(plan.update, a.attended, w.out)
    return a.x1, plan.update


def feed_forward(op, plan, a, w, x, update):
    """Run the feed-forward sublayer: x = x + update; update = swiglu(norm(x)).

    The arguments are those of `attend`. Returns x and update, [N, D].
    """
    op.add_rmsnorm(a.x2, a.y2, a.rstd2, x, update, w.norm2, plan.config.norm_eps)
    op.linear(a.gate_up, a.y2, w.gate_up)
    op.swiglu(a.hidden, a.sigmoid, a.gate_up)
    op.linear(plan.update, a.hidden, w.down)
    return a.x2, plan.update


def backward(
    params: Parameters,
    grads: Parameters,
    plan: Plan,
    tokens: np.ndarray,
    targets: np.ndarray,
    scale: np.ndarray,
    accumulate: bool = False,
) -> None:
    """Compute losses and gradients after `forward`, from the last layer to the first.

    Fills `plan.losses` [N, K] and sets grads to the gradient of their weighted sum,
    (plan.losses * scale).sum(). targets: [B, T, K], -1 for "no target"; scale: [K], or
    [N, K] with a weight of either sign for each position; accumulate: add to `grads`
    instead of overwriting them.
    """
    op, dx, dy, add = plan.op, plan.dx, plan.dy, accumulate
    targets = targets.reshape(-1, plan.config.predict)
    op.heads_loss(plan.losses, dy, grads["heads"], plan.y_final, params["heads"], targets, scale, add)
    plan.clear(dx)
    gain, dgain, eps = params["norm_final"], grads["norm_final"], plan.config.norm_eps
    op.add_rmsnorm_back(dx, dgain, dy, plan.x_final, plan.y_final, plan.rstd_final, gain, eps, add)
    for i, a in reversed(list(enumerate(plan.layers))):
        w, dw = layer_tensors(params, i, BLOCK), layer_tensors(grads, i, BLOCK)
        feed_forward_back(op, plan, a, w, dw, dx, add)
        attend_back(op, plan, a, w, dw, dx, add)
    op.embed_back(grads["embed"], dx, tokens, add)


def feed_forward_back(op, plan, a, w, dw, dx, add):
    """Backpropagate through `feed_forward`: add to dx [N, D], and compute dw.

    add: whether the gradients of w are added to dw or overwrite it.
    """
    op.linear_back(plan.dhidden, dw.down, dx, a.hidden, w.down, add)
    op.swiglu_back(plan.dgate_up, plan.dhidden, a.sigmoid, a.gate_up)
    op.linear_back(plan.dy, dw.gate_up, plan.dgate_up, a.y2, w.gate_up, add)
    op.add_rmsnorm_back(dx, dw.norm2, plan.dy, a.x2, a.y2, a.rstd2, w.norm2, plan.config.norm_eps, add)


def attend_back(op, plan, a, w, dw, dx, add):
    """Backpropagate through `attend`: add to dx [N, D], and compute dw."""
    op.linear_back(plan.dattended, dw.out, dx, a.attended, w.out, add)
    op.attention_back(plan.dqkv, plan.dattended, a.attended, a.probs, a.softmax_stats, a.qkv, plan.config)
    op.qkv_rope_back(plan.dy, dw.qkv, plan.dqkv, a.y1, w.qkv, plan.rope, plan.config, add)
    op.add_rmsnorm_back(dx, dw.norm1, plan.dy, a.x1, a.y1, a.rstd1, w.norm1, plan.config.norm_eps, add)


# A loss that depends on whole rows, such as DPO's. Its arguments are a slice of a batch's rows and the losses of head 0
# there, [B, T] in nats. It returns figures [m], the loss first, which are summed over slices, and the derivative of the
# loss with respect to each nat, [B, T]. Later heads do not contribute.
RowLoss = Callable[[slice, np.ndarray], tuple[np.ndarray, np.ndarray]]

KINDS: dict[type, type] = {}  # class of a configuration -> class of its models, if it is not GPT


class GPT:
    """Hold a configuration and parameters, and compute logits, losses and gradients from them.

    config: its class selects the kind of model (`GPT2Config`: a `GPT2`); params: by default `init` with seed and dtype.
    Methods raise NanoEulerError if tokens are not integers [B, T] in [0, V), or T exceeds the context.
    """

    def __new__(cls, config=None, *rest, **named):
        return super().__new__(KINDS.get(type(config), cls) if cls is GPT else cls)

    def __init__(self, config: ModelConfig, params: Parameters | None = None, seed: int = 0, dtype=np.float32):
        self.config = config
        self.params = init(config, seed, dtype=dtype) if params is None else params
        self._plan: Plan | None = None

    @property
    def dtype(self):
        """Dtype of the parameters."""
        return self.params.flat.dtype

    def copied(self) -> "GPT":
        """Return a model with a copy of the parameters."""
        params = Parameters(self.config, self.dtype)
        params.flat[...] = self.params.flat
        return type(self)(self.config, params)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.params.flat.size

    def plan(self, batch: int, time: int) -> Plan:
        """Return the plan for a batch of shape [batch, time]; only the last plan is kept."""
        if self._plan is None or (self._plan.batch, self._plan.time) != (batch, time):
            self._plan = Plan(self.config, batch, time, self.dtype)
        return self._plan

    @property
    def heads(self) -> np.ndarray:
        """The matrix of the prediction heads, [D, K V]."""
        return self.params["heads"]

    def forward(self, plan: Plan, tokens: np.ndarray) -> None:
        """Run all layers on tokens [B, T]: the function `forward` of this kind of model."""
        forward(self.params, plan, tokens)

    def backward(self, grads: Parameters, plan: Plan, tokens, targets, scale, *, accumulate: bool = False) -> None:
        """Compute losses and gradients after `forward`: the function `backward` of this kind of model."""
        backward(self.params, grads, plan, tokens, targets, scale, accumulate)

    def decoder(self, ahead: int = 0):
        """Return a new `Decoder` of this model with an empty context; ahead: later heads that it must compute."""
        return Decoder(self)

    def _check(self, tokens):
        tokens = np.asarray(tokens)
        if tokens.ndim != 2 or not np.issubdtype(tokens.dtype, np.integer):
            raise NanoEulerError(f"tokens must be integers [B, T], got {tokens.dtype} {list(tokens.shape)}")
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < self.config.vocab_size:
            low, high = tokens.min(), tokens.max()
            raise NanoEulerError(f"tokens must be in 0..{self.config.vocab_size - 1}, got {low}..{high}")
        return tokens

    @ops.again()
    def hidden(self, tokens: np.ndarray) -> np.ndarray:
        """Return the input of the prediction heads, [B, T, D], for tokens [B, T]: the normed residual stream."""
        tokens = self._check(tokens)
        plan = self.plan(*tokens.shape)
        self.forward(plan, tokens)
        return plan.y_final.reshape(*tokens.shape, self.config.dim).copy()

    def logits(self, tokens: np.ndarray, head: int = 0) -> np.ndarray:
        """Return the logits [B, T, V] of one prediction head for tokens [B, T]."""
        V = self.config.vocab_size
        return self.hidden(tokens) @ self.heads[:, head * V : (head + 1) * V]

    @ops.again()
    def losses(self, tokens: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Compute the loss in nats at each position, without gradients; 0 where the target is -1.

        tokens: [B, T]; targets: [B, T] for head 0, or [B, T, k] for the first k heads. Returns the targets' shape.
        """
        tokens = self._check(tokens)
        plan = self.plan(*tokens.shape)
        self.forward(plan, tokens)
        return self.nats(plan, targets)

    def nats(self, plan: Plan, targets: np.ndarray) -> np.ndarray:
        """Compute the result of `losses` from a plan that `forward` has already filled."""
        heads = (*targets.shape, 1)[2]  # 1 for [B, T]
        w, flat = self.heads[:, : heads * self.config.vocab_size], targets.reshape(-1, heads)
        losses = np.empty((len(flat), heads), self.dtype)
        plan.op.heads_loss(losses, None, None, plan.y_final, w, flat, np.ones(heads), False)
        return losses.reshape(targets.shape)

    def loss(self, tokens: np.ndarray, targets: np.ndarray, weights=None) -> float:
        """Return the loss without gradients: the first result of `loss_and_gradients` for the same arguments."""
        weights = head_weights(self.config) if weights is None else weights
        scale = loss_scale(targets, weights)
        return float((self.losses(tokens, targets) * scale).sum(dtype=np.float64))

    @ops.again()
    def loss_and_gradients(self, tokens: np.ndarray, targets: np.ndarray, weights=None) -> tuple[float, Parameters]:
        """Compute the loss in nats and its gradient with respect to every parameter.

        tokens: [B, T]; targets: [B, T, K], -1 for "no target"; weights: [K], by default `head_weights(config)`.
        """
        tokens = self._check(tokens)
        weights = head_weights(self.config) if weights is None else weights
        plan, grads = self.plan(*tokens.shape), Parameters(self.config, self.dtype)
        scale = loss_scale(targets, weights)
        self.forward(plan, tokens)
        self.backward(grads, plan, tokens, targets, scale)
        return float((plan.losses * scale).sum(dtype=np.float64)), grads

    @ops.again()
    def weighted_gradients(
        self, tokens: np.ndarray, targets: np.ndarray, weigh: RowLoss
    ) -> tuple[np.ndarray, Parameters]:
        """Compute a loss of whole rows, and its gradient with respect to every parameter.

        tokens: [B, T]; targets: [B, T, K]. Returns `weigh`'s figures for all rows, the loss first, and the gradient.
        """
        tokens = self._check(tokens)
        plan, grads = self.plan(*tokens.shape), Parameters(self.config, self.dtype)
        self.forward(plan, tokens)
        figures, scale = self.weights(plan, targets, slice(0, len(tokens)), weigh)
        self.backward(grads, plan, tokens, targets, scale)
        return figures, grads

    def weights(self, plan: Plan, targets: np.ndarray, rows: slice, weigh: RowLoss) -> tuple[np.ndarray, np.ndarray]:
        """Return the figures of `weigh` for some rows of targets [B, T, K], and the `scale` [N, K] for `backward`.

        Call it between `forward` and `backward`. Later heads have weight 0: the policy is the distribution of head 0.
        """
        figures, weights = weigh(rows, self.nats(plan, targets[..., 0]))
        scale = np.zeros(plan.losses.shape)
        scale[:, 0] = weights.reshape(-1)
        return figures, scale
