"""Where the project lives (project.toml): buttons on the pages, the head of README.md, and chapters that run.

    python -m tools.book.project            # are README.md and the chapters up to date? exit status 1 if not
    python -m tools.book.project --write    # write their parts anew

As an extension of Sphinx: with a repository, chapters get buttons for their source, a new issue and a launch; with the
book's address, its pages know their own. NANOEULER_REPOSITORY and NANOEULER_BOOK in the environment fill in what the
file leaves empty. Each chapter's first cell of code says what to do where the library is missing, and with a repository
it does it; the stored results come with the library. So a chapter runs where it is downloaded to, and in Colab.
"""

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import nbformat
from sphinx.application import Sphinx
from sphinx.config import Config

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = {
    "binder": {"binderhub_url": "https://mybinder.org", "notebook_interface": "jupyterlab"},
    "colab": {"colab_url": "https://colab.research.google.com"},
}
PART = re.compile(r"(<!-- from project.toml -->\n).*?(<!-- end -->)", re.S)

LIBRARY = "fetch-the-library"  # the id of the cell
FETCH = """\
# Finds the book's library and, with it, the stored results; says or does what is needed where it is missing.
import importlib.util
{imports}
if importlib.util.find_spec("nanoeuler_lib") is None:
    {fetch}"""
CLONE = """\
_clone = ["git", "clone", "--quiet", "--depth", "1", "--branch", "{branch}"]
    subprocess.run([*_clone, "{repository}", "nanoeuler"], check=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--editable", "nanoeuler"], check=True)
    sys.path.insert(0, os.path.abspath("nanoeuler"))"""
REFUSE = """\
raise SystemExit(
        "no nanoeuler_lib here: type make lab in the book's folder, then put this file "
        "into its folder work and open it there"
    )"""


@dataclass(frozen=True)
class Project:
    """Addresses, "" where there is none yet. Raises ValueError on one that is no address, or an unknown launcher."""

    repository: str = ""
    book: str = ""
    branch: str = "main"
    launch: tuple[str, ...] = ()

    def __post_init__(self):
        for name in ("repository", "book"):
            url = getattr(self, name)
            if url and not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)*/?", url):
                raise ValueError(f"{name} is {url!r}, expected an address that begins with https://, or nothing")
            object.__setattr__(self, name, url.rstrip("/"))
        for name in self.launch:
            if name not in LAUNCHERS:
                raise ValueError(f"launch has {name!r}, expected some of {', '.join(LAUNCHERS)}")

    @property
    def issues(self) -> str:
        """Where a reader reports a mistake."""
        return self.repository and f"{self.repository}/issues"


def load(path: Path = ROOT / "project.toml", environment: Mapping[str, str] = os.environ) -> Project:
    """The project as file and environment say. Raises ValueError on an unknown entry, too."""
    entries = tomllib.loads(path.read_text())
    if unknown := entries.keys() - Project.__annotations__.keys():
        raise ValueError(f"has {min(unknown)!r}, expected {', '.join(Project.__annotations__)}")
    for name in ("repository", "book"):
        entries[name] = entries.get(name) or environment.get(f"NANOEULER_{name.upper()}", "")
    return Project(**entries | {"launch": tuple(entries.get("launch", ()))})


# ---- README.md


def readme_part(project: Project) -> str:
    """How to get the project, with badges and links where they lead somewhere."""
    lines = []
    if project.repository:
        workflow = f"{project.repository}/actions/workflows/book.yml"
        lines += [f"[![tests and book]({workflow}/badge.svg)]({workflow})"]
        lines += [
            f"[![licence: MIT](https://img.shields.io/badge/licence-MIT-blue)]({project.repository}/blob/{project.branch}/LICENSE)"
        ]
    links = [f"[Read the book]({project.book})"] * bool(project.book)
    links += [f"[report a mistake]({project.issues})"] * bool(project.repository)
    lines += [", ".join(links)] if links else []
    address = project.repository or "ADDRESS-OF-THIS-REPOSITORY"
    return "\n".join(
        [
            *lines,
            *[""] * bool(lines),
            "```",
            f"git clone {address} nanoeuler",
            "cd nanoeuler",
            "make lab",
            "```",
            "",
        ]
    )


def readme(project: Project, text: str) -> str:
    """README.md with its part written anew."""
    return PART.sub(lambda found: found[1] + readme_part(project) + found[2], text)


# ---- The chapters


def library_cell(project: Project) -> nbformat.NotebookNode:
    """The cell that finds the library: seen in a notebook, folded, and not in the page."""
    imports, fetch = "", REFUSE
    if project.repository:
        imports = "import os\nimport subprocess\nimport sys\n"
        fetch = CLONE.format(branch=project.branch, repository=project.repository)
    metadata = {"jupyter": {"source_hidden": True}, "tags": ["library", "remove-cell"]}
    source = FETCH.format(imports=imports, fetch=fetch)
    return nbformat.v4.new_code_cell(source, id=LIBRARY, metadata=metadata)


def with_library(notebook: nbformat.NotebookNode, project: Project) -> nbformat.NotebookNode:
    """The notebook with that cell after its head, in place of an older one; cells counted as a clean run counts."""
    others = [cell for cell in notebook.cells if cell.id != LIBRARY]
    cells = [others[0], library_cell(project), *others[1:]]
    for number, cell in enumerate((cell for cell in cells if cell.cell_type == "code"), start=1):
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
    notebook.cells = cells
    return notebook


# ---- The pages


def configure(app: Sphinx, config: Config) -> None:
    """The theme's buttons, and the pages' own address."""
    project = load()
    named = f"[repository]({project.repository})" if project.repository else "repository"
    config.myst_substitutions |= {"repository": named}
    if project.book:
        config.html_baseurl = f"{project.book}/"
    if not project.repository:
        return
    on_a_host = project.repository.startswith(("https://github.com/", "https://gitlab.com/"))
    config.html_theme_options |= {
        "repository_url": project.repository,
        "repository_branch": project.branch,
        "use_repository_button": True,
        "use_source_button": on_a_host,
        "use_issues_button": on_a_host,
        "launch_buttons": {k: v for name in project.launch if on_a_host for k, v in LAUNCHERS[name].items()},
    }


def setup(app: Sphinx) -> dict:
    app.connect("config-inited", configure, priority=400)  # MyST reads its substitutions at 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--write", action="store_true")
    write = arguments.parse_args().write
    try:
        project = load()
    except ValueError as error:
        print(f"project.toml: {error}", file=sys.stderr)
        return 2
    stale = False
    for path in (ROOT / "README.md", *sorted((ROOT / "notebooks").glob("*.ipynb"))):
        text = path.read_text("utf-8")
        if path.suffix == ".md":
            wanted = readme(project, text)
        else:
            wanted = nbformat.writes(with_library(nbformat.reads(text, as_version=4), project)) + "\n"
        if wanted != text:
            stale = True
            print(f"{path.name}: its part from project.toml is", "written anew" if write else "out of date")
            if write:
                path.write_text(wanted, "utf-8")
    return int(stale and not write)


if __name__ == "__main__":
    sys.exit(main())
