# ruff: noqa: E501  one case a line
"""Kernels, launches and texts that try to end the Python process: `python hostile_kernels.py NAME ...` runs them here.

For each case two lines of JSON go out: {"started": name}, then {"name", "outcome", "text"}: "result", "error" (a
NanoEulerError) or "other" (another exception), and after each a sound kernel must still give the right numbers.
"""

import json
import sys
import warnings
from typing import NamedTuple

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.errors import NanoEulerError


class Case(NamedTuple):
    """text: a whole text or, if `body`, the inside of a kernel k(float* y, int* x, int n); wanted: error or any."""

    text: str
    body: bool = True
    wanted: str = "any"
    seconds: float = 1.0


CASES: dict[str, Case] = {}


def add(name: str, text: str, **more) -> None:
    assert name not in CASES, name
    CASES[name] = Case(text, **more)


def add_all(texts: dict[str, str], **more) -> None:
    for name, text in texts.items():
        add(name, text, **more)


# ---- wild pointers: addresses in every manner

ADDRESSES = {
    "null": "(float*)0", "wild": "(float*)0x123456789a0ull", "last": "(float*)~15ull", "far": "y + (1ll << 40)",
    "code": "(float*)(void*)&helper",
}  # fmt: skip
MANNERS = {
    "read": "x[0] = (int)*p;", "write": "*p = 1;", "atomic": "atomicAdd(p, 1.0f);", "memcpy": "memcpy(p, y, 64);",
}  # fmt: skip
for where, address in ADDRESSES.items():
    for how, statement in MANNERS.items():
        add(f"pointer_{where}_{how}", f"float* p = {address}; {statement}", wanted="error")

# ---- stacks

STACKS = {
    "locals_1m": "volatile float a[250000]; for (int i = 0; i < 250000; i++) a[i] = i; y[0] = a[n];",
    "locals_1g": "volatile float a[250000000]; a[n] = 1; a[0] = 2; y[0] = a[n];",
    "recursion_endless": "y[0] = deep(n, 1);",
    "recursion_deep": "y[threadIdx.x] = deep(-200, n);",
    "variable_length": "float a[n]; a[0] = 1; y[0] = a[0];",
    "stack_downwards": "volatile char c = 0; for (int i = 1; i < 10000000; i++) (&c)[-i] = 1;",
    "stack_upwards": "volatile char c = 0; for (int i = 1; i < 10000000; i++) (&c)[i] = 1;",
    "return_address": "void** frame = (void**)__builtin_frame_address(0); frame[1] = 0; frame[0] = 0;",
}
add_all(STACKS)

# ---- arithmetic

UNDEFINED = {
    "divide_by_zero": "x[0] = n / x[0];",
    "modulo_zero": "x[0] = n % x[0];",
    "divide_least": "int m = -2147483647 - 1; m += x[0]; x[0] = m / (x[0] - 1);",
}
add_all(UNDEFINED, wanted="error")
ARITHMETIC = {
    "unreachable": "if (n == 64) __builtin_unreachable();\ny[0] = 1;",
    "builtin_trap": "__builtin_trap();",
    "int_of_odd_address": "int* p = (int*)((char*)x + 1); x[40] = *p;",
}
add_all(ARITHMETIC)

# ---- time

ENDLESS = {
    "forever_barriers": "while (true) __syncthreads();",
    "forever_shuffles": "while (true) n = __shfl_xor_sync(~0u, n, 1);",
    "forever_sleep": "while (true) __nanosleep(1000000000);",
    "forever_volatile": "while (((volatile int*)x)[0] == 0) ;",
    "forever_printf": 'while (true) printf("again %d\\n", n);',
    "forever_one_thread": "if (threadIdx.x == 31) {\n while (true) y[31] += 1;\n}\n__syncthreads();",
}
add_all(ENDLESS, wanted="error", seconds=0.5)

# ---- barriers and warps

MISMATCHED = {
    "barrier_by_one": "if (threadIdx.x == 0) __syncthreads();",
    "barrier_and_shuffle": "if (threadIdx.x & 1) __syncthreads(); else n = __shfl_sync(~0u, n, 0);",
    "shuffle_empty_mask": "y[0] = __shfl_sync(0, n, 0);",
    "width_33": "y[threadIdx.x] = __shfl_down_sync(~0u, n, 1, 33);",
    "named_sixteen": "named_barrier_sync(16, 32);",
    "named_too_many": "named_barrier_sync(1, 2048);",
}
add_all(MISMATCHED, wanted="error")
MEETINGS = {
    "vote_after_return": "if (threadIdx.x > 9) return;\ny[threadIdx.x] = __all_sync(~0u, 1);",
    "shuffle_lane_1000": "y[threadIdx.x] = __shfl_sync(~0u, n, 1000);",
    "barriers_a_thousand": "for (int i = 0; i < 1000; i++) __syncthreads();",
}
add_all(MEETINGS)

# ---- printf

PRINTED = {
    "printf_null": 'printf("%s\\n", (char*)0);',
    "printf_int_as_text": 'printf("%s\\n", n);',
    "printf_counts": 'int written; printf("abc%n\\n", &written); x[0] = written;',
    "printf_no_arguments": 'printf("%d %s %f %p\\n");',
    "printf_wide": 'printf("%1000000d\\n", n);',
    "printf_many": 'for (int i = 0; i < 3000; i++) printf("line %d of thread %d\\n", i, threadIdx.x);',
    "printf_null_format": "printf((const char*)0);",
    "printf_data_as_format": 'memcpy(x, "%s%s%s%n", 9); printf((const char*)x);',
}
add_all(PRINTED)

# ---- the library's functions

