"""Test learning from rewards: sampled answers, exact gradients, whole commands, and refusals in one line."""

import math
import signal
import sys
from contextlib import contextmanager
from functools import cache, partial
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
from oracles import assert_same_run, close, error_of, random_parameters

import konigsberg
from konigsberg import tasks
from nanoeuler_lib.command import cli
from nanoeuler_lib.config import ModelConfig, RewardConfig, TrainConfig
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT, batch_decoder
from nanoeuler_lib.model import step as step_module
from nanoeuler_lib.model.gradcheck import numeric_gradient
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.model.step import Step
from nanoeuler_lib.text.tokenizer import END_OF_TEXT
from nanoeuler_lib.training import checkpoint, loop, rewards, run_folder, train
from nanoeuler_lib.training.rewards import Answers

ODD = ModelConfig(dim=6, heads=3, kv_heads=1, layers=2, context=14, vocab_size=7, predict=2, ffn=5)
WIDE = ModelConfig(dim=24, heads=6, kv_heads=3, layers=3, context=40, vocab_size=11, predict=2)
QUESTIONS, END = [[3], [1, 5, 2, 2], [6, 0]], 4


def model_of(config, seed=0, dtype=np.float64):
    return GPT(config, random_parameters(config, seed, dtype=dtype))


def drawn_answers(config):
    """Return a model, and answers sampled by a similar model, with random rewards."""
    rng, model, reference = np.random.default_rng(0), model_of(ODD), model_of(ODD, 7)
    old = model_of(ODD)
    old.params.flat[...] += 0.05 * rng.standard_normal(old.size)
    draws = rng.random((6, 3 * config.group))
    drawn = batch_decoder.sample_rows(old, QUESTIONS, config.group, END, draws)
    paid = rng.random(len(drawn)).round(1)
    return model, Answers(QUESTIONS, drawn, paid, ODD, config, reference if config.kl else None)


# The decoder of many rows.


