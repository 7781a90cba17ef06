"""The operations of a training step on the GPU ("composites"): each appends kernel launches and products to a list.

    program = Program(config, "bfloat16")
    forward(weights, plan, plan.tokens)          # the same code as on the CPU, but here it records launches
    launches = program.take()
    run(launches)                                # any number of times; on a GPU it is a CUDA graph from the second on

A step does nothing but run such a list. It allocates no array, and the launches read everything that changes from step
to step (tokens, targets, loss scale, learning rate) from GPU memory. So the tests check the same list on the CPU that a
GPU runs. Composites take the arguments of `ops/cpu.py`; `probs` and `sigmoid`, which only the CPU keeps, are None.
Keyword-only arguments are scratch space (`memory.shapes`), which `plan.op` fills in. The kernels are in
`kernels/engine.cu`, `attention_forward.cu`, `attention_backward.cu`, `embedding.cu`, `adamw.cu` and `muon.cu`.
"""

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.config import GPT2Config, ModelConfig
from nanoeuler_lib.cuda.blas import Product, product
from nanoeuler_lib.engine import flash, flash_backward
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.ops.reference import MOVE, QUINTIC, SCHULZ_STEPS, SMALLEST

NUMBER = {"float32": "float", "tf32": "float", "bfloat16": "__nv_bfloat16", "float16": "__half"}
NEEDS = {"tf32": 80, "bfloat16": 80, "float16": 75}  # compute capability, times 10
THREADS = 256  # threads per block in kernels whose threads are independent
BLOCKS = 32  # such blocks per multiprocessor: enough to keep all of its threads busy
LOGITS = 256  # threads per block for a row of logits: while some blocks wait at a barrier, others load
NORM_BLOCKS = 4  # blocks per multiprocessor in the norm's backward pass, each with its own row of partial sums
MUON_PARTS = 32  # blocks per matrix in Muon's kernels, each with its own partial sum
SCHULZ = (QUINTIC,) * SCHULZ_STEPS  # polynomials of Muon's Newton-Schulz iteration, in order
SQUARES = 1024  # threads of the block that adds the sums of squares; the blocks that square have half as many
TOGETHER = 1, 2, 4, 8  # the largest numbers of tokens for which a decoding kernel is instantiated
WIDEST = 4 * 16 * 512  # longest row that a block of 512 threads can keep in registers, 16 float4 per thread


@dataclass(frozen=True)
class Entry:
    """Describe a launch: its composite and arrays; for the profile, the bytes it must move and its operations."""

    composite: str
    launch: Any
    bytes: int = 0
    flops: int = 0
    # filled in for all kernels except attention's, which touch neither weights nor their gradients
    arrays: tuple = field(default=(), compare=False)

    def __str__(self):
        """Return the kernel, grid, block and bytes of shared memory, or the shape of the product."""
        if isinstance(self.launch, Product):
            return f"{self.composite}: product {self.launch}"
        if isinstance(self.launch, Copy):
            return f"{self.composite}: {self.launch}"
        return f"{self.composite}: {cuda.describe(self.launch)}"


@dataclass(frozen=True)
class Copy:
    """Copy between host memory (`memory.pinned`) and the device, in either direction, as an entry of a list."""

    to: Any
    source: Any

    def __str__(self):
        return f"copy of {self.source.nbytes} bytes"

    def __call__(self):
        if isinstance(self.to, np.ndarray) and isinstance(self.source, np.ndarray):
            self.to[...] = self.source
            return
        from cupy.cuda import runtime, stream

        to, source = (x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr for x in (self.to, self.source))
        kind, on = runtime.memcpyDefault, stream.get_current_stream().ptr
        runtime.memcpyAsync(to, source, self.source.nbytes, kind, on)


