"""Speculative decoding: proposals change how many forward passes a text takes, never what the text is drawn from."""

import inspect
import textwrap
from itertools import chain, islice

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import konigsberg
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generation import generate
from nanoeuler_lib.generation.generate import accept_or_redraw, pick, speculate, stream
from nanoeuler_lib.model import GPT, Parameters
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training.checkpoint import load_pretrained

TINY = ModelConfig(dim=8, heads=2, kv_heads=1, layers=1, context=6, vocab_size=3, predict=3, ffn=5)
OPTIONS = [
    {},
    {"temperature": 0.6},
    {"top_k": 2},
    {"top_p": 0.7},
    {"temperature": 1.7, "min_p": 0.4},
    {"temperature": 0},
]


def tokens_of(model, ids, rng, count, **options):
    """The next `count` tokens, and how many forward passes they took."""
    passes, found = 0, []
    for new in speculate(model, ids, rng, **options):
        passes, found = passes + 1, found + new
        if len(found) >= count:
            return found[:count], passes


class Half:
    """A generator for greedy decoding, which decides nothing by chance."""

    def random(self):
        return 0.5


# The distribution, exactly: every random choice is followed both (all) ways, with its probability.


class Tree:
    """In the place of a generator of random numbers: takes one branch at each choice, and knows its probability."""

    def __init__(self, path):
        self.path, self.sizes, self.weight, self.limit = path, [], 1.0, None

    def choose(self, weights):
        at = self.path[len(self.sizes)] if len(self.sizes) < len(self.path) else 0
        self.sizes.append(len(weights))
        self.weight *= weights[at]
        return at

    def random(self):
        """A number just below or just above the limit at which a proposal must be refused."""
        if self.choose([self.limit, 1 - self.limit]) == 0:
            return self.limit * (1 - 1e-12)
        return min(self.limit * (1 + 1e-12), 1 - 2**-53)


def all_outcomes(model, ids, count, **options):
    """Probability of each continuation of `count` tokens, {tokens: probability}, from the algorithm's whole tree."""
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
    """The same from the chain rule, by whole forward passes of head 0."""
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


def check_exact(model, options, propose=2, count=3):
    found = all_outcomes(model, [1, 2], count, propose=propose, **options)
    expected = expected_outcomes(model, [1, 2], count, 6, **options)
    for tokens in found | expected:
        assert abs(found.get(tokens, 0) - expected.get(tokens, 0)) < 1e-12, tokens


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("propose", [0, 1, 2])
def test_distribution_is_that_of_head_0(options, propose):
    check_exact(GPT(TINY, oracles.random_parameters(TINY, 5, std=0.7)), options, propose)


def test_distribution_over_several_rounds():
    config = ModelConfig(dim=8, heads=2, kv_heads=1, layers=1, context=6, vocab_size=2, predict=3, ffn=5)
    model = GPT(config, oracles.random_parameters(config, 6, std=0.7))
    found = all_outcomes(model, [1], 5, propose=2)
    for tokens, weight in expected_outcomes(model, [1], 5, 6).items():
        assert abs(found[tokens] - weight) < 1e-12


