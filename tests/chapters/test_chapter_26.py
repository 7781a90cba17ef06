# ruff: noqa: E501 -- a kernel's text stays on its line
"""Chapter 26: its checks accept what is right and reject wrong answers, each of them named; what it measures runs."""

import numpy as np
import pytest
from chapters import rejected, rewritten_tests

from experiments import ch26

NOTEBOOK = ("26_tensor_cores", "xp", "TEXT", "UNWRITTEN", "LOAD", "SMALL", "KEYS", "FORMATS", "SEEN", "READ")
pytestmark = pytest.mark.compiler


# ---- The gaps: the book's answer, and wrong ones

PRODUCT = {
    "no barrier after the product": ("__syncthreads();  // nobody", "// nobody"),
    "only the first columns": ("k < K; k += 64", "k < 64; k += 64"),
    "c transposed": (
        "(lane / 4 + 8 * (i / 2)) * 8 + 2 * (lane % 4) + i % 2",
        "(2 * (lane % 4) + i % 2) * 16 + lane / 4 + 8 * (i / 2)",
    ),
    "no swizzle": ("c ^ r % 8", "c"),
    "padded rows": ("s[24][64]", "s[24][72]"),
}  # fmt: skip
RIGHT_PRODUCTS = {"rows turned instead of swizzled": [("c ^ r % 8", "(c + r) % 8")]}
STEP = (
    "copy_async_wait<1>();  // the tile of this step is there, the next may be under way\n    __syncthreads();"
    "  // ... for every lane; and nobody reads the tile before it any more\n    ask(step + 2);  // into the stage of that one\n"
)
MULTIPLY = "multiply(step);\n  }"
RIGHT_PIPELINES = {
    "the last two after the loop": [
        ("step < steps; step++) {", "step < steps - 2; step++) {"),
        (
            MULTIPLY,
            f"{MULTIPLY}\n  copy_async_wait<0>(); __syncthreads();\n  if (steps > 1) multiply(steps - 2);\n  multiply(steps - 1);",
        ),
    ],
    "a comment and another name": [
        ("  ask(0);", "  auto meet = [&] { __syncthreads(); }; /* __syncthreads() */ ask(0);"),
        ("    __syncthreads();  // ...", "    meet();  //"),
    ],
}
PIPELINE = {
    "no barrier": ("    __syncthreads();", "    "),
    "a wait for all": ("copy_async_wait<1>();", "copy_async_wait<0>();"),
    "a wait for one group fewer": ("copy_async_wait<1>();", "copy_async_wait<2>();"),
    "asked for after the product": (f"{STEP}    multiply(step);", "copy_async_wait<1>(); __syncthreads(); multiply(step); ask(step + 2);"),
    "one tile ahead": ("  ask(1);", ""),
}  # fmt: skip
test_right_pipelines, test_wrong_products = rewritten_tests(
    {
        "check_product": ("warp_product", RIGHT_PRODUCTS, PRODUCT),
        "check_pipeline": ("warp_pipeline", RIGHT_PIPELINES, PIPELINE),
    }
)

BITS = {
    "cut off": lambda c, x: (x.view(np.uint32) >> 16).astype(np.uint16),
    "ties away from zero": lambda c, x: ((x.view(np.uint32).astype(np.uint64) + 0x8000) >> 16).astype(np.uint16),
    "in place": lambda c, x: c.bits_of(np.multiply(x, 1, out=x)) * 0,
}  # fmt: skip
PLACES = {
    "registers of d as those of a": lambda c, lane, i: (
        *c.places(lane, i)[:2], lane // 4 + 8 * (i % 2), c.places(lane, i)[3],
    ),
    "columns of a lane": lambda c, lane, i: (
        *c.places(lane, i)[:1], lane % 4 + 8 * (i // 2), *c.places(lane, i)[2:],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BITS)
def test_wrong_bits_are_rejected(chapter, name):
    with np.errstate(over="ignore"):
        assert rejected(chapter.check_bits, lambda x: BITS[name](chapter, x))


@pytest.mark.parametrize("name", PLACES)
def test_wrong_places_are_rejected(chapter, name):
    assert rejected(chapter.check_places, lambda lane, i: PLACES[name](chapter, lane, i))


# ---- What the script measures


def test_the_script_measures_sums():
    for numbers in ("bfloat16", "float16", "float32"):
        r = ch26.row(numbers, "uniform", 64, 0)
        assert 0 < r["error"] < (1e-3 if numbers == "float32" else 1e-6) and r["plain"] < 1e-6 and r["same_bits"]
    assert ch26.row("bfloat16", "normal", 64, 0) != ch26.row("bfloat16", "normal", 64, 1)
