"""Chapter 20: its checks accept the right answer and reject wrong ones by name; what it shows holds for the library."""

import json

import numpy as np
from chapters import ROOT, accepts, rejected, rejects, rewritten_tests, slips

from konigsberg import wordings

# ---- The gaps of the text, with wrong answers

NOTEBOOK = ("20_chat",)


def counted(ids, assistant, end, marker=False, ends=True, stops=True):
    """Which tokens count, with one thing wrong."""
    found, inside = np.zeros(len(ids), bool), False
    for i, token in enumerate(ids):
        found[i] = (inside and (ends or token != end)) or (marker and token == assistant)
        inside = token == assistant or (inside and (token != end or not stops))
    return found


WRONG_COUNTED = slips(
    counted,
    {
        "the assistant marker counts": dict(marker=True),
        "the end marker does not count": dict(ends=False),
        "on after the first reply": dict(stops=False),
    },
) | {
    "a reply needs its end": lambda ids, assistant, end: counted(ids, assistant, end) & (end in ids[-1:]),
    "markers are the largest ids": lambda ids, assistant, end: counted(ids, max(ids), end),
}
test_wrong_counted = rejects({"check_counted": WRONG_COUNTED})
TARGETS = "targets[row, : n - k, k] = counted[1 + k :]"
ROWS = {
    "the token itself": ("counted[1 + k :]", "counted[k : n]"),
    "later heads like head 0": (TARGETS, "targets[row, :n, k] = counted[1:]"),
    "the mask of the input": (
        TARGETS,
        "targets[row, : n - k, k] = np.where(example.counted[: n - k], example.ids[1 + k :], -1)",
    ),
    "everything counts": ("np.where(example.counted, example.ids, -1)", "example.ids"),
    "token 0 as the target of padding": ("predict), -1,", "predict), 0,"),
    "the last token kept": ("inputs[row, :n] = example.ids[:-1]", "inputs[row, : n + 1] = example.ids[:time]"),
}
_, test_wrong_rows = rewritten_tests({"check_rows": ("rows", {}, ROWS)})


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
    """Another right answer: padding reads only itself."""
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


# ---- What the chapter shows


def test_stored_results():
    result = json.loads((ROOT / "data" / "results" / "ch20.json").read_text("utf-8"))
    config, rows = result["config"], result["rows"]
    short = [row for row in rows if row["experiment"] == "short"]
    for size in config["sizes"]:
        found = [row["seed"] for row in short if (row["stories"], row["rate"], row["way"]) == (size, 1e-3, "replies")]
        assert sorted(found) == config["seeds"] and len(found) >= 5
    for key in [(rate, "replies") for rate in config["rates"]] + [(1e-3, "all tokens"), (1e-3, "with stories")]:
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
