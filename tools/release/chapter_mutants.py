"""Do the checks of a chapter reject wrong answers? Each right answer is changed in one place, and its check is asked.

    make mutants CH=06                       # every mutant of every gap that tests/chapters/test_chapter_06.py declares
    make mutants CH=06 ARGS="--sample 10"    # ten of each check, drawn with --seed

A mutant is *equivalent* if it does the same as the right answer on the gap's domain: 500 draws and all edges, in value,
shape, dtype, NaN, and in what it leaves of its arguments. The domain is written from the contract alone, not from the
check. A mutant that its check accepts although it is not equivalent survives. chapter_mutants.toml lists the
survivors that are left, each with its reason. Wanted: 99% rejected over the book, and no check below 90%.
"""

import argparse
import ast
import copy
import importlib
import itertools
import json
import multiprocessing
import random
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from nanoeuler_lib import cuda
from tools.notebooks.cells import code_cells, kernels, python
from tools.release.mutants import changed, equivalents

ROOT = Path(__file__).resolve().parents[2]
LISTED = Path(__file__).with_name("chapter_mutants.toml")
DRAWS = 500
EACH, ALL = 0.90, 0.99  # the shares that are wanted of a check, and of all
MEMORY = 8 << 30  # bytes of address space beyond the parent's: a mutant may well ask for all there is


@dataclass(frozen=True)
class Gap:
    """A gap whose answer is code.

    check: the check's name. answers: the chapter's right functions, or kernels of one cell, changed one at a time.
    verdict: what the reader is told, given the chapter with the changed answer in place of the right one.
    behaviour: what the answer does with an input, as far as the contract says: anything that `same` compares; it gets
    the chapter and a copy of the input, which is compared afterwards as well. draw: an input, given a Generator.
    edges: inputs that are always tried.
    """

    check: str
    answers: tuple[str, ...]
    verdict: Callable[[SimpleNamespace], str]
    behaviour: Callable[[SimpleNamespace, Any], Any]
    draw: Callable[[np.random.Generator], Any]
    edges: Sequence = ()


@dataclass(frozen=True)
class Value:
    """A gap whose answer is a set, a number, a word, or a tuple of them: what `answer` of the chapter returns.

    verdict: what the reader is told of a value. accepts: whether the value is right by a property or brute force.
    """

    check: str
    answer: str
    verdict: Callable[[SimpleNamespace, Any], str]
    accepts: Callable[[SimpleNamespace, Any], bool]


@dataclass(frozen=True)
class Mutant:
    """One change of a right answer: the lines that go and those that come, and what makes it."""

    answer: str
    old: str
    new: str
    content: Any = field(compare=False, hash=False)  # the text of the changed function or kernels, or the value

    def key(self, chapter: str) -> tuple[str, str, str, str]:
        return chapter, self.answer, self.old, self.new


# ---- Wrong answers by rule: Python

OTHER = {
    ast.Add: [ast.Sub], ast.Sub: [ast.Add], ast.Mult: [ast.Div, ast.Add], ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mod, ast.Div], ast.Mod: [ast.FloorDiv], ast.Pow: [ast.Mult],
    ast.BitAnd: [ast.BitOr], ast.BitOr: [ast.BitAnd], ast.And: [ast.Or], ast.Or: [ast.And],
    ast.Lt: [ast.LtE, ast.GtE], ast.LtE: [ast.Lt, ast.Gt], ast.Gt: [ast.GtE, ast.LtE], ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.In: [ast.NotIn], ast.NotIn: [ast.In],
    ast.Is: [ast.IsNot], ast.IsNot: [ast.Is],
}  # fmt: skip
DRAWING = {"rng", "draw", "generator"}  # a random function's draws are given, not changed


