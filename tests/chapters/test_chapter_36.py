"""Chapter 36: the gated delta rule is right, its checks reject named mistakes, and the stored results are its own."""

import json
from dataclasses import replace

import numpy as np
import pytest
from chapters import ROOT, accepts, rejects, slips, verdict

from nanoeuler_book import evaluate, frame
from nanoeuler_book import linear_attention as linear
from nanoeuler_lib import ops
from nanoeuler_lib.model import GPT, gradcheck
from nanoeuler_lib.ops.reference import attention_forward, rope_forward, rope_tables

NOTEBOOK = ("36_linear_attention", "CASES", "SLIPS", "BACK_SLIPS", "ONE", "TWO", "ZERO")


# ---- The gaps


def forward(q, k, v, beta, alpha, old=False, error=True, write=True, late=False, first=False, states=list):
    """The gated delta rule by matrix products; the arguments after alpha are the mistakes that one can make."""
    S = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), v.dtype)
    kept, y = [S], []
    for t in range(k.shape[-2]):
        key, a = k[..., t, :, None], alpha[..., t, None, None]
        D = S if late else a * S
        read = key.swapaxes(-1, -2) @ (S if old else D) if error else 0
        step = key @ (v[..., t, None, :] - read)
        S = D + (beta[..., t, None, None] * step if write else step)
        S = a * S if late else S
        y.append(q[..., t, None, :] @ (D if first else S))
        kept.append(S)
    return np.concatenate(y, axis=-2), (q, k, v, beta, alpha, states(kept))


WRONG_FORWARD = {
    "the error from the old memory": dict(old=True),
    "the value instead of the error": dict(error=False),
    "no beta": dict(write=False),
    "alpha after the write": dict(late=True),
    "read before the write": dict(first=True),
    "the last memory only": dict(states=lambda kept: kept[-1:]),
    "the first memory left out": dict(states=lambda kept: kept[1:]),
}


def backward(dy, saved, later=True, twice=True, both=True, before=True, beta=True):
    """The gradients by matrix products; the arguments after saved are the mistakes that one can make."""
    q, k, v, b, a, states = saved
    dq, dk, dv, db, da = (np.zeros_like(x) for x in (q, k, v, b, a))
    dS = np.zeros_like(states[0])
    for t in reversed(range(k.shape[-2])):
        key, gate, fade = k[..., t, :, None], b[..., t, None, None], a[..., t, None, None]
        D, row = fade * states[t], dy[..., t, None, :]
        e = v[..., t, None, :] - key.swapaxes(-1, -2) @ D
        dq[..., t, :] = (row @ states[t + 1].swapaxes(-1, -2))[..., 0, :]
        dS = dS + q[..., t, :, None] @ row
        de = (gate if beta else 1) * (key.swapaxes(-1, -2) @ dS)
        db[..., t] = (key.swapaxes(-1, -2) @ dS @ e.swapaxes(-1, -2))[..., 0, 0]
        dv[..., t, :] = de[..., 0, :]
        dk[..., t, :] = (gate * e @ dS.swapaxes(-1, -2) - twice * de @ D.swapaxes(-1, -2))[..., 0, :]
        dD = dS - both * key @ de
        da[..., t] = (dD * (states[t] if before else D)).sum(axis=(-1, -2))
        dS = later * fade * dD
    return dq, dk, dv, db, da


WRONG_BACKWARD = {
    "no later tokens": dict(later=False),
    "k enters once": dict(twice=False),
    "D enters once": dict(both=False),
    "alpha twice": dict(before=False),
    "no beta": dict(beta=False),
}
RIGHT = {"sum": ("rotate", "double", "insert", "exchange"), "delta": ("rotate", "double", "insert")}
test_wrong_gaps = rejects(
    {
        "check_delta": slips(forward, WRONG_FORWARD),
        "check_delta_backward": slips(backward, WRONG_BACKWARD),
        "check_unchanged": {"a list": lambda rule: ["rotate"], "nothing": lambda rule: set()},
        "check_shares": {"NaN": lambda beta, alpha: np.full(len(beta), np.nan), "one number": lambda beta, alpha: 1.0},
        "check_accusations": {"beta above 1": lambda: dict.fromkeys("abc", ([[1]], [[1]], [[1]], [2], [1]))},
        "check_passes": {"one pass": lambda K, V, beta, passes: [0.5]},
    }
)
test_right_gaps = accepts(
    {
        "check_delta": [forward, lambda *given: forward(*given, states=np.stack), linear.delta_forward],
        "check_delta_backward": [backward, lambda dy, saved: list(linear.delta_backward(dy, saved))],
        "check_unchanged": [lambda rule: frozenset(RIGHT[rule])],
        "check_shares": [lambda b, a: [b[t] * np.prod((1 - b[t + 1 :]) * a[t + 1 :]) for t in range(len(b))]],
    }
)


