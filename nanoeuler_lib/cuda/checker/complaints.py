"""What a C++ compiler says against a kernel's text, in the words of the field.

g++, Clang and NVRTC find the same mistakes and name them differently; a learner meets one text for all three. The first
error counts: those that follow are mostly its consequences.
"""

import difflib
import re
from pathlib import Path

from nanoeuler_lib.cuda.checker.findings import KernelError, compile_error
from nanoeuler_lib.cuda.source import HEADER_LINES, Text
from nanoeuler_lib.cuda.source.reading import blank_comments, bracket_fault

# One entry of a log: `kernel.cu:3:7: error: ...`, or NVRTC's `kernel.cu(3): error: ...` with a caret below.
_ENTRY = re.compile(
    r"^(?P<file>[^\n]*?)(?::(?P<line>\d+):(?:(?P<column>\d+):)?|\((?P<nvrtc>\d+)\):) "
    r"(?:(?:fatal |catastrophic )?(?P<error>error)|(?P<kind>warning|note))(?: #[\w-]+)?: "
    r"(?P<message>.*?)(?: \[-W(?P<flag>[\w-]+)=?(?:,[^\]]*)?\])?$(?P<caret>\n.+\n *\^$)?",
    re.M,
)

# Warnings that nearly always mean a bug: a checked build takes them as errors.
WARNINGS = ("parentheses", "uninitialized", "unused-value", "return-type", "div-by-zero", "empty-body",
            "misleading-indentation", "format", "frame-larger-than=40000")  # fmt: skip
# The last two are Clang's names.
_FLAGS = {name.partition("=")[0] for name in WARNINGS} | {"unused-comparison", "division-by-zero"}

# what many write and mean
_HARMLESS = re.compile(r"parentheses around (?:'&&'|arithmetic|'[-+]')|'&&' within")

