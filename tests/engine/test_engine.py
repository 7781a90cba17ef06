"""Test the GPU engine through the CPU runtime, with all accesses checked: it computes what the CPU computes.

Shapes are tiny and lengths odd. The lists of launches that a GPU would run are in launches.txt, which
`python tests/engine/test_engine.py` writes.
"""

import functools
import json
import sys
from dataclasses import replace
from itertools import chain
from itertools import product as product_of
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest

from nanoeuler_lib import cuda, engine
from nanoeuler_lib.command import cli
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.cuda.blas import from_bfloat16, to_bfloat16
from nanoeuler_lib.engine import device, embedding, flash, gpt, loss_scale, memory, program, unfused
from nanoeuler_lib.engine import step as engine_step
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT, backward, forward, gradcheck, init
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.model.optim import AdamW, Muon, moved_by_muon
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import checkpoint, sft

TINY = ModelConfig(dim=64, heads=2, kv_heads=1, layers=2, context=65, vocab_size=96, predict=2, ffn=176)
WHERE = cuda.device()
LAUNCHES = Path(__file__).with_name("launches.txt")
pytestmark = [] if WHERE == "gpu" else [pytest.mark.compiler]
on_the_cpu = pytest.mark.skipif(WHERE == "gpu", reason="checks lists with the CPU runtime's checker")


def parameters(config=TINY, std=0.2, seed=0):
    """Return gains that are not 1 and matrices larger than at initialisation, so that no term vanishes."""
    params = init(config, seed, std, np.float64)
    rng = np.random.default_rng(seed)
    for p in params.values():
        if p.ndim == 1:
            p[...] = rng.uniform(0.5, 1.5, p.shape)
    return params


