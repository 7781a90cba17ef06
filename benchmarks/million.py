"""Repeat the run of chapter 32, from its texts to its figures, with one command; needs a GPU.

    python -m benchmarks.million --from FOLDER --out million   # on the texts of the run, from files that you have
    python -m benchmarks.million --out million                 # on books and web, which are downloaded: a different run
    python -m benchmarks.million shards --from FOLDER --out million    # only its shards, for benchmarks.large
    python -m benchmarks.million collect --from million        # its figures into data/results/ch32.json

The FOLDER of --from has the files of the corpora `classics` and `featured`, possibly as .xz. Tokenizer, order and
initial weights follow from them and from seeds, so the tokens have the fingerprint of the stored run. The losses agree
with it except for rounding on a different GPU. On an H100 the run takes 11 minutes: half a minute before the first
step, 9,156 steps of 59 ms, and the rest for validation, samples and checkpoints. Afterwards it measures what the model
has memorised, he or she, samples, and the cloze test.

Each part runs once. If the program was stopped, by Ctrl-C or because --limit seconds had passed, the same command
continues it.
"""

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.gpu_pretrain import run_row
from nanoeuler_lib.text.shards import Shards
from tools.notebooks.results import FOLDER, ROOT, commit, machine, save

CLI = "nanoeuler_lib.command.cli"
GRACE = 60.0  # seconds that a part has to save what it has, once its time is over
SAMPLE = 10_000_000  # bytes of each text that the tokenizer is trained on
TRAIN = (
    "--preset base --batch 64 --steps 300Mtok --warmup 10Mtok --valid-every 10Mtok --sample-every 50Mtok "
    "--save-every 50Mtok --rate 0.0006"
)
RENEWED = "wall", "part", "known", "he or she", "sample", "cloze"  # rows that a new run replaces


class Parts:
    """Run the parts of the run in a folder, each once; the file `took` gets a line of JSON for each attempt.

    limit: after this many seconds, a part is stopped as by SIGTERM. It then has GRACE seconds to save its state and
    GRACE seconds to exit, and is killed afterwards.
    """

    def __init__(self, out: Path, limit: float | None = None):
        self.out, self.took = out, out / "rows-parts.jsonl"
        self.end = None if limit is None else time.monotonic() + limit
        out.mkdir(parents=True, exist_ok=True)

    def call(self, what: str, module: str, words: str, **names: Path) -> None:
        """Run a command to its end, and exit if it fails. names: the values of the {names} in words."""
        shown = words.format(**{name: path.name for name, path in names.items()})
        print(f"--- python -m {module} {shown}", flush=True)
        began = time.perf_counter()
        given = [word.format(**names) for word in shlex.split(words)]
        process = subprocess.Popen([sys.executable, "-m", module, *given], cwd=ROOT)
        signal.signal(signal.SIGINT, lambda number, frame: None)  # the command gets the signal too, and saves
        left = self.end and max(0.0, self.end - time.monotonic())
        code = None
        for stop in (process.terminate, process.terminate, process.kill):
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(left)
                break
            stop()
            left = GRACE
        code = process.wait() if code is None else code
        begins = "nanoeuler" if module == CLI else f"python -m {module}"
        seconds = round(time.perf_counter() - began, 1)
        row = dict(what="part", part=what, command=f"{begins} {shown}", seconds=seconds, code=code)
        with open(self.took, "a") as file:
            file.write(json.dumps(row) + "\n")
        if code:
            sys.exit(code)

    def made(self, what: str, name: str, words: str, **names: Path) -> Path:
        """Return a file or folder; if it does not exist, make it with a command of nanoeuler."""
        path = self.out / name
        if not path.exists():
            self.call(what, CLI, words, out=path, **names)
        return path

    def trained(self, name: str, words: str, resume: str = "", **names: Path) -> Path:
        """Return a finished run; start it, or continue it if it was stopped."""
        run, part = self.out / name, "train" if name == "base" else f"train {name}"
        if not self.has(part):
            begun = (run / "checkpoints").is_dir()
            words = f"--resume {{run}} {resume}" if begun else f"--run {{run}} {words}"
            self.call(part, CLI, f"train {words}".strip(), run=run, **names)
        (self.out / f"{name}.log.jsonl").write_text((run / "log.jsonl").read_text())
        (self.out / f"{name}.run.json").write_text((run / "run.json").read_text())
        return run

    def has(self, part: str) -> bool:
        """Return whether a part is finished."""
        return any(row["part"] == part and row["code"] == 0 for row in read(self.took))

    def done(self, module: str, section: str, words: str, **names: Path) -> None:
        """Compute the rows of a section of a benchmark, unless it is finished; delete unfinished rows."""
        rows = self.out / f"rows-{section}.jsonl"
        if not self.has(section):
            rows.unlink(missing_ok=True)
            self.call(section, module, f"{section} --out {{out}} {words}", out=self.out, **names)


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def text_of(parts: Parts, have: Path | None) -> list[Path]:
    """Return the folders of the two corpora."""
    if have:
        each = {"classics": "--from {have}", "featured": "--from {have}"}
    else:
        each = {"books": "--valid-fraction 0.05", "web": "--bytes 100000000 --valid-fraction 0.02"}
    found = []
    for name, words in each.items():
        names = {"have": have} if have else {}
        down = {"down": parts.out / "downloads"}
        words = f"corpus {name} --out {{out}} --downloads {{down}} {words}"
        found.append(parts.made("text", name, words, **names, **down))
    return found


