# ruff: noqa: E501 -- a kernel's text stays on its line
"""CUDA's device functions on the CPU: each computes what CUDA's reference says, and NVRTC takes every text."""

import re

import numpy as np
import pytest
from test_nvrtc import cubin, in_wheels, nvrtc

from cudacheck.complaints import first_error
from cudacheck.source import prepare
from nanoeuler_lib import cuda

pytestmark = [pytest.mark.compiler, pytest.mark.full]

BEFORE = """#include <cuda_pipeline.h>
#include <nanoeuler.cuh>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
"""
KERNEL = """extern "C" __global__ void k(float* f, double* d, int* i, unsigned* u, long long* l) {
  int t = threadIdx.x;
  BODY
}
"""


def arguments():
    """Each array holds 64 numbers, and lane t works on the t-th: floats t / 8, doubles t + 1, others t - 3."""
    t = np.arange(64)
    numbers = (t / 8, t + 1.0, t - 3, (t - 3) % 2**32, (t - 3) * 2**33)
    types = (np.float32, np.float64, np.int32, np.uint32, np.int64)
    return tuple(a.astype(dtype) for a, dtype in zip(numbers, types))


f, d, i, u, l = (a[:32] for a in arguments())
lanes = np.arange(32)


def bits(number, width):
    """The digits of a number in base 2, of which it may be negative."""
    return format(int(number) % 2**width, f"0{width}b")


def signed_bytes(numbers):
    return numbers.astype("<i4").view(np.int8).reshape(-1, 4).astype(np.int64)


