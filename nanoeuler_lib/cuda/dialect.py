"""What the language of kernels leaves out, each in a sentence: what CUDA has on the GPU only, and what kernels lack.

The GPU's compiler refuses most of it as well, but by other words, and some of it only when it runs. What stands in
ON_NEITHER is refused for both sides, so that a text which runs here runs there; what stands in ON_GPU_ONLY is refused
for the CPU alone. A branch of `#ifdef __CUDACC__` belongs to the GPU, its `#else` to the CPU; each side reads its own.
"""

import re
from pathlib import Path

from nanoeuler_lib.cuda.reading import bracket_fault, code_only, expand, hollow, live, words_of
from nanoeuler_lib.errors import NanoEulerError

INCLUDE = Path(__file__).parent / "include"
OF_CUDA = ["cuda_fp16.h", "cuda_bf16.h", "cuda_runtime.h", "cuda_pipeline.h", "math_constants.h"]

# A pattern with the group `name`, why it is refused, and what to write instead.
_HEAP = (
    "a kernel has no heap here",
    "declare a local array of a constant size, or pass an array from Python",
)
_END = ("a kernel cannot end the process", "return ends the thread, and assert(condition) stops the launch")
ON_NEITHER = [
    (r"(?<![\w.>:])(?P<name>malloc|free|alloca)\s*\(", *_HEAP),
    (r"(?<!\w)(?P<name>new)\s+[\w:(<]", *_HEAP),
    (r"(?<!\w)(?P<name>delete)\s*(?:\[\s*\]\s*)?[\w(*]", *_HEAP),
    (r"(?<![\w.>:])(?P<name>exit|abort)\s*\(", *_END),
    (r"(?<!\w)(?P<name>thread_local)(?!\w)", "a GPU has no variables of one thread that last",
     "a plain local variable of the kernel belongs to its thread alone"),
    (r"(?<!\w)(?P<name>try|throw|catch)(?!\w)", "a kernel has no exceptions", "assert(condition) stops the launch"),
    (r"(?<!\w)(?P<name>__activemask)(?!\w)", "it tells which lanes happen to run, and that may change from run to run",
     "use the mask that your branch knows, e.g. __ballot_sync(0xffffffff, condition)"),
]  # fmt: skip

_TWIN = "under #ifdef __CUDACC__, and behind #else what the CPU is to check instead"
ON_GPU_ONLY = [
    (r"(?<!\w)(?P<name>asm|__asm__|__asm)(?!\w)", "inline PTX is for the GPU",
     f"nanoeuler.cuh has copy_async, ldmatrix and mma for both; else put it {_TWIN}"),
    (r"(?<!\w)(?P<name>__cluster_\w+)(?!\w)", "clusters of blocks are for the GPU (9.0 and later)", f"put it {_TWIN}"),
    (r"(?<!\w)(?P<name>cooperative_groups|cg(?=\s*::))(?!\w)", "cooperative groups are for the GPU",
     f"write __syncthreads(), __syncwarp(mask), __shfl_down_sync(mask, ...), or put it {_TWIN}"),
    (r"(?<!\w)(?P<name>nvcuda)\s*::", "CUDA's header of tensor cores is for the GPU",
     "include <nanoeuler.cuh>, which has wmma::fragment and mma for both"),
    (r"(?<!\w)(?P<name>cuda\s*::\s*\w+)", "CUDA's C++ library is for the GPU",
     f"write __syncthreads() and copy_async, or put it {_TWIN}"),
    (r"(?<!\w)(?P<name>__nv_fp[468]\w*|__nv_cvt_\w+)", "numbers of 8 bits and fewer are for the GPU",
     f"put them {_TWIN}"),
    (r"(?<!\w)(?P<name>cudaTextureObject_t|cudaSurfaceObject_t|tex[123]D\w*|surf[123]D\w*)(?!\w)",
     "textures and surfaces are for the GPU", "read the array itself"),
]  # fmt: skip
# What the names of CUDA's other headers begin with, why the CPU does not have them, and what to do.
HEADERS = [
    ("cooperative_groups", "cooperative groups are for the GPU", "__syncthreads() and the shuffles need no header"),
    ("mma.h", "it is for the GPU", "<nanoeuler.cuh> has wmma::fragment and mma for both"),
    ("cuda_fp", "numbers of 8 bits and fewer are for the GPU", ""),
    ("cuda_awbarrier", "barriers in shared memory are for the GPU", "<hopper.cuh> has them"),
    ("cuda/", "CUDA's C++ library is for the GPU", "<nanoeuler.cuh> has copy_async for both"),
    ("cub/", "CUB is for the GPU", "write the reduction or scan itself"),
    ("thrust/", "Thrust is called by C++ on the host, and here Python is the host", ""),
    ("curand", "random numbers come from Python, as an array", ""),
    ("device_launch_parameters.h", "threadIdx and its kin are there without it", "leave the line out"),
    ("vector_types.h", "float4 and its kin are there without it", "leave the line out"),
    ("cuda", "it is not among the headers that the CPU has", ""),
]  # fmt: skip


