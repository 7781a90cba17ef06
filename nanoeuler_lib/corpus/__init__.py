"""Make a training corpus from published texts: download books, web pages or instructions, clean and deduplicate them.

    out/
        train.txt, valid.txt    documents, separated by the line <|endoftext|>; whole documents are held out
        train.txt               shakespeare: only this file; `nanoeuler train` holds out its end
        examples.jsonl          alpaca, dolly: input of `nanoeuler sft`, which holds out some examples itself
        documents.jsonl         one line per document: its name and size, its file, or why it was dropped
        report.json             files with their hashes, the licence, counts

`registry` lists the files of each corpus, `fetch` downloads them, `documents` reads them (with `gutenberg` for books),
`dedup` finds duplicates, and this module writes the result. `nanoeuler corpus` calls it. The folder appears only when
it is complete: a lost connection, a full disk or a kill leaves no corpus, but the files downloaded so far are kept.

Only a document's name and the seed decide whether it is held out, so adding or removing documents moves no others. A
prepared corpus comes with its own split, and none of its documents is dropped. Chapter 31.
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
    """Make a corpus in a new folder, and return the content of its report.json.

    name: a corpus of the registry; out: the new folder; downloads: folder for downloaded files, with a subfolder per
    corpus; have: folder with files that you already have; size: stop after so many bytes of text (None: use all); seed:
    for held-out documents and for deduplication; valid_fraction: approximate fraction of documents to hold out; skip:
    names or numbers of files to leave out; quiet: show no progress; follow: receives the iterable of documents, for
    example to show progress. Raises NanoEulerError if an argument is invalid, a file cannot be downloaded or is not the
    expected one, the disk is full, or train.txt or valid.txt would have no document.
    """
    if name not in corpora():
        raise NanoEulerError(f"corpus must be one of {', '.join(corpora())}, got {short(name)}")
    if size is not None and size < 1:
        raise NanoEulerError(f"--bytes must be at least 1, got {size}")
    if not 0 <= valid_fraction < 1:
        raise NanoEulerError(f"--valid-fraction must be at least 0 and less than 1, got {valid_fraction}")
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
    """Return the content of report.json. size: requested bytes of text; used: pairs of a file and its `Fetched`."""
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
    names = {file.name: file.name for file in corpus.files}
    names |= {str(file.number): file.name for file in corpus.files if file.number is not None}
    for word in skip:
        if word not in names:
            known = did_you_mean(word, names)
            raise NanoEulerError(f"--skip must name a file of {corpus.name}, got {short(word)}{known}")
    left_out = {names[word] for word in skip}
    return [file for file in corpus.files if file.name not in left_out], sorted(left_out)


class _Writer:
    def __init__(self, folder, name, seed, valid_fraction):
        lines = READERS[name] is documents.examples
        self.seed, self.fraction = seed, valid_fraction
        self.seen = dedup.Seen(seed, near=not lines)  # two questions about the same long passage are not duplicates
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
            with suppress(OSError):  # a full disk has already been reported
                part.file.close()

    @property
    def bytes(self):
        return sum(part.text for part in self.texts)

    def fill(self, documents, size):
        """Write documents until the texts have `size` bytes (None: all); return whether they do. Closes the files."""
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
        """Return why a document is dropped, as a general and a specific reason; both are "" if it is kept."""
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
        """Check that no file of documents is empty, and close the files."""
        for part in self.texts:
            if part.documents == 0:
                count = sum(other.documents for other in self.texts)
                raise NanoEulerError(
                    f"{part.path.name} must have at least one of the {count} documents, got none: "
                    "use a different --valid-fraction or --seed"
                )
        for part in (*self.texts, self.lines):
            part.file.close()

    def parts(self):
        """Return number of documents, bytes and SHA-256 of each file of documents, by its name."""
        return {
            path.name: {"documents": part.documents, "bytes": path.stat().st_size, "sha256": sha256(path)}
            for part, path in ((part, part.path) for part in self.texts)
        }


class _Part:
    """A file of documents, with text between documents and after each one; counts documents and bytes of text."""

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
    """Return whether the document of this name is held out: a random choice fixed by seed and name.

    fraction: approximate fraction of documents that are held out. Chapter 31.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64
