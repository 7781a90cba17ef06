"""Add to a wheel what pyproject.toml cannot say: the stored results, and the addresses in project.toml."""

import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithResults(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_tree("data/results", str(Path(self.build_lib, "nanoeuler_book", "results")))


def urls() -> dict[str, str]:
    """Return the project's addresses by their labels; an empty address, or a missing file, gives none."""
    file = Path("project.toml")
    project = tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
    labels = {"Repository": "repository", "Documentation": "book"}
    return {label: project[name] for label, name in labels.items() if project.get(name)}


setup(cmdclass={"build_py": BuildWithResults}, project_urls=urls())
