# ruff: noqa: E501  one case a line
"""Kernels, launches and texts that try to end the Python process: `python hostile_kernels.py NAME ...` runs them here.

For each case two lines of JSON go out: {"started": name}, then {"name", "outcome", "text"}: "result", "error" (a
NanoEulerError) or "other" (another exception), and after each a sound kernel must still give the right numbers.
"""

import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.errors import NanoEulerError


class Case(NamedTuple):
    """text: a whole text or, if `body`, the inside of a kernel k(float* y, int* x, int n); wanted: error or any."""

    text: str
    body: bool = True
    wanted: str = "any"
    grid: object = 1
    block: object = 32
    shared: object = 0
    args: object = None  # default: y zeros(64), x arange(64), n = 64
    seconds: object = 1.0
    options: Mapping = MappingProxyType({})  # of cuda.module


CASES: dict[str, Case] = {}


def add(name: str, text: str, **more) -> None:
    assert name not in CASES, name
    CASES[name] = Case(text, **more)


def add_all(texts: dict[str, str], **more) -> None:
    for name, text in texts.items():
        add(name, text, **more)


def arrays() -> tuple:
    return np.zeros(64, np.float32), np.arange(64, dtype=np.int32), 64


# ---- wild pointers: every address in every manner

ADDRESSES = {
    "null": "(float*)0", "page_zero": "(float*)16", "wild": "(float*)0x123456789a0ull", "noncanonical": "(float*)0xdead0000beef0000ull",
    "last": "(float*)~15ull", "before": "y - 1000000", "far": "y + (1ll << 40)", "code": "(float*)(void*)&helper",
}  # fmt: skip
MANNERS = {
    "read": "x[0] = (int)*p;", "write": "*p = 1;", "atomic": "atomicAdd(p, 1.0f);",
    "wide": "float4 v = *(float4*)p; y[0] = v.x;", "memcpy": "memcpy(p, y, 64);", "memset": "memset(p, 0, 100);",
}  # fmt: skip
for where, address in ADDRESSES.items():
    for how, statement in MANNERS.items():
        add(f"pointer_{where}_{how}", f"float* p = {address}; {statement}", wanted="error")

# ---- stacks

STACKS = {
    "locals_40k": "volatile float a[10000]; a[n] = 1; y[0] = a[n];",
    "locals_1m": "volatile float a[250000]; for (int i = 0; i < 250000; i++) a[i] = i; y[0] = a[n];",
    "locals_1g": "volatile float a[250000000]; a[n] = 1; a[0] = 2; y[0] = a[n];",
    "recursion_endless": "y[0] = deep(n, 1);",
    "recursion_deep": "y[threadIdx.x] = deep(-200, n);",
    "recursion_mutual": "y[0] = even(n);",
    "variable_length": "float a[n]; a[0] = 1; y[0] = a[0];",
    "alloca": "float* a = (float*)__builtin_alloca(n * 100000); a[0] = 1; y[0] = a[0];",
    "stack_downwards": "volatile char c = 0; for (int i = 1; i < 10000000; i++) (&c)[-i] = 1;",
    "stack_upwards": "volatile char c = 0; for (int i = 1; i < 10000000; i++) (&c)[i] = 1;",
    "return_address": "void** frame = (void**)__builtin_frame_address(0); frame[1] = 0; frame[0] = 0;",
    "dangling_local": "int* p; { int inner = n; p = &inner; } x[0] = *p;",
}
add_all(STACKS)

# ---- arithmetic

