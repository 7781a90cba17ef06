"""Reading the text of a kernel: its signatures, and the two edits that a C++ compiler needs."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoeuler_lib.errors import NanoEulerError

# C++ types and the NumPy types of the same bytes. long is left out: its size differs between compilers.
DTYPES = {
    "float": "float32", "double": "float64", "bool": "bool",
    "char": "int8", "signed char": "int8", "unsigned char": "uint8",
    "short": "int16", "unsigned short": "uint16",
    "int": "int32", "unsigned": "uint32", "unsigned int": "uint32",
    "long long": "int64", "unsigned long long": "uint64", "size_t": "uint64",
    "__half": "float16", "half": "float16", "__half2": "float16", "half2": "float16",
    "__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16", "__nv_bfloat162": "bfloat16",
}  # fmt: skip
VECTORS = {"float": "float32", "double": "float64", "int": "int32", "uint": "uint32", "short": "int16",
           "ushort": "uint16", "char": "int8", "uchar": "uint8", "longlong": "int64",
           "ulonglong": "uint64"}  # fmt: skip

_ALIGN = r"(?:(?:__align__|alignas)\s*\([^()]*\)\s*)?"
_BOUNDS = r"(?:__launch_bounds__\s*\(([^()]*)\)\s*)?"
_KERNEL = re.compile(
    r"(?:template\s*<(?P<template>[^;{}()]*)>\s*)?(?P<extern>extern\s*\"C\"\s*)?(?:static\s+)?__global__\s+"
    + _BOUNDS + r"void\s+" + _BOUNDS + r"(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)\s*(?P<body>[{;])"
)  # fmt: skip
_DYNAMIC = re.compile(rf"extern\s+__shared__\s+{_ALIGN}([\w:]+(?:\s+[\w:]+)*?)\s+{_ALIGN}(\w+)\s*\[\s*\]\s*;")
_ALIAS = re.compile(r"^[ \t]*(?:#[ \t]*define|using)[ \t]+(\w+)[ \t]+(?:=[ \t]*)?(\w[\w \t]*)(?:$|;)", re.M)
_STATIC = re.compile(r"(?<!\w)__shared__\s((?:[^;{}]|\{[^{}]*\})*);")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: dtype is that of one element ("bfloat16" has none in NumPy), width the elements of a
    vector type."""

    name: str
    type: str
    dtype: str
    pointer: bool
    const: bool
    width: int = 1


@dataclass(frozen=True)
class Signature:
    """A kernel as it is called: `name` as given (with template arguments), the parameters, most threads of a block."""

    name: str
    parameters: tuple[Parameter, ...]
    max_threads: int
    mangled: bool  # not extern "C": the compiler decides its symbol's name


def blank_comments(source: str, strings: bool = False) -> str:
    """The text with every comment (and string) replaced by blanks, each line where it was."""
    pattern = r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\""

    def blank(match):
        keep = match.group().startswith('"') and not strings
        return match.group() if keep else re.sub(r"[^\n]", " ", match.group())

    return re.sub(pattern, blank, source, flags=re.S)


def signatures(source: str, instantiate: Sequence[str] = (), defines: dict | None = None) -> list[Signature]:
    """The kernels of a text, in order; templates once for each name in `instantiate` ("matmul<16>").

    Raises NanoEulerError for a text without a kernel, a type that cannot be passed, or an unknown name to instantiate.
    """
    text = blank_comments(source)
    words = {m[1]: m[2].strip() for m in _ALIAS.finditer(text)}
    words |= {name: str(value) for name, value in (defines or {}).items()}
    plain, templates = [], {}
    for match in _KERNEL.finditer(text):
        if match["body"] == ";":
            continue  # a declaration
        if match["template"] is None:
            plain.append(_signature(match, match["name"], words))
        else:
            templates[match["name"]] = match
    for name in instantiate:
        base, _, arguments = name.partition("<")
        if base.strip() not in templates:
            raise NanoEulerError(f"instantiate: no template {base} in the text, only {sorted(templates)}")
        match = templates[base.strip()]
        formal = [re.split(r"\s+", p.strip())[-1] for p in match["template"].split(",")]
        actual = [a.strip() for a in arguments.rstrip(" >").split(",")]
        plain.append(_signature(match, name, words | dict(zip(formal, actual))))
    if not plain:
        more = (
            f"; name the templates to compile: instantiate=('{next(iter(templates))}<...>',)"
            if templates
            else ""
        )
        raise NanoEulerError(_no_kernel(source) + more)
    return plain


