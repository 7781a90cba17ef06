"""Test Muon in the GPU engine through the CPU runtime, with all accesses checked: it takes the steps of NumPy."""

from dataclasses import replace

import numpy as np
import pytest
from test_engine import HALVES, TINY, WHERE, batch, engine_of, on_the_cpu, rounded

from nanoeuler_lib import cuda, engine
from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.cuda.blas import Product
from nanoeuler_lib.engine import device, memory, program
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model.optim import Muon
from nanoeuler_lib.ops import reference

pytestmark = [] if WHERE == "gpu" else [pytest.mark.compiler]
SETTINGS = TrainConfig(steps=9, warmup=2, rate=3e-3, clip=0.5, decay=0.3, batch=4, adam_eps=1e-4, optimizer="muon")
WIDE, TALL = (24, 104), (72, 16)
# bfloat16 and float16, whose products round to 8 and 11 bits: about twice the largest error that was seen, which is 1%
# to 3% and an eighth of that.
ROUNDED = {"float32": 2e-5, "tf32": 2e-2, "bfloat16": 6e-2, "float16": 8e-3}


def work_of(shape, precision, widths=None):
    """Return work space for two matrices of a shape, one after the other, full of NaN that must not be read."""
    groups, (rows, row) = {}, shape
    for matrix in range(2):
        first = matrix * rows * row
        for width in widths or [row]:
            groups.setdefault((rows, width), []).append((first // 4, row // 4))
            first += width
    [work], xp = memory.muon_work([groups], precision, WHERE), cuda.array_module()
    for name, array in vars(work).items():
        if name != "groups":
            array[...] = xp.asarray(0x7FC0 if array.dtype == np.uint16 else np.nan, array.dtype)
    return work


def step_of(shape, precision="float32", factor=(0.5, 2.0), rate=0.1, decay=0.3, widths=None):
    """Return p and m of two matrices after a step, the reference's in float64, the old p and m, and the copy."""
    xp, rng, both = cuda.array_module(), np.random.default_rng(sum(shape)), (2, *shape)
    p, g, m = (rng.standard_normal(both).astype(np.float32) for _ in range(3))
    arrays = [xp.array(x.reshape(-1)) for x in (p, g, m)]
    copy = xp.zeros(p.size, memory.products_type(precision)) if precision in HALVES else None
    numbers = xp.asarray(factor, np.float32), xp.asarray([rate, 1.5, 2.5], np.float32)
    op = program.Program(TINY, precision)
    op.muon(*arrays, copy, *numbers, 0.95, decay, work_of(shape, precision, widths))
    launches = op.take()
    products = [e.launch for e in launches if isinstance(e.launch, Product)]
    assert products and all(p.small_clusters for p in products), "large clusters failed on a shared GPU"
    program.run(launches)
    found = [memory.download(x).reshape(both) for x in (arrays[0], arrays[2])]
    assert np.array_equal(memory.download(arrays[1]), g.reshape(-1)), "the gradient must not change"
    p64, g64, m64 = (np.asarray(x, np.float64) for x in (p, g, m))
    each = [reference.muon_step(p64[i], factor[0] * g64[i], m64[i], rate, 0.95, decay, widths) for i in range(2)]
    wanted = [np.stack(parts) for parts in zip(*each, strict=True)]
    return found, wanted, (p, m), None if copy is None else memory.download(copy).reshape(both)


def check_composite(shape, precision="float32", widths=None):
    """Compare each matrix separately, in its columns; gradients are clipped, and the copy is the rounded parameter."""
    (p, m), (expected, momentum), (before, _), copy = step_of(shape, precision, widths=widths)
    np.testing.assert_allclose(m, momentum, atol=1e-6)
    columns = np.arange(shape[1])
    for part in np.split(columns, np.cumsum(widths)[:-1]) if widths else [columns]:
        moved = np.linalg.norm((expected - before)[..., part])
        assert np.linalg.norm((p - expected)[..., part]) <= ROUNDED[precision] * moved
    if copy is not None:
        assert np.array_equal(copy, rounded(p, precision))


@pytest.mark.full(but=["None"])
@pytest.mark.parametrize("precision", ["float32", *HALVES])
@pytest.mark.parametrize(
    "shape, widths",
    [(WIDE, None), ((40, 40), None), (TALL, None), ((1, 8), None), (WIDE, [8, 80, 16]), (WIDE, [104])],
    ids=str,
)
def test_the_composite_is_the_reference(shape, widths, precision):
    check_composite(shape, precision, widths)


@pytest.mark.full
def test_columns_that_are_no_fours_are_refused():
    with pytest.raises(NanoEulerError, match=r"a multiple of 4 columns, got 6 of 18 in layers.0.qkv$"):
        memory.muon_groups(replace(TINY, dim=6, heads=1, kv_heads=1))


@pytest.mark.full
@pytest.mark.parametrize("factor", [np.nan, np.inf])
def test_nothing_moves_where_the_norm_is_not_finite(factor):
    (p, m), _, (before, momentum), _ = step_of(WIDE, factor=(1.0, factor))
    assert np.array_equal(p, before) and np.array_equal(m, momentum)


@pytest.mark.full
def test_without_a_gradient_or_a_rate():
    """Check that no gradient leaves only the decay, and that a rate of 0 changes only the momentum."""
    shape, xp = TALL, cuda.array_module()
    op, numbers, both = program.Program(TINY), xp.asarray([0.1, 1, 1], np.float32), (2, *shape)
    p, m = np.random.default_rng(0).standard_normal(both).astype(np.float32), xp.zeros(both, np.float32)
    moved, zero, factor = xp.array(p), xp.zeros(both, np.float32), xp.asarray([1, 0], np.float32)
    flat = (x.reshape(-1) for x in (moved, zero, m))
    op.muon(*flat, None, factor, numbers, 0.95, 0.3, work_of(shape, "float32"))
    program.run(op.take())
    np.testing.assert_allclose(memory.download(moved), p * (1 - 0.1 * 0.3), rtol=1e-6)
    (found, momentum), (_, wanted), (before, _), _ = step_of(shape, rate=0.0)
    assert np.array_equal(found, before)
    np.testing.assert_allclose(momentum, wanted, atol=1e-6)


def check_muon():
    """Run the comparisons that test_planted.py uses on kernels with a bug."""
    check_composite(WIDE)
    check_composite(TALL)
    check_composite(WIDE, "bfloat16")
    test_nothing_moves_where_the_norm_is_not_finite(np.nan)


@pytest.mark.full
def test_the_state_goes_to_the_device_and_back():
    """Continue a CPU run on the device, with its momentum."""
    host = Muon(TINY, SETTINGS)
    host.m.flat[...] = np.random.default_rng(0).standard_normal(host.m.flat.size)
    host.step = 5
    placed = device.Device("checked", "float32").optimizer(host, TINY)
    assert placed.step == 5 and placed.config.optimizer == "muon"
    assert np.array_equal(placed.m.host().flat, host.m.flat) and not placed.v.host().flat.any()


@pytest.mark.full
@on_the_cpu
@pytest.mark.parametrize("precision", ["float32", *HALVES])
def test_memory_is_what_was_said(precision):
    said, plain = (memory.bytes_needed(TINY, 2, 40, precision, optimizer=name) for name in ("muon", "adamw"))
    with engine.Step(engine_of(precision=precision), engine.AdamW(TINY, SETTINGS, WHERE), SETTINGS, 2) as one:
        work = [x.nbytes for name, x in vars(one.work).items() if name != "groups"]
    assert said == plain | {"buffers": plain["buffers"] + sum(work)}


@pytest.mark.full
@on_the_cpu
def test_the_launches():
    """Check that the products use the smaller Gram matrix of each matrix."""
    model = engine_of()
    with engine.Step(model, engine.AdamW(TINY, SETTINGS, WHERE), SETTINGS, 2) as take_step:
        take_step(*batch(5))
        launches = take_step._update_list(model._plan)
    sides = {min(entry.launch.shape[:2]) for entry in launches if isinstance(entry.launch, Product)}
    assert sides == {TINY.dim, TINY.kv_heads * TINY.head_dim}
