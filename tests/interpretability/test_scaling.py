"""What is measured is the distance from the source, and what a fit says is what least squares say."""

import itertools
import math

import numpy as np
import pytest

import konigsberg
from nanoeuler_book import evaluate, scaling, significance
from nanoeuler_book.scaling import PowerLaw, Runs
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.text.tokenizer import END_OF_TEXT
from nanoeuler_lib.training.checkpoint import load_pretrained

MODEL, TOKENIZER = load_pretrained()
STORIES = list(konigsberg.stories(24, 190))
SOURCE = scaling.source_of(STORIES, TOKENIZER)
LAW = PowerLaw(0.165, 60.0, 0.6, 4e4, 0.9)
N, M = (x.ravel() for x in np.meshgrid([1e5, 3e5, 6e5, 9e5], [1.5e6, 3e6, 6e6, 1.2e7]))


def noisy(seed: int, noise: float = 0.03, law: PowerLaw = LAW) -> Runs:
    x = (law(N, M) - law.floor) * np.exp(noise * np.random.default_rng(seed).normal(size=len(N)))
    return Runs(N, M, law.floor + x, noise * x)


# ---- What is measured


def said_by_the_source(tokens):
    """The source as a model: its laws, at these stories."""
    log_p = np.full((*tokens.shape, TOKENIZER.vocab_size), -np.inf)
    texts = {tuple(row.tolist()): i for i, row in enumerate(SOURCE.tokens)}
    for row, ids in enumerate(tokens):
        here = SOURCE.law.row == texts[tuple(ids.tolist())]
        log_p[row, SOURCE.law.place[here], SOURCE.law.token[here]] = np.log(SOURCE.law.probability[here])
    return log_p


def test_the_source_is_nothing_above_itself_and_a_uniform_model_its_bits():
    assert np.abs(scaling.excess(said_by_the_source, SOURCE, rows=7)).max() < 1e-12
    uniform = scaling.excess(lambda tokens: np.full((*tokens.shape, 512), -math.log(512)), SOURCE)
    scored = SOURCE.part >= 0
    assert np.allclose(uniform[scored], 9 - SOURCE.entropy[scored]) and not uniform[~scored].any()
    assert scored.sum() == sum(len(TOKENIZER.encode(s.text)) + 1 for s in STORIES)


def test_excess_is_what_a_model_pays_on_average():
    """E + KL is the mean, over what the source may say, of what a model pays; the drawn tokens scatter around it."""
    found = scaling.excess(MODEL, SOURCE)
    measured = evaluate.measure(MODEL, TOKENIZER, STORIES)
    differences = np.log2(np.e) * measured.nats - measured.bits - found[SOURCE.part >= 0]
    error = differences.std(ddof=1) * math.sqrt(len(differences))
    assert abs(differences.sum()) < 4 * error and found.min() > -1e-5
    assert SOURCE.floor == pytest.approx(measured.floor, rel=0.03)


def test_parts_add_up_and_name_what_is_asked():
    found = scaling.excess(MODEL, SOURCE)
    parts = scaling.by_part(found, SOURCE)
    assert sum(parts.values()) == pytest.approx(found.sum() / SOURCE.bytes)
    forced = SOURCE.entropy[SOURCE.part == SOURCE.parts.index("form")]
    assert np.median(forced) == 0
    story = next(s for s in STORIES if not s.text.endswith("Ende."))
    one = scaling.source_of([story], TOKENIZER)
    question = story.text.rpartition("\n")[2]
    kind = next(q.kind for q in story.questions if question.startswith(q.text))
    behind = [one.parts[i] for i in one.part[0, len(TOKENIZER.encode(story.body)) :]]
    assert f"asked: {kind}" in behind and not any(name.startswith("told") for name in behind)
    assert one.tokens[0, 0] == TOKENIZER.special_tokens[END_OF_TEXT]
    with pytest.raises(NanoEulerError, match="no stories"):
        scaling.source_of([], TOKENIZER)


# ---- The fit


def test_a_surface_is_least_squares_at_each_pair_of_exponents():
    runs, alpha, beta = noisy(0), np.array([0.3, 0.7]), np.array([0.5, 0.9, 1.3])
    found = scaling.surface(runs, alpha, beta)
    for (i, p), (j, q) in itertools.product(enumerate(alpha), enumerate(beta)):
        columns = np.stack([np.ones_like(N), (N / found.units[0]) ** -p, (M / found.units[1]) ** -q], axis=1)
        weighted = columns / runs.spread[:, None]
        theta, rss, _, _ = np.linalg.lstsq(weighted, runs.loss / runs.spread)
        at = np.array([1.0, (5e6 / found.units[0]) ** -p, (8e7 / found.units[1]) ** -q])
        value, variance = found.at(5e6, 8e7)
        assert found.rss[i, j] == pytest.approx(rss[0]) and (found.a[i, j], found.b[i, j]) == pytest.approx(theta[1:])
        assert value[i, j] == pytest.approx(theta @ at)
        assert variance[i, j] == pytest.approx(at @ np.linalg.inv(weighted.T @ weighted) @ at)


def test_a_known_floor_leaves_two_columns():
    runs = noisy(0)
    found = scaling.surface(runs, np.array([0.5]), np.array([0.8]), floor=0.16)
    columns = np.stack([(N / found.units[0]) ** -0.5, (M / found.units[1]) ** -0.8], axis=1) / runs.spread[:, None]
    theta, rss, _, _ = np.linalg.lstsq(columns, (runs.loss - 0.16) / runs.spread)
    assert found.rss[0, 0] == pytest.approx(rss[0]) and (found.a[0, 0], found.b[0, 0]) == pytest.approx(theta)
    assert found.freedom == len(N) - 4 and scaling.fit(runs, floor=0.16).interval() == pytest.approx((0.16, 0.16))
    at = np.array([(5e6 / found.units[0]) ** -0.5, (8e7 / found.units[1]) ** -0.8])
    assert found.at(5e6, 8e7)[1] == pytest.approx(at @ np.linalg.inv(columns.T @ columns) @ at)


