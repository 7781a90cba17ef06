"""Test chapter 13: its checks accept right answers and reject wrong ones, and its stored results belong to it."""

import contextlib
import io
import json
import math
from concurrent.futures import as_completed

import numpy as np
import pytest
from chapters import ROOT, accepts, code_cells, rejects

from nanoeuler_lib.config import ModelConfig

NOTEBOOK = ("13_fast_on_a_cpu", "ROWS", "EXPRESSIONS", "mystery", "SMALL", "BATCH", "FEW", "MINI")


@pytest.fixture(scope="module")
def names():
    """Return what the notebook's cells tagged `setup` define: functions, checks, solutions, wrong answers."""
    defined = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in code_cells(NOTEBOOK[0]):
            if "setup" in (tags := cell.metadata.get("tags", ())) and "nbval-ignore-output" not in tags:
                exec(cell.source, defined)
            elif "setup" in tags:  # only its functions are needed, not its timings
                exec("\n\n".join(definitions(cell.source)), defined)
    return defined


def definitions(source: str) -> list[str]:
    """Return the functions of a cell that also times something."""
    blocks = source.split("\n\n\n")
    return [block for block in blocks if block.startswith("def ")]


# ---- Wrong answers to the gaps; the wrong answers to the exercises are in the notebook's solution cells.


def halves(gate_up):
    return np.split(gate_up, 2, axis=1)


def swiglu_allocates(hidden, sigmoid, gate_up):
    gate, up = halves(gate_up)
    sigmoid[...] = 1 / (1 + np.exp(-gate))
    hidden[...] = gate * sigmoid * up


def swiglu_loses_the_sigmoid(hidden, sigmoid, gate_up):
    gate, up = halves(gate_up)
    np.exp(np.negative(gate, out=sigmoid), out=sigmoid)
    sigmoid += 1
    np.divide(gate, sigmoid, out=sigmoid)
    np.multiply(sigmoid, up, out=hidden)


def swiglu_spoils_its_input(hidden, sigmoid, gate_up):
    gate, up = halves(gate_up)
    np.exp(np.negative(gate, out=sigmoid), out=sigmoid)
    sigmoid += 1
    np.reciprocal(sigmoid, out=sigmoid)
    gate *= sigmoid
    np.multiply(gate, up, out=hidden)


def swiglu_by_growing_exponential(hidden, sigmoid, gate_up):
    gate, up = halves(gate_up)
    np.exp(gate, out=hidden)
    np.add(hidden, 1, out=sigmoid)
    np.divide(hidden, sigmoid, out=sigmoid)  # infinity divided by infinity
    np.multiply(gate, sigmoid, out=hidden)
    hidden *= up


def lse_without_maximum(pieces):
    return np.log(sum(np.exp(piece).sum(axis=-1) for piece in pieces))


def lse_nan_after_minus_infinity(pieces):
    top, total = -np.inf, 0.0
    for piece in pieces:
        new = np.maximum(top, piece.max(axis=-1))
        total = total * np.exp(top - new) + np.exp(piece - new[:, None]).sum(axis=-1)
        top = new
    return top + np.log(total)


def lse_keeps_the_pieces(pieces):
    row = np.concatenate(list(pieces), axis=-1)  # may be the same buffer each time
    top = row.max(axis=-1)
    return top + np.log(np.exp(row - top[:, None]).sum(axis=-1))


def sum_as_they_end(pool, jobs, workers):
    def work(worker):
        return sum(job() for job in jobs[worker::workers])

    return sum(done.result() for done in as_completed([pool.submit(work, w) for w in range(workers)]))


def sum_with_all_threads(pool, jobs, workers):
    return sum(pool.map(lambda job: job(), jobs))


def sum_into_one_total(pool, jobs, workers):
    total = [0]

    def work(worker):
        for job in jobs[worker::workers]:
            total[0] = total[0] + job()

    list(pool.map(work, range(workers)))
    return total[0]


