"""A library that pip has installed, and a chapter in an empty folder: no clone of the repository is near."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Runs Python where the wheel is installed, in an empty folder; all other packages are the tests' own."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("nanoeuler_lib", "data/results"):
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    (folder / "empty").mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = next(p for p in folder.glob("venv/*/python*") if p.stem == "python")
    pip, others = [sys.executable, "-m", "pip", "--quiet"], {"PYTHONPATH": sysconfig.get_path("purelib")}
    wheel = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder / "source"]
    subprocess.run([*pip, *wheel], check=True)
    subprocess.run([*pip, "--python", python, "install", "--no-deps", *folder.glob("*.whl")], check=True)

    def run(code: str) -> subprocess.CompletedProcess:
        options = dict(cwd=folder / "empty", env=os.environ | others, capture_output=True, text=True)
        return subprocess.run([python, "-c", code], **options)

    return run


def test_a_chapter_reads_its_results_from_an_installed_library(installed):
    cells = json.loads((ROOT / "notebooks/18_what_the_model_knows.ipynb").read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    library, imports, reads = *code[:2], next(text for text in code if "results(" in text)
    done = installed("\n".join([library, imports, reads, "print(plots.__file__)"]))
    *_, models, file = done.stdout.splitlines() or [done.stderr]
    assert models.startswith("5 models") and not file.startswith(str(ROOT)), done.stdout + done.stderr


def test_a_result_that_is_nowhere_is_told_in_a_sentence(installed):
    done = installed("from nanoeuler_lib.practice import results\nresults('ch99')")
    assert "NanoEulerError: the stored result must be a file of data/results" in done.stderr
    assert "pip install" in done.stderr and "FileNotFoundError" not in done.stderr
