"""The checks of chapter 08: the right answer passes, every named wrong answer fails."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

NOTEBOOK = Path(__file__).resolve().parent.parent / "notebooks" / "08_residual_stream.ipynb"
RUN = {"setup", "mirror", "gap", "check", "solution"}
OPEN_EXERCISE = "residual-delete"  # its reference result needs the trained model; nbval runs it


@pytest.fixture(scope="module")
def chapter():
    """The names that the notebook's set-up, mirror, gap, check and solution cells define."""
    names, cells = {"__name__": "chapter_08"}, json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    for cell in cells:
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == OPEN_EXERCISE:
            break
        if cell["cell_type"] == "code" and RUN & set(cell["metadata"].get("tags", ())):
            exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
    return names


EXERCISES = {
    "factors": ("check_factors", "factors", "wrong_factors"),
    "partial": ("check_partial", "partial_backward", "wrong_partial"),
    "bugs": ("check_inputs", "three_inputs", "wrong_inputs"),
    "division": ("check_ratios", "ratios", "wrong_ratios"),
}


@pytest.mark.parametrize("check, right, wrong", EXERCISES.values(), ids=EXERCISES)
def test_exercise_check_tells_right_from_wrong(chapter, check, right, wrong):
    check, wrong_answers = chapter[check], chapter[wrong]
    assert check(chapter[right]) == "right"
    assert len(wrong_answers) >= 3
    for name, answer in wrong_answers.items():
        with pytest.raises(AssertionError):
            check(answer)
            pytest.fail(f"accepted: {name}", pytrace=False)


@pytest.mark.parametrize(
    "check, gap",
    [
        ("check_rmsnorm", "my_rmsnorm"),
        ("check_backward", "my_rmsnorm_backward"),
        ("check_factors", "my_factors"),
        ("check_partial", "my_partial_backward"),
        ("check_inputs", "my_inputs"),
        ("check_ratios", "my_ratios"),
    ],
)
def test_untouched_gap_is_not_written_yet(chapter, check, gap):
    assert chapter[check](chapter[gap]) == "not written yet"


def forward(x, gain, eps=1e-5, axis=-1, inside=True, squared=True, use_gain=True):
    """RMSNorm; the arguments after eps are the mistakes that one can make."""
    m = np.mean(x * x if squared else np.abs(x), axis=axis, keepdims=True)
    rstd = (1 / np.sqrt(m + eps) if inside else 1 / (np.sqrt(m) + eps)) * np.ones_like(x[..., :1])
    return x * rstd * (gain if use_gain else 1), (x * rstd, rstd, gain)


WRONG_FORWARD = {
    "eps outside the root": lambda x, g, e: forward(x, g, e, inside=False),
    "eps fixed": lambda x, g, e: forward(x, g),
    "the mean over all vectors": lambda x, g, e: forward(x, g, e, axis=None),
    "mean of absolute values": lambda x, g, e: forward(x, g, e, squared=False),
    "the gain forgotten": lambda x, g, e: forward(x, g, e, use_gain=False),
    "LayerNorm": lambda x, g, e: forward(x - x.mean(axis=-1, keepdims=True), g, e),
    "standard deviation in place of its reciprocal": lambda x, g, e: (
        forward(x, g, e)[0],
        (x, 1 / x[..., :1], g),
    ),
}


def backward(
    dy, saved, gain_in_mean=True, axis=-1, rstd_power=1, subtract=True, sum_rows=True, gain_in_dgain=False
):
    """The backward pass of RMSNorm; the arguments after saved are the mistakes that one can make."""
    normed, rstd, gain = saved
    dgain = dy * normed * (gain if gain_in_dgain else 1)
    dgain = dgain.reshape(-1, gain.size).sum(axis=0) if sum_rows else dgain
    dn = dy * gain
    along = np.mean((dn if gain_in_mean else dy) * normed, axis=axis, keepdims=True)
    return rstd**rstd_power * (dn - normed * along * subtract), dgain


WRONG_BACKWARD = {
    "the gain forgotten in the mean": dict(gain_in_mean=False),
    "the mean over all vectors": dict(axis=None),
    "the root constant": dict(subtract=False),
    "1 / rms left out": dict(rstd_power=0),
    "1 / rms cubed": dict(rstd_power=3),
    "the gain's gradient not summed": dict(sum_rows=False),
    "the gain inside its own gradient": dict(gain_in_dgain=True),
}


def test_forward_check(chapter):
    check = chapter["check_rmsnorm"]
    assert check(forward) == "right" and check(chapter["rmsnorm_forward"]) == "right"
    for name, wrong in WRONG_FORWARD.items():
        with pytest.raises(AssertionError):
            check(wrong)
            pytest.fail(f"accepted: {name}", pytrace=False)


def test_backward_check(chapter):
    check = chapter["check_backward"]
    assert check(backward) == "right" and check(chapter["rmsnorm_backward"]) == "right"
    for name, mistake in WRONG_BACKWARD.items():
        with pytest.raises(AssertionError):
            check(partial(backward, **mistake))
            pytest.fail(f"accepted: {name}", pytrace=False)
