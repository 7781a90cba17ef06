"""Kernels, launches and texts that try to end the Python process: `python hostile_kernels.py NAME ...` runs them here.

For each case a line of JSON goes out, {"name", "outcome", "text"}: "result", "error" (a NanoEulerError) or "other"
(another exception); after each a sound kernel must still give the right numbers, else the outcome is "wrong".

corpus/hostile.cu holds the cases after lines `// body: name wanted seconds`, the inside of a kernel, or `// text: ..`,
a whole text; wanted: error, or any for a result as well. Cases that a file cannot hold are made here.
"""

import json
import re
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.errors import NanoEulerError


class Case(NamedTuple):
    text: str
    wanted: str = "any"
    seconds: float = 1.0


K = 'extern "C" __global__ void k(float* y, int* x, int n)'
HEAD, *PARTS = re.split(
    r"^// (body|text): (\w+) (any|error) ?(\S*)\n",
    (Path(__file__).parent / "corpus" / "hostile.cu").read_text("utf-8"),
    flags=re.M,
)
CASES: dict[str, Case] = {}


def add(name: str, body: str, *more) -> None:
    assert name not in CASES, name
    CASES[name] = Case(f"{HEAD}{K} {{\n{body}\n}}\n", *more)


for kind, name, wanted, seconds, text in zip(*[iter(PARTS)] * 5, strict=True):
    if kind == "body":
        add(name, text, wanted, float(seconds or 1))
    else:
        CASES[name] = Case(text, wanted)

ADDRESSES = {
    "null": "(float*)0", "wild": "(float*)0x123456789a0ull", "last": "(float*)~15ull", "far": "y + (1ll << 40)",
    "code": "(float*)(void*)&helper",
}  # fmt: skip
MANNERS = {
    "read": "x[0] = (int)*p;", "write": "*p = 1;", "atomic": "atomicAdd(p, 1.0f);", "memcpy": "memcpy(p, y, 64);",
}  # fmt: skip
for where, address in ADDRESSES.items():
    for how, statement in MANNERS.items():
        add(f"pointer_{where}_{how}", f"float* p = {address}; {statement}", "error")

GOOD = f"{K} {{ y[threadIdx.x] = x[threadIdx.x] + n; }}\n"
for name, text in {
    "nul_byte": GOOD.replace("+", "\0+"),
    "bom": "\ufeff" + GOOD,
    "crlf": GOOD.replace("{", "{\r\n"),
    "surrogate": "// \udc80\n" + GOOD,
    "deep_parentheses": GOOD.replace("+ n", "+ " + "(" * 20000 + "n" + ")" * 20000),
    "many_lines": "\n" * 200_000 + GOOD,
}.items():
    CASES[f"text_{name}"] = Case(text)

SOUND = """extern "C" __global__ void sound(const int* a, int* b) {
  int i = blockIdx.x * 16 + threadIdx.x;
  b[i] = a[i] * 3;
}"""


def run(case: Case) -> dict:
    args = np.zeros(64, np.float32), np.arange(64, dtype=np.int32), 64
    try:
        module = cuda.module(case.text, where="cpu")
        module[next(iter(module))](1, 32, args, seconds=case.seconds)
    except NanoEulerError as error:
        return {"outcome": "error", "text": str(error)}
    except Exception as error:  # another one is a finding of the test
        return {"outcome": "other", "text": f"{type(error).__name__}: {error}"}
    return {"outcome": "result", "text": ""}


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    sound = cuda.module(HEAD + SOUND, where="cpu")["sound"]
    a, b = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    for name in names:
        found = run(CASES[name])
        b[:] = 0
        sound(4, 16, (a, b))
        if not (b == 3 * a).all():
            found = {"outcome": "wrong", "text": "afterwards a sound kernel gives wrong numbers"}
        found["text"] = found["text"].encode("utf-8", "replace").decode()
        print("\n" + json.dumps({"name": name, **found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
