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


def test_every_launch_that_is_timed_computes_what_the_reference_does(monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(bench.by_token, "OFTEN", 3)  # so that some shares are of whole tokens, others of columns
    offered = {work.kernel: bench.errors(work) for work in bench.works(Host(), TEXTS)}
    stored = json.loads((bench.FOLDER / "cuda_bandwidth.json").read_text("utf-8"))["rows"]
    assert offered.keys() == {row["kernel"] for row in stored} and all(offered.values())