_UNKNOWN = (
    r"'(\w+)' was not declared in this scope|'(\w+)' does not name a type|unknown type name '(\w+)'|"
    r"use of undeclared identifier '(\w+)'|identifier \"(\w+)\" is undefined|poisoned (?:identifier)?(?:\"(\w+)\")?|"
    r"'(\w+)' has not been declared|is not a member of '(std)'|in namespace '(std)'|namespace \"(std)\" has no member"
)
_INCOMPLETE = r"incomplete.*?\b(__half2?|__nv_bfloat162?)\b|\b(__half2?|__nv_bfloat162?)\b.*incomplete"
# From what a compiler says (any of them) to what the reader is told; {0}, {1}: the groups that matched, without quotes.
_WORDS = [
    (r"is of non-class type|must have class type|is not a structure or union",
     "a number or an address has no members, and nothing stands behind a . of it"),
    (r"cannot be used as a function|\(pointer-to-\) function type|is not a function or function pointer",
     "this is no function: the elements of an array stand in square brackets, x[i]"),
    (r"return-statement with a value|should not return a value|return value type does not match the function type",
     "this function is void and returns nothing: write return; and let results go to an array"),
    (r"no type|type is missing|type specifier", "a function says what it returns, as float or void, before its name"),
    (r"storage size of '|incomplete type \".*\[\]\"|needs an explicit size",
     "this array has no size: write one in its [ ]"),
    (r"numeric literal operator|literal operator not found|invalid (?:digit|suffix) '|expected end of number",
     "a number with an ending that C++ does not know: 1.0f is a float, 1u an unsigned"),
    (r"has no member (?:named )?\"(\w+)\"|no member named '(\w+)'",
     "there is no member '{0}' (threadIdx, blockIdx, blockDim and gridDim have x, y and z)"),
    (r"read-only|modifiable lvalue|not assignable", "what is written to here is const"),
    (r"redeclaration of '(?:.*[ *])?(\w+)'|redefinition of '(?:[^(]*[ *])?(\w+)|\"(\w+)\" has already been",
     "'{0}' is declared a second time"),
    (r"variable[- ]length array|must have a constant value|not usable in a constant|not an integral constant|"
     r"not a constant expression",
     "a constant is wanted here, as for the length of an array: a constexpr int, a #define or a template's parameter "
     "(memory of a length that the launch decides is extern __shared__)"),
    (r"ambiguous (?:overload for )?.*operator|more than one operator \"|operator.* is ambiguous",
     "a 16-bit number meets a number of another type: convert one of the two, as in __half2float(h)"),
    (r"too (?:many|few) arguments", "this function takes another number of arguments"),
    (r"operand.*'\w+\d'.*'\w+\d'|no operator \"",
     "a vector type has no operators: compute with its x, y, z and w one by one"),
    (r"operands.*\*'|must have arithmetic|argument to unary|invalid argument type '.*\*'",
     "a pointer stands here where a number should: is an index missing, as in x[i]?"),
    (r"invalid types '[^'*]*' for array|pointer-to-object type|subscripted value is not",
     "only an array or a pointer has an index, and here is one too many: a matrix is x[row * columns + column]"),
    (r"array subscript|have integral or unscoped|invalid operands|converted constant expression|non-integer type|"
     r"constant expression has type \"(?:float|double)\"",
     "this must be an integer: an index, the length of an array, or a side of %"),
    (r"unary '\*'|indirection requires|operand of \"\*\"",
     "* stands before a pointer only; a power is x * x, or powf(x, y)"),
    (r"static.assert\w* failed(?: due to requirement '.*?')?(?: with|:)? *\"(.*)\"|"
     r"static assertion failed(?: due to requirement '.*?')?: \"?(.*?)\"?$", "{0}"),
    (r"cannot open source file \"(.*)\"|(\S+): No such file|'(\S+)' file not found",
     "a kernel cannot include <{0}>, for a GPU has no C or C++ library"),
    (r"preprocessing directive", "a line that starts with # speaks to the preprocessor; a comment starts with //"),
    (r"extended character|unexpected character|unrecognized token|stray '|non-ASCII",
     "a character that C++ does not know (a typographic quote or dash, copied from a page?)"),
    (r"assignment (?:used as truth|as a condition)", "= assigns, and == compares: which one is meant?"),
    (r"of comma operator", "what stands before the comma is lost: x[i, j] means x[j], and not x[i][j]"),
    (r"comparisons? like|X<=Y<=Z", "a < b < c compares the truth of a < b with c: write a < b && b < c"),
    (r"comparison in operand of '&'", "== binds closer than &: write (a & b) == c"),
    (r"no effect|value computed is not used|result unused",
     "this computes a value and drops it: is = meant where == stands?"),
    (r"'(\w+)' (?:is|may be) .*uninitialized", "'{0}' is used before it has a value"),
    (r"non-void", "this function is to return a value, and it can end without one: return is missing"),
    (r"does not guard|misleading indentation",
     "only the first statement belongs to the if or the loop: put what belongs to it between {{ and }}"),
    (r"empty body", "the ; ends the if or the loop here: what follows does not belong to it"),
    (r"format '?(%\w+)'? expects .*has type '(.*?)'",
     "printf: {0} is not for a number of type {1} (%d int, %u unsigned, %f float, %lld long long)"),
    (r"format specifies type '(.*?)' but the argument has type '(.*?)'",
     "printf: the format is for {0}, the number is {1} (%d int, %u unsigned, %f float, %lld long long)"),
    (r"frame size of (\d+) bytes|frame size \((\d+)\)",
     "the variables of a thread take {0} bytes, and it has 40000: large arrays belong in shared memory or arguments"),
]  # fmt: skip
# What stands in the line that a compiler stumbles over says more than where it stumbled; {0}: the group.
_LINES = [
    (r"=[^;{}=]*\bif\b[^;{}]*\belse\b", "a value that depends on a condition is c ? a : b"),
    (r"\belif\b", "write else if (...) for elif"),
    (r"(?<![=<>!])=([<>])(?!=)", "={0} is no sign of C++: write {0}="),
    (r"\bfor\s+(\w+)\s+in\b", "a loop is for (int {0} = 0; {0} < n; {0}++)"),
    (r"\b(if|while|for)\b(?!\s*(?:\(|constexpr\b))", "{0} is followed by ( ), as in if (i < n)"),
    (
        r"^[^?]*\b(?:else|(?:if|while|for)\b[^?]*\))\s*(:)(?!:)",
        "no : stands here: {{ }} hold what belongs together",
    ),
    (r"'[^'\\]{2,}'", "a text stands between two \", and a single character between two '"),
]
# Where a value of one type meets another: what is found and what is wanted, or the other way round.
_FOUND_WANTED = (
    r"a value of type \"(.*?)\" cannot be (?:assigned|used).*\"(.*?)\"|cannot convert '(.*?)' to '(.*?)'|"
    r"invalid conversion from '(.*?)' to '(.*?)'|argument of type \"(.*?)\" is incompatible .* \"(.*?)\""
)
_WANTED_FOUND = r"assigning to '(.*?)' from (?:incompatible type )?'(.*?)'|cannot initialize .* '(.*?)' with .* '(.*?)'"
# Names of CUDA C++: for one that is misspelt they and the text's own are proposed.
NAMES = """threadIdx blockIdx blockDim gridDim warpSize __global__ __device__ __shared__ __constant__ __restrict__
__syncthreads __syncthreads_count __syncwarp __threadfence __shfl_sync __shfl_up_sync __shfl_down_sync __shfl_xor_sync
__ballot_sync __any_sync __all_sync __match_any_sync __activemask atomicAdd atomicSub atomicMin atomicMax atomicCAS
atomicExch atomicInc atomicDec __ldg __ldca __ldcg __ldcs __ldcv __stcg __stcs __stwt __popc __popcll __clz __clzll
__ffs __ffsll __brev __byte_perm __dp4a __nanosleep clock clock64 rsqrt sincosf sincospif sinpif cospif __fdiv_rn
fdividef expf exp2f logf log2f sqrtf rsqrtf fmaxf fminf fabsf fmaf powf sinf cosf tanhf floorf printf assert
make_float2 make_float4 copy_async copy_async_commit copy_async_wait prefetch_to_L2 ldmatrix ldmatrix_trans mma to_tf32
wmma const float double bool char short unsigned int void extern return while __int_as_float __float2half __half2float
__launch_bounds__ __expf __logf""".split()
_ELSEWHERE = {
    "INFINITY": "write __int_as_float(0x7f800000)", "HUGE_VALF": "write __int_as_float(0x7f800000)",
    "NAN": "write __int_as_float(0x7fffffff)", "M_PI": "write 3.14159265f", "FLT_MAX": "write 3.402823466e38f",
    "FLT_EPSILON": "write 1.1920929e-7f", "INT_MAX": "write 2147483647",
    "int8_t": "write signed char", "uint8_t": "write unsigned char", "int16_t": "write short",
    "uint16_t": "write unsigned short", "int32_t": "write int", "uint32_t": "write unsigned",
    "int64_t": "write long long", "uint64_t": "write unsigned long long",
    "uintptr_t": "write unsigned long long", "memcmp": "compare one by one", "memmove": "copy one by one",
    "strlen": "a kernel has no strings", "rand": "random numbers come from Python", "printf_s": "write printf",
    "cout": "write printf", "uint": "write unsigned", "ushort": "write unsigned short",
    "ulong": "write unsigned long long",
    "True": "write true", "False": "write false", "None": "write nullptr", "print": "write printf",
    "len": "a pointer does not know its length: pass it as an int", "range": "write for (int i = 0; i < n; i++)",
    "def": "a function is __device__ float f(float x) { ... }", "math": "write expf, sqrtf, ... by themselves",
    "np": "NumPy is Python's: write expf, sqrtf, ...", "numpy": "NumPy is Python's: write expf, sqrtf, ...",
}  # fmt: skip
_HALF = {
    "__half": "cuda_fp16.h",
    "half": "cuda_fp16.h",
    "__nv_bfloat16": "cuda_bf16.h",
    "nv_bfloat16": "cuda_bf16.h",
}
_HALF |= {f"{name}2": header for name, header in _HALF.items()}
# The headers of the library that a name may be missing.
_OURS = {
    "nanoeuler.cuh": r"copy_async\w*|prefetch_to_L2|ldmatrix\w*|mma|to_tf32|wmma",
    "reduce.cuh": r"(?:warp|block)_(?:sum|max)",
    "named_barrier.cuh": r"named_barrier_\w+",
}
_HOPPER = r"wgmma\w*|mbarrier_\w+|cluster_(?:rank|sync)|copy_tile|fence_async"
_CUDART = re.compile(r"CUDART_\w+")
# What CUDA has and the CPU does not: told by its name, lest the reader take it for misspelt.
_NOT_HERE = [
    (r"__\w+_r[zud]", "the CPU rounds to the nearest only (_rn)"),
    (r"__v\w+[24]|__vi\w+", "the CPU has none of the instructions on packed bytes and shorts: compute one by one"),
    (r"(?:erf(?:c?inv|cx)|normcdfinv|cyl_bessel_i[01]|normf?|rnormf?)f?", "the CPU lacks this function"),
    (r"__shfl(?:_up|_down|_xor)?|__any|__all|__ballot", "since Volta it takes a mask: {0}_sync(0xffffffff, ...)"),
    (r"__h\w+_mask|__hcmadd", "the CPU lacks this function of pairs"),
    (r"__is(?:Shared|Global|Local|Constant|GridConstant)", "the CPU does not tell kinds of memory by the address"),
    (r"__pipeline_\w+|__mbarrier_\w+", "the CPU has __pipeline_memcpy_async, _commit and _wait_prior"),
    (r"__prof_trigger|__brkpt|__nv_\w+|__nvvm_\w+|__cluster\w+", "it is for the GPU"),
    (r"cuda[A-Z]\w+", "the runtime's functions belong to the host, and here Python is the host"),
]  # fmt: skip
_STD = ("std", "cout", "vector", "string", "endl")


