"""A step on several threads: the same bits for the same number of workers, nothing allocated, work dealt out evenly."""

import functools
import tracemalloc
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import oracles
import pytest

from nanoeuler_lib import machine
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model import step as step_module
from nanoeuler_lib.model.gradcheck import check_batch
from nanoeuler_lib.model.optim import AdamW, optimizer_of
from nanoeuler_lib.model.step import Step
from nanoeuler_lib.training.train import expect_memory

MODEL = ModelConfig(dim=16, heads=4, kv_heads=2, layers=2, context=48, vocab_size=30, predict=2)
ADAMW = TrainConfig(steps=10, batch=12, warmup=2, rate=1e-2)
MUON = replace(ADAMW, optimizer="muon")


def run_ten_steps(settings, workers, dtype=np.float32):
    """Losses and norms of ten steps on two batches that can be learnt, and the parameters after them."""
    model = GPT(MODEL, oracles.random_parameters(MODEL, 0, 0.1, dtype))
    with (
        patch.object(step_module, "MICRO_TOKENS", 144),
        one_blas_thread(),
        Step(model, optimizer_of(MODEL, settings, dtype), settings, 12, workers) as step,
    ):
        assert step.workers == workers
        results = [step(*check_batch(MODEL, 12, 48, number % 2)) for number in range(10)]
    return np.array([[*losses, norm] for losses, norm in results]), model.params.flat


ten_steps = functools.cache(run_ten_steps)


@pytest.mark.parametrize("settings", [ADAMW, MUON], ids=["adamw", "muon"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_same_bits_each_time(workers, settings):
    for one, again in zip(ten_steps(settings, workers), run_ten_steps(settings, workers)):
        assert one.tobytes() == again.tobytes()
    losses = ten_steps(settings, workers)[0][:, 0]
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("settings", [ADAMW, MUON], ids=["adamw", "muon"])
@pytest.mark.parametrize("workers", [2, 3])
def test_another_number_of_workers_only_rounds_otherwise(workers, settings):
    """float64: 1e-9 after ten steps. float32: losses and norms to 1e-4, and parameters to a tenth of one step."""
    for dtype, rtol, moved in ((np.float64, 1e-9, 1e-9), (np.float32, 1e-4, settings.rate / 10)):
        (one, one_params), (many, many_params) = ten_steps(settings, 1, dtype), ten_steps(settings, workers, dtype)
        oracles.close(many, one, rtol, "losses and norms")
        assert np.abs(many_params - one_params).max() <= moved
    assert many_params.tobytes() != one_params.tobytes(), "the order of sums must differ, or this test says nothing"


@pytest.mark.parametrize(
    "context, rows, workers, micro, used",  # of context 96, 5 rows are at most 512 tokens
    [(96, 16, 2, 4, 2), (96, 16, 16, 4, 4), (96, 16, 1, 4, 1), (96, 15, 2, 5, 2), (96, 7, 2, 1, 2), (96, 1, 4, 1, 1),
     (96, 12, 3, 4, 3), (96, 12, 5, 4, 3), (600, 4, 2, 1, 2)],
)  # fmt: skip
def test_work_is_dealt_out(context, rows, workers, micro, used):
    """In the largest equal parts that the cache likes, and no worker without one."""
    config = replace(MODEL, context=context)
    with Step(GPT(config), AdamW(config, ADAMW), ADAMW, rows, workers) as step:
        assert (step.micro, step.workers) == (micro, used)


def test_a_pair_is_not_cut_in_two(monkeypatch):
    monkeypatch.setattr(step_module, "MICRO_TOKENS", 3 * oracles.TINY.context)
    model = GPT(oracles.TINY)
    sizes = [Step(model, None, TrainConfig(), 6, 1, together=together).micro for together in (1, 2)]
    assert sizes == [3, 2]


def test_steps_allocate_nothing():
    """After the first step, memory peaks less than 1 MB above its level, and does not creep up."""
    config, settings = preset("small", layers=1), TrainConfig(batch=8)
    batch = check_batch(config, 8, config.context, 0)
    with one_blas_thread(), Step(GPT(config), AdamW(config, settings), settings, 8, workers=2) as step:
        step(*batch)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            for _ in range(3):
                step(*batch)
            level, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert sum(plan.nbytes for plan in step.plans) > 1e7, "too small for the test to mean anything"
    assert peak - before < 1e6 and level - before < 1e5, (peak - before, level - before)


def test_memory_is_the_machines_or_a_containers(tmp_path, monkeypatch):
    limits = [tmp_path / name for name in ("none", "max", "bytes")]
    monkeypatch.setattr(machine, "LIMITS", [])
    whole = machine.memory()
    assert whole is None or whole > 1 << 28
    limits[1].write_text("max\n")
    limits[2].write_text("4096\n")
    monkeypatch.setattr(machine, "LIMITS", limits[:2])
    assert machine.memory() == whole
    monkeypatch.setattr(machine, "LIMITS", limits)
    assert whole is None or machine.memory() == 4096
    monkeypatch.delattr("os.sysconf", raising=False)
    assert machine.memory() is None


def test_a_model_that_finds_no_room_is_refused(monkeypatch):
    """Twelve bytes per parameter: it, its gradient and a moment."""
    config = preset("small")
    need = 12 * GPT(config).size
    for there in (need, None):
        monkeypatch.setattr("nanoeuler_lib.training.train.memory", lambda there=there: there)
        expect_memory(config)
    monkeypatch.setattr("nanoeuler_lib.training.train.memory", lambda: need - 1)
    with pytest.raises(NanoEulerError, match=f"got {need // 12:,} parameters, which need at least .* GiB: use"):
        expect_memory(config)
