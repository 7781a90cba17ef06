"""Run notebooks and numeric tests with the arithmetic of other processors, to see what readers' machines would print.

    python -m tools.release.portable                            # twelve settings, every notebook, every numeric test
    python -m tools.release.portable notebooks/06*.ipynb        # chapters with their tests
    python -m tools.release.portable --all                      # every setting
    python -m tools.release.portable --sample                   # for CI: two settings, part of the notebooks

A setting consists of BLAS kernels (OPENBLAS_CORETYPE), the widest vectors that NumPy's own loops may use
(NPY_DISABLE_CPU_FEATURES), and a number of threads (OMP_NUM_THREADS) for BLAS and for the workers of a training step;
simulated/ allows more BLAS threads than there are cores. NumPy's wheels have four different sets of kernels (Zen uses
Haswell's, and Cooperlake uses SkylakeX's). With three widths of vectors this makes twelve settings, in which each pair
of choices occurs. Variables that this machine sets are unset first. Settings that this processor cannot run are listed
and left out. The program prints a table, and exits with 1 if anything failed.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "_build" / "portable"
SIMULATED = Path(__file__).with_name("simulated")  # on the import path of every Python process of a setting

# From old to new, with the instructions that each needs.
KERNELS = {"Nehalem": "SSE42", "Sandybridge": "AVX", "Haswell": "AVX2", "Zen": "AVX2", "SkylakeX": "AVX512_SKX",
           "Cooperlake": "AVX512BF16"}  # fmt: skip
VECTORS = ("AVX-512", "AVX2", "SSE4")  # the widest vectors that NumPy's loops may use
THREADS = (1, 2, 4)
SLOW = ("Sandybridge", "SSE4")  # it mixes AVX and SSE instructions, and takes 2.3 times as long as the others on a Xeon
HOURS = 4  # for --sample: changes in these hours before the last commit are recent
SAMPLE = 12  # for --sample: the largest number of notebooks

# Tests that are left out: they use no floating point, or run kernels whose operations the host compiler determines, or
# plant bugs that do not depend on rounding. NOT_NUMERIC has prefixes of file names, PLANTED a word of test names.
NOT_NUMERIC = ("test_assignment", "test_book", "test_chapter_mutants", "test_corpus_gutenberg", "test_count",
               "test_cuda_", "test_flash", "test_guide", "test_hostile", "test_kernels", "test_kill", "test_lab",
               "test_learner", "test_live", "test_matmul16", "test_mutants", "test_numbering", "test_nvrtc",
               "test_pages", "test_portable", "test_rules")  # fmt: skip
PLANTED = "planted"
UNSET = re.compile(r"(OPENBLAS|GOTO|OMP|MKL|NPY)_")
PROBE = """
import json, threadpoolctl
from numpy._core._multiarray_umath import __cpu_baseline__, __cpu_dispatch__, __cpu_features__
blas = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
print(json.dumps({
    "blas": [pool.get("architecture") for pool in blas],
    "threads": [pool["num_threads"] for pool in blas],
    "dispatch": list(__cpu_dispatch__),
    "features": sorted(name for name, there in __cpu_features__.items() if there),
}))
"""


@dataclass(frozen=True)
class Setting:
    """One simulated processor: BLAS kernels, widest vectors and number of threads."""

    kernels: str
    vectors: str
    threads: int

    def __str__(self):
        return f"{self.kernels}, {self.vectors}, {self.threads}"

    @property
    def slow(self) -> bool:
        """Return whether this setting takes several times as long as the other settings."""
        return (self.kernels, self.vectors) == SLOW

    def variables(self, dispatch: list[str]) -> dict[str, str]:
        """Return the environment variables. dispatch: the groups of instructions for which NumPy has loops."""
        wide = [name for name in dispatch if _wide(name)]
        off = {"AVX-512": [], "AVX2": wide, "SSE4": dispatch}[self.vectors]
        # Let idle threads sleep instead of spinning, which saves 10% to 26% of processor time if there are fewer cores.
        idle = {"OPENBLAS_THREAD_TIMEOUT": "4"}
        chosen = {"OPENBLAS_CORETYPE": self.kernels, "OMP_NUM_THREADS": str(self.threads)} | idle
        return chosen | ({"NPY_DISABLE_CPU_FEATURES": " ".join(off)} if off else {})


def _wide(name):
    """Return whether NumPy's name for a group of instructions means AVX-512."""
    return name.startswith(("AVX512", "X86_V4"))


def settings(kernels: list[str], every: bool = False) -> list[Setting]:
    """Return all settings, or one per pair of kernels and vectors.

    With one setting per pair, each number of threads occurs with all kernels and with all vectors.
    """
    if every:
        return [Setting(k, v, t) for k in kernels for v in VECTORS for t in THREADS]
    return [Setting(k, v, THREADS[(i + j) % 3]) for i, k in enumerate(kernels) for j, v in enumerate(VECTORS)]


def on_x86() -> bool:
    """Return whether this is an x86-64 processor, the family that the settings simulate."""
    return platform.machine() in ("x86_64", "AMD64")


