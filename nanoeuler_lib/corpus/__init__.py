"""Text to train on from elsewhere: books, web pages, instructions, fetched, cleaned, each document once.

    out/
        train.txt, valid.txt    documents, divided by the line <|endoftext|>; whole ones are held out
        train.txt               shakespeare: `nanoeuler train` holds out its end
        examples.jsonl          alpaca, dolly: what `nanoeuler sft` reads, which holds out some itself
        documents.jsonl         a line for each document: its name and bytes, where it went, why it was dropped
        report.json             files with their hashes, licence, counts

A corpus goes one way: `registry` says where its files are, `fetch` brings them, `documents` reads them (`gutenberg`
knows the books), `dedup` finds what was there before, and here they are written. The folder appears when it is whole:
what stops before that, a cut connection, a full disk or a kill, leaves no corpus, and the files fetched so far.

Which documents are held out is decided by each one's name and the seed alone: more documents, or fewer, move none. Of
a prepared corpus that is decided, and no document is dropped.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from nanoeuler_lib import __version__
from nanoeuler_lib.corpus import dedup, documents
from nanoeuler_lib.corpus.documents import Document
from nanoeuler_lib.corpus.fetch import Fetcher
from nanoeuler_lib.corpus.registry import Corpus, corpora
from nanoeuler_lib.errors import NanoEulerError, did_you_mean, short
from nanoeuler_lib.files import expect_new, new_folder, sha256, to_json, write_text
from nanoeuler_lib.text.data import SEPARATOR

READERS = {
    "books": documents.books,
    "web": documents.web,
    "alpaca": documents.examples,
    "dolly": documents.examples,
    "shakespeare": documents.whole,
    "classics": documents.prepared,
    "featured": documents.prepared,
}


def make(
    name: str,
    out: str | Path,
    downloads: str | Path = "downloads",
    have: str | Path | None = None,
    size: int | None = None,
    seed: int = 0,
    valid_fraction: float = 0.0,
    skip: Iterable[str] = (),
    quiet: bool = False,
    follow: Callable[[Iterable[Document]], Iterable[Document]] = lambda stream: stream,
) -> dict:
    """Make a corpus in a new folder, and return what its report.json holds.

    name: of the registry; out: folder to make; downloads: where files are kept, in a folder of the corpus's name; have:
    folder of files one has; size: bytes of text after which to stop (None: all); seed: of what is held out and of the
    comparison; valid_fraction: about this share of the documents is held out; skip: files to do without, by name or
    number; quiet: nothing but what came out; follow: may show the documents as they go by.
    Raises NanoEulerError when an argument is none of these, a file cannot be had or is not what it should be, the disk
    takes no more, or a part has no document.
    """
    if name not in corpora():
        raise NanoEulerError(f"corpus is {short(name)}, expected one of {', '.join(corpora())}")
    if size is not None and size < 1:
        raise NanoEulerError(f"--bytes is {size}, expected at least 1")
    if not 0 <= valid_fraction < 1:
        raise NanoEulerError(f"--valid-fraction is {valid_fraction}, expected 0 or more, and less than 1")
    corpus = corpora()[name]
    files, skipped = _without(corpus, list(skip))
    notes, used = [], []
    with ExitStack() as stack:
        expect_new(out)
        folder = stack.enter_context(new_folder(Path(out)))
        fetcher = stack.enter_context(Fetcher(Path(downloads) / name, have, corpus.pause, quiet))

        def get(file, check=lambda path, fetched: None):
            used.append((file, fetcher.get(file, check)))
            return used[-1][1]

        writer = stack.enter_context(_Writer(folder, name, seed, valid_fraction))
        if not writer.fill(follow(READERS[name](get, files, notes.append)), size):
            notes.append(f"{writer.bytes:,} bytes of text, {size:,} were asked for: the files hold no more")
        report = _report(corpus, writer, size, skipped, notes, used)
        write_text(folder / "report.json", to_json(report, indent=1) + "\n")
    return report


def _report(corpus: Corpus, writer, size, skipped, notes, used):
    """Return what report.json holds. size: bytes of text that were asked for; used: files, and how each was fetched."""
    return {
        "corpus": corpus.name, "about": corpus.about, "licence": corpus.licence, "source": corpus.source,
        "nanoeuler": __version__, "seed": writer.seed, "valid_fraction": writer.fraction, "bytes_asked_for": size,
        "parts": writer.parts(), "dropped": dict(writer.dropped), "skipped": skipped, "notes": notes,
        "compared_by": writer.seen.rule,
        "files": [
            {"name": file.name, "from": fetched.url, "bytes": fetched.bytes, "sha256": fetched.sha256}
            for file, fetched in used
        ],
    }  # fmt: skip


def _without(corpus: Corpus, skip):
    """The corpus's files without the skipped ones, and the names of the skipped ones."""
    names = {file.name: file.name for file in corpus.files}
    names |= {str(file.number): file.name for file in corpus.files if file.number is not None}
    for word in skip:
        if word not in names:
            known = did_you_mean(word, names)
            raise NanoEulerError(f"--skip names {short(word)}, expected a file of {corpus.name}{known}")
    left_out = {names[word] for word in skip}
    return [file for file in corpus.files if file.name not in left_out], sorted(left_out)


