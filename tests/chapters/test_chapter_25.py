# ruff: noqa: E501 -- a kernel's text stays on its line
"""Test chapter 25: its checks accept right answers and reject wrong ones by name; its script measures."""

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


# ---- The gaps: changes of the book's kernels

TILED = {
    "no barrier after the product": ("__syncthreads();  // nobody", "// nobody"),
    "no mask for c": ("if (row < M && column < N) c", "c"),
    "the last tile left out": ("k0 < K;", "k0 + 31 < K;"),
    "threads outside return early": ("float sum = 0;", "float sum = 0; if (row >= M || column >= N) return;"),
    "read from global memory": ("sum += as[y][k] * bs[k][x]", "if (row < M && column < N && k0 + k < K) sum += a[(size_t)row * K + k0 + k] * b[(size_t)(k0 + k) * N + column]"),
}  # fmt: skip
PATCH = {
    "columns side by side": ("x + 16 * j", "x * 8 + j"),
    "seven of eight": ("k < 8; k++", "k < 7; k++"),
    "no mask for rows": ("if (row < M && column < N) c", "if (column < N) c"),
    "b read for each product": ("+= u[i] * v[j]", "+= u[i] * bs[k][x + 16 * j]"),
    "loops over registers not unrolled": (
        "#pragma unroll\n      for (int i = 0; i < 8; i++)\n#pragma unroll",
        "#pragma unroll 1\n      for (int i = 0; i < 8; i++)\n#pragma unroll",
    ),
}
PIPELINE = {
    "the request before the barrier": (
        "__syncthreads();  // this tile is complete, and no thread reads the last one any more\n    "
        "a += BK, b += (size_t)BK * N;\n    ask<INSIDE>(tiles[1 - now], a, b, N, K, high, wide, K - k - BK);",
        "a += BK, b += (size_t)BK * N;\n    ask<INSIDE>(tiles[1 - now], a, b, N, K, high, wide, K - k - BK);\n    __syncthreads();",
    ),
    "the wait leaves one copy open": ("copy_async_wait<0>();", "copy_async_wait<1>();"),
    "the request after the product": (
        "ask<INSIDE>(tiles[1 - now], a, b, N, K, high, wide, K - k - BK);\n    multiply_tile(sum, tiles[now], row, column);",
        "multiply_tile(sum, tiles[now], row, column);\n    ask<INSIDE>(tiles[1 - now], a, b, N, K, high, wide, K - k - BK);",
    ),
    "two barriers": ("multiply_tile(sum, tiles[now], row, column);", "multiply_tile(sum, tiles[now], row, column);\n    __syncthreads();"),
}  # fmt: skip
PADDED = [("as[32][32]", "as[32][33]"), ("as[y][x] =", "as[x][y] ="), ("as[y][k]", "as[k][y]")]
test_right_gaps, test_wrong_gaps = rewritten_tests(
    {
        "check_tiled": ("matmul_tiled", {"a transposed, its rows padded": PADDED}, TILED),
        "check_patch": ("matmul_patch", {"columns in reverse order": [("x + 16 * j", "x + 16 * (7 - j)")]}, PATCH),
        "check_pipeline": ("matmul", {}, PIPELINE),
    }
)


ROUND = "copy_async_wait<0>(); __syncthreads(); ask({i} + 1); multiply_tile(sum, tiles[({i}) % 2], row, column);"
LOOP = "ask(0); for (int i = 0; i * BK < K; i++) {"
RIGHT_LOOPS = {
    "plain": f"{LOOP} /* the one __syncthreads() of a round */ {ROUND.format(i='i')} }}",
    "the last tile after the loop": "ask(0); int n = (K + BK - 1) / BK; for (int i = 0; i < n - 1; i++) {"
    f"{ROUND.format(i='i')} }} copy_async_wait<0>(); __syncthreads(); multiply_tile(sum, tiles[(n - 1) % 2], row, column);",
    "a barrier by another name": f"auto meet = [&] {{ __syncthreads(); }}; {LOOP} {ROUND.format(i='i').replace('__syncthreads', 'meet')} }}",
}
WAITED = ROUND.format(i="i").replace("multiply", "{wait} multiply")
WRONG_LOOPS = {
    "waited for only if it exists": WAITED.format(wait="if ((i + 1) * BK < K) copy_async_wait<0>();"),
    "two barriers by another name": f"auto meet = [&] {{ __syncthreads(); }}; {ROUND.format(i='i').replace('__syncthreads', 'meet')} meet();",
}


@pytest.mark.parametrize("name", [*RIGHT_LOOPS, *WRONG_LOOPS])
def test_loops_of_the_pipeline(chapter, name):
    loop = RIGHT_LOOPS.get(name) or f"{LOOP} {WRONG_LOOPS[name]} }}"
    mine = cuda.module(chapter.my_matmul.module.source.replace("// your code here", loop))["my_matmul"]
    said = verdict(chapter.check_pipeline, mine)
    assert (said == "right") == (name in RIGHT_LOOPS), said
    assert "waited" not in name or "waits for the next tile before it multiplies this one" in said


def test_a_kernel_without_reuse_is_not_the_answer_to_the_gaps_on_reuse(chapter):
    text = chapter.matmul_columns.module.source
    block = text.replace("blockDim.x", "32").replace("blockDim.y", "32")
    assert "must read each number of a and b once" in verdict(chapter.check_tiled, cuda.module(block)["matmul_columns"])
    assert rejected(chapter.check_patch, chapter.matmul_tiled)


# ---- The exercises; running the notebook tries the wrong answers that a solution names


def test_an_integer_of_numpy_is_an_answer(chapter):
    assert verdict(chapter.check_smallest, lambda: np.int64(33)) == "right"


# ---- What the script measures


def test_the_script_measures_every_version():
    names = run_tagged(NOTEBOOK[0], "experiment")
    rows = names["measure"](side=64, launches=1, rounds=1)
    assert [row["version"] for row in rows] == list(names["VERSIONS"]) and len(rows) == 8
    assert all(row["ms"] > 0 and row["threads"] in (256, 512, 1024) for row in rows)
    assert min(names["measure_ceilings"](blocks=2, rounds=2, size=1 << 16)) > 0
