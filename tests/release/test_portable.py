"""True on every machine: how the outputs of notebooks are compared."""

import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")

from nanoeuler_book.outputs import Output, differences  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SAME = [
    ("8%", "9%"), ("99.9%", "100.0%"), ("loss 0.25 after 5 steps", "loss 0.26 after 5 steps"), ("-0.00", "0.00"),
    ("0.01", "-0.00"), ("9.99 b", "10.00 b"), ("1,234.5 bytes", "1,234.6 bytes"), ("3.2ms, 1.5x", "3.3ms, 1.4x"),
    ("1.00e-05", "9.99e-06"), ("[0.1 0.2]", "[0.1 0.3]"),
    ("a  9.99 b", "a 10.00 b"),  # a table aligned to the right
    ("9.99", "10"),  # three digits by the format g
]  # fmt: skip
DIFFERENT = [
    ("5", "6"), ("it is 5.", "it is 6."), ("8%", "10%"), ("0.25", "0.27"), ("0.25 after 5", "0.25 after 6"),
    ("0.25 left", "0.25 right"), ("0.25  x", "0.25 x"), ("2.4.6", "2.4.7"), ("a1.5", "a1.6"), ("0.25", "nan"),
    ("nan", "0.25"), ("0.25", ""), ("0.25 0.30", "0.25"), ("8%", "9"), ("1e-05", "1e-04"), ("9.1e-06", "1.0e-05"),
    ("1,234", "1,235"),
    ("  0.25 x", " 0.26 x"),  # moved, and not for a digit more
]  # fmt: skip


@pytest.mark.parametrize(("stored", "computed", "same"), [(*p, True) for p in SAME] + [(*p, False) for p in DIFFERENT])
def test_one_unit_of_the_last_digit_passes_and_nothing_else(stored, computed, same):
    assert (differences(stored, computed) is not None) == (Output(stored) == computed) == same
    assert (Output(stored) != computed) != same


def notebook(path: Path, *cells: tuple[str, str], unread: int = 0) -> Path:
    """A notebook of cells with the text that each has stored; the output of the first `unread` is not compared."""
    made = nbformat.v4.new_notebook()
    for number, (source, text) in enumerate(cells):
        outputs = [nbformat.v4.new_output("stream", text=text)]
        tags = {"tags": ["nbval-ignore-output"]} if number < unread else {}
        made.cells.append(nbformat.v4.new_code_cell(source, outputs=outputs, execution_count=1, metadata=tags))
    nbformat.write(made, path)
    return path


def test_nbval_compares_so(tmp_path):
    """The plugin as `make test` loads it: the second, fourth and fifth cell fail, the third is named as shifted."""
    path = notebook(
        tmp_path / "numbers.ipynb",
        ("print(0.5)", "0.5\n"),
        ("print(0.5)", "0.7\n"),
        ("print(0.25, 7)", "0.24 7\n"),
        ("print(7)", "8\n"),
        ("import sys; print('lock', 'ed', file=sys.stderr)", ""),
    )
    command = [sys.executable, "-m", "pytest", "-q", "-pno:cacheprovider", "-pnanoeuler_book.outputs"]
    command += ["--nbval", "--nbval-current-env", "--color=no", f"--rootdir={tmp_path}", str(path)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert "3 failed, 2 passed" in said and "on stderr: lock ed" in said
    assert "Cell 1" in said and "Cell 3" in said
    assert "Cell 2: 0.24 -> 0.25" in said and "1 numbers in 1 cells" in said
