"""Make the students' version of a chapter with nbgrader: without solutions, with locked checks that give points.

    python -m tools.course.assignment 06    # -> _build/assignments/release/06/

A student needs only this folder and the library. The folder holds the notebook, the stored results that it
plots, `book_06.py` with the book's versions, a README, and AGENTS.md for an AI assistant. _build/assignments is a
complete nbgrader course; `python -m tools.course.autograde 06 FOLDER` grades the submissions.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat

from tools.notebooks.bindings import Bindings, statements

ROOT = Path(__file__).resolve().parents[2]
COURSE = ROOT / "_build" / "assignments"

JUDGE = "from nanoeuler_book.checks import judge  # again, in case its name was reused"
JUDGED = re.compile(r"^(own_\w+) = judge\(", re.M)
IN_ITS_PLACE = re.compile(r"\bown_\w+ or (?!own_)(\w+)|\bown_\w+ or \((\w+), (\w+)\)|\b(\w+) if own_\w+ is None")
LINK = re.compile(r"\[([^\]]*)\]\((?:\.\./)*(?:notebooks/)?[\w-]+\.ipynb(?:#[\w-]*)?\)")

README = """# Chapter {chapter}: {title}

Open `{notebook}` in JupyterLab, in this folder. It needs Python 3.11 or newer and the book's library,
version {version}:

    python -m pip install jupyterlab jupyterlab-myst REPOSITORY
    python -m jupyter lab {notebook}

REPOSITORY is the folder or the address of NanoEuler's repository. Your instructor tells you which one to use. Nothing
else is downloaded, and this folder can be anywhere.

* Write your code where a cell says `your code here`. The cell below it checks your code and says in one sentence what
  is wrong. The number below that sentence is the number of points that you have.
* Checks are locked: if you change a check, the change is undone before grading. Copied cells count once. If you delete
  a gap or a check, it is restored, and you lose only the points of that gap.
* A wrong or missing answer costs only its own points, because the notebook continues with the book's version. It
  imports that version from `{book}.py`. Open this file only after you have finished.
* A person grades the written exercise.
* `AGENTS.md` says which help from an AI assistant is fair in which exercise. Ask your assistant to read it first.

Hand in only the notebook.
"""


def tags(cell) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def notebook_of(chapter: str, notebooks: Path) -> Path:
    found = sorted(notebooks.glob(f"{chapter}_*.ipynb"))
    if len(found) != 1:
        known = ", ".join(sorted(p.name[:2] for p in notebooks.glob("[0-9A]*_*.ipynb")))
        sys.exit(f"CH must be one of {known}, got {chapter!r}: make assignment CH=06")
    return found[0]


# ---- The notebook


def instructor_version(notebook, book: str) -> tuple:
    """Return the notebook without solutions, whose checks give points, and the text of a module named `book`.

    The module holds the book's versions. Cells that showed these versions in the chapter now import them from the
    module.
    """
    cells = notebook.cells
    bindings = Bindings(cells, lambda cell: tags(cell) & {"gap", "solution"})
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    answers = {name for found in IN_ITS_PLACE.findall(text) for name in found if name}
    needed, made = set(), []
    for number, cell in enumerate(cells):
        if tags(cell) & {"solution", "library"}:
            continue
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(r"\1", cell.source)
        elif cell.metadata.get("nbgrader", {}).get("grade"):
            cell.source = check_with_points(cell.source, cell.metadata.nbgrader.points)
        elif "gap" not in tags(cell) and (names := revealed(cell, answers)):
            needed.update(bindings.needed(names, number))
            rest = "" if cell.source.startswith("%%") else without_definitions(cell.source)
            cell.source = f"from {book} import {', '.join(names)}  # the book's\n\n\n{rest}".strip()
            cell.metadata.tags = sorted(tags(cell) - {"mirror"})
        made.append(cell)
    notebook.cells = made
    return notebook, module(book, sorted(needed))


def check_with_points(source: str, points: int) -> str:
    """Return the source of a check that ends in an expression, the points earned.

    Without such an expression, nbgrader gives all points to a cell that raises no error, and none to a cell that writes
    to stderr. The cell sets `own_...` to None first, because later cells use `own_...` even if the gap's cell fails.
    """
    names = JUDGED.findall(source)
    right = " + ".join(f"({name} is not None)" for name in names)
    earned = f"{points} * {right}" if len(names) == 1 else f"{points} * ({right}) / {len(names)}"
    return f"{' = '.join(names)} = None\n{JUDGE}\n\n{source}\n{earned}"


def revealed(cell, answers: set[str]) -> list[str]:
    """Return the names that a cell defines if it shows one of the book's answers, else an empty list."""
    found = statements(cell, 0)
    names = [name for s in found if s.is_definition for name in sorted(s.binds)]
    shown = cell.metadata.get("mystnb", {}).get("code_prompt_show") == "Show the book's version"
    return names if shown or answers & set(names) else []


