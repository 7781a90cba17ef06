"""What a chapter needs besides its subject: the verdict on a reader's answer, and the book's stored results.

`judge` runs a check, prints one line and never stops the notebook.

A check is a function of the answer. It returns "right" or "not written yet", or raises AssertionError with the one
line that the reader needs.
"""

import ast
import builtins
import contextlib
import dis
import functools
import inspect
import json
import linecache
import math
import os
import re
import signal
import symtable
import sys
import textwrap
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler_lib import ops
from nanoeuler_lib.errors import NanoEulerError

__all__ = ["judge", "results", "show_rejected", "verdict"]

PACKAGE = Path(__file__).resolve().parent

# an emulated machine needs more
SECONDS = float(os.environ.get("NANOEULER_CHECK_SECONDS", 60))
SAME = re.compile(r"(?<!\S)(\S*\d\S*), expected \1(?![\w.]*\w)")  # a difference that the printed digits hide
PATIENCE = 4  # times as many seconds where others have the processor

SHELL = getattr(builtins, "get_ipython", lambda: None)()  # IPython's, in a notebook
# What binds a gap, my_..., in the text of a cell that Python cannot parse: CUDA C++, or Python with a mistake.
BINDS = re.compile(r"^(?:def|class)\s+(my_\w+)|^(my_\w+)\s*=(?!=)|__global__[^;{]*?\b(my_\w+)\s*\(", re.M)
STOPPED: dict[str, str] = {}  # by gap: how the last cell that binds it stopped, where that was before it did
BOUND: dict[str, dict[str, float]] = {}  # by cell, its id or else its text: the gaps that it has bound


def judge(check: Callable, mine: Any, *given: Any, in_place: bool = False, seconds: float = SECONDS) -> Any:
    """Print the line of the check about the answer; return the answer if it is right, else None.

    mine: the reader's function, a tuple of functions, or a value. given: what else the check takes; if a function is
    among it, the forward pass with which a backward pass is tried, the line says whose it is. in_place: the contract
    lets the function write into its arguments; otherwise that counts as a mistake. seconds: when a check is stopped.

    In a notebook, an answer is not checked if its cell stopped before it bound the name, which still has its old value.
    """
    for name in sys._getframe(1).f_code.co_names:  # the names in the statement that calls judge
        if name in STOPPED:
            print(f"{name}: the cell above {STOPPED[name]}: run it again when it is mended", flush=True)
            return None
    line = verdict(check, mine, *given, in_place=in_place, seconds=seconds)
    name = getattr(mine, "__name__", getattr(mine, "name", "my_" + check.__name__.removeprefix("check_")))
    with_whose = "".join(f" (with {author(g)})" for g in given if callable(g) and line != "not written yet")
    print(verdict_line(name, line) + with_whose, flush=True)
    return mine if line == "right" else None


def note_cell(result: Any) -> None:
    """Note which gaps a notebook's cell has bound, and which not because it stopped (IPython's post_run_cell)."""
    text, error = result.info.raw_cell, result.error_before_exec or result.error_in_exec
    cell, gaps, line = result.info.cell_id or text, gaps_of(text), line_of(error, text) if error else 0
    if error:
        gaps = dict.fromkeys(BOUND.get(cell, ()), math.inf) | gaps
    else:
        BOUND[cell] = gaps
    for name, last in gaps.items():
        if not error or last < line:
            STOPPED.pop(name, None)
        else:
            STOPPED[name] = f"stopped with {type(error).__name__}" + f" in line {line}" * (line > 0)
            SHELL.user_ns.setdefault(name, lambda *args, **kwargs: None)  # as if not written yet


def gaps_of(text: str) -> dict[str, float]:
    """The gaps, my_..., that a cell binds, each with the last line of its statement, infinity where that is unknown."""
    try:
        return {
            symbol.get_name(): statement.end_lineno
            for statement in ast.parse(text).body
            for symbol in symtable.symtable(ast.unparse(statement), "cell", "exec").get_symbols()
            if symbol.get_name().startswith("my_") and (symbol.is_assigned() or symbol.is_imported())
        }
    except (SyntaxError, ValueError):
        return {name: math.inf for found in BINDS.findall(text) for name in found if name}