UNDEFINED = {
    "divide_by_zero": "x[0] = n / x[0];",
    "modulo_zero": "x[0] = n % x[0];",
    "divide_least": "int m = -2147483647 - 1; m += x[0]; x[0] = m / (x[0] - 1);",
    "divide_long": "long long z = x[0]; x[1] = (int)(10ll / z);",
    "shift_negative": "x[0] = n << (x[0] - 1);",
    "shift_64": "unsigned long long v = 1; x[0] = (int)(v << n);",
    "add_overflow": "int v = 2147483647; x[0] = v + x[1];",
    "multiply_overflow": "int v = 65536 * 16; x[0] = v * (x[1] + 2047) * n;",
    "negate_least": "int m = -2147483647 - 1; m += x[0]; x[0] = -m;",
}
add_all(UNDEFINED, wanted="error")
ARITHMETIC = {
    "nan_to_int": "float v = 0.0f / y[0]; x[0] = (int)v;",
    "huge_to_int": "x[0] = (int)(1e30f * n);",
    "roots_and_logs": "y[0] = sqrtf(-1.0f - y[1]); y[1] = logf(y[2]); y[2] = 1.0f / y[3]; y[3] = powf(-2.0f, 0.5f);",
    "denormals": "float v = 1e-38f; for (int i = 0; i < 200; i++) v *= 0.5f; y[0] = v;",
    "bool_of_two": "bool b; char two = 2; memcpy(&b, &two, 1); if (b) y[0] = b ? 1 : 2;",
    "unreachable": "if (n == 64) __builtin_unreachable();\ny[0] = 1;",
    "builtin_trap": "__builtin_trap();",
    "int_of_odd_address": "int* p = (int*)((char*)x + 1); x[40] = *p;",
    "float4_of_odd_address": "float4* p = (float4*)(y + 1); *p = make_float4(1, 2, 3, 4);",
    "atomic_of_odd_address": "atomicAdd((int*)((char*)x + 2), 1);",
    "double_over_end": "double* d = (double*)(y + 63); *d = 1;",
    "self_modifying_array": "((float**)y)[0] = y; float* p = ((float**)y)[0]; p[n] = 1;",
}
add_all(ARITHMETIC)

# ---- time

ENDLESS = {
    "forever": "for (;;) ;",
    "forever_counting": "while (true) x[threadIdx.x]++;",
    "forever_barriers": "while (true) __syncthreads();",
    "forever_shuffles": "while (true) n = __shfl_xor_sync(~0u, n, 1);",
    "forever_sleep": "while (true) __nanosleep(1000000000);",
    "forever_atomics": "while (atomicAdd(x, 0) == 0) ;",
    "forever_volatile": "while (((volatile int*)x)[0] == 0) ;",
    "forever_plain_flag": "while (x[0] == 0) y[1] += 0;",
    "forever_printf": 'while (true) printf("again %d\\n", n);',
    "forever_goto": "again: goto again;",
    "forever_float": "for (float f = 0; f < 1e9f; f += 1) y[threadIdx.x] = f;",
    "forever_one_thread": "if (threadIdx.x == 31) {\n while (true) y[31] += 1;\n}\n__syncthreads();",
    "forever_registers": "unsigned v = n; do v = v * 3 + 1; while (v != 0); y[0] = v;",
}
add_all(ENDLESS, wanted="error", seconds=0.5)

# ---- barriers and warps

