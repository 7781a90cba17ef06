"""Test the matrix products on tensor cores at odd sizes: they are as exact as plain products in their precision.

The oracle is a product in float64. With a CUDA device the same tests run there (NANOEULER_DEVICE=gpu). On the CPU they
run compiled for speed and checked, and the checker must report a kernel without one of its barriers, waits or commits.
"""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from test_cuda_matrix import bits_of, host, tf32, value_of

from nanoeuler_lib import cuda
from nanoeuler_lib.cuda import matmul16
from nanoeuler_lib.cuda.matmul16 import PIPELINED, PLAIN, WARPGROUPS, Version
from nanoeuler_lib.errors import NanoEulerError

ON_GPU = cuda.device() == "gpu"
pytestmark = [] if ON_GPU else [pytest.mark.compiler]
xp = cuda.array_module()
on_cpu = pytest.mark.skipif(ON_GPU, reason="the checker runs on the CPU")
on_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU: NANOEULER_DEVICE=gpu")

BFLOAT16, HALF, FLOAT = "__nv_bfloat16", "__half", "float"
SMALL = Version("matmul16", 128, 64, 3), Version("matmul16_wgmma", 128, 64, 2)  # two warps; the smallest of wgmma
# version, type of a and b, type of c
KERNELS = [
    (PLAIN, BFLOAT16, FLOAT), (PLAIN, HALF, HALF),
    *((small, *numbers) for small in SMALL for numbers in ((BFLOAT16, FLOAT), (HALF, HALF), (FLOAT, FLOAT))),
    *([(v, BFLOAT16, BFLOAT16) for v in (PIPELINED, WARPGROUPS)] if ON_GPU else []),
]  # fmt: skip
SHAPES = [(1, 1, 8), (3, 65, 8), (129, 70, 136), (130, 131, 328)]


def name_of(value):
    if isinstance(value, Version):
        return "-".join(map(str, (value.kernel, value.rows, value.columns, value.stages)))
    return None


def matrix(values, number):
    """Return numbers as a kernel takes them, and the same numbers in float64."""
    if number == FLOAT:
        return xp.asarray(values, np.float32), values.astype(np.float32).astype(np.float64)
    bits = bits_of(values, number)
    return xp.asarray(bits.view(np.float16) if number == HALF else bits), value_of(bits, number)


def product(version, number, out, M, N, K, scale=1.0, of=None, checked=False):
    """Return c, and a and b in float64. Before the launch, c is filled with NaN."""
    rng = np.random.default_rng([M, N, K])
    (a, a64), (b, b64) = (matrix(scale * rng.standard_normal(s), number) for s in ((M, K), (N, K)))
    c, _ = matrix(np.full((M, N), np.nan), out)
    matmul16.bind(a, b, c, version, of=of, checked=checked)()
    c = host(c)
    return (value_of(c, out) if out == BFLOAT16 else c.astype(np.float64)), a64, b64


def plain(a64, b64, number, out):
    """Return the product as NumPy computes it in this precision: rounded factors, float32 sums, a rounded result."""
    if number == FLOAT:
        a64, b64 = tf32(a64), tf32(b64)
    c = a64.astype(np.float32) @ b64.astype(np.float32).T
    return c.astype(np.float64) if out == FLOAT else value_of(bits_of(c, out), out)


