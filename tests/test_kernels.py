"""The kernels in nanoeuler_lib/kernels compute what ops/reference.py computes, at odd sizes and every kind of launch.

On the CPU each runs as compiled for speed and checked, without a finding; with a CUDA device (NANOEULER_DEVICE=gpu) the
same tests run there. On the CPU, too: a kernel that lacks one of its barriers is reported, whichever it is.
"""

import re

import numpy as np
import pytest

from nanoeuler_lib import cuda
from nanoeuler_lib.ops import reference
from nanoeuler_lib.optim import clip_factor

ON_GPU = cuda.device() == "gpu"
pytestmark = [] if ON_GPU else [pytest.mark.compiler]
xp = cuda.array_module()
FILES = sorted(file.stem for file in cuda.KERNELS.glob("*.cu"))


@pytest.fixture(scope="module", params=["gpu"] if ON_GPU else ["checked", "fast"])
def kernels(request):
    """The modules by name, each compiled when it is first asked for."""
    return Modules(checked=request.param == "checked")


class Modules(dict):
    def __init__(self, checked):
        self.checked = checked

    def __missing__(self, file):
        self[file] = cuda.module(cuda.KERNELS / f"{file}.cu", checked=self.checked)
        return self[file]


def normal(*shape, seed=0):
    """Random numbers for a kernel, and the same in float64 for the reference."""
    values = np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)
    return xp.asarray(values), values.astype(np.float64)


def zeros(*shape):
    """What is to be overwritten, filled with something that shows."""
    return xp.full(shape, np.nan, np.float32)


def close(got, wanted, rtol=2e-5):
    got = np.asarray(got.get() if ON_GPU else got, np.float64)
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=rtol * np.abs(wanted).max(initial=0))


