"""Chapter 00: every check accepts a right answer and rejects wrong ones, each by the name of its mistake."""

import numpy as np
import pytest
from chapters import code_cells, run_tagged

CHAPTER = run_tagged("00_start_here", "setup", "gap", "check")


def lost_repeats(dx, saved):
    tokens, shape = saved
    grad = np.zeros(shape)
    grad[tokens] += dx
    return grad


def averaged_repeats(dx, saved):
    tokens, shape = saved
    count = np.maximum(np.bincount(tokens.ravel(), minlength=shape[0]), 1)
    return CHAPTER["embed_backward"](dx, saved) / count[:, None]


def frequencies(train, valid, ones=1, log=np.log2, mean=np.mean):
    counts = np.bincount(list(train), minlength=256) + ones
    return mean(-log((counts / counts.sum())[list(valid)]))


embed_forward, embed_backward = CHAPTER["embed_forward"], CHAPTER["embed_backward"]

# check: (the right answer, {name of the mistake: wrong answer})
GAPS = {
    "check_surprise": (
        CHAPTER["surprise"],
        {
            "the sign forgotten": np.log2,
            "in nats": lambda p: -np.log(p),
            "one over p": lambda p: 1 / p - 1,
            "the chance of being wrong": lambda p: 2 * (1 - p),
            "not for arrays": lambda p: float(-np.log2(np.ravel(p)[0])),
        },
    ),
    "check_frequency_bits": (
        CHAPTER["frequency_bits"],
        {
            "counts from the text that is scored": lambda train, valid: frequencies(valid, valid),
            "nothing added": lambda train, valid: frequencies(train, valid, ones=1e-9),
            "in nats": lambda train, valid: frequencies(train, valid, log=np.log),
            "the sum, not the mean": lambda train, valid: frequencies(train, valid, mean=np.sum),
            "every letter counted once": lambda train, valid: frequencies(train, sorted(set(valid))),
        },
    ),
    "check_embed_forward": (
        embed_forward,
        {
            "columns for rows": lambda tokens, table: (table.T[tokens % 3], (tokens, table.shape)),
            "the first rows": lambda tokens, table: (
                np.broadcast_to(table[: tokens.shape[1]], (*tokens.shape, 3)),
                (tokens, table.shape),
            ),
            "the shape of x saved": lambda tokens, table: (table[tokens], (tokens, table[tokens].shape)),
            "off by one": lambda tokens, table: (table[tokens - 1], (tokens, table.shape)),
        },
    ),
    "check_embed_backward": (
        embed_backward,
        {
            "repeats lost": lost_repeats,
            "repeats averaged": averaged_repeats,
            "divided by the number of positions": lambda dx, saved: embed_backward(dx, saved) / saved[0].size,
            "the first text only": lambda dx, saved: embed_backward(dx[:1], (saved[0][:1], saved[1])),
            "of the wrong shape": lambda dx, saved: embed_backward(dx, saved).T,
        },
    ),
}


def exercise_answers() -> dict:
    """For each exercise check, the right answer and the wrong ones of its solution cell."""
    answers, names = {}, dict(CHAPTER)
    for cell in code_cells("00_start_here"):
        tags = set(cell.metadata.get("tags", ()))
        if "check" in tags:
            check = cell.source.split("(")[0].removeprefix("def ")
        elif "solution" in tags and "wrong_answers" in cell.source:
            source = cell.source.split("\nprint(")[0]  # what follows runs the same answers in the notebook
            exec(compile(source, "solution", "exec"), names)
            answers[check] = (names[check.removeprefix("check_")], names["wrong_answers"])
    return answers


ANSWERS = GAPS | exercise_answers()


def test_all_checks_are_tried():
    assert set(ANSWERS) == {name for name in CHAPTER if name.startswith("check_")}
    assert len(ANSWERS) == 9
    assert all(len(wrong) >= 3 for _, wrong in ANSWERS.values())


@pytest.mark.parametrize("check", ANSWERS)
def test_right_answer_passes(check):
    assert CHAPTER[check](ANSWERS[check][0]) == "right"


@pytest.mark.parametrize(("check", "mistake"), [(c, m) for c, (_, wrong) in ANSWERS.items() for m in wrong])
def test_wrong_answer_is_rejected_with_a_sentence(check, mistake):
    with pytest.raises(AssertionError) as error:
        CHAPTER[check](ANSWERS[check][1][mistake])
    assert len(str(error.value).split()) >= 5


def test_untouched_gap_says_so():
    for name in CHAPTER:
        if name.startswith("my_"):
            assert CHAPTER[name.replace("my_", "check_", 1)](CHAPTER[name]) == "not written yet"


def test_bridges_are_those_of_the_world():
    from nanoeuler_lib.world import town

    assert CHAPTER["BRIDGES"] == {name: tuple(map(str, shores)) for name, shores in town.SPAN.items()}


def test_pictures_in_the_pages_come_from_the_notebook():
    from tools import pictures

    assert pictures.stale() == []