def line_of(error: BaseException, text: str) -> int:
    """The line of the cell at which it stopped; 0 if that is unknown."""
    if text.lstrip().startswith("%%"):  # one line for Python; a kernel's error names the cell's line
        found = re.match(r"kernel\.cu, line (\d+)", str(error))
        return int(found[1]) if found else 0
    frames = traceback.walk_tb(error.__traceback__)
    in_cell = (number for frame, number in frames if frame.f_globals.get("__name__") == "__main__")
    return next(in_cell, getattr(error, "lineno", None) or 0)


def verdict_line(name: str, line: str) -> str:
    """A verdict in words, and where the output shows colours in white on green if it is right, on red if it is wrong.

    Green or red letters cannot be read on both a light and a dark page. "not written yet" has no colour: so what
    notebooks store is the same wherever it is run.
    """
    if line == "not written yet":
        return f"{name}: {line}"
    head, tail = (f"{name}: right", "") if line == "right" else (f"{name}, wrong:", f" {line}")
    if not coloured():
        return head + tail
    return f"\x1b[1;38;5;231;48;5;{28 if line == 'right' else 160}m{head}\x1b[0m{tail}"


def coloured() -> bool:
    """Whether stdout is a notebook or a terminal, and NO_COLOR (no-color.org) is not set."""
    notebook = type(sys.stdout).__module__.startswith("ipykernel")
    return not os.environ.get("NO_COLOR") and (notebook or sys.stdout.isatty())


def author(function: Callable) -> str:
    name = function.__name__
    return f"your {name}" if name.startswith("my_") else f"the book's {name}"


def verdict(check: Callable, mine: Any, *given: Any, in_place: bool = False, seconds: float = SECONDS) -> str:
    """The line of a check about an answer, "right" if it is right. Whatever the answer does, nothing is raised.

    Warnings are dropped, and what the answer writes to stderr goes to stdout. A KeyboardInterrupt passes.
    """
    answer = mine if in_place else watched(mine)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(sys.stdout), time_limit(seconds):
            warnings.simplefilter("ignore")
            line = check(answer, *given)
        if str(line) == "not written yet" and any(written(f) for f in functions(mine)):
            line = "it returns None"
    except (Exception, SystemExit) as error:
        line = message(error) if isinstance(error, AssertionError) and str(error) else stopped(error, mine)
    return " ".join(str(line).split())


def functions(answer: Any) -> list[Callable]:
    """The Python functions that an answer is, or holds as a tuple."""
    parts = answer if isinstance(answer, tuple) else (answer,)
    return [part for part in parts if inspect.isfunction(part)]


def written(function: Callable) -> bool:
    """Whether its body differs from a stub's, which is `return None`."""
    steps = [(step.opname, step.argval) for step in dis.get_instructions(inspect.unwrap(function))]
    return steps != [(step.opname, step.argval) for step in dis.get_instructions(lambda: None)]


def message(error: AssertionError) -> str:
    """The message of a check. If two numbers in it have the same digits, their difference is added."""
    line = str(error)
    if not (same := SAME.search(line)):
        return line
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    names, numbers = frame.f_globals | frame.f_locals, set()
    with contextlib.suppress(Exception):
        source = ast.parse(textwrap.dedent(inspect.getsource(frame.f_code)))
        for part in ast.walk(source):  # both numbers are values of an f-string in the function that failed
            with contextlib.suppress(Exception):
                if isinstance(part, ast.FormattedValue) and eval(ast.unparse(ast.JoinedStr([part])), names) == same[1]:
                    numbers.add(float(eval(ast.unparse(part.value), names)))
    difference = f"by {max(numbers) - min(numbers):.0e}" if len(numbers) > 1 else "by less than these digits show"
    return f"{line[: same.end()]} (off {difference}){line[same.end() :]}"


