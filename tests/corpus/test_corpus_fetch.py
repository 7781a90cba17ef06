"""Downloads, against a real server on this machine that does what servers do wrong."""

import hashlib
import json
import lzma
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from types import SimpleNamespace

import pytest

from nanoeuler_lib.corpus import fetch
from nanoeuler_lib.corpus.fetch import Fetcher
from nanoeuler_lib.corpus.registry import File
from nanoeuler_lib.errors import NanoEulerError

pytest.importorskip("requests", reason="requests is not installed (pip install requests)")

BODY = bytes(range(256)) * 1200 + b"end"  # 307,203 bytes: five pieces
HASH = hashlib.sha256(BODY).hexdigest()


class Server(ThreadingHTTPServer):
    """Answers the requests for a path with its script's entries in turn, the last one for ever; `seen` has them all."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.scripts, self.seen, self.url = {}, [], f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def file(self, *script, name="f.bin", mirrors=("/f",), **facts):
        self.scripts.setdefault(mirrors[0], []).extend(script)
        return File(name, tuple(self.url + mirror for mirror in mirrors), **facts)

    def handle_error(self, request, client_address):
        pass  # a client that went away


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.server.seen.append((path, dict(self.headers), time.monotonic()))
        script = self.server.scripts.get(path) or [status(404)]
        (script.pop(0) if len(script) > 1 else script[0])(self)
        self.close_connection = True

    def end_headers(self):
        self.send_header("Connection", "close")  # each request has its own: none meets one about to be closed
        super().end_headers()

    def log_message(self, *words):
        pass


def send(handler, code, body=b"", **headers):
    handler.send_response(code)
    for name, value in {"Content_Length": str(len(body)), **headers}.items():
        if value is not None:
            handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def good(handler, body=BODY, tag='"v1"', **headers):
    """A server as it should be: it knows ranges and whether the file is still the same."""
    wanted = handler.headers.get("Range", "")
    if wanted and handler.headers.get("If-Range") == tag:
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= len(body):
            return send(handler, 416, Content_Range=f"bytes */{len(body)}")
        place = f"bytes {start}-{len(body) - 1}/{len(body)}"
        return send(handler, 206, body[start:], Content_Range=place, ETag=tag, **headers)
    return send(handler, 200, body, ETag=tag, **headers)


def cut(after, tag='"v1"', ranges=True):
    """Says how long the file is, and drops the line after so many bytes of it."""

    def answer(handler):
        wanted = handler.headers.get("Range", "") if ranges else ""
        start = int(wanted.removeprefix("bytes=").removesuffix("-") or 0)
        rest = BODY[start:]
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(rest)))
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
        if tag:
            handler.send_header("ETag", tag)
        handler.end_headers()
        handler.wfile.write(rest[:after])

    return answer


def status(code, **headers):
    return lambda handler: send(handler, code, b"<html>no</html>", **headers)


def body(content, **headers):
    return lambda handler: send(handler, 200, content, **headers)


def redirect(to, **headers):
    return lambda handler: send(handler, 302, Location=to, **headers)


def slow(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(BODY)))
    handler.end_headers()
    handler.wfile.write(BODY[:1000])
    handler.wfile.flush()
    time.sleep(1.5)


@pytest.fixture
def server():
    found = Server()
    yield found
    found.shutdown()
    found.server_close()


@pytest.fixture
def waits(monkeypatch):
    """The seconds waited between attempts, none of them really."""
    found = []
    clock = SimpleNamespace(sleep=found.append, monotonic=time.monotonic, strftime=time.strftime)
    monkeypatch.setattr(fetch, "time", clock)
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


def test_a_file_comes_once_and_its_hash_is_kept(server, tmp_path, waits):
    file = server.file(good)
    found = get(tmp_path, file)
    assert found.path.read_bytes() == BODY and (found.bytes, found.sha256) == (len(BODY), HASH)
    record = json.loads((tmp_path / "f.bin.json").read_text())
    assert record["sha256"] == HASH and record["url"] == file.urls[0] and len(record["date"]) == 10
    again = get(tmp_path, file)
    assert again == found and len(server.seen) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.bin", "f.bin.json", "lock"]
    assert server.seen[0][1]["User-Agent"].startswith("nanoeuler/") and waits == []


def test_a_file_that_changed_on_the_disk_is_refused(server, tmp_path):
    file = server.file(good)
    get(tmp_path, file)
    (tmp_path / "f.bin").write_bytes(BODY[:-1])
    with pytest.raises(
        NanoEulerError, match=r"f\.bin: SHA-256 is .*, expected .*; remove it, and it is fetched"
    ):
        get(tmp_path, file)


def test_redirects_are_followed(server, tmp_path):
    server.scripts["/there"] = [good]
    assert get(tmp_path, server.file(redirect("/there"))).sha256 == HASH


def test_the_hash_that_a_redirect_promises_is_held_to(server, tmp_path):
    server.scripts["/there"] = [good]
    assert get(tmp_path, server.file(redirect("/there", X_Linked_ETag=f'"{HASH}"'))).sha256 == HASH
    file = server.file(redirect("/there", X_Linked_ETag=f'"{"0" * 64}"'), name="g", mirrors=("/g",))
    assert f"SHA-256 is {HASH[:16]}..., expected 0000" in refused(tmp_path, file)


def test_any_of_the_known_hashes_will_do(server, tmp_path):
    assert get(tmp_path, server.file(good, sha256=("0" * 64, HASH))).sha256 == HASH


def test_without_a_length_only_a_known_hash_can_tell_a_cut(server, tmp_path):
    nothing = body(BODY, Content_Length=None)
    said = refused(tmp_path, server.file(nothing, mirrors=("/a",)))
    assert "does not say how long it is" in said
    assert get(tmp_path, server.file(nothing, sha256=(HASH,), mirrors=("/b",))).sha256 == HASH


def test_chunks_are_taken_and_a_missing_chunk_is_seen(server, tmp_path, waits):
    def chunks(count):
        def answer(handler):
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            for start in range(0, count * 50_000, 50_000):
                part = BODY[start : start + 50_000]
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            if count * 50_000 >= len(BODY):
                handler.wfile.write(b"0\r\n\r\n")

        return answer

    assert get(tmp_path, server.file(chunks(3), chunks(7))).sha256 == HASH
    assert len(server.seen) == 2


# ---- What goes wrong on the way


def test_a_dropped_line_is_taken_up_where_it_broke(server, tmp_path, waits):
    assert get(tmp_path, server.file(cut(150_000), cut(100_000), good)).sha256 == HASH
    ranges = [headers.get("Range") for _, headers, _ in server.seen]
    assert ranges[0] is None and all(r.startswith("bytes=") for r in ranges[1:]) and len(ranges) == 3
    starts = [int(r[6:-1]) for r in ranges[1:]]
    assert 0 < starts[0] < starts[1] < len(BODY) and len(waits) == 2


@pytest.mark.parametrize("tag", ['"v2"', 'W/"v1"', None])
def test_what_may_be_another_file_is_fetched_from_the_beginning(server, tmp_path, waits, tag):
    """A new version between two attempts, or a server that cannot tell, never gives half of each."""
    new = bytes(reversed(BODY))
    script = [cut(150_000, tag='"v1"' if tag == '"v2"' else tag), lambda h: good(h, new, tag or '"v3"')]
    found = get(tmp_path, server.file(*script))
    assert found.path.read_bytes() == new and len(server.seen) == 2


def test_a_range_that_was_not_asked_for_is_not_taken(server, tmp_path, waits):
    wrong = lambda h: send(
        h, 206, BODY[9:], Content_Range=f"bytes 9-{len(BODY) - 1}/{len(BODY)}", ETag='"v1"'
    )
    assert get(tmp_path, server.file(cut(150_000), wrong, good)).sha256 == HASH
    assert "Range" not in server.seen[2][1]


def test_a_server_that_always_cuts_is_given_up_with_what_came(server, tmp_path, waits):
    said = refused(tmp_path, server.file(cut(0)))
    assert f"drops the line ({fetch.ATTEMPTS} attempts)" in said and "--from FOLDER" in said
    assert len(server.seen) == fetch.ATTEMPTS and len(waits) == fetch.ATTEMPTS - 1
    assert all(2**n / 2 <= wait <= 2**n for n, wait in enumerate(waits, 1))


def test_a_process_that_ends_between_two_versions_mixes_none(server, tmp_path, waits, monkeypatch):
    """The notes of a new version never stand beside bytes of the old one."""
    new = bytes(reversed(BODY))
    file = server.file(cut(150_000), lambda h: good(h, new, '"v2"'))
    pour, calls = Fetcher._pour, []

    def killed_at_the_second(self, *words):
        calls.append(words)
        if len(calls) == 2:
            raise KeyboardInterrupt
        pour(self, *words)

    monkeypatch.setattr(Fetcher, "_pour", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        get(tmp_path, file)
    assert get(tmp_path, file).path.read_bytes() == new


def test_a_server_that_cuts_here_and_there_is_given_up(server, tmp_path, waits):
    """It cannot go on from a place, and each attempt ends elsewhere: what once came is no progress again."""
    script = [cut(size, tag=None) for size in (50_000, 150_000) * 20]
    said = refused(tmp_path, server.file(*script))
    assert "was cut off" in said and len(server.seen) < 12


def test_progress_starts_the_count_of_attempts_anew(server, tmp_path, waits):
    script = [cut(30_000)] * 9 + [good]  # more cuts than attempts
    assert get(tmp_path, server.file(*script)).sha256 == HASH and len(server.seen) == 10


def test_too_many_requests_waits_as_long_as_asked(server, tmp_path, waits):
    script = status(429, Retry_After="7"), status(503, Retry_After="11"), status(500), good
    assert get(tmp_path, server.file(*script)).sha256 == HASH
    assert waits[:2] == [7, 11] and 4 <= waits[2] <= 8


def test_a_date_to_wait_for_is_understood(server, tmp_path, waits):
    in_a_minute = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 60))
    get(tmp_path, server.file(status(429, Retry_After=in_a_minute), status(429, Retry_After="soon"), good))
    assert 50 < waits[0] <= 61 and waits[1] <= 4


def test_a_wait_of_a_day_is_not_waited(server, tmp_path, waits):
    said = refused(tmp_path, server.file(status(429, Retry_After="86400")))
    assert "answers 429 Too Many Requests and asks to wait 86,400 s" in said and waits == []


def test_a_missing_file_is_not_asked_for_again(server, tmp_path, waits):
    said = refused(tmp_path, server.file(status(404)))
    assert said.startswith("f.bin: cannot be fetched: 127.0.0.1:") and "answers 404 Not Found" in said
    assert len(server.seen) == 1 and waits == []


def test_the_next_mirror_helps(server, tmp_path, waits):
    server.scripts["/wrong"], server.scripts["/last"] = [body(b"<html>log in</html>")], [good]
    file = server.file(status(404), mirrors=("/gone", "/wrong", "/last"), sha256=(HASH,))
    found = get(tmp_path, file)
    assert found.sha256 == HASH and found.url.endswith("/last") and len(server.seen) == 3


def test_wrong_bytes_are_refused_at_every_mirror(server, tmp_path, waits):
    server.scripts["/b"] = [body(BODY[:-1])]  # short, and its length says so
    file = server.file(body(b"x" * 99), mirrors=("/a", "/b"), sha256=(HASH,))
    said = refused(tmp_path, file)
    assert said.count("SHA-256 is") == 2 and said.count(f"expected {HASH[:16]}") == 2
    assert not list(tmp_path.glob(".*"))


def test_what_fails_its_check_is_not_remembered(server, tmp_path):
    """Else the page of a hotel's network would be the hash of first use."""

    def check(path, fetched):
        if path.read_bytes() != BODY:
            raise NanoEulerError(f"{path}: is a page of a hotel")

    file = server.file(body(b"<html>log in</html>"), good)
    assert "127.0.0.1" in (said := refused(tmp_path, file, check=check)) and "is a page of a hotel" in said
    assert get(tmp_path, file, check).sha256 == HASH


