"""Vital signs and warnings at their borders: what each number is, when a warning begins, what it names."""

import re

import checks
import numpy as np
import pytest

from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.model import Parameters
from nanoeuler_lib.training.watch import Watch, group_of, text_warnings, vitals

CONFIG = ModelConfig(8, 2, 1, 2, 8, 11, predict=2, ffn=6)


def test_groups():
    names = ["embed", "layers.0.norm1", "layers.0.qkv", "layers.11.down", "norm_final", "heads"]
    assert [group_of(name) for name in names] == [
        "embed",
        "layers.0",
        "layers.0",
        "layers.11",
        "heads",
        "heads",
    ]


@pytest.mark.parametrize("factor", [1.0, 0.01])
def test_vitals_by_definition(factor):
    """Norms that add up to the norm given, whatever factor clipped the gradient; updates in parts of the weights."""
    rng = np.random.default_rng(0)
    params = checks.random_parameters(CONFIG, 0)
    before = params.flat.copy()
    params.flat += 0.01 * rng.standard_normal(before.size)
    old, grads = Parameters(CONFIG, np.float64), Parameters(CONFIG, np.float64)
    old.flat[...] = before
    grads.flat[...] = rng.standard_normal(before.size)
    norm = float(np.linalg.norm(grads.flat))
    grads.flat *= factor
    found = vitals(before, params, grads, norm)
    assert list(found) == ["embed", "layers.0", "layers.1", "heads"]
    for group, (size, ratio) in found.items():
        names = [name for name in params if group_of(name) == group]
        gradient, new, was = (np.concatenate([x[n].ravel() for n in names]) for x in (grads, params, old))
        assert size == pytest.approx(np.linalg.norm(gradient) / factor, rel=1e-12)
        assert ratio == pytest.approx(np.linalg.norm(new - was) / np.linalg.norm(was), rel=1e-12)
    assert np.sqrt(sum(size**2 for size, _ in found.values())) == pytest.approx(norm, rel=1e-12)


def test_vitals_of_nothing():
    """Weights or gradients of 0 divide nothing by 0, and float32 does not overflow on the way."""
    zeros, ones = Parameters(CONFIG), Parameters(CONFIG)
    found = vitals(zeros.flat.copy(), zeros, zeros, 0.0)
    assert list(found.values()) == [[0, 0]] * 4
    ones.flat[...] = 1
    for size, ratio in vitals(zeros.flat.copy(), ones, zeros, 0.0).values():
        assert size == 0 and 1e14 < ratio < np.inf


def losses(watch, values, rate=0.5):
    return [watch.see({"step": i + 1, "loss": value, "rate": rate}) for i, value in enumerate(values)]


def watch_of(tokens=10, train_tokens=10**9):
    return Watch(TrainConfig(), tokens, train_tokens)


@pytest.mark.parametrize("rise, warns", [(1.02, False), (1.029, False), (1.031, True), (1.5, True)])
def test_a_steady_loss_that_rises_by_three_hundredths(rise, warns):
    watch = watch_of()
    found = losses(watch, [2.0] * 50 + [2.0 * rise] * 50)
    assert not any(found[:99]) and bool(found[99]) == warns
    if warns:
        assert found[99][0].startswith(
            f"step 100: the loss rises: {2 * rise:.3f} nats over the last 50 steps, 2.000 up to step 50. "
        )
        assert "(it is 0.5 now)" in found[99][0]


@pytest.mark.parametrize("rise, warns", [(0.8, False), (1.2, True)])
def test_a_noisy_loss_that_rises_by_five_standard_errors(rise, warns):
    """A deviation of 1 around 10: the difference of two windows has standard error sqrt(2 / 50), five of them are 1."""
    noise = np.tile([1.0, -1.0], 25)
    found = losses(watch_of(), [*(10 + noise), *(10 + rise + noise)])
    assert not any(found[:99]) and bool(found[99]) == warns


def test_the_best_window_is_remembered():
    """A loss is compared with the lowest window so far, not with the last; each thing is said once."""
    watch = watch_of()
    found = losses(watch, [3.0] * 50 + [1.0] * 50 + [1.01] * 50 + [2.0] * 50 + [4.0] * 50)
    assert [i + 1 for i, texts in enumerate(found) if texts] == [200]
    assert "2.000 nats over the last 50 steps, 1.000 up to step 100" in found[199][0]