MISMATCHED = {
    "barrier_by_one": "if (threadIdx.x == 0) __syncthreads();",
    "barrier_in_else": "if (threadIdx.x & 1) __syncthreads(); else { __syncthreads(); }",
    "barrier_and_shuffle": "if (threadIdx.x & 1) __syncthreads(); else n = __shfl_sync(~0u, n, 0);",
    "syncwarp_empty": "__syncwarp(0);",
    "shuffle_empty_mask": "y[0] = __shfl_sync(0, n, 0);",
    "shuffle_mask_without_me": "y[threadIdx.x] = __shfl_sync(1u, n, 0);",
    "masks_differ": "y[threadIdx.x] = __ballot_sync(threadIdx.x < 16 ? ~0u : 0xffff0000u, 1);",
    "width_zero": "y[threadIdx.x] = __shfl_sync(~0u, n, 0, 0);",
    "width_33": "y[threadIdx.x] = __shfl_down_sync(~0u, n, 1, 33);",
    "width_negative": "y[threadIdx.x] = __shfl_xor_sync(~0u, n, 1, -8);",
    "named_sixteen": "named_barrier_sync(16, 32);",
    "named_negative": "named_barrier_sync(-5, 32);",
    "named_odd_count": "named_barrier_sync(1, 33);",
    "named_no_count": "named_barrier_sync(1, 0);",
    "named_too_many": "named_barrier_sync(1, 2048);",
    "named_one_lane": "if (threadIdx.x == 3) named_barrier_arrive(2, 32);",
}
add_all(MISMATCHED, wanted="error")
MEETINGS = {
    "vote_after_return": "if (threadIdx.x > 9) return;\ny[threadIdx.x] = __all_sync(~0u, 1);",
    "shuffle_lane_1000": "y[threadIdx.x] = __shfl_sync(~0u, n, 1000);",
    "shuffle_lane_negative": "y[threadIdx.x] = __shfl_sync(~0u, n, -7);",
    "shuffle_down_4e9": "y[threadIdx.x] = __shfl_down_sync(~0u, n, 4000000000u);",
    "named_zero": "named_barrier_sync(0, 32);",
    "reduce_one_lane": "y[threadIdx.x] = __reduce_add_sync(1u << threadIdx.x, x[threadIdx.x]);",
    "match_everything": "y[threadIdx.x] = __popc(__match_any_sync(~0u, y[threadIdx.x]));",
    "barriers_a_thousand": "for (int i = 0; i < 1000; i++) __syncthreads();",
}
add_all(MEETINGS)

# ---- printf

PRINTED = {
    "printf_null": 'printf("%s\\n", (char*)0);',
    "printf_int_as_text": 'printf("%s\\n", n);',
    "printf_wild_text": 'printf("%s\\n", (char*)0x123456789a0ull);',
    "printf_counts": 'int written; printf("abc%n\\n", &written); x[0] = written;',
    "printf_counts_wild": 'printf("abc%n\\n", (int*)8);',
    "printf_no_arguments": 'printf("%d %s %f %p\\n");',
    "printf_wide": 'printf("%1000000d\\n", n);',
    "printf_star": 'printf("%*d\\n", 2147483647, n);',
    "printf_precise": 'printf("%.100000f\\n", 1e300);',
    "printf_many": 'for (int i = 0; i < 3000; i++) printf("line %d of thread %d\\n", i, threadIdx.x);',
    "printf_bytes": 'printf("\\xff\\xfe\\x80 %c%c\\n", 200, 0);',
    "printf_null_format": "printf((const char*)0);",
    "printf_data_as_format": 'memcpy(x, "%s%s%s%n", 9); printf((const char*)x);',
    "printf_endless_text": 'for (int i = 0; i < 64; i++) x[i] = 0x61616161;\nprintf("%s\\n", (char*)x);',
}
add_all(PRINTED)

# ---- the library's functions