def number(node: ast.AST) -> int | float | None:
    """The value of a literal number, its sign included."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and (n := number(node.operand)) is not None:
        return -n
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    return None


def instead(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """What may stand in place of an expression: operators, signs, dropped terms, constants, axes, arguments, copies."""
    with_ = lambda **parts: type(node)(**{**dict(ast.iter_fields(node)), **parts})
    n = number(node)
    if n is not None:
        near = (n + 1, n - 1, -n, 0) if isinstance(n, int) else (2 * n, n / 2, -n, 0.0)
        yield from (ast.parse(repr(m), mode="eval").body for m in dict.fromkeys(near) if m != n)
        return
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            yield from (with_(op=other()) for other in OTHER.get(type(op), ()))
            yield left
            yield right
            if not isinstance(op, ast.Add | ast.Mult):
                yield with_(left=right, right=left)
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.BoolOp(op=op, values=values):
            yield with_(op=OTHER[type(op)][0]())
            yield from values
        case ast.Compare(ops=[op]):
            yield from (with_(ops=[other()]) for other in OTHER[type(op)])
        case ast.IfExp(body=body, orelse=orelse):
            yield body
            yield orelse
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Call(func=func, args=args, keywords=keywords):
            yield from (with_(args=swapped) for swapped in pairs_swapped(args))
            yield from (with_(keywords=keywords[:i] + keywords[i + 1 :]) for i in range(len(keywords)))
            if isinstance(func, ast.Attribute) and not (
                isinstance(func.value, ast.Name) and func.value.id in ("np", "math")
            ):
                yield func.value  # without the method: a copy, a transpose, a sum
            elif args and not isinstance(args[0], ast.Starred):
                yield args[0]
        case ast.Subscript(value=value, slice=index):
            yield value
            if isinstance(index, ast.Tuple):
                yield from (with_(slice=ast.Tuple(parts, ast.Load())) for parts in pairs_swapped(index.elts))
        case ast.Attribute(attr="inf"):
            yield ast.Constant(50.0)  # masks with a finite number
        case ast.Slice():
            yield from (with_(**{part: None}) for part in ("lower", "upper", "step") if getattr(node, part))
        case ast.Tuple(elts=elts, ctx=ast.Load()):
            yield from (with_(elts=parts) for parts in pairs_swapped(elts))
        case ast.Name(id=name, ctx=ast.Load()) if name in names:
            yield from (ast.Name(other, ast.Load()) for other in names if other != name)


def pairs_swapped(parts: list) -> Iterator[list]:
    for i, j in itertools.combinations(range(len(parts)), 2):
        found = list(parts)
        found[i], found[j] = found[j], found[i]
        yield found


def in_other_words(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """What may stand in place of a statement: nothing, its like in place, the other branch, a spoilt result."""
    match statement:
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield [ast.Pass()]
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp(left=ast.Name(id=left), op=op, right=right)):
            in_place = ast.AugAssign(ast.Name(left, ast.Store()), op, right)
            yield (
                [in_place] if left == name else [in_place, ast.Assign(statement.targets, ast.Name(left, ast.Load()))]
            )
        case ast.If(body=body, orelse=orelse):
            yield body
            yield orelse or [ast.Pass()]
        case ast.Return(value=ast.expr() as value):
            parts = value.elts if isinstance(value, ast.Tuple) else [value]
            rebuilt = lambda new: [ast.Return(ast.Tuple(new, ast.Load()) if isinstance(value, ast.Tuple) else new[0])]
            for i, part in enumerate(parts):
                for text in (
                    "-({})",
                    "({}).astype(np.float32)",
                    "({}).astype(np.float64)",
                    "({}) * np.nan",
                    "({}) + 1e-3",
                ):
                    changed_part = ast.parse(text.format(ast.unparse(part)), mode="eval").body
                    yield rebuilt([*parts[:i], changed_part, *parts[i + 1 :]])
            if isinstance(value, ast.Tuple):
                yield from (rebuilt(parts[:i] + parts[i + 1 :]) for i in range(len(parts)))


def python_mutants(source: str, sizes: dict[str, set[int]] | None = None) -> Iterator[str]:
    """The texts of a function with one change, each once. sizes: the values of whole-number names in the check."""
    tree = ast.parse(source)
    function = tree.body[0]
    names = [a.arg for a in function.args.args]
    shapes = [[e.id for e in t.elts if isinstance(e, ast.Name)] for t in unpacked(function)]
    body = function.body[1:] if ast.get_docstring(function) else function.body
    seen = {ast.dump(tree)}

    def texts():
        for parent, key, i, node in places(body, function):
            if isinstance(node, ast.expr):
                alike = next((s for s in (names, *shapes) if isinstance(node, ast.Name) and node.id in s), names)
                for new in instead(node, alike):
                    yield with_change(tree, parent, key, i, [new])
            elif isinstance(node, ast.stmt):
                for new in in_other_words(node):
                    yield with_change(tree, parent, key, i, new)
        for name, values in (sizes or {}).items():
            for value in sorted(values):
                yield ast.unparse(HardWired(name, value).visit(ast.parse(source)))

    for text in texts():
        dump = ast.dump(ast.parse(text))
        if dump not in seen:
            seen.add(dump)
            yield text


def unpacked(function: ast.FunctionDef) -> Iterator[ast.Tuple]:
    """The targets of `B, T, C = x.shape` and its like."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            yield node.targets[0]


