"""Chapter 15: its checks accept what is right and reject wrong answers, each of them named; its merging is a mean."""

from dataclasses import replace

import numpy as np
import pytest
from chapters import accepts, definitions, gap_tests, rejected, slips

from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.model import GPT
from nanoeuler_lib.ops.reference import (
    attention_backward,
    attention_forward,
    rope_backward,
    rope_forward,
    rope_tables,
)

# ---- The gaps

NOTEBOOK = ("15_grouped_queries",)


def scores(q, keys, order=np.repeat, copy=False):
    """The scores of q with the keys of each head's group, with one thing wrong, if asked."""
    H, C, G = q.shape[1], q.shape[3], keys.shape[1]
    if copy:
        return q @ np.repeat(keys, H // G, axis=1).mT / float(np.sqrt(C))
    read = order(np.arange(G), H // G)
    return np.stack([q[:, h] @ keys[:, read[h]].mT for h in range(H)], axis=1) / float(np.sqrt(C))


WRONG_SCORES = {
    "a copy for each query head": dict(copy=True),
    "query head h reads key head h mod G": dict(order=np.tile),
    "all read key head 0": dict(order=lambda heads, n: np.zeros(len(heads) * n, int)),
}


def grouped(forward, backward, order="repeat", back="repeat", join=lambda d: d.sum(axis=2), values=None):
    """A grouped pair from an ungrouped one, with one thing wrong, if asked."""
    spread = {"repeat": lambda a, n: np.repeat(a, n, axis=1), "tile": lambda a, n: np.tile(a, (1, n, 1, 1))}[order]

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
        return d, together(dk, G), values(dv, G) if values else together(dv, G)

    return grouped_forward, grouped_backward


WRONG_GROUPED = {
    "the mean in place of the sum": dict(join=lambda d: d.mean(axis=2)),
    "the first head of the group alone": dict(join=lambda d: d[:, :, 0]),
    "the order of tile, forward and backward": dict(order="tile", back="tile"),
    "forward by repeat, backward by tile": dict(back="tile"),
    "values not added": dict(values=lambda dv, G: dv[:, :: dv.shape[1] // G]),
}


test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_scores": ([], slips(scores, WRONG_SCORES)),
        "check_grouped": ([grouped], slips(grouped, WRONG_GROUPED)),
    }
)


@pytest.mark.parametrize(
    "plain",
    [lambda q: q.shape[2] == 1, lambda q: len(q) == 1, lambda q: q.dtype == np.float64],
    ids=["one new position", "one text", "float64"],
)
def test_scores_that_copy_in_other_cases_than_one_are_rejected(chapter, plain):
    def copies(q, keys):
        if plain(q):
            return chapter.book_scores(q, keys)
        return q @ np.repeat(keys, q.shape[1] // keys.shape[1], axis=1).mT / q.dtype.type(np.sqrt(q.shape[-1]))

    assert rejected(chapter.check_scores, copies)


def test_what_is_kept_in_a_closure_belongs_to_the_last_layer(chapter):
    """Two layers go forward before the first goes backward, and so do the checks of both pairs."""

    def grouped_in_the_closure(forward, backward):
        kept, (there, back) = {}, chapter.book_grouped(forward, backward)

        def go(q, k, v):
            y, kept["saved"] = there(q, k, v)
            return y, None

        return go, lambda dy, saved: back(dy, kept["saved"])

    kept = {}

    def tied(q, s):
        y, kept["saved"] = chapter.tied_forward(q, s)
        return y, None

    assert rejected(chapter.check_grouped, grouped_in_the_closure)
    assert rejected(chapter.check_grouped, lambda *pair: (*chapter.book_grouped(*pair), None))
    assert rejected(chapter.check_tied, (tied, lambda dy, saved: chapter.tied_backward(dy, kept["saved"])))


def test_a_crossover_beyond_the_context_is_not_cut(chapter):
    assert rejected(chapter.check_crossover, lambda c, n: min(c.context, chapter.crossover(c, n)))


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
    noise = np.random.default_rng(1).normal(size=(24, 2, groups, n, C))  # heads of a group move apart, mean kept
    noise -= noise.mean(axis=3, keepdims=True)
    for layer in range(2):
        many.params[f"layers.{layer}.qkv"][:, 24:] += noise.reshape(24, -1)
    means, firsts = (chapter.pooled(many, groups, how).logits(tokens) for how in ("mean", "first"))
    assert np.allclose(means, fewer.logits(tokens), rtol=0, atol=1e-12)
    assert not np.allclose(firsts, means, atol=1e-6)


def test_the_shapes_compared_have_the_parameters_that_the_chapter_says(chapter):
    defined = definitions("15_grouped_queries", "ARMS", "WIDER")
    sizes = {name: GPT(arm).size for name, arm in defined.ARMS.items()}
    wider = GPT(defined.shape(1, ffn=defined.WIDER)).size
    assert wider == sizes["G = 4"] > sizes["G = 2"] > sizes["G = 1"]


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def test_exercise_with_two_functions(chapter):
    c = chapter
    assert c.check_tied((c.my_tied_forward, c.my_tied_backward)) == "not written yet"
    assert c.check_tied((c.tied_forward, c.my_tied_backward)) == "not written yet"
    assert c.check_tied((c.tied_forward, c.tied_backward)) == "right"


# ---- Other right answers, and wrong ones that earlier checks accepted


def grouped_by_heads(forward, backward):
    """One query head at a time."""

    def grouped_forward(q, k, v):
        n = q.shape[1] // k.shape[1]
        parts = [forward(q[:, [h]], k[:, [h // n]], v[:, [h // n]]) for h in range(q.shape[1])]
        return np.concatenate([y for y, _ in parts], axis=1), (k.shape, [saved for _, saved in parts])

    def grouped_backward(dy, saved):
        shape, parts = saved
        n, dq, dk, dv = dy.shape[1] // shape[1], [], np.zeros(shape), np.zeros(shape)
        for h, part in enumerate(parts):
            d, k, v = backward(dy[:, [h]], part)
            dq.append(d)
            dk[:, [h // n]] += k
            dv[:, [h // n]] += v
        return np.concatenate(dq, axis=1), dk, dv

    return grouped_forward, grouped_backward


def tied(negative):
    """Keys turned by the tables; the turn back by the tables of negative angles, or by the library."""

    def forward(q, s):
        cos, sin = rope_tables(*s.shape[2:])
        k, turned = rope_forward(s, cos, sin)
        y, saved = attention_forward(q, k, s)
        return y, (saved, turned, cos, sin)

    def backward(dy, saved):
        saved, turned, cos, sin = saved
        dq, dk, dv = attention_backward(dy, saved)
        return dq, dv + (rope_forward(dk, cos, -sin)[0] if negative else rope_backward(dk, turned))

    return forward, backward


OTHERS = {

    "check_grouped": [grouped_by_heads],
    "check_hears": [lambda: ([1, 4], [2, 0]), lambda: (frozenset({4, 1}), np.array([0, 2]))],
    "check_tied": [tied(True), tied(False)],
    "check_crossover": [
        lambda c, texts: next(
            T for T in range(1, 10**6)
            if 2 * texts * T * c.kv_heads * c.head_dim > c.dim * (c.qkv_dim + c.dim + 3 * c.ffn)
        ),
        lambda c, texts: int(np.floor(
            (c.dim * (2 * c.heads + 2 * c.kv_heads) * c.head_dim + 3 * c.dim * c.ffn)
            / (2 * texts * c.kv_heads * c.head_dim)
        )) + 1,
    ],
}  # fmt: skip
test_other_right_answers = accepts(OTHERS)
