"""A float32 model computes in float32, a float64 model in float64: no buffer, table, moment or result is otherwise.

A buffer of the wider kind would hide in every tolerance, and cost half of the speed.
"""

import numpy as np
import pytest
from checks import TINY, random_parameters

from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT, Parameters, gradcheck, head_weights, init, loss_scale
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.model.plan import Plan
from nanoeuler_lib.model.step import Step
from nanoeuler_lib.ops import cpu, reference
from nanoeuler_lib.speaking.generate import dense, filtered_probs

DTYPES = [np.float32, np.float64]


def arrays(value):
    """Every array that an object holds, with its name."""
    for name, x in vars(value).items():
        for part in x if isinstance(x, list) else [x]:
            if isinstance(part, np.ndarray):
                yield name, part
            elif hasattr(part, "__dict__") and name == "layers":
                yield from arrays(part)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_decoder_s_arrays(dtype):
    model = GPT(TINY, random_parameters(TINY, dtype=dtype))
    decoder = Decoder(model)
    wide = np.result_type(dtype, np.complex64)
    found = {name: x.dtype for name, x in arrays(decoder)}
    assert len(found) >= 18 and found.pop("turn") == found.pop("pairs") == wide
    assert set(found.values()) == {np.dtype(dtype)}
    for tokens in ([1], [2, 3], [4]):
        assert decoder.read(np.array(tokens)).dtype == dtype
    assert decoder.feed(np.array([1])).dtype == decoder.feed_all(np.array([1, 2])).dtype == dtype
    assert decoder.later_logits(decoder.read(np.array([3]))[0]).dtype == dtype
    assert decoder.length == 8


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_plan_s_arrays(dtype):
    plan = Plan(TINY, 2, 5, dtype)
    assert {x.dtype for x in plan.buffers.values()} == {np.dtype(dtype)} and plan.dtype == dtype
    assert plan.rope.cos.dtype == plan.rope.sin.dtype == dtype
    assert plan.rope.turn.dtype == plan.rope.turn_back.dtype == np.result_type(dtype, np.complex64)
    assert plan.rope.order.dtype.kind == plan.rope.place.dtype.kind == "i"
    assert Plan(TINY, 2, 5).dtype == Parameters(TINY).flat.dtype == init(TINY).flat.dtype == np.float32
    assert (plan.config, plan.batch, plan.time) == (TINY, 2, 5) and len(plan.layers) == TINY.layers


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_and_its_moments(dtype):
    settings = TrainConfig(steps=9, batch=4)
    model = GPT(TINY, random_parameters(TINY, dtype=dtype))
    optimizer = AdamW(TINY, settings, dtype)
    assert optimizer.m.flat.dtype == optimizer.v.flat.dtype == dtype and optimizer.step == 0
    step = Step(model, optimizer, settings, 4, 2)
    assert {grads.flat.dtype for grads in step.grads} == {np.dtype(dtype)}
    assert {plan.dtype for plan in step.plans} == {np.dtype(dtype)}
    with one_blas_thread():
        losses, norm = step(*gradcheck.check_batch(TINY, 4, TINY.context, 0))
    step.pool.shutdown()
    assert losses.dtype == np.float64 and type(norm) is float and model.dtype == dtype
    assert AdamW(TINY, settings).m.flat.dtype == np.float32


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_model_gives(dtype):
    model = GPT(TINY, random_parameters(TINY, dtype=dtype))
    tokens, targets = gradcheck.check_batch(TINY, 2, 5, 0)
    for result in (
        model.hidden(tokens),
        model.logits(tokens),
        model.logits(tokens, 2),
        model.losses(tokens, targets),
    ):
        assert result.dtype == dtype
    loss, grads = model.loss_and_gradients(tokens, targets)
    assert type(loss) is type(model.loss(tokens, targets)) is float and grads.flat.dtype == dtype
    assert head_weights(TINY).dtype == loss_scale(targets, head_weights(TINY)).dtype == np.float64


def test_what_sampling_gives():
    tokens, probs = filtered_probs(np.arange(5, dtype=np.float32), 0.5, 3)
    assert (
        probs.dtype == np.float64 and tokens.dtype.kind == "i" and dense(tokens, probs, 9).dtype == np.float64
    )
    tokens, probs = filtered_probs(np.arange(5, dtype=np.float32), 0)
    assert tokens.tolist() == [4] and probs.tolist() == [1.0] and probs.dtype == np.float64


@pytest.mark.parametrize("dtype", DTYPES)
def test_masks_and_tables(dtype):
    mask = cpu._mask(4, np.dtype(dtype))
    assert mask.dtype == dtype and np.array_equal(np.isinf(mask), np.triu(np.ones((4, 4), bool), 1))
    assert (mask[np.tril_indices(4)] == 0).all() and (mask[np.triu_indices(4, 1)] < 0).all()
    cos, sin = reference.rope_tables(5, 4, 100.0)
    assert cos.shape == sin.shape == (5, 2) and cos.dtype == sin.dtype == np.float64


def test_batches_of_the_check_are_whole_numbers():
    tokens, targets = gradcheck.check_batch(TINY, 3, 4, 0)
    assert tokens.shape == (3, 4) and targets.shape == (3, 4, TINY.predict)
    assert tokens.dtype.kind == targets.dtype.kind == "i" and targets.min() == -1
    assert (gradcheck.check_batch(TINY, 3, 4, 0, masked=0.0)[1] >= 0).all()
