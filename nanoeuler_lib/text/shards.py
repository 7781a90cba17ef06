"""Token shards: write a corpus larger than memory to disk as 16-bit token ids, and read parts of it for training.

    corpus/
        shards.json         numbers of tokens, documents and bytes, and the SHA-256 of every other file
        00000.npy ...       the token stream, uint16; a full shard ends anywhere, even within a document
        documents.npy       int64 [documents, 2]: position of each document's end-of-text id in the stream, and CRC-32
        tokenizer.json      the tokenizer of the stream

The stream is that of `data.tokenize`, with the end-of-text id before each document and after the last one, here also
for a text of a single document. Several processes read and tokenize the texts piece by piece; the resulting files do
not depend on their number. A folder is written as `.NAME.partial` and renamed when it is complete. So the remains of a
killed process are never mistaken for shards, and the next attempt starts from scratch. Chapter 31.
"""

import multiprocessing
import os
import signal
import sys
import threading
import warnings
import zlib
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nanoeuler_lib import files
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import Voice, one_line, to_json
from nanoeuler_lib.machine import cores
from nanoeuler_lib.text import data
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer

FORMAT = "nanoeuler-shards-1"
KINDS = {"tokens": int, "documents": int, "bytes": int, "shards": list, "sha256": {str: str}}  # in shards.json
SHARD_TOKENS = 1 << 25  # 64 MiB per shard
PIECE = 1 << 22  # bytes of text that a process tokenizes at a time

# Whether the first document continues the last one of the piece before, and the documents or parts of documents.
Piece = tuple[bool, list[str]]


# ---- From texts to shards


def write(
    out: str | Path,
    texts: Sequence[str | Path],
    tokenizer: Tokenizer,
    workers: int | None = None,
    quiet: bool = True,
    shard_tokens: int = SHARD_TOKENS,
    piece: int = PIECE,
) -> "Shards":
    """Tokenize UTF-8 text files into a new folder of shards, and return it opened.

    texts: files; each starts a new document; workers: processes, by default one per core; quiet: show no progress bar;
    shard_tokens: tokens per shard; piece: bytes of text that a process tokenizes at a time. Memory use does not depend
    on the length of the texts: it is one shard, a few pieces per process and the tokenizers. A document longer than a
    piece is cut at spaces, which no token crosses; a document without spaces must fit into memory. Raises
    NanoEulerError if the folder exists, a text is missing or not text, or the tokenizer has no end-of-text token or
    more than 65,536 tokens.
    """
    out = Path(out)
    files.expect_new(out, parents=True)
    if tokenizer.vocab_size > 1 << 16:
        raise NanoEulerError(
            f"tokenizer must have at most 65536 tokens, got {tokenizer.vocab_size}: shards store 16-bit ids"
        )
    if END_OF_TEXT not in tokenizer.special_tokens:
        raise NanoEulerError(f"tokenizer must have the token {END_OF_TEXT}: train one with --end-of-text")
    with files.new_folder(out) as partial:
        tokenizer.save(partial / "tokenizer.json")
        stream = _Stream(partial, tokenizer.special_tokens[END_OF_TEXT], shard_tokens)
        total = sum(os.stat(text).st_size for text in texts if os.path.isfile(text))
        parts = (part for text in texts for part in pieces(text, piece))
        with tqdm(total=total, unit="B", unit_scale=True, disable=quiet or None, file=Voice(sys.stderr)) as bar:
            for goes_on, documents, size in _encoded(parts, tokenizer, workers or cores()):
                stream.add(goes_on, documents, size)
                bar.update(size)
        stream.close()
        _write_index(partial, tokenizer, stream)
    return Shards(out)


def pieces(path: str | Path, size: int = PIECE) -> Iterator[Piece]:
    """Yield the documents of a text file in order, about `size` bytes at a time; they are those of `data.documents`.

    A longer document is yielded in parts that are cut at spaces. Raises what `data.read_blocks` raises, and
    NanoEulerError if the file has no document.
    """
    rest, goes_on, some = "", False, False
    for block in data.read_blocks(path, size):
        lines, end, tail = (rest + block).rpartition("\n")  # the incomplete last line may become a separator
        *whole, rest = data.unix_separators(lines + end).split(data.SEPARATOR)
        rest = (rest + tail) if goes_on and not whole else data.without_leading_marks(rest + tail)
        if whole := [text for part in whole if (text := data.document(part))]:
            yield goes_on, whole
            goes_on, some = False, True
        if len(rest) > size and (cut := _last_cut(rest)):
            yield goes_on, [rest[:cut]]
            rest, goes_on, some = rest[cut:], True, True
    if whole := data.documents(data.unix_separators(rest)):
        yield goes_on, whole
    elif not some:
        raise NanoEulerError(f"{path}: must have text between its separators, got no document")


