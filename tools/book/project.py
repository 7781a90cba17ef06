"""Write the project's addresses (project.toml) into the pages, README.md and the chapters' first code cell.

    python -m tools.book.project            # check README.md and the chapters; exit status 1 if outdated
    python -m tools.book.project --write    # update them; also README.md's table of chapters (landing.py)

As a Sphinx extension: if there is a repository, chapters get buttons for their source, a new issue and a launch, and
each page ends with a link to a new issue; if the book's address is known, the pages contain their own addresses. The
environment variables NANOEULER_REPOSITORY and NANOEULER_BOOK set addresses that the file leaves empty. The first code
cell of each chapter looks for the library, which includes the stored results. If the library is missing, the cell
installs it from the repository, or explains what to do if there is no repository. So a chapter runs in any folder, and
in Colab.
"""

import argparse
import html
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import nbformat
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config

from tools.book import landing

ROOT = Path(__file__).resolve().parents[2]
LAUNCHERS = {
    "binder": {"binderhub_url": "https://mybinder.org", "notebook_interface": "jupyterlab"},
    "colab": {"colab_url": "https://colab.research.google.com"},
}
PART = re.compile(r"(<!-- from (\S+) -->\n).*?(<!-- end -->)", re.S)

LIBRARY = "fetch-the-library"  # id of the cell
FETCH = """\
# Find the book's library, which includes the stored results; if it is missing, install it or say how.
import importlib.util
{imports}
if importlib.util.find_spec("nanoeuler_lib") is None:
    {fetch}"""
INSTALL = """\
_library = "git+{repository}@{branch}"
    _pip = [sys.executable, "-m", "pip", "install", "--quiet", _library]
    if subprocess.run(_pip, capture_output=True).returncode:
        raise SystemExit(
            "nanoeuler_lib could not be installed: connect to the network and run this cell again; "
            f"%pip install {{_library}} shows what is wrong"
        )
    importlib.invalidate_caches()"""
REFUSE = """\
raise SystemExit(
        "nanoeuler_lib was not found: type make lab in the book's folder, move this file "
        "into its folder work, and open it there"
    )"""


@dataclass(frozen=True)
class Project:
    """The project's addresses, "" if unknown. Raises ValueError for an invalid address or an unknown launcher."""

    repository: str = ""
    book: str = ""
    branch: str = "main"
    launch: tuple[str, ...] = ()

    def __post_init__(self):
        for name in ("repository", "book"):
            url = getattr(self, name)
            if url and not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)*/?", url):
                raise ValueError(f"{name} must be an address that begins with https://, or empty, got {url!r}")
            object.__setattr__(self, name, url.rstrip("/"))
        for name in self.launch:
            if name not in LAUNCHERS:
                raise ValueError(f"launch must have only {', '.join(LAUNCHERS)}, got {name!r}")

    @property
    def issues(self) -> str:
        """Return the address at which readers report mistakes, "" if unknown."""
        return self.repository and f"{self.repository}/issues"

    def report(self, page: str) -> str:
        """Return the address of a form for a new issue about a page; of all issues where the form is unknown."""
        title = quote(f"Mistake in {page}")
        if self.repository.startswith("https://github.com/"):
            return f"{self.issues}/new?title={title}"
        if self.repository.startswith("https://gitlab.com/"):
            return f"{self.repository}/-/issues/new?issue[title]={title}"
        return self.issues


def load(path: Path = ROOT / "project.toml", environment: Mapping[str, str] = os.environ) -> Project:
    """Read the project from the file and the environment. Raises ValueError for an invalid or unknown entry."""
    entries = tomllib.loads(path.read_text("utf-8"))
    if unknown := entries.keys() - Project.__annotations__.keys():
        raise ValueError(f"entries must be {', '.join(Project.__annotations__)}, got {min(unknown)!r}")
    for name in ("repository", "book"):
        entries[name] = entries.get(name) or environment.get(f"NANOEULER_{name.upper()}", "")
    return Project(**entries | {"launch": tuple(entries.get("launch", ()))})