def first_error(text: Text, log: str, warnings: bool = False) -> KernelError | None:
    """The first error that the log of a compiler holds against a text; None if it holds none.

    warnings: those of WARNINGS count too.
    """
    entries = list(_ENTRY.finditer(log))
    wrong = [e for e in entries if e["error"]]
    wrong = wrong or [e for n, e in enumerate(entries) if warnings and _suspect(text, e, entries[n + 1 :])]
    if not wrong and "At end of source: error" not in log:
        return None
    if fault := bracket_fault(text.source):
        return compile_error(text, *fault)
    place = next((e for e in wrong if _line(text, e)), None)
    if place is None:  # in a header of the runtime: its words, at the line of the text that led there
        message = wrong[0]["message"] if wrong else log.strip()[:2000]
        led = re.search(rf"^[^\n:]*{re.escape(text.name)}:(\d+):", log, re.M)
        return compile_error(text, *_explain(text, int(led[1]) if led else 0, 0, message))
    line, column = _line(text, place), _column(place)
    return compile_error(text, *_explain(text, line, column, place["message"]))


def _suspect(text: Text, entry: re.Match, later: list[re.Match]) -> bool:
    """Whether a warning is one of a bug."""
    if entry["flag"] == "misleading-indentation":  # of `if (i >= n) return; y[i] = 1;` nobody thinks that
        second = later[0] if "does not guard" in entry["message"] and later else entry
        return not text.line(_line(text, second))[: _column(second) - 1].strip()
    return entry["flag"] in _FLAGS and not _HARMLESS.search(entry["message"])