class Launches(list[Entry]):
    """Hold launches in order; graph: the same as a CUDA graph, None until `run` has captured one."""

    def __init__(self, entries: list[Entry], where: str):
        super().__init__(entries)
        self.where, self.graph, self.has_run = where, None, False

    def cut(self, composite: str) -> tuple["Launches", "Launches"]:
        """Split the list before the first launch of a composite and return both parts."""
        at = [entry.composite for entry in self].index(composite)
        return Launches(self[:at], self.where), Launches(self[at:], self.where)

    def behind(self, x) -> int:
        """Return the index after the last launch that touches an array's memory; 0 if none does."""
        (begin, end), last = _memory(x), 0
        for place, entry in enumerate(self, 1):
            one = entry.launch
            arrays = (one.a, one.b, one.c) if isinstance(one, Product) else entry.arrays
            if any(a < end and begin < b for a, b in map(_memory, arrays)):
                last = place
        return last

    def before(self, x) -> int:
        """Return the index of the first launch that touches an array's memory; the list's length if none does."""
        return len(self) - Launches(self[::-1], self.where).behind(x)


def _memory(x):
    """Return the addresses where a contiguous array begins and ends."""
    begin = x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr
    return begin, begin + x.nbytes


def run(launches: Launches) -> None:
    """Run the launches in order; on a GPU as one CUDA graph from the second run on."""
    if launches.graph is not None:
        return launches.graph.launch()
    if launches.where == "gpu" and launches.has_run:  # the first run loaded all kernels
        launches.graph = _captured(launches)
        return launches.graph.launch()
    for entry in launches:
        entry.launch()
    launches.has_run = True


def wait(launches: Launches) -> None:
    """Wait until the list that `run` started has finished, so that the host may read what it copied."""
    if launches.where == "gpu":
        import cupy

        cupy.cuda.get_current_stream().synchronize()


def mark(launches: Launches):
    """Return an event that completes when the list that `run` started has finished; None on the CPU."""
    if launches.where == "cpu":
        return None
    import cupy

    event = cupy.cuda.Event(disable_timing=True)
    event.record()
    return event


def _captured(launches):
    import cupy

    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        try:
            for entry in launches:
                entry.launch()
        finally:
            graph = stream.end_capture()
    return graph


@dataclass(frozen=True)
class Residual:
    """Hold the gradient of the residual stream: `full` [N, D] float32, and `half`, a copy in the products' type."""

    full: Any
    half: Any


def check_config(config: ModelConfig, precision: str, on: flash.Card) -> None:
    """Raise NanoEulerError if the kernels do not support the model, or the GPU does not support the precision."""
    if precision not in NUMBER:
        raise NanoEulerError(f"precision must be one of {', '.join(NUMBER)}, got {precision!r}")
    if isinstance(config, GPT2Config):
        raise NanoEulerError("the engine has no kernels for GPT-2: take --device cpu")
    if on.capability < (least := NEEDS.get(precision, 0)):
        raise NanoEulerError(
            f"{precision} needs compute capability {least / 10} or later, this GPU has {on.version}: take float32"
        )
    if config.head_dim not in flash.WIDTHS:
        raise NanoEulerError(
            f"head width dim/heads must be 32, 64 or 128 on a GPU, got {config.head_dim}: or take --device cpu"
        )
    for name in ("dim", "ffn", "vocab_size"):
        value = getattr(config, name)
        if value % 8 or value > WIDEST:
            raise NanoEulerError(
                f"{name} must be a multiple of 8 up to {WIDEST} on a GPU, got {value}: or take --device cpu"
            )