REFUSED = {
    "copy_async_null": "__shared__ float s[64]; copy_async<16>(s, nullptr); copy_async_commit(); copy_async_wait<0>();",
    "copy_async_to_global": "copy_async<4>(y, y + 32); copy_async_commit(); copy_async_wait<0>();",
    "copy_async_past_end": "__shared__ float s[64]; copy_async<16>(s, y + 62); copy_async_commit(); copy_async_wait<0>();",
    "copy_async_past_shared": "__shared__ float s[4]; copy_async<16>(s + 4096, y); copy_async_commit(); copy_async_wait<0>();",
    "ldmatrix_global": "unsigned r[4]; ldmatrix<4>(r, y); y[0] = r[0];",
    "ldmatrix_null": "unsigned r[4]; ldmatrix<4>(r, nullptr); y[0] = r[0];",
    "mma_one_lane": "unsigned a[4] = {}; float d[4] = {}; if (threadIdx.x == 0) mma<tf32>(d, a, a); y[0] = d[0];",
    "memcpy_negative": "memcpy(y, y + 32, (size_t)-4);",
    "memset_4g": "memset(y, 0, 1ull << 32);",
    "assert_false": "assert(n == 65);",
    "trap": "__trap();",
    "shared_past_end": "__shared__ int s[8]; s[threadIdx.x] = 1; __syncthreads(); x[0] = s[7];",
    "dynamic_without_any": "extern __shared__ float d[]; d[threadIdx.x] = 1;",
    "write_constant": "table[threadIdx.x] = 1;",
    "device_past_end": "atomicAdd(&global_counts[n], 1);",
    "malloc": "int* p = (int*)malloc(64); *p = 1;",
    "new": "int* p = new int[64]; *p = 1;",
    "exit": "exit(3);",
    "underscore_exit": "_exit(3);",
    "abort": "abort();",
    "activemask": "y[0] = __activemask();",
}
add_all(REFUSED, wanted="error")
FUNCTIONS = {
    "copy_async_to_local": "float s[4]; copy_async<16>(s, y); copy_async_commit(); copy_async_wait<0>(); y[32] = s[0];",
    "copy_async_never_waited": "__shared__ float s[64]; copy_async<4>(s + threadIdx.x, y + threadIdx.x);",
    "copy_async_wait_first": "copy_async_wait<0>(); copy_async_wait<7>(); copy_async_commit();",
    "ldmatrix_unaligned": "__shared__ float s[200]; unsigned r[4]; ldmatrix<4>(r, (char*)s + 2); y[0] = r[0];",
    "mma_null": "unsigned a[4] = {}; mma<tf32>(nullptr, a, a);",
    "memcpy_overlapping": "if (!threadIdx.x) memcpy(y + 1, y, 100);",
    "memcpy_nothing": "memcpy(nullptr, nullptr, 0);",
    "atomic_on_local": "int v = 0; atomicAdd(&v, n); x[threadIdx.x] = v;",
    "atomic_on_constant": "atomicAdd((int*)table, 1);",
    "bit_functions_at_zero": "x[threadIdx.x] = __clz(0) + __ffs(0) + __popc(0) + (int)__brev(0) + (int)__byte_perm(1, 2, ~0u);",
    "clock_and_sleep": "long long t = clock64(); __nanosleep(~0u >> 20); x[threadIdx.x] = clock64() >= t;",
    "longjmp": "void* buffer[5]; __builtin_longjmp(buffer, 1);",
    "static_local": "static int calls; atomicAdd(&calls, 1); x[threadIdx.x] = 0;",
    "function_pointer_null": "float (*f)(int) = nullptr; y[0] = f(n);",
    "function_pointer_data": "float (*f)(int) = (float (*)(int))(void*)x; y[0] = f(n);",
}
add_all(FUNCTIONS)

# ---- launches