def _last_cut(text):
    """Return the last place that no token can cross, a space before a non-space, or 0 if there is none."""
    at = text.rfind(" ", 0, -1)
    while at > 0 and text[at + 1].isspace():
        at = text.rfind(" ", 0, at)
    return max(at, 0)


def _encoded(parts: Iterator[Piece], tokenizer, workers) -> Iterator[tuple[bool, list[np.ndarray], int]]:
    """Yield the token ids of each piece's documents and its size in bytes, in order, with few pieces in memory."""
    if workers == 1:
        yield from (_encode(tokenizer, part) for part in parts)
        return
    # As in `tokenizer`: Linux can fork, and Python 3.12 warns of locks that the workers never take.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    waiting: deque[Future] = deque()
    others = multiprocessing.active_children()
    try:
        with ProcessPoolExecutor(workers, context, _begin_worker, (tokenizer,)) as pool:
            try:
                for part in parts:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", DeprecationWarning)
                        waiting.append(pool.submit(_work, part))
                    if len(waiting) > 2 * workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)  # after an error, do not start the pieces that wait
    except BrokenProcessPool:
        raise NanoEulerError(
            "a process that tokenizes was killed, perhaps because memory ran out: use fewer --workers to save memory"
        ) from None
    except (OSError, RuntimeError) as error:  # the system allows no more processes, threads or shared memory
        for begun in set(multiprocessing.active_children()).difference(others):
            begun.kill()  # the pool that would end it has failed
            begun.join()
        raise NanoEulerError(
            f"{workers} processes cannot be started ({getattr(error, 'strerror', None) or error}): use fewer "
            "--workers; --workers 1 starts none"
        ) from None


_tokenizer: Tokenizer | None = None  # the tokenizer of a worker process


def _begin_worker(tokenizer):
    global _tokenizer  # kept between pieces, because it remembers the words that it has encoded
    _tokenizer = tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C

    def end_with_it():
        if parent := multiprocessing.parent_process():
            parent.join()
        os._exit(1)

    threading.Thread(target=end_with_it, daemon=True).start()


def _work(part):
    return _encode(_tokenizer, part)


def _encode(tokenizer, part):
    goes_on, texts = part
    return goes_on, [tokenizer.encode(text) for text in texts], sum(len(text.encode()) for text in texts)


class _Stream:
    """Writes the token stream into shards of `shard_tokens` tokens, with `end` before each document and at the end."""

    def __init__(self, folder: Path, end: int, shard_tokens: int):
        self.folder, self.end = folder, np.array([end], np.uint16)
        self.room = np.empty(shard_tokens, np.uint16)
        self.filled, self.tokens, self.bytes = 0, 0, 0
        self.shards: list = []
        self.starts, self.sums = array("q"), array("q")

    def add(self, goes_on: bool, documents: list[np.ndarray], size: int) -> None:
        """Append the ids of documents; goes_on: the first ones continue the document that was added last."""
        self.bytes += size
        for number, ids in enumerate(documents):
            if number or not goes_on:
                self.starts.append(self.tokens)
                self.sums.append(0)
                self._put(self.end)
            self._put(ids)
            self.sums[-1] = zlib.crc32(ids, self.sums[-1])  # type: ignore[arg-type]  # a Buffer from Python 3.12 on

    def close(self) -> None:
        """Write the last end-of-text id, the last shard and documents.npy."""
        self._put(self.end)
        if self.filled:
            self._write()
        np.save(self.folder / "documents.npy", np.column_stack([self.starts, self.sums]).astype(np.int64))

    def _put(self, ids):
        self.tokens += len(ids)
        while len(ids):
            some = ids[: len(self.room) - self.filled]
            self.room[self.filled : self.filled + len(some)] = some
            self.filled, ids = self.filled + len(some), ids[len(some) :]
            if self.filled == len(self.room):
                self._write()

    def _write(self):
        np.save(self.folder / _name(len(self.shards)), self.room[: self.filled])
        self.shards.append(self.filled)
        self.filled = 0


