"""Check a reader's answer in a notebook, and load the book's stored results. Every chapter imports this module.

`judge` runs a check, prints its result in one line and never stops the notebook.

A check is a function that takes the answer. It returns "right" or "not written yet", or raises AssertionError with one
line that names the mistake.
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

# An emulated machine is slower and needs a higher limit.
SECONDS = float(os.environ.get("NANOEULER_CHECK_SECONDS", 60))
SAME = re.compile(r"(?<!\S)(\S*\d\S*), expected \1(?![\w.]*\w)")  # two numbers that print alike
PATIENCE = 4  # the limit is extended up to this many times while other processes use the processor

SHELL = getattr(builtins, "get_ipython", lambda: None)()  # IPython's shell in a notebook, None elsewhere
# A gap is a function my_... that the reader writes. This finds the gaps that a cell defines where Python cannot parse
# its text: CUDA C++, or Python with a syntax error.
BINDS = re.compile(r"^(?:def|class)\s+(my_\w+)|^(my_\w+)\s*=(?!=)|__global__[^;{]*?\b(my_\w+)\s*\(", re.M)
STOPPED: dict[str, str] = {}  # gap -> the error that stopped its cell before the gap was defined
BOUND: dict[str, dict[str, float]] = {}  # cell id, or its text without one -> the gaps that the cell has defined


def judge(check: Callable, mine: Any, *given: Any, in_place: bool = False, seconds: float = SECONDS) -> Any:
    """Check an answer and print the result in one line; return the answer if it is right, else None.

    mine: the reader's function, a tuple of functions, or a value. given: further arguments of the check; if one of them
    is a function (such as the forward pass in a test of a backward pass), the printed line names its author. in_place:
    True if the function may write into its arguments; otherwise such a write is a mistake. seconds: time limit.

    In a notebook, an answer is not checked if an error stopped its cell before the name was defined, because the name
    still has its old value.
    """
    for name in sys._getframe(1).f_code.co_names:  # the names in the statement that calls judge
        if name in STOPPED:
            print(f"{name}: the cell above {STOPPED[name]}: fix it and run it again", flush=True)
            return None
    line = verdict(check, mine, *given, in_place=in_place, seconds=seconds)
    name = getattr(mine, "__name__", getattr(mine, "name", "my_" + check.__name__.removeprefix("check_")))
    with_whose = "".join(f" (with {author(g)})" for g in given if callable(g) and line != "not written yet")
    print(verdict_line(name, line) + with_whose, flush=True)
    return mine if line == "right" else None


def note_cell(result: Any) -> None:
    """Record which gaps a notebook cell has defined, and which gaps are undefined because an error stopped the cell.

    IPython calls this function after every cell (event post_run_cell).
    """
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
            SHELL.user_ns.setdefault(name, lambda *args, **kwargs: None)  # the check then prints "not written yet"


def gaps_of(text: str) -> dict[str, float]:
    """Return the gaps that a cell defines, each with the last line of its statement (infinity if unknown)."""
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
    """Return the line of the cell at which an error stopped it; 0 if the line is unknown."""
    if text.lstrip().startswith("%%"):  # Python sees a magic as one line, but a kernel's error names the cell's line
        found = re.match(r"kernel\.cu, line (\d+)", str(error))
        return int(found[1]) if found else 0
    frames = traceback.walk_tb(error.__traceback__)
    in_cell = (number for frame, number in frames if frame.f_globals.get("__name__") == "__main__")
    return next(in_cell, getattr(error, "lineno", None) or 0)


def verdict_line(name: str, line: str) -> str:
    """Return the line to print for a verdict; if colours work, right is white on green and wrong is white on red.

    Only the background is coloured, since green or red letters are unreadable on either a light or a dark page.
    "not written yet" has no colour, so that a notebook's stored output is the same on every machine.
    """
    if line == "not written yet":
        return f"{name}: {line}"
    head, tail = (f"{name}: right", "") if line == "right" else (f"{name}, wrong:", f" {line}")
    if not coloured():
        return head + tail
    return f"\x1b[1;38;5;231;48;5;{28 if line == 'right' else 160}m{head}\x1b[0m{tail}"


def coloured() -> bool:
    """Return whether to print colours: stdout is a notebook or a terminal, and NO_COLOR (no-color.org) is not set."""
    notebook = type(sys.stdout).__module__.startswith("ipykernel")
    return not os.environ.get("NO_COLOR") and (notebook or sys.stdout.isatty())


def author(function: Callable) -> str:
    """Return the name of a function with its author: "your my_norm" or "the book's norm"."""
    name = function.__name__
    return f"your {name}" if name.startswith("my_") else f"the book's {name}"


def verdict(check: Callable, mine: Any, *given: Any, in_place: bool = False, seconds: float = SECONDS) -> str:
    """Return the result of a check in one line ("right" for a right answer), even if the answer raises an exception.

    Warnings are suppressed, and stderr is redirected to stdout. Only a KeyboardInterrupt by the user is raised.
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
    """Return the Python functions in an answer, which may be a single function or a tuple."""
    parts = answer if isinstance(answer, tuple) else (answer,)
    return [part for part in parts if inspect.isfunction(part)]


