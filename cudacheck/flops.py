"""Count floating-point operations by source line, from the machine code of a checked kernel's basic blocks.

A checked kernel is compiled without optimisation, so each operation of the text is one machine operation. The kernel
calls the runtime at the start of every basic block, so the checker knows how often each block ran. The operations of a
block times its number of runs are exact. Each +, -, * and / counts as one operation, and a fused multiply-add counts as
two. Functions such as exp and sqrt are counted separately. Comparisons, conversions, min and max are not counted.
"""

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from cudacheck.errors import CudaCheckError

_FUNCTION = re.compile(
    r"(?:(?:exp|log)(?:2|10|m1|1p)?|pow|sinh?|cosh?|tanh?|sqrt|cbrt|erfc?|.*(?:reciprocal_root|(?:7|9co)sine_pi).*)f?"
)
_ONE = re.compile(r"v?(?:add|sub|mul|div)s[sd]|f(?:add|sub|n?mul|div)")  # x86-64, arm64
_TWO = re.compile(r"vfn?m(?:add|sub)\w*s[sd]|fn?m(?:add|sub)")
_ENTER = "__sanitizer_cov_trace_pc"

Work = tuple[int, int]  # operations, functions


def block_work(library: Path, line_of: Callable[[int], int]) -> dict[int, dict[int, Work]]:
    """Count the operations in each basic block of a library's kernels: {site: {line: work}}.

    A block's site is the address after the block's call of the runtime. line_of: a function that returns the line of
    the instruction before an address, 0 outside the kernel's text. Raises CudaCheckError if there is no disassembler.
    """
    code = _disassembled(library)
    ours = {name for name, rows in code.items() if any(line_of(address) for address, *_ in rows[1:])}

    def of_call(name: str, callers: tuple[str, ...]) -> Work:
        """Return the work of a call; each operation outside the text counts once, as its blocks are not counted."""
        name = name.removesuffix("@plt")
        if _FUNCTION.fullmatch(name):
            return 0, 1
        if name in ("fma", "fmaf") or "fused" in name:
            return 2, 0
        if name in ours or name in callers or not name.startswith("_Z") or re.search("(to|from)_half", name):
            return 0, 0
        inside = [of_instruction(row, (*callers, name)) for row in code.get(name, ())]
        return sum(n for n, _ in inside), sum(n for _, n in inside)

    def of_instruction(row, callers: tuple[str, ...] = ()) -> Work:
        _, mnemonic, target = row
        if target:
            return of_call(target, callers) if mnemonic.startswith(("call", "bl")) else (0, 0)
        return 2 * bool(_TWO.fullmatch(mnemonic)) + bool(_ONE.fullmatch(mnemonic)), 0

    blocks: dict[int, dict[int, Work]] = {}
    for name in ours:
        rows, block = code[name], None
        for row, (after, *_) in pairwise(rows):
            work = of_instruction(row)
            if row[2] == _ENTER:
                block = blocks[after] = {}
            elif block is not None and work != (0, 0):
                line = line_of(after)
                block[line] = tuple(np.add(block.get(line, (0, 0)), work))
    return blocks


def _disassembled(library: Path) -> dict[str, list[tuple[int, str, str]]]:
    """Return the instructions of each function: address, mnemonic, and the name that a call or jump refers to."""
    program = shutil.which("objdump") or shutil.which("llvm-objdump")
    if program is None:
        raise CudaCheckError("counting operations needs objdump, found none: install binutils (or llvm)")
    command = [program, "-d", "--no-show-raw-insn", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    code, rows = defaultdict(list), []
    for line in text.split("\n"):
        if start := re.match(r"[0-9a-f]+ <(.+)>:$", line):
            rows = code[start[1]]
        elif match := re.match(
            r"\s*([0-9a-f]+):\s+(?:(?:data16|rex\.W|notrack|bnd|rep\w*)\s+)*(\S+)([^#<]*<([^>+]+)>)?", line
        ):
            rows.append((int(match[1], 16), match[2], match[4] or ""))
    return code