def test_a_silent_server_is_left_in_time(server, tmp_path, waits, monkeypatch):
    monkeypatch.setattr(fetch, "TIMEOUT", (1, 0.2))
    assert get(tmp_path, server.file(slow, good)).sha256 == HASH
    assert len(server.seen) == 2


def test_no_server_at_all(server, tmp_path, waits):
    file = File("f.bin", ("http://127.0.0.1:9/f", "http://nowhere.invalid/f"))
    said = refused(tmp_path, file)
    assert (
        "127.0.0.1:9 cannot be reached (Connection refused)" in said
        and "nowhere.invalid cannot be reached" in said
    )


def test_an_address_of_no_known_kind_is_told_in_one_line_that_fits(tmp_path, waits):
    said = refused(tmp_path, File("f.bin", (f"gopher://here/{'long/' * 200}f",)))
    before, after = said.removeprefix("f.bin: cannot be fetched: here ").split(" ... ")
    assert "gopher://here/long/" in before and len(before) == len(after.partition(". A file")[0]) == 100
    assert waits == []  # a second attempt would find the same


def test_redirects_without_end_and_encodings_are_refused(server, tmp_path, waits):
    assert "redirects without end" in refused(tmp_path, server.file(redirect("/f")))
    packed = server.file(body(BODY, Content_Encoding="br"), name="g", mirrors=("/g",))
    assert "sends it encoded ('br')" in refused(tmp_path, packed)


