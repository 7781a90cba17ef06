"""Run the code cells of chapters in order, without Jupyter or IPython, and print one line per chapter.

    python -m tools.notebooks.run_cells                       # the chapters about the GPU
    python -m tools.notebooks.run_cells 26_tensor_cores       # this one
    python -m tools.notebooks.run_cells --capability 75       # as if the GPU had compute capability 7.5
    NANOEULER_ARCH=80 python -m tools.notebooks.run_cells     # on an H100: without Hopper's instructions

The line says that the chapter ran to its end, or which cell stopped it and how; lines of cells that need a newer GPU
follow. With --capability, the library chooses kernels and precisions for that compute capability, times 10, but they
are compiled for the GPU or the CPU that is there. Exits with 1 if a chapter stopped. The GPU machine needs the packages
that the library imports, and matplotlib.
"""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GPU_CHAPTERS = (
    "23_first_kernels", "24_reductions", "25_matrix_multiplication", "26_tensor_cores", "27_flash_forward",
    "28_flash_backward", "29_gpu_engine", "30_how_fast", "33_many_cards", "A1_cpu_runtime",
)  # fmt: skip
NEEDS = "needs compute capability"


class Shell:
    """What cells use of IPython: magics, a namespace, and `get_ipython`."""

    def __init__(self):
        self.names, self.magics = {"__name__": "__main__", "get_ipython": lambda: self}, {}

    def register_magic_function(self, function, kind: str, name: str | None = None) -> None:
        self.magics[name or function.__name__] = function

    def push(self, names: dict) -> None:
        self.names |= names

    def run(self, source: str, title: str) -> None:
        """Run a cell: its magic, or its Python after loading the extensions that it names."""
        if source.startswith("%%"):
            line, _, cell = source.partition("\n")
            name, _, options = line[2:].partition(" ")
            return self.magics[name](options, cell)
        lines = source.split("\n")
        if "%load_ext nanoeuler_lib.cuda.magic" in lines:
            from nanoeuler_lib.cuda import magic

            magic.load_ipython_extension(self)
        python = "\n".join("" if line.startswith("%") else line for line in lines)
        exec(compile(python, title, "exec"), self.names)


def run(name: str, capability: int | None = None) -> tuple[str, list[str]]:
    """Run a chapter in this process. Returns how it ended, and the lines of cells that need a newer GPU."""
    if capability is not None:
        from nanoeuler_lib.cuda import launch

        launch.capability = lambda: capability
    shell, needs, began = Shell(), [], time.perf_counter()
    cells = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8"))["cells"]
    code = [(number, cell) for number, cell in enumerate(cells) if cell["cell_type"] == "code"]
    for number, cell in code:
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                shell.run("".join(cell["source"]), f"{name}, cell {number}")
        except Exception as error:
            if "raises-exception" not in cell["metadata"].get("tags", ()):
                first = str(error).strip().split("\n")[0]
                return f"cell {number} ({cell['id']}) stopped: {type(error).__name__}: {first}", needs
        needs += [f"cell {number}: {line}" for line in said.getvalue().split("\n") if NEEDS in line]
        close_figures()
    return f"ran to its end: {len(code)} cells, {time.perf_counter() - began:.0f} s", needs


def close_figures() -> None:
    if plots := sys.modules.get("matplotlib.pyplot"):
        plots.close("all")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", default=GPU_CHAPTERS, help="names of notebooks; default: about the GPU")
    parser.add_argument("--capability", type=int, help="compute capability, times 10, reported in place of the GPU's")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        ended, needs = run(options.chapters[0], options.capability)
        print("\n    ".join([f"{options.chapters[0]}: {ended}", *needs]))
        return "ran to its end" not in ended
    stopped = 0
    for name in options.chapters:  # each in a process of its own, as a reader's notebook
        words = [] if options.capability is None else ["--capability", str(options.capability)]
        command = [sys.executable, "-m", "tools.notebooks.run_cells", "--here", name, *words]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"MPLBACKEND": "agg"}, stdout=subprocess.PIPE, text=True
        )
        print(done.stdout.rstrip() or f"{name}: the process ended with {done.returncode}", flush=True)
        stopped += done.returncode != 0
    return bool(stopped)


if __name__ == "__main__":
    sys.exit(main())
