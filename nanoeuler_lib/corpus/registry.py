"""Read `registry.toml`, the list of corpora: their files with addresses and hashes, and their licences."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class File:
    """Describe a file to download.

    name: name of the downloaded file; urls: addresses, tried in this order; names: other names that it may have in a
    folder given with --from; sha256: accepted hashes, none if the publisher changes the file; bytes: size of the file,
    or None if unknown, and for a book the approximate size of its text; number, title, author: of a book.
    """

    name: str
    urls: tuple[str, ...]
    names: tuple[str, ...] = ()
    sha256: tuple[str, ...] = ()
    bytes: int | None = None
    number: int | None = None
    title: str = ""
    author: str = ""


@dataclass(frozen=True)
class Corpus:
    """Describe a corpus and its licence; pause: seconds to wait between two downloads from the same host."""

    name: str
    about: str
    licence: str
    source: str
    files: tuple[File, ...]
    pause: float = 0.0


@cache
def corpora() -> dict[str, Corpus]:
    """Return the corpora of the registry by name."""
    table = tomllib.loads((Path(__file__).parent / "registry.toml").read_text("utf-8"))
    return {name: _corpus(name, facts) for name, facts in table.items()}


def _corpus(name, facts):
    files = tuple(_file(entry, facts["urls"], facts.get("names", [])) for entry in facts["files"])
    about = {key: facts[key] for key in ("about", "licence", "source")}
    return Corpus(name, **about, files=files, pause=facts.get("pause", 0.0))


def _file(entry, urls, names):
    """Return the `File` of an entry, which is a table, a name, or a row [number, title, author, bytes] of a book."""
    if isinstance(entry, str):
        entry = {"name": entry}
    if isinstance(entry, list):
        number, title, author, size = entry
        entry = {"number": number, "title": title, "author": author, "bytes": size, "name": f"pg{number}.txt"}
    fill = lambda text: text.format(name=entry["name"], number=entry.get("number"))
    entry |= {"urls": tuple(map(fill, urls)), "names": tuple(map(fill, entry.get("names", names)))}
    return File(**entry | {"sha256": tuple(entry.get("sha256", ()))})
