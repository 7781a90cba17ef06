# ruff: noqa: E501 -- a kernel's text stays on its line
"""Chapter 25: its checks accept what is right and reject wrong answers, each of them named; what it measures is right."""

import numpy as np
import pytest
from chapters import rejected, rewritten_tests, run_tagged

from nanoeuler_book.checks import verdict
from nanoeuler_lib import cuda

NOTEBOOK = (
    "25_matrix_multiplication",
    "xp", "UNWRITTEN", "TILED", "READ", "VERSIONS", "SIZES", "ASYNC", "SEEN", "ONLY_FMA", "COMPILED", "SLOW", "EARLY",
    "ROW", "SWAPPED", "text", "matmul_columns",
)  # fmt: skip
pytestmark = pytest.mark.compiler


# ---- The gaps: the book's kernel, and what is changed in it

TILED = {
    "no barrier before the product": ("__syncthreads();  // the tiles", "// the tiles"),
    "no barrier behind the product": ("__syncthreads();  // nobody", "// nobody"),
    "no mask for the rows of a": ("row < M && k0 + x < K ?", "k0 + x < K ?"),
    "no mask for c": ("if (row < M && column < N) c", "c"),
    "threads outside leave": ("float sum = 0;", "float sum = 0; if (row >= M || column >= N) return;"),
    "the last tile left out": ("k0 < K;", "k0 + 31 < K;"),
    "from global memory": ("sum += as[y][k] * bs[k][x]", "if (row < M && column < N && k0 + k < K) sum += a[(size_t)row * K + k0 + k] * b[(size_t)(k0 + k) * N + column]"),
}  # fmt: skip
PATCH = {
    "columns side by side": ("x + 16 * j", "x * 8 + j"),
    "seven of eight": ("k < 8; k++", "k < 7; k++"),
    "no mask for rows": ("if (row < M && column < N) c", "if (column < N) c"),
    "the last tile alone": ("sum[i][j] += u[i]", "sum[i][j] = u[i]"),
    "b read for each product": ("+= u[i] * v[j]", "+= u[i] * bs[k][x + 16 * j]"),
    "loops over registers kept": (
        "#pragma unroll\n      for (int i = 0; i < 8; i++)\n#pragma unroll",
        "#pragma unroll 1\n      for (int i = 0; i < 8; i++)\n#pragma unroll",
    ),
}
PIPELINE = {
    "no barrier": ("__syncthreads();", ""),
    "the question before the barrier": (
        "__syncthreads();  // this tile is complete, and nobody reads the one before it any more\n    "
        "a += BK, b += (size_t)BK * N;\n    ask<INSIDE>(tiles[1 - now], a, b, N, K, high, wide, K - k - BK);",
        "a += BK, b += (size_t)BK * N;\n    ask<INSIDE>(tiles[1 - now], a, b, N, K, high, wide, K - k - BK);\n    __syncthreads();",
    ),
    "no wait": ("copy_async_wait<0>();", ""),
    "a wait for all but one": ("copy_async_wait<0>();", "copy_async_wait<1>();"),
    "asked for after the product": (
        "ask<INSIDE>(tiles[1 - now], a, b, N, K, high, wide, K - k - BK);\n    multiply_tile(sum, tiles[now], row, column);",
        "multiply_tile(sum, tiles[now], row, column);\n    ask<INSIDE>(tiles[1 - now], a, b, N, K, high, wide, K - k - BK);",
    ),
    "two barriers": ("multiply_tile(sum, tiles[now], row, column);", "multiply_tile(sum, tiles[now], row, column);\n    __syncthreads();"),
}  # fmt: skip
_, test_wrong_gaps = rewritten_tests(
    {
        "check_tiled": ("matmul_tiled", {}, TILED),
        "check_patch": ("matmul_patch", {}, PATCH),
        "check_pipeline": ("matmul", {}, PIPELINE),
    }
)


