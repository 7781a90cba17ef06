"""Do the tests catch planted bugs? The library is changed in one place at a time, and its tests are run.

    make mutants-library                        # 300 mutants, drawn with seed 0 from all modules
    make mutants-library MODULE=optim SAMPLE=40 SEED=7
    make mutants-library SKIP=260               # the last 40 of the 300: a run that was stopped goes on

The operators are those of mutmut: an argument dropped or None, + for -, <= for <, `and` for `or`, a number one larger,
a string changed, an assignment of None, ... A mutant is caught when a test of its package fails, or runs out of time,
in a copy of the checkout; the checkout itself is never changed. mutants.toml lists the mutants that no test can catch,
each with the reason. Not planted: what stands outside of functions (mutmut leaves that out as well), annotations and
decorators, and strings of several words, which are prose for people: a test that repeats a sentence says nothing.
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
# Kernels and what launches them: tested by themselves, tests/engine/test_planted.py plants bugs of its own.
APART = ("cuda", "kernels", "engine")
PAPERS = "papers", "problems", "worker", *(f"ch{number}" for number in CHAPTERS)
ON_REQUEST = ("breaks", "diagnose", *PAPERS)  # only with MODULE=: their tests take 90 seconds a mutant
EQUIVALENT = Path(__file__).with_name("mutants.toml")
PROCESSES = 2


@dataclass(frozen=True)
class Mutant:
    """One change: in which module and function, the lines that go, the lines that come, and the file's whole text."""

    module: str
    function: str
    old: str
    new: str
    text: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What it is recognised by: no line number, so that an edit elsewhere leaves it."""
        return self.module, self.function, self.old, self.new


def modules(root: Path) -> dict[str, Path]:
    """The library's modules by name: path below the checkout."""
    paths = [file.relative_to(root) for package in PACKAGES for file in sorted((root / package).rglob("*.py"))]
    found = {}
    for path in paths:
        name = path.parent.name if path.stem == "__init__" else path.stem
        if set(path.parts) & set(APART) or (len(path.parts) == 2 and path.stem in ("__init__", "_moved")):
            continue
        name = f"{path.parent.name}.{name}" if name in found else name
        if name in found:
            raise SystemExit(f"{path} and {found[name]} have one name: expected modules of different names")
        found[name] = path
    return found


def tests_of(path: Path, root: Path) -> list[str]:
    """The test files of a module's package, below the checkout; those that bear its name first."""
    folder = path.parts[1] if len(path.parts) > 2 else "common"
    folder = "konigsberg" if path.parts[0] == "konigsberg" else {"ops": "model", "drills": "course"}.get(folder, folder)
    folder = Path("tests", folder)
    files = sorted(file.name for file in (root / folder).glob("test_*.py"))
    return [str(folder / name) for name in sorted(files, key=lambda name: path.stem not in name)]


class Places(cst.CSTVisitor):
    """Every mutation of a module: (function, node, what stands in its place), in the order of the text."""

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
    """Whether a node is a string of several words."""
    return isinstance(node, cst.SimpleString) and " " in node.value.strip("\"' ")


def planted(module: str, source: str) -> list[Callable[[], Mutant]]:
    """The mutants of a module, each as a function without arguments that makes it: to make all takes long."""
    wrapper = cst.MetadataWrapper(cst.parse_module(source))
    tree, places = wrapper.module, Places()
    tree.visit(places)
    positions, lines = wrapper.resolve(PositionProvider), [line.strip() for line in source.splitlines()]

    def make(function, node, mutated):
        def mutant():
            text = tree.deep_replace(node, mutated).code
            old, new = changed(source, text)
            return Mutant(module, function, old, new, text)

        at = positions.get(node)  # the node of an operator alone has none
        span = slice(at.start.line - 1, at.end.line) if at else slice(None)
        mutant.function, mutant.lines = function, lines[span]
        return mutant

    return [make(*place) for place in places.found]


def changed(before, after):
    """The lines that differ, without their indentation and joined by line breaks."""
    a, b = before.splitlines(), after.splitlines()
    start = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    a, b = a[start:], b[start:]
    end = next((i for i, (x, y) in enumerate(zip(a[::-1], b[::-1])) if x != y), min(len(a), len(b)))
    return tuple("\n".join(line.strip() for line in lines[: len(lines) - end]) for lines in (a, b))


FOUND_LENGTH = re.compile(r"(reshape\([^()]*)-\d+")  # NumPy takes any negative length for the one to be found


def drawn(makers: Sequence[Callable], number: int, seed: int, sources: Mapping[str, str]) -> list[Mutant]:
    """So many mutants, each as likely; what is no Python, or the same program, is none."""
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
    """The listed mutants, key: reason."""
    with open(file, "rb") as handle:
        entries = tomllib.load(handle).get("mutant", [])
    return {tuple(entry[name] for name in ("module", "function", "old", "new")): entry["why"] for entry in entries}


def stale(listed: dict, makers: Mapping[str, Sequence[Callable]]) -> list[tuple]:
    """Listed mutants of these modules that the operators no longer make: their line has changed or gone."""
    firsts = {(module, function, old.partition("\n")[0]) for module, function, old, _ in listed}
    there = {
        make().key
        for name in makers
        for make in makers[name]
        if any((name, make.function, line) in firsts for line in make.lines)
    }
    return [key for key in listed if key[0] in makers and key not in there]