class _Writer:
    """Writes the documents that are of use into their parts, and a line on each."""

    def __init__(self, folder, name, seed, valid_fraction):
        lines = READERS[name] is documents.examples
        self.seed, self.fraction = seed, valid_fraction
        self.seen = dedup.Seen(seed, near=not lines)  # two questions on one long passage are two
        file, *ends = ("examples.jsonl", "", "\n") if lines else ("train.txt", SEPARATOR)
        self.train = _Part(folder / file, *ends)
        divided = valid_fraction or READERS[name] is documents.prepared
        self.valid = _Part(folder / "valid.txt", SEPARATOR) if divided else None
        self.lines = _Part(folder / "documents.jsonl", after="\n")
        self.texts = [part for part in (self.train, self.valid) if part]
        self.dropped = Counter()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for part in (*self.texts, self.lines):
            with suppress(OSError):  # of a full disk, which has been told
                part.file.close()

    @property
    def bytes(self):
        """Of the texts written so far."""
        return sum(part.text for part in self.texts)

    def fill(self, documents, size):
        """Write documents until the texts have `size` bytes (None: all of them); return whether they have.

        Raises NanoEulerError where a part stays empty. The files are closed.
        """
        for document in documents:
            self.add(document)
            if size is not None and self.bytes >= size:
                break
        self.expect_parts()
        return size is None or self.bytes >= size

    def add(self, document):
        reason, detail = self._reason(document)
        if reason:
            self.dropped[reason] += 1
            part = None
        else:
            draw = self.valid and held_out(document.name, self.seed, self.fraction)
            part = self.valid if (draw if document.held is None else document.held) else self.train
            part.write(document.written or document.text)
        facts = {"name": document.name, **document.about, "bytes": len(document.text.encode())}
        facts |= {"part": part.path.name} if part else {"dropped": detail or reason}
        self.lines.write(to_json(facts))

    def _reason(self, document):
        """Why a document is dropped, in general and in particular; nothing if it is not."""
        if document.fault:
            return document.fault, ""
        if not document.text.strip():
            return "empty", ""
        if "\0" in document.text:
            return "holds NUL", ""
        if SEPARATOR in f"\n{document.text}\n":
            return "holds the line that divides documents", ""
        twin = None if document.held is not None else self.seen.twin(document.name, document.text)
        if twin is None:
            return "", ""
        if twin.similarity is None:
            return "same words as an earlier one", f"same words as {twin.name}"
        return "nearly an earlier one", f"nearly {twin.name}: similarity {twin.similarity:.2f}"

    def expect_parts(self):
        """Refuse a corpus with an empty part, and close the files."""
        for part in self.texts:
            if part.documents == 0:
                count = sum(other.documents for other in self.texts)
                raise NanoEulerError(
                    f"{part.path.name} has none of {count} documents, expected one or more: "
                    "another --valid-fraction or --seed"
                )
        for part in (*self.texts, self.lines):
            part.file.close()

    def parts(self):
        """What was written, by the names of the files."""
        return {
            path.name: {"documents": part.documents, "bytes": path.stat().st_size, "sha256": sha256(path)}
            for part, path in ((part, part.path) for part in self.texts)
        }


class _Part:
    """A file of documents: what divides them, what ends each; counts of documents and of bytes of text."""

    def __init__(self, path, between="", after=""):
        self.path, self.between, self.after = path, between.encode(), after.encode()
        self.documents, self.text = 0, 0
        self.file = open(path, "wb")

    def write(self, text):
        content = text.encode()
        self.file.write((self.between if self.documents else b"") + content + self.after)
        self.documents += 1
        self.text += len(content)


def held_out(name: str, seed: int, fraction: float) -> bool:
    """Whether the document of this name is held out for validation: a draw by seed and name decides."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64
