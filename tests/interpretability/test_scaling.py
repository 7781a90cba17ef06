"""What is measured is the distance from the source, and what a fit says is what least squares say."""

import itertools
import math

import numpy as np
import pytest

import konigsberg
from nanoeuler_book import scaling, significance
from nanoeuler_book.scaling import PowerLaw, Runs
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.text.tokenizer import END_OF_TEXT
from nanoeuler_lib.training.checkpoint import load_pretrained

MODEL, TOKENIZER = load_pretrained()
STORIES = list(konigsberg.stories(24, 190))
SOURCE = scaling.source_of(STORIES, TOKENIZER)
LAW = PowerLaw(0.165, 60.0, 0.6, 4e4, 0.9)
N, M = (x.ravel() for x in np.meshgrid([1e5, 3e5, 6e5, 9e5], [1.5e6, 3e6, 6e6, 1.2e7]))
WIDE_N, WIDE_M = (x.ravel() for x in np.meshgrid(np.geomspace(1e4, 1e6, 4), np.geomspace(1e6, 3e7, 4)))


def noisy(seed: int) -> Runs:
    x = (LAW(N, M) - LAW.floor) * np.exp(0.03 * np.random.default_rng(seed).normal(size=len(N)))
    return Runs(N, M, LAW.floor + x, 0.03 * x)


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
    with pytest.raises(NanoEulerError, match="at least one story"):
        scaling.source_of([], TOKENIZER)


# ---- The fit


@pytest.mark.parametrize("floor", [None, 0.16])
def test_a_surface_is_least_squares_at_each_pair_of_exponents(floor):
    """With E among the columns, or known and taken from the losses."""
    runs, alpha, beta = noisy(0), np.array([0.3, 0.7]), np.array([0.5, 0.9, 1.3])
    found = scaling.surface(runs, alpha, beta, floor=floor)
    known, own = floor or 0.0, [] if floor else [1.0]
    assert found.freedom == len(N) - 4 - len(own)
    for (i, p), (j, q) in itertools.product(enumerate(alpha), enumerate(beta)):
        columns = lambda n, m, p=p, q=q: [*own, (n / found.units[0]) ** -p, (m / found.units[1]) ** -q]
        weighted = np.stack(np.broadcast_arrays(*columns(N, M)), axis=1) / runs.spread[:, None]
        theta, rss, _, _ = np.linalg.lstsq(weighted, (runs.loss - known) / runs.spread)
        at, (value, variance) = np.array(columns(5e6, 8e7)), found.at(5e6, 8e7)
        assert found.rss[i, j] == pytest.approx(rss[0])
        assert (found.a[i, j], found.b[i, j]) == pytest.approx(theta[-2:])
        assert value[i, j] == pytest.approx(known + theta @ at)
        assert variance[i, j] == pytest.approx(at @ np.linalg.inv(weighted.T @ weighted) @ at)


def test_fits_find_a_law_without_noise():
    runs = Runs(N, M, LAW(N, M), LAW(N, M) - LAW.floor)
    assert scaling.fit(runs).law() == pytest.approx(LAW, rel=1e-3)
    assert scaling.huber(runs) == pytest.approx(LAW, rel=1e-3)
    assert scaling.bootstrap(runs, 8, np.random.default_rng(0))[:, 0] == pytest.approx(LAW.floor, abs=2e-3)
    assert scaling.fit(noisy(0), floor=0.16).interval() == pytest.approx((0.16, 0.16))
    low, high = scaling.fit(runs).interval(1e7, 1e9)
    assert low <= LAW(1e7, 1e9) * (1 + 1e-6) and high - low < 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_an_interval_ends_where_the_best_law_leaves_the_limit(seed):
    """By brute force: E is held at a number, the other two are solved for at every pair of a grid of exponents."""
    runs = noisy(seed)
    found, grid = scaling.fit(runs), np.geomspace(0.15, 2, 90)
    columns = np.broadcast_arrays(N ** -grid[:, None, None], M ** -grid[:, None])
    weighted = np.stack(columns, axis=-1) / runs.spread[:, None]  # [alpha, beta, run, 2]
    turned = weighted.swapaxes(-1, -2)

    def left(floor):
        y = ((runs.loss - floor) / runs.spread)[:, None]
        theta = np.linalg.solve(turned @ weighted, turned @ y)
        rss = ((y - weighted @ theta) ** 2).sum(axis=(2, 3))
        return rss[theta.min(axis=(2, 3)) > 0].min()

    limit = found.rss.min() * (1 + significance.quantile(0.05, len(N) - 4) ** 2 / (len(N) - 5))
    for end, outwards in zip(found.interval(), (-1, 1), strict=True):
        width = np.ptp(found.interval())
        assert left(end + 0.1 * outwards * width) > limit > left(end - 0.1 * outwards * width)


