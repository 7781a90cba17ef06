"""Chapter 13: its checks accept the right answer and reject wrong ones by name; its stored results are its own."""

import contextlib
import io
import json
import math
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np
import pytest
from chapters import ROOT, accepts, code_cells, rejects

from nanoeuler_lib.config import ModelConfig

NOTEBOOK = ("13_fast_on_a_cpu", "ROWS", "EXPRESSIONS", "mystery", "SMALL", "BATCH", "FEW", "MINI")


@pytest.fixture(scope="module")
def names():
    """What the notebook's cells tagged `setup` define: functions, checks, solutions, wrong answers."""
    defined = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in code_cells(NOTEBOOK[0]):
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


def swiglu_with_temporaries_of_an_eighth(hidden, sigmoid, gate_up):
    step = max(1, len(hidden) // 8)
    for start in range(0, len(hidden), step):
        rows = slice(start, start + step)
        gate, up = halves(gate_up[rows])
        sigmoid[rows] = 1 / (1 + np.exp(-gate))
        hidden[rows] = gate * sigmoid[rows] * up


def swiglu_in_float32(hidden, sigmoid, gate_up):
    for i in range(len(hidden)):
        gate, up = halves(gate_up[i : i + 1].astype(np.float32))
        sigmoid[i] = (1 / (1 + np.exp(-gate)))[0]
        hidden[i] = (gate * sigmoid[i] * up)[0]


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


def lse_keeps_copies(pieces):
    row = np.concatenate([piece.copy() for piece in pieces], axis=-1)
    top = row.max(axis=-1)
    shift = np.where(np.isfinite(top), top, 0)
    return top + np.log(np.exp(row - shift[:, None]).sum(axis=-1))


def lse_nan_for_a_masked_row(pieces):
    top, total = np.float64(-np.inf), 0.0
    for piece in pieces:
        new = np.maximum(top, piece.max(axis=-1))
        total = np.nan_to_num(total * np.exp(top - new)) + np.exp(piece - new[:, None]).sum(axis=-1)
        top = new
    return top + np.log(total)


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


def sum_in_job_order(pool, jobs, workers):
    """By a pool of its own, in the order of the jobs: the same bits for any number of workers."""
    with ThreadPoolExecutor(workers) as own:
        return sum(own.map(lambda job: job(), jobs))


def sum_in_job_order_by_the_pool(pool, jobs, workers):
    parts = [None] * len(jobs)

    def work(worker):
        for i in range(worker, len(jobs), workers):
            parts[i] = jobs[i]()

    list(pool.map(work, range(workers)))
    return sum(parts)


def sum_of_workers_backwards(pool, jobs, workers):
    return sum(reversed(list(pool.map(in_groups(jobs, workers), range(workers)))))


WRONG = {
    "swiglu": [
        swiglu_allocates, swiglu_loses_the_sigmoid, swiglu_spoils_its_input, swiglu_by_growing_exponential,
        swiglu_gates_the_wrong_half, swiglu_with_temporaries_of_an_eighth, swiglu_in_float32,
    ],
    "running_lse": [
        lse_without_maximum, lse_with_the_first_maximum, lse_not_mended, lse_nan_after_minus_infinity,
        lse_keeps_the_pieces, lse_keeps_copies, lse_nan_for_a_masked_row,
    ],
    "ordered_sum": [
        sum_as_they_end, sum_in_turn, sum_of_first_jobs, sum_with_all_threads, sum_into_one_total,
        sum_in_job_order, sum_in_job_order_by_the_pool, sum_of_workers_backwards,
    ],
}  # fmt: skip
test_wrong_gaps = rejects(
    {f"check_{name}": {wrong.__name__: wrong for wrong in answers} for name, answers in WRONG.items()}
)


# ---- Other right answers


def swiglu_by_rows(hidden, sigmoid, gate_up):
    """Row by row, with small temporaries."""
    F = hidden.shape[1]
    for h, s, row in zip(hidden, sigmoid, gate_up, strict=True):
        s[...] = 1 / (1 + np.exp(-row[:F]))
        h[...] = row[:F] * s * row[F:]


def swiglu_by_tanh(hidden, sigmoid, gate_up):
    """(1 + tanh(g / 2)) / 2 where it is exact enough; e^g far below zero, where tanh is -1."""
    F = hidden.shape[1]
    for start in range(0, len(hidden), 50):
        rows = slice(start, start + 50)
        gate, s = gate_up[rows, :F], sigmoid[rows]
        np.exp(-np.abs(gate), out=s)
        s[...] = np.where(gate < 0, s, 1) / (1 + s)
        np.multiply(gate, s, out=hidden[rows])
        hidden[rows] *= gate_up[rows, F:]


def lse_by_logaddexp(pieces):
    total = -np.inf
    for piece in pieces:
        total = np.logaddexp(total, np.logaddexp.reduce(piece, axis=-1))
    return total


def lse_number_by_number(pieces):
    rows = None
    for piece in pieces:
        rows = rows or [[-math.inf, 0.0] for _ in piece]
        for state, numbers in zip(rows, piece.tolist(), strict=True):
            for x in numbers:
                if x > state[0]:
                    state[:] = x, state[1] * math.exp(state[0] - x) + 1
                elif x > -math.inf:
                    state[1] += math.exp(x - state[0])
    return np.array([top + math.log(total) if total else -math.inf for top, total in rows])


def sum_by_futures(pool, jobs, workers):
    def work(mine):
        first, *rest = [job() for job in mine]
        for part in rest:
            first = first + part
        return first

    groups = [jobs[w::workers] for w in range(workers)]
    total, *others = [done.result() for done in [pool.submit(work, g) for g in groups if g]]
    for other in others:
        total = total + other
    return total


def sum_in_place(pool, jobs, workers):
    def work(w):
        total = None
        for i in range(w, len(jobs), workers):
            if total is None:
                total = jobs[i]()
            else:
                total += jobs[i]()
        return total

    parts = [part for part in pool.map(work, range(min(workers, len(jobs))))]
    for part in parts[1:]:
        parts[0] += part
    return parts[0]


def rows_by_search(I, O, balance):
    enough = lambda N: 2 * N * I * O >= 4 * balance * (N * (I + O) + I * O)
    N = 1
    while not enough(N):
        if N > 10**9:
            return math.inf
        N *= 2
    low = N // 2
    while N - low > 1:
        middle = (N + low) // 2
        N, low = (middle, low) if enough(middle) else (N, middle)
    return N


def rows_by_reciprocals(I, O, balance):
    free = 1 / (2 * balance) - 1 / I - 1 / O  # 1/N <= free
    return math.ceil(1 / free - 1e-9) if free > 1e-12 else math.inf


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


def test_by_log(f):
    rng = np.random.default_rng(8)
    for _ in range(3):
        x = rng.normal(size=(4, 5)) + [[0], [1000], [-1000], [3]]
        kept, out = x.copy(), rng.normal(size=(4, 5))
        f(out, x)
        lse = np.logaddexp.reduce(kept, axis=1, keepdims=True)
        if not (np.abs(np.log(out) - (kept - lse)) < 1e-6).all() or (x != kept).any():
            return False
    return True


test_of_many_shapes.__test__ = test_by_log.__test__ = False
OTHERS = {
    "swiglu": [swiglu_by_rows, swiglu_by_tanh],
    "running_lse": [lse_by_logaddexp, lse_number_by_number],
    "ordered_sum": [sum_by_futures, sum_in_place],
    "rows": [rows_by_search, rows_by_reciprocals],
    "test": [test_of_many_shapes, test_by_log],
}
test_other_right_answers = accepts(
    {f"check_{name}": answers for name, answers in OTHERS.items()}, in_place=["check_swiglu"]
)


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
        assert names["apart"](names["gradient"](*fast), truth) < 1e-10, rung
    assert set(names["RUNGS"]["AdamW in blocks"]) == set(names["NAMES"])


def test_stored_results_are_of_this_experiment(names):
    result = json.loads((ROOT / "data" / "results" / "ch13.json").read_text("utf-8"))
    assert ModelConfig.from_dict(result["config"]["model"]) == names["SMALL"]
    assert result["config"]["batch"] == names["BATCH"] and result["config"]["rounds"] >= 5
    ladder = [row for row in result["rows"] if row["kind"] == "ladder"]
    assert [row["name"] for row in ladder] == list(names["RUNGS"])
    assert all(len(row["ms"]) == result["config"]["rounds"] for row in ladder)
