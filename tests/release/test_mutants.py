"""The mutation run: a planted mutant is caught or survives, a listed one is honoured, the checkout stays as it is."""

import pytest

pytest.importorskip("mutmut", reason="mutmut is not installed: make setup")

from tools.release import mutants

pytestmark = pytest.mark.full

SOURCE = '''
def larger(a, b):
    """Prose is left alone."""
    return a if a > b else b


def label(n: int = 3):
    return "-" * n
'''
WEAK = """
from nanoeuler_lib.tiny import larger


def test_larger():
    assert larger(1, 2) == 2 and larger(3, 2) == 3
"""


@pytest.fixture
def tree(tmp_path):
    """A project of one module whose tests look at one of its two functions."""
    root = tmp_path / "project"
    for name, text in {
        "nanoeuler_lib/__init__.py": "",
        "nanoeuler_lib/tiny.py": SOURCE,
        "tests/common/test_tiny.py": WEAK,
        "pyproject.toml": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def run(tree, listed="", *arguments):
    file = tree.parent / "listed.toml"
    file.write_text(listed)
    return mutants.main(["--processes", "1", *arguments], tree, file)


def test_mutants_are_caught_listed_or_named(tree, capsys):
    """`larger` is tested: its mutants are caught but for the equivalent one; `label` is not: it is named."""
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    equivalent = '[[mutant]]\nmodule = "tiny"\nfunction = "larger"\nold = "return a if a > b else b"\n'
    equivalent += 'new = "return a if a >= b else b"\nwhy = "equal numbers are the same"\n'
    assert run(tree, equivalent) == 1
    printed = capsys.readouterr().out
    total = printed.splitlines()[-2].split()
    assert total[0] == "all" and total[4] == "1" and "stale" not in printed
    assert int(total[1]) == sum(map(int, total[2:5])) and int(total[2]) >= 2 and int(total[3]) >= 3
    assert "nanoeuler_lib/tiny.py, label" in printed and "nanoeuler_lib/tiny.py, larger" not in printed
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before


def test_a_listed_mutant_that_is_gone_is_stale(tree, capsys):
    listed = '[[mutant]]\nmodule = "tiny"\nfunction = "larger"\nold = "return b"\nnew = "return a"\nwhy = ""\n'
    assert run(tree, listed, "--sample", "0") == 1
    assert "stale" in capsys.readouterr().out


def test_every_module_has_tests_and_every_listed_mutant_exists():
    sources = {name: (mutants.ROOT / path).read_text("utf-8") for name, path in mutants.modules(mutants.ROOT).items()}
    for name, path in mutants.modules(mutants.ROOT).items():
        assert mutants.tests_of(path, mutants.ROOT) or "def " not in sources[name], name
    listed = mutants.equivalents(mutants.EQUIVALENT)
    assert all(listed.values()), "a reason is missing"
    makers = {name: mutants.planted(name, sources[name]) for name in {key[0] for key in listed}}
    assert not mutants.stale(listed, makers)
