"""Test that the kernels in nanoeuler_lib/kernels compute what ops/reference.py computes, at odd sizes and all launches.

On the CPU, each kernel runs compiled for speed and checked, without a finding. With a CUDA device
(NANOEULER_DEVICE=gpu) the same tests run there. On the CPU, the checker must also report a missing barrier.
"""

import re
from unittest.mock import patch

import numpy as np
import pytest

from nanoeuler_lib import cuda
from nanoeuler_lib.engine import embedding as by_token
from nanoeuler_lib.model.optim import clip_factor
from nanoeuler_lib.ops import reference

ON_GPU = cuda.device() == "gpu"
pytestmark = [] if ON_GPU else [pytest.mark.compiler]
xp = cuda.array_module()
# files that test_matmul16.py and the tests of the engine run
TEMPLATES = set("attention_backward attention_forward decode draw engine layout many matmul16 muon".split())
FILES = sorted({file.stem for file in cuda.KERNELS.glob("*.cu")} - TEMPLATES)


@pytest.fixture(scope="module", params=["gpu"] if ON_GPU else ["checked", "fast"])
def kernels(request):
    """Return the modules by name, each compiled on first use; a macro may follow the name."""
    return Modules(checked=request.param == "checked")


class Modules(dict):
    def __init__(self, checked):
        self.checked = checked

    def __missing__(self, file):
        name, _, macro = file.partition(" ")
        defines = {macro: 1} if macro else {}
        self[file] = cuda.module(cuda.KERNELS / f"{name}.cu", checked=self.checked, defines=defines)
        return self[file]


def normal(*shape, seed=0):
    """Return random numbers for a kernel, and the same numbers in float64 for the reference."""
    values = np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)
    return xp.asarray(values), values.astype(np.float64)


def zeros(*shape):
    """Return an array to be overwritten, filled with NaN so that unwritten places show."""
    return xp.full(shape, np.nan, np.float32)


def view(array, offset):
    """Return the same numbers as a slice that begins `offset` floats into an array, not at a multiple of 16 bytes."""
    whole = xp.full(array.size + offset, np.nan, np.float32)
    whole[offset:] = array.reshape(-1)
    return whole[offset:].reshape(array.shape)


def aside(shifted, *arrays):
    """Return the arrays; array number `shifted` does not start at a multiple of 16 bytes."""
    return [view(array, 1) if k == shifted else array for k, array in enumerate(arrays)]


def host(array):
    return array.get() if ON_GPU else array


def same_bits(a, b):
    """Return whether two arrays are bitwise equal, NaN included."""
    return host(a).tobytes() == host(b).tobytes()


def close(got, wanted, rtol=2e-5):
    got = np.asarray(host(got), np.float64)
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=rtol * np.abs(wanted).max(initial=0))


