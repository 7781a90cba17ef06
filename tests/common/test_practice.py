"""Test `judge`: it prints one sentence for any answer, and returns the answer if it is right."""

import functools
import re
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

from nanoeuler_book import checks
from nanoeuler_book.checks import judge, show_rejected, verdict


def check_double(f):
    x = np.arange(3.0)
    if (y := f(x)) is None:
        return "not written yet"
    assert np.shape(y) == (3,), f"shape is {np.shape(y)}, expected (3,)"
    assert np.allclose(y, [0, 2, 4]), "not twice x"
    return "right"


def recursive(x):
    return recursive(x)


def leaves(x):
    sys.exit(3)


def lines(x):
    raise ValueError("first line\nsecond line")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda x: 2 * x, "right"),
        (lambda x: None, "not written yet"),
        (lambda x: x, "not twice x"),
        (lambda x: (), "shape is (0,), expected (3,)"),
        (lambda x: 1 / 0, "it stops with ZeroDivisionError at `(lambda x: 1 / 0, "),
        (lambda: 1, "the function must accept the check's arguments, got too many positional arguments"),
        (lambda x: {}.get(x.size), "it returns None"),
        (lambda x: {}["no key"], """it stops with KeyError at `(lambda x: {}["no key"], """),
        (lambda x: [[1], [2, 3]], "its return value cannot be used, ValueError: setting an array"),
        (3, "it stops with TypeError: 'int' object is not callable"),
        (recursive, "it stops with RecursionError at `return recursive(x)`"),
        (leaves, "it stops with SystemExit at `sys.exit(3)`: 3"),
        (lines, "first line second line"),
    ],
)
def test_one_line_on_stdout_and_the_answer_only_if_it_is_right(capsys, answer, said):
    back = judge(check_double, answer)
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("\n") == 1 and out.endswith("\n")
    assert said in out
    assert (back is answer) == (said == "right")


def test_the_line_shown_is_the_answers_also_where_it_calls_the_check_back():
    check_slope = eval(compile("lambda f: f(lambda x: x / 0)", "the check's cell", "eval"))

    def my_slope(f):
        return f(1)

    assert verdict(check_slope, my_slope) == "it stops with ZeroDivisionError at `return f(1)`: division by zero"
    assert verdict(lambda pair: pair[1](0), (my_slope, lambda x: 1 / x)).startswith(
        "it stops with ZeroDivisionError at"
    )


def check_near(x):
    y = np.array([0.125])
    assert abs(x - y[0]) < 1e-9, f"y[{0}] is {x:.4f}, expected {y[0]:.4f}: a norm"
    return "right"


def check_raises(x):
    wrong = f"it is {x:.2f}, expected {1.5:.2f}, in float32"
    if x != 1.5:
        raise AssertionError(wrong)


def check_hidden(x):
    raise AssertionError("it is 1.5, expected 1.5")


@pytest.mark.parametrize(
    ("check", "answer", "said"),
    [
        (check_near, 0.12500321, "y[0] is 0.1250, expected 0.1250 (off by 3e-06): a norm"),
        (check_near, 0.25, "y[0] is 0.2500, expected 0.1250: a norm"),
        (check_raises, 1.50001, "it is 1.50, expected 1.50 (off by 1e-05), in float32"),
        (check_hidden, 1, "it is 1.5, expected 1.5 (off by less than these digits show)"),
    ],
)
def test_equal_digits_are_told_apart(check, answer, said):
    assert verdict(check, answer).startswith(said)


def test_warnings_and_stderr_do_not_reach_stderr(capsys):
    def noisy(x):
        warnings.warn("old", stacklevel=2)
        np.log(np.zeros(2)) - np.log(np.zeros(2))
        print("told", file=sys.stderr)
        return 2 * x

    assert judge(check_double, noisy) is noisy
    assert capsys.readouterr() == ("told\nnoisy: right\n", "")


def test_a_verdict_is_seen_in_a_terminal_and_plain_elsewhere(capsys, monkeypatch):
    def my_double(x):
        raise AssertionError("not twice x")

    judge(check_double, my_double)
    assert capsys.readouterr().out == "my_double, wrong: not twice x\n"
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    judge(check_double, my_double)
    judge(check_double, lambda x: None)  # notebooks store this line, so it has no colour anywhere
    monkeypatch.setenv("NO_COLOR", "1")
    judge(check_double, my_double)
    assert capsys.readouterr().out.splitlines() == [
        "\x1b[1;38;5;231;48;5;160mmy_double, wrong:\x1b[0m not twice x",
        "<lambda>: not written yet",
        "my_double, wrong: not twice x",
    ]