def _no_kernel(source: str) -> str:
    """Why a text holds no kernel."""
    bare = blank_comments(source, strings=True)
    if not bare.strip():
        return "the text is empty: a kernel is a function that is __global__ void"
    if fault := bracket_fault(source):
        line, message, _ = fault
    elif almost := re.search(r"^[^\n;{}#]*?(\w+)\s*\([^(){};]*\)\s*\{", bare, re.M):
        line = bare[: almost.start(1)].count("\n") + 1
        message = f'`{almost[1]}` would be one as: extern "C" __global__ void {almost[1]}('
    else:
        return "the text holds no kernel (a function that is __global__ void)"
    return f"the text holds no kernel; line {line}: {message}\n  {source.splitlines()[line - 1].strip()}"


def _signature(match, name: str, words: dict[str, str]) -> Signature:
    """words: what macros, aliases and template parameters stand for."""
    bound = ((match[3] or match[4] or "").split(",")[0]).strip()
    bound = words.get(bound, bound)
    line = match.string[: match.start("parameters")].count("\n") + 1
    try:
        parameters = tuple(_parameter(p, words) for p in match["parameters"].split(",") if p.strip())
    except NanoEulerError as error:
        quoted = match.string.split("\n")[line - 1].strip()
        raise NanoEulerError(f"line {line}: {name}: {error}\n  {quoted}") from None
    return Signature(name, parameters, int(bound) if bound.isdigit() else 1024, not match["extern"])


def _parameter(text: str, words: dict[str, str]) -> Parameter:
    pointer = "*" in text or "[" in text
    text = re.sub(r"\[\s*\]|\b(?:volatile|__restrict__|restrict|__grid_constant__)\b", " ", text)
    name = (re.findall(r"\w+", text) or ["?"])[-1]
    pointee = text.split("*")[0] if "*" in text else text.rstrip()[: -len(name)]
    pointee = re.findall(r"\w+", re.sub(r"\w+", lambda m: words.get(m[0], m[0]), pointee))
    const = "const" in pointee
    kind = " ".join(word for word in pointee if word != "const")
    vector = re.fullmatch(r"([a-z]+)([1234])", kind)
    if kind in DTYPES:
        return Parameter(
            name, kind, DTYPES[kind], pointer, const, 2 if kind.endswith(("half2", "bfloat162")) else 1
        )
    if vector and vector[1] in VECTORS and pointer:
        return Parameter(name, kind, VECTORS[vector[1]], pointer, const, int(vector[2]))
    star = "*" if pointer else ""
    near = difflib.get_close_matches(kind, DTYPES, 1, 0.5)
    raise NanoEulerError(
        f"parameter `{name}` is a {kind}{star}; "
        + (f"did you mean {near[0]}{star}? " if near else "")
        + "(a kernel takes pointers and numbers: float, int, unsigned, long long, bool, __half, ..., and float4*)"
    )


@dataclass(frozen=True)
class Text:
    """A kernel's text for a C++ compiler, with what it takes to find a line of it again.

    Headers from nanoeuler_lib/kernels stand in `prepared` where they were included, the first with lines from 100,001
    on, the second from 200,001: a line number by itself tells in which file it is.
    """

    name: str
    source: str
    prepared: str
    headers: tuple[tuple[str, str], ...]  # names and texts

    def find(self, line: int) -> tuple[str, int, str]:
        """File, line in that file, and what stands there."""
        number = line // HEADER_LINES
        name = self.headers[number - 1][0] if number else self.name
        return name, line % HEADER_LINES, self.line(line).strip()

    def line(self, line: int) -> str:
        """What stands there, with its indentation."""
        lines, line = self.text_of(line).split("\n"), line % HEADER_LINES
        return lines[line - 1] if 0 < line <= len(lines) else ""

    def where(self, line: int) -> str:
        """`line 7`, with the file's name before it if that is a header."""
        name, line, _ = self.find(line)
        return f"line {line}" if name == self.name else f"{name}, line {line}"

    def text_of(self, line: int) -> str:
        """The whole file that a line is in."""
        number = line // HEADER_LINES
        return self.headers[number - 1][1] if number else self.source

    def quote(self, line: int) -> str:
        """`line 7: what stands there`."""
        return f"{self.where(line)}: {self.find(line)[2]}"


HEADER_LINES = 100_000
INCLUDE = Path(__file__).parent / "include"
OF_CUDA = ["cuda_fp16.h", "cuda_bf16.h", "cuda_runtime.h", "math_constants.h"]