class Program:
    """Record the launches of a training step: each method is one operation and appends its launches to a list.

    precision: a name in NUMBER; where, checked: as for `cuda.module`; on: the GPU whose properties decide tiles and
    grids, by default the present one. Raises NanoEulerError as `check_config` does.
    """

    def __init__(
        self,
        config: ModelConfig,
        precision: str = "float32",
        where: str | None = None,
        checked: bool = True,
        on: flash.Card | None = None,
    ):
        self.where, self.on = where or cuda.device(), on or flash.card(where)
        check_config(config, precision, self.on)
        self.number, self.tf32, self.checked = NUMBER[precision], precision == "tf32", checked
        self.config, self.entries = config, []

    def take(self) -> Launches:
        """Return the launches recorded since the last call."""
        taken, self.entries = Launches(self.entries, self.where), []
        return taken

    # ---- writing the list ------------------------------------------------------------------------------------

    def _add(self, composite, launch, bytes=0, flops=0):
        self.entries.append(Entry(composite, launch, bytes, flops))

    def _launch(self, composite, module, kernel, grid, block, arguments, bytes=0):
        arrays = tuple(x for x in arguments if hasattr(x, "nbytes") and getattr(x, "ndim", 0))
        self._add(composite, module[kernel].bind(grid, block, arguments, seconds=60.0), bytes)
        self.entries[-1] = replace(self.entries[-1], arrays=arrays)

    def _engine(self, composite, kernel, grid, block, arguments, bytes=0):
        self._launch(composite, self._engine_file(), kernel, grid, block, arguments, bytes)

    def _engine_file(self):
        defines = () if self.number == "float" else (("COPY", self.number),)
        return self._file("engine.cu", engine_kernels(self.number, self.config), defines)

    def _file(self, name, instantiate=(), defines=()):
        return _module(name, instantiate, self.where, self.checked, defines)

    def _product(self, composite, c, a, b, **options):
        launch = product(c, a, b, tf32=self.tf32, **options)
        moved = a.nbytes + b.nbytes + c.nbytes * (1 if launch.plus is None else 2)
        self._add(composite, launch, moved, 2 * launch.times * math.prod(launch.shape))

    def _blocks(self, threads):
        """Return the number of blocks for so many threads; capped, because the kernels loop over what is left."""
        return min(-(-threads // THREADS), BLOCKS * self.on.processors)

    def copy(self, composite, to, source):
        """Record to = source, where one of the two may be `memory.pinned` host memory."""
        self._add(composite, Copy(to, source), source.nbytes)

    # ---- the composites, in the order of the model -----------------------------------------------------------

    def zero(self, x):
        """Record x = 0."""
        full = x.full if isinstance(x, Residual) else x
        self._engine("zero", "zero", self._blocks(full.size // 4), THREADS, (full, full.size // 4), full.nbytes)

    def round_to(self, half, full):
        """Record half = full, rounded to the products' type. Both are flat; their length is a multiple of 4."""
        grid, arguments = self._blocks(full.size // 4), (full, half, full.size // 4)
        self._engine("round", f"round_to<{self.number}>", grid, THREADS, arguments, full.nbytes + half.nbytes)

    def embed(self, x, tokens, table):
        """Record x[n] = table[tokens[n]]. x: [N, D] float32; tokens: [B, T] int32; table: [V, D] float32."""
        N, D = x.shape
        arguments = tokens.reshape(-1), table, x, N, D
        file = self._file("embedding.cu")
        self._launch("embed", file, "embedding_forward", -(-N // 8), THREADS, arguments, 2 * x.nbytes)

    def embed_back(self, dtable, dx, tokens, accumulate, *, order, sorted_tokens, shares):
        """Record dtable[v] = the sum of dx[n] over the positions n of token v, or += if `accumulate`.

        dtable: [V, D] float32; order: [N], the positions sorted by token; sorted_tokens: [N], their tokens; shares:
        which block adds what, see `embedding.shares`.
        """
        self._count_in_32_bits(dx.full, dtable)
        N, D = dx.full.shape
        file, threads = (
            self._file("embedding.cu", defines=(("ADD", 1),) if accumulate else ()),
            min(THREADS, 32 * -(-D // 128)),
        )
        arguments = shares, order, sorted_tokens, dx.full, dtable, N, D
        moved = dx.full.nbytes + dtable.nbytes
        self._launch("embed_back", file, "embedding_backward", len(shares), threads, arguments, moved)

    def _count_in_32_bits(self, *arrays):
        """Raise NanoEulerError for arrays with more elements than `embedding_backward` can index."""
        if (most := max(array.size for array in arrays)) >= 1 << 32:
            message = f"the arrays of the embedding's gradient must have fewer than 2^32 numbers, got {most:,}"
            raise NanoEulerError(message)

    def linear(self, y, x, w):
        """Record y = x w. x: [N, I]; w: [I, O]; y: [N, O]."""
        self._product("linear", y, x, w)

    def linear_back(self, dx, dw, dy, x, w, accumulate):
        """Record dx = dy w^T and dw = x^T dy, or dw += x^T dy if `accumulate`. Shapes as in `linear`."""
        dy = dy.half if isinstance(dy, Residual) else dy
        self._product("linear_back", dx, dy, w, transpose_b=True)
        self._product("linear_back", dw, x, dy, transpose_a=True, add=bool(accumulate))

    def add_rmsnorm(self, x, y, rstd, residual, update, gain, eps):
        """Record x = residual + update and y = rmsnorm(x). If update is None, nothing is added.

        gain: [D]; rstd: [N]; all others [N, D]. x and residual may be the same array.
        """
        N, D = x.shape
        threads, keep = _row(D)
        kernel = f"add_rmsnorm<{self.number}, {keep}, {_flag(update is not None)}>"
        arguments = residual, y if update is None else update, gain, x, y, rstd, D, float(eps)
        moved = residual.nbytes + y.nbytes + (0 if update is None else x.nbytes + update.nbytes)
        self._engine("add_rmsnorm", kernel, N, threads, arguments, moved)

    def add_rmsnorm_back(self, dx, dgain, dy, x, y, rstd, gain, eps, accumulate, *, gain_parts):
        """Record dx += rmsnorm's gradient, dgain = (or +=) the gain's. x is not read, because x rstd is y / gain."""
        N, D = y.shape
        threads, keep = _row(D)
        blocks = min(N, NORM_BLOCKS * self.on.processors)
        part = gain_parts[:blocks]
        arguments = dy, y, gain, rstd, dx.full, dx.half, part, N, D
        moved = dy.nbytes + y.nbytes + 2 * dx.full.nbytes + (dx.half.nbytes if dx.half is not dx.full else 0)
        kernel = f"add_rmsnorm_back<{self.number}, {keep}>"
        self._engine("add_rmsnorm_back", kernel, blocks, threads, arguments, moved)
        self._sum_parts("add_rmsnorm_back", part, dgain, accumulate)

    def _sum_parts(self, composite, parts, to, accumulate):
        rows, columns = parts.shape
        arguments = parts, to, rows, columns, int(accumulate)
        self._engine(composite, "sum_parts", -(-columns // 32), (32, 32), arguments, parts.nbytes)

    def qkv_rope(self, qkv, y, w, rope, config):
        """Record qkv = y w, then rotate q and k by their positions (RoPE). y: [N, D]; w: [D, (H+2G)C]."""
        self._product("qkv_rope", qkv, y, w)
        N, pitch = qkv.shape
        heads, C = config.heads + config.kv_heads, config.head_dim
        grid = -(-N * heads * C // 8 // THREADS)
        arguments = qkv, rope.cos, rope.sin, N, len(rope.cos), heads, C, pitch
        self._engine(
            "qkv_rope",
            f"rope_packed<{self.number}>",
            grid,
            THREADS,
            arguments,
            2 * N * heads * C * qkv.itemsize,
        )

    def qkv_rope_back(self, dy, dw, dqkv, y, w, rope, config, accumulate):
        """Record dy and dw of `qkv_rope`, with dqkv before RoPE: `attention_back` has already undone the rotation."""
        self._product("qkv_rope_back", dy, dqkv, w, transpose_b=True)
        self._product("qkv_rope_back", dw, y, dqkv, transpose_a=True, add=bool(accumulate))

    def attention(self, y, probs, lse, qkv, config):
        """Record y = softmax(q k^T / sqrt(C) + mask) v for each head. y: [N, HC]; qkv: [N, (H+2G)C].

        lse: [B, H, T], the logarithm of the row sums of exp(scores), kept for the backward pass.
        """
        B, _, T = lse.shape
        for launch in flash.forward(
            y.reshape(B, T, -1), lse, qkv.reshape(B, T, -1), config.heads, config.kv_heads,
            1 / math.sqrt(config.head_dim), tf32=self.tf32, where=self.where, checked=self.checked, on=self.on,
        ):  # fmt: skip
            work = 2 * B * config.heads * T * (T + 1) * config.head_dim  # two products over the lower triangle
            self._add("attention", launch, qkv.nbytes + y.nbytes, work)

    def attention_back(self, dqkv, dy, y, probs, lse, qkv, config, *, along, rope):
        """Record dqkv, the gradient through `attention` and the RoPE before it.

        along: [B, H, T], scratch space for dout . out; rope: the tables of cosines and sines, which a plan fills in.
        """
        B, _, T = lse.shape
        batched = [x.reshape(B, T, -1) for x in (dqkv, dy, y, qkv)]
        launches = flash_backward.backward(
            batched[0], along, batched[1], batched[2], lse, batched[3], config.heads, config.kv_heads,
            1 / math.sqrt(config.head_dim), tables=(rope.cos, rope.sin), tf32=self.tf32,
            where=self.where, checked=self.checked, on=self.on,
        )  # fmt: skip
        for products, launch in zip((3, 4), launches, strict=True):  # products of the first and second kernel
            flops = products * B * config.heads * T * (T + 1) * config.head_dim
            self._add("attention_back", launch, 2 * qkv.nbytes + 2 * y.nbytes, flops)

    def swiglu(self, hidden, sigmoid, gate_up):
        """Record hidden = gate sigmoid(gate) up. gate_up: [N, 2F]; hidden: [N, F]."""
        N, F = hidden.shape
        grid, arguments = self._blocks(hidden.nbytes // 16), (gate_up, hidden, N, F)
        self._engine(
            "swiglu",
            f"swiglu_packed<{self.number}>",
            grid,
            THREADS,
            arguments,
            gate_up.nbytes + hidden.nbytes,
        )

    def swiglu_back(self, dgate_up, dhidden, sigmoid, gate_up):
        """Record dgate_up, the gradient through `swiglu`. dhidden: [N, F]; gate_up, dgate_up: [N, 2F]."""
        N, F = dhidden.shape
        arguments, moved = (dhidden, gate_up, dgate_up, N, F), dhidden.nbytes + 2 * gate_up.nbytes
        kernel, grid = f"swiglu_packed_back<{self.number}>", self._blocks(dhidden.nbytes // 16)
        self._engine("swiglu_back", kernel, grid, THREADS, arguments, moved)

    def heads_loss(self, losses, dy, dw, y, w, targets, scale, accumulate, *, logits):
        """Record the losses of all prediction heads at all positions, and the gradients of their weighted sum.

        losses: [N, K] float32; y: [N, D]; w: [D, K V]; targets: [N, K] int32; scale: the weights of the losses, [K]
        float32, or [N, K] of either sign; dy: [N, D]; dw: [D, K V] float32; logits: scratch space for the logits of
        some positions, which are computed a few rows at a time. With dy and dw None only the losses are computed.
        """
        N, K = losses.shape
        V, gradient = w.shape[1] // K, dw is not None
        threads, keep = _row(V, LOGITS)
        kernel = f"heads_cross_entropy<{self.number}, {keep}, {_flag(gradient)}>"
        logits = rows_of(logits, K * V)
        for start in range(0, N, len(logits)):
            rows = slice(start, min(start + len(logits), N))
            count = rows.stop - rows.start
            z = logits[:count]
            self._product("heads_loss", z, y[rows], w)
            weights = scale if scale.ndim == 1 else scale[rows]
            arguments = z, targets[rows], weights, losses[rows], V, weights.size
            moved = z.nbytes * (2 if gradient else 1)
            self._engine("heads_loss", kernel, count * K, threads, arguments, moved)
            if gradient:
                self._product("heads_loss", dy[rows], z, w, transpose_b=True)
                add = bool(accumulate) or start > 0
                self._product("heads_loss", dw, y[rows], z, transpose_a=True, add=add)

    # ---- the optimiser, over all parameters at once ----------------------------------------------------------

    def sum_losses(self, sums, losses, accumulate, *, loss_parts):
        """Record sums[k] = the sum of losses[:, k], or += if `accumulate`. sums: [K]; losses: [N, K]."""
        N, K = losses.shape
        file, grid = self._file("reductions.cu"), (-(-K // 32), len(loss_parts))
        self._launch("sum_losses", file, "column_sums", grid, (32, 8), (losses, loss_parts, N, K), losses.nbytes)
        self._sum_parts("sum_losses", loss_parts, sums, accumulate)

    def norm(self, factor, g, limit, *, square_parts):
        """Record factor = (clipping's multiplier for g, the norm of g). g: flat, [n]; factor: [2]; limit: 0 is off."""
        parts, file = square_parts, self._file("adamw.cu")
        self._launch("norm", file, "squares", len(parts), SQUARES // 2, (g, parts, g.size), g.nbytes)
        self._launch("norm", file, "clip_factor", 1, SQUARES, (parts, factor, len(parts), float(limit)))

    def unscale(self, factor, step, limit):
        """Record the division by the loss scale of `factor`, from `norm` of scaled gradients; step[3]: 1 / scale."""
        self._engine("norm", "unscale", 1, 32, (factor, step, float(limit)))

    def refuse(self, factor, sums):
        """Record factor[1] = NaN if one of sums [K] is NaN or infinite, so that `adamw` changes nothing."""
        self._engine("norm", "refuse", 1, 32, (sums, factor, len(sums)))

    def adamw(self, params, grads, m, v, copy, factor, step, decayed, settings):
        """Record one step of AdamW over flat float32 arrays.

        copy: a 16-bit copy of params to update too, or None; factor: [2], from `norm`; step: [4] float32, the learning
        rate, the bias corrections of both moments, and 1 / loss scale; decayed: length of the prefix that weight decay
        applies to, the matrices; settings: a `TrainConfig`.
        """
        numbers = params.size, decayed, settings.beta1, settings.beta2, settings.adam_eps, settings.decay
        arrays = (params, grads, m, v) if copy is None else (params, grads, m, v, copy)
        kernel, moved = "adamw" if copy is None else "adamw_and_copy", 7 * params.nbytes
        moved += 0 if copy is None else copy.nbytes
        file = self._file("adamw.cu") if copy is None else self._engine_file()
        arguments, grid = (*arrays, factor, step, *numbers), self._blocks(params.size // 4)
        self._launch("adamw", file, kernel, grid, THREADS, arguments, moved)

    def muon(self, p, g, m, copy, factor, step, beta, decay, work):
        """Record one step of Muon. p, g, m: flat float32; copy: flat, 16 bits, or None; factor, step: as for `adamw`.

        work: from `memory.muon_work`. Matrices of the same shape are orthogonalised together.
        """
        for group in work.groups:
            self._muon(p, g, m, copy, factor, step, float(beta), float(decay), work, *group)

    def _muon(self, p, g, m, copy, factor, step, beta, decay, work, R, C, places):
        """Record a step for n matrices [R, C]. A tall one uses the smaller Gram matrix x^T x, so none is transposed."""
        n, wide, side = len(places), R <= C, min(R, C)
        file, grid = self._file("muon.cu", muon_kernels(self.number)), (MUON_PARTS, n)
        x, y = (w[: n * R * C].reshape(n, R, C) for w in (work.muon_x, work.muon_y))
        gram, inner = (w[: n * side**2].reshape(n, side, side) for w in (work.muon_gram, work.muon_inner))
        place, size = (places, R * C // 4, C // 4), 4 * n * R * C

        def launch(kernel, arguments, moved):
            self._launch("muon", file, f"{kernel}<{self.number}>", grid, THREADS, arguments, moved)

        momentum = g, m, factor, work.muon_parts, *place, beta
        self._launch("muon", file, "muon_momentum", grid, THREADS, momentum, 3 * size)
        launch("muon_direction", (g, m, factor, work.muon_parts, x, *place, beta, SMALLEST), 2 * size + x.nbytes)
        for a, b, c in SCHULZ:
            self._product("muon", gram, x, x, transpose_a=not wide, transpose_b=wide, small_clusters=True)
            self._product("muon", inner, gram, gram, alpha=c, plus=gram, beta=b, small_clusters=True)
            self._product("muon", y, *((inner, x) if wide else (x, inner)), plus=x, beta=a, small_clusters=True)
            x, y = y, x
        to = p if copy is None else copy
        move = p, x, to, factor, step, *place, MOVE * math.sqrt(max(R, C)), decay
        launch("muon_move", move, 2 * size + 2 * x.nbytes)

    # ---- decoding: a few tokens of one text (engine.Decoder) -----------------------------------------------------

    def project(self, out, x, w, eps):
        """Record out = norm(x) w^T, or out += x w^T if eps is None. x: [rows, I]; w: [O, I]; out: [rows, O]."""
        flags = "false, true" if eps is None else "true, false"
        kernel = f"project<{self.number}, {_together(len(x))}, {x.shape[1]}, {flags}>"
        self._multiply("project", kernel, out, x, w, eps or 0)

    def project_glu(self, hidden, x, w, eps):
        """Record hidden = silu(gate) up, [gate, up] = norm(x) w^T. x: [rows, I]; w: [2F, I]; hidden: [rows, F]."""
        kernel = f"project_glu<{self.number}, {_together(len(x))}, {x.shape[1]}>"
        self._multiply("project_glu", kernel, hidden, x, w, eps)

    def _multiply(self, composite, kernel, out, x, w, eps):
        (rows, inputs), outputs = x.shape, out.shape[1]
        names = products(self.number, self.config, rows)
        blocks = min(-(-outputs // 8), 8 * self.on.processors)
        arguments, shared = (x, w, out, rows, outputs, float(eps)), rows * (4 * inputs + 16)
        self._decode(composite, names, kernel, blocks, 256, arguments, shared, w.nbytes)

    def attend(self, out, qkv, cos, sin, cache, position, config):
        """Record attention of the tokens of qkv [rows, (H+2G)C] over the cache [2G, context, C], and add them to it.

        cos, sin: [context, C/2]; position: [1], the position of the first token; out: [rows, HC].
        """
        rows, C = len(qkv), config.head_dim
        arguments = qkv, cos, sin, cache, position, out, config.heads, config.kv_heads, C, config.context
        grid, shared = (config.heads, rows), 4 * (33 * C + 32)
        kernel = f"attend<{self.number}>"
        self._decode("attend", (kernel,), kernel, grid, 512, arguments, shared, cache.nbytes)

    def order(self, drawn, logits, size, temperature, top_k, top_p, min_p):
        """Record the sorting and filtering of logits [rows, (1 + ahead) V] into `drawn`, a `decode.Drawn`.

        size: only tokens below it may be sampled; temperature, top_k, top_p, min_p: as in `generation`.
        """
        V, (rows, heads) = self.config.vocab_size, drawn.counts.shape
        keys = 4 if V <= 4096 else 16
        threads = max(32, 1 << (-(-V // keys) - 1).bit_length())
        arrays = logits, drawn.tokens, drawn.sums, drawn.counts, drawn.dense, drawn.turn
        arguments = *arrays, V, size, float(temperature), top_k, float(top_p), float(min_p)
        kernel, moved = f"order<{keys}>", logits.nbytes + drawn.dense.nbytes // 2
        shared = 8 * keys * threads
        self._decode("order", (kernel,), kernel, (heads, rows), threads, arguments, shared, moved, "draw.cu")

    def judge(self, drawn, inputs, end):
        """Record the acceptance of proposed tokens, the next sampled token and new proposals.

        inputs: the next round's position and tokens; end: the token that ends a text, or -1; `drawn.results`: tokens.
        """
        V, (_, heads), ring = self.config.vocab_size, drawn.counts.shape, len(drawn.uniforms)
        arrays = (
            drawn.tokens,
            drawn.sums,
            drawn.counts,
            drawn.dense,
            drawn.uniforms,
            inputs,
            drawn.turn,
            drawn.results,
        )
        arguments = *arrays, V, heads - 1, end, ring, len(drawn.results)
        keys = 4 if V <= 4096 else 16
        self._decode("judge", (f"order<{keys}>",), "judge", 1, 512, arguments, 0, drawn.results.nbytes, "draw.cu")

    def _decode(self, composite, names, kernel, grid, block, arguments, shared, bytes, file="decode.cu"):
        launch = self._file(file, names)[kernel].bind(grid, block, arguments, shared, seconds=60.0, overlap=True)
        self._add(composite, launch, bytes)


@functools.cache
def engine_kernels(number: str, config: ModelConfig) -> tuple[str, ...]:
    """Return the template instances of engine.cu that a model needs; they are compiled together."""
    (_, row), (_, logits), flags = _row(config.dim), _row(config.vocab_size, LOGITS), ("true", "false")
    names = [f"add_rmsnorm<{number}, {row}, {add}>" for add in flags]
    names += [f"heads_cross_entropy<{number}, {logits}, {gradient}>" for gradient in flags]
    plain = "rope_packed", "swiglu_packed", "swiglu_packed_back", "round_to"
    return (*names, f"add_rmsnorm_back<{number}, {row}>", *(f"{name}<{number}>" for name in plain))


def products(number: str, config: ModelConfig, rows: int) -> tuple[str, ...]:
    """Return the template instances of decode.cu that multiply so many rows; they are compiled when first needed."""
    rows, D = _together(rows), config.dim
    added = [f"project<{number}, {rows}, {I}, false, true>" for I in sorted({D, config.ffn})]
    return f"project<{number}, {rows}, {D}, true, false>", f"project_glu<{number}, {rows}, {D}>", *added


def muon_kernels(number: str) -> tuple[str, ...]:
    """Return the template instances of muon.cu for a type of numbers."""
    return f"muon_direction<{number}>", f"muon_move<{number}>"


def rows_of(space, width: int):
    """Return scratch space as an array [rows, width] with as many rows as fit."""
    rows = space.size // width
    return space.reshape(-1)[: rows * width].reshape(rows, width)


def _together(rows: int) -> int:
    """Return the smallest instantiated number of rows of a decoding kernel that holds so many."""
    return next(most for most in TOGETHER if rows <= most)


def _flag(value) -> str:
    return "true" if value else "false"


def _row(width: int, few: int = 512) -> tuple[int, int]:
    """Return a block's threads for a row (at most `few` up to 16 * few numbers, else 512) and float4 per thread."""
    threads = min(few if width <= 16 * few else 512, 32 * -(-width // 128))
    return threads, -(-width // (4 * threads))


@functools.cache
def _module(file: str, instantiate: tuple[str, ...], where: str, checked: bool, defines: tuple = ()):
    path = cuda.KERNELS / file
    return cuda.module(path, where=where, checked=checked, instantiate=instantiate, defines=dict(defines))
