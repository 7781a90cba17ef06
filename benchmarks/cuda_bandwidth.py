"""Compare every kernel with a plain copy of as many bytes, at the shapes of `base`; needs a GPU.

    python -m benchmarks.cuda_bandwidth                          # stores cuda_bandwidth.json and cuda_bandwidth_16.json
    python -m benchmarks.cuda_bandwidth --kernels adamw,squares  # only these kernels, printed but not stored
    python -m benchmarks.cuda_bandwidth --quick                  # 16 texts, few rounds, printed but not stored
    python -m benchmarks.cuda_bandwidth --out FOLDER             # writes the JSON there, also for only some kernels

The first file, in data/results, is for 64 texts of 512 tokens, the second for 16. Each row is a kernel with one block
size. It has the bytes that the kernel must move (each array once), its time, and its speed as a fraction of the copy's.
The copy is the driver's device-to-device copy of as many bytes, half of them read and half written. Kernel and copy
alternate in rounds; the fraction is the median over rounds, with the smallest and the largest. Every launch shape on
offer is timed in a few rounds, and the best shape of each block size is kept. The best shape of all is then measured
again with more rounds.

One timing is a CUDA graph of many launches, so that no launch waits for the host; the same graph runs once before as a
warm-up. Launches cycle through several sets of arrays, which together do not fit in the cache.

Before it is timed, every launch runs once on separate numbers, and its output is compared with the reference in
float64 (which takes several times the kernel's own memory). The row has the largest error, relative to the largest
number; if it exceeds FAR, nothing is timed.
"""

import argparse
import functools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.config import preset
from nanoeuler_lib.engine import embedding as by_token
from nanoeuler_lib.model import parameter_shapes
from nanoeuler_lib.model.optim import clip_factor
from nanoeuler_lib.ops import reference
from tools.notebooks.results import FOLDER, save

BASE = preset("base")
D, F, V, T = BASE.dim, BASE.ffn, BASE.vocab_size, BASE.context
HEADS, C, EPS = BASE.heads, BASE.head_dim, BASE.norm_eps
PARAMETERS = sum(int(np.prod(shape)) for shape in parameter_shapes(BASE).values())
DECAYED = sum(int(np.prod(shape)) for shape in parameter_shapes(BASE).values() if len(shape) == 2)
BLOCKS = 64, 128, 192, 256, 512
SWEEP, ROUNDS = 3, 9  # rounds for each launch shape, and for the best one
TOGETHER = 256 << 20  # minimum bytes of all sets of arrays: several times the cache
MOVED = 3 << 30  # bytes that one timing moves: about a millisecond
FAR = 5e-6  # maximum error, relative to the largest number of the reference

Launches = list[Callable[[], None]]
# An output of a launch: the index of the argument (or a function from the arguments to it), and its expected value.
Truth = Iterable[tuple[int | Callable[[tuple], Any], Any]]


@dataclass
class Work:
    """Hold a kernel and its task.

    shape: in words; bytes: the bytes that the kernel must move; arrays: makes a set of arguments; offered: launches, as
    block, grid and a function from the arguments to bound launches; truth: from the arguments in float64 to the
    reference's outputs.
    """

    kernel: str
    shape: str
    bytes: int
    arrays: Callable[[], tuple]
    offered: list[tuple[Any, Any, Callable[[tuple], Launches]]]
    truth: Callable[[tuple], Truth]


# ----------------------------------------------------------------------------------------------------------------
# the kernels and their tasks


@functools.cache
def compiled(file: str, **defines) -> cuda.Module:
    return cuda.module(cuda.KERNELS / f"{file}.cu", checked=False, defines=defines)


