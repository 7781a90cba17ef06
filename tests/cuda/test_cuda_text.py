# ruff: noqa: E501 -- a kernel's text stays on its line
"""Reading a kernel's text: what CUDA takes is taken, what a kernel lacks is refused in a sentence; NVRTC is the oracle."""

import re

import numpy as np
import pytest
from test_learner import check, complaint
from test_nvrtc import cubin, nvrtc

from cudacheck import compiler
from cudacheck.errors import CudaCheckError
from cudacheck.source import prepare, signatures
from cudacheck.source.variables import announce_variables
from nanoeuler_lib import cuda
from nanoeuler_lib.errors import NanoEulerError

pytestmark = pytest.mark.compiler
needs_nvrtc = pytest.mark.skipif(nvrtc() is None, reason="the nvidia-cuda-nvrtc wheel is not installed: make oracle")

K = 'extern "C" __global__ void k(float* x, int n) {\n  BODY\n}\n'
HALF = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"


def kernel(body, before=""):
    return before + K.replace("BODY", body)


def nvrtc_takes(text, architecture="sm_90", templates=()):
    try:
        cubin(text, architecture, templates)
    except AssertionError:
        return False
    return True


# ----------------------------------------------------------------------------------------------------------------
# what is right compiles, here and there: text, names of the kernels

