"""Find the NumPy types of kernel parameters, and lay out structs in memory as C++ does."""

import re
from dataclasses import dataclass

import numpy as np

from cudacheck.source.reading import code_only, expand, hollow, number, split

# C++ types and NumPy types with the same representation; without long, whose size differs between compilers.
DTYPES = {
    "float": "float32", "double": "float64", "bool": "bool",
    "char": "int8", "signed char": "int8", "unsigned char": "uint8",
    "short": "int16", "unsigned short": "uint16",
    "int": "int32", "unsigned": "uint32",
    "long long": "int64", "unsigned long long": "uint64", "size_t": "uint64",
    "__half": "float16", "half": "float16", "__half2": "float16", "half2": "float16",
    "__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16", "__nv_bfloat162": "bfloat16",
}  # fmt: skip
VECTORS = {"float": "float32", "double": "float64", "int": "int32", "uint": "uint32", "short": "int16",
           "ushort": "uint16", "char": "int8", "uchar": "uint8", "longlong": "int64",
           "ulonglong": "uint64"}  # fmt: skip
_STRUCT = re.compile(
    r"(?<!\w)(?P<typedef>typedef\s+)?struct\s+(?P<align>(?:__align__|alignas)\s*\(\s*(\d+)\s*\)\s*)?(?P<name>\w*)\s*\{"
)


def plain_type(words: list[str]) -> str:
    """Return the spelling of a type in DTYPES: `unsigned long long` for `long unsigned long int`."""
    if not words or not set(words) <= {"unsigned", "signed", "short", "long", "int", "char"}:
        return " ".join(words)
    size = " ".join(word for word in words if word in ("char", "short", "long"))
    if "unsigned" in words:
        return f"unsigned {size}".rstrip()
    return "signed char" if size == "char" and "signed" in words else size or "int"


def element_of(kind: str) -> tuple[str, int] | None:
    """Return the NumPy type and the count (4 for float4) of a C++ type's numbers, or None if the type has none."""
    if kind in DTYPES:
        return DTYPES[kind], 2 if kind.endswith(("half2", "bfloat162")) else 1
    vector = re.fullmatch(r"([a-z]+)([1234])", kind)
    return (VECTORS[vector[1]], int(vector[2])) if vector and vector[1] in VECTORS else None


@dataclass(frozen=True)
class Field:
    """A member of a struct, a number or an array of numbers, with its offset in bytes."""

    name: str
    type: str
    dtype: str
    offset: int
    shape: tuple[int, ...] = ()


def structs_of(source: str, words: dict[str, str]) -> dict:
    """Return (fields, bytes, alignment) for each struct of a text, by the struct's name.

    If a struct cannot be passed to a kernel, `fields` is a string with the reason.
    """
    text, structs = code_only(source), {}
    if "<hopper.cuh>" in source:
        structs["TensorMap"] = (Field("words", "unsigned long long", "uint64", 0, (16,)),), 128, 64
    for match in _STRUCT.finditer(text):
        body = text[match.end() :]
        body = body[: hollow("{" + body).find("}") - 1]
        after = re.match(r"\s*(\w*)", text[match.end() + len(body) + 1 :])[1]
        name = after if match["typedef"] and after else match["name"]
        layout = _layout(body, words, structs, int(match[3] or 1))
        structs |= {n: layout for n in (name, match["name"]) if n}
    return structs


def _layout(body: str, words: dict[str, str], structs: dict, align: int) -> tuple:
    """Return the fields, bytes and alignment that C++ gives to a struct with this text between its braces."""
    fields, offset = [], 0
    for statement in _members(body):
        parts = split(statement)
        first = re.fullmatch(r"\s*(.*?)\b(\w+)\s*((?:\[[^]]*\]\s*)*)", parts[0], re.S)
        if not first or "*" in statement or "&" in statement:
            why = "a pointer" if first and "*" in statement else f"`{' '.join(statement.split())}`"
            fault = f"a struct may hold only numbers, here it has {why}: pass an array as a parameter of its own"
            return fault, 0, 1
        kind = plain_type([w for w in re.findall(r"[\w:]+", expand(first[1], words)) if w not in ("const", "struct")])
        for part in (first[2] + first[3], *parts[1:]):
            declarator = re.fullmatch(r"\s*(\w+)\s*((?:\[[^]]*\]\s*)*)", part)
            shape = [number(n, words) for n in re.findall(r"\[([^]]*)\]", declarator[2] if declarator else "[?]")]
            if None in shape:
                return f"the size of its member `{part.strip()}` is not a constant", 0, 1
            if kind in structs and isinstance(structs[kind][0], tuple) and not shape:
                inner, size, unit = structs[kind]
                offset = -(-offset // unit) * unit
                fields += [
                    Field(f"{declarator[1]}.{f.name}", f.type, f.dtype, offset + f.offset, f.shape) for f in inner
                ]
                offset, align = offset + size, max(align, unit)
                continue
            if not (element := element_of(kind)):
                return f"its member `{declarator[1]}` is a {kind}, which is not a number", 0, 1
            dtype, width = element
            size = numpy_dtype(dtype).itemsize
            unit = size if width in (1, 3) else min(16, size * width)
            shape += [width] if width > 1 else []
            offset = -(-offset // unit) * unit
            fields.append(Field(declarator[1], kind, dtype, offset, tuple(shape)))
            offset, align = offset + size * int(np.prod(shape)), max(align, unit)
    return tuple(fields), max(1, -(-offset // align)) * align, align


def _members(body: str) -> list[str]:
    """Return a struct's declarations of data members, without functions, types and static constants."""
    emptied = hollow(body)
    emptied = re.sub(r"[^;{}]*\([^()]*\)[^;{}]*(?:\{\s*\}|;)", lambda m: " " * len(m[0]), emptied)
    statements, start = [], 0
    for match in re.finditer(";", emptied):
        seen = emptied[start : match.start()]
        if seen.strip() and not re.match(r"\s*(?:using|typedef|static|struct|enum|constexpr)\b", seen):
            text = body[start : match.start()][len(seen) - len(seen.lstrip()) :]
            statements.append(re.sub(r"\b(?:public|private|protected)\s*:", " ", text.partition("=")[0]))
        start = match.end()
    return statements


def numpy_dtype(name: str) -> np.dtype | None:
    """Return the NumPy type of a parameter's elements; bfloat16 becomes uint16 if ml_dtypes is not installed."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype("uint16")
    return np.dtype(ml_dtypes.bfloat16)