def _line(text: Text, entry: re.Match) -> int:
    """The line of `text` (see Text) that an entry speaks of; 0 for one in another file."""
    name, line = Path(entry["file"]).name, int(entry["line"] or entry["nvrtc"])
    for number, (header, _) in enumerate(text.headers, 1):
        if name == header:
            return number * HEADER_LINES + line
    # CuPy gives the text a name of its own.
    return line if name == text.name or name.endswith(".cu") else 0


def _column(entry: re.Match) -> int:
    if entry["column"]:
        return int(entry["column"])
    return len(entry["caret"].rsplit("\n", 1)[1]) - 2 if entry["caret"] else 0


def _explain(text: Text, line: int, column: int, message: str) -> tuple[int, str, int]:
    """Line, message and column for the reader."""
    source = text.text_of(line)
    code = [there.rstrip() for there in blank_comments(source).split("\n")]
    number = min(text.find(line)[1], len(code))
    here = code[number - 1] if number else ""
    if "<<<" in here:
        sentence = "a kernel is launched from Python: name(grid, block, (arguments,))"
        return line, sentence, here.index("<<<") + 1
    if sentence := _of_the_line(here, message):
        return line, *sentence
    if number and re.search(r"unqualified-id|linkage specification", message):
        end = _end_of_code_before(code, number, 1)
        if end < number and _ends_a_struct("\n".join(code[:end])):
            return line - number + end, "a ; is missing at the end of this line", len(code[end - 1]) + 1
    if number and re.search(r"expected.*(?:;|initializer)|expected (?:a )?declaration", message):
        end = _end_of_code_before(code, number, column)
        ended = code[end - 1].endswith((";", "{", "}")) and not _ends_a_struct("\n".join(code[:end]))
        if (end < number or column > len(here)) and not ended:
            return line - number + end, "a ; is missing at the end of this line", len(code[end - 1]) + 1
    if match := re.search(_UNKNOWN, message):
        name = (_groups(match) or [_word_at(here, column)])[0]
        return line, _declared_elsewhere(name, code, number, column) or _unknown(name, source), column
    if match := re.search(_INCOMPLETE, message):
        name = _groups(match)[0]
        return line, f"'{name}' is of a header: write #include <{_HALF[name]}> at the top", column
    if match := re.search(r"no (?:matching function|instance).*?['\"](\w+)|too \w+ arguments.*'[^']*?(\w+)\(", message):
        return line, _call(_groups(match)[0]), column
    if re.search(r"'else' without|expected (?:a statement|expression)", message) and _word_at(here, column) == "else":
        sentence = "this else has no if: between the two stands one statement, or several in { }"
        return line, sentence, column
    triple = re.search(r"\b(threadIdx|blockIdx|blockDim|gridDim)\b(?!\s*\.)", here)
    if triple and re.search(r"operator|operands|subscript|convert|initialize", message):
        return line, f"{triple[1]} is three numbers: write {triple[1]}.x, .y or .z", triple.start() + 1
    for pattern, order in ((_FOUND_WANTED, 1), (_WANTED_FOUND, -1)):
        if match := re.search(pattern, message):
            return line, _conversion(*_groups(match)[::order], here[: max(0, column)]), column
    for pattern, words in _WORDS:
        if match := re.search(pattern, message):
            return line, words.format(*_groups(match)), column
    return line, _without_macros(message), column