def batch(time, rows=2, seed=0, config=TINY):
    """Return tokens, some of them frequent, and targets, some of them missing."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, config.vocab_size, (rows, time)) // rng.integers(1, 9, (rows, time))
    tokens[:, 3::5] = config.vocab_size - 1  # this token's list of positions is cut in two
    return tokens, rng.integers(-1, config.vocab_size, (rows, time, config.predict))


def engine_of(params=None, precision="float32", config=TINY, **options):
    return engine.GPT(config, params or parameters(config), precision=precision, **options)


def apart(found, expected):
    """Return the largest ||found - expected|| / ||expected|| over all tensors."""
    return max(np.linalg.norm(found[name] - p) / max(np.linalg.norm(p), 1e-30) for name, p in expected.items())


# float32: its rounding through two layers; bfloat16 and float16, with 8 and 11 bits per number: twice the largest error
# that was seen, which is 2% to 4% and 0.3% to 0.7%.
ALLOWED = {"float32": 1e-5, "tf32": 1e-2, "bfloat16": 8e-2, "float16": 1.5e-2}
HALVES = "bfloat16", "float16"


def rounded(x, precision):
    """Return float32 numbers, rounded to this precision."""
    return from_bfloat16(to_bfloat16(x)) if precision == "bfloat16" else x.astype(np.float16).astype(np.float32)


def check_gradients(model, params, tokens, targets):
    """Compare loss and gradients with the reference in float64; return the results of both."""
    found, expected = (m.loss_and_gradients(tokens, targets) for m in (model, GPT(model.config, params)))
    assert abs(found[0] - expected[0]) <= ALLOWED[model.precision] * expected[0]
    assert apart(found[1], expected[1]) <= ALLOWED[model.precision]
    return found, expected


@pytest.mark.full(but=["float32-37", "bfloat16-37"])
@pytest.mark.parametrize("precision, time", [*product_of(("float32", *HALVES), (1, 37, 65)), ("tf32", 37)])
def test_all_that_a_model_gives_is_the_references(precision, time):
    params, (tokens, targets) = parameters(), batch(time)
    mine, reference = engine_of(params, precision), GPT(TINY, params)
    (loss, grads), _ = check_gradients(mine, params, tokens, targets)
    for found, wanted in (
        (mine.hidden(tokens), reference.hidden(tokens)),
        (mine.logits(tokens, 1), reference.logits(tokens, 1)),
        (mine.losses(tokens, targets), reference.losses(tokens, targets)),
        (mine.losses(tokens, targets[..., 0]), reference.losses(tokens, targets[..., 0])),
    ):
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= ALLOWED[precision] * np.abs(wanted).max()
    again, twice = mine.loss_and_gradients(tokens, targets)
    assert again == loss and all(np.array_equal(twice[name], grads[name]) for name in grads), "the same bits"


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float32", *HALVES])
@pytest.mark.parametrize(
    "width, heads, groups, time",
    [
        *((32, 4, 1, 19), (32, 4, 4, 19), (64, 4, 1, 19), (128, 4, 2, 19)),
        *((32, 8, 1, 16), (32, 3, 1, 32), (32, 2, 1, 64), (32, 3, 1, 128)),  # rows that fill all their tiles
    ],
)
def test_other_heads_and_lengths(width, heads, groups, time, precision):
    shape = dict(dim=width * heads, heads=heads, kv_heads=groups, layers=1, context=128, ffn=48, predict=1)
    config = replace(TINY, vocab_size=40, **shape)
    params = parameters(config, 0.1)
    check_gradients(engine_of(params, precision, config), params, *batch(time, config=config))


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float32", *HALVES])
def test_a_gain_of_0_has_its_gradient(precision):
    check_gains(precision)


def check_gains(precision):
    """Test gains that are 0 or tiny, because the backward pass of a norm divides y by the gain to get x."""
    params = parameters()
    for p in params.values():
        if p.ndim == 1:
            p[:12] = np.resize([0.0, -0.0, 1e-30, -1e-25], 12)
    (_, grads), (_, expected) = check_gradients(engine_of(params, precision), params, *batch(37))
    dead = {name: g[:12] for name, g in expected.items() if g.ndim == 1}
    assert all(np.linalg.norm(g) > 0 for g in dead.values())
    assert apart({name: grads[name][:12] for name in dead}, dead) <= 2 * ALLOWED[precision]
    params["layers.1.norm2"][5] = np.nan
    loss, grads = engine_of(params, precision).loss_and_gradients(*batch(9))
    assert np.isnan(loss) and np.isnan(grads["embed"]).any()


ADD = """extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}"""


@pytest.mark.full
@pytest.mark.parametrize("own", ["", ADD])
def test_each_loss_may_have_a_weight_of_either_sign(own):
    """Test the gradient of (losses * scale).sum(), scale [N, K], which preferences and rewards need; also unfused."""
    params, (tokens, targets) = parameters(), batch(37)
    model, reference = engine_of(params, kernels=cuda.module(own) if own else None), GPT(TINY, params)
    tokens, plan, trunk = model._forward(tokens)
    scale = np.random.default_rng(5).normal(size=plan.losses.shape).astype(np.float32)
    grads = memory.Parameters(TINY, WHERE)
    there = cuda.array_module(WHERE).asarray(scale)
    backward(model.weights, grads, plan, plan.tokens, plan.targets, there)
    back = plan.program.take()
    plan.put(tokens, targets, np.zeros(TINY.predict))
    plan.sort(tokens)
    program.run(trunk)
    program.run(back)
    whole, expected = reference.plan(*tokens.shape), type(params)(TINY, np.float64)
    reference.forward(whole, tokens)
    reference.backward(expected, whole, tokens, targets, scale.astype(float))
    assert apart(grads.host(), expected) <= ALLOWED["float32"]


@pytest.mark.full
@pytest.mark.parametrize("predict, micro", [(2, 1), (33, 2)])
def test_targets_may_be_missing_in_any_number(predict, micro):
    """Check by row, head and micro-batch that each head's loss is the mean over its targets, also for over 32 heads."""
    config = replace(TINY, layers=1, vocab_size=40, ffn=48, predict=predict)
    rng, settings = np.random.default_rng(3), TrainConfig(steps=9, warmup=1, rate=3e-3, batch=4)
    tokens, targets = rng.integers(0, 40, (4, 9)), rng.integers(0, 40, (4, 9, predict))
    for row, kept in enumerate((9, 0, 1, 5)):
        targets[row, kept:] = -1
    for head in range(predict):
        targets[:, head % 7 :: 3 + head % 2, head] = -1
    targets[0, :, -1], targets[3, 4, -1] = -1, 7  # the first micro-batches have no target of the last head
    models = engine_of(parameters(config), config=config), GPT(config, parameters(config))
    optimizers, found = (engine.AdamW(config, settings, WHERE), AdamW(config, settings)), []
    for model, optimizer, options in zip(models, optimizers, ({"micro": micro}, {}), strict=True):
        with device.step_of(model)(model, optimizer, settings, 4, **options) as take_step:
            found.append(np.append(*take_step(tokens, targets)))
    np.testing.assert_allclose(*found, rtol=1e-5)
    assert apart(models[0].params.host(), models[1].params) <= 1e-5


def steps_of(model, optimizer, config, lengths, rows=4, seeds=range(9), **options):
    """Return losses and norms of some steps, and the parameters after them."""
    found = []
    with device.step_of(model)(model, optimizer, config, rows, **options) as take_step:
        for seed, time in zip(seeds, lengths, strict=False):
            found.append(np.append(*take_step(*batch(time, rows, seed, model.config))))
    return np.array(found), model.params.host()


