"""Find the first error of a kernel in a compiler's log, and explain it where CUDA differs from C++.

Only the first error is reported, because later errors are mostly its consequences.
"""

import difflib
import re
from pathlib import Path

from cudacheck.findings import KernelError, compile_error
from cudacheck.source import HEADER_LINES, Text
from cudacheck.source.reading import blank_comments, bracket_fault

# One entry of a log: `kernel.cu:3:7: error: ...`, or NVRTC's `kernel.cu(3): error: ...` with a caret below.
_ENTRY = re.compile(
    r"^(?P<file>[^\n]*?)(?::(?P<line>\d+):(?:(?P<column>\d+):)?|\((?P<nvrtc>\d+)\):) "
    r"(?:(?:fatal |catastrophic )?(?P<error>error)|(?P<kind>warning|note))(?: #[\w-]+)?: "
    r"(?P<message>.*?)(?: \[-W(?P<flag>[\w-]+)=?(?:,[^\]]*)?\])?$(?P<caret>\n.+\n *\^$)?",
    re.M,
)

# Warnings that nearly always mean a bug; a checked build treats them as errors.
WARNINGS = ("parentheses", "uninitialized", "unused-value", "return-type", "div-by-zero", "empty-body",
            "misleading-indentation", "format", "frame-larger-than=40000")  # fmt: skip
# The last two are Clang's names.
_FLAGS = {name.partition("=")[0] for name in WARNINGS} | {"unused-comparison", "division-by-zero"}

# warnings about code that is usually intended
_HARMLESS = re.compile(r"parentheses around (?:'&&'|arithmetic|'[-+]')|'&&' within")

_UNKNOWN = (
    r"'(\w+)' was not declared in this scope|'(\w+)' does not name a type|unknown type name '(\w+)'|"
    r"use of undeclared identifier '(\w+)'|identifier \"(\w+)\" is undefined|poisoned (?:identifier)?(?:\"(\w+)\")?|"
    r"'(\w+)' has not been declared|is not a member of '(std)'|in namespace '(std)'|namespace \"(std)\" has no member"
)
# Names of CUDA C++, proposed along with the text's own names for a misspelt one.
NAMES = """threadIdx blockIdx blockDim gridDim warpSize __global__ __device__ __shared__ __constant__ __restrict__
__syncthreads __syncthreads_count __syncwarp __threadfence __shfl_sync __shfl_up_sync __shfl_down_sync __shfl_xor_sync
__ballot_sync __any_sync __all_sync __match_any_sync __activemask atomicAdd atomicSub atomicMin atomicMax atomicCAS
atomicExch atomicInc atomicDec __ldg __ldca __ldcg __ldcs __ldcv __stcg __stcs __stwt __popc __popcll __clz __clzll
__ffs __ffsll __brev __byte_perm __dp4a __nanosleep clock clock64 rsqrt sincosf sincospif sinpif cospif __fdiv_rn
fdividef expf exp2f logf log2f sqrtf rsqrtf fmaxf fminf fabsf fmaf powf sinf cosf tanhf floorf printf assert
make_float2 make_float4 copy_async copy_async_commit copy_async_wait prefetch_to_L2 ldmatrix ldmatrix_trans mma to_tf32
wmma const float double bool char short unsigned int void extern return while __int_as_float __float2half __half2float
__launch_bounds__ __expf __logf""".split()
# Headers, and the names that need them.
_HEADERS = {
    "cuda_fp16.h": r"(?:__)?half2?",
    "cuda_bf16.h": r"(?:__)?nv_bfloat162?",
    "math_constants.h": r"CUDART_\w+",
    "nanoeuler.cuh": r"copy_async\w*|prefetch_to_L2|ldmatrix\w*|mma|to_tf32|wmma",
    "named_barrier.cuh": r"named_barrier_\w+",
    "hopper.cuh": r"wgmma\w*|mbarrier_\w+|cluster_(?:rank|sync)|copy_tile|fence_async",
}
# Names of the C library that are unavailable in kernels, and what to write instead.
_INSTEAD = {
    "INFINITY": "__int_as_float(0x7f800000)", "NAN": "__int_as_float(0x7fffffff)", "M_PI": "3.14159265f",
    "FLT_MAX": "3.402823466e38f", "INT_MAX": "2147483647", "print": "printf",
    "int8_t": "signed char", "uint8_t": "unsigned char", "int32_t": "int", "uint32_t": "unsigned",
    "int64_t": "long long", "uint64_t": "unsigned long long",
}  # fmt: skip
# CUDA's names that exist only on the GPU.
_GPU_ONLY = (
    r"__\w+_r[zud]|__v\w+[24]|__vi\w+|(?:erf(?:c?inv|cx)|normcdfinv|cyl_bessel_i[01]|normf?|rnormf?)f?|__h\w+_mask|"
    r"__hcmadd|__is(?:Shared|Global|Local|Constant|GridConstant)|__pipeline_\w+|__mbarrier_\w+|__prof_trigger|__brkpt|"
    r"__nv_\w+|__nvvm_\w+|__cluster\w+|cuda\w*|nvcuda|cooperative_groups|cg|(?:tex|surf)[123]D\w*"
)
# Compiler messages that need a better explanation; {0}: the group that matched.
_WORDS = [
    (r"read-only|modifiable lvalue|not assignable", "this writes to something that is const"),
    (r"does not guard|misleading indentation",
     "only the first statement belongs to the if or the loop: put all of its statements between {{ and }}"),
    (r"frame size (?:of )?\(?(\d+)",
     "the variables of a thread must fit in 40000 bytes, got {0}: put large arrays in shared memory or arguments"),
]  # fmt: skip