def _of_the_line(here: str, message: str) -> tuple[str, int] | None:
    """What _LINES has to say, and the column, if the compiler met something else than it expected."""
    if here.lstrip().startswith("#") or not re.search(
        r"expected|declared|undefined|undeclared|unknown type|conversion|initialize|incompatible|too many characters",
        message,
    ):
        return None
    bare = re.sub(r"\"(?:\\.|[^\"\\])*\"", lambda m: " " * len(m[0]), here)
    for pattern, words in _LINES:
        if match := re.search(pattern, bare):
            return words.format(*match.groups()), match.start(1 if match.lastindex else 0) + 1
    return None


def _ends_a_struct(code: str) -> bool:
    return re.search(r"(?<!\w)(?:struct|class|union|enum)\b[^;{}()]*\{(?:[^{}]|\{[^{}]*\})*\}\s*$", code) is not None


def _declared_elsewhere(name: str, code: list[str], number: int, column: int) -> str:
    """The message that the text declares a name later, or in a scope that has ended; empty if it does not."""
    declaration = re.compile(
        rf"\b(?!(?:return|else|case|goto|new|delete|in|def)\b)[A-Za-z_]\w*(?:\s*[*&]+\s*|\s+){re.escape(name)}\s*[][=;,(){{:]"
    )
    places = [(n, m.start()) for n, line in enumerate(code, 1) for m in declaration.finditer(line)]
    before = [n for n, start in places if (n, start) < (number, column)]
    if before:
        return f"'{name}' is not declared here: that of line {before[-1]} lives in its {{ }}, loop or if alone"
    if places:
        return f"'{name}' is not declared yet: line {places[0][0]} does it, and must come before"
    return ""


