"""A small book with a page of every template, built once for the tests of pages; and a browser that looks at them."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.book import pdf

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = ("06_attention", "23_first_kernels")
PAGES = ("book/intro", "book/how_to_read", "book/notation", "book/glossary", "book/references")
PAGES += ("book/api/generation",)
REPOSITORY = "https://github.com/anna/euler"
ENTRY = "import sys; from jupyter_book.cli.main import main; sys.exit(main())"


def missing() -> str:
    """Why no page can be looked at; empty when one can."""
    for name in ("playwright", "axe_playwright_python"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed: make browser"
    return "" if pdf.chromium() else "no Chromium found (NANOEULER_CHROMIUM names its program)"


def axe() -> str:
    """The text of axe-core, which looks for faults that bar people from a page."""
    found = importlib.util.find_spec("axe_playwright_python").submodule_search_locations[0]
    return (Path(found) / "axe.min.js").read_text("utf-8")


def build(folder: Path, base: str = "") -> Path:
    """Build the small book in `folder`; its pages. Links to chapters that are left out are not the tests' subject."""
    for shared in ("book", "tools", "nanoeuler_lib", "nanoeuler_book", "konigsberg", "cudacheck"):
        (folder / shared).symlink_to(ROOT / shared)
    config = (ROOT / "_config.yml").read_text("utf-8")
    (folder / "_config.yml").write_text(config.replace("  config:\n", f'  config:\n    html_baseurl: "{base}"\n'))
    (folder / "notebooks").mkdir()
    for name in CHAPTERS:
        shutil.copy(ROOT / "notebooks" / f"{name}.ipynb", folder / "notebooks")
    files = [*PAGES[1:], *(f"notebooks/{name}" for name in CHAPTERS)]
    listed = "".join(f"  - file: {file}\n" for file in files)
    (folder / "_toc.yml").write_text(f"format: jb-book\nroot: {PAGES[0]}\nchapters:\n{listed}")
    return run(folder)


OLDER = "Warps of a warp diverge.\n\n\\begin{align} a &= b \\end{align}"


def rebuild(folder: Path) -> None:
    """Build again with another text of the first chapter, then with its own."""
    chapter = folder / "notebooks" / f"{CHAPTERS[0]}.ipynb"
    own = chapter.read_text("utf-8")
    notebook = json.loads(own)
    del notebook["cells"][len(notebook["cells"]) // 2 :]
    notebook["cells"][-1] |= {"cell_type": "markdown", "source": OLDER}
    for text in (json.dumps(notebook), own):
        chapter.write_text(text, "utf-8")
        page = (run(folder) / "notebooks" / f"{CHAPTERS[0]}.html").read_text("utf-8")
        assert (OLDER.split(".")[0] in page) == (text != own)


def run(folder: Path) -> Path:
    """Build what changed since the last time; the pages."""
    command = [sys.executable, "-c", ENTRY, "build", str(folder), "--quiet"]
    given = os.environ | {"NANOEULER_REPOSITORY": REPOSITORY}
    built = subprocess.run(command, capture_output=True, text=True, env=given)
    pages = folder / "_build" / "html"
    assert (pages / "search.html").exists(), built.stdout + built.stderr
    return pages
