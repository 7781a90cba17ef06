"""What `benchmarks/cuda_bandwidth.py` times is right: every launch offered, here on arrays of NumPy."""

import json
import types

import numpy as np
import pytest

from benchmarks import cuda_bandwidth as bench
from nanoeuler_lib import cuda

pytestmark = [
    pytest.mark.full,
    pytest.mark.compiler,
    pytest.mark.skipif(cuda.device() == "gpu", reason="there the benchmark itself compares what it times"),
]
# No two sizes alike, so that none can stand for another; rows: 100.
TEXTS, SMALL = 4, dict(D=96, F=40, V=2000, T=25, HEADS=3, C=32, PARAMETERS=1003, DECAYED=701)


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
    monkeypatch.setattr(bench.by_token, "OFTEN", 3)  # so that some shares are of whole tokens, others of columns
    return lambda: bench.works(Host(), TEXTS)


def test_every_launch_that_is_timed_computes_what_the_reference_does(works):
    offered = {work.kernel: bench.errors(work) for work in works()}
    stored = json.loads((bench.FOLDER / "cuda_bandwidth.json").read_text("utf-8"))["rows"]
    assert offered.keys() == {row["kernel"] for row in stored} and all(offered.values())


def test_the_gradient_of_an_embedding_has_shares_of_both_kinds(works):
    (work,) = (work for work in works() if work.kernel == "embedding_backward")
    shares = work.arrays()[0]
    assert len(set(shares[shares[:, 1] > shares[:, 0], 5] > 0)) == 2


def test_a_launch_that_writes_nothing_ends_the_run(works):
    for work in works():
        block, grid, bind = work.offered[-1]
        work.offered[-1] = block, grid, lambda a, bind=bind: bind(a)[:-1]
        with pytest.raises(
            SystemExit, match=rf"{work.kernel}, .*, block .*: an error of (inf|1\.0e\+00|[2-9]\.\de-01)"
        ):
            bench.errors(work)


def test_what_is_not_written_is_no_small_error():
    """Whichever of a launch's arrays it is, and whatever stands there."""
    wanted = np.array([1.0, 2.0])
    assert bench.distance(np.array([1.0, 2.0 + 1e-6], np.float64), wanted) == pytest.approx(5e-7)
    for hole in (np.nan, np.inf, -np.inf):
        assert bench.distance(np.array([1.0, hole], np.float32), wanted) == np.inf


@pytest.mark.parametrize(
    "file, name, old, new",
    [
        ("adamw", "adamw", "{factor[0], step[0]", "{1.0f, step[0]"),
        ("cross_entropy", "cross_entropy_backward", ": dlosses[blockIdx.x], share", ": dlosses[0], share"),
        ("embedding", "embedding_backward", "k * groups < s.to) add", "k * groups < s.to - 1) add"),
        ("transpose", "transpose_plain", "column * rows + row]", "column * columns + row]"),
    ],
)
def test_a_wrong_kernel_ends_the_run(works, monkeypatch, file, name, old, new):
    text = (cuda.KERNELS / f"{file}.cu").read_text("utf-8")
    assert old in text
    wrong, compiled = cuda.module(text.replace(old, new), checked=False), bench.compiled
    monkeypatch.setattr(bench, "compiled", lambda of, **defines: wrong if of == file else compiled(of, **defines))
    (work,) = (work for work in works() if work.kernel == name)
    with pytest.raises(SystemExit, match=f"{name}, .* an error of"):
        bench.errors(work)
