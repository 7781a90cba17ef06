"""The figures of a run's report: every number of the log where it belongs, every axis with its unit."""

import math

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from nanoeuler_lib.training import report

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def log_of(steps=120, valid=((0, 8.0), (60, 2.5), (120, 1.75))):
    rng = np.random.default_rng(0)
    log = [
        {"step": 3 * i, "loss": float(5 - i / 40 + rng.random()), "rate": 0.1, "norm": 1.0} for i in range(1, steps + 1)
    ]
    return [{"step": 0, "warning": "odd"}, *log, *({"step": s, "valid_bits_per_byte": b} for s, b in valid)]


def data(line):
    return [list(x) for x in line.get_data()]


@pytest.mark.parametrize("floor", [None, 1.25])
def test_the_loss_and_its_mean(floor):
    log = log_of()
    figure = report.draw_loss(log, floor)
    upper, lower = figure.axes
    each, mean = upper.lines
    x, y = [3 * i for i in range(1, 121)], [entry["loss"] for entry in log if "loss" in entry]
    assert data(each) == [x, y]
    expected = [np.mean(y[max(0, i - 25) : i + 26]) for i in range(120)]  # the 50 steps around each
    assert data(mean)[0] == x and np.allclose(data(mean)[1], expected, rtol=1e-12)
    assert [t.get_text() for t in upper.get_legend().get_texts()] == ["each step", "mean of 50 steps"]
    assert (upper.get_xlabel(), lower.get_xlabel()) == ("step", "step")
    assert upper.get_ylabel() == "training loss, nats a token" and lower.get_ylabel() == "validation, bits per byte"
    assert data(lower.lines[0]) == [[0, 60, 120], [8.0, 2.5, 1.75]] and lower.get_yscale() == "log"
    assert lower.lines[0].get_marker() == "." and upper.get_yscale() == "linear"
    names = ["validation"] + (["floor: the source itself"] if floor else [])
    assert [t.get_text() for t in lower.get_legend().get_texts()] == names
    assert [line.get_ydata()[0] for line in lower.lines[1:]] == ([1.25] if floor else [])
    if floor:
        assert lower.lines[1].get_linestyle() == "--" and each.get_color() != mean.get_color()
    assert each.get_linewidth() < mean.get_linewidth() and tuple(figure.get_size_inches()) == (4.7, 5.4)


def test_a_run_without_validation_and_one_that_needs_no_bits():
    upper, lower = report.draw_loss(log_of(3, ())).axes
    assert not lower.lines and lower.get_legend() is None and lower.get_yscale() == "linear" and len(upper.lines) == 2
    _, lower = report.draw_loss(log_of(3, ()), 0.5).axes
    assert len(lower.lines) == 1 and lower.get_legend() is not None
    _, lower = report.draw_loss(log_of(3, ((0, 1.0), (3, 0.0)))).axes
    assert lower.get_yscale() == "linear"  # no logarithm of 0


def test_layers_by_step():
    """A line for each group, its norm above and its update below; a size of 0 is left out."""
    names = [f"layers.{i}" for i in range(11)]
    log = [
        {"step": step, "groups": {name: [i + step, (i + 1) * 1e-3 * step] for i, name in enumerate(names)}}
        for step in (1, 4, 9)
    ]
    log[1]["groups"]["layers.2"] = [0.0, 0.0]
    del log[2]["groups"]["layers.3"]
    log.insert(1, {"step": 2, "loss": 1.0})
    upper, lower = report.draw_layers(log).axes
    for axes, part in ((upper, 0), (lower, 1)):
        assert [line.get_label() for line in axes.lines] == names and axes.get_xlabel() == "step"
        assert axes.get_yscale() == "log"
        for name, line in zip(names, axes.lines):
            x, y = data(line)
            entries = [entry for entry in log if name in entry.get("groups", ())]
            assert x == [entry["step"] for entry in entries]
            for found, entry in zip(y, entries):
                size = entry["groups"][name][part]
                assert found == size if size else math.isnan(found)
        styles = [line.get_marker() for line in axes.lines]
        assert len(set(styles[:10])) == 10 and styles[10] == styles[0]
    assert upper.get_ylabel() == "gradient norm"
    assert lower.get_ylabel() == "update size / weight size"
    assert [t.get_text() for t in lower.get_legend().get_texts()] == names and upper.get_legend() is None
    alone, _ = report.draw_layers(log[:1]).axes
    assert [line.get_label() for line in alone.lines] == names


def test_layers_of_a_log_without_any():
    upper, lower = report.draw_layers([{"step": 1, "loss": 1.0}]).axes
    assert not upper.lines and lower.get_legend() is None and upper.get_yscale() == "linear"


def test_live_draws_again_when_its_seconds_have_passed(monkeypatch):
    """Entries between two drawings are kept; each drawing takes the place of the one before."""
    import IPython.display

    shown, clock = [], [100.0]

    class Handle:
        def update(self, figure):
            shown.append(("update", len(figure.axes[0].lines[0].get_xdata())))

    def display(figure, display_id=None):
        shown.append(("new", len(figure.axes[0].lines[0].get_xdata())))
        assert display_id is True
        return Handle()

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(report.time, "monotonic", lambda: clock[0])
    live = report.Live(floor=1.0, seconds=3.0)
    for second, entry in enumerate([{"warning": "x", "step": 0}] + [{"step": i, "loss": 1.0} for i in range(1, 9)]):
        clock[0] = 100.0 + second
        live(entry)
    assert shown == [("new", 1), ("update", 5)]  # at 101 and, more than three seconds later, at 105
    live.draw()
    assert shown[-1] == ("update", 8) and len(live.log) == 9 and live.drawn == 108.0
    assert report.Live().seconds == 2.0 and report.Live().floor is None
    assert not plt.get_fignums()


def test_the_live_curve_draws_the_floor(monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda figure, **_: shown.append(figure.axes[1].lines[-1]))
    for floor in (0.75, 0.5):
        report.Live(floor)({"step": 1, "loss": 1.0})
    assert [line.get_ydata()[0] for line in shown] == [0.75, 0.5]
