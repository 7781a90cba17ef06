"""Student's t and Holm's rule: the integral of the density, the inverse, and a table worked by hand."""

import math

import numpy as np
import pytest

from nanoeuler_book.significance import differences, half_width, p_value, quantile


@pytest.mark.parametrize("n", [2, 3, 4, 5, 20])
def test_p_value_is_the_integral_of_the_density(n):
    nu = n - 1
    scale = math.exp(math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2)) / math.sqrt(nu * math.pi)
    for t in (0.0, 0.3, 2.7, 9.0):
        x = np.linspace(0, t, 20001)
        inside = 2 * np.trapezoid(scale * (1 + x * x / nu) ** (-(nu + 1) / 2), x)
        assert p_value(t, n) == p_value(-t, n) == pytest.approx(1 - inside, abs=1e-7)


def test_one_value_has_no_spread():
    with pytest.raises(ValueError, match=r"^n must be at least 2, got 1: one value has no spread$"):
        p_value(1.0, 1)


def row(t, n=5):
    """Differences whose mean is t standard errors from zero."""
    d = np.linspace(-1, 1, n)
    return d + t * d.std(ddof=1) / math.sqrt(n)


def test_holm_goes_on_while_the_smallest_is_small_enough(capsys):
    """Three rows with p = 0.01, 0.024 and 0.04: bounds 0.05/3, 0.05/2, 0.05."""
    t = [quantile(p, 5) for p in (0.04, 0.01, 0.024)]
    found = differences({"a": row(t[0]), "b": -row(t[1]), "c": row(t[2])})
    assert found == {"a": "higher", "b": "lower", "c": "higher"} and list(found) == ["a", "b", "c"]
    found = differences({"a": row(t[0]), "b": -row(t[1]), "c": row(quantile(0.026, 5))})
    assert found == {"a": "none seen", "b": "lower", "c": "none seen"}  # the middle one fails, so the last is not asked
    assert "b " in capsys.readouterr().out


def test_half_a_width_is_that_of_its_probability_and_axis():
    values = np.random.default_rng(1).normal(size=(4, 7))
    for axis, n in ((0, 4), (1, 7)):
        for p in (0.05, 0.2):
            expected = quantile(p, n) * values.std(axis=axis, ddof=1) / math.sqrt(n)
            found = half_width(values, p, axis)
            assert found.shape == (11 - n,) and np.allclose(found, expected, rtol=1e-12)
    assert np.array_equal(half_width(values.tolist()), half_width(values, 0.05, 0))


@pytest.mark.parametrize("n", [2, 3, 4, 7])
@pytest.mark.parametrize("p", [0.9, 0.5, 0.05, 1e-3])
def test_a_quantile_is_the_inverse_of_the_p_value(p, n):
    """To the last digits that the difference from 1 leaves, from below 1 to thousands."""
    assert p_value(quantile(p, n), n) == pytest.approx(p, rel=1e-9)
    assert p_value(0.0, n) == 1.0 and p_value(math.inf, n) == pytest.approx(0.0, abs=1e-15)
