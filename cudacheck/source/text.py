"""Find the signatures of a text's kernels, and edit the text for a C++ compiler."""

import difflib
import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cudacheck.errors import CudaCheckError
from cudacheck.source.dialect import refuse
from cudacheck.source.layout import DTYPES, Field, element_of, plain_type, structs_of
from cudacheck.source.reading import (
    blank_comments,
    bracket_fault,
    code_only,
    expand,
    hollow,
    live,
    number,
    open_braces,
    split,
    words_of,
)
from cudacheck.source.variables import announce_variables

_CONSTANT = re.compile(
    r"(?<!\w)(?:constexpr|const)\s+(?:static\s+)?(?:int|unsigned|unsigned int)\s+(\w+)\s*=\s*([^;,{}]+);"
)
_GLOBAL = re.compile(r"(?<!\w)__global__(?!\w)")
# A kernel's head after __global__, with brackets emptied: qualifiers, name and parameters.
_HEAD = re.compile(
    r"(?:\s*(?:\b(?:void|static|inline)\b|\w+\s*\(\s*\)(?=\s*\w)))*\s*(?P<name>\b\w+)\s*\((?P<parameters>\s*)\)\s*$"
)
_SHARED = re.compile(r"(?<!\w)__shared__(?!\w)")
_ALIGNED = re.compile(r"(?:__align__|alignas)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel.

    dtype: NumPy type of one element, or "bfloat16", or "" for a struct, which is passed by value; width: numbers per
    element, 4 for float4; fields, bytes: layout of a struct.
    """

    name: str
    type: str
    dtype: str
    pointer: bool
    const: bool
    width: int = 1
    fields: "tuple[Field, ...]" = ()
    bytes: int = 0  # of a struct


@dataclass(frozen=True)
class Signature:
    """The signature of a kernel: name (with template arguments), parameters, largest number of threads per block."""

    name: str
    parameters: tuple[Parameter, ...]
    max_threads: int
    mangled: bool  # not extern "C": the compiler decides its symbol's name


@dataclass(frozen=True)
class _Kernel:
    """The declaration of a kernel as written in the text, before its body."""

    name: str  # with its namespaces
    template: str | None
    extern: bool
    bounds: str
    parameters: str
    start: int  # where the parameters start


def _kernels(source: str) -> list[_Kernel]:
    text, code = code_only(source, strings=True), code_only(source)
    kernels = []
    for match in _GLOBAL.finditer(code):
        start = max(code.rfind(c, 0, match.start()) for c in ";{}") + 1
        end = re.compile(r"[{;]|$").search(code, match.end())
        if end[0] != "{":
            continue  # a declaration, or not a kernel
        before, after = text[start : match.start()], text[match.end() : end.start()]
        head = _HEAD.match(hollow(after))
        if not head or not re.search(r"\bvoid\b", before + after[: head.start("name")]):
            continue
        template = re.search(r"\btemplate\s*<(.*)>", before, re.S)
        bounds = re.search(r"__launch_bounds__\s*\(", before + after)
        inside = (before + after)[bounds.end() :] if bounds else ""
        spaces, extern = _scope(text, code, match.start())
        kernels.append(_Kernel(
            "::".join([*spaces, head["name"]]),
            template and template[1],
            (extern or re.search(r'extern\s*"C"', before) is not None) and not spaces,
            inside[: hollow("(" + inside).index(")") - 1] if bounds and ")" in hollow("(" + inside) else "",
            after[head.start("parameters") : head.end("parameters")],
            match.end() + head.start("parameters"),
        ))  # fmt: skip
    return kernels


def _scope(text: str, code: str, place: int) -> tuple[list[str], bool]:
    """Return the namespaces around a position, and whether the position is in an extern "C" block."""
    spaces, extern = [], False
    for start in open_braces(code, place):
        if space := re.search(r"\bnamespace\s+([\w:]*)\s*$", text[:start]):
            spaces += [space[1]] if space[1] else []
        extern |= re.search(r'\bextern\s*"C"\s*$', text[:start]) is not None
    return spaces, extern


def signatures(
    source: str, instantiate: Sequence[str] = (), defines: dict | None = None, where: str = "cpu"
) -> list[Signature]:
    """Return the signatures of a text's kernels; a template has one per name in `instantiate` ("matmul<16>").

    defines: macros; where: the side, "cpu" or "gpu". Raises CudaCheckError for a text without a kernel, a type that
    cannot be passed, or an unknown name to instantiate.
    """
    alive = live(source, where)
    words = words_of(blank_comments(alive)) | {name: str(value) for name, value in (defines or {}).items()}
    structs = structs_of(alive, words)
    plain, templates = [], {}
    for kernel in _kernels(alive):
        if kernel.template is None:
            plain.append(_signature(alive, source, kernel, kernel.name, words, structs))
        else:
            templates[kernel.name] = kernel
    for name in instantiate:
        base, _, arguments = name.partition("<")
        if base.strip() not in templates:
            known = ", ".join(sorted(templates)) or "none"
            raise CudaCheckError(f"instantiate: {base} must be a template of the text, which has {known}")
        kernel = templates[base.strip()]
        formal = [re.findall(r"\w+", p.partition("=")[0])[-1] for p in split(kernel.template)]
        actual = [a.strip() for a in split(arguments.rstrip()[:-1]) if a.strip()]
        needed = sum("=" not in hollow(p) and "..." not in p for p in split(kernel.template))
        most = len(actual) if "..." in kernel.template else len(formal)
        if not needed <= len(actual) <= most or not (arguments.rstrip().endswith(">") or not needed):
            raise CudaCheckError(
                f"instantiate: {kernel.name} is a template of <{' '.join(kernel.template.split())}>, got {name}: name "
                f"its arguments, as in {kernel.name}<{'...' if len(formal) > 1 else '4'}>"
            )
        plain.append(_signature(alive, source, kernel, name, words | dict(zip(formal, actual)), structs))
    if not plain:
        if templates:
            kernel = next(iter(templates.values()))
            line = alive[: kernel.start].count("\n") + 1
            raise _at(
                source,
                line,
                f"{kernel.name} is a template: name what to compile, as %%cuda -i '{kernel.name}<...>', or "
                f"instantiate=('{kernel.name}<...>',)",
            )
        raise CudaCheckError(_no_kernel(source))
    return plain


def _no_kernel(source: str) -> str:
    """Return the error for a text that has no kernel, with the likely reason."""
    bare = blank_comments(source, strings=True)
    if not bare.strip():
        return "the text is empty: a kernel is a function that is __global__ void"
    if fault := bracket_fault(source):
        line, message, _ = fault
    elif almost := re.search(r"^[^\n;{}#]*?(\w+)\s*\([^(){};]*\)\s*\{", bare, re.M):
        line = bare[: almost.start(1)].count("\n") + 1
        message = f'to make `{almost[1]}` one, write: extern "C" __global__ void {almost[1]}('
    else:
        return "the text holds no kernel (a function that is __global__ void)"
    return f"the text holds no kernel; line {line}: {message}\n  {source.splitlines()[line - 1].strip()}"


def _signature(alive: str, source: str, kernel: _Kernel, name: str, words: dict[str, str], structs: dict) -> Signature:
    """Parse a kernel's signature.

    alive: the text that `kernel` was read from; words: definitions of macros, aliases and template parameters.
    """
    constants = {m[1]: m[2] for m in _CONSTANT.finditer(blank_comments(source))}
    bound = number(split(kernel.bounds)[0], constants | words)
    line = alive[: kernel.start].count("\n") + 1
    try:
        parameters = tuple(_parameter(p, words, structs) for p in split(kernel.parameters) if p.strip())
    except CudaCheckError as error:
        quoted = source.split("\n")[line - 1].strip()
        raise CudaCheckError(f"line {line}: {kernel.name}: {error}\n  {quoted}") from None
    if len(parameters) == 1 and parameters[0].type == "void":
        parameters = ()
    return Signature(name, parameters, bound or 1024, not kernel.extern)


def _parameter(text: str, words: dict[str, str], structs: dict) -> Parameter:
    text = text[: len(hollow(text).partition("=")[0])]  # without a default value
    text = _QUALIFIERS.sub(" ", text)
    rows = re.search(r"\(\s*\*\s*(?:const\b)?\s*(\w*)\s*\)", text)  # float (*x)[32]
    if rows and text[rows.end() :].lstrip().startswith("("):
        raise CudaCheckError(
            f"parameter `{rows[1] or '?'}` is a function, which Python cannot pass: call a __device__ function by its "
            "name, or pass a number that selects one"
        )
    text = re.sub(r"\(\s*(\w+)\s*\)(?=\s*(?:\[[^]]*\]\s*)*$)", r" \1 ", text)  # float (x)
    shape = re.findall(r"\[([^]]*)\]", text)
    plain = re.sub(r"\[[^]]*\]", " ", text.replace(rows[0], f"* {rows[1]} ") if rows else text).rstrip()
    names = re.findall(r"\w+", hollow(plain))
    if plain.strip() == "void":
        return Parameter("", "void", "", False, False)
    bare = len(names) < 2 or hollow(plain).rstrip().endswith(("*", ">"))
    name = "?" if bare else names[-1]
    declared = _QUALIFIERS.sub(" ", expand(plain if bare else plain[: plain.rindex(name)], words))
    inner = shape if rows else shape[1:]
    stars = declared.count("*") + (1 if shape and not rows else 0)
    pointee = re.findall(r"[\w:]+|<[^*&]*>", declared.split("*")[0].replace("&", " "))
    const = "const" in pointee
    kind = plain_type([word for word in pointee if word not in ("const", "struct")])
    if "&" in declared:
        raise CudaCheckError(
            f"parameter `{name}` is a reference, which Python cannot pass: write {kind} {name} for a number, "
            f"{kind}* {name} for an array"
        )
    if stars > 1:
        raise CudaCheckError(
            f"parameter `{name}` is a {kind}{'*' * stars}, an array of pointers, which Python cannot pass: pass one "
            f"array as {kind}* {name} and the index where each part begins"
        )
    pointer, element = stars == 1, element_of(kind)
    if not element and kind in structs and not pointer:
        fields, size, _ = structs[kind]
        if isinstance(fields, str):
            raise CudaCheckError(f"parameter `{name}` is a {kind}, and {fields}")
        return Parameter(name, kind, "", False, const, 1, fields, size)
    if not element:
        raise CudaCheckError(_no_type(name, kind, "*" * stars, structs))
    dtype, width = element
    if pointer:
        width *= math.prod(number(count, words) or 1 for count in inner)
    return Parameter(name, kind, dtype, pointer, const, width)


_QUALIFIERS = re.compile(r"\b(?:volatile|__restrict__|__restrict|restrict|__grid_constant__|register)\b")


def _no_type(name: str, kind: str, star: str, structs: dict) -> str:
    """Return the error for a parameter whose type cannot be passed."""
    if star and kind in structs:
        return (
            f"parameter `{name}` is a {kind}*, an array of structs, and a NumPy array holds numbers: pass one array "
            f"for each member, or a single {kind} by value"
        )
    if kind == "void":
        return f"parameter `{name}` is a void{star}: write the type of its elements, as in float* {name}"
    if kind in ("long", "unsigned long"):
        whole = kind.replace("long", "long long")
        return f"parameter `{name}` is {kind}, of 4 bytes on some systems and 8 on others: write {whole} or int"
    near = difflib.get_close_matches(kind, DTYPES, 1, 0.5)
    return (
        f"parameter `{name}` is a {kind}{star}"
        + (f"; did you mean {near[0]}{star}?" if near else "")
        + " (a kernel takes pointers and numbers: float, int, unsigned, long long, bool, __half, ..., and float4*)"
    )


@dataclass(frozen=True)
class Text:
    """A kernel's text, its version `prepared` for a C++ compiler, and a map between the lines of the two.

    Headers are inserted in `prepared` where the text includes them. The first header's lines are numbered from
    100,001, the second header's from 200,001, and so on, so a line number also identifies the file.
    """

    name: str
    source: str
    prepared: str
    headers: tuple[tuple[str, str], ...]  # names and texts

    def find(self, line: int) -> tuple[str, int, str]:
        """Return the file of a line, the line's number in the file, and the line's code."""
        number = line // HEADER_LINES
        name = self.headers[number - 1][0] if number else self.name
        return name, line % HEADER_LINES, self.line(line).strip()

    def line(self, line: int) -> str:
        """Return the code of a line, with its indentation."""
        lines, line = self.text_of(line).split("\n"), line % HEADER_LINES
        return lines[line - 1] if 0 < line <= len(lines) else ""

    def where(self, line: int) -> str:
        """Return `line 7`, preceded by the file's name if the line is in a header."""
        name, line, _ = self.find(line)
        return f"line {line}" if name == self.name else f"{name}, line {line}"

    def text_of(self, line: int) -> str:
        """Return the complete text of the file that a line is in."""
        number = line // HEADER_LINES
        return self.headers[number - 1][1] if number else self.source

    def quote(self, line: int) -> str:
        """Return a line as `line 7: code`."""
        return f"{self.where(line)}: {self.find(line)[2]}"


HEADER_LINES = 100_000


def prepare(name: str, source: str, include: Path | Sequence[Path] = (), where: str = "cpu") -> Text:
    """Prepare a text for a C++ compiler: insert headers and register shared arrays, without changing line numbers.

    include: the folder or folders of the .cuh files to insert; where: the side, "cpu" or "gpu". Raises CudaCheckError
    for code that this side does not support (see dialect.py).
    """
    folders = [include] if isinstance(include, Path) else include
    files = {file.name: file for folder in reversed(folders) for file in sorted(folder.glob("*.cuh"))}
    headers, prepared = {}, []
    for place, line in enumerate(_announce(source).split("\n"), 1):
        match = re.match(r'\s*#\s*include\s*[<"](\w+\.cuh)[>"]', line)
        if not match or match[1] not in files:
            prepared.append(line)
            continue
        if match[1] not in headers:
            headers[match[1]] = files[match[1]].read_text("utf-8")
            inserted = _announce(headers[match[1]]).replace("#pragma once", "")
            prepared += [f'#line {len(headers) * HEADER_LINES + 1} "{name}"', inserted]
        prepared.append(f'#line {place + 1} "{name}"')
    text = Text(name, source, _own_symbols("\n".join(prepared)), tuple(headers.items()))
    refuse(text, files, where)
    return text


def _own_symbols(prepared: str) -> str:
    """Remove extern "C" from the text: an extern "C" kernel called `read` would replace the C library's `read`."""
    code = code_only(prepared)
    for match in reversed(list(re.finditer(r'\bextern\s*"C"(\s*\{)?', prepared))):
        if code[match.start()] == "e":  # not in a comment or a macro
            plain = 'extern "C++" {' if match[1] else ""
            prepared = prepared[: match.start()] + plain.ljust(len(match[0])) + prepared[match.end() :]
    return prepared


def _announce(source: str) -> str:
    """Add calls that register shared arrays and variables with the runtime at their declarations.

    extern __shared__ T s[];  ->  T* s = (T*)dynamic_shared(...);
    __shared__ T a[..], b;    ->  __shared__ T a[..] = {}, b = {}; NANOEULER_SHARED_ARRAY(a); NANOEULER_SHARED_ARRAY(b);
    (Without {}, g++ adds guard variables for 16-bit numbers, which the checker does not know.)
    """
    source = announce_variables(source)
    bare, code = blank_comments(source, strings=True), code_only(source)
    edits = []
    for match in _SHARED.finditer(bare):
        start, line = match.start(), bare[: match.start()].count("\n") + 1
        end = match.end() + (hollow(bare[match.end() :]) + ";").index(";")
        refused = functools.partial(_at, source, line)
        in_macro = code[start].isspace()
        if in_macro and not code[end : end + 1].isspace():
            raise refused("write __shared__ at the array's declaration: inside a macro the checker does not see it")
        before = re.search(rf"(?:\b(?:extern|static|volatile|const)\b|{_ALIGNED.pattern}|\s)*$", bare[:start])[0]
        declaration = _ALIGNED.sub(lambda m: " " * len(m[0]), bare[match.end() : end])
        if re.search(r"\bextern\b", before):
            kind = re.sub(r"\b(?:extern|static)\b", " ", _ALIGNED.sub(" ", before)) + declaration
            first = start - len(before.lstrip())
            edits.append((first, end + 1, _dynamic(source, kind, line) + "\n" * bare[first:end].count("\n")))
            continue
        emptied = hollow(declaration)
        if re.match(r"[^()\n]*=", emptied):
            raise refused("__shared__ memory cannot have an initial value: let a thread write it")
        if re.search(r"\[\s*\]", declaration):
            raise refused(
                "this __shared__ array has no size: write one in its [ ], or extern before __shared__ and give "
                "shared_mem at the launch"
            )
        if "=" in emptied:
            continue  # its ; is missing, which the compiler reports
        if not in_macro and bare[:start].count("{") == bare[:start].count("}"):
            raise refused("declare __shared__ arrays inside a kernel: this one is outside")
        names = list(re.finditer(r"(\w+)\s*(?:\[\s*\]\s*)*(?=,|$)", emptied))
        edits += [(match.end() + name.end(),) * 2 + (" = {}",) for name in names]
        edits.append((end + 1,) * 2 + ("".join(f" NANOEULER_SHARED_ARRAY({name[1]});" for name in names),))
    for start, end, text in sorted(edits, reverse=True):
        source = source[:start] + text + source[end:]
    return source


def _at(source: str, line: int, message: str) -> CudaCheckError:
    quoted = source.split("\n")[line - 1].strip()
    return CudaCheckError(f"line {line}: {message}\n  {quoted}")


def _dynamic(source: str, declaration: str, line: int) -> str:
    """Return the replacement of `extern __shared__ declaration;`."""
    first, *others = split(" ".join(declaration.split()))
    emptied = hollow(first)
    match = re.fullmatch(r"(.*?)(\w+)\s*((?:\[\s*\]\s*)+)", emptied)
    if not match:
        raise _at(source, line, "extern __shared__ memory must be an array, as in extern __shared__ float s[];")
    kind, declarations = first[: match.end(1)].strip(), []
    for declarator in (first[match.end(1) :], *others):
        name, _, rest = declarator.strip().partition("[")
        rows = rest.partition("]")[2].strip()  # float s[][33]: rows of 33
        star = f"(*{name.strip()}){rows}" if rows else f"*{name.strip()}"
        cast = f"(*){rows}" if rows else "*"
        declarations.append(
            f'{kind} {star} = ({kind} {cast})nanoeuler_dynamic_shared(sizeof({kind}), "{name.strip()}");'
        )
    return " ".join(declarations)