MUTATIONS = {
    "redrawn from p": ("accept_or_redraw", "np.maximum(p - q, 0)", "p"),
    "redrawn from the other side": ("accept_or_redraw", "np.maximum(p - q, 0)", "np.maximum(q - p, 0)"),
    "accepted by p alone": ("accept_or_redraw", "rng.random() * q[token]", "rng.random()"),
    "always accepted": ("accept_or_redraw", "rng.random() * q[token] < p[token]", "True"),
    "refused guesses stay in the cache": ("speculate", "len(guesses) - (len(new) - 1)", "0"),
    "one guess too many forgotten": ("speculate", "(len(new) - 1)", "len(new)"),
    "p from the row before": ("speculate", "zip(places, guesses, qs)", "zip([places[0]] * 3, guesses, qs)"),
    "goes on behind a refused guess": ("speculate", "break\n        else", "pass\n        else"),
    "drawn from another q": (
        "speculate", "guesses.append(pick(*qs[-1], rng))", "guesses.append(pick(*filtered_probs(logits[:size]), rng))",
    ),
    "p without the options": (
        "speculate", "p = filtered_probs(decoder.logits(place)[:size], **options)",
        "p = filtered_probs(decoder.logits(place))",
    ),
    "a single token is drawn as well": ("speculate", "len(p[0]) == 1", "len(p[0]) <= 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_tree_finds_planted_bugs(name, monkeypatch):
    where, old, new = MUTATIONS[name]
    source = textwrap.dedent(inspect.getsource(getattr(generate, where)))
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {where}"
    made = {}
    exec(source.replace(old, new), vars(generate), made)
    monkeypatch.setattr(generate, where, made[where])
    if where == "speculate":
        monkeypatch.setitem(globals(), "speculate", made[where])
    with pytest.raises((AssertionError, NanoEulerError)):
        check_exact(GPT(TINY, oracles.random_parameters(TINY, 5, std=0.7)), {"temperature": 0.6, "top_k": 2})


# One proposal.


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=6), st.integers(0, 9))
def test_accept_or_redraw_draws_from_p(counts, seed):
    """Summed over all proposals, and all draws that may follow; zeros in p and in q are allowed."""
    p, q = (np.array(x) + np.eye(len(counts))[seed % len(counts)] for x in zip(*counts))
    p, q = p / p.sum(), q / q.sum()
    found = np.zeros(len(p))
    for token in np.flatnonzero(q):
        limit = min(1.0, p[token] / q[token])
        for accepted, weight in ((True, limit), (False, 1 - limit)):
            if weight == 0:
                continue
            tree = Tree([0 if accepted else 1])
            tree.limit = limit
            with pytest.MonkeyPatch.context() as patch:
                probs = []
                patch.setattr(generate, "pick", lambda t, w, _, probs=probs: probs.extend(zip(t, w)) or -1)
                first = accept_or_redraw(p, q, int(token), tree)
            assert bool(first == token) is accepted
            for other, share in probs or [(token, 1.0)]:
                found[other] += q[token] * weight * share
    assert np.abs(found - p).max() < 1e-12


def test_equal_distributions_but_for_rounding():
    """The refusal has a chance of one in 10^16, and nothing to draw from: the proposal stays."""
    p = np.array([0.3, 0.7])
    q = np.array([np.nextafter(0.3, 1), 0.7])

    class Highest:
        def random(self):
            return 1 - 2**-53

    assert accept_or_redraw(p, q, 0, Highest()) == 0


def test_pick_takes_the_token_on_whose_piece_the_number_falls():
    class Fixed:
        def __init__(self, value):
            self.value = value

        def random(self):
            return self.value

    tokens, owners = np.array([7, 2, 9]), [7] * 5 + [2] * 2 + [9] * 9
    for j in range(16):
        assert pick(tokens, np.array([5, 2, 9]) / 16, Fixed(j / 16)) == owners[j]
    assert pick(tokens, np.array([0.3, 0.3, 0.4 - 1e-9]), Fixed(1 - 1e-12)) == 9


def test_two_tokens_have_the_right_frequencies():
    """With real random numbers: chi-square of pairs of tokens, at one in a million."""
    model, rng, n = GPT(TINY, oracles.random_parameters(TINY, 5, std=0.7)), np.random.default_rng(0), 3000
    expected = expected_outcomes(model, [1, 2], 3, 6, temperature=1.5)
    drawn = [tuple(tokens_of(model, [1, 2], rng, 3, propose=2, temperature=1.5)[0]) for _ in range(n)]
    counts = np.array([[drawn.count(pair), n * p] for pair, p in expected.items() if n * p > 5])
    chi_square = ((counts[:, 0] - counts[:, 1]) ** 2 / counts[:, 1]).sum()
    assert len(counts) > 10 and chi_square < len(counts) + 7 * (2 * len(counts)) ** 0.5 + 10


