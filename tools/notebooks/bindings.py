"""Find the statements of a notebook that a definition needs, by the names that each statement binds and reads."""

import ast
import builtins
import math
import re
import symtable
from dataclasses import dataclass

from tools.notebooks.cells import python

KERNEL = re.compile(r'extern "C"\s+__global__\s+void\s*(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(')


@dataclass(frozen=True, order=True)
class Statement:
    """A statement at the top level of a notebook's cell, with the names that it binds and the names that it reads."""

    cell: int
    line: int
    source: str
    binds: frozenset
    reads: frozenset

    @property
    def is_definition(self) -> bool:
        return self.source.startswith(("def ", "class ", "@", "made = cuda.module("))

    @property
    def is_import(self) -> bool:
        return self.source.startswith(("import ", "from "))


def statements(cell, number: int) -> list[Statement]:
    """Return the top-level statements of a code cell. For a CUDA cell, the statements compile and bind its kernels.

    In an expression such as `own_x or book_x` the reader's answer is removed, which leaves `book_x`.
    """
    magic, _, text = cell.source.partition("\n")
    if magic in ("%%cuda", "%%cuda --cpu"):
        names, where = KERNEL.findall(text), ', where="cpu"' if magic.endswith("--cpu") else ""
        source = f'made = cuda.module(r"""\n{text}\n"""{where})\n' + "\n".join(f'{n} = made["{n}"]' for n in names)
        return [Statement(number, 1, source, frozenset(names), frozenset({"cuda"}))]
    text = python(cell)
    lines, found = text.split("\n"), []
    for node in ast.parse(text).body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        source = "\n".join(lines[first - 1 : node.end_lineno])
        without = ast.unparse(_Book().visit(ast.parse(source)))
        if without != ast.unparse(ast.parse(source)):
            source = without
        if not re.fullmatch(r"(\w+) = \1", source):
            binds = frozenset(_bound(ast.parse(source).body[0]))
            found.append(Statement(number, first, source, binds, reads(source)))
    return found


class _Book(ast.NodeTransformer):
    """Replace `own_x or book_x` and `book_x if own_x is None else own_x` by `book_x`."""

    def visit_BoolOp(self, node):
        others = [self.visit(v) for v in node.values if not _is_own(v)]
        if len(others) == len(node.values):
            return node
        return others[0] if len(others) == 1 else ast.BoolOp(node.op, others)

    def visit_IfExp(self, node):
        return self.visit(node.body) if _is_own(node.orelse) else self.generic_visit(node)


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id.startswith("own_")


def _bound(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def reads(source: str) -> frozenset:
    """Return the global names that code reads, also in functions and by `+=`, without Python's built-in names."""
    added = {
        n.target.id
        for n in ast.walk(ast.parse(source))
        if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
    }

    def of(table):
        found = {
            s.get_name()
            for s in table.get_symbols()
            if (s.is_referenced() or s.get_name() in added) and (s.is_global() or table.get_type() == "module")
        }
        return found.union(*map(of, table.get_children()))

    return frozenset(of(symtable.symtable(source, "cell", "exec"))) - frozenset(dir(builtins))


class Bindings:
    """The statements of a notebook's code cells, in order. skip(cell): whether to leave a cell out."""

    def __init__(self, cells: list, skip=lambda cell: False):
        self.statements = [
            s
            for number, cell in enumerate(cells)
            if cell.cell_type == "code" and not skip(cell)
            for s in statements(cell, number)
        ]

    def needed(self, names, before: int) -> list[Statement]:
        """Return the statements that bind these names, and the statements that they need in turn, in order.

        For each name, the last statement up to cell `before` counts, or else the first statement after this cell.
        Raises LookupError if no statement binds a name.
        """
        chosen, asked = set(), [(name, (before, math.inf)) for name in names]
        seen = set()
        while asked:
            name, at = asked.pop()
            if (name, at) in seen:
                continue
            seen.add((name, at))
            places = [s for s in self.statements if name in s.binds]
            if not places:
                raise LookupError(f"{name}: no cell of the notebook defines it")
            earlier = [s for s in places if (s.cell, s.line) <= at]
            statement = earlier[-1] if earlier else places[0]
            if statement not in chosen:
                chosen.add(statement)
                asked += [(n, (statement.cell, math.inf)) for n in statement.reads - statement.binds]
                if not statement.is_definition:  # `x += 1` needs the statement that bound x before
                    asked += [(n, (statement.cell, statement.line - 1)) for n in statement.reads & statement.binds]
        return sorted(chosen)