def prepared(parts: Parts, have: Path | None, vocab: int = 4096) -> tuple[dict[str, Path], int]:
    """Return the shards of the training text and of the two sets, and the token at which the second corpus begins."""
    first, second = text_of(parts, have)
    names = dict(first=first / "train.txt", second=second / "train.txt")
    sample = parts.out / "sample.txt"
    if not (parts.out / "tokenizer.json").exists():
        with open(sample, "wb") as file:
            for path in names.values():
                with open(path, "rb") as text:
                    file.write(text.read(SAMPLE))
    words = f"tokenizer train --data {{sample}} --vocab {vocab} --end-of-text --out {{out}}"
    names["tokenizer"] = parts.made("tokenizer", "tokenizer.json", words, sample=sample)
    shards = "shards --tokenizer {tokenizer} --out {out}"
    data = parts.made("shards", "train", f"{shards} {{first}} {{second}}", **names)
    sets = {"one": first / "valid.txt", "two": second / "valid.txt", "tokenizer": names["tokenizer"]}
    one = parts.made("shards", "books_val", f"{shards} {{one}}", **sets)
    two = parts.made("shards", "web_val", f"{shards} {{two}}", **sets)
    documents = json.loads((first / "report.json").read_text())["parts"]["train.txt"]["documents"]
    return dict(data=data, one=one, two=two), int(Shards(data).starts[documents])


def run(parts: Parts, have: Path | None, device: str, train: str = TRAIN, vocab: int = 4096) -> None:
    """Run all parts that are not finished."""
    given, border = prepared(parts, have, vocab)
    words = f"--data {{data}} --valid {{one}} --valid {{two}} --device {device} {train}"
    base = parts.trained("base", words, **given)
    when = parts.out / "config.json"
    if not when.exists():  # facts about the training; the later parts do not change them
        facts = {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "machine": machine()}
        when.write_text(json.dumps(facts))
    sets = f"--valid {{one}} --valid {{two}} --run {{run}} --device {device}"
    parts.done("benchmarks.yardsticks", "cloze", sets, run=base, **given)
    parts.done("benchmarks.gpu_pretrain", "says", f"--run {{run}} --device {device}", run=base)
    parts.done("benchmarks.gpu_pretrain", "known", f"--data {{data}} {sets} --border {border}", run=base, **given)


def merged(stored: dict, fresh: list[dict], facts: dict) -> tuple[dict, list[dict]]:
    """Return the config and the rows of ch32.json, with the rows of a new run of `base` instead of the previous run's.

    The rows of learning rates, parity, fine-tuning and replies stay; they have the machine and the date of the file.
    The config keeps the time, the validations and "he or she" of the previous run, for comparison.
    """
    of_base = lambda row: (row["what"], row.get("run")) == ("run", "base")
    renewed = lambda row: row["what"] in RENEWED or of_base(row)
    kept = [row for row in stored["rows"] if not renewed(row)]
    commands = [row["command"] for row in fresh if row["what"] == "part"]
    config, when = stored["config"], stored["config"].get("again", stored)
    if facts.items() <= when.items():  # this run was collected before
        return config, [*fresh, *kept]
    (run,) = filter(of_base, stored["rows"])
    before = {name: when.get(name) for name in ("date", "commit", "machine")}
    before |= {name: run[name] for name in ("step_median", "step_seconds", "valid")}
    before["walls"] = [row["milliseconds"] / 1e3 for row in stored["rows"] if row["what"] == "wall"]
    before["he or she"] = {row["who"]: row["bits"] for row in stored["rows"] if row["what"] == "he or she"}
    return config | {"before": before, "again": facts | {"commands": commands}}, [*fresh, *kept]


def collect(folder: Path, results: Path = FOLDER) -> None:
    rows = [row for file in sorted(folder.glob("rows-*.jsonl")) for row in read(file)]
    rows += [run_row(folder / "base.log.jsonl")]
    wall = [row for row in rows if row["what"] == "part" and row["part"] == "train"]
    rows += [dict(what="wall", milliseconds=1e3 * row["seconds"]) for row in wall]
    stored = json.loads((results / "ch32.json").read_text())
    config, rows = merged(stored, rows, json.loads((folder / "config.json").read_text()))
    save("ch32", config, rows, results, stored["machine"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("section", nargs="?", choices=["shards", "collect"])
    parser.add_argument("--from", dest="have", type=Path)
    parser.add_argument("--out", type=Path, default=Path("million"))
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--limit", type=float, metavar="SECONDS")
    options = parser.parse_args()
    if options.section == "collect":
        collect(options.have)
        return
    parts, have = Parts(options.out.absolute(), options.limit), options.have and options.have.absolute()
    if options.section == "shards":
        prepared(parts, have)
    else:
        run(parts, have, options.device)


if __name__ == "__main__":
    main()
