"""What the language of kernels leaves out, each in a sentence: what CUDA has on the GPU only, and what kernels lack.

ON_NEITHER is refused for both sides, so that a text which runs on the CPU runs on the GPU; ON_GPU_ONLY and unknown
headers are refused for the CPU. What a compiler refuses by itself with a readable message is left to it. A branch of
`#ifdef __CUDACC__` belongs to the GPU, its `#else` to the CPU; each side reads its own.
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

# A pattern with the group `name`, why it is refused, and what to write instead.
_HEAP = ("a kernel has no heap here", "declare a local array of a constant size, or pass an array from Python")
_END = ("a kernel cannot end the process", "return ends the thread, and assert(condition) stops the launch")
ON_NEITHER = [
    (r"(?<![\w.>:])(?P<name>malloc|calloc|realloc|free|alloca)\s*\(", *_HEAP),
    (r"(?<!\w)(?P<name>new)\s+[\w:(<]", *_HEAP),
    (r"(?<!\w)(?P<name>delete)\s*(?:\[\s*\]\s*)?[\w(*]", *_HEAP),
    (r"(?<![\w.>:])(?P<name>exit|abort)\s*\(", *_END),
    (r"(?<!\w)(?P<name>thread_local)(?!\w)", "a GPU has no variables of one thread that last",
     "a plain local variable of the kernel belongs to its thread alone"),
    (r"(?<!\w)(?P<name>__activemask)(?!\w)", "it tells which lanes happen to run, and that may change from run to run",
     "use the mask that your branch knows, e.g. __ballot_sync(0xffffffff, condition)"),
]  # fmt: skip

_TWIN = "put it under #ifdef __CUDACC__, and behind #else what the CPU is to check instead"
ON_GPU_ONLY = [
    (r"(?<!\w)(?P<name>asm|__asm__|__asm)(?!\w)", "inline PTX is for the GPU", _TWIN),
    (r"(?<!\w)(?P<name>__cluster_\w+)(?!\w)", "clusters of blocks are for the GPU (9.0 and later)", _TWIN),
]


def refuse(text, headers: Iterable[str], where: str) -> None:
    """Raise CudaCheckError for the first thing in a text (source.Text) that this side does not have."""
    sources = [(text.name, text.source), *text.headers]
    if any(bracket_fault(live(source, where)) for _, source in sources):
        return  # the compiler's error, of which complaints.py makes this one
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
    """The first header that a kernel on the CPU cannot have: place, message, and what there is."""
    offered = [*sorted([*(file.name for file in INCLUDE.glob("*.cuh")), *headers]), *OF_CUDA]
    for match in re.finditer(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]*)", alive, re.M):
        if match[1] not in offered:
            return match.start(), f"a kernel on the CPU cannot include <{match[1]}>", f"there are {', '.join(offered)}"
    return None


def _names(alive: str, where: str) -> list[tuple[int, str, str]]:
    """What is refused by its name, unless the text has a function or macro of that name itself."""
    code, refused = _with_macros(alive), []
    functions = {m[1] for m in re.finditer(r"[\w>*&]\s+(\w+)\s*\([^;{}()]*\)\s*\{", code)}
    defined = functions | set(words_of(alive))
    for table, on in ((ON_NEITHER, "for a kernel"), (ON_GPU_ONLY if where == "cpu" else [], "on the CPU")):
        for pattern, why, advice in table:
            match = next((m for m in re.finditer(pattern, code) if m["name"] not in defined), None)
            if match:
                refused.append((match.start("name"), f"'{match['name']}' is not there {on}: {why}", advice))
    return refused


def _with_macros(alive: str) -> str:
    """The code, and the bodies of those macros that it uses."""
    code, bare = code_only(alive), blank_comments(alive, strings=True)
    for macro in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:[^\n]*\\\n)*[^\n]*", bare, re.M):
        if re.search(rf"\b{macro[1]}\b", code):
            code = code[: macro.end(1)] + bare[macro.end(1) : macro.end()] + code[macro.end() :]
    return code


# A function as its head stands before the {, brackets emptied: its name, or operator and what it is.
_FUNCTION = re.compile(
    r"(?:^|[\s*&>~])(?P<name>operator\s*(?:\(\s*\)|[^\s\w(]+|\w[\w\s*&]*)|~?\w+)\s*\(\s*\)\s*"
    r"(?:(?:const|noexcept|override|final|volatile|&)\s*)*(?:->.*|:[^:].*)?\s*$", re.S,
)  # fmt: skip


def _host_function(alive: str, words: dict[str, str]) -> tuple[int, str, str] | None:
    """The first function that is not marked __device__: place, why, what to do."""
    code = code_only(alive)
    around = []  # what the open braces belong to: "scope" (a namespace or struct), "function" or "other"
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
    """The first variable outside of functions that is neither const nor marked: place, why, what to do."""
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
    """The first __device__ or __constant__ variable inside a function: place, why, what to do."""
    code = code_only(alive)
    for match in re.finditer(r"[;{}]\s*(__(?:device|constant)__)(?!\w)", code):
        braces = open_braces(code, match.start(1))
        head = re.split(r"[;{}]", code[: braces[-1]])[-1] if braces else ""
        scope = r"(?<!\w)(?:namespace|extern|struct|class|union)(?!\w)[^()=]*$"
        if braces and not re.search(scope, _without_alignment(head)):
            return (
                match.start(1),
                f"{match[1]} variables stand outside of functions",
                "move it above the kernel; a plain variable inside belongs to its thread alone",
            )
    return None


def _call_of_a_kernel(alive: str) -> tuple[int, str, str] | None:
    """The first call of a kernel as if it were a function: place, why, what to do."""
    code = code_only(alive)
    kernels = r"(?<!\w)__global__(?!\w)(?:[^;{}()]|\([^()]*\))*?(?<!\w)(?!__\w+__)(\w+)\s*\("
    for name in {match[1] for match in re.finditer(kernels, code)}:
        if re.search(rf"(?<!\w)__device__(?!\w)[^;{{}}()]*(?<!\w){name}\s*\(", code):
            continue
        for call in re.finditer(rf"(?:[;{{}})]|(?<!\w)else)\s*({name})\s*(?:<[^<>;(]*>\s*)?\(", code):
            # before a head's name
            bounds = re.search(r"__launch_bounds__\s*\([^;{}]*$", code[: call.start(1)])
            if not bounds and open_braces(code, call.start(1)):
                return (
                    call.start(1),
                    f"`{name}` is a kernel, and a kernel cannot call another",
                    f"what both do stands in a function: __device__ void {name}_part(...)",
                )
    return None
