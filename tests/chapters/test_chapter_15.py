"""Chapter 15: its checks accept what is right and reject wrong answers, each of them named; its merging is a mean."""

from dataclasses import replace

import numpy as np
import pytest
from chapters import accepts, definitions, gap_tests, rejected, slips

from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.model import GPT

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
}


def grouped(forward, backward, order="repeat", back="repeat", join=np.sum):
    """A grouped pair from an ungrouped one, with one thing wrong, if asked."""
    spread = {"repeat": lambda a, n: np.repeat(a, n, axis=1), "tile": lambda a, n: np.tile(a, (1, n, 1, 1))}[order]

    def together(d, G):
        B, H, T, C = d.shape
        if back == "tile":
            return join(d.reshape(B, H // G, G, T, C), axis=1)
        return join(d.reshape(B, G, H // G, T, C), axis=2)

    def grouped_forward(q, k, v):
        n = q.shape[1] // k.shape[1]
        y, saved = forward(q, spread(k, n), spread(v, n))
        return y, (k.shape[1], saved)

    def grouped_backward(dy, saved):
        G, saved = saved
        d, dk, dv = backward(dy, saved)
        return d, together(dk, G), together(dv, G)

    return grouped_forward, grouped_backward


WRONG_GROUPED = {
    "the mean in place of the sum": dict(join=np.mean),
    "the order of tile, forward and backward": dict(order="tile", back="tile"),
    "forward by repeat, backward by tile": dict(back="tile"),
}
test_right_gaps, test_wrong_gaps = gap_tests(
    {"check_scores": ([], slips(scores, WRONG_SCORES)), "check_grouped": ([grouped], slips(grouped, WRONG_GROUPED))}
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


@pytest.mark.parametrize("which", range(3))
def test_gradients_of_lower_precision_are_rejected(chapter, which):
    def low(backward):
        def back(dy, saved):
            return tuple(d.astype(np.float32) if i == which else d for i, d in enumerate(backward(dy, saved)))

        return back

    def grouped_low(forward, backward):
        go, back = chapter.book_grouped(forward, backward)
        return go, low(back)

    with pytest.raises(AssertionError, match=f"d{'qkv'[which]} is float32, expected float64"):
        chapter.check_grouped(grouped_low)
    if which < 2:
        with pytest.raises(AssertionError, match=f"d{'qs'[which]} is float32, expected float64"):
            chapter.check_tied((chapter.tied_forward, low(chapter.tied_backward)))


def test_the_batch_size_is_not_taken_for_the_key_heads(chapter):
    """With one key head, or as many as texts, such an answer gives the right numbers."""

    def grouped_by_texts(forward, backward):
        def go(q, k, v):
            G, n = k.shape[1], q.shape[1] // k.shape[0]
            y, saved = forward(q, np.repeat(k, n, axis=1), np.repeat(v, n, axis=1))
            return y, (G, saved)

        return go, chapter.book_grouped(forward, backward)[1]

    with pytest.raises(ValueError):  # three texts, two key heads: the shapes do not fit
        chapter.check_grouped(grouped_by_texts)


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
    assert c.check_tied((c.tied_forward, c.my_tied_backward)) == "not written yet"
    assert c.check_tied((c.tied_forward, c.tied_backward)) == "right"


test_other_right_answers = accepts(
    {"check_hears": [lambda: ([1, 4], [2, 0]), lambda: (frozenset({4, 1}), np.array([0, 2]))]}
)