def _name(number):
    return f"{number:05}.npy"


def _write_index(folder, tokenizer, stream):
    head = {
        "format": FORMAT, "vocab_size": tokenizer.vocab_size, "tokens": stream.tokens,
        "documents": len(stream.starts), "bytes": stream.bytes, "shards": stream.shards,
        "sha256": {file.name: files.sha256(file) for file in sorted(folder.iterdir())},
    }  # fmt: skip
    files.write_text(folder / "shards.json", to_json(files.seal(head), indent=1) + "\n")


# ---- Reading them


class Shards:
    """Open a folder of shards and check its files; the tokens stay on disk.

    tokens, documents, bytes: their numbers; starts: positions of the end-of-text ids before the documents, [documents];
    sums: CRC-32 of each document's ids, [documents]; tokenizer: the tokenizer of the stream; digest: SHA-256 of the
    index, which covers all files; vocabulary: SHA-256 of the tokenizer's file. Raises NanoEulerError, with the name of
    the file, if a file is missing, truncated or edited.
    """

    def __init__(self, folder: str | Path):
        self.path = Path(folder)
        self.name = Path(os.path.abspath(folder)).name
        head = _read_head(self.path / "shards.json")
        for name, digest in head["sha256"].items():
            files.expect_digest(self.path / name, digest, "shards.json")
        self.tokens, self.documents, self.bytes = head["tokens"], head["documents"], head["bytes"]
        self.digest, self.vocabulary = files.seal(head)["digest"], head["sha256"]["tokenizer.json"]
        self.tokenizer = Tokenizer.load(self.path / "tokenizer.json")
        self.shards = [_mapped(self.path / _name(i), np.uint16, (n,)) for i, n in enumerate(head["shards"])]
        self.starts, self.sums = _mapped(self.path / "documents.npy", np.int64, (self.documents, 2)).T
        self._begins = [0, *accumulate(head["shards"])]  # start of each shard in the stream, then the end of the last

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the tokens start to stop of the stream, uint16 [stop - start]; they may be in several shards."""
        first = bisect_right(self._begins, start) - 1
        parts = []
        while start < stop:
            begin, end = self._begins[first : first + 2]
            parts.append(self.shards[first][start - begin : min(stop, end) - begin])
            start, first = end, first + 1
        return np.concatenate(parts)


def _read_head(file):
    head = files.read_head(file, FORMAT, KINDS, expected="a folder that nanoeuler shards wrote")
    names = ["documents.npy", "tokenizer.json", *(_name(i) for i in range(len(head["shards"])))]
    good = all(type(n) is int and n > 0 for n in head["shards"]) and sum(head["shards"]) == head["tokens"]
    if not good or set(head["sha256"]) != set(names):
        raise NanoEulerError(f"{file}: its numbers or file names contradict each other: the file was edited")
    return head


def _mapped(file, dtype, shape):
    try:
        values = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise NanoEulerError(f"{file}: must be a readable .npy file ({one_line(str(error), 200)})") from None
    if (values.dtype, values.shape) != (dtype, shape):
        raise NanoEulerError(
            f"{file}: must hold {dtype.__name__} {list(shape)}, got {values.dtype} {list(values.shape)}"
        )
    return np.asarray(values)  # slicing an ordinary array is faster than slicing a memmap


# ---- Learning from them


@dataclass(frozen=True)
class Part:
    """Refer to the tokens start to stop of a folder of shards; the first and last of them are end-of-text ids."""

    shards: Shards
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.stop - self.start

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return tokens start to stop of this part, uint16 [stop - start]."""
        return self.shards.read(self.start + start, self.start + stop)

    def marks(self) -> np.ndarray:
        """Return a number for each document that is equal for equal texts, made of its length and CRC-32; int64 [n]."""
        starts, sums = self.shards.starts, self.shards.sums
        first, last = np.searchsorted(starts, [self.start, self.stop - 1])
        return (np.diff(starts[first:last], append=self.stop - 1) << 32) | sums[first:last]
