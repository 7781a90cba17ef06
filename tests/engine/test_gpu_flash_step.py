"""The step with T x T matrices in memory, beside which FlashAttention is timed: does it compute the same?"""

import ctypes
import itertools
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from test_engine import ALLOWED, TINY, apart, batch, on_the_cpu, parameters, planted

from benchmarks import gpu_flash_step
from nanoeuler_lib import cuda, engine
from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.model import GPT

WHERE = cuda.device()
pytestmark = [pytest.mark.full, *([] if WHERE == "gpu" else [pytest.mark.compiler])]
SHAPE = replace(TINY, dim=128, heads=4, kv_heads=2, ffn=24, context=40, vocab_size=40, predict=1)
SMALL = replace(SHAPE, dim=64, heads=2, kv_heads=1, layers=1, context=9)


def plain(config, params, precision):
    model = engine.GPT(config, params, precision=precision)
    model.program = gpu_flash_step.Plain(config, precision, model.program.where)
    return model


def examine(precision, time=37, config=SHAPE):
    """Loss and gradients are the reference's."""
    params, pair = parameters(config, 0.1), batch(time, config=config)
    model = plain(config, params, precision)
    loss, grads = model.loss_and_gradients(*pair)
    expected_loss, expected = GPT(config, params).loss_and_gradients(*pair)
    assert abs(loss - expected_loss) <= ALLOWED[precision] * expected_loss
    assert not apart(grads, expected) > ALLOWED[precision] and np.isfinite(grads.flat).all()
    return model


@pytest.mark.parametrize("time", [1, 37, 40])  # rows one by one, and by fours
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_loss_and_gradients_are_the_references(precision, time):
    model = examine(precision, time)
    kept, half = list(model.program.probabilities.values()), precision == "bfloat16"
    assert [x.shape for x in kept] == [(4, 2 * time, time)] * SHAPE.layers, "each layer keeps its own"
    assert all(x.dtype == (np.uint16 if half else np.float32) for x in kept)


def test_rows_that_lanes_keep_several_fours_of():
    examine("float32", 261, replace(SMALL, context=261))


BUGS = [
    ("    if (i + j > last) x[j] = future;", "    if (i + j >= T) x[j] = future;"),  # the future counts
    ("T, last, LEAST)", "T, last, 0.0f)"),
    ("(b[k].x - along)", "b[k].x"),
    ("head < H ? head : (head - H) % G", "head < H ? head : (head - H) % H"),
    ("  if (id >= pieces) return;\n", ""),
    ("transpose_b=True, alpha=1 / math.sqrt(config.head_dim)", "transpose_b=True"),
    ("of.dq, of.dp, of.k, alpha=scale", "of.dq, of.dp, of.k"),
    ("of.dk, of.dp, of.q, transpose_a=True, alpha=scale", "of.dk, of.dp, of.q, transpose_a=True"),
    ("-rope.sin", "rope.sin"),
    ("dqkv, of.dq, of.dk, of.dv)", "dqkv, of.dq, of.dv, of.dk)"),
    ("key = flash._address(qkv), lse.shape", "key = lse.shape"),  # all layers keep theirs in one place
]


@on_the_cpu
@pytest.mark.parametrize("old, new", BUGS, ids=map(str, range(len(BUGS))))
def test_planted_bugs_are_caught(old, new):
    with planted(gpu_flash_step, old, new), pytest.raises((AssertionError, cuda.KernelError)):
        examine("float32")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_all_take_the_same_steps(monkeypatch, precision):
    monkeypatch.setattr(gpu_flash_step, "STEPS", 1)
    row = gpu_flash_step.measure(SMALL, precision, rows=1, rounds=2, where=WHERE)
    names = [gpu_flash_step.FLASH, gpu_flash_step.PLAIN, gpu_flash_step.GRAPH]
    assert list(row["milliseconds"]) == names and min(row["milliseconds"].values()) > 0
    assert len(set(row["first_losses"])) == 3 and all(len(each) == 2 for each in row["ratios"].values())
    assert 0 < row["gradients_apart"] < gpu_flash_step.GRADIENTS[precision] / 4
    for name, ratio in row["ratio"].items():
        least, most = (row["spread"][name][i] / row["spread"][names[0]][1 - i] for i in (0, 1))
        assert least - 1e-2 <= ratio <= most + 1e-2


