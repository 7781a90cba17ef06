"""Which package may import which, and in nanoeuler_lib which folder: nothing looks back."""

import ast
from pathlib import Path

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
    "formats": {"model", "text", "training"},
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
