"""Which package may import which, and in nanoeuler_lib which folder: nothing looks back."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nanoeuler_lib
from nanoeuler_lib.errors import NanoEulerError

ROOT = Path(__file__).resolve().parents[2]
MAY_IMPORT = {
    "konigsberg": set(),
    "cudacheck": set(),
    "nanoeuler_lib": set(),  # but nanoeuler_lib.cuda: cudacheck; nanoeuler_lib.command, in functions: all
    "nanoeuler_book": {"konigsberg", "cudacheck", "nanoeuler_lib"},
    "tools": {"konigsberg", "cudacheck", "nanoeuler_lib", "nanoeuler_book"},
}
BASE = {"config", "errors", "files", "machine"}
FOLDERS = {  # of nanoeuler_lib: what each may import besides BASE
    "ops": set(),
    "cuda": set(),
    "text": set(),
    "corpus": {"text"},
    "model": {"ops"},
    "engine": {"model", "ops", "cuda"},
    "generation": {"text", "model"},
    "training": {"text", "model", "ops", "corpus", "engine", "generation"},
    "formats": {"model", "text", "training", "cuda"},
}


def imports(file):
    """(dotted name as a list, whether at the top of the module) of each import in a file."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        assert not getattr(node, "level", 0), f"{file}: a relative import"
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        yield from (((prefix + name).split("."), node.col_offset == 0) for name in names)


def test_nothing_is_imported_upward():
    wrong = []
    for file in (file for package in MAY_IMPORT for file in ROOT.glob(f"{package}/**/*.py")):
        package, folder = (*file.relative_to(ROOT).parts, "")[:2]
        folder = folder.removesuffix(".py")
        for (other, *name), at_the_top in imports(file):
            good = other not in MAY_IMPORT or other in MAY_IMPORT[package] or (folder == "command" and not at_the_top)
            if package == other == "nanoeuler_lib" and folder != "command":
                below = BASE | FOLDERS.get(folder, set()) | {folder, "__version__", "_moved"}
                good = (not name or name[0] in below) and at_the_top
            elif package == other or (folder, other) == ("cuda", "cudacheck"):
                good = True
            if not good:
                wrong.append(f"{file.relative_to(ROOT)} imports {'.'.join([other, *name])}")
    assert not wrong, "\n".join(wrong)
    folders = {f.parent.name for f in ROOT.glob("nanoeuler_lib/*/__init__.py")}
    assert folders == FOLDERS.keys() | {"command"}


FACE = """import sys, time
start = time.process_time()
import nanoeuler_lib
assert time.process_time() - start < 0.05 and "numpy" not in sys.modules
from nanoeuler_lib import GPT, Tokenizer, generate, load, ops, train
assert set(nanoeuler_lib.__all__) < set(dir(nanoeuler_lib)) and nanoeuler_lib.training.train.train is train
"""


def test_the_package_is_imported_quickly_and_gives_five_names():
    subprocess.run([sys.executable, "-c", FACE], cwd=ROOT, check=True)
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        nanoeuler_lib.trian  # noqa: B018
    folder = nanoeuler_lib.load(ROOT / "nanoeuler_lib/pretrained/konigsberg-small")
    assert (nanoeuler_lib.load()[0].params.flat == folder[0].params.flat).all()
    with pytest.raises(NanoEulerError, match="no such folder, expected a checkpoint, a run folder, or one of english"):
        nanoeuler_lib.load("konigsbrg")
