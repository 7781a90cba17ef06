"""Run a chapter with answers in all gaps that are right, wrong, half finished, that raise, or are right but unusual.

    python tests/chapters/gap_runs.py 06_attention right

A run executes all code cells in order, in one process with IPython's shell, after filling the gaps with such answers.
It prints one line of JSON: the errors by cell, the sentence of each check, and with "right" also invalid values that a
check accepted. The right answer to a gap is the book's version, found later in the notebook: the expression after
`own_NAME or`, or the argument that the solution passes to the check.
"""

import ast
import functools
import inspect
import io
import json
import os
import re
import sys
import types
from collections.abc import Collection
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import other_answers  # noqa: E402

from nanoeuler_book.checks import verdict  # noqa: E402
from nanoeuler_lib import cuda  # noqa: E402
from tools.notebooks.cells import code_cells, python  # noqa: E402

MODES = ("right", "wrong", "raising", "half", "other")
BOOK = {  # right answers that the notebook defines under different names
    "own_gradient": "lambda f, x, h=1e-5: numeric_gradient(f, x, h, order=2)",
    "own_attention_backward": "heads_backward",
    "own_transpose": "transpose_tiled",
    "own_sum": "sum_shuffle",
    "own_lse": "row_lse",
    "own_tiled": "matmul_tiled",
    "own_patch": "matmul_patch",
    "own_matmul": "matmul",
    "own_flash": "flash_tiles",
    "own_keys": "keys_kernel",
}

# ---- Answers


