# ruff: noqa: E501 -- a row of a table stays on its line
"""Chapter 24: its checks accept what is right and reject wrong answers, each of them named; what it measures runs."""

import math

import numpy as np
import pytest
from chapters import rejected, rewritten_tests, run_tagged

from nanoeuler_book.checks import verdict
from nanoeuler_lib import cuda
from tools.release.chapter_mutants import Gap, Value

NOTEBOOK = ("24_reductions", "xp", "UNWRITTEN")
pytestmark = pytest.mark.compiler


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


# ---- What `make mutants CH=24` changes, and the inputs that the contracts allow


def launched(kernel, *passed):
    """What a kernel leaves in the arrays that it is given, or that the checker finds something."""

    def behaviour(c, given):
        try:
            return tuple(c.run(getattr(c, kernel), *passed[0](c, given)))
        except AssertionError:
            return "a finding"

    return behaviour


def any_sum(rng):
    """Whole numbers, whose float32 sum is exact in every order; grid and block."""
    x = rng.integers(-50, 51, rng.integers(1, 400)).astype(np.float32)
    return x, int(rng.integers(1, 5)), 32 * int(rng.integers(1, 33 if rng.random() < 0.1 else 9))


def any_rows(rng, rows=None, block=None, D=None):
    """rows of x, gain, dy, dx, eps; block and grid."""
    block = block or 32 * int(rng.integers(1, 17 if rng.random() < 0.1 else 5))
    rows, D = rows or int(rng.integers(1, 6)), D or int(rng.integers(1, 8 * min(block, 64) + 1))
    x, dy, past = (rng.normal(0, rng.choice([0.1, 1, 30]), (rows, D)).astype(np.float32) for _ in range(3))
    return (
        x,
        rng.normal(size=D).astype(np.float32),
        dy,
        past,
        float(rng.choice([1e-5, 1.0])),
        block,
        int(rng.integers(1, 5)),
    )


def forward_args(c, given):
    x, gain, *_, eps, block, _ = given
    return len(x), block, x, gain, c.empty(*x.shape), c.empty(len(x)), x.shape[1], eps


def backward_args(c, given):
    x, gain, dy, past, eps, block, grid = given
    rstd = (((x.astype(float) ** 2).mean(axis=1) + eps) ** -0.5).astype(np.float32)
    return grid, block, dy, x, gain, rstd, past, c.empty(grid, x.shape[1]), *x.shape


def any_logits(rng, V=None):
    return rng.normal(rng.integers(-500, 501), rng.choice([0.1, 3, 100]), (2, V or int(rng.integers(1, 200)))).astype(
        np.float32
    )


def any_scores(rng, n=None):
    """With ties, and now and then all near the lowest float32."""
    x = rng.integers(-9, rng.choice([-8, 0, 10]), (2, n or int(rng.integers(1, 150)))).astype(np.float32)
    return x * np.float32(rng.choice([1.0, 1e3, 3.5e37]))


def some_numbers(rng):
    return (rng.random(int(rng.integers(200, 400))) * rng.choice([1e-3, 1.0, 40.0])).astype(np.float32)


def width(c, x):
    """Whether the width is that of the hump, as far as 300 orders tell."""
    found, totals = c.spread(x), np.zeros(2000, np.float32)
    rng = np.random.default_rng(1)
    for column in rng.permuted(np.tile(x, (2000, 1)), axis=1).T:
        totals += column
    wanted = totals.astype(float).std() / np.spacing(np.float32(math.fsum(x.tolist())))
    return bool(0.78 < found / wanted < 1.28)


def predicted(c, answer):
    """By the theorem, and by hand."""
    try:
        lanes, down, found = ({*answer["lanes"]}, {*answer["down"]}, [bool(f) for f in answer["found"]])
        return lanes == {5, 13, 21, 29} and down == {0} and found == [False, True]
    except (KeyError, TypeError):
        return False


def tells(c, rows):
    """The broken merge in Python: lane 0's result for each of two rows of the same 64 numbers."""
    try:
        good, bad = (np.asarray(row, float) for row in rows)
    except (TypeError, ValueError):
        return False

    def broken(u):
        pairs = []
        for lane in range(32):
            m, s = -3.4e38, 0.0
            for v in (u[lane], u[lane + 32]):
                m, s = max(m, v), s + math.exp(v - max(m, v))
            pairs.append((m, s))
        for d in (16, 8, 4, 2, 1):
            pairs = [
                (
                    max(m, pairs[l ^ d][0]),
                    s + pairs[l ^ d][1] * math.exp(pairs[l ^ d][0] - max(m, pairs[l ^ d][0])),
                )
                for l, (m, s) in enumerate(pairs)
            ]
        return pairs[0][0] + math.log(pairs[0][1])

    if good.shape != (64,) or len(set(good)) < 64 or sorted(good) != sorted(bad):
        return False
    right = good.max() + math.log(np.exp(good - good.max()).sum())
    return abs(broken(good) - right) < 1e-3 < 0.1 < abs(broken(bad) - right)


EDGE = np.random.default_rng(0)
DOMAINS = [
    Gap("check_sum", ("sum_shuffle",), lambda c: verdict(c.check_sum, c.sum_shuffle),
        launched("sum_shuffle", lambda c, g: (g[1], g[2], g[0], c.empty(g[1]), g[0].size)), any_sum,
        [(np.ones(4099, np.float32), 2, 1024), (np.ones(1, np.float32), 3, 32)]),
    Gap("check_forward", ("rmsnorm_forward",), lambda c: verdict(c.check_forward, c.rmsnorm_forward),
        launched("rmsnorm_forward", forward_args), any_rows, [any_rows(EDGE, 1, 32, 256), any_rows(EDGE, 2, 512, 513)]),
    Gap("check_backward", ("rmsnorm_backward",), lambda c: verdict(c.check_backward, c.rmsnorm_backward),
        launched("rmsnorm_backward", backward_args), any_rows, [any_rows(EDGE, 1, 32, 256), any_rows(EDGE, 2, 512, 513)]),
    Gap("check_lse", ("row_lse",), lambda c: verdict(c.check_lse, c.row_lse),
        launched("row_lse", lambda c, u: (2, 32, u, c.empty(2), u.shape[1])), any_logits,
        [any_logits(EDGE, V) for V in (1, 31, 32, 33, 64)]),
    Gap("check_argmax", ("argmax",), lambda c: verdict(c.check_argmax, c.argmax),
        launched("argmax", lambda c, x: (2, 32, x, np.full(2, -1, np.int32), x.shape[1])), any_scores,
        [any_scores(EDGE, n) for n in (1, 31, 32, 33, 64)]),
    Value("check_predictions", "predictions", lambda c, value: verdict(c.check_predictions, lambda: value), predicted),
    Value("check_rows", "rows_that_tell", lambda c, value: verdict(c.check_rows, lambda: value), tells),
    Gap("check_spread", ("spread",), lambda c: verdict(c.check_spread, c.spread), width, some_numbers),
]  # fmt: skip