def refuse(text, folder: Path, where: str) -> None:
    """Raise NanoEulerError for the first thing in a text (source.Text) that this side does not have."""
    sources = [(text.name, text.source), *text.headers]
    if any(bracket_fault(live(source, where)) for _, source in sources):
        return  # the compiler's error, of which complaints.py makes this one
    words = words_of("\n".join(live(source, where) for _, source in sources))
    for name, source in sources:
        alive = live(source, where)
        faults = [_include(alive, folder, where), _host_function(alive, words), *_names(alive, where)]
        for place, message, advice in sorted(fault for fault in faults if fault):
            line = alive[:place].count("\n") + 1
            told = [f"{name}, line {line}: {message}", source.split("\n")[line - 1].strip(), advice]
            raise NanoEulerError("\n  ".join(part for part in told if part))


def _include(alive: str, folder: Path, where: str) -> tuple[int, str, str] | None:
    """The first header that this side does not find: place, why, and what to do."""
    offered = [*sorted(f.name for f in [*INCLUDE.glob("*.cuh"), *folder.glob("*.cuh")]), *OF_CUDA]
    for match in re.finditer(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]*)", alive, re.M):
        known = next((entry for entry in HEADERS if match[1].startswith(entry[0])), None)
        if match[1] in offered or (known and where == "gpu"):
            continue
        _, why, advice = known or ("", "a GPU has no C or C++ library", "")
        return (
            match.start(),
            f"a kernel cannot include <{match[1]}>: {why}",
            advice or f"there are {', '.join(offered)}",
        )
    return None


def _names(alive: str, where: str) -> list[tuple[int, str, str]]:
    """What is refused by its name, unless the text has a function or macro of that name itself."""
    code, found = code_only(alive), []
    own = {m[1] for m in re.finditer(r"[\w>*&]\s+(\w+)\s*\([^;{}()]*\)\s*\{", code)} | set(words_of(alive))
    for table, on in ((ON_NEITHER, "for a kernel"), (ON_GPU_ONLY if where == "cpu" else [], "on the CPU")):
        for pattern, why, advice in table:
            match = next((m for m in re.finditer(pattern, code) if m["name"] not in own), None)
            if match:
                found.append((match.start("name"), f"'{match['name']}' is not there {on}: {why}", advice))
    return found


# A function as its head stands before the {, brackets emptied: its name, or operator and what it is.
_FUNCTION = re.compile(
    r"(?:^|[\s*&>~])(?P<name>operator\s*(?:\(\s*\)|[^\s\w(]+|\w[\w\s*&]*)|~?\w+)\s*\(\s*\)\s*"
    r"(?:(?:const|noexcept|override|final|volatile|&)\s*)*(?:->.*|:[^:].*)?\s*$", re.S,
)  # fmt: skip


def _host_function(alive: str, words: dict[str, str]) -> tuple[int, str, str] | None:
    """The first function that is not marked __device__: place, why, what to do."""
    code = code_only(alive)
    around, start = (
        [],
        0,
    )  # what the open braces belong to: "scope" (a namespace or struct), "function" or "other"
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
            found = _FUNCTION.search(hollow(head))
            marked = re.search(r"\b__(?:device|global)__\b", expand(head, words))
            operators = found and found["name"].startswith("operator")
            lambdas = re.search(r"=\s*\[[^]]*\]\s*(?:\(|$)", hollow(head))
            if not marked and (lambdas or (found and (operators or "=" not in hollow(head)))):
                place = begin + (len(head) - len(head.lstrip()) if lambdas else found.start("name"))
                if lambdas:
                    return (
                        place,
                        "a lambda outside of functions belongs to the host",
                        "write it inside the kernel",
                    )
                if hollow(head)[: found.start("name")].strip() or "scope" in around:
                    name = " ".join(found["name"].split())
                    return (
                        place,
                        f"`{name}` is a function of the host, and a kernel cannot call it",
                        "write __device__ before it",
                    )
        around.append(kind)
    return None


def _without_alignment(head: str) -> str:
    return re.sub(r"(?:__align__|alignas)\s*\([^()]*\)", " ", head)
