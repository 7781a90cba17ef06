"""Test whether the tests catch bugs: change the library in one place at a time (a mutant), and run its tests.

    make mutants-library                        # 300 mutants, sampled with seed 0 from all modules
    make mutants-library MODULE=optim SAMPLE=40 SEED=7
    make mutants-library SKIP=260               # the last 40 of the 300, to continue a run that was stopped

The changes come from mutmut: an argument dropped or replaced by None, + by -, < by <=, `or` by `and`, a number
increased by one, a string changed, None assigned, and so on. A mutant is caught if a test of its package fails or runs
out of time, in a copy of the checkout; the checkout itself is never changed. mutants.toml lists the mutants that no
test can catch, each with the reason. Some code is not changed: code outside of functions (mutmut leaves it out as
well), annotations, decorators, and strings of several words, because a test that repeats a sentence shows nothing.
"""

import argparse
import ast
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import libcst as cst
from libcst.metadata import PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_string

from tools.course.papers.papers import CHAPTERS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = "nanoeuler_lib", "nanoeuler_book", "konigsberg"
# Kernels and the code that launches them are left out; tests/engine/test_planted.py plants bugs in them.
APART = ("cuda", "kernels", "engine")
PAPERS = "papers", "problems", "worker", *(f"ch{number}" for number in CHAPTERS)
ON_REQUEST = ("breaks", "diagnose", *PAPERS)  # only with MODULE=, because their tests take 90 seconds per mutant
EQUIVALENT = Path(__file__).with_name("mutants.toml")
PROCESSES = 2


@dataclass(frozen=True)
class Mutant:
    """One change of the library: module, function, removed lines, added lines, and the text of the changed file."""

    module: str
    function: str
    old: str
    new: str
    text: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return the mutant's identity without a line number, so that edits elsewhere do not change the identity."""
        return self.module, self.function, self.old, self.new


def modules(root: Path) -> dict[str, Path]:
    """Return the path of each module of the library, relative to the checkout, by the module's name."""
    paths = [file.relative_to(root) for package in PACKAGES for file in sorted((root / package).rglob("*.py"))]
    found = {}
    for path in paths:
        name = path.parent.name if path.stem == "__init__" else path.stem
        if set(path.parts) & set(APART) or (len(path.parts) == 2 and path.stem in ("__init__", "_moved")):
            continue
        name = f"{path.parent.name}.{name}" if name in found else name
        if name in found:
            raise SystemExit(f"modules must have different names, got {path} and {found[name]}")
        found[name] = path
    return found


def tests_of(path: Path, root: Path) -> list[str]:
    """Return the paths in the checkout of the tests for a module's package; tests with the module's name come first."""
    folder = path.parts[1] if len(path.parts) > 2 else "common"
    folder = "konigsberg" if path.parts[0] == "konigsberg" else {"ops": "model", "drills": "course"}.get(folder, folder)
    folder = Path("tests", folder)
    files = sorted(file.name for file in (root / folder).glob("test_*.py"))
    return [str(folder / name) for name in sorted(files, key=lambda name: path.stem not in name)]


class Places(cst.CSTVisitor):
    """Collect all mutations of a module as (function, node, replacement), in the order of the source."""

    def __init__(self):
        self.found, self.inside = [], []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, (cst.Annotation, cst.Decorator)):
            return False
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self.inside.append(node)
        if any(isinstance(outer, cst.FunctionDef) for outer in self.inside):
            name = ".".join(outer.name.value for outer in self.inside)
            self.found += [(name, node, mutated) for mutated in _mutations(node)]
        return True

    def on_leave(self, node: cst.CSTNode) -> None:
        if self.inside and node is self.inside[-1]:
            self.inside.pop()


def _mutations(node):
    for kind, operator in mutation_operators:
        if operator is operator_string and _prose(node):
            continue
        if isinstance(node, kind):
            yield from operator(node)


def _prose(node):
    """Return whether a node is a string of several words."""
    return isinstance(node, cst.SimpleString) and " " in node.value.strip("\"' ")


def planted(module: str, source: str) -> list[Callable[[], Mutant]]:
    """Return, for each mutant of a module, a function that makes the mutant, because making all mutants takes long."""
    wrapper = cst.MetadataWrapper(cst.parse_module(source))
    tree, places = wrapper.module, Places()
    tree.visit(places)
    positions, lines = wrapper.resolve(PositionProvider), [line.strip() for line in source.splitlines()]

    def make(function, node, mutated):
        def mutant():
            text = tree.deep_replace(node, mutated).code
            old, new = changed(source, text)
            return Mutant(module, function, old, new, text)

        at = positions.get(node)  # an operator's node has no position
        span = slice(at.start.line - 1, at.end.line) if at else slice(None)
        mutant.function, mutant.lines = function, lines[span]
        return mutant

    return [make(*place) for place in places.found]


