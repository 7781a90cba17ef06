"""Tensor cores: ldmatrix, mma and the WMMA names of matrix.cuh hold, load and multiply what the PTX ISA says.

The oracles are NumPy's, in float64, and the layouts as the PTX ISA prints them. With a CUDA device the same kernels run
there (NANOEULER_DEVICE=gpu); on the CPU they run compiled for speed and checked, and each planted bug is found.
"""

import re

import numpy as np
import pytest
from hopper_kernel import PRODUCT
from matrix_kernels import LAYOUTS, MATMUL, NUMBERS, ONE_AT_A_TIME, PIECES, fragment_name

from nanoeuler_lib import cuda

ON_GPU = cuda.device() == "gpu"
pytestmark = [] if ON_GPU else [pytest.mark.compiler]
xp = cuda.array_module()
on_cpu = pytest.mark.skipif(ON_GPU, reason="the checker and the profiler run on the CPU")
lanes = np.arange(32)


def host(array):
    return array.get() if ON_GPU else array


def bits_of(values, number):
    """16-bit numbers as the kernels take them: uint16."""
    if number == "__half":
        return np.ascontiguousarray(values, np.float16).view(np.uint16)
    u = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def value_of(bits, number):
    if number == "__half":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


# ----------------------------------------------------------------------------------------------------------------
# one instruction at a time


@pytest.fixture(scope="module", params=["gpu"] if ON_GPU else ["checked", "fast"])
def kernels(request):
    checked = request.param == "checked"
    made = [cuda.module(text, checked=checked, instantiate=names) for text, names in ONE_AT_A_TIME.values()]
    return {name: module[name] for module in made for name in module}


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(kernels, count, trans):
    x = np.random.default_rng(count).permutation(1 << 16)[:256].astype(np.uint16)  # each its own
    r = xp.zeros((32, count), np.uint32)
    kernels[f"loads<{count}, {str(trans).lower()}>"](1, 32, (xp.asarray(x), r))
    matrices = x.reshape(4, 8, 8)[:count].astype(np.uint32)
    if trans:
        matrices = matrices.swapaxes(1, 2)
    row, column = lanes // 4, lanes % 4 * 2
    wanted = matrices[:, row, column] | matrices[:, row, column + 1] << 16
    np.testing.assert_array_equal(host(r), wanted.T)


def picked(K, seed):
    """K x 8 or 16 x K with a single 1 in each column, row: a product with it shows elements as they are."""
    return np.eye(K)[:, np.random.default_rng(seed).permutation(K)[:8]]


def exact_products(K):
    """Pairs of factors and a sum whose product is exact in float, however it is added."""
    rng = np.random.default_rng(K)
    unique = rng.permutation(256)[: 16 * K].reshape(16, K).astype(float)
    yield unique, picked(K, 0), np.zeros((16, 8))
    yield unique, np.eye(K)[:, -8:], 1000.0 * np.arange(128).reshape(16, 8)
    yield np.eye(K)[rng.integers(0, K, 16)], rng.permutation(256)[: K * 8].reshape(K, 8), np.zeros((16, 8))
    yield rng.integers(-9, 10, (16, K)), rng.integers(-9, 10, (K, 8)), rng.integers(-99, 100, (16, 8))


@pytest.mark.parametrize("number", NUMBERS)
def test_mma_of_16_bit_numbers(kernels, number):
    for a, b, c in exact_products(16):
        d = xp.asarray(c, np.float32)
        factors = [xp.asarray(bits_of(f, number)) for f in (a, b)]
        kernels[f"product16<{number}>"](1, 32, (*factors, d))
        np.testing.assert_array_equal(host(d), a @ b + c)


def test_mma_of_tf32(kernels):
    for a, b, c in exact_products(8):
        d = xp.asarray(c, np.float32)
        factors = [xp.asarray(np.ascontiguousarray(f, np.float32)) for f in (a, b)]
        kernels["product8"](1, 32, (*factors, d))
        np.testing.assert_array_equal(host(d), a @ b + c)


