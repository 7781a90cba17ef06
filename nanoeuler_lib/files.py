"""Write files whole or not at all, by one process at a time; read and check JSON; print text safely."""

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from safetensors import SafetensorError

from nanoeuler_lib.errors import NanoEulerError, short

try:
    import fcntl
except ImportError:  # Windows: there two writers of one file are not kept apart
    fcntl = None


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text under another name, `.NAME.partial`, and rename it. What was there stays if that fails.

    A killed process leaves its partial file, and the next process that writes this file takes it over. Raises
    NanoEulerError when it cannot be written, or another process is writing it.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        while True:
            with open(partial, "ab") as file:
                hold(file, path)
                if not is_still(file, partial):  # its last writer renamed it before it was locked here
                    continue
                try:
                    file.truncate(0)  # a killed process may have left something
                    file.write(text.encode())
                    file.flush()
                    synced(file.fileno())
                    os.replace(partial, path)
                    return
                except BaseException:
                    partial.unlink(missing_ok=True)
                    raise


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turn the system's error about writing this file or folder into a NanoEulerError of one line."""
    try:
        yield
    except NanoEulerError:
        raise
    except (OSError, SafetensorError, ValueError) as error:  # safetensors has its own; ValueError: NUL in the name
        raise NanoEulerError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})") from None


def expect_new(path: str | Path, parents: bool = False) -> None:
    """Refuse a path that exists, or where nothing can be written, before the work whose result it is for.

    parents: whether the folders above it will be made.
    """
    if os.path.lexists(path):
        raise NanoEulerError(f"{path}: exists already, expected a new name")
    expect_writable(path, parents)


