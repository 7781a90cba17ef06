"""Test speculative decoding: proposals change the number of forward passes, and never a text's distribution."""

from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import konigsberg
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generation import generate
from nanoeuler_lib.generation.generate import accept_or_redraw, pick, stream
from nanoeuler_lib.model import GPT, Parameters
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.text.tokenizer import END_OF_TEXT
from nanoeuler_lib.training.checkpoint import load_pretrained

TINY = ModelConfig(dim=8, heads=2, kv_heads=1, layers=1, context=6, vocab_size=3, predict=3, ffn=5)


def tokens_of(model, ids, rng, count, **options):
    """Return the next `count` tokens, and the number of forward passes for them."""
    passes, found = 0, []
    for new in generate.speculate(model, ids, rng, **options):
        passes, found = passes + 1, found + new
        if len(found) >= count:
            return found[:count], passes


def number(value):
    """Return a generator whose next random number is this value."""
    return SimpleNamespace(random=lambda: value)


HALF = number(0.5)  # for greedy decoding, which makes no random choice


# The exact distribution: each random choice is followed in all ways, with their probabilities.


class Tree:
    """A stand-in for a generator of random numbers: takes one branch at each choice, and knows its probability."""

    def __init__(self, path):
        self.path, self.sizes, self.weight, self.limit = path, [], 1.0, None

    def choose(self, weights):
        at = self.path[len(self.sizes)] if len(self.sizes) < len(self.path) else 0
        self.sizes.append(len(weights))
        self.weight *= weights[at]
        return at

    def random(self):
        """Return a number just below or just above the limit at which a proposal must be refused."""
        if self.choose([self.limit, 1 - self.limit]) == 0:
            return self.limit * (1 - 1e-12)
        return min(self.limit * (1 + 1e-12), 1 - 2**-53)


def all_outcomes(model, ids, count, **options):
    """Return {tokens: probability} for continuations of `count` tokens, from the algorithm's whole tree of choices."""
    original, found, path = generate.accept_or_redraw, {}, []

    def watched(p, q, token, tree):
        tree.limit = min(1.0, p[token] / q[token])
        return original(p, q, token, tree)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "pick", lambda tokens, probs, tree: int(tokens[tree.choose(probs)]))
        patch.setattr(generate, "accept_or_redraw", watched)
        while path is not None:
            tree = Tree(path)
            tokens = tuple(tokens_of(model, ids, tree, count, **options)[0])
            found[tokens] = found.get(tokens, 0.0) + tree.weight
            taken = path + [0] * (len(tree.sizes) - len(path))
            while taken and taken[-1] + 1 == tree.sizes[len(taken) - 1]:
                taken.pop()
            path = [*taken[:-1], taken[-1] + 1] if taken else None
    return found


def expected_outcomes(model, ids, count, context, **options):
    """Return the same by the chain rule, from whole forward passes of head 0."""
    found = {(): 1.0}
    for _ in range(count):
        longer = {}
        for tokens, weight in found.items():
            logits = model.logits(np.array([[*ids, *tokens][-context:]]))[0, -1]
            if options.get("temperature") == 0:
                p = np.eye(len(logits))[logits.argmax()]
            else:
                p = oracles.expected_distribution(logits, **options)
            longer |= {(*tokens, i): weight * p[i] for i in range(len(p)) if p[i] > 0}
        found = longer
    return found


def model_of(vocab_size=3):
    config = replace(TINY, vocab_size=vocab_size)
    return GPT(config, oracles.random_parameters(config, 5, std=0.7))


def check_exact(options, propose=2, vocab_size=3, count=3):
    model = model_of(vocab_size)
    found = all_outcomes(model, [1, vocab_size - 1], count, propose=propose, **options)
    expected = expected_outcomes(model, [1, vocab_size - 1], count, 6, **options)
    for tokens in found | expected:
        assert abs(found.get(tokens, 0) - expected.get(tokens, 0)) < 1e-12, tokens


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.6}, {"top_k": 2}, {"top_p": 0.7}, {"temperature": 1.7, "min_p": 0.4}, {"temperature": 0}],
    ids=str,
)
@pytest.mark.parametrize("propose", [0, 1, 2])
def test_distribution_is_that_of_head_0(options, propose):
    check_exact(options, propose)


def test_distribution_over_several_rounds():
    check_exact({}, vocab_size=2, count=4)


# One proposal.


def test_equal_distributions_but_for_rounding():
    """Keep the proposal: its refusal has a probability of 1e-16 and would have no token to sample."""
    p, q = np.array([0.3, 0.7]), np.array([np.nextafter(0.3, 1), 0.7])
    assert accept_or_redraw(p, q, 0, number(1 - 2**-53)) == 0


def test_pick_takes_the_token_on_whose_piece_the_number_falls():
    tokens, owners = np.array([7, 2, 9]), [7] * 5 + [2] * 2 + [9] * 9
    for j in range(16):
        assert pick(tokens, np.array([5, 2, 9]) / 16, number(j / 16)) == owners[j]
    assert pick(tokens, np.array([0.3, 0.3, 0.4 - 1e-9]), number(1 - 1e-12)) == 9


# Greedy: the same text from the package's model, whose later heads are often right.


