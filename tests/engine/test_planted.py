"""Plant bugs in the engine's kernels one by one: the comparison named with each, or the checker, must find the bug.

Each bug represents a kind of mistake that a comparison could miss: a term that is 0 in tests, a size that always
fits, an array that is never read again, a barrier that no thread is late for.
"""

import functools
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
from test_engine import (
    DECODED,
    TINY,
    WHERE,
    batch,
    check_decoding,
    check_gains,
    check_products,
    check_refused,
    check_small,
    check_updates,
    engine_of,
    on_the_cpu,
    parameters,
)
from test_engine_muon import check_muon

from nanoeuler_lib import cuda
from nanoeuler_lib.engine import program

pytestmark = [pytest.mark.full, pytest.mark.compiler]


def check_norms():
    """Use rows of several warps, several per block, because the sums of a norm have two barriers."""
    config = replace(TINY, dim=512, heads=4, layers=1, ffn=48, predict=1, vocab_size=40)
    engine_of(parameters(config, 0.1), config=config).loss_and_gradients(*batch(19, config=config))


COMPARISONS = {
    "norms": check_norms,
    "float32": lambda: check_small("float32"),
    "bfloat16": lambda: check_small("bfloat16"),
    "float16": lambda: check_small("float16"),
    "updates": check_updates,
    "refused": lambda: [check_refused(precision=precision) for precision in ("float32", "bfloat16", "float16")],
    "decode": lambda: [check_decoding(name) for name in DECODED],
    "products": check_products,
    "gains": lambda: check_gains("float16"),
    "muon": check_muon,
}
PLANTED = [  # kernel's file, right code, code with the bug, comparison that finds the bug
    ("engine.cu", "if (ADD && i < D) add_to(mine[k]", "if (false) add_to(mine[k]", "float32"),
    ("engine.cu", "times(share[k], inverse[k])", "share[k]", "float32"),
    ("engine.cu", "y[column] = add ? y[column] + sum : sum;", "y[column] = sum;", "float32"),
    ("engine.cu", "factor[1] = sums[k] - sums[k];", "factor[1] = 0;", "refused"),
    ("engine.cu", "scale[blockIdx.x % weights]", "scale[0]", "float32"),
    ("engine.cu", "if (at == 3) d.w -= weight;", "", "float32"),
    ("engine.cu", "norm = factor[1] * step[3];", "norm = factor[1];", "float16"),
    ("engine.cu", "limit / norm : 1.0f) * step[3];", "limit / norm : 1.0f);", "float16"),
    ("engine.cu", "LEAST_GAIN<__half> = 0x1p-12f;", "LEAST_GAIN<__half> = 0x1p-60f;", "gains"),
    ("engine.cu", "float weight = target < 0 ? 0.0f : ", "float weight = ", "float32"),
    ("engine.cu", "bool decays = 4 * i < decayed;", "bool decays = true;", "updates"),
    ("engine.cu", "if (!(factor[1] <= 3.4e38f)) return;", "", "refused"),
    ("engine.cu", "[threadIdx.x] = sum;\n  __syncthreads();", "[threadIdx.x] = sum;", "float32"),
    ("engine.cu", "__syncthreads();  // a slower warp may still read", "// a slower warp may still read", "norms"),
    ("embedding.cu", "    if (ADD) add_to(sum, *to);\n    *to = sum;\n  }\n}", "    *to = sum;\n  }\n}", "float32"),
    ("embedding.cu", "row = now[k] + 1;", "row = now[k] + 2;", "float32"),
    ("adamw.cu", "if (!(factor[1] <= 3.4e38f)) return;", "", "refused"),
    ("decode.cu", "  __syncthreads();\n  for (int o = first; o < O;", "  for (int o = first; o < O;", "decode"),
    ("decode.cu", "fmaf(sum, 1.0f / I, eps)", "sum * (1.0f / I)", "decode"),
    ("decode.cu", "for (int warp = 0; warp < WARPS; warp++) sum += squares",
     "for (int warp = 0; warp < 4; warp++) sum += squares", "decode"),
    ("decode.cu", "number_of_piece(k) < I;", "number_of_piece(k) + 8 < I;", "decode"),
    ("decode.cu", "if (head % (H / G) == 0) {", "if (head == 0) {", "decode"),
    ("decode.cu", "if (mine + k * together >= start) continue;", "if (mine + k * together >= start / 2) continue;",
     "decode"),
    ("decode.cu", "a.terms = of_a * a.terms + of_b * b.terms;", "a.terms = a.terms + b.terms;", "decode"),
    ("decode.cu", "&high.x, &w.z);", "&high.x, &w.x);", "products"),
    ("decode.cu", "if (row < rows) low =", "if (row < 1) low =", "products"),
    ("muon.cu", "mix(beta, read_four(m + j), factor[0], slope)", "mix(beta, read_four(m + j), 1.0f, slope)", "muon"),
    ("muon.cu", "part[gridDim.x * blockIdx.y + blockIdx.x] = sum", "part[blockIdx.x] = sum", "muon"),
    ("muon.cu", "write_four(copy + j, v);", "", "muon"),
    ("muon.cu", "float decay) {\n  if (!(factor[1] <= 3.4e38f)) return;", "float decay) {", "muon"),
]  # fmt: skip


@contextmanager
def planted(where, old, new):
    """Replace a fragment of a kernel's file in all launches of the engine."""
    source, plain = (cuda.KERNELS / where).read_text("utf-8"), program._module
    assert old in source, old

    @functools.cache
    def module(file, instantiate, at, checked, defines=()):
        if file != where:
            return plain(file, instantiate, at, checked, defines)
        options = dict(where=at, checked=checked, instantiate=instantiate, defines=dict(defines))
        return cuda.module(source.replace(old, new), **options)

    with patch.object(program, "_module", module):
        yield


@pytest.mark.parametrize("name", COMPARISONS)
def test_without_a_bug_all_compare_equal(name):
    if WHERE == "gpu" and name in ("float32", "bfloat16", "float16"):
        pytest.skip("check_small is for the CPU runtime")
    COMPARISONS[name]()


@on_the_cpu
@pytest.mark.parametrize("where, old, new, comparison", PLANTED, ids=[f"{n}-{row[0]}" for n, row in enumerate(PLANTED)])
def test_a_planted_bug_is_seen(where, old, new, comparison):
    with planted(where, old, new), pytest.raises((AssertionError, cuda.KernelError)):
        COMPARISONS[comparison]()
