"""Chapter 13: its checks accept the right answer and reject wrong ones by name; its stored results are its own."""

import contextlib
import io
import json
from concurrent.futures import as_completed

import numpy as np
import pytest
from chapters import ROOT, code_cells

CELLS = code_cells("13_fast_on_a_cpu")
ANSWERS = {  # right answer to each check
    "swiglu": "swiglu", "running_lse": "running_lse", "ordered_sum": "ordered_sum",
    "views": "views", "rows": "rows_wanted", "test": "buffer_test",
}  # fmt: skip
EXERCISES = {"views": "wrong_views", "rows": "wrong_rows", "test": "wrong_tests"}


@pytest.fixture(scope="module")
def names():
    """What the notebook's cells tagged `setup` define: functions, checks, solutions, wrong answers."""
    defined = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in CELLS:
            if "setup" in (tags := cell.metadata.get("tags", ())) and "nbval-ignore-output" not in tags:
                exec(cell.source, defined)
            elif "setup" in tags:  # its timings are of no use here, its functions are
                exec("\n\n".join(definitions(cell.source)), defined)
    return defined


def definitions(source: str) -> list[str]:
    """The functions of a cell that also times something."""
    blocks = source.split("\n\n\n")
    return [block for block in blocks if block.startswith("def ")]


# ---- Wrong answers to the gaps; those to the exercises stand in the notebook's solution cells.


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
    np.divide(hidden, sigmoid, out=sigmoid)  # infinity over infinity
    np.multiply(gate, sigmoid, out=hidden)
    hidden *= up


def swiglu_gates_the_wrong_half(hidden, sigmoid, gate_up):
    up, gate = halves(gate_up)
    np.exp(np.negative(gate, out=sigmoid), out=sigmoid)
    sigmoid += 1
    np.reciprocal(sigmoid, out=sigmoid)
    np.multiply(gate, sigmoid, out=hidden)
    hidden *= up


def lse_without_maximum(pieces):
    return np.log(sum(np.exp(piece).sum(axis=-1) for piece in pieces))


def lse_with_the_first_maximum(pieces):
    top, total = None, 0.0
    for piece in pieces:
        top = piece.max(axis=-1) if top is None else top
        total = total + np.exp(piece - top[:, None]).sum(axis=-1)
    return top + np.log(total)


def lse_not_mended(pieces):
    top, total = -np.inf, 0.0
    for piece in pieces:
        top = np.maximum(top, piece.max(axis=-1))
        total = total + np.exp(piece - np.where(np.isfinite(top), top, 0)[:, None]).sum(axis=-1)
    return top + np.log(total)


def lse_nan_after_minus_infinity(pieces):
    top, total = -np.inf, 0.0
    for piece in pieces:
        new = np.maximum(top, piece.max(axis=-1))
        total = total * np.exp(top - new) + np.exp(piece - new[:, None]).sum(axis=-1)
        top = new
    return top + np.log(total)


def lse_keeps_the_pieces(pieces):
    row = np.concatenate(list(pieces), axis=-1)  # one buffer, many times
    top = row.max(axis=-1)
    return top + np.log(np.exp(row - top[:, None]).sum(axis=-1))


def in_groups(jobs, workers):
    def work(worker):
        total = 0
        for job in jobs[worker::workers]:
            total = total + job()
        return total

    return work


def sum_as_they_end(pool, jobs, workers):
    work = in_groups(jobs, workers)
    return sum(done.result() for done in as_completed([pool.submit(work, w) for w in range(workers)]))


def sum_in_turn(pool, jobs, workers):
    return sum(job() for job in jobs)


def sum_of_first_jobs(pool, jobs, workers):
    return sum(pool.map(lambda job: job(), jobs[:workers]))


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
    "swiglu": [
        swiglu_allocates, swiglu_loses_the_sigmoid, swiglu_spoils_its_input, swiglu_by_growing_exponential,
        swiglu_gates_the_wrong_half,
    ],
    "running_lse": [
        lse_without_maximum, lse_with_the_first_maximum, lse_not_mended, lse_nan_after_minus_infinity,
        lse_keeps_the_pieces,
    ],
    "ordered_sum": [
        sum_as_they_end, sum_in_turn, sum_of_first_jobs, sum_with_all_threads, sum_into_one_total,
    ],
}  # fmt: skip


@pytest.mark.parametrize("gap", ANSWERS)
def test_untouched_gap_is_not_an_error(names, gap):
    assert names[f"check_{gap}"](names[f"my_{gap}"]) == "not written yet"


@pytest.mark.parametrize("check", ANSWERS)
def test_check_accepts_the_right_answer(names, check):
    assert names[f"check_{check}"](names[ANSWERS[check]]) == "right"


@pytest.mark.parametrize(
    ("gap", "wrong"),
    [(gap, wrong) for gap in WRONG for wrong in WRONG[gap]],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_check_rejects_wrong_answers_to_the_gaps(names, gap, wrong):
    with np.errstate(all="ignore"), pytest.raises(AssertionError):
        names[f"check_{gap}"](wrong)
        pytest.fail(f"the check accepts {wrong.__name__}", pytrace=False)


@pytest.mark.parametrize("check", EXERCISES)
def test_check_rejects_every_wrong_answer(names, check):
    assert len(names[EXERCISES[check]]) >= 3
    for name, wrong in names[EXERCISES[check]].items():
        with pytest.raises(AssertionError):
            names[f"check_{check}"](wrong)
            pytest.fail(f"the check accepts {name}", pytrace=False)


def test_the_counter_counts(names):
    """A product of known size, a sum in place, and a function that copies."""
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
        assert names["apart"](names["gradient"](*fast), truth) < 1e-12, rung
    assert set(names["RUNGS"]["AdamW in blocks"]) == set(names["NAMES"])


def test_stored_results_are_of_this_experiment(names):
    result = json.loads((ROOT / "data" / "results" / "ch13.json").read_text("utf-8"))
    assert result["config"]["model"] == names["SMALL"].to_dict()
    assert result["config"]["batch"] == names["BATCH"] and result["config"]["rounds"] >= 5
    ladder = [row for row in result["rows"] if row["kind"] == "ladder"]
    assert [row["name"] for row in ladder] == list(names["RUNGS"])
    assert all(len(row["ms"]) == result["config"]["rounds"] for row in ladder)
