"""Download the files of a corpus: each is complete and checked before it gets its name, or an error explains why not.

An unfinished file from the Hugging Face Hub is called .NAME.HASH.partial, and the next call resumes it. Unfinished
files from other addresses are in .pooch/ and are downloaded again. We call huggingface_hub's http_get, which can
resume, because hf_hub_download starts again after a kill. HF_ENDPOINT may name a mirror of the Hub. pooch downloads
from all other addresses.
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
REASONS = {  # patterns in errors of requests and httpx, and their meanings; the first match is used
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
    """Describe a local file: its path, its origin, and the size and SHA-256 of its decompressed content."""

    path: Path
    url: str
    bytes: int
    sha256: str


class Fetcher:
    """Download files into a folder, which it locks against other processes. Use it in a `with` statement.

    folder: created if it is missing; have: a folder with files that you already have, searched first; pause: seconds
    between two downloads from the same host; quiet: show no progress bars. Raises NanoEulerError if `have` is not a
    folder, or if `folder` cannot be written or is in use.
    """

    def __init__(self, folder: Path, have: Path | None = None, pause: float = 0.0, quiet: bool = False):
        self.folder, self.have, self.pause, self.asked = Path(folder), have and Path(have), pause, set()
        if self.have and not self.have.is_dir():
            raise NanoEulerError(f"{self.have}: no such folder")
        self.bar = partial(tqdm, file=Voice(sys.stderr), leave=False, disable=True if quiet else None)
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = open(self.folder / "lock", "ab")
        hold(self.lock, self.folder, "fetching into it")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        shutil.rmtree(self.folder / ".pooch", ignore_errors=True)
        self.lock.close()

    def get(self, file: File, check: Callable[[Path, bool], object] = lambda path, fetched: None) -> Fetched:
        """Return a file: from the folder `have`, from an earlier call, or from the first address that works.

        check: a function of the file's path and of whether it was downloaded just now, so that it may be cut off; it
        raises NanoEulerError if the file is not the expected one. Raises NanoEulerError if no address provides the
        file, with the reason for each, or if the disk is full.
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
            except NanoEulerError as error:  # the download is not the expected file
                part.unlink()
                failures.append(str(error))
            except Exception as error:  # the errors of requests and of httpx have no base in common
                if isinstance(error, OSError) and error.errno:  # network errors have no errno
                    raise NanoEulerError(f"{self.folder}: cannot be written ({error.strerror})") from None
                failures.append(f"{host}: {_reason(error)}")
        raise NanoEulerError(
            f"{file.name}: cannot be fetched: {'; '.join(failures) or 'it has no address'}. "
            f"If a folder has it, or {file.name}.xz, use --from FOLDER"
        )

    def _from_web(self, url, name):
        """Download from an address with pooch. Returns the path of the unfinished file, and no hash."""
        import pooch

        pooch.get_logger().setLevel("WARNING")
        bar = self.bar(desc=name, total=1, unit="B", unit_scale=True)  # tqdm has no truth value without a total
        download = pooch.HTTPDownloader(progressbar=bar, timeout=(15, 60), headers=AGENT)
        one = {"registry": {name: None}, "urls": {name: url}}
        site = pooch.create(self.folder / ".pooch", "", retry_if_failed=1, **one)
        return Path(site.fetch(name, downloader=download)), ()

    def _from_hub(self, url, name):
        """Download the rest of a file from the Hub. Returns the path of the unfinished file and the Hub's SHA-256."""
        from huggingface_hub import get_hf_file_metadata
        from huggingface_hub.file_download import http_get

        headers = AGENT | {"Accept-Encoding": "identity"}
        facts = get_hf_file_metadata(url, headers=headers)
        tag = re.sub(r"\W", "", facts.etag or "")  # for a large file, its SHA-256
        part = self.folder / f".{name}.{tag}.partial"
        with open(part, "ab") as out:
            shown = {"displayed_filename": name, "tqdm_class": self.bar}
            http_get(url, out, resume_size=out.tell(), headers=headers, expected_size=facts.size, **shown)
        return part, (tag,) if len(tag) == 64 else ()


def _checked(path, shown, allowed, check, fetched=False):
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
    status = getattr(getattr(error, "response", None), "status_code", None)
    text = f"HTTP {status} {responses.get(status, '')}" if status else str(error)
    return next((why for words, why in REASONS.items() if re.search(words, text, re.I)), one_line(text, 200))