def test_fits_find_a_law_without_noise():
    runs = Runs(N, M, LAW(N, M), LAW(N, M) - LAW.floor)
    assert scaling.fit(runs).law() == pytest.approx(LAW, rel=1e-3)
    assert scaling.huber(runs) == pytest.approx(LAW, rel=1e-3)
    assert scaling.bootstrap(runs, 8, np.random.default_rng(0))[:, 0] == pytest.approx(LAW.floor, abs=2e-3)
    low, high = scaling.fit(runs).interval(1e7, 1e9)
    assert low <= LAW(1e7, 1e9) * (1 + 1e-6) and high - low < 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_an_interval_ends_where_the_best_law_leaves_the_limit(seed):
    """By brute force: E is held at a number, the other two are solved for, the exponents tried one by one."""
    runs = noisy(seed)
    found = scaling.fit(runs)
    grid = np.geomspace(0.15, 2, 90)

    def left(floor):
        best = math.inf
        for p, q in itertools.product(grid, grid):
            weighted = np.stack([N**-p, M**-q], axis=1) / runs.spread[:, None]
            gram, right = weighted.T @ weighted, weighted.T @ ((runs.loss - floor) / runs.spread)
            theta = np.linalg.solve(gram, right)
            if theta.min() > 0:
                best = min(best, float((((runs.loss - floor) / runs.spread - weighted @ theta) ** 2).sum()))
        return best

    limit = found.rss.min() * (1 + significance.quantile(0.05, len(N) - 4) ** 2 / (len(N) - 5))
    for end, outwards in zip(found.interval(), (-1, 1), strict=True):
        width = np.ptp(found.interval())
        assert left(end + 0.1 * outwards * width) > limit > left(end - 0.1 * outwards * width)


def test_intervals_hold_the_floor_about_as_often_as_they_say():
    held = [low <= LAW.floor <= high for low, high in (scaling.fit(noisy(s)).interval() for s in range(200))]
    assert 0.88 <= np.mean(held) <= 0.995
    wide, narrow = (np.ptp(scaling.fit(noisy(1)).interval(level=level)) for level in (0.99, 0.8))
    assert wide > narrow
    run = scaling.fit(noisy(1)).interval(1e7, 1e8, noise=0.03 * 0.01)
    assert np.ptp(run) > np.ptp(scaling.fit(noisy(1)).interval(1e7, 1e8))


def test_bfgs_finds_the_bottom_of_a_bowl_and_stops_at_its_tolerance():
    matrix = np.diag([1.0, 30.0, 900.0]) + 0.3

    def bowl(x):
        return float((x - 1) @ matrix @ (x - 1)) / 2, matrix @ (x - 1)

    assert scaling.bfgs(bowl, np.zeros(3), 1e-10) == pytest.approx(np.ones(3))
    early = scaling.bfgs(lambda x: tuple(y * 1e-6 for y in bowl(x)), np.zeros(3), 1e-4)
    assert np.abs(early - 1).max() > 0.1


def test_a_score_and_a_parabola():
    assert scaling.interval_score(1.0, 3.0, 2.0) == 2.0
    assert scaling.interval_score(1.0, 3.0, 3.5) == pytest.approx(2 + 40 * 0.5)
    sizes = np.geomspace(1e4, 1e7, 7)
    assert scaling.parabola(sizes, 2 + 0.3 * (np.log(sizes) - 11) ** 2) == pytest.approx(math.exp(11))


def test_what_cannot_be_fitted_is_refused():
    runs = noisy(0)
    with pytest.raises(NanoEulerError, match="there are 5 runs, expected at least 6"):
        scaling.fit(runs.take(slice(5)))
    with pytest.raises(NanoEulerError, match="positive"):
        scaling.fit(runs._replace(loss=-runs.loss))
    with pytest.raises(NanoEulerError, match="fall"):
        scaling.fit(Runs(N, M, 1 / runs.loss, runs.spread))


def test_weights_find_the_excess_without_being_told_the_floor():
    """Runs of a law without noise: the spreads are a share of what they are above its floor."""
    law = PowerLaw(0.2, 300.0, 0.8, 4e4, 0.9)
    n, m = map(np.ravel, np.meshgrid(np.geomspace(1e4, 1e6, 4), np.geomspace(1e6, 3e7, 4)))
    runs = scaling.reweighted(Runs(n, m, law(n, m), np.ones(16)), 0.1)
    assert runs.spread == pytest.approx(0.1 * (law(n, m) - 0.2), rel=0.02)
    assert scaling.fit(runs).law().floor == pytest.approx(0.2, abs=2e-4)


def test_an_interval_below_zero_is_cut_to_zero_at_both_ends():
    """Losses that fall to less than nothing: the law's floor is negative, and so is all that is not ruled out."""
    n, m = map(np.ravel, np.meshgrid(np.geomspace(1e4, 1e6, 4), np.geomspace(1e6, 3e7, 4)))
    loss = PowerLaw(-3.0, 2.0, 0.05, 4.0, 0.02)(n, m)
    low, high = scaling.fit(Runs(n, m, loss, 1e-3 * np.ones(16))).interval()
    assert low == high == 0
