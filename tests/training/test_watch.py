"""What a run says of itself: vital signs by layer, warnings that explain themselves, the report and the live curve.

A warning is compared whole once; each begins at the first entry that earns it and not one entry before.
"""

import math
import shutil
from itertools import pairwise
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
import oracles
import pytest
from oracles import RUN_CONFIG, RUN_MODEL, run_text

import konigsberg
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.model import Parameters
from nanoeuler_lib.model import gpt as gpt_module
from nanoeuler_lib.training import loop, run_folder, train
from nanoeuler_lib.training.monitor import WINDOW, Watch, group_of, text_warnings, vitals
from nanoeuler_lib.training.report import Live, draw_loss

GROUPS = ["embed", "layers.0", "heads"]
CONFIG = ModelConfig(8, 2, 1, 2, 8, 11, predict=2, ffn=6)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = tmp_path_factory.mktemp("watched") / "run"
    settings = TrainConfig(**RUN_CONFIG.to_dict() | {"steps": 12, "valid_every": 4, "sample_every": 6})
    train.train(run, run_text(), RUN_MODEL, settings, source="cats | and dogs", quiet=True)
    return run


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
    found = vitals(zeros.flat.copy(), zeros, zeros, 0.0)
    assert list(found.values()) == [[0, 0]] * 4
    ones.flat[...] = 1
    for size, ratio in vitals(zeros.flat.copy(), ones, zeros, 0.0).values():
        assert size == 0 and 1e14 < ratio < np.inf


def test_logged(finished):
    """At the first step and at each validation; the update's size is near what AdamW's rate says."""
    entries = [entry for entry in run_folder.read_log(finished) if "groups" in entry]
    assert [entry["step"] for entry in entries] == [1, 4, 8, 12]
    norms = {e["step"]: e["norm"] for e in run_folder.read_log(finished) if "norm" in e}
    for entry in entries:
        assert list(entry["groups"]) == GROUPS
        assert math.hypot(*(norm for norm, _ in entry["groups"].values())) == pytest.approx(
            norms[entry["step"]], rel=1e-3
        )
        assert all(1e-6 < ratio < 0.5 for _, ratio in entry["groups"].values())


# Warnings.


ADVICE = {
    "rises": "Most often the rate is too high (it is 0.12 now): try half of it, a longer warm-up, or a lower clip",
    "repeats": "After about 4, repeated text teaches little and is learnt by heart: compare training with validation "
    "loss; take more text, fewer steps, or a smaller model",
}


def watching(steps=100, tokens_per_step=10, train_tokens=10**9):
    return Watch(TrainConfig(steps=steps), tokens_per_step, train_tokens)


def losses(made, values, start=1):
    said = []
    for step, loss in enumerate(values, start):
        said += [(step, text) for text in made.see({"step": step, "loss": loss, "rate": 0.123})]
    return said


def test_silent_while_all_is_well():
    w, rng = watching(), np.random.default_rng(0)
    for step in range(1, 2000):
        loss = 6 * 0.999**step + 1 + 0.2 * rng.standard_normal()
        assert w.see({"step": step, "loss": loss, "rate": 0.1}) == []
        if step % 100 == 0:
            assert w.see({"step": step, "valid_bits_per_byte": loss / 2}) == []
            assert w.see({"step": step, "groups": {g: [0.5, 1e-3] for g in GROUPS}}) == []


def test_noise_is_not_a_rise():
    rng = np.random.default_rng(1)
    assert losses(watching(), 3 + 0.3 * rng.standard_normal(3000)) == []


def test_data_that_will_repeat():
    """Four passes over the data are about as good as new data; what is said before is not said again."""
    assert watching(100, 10, 251).begin() == []
    made = watching(100, 10, 250)
    assert made.begin() == [
        f"the data will repeat: 100 steps draw 1000 tokens from a text of 250, 4.0 passes. {ADVICE['repeats']}"
    ]
    assert losses(made, [1.0] * 40, 100) == []