# What a thread does; the array that it changes, and what that holds afterwards in its first 32 places.
CASES = {
    "atomicInc": ("atomicInc(&u[0], 40u);", "u", 0, 31),  # -3 is above 40: 0 comes next, and 31 more steps
    "atomicDec wraps": ("atomicDec(&u[13], 20u);", "u", 13, 20),  # 10 steps to 0, then round again
    "atomicMin of long long": ("atomicMin(&l[40], -5ll);", "l", 40, -5),
    "atomicMax of long long": ("atomicMax(&l[0], 5ll);", "l", 0, 5),
    "__match_any_sync": ("u[t] = __match_any_sync(0xffffffffu, t % 3);", "u",
                         [sum(1 << k for k in range(t % 3, 32, 3)) for t in range(32)]),
    "__match_any_sync of half a warp": ("if (t < 16) u[t] = __match_any_sync(0xffffu, l[t / 8]);", "u",
                                        np.where(lanes < 8, 0xFF, np.where(lanes < 16, 0xFF00, u))),
    "loads": ("d[t] = __ldg(&d[t]) + __ldca(&i[t]) + __ldcs(&l[t]) + __ldcv(&u[t]) + __ldlu(&f[t]);", "d", d + i + l + u + f),
    "__ldcg": ("float4 v = __ldcg((const float4*)f + t / 2); d[t] = v.y;", "d", (lanes // 2 * 4 + 1) / 8),
    "stores": ("__stcs(&i[t], t); __stwt(&u[t], 7u); __stwb(&f[t], 2.0f); f[t] += i[t] + 100 * u[t];", "f", lanes + 702),
    "__stcg": ("__stcg((double2*)d + t, make_double2(3, 3));", "d", 3),
    "__brev": ("u[t] = __brev(u[t]);", "u", [int(bits(n, 32)[::-1], 2) for n in u]),
    "__popcll": ("i[t] = __popcll(l[t]);", "i", [bits(n, 64).count("1") for n in l]),
    "__clzll": ("i[t] = __clzll(l[t]);", "i", [len(bits(n, 64)) - len(bits(n, 64).lstrip("0")) for n in l]),
    "__ffsll": ("i[t] = __ffsll(l[t]);", "i", [(bits(n, 64)[::-1] + "1").find("1") + 1 if n else 0 for n in l]),
    "__mulhi": ("i[t] = __mulhi(i[t], 1 << 30);", "i", [int(n) * 2**30 >> 32 for n in i]),
    "__byte_perm": ("u[t] = __byte_perm(u[t], t + 32, 0x0416);", "u",
                    [int.from_bytes(bytes(int(n).to_bytes(8, "little")[k] for k in (6, 1, 4, 0)), "little") for n in
                     np.uint64(lanes + 32) << np.uint64(32) | u.astype(np.uint64)]),
    "__dp4a": ("i[t] = __dp4a(i[t] * 0x01010203, 0x7f80ff01, 5);", "i",
               (signed_bytes(i * 0x01010203) * signed_bytes(np.array([0x7F80FF01], np.uint32))).sum(1) + 5),
    "__dp4a unsigned": ("u[t] = __dp4a((unsigned)t, 0xfffffffeu, 5u);", "u", lanes * 254 + 5),
    "__nanosleep": ("__nanosleep(100); f[t] = 2;", "f", 2),
    "clock": ("long long start = clock(), more = clock64(); f[t] = more >= start;", "f", 1),
    "rsqrt": ("d[t] = rsqrt(d[t]) + 2 * rsqrt((float)d[t]);", "d", 3 * d**-0.5),
    "sinpif, cospif": ("f[t] = sinpif(f[t]) + 2 * cospif(f[t]);", "f",
                       np.sin(np.pi * f.astype(float)) + 2 * np.cos(np.pi * f.astype(float))),
    "sincospif": ("float s, c; sincospif(f[t], &s, &c); f[t] = s - 2 * c;", "f",
                  np.sin(np.pi * f.astype(float)) - 2 * np.cos(np.pi * f.astype(float))),
    "sincosf": ("float s, c; sincosf(f[t], &s, &c); __sincosf(c, &c, &f[t]); f[t] += s - 2 * c;", "f",
                np.sin(f) - 2 * np.sin(np.cos(f)) + np.cos(np.cos(f))),
    "__tanf, __exp10f, __log10f": ("f[t] = __tanf(f[t]) + __exp10f(f[t]) + __log10f(1 + f[t]);", "f",
                                   np.tan(f) + 10**f + np.log10(1 + f)),
    "divisions": ("f[t] = __fdiv_rn(f[t], 3.0f) - fdividef(f[t], 7.0f) + __fsub_rn(1.0f, f[t]);", "f",
                  f / 3 - f / 7 + (1 - f)),
    "to int": ("i[t] = __float2int_rz(-f[t]) + 100 * __float2int_rd(f[t]) + 10000 * __float2int_ru(f[t]);", "i",
               np.trunc(-f) + 100 * np.floor(f) + 10000 * np.ceil(f)),
    "to unsigned": ("u[t] = __float2uint_rn(f[t]);", "u", np.rint(f)),
    "from int": ("f[t] = __int2float_rn(i[t]) + __uint2float_rn(t);", "f", i + lanes),
    "min and max of both kinds": ("i[t] = min(t, 7u) + 100 * max(9u, t);", "i",
                                  np.minimum(lanes, 7) + 100 * np.maximum(lanes, 9)),
    "small vectors": ("uchar3 v = make_uchar3(1, 2, t); float1 w = make_float1(3); f[t] = v.z + w.x;", "f", lanes + 3),
    "__umul24 and __mul24": ("i[t] = __umul24(u[t], 3u) + __mul24(i[t], 5);", "i", (u.astype(np.int64) % 2**24 * 3 + i * 5)),
    "__funnelshift_l": ("u[t] = __funnelshift_l(0x80000000u, t, 1);", "u", 2 * lanes + 1),
    "__funnelshift_rc": ("u[t] = __funnelshift_rc(1u, t, 40);", "u", lanes),
    "__brevll": ("l[t] = __brevll(1ull << (63 - t));", "l", 2.0 ** lanes),
    "bytes of a double": ("d[t] = __longlong_as_double(__double_as_longlong(d[t]) + (1ll << 52));", "d", 2 * d),
    "halves of a double": ("d[t] = __hiloint2double(__double2hiint(d[t]), __double2loint(d[t]));", "d", d),
    "rounded each for itself": ("f[t] = __fadd_rn(__fmul_rn(1.0f + 1.0f / 4096, 1.0f + 1.0f / 4096), -1.0f) * 4096;", "f",
                                (np.float32(1 + 2.0**-12) * np.float32(1 + 2.0**-12) - np.float32(1)) * 4096),
    "__dadd_rn and its kin": ("d[t] = __dadd_rn(d[t], 1) * __ddiv_rn(__dmul_rn(d[t], 2), 4) + __fma_rn(d[t], 2, 1);", "d",
                              (d + 1) * d / 2 + 2 * d + 1),
    "too large for an int": ("i[t] = __float2int_rn(d[t] * 1e9f);", "i", np.minimum(d * 1e9, 2**31 - 1)),
    "__double2float_rz": ("f[t] = __double2float_rz(1.0 + 0.75 / 8388608);", "f", 1),
    "norm3df": ("f[t] = norm3df(2, 3, 6) + norm4df(1, 1, 1, 1) + rhypotf(3, 4) + norm3d(2.0, 3.0, 6.0);", "f", 16.2),
    "normcdf": ("f[t] = normcdff(0) + (float)normcdf(-10.0);", "f", 0.5),
    "frexp, modf": ("int e; float w; f[t] = frexpf(12.0f, &e) + modff(2.25f, &w); f[t] += e + w;", "f", 0.75 + 0.25 + 6),
    "min and max of a nan": ("f[t] = fminf(nanf(\"\"), 3.0f) + max(nanf(\"\"), 4.0f);", "f", 7),
    "umin, llmax": ("l[t] = umin(u[t], 5u) + llmax(l[t], 0ll);", "l", np.minimum(u, 5) + np.maximum(l, 0)),
    "memcpy, memset": ("memset(&f[t], 0, 4); memcpy(&d[t], &l[t], 8); memcpy(&l[t], &d[t], 8); i[t] = f[t];", "i", 0),
    "atomicCAS of unsigned short": (
        "unsigned short* s = (unsigned short*)u; if (t == 0) u[0] = 0; __syncwarp(); unsigned short a = 0, b; "
        "do { b = a; a = atomicCAS(s + 1, b, (unsigned short)(b + 1)); } while (a != b);", "u", 0, 32 << 16),
    "atomicAdd_block": ("if (t == 0) i[0] = 0; __syncwarp(); atomicAdd_block(&i[0], t); atomicMax_system(&i[40], 99);", "i", 0,
                        496),
    "atomicAdd of half2": ("if (t == 0) f[0] = 0; __syncwarp(); atomicAdd((__half2*)f, __floats2half2_rn(0.5f, 1.0f));",
                           "f", 0, np.array([16, 32], np.float16).view(np.float32)[0]),
    "__builtin_assume": ("__builtin_assume(t < 32); f[t] = 2;", "f", 2),
    "__pipeline_memcpy_async": (
        "__shared__ __align__(16) float s[128]; __pipeline_memcpy_async(&s[4 * t], f + t / 8 * 4, 16, 8); __pipeline_commit(); "
        "__pipeline_wait_prior(0); d[t] = s[4 * t + 1] + 10 * s[4 * t + 2];", "d", (lanes // 8 * 4 + 1) / 8),
    "copy_async_cg": (
        "__shared__ __align__(16) float s[128]; copy_async_cg<16>(&s[4 * t], f + t / 8 * 4, t < 16 ? 16 : 0); "
        "copy_async_commit(); copy_async_wait<0>(); d[t] = s[4 * t + 1];", "d",
        np.where(lanes < 16, (lanes // 8 * 4 + 1) / 8, 0)),
    "prefetch_to_L2": ("prefetch_to_L2(f + t); f[t] = 3;", "f", 3),
    "atomicAdd of __half": ("if (t == 0) { f[0] = 0; } __syncwarp(); "
                            "atomicAdd((__half*)f + t % 2, __float2half(0.5f));",
                            "f", 0, np.array([8, 8], np.float16).view(np.float32)[0]),
    "atomicAdd of __nv_bfloat16": ("if (t == 0) { f[0] = 0; } __syncwarp(); "
                                   "atomicAdd((__nv_bfloat16*)f + 1, __float2bfloat16(0.5f));", "f", 0, 16),
}  # fmt: skip


@pytest.fixture(scope="module", params=[True, False], ids=["checked", "fast"])
def kernels(request):
    """All cases in one text: k0, k1, ..."""
    bodies = enumerate(body for body, *_ in CASES.values())
    text = "".join(KERNEL.replace(" k(", f" k{i}(").replace("BODY", body) for i, body in bodies)
    return cuda.module(BEFORE + text, where="cpu", checked=request.param)


@pytest.mark.parametrize("name", CASES)
def test_function(name, kernels):
    _, array, *place, wanted = CASES[name]
    args = arguments()
    kernels[f"k{list(CASES).index(name)}"](1, 32, args)
    got = args["fdiul".index(array)]
    got = got[place[0]] if place else got[:32]
    np.testing.assert_allclose(got.astype(float), np.asarray(wanted, float), rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(nvrtc() is None, reason="the nvidia-cuda-nvrtc wheel is not installed: make oracle")
def test_the_compiler_of_the_gpu_takes_them_all():
    before = BEFORE if in_wheels("**/cuda_bf16.h") else "#include <nanoeuler.cuh>\n"
    bodies = [
        body for name, (body, *_) in CASES.items() if before == BEFORE or not re.search("__half|__nv_b|__pip", body)
    ]
    text = before + KERNEL.replace("BODY", "\n  ".join(f"{{ {body} }}" for body in bodies))
    cubin(text, "sm_80")
    cubin(text, "sm_90")


@pytest.mark.skipif(nvrtc() is None, reason="the nvidia-cuda-nvrtc wheel is not installed: make oracle")
def test_atomics_of_float2_take_9_0():
    body = "atomicAdd((float2*)f, make_float2(1, 2)); atomicAdd((float4*)f + 4, make_float4(1, 2, 3, 4));"
    text = KERNEL.replace("BODY", body)
    args = tuple(np.zeros_like(a) for a in arguments())
    cuda.module(text, where="cpu")["k"](1, 32, args)
    assert args[0][:4].tolist() == [32, 64, 0, 0] and args[0][16:20].tolist() == [32, 64, 96, 128]
    cubin(text, "sm_90")
    with pytest.raises(AssertionError) as log:
        cubin(text, "sm_80")
    told = first_error(prepare("kernel.cu", text, cuda.KERNELS, "gpu"), str(log.value))
    assert "atomicAdd" in str(told)


WATCHED = (
    "__ldcg(&f[t + 64])", "__stwt(&f[t + 64], 1.0f)", "sincospif(1.0f, &f[t], &f[t + 64])", "atomicInc(&u[t + 64], 3u)",
    "atomicAdd((__half*)f + t + 128, __half(1.0f))",
)  # fmt: skip


def test_what_touches_memory_is_watched():
    text = "".join(KERNEL.replace(" k(", f" k{i}(").replace("BODY", f"{call};") for i, call in enumerate(WATCHED))
    module = cuda.module(BEFORE + text, where="cpu")
    for i, call in enumerate(WATCHED):
        with pytest.raises(cuda.KernelError) as caught:
            module[f"k{i}"](1, 32, arguments())
        assert caught.value.finding.kind == "out of bounds" and f": {call};" in str(caught.value)


def test_what_the_gpu_lacks_is_refused():
    for name in ("exp2f", "sqrtf"):
        with pytest.raises(cuda.KernelError, match=f"'__{name}' is not declared; did you mean"):
            cuda.module(KERNEL.replace("BODY", f"f[t] = __{name}(f[t]);"), where="cpu")
