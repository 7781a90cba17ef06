"""Compile a kernel's text to a shared library with the host's C++ compiler, and cache the library by its content."""

import contextlib
import errno
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from cudacheck.complaints import WARNINGS, first_error
from cudacheck.errors import CudaCheckError
from cudacheck.source import Text

HERE = Path(__file__).parent
INCLUDE = HERE / "include"

DAY = 86_400  # seconds
CACHE_BYTES = 1 << 30  # enough for thousands of kernels of 30 to 100 KB

COMMON = [
    "-std=c++17", "-fPIC", "-pthread", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti",
    "-fno-threadsafe-statics", "-ffp-contract=fast",  # as in NVRTC: a * b + c is rounded once if the processor can
    "-fsigned-char",  # as in NVRTC on x86, and as DTYPES says; arm64's default is unsigned
    "-Werror=vla",  # NVRTC has no arrays whose length is known only at run time
]  # fmt: skip
# Checked kernels are compiled without optimisation, so that every access in the text is one access of the machine.
CHECKED = [
    "-O0", "-gdwarf-4", "-g1", "-DCHECKED", "-fno-omit-frame-pointer", "-fstack-protector-strong",
    *(f"-W{name}" for name in WARNINGS),
    "-fno-sanitize=undefined", "-fsanitize=thread",
    "-fsanitize=bounds,alignment,signed-integer-overflow,integer-divide-by-zero,shift",
]  # fmt: skip
# Lines of /proc/cpuinfo that tell what -march=native compiles for, on x86-64 and on arm64.
MODEL = ("model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")
FAST = ["-O2", "-fno-math-errno"]
RUNTIME = "-std=c++17 -O2 -w -fPIC -pthread -fno-exceptions -fno-rtti -fvisibility=hidden".split()


def build(text: Text, exports: str, checked: bool, defines: Sequence[str] = ()) -> Path:
    """Compile a kernel's text to a shared library, unless the cache has the library, and return the library's path.

    exports: lines of C++ that export the kernels to the launcher; checked: compile with the checker; defines: macros,
    "TILE=32". Raises KernelError with the compiler's first error, and CudaCheckError if there is no compiler.
    """
    compiler = find_compiler()
    machine = (_identity(compiler), _processor(), headers())
    flags = [*COMMON, *plain_addresses(), *(checked_flags(compiler) if checked else FAST)]
    # Macros are not passed on the command line, where a macro A or T would change the runtime's own headers.
    macros = "".join("#define " + macro.replace("=", " ", 1) + "\n" for macro in defines)
    runtime_flags = [*RUNTIME, *plain_addresses(), *runtime_symbols(), *(["-DCHECKED"] if checked else [])]
    if not checked and not _is_zig(compiler):  # zig's default is this processor
        flags.append("-mcpu=native" if on_arm() else "-march=native")
    if _is_zig(compiler):  # its own checks are on by default
        runtime_flags.append("-fno-sanitize=undefined")
    runtime = cache_folder() / f"runtime-{_digest(machine, runtime_flags, _runtime_text())}.o"
    library = (
        cache_folder() / f"kernel-{_digest(machine, flags, runtime.name, text.name, text.prepared, macros, exports)}.so"
    )
    if _cached(library):
        return library
    try:
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            main = f'#include "device.h"\n{macros}#include "{text.name}"\n{exports}\n'
            _make(Path(folder), text, main, checked, compiler, flags, runtime_flags, library, runtime)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _disk_full(str(error)) from None
    _prune(cache_folder())
    return library


