"""Chapter 12: its checks accept the right answer and reject wrong ones by name; its stored results are its own."""

import json
import math

import numpy as np
import pytest
from chapters import ROOT, accepts, code_cells, rejects, rewritten_tests, run_tagged

from nanoeuler_book.drills import breaks
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.model.optim import clip_factor
from nanoeuler_lib.text import data

NOTEBOOK = ("12_pretraining",)

WRONG_STEPS = {  # the book's version with one fragment replaced
    "counts to one and no further": ("    optimizer.step += 1\n", "    optimizer.step = max(1, optimizer.step)\n"),
    "clipped by the mean": ("clip_factor(norm,", "clip_factor(norm / grads.flat.size,"),
    "loss after the step": ("return loss,", "return model.loss(tokens, targets),"),
    "norm after clipping": ("return loss, norm,", "return loss, float(np.linalg.norm(grads.flat)),"),
    "clipped upwards, too": ("clip_factor(norm, optimizer.config.clip)", "optimizer.config.clip / norm"),
}
WRONG_FIRST_LOSSES = {"D forgotten": lambda V, D, sigma: math.log(V) + sigma**2 / 2}
WRONG_EXPOSURES = {
    "ties come after it": lambda scores, secret: (
        math.log2(scores.size) - math.log2(1 + np.sum(scores > scores[secret]))
    ),
    "the first axis only": lambda scores, secret: math.log2(len(scores) / np.sum(scores >= scores[secret])),
}


@pytest.fixture(scope="module")
def names():
    return run_tagged(NOTEBOOK[0], "setup")


_, test_wrong_steps = rewritten_tests({"check_step": ("take_step", {}, WRONG_STEPS)})
test_wrong_answers = rejects({"check_first_loss": WRONG_FIRST_LOSSES, "check_exposure": WRONG_EXPOSURES})


# ---- Other right answers


def step_with_a_copy(model, optimizer, tokens, targets):
    """Gradients as they were before they were clipped."""
    loss, grads = model.loss_and_gradients(tokens, targets)
    kept = type(grads)(model.config, grads.flat.dtype)
    kept.flat[...] = grads.flat
    norm = np.sqrt(np.vdot(grads.flat, grads.flat))
    optimizer.step = optimizer.step + 1
    names = sorted(model.params)
    optimizer.update(model.params, grads, names, clip_factor(float(norm), optimizer.config.clip))
    return [loss, norm, kept]


def batch_test_by_places(batch):
    """A text whose ids are even numbers, documents of several lengths, more draws."""
    lengths = np.array([4, 3, 6, 5, 4, 3, 7, 4, 5, 4])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    text = data.Tokens(2 * np.arange(lengths.sum()), starts, np.ones(2 * lengths.sum(), int))
    begun, seen = set(), set()
    for seed in range(40):
        x, y = batch(text, np.random.default_rng(seed), 6, 7, 2)
        if x.shape != (6, 7) or y.shape != (6, 7, 2) or (y % 2).any():
            return False
        for row, wants in zip(x // 2, y // 2, strict=True):
            if (np.diff(row) != 1).any() or not all(np.array_equal(wants[:, k], row + 1 + k) for k in range(2)):
                return False
            begun.add(int(row[0]))
        seen.add(x.tobytes())
    return begun == {int(s) for s in starts if s + 9 <= lengths.sum()} and len(seen) > 20


def batch_test_with_the_last_document(batch):
    """The median of all documents, with the last one: rows of 7 tokens would be long enough."""
    text = data.Tokens(np.arange(26), np.array([0, 9, 18, 22]), np.ones(26, int))  # of 9, 9, 4 and 4 tokens
    draws = [batch(text, np.random.default_rng(seed), 8, 7, 2) for seed in range(20)]
    return batch_test_by_places(batch) and {int(x) for inputs, _ in draws for x in inputs[:, 0]} == {0, 9}


def test_a_wrong_median_is_named(names):
    with pytest.raises(AssertionError, match=r"rows of 7 tokens anywhere here, because np.median.* is 9"):
        names["check_batch_test"](batch_test_with_the_last_document)


test_other_right_answers = accepts(
    {
        "check_step": [step_with_a_copy],
        "check_first_loss": [lambda V, D, sigma: np.log(V) + 0.5 * (math.sqrt(D) * sigma) ** 2],
        "check_batch_test": [batch_test_by_places],
    }
)


# ---- The experiments


def test_the_worked_case_is_the_one_in_the_text():
    """Bugs that are added move the seeds: then the cell that plants it needs another one."""
    (source,) = [cell.source for cell in code_cells(NOTEBOOK[0]) if cell.source.startswith("SEED = ")]
    seed = int(source.splitlines()[0].removeprefix("SEED = "))
    assert breaks.bug_of(seed).name == "schedule-counts-batches"


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
    assert ModelConfig.from_dict(result["config"]["model"]) == names["MINI"]
    # older than these names; no story is longer than a row
    older = {"optimizer": "adamw", "cut_documents": True, "keep_every": 0}
    assert older | result["config"]["train"] == names["BRIEF"].to_dict()
    assert {row["name"] for row in result["rows"] if row["experiment"] == "ladder"} == set(names["RUNGS"])
    assert result["config"]["canaries"]["copies"] == list(names["COPIES"])
    clipping = json.loads((ROOT / "data" / "results" / "ch12_clipping.json").read_text("utf-8"))
    assert clipping["config"]["train"] == names["BRIEF"].to_dict() and len(clipping["rows"]) == 4 * 5
    for experiment in ("order", "ladder", "overfit", "canaries"):
        assert len({row["seed"] for row in result["rows"] if row["experiment"] == experiment}) >= 5
