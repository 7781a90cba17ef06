"""The engine built from one kernel per computation, so that a reader's kernels can replace some (`engine.use`).

A kernel of the module replaces the chapters' kernel of the same name and parameter types, in float32. Each operation of
a step then runs the chapters' unfused kernels, one for each computation. Some of them need arrays separately that the
model has packed together; `kernels/layout.cu` copies these. Before that, each of the reader's kernels is compared with
the reference on three odd shapes, so that the error message can name the wrong kernel.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.engine import flash_backward, program
from nanoeuler_lib.errors import NanoEulerError, did_you_mean

# The kernels that a reader can replace, by file.
PLACES = {
    "embedding.cu": ("embedding_forward", "embedding_backward"),
    "vector_add.cu": ("vector_add",),
    "rmsnorm.cu": ("rmsnorm_forward", "rmsnorm_backward"),
    "rope.cu": ("rope_forward", "rope_backward"),
    "swiglu.cu": ("swiglu_forward", "swiglu_backward"),
    "cross_entropy.cu": ("cross_entropy_forward", "cross_entropy_backward"),
    "reductions.cu": ("column_sums",),
    "adamw.cu": ("squares", "clip_factor", "adamw"),
}
FILE_OF = {name: file for file, names in PLACES.items() for name in names}
THREADS = 256
NORM = 512  # most threads of a block that normalises a row; each keeps up to 8 of its numbers in registers
TRIED = ((1, 32, 1, 24), (7, 64, 2, 40), (19, 96, 3, 56))  # T, D, H, V of the three test shapes


@dataclass
class Offered:
    """Hold the kernels that an open `with engine.use(kernels)` offers; asked: whether a model has used them."""

    kernels: cuda.Module
    asked: bool = False


offered: list[Offered] = []  # one entry per open `with` block, the innermost last


def kernels_in_use() -> cuda.Module | None:
    """Return the kernels of the innermost open `engine.use` block and mark them as used; None without a block."""
    if not offered:
        return None
    offered[-1].asked = True
    return offered[-1].kernels


def check_names(module: cuda.Module) -> None:
    """Raise NanoEulerError for a kernel whose name the engine does not have, or whose parameter types differ."""
    for name, mine in module.signatures.items():
        if name not in FILE_OF:
            known = ", ".join(FILE_OF)
            raise NanoEulerError(f"a kernel's name must be one of {known}, got {name}{did_you_mean(name, FILE_OF)}")
        book = _book(FILE_OF[name], module.where).signatures[name]
        if _types(mine) != _types(book):
            raise NanoEulerError(f"the kernel must be {_in_words(book)}, got {_in_words(mine)}")


def _types(signature):
    return [(p.dtype, p.pointer, p.width) for p in signature.parameters]


def _in_words(signature):
    parameters = (f"{p.type}{'*' * p.pointer} {p.name}" for p in signature.parameters)
    return f"{signature.name}({', '.join(parameters)})"


@functools.cache
def _book(file: str, where: str, checked: bool = True) -> cuda.Module:
    return cuda.module(cuda.KERNELS / file, where=where, checked=checked)


class Unfused(program.Program):
    """Record the operations of `program.Program` with one kernel for each computation, the reader's where given.

    kernels: a module that passed `check_names`. Raises NanoEulerError for a model that the kernels do not support.
    """

    def __init__(self, config: ModelConfig, kernels: cuda.Module, where=None, checked=True, on=None):
        super().__init__(config, "float32", where, checked, on)
        self.kernels, self.scratch = kernels, {}

    def _run(self, composite, name, grid, block, arguments):
        """Record a launch of the reader's kernel of this name if there is one, else of the chapters' kernel."""
        readers = name in self.kernels.signatures
        module = self.kernels if readers else _book(FILE_OF.get(name, "layout.cu"), self.where, self.checked)
        self._launch(composite, module, name, grid, block, arguments)

    def _each(self, composite, name, count, arguments):
        self._run(composite, name, -(-count // THREADS), THREADS, arguments)

    def _space(self, name, *shape):
        if name not in self.scratch or self.scratch[name].shape != shape:
            self.scratch[name] = cuda.array_module(self.where).empty(shape, np.float32)
        return self.scratch[name]

    def embed(self, x, tokens, table):
        N, D = x.shape
        self._run("embed", "embedding_forward", -(-N // 8), THREADS, (tokens, table, x, N, D))

    def embed_back(self, dtable, dx, tokens, accumulate, *, order, sorted_tokens, shares):
        self._count_in_32_bits(dx.full, dtable)
        (N, D), V = dx.full.shape, len(dtable)
        to = self._space("dtable", V, D) if accumulate else dtable
        arguments = shares, order, sorted_tokens, dx.full, to, N, D
        self._run("embed_back", "embedding_backward", len(shares), THREADS, arguments)
        if accumulate:
            self._each("embed_back", "vector_add", V * D, (dtable, to, dtable, V * D))

    def add_rmsnorm(self, x, y, rstd, residual, update, gain, eps):
        N, D = x.shape
        if update is not None:
            self._each("add_rmsnorm", "vector_add", N * D, (residual, update, x, N * D))
        self._run("add_rmsnorm", "rmsnorm_forward", N, _block(D), (x, gain, y, rstd, D, float(eps)))

    def add_rmsnorm_back(self, dx, dgain, dy, x, y, rstd, gain, eps, accumulate, *, gain_parts):
        N, D = x.shape
        part = gain_parts[: min(N, len(gain_parts))]
        arguments = dy, x, gain, rstd, dx.full, part, N, D
        self._run("add_rmsnorm_back", "rmsnorm_backward", len(part), _block(D), arguments)
        self._columns("add_rmsnorm_back", dgain, part, accumulate)

    def _columns(self, composite, to, x, accumulate):
        rows, columns = x.shape
        sums = self._space("columns", columns) if accumulate else to
        self._run(composite, "column_sums", (-(-columns // 32), 1), (32, 8), (x, sums, rows, columns))
        if accumulate:
            self._each(composite, "vector_add", columns, (to, sums, to, columns))

    def _turn(self, composite, name, qkv, rope, config):
        """Record RoPE on packed q and k: unpack them, rotate, pack them again."""
        N, pitch = qkv.shape
        T, heads, C = len(rope.cos), config.heads + config.kv_heads, config.head_dim
        apart, count = self._space("heads", N * heads, C), N * heads * C
        for back in (0, 1):
            if back:
                arguments = apart, rope.cos, rope.sin, apart, N * heads, T, C
                self._each(composite, name, count // 2, arguments)
            self._each(composite, "copy_heads", count, (qkv, apart, N // T, T, heads, C, pitch, back))

    def qkv_rope(self, qkv, y, w, rope, config):
        self._product("qkv_rope", qkv, y, w)
        self._turn("qkv_rope", "rope_forward", qkv, rope, config)

    def attention_back(self, dqkv, dy, y, probs, lse, qkv, config, *, along, rope):
        B, _, T = lse.shape
        dqkv_, dy_, y_, qkv_ = (x.reshape(B, T, -1) for x in (dqkv, dy, y, qkv))
        for launch in flash_backward.backward(
            dqkv_, along, dy_, y_, lse, qkv_, config.heads, config.kv_heads, 1 / math.sqrt(config.head_dim),
            where=self.where, checked=self.checked, on=self.on,
        ):  # fmt: skip
            self._add("attention_back", launch)
        self._turn("attention_back", "rope_backward", dqkv, rope, config)

    def _halves(self, composite, packed, gate, up, back):
        N, F = gate.shape
        for first, half in ((0, gate), (F, up)):
            self._each(composite, "copy_columns", N * F, (packed, half, N, F, 2 * F, first, back))

    def swiglu(self, hidden, sigmoid, gate_up):
        N, F = hidden.shape
        gate, up = self._space("gate", N, F), self._space("up", N, F)
        self._halves("swiglu", gate_up, gate, up, 0)
        self._each("swiglu", "swiglu_forward", N * F, (gate, up, hidden, N * F))

    def swiglu_back(self, dgate_up, dhidden, sigmoid, gate_up):
        N, F = dhidden.shape
        gate, up, dgate, dup = (self._space(name, N, F) for name in ("gate", "up", "dgate", "dup"))
        self._halves("swiglu_back", gate_up, gate, up, 0)
        self._each("swiglu_back", "swiglu_backward", N * F, (dhidden, gate, up, dgate, dup, N * F))
        self._halves("swiglu_back", dgate_up, dgate, dup, 1)

    def heads_loss(self, losses, dy, dw, y, w, targets, scale, accumulate, *, logits):
        N, K = losses.shape
        V, gradient, logits = w.shape[1] // K, dw is not None, program.rows_of(logits, w.shape[1])
        for start in range(0, N, len(logits)):
            rows = slice(start, min(start + len(logits), N))
            count = (rows.stop - rows.start) * K
            z = logits[: count // K]
            self._product("heads_loss", z, y[rows], w)
            if not gradient:
                arguments = z, targets[rows], losses[rows], V
                self._run("heads_loss", "cross_entropy_forward", count, THREADS, arguments)
                continue
            weights = scale[rows] if scale.ndim == 2 else self._space("weights", count)
            if scale.ndim == 1:
                self._each("heads_loss", "repeat", count, (scale, weights, count, K))
            arguments = z, targets[rows], weights, losses[rows], V
            self._run("heads_loss", "cross_entropy_backward", count, THREADS, arguments)
            self._product("heads_loss", dy[rows], z, w, transpose_b=True)
            self._product("heads_loss", dw, y[rows], z, transpose_a=True, add=bool(accumulate) or start > 0)

    def sum_losses(self, sums, losses, accumulate):
        self._columns("sum_losses", sums, losses, accumulate)

    def norm(self, factor, g, limit, *, square_parts):
        parts = square_parts
        self._run("norm", "squares", len(parts), THREADS, (g, parts, g.size))
        self._run("norm", "clip_factor", 1, THREADS, (parts, factor, len(parts), float(limit)))

    def adamw(self, params, grads, m, v, copy, factor, step, decayed, settings):
        numbers = params.size, decayed, settings.beta1, settings.beta2, settings.adam_eps, settings.decay
        arguments = params, grads, m, v, factor, step, *numbers
        self._each("adamw", "adamw", params.size // 4, arguments)


def _block(D):
    """Return the threads of a block that normalises a row of D numbers, at most 8 numbers per thread."""
    return min(NORM, max(32, 32 * -(-D // 128)))


def tried(kernels: cuda.Module, errors_of) -> None:
    """Test each kernel of a module by itself on three odd shapes, with the chapters' kernels for the rest of a step.

    errors_of(config, time, kernels): returns {what: relative error} for a step of a small model with these kernels, see
    `trial.errors_of`. Raises NanoEulerError for the first kernel with an error above 1e-4; the message gives the
    kernel, the shape and the wrong result.
    """
    for name in kernels.signatures:
        alone = _Only(kernels, name)
        for T, D, H, V in TRIED:
            shape = dict(dim=D, heads=H, kv_heads=1, layers=1, context=T, vocab_size=V, predict=2, ffn=D + 8)
            wrong = {what: e for what, e in errors_of(ModelConfig(**shape), T, alone).items() if not e <= 1e-4}
            if wrong:
                what = max(wrong, key=lambda key: np.nan_to_num(wrong[key], nan=np.inf))
                raise NanoEulerError(
                    f"with your {name}, {what} must have a relative error of at most 1e-4, got {wrong[what]:.2g} "
                    f"(B 2, T {T}, D {D}, V {V})"
                )


class _Only:
    """Show only one kernel of a module."""

    def __init__(self, module, name):
        self.module, self.signatures = module, {name: module.signatures[name]}

    def __getitem__(self, name):
        return self.module[name]
