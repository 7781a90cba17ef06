"""The GPU's engine, run whole through the CPU runtime, every access checked: what it computes is what the CPU computes.

Tiny shapes, odd lengths. The lists of launches that a GPU would run stand in launches.txt (written anew by
`python tests/engine/test_engine.py`), and thirty planted bugs are caught.
"""

import functools
import json
import re
import sys
import types
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from test_speculative import expected_outcomes

from nanoeuler_lib import cuda, engine
from nanoeuler_lib.command import cli
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.cuda.blas import from_bfloat16, product, to_bfloat16
from nanoeuler_lib.engine import device, embedding, flash, gpt, memory, program, unfused
from nanoeuler_lib.engine import step as engine_step
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generation.generate import speculate
from nanoeuler_lib.model import GPT, backward, forward, gradcheck, init, step
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import checkpoint, loop, sft, train

TINY = ModelConfig(dim=64, heads=2, kv_heads=1, layers=2, context=65, vocab_size=96, predict=2, ffn=176)
WHERE = cuda.device()
LAUNCHES = Path(__file__).with_name("launches.txt")
pytestmark = [] if WHERE == "gpu" else [pytest.mark.compiler]
on_the_cpu = pytest.mark.skipif(WHERE == "gpu", reason="checks lists with the CPU runtime's checker")


def parameters(config=TINY, std=0.2, seed=0):
    """Gains that are not 1, matrices larger than at the beginning: so that every term counts."""
    params = init(config, seed, std, np.float64)
    rng = np.random.default_rng(seed)
    for p in params.values():
        if p.ndim == 1:
            p[...] = rng.uniform(0.5, 1.5, p.shape)
    return params


