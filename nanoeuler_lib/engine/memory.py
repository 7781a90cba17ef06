"""Device memory of the engine: parameters, the optimiser's state and every buffer of a training step."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from nanoeuler_lib import cuda, model, ops
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.cuda.blas import from_bfloat16
from nanoeuler_lib.engine import embedding, program
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import optim, parameter_shapes
from nanoeuler_lib.model.plan import Array, Layer, StepBuffers
from nanoeuler_lib.ops import reference

ALIGN = 64  # numbers; so a tensor begins at a multiple of 256 bytes (128 in 16 bits)
SMALLER = "take a smaller model (--preset, --dim, --layers), or --device cpu"
RESERVED = 192 << 20  # bytes of GPU memory set aside for kernels, CUDA graphs and cuBLASLt's work space
LOGIT_ROWS = 256  # positions whose logits are computed at a time if they fit into no other buffer
# Buffers (left) that reuse the memory of another one (right), which is not in use at the same time. The forward pass
# needs x and the buffers on the right below it; `heads_loss` needs the logits; the backward pass needs the others.
SHARED = {
    "x": "dx_full",
    "dy": "update",
    "dqkv": "dgate_up",
    "dattended": "dhidden",
    "y_final": "dhidden",
    "logits": "dgate_up",
}


class OutOfMemory(NanoEulerError):
    """Report that a device has too little free memory: for what, the bytes needed and free, and what to change."""


@contextmanager
def room_for(what: str, size: int, where: str, change: str) -> Iterator[None]:
    """Raise OutOfMemory, naming the purpose `what` and the advice `change`, if the `with` block lacks `size` bytes."""
    free = free_bytes(where)
    try:
        if size > free:
            raise MemoryError
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        pieces = "" if size > free else " (in pieces too small, or taken since)"
        raise OutOfMemory(f"out of memory: {what} takes {gib(size)}, {gib(free)} are free{pieces}: {change}") from None


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means too little memory: from CuPy, from NumPy or from CUDA itself (as for a graph)."""
    return isinstance(error, MemoryError | OutOfMemory) or (
        isinstance(error, RuntimeError) and "out of memory" in str(error).lower().replace("_", " ")
    )


def gib(size: int) -> str:
    """Format a number of bytes as GiB."""
    return f"{size / 2**30:.2f} GiB"


def upload(to, values) -> None:
    """Copy the numbers of a NumPy array into a device array, converted to its type."""
    values = np.ascontiguousarray(np.asarray(values).reshape(to.shape), to.dtype)
    if isinstance(to, np.ndarray):
        to[...] = values
    else:
        to.set(values)


def download(array) -> np.ndarray:
    """Return a device array as a new NumPy array; bfloat16 and float16 become float32."""
    host = array.copy() if isinstance(array, np.ndarray) else array.get()
    if host.dtype == np.float16:
        return host.astype(np.float32)
    return from_bfloat16(host) if host.dtype == np.uint16 else host


def pinned(where: str, shape: tuple[int, ...], dtype) -> np.ndarray:
    """Return a NumPy array of zeros in page-locked memory, from and to which a GPU copies asynchronously."""
    if where == "cpu":
        return np.zeros(shape, dtype)
    import cupyx

    return cupyx.zeros_pinned(shape, dtype)


def mapped(where: str, shape: tuple[int, ...], dtype) -> tuple[np.ndarray, Any]:
    """Return `pinned` memory twice: as a NumPy array and as a device array, to which kernels write over the bus."""
    host = pinned(where, shape, dtype)
    if where == "cpu":
        return host, host
    import cupy

    memory = cupy.cuda.UnownedMemory(host.ctypes.data, host.nbytes, host, cupy.cuda.Device().id)
    return host, cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def products_type(precision: str) -> np.dtype:
    """Return the type of the numbers that products multiply; bfloat16 is stored as its bits, uint16."""
    return np.dtype({"bfloat16": np.uint16, "float16": np.float16}.get(precision, np.float32))