# ---- README.md


def readme_part(project: Project) -> str:
    """Return the part of README.md about installing and starting the project, with badges and links if known."""
    lines, clone = [], ["In this folder, type", "", "```"]
    if project.repository:
        workflow = f"{project.repository}/actions/workflows/book.yml"
        licence = f"{project.repository}/blob/{project.branch}/LICENSE"
        lines += [f"[![tests and book]({workflow}/badge.svg)]({workflow})"]
        lines += [f"[![licence: MIT](https://img.shields.io/badge/licence-MIT-blue)]({licence})"]
        clone = ["```", f"git clone {project.repository} nanoeuler", "cd nanoeuler"]
    links = [f"[Read the book]({project.book})"] * bool(project.book)
    links += [f"[report a mistake]({project.issues})"] * bool(project.repository)
    lines += [", ".join(links)] if links else []
    start = [
        "make lab     # the chapters in JupyterLab, on your own copies",
        "make book    # the pages: open _build/html/index.html",
    ]
    return "\n".join([*lines, *[""] * bool(lines), *clone, *start, "```", ""])


def readme(project: Project, text: str) -> str:
    """Return README.md with updated parts from project.toml and book/chapters.toml."""
    made = {"project.toml": lambda: readme_part(project), "book/chapters.toml": landing.readme_table}
    return PART.sub(lambda found: found[1] + made[found[2]]() + found[3], text)


# ---- The chapters


def library_cell(project: Project) -> nbformat.NotebookNode:
    """Return the cell that finds the library; it is folded in a notebook and absent from the page."""
    imports, fetch = "", REFUSE
    if project.repository:
        imports = "import subprocess\nimport sys\n"
        fetch = INSTALL.format(branch=project.branch, repository=project.repository)
    metadata = {"jupyter": {"source_hidden": True}, "tags": ["library", "remove-cell"]}
    source = FETCH.format(imports=imports, fetch=fetch)
    return nbformat.v4.new_code_cell(source, id=LIBRARY, metadata=metadata)


def with_library(notebook: nbformat.NotebookNode, project: Project) -> nbformat.NotebookNode:
    """Insert the library cell after the notebook's header, number the cells as in a clean run, return the notebook."""
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
    """Set the theme's buttons and the pages' address."""
    project = load()
    named = f"[repository]({project.repository})" if project.repository else "repository"
    config.myst_substitutions |= {"repository": named}
    if project.book:
        config.html_baseurl = f"{project.book}/"
    if not project.repository:
        return
    on_github = project.repository.startswith("https://github.com/")
    on_a_host = on_github or project.repository.startswith("https://gitlab.com/")
    launchers = [name for name in project.launch if on_github or (on_a_host and name != "colab")]
    config.html_theme_options |= {
        "repository_url": project.repository,
        "repository_branch": project.branch,
        "use_repository_button": True,
        "use_source_button": on_a_host,
        "use_issues_button": on_a_host,
        "launch_buttons": {k: v for name in launchers for k, v in LAUNCHERS[name].items()},
    }


def link_reports(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Link the foot of each page, and the theme's button, to a new issue that names the page."""
    address = load().report(page)
    if address:
        context["theme_extra_footer"] = f'<a href="{html.escape(address)}">Report a mistake on this page</a>'
    for group in context.get("header_buttons", ()):
        for button in group.get("buttons", ()):
            if button.get("label") == "source-issues-button":
                button |= {"url": address, "text": "Report a mistake", "tooltip": "Report a mistake on this page"}


def setup(app: Sphinx) -> dict:
    app.connect("config-inited", configure, priority=400)  # MyST reads its substitutions at 500
    app.connect("html-page-context", link_reports, priority=900)  # the theme adds its buttons at 501
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
            print(f"{path.name}: a part is", "updated" if write else "out of date")
            if write:
                path.write_text(wanted, "utf-8")
    return int(stale and not write)


if __name__ == "__main__":
    sys.exit(main())