def test_the_line_says_what_is_judged_and_whose_functions_it_was_given(capsys):
    """Name a function by its own name, an object by its `name`, and a value by the check."""

    class Model:
        name = "own model"

    def check_model(answer, *given):
        return "not written yet" if answer == 0 else "right"

    def my_helper():
        pass

    for answer in (Model(), 3, my_helper, 0):
        judge(check_model, answer, 7, my_helper, np.mean)
    *right, empty = capsys.readouterr().out.splitlines()
    given = "(with your my_helper) (with the book's mean)"
    assert right == [f"{name}: right {given}" for name in ("own model", "my_model", "my_helper")]
    assert empty == "my_model: not written yet"


def test_an_overwritten_argument_is_a_mistake_unless_the_contract_says_so():
    x, saved = np.arange(3.0), {"a": (np.ones(2), [np.zeros(2)])}

    def check_both(f):
        assert f(x.copy(), saved) is not None, "nothing"
        return "right"

    def overwrites(x, saved):
        x *= 2
        return x

    def overwrites_saved(x, saved):
        saved["a"][1][0][0] += np.nan
        return x

    def puts_back(x, saved):
        x += 1
        x -= 1
        return x

    assert verdict(check_both, overwrites) == "it writes into its argument x: work on a copy"
    assert verdict(check_both, overwrites, in_place=True) == "right"
    assert verdict(check_both, overwrites_saved) == "it writes into its argument saved: work on a copy"
    assert verdict(check_both, puts_back) == "right"  # returned numbers are allowed, NaN included
    assert verdict(lambda pair: check_both(pair[0]), (overwrites, puts_back)).startswith("it writes into")


@pytest.mark.parametrize("wait", [lambda: time.sleep(20), lambda: threading.Lock().acquire() and spin()])
def test_a_check_is_stopped_after_its_time(wait):
    started, count = time.perf_counter(), threading.active_count()
    said = verdict(lambda f: f(), wait, seconds=0.2)
    assert re.fullmatch(r"no end after 0\.[2468] seconds", said), said
    assert time.perf_counter() - started < 10
    verdict(lambda f: "right", 1)
    while threading.active_count() > count and time.perf_counter() - started < 20:
        time.sleep(0.01)  # a thread ends only when the system schedules it
    assert threading.active_count() <= count, "the thread must have ended"


@pytest.mark.parametrize("used, said", [(0.0, "right"), (0.15, "no end after 0.2 seconds")])
def test_a_machine_that_others_use_gives_more_time(monkeypatch, used, said):
    """Call an answer of 0.5 seconds late only if it had the processor during that time."""
    spent = iter([0.0])
    monkeypatch.setattr(checks.time, "process_time", lambda: next(spent, used))

    def answer():
        until = time.perf_counter() + 0.5
        while time.perf_counter() < until:
            time.sleep(0.01)
        return "right"

    assert verdict(lambda f: f(), answer, seconds=0.2) == said


def spin():
    while True:
        try:
            time.sleep(0)
        except Exception:
            pass