def half(value):
    """Return half of a result: half of a number, of an array's rows, of a tuple's parts, of a text."""
    if isinstance(value, tuple | list | str | bytes):
        return value[: len(value) // 2]
    if isinstance(value, dict):
        return dict(list(value.items())[: len(value) // 2])
    if isinstance(value, set | frozenset):
        return set(sorted(value, key=str)[: len(value) // 2])
    if isinstance(value, np.ndarray) and value.ndim:
        return value[: len(value) // 2]
    if isinstance(value, bool | np.bool_):
        return not value
    return value / 2 if isinstance(value, int | float | np.number | np.ndarray) else None


def too_long(value):
    """Return a result with an additional part at its end; None if that is not possible."""
    if isinstance(value, tuple | list):
        return value + value[-1:] if value else None
    if isinstance(value, str | bytes):  # in a kernel's source, an additional blank line would change nothing
        return value + value.rstrip()[-1:] if value.strip() else None
    if isinstance(value, dict):
        return value | {"one more": 1}
    if isinstance(value, set | frozenset):
        return {*value, "one more"}
    if isinstance(value, np.ndarray) and value.ndim and len(value):
        return np.concatenate([value, value[-1:]])
    return None


def other(value):
    """Return a result of the same form with different numbers."""
    if isinstance(value, tuple | list):
        parts = map(other, value)
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {key: other(v) for key, v in value.items()}
    if isinstance(value, bool | np.bool_) or getattr(value, "dtype", None) is np.dtype(bool):
        return np.logical_not(value)
    if isinstance(value, str | bytes):
        return "wrong" if isinstance(value, str) else b"wrong"
    return -value - 1 if isinstance(value, int | float | np.number | np.ndarray) else set()


def fails(*_, **__):
    raise ValueError("a reader's mistake")


def changed(answer, change):
    """Return the answer with `change` applied to its result, to the results of a tuple of functions, or to a value."""
    if isinstance(answer, tuple) and answer and all(map(callable, answer)):
        return tuple(changed(f, change) for f in answer)
    if not callable(answer):
        return change(answer)

    @functools.wraps(answer)
    def other_answer(*args, **kwargs):
        return change(answer(*args, **kwargs))

    return other_answer


def spoiled(answer):
    """Return a function that modifies its first argument, like the answer, but damages the second half of it."""

    @functools.wraps(answer)
    def half_done(first, *rest):
        answer(first, *rest)
        first[len(first) // 2 :] = -1

    return half_done


def junk_for(answer):
    """Return answers that no check may accept: empty, NaN, half, too long."""
    is_value = not callable(answer) and not (isinstance(answer, tuple) and any(map(callable, answer)))
    given = {"()": (), "[]": [], "{}": {}, "None": None, "nan": float("nan")}
    made = {name: changed(answer, lambda _, v=v: v) if not is_value else v for name, v in given.items()}
    made["half"] = changed(answer, half)
    made["nothing but nan"] = changed(answer, nans)
    made["too long"] = changed(answer, too_long)
    if is_value:
        made = {name: value for name, value in made.items() if value is not None and repr(value) != repr(answer)}
    return made


def listed(value):
    """Return a result with lists instead of arrays and frozensets instead of sets; saved values are unchanged."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(part.tolist() if isinstance(part, np.ndarray) else part for part in value)
    if isinstance(value, set):
        return frozenset(value)
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def in_another_way(name: str, chapter: str, stub, book):
    """Return the answer in other_answers.py, or the book's, with the stub's argument names and lists as results."""
    its = vars(getattr(other_answers, f"Chapter{chapter[:2]}", object))
    if name in its:
        return its[name]
    if not callable(stub) or not callable(book):
        return book
    takes = inspect.signature(stub)

    def other_way(*args, **kwargs):
        return listed(book(*takes.bind(*args, **kwargs).args))

    other_way.__signature__ = takes
    return other_way


def nans(value):
    """Return a result in which all numbers are NaN."""
    if isinstance(value, tuple | list):
        return tuple(map(nans, value))
    if isinstance(value, dict):
        return {key: nans(v) for key, v in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return np.full(value.shape, np.nan)
    if callable(value):
        return lambda *_, **__: float("nan")
    return "nan" if isinstance(value, str) else {float("nan")} if isinstance(value, set) else float("nan")


# ---- The notebook


def judged(cell) -> list[tuple[str, ast.Call]]:
    """Return the calls of `judge` in a check cell, each with the variable to which it is assigned."""
    if "check" not in cell.metadata.get("tags", ()):
        return []
    found = [node for node in ast.parse(python(cell)).body if isinstance(node, ast.Assign)]
    found = [n for n in found if isinstance(n.value, ast.Call) and getattr(n.value.func, "id", "") == "judge"]
    return [(node.targets[0].id, node.value) for node in found]


def book_expression(text: str, own: str, check: str, names: Collection[str]) -> str:
    """Return the source of the book's answer to `own = judge(check, ...)`: after `own or`, or in the solution.

    text: the chapter's code. names: the names that the chapter defines. Raises LookupError if there is no answer.
    """
    if own in BOOK:
        return BOOK[own]
    if found := re.search(rf"\b{own} or (\([^)]*\)|\w+)", text):
        return found[1]
    handed = re.search(rf'print\("\w+:", {check}\(((?:[^()]|\([^()]*\)|\([^()]*\([^()]*\)[^()]*\))*)\)\)', text)
    if handed:
        return ast.unparse(ast.parse(f"f({handed[1]})").body[0].value.args[0])
    name = own.removeprefix("own_")
    for found in (name, f"book_{name}", f"{name}_forward"):
        if found in names:
            return found
    raise LookupError(f"no right answer for {own} = judge({check}, ...)")


class Chapter:
    """The code cells of a chapter, and the IPython shell that runs them."""

    def __init__(self, name: str):
        from IPython.core.interactiveshell import InteractiveShell

        self.name, self.cells = name, code_cells(name)
        self.shell = InteractiveShell.instance()
        self.names = self.shell.user_ns
        self.text = "\n\n".join(cell.source for cell in self.cells)

    def run(self, source: str) -> str:
        """Run a cell, and return its error, "" if there is none."""
        with redirect_stdout(io.StringIO()) as said, redirect_stderr(io.StringIO()):
            result = self.shell.run_cell(source)
        self.said = said.getvalue()
        error = result.error_before_exec or result.error_in_exec
        return f"{type(error).__name__}: {error}" if error else ""

    def right_answer(self, own: str, call: ast.Call, at: int):
        """Return the book's answer for the check in cell `at`, without running the cells between them."""
        names, later = dict(self.names), {}
        for cell in self.cells[at:]:
            for name, make in definitions_of(cell).items():
                later.setdefault(name, make)
        expression = book_expression(self.text, own, ast.unparse(call.args[0]), {*later, *names})
        self.need(ast.parse(expression), names, later, set())
        return eval(expression, names)

    def need(self, tree: ast.AST, names: dict, later: dict, seen: set) -> None:
        """Define the names that `tree` reads and that later cells define, except a function's local variables."""
        own = bound(tree) if isinstance(tree, ast.FunctionDef) else set()
        for node in ast.walk(tree):
            name = getattr(node, "id", None) if isinstance(node, ast.Name) else None
            if name in later and name not in seen | own:
                seen.add(name)
                kind, source = later[name]
                if kind == "kernel":
                    names[name] = cuda.module(source)[name]
                else:
                    self.need(source, names, later, seen)
                    exec(compile(ast.Module([source], []), "later", "exec"), names)


def bound(function: ast.FunctionDef) -> set[str]:
    """Return the names of a function's arguments and local variables."""
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}


def definitions_of(cell) -> dict[str, tuple]:
    """Return the definitions in a cell by name: functions, top-level variables and kernels."""
    if cell.source.startswith("%%cuda\n"):
        text = cell.source.partition("\n")[2]
        return {
            name: ("kernel", text)
            for name in re.findall(r"__global__\s+void[^(]*?(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(", text)
        }
    found, folded = {}, {"solution", "mirror", "check"} & set(cell.metadata.get("tags", ()))
    for node in ast.parse(python(cell)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = ("python", node)
        elif folded and isinstance(node, ast.Assign) and "own_" not in ast.unparse(node):
            for target in ast.walk(node.targets[0]):
                if isinstance(target, ast.Name):
                    found[target.id] = ("python", node)
    return found


BOUNDS = r"(?:__launch_bounds__\([^)]*\)\s+)?"
KERNEL = re.compile(rf'(extern "C" __global__\s+void {BOUNDS}(my_\w+)\(([^)]*)\) \{{)\n(.*?)\n\}}', re.S)


def kernel_text(text: str, mode: str) -> str:
    """Return a gap's CUDA source with a body that writes nothing, wrong numbers, or out of bounds."""

    def body(match):
        if mode == "other":
            mine = other_answers.KERNELS.get(match[2])
            return f"{match[1]}{mine}\n}}" if mine else match[0]
        target = re.search(r"(?<!const )(?:float|int)\* (\w+)", match[3])[1]
        said = {"half": "", "wrong": f"  {target}[0] = 7;", "raising": f"  {target}[100000000] = 7;"}[mode]
        return f"{match[1]}\n{said}\n}}"

    return KERNEL.sub(body, text).replace("// your code here", "")


def fill(chapter: Chapter, at: int, mode: str) -> None:
    """Assign answers to the gaps that the check in cell `at` judges."""
    for own, call in judged(chapter.cells[at]):
        mine = call.args[1]
        targets = [part.id for part in (mine.elts if isinstance(mine, ast.Tuple) else [mine])]
        stubs = [chapter.names[name] for name in targets]
        filled = targets[0] in other_answers.KERNELS if mode == "other" else mode != "right"
        if type(stubs[0]).__name__ == "Kernel" and filled:
            continue  # the source of the gap was changed instead
        right = chapter.right_answer(own, call, at)
        change = {"right": lambda v: v, "wrong": other, "half": half}.get(mode)
        if mode == "raising":
            answer = fails if callable(stubs[0]) else 3
            answers = [answer] * len(targets)
        else:
            in_place = call.keywords and mode != "right"
            keep = type(stubs[0]).__name__ == "Kernel"
            made = right if keep or mode == "other" else spoiled(right) if in_place else changed(right, change)
            answers = list(made) if len(targets) > 1 else [made]
            if mode == "other" and not keep:
                answers = [in_another_way(*of) for of in zip(targets, [chapter.name] * 9, stubs, answers)]
        for name, answer in zip(targets, answers, strict=True):
            if isinstance(answer, types.FunctionType):
                answer.__name__ = name
            chapter.names[name] = answer


def main(name: str, mode: str) -> dict:
    chapter = Chapter(name)
    errors, verdicts, accepted = {}, {}, {}
    for at, cell in enumerate(chapter.cells):
        tags = set(cell.metadata.get("tags", ()))
        source = kernel_text(cell.source, mode) if "gap" in tags and mode != "right" else cell.source
        calls = judged(cell)
        if calls:
            fill(chapter, at, mode)
        error = chapter.run(source)
        if error and "raises-exception" not in tags:
            errors[at] = error
        for own, call in calls:
            verdicts[own] = [line for line in chapter.said.splitlines()]
            if mode == "right" and not error:
                accepted |= try_junk(chapter, own, call)
    return {"errors": errors, "verdicts": verdicts, "accepted": accepted, "cells": len(chapter.cells)}


def try_junk(chapter: Chapter, own: str, call: ast.Call) -> dict:
    """Return the invalid answers that a check accepts: {own name: [descriptions]}."""
    check, mine, *given = (eval(ast.unparse(a), chapter.names) for a in call.args)
    if type(mine).__name__ == "Kernel" or (isinstance(mine, tuple) and type(mine[0]).__name__ == "Kernel"):
        return {}
    if call.keywords:  # in_place: the check ignores the result of such a function
        return {}
    found = []
    for what, junk in junk_for(mine).items():
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            if verdict(check, junk, *given, seconds=20) == "right":
                found.append(what)
    return {own: found} if found else {}


if __name__ == "__main__":
    os.chdir(ROOT / "notebooks")
    os.environ.setdefault("MPLBACKEND", "Agg")
    print(json.dumps(main(sys.argv[1], sys.argv[2])))