def places(body: list, function: ast.AST) -> Iterator[tuple]:
    """(parent, field, place in the field's list, node) of what may be changed below a function's statements."""
    waiting = [(function, "body", function.body.index(node), node) for node in body]
    while waiting:
        parent, key, i, node = waiting.pop(0)
        if drawing(node):
            continue
        yield parent, key, i, node
        if number(node) is not None:
            continue
        for name, value in ast.iter_fields(node):
            below = value if isinstance(value, list) else [value]
            waiting += [
                (node, name, j if isinstance(value, list) else None, child)
                for j, child in enumerate(below)
                if isinstance(child, ast.AST) and name not in ("targets", "target", "func", "annotation", "returns")
            ]
            if name == "func" and isinstance(value, ast.Attribute):
                waiting.append((value, "value", None, value.value))


def drawing(node):
    return isinstance(node, ast.Call) and bool(DRAWING & {n.id for n in ast.walk(node.func) if isinstance(n, ast.Name)})


def with_change(tree, parent, key, i, new):
    """The text with another node in this place; the tree is as before."""
    kept = getattr(parent, key)
    setattr(parent, key, new[0] if i is None else [*kept[:i], *new, *kept[i + 1 :]])
    try:
        return ast.unparse(ast.fix_missing_locations(tree))
    finally:
        setattr(parent, key, kept)


class HardWired(ast.NodeTransformer):
    """A name's value written in wherever it is read."""

    def __init__(self, name, value):
        self.name, self.value = name, value

    def visit_Name(self, node):
        read = node.id == self.name and isinstance(node.ctx, ast.Load)
        return ast.Constant(self.value) if read else node


def sizes_in(function: Callable, run: Callable) -> dict[str, set[int]]:
    """The whole numbers that the function's names hold when `run` calls it: those that a mutant writes in."""
    found: dict[str, set[int]] = {}

    def trace(frame, event, _):
        if frame.f_code is function.__code__:
            if event == "return":
                for name, value in frame.f_locals.items():
                    if type(value) is int:
                        found.setdefault(name, set()).add(value)
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return found


# ---- Wrong answers by rule: CUDA C++, as text

