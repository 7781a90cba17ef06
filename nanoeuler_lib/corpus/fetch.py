"""Files from elsewhere: whole, checked, under their name; or one line that says why not.

    folder/
        pg11.txt                    a file that came whole and passed its check
        pg11.txt.json               where it came from, its size and SHA-256, to which later uses are held
        .pg11.txt.partial, .json    what has come so far, and of what: the next attempt goes on there
        lock                        held while a process fetches into this folder

requests and urllib3 do the talking: redirects, time-outs, encrypted lines, whether a reply is as long as it said. What
they lack stands here: going on after a cut (Range with If-Range, else from the beginning), waiting as long as a server
asks for, the next mirror, hashes, and a pause between two files from one host.
"""

import hashlib
import lzma
import os
import random
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from nanoeuler_lib import __version__
from nanoeuler_lib.corpus.registry import File
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import Voice, from_json, hold, one_line, synced, to_json, write_text, writing
from nanoeuler_lib.text.sources import need

ATTEMPTS = 5  # at one address, of which each brings nothing new
LONGEST_WAIT = 600  # seconds; a server that asks for more is left for the next mirror
TIMEOUT = (15, 60)  # seconds to connect, and between two pieces of a reply
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
PIECE = 1 << 14  # bytes read at a time; when a line breaks, less than that is lost


class Failed(Exception):
    """An address does not give the file; the text says why."""


class Again(Failed):
    """An attempt failed, and another may succeed. seconds: how long the server asks to wait, or None."""

    def __init__(self, why, seconds=None):
        super().__init__(why)
        self.seconds = seconds


@dataclass(frozen=True)
class Fetched:
    """A file that is here: its path, its address (of one that was here before: its path), bytes and SHA-256."""

    path: Path
    url: str
    bytes: int
    sha256: str


