"""What `registry.toml` says of each corpus: its files, where they are, their hashes, its licence."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class File:
    """A file to fetch.

    name: under which it is kept; urls: in this order; names: others it may have in a folder of files one has; sha256:
    any of these will do, none if the publisher changes it; bytes: its size, None if not known; of a book that of its
    text, about. number, title and author are a book's.
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
    """A corpus: its name, what it is, its licence, its home page, its files, and seconds between two from one host."""

    name: str
    about: str
    licence: str
    source: str
    files: tuple[File, ...]
    pause: float = 0.0


@cache
def corpora() -> dict[str, Corpus]:
    """The corpora by name."""
    table = tomllib.loads((Path(__file__).parent / "registry.toml").read_text("utf-8"))
    return {name: _corpus(name, facts) for name, facts in table.items()}


def _corpus(name, facts):
    files = tuple(_file(entry, facts["urls"], facts.get("names", [])) for entry in facts["files"])
    about = {key: facts[key] for key in ("about", "licence", "source")}
    return Corpus(name, **about, files=files, pause=facts.get("pause", 0.0))


def _file(entry, urls, names):
    """A file from its table, from its name, or a book from its row."""
    if isinstance(entry, str):
        entry = {"name": entry}
    if isinstance(entry, list):
        number, title, author, size = entry
        entry = {"number": number, "title": title, "author": author, "bytes": size, "name": f"pg{number}.txt"}
    fill = lambda text: text.format(name=entry["name"], number=entry.get("number"))
    entry |= {"urls": tuple(map(fill, urls)), "names": tuple(map(fill, entry.get("names", names)))}
    return File(**entry | {"sha256": tuple(entry.get("sha256", ()))})
