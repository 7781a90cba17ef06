"""Chapter 06: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
import pytest
from chapters import definitions, rejected, try_exercise


@pytest.fixture(scope="module")
def chapter():
    return definitions("06_attention", "SIZES")


# ---- The gaps


def test_untouched_gaps_say_so(chapter):
    c = chapter
    assert c.check_forward(c.my_attention_forward) == "not written yet"
    assert c.check_backward(c.my_attention_backward, c.attention_forward) == "not written yet"


def test_the_book_fills_its_gaps(chapter):
    assert chapter.check_forward(chapter.attention_forward) == "right"
    assert chapter.check_backward(chapter.attention_backward, chapter.attention_forward) == "right"


def test_a_forward_pass_that_saves_something_else_is_right_too(chapter):
    assert chapter.check_forward(lambda q, k, v: (attention(q, k, v), None)) == "right"


def attention(q, k, v, scale=True, mask="before", offset=1, interleaved=False, stable=True):
    """Attention with one thing wrong, if asked."""
    H, G, T, C = q.shape[1], k.shape[1], *q.shape[2:]
    k, v = ((np.tile(a, (1, H // G, 1, 1)) if interleaved else np.repeat(a, H // G, axis=1)) for a in (k, v))
    scores = q @ k.swapaxes(-1, -2) / (np.sqrt(C) if scale else 1)
    future = np.triu(np.ones((T, T), bool), offset)
    if mask == "before":
        scores = np.where(future, -np.inf, scores)
    with np.errstate(all="ignore"):
        e = np.exp(scores - (scores.max(axis=-1, keepdims=True) if stable else 0))
        probs = e / e.sum(axis=-1, keepdims=True)
    if mask == "after":
        probs = np.where(future, 0, probs)
    return probs @ v


WRONG_FORWARD = {
    "no 1/sqrt(C)": dict(scale=False),
    "no mask": dict(mask="none"),
    "weights of the future zeroed after softmax": dict(mask="after"),
    "mask lets one future position through": dict(offset=2),
    "mask hides the position itself": dict(offset=0),
    "query head h reads key head h mod G": dict(interleaved=True),
    "no maximum subtracted": dict(stable=False),
}


@pytest.mark.parametrize("wrong", WRONG_FORWARD.values(), ids=WRONG_FORWARD)
def test_wrong_forward_is_rejected(chapter, wrong):
    assert rejected(chapter.check_forward, lambda q, k, v: (attention(q, k, v, **wrong), None))


def backward(dy, saved, scale=True, row_axis=-1, row_term=True, group="sum", transposed=True):
    """The backward pass with one thing wrong, if asked."""
    q, k, v, probs = saved  # as the book's forward pass saves them
    B, G, R, T, C = q.shape
    dy = dy.reshape(q.shape)
    dprobs = dy @ v.swapaxes(-1, -2)
    along = (dprobs * probs).sum(axis=row_axis, keepdims=True) if row_term else 0
    dscores = probs * (dprobs - along) / (np.sqrt(C) if scale else 1)
    first = lambda a, axis: a[:, :, 0]
    shared = {"sum": np.sum, "mean": np.mean, "first": first}[group]
    dk = (dscores.swapaxes(-1, -2) if transposed else dscores) @ q
    dv = probs.swapaxes(-1, -2) @ dy
    return (dscores @ k).reshape(B, G * R, T, C), shared(dk, axis=2), shared(dv, axis=2)


WRONG_BACKWARD = {
    "no 1/sqrt(C)": dict(scale=False),
    "softmax row term summed over queries": dict(row_axis=-2),
    "softmax row term left out": dict(row_term=False),
    "mean over shared heads": dict(group="mean"),
    "first of the shared heads only": dict(group="first"),
    "dk without the transpose": dict(transposed=False),
}


@pytest.mark.parametrize("wrong", WRONG_BACKWARD.values(), ids=WRONG_BACKWARD)
def test_wrong_backward_is_rejected(chapter, wrong):
    check, forward = chapter.check_backward, chapter.attention_forward
    assert rejected(check, lambda dy, saved: backward(dy, saved, **wrong), forward)


# ---- The exercises: check, stub, solution, and the wrong answers that the notebook itself names


EXERCISES = {
    "swap": lambda c: (c.check_swap, c.my_swap, c.swap, c.wrong_swaps),
    "sink": lambda c: (
        c.check_sink,
        (c.my_sink_forward, c.my_sink_backward),
        (c.sink_forward, c.sink_backward),
        c.wrong_sinks,
    ),
    "diagnose": lambda c: (c.check_diagnosis, c.my_diagnosis, c.diagnosis, c.wrong_diagnoses),
    "reach": lambda c: (c.check_reach, c.my_reach, c.reach, c.wrong_reaches),
}


@pytest.mark.parametrize("parts", EXERCISES.values(), ids=EXERCISES)
def test_exercise_check(chapter, parts):
    try_exercise(*parts(chapter))


def test_sink_with_only_the_forward_pass_is_not_written_yet(chapter):
    assert chapter.check_sink((chapter.sink_forward, chapter.my_sink_backward)) == "not written yet"
