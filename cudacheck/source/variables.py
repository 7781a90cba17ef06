"""Find the __device__ and __constant__ variables of a text and register them with the checker as arrays."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cudacheck.source.reading import at_top, code_only, split

_KEYWORD = re.compile(r"(?<!\w)__(device|constant)__(?!\w)")
_ATTRIBUTE = re.compile(r"(?:__align__|alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def announce_variables(source: str) -> str:
    """Insert NANOEULER_DEVICE_VARIABLE(name, is it constant) after each variable's declaration, on the same line.

    The variables become static, so that a variable called `free` does not replace the C library's function `free`.
    """
    code = code_only(source)
    for decl in reversed(list(_declarations(code))):
        calls = "".join(f" NANOEULER_DEVICE_VARIABLE({name}, {str(decl.constant).lower()});" for name in decl.names)
        source = source[: decl.end] + calls + source[decl.end :]
        linked = any(re.search(rf"\bextern\b[^;{{}}]*\b{name}\b", code) for name in decl.names)
        static = re.search(r"\bstatic\b", code[decl.start : decl.end])
        if static and decl.constant:  # __constant__ is static by itself
            place = decl.start + static.start()
            source = source[:place] + " " * len("static") + source[place + len("static") :]
        elif not static and not decl.constant and not linked:
            source = source[: decl.keyword] + "__static__" + source[decl.keyword + len("__device__") :]
    return source


@dataclass(frozen=True)
class _Declaration:
    """A declaration of variables: the positions of its start, its first keyword and its end (after the ;)."""

    start: int
    keyword: int
    end: int
    names: tuple[str, ...]
    constant: bool


def _declarations(code: str) -> Iterator[_Declaration]:
    """Yield the declarations at the top level or in a namespace, but no templates and no extern declarations."""
    seen = 0
    for match in _KEYWORD.finditer(code):
        start = max(code.rfind(c, 0, match.start()) for c in ";{}") + 1
        before = code[start : match.start()]
        if match.start() < seen or re.search(r"\b(?:template|extern)\b", before):
            continue
        if not at_top(code, start):
            continue
        end, plain = _statement(code, match.end())
        if plain is None or re.search(r"\bextern\b", plain):
            continue
        seen = end
        names = [re.findall(r"\w+", re.sub(r"\[[^]]*\]", "", part.partition("=")[0]))[-1:] for part in split(plain)]
        yield _Declaration(
            start,
            match.start(),
            end,
            tuple(name[0] for name in names if name),
            "__constant__" in code[start:end],
        )


def _statement(code: str, at: int) -> tuple[int, str | None]:
    """Return a declaration's end and its text with ( ) and { } blanked; None if it is a function or unfinished."""
    text = _ATTRIBUTE.sub(lambda m: " " * len(m[0]), code[at:])
    plain, waiting = "", []
    for i, c in enumerate(text):
        if not waiting and c == ";":
            return at + i + 1, plain
        if not waiting and c == "(" and "=" not in plain:
            return at + i, None
        if c in _PAIRS:
            waiting.append(_PAIRS[c])
        outside = not any(b != "]" for b in waiting)
        if waiting and c == waiting[-1]:
            waiting.pop()
        elif c in ")]}" and not (waiting and c == waiting[-1]):
            return at + i, None
        plain += c if outside or c == "\n" else " "
    return at + len(text), None
