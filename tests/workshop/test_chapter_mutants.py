"""The mutants of chapters: wrong answers by rule, who is rejected, equivalent or a survivor; ten of each check."""

import ast
import os
import re
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("mutmut", reason="mutmut is not installed: make setup")
pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")

from tools.workshop import chapter_mutants as cm

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = [
    re.search(r"\w\d(?=\.py)", path.name)[0]
    for path in sorted((ROOT / "tests" / "chapters").glob("test_chapter_??.py"))
    if "\nDOMAINS = " in path.read_text("utf-8")
]


@pytest.mark.parametrize("number", CHAPTERS)
def test_every_check_says_right_to_the_book(number):
    """Its answer to each gap and exercise, as a reader's would be judged."""
    chapter, gaps, _ = cm.load(number)
    assert len(gaps) >= 4
    for gap in gaps:
        book = (getattr(chapter, gap.answer)(),) if isinstance(gap, cm.Value) else ()
        assert gap.verdict(chapter, *book) == "right", gap.check


@pytest.mark.parametrize("number", CHAPTERS)
def test_ten_mutants_of_each_check(number):
    found = list(cm.tried(number, sample=10, seed=0))
    survived = [(check, mutant.old, mutant.new) for check, mutant, verdict in found if verdict == "survived"]
    assert not survived
    each = Counter(check for check, *_ in found)
    assert each and max(each.values()) == 10 and min(each.values()) >= 3  # short answers have few


@pytest.mark.parametrize("number", CHAPTERS)
def test_listed_mutants_are_still_made(number):
    chapter, gaps, texts = cm.load(number)
    made = {mutant.key(number) for gap in gaps for mutant in cm.mutants_of(gap, chapter, texts)}
    assert {key for key in cm.equivalents(cm.LISTED) if key[0] == number} <= made


# ---- Wrong answers by rule


def lines(source, **sizes):
    """The changed line of each mutant of a function of one line."""
    texts = cm.python_mutants(f"def f(x, axis):\n    {source}", sizes)
    return {text.split("\n", 1)[1].strip() for text in texts}


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        (
            "return x + 1",
            {"return x - 1", "return x", "return 1", "return x + 2", "return x + 0", "return -(x + 1)"},
        ),
        ("return x[1:]", {"return x[:]", "return x[0:]", "return x[2:]", "return x"}),
        (
            "return x.sum(axis=-1)",
            {"return x.sum(axis=-2)", "return x.sum(axis=1)", "return x.sum()", "return x"},
        ),
        ("return x.copy()", {"return x", "return axis.copy()"}),
        ("return np.exp(x)", {"return x", "return np.exp(axis)"}),
        ("return x - axis", {"return axis - x", "return x + axis", "return x", "return axis"}),
        ("return x < axis", {"return x <= axis", "return x >= axis"}),
        ("return not x", {"return x"}),
        (
            "return np.where(x, -np.inf, 0.5)",
            {"return np.where(x, -50.0, 0.5)", "return np.where(-np.inf, x, 0.5)"},
        ),
        ("return x, axis", {"return (axis, x)", "return (x,)", "return (x, axis * np.nan)"}),
        ("return x.astype(axis)[..., None]", {"return x[..., None]", "return x.astype(axis)[None, ...]"}),
        ("return x if axis else 2.0", {"return x", "return 2.0", "return x if axis else 4.0"}),
        ("return x and axis", {"return x or axis", "return axis"}),
    ],
)
def test_changes_by_rule(source, wrong):
    assert wrong <= lines(source)


def test_statements_are_dropped_and_done_in_place():
    source = "def f(x):\n    y = x * 2\n    y += 1\n    if x:\n        y = -y\n    return y"
    texts = set(cm.python_mutants(source))
    for old, new in (
        ("    y = x * 2", "    x *= 2\n    y = x"),
        ("    y += 1", "    pass"),
        ("    if x:\n        y = -y", "    y = -y"),
        ("    if x:\n        y = -y", "    pass"),
        ("        y = -y", "        y = y"),
    ):
        assert source.replace(old, new) in texts


def test_every_mutant_is_another_program_and_none_comes_twice():
    source = (
        "def f(x, y):\n    'Words 1 + 2.'\n    return (x + y) @ x.swapaxes(-1, -2) / np.sqrt(x.shape[-1])"
    )
    texts = list(cm.python_mutants(source))
    assert len(texts) > 20
    dumps = [ast.dump(ast.parse(text)) for text in [source, *texts]]
    assert len(set(dumps)) == len(dumps)
    assert all("'Words 1 + 2.'" in text or '"""Words 1 + 2."""' in text for text in texts)