CUDA_RULES = {
    r"__syncthreads\(\);|__syncwarp\(\);": [""],
    r"threadIdx\.x": ["threadIdx.y", "blockIdx.x"],
    r"blockIdx\.x": ["blockIdx.y", "threadIdx.x"],
    r"blockDim\.x": ["gridDim.x", "(blockDim.x - 1)"],
    r"gridDim\.x": ["blockDim.x"],
    r"(?<=[\w)\] ])<(?=[ \w(])(?!<)": ["<=", ">"],
    r"(?<=[\w)\] ])>(?=[ \w(])": [">=", "<"],
    r" \+ ": [" - ", " * "],
    r" - ": [" + "],
    r" \* ": [" + ", " / "],
    r" / ": [" * "],
    r" \+= ": [" = ", " -= "],
    r"(?<![\w.])(\d+)(?![\w.])": [r"(\1 + 1)", r"(\1 - 1)"],
    r"\bdouble\b": ["float"],
    r"\bfloat\b(?! *\*)": ["int"],
    r"\bfmaxf\b": ["fminf"],
    r"__shfl_xor_sync": ["__shfl_down_sync"],
    r"\batomicAdd\(&([^,]+), ([^)]+)\)": [r"\1 += \2"],
}


def cuda_mutants(source: str) -> Iterator[str]:
    """The texts of a cell of kernels with one change, by the table above; comments stay."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", lambda comment: " " * len(comment[0]), source, flags=re.S)
    for pattern, others in CUDA_RULES.items():
        for match in re.finditer(pattern, code):
            yield from (source[: match.start()] + match.expand(new) + source[match.end() :] for new in others)


# ---- Wrong answers by rule: values


def value_mutants(value: Any) -> Iterator[Any]:
    """Neighbours of a set, number, word, or of several: a part more, less or other, another order, none, too long."""
    match value:
        case bool():
            yield not value
        case int():
            yield from (value + 1, value - 1, -value, 0, 2 * value)
        case float():
            yield from (value * 1.1, value / 1.1, -value, 0.0, float("nan"))
        case str():
            yield from ("", value[:-1], value[::-1], value + value)
        case set() | frozenset():
            whole = set(value)
            yield from (whole - {part} for part in whole)
            yield from (whole | {new} for part in whole for new in value_mutants(part) if new not in whole)
            yield set()
        case dict():
            yield from ({k: v for k, v in value.items() if k != key} for key in value)
            yield from ({**value, key: new} for key in value for new in value_mutants(value[key]))
        case tuple() | list():
            parts = list(value)
            kind = type(value)
            yield from (
                kind(parts[:i] + [new] + parts[i + 1 :]) for i, p in enumerate(parts) for new in value_mutants(p)
            )
            yield from map(kind, pairs_swapped(parts))
            yield from (kind(parts[:-1]), kind(parts[1:]), kind(parts + parts[-1:]), kind())


# ---- The same?


def same(a: Any, b: Any, rtol: float = 1e-9) -> bool:
    """Whether two results agree: type of structure, shape, dtype, NaN, and value up to rounding."""
    if isinstance(a, tuple | list) or isinstance(b, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y, rtol) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key], rtol) for key in a)
    if not isinstance(a, np.ndarray | np.generic | float):
        return type(a) is type(b) and bool(a == b)
    if np.shape(a) != np.shape(b) or np.asarray(a).dtype != np.asarray(b).dtype:
        return False
    if np.asarray(a).dtype.kind not in "fc":
        return bool(np.array_equal(a, b))
    rtol = max(rtol, 1e3 * np.finfo(np.asarray(a).dtype).eps)
    size = np.max(np.abs(a), where=np.isfinite(a), initial=0)
    return bool(np.allclose(a, b, rtol=rtol, atol=rtol * size, equal_nan=True))


def does(gap: Gap, chapter: SimpleNamespace, given: Any) -> tuple:
    """What the chapter's answer does with a copy of an input: result or exception, and what is left of the input."""
    given = copy.deepcopy(given)
    try:
        with np.errstate(all="ignore"):
            result = gap.behaviour(chapter, given)
    except Exception as error:
        result = type(error).__name__
    return result, given


# ---- One mutant in a process of its own


