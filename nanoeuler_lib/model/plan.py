"""The plan: all buffers of a training step, each with a name and allocated once.

The model allocates no memory while it runs, because each composite operation writes into a buffer of the plan. `Layer`
and `StepBuffers` describe the buffers, and `shapes` returns their shapes. `Plan.nbytes` is the memory that they take.
"""

import math
from functools import singledispatch
from types import SimpleNamespace
from typing import Any

import numpy as np

from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.ops import cpu, reference

LOGIT_ROWS = 256  # positions whose logits exist at one time: 256 x V float32 stay in cache
# bytes of a cache line and of the widest vector register: a load that crosses two cache lines takes twice as long
ALIGN = 64


Array = Any  # a NumPy array on a CPU, a CuPy array on a GPU


class Layer(SimpleNamespace):
    """The buffers of a layer. Names ending in 1 belong to the attention sublayer, in 2 to the feed-forward sublayer."""

    x1: Array  # residual stream that enters the block
    rstd1: Array  # 1 / root mean square of x1
    y1: Array  # rmsnorm(x1)
    qkv: Array  # packed: q (rotated, divided by sqrt(C)), k (rotated), v
    probs: Array  # exp(scores), not yet divided by their row sums; on a CPU only
    softmax_stats: Array  # row sums of exp(scores): stored as 1 / sum on a CPU, as log(sum) on a GPU
    attended: Array  # output of attention, all heads in one row
    x2: Array  # residual stream between the sublayers
    rstd2: Array
    y2: Array
    gate_up: Array  # packed: gate, up
    sigmoid: Array  # sigmoid(gate), or the sigmoid in GELU; on a CPU only
    hidden: Array  # silu(gate) * up
    mean1: Array  # mean of x1; this and the next two in GPT-2 only
    mean2: Array
    up: Array


class StepBuffers:
    """The buffers of a step that all layers share."""

    update: Array  # the last sublayer's output, which the next one adds to the residual stream
    x_final: Array
    rstd_final: Array
    y_final: Array
    losses: Array  # nats, 0 where the target is -1
    dx: Array  # gradient with respect to the residual stream at the current point of the backward pass
    dy: Array
    dqkv: Array
    dattended: Array
    dgate_up: Array
    dhidden: Array
    mean_final: Array  # this and the next in GPT-2 only
    dup: Array


