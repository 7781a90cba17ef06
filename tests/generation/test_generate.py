"""Test generation: the cache changes nothing, sampling has the right distribution, and characters are complete."""

from itertools import chain, islice

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler_lib.config import ModelConfig
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
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer

CONFIG = ModelConfig(dim=16, heads=4, kv_heads=2, layers=2, context=16, vocab_size=260, predict=2)


@pytest.fixture(scope="module")
def model():
    return GPT(CONFIG, oracles.random_parameters(CONFIG, 0))


BYTES, WITH_END = Tokenizer([], ()), Tokenizer([(97, 98)], (END_OF_TEXT,))


def favouring(probabilities: dict) -> GPT:
    """Return a model whose next token has these probabilities after any prefix."""
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


# Sampling.


@pytest.mark.parametrize("options", [{"temperature": 0}, {"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1}], ids=str)
def test_greedy(model, options):
    logits = np.array([0.1, 2.0, -1.0, 1.99])
    assert {sample(logits, np.random.default_rng(i), **options) for i in range(20)} == {1}
    hot = {"temperature": 50.0} | options  # `generate` passes the options to the sampler
    assert generate(model, WITH_END, "ab", 12, **hot) == generate(model, WITH_END, "ab", 12, temperature=0)


def test_extreme_logits():
    rng = np.random.default_rng(0)
    with np.errstate(all="raise", under="ignore"):
        assert sample(np.array([1e4, -1e4, 0.0]), rng, temperature=0.01) == 0
        assert sample(np.array([-np.inf, 0.0, -np.inf], np.float32), rng) == 1
        tokens, probs = filtered_probs(np.zeros(4, np.float32), 100)
        assert tokens.tolist() == [0, 1, 2, 3] and np.allclose(probs, 0.25)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("bad", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]])
def test_logits_that_are_refused(bad, temperature):
    with pytest.raises(NanoEulerError, match=r"the largest logit must be finite, got .*"):
        sample(np.array(bad), np.random.default_rng(0), temperature)


@pytest.mark.parametrize("name, values, expected", [
    ("temperature", [-1, 101, np.nan], "0 to 100"), ("top_k", [-1], "0 [(]all[)] or more"),
    ("top_p", [0, 1.5, np.nan], "more than 0 and at most 1"), ("min_p", [-0.1, 1.5, np.nan], "0 to 1"),
])  # fmt: skip
def test_sample_refuses(name, values, expected):
    for value in values:
        with pytest.raises(NanoEulerError, match=f"{name} must be {expected}, got {value}"):
            sample(np.zeros(3), np.random.default_rng(0), **{name: value})


# Text.


def greedy_by_whole_passes(model, ids, count, size, penalty=1.0):
    """Take the most likely token each time, without a cache; when the context is full, its later half is read again."""
    ids, seen, begin = list(ids), ids[-16:], max(0, len(ids) - 16)
    for _ in range(count):
        if len(seen) > 16:
            seen = ids[-9:]
        logits = model.logits(np.array([seen]))[0, -1].astype(np.float64)[:size]
        for token in set(ids[begin:]) - {257}:
            logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        ids.append(int(logits.argmax()))
        seen = [*seen, ids[-1]]
        if ids[-1] == 257:
            break
    return ids


@pytest.mark.parametrize("penalty, tokenizer", [(1.0, BYTES), (1.0, WITH_END), (0.7, WITH_END), (1.3, WITH_END)])
@pytest.mark.parametrize("prompt", ["K", "ab", "Kä", "Seven bridges", "a" * 15, "abcdefghijklmnop", "mno" * 13])
def test_greedy_text_is_the_most_likely_token_each_time(model, prompt, penalty, tokenizer):
    """Test prompts shorter and longer than the context, and texts that continue when the context is full. The end of
    text comes first, as in documents. Each token that was read is penalised once, and the end of text never."""
    ids = [257] * (tokenizer is WITH_END) + tokenizer.encode(prompt).tolist()
    found = greedy_by_whole_passes(model, ids, 60, tokenizer.vocab_size, penalty)[len(ids) :]
    expected = tokenizer.decode([i for i in found if i != 257])
    assert generate(model, tokenizer, prompt, 60, temperature=0, repetition_penalty=penalty) == expected


@settings(max_examples=60)
@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3), st.integers(0, 99))
def test_the_first_stop_to_come_ends_the_text(stops, seed):
    """Check this for any order of the stops, and for any division of the text into pieces."""
    letters = favouring({97: 0.3, 98: 0.3, 256: 0.2, 99: 0.2})
    text = generate(letters, WITH_END, "a", 12, temperature=1, seed=seed)
    first = min((text.index(stop) for stop in stops if stop in text), default=len(text))
    assert generate(letters, WITH_END, "a", 12, temperature=1, seed=seed, stop=stops) == text[:first]