# Greedy: the same text, from the shipped model, whose later heads are often right.


@pytest.fixture(scope="module")
def shipped():
    return load_pretrained()


def prompts(tokenizer, count):
    """The first words of stories, behind an end of text."""
    end, rng = tokenizer.special_tokens[END_OF_TEXT], np.random.default_rng(0)
    for seed in range(count):
        ids = tokenizer.encode(konigsberg.sample(9000 + seed).text)
        yield [end, *(int(i) for i in ids[: rng.integers(0, min(40, len(ids)))])]


def test_greedy_tokens_are_the_same_in_float64(shipped):
    model, tokenizer = shipped
    double = GPT(model.config, Parameters(model.config, np.float64))
    double.params.flat[...] = model.params.flat
    passes = [0, 0]
    for ids in prompts(tokenizer, 200):
        plain, p = tokens_of(double, ids, Half(), 12, temperature=0)
        fast, q = tokens_of(double, ids, Half(), 12, temperature=0, propose=3)
        assert plain == fast
        passes[0] += p
        passes[1] += q
    assert passes[0] == 200 * 12 and passes[1] < 0.7 * passes[0]


def test_greedy_tokens_are_the_same_in_float32_but_for_near_ties(shipped):
    """Where the two part, the model calls both tokens equally likely to within rounding."""
    model, tokenizer = shipped
    parted = 0
    for ids in prompts(tokenizer, 200):
        plain, _ = tokens_of(model, ids, Half(), 12, temperature=0)
        fast, _ = tokens_of(model, ids, Half(), 12, temperature=0, propose=3)
        if plain != fast:
            parted += 1
            at = next(i for i, (a, b) in enumerate(zip(plain, fast)) if a != b)
            seen = [*ids, *plain[:at]]
            logits = model.logits(np.array([seen[-128:]]))[0, -1]
            assert abs(logits[plain[at]] - logits[fast[at]]) < 1e-3
    assert parted <= 4


# The loop around it: context, ends, sizes.


def reciting(config, order):
    """A float64 model whose head k says, behind each token, the one 1 + k places further in the cycle `order`."""
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
    """All proposals are right: they must be taken, and the cycle must go on wherever the context is full."""
    config = ModelConfig(dim=64, heads=2, kv_heads=1, layers=1, context=context, vocab_size=7, predict=heads)
    order, propose = np.array([3, 0, 5, 1, 6, 2, 4]), min(propose, heads - 1)
    model = reciting(config, order)
    ids = [int(order[i % 7]) for i in range(prompt)]
    found, passes = tokens_of(model, ids, Half(), 40, temperature=0, propose=propose)
    assert found == [order[(prompt + i) % 7] for i in range(40)]
    assert passes <= 40
    if context >= 9 and propose:
        assert passes < 40


def test_every_pass_gives_all_when_the_heads_are_right():
    config = ModelConfig(dim=64, heads=2, kv_heads=1, layers=1, context=200, vocab_size=7, predict=4)
    order = np.array([3, 0, 5, 1, 6, 2, 4])
    for propose in range(4):
        sizes = [len(new) for new in islice(speculate(reciting(config, order), [3], Half(), propose, temperature=0), 9)]
        assert sizes == [1] + [propose + 1] * 8  # behind the prompt nothing was proposed yet


def test_no_proposal_behind_the_end(monkeypatch):
    config = ModelConfig(dim=64, heads=2, kv_heads=1, layers=1, context=50, vocab_size=7, predict=4)
    order, fed, read = np.array([3, 0, 5, 1, 6, 2, 4]), [], Decoder.read
    monkeypatch.setattr(Decoder, "read", lambda self, t: fed.append(list(t)) or read(self, t))
    list(islice(speculate(reciting(config, order), [3], Half(), 3, end=1, temperature=0), 3))
    assert fed == [[3], [0, 5, 1], [6, 2, 4, 3]]