def test_data_repeat_after_four_passes():
    watch = watch_of(tokens=100, train_tokens=1000)
    found = [watch.see({"step": step, "loss": 1.0, "rate": 0.1}) for step in (1, 39, 40, 41)]
    assert [len(texts) for texts in found] == [0, 0, 1, 0]
    assert found[2][0].startswith(
        "step 40: the data repeats: 40 steps draw 4000 tokens from a text of 1000, 4.0 passes. After about 4, "
    )


@pytest.mark.parametrize("bits, at", [
    ([2.0, 2.05, 2.05, 2.05], 4), ([2.0, 2.05, 2.03, 2.05], None), ([2.0, 2.05, 2.05, 2.041], 4),
    ([2.0, 2.05, 2.05], None), ([3.0, 2.0, 2.05, 2.05, 2.05], 5), ([2.05, 2.05, 2.05, 2.0], None),
    ([2.0, 2.1, 2.0, 2.1, 2.1, 2.1], 6), ([2.0, 2.04, 2.04, 2.04], 4),
])  # fmt: skip
def test_validation_rises_three_times_in_a_row(bits, at):
    """Two hundredths above the best, three times one after another."""
    watch = watch_of()
    found = [watch.see({"step": 10 * (i + 1), "valid_bits_per_byte": value}) for i, value in enumerate(bits)]
    assert [i + 1 for i, texts in enumerate(found) if texts] == ([at] if at else [])
    if at:
        best = min(bits)
        assert found[at - 1][0].startswith(
            f"step {10 * at}: validation rises: {bits[at - 1]:.4f} bits per byte, {best:.4f} at "
            f"step {10 * (bits.index(best) + 1)}, "
        )


def test_a_gradient_vanishes_below_a_hundred_thousandth():
    groups = {"embed": [3.0, 0.1], "layers.0": [4.0, 0.1]}
    for size, warns in ((5.1e-5, False), (4.9e-5, True), (0.0, True), (float("nan"), True)):
        found = watch_of().see({"step": 7, "groups": groups | {"layers.1": [size, 0.1]}})
        assert bool(found) == warns
        if size and warns and size == size:
            assert found[0].startswith(
                "step 7: the gradient vanishes in layers.1: 4.9e-05 of a whole of 5.0e+00. "
            )
    found = watch_of().see({"step": 7, "groups": groups | {"a": [1e-9, 0], "b": [2e-9, 0]}})
    assert found[0].startswith("step 7: the gradient vanishes in a, b: 1.0e-09 of a whole of ")


def test_a_watch_says_each_thing_once_and_all_that_an_entry_holds():
    watch = watch_of(tokens=100, train_tokens=10)
    entry = {"step": 1, "loss": 1.0, "rate": 0.1, "groups": {"a": [1.0, 0], "b": [0.0, 0]}}
    assert [re.search(r"data repeats|vanishes", text)[0] for text in watch.see(entry)] == [
        "data repeats",
        "vanishes",
    ]
    assert watch.see(entry) == [] and watch.see({"step": 2}) == []
    assert watch.said == {"repeats", "vanishes"}


def test_copies_in_a_text():
    """A warning where more than a tenth of the documents are copies, and for each that stands in both parts."""
    distinct = [str(i) for i in range(17)]
    assert text_warnings("|".join(distinct + ["0"] * 3), "x", "|")[0].startswith(
        "the data repeats: 3 of 20 training documents stand there more than once. "
    )
    assert text_warnings("|".join([*distinct, "0"]), "x", "|") == []
    assert (
        text_warnings("|".join([*map(str, range(18)), "0", "1"]), "x", "|") == []
    )  # 18 of 20 are distinct: a tenth
    leak = text_warnings("a|b||c", "x|b|c|", "|")
    assert len(leak) == 1 and leak[0].startswith(
        "validation leaks: 2 of 3 validation documents stand in the training"
    )
    assert text_warnings("a", "a", "|") == []  # a text without documents