@pytest.mark.parametrize("length", [1, 9, 16, 17, 40])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 0}])
def test_the_plain_loop_draws_what_speculation_draws_without_proposals(model, length, options):
    """Compare bitwise, also after a full context: one random number per token, and the model reads the same pieces."""
    prompt = np.random.default_rng(length).integers(0, 260, length).tolist()
    one, other = np.random.default_rng(7), np.random.default_rng(7)
    tokens = list(islice(generate_tokens(model, prompt, one, size=258, **options), 50))
    expected = list(chain.from_iterable(islice(speculate(model, prompt, other, size=258, **options), 50)))
    assert tokens == expected and max(tokens) < 258
    assert one.random() == other.random() and len(prompt) == length


def test_context_of_one_token_and_an_empty_prompt(model):
    config = ModelConfig(dim=8, heads=2, kv_heads=1, layers=1, context=1, vocab_size=256, predict=1)
    assert len(generate(GPT(config), BYTES, "ab", 5, temperature=0)) >= 1
    assert isinstance(generate(model, WITH_END, "", 3), str)
    assert len(generate(model, BYTES, "", 3, temperature=0)) >= 1


def test_same_seed_same_text(model):
    one, two, other = (generate(model, BYTES, "Murr", 30, seed=s, temperature=2.0) for s in (3, 3, 4))
    assert one == two != other


def test_pieces_are_whole_characters():
    """Check that bytes of a character are kept until it is complete, and that an incomplete character is U+FFFD."""
    mixed = favouring({0xC3: 0.4, 0xA4: 0.4, 0x41: 0.2})
    text = "".join(pieces := list(stream(mixed, BYTES, "K", 300, temperature=1)))
    assert all(pieces) and "ä" in text and "A" in text and "\ufffd" in text
    assert text == generate(mixed, BYTES, "K", 300, temperature=1)
    assert list(stream(favouring({0xC3: 1.0}), BYTES, "K", 1)) == ["\ufffd"]  # cut off at the end


def test_how_long_a_text_is():
    alike = favouring({97: 1.0})
    assert generate(alike, BYTES, "a") == "".join(stream(alike, BYTES, "a")) == "a" * 200
    assert generate(alike, BYTES, "a", 3) == "aaa" and generate(alike, BYTES, "a", 0) == ""
    assert generate(favouring({257: 1.0}), WITH_END, "a", 50) == ""
    text = generate(favouring({257: 0.2, 97: 0.8}), WITH_END, "a", 500, temperature=1)
    assert set(text) == {"a"} and len(text) < 100


def test_never_draws_an_id_without_a_token():
    """Check a model with more ids than its tokenizer, because the additional ids have no bytes."""
    assert generate(favouring({259: 0.9, 65: 0.1}), BYTES, "a", 20, temperature=1) == "A" * 20


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_order_of_likelihood_is_that_of_a_stable_argsort(kind):
    """Test logits with equal values, both zeros, -inf, and the smallest and largest numbers."""
    rng, odd = np.random.default_rng(0), [0.0, -0.0, -np.inf, 1e-45, -1e-45, 3e38, -3e38]
    for _ in range(300):
        logits = rng.integers(-3, 4, rng.integers(1, 40)).astype(kind) / 2
        places = rng.random(len(logits)) < 0.3
        logits[places] = rng.choice(odd, places.sum())
        assert by_likelihood(logits).tolist() == np.argsort(-logits, kind="stable").tolist()


@pytest.mark.parametrize("probs, options, kept", [
    ([0.5, 0.25, 0.25], {"top_p": 0.5}, [0]), ([0.5, 0.25, 0.25], {"top_p": 0.75}, [0, 1]),
    ([0.25] * 4, {"top_k": 2}, [0, 1]),  # the first of equal tokens, as at temperature 0
])  # fmt: skip
def test_no_more_is_kept_than_reaches_the_limit(probs, options, kept):
    assert filtered_probs(np.log(probs), **options)[0].tolist() == kept