def test_goes_on_with_the_later_half_as_without_proposals(shipped):
    model, tokenizer = shipped
    double = GPT(model.config, Parameters(model.config, np.float64))
    double.params.flat[...] = model.params.flat
    ids = next(prompts(tokenizer, 1))
    plain, _ = tokens_of(double, ids, Half(), 300, temperature=0)
    for propose in (1, 2, 3):
        assert tokens_of(double, ids, Half(), 300, temperature=0, propose=propose)[0] == plain


def test_ids_without_a_token_are_not_drawn():
    model = GPT(TINY, oracles.random_parameters(TINY, 5, std=0.7))
    found, _ = tokens_of(model, [1], np.random.default_rng(0), 300, propose=2, size=2, temperature=2)
    assert set(found) == {0, 1}


@pytest.mark.parametrize("propose", [-1, 3])
def test_refuses_more_proposals_than_heads(propose):
    model = GPT(TINY)
    with pytest.raises(NanoEulerError, match=f"propose is {propose}, expected 0 to 2: the model has 2 later heads"):
        next(speculate(model, [1], Half(), propose))
    with pytest.raises(NanoEulerError, match="temperature is -1"):
        next(speculate(model, [1], Half(), 2, temperature=-1))


def test_later_logits_are_those_of_the_later_heads():
    config = ModelConfig(dim=12, heads=2, kv_heads=1, layers=2, context=9, vocab_size=11, predict=4, ffn=5)
    model = GPT(config, oracles.random_parameters(config, 3))
    tokens = np.random.default_rng(3).integers(0, 11, 9)
    for cuts in ([9], [1, 9], [4, 5, 9]):
        decoder, start = Decoder(model), 0
        for end in cuts:
            found, start = decoder.later_logits(decoder.read(tokens[start:end])[-1]), end
            for k in (1, 2, 3):
                oracles.close(found[k - 1], model.logits(tokens[None, :end], head=k)[0, -1], 1e-12, f"head {k}")


# Text.


def test_stream_yields_whole_characters_to_the_end(shipped):
    model, tokenizer = shipped
    for seed in range(6):
        text = "".join(pieces := list(stream(model, tokenizer, "Käthe", 200, seed=seed, propose=3)))
        assert all(pieces) and "\ufffd" not in text and END_OF_TEXT not in text
    greedy = [generate.generate(model, tokenizer, "Murr", 60, temperature=0, propose=n) for n in range(4)]
    assert len(set(greedy)) == 1
    assert generate.generate(model, tokenizer, "Murr", 0, propose=3) == ""
    assert len(tokenizer.encode(generate.generate(model, tokenizer, "Murr", 7, temperature=0, propose=3))) <= 8


def test_without_proposals_the_draws_are_those_of_sample():
    """One random number a token, as a loop of `feed` and `sample` uses them."""
    model = GPT(TINY, oracles.random_parameters(TINY, 5, std=0.7))
    decoder, rng, ids = Decoder(model), np.random.default_rng(4), [1]
    for _ in range(5):
        ids.append(generate.sample(decoder.feed(np.array(ids[-1:])), rng, 0.8))
    assert list(chain(*islice(speculate(model, [1], np.random.default_rng(4), temperature=0.8), 5))) == ids[1:]


def test_a_model_with_one_head_proposes_nothing():
    config = ModelConfig(dim=16, heads=2, kv_heads=1, layers=1, context=8, vocab_size=256, predict=1)
    assert generate.generate(GPT(config), Tokenizer([], ()), "a", 5, propose=0)
    with pytest.raises(NanoEulerError, match="propose is 1, expected 0 to 0"):
        generate.generate(GPT(config), Tokenizer([], ()), "a", 5, propose=1)
