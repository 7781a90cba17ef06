# ruff: noqa: E501 -- a kernel's text stays on its line
"""Numbers of 16 bits: every operation is CUDA's to the last bit. The oracle rounds exact fractions, once.

NVRTC takes every text for 8.0 and 9.0.
"""

import math
import operator
from fractions import Fraction

import numpy as np
import pytest
from test_cuda_matrix import value_of as value
from test_nvrtc import cubin, in_wheels, nvrtc

from nanoeuler_lib import cuda

pytestmark = [pytest.mark.compiler, pytest.mark.full]

INCLUDES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
TYPES = {
    "__half": (11, -24, 65504),
    "__nv_bfloat16": (8, -133, float.fromhex("0x1.fep127")),
}  # digits, least exponent, largest


def bits_of(x, number):
    """The bits of an exact number, rounded to the nearest, of two equally near ones to the even one."""
    digits, least, most = TYPES[number]
    if x == 0:
        return 0
    exponent = max(least, math.frexp(float(abs(x)))[1] - digits)
    if abs(x) / Fraction(2) ** exponent >= 2**digits:
        exponent += 1  # float() rounded up to a power of two, or not
    near = round(abs(x) / Fraction(2) ** exponent) * Fraction(2) ** exponent
    infinity = {"__half": 0x7C00, "__nv_bfloat16": 0x7F80}[number]
    if near > Fraction(most):
        bits = infinity
    elif number == "__half":
        bits = int(np.float16(float(near)).view(np.uint16))
    else:
        bits = int(np.float32(float(near)).view(np.uint32)) >> 16
    return bits | (0x8000 if x < 0 else 0)