def batch(time, rows=2, seed=0, config=TINY):
    """Tokens of which some come often, targets of which some are missing."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, config.vocab_size, (rows, time)) // rng.integers(1, 9, (rows, time))
    tokens[:, 3::5] = config.vocab_size - 1  # where the list of positions is cut in two
    return tokens, rng.integers(-1, config.vocab_size, (rows, time, config.predict))


def engine_of(params=None, precision="float32", config=TINY, **options):
    return engine.GPT(config, params or parameters(config), precision=precision, **options)


def apart(found, expected):
    """The largest over tensors of ||found - expected|| / ||expected||."""
    return max(np.linalg.norm(found[name] - p) / max(np.linalg.norm(p), 1e-30) for name, p in expected.items())


# float32's own rounding through two layers; of bfloat16, 8 bits a number, what single precision lengths were seen to
# give is 2% to 4%.
ALLOWED = {"float32": 1e-5, "tf32": 1e-2, "bfloat16": 8e-2}


def compare(precision, time, **options):
    """Loss, gradients, logits and losses against the reference in float64."""
    params = parameters()
    mine, reference = engine_of(params, precision, **options), GPT(TINY, params)
    tokens, targets = batch(time)
    loss, grads = mine.loss_and_gradients(tokens, targets)
    expected_loss, expected = reference.loss_and_gradients(tokens, targets)
    allowed = ALLOWED[precision]
    assert abs(loss - expected_loss) <= allowed * expected_loss
    assert apart(grads, expected) <= allowed
    for found, wanted in (
        (mine.hidden(tokens), reference.hidden(tokens)),
        (mine.logits(tokens, 1), reference.logits(tokens, 1)),
        (mine.losses(tokens, targets), reference.losses(tokens, targets)),
        (mine.losses(tokens, targets[..., 0]), reference.losses(tokens, targets[..., 0])),
    ):
        assert found.shape == wanted.shape and np.abs(found - wanted).max() <= allowed * np.abs(wanted).max()
    again, twice = mine.loss_and_gradients(tokens, targets)
    assert again == loss and all(np.array_equal(twice[name], grads[name]) for name in grads), "the same bits"


@pytest.mark.full(but=["float32-37", "bfloat16-37"])
@pytest.mark.parametrize("time", [1, 37, 65])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_loss_and_gradients_are_the_references(precision, time):
    compare(precision, time)


@pytest.mark.full
def test_tf32():
    compare("tf32", 37)


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gain_of_0_has_its_gradient(precision):
    """The backward pass of a norm divides y by the gain to know x: of gains that are 0, or hardly more, too."""
    params = parameters()
    for p in params.values():
        if p.ndim == 1:
            p[:12] = np.resize([0.0, -0.0, 1e-30, -1e-25], 12)
    tokens, targets = batch(37)
    loss, grads = engine_of(params, precision).loss_and_gradients(tokens, targets)
    expected_loss, expected = GPT(TINY, params).loss_and_gradients(tokens, targets)
    assert abs(loss - expected_loss) <= ALLOWED[precision] * expected_loss
    assert apart(grads, expected) <= ALLOWED[precision]
    dead = {name: g[:12] for name, g in expected.items() if g.ndim == 1}
    assert all(np.linalg.norm(g) > 0 for g in dead.values())
    assert apart({name: grads[name][:12] for name in dead}, dead) <= 2 * ALLOWED[precision]


ADD = """extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}"""


@pytest.mark.full
@pytest.mark.parametrize("own", ["", ADD])
def test_each_loss_may_have_a_weight_of_either_sign(own):
    """Of the gradient of (losses * scale).sum(), scale [N, K], as preferences and rewards need it; and unfused."""
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
def test_a_gain_that_is_no_number_shows():
    params = parameters()
    params["layers.1.norm2"][5] = np.nan
    loss, grads = engine_of(params).loss_and_gradients(*batch(9))
    assert np.isnan(loss) and np.isnan(grads["embed"]).any()


@pytest.mark.full
@pytest.mark.parametrize("groups, width", [(1, 32), (4, 32), (1, 64), (2, 128)])
def test_other_heads(groups, width):
    config = replace(TINY, dim=4 * width, heads=4, kv_heads=groups, layers=1, ffn=48, predict=1, vocab_size=40)
    params, pair = parameters(config, 0.1), batch(19, config=config)
    loss, grads = engine_of(params, config=config).loss_and_gradients(*pair)
    expected_loss, expected = GPT(config, params).loss_and_gradients(*pair)
    assert abs(loss - expected_loss) <= 1e-5 * expected_loss and apart(grads, expected) <= 1e-5


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("time, group", [(16, 8), (32, 3), (64, 2), (128, 3)])
def test_lengths_at_the_borders_of_tiles(time, group, precision):
    """Rows that fill their tiles to the last place, for groups of 2, 3 and 8 query heads."""
    shape = dict(dim=32 * group, heads=group, kv_heads=1, layers=1, context=128, ffn=48, predict=1, vocab_size=40)
    config = replace(TINY, **shape)
    params, pair = parameters(config, 0.1), batch(time, config=config)
    loss, grads = engine_of(params, precision, config).loss_and_gradients(*pair)
    expected_loss, expected = GPT(config, params).loss_and_gradients(*pair)
    assert abs(loss - expected_loss) <= ALLOWED[precision] * expected_loss
    assert apart(grads, expected) <= ALLOWED[precision]


@pytest.mark.full
@pytest.mark.parametrize("predict, micro", [(2, 1), (33, 2)])
def test_targets_may_be_missing_in_any_number(predict, micro):
    """By row, by head and by micro-batch: each head's loss is the mean over its own targets; more than 32 heads too."""
    config = replace(TINY, layers=1, vocab_size=40, ffn=48, predict=predict)
    rng, settings = np.random.default_rng(3), TrainConfig(steps=9, warmup=1, rate=3e-3, batch=4)
    tokens, targets = rng.integers(0, 40, (4, 9)), rng.integers(0, 40, (4, 9, predict))
    for row, kept in enumerate((9, 0, 1, 5)):
        targets[row, kept:] = -1
    for head in range(predict):
        targets[:, head % 7 :: 3 + head % 2, head] = -1
    targets[0, :, -1], targets[3, 4, -1] = -1, 7  # of the last head the first micro-batches have none
    each = GPT(config, parameters(config)).losses(tokens, targets)
    expected = [each[..., k].sum() / (targets[..., k] >= 0).sum() for k in range(predict)]
    models = engine_of(parameters(config), config=config), GPT(config, parameters(config))
    norms = []
    for model, optimizer in zip(models, (engine.AdamW(config, settings, WHERE), AdamW(config, settings))):
        options = {"micro": micro} if model is models[0] else {}
        with device.step_of(model)(model, optimizer, settings, 4, **options) as take_step:
            losses, norm = take_step(tokens, targets)
        assert losses == pytest.approx(expected, rel=1e-5)
        norms.append(norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert apart(models[0].params.host(), models[1].params) <= 1e-5


def steps_of(model, optimizer, config, lengths, **options):
    """Losses and norms of some steps, and the parameters behind them."""
    found = []
    with device.step_of(model)(model, optimizer, config, 4, **options) as take_step:
        for seed, time in enumerate(lengths):
            losses, norm = take_step(*batch(time, 4, seed))
            found.append([*losses, norm])
    return np.array(found), model.params.host()


@pytest.mark.full(but=["2"])
@pytest.mark.parametrize("micro", [1, 2, 4])
def test_steps_are_those_of_the_cpu(micro):
    """Micro-batches add up, long gradients are clipped, the rate follows its schedule, gains do not decay."""
    config = TrainConfig(steps=9, warmup=2, rate=3e-3, clip=0.5, decay=0.3, batch=4)
    lengths = [9, 33, 9]
    ours = engine_of(parameters())
    found, params = steps_of(ours, engine.AdamW(TINY, config, WHERE), config, lengths, micro=micro)
    theirs = GPT(TINY, parameters())
    expected, wanted = steps_of(theirs, AdamW(TINY, config, np.float64), config, lengths)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert apart(params, wanted) <= 1e-5
    moved = init(TINY, 0)  # a step has moved every tensor
    assert all(not np.array_equal(params[name], moved[name]) for name in params)


@pytest.mark.full
@pytest.mark.parametrize("both", ["optimisers", "steps"])
def test_two_optimisers_or_two_steps_of_one_model_do_not_disturb_each_other(both):
    """Each with moments of its own, in turn on one model: as on the CPU."""
    config = TrainConfig(steps=9, warmup=0, rate=3e-3, clip=0.5, batch=4)
    found = []
    for model, made in (
        (engine_of(), lambda: engine.AdamW(TINY, config, WHERE)),
        (GPT(TINY, parameters()), None),
    ):
        made = made or (lambda: AdamW(TINY, config, np.float64))
        first = made()
        second = made() if both == "optimisers" else first
        make = device.step_of(model)
        with make(model, first, config, 4) as one, make(model, second, config, 4) as two:
            steps = [[*losses, norm] for take in (one, two, one, two) for losses, norm in [take(*batch(9, 4))]]
        found.append((np.array(steps), model.params.host(), (first.step, second.step)))
    (ours, params, counts), (theirs, wanted, expected) = found
    np.testing.assert_allclose(ours, theirs, rtol=3e-4)
    assert apart(params, wanted) <= 3e-4 and counts == expected == ((2, 2) if both == "optimisers" else (4, 4))


@pytest.mark.full
def test_bfloat16_copies_follow_the_master_weights():
    config = TrainConfig(steps=9, warmup=0, rate=1e-2)
    model = engine_of(precision="bfloat16")
    steps_of(model, engine.AdamW(TINY, config, WHERE), config, [9, 9])
    for name, p in model.params.items():
        copy, p = memory.download(model.copy[name]), memory.download(p)
        assert np.array_equal(copy, from_bfloat16(to_bfloat16(p))), name
    assert model.params.flat.dtype == np.float32


def test_nothing_moves_where_the_norm_is_not_finite():
    config = TrainConfig(steps=9, warmup=0, clip=0.0)
    params = parameters()
    params["layers.0.out"][3, 5] = np.inf
    model = engine_of(params)
    optimizer = engine.AdamW(TINY, config, WHERE)
    before = model.params.host().flat
    with engine.Step(model, optimizer, config, 2) as take_step:
        losses = take_step.gradient(*batch(5))
        norm = take_step.apply()
        assert not np.isfinite(losses).all() and not np.isfinite(norm)
        assert np.array_equal(model.params.host().flat, before)
        assert not optimizer.m.flat.any() and optimizer.step == 0
        assert np.isnan(take_step(*batch(5))[1])


@pytest.mark.full
@pytest.mark.parametrize("sum_", [1e30, np.inf, -np.inf, np.nan])
def test_a_loss_that_is_not_finite_moves_nothing(sum_):
    """Even where the gradient's norm is."""
    xp, op = cuda.array_module(), program.Program(TINY)
    factor, sums = xp.asarray([0.5, 2], np.float32), xp.asarray([3, sum_, 4], np.float32)
    op.refuse(factor, sums)
    program.run(op.take())
    assert memory.download(factor)[1] == 2 if sum_ == 1e30 else np.isnan(memory.download(factor)[1])


@pytest.mark.parametrize("shape", [(1 << 20, 8), (8, 1 << 20)], ids=["positions", "tokens"])
def test_an_embedding_whose_elements_32_bits_cannot_count_is_refused(shape):
    """Arrays of one number seen 2^32 times, and one row less."""
    op, (N, V), sorts = engine_of().program, shape, dict(shares=[0], order=None, sorted_tokens=None)
    for less in (0, 1):
        dx, dtable = (np.broadcast_to(np.float32(0), (n - less * (n > 8), 4096)) for n in (N, V))
        arguments = dtable, program.Residual(dx, None), None, False
        if less:
            with patch.object(op, "_launch") as launch:
                op.embed_back(*arguments, **sorts)
            assert launch.called
        else:
            words = r"arrays of 4,294,967,296 numbers, expected fewer than 2\^32"
            for kind in (program.Program, unfused.Unfused):
                with pytest.raises(NanoEulerError, match=words):
                    kind.embed_back(op, *arguments, **sorts)


def test_lists_that_run_again_give_the_same_bits():
    """On a card the second run of a list is captured in a graph, and the third replays it."""
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
def test_memory_is_what_was_said():
    """Buffers and states take the bytes that `bytes_needed` says, and `fitting` goes by them."""
    for precision in ("float32", "bfloat16"):
        for keep_x in (False, True):
            model = engine_of(precision=precision)
            with patch.object(engine.GPT, "keep_x", keep_x):
                plan = memory.Plan(model, 3, 40)
            said, owners = memory.bytes_needed(TINY, 3, 40, precision, keep_x), {}
            streams = {id(x) for names in plan.layers for x in (names.x1, names.x2)} | {id(plan.x_final)}
            assert len(streams) == (2 * TINY.layers + 1 if keep_x else 1)
            for holder in (plan, plan.scratch, plan.dx, *plan.layers):
                for x in vars(holder).values():
                    while isinstance(x, np.ndarray) and x.base is not None:
                        x = x.base
                    if isinstance(x, np.ndarray):
                        owners[id(x)] = x.nbytes
            assert sum(owners.values()) - plan.scratch.square_parts.nbytes == said["buffers"]
            states = 4 * model.params.flat.nbytes + (0 if model.copy is None else model.copy.flat.nbytes)
            assert states == said["states"]
    one, two = (memory.bytes_needed(TINY, rows, TINY.context, "float32")["buffers"] for rows in (1, 2))
    model = engine_of()
    with patch.object(engine_step, "free_bytes", lambda where: two + model.params.flat.nbytes):
        assert engine_step.fitting(model, 4) == 2 and engine_step.fitting(model, 3) == 1
    with patch.object(engine_step, "free_bytes", lambda where: one):
        with pytest.raises(NanoEulerError, match=r"one row of 65 tokens and the gradient take .* are free: take"):
            engine_step.fitting(model, 4)


@pytest.mark.full
def test_plans_of_several_shapes_lie_in_one_block_of_memory():
    """Fine-tuning has batches of many lengths: none is planned twice, and none disturbs another's numbers."""
    config = TrainConfig(steps=9, warmup=0)
    batches = [batch(time, 2, seed=time) for time in (7, 32, 7, TINY.context, 32, 7)]

    def losses_of(model, forgets):
        take_step, found = engine.Step(model, engine.AdamW(TINY, config, WHERE), config, 2), []
        block = model._block
        for one in batches:
            if forgets:
                model._plans.clear()
            found.append(take_step(*one)[0])
        assert block is model._block  # made for the longest rows before the first came
        return found

    model = engine_of()
    assert np.array_equal(losses_of(model, False), losses_of(engine_of(), True))
    block, plans = model._block, [model.plan(2, time) for time in (7, 32, TINY.context)]
    assert all(model.plan(2, plan.time) is plan for plan in plans) and model._block is block
    for rows in range(1, gpt.PLANS + 2):
        model.plan(1, rows)
    assert len(model._plans) == gpt.PLANS and model.plan(2, 7) is not plans[0]
    model.plan(3, TINY.context)  # for which the block has to grow: the others' buffers are gone with it
    assert len(model._plans) == 1 and model._block.bytes.size > block.bytes.size


@pytest.mark.full
def test_tensors_begin_at_multiples_of_256_bytes():
    params = engine.Parameters(replace(TINY, dim=72, heads=1, ffn=24, vocab_size=40), "cpu")
    starts = sorted((x.ctypes.data - params.flat.ctypes.data, x) for x in params.values())
    assert all(at % 256 == 0 for at, _ in starts)
    assert all(at + x.nbytes <= later for (at, x), (later, _) in pairwise(starts))
    first_gain = min(at for at, x in starts if x.ndim == 1)
    assert max(at for at, x in starts if x.ndim == 2) < first_gain == 4 * params.decayed


@pytest.mark.full
@pytest.mark.parametrize(
    "change, precision, words",
    [
        (dict(heads=4), "float32", "head width dim/heads is 16, expected 32, 64 or 128 on the GPU"),
        (dict(vocab_size=97), "float32", "vocab_size is 97, expected a multiple of 8 up to 32768"),
        (dict(ffn=100), "float32", "ffn is 100, expected a multiple of 8"),
        (dict(vocab_size=40000), "float32", "vocab_size is 40000, expected a multiple of 8 up to 32768"),
        ({}, "float64", "precision is 'float64', expected one of float32, tf32, bfloat16"),
    ],
)
def test_what_the_kernels_do_not_take_is_one_sentence(change, precision, words):
    with pytest.raises(NanoEulerError, match=words):
        engine_of(SimpleNamespace(), precision, replace(TINY, **change))


@pytest.mark.full
def test_old_cards_have_float32_alone():
    old = flash.Card(75, 64 << 10)
    with pytest.raises(NanoEulerError, match=r"bfloat16 needs compute capability 8\.0, this card has 7\.5"):
        engine_of(precision="bfloat16", on=old)
    engine_of(precision="float32", on=old)


# ---- decoding --------------------------------------------------------------------------------------------------------


def fed(decoder, tokens):
    """Logits behind some of the tokens, fed in pieces of many sizes, with a piece taken back."""
    found = [decoder.feed(tokens[:11]), *(decoder.feed(tokens[i : i + 1]) for i in range(11, 14))]
    found += list(decoder.feed_all(tokens[14:17]))
    decoder.read(tokens[30:34])
    decoder.length -= 4
    return [*found, decoder.feed(tokens[17:18])]


@pytest.mark.full(but=["float32"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_decoding_gives_the_models_logits(precision):
    params, tokens = parameters(), np.random.default_rng(1).integers(0, 96, 65)
    expected, decoder = fed(Decoder(GPT(TINY, params)), tokens), engine_of(params, precision).decoder()
    for found, wanted in zip(fed(decoder, tokens), expected, strict=True):
        assert np.abs(found - wanted).max() <= ALLOWED[precision] * np.abs(wanted).max()
    assert decoder.length == 18
    decoder.feed_all(tokens[18:65])
    with pytest.raises(NanoEulerError, match="context is 65, 65 used: got 1 tokens, expected 1 to 0"):
        decoder.feed(tokens[:1])
    decoder.length = 0
    with pytest.raises(NanoEulerError, match=r"tokens lie in 96\.\.96, expected 0\.\.95"):
        decoder.feed(np.array([96]))


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_no_sum_depends_on_how_many_tokens_go_through_together(precision):
    """What speculation stands on: the same bits, one token at a time or eight."""
    tokens, model = np.random.default_rng(2).integers(0, 96, 20), engine_of(precision=precision)
    singly, together = model.decoder(), model.decoder()
    ones = [singly.feed(tokens[i : i + 1]) for i in range(20)]
    assert np.array_equal(together.feed_all(tokens), ones)
    some = model.decoder()
    assert np.array_equal(np.concatenate([some.feed_all(tokens[:3]), some.feed_all(tokens[3:])]), ones)


@pytest.mark.full
def test_other_heads_decode():
    config = replace(TINY, dim=512, heads=4, kv_heads=2, layers=1, ffn=48, predict=1, vocab_size=40, context=150)
    params, tokens = parameters(config, 0.1), np.random.default_rng(1).integers(0, 40, 140)
    expected = GPT(config, params).logits(tokens[None])[0]
    decoder = engine_of(params, config=config).decoder()
    found = np.concatenate([decoder.feed_all(tokens[:136]), decoder.feed_all(tokens[136:])])
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_later_heads_decode(precision):
    """Behind every token, in launches of any number of tokens; as many heads as were asked for."""
    config = replace(TINY, predict=4)
    params, tokens = parameters(config), np.random.default_rng(4).integers(0, 96, 30)
    for ahead in (0, 1, 3):
        exact, decoder = (
            Decoder(GPT(config, params)),
            engine_of(params, precision, config=config).decoder(ahead),
        )
        for start, end in ((0, 1), (1, 4), (4, 21), (21, 29)):
            places = exact.read(tokens[start:end])
            assert decoder.read(tokens[start:end]) == places
            for place in places:
                wanted = np.vstack([exact.logits(place), exact.later_logits(place)[:ahead]])
                found = np.vstack([decoder.logits(place), decoder.later_logits(place)])
                assert found.shape == wanted.shape
                assert np.abs(found - wanted).max() <= ALLOWED[precision] * np.abs(wanted).max()


@pytest.mark.full
def test_speculation_gives_the_text_of_plain_decoding():
    model, texts = engine_of(precision="bfloat16"), []
    ids = list(np.random.default_rng(0).integers(0, 96, 5))
    for propose in (0, 1):
        rounds = speculate(model, ids, np.random.default_rng(0), propose, temperature=0.0)
        texts.append(list(islice(chain.from_iterable(rounds), 24)))
    assert texts[0] == texts[1]


@pytest.mark.full
def test_speculation_draws_from_head_0():
    """Pairs of tokens: chi-square at one in a million. The later heads propose something else than head 0 says."""
    config = replace(TINY, layers=1, vocab_size=8, context=6, predict=3, ffn=24)
    params, n, rng = parameters(config, 0.3, 3), 400, np.random.default_rng(0)
    model = engine_of(params, config=config, checked=False)
    expected = expected_outcomes(GPT(config, params), [1, 2], 2, 6, temperature=1.5)
    drawn, accepted = [], 0
    for _ in range(n):
        rounds = islice(speculate(model, [1, 2], rng, 2, temperature=1.5), 2)  # the first one proposes nothing
        first, second, *more = chain.from_iterable(rounds)
        drawn.append((first, second))
        accepted += bool(more)
    counts = np.array([[drawn.count(pair), n * p] for pair, p in expected.items() if n * p > 5])
    chi_square = ((counts[:, 0] - counts[:, 1]) ** 2 / counts[:, 1]).sum()
    assert len(counts) > 10 and chi_square < len(counts) + 7 * (2 * len(counts)) ** 0.5 + 10
    assert n / 10 < accepted < 9 * n / 10


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


@pytest.mark.full
@pytest.mark.parametrize("kind", ["float32", "uint16"])
@pytest.mark.parametrize("a_turned", [False, True])
@pytest.mark.parametrize("b_turned", [False, True])
@pytest.mark.parametrize("add", [False, True])
def test_products(kind, a_turned, b_turned, add):
    xp, rng = cuda.array_module(), np.random.default_rng(0)
    M, N, K = 24, 40, 56

    def made(rows, columns, turned):
        x = rng.standard_normal((columns, rows) if turned else (rows, columns)).astype(np.float32)
        wide = np.zeros((len(x), x.shape[1] + 8), np.float32)  # rows further apart than they are long
        wide[:, : x.shape[1]] = x
        stored = to_bfloat16(wide) if kind == "uint16" else wide
        back = from_bfloat16(stored) if kind == "uint16" else stored
        there = xp.asarray(stored)[:, : x.shape[1]]
        return there, back[:, : x.shape[1]].T if turned else back[:, : x.shape[1]]

    (a, x), (b, y) = made(M, K, a_turned), made(K, N, b_turned)
    c = xp.full((M, N), 2.0, np.float32)
    product(c, a, b, transpose_a=a_turned, transpose_b=b_turned, add=add)()
    np.testing.assert_allclose(memory.download(c), x @ y + (2 if add else 0), rtol=1e-4, atol=1e-4)
    with pytest.raises(NanoEulerError, match=r"c \[M, N\] = a \[M, K\] b \[K, N\], got c \(24, 40\)"):
        product(c, a, b[:8], transpose_a=a_turned, transpose_b=b_turned)


# ---- the list that a card would run ----------------------------------------------------------------------------------

CARDS = {  # name: compute capability, bytes of shared memory, multiprocessors, precision
    "7.5": (75, 64, 40, "float32"),
    "8.6": (86, 99, 84, "bfloat16"),
    "9.0": (90, 227, 132, "bfloat16"),
}


def launches(name, rows=64):
    """The list of a step of `base` on a card, two layers of it; memory is asked for and never touched."""
    capability, shared, processors, precision = CARDS[name]
    config = replace(preset("base"), layers=2)
    op = program.Program(config, precision, "cpu", True, flash.Card(capability, shared << 10, processors))
    half = np.dtype(np.uint16 if precision == "bfloat16" else np.float32)
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
    arrays = params.flat, grads.flat, grads.flat, grads.flat, copy.flat if half == np.uint16 else None
    op.adamw(*arrays, small, small, params.decayed, settings)
    return [str(entry) for entry in op.take()]


def all_launches():
    return "".join(f"{name}\n" + "".join(f"  {line}\n" for line in launches(name)) for name in CARDS)


@on_the_cpu
def test_the_lists_of_launches_are_those_written_down():
    assert all_launches() == LAUNCHES.read_text("utf-8"), "python tests/engine/test_engine.py writes them anew"


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
    """A run that was interrupted ends with the bits of one that was not; either device opens the other's checkpoint."""
    whole = ["train", "--data", text, *RUN, "bf16", "--quiet"]
    assert run_cli(*whole, "--run", "whole", "--steps", 4) == 0
    assert run_cli(*whole, "--run", "part", "--steps", 2) == 0
    assert run_cli("train", "--resume", "part", "--steps", 4, "--quiet") == 0
    # the schedule of two steps is another: so the second half is compared with a run resumed in the same way
    found = checkpoint.load("whole", training=True)
    assert found.info["device"] == "checked" and found.info["precision"] == "bfloat16"
    assert found.step == 4 and checkpoint.load("part").step == 4
    tokens = batch(16, config=found.model.config)[0]
    placed = device.Device("checked", "float32").place(found.model)
    expected = found.model.logits(tokens)
    assert np.abs(placed.logits(tokens) - expected).max() <= 1e-5 * np.abs(expected).max()
    assert run_cli("train", "--resume", "whole", "--steps", 5, "--device", "cpu", "--quiet") == 0
    assert "device" not in checkpoint.load("whole").info
    assert run_cli("train", "--resume", "whole", "--steps", 6, "--device", "checked", "--quiet") == 0
    assert checkpoint.load("whole").info["precision"] == "bfloat16"
    capsys.readouterr()
    assert run_cli("train", "--resume", "whole", "--precision", "float32") == 2
    assert "--resume takes its settings from the run, got also --precision" in capsys.readouterr().err


@on_the_cpu
def test_an_interrupted_run_ends_with_the_same_bits(text):
    """Stopped behind step 2 by the signal that Ctrl-C sends, and resumed."""
    model = ModelConfig(dim=64, heads=2, kv_heads=1, layers=1, context=16, vocab_size=288, predict=2)
    config = TrainConfig(steps=4, batch=2, warmup=1, valid_every=2, sample_every=0, save_every=2, valid_fraction=0.2)
    content, options = Path(text).read_text("utf-8"), {"quiet": True}
    place = device.Device("checked", "bfloat16")
    whole = train.train("a", content, model, config, device=place, **options)

    def stop(entry):
        if entry.get("step") == 3 and "loss" in entry:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.train("b", content, model, config, device=place, on_entry=stop, **options)
    again = loop.resume("b", content, **options)
    assert isinstance(again, engine.GPT) and again.precision == "bfloat16"
    assert np.array_equal(whole.params.flat, again.params.flat)


@pytest.mark.full
@on_the_cpu
def test_sft_pads_the_vocabulary_for_the_kernels(tmp_path):
    """The markers of who speaks make 259 tokens of 256."""
    model = GPT(ModelConfig(dim=32, heads=1, kv_heads=1, layers=1, context=16, vocab_size=256, predict=1))
    examples = [[("a" * n, "b")] for n in range(1, 5)]
    config = TrainConfig(steps=1, batch=1, valid_every=1, sample_every=0)
    base = model, Tokenizer([], ())
    tuned = sft.fine_tune(
        tmp_path / "run",
        base,
        examples,
        examples,
        config,
        quiet=True,
        device=device.Device("checked", "bfloat16"),
    )
    found = checkpoint.load(tmp_path / "run")
    assert found.tokenizer.vocab_size == 259 and found.model.config.vocab_size == tuned.config.vocab_size == 264
    assert sft.fine_tune(tmp_path / "cpu", base, examples, examples, config, quiet=True).config.vocab_size == 259


@pytest.mark.full
@on_the_cpu
def test_a_run_says_where_its_time_goes(text, capsys):
    words = ["train", "--data", text, "--run", "r", *RUN, "bf16", "--valid-every", 9, "--sample-every", 0]
    assert run_cli(*words, "--steps", 4, "--profile", 2) == 0
    out = capsys.readouterr().out
    assert "GPU: bfloat16, 2 of 2 rows at a time; states 0.00 GiB, buffers 0.00 GiB" in out
    table = out[out.index("composite") :].splitlines()
    end = next(i for i, line in enumerate(table) if line.startswith("all"))
    rows = {line.split()[0]: line.split()[1:] for line in table[1 : end + 1]}
    assert {"linear", "attention_back", "adamw", "heads_loss", "norm", "all"} <= rows.keys()
    assert rows["linear"][0] == "3" and rows["norm"][0] == "3"  # launches a step, of one layer
    shares = [float(row[-1].rstrip("%")) for name, row in rows.items() if name != "all"]
    assert abs(sum(shares) - 100) < 1 and shares == sorted(shares, reverse=True)
    assert run_cli("train", "--data", text, "--run", "r2", "--device", "cpu", "--profile", 2) == 2
    assert "profile times the launches of a GPU" in capsys.readouterr().err
    assert run_cli("train", "--data", text, "--run", "r2", "--profile", -1) == 2
    assert "--profile is -1" in capsys.readouterr().err


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


@pytest.mark.full
def test_what_the_kernels_do_not_take_begins_no_run(text, capsys):
    assert run_cli("train", "--data", text, "--run", "r", "--device", "checked", "--dim", 60, "--heads", 2) == 2
    error = capsys.readouterr().err
    assert "head width dim/heads is 30, expected 32, 64 or 128 on the GPU" in error
    assert error.count("\n") == 1 and not Path("r").exists()


# ---- planted bugs ----------------------------------------------------------------------------------------------------

KERNEL_BUGS = {
    "engine.cu": [
        ("if (ADD && i < D) add_to(mine[k]", "if (false) add_to(mine[k]"),
        ("block_sum(squares) / D + eps", "block_sum(squares) / D"),
        ("block_sum(squares) / D + eps", "block_sum(squares) / (D - 1) + eps"),
        ("if (ADD) write_four(x + row + i, mine[k]);", ""),
        ("if (threadIdx.x == 0) rstd[blockIdx.x] = r;", "if (threadIdx.x == 1) rstd[blockIdx.x] = r * r;"),
        ("add_to(share[k], product);", "share[k] = product;"),
        ("minus(times(slope[n][k], g[k]), times(normed, along[n] / D))", "times(slope[n][k], g[k])"),
        ("times(normed, along[n] / D)", "times(normed, along[n])"),
        ("times(normed, along[n] / D)", "times(normed, along[0] / D)"),
        ("times(share[k], inverse[k])", "share[k]"),
        ("float4 normed = times(out[n][k], inverse[k]);", "float4 normed = out[n][k];"),
        ("past[n][k] = there && i < D ? read_four(dx + row + i) : zeros();", "past[n][k] = zeros();"),
        ("if (first + n >= rows) break;", "if (first + n > rows) break;"),
        ("sum = warp_sum(s[threadIdx.x][threadIdx.y]);", "sum = s[0][threadIdx.y];"),
        ("s[threadIdx.y][threadIdx.x] = sum;\n  __syncthreads();", "s[threadIdx.y][threadIdx.x] = sum;"),
        ("y[column] = add ? y[column] + sum : sum;", "y[column] = sum;"),
        (
            "write_four(at, minus(times(a, c), times(b, s)));",
            "write_four(at, minus(times(b, c), times(a, s)));",
        ),
        (
            "row % T * half + j), s",
            "row * half % (T * half) + j + 0), s",
        ),  # the same number: must not be caught
        (
            "s = read_four(sine + row % T * half + j);",
            "s = read_four(sine + (row % T ? row % T - 1 : 0) * half + j);",
        ),
        ("sigmoid(g.four[k])), up.four[k])", "sigmoid(g.four[k])), g.four[k])"),
        ("up = read_sixteen(at + F);", "up = read_sixteen(at + F - 4);"),
        ("add_to(slope, minus(silu, times(silu, s)));", ""),
        ("up.four[k] = times(d.four[k], silu);", "up.four[k] = times(d.four[k], s);"),
        ("column = blockIdx.x * 32 + threadIdx.y;", ""),
        ("factor[1] = sums[k] - sums[k];", "factor[1] = 0;"),
        ("logf(sum) + largest - own", "logf(sum) - own"),
        ("scale[blockIdx.x % weights]", "scale[0]"),
        ("if (at == 3) d.w -= weight;", ""),
        ("float weight = target < 0 ? 0.0f : ", "float weight = "),
        ("if (threadIdx.x == 0 && target < 0) losses[blockIdx.x] = 0;", ""),
        ("bool decays = 4 * i < decayed;", "bool decays = true;"),
        ("if (!(factor[1] <= 3.4e38f)) return;", ""),
    ],
    "embedding.cu": [
        ("if (ADD) add_to(sum, *to);\n        *to = sum;\n        sum", "*to = sum;\n        sum"),
        ("    if (ADD) add_to(sum, *to);\n    *to = sum;\n  }\n}", "    *to = sum;\n  }\n}"),
        ("int group = 1; group < groups", "int group = 2; group < groups"),
        ("if (first + k * groups < s.to) add_to(sum, v[k]);", "if (first + k < s.to) add_to(sum, v[k]);"),
        ("row = now[k] + 1;", "row = now[k] + 2;"),
        ("sum = zero;", ""),
    ],
    "adamw.cu": [
        ("if (!(factor[1] <= 3.4e38f)) return;", ""),
    ],
}
ENGINE_BUGS = {
    program: [
        ("add = bool(accumulate) or start > 0", "add = bool(accumulate)"),
        ("arguments = dy, y, gain, rstd, dx.full", "arguments = dy, dy, gain, rstd, dx.full"),
        ("dw, x, dy, transpose_a=True, add=bool(accumulate)", "dw, x, dy, transpose_a=True"),
        ("products, launch in zip((3, 4), launches", "products, launch in zip((3,), launches[1:]"),
        ("(rope.cos, rope.sin)", "(rope.sin, rope.cos)"),
    ],
    memory: [
        ('    "dy": "update",', '    "dx_half": "dattended",\n    "dy": "update",'),
        ("upload(self.scratch.order, order)", "upload(self.scratch.order, order[::-1])"),
        ('"x_final" if owner.keep_x else "x"', '"x_final" if owner.keep_x else "update"'),
    ],
    engine_step: [
        ("self._gradient_lists(plan, start > 0)", "self._gradient_lists(plan, True)"),
        ("1 / (1 - c.beta1**t), 1 / (1 - c.beta2**t)", "1 / (1 - c.beta2**t), 1 / (1 - c.beta1**t)"),
    ],
}  # fmt: skip
DECODE_BUGS = [
    ("  __syncthreads();\n  for (int o = first; o < O;", "  for (int o = first; o < O;"),
    ("  __syncthreads();\n  for (int o = first; o < F;", "  for (int o = first; o < F;"),
    ("    __syncthreads();\n    if (row < rows)\n      out", "    if (row < rows)\n      out"),
    ("    __syncthreads();\n    if (row >= rows) continue;", "    if (row >= rows) continue;"),
    ("turn = 1 - turn", "turn = 0"),
    ("  __syncthreads();\n  Eight query", "  Eight query"),
    ("  __syncthreads();\n  for (int i = threadIdx.x; i < C", "  for (int i = threadIdx.x; i < C"),
    ("fmaf(sum, 1.0f / I, eps)", "sum * (1.0f / I)"),
    ("if (!NORM || row >= rows) continue;", "if (!NORM || row >= 1) continue;"),
    ("for (int warp = 0; warp < WARPS; warp++) sum += squares", "for (int warp = 0; warp < 4; warp++) sum += squares"),
    ("x[row * pitch<I> + 1]}", "x[row * pitch<I>]}"),
    ("ask<I>(ups, its + (size_t)F * I);\n  grid", "ask<I>(ups, its);\n  grid"),
    ("number_of_piece(k) < I;", "number_of_piece(k) + 8 < I;"),
    ("if (k >= AHEAD && has_piece<I>(k)) piece", "if (k >= PIECES<I> && has_piece<I>(k)) piece"),
    ("if (o > first) ask<I>(ahead, its);", "if (o > first && O < 0) ask<I>(ahead, its);"),
    ("sum[row], 2);", "sum[row], 1);"),
    ("g / (1.0f + __expf(-g))", "g / (1.0f + __expf(g))"),
    ("if (head % (H / G) == 0) {", "if (head == 0) {"),
    ("key_cache[(size_t)at * C + n] = key;", "key_cache[(size_t)at * C + n] = value;"),
    ("write(&value, of[(H + G + group) * C + n]);", "write(&value, of[(H + G) * C + n]);"),
    ("sine, start + r, n, C));", "sine, at, n, C));"),
    ("if (t <= at) sum = dot(", "if (t < at) sum = dot("),
    ("distance = lanes / 2; distance > 0", "distance = lanes / 4; distance > 0"),
    ("first - mine <= at;", "first - mine < at - 64;"),
    ("if (mine + k * together >= start) continue;", "if (mine + k * together >= start / 2) continue;"),
    ("some_values[k] = fetch(value_cache + (size_t)(first", "some_values[k] = fetch(key_cache + (size_t)(first"),
    ("join(part, {most, 0, {}});", ""),
    ("part.terms += weight;", "part.terms += 1;"),
    ("a.terms = of_a * a.terms + of_b * b.terms;", "a.terms = a.terms + b.terms;"),
    ("float share = __expf(largest[w] - most);", "float share = 1;"),
    ("if (ADD && o > first && row < rows) before", "if (ADD && o < first && row < rows) before"),
    ("if (row < rows)\n      out[", "if (row < 1)\n      out["),
    ("eight(fetch(values + (t - start) * C + j))", "eight(fetch(keys + (t - start) * C + j))"),
    ("distance = 16; distance >= lanes", "distance = 16; distance > lanes"),
    ("for (int w = 0; w < ATTEND_WARPS; w++) {", "for (int w = 1; w < ATTEND_WARPS; w++) {"),
]  # fmt: skip
BY_TENSOR_CORES_BUGS = [
    ("&high.x, &w.z);", "&high.x, &w.x);"),
    ("make_float2(all[0] + all[2], all[1] + all[3])", "make_float2(all[0], all[1])"),
    ("if (row < rows) low =", "if (row < 1) low ="),
    ("__uint_as_float(rounded(v.z - of.z, v.w - of.w))", "__uint_as_float(high)"),
    ("if (row < rows) *(float2*)", "if (row < 1) *(float2*)"),
    ("(sum[2][i] + sum[3][i])", "sum[2][i]"),
    ("if (k >= AHEAD && has_piece<I>(k)) piece", "if (k >= PIECES<I> && has_piece<I>(k)) piece"),
]
HARMLESS = "j + 0"


@contextmanager
def planted(where, old, new):
    """A piece of a kernel's file, or of a Python module, replaced."""
    if isinstance(where, types.ModuleType):
        source = Path(where.__file__).read_text("utf-8")
        assert source.count(old) == 1, old
        before = dict(vars(where))
        exec(compile(source.replace(old, new), where.__file__, "exec"), vars(where))
        new_of = {id(x): vars(where)[name] for name, x in before.items() if vars(where)[name] is not x}
        users = [m for name, m in sys.modules.items() if name.startswith("nanoeuler_lib.") and m is not where]
        held = [(m, n, x) for m in users for n, x in vars(m).items() if id(x) in new_of and n in before]
        for m, n, x in held:  # those who have the old class or function by name
            setattr(m, n, new_of[id(x)])
        try:
            yield
        finally:
            vars(where).clear()
            vars(where).update(before)
            for m, n, x in held:
                setattr(m, n, x)
        return
    path = cuda.KERNELS / where
    source = path.read_text("utf-8")
    assert old in source, old
    plain = program._module

    @functools.cache
    def module(file, instantiate, at, checked, add=False):
        if file != where:
            return plain(file, instantiate, at, checked, add)
        defines = {"ADD": 1} if add else {}
        return cuda.module(
            source.replace(old, new), where=at, checked=checked, instantiate=instantiate, defines=defines
        )

    with patch.object(program, "_module", module):
        yield


# Logits of all positions find no room in dgate_up; with FEW, a token has shares of the embedding's gradient alone.
SMALL = replace(TINY, layers=1, vocab_size=40, context=69, ffn=24)
FEW = dict(PIECE=8, OFTEN=12)


def same_updates():
    """AdamW with a copy in bfloat16 moves what it moves without, and the copy is the rounded parameter."""
    xp, rng, settings = cuda.array_module(), np.random.default_rng(0), TrainConfig(decay=0.5)
    start = [xp.asarray(abs(rng.standard_normal(1024)), np.float32) for _ in range(4)]
    factor, numbers = xp.asarray([0.5, 2], np.float32), xp.asarray([0.1, 1.5, 2.5], np.float32)
    op, found = program.Program(SMALL, "bfloat16"), []
    for copy in (None, xp.empty(1024, np.uint16)):
        arrays = [x.copy() for x in start]
        op.adamw(*arrays, copy, factor, numbers, 512, settings)
        program.run(op.take())
        found.append([memory.download(x) for x in arrays])
    assert all(np.array_equal(x, y) for x, y in zip(*found, strict=True))
    assert np.array_equal(memory.download(copy), from_bfloat16(to_bfloat16(found[0][0])))


def examine():
    """Loss, gradients and steps on a few tokens, in both precisions: raises where they are not the CPU's."""
    same_updates()
    params, options = parameters(SMALL), TrainConfig(steps=9, warmup=2, rate=3e-3, clip=0.5, decay=0.3)
    for precision in ("float32", "bfloat16"):
        model = engine.GPT(SMALL, params, precision=precision)
        pair = batch(69, 2, config=SMALL)
        with patch.object(memory, "LOGIT_ROWS", 16), patch.multiple(embedding, **FEW):
            loss, grads = model.loss_and_gradients(*pair)
            expected_loss, expected = GPT(SMALL, params).loss_and_gradients(*pair)
            assert abs(loss - expected_loss) <= ALLOWED[precision] * expected_loss
            assert apart(grads, expected) <= ALLOWED[precision]
            theirs = GPT(SMALL, parameters(SMALL))  # trained in place
            results = []
            for one, optimizer in (
                (model, engine.AdamW(SMALL, options, WHERE)),
                (theirs, AdamW(SMALL, options, np.float64)),
            ):
                kwargs = {"micro": 1} if one is model else {}
                kind = engine.Step if one is model else step.Step
                with kind(one, optimizer, options, 2, **kwargs) as take_step:
                    out = [np.append(*take_step(*batch(69, 2, seed, SMALL))) for seed in range(2)]
                results.append((np.array(out), one.params.host()))
            (found, moved), (wanted, goal) = results
            np.testing.assert_allclose(found, wanted, rtol=ALLOWED[precision])
            if precision == "float32":
                assert apart(moved, goal) <= 1e-5
            else:  # where the sign of a gradient is rounding, so is a step of AdamW
                still = {name: np.asarray(p, np.float64) for name, p in params.items()}
                assert apart({n: moved[n] - still[n] for n in still}, {n: goal[n] - still[n] for n in still}) < 0.5
            bad = dict(params)
            bad["layers.0.out"] = np.full_like(bad["layers.0.out"], np.inf)
            model.fill(bad)
            with engine.Step(model, engine.AdamW(SMALL, options, WHERE), options, 2, micro=2) as take_step:
                take_step.gradient(*pair)
                before = model.params.flat.copy()
                take_step.apply()
                assert np.array_equal(before, model.params.flat, equal_nan=True)


@pytest.mark.full
@on_the_cpu
def test_the_examination_passes_what_is_right():
    examine()


@pytest.mark.full
@on_the_cpu
@pytest.mark.parametrize(
    "where, old, new",
    [
        pytest.param(where, *bug, id=f"{getattr(where, '__name__', where)} {number}")
        for table in (KERNEL_BUGS, ENGINE_BUGS)
        for where, bugs in table.items()
        for number, bug in enumerate(bugs)
    ],
)
def test_planted_bugs_are_caught(where, old, new):
    with planted(where, old, new):
        try:
            examine()
        except Exception:
            assert HARMLESS not in new
        else:
            assert HARMLESS in new, f"not caught: {old} -> {new}"


@pytest.mark.full
@on_the_cpu
@pytest.mark.parametrize("barrier", [0, 1])
def test_a_deleted_barrier_of_the_norms_sums_is_reported(barrier):
    """In rows of several warps, of which a block takes several turns."""
    config = replace(TINY, dim=512, heads=4, layers=1, ffn=48, predict=1, vocab_size=40)
    source = (cuda.KERNELS / "engine.cu").read_text("utf-8")
    text = source[source.index("void block_sums") :].partition("\n}\n")[0]
    at = [m.start() for m in re.finditer(r"__syncthreads\(\);", text)][barrier]
    with planted("engine.cu", text, text[:at] + text[at:].replace("__syncthreads();", ";", 1)):
        with pytest.raises(cuda.KernelError, match="race"):
            engine_of(parameters(config, 0.1), config=config).loss_and_gradients(*batch(19, config=config))


def examine_decoding():
    """Logits of tokens that come singly and together, in a model whose heads share keys, and in one of wide heads."""
    narrow = dict(dim=128, heads=4, kv_heads=2, ffn=2064, context=90)  # `down`: more inputs than are asked for at once
    wide = dict(dim=256, heads=2, kv_heads=1, ffn=24, context=280)  # the cache more keys
    many = dict(dim=576, heads=18, kv_heads=9, ffn=8, context=15)  # every warp of a block squares some numbers
    for shape in (narrow, wide, many):
        config = replace(TINY, layers=1, vocab_size=40, predict=1, **shape)
        params, tokens = parameters(config), np.random.default_rng(1).integers(0, 40, config.context)
        expected = GPT(config, params).logits(tokens[None])[0]
        decoder = engine_of(params, config=config).decoder()
        parts = np.split(tokens, [3, 4, 14])
        found = np.concatenate([decoder.feed_all(part) for part in parts])
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.full
@on_the_cpu
def test_the_examination_of_decoding_passes_what_is_right():
    examine_decoding()


@pytest.mark.full
@on_the_cpu
@pytest.mark.parametrize("old, new", DECODE_BUGS, ids=map(str, range(len(DECODE_BUGS))))
def test_planted_bugs_in_decoding_are_caught(old, new):
    with planted("decode.cu", old, new), pytest.raises((AssertionError, cuda.KernelError)):
        examine_decoding()


def examine_products():
    """With weights in bfloat16, of one row and of several: x keeps 16 bits, as if it were float."""
    config = replace(TINY, dim=320, heads=10, kv_heads=5, ffn=2312)  # more inputs than are asked for at once
    rng, xp = np.random.default_rng(0), cuda.array_module()

    def halves(*shape):
        return xp.asarray(to_bfloat16(rng.standard_normal(shape).astype(np.float32)))

    narrow, wide, glu = halves(24, 320), halves(24, 2312), halves(48, 320)
    for rows in (1, 2, 3, 8):
        x, long, out, hidden = (xp.asarray(rng.standard_normal((rows, n)), np.float32) for n in (320, 2312, 24, 24))
        added, op = out.copy(), program.Program(config, "bfloat16")
        op.project(out, x, narrow, 1e-5)
        op.project(added, long, wide, None)
        op.project_glu(hidden, x, glu, 1e-5)
        before = memory.download(added).astype(np.float64)
        program.run(op.take())
        single, several, narrow64, wide64, glu64 = (
            memory.download(a).astype(np.float64) for a in (x, long, narrow, wide, glu)
        )
        y = single / np.sqrt((single**2).mean(axis=1, keepdims=True) + 1e-5)
        gate, up = np.split(y @ glu64.T, 2, axis=1)
        wanted = y @ narrow64.T, before + several @ wide64.T, gate / (1 + np.exp(-gate)) * up
        for found, expected in zip((out, added, hidden), wanted, strict=True):
            np.testing.assert_allclose(memory.download(found), expected, atol=3e-5 * np.abs(expected).max())


@pytest.mark.full
def test_products_with_bfloat16_weights_keep_what_x_is():
    examine_products()


@pytest.mark.full
@on_the_cpu
@pytest.mark.parametrize("old, new", BY_TENSOR_CORES_BUGS, ids=map(str, range(len(BY_TENSOR_CORES_BUGS))))
def test_planted_bugs_in_products_by_tensor_cores_are_caught(old, new):
    with planted("decode.cu", old, new), pytest.raises((AssertionError, cuda.KernelError)):
        examine_products()


if __name__ == "__main__":
    LAUNCHES.write_text(all_launches(), "utf-8")
    print(json.dumps({"lines": len(LAUNCHES.read_text("utf-8").splitlines())}), file=sys.stderr)
