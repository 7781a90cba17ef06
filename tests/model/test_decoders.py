"""Models and their decoders against the models written out: each architecture, pieces of any size, large scores."""

import tracemalloc
from dataclasses import replace

import numpy as np
import oracles
import pytest
from test_gpt2 import ODD as ODD_GPT2
from test_settings import ODD

from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig, preset
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT

LONG = ModelConfig(dim=24, heads=4, kv_heads=2, layers=2, context=40, vocab_size=5, predict=1)
MODELS = {  # a configuration, and how many times as large queries and keys are
    **{f"GPT {name}": (config, 1) for name, config in ODD.items()},
    **{f"GPT-2 {name}": (config, 1) for name, config in ODD_GPT2.items()},
    "one position": (replace(LONG, context=1, predict=2), 1),
    "scores of about 100": (LONG, 3),
    "scores of about 3,000": (LONG, 15),
}


def gpt2_logits(p, c, tokens):
    """Logits [T, 1, V] of one sequence, one number at a time: Radford et al. 2019 with tanh's GELU."""
    C = c.dim // c.heads

    def norm(x, name):
        rows = [(row - row.mean()) / np.sqrt(row.var() + c.norm_eps) for row in x]
        return np.array(rows) * p[name] + p[f"{name}_bias"]

    def linear(x, name):
        return x @ p[name] + p[f"{name}_bias"]

    x = np.array([p["embed"][token] + p["positions"][t] for t, token in enumerate(tokens)])
    for layer in (f"layers.{i}." for i in range(c.layers)):
        q, k, v = np.split(linear(norm(x, f"{layer}norm1"), f"{layer}qkv"), 3, axis=1)
        rows = np.zeros_like(q)
        for h in range(c.heads):
            columns = slice(h * C, (h + 1) * C)
            for t in range(len(x)):
                e = np.exp([q[t, columns] @ k[s, columns] / C**0.5 for s in range(t + 1)])
                rows[t, columns] = sum(w / e.sum() * v[s, columns] for s, w in enumerate(e))
        x = x + linear(rows, f"{layer}out")
        up = linear(norm(x, f"{layer}norm2"), f"{layer}up")
        gelu = 0.5 * up * (1 + np.tanh((2 / np.pi) ** 0.5 * (up + 0.044715 * up**3)))
        x = x + linear(gelu, f"{layer}down")
    return (norm(x, "norm_final") @ p["embed"].T)[:, None]


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    """A model, tokens up to its context, the logits of every head by the formula, and the tolerance."""
    config, louder = MODELS[request.param]
    params = oracles.random_parameters(config, 3)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, config.context)
    if config in ODD_GPT2.values():
        expected = gpt2_logits(params, config, tokens)
    else:
        for layer in range(config.layers):
            params[f"layers.{layer}.qkv"][:, : (config.heads + config.kv_heads) * config.head_dim] *= louder
        expected = oracles.naive_logits(params, config, tokens[None])[0]
    return GPT(config, params), tokens, expected, 1e-12 * louder**2


@pytest.mark.parametrize("version", ["cpu", "plain"])
def test_all_tokens_at_once(case, version):
    model, tokens, expected, rtol = case
    for head in range(expected.shape[1]):
        with ops.use(version):
            found = model.logits(tokens[None], head)[0]
        oracles.close(found, expected[:, head], rtol, f"head {head}")


def test_pieces_of_any_size(case):
    """One by one, all at once, and pieces between; head 0 and the later ones; what was handed out stays as it is."""
    model, tokens, expected, rtol = case
    T, handed_out = len(tokens), []
    for ends in (range(1, T + 1), [T], sorted({(T + 1) // 2, T // 2 + 1, T})):
        decoder = model.decoder()
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            for start, end in zip([0, *ends], ends):
                for place in decoder.read(tokens[start:end]):
                    row = decoder.logits(place)
                    handed_out.append((row, row.copy()))
                    oracles.close(row, expected[start + place, 0], rtol, f"token {start + place}")
                    oracles.close(decoder.later_logits(place), expected[start + place, 1:], rtol, "later heads")
        assert decoder.length == T
    assert all(np.array_equal(*pair) for pair in handed_out)
    decoder = model.decoder()
    oracles.close(decoder.feed_all(tokens), expected[:, 0], rtol, "feed_all")
    decoder.length = T // 2
    oracles.close(decoder.feed(tokens[T // 2 :]), expected[-1, 0], rtol, "feed, after half was forgotten")


def test_a_token_allocates_little():
    """Next to the logits, not much more than the scores of one position: no buffer of the model's size."""
    config = preset("small")
    decoder, token = GPT(config).decoder(), np.array([7])
    for _ in range(100):
        decoder.feed(token)
    tracemalloc.start()
    try:
        decoder.feed(token)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        decoder.feed(token)
        growth = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert growth < 4 * config.vocab_size + 3 * 4 * config.heads * config.context + 4000, growth


@pytest.mark.parametrize(
    "seen, tokens, message",
    [
        (0, [0] * 12, r"number of tokens must be 1 to 11 \(0 of 11 positions are used\), got 12"),
        (0, [], r"must be 1 to 11 \(0 of 11 positions are used\), got 0"),
        (11, [0], r"must be 1 to 0 \(11 of 11 positions are used\), got 1"),
        (0, [-1], r"tokens must be in 0\.\.6, got -1\.\.-1"),
        (1, [3, 7], r"tokens must be in 0\.\.6, got 3\.\.7"),
    ],
)
def test_what_a_decoder_refuses(seen, tokens, message):
    decoder = GPT(ODD["one"]).decoder()
    decoder.length = seen
    for feed in (decoder.feed, decoder.feed_all, decoder.read):
        with pytest.raises(NanoEulerError, match=message):
            feed(np.array(tokens, int))
    assert decoder.length == seen