def first_error(text: Text, log: str, warnings: bool = False) -> KernelError | None:
    """Return the first error that a compiler's log reports about a text, or None if the log has no such error.

    warnings: whether the warnings listed in WARNINGS count as errors.
    """
    entries = list(_ENTRY.finditer(log))
    wrong = [e for e in entries if e["error"]]
    wrong = wrong or [e for n, e in enumerate(entries) if warnings and _suspect(text, e, entries[n + 1 :])]
    if not wrong and "At end of source: error" not in log:
        return None
    if fault := bracket_fault(text.source):
        return compile_error(text, *fault)
    place = next((e for e in wrong if _line(text, e)), None)
    if place is None:  # in a header of the runtime: report it at the line of the text that led there
        message = wrong[0]["message"] if wrong else log.strip()[:2000]
        led = re.search(rf"^[^\n:]*{re.escape(text.name)}:(\d+):", log, re.M)
        return compile_error(text, *_explain(text, int(led[1]) if led else 0, 0, message))
    line, column = _line(text, place), _column(place)
    return compile_error(text, *_explain(text, line, column, place["message"]))


def _suspect(text: Text, entry: re.Match, later: list[re.Match]) -> bool:
    """Return whether a warning probably means a bug."""
    if entry["flag"] == "misleading-indentation":  # `if (i >= n) return; y[i] = 1;` misleads nobody
        second = later[0] if "does not guard" in entry["message"] and later else entry
        return not text.line(_line(text, second))[: _column(second) - 1].strip()
    return entry["flag"] in _FLAGS and not _HARMLESS.search(entry["message"])


def _line(text: Text, entry: re.Match) -> int:
    """Return the line of `text` (see Text) that a log entry is about; 0 if the entry is about another file."""
    name, line = Path(entry["file"]).name, int(entry["line"] or entry["nvrtc"])
    for number, (header, _) in enumerate(text.headers, 1):
        if name == header:
            return number * HEADER_LINES + line
    # CuPy chooses its own name for the text.
    return line if name == text.name or name.endswith(".cu") else 0


