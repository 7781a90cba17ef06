"""The mutation run: each module has tests, and the mutants that are listed are still made."""

import pytest

pytest.importorskip("mutmut", reason="mutmut is not installed: make oracle")

from tools.release import mutants

pytestmark = pytest.mark.full


def test_every_module_has_tests_and_every_listed_mutant_exists():
    sources = {name: (mutants.ROOT / path).read_text("utf-8") for name, path in mutants.modules(mutants.ROOT).items()}
    for name, path in mutants.modules(mutants.ROOT).items():
        assert mutants.tests_of(path, mutants.ROOT) or "def " not in sources[name], name
    listed = mutants.equivalents(mutants.EQUIVALENT)
    assert all(listed.values()), "a reason is missing"
    makers = {name: mutants.planted(name, sources[name]) for name in {key[0] for key in listed}}
    assert not mutants.stale(listed, makers)
