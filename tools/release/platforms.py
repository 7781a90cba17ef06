"""Test the CPU runtime of the kernels with each compiler on this machine.

    python -m tools.release.platforms                        # every g++, Clang and ziglang on this machine
    python -m tools.release.platforms --cxx clang++-19       # only this compiler; can be repeated
    python -m tools.release.platforms --python ./emulated --how "run under qemu"    # an interpreter under an emulator

Prints rows for data/platforms/compilers.csv, which the status page shows, and exits with 1 if a test fails. If ziglang
is installed, every kernel is also built for macOS, in the checked and the fast form; rows for macOS count builds.
"""

import argparse
import csv
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[2]
OF_CUDA = ("runtime", "checker", "corpus", "half", "functions", "matrix", "profile")
TESTS = [
    *(f"tests/cuda/test_cuda_{name}.py" for name in OF_CUDA),
    "tests/cuda/test_kernels.py",
    "tests/cuda/test_learner.py",
]
CUDA = ROOT / "cudacheck"
FIRST = """
import time
import numpy as np
from nanoeuler_lib import cuda
start = time.perf_counter()
x = np.ones(1000, np.float32)
cuda.module(cuda.KERNELS / "vector_add.cu", where="cpu")["vector_add"](4, 256, (x, x.copy(), x.copy(), 1000))
print(f"{time.perf_counter() - start:.2f}")
"""
TARGETS = ("aarch64-macos", "x86_64-macos")


def compilers() -> list[str]:
    """Return the commands of all compilers on this machine, each version once."""
    found = {}
    for name in [f"{name}{tail}" for name in ("g++", "clang++") for tail in ("", *(f"-{n}" for n in range(9, 30)))]:
        if path := shutil.which(name):
            found.setdefault(os.path.realpath(path), name)
    zig = subprocess.run([sys.executable, "-m", "ziglang", "version"], capture_output=True, check=False)
    return [*found.values(), *([f"{sys.executable} -m ziglang c++"] if zig.returncode == 0 else [])]


def version(compiler: str) -> str:
    """Return a compiler's name and version, such as `clang 19.1.7`."""
    text = subprocess.run([*compiler.split(), "--version"], capture_output=True, text=True, check=True).stdout
    if "ziglang" in compiler:
        command = [*compiler.split()[:-1], "version"]
        zig = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        return f"ziglang {zig} (clang {re.search(r'version ([0-9.]+)', text)[1]})"
    name = "clang" if "clang" in text else "g++"
    return f"{name} {re.search(r'[0-9]+[.][0-9.]+', text)[0]}"


def row(compiler: str, python: str, how: str) -> list:
    """Run the tests with an empty cache of kernels; return a row of data/platforms/compilers.csv."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "NANOEULER_CXX": compiler,
            "NANOEULER_DEVICE": "cpu",
            "XDG_CACHE_HOME": cache,
            "OPENBLAS_NUM_THREADS": "1",
        }
        options = {"env": environment, "cwd": ROOT, "capture_output": True, "text": True, "check": False}
        cold = subprocess.run([python, "-c", FIRST], **options)
        run = subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS], **options)
        machine = subprocess.run([python, "-c", "import platform; print(platform.machine())"], **options).stdout
    summary = run.stdout.strip().split("\n")[-1]
    counts = [(re.search(rf"(\d+) {what}", summary) or [0, 0])[1] for what in ("passed", "failed", "skipped")]
    for line in run.stdout.split("\n"):
        if line.startswith(("FAILED", "ERROR")):
            print(line, file=sys.stderr)
    if cold.returncode:
        print(cold.stderr.strip().split("\n")[-1], file=sys.stderr)
    first = cold.stdout.strip() + " s" if cold.returncode == 0 else "fails"
    passed, failed, skipped = counts
    where = f"{platform.system()} {machine.strip()}"
    return [version(compiler), where, how, passed, failed, skipped, first, date.today()]


def built(compiler: str, target: str) -> list:
    """Compile and link the runtime with each kernel for a different machine; return a row of compilers.csv.

    compiler: the command of ziglang. target: one of TARGETS. Each kernel is built in the checked and the fast form.
    """
    from cudacheck import compiler as c
    from cudacheck.source import prepare, signatures
    from nanoeuler_lib.cuda import KERNELS

    zig = [*compiler.split(), "-target", target]
    texts, passed = {file.name: file.read_text("utf-8") for file in sorted(KERNELS.glob("*.cu"))}, 0
    with tempfile.TemporaryDirectory() as folder:
        source, kernel, runtime, library = (str(Path(folder, n)) for n in ("k.cpp", "k.o", "r.o", "k.dylib"))
        for flags, defines in ((c.checked_flags(tuple(compiler.split())), ["-DCHECKED"]), (c.FAST, [])):
            made = [
                *zig,
                *c.RUNTIME,
                *c.runtime_symbols(),
                *defines,
                "-fno-sanitize=undefined",
                "-c",
                str(CUDA / "runtime.cpp"),
                "-o",
                runtime,
            ]
            subprocess.run(made, check=True)
            for name, text in texts.items():
                exports = "\n".join(f"NANOEULER_EXPORT_KERNEL({i}, {s.name})" for i, s in enumerate(signatures(text)))
                prepared = prepare(name, text, KERNELS).prepared
                Path(source).write_text(f'#include "device.h"\n{prepared}\n{exports}\n', "utf-8")
                include = [f"-I{c.INCLUDE / 'cpu'}", f"-I{c.INCLUDE}"]
                compiled = subprocess.run([*zig, *c.COMMON, *flags, *include, "-c", source, "-o", kernel], check=False)
                linked = subprocess.run([*zig, "-shared", kernel, runtime, "-o", library], check=False)
                passed += compiled.returncode == linked.returncode == 0
    system = "macOS arm64" if target.startswith("aarch64") else "macOS x86_64"
    return [version(compiler), system, "built only", passed, 2 * len(texts) - passed, "", "", date.today()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.release.platforms", description=__doc__.split("\n")[0])
    parser.add_argument("--cxx", action="append", help="command of a compiler (default: all on this machine)")
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs the tests")
    parser.add_argument("--how", default="run", help="text of the column `how`, such as 'run under qemu'")
    options = parser.parse_args()
    table, good = csv.writer(sys.stdout, lineterminator="\n"), True
    table.writerow(["compiler", "machine", "how", "passed", "failed", "skipped", "first kernel", "date"])
    for compiler in options.cxx or compilers():
        builds = TARGETS if "ziglang" in compiler and options.python == sys.executable else ()
        for found in (row(compiler, options.python, options.how), *(built(compiler, t) for t in builds)):
            table.writerow(found)
            sys.stdout.flush()
            good &= int(found[3]) > 0 and int(found[4]) == 0
    sys.exit(not good)


if __name__ == "__main__":
    main()
