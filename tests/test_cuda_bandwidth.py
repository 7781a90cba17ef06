"""What `benchmarks/cuda_bandwidth.py` times is right: every launch offered, here on arrays of NumPy."""

import types

import numpy as np
import pytest

from benchmarks import cuda_bandwidth as bench
from nanoeuler_lib import cuda

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(cuda.device() == "gpu", reason="there the benchmark itself compares what it times"),
]
SMALL = dict(D=96, F=40, V=2000, T=24, HEADS=3, C=32, PARAMETERS=1003, DECAYED=701)
TEXTS = 4


class Host:
    """The part of CuPy that the benchmark asks for, of NumPy; a card of two processors."""

    def __init__(self):
        device = types.SimpleNamespace(attributes={"MultiProcessorCount": 2})
        self.cuda = types.SimpleNamespace(Device=lambda: device)

    def __getattr__(self, name):
        return getattr(np, "asarray" if name == "asnumpy" else name)


@pytest.fixture
def works(monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(bench, name, value)
    return lambda: bench.works(Host(), TEXTS)


def test_every_launch_that_is_timed_computes_what_the_reference_does(works):
    offered = {work.kernel: bench.errors(work) for work in works()}
    assert len(offered) > 20 and all(offered.values())


def test_a_launch_that_writes_nothing_ends_the_run(works):
    for work in works():
        block, grid, bind = work.offered[-1]
        work.offered[-1] = block, grid, lambda a, bind=bind: bind(a)[:-1]
        wanted = rf"{work.kernel}, .*, block .*: (nan|[1-9]\S+) of the largest number away"
        with pytest.raises(SystemExit, match=wanted):
            bench.errors(work)


@pytest.mark.parametrize(
    "name", ["vector_add", "rope_forward", "column_sums", "transpose_tiled", "embedding_forward"]
)
def test_a_launch_with_a_block_too_few_ends_the_run(works, monkeypatch, name):
    """As the sum of columns was timed once: a part of them."""
    monkeypatch.setattr(bench, "blocks_for", lambda n, block: max(1, -(-n // block) - 1))
    (work,) = [work for work in works() if work.kernel == name][-1:]
    with pytest.raises(SystemExit, match=f"{name}, .*nan of the largest number away"):
        bench.errors(work)


def test_what_is_a_little_wrong_is_far(works):
    work = next(works())
    truth = work.truth
    work.truth = lambda before, after: [(got, wanted * (1 + 3e-5)) for got, wanted in truth(before, after)]
    with pytest.raises(SystemExit, match=r"3\.0e-05 of the largest number away .* expected 2e-05 at most"):
        bench.errors(work)
