"""Chapter 15: its checks accept what is right and reject wrong answers, each of them named; its merging is a mean."""

from dataclasses import replace

import numpy as np
import pytest
from chapters import definitions, rejected, try_exercise

from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.model import GPT


@pytest.fixture(scope="module")
def chapter():
    return definitions("15_grouped_queries")


# ---- The gaps


def scores(q, keys, order=np.repeat, scale=np.sqrt, copy=False):
    """The scores of q with the keys of each head's group, with one thing wrong, if asked."""
    H, C, G = q.shape[1], q.shape[3], keys.shape[1]
    if copy:
        return q @ np.repeat(keys, H // G, axis=1).mT / scale(C)
    read = order(np.arange(G), H // G)
    return np.stack([q[:, h] @ keys[:, read[h]].mT for h in range(H)], axis=1) / scale(C)


WRONG_SCORES = {
    "a copy for each query head": dict(copy=True),
    "query head h reads key head h mod G": dict(order=np.tile),
    "all read key head 0": dict(order=lambda heads, n: np.zeros(len(heads) * n, int)),
    "no 1/sqrt(C)": dict(scale=lambda C: 1),
    "divided by C": dict(scale=lambda C: C),
}


def grouped(
    forward, backward, order="repeat", back="repeat", join=lambda d: d.sum(axis=2), values=None, dq=None
):
    """A grouped pair from an ungrouped one, with one thing wrong, if asked."""
    spread = {
        "repeat": lambda a, n: np.repeat(a, n, axis=1),
        "tile": lambda a, n: np.tile(a, (1, n, 1, 1)),
    }[order]

    def together(d, G):
        B, H, T, C = d.shape
        if back == "tile":
            return join(d.reshape(B, H // G, G, T, C).swapaxes(1, 2))
        return join(d.reshape(B, G, H // G, T, C))

    def grouped_forward(q, k, v):
        n = q.shape[1] // k.shape[1]
        y, saved = forward(q, spread(k, n), spread(v, n))
        return y, (k.shape[1], saved)

    def grouped_backward(dy, saved):
        G, saved = saved
        d, dk, dv = backward(dy, saved)
        return dq(d, G) if dq else d, together(dk, G), values(dv, G) if values else together(dv, G)

    return grouped_forward, grouped_backward


WRONG_GROUPED = {
    "the mean in place of the sum": dict(join=lambda d: d.mean(axis=2)),
    "the first head of the group alone": dict(join=lambda d: d[:, :, 0]),
    "the first two heads of the group": dict(join=lambda d: d[:, :, :2].sum(axis=2)),
    "the order of tile, forward and backward": dict(order="tile", back="tile"),
    "forward by repeat, backward by tile": dict(back="tile"),
    "values not added": dict(values=lambda dv, G: dv[:, :: dv.shape[1] // G]),
    "copies not added": dict(join=lambda d: d.reshape(d.shape[0], -1, *d.shape[3:])),
    "the gradient of queries shared too": dict(
        dq=lambda d, G: np.repeat(
            d.reshape(len(d), G, -1, *d.shape[2:]).mean(axis=2), d.shape[1] // G, axis=1
        )
    ),
}

GAPS = {
    "scores": (scores, "check_scores", "my_scores", "book_scores"),
    "grouped": (grouped, "check_grouped", "my_grouped", "book_grouped"),
}


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
def test_gap(chapter, gap):
    right, check, stub, book = gap
    check = getattr(chapter, check)
    assert check(getattr(chapter, stub)) == "not written yet"
    assert check(getattr(chapter, book)) == "right"
    assert check(right) == "right"


WRONG = [("scores", name, wrong) for name, wrong in WRONG_SCORES.items()]
WRONG += [("grouped", name, wrong) for name, wrong in WRONG_GROUPED.items()]


@pytest.mark.parametrize("gap, name, wrong", WRONG, ids=[name.replace(" ", "-") for _, name, _ in WRONG])
def test_wrong_answer_to_a_gap_is_rejected(chapter, gap, name, wrong):
    right, check, *_ = GAPS[gap]
    assert rejected(getattr(chapter, check), lambda *arguments: right(*arguments, **wrong))


# ---- What the stored experiment uses


SHAPE = ModelConfig(dim=24, heads=6, kv_heads=6, layers=2, context=7, vocab_size=11, predict=2, ffn=5)


@pytest.mark.parametrize("groups", [3, 2, 1])
def test_merging_equal_heads_changes_nothing_and_the_mean_is_of_neighbours(chapter, groups):
    """A model whose key/value heads are equal within each group computes the same after merging them."""
    fewer = GPT(replace(SHAPE, kv_heads=groups), seed=1, dtype=np.float64)
    many = GPT(SHAPE, dtype=np.float64)
    C, n = SHAPE.head_dim, 6 // groups
    for name, w in fewer.params.items():
        if name.endswith("qkv"):
            q, k, v = np.split(w, [24, 24 + groups * C], axis=1)
            k, v = (np.repeat(a.reshape(24, groups, C), n, axis=1).reshape(24, -1) for a in (k, v))
            w = np.concatenate([q, k, v], axis=1)
        many.params[name][...] = w
    tokens = np.random.default_rng(0).integers(0, 11, (2, 7))
    for how in ("mean", "first"):
        merged = chapter.pooled(many, groups, how)
        assert np.allclose(merged.logits(tokens), fewer.logits(tokens), rtol=0, atol=1e-12)
    noise = np.random.default_rng(1).normal(
        size=(24, 2, groups, n, C)
    )  # heads of a group move apart, mean kept
    noise -= noise.mean(axis=3, keepdims=True)
    for layer in range(2):
        many.params[f"layers.{layer}.qkv"][:, 24:] += noise.reshape(24, -1)
    means, firsts = (chapter.pooled(many, groups, how).logits(tokens) for how in ("mean", "first"))
    assert np.allclose(means, fewer.logits(tokens), rtol=0, atol=1e-12)
    assert not np.allclose(firsts, means, atol=1e-6)


def test_the_shapes_compared_have_the_parameters_that_the_chapter_says(chapter):
    sizes = {name: GPT(arm).size for name, arm in definitions("15_grouped_queries", "ARMS").ARMS.items()}
    assert sizes["G = 1, wider"] == sizes["G = 4"] > sizes["G = 2"] > sizes["G = 1"]


# ---- The exercises: check, stub, solution, and the wrong answers that the notebook itself names


EXERCISES = {
    "hears": lambda c: (c.check_hears, c.my_hears, c.hears, c.wrong_hears),
    "shapes": lambda c: (c.check_shapes, c.my_shapes, c.shapes, c.wrong_shapes),
    "crossover": lambda c: (c.check_crossover, c.my_crossover, c.crossover, c.wrong_crossovers),
}


@pytest.mark.parametrize("parts", EXERCISES.values(), ids=EXERCISES)
def test_exercise_check(chapter, parts):
    try_exercise(*parts(chapter))


def test_exercise_with_two_functions(chapter):
    c = chapter
    assert c.check_tied((c.my_tied_forward, c.my_tied_backward)) == "not written yet"
    assert c.check_tied((c.tied_forward, c.my_tied_backward)) == "not written yet"
    assert c.check_tied((c.tied_forward, c.tied_backward)) == "right"


def tied_join(name):
    return lambda c: (c.tied_forward, lambda dy, saved: c.tied_backward(dy, saved, c.wrong_joins[name]))


WRONG_TIED = {
    "keys not turned": lambda c: (
        lambda q, s: (c.attention_forward(q, s, s)[0], None),
        c.tied_backward,
    ),
    "values turned too": lambda c: (
        lambda q, s: (c.attention_forward(q, *[c.tied_forward(q, s)[1][0][1][:, :, 0]] * 2)[0], None),
        c.tied_backward,
    ),
} | {
    name: tied_join(name)
    for name in (
        "the values' gradient left out",
        "keys' gradient not turned back",
        "turned the wrong way",
        "both turned back",
        "the mean of the two uses",
    )
}


@pytest.mark.parametrize("name", WRONG_TIED, ids=lambda name: name.replace(" ", "-"))
def test_wrong_answer_to_the_exercise_with_two_functions_is_rejected(chapter, name):
    assert rejected(chapter.check_tied, WRONG_TIED[name](chapter))
