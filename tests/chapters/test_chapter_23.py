"""Chapter 23: its checks accept what is right and reject wrong answers, each of them named; what it times is right."""

import numpy as np
import pytest
from chapters import rejected, rewritten_tests

from nanoeuler_book.checks import verdict
from nanoeuler_lib import cuda

NOTEBOOK = ("23_first_kernels", "xp", "shift_changes", "HEADS", "BUGS")
ON_GPU = cuda.device() == "gpu"
pytestmark = pytest.mark.compiler


# ---- The gaps: a right kernel, and what is changed in it

ADD = {
    "no mask": ("if (i < n) ", ""),
    "gridDim for blockDim": ("blockIdx.x * blockDim.x", "blockIdx.x * gridDim.x"),
}  # fmt: skip
TRANSPOSE = {
    "a barrier in a branch": ("__syncthreads();", "if (column < columns) __syncthreads();"),
    "no mask for rows read": ("row0 + j < rows && column < columns", "column < columns"),
    "the tile is not turned": ("tile[threadIdx.x][j];", "tile[j][threadIdx.x];"),
    "blocks of 8 rows only": ("j += blockDim.y", "j += 8"),
}
SWIGLU = {
    "forward: SiLU alone": ("gate[i] * sigmoid(gate[i]) * up[i]", "gate[i] * sigmoid(gate[i])"),
    "backward: the sigmoid is a constant": ("(s + silu * (1.0f - s))", "s"),
    "both: blockDim for gridDim": ("i += gridDim.x * blockDim.x", "i += blockDim.x"),
    "both: one thread for all": (
        "int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x",
        "int i = 0; i < n && blockIdx.x + threadIdx.x == 0; i++",
    ),
}


def test_gap_transpose_counts_sectors(chapter):
    """A transpose without a tile is right, and its writes are scattered."""
    plain = """
    extern "C" __global__ void scattered(const float* x, float* y, int rows, int columns) {
      int column = blockIdx.x * 32 + threadIdx.x;
      for (int j = threadIdx.y; j < 32; j += blockDim.y) {
        int row = blockIdx.y * 32 + j;
        if (row < rows && column < columns) y[column * rows + row] = x[row * columns + column];
      }
    }
    """
    with pytest.raises(AssertionError, match="touches 32 sectors of y per request"):
        chapter.check_transpose(cuda.module(plain)["scattered"])


ACROSS = [
    ("[TILE + 1]", "[TILE + 3]"),
    ("tile[j][threadIdx.x] =", "tile[threadIdx.x][j] ="),
    ("= tile[threadIdx.x][j];", "= tile[j][threadIdx.x];"),
]
test_right_gaps, test_wrong_gaps = rewritten_tests(
    {
        "check_add": ("vector_add", {}, ADD),
        "check_transpose": ("transpose_tiled", {"written across, read along": ACROSS}, TRANSPOSE),
    }
)


def swiglu_with(old, new):
    text = (cuda.KERNELS / "swiglu.cu").read_text("utf-8")
    assert old in text
    made = cuda.module(text.replace(old, new))
    return made["swiglu_forward"], made["swiglu_backward"]


@pytest.mark.parametrize("change", SWIGLU.values(), ids=SWIGLU)
def test_wrong_swiglu(chapter, change):
    assert rejected(chapter.check_swiglu, swiglu_with(*change))


def test_one_thread_that_does_all_is_told(chapter):
    alone = """extern "C" __global__ void alone(const float* a, const float* b, float* c, int n) {
      if (blockIdx.x == 0 && threadIdx.x == 0) for (int i = 0; i < n; i++) c[i] = a[i] + b[i];
    }"""
    assert "threads work: share the elements" in verdict(chapter.check_add, cuda.module(alone)["alone"])


def test_other_right_answers_to_the_gaps(chapter):
    """A guard that returns, on one line; a sigmoid of two branches."""
    guard = """extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
      int i = blockDim.x * blockIdx.x + threadIdx.x;
      if (i >= n) return; c[i] = b[i] + a[i];
    }"""
    assert verdict(chapter.check_add, cuda.module(guard)["add"]) == "right"
    stable = "float e = expf(-fabsf(x)); return x > 0 ? 1.0f / (1.0f + e) : e / (1.0f + e);"
    assert verdict(chapter.check_swiglu, swiglu_with("return 1.0f / (1.0f + __expf(-x));", stable)) == "right"


@pytest.mark.parametrize("launch", [(33, 64, 4), (65, np.int64(9), 1)])
def test_other_launches_expose_the_four_as_well(chapter, launch):
    assert not rejected(chapter.check_launch, lambda: launch)


# ---- What is timed


@pytest.mark.skipif(ON_GPU, reason="looks into a launch on the CPU")
def test_every_timed_launch_computes_what_it_says(chapter, monkeypatch):
    seen = []

    def spy(launch):
        arrays = dict(launch.arrays)
        for k, array in enumerate(arrays.values()):
            array[:] = chapter.numbers(array.size, seed=k)
        output = arrays.get("c", arrays.get("y"))
        output[:] = np.nan
        launch()
        if "c" in arrays:
            wanted = arrays["a"] + arrays["b"]
        else:
            wanted = arrays["x"][: 64 * 64].reshape(64, 64).T.ravel()
        assert (output[: wanted.size] == wanted).all()
        seen.append(launch.signature.name)
        return 1.0

    monkeypatch.setattr(cuda, "median_seconds", spy)
    rows = chapter.measure(side=64, rounds=1)
    assert len(seen) == len(rows) == len({row["version"] for row in rows}) == 8
    assert [row["bytes"] for row in rows] == [12 * 4096] * 4 + [8 * 4096] * 4
    assert all(row["share_min"] <= row["share_max"] for row in rows)
