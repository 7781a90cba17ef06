"""Chapter 24: its checks accept what is right and reject wrong answers, each of them named; what it measures runs."""

import pytest
from chapters import rejected, rewritten_tests, run_tagged

from nanoeuler_book.checks import verdict
from nanoeuler_lib import cuda

NOTEBOOK = ("24_reductions", "xp", "UNWRITTEN")
pytestmark = pytest.mark.compiler


# ---- The gaps: the book's kernel, and what is changed in it

SUM = {
    "only the first warp": ("return warp_sum(lane < blockDim.x / 32 ? part[lane] : 0.0f)", "return part[0]"),
    "a barrier in a branch": ("__syncthreads();\n  return", "if (lane == 0) __syncthreads();\n  return"),
    "shuffles only in lanes with data": (
        "sum = block_sum(sum)",
        "if (blockIdx.x * blockDim.x + threadIdx.x < n) sum = block_sum(sum)",
    ),
}
FORWARD = {
    "x read twice": ("= mine[k] * r", "= x[row + i] * r"),
    "eps outside the root": ("block_sum(squares) / D + eps)", "block_sum(squares) / D) + eps"),
    "a warp's sum for the block's": ("block_sum(squares)", "warp_sum(squares)"),
    "no mask": ("if (i < D) y[row + i] =", "y[row + i] ="),
}
BACKWARD = {
    "dx overwritten": ("= past[k] + r", "= r"),
    "no projection": (" - normed[k] * along", ""),
    "the gain in dgain": (
        "share[k] += slope[k] * normed[k];\n      slope[k] *= g[k];",
        "slope[k] *= g[k];\n      share[k] += slope[k] * normed[k];",
    ),
    "all shares in one row": ("dgain_part[(size_t)blockIdx.x * D + i]", "dgain_part[i]"),
}
LSE = {
    "the old sum not rescaled": ("s = s * __expf(m - larger)", "s = s"),
    "no maximum": ("float larger = fmaxf(m, m2)", "float larger = 0"),
    "zero below all": ("(-3.4e38f)", "0.0f"),
    "infinity below all": ("(-3.4e38f)", "(-1.0f / 0.0f)"),
    "the maximum in a read of its own": (
        "float m = LOWEST, s = 0;",
        "float m = LOWEST, s = 0;\n  for (int i = threadIdx.x; i < V; i += 32) m = fmaxf(m, row[i]);",
    ),
}
_, test_wrong_gaps = rewritten_tests(
    {
        "check_sum": ("sum_shuffle", {}, SUM),
        "check_forward": ("rmsnorm_forward", {}, FORWARD),
        "check_backward": ("rmsnorm_backward", {}, BACKWARD),
        "check_lse": ("row_lse", {}, LSE),
    }
)


def test_a_tree_is_not_the_answer_to_the_gap_on_shuffles(chapter):
    assert rejected(chapter.check_sum, chapter.sum_tree)


ONE = "if (threadIdx.x) return;"
RIGHT_IN_THE_WRONG_WAY = {  # the order that timing decides, and one thread for all
    "atomics": (
        "sum",
        "float* x, float* part, int n",
        "if (threadIdx.x == 0) part[blockIdx.x] = 0; __syncthreads();"
        "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)"
        "  atomicAdd(&part[blockIdx.x], x[i]);",
        "atomic operations come in an order",
    ),
    "one thread": (
        "sum",
        "float* x, float* part, int n",
        f"{ONE} float v = 0; for (int i = blockIdx.x * blockDim.x; i < n; i += gridDim.x * blockDim.x)"
        "  for (int k = i; k < i + blockDim.x && k < n; k++) v += x[k]; part[blockIdx.x] = v;",
        "1 of 1024 threads read x",
    ),
    "one lane": (
        "lse",
        "float* u, float* lse, int V",
        f"{ONE} float m = -3.4e38f, s = 0; for (int i = 0; i < V; i++) {{"
        "  float v = u[(size_t)blockIdx.x * V + i], larger = fmaxf(m, v);"
        "  s = s * expf(m - larger) + expf(v - larger), m = larger; } lse[blockIdx.x] = m + logf(s);",
        "1 of 32 threads read u",
    ),
}


@pytest.mark.parametrize("gap, names, body, said", RIGHT_IN_THE_WRONG_WAY.values(), ids=RIGHT_IN_THE_WRONG_WAY)
def test_a_kernel_that_is_right_in_the_wrong_way_is_told(chapter, gap, names, body, said):
    kernel = cuda.module(f'extern "C" __global__ void mine(const {names}) {{ {body} }}')["mine"]
    assert said in verdict(getattr(chapter, f"check_{gap}"), kernel)


def test_a_norm_by_way_of_y_is_right(chapter):
    in_y = """
    #include <reduce.cuh>
    extern "C" __global__ void norm(const float* x, const float* gain, float* y, float* rstd, int D, float eps) {
      x += (size_t)blockIdx.x * D, y += (size_t)blockIdx.x * D;
      float squares = 0;
      for (int i = threadIdx.x; i < D; i += blockDim.x) { float v = x[i]; y[i] = v; squares += v * v; }
      float s = 1.0f / sqrtf(block_sum(squares) / D + eps);
      for (int i = threadIdx.x; i < D; i += blockDim.x) y[i] *= s * gain[i];
      if (threadIdx.x == 0) rstd[blockIdx.x] = s;
    }"""
    assert verdict(chapter.check_forward, cuda.module(in_y)["norm"]) == "right"


def test_a_kernel_that_reads_twice_is_not_the_answer_to_the_gap_on_registers(chapter):
    assert rejected(chapter.check_forward, chapter.rmsnorm_two_reads)


# ---- What the script measures


def test_the_script_measures_every_version():
    names = run_tagged(NOTEBOOK[0], "experiment")
    sums = names["measure_sums"](n=5000, launches=1, runs=2, rounds=3)
    layers = names["measure_layers"](rows=3, D=100, V=70, blocks=(32, 64), launches=1, rounds=3)
    assert len(sums) == 7 and len(layers) == 4
    assert all(row["share_min"] <= row["share_of_copy"] <= row["share_max"] for row in sums + layers)
    assert all(row["ms"] > 0 and row["share_of_copy"] >= 0 for row in sums + layers)  # rounded: 0 where all is busy
    assert all(row["results"] == 1 for row in sums if "atomic" not in row["version"])
