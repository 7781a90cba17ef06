"""Run notebooks in place, and convert them to and from MyST text.

    python -m tools.notebooks.notebook execute notebooks/06_attention.ipynb
    python -m tools.notebooks.notebook text notebooks/06_attention.ipynb        # -> _build/text/06_attention.md
    python -m tools.notebooks.notebook from-text _build/text/06_attention.md    # -> the notebook, executed

Outputs are normalised, so that a second run changes only outputs that differ: timings and the Python version are
removed, and adjacent pieces of a stream are joined. data/runs.json records when and how long the code ran, for the
status page (runs.py).
"""

import argparse
import resource
import sys
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tools.notebooks import runs

ROOT = Path(__file__).resolve().parents[2]
TEXT = ROOT / "_build" / "text"
CELL_SECONDS = 600


def execute(path: Path) -> None:
    """Run a notebook from top to bottom in its own folder; the file is replaced only if no cell failed."""
    notebook = nbformat.read(path, as_version=4)
    took = run(notebook, path.parent)
    text = nbformat.writes(notebook) + "\n"
    changed = text != path.read_text("utf-8")
    if changed:
        path.write_text(text, "utf-8")
    if path.parent == ROOT / "notebooks":
        runs.record(path, *took)
    print(f"{path.name}: {took[0]:.1f} s, {'updated' if changed else 'nothing changed'}")


def run(notebook: nbformat.NotebookNode, folder: Path) -> tuple[float, float]:
    """Run every cell and normalise the notebook. Returns the seconds of wall-clock time, and of processor time."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()  # the kernel's process has ended, so its time is counted
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    normalise(notebook)
    return seconds, sum(after[:2]) - sum(before[:2])  # user time plus system time


def normalise(notebook: nbformat.NotebookNode) -> None:
    """Remove the metadata that differs between runs and machines."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["kernelspec"] = {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    }
    notebook.metadata.get("language_info", {}).pop("version", None)
    notebook.metadata.get("jupytext", {}).pop("text_representation", None)
    for cell in notebook.cells:
        for key in ("execution", "collapsed", "editable", "slideshow", "trusted"):
            cell.metadata.pop(key, None)
        if cell.cell_type == "code":
            cell.source = cell.source.strip("\n")


def to_text(path: Path) -> None:
    """Write a notebook's cells as MyST text, without outputs."""
    TEXT.mkdir(parents=True, exist_ok=True)
    target = TEXT / f"{path.stem}.md"
    jupytext.write(jupytext.read(path), target, fmt="md:myst")
    print(target.relative_to(ROOT))


def from_text(path: Path) -> None:
    """Make a notebook from MyST text, run it, and write it if no cell failed; unchanged cells keep their ids."""
    if path.suffix != ".md":
        raise SystemExit(f"{path.name}: must be a file that `text` wrote, such as _build/text/{path.stem}.md")
    target = ROOT / "notebooks" / f"{path.stem}.ipynb"
    notebook = jupytext.read(path)
    if target.exists():
        keep_ids(notebook, nbformat.read(target, as_version=4))
    target.parent.mkdir(exist_ok=True)
    took = run(notebook, target.parent)
    nbformat.write(notebook, target)
    runs.record(target, *took)
    print(target.relative_to(ROOT))


def keep_ids(new: nbformat.NotebookNode, old: nbformat.NotebookNode) -> None:
    ids = {(cell.cell_type, cell.source): cell.id for cell in old.cells}
    for cell in new.cells:
        cell["id"] = ids.pop((cell.cell_type, cell.source), cell.id)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["execute", "text", "from-text"])
    parser.add_argument("paths", nargs="*", type=Path)
    options = parser.parse_args()
    action = {"execute": execute, "text": to_text, "from-text": from_text}[options.action]
    failures = 0
    for path in options.paths:
        if not path.is_file():
            print(f"{path}: no such file", file=sys.stderr)
            failures += 1
            continue
        try:
            action(path.resolve())
        except CellExecutionError as error:
            print(f"{path}: not written, a cell failed\n{error}", file=sys.stderr)
            failures += 1
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
