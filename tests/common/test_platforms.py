"""Test what other systems do: a simulated Windows, Git for Windows, compilers for arm64, a BLAS that starts threads."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nanoeuler_lib
from cudacheck import compiler
from cudacheck.source import prepare
from nanoeuler_lib import cuda, files
from nanoeuler_lib.errors import NanoEulerError

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = "konigsberg\ncudacheck\nnanoeuler_lib\nnanoeuler_book"
SHAPE = "--vocab-size 258 --dim 16 --heads 2 --kv-heads 1 --layers 1 --context 12 --predict 2 --batch 4 --warmup 1"
LINES = f"""generate "Käthe sent" --tokens 4
corpus konigsberg --bytes 40000 --out town.txt
train --data town.txt --run run {SHAPE} --steps 4 --valid-every 2 --save-every 1
train --resume run --steps 5
progress "{ROOT}/notebooks"
"""


@pytest.mark.full
def test_the_command_works_on_a_simulated_windows(tmp_path):
    command = [sys.executable, ROOT / "tests/common/windows.py", PACKAGES, LINES]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "cp1252", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Käthe sent" in done.stdout and "run: done, 5 steps" in done.stderr + done.stdout
    assert [name for name in os.listdir(tmp_path / "run") if name.startswith(".")] == []


def test_a_failed_write_on_windows_leaves_the_old_file(tmp_path, monkeypatch):
    def refuse(*paths):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a").write_text("old", "utf-8")
    monkeypatch.setattr(files, "fcntl", None)
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(NanoEulerError, match="Permission denied"):
        files.write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text("utf-8") == "old" and os.listdir(tmp_path) == ["a"]


def test_a_clone_by_git_for_windows_has_the_same_bytes(tmp_path):
    """Commit this tree's files of some kinds, and clone them as Git for Windows does by default."""
    names = [".gitattributes", "tools/setup.sh", "Makefile", "book/_static/story.png"]
    names += [str(p.relative_to(ROOT)) for p in ROOT.glob("nanoeuler_lib/pretrained/konigsberg-small/*")]
    for name in names:
        (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "here" / name)
    git = ["git", "-c", "core.autocrlf=true", "-c", "core.safecrlf=false", "-c", "user.name=a", "-c", "user.email=b"]
    for words in ("init -q here", "-C here add .", "-C here commit -qm a", "clone -qc core.autocrlf=true here there"):
        subprocess.run([*git, *words.split()], cwd=tmp_path, check=True, capture_output=True)
    for name in names:
        assert (tmp_path / "there" / name).read_bytes() == (ROOT / name).read_bytes(), name
    assert os.access(tmp_path / "there/tools/setup.sh", os.X_OK)
    nanoeuler_lib.load(tmp_path / "there/nanoeuler_lib/pretrained/konigsberg-small")


BYTES = 'extern "C" __global__ void widen(const char* x, int* y) { y[threadIdx.x] = x[threadIdx.x]; }'


@pytest.mark.compiler
@pytest.mark.parametrize("checked", [True, False])
def test_char_is_signed_even_if_the_compiler_has_another_default(monkeypatch, checked):
    """Give the compiler the default of Linux on arm64."""
    monkeypatch.setenv("NANOEULER_CXX", " ".join([*compiler.find_compiler(), "-funsigned-char"]))
    compiler.find_compiler.cache_clear()
    x, y = np.array([-128, -2, 0, 127], np.int8), np.zeros(4, np.int32)
    cuda.module(BYTES, where="cpu", checked=checked)["widen"](1, 4, (x, y))
    monkeypatch.undo()
    compiler.find_compiler.cache_clear()
    assert y.tolist() == x.tolist()


@pytest.mark.compiler
@pytest.mark.parametrize("machine, native", [("aarch64", "-mcpu=native"), ("arm64", "-mcpu=native"), ("x86_64", None)])
def test_arm_gets_its_own_flags(monkeypatch, machine, native):
    """Collect the flags of a kernel and of the runtime; tools/release/arm.py runs kernels compiled with them."""
    made = []
    monkeypatch.setattr(compiler.platform, "machine", lambda: machine)
    monkeypatch.setattr(compiler, "_is_zig", lambda command: False)
    monkeypatch.setattr(compiler, "_cached", lambda file: None)
    monkeypatch.setattr(compiler, "_make", lambda *given: made.append(given[5:7]))
    for checked in (True, False):
        compiler.build(prepare("widen.cu", BYTES), "", checked)
    for flags, runtime_flags in made:
        assert ("-mbranch-protection=none" in flags) == ("-mbranch-protection=none" in runtime_flags) == bool(native)
    fast = made[1][0]
    assert (native or "-march=native") in fast and len({"-mcpu=native", "-march=native"} & {*fast}) == 1


BUSY = """
import nanoeuler_lib, time
import numpy as np
from nanoeuler_lib.machine import one_blas_thread
x = np.ones((1500, 1500), np.float32)
with one_blas_thread():
    x @ x
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(10):
        x @ x
    print((time.process_time() - processor) / (time.perf_counter() - wall))
"""


def test_blas_obeys_when_it_is_limited_to_one_thread():
    """On an idle machine with more cores, a BLAS that does not obey takes more processor time than time."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", BUSY], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert float(done.stdout) < 1.25, done.stderr
