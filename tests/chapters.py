"""What the tests of the chapters share: the names a notebook defines, and the verdicts of its checks."""

import ast
import functools
from collections.abc import Callable
from types import SimpleNamespace

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")

from nanoeuler_lib.practice import verdict  # noqa: E402
from tools.cells import ROOT, code_cells, kernels, python, run_tagged  # noqa: E402

__all__ = [
    "ROOT",
    "code_cells",
    "definitions",
    "gap_tests",
    "rejected",
    "run_tagged",
    "try_exercise",
    "try_gap",
    "wrong_answers_of",
]


def definitions(name: str, *prefixes: str) -> SimpleNamespace:
    """The imports, functions, classes and kernels of all cells, and what is assigned to names that begin with `wrong_`
    or with one of `prefixes`; none of the experiments is run, and no gap is filled: own_... are None.
    """
    names = {}
    for cell in code_cells(name):
        names |= kernels(cell)
        for node in ast.parse(python(cell)).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            target = target.elts[0] if isinstance(target, ast.Tuple) else target
            names |= {
                n.id: None for n in ast.walk(node) if isinstance(n, ast.Name) and n.id.startswith("own_")
            }
            if getattr(target, "id", "").startswith(("wrong_", *prefixes)) or isinstance(
                node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
            ):
                exec(compile(ast.Module([node], []), name, "exec"), names)
    return SimpleNamespace(**names)


def rejected(check: Callable, *answer) -> bool:
    """Whether a check says that an answer is wrong: by an AssertionError, or in words."""
    try:
        return check(*answer) not in ("right", "not written yet")
    except AssertionError:
        return True


def try_exercise(check: Callable, stub, solution, wrong_answers: dict) -> None:
    """An untouched gap is not written yet, the solution is right, and each of at least three wrong answers is wrong."""
    assert check(stub) == "not written yet"
    assert check(solution) == "right"
    assert len(wrong_answers) >= 3
    for name, wrong in wrong_answers.items():
        assert rejected(check, wrong), f"accepted: {name}"


def try_gap(chapter: SimpleNamespace, gap: tuple) -> None:
    """A gap is (right answer, wrong ones, and the names of check, stub and the book's version in the chapter): the
    stub is not written yet, the book's version and the right answer are right.
    """
    right, _, check, stub, book = gap
    check = getattr(chapter, check)
    assert check(getattr(chapter, stub)) == "not written yet"
    assert check(getattr(chapter, book)) == "right"
    assert check(right) == "right"


def wrong_answers_of(gaps: dict[str, tuple]) -> list:
    """Each wrong answer of each gap as a test case: the gap, and the right answer with one thing changed."""
    cases = []
    for name, gap in gaps.items():
        for mistake, change in gap[1].items():
            wrong = functools.partial(gap[0], **change)
            cases.append(pytest.param(gap, wrong, id=f"{name}-{mistake}".replace(" ", "-")))
    return cases


def gap_tests(gaps: dict[str, tuple[list, dict]]) -> tuple[Callable, Callable]:
    """Two tests of gaps that stand as my_NAME, check_NAME and the book's NAME in the chapter, by what a reader is told.

    gaps: {NAME: (other right answers, {mistake: wrong answer})}. The stub is not written yet, the book's version and
    the others are right; each wrong answer is wrong.
    """

    @pytest.mark.parametrize("gap", gaps)
    def untouched_and_right(chapter, gap):
        check = getattr(chapter, f"check_{gap}")
        assert check(getattr(chapter, f"my_{gap}")) == "not written yet"
        for right in [getattr(chapter, gap), *gaps[gap][0]]:
            assert verdict(check, right) == "right"

    @pytest.mark.parametrize("gap, mistake", [(gap, mistake) for gap in gaps for mistake in gaps[gap][1]])
    def wrong(chapter, gap, mistake):
        said = verdict(getattr(chapter, f"check_{gap}"), gaps[gap][1][mistake])
        assert said not in ("right", "not written yet"), said

    return untouched_and_right, wrong
