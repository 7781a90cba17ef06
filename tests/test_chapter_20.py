"""Chapter 20: its checks accept the right answer and reject wrong ones by name; what it shows holds for the library."""

import json

import numpy as np
import pytest
from chapters import ROOT, definitions, rejected, try_exercise

from nanoeuler_lib.sft import Encoded


@pytest.fixture(scope="module")
def chapter():
    return definitions("20_chat", "neighbours")


# ---- The gaps of the text, with wrong answers


def counted(ids, assistant, end, marker=False, ends=True, stops=True, first=True):
    """Which tokens count, with one thing wrong, if asked."""
    found, inside = np.zeros(len(ids), bool), not first
    for i, token in enumerate(ids):
        found[i] = (inside and (ends or token != end)) or (marker and token == assistant)
        inside = token == assistant or (inside and (token != end or not stops))
    return found


WRONG_COUNTED = {
    "the assistant marker counts": dict(marker=True),
    "the end marker does not count": dict(ends=False),
    "on after the first reply": dict(stops=False),
    "the first end marker counts": dict(first=False),
    "all tokens": None,
    "one place early": None,
}


def wrong_counted(name):
    if name == "all tokens":
        return lambda ids, assistant, end: np.ones(len(ids), bool)
    if name == "one place early":
        return lambda ids, assistant, end: np.append(counted(ids, assistant, end)[1:], False)
    return lambda *arguments: counted(*arguments, **WRONG_COUNTED[name])


def rows(examples, time, predict, shift=1, later=1, mask="target", fill=-1, drop=True, order=1):
    """Inputs and targets, one by one, with one thing wrong, if asked."""
    inputs = np.zeros((len(examples), time), int)
    targets = np.full((len(examples), time, predict), fill)
    for b, example in enumerate(examples[::order]):
        n = len(example.ids) - drop
        inputs[b, :n] = example.ids[:n][:time]
        for t, k in np.ndindex(min(n, time), predict):
            at = t + shift + k * later
            if at < len(example.ids):
                place = at if mask == "target" else t
                targets[b, t, k] = example.ids[at] if mask is None or example.counted[place] else -1
    return inputs, targets


WRONG_ROWS = {
    "the token itself": dict(shift=0),
    "one place too far": dict(shift=2),
    "later heads like head 0": dict(later=0),
    "the mask of the input": dict(mask="input"),
    "everything counts": dict(mask=None),
    "token 0 as the target of padding": dict(fill=0),
    "rows in another order": dict(order=-1),
}
GAPS = {
    "counted": ("check_counted", "my_counted", "book_counted", counted),
    "rows": ("check_rows", "my_rows", "rows", rows),
}


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
def test_gap(chapter, gap):
    check, stub, book, right = gap
    check = getattr(chapter, check)
    assert check(getattr(chapter, stub)) == "not written yet"
    assert check(getattr(chapter, book)) == check(right) == "right"


@pytest.mark.parametrize("name", WRONG_COUNTED)
def test_wrong_mask_is_rejected(chapter, name):
    assert rejected(chapter.check_counted, wrong_counted(name))


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_wrong_rows_are_rejected(chapter, name):
    assert rejected(chapter.check_rows, lambda *arguments: rows(*arguments, **WRONG_ROWS[name]))


def test_rows_that_keep_the_last_token_are_rejected(chapter):
    """With the last token as an input there is one place too many in the longest row."""
    with pytest.raises((AssertionError, ValueError, IndexError)):
        chapter.check_rows(lambda *arguments: rows(*arguments, drop=False))


# ---- The exercises: check, stub, solution, and the wrong answers that the notebook itself names

EXERCISES = {
    "zeros": lambda c: (c.check_zeros, c.my_zeros, c.zeros, c.wrong_zeros),
    "packed": lambda c: (c.check_packed_mask, c.my_packed_mask, c.packed_mask, c.wrong_masks),
    "diagnose": lambda c: (c.check_cases, c.my_cases, c.cases, c.wrong_cases),
}


@pytest.mark.parametrize("parts", EXERCISES.values(), ids=EXERCISES)
def test_exercise_check(chapter, parts):
    try_exercise(*parts(chapter))


# ---- What the chapter shows


def test_late_targets_are_the_inputs(chapter):
    """The planted mistake: every target that is left is the token at its own place."""
    examples = [Encoded(np.arange(1, 8), np.array([0, 0, 1, 1, 0, 1, 1], bool))]
    inputs, targets = chapter.late(examples, 8, 2)
    left = targets[0, :, 0] >= 0
    assert (
        left.sum() == 4 and (targets[0, left, 0] == inputs[0, left]).sum() == 3
    )  # the last is behind the row's end


def test_stored_results():
    result = json.loads((ROOT / "data" / "results" / "ch20.json").read_text("utf-8"))
    config, rows = result["config"], result["rows"]
    short = [row for row in rows if row["experiment"] == "short"]
    for size in config["sizes"]:
        found = [
            row["seed"]
            for row in short
            if (row["stories"], row["rate"], row["way"]) == (size, 1e-3, "replies")
        ]
        assert sorted(found) == config["seeds"] and len(found) >= 5
    for key in [(rate, "replies") for rate in config["rates"]] + [
        (1e-3, "all tokens"),
        (1e-3, "with stories"),
    ]:
        assert (
            len([row for row in short if (row["rate"], row["way"], row["stories"]) == (*key, 1000)]) >= 5
        ), key
    assert len([row for row in rows if row["experiment"] == "facts"]) >= 5
    assert {row["experiment"] for row in rows} == {"lengths", "dolly", "shipped", "short", "facts"}
