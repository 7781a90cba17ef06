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

from tools.release import chapter_mutants as cm

pytestmark = pytest.mark.full

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


def test_every_mutant_is_another_program_and_none_comes_twice():
    source = "def f(x, y):\n    'Words 1 + 2.'\n    return (x + y) @ x.swapaxes(-1, -2) / np.sqrt(x.shape[-1])"
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
    value = cm.Value("check_pair", "pair", lambda c, v: "right" if len(v) == 2 else "no", lambda c, v: set(v) == {3, 5})
    chapter = SimpleNamespace(double=double, pair=lambda: (3, 5), np=np)
    monkeypatch.setattr(cm, "load", lambda _: (chapter, [gap, value], {"double": "def double(x):\n    return x * 2"}))
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
