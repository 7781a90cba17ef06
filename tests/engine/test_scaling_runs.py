"""Chapter 19's runs: the same on a GPU and on the CPU, each row read once."""

import multiprocessing
from dataclasses import asdict
from multiprocessing.pool import ThreadPool
from types import SimpleNamespace

import numpy as np
import pytest
from test_engine import WHERE

from experiments import ch19, ch19_runs
from experiments.ch19_runs import RULES, Run
from nanoeuler_lib.engine.device import CPU, Device

pytestmark = [] if WHERE == "gpu" else [pytest.mark.compiler]
CARD = Device("gpu" if WHERE == "gpu" else "checked", "float32")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Few stories, short ones, and small models."""
    for name, value in dict(CONTEXT=16, LAYERS=1, VOCABULARY=512, BASE=32).items():
        monkeypatch.setattr(ch19_runs, name, value)
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 16, size=60)
    rows = rng.integers(5, 512, size=(60, 17)).astype(np.uint16)
    np.save(tmp_path / "stories.npy", np.where(np.arange(17) <= lengths[:, None], rows, 0))
    np.save(tmp_path / "lengths.npy", lengths)
    ch19_runs.text_of.cache_clear()
    return tmp_path


@pytest.mark.parametrize("rule", ["embedding", "mup, independent"])
def test_a_card_takes_the_steps_of_the_cpu(folder, rule):
    run = Run(64, 20 * 92 * 2, 0.003, batch=2, seed=3, rule=rule)
    host, card = (ch19_runs.train(run, folder, on)[0].params.host() for on in (CPU, CARD))
    first = run.first_weights()
    for name in host:
        moved = np.linalg.norm(host[name] - first[name])
        assert 0 < moved and np.linalg.norm(host[name] - card[name]) < 1e-2 * moved, name


def test_rules_move_parts_by_their_powers():
    rates = {rule: [Run(128, 0, 1.0, rule=rule).factors(part) for part in ch19_runs.PARTS] for rule in RULES}
    assert rates == {
        "one rate": [(1, 1)] * 4,
        "embedding": [(2, 1), (1, 1), (1, 1), (1, 1)],
        "mup": [(1, 1), (0.5, 1), (0.5, 1), (1, 1)],
        "mup, independent": [(1, 1), (0.5, 2), (0.5, 2), (1, 1)],
    }
    plain, narrow = (Run(256, 0, 1.0, rule=rule).first_weights() for rule in ("one rate", "mup"))
    ratio = {name: narrow[name].std() / plain[name].std() for name in plain if plain[name].ndim == 2}
    assert (
        ratio["embed"] == 1 and ratio["heads"] == pytest.approx(1 / 4) and ratio["layers.0.qkv"] == pytest.approx(1 / 2)
    )


def test_a_run_reads_each_story_once(folder):
    run = Run(32, 20 * 92 * 3, 0.01, batch=3)
    rows = np.concatenate([inputs[:, 1:] for inputs, _ in ch19_runs.text_of(folder, "konigsberg").batches(run)])
    assert len(rows) == 60 == len({row.tobytes() for row in rows})
    inputs, targets = next(ch19_runs.text_of(folder, "konigsberg").batches(run))
    there = targets[:, :-1, 0] >= 0
    assert (targets[:, :-1, 0][there] == inputs[:, 1:][there]).all() and (targets < 0).any()
    with pytest.raises(ValueError, match="reads 80 stories, and 60 were drawn"):
        next(ch19_runs.text_of(folder, "konigsberg").batches(Run(32, 20 * 92 * 4, 0.01, batch=4)))


def test_a_sweep_goes_on_where_it_was_stopped(folder, monkeypatch):
    runs, made = [Run(32, 1000 * k, 0.01, batch=2) for k in (1, 2, 3)], []
    monkeypatch.setattr(ch19, "runs_of", lambda section, out: runs)
    monkeypatch.setattr(ch19_runs, "work", lambda task: made.append(task[0]) or asdict(task[0]))
    threads = SimpleNamespace(Pool=ThreadPool, Value=multiprocessing.Value)
    monkeypatch.setattr(ch19.multiprocessing, "get_context", lambda name: threads)
    assert not ch19.sweep("pilot", folder, 0, 1, seconds=-1)
    assert [Run(**row) for row in ch19.rows_of(folder, "pilot")] == runs[:1]
    made.clear()
    assert ch19.sweep("pilot", folder, 0, 1, seconds=1e9)
    assert made == runs[1:] and [Run(**row) for row in ch19.rows_of(folder, "pilot")] == runs


def test_the_rate_is_read_off_parabolas():
    def loss(width, rate, seed):
        best = np.log(0.004) - 0.5 * np.log(width / 64)
        return 0.1 + 0.05 * (np.log(rate) - best) ** 2 + (0.02 if seed else -0.02)

    rows = [
        dict(width=w, rate=r, excess=loss(w, r, seed)) for w in (32, 96, 192) for r in ch19.RATES for seed in (0, 1)
    ]
    line = ch19.rate_line(rows)
    assert np.exp(line(np.log(64))) == pytest.approx(0.004, rel=1e-6)
    assert line.coef[1] == pytest.approx(-0.5)