@pytest.mark.full(but=["__nv_bfloat16-float-True-(3, 65, 8)"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("checked", ["gpu"] if ON_GPU else [True, False])
@pytest.mark.parametrize("version, number, out", KERNELS, ids=name_of)
def test_the_error_is_at_most_twice_that_of_a_plain_product(version, number, out, checked, shape):
    c, a64, b64 = product(version, number, out, *shape, checked=checked is True)
    wanted = a64 @ b64.T
    if number != FLOAT and out == FLOAT:  # exact products; each of K additions may truncate one bit
        assert (np.abs(c - wanted) <= shape[2] * 2.0**-23 * (np.abs(a64) @ np.abs(b64).T)).all()
        return
    error, allowed = (np.abs(x - wanted).max() for x in (c, plain(a64, b64, number, out)))
    rounding = 2.0**-23 * np.abs(wanted).max()  # for places where the plain product is exact by luck
    assert error <= 2 * allowed + rounding, (error, allowed)


@pytest.mark.full
@on_gpu
@pytest.mark.parametrize("out", [BFLOAT16, FLOAT])
@pytest.mark.parametrize("shape", [(515, 1030, 1032), (4096, 128, 64)], ids=str)
def test_wgmma_and_its_twin_agree(shape, out, tmp_path):
    """Compare the text compiled for sm_90a with the text under NANOEULER_ARCH=80, in a separate process."""
    if not cuda.hopper():
        pytest.skip("this GPU has no wgmma")
    call = f"t.product(t.WARPGROUPS, t.BFLOAT16, {out!r}, *{shape})[0]"
    code = f"import sys, numpy as np, test_matmul16 as t; np.save(sys.argv[1], {call})"
    ours, a64, b64 = product(WARPGROUPS, BFLOAT16, out, *shape)
    twin = in_process(code, tmp_path / "twin.npy", NANOEULER_ARCH="80")
    assert not np.array_equal(ours, np.zeros_like(ours))
    bound = 2 * (2.0**-8 if out == BFLOAT16 else shape[2] * 2.0**-23) * (np.abs(a64) @ np.abs(b64).T)
    assert (np.abs(ours - twin) <= bound).all()


def in_process(code, path, **environment):
    folders = os.pathsep.join(sys.path)
    subprocess.run(
        [sys.executable, "-c", code, path], check=True, env=os.environ | {"PYTHONPATH": folders} | environment
    )
    return np.load(path)


# ----------------------------------------------------------------------------------------------------------------
# a missing barrier, wait or commit is reported

TEXT = (cuda.KERNELS / "matmul16.cu").read_text("utf-8")
ORDERING = re.compile(
    r"(?:__syncthreads|copy_async_commit|copy_async_wait<[^>]*>|named_barrier_(?:sync|arrive)|mbarrier_\w+|wgmma_\w+|fence_async"
    r"|(?:wait_filled|wait_products|tell_emptied|start)<\w+>)\([^;{}]*\);"
)
HOPPER = range(TEXT.index("#ifdef __CUDA_ARCH_FEAT_SM90_ALL"), TEXT.index("#else\n"))  # not compiled on the CPU
NOTHING_HERE = ("wait_products", "start<")  # wgmma's waits; empty in the twin, whose mma ends at once
ORDERED = [m for m in ORDERING.finditer(TEXT) if m.start() not in HOPPER and not m[0].startswith(NOTHING_HERE)]
V2, V3 = TEXT.index("// ---- v2"), TEXT.index("// ---- v3")


@pytest.mark.full
@on_cpu
@pytest.mark.parametrize("number", range(len(ORDERED)), ids=lambda i: ORDERED[i][0].split("(")[0])
def test_without_one_of_its_barriers_waits_or_commits(number):
    place = ORDERED[number]
    version = PLAIN if place.start() < V2 else SMALL[place.start() > V3]
    a = bits_of(np.zeros((1, 8)), BFLOAT16)
    text = TEXT[: place.start()] + "(void)0;" + TEXT[place.end() :]
    broken = cuda.module(text, where="cpu", instantiate=(version.name(a, np.zeros(1, np.float32)),))
    with pytest.raises(cuda.KernelError) as caught:
        product(version, BFLOAT16, FLOAT, 130, 70, 520, of=broken)
    kinds = "missing wait", "race", "uninitialised", "deadlock", "divergent barrier"
    assert caught.value.finding.kind in kinds, caught.value.finding.text


@pytest.mark.full
@on_cpu
def test_all_that_orders_is_tried():
    parts = (0, V2), (V2, V3), (V3, len(TEXT))
    assert [sum(low < m.start() < high for m in ORDERED) for low, high in parts] == [4, 6, 9]


# ----------------------------------------------------------------------------------------------------------------
# its memory requests


def memory(version, old="", new=""):
    """Return the rows of a profile: 128 x 64 numbers of c from K = 128, in bfloat16."""
    assert old in TEXT
    rng = np.random.default_rng(0)
    a, b = (bits_of(rng.standard_normal((n, 128)), BFLOAT16) for n in (128, 64))
    c = np.zeros((128, 64), np.uint16)
    name = version.name(a, c)
    kernel = cuda.module(TEXT.replace(old, new), where="cpu", instantiate=(name,))[name]
    return kernel.profile(*matmul16.shape(a, b, c, version)).rows


@pytest.mark.full
@on_cpu
@pytest.mark.parametrize("version", SMALL, ids=name_of)
def test_swizzled_tiles_are_written_and_read_without_a_conflict(version):
    rows = memory(version)
    assert all(row.cost == row.ideal for row in rows)
    assert {row.operation for row in rows if row.space == "shared"} == {"copy", "read"}
    stored = [row for row in rows if row.operation == "write"]  # 16 bytes per lane
    assert sum(row.requests for row in stored) == 128 * 64 * 2 // (32 * 16)
    reads = shared_reads(memory(version, "(c ^ row % 8) << 4", "c << 4"))
    assert reads and all(row.cost == 8 * row.ideal for row in reads)  # 8 rows use the same banks


@pytest.mark.full
@on_cpu
def test_padded_rows_are_read_without_a_conflict():
    reads = shared_reads(memory(PLAIN))
    assert len(reads) == 2 and all(row.cost == 1 for row in reads)
    assert all(row.cost > 1 for row in shared_reads(memory(PLAIN, "#define PAD 40", "#define PAD 32")))


def shared_reads(rows):
    return [row for row in rows if row.space == "shared" and row.operation == "read"]


# ----------------------------------------------------------------------------------------------------------------
# refused launches


@on_cpu
@pytest.mark.parametrize("version", [PLAIN, *SMALL], ids=name_of)
def test_what_a_kernel_refuses(version):
    a, b = (bits_of(np.ones((n, 12)), BFLOAT16) for n in (5, 7))
    c = np.zeros((5, 7), np.float32)
    if version.kernel != "matmul16_wgmma":  # with wgmma, the TensorMap refuses it
        with pytest.raises(cuda.KernelError, match="rows of a and b must be multiples of 16 bytes"):
            matmul16.bind(a, b, c, version, checked=True)()
        aside = np.ones(5 * 16 + 1, np.uint16)[1:].reshape(5, 16)
        with pytest.raises(cuda.KernelError, match="a and b must be aligned to 16 bytes"):
            matmul16.bind(aside, aside.copy(), np.zeros((5, 5), np.float32), version, checked=True)()
    else:
        with pytest.raises(NanoEulerError, match=re.escape("a multiple of 16 bytes, got uint16 (5, 12)")):
            matmul16.bind(a, b, c, version)


def ones(*shape, dtype=np.float16):
    return xp.ones(shape, dtype)


@pytest.mark.parametrize("arguments, words", [
    ((ones(5, 8), ones(7, 8, dtype=np.float32), ones(5, 7)), "got float16, float32, float16"),
    ((ones(5, 8), ones(7, 8), ones(5, 7, dtype=np.float64)), "got float16, float16, float64"),
    ((ones(5, 8), ones(7, 16), ones(5, 7)), "got (5, 8), (7, 16), (5, 7)"),
    ((ones(5, 8), ones(7, 8), ones(7, 5)), "got (5, 8), (7, 8), (7, 5)"),
    ((ones(5, 16)[:, :8], 64), "got float16 (5, 8) with strides (32, 2)"),
    ((ones(5, 8), 257), "1 to 256 rows, got 257"), ((ones(5, 8, dtype=np.int32), 64), "got int32 (5, 8)"),
])  # fmt: skip
def test_what_is_no_product_and_no_tensor_map(arguments, words):
    with pytest.raises(NanoEulerError, match=re.escape(words)):
        (matmul16.bind if len(arguments) == 3 else cuda.tensor_map)(*arguments)


@pytest.mark.full
def test_a_tensor_map_is_words_for_a_kernel():
    words = cuda.tensor_map(ones(5, 8), 64)["words"]
    assert words.shape == (16,) and words.dtype == np.uint64 and words.ctypes.data % 64 == 0
    assert words.any() == ON_GPU


def test_an_unknown_architecture_is_named(monkeypatch):
    monkeypatch.setenv("NANOEULER_ARCH", "70")
    cuda.hopper.cache_clear()
    try:
        with pytest.raises(NanoEulerError, match="NANOEULER_ARCH must be 75, 80 or 90, got '70'"):
            cuda.hopper()
    finally:
        cuda.hopper.cache_clear()
