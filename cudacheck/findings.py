"""Describe the checker's findings and the compilers' errors in messages, and define KernelError."""

import re
import textwrap
from dataclasses import dataclass

from cudacheck.errors import CudaCheckError
from cudacheck.source import Text
from cudacheck.source.reading import blank_comments

WIDTH = 95  # characters per line of a finding, as many as fit on a page of the book

# Advice for findings, by a pattern of their kind and message; the first match is used.
ADVICE = {
    "^race between blocks with an atomic": "an atomic and a plain access race, too: use atomics for both",
    "^race between blocks near atomics": (
        "order the blocks: one does write, __threadfence(), atomic; the other does atomic, read"
    ),
    "^race of updates.*near atomics": (
        "use atomicAdd; with a lock, call __threadfence() after taking it and before releasing it"
    ),
    "^race of updates between": "both blocks read and write it: use atomicAdd, or give every block its own place",
    "^race in one place": "all threads access this one place: let one thread write it, or use an atomic",
    "^race with a volatile": (
        "volatile orders nothing: write, __threadfence(), set the flag; see it, __threadfence(), read"
    ),
    "^race of updates": "both threads read it and write it back, losing one result: atomicAdd does it in one step",
    "^race between blocks": "blocks run in any order: use an atomic, or give every block a place of its own",
    "^race with an atomic": "an atomic and a plain access race, too: use atomics for both, or __syncthreads() between",
    "^race near atomics": (
        "no __syncthreads() is between the two; a lock or flag needs __threadfence() before its atomic"
    ),
    "^race": "nothing orders the two: no __syncthreads() (in one warp: __syncwarp()) lies between them",
    "^missing wait.*still under way": "copy_async_wait<0>() waits for all; then __syncthreads(), before anyone reads",
    "^uninitialised": "which thread was to write it, and before which barrier?",
    "named barrier": "whole warps must reach the same call, and all calls for one barrier the same count",
    "^divergent barrier": "every thread must reach the same __syncthreads(): guard the work, not the barrier",
    "^deadlock": "a barrier or warp function waits for threads that never reach it: check its mask and branch",
    "^read-only.*const,": "write results to an array that is not const",
    "^read-only": "only the host sets __constant__ variables: write results to an array",
    "its width must be": "the width is the number of lanes in each segment of the warp",
    "^warp function|shuffle": "the mask must name exactly the lanes that reach the call: is the call inside a branch?",
    "^missing wait": "call copy_async_wait, then __syncthreads(), before anyone reads what the copy brings",
    "^endless": "does its condition ever become false? (a launch that is only slow takes seconds=...)",
    "^misaligned": "a float4, a row of ldmatrix and a copy of 16 bytes start at a multiple of 16, a float2 of 8",
    r"\[42949\d{5}\]": "the index is unsigned and fell below 0: threadIdx.x - 1 is 4294967295 in thread 0",
    "in no array": "the index is far out of range, or the pointer was never set",
    "null pointer": "the pointer was not set to an array",
    "^shared memory": "an array takes rows x columns x bytes per element: is a smaller tile enough?",
    "has returned": "a local variable ends when its function returns: let the caller declare it and pass its address",
    "too large for 'int'": "an int holds numbers up to 2147483647: compute large indices as long long",
    "^crash.*stack": "a thread's stack is small: avoid recursion and large local arrays",
}


@dataclass(frozen=True)
class Finding:
    """One bug in a kernel: its kind, message and location.

    kind: "out of bounds", "race", "uninitialised", "misaligned", "divergent barrier", "deadlock", "warp function",
    "missing wait", "endless", "undefined", "failure", "shared memory", "read-only", "crash" or "compilation"; text: the
    full message; file, line: the place of the bug, with line 0 if unknown; block, thread: (x, y, z), None if no single
    thread caused the bug; other_thread, other_line: the second access of a race.
    """

    kind: str
    kernel: str
    text: str
    file: str = ""
    line: int = 0
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None
    other_thread: tuple[int, int, int] | None = None
    other_line: int = 0