def test_a_warm_up_longer_than_the_run_is_told():
    said = lambda warmup: Watch(TrainConfig(steps=30, warmup=warmup, rate=2e-3), 1, 1000).begin()
    assert said(30) == []
    assert said(60) == [
        "the warm-up of 60 steps is longer than the run of 30: the rate ends at 0.001, short of its peak of 0.002. "
        "Take --warmup 3 or so"
    ]


def test_data_that_repeats_is_said_at_the_step_at_which_it_does():
    made = watching(9, 10, 20)
    assert losses(made, [1.0] * 20) == [
        (
            8,
            f"step 8: the data repeats: 8 steps draw 80 tokens from a text of 20, 4.0 passes. {ADVICE['repeats']}",
        )
    ]


@pytest.mark.parametrize("rise, told", [(1.029, False), (1.031, True)])
def test_a_loss_that_rises_by_three_per_cent(rise, told):
    """Windows of equal losses have no noise; then three per cent count."""
    made = watching()
    first = [2.0] * WINDOW
    expected = (
        f"step 150: the loss rises: {2 * rise:.3f} nats over the last 50 steps, 2.000 up to step 100. {ADVICE['rises']}"
    )
    said = losses(made, [3.0] * WINDOW + first + [2.0 * rise] * WINDOW)
    assert said == ([(150, expected)] if told else [])
    assert losses(made, [9.0] * (WINDOW - 1), 151) == [], "a window has to be full"
    assert bool(losses(made, [9.0], 200)) is not told, "said once"


def test_the_best_window_is_remembered():
    """A loss is compared with the lowest window so far, not with the last; each thing is said once."""
    said = losses(watching(), [3.0] * 50 + [1.0] * 50 + [1.01] * 50 + [2.0] * 50 + [4.0] * 50)
    assert [step for step, _ in said] == [200]
    assert "2.000 nats over the last 50 steps, 1.000 up to step 100" in said[0][1]


