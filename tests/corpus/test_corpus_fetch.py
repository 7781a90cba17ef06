"""Downloads, against a real server on this machine that does what servers do wrong."""

import hashlib
import lzma
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nanoeuler_lib.corpus import fetch
from nanoeuler_lib.corpus.fetch import Fetcher
from nanoeuler_lib.corpus.registry import File
from nanoeuler_lib.errors import NanoEulerError

huggingface_hub = pytest.importorskip("huggingface_hub", reason="pip install huggingface_hub")

BODY = bytes(range(256)) * 1200 + b"end"  # 307,203 bytes
HASH = hashlib.sha256(BODY).hexdigest()


class Server(ThreadingHTTPServer):
    """Answers the requests for a path with its script's entries in turn, the last one forever; `seen` has them all."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.scripts, self.seen, self.url = {}, [], f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def file(self, *script, name="f.bin", mirrors=("/f",), **facts):
        self.scripts.setdefault(mirrors[0], []).extend(script)
        return File(name, tuple(self.base + mirror for mirror in mirrors), **facts)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.partition("?")[0]
        if self.command != "HEAD":
            self.server.seen.append((path, dict(self.headers), time.monotonic()))
        script = self.server.scripts.get(path) or [status(404)]
        (script.pop(0) if len(script) > 1 and self.command != "HEAD" else script[0])(self)

    do_HEAD = do_CONNECT = do_GET

    def log_message(self, *words):
        pass


def send(handler, code, body=b"", **headers):
    handler.send_response(code)
    for name, value in {"Content_Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body if handler.command == "GET" else b"")


def good(handler, body=BODY, tag='"v1"', **headers):
    """A server as it should be: it knows ranges."""
    wanted = handler.headers.get("Range", "")
    if wanted:
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        place = f"bytes {start}-{len(body) - 1}/{len(body)}"
        return send(handler, 206, body[start:], Content_Range=place, ETag=tag, **headers)
    return send(handler, 200, body, ETag=tag, **headers)


def status(code, **headers):
    return lambda handler: send(handler, code, b"<html>no</html>", **headers)


def body(content, **headers):
    return lambda handler: send(handler, 200, content, **headers)


@pytest.fixture(params=["web", "hub"])
def server(request, monkeypatch):
    found = Server()
    found.base = fetch.HUB if request.param == "hub" else found.url
    monkeypatch.setenv("HF_ENDPOINT", found.url)
    huggingface_hub.close_session()  # it holds the proxies of an earlier test
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_TELEMETRY", True)  # a request
    yield found
    found.shutdown()
    found.server_close()


@pytest.fixture
def waits(monkeypatch):
    """The seconds waited between attempts, none of them really."""
    found = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def get(folder, file, check=lambda path, fetched: None, **options):
    with Fetcher(folder, quiet=True, **options) as fetcher:
        return fetcher.get(file, check)


def refused(folder, file, **options):
    """The one line that says why a file cannot be had; nothing is left under its name."""
    with pytest.raises(NanoEulerError) as error:
        get(folder, file, **options)
    assert not (folder / file.name).exists() and "\n" not in str(error.value)
    return str(error.value)


# ---- What comes whole


def test_a_file_comes_once(server, tmp_path, waits):
    file, told = server.file(good, sha256=("0" * 64, HASH)), []
    found = get(tmp_path, file, lambda path, fetched: told.append(fetched))
    assert found.path.read_bytes() == BODY and (found.bytes, found.sha256) == (len(BODY), HASH)
    again = get(tmp_path, file)
    assert again.path == found.path and len(server.seen) == 1 and told == [True]
    found.path.write_bytes(BODY[:-1])
    assert get(tmp_path, file).sha256 == HASH and len(server.seen) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.bin", "lock"]


# ---- What goes wrong on the way


@pytest.mark.parametrize("place, answer, reason", [  # place None: the server; else the proxy answers, if it is asked
    (None, status(404), "HTTP 404 Not Found"),
    (None, status(429), "HTTP 429 Too Many Requests"),
    (None, body(b"\n<!DOCTYPE html>"), "must be the file itself, got a web page (HTML)"),
    (None, body(b"x" * 99, ETag="0" * 64), "SHA-256 must be 0000000000000000..., got "),
    (None, lambda handler: None, "the connection was cut"),
    ("http://127.0.0.1:9", None, "connection refused"),
    ("http://nowhere.invalid", None, "the name does not resolve"),
    ("https://nowhere.invalid", status(407), "the proxy of HTTPS_PROXY asks for a password (407)"),
    ("https://nowhere.invalid", status(403), "the proxy of HTTPS_PROXY refuses the connection"),
])  # fmt: skip
def test_a_failure_is_one_line_with_its_reason(place, answer, reason, server, tmp_path, waits, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", server.url)
    monkeypatch.setenv("HF_ENDPOINT", place or server.url)
    server.base = server.base.replace(server.url, place or server.url)
    server.scripts["nowhere.invalid:443"] = [answer]
    known = () if server.base == fetch.HUB else ("0" * 64,)  # the Hub says the hash itself
    assert f": {reason}" in refused(tmp_path, server.file(answer, sha256=known))
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_the_next_mirror_helps(server, tmp_path, waits):
    server.scripts["/wrong"], server.scripts["/last"] = [body(b"<html>log in</html>")], [good]
    file = server.file(status(404), mirrors=("/gone", "/wrong", "/last"), sha256=(HASH,))
    found = get(tmp_path, file)
    assert found.sha256 == HASH and found.url.endswith("/last")


def test_what_fails_its_check_is_not_remembered(server, tmp_path):
    def check(path, fetched):
        if path.read_bytes() != BODY:
            raise NanoEulerError(f"{path}: is a page of a hotel")

    file = server.file(body(b"not the book"), good)
    assert "127.0.0.1" in (said := refused(tmp_path, file, check=check)) and "is a page of a hotel" in said
    assert get(tmp_path, file, check).sha256 == HASH


def test_a_host_is_given_a_pause_between_files(server, tmp_path, waits):
    """Not before its first, and not for files that are here."""
    files = [server.file(good, name=f"{n}", mirrors=(f"/{n}",)) for n in range(3)]
    for expected in ([0, 7, 7], []):
        waits.clear()
        with Fetcher(tmp_path, pause=7, quiet=True) as fetcher:
            for file in files:
                fetcher.get(file)
        assert waits == expected
    assert len(server.seen) == 3


# ---- Disk and processes


def test_a_full_disk_is_one_line_and_what_came_is_gone_on_with(server, tmp_path, waits):
    file = server.file(good)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        assert refused(tmp_path, file) == f"{tmp_path}: cannot be written (File too large)"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert get(tmp_path, file).sha256 == HASH


def test_one_process_fetches_into_a_folder(tmp_path):
    with Fetcher(tmp_path), pytest.raises(NanoEulerError, match="another process is fetching into it"):
        Fetcher(tmp_path)
    Fetcher(tmp_path).lock.close()


FETCH = """
import sys
from huggingface_hub import constants
from nanoeuler_lib.corpus.fetch import Fetcher
from nanoeuler_lib.corpus.registry import File
constants.DOWNLOAD_CHUNK_SIZE = 1 << 14
with Fetcher(sys.argv[1], quiet=True) as fetcher:
    fetcher.get(File("f.bin", (sys.argv[2],)))
