"""Edits of the stream: nothing edited is the model itself, a whole patch is the twin, and the rest lies between."""

import numpy as np
import pytest

from nanoeuler_book.interpretability import edits
from nanoeuler_book.interpretability.edits import HEADS, STREAM, forward, instead, patched
from nanoeuler_book.interpretability.twins import PERSON, batch_of, pairs
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT, Parameters
from nanoeuler_lib.training.checkpoint import load_pretrained

SHIPPED, TOKENIZER = load_pretrained()
BATCH = batch_of(pairs(4, 8, 1, TOKENIZER), PERSON, TOKENIZER, 8)
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def small():
    """Random weights in float64, odd sizes, names in the vocabulary of the tokenizer."""
    config = ModelConfig(dim=18, heads=3, kv_heads=1, layers=3, context=128, vocab_size=512, predict=2, ffn=24)
    params = Parameters(config, np.float64)
    params.flat[...] = RNG.normal(0, 0.2, params.flat.size)
    return GPT(config, params)


@pytest.fixture(scope="module")
def kept(small):
    story, twin = {}, {}
    forward(small, BATCH.story, kept=story)
    forward(small, BATCH.twin, kept=twin)
    return story, twin


def test_nothing_edited_is_the_model(small, kept):
    logits = small.logits(BATCH.story)
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    same = {site: lambda x: x.copy() for site in kept[0] if site[0] != "weights"}
    for found in (forward(small, BATCH.story), forward(small, BATCH.story, same)):
        assert np.abs(found - log_p).max() < 1e-12
    assert np.array_equal(kept[0][STREAM, 0], small.params["embed"][BATCH.story])
    assert np.allclose(kept[0]["weights", 1].sum(axis=-1), 1)
    with pytest.raises(NanoEulerError, match=r"a site must be .*, got \('heads', 3\)"):
        forward(small, BATCH.story, {(HEADS, 3): lambda x: x})


def test_a_whole_patch_is_the_twin_and_a_part_of_it_is_not(small, kept):
    story, twin = kept
    wanted, before = forward(small, BATCH.twin), forward(small, BATCH.story)
    at_name = patched(BATCH.place, twin[STREAM, 0][BATCH.rows, BATCH.place])
    assert np.abs(forward(small, BATCH.story, {(STREAM, 0): at_name}) - wanted).max() < 1e-12
    for depth in (1, 3):
        whole = forward(small, BATCH.story, {(STREAM, depth): lambda x, d=depth: twin[STREAM, d]})
        assert np.abs(whole - wanted).max() < 1e-12
    late = forward(small, BATCH.story, {(STREAM, 3): patched(BATCH.place, twin[STREAM, 3][BATCH.rows, BATCH.place])})
    assert np.array_equal(late[BATCH.behind], before[BATCH.behind]) and not np.allclose(late, before)
    all_heads = {(HEADS, i): instead(range(3), twin[HEADS, i]) for i in range(3)}
    own_name = {(STREAM, 0): lambda x: twin[STREAM, 0]}
    assert np.abs(forward(small, BATCH.story, all_heads | own_name) - wanted).max() < 1e-12
    only = instead([1], 0.0, BATCH.behind)(story[HEADS, 1])
    assert not only[:, 1][BATCH.behind].any()
    assert np.array_equal(only[:, [0, 2]], story[HEADS, 1][:, [0, 2]])
    ahead = ~BATCH.behind
    assert np.array_equal(only.swapaxes(1, 2)[ahead], story[HEADS, 1].swapaxes(1, 2)[ahead])


@pytest.mark.parametrize("depth", [0, 2])
def test_the_gradient_from_a_stream_on_is_the_difference_quotient(small, kept, depth):
    stream = kept[0][STREAM, depth]
    nats, found = edits.gradient(small, BATCH, depth, stream)
    log_p = forward(small, BATCH.twin, {(STREAM, depth): lambda x: stream})
    following = np.append(BATCH.twin[:, 1:], BATCH.twin[:, :1], axis=1)
    cost = -np.take_along_axis(log_p, following[..., None], -1)[..., 0] * BATCH.behind
    assert np.allclose(nats, cost.sum(axis=1), rtol=1e-12)
    direction, eps = RNG.normal(size=stream.shape), 1e-5
    up, down = (edits.gradient(small, BATCH, depth, stream + s * direction)[0] for s in (eps, -eps))
    assert np.allclose((up - down) / (2 * eps), (found * direction).sum(axis=(1, 2)), rtol=1e-6)
    with pytest.raises(NanoEulerError, match="depth must be 0 to 2, so that a block is above it, got 3"):
        edits.gradient(small, BATCH, 3, stream)


def test_gradients_on_the_way_add_up_to_what_the_patch_saves():
    difference, mean = edits.patch_effects(SHIPPED, BATCH, 1, points=6)
    kept = {}
    forward(SHIPPED, BATCH.story, kept=kept)
    stream = kept[STREAM, 1]
    before = edits.gradient(SHIPPED, BATCH, 1, stream)[0]
    there = patched(BATCH.place, stream[BATCH.rows, BATCH.place] + difference)(stream)
    saved = before - edits.gradient(SHIPPED, BATCH, 1, there)[0]
    assert saved.min() > 1 and np.allclose((difference * mean).sum(axis=1), saved, rtol=0.15)
    assert ((difference * mean).sum() / saved.sum()) == pytest.approx(1, abs=0.03)


def test_one_head_carries_the_name():
    carries, without = edits.carriers(SHIPPED, BATCH)
    head = np.unravel_index(carries.argmax(), carries.shape)
    assert carries[head] > 0.9 and without[head] > 0.9 and head == np.unravel_index(without.argmax(), without.shape)
    assert without[0].max() < 0.05  # nothing of the first block's attention is needed


def test_the_subspace_that_carries_the_effect_is_found():
    hidden = np.linalg.qr(RNG.normal(size=(20, 3)))[0]
    difference = RNG.normal(size=(400, 20)) * np.linspace(1, 9, 20)  # most of the variance lies elsewhere
    gradients = difference @ hidden @ np.diag([5.0, 2.0, 1.0]) @ hidden.T
    basis, effects = edits.causal_subspace(difference, gradients, 20)
    assert np.allclose(basis.T @ basis, np.eye(20), atol=1e-12)
    assert effects.sum() == pytest.approx((difference * gradients).sum() / 400)
    basis, best = edits.causal_subspace(difference, gradients, 3)
    carried = lambda P: ((difference @ P) * (gradients @ P)).sum() / 400
    assert carried(basis) == pytest.approx(best.sum())
    others = [np.linalg.qr(RNG.normal(size=(20, 3)))[0] for _ in range(50)]
    assert all(carried(P) < carried(basis) for P in [*others, np.eye(20)[:, -3:], hidden])
    shares = [edits.share_inside(hidden[:, 0], P) for P in others]
    assert np.mean(shares) == pytest.approx(3 / 20, abs=0.05)


def test_moves_go_where_they_should_and_as_far():
    at, there, direction = RNG.normal(size=(3, 7, 9))
    moved = edits.along(at, there, direction)
    assert np.allclose((moved * direction).sum(-1), (there * direction).sum(-1))
    assert np.allclose(edits.share_inside(moved - at, direction[0][:, None] / np.linalg.norm(direction[0]))[0], 1)
    random = edits.random_moves(at, moved, RNG)
    assert np.allclose(np.linalg.norm(random - at, axis=1), np.linalg.norm(moved - at, axis=1))
