"""The race: both sides take the same steps, and what decides it."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from test_engine import TINY, WHERE

from benchmarks import race
from nanoeuler_lib.model import parameter_shapes
from nanoeuler_lib.model.optim import moved_by_muon, muon_widths
from nanoeuler_lib.text import shards
from nanoeuler_lib.text.tokenizer import Tokenizer

pytestmark = [] if WHERE == "gpu" else [pytest.mark.compiler]
TEXT = "".join(f"Line {n} of {n * n % 97} lines that tell of a river, and of who swam in it.\n" for n in range(900))


@pytest.fixture
def options(tmp_path, monkeypatch):
    """A small text as shards, and a small model: 64 tokens a step."""
    tokenizer = Tokenizer.train(TEXT, 264)
    for name, text in (("train", TEXT), ("valid", TEXT[:150].swapcase())):
        (tmp_path / f"{name}.txt").write_text(text)
        shards.write(tmp_path / name, [tmp_path / f"{name}.txt"], tokenizer, 1)
    monkeypatch.setattr(race, "TOKENS", 64)
    monkeypatch.setattr(race, "preset", lambda name: race.replace(TINY, vocab_size=264))
    for name in ("MOVE", "SCHULZ"):
        monkeypatch.setattr(race.program, name, getattr(race.program, name))
    monkeypatch.setattr(race.optim, "MUON_BETA", race.optim.MUON_BETA)
    return SimpleNamespace(
        data=tmp_path / "train", valid=[tmp_path / "valid"], preset="tiny", device="checked", precision="float32",
        mode=None, where=WHERE, change={}, seeds=[0], seconds=1e9,
    )  # fmt: skip


SHORT = dict(steps=5, warmup=2, rate=0.01, lengths=((0.4, 16), (1.0, 32)))


@pytest.mark.parametrize("change", [{}, dict(optimizer="adamw", lengths=((1.0, 32),)), dict(rounds="five", zero=True)])
def test_both_sides_take_the_same_steps(options, change):
    """In float32, through the change of length, with each of the two optimisers."""
    pytest.importorskip("torch", reason="PyTorch is not installed: make oracle")
    rows = [race.run(options, side, race.RECIPE | SHORT | change, 3) for side in race.SIDES]
    assert rows[0]["losses"] == pytest.approx(rows[1]["losses"], rel=1e-4)
    assert rows[0]["bits"] == pytest.approx(rows[1]["bits"], rel=1e-4)
    first = race.run(options, "engine", race.RECIPE | SHORT | change | dict(steps=1, warmup=0, rate=0.0), 3)
    assert abs(rows[0]["bits"] - first["bits"]) > 0.05, "a race in which nothing moves proves nothing"


def test_variants_of_the_peer_are_others(options):
    pytest.importorskip("torch", reason="PyTorch is not installed: make oracle")
    found = [
        race.run(options, "PyTorch", race.RECIPE | SHORT | change, 3)["bits"]
        for change in ({}, {"normed rows": True}, {"query-key norm": True})
    ]
    assert np.isfinite(found).all() and len({round(bits, 6) for bits in found}) == 3


def test_lengths_follow_one_another(options):
    recipe = race.RECIPE | SHORT
    course = race.Course(options, race.shape_of(options, recipe), recipe, 0)
    assert [tokens.shape for tokens, _ in course.batches()] == [(4, 16)] * 2 + [(2, 32)] * 3
    assert all(np.array_equal(a, b) for a, b in zip(list(course.batches())[3], course.batch(3), strict=True))


def test_momentum_by_stairs(options):
    """As it says in the run, and not as it began."""
    recipe = race.RECIPE | SHORT
    stairs = ((0.5, 0.85), (1.0, 0.4)), ((0.5, 0.85), (1.0, 0.85))
    found = [race.run(options, "engine", recipe | dict(momentum=one), 0)["losses"] for one in (0.85, *stairs)]
    assert found[0] == found[2] != found[1]


def test_the_rate_rises_and_declines():
    recipe = dict(race.RECIPE, steps=100, warmup=10, rate=1.0, decline="linear")
    rates = [race.learning_rate(step, recipe) for step in range(100)]
    assert rates[0] == 0.1 and max(rates) == 1.0 and rates[10] == 1.0 and rates[-1] == pytest.approx(1 / 90)
    assert np.diff(rates[10:]) == pytest.approx(-1 / 90)
    assert race.learning_rate(0, recipe | dict(decline="cosine")) == 0.1


@pytest.mark.parametrize("rounds, least", [(4, 0.003), (3, 0.05)])
def test_the_quintics_are_the_best(rounds, least):
    """No small change of a coefficient brings [least, 1] closer to 1; small values grow."""

    def off(found):
        x = np.geomspace(least, 1, 4001)
        for a, b, c in found:
            x = a * x + b * x**3 + c * x**5
        return np.abs(x - 1).max()

    found = np.array(race.best_quintics(rounds, least, cushion=1.0))
    assert off(found) < 0.25 and np.prod(found[:, 0]) > 0.7 / least
    for place in np.ndindex(found.shape):
        for by in (-0.01, 0.01):
            other = found.copy()
            other[place] *= 1 + by
            assert off(other) > off(found), place


def test_who_passes():
    assert race.passes([1.6880] * 5, 0.006) and not race.passes([1.6890] * 5, 0.006)


def test_the_search_keeps_what_helps(monkeypatch, options):
    """A pretended loss that likes one momentum, and a pretended clock that likes one head."""

    def run(options, side, recipe, seed):
        assert seed == race.SEARCH
        return dict(bits=1.7 + abs(recipe["momentum"] - 0.9), seconds=8 + recipe["heads"], recipe=recipe)

    told = []
    monkeypatch.setattr(race, "run", run)
    race.search(options, told.append)
    assert told[-1]["recipe"]["momentum"] == 0.9 and told[-1]["recipe"]["heads"] == 1
    assert len(told) == len(race.CHANGES) + 2 and told[0]["change"] == {}


def test_a_step_of_each_in_turns(monkeypatch, options):
    told = []
    monkeypatch.setattr(race, "preset", lambda name: race.replace(TINY, layers=1, context=4))
    monkeypatch.setattr("benchmarks.gpu_step.STEPS", 3)
    monkeypatch.setattr(race, "ROWS", (2,))
    options.rounds = 1
    race.step(options, told.append)
    assert [(row["rows"], row["optimizer"]) for row in told[:2]] == [(2, "AdamW"), (2, "Muon, five rounds")]
    assert told[1]["launches"] == told[2]["launches"] + 4 * 3 and told[0]["more_ms"] == 0
    sides = [
        (rows, *(muon_widths(name, TINY) or columns))
        for name, (rows, *columns) in parameter_shapes(TINY).items()
        if moved_by_muon(name) and ".0." in name
    ]
    work = sum(4 * min(d, w) ** 2 * max(d, w) + 2 * min(d, w) ** 3 for d, *many in sides for w in many)
    assert (told[1]["flops"], told[2]["flops"]) == (5 * work, 4 * work)


def test_rows_are_collected(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"machine": {"card": "none"}}))
    (tmp_path / "rows-sigma.jsonl").write_text(json.dumps({"bits": 1.7}) + "\n")
    monkeypatch.setattr(race, "FOLDER", tmp_path / "out")
    race.collect(SimpleNamespace(source=tmp_path))
    stored = json.loads((tmp_path / "out" / "race.json").read_text())
    assert stored["rows"] == [{"section": "sigma", "bits": 1.7}] and stored["config"]["goal"] == race.GOAL
