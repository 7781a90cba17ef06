"""Scaling laws: measure a model's excess loss over the source, and fit a power law with confidence intervals.

The law is L(N, M) = E + a N^-alpha + b M^-beta, in bits per byte, for a model of N parameters trained on M tokens
(Hoffmann et al. 2022). For Königsberg, E is known: `excess` computes a model's KL divergence from the source at each
position, and the model's loss is E plus the sum of these divergences per byte. For given exponents the law is linear in
E, a and b. `fit` therefore tries all exponents of a grid (variable projection, Golub and Pereyra 1973), and the same
grid gives every confidence interval; E is the law's value at infinitely many parameters and tokens. `huber` fits all
five numbers at once, as Hoffmann et al. do. Chapter 19.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from konigsberg import FACT, FREE, Story, token_truth
from nanoeuler_book import significance
from nanoeuler_book.evaluate import log_probabilities
from nanoeuler_book.interpretability.activations import row_of
from nanoeuler_book.interpretability.twins import Law
from nanoeuler_book.town import next_tokens
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text.tokenizer import Tokenizer

# ---- Measuring


class Source(NamedTuple):
    """Stories, one per row after an end-of-text token, and the source's distribution at every position.

    tokens: int64 [S, T], padded with the end of text; law: the distribution at every position that predicts a token;
    entropy: the entropy of this distribution, in bits [S, T], 0 in the padding; parts: names of kinds of position;
    part: [S, T], index into `parts`, -1 in the padding; bytes: total size of the stories.
    """

    tokens: np.ndarray
    law: Law
    entropy: np.ndarray
    parts: tuple[str, ...]
    part: np.ndarray
    bytes: int

    @property
    def floor(self) -> float:
        """E, the source's entropy in bits per byte: expected costs of tokens, not costs of actual tokens."""
        return float(self.entropy.sum() / self.bytes)


def source_of(stories: Iterable[Story], tokenizer: Tokenizer) -> Source:
    """Put stories into rows and compute the source's distribution at each position.

    The part of a position is "free" if the source chooses the token freely; "asked: " + the kind of question, or "told:
    " + the kind of story, if a fact decides the token (`konigsberg.token_truth`); and "form" otherwise. Raises
    NanoEulerError if no story is given.
    """
    stories = list(stories)
    if not stories:
        raise NanoEulerError("stories must contain at least one story, got none")
    rows = [row_of(story.text, tokenizer) for story in stories]
    tokens = np.full((len(rows), max(map(len, rows))), rows[0][0], np.int64)
    entropy, part, entries, names = np.zeros(tokens.shape), np.full(tokens.shape, -1), [], {}
    for i, (story, row) in enumerate(zip(stories, rows, strict=True)):
        tokens[i, : len(row)] = row
        for j, said in enumerate(next_tokens(story.text, tokenizer)[1]):
            p = np.array(list(said.values()))
            entropy[i, j] = -(p * np.log2(p)).sum()
            entries += [(i, j, token, share) for token, share in said.items()]
        for j, name in enumerate(_parts(story, tokenizer.token_lengths[row[1:]])):
            part[i, j] = names.setdefault(name, len(names))
    row, place, token, p = map(np.array, zip(*entries, strict=True))
    return Source(
        tokens, Law(row, place, token, p), entropy, tuple(names), part, sum(len(s.text.encode()) for s in stories)
    )


def _parts(story, lengths):
    """Yield the part (see `source_of`) of each token of a story and of the end of text after the story."""
    last = story.text.rpartition("\n")[2]
    asked = next((q.kind for q in story.questions if last.startswith(q.text)), "")
    ends = np.cumsum(lengths)
    for tag, end in zip(token_truth(story.text, lengths).tag, ends, strict=True):
        behind = end > len(story.body.encode()) + 1
        fact = f"asked: {asked}" if behind and asked else f"told: {story.kind}"
        yield fact if tag == FACT else "free" if tag == FREE else "form"
    yield "form"


def excess(model: GPT | Callable[[np.ndarray], np.ndarray], source: Source, rows: int = 64) -> np.ndarray:
    """Return KL(source || model) at each position, in bits, float64 [S, T].

    model: a GPT, or a function from tokens [B, T] to log-probabilities [B, T, V] in nats; rows: stories per batch. The
    sum is exact: it runs over every token that the source might choose.
    """
    if isinstance(model, GPT):
        model = partial(log_probabilities, model)
    law, found = source.law, np.zeros(source.tokens.shape)
    for start in range(0, len(source.tokens), rows):
        here = slice(*np.searchsorted(law.row, [start, start + rows]))  # entries are sorted by row
        row, place, token, p = (x[here] for x in law)
        log_p = model(source.tokens[start : start + rows])[row - start, place, token]
        np.add.at(found, (row, place), p * (np.log2(p) - log_p / math.log(2)))
    return found


