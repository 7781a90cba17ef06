"""Test the page of `nanoeuler compare`: which runs it takes, what it says about them, and what its figure shows."""

import json
import re
from dataclasses import replace

import matplotlib
import matplotlib.pyplot as plt
import pytest
from oracles import error_of

from nanoeuler_lib.training import compare

matplotlib.use("agg")


def made(folder, measure="valid_bits_per_byte", steps=3, planned=3, batch=2, loss=4.0, **data):
    """Write the log and the run.json of a run, with a validation after each step, and return its folder."""
    taken = {"rate": 0.1, "norm": 1.0, "seconds": 2.0, "tokens_per_second": 10 * batch}
    log = [{"step": n, "loss": loss - n / 4} | taken for n in range(1, steps + 1)]
    log += [{"step": n, measure: 2.0 - n / 8, "seconds": 0.5} for n in range(steps + 1)]
    train = {"steps": planned, "batch": batch, "accumulate": 1}
    head = {"version": "1", "machine": "m", "model": {"context": 8}, "train": train, "data": {"source": "t", **data}}
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(head))
    (folder / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in log))
    return folder


def cells(page):
    """Return the rows of a page's tables by their first cell."""
    rows = [re.findall("<t[hd]>(.*?)</t[hd]>", row) for row in re.findall("<tr>(.*?)</tr>", page)]
    return {name: row for name, *row in rows}


def lines(runs):
    figure = compare.draw(runs)
    found = [[line.get_xydata().tolist() for line in axes.lines] for axes in figure.axes]
    told = [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes], figure.legends[0].get_texts()
    plt.close(figure)
    return found, *told


def test_the_same_settings_and_an_unfinished_run(tmp_path):
    places = made(tmp_path / "a $x$" / "run"), made(tmp_path / "<b>" / "run", steps=2, valid_loss=7.0)
    runs = compare.compare(list(places), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "<h2>Settings that differ</h2>\n<p>None.</p>" in page and "<h2>Last samples" not in page
    assert "<b>" not in page and "http" not in page and "src=" in page, "escaped, and in one file"
    found = cells(page)
    assert found["steps"] == ["3 of 3", "2 of 3, unfinished"] and found["tokens"] == ["120", "80"]
    assert found["training loss (nats per token; mean of the last 50 steps)"] == ["3.5", "3.625"]
    assert found["validation loss at the end (bits per byte)"] == ["1.625", "1.75"]
    assert found["lowest validation loss (bits per byte)"] == ["1.625", "1.75"]
    assert (found["step of the lowest"], found["tokens per second (median)"]) == (["3", "2"], ["20", "20"])
    assert [found[f"time of {what} (s)"][0] for what in ("steps", "validation and samples")] == ["6.0", "2.0"]
    curves, labels, texts = lines(runs)
    assert curves[0][2:] == [[[1, 3.75], [2, 3.5]], [[1, 3.625], [2, 3.625]]]
    assert curves[1][0] == [[n, 2.0 - n / 8] for n in range(4)]
    assert labels == [("step", "training loss, nats per token"), ("step", "validation, bits per byte")]
    assert len(texts) == 2 and r"\$x\$" in texts[0].get_text()


def test_runs_of_different_kinds_batches_and_data(tmp_path):
    """Check that the axis shows tokens, that each unit has panels of its own, and the notes and samples."""
    one = made(tmp_path / "one", valid_fingerprint="x", rewards={"group": 4})
    two = made(tmp_path / "two", batch=4, valid_fingerprint="y", files={"text": "/PRIVATE/u.txt"})
    other = made(tmp_path / "other", "valid_missed", loss=-1.0)
    with open(one / "log.jsonl", "a") as log:
        log.write('{"step": 3, "sample": "\\n<i>\\u001b Käthe"}\n')
    runs = compare.compare([one, two, other], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    found = cells(page)
    assert found["batch"] == ["2", "4", "2"] and found["source"] == ["t", "u.txt", "t"] and "PRIVATE" not in page
    assert found["group"] == ["4", "–", "–"] and "context" not in found and "valid fingerprint" not in found
    assert "of different kinds" in page and page.count("The validation data of the runs in bits per byte") == 1
    assert "step 3</h3><pre>&lt;i&gt;\ufffd Käthe</pre>" in page and "two, step none</h3><pre></pre>" in page
    curves, labels, _ = lines(runs)
    assert [x for x, _ in curves[0][3]] == [80, 160, 240] and [x for x, _ in curves[1][0]] == [0, 40, 80, 120]
    assert [len(panel) for panel in curves] == [4, 2, 2, 1] and labels[3] == ("tokens", "validation, of the reward")
    old = replace(runs[0], steps=[{k: v for k, v in e.items() if k != "seconds"} for e in runs[0].steps])
    assert lines([old, runs[1]])[1][0][0] == "step", "without times, the number of tokens is unknown"


@pytest.mark.parametrize("names, told", [
    (["a"], "compare takes at least two runs, got 1"), (["a", "b", "a/../a"], "run must be given once, got it twice"),
    (["a", "none"], "none/log.jsonl: cannot be read"), (["a", "empty"], "empty: its log must have at least one step"),
])  # fmt: skip
def test_what_is_not_compared(tmp_path, names, told):
    for name, steps in (("a", 3), ("b", 3), ("empty", 0)):
        made(tmp_path / name, steps=steps)
    assert told in error_of(compare.compare, [tmp_path / name for name in names], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    (tmp_path / "page.html").touch()
    assert "already exists" in error_of(compare.compare, [tmp_path / "a", tmp_path / "b"], tmp_path / "page.html")