def clean_environment() -> dict[str, str]:
    """Return the environment variables, except variables that choose kernels, loops or threads."""
    kept = {name: value for name, value in os.environ.items() if not UNSET.match(name)}
    path = [str(SIMULATED), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(path)}


def probe(variables: dict[str, str]) -> dict | None:
    """Return the kernels, threads and loops that NumPy uses with these variables; None if NumPy does not start."""
    environment = clean_environment() | variables
    run = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=False)
    return json.loads(run.stdout) if run.returncode == 0 else None


def kernels_here(own: dict) -> list[str]:
    """Return the sets of BLAS kernels that this processor can run, and print the reason for each set left out."""
    found = {}
    for name, needs in KERNELS.items():
        if needs not in own["features"]:
            print(f"left out: BLAS kernels {name}: they need {needs}, which this processor does not have")
            continue
        used = (probe({"OPENBLAS_CORETYPE": name}) or {"blas": ["none"]})["blas"]
        if used == [name]:
            found[name] = name
        else:
            print(f"left out: BLAS kernels {name}: this BLAS uses {', '.join(map(str, used))} instead")
    return list(found)


def why_not(setting: Setting, own: dict) -> str:
    """Return the reason why NumPy cannot run with a setting on this machine, "" if it can; this may start a process."""
    groups = set(own["dispatch"]) & set(own["features"])
    if setting.vectors == "AVX-512" and not any(map(_wide, groups)):
        return "NumPy has no AVX-512 loops for this processor"
    if setting.vectors == "AVX2" and not any(not _wide(name) for name in groups):
        return "NumPy has no AVX2 loops for this processor"
    found = probe(setting.variables(own["dispatch"]))
    if found is None:
        return "NumPy does not start"
    if set(found["threads"]) != {setting.threads}:
        return f"BLAS would use {', '.join(map(str, found['threads']))} threads"
    left = set(own["dispatch"]) & set(found["features"])
    want = {"AVX-512": groups, "AVX2": {n for n in groups if not _wide(n)}, "SSE4": set()}[setting.vectors]
    return "" if left == want else f"NumPy would use {', '.join(sorted(left)) or 'SSE4'}"


def numeric_tests() -> list[Path]:
    """Return the test files whose result may depend on rounding."""
    return [p for p in sorted((ROOT / "tests").rglob("test_*.py")) if not p.stem.startswith(NOT_NUMERIC)]


def with_tests(notebooks: list[Path]) -> list[Path]:
    """Return the notebooks, and the test files of their chapters."""
    tests = [ROOT / "tests" / "chapters" / f"test_chapter_{path.stem.split('_')[0]}.py" for path in notebooks]
    return [*notebooks, *(test for test in tests if test.exists())]


def sample() -> tuple[list[Path], int]:
    """Choose notebooks for CI: notebooks whose code has changed recently, and some notebooks of a third of the rest.

    Returns the notebooks and the number of commits, which selects the third, so that each commit tests a different one.
    Ends the program in a shallow clone, where this number is unknown.
    """
    if _git("rev-parse", "--is-shallow-repository") == "true":
        sys.exit("--sample must run in a clone with the whole history, got a shallow clone: git fetch --unshallow")
    count = int(_git("rev-list", "--count", "HEAD"))
    before = int(_git("log", "-1", "--format=%ct")) - 3600 * HOURS
    base = _git("rev-list", "-1", f"--before={before}", "HEAD")
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    others = [path for path in notebooks if base and _code(path.read_text("utf-8")) == _code_then(base, path)]
    turning = [path for path in others if others.index(path) % 3 == count % 3]
    return chosen([path for path in notebooks if path not in others], turning, count), count


def chosen(changed: list[Path], others: list[Path], turn: int, most: int = SAMPLE) -> list[Path]:
    """Return at most `most` notebooks, changed ones first; if too many changed, the integer `turn` selects some."""
    begin = turn * most % len(changed) if len(changed) > most else 0
    return sorted([*changed[begin:], *changed[:begin], *others][:most])


def _code(notebook: str) -> list:
    return [cell["source"] for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]


def _code_then(commit: str, path: Path) -> list | None:
    try:
        return _code(_git("show", f"{commit}:{path.relative_to(ROOT).as_posix()}"))
    except subprocess.CalledProcessError:  # the notebook did not exist
        return None


def unlike(own: dict, runnable: list[Setting], turn: int) -> list[Setting]:
    """Return two settings with kernels and vectors that this machine does not use; the integer `turn` selects them."""
    groups = set(own["dispatch"]) & set(own["features"])
    width = "AVX-512" if any(map(_wide, groups)) else "AVX2" if groups else "SSE4"
    fast = [s for s in runnable if not s.slow]
    other = [s for s in fast if s.kernels not in own["blas"] and s.vectors != width]
    apart = [s for s in other if s.kernels != other[turn % len(other)].kernels]
    return [other[turn % len(other)], apart[turn % len(apart)]] if apart else other[:1]