def test_time_is_kept_where_an_interrupt_would_be_ignored():
    """Run in a process that ignores SIGINT, as a shell starts it in the background."""
    code = (
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "from nanoeuler_book.checks import verdict;"
        "print(verdict(lambda f: f(), lambda: time.sleep(20), seconds=0.2));"
        "print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.splitlines() == ["no end after 0.8 seconds", "True"], run.stderr


def test_a_readers_interrupt_stops_the_notebook():
    def interrupted():
        signal.raise_signal(signal.SIGINT)
        spin()

    with pytest.raises(KeyboardInterrupt):
        verdict(lambda f: f(), interrupted)


def test_in_another_thread_an_answer_is_judged_too():
    said = []
    thread = threading.Thread(target=lambda: said.append(verdict(check_double, lambda x: 2 * x)))
    thread.start()
    thread.join()
    assert said == ["right"]


def test_options_of_a_check_are_handed_on(capsys):
    x = np.arange(3.0)

    def check_doubled(f, more=None):
        f(x)
        return "right"

    def doubles(x):
        x *= 2

    assert judge(check_doubled, doubles, 1, in_place=True) is doubles and judge(check_doubled, doubles, 1) is None
    assert verdict(lambda f, n: f"{n}", doubles, 7) == "7"
    assert judge(lambda f: time.sleep(20), doubles, seconds=0.2) is None
    show_rejected(lambda f, n: check_doubled(f) if n else "no", {"all": doubles}, 0, in_place=True)
    with pytest.raises(RuntimeError, match="must reject the wrong answer 'sly', got 'right'"):
        show_rejected(check_doubled, {"sly": doubles}, 1, in_place=True)
    with pytest.raises(RuntimeError, match="must reject the wrong answer 'sly', got 'not written yet'"):
        show_rejected(check_double, {"sly": lambda x: None})
    show_rejected(check_doubled, {"sly": doubles}, 1)
    assert capsys.readouterr().out.splitlines() == [
        "doubles: right",
        "doubles, wrong: it writes into its argument x: work on a copy",
        "doubles, wrong: no end after 0.8 seconds",
        "rejected, all: no",
        "rejected, sly: it writes into its argument x: work on a copy",
    ]


def test_an_answer_that_wraps_what_is_no_function_is_told():
    @functools.wraps(functools.partial(sum))  # a kernel of %%cuda is such an object
    def mine(x):
        return x.missing

    assert verdict(lambda f: str(f(1)), mine).startswith("it stops with AttributeError at `return x.missing`")


RIGHT = "def my_double(x):\n    return 2 * x"
NO_COLON = RIGHT.replace(":", "", 1)
BY_ID = 'get_ipython().run_cell("""{} my_double(x):\n    return 2 * x""", cell_id="gap");'
KERNEL = '%%cuda\nextern "C" __global__ void my_double(float *x) {\n    x[0] = 2 * x[0];\n}'
STOPPED = "my_double: the cell above stopped with {}: fix it and run it again\n"
SYNTAX, RUNS = STOPPED.format("SyntaxError in line 1"), "my_double: right\n"
START = """%load_ext nanoeuler_lib.cuda.magic
from nanoeuler_book.checks import judge
def check(f):
    return "right" if not hasattr(f, "__code__") or f(2) == 4 else "it is not twice x\""""
CASES = {  # cells, each followed by a check, and the check's message
    "fixed, then an older cell is run": ([RIGHT, NO_COLON, RIGHT, NO_COLON], [RUNS, SYNTAX, RUNS, SYNTAX]),
    "the first cell after a restart": ([NO_COLON, RIGHT], [SYNTAX, RUNS]),
    "stopped before": ([RIGHT, "1 / 0\n" + RIGHT], [RUNS, STOPPED.format("ZeroDivisionError in line 1")]),
    "stopped after it was bound": ([RIGHT + "\nmy_double()", RIGHT + "\nreturn 1"], [RUNS] * 2),
    "other cells": ([RIGHT, "my_double(3", "my_double(3) / 0\nmy_other = 1"], [RUNS] * 3),
    "by its id": ([BY_ID.format("def"), BY_ID.format("fed"), BY_ID.format("def")], [RUNS, SYNTAX, RUNS]),
    "a kernel": ([KERNEL, KERNEL.replace("];", "]"), KERNEL], [RUNS, STOPPED.format("KernelError in line 3"), RUNS]),
}


@pytest.fixture(scope="module")
def said_in_a_notebook():
    """Return what the checks of each case print, all in one notebook; each case has a gap with its own name."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells, places = [START], {}
    for number, (name, (texts, _)) in enumerate(CASES.items()):
        places[name] = range(len(cells) + 1, len(cells) + 2 * len(texts), 2)
        pairs = [text for cell in texts for text in (cell, "own = judge(check, my_double)")]
        cells += [text.replace("my_double", f"my_double_{number}") for text in pairs]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    nbclient.NotebookClient(notebook, allow_errors=True, kernel_name="python3").execute()
    printed = ["".join(out.get("text", "an error") for out in cell.outputs) for cell in notebook.cells]
    plain = [re.sub(r"\x1b\[[\d;]*m|(?<=my_double)_\d", "", text) for text in printed]
    return {name: [plain[at] for at in places[name]] for name in CASES}


@pytest.mark.parametrize("case", [*CASES][:-1] + [pytest.param("a kernel", marks=pytest.mark.compiler)])
def test_an_answer_whose_cell_stopped_is_not_checked(said_in_a_notebook, case):
    assert said_in_a_notebook[case] == CASES[case][1]
