"""Fetch the files of a corpus: each whole and checked under its name, or one line that says why not.

A file of the Hugging Face Hub is unfinished as .NAME.HASH.partial, which the next call resumes; others are in .pooch/
and started over. huggingface_hub's hf_hub_download starts a file over after a kill, so http_get, which does its work
and can resume, is called here; HF_ENDPOINT may name a mirror. pooch fetches from all other addresses.
"""

import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from http.client import responses
from pathlib import Path
from urllib.parse import urlsplit

from tqdm import tqdm

from nanoeuler_lib import __version__
from nanoeuler_lib.corpus.registry import File
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import Voice, hold, one_line, sync, writing
from nanoeuler_lib.text.sources import UNPACKING, need, opened

PACKAGES = "pooch huggingface_hub pyarrow"
AGENT = {"User-Agent": f"nanoeuler/{__version__} (a book about language models)"}
HUB = "https://huggingface.co"
REASONS = {  # words of requests and httpx, and what they mean; the first that is found counts
    r"HTTP 407|^407 |failed: 407": "the proxy of HTTPS_PROXY asks for a password (407)",
    r"^[45]\d\d |Tunnel connection failed": "the proxy of HTTPS_PROXY refuses the connection",
    "failed to resolve|name resolution|service not known|getaddrinfo": "the name does not resolve",
    "unreachable": "no network",
    "refused": "connection refused",
    "timed out": "no answer in time",
    "closed|disconnected|reset|aborted|incomplete|consistency": "the connection was cut",
}


@dataclass(frozen=True)
class Fetched:
    """A file that is here: its path, where it comes from, and the size and SHA-256 of its content, unpacked."""

    path: Path
    url: str
    bytes: int
    sha256: str


class Fetcher:
    """Fetch files into a folder into which no other process is fetching. Use it in a `with` statement.

    folder: made if it is missing; have: a folder of files one has, searched first; pause: seconds between two files
    from one host; quiet: no progress bars. Raises NanoEulerError when `have` is no folder or `folder` cannot be
    written or is in use.
    """

    def __init__(self, folder: Path, have: Path | None = None, pause: float = 0.0, quiet: bool = False):
        self.folder, self.have, self.pause, self.asked = Path(folder), have and Path(have), pause, set()
        if self.have and not self.have.is_dir():
            raise NanoEulerError(f"{self.have}: no such folder, expected one of files to take")
        self.bar = partial(tqdm, file=Voice(sys.stderr), leave=False, disable=True if quiet else None)
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = open(self.folder / "lock", "a")
        hold(self.lock, self.folder, "fetching into it")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        shutil.rmtree(self.folder / ".pooch", ignore_errors=True)
        self.lock.close()

    def get(self, file: File, check: Callable[[Path, bool], object] = lambda path, fetched: None) -> Fetched:
        """Return the file: from the folder of files one has, from an earlier call, or from its first good address.

        check: raises NanoEulerError for a file that is not what it should be; it is given a path and whether the file
        comes from an address now, where a cut may have shortened it. Raises NanoEulerError when no address gives the
        file, with the reason for each, or the disk is full.
        """
        for name in (f"{name}{end}" for name in (file.name, *file.names) for end in ("", ".xz") if self.have):
            if (path := self.have / name).is_file():
                return _checked(path, path, file.sha256, check)
        path, failures = self.folder / file.name, []
        if path.is_file():
            try:
                return _checked(path, path, file.sha256, check)
            except NanoEulerError as error:
                failures.append(str(error))
        for url in file.urls:
            hub, url = url.startswith(HUB), url.replace(HUB, os.environ.get("HF_ENDPOINT", HUB).rstrip("/"))
            host = urlsplit(url).netloc
            need("`nanoeuler corpus`", "huggingface_hub" if hub else "pooch", PACKAGES)
            time.sleep(self.pause * (host in self.asked))
            self.asked.add(host)
            try:
                part, promised = self._from_hub(url, file.name) if hub else self._from_web(url, file.name)
                found = _checked(part, host, file.sha256 or promised, check, fetched=True)
                sync(part)
                os.replace(part, path)
                return replace(found, path=path, url=url)
            except NanoEulerError as error:  # it came, and is not the file
                part.unlink()
                failures.append(str(error))
            except Exception as error:  # the errors of requests and of httpx have no base in common
                if isinstance(error, OSError) and error.errno:  # theirs have no number
                    raise NanoEulerError(f"{self.folder}: cannot be written ({error.strerror})") from None
                failures.append(f"{host}: {_reason(error)}")
        raise NanoEulerError(
            f"{file.name}: cannot be fetched: {'; '.join(failures) or 'it has no address'}. "
            f"A folder that holds it or {file.name}.xz is taken with --from FOLDER"
        )

    def _from_web(self, url, name):
        """Fetch from an address with pooch. Returns the unfinished file's path, and no hash."""
        import pooch

        pooch.get_logger().setLevel("WARNING")
        bar = self.bar(desc=name, total=1, unit="B", unit_scale=True)  # without a total it has no truth value
        download = pooch.HTTPDownloader(progressbar=bar, timeout=(15, 60), headers=AGENT)
        one = {"registry": {name: None}, "urls": {name: url}}
        site = pooch.create(self.folder / ".pooch", "", retry_if_failed=1, **one)
        return Path(site.fetch(name, downloader=download)), ()

    def _from_hub(self, url, name):
        """Fetch from the Hub what earlier calls have not. Returns the unfinished file's path and the Hub's SHA-256."""
        from huggingface_hub import get_hf_file_metadata
        from huggingface_hub.file_download import http_get

        headers = AGENT | {"Accept-Encoding": "identity"}
        facts = get_hf_file_metadata(url, headers=headers)
        tag = re.sub(r"\W", "", facts.etag or "")  # of a large file its SHA-256
        part = self.folder / f".{name}.{tag}.partial"
        with open(part, "ab") as out:
            shown = {"displayed_filename": name, "tqdm_class": self.bar}
            http_get(url, out, resume_size=out.tell(), headers=headers, expected_size=facts.size, **shown)
        return part, (tag,) if len(tag) == 64 else ()


def _checked(path, shown, allowed, check, fetched=False):
    """Return a file that passes its check as Fetched; the message of one that does not names it as `shown`."""
    try:
        with open(path, "rb") as file:
            if re.match(rb"\s*<(!doctype )?html", file.read(100), re.IGNORECASE):
                raise NanoEulerError("must be the file itself, got a web page (HTML)")
        with opened(path) as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
            size = content.tell()
        if allowed and digest not in allowed:
            raise NanoEulerError(f"SHA-256 must be {allowed[0][:16]}..., got {digest[:16]}...")
        check(path, fetched)
    except (NanoEulerError, OSError, EOFError, *UNPACKING) as error:
        raise NanoEulerError(f"{shown}: {str(error).removeprefix(f'{path}: ')}") from None
    return Fetched(path, str(path), size, digest)


def _reason(error):
    """Say in a few words why a download failed."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    text = f"HTTP {status} {responses.get(status, '')}" if status else str(error)
    return next((why for words, why in REASONS.items() if re.search(words, text, re.I)), one_line(text, 200))