def without_definitions(source: str) -> str:
    lines = source.split("\n")
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            lines[first - 1 : node.end_lineno] = [""] * (node.end_lineno - first + 1)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def module(book: str, needed: list) -> str:
    """Return the source of a module that consists of these statements."""
    imports = [s.source for s in needed if s.is_import]
    others = [s.source for s in needed if not s.is_import]
    title = f'"""The book\'s versions of the functions to write in chapter {book.removeprefix("book_")}."""'
    return "\n\n\n".join([title, "\n".join(dict.fromkeys(imports)), *others]) + "\n"


# ---- The release


def make(chapter: str, notebooks: Path = ROOT / "notebooks", course: Path = COURSE) -> Path:
    """Generate the assignment of a chapter and return the path of the students' notebook."""
    path = notebook_of(chapter, notebooks)
    book = f"book_{chapter}"
    notebook, text = instructor_version(nbformat.read(path, as_version=4), book)
    source = course / "source" / chapter
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    nbformat.write(notebook, source / path.name)
    (source / f"{book}.py").write_text(text, "utf-8")
    (source / "README.md").write_text(readme(chapter, notebook, path.name, book), "utf-8")
    shutil.copy(ROOT / "notebooks" / "AGENTS.md", source)
    for stored in results_of(notebook):
        (source / "data" / "results").mkdir(parents=True, exist_ok=True)
        shutil.copy(stored, source / "data" / "results")
    shutil.copy(ROOT / "nbgrader_config.py", course)
    said, failed = nbgrader(course, "generate_assignment", chapter, "--create", "--force")
    if failed:
        sys.exit(said)
    return course / "release" / chapter / path.name


def readme(chapter: str, notebook, name: str, book: str) -> str:
    from nanoeuler_lib import __version__

    title = re.search(r"^# (.*)", notebook.cells[0].source, re.M)[1].removeprefix(f"{chapter} ")
    return README.format(chapter=chapter, title=title, notebook=name, book=book, version=__version__)


def results_of(notebook) -> list[Path]:
    """Return the paths of the stored results that a notebook loads."""
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    words = set(re.findall(r'"([\w-]+)"', code)) if "results(" in code else ()
    return [path for path in sorted((ROOT / "data" / "results").glob("*.json")) if path.stem in words]


def nbgrader(course: Path, *words: str) -> tuple[str, bool]:
    """Run an nbgrader command in the course folder; return the command's output and whether it failed."""
    run = subprocess.run(
        [sys.executable, "-m", "nbgrader", *words],
        cwd=course,
        env=environment(),
        capture_output=True,
        text=True,
    )
    return run.stdout + run.stderr, run.returncode != 0


def environment() -> dict[str, str]:
    """Return the environment for nbgrader: alembic, which nbgrader calls, is in PATH, the library in PYTHONPATH."""
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    python_path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {"PATH": os.pathsep.join(paths), "PYTHONPATH": os.pathsep.join(python_path)}
    return os.environ | found


if __name__ == "__main__":
    if len(sys.argv) < 2 or not sys.argv[1]:
        sys.exit("CH must be given, the number of a chapter: make assignment CH=06")
    for chapter in sys.argv[1:]:
        print(make(chapter))