def test_the_sentence_names_the_mistake(chapter):
    said = verdict(chapter.check_delta, slips(forward, WRONG_FORWARD)["no beta"])
    assert said.startswith("the write has the factor beta")
    said = verdict(chapter.check_delta_backward, slips(backward, WRONG_BACKWARD)["k enters once"])
    assert said.startswith("k also enters the error")


# ---- The gated delta rule


def drawn(T, C, M, rows=(2,), seed=0):
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, *rows, T, C))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    return q, k, rng.normal(size=(*rows, T, M)), *rng.uniform(0.05, 1, size=(2, *rows, T))


def test_the_gradients_are_those_of_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make oracle")
    given = drawn(9, 5, 3)
    q, k, v, beta, alpha = tensors = [torch.tensor(x, requires_grad=True) for x in given]
    S, y = torch.zeros(2, 5, 3, dtype=torch.float64), []
    for t in range(9):
        S = alpha[:, t, None, None] * S
        error = v[:, t] - torch.einsum("bc,bcm->bm", k[:, t], S)
        S = S + beta[:, t, None, None] * torch.einsum("bc,bm->bcm", k[:, t], error)
        y.append(torch.einsum("bc,bcm->bm", q[:, t], S))
    dy = np.random.default_rng(1).normal(size=(2, 9, 3))
    (torch.stack(y, dim=1) * torch.tensor(dy)).sum().backward()
    found, saved = linear.delta_forward(*given)
    assert np.abs(found - torch.stack(y, dim=1).detach().numpy()).max() < 1e-10
    for mine, theirs in zip(linear.delta_backward(dy, saved), tensors, strict=True):
        assert np.abs(mine - theirs.grad.numpy()).max() < 1e-10


@pytest.mark.parametrize("size", [1, 2, 7, 16, 40])
def test_chunks_of_any_size_equal_the_loop(size):
    given = drawn(33, 6, 5, rows=(3, 2))
    assert np.abs(linear.delta_chunked(*given, size) - linear.delta_forward(*given)[0]).max() < 1e-12
    q, k, v, beta, alpha = given
    tiny = alpha * 1e-200  # the product of two is 0 in float64
    found = linear.delta_chunked(q, k, v, beta, tiny, size)
    assert np.abs(found - linear.delta_forward(q, k, v, beta, tiny)[0]).max() < 1e-12


def test_alpha_0_empties_the_memory_and_beta_0_writes_nothing():
    q, k, v, beta, alpha = drawn(6, 4, 3)
    alpha[:, 3] = 0
    y, _ = linear.delta_forward(q, k, v, beta, alpha)
    rest, _ = linear.delta_forward(*(x[:, 3:] for x in (q, k, v, beta, alpha)))
    assert np.array_equal(y[:, 3:], rest)
    y, _ = linear.delta_forward(q, k, v, 0 * beta, alpha)
    assert not y.any()


# ---- In the model


PAIRS = linear.delta_attention(), linear.delta_attention(unrotate=True), linear.window_attention(3)


@pytest.mark.parametrize("pair", PAIRS)
def test_pairs_have_right_gradients_with_grouped_queries(pair):
    rng = np.random.default_rng(3)
    inputs = {"q": rng.normal(size=(2, 6, 5, 4)), **dict(zip("kv", rng.normal(size=(2, 2, 3, 5, 4)), strict=True))}
    assert all(row.ok for row in gradcheck.check_layer(*pair, inputs))


