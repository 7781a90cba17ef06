"""Tokens drawn on the device: the same as the host draws from the same uniform numbers, and the same distribution."""

import functools
from collections import Counter
from dataclasses import replace
from itertools import chain, islice

import numpy as np
import pytest
from test_engine import parameters

from nanoeuler_lib import engine
from nanoeuler_lib.config import ModelConfig, preset
from nanoeuler_lib.engine import decode, flash
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generation import generate

pytestmark = pytest.mark.compiler
CONFIG = ModelConfig(dim=64, heads=2, kv_heads=1, layers=1, context=14, vocab_size=96, predict=3, ffn=24)
CARD, T4 = flash.Card(86, 99 << 10), flash.Card(75, 64 << 10)
WAYS = [
    dict(temperature=0.0),
    dict(temperature=1.5),
    dict(temperature=0.8, top_p=0.9),
    dict(temperature=1.0, top_k=5, min_p=0.05),
]


@functools.cache
def model_of(checked=False, context=CONFIG.context):
    config = replace(CONFIG, context=context)
    return engine.GPT(config, parameters(config, 0.4), where="cpu", checked=checked)


def ordered(logits, size, options, seed=0):
    """What `order` leaves of logits [rows, heads, V]: tokens and probabilities of each, and the dense ones."""
    rows, heads, V = logits.shape
    config = ModelConfig(dim=64, heads=2, kv_heads=1, layers=1, context=8, vocab_size=V, predict=heads, ffn=24)
    model = engine.GPT(config, where="cpu")
    decoder = model.decoder(heads - 1)
    drawn = decode.Drawn(decoder, np.random.default_rng(seed))
    drawn.tokens[...], drawn.sums[...], drawn.dense[...] = -1, np.nan, np.nan
    flat = np.ascontiguousarray(logits.reshape(rows, heads * V))
    model.program.order(drawn, flat, size, *options)
    engine.program.run(model.program.take())
    return drawn


@pytest.mark.parametrize("V, size", [(40, 40), (96, 91), (264, 264), (4104, 4100)])
def test_distributions_are_those_of_the_host(V, size):
    rng = np.random.default_rng(V)
    for options in (
        (1.0, 0, 1.0, 0.0),
        (0.7, 9, 1.0, 0.0),
        (1.3, 0, 0.8, 0.0),
        (1.0, 30, 0.9, 0.02),
        (1.0, 0, 1.0, 1.0),
        (0.0, 0, 1.0, 0.0),
    ):
        logits = rng.normal(0, 3, (2, 2, V)).astype(np.float32)
        logits[0, 0, 3:30:4] = logits[0, 0].max()  # equal ones, the lower token first
        logits[1, 1, :20], logits[0, 1, 5], logits[0, 1, 6] = -np.inf, 0.0, -0.0
        drawn = ordered(logits, size, options)
        for row, head in np.ndindex(2, 2):
            tokens, probs = generate.filtered_probs(logits[row, head, :size], *options)
            n = drawn.counts[row, head]
            assert n == len(tokens) and np.array_equal(drawn.tokens[row, head, :n], tokens)
            np.testing.assert_allclose(drawn.sums[row, head, :n], np.cumsum(probs), rtol=1e-12)
            np.testing.assert_allclose(drawn.dense[0, row, head], generate.dense(tokens, probs, V), rtol=1e-12)
        if V > 1000:
            break


@pytest.mark.parametrize("wrong", [np.nan, -np.nan, np.inf])
def test_a_largest_logit_that_is_no_number_is_told(wrong):
    logits = np.zeros((2, 2, 40), np.float32)
    logits[0, 1, 17] = wrong
    for temperature in (0.0, 1.0):
        assert ordered(logits, 40, (temperature, 0, 1.0, 0.0)).counts[0].tolist()[1] == 0
    model = engine.GPT(CONFIG, parameters(CONFIG), where="cpu", checked=False)
    model.params["norm_final"][...] = wrong
    with pytest.raises(NanoEulerError, match="the largest logit must be finite"):
        next(model.decoder(1).rounds([1, 2], np.random.default_rng(0)))