def by_part(divergence: np.ndarray, source: Source) -> dict[str, float]:
    """Split a model's excess [S, T] by part, in bits per byte of all stories; the parts sum to the total excess."""
    there = source.part >= 0
    sums = np.bincount(source.part[there], divergence[there], len(source.parts))
    return dict(zip(source.parts, (sums / source.bytes).tolist(), strict=True))


# ---- The law and its fit


class PowerLaw(NamedTuple):
    """The power law E + a N^-alpha + b M^-beta, in bits per byte."""

    floor: float
    a: float
    alpha: float
    b: float
    beta: float

    def __call__(self, parameters: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return the predicted loss for numbers of parameters [n] and of training tokens [n]; both may be infinite."""
        n, m = np.asarray(parameters, float), np.asarray(tokens, float)
        return self.floor + self.a * n**-self.alpha + self.b * m**-self.beta


class Runs(NamedTuple):
    """Trained models, as arrays [n].

    parameters: number of parameters; tokens: number of training tokens; loss: in bits per byte; spread: standard
    deviation of the loss over seeds (only the ratios of spreads affect a fit).
    """

    parameters: np.ndarray
    tokens: np.ndarray
    loss: np.ndarray
    spread: np.ndarray

    def take(self, which: np.ndarray) -> "Runs":
        """Return some of the runs, by index or mask."""
        return Runs(*(np.asarray(x)[which] for x in self))


LOW, HIGH, POINTS = 0.02, 2.0, 64  # the grid of exponents: bounds and number of points


class Surface(NamedTuple):
    """Least-squares fits of E, a, b for each pair of exponents: arrays [..., A, B] of A alphas and B betas.

    rss: weighted residual sum of squares; a, b: coefficients of N^-alpha and M^-beta with N and M in `units`; mean:
    means of the loss and the two regressors; inverse: entries (first, both, second) of the inverse of the regressors'
    covariance sums; sure: variance of the mean loss; freedom: degrees of freedom, the number of runs minus the number
    of fitted numbers.
    """

    alpha: np.ndarray
    beta: np.ndarray
    rss: np.ndarray
    a: np.ndarray
    b: np.ndarray
    mean: tuple[np.ndarray, np.ndarray, np.ndarray]
    inverse: tuple[np.ndarray, np.ndarray, np.ndarray]
    sure: np.ndarray | float
    freedom: int
    units: tuple[float, float]

    def columns(self, parameters: float, tokens: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the regressors N^-alpha [A, 1] and M^-beta [1, B], with N and M in `units`."""
        return (
            np.power(parameters / self.units[0], -self.alpha)[:, None],
            np.power(tokens / self.units[1], -self.beta)[None, :],
        )

    def at(self, parameters: float, tokens: float) -> tuple[np.ndarray, np.ndarray]:
        """Return a model's predicted loss and its variance at unit noise, for each pair of exponents [..., A, B]."""
        y, u, v = self.mean
        du, dv = (x - mean for x, mean in zip(self.columns(parameters, tokens), (u, v), strict=True))
        first, both, second = self.inverse
        variance = self.sure + du**2 * first + 2 * du * dv * both + dv**2 * second
        return y + self.a * du + self.b * dv, variance

    def law(self) -> PowerLaw:
        """Return the law with the smallest residual sum of squares."""
        i, j = np.unravel_index(self.rss.argmin(), self.rss.shape)
        alpha, beta = float(self.alpha[i]), float(self.beta[j])
        floor = float(self.at(np.inf, np.inf)[0][i, j])
        a, b = (
            float(c[i, j]) * unit**power
            for c, unit, power in zip((self.a, self.b), self.units, (alpha, beta), strict=True)
        )
        return PowerLaw(floor, a, alpha, b, beta)

    def limit(self, level: float = 0.95) -> float:
        """Return the largest rss in the confidence region of the exponents: (1 + t^2 / freedom) x the smallest."""
        return float(self.rss.min()) * (1 + significance.quantile(1 - level, self.freedom + 1) ** 2 / self.freedom)

    def interval(
        self, parameters: float = np.inf, tokens: float = np.inf, level: float = 0.95, noise: float = 0.0
    ) -> tuple[float, float]:
        """Return a profile-likelihood confidence interval for the loss of a model, by default for E (infinite size).

        A loss is inside if some law that predicts it has an rss of at most `limit` (Venzon and Moolgavkar 1988). For
        one pair of exponents the rss grows with the square of the distance from the predicted loss, which gives an
        interval in closed form; the result is the union of these intervals, cut off at 0. noise: for a prediction
        interval, the noise of a new run in multiples of the spread of weight 1; 0: a confidence interval for the law's
        value.
        """
        value, variance = self.at(parameters, tokens)
        limit, best = self.limit(level), float(value[np.unravel_index(self.rss.argmin(), self.rss.shape)])
        low, high = confidence_set(value, variance, self.rss, limit)
        own = math.sqrt(limit - float(self.rss.min())) * noise
        ends = best - math.hypot(best - low, own), best + math.hypot(high - best, own)
        return max(0.0, ends[0]), max(0.0, ends[1])


def confidence_set(value: np.ndarray, variance: np.ndarray, rss: np.ndarray, limit: float) -> tuple[float, float]:
    """Return the lowest and highest value at which some pair of exponents has an rss of at most `limit`.

    value, variance: the prediction at each pair and its variance (`Surface.at`); rss: the
    residual sum of squares there. At a distance d from the prediction, the rss is larger by
    d^2 / variance.
    """
    # rounding can make a variance negative
    half = np.sqrt(np.maximum(limit - rss, 0) * np.maximum(variance, 0))
    allowed = rss <= limit
    return float((value - half)[allowed].min()), float((value + half)[allowed].max())


def surface(
    runs: Runs, alpha: np.ndarray, beta: np.ndarray, counts: np.ndarray | None = None, floor: float | None = None
) -> Surface:
    """Solve for E, a, b at every pair of exponents alpha [A], beta [B].

    counts: how often each run counts, [n] or [..., n] for several fits at once (a bootstrap); by default once. floor: E
    if it is known, so that only a and b are solved for. Pairs at which a or b is not positive get an infinite rss.
    Raises NanoEulerError for fewer than 6 runs, or for values that are not positive.
    """
    n, m, loss, spread = (np.asarray(x, float) for x in runs)
    if len(loss) < 6:
        raise NanoEulerError(f"a fit of 5 numbers must have at least 6 runs, got {len(loss)}")
    if not all(np.all(np.isfinite(x) & (x > 0)) for x in (n, m, loss, spread)):
        raise NanoEulerError("parameters, tokens, losses and spreads must all be positive and finite")
    units = tuple(float(np.exp(np.log(x).mean())) for x in (n, m))
    w = spread**-2 * (1.0 if counts is None else np.asarray(counts, float))
    u, v = (x[:, None] / unit for x, unit in zip((n, m), units, strict=True))
    u, v = u**-alpha, v**-beta  # [n, A], [n, B]
    # weighted sums: [..., 1, 1], [..., A, 1], [..., 1, B]
    total, y = w.sum(axis=-1)[..., None, None], (w @ loss)[..., None, None]
    sum_u, sum_v = (w @ u)[..., :, None], (w @ v)[..., None, :]
    both = (w @ (u[:, :, None] * v[:, None, :]).reshape(len(n), -1)).reshape(*w.shape[:-1], len(alpha), len(beta))
    # An unknown E is eliminated by centring all variables on their means; a known E is subtracted. Then a, b remain.
    mean_y, mean_u, mean_v = (y / total, sum_u / total, sum_v / total) if floor is None else (floor, 0.0, 0.0)

    def about(products, first, first_mean, second, second_mean):
        return products - first * second_mean - second * first_mean + total * first_mean * second_mean

    uu = about((w @ u**2)[..., :, None], sum_u, mean_u, sum_u, mean_u)
    vv = about((w @ v**2)[..., None, :], sum_v, mean_v, sum_v, mean_v)
    uv = about(both, sum_u, mean_u, sum_v, mean_v)
    uy = about((w @ (u * loss[:, None]))[..., :, None], sum_u, mean_u, y, mean_y)
    vy = about((w @ (v * loss[:, None]))[..., None, :], sum_v, mean_v, y, mean_y)
    yy = about((w @ loss**2)[..., None, None], y, mean_y, y, mean_y)
    determinant = uu * vv - uv**2
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = vv / determinant, -uv / determinant, uu / determinant
        a, b = inverse[0] * uy + inverse[1] * vy, inverse[1] * uy + inverse[2] * vy
        rss = np.where((a > 0) & (b > 0), np.maximum(yy - a * uy - b * vy, 0), np.inf)
    sure = 1 / total if floor is None else 0.0
    freedom = len(n) - (5 if floor is None else 4)
    return Surface(alpha, beta, rss, a, b, (mean_y, mean_u, mean_v), inverse, sure, freedom, units)


def fit(runs: Runs, floor: float | None = None, level: float = 0.95, zooms: int = 3) -> Surface:
    """Fit the law by variable projection on a grid of exponents, then on finer grids of the confidence region.

    floor: E if it is known. level: the confidence level of the region that the last grid covers; zooms: number of finer
    grids. Raises NanoEulerError as `surface` does, and if no pair of exponents has positive a and b (the losses do not
    fall).
    """
    alpha = beta = np.geomspace(LOW, HIGH, POINTS)
    for zoom in range(zooms + 1):
        found = surface(runs, alpha, beta, floor=floor)
        if not np.isfinite(found.rss).any():
            raise NanoEulerError("losses must fall with N and with M: no law with positive a and b fits these runs")
        if zoom < zooms:
            allowed = found.rss <= found.limit(level)
            alpha, beta = (_around(x, allowed.any(axis=axis)) for x, axis in ((alpha, 1), (beta, 0)))
    return found


def _around(x, allowed):
    """Return len(x) points over the allowed range, widened by one step on each side but limited to LOW to HIGH."""
    at, ratio = np.flatnonzero(allowed), x[1] / x[0]
    return np.geomspace(max(LOW, x[at[0]] / ratio), min(HIGH, x[at[-1]] * ratio), len(x))


def reweighted(runs: Runs, share: float, rounds: int = 30) -> Runs:
    """Return the runs with spreads proportional to the fitted excess over the floor.

    share: the spread over seeds as a fraction of the excess. The excess depends on the unknown floor, so the fit is
    repeated. The first fit uses the loss itself, and each later fit uses the excess of the previous fit. The last fit
    is the one that changes the floor by less than 1e-5, or fit number `rounds`. Raises NanoEulerError as `fit` does.
    """
    above, before = np.asarray(runs.loss, float), np.inf
    for _ in range(rounds):
        law = fit(runs._replace(spread=share * above), zooms=1).law()
        lowest = max(0.0, law.floor)
        above = law(runs.parameters, runs.tokens) - lowest
        if abs(lowest - before) < 1e-5:
            break
        before = lowest
    return runs._replace(spread=share * above)


# ---- Alternative fits and intervals


def huber(
    runs: Runs, delta: float = 1e-3, starts: Sequence[PowerLaw] | None = None, tolerance: float = 1e-9
) -> PowerLaw:
    """Fit all five numbers at once by minimising the summed Huber loss of log L, as Hoffmann et al. 2022 do.

    log L is the log-sum-exp of log E, log a - alpha log N and log b - beta log M. delta: the residual at which Huber's
    loss becomes linear; starts: initial laws (by default 24); the best result of all starts is returned; tolerance:
    largest gradient entry at which `bfgs` stops.
    """
    log_n, log_m, y = (np.log(np.asarray(x, float)) for x in runs[:3])
    shift_n, shift_m = log_n.mean(), log_m.mean()  # makes a and b comparable to E in size

    def objective(x):
        terms = np.stack([x[0] + 0 * y, x[1] - x[2] * (log_n - shift_n), x[3] - x[4] * (log_m - shift_m)])
        top = terms.max(axis=0)
        shares = np.exp(terms - top)
        sums = shares.sum(axis=0)
        r = top + np.log(sums) - y
        slope = np.clip(r, -delta, delta)
        value = np.where(np.abs(r) <= delta, r**2 / 2, delta * (np.abs(r) - delta / 2)).sum()
        e, a, b = shares / sums * slope
        return value, np.array(
            [e.sum(), a.sum(), -(a * (log_n - shift_n)).sum(), b.sum(), -(b * (log_m - shift_m)).sum()]
        )

    if starts is None:
        low = math.log(float(np.min(runs.loss)))
        begins = [
            np.array([low + math.log(share), low - 2, alpha, low - 2, beta])
            for share in (0.5, 0.9)
            for alpha in (0.2, 0.5, 1.0)
            for beta in (0.2, 0.5, 1.0, 1.5)
        ]
    else:
        begins = [
            np.array([math.log(max(f, 1e-6)), math.log(a) - p * shift_n, p, math.log(b) - q * shift_m, q])
            for f, a, p, b, q in starts
        ]
    ends = [bfgs(objective, x, tolerance) for x in begins]
    e, a, alpha, b, beta = min(ends, key=lambda x: objective(x)[0])
    # if the runs do not determine an exponent, it may diverge; keep its coefficient finite
    floor, a, b = np.exp(np.minimum([e, a + alpha * shift_n, b + beta * shift_m], 700))
    return PowerLaw(*map(float, (floor, a, alpha, b, beta)))


def bfgs(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]], x: np.ndarray, tolerance: float, steps: int = 500
) -> np.ndarray:
    """Minimise a function by BFGS (Nocedal and Wright, section 6.1) and return the minimiser [n].

    objective: x [n] -> (value, gradient [n]); x: the starting point; tolerance: stop once every entry of the gradient
    is smaller; steps: maximum number of steps.
    """
    value, slope = objective(x)
    inverse = np.eye(len(x)) / max(1e-12, float(np.abs(slope).max())) * 0.1
    for _ in range(steps):
        if np.abs(slope).max() < tolerance:
            break
        step = -inverse @ slope
        if step @ slope >= 0:  # rounding has made the matrix indefinite
            inverse, step = np.eye(len(x)), -slope
        size = 1.0
        while True:
            new = x + size * step
            new_value, new_slope = objective(new)
            if new_value <= value + 1e-4 * size * (step @ slope) or size < 1e-12:
                break
            size /= 2
        if size < 1e-12:
            break
        s, y = new - x, new_slope - slope
        if (sy := s @ y) > 0:
            left = np.eye(len(x)) - np.outer(s, y) / sy
            inverse = left @ inverse @ left.T + np.outer(s, s) / sy
        x, value, slope = new, new_value, new_slope
    return x