def test_a_redirect_that_drops_encryption_is_refused():
    reply = SimpleNamespace(status_code=200, url="http://elsewhere/f", headers={}, reason="OK")
    with pytest.raises(fetch.Failed, match="redirects to elsewhere without encryption"):
        fetch._expect_usable("https://here/f", reply)
    fetch._expect_usable("http://here/f", reply)


def test_a_host_is_given_a_pause_between_files(server, tmp_path, monkeypatch):
    files = [server.file(good, name=f"{n}", mirrors=(f"/{n}",)) for n in range(3)]
    with Fetcher(tmp_path, pause=0.15, quiet=True) as fetcher:
        for file in files:
            fetcher.get(file)
        before = len(server.seen)
        began = time.monotonic()
        for file in files:
            fetcher.get(file)
        assert time.monotonic() - began < 0.15 and len(server.seen) == before == 3
    times = [when for *_, when in server.seen]
    assert all(later - earlier >= 0.14 for earlier, later in pairwise(times))


# ---- Disk and processes


@contextmanager
def files_of_at_most(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_one_line_and_what_came_is_gone_on_with(server, tmp_path, waits):
    file = server.file(good)
    with files_of_at_most(200_000):
        said = refused(tmp_path, file)
    assert said.endswith(".f.bin.partial: cannot be written (File too large)")
    assert (tmp_path / ".f.bin.partial").stat().st_size == 200_000
    assert get(tmp_path, file).sha256 == HASH
    assert server.seen[1][1]["Range"] == "bytes=200000-"


def test_one_process_fetches_into_a_folder(tmp_path):
    with Fetcher(tmp_path), pytest.raises(NanoEulerError, match="another process is fetching into it"):
        Fetcher(tmp_path)
    Fetcher(tmp_path).lock.close()


FETCH = """
import sys
from nanoeuler_lib.corpus.fetch import Fetcher
from nanoeuler_lib.corpus.registry import File
with Fetcher(sys.argv[1], quiet=True) as fetcher:
    fetcher.get(File("f.bin", (sys.argv[2],)))
"""


def test_a_killed_download_is_gone_on_with(server, tmp_path, waits):
    def stuck(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(BODY)))
        handler.send_header("ETag", '"v1"')
        handler.end_headers()
        handler.wfile.write(BODY[:200_000])
        handler.wfile.flush()
        time.sleep(20)

    file = server.file(stuck, good)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", FETCH, str(tmp_path), file.urls[0]], env=environment)
    partial, end = tmp_path / ".f.bin.partial", time.monotonic() + 30
    while time.monotonic() < end and not (partial.exists() and partial.stat().st_size >= 2 * fetch.PIECE):
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL and not (tmp_path / "f.bin").exists()
    assert get(tmp_path, file).sha256 == HASH
    assert int(server.seen[-1][1]["Range"].removeprefix("bytes=")[:-1]) >= 2 * fetch.PIECE


