"""Keep the notebook cells that show library code equal to the library.

In a code cell tagged `mirror`, the source of every top-level function, class and constant must equal its source in the
library. The metadata of the notebook or of the cell names the module:
`"nanoeuler": {"module": "nanoeuler_lib.ops.reference"}`. A cell tagged `mirror-part` may show a class with only some
of its methods. A cell may end a docstring early, after its first line or later. Everything else must be equal,
including comments.

A cell that begins with a magic (`%%cuda`) contains C++. Its "module" is the path of a file, such as
nanoeuler_lib/kernels/rope.cu, or a list of paths, and its functions, structs and #defines must equal those in the
files.

    python -m tools.notebooks.mirror            # check; exit status 1 on a difference
    python -m tools.notebooks.mirror --write    # copy the library's text into the cells
"""

import argparse
import ast
import difflib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat

from cudacheck.source.reading import blank_comments

ROOT = Path(__file__).resolve().parents[2]


def check_notebook(path: Path, write: bool = False, root: Path = ROOT) -> list[str]:
    """Return messages about the differences in a notebook.

    write: copy the library's source into the cells, and return only the differences that copying cannot fix.
    """
    notebook = nbformat.read(path, as_version=4)
    default = notebook.metadata.get("nanoeuler", {}).get("module")
    problems, changed = [], False
    for number, cell in enumerate(notebook.cells):
        tags = set(cell.metadata.get("tags", ()))
        if cell.cell_type != "code" or not tags & {"mirror", "mirror-part"}:
            continue
        module = cell.metadata.get("nanoeuler", {}).get("module", default)
        try:
            source, found = check_cell(cell.source, module, "mirror-part" in tags, root)
        except (LookupError, SyntaxError, OSError) as error:
            problems.append(f"{path.name}, cell {number}: {error}")
            continue
        if write and source != cell.source:
            cell.source, changed, found = source, True, []
        problems += [f"{path.name}, cell {number}: {line}" for line in found]
    if changed:
        nbformat.write(notebook, path)
        print(f"updated {path.name}; run it again: make execute NB={path}")
    return problems


def check_cell(cell: str, module: str | list[str] | None, part: bool, root: Path) -> tuple[str, list[str]]:
    """Return a cell's text with the library's source copied into it, and messages about the differences.

    Raises LookupError if the cell cannot be compared with a module.
    """
    if module is None:
        raise LookupError("tagged mirror: the metadata of the cell or of the notebook must name a module")
    if cell.startswith("%%"):
        shown, truth = cpp_definitions(cell), {}
        for path in [module] if isinstance(module, str) else module:
            truth |= cpp_definitions((root / path).read_text("utf-8"))
    else:
        shown, truth = (
            python_definitions(source, part) for source in (cell, module_path(module, root).read_text("utf-8"))
        )
    if not shown:
        raise LookupError("tagged mirror: the cell must define something, got no definition")
    lines, problems = cell.splitlines(), []
    for name, ours in sorted(
        shown.items(), key=lambda item: -item[1].first
    ):  # from the bottom, so that line numbers stay valid
        if name not in truth:
            raise LookupError(f"{name} must be defined in {module}")
        theirs = truth[name]
        if not ours.shows(theirs):
            diff = difflib.unified_diff(theirs.lines, ours.lines, str(module), "notebook", lineterm="")
            problems.append(f"{name} differs from {module}\n" + "\n".join(diff))
            lines[ours.first - 1 : ours.last] = theirs.brief if ours.is_brief else theirs.lines
    return "\n".join(lines), problems


class Text:
    """The source of a definition, with decorators and comments, and its docstrings separately."""

    def __init__(self, source: str, node: ast.stmt):
        self.first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        self.last = node.end_lineno
        self.lines = source.splitlines()[self.first - 1 : self.last]
        self.brief = list(self.lines)  # with each docstring cut after its first line
        self.docstrings = []  # the lines of each docstring
        for doc in sorted(docstrings(node), key=lambda doc: -doc.lineno):
            start, stop = doc.lineno - self.first, doc.end_lineno - self.first + 1
            text = [line.strip() for line in doc.value.value.strip().splitlines()]
            indent = " " * doc.col_offset
            self.brief[start:stop] = [f'{indent}"""{text[0]}"""']
            self.docstrings.append(text)

    @property
    def is_brief(self) -> bool:
        return all(len(text) == 1 for text in self.docstrings)

    def shows(self, other: "Text") -> bool:
        """Return whether the source equals the source of `other`, apart from docstrings that end early."""
        return self.brief == other.brief and all(
            mine == theirs[: len(mine)] for mine, theirs in zip(self.docstrings, other.docstrings, strict=True)
        )


def python_definitions(source: str, part: bool) -> dict[str, Text]:
    """Return the top-level definitions of a source by name; with `part`, each method separately."""
    found = definitions(ast.parse(source))
    return {name: Text(source, node) for name, node in (with_methods(found) if part else found).items()}


def docstrings(node: ast.AST) -> list[ast.Expr]:
    return [
        inner.body[0]
        for inner in ast.walk(node)
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and ast.get_docstring(inner)
        and inner.body[0].lineno > inner.lineno
    ]


def definitions(tree: ast.Module | ast.ClassDef) -> dict[str, ast.stmt]:
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


def with_methods(shown: dict[str, ast.stmt]) -> dict[str, ast.stmt]:
    """Replace each class by its attributes and methods, named Class.name."""
    return {
        f"{name}.{inner}" if inner else name: node
        for name, outer in shown.items()
        for inner, node in (definitions(outer).items() if isinstance(outer, ast.ClassDef) else [("", outer)])
    }


@dataclass
class Lines:
    """The lines of a C++ definition, from its first line to the closing brace."""

    first: int
    last: int
    lines: list[str]
    is_brief = False

    def shows(self, other: "Lines") -> bool:
        return self.lines == other.lines


def cpp_definitions(source: str) -> dict[str, Lines]:
    """Return the functions, structs and #defines that start at the left margin, without declarations and comments."""
    code = blank_comments("\n" + source.partition("\n")[2] if source.startswith("%%") else source, strings=True)
    found, lines, number = {}, source.splitlines(), 0
    rows = code.splitlines()
    while number < len(rows):
        first, text = number, rows[number]
        if re.match(r"#\s*define\b", text):
            while rows[number].rstrip().endswith("\\"):
                number += 1
            name = re.match(r"#\s*define\s+(\w+)", text)
        elif re.match(r"[\w\[]", text):
            while not re.search(r"[;}]\s*$", text) or text.count("{") != text.count("}"):
                number += 1
                if number == len(rows):
                    raise LookupError(
                        f"line {first + 1} must begin a complete definition, got no end of it: {lines[first]}"
                    )
                text += "\n" + rows[number]
            head = re.sub(r"__launch_bounds__\s*\([^()]*\)", "", text.partition("{")[0])
            name = "{" in text and (re.search(r"(\w+)\s*\(", head) or re.search(r"struct\s+(\w+)", head))
        else:
            name = None
        if name:
            found[name[1]] = Lines(first + 1, number + 1, lines[first : number + 1])
        number += 1
    return found


def module_path(module: str, root: Path) -> Path:
    path = root.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="copy the library's text into the cells")
    write = parser.parse_args().write
    problems = [p for path in sorted((ROOT / "notebooks").glob("*.ipynb")) for p in check_notebook(path, write)]
    print(*problems, sep="\n", end="\n" if problems else "")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
