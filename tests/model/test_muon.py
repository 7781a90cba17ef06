"""Muon's matrices against the singular value decomposition in float64 (`oracles.orthogonalised`)."""

import numpy as np
import oracles
import pytest

from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.model.optim import AdamW, Muon, optimizer_of
from nanoeuler_lib.ops import cpu, reference

FORMS = {"reference": reference.newton_schulz, "cpu": cpu._newton_schulz}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(7, 5), (5, 7), (6, 6), (1, 9), (9, 1), (1, 1), (33, 65), (130, 48)], ids=str)
def test_singular_vectors_stay_and_singular_values_are_the_polynomials(shape, form):
    u = np.random.default_rng(shape).standard_normal(shape)
    before = u.copy()
    oracles.close(FORMS[form](u), oracles.orthogonalised(u), 1e-12, "U f(S) V^T")
    np.testing.assert_array_equal(u, before)


@pytest.mark.parametrize("form", FORMS)
def test_only_the_direction_of_a_gradient_counts(form):
    """Neither its size nor its orientation; float32 gives what float64 gives, but for its rounding."""
    schulz, u = FORMS[form], np.random.default_rng(5).standard_normal((12, 31))
    o = schulz(u)
    for changed, expected in ((1e-12 * u, o), (1e9 * u, o), (-u, -o), (u.T, o.T)):
        np.testing.assert_allclose(schulz(changed), expected, atol=1e-12)
    single = schulz(u.astype(np.float32))
    assert single.dtype == np.float32 and np.abs(single - o).max() < 2e-5
    one_direction = np.outer(np.arange(1.0, 6), np.ones(4))  # three singular values are 0
    with np.errstate(all="raise", under="ignore"):
        tiny = schulz(u.astype(np.float32) * np.float32(1e-24))  # its squares are 0 in float32
        assert np.abs(tiny).max() < 1e-3
        assert not schulz(np.zeros((5, 3), np.float32)).any(), "no gradient, no direction"
        oracles.close(schulz(one_direction), oracles.orthogonalised(one_direction), 1e-9)


def test_the_optimiser_that_is_named():
    assert type(optimizer_of(oracles.TINY, TrainConfig())) is AdamW
    muon = optimizer_of(oracles.TINY, TrainConfig(optimizer="muon"), np.float64)
    assert type(muon) is Muon and muon.m.flat.dtype == np.float64 and muon.config.optimizer == "muon"
