"""The documents of each corpus, one by one, from files that a `Fetcher` gives."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from nanoeuler_lib.corpus import gutenberg
from nanoeuler_lib.corpus.fetch import Fetched, need
from nanoeuler_lib.corpus.registry import File
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import to_json
from nanoeuler_lib.text.examples import read_examples

Get = Callable[..., Fetched]  # Fetcher.get


@dataclass(frozen=True)
class Document:
    """A document: name, text, what else is known, what is written if not the text, and why it is of no use."""

    name: str
    text: str
    about: dict[str, str] = field(default_factory=dict)
    written: str | None = None
    fault: str = ""


def books(get: Get, files: Sequence[File], note: Callable[[str], object]) -> Iterator[Document]:
    """The books without what Project Gutenberg put around them. note: called with what could not be verified."""
    for file in files:
        local = get(file, lambda path, fetched, file=file: _book(path, fetched, file))
        book = _book(local.path, False, file)
        if not book.closed:
            note(f"{local.path}: nothing closes the book; if its end were missing, this would not be seen")
        yield Document(file.name, book.text, {"title": file.title, "author": file.author})


def _book(path, fetched, file):
    """The book of a file; a fetched one must be closed by a marker or a licence, since it may have been cut."""
    book = gutenberg.strip(gutenberg.decode(path.read_bytes()))
    gutenberg.expect_title(book, file.title, file.author)
    size = len(book.text.encode())
    if fetched and not book.closed:
        raise NanoEulerError(f"holds {size:,} bytes of a book and no end marker, expected one: it was cut")
    if 2 * size < file.bytes:
        raise NanoEulerError(f"holds {size:,} bytes of a book, expected about {file.bytes:,}")
    return book


def web(get: Get, files: Sequence[File], note: Callable[[str], object]) -> Iterator[Document]:
    """The pages of parquet files, a row group in memory at a time; the next file is fetched when one is used up."""
    need("pyarrow")
    import pyarrow
    from pyarrow import parquet

    for file in files:
        local = get(file, lambda path, fetched: _expect_columns(path))
        try:
            with parquet.ParquetFile(local.path) as table:
                columns = [name for name in ("id", "url", "text") if name in table.schema_arrow.names]
                for group in range(table.num_row_groups):
                    for row, page in enumerate(table.read_row_group(group, columns=columns).to_pylist()):
                        name = str(page.get("id") or f"{file.name}:{group}:{row}")
                        text = (page["text"] or "").replace("\r\n", "\n").replace("\r", "\n").strip()
                        yield Document(name, text, {"url": page["url"]} if page.get("url") else {})
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise NanoEulerError(
                f"{local.path}: cannot be read ({_first_line(error)}), expected parquet"
            ) from None


def _expect_columns(path):
    import pyarrow
    from pyarrow import parquet

    try:
        names = parquet.read_schema(path).names
    except (pyarrow.ArrowException, OSError) as error:
        raise NanoEulerError(f"is no parquet file ({_first_line(error)})") from None
    if "text" not in names:
        raise NanoEulerError(f"has the columns {short(names)}, expected text among them")


def _first_line(error):
    return str(error).partition("\n")[0][:200]


def examples(get: Get, files: Sequence[File], note: Callable[[str], object]) -> Iterator[Document]:
    """Instructions with answers, as `nanoeuler sft` reads them: each is written as one line of JSON."""
    for file in files:
        local = get(file, lambda path, fetched: read_examples(path))
        content = local.path.read_text("utf-8")
        whole = content.lstrip().startswith("[")
        values = (
            json.loads(content)
            if whole
            else [json.loads(line) for line in content.split("\n") if line.strip()]
        )
        for number, value in enumerate(values, 1):
            keys = (
                ("instruction", "input", "output")
                if "output" in value
                else ("instruction", "context", "response")
            )
            texts = [value.get(key, "") for key in keys]
            fault = "" if texts[2].strip() else "no answer"
            yield Document(f"{file.name}:{number}", "\n".join(texts), written=to_json(value), fault=fault)


def whole(get: Get, files: Sequence[File], note: Callable[[str], object]) -> Iterator[Document]:
    """Files that are one document each, byte for byte."""
    for file in files:
        yield Document(file.name, get(file).path.read_bytes().decode())
