"""Chapter 19: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
from chapters import gap_tests, slips

from nanoeuler_book.checks import verdict

# ---- The gaps

NOTEBOOK = ("19_scaling_laws",)


def by_part(divergence, source, absent=True, all_bytes=True, mean=False, shift=0):
    """The split, place by place, with one thing wrong, if asked."""
    found = {}
    for i, name in enumerate(source.parts):
        there = divergence[source.part == i + shift]
        if absent or there.size:
            size = source.bytes if all_bytes else max(1, there.size)
            found[name] = float(there.mean() if mean and there.size else there.sum()) / size
    return found


WRONG_BY_PART = {
    "a part that does not occur is left out": dict(absent=False),
    "each part by its own places": dict(all_bytes=False),
    "means in place of sums": dict(mean=True),
    "the part before": dict(shift=-1),
}


def project(runs, alpha, beta, weighted=True, twice=False, floor=True, rooted=False, swapped=False):
    """By the two equations, with one thing wrong, if asked."""
    alpha, beta = (beta, alpha) if swapped else (alpha, beta)
    w = np.asarray(runs.spread) ** (-4.0 if twice else -2.0) if weighted else np.ones(len(runs.loss))
    u, v, y = runs.parameters**-alpha, runs.tokens**-beta, np.asarray(runs.loss)
    means = [(w * x).sum() / w.sum() if floor else 0.0 for x in (u, v, y)]
    du, dv, dy = (x - mean for x, mean in zip((u, v, y), means, strict=True))
    sums = np.array([[(w * p * q).sum() for q in (du, dv)] for p in (du, dv)])
    a, b = np.linalg.solve(sums, [(w * p * dy).sum() for p in (du, dv)])
    e = means[2] - a * means[0] - b * means[1]
    left = (w * (y - e - a * u - b * v) ** 2).sum()
    return e, a, b, left**0.5 if rooted else left


WRONG_PROJECT = {
    "no weights": dict(weighted=False),
    "weights squared": dict(twice=True),
    "no floor": dict(floor=False),
    "the root of what is left": dict(rooted=True),
    "exponents exchanged": dict(swapped=True),
}


def confidence_set(value, variance, rss, limit, union=True, root=True, minimum=False, ruled=True):
    """Each pair's own interval, with one thing wrong, if asked."""
    rss = np.asarray(rss)
    spare = np.where(np.isfinite(rss), limit - np.where(np.isfinite(rss), rss, 0), -1)
    spare = np.abs(spare) if not ruled else spare
    with np.errstate(invalid="ignore"):
        half = np.sqrt(np.maximum(spare, 0) * variance) if root else np.maximum(spare, 0) * variance
    chosen = spare >= 0
    if not union:
        chosen &= rss == rss.min()
    if minimum:
        half = np.zeros_like(value)
    return (value - half)[chosen].min(), (value + half)[chosen].max()


WRONG_NOT_RULED_OUT = {
    "the best pair alone": dict(union=False),
    "no root": dict(root=False),
    "values without their width": dict(minimum=True),
    "pairs that are ruled out": dict(ruled=False),
}
test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_by_part": ([by_part], slips(by_part, WRONG_BY_PART)),
        "check_project": ([project], slips(project, WRONG_PROJECT)),
        "check_not_ruled_out": ([confidence_set], slips(confidence_set, WRONG_NOT_RULED_OUT)),
    }
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def test_other_right_ways_are_right(chapter):
    """The best size by bisection of the slope; the largest change over four corners; slopes by a ratio; a loop."""

    def by_bisection(law, compute):
        low, high = 0.0, 40.0
        for _ in range(200):
            n = np.exp((low + high) / 2)
            slope = -law.alpha * law.a * n**-law.alpha + law.beta * law.b * (compute / 6 / n) ** -law.beta
            low, high = (low, np.log(n)) if slope > 0 else (np.log(n), high)
        return n

    def by_corners(law, n, m, digits):
        half = 0.5 * 10.0**-digits
        corners = [law._replace(alpha=law.alpha + p, beta=law.beta + q) for p in (-half, half) for q in (-half, half)]
        return max(abs(other(n, m) - law(n, m)) for other in corners)

    def by_list(rows):
        own = [(round(row["read"]), row["excess"]) for row in rows]
        ratios = []
        for row in rows:
            for step, x in row.get("along") or []:
                there = [e for n, e in own if n == round(step * row["read"] / row["steps"])]
                if there:
                    ratios.append(np.log(x) - np.log(sum(there) / len(there)))
        return sum(ratios) / len(ratios)

    assert verdict(chapter.check_bottom, by_bisection) == "right"
    assert verdict(chapter.check_rounding, by_corners) == "right"
    assert verdict(chapter.check_done, lambda s, f, t: not np.linalg.norm(s, np.inf) > t * max(abs(f))) == "right"
    assert verdict(chapter.check_surplus, by_list) == "right"


# ---- Domains for the mutants, written from the contracts
