"""Test damaged and malicious files: one clear message each, without a traceback, much memory, or running code."""

import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from oracles import RUN_CONFIG, RUN_MODEL, run_text, seal

import nanoeuler_lib
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.training import checkpoint, train

SETTINGS = RUN_CONFIG.to_dict() | {"steps": 2, "sample_every": 1}
TEXT = "the cat, Käthe \U0001f408\n"
DEEP = "[" * 100_000  # deeper nesting than Python's parser allows
VALUES = [
    None, True, -1, 0, 1, 2**24, 2**31, 2**63, 2**64, 10**400, 1e308, -0.5, 0.5, float("nan"), float("inf"),
    "", "x", "é" * 999, "../../etc/passwd", "/dev/zero", "\0", [], [[]], {}, {"a": 1}, [1, 2], [[1, 2]] * 9,
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = tmp_path_factory.mktemp("hostile") / "run"
    train.train(run, run_text(), RUN_MODEL, train.TrainConfig(**SETTINGS), quiet=True)
    return run


def outcome(function, *arguments) -> str | None:
    """Return None if the call succeeds, else the message of its NanoEulerError; other exceptions fail the test."""
    try:
        function(*arguments)
    except NanoEulerError as error:
        message = str(error)
        assert message and "\n" not in message and len(message) < 1000, message[:2000]
        return message
    return None


def spoil_bytes(content: bytes, rng: random.Random) -> bytes:
    """Cut, flip, insert, remove, repeat or replace bytes."""
    at, size = rng.randrange(len(content) + 1), rng.choice([1, 2, 8, 100])
    noise = bytes(rng.randrange(256) for _ in range(size))
    return rng.choice([
        content[:at], content[:at] + noise + content[at:], content[:at] + content[at + size :],
        content[:at] + content[max(0, at - size) :], content[:at] + noise + content[at + size :],
        bytes(byte ^ (rng.random() < 0.01) << rng.randrange(8) for byte in content),
    ])  # fmt: skip


def spoil_json(value, rng: random.Random):
    """Put an unusual value at a random place of a JSON value, or remove or rename an entry."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = rng.choice(list(keys)[:40])
        if isinstance(value, dict) and rng.random() < 0.1:
            return {k if k != key else f"{k}_": v for k, v in value.items() if k != key or rng.random() < 0.5}
        value = dict(value) if isinstance(value, dict) else list(value)
        value[key] = spoil_json(value[key], rng)
        return value
    return rng.choice(VALUES)


def spoil_tensors(content: bytes, rng: random.Random) -> bytes:
    """Return a safetensors file with a changed header, whose length may be right or wrong."""
    size = struct.unpack("<Q", content[:8])[0]
    header = json.dumps(spoil_json(json.loads(content[8 : 8 + size]), rng)).encode()
    length = rng.choice([len(header), len(header), 0, 1, len(header) + 1, len(content), 2**32, 2**60, 2**64 - 1])
    return struct.pack("<Q", length) + header + content[8 + size :]


@pytest.mark.full
@pytest.mark.parametrize("part", range(8))
def test_fuzzed_checkpoints(finished, tmp_path, part):
    """Damage a checkpoint's files: it loads as a complete checkpoint, or is refused with a message that names it.

    Most files get new digests, as an attacker would compute them. Then only the content shows the damage.
    """
    rng, refused = random.Random(part), 0
    source = checkpoint.find(finished)
    for number in range(60):
        folder = shutil.copytree(source, tmp_path / f"{number}")
        file = folder / rng.choice(sorted(f.name for f in source.iterdir()))
        content = file.read_bytes()
        if file.suffix == ".json" and rng.random() < 0.7:
            file.write_text(json.dumps(spoil_json(json.loads(content), rng)))
        elif file.suffix == ".safetensors" and rng.random() < 0.5:
            file.write_bytes(spoil_tensors(content, rng))
        else:
            file.write_bytes(spoil_bytes(content, rng))
        if rng.random() < 0.7:
            with suppress(Exception):  # the file may be too damaged to seal
                seal(folder)
        message = outcome(checkpoint.load, folder, True)
        if message is None:  # a checkpoint that loads must work
            found = checkpoint.load(folder, True)
            assert np.isfinite(found.model.params.flat).all() and found.step >= 0
            with np.errstate(all="ignore"):  # a weight of 1e38 is finite, but its products overflow
                found.model.losses(np.zeros((1, 4), int), np.ones((1, 4), int))
            assert found.tokenizer.decode(found.tokenizer.encode(TEXT)) == TEXT
        else:
            assert str(folder) in message
            refused += 1
        shutil.rmtree(folder)
    assert refused > 30, "too few damaged checkpoints were refused"


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("files", [42, pytest.param(1000, marks=pytest.mark.slow)])
def test_hostile_files_and_closed_streams(files):
    """Check that commands accept a damaged file or refuse it in one line, also without stdin, stdout or stderr."""
    command = [sys.executable, Path(__file__).parents[1] / "release" / "hostile.py", "--files", files]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment, timeout=2400)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{files} files, {2 * files} commands, 0 wrong" in done.stdout


JSON_BOMBS = {
    "brackets": DEEP,
    "a number of 10,000 digits": "1" * 10_000,
    "a string without an end": '{"format": "' + "x" * 1000,
    "more than a description may have": json.dumps({"format": "x" * 2_000_000}),
}


@pytest.mark.parametrize("bomb", JSON_BOMBS)
@pytest.mark.parametrize("name", ["checkpoint.json", "tokenizer.json", "log.jsonl", "run.json"])
def test_json_bombs(here, nanoeuler, bomb, name):
    run, folder = here / "run", checkpoint.find("run")
    file = (folder if (folder / name).exists() else run) / name
    file.write_text(JSON_BOMBS[bomb] + "\n" + JSON_BOMBS[bomb] + "\n")
    if name == "tokenizer.json":
        seal(folder)
    code, out, err = nanoeuler("report run" if file.parent == run else "generate the --run run")
    assert (code, out) == (2, "") and err.startswith("nanoeuler: ") and err.count("\n") == 1
    assert name in err and len(err) < 1000


def test_a_model_too_large_for_its_file_costs_no_memory(here):
    """Refuse a few bytes that announce a model of terabytes, before memory is allocated for the model."""
    folder = checkpoint.find("run")
    values = json.loads((folder / "checkpoint.json").read_text())["model"]
    for changes in ({"dim": 2**20, "heads": 2, "kv_heads": 1}, {"layers": 2**12}, {"vocab_size": 2**24}):
        seal(folder, model=values | changes)
        tracemalloc.start()
        message = outcome(checkpoint.load, folder)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert "model.safetensors: " in message and ("must have shape" in message or "missing" in message)
        assert peak < 50_000_000


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "checkpoint.json"])
def test_devices_and_pipes_are_not_read(here, name):
    """Check that a link to an endless device, or a pipe without a writer, does not hang the program."""
    folder = checkpoint.find("run")
    file = folder / name
    for put in (os.mkfifo, lambda file: file.symlink_to("/dev/zero")):
        file.unlink()
        put(file)
        message = outcome(checkpoint.load, folder)
        assert name in message or "has no checkpoint" in message


def test_no_pickle():
    """Check that no module of the library reads a format that can run code."""
    words = "import pickle", "from pickle", "allow_pickle=True", "marshal", "shelve", "eval(", "exec(", "torch.load"
    sources = [path for path in Path(nanoeuler_lib.__file__).parent.rglob("*.py")]
    assert not [(path.name, word) for path in sources for word in words if word in path.read_text()]