ONE = "y[threadIdx.x % 32] = x[0] + n;"
Y, X, N = arrays()
for name, more in {
    "grid_zero": dict(grid=0), "grid_negative": dict(grid=-1), "grid_float": dict(grid=1.5), "grid_nan": dict(grid=float("nan")),
    "grid_text": dict(grid="1"), "grid_none": dict(grid=None), "grid_empty": dict(grid=()), "grid_four": dict(grid=(1, 1, 1, 1)),
    "grid_2_31": dict(grid=2**31), "grid_10_400": dict(grid=10**400), "grid_y_65536": dict(grid=(1, 65536)),
    "block_1025": dict(block=1025), "block_z_65": dict(block=(1, 1, 65)), "block_1024_2": dict(block=(1024, 2)),
    "block_dict": dict(block={"x": 1}), "block_nested": dict(block=((32,),)),
    "shared_negative": dict(shared=-1), "shared_1m": dict(shared=1 << 20), "shared_text": dict(shared="1"),
    "shared_nan": dict(shared=float("nan")), "shared_none": dict(shared=None), "seconds_zero": dict(seconds=0),
    "seconds_negative": dict(seconds=-1), "seconds_nan": dict(seconds=float("nan")), "seconds_text": dict(seconds="1"),
    "args_none": dict(args=(None, X, N)), "args_few": dict(args=(Y, X)), "args_many": dict(args=(Y, X, N, N)),
    "args_list": dict(args=([0.0] * 64, X, N)), "args_swapped": dict(args=(X, Y, N)), "args_float64": dict(args=(Y.astype(float), X, N)),
    "args_strided": dict(args=(np.zeros(128, np.float32)[::2], X, N)), "args_read_only": dict(args=(np.broadcast_to(Y[:1], 64), X, N)),
    "args_big_endian": dict(args=(Y.astype(">f4"), X, N)), "args_object": dict(args=(np.array([None] * 64), X, N)),
    "args_complex": dict(args=(Y.astype(np.complex64), X, N)), "args_number_for_array": dict(args=(1234567890, X, N)),
    "args_n_huge": dict(args=(Y, X, 2**40)), "args_n_float": dict(args=(Y, X, 64.0)), "args_n_array": dict(args=(Y, X, np.arange(2))),
    "args_n_text": dict(args=(Y, X, "64")), "args_empty_array": dict(args=(Y[:0], X, N)),
}.items():  # fmt: skip
    add(name, ONE, wanted="error", **more)
for name, more in {
    "args_misaligned": dict(args=(np.zeros(257, np.uint8)[1:].view(np.float32), X, N)), "args_zero_dimensional": dict(args=(np.array(0, np.float32), X, N)),
    "args_same_memory": dict(args=(Y, Y.view(np.int32), N)), "seconds_infinite": dict(seconds=float("inf")),
    "grid_ten_million": dict(grid=10**7, block=1024, seconds=0.3), "grid_3d_wide": dict(grid=(2**31 - 1, 65535, 65535), seconds=0.3),
    "block_numpy": dict(block=np.array([8, 2, 2])), "grid_true": dict(grid=True),
}.items():  # fmt: skip
    add(name, ONE, **more)

# ---- texts

K = "__global__ void k(float* y, int* x, int n)"
GOOD = f'extern "C" {K} {{ y[threadIdx.x] = x[threadIdx.x] + n; }}\n'
for name, text in {
    "empty": "",
    "no_kernel": "int main() { return 0; }",
    "unclosed_brace": GOOD[:-3],
    "unclosed_comment": GOOD + "/* and so on",
    "unclosed_text": GOOD + 'const char* s = "and so on;',
    "unclosed_parameters": 'extern "C" __global__ void k(float* y, int* x, int n',
    "error_directive": "#error no\n" + GOOD,
    "include_missing": "#include <not_there.cuh>\n" + GOOD,
    "include_passwd": '#include "/etc/passwd"\n' + GOOD,
    "include_device": '#include "/dev/null"\n' + GOOD,
    "endless_template": "template <int N> struct T { enum { v = T<N + 1>::v }; };\n"
    + GOOD.replace("+ n", "+ T<0>::v"),
    "endless_constexpr": "constexpr int f(int n) { for (;;) n++; return n; }\nconstexpr int v = f(0);\n"
    + GOOD,
    "inline_assembly": GOOD.replace("{", '{ asm volatile("ud2");'),
    "throw": GOOD.replace("{", "{ throw 1;"),
    "no_return": "__device__ float f(int v) { if (v < 0) return 1; }\n" + GOOD.replace("+ n", "+ f(n)"),
    "int_kernel": GOOD.replace("void", "int"),
    "kernel_called_int": GOOD.replace(" k(", " int("),
    "parameter_reference": GOOD.replace("int n", "int& n"),
    "unknown_parameter": GOOD.replace("int n", "mystery n"),
    "variadic": GOOD.replace("int n", "int n, ..."),
    "static_shared_1m": GOOD.replace("{", "{ __shared__ float s[1 << 18]; s[threadIdx.x] = 1;"),
}.items():
    add(f"text_{name}", text, body=False, wanted="error")
