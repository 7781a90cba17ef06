"""Store the results of experiments that take too long for a notebook.

A script `experiments/chNN.py` (run by `make results CH=NN`) ends with

    config = {"steps": 2000, "seeds": [0, 1, 2, 3, 4]}
    save("ch15", config, [{"heads": 4, "seed": 0, "bits_per_byte": ...}, ...])

and the chapter reads it with `results("ch15")` (nanoeuler_book/checks.py).
"""

import json
import multiprocessing
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from nanoeuler_lib.machine import cores, one_blas_thread

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "data" / "results"


def run_all(name: str, run: Callable[..., dict], jobs: Iterable[tuple]) -> list[dict]:
    """Run all jobs, one process per core and one BLAS thread each, and return their rows in the order of the jobs.

    Each finished row is kept in _build/<name>, so an experiment can be stopped and started again. run: a function of a
    module, called with the names and numbers of a job.
    """
    with multiprocessing.get_context("spawn").Pool(cores()) as pool:
        return pool.map(partial(_kept, name, run), jobs, chunksize=1)


def _kept(name: str, run: Callable[..., dict], job: tuple) -> dict:
    path = ROOT / "_build" / name / (re.sub(r"\W+", "_", "_".join(map(str, job))) + ".json")
    if not path.is_file():
        with one_blas_thread():
            text = json.dumps(run(*job))
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".partial")
        unfinished.write_text(text, "utf-8")
        os.replace(unfinished, path)
        print(text[:200], flush=True)
    return json.loads(path.read_text("utf-8"))


def save(name: str, config: dict, rows: list[dict], folder: Path = FOLDER, made_on: dict | None = None) -> Path:
    """Write data/results/<name>.json with the rows, the config, the commit, the date and the machine; return its path.

    made_on: the machine that computed the rows, if it is not this machine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    result = {
        "name": name,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": made_on or machine(),
        "config": config,
        "rows": rows,
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")
    os.replace(partial, path)
    print(f"{path}: {len(rows)} rows")
    return path


def commit() -> str:
    """Return the commit, with "-dirty" if there are uncommitted changes; "unknown" outside a repository.

    Set NANOEULER_COMMIT to the commit on a machine that has the files of a commit without the git history.
    """
    if given := os.environ.get("NANOEULER_COMMIT"):
        return given
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine() -> dict:
    """Describe the parts of this machine that a reader must know to judge a timing."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": gpu_name(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def gpu_name() -> str | None:
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceProperties(0)["name"].decode() if cupy.cuda.is_available() else None
    except ImportError:
        return None
