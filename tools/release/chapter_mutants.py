"""Test whether the checks of a chapter reject mutants, which are right answers changed in one place.

    make mutants CH=06                       # every mutant of every gap and exercise of the chapter
    make mutants CH=06 ARGS="--sample 10"    # ten mutants of each gap, sampled with --seed
    make mutants CH=06 ARGS=--accept         # record all accepted mutants as harmless; read them before

The gaps are the calls of `judge` in the notebook, and the right answer is the book's version. A mutant that a check
accepts may be equivalent to the right answer: chapter_mutants.json lists the digests of mutants that were recorded as
harmless. All other accepted mutants survive; chapter_mutants.toml lists known survivors, each with its reason.
"""

import argparse
import ast
import hashlib
import importlib
import inspect
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
from copy import deepcopy
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nanoeuler_book.checks import verdict
from nanoeuler_lib import cuda
from tools.notebooks.cells import code_cells, kernels, python
from tools.release.mutants import changed, equivalents

ROOT = Path(__file__).resolve().parents[2]
LISTED = Path(__file__).with_name("chapter_mutants.toml")
SEEN = Path(__file__).with_name("chapter_mutants.json")  # {"08 rmsnorm": digests}
LEFT = {"01 check_suspicious_words", "27 check_repair"}  # their answers need results of an experiment in the chapter
SECONDS = 5  # time limit of a mutant, plus ten times the time of the right answer
MEMORY = 8 << 30  # bytes of address space beyond the parent's, because a mutant may allocate without limit


@dataclass(frozen=True)
class Gap:
    """A call of `judge` in a chapter.

    name: NAME in own_NAME, the variable with the reader's answer. check: name of the check. expression: source of the
    right answer. names: functions or kernels in the expression that mutants change; none if the answer is a value.
    given, in_place: the other arguments of `judge`.
    """

    name: str
    check: str
    expression: str
    names: tuple[str, ...]
    given: tuple[str, ...] = ()
    in_place: bool = False

    def answer(self, chapter: SimpleNamespace) -> Any:
        """Return the answer that the chapter defines, right or changed by a mutant."""
        return eval(self.expression, dict(vars(chapter)))

    def verdict(self, chapter: SimpleNamespace, value: Any = None) -> str:
        """Return the message of `judge` about the chapter's answer, or about `value` if the answer is a value."""
        answer = self.answer(chapter)
        if not self.names:
            answer = (lambda: value) if callable(answer) else value
        given = [eval(text, dict(vars(chapter))) for text in self.given]
        return verdict(getattr(chapter, self.check), answer, *given, in_place=self.in_place)


@dataclass(frozen=True)
class Mutant:
    """One change of a right answer: the removed and the added lines, and the changed source or value."""

    answer: str
    old: str
    new: str
    content: Any = field(compare=False, hash=False)  # the text of the changed function or kernels, or the value

    def key(self, chapter: str) -> tuple[str, str, str, str]:
        return chapter, self.answer, self.old, self.new

    def digest(self) -> str:
        """Return the mutant's identifier in chapter_mutants.json, eight hexadecimal digits."""
        return hashlib.sha256("\n".join(self.key("")).encode()).hexdigest()[:8]


# ---- Wrong answers by rule: Python

OTHER = {
    ast.Add: [ast.Sub], ast.Sub: [ast.Add], ast.Mult: [ast.Div, ast.Add], ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mod, ast.Div], ast.Mod: [ast.FloorDiv], ast.Pow: [ast.Mult],
    ast.BitAnd: [ast.BitOr], ast.BitOr: [ast.BitAnd], ast.And: [ast.Or], ast.Or: [ast.And],
    ast.Lt: [ast.LtE, ast.GtE], ast.LtE: [ast.Lt, ast.Gt], ast.Gt: [ast.GtE, ast.LtE], ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.In: [ast.NotIn], ast.NotIn: [ast.In],
    ast.Is: [ast.IsNot], ast.IsNot: [ast.Is],
}  # fmt: skip
DRAWING = {"rng", "draw", "generator"}  # calls that draw random numbers are not changed


