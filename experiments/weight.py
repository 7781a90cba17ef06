"""Measure the size of the project: lines by package, and processor time of its tests by part: data/weight/NAME.json.

    python -m experiments.weight NAME                 # an hour on two idle cores
    python -m experiments.weight NAME --only test:    # the lines, and only the parts whose names begin like this

A part that is already in the file is not timed again, so that a measurement can be stopped and continued. The time of a
part is the user and system time of its process and of all processes that it waited for. Each part compiles its kernels
again, in its own cache, and runs on one core per test process.
"""

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tools.notebooks.results import ROOT, save

KINDS = {
    ".py": "Python",
    ".cu": "C++",
    ".cuh": "C++",
    ".h": "C++",
    ".cpp": "C++",
    ".toml": "data",
    ".json": "data",
}
TREES = ("nanoeuler_lib", "nanoeuler_book", "konigsberg", "cudacheck", "tests")  # whose folders are counted one by one
NBVAL = "--nbval --nbval-current-env --nbval-sanitize-with=nanoeuler_book/nbval_sanitize.cfg"


def lines() -> list[dict]:
    """Lines of the files that Git knows, by package and kind; stored results and notebooks are not counted."""
    count = Counter()
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for path in map(Path, listed.stdout.splitlines()):
        if path.suffix in KINDS and path.parts[0] != "data":
            deep = path.parts[0] in TREES and len(path.parts) > 2
            package = "/".join(path.parts[: 2 if deep else 1]) if len(path.parts) > 1 else "."
            count[package, KINDS[path.suffix]] += (ROOT / path).read_text("utf-8").count("\n")
    return [{"package": p, "kind": kind, "lines": n} for (p, kind), n in sorted(count.items())]


def parts() -> dict[str, str]:
    """The command line of each part."""
    one = f"{sys.executable} -m pytest -q"
    many = f"{one} -n {len(os.sched_getaffinity(0))} --dist loadscope"
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    folders = sorted({path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")})
    found = {"quick": "make quick"}
    found |= {f"test: {path.stem}": f"{one} {NBVAL} {path}" for path in notebooks}
    found |= {f"test: {name}": f"{many} tests/{name}" for name in folders if name != "release"}
    found |= {f"test-all: {name}": f"{many} --all tests/{name}" for name in folders}
    return found | {"CI: portable": "make portable ARGS=--sample", "CI: book": "make book"}


def seconds(command: str) -> dict:
    """Processor seconds of a command, seconds by the clock, and its exit code."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"XDG_CACHE_HOME": cache, "OPENBLAS_NUM_THREADS": "1"}
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        code = subprocess.run(shlex.split(command), cwd=ROOT, env=environment, stdout=subprocess.DEVNULL).returncode
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"processor": round(used, 1), "clock": round(time.monotonic() - began, 1), "exit code": code}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name")
    parser.add_argument("--only", nargs="+", default=[""], metavar="PREFIX")
    options = parser.parse_args()
    folder, rows = ROOT / "data" / "weight", lines()
    if (path := folder / f"{options.name}.json").exists():
        rows += [row for row in json.loads(path.read_text("utf-8"))["rows"] if "part" in row]
    done = {row["part"] for row in rows if "part" in row}
    for part, command in parts().items():
        if part.startswith(tuple(options.only)) and part not in done:
            rows.append({"part": part, **seconds(command)})
            print(rows[-1], flush=True)
            save(options.name, {}, rows, folder)  # whatever happens later, this is kept


if __name__ == "__main__":
    main()
