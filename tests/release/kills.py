"""Kill the commands that write files at every file event and at random moments, then start them again.

    python tests/release/kills.py            every event of every command, and random moments: some hundred kills
    python tests/release/kills.py --every 12 --random 4

Afterwards the files must be bitwise those of a command that was not killed (except times in a log), and the folder must
contain nothing else. Prints a line for each command; the exit code is 1 if something differs.

One process imports the library once and forks a child for each attempt. File events come from Python's audit hooks:
files opened for writing, created, renamed or removed below the folder of the attempt.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS), *map(str, TESTS.glob("*/"))]
from oracles import assert_same_run, run_text  # noqa: E402

from nanoeuler_lib.command import cli  # noqa: E402
from nanoeuler_lib.text import shards as shards_module  # noqa: E402, F401
from nanoeuler_lib.training import checkpoint  # noqa: E402
from nanoeuler_lib.training import sft as sft_module  # noqa: E402, F401  imported before the first fork

SHAPE = "--vocab-size 258 --dim 16 --heads 2 --kv-heads 1 --layers 1 --context 48 --predict 2".split()
SETTINGS = "--steps 12 --batch 4 --warmup 2 --valid-every 5 --sample-every 6 --save-every 3 --workers 1 --quiet".split()
EVENTS = {f"os.{what}" for what in ("mkdir", "rename", "remove", "rmdir", "chmod", "truncate")}
EVENTS |= {"shutil.rmtree", "shutil.copymode"}


@dataclass
class Job:
    """A command that writes into a folder: how to start it, how to resume it, and how to compare its files.

    start: a folder that exists before, if any.
    """

    begin: list[str]
    go_on: list[str] | None  # None: it is started again
    same: Callable[[Path, Path], None]
    start: Path | None = None

    def words(self, folder: Path) -> list[str] | None:
        """Return the next command, or None if all is done."""
        out = folder / "out"
        if self.start is not None and not out.exists():
            shutil.copytree(self.start, out)
        if self.go_on is None:
            return None if out.exists() else [*self.begin, str(out)]
        return [*self.go_on, str(out)] if self.start or checkpoint.folders(out) else [*self.begin, str(out)]


def jobs(base: Path) -> dict[str, Job]:
    """Return the commands, on small files in the folder base."""
    (base / "text.txt").write_text(run_text())
    talk = [{"instruction": f"{a}{b}", "output": b} for a in "abcdefgh" for b in "uvwxyz"]
    (base / "talk.jsonl").write_text("\n".join(map(json.dumps, talk)))
    text, model = str(base / "text.txt"), str(base / "base")
    assert cli.main(["train", "--data", text, "--run", model, *SHAPE, "--context", "300", *SETTINGS]) == 0
    learn = ["--base", model, "--data", str(base / "talk.jsonl"), "--valid-fraction", "0.3", *SETTINGS]

    taught = str(base / "taught")
    assert cli.main(["sft", *learn, "--run", taught]) == 0
    pairs = [{"prompt": f"{a}{b}", "chosen": b, "rejected": a} for a in "abcdefgh" for b in "uvwxyz"]
    (base / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    prefer = ["--base", taught, "--data", str(base / "pairs.jsonl"), "--valid-fraction", "0.3", *SETTINGS]

    start = base / "start"  # a finished run with a single checkpoint, which will be overwritten
    settings = " ".join(SETTINGS).replace("--steps 12", "--steps 3").split()
    assert cli.main(["train", "--data", text, "--run", str(start), *SHAPE, *settings]) == 0
    shutil.rmtree(start / "checkpoints" / "step-000000")

    tokenizer, shards = str(base / "bpe.json"), str(base / "shards")
    words = ["tokenizer", "train", "--data", text, "--vocab", "300", "--end-of-text", "--out", tokenizer]
    assert cli.main(words) == 0
    write = ["shards", text, text, "--tokenizer", tokenizer, "--workers", "1", "--out"]
    assert cli.main([*write, shards]) == 0
    shape = " ".join(SHAPE).replace("--vocab-size 258", "--vocab-size 300").split()

    def same_run(a, b):
        assert_same_run(a / "out", b / "out")

    def same_files(a, b):
        """Compare outputs that are a file or a folder of files."""
        assert names(a) == names(b)
        for file in (file for file in a.rglob("*") if file.is_file()):
            assert file.read_bytes() == (b / file.relative_to(a)).read_bytes()

    go_on = lambda command: [command, "--quiet", "--resume"]
    pretrain = ["train", "--data", shards, "--valid", shards, *shape, *SETTINGS, "--run"]
    train = ["train", "--data", text, *SHAPE, *SETTINGS, "--run"]
    return {
        "shards": Job(write, None, same_files),
        "pretrain": Job(pretrain, go_on("train"), same_run),
        "train": Job(train, go_on("train"), same_run),
        "sft": Job(["sft", *learn, "--run"], go_on("sft"), same_run),
        "longer": Job([], ["train", "--quiet", "--steps", "9", "--resume"], same_run, start),
        "tokenizer": Job(["tokenizer", "train", "--data", text, "--vocab", "300", "--out"], None, same_files),
        "corpus": Job(["corpus", "konigsberg", "--bytes", "20000", "--out"], None, same_files),
        "dpo": Job(["dpo", *prefer, "--run"], go_on("dpo"), same_run),
    }


def attempt(job: Job, folder: Path, event: int | None = None, after: float | None = None) -> tuple[int, int]:
    """Run the command in a child that is killed at its file event with this number, or after this many seconds.

    Returns the child's status from os.waitpid, and its number of file events (0 if it was killed).
    """
    words = job.words(folder)
    if words is None:
        return 0, 0
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        code = 1
        try:
            seen = _watched(folder, event)
            for number, file in ((1, os.devnull), (2, folder.parent / "stderr")):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
            code = cli.main(words)
            os.write(write, str(seen[0]).encode())
        finally:
            os._exit(code)
    os.close(write)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    with open(read, "rb") as pipe:
        return status, int(pipe.read() or 0)


def _watched(folder, event):
    """Count the file events below a folder from now on, and kill this process just before one of them."""
    seen, below = [0], f"{folder}/"

    def hook(name, arguments):
        if name == "open":
            path, _, flags = arguments
            counts = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            path, counts = (arguments or ("",))[0], name in EVENTS
        in_folder = name in ("os.remove", "os.rmdir") and arguments[1] >= 0  # inside an open folder, by shutil.rmtree
        if counts and isinstance(path, (str, os.PathLike)) and (in_folder or f"{path}/".startswith(below)):
            seen[0] += 1
            if seen[0] == event:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return seen


def names(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))


def check(name: str, job: Job, base: Path, every: int, moments: int, rng: random.Random) -> tuple[int, list[str]]:
    """Kill one command in all these ways; return the number of kills, and a line for each folder with wrong files."""
    (whole := base / name / "whole").mkdir(parents=True)
    began = time.perf_counter()
    status, events = attempt(job, whole)
    assert status == 0, (base / name / "stderr").read_text()
    length, killed, wrong = time.perf_counter() - began, 0, []
    ways = [("event", number) for number in range(1 + rng.randrange(every), events + 1, every)]
    ways += [("moment", rng.uniform(0, length)) for _ in range(moments)]
    for number, (way, when) in enumerate(ways):
        (folder := base / name / str(number)).mkdir()
        options = {"event": when} if way == "event" else {"after": when}
        try:
            for _ in range(2 if way == "moment" else 1):  # the second time while it resumes
                status, _ = attempt(job, folder, **options)
                assert status in (0, signal.SIGKILL), f"status {status}: {(folder.parent / 'stderr').read_text()}"
                killed += status == signal.SIGKILL
                for step in checkpoint.folders(folder / "out"):
                    checkpoint.load(step, training=True)  # every checkpoint must be complete
                options = {"after": rng.uniform(0, length)}
            status, _ = attempt(job, folder)
            assert status == 0, f"does not resume: {(folder.parent / 'stderr').read_text()}"
            job.same(whole, folder)
            assert names(folder) == names(whole), f"left over: {set(names(folder)) ^ set(names(whole))}"
        except (AssertionError, ValueError) as error:  # ValueError: NanoEulerError
            wrong.append(f"{name}, killed at {way} {when}: {error}")
        shutil.rmtree(folder)
    right = f"{len(ways) - len(wrong)} of {len(ways)}"
    print(f"{name:<10} {events:4} file events, {killed:4} kills, {right:>10} as if never killed")
    return killed, wrong


def main() -> int:
    # tqdm's lock is a semaphore that all children share: a child killed while it holds the lock would stop later ones.
    tqdm.set_lock(threading.RLock())
    tqdm.monitor_interval = 0  # no thread of this process may hold the lock when a child is forked
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--every", type=int, default=1, help="kill at every n-th file event (default 1)")
    options.add_argument("--random", type=int, default=25, help="random moments for each command (default 25)")
    options.add_argument("--seed", type=int, default=0)
    options = options.parse_args()
    rng, total, wrong = random.Random(options.seed), 0, []
    with tempfile.TemporaryDirectory() as base:
        base = Path(base).resolve()
        sys.stdout.flush()
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            made = jobs(base)
        for name, job in made.items():
            killed, found = check(name, job, base, options.every, options.random, rng)
            total, wrong = total + killed, wrong + found
            sys.stdout.flush()
    print(f"{total} kills in all, {len(wrong)} without the same end")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
