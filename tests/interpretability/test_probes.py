"""Test probes: they gain the available information, no more, and nothing in the controls."""

import numpy as np
import pytest

from konigsberg import rumours
from nanoeuler_book.interpretability.probes import (
    PARTS,
    Reading,
    Sites,
    bits,
    last_tokens,
    part_of,
    ridge,
    score,
    sites,
)
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT


def made(x, beliefs, seed=0):
    """Return sites of one depth with these vectors and beliefs, each from a different story."""
    m = len(x)
    parts = np.array([part_of(f"{seed} {i}") for i in range(m)])
    return Sites(x[None].astype(np.float32), beliefs, np.full(m, "all"), parts, np.zeros((m, 2), int))


def normals(m, rng):
    """Return vectors around three centres and the exact posterior of the centre, with logits linear in the vector."""
    centres = 1.2 * rng.normal(size=(3, 9))
    x = centres[rng.integers(0, 3, m)] + rng.normal(size=(m, 9))
    logits = x @ centres.T - (centres**2).sum(axis=1) / 2
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return x, p / p.sum(axis=1, keepdims=True)


def test_a_linear_probe_wins_the_bound_where_logits_are_linear():
    given = made(*normals(2500, np.random.default_rng(1)))
    found = score(given, given.x[0], "linear")
    assert found.bound > 0.8 and found.kl < 0.03 and found.won == pytest.approx(found.bound - found.kl)
    assert score(given, given.x[0], "prior").won == 0
    for kind in ("linear", "hidden", "ridge"):  # after shuffling, no information is left
        assert abs(score(given.shuffled(2), given.x[0], kind).won) < 0.02
    with pytest.raises(NanoEulerError, match="kind must be prior, ridge, linear or hidden, got 'deep'"):
        score(given, given.x[0], "deep")


def test_only_a_hidden_layer_reads_whether_two_signs_agree():
    x = np.random.default_rng(2).normal(size=(2500, 5))
    given = made(x, np.eye(2)[(x[:, 0] * x[:, 3] > 0).astype(int)])
    linear, hidden = (score(given, given.x[0], kind).won for kind in ("linear", "hidden"))
    assert linear < 0.05 and hidden > 0.7


def test_ridge_is_the_minimum_of_its_loss():
    rng = np.random.default_rng(3)
    x, y = rng.normal(2.0, 3.0, (40, 7)), rng.dirichlet(np.ones(3), 40)
    probe = ridge(x, y, 0.3)
    z, (w,) = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6), probe.weights

    def loss(w):
        return ((z @ w[:-1] + w[-1] - y) ** 2).sum() / 40 + 0.3 * (w[:-1] ** 2).sum()

    for index in np.ndindex(w.shape):
        step = np.zeros_like(w)
        step[index] = 1e-4
        assert abs(loss(w + step) - loss(w - step)) / 2e-4 < 1e-8
    laws = probe.law(np.array([x[0], 100 * x[1]]))
    assert (laws > 0).all() and np.allclose(laws.sum(axis=1), 1)
    exact = rng.normal(size=(500, 6))
    y = 1 / 3 + exact @ rng.normal(size=(6, 3)) @ (np.eye(3) - 1 / 3) / 30
    assert np.abs(ridge(exact, y, 1e-9).law(exact) - y).max() < 1e-5


def test_a_story_stands_on_one_side_and_a_probe_that_knows_stories_by_heart_wins_nothing():
    """Use vectors that identify 90 stories and a random bit per story: a split by sites would gain this bit."""
    rng = np.random.default_rng(4)
    texts = np.repeat([f"story {i}" for i in range(90)], 12)
    which, coins = np.repeat(np.arange(90), 12), rng.integers(0, 2, 90)
    x = rng.normal(size=(90, 60))[which] + 0.05 * rng.normal(size=(1080, 60))
    given = made(x, np.eye(2)[coins[which]])
    by_site = score(given, given.x[0], "hidden")
    by_story = score(
        Sites(given.x, given.beliefs, given.kinds, np.array([part_of(text) for text in texts]), given.last), given.x[0]
    )
    assert by_site.won > 0.8 and by_story.won < 0.1


def test_sites_are_where_the_readings_say_and_the_bound_is_the_information():
    model = GPT(ModelConfig(dim=16, heads=2, kv_heads=1, layers=2, context=60, vocab_size=len(rumours.WORDS)), seed=1)
    readings, place = [], []
    for rumour in rumours.rumours(3000, 8):
        row = np.append(0, rumour.ids)
        readings.append(
            Reading(rumour.text, row, rumours.posterior(rumour.text), {0: "before", 9: "first", 5: "owner"})
        )
        place.append(rumours.PLACES.index(rumour.place))
    given = sites(model, readings, last=7)
    assert given.x.shape == (3, 9000, 16) and given.beliefs.shape == (9000, 12)
    assert given.last[3 * 7 + 1].tolist() == readings[7].row[3:10].tolist()
    assert given.last[0].tolist() == [-1] * 6 + [0]
    assert np.allclose(given.x[:, 4], model_stream(model, readings[1].row[:10])[:, 9], atol=1e-5)
    assert not last_tokens(given, model.params["embed"])[0, : 6 * 16].any()
    with pytest.raises(NanoEulerError, match="must have sites of kind 'last', got none in choose, test, train"):
        given.of("last")
    first = given.of("first")
    assert first.x.shape[1] == 3000 and set(PARTS) == {"train", "choose", "test"} == set(first.parts)
    # I(place; statement of the first witness), counted over witnesses and statements
    rates = np.array(list(rumours.RATE.values()))
    right, wrong = rates / 12, (1 - rates) / 11 / 12
    information = (12 * right * np.log2(12 * rates) + 132 * wrong * np.log2(12 * (1 - rates) / 11)).mean()
    assert score(first, first.x[0], "prior").bound == pytest.approx(information, abs=0.05)
    assert bits(np.eye(12)[place], first.beliefs).mean() == pytest.approx(np.log2(12) - information, abs=0.06)


def model_stream(model, row):
    """Return the residual stream from the plan's own buffers."""
    plan = model.plan(1, len(row))
    model.forward(plan, row[None])
    return np.stack([plan.layers[0].x1, plan.layers[1].x1, plan.x_final])