def bootstrap(runs: Runs, draws: int, rng: np.random.Generator, points: int = 48) -> np.ndarray:
    """Fit bootstrap resamples of the runs and return their (E, alpha, beta), at most [draws, 3].

    Each resample has n runs drawn with replacement. All fits use one grid of exponents, from a quarter to four times
    the exponents fitted to all runs. A resample with fewer than 6 different runs is drawn again; a resample that no law
    fits is dropped. Raises NanoEulerError as `fit` does, and if no resample is left.
    """
    law, n, counts = fit(runs).law(), len(runs.loss), []
    alpha, beta = (np.geomspace(max(LOW, x / 4), min(HIGH, 4 * x), points) for x in (law.alpha, law.beta))
    while len(counts) < draws:
        drawn = np.bincount(rng.integers(n, size=n), minlength=n)
        if np.count_nonzero(drawn) >= 6:
            counts.append(drawn)
    rows = []
    for start in range(0, draws, 50):  # 50 grids at a time fit in the cache
        found = surface(runs, alpha, beta, np.array(counts[start : start + 50]))
        best = found.rss.reshape(len(found.rss), -1).argmin(axis=1)
        value = found.at(np.inf, np.inf)[0].reshape(len(found.rss), -1)
        i, j = np.unravel_index(best, found.rss.shape[1:])
        fitted = np.isfinite(found.rss.reshape(value.shape)[np.arange(len(best)), best])
        rows.append(np.stack([value[np.arange(len(best)), best], alpha[i], beta[j]], axis=1)[fitted])
    if not any(map(len, rows)):
        raise NanoEulerError("no power law fits any resample of these runs: add runs, or runs with less noise")
    return np.concatenate(rows)


def interval_score(low: float, high: float, truth: float, level: float = 0.95) -> float:
    """Score an interval (lower is better): width + 2 / (1 - level) x miss distance. Gneiting and Raftery 2007."""
    return high - low + 2 / (1 - level) * (max(0.0, low - truth) + max(0.0, truth - high))


def parabola(sizes: np.ndarray, losses: np.ndarray) -> float:
    """Return the size at the minimum of a parabola in log size, fitted to losses [n] of equal compute.

    Approach 2 of Hoffmann et al. 2022.
    """
    second, first, _ = np.polyfit(np.log(sizes), losses, 2)
    return float(np.exp(-first / (2 * second)))
