"""Token shards: a corpus larger than memory as 16-bit token ids on disk, and parts of it to learn from.

    corpus/
        shards.json         what it is: how many tokens, documents and bytes, and the SHA-256 of every other file
        00000.npy ...       the token stream, uint16, cut wherever a shard is full, within a document too
        documents.npy       int64 [documents, 2]: where each one's end-of-text id stands in the stream, and its CRC-32
        tokenizer.json      what it was tokenized with

The stream has the end-of-text id before each document and after the last, as `data.tokenize` makes it (here for a text
of one document as well). Texts are read piece by piece and tokenized by processes; the files are the same bytes for any
number of them. A folder is written as `.NAME.partial` and renamed when complete: what a killed process leaves is never
taken for shards, and the next one that writes them begins anew. Chapter 31.
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
KINDS = {"tokens": int, "documents": int, "bytes": int, "shards": list, "sha256": {str: str}}  # of shards.json
SHARD_TOKENS = 1 << 25  # 64 MiB a shard
PIECE = 1 << 22  # bytes of text that a process tokenizes at a time

# Whether the first document goes on from the piece before; documents, or a part of one.
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
    """Tokenize UTF-8 text files into a new folder of shards, and open it.

    texts: one after another; each begins a document. workers: processes, by default one for each core; memory is that
    of a shard, a few pieces a process and their tokenizers, whatever the texts' length. A document longer than a piece
    is cut at spaces, where no token crosses, so one without spaces has to fit into memory. Raises NanoEulerError when
    the folder exists, a text is missing or none, and when the tokenizer has no end-of-text token or more than 65,536.
    """
    out = Path(out)
    files.expect_new(out, parents=True)
    if tokenizer.vocab_size > 1 << 16:
        raise NanoEulerError(
            f"tokenizer has {tokenizer.vocab_size} tokens, expected at most 65536: shards hold ids of 16 bits"
        )
    if END_OF_TEXT not in tokenizer.special_tokens:
        raise NanoEulerError(f"tokenizer has no token {END_OF_TEXT}, expected one that was trained with --end-of-text")
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
    """The documents of a text file in order, those of `data.documents`, about `size` bytes at a time.

    One that is longer comes in parts, cut at spaces. Raises what `data.read_blocks` does, and for no document at all.
    """
    rest, goes_on, some = "", False, False
    for block in data.read_blocks(path, size):
        lines, end, tail = (rest + block).rpartition("\n")  # a line that is cut off may become a separator
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
        raise NanoEulerError(f"{path}: holds separators and no document, expected text between them")


def _last_cut(text):
    """The last place where tokens cannot go across: a space before something else. 0 if there is none."""
    at = text.rfind(" ", 0, -1)
    while at > 0 and text[at + 1].isspace():
        at = text.rfind(" ", 0, at)
    return max(at, 0)


def _encoded(parts: Iterator[Piece], tokenizer, workers) -> Iterator[tuple[bool, list[np.ndarray], int]]:
    """The token ids of each piece's documents and its bytes, in order; only a few pieces are under way at a time."""
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
                pool.shutdown(cancel_futures=True)  # an error ends what waits
    except BrokenProcessPool:
        raise NanoEulerError(
            "a process that tokenizes was ended from outside, perhaps for want of memory: expected it to finish; "
            "fewer --workers take less"
        ) from None
    except (OSError, RuntimeError) as error:  # no further process or thread, or no memory that processes share
        for begun in set(multiprocessing.active_children()).difference(others):
            begun.kill()  # nobody will tell it to end
            begun.join()
        raise NanoEulerError(
            f"{workers} processes cannot be started ({getattr(error, 'strerror', None) or error}): expected fewer "
            "--workers; with --workers 1 none is"
        ) from None


_tokenizer: Tokenizer | None = None  # a worker's


def _begin_worker(tokenizer):
    global _tokenizer  # kept from piece to piece, with the words it has met
    _tokenizer = tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one

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
    """The token stream on its way into shards of so many tokens; `end` stands before each document and at the end."""

    def __init__(self, folder: Path, end: int, shard_tokens: int):
        self.folder, self.end = folder, np.array([end], np.uint16)
        self.room = np.empty(shard_tokens, np.uint16)
        self.filled, self.tokens, self.bytes = 0, 0, 0
        self.shards: list = []
        self.starts, self.sums = array("q"), array("q")

    def add(self, goes_on: bool, documents: list[np.ndarray], size: int) -> None:
        """Documents' ids; goes_on: the first ones belong to the document that was added last."""
        self.bytes += size
        for number, ids in enumerate(documents):
            if number or not goes_on:
                self.starts.append(self.tokens)
                self.sums.append(0)
                self._put(self.end)
            self._put(ids)
            self.sums[-1] = zlib.crc32(ids, self.sums[-1])  # type: ignore[arg-type]  # a Buffer from Python 3.12 on

    def close(self) -> None:
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
    """A folder of shards, opened and checked; the tokens stay on the disk.

    tokens, documents, bytes: how many; starts: [documents] where the end-of-text id before each one stands; sums:
    [documents] CRC-32 of its ids; tokenizer; digest: of all that is in the folder; vocabulary: of its tokenizer.
    Raises NanoEulerError, with the file, when something is missing, cut short or edited.
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
        self._begins = [0, *accumulate(head["shards"])]  # of each shard in the stream, and the end

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens start to stop of the stream, [stop - start] uint16, from as many shards as they lie in."""
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
        raise NanoEulerError(f"{file}: its numbers or names of files do not fit together: edited")
    return head


def _mapped(file, dtype, shape):
    try:
        values = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise NanoEulerError(f"{file}: not readable ({one_line(str(error), 200)}), expected .npy") from None
    if (values.dtype, values.shape) != (dtype, shape):
        raise NanoEulerError(
            f"{file}: holds {values.dtype} {list(values.shape)}, expected {dtype.__name__} {list(shape)}"
        )
    return np.asarray(values)  # a plain view is quicker to cut than a memmap


# ---- Learning from them


@dataclass(frozen=True)
class Part:
    """Tokens start to stop of a folder of shards, which begin and end with an end-of-text id."""

    shards: Shards
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        return self.stop - self.start

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.shards.read(self.start + start, self.start + stop)

    def marks(self) -> np.ndarray:
        """A number for each document, the same for the same text: its length and CRC-32."""
        starts, sums = self.shards.starts, self.shards.sums
        first, last = np.searchsorted(starts, [self.start, self.stop - 1])
        return (np.diff(starts[first:last], append=self.stop - 1) << 32) | sums[first:last]
