"""The clock of the kernel chapters: what it counts, and what a copy of so many bytes is."""

import time

import numpy as np
import pytest

from nanoeuler_lib import cuda

ON_CPU = pytest.mark.skipif(cuda.device() == "gpu", reason="counts calls of the CPU's clock")


@ON_CPU
def test_the_median_leaves_out_the_first_launch_and_a_slow_one():
    waits = iter([0.5, 0.002, 0.3, 0.002])  # the first one compiles, the third is disturbed
    assert 0.002 <= cuda.median_seconds(lambda: time.sleep(next(waits)), launches=3) < 0.1
    assert next(waits, None) is None  # one launch that is not counted, and three


@ON_CPU
def test_a_copy_moves_as_many_bytes_as_it_says(monkeypatch):
    moved = []

    def copyto(target, source):
        moved.append((target.nbytes, source.nbytes, target is not source))

    monkeypatch.setattr(np, "copyto", copyto)
    cuda.copy_seconds(1 << 20, launches=2)
    assert moved == [(1 << 19, 1 << 19, True)] * 3