class Fetcher:
    """Fetches files into a folder into which no other process is fetching.

    folder: made if it is not there; have: a folder of files one has, looked into first; pause: seconds between two
    files from one host; quiet: no progress bars. Raises NanoEulerError when `have` is no folder or `folder` cannot be
    written or is in use. Use it in a `with` statement.
    """

    def __init__(
        self, folder: str | Path, have: str | Path | None = None, pause: float = 0.0, quiet: bool = False
    ):
        self.folder, self.have, self.pause, self.quiet = Path(folder), have and Path(have), pause, quiet
        if self.have and not self.have.is_dir():
            raise NanoEulerError(f"{self.have}: no such folder, expected one of files to take")
        self.asked: dict[str, float] = {}  # host -> when it was last asked for a file
        self.session = None
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = open(self.folder / "lock", "a")
        hold(self.lock, self.folder, "fetching into it")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.lock.close()
        if self.session:
            self.session.close()

    def get(self, file: File, check: Callable[[Path, bool], object] = lambda path, fetched: None) -> Fetched:
        """The file: from the folder of files one has, from an earlier time, or from its addresses.

        check: raises NanoEulerError for a file that is not what it should be; it is given a path, perhaps of another
        name, and whether the file came from an address, where a cut may have shortened it.
        Raises NanoEulerError when no address gives the file, with why for each, or the disk takes no more.
        """
        return self._had(file, check) or self._kept(file, check) or self._from_somewhere(file, check)

    # ---- Files that are here

    def _had(self, file, check):
        """The file from the folder of files one has, plain or as .xz."""
        for name in (file.name, *file.names) if self.have else ():
            for path in (self.have / name, self.have / f"{name}.xz"):
                if path.is_file():
                    plain = self._unpacked(path, file) if path.suffix == ".xz" else path
                    try:
                        _expect_hash(plain, file.sha256)
                        check(plain, False)
                    except NanoEulerError as error:
                        raise NanoEulerError(f"{path}: {_without(error, plain)}") from None
                    return (
                        _fetched(plain, str(path)) if plain == path else self._place(plain, file, str(path))
                    )
        return None

    def _unpacked(self, path, file):
        partial = self._partial(file)
        self._forget(partial)
        try:
            with lzma.open(path) as packed, writing(partial), open(partial, "wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
        except (lzma.LZMAError, EOFError) as error:
            raise NanoEulerError(f"{path}: cannot be unpacked ({error}), expected an .xz file") from None
        return partial

    def _kept(self, file, check):
        """The file from an earlier time. One put there by hand gets its record now."""
        path, record = self.folder / file.name, self.folder / f"{file.name}.json"
        if not path.is_file():
            return None
        known = _record(record)
        try:
            _expect_hash(path, file.sha256 or tuple(str(known[key]) for key in known if key == "sha256"))
            check(path, str(known.get("url")).startswith("http"))
        except NanoEulerError as error:
            raise NanoEulerError(
                f"{path}: {_without(error, path)}; remove it, and it is fetched again"
            ) from None
        fetched = _fetched(path, known.get("url", str(path)))
        if not known:
            self._write_record(file, fetched)
        return fetched

    def _place(self, partial, file, url):
        """Give a file that passed its check its name; the record comes first, so that no file is without one."""
        fetched = _fetched(partial, url)
        self._write_record(file, fetched)
        path = self.folder / file.name
        with writing(path):
            os.replace(partial, path)
        self._forget(partial)
        return Fetched(path, fetched.url, fetched.bytes, fetched.sha256)

    def _write_record(self, file, fetched):
        facts = {"url": fetched.url, "bytes": fetched.bytes, "sha256": fetched.sha256}
        facts["date"] = time.strftime("%Y-%m-%d")
        write_text(self.folder / f"{file.name}.json", to_json(facts, indent=1) + "\n")

    def _partial(self, file):
        return self.folder / f".{file.name}.partial"

    # ---- Files that are elsewhere

    def _from_somewhere(self, file, check):
        partial, failures = self._partial(file), []
        for url in file.urls:
            try:
                promised = self._received(url, partial, file)
                try:
                    _expect_hash(partial, file.sha256 or promised)
                    check(partial, True)
                except NanoEulerError as error:
                    raise Failed(_without(error, partial)) from None
            except Failed as error:
                failures.append(f"{urlsplit(url).netloc} {error}")
                if not isinstance(error, Again):  # what came is of no use
                    self._forget(partial)
                continue
            return self._place(partial, file, url)
        if not file.urls:
            raise NanoEulerError(
                f"{file.name}: no address gives it, expected it or {file.name}.xz in a folder of yours: --from FOLDER"
            )
        raise NanoEulerError(
            f"{file.name}: cannot be fetched: {'; '.join(failures)}. A file you have is taken with --from FOLDER"
        )

    def _received(self, url, partial, file):
        """Let the whole file come, in as many attempts as it takes. Returns the hashes the server promised, if any."""
        failures, received = 0, _size(partial)
        while True:
            try:
                return self._attempt(url, partial, file)
            except Again as error:
                failures = 1 if _size(partial) > received else failures + 1
                received = max(received, _size(partial))
                if failures == ATTEMPTS:
                    raise Again(f"{error} ({ATTEMPTS} attempts)") from None
                wait = 2**failures * random.uniform(0.5, 1) if error.seconds is None else error.seconds
                if wait > LONGEST_WAIT:
                    raise Again(f"{error} and asks to wait {wait:,.0f} s") from None
                self._say(f"{file.name}: {urlsplit(url).netloc} {error}; again in {wait:.0f} s")
                time.sleep(wait)

    def _attempt(self, url, partial, file):
        """Ask once, for what is still missing where the server can tell that it is the same file."""
        need("requests")
        import requests

        done, before = _size(partial), _record(_notes(partial))
        same = before.get("validator") if before.get("url") == url else None
        if not (done and same):
            self._forget(partial)
            done = 0
        headers = {"Range": f"bytes={done}-", "If-Range": same} if done else {}
        self._wait_for(urlsplit(url).netloc)
        try:
            with self._session().get(url, headers=headers, stream=True, timeout=TIMEOUT) as reply:
                _expect_usable(url, reply)
                if reply.status_code == 416:  # nothing is missing, or what is here is not of this file
                    if reply.headers.get("Content-Range") == f"bytes */{done}":
                        return before.get("promised", [])
                    self._forget(partial)
                    raise Again("gives no more of it; from the beginning")
                if reply.status_code == 200:
                    done = 0
                elif not re.match(rf"bytes {done}-", reply.headers.get("Content-Range", "")):
                    self._forget(partial)
                    raise Again(f"sends {short(reply.headers.get('Content-Range'))}, expected bytes {done}-")
                promised = _promised(reply)
                length = reply.headers.get("Content-Length")
                chunked = reply.headers.get("Transfer-Encoding", "").lower() == "chunked"
                if not (length or chunked or file.sha256 or promised):
                    raise Failed("does not say how long it is: a cut would not be seen")
                if done == 0:
                    self._forget(partial)  # first, so that no note is ever beside bytes of something else
                    notes = {"url": url, "validator": _validator(reply), "promised": promised}
                    write_text(_notes(partial), to_json(notes))
                total = int(length) + done if length else None
                self._pour(reply, partial, done, total, file.name)
                return promised
        except requests.TooManyRedirects:
            raise Failed("redirects without end") from None
        except (
            requests.ConnectionError,
            requests.Timeout,
            requests.exceptions.ChunkedEncodingError,
        ) as error:
            if (came := _size(partial)) > done:
                raise Again(f"was cut off after {came:,} bytes") from None
            raise Again(_reason(error)) from None
        except requests.RequestException as error:
            raise Failed(one_line(str(error), 200)) from None
        finally:
            self.asked[urlsplit(url).netloc] = time.monotonic()

    def _pour(self, reply, partial, done, total, name):
        """A reply's body into the partial file behind its first `done` bytes, with a progress bar."""
        from tqdm import tqdm

        bar = tqdm(
            desc=name, total=total, initial=done, unit="B", unit_scale=True, leave=False, file=Voice(sys.stderr),
            disable=True if self.quiet else None,
        )  # fmt: skip
        with writing(partial):
            out = open(partial, "ab" if done else "wb", buffering=0)
        with bar, out:
            for piece in reply.iter_content(PIECE):  # its errors are OSErrors, too, and none of the disk's
                with writing(partial):
                    view = memoryview(piece)
                    while view:
                        view = view[out.write(view) :]
                bar.update(len(piece))
            with writing(partial):
                synced(out.fileno())

    def _session(self):
        if self.session is None:
            import requests

            self.session = requests.Session()
            self.session.headers["User-Agent"] = f"nanoeuler/{__version__} (a book about language models)"
            self.session.headers["Accept-Encoding"] = "identity"  # so that lengths and ranges are the file's
        return self.session

    def _wait_for(self, host):
        """Wait until this host may be asked for the next file."""
        left = self.asked.get(host, -self.pause) + self.pause - time.monotonic()
        if left > 0:
            time.sleep(left)

    def _forget(self, partial):
        for path in (partial, _notes(partial)):
            path.unlink(missing_ok=True)

    def _say(self, text):
        if not self.quiet:
            Voice(sys.stderr).line(text)


# ---- Helpers


def _expect_usable(url, reply):
    """Refuse a reply that is not the file, or part of it."""
    status = reply.status_code
    if status in TRANSIENT:
        raise Again(f"answers {status} {reply.reason}", _retry_after(reply))
    if status not in (200, 206, 416):
        raise Failed(f"answers {status} {reply.reason}")
    if url.startswith("https:") and not reply.url.startswith("https:"):
        raise Failed(f"redirects to {urlsplit(reply.url).netloc} without encryption")
    if (encoding := reply.headers.get("Content-Encoding", "identity")) != "identity":
        raise Failed(f"sends it encoded ({short(encoding)}), expected the file as it is")


def _retry_after(reply):
    """The seconds that a server asks to wait, None if it does not say."""
    from urllib3.exceptions import HTTPError
    from urllib3.util import Retry

    with suppress(HTTPError):
        return Retry(retry_after_max=10**9).get_retry_after(reply.raw)
    return None


def _validator(reply):
    """What tells this file from a later one under the same address: a strong ETag, or a date; None if neither."""
    tag = reply.headers.get("ETag", "")
    return tag if tag.startswith('"') else reply.headers.get("Last-Modified")


def _promised(reply):
    """The SHA-256 that Hugging Face sends with the redirect to a large file, as a list of one; else an empty list."""
    tags = [answer.headers.get("X-Linked-ETag", "").strip('"') for answer in (*reply.history, reply)]
    return [tag for tag in tags if re.fullmatch("[0-9a-f]{64}", tag)][:1]


def _expect_hash(path, allowed):
    if allowed and (actual := _sha256(path)) not in allowed:
        raise NanoEulerError(f"SHA-256 is {actual[:16]}..., expected {allowed[0][:16]}...")


def _sha256(path):
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise NanoEulerError(f"cannot be read ({error.strerror})") from None


def _fetched(path, url):
    return Fetched(path, url, _size(path), _sha256(path))


def _record(path):
    """The facts of a small JSON file; none if it is missing or spoilt."""
    try:
        facts = from_json(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _notes(partial):
    return partial.with_name(f"{partial.name}.json")


def _size(path):
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _without(error, path):
    """A message without the name of the file that it begins with."""
    return str(error).removeprefix(f"{path}: ")


def _reason(error):
    """Why no connection came about, in a few words."""
    import requests

    if isinstance(error, requests.Timeout):
        return "does not answer in time"
    if re.search("aborted|broken|reset", str(error), re.IGNORECASE):
        return "drops the line"
    words = re.findall(r"\[Errno -?\d+\] ([^'\")]+)|(certificate verify failed)", str(error))
    return "cannot be reached" + (f" ({(words[-1][0] or words[-1][1]).strip()})" if words else "")
