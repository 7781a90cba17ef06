"""Wrong answers by rule: a sample of each gap's is rejected by its check, or is known not to be a mistake."""

import json
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("mutmut", reason="mutmut is not installed: make oracle")
pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")

from tools.notebooks.cells import ROOT
from tools.release import chapter_mutants as cm

pytestmark = pytest.mark.full
CHAPTERS = sorted(path.stem[:2] for path in (ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("number", CHAPTERS)
def test_five_mutants_of_each_gap(number):
    chapter, gaps, texts = cm.load(number)
    assert len(gaps) >= 4
    for gap in gaps:
        value = gap.answer(chapter)() if not gap.names and callable(gap.answer(chapter)) else gap.answer(chapter)
        assert gap.verdict(chapter, value) == "right", gap.name
    found = list(cm.tried(number, sample=5))
    assert {gap for gap, *_ in found} == {gap.name for gap in gaps}
    assert [(gap, mutant.old, mutant.new) for gap, mutant, outcome in found if outcome == "survived"] == []
    listed = {key for key in cm.equivalents(cm.LISTED) if key[0] == number}
    assert listed <= {mutant.key(number) for gap in gaps for mutant in cm.mutants_of(gap, chapter, texts)}


def check_double(f):
    assert f(np.array([0.0, 2.0]))[1] == 4, "not twice"
    return "right"


def check_pair(f):
    assert len(f()) == 2, "not two"
    return "right"


def test_a_weak_check_lets_mutants_survive_until_they_are_noted_or_listed(monkeypatch, tmp_path, capsys):
    text = "def double(x):\n    return x * 2"
    exec(text, names := {"np": np, "pair": lambda: (3, 5), "check_double": check_double, "check_pair": check_pair})
    gaps = [cm.Gap("double", "check_double", "double", ("double",)), cm.Gap("pair", "check_pair", "pair", ())]
    monkeypatch.setattr(cm, "load", lambda _: (SimpleNamespace(**names), gaps, {"double": text}))
    monkeypatch.setattr(cm, "LISTED", tmp_path / "listed.toml")
    monkeypatch.setattr(cm, "SEEN", tmp_path / "seen.json")
    cm.LISTED.write_text("")
    cm.SEEN.write_text('{"98 other": "0123abcd"}')
    found = {mutant.new: outcome for _, mutant, outcome in cm.tried("99", processes=1)}
    assert found["return x * 3"] == found["(3,)"] == "rejected"
    assert found["return x + 2"] == found["(5, 3)"] == "survived"  # 2 + 2 is 2 * 2
    assert cm.main(["99"]) == 1
    assert 'new = "return x + 2"' in capsys.readouterr().out
    assert cm.main(["99", "--accept"]) == 0 and cm.main(["99"]) == 0
    assert json.loads(cm.SEEN.read_text())["98 other"] == "0123abcd"
    entry = 'module = "99"\nfunction = "double"\nold = "return x * 2"\nnew = "return x + 2"\nwhy = "weak"\n'
    cm.LISTED.write_text(f"[[mutant]]\n{entry}")
    assert "listed" in {outcome for _, _, outcome in cm.tried("99", only="double")}


def test_what_waits_ends_its_process_or_asks_for_all_memory_is_rejected():
    work = [
        lambda: "accepted",
        lambda: time.sleep(60),
        lambda: os._exit(0),
        lambda: np.ones(1 << 40) and "",
        lambda: 1 / 0,
    ]
    found = dict(cm.attempts(work, seconds=1.5, processes=5))
    assert found == {0: "accepted"} | dict.fromkeys(range(1, 5), "rejected")