def number(node: ast.AST) -> int | float | None:
    """Return the value of a number literal, with its sign; None for other expressions."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and (n := number(node.operand)) is not None:
        return -n
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    return None


def instead(node: ast.AST, names: Sequence[str]) -> Iterator[ast.AST]:
    """Yield replacements of an expression: other operators, signs, constants, axes or arguments, or fewer terms."""
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
    """Yield replacements of a statement: `pass`, an in-place operation, one branch of an `if`, or a changed result."""
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
    """Yield distinct versions of a function with one change. sizes: values of its integer variables in the check."""
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
    """Yield the targets of assignments such as `B, T, C = x.shape`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            yield node.targets[0]


def places(body: list, function: ast.AST) -> Iterator[tuple]:
    """Yield (parent, field, index in the field's list, node) for each node of the statements that may be changed."""
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
    """Return the source with `new` in place of a node; the tree itself is restored."""
    kept = getattr(parent, key)
    setattr(parent, key, new[0] if i is None else [*kept[:i], *new, *kept[i + 1 :]])
    try:
        return ast.unparse(ast.fix_missing_locations(tree))
    finally:
        setattr(parent, key, kept)


class HardWired(ast.NodeTransformer):
    """Replace each use of a variable by a constant."""

    def __init__(self, name, value):
        self.name, self.value = name, value

    def visit_Name(self, node):
        read = node.id == self.name and isinstance(node.ctx, ast.Load)
        return ast.Constant(self.value) if read else node


