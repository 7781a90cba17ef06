"""Generation: the cache changes nothing, sampling draws what it should, text comes in whole characters and goes on."""

import tracemalloc
from itertools import chain, islice

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler_lib.config import ModelConfig, preset
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generation.generate import (
    by_likelihood,
    filtered_probs,
    generate,
    generate_tokens,
    sample,
    speculate,
    stream,
)
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer

CONFIG = ModelConfig(dim=16, heads=4, kv_heads=2, layers=2, context=16, vocab_size=260, predict=2)


@pytest.fixture(scope="module")
def model():
    return GPT(CONFIG, oracles.random_parameters(CONFIG, 0))


def last_is_end():
    return Tokenizer([(97, 98)], (END_OF_TEXT,))


def favouring(probabilities: dict) -> GPT:
    """A model whose next token has these probabilities, whatever came before."""
    config = ModelConfig(dim=2, heads=1, kv_heads=1, layers=1, context=8, vocab_size=260, predict=1)
    flat = GPT(config, dtype=np.float64)
    flat.params["embed"][...] = 1
    for name in ("layers.0.out", "layers.0.down"):
        flat.params[name][...] = 0
    logits = np.full(260, -1e3)
    for token, p in probabilities.items():
        logits[token] = np.log(p)
    flat.params["heads"][...] = np.stack([logits, np.zeros(260)]) / np.sqrt(1 / (1 + config.norm_eps))
    return flat


# The cache.


@settings(max_examples=25)
@given(st.integers(1, 3), st.integers(1, 3), st.sampled_from([2, 4, 6]), st.integers(1, 12), st.integers(0, 99))
def test_cache_equals_no_cache_at_any_size(groups, repeat, width, context, seed):
    heads = groups * repeat
    oracles.check_decoder(ModelConfig(heads * width, heads, groups, 2, context, 11, 2, ffn=5), seed)


def test_feed_all_gives_the_logits_behind_each_token(model):
    tokens = np.random.default_rng(1).integers(0, 260, 16)
    full = model.logits(tokens[None])[0]
    for cuts in ([16], [1, 16], [5, 6, 16], [15, 16]):
        decoder, start = Decoder(model), 0
        for end in cuts:
            found = decoder.feed_all(tokens[start:end])
            assert found.shape == (end - start, 260)
            oracles.close(found, full[start:end], 1e-12, f"logits {start} to {end}")
            start = end
    with pytest.raises(NanoEulerError, match="16 used: got 1 tokens, expected 1 to 0"):
        decoder.feed_all(tokens[:1])


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=8), st.integers(0, 99))
def test_forgetting(moves, seed):
    """Whatever was fed and forgotten before, the logits are those of the tokens that are left."""
    rng = np.random.default_rng(seed)
    fresh = GPT(CONFIG, oracles.random_parameters(CONFIG, seed))
    decoder, kept = Decoder(fresh), []
    for count, forget in moves:
        more = rng.integers(0, 260, min(count, 16 - len(kept)))
        if len(more) == 0:
            break
        kept += [int(token) for token in more]
        found = decoder.feed(more)
        oracles.close(found, fresh.logits(np.array([kept]))[0, -1], 1e-12)
        kept = kept[: max(0, len(kept) - forget)]
        decoder.length = len(kept)


def test_results_are_not_overwritten(model):
    """Logits handed out stay as they are when the decoder goes on."""
    decoder = Decoder(model)
    first = decoder.feed(np.array([3]))
    kept = first.copy()
    decoder.feed(np.array([4]))
    assert np.array_equal(first, kept)


def test_a_token_allocates_little():
    """Next to the logits, not much more than the scores of one position: no buffer of the model's size."""
    config = preset("small")
    decoder, token = Decoder(GPT(config)), np.array([7])
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


def test_cache_in_float32():
    single = GPT(CONFIG, oracles.random_parameters(CONFIG, 0, std=0.1, dtype=np.float32))
    tokens = np.arange(16) * 7 % 260
    logits = Decoder(single).feed(tokens)
    assert logits.dtype == np.float32
    oracles.close(logits, single.logits(tokens[None])[0, -1], 1e-4)