for name, text in {
    "nul_byte": GOOD.replace("+", "\0+"),
    "bom": "\ufeff" + GOOD,
    "crlf": GOOD.replace("{", "{\r\n"),
    "lone_cr": GOOD.replace("{", "{\r"),
    "emoji_comment": "// 🌉 sieben Brücken\n" + GOOD,
    "unicode_name": GOOD.replace("{", "{ int größe = n; n = größe;"),
    "surrogate": "// \udc80\n" + GOOD,
    "raw_text": 'const char* s = R"x(__global__ void fake(int q) { " )x";\n' + GOOD,
    "commented_kernel": "/* __global__ void fake(int* p) {} */ // __global__ void more(\n" + GOOD,
    "continued_comment": "// a comment that goes on \\\n__global__ void fake(int* p) {}\n" + GOOD,
    "macro_kernel": "#define KERNEL extern \"C\" __global__ void\n" + GOOD.replace('extern "C" __global__ void', "KERNEL"),
    "macro_int": "#define int long long\n" + GOOD,
    "macro_if": "#define if while\n" + GOOD,
    "macro_runtime": "#define line 7\n#define value 8\n#define T 9\n#define bits 1\n" + GOOD,
    "many_functions": "".join(f"__device__ int f{i}(int v) {{ return v + {i}; }}\n" for i in range(2000)) + GOOD,
    "many_parentheses": GOOD.replace("+ n", "+ " + "(" * 200 + "n" + ")" * 200),
    "deep_parentheses": GOOD.replace("+ n", "+ " + "(" * 20000 + "n" + ")" * 20000),
    "long_sum": GOOD.replace("+ n", "+ n" * 3000),
    "long_comment": "// " + "x" * 2_000_000 + "\n" + GOOD,
    "many_lines": "\n" * 200_000 + GOOD,
    "hundred_parameters": GOOD.replace("int n", ", ".join(f"int n{i}" for i in range(100)) + ", int n"),
    "kernel_in_class": "struct S { static " + K + " {} };\n",
    "kernel_overloaded": K + " { y[0] = 1; }\n" + K.replace("int n", "float n") + " { y[0] = 2; }\n",
    "kernel_in_namespace": "namespace a { namespace b { " + K + " { y[threadIdx.x] = n; } } }\n",
    "kernel_default": GOOD.replace("int n", "int n = 3"),
    "kernel_main": GOOD.replace(" k(", " main("),
    "kernel_start": GOOD.replace(" k(", " _start("),
    "kernel_malloc": GOOD.replace(" k(", " malloc("),
    "constructor_aborts": "struct S { S() { *(volatile int*)0 = 1; } } s;\n" + GOOD,
    "constructor_attribute": "__attribute__((constructor)) void begin() { __builtin_trap(); }\n" + GOOD,
    "constructor_loops": "int spin() { volatile int v = 1; while (v) ; return v; }\nint started = spin();\n" + GOOD,
    "destructor_traps": "struct S { ~S() { __builtin_trap(); } } s;\n" + GOOD,
    "template_uninstantiated": "template <class T> __global__ void k(T* y, int* x, int n) { y[0] = 1; }\n",
    "system": '#include <stdlib.h>\n' + GOOD.replace("{", '{ system("exit 1");'),
    "signal_self": '#include <signal.h>\n' + GOOD.replace("{", "{ raise(SIGSEGV);"),
    "thread_local": "thread_local int t;\n" + GOOD.replace("+ n", "+ t"),
    "vector": "#include <vector>\n" + GOOD.replace("{", "{ std::vector<int> v(n); n = v[3];"),
    "catch": GOOD.replace("{", "{ try { n++; } catch (...) {}"),
}.items():  # fmt: skip
    add(f"text_{name}", text, body=False)