def sizes_in(function: Callable, run: Callable) -> dict[str, set[int]]:
    """Call `run`, and return the integer values that a function's variables had, by name, for HardWired."""
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
    """Yield versions of a cell of kernels with one change by CUDA_RULES; comments stay unchanged."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", lambda comment: " " * len(comment[0]), source, flags=re.S)
    for pattern, others in CUDA_RULES.items():
        for match in re.finditer(pattern, code):
            yield from (source[: match.start()] + match.expand(new) + source[match.end() :] for new in others)


# ---- Wrong answers by rule: values


def value_mutants(value: Any) -> Iterator[Any]:
    """Yield wrong values close to a number, text or collection, with parts changed, removed, added or swapped."""
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


# ---- One mutant in a separate process


def changed_chapter(chapter: SimpleNamespace, mutant: Mutant) -> SimpleNamespace:
    """Return the chapter with the mutant instead of the right answer; checks and other functions are unchanged."""
    names = dict(vars(chapter))
    if mutant.content.startswith("%%cuda"):
        module = cuda.module(mutant.content.partition("\n")[2], checked=True)
        names |= {name: module[name] for name in module}
    else:
        exec(compile(mutant.content, "<mutant>", "exec"), names)
    return SimpleNamespace(**names)


def attempt(gap: Gap, chapter: SimpleNamespace, mutant: Mutant) -> str:
    """Try a mutant, and return "rejected" or "accepted"."""
    if not gap.names:
        return "accepted" if gap.verdict(chapter, deepcopy(mutant.content)) == "right" else "rejected"
    try:
        chapter = changed_chapter(chapter, mutant)
    except Exception:
        return "rejected"  # the mutant cannot be compiled or run
    return "accepted" if gap.verdict(chapter) == "right" else "rejected"


def _child(pipe, work, memory):
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    sys.stdout = sys.stderr = open("/dev/null", "w")  # ignore what a mutant prints
    pipe.send(work())


def attempts(work: Sequence[Callable[[], str]], seconds: float, processes: int) -> Iterator[tuple[int, str]]:
    """Run each job in a fork of this process, and yield (index, result) when a job ends.

    A job that fails or takes longer than `seconds` counts as "rejected".
    """
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
                    yield number, "rejected"  # the mutant ended its process
            elif time.monotonic() > end:
                yield number, "rejected"
            else:
                continue
            process.kill()
            process.join()
            del running[pipe]


def _memory():
    """Return the limit for a child's address space in bytes; 0 for no limit."""
    try:
        pages = int(Path("/proc/self/statm").read_text("utf-8").split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize() + MEMORY


# ---- A chapter


def load(number: str) -> tuple[SimpleNamespace, list[Gap], dict[str, str]]:
    """Return a chapter's variables, its gaps, and the sources of its functions and kernel cells, by name."""
    folders = str(ROOT / "tests" / "chapters"), str(ROOT / "tests"), str(ROOT)
    sys.path[:0] = [path for path in folders if path not in sys.path]
    notebook = importlib.import_module(f"test_chapter_{number}").NOTEBOOK
    from chapters import definitions
    from gap_runs import book_expression, judged

    chapter, texts, gaps = definitions(*notebook), {}, []
    cells = code_cells(notebook[0])
    for cell in cells:
        texts |= dict.fromkeys(kernels(cell), cell.source)
        functions = [node for node in ast.parse(python(cell)).body if isinstance(node, ast.FunctionDef)]
        texts |= {node.name: ast.unparse(node) for node in functions}
    whole = "\n\n".join(cell.source for cell in cells)
    for cell in cells:
        for own, call in judged(cell):
            check, _, *given = map(ast.unparse, call.args)
            if f"{number} {check}" in LEFT:
                continue
            expression = book_expression(whole, own, check, texts)
            if given == ["forward_to_use"]:
                given = [re.search(r"forward_to_use = \w+ or (\w+)", whole)[1]]
            gap = Gap(
                own.removeprefix("own_"),
                check,
                expression,
                names_in(expression, texts),
                tuple(given),
                bool(call.keywords),
            )
            gaps.append(replace(gap, names=()) if is_value(gap.answer(chapter)) else gap)
    return chapter, gaps, texts


def names_in(expression: str, texts: dict[str, str]) -> tuple[str, ...]:
    """Return the chapter's functions and kernels that an expression uses, each once."""
    names = (node.id for node in ast.walk(ast.parse(expression)) if isinstance(node, ast.Name))
    return tuple(dict.fromkeys(name for name in names if name in texts))


def is_value(answer: Any) -> bool:
    """Return whether an answer is a value, or a function without arguments that returns one."""
    if isinstance(answer, cuda.Kernel | tuple):
        return isinstance(answer, tuple) and not all(map(callable, answer))
    return not callable(answer) or not inspect.signature(answer).parameters


def written(value: Any) -> str:
    """Return the text of a value, with sets sorted, because the order of a set differs between processes."""
    return f"{{{', '.join(sorted(map(written, value)))}}}" if isinstance(value, set | frozenset) else repr(value)


def mutants_of(gap: Gap, chapter: SimpleNamespace, texts: dict[str, str]) -> list[Mutant]:
    """Return every mutant of a gap's right answer."""
    if not gap.names:
        right = gap.answer(chapter)
        right = right() if callable(right) else right
        distinct = {written(value): value for value in value_mutants(right) if repr(value) != repr(right)}
        return [Mutant(gap.name, written(right), text, value) for text, value in distinct.items()]
    found = []
    for name in gap.names:
        source = texts[name]
        if source.startswith("%%cuda"):
            new = cuda_mutants(source)
        else:
            new = python_mutants(source, sizes_in(getattr(chapter, name), lambda: gap.verdict(chapter)))
        found += [Mutant(name, *changed(source, text), text) for text in new]
    return [mutant for mutant in found if not mutant.old.startswith("raise ")]  # no check reads an error's text


def tried(number: str, sample: int = 0, seed: int = 0, processes: int = 2, only: str = "") -> Iterator[tuple]:
    """Try the mutants of a chapter, and yield (gap, mutant, outcome) for each.

    The outcome is "rejected", "the same" (recorded as harmless), "listed" or "survived". sample: number of mutants per
    gap, sampled with the seed; 0 for all. only: the name of a gap; "" for all gaps.
    """
    chapter, gaps, texts = load(number)
    known = {key for key in equivalents(LISTED) if key[0] == number}
    seen = json.loads(SEEN.read_text("utf-8"))
    for gap in gaps:
        if only and gap.name != only:
            continue
        mutants = mutants_of(gap, chapter, texts)
        if sample and sample < len(mutants):
            mutants = random.Random(f"{seed} {gap.name}").sample(mutants, sample)
        started = time.monotonic()
        if gap.names and (said := gap.verdict(chapter)) != "right":
            raise SystemExit(f"{gap.check} of chapter {number} must accept the right answer, got: {said}")
        limit = 10 * (time.monotonic() - started) + SECONDS
        work = [lambda gap=gap, m=m: attempt(gap, chapter, m) for m in mutants]
        harmless = seen.get(f"{number} {gap.name}", "").split()
        for i, outcome in attempts(work, limit, processes):
            if outcome == "accepted":
                listed, same = mutants[i].key(number) in known, mutants[i].digest() in harmless
                outcome = "listed" if listed else "the same" if same else "survived"
            yield gap.name, mutants[i], outcome


def table(rows: dict[str, Counter]) -> str:
    """Return a table of the number of mutants for each outcome, with one line per gap and a line of totals."""
    kinds = ("rejected", "the same", "listed", "survived")
    lines = [f"{'gap':<26} {'mutants':>8}" + "".join(f"{kind:>10}" for kind in kinds)]
    for name, row in [*rows.items(), ("all", sum(rows.values(), Counter()))]:
        lines.append(f"{name:<26} {row.total():>8}" + "".join(f"{row[kind]:>10}" for kind in kinds))
    return "\n".join(lines)


def accept(number: str, mutants: Sequence[tuple[str, Mutant]]) -> None:
    """Record these (gap, mutant) pairs as harmless, replacing all earlier records of the chapter."""
    seen = json.loads(SEEN.read_text("utf-8"))
    noted = {gap: digests for gap, digests in seen.items() if not gap.startswith(f"{number} ")}
    digests = {}
    for gap, mutant in mutants:
        digests.setdefault(f"{number} {gap}", set()).add(mutant.digest())
    lines = dict(sorted((noted | {gap: " ".join(sorted(found)) for gap, found in digests.items()}).items()))
    SEEN.write_text(json.dumps(lines, indent=1) + "\n", "utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants of a chapter and print a report; return 1 if a mutant survives."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.split("\n")[0])
    parser.add_argument("chapter", help="number of the chapter: 06")
    parser.add_argument("--gap", default="", help="only this gap: rmsnorm")
    parser.add_argument("--sample", type=int, default=0, help="number of mutants per gap; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--accept", action="store_true", help="record the survivors as harmless; read them before")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    if given.accept and (given.sample or given.gap):
        parser.error("--accept must be given without --sample and --gap, because it records all mutants of a chapter")
    rows: dict[str, Counter] = {}
    accepted = []
    for gap, mutant, outcome in tried(given.chapter, given.sample, given.seed, given.processes, given.gap):
        rows.setdefault(gap, Counter())[outcome] += 1
        accepted += [(gap, mutant)] * (outcome in ("the same", "survived"))
        if outcome == "survived":
            values = zip(("module", "function", "old", "new"), mutant.key(given.chapter), strict=True)
            print(f"survived: {gap}", *(f"    {name} = {json.dumps(v)}" for name, v in values), sep="\n", flush=True)
    print(table(rows))
    if given.accept:
        accept(given.chapter, accepted)
    return 0 if rows and (given.accept or not any(row["survived"] for row in rows.values())) else 1


if __name__ == "__main__":
    from tools.release import chapter_mutants  # import it under the name that the tests use

    sys.exit(chapter_mutants.main())
