"""Read the file formats that texts come in: plain or compressed text (.xz, .gz), lines of JSON, and parquet."""

import codecs
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import one_line

# decompressors by the first bytes of their files; no text begins with these bytes
PACKED: dict[bytes, Callable] = {b"\xfd7zXZ\0": lzma.open, b"\x1f\x8b": gzip.open}
UNPACKING = lzma.LZMAError, zlib.error  # errors of the decompressors, in addition to OSError and EOFError
ENCODINGS = {  # by byte-order mark; UTF-32 comes first, because its mark begins with that of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}  # fmt: skip


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file of bytes, decompressed if its first bytes (not its name) say so. Raises what `open` raises."""
    with open(path, "rb") as file:
        begin = file.peek(6)
        packed = next((unpack for magic, unpack in PACKED.items() if begin.startswith(magic)), None)
        with packed(file) if packed else file as content:
            yield content


def without_mark(path: str | Path, begin: bytes) -> bytes:
    """Return the first bytes of a UTF-8 text without the byte-order mark that some Windows editors write.

    begin: the first four bytes, or all bytes of a shorter file. Raises NanoEulerError for UTF-16 and UTF-32 with a
    byte-order mark, and for UTF-16 without one if the text starts with ASCII characters.
    """
    other = next((name for mark, name in ENCODINGS.items() if begin.startswith(mark)), None)
    if len(begin) == 4 and begin.count(0) == 2 and b"\0\0" in (begin[::2], begin[1::2]):
        other = other or "UTF-16 without its mark"
    if other:
        raise NanoEulerError(f"{path}: must be UTF-8 text, got {other}: save it as UTF-8, or convert it with iconv")
    return begin.removeprefix(codecs.BOM_UTF8)


def form(path: str | Path) -> str:
    """Return the lower-case ending of a name without .xz or .gz; all but ".jsonl" and ".parquet" mean plain text."""
    path = Path(path)
    return Path(path.stem if path.suffix in (".xz", ".gz") else path.name).suffix.lower()


def json_texts(path: str | Path, blocks: Iterable[str]) -> Iterator[str]:
    """Yield the texts of a file of JSON lines: each line is an object with a text, or null, under "text".

    path: for error messages; blocks: the content of the file in pieces. Null becomes "". Raises NanoEulerError with the
    number of the line if a line is anything else.
    """
    number, rest = 0, ""
    for block in chain(blocks, "\n"):
        *lines, rest = (rest + block).split("\n")
        for line in lines:
            number += 1
            if line.strip():
                yield _json_text(f"{path}: line {number}", line)


def _json_text(place, line):
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NanoEulerError(f"{place} must be a JSON object, got invalid JSON ({error})") from None
    if not isinstance(value, dict) or not isinstance(text := value.get("text", value), str | None):
        found = f"a {type(value).__name__}"
        if isinstance(value, dict):
            found = f"{short(text)} under text" if "text" in value else f"keys {short(sorted(value))}"
        hint = ": nanoeuler sft reads conversations" if isinstance(value, dict) and "messages" in value else ""
        raise NanoEulerError(f'{place} must be an object with a text under "text", got {found}{hint}')
    text = text or ""
    if re.search("[\0\ud800-\udfff]", text):
        raise NanoEulerError(f"{place} must be Unicode text, got NUL or half a surrogate pair")
    return text


TEXTS = "string", "large_string", "string_view", "binary", "large_binary", "binary_view", "null"  # types of text


def pages(path: str | Path) -> Iterator[dict]:
    """Yield the rows of a parquet file as dictionaries with "text", and with "id" and "url" if these columns exist.

    Only one row group is in memory at a time. A missing text is None. For a text whose bytes are not UTF-8, "text" is
    None and "fault" describes the error. Raises NanoEulerError if the file is not parquet, has no text column "text",
    or cannot be read to its end.
    """
    need("a parquet file", "pyarrow")
    from pyarrow import ArrowException, parquet, types

    try:
        with parquet.ParquetFile(path) as table:
            schema = table.schema_arrow
            if "text" not in schema.names:
                raise NanoEulerError(f'{path}: must have a column "text", got {short(schema.names)}')
            kind = schema.field("text").type
            kind = kind.value_type if types.is_dictionary(kind) else kind
            if not any(getattr(types, f"is_{name}", lambda kind: False)(kind) for name in TEXTS):
                raise NanoEulerError(f'{path}: column "text" must hold texts, got {one_line(str(kind), 60)}')
            columns = [name for name in ("id", "url", "text") if name in schema.names]
            for group in range(table.num_row_groups):
                for page in table.read_row_group(group, columns=columns).to_pylist():
                    try:
                        yield {name: x.decode() if isinstance(x, bytes) else x for name, x in page.items()}
                    except UnicodeDecodeError:
                        yield {"text": None, "fault": "bytes that are not UTF-8"}
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise NanoEulerError(f"{path}: must be a readable parquet file ({reason})") from None


def need(what: str, module: str, packages: str = "") -> None:
    """Raise NanoEulerError, naming `what` needs the module, if it is missing. packages: for pip, default the module."""
    try:
        __import__(module)
    except ImportError:
        raise NanoEulerError(f"{what} needs {module}: pip install {packages or module}") from None