def test_a_download_killed_before_it_got_its_name(server, tmp_path, waits):
    """All of it came, the process was killed before the last step: nothing is fetched twice."""
    file = server.file(good)
    found = get(tmp_path, file)
    os.replace(found.path, tmp_path / ".f.bin.partial")
    notes = {"url": file.urls[0], "validator": '"v1"', "promised": []}
    (tmp_path / ".f.bin.partial.json").write_text(json.dumps(notes))
    assert get(tmp_path, file).sha256 == HASH
    assert server.seen[1][1]["Range"] == f"bytes={len(BODY)}-" and len(server.seen) == 2


# ---- Files one has


def test_a_file_one_has_is_taken_and_left_alone(server, tmp_path):
    have = tmp_path / "have"
    have.mkdir()
    (have / "old.bin").write_bytes(BODY)
    file = server.file(good, names=("old.bin",), sha256=(HASH,))
    found = get(tmp_path / "d", file, have=have)
    assert found.path == have / "old.bin" and found.sha256 == HASH and server.seen == []
    assert [p.name for p in have.iterdir()] == ["old.bin"]
    (have / "old.bin").write_bytes(b"other")
    with pytest.raises(NanoEulerError, match=r"have/old\.bin: SHA-256 is"):
        get(tmp_path / "d", file, have=have)


