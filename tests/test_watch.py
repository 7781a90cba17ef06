"""What a run says of itself: vital signs by layer, warnings that explain themselves, the report and the live curve."""

import json
import math
import re
import shutil
from itertools import pairwise
from unicodedata import category

import matplotlib.pyplot as plt
import numpy as np
import pytest
from checks import RUN_CONFIG, RUN_MODEL, random_parameters, run_text

from nanoeuler_lib import world
from nanoeuler_lib.command import cli
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import Parameters
from nanoeuler_lib.text import data
from nanoeuler_lib.training import loop, run_folder, train
from nanoeuler_lib.training.report import Live, draw_loss, report
from nanoeuler_lib.training.watch import WINDOW, Watch, group_of, text_warnings, vitals

GROUPS = ["embed", "layers.0", "heads"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = tmp_path_factory.mktemp("watched") / "run"
    settings = TrainConfig(**RUN_CONFIG.to_dict() | {"steps": 12, "valid_every": 4, "sample_every": 6})
    train.train(run, run_text(), RUN_MODEL, settings, source="cats | and dogs", quiet=True)
    return run


def step_entry(step, loss, **more):
    return {"step": step, "loss": loss, "rate": 1e-3, "norm": 1.0, "tokens_per_second": 1} | more


def watch(config=RUN_CONFIG, tokens_per_step=10, train_tokens=10**9):
    return Watch(config, tokens_per_step, train_tokens)


# Vital signs.


def test_vitals_by_group():
    """Norms by group add up to the whole; the update's size is that of the parameters' change over their size."""
    before, after, grads = (random_parameters(RUN_MODEL, seed) for seed in range(3))
    found = vitals(before.flat, after, grads, norm=7.0)
    assert list(found) == GROUPS
    assert math.hypot(*(norm for norm, _ in found.values())) == pytest.approx(7.0)
    for group in GROUPS:
        names = [name for name in after if group_of(name) == group]
        old, new, gradient = (np.concatenate([p[n].ravel() for n in names]) for p in (before, after, grads))
        norm, ratio = found[group]
        assert norm == pytest.approx(7 * np.linalg.norm(gradient) / np.linalg.norm(grads.flat))
        assert ratio == pytest.approx(np.linalg.norm(new - old) / np.linalg.norm(old))


def test_every_tensor_is_in_a_group():
    assert {group_of(name) for name in Parameters(RUN_MODEL)} == set(GROUPS)


def test_vitals_of_zeros():
    nothing = Parameters(RUN_MODEL)
    assert all(pair == [0.0, 0.0] for pair in vitals(nothing.flat, nothing, nothing, 0.0).values())


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


def test_silent_while_all_is_well():
    w, rng = watch(), np.random.default_rng(0)
    for step in range(1, 2000):
        loss = 6 * 0.999**step + 1 + 0.2 * rng.standard_normal()
        assert w.see(step_entry(step, loss)) == []
        if step % 100 == 0:
            assert w.see({"step": step, "valid_bits_per_byte": loss / 2}) == []
            assert w.see({"step": step, "groups": {g: [0.5, 1e-3] for g in GROUPS}}) == []


def test_noise_is_not_a_rise():
    w, rng = watch(), np.random.default_rng(1)
    assert not any(w.see(step_entry(step, 3 + 0.3 * rng.standard_normal())) for step in range(1, 3000))


def test_loss_rises_said_once():
    w = watch()
    said = [
        w.see(step_entry(step, 3 - step / 100 if step < 100 else 2 + (step - 100) / 200))
        for step in range(1, 600)
    ]
    texts = [text for found in said for text in found]
    assert len(texts) == 1
    assert "the loss rises" in texts[0] and "rate" in texts[0] and "2.127 up to step 150" in texts[0]


def test_data_repeats():
    w = watch(tokens_per_step=50, train_tokens=1000)
    said = {step: w.see(step_entry(step, 1.0)) for step in range(1, 200)}
    assert [step for step, found in said.items() if found] == [80]  # 80 * 50 = 4 * 1000
    assert said[80][0].startswith(
        "step 80: the data repeats: 80 steps draw 4000 tokens from a text of 1000, 4.0 passes"
    )


def test_data_that_will_repeat_is_said_before_the_first_step_and_once():
    config = TrainConfig(**RUN_CONFIG.to_dict() | {"steps": 80})
    w = watch(config, tokens_per_step=50, train_tokens=1000)
    (text,) = w.begin()
    assert text.startswith("the data will repeat: 80 steps draw 4000 tokens from a text of 1000, 4.0 passes")
    assert not any(w.see(step_entry(step, 1.0)) for step in range(1, 81))
    assert watch(config, tokens_per_step=50, train_tokens=1001).begin() == []


def test_separator_within_a_line():
    sep, mark = data.SEPARATOR, data.END_OF_TEXT
    (text,) = text_warnings(sep.join(["one", f"two {mark} three{mark}", "four"]), "new", sep)
    assert text.startswith(f"{mark} stands in the text 2 times within a line")


def test_validation_rises():
    w = watch()
    bits = [3.0, 2.0, 1.5, 1.6, 1.7, 1.8, 1.9]
    said = [w.see({"step": i, "valid_bits_per_byte": b}) for i, b in enumerate(bits)]
    assert [bool(found) for found in said] == [False] * 5 + [True, False]
    assert "1.8000 bits per byte, 1.5000 at step 2" in said[5][0]


def test_gradient_vanishes():
    w = watch()
    groups = {"embed": [1.0, 1e-3], "layers.0": [1e-9, 1e-3], "heads": [1.0, 1e-3]}
    (text,) = w.see({"step": 5, "groups": groups})
    assert text.startswith("step 5: the gradient vanishes in layers.0: 1.0e-09") and "nanoeuler check" in text
    assert watch().see({"step": 5, "groups": {g: [0.0, 0.0] for g in GROUPS}}), (
        "no gradient at all is said as well"
    )


def test_repeated_and_leaked_documents():
    sep = data.SEPARATOR
    clean = sep.join(f"story {i}" for i in range(50))
    assert text_warnings(clean, sep.join(f"other {i}" for i in range(5)), sep) == []
    assert text_warnings("one text, no documents", "one text", sep) == []
    (text,) = text_warnings(clean + sep + sep.join(["story 1"] * 20), "new", sep)
    assert "20 of 70 training documents" in text
    (text,) = text_warnings(clean, sep.join(["story 3", "new", "story 4"]), sep)
    assert "2 of 3 validation documents stand in the training text" in text


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
    from unittest.mock import patch

    from nanoeuler_lib.model import step as step_module

    original = step_module.backward

    def backward(params, grads, *rest, **named):
        original(params, grads, *rest, **named)
        for name in grads:
            if name.startswith("layers.0"):
                grads[name][...] *= 1e-12

    with patch.object(step_module, "backward", backward):
        train.train(tmp_path / "run", run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    warnings = [entry["warning"] for entry in run_folder.read_log(tmp_path / "run") if "warning" in entry]
    assert any("the gradient vanishes in layers.0" in text for text in warnings)


# The report.


def test_report(finished, tmp_path, capsys):
    run = shutil.copytree(finished, tmp_path / "run")
    assert cli.main(["report", str(run)]) == 0
    assert capsys.readouterr().out.startswith(f"{run}/report/report.md: written")
    page = (run / "report" / "report.md").read_text()
    log = run_folder.read_log(run)
    for entry in log:
        if "sample" in entry:
            shown = "".join(
                "\ufffd" if category(c)[0] == "C" and c not in "\n\t" else c for c in entry["sample"]
            )
            assert f"Step {entry['step']}:\n\n```text\n{shown.strip(chr(10))}\n```" in page
        if "valid_bits_per_byte" in entry:
            assert f"| {entry['step']} | {entry['valid_bits_per_byte']:.4f} |" in page
    assert "| data | cats \\| and dogs, " in page
    assert "12 of 12" in page and "unfinished" not in page and "tokens a second" in page
    assert "floor" not in page, "nobody knows the source of this text"
    for name in ("loss.png", "layers.png"):
        assert f"]({name})" in page
        assert (run / "report" / name).read_bytes().startswith(b"\x89PNG") and (
            run / "report" / name
        ).stat().st_size > 5000


def test_report_elsewhere_and_unfinished(finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    lines = (run / "log.jsonl").read_text().splitlines()
    (run / "log.jsonl").write_text("\n".join(lines[:8]) + "\n")
    page = report(run, tmp_path / "out")
    assert page == tmp_path / "out" / "report.md" and "of 12, unfinished" in page.read_text()
    assert not (run / "report").exists()


def test_report_knows_the_floor(tmp_path):
    """Stories of Königsberg: the page says what the source itself needs, and how far above it the model is."""
    text = world.corpus(30_000, 1)
    config = ModelConfig(dim=16, heads=2, kv_heads=1, layers=1, context=32, vocab_size=300, predict=1)
    settings = TrainConfig(steps=2, batch=2, warmup=1, valid_every=1, sample_every=0, save_every=2)
    train.train(tmp_path / "run", text, config, settings, quiet=True)
    _, valid = data.split_text(text, settings.valid_fraction)
    head = json.loads((tmp_path / "run" / "run.json").read_text())
    floor = head["data"]["floor_bits_per_byte"]
    assert floor == pytest.approx(world.floor(valid), abs=1e-6) and floor > 0
    page = report(tmp_path / "run").read_text()
    assert f"{floor:.4f} bits per byte for the source itself" in page and "above the floor" in page


def test_report_on_what_is_no_run(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "log.jsonl: cannot be read (No such file or directory)" in capsys.readouterr().err
    (tmp_path / "log.jsonl").write_text('{"step": 0, "valid_bits_per_byte": 3.0}\n')
    (tmp_path / "run.json").write_text('{"model": {}, "train": {}, "data": {}}')
    with pytest.raises(NanoEulerError, match="its log has no step yet"):
        report(tmp_path)


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
    figure = draw_loss([{**step_entry(i, 3.0)} for i in range(1, 91)] + log, floor)
    figure.canvas.draw()
    axes = figure.axes[1]
    low, high = axes.get_ylim()
    ticks = [
        tick
        for tick in axes.yaxis.get_major_ticks()
        if low <= tick.get_loc() <= high and tick.label1.get_text()
    ]
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

    monkeypatch.setattr(
        IPython.display, "display", lambda figure, display_id: shown.append(figure) or Handle()
    )
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
    assert WINDOW > 1


def test_report_says_best_and_above_the_floor(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    head = {
        "model": {},
        "train": {"steps": 2},
        "data": {"source": "a|b", "train_tokens": 9, "floor_bits_per_byte": 0.5},
        "machine": "m",
    }
    (run / "run.json").write_text(json.dumps(head))
    step = dict(loss=1.0, rate=0.1, norm=1.0, seconds=1.0, tokens_per_second=5)
    log = [
        {"step": 0, "valid_bits_per_byte": 3.0},
        {"step": 1, **step},
        {"step": 1, "valid_bits_per_byte": 1.25},
        {"step": 2, **step},
        {"step": 2, "valid_bits_per_byte": 1.5},
        {"step": 2, "sample": "x\n```\ny"},
    ]
    (run / "log.jsonl").write_text("".join(json.dumps(e) + "\n" for e in log))
    page = report(run).read_text("utf-8")
    assert "## Warnings\n\nNone.\n\n## Validation" in page
    log += [{"step": 2, "warning": f"step 2: {what}"} for what in ("one", "two\nlines")]
    (run / "log.jsonl").write_text("".join(json.dumps(e) + "\n" for e in log))
    page = report(run).read_text("utf-8")
    assert re.search(r"## Warnings\n\n- step 2: one\n- step 2: two.lines\n\n## Validation", page), page
    assert (
        "1.5000 bits per byte at the end, 1.2500 at best (step 1)" in page
        and "| 1 | 1.2500 | 0.7500 |" in page
    )
    assert "1.0000 above it" in page and "````text\nx\n```\ny\n````" in page and "a\\|b" in page