"""


@pytest.mark.parametrize("server", ["hub"], indirect=True)  # from elsewhere a file is begun again, by pooch
def test_a_killed_download_is_gone_on_with(server, tmp_path):
    def stuck(handler):
        send(handler, 200, BODY[:200_000], Content_Length=str(len(BODY)), ETag='"v1"')
        time.sleep(0 if handler.command == "HEAD" else 20)

    file = server.file(stuck, good)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", FETCH, str(tmp_path), file.urls[0]], env=environment)
    end = time.monotonic() + 30
    while time.monotonic() < end and not any(p.stat().st_size >= 1 << 14 for p in tmp_path.rglob("*")):
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL and not (tmp_path / "f.bin").exists()
    assert get(tmp_path, file).sha256 == HASH
    assert "Range" in server.seen[-1][1]


# ---- Files one has


def test_a_file_one_has_is_taken_and_left_alone(server, tmp_path):
    (have := tmp_path / "have").mkdir()
    (have / "old.bin").write_bytes(BODY)
    file = server.file(good, names=("old.bin",), sha256=(HASH,))
    found = get(tmp_path / "d", file, have=have)
    assert found.path == have / "old.bin" and found.sha256 == HASH and server.seen == []
    (have / "old.bin").write_bytes(b"other")
    with pytest.raises(NanoEulerError, match=r"have/old\.bin: SHA-256 must be"):
        get(tmp_path / "d", file, have=have)
    (have / "old.bin").rename(have / "another.bin")
    assert get(tmp_path / "d", file, have=have).url == server.url + "/f", "what one does not have is fetched"
    assert [p.name for p in have.iterdir()] == ["another.bin"]


def test_a_packed_file_one_has_is_unpacked(server, tmp_path):
    (have := tmp_path / "have").mkdir()
    (have / "f.bin.xz").write_bytes(lzma.compress(BODY))
    found = get(tmp_path / "d", server.file(good), have=have)
    assert (found.path, found.sha256, server.seen) == (have / "f.bin.xz", HASH, [])
    for spoilt in (lzma.compress(BODY)[:-9], b"<html>"):
        (have / "f.bin.xz").write_bytes(spoilt)
        with pytest.raises(NanoEulerError, match=r"f\.bin\.xz: (must|Compressed)"):
            get(tmp_path / "e", server.file(good), have=have)
