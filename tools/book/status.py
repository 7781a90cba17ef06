"""Compute the tables of the status page when the book is built: notebooks, stored results and versions.

The functions return Markdown. The tables say "none" for a notebook without a recorded run, and "not known" where there
is no git history (in a source archive or a shallow clone).
"""

import json
import re
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from tools.notebooks import runs
from tools.notebooks.heads import ROOT, Chapter

PACKAGES = ("sphinx", "jupyter-book", "sphinx-book-theme", "myst-nb", "numpy", "matplotlib")


def git(*arguments: str, root: Path = ROOT) -> str:
    """Return the output of a git command; "" if there is no repository or no git."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def committed(folder: str, root: Path = ROOT) -> dict[str, str]:
    """Return the date of each file's last commit, by file name; empty without a complete history."""
    if git("rev-parse", "--is-shallow-repository", root=root) != "false":
        return {}
    dates, day = {}, ""
    for line in git("log", "--format=:%cs", "--name-only", "--", folder, root=root).split("\n"):
        if line.startswith(":"):
            day = line[1:]
        elif line:
            dates.setdefault(line.rpartition("/")[2], day)
    return dates


def version(root: Path = ROOT) -> str:
    """Return the version of the library and the book."""
    found = re.search(r'^__version__ = "(.+)"$', (root / "nanoeuler_lib/__init__.py").read_text("utf-8"), re.M)
    return found[1]


def build(root: Path = ROOT) -> str:
    """Return the version, the commit and the packages with which the pages were built."""
    commit = git("log", "-1", "--format=`%h` of %cs", root=root) or "not known: these files have no git history"
    dirty = " with uncommitted changes" if git("status", "--porcelain", root=root) else ""
    used = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    return f"* Version: {version(root)}\n* Commit: {commit}{dirty}\n* Pages made with: {used}"


def processor(machine: dict) -> str:
    """Describe a machine in a few words: processor, number of cores used, and GPU if the machine has one."""
    card = f", {machine['gpu']}" if machine.get("gpu") else ""
    return f"{' '.join(machine['cpu'].split())}, {machine['cores']} cores{card}"


def notebooks(book: Iterable[Chapter], root: Path = ROOT) -> str:
    """Return a table of the notebooks, with the date of the last commit and the last recorded run of the code."""
    dates, recorded = committed("notebooks", root), runs.recorded(root)
    rows = [
        "| chapter | file changed | recorded run | took | on |",
        "|:--|:--|:--|:--|:--|",
    ]
    for one in book:
        day, run = dates.get(f"{one.name}.ipynb", "not known"), recorded.get(one.name)
        title = f"[{one.title}](/notebooks/{one.name}.ipynb)"
        if run is None:
            rows.append(f"| {title} | {day} | none | | |")
            continue
        stale = "" if run["code"] == runs.digest(root / "notebooks" / f"{one.name}.ipynb") else ", older code"
        machine = run["machine"]
        took = f"{run['seconds']:.0f} s, processors {run['processor_seconds']:.0f} s"
        versions = f"Python {machine['python']}, NumPy {machine['numpy']}, matplotlib {machine['matplotlib']}"
        rows.append(f"| {title} | {day} | {run['date']}{stale} | {took} | {processor(machine)}; {versions} |")
    return "\n".join(rows)


def maker(name: str, root: Path = ROOT, left: str | None = None) -> str:
    """Return the scripts that save a result: scripts that call `save` with its name, or the only script of that name.

    left: a script that saved the result, exists at the result's commit, and has been removed since.
    """
    folders = root / "benchmarks", root / "experiments"
    texts = {path: path.read_text("utf-8") for folder in folders for path in sorted(folder.glob("*.py"))}
    for pattern, most in ((rf'\bsave\(\s*"{name}"', len(texts)), (rf'"{name}"', 1)):
        found = [path for path, text in texts.items() if re.search(pattern, text) and "save(" in text]
        if 0 < len(found) <= most:
            return ", ".join(f"`{path.relative_to(root)}`" for path in found)
    return f"`{left}`, only at that commit" if left else "not known"


def results(root: Path = ROOT) -> str:
    """Return a table of the stored results: date, commit, machine and script."""
    rows = [
        "| result | date | commit | machine | Python, NumPy | made by |",
        "|:--|:--|:--|:--|:--|:--|",
    ]
    for path in sorted((root / "data/results").glob("*.json")):
        made = json.loads(path.read_text("utf-8"))
        machine, left = made["machine"], made["config"].get("script")
        rows.append(
            f"| `{path.stem}` | {made['date']} | `{made['commit']}` | {processor(machine)}"
            f" | {machine['python']}, {machine['numpy']} | {maker(path.stem, root, left)} |"
        )
    return "\n".join(rows)
