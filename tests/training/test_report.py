"""Test the page and the figures of `nanoeuler report`: all lines of a page, and all numbers of the log in place."""

import csv
import json
import math
from unittest.mock import patch

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from oracles import error_of

from nanoeuler_lib.training import report

matplotlib.use("agg")

STEP = {"rate": 0.1, "norm": 0.5, "tokens_per_second": 1000}
LOG = [
    {"step": 0, "warning": "the data will repeat\nitself"},
    {"step": 0, "valid_bits_per_byte": 8.0},
    {"step": 1, "loss": 5.0, "seconds": 2.0} | STEP,
    {"step": 1, "groups": {"embed": [0.5, 0.01], "heads": [0.25, 0.02]}},
    {"step": 1, "valid_bits_per_byte": 1.25},
    {"step": 2, "loss": 4.0, "seconds": 1.5, "rate": 0.1, "norm": 0.125, "tokens_per_second": 3000},
    {"step": 2, "valid_bits_per_byte": 1.5},
    {"step": 2, "sample": "\n\nKäthe\x1b ran.\n````\n"},
    {"step": 2, "changed": "steps 4 -> 5"},
    {"step": 3, "loss": 4.5, "rate": 0.1, "norm": 0.25, "tokens_per_second": 2000},
    {"step": 3, "sample": "She"},
]
SIZES = {"train_tokens": 900, "valid_tokens": 100, "train_examples": 7}
HEAD = {
    "version": "1", "machine": "a | b", "model": {"dim": 4}, "train": {"steps": 5, "rate": 0.5},
    "data": SIZES | {"source": "über", "floor_bits_per_byte": 0.5},
}  # fmt: skip
PAGE = """\
# my run

| | |
|:--|:--|
| steps | 3 of 5, unfinished |
| data | über, 900 tokens and 7 examples to train on |
| from step 2 on | steps 4 -> 5 |
| machine | a \\| b |
| throughput | 2,000 tokens per second (median); 6,500 tokens in 4 s of steps |
| gradient norm | median 0.25 |
| validation loss | 1.5000 bits per byte at the end, 1.2500 at best (step 1) |
| floor | 0.5000 bits per byte for the source itself; the model is 1.0000 above it |

![Loss and validation by step](loss.png)

![Gradient norms and update sizes](layers.png)

## Warnings

- the data will repeat itself

## Validation

| step | bits per byte | above the floor |
|--:|--:|--:|
| 0 | 8.0000 | 7.5000 |
| 1 | 1.2500 | 0.7500 |
| 2 | 1.5000 | 1.0000 |

## Samples

Step 2:

`````text
Käthe\ufffd ran.
````
`````

Step 3:

```text
She
```

## Settings

```json
{
 "model": {
  "dim": 4
 },
 "train": {
  "steps": 5,
  "rate": 0.5
 }
}
```
"""


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture
def undrawn(monkeypatch):
    """Make the figures empty, for tests that read only the page."""
    for name in ("draw_loss", "draw_layers"):
        monkeypatch.setattr(report, name, lambda *_: plt.figure(figsize=(1, 1)))


def run_of(folder, head, log):
    run = folder / "my run"
    run.mkdir(exist_ok=True)
    (run / "run.json").write_text(head if isinstance(head, str) else json.dumps(head, ensure_ascii=False), "utf-8")
    (run / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in log), "utf-8")
    return run


def test_a_whole_page(tmp_path):
    run, open_before = run_of(tmp_path, HEAD, LOG), plt.get_fignums()
    with (
        patch.object(report, "draw_loss", wraps=report.draw_loss) as loss,
        patch.object(report, "draw_layers", wraps=report.draw_layers) as layers,
    ):
        page = report.report(run)
    loss.assert_called_once_with(LOG, 0.5)
    layers.assert_called_once_with(LOG)
    assert page == run / "report" / "report.md" and page.read_text("utf-8") == PAGE
    assert sorted(f.name for f in page.parent.iterdir()) == ["layers.png", "loss.png", "report.md"]
    assert plt.get_fignums() == open_before, "a figure must be closed after it is written"
    for _ in range(2):
        page = report.report(str(run), str(tmp_path / "a" / "b"))
        assert page == tmp_path / "a" / "b" / "report.md" and page.read_text("utf-8") == PAGE