ROUND = "copy_async_wait<0>(); __syncthreads(); ask({i} + 1); multiply_tile(sum, tiles[({i}) % 2], row, column);"
LOOP = "ask(0); for (int i = 0; i * BK < K; i++) {"
RIGHT_LOOPS = {
    "plain": f"{LOOP} /* the one __syncthreads() of a round */ {ROUND.format(i='i')} }}",
    "the last tile behind the loop": "ask(0); int n = (K + BK - 1) / BK; for (int i = 0; i < n - 1; i++) {"
    f"{ROUND.format(i='i')} }} copy_async_wait<0>(); __syncthreads(); multiply_tile(sum, tiles[(n - 1) % 2], row, column);",
    "two rounds written out": "ask(0); for (int i = 0; i * BK < K; i += 2) {"
    f"{ROUND.format(i='i')} if ((i + 1) * BK >= K) break; {ROUND.format(i='i + 1')} }}",
    "a barrier by another name": f"auto meet = [&] {{ __syncthreads(); }}; {LOOP} {ROUND.format(i='i').replace('__syncthreads', 'meet')} }}",
}
WAITED = ROUND.format(i="i").replace("multiply", "{wait} multiply")
WRONG_LOOPS = {
    "waited for": WAITED.format(wait="copy_async_wait<0>();"),
    "waited for if it is there": WAITED.format(wait="if ((i + 1) * BK < K) copy_async_wait<0>();"),
    "waited for, then a statement": WAITED.format(wait="copy_async_wait<0>(); const Tile& now = tiles[i % 2];"),
    "two barriers by another name": f"auto meet = [&] {{ __syncthreads(); }}; {ROUND.format(i='i').replace('__syncthreads', 'meet')} meet();",
}


@pytest.mark.parametrize("name", [*RIGHT_LOOPS, *WRONG_LOOPS])
def test_loops_of_the_pipeline(chapter, name):
    loop = RIGHT_LOOPS.get(name) or f"{LOOP} {WRONG_LOOPS[name]} }}"
    mine = cuda.module(chapter.my_matmul.module.source.replace("// your code here", loop))["my_matmul"]
    said = verdict(chapter.check_pipeline, mine)
    assert (said == "right") == (name in RIGHT_LOOPS), said
    assert "waited" not in name or "is waited for before this one is multiplied" in said


def test_a_kernel_without_reuse_is_not_the_answer_to_the_gaps_on_reuse(chapter):
    text = chapter.matmul_columns.module.source
    block = text.replace("blockDim.x", "32").replace("blockDim.y", "32")
    assert "once would do" in verdict(chapter.check_tiled, cuda.module(block)["matmul_columns"])
    assert rejected(chapter.check_patch, chapter.matmul_tiled)


ONE_FOR_ALL = """
extern "C" __global__ void one_for_all(const float* a, const float* b, float* c, int M, int N, int K) {
  if (threadIdx.x || threadIdx.y) return;
  for (int row = blockIdx.y * 32; row < min(M, (int)blockIdx.y * 32 + 32); row++)
    for (int column = blockIdx.x * 32; column < min(N, (int)blockIdx.x * 32 + 32); column++) {
      float sum = 0;
      for (int k = 0; k < K; k++) sum += a[row * K + k] * b[k * N + column];
      c[row * N + column] = sum;
    }
}
"""


def test_one_thread_that_does_all_is_told(chapter):
    assert rejected(chapter.check_tiled, cuda.module(ONE_FOR_ALL)["one_for_all"])


def test_other_right_answers_to_the_gaps(chapter):
    """The tile of a transposed by its writer's index, with a padded row; rows and columns of a patch in another order."""
    text = chapter.matmul_tiled.module.source
    other = text.replace("as[32][32]", "as[32][33]").replace("as[y][x] =", "as[x][y] =").replace("as[y][k]", "as[k][y]")
    assert verdict(chapter.check_tiled, cuda.module(other)["matmul_tiled"]) == "right"
    other = chapter.matmul_patch.module.source.replace("x + 16 * j", "x + 16 * (7 - j)")
    assert verdict(chapter.check_patch, cuda.module(other)["matmul_patch"]) == "right"


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def test_the_slow_kernel_is_right_and_slow(chapter):
    slow = chapter.slow
    assert chapter.expect_product(slow, chapter.PATCH, 130, 132, 12)
    with pytest.raises(AssertionError, match="8 turns a read of bs, 4 would do"):
        chapter.expect_turns(chapter.counts(slow, chapter.PATCH, 128, 128, 8))


def test_a_whole_number_of_numpy_is_an_answer(chapter):
    assert verdict(chapter.check_smallest, lambda: np.int64(33)) == "right"


# ---- What the script measures


def test_the_script_measures_every_version():
    names = run_tagged(NOTEBOOK[0], "experiment")
    rows = names["measure"](side=64, launches=1, rounds=1)
    assert [row["version"] for row in rows] == list(names["VERSIONS"]) and len(rows) == 8
    assert all(row["ms"] > 0 and row["threads"] in (256, 512, 1024) for row in rows)
    assert min(names["measure_ceilings"](blocks=2, rounds=2, size=1 << 16)) > 0