REFUSED = {
    "copy_async_null": "__shared__ float s[64]; copy_async<16>(s, nullptr); copy_async_commit(); copy_async_wait<0>();",
    "copy_async_past_end": "__shared__ float s[64]; copy_async<16>(s, y + 62); copy_async_commit(); copy_async_wait<0>();",
    "ldmatrix_null": "unsigned r[4]; ldmatrix<4>(r, nullptr); y[0] = r[0];",
    "mma_one_lane": "unsigned a[4] = {}; float d[4] = {}; if (threadIdx.x == 0) mma<tf32>(d, a, a); y[0] = d[0];",
    "memcpy_negative": "memcpy(y, y + 32, (size_t)-4);",
    "memset_4g": "memset(y, 0, 1ull << 32);",
    "assert_false": "assert(n == 65);",
    "trap": "__trap();",
    "write_constant": "table[threadIdx.x] = 1;",
    "underscore_exit": "_exit(3);",
}
add_all(REFUSED, wanted="error")
FUNCTIONS = {
    "atomic_on_constant": "atomicAdd((int*)table, 1);",
    "longjmp": "void* buffer[5]; __builtin_longjmp(buffer, 1);",
    "function_pointer_null": "float (*f)(int) = nullptr; y[0] = f(n);",
    "function_pointer_data": "float (*f)(int) = (float (*)(int))(void*)x; y[0] = f(n);",
}
add_all(FUNCTIONS)

# ---- texts

K = "__global__ void k(float* y, int* x, int n)"
GOOD = f'extern "C" {K} {{ y[threadIdx.x] = x[threadIdx.x] + n; }}\n'
for name, text in {
    "unclosed_comment": GOOD + "/* and so on",
    "unclosed_text": GOOD + 'const char* s = "and so on;',
    "include_missing": "#include <not_there.cuh>\n" + GOOD,
    "endless_template": "template <int N> struct T { enum { v = T<N + 1>::v }; };\n" + GOOD.replace("+ n", "+ T<0>::v"),
    "endless_constexpr": "constexpr int f(int n) { for (;;) n++; return n; }\nconstexpr int v = f(0);\n" + GOOD,
    "int_kernel": GOOD.replace("void", "int"),
    "variadic": GOOD.replace("int n", "int n, ..."),
}.items():
    add(f"text_{name}", text, body=False, wanted="error")
for name, text in {
    "nul_byte": GOOD.replace("+", "\0+"),
    "bom": "\ufeff" + GOOD,
    "crlf": GOOD.replace("{", "{\r\n"),
    "unicode_name": GOOD.replace("{", "{ int größe = n; n = größe;"),
    "surrogate": "// \udc80\n" + GOOD,
    "commented_kernel": "/* __global__ void fake(int* p) {} */ // __global__ void more(\n" + GOOD,
    "deep_parentheses": GOOD.replace("+ n", "+ " + "(" * 20000 + "n" + ")" * 20000),
    "many_lines": "\n" * 200_000 + GOOD,
    "kernel_overloaded": K + " { y[0] = 1; }\n" + K.replace("int n", "float n") + " { y[0] = 2; }\n",
    "kernel_main": GOOD.replace(" k(", " main("),
    "kernel_malloc": GOOD.replace(" k(", " malloc("),
    "constructor_aborts": "struct S { S() { *(volatile int*)0 = 1; } } s;\n" + GOOD,
    "constructor_loops": "int spin() { volatile int v = 1; while (v) ; return v; }\nint started = spin();\n" + GOOD,
    "destructor_traps": "struct S { ~S() { __builtin_trap(); } } s;\n" + GOOD,
    "system": '#include <stdlib.h>\n' + GOOD.replace("{", '{ system("exit 1");'),
    "signal_self": '#include <signal.h>\n' + GOOD.replace("{", "{ raise(SIGSEGV);"),
}.items():  # fmt: skip
    add(f"text_{name}", text, body=False)
# ---- to run them

HEAD = """#include <nanoeuler.cuh>
#include <named_barrier.cuh>
__constant__ int table[8] = {1, 2, 3};
__device__ __noinline__ float helper(int n) { return n; }
__device__ __noinline__ float deep(int depth, int n) {
  volatile float here[16];
  here[n & 15] = depth;
  return depth == 0 ? n : deep(depth + 1, n) + here[n & 15];
}
"""
SOUND = (
    HEAD
    + 'extern "C" __global__ void sound(const int* a, int* b) { int i = blockIdx.x * 16 + threadIdx.x; b[i] = a[i] * 3; }'
)


def run(case: Case) -> dict:
    text = f'{HEAD}extern "C" {K} {{\n{case.text}\n}}\n' if case.body else case.text
    args = np.zeros(64, np.float32), np.arange(64, dtype=np.int32), 64
    try:
        module = cuda.module(text, where="cpu")
        module[next(iter(module))](1, 32, args, seconds=case.seconds)
    except NanoEulerError as error:
        return {"outcome": "error", "text": str(error)}
    except Exception as error:  # another one is a finding of the test
        return {"outcome": "other", "text": f"{type(error).__name__}: {error}"}
    return {"outcome": "result", "text": ""}


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    sound = cuda.module(SOUND, where="cpu")["sound"]
    a, b = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    for name in names:
        print("\n" + json.dumps({"started": name}), flush=True)
        found = run(CASES[name])
        b[:] = 0
        sound(4, 16, (a, b))
        if not (b == 3 * a).all():
            found = {"outcome": "wrong", "text": "afterwards a sound kernel gives wrong numbers"}
        found["text"] = found["text"].encode("utf-8", "replace").decode()
        print("\n" + json.dumps({"name": name, **found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