def stopped(error: BaseException, answer: Any) -> str:
    """The exception, and the last line of the answer that it passed. Lines of the check are not shown."""
    kind, why = type(error).__name__, f": {error}" if str(error) else ""
    codes = {getattr(inspect.unwrap(f), "__code__", f.__code__) for f in functions(answer)}
    files, lines = {code.co_filename for code in codes}, []
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code in codes or (lines and frame.f_code.co_filename in files):
            lines.append(linecache.getline(frame.f_code.co_filename, number).strip())
    if codes and not lines:
        form = " as an array: is it a list?" if "list" in str(error) else ""
        return f"what it returns cannot be used{form}, {kind}{why}"
    return f"it stops with {kind}{f' at `{lines[-1]}`' if lines else ''}{why}"


def say_failure(failed: dict[str, Callable], error: Exception) -> None:
    """Say which functions in `ops.use` failed inside the model, and that the book's take their place."""
    names = " and ".join(dict.fromkeys(getattr(f, "__name__", name) for name, f in failed.items()))
    print(
        f"{names}: inside the model {stopped(error, tuple(failed.values()))}."
        f" This step is taken again from its beginning with the book's {' and '.join(failed)}.",
        flush=True,
    )


def watched(answer: Any) -> Any:
    """The function, wrapped: it raises AssertionError if the function changed an array among its arguments.

    In a tuple each function is wrapped; any other value stays as it is.
    """
    if isinstance(answer, tuple):
        return tuple(map(watched, answer))
    if not inspect.isfunction(answer):
        return answer

    @functools.wraps(answer)
    def call(*args, **kwargs):
        try:
            named = inspect.signature(answer).bind(*args, **kwargs).arguments
        except TypeError as error:
            raise AssertionError(f"it cannot be called with the arguments of the gap: {error}") from None
        before = [(name, a, a.tobytes()) for name, value in named.items() for a in arrays(value)]
        result = answer(*args, **kwargs)
        for name, a, content in before:
            assert a.tobytes() == content, f"it writes into its argument {name}: work on a copy"
        return result

    return call


def arrays(value: Any) -> Iterator[np.ndarray]:
    """The arrays in a value: itself, or those in a tuple, list or dict."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from arrays(part)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Stop what runs inside after so many seconds with an AssertionError; only the main thread can be stopped so.

    If the machine is busy and this process had the processor for less than half of them, it gets as many seconds again,
    PATIENCE times in all: an answer is not wrong because others compute.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    late, ended, main, waited = threading.Event(), threading.Event(), threading.get_ident(), []
    began = time.process_time()

    def watch():
        for _ in range(PATIENCE):
            if ended.wait(seconds):
                return
            waited.append(seconds)
            if time.process_time() - began >= seconds / 2:
                break
        late.set()
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(main, signal.SIGINT)  # wakes a sleep or a lock, too
        else:
            signal.raise_signal(signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except KeyboardInterrupt:
        if not late.is_set():
            raise
        raise AssertionError(f"no end after {sum(waited):g} seconds") from None
    finally:
        ended.set()
        signal.signal(signal.SIGINT, handler)


def show_rejected(check: Callable, wrong_answers: dict[str, Any], *given: Any, in_place: bool = False) -> None:
    """Print why a check rejects each wrong answer, {what is wrong: answer}; RuntimeError if it accepts one."""
    for what, wrong in wrong_answers.items():
        line = verdict(check, wrong, *given, in_place=in_place)
        if line in ("right", "not written yet"):
            raise RuntimeError(f"{check.__name__} says {line} to a wrong answer: {what}")
        print(f"rejected, {what}: {line}")


def results(name: str) -> dict[str, Any]:
    """Read a stored result of the book, such as "ch18": its "rows", and "config", "commit", "date" and "machine".

    The folders, in this order: data/results of the working directory and of each folder above it, of a checkout that
    the library is imported from, and the copy in an installed library. Raises NanoEulerError if none has the file.
    """
    roots = (Path.cwd(), *Path.cwd().parents, PACKAGE.parent)
    for folder in (*(root / "data" / "results" for root in roots), PACKAGE / "results"):
        if (path := folder / f"{name}.json").is_file():
            return json.loads(path.read_text("utf-8"))
    raise NanoEulerError(
        f"the stored result must be a file of data/results in the book's repository, got {name!r}: run this notebook "
        "in a clone of the repository, or install the library anew with python -m pip install CLONE"
    )


if SHELL:
    SHELL.events.register("post_run_cell", note_cell)
    ops.on_failure = say_failure
