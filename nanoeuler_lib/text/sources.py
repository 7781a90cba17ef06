"""What files texts come in: plain or packed (.xz, .gz), as lines of JSON, in the columns of parquet."""

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

# by their first bytes, which begin no text
PACKED: dict[bytes, Callable] = {b"\xfd7zXZ\0": lzma.open, b"\x1f\x8b": gzip.open}
UNPACKING = lzma.LZMAError, zlib.error  # what they raise, beside OSError and EOFError
ENCODINGS = {  # by the mark that a file begins with: UTF-32's begins with UTF-16's
    codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}  # fmt: skip


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """A file, unpacked as it is read if it is packed, whatever its name. Raises what `open` raises."""
    with open(path, "rb") as file:
        begin = file.peek(6)
        packed = next((unpack for magic, unpack in PACKED.items() if begin.startswith(magic)), None)
        with packed(file) if packed else file as content:
            yield content


def without_mark(path: str | Path, begin: bytes) -> bytes:
    """The first bytes of a UTF-8 text without the mark that editors of Windows put there.

    begin: four bytes, or all if they are fewer. Raises NanoEulerError for UTF-16 and UTF-32, with their mark or,
    where the letters are those of English, without.
    """
    other = next((name for mark, name in ENCODINGS.items() if begin.startswith(mark)), None)
    if len(begin) == 4 and begin.count(0) == 2 and b"\0\0" in (begin[::2], begin[1::2]):
        other = other or "UTF-16 without its mark"
    if other:
        raise NanoEulerError(f"{path}: is {other}, expected UTF-8 text: save it as UTF-8, or see iconv")
    return begin.removeprefix(codecs.BOM_UTF8)


def form(path: str | Path) -> str:
    """The form that a file's name says it has: .jsonl, .parquet, or another ending, which means text."""
    path = Path(path)
    return Path(path.stem if path.suffix in (".xz", ".gz") else path.name).suffix.lower()


def json_texts(path: str | Path, blocks: Iterable[str]) -> Iterator[str]:
    """The texts of lines of JSON: each line an object with a text under "text", or null for none.

    blocks: the file's text in pieces. Raises NanoEulerError, with the line, for anything else.
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
        raise NanoEulerError(f"{place} is not JSON ({error}), expected an object a line") from None
    if not isinstance(value, dict) or not isinstance(text := value.get("text", value), str | None):
        found = f"a {type(value).__name__}"
        if isinstance(value, dict):
            found = f"{short(text)} under text" if "text" in value else f"keys {short(sorted(value))}"
        hint = ": nanoeuler sft reads conversations" if isinstance(value, dict) and "messages" in value else ""
        raise NanoEulerError(f"{place} has {found}, expected an object with a text under text{hint}")
    text = text or ""
    if re.search("[\0\ud800-\udfff]", text):
        raise NanoEulerError(f"{place} holds NUL, or half a surrogate pair: expected Unicode text")
    return text


TEXTS = "string", "large_string", "string_view", "binary", "large_binary", "binary_view", "null"  # kinds of a column


def pages(path: str | Path) -> Iterator[dict]:
    """The rows of a parquet file, a row group in memory at a time: id, url, where they are, and text, None for none.

    A text of bytes that are no UTF-8 has "fault" beside it. Raises NanoEulerError when the file is no parquet, has no
    column of texts under "text", or cannot be read to its end.
    """
    need("a parquet file", "pyarrow")
    from pyarrow import ArrowException, parquet, types

    try:
        with parquet.ParquetFile(path) as table:
            schema = table.schema_arrow
            if "text" not in schema.names:
                raise NanoEulerError(f"{path}: has the columns {short(schema.names)}, expected text among them")
            kind = schema.field("text").type
            kind = kind.value_type if types.is_dictionary(kind) else kind
            if not any(getattr(types, f"is_{name}", lambda kind: False)(kind) for name in TEXTS):
                raise NanoEulerError(f"{path}: its column text holds {one_line(str(kind), 60)}, expected texts")
            columns = [name for name in ("id", "url", "text") if name in schema.names]
            for group in range(table.num_row_groups):
                for page in table.read_row_group(group, columns=columns).to_pylist():
                    try:
                        yield {name: x.decode() if isinstance(x, bytes) else x for name, x in page.items()}
                    except UnicodeDecodeError:
                        yield {"text": None, "fault": "bytes that are not UTF-8"}
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise NanoEulerError(f"{path}: cannot be read ({reason}), expected parquet") from None


def need(what: str, module: str, packages: str = "") -> None:
    """Raise NanoEulerError if a module is missing. what: needs it; packages: hold it and its companions, for pip."""
    try:
        __import__(module)
    except ImportError:
        raise NanoEulerError(f"{what} needs {module}: pip install {packages or module}") from None
