"""The page and the figures of `nanoeuler report`, whole: every line of a page, and how the figures are laid out."""

import json
from unittest.mock import patch

import matplotlib
import matplotlib.pyplot as plt
import pytest

from nanoeuler_lib.errors import NanoEulerError
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
    {"step": 3, "loss": 4.5, "rate": 0.1, "norm": 0.25, "tokens_per_second": 2000},
    {"step": 3, "sample": "She"},
]
HEAD = {
    "version": "1",
    "machine": "a | b",
    "model": {"dim": 4},
    "train": {"steps": 5, "rate": 0.5},
    "data": {
        "train_tokens": 900,
        "valid_tokens": 100,
        "train_examples": 7,
        "source": "über",
        "floor_bits_per_byte": 0.5,
    },
}
PAGE = """\
# my run

| | |
|:--|:--|
| steps | 3 of 5, unfinished |
| data | über, 900 tokens and 7 examples to train on |
| machine | a \\| b |
| throughput | 2,000 tokens a second (median); 6,500 tokens in 4 s of steps |
| gradient norm | median 0.25 |
| validation | 1.5000 bits per byte at the end, 1.2500 at best (step 1) |
| floor | 0.5000 bits per byte for the source itself; 1.0000 above it |

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
SHORT_PAGE = """\
# my run

| | |
|:--|:--|
| steps | 5 of 5 |
| data | None,  to train on |
| machine | None |
| throughput | 7 tokens a second (median); 0 tokens in 0 s of steps |
| gradient norm | median 1.23 |

![Loss and validation by step](loss.png)

![Gradient norms and update sizes](layers.png)

## Warnings

None.

## Settings

