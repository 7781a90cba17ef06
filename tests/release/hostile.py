"""Give damaged files to the commands that read them, with all streams and with some of them closed.

    python tests/release/hostile.py               1,000 files, 2,000 commands, some minutes
    python tests/release/hostile.py --files 80

A command may work, or refuse in one printable line with exit code 2. Everything else is a failure: a traceback, a
signal, more than one line, more than 20 seconds of processor time, more than 4 GB, a changed file. Prints a line for
each kind of file.

One process imports the library once and forks a child for each command.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS), *map(str, TESTS.glob("*/"))]
from oracles import run_text, seal  # noqa: E402
from test_hostile import VALUES, spoil_bytes, spoil_json, spoil_tensors  # noqa: E402

import nanoeuler_lib.training.report  # noqa: E402, F401  imported before the first fork
from nanoeuler_lib.command import cli  # noqa: E402
from nanoeuler_lib.training import checkpoint, sft  # noqa: E402, F401

SHAPE = "--vocab-size 258 --dim 16 --heads 2 --kv-heads 1 --layers 1 --context 300 --predict 2".split()
SETTINGS = "--steps 4 --batch 2 --warmup 1 --valid-every 2 --sample-every 2 --save-every 2 --workers 1 --quiet".split()
STRANGE = [
    *VALUES,
    "\ud800",
    "a\0b",
    "\x1b]0;owned\x07",
    "konigsberg",
    ["konigsberg", 1, 1],
    ["x", "y", -1],
    "x" * 5000,
]
CLOSED = [(), (0,), (1,), (2,), (0, 1, 2)]
SECONDS, BYTES = 20, 4 << 30


def make(base: Path) -> None:
    """Make a run, a fine-tuned run, and the files that they were trained on."""
    (base / "text.txt").write_text(run_text())
    talk = [{"instruction": f"{a}{b}", "output": b} for a in "abcdefgh" for b in "uvwxyz"]
    (base / "talk.jsonl").write_text("\n".join(map(json.dumps, talk)))
    with contextlib.redirect_stdout(io.StringIO()):
        data = ["--data", str(base / "text.txt"), "--run", str(base / "run")]
        assert cli.main(["train", *data, *SHAPE, *SETTINGS]) == 0
        data = ["--data", str(base / "talk.jsonl"), "--run", str(base / "tuned"), "--base", str(base / "run")]
        assert cli.main(["sft", *data, "--valid-fraction", "0.3", *SETTINGS]) == 0


# Kinds of files: each function damages one in `here`, a copy of the base, and returns commands that read it.


def forged_info(here, rng):
    """Change a checkpoint's description, and update its digests."""
    run = here / rng.choice(["run", "tuned"])
    folder = checkpoint.find(run)
    info = json.loads((folder / "checkpoint.json").read_text())["info"]
    name = rng.choice([*info, "template", "examples", "files", "source", "valid_bits_per_byte", "title", "\x1b[2J\n"])
    info[name] = rng.choice(STRANGE)
    if rng.random() < 0.2:
        del info[name]
    seal(folder, info=info)
    return of_run(run)


def forged_head(here, rng):
    """Change any part of checkpoint.json, and update the digests."""
    run = here / rng.choice(["run", "tuned"])
    folder = checkpoint.find(run)
    head = spoil_json(json.loads((folder / "checkpoint.json").read_text()), rng)
    (folder / "checkpoint.json").write_text(json.dumps(head))
    with contextlib.suppress(Exception):  # the digests may be lost
        seal(folder, **({"sha256": head["sha256"]} if rng.random() < 0.3 else {}))
    return of_run(run)


def spoilt_checkpoint(here, rng):
    """Change the bytes of any file of a checkpoint; in half of the cases, update the digests."""
    run = here / rng.choice(["run", "tuned"])
    folder = checkpoint.find(run)
    file = folder / rng.choice(sorted(f.name for f in folder.iterdir()))
    tensors = file.suffix == ".safetensors" and rng.random() < 0.5
    file.write_bytes((spoil_tensors if tensors else spoil_bytes)(file.read_bytes(), rng))
    if rng.random() < 0.5:
        with contextlib.suppress(Exception):
            seal(folder)
    return of_run(run)


def spoilt_log(here, rng):
    run = here / "run"
    shutil.rmtree(checkpoint.find(run))  # so that steps are left to resume
    file = run / rng.choice(["log.jsonl", "log.jsonl", "run.json"])
    if rng.random() < 0.5:
        file.write_bytes(spoil_bytes(file.read_bytes(), rng))
    else:
        lines = file.read_text().split("\n")[:-1] if file.suffix == ".jsonl" else [file.read_text()]
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(spoil_json(json.loads(lines[at]), rng))
        file.write_text("\n".join(lines) + "\n")
    return [["report", run], ["train", "--resume", run, "--quiet"]]


MARKS = "<|endoftext|>", "\n<|endoftext|>\n", "\r\n<|endoftext|>\r\n", "\u2028", "\x85", "\0", "\ufeff", "\r", "\x1b"