def changed_chapter(chapter: SimpleNamespace, mutant: Mutant) -> SimpleNamespace:
    """The chapter with the mutant in place of the right answer. Checks and other functions keep the right one."""
    names = dict(vars(chapter))
    if mutant.content.startswith("%%cuda"):
        module = cuda.module(mutant.content.partition("\n")[2], checked=True)
        names |= {name: module[name] for name in module}
    else:
        exec(compile(mutant.content, "<mutant>", "exec"), names)
    return SimpleNamespace(**names)


def attempt(gap: Gap | Value, chapter: SimpleNamespace, mutant: Mutant, seed: int = 0, draws: int = DRAWS) -> str:
    """ "rejected", "equivalent" or "survived"."""
    if isinstance(gap, Value):
        if gap.verdict(chapter, copy.deepcopy(mutant.content)) != "right":
            return "rejected"
        return "equivalent" if gap.accepts(chapter, mutant.content) else "survived"
    try:
        other = changed_chapter(chapter, mutant)
    except Exception:
        return "rejected"  # no program
    if gap.verdict(other) != "right":
        return "rejected"
    rng = np.random.default_rng(seed)
    inputs = itertools.chain(gap.edges, (gap.draw(rng) for _ in range(draws)))
    alike = all(same(does(gap, chapter, given), does(gap, other, given)) for given in inputs)
    return "equivalent" if alike else "survived"


def _child(pipe, work, memory):
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    sys.stdout = sys.stderr = open("/dev/null", "w")  # what a mutant prints
    pipe.send(work())


def attempts(work: Sequence[Callable[[], str]], seconds: float, processes: int) -> Iterator[tuple[int, str]]:
    """Run each in a fork of this process; (number, verdict) as they end. What fails or takes too long is rejected."""
    fork = multiprocessing.get_context("fork")
    running, waiting = {}, list(enumerate(work))[::-1]
    while running or waiting:
        while waiting and len(running) < processes:
            number, job = waiting.pop()
            ours, theirs = fork.Pipe(duplex=False)
            process = fork.Process(target=_child, args=(theirs, job, _memory()), daemon=True)
            process.start()
            theirs.close()
            running[ours] = (number, process, time.monotonic() + seconds)
        wait(list(running), timeout=0.2)
        for pipe, (number, process, end) in list(running.items()):
            if pipe.poll():
                try:
                    yield number, pipe.recv()
                except EOFError:
                    yield number, "rejected"  # it ended its process
            elif time.monotonic() > end:
                yield number, "rejected"
            else:
                continue
            process.kill()
            process.join()
            del running[pipe]


def _memory():
    """The address space that a child may have, in bytes; 0 for no limit."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize() + MEMORY


# ---- A chapter


def load(number: str) -> tuple[SimpleNamespace, list, dict[str, str]]:
    """A chapter's names, the gaps that its tests declare, and the text of each function and of each cell of kernels."""
    folders = str(ROOT / "tests" / "chapters"), str(ROOT / "tests"), str(ROOT)
    sys.path[:0] = [path for path in folders if path not in sys.path]
    tests = importlib.import_module(f"test_chapter_{number}")
    from chapters import definitions

    names = tests.NOTEBOOK
    texts = {}
    for cell in code_cells(names[0]):
        texts |= dict.fromkeys(kernels(cell), cell.source)
        functions = [node for node in ast.parse(python(cell)).body if isinstance(node, ast.FunctionDef)]
        texts |= {node.name: ast.unparse(node) for node in functions}
    return definitions(*names), tests.DOMAINS, texts


def mutants_of(gap: Gap | Value, chapter: SimpleNamespace, texts: dict[str, str]) -> list[Mutant]:
    """Every mutant of a gap's right answers."""
    if isinstance(gap, Value):
        right = getattr(chapter, gap.answer)()
        distinct = {repr(value): value for value in value_mutants(right) if repr(value) != repr(right)}
        return [Mutant(gap.answer, repr(right), text, value) for text, value in distinct.items()]
    found = []
    for answer in gap.answers:
        source = texts[answer]
        if source.startswith("%%cuda"):
            new = cuda_mutants(source)
        else:
            new = python_mutants(source, sizes_in(getattr(chapter, answer), lambda: gap.verdict(chapter)))
        found += [Mutant(answer, *changed(source, text), text) for text in new]
    return found