RIGHT = {
    "the guard on one line": (kernel("int i = threadIdx.x;\n  if (i >= n) return; x[i] = 1;"), ["k"]),
    "a macro with arguments in the bounds": (
        "#define MAX(a, b) ((a) > (b) ? (a) : (b))\n"
        'extern "C" __global__ void __launch_bounds__(MAX(64, 32), 2) k(float* x) { x[0] = 1; }', ["k"]),
    "void first": ('extern "C" void __global__ k(float* x) { x[0] = 1; }', ["k"]),
    "a template with commas, shared": (
        kernel("__shared__ Pair<float, int> s[32], t;\n  s[threadIdx.x].a = n; t.b = 1;\n  x[threadIdx.x] = s[threadIdx.x].a;",
               "template <class A, class B> struct Pair { A a; B b; };\n"), ["k"]),
    "extern volatile": (kernel("extern volatile __shared__ float s[];\n  s[threadIdx.x] = n;"), ["k"]),
    "extern of rows": (kernel("extern __shared__ float s[][33];\n  s[threadIdx.x][1] = n;"), ["k"]),
    "typedef": (HALF + "typedef __nv_bfloat16 bf16;\ntypedef const float* in;\ntypedef unsigned int u32;\n"
                'extern "C" __global__ void k(const bf16* a, in b, u32 n, float* x) { x[0] = b[0] + n; }', ["k"]),
    "using": (HALF + "using T = __half;\nusing V = T;\n"
              'extern "C" __global__ void k(const V* a, float* x) { x[0] = __half2float(a[0]); }', ["k"]),
    "a namespace": ("namespace a { namespace b { __global__ void k(float* x) { x[0] = 1; } } }", ["a::b::k"]),
    "extern C with braces": ('extern "C" { __global__ void k(float* x) { x[0] = 1; } __global__ void l(float* x) {} }',
                             ["k", "l"]),
    "rows as a parameter": ('extern "C" __global__ void k(float x[32][32], float (*y)[8], float z[]) { x[1][2] = y[3][4]; }',
                            ["k"]),
    "a default": ('extern "C" __global__ void k(float* x, int n = 3) { x[0] = n; }', ["k"]),
    "one branch for each side": (
        '#ifdef __CUDACC__\n#include <cuda_fp8.h>\n__device__ int lane() { int l; asm("mov.u32 %0, %%laneid;" : "=r"(l)); '
        'return l; }\n#else\n__device__ int lane() { return threadIdx.x % 32; }\n#endif\n'
        + kernel("x[threadIdx.x] = lane();"), ["k"]),
    "#if 0": ("#if 0\nint main() { float* p = new float[3]; }\n__global__ void old(float** x) {}\n#endif\n"
              + kernel("x[0] = 1;"), ["k"]),
    "words in comments and strings": (
        kernel('printf("new asm malloc(3) exit(1)");  // __activemask() delete[] x; asm("")\n  x[0] = \'"\';'), ["k"]),
    "names like those that are refused": (
        kernel("int new_value = 1, exit = 2, free = 3, news = 4;\n  s.free(n); x[0] = new_value + exit + free + news;",
               "struct S { __device__ void free(int n) {} };\n__device__ S s;\n"), ["k"]),
    "a function of a macro": (
        kernel("x[0] = f(1) + g(2);", "#define DEVICE __device__ inline\n#define MAKE(NAME) DEVICE float NAME(float a) { return a; }\n"
               "DEVICE float f(float a) { return a; }\nMAKE(g)\n"), ["k"]),
    "constants, enums and tables": (
        kernel("x[0] = a[1] + b + RED + c[1];",
               "constexpr int a[2] = {1, 2};\nstatic const int b = 3;\nenum Colour { RED, GREEN };\n"
               "__device__ int c[2] = {1, 2};\n"), ["k"]),
    "a lambda in the kernel": (kernel("auto f = [](float a) { return 2 * a; };\n  x[0] = f(n);"), ["k"]),
    "own names of the C library": (
        kernel("int32_t i = n; uint8_t b = 1; x[0] = i + b - INFINITY;",
               "typedef int int32_t;\ntypedef unsigned char uint8_t;\n#define INFINITY __int_as_float(0x7f800000)\n"), ["k"]),
    "integers in every spelling": (
        'extern "C" __global__ void k(unsigned long long int* a, long long signed b, long unsigned int long c, short int* d,\n'
        "  int unsigned e, signed f, char signed* g, int short unsigned h, struct S s) { a[0] = b + c + d[0] + e + f + g[0] + h + s.a; }"
        .replace("extern", "struct S { long long int a; };\nextern", 1), ["k"]),
    "an overload of an atomic": (
        kernel("atomicMax(x, 3.0f);",
               "__device__ float atomicMax(float* a, float v) { return __int_as_float(atomicMax((int*)a, __float_as_int(v))); }\n"),
        ["k"]),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right(name):
    text, names = RIGHT[name]
    for checked in (True, False) if "shared" in name else (True,):  # both take what the reader leaves of a text
        assert list(cuda.module(text, where="cpu", checked=checked)) == names


@pytest.mark.full
@needs_nvrtc
@pytest.mark.parametrize("name", RIGHT)
def test_nvrtc_takes_what_is_right(name):
    text, names = RIGHT[name]
    cubin(text, "sm_90", [n for n in names if 'extern "C"' not in text])


@pytest.mark.full
def test_bounds_are_sums_and_products_of_constants():
    for bound, wanted in {"64": 64, "2 * W": 128, "(W + W) / 4, 2": 32, "T": 96, "f(3)": 1024}.items():
        text = f"#define W 64\nconstexpr int T = 96;\n__global__ void __launch_bounds__({bound}) k(float* x) {{}}"
        assert signatures(text)[0].max_threads == wanted, bound


# ----------------------------------------------------------------------------------------------------------------
# what is refused: text, line, words, on which sides

BOTH, CPU = ("cpu", "gpu"), ("cpu",)
REFUSED = {
    "malloc": (kernel("float* p = (float*)malloc(16); x[0] = p[0];"), 2, "'malloc' is not available in a kernel: a kernel cannot allocate memory", BOTH),
    "new": (kernel("float* p = new float[4]; x[0] = p[0];"), 2, "'new' is not available in a kernel", BOTH),
    "exit": (kernel("if (n) exit(3);"), 2, "a kernel cannot end the process", BOTH),
    "__activemask": (kernel("x[0] = __popc(__activemask());"), 2, "use the mask that your branch knows", BOTH),
    "a function of the host": (kernel("x[0] = helper(n);", "float helper(float a) { return a; }\n"), 1,
                               "`helper` is a function of the host, and a kernel cannot call it", BOTH),
    "a method": (kernel("A a; x[0] = a.f(n);", "struct A {\n  float f(float a) { return a; }\n};\n"), 2, "`f` is a", BOTH),
    "an operator": (kernel("x[0] = (make_float2(1, 2) + make_float2(3, 4)).x;",
                           "float2 operator+(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }\n"), 1,
                    "`operator+` is a", BOTH),
    "a lambda outside": (kernel("x[0] = f(n);", "constexpr auto f = [](float a) { return a; };\n"), 1,
                         "write it inside the kernel", BOTH),
    "an array as long as the launch says": (kernel("float t[n];\n  t[0] = 1; x[0] = t[0];"), 2, "", BOTH),
    "an array of pointers": ('extern "C" __global__ void k(float** x) { x[0][0] = 1; }', 1,
                             "`x` is a float**, an array of pointers", BOTH),
    "a reference": ('extern "C" __global__ void k(float* x, const int& n) { x[0] = n; }', 1, "write int n for a number", BOTH),
    "void*": ('extern "C" __global__ void k(void* x) {}', 1, "write the type of its elements, as in float* x", BOTH),
    "long": ('extern "C" __global__ void k(float* x, unsigned long n) {}', 1, "write unsigned long long or int", BOTH),
    "an array of structs": ('struct P { int n; };\nextern "C" __global__ void k(P* p) {}', 2, "pass one array for each member", BOTH),
    "a struct with a pointer": ('struct P { int n; float* x; };\nextern "C" __global__ void k(P p) {}', 2,
                                "here it has a pointer: pass an array as a parameter of its own", BOTH),
    "shared outside of a kernel": ("__shared__ float s[3];\n" + kernel("x[0] = s[0];"), 1, "declare __shared__", BOTH),
    "shared with a value": (kernel("__shared__ float s = 0;\n  x[0] = s;"), 2, "__shared__ memory cannot have an initial value", BOTH),
    "a shuffle of two numbers": (kernel("x[0] = __shfl_sync(0xffffffff, make_float2(1, 2), 0).x;"), 2,
                                 "a shuffle moves one number", BOTH),
    "inline PTX": (kernel('asm volatile("bar.sync 0;");'), 2, "'asm' is not available on the CPU: inline PTX is for the GPU", CPU),
    "clusters": ('extern "C" __global__ void __cluster_dims__(2, 1, 1) k(float* x) {}', 1, "clusters of blocks", CPU),
    "cooperative groups": ("#include <cooperative_groups.h>\n" + kernel(""), 1,
                           "cannot include <cooperative_groups.h>", CPU),
    "a header of C++": ("#include <cmath>\n" + kernel(""), 1, "available: adamw.cuh, ", BOTH),
    "bfloat16 without its header": (kernel("__nv_bfloat16 h = x[0];"), 2, "write #include <cuda_bf16.h> at the top", BOTH),
    "half plus float": (kernel("__half h = x[0]; x[1] = h + 1.0f;", HALF), 4, "operator", BOTH),
    "wgmma": ("#include <hopper.cuh>\n" + kernel("float d[32] = {}; wgmma<64, __nv_bfloat16>(d, 1, 2);"), 3,
              "after #else write ldmatrix and mma<T>", CPU),
    "a function of CUDA's that is missing": (kernel("x[0] = __fadd_rz(x[0], 1.0f);"), 2,
                                             "'__fadd_rz' exists only on the GPU: put it under #ifdef", CPU),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("checked", [True, False], ids=["checked", "fast"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name, checked):
    text, line, words, _ = REFUSED[name]
    check(complaint(text, checked=checked), text, line, words)


@pytest.mark.full
@needs_nvrtc
@pytest.mark.parametrize("name", REFUSED)
def test_the_other_side_agrees(name):
    """What is refused for the GPU, too, is refused by the text or by NVRTC; what is refused for the CPU alone is not."""
    text, _, _, sides = REFUSED[name]
    if "gpu" in sides:
        try:
            signatures(text, where="gpu")
            prepare("kernel.cu", text, cuda.KERNELS, "gpu")
        except CudaCheckError:
            return
        assert not nvrtc_takes(text)
    else:
        assert [s.name for s in signatures(text, where="gpu")] == ["k"]
        prepare("kernel.cu", text, cuda.KERNELS, "gpu")
        if "#include <" not in text or "hopper" in text:  # some headers are not in the wheel
            assert nvrtc_takes(text, "sm_90a") or "cooperative_groups" in text


DOOR = [
    ({"defines": {"A B": 1}}, {}, "a macro's name must be letters, digits and _, such as TILE, got 'A B'"),
    ({"defines": ["A"]}, {}, "{'TILE': 32}, got list"),
    ({"defines": {"A": "1\n#error"}}, {}, "A must be a number or a str of one line, got str"),
    ({"defines": {"k": 3}}, {}, "k is the name of a kernel"), ({"instantiate": "k<4>"}, {}, "got 'k<4>'"),
    ({}, {"seconds": 0}, "seconds must be a number greater than 0, got int 0"), ({}, {"seconds": "1"}, "got str '1'"),
    ({}, {"shared_limit": 1.5}, "shared_limit must be an integer number of bytes, got float 1.5"),
]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("options, launch, words", DOOR)
def test_what_is_no_option(options, launch, words):
    with pytest.raises(NanoEulerError, match=re.escape(words)):
        k = cuda.module(kernel("x[0] = n;"), where="cpu", **options)["k"]
        k(1, 1, (np.zeros(1, np.float32), 3), **launch)


@pytest.mark.full
def test_a_macro_leaves_the_runtime_alone():
    x, values = np.zeros(1, np.float32), {"A": True, "T": 7, "line": "(2 + 3)", "N": np.int64(4)}
    cuda.module(kernel("x[0] = A + 10 * T + 100 * line + 1000 * N;"), where="cpu", defines=values)["k"](1, 1, (x, 3))
    assert x[0] == 4571


def test_half_a_character():
    assert str(complaint("// one\n// \udc80\n" + kernel(""))).startswith(
        "line 2: the text must not contain surrogates, got U+DC80"
    )
    assert "a kernel's text must be a str, or the Path of a .cu file, got int 3" in str(complaint(3))


# ----------------------------------------------------------------------------------------------------------------
# values: structs and vectors

STRUCT = r"""
typedef struct { short a; struct { int unused; } *never; } NotPassed;
struct Stride { long long row; int column; };
struct Params {
  char c; double scale; int n, stride[3]; bool flag; float4 v; unsigned short s;
  Stride where;
  float3 w;
  static const int fixed = 3;
  __device__ float twice(float x) const { return 2 * x; }
};
extern "C" __global__ void k(Params p, float2 pair, const float* x, double* y) {
  double all[] = {(double)p.c, p.scale, (double)p.n, (double)p.stride[0], (double)p.stride[2], (double)p.flag, p.v.x,
                  p.v.w, (double)p.s, (double)p.where.row, (double)p.where.column, p.w.x, p.w.z, pair.x, pair.y,
                  p.twice(x[0]), (double)sizeof(Params)};
  for (int i = 0; i < 17; i++) y[i] = all[i];
}
"""
VALUES = {
    "c": -3, "scale": 0.1, "n": 7, "stride": [4, 5, 6], "flag": True, "v": (1, 2, 3, 4.5), "s": 65535,
    "where.row": -(2**40), "where.column": 9, "w": np.array([10, 11, 12], np.float32),
}  # fmt: skip
WANTED = [-3, 0.1, 7, 4, 6, 1, 1, 4.5, 65535, -(2**40), 9, 10, 12, 0.5, 0.25, 6]


@pytest.mark.full
@pytest.mark.parametrize("checked", [True, False], ids=["checked", "fast"])
def test_a_struct_by_value(checked):
    k = cuda.module(STRUCT, where="cpu", checked=checked)["k"]
    y = np.zeros(17)
    k(1, 1, (VALUES, (0.5, 0.25), np.full(1, 3, np.float32), y))
    np.testing.assert_array_equal(y[:16], WANTED)
    assert y[16] == k.signature.parameters[0].bytes


@pytest.mark.full
def test_a_structured_scalar():
    text = 'struct P { int n; float f[2]; };\nextern "C" __global__ void k(P p, float* x) { x[0] = p.n + p.f[1]; }'
    x, p = np.zeros(1, np.float32), np.zeros((), [("f", "f4", 2), ("n", "i4")])  # another order
    p["n"], p["f"] = 3, (1, 0.5)
    cuda.module(text, where="cpu")["k"](1, 1, (p, x))
    assert x[0] == 3.5


PAIR = 0.5, 0.25


@pytest.mark.full
@pytest.mark.parametrize(
    "values, pair, words",
    [
        (VALUES | {"n": 2**31}, PAIR, "whose `n` is an int, which holds"),
        (VALUES | {"n": 1.0}, PAIR, "pass int(1.0)"),
        (VALUES | {"stride": [1, 2]}, PAIR, "`stride` is an int, which must be 3 numbers, got list of shape (2,)"),
        (VALUES | {"more": 1}, PAIR, "pass a dict or a structured scalar with c, scale, n"),
        (3, PAIR, "got int 3"),
        *((VALUES, pair, "`pair` is a float2") for pair in ((1, 2, 3), [1, "a"], 4.0)),
    ],
)
def test_a_value_that_does_not_fit(values, pair, words):
    k = cuda.module(STRUCT, where="cpu")["k"]
    with pytest.raises(NanoEulerError, match=re.escape(words)):
        k(1, 1, (values, pair, np.zeros(1, np.float32), np.zeros(17)))


# ----------------------------------------------------------------------------------------------------------------
# the cache, printf


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiler.cache_folder.cache_clear()
    yield tmp_path / "nanoeuler"
    compiler.cache_folder.cache_clear()


def runs(text=None):
    x = np.zeros(1, np.float32)
    cuda.module(text or kernel("x[0] = n;"), where="cpu")["k"](1, 1, (x, 5))
    return x[0] == 5


@pytest.mark.full
def test_a_broken_file_in_the_cache_is_made_again(cache):
    assert runs()
    ways = {"head": b"\x7fELF", "garbage": b"garbage" * 1000, "empty": b"", "zeros": None}
    for kind, broken in [*(("kernel", way) for way in ways.values()), ("runtime", None)]:
        (file,) = cache.glob(f"{kind}-*")
        whole = file.read_bytes()
        damaged = whole[:4096] + bytes(len(whole) - 4096) if broken is None else broken
        file.unlink()  # the process has it open
        file.write_bytes(damaged)
        if kind == "runtime":
            assert runs(kernel("x[0] = n + 0;"))
        assert runs()
        assert file.read_bytes() != damaged


@pytest.mark.full
def test_a_relative_cache_folder_is_ignored_and_one_that_cannot_be_written_done_without(cache, tmp_path, monkeypatch):
    cache.write_text("a file where the folder should be")
    assert runs() and cache.is_file()
    compiler.cache_folder.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert compiler.cache_folder() == tmp_path / ".cache" / "nanoeuler" and not (tmp_path / "somewhere").exists()


@pytest.mark.full
def test_a_full_disk_is_called_so(cache, monkeypatch):
    compiler.cache_folder()
    script = cache / "c++"
    script.write_text(
        "#!/bin/sh\necho 'kernel.cu:1:1: fatal error: error writing to k.o: No space left on device'\nexit 1\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("NANOEULER_CXX", str(script))
    compiler.find_compiler.cache_clear()
    try:
        with pytest.raises(NanoEulerError, match=f"^disk full: cannot write to {re.escape(str(cache))}"):
            runs()
    finally:
        compiler.find_compiler.cache_clear()
    assert not list(cache.glob("tmp*")) and not list(cache.glob("kernel-*"))


@pytest.mark.full
def test_printf_says_where_it_was_cut(capsys):
    k = cuda.module('extern "C" __global__ void k(int n) { while (n--) printf("%7d", n); }', where="cpu")["k"]
    k(1, 1, (9362,))  # 65,534 bytes
    assert "printf" not in capsys.readouterr().out
    k(1, 1, (9363,))
    assert capsys.readouterr().out.endswith("[printf: a launch prints at most 64 KB of text; the rest is cut off]\n")
    k(1, 1, (3,))
    assert capsys.readouterr().out == "      2      1      0"


def test_a_declaration_elsewhere_is_not_announced_as_a_variable():
    text = announce_variables("extern __device__ int a;\n__device__ int b;\n")
    assert text.count("DEVICE_VARIABLE(") == 1 and "DEVICE_VARIABLE(b" in text