def test_decoder_refuses(model):
    decoder = Decoder(model)
    with pytest.raises(NanoEulerError, match="context is 16, 0 used: got 17 tokens, expected 1 to 16"):
        decoder.feed(np.zeros(17, int))
    with pytest.raises(NanoEulerError, match="got 0 tokens"):
        decoder.feed(np.zeros(0, int))
    decoder.feed(np.zeros(16, int))
    with pytest.raises(NanoEulerError, match="16 used: got 1 tokens, expected 1 to 0"):
        decoder.feed(np.zeros(1, int))


# Sampling.


def test_distribution():
    oracles.check_sampling(draws=20_000)


def test_greedy():
    logits = np.array([0.1, 2.0, -1.0, 1.99])
    assert {sample(logits, np.random.default_rng(i), temperature=0) for i in range(20)} == {1}
    assert {sample(logits, np.random.default_rng(i), top_k=1) for i in range(20)} == {1}
    assert {sample(logits, np.random.default_rng(i), top_p=1e-9) for i in range(20)} == {1}
    assert {sample(logits, np.random.default_rng(i), min_p=1) for i in range(20)} == {1}


@settings(max_examples=100)
@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.integers(0, 9), st.floats(0.01, 1.0),
    st.floats(0.2, 5.0), st.floats(0, 1), st.integers(0, 99),
)  # fmt: skip
def test_draws_only_what_is_allowed(logits, top_k, top_p, temperature, min_p, seed):
    token = sample(np.array(logits), np.random.default_rng(seed), temperature, top_k, top_p, min_p)
    p = oracles.expected_distribution(logits, temperature, top_k, top_p * (1 + 1e-9), min_p * (1 - 1e-9))
    ties = np.isclose(logits, logits[token])  # among equal logits either may be the one that is kept
    assert p[ties].any()


def test_extreme_logits():
    rng = np.random.default_rng(0)
    with np.errstate(all="raise", under="ignore"):
        assert sample(np.array([1e4, -1e4, 0.0]), rng, temperature=0.01) == 0
        assert sample(np.array([-np.inf, 0.0, -np.inf], np.float32), rng) == 1
        counts = np.bincount([sample(np.zeros(4, np.float32), rng, 100) for _ in range(2000)], minlength=4)
    assert counts.min() > 400
    for bad in ([np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]):
        for temperature in (0, 1):
            with pytest.raises(NanoEulerError, match=r"the largest logit is .*, expected a finite number"):
                sample(np.array(bad), rng, temperature)


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"temperature": -1}, "temperature is -1, expected 0 to 100"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1, expected 0"),
        ({"top_p": 0}, "top_p is 0, expected more than 0 and at most 1"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_p": float("nan")}, "top_p is nan"),
        ({"min_p": -0.1}, "min_p is -0.1, expected 0 to 1"),
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"min_p": float("nan")}, "min_p is nan"),
    ],
)
def test_sample_refuses(options, expected):
    with pytest.raises(NanoEulerError, match=expected):
        sample(np.zeros(3), np.random.default_rng(0), **options)


# Text.


def test_greedy_text_is_the_most_likely_token_each_time(model):
    """Without the cache, one whole forward pass a token."""
    tokenizer = Tokenizer([], ())
    ids = [int(i) for i in tokenizer.encode("Kant")]
    for _ in range(12):  # up to the end of the context
        ids.append(int(model.logits(np.array([ids]))[0, -1][:256].argmax()))
    expected = bytes(ids[4:]).decode("utf-8", "replace")
    assert generate(model, tokenizer, "Kant", 12, temperature=0) == expected


