"""Chapter 20: its checks accept the right answer and reject wrong ones by name; what it shows holds for the library."""

import json

import numpy as np
from chapters import ROOT, accepts, gap_tests, rejected, slips

from konigsberg import wordings
from nanoeuler_lib.text.sft_data import Encoded

# ---- The gaps of the text, with wrong answers

NOTEBOOK = ("20_chat",)


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
    "every end but the first counts": lambda ids, assistant, end: np.append(
        False, counted(ids, assistant, end)[1:] | (ids[1:] == end)
    ),
    "a reply needs its end": lambda ids, assistant, end: counted(ids, assistant, end) & (end in ids[-1:]),
    "markers are the largest ids": lambda ids, assistant, end: counted(ids, max(ids), end),
}


def wrong_counted(name):
    change = WRONG_COUNTED[name]
    return change if callable(change) else lambda *arguments: counted(*arguments, **change)


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
    "later heads like head 0": dict(later=0),
    "the mask of the input": dict(mask="input"),
    "everything counts": dict(mask=None),
    "token 0 as the target of padding": dict(fill=0),
    "rows in another order": dict(order=-1),
}


def rows_at_once(examples, time, predict):
    """Another right answer: padded tokens, and windows into them."""
    ids = np.zeros((len(examples), time + predict + 1), int)
    left = np.full(ids.shape, -1)
    for b, example in enumerate(examples):
        ids[b, : len(example.ids) - 1] = example.ids[:-1]
        left[b, : len(example.ids)] = np.where(example.counted, example.ids, -1)
    windows = np.lib.stride_tricks.sliding_window_view(left[:, 1:], predict, axis=1)
    return ids[:, :time], windows[:, :time].copy()


test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_counted": (
            [],
            {name: wrong_counted(name) for name in WRONG_COUNTED},
        ),
        "check_rows": (
            [rows, rows_at_once],
            slips(rows, WRONG_ROWS | {"the last token kept": dict(drop=False)}),
        ),
    }
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def test_a_part_of_an_answer_is_rejected(chapter):
    """Nothing, the first of two lists, a list too many."""
    for part in (lambda *given: (), lambda *given: chapter.zeros(*given)[:1],
                 lambda *given: (*chapter.zeros(*given), [])):  # fmt: skip
        assert rejected(chapter.check_zeros, part)


def zeros_from_the_model_s_rule(counted, time):
    """Another right answer, as sets, position by position."""
    learns = {t for t in range(time) if t + 1 < len(counted) and counted[t + 1]}
    return set(range(time)) - learns, {s for s in range(time) if not any(t >= s for t in learns)}


def mask_block_by_block(lengths, time):
    """Another right answer: padding reads itself alone."""
    allowed, start = np.eye(time, dtype=bool), 0
    for n in lengths:
        allowed[start : start + n, start : start + n] = np.tri(n)
        start += n
    return allowed


def forgery_in_itself(turns):
    """Another right answer: each label hides another of its own kind."""
    body = "\n".join(part for asked, reply in turns[:-1] for part in (f"User: {asked}", f"Assistant: {reply}"))
    whole = f"{body}\nUser: {turns[-1][0]}" if body else f"User: {turns[-1][0]}"
    hidden = whole.replace("User:", "UUser:ser:").replace("Assistant:", "AAssistant:ssistant:")
    return hidden.removeprefix("UUser:ser: ")


test_other_right_answers = accepts(
    {
        "check_zeros": [zeros_from_the_model_s_rule],
        "check_packed_mask": [mask_block_by_block],
        "check_forgery": [forgery_in_itself],
    }
)


# ---- Domains for the mutants, written from the contracts


# ---- What the chapter shows


def test_late_targets_are_the_inputs(chapter):
    """The planted mistake: every target that is left is the token at its own place."""
    examples = [Encoded(np.arange(1, 8), np.array([0, 0, 1, 1, 0, 1, 1], bool))]
    inputs, targets = chapter.late(examples, 8, 2)
    left = targets[0, :, 0] >= 0
    assert left.sum() == 4 and (targets[0, left, 0] == inputs[0, left]).sum() == 3  # the last is behind the row's end


def test_stored_results():
    result = json.loads((ROOT / "data" / "results" / "ch20.json").read_text("utf-8"))
    config, rows = result["config"], result["rows"]
    short = [row for row in rows if row["experiment"] == "short"]
    for size in config["sizes"]:
        found = [row["seed"] for row in short if (row["stories"], row["rate"], row["way"]) == (size, 1e-3, "replies")]
        assert sorted(found) == config["seeds"] and len(found) >= 5
    for key in [(rate, "replies") for rate in config["rates"]] + [
        (1e-3, "all tokens"),
        (1e-3, "with stories"),
    ]:
        assert len([row for row in short if (row["rate"], row["way"], row["stories"]) == (*key, 1000)]) >= 5, key
    assert len([row for row in rows if row["experiment"] == "facts"]) >= 5
    assert {row["experiment"] for row in rows} == {"lengths", "dolly", "short", "facts"}


def test_stored_wordings_are_those_of_the_library():
    """Each kind's taught and untaught wordings, and no wording of the test among those that were taught."""
    result = json.loads((ROOT / "data" / "results" / "konigsberg-chat.json").read_text("utf-8"))
    found = {}
    for row in result["rows"][1]["wordings"]:
        found.setdefault((row["group"], row["kind"]), set()).add(row["wording"])
        assert row["questions"] >= 1 and 0 <= row["chat"] <= 1 and 0 <= row["one_wording"] <= 1
    for kind in wordings.WORDINGS:
        assert found["taught", kind] <= set(wordings.taught(kind))  # but where the question is too long
        assert len(found["taught", kind]) == 3  # one of each author
        assert found["tried", kind] == set(wordings.tried(kind))
        assert found["never taught", kind] == set(wordings.untaught(kind))
        assert found["never taught, typed carelessly", kind] == set(wordings.untaught(kind))
    readers = {kind: texts for (group, kind), texts in found.items() if group == "a reader's"}
    assert readers == {kind: {text} for kind, text in wordings.READERS.items()}