def test_a_page_of_a_run_that_has_little_to_say(tmp_path, undrawn):
    """Omit the headings of missing parts: validation, floor, samples and seconds."""
    head = {"model": {}, "train": {"steps": 5}, "data": {}}
    log = [{"step": 5, "loss": 4.0, "rate": 0.1, "norm": 1.2345, "tokens_per_second": 7}]
    short = report.report(run_of(tmp_path, head, log)).read_text("utf-8")
    assert "| data | None,  to train on |" in short and "| gradient norm | median 1.23 |" in short
    assert "## Warnings\n\nNone.\n\n## Settings\n" in short
    head["data"]["floor_bits_per_byte"] = 0.5  # without a validation, nothing is compared with the floor
    assert report.report(run_of(tmp_path, head, log)).read_text("utf-8") == short
    for floor, known in (("low", False), (1, True)):  # an edited file: the floor is unknown
        head["data"]["floor_bits_per_byte"] = floor
        page = report.report(run_of(tmp_path, head, [*log, {"step": 5, "valid_bits_per_byte": 2}])).read_text("utf-8")
        assert ("above the floor" in page) == known and "\n| 5 | 2.0000 |" in page


def test_a_log_as_csv(tmp_path):
    """Check that each logged number is in the row of its step, under a name with its unit."""
    more = {"valid_sets": {"a, b": 3.0}, "figures": {"accuracy": 0.5}, "seconds": 9.0, "seen": 0.25}
    log = [*LOG, {"step": 4, "valid_bits_per_byte": 2} | more, {"step": 5, "loss": 1.0, "later": [2.0, 3.0]} | STEP]
    run = run_of(tmp_path, HEAD, log)
    assert report.write_csv(run, tmp_path / "log.csv") == 6
    with open(tmp_path / "log.csv", newline="") as file:
        rows = {int(row["step"]): {k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)}
    assert rows[0] == {"step": 0, "validation loss (bits per byte)": 8}
    assert rows[1] == {
        "step": 1, "loss (nats per token)": 5, "learning rate": 0.1, "gradient norm": 0.5, "time (s)": 2,
        "tokens per second": 1000, "validation loss (bits per byte)": 1.25, "embed: gradient norm": 0.5,
        "embed: update size / weight size": 0.01, "heads: gradient norm": 0.25,
        "heads: update size / weight size": 0.02,
    }  # fmt: skip
    assert rows[4] == {
        "step": 4, "validation loss (bits per byte)": 2, "validation loss, a, b (bits per byte)": 3,
        "validation accuracy": 0.5, "training data used (fraction)": 0.25,
    }  # fmt: skip
    assert rows[5]["loss of head 2 (nats per token)"] == 3 and list(rows) == [0, 1, 2, 3, 4, 5]
    assert "already exists" in error_of(report.write_csv, run, tmp_path / "log.csv")


@pytest.mark.parametrize("text, expected", [
    ("{", "not readable as JSON ("), ('{"a": NaN}', "not readable as JSON ("),
    ("[]", "must have model, train and data: the file was edited"),
    ('{"model": {}, "train": {}}', "must have model, train and data: the file was edited"),
    ('{"model": [], "train": {}, "data": {}}', "must have model, train and data: the file was edited"),
])  # fmt: skip
def test_a_description_that_is_none(tmp_path, text, expected):
    run = run_of(tmp_path, text, LOG)
    assert error_of(report.report, run).startswith(f"{run}/run.json: {expected}") and not (run / "report").exists()


def test_where_no_page_can_be_written(tmp_path):
    run = run_of(tmp_path, HEAD, LOG)
    expected = f"{run}/log.jsonl/report.md: cannot be written (Not a directory)"
    assert error_of(report.report, run, run / "log.jsonl") == expected
    (run / "run.json").unlink()
    assert "No such file" in error_of(report.report, run)
    run_of(tmp_path, HEAD, LOG[:2])
    assert error_of(report.report, run) == f"{run}: its log must have at least one step, got none"


def test_each_validation_set_has_its_dotted_line_and_its_name():
    sets = [{"one": 3.0}, {"one": 2.0, "t" * 50: 4.0}]
    log = [{"step": n, "valid_bits_per_byte": 2.5, "valid_sets": found} for n, found in enumerate(sets)]
    right = report.draw_loss(log, 0.5).axes[1]
    long = "t" * 20 + " ... " + "t" * 20
    assert labels(right) == ["validation", "one", long, "floor: the source itself"]
    lines = [(line.get_xydata().tolist(), line.get_linestyle()) for line in right.lines[1:3]]
    assert lines == [([[0, 3], [1, 2]], ":"), ([[1, 4]], ":")]


# The figures.