def test_an_interval_is_wider_for_a_higher_level_and_for_a_run_with_noise():
    found = scaling.fit(noisy(1))
    assert np.ptp(found.interval(level=0.99)) > np.ptp(found.interval(level=0.8))
    low, high = found.interval(1e7, 1e8)
    best = found.at(1e7, 1e8)[0].ravel()[found.rss.argmin()]
    more = math.sqrt(found.limit() - found.rss.min()) * 3e-4
    expected = best - math.hypot(best - low, more), best + math.hypot(high - best, more)
    assert found.interval(1e7, 1e8, noise=3e-4) == pytest.approx(expected)


@pytest.mark.parametrize(
    "freedom, law", [(1, lambda x: 1 / math.cos(math.pi * x / 2) ** 2), (2, lambda x: 1 / (1 - x * x))]
)
def test_the_limit_is_students_where_it_has_a_closed_form(freedom, law):
    found = scaling.surface(noisy(0).take(slice(5 + freedom)), np.array([0.4]), np.array([0.8]))
    for level in (0.5, 0.95):
        assert found.limit(level) == pytest.approx(found.rss.min() * law(level), rel=1e-6)


def test_a_score_and_a_parabola():
    assert scaling.interval_score(1.0, 3.0, 2.0) == 2.0
    assert scaling.interval_score(1.0, 3.0, 3.5) == pytest.approx(2 + 40 * 0.5)
    sizes = np.geomspace(1e4, 1e7, 7)
    assert scaling.parabola(sizes, 2 + 0.3 * (np.log(sizes) - 11) ** 2) == pytest.approx(math.exp(11))


@pytest.mark.parametrize(
    "spoilt, said",
    [
        (lambda runs: runs.take(slice(5)), "a fit of 5 numbers must have at least 6 runs, got 5"),
        (lambda runs: runs._replace(loss=-runs.loss), "positive"),
        (lambda runs: runs._replace(loss=1 / runs.loss), "fall"),
    ],
)
def test_what_cannot_be_fitted_is_refused(spoilt, said):
    with pytest.raises(NanoEulerError, match=said):
        scaling.fit(spoilt(noisy(0)))


def test_weights_find_the_excess_without_being_told_the_floor():
    """Runs of a law without noise: the spreads are a share of what they are above its floor."""
    law = PowerLaw(0.2, 300.0, 0.8, 4e4, 0.9)
    runs = scaling.reweighted(Runs(WIDE_N, WIDE_M, law(WIDE_N, WIDE_M), np.ones(16)), 0.1)
    assert runs.spread == pytest.approx(0.1 * (runs.loss - 0.2), rel=0.02)
    assert scaling.fit(runs).law().floor == pytest.approx(0.2, abs=2e-4)


def test_an_interval_below_zero_is_cut_to_zero_at_both_ends():
    """Losses that fall to less than nothing: the law's floor is negative, and so is all that is not ruled out."""
    loss = PowerLaw(-3.0, 2.0, 0.05, 4.0, 0.02)(WIDE_N, WIDE_M)
    assert scaling.fit(Runs(WIDE_N, WIDE_M, loss, 1e-3 * np.ones(16))).interval() == (0, 0)
