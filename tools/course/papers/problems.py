"""What a paper is made of: problems whose functions take arrays and return arrays, and how each answer is judged.

No right answer is written down here. A derivation is compared with difference quotients of the forward pass, a repaired
function with its specification, clause by clause, and a measurement with the number that the data was made from.
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
    """A problem of a paper: what the student reads, the inputs that the grader draws, and its judgement.

    contract: the source of the function to write, a stub. given: source that the student gets beside it. calls: from a
    generator the inputs of each call, and what they were made from where that is the answer; this never reaches the
    student's process. judge: from both and the arrays that came back one sentence, "" if they are right.
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
    """One of the options."""
    return options[int(rng.integers(len(options)))]


def number(rng: np.random.Generator, low: float, high: float) -> float:
    """A constant for a statement: two decimals, so that text and code hold the same number."""
    return round(float(rng.uniform(low, high)), 2)


def stub(signature: str, says: str) -> str:
    """The source of a function that a student writes."""
    return f'def {signature}:\n    """{says}"""\n    return None  # your code here\n'


def functions(source: str) -> dict:
    """The functions that a source defines."""
    names = {"np": np}
    exec(source, names)
    return names


def same(name: str, array: np.ndarray, expected: np.ndarray, rtol: float, atol: float) -> str:
    """Shape, then the worst element: a sentence, "" if they agree. NaN agrees with nothing."""
    if array.shape != np.shape(expected):
        return f"{name} has shape {array.shape}, expected {np.shape(expected)}"
    if array.dtype.kind not in "fiub":
        return f"{name} has dtype {array.dtype}, expected numbers"
    with np.errstate(invalid="ignore"):
        close = (np.abs(array - expected) <= atol + rtol * np.abs(expected)) | (array == expected)
    if close.all():
        return ""
    wrong = np.argwhere(~close)
    return f"{name} is wrong at {len(wrong)} of {close.size} elements, the first {wrong[0].tolist()}"


# ---- Derive


def derive(title: str, text: str, forward: str, names: list[str], draw, sizes: list[tuple]) -> Problem:
    """Gradients of a forward pass that no chapter has, judged by its difference quotients.

    forward: source of `forward(*names)`. draw(rng, *size): its arguments. Of the last size, the large one, only some
    elements and directions are compared: a difference quotient for every element would not end within the limits.
    """
    run, given = functions(forward)["forward"], ", ".join(names)
    gradients = ", ".join(f"d{name}" for name in names)
    contract = stub(
        f"backward(dy, {given})",
        f"Gradients of (forward({given}) * dy).sum(): the tuple ({gradients}).\n\n"
        "    Each has the shape of its array. NumPy alone; the grader's largest arrays have a hundred thousand "
        "elements.\n    ",
    )

    def calls(rng):
        drawn = [draw(rng, *size) for size in sizes]
        return [((rng.normal(size=np.shape(run(*arrays))), *arrays), None) for arrays in drawn]

    def judge(inputs, _, returned):
        dy, *arrays = inputs
        if len(returned) != len(names):
            return f"{len(returned)} arrays came back, expected {len(names)}: ({gradients})"
        for name, array, grad in zip(names, arrays, returned, strict=True):
            if grad.shape != array.shape:
                return f"d{name} has shape {grad.shape}, expected {array.shape}"
            if grad.dtype.kind != "f":
                return f"d{name} has dtype {grad.dtype}, expected floating-point numbers"
        rng = np.random.default_rng(0)
        for at, (name, array, grad) in enumerate(zip(names, arrays, returned, strict=True)):
            loss = lambda x, at=at: float((run(*arrays[:at], x, *arrays[at + 1 :]) * dy).sum())
            if where := _differs(loss, array, grad, rng):
                size = "x".join(map(str, array.shape))
                return f"d{name} differs from the difference quotient {where}, for {name} of size {size}"
        return ""

    task = "`y` is what it returns. Derive the gradients of `(y * dy).sum()`."
    statement = f"{text}\n\n```python\n{forward.strip()}\n```\n\n{task}"
    return Problem("backward", 4, title, statement, contract, calls, judge, forward)


