"""Test how text is written to files and screens: readable JSON, one-line messages, and streams without a reader."""

import io
import json
import math
import os
import re

import pytest
from oracles import error_of
from windows import only_closed

from nanoeuler_lib import files
from nanoeuler_lib.files import Voice


@pytest.mark.parametrize(
    "value, text",
    [
        ({"ü": [1, 2.5, None, True], "a": "\u2028"}, '{"ü": [1, 2.5, null, true], "a": "\u2028"}'),
        ({"ü": "a\udcff"}, r'{"\u00fc": "a\udcff"}'),  # a name that is not UTF-8 is escaped
    ],
)
def test_json_as_people_read_it(value, text):
    assert files.to_json(value) == text and files.from_json(text) == value
    assert files.to_json(value, 1) == json.dumps(value, indent=1, ensure_ascii="udcff" in text)


def test_a_name_in_markdown_is_shown_as_it_is():
    """Return the text that Markdown shows for it as a heading, in a table cell and in a list."""
    md = pytest.importorskip("markdown_it").MarkdownIt("gfm-like", {"linkify": False})
    name = r"a|b <img src=x> `c` *d* _e_ [f](g) &amp; ~~h~~ \ $i$ #"
    for page in ("# {}", "| | |\n|:--|:--|\n| x | {} |", "* {}"):
        blocks = md.parse(page.format(files.markdown(name)))
        words = [word for block in blocks for word in block.children or ()]
        assert "".join(word.content for word in words).endswith(name)
        assert {word.type for word in words} <= {"text", "text_special"}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("more", ["", "\udcff"])
def test_json_knows_finite_numbers_only(bad, more):
    """Refuse NaN and infinities, which JSON does not have."""
    with pytest.raises(ValueError):
        files.to_json([bad, more])
    with pytest.raises(ValueError):
        files.from_json(json.dumps([bad]))


def test_numbers_are_read_as_they_were_written():
    assert files.from_json("[1, 2.5, 1e300]") == [1, 2.5, 1e300]
    assert [type(x) for x in files.from_json("[1, 2.0]")] == [int, float]
    for text in ("1e999", "-1e999", "1" * 30 + "e999"):
        with pytest.raises(ValueError, match=rf"^a number must be finite, got {re.escape(text[:20])}$"):
            files.from_json(text)


@pytest.mark.parametrize(
    "text, said",
    [
        ("a\nb\r\nc\u2028d\te\x1b", "a b c d e\ufffd"),
        ("r/\udcc3\udcbc \udcff \u00a0\ud83d", "r/\ufffd\ufffd \ufffd \u00a0\ufffd"),
        ("r/\udcc3\udcbc \udcff", "r/ü \ufffd"),  # a name, as Python reads it under LC_ALL=C
        ("x" * 600, "x" * 600),
        ("a" * 300 + "-" + "b" * 300, "a" * 300 + " ... " + "b" * 300),
    ],
)
def test_one_line_of_a_message(text, said):
    assert files.one_line(text) == said


def test_a_long_line_is_cut_in_its_middle():
    found = [files.one_line("abcdefgh"[:n], most) for n, most in ((6, 6), (7, 6), (8, 7))]
    assert found == ["abcdef", "abc ... efg", "abc ... efgh"]


def test_printable_replaces_what_steers_a_terminal_and_nothing_else():
    kept = "ä b\tc\r\nd\u00a0\u202f\u3000\u2009\u200b\u200c\u200d\u00ad\u200e\u200f"
    kept += "\u2066\u2069\ufeff\u2028\U000e0067\ue000\r"
    assert files.printable(kept) == kept
    for code in (0, 7, 8, 11, 12, 27, 127, 0x85, 0x9B, 0xD83D, 0x202D, 0x202E):
        assert files.printable(f"a{chr(code)}b") == "a\ufffdb"
    assert files.printable("safe\revil\n") == "safe\ufffdevil\n"  # would overwrite the file at this path


class Broken(io.StringIO):
    """A stream whose reader has left: each call is counted and fails."""

    calls = 0

    def __init__(self, error):
        super().__init__()
        self.error = error

    def fail(self, *arguments):
        self.calls += 1
        raise self.error

    write = flush = isatty = fail


