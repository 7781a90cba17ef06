"""What the checker and the compilers have to say about a kernel, in words."""

import re
from dataclasses import dataclass

from nanoeuler_lib.cuda.source import Text
from nanoeuler_lib.errors import NanoEulerError

# What to look at, for each kind of finding that says less than the reader needs.
ADVICE = {
    "race": "nothing orders the two: no __syncthreads() (or, inside one warp, __syncwarp()) lies between them",
    "race between blocks": "blocks run in any order: use an atomic, or give every block a place of its own",
    "uninitialised": "which thread was to write it, and before which barrier?",
    "divergent barrier": "every thread of a block must reach the same __syncthreads(): guard the work, not the barrier",
    "deadlock": "a barrier or warp function waits for threads that do not come: check its mask and the branch it is in",
    "missing wait": "call copy_async_wait, then __syncthreads(), before anyone reads what the copy brings",
    "endless": "a checked launch may take `seconds=...`; checked=False is faster, and never stops",
    "misaligned": "a float4 needs a start that is a multiple of 16 bytes, a float2 of 8",
}


@dataclass(frozen=True)
class Finding:
    """One bug: what it is and where it is.

    kind: "out of bounds", "race", "uninitialised", "misaligned", "divergent barrier", "deadlock", "warp function",
    "missing wait", "endless", "undefined", "failure", "shared memory", "crash" or "compilation"; block and thread:
    (x, y, z), None if no one thread is to blame; file and line: where, 0 if unknown; other_thread and other_line: the
    second access of a race; text: the whole message.
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


class KernelError(NanoEulerError):
    """A kernel does not compile, or the checker found a bug in it; `finding` holds what is known of it."""

    def __init__(self, finding: Finding):
        super().__init__(finding.text)
        self.finding = finding

    def _render_traceback_(self) -> list[str]:
        """What IPython and Jupyter show: the text by itself, which says where in the kernel the bug is."""
        return str(self).split("\n")


def compile_error(text: Text, line: int, message: str) -> KernelError:
    """The first error of a compiler; line: 0 if it is not in the text itself."""
    file, number, _ = text.find(line)
    told = f"{file}, line {number}: {message}\n  {text.quote(line)}" if line else f"{file}: {message}"
    return KernelError(Finding("compilation", text.name, told, file, number))


def explain(raw, kernel: str, text: Text, line_of, arrays: list, block: tuple[int, int, int]) -> KernelError:
    """Put the runtime's record of a finding into words.

    raw: `Finding` of runtime.h; line_of: from a site to a line of `text`; arrays: the array arguments, with their
    names; block: the launch's block shape.
    """
    kind = raw.kind.decode()
    message = re.sub(r"\bline (\d+)", lambda m: text.where(int(m[1])), raw.message.decode(errors="replace"))
    line, other_line = line_of(raw.site), line_of(raw.other_site)
    told = [f"{kind}: {message}{_place(raw, kind, arrays)}"]
    thread = block_index = other = None
    if raw.has_thread:
        block_index, thread = tuple(raw.block), tuple(raw.thread)
        told.append(f"  in kernel {kernel}, block {_index(block_index)}, thread {_index(thread)}")
    else:
        told.append(f"  in kernel {kernel}")
    if line:
        told.append(f"  {text.quote(line)}")
    if raw.other_thread >= 0:
        t = raw.other_thread
        other = (t % block[0], t // block[0] % block[1], t // (block[0] * block[1]))
        told.append(
            f"  the other: thread {_index(other)}" + (f", {text.quote(other_line)}" if other_line else "")
        )
    elif other_line:
        who = "a thread of another block, " if raw.other_thread == -2 else "the other: "
        told.append(f"  {who}{text.quote(other_line)}")
    advice = ADVICE.get("race between blocks" if kind == "race" and raw.other_thread == -2 else kind)
    if advice:
        told.append(f"  {advice}")
    file, number, _ = text.find(line)
    return KernelError(
        Finding(
            kind, kernel, "\n".join(told), file, number, block_index, thread, other, text.find(other_line)[1]
        )
    )


def _place(raw, kind: str, arrays: list) -> str:
    """Which element of which array: ' of x[17], but x holds 16 elements'."""
    if raw.array == -1:
        wild = kind == "out of bounds" and raw.offset  # not an index that the compiler itself could judge
        return f" at address {raw.offset:#x}, which is in no array" if wild else ""
    index = raw.offset // raw.element
    name = raw.name.decode()
    element = f"[{index // raw.columns}][{index % raw.columns}]" if raw.columns else f"[{index}]"
    if raw.array == -2:
        size = f"shared, {raw.bytes // raw.element} elements"
    else:
        array = arrays[raw.array][1]
        size = f"{array.dtype} of shape {array.shape}, {array.size} elements"
    return f": {name}{element}" + (f"  ({name}: {size})" if kind in ("out of bounds", "misaligned") else "")


def _index(triple) -> str:
    return "({},{},{})".format(*triple)