def tried(number: str, sample: int = 0, seed: int = 0, processes: int = 2, only: str = "") -> Iterator[tuple]:
    """(check, mutant, verdict) of each gap of a chapter; "listed" where a survivor's reason is known.

    sample: so many mutants of each check, drawn with the seed; 0 for all. only: this check alone.
    """
    chapter, gaps, texts = load(number)
    known = {key: why for key, why in equivalents(LISTED).items() if key[0] == number}
    for gap in gaps:
        if only and gap.check != only:
            continue
        mutants = mutants_of(gap, chapter, texts)
        if sample and sample < len(mutants):
            mutants = random.Random(f"{seed} {gap.check}").sample(mutants, sample)
        started = time.monotonic()
        if isinstance(gap, Gap):
            if (said := gap.verdict(chapter)) != "right":
                raise SystemExit(f"{gap.check} of chapter {number} says of the right answer: {said}")
            for given in [*gap.edges, *(gap.draw(np.random.default_rng(seed)) for _ in range(DRAWS))]:
                does(gap, chapter, given)
        limit = 10 * (time.monotonic() - started) + 5
        work = [lambda gap=gap, m=m: attempt(gap, chapter, m, seed) for m in mutants]
        for i, verdict in attempts(work, limit, processes):
            listed = verdict == "survived" and mutants[i].key(number) in known
            yield gap.check, mutants[i], "listed" if listed else verdict


def table(rows: dict[str, Counter]) -> str:
    """A line for each check and one for all: how many of each verdict, and the share rejected."""
    kinds = ("rejected", "equivalent", "survived", "listed")
    lines = [f"{'check':<22} {'mutants':>8}" + "".join(f"{kind:>11}" for kind in kinds) + f"{'share':>8}"]
    for name, row in [*rows.items(), ("all", sum(rows.values(), Counter()))]:
        share = f"{part(row):8.1%}" if row["rejected"] + row["survived"] + row["listed"] else f"{'-':>8}"
        lines.append(f"{name:<22} {row.total():>8}" + "".join(f"{row[kind]:>11}" for kind in kinds) + share)
    return "\n".join(lines)


def part(row: Counter) -> float:
    """The share rejected of those that are not equivalent; a survivor that is listed is one."""
    wrong = row["rejected"] + row["survived"] + row["listed"]
    return row["rejected"] / wrong if wrong else 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Try, report; 1 if a share is too small."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.split("\n")[0])
    parser.add_argument("chapter", help="its number: 06")
    parser.add_argument("--check", default="", help="only this check")
    parser.add_argument("--sample", type=int, default=0, help="so many mutants of each check; 0 for all")
    parser.add_argument("--seed", type=int, default=0, help="which ones, and which draws of the domain")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    rows: dict[str, Counter] = {}
    for check, mutant, verdict in tried(given.chapter, given.sample, given.seed, given.processes, given.check):
        rows.setdefault(check, Counter())[verdict] += 1
        if verdict == "survived":
            values = zip(("module", "function", "old", "new"), mutant.key(given.chapter), strict=True)
            print(
                f"survived: {check}",
                *(f"    {name} = {json.dumps(v)}" for name, v in values),
                sep="\n",
                flush=True,
            )
    print(table(rows))
    enough = all(part(row) >= EACH for row in rows.values()) and part(sum(rows.values(), Counter())) >= ALL
    return 0 if rows and enough else 1


if __name__ == "__main__":
    from tools.release import chapter_mutants  # under the name by which the tests know it

    sys.exit(chapter_mutants.main())
