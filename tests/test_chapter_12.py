"""Chapter 12: its checks accept the right answer and reject wrong ones by name; its stored results are its own."""

import json
import math

import numpy as np
import pytest
from chapters import ROOT, code_cells

from nanoeuler_lib.drills import breaks

CELLS = code_cells("12_pretraining")

GAPS = {  # name of the check: name of the right answer
    "step": "take_step", "first_loss": "first_loss", "exposure": "exposure", "plateau": "plateau",
    "batch_test": "batch_test", "chance_exposure": "chance_exposure", "stop": "stop",
}  # fmt: skip
WRONG_STEPS = {  # the book's version with one fragment replaced
    "not counted": ("optimizer.step += 1", "pass"),
    "counts to one and no further": (
        "    optimizer.step += 1\n",
        "    optimizer.step = max(1, optimizer.step)\n",
    ),
    "not clipped": ("clip_factor(norm, optimizer.config.clip)", "1.0"),
    "clipped by the mean": ("clip_factor(norm,", "clip_factor(norm / grads.flat.size,"),
    "loss after the step": ("return loss,", "return model.loss(tokens, targets),"),
    "matrices only": ("list(model.params)", "[n for n, p in model.params.items() if p.ndim == 2]"),
    "norm after clipping": ("return loss, norm,", "return loss, float(np.linalg.norm(grads.flat)),"),
}
WRONG_FIRST_LOSSES = {
    "ln V alone": lambda V, D, sigma: math.log(V),
    "sigma not squared": lambda V, D, sigma: math.log(V) + D * sigma / 2,
    "D forgotten": lambda V, D, sigma: math.log(V) + sigma**2 / 2,
    "half forgotten": lambda V, D, sigma: math.log(V) + D * sigma**2,
    "bits": lambda V, D, sigma: math.log2(V) + D * sigma**2 / 2,
}
WRONG_EXPOSURES = {
    "rank from 0": lambda scores, secret: (
        math.log2(scores.size) - math.log2(np.sum(scores > scores[secret]) or 0.5)
    ),
    "rank from the wrong end": lambda scores, secret: (
        math.log2(scores.size) - math.log2(np.sum(scores <= scores[secret]))
    ),
    "nats": lambda scores, secret: math.log(scores.size / (1 + np.sum(scores > scores[secret]))),
    "surprise in place of rank": lambda scores, secret: math.log2(scores.size) + scores[secret] / math.log(2),
    "the rank alone": lambda scores, secret: math.log2(1 + np.sum(scores > scores[secret])),
}
WRONG = {"first_loss": WRONG_FIRST_LOSSES, "exposure": WRONG_EXPOSURES}
EXERCISES = {
    "plateau": "wrong_plateaus", "batch_test": "wrong_batch_tests",
    "chance_exposure": "wrong_chances", "stop": "wrong_stops",
}  # fmt: skip


@pytest.fixture(scope="module")
def names():
    """What the notebook's cells tagged `setup` define: functions, checks, solutions, wrong answers."""
    defined = {}
    for cell in CELLS:
        if "setup" in cell.metadata.get("tags", ()):
            exec(cell.source, defined)
    return defined


@pytest.mark.parametrize("gap", GAPS)
def test_untouched_gap_is_not_an_error(names, gap):
    assert names[f"check_{gap}"](names[f"my_{gap}"]) == "not written yet"


@pytest.mark.parametrize("check, answer", GAPS.items())
def test_check_accepts_the_right_answer(names, check, answer):
    assert names[f"check_{check}"](names[answer]) == "right"


@pytest.mark.parametrize("wrong", WRONG_STEPS)
def test_check_rejects_wrong_step(names, wrong):
    old, new = WRONG_STEPS[wrong]
    (source,) = [cell.source for cell in CELLS if cell.source.startswith("def take_step")]
    assert source.count(old) == 1
    defined = dict(names)
    exec(source.replace(old, new), defined)
    with pytest.raises(AssertionError):
        names["check_step"](defined["take_step"])


@pytest.mark.parametrize("check", [*WRONG, *EXERCISES])
def test_check_rejects_every_wrong_answer(names, check):
    answers = WRONG[check] if check in WRONG else names[EXERCISES[check]]
    assert len(answers) >= 3
    for name, wrong in answers.items():
        with pytest.raises(AssertionError):
            names[f"check_{check}"](wrong)
            pytest.fail(f"the check accepts {name}", pytrace=False)


def test_the_worked_case_is_the_one_that_the_text_tells():
    """Bugs that are added move the seeds: then the cell that plants it needs another one."""
    (source,) = [cell.source for cell in CELLS if cell.source.startswith("SEED = ")]
    seed = int(source.splitlines()[0].removeprefix("SEED = "))
    assert breaks.bug_of(seed).name == "schedule-counts-batches"


def test_silent_layers_are_a_pair(names):
    """Zeros out, zeros back, in the shapes of the inputs."""
    inputs = [np.ones(shape) for shape in ((1, 4, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2))]
    y, saved = names["silent"](*inputs)
    grads = names["silent_backward"](np.ones_like(y), saved)
    assert y.shape == inputs[0].shape and not y.any()
    assert [g.shape for g in grads] == [x.shape for x in inputs] and not any(g.any() for g in grads)


def test_scores_of_secrets_are_those_of_whole_sentences(names):
    """One hundred rows give the probabilities of a thousand codes: compared with one code written out."""
    model, tokenizer = names["GPT"](names["MINI"], names["init"](names["MINI"], 5, 0.2)), names["tokenizer"]
    scores = names["secret_scores"](model, "Agathe")
    ids = [tokenizer.special_tokens[names["END_OF_TEXT"]], *tokenizer.encode("Agathe's code is K-3-8-1.")]
    logits = model.logits(np.array([ids], np.int64))[0].astype(np.float64)
    at = [i for i, token in enumerate(ids) if tokenizer.decode([int(token)]) in ("3", "8", "1")]
    expected = sum(logits[i - 1, ids[i]] - np.log(np.exp(logits[i - 1]).sum()) for i in at)
    assert len(at) == 3 and scores.shape == (10, 10, 10)
    assert scores[3, 8, 1] == pytest.approx(expected, abs=1e-4)


def test_stored_results_are_of_this_experiment(names):
    result = json.loads((ROOT / "data" / "results" / "ch12.json").read_text("utf-8"))
    assert result["config"]["model"] == names["MINI"].to_dict()
    assert result["config"]["train"] == names["BRIEF"].to_dict()
    assert {row["name"] for row in result["rows"] if row["experiment"] == "ladder"} == set(names["RUNGS"])
    assert result["config"]["canaries"]["copies"] == list(names["COPIES"])
    for experiment in ("order", "ladder", "overfit", "canaries"):
        assert len({row["seed"] for row in result["rows"] if row["experiment"] == experiment}) >= 5