@on_the_cpu
@pytest.mark.parametrize("old, new", [BUGS[i] for i in (0, 2, 5, 6)])
def test_other_work_is_told(old, new):
    """Of a fresh model in bfloat16, too."""
    with planted(gpu_flash_step, old, new), pytest.raises(AssertionError, match=r"gradients of [qkv] are"):
        gpu_flash_step.gradients_apart(SMALL, "bfloat16", WHERE)


def test_attention_alone_differs():
    """No launch of FlashAttention is left, and all others are the engine's."""
    others = []
    for model in (engine.GPT(SHAPE, precision="bfloat16"), plain(SHAPE, None, "bfloat16")):
        take = engine.Step(model, engine.AdamW(SHAPE, TrainConfig(), WHERE), TrainConfig(), 2)
        both = [entry for part in take._gradient_lists(model.plan(2, 9), False) for entry in part]
        ours = [entry for entry in both if entry.composite.startswith("attention")]
        others.append([str(entry) for entry in both if entry not in ours])
        products = sum(isinstance(entry.launch, gpu_flash_step.Batched) for entry in ours)
        names = [cuda.describe(x.launch) for x in ours if not isinstance(x.launch, gpu_flash_step.Batched)]
        flash = sum(name.startswith("attention_") for name in names)
        assert (products, flash) == ((0, 6) if len(others) == 1 else (12, 0))
    assert others[0] == others[1] and len(others[0]) > 30


def by_columns(handle, transa, transb, m, n, k, alpha, A, Atype, lda, strideA, B, Btype, ldb, strideB, beta, C, Ctype,
               ldc, strideC, batchCount, computeType, algo):  # fmt: skip
    """cublasGemmStridedBatchedEx, as cuBLAS's manual has it, of float32 in NumPy's memory."""
    assert (Atype, Btype, Ctype, computeType, algo) == (0, 0, 0, 68, -1)

    def matrices(address, rows, columns, pitch, stride):
        assert pitch >= rows
        count = (batchCount - 1) * stride + (columns - 1) * pitch + rows
        flat = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (count,))
        return as_strided(flat, (batchCount, rows, columns), (4 * stride, 4, 4 * pitch))

    def number(address):
        return ctypes.cast(address, ctypes.POINTER(ctypes.c_float))[0]

    a = matrices(A, *((k, m) if transa else (m, k)), lda, strideA)
    b = matrices(B, *((n, k) if transb else (k, n)), ldb, strideB)
    a, b = a.swapaxes(1, 2) if transa else a, b.swapaxes(1, 2) if transb else b
    c = matrices(C, m, n, ldc, strideC)
    c[...] = number(alpha) * (a @ b) + number(beta) * np.nan_to_num(c)


@on_the_cpu
@pytest.mark.parametrize("transpose_a, transpose_b", list(itertools.product([False, True], repeat=2)))
def test_cublas_is_asked_for_the_same_product(monkeypatch, transpose_a, transpose_b):
    """What a card gets, read by columns from plain memory."""
    for name in ("cupy", "cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.libs"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    sys.modules["cupy"].cuda = SimpleNamespace(get_cublas_handle=lambda: 0)
    sys.modules["cupy_backends.cuda.libs"].cublas = SimpleNamespace(gemmStridedBatchedEx=by_columns)
    rng, S, M, N, K = np.random.default_rng(0), 3, 5, 7, 2
    arrays = (
        np.full((S, M, N), np.nan),
        *(
            rng.standard_normal((S, *(shape[::-1] if turned else shape)))
            for shape, turned in (((M, K), transpose_a), ((K, N), transpose_b))
        ),
    )
    c, a, b = (x.astype(np.float32) for x in arrays)
    gpu_flash_step.Batched(c, a, b, transpose_a, transpose_b, 0.5)()
    assert np.isfinite(c).all()
    there = np.full_like(c, np.nan)
    on_card = [
        SimpleNamespace(shape=x.shape, dtype=x.dtype, data=SimpleNamespace(ptr=x.ctypes.data)) for x in (there, a, b)
    ]
    gpu_flash_step.Batched(*on_card, transpose_a, transpose_b, 0.5)()
    np.testing.assert_allclose(there, c, rtol=1e-6)