@pytest.mark.parametrize("number", [*NUMBERS, "tf32"])
def test_mma_of_any_numbers_is_within_its_bound(kernels, number):
    K = 8 if number == "tf32" else 16
    rng = np.random.default_rng(7)
    a, b, c = (rng.standard_normal(shape, dtype=np.float32) for shape in ((16, K), (K, 8), (16, 8)))
    d = xp.array(c)
    if number == "tf32":
        kernels["product8"](1, 32, (xp.asarray(a), xp.asarray(b), d))
        a64, b64 = tf32(a), tf32(b)
    else:
        bits = [bits_of(f, number) for f in (a, b)]
        kernels[f"product16<{number}>"](1, 32, (*map(xp.asarray, bits), d))
        a64, b64 = (value_of(f, number) for f in bits)
    bound = (K + 1) * 2.0**-23 * (np.abs(a64) @ np.abs(b64) + np.abs(c))  # each addition may cut off one bit
    assert (np.abs(host(d) - (a64 @ b64 + c)) <= bound).all()


def tf32(x):
    """The nearest numbers with 11 significant bits, of two equally near ones the larger: in float64."""
    fraction, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.copysign(np.floor(np.abs(fraction) * 2**11 + 0.5), fraction), exponent - 11)


def test_tf32_is_rounded_to_the_nearest_and_ties_away_from_zero(kernels):
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(1024) * 10.0 ** rng.integers(-30, 31, 1024)).astype(np.float32)
    ties = (x[:256].view(np.uint32) & 0xFFFFE000 | 0x1000).view(np.float32)
    x[:256], x[256:260] = ties, [0.0, -0.0, np.inf, -np.inf]
    y = xp.zeros(1024, np.uint32)
    kernels["rounds"](32, 32, (xp.asarray(x), y))
    got = (host(y) & 0xFFFFE000).view(np.float32)  # the GPU does not say what it leaves in the last 13 bits
    finite = np.isfinite(x)
    np.testing.assert_array_equal(got[finite], tf32(x[finite]))
    np.testing.assert_array_equal(got[~finite], x[~finite])