def log_of(steps=120, valid=((0, 8.0), (60, 2.5), (120, 1.75))):
    loss = 5 - np.arange(1, steps + 1) / 40 + np.random.default_rng(0).random(steps)
    log = [{"step": 3 * i, "loss": float(nats), "rate": 0.1, "norm": 1.0} for i, nats in enumerate(loss, 1)]
    return [{"step": 0, "warning": "odd"}, *log, *({"step": s, "valid_bits_per_byte": b} for s, b in valid)]


def data(line):
    return [list(x) for x in line.get_data()]


def labels(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.mark.parametrize("floor", [None, 1.25])
def test_the_loss_and_its_mean(floor):
    log = log_of()
    upper, lower = report.draw_loss(log, floor).axes
    each, mean = upper.lines
    x, y = [3 * i for i in range(1, 121)], [entry["loss"] for entry in log if "loss" in entry]
    assert data(each) == [x, y] and data(mean)[0] == x
    expected = [np.mean(y[max(0, i - 25) : i + 26]) for i in range(120)]  # the 50 steps around each
    assert np.allclose(data(mean)[1], expected, rtol=1e-12)
    assert labels(upper) == ["each step", "mean of 50 steps"]
    assert labels(lower) == ["validation"] + (["floor: the source itself"] if floor else [])
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("training loss, nats per token", "validation, bits per byte")
    assert data(lower.lines[0]) == [[0, 60, 120], [8.0, 2.5, 1.75]]
    assert (upper.get_yscale(), lower.get_yscale()) == ("linear", "log")
    assert [line.get_ydata()[0] for line in lower.lines[1:]] == ([1.25] if floor else [])


def test_a_run_without_validation_and_one_that_needs_no_bits():
    upper, lower = report.draw_loss(log_of(3, ())).axes
    assert not lower.lines and lower.get_legend() is None and lower.get_yscale() == "linear" and len(upper.lines) == 2
    _, lower = report.draw_loss(log_of(3, ()), 0.5).axes
    assert len(lower.lines) == 1 and lower.get_legend() is not None
    _, lower = report.draw_loss(log_of(3, ((0, 1.0), (3, 0.0)))).axes
    assert lower.get_yscale() == "linear"  # 0 has no logarithm


def test_layers_by_step():
    names = [f"layers.{i}" for i in range(11)]
    sizes = lambda step: {name: [i + step, (i + 1) * 1e-3 * step] for i, name in enumerate(names)}
    log = [{"step": step, "groups": sizes(step)} for step in (1, 4, 9)]
    log[1]["groups"]["layers.2"] = [0.0, 0.0]  # left out
    del log[2]["groups"]["layers.3"]
    log.insert(1, {"step": 2, "loss": 1.0})
    upper, lower = report.draw_layers(log).axes
    for axes, part, said in ((upper, 0, "gradient norm"), (lower, 1, "update size / weight size")):
        assert [line.get_label() for line in axes.lines] == names
        assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale()) == ("step", said, "log")
        for name, line in zip(names, axes.lines):
            entries = [entry for entry in log if name in entry.get("groups", ())]
            shown = [entry["groups"][name][part] or math.nan for entry in entries]
            assert data(line)[0] == [entry["step"] for entry in entries]
            assert np.array_equal(data(line)[1], shown, equal_nan=True)
        assert len({line.get_marker() for line in axes.lines}) == 10, "lines must be distinguishable"
    assert labels(lower) == names
    upper, lower = report.draw_layers([{"step": 1, "loss": 1.0}]).axes
    assert not upper.lines and lower.get_legend() is None and upper.get_yscale() == "linear"


def test_live_draws_again_when_its_seconds_have_passed(monkeypatch):
    import IPython.display

    shown, clock = [], [100.0]

    class Handle:
        def update(self, figure):
            shown.append(("update", len(figure.axes[0].lines[0].get_xdata())))

    def display(figure, display_id=None):
        floor = figure.axes[1].lines[-1].get_ydata()[0]
        shown.append(("new", len(figure.axes[0].lines[0].get_xdata()), floor, display_id))
        return Handle()

    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setattr(report.time, "monotonic", lambda: clock[0])
    live = report.Live(floor=0.75, seconds=3.0)
    for second, entry in enumerate([{"warning": "x", "step": 0}] + [{"step": i, "loss": 1.0} for i in range(1, 9)]):
        clock[0] = 100.0 + second
        live(entry)
    assert shown == [("new", 1, 0.75, True), ("update", 5)]  # at 101 and, more than three seconds later, at 105
    live.draw()
    assert shown[-1] == ("update", 8) and len(live.log) == 9 and live.drawn == 108.0
    assert report.Live().seconds == 2.0 and report.Live().floor is None
    assert not plt.get_fignums()
