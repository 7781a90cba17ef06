"""Check that a chapter runs to its last cell whatever the gaps contain, and that no check accepts junk.

Each run is a process (gap_runs.py). By default, one chapter of Python and one of kernels run, and four chapters with
right answers in a different style (other_answers.py). --slow runs all, which takes a quarter of an hour on one core.
"""

import functools
import importlib
import json
import re
import subprocess
import sys

import pytest

pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")

import other_answers
from chapters import code_cells, definitions, verdict
from gap_runs import MODES, ROOT

CHAPTERS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
QUICK = {"A1_cpu_runtime"}
SOON = {"00_start_here", "01_bytes_and_pairs", "05_checking_gradients", "08_residual_stream"}  # in a different style
KERNELS = {name for name in CHAPTERS if "23" <= name[:2] <= "29" or name.startswith("A1")}


def marks(name: str) -> list:
    return [pytest.mark.slow] * (name not in QUICK) + [pytest.mark.compiler] * (name in KERNELS)


each_chapter = pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in CHAPTERS])


@functools.cache
def run(name: str, mode: str) -> dict:
    """Run a chapter, and return what gap_runs.py reports."""
    command = [sys.executable, str(ROOT / "tests" / "chapters" / "gap_runs.py"), name, mode]
    process = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.full
@each_chapter
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "other"])
def test_the_last_cell_is_reached(name, mode):
    assert run(name, mode)["errors"] == {}


@pytest.mark.full
@each_chapter
@pytest.mark.parametrize("mode", ["wrong", "raising", "half"])
def test_no_wrong_answer_is_right(name, mode):
    for own, said in run(name, mode)["verdicts"].items():
        assert said and not any(line.split(": ", 1)[-1].startswith("right") for line in said), (own, said)


@pytest.mark.full
@each_chapter
def test_the_books_answers_under_the_readers_names_are_right(name):
    said = run(name, "right")["verdicts"]
    assert len(said) >= 5
    for own, lines in said.items():
        assert any(line.split(": ", 1)[-1].startswith("right") for line in lines), (own, lines)


@pytest.mark.full
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in SOON else marks(n)) for n in CHAPTERS])
def test_right_answers_in_another_way_run_to_the_last_cell(name):
    """Check that the answers of other_answers.py are right; lists instead of arrays may be refused with a message."""
    found, written = run(name, "other"), vars(getattr(other_answers, f"Chapter{name[:2]}", object))
    assert found["errors"] == {}
    for own, lines in found["verdicts"].items():
        said = [line.split(": ", 1)[-1] for line in lines if ": " in line]
        assert said and not any(line.startswith("it stops with") for line in said), (own, lines)
        if own.replace("own_", "my_") in written.keys() | other_answers.KERNELS.keys():
            assert any(line.startswith("right") for line in said), (own, lines)


@pytest.mark.parametrize("name", sorted(set(CHAPTERS) - KERNELS))
def test_checks_say_right_to_answers_in_another_way(name):
    """Try the answers of other_answers.py whose check takes only the answer."""
    answers = vars(getattr(other_answers, f"Chapter{name[:2]}", object))
    names = vars(definitions(*importlib.import_module(f"test_chapter_{name[:2]}").NOTEBOOK))
    text = "\n".join(cell.source for cell in code_cells(name))
    for check, mine, in_place in re.findall(r"judge\((check_\w+), (my_\w+)(, in_place=True)?\)", text):
        if mine in answers:
            assert verdict(names[check], answers[mine], in_place=bool(in_place)) == "right", mine


@pytest.mark.full
@each_chapter
def test_no_check_takes_junk_for_right(name):
    accepted = run(name, "right")["accepted"]
    if name == "A1_cpu_runtime":  # a fourth access after the race is also right
        assert accepted.pop("own_run") == ["too long"]
    assert accepted == {}
