"""Chapter 23: its checks accept what is right and reject wrong answers, each of them named; what it times is right."""

import numpy as np
import pytest
from chapters import definitions, rejected, try_exercise

from nanoeuler_lib import cuda

NAME = "23_first_kernels"
ON_GPU = cuda.device() == "gpu"
pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module")
def chapter():
    return definitions(NAME, "xp", "SHIFT", "shift_changes", "HEADS", "BUGS")


# ---- The gaps: a right kernel, and what is changed in it

ADD = {
    "no mask": ("if (i < n) ", ""),
    "one element too many": ("i < n", "i <= n"),
    "the last element left out": ("i < n", "i < n - 1"),
    "the first block alone": ("blockIdx.x * blockDim.x + threadIdx.x", "threadIdx.x"),
    "gridDim for blockDim": ("blockIdx.x * blockDim.x", "blockIdx.x * gridDim.x"),
    "block and thread exchanged": ("blockIdx.x * blockDim.x + threadIdx.x", "threadIdx.x * blockDim.x + blockIdx.x"),
    "a difference": ("a[i] + b[i]", "a[i] - b[i]"),
}  # fmt: skip
TRANSPOSE = {
    "no barrier": ("__syncthreads();", ""),
    "a barrier in a branch": ("__syncthreads();", "if (column < columns) __syncthreads();"),
    "no mask for rows read": ("row0 + j < rows && column < columns", "column < columns"),
    "no mask for columns read": ("row0 + j < rows && column < columns", "row0 + j < rows"),
    "no mask for columns written": ("row < rows && column0 + j < columns", "row < rows"),
    "the stride of the other matrix": ("* rows + row]", "* columns + row]"),
    "the tile is not turned": ("tile[threadIdx.x][j];", "tile[j][threadIdx.x];"),
    "blockDim for the tile": ("row0 = blockIdx.y * TILE", "row0 = blockIdx.y * blockDim.y"),
    "blocks of 8 rows only": ("j += blockDim.y", "j += 8"),
    "the tile's place is not turned": ("column0 = blockIdx.x * TILE", "column0 = blockIdx.y * TILE"),
}
SWIGLU = {
    "forward: SiLU alone": ("gate[i] * sigmoid(gate[i]) * up[i]", "gate[i] * sigmoid(gate[i])"),
    "forward: the sigmoid of up": ("sigmoid(gate[i]) * up[i]", "sigmoid(up[i]) * up[i]"),
    "forward: one element a thread": ("i += gridDim.x * blockDim.x)\n    y[i]", "i += n)\n    y[i]"),
    "backward: the sigmoid is a constant": ("(s + silu * (1.0f - s))", "s"),
    "backward: up left out": ("dy[i] * up[i] *", "dy[i] *"),
    "backward: dup without dy": ("dup[i] = dy[i] * silu", "dup[i] = silu"),
    "both: blockDim for gridDim": ("i += gridDim.x * blockDim.x", "i += blockDim.x"),
    "both: 1 - exp": ("1.0f + __expf", "1.0f - __expf"),
}


def sources(file):
    return (cuda.KERNELS / f"{file}.cu").read_text("utf-8")


def test_gap_add(chapter):
    wrong = chapter.variants(sources("vector_add"), "vector_add", ADD)
    try_exercise(chapter.check_add, chapter.my_vector_add, chapter.vector_add, wrong)


def test_gap_transpose(chapter):
    tiled = sources("transpose").partition("#define TILE 32\n")[2].partition("// The same in tiles")[0]
    wrong = chapter.variants("#define TILE 32\n" + tiled, "transpose_tiled", TRANSPOSE)
    try_exercise(chapter.check_transpose, chapter.my_transpose, chapter.transpose_tiled, wrong)


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


def test_gap_swiglu(chapter):
    stubs = chapter.my_swiglu_forward, chapter.my_swiglu_backward
    book = chapter.swiglu_forward, chapter.swiglu_backward
    wrong = {}
    for name, change in SWIGLU.items():
        text = sources("swiglu").replace(*change)
        assert text != sources("swiglu"), name
        made = cuda.module(text)
        wrong[name] = made["swiglu_forward"], made["swiglu_backward"]
    try_exercise(chapter.check_swiglu, stubs, book, wrong)


# ---- The exercises: check, stub, solution, and the wrong answers that the notebook itself names

EXERCISES = {
    "points": lambda c: (c.check_sectors, c.my_sectors, c.sectors_of, c.wrong_sectors),
    "shift": lambda c: (
        c.check_shift, c.my_shift_backward, cuda.module(c.SHIFT)["shift_backward"],
        c.variants(c.SHIFT, "shift_backward", c.shift_changes),
    ),
    "launch": lambda c: (c.check_launch, c.my_launch, c.launch_of, c.wrong_launches),
    "heads": lambda c: (c.check_smallest, c.my_smallest, c.smallest, c.wrong_smallest),
}  # fmt: skip


@pytest.mark.parametrize("parts", EXERCISES.values(), ids=EXERCISES)
def test_exercise_check(chapter, parts):
    try_exercise(*parts(chapter))


@pytest.mark.parametrize("launch", [(33, 64, 4), (100, 7, 31), (65, 9, 1)])
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
