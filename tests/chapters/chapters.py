"""Helpers for the tests of the chapters: the definitions of a notebook, and tests of its checks."""

import ast
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")

from nanoeuler_book.checks import verdict  # noqa: E402
from nanoeuler_lib import cuda  # noqa: E402
from tools.notebooks.cells import ROOT, code_cells, kernels, python, run_tagged  # noqa: E402

__all__ = [
    "ROOT",
    "accepts",
    "code_cells",
    "definitions",
    "gap_tests",
    "rejected",
    "rejects",
    "rewritten_tests",
    "run_tagged",
    "slips",
]


def definitions(name: str, *prefixes: str) -> SimpleNamespace:
    """Return the imports, functions, classes and kernels of all cells of a notebook.

    Variables are included if their names begin with `wrong_` or with one of `prefixes`. No experiment is run, and the
    gaps are empty: own_... are None.
    """
    names = {}
    for cell in code_cells(name):
        names |= kernels(cell)
        for node in ast.parse(python(cell)).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            target = node.target if isinstance(node, ast.AugAssign) else target
            target = target.elts[0] if isinstance(target, ast.Tuple) else target
            names |= {n.id: None for n in ast.walk(node) if isinstance(n, ast.Name) and n.id.startswith("own_")}
            if getattr(target, "id", "").startswith(("wrong_", *prefixes)) or isinstance(
                node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef
            ):
                exec(compile(ast.Module([node], []), name, "exec"), names)
    return SimpleNamespace(**names)


def rejected(check: Callable, *answer) -> bool:
    """Return whether a check rejects an answer, by an AssertionError or by its sentence."""
    try:
        return check(*answer) not in ("right", "not written yet")
    except AssertionError:
        return True


def accepts(
    answers: dict[str, Iterable], in_place: Collection[str] = (), given: Mapping[str, str] = MappingProxyType({})
) -> Callable:
    """Make a test that checks accept all answers in {check: answers}.

    in_place: the checks whose answers write into their arguments. given: names of the chapter that checks take as a
    further argument.
    """

    @pytest.mark.parametrize("check", answers)
    def told_as_right(chapter, check):
        also = [getattr(chapter, given[check])] if check in given else []
        for answer in answers[check]:
            said = verdict(getattr(chapter, check), answer, *also, in_place=check in in_place)
            assert said == "right", answer

    return told_as_right


def rejects(
    answers: dict[str, dict], given: Mapping[str, str] = MappingProxyType({}), in_place: Collection[str] = ()
) -> Callable:
    """Make a test that checks reject all answers in {check: {mistake: answer}}; for other arguments see `accepts`."""

    @pytest.mark.parametrize("check, mistake", [(c, mistake) for c, wrong in answers.items() for mistake in wrong])
    def told_as_wrong(chapter, check, mistake):
        also = [getattr(chapter, given[check])] if check in given else []
        with np.errstate(all="ignore"):
            said = verdict(getattr(chapter, check), answers[check][mistake], *also, in_place=check in in_place)
        assert said not in ("right", "not written yet")

    return told_as_wrong


def gap_tests(
    gaps: dict[str, tuple[Iterable, dict]], given: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable, Callable]:
    """Make both tests from {check: (right answers, {mistake: wrong answer})}."""
    return (
        accepts({check: right for check, (right, _) in gaps.items()}, given=given),
        rejects({check: wrong for check, (_, wrong) in gaps.items()}, given),
    )


def slips(right: Callable, mistakes: dict[str, dict]) -> dict[str, Callable]:
    """Return the right answer with changed arguments, for each entry of {mistake: arguments}."""
    for change in mistakes.values():
        inspect.signature(right).bind_partial(**change)  # an unknown argument would count as a crash
    return {mistake: functools.partial(right, **change) for mistake, change in mistakes.items()}


def rewritten(notebook: str, chapter: SimpleNamespace, name: str, *changes: tuple[str, str]) -> Callable:
    """Return the book's function or kernel of this name, with each (old, new) replaced in its source."""
    book = getattr(chapter, name)
    if isinstance(book, cuda.Kernel):
        text = book.module.source
    else:
        (text,) = [cell.source for cell in code_cells(notebook) if f"\ndef {name}(" in f"\n{cell.source}"]
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    if isinstance(book, cuda.Kernel):
        return cuda.module(text)[name]
    names = dict(vars(chapter))
    exec(text, names)
    return names[name]


def rewritten_tests(gaps: dict[str, tuple[str, dict, dict]]) -> tuple[Callable, Callable]:
    """Make both tests from {check: (name, rights, mistakes)}.

    Each entry of `rights` and `mistakes` replaces one or more (old, new) in the source of the book's function `name`;
    the check must accept or reject the result.
    """

    def cases(part):
        found = [(check, gap[0], *case) for check, gap in gaps.items() for case in gap[part].items()]
        return [pytest.param(check, name, change, id=f"{check}-{what}") for check, name, what, change in found]

    @pytest.mark.parametrize("check, name, changes", cases(1))
    def told_as_right(request, chapter, check, name, changes):
        answer = rewritten(request.module.NOTEBOOK[0], chapter, name, *changes)
        assert verdict(getattr(chapter, check), answer) == "right"

    @pytest.mark.parametrize("check, name, change", cases(2))
    def told_as_wrong(request, chapter, check, name, change):
        with np.errstate(all="ignore"):
            answer = rewritten(request.module.NOTEBOOK[0], chapter, name, change)
            said = verdict(getattr(chapter, check), answer)
        assert said not in ("right", "not written yet")

    return told_as_right, told_as_wrong