def _make(
    folder: Path, text: Text, main: str, checked: bool, compiler: tuple[str, ...], flags: list[str],
    runtime_flags: list[str], library: Path, runtime: Path,
) -> None:  # fmt: skip
    """Compile the kernels in `folder`, and move the two compiled files into the cache as `library` and `runtime`."""
    files = (text.name, "main.cpp", "kernel.o", "runtime.o", "library.so")
    kernel_cu, main_cpp, kernel_o, runtime_o, library_so = (str(folder / file) for file in files)
    Path(kernel_cu).write_text(text.prepared + "\n", "utf-8")
    Path(main_cpp).write_text(main, "utf-8")
    include = [f"-I{INCLUDE / 'cpu'}", f"-I{INCLUDE}"]
    running = [_start([*compiler, *flags, *include, "-c", main_cpp, "-o", kernel_o])]
    runtime_missing = not _cached(runtime)
    if runtime_missing:
        running.append(_start([*compiler, *runtime_flags, "-c", str(HERE / "runtime.cpp"), "-o", runtime_o]))
    logs = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        _check_space(folder, logs)
    if error := first_error(text, logs[0], warnings=checked):
        raise error
    if running[0].returncode:
        raise CudaCheckError(f"{text.name} does not compile with {' '.join(compiler)}:\n{logs[0][:2000]}")
    if runtime_missing:
        if running[1].returncode:
            raise CudaCheckError(f"the runtime does not compile with {' '.join(compiler)}:\n{logs[1]}")
        _keep(Path(runtime_o), runtime)
    link = _start([*_linker(compiler), kernel_o, str(runtime), "-o", library_so])
    log = link.communicate()[0]
    if link.returncode:
        _check_space(folder, [log])
        raise CudaCheckError(f"{text.name} does not link with {' '.join(compiler)}:\n{log}")
    _keep(Path(library_so), library)


def _check_space(folder: Path, logs: list[str]) -> None:
    """Raise CudaCheckError if the disk is full, because compilers report a full disk differently or not at all."""
    if any("No space left on device" in log for log in logs) or shutil.disk_usage(folder).free < 1 << 16:
        raise _disk_full("a compiled kernel takes about 100 KB")


def _disk_full(why: str) -> CudaCheckError:
    return CudaCheckError(
        f"disk full: cannot write to {cache_folder()} ({why}); free some space there, or set XDG_CACHE_HOME to another "
        "folder"
    )


@functools.cache
def find_compiler() -> tuple[str, ...]:
    """Return the command of the C++ compiler: $NANOEULER_CXX if set, else the first of g++, clang++ and ziglang.

    Raises CudaCheckError if there is none.
    """
    if chosen := os.environ.get("NANOEULER_CXX"):
        return tuple(chosen.split())
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return (name,)
    if find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "c++")
    raise CudaCheckError(
        "running a kernel on the CPU needs a C++ compiler, found none: install g++ or clang, or `pip install ziglang`"
    )


def checked_flags(compiler: tuple[str, ...]) -> list[str]:
    """Return the compiler flags of a checked kernel: the list CHECKED, and flags that differ between compilers.

    The flags add a call to every basic block, and fill uninitialised local variables with a pattern, which is NaN as a
    float, or -1.7e38 with g++.
    """
    flags = [*CHECKED, "-fsanitize-coverage=trace-pc"]
    is_clang, version = (True, 0) if _is_zig(compiler) else _version(compiler)
    if is_clang:  # by default it drops calls that other calls imply, and the read in s[i] += 1
        flags[-1] += ",bb,no-prune"
        flags += ["-mllvm", "-tsan-instrument-read-before-write=1", "-mllvm", "-tsan-distinguish-volatile=1"]
    else:
        flags += ["--param=tsan-distinguish-volatile=1"]
    if is_clang or version >= 12:
        flags.append("-ftrivial-auto-var-init=pattern")
    if is_clang and (version == 0 or version >= 18):  # filling a gigabyte would take it minutes
        flags.append("-ftrivial-auto-var-init-max-size=40000")
    return flags


def plain_addresses() -> list[str]:
    """Return the flag of arm64 that leaves return addresses unsigned, because the runtime compares those of threads."""
    return ["-mbranch-protection=none"] if on_arm() else []


def on_arm() -> bool:
    """Return whether this processor is an arm64, which Linux calls aarch64."""
    return platform.machine() in ("arm64", "aarch64")


@functools.cache
def _version(compiler: tuple[str, ...]) -> tuple[bool, int]:
    """Return whether a compiler is Clang, and the compiler's major version (0 if unknown)."""
    banner = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout
    number = re.search(r"(\d+)\.\d+\.\d+", banner)
    return "clang" in banner, int(number[1]) if number else 0


def _is_zig(compiler: tuple[str, ...]) -> bool:
    return "ziglang" in compiler or compiler[0].endswith("zig")


