"""What the status page says, computed when the book is built: notebooks, stored results, versions.

Each function returns Markdown. What is not known is said to be so: a notebook without a record of a run, a checkout
without its history (a source archive, a shallow clone).
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
    """What git prints; "" where there is no repository or no git."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def committed(folder: str, root: Path = ROOT) -> dict[str, str]:
    """File name: date of the commit that changed it last. Empty where the history is not there to tell."""
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
    """The version of the library and the book."""
    found = re.search(r'^__version__ = "(.+)"$', (root / "nanoeuler_lib/__init__.py").read_text(), re.M)
    return found[1]


def build(root: Path = ROOT) -> str:
    """What these pages were made of and with."""
    commit = git("log", "-1", "--format=`%h` of %cs", root=root) or "not known: no history beside the files"
    dirty = " with changes that are not committed" if git("status", "--porcelain", root=root) else ""
    used = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    return f"* Version: {version(root)}\n* Commit: {commit}{dirty}\n* Pages made with: {used}"


def processor(machine: dict) -> str:
    """A machine in few words: its processor, the cores that were used, its graphics card if there is one."""
    card = f", {machine['gpu']}" if machine.get("gpu") else ""
    return f"{' '.join(machine['cpu'].split())}, {machine['cores']} cores{card}"


def notebooks(book: Iterable[Chapter], root: Path = ROOT) -> str:
    """When each notebook's outputs were committed, and the last recorded run of its code."""
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
    """What saves this result: the scripts whose text names it in the call, or the one that names it anywhere.

    left: the script of the result's own commit, where it stands in the tree no more.
    """
    folders = root / "benchmarks", root / "experiments"
    texts = {path: path.read_text("utf-8") for folder in folders for path in sorted(folder.glob("*.py"))}
    for pattern, most in ((rf'\bsave\(\s*"{name}"', len(texts)), (rf'"{name}"', 1)):
        found = [path for path, text in texts.items() if re.search(pattern, text) and "save(" in text]
        if 0 < len(found) <= most:
            return ", ".join(f"`{path.relative_to(root)}`" for path in found)
    return f"`{left}`, at that commit alone" if left else "not known"


def results(root: Path = ROOT) -> str:
    """Each stored result: when and where it was made, from which commit, by which script."""
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