@pytest.fixture(scope="module")
def shipped():
    return load_pretrained()


def prompts(tokenizer, count):
    """Yield the first words of stories, after an end of text."""
    end, rng = tokenizer.special_tokens[END_OF_TEXT], np.random.default_rng(0)
    for seed in range(count):
        ids = tokenizer.encode(konigsberg.sample(9000 + seed).text)
        yield [end, *(int(i) for i in ids[: rng.integers(0, min(40, len(ids)))])]


def test_greedy_tokens_are_the_same_in_fewer_passes(shipped):
    """Compare in float64, where no two tokens are equal; also when a full context is read again from its half."""
    params = Parameters(shipped[0].config, np.float64)
    params.flat[...] = shipped[0].params.flat
    model, passes = GPT(shipped[0].config, params), [0, 0]
    for number, ids in enumerate(prompts(shipped[1], 30)):
        count = 220 if number == 0 else 12
        plain, p = tokens_of(model, ids, HALF, count, temperature=0)
        fast, q = tokens_of(model, ids, HALF, count, temperature=0, propose=3)
        passes[0] += p
        passes[1] += q
        assert fast == plain
    assert passes[0] == 220 + 29 * 12 and passes[1] < 0.7 * passes[0]


# The loop around it: context, ends, sizes.


def reciting(config, order):
    """Return a float64 model whose head k predicts the token 1 + k places further in the cycle `order`."""
    params = Parameters(config, np.float64)
    rng = np.random.default_rng(0)
    params["embed"][...] = rng.standard_normal((config.vocab_size, config.dim))
    params["norm_final"][...] = 1
    heads = params["heads"].reshape(config.dim, config.predict, -1)
    for k in range(config.predict):
        heads[:, k, np.roll(order, -1 - k)] = params["embed"][order].T
    return GPT(config, params)


@settings(max_examples=40)
@given(st.integers(1, 9), st.integers(1, 20), st.integers(0, 3), st.integers(1, 4))
def test_any_context_and_any_prompt(context, prompt, propose, heads):
    """Check that right proposals are accepted, and that the cycle continues when the context is full."""
    config = ModelConfig(dim=64, heads=2, kv_heads=1, layers=1, context=context, vocab_size=7, predict=heads)
    order, propose = np.array([3, 0, 5, 1, 6, 2, 4]), min(propose, heads - 1)
    model = reciting(config, order)
    ids = [int(order[i % 7]) for i in range(prompt)]
    found, passes = tokens_of(model, ids, HALF, 40, temperature=0, propose=propose)
    assert found == [order[(prompt + i) % 7] for i in range(40)]
    assert passes <= 40
    if context >= 9 and propose:
        assert passes < 40


def reciting_seven():
    config = ModelConfig(dim=64, heads=2, kv_heads=1, layers=1, context=200, vocab_size=7, predict=4)
    return reciting(config, np.array([3, 0, 5, 1, 6, 2, 4]))


@pytest.mark.parametrize("propose", range(4))
def test_every_pass_gives_all_when_the_heads_are_right(propose):
    found = islice(generate.speculate(reciting_seven(), [3], HALF, propose, temperature=0), 9)
    assert [len(new) for new in found] == [1] + [propose + 1] * 8  # no proposals exist right after the prompt


def test_no_proposal_behind_the_end(monkeypatch):
    fed, read = [], Decoder.read
    monkeypatch.setattr(Decoder, "read", lambda self, t: fed.append(list(t)) or read(self, t))
    list(islice(generate.speculate(reciting_seven(), [3], HALF, 3, end=1, temperature=0), 3))
    assert fed == [[3], [0, 5, 1], [6, 2, 4, 3]]


def test_ids_without_a_token_are_not_drawn():
    found, _ = tokens_of(model_of(), [1], np.random.default_rng(0), 300, propose=2, size=2, temperature=2)
    assert set(found) == {0, 1}


@pytest.mark.parametrize(
    "heads, propose, options, message",
    [
        (3, -1, {}, "propose must be 0 to 2, the model's number of later heads, got -1"),
        (3, 3, {}, "propose must be 0 to 2, the model's number of later heads, got 3"),
        (1, 1, {}, "propose must be 0 to 0, .*, got 1"),
        (3, 2, {"temperature": -1}, "temperature must be 0 to 100, got -1"),
    ],
)
def test_what_speculation_refuses(heads, propose, options, message):
    with pytest.raises(NanoEulerError, match=message):
        next(generate.speculate(GPT(replace(TINY, predict=heads)), [1], HALF, propose, **options))


# Text.


def test_stream_yields_whole_characters_to_the_end(shipped):
    model, tokenizer = shipped
    text = "".join(pieces := list(stream(model, tokenizer, "Käthe", 300, propose=3)))
    assert all(pieces) and "\ufffd" not in text and END_OF_TEXT not in text
    greedy = [generate.generate(model, tokenizer, "Murr", 60, temperature=0, propose=n) for n in range(4)]
    assert len(set(greedy)) == 1
    assert generate.generate(model, tokenizer, "Murr", 0, propose=3) == ""
    assert len(tokenizer.encode(generate.generate(model, tokenizer, "Murr", 7, temperature=0, propose=3))) <= 8
