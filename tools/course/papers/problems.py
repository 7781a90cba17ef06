"""Make the three kinds of problems in an individual assignment, and judge the arrays that a student's code returns.

There are no model answers in the code. A derivation is compared with difference quotients of the forward pass, a
repaired function with a function that follows all of its rules, and a measurement with the numbers that the data was
made from.
"""

import re
import textwrap
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Problem:
    """A problem of an assignment: its text for the student, the grader's inputs, and the function that judges.

    contract: the stub of the function to write. given: source code for the student. calls(rng): the inputs of each call
    and the truth, the numbers from which the inputs were made (None if there are none); the truth never reaches the
    student's process. judge(inputs, truth, returned): a sentence about the first error, "" if there is none.
    """

    name: str
    points: int
    title: str
    statement: str
    contract: str
    calls: Callable[[np.random.Generator], list[tuple[Arrays, Any]]]
    judge: Callable[[Arrays, Any, list[np.ndarray]], str]
    given: str = ""


def pick(rng: np.random.Generator, *options):
    """Return one of the options at random."""
    return options[int(rng.integers(len(options)))]


def number(rng: np.random.Generator, low: float, high: float) -> float:
    """Return a random constant with two decimals, so that a statement and its code have the same number."""
    return round(float(rng.uniform(low, high)), 2)


def stub(signature: str, says: str) -> str:
    """Return the source of the stub that a student fills in."""
    return f'def {signature}:\n    """{says}"""\n    return None  # your code here\n'


def functions(source: str) -> dict:
    """Execute a source and return the functions that it defines, by name."""
    names = {"np": np}
    exec(source, names)
    return names


def same(name: str, array: np.ndarray, expected: np.ndarray, rtol: float, atol: float) -> str:
    """Compare an array with the expected array; return "" if they agree, else a sentence. NaN never agrees."""
    if array.shape != np.shape(expected):
        return f"{name} must have shape {np.shape(expected)}, got {array.shape}"
    if array.dtype.kind not in "fiub":
        return f"{name} must have a real dtype, got {array.dtype}"
    with np.errstate(invalid="ignore"):
        close = (np.abs(array - expected) <= atol + rtol * np.abs(expected)) | (array == expected)
    if close.all():
        return ""
    wrong = np.argwhere(~close)
    return f"{name} is wrong at {len(wrong)} of {close.size} elements, the first at {wrong[0].tolist()}"


# ---- Derive


def derive(title: str, text: str, forward: str, names: list[str], draw, sizes: list[tuple]) -> Problem:
    """Make a problem that asks for the gradients of a new forward pass; difference quotients judge the answer.

    forward: source of `forward(*names)`. draw(rng, *size): arguments for `forward`, for each size. Only some elements
    and directions are compared. The last size is large, so that a student's own difference quotients for all elements
    would exceed the time limit.
    """
    run, given = functions(forward)["forward"], ", ".join(names)
    gradients = ", ".join(f"d{name}" for name in names)
    contract = stub(
        f"backward(dy, {given})",
        f"Return the gradients of (forward({given}) * dy).sum(), the tuple ({gradients}).\n\n"
        "    Each gradient has the shape of its array. Use only NumPy. The grader's largest arrays have a hundred "
        "thousand elements.\n    ",
    )

    def calls(rng):
        drawn = [draw(rng, *size) for size in sizes]
        return [((rng.normal(size=np.shape(run(*arrays))), *arrays), None) for arrays in drawn]

    def judge(inputs, _, returned):
        dy, *arrays = inputs
        if len(returned) != len(names):
            return f"{len(names)} arrays must be returned, got {len(returned)}: return ({gradients})"
        for name, array, grad in zip(names, arrays, returned, strict=True):
            if grad.shape != array.shape:
                return f"d{name} must have shape {array.shape}, got {grad.shape}"
            if grad.dtype.kind != "f":
                return f"d{name} must have a floating-point dtype, got {grad.dtype}"
        rng = np.random.default_rng(0)
        for at, (name, array, grad) in enumerate(zip(names, arrays, returned, strict=True)):
            loss = lambda x, at=at: float((run(*arrays[:at], x, *arrays[at + 1 :]) * dy).sum())
            if where := _differs(loss, array, grad, rng):
                size = "x".join(map(str, array.shape))
                return f"d{name} differs from the difference quotient {where}, for {name} of size {size}"
        return ""

    task = "Let `y` be the result of `forward`. Derive the gradients of `(y * dy).sum()`."
    statement = f"{text}\n\n```python\n{forward.strip()}\n```\n\n{task}"
    return Problem("backward", 4, title, statement, contract, calls, judge, forward)


def _differs(loss: Callable, array: np.ndarray, grad: np.ndarray, rng: np.random.Generator) -> str:
    """Compare a gradient with difference quotients at some elements and in two directions; return "" if all agree."""
    picked = rng.permutation(array.size)[: 40 if array.size <= 200 else 4]
    directions = [(f"at element {i}", np.eye(1, array.size, i).reshape(array.shape)) for i in picked]
    size = min(1, 20 / array.size**0.5)
    directions += [("along a direction", size * rng.normal(size=array.shape)) for _ in range(2)]
    for where, u in directions:
        slope, scale = quotient(lambda h, u=u: loss(array + h * u)), np.abs(grad * u).sum() + 1e-2 * np.linalg.norm(u)
        if not abs(float((grad * u).sum()) - slope) <= 2e-6 * scale:
            return where
    return ""


