"""A library that pip has installed, and a chapter in an empty folder: no clone of the repository is near."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_chapter_reads_its_results_from_an_installed_library(tmp_path):
    """In an empty folder, with a virtual environment that has the wheel; all other packages are the tests' own."""
    source, venv, empty = tmp_path / "source", tmp_path / "venv", tmp_path / "empty"
    for name in ("nanoeuler_lib", "data/results"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    empty.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = next(path for path in venv.glob("*/python*") if path.stem == "python")
    pip = [sys.executable, "-m", "pip", "--quiet"]
    wheel = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, source]
    subprocess.run([*pip, *wheel], check=True)
    subprocess.run([*pip, "--python", python, "install", "--no-deps", *tmp_path.glob("*.whl")], check=True)

    def run(code: str) -> subprocess.CompletedProcess:
        env = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}
        return subprocess.run([python, "-c", code], cwd=empty, env=env, capture_output=True, text=True)

    cells = json.loads((ROOT / "notebooks/18_what_the_model_knows.ipynb").read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    reads = next(text for text in code if "results(" in text)
    done = run("\n".join([*code[:2], reads, "print(plots.__file__)"]))
    *_, models, file = done.stdout.splitlines() or [done.stderr]
    assert models.startswith("5 models") and file.startswith(str(venv)), done.stdout + done.stderr
    done = run("from nanoeuler_lib.practice import results\nresults('ch99')")
    assert "NanoEulerError: the stored result must be a file of data/results" in done.stderr
    assert "pip install" in done.stderr and "FileNotFoundError" not in done.stderr
