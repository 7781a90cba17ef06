"""Tensor cores: ldmatrix, mma and the WMMA names of matrix.cuh hold, load and multiply what the PTX ISA says.

The oracles are NumPy's, in float64, and the layouts as the PTX ISA prints them. With a CUDA device the same kernels run
there (NANOEULER_DEVICE=gpu); on the CPU they run compiled for speed and checked.
"""

from pathlib import Path

import numpy as np
import pytest

from nanoeuler_lib import cuda

ON_GPU = cuda.device() == "gpu"
pytestmark = [] if ON_GPU else [pytest.mark.compiler]
xp = cuda.array_module()
lanes = np.arange(32)

FOLDER = Path(__file__).parent / "kernels"
NUMBERS = "__half", "__nv_bfloat16"
LAYOUTS = [(a, b) for a in ("row_major", "col_major") for b in ("row_major", "col_major")]


def fragment_name(number, a, b):
    return f"fragments<{number}, wmma::{a}, wmma::{b}>"


# text: the templates of it that run
ONE_AT_A_TIME = {
    "loads": [f"loads<{n}, {trans}>" for n in (1, 2, 4) for trans in ("false", "true")],
    "products": [f"product16<{number}>" for number in NUMBERS],
    "fragments": [fragment_name(number, *layouts) for number in NUMBERS for layouts in LAYOUTS],
}


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
    made = [cuda.module(FOLDER / f"{file}.cu", checked=checked, instantiate=of) for file, of in ONE_AT_A_TIME.items()]
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


def product(kernels, number, a, b, c):
    """d = a b + c by one mma, and the factors as it sees them."""
    d = xp.array(c, np.float32)
    if number == "tf32":
        factors = [np.ascontiguousarray(f, np.float32) for f in (a, b)]
        kernels["product8"](1, 32, (*map(xp.asarray, factors), d))
        return (host(d), *map(tf32, factors))
    factors = [bits_of(f, number) for f in (a, b)]
    kernels[f"product16<{number}>"](1, 32, (*map(xp.asarray, factors), d))
    return (host(d), *(value_of(f, number) for f in factors))


@pytest.mark.parametrize("number", [*NUMBERS, "tf32"])
def test_mma(kernels, number):
    """Exact where a product is; of any numbers each addition may cut off one bit."""
    K, rng = 8 if number == "tf32" else 16, np.random.default_rng(7)
    for a, b, c in exact_products(K):
        np.testing.assert_array_equal(product(kernels, number, a, b, c)[0], a @ b + c)
    a, b, c = (rng.standard_normal(shape, dtype=np.float32) for shape in ((16, K), (K, 8), (16, 8)))
    d, a64, b64 = product(kernels, number, a, b, c)
    assert (np.abs(d - (a64 @ b64 + c)) <= (K + 1) * 2.0**-23 * (np.abs(a64) @ np.abs(b64) + np.abs(c))).all()


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