def _git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@dataclass
class Outcome:
    """The result of one setting: failed cells and tests, number of passes, minutes, and the reason if pytest broke."""

    cells: list[str]
    tests: list[str]
    passed: int
    minutes: float
    broken: str = ""


def run(setting: Setting, paths: list[Path], dispatch: list[str], jobs: int) -> Outcome:
    """Run pytest under a setting; the output of pytest goes to _build/portable."""
    name = re.sub(r"\W+", "-", str(setting))
    report, log, began = LOGS / f"{name}.xml", LOGS / f"{name}.log", time.perf_counter()
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-v", "-n", str(jobs), "--dist", "loadscope", "--color=no"]
    command += ["-k", f"not {PLANTED}", "-pno:cacheprovider", f"--junitxml={report}"]
    command += ["--nbval", "--nbval-current-env", "--nbval-kernel-startup-timeout=300"]
    command += ["--nbval-sanitize-with=nanoeuler_book/nbval_sanitize.cfg"]
    command += map(str, paths)
    with open(log, "w") as file:
        environment = clean_environment() | setting.variables(dispatch)
        code = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False
        ).returncode
    cells, tests, passed = [], [], 0
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
    for case in cases:
        place = f"{case.get('classname', '')}::{case.get('name')}"
        if case.find("failure") is None and case.find("error") is None:
            passed += case.find("skipped") is None
        else:
            (cells if re.search(r"(^|::)Cell \d+$", place) else tests).append(place)
    broken = f"pytest ended with {code}: {log}" if code not in (0, 1) or not passed else ""
    return Outcome(cells, tests, passed, (time.perf_counter() - began) / 60, broken)


def processes(jobs: int, runnable: list[Setting]) -> dict[Setting, int]:
    """Return the number of processes for each setting, at least two (or `jobs`); the slow setting comes first.

    If there are enough processes for all settings at once, they are divided, and the slow setting gets three shares.
    """
    weights = {s: 3 if s.slow else 1 for s in sorted(runnable, key=lambda s: not s.slow)}
    return {s: max(min(2, jobs), jobs * weight // sum(weights.values())) for s, weight in weights.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.release.portable", description=__doc__.split("\n")[0])
    parser.add_argument(
        "paths", nargs="*", type=Path, help="notebooks or tests (default: all notebooks and numeric tests)"
    )
    parser.add_argument("--all", action="store_true", help="use every setting")
    parser.add_argument(
        "--sample", action="store_true", help="run two settings and a part of the notebooks, as CI does"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="number of processes in all (default: number of cores)"
    )
    options = parser.parse_args()
    for path in options.paths:
        if not path.exists():
            parser.error(f"{path}: no such file, expected a notebook or a test")

    own = probe({})
    print(f"this machine: {platform.machine()}, BLAS kernels {', '.join(map(str, own['blas']))}")
    if not on_x86():
        print("this machine cannot run the settings, which simulate x86-64 processors")
        return 1
    runnable = []
    for setting in settings(kernels_here(own), options.all):
        if reason := why_not(setting, own):
            print(f"left out: {setting}: {reason}")
        else:
            runnable.append(setting)
    notebooks = [path for path in options.paths if path.suffix == ".ipynb"]
    paths = [*with_tests(notebooks), *(path for path in options.paths if path.suffix != ".ipynb")]
    if options.sample:
        notebooks, turn = sample()
        paths, runnable = with_tests(notebooks), unlike(own, runnable, turn)
    elif not paths:
        paths = [*sorted((ROOT / "notebooks").glob("*.ipynb")), *numeric_tests()]
    if not runnable:
        print("this machine can run none of the settings")
        return 1

    LOGS.mkdir(parents=True, exist_ok=True)
    each = processes(options.jobs, runnable)
    print(f"{len(runnable)} settings, {len(paths)} files\n")
    print("| BLAS kernels, NumPy's vectors, threads | passed | cells failed | tests failed | minutes |")
    print("|:--|--:|--:|--:|--:|", flush=True)
    outcomes = {}
    with ThreadPoolExecutor(max(1, options.jobs // min(each.values()))) as pool:
        jobs = {pool.submit(run, s, paths, own["dispatch"], count): s for s, count in each.items()}
        for job in as_completed(jobs):
            setting, found = jobs[job], job.result()
            outcomes[setting] = found
            counts = f"{found.passed} | {len(found.cells)} | {len(found.tests)} | {found.minutes:.1f}"
            print(f"| {setting} | {counts} |{' ' + found.broken if found.broken else ''}", flush=True)
    failed = {place for found in outcomes.values() for place in (*found.cells, *found.tests)}
    for place in sorted(failed):
        where = [str(s) for s, found in outcomes.items() if place in found.cells + found.tests]
        print(f"\n{place}\n    under {len(where)} of {len(runnable)}: {'; '.join(where)}")
    print(f"\n{len(failed)} cells and tests failed under some setting; logs in {LOGS}")
    return int(bool(failed) or any(found.broken for found in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