@pytest.mark.parametrize("way, propose", [(0, 2), (1, 0), (2, 1), (3, 2)])
def test_texts_are_those_of_the_host(way, propose):
    """To the end of the context, of which the host uses a little more; also where a proposal would end the text."""
    model = model_of(checked=way == 2, context=24)
    told = generate.speculate(model, [5, 9, 1], np.random.default_rng(0), propose, None, 90, **WAYS[way])
    end = Counter(chain.from_iterable(islice(told, 18))).most_common(1)[0][0]  # so that it is proposed
    for seed in range(1 if way == 2 else 3):
        host = generate.speculate(model, [5, 9, 1], np.random.default_rng(seed), propose, end, 90, **WAYS[way])
        card = model.decoder(propose).rounds([5, 9, 1], np.random.default_rng(seed), end, 90, **WAYS[way])
        room = 24 - 3 - propose
        wanted, found = ([*chain.from_iterable(islice(of, room))] for of in (host, card))
        assert found[:room] == wanted[:room], (seed, wanted, found)
        assert len(set(found)) > 1 and max(found) < 90


def test_the_context_moves_on():
    model = model_of()
    host = generate.generate_tokens(model, [5, 9], np.random.default_rng(1), 96, temperature=1.0)
    card = chain.from_iterable(model.decoder().rounds([5, 9], np.random.default_rng(1), temperature=1.0))
    assert [*islice(card, 20)] == [*islice(host, 20)]
    rounds = model.decoder(2).rounds([*range(30)], np.random.default_rng(1), temperature=1.0)
    assert len([*chain.from_iterable(islice(rounds, 12))]) >= 12


def test_generate_draws_on_the_device_where_it_can(monkeypatch):
    model, seen = model_of(), []
    real = model.decoder
    monkeypatch.setattr(model, "decoder", lambda ahead=0: seen.append(ahead) or real(ahead))
    for propose in (0, 2):
        told = generate.rounds(model, [5, 9], np.random.default_rng(1), propose, temperature=0.0)
        wanted = model.decoder(propose).rounds([5, 9], np.random.default_rng(1), temperature=0.0)
        assert [*islice(told, 4)] == [*islice(wanted, 4)] and seen == [propose] * 2
        seen.clear()
    with pytest.raises(NanoEulerError, match="top_p must be more than 0 and at most 1, got 2"):
        generate.rounds(model, [5], np.random.default_rng(1), 1, top_p=2)
    wide = replace(CONFIG, context=24)
    assert not model.draws(3) and [decode.draws(CONFIG, n, CARD) for n in (6, 7)] == [True, False], "half a context"
    assert [decode.draws(wide, n, CARD) for n in (7, 8)] == [True, False], "rows of one launch"


def test_as_many_tokens_at_a_time_as_shared_memory_holds():
    """Compare with the static and dynamic shared memory of the launches, on a GPU with 64 KB of it."""
    assert [decode.most_rows(preset(name), card) for name in ("base", "large") for card in (T4, CARD)] == [4, 8, 4, 8]
    for inputs, static in ((preset("large").ffn, 2 * 8 * 8 + 8), (preset("large").dim, 4 * 8 * 8 + 8)):
        used = [4 * rows * (inputs + 4 + static) for rows in (4, 8)]
        assert used[0] <= T4.shared and used[1] <= CARD.shared
    config = replace(CONFIG, ffn=2048, context=20)
    model, tokens = engine.GPT(config, parameters(config), where="cpu", checked=False), np.arange(17)
    few = engine.GPT(config, parameters(config), where="cpu", checked=False, on=T4)
    assert (model.decoder().rows, few.decoder().rows) == (8, 4)
    assert np.array_equal(few.decoder().feed_all(tokens), model.decoder().feed_all(tokens))