def _conversion(got: str, wanted: str, before: str) -> str:
    """What a compiler has to say of a value's type; before: the line up to the value."""
    got, wanted = (kind.replace(" *", "*") for kind in (got, wanted))  # as g++ writes it
    bare = [re.sub(r"\bconst\b|\s", "", kind) for kind in (got, wanted)]
    if "const" in got and bare[0] == bare[1] and "*" in bare[0]:
        if atomic := re.search(r"\b(atomic\w+)\s*\([^;]*$", before):
            return _call(atomic[1])
        return f"this is const, and a {wanted} may write to it: write const there, too, or leave it out here"
    if "*" in got and "*" not in wanted and "char" not in got:
        return f"{wanted} is wanted here, and this is a pointer, {got}: is an index missing, as in x[i]?"
    return f"{wanted} is wanted here, and this is {got}"


def _groups(match: re.Match) -> list[str]:
    return [group for group in match.groups() if group]


def _end_of_code_before(code: list[str], line: int, column: int) -> int:
    """The line of the last character of code before a place; that line itself if there is none."""
    if code[line - 1][: max(0, column - 1)].strip():
        return line
    return next((n for n in range(line - 1, 0, -1) if code[n - 1]), line)


def _word_at(line: str, column: int) -> str:
    match = re.match(r"\w+", line[column - 1 :]) if column else None
    return match[0] if match else ""


def _unknown(name: str, source: str) -> str:
    if name in _STD:
        return f"'{name}' is of the C++ library, and a GPU has none: write plain loops, fmaxf, sqrtf, ..."
    if name in _HALF:
        return f"'{name}' is of a header: write #include <{_HALF[name]}> at the top"
    if _CUDART.fullmatch(name):
        return f"'{name}' is of a header: write #include <math_constants.h> at the top"
    for pattern, why in _NOT_HERE:
        if re.fullmatch(pattern, name):
            return f"'{name}' is not there for a kernel on the CPU: {why.format(name)}"
    if name in _ELSEWHERE:
        return f"'{name}' is not there for a kernel: {_ELSEWHERE[name]}"
    for header, names in _OURS.items():
        if re.fullmatch(names, name):
            return f"'{name}' is of a header: write #include <{header}> at the top"
    if re.fullmatch(_HOPPER, name):
        return f"'{name}' is for the GPU (9.0): with #include <hopper.cuh> the CPU says what it checks instead"
    words = set(re.findall(r"[A-Za-z_]\w+", blank_comments(source, strings=True)))
    near = difflib.get_close_matches(name, sorted((words | set(NAMES)) - {name}), 1, 0.7)
    lower = [word for word in NAMES if word.lower() == name.lower()]
    guess = (lower or near or [""])[0]
    return f"'{name}' is not declared" + (f"; did you mean '{guess}'?" if guess else "")


_ATOMIC_KINDS = {
    "atomicAdd": "numbers (float2 and float4 on GPUs from 9.0 on)",
    "atomicExch": "whole numbers or floats",
    "atomicInc": "unsigned",
    "atomicDec": "unsigned",
}


def _call(name: str) -> str:
    advice = ""
    if name.startswith("atomic"):
        kinds = _ATOMIC_KINDS.get(name, "whole numbers")
        advice = f": its first is an address, as in {name}(&x[i], value), of {kinds}, not const"
    elif name.endswith("_sync"):
        advice = f": its first is the mask of lanes, as in {name}(0xffffffff, value, ...)"
    return f"{name} does not take these arguments{advice}"


def _without_macros(message: str) -> str:
    """As the text has it: threadIdx and its kin are macros on the CPU."""
    message = re.sub(r"\(?nanoeuler_self\(\)\s*->\s*(?:nanoeuler_runtime::Fiber::)?(\w+)\)?", r"\1", message)
    return re.sub(r"; did you mean .*| \[-f\w+\]|(?:nanoeuler_)?runtime::", "", message)