@singledispatch
def shapes(config: ModelConfig, batch: int, time: int) -> tuple[dict, dict, dict]:
    """Return the shapes of all buffers by name (`Layer`, `StepBuffers`, scratch space) for N = B T positions."""
    B, T, N = batch, time, batch * time
    D, F, V, K = config.dim, config.ffn, config.vocab_size, config.predict
    H, G, C = config.heads, config.kv_heads, config.head_dim
    blocks = cpu.row_blocks(T)
    layer = dict(
        x1=(N, D),
        rstd1=(N, 1),
        y1=(N, D),
        qkv=(N, (H + 2 * G) * C),
        probs=(B * H * sum((b.stop - b.start) * b.stop for b in blocks),),
        softmax_stats=(B, G, H // G, T, 1),
        attended=(N, H * C),
        x2=(N, D),
        rstd2=(N, 1),
        y2=(N, D),
        gate_up=(N, 2 * F),
        sigmoid=(N, F),
        hidden=(N, F),
    )
    step = dict(
        update=(N, D),
        x_final=(N, D),
        rstd_final=(N, 1),
        y_final=(N, D),
        losses=(N, K),
        dx=(N, D),
        dy=(N, D),
        dqkv=(N, (H + 2 * G) * C),
        dattended=(N, H * C),
        dgate_up=(N, 2 * F),
        dhidden=(N, F),
    )
    scratch = dict(
        work_rows=(N, max(D, F)),
        work_heads=(B * H * blocks[0].stop * C + B * G * T * C,),
        work_probs=(B * H * max((b.stop - b.start) * b.stop for b in blocks),),
        work_logits=(min(N, LOGIT_ROWS), V + D),
        work_weight=(max(D * (H + 2 * G) * C, H * C * D, 2 * D * F, D * K * V, V * D),),
        work_qkv_weight=(D, (H + 2 * G) * C),
    )
    return layer, step, scratch


class Plan(StepBuffers):
    """Allocate the buffers for a batch of B sequences of T tokens.

    Buffers are attributes (`plan.dx`, `plan.layers[3].qkv`); `rope`: tables of RoPE; `scratch`: scratch space by name;
    `buffers`: all arrays by name ("layers.3.qkv"). Raises NanoEulerError if `time` is not in 1..config.context.
    """

    def __init__(self, config: ModelConfig, batch: int, time: int, dtype=np.float32):
        if not 1 <= time <= config.context:
            raise NanoEulerError(f"the number of tokens must be 1 to {config.context}, the context, got {time}")
        self.config, self.batch, self.time, self.dtype = config, batch, time, np.dtype(dtype)
        layer, step, scratch = shapes(config, batch, time)
        names = {f"layers.{i}.{name}": shape for i in range(config.layers) for name, shape in layer.items()}
        self.buffers = {name: _empty(shape, self.dtype) for name, shape in (names | step | scratch).items()}
        self.layers = [
            Layer(**{name: self.buffers[f"layers.{i}.{name}"] for name in layer}) for i in range(config.layers)
        ]
        for name in step:  # the attributes that `StepBuffers` declares
            setattr(self, name, self.buffers[name])
        self.scratch = SimpleNamespace(**{name: self.buffers[name] for name in scratch})
        self.rope = Rope(config, time, self.dtype) if config.rope_theta else None

    @property
    def op(self):
        """The composites that are in use (`ops.use`), with this plan's scratch space filled in."""
        return ops.bind(vars(ops.active()), vars(self.scratch))

    def clear(self, x: np.ndarray) -> None:
        """Set all elements of x to 0."""
        x[...] = 0

    @property
    def nbytes(self) -> int:
        """Size of all buffers in bytes."""
        return sum(array.nbytes for array in self.buffers.values())


def _empty(shape, dtype):
    """Return an uninitialised array whose memory starts at a multiple of ALIGN bytes."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGN, np.uint8)
    start = -memory.ctypes.data % ALIGN
    return memory[start : start + size].view(dtype).reshape(shape)


class Rope:
    """Compute the tables of RoPE for T positions, in two forms.

    cos, sin: [T, C/2], half-split convention (`reference.rope_forward`).
    turn: complex [T, (H+G) C/2], for packed q and k in the paired layout, where the two coordinates of a pair are next
    to each other. One complex product rotates all of them. The factors for q include 1/sqrt(C), so that attention
    need not divide every score.
    turn_back: the complex conjugate of `turn`, for the backward pass.
    order: [(H+2G) C], for each column of the paired layout, its column in the half-split layout.
    place: [(H+2G) C], for each column of the half-split layout, its column in the paired layout.
    """

    def __init__(self, config: ModelConfig, time: int, dtype: np.dtype):
        H, G, C = config.heads, config.kv_heads, config.head_dim
        cos, sin = reference.rope_tables(time, C, config.rope_theta)
        self.cos, self.sin = cos.astype(dtype), sin.astype(dtype)
        turn = cos + 1j * sin  # [T, C/2]
        turn = np.concatenate([np.tile(turn / np.sqrt(C), (1, H)), np.tile(turn, (1, G))], axis=1)
        self.turn = turn.astype(np.result_type(dtype, np.complex64))
        self.turn_back = self.turn.conj()
        paired = np.arange(C).reshape(2, C // 2).T.reshape(-1)  # 0, C/2, 1, C/2 + 1, ...
        heads = np.arange(H + G)[:, None] * C + paired  # [H+G, C]
        self.order = np.concatenate([heads.reshape(-1), np.arange((H + G) * C, (H + 2 * G) * C)])
        self.place = np.argsort(self.order)
