"""Chapter 09: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
import pytest
from chapters import definitions, rejected, try_exercise


@pytest.fixture(scope="module")
def chapter():
    return definitions("09_swiglu", "WIDTHS", "FUNCTIONS")


# ---- The gaps


def forward(gate, up, bend=None, through=True, use_up=True, quiet=True, stable=True, saved=None):
    """SwiGLU; the arguments after up are the mistakes that one can make."""
    with np.errstate(all="ignore" if quiet else "warn"):
        s = 1 / (1 + np.exp(-gate)) if stable else np.exp(gate) / (1 + np.exp(gate))
        y = (bend(gate) if bend else gate * s if through else s) * (up if use_up else 1)
    return y, (saved or (lambda *kept: kept))(gate, up, s)


WRONG_FORWARD = {
    "the gate as it was first, without g": dict(through=False),
    "ReLU": dict(bend=lambda g: np.maximum(g, 0)),
    "GELU": dict(bend=lambda g: g / (1 + np.exp(-1.702 * g))),
    "no bend": dict(bend=lambda g: g),
    "up forgotten": dict(use_up=False),
    "a warning": dict(quiet=False),
    "nan for large gates": dict(stable=False),
    "gate and up exchanged in saved": dict(saved=lambda gate, up, s: (up, gate, s)),
    "silu in the place of the sigmoid": dict(saved=lambda gate, up, s: (gate, up, gate * s)),
}


def backward(dy, saved, inner=1.0, own=True, use_up=True, bent=True, exchanged=False):
    """The backward pass of SwiGLU; the arguments after saved are the mistakes that one can make."""
    gate, up, s = saved
    if exchanged:
        gate, up = up, gate
    slope = s * own + inner * gate * s * (1 - s)
    return dy * (up if use_up else 1) * slope, dy * (gate * s if bent else s)


WRONG_BACKWARD = {
    "the sigmoid's slope for SiLU's": lambda dy, saved: (
        dy * saved[1] * saved[2] * (1 - saved[2]),
        dy * saved[0] * saved[2],
    ),
    "the second term of the product rule dropped": dict(inner=0.0),
    "its sign": dict(inner=-1.0),
    "the first term dropped": dict(own=False),
    "up forgotten": dict(use_up=False),
    "dup without g": dict(bent=False),
    "gate and up exchanged": dict(exchanged=True),
    "dgate and dup exchanged": lambda dy, saved: backward(dy, saved)[::-1],
}


def test_untouched_gaps_say_so(chapter):
    assert chapter.check_swiglu(chapter.my_swiglu) == "not written yet"
    assert chapter.check_backward(chapter.my_swiglu_backward) == "not written yet"


def test_right_answers_to_the_gaps(chapter):
    assert chapter.check_swiglu(chapter.swiglu_forward) == chapter.check_swiglu(forward) == "right"
    assert chapter.check_backward(chapter.swiglu_backward) == chapter.check_backward(backward) == "right"


@pytest.mark.parametrize("mistake", WRONG_FORWARD.values(), ids=WRONG_FORWARD)
def test_wrong_forward_is_rejected(chapter, mistake):
    assert rejected(chapter.check_swiglu, lambda gate, up: forward(gate, up, **mistake))


@pytest.mark.parametrize("mistake", WRONG_BACKWARD.values(), ids=WRONG_BACKWARD)
def test_wrong_backward_is_rejected(chapter, mistake):
    wrong = mistake if callable(mistake) else lambda dy, saved: backward(dy, saved, **mistake)
    assert rejected(chapter.check_backward, wrong)


# ---- The exercises: check, stub, solution, and the wrong answers that the notebook itself names


EXERCISES = {
    "symmetry": lambda c: (c.check_symmetries, c.my_symmetries, c.symmetries, c.wrong_symmetries),
    "beta": lambda c: (c.check_beta, c.my_beta_backward, c.beta_backward, c.wrong_betas),
    "bugs": lambda c: (c.check_inputs, c.my_inputs, c.three_inputs, c.wrong_inputs),
    "needed": lambda c: (c.check_needed, c.my_units_needed, c.units_needed, c.wrong_needed),
}


@pytest.mark.parametrize("parts", EXERCISES.values(), ids=EXERCISES)
def test_exercise_check(chapter, parts):
    try_exercise(*parts(chapter))


# ---- What the experiments rest on


@pytest.mark.parametrize("function", ["SiLU", "GELU", "ReLU", "linear"])
@pytest.mark.parametrize("form", ["plain", "gated"])
def test_every_pair_of_the_comparison_has_the_right_gradient(chapter, form, function):
    draw = np.random.default_rng(0)
    inputs = {"gate": draw.normal(size=(3, 5)) * 2, "up": draw.normal(size=(3, 5))}
    pair = chapter.pair_of(form, function)
    rows = chapter.gradcheck.check_layer(pair["swiglu_forward"], pair["swiglu_backward"], inputs)
    assert all(row.ok for row in rows)


def test_both_forms_have_equally_many_parameters(chapter):
    D = 48
    assert 2 * D * chapter.WIDTHS["plain"] == 3 * D * chapter.WIDTHS["gated"] == 8 * D * D


def test_auc_against_counting_pairs(chapter):
    draw = np.random.default_rng(1)
    h, positive = draw.normal(size=(17, 3)), draw.random(17) < 0.4
    pairs = h[positive][:, None] > h[~positive][None]  # [positives, others, units]
    assert np.allclose(chapter.auc(h, positive), pairs.mean(axis=(0, 1)))
