"""The answer key: what is known to be right scores what it must, and nothing else gets a number."""

import json
from unittest.mock import patch

import numpy as np
import pytest
from oracles import error_of

from nanoeuler_book.interpretability import answers
from nanoeuler_book.interpretability.answers import score
from nanoeuler_book.interpretability.posteriors import FACTS, belief
from nanoeuler_lib.command import cli
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT
from nanoeuler_lib.training.checkpoint import load_pretrained

MODEL, TOKENIZER = load_pretrained()
RNG = np.random.default_rng(1)


@pytest.fixture(scope="module")
def key():
    holder = lambda text: belief(text, TOKENIZER, FACTS["holder"]).beliefs
    return answers.make(MODEL, TOKENIZER, count=6, seed=3, posterior=holder)


def test_the_twin_scores_one_and_nothing_done_scores_nothing(key):
    patch = score(key, 0, lambda x: x.twin)
    assert patch["closed"] == pytest.approx(1, abs=1e-5) and patch["bits"] == pytest.approx(patch["best"], abs=1e-5)

    def spoil(x):
        x.twin[:] = 0
        return x.stream

    nothing = score(key, 1, spoil)
    assert np.abs(key.held.twin[1]).min(axis=1).max() > 0  # what an edit is given is its own
    assert nothing["closed"] == pytest.approx(0, abs=1e-5) and nothing["bits"] == pytest.approx(nothing["unedited"])
    assert nothing["by_fact"] == pytest.approx(key.held.unedited[1].mean(), abs=1e-5)
    assert 0 < patch["best"] < 0.1 < patch["unedited"] - 0.1
    assert score(key, 4, lambda x: x.twin)["closed"] == pytest.approx(0, abs=1e-5)  # no attention above reads it


def test_the_chapters_methods_are_ordered_as_they_must_be(key):
    rows = [row for row in answers.rows(key._replace(subspace=key.subspace[:2])) if row["depth"]]
    found, new, old = ({row["method"]: row[what] for row in rows} for what in ("closed", "new", "old"))
    assert found["patch"] > 0.97 and found["causal subspace"] > found["all but it"] + 0.5
    assert found["probe, strong penalty"] > found["probe, weak penalty"] and found["random, as far"] < 0.5
    assert new["patch"] > 0.5 > 0.1 > old["patch"] and old["all but it"] > 0.5 > 0.1 > new["all but it"]
    assert max(new["old name erased"], old["old name erased"]) < 0.5 and found["old name erased"] > 0.2  # only erases


def test_subspaces_and_readings_have_their_bounds(key):
    assert score(key, 1, basis=key.subspace[1] @ RNG.normal(size=(6, 6)))["inside"] == pytest.approx(1)
    by_luck = [score(key, 1, basis=np.linalg.qr(RNG.normal(size=(128, 6)))[0]) for _ in range(40)]
    assert np.mean([luck["inside"] for luck in by_luck]) == pytest.approx(by_luck[0]["by_chance"], abs=0.02)
    part = key.held
    assert np.allclose(part.posterior.sum(axis=1), 1) and part.places.shape[1] == len(part.posterior) == 48
    assert score(key, 2, read=lambda x: part.posterior)["posterior"] == pytest.approx(0, abs=1e-12)
    prior = key.learn.posterior.mean(axis=0)
    read = score(key, 2, read=lambda x: np.tile(prior, (len(x), 1)))
    assert read["posterior"] == pytest.approx(read["prior"]) and read["prior"] > 0.3


def test_no_story_stands_on_both_sides(key, monkeypatch):
    drawn = answers.pairs  # seeds 3 and 4 draw the same stories
    monkeypatch.setattr(answers, "pairs", lambda count, seed, *rest: drawn(count, max(seed, 4), *rest))
    parts = answers.make(MODEL, TOKENIZER, count=2, seed=3)[2:4]
    assert not {tuple(row[:20]) for row in parts[0].batch.story} & {tuple(row[:20]) for row in parts[1].batch.story}
    stories = [
        {TOKENIZER.decode(row[1 : cut + 1]) for row, cut in zip(part.batch.story, part.batch.cut)}
        for part in (key.learn, key.held)
    ]
    assert all(len(part) == 6 for part in stories) and not stories[0] & stories[1]
    part = key.held
    for who, rows in ((part.was, part.batch.story), (part.becomes, part.batch.twin)):
        told = [TOKENIZER.decode([row[at]]) for row, at in zip(rows, part.batch.place)]
        assert told == [f" {key.names[i]}" for i in who]