@pytest.mark.parametrize("sigmas, told", [(4.9, False), (5.1, True)])
def test_a_noisy_loss_rises_by_five_standard_errors(sigmas, told):
    """The error is that of the difference of two means of 50."""
    noise = np.array([-1.0, 1.0] * (WINDOW // 2))  # variance 1 in both windows
    rise = sigmas * math.sqrt(2 / WINDOW)
    assert rise > 0.03 * 5
    assert bool(losses(watching(), [*(5 + noise), *(5 + rise + noise)])) is told


def test_a_validation_that_rises():
    """Three times in a row two per cent above the best, which itself came before them."""
    made, said = watching(), []
    for step, bits in enumerate([3.0, 2.0, 2.05, 2.04, 2.039, 2.06, 2.07, 2.08]):
        said += [(step, text) for text in made.see({"step": step, "valid_bits_per_byte": bits})]
    assert said == [
        (
            7,
            "step 7: validation rises: 2.0800 bits per byte, 2.0000 at step 1, and worse three times in a "
            "row. Where the "
            "training loss still falls, the model learns its text by heart: take more text, stop earlier, or use more "
            "decay; where both rise, the rate is too high",
        )
    ]


@pytest.mark.parametrize("bits, at", [
    ([2.0, 2.05, 2.05, 2.05], 4), ([2.0, 2.05, 2.03, 2.05], None), ([2.0, 2.05, 2.05, 2.041], 4),
    ([2.0, 2.05, 2.05], None), ([3.0, 2.0, 2.05, 2.05, 2.05], 5), ([2.05, 2.05, 2.05, 2.0], None),
    ([2.0, 2.1, 2.0, 2.1, 2.1, 2.1], 6), ([2.0, 2.04, 2.04, 2.04], 4),
])  # fmt: skip
def test_validation_rises_three_times_in_a_row(bits, at):
    """Two hundredths above the best, three times one after another."""
    made = watching()
    found = [made.see({"step": 10 * (i + 1), "valid_bits_per_byte": value}) for i, value in enumerate(bits)]
    assert [i + 1 for i, texts in enumerate(found) if texts] == ([at] if at else [])


@pytest.mark.parametrize("norm, told", [(0.99e-4, True), (1.01e-4, False), (math.nan, True), (0.0, True)])
def test_a_gradient_that_vanishes(norm, told):
    """Below a hundred-thousandth of the whole."""
    groups = {"embed": [6.0, 0.1], "layers.0": [norm, 0.1], "heads": [8.0, 0.1]}
    said = watching().see({"step": 3, "groups": groups})
    assert bool(said) is told
    if norm == 0.99e-4:
        assert said == [
            "step 3: the gradient vanishes in layers.0: 9.9e-05 of a whole of 1.0e+01. Nothing these "
            "weights do reaches the "
            "loss: look at their backward pass (`nanoeuler check`), at how they were initialised, and at what stands "
            "between them and the loss"
        ]


def test_two_groups_that_get_nothing_are_both_named():
    groups = {"embed": [3.0, 0.1], "layers.0": [0.0, 0.1], "layers.1": [0.0, 0.1]}
    assert (
        "vanishes in layers.0, layers.1: 0.0e+00 of a whole of 3.0e+00."
        in watching().see({"step": 3, "groups": groups})[0]
    )


def test_a_run_that_learns_nothing_is_told():
    def said(values):
        made = Watch(TrainConfig(steps=100), 1, 10**9, frequencies=4.0, guess=5.7)
        return [text.split(":")[1] for _, text in losses(made, values)]

    assert said([5.0] * 50 + [3.79] * 50) == []
    assert said([5.0] * 50 + [3.81] * 50) == [" the model has learnt nearly nothing"]
    assert said([200.0] * 50 + [3.0] * 50) == [" the loss rises"]


def test_rewards_that_collapse_are_told_each_time_and_blamed_on_no_layer():
    made, said = watching(), []
    for step, share in enumerate([0.5, 1, 1, 1, 1, 0.5, 1, 0.9, 0.5, 0.2, 1, 1, 1], 1):
        figures = {"reward": 0.25, "frac_reward_zero_std": share}
        said += made.see({"step": step, "loss": -0.25, "rate": 0.1, "figures": figures})
        said += made.see({"step": step, "groups": {"embed": [1 - share, 0.0], "heads": [1 - share, 0.0]}})
    assert [text.split(":")[0] for text in said] == ["step 4", "step 13"]
    assert all("no group has two different rewards, so nothing is learnt" in text for text in said)


def test_one_entry_may_earn_several_warnings():
    made = watching(9, 10, 1)
    entry = {"step": 9, "loss": 1.0, "rate": 0.1, "groups": {"embed": [0.0, 0.0]}}
    said = made.see(entry)
    assert [text.split(":")[1] for text in said] == [" the data repeats", " the gradient vanishes in embed"]
    assert made.see(entry) == []


SEPARATOR = "\n<mark>\n"


def test_texts_that_repeat_or_leak():
    ten = [f"document {i}" for i in range(10)]

    def said(documents, valid=()):
        return text_warnings(SEPARATOR.join(documents), SEPARATOR.join(valid), SEPARATOR)

    assert said(ten, ["another"]) == [] and said(["alone"], ["alone"]) == [] and said([]) == []
    assert said([*ten[:9], ten[0]]) == [], "one copy of ten is no matter"
    assert said([*ten[:8], ten[0], ten[1]]) == [
        "the data repeats: 2 of 10 training documents stand there more than once. Remove the copies, or "
        "they are learnt "
        "by heart"
    ]
    assert said(ten, [ten[3], "another", "", ten[3]]) == [
        "validation leaks: 2 of 3 validation documents stand in the training text too. Its figure will "
        "look better than "
        "the model is; remove them from one part"
    ]
    assert said(["a <mark> b <mark>", "<mark>c"]) == [
        "<mark> stands in the text 3 times within a line: there it is ordinary letters. Between documents "
        "it wants a line "
        "of its own"
    ]
    assert said(["a", "", "b"], [""]) == [], "empty documents are none"
    one = konigsberg.corpus(30_000, 1).replace(konigsberg.SEPARATOR, " ")  # a single document
    part, other = one[5000:10_000], one[20_000:25_000]
    for valid, found in ((part, 25), (part + other, 12)):
        assert said([one[:20_000]], [valid])[0].startswith(f"validation leaks: {found} of 25 windows of 200 char")
    assert said([one[:20_000]], [other]) == []


def test_a_run_says_and_logs_it(tmp_path, capfd):
    """A real run: a text of a few words read many times. It is said, logged, and known after a resume."""
    settings = TrainConfig(**RUN_CONFIG.to_dict() | {"steps": 30, "save_every": 10, "valid_every": 30})
    text = run_text()[:300]
    train.train(tmp_path / "run", text, RUN_MODEL, settings, quiet=False)
    warnings = [entry["warning"] for entry in run_folder.read_log(tmp_path / "run") if "warning" in entry]
    assert len(warnings) == 1 and "the data will repeat" in warnings[0]
    assert f"warning: {warnings[0]}" in "".join(capfd.readouterr())
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000030")
    before = [e for e in run_folder.read_log(tmp_path / "run") if "warning" in e]
    loop.resume(tmp_path / "run", text, quiet=True)
    assert [e for e in run_folder.read_log(tmp_path / "run") if "warning" in e] == before


def test_warm_up_of_a_broken_layer_is_seen(tmp_path):
    """A backward pass that drops a layer's gradient: the run says which layer."""
    original = gpt_module.backward

    def backward(params, grads, *rest, **named):
        original(params, grads, *rest, **named)
        for name in grads:
            if name.startswith("layers.0"):
                grads[name][...] *= 1e-12

    with patch.object(gpt_module, "backward", backward):
        train.train(tmp_path / "run", run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
        loop.resume(tmp_path / "run", run_text(), quiet=True, steps=RUN_CONFIG.steps + 2)
    warnings = [entry["warning"] for entry in run_folder.read_log(tmp_path / "run") if "warning" in entry]
    assert sum("the gradient vanishes in layers.0" in text for text in warnings) == 1, "and not again"


# The report.


@pytest.mark.parametrize(
    "first, last, floor",
    [
        (4.8, 2.15, None),
        (2.2, 2.1, None),
        (8.0, 0.9, None),
        (6.5, 0.18, 0.164),
        (9.0, 1e-3, None),
        (0.31, 0.3, None),
    ],
)
def test_validation_can_be_read_from_the_picture(first, last, floor):
    """At least four labelled ticks within the axis, none on top of another, and the last figure beside its point."""
    log = [{"step": 10 * i, "valid_bits_per_byte": first * (last / first) ** (i / 9)} for i in range(10)]
    figure = draw_loss([{"step": i, "loss": 3.0} for i in range(1, 91)] + log, floor)
    figure.canvas.draw()
    axes = figure.axes[1]
    low, high = axes.get_ylim()
    ticks = [tick for tick in axes.yaxis.get_major_ticks() if low <= tick.get_loc() <= high and tick.label1.get_text()]
    assert 4 <= len(ticks) <= 12
    boxes = sorted((tick.label1.get_window_extent() for tick in ticks), key=lambda box: box.y0)
    assert all(above.y0 > below.y0 + 0.7 * below.height for below, above in pairwise(boxes))
    assert f"{last:.3f}" in [text.get_text() for text in axes.texts]
    plt.close(figure)


# The live curve.


def test_live_curve(monkeypatch, tmp_path):
    """The first drawing is displayed, later ones replace it; a drawing needs a step, and time since the last one."""
    import IPython.display

    shown, updated = [], []

    class Handle:
        def update(self, figure):
            updated.append(figure)

    monkeypatch.setattr(IPython.display, "display", lambda figure, display_id: shown.append(figure) or Handle())
    live = Live(floor=0.5, seconds=0.0)
    train.train(tmp_path / "run", run_text(), RUN_MODEL, RUN_CONFIG, quiet=True, on_entry=live)
    assert len(shown) == 1 and len(updated) == RUN_CONFIG.steps - 1
    assert live.log == run_folder.read_log(tmp_path / "run")
    slow = Live(seconds=1e9)
    for entry in live.log:
        slow(entry)
    assert len(shown) == 2 and len(updated) == RUN_CONFIG.steps - 1
    slow.draw()
    assert len(updated) == RUN_CONFIG.steps