def changed(before, after):
    """Return the lines of both texts that differ, without indentation, joined by line breaks."""
    a, b = before.splitlines(), after.splitlines()
    start = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    a, b = a[start:], b[start:]
    end = next((i for i, (x, y) in enumerate(zip(a[::-1], b[::-1])) if x != y), min(len(a), len(b)))
    return tuple("\n".join(line.strip() for line in lines[: len(lines) - end]) for lines in (a, b))


FOUND_LENGTH = re.compile(r"(reshape\([^()]*)-\d+")  # NumPy infers a length that is any negative number


def drawn(makers: Sequence[Callable], number: int, seed: int, sources: Mapping[str, str]) -> list[Mutant]:
    """Sample mutants uniformly from those that are valid Python and change the program."""
    found = []
    for make in random.Random(seed).sample(makers, len(makers)):
        if len(found) == number:
            break
        mutant = make()
        if FOUND_LENGTH.sub(r"\1-1", mutant.new) == mutant.old:
            continue
        try:
            same = ast.dump(ast.parse(mutant.text)) == ast.dump(ast.parse(sources[mutant.module]))
        except SyntaxError:
            continue
        if not same:
            found.append(mutant)
    return found


# ---- Mutants that no test can catch


def equivalents(file: Path) -> dict[tuple, str]:
    """Read the mutants that no test can catch, and their reasons, by key."""
    with open(file, "rb") as handle:
        entries = tomllib.load(handle).get("mutant", [])
    return {tuple(entry[name] for name in ("module", "function", "old", "new")): entry["why"] for entry in entries}


def stale(listed: dict, makers: Mapping[str, Sequence[Callable]]) -> list[tuple]:
    """Return the listed mutants of these modules that can no longer be made, because their line has changed."""
    firsts = {(module, function, old.partition("\n")[0]) for module, function, old, _ in listed}
    there = {
        make().key
        for name in makers
        for make in makers[name]
        if any((name, make.function, line) in firsts for line in make.lines)
    }
    return [key for key in listed if key[0] in makers and key not in there]


# ---- Running tests

MEMORY = 16 << 30  # bytes of address space, because a mutant may allocate without limit
LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]),) * 2)
sys.argv = ["pytest", *sys.argv[3:]]
runpy.run_module("pytest", run_name="__main__")
"""


class Bench:
    """Copies of the checkout in which mutants are tried, one per process."""

    def __init__(self, root: Path, folder: Path, processes: int):
        self.copies: SimpleQueue[Path] = SimpleQueue()
        self.clock, self.out_of_time = time.time(), 0
        for number in range(processes):
            copy = folder / str(number)
            shutil.copytree(root, copy, symlinks=True, ignore=shutil.ignore_patterns(".*", "_build", "__pycache__"))
            self.copies.put(copy)

    def passes(self, tests: Mapping[str, int], path: Path | None = None, text: str = "") -> bool:
        """Return whether all tests pass while the file `path` has this text.

        tests: the limit of each test in seconds of processor time.
        """
        copy = self.copies.get()
        original = None if path is None else (copy / path).read_text("utf-8")
        try:
            if path is not None:
                self._write(copy / path, text)
            return all(self._run(copy, test, seconds) is not None for test, seconds in tests.items())
        finally:
            if path is not None:
                self._write(copy / path, original)
            self.copies.put(copy)

    def needs(self, test: str) -> float | None:
        """Return the processor time of a test without a mutant, in seconds; None if the test fails."""
        copy = self.copies.get()
        try:
            return self._run(copy, test, 3600)
        finally:
            self.copies.put(copy)

    def _write(self, file, text):
        """Write a source file with a new modification time, by which Python decides whether to compile it again."""
        file.write_text(text, "utf-8")
        self.clock += 2
        os.utime(file, (self.clock, self.clock))

    def _run(self, copy, test, seconds):
        """Run a test file or a test in a separate process; return its processor time in seconds, None if a test fails.

        Processor time does not depend on other programs. For a mutant that waits for something, the limit is ten times
        as many seconds of wall-clock time.
        """
        environment = {key: value for key, value in os.environ.items() if key != "NANOEULER_DATA"}
        environment |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(copy)}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # importing nbval and other plugins takes seconds
        options = ["-xq", "-pno:cacheprovider", f"--basetemp={copy}/tmp", test]
        process = subprocess.Popen(
            [sys.executable, "-c", LIMITED, str(MEMORY), str(seconds), *options],
            cwd=copy, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        clock = threading.Timer(10 * seconds, os.killpg, (process.pid, signal.SIGKILL))
        clock.start()
        _, status, used = os.wait4(process.pid, 0)
        clock.cancel()
        try:
            os.killpg(process.pid, signal.SIGKILL)  # processes that the tests started may still run
        except ProcessLookupError:
            pass
        code = process.returncode = os.waitstatus_to_exitcode(status)
        if code in (4, 5):
            raise SystemExit(f"{test}: must be a file of tests/ or a test in it, but pytest finds no test there")
        self.out_of_time += code in (-signal.SIGKILL, -signal.SIGXCPU)
        return used.ru_utime + used.ru_stime if code == 0 else None


def time_limits(bench: Bench, tests: Sequence[str]) -> dict[str, int]:
    """Return each test's limit in seconds of processor time: three times the time without a mutant, plus ten."""

    def limit(test):
        if (seconds := bench.needs(test)) is None:
            raise SystemExit(f"{test} must pass without a mutant, but it fails")
        return test, math.ceil(3 * seconds + 10)

    with ThreadPoolExecutor(bench.copies.qsize()) as pool:
        return dict(pool.map(limit, tests))


