"""Functions that write files atomically under a lock, read and check JSON, and print text safely."""

import errno
import hashlib
import html
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from safetensors import SafetensorError

from nanoeuler_lib.errors import NanoEulerError, short

try:
    import fcntl
except ImportError:  # Windows, where nothing stops two processes from writing the same file, and which renames and
    fcntl = None  # deletes only closed files


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text to a temporary file `.NAME.partial`, then rename it; if that fails, the old file stays.

    A killed process leaves the partial file. Raises NanoEulerError if writing fails or another process is writing.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    with writing(path):
        while True:
            with open(partial, "ab") as file:
                hold(file, path)
                if not is_still(file, partial):  # its last writer renamed it before this process locked it
                    continue
                try:
                    file.truncate(0)  # remove what a killed process may have written
                    file.write(text.encode())
                    file.flush()
                    synced(file.fileno())
                    _close_on_windows(file)
                    os.replace(partial, path)
                    return
                except BaseException:
                    _close_on_windows(file)
                    partial.unlink(missing_ok=True)
                    raise


def _close_on_windows(file):
    if fcntl is None:
        with suppress(OSError):  # a full disk, which write_text reports
            file.close()


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Convert a system error inside the block into a NanoEulerError that says `path` cannot be written."""
    try:
        yield
    except NanoEulerError:
        raise
    except (OSError, SafetensorError, ValueError) as error:  # ValueError: a NUL in the name
        raise NanoEulerError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})") from None


def expect_new(path: str | Path, parents: bool = False) -> None:
    """Raise NanoEulerError if a path exists or cannot be written; parents: missing parent folders will be created."""
    if os.path.lexists(path):
        raise NanoEulerError(f"{path}: already exists: choose a new name")
    expect_writable(path, parents)


def expect_writable(path: str | Path, parents: bool = False) -> None:
    """Raise NanoEulerError unless a temporary file can be created in a path's folder; `parents` as for `expect_new`."""
    folder = Path(path).absolute().parent
    while parents and not os.path.lexists(folder):
        folder = folder.parent
    with writing(path), tempfile.TemporaryFile(dir=folder):
        pass


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Create a hidden folder next to `out` and rename it to `out` after the block; remove it if the block fails.

    A killed process's folder is reused. Raises NanoEulerError if writing fails or another process is creating it.
    """
    partial, lock = out.with_name(f".{out.name}.partial"), None
    try:
        partial.mkdir(parents=True, exist_ok=True)
        if fcntl is not None:  # Windows cannot open folders
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
    """Lock an open file, or the descriptor of a folder, until it is closed or the process ends.

    path, doing: for the message, what is locked and what its holder is doing. Raises NanoEulerError if it is locked.
    """
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NanoEulerError(f"{path}: another process is {doing}: wait until it has finished") from None
        except OSError:  # this file system has no locks
            pass


def is_still(file: BinaryIO | TextIO, path: Path) -> bool:
    """Return whether an open file is still at its path, neither renamed nor removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError:
        return False


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: str | Path) -> None:
    """Flush a file or a folder to the disk, so that it survives a power failure."""
    if fcntl is None:  # Windows can flush neither folders nor files opened for reading
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        synced(handle)
    finally:
        os.close(handle)


# Errors of file systems that do not support fsync (SMB, VirtualBox, some of FUSE). A full or broken disk gives others.
UNABLE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM, errno.EACCES}


def synced(handle: int) -> None:
    """Flush an open file or folder to the disk, if its file system supports that."""
    try:
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS, where fsync does not empty the cache of the drive
            with suppress(OSError):  # this file system has no such command
                return fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        os.fsync(handle)
    except OSError as error:
        if error.errno not in UNABLE:
            raise


def to_json(value: object, indent: int | None = None) -> str:
    """Return a value as JSON text. ü stays ü, unless the text has a file name whose bytes are not UTF-8."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=indent, allow_nan=False)
    return text


def from_json(text: str) -> object:
    """Parse a JSON text. Raises ValueError if it is invalid or has NaN or infinity, RecursionError if too nested."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def fits(value: object, kind: object) -> bool:
    """Return whether a JSON value matches a kind.

    kind: a type (True is not an int); a tuple of kinds, one of which must match; a list with the kind of each item;
    {str: kind}, a dict whose values all match that kind; a predicate; or a value that must be equal.
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
    """Return whether a JSON value is an integer from 0 to 2^53 - 1, the range that every JSON reader keeps exact."""
    return type(value) is int and 0 <= value < 2**53


def _finite(digits):
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"a number must be finite, got {digits[:20]}")
    return value


def seal(head: dict) -> dict:
    """Return a folder's header with the SHA-256 digest of its content added, which `read_head` checks."""
    return head | {"digest": hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()}