```json
{
 "model": {},
 "train": {
  "steps": 5
 }
}
```
"""


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def run_of(folder, head, log):
    run = folder / "my run"
    run.mkdir(exist_ok=True)
    (run / "run.json").write_text(head if isinstance(head, str) else json.dumps(head, ensure_ascii=False), "utf-8")
    (run / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in log), "utf-8")
    return run


def test_a_whole_page(tmp_path):
    run, open_before = run_of(tmp_path, HEAD, LOG), plt.get_fignums()
    with patch.object(report, "draw_loss", wraps=report.draw_loss) as loss:
        with patch.object(report, "draw_layers", wraps=report.draw_layers) as layers:
            page = report.report(run)
    loss.assert_called_once_with(LOG, 0.5)
    layers.assert_called_once_with(LOG)
    assert page == run / "report" / "report.md" and page.read_text("utf-8") == PAGE
    assert sorted(f.name for f in page.parent.iterdir()) == ["layers.png", "loss.png", "report.md"]
    assert plt.get_fignums() == open_before, "figures that are written are closed"
    assert report.report(str(run), str(tmp_path / "a" / "b")) == tmp_path / "a" / "b" / "report.md"
    assert report.report(run).read_text("utf-8") == PAGE, "a page is written over"


def test_a_whole_page_of_a_run_that_has_little_to_say(tmp_path):
    """No validation, no floor, no sample, no seconds: no heading of what is not there."""
    head = {"model": {}, "train": {"steps": 5}, "data": {}}
    log = [{"step": 5, "loss": 4.0, "rate": 0.1, "norm": 1.2345, "tokens_per_second": 7}]
    assert report.report(run_of(tmp_path, head, log)).read_text("utf-8") == SHORT_PAGE
    head["data"]["floor_bits_per_byte"] = 0.5  # without a validation nothing is above it
    assert report.report(run_of(tmp_path, head, log)).read_text("utf-8") == SHORT_PAGE
    head["data"]["floor_bits_per_byte"] = "low"  # edited: nobody knows it
    log += [{"step": 5, "valid_bits_per_byte": 2}]
    page = report.report(run_of(tmp_path, head, log)).read_text("utf-8")
    assert "floor" not in page and "\n| step | bits per byte |\n|--:|--:|\n| 5 | 2.0000 |\n\n## Settings" in page
    head["data"]["floor_bits_per_byte"] = 1  # a whole number is one
    assert "above the floor" in report.report(run_of(tmp_path, head, log)).read_text("utf-8")


def test_a_warning_may_be_long_and_a_fact_not(tmp_path):
    log = [*LOG, {"step": 3, "warning": "w" * 1999}, {"step": 3, "warning": "v" * 2001}]
    head = HEAD | {"machine": "m" * 601}
    page = report.report(run_of(tmp_path, head, log)).read_text("utf-8")
    assert f"- {'w' * 1999}\n- {'v' * 1000} ... {'v' * 1000}\n" in page
    assert f"| machine | {'m' * 300} ... {'m' * 300} |\n" in page


@pytest.mark.parametrize(
    "text, expected",
    [
        ("{", "run.json: not readable as JSON ("),
        ('{"a": NaN}', "run.json: not readable as JSON ("),
        ("[" * 99_999, "run.json: not readable as JSON ("),
        ("[]", "run.json: model, train or data is missing: edited"),
        ('{"model": {}, "train": {}}', "run.json: model, train or data is missing: edited"),
        ('{"model": {}, "train": {}, "data": 1}', "run.json: model, train or data is missing: edited"),
        ('{"model": [], "train": {}, "data": {}}', "run.json: model, train or data is missing: edited"),
        ('{"model": {}, "train": null, "data": {}}', "run.json: model, train or data is missing: edited"),
    ],
)
def test_a_description_that_is_none(tmp_path, text, expected):
    run = run_of(tmp_path, text, LOG)
    with pytest.raises(NanoEulerError) as caught:
        report.report(run)
    assert str(caught.value).startswith(f"{run}/{expected}") and not (run / "report").exists()


def test_where_no_page_can_be_written(tmp_path):
    run = run_of(tmp_path, HEAD, LOG)
    with pytest.raises(NanoEulerError) as caught:
        report.report(run, run / "log.jsonl")
    assert str(caught.value) == f"{run}/log.jsonl/report.md: cannot be written (Not a directory)"
    (run / "run.json").unlink()
    with pytest.raises(NanoEulerError, match=r"run.json: not readable as JSON .*No such file"):
        report.report(run)
    run_of(tmp_path, HEAD, LOG[:2])
    with pytest.raises(NanoEulerError) as caught:
        report.report(run)
    assert str(caught.value) == f"{run}: its log has no step yet, expected at least one"


def test_each_validation_set_has_its_dotted_line_and_its_name():
    """In a set that came later there are fewer points; a long name is cut."""
    sets = [{"one": 3.0}, {"one": 2.0, "t" * 50: 4.0}]
    log = [{"step": n, "valid_bits_per_byte": 2.5, "valid_sets": found} for n, found in enumerate(sets)]
    right = report.draw_loss(log, 0.5).axes[1]
    names = [text.get_text() for text in right.get_legend().get_texts()]
    assert names[:2] == ["validation", "one"] and names[3] == "floor: the source itself" and len(names) == 4
    assert names[2] == "t" * 20 + " ... " + "t" * 20
    lines = [(line.get_xydata().tolist(), line.get_linestyle()) for line in right.lines[1:3]]
    assert lines == [([[0, 3], [1, 2]], ":"), ([[1, 4]], ":")]


@pytest.mark.parametrize(
    "low, high, labels",
    [
        (1.0, 5.9, ["1", "2", "3", "4", "5"]),  # a linear grid reads best
        (1.0, 6.0, ["1", "1.5", "2", "3", "5"]),
        (1.0, 20.0, ["1", "1.5", "2", "3", "5", "7", "10", "15", "20"]),
        (1.0, 20.5, ["1", "2", "5", "10", "20"]),
        (1.0, 1000.0, ["1", "2", "5", "10", "20", "50", "100", "200", "500", "1000"]),
    ],
)
def test_the_labels_of_a_logarithmic_scale(low, high, labels):
    _, axes = plt.subplots()
    axes.plot([0, 1], [low, high])
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    with patch.object(axes, "set_yscale") as scale:  # it would choose other limits
        report._log_scale(axes)
    scale.assert_called_once_with("log")
    axes.figure.canvas.draw()
    shown = [
        tick.label1.get_text() for tick in axes.yaxis.get_major_ticks() if low * 0.999 <= tick.get_loc() <= high * 1.001
    ]
    assert shown == labels
    assert not len(axes.yaxis.get_minorticklocs())


def test_powers_of_ten_beyond_three_decades():
    _, axes = plt.subplots()
    axes.plot([0, 1], [1.0, 1001.0])
    axes.set_yscale("log")
    axes.set_ylim(1.0, 1001.0)
    report._log_scale(axes)
    axes.figure.canvas.draw()
    texts = [tick.label1.get_text() for tick in axes.yaxis.get_major_ticks()]
    assert any("mathdefault" in text for text in texts) and len(axes.yaxis.get_minorticklocs()) > 5