class KernelError(CudaCheckError):
    """Report a kernel that does not compile or has a bug; the attribute `finding` has the details."""

    def __init__(self, finding: Finding):
        super().__init__(finding.text)
        self.finding = finding


def compile_error(text: Text, line: int, message: str, column: int = 0) -> KernelError:
    """Return the error for a compiler's message at a line and column of a text; line 0 means outside the text."""
    file, number, code = text.find(line)
    if not line:
        return KernelError(Finding("compilation", text.name, f"{file}: {message}", file))
    report = f"{file}, line {number}: {message}\n  {code}"
    if code and column:
        written = text.line(line)
        indent = len(written) - len(written.lstrip())
        report += "\n" + " " * (column + 1 - indent) + "^"
    return KernelError(Finding("compilation", text.name, report, file, number))


def explain(raw, kernel: str, text: Text, line_of, arrays: list, block: tuple[int, int, int]) -> KernelError:
    """Convert the runtime's record of a bug to an error with a message.

    raw: `Finding` of runtime.h; line_of: function from a site to a line of `text`; arrays: the array arguments as
    (name, array); block: the launch's block shape.
    """
    kind = raw.kind.decode()
    message = re.sub(r"\bline (\d+)", lambda m: text.where(int(m[1])), raw.message.decode(errors="replace"))
    message = re.sub(r"'(\w+)\[", r"'\1 [", message)  # Clang writes 'float[64]', g++ 'float [64]'
    line, other_line = line_of(raw.site), line_of(raw.other_site)
    line = line or next(filter(None, map(line_of, raw.trail)), 0)
    if kind == "shared memory":
        line = line or _declaration(message, text)
    report = [f"{kind}: {message}{_place(raw, kind, arrays, text, line)}"]
    thread = block_index = other = None
    if raw.has_thread:
        block_index, thread = tuple(raw.block), tuple(raw.thread)
        report.append(f"  in kernel {kernel}, block {_index(block_index)}, thread {_index(thread)}")
    else:
        report.append(f"  in kernel {kernel}")
    if line:
        report.append(f"  {text.quote(line)}")
    if kind == "divergent barrier":
        report += _calls(raw, text, line_of)
    if raw.other_thread >= 0:
        t = raw.other_thread
        other = (t % block[0], t // block[0] % block[1], t // (block[0] * block[1]))
        report.append(f"  the other: thread {_index(other)}" + (f", {text.quote(other_line)}" if other_line else ""))
    elif other_line:
        who = {-2: "a thread of another block, ", -3: "another thread, "}.get(
            raw.other_thread, _OTHER.get(kind, "the other: ")
        )
        report.append(f"  {who}{text.quote(other_line)}")
    lines = [text.line(line), text.line(other_line)]
    if advice := _advice(raw, report[0], text, arrays, lines[:1] if line == other_line else lines):
        report.append(f"  {advice}")
    report[0] = textwrap.fill(report[0], WIDTH, subsequent_indent="    ", break_long_words=False)
    (file, number, _), other_number = text.find(line), text.find(other_line)[1]
    words = "\n".join(report)
    return KernelError(Finding(kind, kernel, words, file, number, block_index, thread, other, other_number))


_OTHER = {"missing wait": "the copy: ", "uninitialised": "used in: "}  # labels of the second line, by kind


def _declaration(message: str, text: Text) -> int:
    """Return the line that declares the __shared__ array named in the message."""
    name = re.search(r"bytes with (\w+)", message)
    declaration = name and re.search(
        rf"(?<!\w)__shared__(?!\w)[^;]*?(?<!\w){name[1]}(?!\w)", blank_comments(text.source)
    )
    return text.source[: declaration.end()].count("\n") + 1 if declaration else 0


def _calls(raw, text: Text, line_of) -> list[str]:
    """Return lines that say where a waiting thread and the first thread called a function with a barrier."""
    half, calls = len(raw.trail) // 2, []
    for who, sites in (("called in ", raw.trail[1:half]), ("the other in ", raw.trail[half + 1 :])):
        lines = [text.quote(line) for line in map(line_of, sites) if line]
        calls += [f"  {who}{lines[-1]}"] if lines else []  # the outermost call, in the kernel itself
    return calls


def _place(raw, kind: str, arrays: list, text: Text, line: int) -> str:
    """Describe the element that was accessed, for example ': x[16]  (x: float32 of shape (16,), 16 elements)'."""
    nowhere = re.search(rb"null pointer|local|no array|no end", raw.message)
    if nowhere or (raw.array == -1 and kind != "out of bounds"):
        return ""
    if raw.array == -1:
        return _written(text.line(line), raw.columns) if raw.columns else " at an address that is in no array"
    index = raw.offset // raw.element
    name = raw.name.decode()
    element = f"[{index // raw.columns}][{index % raw.columns}]" if raw.columns else f"[{index}]"
    single = raw.space.startswith(b"__") or (raw.space and not re.search(rf"\b{name}\s*\[", text.source))
    if single and raw.bytes == raw.element and index == 0:
        element = ""  # a scalar
    if not name:
        return ": a static variable of a function"
    if raw.array == -2:
        size = f"{raw.space.decode()}, {raw.bytes // raw.element} elements"
    else:
        array = arrays[raw.array][1]
        size = f"{array.dtype} of shape {array.shape}, {array.size} elements"
    return f": {name}{element}" + (f"  ({name}: {size})" if kind == "out of bounds" else "")


# x[..], x[..][..] and x.y[..], with at most one level of nested brackets; the lookahead finds overlapping matches too.
_INDEX = r"\s*\[(?:[^][]|\[[^][]*\])*\]"
_ELEMENT = re.compile(rf"(?=\b([A-Za-z_]\w*(?:\s*\.\s*\w+|{_INDEX})*{_INDEX}))")


def _written(code: str, column: int) -> str:
    """Return the source of an accessed element, ': s[i + 1]'; g++ gives the column of its ], Clang of its name."""
    if "__shared__" in code:
        return ""  # `prepare` made the line longer, so the column is wrong
    elements = [match[1] for match in _ELEMENT.finditer(code) if match.start() < column <= match.end(1)]
    return f": {min(elements, key=len)}" if elements else ""


def _advice(raw, message: str, text: Text, arrays: list, lines: list[str]) -> str:
    """Return the advice for a bug, or "". lines: the source lines of its accesses, one if both are on the same line."""
    if raw.kind == b"race":
        name, atomic = re.escape(raw.name.decode()), any("atomic" in line for line in lines)
        update, blocks = raw.update and len(lines) == 1, raw.other_thread == -2
        one_place = rf"(?<!\w){name}\s*\[\s*\d+\s*\]|\*\s*{name}(?!\w)"
        message = "race" + " of updates" * update + " between blocks" * blocks
        if raw.atomics == 1 and not atomic and "volatile" in text.source:
            message = "race with a volatile"
        elif raw.atomics and not (update and raw.atomics == 1):
            message += [" with an atomic", " near atomics"][raw.atomics - 1]
        elif not update and name and len(lines) == 1 and re.search(one_place, lines[0]):
            message = "race in one place"
    if judged := re.search(r"index (-?\d+) of an array '[^'[]*\[(\d+)\]", message):
        index, size = map(int, judged.groups())
        if index < 0:
            return "the first element is [0]: is a guard for the first threads missing?"
        message = f"the last element is [{size - 1}]: is a guard missing, or <= written instead of <?"
        return message if index == size else ""
    if raw.kind == b"out of bounds" and raw.array != -1 and raw.element and b"null" not in raw.message:
        name, index = raw.name.decode(), raw.offset // raw.element
        if re.search(rf"extern\s+__shared__[^;]*\b{re.escape(name)}\s*\[\s*\]", blank_comments(text.source)):
            return f"the launch gives {name} its size: shared_mem, in bytes"
        if index < 0:
            return f"the first element is {name}[0]: is a guard for the first threads missing?"
        if raw.array >= 0 and index == arrays[raw.array][1].size:
            return f"the last element is {name}[{index - 1}]: is a guard missing, or <= written instead of <?"
    return next((advice for pattern, advice in ADVICE.items() if re.search(pattern, message)), "")


def _index(triple) -> str:
    return "({},{},{})".format(*triple)
