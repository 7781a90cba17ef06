"""Chapter 24: its checks accept what is right and reject wrong answers, each of them named; what it measures runs."""

import pytest
from chapters import definitions, rejected, run_tagged, try_exercise

from nanoeuler_lib import cuda

NAME = "24_reductions"
pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module")
def chapter():
    return definitions(NAME, "xp", "UNWRITTEN", "ARGMAX")


# ---- The gaps: the book's kernel, and what is changed in it

SUM = {
    "the first warp alone": ("return warp_sum(lane < blockDim.x / 32 ? part[lane] : 0.0f)", "return part[0]"),
    "one element a thread": ("i += gridDim.x * blockDim.x", "i += n"),
    "blockDim for the whole grid": ("i += gridDim.x * blockDim.x", "i += blockDim.x"),
    "no barrier": ("__syncthreads();\n  return", "return"),
    "a barrier in a branch": ("__syncthreads();\n  return", "if (lane == 0) __syncthreads();\n  return"),
    "places that no warp has written": ("lane < blockDim.x / 32 ? part[lane] : 0.0f", "part[lane]"),
    "shuffles behind a mask": (
        "sum = block_sum(sum)",
        "if (blockIdx.x * blockDim.x + threadIdx.x < n) sum = block_sum(sum)",
    ),
    "four steps of the butterfly": ("distance = 16", "distance = 8"),
    "every thread writes its warp's sum": ("sum = block_sum(sum)", "sum = warp_sum(sum)"),
}
FORWARD = {
    "x read twice": ("= mine[k] * r", "= x[row + i] * r"),
    "the sum for the mean": ("block_sum(squares) / D", "block_sum(squares)"),
    "the mean over threads": ("block_sum(squares) / D", "block_sum(squares) / blockDim.x"),
    "eps outside the root": ("block_sum(squares) / D + eps)", "block_sum(squares) / D) + eps"),
    "no eps": (" / D + eps", " / D"),
    "no gain": (" * r * gain[i]", " * r"),
    "the root kept, not its inverse": ("rstd[blockIdx.x] = r", "rstd[blockIdx.x] = 1 / r"),
    "a warp's sum for the block's": ("block_sum(squares)", "warp_sum(squares)"),
    "one element a thread": ("#define KEEP 8", "#define KEEP 1"),
    "no mask": ("if (i < D) y[row + i] =", "y[row + i] ="),
}
BACKWARD = {
    "dx overwritten": ("= past[k] + r", "= r"),
    "no projection": (" - normed[k] * along", ""),
    "the sum for the mean": ("block_sum(along) / D", "block_sum(along)"),
    "no gain in dx": ("slope[k] *= g[k];", ""),
    "the gain in dgain": (
        "share[k] += slope[k] * normed[k];\n      slope[k] *= g[k];",
        "slope[k] *= g[k];\n      share[k] += slope[k] * normed[k];",
    ),
    "the share of the last row": ("share[k] += slope", "share[k] = slope"),
    "x for what was normed": ("x[row + i] * r", "x[row + i]"),
    "all shares in one row": ("dgain_part[(size_t)blockIdx.x * D + i]", "dgain_part[i]"),
    "one row a block": ("n += gridDim.x", "n += rows"),
    "rstd of another row": ("r = rstd[n]", "r = rstd[rows - 1 - n]"),
}
LSE = {
    "the old sum not rescaled": ("s = s * __expf(m - larger)", "s = s"),
    "the new sum not rescaled": ("s2 * __expf(m2 - larger)", "s2"),
    "no maximum": ("float larger = fmaxf(m, m2)", "float larger = 0"),
    "zero below all": ("(-3.4e38f)", "0.0f"),
    "infinity below all": ("(-3.4e38f)", "(-1.0f / 0.0f)"),
    "the maximum left out at the end": ("m + logf(s)", "logf(s)"),
    "four steps of the butterfly": ("distance = 16", "distance = 8"),
    "the first 32 logits": ("i < V; i += 32", "i < V && i < 32; i += 32"),
    "the maximum in a read of its own": (
        "float m = LOWEST, s = 0;",
        "float m = LOWEST, s = 0;\n  for (int i = threadIdx.x; i < V; i += 32) m = fmaxf(m, row[i]);",
    ),
}
GAPS = {  # check, stub, the book's kernel, its wrong variants
    "sum": ("check_sum", "my_sum", "sum_shuffle", SUM),
    "forward": ("check_forward", "my_rmsnorm_forward", "rmsnorm_forward", FORWARD),
    "backward": ("check_backward", "my_rmsnorm_backward", "rmsnorm_backward", BACKWARD),
    "lse": ("check_lse", "my_lse", "row_lse", LSE),
}


@pytest.mark.parametrize("check, stub, book, _", GAPS.values(), ids=GAPS)
def test_gap(chapter, check, stub, book, _):
    check = getattr(chapter, check)
    assert check(getattr(chapter, stub)) == "not written yet"
    assert check(getattr(chapter, book)) == "right"


@pytest.mark.parametrize(
    "gap, mistake", [(gap, mistake) for gap, (*_, wrong) in GAPS.items() for mistake in wrong]
)
def test_wrong_answer_to_a_gap_is_rejected(chapter, gap, mistake):
    check, _, book, wrong = GAPS[gap]
    text, name = getattr(chapter, book).module.source, getattr(chapter, book).name
    assert text.count(wrong[mistake][0]) >= 1
    assert rejected(getattr(chapter, check), cuda.module(text.replace(*wrong[mistake]))[name])


def test_a_tree_is_not_the_answer_to_the_gap_on_shuffles(chapter):
    assert rejected(chapter.check_sum, chapter.sum_tree)


def test_a_kernel_that_reads_twice_is_not_the_answer_to_the_gap_on_registers(chapter):
    assert rejected(chapter.check_forward, chapter.rmsnorm_two_reads)


# ---- The exercises: check, stub, solution, and the wrong answers that the notebook itself names

EXERCISES = {
    "predict": lambda c: (c.check_predictions, c.my_predictions, c.predictions, c.wrong_predictions),
    "argmax": lambda c: (c.check_argmax, c.my_argmax, c.argmax_with("", ""), c.wrong_argmax),
    "diagnose": lambda c: (c.check_rows, c.my_rows, c.rows_that_tell, c.wrong_rows),
    "spread": lambda c: (c.check_spread, c.my_spread, c.spread, c.wrong_spreads),
}


@pytest.mark.parametrize("parts", EXERCISES.values(), ids=EXERCISES)
def test_exercise_check(chapter, parts):
    try_exercise(*parts(chapter))


# ---- What the script measures


def test_the_script_measures_every_version():
    names = run_tagged(NAME, "experiment")
    sums = names["measure_sums"](n=5000, launches=1, runs=2)
    layers = names["measure_layers"](rows=3, D=100, V=70, blocks=(32, 64), launches=1)
    assert len(sums) == 7 and len(layers) == 4
    assert all(
        row["ms"] > 0 and row["share_of_copy"] >= 0 for row in sums + layers
    )  # rounded: 0 where all is busy
    assert all(row["results"] == 1 for row in sums if "atomic" not in row["version"])