def test_a_packed_file_one_has_is_unpacked(server, tmp_path):
    have = tmp_path / "have"
    have.mkdir()
    (have / "f.bin.xz").write_bytes(lzma.compress(BODY))
    found = get(tmp_path / "d", server.file(good), have=have)
    assert found.path == tmp_path / "d/f.bin" and found.path.read_bytes() == BODY and server.seen == []
    assert found.url == str(have / "f.bin.xz")
    for spoilt in (lzma.compress(BODY)[:-9], b"no xz"):
        (have / "f.bin.xz").write_bytes(spoilt)
        with pytest.raises(NanoEulerError, match=r"f\.bin\.xz: cannot be unpacked"):
            get(tmp_path / "e", server.file(good), have=have)


def test_what_one_does_not_have_is_fetched(server, tmp_path):
    have = tmp_path / "have"
    have.mkdir()
    assert get(tmp_path / "d", server.file(good), have=have).url == server.url + "/f"


def test_a_file_put_there_by_hand_counts_as_the_first(server, tmp_path):
    (tmp_path / "f.bin").write_bytes(BODY)
    assert get(tmp_path, server.file(good)).sha256 == HASH and server.seen == []
    assert json.loads((tmp_path / "f.bin.json").read_text())["sha256"] == HASH
    (tmp_path / "f.bin.json").write_text('{"sha256": 3}')
    with pytest.raises(NanoEulerError, match="expected 3"):
        get(tmp_path, server.file(good))


def test_a_check_is_told_whether_the_file_was_fetched(server, tmp_path):
    """Now or an earlier time; what one has oneself, as it is, packed or put there by hand, was not."""
    told, have, packed, hand = [], tmp_path / "have", tmp_path / "packed", tmp_path / "hand"
    for folder, name, content in (
        (have, "f.bin", BODY),
        (packed, "f.bin.xz", lzma.compress(BODY)),
        (hand, "f.bin", BODY),
    ):
        folder.mkdir()
        (folder / name).write_bytes(content)
    file = server.file(good)
    for folder, options in (
        ("fetched", {}),
        ("had", {"have": have}),
        ("unpacked", {"have": packed}),
        ("hand", {}),
    ):
        for _ in range(2):
            get(tmp_path / folder, file, lambda path, fetched: told.append(fetched), **options)
    assert told == [True, True] + 6 * [False] and len(server.seen) == 1


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(NanoEulerError, match=r"requests is not .*pip install requests$"):
        get(tmp_path, File("f", ("http://127.0.0.1:9/f",)))