for name, options in {
    "define_spaces": dict(defines={"A B": 1}), "define_newline": dict(defines={"A": "1\n#error x"}), "define_empty": dict(defines={"": 1}),
    "define_kernel": dict(defines={"k": "main"}), "define_dash": dict(defines={"-o/dev/null": 1}), "define_object": dict(defines={"A": object()}),
    "instantiate_injected": dict(instantiate=("k<1>; int evil() { return 1; } //",)), "instantiate_nothing": dict(instantiate=("",)),
    "instantiate_unknown": dict(instantiate=("other<3>",)), "instantiate_number": dict(instantiate=(3,)),
}.items():  # fmt: skip
    add(f"option_{name}", GOOD, body=False, options=options)

# ---- to run them

HEAD = """#include <nanoeuler.cuh>
#include <named_barrier.cuh>
__constant__ int table[8] = {1, 2, 3};
__device__ int global_counts[4];
__device__ __noinline__ float helper(int n) { return n; }
__device__ __noinline__ float deep(int depth, int n) {
  volatile float here[16];
  here[n & 15] = depth;
  return depth == 0 ? n : deep(depth + 1, n) + here[n & 15];
}
__device__ float odd(int n);
__device__ __noinline__ float even(int n) { return odd(n + 1) + 1; }
__device__ __noinline__ float odd(int n) { return even(n + 1) - 1; }
"""
SOUND = (
    HEAD
    + 'extern "C" __global__ void sound(const int* a, int* b) { int i = blockIdx.x * 16 + threadIdx.x; b[i] = a[i] * 3; }'
)


TOGETHER = 16  # bodies compiled as one text


def kernels_of(names: list[str]) -> dict[str, cuda.Kernel | NanoEulerError]:
    """The bodies' kernels, compiled together if that works, else in halves down to those that do not compile."""
    text = HEAD + "".join(
        f'extern "C" __global__ void k_{name}(float* y, int* x, int n) {{\n{CASES[name].text}\n}}\n'
        for name in names
    )
    try:
        module = cuda.module(text, where="cpu")
        return {name: module[f"k_{name}"] for name in names}
    except NanoEulerError as error:
        half = len(names) // 2
        return kernels_of(names[:half]) | kernels_of(names[half:]) if half else {names[0]: error}


def run(name: str, kernels: dict) -> dict:
    case = CASES[name]
    args = arrays() if case.args is None else case.args
    try:
        if not case.body:
            module = cuda.module(case.text, where="cpu", **case.options)
            kernels[name] = module[next(iter(module))]
        kernel = kernels[name]
        if isinstance(kernel, NanoEulerError):
            raise kernel
        if case.args is None and len(kernel.signature.parameters) > 3:
            args = (*args[:2], *[1] * (len(kernel.signature.parameters) - 2))
        kernel(case.grid, case.block, args, case.shared, seconds=case.seconds)
    except NanoEulerError as error:
        return {"outcome": "error", "text": str(error)}
    except Exception as error:  # another one is a finding of the test
        return {"outcome": "other", "text": f"{type(error).__name__}: {error}"}
    return {"outcome": "result", "text": ""}


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    sound = cuda.module(SOUND, where="cpu")["sound"]
    a, b = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    kernels, bodies = {}, [name for name in names if CASES[name].body]
    for name in names:
        print("\n" + json.dumps({"started": name}), flush=True)
        if name in bodies[::TOGETHER]:
            at = bodies.index(name)
            kernels = kernels_of(bodies[at : at + TOGETHER])
        found = run(name, kernels)
        b[:] = 0
        sound(4, 16, (a, b))
        if not (b == 3 * a).all():
            found = {"outcome": "wrong", "text": "afterwards a sound kernel gives wrong numbers"}
        found["text"] = found["text"].encode("utf-8", "replace").decode()
        print("\n" + json.dumps({"name": name, **found}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--count"]:
        print(len(CASES))
    else:
        main(sys.argv[1:] or Path("/dev/stdin").read_text().split())