def blocks_for(n, block):
    return -(-n // block)


# ----------------------------------------------------------------------------------------------------------------
# one function a kernel: launch it and compare


def vector_add(modules, n, block):
    (a, a64), (b, b64), c = normal(n), normal(n, seed=1), zeros(n)
    modules["vector_add"]["vector_add"](blocks_for(n, block), block, (a, b, c, n))
    close(c, a64 + b64)


def transpose_plain(modules, rows, columns, block):
    (x, x64), y = normal(rows, columns), zeros(columns, rows)
    grid = blocks_for(columns, block[0]), blocks_for(rows, block[1])
    modules["transpose"]["transpose_plain"](grid, block, (x, y, rows, columns))
    close(y, x64.T, 0)


def transpose_tiled(modules, rows, columns, height):
    (x, x64), y = normal(rows, columns), zeros(columns, rows)
    grid = blocks_for(columns, 32), blocks_for(rows, 32)
    modules["transpose"]["transpose_tiled"](grid, (32, height), (x, y, rows, columns))
    close(y, x64.T, 0)


def sums(modules, name, n, grid, block):
    (x, x64), part, total = normal(n), zeros(grid), zeros(1)
    x, x64 = x + 1, (x + 1 if not ON_GPU else (x + 1).get()).astype(np.float64)
    modules["reductions"][name](grid, block, (x, part, n))
    modules["reductions"][name](1, block, (part, total, grid))
    close(total, x64.sum(keepdims=True))
    again = zeros(1)
    modules["reductions"][name](grid, block, (x, part, n))
    modules["reductions"][name](1, block, (part, again, grid))
    assert (total == again).all()  # the same bits


def sum_backward(modules, n, grid, block):
    (dsum, dsum64), dx = normal(1), zeros(n)
    modules["reductions"]["sum_backward"](grid, block, (dsum, dx, n))
    close(dx, np.broadcast_to(dsum64, n), 0)


def column_sums(modules, rows, columns, block):
    (x, x64), y = normal(rows, columns), zeros(columns)
    modules["reductions"]["column_sums"](blocks_for(columns, block), block, (x, y, rows, columns))
    close(y, x64.sum(axis=0))


def rmsnorm(modules, rows, D, block, grid):
    (x, x64), (delta, delta64), (gain, gain64), (dy, dy64) = (
        normal(rows, D), normal(rows, D, seed=1), normal(D, seed=2), normal(rows, D, seed=3),
    )  # fmt: skip
    module, y, rstd = modules["rmsnorm"], zeros(rows, D), zeros(rows)
    module["rmsnorm_forward"](rows, block, (x, gain, y, rstd, D, 1e-5))
    wanted, saved = reference.rmsnorm_forward(x64, gain64)
    close(y, wanted)
    close(rstd, saved[1][:, 0])
    module["add_rmsnorm_forward"](rows, block, (x, delta, gain, y, rstd, D, 1e-5))
    wanted, saved = reference.rmsnorm_forward(x64 + delta64, gain64)
    close(x, x64 + delta64)
    close(y, wanted)
    (dx, dx64), share, dgain = normal(rows, D, seed=4), zeros(grid, D), zeros(D)
    module["rmsnorm_backward"](grid, block, (dy, x, gain, rstd, dx, share, rows, D))
    modules["reductions"]["column_sums"](blocks_for(D, 32), 32, (share, dgain, grid, D))
    through, wanted = reference.rmsnorm_backward(dy64, saved)
    close(dx, dx64 + through)
    close(dgain, wanted)


def rope(modules, B, H, T, C, block):
    (x, x64), (dy, dy64), (y, dx) = (
        normal(B, H, T, C),
        normal(B, H, T, C, seed=1),
        (zeros(B, H, T, C), zeros(B, H, T, C)),
    )
    cos, sin = reference.rope_tables(T, C)
    tables = xp.asarray(cos.astype(np.float32)), xp.asarray(sin.astype(np.float32))
    shape = B * H * T, T, C
    grid = blocks_for(B * H * T * C // 2, block)
    modules["rope"]["rope_forward"](grid, block, (x, *tables, y, *shape))
    wanted, saved = reference.rope_forward(x64, cos, sin)
    close(y, wanted)
    modules["rope"]["rope_backward"](grid, block, (dy, *tables, dx, *shape))
    close(dx, reference.rope_backward(dy64, saved))
    modules["rope"]["rope_forward"](grid, block, (x, *tables, x, *shape))  # in place
    close(x, wanted)


def swiglu(modules, n, grid, block):
    (gate, gate64), (up, up64), (dy, dy64) = normal(n), normal(n, seed=1), normal(n, seed=2)
    gate *= 30  # far into both tails
    gate64 = (gate.get() if ON_GPU else gate).astype(np.float64)
    y, dgate, dup = zeros(n), zeros(n), zeros(n)
    modules["swiglu"]["swiglu_forward"](grid, block, (gate, up, y, n))
    wanted, saved = reference.swiglu_forward(gate64, up64)
    close(y, wanted)
    modules["swiglu"]["swiglu_backward"](grid, block, (dy, gate, up, dgate, dup, n))
    wanted = reference.swiglu_backward(dy64, saved)
    close(dgate, wanted[0])
    close(dup, wanted[1])


def cross_entropy(modules, rows, V, block, scale=1.0, masked=False):
    (logits, _), (dlosses, dlosses64) = normal(rows, V), normal(rows, seed=1)
    logits *= np.float32(scale)
    logits64 = (logits.get() if ON_GPU else logits).astype(np.float64)
    targets = np.random.default_rng(rows).integers(-1, V, rows).astype(np.int32)
    targets[: rows if masked else 1] = -1
    losses, again = zeros(rows), zeros(rows)
    wanted, saved = reference.cross_entropy_forward(logits64, targets)
    targets = xp.asarray(targets)
    modules["cross_entropy"]["cross_entropy_forward"](rows, block, (logits, targets, losses, V))
    close(losses, wanted)
    modules["cross_entropy"]["cross_entropy_backward"](rows, block, (logits, targets, dlosses, again, V))
    close(again, wanted)
    close(logits, reference.cross_entropy_backward(dlosses64, saved))


def embedding(modules, n, V, D, block):
    tokens = np.random.default_rng(n).integers(0, V, n).astype(np.int32)
    (table, table64), (dx, dx64), x, dtable = normal(V, D), normal(n, D, seed=1), zeros(n, D), zeros(V, D)
    modules["embedding"]["embedding_forward"](n, block, (xp.asarray(tokens), table, x, D))
    wanted, saved = reference.embed_forward(tokens, table64)
    close(x, wanted, 0)
    order = np.argsort(tokens, kind="stable").astype(np.int32)
    start = np.searchsorted(tokens[order], np.arange(V + 1)).astype(np.int32)
    modules["embedding"]["embedding_backward"](
        V, block, (xp.asarray(order), xp.asarray(start), dx, dtable, D)
    )
    close(dtable, reference.embed_backward(dx64, saved))


def adamw(modules, sizes, grid, block, limit):
    module, part, factor = modules["adamw"], zeros(len(sizes) * grid), zeros(2)
    tensors = [[normal(n, seed=10 * k + j) for j in range(4)] for k, n in enumerate(sizes)]
    for k, (n, (_, (g, _), _, _)) in enumerate(zip(sizes, tensors)):
        module["squares"](grid, block, (g, part[k * grid : (k + 1) * grid], n))
    module["clip_factor"](1, block, (part, factor, part.size, limit))
    norm = np.sqrt(sum((g64**2).sum() for _, (_, g64), _, _ in tensors))
    wanted_factor = clip_factor(norm, limit)
    close(factor, np.array([wanted_factor, norm]))
    step, rate, beta1, beta2, eps, decay = 3, 1e-2, 0.9, 0.95, 1e-8, 0.1
    for n, ((p, p64), (g, g64), (m, m64), (v, v64)) in zip(sizes, tensors):
        v *= v  # a second moment is not negative
        v64 = (v.get() if ON_GPU else v).astype(np.float64)
        corrections = 1 - beta1**step, 1 - beta2**step
        module["adamw"](grid, block, (p, g, m, v, factor, n, rate, beta1, beta2, eps, decay, *corrections))
        wanted = reference.adamw_step(
            p64, g64 * wanted_factor, m64, v64, step, rate, beta1, beta2, eps, decay
        )
        for got, want in zip((p, m, v), wanted):
            close(got, want)


# ----------------------------------------------------------------------------------------------------------------
# sizes and launches

LAUNCHES = [
    (vector_add, 1, 32), (vector_add, 1003, 96), (vector_add, 1024, 1024),
    (transpose_plain, 33, 31, (32, 8)), (transpose_plain, 1, 70, (16, 16)), (transpose_plain, 45, 7, (8, 4)),
    (transpose_tiled, 33, 31, 8), (transpose_tiled, 1, 70, 32), (transpose_tiled, 64, 65, 5),
    (transpose_tiled, 3, 2, 1),
    (sums, "sum_tree", 1, 1, 32), (sums, "sum_tree", 1003, 3, 128), (sums, "sum_tree", 2050, 2, 1024),
    (sums, "sum_tree", 999, 7, 1), (sums, "sum_shuffle", 1, 1, 32), (sums, "sum_shuffle", 1003, 3, 96),
    (sums, "sum_shuffle", 4099, 2, 1024), (sum_backward, 1003, 3, 96),
    (column_sums, 1, 1, 32), (column_sums, 17, 129, 64),
    (rmsnorm, 1, 1, 32, 1), (rmsnorm, 5, 33, 32, 2), (rmsnorm, 7, 129, 128, 7), (rmsnorm, 3, 300, 96, 1),
    (rmsnorm, 2, 1030, 512, 2), (rmsnorm, 3, 768, 96, 2),
    (rope, 1, 1, 1, 2, 32), (rope, 2, 3, 5, 6, 64), (rope, 1, 2, 9, 64, 256),
    (swiglu, 1, 1, 32), (swiglu, 1003, 3, 96), (swiglu, 1003, 1, 1024),
    (cross_entropy, 1, 1, 32), (cross_entropy, 5, 7, 64), (cross_entropy, 6, 33, 32),
    (cross_entropy, 4, 515, 128, 300.0),
    (cross_entropy, 3, 2050, 1024), (cross_entropy, 3, 40, 96, 1.0, True),
    (embedding, 1, 1, 1, 32), (embedding, 9, 4, 33, 32), (embedding, 5, 40, 7, 64), (embedding, 3, 2, 130, 128),
    (adamw, (1,), 1, 32, 1.0), (adamw, (1003, 7), 3, 96, 1.0), (adamw, (50, 260, 3), 2, 256, 0.0),
    (adamw, (40,), 1, 64, 1e6),
]  # fmt: skip


def name_of(launch):
    return "-".join(str(part).replace(" ", "") for part in (launch[0].__name__, *launch[1:]))


@pytest.mark.parametrize("launch", LAUNCHES, ids=name_of)
def test_equals_the_reference(kernels, launch):
    check, *sizes = launch
    check(kernels, *sizes)


@pytest.mark.skipif(ON_GPU, reason="a trap there ends the process's use of the GPU")
def test_a_row_wider_than_the_block_can_keep_stops_the_kernel():
    module, row = cuda.module(cuda.KERNELS / "rmsnorm.cu", defines={"KEEP": 2}), np.ones((1, 65), np.float32)
    with pytest.raises(cuda.KernelError, match="trap"):
        module["rmsnorm_forward"](1, 32, (row, np.ones(65, np.float32), row.copy(), zeros(1), 65, 1e-5))


def test_every_kernel_is_launched(kernels, monkeypatch):
    launched = set()
    monkeypatch.setattr(cuda.Kernel, "__call__", lambda self, *_, **__: launched.add(self.name))
    monkeypatch.setitem(globals(), "close", lambda *_: None)
    for check, *sizes in LAUNCHES:
        try:
            check(kernels, *sizes)
        except AssertionError:
            pass  # `sums` compares what was never computed
    assert launched == {name for file in FILES for name in kernels[file]}


# ----------------------------------------------------------------------------------------------------------------
# without one of its barriers

HEADER = (cuda.KERNELS / "reduce.cuh").read_text("utf-8")
BARRIER = re.compile(r"__sync(?:threads|warp)\(\);")
# No kernel here calls block_max twice, so its first barrier needs a kernel of its own.
TWICE = """#include <reduce.cuh>
extern "C" __global__ void twice(const float* x, float* y) {
  float a = x[threadIdx.x];
  y[threadIdx.x] = block_sum(block_sum(a)) + block_max(block_max(a) - a);
}
"""
TEXTS = {file: (cuda.KERNELS / f"{file}.cu").read_text("utf-8") for file in FILES} | {"reduce.cuh": HEADER}
DELETIONS = [(file, i) for file, text in TEXTS.items() for i in range(len(BARRIER.findall(text)))]


@pytest.mark.skipif(ON_GPU, reason="the checker runs on the CPU")
@pytest.mark.parametrize("file, number", DELETIONS)
def test_a_deleted_barrier_is_reported(file, number):
    at = list(BARRIER.finditer(TEXTS[file]))[number]
    text = TEXTS[file][: at.start()] + ";" + TEXTS[file][at.end() :]
    if file == "reduce.cuh":
        x = np.arange(128, dtype=np.float32)
        sound, broken = (
            cuda.module(TWICE.replace("#include <reduce.cuh>", t))["twice"] for t in (HEADER, text)
        )
        sound(1, 128, (x, np.empty_like(x)))
        with pytest.raises(cuda.KernelError) as caught:
            broken(1, 128, (x, np.empty_like(x)))
    else:
        modules = Modules(checked=True)
        modules[file] = cuda.module(text)
        with pytest.raises(cuda.KernelError) as caught:
            for check, *sizes in LAUNCHES:
                if check.__name__.startswith("sums" if file == "reductions" else file):
                    check(modules, *sizes)
    assert caught.value.finding.kind == "race"


def test_there_are_barriers_to_delete():
    assert len(DELETIONS) >= 8