def written(function: Callable) -> bool:
    """Return whether the body of a function differs from the body of the stub, which is `return None`."""
    steps = [(step.opname, step.argval) for step in dis.get_instructions(inspect.unwrap(function))]
    return steps != [(step.opname, step.argval) for step in dis.get_instructions(lambda: None)]


def message(error: AssertionError) -> str:
    """Return a check's message; if two numbers in the message look equal, their difference is added."""
    line = str(error)
    if not (same := SAME.search(line)):
        return line
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    names, numbers = frame.f_globals | frame.f_locals, set()
    with contextlib.suppress(Exception):
        source = ast.parse(textwrap.dedent(inspect.getsource(frame.f_code)))
        for part in ast.walk(source):  # both numbers come from an f-string in the function that failed
            with contextlib.suppress(Exception):
                if isinstance(part, ast.FormattedValue) and eval(ast.unparse(ast.JoinedStr([part])), names) == same[1]:
                    numbers.add(float(eval(ast.unparse(part.value), names)))
    difference = f"by {max(numbers) - min(numbers):.0e}" if len(numbers) > 1 else "by less than these digits show"
    return f"{line[: same.end()]} (off {difference}){line[same.end() :]}"


def stopped(error: BaseException, answer: Any) -> str:
    """Describe an exception: its type, the last line of the answer in its traceback, and its message.

    Lines of the check itself are not shown.
    """
    kind, why = type(error).__name__, f": {error}" if str(error) else ""
    codes = {getattr(inspect.unwrap(f), "__code__", f.__code__) for f in functions(answer)}
    files, lines = {code.co_filename for code in codes}, []
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code in codes or (lines and frame.f_code.co_filename in files):
            lines.append(linecache.getline(frame.f_code.co_filename, number).strip())
    if codes and not lines:
        form = " as an array: is it a list?" if "list" in str(error) else ""
        return f"its return value cannot be used{form}, {kind}{why}"
    return f"it stops with {kind}{f' at `{lines[-1]}`' if lines else ''}{why}"


def say_failure(failed: dict[str, Callable], error: Exception) -> None:
    """Print which functions from `ops.use` failed inside the model, and that the book's functions replace them."""
    names = " and ".join(dict.fromkeys(getattr(f, "__name__", name) for name, f in failed.items()))
    print(
        f"{names}: inside the model {stopped(error, tuple(failed.values()))}."
        f" This step is repeated from its start with the book's {' and '.join(failed)}.",
        flush=True,
    )


def watched(answer: Any) -> Any:
    """Wrap a function so that it raises AssertionError if it has changed an array among its arguments.

    If the answer is a tuple, each function in it is wrapped; any other value is returned unchanged.
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
            raise AssertionError(f"the function must accept the check's arguments, got {error}") from None
        before = [(name, a, a.tobytes()) for name, value in named.items() for a in arrays(value)]
        result = answer(*args, **kwargs)
        for name, a, content in before:
            assert a.tobytes() == content, f"it writes into its argument {name}: work on a copy"
        return result

    return call


def arrays(value: Any) -> Iterator[np.ndarray]:
    """Yield the arrays in a value: the value itself, or the arrays in a tuple, list or dict."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from arrays(part)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise AssertionError if the code in the `with` block exceeds the time limit. Works only in the main thread.

    If the machine is busy and this process had the processor for less than half of the time limit, the limit is
    extended by `seconds`, up to PATIENCE times in all, because an answer is not wrong if other programs slow it down.
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
            signal.pthread_kill(main, signal.SIGINT)  # also interrupts a sleep or a lock
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
    """Print why a check rejects each wrong answer of a dict {description of the mistake: answer}.

    Raises RuntimeError if the check accepts a wrong answer.
    """
    for what, wrong in wrong_answers.items():
        line = verdict(check, wrong, *given, in_place=in_place)
        if line in ("right", "not written yet"):
            raise RuntimeError(f"{check.__name__} must reject the wrong answer {what!r}, got {line!r}")
        print(f"rejected, {what}: {line}")


def results(name: str) -> dict[str, Any]:
    """Read a stored result of the book, such as "ch18": a dict of "rows", "config", "commit", "date" and "machine".

    The search covers data/results in the working directory, in each folder above it and in the checkout that the
    library is imported from, and then the copy in an installed library. Raises NanoEulerError if no folder has the
    file.
    """
    roots = (Path.cwd(), *Path.cwd().parents, PACKAGE.parent)
    for folder in (*(root / "data" / "results" for root in roots), PACKAGE / "results"):
        if (path := folder / f"{name}.json").is_file():
            return json.loads(path.read_text("utf-8"))
    raise NanoEulerError(
        f"the stored result must be a file of data/results in the book's repository, got {name!r}: run this notebook "
        "in a clone of the repository, or reinstall the library with python -m pip install CLONE"
    )


if SHELL:
    SHELL.events.register("post_run_cell", note_cell)
    ops.on_failure = say_failure