def test_the_rotation_can_be_undone():
    rng = np.random.default_rng(5)
    q, k, v = rng.normal(size=(3, 2, 3, 7, 4))
    forward_pass, _ = linear.delta_attention(unrotate=True)
    y, _ = forward_pass(*(rope_forward(x, *rope_tables(7, 4))[0] for x in (q, k)), v)
    q, k = (x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6) for x in (q, k))
    beta, alpha = 1 / (1 + np.exp(-v[..., -2])), 1 / (1 + np.exp(-v[..., -1] - 4))
    assert np.abs(y[..., :-2] - forward(q, k, v[..., :-2], beta, alpha)[0]).max() < 1e-12


def test_a_wide_window_is_full_attention_and_a_window_of_1_returns_the_values():
    rng = np.random.default_rng(4)
    q, k, v = rng.normal(size=(3, 2, 3, 7, 4))
    assert np.abs(linear.window_attention(7)[0](q, k, v)[0] - attention_forward(q, k, v)[0]).max() < 1e-12
    assert np.abs(linear.window_attention(1)[0](q, k, v)[0] - v).max() < 1e-12


def test_each_layer_has_its_own_attention_in_every_pass():
    visited = []

    def marked(name):
        def forward(q, k, v):
            visited.append(name)
            return linear.FULL[0](q, k, v)

        return forward, linear.FULL[1]

    model = GPT(frame.CONFIG)
    tokens = np.arange(40).reshape(2, 20)
    expected = model.logits(tokens)
    with ops.use(**frame.by_layer(model, [marked("first"), marked("second")])):
        assert np.abs(model.logits(tokens) - expected).max() < 1e-4
        model.logits(tokens[:, :7])  # another shape: new buffers
        visited.clear()
        model.loss_and_gradients(tokens, tokens[..., None])
    assert visited == ["first", "second", "second", "first"]  # the backward pass runs each forward function again
    trained = frame.train(2, layers=[marked("a"), marked("b")])
    assert trained(tokens).shape == (2, 20, 512) and visited.count("a") == visited.count("b")


def test_a_text_of_any_length_needs_the_same_matrices():
    sizes = [linear.memory_bytes(frame.CONFIG, T, delta=2) for T in (1, 10**6)]
    assert sizes == [2 * 4 * 4 * 16 * 14] * 2
    grouped = replace(frame.CONFIG, kv_heads=2)  # the two query heads of a group have the same matrix
    assert linear.memory_bytes(grouped, 100, delta=2) == 2 * 2 * 4 * 16 * 14
    assert linear.memory_bytes(frame.CONFIG, 100, full=1, window=1, width=30) == 4 * 2 * 64 * 130


# ---- Facts by distance


def test_the_fact_was_stated_at_its_distance():
    tokenizer, stories = frame.tokenizer(), frame.held_out()[:40]
    distances = linear.fact_distances(stories, tokenizer)
    measured = evaluate.measure(lambda tokens: np.zeros((*tokens.shape, 512)), tokenizer, stories)
    assert np.array_equal(distances >= 0, measured.words >= 0) and len(distances) == len(measured.tag)
    at = 0
    for story in stories:
        ids = tokenizer.encode(story.text)
        ends = {len(story.text[: len("".join(story.steps[: n + 1]))].encode()) for n in range(len(story.steps))}
        reached = np.cumsum(tokenizer.token_lengths[ids])
        for i in np.flatnonzero(distances[at : at + len(ids)] > 0):
            stated = i - 1 - distances[at + i]
            assert any(reached[stated] - tokenizer.token_lengths[ids[stated]] < end <= reached[stated] for end in ends)
        at += len(ids) + 1


def test_stored_results_are_of_this_experiment():
    stored = json.loads((ROOT / "data" / "results" / "ch36.json").read_text("utf-8"))
    config, rows = stored["config"], stored["rows"]
    seeds = {}
    for row in rows:
        seeds.setdefault(row["model"], []).append(row["seed"])
        assert len(row["by_distance"]) == len(config["edges"]) - 1
        right, number = np.sum(row["by_distance"], axis=0)
        assert abs(right / number - row["facts"]) < 1e-4
    assert len(seeds) == 7 and all(sorted(of) == config["seeds"] and len(of) >= 5 for of in seeds.values())
    assert config["edges"][6] == config["model"]["layers"] * (config["window"] - 1) + 1
