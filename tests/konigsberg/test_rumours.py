"""Rumours: the closed forms against counting, and seeds that do not move."""

from itertools import product

import numpy as np
import pytest

from konigsberg import rumours
from konigsberg.rumours import ID, PLACES, RATE, law, posterior, sample


def test_the_posterior_and_the_law_are_those_of_all_worlds():
    """All 12 places and all 12^3 testimonies, each with its probability; what agrees with a prefix is counted."""
    witnesses = ("Grete", "Euler", "Grete")
    joint = np.empty((12, 12, 12, 12))  # [place, and what each witness says]
    for place, *said in product(range(12), repeat=4):
        chances = [RATE[w] if s == place else (1 - RATE[w]) / 11 for w, s in zip(witnesses, said, strict=True)]
        joint[place, *said] = np.prod(chances) / 12
    assert joint.sum() == pytest.approx(1)
    for said in (("boot", "boot", "oven"), ("oven", "hat", "oven"), ("hat", "attic", "chest")):
        pairs = zip(witnesses, said, strict=True)
        text = "Käthe misses the hen . " + " ".join(f"{w} says {s} ." for w, s in pairs)
        beliefs, next_words = posterior(text), law(text)
        for told in range(4):
            worlds = joint[:, *map(PLACES.index, said[:told])].reshape(12, -1)
            assert np.allclose(beliefs[5 + 4 * told], worlds.sum(axis=1) / worlds.sum(), atol=1e-12)
            if told < 3:
                ahead = worlds.reshape(12, 12, -1).sum(axis=(0, 2)) / worlds.sum()
                assert np.allclose(next_words[7 + 4 * told, [ID[place] for place in PLACES]], ahead, atol=1e-12)


def test_laws_sum_to_one_allow_what_is_drawn_and_refuse_what_is_not():
    told = "Hinrich misses the globe . Grete says chest . Euler says cradle . Murr says boot ."
    assert sample(0).text.startswith(told)
    for seed in range(200):
        rumour = sample(seed)
        laws, ids = law(rumour.text), np.append(rumour.ids, 0)
        assert np.allclose(laws.sum(axis=1), 1) and (laws[np.arange(len(ids)), ids] > 0).all()
        assert np.array_equal(rumours.corpus(3, seed)[0, 1 : len(rumour.ids) + 1], rumour.ids)
        assert laws[-1, 0] == 1 and posterior(rumour.text)[-1, PLACES.index(rumour.place)] == 1
    assert 0.28 < np.mean([len(sample(seed).ids) == rumours.LONGEST for seed in range(200)]) < 0.5  # 0.9^9 is 0.39
    with pytest.raises(rumours.KonigsbergError, match="word 5 of a rumour must be one of Jürgen, Goldbach"):
        posterior("Käthe misses the hen . found in oven .")