def test_a_voice_that_is_heard():
    class Terminal(io.StringIO):
        encoding = "latin-1"

        def isatty(self):
            return True

        def fileno(self):
            return 7

    stream = Terminal()
    voice = Voice(stream)
    assert voice.write("aü") == 2
    voice.line("b\x1bc\td")
    assert stream.getvalue() == "aüb\ufffdc\td\n"
    assert voice.isatty() is True and voice.fileno() == 7 and voice.encoding == "latin-1"
    assert Voice(io.StringIO()).isatty() is False and Voice(io.StringIO()).encoding == "utf-8"


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(5, "x"), ValueError("closed")])
@pytest.mark.parametrize("first", ["write", "flush", "isatty"])
def test_a_voice_falls_silent_when_nobody_listens(error, first):
    stream = Broken(error)
    voice = Voice(stream)
    expected = {"write": 1, "flush": None, "isatty": False}[first]
    assert getattr(voice, first)(*("x" if first == "write" else "")) == expected
    assert stream.calls == 1 and voice.stream is None
    assert voice.write("ab") == 2 and voice.isatty() is False and voice.flush() is None
    voice.line("c")
    assert stream.calls == 1, "a failed stream must not be tried again"
    with pytest.raises(OSError, match="no stream"):
        voice.fileno()


def test_a_voice_without_a_stream():
    voice = Voice(None)
    voice.line("x")
    assert (voice.write("abc"), voice.isatty(), voice.encoding) == (3, False, "utf-8")


def test_a_file_is_written_whole_in_utf_8(tmp_path):
    (tmp_path / ".a.txt.partial").write_text("much longer than what comes, from a writer that was killed")
    files.write_text(str(tmp_path / "a.txt"), "ä\nb\r\n\u2028")
    assert [f.name for f in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_bytes() == "ä\nb\r\n\u2028".encode()


def test_two_writers_of_a_file_are_kept_apart(tmp_path):
    with open(tmp_path / ".a.txt.partial", "ab") as other:
        files.hold(other, tmp_path / "a.txt")
        assert error_of(files.write_text, tmp_path / "a.txt", "x") == (
            f"{tmp_path}/a.txt: another process is writing it: wait until it has finished"
        )
    files.write_text(tmp_path / "a.txt", "x")
    assert (tmp_path / "a.txt").read_text() == "x"


def test_a_file_that_was_renamed_before_it_was_locked_is_opened_again(tmp_path, monkeypatch):
    """Let the last writer finish between opening and locking: its file must not be overwritten."""
    original, opened = files.hold, []

    def hold(file, path):
        opened.append(file)
        if len(opened) == 1:
            (tmp_path / ".a.txt.partial").rename(tmp_path / "a.txt")
        return original(file, path)

    monkeypatch.setattr(files, "hold", hold)
    files.write_text(tmp_path / "a.txt", "new")
    assert len(opened) == 2 and (tmp_path / "a.txt").read_text() == "new"
    assert [f.name for f in tmp_path.iterdir()] == ["a.txt"]


def test_a_file_system_without_locks_is_used_without(tmp_path, monkeypatch):
    def flock(file, how):
        raise OSError(95, "not supported")

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with open(tmp_path / "a", "a") as file:
        files.hold(file, tmp_path / "a")
        monkeypatch.setattr(files, "fcntl", None)
        files.hold(file, tmp_path / "a")


def test_the_drive_of_a_mac_empties_its_cache_if_it_can(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(files.fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(files.fcntl, "fcntl", lambda handle, command: done.append(command) or os.close(handle))
    monkeypatch.setattr(files.os, "fsync", lambda handle: done.append("fsync"))
    handle = os.open(tmp_path, os.O_RDONLY)
    files.synced(handle), files.synced(handle)  # a file system that has the command of macOS, and one that has not
    assert done == [51, 51, "fsync"]


@pytest.mark.parametrize(
    "name, why",
    [
        ("a\0b", "embedded null byte"),
        ("x" * 300, "File name too long"),
        ("folder", "Is a directory"),
        ("none/a.txt", "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path, name, why):
    (tmp_path / "folder").mkdir()
    assert error_of(files.write_text, tmp_path / name, "x") == f"{tmp_path / name}: cannot be written ({why})"
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


def test_a_failed_write_leaves_nothing_on_windows(tmp_path, monkeypatch):
    for of, name, new in (
        (files, "fcntl", None),
        (files, "synced", lambda handle: os.fsync(-1)),
        (os, "unlink", only_closed(os.unlink)),
    ):
        monkeypatch.setattr(of, name, new)
    with pytest.raises(files.NanoEulerError):
        files.write_text(tmp_path / "a", "x")
    assert not os.listdir(tmp_path)