@pytest.mark.parametrize("penalty", [0.7, 1.3, 5.0])
def test_what_was_said_is_penalised(model, penalty):
    """Greedy text against a whole pass a token, each token of prompt and continuation penalised once, its end never."""
    tokenizer = last_is_end()
    ids = [256 + 1, *tokenizer.encode("Kant").tolist()]
    assert ids[0] == tokenizer.special_tokens[END_OF_TEXT]
    for _ in range(11):
        logits = model.logits(np.array([ids]))[0, -1].astype(np.float64)[: tokenizer.vocab_size]
        for token in set(ids[1:]):
            logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        ids.append(int(logits.argmax()))
        if ids[-1] == 257:
            break
    expected = tokenizer.decode([i for i in ids[5:] if i != 257])
    assert generate(model, tokenizer, "Kant", 11, temperature=0, repetition_penalty=penalty) == expected
    assert (penalty < 1) == (len(set(ids[5:])) < len(ids[5:]))  # and it does what it is for
    likely = favouring({97: 0.35, 98: 0.25, 257: 0.4})  # the end marker stands before the prompt as well
    assert generate(likely, tokenizer, "c", 9, temperature=0, repetition_penalty=max(1, penalty)) == ""


@settings(max_examples=60)
@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3), st.integers(0, 99))
def test_the_first_stop_to_come_ends_the_text(stops, seed):
    """Whatever the order in which they are listed, and however the text comes in pieces."""
    letters, tokenizer = favouring({97: 0.3, 98: 0.3, 256: 0.2, 99: 0.2}), last_is_end()
    text = generate(letters, tokenizer, "a", 12, temperature=1, seed=seed)
    first = min((text.index(stop) for stop in stops if stop in text), default=len(text))
    assert generate(letters, tokenizer, "a", 12, temperature=1, seed=seed, stop=stops) == text[:first]


def test_goes_on_when_the_context_is_full(model):
    """Then the later half of the context is read again: the same as a whole forward pass over that half."""
    tokenizer = Tokenizer([], ())
    ids = [int(i) for i in tokenizer.encode("Seven bridges")]
    seen, prompt = list(ids), len(ids)
    for _ in range(60):
        if len(seen) > 16:
            seen = ids[-9:]
        token = int(model.logits(np.array([seen]))[0, -1][:256].argmax())
        ids.append(token)
        seen.append(token)
    text = generate(model, tokenizer, "Seven bridges", 60, temperature=0)
    assert text == bytes(ids[prompt:]).decode("utf-8", "replace")


@pytest.mark.parametrize("length", [1, 9, 16, 17, 40])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 0}])
def test_the_plain_loop_draws_what_speculation_draws_without_proposals(model, length, options):
    """Bit for bit, also behind a full context: one random number a token, and the model reads the same pieces."""
    prompt = np.random.default_rng(length).integers(0, 260, length).tolist()
    one, other = np.random.default_rng(7), np.random.default_rng(7)
    tokens = list(islice(generate_tokens(model, prompt, one, size=258, **options), 50))
    expected = list(chain.from_iterable(islice(speculate(model, prompt, other, size=258, **options), 50)))
    assert tokens == expected and max(tokens) < 258
    assert one.random() == other.random() and len(prompt) == length


@pytest.mark.parametrize("length", [15, 16, 17, 40])
def test_prompt_longer_than_the_context(model, length):
    """Its end is what the model reads."""
    tokenizer = Tokenizer([], ())
    prompt = "abcdefghijklmnopqrstuvwxyz" * 2
    found = generate(model, tokenizer, prompt[:length], 1, temperature=0)
    ids = np.array([tokenizer.encode(prompt[:length])[-16:]]).astype(int)
    assert found == bytes([int(model.logits(ids)[0, -1][:256].argmax())]).decode("utf-8", "replace")


def test_context_of_one_token():
    config = ModelConfig(dim=8, heads=2, kv_heads=1, layers=1, context=1, vocab_size=256, predict=1)
    assert len(generate(GPT(config), Tokenizer([], ()), "ab", 5, temperature=0)) >= 1


def test_same_seed_same_text(model):
    tokenizer = Tokenizer([], ())
    one, two, other = (generate(model, tokenizer, "Murr", 30, seed=s, temperature=2.0) for s in (3, 3, 4))
    assert one == two != other


def test_pieces_are_whole_characters():
    """Bytes of a character are held back until it is complete; what never becomes one is U+FFFD."""
    tokenizer = Tokenizer([], ())
    pieces = list(stream(favouring({0xC3: 0.4, 0xA4: 0.4, 0x41: 0.2}), tokenizer, "K", 300, temperature=1))
    text = "".join(pieces)
    assert "ä" in text and "A" in text and "\ufffd" in text
    assert all(pieces) and "ä" in {c for piece in pieces for c in piece}
    assert text == generate(favouring({0xC3: 0.4, 0xA4: 0.4, 0x41: 0.2}), tokenizer, "K", 300, temperature=1)
    assert list(stream(favouring({0xC3: 1.0}), tokenizer, "K", 1)) == ["\ufffd"]  # cut off at the end