@pytest.mark.parametrize("layouts", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("number", NUMBERS)
def test_wmma(kernels, number, layouts):
    rng = np.random.default_rng(5)
    pairs = [(a, rng.integers(-9, 10, (16, 16))) for a in (np.arange(256).reshape(16, 16) - 128, np.eye(16))]
    for a, b in [*pairs, (np.eye(16), np.arange(256).reshape(16, 16))]:
        c, d = rng.integers(-99, 100, (16, 16)), xp.zeros((16, 16), np.float32)
        stored = [f if layout == "row_major" else f.T for f, layout in zip((a, b), layouts)]
        bits = [xp.asarray(bits_of(f, number)) for f in stored]
        kernels[fragment_name(number, *layouts)](1, 32, (*bits, xp.asarray(c, np.float32), d))
        np.testing.assert_array_equal(host(d).T, 2 * (a @ b + c))


# ----------------------------------------------------------------------------------------------------------------
# a matrix product: asynchronous copies one tile ahead, ldmatrix, mma


def multiply(kernel, M, N, K):
    """The product of random matrices, padded with zeros to multiples of the tile, and what it should be."""
    rng = np.random.default_rng([M, N, K])
    padded = [-(-size // 32) * 32 for size in (M, N, K)]
    a, b = np.zeros((padded[0], padded[2]), np.uint16), np.zeros((padded[2], padded[1]), np.uint16)
    a[:M, :K], b[:K, :N] = (bits_of(rng.standard_normal(s, np.float32), "__nv_bfloat16") for s in ((M, K), (K, N)))
    c = xp.full((padded[0], padded[1]), np.nan, np.float32)
    grid = (padded[1] // 32, padded[0] // 32)
    kernel(grid, 128, (xp.asarray(a), xp.asarray(b), c, padded[1], padded[2]))
    a64, b64 = (value_of(f, "__nv_bfloat16") for f in (a, b))
    return host(c), a64, b64


@pytest.mark.parametrize("shape", [(64, 64, 64), (32, 32, 32), (33, 70, 100), (1, 5, 129)], ids=str)
@pytest.mark.parametrize("checked", ["gpu"] if ON_GPU else [True, False])
def test_matmul(checked, shape):
    c, a64, b64 = multiply(cuda.module(MATMUL, checked=checked is True)["matmul"], *shape)
    bound = (a64.shape[1] + 1) * 2.0**-23 * (np.abs(a64) @ np.abs(b64))
    assert (np.abs(c - a64 @ b64) <= bound).all()


@pytest.mark.parametrize("K", [64, 192])
@pytest.mark.parametrize("checked", ["gpu"] if ON_GPU else [True, False])
def test_the_product_for_hopper(checked, K):
    """On a GPU of 9.0 by TMA and wgmma, elsewhere by its twin."""
    kernel, rng = cuda.module(PRODUCT, checked=checked is True)["product"], np.random.default_rng(2)
    for draw in (lambda: rng.integers(-4, 5, (64, K)), lambda: rng.standard_normal((64, K))):
        factors = [bits_of(draw(), "__nv_bfloat16") for _ in range(2)]
        a, b = map(xp.asarray, factors)
        c = xp.full((64, 64), np.nan, np.float32)
        kernel(1, 128, (cuda.tensor_map(a, 64), cuda.tensor_map(b, 64), a, b, c, K))
        a64, b64 = (value_of(f, "__nv_bfloat16") for f in factors)
        exact = (a64 == np.round(a64)).all() and (b64 == np.round(b64)).all()  # then every sum is a float
        bound = 0 if exact else K * 2.0**-23 * (np.abs(a64) @ np.abs(b64).T)
        assert (np.abs(host(c) - a64 @ b64.T) <= bound).all()


ORDERING = re.compile(r"(?:__syncthreads|copy_async_commit|copy_async_wait<1>)\(\);")


@on_cpu
@pytest.mark.parametrize("number", range(5))
def test_matmul_without_one_of_its_barriers_waits_or_commits(number):
    places = list(ORDERING.finditer(MATMUL))
    assert len(places) == 5
    text = MATMUL[: places[number].start()] + ";" + MATMUL[places[number].end() :]
    with pytest.raises(cuda.KernelError) as caught:
        multiply(cuda.module(text)["matmul"], 32, 32, 128)
    assert caught.value.finding.kind in ("missing wait", "race")


# ----------------------------------------------------------------------------------------------------------------
# planted bugs

BUGS = r"""
#include <cuda_bf16.h>
#include <nanoeuler.cuh>
#define Number __nv_bfloat16

extern "C" __global__ void row_beyond_the_end(const Number* x, unsigned* y) {
  __shared__ __align__(16) Number s[16][16];
  for (int i = threadIdx.x; i < 256; i += 32) s[i / 16][i % 16] = x[i];
  __syncthreads();
  unsigned r[4];
  ldmatrix<4>(r, &s[0][0] + threadIdx.x * 16);  // BUG
  y[threadIdx.x] = r[0];
}
extern "C" __global__ void own_row_then_no_barrier(const Number* x, unsigned* y) {  // each lane names its own row
  __shared__ __align__(16) Number s[32 * 8];
  copy_async<16>(&s[8 * threadIdx.x], &x[8 * threadIdx.x]);  // BUG
  copy_async_commit();
  copy_async_wait<0>();
  unsigned r[4];
  ldmatrix<4>(r, &s[8 * threadIdx.x]);
  y[threadIdx.x] = r[0];
}
extern "C" __global__ void overwritten_too_early(const Number* x, unsigned* y) {
  __shared__ __align__(16) Number s[16][16];
  for (int i = threadIdx.x; i < 256; i += 32) s[i / 16][i % 16] = x[i];
  __syncthreads();
  unsigned r[4];
  ldmatrix_trans<4>(r, &s[threadIdx.x % 16][threadIdx.x / 16 * 8]);
  s[threadIdx.x % 16][threadIdx.x / 16] = x[threadIdx.x];  // BUG
  y[threadIdx.x] = r[0];
}
extern "C" __global__ void tile_half_filled(const Number* x, unsigned* y) {
  __shared__ __align__(16) Number s[16][16];
  for (int i = threadIdx.x; i < 128; i += 32) s[i / 16][i % 16] = x[i];
  __syncthreads();
  unsigned r[4];
  ldmatrix<4>(r, &s[threadIdx.x % 16][threadIdx.x / 16 * 8]);  // BUG
  y[threadIdx.x] = r[0];
}
extern "C" __global__ void half_a_warp(const Number* x, float* y) {
  float d[4] = {};
  unsigned a[4] = {}, b[2] = {};
  if (threadIdx.x < 16)
    mma<Number>(d, a, b);  // BUG
  __syncthreads();
  y[threadIdx.x] = d[0];
}
extern "C" __global__ void two_products(const Number* x, float* y) {
  float d[4] = {};
  unsigned a[4] = {}, b[2] = {};
  if (threadIdx.x < 16)
    mma<Number>(d, a, b);
  else
    mma<Number>(d, a, b);  // BUG
  y[threadIdx.x] = d[0];
}
extern "C" __global__ void load_meets_product(const Number* x, float* y) {
  __shared__ __align__(16) Number s[16 * 16];
  float d[4] = {};
  unsigned a[4] = {}, b[2] = {};
  if (threadIdx.x < 16)
    mma<Number>(d, a, b);
  else
    ldmatrix<4>(a, s);
  y[threadIdx.x] = d[0];
}
extern "C" __global__ void wait_missing(const Number* x, unsigned* y) {
  __shared__ __align__(16) Number s[32 * 8];
  copy_async<16>(&s[8 * threadIdx.x], &x[8 * threadIdx.x]);
  copy_async_commit();
  __syncthreads();
  unsigned r[4];
  ldmatrix<4>(r, &s[8 * threadIdx.x]);  // BUG
  copy_async_wait<0>();
  y[threadIdx.x] = r[0];
}
extern "C" __global__ void rows_in_global_memory(const Number* x, unsigned* y) {
  unsigned r[4];
  ldmatrix<4>(r, &x[8 * threadIdx.x]);  // BUG
  y[threadIdx.x] = r[0];
}
extern "C" __global__ void copy_within_global(Number* x, unsigned* y) {
  copy_async<16>(&y[4 * (threadIdx.x % 8)], &x[8 * threadIdx.x]);  // BUG
  copy_async_commit();
  copy_async_wait<0>();
}
extern "C" __global__ void copy_to_a_misaligned_place(const Number* x, unsigned* y) {
  __shared__ __align__(16) Number s[32 * 9];
  copy_async<16>(&s[9 * threadIdx.x], &x[8 * threadIdx.x]);  // BUG
  copy_async_commit();
  copy_async_wait<0>();
}
extern "C" __global__ void stored_beyond_the_end(const Number* x, float* y) {
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  wmma::store_matrix_sync(y, sum, 17, wmma::mem_row_major);  // BUG
}
"""
X, Y, D = np.ones(512, np.uint16), np.zeros(64, np.uint32), np.zeros(256, np.float32)
# kernel: the finding's kind, threads, arguments
PLANTED = {
    "row_beyond_the_end": ("out of bounds", 32, (X, Y)),
    "own_row_then_no_barrier": ("race", 32, (X, Y)),
    "overwritten_too_early": ("race", 32, (X, Y)),
    "tile_half_filled": ("uninitialised", 32, (X, Y)),
    "half_a_warp": ("deadlock", 32, (X, D)),
    "two_products": ("failure", 32, (X, D)),
    "load_meets_product": ("warp function", 32, (X, D)),
    "wait_missing": ("missing wait", 32, (X, Y)),
    "rows_in_global_memory": ("failure", 32, (X, Y)),
    "copy_within_global": ("failure", 32, (X, Y)),
    "copy_to_a_misaligned_place": ("misaligned", 32, (X, Y)),
    "stored_beyond_the_end": ("out of bounds", 32, (X, D)),
}


@pytest.fixture(scope="module")
def bugs():
    return cuda.module(BUGS, where="cpu")


@on_cpu
@pytest.mark.parametrize("name", PLANTED)
def test_planted_bug(bugs, name):
    kind, threads, args = PLANTED[name]
    with pytest.raises(cuda.KernelError) as caught:
        bugs[name](1, threads, tuple(a.copy() if isinstance(a, np.ndarray) else a for a in args))
    finding = caught.value.finding
    assert (finding.kind, finding.kernel) == (kind, name), finding.text
    assert finding.thread is not None and finding.thread < (threads, 0, 0)
    lines = BUGS.split("\n")
    first = next(i for i, line in enumerate(lines, 1) if f" {name}(" in line)
    last = next(i for i, line in enumerate(lines, 1) if i > first and line == "}")
    marked = next((i for i in range(first, last) if "// BUG" in lines[i - 1]), None)
    assert first < finding.line < last, finding.text
    assert marked in (None, finding.line, finding.other_line), finding.text


@on_cpu
def test_every_planted_bug_is_launched(bugs):
    assert set(bugs) == set(PLANTED)


# ----------------------------------------------------------------------------------------------------------------
# shared memory in pieces smaller than its elements, as kernels with 16-bit numbers use it

COUNT = np.arange(32, dtype=np.float32)
USES = {
    "used_again": (128, COUNT),
    "colours": (0, COUNT[::-1]),
    "seven_bytes": (7, np.concatenate([2 * COUNT[6::-1], np.zeros(25)])),
    "last_word": (7, np.zeros(32)),
}


@pytest.fixture(scope="module")
def pieces():
    return cuda.module(PIECES)


@pytest.mark.parametrize("name", USES)
def test_smaller_pieces_are_no_race(pieces, name):
    shared, wanted = USES[name]
    y = xp.zeros(32, np.float32)
    pieces[name](1, 32 if name != "last_word" else 1, (xp.asarray(COUNT), y, 0), shared)
    np.testing.assert_array_equal(host(y), wanted)


@on_cpu
@pytest.mark.parametrize("name, kind", list(zip(USES, ["race", "out of bounds", "out of bounds", "out of bounds"])))
def test_smaller_pieces_are_still_watched(pieces, name, kind):
    with pytest.raises(cuda.KernelError) as caught:
        pieces[name](1, 32 if name != "last_word" else 1, (COUNT, np.zeros(32, np.float32), 1), USES[name][0])
    assert caught.value.finding.kind == kind


@on_cpu
@pytest.mark.parametrize("number", range(3))
def test_a_barrier_between_two_uses_of_shared_memory_is_missed(number):
    place = list(re.finditer(r"__syncthreads\(\);", PIECES))[number]
    kernel = cuda.module(PIECES[: place.start()] + ";" + PIECES[place.end() :])["used_again"]
    with pytest.raises(cuda.KernelError) as caught:
        kernel(1, 32, (COUNT, np.zeros(32, np.float32), 0), 128)
    assert caught.value.finding.kind == "race"


NUMBERS_SEEN = r"""
#include <cuda_bf16.h>
#define Number __nv_bfloat16
extern "C" __global__ void as_argument(const Number* x, Number* y, int i) {
  float v = __bfloat162float(x[i]);
  y[0] = __float2bfloat16(v);
}
extern "C" __global__ void as_float(const Number* x, Number* y, int i) {
  y[0] = __float2bfloat16(2 * (float)x[i]);
}
extern "C" __global__ void as_operand(const Number* x, Number* y, int i) {
  y[0] = x[0] * x[i];
}
extern "C" __global__ void as_pair(const __nv_bfloat162* x, Number* y, int i) {
  float2 v = __bfloat1622float2(x[i / 2]);
  y[0] = __float2bfloat16(v.y);
}
extern "C" __global__ void as_target(const Number* x, Number* y, int i) {
  y[i] = x[0];
}
extern "C" __global__ void as_sum(const Number* x, Number* y, int i) {
  y[i] += x[0];
}
"""
SEEN = [
    ("as_argument", 5),
    ("as_float", 9),
    ("as_operand", 12),
    ("as_pair", 15),
    ("as_target", 19),
    ("as_sum", 22),
]


@on_cpu
@pytest.mark.parametrize("name, line", SEEN)
def test_a_16_bit_number_is_watched_however_it_is_used(name, line):
    kernel = cuda.module(NUMBERS_SEEN, where="cpu")[name]
    args = np.zeros(32, np.uint16), np.zeros(32, np.uint16)
    kernel(1, 1, (*args, 31))
    with pytest.raises(cuda.KernelError) as caught:
        kernel(1, 1, (*args, 32))
    finding = caught.value.finding
    assert (finding.kind, finding.line) == ("out of bounds", line), finding.text
    assert re.search(r"[xy]\[32\]", finding.text)