def _linker(compiler: tuple[str, ...]) -> list[str]:
    if _is_zig(compiler) and sys.platform == "linux":
        # Call the linker directly: `zig c++` would first build a C library (20 s), which the process already has.
        return [*compiler[:-1], "ld.lld", "-shared", "--eh-frame-hdr"]
    return [*compiler, "-shared", "-pthread", "-lm"]


def _start(command: list[str]) -> subprocess.Popen:
    english = os.environ | {"LC_ALL": "C", "LANGUAGE": ""}  # complaints.py parses English logs
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=english
    )


# ----------------------------------------------------------------------------------------------------------------
# the cache


@functools.cache
def cache_folder() -> Path:
    """Return the folder that caches compiled kernels: $XDG_CACHE_HOME/nanoeuler, by default ~/.cache/nanoeuler.

    A relative path in XDG_CACHE_HOME is ignored, as the XDG specification requires.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(root if os.path.isabs(root) else Path.home() / ".cache", "nanoeuler")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:  # a read-only home: cache only for the life of this process
        return Path(_temporary().name)


def _cached(file: Path) -> Path | None:
    """Return a cached file if it is complete, else None. Its modification time becomes the day of its last use.

    Each cached file ends with a digest of its other bytes, and linkers and loaders ignore the digest. A file
    that a power failure or a full disk has truncated has no valid digest and is compiled again.
    """
    try:
        data = file.read_bytes()
        if hashlib.sha256(data[:-32]).digest() != data[-32:]:
            return None
        if file.stat().st_mtime < time.time() - DAY:
            file.touch()
        return file
    except FileNotFoundError:  # missing, or deleted by another process
        return None


def _keep(built: Path, file: Path) -> Path:
    """Move a built file into the cache atomically, since another process may build the same file."""
    data = built.read_bytes()
    with built.open("ab") as end:
        end.write(hashlib.sha256(data).digest())
    os.replace(built, file)
    return file


def _prune(folder: Path) -> None:
    """Delete files unused for 30 days, then the least recently used files until all take at most CACHE_BYTES.

    Deleting is safe while other processes run: a process can still use a library it has opened, or builds it again.
    """
    size, oldest = 0, time.time() - 30 * DAY
    for file in sorted(folder.glob("*-*.*o"), key=_last_use, reverse=True):
        with contextlib.suppress(FileNotFoundError):  # another process may prune at the same time
            size += file.stat().st_size
            if _last_use(file) < oldest or size > CACHE_BYTES:
                file.unlink()
    for left in folder.glob("tmp*"):  # left by a killed process
        if _last_use(left) < oldest:
            shutil.rmtree(left, ignore_errors=True)


def _last_use(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="nanoeuler-")


@functools.cache
def headers() -> str:
    """Return a digest of the headers in `include`."""
    files = sorted([*INCLUDE.rglob("*.h"), *INCLUDE.rglob("*.cuh")])
    return _digest(*(file.read_text("utf-8") for file in files))


@functools.cache
def runtime_symbols() -> list[str]:
    """Return macros that prefix the names of runtime.cpp, so that a kernel may have a variable called `launch`."""
    names = re.findall(r"^RUNTIME_API [\w ]+?[ *]+([a-z]\w*)\(", _runtime_text(), re.M)
    return [f"-D{name}=nanoeuler_{name}" for name in sorted(set(names))]


@functools.cache
def _runtime_text() -> str:
    return "".join((HERE / name).read_text("utf-8") for name in ("runtime.h", "runtime.cpp", "checker.cpp"))


@functools.cache
def _identity(compiler: tuple[str, ...]) -> tuple:
    path = shutil.which(compiler[0])
    if path is None:
        raise CudaCheckError(f"NANOEULER_CXX must be a command that exists, got {' '.join(compiler)!r}")
    version = os.stat(path)
    return (compiler, os.path.realpath(path), version.st_size, version.st_mtime_ns)


@functools.cache
def _processor() -> str:
    """Return this processor's model and features, because -march=native uses them and machines may share a cache."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8").split("\n\n")[0]
        return "".join(line for line in text.splitlines(True) if line.startswith(MODEL))
    except OSError:  # macOS, where platform.processor() is "arm" for every generation
        if sys.platform == "darwin":
            return subprocess.check_output(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], text=True)
        return platform.processor()


def _digest(*parts) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