def blocks_for(n, block):
    return -(-n // block)


# ----------------------------------------------------------------------------------------------------------------
# one function per kernel: launch it and compare


def vector_add(modules, wide, n, grid, block, shifted=None):
    (a, a64), (b, b64), c = normal(n), normal(n, seed=1), zeros(n)
    a, b, c = aside(shifted, a, b, c)
    modules["vector_add"][f"vector_add{wide}"](grid, block, (a, b, c, n))
    close(c, a64 + b64)


def transpose(modules, name, rows, columns, block, tile=None):
    """Test a transpose. tile: columns and rows per block, by default as many as the block has threads."""
    (x, x64), y = normal(rows, columns), zeros(columns, rows)
    grid = tuple(map(blocks_for, (columns, rows), tile or block))
    modules["transpose"][f"transpose_{name}"](grid, block, (x, y, rows, columns))
    close(y, x64.T, 0)


def sums(modules, name, n, grid, block, offset=0):
    (x, _), total, again = normal(n), zeros(1), zeros(1)
    x = view(x + 1, offset)
    for result in (total, again):
        part = zeros(grid)
        modules["reductions"][name](grid, block, (x, part, n))
        modules["reductions"][name](1, block, (part, result, grid))
    close(total, host(x).astype(np.float64).sum(keepdims=True))
    assert same_bits(total, again)


def sum_backward(modules, n, grid, block, offset=0):
    (dsum, dsum64), dx = normal(1), view(zeros(n), offset)
    modules["reductions"]["sum_backward"](grid, block, (dsum, dx, n))
    close(dx, np.broadcast_to(dsum64, n), 0)


def column_sums(modules, rows, columns, block, parts=1):
    (x, x64), results = normal(rows, columns), []
    for _ in range(2):
        part, y = zeros(parts, columns), zeros(1, columns)
        grid, kernel = blocks_for(columns, block[0]), modules["reductions"]["column_sums"]
        kernel((grid, parts), block, (x, part, rows, columns))
        kernel(grid, block, (part, y, parts, columns))
        results.append(y)
    close(results[0][0], x64.sum(axis=0))
    assert same_bits(*results)


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
    modules["reductions"]["column_sums"](blocks_for(D, 32), (32, 8), (share, dgain, grid, D))
    through, wanted = reference.rmsnorm_backward(dy64, saved)
    close(dx, dx64 + through)
    close(dgain, wanted)


def rope(modules, B, H, T, C, block):
    (x, x64), (dy, dy64), y, dx = normal(B, H, T, C), normal(B, H, T, C, seed=1), zeros(B, H, T, C), zeros(B, H, T, C)
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


def rope_wide(modules, texts, heads, T, C, height, along_z, spare=0):
    """Test heads side by side at each position, followed by `spare` numbers that must not change."""
    pitch = heads * C + spare
    (x, x64), (cos, sin) = normal(texts, T, pitch), reference.rope_tables(T, C)
    tables = xp.asarray(cos.astype(np.float32)), xp.asarray(sin.astype(np.float32))
    grid, block = (blocks_for(T, height), heads, along_z), (C // 8, height)
    vectors = np.moveaxis(x64[..., : heads * C].reshape(texts, T, heads, C), 2, 1)
    forward, saved = reference.rope_forward(vectors, cos, sin)
    for wanted, direction in ((forward, 1.0), (reference.rope_backward(vectors, saved), -1.0)):
        y = zeros(texts, T, pitch)
        modules["rope"]["rope_wide"](grid, block, (x, *tables, y, texts, T, C, pitch, direction))
        y, wanted = host(y), np.moveaxis(wanted, 1, 2).reshape(texts, T, heads * C)
        close(xp.asarray(y[..., : heads * C]), wanted)
        assert np.isnan(y[..., heads * C :]).all()
    modules["rope"]["rope_wide"](grid, block, (x, *tables, x, texts, T, C, pitch, -1.0))  # in place
    close(x, np.concatenate([wanted, x64[..., heads * C :]], axis=-1))


def swiglu(modules, wide, n, grid, block, shifted=None):
    (gate, _), (up, up64), (dy, dy64) = normal(n), normal(n, seed=1), normal(n, seed=2)
    gate = 30 * gate  # far into both tails
    gate64 = host(gate).astype(np.float64)
    gate, up, dy, y, dgate, dup = aside(shifted, gate, up, dy, zeros(n), zeros(n), zeros(n))
    modules["swiglu"][f"swiglu_forward{wide}"](grid, block, (gate, up, y, n))
    wanted, saved = reference.swiglu_forward(gate64, up64)
    close(y, wanted)
    modules["swiglu"][f"swiglu_backward{wide}"](grid, block, (dy, gate, up, dgate, dup, n))
    wanted = reference.swiglu_backward(dy64, saved)
    close(dgate, wanted[0])
    close(dup, wanted[1])


def cross_entropy(modules, kept, rows, V, block, scale=1.0, masked=False, offset=0):
    (logits, _), (dlosses, dlosses64) = normal(rows, V), normal(rows, seed=1)
    logits = view(logits * np.float32(scale), offset)
    logits64 = host(logits).astype(np.float64)
    targets = np.random.default_rng(rows).integers(-1, V, rows).astype(np.int32)
    targets[: rows if masked else 1] = -1
    losses, again = zeros(rows), zeros(rows)
    wanted, saved = reference.cross_entropy_forward(logits64, targets)
    targets = xp.asarray(targets)
    modules["cross_entropy"]["cross_entropy_forward"](rows, block, (logits, targets, losses, V))
    close(losses, wanted)
    modules["cross_entropy"][f"cross_entropy_backward{kept}"](rows, block, (logits, targets, dlosses, again, V))
    close(again, wanted)
    close(logits, reference.cross_entropy_backward(dlosses64, saved))


def embedding(modules, n, V, D, block, often=(), shifted=None, longest=by_token.LONGEST):
    """Test the embedding. often: tokens at most places, so that they get shares of their own, parts of the columns;
    longest: 1 for all columns."""
    rng = np.random.default_rng(n)
    tokens = rng.integers(0, V, n).astype(np.int32)
    if often:
        tokens = np.where(rng.random(n) < 0.9, rng.choice(often, n), tokens).astype(np.int32)
    (table, table64), (dx, dx64), x = normal(V, D), normal(n, D, seed=1), zeros(n, D)
    table, x, dx = aside(shifted, table, x, dx)
    module, on_device = modules["embedding"], xp.asarray(tokens)
    module["embedding_forward"](blocks_for(n, block // 32), block, (on_device, table, x, n, D))
    wanted, saved = reference.embed_forward(tokens, table64)
    close(x, wanted, 0)
    order, there, start = by_token.sort(tokens, V)
    with patch.object(by_token, "LONGEST", longest):
        arrays = [xp.asarray(a, np.int32) for a in (by_token.shares(start, D), order, there)]
    results = []
    for threads in (block, 32, 512):
        _, _, _, dtable = aside(shifted, table, x, dx, zeros(V, D))
        module["embedding_backward"](len(arrays[0]), threads, (*arrays, dx, dtable, n, D))
        results.append(dtable)
    wanted = reference.embed_backward(dx64, saved)
    close(results[0], wanted)
    assert same_bits(*results[:2]) and same_bits(*results[1:])  # for any block
    *_, added = aside(shifted, table, x, dx, table.copy())
    modules["embedding ADD"]["embedding_backward"](len(arrays[0]), block, (*arrays, dx, added, n, D))
    close(added, table64 + wanted)


def matmul(modules, M, N, K, shifted=None):
    """Check that each sum of K products, in any order, has an error within the bound for K roundings."""
    (a, a64), (b, b64), c = normal(M, K), normal(K, N, seed=1), zeros(M, N)
    a, b, c = aside(shifted, a, b, c)
    modules["matmul"]["matmul"]((blocks_for(N, 128), blocks_for(M, 128)), 256, (a, b, c, M, N, K))
    error, unit = np.abs(host(c) - a64 @ b64), 2.0**-24
    assert (error <= K * unit / (1 - K * unit) * (np.abs(a64) @ np.abs(b64))).all()


RATES = 1e-2, 0.9, 0.95, 1e-8, 0.1  # rate, beta1, beta2, eps, decay


def step_of(t, rate, beta1, beta2):
    """Return the argument `step` of `adamw`."""
    return xp.asarray(np.array([rate, 1 / (1 - beta1**t), 1 / (1 - beta2**t)], np.float32))


def adamw(modules, n, decayed, grid, block, limit, shifted=None):
    module, results = modules["adamw"], []
    t, (rate, beta1, beta2, eps, decay) = 3, RATES
    for _ in range(2):
        (p, p64), (g, g64), (m, m64), (v, v64) = (normal(n, seed=seed) for seed in range(4))
        v, v64 = v * v, v64 * v64  # a second moment is not negative
        (p, g, m, v), part, factor = aside(shifted, p, g, m, v), zeros(grid), zeros(2)
        module["squares"](grid, block, (g, part, n))
        module["clip_factor"](1, block, (part, factor, grid, limit))
        step = step_of(t, rate, beta1, beta2)
        module["adamw"](grid, block, (p, g, m, v, factor, step, n, decayed, beta1, beta2, eps, decay))
        results.append((factor, p, m, v))
    assert all(same_bits(*pair) for pair in zip(*results))
    norm = np.sqrt((g64**2).sum())
    close(factor, np.array([clip_factor(norm, limit), norm]))
    g64 *= clip_factor(norm, limit)
    decays = np.where(np.arange(n) < decayed, decay, 0.0)
    for got, want in zip((p, m, v), reference.adamw_step(p64, g64, m64, v64, t, *RATES[:4], decays)):
        close(got, want)


# ----------------------------------------------------------------------------------------------------------------
# sizes and launches

SIZES = (1, 2, 3, 4, 5, 127, 1025)
LAUNCHES = [
    (vector_add, "", 1, 1, 32), (vector_add, "", 1003, 11, 96), (vector_add, "", 1024, 1, 1024),
    *((vector_add, "_wide", n, 2, 32) for n in SIZES), (vector_add, "_wide", 5003, 3, 96),
    (vector_add, "_wide", 4096, 1, 1024),
    *((vector_add, "_wide", n, 2, 96, shifted) for n in (3, 1025) for shifted in range(3)),
    (transpose, "plain", 33, 31, (32, 8)), (transpose, "plain", 1, 70, (16, 16)), (transpose, "plain", 45, 7, (8, 4)),
    *((transpose, "tiled", *size, (32, height), (32, 32))
      for *size, height in ((33, 31, 8), (1, 70, 32), (64, 65, 5), (3, 2, 1))),
    *((transpose, "wide", *size, (32, 8), (64, 64)) for size in ((1, 1), (64, 64), (65, 129), (130, 3))),
    (sums, "sum_tree", 1, 1, 32), (sums, "sum_tree", 1003, 3, 128), (sums, "sum_tree", 2050, 2, 1024),
    (sums, "sum_tree", 999, 7, 1), (sums, "sum_shuffle", 1, 1, 32), (sums, "sum_shuffle", 1003, 3, 96),
    (sums, "sum_shuffle", 4099, 2, 1024),
    *((sums, "sum_wide", n, 2, 32) for n in SIZES), (sums, "sum_wide", 9001, 3, 96),
    (sums, "sum_wide", 40_000, 2, 1024), *((sums, "sum_wide", 1025, 2, 96, offset) for offset in (1, 2, 3, 4)),
    *((sum_backward, n, 3, 96) for n in SIZES), (sum_backward, 1025, 1, 32, 1),
    *((column_sums, *size, (32, height)) for size in ((1, 1), (17, 129)) for height in (1, 2, 8, 32)),
    (column_sums, 300, 40, (8, 128), 3), (column_sums, 67, 33, (64, 4), 2), (column_sums, 5, 3, (1, 1024), 2),
    (rmsnorm, 1, 1, 32, 1), (rmsnorm, 5, 33, 32, 2), (rmsnorm, 7, 129, 128, 7), (rmsnorm, 3, 300, 96, 1),
    (rmsnorm, 2, 1030, 512, 2), (rmsnorm, 3, 768, 96, 2),
    (rope, 1, 1, 1, 2, 32), (rope, 2, 3, 5, 6, 64), (rope, 1, 2, 9, 64, 256),
    (rope_wide, 1, 1, 1, 8, 1, 1), (rope_wide, 3, 2, 5, 16, 4, 2), (rope_wide, 2, 3, 9, 64, 32, 1, 12),
    (rope_wide, 5, 1, 33, 128, 8, 5),
    (swiglu, "", 1, 1, 32), (swiglu, "", 1003, 3, 96), (swiglu, "", 1003, 1, 1024),
    *((swiglu, "_wide", n, 2, 32) for n in SIZES), (swiglu, "_wide", 1003, 3, 96), (swiglu, "_wide", 5001, 1, 1024),
    *((swiglu, "_wide", 127, 2, 32, shifted) for shifted in range(6)),
    *((cross_entropy, kept, *size) for kept in ("", "_kept")
      for size in ((1, 1, 32), (5, 7, 64), (6, 33, 32), (4, 515, 128, 300.0), (3, 40, 96, 1.0, True))),
    (cross_entropy, "", 3, 2050, 1024), (cross_entropy, "_kept", 3, 2050, 512), (cross_entropy, "_kept", 2, 4096, 256),
    (cross_entropy, "_kept", 5, 516, 64, 3.0),
    *((cross_entropy, "_kept", 3, 132, 32, 3.0, False, offset) for offset in (1, 2, 4)),
    (embedding, 1, 1, 1, 32), (embedding, 9, 4, 33, 32), (embedding, 5, 40, 7, 64), (embedding, 3, 2, 132, 128),
    (embedding, 64, 3, 8, 32), (embedding, 65, 1, 12, 64), (embedding, 500, 9, 20, 32, (2, 7)),
    (embedding, 640, 3, 5, 32, (0,)), (embedding, 900, 200, 132, 64, (2, 199)), (embedding, 600, 2, 67, 96, (1,)),
    (embedding, 300, 3, 780, 32, (1,)), (embedding, 2, 300, 8, 32), (embedding, 200, 40, 512, 64, (2,), None, 8),
    *((embedding, 200, 40, D, 64, (2,), shifted, 1) for D, shifted in ((512, None), (132, 1))),
    *((embedding, 200, 4, 8, 32, (1,), shifted) for shifted in range(5)),
    *((adamw, n, n, 2, 32, 1.0) for n in SIZES), (adamw, 1003, 700, 3, 96, 1.0), (adamw, 5001, 5, 2, 256, 0.0),
    (adamw, 40, 0, 1, 64, 1e6), *((adamw, 127, 60, 2, 64, 1.0, shifted) for shifted in range(4)),
    *((adamw, 9, decayed, 1, 32, 0.0) for decayed in range(9)),
    (matmul, 1, 1, 1), (matmul, 3, 5, 7), (matmul, 128, 128, 16), (matmul, 128, 256, 80), (matmul, 129, 131, 33),
    (matmul, 1, 260, 50), (matmul, 260, 1, 31), (matmul, 130, 132, 48), (matmul, 1100, 130, 3), (matmul, 5, 4, 150),
    *((matmul, 128, 128, 32, shifted) for shifted in range(3)),
]  # fmt: skip


def name_of(launch):
    return "-".join(str(part).replace(" ", "") for part in (launch[0].__name__, *launch[1:]))


@pytest.mark.parametrize("launch", LAUNCHES, ids=name_of)
def test_equals_the_reference(kernels, launch):
    check, *sizes = launch
    check(kernels, *sizes)


def test_adamw_changes_nothing_when_the_norm_is_not_finite():
    module, n = cuda.module(cuda.KERNELS / "adamw.cu", checked=False), 37
    for norm in (np.inf, np.nan):
        state = [normal(n, seed=seed)[0] for seed in range(4)]
        before, factor = [array.copy() for array in state], xp.asarray(np.array([1.0, norm], np.float32))
        arguments = *state, factor, step_of(1, *RATES[:3]), n, n, *RATES[1:]
        module["adamw"](1, 32, arguments)
        assert all(same_bits(*pair) for pair in zip(state, before))
        factor[1] = 1.0
        module["adamw"](1, 32, arguments)
        assert not same_bits(state[0], before[0])


MANY, ALSO, FEW, INTS = (np.ones(n, t) for n, t in ((4096, "f4"), (4096, "f4"), (64, "f4"), (64, "i4")))
ROW = MANY[:65], FEW, ALSO, FEW[:1].copy(), 65, 1e-5
LOGITS = MANY[:129].copy(), INTS[:1], FEW[:1], FEW[:1].copy(), 129
TURNED = MANY, FEW, FEW, ALSO, 1, 1
REFUSED = [  # file, kernel, defines, an impossible launch, and words of the line that refuses it
    ("reductions", "sum_tree", {}, 1, 96, (MANY, FEW, 96), "the block must be a power of two"),
    ("reductions", "column_sums", {}, 1, (8, 6), (MANY, FEW, 6, 8), "the block's height must be a power of two"),
    ("reductions", "sum_shuffle", {}, 1, 48, (MANY, FEW, 96), "whole warps"),
    ("reductions", "sum_wide", {}, 1, (32, 2), (MANY, FEW, 96), "whole warps along x"),
    ("adamw", "clip_factor", {}, 2, 32, (MANY, FEW, 64, 1.0), "one block"),
    ("rmsnorm", "rmsnorm_forward", {"KEEP": 2}, 1, 32, ROW, "wider than the block"),
    ("cross_entropy", "cross_entropy_backward_kept", {"KEEP": 4}, 1, 32, LOGITS, "wider than the block"),
    ("transpose", "transpose_wide", {}, 1, (32, 4), (MANY, ALSO, 64, 64), "32 x HEIGHT"),
    ("rope", "rope_forward", {}, 1, 32, (*TURNED, 7), "C must be even"),
    ("rope", "rope_wide", {}, 1, (1, 1), (*TURNED, 12, 12, 1.0), "C must be 8 * blockDim.x"),
    ("rope", "rope_wide", {}, 1, (2, 1), (*TURNED, 16, 18, 1.0), "multiple of 4"),
    ("rope", "rope_wide", {}, 1, (2, 1), (MANY[1:], *TURNED[1:], 16, 16, 1.0), "16 bytes"),
    ("vector_add", "vector_add_wide", {}, 1, 32, (MANY, MANY, ALSO, 2**30 + 1), "2^30"),
]


@pytest.mark.skipif(ON_GPU, reason="a trap there ends the process's use of the GPU")
@pytest.mark.parametrize("file, kernel, defines, grid, block, arguments, words", REFUSED)
def test_a_kernel_refuses_what_it_cannot_do(file, kernel, defines, grid, block, arguments, words):
    module = cuda.module(cuda.KERNELS / f"{file}.cu", where="cpu", defines=defines)
    with pytest.raises(cuda.KernelError, match="trap") as caught:
        module[kernel](grid, block, arguments)
    assert words in str(caught.value)


# ----------------------------------------------------------------------------------------------------------------
# without one of its barriers

HEADER = (cuda.KERNELS / "reduce.cuh").read_text("utf-8")
BARRIER = re.compile(r"__sync(?:threads|warp)\(\);")
# No kernel here calls block_max twice, so a separate kernel tests its first barrier.
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
        sound, broken = (cuda.module(TWICE.replace("#include <reduce.cuh>", t))["twice"] for t in (HEADER, text))
        sound(1, 128, (x, np.empty_like(x)))
        with pytest.raises(cuda.KernelError) as caught:
            broken(1, 128, (x, np.empty_like(x)))
    else:
        modules = Modules(checked=True)
        modules[file] = cuda.module(text)
        with pytest.raises(cuda.KernelError) as caught:
            for check, *sizes in LAUNCHES:
                if check.__name__.startswith(("sums", "column_sums") if file == "reductions" else file):
                    check(modules, *sizes)
    assert caught.value.finding.kind == "race"
