"""What pyproject.toml cannot say: a wheel holds the stored results, which lie outside the package."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithResults(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_tree("data/results", str(Path(self.build_lib, "nanoeuler_book", "results")))


setup(cmdclass={"build_py": BuildWithResults})