def spoilt_text(here, rng):
    file, content = here / "new.txt", (here / "text.txt").read_bytes()
    for _ in range(rng.randrange(1, 4)):
        at, mark = rng.randrange(len(content) + 1), rng.choice(MARKS).encode(rng.choice(["utf-8"] * 3 + ["utf-16"]))
        content = content[:at] + mark * rng.choice([1, 2, 50]) + content[at:]
    file.write_bytes(spoil_bytes(content, rng) if rng.random() < 0.4 else content)
    out = ["--run", here / "new", *SHAPE, *SETTINGS]
    return [["train", "--data", file, *out], ["train", "--data", here / "text.txt", "--valid", file, *out],
            ["tokenizer", "train", "--data", file, "--vocab", "270", "--out", here / "new.json"]]  # fmt: skip


def spoilt_dialogues(here, rng):
    file = here / "new.jsonl"
    lines = [json.loads(line) for line in (here / "talk.jsonl").read_text().split("\n")]
    at = rng.randrange(len(lines))
    way = rng.randrange(4)
    if way == 0:
        lines[at] = spoil_json(lines[at], rng)
    elif way == 1:
        lines[at][rng.choice(["instruction", "output", "x" * 99_999])] = rng.choice(STRANGE)
    elif way == 2:
        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        lines[at] = {"messages": spoil_json(talk, rng)}
    content = "\n".join(map(json.dumps, lines)).encode()
    file.write_bytes(spoil_bytes(content, rng) if way == 3 else content)
    learn = ["--base", here / "run", "--run", here / "new", "--valid-fraction", "0.3", *SETTINGS]
    return [["sft", "--data", file, *learn]]


def spoilt_tokenizer(here, rng):
    file, content = here / "new.json", (checkpoint.find(here / "run") / "tokenizer.json").read_bytes()
    if rng.random() < 0.5:
        file.write_bytes(spoil_bytes(content, rng))
    else:
        file.write_text(json.dumps(spoil_json(json.loads(content), rng)))
    words = (("encode", "the cat"), ("decode", "65"))
    return [["tokenizer", *given, "--tokenizer", file] for given in words]


KINDS = forged_info, forged_head, spoilt_checkpoint, spoilt_log, spoilt_text, spoilt_dialogues, spoilt_tokenizer


def of_run(run):
    """Return commands that read a run; resuming is bounded, whatever number of steps the file now contains."""
    more = ["--steps", "6", "--quiet"]
    speak = ["--tokens", "3", "--run", run]
    return [["info", "--run", run], ["generate", "a", *speak], ["chat", *speak],
            ["train", "--resume", run, *more], ["sft", "--resume", run, *more]]  # fmt: skip


def outcome(words, closed, folder: Path) -> str:
    """Run a command in a child process; return "works", "refused", or a description of its wrong end."""
    (folder / "stdin").write_text("hi\n")
    if (child := os.fork()) == 0:
        code = 99
        try:
            signal.alarm(10 * SECONDS)
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
            for number, name in enumerate(("stdin", "stdout", "stderr")):
                os.dup2(os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC * (number > 0)), number)
            sys.stdin, sys.stdout, sys.stderr = (open(n, "r" if n == 0 else "w", closefd=False) for n in range(3))
            os.closerange(3, 50)
            for number in closed:
                os.close(number)
                setattr(sys, ("stdin", "stdout", "stderr")[number], None)
            code = cli.main([str(word) for word in words])
        except BaseException:
            with open(folder / "traceback", "w") as file:
                traceback.print_exc(file=file)
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said = (folder / "stderr").read_bytes().decode("utf-8", "replace")
    if code == 99:
        return (folder / "traceback").read_text().strip().splitlines()[-1]
    if code not in (0, 2):
        return f"exit code {code}"
    if code == 2 and 2 not in closed:
        good = said.startswith("nanoeuler: ") and said.count("\n") == 1 and len(said) < 800 and said[:-1].isprintable()
        return "refused" if good else f"said {said[:2000]!r}"
    return "refused" if code else f"works, but said {said[:300]!r}" if said else "works"


def digests(base: Path) -> dict:
    return {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in base.rglob("*") if file.is_file()}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--files", type=int, default=1000, help="how many (default 1000)")
    options.add_argument("--seed", type=int, default=0)
    options = options.parse_args()
    found, wrong = {kind.__name__: Counter() for kind in KINDS}, []
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base"
        base.mkdir()
        make(base)
        before = digests(base)
        sys.stdout.flush()
        for number in range(options.files):
            kind, rng = KINDS[number % len(KINDS)], random.Random(f"{options.seed} {number}")
            here = shutil.copytree(base, Path(scratch) / "here")
            commands = kind(here, rng)
            for closed in ((), CLOSED[1 + number // len(KINDS) % (len(CLOSED) - 1)]):
                words, folder = rng.choice(commands), Path(scratch) / "streams"
                folder.mkdir()
                end = outcome(words, closed, folder)
                found[kind.__name__][end if end in ("works", "refused") else "wrong"] += 1
                if end not in ("works", "refused"):
                    shown = " ".join(str(word) for word in words)[:300]
                    wrong.append(f"{kind.__name__} {number}, closed {closed}: {shown}: {end}")
                shutil.rmtree(folder)
            shutil.rmtree(here)
        if digests(base) != before:
            wrong.append("a file of another folder was changed")
    for name, ends in found.items():
        total = sum(ends.values())
        print(f"{name:<18} {total:5} commands: {ends['works']:5} worked, {ends['refused']:5} refused in a line")
    print(f"{options.files} files, {2 * options.files} commands, {len(wrong)} wrong")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
