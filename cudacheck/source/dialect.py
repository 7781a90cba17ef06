"""Refuse code that kernels cannot use or that does not exist on the CPU, and explain each refusal.

The code listed in ON_NEITHER is refused on both sides (CPU and GPU), so that a text that runs on the CPU also runs on
the GPU. The code listed in ON_GPU_ONLY and unknown headers are refused on the CPU. Code that a compiler refuses with a
readable message is left to the compiler. The branch `#ifdef __CUDACC__` is read only for the GPU, and its `#else`
branch only for the CPU.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from cudacheck.errors import CudaCheckError
from cudacheck.source.reading import (
    at_top,
    blank_comments,
    bracket_fault,
    code_only,
    expand,
    function_macros,
    hollow,
    live,
    open_braces,
    words_of,
)

INCLUDE = Path(__file__).parents[1] / "include"
OF_CUDA = ["cuda_fp16.h", "cuda_bf16.h", "cuda_runtime.h", "cuda_pipeline.h", "math_constants.h"]

# Entries: a pattern with the group `name`, the reason for refusing it, and what to write instead.
_HEAP = ("a kernel cannot allocate memory", "declare a local array of a constant size, or pass an array from Python")
_END = ("a kernel cannot end the process", "return ends the thread, and assert(condition) stops the launch")
ON_NEITHER = [
    (r"(?<![\w.>:])(?P<name>malloc|calloc|realloc|free|alloca)\s*\(", *_HEAP),
    (r"(?<!\w)(?P<name>new)\s+[\w:(<]", *_HEAP),
    (r"(?<!\w)(?P<name>delete)\s*(?:\[\s*\]\s*)?[\w(*]", *_HEAP),
    (r"(?<![\w.>:])(?P<name>exit|abort)\s*\(", *_END),
    (r"(?<!\w)(?P<name>thread_local)(?!\w)", "a GPU thread has no static variables",
     "use a local variable of the kernel, which is private to its thread"),
    (r"(?<!\w)(?P<name>__activemask)(?!\w)", "the lanes that it returns may vary from run to run",
     "use the mask that your branch knows, e.g. __ballot_sync(0xffffffff, condition)"),
]  # fmt: skip

_TWIN = "put it under #ifdef __CUDACC__, and after #else write what the CPU should check instead"
ON_GPU_ONLY = [
    (r"(?<!\w)(?P<name>asm|__asm__|__asm)(?!\w)", "inline PTX is for the GPU", _TWIN),
    (r"(?<!\w)(?P<name>__cluster_\w+)(?!\w)", "clusters of blocks are for the GPU (9.0 and later)", _TWIN),
]


def refuse(text, headers: Iterable[str], where: str) -> None:
    """Raise CudaCheckError for the first code in a text (source.Text) that this side does not support.

    headers: names of further headers that the text may include; where: the side, "cpu" or "gpu".
    """
    sources = [(text.name, text.source), *text.headers]
    if any(bracket_fault(live(source, where)) for _, source in sources):
        return  # the compiler reports it, and complaints.py explains that error
    everything = "\n".join(live(source, where) for _, source in sources)
    words = words_of(everything) | {name: body for name, (_, body) in function_macros(everything).items()}
    for name, source in sources:
        alive = live(source, where)
        faults = [
            _include(alive, headers) if where == "cpu" else None,
            _host_function(alive, words),
            _host_variable(alive, words),
            _variable_of_a_function(alive),
            _call_of_a_kernel(alive),
            *_names(alive, where),
        ]
        for place, message, advice in sorted(fault for fault in faults if fault):
            line = alive[:place].count("\n") + 1
            report = [f"{name}, line {line}: {message}", source.split("\n")[line - 1].strip(), advice]
            raise CudaCheckError("\n  ".join(part for part in report if part))


def _include(alive: str, headers: Iterable[str]) -> tuple[int, str, str] | None:
    """Find the first header that a kernel on the CPU cannot include; return its place, a message, and known headers."""
    offered = [*sorted([*(file.name for file in INCLUDE.glob("*.cuh")), *headers]), *OF_CUDA]
    for match in re.finditer(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]*)", alive, re.M):
        if match[1] not in offered:
            message, advice = f"a kernel on the CPU cannot include <{match[1]}>", f"available: {', '.join(offered)}"
            return match.start(), message, advice
    return None


def _names(alive: str, where: str) -> list[tuple[int, str, str]]:
    """Return the refused names, without the names of functions and macros that the text itself defines."""
    code, refused = _with_macros(alive), []
    functions = {m[1] for m in re.finditer(r"[\w>*&]\s+(\w+)\s*\([^;{}()]*\)\s*\{", code)}
    defined = functions | set(words_of(alive))
    for table, on in ((ON_NEITHER, "in a kernel"), (ON_GPU_ONLY if where == "cpu" else [], "on the CPU")):
        for pattern, why, advice in table:
            match = next((m for m in re.finditer(pattern, code) if m["name"] not in defined), None)
            if match:
                refused.append((match.start("name"), f"'{match['name']}' is not available {on}: {why}", advice))
    return refused


def _with_macros(alive: str) -> str:
    """Return the code together with the bodies of the macros that it uses."""
    code, bare = code_only(alive), blank_comments(alive, strings=True)
    for macro in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:[^\n]*\\\n)*[^\n]*", bare, re.M):
        if re.search(rf"\b{macro[1]}\b", code):
            code = code[: macro.end(1)] + bare[macro.end(1) : macro.end()] + code[macro.end() :]
    return code


# A function's head, as it appears before the { with brackets emptied; name: its name, or `operator` and the operator.
_FUNCTION = re.compile(
    r"(?:^|[\s*&>~])(?P<name>operator\s*(?:\(\s*\)|[^\s\w(]+|\w[\w\s*&]*)|~?\w+)\s*\(\s*\)\s*"
    r"(?:(?:const|noexcept|override|final|volatile|&)\s*)*(?:->.*|:[^:].*)?\s*$", re.S,
)  # fmt: skip


def _host_function(alive: str, words: dict[str, str]) -> tuple[int, str, str] | None:
    """Find the first function that is not marked __device__; return its place, the reason and advice."""
    code = code_only(alive)
    around = []  # kinds of the open braces: "scope" (a namespace or struct), "function" or "other"
    start = 0
    for match in re.finditer(r"[{};]", code):
        head, begin, start = code[start : match.start()], start, match.end()
        if match[0] == "}":
            around[-1:] = []
        if match[0] != "{":
            continue
        kind = "other"
        if re.search(r"(?<!\w)(?:namespace|extern)\b[\s\w:]*$", head) or re.search(
            r"(?<!\w)(?:struct|class|union)\b[^()=]*$", _without_alignment(head)
        ):
            kind = "scope"
        elif not around or around[-1] == "scope":
            head = re.sub(r"^\s*(?:public|private|protected)\s*:(?!:)", lambda m: " " * len(m[0]), head)
            kind = "function"
            function = _FUNCTION.search(hollow(head))
            marked = re.search(r"\b__(?:device|global)__\b", expand(head, words))
            operators = function and function["name"].startswith("operator")
            lambdas = re.search(r"=\s*\[[^]]*\]\s*(?:\(|$)", hollow(head))
            if not marked and (lambdas or (function and (operators or "=" not in hollow(head)))):
                place = begin + (len(head) - len(head.lstrip()) if lambdas else function.start("name"))
                if lambdas:
                    return place, "a lambda outside of functions belongs to the host", "write it inside the kernel"
                if hollow(head)[: function.start("name")].strip() or "scope" in around:
                    name = " ".join(function["name"].split())
                    advice = "write __device__ before it"
                    if name == "main":
                        advice = "leave it out: here Python is the host, and name(grid, block, (arguments,)) launches"
                    return place, f"`{name}` is a function of the host, and a kernel cannot call it", advice
        around.append(kind)
    return None


def _without_alignment(head: str) -> str:
    return re.sub(r"(?:__align__|alignas)\s*\([^()]*\)", " ", head)


_VARIABLE = re.compile(
    r"\s*(?:[A-Za-z_][\w:]*(?:<\s*>)?[\s*&]+)+(?P<name>[A-Za-z_]\w*)\s*(?:\[\s*\]\s*)*(?:=.*)?", re.S
)
_NO_VARIABLE = re.compile(
    r"(?<!\w)(?:const|constexpr|__\w+__|extern|using|typedef|template|namespace|struct|class|union|enum|friend|return"
    r"|static_assert|operator)(?!\w)"
)


def _host_variable(alive: str, words: dict[str, str]) -> tuple[int, str, str] | None:
    """Find the first host variable, neither const nor marked; return its place, the reason and advice."""
    code, start = code_only(alive), 0
    for match in re.finditer(r"[{};]", code):
        head, begin, start = code[start : match.start()], start, match.end()
        variable = _VARIABLE.fullmatch(hollow(_without_alignment(head)))
        if match[0] == "}" or not variable or (match[0] == "{" and "=" not in head):
            continue
        if _NO_VARIABLE.search(expand(head, words)) or not at_top(code, begin):
            continue
        return (
            begin + variable.start("name"),
            f"`{variable['name']}` is a variable of the host, and a kernel cannot reach it",
            "write __device__ before it, or __constant__ or const if it never changes",
        )
    return None


def _variable_of_a_function(alive: str) -> tuple[int, str, str] | None:
    """Find the first __device__ or __constant__ variable in a function; return its place, the reason and advice."""
    code = code_only(alive)
    for match in re.finditer(r"[;{}]\s*(__(?:device|constant)__)(?!\w)", code):
        braces = open_braces(code, match.start(1))
        head = re.split(r"[;{}]", code[: braces[-1]])[-1] if braces else ""
        scope = r"(?<!\w)(?:namespace|extern|struct|class|union)(?!\w)[^()=]*$"
        if braces and not re.search(scope, _without_alignment(head)):
            return (
                match.start(1),
                f"{match[1]} variables must be outside of functions",
                "move it above the kernel; a variable inside a kernel is private to its thread",
            )
    return None


def _call_of_a_kernel(alive: str) -> tuple[int, str, str] | None:
    """Find the first kernel that is called like a function; return the call's place, the reason and advice."""
    code = code_only(alive)
    kernels = r"(?<!\w)__global__(?!\w)(?:[^;{}()]|\([^()]*\))*?(?<!\w)(?!__\w+__)(\w+)\s*\("
    for name in {match[1] for match in re.finditer(kernels, code)}:
        if re.search(rf"(?<!\w)__device__(?!\w)[^;{{}}()]*(?<!\w){name}\s*\(", code):
            continue
        for call in re.finditer(rf"(?:[;{{}})]|(?<!\w)else)\s*({name})\s*(?:<[^<>;(]*>\s*)?\(", code):
            # a kernel's own head after __launch_bounds__(...) looks like a call
            bounds = re.search(r"__launch_bounds__\s*\([^;{}]*$", code[: call.start(1)])
            if not bounds and open_braces(code, call.start(1)):
                return (
                    call.start(1),
                    f"`{name}` is a kernel, and a kernel cannot call another",
                    f"move the common part into a function: __device__ void {name}_part(...)",
                )
    return None