def _column(entry: re.Match) -> int:
    if entry["column"]:
        return int(entry["column"])
    return len(entry["caret"].rsplit("\n", 1)[1]) - 2 if entry["caret"] else 0


def _explain(text: Text, line: int, column: int, message: str) -> tuple[int, str, int]:
    """Return the line, message and column with which an error is reported."""
    source = text.text_of(line)
    code = [there.rstrip() for there in blank_comments(source).split("\n")]
    number = min(text.find(line)[1], len(code))
    here = code[number - 1] if number else ""
    if "<<<" in here:
        sentence = "a kernel is launched from Python: name(grid, block, (arguments,))"
        return line, sentence, here.index("<<<") + 1
    if number and (end := _lacks_semicolon(code, number, column, message)):
        return line - number + end, "a ; is missing at the end of this line", len(code[end - 1]) + 1
    if match := re.search(_UNKNOWN, message):
        name = next(filter(None, match.groups()), "") or _word_at(here, column)
        return line, _unknown(name, source), column
    triple = re.search(r"\b(threadIdx|blockIdx|blockDim|gridDim)\b(?!\s*\.)", here)
    if triple and re.search(r"operator|operands|subscript|convert|initialize", message):
        return line, f"{triple[1]} is three numbers: write {triple[1]}.x, .y or .z", triple.start() + 1
    for pattern, words in _WORDS:
        if match := re.search(pattern, message):
            return line, words.format(*match.groups()), column
    return line, _without_runtime(message), column


def _lacks_semicolon(code: list[str], number: int, column: int, message: str) -> int:
    """Return the line that lacks a ; at its end, if the missing ; explains the compiler's error; else 0."""
    after_struct = re.search(r"unqualified-id|linkage specification", message)
    if not after_struct and not re.search(r"expected.*(?:;|initializer)|expected (?:a )?declaration", message):
        return 0
    end = number
    if after_struct or not code[number - 1][: max(0, column - 1)].strip():  # starts the line: look before it
        end = next((n for n in range(number - 1, 0, -1) if code[n - 1]), number)
    struct = r"(?<!\w)(?:struct|class|union|enum)\b[^;{}()]*\{(?:[^{}]|\{[^{}]*\})*\}\s*$"
    ends_struct = re.search(struct, "\n".join(code[:end])) is not None
    if after_struct:
        return end if end < number and ends_struct else 0
    ended = code[end - 1].endswith((";", "{", "}")) and not ends_struct
    return end if (end < number or column > len(code[number - 1])) and not ended else 0


def _word_at(line: str, column: int) -> str:
    match = re.match(r"\w+", line[column - 1 :]) if column else None
    return match[0] if match else ""


def _unknown(name: str, source: str) -> str:
    for header, names in _HEADERS.items():
        if re.fullmatch(names, name):
            return f"'{name}' needs a header: write #include <{header}> at the top"
    if name in _INSTEAD:
        return f"'{name}' is not available in a kernel: write {_INSTEAD[name]}"
    if re.fullmatch(_GPU_ONLY, name):
        return f"'{name}' exists only on the GPU: put it under #ifdef __CUDACC__, with #else for the CPU"
    words = set(re.findall(r"[A-Za-z_]\w+", blank_comments(source, strings=True)))
    near = difflib.get_close_matches(name, sorted((words | set(NAMES)) - {name}), 1, 0.7)
    lower = [word for word in NAMES if word.lower() == name.lower()]
    guess = (lower or near or [""])[0]
    return f"'{name}' is not declared" + (f"; did you mean '{guess}'?" if guess else "")


def _without_runtime(message: str) -> str:
    """Remove compiler options and names of the runtime from a message: on the CPU, threadIdx etc. are macros."""
    message = re.sub(r"\(?nanoeuler_self\(\)\s*->\s*(?:nanoeuler_runtime::Fiber::)?(\w+)\)?", r"\1", message)
    return re.sub(r"; did you mean .*| \[-[\w=]+\]|(?:nanoeuler_)?runtime::", "", message)
