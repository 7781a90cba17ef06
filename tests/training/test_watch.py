"""What a run says of itself: vital signs by layer, and warnings, each at the first entry that earns it."""

import math
from unittest.mock import patch

import numpy as np
import oracles
import pytest
from oracles import RUN_CONFIG, RUN_MODEL, changed, run_text

import konigsberg
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.model import Parameters
from nanoeuler_lib.model import gpt as gpt_module
from nanoeuler_lib.training import loop, run_folder, train
from nanoeuler_lib.training.monitor import Watch, group_of, text_warnings, vitals

CONFIG = ModelConfig(8, 2, 1, 2, 8, 11, predict=2, ffn=6)

# Vital signs.


def test_groups_of_layers():
    names = ("embed", "layers.0.norm1", "layers.12.qkv", "norm_final", "heads")
    assert [group_of(name) for name in names] == ["embed", "layers.0", "layers.12", "heads", "heads"]


@pytest.mark.parametrize("factor", [1.0, 0.01])
def test_vitals_by_definition(factor):
    """Norms that add up to the norm given, whatever factor clipped the gradient; updates in parts of the weights."""
    rng = np.random.default_rng(0)
    params = oracles.random_parameters(CONFIG, 0)
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
    assert list(vitals(zeros.flat.copy(), zeros, zeros, 0.0).values()) == [[0, 0]] * 4
    ones.flat[...] = 1
    for size, ratio in vitals(zeros.flat.copy(), ones, zeros, 0.0).values():
        assert size == 0 and 1e14 < ratio < np.inf


# Warnings.


def watching(steps=100, tokens_per_step=10, train_tokens=10**9, **named):
    return Watch(TrainConfig(steps=steps), tokens_per_step, train_tokens, **named)


def told(watch, name, values, start=1):
    """The steps at which entries of these values earn warnings, and the warnings."""
    said = []
    for step, value in enumerate(values, start):
        said += [(step, text) for text in watch.see({"step": step, name: value, "rate": 0.123})]
    return said


