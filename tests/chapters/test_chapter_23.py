"""Chapter 23: its checks accept what is right and reject wrong answers, each of them named; what it times is right."""

import numpy as np
import pytest
from chapters import rejected

from nanoeuler_book.checks import verdict
from nanoeuler_lib import cuda

NOTEBOOK = ("23_first_kernels", "xp", "shift_changes", "HEADS", "BUGS")
ON_GPU = cuda.device() == "gpu"
pytestmark = pytest.mark.compiler


# ---- The gaps: a right kernel, and what is changed in it

ADD = {
    "no mask": ("if (i < n) ", ""),
    "one element too many": ("i < n", "i <= n"),
    "the first block alone": ("blockIdx.x * blockDim.x + threadIdx.x", "threadIdx.x"),
    "gridDim for blockDim": ("blockIdx.x * blockDim.x", "blockIdx.x * gridDim.x"),
}  # fmt: skip
TRANSPOSE = {
    "no barrier": ("__syncthreads();", ""),
    "a barrier in a branch": ("__syncthreads();", "if (column < columns) __syncthreads();"),
    "no mask for rows read": ("row0 + j < rows && column < columns", "column < columns"),
    "the stride of the other matrix": ("* rows + row]", "* columns + row]"),
    "the tile is not turned": ("tile[threadIdx.x][j];", "tile[j][threadIdx.x];"),
    "blocks of 8 rows only": ("j += blockDim.y", "j += 8"),
}
SWIGLU = {
    "forward: SiLU alone": ("gate[i] * sigmoid(gate[i]) * up[i]", "gate[i] * sigmoid(gate[i])"),
    "forward: one element a thread": ("i += gridDim.x * blockDim.x)\n    y[i]", "i += n)\n    y[i]"),
    "backward: the sigmoid is a constant": ("(s + silu * (1.0f - s))", "s"),
    "both: blockDim for gridDim": ("i += gridDim.x * blockDim.x", "i += blockDim.x"),
    "both: 1 - exp": ("1.0f + __expf", "1.0f - __expf"),
    "both: one thread for all": (
        "int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x",
        "int i = 0; i < n && blockIdx.x + threadIdx.x == 0; i++",
    ),
}


def sources(file):
    return (cuda.KERNELS / f"{file}.cu").read_text("utf-8")


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
    with pytest.raises(AssertionError, match="asks for 32 sectors of y"):
        chapter.check_transpose(cuda.module(plain)["scattered"])


def swiglu_with(old, new):
    text = sources("swiglu").replace(old, new)
    assert text != sources("swiglu"), old
    made = cuda.module(text)
    return made["swiglu_forward"], made["swiglu_backward"]


def test_wrong_answers_to_the_gaps(chapter):
    c = chapter
    tiled = sources("transpose").partition("#define TILE 32\n")[2].partition("// The same in tiles")[0]
    for check, wrong in (
        (c.check_add, c.variants(sources("vector_add"), "vector_add", ADD)),
        (c.check_transpose, c.variants("#define TILE 32\n" + tiled, "transpose_tiled", TRANSPOSE)),
        (c.check_swiglu, {mistake: swiglu_with(*change) for mistake, change in SWIGLU.items()}),
    ):
        for mistake, answer in wrong.items():
            assert rejected(check, answer), mistake


ALONE = {
    "add": """extern "C" __global__ void alone(const float* a, const float* b, float* c, int n) {
      if (blockIdx.x == 0 && threadIdx.x == 0) for (int i = 0; i < n; i++) c[i] = a[i] + b[i];
    }""",
    "shift": """extern "C" __global__ void alone(const float* dy, const float* m, float* dx, int B, int T, int D) {
      if (blockIdx.x || threadIdx.x) return;
      for (int i = 0; i < B * T * D; i++) {
        int d = i % D;
        dx[i] = (1 - m[d]) * dy[i] + (i / D % T + 1 < T ? m[d] * dy[i + D] : 0.0f);
      }
    }""",
}


@pytest.mark.parametrize("name", ALONE)
def test_one_thread_that_does_all_is_told(chapter, name):
    said = verdict(getattr(chapter, f"check_{name}"), cuda.module(ALONE[name])["alone"])
    assert "threads work: share the elements" in said


def test_other_right_answers_to_the_gaps(chapter):
    """A guard that returns, on one line; float4; tiles written across and read along; a sigmoid of two branches."""
    guard = """extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
      int i = blockDim.x * blockIdx.x + threadIdx.x;
      if (i >= n) return; c[i] = b[i] + a[i];
    }"""
    assert verdict(chapter.check_add, cuda.module(guard)["add"]) == "right"
    assert verdict(chapter.check_add, chapter.add_grid_stride) == "right"
    across = (
        chapter.transpose_tiled.module.source.replace("[TILE + 1]", "[TILE + 3]")
        .replace("tile[j][threadIdx.x] =", "tile[threadIdx.x][j] =")
        .replace("= tile[threadIdx.x][j];", "= tile[j][threadIdx.x];")
    )
    assert verdict(chapter.check_transpose, cuda.module(across)["transpose_tiled"]) == "right"
    stable = sources("swiglu").replace(
        "return 1.0f / (1.0f + __expf(-x));",
        "float e = expf(-fabsf(x)); return x > 0 ? 1.0f / (1.0f + e) : e / (1.0f + e);",
    )
    made = cuda.module(stable)
    assert verdict(chapter.check_swiglu, (made["swiglu_forward"], made["swiglu_backward"])) == "right"
    gathered = """extern "C" __global__ void back(const float* dy, const float* m, float* dx, int B, int T, int D) {
      for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < B * T * D; i += gridDim.x * blockDim.x) {
        int d = i % D, t = i / D % T;
        float g = dy[i] - m[d] * dy[i];
        if (t != T - 1) g += m[d] * dy[i + D];
        dx[i] = g;
      }
    }"""
    assert verdict(chapter.check_shift, cuda.module(gathered)["back"]) == "right"


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


@pytest.mark.parametrize("launch", [(33, 64, 4), (100, 7, 31), (65, np.int64(9), 1)])
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
