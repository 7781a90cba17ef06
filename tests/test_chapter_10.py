"""Chapter 10: its checks accept the right answer and reject wrong ones by name; its stored results are its own."""

import json

import numpy as np
import pytest
from chapters import ROOT, code_cells

CELLS = {cell.id: cell for cell in code_cells("10_whole_model")}

# Wrong answers to the two gaps; those to the exercises stand in the notebook's solution cells.
WRONG_SCALE = {
    "mean over all positions": lambda targets, weights: weights / targets[..., 0].size,
    "sum in place of the mean": lambda targets, weights: np.asarray(weights, float),
    "one count for all heads": lambda targets, weights: weights / max(1, (targets >= 0).sum()) * len(weights),
    "weights forgotten": lambda targets, weights: 1 / np.maximum((targets >= 0).sum(axis=(0, 1)), 1),
    "nan for an empty head": lambda targets, weights: weights / (targets >= 0).sum(axis=(0, 1)),
}
WRONG_BLOCK = {  # the book's version with one fragment replaced
    "upper fork lost": ("dx = dx + through", "dx = through"),
    "lower fork lost": ("return dx + through, dw", "return through, dw"),
    "stream passed by": ("dx = dx + through", "dx = dx"),
    "gate and up swapped": (
        'np.concatenate(swiglu_backward(dhidden, saved["swiglu"])',
        'np.concatenate(swiglu_backward(dhidden, saved["swiglu"])[::-1]',
    ),
    "k not turned back": ('rope_backward(dk, saved["rope_k"])', "dk"),
    "heads laid out wrongly": (
        "dqkv = from_heads(np.concatenate([dq, dk, dv], axis=1))",
        "dqkv = np.concatenate([dq, dk, dv], axis=1).reshape(*dx.shape[:2], -1)",
    ),
    "out misses the stream": ('linear_backward(dx, saved["out"])', 'linear_backward(through, saved["out"])'),
}
EXERCISES = [
    ("right_rows", "wrong_rows"),
    ("tied_backward", "wrong_tied"),
    ("test", "wrong_tests"),
    ("longest_row", "wrong_lengths"),
]


def source_of(text: str) -> str:
    """The one cell that begins with `text` somewhere on a line of its own."""
    found = [cell.source for cell in CELLS.values() if f"\n{text}" in f"\n{cell.source}"]
    assert len(found) == 1, f"{len(found)} cells hold {text!r}"
    return found[0]


@pytest.fixture(scope="module")
def names():
    """What the notebook's cells tagged `setup` define: functions, checks, solutions, wrong answers."""
    defined = {}
    for cell in CELLS.values():
        if "setup" in cell.metadata.get("tags", ()):
            exec(cell.source, defined)
    return defined


@pytest.mark.parametrize(
    "gap", ["loss_scale", "block_backward", "right_rows", "tied_backward", "test", "longest_row"]
)
def test_untouched_gap_is_not_an_error(names, gap):
    assert names[f"check_{gap}"](names[f"my_{gap}"]) == "not written yet"


@pytest.mark.parametrize(
    "check, answer",
    [(name, name) for name in ("loss_scale", "block_backward", "right_rows", "tied_backward", "longest_row")]
    + [("test", "small_test")],
)
def test_check_accepts_the_right_answer(names, check, answer):
    assert names[f"check_{check}"](names[answer]) == "right"


@pytest.mark.parametrize("wrong", WRONG_SCALE)
def test_check_rejects_wrong_loss_scale(names, wrong):
    with pytest.raises(AssertionError):
        names["check_loss_scale"](WRONG_SCALE[wrong])


@pytest.mark.parametrize("wrong", WRONG_BLOCK)
def test_check_rejects_wrong_block_backward(names, wrong):
    old, new = WRONG_BLOCK[wrong]
    source = source_of("def block_backward")
    assert source.count(old) == 1
    defined = dict(names)
    exec(source.replace(old, new), defined)
    with pytest.raises(AssertionError, match="the gradient of"):
        names["check_block_backward"](defined["block_backward"])


@pytest.mark.parametrize("check, answers", EXERCISES)
def test_check_rejects_every_wrong_answer(names, check, answers):
    assert len(names[answers]) >= 3
    for name, wrong in names[answers].items():
        with pytest.raises(AssertionError):
            names[f"check_{check}"](wrong)
            pytest.fail(f"the check accepts {name}", pytrace=False)


def test_stored_results_are_of_this_experiment(names):
    result = json.loads((ROOT / "data" / "results" / "ch10.json").read_text("utf-8"))
    assert result["config"]["model"] == names["MINI"].to_dict()
    assert {row["bug"] for row in result["rows"]} == {"healthy", "exercise", *names["bugs"]}
    assert len({row["seed"] for row in result["rows"]}) >= 5