NOISE = 3 + 0.3 * np.random.default_rng(1).standard_normal(3000)
WAVE = np.array([-1.0, 1.0] * 25)  # variance 1 in a window of 50
ERROR = math.sqrt(2 / 50)  # of the difference of the means of two such windows
LOSSES = {  # the steps at which it is told
    "falls": (NOISE - np.linspace(0, 2, 3000), []),
    "noise is not a rise": (NOISE, []),
    "by 2.9 per cent": ([3.0] * 50 + [2.0] * 50 + [2.058] * 50, []),
    "by 3.1 per cent": ([3.0] * 50 + [2.0] * 50 + [2.062] * 50, [150]),
    "a window has to be full": ([3.0] * 50 + [2.0] * 50 + [9.0] * 49, []),
    "said once, of the best window and not of the last": (
        [3.0] * 50 + [1.0] * 50 + [1.01] * 50 + [2.0] * 50 + [4.0] * 50, [200]),
    "by 4.9 standard errors": ([*(5 + WAVE), *(5 + 4.9 * ERROR + WAVE)], []),
    "by 5.1 standard errors": ([*(5 + WAVE), *(5 + 5.1 * ERROR + WAVE)], [100]),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_rises(name):
    values, steps = LOSSES[name]
    assert [step for step, _ in told(watching(), "loss", values)] == steps


@pytest.mark.parametrize("bits, at", [
    ([2.0, 2.05, 2.05, 2.05], 4), ([2.0, 2.05, 2.03, 2.05], None), ([2.0, 2.05, 2.05, 2.041], 4),
    ([2.0, 2.05, 2.05], None), ([3.0, 2.0, 2.05, 2.05, 2.05], 5), ([2.05, 2.05, 2.05, 2.0], None),
    ([2.0, 2.1, 2.0, 2.1, 2.1, 2.1], 6), ([2.0, 2.04, 2.04, 2.04], 4),
    ([3.0, 2.0, 2.05, 2.04, 2.039, 2.06, 2.07, 2.08], 8), ([6 * 0.9**i for i in range(9)], None),
])  # fmt: skip
def test_validation_rises_three_times_in_a_row(bits, at):
    """Two hundredths above the best, three times one after another."""
    assert [step for step, _ in told(watching(), "valid_bits_per_byte", bits)] == ([at] if at else [])


@pytest.mark.parametrize(
    "norms, gone",
    [([6, 0.99e-4, 8], "layers.0"), ([6, 1.01e-4, 8], None), ([6, math.nan, 8], "embed, layers.0, heads"),
     ([6, 0.0, 8], "layers.0"), ([3, 0.0, 0.0], "layers.0, heads"), ([0.5, 0.5, 0.5], None)],
)  # fmt: skip
def test_a_gradient_that_vanishes(norms, gone):
    groups = {name: [norm, 0.1] for name, norm in zip(("embed", "layers.0", "heads"), norms)}
    said = [text for _, text in told(watching(), "groups", [groups])]
    assert [text.partition(" in ")[2].partition(":")[0] for text in said] == ([gone] if gone else [])


TOLD = {  # what a warning says of its run, and what is seen
    "the data will repeat: 100 steps draw 1000 tokens from a text of 250, 4.0 passes.":
        lambda: watching(100, 10, 250).begin(),
    "step 8: the data repeats: 8 steps draw 80 tokens from a text of 20, 4.0 passes.":
        lambda: told(watching(9, 10, 20), "loss", [1.0] * 20),
    "the warm-up of 60 steps is longer than the run of 30, so the learning rate ends at 0.001 and never reaches its "
    "peak of 0.002: use about --warmup 3": lambda: Watch(TrainConfig(steps=30, warmup=60, rate=2e-3), 1, 1000).begin(),
    "step 100: the loss rises: 2.062 nats over the last 50 steps, 2.000 up to step 50. Usually the learning rate is "
    "too high (it is 0.12 now)": lambda: told(watching(), "loss", [2.0] * 50 + [2.062] * 50),
    "step 4: the validation loss rises: 2.0800 bits per byte, 2.0000 at step 1, and higher three times in a row.":
        lambda: told(watching(), "valid_bits_per_byte", [2, 2.06, 2.07, 2.08]),
    "step 1: the gradient vanishes in embed: its norm is 9.9e-05, while the whole gradient has norm 1.0e+01.":
        lambda: told(watching(), "groups", [{"embed": [9.9e-5, 0.1], "heads": [10.0, 0.1]}]),
}  # fmt: skip


@pytest.mark.parametrize("text", TOLD)
def test_a_warning_has_its_numbers(text):
    (said,) = TOLD[text]()
    assert (said if isinstance(said, str) else said[1]).startswith(text)


def test_what_is_well_or_was_said_before_is_not_said():
    """Four passes over the data are about as good as new data; a warm-up may be as long as the run."""
    assert watching(100, 10, 251).begin() == []
    made = watching(100, 10, 250)
    assert made.begin() and told(made, "loss", [1.0] * 40, 100) == []
    assert Watch(TrainConfig(steps=30, warmup=30), 1, 1000).begin() == []
    made, entry = watching(9, 10, 1), {"step": 9, "loss": 1.0, "rate": 0.1, "groups": {"embed": [0.0, 0.0]}}
    said = [text.split(":")[1] for text in made.see(entry)]
    assert said == [" the data repeats", " the gradient vanishes in embed"], "one entry may earn several"
    assert made.see(entry) == []


@pytest.mark.parametrize("last, expected", [
    ([5.0] * 50 + [3.79] * 50, []), ([5.0] * 50 + [3.81] * 50, [" the model has learnt nearly nothing"]),
    ([200.0] * 50 + [3.0] * 50, [" the loss rises"]),
])  # fmt: skip
def test_a_run_that_learns_nothing_is_told(last, expected):
    made = watching(100, 1, frequencies=4.0, guess=5.7)
    assert [text.split(":")[1] for _, text in told(made, "loss", last)] == expected


def test_rewards_that_collapse_are_told_each_time_and_blamed_on_no_layer():
    made, said = watching(), []
    for step, share in enumerate([0.5, 1, 1, 1, 1, 0.5, 1, 0.9, 0.5, 0.2, 1, 1, 1], 1):
        figures = {"reward": 0.25, "frac_reward_zero_std": share}
        said += made.see({"step": step, "loss": -0.25, "rate": 0.1, "figures": figures})
        said += made.see({"step": step, "groups": {"embed": [1 - share, 0.0], "heads": [1 - share, 0.0]}})
    assert [text.split(":")[0] for text in said] == ["step 4", "step 13"]
    assert all("no group has two different rewards, so nothing is learnt" in text for text in said)


TEN = [f"document {i}" for i in range(10)]
ONE = konigsberg.corpus(30_000, 1).replace(konigsberg.SEPARATOR, " ")  # a single document
PART, OTHER = ONE[5000:10_000], ONE[20_000:25_000]
LEAKS = {  # documents to learn from, to measure on; how the warning begins
    "nothing is wrong": (TEN, ["another"], ""),
    "a single one": (["alone"], ["alone"], ""),
    "none": ([], [], ""),
    "empty documents are none": (["a", "", "b"], [""], ""),
    "one copy of ten is no matter": ([*TEN[:9], TEN[0]], [], ""),
    "two copies": ([*TEN[:8], *TEN[:2]], [], "the data repeats: 2 of 10 training documents are copies of earlier ones"),
    "held out": (TEN, [TEN[3], "another", "", TEN[3]], "validation leaks: 2 of 3 validation documents appear in"),
    "a mark within a line": (["a <mark> b <mark>", "<mark>c"], [], "<mark> appears 3 times within a line"),
    "a part of it": ([ONE[:20_000]], [PART], "validation leaks: 25 of 25 windows of 200 characters"),
    "half of a part": ([ONE[:20_000]], [PART + OTHER], "validation leaks: 12 of 25 windows of 200 characters"),
    "another part": ([ONE[:20_000]], [OTHER], ""),
}


@pytest.mark.parametrize("name", LEAKS)
def test_texts_that_repeat_or_leak(name):
    documents, valid, expected = LEAKS[name]
    separator = "\n<mark>\n"
    found = text_warnings(separator.join(documents), separator.join(valid), separator)
    assert len(found) == (expected != "") and all(text.startswith(expected) for text in found)


def test_a_run_says_it_and_logs_it_once(tmp_path, capfd):
    """A text of a few words read many times, and a backward pass that drops a layer's gradient; said once for all."""
    original = gpt_module.backward

    def backward(params, grads, *rest, **named):
        original(params, grads, *rest, **named)
        for name in grads:
            if name.startswith("layers.0"):
                grads[name][...] *= 1e-12

    run, text = tmp_path / "run", run_text()[:300]
    with patch.object(gpt_module, "backward", backward):
        train.train(run, text, RUN_MODEL, changed(RUN_CONFIG, steps=30, save_every=10, valid_every=30))
        warnings = [entry["warning"] for entry in run_folder.read_log(run) if "warning" in entry]
        assert [" ".join(text.split()[:4]) for text in warnings] == ["the data will repeat:", "step 1: the gradient"]
        assert "vanishes in layers.0" in warnings[1] and f"warning: {warnings[0]}" in "".join(capfd.readouterr())
        for steps in (None, 31, 31):
            loop.resume(run, text, quiet=True, steps=steps)
    again = [entry["warning"] for entry in run_folder.read_log(run) if "warning" in entry]
    assert again[:2] == warnings and [text[:20] for text in again[2:]] == [warnings[0][:20]], (
        "of the new number of steps"
    )
