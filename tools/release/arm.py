"""Run numeric tests, the kernels and a chapter on an emulated arm64 Linux, on a Debian machine with x86-64.

    apt-get install --no-install-recommends qemu-user-static mmdebstrap g++-aarch64-linux-gnu
    python -m tools.release.arm                                        # TESTS with chapter A1, 9 minutes
    python -m tools.release.arm tests/text notebooks/05_checking_gradients.ipynb

The folder _build/arm (about 1 GB) keeps what is fetched: an arm64 Python of Debian, and the wheels of requirements.txt.
Each Python process runs under QEMU. The compiler is a cross compiler that runs without QEMU, and it signs return
addresses, as the default of some distributions does. QEMU on x86-64 orders memory as x86-64 does, so a mistake in the
order of memory cannot show.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "_build/arm"
TESTS = (
    "tests/common/test_platforms.py",
    "tests/generation/test_generate.py",
    "notebooks/A1_cpu_runtime.ipynb",
    "--deselect=tests/common/test_platforms.py::test_blas_obeys_when_it_is_limited_to_one_thread",  # many minutes
)
NEEDED = {
    "qemu-aarch64-static": "qemu-user-static",
    "mmdebstrap": "mmdebstrap",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
}
SYSTEM = ("--arch=arm64", "--variant=extract", "--include=python3,libstdc++6,libgomp1,ca-certificates")
# NumPy's matrix product gives warnings with SME under QEMU 7.2, and without SVE the emulation is faster.
PROCESSOR = "max,sme=off,sve=off,pauth-impdef=on"
# QEMU starts no further arm64 programs by itself, so each Python process starts others by this script.
EXECUTABLE = "import os, sys\nsys.executable = sys._base_executable = os.environ['ARM_PYTHON']\n"
COMPILER = """#!/bin/bash
# A cross compiler knows no -mcpu=native.
unset PYTHONHOME
exec aarch64-linux-gnu-g++ -march=armv8.5-a -mbranch-protection=standard "${@/-mcpu=native/-DCROSS}"
"""


def main(tests: list[str]) -> int:
    """Fetch what is missing, run the tests under QEMU, and return the exit status of pytest."""
    missing = [package for command, package in NEEDED.items() if not shutil.which(command)]
    if missing:
        print(f"these packages must be installed: apt-get install {' '.join(missing)}", file=sys.stderr)
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    python = system()
    wheels(python.name.removeprefix("python"))
    emulated = scripts(python)
    rules = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with=nanoeuler_book/nbval_sanitize.cfg"]
    rules += ["--nbval-kernel-startup-timeout=900", "--nbval-cell-timeout=900"]
    command = [emulated, "-m", "pytest", "-q", "-p", "no:cacheprovider", *rules, *(tests or TESTS)]
    environment = os.environ | {
        "NANOEULER_CXX": str(FOLDER / "g++-arm64"),
        "NANOEULER_CHECK_SECONDS": "900",
        "OPENBLAS_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(FOLDER / "cache"),
    }
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def system() -> Path:
    """Unpack an arm64 Debian, unless it is there, and return its Python."""
    root = FOLDER / "system"
    if not root.exists():
        partial = FOLDER / "system.partial"
        shutil.rmtree(partial, ignore_errors=True)
        subprocess.run(["mmdebstrap", *SYSTEM, "trixie", partial], check=True)
        for name in ("lib", "bin"):  # the packages are unpacked only, so nothing has made these links
            if not (partial / name).exists():
                (partial / name).symlink_to(f"usr/{name}")
        partial.rename(root)
    return next(path for path in root.glob("usr/bin/python3.*") if path.name[8:].isdigit())


def wheels(version: str) -> None:
    """Install the arm64 wheels of requirements.txt for a version of Python such as 3.13, unless they are there."""
    if (FOLDER / "site").exists():
        return
    partial = FOLDER / "site.partial"
    shutil.rmtree(partial, ignore_errors=True)
    glibc = [f"--platform=manylinux_2_{minor}_aarch64" for minor in range(17, 35)]
    kind = [f"--python-version={version}", "--implementation=cp", "--only-binary=:all:", *glibc]
    lock = ["--no-deps", "--require-hashes", "--no-compile", "-r", ROOT / "requirements.txt"]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *kind, *lock, "--target", partial], check=True)
    partial.rename(FOLDER / "site")


def scripts(python: Path) -> Path:
    """Write the compiler and the interpreter as scripts, and return the interpreter's."""
    emulated, hooks = FOLDER / "python-arm64", FOLDER / "hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "sitecustomize.py").write_text(EXECUTABLE, "utf-8")
    (FOLDER / "g++-arm64").write_text(COMPILER, "utf-8")
    root = FOLDER / "system"
    text = f"""#!/bin/bash
export PYTHONHOME="{root}/usr" PYTHONPATH="{hooks}:{ROOT}:{FOLDER}/site" ARM_PYTHON="{emulated}"
exec qemu-aarch64-static -cpu {PROCESSOR} -L "{root}" "{python}" "$@"
"""
    emulated.write_text(text, "utf-8")
    for file in (emulated, FOLDER / "g++-arm64"):
        file.chmod(0o755)
    return emulated


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
