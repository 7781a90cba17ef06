"""Chapter 12: its checks accept the right answer and reject wrong ones by name; its stored results are its own."""

import json
import math

import numpy as np
import pytest
from chapters import ROOT, accepts, code_cells, rejects, rewritten_tests, run_tagged

from nanoeuler_book.checks import verdict
from nanoeuler_book.drills import breaks
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.model.optim import clip_factor
from nanoeuler_lib.text import data

NOTEBOOK = ("12_pretraining",)

WRONG_STEPS = {  # the book's version with one fragment replaced
    "counts to one and no further": (
        "    optimizer.step += 1\n",
        "    optimizer.step = max(1, optimizer.step)\n",
    ),
    "clipped by the mean": ("clip_factor(norm,", "clip_factor(norm / grads.flat.size,"),
    "loss after the step": ("return loss,", "return model.loss(tokens, targets),"),
    "matrices only": ("list(model.params)", "[n for n, p in model.params.items() if p.ndim == 2]"),
    "norm after clipping": ("return loss, norm,", "return loss, float(np.linalg.norm(grads.flat)),"),
    "clipped upwards, too": ("clip_factor(norm, optimizer.config.clip)", "optimizer.config.clip / norm"),
}
WRONG_FIRST_LOSSES = {
    "ln V alone": lambda V, D, sigma: math.log(V),
    "D forgotten": lambda V, D, sigma: math.log(V) + sigma**2 / 2,
}
WRONG_EXPOSURES = {
    "ties stand behind": lambda scores, secret: math.log2(scores.size) - math.log2(1 + np.sum(scores > scores[secret])),
    "the first axis alone": lambda scores, secret: math.log2(len(scores) / np.sum(scores >= scores[secret])),
    "surprise in place of rank": lambda scores, secret: math.log2(scores.size) + scores[secret] / math.log(2),
}


@pytest.fixture(scope="module")
def names():
    return run_tagged(NOTEBOOK[0], "setup")


_, test_wrong_steps = rewritten_tests({"check_step": ("take_step", {}, WRONG_STEPS)})
test_wrong_answers = rejects({"check_first_loss": WRONG_FIRST_LOSSES, "check_exposure": WRONG_EXPOSURES})


# ---- Other right answers


def step_by_parts(model, optimizer, tokens, targets):
    """Tensor by tensor."""
    loss, grads = model.loss_and_gradients(tokens, targets)
    norm = math.sqrt(sum(float(np.sum(g * g)) for g in grads.values()))
    optimizer.step += 1
    for name in model.params:
        optimizer.update(model.params, grads, [name], clip_factor(norm, optimizer.config.clip))
    return loss, norm, grads


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


def plateau_by_table(tokens, targets, sees):
    """Counts in a table."""
    view = {"nothing": 0 * tokens, "token": tokens, "position": np.indices(tokens.shape)[1]}[sees]
    table = np.zeros((view.max() + 1, targets.max() + 1))
    np.add.at(table, (view, targets), 1)
    share = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    return -np.mean(np.log(share[view, targets]))


def plateau_by_pairs(tokens, targets, sees):
    """Entropy of pairs less entropy of what is seen."""

    def entropy(columns):
        _, counts = np.unique(columns, axis=0, return_counts=True)
        return -np.sum(counts / counts.sum() * np.log(counts / counts.sum()))

    seen = {
        "nothing": np.zeros_like(tokens),
        "token": tokens,
        "position": tokens * 0 + np.arange(tokens.shape[1]),
    }
    view = seen[sees].ravel()
    return entropy(np.stack([view, targets.ravel()], 1)) - entropy(view[:, None])


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


def batch_test_by_text(batch):
    """The library's own tokens of words, each of them once."""
    ids = np.random.default_rng(3).permutation(90)
    place = np.argsort(ids)
    text = data.Tokens(ids, np.arange(0, 90, 5), np.ones(90, int))
    draws = [batch(text, np.random.default_rng(100 + i), 16, 11, 4) for i in range(24)]
    for x, y in draws:
        if x.shape != (16, 11) or y.shape != (16, 11, 4):
            return False
        at = place[x]
        if (np.diff(at) != 1).any() or (at[:, 0] % 5).any():
            return False
        if (place[np.minimum(y, 89)] != at[..., None] + np.arange(1, 5)).any() or y.max() > 89:
            return False
    return len({int(v) for x, _ in draws for v in place[x[:, 0]]}) == 16 and not np.array_equal(
        draws[0][0], draws[1][0]
    )


OTHERS = {
    "step": [step_by_parts, step_with_a_copy],
    "first_loss": [
        lambda V, D, sigma: math.log(V * math.exp(D * sigma * sigma / 2)),
        lambda V, D, sigma: np.log(V) + 0.5 * (math.sqrt(D) * sigma) ** 2,
    ],
    "plateau": [plateau_by_table, plateau_by_pairs],
    "batch_test": [batch_test_by_places, batch_test_by_text],
    "chance_exposure": [
        lambda n: np.log2(n) - math.lgamma(n + 1) / n / np.log(2),
        lambda n: (n * math.log(n) - math.lgamma(n + 1)) / (n * math.log(2)),
    ],
    "stop": [
        lambda valid, patience: min(
            ((i, int(np.argmin(valid[: i + 1]))) for i in range(len(valid))
             if i - int(np.argmin(valid[: i + 1])) >= patience or i == len(valid) - 1),
        ),
        lambda valid, patience: next(
            [i, valid.index(min(valid[: i + 1]))] for i in range(len(valid))
            if i + 1 == len(valid) or i - valid.index(min(valid[: i + 1])) >= patience
        ),
    ],
}  # fmt: skip
test_other_right_answers = accepts({f"check_{name}": answers for name, answers in OTHERS.items()})


def test_a_test_with_short_rows_is_told_what_it_asks(names):
    """Documents of six tokens and rows of five: the contract lets the library's rows begin anywhere."""

    def short(batch):
        text = data.Tokens(np.arange(60), np.arange(0, 60, 6), np.ones(60, int))
        x, y = batch(text, np.random.default_rng(0), 8, 5, 2)
        return bool((x[:, 0] % 6 == 0).all() and (y[..., 0] == x + 1).all())

    said = verdict(names["check_batch_test"], short)
    assert "the median document has 6 tokens, and the rows are shorter, 5" in said


# ---- The experiments


def test_the_worked_case_is_the_one_that_the_text_tells():
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
    for experiment in ("order", "ladder", "overfit", "canaries"):
        assert len({row["seed"] for row in result["rows"] if row["experiment"] == experiment}) >= 5