def blocks_for(n: int, block: int) -> int:
    return -(-n // block)


def works(cupy, texts: int) -> Iterator[Work]:
    """Yield all kernels for a number of texts of `base`'s context, starting with the layers of chapter 24."""
    rows = texts * T
    yield from norms(cupy, rows)
    yield from entropies(cupy, rows)
    yield from elementwise(cupy, rows)
    yield from ropes(cupy, texts)
    yield from sums(cupy, rows)
    yield from transposes(cupy, rows)
    yield from embeddings(cupy, rows)
    yield from optimiser(cupy)


@functools.cache
def generator(cupy):
    return cupy.random.default_rng(0)


def normal(cupy, *shape):
    return generator(cupy).standard_normal(shape, dtype=np.float32)


def empty(cupy, *shape):
    """Return an array of NaN, so that numbers that a launch does not write are noticed."""
    return cupy.full(shape, np.nan, np.float32)


def processors(cupy) -> int:
    return cupy.cuda.Device().attributes["MultiProcessorCount"]


def norms(cupy, rows: int) -> Iterator[Work]:
    shape, size, few = f"{rows} x {D}", 4 * rows * D, processors(cupy)

    def kernel(name, block):
        return compiled("rmsnorm", KEEP=blocks_for(D, block))[name]

    def forward(name, block):
        return block, rows, lambda a: [kernel(name, block).bind(rows, block, (*a, D, EPS))]

    def backward(block, grid):
        return block, grid, lambda a: [kernel("rmsnorm_backward", block).bind(grid, block, (*a, rows, D))]

    def normed(x, gain, at=2):
        y, (_, rstd, _) = reference.rmsnorm_forward(x, gain, EPS)
        return [(at, y), (at + 1, rstd[:, 0])]

    def added(a):
        x = a[0] + a[1]
        return [(0, x), *normed(x, a[2], 3)]

    def slopes(a):
        dy, x, gain, rstd, past, _ = a
        dx, dgain = reference.rmsnorm_backward(dy, (x * rstd[:, None], rstd[:, None], gain))
        return [(4, past + dx), (lambda after: after[5].astype(np.float64).sum(axis=0), dgain)]

    gain, x = (lambda: 1 + normal(cupy, D)), (lambda: normal(cupy, rows, D))
    y, rstd = (lambda: empty(cupy, rows, D)), (lambda: empty(cupy, rows))
    factors, shares = (lambda: abs(normal(cupy, rows))), (lambda: cupy.zeros((24 * few, D), np.float32))
    yield Work("rmsnorm_forward", shape, 2 * size, lambda: (x(), gain(), y(), rstd()),
               [forward("rmsnorm_forward", b) for b in BLOCKS],
               lambda a: normed(*a[:2]))  # fmt: skip
    yield Work("add_rmsnorm_forward", shape, 4 * size, lambda: (x(), x(), gain(), y(), rstd()),
               [forward("add_rmsnorm_forward", b) for b in BLOCKS], added)  # fmt: skip
    yield Work("rmsnorm_backward", shape, 4 * size, lambda: (x(), x(), gain(), factors(), x(), shares()),
               [backward(b, k * few) for b in BLOCKS for k in (4, 8, 16, 24)], slopes)  # fmt: skip


def entropies(cupy, rows: int) -> Iterator[Work]:
    shape, size = f"{rows} x {V}", 4 * rows * V

    def arrays():
        targets = generator(cupy).integers(0, V, rows).astype(np.int32)
        dlosses = np.float32(1e-3) * (1 + abs(normal(cupy, rows)))
        return normal(cupy, rows, V), targets, dlosses, empty(cupy, rows)

    def forward(block):
        kernel = compiled("cross_entropy")["cross_entropy_forward"]
        return block, rows, lambda a: [kernel.bind(rows, block, (a[0], a[1], a[3], V))]

    def backward(name, block, **defines):
        return block, rows, lambda a: [compiled("cross_entropy", **defines)[name].bind(rows, block, (*a, V))]

    def loss(a):
        return [(3, reference.cross_entropy_forward(*a[:2])[0])]

    def slopes(a):
        losses, saved = reference.cross_entropy_forward(*a[:2])
        dlogits, away = reference.cross_entropy_backward(a[2], saved), cupy.ones_like(a[0])
        np.put_along_axis(away, saved[1], 0.0, axis=-1)  # without the targets, which are much larger
        return [(3, losses), (0, dlogits), (lambda after: after[0] * away, dlogits * away)]

    yield Work("cross_entropy_forward", shape, size, arrays, [forward(b) for b in BLOCKS], loss)
    yield Work("cross_entropy_backward", shape, 2 * size, arrays,
               [backward("cross_entropy_backward", b) for b in BLOCKS], slopes)  # fmt: skip
    kept = [backward("cross_entropy_backward_kept", b, KEEP=blocks_for(V, b)) for b in (128, 256, 512)]
    yield Work("cross_entropy_backward_kept", shape, 2 * size, arrays, kept, slopes)


def elementwise(cupy, rows: int) -> Iterator[Work]:
    """Yield vector_add over the residual stream and SwiGLU over the hidden layer, plain and with float4."""

    def over(file, name, n, elements):
        """Return launches with one or four elements per thread, or with fewer threads in a grid-stride loop."""

        def offer(block, grid):
            return block, grid, lambda a: [compiled(file)[name].bind(grid, block, (*a, n))]

        grids = [(b, blocks_for(n, elements * b)) for b in (128, 256, 512)]
        if name != "vector_add":  # vector_add has no loop
            grids += [(256, 16 * processors(cupy)), (512, 8 * processors(cupy))]
        return [offer(*shape) for shape in grids]

    def added(a):
        return [(2, a[0] + a[1])]

    def gated(a):
        return [(2, reference.swiglu_forward(*a[:2])[0])]

    def slopes(a):
        dy, *inputs = a[:3]
        return zip((3, 4), reference.swiglu_backward(dy, reference.swiglu_forward(*inputs)[1]), strict=True)

    for name, elements in (("vector_add", 1), ("vector_add_wide", 4)):
        n = rows * D
        arrays = functools.partial(streams, cupy, n, 2, 1)
        yield Work(name, f"{n}", 12 * n, arrays, over("vector_add", name, n, elements), added)
    for name, elements in (("swiglu_forward", 1), ("swiglu_forward_wide", 4)):
        n = rows * F
        arrays = functools.partial(streams, cupy, n, 2, 1)
        yield Work(name, f"{n}", 12 * n, arrays, over("swiglu", name, n, elements), gated)
    for name, elements in (("swiglu_backward", 1), ("swiglu_backward_wide", 4)):
        n = rows * F
        arrays = functools.partial(streams, cupy, n, 3, 2)
        yield Work(name, f"{n}", 20 * n, arrays, over("swiglu", name, n, elements), slopes)


def streams(cupy, n: int, read: int, written: int) -> tuple:
    return (*(normal(cupy, n) for _ in range(read)), *(empty(cupy, n) for _ in range(written)))


def ropes(cupy, texts: int) -> Iterator[Work]:
    """Yield RoPE of the queries of all heads: plain over [B, H, T, C], with float4 over [B, T, H, C]."""
    vectors, size = texts * HEADS * T, 8 * texts * HEADS * T * C
    pairs, pitch = vectors * C // 2, HEADS * C

    def arrays():
        tables = (cupy.asarray(table.astype(np.float32)) for table in reference.rope_tables(T, C))
        return normal(cupy, vectors, C), *tables, empty(cupy, vectors, C)

    def plain(name, block):
        grid = blocks_for(pairs, block)
        return block, grid, lambda a: [compiled("rope")[name].bind(grid, block, (*a, vectors, T, C))]

    def wide(height, along_z, direction):
        grid, block = (blocks_for(T, height), HEADS, along_z), (C // 8, height)
        kernel = compiled("rope")["rope_wide"]
        return block, grid, lambda a: [kernel.bind(grid, block, (*a, texts, T, C, pitch, direction))]

    def turned(a):
        x, *tables = a[:3]
        return [(3, reference.rope_forward(x.reshape(-1, T, C), *tables)[0].reshape(x.shape))]

    def turned_back(a):
        x, *tables = a[:3]
        return [(3, reference.rope_backward(x.reshape(-1, T, C), tables).reshape(x.shape))]

    def turned_wide(a):
        x, *tables = a[:3]
        heads_first = x.reshape(texts, T, HEADS, C).swapaxes(1, 2)
        return [(3, reference.rope_forward(heads_first, *tables)[0].swapaxes(1, 2).reshape(x.shape))]

    shape = f"{texts} x {T} x {HEADS} x {C}"
    for name, truth in (("rope_forward", turned), ("rope_backward", turned_back)):
        yield Work(name, shape, size, arrays, [plain(name, b) for b in (128, 256, 512)], truth)
    offered = [wide(height, z, 1.0) for height in (16, 32, 64) for z in (texts, texts // 2, texts // 4)]
    yield Work("rope_wide", shape, size, arrays, offered, turned_wide)


def sums(cupy, rows: int) -> Iterator[Work]:
    """Yield a sum over as many numbers as there are logits, its backward pass, and sums of columns for gains."""
    n, few, stream = rows * V, processors(cupy), rows * D

    def offer(name, block, grid):
        def bind(a):
            kernel, part, (x, total) = compiled("reductions")[name], empty(cupy, grid), a
            return [kernel.bind(grid, block, (x, part, n)), kernel.bind(1, block, (part, total, grid))]

        return block, grid, bind

    for name in ("sum_tree", "sum_shuffle", "sum_wide"):
        offered = [offer(name, b, k * few) for b in (256, 512) for k in (4, 8, 16)]
        # shifted, so that the sum is four standard deviations from 0
        arrays = lambda: (normal(cupy, n) + np.float32(4 * n**-0.5), empty(cupy, 1))
        yield Work(name, f"{n}", 4 * n, arrays, offered, lambda a: [(1, a[0].sum())])

    def fill(block, grid):
        kernel = compiled("reductions")["sum_backward"]
        return block, grid, lambda a: [kernel.bind(grid, block, (*a, stream))]

    grids = [(b, blocks_for(stream, 4 * b)) for b in (128, 256, 512)] + [(512, 8 * few)]
    arrays = lambda: (normal(cupy, 1), empty(cupy, stream))
    yield Work("sum_backward", f"{stream}", 4 * stream, arrays, [fill(*shape) for shape in grids],
               lambda a: [(1, a[0])])  # fmt: skip

    def columns(tall, block, parts):
        width = blocks_for(D, block[0])

        def bind(a):
            kernel, part, (x, total) = compiled("reductions")["column_sums"], empty(cupy, parts, D), a
            if parts == 1:
                return [kernel.bind(width, block, (x, total, tall, D))]
            first = kernel.bind((width, parts), block, (x, part, tall, D))
            return [first, kernel.bind(blocks_for(D, 8), (8, 64), (part, total, parts, D))]

        return block, (width, parts), bind

    shapes = (32, 8), (32, 16), (64, 8), (8, 64), (8, 128)
    # 33 parts of 24 blocks: six for each of the 132 multiprocessors of an H100
    for tall, parts in ((8 * few, (1,)), (rows, (1, 16, 33, 64))):
        arrays = functools.partial(lambda tall: (normal(cupy, tall, D), empty(cupy, D)), tall)
        offered = [columns(tall, block, p) for block in shapes for p in parts]
        yield Work("column_sums", f"{tall} x {D}", 4 * tall * D, arrays, offered,
                   lambda a: [(1, a[0].sum(axis=0))])  # fmt: skip


def transposes(cupy, rows: int) -> Iterator[Work]:
    """Yield transposes of the residual stream."""

    def offer(name, block, tile, **defines):
        grid = blocks_for(D, tile[0]), blocks_for(rows, tile[1])
        return (
            block,
            grid,
            lambda a: [compiled("transpose", **defines)[name].bind(grid, block, (*a, rows, D))],
        )

    offers = {
        "transpose_plain": [offer("transpose_plain", b, b) for b in ((32, 8), (16, 16), (8, 32))],
        "transpose_tiled": [offer("transpose_tiled", (32, h), (32, 32)) for h in (4, 8, 16)],
        "transpose_wide": [
            offer("transpose_wide", (32, h), (side, side), SIDE=side, HEIGHT=h) for side in (32, 64) for h in (4, 8, 16)
        ],
    }
    for name, offered in offers.items():
        arrays = lambda: (normal(cupy, rows, D), empty(cupy, D, rows))
        yield Work(name, f"{rows} x {D}", 8 * rows * D, arrays, offered,
                   lambda a: [(1, a[0].T)])  # fmt: skip


def embeddings(cupy, rows: int) -> Iterator[Work]:
    """Yield the embedding of tokens whose frequency is one over their rank; the table counts once."""
    rng, frequency = np.random.default_rng(0), 1 / np.arange(1, V + 1)
    tokens = rng.permutation(V)[rng.choice(V, rows, p=frequency / frequency.sum())].astype(np.int32)
    order, there, start = by_token.sort(tokens, V)
    shape, size = f"{rows} x {D}, {V} tokens, Zipf", 4 * D * (rows + V)

    def forward(block):
        grid, kernel = blocks_for(rows, block // 32), compiled("embedding")["embedding_forward"]
        return block, grid, lambda a: [kernel.bind(grid, block, (*a, rows, D))]

    shares = by_token.shares(start, D)

    def backward(block):
        grid, kernel = len(shares), compiled("embedding")["embedding_backward"]
        return block, grid, lambda a: [kernel.bind(grid, block, (*a, rows, D))]

    def looked_up():
        return cupy.asarray(tokens), normal(cupy, V, D), empty(cupy, rows, D)

    def scattered():
        planned = (cupy.asarray(x, np.int32) for x in (shares, order, there))
        return *planned, normal(cupy, rows, D), empty(cupy, V, D)

    def added(a):
        dx = cupy.asnumpy(a[3])  # np.add.at does not take CuPy's arrays
        return [(4, cupy.asarray(reference.embed_backward(dx, (tokens, (V, D)))))]

    yield Work("embedding_forward", shape, size, looked_up, [forward(b) for b in (64, 128, 256, 512)],
               lambda a: [(2, reference.embed_forward(*a[:2])[0])])  # fmt: skip
    yield Work("embedding_backward", shape, size, scattered, [backward(b) for b in (96, 192, 256)], added)


def optimiser(cupy) -> Iterator[Work]:
    """Yield the optimiser over all parameters; `squares` includes the `clip_factor` of its parts."""
    n, few = PARAMETERS, processors(cupy)

    def norm(block, grid):
        def bind(a):
            module, part, (g, factor) = compiled("adamw"), empty(cupy, grid), a
            return [
                module["squares"].bind(grid, block, (g, part, n)),
                module["clip_factor"].bind(1, 1024, (part, factor, grid, 1.0)),
            ]

        return block, grid, bind

    def step(block, grid):
        kernel = compiled("adamw")["adamw"]
        return block, grid, lambda a: [kernel.bind(grid, block, (*a, n, DECAYED, *constants))]

    rate, t, *constants = 0.1, 3, 0.9, 0.95, 1e-8, 0.1  # beta1, beta2, eps, decay

    def state():
        p, g, m, v = (normal(cupy, n) for _ in range(4))
        v = 1 + v * v  # so that no step is much larger than the others
        step = np.array([rate, *(1 / (1 - beta**t) for beta in constants[:2])], np.float32)
        return p, g, m, v, cupy.full(2, 0.5, np.float32), cupy.asarray(step)

    def clipped(a):
        norm = (a[0] ** 2).sum() ** 0.5
        return [(lambda after: after[1][0], clip_factor(norm, 1.0)), (lambda after: after[1][1], norm)]

    def stepped(a):
        for part, decay in ((slice(DECAYED), constants[-1]), (slice(DECAYED, n), 0.0)):
            p, g, m, v = (array[part] for array in a[:4])
            new, *moments = reference.adamw_step(p, 0.5 * g, m, v, t, rate, *constants[:3], decay)
            step = new - p  # compared without the parameters, which would hide its errors
            yield lambda after, part=part, p=p: after[0][part] - p, step
            for i, moment in zip((2, 3), moments, strict=True):
                yield lambda after, part=part, i=i: after[i][part], moment

    yield Work("squares", f"{n}", 4 * n, lambda: (normal(cupy, n), empty(cupy, 2)),
               [norm(b, k * few) for b in (256, 512) for k in (4, 8, 16)], clipped)  # fmt: skip
    shapes = [(b, blocks_for(n, 4 * b)) for b in (128, 256, 512)] + [(256, 8 * few), (256, 32 * few)]
    yield Work("adamw", f"{n}", 28 * n, state, [step(*shape) for shape in shapes], stepped)


# ----------------------------------------------------------------------------------------------------------------
# correctness


def errors(work: Work) -> list[float]:
    """Return the error of each offered launch against the reference; exit if an error exceeds FAR."""
    arguments, found = work.arrays(), []
    truth = list(work.truth(tuple(a.astype(np.float64) if a.dtype == np.float32 else a for a in arguments)))
    for block, grid, bind in work.offered:
        after = tuple(a.copy() for a in arguments)
        for launch in bind(after):
            launch()
        found.append(max(distance(_written(place, after), wanted) for place, wanted in truth))
        if found[-1] > FAR:
            raise SystemExit(
                f"{work.kernel}, {work.shape}, block {block}, grid {grid}: the error relative to the largest "
                f"number is {found[-1]:.1e}, expected at most {FAR}"
            )
    return found


def _written(place, after):
    return after[place] if isinstance(place, int) else place(after)


def distance(got, wanted) -> float:
    """Return the largest difference relative to the largest expected number; infinite if a number is not finite."""
    off = abs(got - wanted)
    return float(off.max() / abs(wanted).max()) if np.isfinite(off).all() else math.inf


# ----------------------------------------------------------------------------------------------------------------
# time


class Graph:
    """Capture launches once; `seconds()` returns the time of one pass over the launches of one set of arrays."""

    def __init__(self, cupy, sets: list[Launches], size: int):
        self.cupy, self.sets = cupy, sets  # the sets keep their arrays alive
        rounds = max(1, min(64, MOVED // (size * len(sets))))
        self.passes, self.stream = rounds * len(sets), cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with self.stream:
            for launches in sets:  # run each kernel once first: its code is loaded, and errors appear here
                for launch in launches:
                    launch()
            self.stream.synchronize()
            self.stream.begin_capture()
            for _ in range(rounds):
                for launches in sets:
                    for launch in launches:
                        launch()
            self.graph = self.stream.end_capture()

    def seconds(self) -> float:
        start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        self.graph.launch(self.stream)  # the device is busy while the processor prepares the timing
        start.record(self.stream)
        self.graph.launch(self.stream)
        end.record(self.stream)
        end.synchronize()
        return self.cupy.cuda.get_elapsed_time(start, end) / 1e3 / self.passes


def copies(cupy, size: int, sets: int) -> Graph:
    """Return the driver's copy of half of `size` bytes from one array to another."""

    def copy(n):
        source, target = normal(cupy, n), empty(cupy, n)
        return [lambda: target.data.copy_from_device_async(source.data, source.nbytes)]

    return Graph(cupy, [copy(size // 8) for _ in range(sets)], size)


def measure(cupy, work: Work, sweep: int, rounds: int) -> list[dict]:
    """Return a row for each block with its best grid; the best row is measured again with more rounds."""
    away, sets = errors(work), max(1, min(8, TOGETHER // work.bytes))
    copy, arrays = copies(cupy, work.bytes, sets), [work.arrays() for _ in range(sets)]
    rows, best_bind = {}, None
    for (block, grid, bind), error in zip(work.offered, away, strict=True):
        row = compare(copy, Graph(cupy, [bind(a) for a in arrays], work.bytes), work, sweep)
        row = {"kernel": work.kernel, "shape": work.shape, "block": block, "grid": grid, "best": False} | row
        row["error"] = float(f"{error:.1e}")
        if not rows or row["share_of_copy"] > max(r["share_of_copy"] for r in rows.values()):
            best, best_bind = str(block), bind
        if str(block) not in rows or row["share_of_copy"] > rows[str(block)]["share_of_copy"]:
            rows[str(block)] = row
    graph = Graph(cupy, [best_bind(a) for a in arrays], work.bytes)
    rows[best] |= compare(copy, graph, work, rounds) | {"best": True}
    return list(rows.values())


def compare(copy: Graph, kernel: Graph, work: Work, rounds: int) -> dict:
    """Time copy and kernel alternately."""
    pairs = [(copy.seconds(), kernel.seconds()) for _ in range(rounds)]
    shares, took = [a / b for a, b in pairs], statistics.median(b for _, b in pairs)
    return {
        "gigabytes_per_second": round(work.bytes / took / 1e9),
        "share_of_copy": round(statistics.median(shares), 3),
        "share_min": round(min(shares), 3),
        "share_max": round(max(shares), 3),
        "microseconds": round(1e6 * took, 2),
        "copy_microseconds": round(1e6 * statistics.median(a for a, _ in pairs), 2),
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=lambda text: text.split(","), help="only these kernels, as NAME,NAME")
    parser.add_argument("--quick", action="store_true", help="only 16 texts, and few rounds")
    parser.add_argument("--out", type=Path, help="folder for the JSON; default: data/results")
    options = parser.parse_args()
    import cupy

    gpu = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    sweep, final = (1, 3) if options.quick else (SWEEP, ROUNDS)
    for texts, name in ((64, "cuda_bandwidth"), (16, "cuda_bandwidth_16")):
        if options.quick and texts > 16:
            continue
        print(
            f"{gpu}, {texts} texts of {T} tokens\n{'kernel':28} {'block':>9} {'grid':>18}     GB/s        us",
            end="",
        )
        print("  of a copy  (min, max)  error")
        rows, offered = [], set()
        for work in works(cupy, texts):
            offered.add(work.kernel)
            if options.kernels and work.kernel not in options.kernels:
                continue
            measured = measure(cupy, work, sweep, final)
            cupy.get_default_memory_pool().free_all_blocks()
            rows += measured
            row = next(row for row in measured if row["best"])
            print(
                f"{row['kernel']:28} {row['block']!s:>9} {row['grid']!s:>18} {row['gigabytes_per_second']:8}",
                end="",
            )
            print(f" {row['microseconds']:9.1f} {row['share_of_copy']:10.1%}", end="")
            print(
                f"  ({row['share_min']:.1%}, {row['share_max']:.1%})  {row['error']:.0e}  {row['shape']}",
                flush=True,
            )
        if unknown := set(options.kernels or ()) - offered:
            parser.error(f"no kernel {', '.join(sorted(unknown))}, only {', '.join(sorted(offered))}")
        if options.out or not (options.kernels or options.quick):
            config = {"gpu": gpu, "texts": texts, "rows": texts * T, "sweep": sweep, "rounds": final}
            save(name, config, rows, options.out or FOLDER)


if __name__ == "__main__":
    main()
