"""The model on a GPU: `GPT` has the methods of `model.GPT` and takes and returns NumPy arrays."""

import math
from collections.abc import Mapping

import numpy as np

from nanoeuler_lib import cuda, model, ops
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.engine import flash, program, unfused
from nanoeuler_lib.engine.decode import Decoder, draws
from nanoeuler_lib.engine.loss_scale import LossScale
from nanoeuler_lib.engine.memory import (
    SMALLER,
    Block,
    OutOfMemory,
    Parameters,
    Plan,
    download,
    free_bytes,
    gib,
    layout,
    products_type,
    room_for,
    upload,
)
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import backward, forward, head_weights, loss_scale, parameter_shapes

PLANS = 32  # most plans that are kept: fine-tuning needs one for each length of its rows


class GPT(model.GPT):
    """Run a model on the GPU: the same methods as `model.GPT`, with NumPy arrays in and out.

    params: a `model.Parameters`, by default newly initialised from `seed`; precision: see `engine`; where, checked, on:
    as for `program.Program`; kernels: a reader's, by default those of `engine.use`. Raises NanoEulerError for a model
    or a precision that the kernels or the GPU do not support, OutOfMemory if the weights do not fit.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Mapping | None = None,
        seed: int = 0,
        precision: str = "float32",
        where: str | None = None,
        checked: bool = True,
        on: flash.Card | None = None,
        kernels: cuda.Module | None = None,
    ):
        self.config, self.precision = config, precision
        self._plans, self._plan, self._block = {}, None, None
        self.kernels, self._unfused = kernels, None
        self.program = program.Program(config, precision, where, checked, on)
        self.half = products_type(precision)
        size = self._bytes_of_weights()
        with room_for(f"a model of {self.size:,} parameters", size, self.program.where, SMALLER):
            self._take_memory()
        self.fill(model.init(config, seed) if params is None else params)

    def _bytes_of_weights(self):
        return layout(self.config)[2] * (4 if self.half == np.float32 else 6)

    def _take_memory(self):
        """Allocate the parameters, and `weights`, the arrays by name that the kernels read."""
        config, where = self.config, self.program.where
        self.params = Parameters(config, where)
        self.copy = None if self.half == np.float32 else Parameters(config, where, self.half)
        self.weights = self.params if self.copy is None else {
            name: p if p.ndim == 1 or name == "embed" else self.copy[name] for name, p in self.params.items()
        }  # fmt: skip

    @property
    def keep_x(self) -> bool:
        """Whether each norm keeps its input, the residual stream: only the unfused kernels read it again."""
        return self._op() is not self.program

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(math.prod(shape) for shape in parameter_shapes(self.config).values())

    def fill(self, host: Mapping) -> None:
        """Set the parameters to the numbers of NumPy arrays with the same names."""
        self.params.fill(host)
        if self.copy is not None:
            self.program.round_to(self.copy.flat, self.params.flat)
            program.run(self.program.take())

    def plan(self, batch: int, time: int) -> Plan:
        """Return the plan for [batch, time]. The most recent plans are kept, with their CUDA graphs.

        All plans share one block of memory, so a plan's buffers keep their contents only until another plan is used.
        """
        key = batch, time, self._op()
        self._plan = self._plans.pop(key, None) or Plan(self, *key)
        self._plans[key] = self._plan  # the most recently used plan is the last entry
        if len(self._plans) > PLANS:
            del self._plans[next(iter(self._plans))]
        return self._plan

    @property
    def block_bytes(self) -> int:
        """The bytes of the memory that plans share."""
        return 0 if self._block is None else self._block.bytes.size

    def block(self, size: int) -> Block:
        """Return the shared memory, at least `size` bytes; growing it drops all plans. On OutOfMemory they are kept."""
        has, where = self.block_bytes, self.program.where
        if has < size:
            what = "the work space of a batch"
            change = "take fewer rows at a time, a shorter --context or a smaller model"
            if size > (free := free_bytes(where) + has):
                raise OutOfMemory(f"out of memory: {what} takes {gib(size)}, {gib(free)} are free: {change}")
            self._plans.clear()
            self._plan = self._block = None  # free the old memory first
            with room_for(what, size, where, change):
                self._block = Block(where, size)
        return self._block

    def _op(self):
        """Return the operations in use: the fused ones, or the unfused ones with a reader's kernels."""
        if functions := ops.functions():
            raise NanoEulerError(
                f"ops.use({min(functions)}=...) replaces a function of models on the CPU, but this one is on the GPU "
                "engine: take engine.use(kernels)"
            )
        kernels = self.kernels or unfused.kernels_in_use()
        if kernels is None:
            return self.program
        if self.precision != "float32":
            raise NanoEulerError(f"precision must be float32 with engine.use(kernels), got {self.precision}")
        if self._unfused is None or self._unfused.kernels is not kernels:
            p = self.program
            self._unfused = unfused.Unfused(self.config, kernels, p.where, p.checked, p.on)
        return self._unfused

    def _forward(self, tokens):
        tokens = self._check(tokens)
        plan = self.plan(*tokens.shape)
        return tokens, plan, plan.list("forward", lambda: forward(self.weights, plan, plan.tokens))

    def hidden(self, tokens: np.ndarray) -> np.ndarray:
        """Return the input of the prediction heads for tokens [B, T]: [B, T, D], after the last norm."""
        tokens, plan, trunk = self._forward(tokens)
        plan.put(tokens)
        program.run(trunk)
        return download(plan.y_final).reshape(*tokens.shape, self.config.dim)

    def logits(self, tokens: np.ndarray, head: int = 0) -> np.ndarray:
        """Return the logits of one prediction head for tokens [B, T]: [B, T, V]."""
        V = self.config.vocab_size
        tokens, plan, trunk = self._forward(tokens)
        plan.put(tokens)
        program.run(trunk)
        logits = cuda.array_module(self.program.where).empty((tokens.size, V), np.float32)
        plan.op.linear(logits, plan.y_final, self.weights["heads"][:, head * V : (head + 1) * V])
        program.run(plan.program.take())
        return download(logits).reshape(*tokens.shape, V)

    def losses(self, tokens: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the loss at each position in nats, without gradients.

        tokens: [B, T]; targets: [B, T] for head 0, or [B, T, K] for the first K heads. Returns an array like targets,
        0 where the target is -1. If memory does not suffice for all rows, they are computed in two halves.
        """
        try:
            tokens, plan, trunk = self._forward(tokens)
        except OutOfMemory:
            if len(tokens) == 1:
                raise
            parts = (slice(len(tokens) // 2), slice(len(tokens) // 2, None))
            return np.concatenate([self.losses(tokens[part], targets[part]) for part in parts])
        heads = (*targets.shape, 1)[2]  # 1 for [B, T]
        V, N = self.config.vocab_size, tokens.size
        losses, wanted = (x.reshape(-1)[: N * heads].reshape(N, heads) for x in (plan.losses, plan.targets))
        w = self.weights["heads"][:, : heads * V]
        last = plan.list(
            ("losses", heads),
            lambda: plan.op.heads_loss(losses, None, None, plan.y_final, w, wanted, plan.scale, False),
        )
        upload(plan.tokens, tokens)
        upload(wanted, targets)
        program.run(trunk)
        program.run(last)
        return download(losses).reshape(targets.shape)

    def draws(self, propose: int) -> bool:
        """Return whether a decoder of this model can sample on the GPU with so many proposals: `Decoder.rounds`."""
        return 0 <= propose < self.config.predict and draws(self.config, propose, self.program.on)

    def decoder(self, ahead: int = 0) -> "Decoder":
        """Return a new decoder of this model that also computes the logits of the first `ahead` later heads."""
        c, where = self.config, self.program.where
        count = self.size + (ahead + 1 - c.predict) * c.dim * c.vocab_size - self.params["embed"].size
        size = (count + 2 * c.layers * c.kv_heads * c.context * c.head_dim) * self.half.itemsize
        change = "take a shorter context or a smaller model"
        with room_for("a decoder, which has weights of its own,", size, where, change):
            return Decoder(self, ahead)

    def loss_and_gradients(self, tokens: np.ndarray, targets: np.ndarray, weights=None):
        """Return the loss in nats, and its gradient with respect to every parameter, a `model.Parameters`.

        tokens: [B, T]; targets: [B, T, K], -1 for "no target"; weights: [K], by default `head_weights(config)`.
        """
        tokens, plan, trunk = self._forward(tokens)
        weights = head_weights(self.config) if weights is None else weights
        scale, grads = loss_scale(targets, weights), Parameters(self.config, self.program.where)
        backward(self.weights, grads, plan, plan.tokens, plan.targets, plan.scale)
        back, scaled = plan.program.take(), LossScale() if self.precision == "float16" else LossScale(1)
        while True:
            plan.put(tokens, targets, scale * scaled.value)
            plan.sort(tokens)
            program.run(trunk)
            program.run(back)
            loss, found, used = float((download(plan.losses) * scale).sum(dtype=np.float64)), grads.host(), scaled.value
            if scaled.accepts(np.abs(found.flat).max(), loss):
                found.flat /= used
                return loss, found