WRONG = {
    "swiglu": [swiglu_allocates, swiglu_loses_the_sigmoid, swiglu_spoils_its_input, swiglu_by_growing_exponential],
    "running_lse": [lse_without_maximum, lse_nan_after_minus_infinity, lse_keeps_the_pieces],
    "ordered_sum": [sum_as_they_end, sum_with_all_threads, sum_into_one_total],
}
test_wrong_gaps = rejects(
    {f"check_{name}": {wrong.__name__: wrong for wrong in answers} for name, answers in WRONG.items()},
    in_place=["check_swiglu"],
)


# ---- Other right answers


def sum_of_parts(pool, jobs, workers):
    return sum(pool.map(lambda w: sum(job() for job in jobs[w::workers]), range(min(workers, len(jobs)))))


def test_of_many_shapes(f):
    for N, V in ((1, 1), (4, 7), (3, 2), (2, 6)):
        x = np.random.default_rng(N).normal(size=(N, V)) * 3 + 800 * np.linspace(-1, 1, N)[:, None]
        kept, out = x.tolist(), np.full((N, V), 7.7)
        f(out, x)
        for row, found in zip(kept, out.tolist(), strict=True):
            e = [math.exp(a - max(row)) for a in row]
            if not all(abs(a / sum(e) - b) < 1e-9 for a, b in zip(e, found, strict=True)):
                return False
        if x.tolist() != kept:
            return False
    return True


test_of_many_shapes.__test__ = False
test_other_right_answers = accepts({"check_ordered_sum": [sum_of_parts], "check_test": [test_of_many_shapes]})


def test_the_counter_counts(names):
    """Count a product of known size, a sum in place, and a function that copies."""
    counted, a = names["Counted"], np.ones((3, 5), np.float32).view(names["Counted"])
    counted.calls = []
    out = np.empty((3, 4), np.float32).view(counted)
    np.matmul(a, np.ones((5, 4), np.float32), out=out)
    out += 1
    np.concatenate([a, a])
    assert counted.calls == [(2 * 3 * 5 * 4, 4 * (15 + 20 + 12)), (0, 4 * 24), (0, 2 * 4 * 30)]


def test_every_rung_has_the_same_gradient(names):
    truth = names["gradient"]()
    for rung, fast in names["RUNGS"].items():
        assert names["apart"](names["gradient"](*fast), truth) < 1e-10, rung
    assert set(names["RUNGS"]["AdamW in blocks"]) == set(names["NAMES"])


def test_stored_results_are_of_this_experiment(names):
    result = json.loads((ROOT / "data" / "results" / "ch13.json").read_text("utf-8"))
    assert ModelConfig.from_dict(result["config"]["model"]) == names["SMALL"]
    assert result["config"]["batch"] == names["BATCH"] and result["config"]["rounds"] >= 5
    ladder = [row for row in result["rows"] if row["kind"] == "ladder"]
    assert [row["name"] for row in ladder] == list(names["RUNGS"])
    assert all(len(row["ms"]) == result["config"]["rounds"] for row in ladder)


def test_the_steps_of_the_last_section_are_steps_of_the_frame(names, monkeypatch):
    """Check that plain functions and fast composites train the same model, and that the record belongs to the frame."""
    monkeypatch.setattr(names["frame"], "training_tokens", lambda: names["TEXT"])
    weights = []
    for version in ("plain", "cpu"):
        model, step = names["frame_run"](3, names["partial"](names["ops"].use, version))
        before = model.params.flat.copy()
        for _ in range(3):
            step()
        weights.append(model.params.flat)
        assert np.abs(weights[-1] - before).max() > 0.001
    assert np.abs(weights[0] - weights[1]).max() < 0.001
    stored = json.loads((ROOT / "data" / "results" / "ch13_frame.json").read_text("utf-8"))
    assert ModelConfig.from_dict(stored["config"]["model"]) == names["frame"].CONFIG
    assert stored["config"]["batch"] == names["frame"].ROWS
    assert [row["name"] for row in stored["rows"]] == list(names["frame_steps"]()) == ["plain", "fast"]
    assert all(len(row["ms"]) == stored["config"]["rounds"] >= 5 for row in stored["rows"])
