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
from nanoeuler_lib import cuda

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = "konigsberg cudacheck nanoeuler_lib nanoeuler_book"
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
    assert sorted(os.listdir(tmp_path / "run")) == ["checkpoints", "lock", "log.jsonl", "run.json", "settings.toml"]


def test_a_clone_by_git_for_windows_has_the_same_bytes(tmp_path):
    model = "nanoeuler_lib/pretrained/konigsberg-small"
    names = [".gitattributes", "tools/setup.sh", "Makefile", "book/_static/story.png"]
    names += [f"{model}/{name}" for name in os.listdir(ROOT / model)]
    for name in names:
        os.makedirs((tmp_path / "here" / name).parent, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "here" / name)
    git = ["git", "-c", "core.autocrlf=true", "-c", "core.safecrlf=false", "-c", "user.name=a", "-c", "user.email=b"]
    for words in ("init -q here", "-C here add .", "-C here commit -qm a", "clone -qc core.autocrlf=true here there"):
        subprocess.run([*git, *words.split()], cwd=tmp_path, check=True, capture_output=True)
    for name in names:
        assert (tmp_path / "there" / name).read_bytes() == (ROOT / name).read_bytes(), name
    assert os.access(tmp_path / "there/tools/setup.sh", os.X_OK)
    nanoeuler_lib.load(tmp_path / "there" / model)


BYTES = 'extern "C" __global__ void widen(const char* x, int* y) { y[threadIdx.x] = x[threadIdx.x]; }'


@pytest.mark.compiler
@pytest.mark.parametrize("checked", [True, False])
def test_char_is_signed_even_if_the_compiler_has_another_default(monkeypatch, checked):
    command = (*compiler.find_compiler(), "-funsigned-char")  # the default of Linux on arm64
    monkeypatch.setattr(compiler, "find_compiler", lambda: command)
    x, y = np.array([-128, -2, 0, 127], np.int8), np.zeros(4, np.int32)
    cuda.module(BYTES, where="cpu", checked=checked)["widen"](1, 4, (x, y))
    assert y.tolist() == x.tolist()


@pytest.mark.compiler
@pytest.mark.parametrize("machine, native", [("aarch64", "-mcpu=native"), ("arm64", "-mcpu=native"), ("x86_64", None)])
def test_arm_gets_its_own_flags(monkeypatch, machine, native):
    """Collect the flags of a kernel and of the runtime."""
    made = []
    monkeypatch.setattr(compiler.platform, "machine", lambda: machine)
    for name in ("_is_zig", "_cached"):
        monkeypatch.setattr(compiler, name, lambda given: None)
    monkeypatch.setattr(compiler, "_make", lambda *given: made.append(given[5:7]))
    for checked in (True, False):
        compiler.build(prepare("widen.cu", BYTES), "", checked)
    assert all(("-mbranch-protection=none" in flags) == bool(native) for pair in made for flags in pair)
    assert {"-mcpu=native", "-march=native"} & {*made[1][0]} == {native or "-march=native"}


BUSY = """
import nanoeuler_lib.machine, time, numpy as np
x = np.ones((1500, 1500), np.float32)
with nanoeuler_lib.machine.one_blas_thread():
    wall, processor = time.perf_counter(), time.process_time()
    x @ x @ x @ x
    print((time.process_time() - processor) / (time.perf_counter() - wall))
"""


def test_blas_obeys_when_it_is_limited_to_one_thread():
    environment = {name: value for name, value in os.environ.items() if "_THREADS" not in name}
    done = subprocess.run([sys.executable, "-c", BUSY], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert float(done.stdout) < 1.25, done.stderr  # more where several threads share idle cores
