"""Chapter 03: every check accepts a right answer and rejects wrong ones, each by the name of its mistake."""

import json

import numpy as np
import pytest
from chapters import ROOT, code_cells, run_tagged

CHAPTER = run_tagged("03_measuring_prediction", "setup")
cross_entropy, bits_per_byte = CHAPTER["book_cross_entropy"], CHAPTER["book_bits_per_byte"]


def next_probs(counts, context, strength, V, kinds=len, shorter=lambda rest: rest[1:], unseen=None):
    """The right answer as a recursion; each keyword changes one thing."""
    p = (
        np.full(V, 1 / V)
        if not context
        else next_probs(counts, shorter(context), strength, V, kinds, shorter, unseen)
    )
    followers = counts.get(context)
    if not followers:
        return p if unseen is None else np.full(V, unseen)
    rest = strength * kinds(followers)
    seen = np.array([followers.get(w, 0) for w in range(V)])
    return (seen + rest * p) / (seen.sum() + rest)


# check: (the right answer, {name of the mistake: wrong answer})
GAPS = {
    "check_cross_entropy": (
        cross_entropy,
        {
            "in nats": lambda q, p: cross_entropy(q, p) * np.log(2),
            "source and predictor exchanged": lambda q, p: cross_entropy(p, q + 1e-9),
            "the entropy of the source": lambda q, p: cross_entropy(q, q),
            "the divergence": lambda q, p: cross_entropy(q, p) - cross_entropy(q, q),
            "NaN where nothing happens": lambda q, p: np.sum(
                q * np.where(p > 0, -np.log2(p + (p == 0)), np.inf)
            ),
            "the mean over outcomes": lambda q, p: cross_entropy(q, p) / len(q),
        },
    ),
    "check_bits_per_byte": (
        bits_per_byte,
        {
            "nats": lambda nats, lengths: nats.sum() / lengths.sum(),
            "per token": lambda nats, lengths: nats.mean() / np.log(2),
            "ln 2 on the wrong side": lambda nats, lengths: nats.sum() * np.log(2) / lengths.sum(),
            "the end left out": lambda nats, lengths: nats[lengths > 0].sum() / np.log(2) / lengths.sum(),
            "the mean of ratios": lambda nats, lengths: np.mean(nats / np.maximum(lengths, 1)) / np.log(2),
            "infinite at the end": lambda nats, lengths: nats.sum() / lengths.sum() / np.min(lengths * 1.0),
        },
    ),
    "check_next_probs": (
        next_probs,
        {
            "the share alone": lambda *a: next_probs(*a, kinds=lambda followers: 0),
            "every context weighs one": lambda *a: next_probs(*a, kinds=lambda followers: 1),
            "weighed by how often": lambda *a: next_probs(*a, kinds=lambda followers: followers.total()),
            "the last token dropped": lambda *a: next_probs(*a, shorter=lambda context: context[:-1]),
            "unseen contexts are uniform": lambda *a: next_probs(*a, unseen=1 / 6),
            "unseen contexts are impossible": lambda *a: next_probs(*a, unseen=0.0),
            "the strength forgotten": lambda counts, context, strength, V: next_probs(counts, context, 1, V),
            "not normalised": lambda *a: next_probs(*a) * 1.01,
        },
    ),
}


def exercise_answers() -> dict:
    """For each exercise check, the right answer and the wrong ones of its solution cell."""
    answers, names = {}, dict(CHAPTER)
    for cell in code_cells("03_measuring_prediction"):
        tags = set(cell.metadata.get("tags", ()))
        if "check" in tags:
            check = cell.source.split("(")[0].removeprefix("def ")
        elif "solution" in tags and "wrong_answers" in cell.source:
            source = cell.source.split("\n\ndef try_answers")[0].split("\ntry_answers(")[0]
            exec(compile(source, "solution", "exec"), names)
            answers[check] = (names[check.removeprefix("check_")], names["wrong_answers"])
    return answers


ANSWERS = GAPS | exercise_answers()


def test_all_checks_are_tried():
    assert set(ANSWERS) == {name for name in CHAPTER if name.startswith("check_")}
    assert len(ANSWERS) == 7
    assert all(len(wrong) >= 3 for _, wrong in ANSWERS.values())


@pytest.mark.parametrize("check", ANSWERS)
def test_right_answer_passes(check):
    assert CHAPTER[check](ANSWERS[check][0]) == "right"


@pytest.mark.parametrize("book", ["cross_entropy", "bits_per_byte", "next_probs"])
def test_the_books_own_version_passes(book):
    assert CHAPTER[f"check_{book}"](CHAPTER[f"book_{book}"]) == "right"


@pytest.mark.parametrize(("check", "mistake"), [(c, m) for c, (_, wrong) in ANSWERS.items() for m in wrong])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_wrong_answer_is_rejected_with_a_sentence(check, mistake):
    with pytest.raises(AssertionError) as error:
        CHAPTER[check](ANSWERS[check][1][mistake])
    assert len(str(error.value).split()) >= 5


def test_untouched_gap_says_so():
    for name in CHAPTER:
        if name.startswith("my_"):
            assert CHAPTER[name.replace("my_", "check_", 1)](CHAPTER[name]) == "not written yet"


def test_ladder_rises_towards_the_floor():
    ladder = json.loads((ROOT / "data" / "results" / "ladder.json").read_text())
    bits = [row["bits_per_byte"] for row in ladder["rows"]]
    assert bits == sorted(bits, reverse=True) and bits[-1] > ladder["config"]["floor"]
    assert [row["name"] for row in ladder["rows"] if row.get("goal")] == ["full model"]