def read_head(file: Path, form: str, kinds: dict, largest: int | None = None, expected: str = "") -> dict:
    """Read a folder's header from a JSON file that `seal` made, and check it.

    form: its "format"; kinds: kind of each value (`fits`); largest: in bytes; expected: for the message. Raises
    NanoEulerError if the file is missing, too large or not JSON, or its format, a value or its digest is wrong.
    """
    try:
        if largest is not None and (size := file.stat().st_size) > largest:
            raise NanoEulerError(f"{file}: must have at most {largest} bytes, got {size}")
        head = from_json(file.read_bytes().decode())
    except NanoEulerError:
        raise
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, not JSON
        if expected and isinstance(error, FileNotFoundError):
            raise NanoEulerError(f"{file}: no such file, expected {expected}") from None
        reason = one_line(str(error), 200)
        raise NanoEulerError(f"{file}: not readable as JSON ({reason}): the file was truncated or edited") from None
    if not isinstance(head, dict) or head.get("format") != form:
        actual = head.get("format") if isinstance(head, dict) else type(head).__name__
        raise NanoEulerError(f"{file}: format must be {form!r}, got {short(actual)}")
    for key, kind in kinds.items():
        if not fits(head.get(key, ...), kind):
            raise NanoEulerError(f"{file}: {key} is {short(head.get(key))}: the file was truncated or edited")
    digest = head.pop("digest", None)
    if seal(head)["digest"] != digest:
        raise NanoEulerError(f"{file}: its digest does not match its content: the file was edited")
    return head


def expect_digest(file: Path, digest: str, head: str) -> None:
    """Raise NanoEulerError unless a file exists and has this SHA-256, which the header file named `head` lists."""
    if not file.is_file():
        raise NanoEulerError(f"{file}: no such file: {head} in the same folder lists it")
    if (actual := sha256(file)) != digest:
        expected = one_line(digest[:12])
        raise NanoEulerError(
            f"{file}: SHA-256 must be {expected}..., got {actual[:12]}...: the file was truncated or edited"
        )


# Control characters except tab, line feed and the carriage return before it; halves of surrogate pairs; and the two
# directional overrides, which display letters in a different order, so that txt.exe can look like exe.txt. Marks and
# isolates of right-to-left text are not in the set, nor are joiners and the kinds of spaces, because text needs them.
UNSHOWN = re.compile(r"\r(?!\n|\Z)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202d\u202e]")


def printable(text: str) -> str:
    """Return the text with U+FFFD for each character that could control a terminal; untrained models write such."""
    return UNSHOWN.sub("\ufffd", text)


def one_line(text: str, most: int = 600) -> str:
    """Return a text as one printable line; if it has more than `most` characters, the middle is left out."""
    with suppress(UnicodeEncodeError):  # decode a name again whose UTF-8 bytes the locale could not read
        text = text.encode(errors="surrogateescape").decode(errors="replace")
    text = printable(" ".join(text.splitlines()).replace("\t", " "))
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def markdown(text: object) -> str:
    """Return a text as one line of Markdown, with markup, table separators and HTML escaped."""
    return re.sub(r"[\\`*_\[\]<&|~#$]", r"\\\g<0>", one_line(str(text)))


HTML = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.6 system-ui, sans-serif; max-width: 48rem; margin: 2rem auto; padding: 0 1rem }}
{style}
</style>
<h1>{title}</h1>
{body}
</html>
"""


def html_page(title: str, style: str, body: str) -> str:
    """Return an HTML page in one file. title: plain text; style: CSS; body: HTML below the title."""
    return HTML.format(title=escaped(title), style=style, body=body)


def escaped(text: object) -> str:
    """Return a text without control characters and with HTML's special characters escaped."""
    return html.escape(printable(str(text)))


class Voice:
    """Wrap a text stream; once its reader is gone, discard all output without an error.

    A run must not end because a terminal or `| head` was closed. `stream` may be None, as sys.stderr can be.
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
        """Write a printable line and flush it, so that a pipe shows it at once."""
        self.write(f"{printable(text)}\n")
        self.flush()

    def isatty(self) -> bool:
        return bool(self._try("isatty"))

    def fileno(self) -> int:
        """Return the stream's file descriptor, which is needed to query the terminal's width."""
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