def test_kernels_are_changed_as_text_but_not_their_comments():
    index = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
    kernel = f"%%cuda\n// i < n\n{index}\nif (i < n) y[i] += 2 * x[i];\n__syncthreads();\n"
    texts = list(cm.cuda_mutants(kernel))
    assert all("// i < n\n" in text and text != kernel for text in texts)
    for old, new in (
        ("if (i < n)", "if (i <= n)"), ("threadIdx.x", "threadIdx.y"), (" + thr", " - thr"), ("2", "(2 + 1)"),
        ("+=", "="), ("__syncthreads();", ""), ("blockIdx.x", "threadIdx.x"), ("blockDim.x", "gridDim.x"),
    ):  # fmt: skip
        assert kernel.replace(old, new) in texts, old


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        (
            ({1, 2}, {3}),
            [({1}, {3}), ({3}, {1, 2}), ({1, 2},), (), ({1, 2}, {3}, {3}), ({1, 2, 0}, {3}), (set(), {3})],
        ),
        ((2, 0.5), [(3, 0.5), (1, 0.5), (0, 0.5), (-2, 0.5), (0.5, 2), (2, 0.0)]),
        ({"x": "pass"}, [{}, {"x": ""}, {"x": "ssap"}]),
        (True, [False]),
    ],
)
def test_values_are_changed(value, wrong):
    found = list(cm.value_mutants(value))
    assert all(w in found for w in wrong)


# ---- The same, or not

A = np.array([1.0, 2.0])


@pytest.mark.parametrize(
    ("b", "alike"),
    [
        (A + 1e-13, True), (A + 1e-6, False), (A.astype(np.float32), False), (A[None], False), (A * np.nan, False),
        (A[::-1], False), ([1.0, 2.0], False), (None, False), (A.astype(int), False),
    ],
)  # fmt: skip
def test_same(b, alike):
    assert cm.same(A, b) == alike
    assert cm.same((A, {"k": A}), (A, {"k": b})) == alike
    assert cm.same(A * np.nan, A * np.nan) and not cm.same((A,), (A, A))
    assert cm.same(A.astype(np.float32), A.astype(np.float32) * np.float32(1 + 1e-5))


# ---- A chapter with a weak check


def double(x):
    return x * 2


def check_double(f):
    assert f(np.array([0.0, 2.0]))[1] == 4
    return "right"


def said(c):
    try:
        return check_double(c.double)
    except Exception as error:
        return str(error)


@pytest.fixture
def weak(monkeypatch, tmp_path):
    gap = cm.Gap("check_double", ("double",), said, lambda c, x: c.double(x), lambda rng: rng.normal(size=3))
    value = cm.Value(
        "check_pair", "pair", lambda c, v: "right" if len(v) == 2 else "no", lambda c, v: set(v) == {3, 5}
    )
    chapter = SimpleNamespace(double=double, pair=lambda: (3, 5), np=np)
    monkeypatch.setattr(
        cm, "load", lambda _: (chapter, [gap, value], {"double": "def double(x):\n    return x * 2"})
    )
    monkeypatch.setattr(cm, "LISTED", tmp_path / "listed.toml")
    (tmp_path / "listed.toml").write_text("")
    return tmp_path / "listed.toml"


def test_rejected_equivalent_survived_listed(weak, capsys):
    found = {mutant.new: verdict for _, mutant, verdict in cm.tried("99", processes=1)}
    assert found["return x * 3"] == found["return x"] == "rejected"
    assert found["return x + 2"] == "survived"  # 2 + 2 is 2 * 2
    assert found["(5, 3)"] == "equivalent" and found["(4, 5)"] == "survived" and found["(3,)"] == "rejected"
    assert cm.main(["99"]) == 1
    printed = capsys.readouterr().out
    assert 'new = "return x + 2"' in printed
    row = next(line.split() for line in printed.splitlines() if line.startswith("check_double"))
    assert int(row[1]) == sum(map(int, row[2:6])) and int(row[4]) >= 1 and float(row[6][:-1]) < 100
    weak.write_text(
        '[[mutant]]\nmodule = "99"\nfunction = "double"\nold = "return x * 2"\nnew = "return x + 2"\nwhy = "weak"\n'
    )
    assert "listed" in {verdict for _, _, verdict in cm.tried("99", only="check_double")}


def test_what_waits_ends_its_process_or_asks_for_all_memory_is_rejected():
    work = [
        lambda: "survived",
        lambda: time.sleep(60),
        lambda: os._exit(0),
        lambda: np.ones(1 << 40) and "",
        lambda: 1 / 0,
    ]
    started = time.monotonic()
    found = dict(cm.attempts(work, seconds=1.5, processes=5))
    assert found == {0: "survived"} | dict.fromkeys(range(1, 5), "rejected")
    assert time.monotonic() - started < 20


def test_shares():
    assert cm.part(cm.Counter(rejected=9, equivalent=50, survived=1)) == 0.9
    assert cm.part(cm.Counter(rejected=9, listed=1)) == 0.9  # a reason does not make it rejected
    assert cm.part(cm.Counter(equivalent=3)) == 1