def layout(config: ModelConfig) -> tuple[dict[str, int], int, int]:
    """Return where each tensor begins, where the gains (after all matrices) do, and the length: multiples of ALIGN."""
    shapes, starts, end, gains = parameter_shapes(config), {}, 0, 0
    # the sort is stable, so only the gains change places
    for name in sorted(shapes, key=lambda name: len(shapes[name]) == 1):
        starts[name], end = end, end + -(-math.prod(shapes[name]) // ALIGN) * ALIGN
        gains = end if len(shapes[name]) == 2 else gains
    return starts, gains, end


class Parameters(model.Parameters):
    """Hold all parameters (or gradients, or moments) in device memory as one flat array, matrices before gains.

    Each tensor begins at a multiple of ALIGN numbers, with zeros in the gaps. `decayed`: length of the part that holds
    the matrices, which weight decay applies to; `outside`: the two slices of the array around the matrices of the
    blocks, which AdamW updates if Muon updates the rest.
    """

    def __init__(self, config: ModelConfig, where: str, dtype=np.float32):
        self.config, shapes = config, parameter_shapes(config)
        starts, self.decayed, end = layout(config)
        self.outside = slice(0, starts["layers.0.qkv"]), slice(starts["heads"], end)
        self.flat = cuda.array_module(where).zeros(end, dtype)
        self._views = {
            name: self.flat[starts[name] : starts[name] + math.prod(shape)].reshape(shape)
            for name, shape in shapes.items()
        }

    def fill(self, host: Mapping) -> "Parameters":
        """Copy the numbers of NumPy arrays with the same names into this one, and return it."""
        for name, view in self.items():
            upload(view, host[name])
        return self

    def host(self) -> model.Parameters:
        """Return a copy as NumPy arrays."""
        host = model.Parameters(self.config)
        for name, view in self.items():
            host[name][...] = download(view)
        return host


class AdamW:
    """Hold both moments of every parameter in device memory; Muon keeps the momentum of its matrices in `m`.

    loss_scale: the arguments of the `LossScale` with which a run in float16 begins; () for a new run.
    """

    def __init__(self, shape: ModelConfig, config: TrainConfig, where: str):
        self.config, self.step, self.loss_scale = config, 0, ()
        with room_for("AdamW's state", 8 * layout(shape)[2], where, SMALLER):
            self.m, self.v = Parameters(shape, where), Parameters(shape, where)

    @classmethod
    def of(cls, host: optim.AdamW, shape: ModelConfig, where: str) -> "AdamW":
        """Return a copy of an optimiser's state in device memory."""
        state = cls(shape, host.config, where)
        state.m.fill(host.m), state.v.fill(host.v)
        state.step, state.loss_scale = host.step, getattr(host, "loss_scale", ())
        return state


def shapes(config: ModelConfig, batch: int, time: int, keep_x: bool = False, processors: int = 2):
    """Return the shapes and types of a step's buffers in three dicts: for each layer, for the whole step, and scratch.

    N = B T positions. Type "n" is the type that products multiply (`products_type`), "f" is float32, "i" int32. All
    layers share one buffer x for the residual stream, because a norm's backward pass needs only its output y. With
    `keep_x`, for kernels that read x, each norm keeps its own. processors: multiprocessors of the GPU.
    """
    B, T, N = batch, time, batch * time
    D, F, V, K = config.dim, config.ffn, config.vocab_size, config.predict
    H, G, C = config.heads, config.kv_heads, config.head_dim
    layer = dict(
        rstd1=("f", N),
        y1=("n", N, D),
        qkv=("n", N, (H + 2 * G) * C),
        softmax_stats=("f", B, H, T),  # logarithms of the row sums of exp(scores)
        attended=("n", N, H * C),
        rstd2=("f", N),
        y2=("n", N, D),
        gate_up=("n", N, 2 * F),
        hidden=("n", N, F),
    )
    step = dict(
        tokens=("i", N),
        targets=("i", N, K),
        scale=("f", K),
        update=("n", N, D),
        rstd_final=("f", N),
        y_final=("n", N, D),
        losses=("f", N, K),
        dx_full=("f", N, D),
        dx_half=("n", N, D),
        dy=("n", N, D),
        dqkv=("n", N, (H + 2 * G) * C),
        dattended=("n", N, H * C),
        dgate_up=("n", N, 2 * F),
        dhidden=("n", N, F),
    )
    logit_rows = min(N, max(2 * F * N // (K * V), LOGIT_ROWS))
    scratch = dict(
        order=("i", N),  # positions sorted by token
        sorted_tokens=("i", N),  # their tokens
        shares=("i", embedding.most_shares(N, V), 6),  # which block adds what
        gain_parts=("f", min(N, program.NORM_BLOCKS * processors), D),
        along=("f", B, H, T),  # dout . out in attention's backward pass
        loss_parts=("f", max(1, min(64, N // 64)), K),
        logits=("n", logit_rows, K * V),
    )
    stream = "f", N, D
    if keep_x:
        return layer | dict(x1=stream, x2=stream), step | dict(x_final=stream), scratch
    return layer, step | dict(x=stream), scratch


Groups = dict[tuple[int, int], list[tuple[int, int]]]  # of Muon's matrices, from `muon_groups`


def muon_groups(config: ModelConfig, part: slice | None = None) -> Groups:
    """Return Muon's matrices by shape [R, C]: the start of each in the flat array, and its row stride.

    Both are counted in units of 4 numbers. part: return only the matrices in this part of the flat array, with starts
    counted from its beginning. Raises NanoEulerError if a number of columns is not a multiple of 4.
    """
    groups, (starts, _, end) = {}, layout(config)
    part = part or slice(0, end)
    for name, (rows, *row) in parameter_shapes(config).items():
        first, inside = starts[name] - part.start, part.start <= starts[name] < part.stop
        for width in optim.muon_widths(name, config) if inside and optim.moved_by_muon(name) else ():
            if first % 4 or width % 4 or row[0] % 4:
                raise NanoEulerError(
                    f"Muon's matrices must have a multiple of 4 columns, got {width} of {row[0]} in {name}"
                )
            groups.setdefault((rows, width), []).append((first // 4, row[0] // 4))
            first += width
    return groups


def muon_shapes(pieces: list[Groups]) -> dict[str, tuple]:
    """Return shapes and types of Muon's scratch space: the largest group twice, Gram matrices and partial sums."""
    sizes = [(len(places), R * C, min(R, C) ** 2) for groups in pieces for (R, C), places in groups.items()]
    whole, gram = (max((n * size[which] for n, *size in sizes), default=0) for which in (0, 1))
    parts = program.MUON_PARTS * max((n for n, *_ in sizes), default=0)
    return dict(
        muon_x=("n", whole),
        muon_y=("n", whole),
        muon_gram=("n", gram),
        muon_inner=("n", gram),
        muon_parts=("f", parts),
    )


def muon_bytes(pieces: list[Groups], precision: str) -> int:
    """Return the bytes of Muon's scratch space."""
    size = {"n": products_type(precision).itemsize, "f": 4}
    return sum(size[kind] * count for kind, count in muon_shapes(pieces).values())


def muon_work(pieces: list[Groups], precision: str, where: str) -> list[SimpleNamespace]:
    """Allocate Muon's scratch space (`muon_shapes`) on the device, and copy the groups there: (R, C, places [n, 2]).

    The pieces are updated one after another, so they share the scratch space.
    """
    types = {"n": products_type(precision), "f": np.dtype(np.float32)}
    xp = cuda.array_module(where)
    work = {name: xp.zeros(shape, types[kind]) for name, (kind, shape) in muon_shapes(pieces).items()}
    placed = lambda groups: [(*shape, xp.asarray(places, np.int32)) for shape, places in groups.items()]
    return [SimpleNamespace(**work, groups=placed(groups)) for groups in pieces]


def bytes_needed(
    config: ModelConfig, batch: int, time: int, precision: str, keep_x: bool = False, optimizer: str = "adamw"
) -> dict[str, int]:
    """Return the bytes of `states` (weights, copies, gradients, moments) and of `buffers` for [batch, time] tokens."""
    count = sum(-(-math.prod(shape) // ALIGN) * ALIGN for shape in parameter_shapes(config).values())
    buffers = sum(room(*one) for one in buffers_of(config, batch, time, precision, keep_x).values())
    copies = 2 if products_type(precision).itemsize == 2 else 0
    if optimizer == "muon":
        buffers += muon_bytes([muon_groups(config)], precision)
    return {"states": count * (16 + copies), "buffers": buffers}


def buffers_of(
    config: ModelConfig, batch: int, time: int, precision: str, keep_x: bool = False, processors: int = 2
) -> dict[tuple[str, int], tuple[tuple, np.dtype]]:
    """Return shape and dtype of each buffer with its own memory, by name and layer (0 for the whole step's)."""
    types = {"n": products_type(precision), "f": np.dtype(np.float32), "i": np.dtype(np.int32)}
    layer, step, scratch = shapes(config, batch, time, keep_x, processors)
    elsewhere, buffers = housed_in(step | scratch), {}
    if types["n"] == np.float32:
        elsewhere["dx_half"] = "dx_full"
    for part, times in ((layer, config.layers), (step, 1), (scratch, 1)):
        for name, (kind, *shape) in part.items():
            if name not in elsewhere:
                buffers |= {(name, i): (tuple(shape), types[kind]) for i in range(times)}
    return buffers


def housed_in(buffers: dict) -> dict[str, str]:
    """Return which buffers of `shapes` reuse another's memory: the pairs of SHARED in which the first one fits."""
    return {
        name: other
        for name, other in SHARED.items()
        if {name, other} <= buffers.keys() and math.prod(buffers[name][1:]) <= math.prod(buffers[other][1:])
    }


def free_bytes(where: str) -> int:
    """Return the bytes free on the GPU, including those that CuPy's pool holds; for the CPU, 2 GiB are assumed."""
    if where == "cpu":
        return 2 << 30
    import cupy

    return cupy.cuda.Device().mem_info[0] + cupy.get_default_memory_pool().free_bytes()


class Block:
    """Hold the device memory that the buffers of all plans share; only one plan is in use at a time."""

    def __init__(self, where: str, size: int):
        self.bytes = cuda.array_module(where).empty(size, np.uint8)

    def arrays(self, wanted: Mapping[Any, tuple[tuple, np.dtype]]) -> dict:
        """Return arrays of the given shapes and dtypes, laid out one after another, under the same keys."""
        arrays, end = {}, 0
        for key, (shape, dtype) in wanted.items():
            start, end = end, end + room(shape, dtype)
            used = self.bytes[start : start + math.prod(shape) * dtype.itemsize]
            arrays[key] = used.view(dtype).reshape(shape)
        return arrays


def room(shape: tuple, dtype: np.dtype) -> int:
    """Return the bytes that an array occupies in a `Block`, rounded up to the alignment."""
    return -(-math.prod(shape) * dtype.itemsize // (4 * ALIGN)) * 4 * ALIGN


class Plan(StepBuffers):
    """Hold the device buffers for a batch of B sequences of T tokens, and the lists of launches that fill them.

    The attributes are those of `plan.Plan`. owner: the `engine.GPT` that runs here; writer: the program that records
    the lists, by default the owner's. Raises NanoEulerError if `time` is not in 1..config.context.
    """

    tokens: Array
    targets: Array
    scale: Array
    dx: program.Residual

    def __init__(self, owner, batch: int, time: int, writer: program.Program | None = None):
        config = owner.config
        if not 1 <= time <= config.context:
            raise NanoEulerError(f"a sequence must have 1 to {config.context} tokens (the context), got {time}")
        self.config, self.batch, self.time = config, batch, time
        self.program, self.lists = writer or owner.program, {}
        xp = cuda.array_module(owner.program.where)
        sizes = config, batch, time
        layer, step, scratch = shapes(*sizes, owner.keep_x, owner.program.on.processors)
        buffers = buffers_of(*sizes, owner.precision, owner.keep_x, owner.program.on.processors)
        arrays = owner.block(sum(room(*one) for one in buffers.values())).arrays(buffers)
        arrays.setdefault(("dx_half", 0), arrays["dx_full", 0])  # in float32 no copy is needed
        for name, other in housed_in(step | scratch).items():
            _, *shape = (step | scratch)[name]
            arrays[name, 0] = arrays[other, 0].reshape(-1)[: math.prod(shape)].reshape(shape)

        for name in step.keys() - {"x", "dx_full", "dx_half"}:  # these are declared above or in `StepBuffers`
            setattr(self, name, arrays[name, 0])
        self.dx = program.Residual(arrays["dx_full", 0], arrays["dx_half", 0])
        self.layers = [Layer(**{name: arrays[name, i] for name in layer}) for i in range(config.layers)]
        self.x_final = arrays["x_final" if owner.keep_x else "x", 0]
        for a in self.layers:
            a.probs = a.sigmoid = None  # only the CPU keeps them
            if not owner.keep_x:
                a.x1 = a.x2 = self.x_final
        cos, sin = reference.rope_tables(time, config.head_dim, config.rope_theta)
        self.rope = SimpleNamespace(cos=xp.asarray(cos, np.float32), sin=xp.asarray(sin, np.float32))
        self.scratch = SimpleNamespace(**{name: arrays[name, 0] for name in scratch})
        self.scratch.square_parts = xp.empty(owner.program.on.processors, np.float32)
        names = (*ops.COMPOSITES, "sum_losses", "norm")  # `hasattr`: those of GPT-2 have no GPU version
        composites = {name: getattr(self.program, name) for name in names if hasattr(self.program, name)}
        # attention's backward pass also undoes the rotation of RoPE, so it needs the tables
        self.op = ops.bind(composites, vars(self.scratch) | {"rope": self.rope})

    def clear(self, x) -> None:
        """Record x = 0."""
        self.program.zero(x)

    def put(self, tokens: np.ndarray, targets: np.ndarray | None = None, scale=None) -> None:
        """Upload a batch: tokens [B, T], targets [B, T, K], scale [K]."""
        upload(self.tokens, tokens)
        if targets is not None:
            upload(self.targets, targets)
            upload(self.scale, scale)

    def sort(self, tokens: np.ndarray) -> None:
        """Upload the positions of tokens [B, T] sorted by token; only `embed_back`, the last operation, reads them."""
        order, tokens, start = embedding.sort(tokens, self.config.vocab_size)
        upload(self.scratch.order, order)
        upload(self.scratch.sorted_tokens, tokens)
        upload(self.scratch.shares, embedding.shares(start, self.config.dim))

    def list(self, key, record: Callable[[], None]) -> program.Launches:
        """Return the launches that `record` records; they are kept under the key and recorded only once."""
        if key not in self.lists:
            record()
            self.lists[key] = self.program.take()
        return self.lists[key]