def prepare(name: str, source: str, folder: Path) -> Text:
    """The text for a C++ compiler: headers in `folder` inserted, shared arrays announced; a line keeps its number."""
    headers, prepared = {}, []
    _check_includes(name, source, folder)
    for number, line in enumerate(_announce(source).split("\n"), 1):
        match = re.match(r'\s*#\s*include\s*[<"](\w+\.cuh)[>"]', line)
        header = match and folder / match[1]
        if not header or not header.exists():
            prepared.append(line)
            continue
        if match[1] not in headers:
            headers[match[1]] = header.read_text("utf-8")
            inserted = _announce(headers[match[1]]).replace("#pragma once", "")
            prepared += [f'#line {len(headers) * HEADER_LINES + 1} "{name}"', inserted]
        prepared.append(f'#line {number + 1} "{name}"')
    return Text(name, source, "\n".join(prepared), tuple(headers.items()))


def _check_includes(name: str, source: str, folder: Path) -> None:
    """The GPU's compiler has no C or C++ library: what it would not find is refused here, too."""
    offered = [*sorted(f.name for f in [*INCLUDE.glob("*.cuh"), *folder.glob("*.cuh")]), *OF_CUDA]
    for number, line in enumerate(blank_comments(source).split("\n"), 1):
        match = re.match(r'\s*#\s*include\s*[<"]([^>"]*)', line)
        if match and match[1] not in offered:
            raise NanoEulerError(
                f"{name}, line {number}: a kernel cannot include <{match[1]}>, for a GPU has no C or C++ library; "
                f"there are {', '.join(offered)}\n  {line.strip()}"
            )


def bracket_fault(source: str) -> tuple[int, str, int] | None:
    """The first bracket without its partner: line, what is wrong, column; None if all have one."""
    pairs, waiting = {")": "(", "]": "[", "}": "{"}, []
    for line, code in enumerate(blank_comments(source, strings=True).split("\n"), 1):
        for match in re.finditer(r"[][(){}]|;", code):
            bracket, here = match[0], (line, match.start() + 1)
            if bracket in "([{":
                waiting.append((bracket, here))
            elif bracket == ";":  # a ( may hold one, in `for`; a [ may not
                if waiting and waiting[-1][0] == "[":
                    break
            elif waiting and waiting[-1][0] == pairs[bracket]:
                waiting.pop()
            elif waiting and waiting[-1][0] != "{":
                break  # the open one is at fault: `f(a[i);`, `if (i < n {`
            else:
                return here[0], f"this {bracket} closes nothing", here[1]
        else:
            continue
        break
    if not waiting:
        return None
    bracket, (line, column) = waiting[-1]
    return line, f"this {bracket} is never closed", column


def _announce(source: str) -> str:
    """Let the shared arrays announce themselves to the runtime where they are declared."""
    bare = blank_comments(source, strings=True)
    edits = []
    for match in _DYNAMIC.finditer(bare):  # extern __shared__ T name[];  ->  T* name = ...;
        kind, name = match.groups()
        call = f'{kind}* {name} = ({kind}*)dynamic_shared(sizeof({kind}), "{name}");'
        edits.append((match.start(), match.end(), call + "\n" * match[0].count("\n")))
    # __shared__ T a[..], b;  ->  __shared__ T a[..] = {}, b = {}; SHARED_ARRAY(a); SHARED_ARRAY(b);
    # ({}: else g++ gives numbers of 16 bits a guard, a variable that the checker does not know)
    for match in _STATIC.finditer(bare):
        if bare[: match.start()].rstrip().endswith("extern"):
            continue
        no_name = r"(?:__align__|alignas)\s*\([^()]*\)|\{[^{}]*\}"  # the braces of a struct that stands here
        declaration = re.sub(no_name, lambda m: " " * len(m[0]), match[1])
        plain = re.sub(r"\[[^]]*\]", "", declaration)
        if re.match(r"[^()\n]*=", plain):
            line = bare[: match.start()].count("\n") + 1
            raise NanoEulerError(
                f"line {line}: __shared__ memory has no value at first: let a thread write it"
            )
        if "=" in plain:
            continue  # its ; is missing: the compiler will tell
        names = list(re.finditer(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?=,|$)", declaration))
        edits += [(match.start(1) + name.end(),) * 2 + (" = {}",) for name in names]
        edits.append((match.end(),) * 2 + ("".join(f" SHARED_ARRAY({name[1]});" for name in names),))
    for start, end, text in sorted(edits, reverse=True):
        before = bare[:start]
        if before.count("{") == before.count("}"):
            line = before.count("\n") + 1
            raise NanoEulerError(
                f"line {line}: declare __shared__ arrays inside the kernel, found one outside"
            )
        source = source[:start] + text + source[end:]
    return source


def numpy_dtype(name: str) -> np.dtype | None:
    """The NumPy type of a parameter's elements; bfloat16 has one only where ml_dtypes is installed."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype("uint16")
    return np.dtype(ml_dtypes.bfloat16)
