"""Fixtures for tests of the command: `nanoeuler` runs it in this process; `here` is a folder with a trained run."""

import json
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import PLAIN, SHORT, SMALL, Stream
from oracles import run_text

from nanoeuler_lib.command import cli
from nanoeuler_lib.text.tokenizer import Tokenizer


@pytest.fixture
def streams(monkeypatch):
    """Replace the three standard streams; by default none of them is a terminal."""

    def make(stdin=b"", terminal=False):
        found = SimpleNamespace(stdin=Stream(terminal, stdin), stdout=Stream(terminal), stderr=Stream(terminal))
        for name, stream in vars(found).items():
            monkeypatch.setattr(sys, name, stream)
        return found

    return make


@pytest.fixture
def nanoeuler(streams, tmp_path, monkeypatch):
    """Run a command line, with additional words, in an empty folder; return exit code, standard output and error.

    In the line, SMALL is replaced by the options of a small model, and SHORT by those of a short run.
    """
    monkeypatch.chdir(tmp_path)

    def run(line, *more, stdin="", terminal=False):
        made = streams(stdin if isinstance(stdin, bytes) else stdin.encode(), terminal)
        for name, options in PLAIN.items():
            line = line.replace(name, options)
        code = cli.main([*shlex.split(line), *map(str, more)])
        return code, made.stdout.text(), made.stderr.text()

    return run


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Make a folder with a text, a run of four steps on it, and a tokenizer."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "text.txt").write_text(run_text(), "utf-8")
    files = f"train --data {folder / 'text.txt'} --run {folder / 'run'} --quiet"
    assert cli.main([*files.split(), *SMALL.split(), *SHORT.split()]) == 0
    Tokenizer.train(run_text(), 260).save(folder / "bpe.json")
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """Copy the files of `made` into the working directory."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lines():
    """Write objects to a file as lines of JSON."""
    return lambda name, objects: Path(name).write_text("\n".join(map(json.dumps, objects)))
