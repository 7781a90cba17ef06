"""Test significance with Student's t for a few seeds and Holm's correction for a table of comparisons.

The book calls a difference significant when it exceeds the 95% quantile of Student's t for its seeds, corrected for the
number of comparisons in its table (Holm, A simple sequentially rejective multiple test procedure, 1979).
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["differences", "half_width", "p_value", "quantile"]


def p_value(t: float, n: int) -> float:
    """Return the two-sided p-value of Student's t for the mean of n normal values.

    Raises ValueError if n is below 2.
    """
    # Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4, with n - 1 degrees of freedom
    if n < 2:
        raise ValueError(f"n must be at least 2, got {n}: one value has no spread")
    t, freedom = abs(t), n - 1
    angle = math.atan2(t, math.sqrt(freedom))
    cos, odd = math.cos(angle), freedom % 2
    term, total = (cos if odd else 1.0), 0.0
    for j in range(1 + odd, freedom, 2):  # the terms with cosines up to the power freedom - 2
        total += term
        term *= cos * cos * j / (j + 1)
    total *= math.sin(angle)
    within = 2 / math.pi * (angle + total) if odd else total
    return 1 - within


def quantile(p: float, n: int) -> float:
    """Return the two-sided quantile of Student's t: the mean of n normal values exceeds it with probability p.

    p: between 0 and 1, exclusive. Raises ValueError if n is below 2.
    """
    low, high = 0.0, 1.0
    while p_value(high, n) > p:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle, n) > p else (low, middle)
    return high


def half_width(values: ArrayLike, p: float = 0.05, axis: int = 0) -> np.ndarray:
    """Return half the width of the confidence interval of level 1 - p for the mean of `values` along an axis."""
    values = np.asarray(values)
    n = values.shape[axis]
    return quantile(p, n) * values.std(axis=axis, ddof=1) / math.sqrt(n)


def differences(table: Mapping[str, ArrayLike], digits: int = 2) -> dict[str, str]:
    """Print each row's mean with its 95% confidence interval, and return its Holm-corrected result.

    table: {title: differences [seeds]}, paired by seed. The result is "lower", "higher" or "none seen". The last column
    printed is the smallest mean that would be significant at this spread even under the strictest correction; a true
    difference of that size is detected about half of the time.
    """
    rows = {title: np.asarray(values, float) for title, values in table.items()}
    error = {title: d.std(ddof=1) / math.sqrt(len(d)) for title, d in rows.items()}
    p = {}
    for title, d in rows.items():
        t = d.mean() / error[title] if error[title] else math.copysign(math.inf, d.mean()) if d.any() else 0.0
        p[title] = p_value(t, len(d))
    verdicts, still = {}, True
    for i, title in enumerate(sorted(rows, key=p.__getitem__)):
        still = still and p[title] <= 0.05 / (len(rows) - i)
        verdicts[title] = ("lower" if rows[title].mean() < 0 else "higher") if still else "none seen"
    width = max(map(len, rows))
    for title, d in rows.items():
        least = quantile(0.05 / len(rows), len(d)) * error[title]
        print(
            f"{title:{width}} {d.mean():+z{4 + digits}.{digits}f} ± {half_width(d):.{digits}f}"
            f"  {verdicts[title]:9}  (always significant from {least:.{digits}f})"
        )
    return {title: verdicts[title] for title in rows}
