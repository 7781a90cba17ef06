"""The documents of each corpus, one by one, from files that a `Fetcher` gives."""

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
    """A document: name, text, what else is known, what is written if not the text, and why it is of no use.

    held: whether it is held out, where that is decided by who prepared the corpus.
    """

    name: str
    text: str
    about: dict[str, str] = field(default_factory=dict)
    written: str | None = None
    fault: str = ""
    held: bool | None = None


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
    book = gutenberg.strip(gutenberg.decode(_content(path)))
    gutenberg.expect_title(book, file.title, file.author)
    size = len(book.text.encode())
    if fetched and not book.closed:
        raise NanoEulerError(f"holds {size:,} bytes of a book and no end marker, expected one: it was cut")
    if 2 * size < file.bytes:
        raise NanoEulerError(f"holds {size:,} bytes of a book, expected about {file.bytes:,}")
    return book


def web(get: Get, files: Sequence[File], note: Callable[[str], object]) -> Iterator[Document]:
    """The pages of parquet files, a row group in memory at a time; the next file is fetched when one is used up."""
    need("`nanoeuler corpus`", "pyarrow", PACKAGES)
    for file in files:
        local = get(file, lambda path, fetched: next(pages(path), None))  # looks at its columns
        for number, page in enumerate(pages(local.path)):
            name, url = str(page.get("id") or f"{file.name}:{number}"), page.get("url")
            text = (page["text"] or "").replace("\r\n", "\n").replace("\r", "\n").strip()
            yield Document(name, text, {"url": str(url)} if url else {}, fault=page.get("fault", ""))


def examples(get: Get, files: Sequence[File], note: Callable[[str], object]) -> Iterator[Document]:
    """Instructions with answers, as `nanoeuler sft` reads them: each is written as one line of JSON."""
    for file in files:
        local = get(file, lambda path, fetched: read_examples(path))
        for number, (_, value) in enumerate(json_values(local.path), 1):
            keys = ("input", "output") if "output" in value else ("context", "response")
            texts = [value.get(key, "") for key in ("instruction", *keys)]
            fault = "" if texts[2].strip() else "no answer"
            yield Document(f"{file.name}:{number}", "\n".join(texts), written=to_json(value), fault=fault)


def whole(get: Get, files: Sequence[File], note: Callable[[str], object]) -> Iterator[Document]:
    """Files that are one document each, byte for byte."""
    for file in files:
        yield Document(file.name, _content(get(file).path).decode())


def prepared(get: Get, files: Sequence[File], note: Callable[[str], object]) -> Iterator[Document]:
    """The documents of two files that are ready: those to train on, and those that are held out."""
    for file, held in zip(files, (False, True), strict=True):
        text = _content(get(file).path).decode()
        for number, document in enumerate(data.documents(text), 1):
            yield Document(f"{file.name}:{number}", document, held=held)


def _content(path):
    with opened(path) as file:
        return file.read()
