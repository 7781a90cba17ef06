"""Chapter 35: the mixture of experts is right, its checks reject named mistakes, and the dialects are what it says."""

import itertools
import json
import re

import numpy as np
import pytest
from chapters import ROOT, accepts, rejects, slips, verdict

from nanoeuler_book import experts, frame
from nanoeuler_lib.model import gradcheck
from nanoeuler_lib.ops.reference import swiglu_backward, swiglu_forward

NOTEBOOK = ("35_experts", "SIZES")


# ---- The gaps


def forward(gate, up, E, top, weigh=experts.routing, tile=False, spare=0, saved=lambda gate, up, p: (gate, up, p)):
    """A mixture; the arguments after top are the mistakes that one can make."""
    p = weigh(gate[..., -E:], top).astype(gate.dtype)
    h, _ = swiglu_forward(gate[..., :-E], up[..., :-E])
    spread = np.tile(p, h.shape[-1] // E) if tile else np.repeat(p, h.shape[-1] // E, axis=-1)
    return np.concatenate([h * spread, np.full_like(p, spare)], axis=-1), saved(gate, up, p)


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


WRONG_FORWARD = {
    "not renormalised": dict(weigh=lambda l, top: softmax(l) * (experts.routing(l, top) > 0)),
    "all experts": dict(weigh=lambda l, top: softmax(l)),
    "no weights": dict(weigh=lambda l, top: experts.routing(l, top) > 0),
    "the smallest": dict(weigh=lambda l, top: experts.routing(-l, top)),
    "powers that overflow": dict(
        weigh=lambda l, top: (q := np.exp(l) * (experts.routing(l, top) > 0)) / q.sum(-1)[..., None]
    ),
    "ties all chosen": dict(
        weigh=lambda l, top: (q := softmax(l) * (l >= np.sort(l)[..., -top, None])) / q.sum(-1)[..., None]
    ),
    "columns interleaved": dict(tile=True),
    "the last columns are 1": dict(spare=1),
    "gate and up saved in the wrong order": dict(saved=lambda gate, up, p: (up, gate, p)),
}


def backward(dy, saved, weighted=True, factor=True, mean=True, use_dy=True, where="gate"):
    """The gradients; the arguments after saved are the mistakes that one can make."""
    gate, up, p = saved
    E = p.shape[-1]
    h, kept = swiglu_forward(gate[..., :-E], up[..., :-E])
    d = dy[..., :-E]
    dgate, dup = swiglu_backward(d * np.repeat(p, h.shape[-1] // E, axis=-1) if weighted else d, kept)
    dp = ((d if use_dy else 1) * h).reshape(*p.shape, -1).sum(axis=-1)
    dl = (p if factor else p > 0) * (dp - (p * dp).sum(axis=-1, keepdims=True) * mean)
    parts = (dl, 0 * dl) if where == "gate" else (0 * dl, dl)
    return tuple(np.concatenate(pair, axis=-1) for pair in zip((dgate, dup), parts, strict=True))


WRONG_BACKWARD = {
    "no routing weights in dh": dict(weighted=False),
    "no factor p": dict(factor=False),
    "no second term": dict(mean=False),
    "dp without dy": dict(use_dy=False),
    "logits in dup": dict(where="up"),
}


def update(scores, b, step, top, average=None, biased=True, counted=None, sign=np.sign, kept=1, positive=False):
    """The bias rule; the arguments after top are the mistakes that one can make."""
    order = np.argsort(-(scores + b * biased), axis=1)[:, : counted or top]
    loads = (order[..., None] == np.arange(len(b))).sum(axis=(0, 1))
    if positive:
        loads = (experts.routing(scores + b, top) > 0).sum(axis=0)
    return kept * b + step * sign((average or (lambda n, E, top: n * top / E))(*scores.shape, top) - loads)


WRONG_STEP = {
    "wrong direction": dict(sign=lambda x: -np.sign(x)),
    "in proportion": dict(sign=lambda x: x),
    "unbiased loads": dict(biased=False),
    "one choice counted": dict(counted=1),
    "one choice per token": dict(average=lambda n, E, top: n / E),
    "rounded average": dict(average=lambda n, E, top: n * top // E),
    "old biases lost": dict(kept=0),
    "always down or up": dict(sign=lambda x: np.where(x > 0, 1, -1)),
    "always up or down": dict(sign=lambda x: np.where(x < 0, -1, 1)),
    "NaN": dict(kept=np.nan),
    "positive weights counted": dict(positive=True),
}
UNCHANGED = {
    "chosen": ("add to all", "lower the rest", "exchange"),
    "all": ("add to all", "exchange"),
    "sigmoid": ("lower the rest", "exchange"),
}
CASES = {"a": (np.zeros(2), np.zeros(2), np.int64(1)), "b": ((5, 4, 3), (0, 1, 2), 3), "c": ([-2000.0] * 2, [0, 0], 2)}
test_wrong_gaps = rejects(
    {
        "check_experts": slips(forward, WRONG_FORWARD),
        "check_experts_backward": slips(backward, WRONG_BACKWARD),
        "check_bias_step": slips(update, WRONG_STEP) | {"nothing": lambda scores, b, step, top: b},
        "check_unchanged": {"a list": lambda kind: ["exchange"], "nothing": lambda kind: set()},
        "check_z_loss": {"NaN far out": lambda l, b: np.full(l.shape, np.nan)},
        "check_accusations": {"top beyond E": lambda: CASES | {"a": ([0, 0], [0, 0], 3)}},
        "check_dropped": {"nothing": lambda p, factor: np.zeros(p.shape, bool)},
    }
)
test_right_gaps = accepts(
    {
        "check_experts": [forward, experts.experts_forward],
        "check_experts_backward": [backward, lambda dy, saved: list(experts.experts_backward(dy, saved))],
        "check_bias_step": [update, experts.bias_step, lambda *given: update(*given).tolist()],
        "check_unchanged": [lambda kind: frozenset(UNCHANGED[kind])],
        "check_accusations": [lambda: CASES],
    }
)


def test_the_sentence_names_the_mistake(chapter):
    said = verdict(chapter.check_experts, slips(forward, WRONG_FORWARD)["not renormalised"])
    assert said.startswith("the weights of the chosen experts must add up to 1")
    said = verdict(chapter.check_experts_backward, slips(backward, WRONG_BACKWARD)["no second term"])
    assert said.startswith("the softmax's second term is missing")
    said = [verdict(chapter.check_bias_step, slips(update, WRONG_STEP)[name]) for name in WRONG_STEP]
    starts = ["the biases move", "the change is the step", "count the choices", "all 2 choices", "a token makes"]
    starts += ["the average need not", "add the change", "a bias falls only", "a bias rises only", "the bias[0] is nan"]
    starts += ["count the chosen experts"]
    assert [line[: len(start)] for line, start in zip(said, starts, strict=True)] == starts


# ---- The mixture


def test_the_gradients_are_those_of_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make oracle")
    rng = np.random.default_rng(0)
    E, top, w = 5, 2, 3
    gate, up, dy = rng.normal(size=(3, 7, E * w + E))
    y, saved = experts.experts_forward(gate, up, E, top)
    g, u = (torch.tensor(x, requires_grad=True) for x in (gate, up))
    values, at = torch.topk(g[:, -E:], top)
    p = torch.zeros(7, E, dtype=g.dtype).scatter(1, at, torch.softmax(values, dim=1))
    h = torch.nn.functional.silu(g[:, :-E]) * u[:, :-E] * p.repeat_interleave(w, dim=1)
    (h * torch.tensor(dy[:, :-E])).sum().backward()
    assert np.abs(h.detach().numpy() - y[:, :-E]).max() < 1e-10
    for mine, theirs in zip(experts.experts_backward(dy, saved), (g, u), strict=True):
        assert np.abs(mine - theirs.grad.numpy()).max() < 1e-10


def test_far_scores_choose_experts_whose_weight_rounds_to_zero():
    scores = np.array([[1000.0, 0.0, -5.0]])
    assert (experts.routing(scores, 2) > 0).sum() == 1  # so the positive weights do not count the chosen experts
    assert np.allclose(experts.bias_step(scores, np.zeros(3), 0.1, 2), [-0.1, -0.1, 0.1])


def test_the_balance_gradient_is_the_slope_of_the_auxiliary_loss():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(7, 4)) * 2
    p = experts.routing(logits, 2)
    f = (p > 0).mean(axis=0) / 2  # a constant
    loss = lambda: 0.3 * 4 * float((f * softmax(logits).mean(axis=0)).sum())
    slope = gradcheck.numeric_gradient(loss, logits)
    assert np.abs(experts.balance_gradient(logits, p, 0.3) - slope).max() < 1e-8


def test_a_mixture_trains_in_the_frame_and_its_log_has_every_pass():
    trained = frame.train(2, ffn=3 * 8 + 3, **experts.mixture(3, 2, balance=0.1, log=(log := [])))
    assert len(log) == 2 * 4 and all(((p > 0).sum(axis=-1) == 2).all() for p in log)
    assert trained.model.config.ffn == 27
    inputs, p = experts.routed(trained.model, np.arange(10).reshape(2, 5), 3, 2)
    assert inputs.shape == (2, 2, 5, 64) and p.shape == (2, 2, 5, 3)


# ---- The dialects


def test_known_is_the_mutual_information_of_all_sequences():
    table = np.full((4, 4), experts.RARELY) + np.eye(4) * (experts.LIKELY - experts.RARELY)
    joint = np.array([table[:, list(seq)].prod(axis=1) / 4 for seq in itertools.product(range(4), repeat=3)])
    assert abs(joint.sum() - 1) < 1e-12
    bits = (joint * np.log2(joint / joint.sum(axis=1, keepdims=True) / 0.25)).sum()
    assert abs(experts.known(3) - bits) < 1e-12


def test_spellings_can_be_told_apart_and_occur_nowhere_else():
    import konigsberg

    forms = [form for of in experts.SPELLINGS.values() for form in of]
    assert len(set(forms)) == 20
    others = set(forms) - set(experts.SPELLINGS)
    rng = np.random.default_rng(2)
    for story in konigsberg.stories(200, 11):
        assert not others & set(re.findall(r"\w+", story.text))
        told = experts.spelled(story.text, 1, rng)
        assert len(experts.ANY_SPELLING.findall(told)) == len(experts.MARKED.findall(story.text))


def test_the_places_of_the_exam_end_marked_words_and_sentences():
    tokenizer = frame.tokenizer()
    tokens, dialects, places, marks = experts.exam(40, tokenizer, seed=3)
    assert len(tokens) == len(dialects) == 40 and (marks[:, 0] == [1, 2, 3, 4]).all()
    for row, of, counted in zip(tokens, places, marks, strict=True):
        for k in range(4):
            before = tokenizer.decode(row[1 : of[0, k] + 1])
            assert len(experts.ANY_SPELLING.findall(before + " ")) == k + 1 and before[-1] != " "
            before = tokenizer.decode(row[1 : of[1, k] + 1])
            assert before.endswith(".") and before.count(".") == k + 1
            assert len(experts.ANY_SPELLING.findall(before)) == counted[1, k]


def test_information_of_equal_and_of_independent_labels():
    a = np.arange(4000) % 4
    assert abs(experts.information(a, a) - 2) < 1e-9 and abs(experts.information(a, a * 0)) < 1e-9


def test_stored_results_are_of_this_experiment():
    stored = json.loads((ROOT / "data" / "results" / "ch35.json").read_text("utf-8"))
    config, rows = stored["config"], stored["rows"]
    assert len(config["seeds"]) >= 5 and config["model"] == frame.CONFIG.to_dict()
    seeds = {}
    for row in rows:
        seeds.setdefault(row.get("layer", row["part"]), []).append(row["seed"])
    assert len(seeds) == 5 and all(sorted(of) == config["seeds"] for of in seeds.values())
    for row in rows:
        for of in row.get("load", []):
            assert abs(sum(of) - 1) < 0.001
