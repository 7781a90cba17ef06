"""Chapter 19: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
from chapters import accepts, rewritten_tests

# ---- The gaps

NOTEBOOK = ("19_scaling_laws",)

BY_PART = {
    "a part that does not occur is left out": (
        "dict(zip(source.parts, (sums / source.bytes).tolist(), strict=True))",
        "{name: x / source.bytes for name, x in zip(source.parts, sums.tolist()) if x}",
    ),
    "each part by its own places": (
        "sums / source.bytes",
        "sums / np.bincount(source.part[there], minlength=len(sums)).clip(1)",
    ),
    "the part before": ("bincount(source.part[there]", "bincount((source.part[there] - 1).clip(0)"),
}
START = "    columns = np.stack"
PROJECT = {
    "no weights": (START, f"    runs = runs._replace(spread=np.ones(len(runs.loss)))\n{START}"),
    "weights squared": (START, f"    runs = runs._replace(spread=runs.spread**2)\n{START}"),
    "no floor": (
        "np.linalg.lstsq(weighted, runs.loss / runs.spread)[0]",
        "np.append(0, np.linalg.lstsq(weighted[:, 1:], runs.loss / runs.spread)[0])",
    ),
    "the root of what is left": ("** 2).sum()", "** 2).sum() ** 0.5"),
}
NOT_RULED_OUT = {
    "only the best pair": ("rss <= limit", "rss == rss.min()"),
    "no root": ("np.sqrt(", "("),
    "values without their width": ("half = ", "half = 0 * "),
    "pairs that are ruled out": ("rss <= limit", "rss < np.inf"),
}
_, test_wrong_gaps = rewritten_tests(
    {
        "check_by_part": ("by_part", {}, BY_PART),
        "check_project": ("project", {}, PROJECT),
        "check_not_ruled_out": ("confidence_set", {}, NOT_RULED_OUT),
    }
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def by_bisection(law, compute):
    """The best size by the sign of the slope."""
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


test_other_right_answers = accepts({"check_bottom": [by_bisection], "check_rounding": [by_corners]})