def test_stops_at_the_end_of_text():
    tokenizer = last_is_end()
    assert generate(favouring({257: 1.0}), tokenizer, "a", 50) == ""
    text = generate(favouring({257: 0.2, 97: 0.8}), tokenizer, "a", 500, temperature=1)
    assert set(text) == {"a"} and len(text) < 100


def test_starts_where_documents_start(model):
    """The end-of-text token stands before the prompt, and an empty prompt is allowed."""
    tokenizer = last_is_end()
    for prompt in ("Kä", "Honey", "ab", "x"):
        ids = [257, *(int(i) for i in tokenizer.encode(prompt))]
        token = int(model.logits(np.array([ids]))[0, -1][:258].argmax())
        expected = "" if token == 257 else tokenizer.token_bytes[token].decode("utf-8", "replace")
        assert generate(model, tokenizer, prompt, 1, temperature=0) == expected
    assert isinstance(generate(model, tokenizer, "", 3), str)
    assert len(generate(model, Tokenizer([], ()), "", 3, temperature=0)) >= 1


def test_never_draws_an_id_without_a_token():
    """A model may have more ids than its tokenizer: those beyond have no bytes."""
    tokenizer = Tokenizer([], ())
    assert generate(favouring({259: 0.9, 65: 0.1}), tokenizer, "a", 20, temperature=1) == "A" * 20


def test_options_reach_the_sampler(model):
    greedy = generate(model, last_is_end(), "ab", 12, temperature=0)
    for options in ({"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}):
        assert generate(model, last_is_end(), "ab", 12, temperature=50.0, **options) == greedy


def test_no_tokens_asked(model):
    assert generate(model, Tokenizer([], ()), "a", 0) == ""


def test_two_hundred_tokens_where_no_number_is_asked():
    alike, tokenizer = favouring({97: 1.0}), Tokenizer([], ())
    assert generate(alike, tokenizer, "a") == "".join(stream(alike, tokenizer, "a")) == "a" * 200


def test_distribution_of_generated_tokens():
    """Text drawn token by token has the model's probabilities."""
    p = {65: 0.5, 66: 0.3, 67: 0.2}
    text = generate(favouring(p), Tokenizer([], ()), "a", 3000, temperature=1, seed=2)
    for token, probability in p.items():
        assert text.count(chr(token)) == pytest.approx(3000 * probability, abs=5 * (3000 * 0.25) ** 0.5)


@pytest.mark.parametrize("tokens", [[-1], [260], [3, 999]])
def test_tokens_out_of_range_are_refused(model, tokens):
    with pytest.raises(NanoEulerError, match=r"expected 0\.\.259"):
        Decoder(model).feed(np.array(tokens))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_order_of_likelihood_is_that_of_a_stable_argsort(kind):
    """With equal logits, both zeros, -inf, the smallest and the largest numbers among them."""
    rng, odd = np.random.default_rng(0), [0.0, -0.0, -np.inf, 1e-45, -1e-45, 3e38, -3e38]
    for _ in range(300):
        logits = rng.integers(-3, 4, rng.integers(1, 40)).astype(kind) / 2
        places = rng.random(len(logits)) < 0.3
        logits[places] = rng.choice(odd, places.sum())
        assert by_likelihood(logits).tolist() == np.argsort(-logits, kind="stable").tolist()


def test_top_p_takes_no_more_than_reach_it():
    logits = np.log(np.array([0.5, 0.25, 0.25]))
    assert filtered_probs(logits, top_p=0.5)[0].tolist() == [0] and filtered_probs(logits, top_p=0.75)[0].tolist() == [
        0,
        1,
    ]
    assert filtered_probs(np.zeros(4), top_k=2)[0].tolist() == [
        0,
        1,
    ]  # among equals the first, as at temperature 0