def quotient(loss, h: float = 2e-3) -> float:
    """Return the slope of loss(h) at 0 by a difference quotient whose error is of order h^6."""
    a, b, c = (loss(k * h) - loss(-k * h) for k in (1, 2, 3))
    return (45 * a - 9 * b + c) / (60 * h)


# ---- Repair

REPAIRS = tomllib.loads(Path(__file__).with_name("repairs.toml").read_text("utf-8"))


def repair(rng: np.random.Generator, chapter: str, draw: list[Callable], constants: dict) -> Problem:
    """Make a problem with a function that follows all rules of its specification except one.

    `repairs.toml` has the function and, for each rule, alternative sentences with their code. The specification is a
    random choice of one sentence per rule, and the given code follows a different sentence for one rule. The choice is
    repeated until the error shows on the data of three seeds; the grading data are generated until it shows on these
    too. draw: one function per call, which makes the call's inputs. constants: {name: value that replaces <name>}.
    """
    rules, text = REPAIRS[chapter]["rules"], REPAIRS[chapter]["text"]

    def wrong_on(tried):
        return any(judge(inputs, None, results(wrong, inputs)) for inputs, _ in tried)

    def drawn(rng):
        return [(make(rng), None) for make in draw]

    def calls(rng):
        """Return inputs for which the given code returns a wrong result."""
        while not wrong_on(tried := drawn(rng)):
            pass
        return tried

    def judge(inputs, _, returned):
        expected = results(right, inputs)
        if len(returned) != len(expected):
            return f"{len(expected)} arrays must be returned, got {len(returned)}"
        pairs = enumerate(zip(returned, expected, strict=True))
        return next(filter(None, (same(f"result {i}", f, e, 1e-9, 1e-12) for i, (f, e) in pairs)), "")

    shows = False
    while not shows:
        spec = {name: int(rng.integers(len(options))) for name, options in rules.items()}
        broken = pick(rng, *rules)
        other = pick(rng, *[i for i in range(len(rules[broken])) if i != spec[broken]])
        given, correct = (_with_constants(_code(chapter, s), constants) for s in (spec | {broken: other}, spec))
        wrong, right = (functions(source)["repaired"] for source in (given, correct))
        shows = all(wrong_on(drawn(np.random.default_rng(seed))) for seed in range(3))
    obeyed = "\n".join(f"* {rules[name][choice][0]}" for name, choice in spec.items())
    statement = (
        f"{text}\n\n{obeyed}\n\nThe function `repaired` in `answers.py` breaks one of these rules. "
        "Find out which one, and fix it."
    )
    return Problem("repaired", 3, "One rule broken", _with_constants(statement, constants), given, calls, judge)


def _code(chapter: str, choice: dict[str, int]) -> str:
    """Return the source of a chapter's function with the code of the chosen rules inserted."""
    code = REPAIRS[chapter]["template"].strip() + "\n"
    for name, options in REPAIRS[chapter]["rules"].items():
        indent = re.search(rf"^( *)\{{{name}\}}$", code, re.M)[1]
        code = code.replace(f"{indent}{{{name}}}", textwrap.indent(options[choice[name]][1], indent))
    return re.sub(r"^def \w+", "def repaired", code)


def _with_constants(text: str, constants: dict) -> str:
    for name, value in constants.items():
        text = text.replace(f"<{name}>", repr(value))
    return text


def results(function, inputs: Arrays) -> list[np.ndarray]:
    """Call a function with copies of the inputs, and return the function's result as a list of arrays."""
    with np.errstate(all="ignore"):
        result = function(*(a.copy() for a in inputs))
    return [np.asarray(part) for part in (result if isinstance(result, tuple) else (result,))]


# ---- Measure


def measure(title: str, text: str, signature: str, numbers: str, draw, tolerances=None, judge=None) -> Problem:
    """Make a problem that asks for the numbers from which data was generated.

    numbers: their names, such as "[a, b]". draw(rng): (inputs, truth). tolerances: the largest accepted error of each
    number, or a function of the truth that returns them. judge(inputs, truth, returned): replaces the tolerances.
    """

    def within(_, truth, returned):
        return near(numbers, returned, truth, tolerances(truth) if callable(tolerances) else tolerances)

    contract = stub(f"measured({signature})", f"Return the array {numbers}.")
    return Problem("measured", 3, title, text, contract, lambda rng: [draw(rng) for _ in range(3)], judge or within)


def near(name: str, returned: list[np.ndarray], truths, tolerances) -> str:
    """Compare a returned array with the true numbers; return "" if all are within their tolerances, else a sentence."""
    if len(returned) != 1 or returned[0].shape != (len(truths),):
        shapes = ", ".join(str(f.shape) for f in returned)
        return f"one array of shape ({len(truths)},) must be returned, {name}, got {shapes or 'none'}"
    if returned[0].dtype.kind not in "fiub":
        return f"{name} must have real numbers, got {returned[0].dtype}"
    for i, (value, truth, tolerance) in enumerate(zip(returned[0], truths, tolerances, strict=True)):
        if not abs(value - truth) <= tolerance:
            return f"number {i} of {name} is {value:.4g}, and the error is more than {tolerance:.2g}"
    return ""