def numbers(number, seed, count):
    """Random bits of finite numbers: some of one size, so that sums cancel and tie, some very large and small."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 16, count).astype(np.uint16)
    near_one = {"__half": 0x3800, "__nv_bfloat16": 0x3F00}[number]
    bits[: count // 2] = near_one + rng.integers(0, 0x400, count // 2) + (rng.integers(0, 2, count // 2) << 15)
    return bits[np.isfinite(value(bits, number))]


def drawn(number, seeds, count):
    """As many such arrays, equally long."""
    arrays = [numbers(number, seed, count) for seed in seeds]
    return [array[: min(map(len, arrays))] for array in arrays]


def exact(bits, number):
    return [Fraction(v) for v in value(bits, number)]


KERNEL = """extern "C" __global__ void NUMBER(const T* a, const T* b, const T* c, T* y, int n) {
  for (int i = threadIdx.x; i < n; i += 32) {
    T2 p = {a[i], b[i]}, q = {b[i], a[i]}, r = {c[i], c[i]};
    T s = a[i];
    BODY
  }
}
"""


def run(number, bodies, arrays, checked=True):
    """What y becomes by each of the bodies, kernels of one text."""
    texts = [KERNEL.replace("NUMBER", f"k{i}").replace("BODY", body) for i, body in enumerate(bodies)]
    text = INCLUDES + "".join(texts).replace("T2", number + "2").replace("T ", number + " ")
    text = text.replace("T*", number + "*").replace("T(", number + "(")
    module, n = cuda.module(text, where="cpu", checked=checked), len(arrays[0])
    made = np.zeros((len(bodies), n), np.uint16)
    for kernel, y in zip(module, made, strict=True):
        module[kernel](1, 32, (*[_as(a, number) for a in arrays], _as(y, number), n))
    return made


def _as(bits, number):
    return bits.view(np.float16) if number == "__half" else bits


def compare(number, got, exact):
    wanted = np.array([bits_of(x, number) for x in exact], np.uint16)
    zero = (got & 0x7FFF == 0) & (wanted == 0)  # the sign of a zero is another matter
    assert (zero | (got == wanted)).all(), np.flatnonzero(~zero & (got != wanted))


OPERATIONS = {
    "+": (operator.add, "__hadd(a[i], b[i])", "(p + q).x", "__hadd2(p, q).y", "__hadd_rn(a[i], b[i])", "s += b[i]"),
    "-": (operator.sub, "a[i] - b[i]", "__hsub(a[i], b[i])", "__hsub2(p, q).x", "(p -= q).x", "s -= b[i]"),
    "*": (operator.mul, "a[i] * b[i]", "__hmul(a[i], b[i])", "__hmul2(p, q).y", "(p *= q).x", "s *= b[i]"),
    "/": (operator.truediv, "a[i] / b[i]", "__hdiv(a[i], b[i])", "__h2div(p, q).x", "(p /= q).x", "s /= b[i]"),
}  # fmt: skip


@pytest.mark.parametrize("number", TYPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(name, number):
    operation, *forms = OPERATIONS[name]
    a, b = drawn(number, (1, 2), 700)
    b[b & 0x7FFF == 0] = 0x3C00
    wanted = list(map(operation, exact(a, number), exact(b, number)))
    for checked in (True, False):
        for y in run(number, [f"y[i] = {form};" for form in forms], (a, b, b), checked):
            compare(number, y, wanted)


@pytest.mark.parametrize("number", TYPES)
def test_fused(number):
    a, b, c = drawn(number, (3, 4, 5), 3000)
    # where the product lies in the middle between two numbers, a tiny sum decides
    tie = np.random.default_rng(6).permutation(len(c))[: len(c) // 2]
    c[tie] = [1 + (k % 2 << 15) for k in tie]
    wanted = [s * t + u for s, t, u in zip(*(exact(bits, number) for bits in (a, b, c)))]
    for y in run(number, ["y[i] = __hfma(a[i], b[i], c[i]);", "y[i] = __hfma2(p, q, r).y;"], (a, b, c)):
        compare(number, y, wanted)


def test_from_wider_numbers():
    rng = np.random.default_rng(7)
    x = rng.standard_normal(600) * 2.0 ** rng.integers(-30, 20, 600)
    ties = numbers("__half", 8, 200)
    x[: len(ties)] = value(ties, "__half") * (1 + 2.0**-11 + 2.0**-40)
    l = rng.integers(-(2**62), 2**62, 600) >> rng.integers(0, 60, 600)
    l[:100] = (257 << 40) + 1  # a tie of bfloat16, and one more
    text = (
        INCLUDES
        + """extern "C" __global__ void k(const double* x, const long long* l, unsigned short* y) {
      for (int i = threadIdx.x; i < 600; i += 32) {
        y[i] = __half_as_ushort(__double2half(x[i]));
        y[i + 600] = __bfloat16_as_ushort(__double2bfloat16(x[i]));
        y[i + 1200] = __bfloat16_as_ushort(__ll2bfloat16_rn(l[i]));
        y[i + 1800] = __half_as_ushort(__float2half_rn((float)x[i]));
        y[i + 2400] = __bfloat16_as_ushort(__float2bfloat16_rn((float)x[i]));
      }
    }"""
    )
    y = np.zeros(3000, np.uint16)
    cuda.module(text, where="cpu")["k"](1, 32, (x, l, y))
    single = x.astype(np.float32).astype(float)
    half, brain = TYPES
    kinds = (half, x), (brain, x), (brain, l.tolist()), (half, single), (brain, single)
    for made, (number, values) in zip(np.split(y, 5), kinds, strict=True):
        compare(number, made, map(Fraction, values))


SPECIAL = {
    "__half": [0x0000, 0x8000, 0x3C00, 0xBC00, 0x0001, 0x7C00, 0xFC00, 0x7E00, 0x4200],
    "__nv_bfloat16": [0x0000, 0x8000, 0x3F80, 0xBF80, 0x0001, 0x7F80, 0xFF80, 0x7FC0, 0x4040],
}
ORDERED = {"eq": operator.eq, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


@pytest.mark.parametrize("number", TYPES)
def test_comparisons(number):
    a, b = (np.array(m.ravel(), np.uint16) for m in np.meshgrid(SPECIAL[number], SPECIAL[number]))
    x, y = value(a, number), value(b, number)
    nan = np.isnan(x) | np.isnan(y)
    one = 0x3C00 if number == "__half" else 0x3F80
    signs = {"eq": "==", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
    truths = {"a[i] != b[i]": x != y, "__hne(a[i], b[i])": (x != y) & ~nan}
    wanted = {}
    for name, of in ORDERED.items():
        truths |= {f"__h{name}(a[i], b[i])": of(x, y), f"a[i] {signs[name]} b[i]": of(x, y),
                   f"__h{name}u(a[i], b[i])": of(x, y) | nan, f"__hb{name}2(p, q)": of(x, y) & of(y, x),
                   f"p {signs[name]} q": of(x, y) & of(y, x)}  # fmt: skip
        wanted[f"y[i] = __h{name}2(p, q).x;"] = np.where(of(x, y), one, 0)
    wanted |= {f"y[i] = {form} ? T(1.0f) : T(0.0f);": np.where(truth, one, 0) for form, truth in truths.items()}
    wanted |= {"y[i] = __hneg2(p).x;": a ^ 0x8000, "y[i] = __habs(a[i]);": a & 0x7FFF}
    for (form, bits), got in zip(wanted.items(), run(number, wanted, (a, b, b)), strict=True):
        assert (got == bits).all(), form
    wanted = {}
    for name, of in (("max", np.fmax), ("min", np.fmin)):
        wanted[f"y[i] = __h{name}(a[i], b[i]);"] = of(x, y)
        wanted[f"y[i] = __h{name}2_nan(p, q).x;"] = np.where(nan, np.nan, of(x, y))
    for exact, got in zip(wanted.values(), run(number, wanted, (a, b, b)), strict=True):
        np.testing.assert_array_equal(value(got, number), exact)
    zeros = np.array([0, 0x8000], np.uint16)
    assert (run(number, ["y[i] = __hmax(a[i], b[i]);"], (zeros, zeros[::-1].copy(), zeros)) == 0).all()


FUNCTIONS = {
    "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: 10.0**x, "log": np.log, "log2": np.log2, "log10": np.log10,
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "sqrt": np.sqrt, "rsqrt": lambda x: x**-0.5, "rcp": lambda x: 1 / x,
    "ceil": np.ceil, "floor": np.floor, "trunc": np.trunc, "rint": np.rint,
}  # fmt: skip


@pytest.mark.parametrize("number", TYPES)
def test_functions(number):
    a = np.array([bits_of(Fraction(v), number) for v in np.linspace(0.02, 9, 333)], np.uint16)
    x = value(a, number)
    forms = {form: name for name in FUNCTIONS for form in (f"h{name}(a[i])", f"h2{name}(p).x")}
    made = run(number, [f"y[i] = {form};" for form in forms], (a, a, a))
    step = 2.0 ** (1 - TYPES[number][0])
    for (form, name), y in zip(forms.items(), made, strict=True):
        wanted = FUNCTIONS[name](x)
        off = np.abs(value(y, number) - wanted)
        far = off > step * np.abs(wanted) * 0.51 + 1e-7  # half a step, but for the float's own error
        assert not far[np.abs(wanted) < TYPES[number][2]].any(), form


@pytest.mark.skipif(not in_wheels("**/cuda_bf16.h") or nvrtc() is None, reason="the nvidia wheels: make oracle")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("number", TYPES)
def test_the_compiler_of_the_gpu_takes_them_all(number, architecture):
    name = number.strip("_").replace("nv_", "")
    forms = [form for _, *forms in OPERATIONS.values() for form in forms]
    forms += [f"h{f}(a[i])" for f in FUNCTIONS] + [f"h2{f}(p).x" for f in FUNCTIONS]
    forms += [f"__h{c}{u}2(p, q).x" for c in ORDERED for u in ("", "u")]
    forms += ["__hfma(s, s, s)", "__hfma2(p, q, r).y", "__hmax2_nan(p, q).x", "__hneg2(p).x", "__habs(s)", "-s", "s++",
              "__hfma_relu(s, s, s)", "__hadd_sat(s, s)"]  # fmt: skip
    forms += [f"__low2{name}(p)", f"__high2{name}(p)", f"__halves2{name}2(s, s).x", f"__float2{name}2_rn(1.0f).x",
              f"__float22{name}2_rn(make_float2(1, 2)).x", f"__floats2{name}2_rn(1, 2).y", f"__low2{name}2(p).y",
              f"__{name}2{name}2(s).x", f"__int2{name}_rn(3)", f"__lows2{name}2(p, q).y", "__lowhigh2highlow(p).x",
              f"__ushort_as_{name}((unsigned short)3)", f"__double2{name}(1.0)", f"make_{name}2(s, s).x"]  # fmt: skip
    body = "\n".join(f"y[i] = {form};" for form in forms)
    body += f"\nfloat f = __low2float(p) + __high2float(q) + __{name}2float(s) + __{name}22float2(p).x + __{name}2int_rn(s);"
    body += f"\ny[i] = T(f); atomicAdd((T2*)y + 1, p); atomicAdd(y, s); unsigned short u = __{name}_as_ushort(s); y[i] = T((float)u);"
    body = body.replace("T2", number + "2").replace("T(", number + "(")
    text = INCLUDES + KERNEL.replace("NUMBER", "k").replace("BODY", body).replace("T2", number + "2")
    text = text.replace("const T*", f"const {number}*").replace(" T*", f" {number}*").replace(" T s", f" {number} s")
    cubin(text, architecture)
    cuda.module(text, where="cpu")