def _differs(loss: Callable, array: np.ndarray, grad: np.ndarray, rng: np.random.Generator) -> str:
    """Where a gradient differs from difference quotients: at some elements, then along two directions; "": nowhere."""
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
    """The slope of loss(h) at 0, by the quotient whose error falls with the sixth power of h."""
    a, b, c = (loss(k * h) - loss(-k * h) for k in (1, 2, 3))
    return (45 * a - 9 * b + c) / (60 * h)


# ---- Repair

REPAIRS = tomllib.loads(Path(__file__).with_name("repairs.toml").read_text("utf-8"))


def repair(rng: np.random.Generator, chapter: str, draw: list[Callable], constants: dict) -> Problem:
    """A function that obeys all rules of its specification but one.

    `repairs.toml` has the function and, for each of its rules, sentences with their code: none of them is right by
    itself. The specification is a drawn choice of each; the given code follows another choice of one. It is drawn anew
    until that shows on the data of three seeds; the data that mark it, until it shows on them.
    draw: makes the inputs of a call each. constants: {name: what stands for <name> in sentences and code}.
    """
    rules, text = REPAIRS[chapter]["rules"], REPAIRS[chapter]["text"]

    def wrong_on(tried):
        return any(judge(inputs, None, results(wrong, inputs)) for inputs, _ in tried)

    def drawn(rng):
        return [(make(rng), None) for make in draw]

    def calls(rng):
        """Inputs for which the given code is wrong."""
        while not wrong_on(tried := drawn(rng)):
            pass
        return tried

    def judge(inputs, _, returned):
        expected = results(right, inputs)
        if len(returned) != len(expected):
            return f"{len(returned)} arrays came back, expected {len(expected)}"
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
        "Find out which, and mend it."
    )
    return Problem("repaired", 3, "One rule broken", _with_constants(statement, constants), given, calls, judge)


def _code(chapter: str, choice: dict[str, int]) -> str:
    """The function of a chapter with the code of the chosen rules in it."""
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
    """What a function returns for copies of the inputs, as a list of arrays."""
    with np.errstate(all="ignore"):
        result = function(*(a.copy() for a in inputs))
    return [np.asarray(part) for part in (result if isinstance(result, tuple) else (result,))]


# ---- Measure


def measure(title: str, text: str, signature: str, numbers: str, draw, tolerances=None, judge=None) -> Problem:
    """Numbers to find in data that was made from them.

    numbers: their names, such as "[a, b]". draw(rng): (inputs, truth). tolerances: how far off each may be, or a
    function of the truth that says so. judge(inputs, truth, returned): in place of tolerances a judgement of its own.
    """

    def within(_, truth, returned):
        return near(numbers, returned, truth, tolerances(truth) if callable(tolerances) else tolerances)

    contract = stub(f"measured({signature})", f"The array {numbers}.")
    return Problem("measured", 3, title, text, contract, lambda rng: [draw(rng) for _ in range(3)], judge or within)


def near(name: str, returned: list[np.ndarray], truths, tolerances) -> str:
    """Whether the numbers that came back, one array of them, are within their tolerances of the truth."""
    if len(returned) != 1 or returned[0].shape != (len(truths),):
        shapes = ", ".join(str(f.shape) for f in returned)
        return f"arrays of shape {shapes or 'none'} came back, expected one of shape ({len(truths)},): {name}"
    if returned[0].dtype.kind not in "fiub":
        return f"{name} came back as {returned[0].dtype}, expected real numbers"
    for i, (value, truth, tolerance) in enumerate(zip(returned[0], truths, tolerances, strict=True)):
        if not abs(value - truth) <= tolerance:
            return f"number {i} of {name} is {value:.4g}, which is off by more than {tolerance:.2g}"
    return ""