@pytest.mark.full(but=["adamw-2"])
@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_steps_are_those_of_the_cpu(optimizer, micro):
    """Check that micro-batches add up, gradients are clipped, the rate follows its schedule, and gains do not decay.

    Muon updates the matrices inside blocks, and AdamW updates the other tensors; both keep their moments in place.
    """
    config = TrainConfig(
        steps=9, warmup=2, rate=3e-3, clip=0.5, decay=0.3, batch=4, adam_eps=1e-4, optimizer=optimizer
    )  # fmt: skip
    theirs = AdamW if optimizer == "adamw" else Muon
    (found, params, m, v), (expected, wanted, m_wanted, v_wanted) = (
        (*steps_of(model, state, config, [9, 33, 9], **more), state.m.host(), state.v.host())
        for model, state, more in (
            (engine_of(), engine.AdamW(TINY, config, WHERE), dict(micro=micro)),
            (GPT(TINY, parameters()), theirs(TINY, config, np.float64), {}),
        )
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert apart(params, wanted) <= 1e-5 and apart(m, m_wanted) <= 1e-4
    for name, start in init(TINY, 0).items():
        assert not np.array_equal(params[name], start), "a step must change every tensor"
        np.testing.assert_allclose(v[name], v_wanted[name], atol=1e-4 * max(np.abs(v_wanted[name]).max(), 1e-9))
        assert (optimizer == "muon" and moved_by_muon(name)) == (not v[name].any())


@pytest.mark.full
@pytest.mark.parametrize("both", ["optimisers", "steps"])
def test_two_optimisers_or_two_steps_of_one_model_do_not_disturb_each_other(both):
    """Use them alternately on one model, each with its own moments, and compare with the CPU."""
    config = TrainConfig(steps=9, warmup=0, rate=3e-3, clip=0.5, batch=4)
    found = []
    for model, made in (
        (engine_of(), lambda: engine.AdamW(TINY, config, WHERE)),
        (GPT(TINY, parameters()), lambda: AdamW(TINY, config, np.float64)),
    ):
        first, make = made(), device.step_of(model)
        second = made() if both == "optimisers" else first
        with make(model, first, config, 4) as one, make(model, second, config, 4) as two:
            steps = [np.append(*take(*batch(9, 4))) for take in (one, two, one, two)]
        found.append((steps, model.params.host(), (first.step, second.step)))
    (ours, params, counts), (theirs, wanted, expected) = found
    np.testing.assert_allclose(ours, theirs, rtol=3e-4)
    assert apart(params, wanted) <= 3e-4 and counts == expected == ((2, 2) if both == "optimisers" else (4, 4))


@pytest.mark.full
@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_copies_of_16_bits_follow_the_master_weights(optimizer, precision):
    config = TrainConfig(steps=9, warmup=0, rate=1e-2, optimizer=optimizer)
    model = engine_of(precision=precision)
    steps_of(model, engine.AdamW(TINY, config, WHERE), config, [9, 9])
    for name, p in model.params.items():
        copy, p = memory.download(model.copy[name]), memory.download(p)
        assert np.array_equal(copy, rounded(p, precision)), name
    assert model.params.flat.dtype == np.float32


@pytest.mark.full(but=["adamw-float32"])
@pytest.mark.parametrize(
    "optimizer, precision", [("adamw", "float32"), ("muon", "float32"), ("adamw", "bfloat16"), ("adamw", "float16")]
)
def test_nothing_moves_where_the_norm_is_not_finite(optimizer, precision):
    check_refused(optimizer, precision)


def check_refused(optimizer="adamw", precision="float32"):
    config = TrainConfig(steps=9, warmup=0, clip=0.0, optimizer=optimizer)
    params = parameters()
    params["layers.0.out"][3, 5] = np.inf
    model, optimizer = engine_of(params, precision), engine.AdamW(TINY, config, WHERE)
    before = model.params.host().flat
    with engine.Step(model, optimizer, config, 2) as take_step:
        losses, norm = take_step.gradient(*batch(5)), take_step.apply()
        assert not np.isfinite(losses).all() and not np.isfinite(norm)
        assert np.array_equal(model.params.host().flat, before)
        assert not optimizer.m.flat.any() and optimizer.step == 0
        assert np.isnan(take_step(*batch(5))[1])


@pytest.mark.full(but=["adamw"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_an_overflow_leaves_no_trace_but_a_smaller_loss_scale(optimizer):
    """Compare with a run that begins with the scale that the first run arrives at: each step has the same bits."""
    config, found = TrainConfig(steps=9, warmup=2, rate=3e-3, clip=0.5, batch=4, optimizer=optimizer), []
    scale = [2**40, 7]
    for _ in range(2):
        model, state = engine_of(precision="float16"), engine.AdamW(TINY, config, WHERE)
        state.loss_scale = scale
        with engine.Step(model, state, config, 4, micro=2) as take_step:
            steps = [np.append(*take_step(*batch(time, 4, time))) for time in (9, 33, 9)]
            gradient = take_step.whole_gradient().flat
            np.testing.assert_allclose(np.linalg.norm(gradient), steps[-1][-1], rtol=1e-5)
            found.append([np.array(steps), gradient, *(x.host().flat for x in (model.params, state.m, state.v))])
        scale, steps = take_step.info["loss_scale"]
        assert 1 < scale < 2**40 and (steps, state.step) == (3, 3)
        scale = [scale, 0]
    assert all(np.array_equal(*pair) for pair in zip(*found, strict=True))
    assert np.isfinite(found[0][0]).all()
    exact, state = GPT(TINY, parameters()), (AdamW if optimizer == "adamw" else Muon)(TINY, config, np.float64)
    np.testing.assert_allclose(found[0][0], steps_of(exact, state, config, [9, 33, 9], seeds=(9, 33, 9))[0], rtol=1e-2)


def test_a_loss_scale_grows_while_nothing_overflows(monkeypatch):
    """Check that an overflow restarts the count, and that a loss that is not finite changes nothing."""
    monkeypatch.setattr(loss_scale, "GROWS_AFTER", 3)
    scale = loss_scale.LossScale(8)
    told = [scale.accepts(norm, np.ones(2)) for norm in (1, 1, 1, 1, 1, np.inf, 1, np.nan)]
    assert told == [True] * 5 + [False, True, False] and (scale.value, scale.steps) == (4, 0)
    assert scale.accepts(np.nan, np.array([1, np.inf])) and scale.value == 4
    assert [scale.accepts(np.inf, np.ones(2)) for _ in range(3)] == [False, False, True] and scale.value == 1


@pytest.mark.full
@pytest.mark.parametrize("sum_", [1e30, np.inf, -np.inf, np.nan])
def test_a_loss_that_is_not_finite_moves_nothing(sum_):
    """Check this even if the gradient's norm is finite."""
    xp, op = cuda.array_module(), program.Program(TINY)
    factor, sums = xp.asarray([0.5, 2], np.float32), xp.asarray([3, sum_, 4], np.float32)
    op.refuse(factor, sums)
    program.run(op.take())
    assert memory.download(factor)[1] == 2 if sum_ == 1e30 else np.isnan(memory.download(factor)[1])


@pytest.mark.parametrize("shape", [(1 << 20, 8), (8, 1 << 20)], ids=["positions", "tokens"])
def test_an_embedding_whose_elements_32_bits_cannot_count_is_refused(shape):
    """Pretend large arrays: one number, repeated 2^32 times."""
    dx, dtable = (np.broadcast_to(np.float32(0), (n, 4096)) for n in shape)
    for kind in (program.Program, unfused.Unfused):
        with pytest.raises(NanoEulerError, match=r"fewer than 2\^32 numbers, got 4,294,967,296"):
            kind.embed_back(engine_of().program, dtable, program.Residual(dx, None), None, False,
                            shares=[0], order=None, sorted_tokens=None)  # fmt: skip


def test_lists_that_run_again_give_the_same_bits():
    """Compare several runs of a list: on a GPU the second run is captured in a graph, and the third replays it."""
    config = TrainConfig(steps=9, warmup=0, rate=0.0, decay=0.0)
    model, losses = engine_of(precision="bfloat16"), []
    with engine.Step(model, engine.AdamW(TINY, config, WHERE), config, 4, micro=2) as take_step:
        for seed in (0, 0, 0, 0, 1, 0):
            losses.append([*take_step(*batch(9, 4, seed))[0], take_step.grads.host().flat.copy()])
        lists = chain.from_iterable(x if isinstance(x, tuple) else [x] for x in model._plan.lists.values())
        assert all((launches.graph is None) == (WHERE == "cpu") for launches in lists)
    for found in (*losses[1:4], losses[5]):
        assert all(np.array_equal(a, b) for a, b in zip(found, losses[0], strict=True))
    assert losses[4][0] != losses[0][0]


@pytest.mark.full
@on_the_cpu
@pytest.mark.parametrize("keep_x", [False, True])
@pytest.mark.parametrize("precision", ["float32", *HALVES])
def test_memory_is_what_was_said(precision, keep_x):
    """Check that buffers and states take the bytes that `bytes_needed` returns."""
    model, owners = engine_of(precision=precision), {}
    with patch.object(engine.GPT, "keep_x", keep_x):
        plan = memory.Plan(model, 3, 40)
    for holder in (plan, plan.scratch, plan.dx, *plan.layers):
        for x in vars(holder).values():
            while isinstance(x, np.ndarray) and x.base is not None:
                x = x.base
            if isinstance(x, np.ndarray):
                owners[id(x)] = x.nbytes
    states = 4 * model.params.flat.nbytes + (0 if model.copy is None else model.copy.flat.nbytes)
    buffers = sum(owners.values()) - plan.scratch.square_parts.nbytes
    assert memory.bytes_needed(TINY, 3, 40, precision, keep_x) == {"buffers": buffers, "states": states}


@pytest.mark.full
@on_the_cpu
def test_as_many_rows_as_fit_go_through_together():
    one, two = (memory.bytes_needed(TINY, rows, TINY.context, "float32")["buffers"] for rows in (1, 2))
    model = engine_of()
    with patch.object(engine_step, "free_bytes", lambda where: two + model.params.flat.nbytes):
        assert engine_step.fitting(model, 4) == 2 and engine_step.fitting(model, 3) == 1
    with patch.object(engine_step, "free_bytes", lambda where: one):
        with pytest.raises(NanoEulerError, match=r"one row of 65 tokens and the gradient take .* are free: take"):
            engine_step.fitting(model, 4)


@pytest.mark.full
def test_plans_of_several_shapes_lie_in_one_block_of_memory():
    """Use batches of many lengths, as in fine-tuning: each is planned once, and the plans do not disturb each other."""
    config = TrainConfig(steps=9, warmup=0)
    batches = [batch(time, 2, seed=time) for time in (7, 32, 7, TINY.context, 32, 7)]

    def losses_of(model, forgets):
        take_step, found = engine.Step(model, engine.AdamW(TINY, config, WHERE), config, 2), []
        block = model._block
        for one in batches:
            if forgets:
                model._plans.clear()
            found.append(take_step(*one)[0])
        assert block is model._block  # allocated for the longest rows before the first batch
        return found

    model = engine_of()
    assert np.array_equal(losses_of(model, False), losses_of(engine_of(), True))
    size = model._block.bytes.size
    for rows in range(1, gpt.PLANS + 2):
        model.plan(1, rows)
    assert len(model._plans) == gpt.PLANS
    model.plan(3, TINY.context)  # the block must grow for this plan, so the buffers of all other plans are lost
    assert len(model._plans) == 1 and model._block.bytes.size > size


@pytest.mark.full
@pytest.mark.parametrize(
    "change, precision, words",
    [
        (dict(heads=4), "float32", "head width dim/heads must be 32, 64 or 128 on a GPU, got 16"),
        (dict(vocab_size=97), "float32", "vocab_size must be a multiple of 8 up to 32768 on a GPU, got 97"),
        (dict(ffn=100), "float32", "ffn must be a multiple of 8 up to 32768 on a GPU, got 100"),
        (dict(vocab_size=40000), "float32", "vocab_size must be a multiple of 8 up to 32768 on a GPU, got 40000"),
        ({}, "float64", "precision must be one of float32, tf32, bfloat16, float16, got 'float64'"),
        ({}, "bfloat16", r"bfloat16 needs compute capability 8\.0 or later, this GPU has 7\.5"),
    ],
)
def test_what_the_kernels_do_not_take_is_one_sentence(change, precision, words):
    old = flash.Card(75, 64 << 10)
    with pytest.raises(NanoEulerError, match=words):
        engine_of(SimpleNamespace(), precision, replace(TINY, **change), on=old)
    for precision in ("float32", "float16"):
        engine_of(precision=precision, on=old)


# ---- decoding --------------------------------------------------------------------------------------------------------


@pytest.mark.full(but=["float32"])
@pytest.mark.parametrize("precision", ["float32", *HALVES])
def test_decoding_gives_the_models_logits(precision):
    """Feed pieces of many sizes, and take one piece back."""
    params, tokens = parameters(), np.random.default_rng(1).integers(0, 96, 65)
    decoder, wanted = engine_of(params, precision).decoder(), GPT(TINY, params).logits(tokens[None])[0][10:18]
    found = [decoder.feed(tokens[:11]), decoder.feed(tokens[11:12]), *decoder.feed_all(tokens[12:17])]
    decoder.read(tokens[30:34])
    decoder.length -= 4
    found.append(decoder.feed(tokens[17:18]))
    for mine, right in zip(found, wanted, strict=True):
        assert np.abs(mine - right).max() <= ALLOWED[precision] * np.abs(right).max()
    assert decoder.length == 18
    decoder.feed_all(tokens[18:65])
    with pytest.raises(NanoEulerError, match=r"must be 1 to 0 \(65 of 65 positions are used\), got 1"):
        decoder.feed(tokens[:1])
    decoder.length = 0
    with pytest.raises(NanoEulerError, match=r"tokens must be in 0\.\.95, got 96\.\.96"):
        decoder.feed(np.array([96]))


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float32", *HALVES])
def test_no_sum_depends_on_how_many_tokens_go_through_together(precision):
    """Check what speculation relies on: the same bits for one token at a time or eight."""
    tokens, model = np.random.default_rng(2).integers(0, 96, 20), engine_of(precision=precision)
    singly, together = model.decoder(), model.decoder()
    ones = [singly.feed(tokens[i : i + 1]) for i in range(20)]
    assert np.array_equal(together.feed_all(tokens), ones)
    some = model.decoder()
    assert np.array_equal(np.concatenate([some.feed_all(tokens[:3]), some.feed_all(tokens[3:])]), ones)


# Shared keys, and more inputs of `down` than one request reads; more keys in the cache; a norm by all warps.
DECODED = {
    "narrow": dict(dim=128, heads=4, kv_heads=2, ffn=2064, context=90),
    "wide": dict(dim=256, heads=2, kv_heads=1, ffn=24, context=280),
    "many": dict(dim=576, heads=18, kv_heads=9, ffn=8, context=15),
    "more": dict(dim=512, heads=4, kv_heads=2, ffn=48, context=150),
}


def check_decoding(name):
    """Compare tokens fed one by one and together."""
    config = replace(TINY, layers=1, vocab_size=40, predict=1, **DECODED[name])
    params, tokens = parameters(config), np.random.default_rng(1).integers(0, 40, config.context)
    expected, decoder = GPT(config, params).logits(tokens[None])[0], engine_of(params, config=config).decoder()
    found = np.concatenate([decoder.feed_all(part) for part in np.split(tokens, [3, 4, 14])])
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def check_products():
    """Test products of one row and of several; x has 16 bits and is used as float."""
    config = replace(TINY, dim=320, heads=10, kv_heads=5, ffn=2312)  # more inputs than one request reads
    rng, xp = np.random.default_rng(0), cuda.array_module()
    narrow, wide, glu = (
        xp.asarray(to_bfloat16(rng.standard_normal(shape).astype(np.float32)))
        for shape in ((24, 320), (24, 2312), (48, 320))
    )
    for rows in (1, 2, 3, 8):
        x, long, out, hidden = (xp.asarray(rng.standard_normal((rows, n)), np.float32) for n in (320, 2312, 24, 24))
        added, op = out.copy(), program.Program(config, "bfloat16")
        op.project(out, x, narrow, 1e-5)
        op.project(added, long, wide, None)
        op.project_glu(hidden, x, glu, 1e-5)
        before = memory.download(added).astype(np.float64)
        program.run(op.take())
        single, several, *weights = (memory.download(a).astype(np.float64) for a in (x, long, narrow, wide, glu))
        y = single / np.sqrt((single**2).mean(axis=1, keepdims=True) + 1e-5)
        gate, up = np.split(y @ weights[2].T, 2, axis=1)
        wanted = y @ weights[0].T, before + several @ weights[1].T, gate / (1 + np.exp(-gate)) * up
        for found, expected in zip((out, added, hidden), wanted, strict=True):
            np.testing.assert_allclose(memory.download(found), expected, atol=3e-5 * np.abs(expected).max())


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float32", *HALVES])
def test_later_heads_decode(precision):
    """Compare after each token, in launches of any number of tokens, for each number of heads."""
    config = replace(TINY, predict=4)
    params, tokens = parameters(config), np.random.default_rng(4).integers(0, 96, 30)
    for ahead in (0, 1, 3):
        exact, decoder = Decoder(GPT(config, params)), engine_of(params, precision, config).decoder(ahead)
        for start, end in ((0, 1), (1, 4), (4, 21), (21, 29)):
            places = exact.read(tokens[start:end])
            assert decoder.read(tokens[start:end]) == places
            for place in places:
                wanted = np.vstack([exact.logits(place), exact.later_logits(place)[:ahead]])
                found = np.vstack([decoder.logits(place), decoder.later_logits(place)])
                assert found.shape == wanted.shape
                assert np.abs(found - wanted).max() <= ALLOWED[precision] * np.abs(wanted).max()


# ---- with little room --- --------------------------------------------------------------------------------------

# dgate_up has no room for the logits of all positions; with FEW, a token has its own shares of the gradient.
SMALL = replace(TINY, layers=1, vocab_size=40, context=69, ffn=24)
FEW = dict(PIECE=8, OFTEN=12)


def check_small(precision):
    """Compare gradients and two steps with those of the CPU."""
    params, pair = parameters(SMALL), batch(69, config=SMALL)
    options = TrainConfig(steps=9, warmup=2, rate=3e-3, clip=0.5, decay=0.3)
    with patch.object(memory, "LOGIT_ROWS", 16), patch.multiple(embedding, **FEW):
        ours, theirs = engine_of(params, precision, SMALL), GPT(SMALL, parameters(SMALL))
        check_gradients(ours, params, *pair)
        states = engine.AdamW(SMALL, options, WHERE), AdamW(SMALL, options, np.float64)
        found, moved = steps_of(ours, states[0], options, [69, 69], 2, micro=1)
        wanted, goal = steps_of(theirs, states[1], options, [69, 69], 2)
        np.testing.assert_allclose(found, wanted, rtol=ALLOWED[precision])
        assert apart(states[0].m.host(), states[1].m) <= max(1e-4, 2 * ALLOWED[precision])
        if precision == "float32":
            assert apart(moved, goal) <= 1e-5
        else:  # if rounding decides the sign of a gradient, it decides AdamW's step
            still = {name: np.asarray(p, np.float64) for name, p in params.items()}
            assert apart({n: moved[n] - still[n] for n in still}, {n: goal[n] - still[n] for n in still}) < 0.5


def check_updates():
    """Check that AdamW takes the same step with a copy of 16 bits, and that the copy is the rounded parameter."""
    xp, rng, settings = cuda.array_module(), np.random.default_rng(0), TrainConfig(decay=0.5)
    start = [xp.asarray(abs(rng.standard_normal(1024)), np.float32) for _ in range(4)]
    factor, numbers = xp.asarray([0.5, 2], np.float32), xp.asarray([0.1, 1.5, 2.5], np.float32)
    found = []
    for precision in ("float32", *HALVES):
        op, arrays, kind = program.Program(SMALL, precision), [x.copy() for x in start], memory.products_type(precision)
        copy = None if precision == "float32" else xp.empty(1024, kind)
        op.adamw(*arrays, copy, factor, numbers, 512, settings)
        program.run(op.take())
        found.append([memory.download(x) for x in arrays])
        assert all(np.array_equal(x, y) for x, y in zip(found[0], found[-1], strict=True))
        assert copy is None or np.array_equal(memory.download(copy), rounded(found[0][0], precision))


# ---- products --------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_bfloat16_rounds_to_the_nearest_even():
    x = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -0.0, 3.4e38, np.inf, np.nan, 1e-40], np.float32)
    wanted = np.array([1, 1, 1 + 2**-6, 1 + 2**-7, -0.0, np.inf, np.inf, np.nan, 1e-40], np.float32)
    found = from_bfloat16(to_bfloat16(x))
    np.testing.assert_allclose(found, wanted, rtol=2**-8, atol=1e-40)
    assert np.array_equal(found[:6], wanted[:6], equal_nan=True) and np.signbit(found[4])
    torch = pytest.importorskip("torch", reason="make oracle")
    every = np.random.default_rng(0).integers(0, 2**32, 4096, np.uint32).view(np.float32)
    theirs = torch.from_numpy(every).to(torch.bfloat16).float().numpy()
    assert np.array_equal(from_bfloat16(to_bfloat16(every)), theirs, equal_nan=True)


# ---- the list that a GPU would run -----------------------------------------------------------------------------------

CARDS = {  # name: compute capability, bytes of shared memory, multiprocessors, precision
    "7.5": (75, 64, 40, "float16"),
    "7.5, float32": (75, 64, 40, "float32"),
    "8.6": (86, 99, 84, "bfloat16"),
    "9.0": (90, 227, 132, "bfloat16"),
}


def launches(name, rows=64):
    """Return the launches of a step of `base`, with two layers, on a GPU; memory is allocated and never used."""
    capability, shared, processors, precision = CARDS[name]
    config = replace(preset("base"), layers=2)
    op = program.Program(config, precision, "cpu", True, flash.Card(capability, shared << 10, processors))
    half = memory.products_type(precision)
    params, grads, copy = (engine.Parameters(config, "cpu", t) for t in (np.float32, np.float32, half))
    owner = SimpleNamespace(config=config, program=op, precision=precision, keep_x=False, params=params)
    owner.block = functools.partial(memory.Block, "cpu")
    plan = memory.Plan(owner, rows, config.context)
    weights = {n: p if p.ndim == 1 or n == "embed" else copy[n] for n, p in params.items()}
    forward(weights, plan, plan.tokens)
    backward(weights, grads, plan, plan.tokens, plan.targets, plan.scale)
    settings, small = TrainConfig(), np.empty(4, np.float32)
    plan.op.sum_losses(small, plan.losses, False)
    plan.op.norm(small, grads.flat, settings.clip)
    if precision == "float16":
        op.unscale(small, small, settings.clip)
    arrays = params.flat, grads.flat, grads.flat, grads.flat, copy.flat if half.itemsize == 2 else None
    op.adamw(*arrays, small, small, params.decayed, settings)
    return [str(entry) for entry in op.take()]


def all_launches():
    return "".join(f"{name}\n" + "".join(f"  {line}\n" for line in launches(name)) for name in CARDS)


@on_the_cpu
def test_the_lists_of_launches_are_those_written_down():
    assert all_launches() == LAUNCHES.read_text("utf-8"), "if this is meant, run python tests/engine/test_engine.py"


# ---- the command -----------------------------------------------------------------------------------------------------

RUN = (
    "--dim 64 --heads 2 --kv-heads 1 --layers 1 --context 16 --vocab-size 288 --predict 2 --batch 2 --warmup 1 "
    "--valid-every 4 --sample-every 6 --save-every 2 --valid-fraction 0.1 --device checked --precision"
).split()


def run_cli(*words):
    return cli.main([str(word) for word in words])


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_cli("corpus", "konigsberg", "--bytes", 6000, "--out", "text.txt", "--seed", 5) == 0
    return "text.txt"


@pytest.mark.full
@on_the_cpu
def test_train_resume_and_go_on_with_the_other_device(text, capsys):
    """Check that each device opens a checkpoint of the other device, and computes the same from it."""
    assert run_cli("train", "--data", text, *RUN, "bf16", "--quiet", "--run", "run", "--steps", 4) == 0
    found = checkpoint.load("run", training=True)
    assert found.step == 4 and (found.info["device"], found.info["precision"]) == ("checked", "bfloat16")
    tokens = batch(16, config=found.model.config)[0]
    placed = device.Device("checked", "float32").place(found.model)
    expected = found.model.logits(tokens)
    assert np.abs(placed.logits(tokens) - expected).max() <= 1e-5 * np.abs(expected).max()
    resume = "train", "--resume", "run", "--quiet"
    assert run_cli(*resume, "--steps", 5, "--device", "cpu") == 0
    assert "device" not in checkpoint.load("run").info
    assert run_cli(*resume, "--steps", 6, "--device", "checked") == 0
    assert checkpoint.load("run").info["precision"] == "bfloat16"
    assert "loss_scale" not in checkpoint.load("run").info
    capsys.readouterr()
    assert run_cli(*resume, "--precision", "float32") == 2
    assert "--precision must not be given with --resume" in capsys.readouterr().err


@pytest.mark.full
@on_the_cpu
def test_sft_pads_the_vocabulary_for_the_kernels(tmp_path):
    """Check that the three markers of speakers turn 256 tokens into 259."""
    model = GPT(ModelConfig(dim=32, heads=1, kv_heads=1, layers=1, context=16, vocab_size=256, predict=1))
    examples = [[("a" * n, "b")] for n in range(1, 5)]
    config = TrainConfig(steps=1, batch=1, valid_every=1, sample_every=0)
    base = model, Tokenizer([], ())
    place = device.Device("checked", "bfloat16")
    tuned = sft.fine_tune(tmp_path / "run", base, examples, examples, config, quiet=True, device=place)
    found = checkpoint.load(tmp_path / "run")
    assert found.tokenizer.vocab_size == 259 and found.model.config.vocab_size == tuned.config.vocab_size == 264
    assert sft.fine_tune(tmp_path / "cpu", base, examples, examples, config, quiet=True).config.vocab_size == 259


@pytest.mark.full
@on_the_cpu
def test_a_run_says_where_its_time_goes(text, capsys):
    words = ["train", "--data", text, "--run", "r", *RUN, "bf16", "--valid-every", 9, "--sample-every", 0]
    assert run_cli(*words, "--steps", 4, "--profile", 2) == 0
    out = capsys.readouterr().out
    table = out[out.index("composite") :].splitlines()
    end = next(i for i, line in enumerate(table) if line.startswith("all"))
    rows = {line.split()[0]: line.split()[1:] for line in table[1 : end + 1]}
    assert {"linear", "attention_back", "adamw", "heads_loss", "norm", "all"} <= rows.keys()
    assert rows["linear"][0] == "3" and rows["norm"][0] == "3"  # launches per step, with one layer
    shares = [float(row[-1].rstrip("%")) for name, row in rows.items() if name != "all"]
    assert abs(sum(shares) - 100) < 1 and shares == sorted(shares, reverse=True)
    for wrong, words in (
        (("--device", "cpu", "--profile", 2), "--profile must be 0 on the CPU"),
        (("--profile", -1), "--profile must be 0 or more, got -1"),
    ):
        assert run_cli("train", "--data", text, "--run", "r2", *wrong) == 2
        assert words in capsys.readouterr().err


@on_the_cpu
def test_generate_and_check_on_a_device(capsys):
    words = "generate", "K\u00e4the had", "--tokens", 6, "--temperature", 0
    texts = []
    for options in ((), ("--device", "checked", "--precision", "float32")):
        assert run_cli(*words, *options) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert run_cli("check", "--device", "checked", "--precision", "float32") == 0
    out = capsys.readouterr().out
    assert out.startswith("checked, float32") and out.endswith("passed\n") and out.count(" ok\n") == 15
    with patch.object(gradcheck, "COARSE", {"bfloat16": 1e-3}):
        assert run_cli("check", "--device", "checked", "--precision", "bf16") == 1
    out = capsys.readouterr().out
    assert out.endswith("FAILED\n") and "WRONG (allowed 1.0e-03)" in out


if __name__ == "__main__":
    LAUNCHES.write_text(all_launches(), "utf-8")
    print(json.dumps({"lines": len(LAUNCHES.read_text("utf-8").splitlines())}), file=sys.stderr)