def test_rows():
    """Compare logits with those of each row by itself: forced tokens, prompts of three lengths, dropped rows."""
    rng = np.random.default_rng(1)
    model, prompts = model_of(WIDE), [rng.integers(11, size=n) for n in (1, 12, 5)]
    tokens, decoder = rng.integers(11, size=(9, 9)), batch_decoder.BatchDecoder(model, prompts, 3, 9)
    for step in range(9):
        for row, z in zip(decoder.rows, decoder.logits(), strict=True):
            alone = np.concatenate([prompts[row // 3], tokens[row, :step]])
            close(z, model.logits(alone[None])[0, -1], 1e-12, f"row {row}, step {step}")
        keep = np.ones(len(decoder.rows), bool)
        keep[[0, -1][step % 2]] = step in (0, 4)  # drops the first and the last row alternately
        decoder.keep(keep)
        decoder.feed(tokens[decoder.rows, step])


def test_drawn():
    """Check that samples have the model's frequencies, end at the marker, and record their log-probabilities."""
    shape, n = ModelConfig(**WIDE.to_dict() | {"vocab_size": 5}), 4000
    model = GPT(shape, random_parameters(shape, 3, 0.2))
    found = batch_decoder.sample_rows(model, [[2, 1]], n, END, np.random.default_rng(0).random((3, n)))
    assert {len(s.ids) for s in found} == {1, 2, 3} and any(s.ended for s in found if len(s.ids) == 3)
    for s in found[:60]:
        ids = np.array([2, 1, *s.ids])
        close(s.logps, -model.losses(ids[None, :-1], ids[None, 1:])[0, 1:], 1e-12, "log-probability")
        assert s.ended == (s.ids[-1] == END) and END not in s.ids[:-1]
    for at, prefix in ((0, ()), (1, (1,))):
        rows = [s.ids[at] for s in found if len(s.ids) > at and tuple(s.ids[:at]) == prefix]
        z = model.logits(np.array([[2, 1, *prefix]]))[0, -1]
        expected = np.exp(z) / np.exp(z).sum()
        apart = np.bincount(rows, minlength=5) / len(rows) - expected
        assert (np.abs(apart) < 4.5 * np.sqrt(expected / len(rows))).all(), apart


def test_full_rows_are_refused():
    decoder = batch_decoder.BatchDecoder(model_of(ODD), [[1, 2]], 2, 1)
    decoder.feed(np.array([0, 1]))
    assert error_of(decoder.feed, np.array([0, 1])) == "rows must have at most 1 tokens after the prompt, got 2"
    assert "must be 1 to 8 (6 of " in error_of(batch_decoder.BatchDecoder, model_of(ODD), [[1] * 9], 1, 6)


# Advantages, distances, the clipped objective.


def test_advantages():
    """Compare with loops, for rewards of several sizes; a group of equal rewards gets 0."""
    paid = np.random.default_rng(0).random((5, 4)) * [[1], [100], [1e-3], [1], [0]] + [[0], [0], [0], [-7], [0.1]]
    for own, std in product((False, True), repeat=2):
        for group, row in zip(paid.tolist(), rewards.advantages(paid, own, std), strict=True):
            mean = sum(group) / 4
            spread = math.sqrt(sum((x - mean) ** 2 for x in group) / 4)
            for i, r in enumerate(group):
                others = group if own else group[:i] + group[i + 1 :]
                expected = r - sum(others) / len(others)
                expected = expected / spread if std and spread > 1e-12 else expected
                assert abs(row[i] - expected) <= 1e-12 * max(1, abs(expected)), (own, std, i)
    assert (rewards.advantages(np.full((1, 3), 0.1), False, True) == 0).all()


def test_k3_of_a_small_distance_does_not_cancel():
    tiny = rewards.kl_terms(np.array([-1.0]), np.array([-1.0 - 1e-9]), "k3")[0]
    assert tiny == pytest.approx(5e-19, rel=1e-6, abs=0)


CONFIGS = {
    "plain": RewardConfig(group=3, answer_tokens=6),
    "k3": RewardConfig(group=3, answer_tokens=6, kl=0.3, kl_by="k3"),
    "k2": RewardConfig(group=3, answer_tokens=6, clip_ratio=0.1, kl=0.2, kl_by="k2"),
    "in the reward": RewardConfig(group=3, answer_tokens=6, kl=0.5),
    "not clipped": RewardConfig(group=3, answer_tokens=6, clip_ratio=0.0),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_gradient(name):
    """Compare loss and gradient with loops over the sampled answers; the figure is minus the reward before a step."""
    config = CONFIGS[name]
    model, answers = drawn_answers(config)
    figures, grads = model.weighted_gradients(answers.inputs, answers.targets, answers.weigh)
    assert (0 < figures[3] < 1) == (config.clip_ratio > 0), "some are clipped"
    loss = lambda: expected_loss(config, answers, -model.losses(answers.inputs, answers.targets[..., 0]))
    old, paid = np.where(answers.counted, answers.old, 0), answers.rewards.mean()
    if in_reward := config.kl and config.kl_by == "reward":
        paid -= config.kl * np.where(answers.counted, answers.old - answers.reference, 0).sum(axis=1).mean()
    plain = config if in_reward else RewardConfig(**config.to_dict() | {"kl": 0.0})
    close(figures[0], loss() - expected_loss(plain, answers, old) - paid, 1e-12, "loss")
    size = 1e-6 * np.abs(grads.flat).max() + 1e-11
    for i in np.random.default_rng(0).permutation(model.size)[:60]:
        found = numeric_gradient(loss, model.params.flat[i : i + 1], 3e-4)[0]
        assert abs(found - grads.flat[i]) <= size, i


def expected_loss(config, answers, logps):
    """Return minus the clipped objective plus beta times the distance, by loops over answers and tokens."""
    total, groups = 0.0, len(answers.rewards) // config.group
    paid = answers.rewards.copy()
    for row, s in enumerate(answers.drawn):
        where = np.flatnonzero(answers.counted[row])
        assert len(where) == len(s.ids) and (answers.targets[row, where, 0] == s.ids).all()
        if config.kl and config.kl_by == "reward":
            paid[row] -= config.kl * sum(s.logps[i] - answers.reference[row, t] for i, t in enumerate(where))
    paid = paid.reshape(groups, -1)
    for row, s in enumerate(answers.drawn):
        group = paid[row // config.group].tolist()
        others = [x for i, x in enumerate(group) if i != row % config.group]
        advantage = group[row % config.group] - sum(others) / len(others)
        now = logps[row, np.flatnonzero(answers.counted[row])]
        ratios, edge = np.exp(now - s.logps), config.clip_ratio
        held = np.clip(ratios, 1 - edge, 1 + edge) if edge else ratios
        parts = np.minimum(ratios * advantage, held * advantage)
        total -= parts.sum()
        if config.kl and config.kl_by != "reward":
            d = now - answers.reference[row, np.flatnonzero(answers.counted[row])]
            total += config.kl * (d**2 / 2 if config.kl_by == "k2" else np.exp(-d) - 1 + d).sum()
    return total / len(answers.drawn)


def test_splits():
    for config in CONFIGS.values():
        model, answers = drawn_answers(config)
        whole, grads = model.weighted_gradients(answers.inputs, answers.targets, answers.weigh)
        train = TrainConfig(batch=9)
        for micro, workers in ((14, 1), (14, 2), (42, 3), (200, 1)):
            with patch.object(step_module, "MICRO_TOKENS", micro), one_blas_thread():
                with Step(model, AdamW(ODD, train, np.float64), train, 9, workers) as step:
                    figures = step.gradient(answers.inputs, answers.targets, answers.weigh)
                    total = sum(part.flat for part in step.grads)
            close(figures, whole, 1e-12, "figures")
            close(total, grads.flat, 1e-12, f"{micro} tokens, {workers} workers")
        equal = np.ptp(answers.rewards.reshape(-1, config.group), axis=1) == 0
        assert figures[-1] == pytest.approx(equal.mean()) and rewards.FIGURES[-1] == "frac_reward_zero_std"


# Runs.


@cache
def base():
    """Return a small untrained model with markers, and its tokenizer."""
    tokenizer = checkpoint.load(checkpoint.PRETRAINED / "konigsberg-chat").tokenizer
    shape = ModelConfig(dim=8, heads=2, kv_heads=1, layers=1, context=96, vocab_size=514, predict=2, ffn=8)
    return GPT(shape, random_parameters(shape, 0, 0.5, np.float32)), tokenizer


SETTINGS = TrainConfig(steps=8, batch=8, warmup=2, valid_every=4, sample_every=4, save_every=2, rate=3e-3)


def short_reward(problem, answer):
    return float(len(answer) % 3 == 0)


@pytest.mark.parametrize("kl", [0.0, 0.4])
def test_answers_serve_several_steps_and_the_base_stays(tmp_path, kl):
    """Check that answers are sampled at every second step, where no ratio is clipped, and the run's reference."""
    problems, held_out = ([konigsberg.route_problem(seed) for seed in part] for part in (range(20), range(20, 29)))
    config = RewardConfig(group=4, answer_tokens=8, updates=2, kl=kl, kl_by="k3")
    named, before = dict(quiet=True, verifiers={"route": short_reward}), base()[0].params.flat.tobytes()
    train.reinforce(tmp_path / "run", base(), problems, held_out, config, SETTINGS, **named)
    figures = [entry["figures"] for entry in run_folder.read_log(tmp_path / "run") if "loss" in entry]
    clipped = [entry["clipped"] for entry in figures]
    assert max(clipped[::2]) == 0 < max(clipped[1::2])
    assert len({entry["reward"] for entry in figures}) > 2 and len(figures) == 8
    assert all(tuple(entry) == rewards.FIGURES for entry in figures)
    assert base()[0].params.flat.tobytes() == before
    again = partial(error_of, loop.resume, tmp_path / "run", problems, held_out, **named)
    assert "must be a multiple of 2" in again(steps=11)
    if not kl:
        named["verifiers"] = {"route": lambda problem, answer: 1.0}
        train.reinforce(tmp_path / "equal", base(), problems, held_out, config, SETTINGS, **named)
        warnings = [entry["warning"] for entry in run_folder.read_log(tmp_path / "equal") if "warning" in entry]
        assert any("no group has two different rewards" in text for text in warnings)
    else:
        file = tmp_path / "run" / "reference.safetensors"
        file.write_bytes(file.read_bytes()[:-4] + b"abcd")
        assert "is not the model that the run began with" in again(steps=12)


def test_questions_are_held_out():
    """Check that no question occurs in both parts, apart from walkers and orders."""
    problems, held_out = ROUTES(0, 0)
    asked = [{konigsberg.question_of(p) for p in part} for part in (problems, held_out)]
    assert not asked[0] & asked[1] and len(asked[1]) == len(held_out) > 150


@pytest.mark.parametrize("more, ended, whole", [
    (["end"], True, True), ([], False, False), (["user", "end"], True, False), ([600, "end"], True, False),
])  # fmt: skip
def test_cut_answers_are_told_from_whole_ones(more, ended, whole):
    tokenizer = base()[1]
    special = {"end": tokenizer.special_tokens[END_OF_TEXT], "user": tokenizer.special_tokens["<|user|>"]}
    ids = np.array([*tokenizer.encode("Over the Honey Bridge."), *(special.get(i, i) for i in more)])
    found = rewards.answer_text(tokenizer, batch_decoder.Sampled(ids, np.zeros(len(ids)), ended))
    assert found.startswith("Over the Honey Bridge.") and found.endswith("...") != whole


REFUSED = {  # arguments, after --run new --base CHAT unless they contain one of these: the error
    "": "--run is required: give --run FOLDER, or --resume FOLDER",
    "--run new": "--base is required: give a run trained on routes (nanoeuler sft --data konigsberg-routes",
    "--device gpu": "--device must be cpu for grpo, got 'gpu'",
    "--precision bfloat16": "--precision must be float32 on the CPU, got bfloat16: take --device gpu",
    "--run new --base SMALL": "tokenizer must have the token <|user|> <|assistant|>: fine-tune the model first",
    "--group 1": "group must be an integer from 2 to 2147483647, got 1",
    "--group 7": "--batch times --accumulate must be a multiple of 7, the answers per question (--group), got 64",
    "--updates 3 --steps 10": "--steps must be a multiple of 3, the steps per set of answers (--updates), got 10",
    "--kl-by k1": "kl_by must be reward, k2 or k3, got k1, whose gradient is 0 on average",
    "--kl -1": "kl must be a number from 0 to 100, got -1.0",
    "--reward nice": "reward must be one of route, hackable, brief, got 'nice'",
    "--reward mine:text": "reward mine:text must return a finite number, got '1' for the answer '...'",
    "--reward mine:infinite": "reward mine:infinite must return a finite number, got inf for the answer",
    "--reward mine:fails": "failed for the answer '...' in MINE:4: ZeroDivisionError: division by zero",
    "--reward mine:none": "--reward mine:none: none must be a function of the module mine, got None",
    "--reward broken:f": "--reward broken:f: the module broken cannot be imported (NameError: name 'x' is not defined)",
    "--answer-tokens 100": "--answer-tokens must be at most",
    "--resume CHAT": "must be a run of nanoeuler grpo, got a different kind of run",
    "--resume CHAT --group 4": "--group must not be given with --resume",
}  # fmt: skip


ROUTES = cache(tasks.route_sets)


@pytest.fixture
def drawn_once(monkeypatch):
    """Sample the questions once, because sampling takes longer than a run of this size."""
    monkeypatch.setattr(tasks, "route_sets", ROUTES)


MINE = """text = lambda problem, answer: '1'
infinite = lambda problem, answer: float('inf')
def fails(problem, answer):
    return 1 / (len(problem.goal) - len(problem.goal))
def length(problem, answer):
    assert problem.start and problem.goal and isinstance(problem.closed, tuple) and problem.answer
    return len(answer)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Write a module of rewards into the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("x")
    yield
    sys.modules.pop("mine", None)


@pytest.mark.usefixtures("drawn_once", "mine")
def test_a_reward_of_the_user_s_own_is_named_again_to_go_on(tmp_path, capsys):
    checkpoint.save(tmp_path / "base", *base(), 0)
    quick = "--quiet --valid-every 2 --sample-every 0 --save-every 2 --warmup 1 --answer-tokens 8 --questions 12"
    begin = f"grpo --base base --run run --batch 4 --group 2 --steps 2 --reward mine:length {quick}"
    assert cli.main(begin.split()) == 0 and checkpoint.load("run").info["rewards"]["reward"] == "mine:length"
    assert any(e["figures"]["reward"] > 2 for e in run_folder.read_log("run") if "loss" in e)
    assert cli.main("grpo --resume run --steps 4 --quiet --reward mine:length".split()) == 0
    capsys.readouterr()
    for more, told in (
        ("", "mine:length must be given again"),
        ("--reward route", "must be the reward of the run, 'mine"),
    ):
        assert cli.main(f"grpo --resume run --steps 6 {more}".split()) == 2 and told in capsys.readouterr().err


@pytest.mark.usefixtures("drawn_once", "mine")
@pytest.mark.parametrize("words", REFUSED)
def test_command_refuses_in_one_line(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    alone = words in ("", "--run new") or "CHAT" in words or "SMALL" in words
    given = words if alone else f"--run new --base CHAT {words}"
    places = {name.upper(): checkpoint.PRETRAINED / f"konigsberg-{name}" for name in ("chat", "small")}
    assert cli.main(["grpo", *(str(places.get(word, word)) for word in given.split())]) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1 and REFUSED[words].replace("MINE", str(tmp_path / "mine.py")) in told.err, told.err
    assert not (tmp_path / "new").exists()


def test_command_learns_goes_on_and_is_reported(tmp_path, drawn_once, monkeypatch, capsys):
    """Run `nanoeuler sft --data konigsberg-routes`, then `grpo` twice: --resume gives the same bits as one run."""
    monkeypatch.chdir(tmp_path)
    checkpoint.save(tmp_path / "base", *base(), 0)
    quick = "--quiet --workers 1 --valid-every 4 --sample-every 0 --save-every 2".split()
    taught = "sft --base base --data konigsberg-routes --examples 30 --steps 2 --batch 2".split()
    assert cli.main([*taught, *quick, "--run", "taught"]) == 0
    learn = "grpo --base taught --questions 12 --batch 4 --group 2 --answer-tokens 8 --updates 2 --warmup 1".split()
    assert cli.main([*learn, *quick, "--steps", "4", "--run", "whole"]) == 0

    @contextmanager
    def interrupted():
        yield [signal.SIGTERM]

    with patch.object(loop, "_stop_between_steps", interrupted):
        assert cli.main([*learn, *quick, "--steps", "4", "--run", "parts"]) == 130
    assert checkpoint.load(tmp_path / "parts", training=True).step == 2  # not 1, because the answers serve two steps
    assert cli.main(["grpo", "--resume", "parts", "--quiet"]) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert cli.main(["report", "parts"]) == 0
    page = (tmp_path / "parts" / "report" / "report.md").read_text()
    assert "of the reward" in page and "questions" in page
    out = capsys.readouterr().out
    assert "chat with it: nanoeuler chat --run parts" in out and "% of the training questions were used" in out
