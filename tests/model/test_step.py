"""A step on several threads: the same bits for the same number of workers, nothing allocated, work dealt out evenly."""

import tracemalloc

import numpy as np
import oracles
import pytest

from nanoeuler_lib import machine
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.gradcheck import check_batch
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.model.step import Step
from nanoeuler_lib.training.train import expect_memory

MODEL = ModelConfig(dim=32, heads=4, kv_heads=2, layers=2, context=96, vocab_size=50, predict=2)
SETTINGS = TrainConfig(steps=20, batch=24, warmup=2, rate=1e-2)


def ten_steps(workers, dtype=np.float32):
    """Losses and parameters after ten steps on text that can be learnt."""
    model = GPT(MODEL, oracles.random_parameters(MODEL, 0, 0.1, dtype))
    step = Step(model, AdamW(MODEL, SETTINGS, dtype), SETTINGS, 24, workers)
    assert step.workers == workers
    with one_blas_thread():
        results = [step(*check_batch(MODEL, 24, 96, number % 3)) for number in range(10)]
    step.pool.shutdown()
    return np.array([[*losses, norm] for losses, norm in results]), model.params.flat


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_same_bits_each_time(workers):
    runs = [ten_steps(workers) for _ in range(2)]
    assert runs[0][0].tobytes() == runs[1][0].tobytes() and runs[0][1].tobytes() == runs[1][1].tobytes()


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_another_number_of_workers_only_rounds_otherwise(workers):
    """float64: 1e-10 after ten steps. float32: losses and norms to 1e-4, and parameters to a tenth of one step."""
    for dtype, rtol, moved in ((np.float64, 1e-10, 1e-10), (np.float32, 1e-4, SETTINGS.rate / 10)):
        (one, one_params), (many, many_params) = ten_steps(1, dtype), ten_steps(workers, dtype)
        oracles.close(many, one, rtol, "losses and norms")
        assert np.abs(many_params - one_params).max() <= moved
    assert many_params.tobytes() != one_params.tobytes(), "the order of sums must differ, or this test says nothing"


@pytest.mark.parametrize(
    "rows, workers, expected",  # context 96: at most 5 rows are 512 tokens
    [(16, 2, (4, 2)), (16, 16, (4, 4)), (16, 1, (4, 1)), (15, 2, (5, 2)), (7, 2, (1, 2)), (1, 4, (1, 1)),
     (12, 3, (4, 3)), (12, 5, (4, 3))],
)  # fmt: skip
def test_work_is_dealt_out(rows, workers, expected):
    """In the largest equal parts that the cache likes, and no worker without one."""
    step = Step(GPT(MODEL), AdamW(MODEL, SETTINGS), SETTINGS, rows, workers)
    step.pool.shutdown()
    assert (step.micro, step.workers) == expected and rows % step.micro == 0


def test_a_sequence_longer_than_a_micro_batch():
    config = ModelConfig(dim=8, heads=2, kv_heads=1, layers=1, context=600, vocab_size=9, predict=1)
    step = Step(GPT(config), AdamW(config, SETTINGS), SETTINGS, 4, 2)
    step.pool.shutdown()
    assert (step.micro, step.workers) == (1, 2)


@pytest.mark.parametrize("rows", [8, 16])
def test_steps_allocate_nothing(rows):
    """After the first step, memory peaks less than 1 MB above its level, whatever the batch, and does not creep up."""
    config = preset("small", layers=2)
    settings = TrainConfig(batch=rows)
    step = Step(GPT(config), AdamW(config, settings), settings, rows, workers=2)
    batch = check_batch(config, rows, config.context, 0)
    with one_blas_thread():
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
    step.pool.shutdown()
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
    """Twelve bytes a parameter: it, its gradient and a moment."""
    config = preset("small")
    need = 12 * GPT(config).size
    for there in (need, None):
        monkeypatch.setattr("nanoeuler_lib.training.train.memory", lambda there=there: there)
        expect_memory(config)
    monkeypatch.setattr("nanoeuler_lib.training.train.memory", lambda: need - 1)
    with pytest.raises(NanoEulerError, match=f"{need // 12:,} parameters: a run takes .* GiB at least, and this"):
        expect_memory(config)