def table(rows: Mapping[str, Counter]) -> str:
    """Return a table of mutants, caught, survived, equivalent and share caught, per module and in total."""
    lines = [f"{'module':<12} {'mutants':>8} {'caught':>8} {'survived':>8} {'equivalent':>10} {'share':>7}"]
    for name, row in [*sorted(rows.items()), ("all", sum(rows.values(), Counter()))]:
        tried = row["caught"] + row["survived"]
        share = f"{row['caught'] / tried:7.1%}" if tried else f"{'-':>7}"
        total = tried + row["equivalent"]
        lines.append(f"{name:<12} {total:>8} {row['caught']:>8} {row['survived']:>8} {row['equivalent']:>10} {share}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT, listed: Path = EQUIVALENT) -> int:
    """Sample and try mutants, and print a report.

    Returns 1 if less than 95% of the mutants that are not equivalent are caught, or mutants.toml is out of date.
    """
    parser = argparse.ArgumentParser(prog="make mutants-library", description=__doc__.split("\n")[0])
    parser.add_argument("--module", default="", help="only this module: the name of its file")
    parser.add_argument("--sample", type=int, default=300, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--skip", type=int, default=0, help="number of mutants to skip, which were tried before")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    given = parser.parse_args(arguments)
    paths = modules(root)
    if given.module and given.module not in paths:
        parser.error(f"--module must be one of {', '.join(paths)}, got {given.module!r}")
    chosen = [given.module] if given.module else [name for name in paths if name not in ON_REQUEST]
    paths = {name: paths[name] for name in chosen}
    sources = {name: (root / path).read_text("utf-8") for name, path in paths.items()}
    makers = {name: made for name, source in sources.items() if (made := planted(name, source))}
    tests = {name: tests_of(paths[name], root) for name in makers}
    known = equivalents(listed)
    gone = stale(known, makers)
    for key in gone:
        print(f"mutants.toml is out of date, this mutant can no longer be made: {' | '.join(key)}")
    every = [make for name in makers for make in makers[name]]
    mutants = drawn(every, given.sample, given.seed, sources)[given.skip :]
    print(f"{len(mutants)} of {len(every)} mutants, seed {given.seed}", flush=True)

    rows = {name: Counter() for name in sorted({mutant.module for mutant in mutants})}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        bench = Bench(root, Path(folder), given.processes)
        limits = time_limits(bench, sorted({test for name in rows for test in tests[name]}))

        def attempt(mutant):
            if mutant.key in known:
                return mutant, "equivalent"
            chosen = {test: limits[test] for test in tests[mutant.module]}
            passed = bench.passes(chosen, paths[mutant.module], mutant.text)
            return mutant, "survived" if passed else "caught"

        with ThreadPoolExecutor(given.processes) as pool:
            for number, (mutant, verdict) in enumerate(pool.map(attempt, mutants), 1):
                rows[mutant.module][verdict] += 1
                if verdict == "survived":
                    print(f"survived: {paths[mutant.module]}, {mutant.function}\n{_listing(mutant)}", flush=True)
                if number % 25 == 0:
                    survived = sum(row["survived"] for row in rows.values())
                    print(f"{number} tried, {survived} survived", flush=True)
    print(table(rows))
    print(f"{bench.out_of_time} of the caught mutants ran out of time")
    total = sum(rows.values(), Counter())
    enough = total["caught"] >= 0.95 * (total["caught"] + total["survived"])
    return 0 if enough and not gone else 1


def _listing(mutant):
    """Return a mutant in the format of mutants.toml, without the reason."""
    fields = zip(("module", "function", "old", "new"), mutant.key)
    return "\n".join(["    [[mutant]]", *(f"    {name} = {json.dumps(value)}" for name, value in fields)])


if __name__ == "__main__":
    sys.exit(main())