# ---- Running tests

MEMORY = 16 << 30  # bytes of address space: a mutant may well ask for all there is
LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]),) * 2)
sys.argv = ["pytest", *sys.argv[3:]]
runpy.run_module("pytest", run_name="__main__")
"""


class Bench:
    """Copies of the checkout in which mutants are tried, one for each process."""

    def __init__(self, root: Path, folder: Path, processes: int):
        self.copies: SimpleQueue[Path] = SimpleQueue()
        self.clock, self.out_of_time = time.time(), 0
        for number in range(processes):
            copy = folder / str(number)
            shutil.copytree(root, copy, symlinks=True, ignore=shutil.ignore_patterns(".*", "_build", "__pycache__"))
            self.copies.put(copy)

    def passes(self, tests: Mapping[str, int], path: Path | None = None, text: str = "") -> bool:
        """Whether all tests pass, each within its seconds of processor, where the file at `path` holds this text."""
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
        """Seconds of processor that tests take without a mutant; None if they fail."""
        copy = self.copies.get()
        try:
            return self._run(copy, test, 3600)
        finally:
            self.copies.put(copy)

    def _write(self, file, text):
        """Write a source file with a second of its own as its time: Python looks at that before it compiles again."""
        file.write_text(text, "utf-8")
        self.clock += 2
        os.utime(file, (self.clock, self.clock))

    def _run(self, copy, test, seconds):
        """One file of tests (or one test) in a process of its own; the seconds of processor it took, None if it fails.

        Seconds of processor do not depend on what else the machine does; ten times as many by the clock are the limit
        of a mutant that waits for something.
        """
        environment = {key: value for key, value in os.environ.items() if key != "NANOEULER_DATA"}
        environment |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(copy)}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # nbval and others take seconds to import
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
            os.killpg(process.pid, signal.SIGKILL)  # what the tests started may still run
        except ProcessLookupError:
            pass
        code = process.returncode = os.waitstatus_to_exitcode(status)
        if code in (4, 5):
            raise SystemExit(f"pytest finds no test in {test}: expected a file of tests/, or a test of one")
        self.out_of_time += code in (-signal.SIGKILL, -signal.SIGXCPU)
        return used.ru_utime + used.ru_stime if code == 0 else None


def time_limits(bench: Bench, tests: Sequence[str]) -> dict[str, int]:
    """Seconds of processor that tests may take: three times what they take without a mutant, and ten."""

    def limit(test):
        if (seconds := bench.needs(test)) is None:
            raise SystemExit(f"{test} fails without a mutant")
        return test, math.ceil(3 * seconds + 10)

    with ThreadPoolExecutor(bench.copies.qsize()) as pool:
        return dict(pool.map(limit, tests))


def table(rows: Mapping[str, Counter]) -> str:
    """A line for each module and one for all: mutants, caught, survived, equivalent, and the share caught."""
    lines = [f"{'module':<12} {'mutants':>8} {'caught':>8} {'survived':>8} {'equivalent':>10} {'share':>7}"]
    for name, row in [*sorted(rows.items()), ("all", sum(rows.values(), Counter()))]:
        tried = row["caught"] + row["survived"]
        share = f"{row['caught'] / tried:7.1%}" if tried else f"{'-':>7}"
        total = tried + row["equivalent"]
        lines.append(f"{name:<12} {total:>8} {row['caught']:>8} {row['survived']:>8} {row['equivalent']:>10} {share}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT, listed: Path = EQUIVALENT) -> int:
    """Draw, try, report; 1 if fewer than 95% of those that are not equivalent are caught, or the list is stale."""
    parser = argparse.ArgumentParser(prog="make mutants-library", description=__doc__.split("\n")[0])
    parser.add_argument("--module", default="", help="only this module, by its file's name")
    parser.add_argument("--sample", type=int, default=300, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--skip", type=int, default=0, help="so many of them were tried already")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    given = parser.parse_args(arguments)
    paths = modules(root)
    if given.module and given.module not in paths:
        parser.error(f"no module {given.module!r}, expected one of {', '.join(paths)}")
    chosen = [given.module] if given.module else [name for name in paths if name not in ON_REQUEST]
    paths = {name: paths[name] for name in chosen}
    sources = {name: (root / path).read_text("utf-8") for name, path in paths.items()}
    makers = {name: made for name, source in sources.items() if (made := planted(name, source))}
    tests = {name: tests_of(paths[name], root) for name in makers}
    known = equivalents(listed)
    gone = stale(known, makers)
    for key in gone:
        print(f"stale, its mutant is not made any more: {' | '.join(key)}")
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
    print(f"{bench.out_of_time} of those caught ran out of time")
    total = sum(rows.values(), Counter())
    enough = total["caught"] >= 0.95 * (total["caught"] + total["survived"])
    return 0 if enough and not gone else 1


def _listing(mutant):
    """The mutant as mutants.toml would list it, the reason to be written."""
    fields = zip(("module", "function", "old", "new"), mutant.key)
    return "\n".join(["    [[mutant]]", *(f"    {name} = {json.dumps(value)}" for name, value in fields)])


if __name__ == "__main__":
    sys.exit(main())