def expect_writable(path: str | Path, parents: bool = False) -> None:
    """Refuse a path whose folder takes no new file; `parents` as for `expect_new`. A file without a name is tried."""
    folder = Path(path).absolute().parent
    while parents and not os.path.lexists(folder):
        folder = folder.parent
    with writing(path), tempfile.TemporaryFile(dir=folder):
        pass


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out`, which takes that name once the block is done, and is removed if it fails.

    A folder that a killed process left there is emptied and used. Raises NanoEulerError when nothing can be written,
    when the disk is full, and when another process is making this folder.
    """
    partial, lock = out.with_name(f".{out.name}.partial"), None
    try:
        partial.mkdir(parents=True, exist_ok=True)
        if os.name != "nt":  # Windows opens no folder
            hold(lock := os.open(partial, os.O_RDONLY), out)
        try:
            for left in partial.iterdir():
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
            yield partial
            for file in (*partial.iterdir(), partial):
                sync(file)
            os.replace(partial, out)
            sync(out.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
        raise NanoEulerError(f"{out}: cannot be written ({getattr(error, 'strerror', None) or error})") from None
    finally:
        if lock is not None:
            os.close(lock)


def hold(file: BinaryIO | TextIO | int, path: Path, doing: str = "writing it") -> None:
    """Lock an open file, or a folder's number, until it is closed or the process ends, however it ends.

    Raises NanoEulerError if another process holds it. path, doing: what is written under this lock, and what the other
    process is then said to be doing.
    """
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NanoEulerError(f"{path}: another process is {doing}, expected one at a time") from None
        except OSError:  # a file system without locks
            pass


def is_still(file: BinaryIO | TextIO, path: Path) -> bool:
    """Whether an open file still stands at its path, neither renamed nor removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError:
        return False


def read_regular(path: str | Path, most: int) -> bytes:
    """Read a regular file that somebody else may have made: no link is followed, and no pipe is waited for.

    Raises NanoEulerError for a link, a pipe, a device or a folder, for more than `most` bytes, and for what cannot be
    read.
    """
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    try:
        handle = os.open(path, flags)
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode) or about.st_size > most:
                raise NanoEulerError(f"{path}: must be a regular file of at most {most} bytes")
            with open(handle, "rb", closefd=False) as file:
                return file.read(about.st_size)
        finally:
            os.close(handle)
    except OSError as error:
        raise NanoEulerError(f"{path}: cannot be read ({error.strerror or error})") from None


def sha256(path: str | Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: str | Path) -> None:
    """Have a file or a folder written to the disk, so that a power cut leaves it as it is now."""
    if os.name == "nt":  # Windows syncs neither folders nor what was opened for reading
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        synced(handle)
    finally:
        os.close(handle)


# What file systems answer that cannot do it (SMB, VirtualBox, some of FUSE); a full or broken disk answers otherwise.
UNABLE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM, errno.EACCES}


def synced(handle: int) -> None:
    """Have an open file or folder written to the disk, where its file system can do that."""
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in UNABLE:
            raise


def to_json(value: object, indent: int | None = None) -> str:
    """JSON as people read it, with ü as ü; with escapes only where a file's name holds bytes that are not UTF-8."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent, allow_nan=False)
    return text


def from_json(text: str) -> object:
    """The value of a JSON text as `to_json` writes it. Raises ValueError for anything else, NaN and infinity included.

    Raises RecursionError for more brackets than Python's parser goes down.
    """
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def fits(value: object, kind: object) -> bool:
    """Whether a JSON value is of a kind.

    kind: a type (True is no int); a tuple of kinds, one of which must fit; a list, the kind of each item; {str: kind},
    the kind of all values; a function that decides; or a value that must be equal.
    """
    if isinstance(kind, type):
        return type(value) is kind
    if isinstance(kind, tuple):
        return any(fits(value, one) for one in kind)
    if isinstance(kind, list):
        return type(value) is list and len(value) == len(kind) and all(map(fits, value, kind))
    if isinstance(kind, dict):
        return type(value) is dict and all(fits(one, kind[str]) for one in value.values())
    return kind(value) if callable(kind) else type(value) is type(kind) and value == kind


def is_count(value: object) -> bool:
    """Whether a JSON value is an integer from 0 to 2^53 - 1, which every JSON reader keeps."""
    return type(value) is int and 0 <= value < 2**53


def _finite(digits):
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"a number is {digits[:20]}, expected a finite one")
    return value


def seal(head: dict) -> dict:
    """The head of a folder, as its JSON file holds it: with the digest of its content, which `read_head` checks."""
    return head | {"digest": hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()}


def read_head(file: Path, form: str, kinds: dict, largest: int | None = None, expected: str = "") -> dict:
    """The head of a folder, from the JSON file that holds it sealed.

    form: the "format" it must have; kinds: of what it must hold (`fits`); largest: in bytes; expected: what to say was
    expected where there is no such file. Raises NanoEulerError when the file is missing, too large, not JSON, of
    another format, or not what was sealed.
    """
    try:
        if largest is not None and (size := file.stat().st_size) > largest:
            raise NanoEulerError(f"{file}: has {size} bytes, expected at most {largest}")
        head = from_json(file.read_bytes().decode())
    except NanoEulerError:
        raise
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, not JSON
        if expected and isinstance(error, FileNotFoundError):
            raise NanoEulerError(f"{file}: no such file, expected {expected}") from None
        reason = one_line(str(error), 200)
        raise NanoEulerError(f"{file}: not readable as JSON ({reason}): truncated or edited") from None
    if not isinstance(head, dict) or head.get("format") != form:
        actual = head.get("format") if isinstance(head, dict) else type(head).__name__
        raise NanoEulerError(f"{file}: format is {short(actual)}, expected {form!r}")
    for key, kind in kinds.items():
        if not fits(head.get(key, ...), kind):
            raise NanoEulerError(f"{file}: {key} is {short(head.get(key))}: truncated or edited")
    digest = head.pop("digest", None)
    if seal(head)["digest"] != digest:
        raise NanoEulerError(f"{file}: its digest does not match its content: edited")
    return head


def expect_digest(file: Path, digest: str, head: str) -> None:
    """Raise NanoEulerError unless a file is there and has the SHA-256 that is written in the head beside it."""
    if not file.is_file():
        raise NanoEulerError(f"{file}: no such file, expected it beside {head}")
    if (actual := sha256(file)) != digest:
        expected = one_line(digest[:12])
        raise NanoEulerError(f"{file}: SHA-256 is {actual[:12]}..., expected {expected}...: truncated or edited")


# Control characters but for tab, line feed and the carriage return before one; halves of surrogate pairs; the two
# overrides, which show letters in another order than they stand in: a file named exe.txt might be txt.exe. Marks and
# isolates of text from right to left stay, as joiners and all kinds of spaces do: writing needs them.
UNSHOWN = re.compile(r"\r(?!\n|\Z)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202d\u202e]")


def printable(text: str) -> str:
    """The text with U+FFFD for what would steer a terminal, which models at their beginning write, and nothing else."""
    return UNSHOWN.sub("\ufffd", text)


def one_line(text: str, most: int = 600) -> str:
    """The text as a message shows it: printable, in one line, its middle left out if it is longer than that."""
    with suppress(UnicodeEncodeError):  # bytes of a name that the locale cannot read, and that are UTF-8
        text = text.encode(errors="surrogateescape").decode(errors="replace")
    text = printable(" ".join(text.splitlines()).replace("\t", " "))
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def markdown(text: object) -> str:
    """The text as one line of Markdown that shows it: nothing in it is markup, a cell's end or HTML."""
    return re.sub(r"[\\`*_\[\]<&|~#$]", r"\\\g<0>", one_line(str(text)))


class Voice:
    """A text stream that falls silent, and raises nothing, once nobody is at its other end.

    A run must not end because the terminal was closed, the connection dropped, or `head` has seen enough. `stream` may
    be None, as sys.stderr is in a process that was started without one.
    """

    def __init__(self, stream: TextIO | None):
        self.stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        self._try("write", text)
        return len(text)

    def flush(self) -> None:
        self._try("flush")

    def line(self, text: str) -> None:
        """Write a line, now: a pipe shows it while the run goes on."""
        self.write(f"{printable(text)}\n")
        self.flush()

    def isatty(self) -> bool:
        return bool(self._try("isatty"))

    def fileno(self) -> int:
        """The stream's file number, for whoever asks how wide the terminal is."""
        if self.stream is None:
            raise OSError("no stream")
        return self.stream.fileno()

    def _try(self, name, *arguments):
        if self.stream is None:
            return None
        try:
            return getattr(self.stream, name)(*arguments)
        except (OSError, ValueError):  # ValueError: the stream was closed
            self.stream = None
            return None