def test_a_probe_of_a_strong_penalty_reads_along_the_names_means(key):
    part, W = key.learn, answers.probe_of(key, 1, 1e9)
    x = np.concatenate([part.stream[1], part.twin[1]]).astype(float)
    who = np.append(part.was, part.becomes)
    one, other = np.flatnonzero(np.bincount(who) > 1)[:2]
    share = np.bincount(who) / len(who)
    pull = [share[i] * (x[who == i].mean(axis=0) - x.mean(axis=0)) / (x.std(axis=0) + 1e-6) ** 2 for i in (one, other)]
    found = W[:, [one, other]] / np.linalg.norm(W[:, one])
    assert np.allclose(found.T, np.array(pull) / np.linalg.norm(pull[0]), atol=1e-6)


def test_a_key_is_read_back_as_it_was_and_only_for_its_model(key, tmp_path):
    with patch.object(answers, "write_text", side_effect=OSError(28, "No space left on device")):
        assert "key: cannot be written (No space" in error_of(answers.save, key, tmp_path / "key", TOKENIZER)
    assert not [*tmp_path.iterdir()]
    answers.save(key, tmp_path / "key", TOKENIZER, {"seed": 3})
    again = answers.load(tmp_path / "key", MODEL)
    for depth in (0, 1):
        assert score(again, depth, lambda x: x.twin) == score(key, depth, lambda x: x.twin)
        assert score(again, depth, basis=key.subspace[depth], read=lambda x: key.held.posterior)["inside"] > 1 - 1e-6
    head = json.loads((tmp_path / "key" / "answers.json").read_text("utf-8"))
    assert head["seed"] == 3 and [len(head["texts"][part]) for part in ("learn", "held")] == [6, 6]
    with pytest.raises(NanoEulerError, match=r"model must be .*, got "):
        answers.load(tmp_path / "key", GPT(MODEL.config, seed=1))
    arrays = tmp_path / "key" / "answers.npz"
    arrays.write_bytes(arrays.read_bytes()[:-2000])
    with pytest.raises(NanoEulerError, match=r"SHA-256 of answers\.npz must be"):
        answers.load(tmp_path / "key", MODEL)
    with pytest.raises(NanoEulerError, match=r"cannot read answers\.json and answers\.npz"):
        answers.load(tmp_path / "other", MODEL)


WRONG = [  # what is scored, what is said
    (dict(depth=5, edit=lambda x: x.twin), "depth must be 0 to 4, got 5"),
    (dict(depth=4, basis=np.eye(128)), "depth must be 0 to 3, got 4"),
    (dict(depth=1, edit=lambda x: x.twin[:, 1:]), r"edit must give finite numbers \[6, 128\], got float32 \[6, 127\]"),
    (dict(depth=1, edit=lambda x: x.twin * float("nan")), r"edit must give finite numbers \[6, 128\], got float32"),
    (dict(depth=1, basis=np.ones(128)), r"basis must be \[128, k\], got \[128\]"),
    (
        dict(depth=1, read=lambda x: np.ones((48, 1))),
        r"read must give finite numbers \[48, 13\], got float64 \[48, 1\]",
    ),
]


@pytest.mark.parametrize("given, said", WRONG)
def test_wrong_results_get_one_line_and_no_number(given, said, key):
    with pytest.raises(NanoEulerError, match=said):
        score(key, **given)


def test_a_key_without_posteriors_and_a_model_without_room_are_refused(key):
    bare = key._replace(held=key.held._replace(posterior=np.zeros((48, 0))))
    with pytest.raises(NanoEulerError, match="the key must have posteriors"):
        score(bare, depth=1, read=lambda x: x)
    small = GPT(ModelConfig(dim=16, heads=2, kv_heads=1, layers=1, context=64, vocab_size=512, predict=1))
    with pytest.raises(NanoEulerError, match="must be a GPT with a context of at least 128 tokens"):
        answers.make(small, TOKENIZER)


def test_the_command_writes_a_key_and_refuses_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["answers", "--out", "key", "--pairs", "2", "--told", "2", "--seed", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["pairs"], told["told"], told["seed"]) == (2, 2, 4) and len(told["rows"]) == 28
    found = answers.load(tmp_path / "key", MODEL)
    row = next(row for row in told["rows"] if row["method"] == "patch" and row["depth"] == 1)
    assert row["closed"] == score(found, 1, lambda x: x.twin)["closed"] and found.held.posterior.shape == (16, 13)
    for words, expected in (
        ("--out key", "key: already exists: choose a new name"),
        ("--out new --pairs 1", "the number of pairs must be 2 to 500, got 1"),
        ("--out new --told 3", "told must be 1 or 2, the number of steps in the prompts, got 3"),
        ("--out new --seed -1", "--seed must be 0 or more, got -1"),
        ("--out new --run none", "none: no such folder, expected a checkpoint or a run folder"),
    ):
        assert cli.main(["answers", *words.split()]) == 2
        assert capsys.readouterr().err == f"nanoeuler: {expected}\n"
