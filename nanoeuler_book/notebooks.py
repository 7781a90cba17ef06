"""Find the book's chapters in a folder, open them in Jupyter, run them again, and count a reader's progress.

The commands `nanoeuler lab`, `nanoeuler test` and `nanoeuler progress`. A folder with chapters is a clone of the
repository (its folders `notebooks` and `work`) or any folder with downloaded notebooks.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from nanoeuler_lib.errors import NanoEulerError

CHAPTER = re.compile(r"(\d\d|A\d)_\w+\.ipynb")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
EMPTY = re.compile(r"\s*(?:\*[^*]+\*)?\s*")  # a written answer that is not written yet: *Your answer here.*


def chapters(folder: Path) -> list[Path]:
    """Return the chapters in a folder, in the order of the book."""
    return sorted(path for path in folder.glob("*.ipynb") if CHAPTER.fullmatch(path.name))


def find(given: Path | None, own: bool = False) -> Path:
    """Return a folder with chapters: the given one, this one, or that of a clone. own: the reader's copies, in work/.

    Raises NanoEulerError if there is none.
    """
    here = given or Path.cwd()
    parents = (here, *here.resolve().parents) if given is None else (here,)
    for folder in parents:
        inside = [folder / "work", folder / "notebooks"] if own else [folder / "notebooks"]
        for place in [folder, *(inside if (folder / "_toc.yml").is_file() else ())]:
            if chapters(place):
                return place
    urls = dict(line.split(", ", 1) for line in metadata.metadata("nanoeuler").get_all("Project-URL") or ())
    way = f"clone {urls.get('Repository', 'the repository of the book')}"
    way += f", or unpack {urls['Documentation']}/nanoeuler-notebooks.zip" if "Documentation" in urls else ""
    raise NanoEulerError(f"the folder must have chapters such as 00_start_here.ipynb, got {here}: {way}")


def chapter(name: str, folder: Path) -> Path:
    """Return the notebook of a chapter by its number ("06") or file. Raises NanoEulerError if it is not there."""
    if Path(name).suffix == ".ipynb" and Path(name).is_file():
        return Path(name)
    found = {path.name.partition("_")[0]: path for path in chapters(folder)}
    number = name.upper() if name.upper() in found else name.zfill(2)
    if number not in found:
        raise NanoEulerError(f"the chapter must be one of {', '.join(found)}, got {name!r}")
    return found[number]


def needs(*modules: str) -> None:
    """Raise NanoEulerError if a module is not installed."""
    for name in modules:
        if not importlib.util.find_spec(name):
            raise NanoEulerError(f"{name} must be installed for this command: pip install {name}")


def lab(given: Path | None) -> int:
    """Open JupyterLab on the chapters, and return its exit status.

    In a clone, the reader's copies in work/ are made or updated first.
    """
    needs("jupyterlab")
    folder = root = find(given, own=True).resolve()
    if (folder.parent / "tools/book/lab.py").is_file():
        needs("jupyterlab_myst")
        root, folder = folder.parent, folder.parent / "work"
        subprocess.run([sys.executable, "-m", "tools.book.lab"], cwd=root, check=True)
    first = chapters(folder)[0].relative_to(root)
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}", str(first)]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # containers usually run as root
    return subprocess.run(command, check=False).returncode


def test(names: list[str], given: Path | None) -> int:
    """Run chapters again, and compare their outputs with the stored ones; return the exit status of pytest."""
    needs("pytest", "nbval")
    folder = find(given)
    files = [chapter(name, folder) for name in names]
    rules = Path(__file__).with_name("nbval_sanitize.cfg")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "nanoeuler_book.outputs",
        "-p",
        "no:cacheprovider",
        "--nbval",
    ]
    command += ["--nbval-current-env", f"--nbval-sanitize-with={rules}", "--nbval-kernel-startup-timeout=300"]
    return subprocess.run([*command, *map(str, files)], check=False).returncode


# ---- Progress


@dataclass(frozen=True)
class Progress:
    """What a reader has done in a chapter: the numbers of right answers and of answers, before and in the exercises."""

    name: str
    gaps: tuple[int, int]
    exercises: tuple[int, int]

    @property
    def state(self) -> str:
        done, all_of_them = (a + b for a, b in zip(self.gaps, self.exercises, strict=True))
        return "done" if done == all_of_them else "begun" if done else "not begun"


def progress(folder: Path) -> list[Progress]:
    """Return a reader's progress in each chapter of a folder, from the notebooks as they were saved last.

    An answer counts if the last line that its check has printed is "right". A written answer counts if there is one.
    The solutions have checks of their own, which do not count. Raises NanoEulerError for any other file.
    """
    found = []
    for path in chapters(folder):
        try:
            cells = json.loads(path.read_text("utf-8"))["cells"]
            found.append(Progress(path.stem, *_counts(cells)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise NanoEulerError(f"{path} must be a notebook, got {type(error).__name__}") from None
    return found


def _counts(cells):
    """Return [right, all] of the answers before the exercises, and of those in the exercises."""
    counts, part = [[0, 0], [0, 0]], 0
    for cell in cells:
        text, graded = "".join(cell["source"]), cell["metadata"].get("nbgrader", {})
        if cell["cell_type"] == "markdown":
            part = 1 if re.search(r"^## Exercises", text, re.M) else part
            right = not EMPTY.fullmatch(text)
        else:
            right = last_line(cell).endswith(": right")
        if graded.get("grade"):
            counts[part][0] += right
            counts[part][1] += 1
    return map(tuple, counts)


def last_line(cell: dict) -> str:
    """Return the last line that a cell has printed, without colours and without the author in brackets."""
    printed = "".join("".join(output.get("text", "")) for output in cell.get("outputs", ()))
    lines = COLOURS.sub("", printed).strip().splitlines() or [""]
    return re.sub(r" \(with [^)]*\)", "", lines[-1])
