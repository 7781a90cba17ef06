"""Chapter 24: its checks accept what is right and reject wrong answers, each of them named; what it measures runs."""

import pytest
from chapters import rejected, rewritten_tests, run_tagged

from nanoeuler_book.checks import verdict
from nanoeuler_lib import cuda

NOTEBOOK = ("24_reductions", "xp", "UNWRITTEN")
pytestmark = pytest.mark.compiler


# ---- The gaps: the book's kernel, and what is changed in it

SUM = {
    "the first warp alone": ("return warp_sum(lane < blockDim.x / 32 ? part[lane] : 0.0f)", "return part[0]"),
    "no barrier": ("__syncthreads();\n  return", "return"),
    "a barrier in a branch": ("__syncthreads();\n  return", "if (lane == 0) __syncthreads();\n  return"),
    "places that no warp has written": ("lane < blockDim.x / 32 ? part[lane] : 0.0f", "part[lane]"),
    "shuffles behind a mask": (
        "sum = block_sum(sum)",
        "if (blockIdx.x * blockDim.x + threadIdx.x < n) sum = block_sum(sum)",
    ),
    "every thread writes its warp's sum": ("sum = block_sum(sum)", "sum = warp_sum(sum)"),
}
FORWARD = {
    "x read twice": ("= mine[k] * r", "= x[row + i] * r"),
    "the sum for the mean": ("block_sum(squares) / D", "block_sum(squares)"),
    "eps outside the root": ("block_sum(squares) / D + eps)", "block_sum(squares) / D) + eps"),
    "the root kept, not its inverse": ("rstd[blockIdx.x] = r", "rstd[blockIdx.x] = 1 / r"),
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
    "the share of the last row": ("share[k] += slope", "share[k] = slope"),
    "x for what was normed": ("x[row + i] * r", "x[row + i]"),
    "all shares in one row": ("dgain_part[(size_t)blockIdx.x * D + i]", "dgain_part[i]"),
}
LSE = {
    "the old sum not rescaled": ("s = s * __expf(m - larger)", "s = s"),
    "no maximum": ("float larger = fmaxf(m, m2)", "float larger = 0"),
    "zero below all": ("(-3.4e38f)", "0.0f"),
    "infinity below all": ("(-3.4e38f)", "(-1.0f / 0.0f)"),
    "the maximum left out at the end": ("m + logf(s)", "logf(s)"),
    "the first 32 logits": ("i < V; i += 32", "i < V && i < 32; i += 32"),
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


SHARE = "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)"
SUMS = {  # the order that timing decides, and one thread for all
    "atomics on the result": (
        f"if (threadIdx.x == 0) part[blockIdx.x] = 0; __syncthreads(); {SHARE} atomicAdd(&part[blockIdx.x], x[i]);",
        "atomic operations come in an order",
    ),
    "atomics on a shared number": (
        "__shared__ float all; if (threadIdx.x == 0) all = 0; __syncthreads(); float v = 0;"
        f"{SHARE} v += x[i]; atomicAdd(&all, v); __syncthreads(); if (threadIdx.x == 0) part[blockIdx.x] = all;",
        "atomic operations come in an order",
    ),
    "one thread": (
        "if (threadIdx.x) return; float v = 0; for (int i = blockIdx.x * blockDim.x; i < n; "
        "i += gridDim.x * blockDim.x) for (int k = i; k < i + blockDim.x && k < n; k++) v += x[k];"
        "part[blockIdx.x] = v;",
        "1 of 1024 threads",
    ),
}


@pytest.mark.parametrize("body, said", SUMS.values(), ids=SUMS)
def test_a_sum_that_is_right_in_the_wrong_way_is_told(chapter, body, said):
    text = f'extern "C" __global__ void sums(const float* x, float* part, int n) {{ {body} }}'
    assert said in verdict(chapter.check_sum, cuda.module(text)["sums"])


ALONE = {
    "lse": """extern "C" __global__ void alone(const float* u, float* lse, int V) {
      if (threadIdx.x) return;
      float m = -3.4e38f, s = 0;
      for (int i = 0; i < V; i++) {
        float v = u[(size_t)blockIdx.x * V + i], larger = fmaxf(m, v);
        s = s * expf(m - larger) + expf(v - larger), m = larger;
      }
      lse[blockIdx.x] = m + logf(s);
    }""",
    "argmax": """extern "C" __global__ void alone(const float* x, int* index, int n) {
      if (threadIdx.x) return;
      int at = 0;
      for (int i = 1; i < n; i++) if (x[(size_t)blockIdx.x * n + i] > x[(size_t)blockIdx.x * n + at]) at = i;
      index[blockIdx.x] = at;
    }""",
}


@pytest.mark.parametrize("name", ALONE)
def test_one_lane_that_does_all_is_told(chapter, name):
    said = verdict(getattr(chapter, f"check_{name}"), cuda.module(ALONE[name])["alone"])
    assert "1 of 32 threads read" in said


def test_other_right_answers_to_the_gaps(chapter):
    """Sums by shuffles down and lane 0; loops that are not unrolled; a butterfly from the smallest distance up."""
    down = """
    extern "C" __global__ void sums(const float* x, float* part, int n) {
      __shared__ float warps[32];
      float v = 0;
      for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
      for (int d = 1; d < 32; d *= 2) v += __shfl_down_sync(0xffffffffu, v, d);
      if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
      __syncthreads();
      if (threadIdx.x > 0) return;
      float sum = 0;
      for (int w = 0; w < blockDim.x / 32; w++) sum += warps[w];
      part[blockIdx.x] = sum;
    }"""
    assert verdict(chapter.check_sum, cuda.module(down)["sums"]) == "right"
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
    rows = """
    #include <reduce.cuh>
    extern "C" __global__ void back(const float* dy, const float* x, const float* gain, const float* rstd, float* dx,
                                    float* dgain_part, int rows, int D) {
      for (int i = threadIdx.x; i < D; i += blockDim.x) dgain_part[(size_t)blockIdx.x * D + i] = 0;
      for (int n = blockIdx.x; n < rows; n += gridDim.x) {
        size_t row = (size_t)n * D;
        float s = rstd[n], along = 0;
        for (int i = threadIdx.x; i < D; i += blockDim.x) along += dy[row + i] * gain[i] * x[row + i];
        along = block_sum(along);
        for (int i = threadIdx.x; i < D; i += blockDim.x) {
          dx[row + i] += s * dy[row + i] * gain[i] - s * s * s * x[row + i] * along / D;
          dgain_part[(size_t)blockIdx.x * D + i] += dy[row + i] * x[row + i] * s;
        }
      }
    }"""
    assert verdict(chapter.check_backward, cuda.module(rows)["back"]) == "right"
    upwards = chapter.row_lse.module.source.replace(
        "int distance = 16; distance > 0; distance /= 2", "int distance = 1; distance < 32; distance *= 2"
    )
    assert verdict(chapter.check_lse, cuda.module(upwards)["row_lse"]) == "right"


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
