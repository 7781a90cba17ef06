"""Read the documents of each corpus one by one, from files that a `Fetcher` provides."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from nanoeuler_lib.corpus import gutenberg
from nanoeuler_lib.corpus.fetch import PACKAGES, Fetched
from nanoeuler_lib.corpus.registry import File
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import to_json
from nanoeuler_lib.text import data
from nanoeuler_lib.text.sft_data import json_values, read_examples
from nanoeuler_lib.text.sources import need, opened, pages

Get = Callable[..., Fetched]  # Fetcher.get


@dataclass(frozen=True)
class Document:
    """Hold a document: its name and text, and what to do with it.

    about: further facts for documents.jsonl; written: written instead of the text, if not None; fault: why the document
    is useless, or ""; held: whether the publisher of a prepared corpus holds it out, None for other corpora.
    """

    name: str
    text: str
    about: dict[str, str] = field(default_factory=dict)
    written: str | None = None
    fault: str = ""
    held: bool | None = None


def books(get: Get, files: Sequence[File], note: Callable[[str], object]) -> Iterator[Document]:
    """Yield books without the header and licence that Project Gutenberg adds.

    get: `Fetcher.get`; files: of the corpus; note: called with a text if the end of a book cannot be verified. Raises
    NanoEulerError if a file is not the expected book or was cut short.
    """
    for file in files:
        local = get(file, lambda path, fetched, file=file: _book(path, fetched, file))
        book = _book(local.path, False, file)
        if not book.closed:
            note(f"{local.path}: has no end marker or licence, so a missing end of the book would not be noticed")
        yield Document(file.name, book.text, {"title": file.title, "author": file.author})


def _book(path, fetched, file):
    """Return the book in a file; a downloaded file may be cut off, so it must have an end marker or a licence."""
    book = gutenberg.strip(gutenberg.decode(_content(path)))
    gutenberg.expect_title(book, file.title, file.author)
    size = len(book.text.encode())
    if fetched and not book.closed:
        raise NanoEulerError(f"must have an end marker, got {size:,} bytes of a book without one: the file was cut off")
    if 2 * size < file.bytes:
        raise NanoEulerError(f"must hold about {file.bytes:,} bytes of a book, got {size:,}")
    return book


def web(get: Get, files: Sequence[File], note: Callable[[str], object]) -> Iterator[Document]:
    """Yield pages of parquet files, each downloaded when needed. Arguments as `books`, errors as `sources.pages`."""
    need("`nanoeuler corpus`", "pyarrow", PACKAGES)
    for file in files:
        local = get(file, lambda path, fetched: next(pages(path), None))  # checks its columns
        for number, page in enumerate(pages(local.path)):
            name, url = str(page.get("id") or f"{file.name}:{number}"), page.get("url")
            text = (page["text"] or "").replace("\r\n", "\n").replace("\r", "\n").strip()
            yield Document(name, text, {"url": str(url)} if url else {}, fault=page.get("fault", ""))


def examples(get: Get, files: Sequence[File], note: Callable[[str], object]) -> Iterator[Document]:
    """Yield instructions as lines of JSON, for `nanoeuler sft`. Arguments as `books`, errors as `read_examples`."""
    for file in files:
        local = get(file, lambda path, fetched: read_examples(path))
        for number, (_, value) in enumerate(json_values(local.path), 1):
            keys = ("input", "output") if "output" in value else ("context", "response")
            texts = [value.get(key, "") for key in ("instruction", *keys)]
            fault = "" if texts[2].strip() else "no answer"
            yield Document(f"{file.name}:{number}", "\n".join(texts), written=to_json(value), fault=fault)


def whole(get: Get, files: Sequence[File], note: Callable[[str], object]) -> Iterator[Document]:
    """Yield each file as one document, unchanged. The arguments are those of `books`."""
    for file in files:
        yield Document(file.name, _content(get(file).path).decode())


def prepared(get: Get, files: Sequence[File], note: Callable[[str], object]) -> Iterator[Document]:
    """Yield the documents of two prepared files, for training and held out. The arguments are those of `books`."""
    for file, held in zip(files, (False, True), strict=True):
        text = _content(get(file).path).decode()
        for number, document in enumerate(data.documents(text), 1):
            yield Document(f"{file.name}:{number}", document, held=held)


def _content(path):
    with opened(path) as file:
        return file.read()
