"""Preferences: the loss and its slope, whole replies, a reference that stays, files that are read, the command."""

import json
import math
from functools import partial
from itertools import combinations
from unittest.mock import patch

import numpy as np
import oracles
import pytest
from oracles import error_of
from test_sft import CONFIG, TOKENIZER

import konigsberg
from nanoeuler_lib import ops
from nanoeuler_lib.command import cli, sources
from nanoeuler_lib.config import ModelConfig, RewardConfig, TrainConfig
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model import plan as plan_module
from nanoeuler_lib.model.gradcheck import numeric_gradient
from nanoeuler_lib.text import sft_data
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import checkpoint, datasets, loop, preferences, report, rewards
from nanoeuler_lib.training.preferences import dpo_loss, weigher
from nanoeuler_lib.training.train import prefer

ODD = ModelConfig(dim=6, heads=3, kv_heads=1, layers=2, context=7, vocab_size=5, predict=2, ffn=7)
MODEL = ModelConfig(**CONFIG.to_dict() | {"vocab_size": 260})
SETTINGS = TrainConfig(steps=8, batch=3, warmup=2, rate=3e-3, valid_every=4, sample_every=4, save_every=2)
PAIRS = [([(f"{a} or {b}?", f"{a}.")], [(f"{a} or {b}?", f"not {b}")]) for a in "abcdef" for b in "uvwx"]
HELD_OUT = [([(f"g or {b}?", "g.")], [(f"g or {b}?", f"not {b}")]) for b in "uvwxyzst"]


def base():
    return GPT(MODEL, oracles.random_parameters(MODEL, 0, 0.1, np.float32)), TOKENIZER


def encoded(pairs, held_out=HELD_OUT):
    info = {"template": "plain", "source": "pairs", "beta": 1.0, "label_noise": 0.0}
    state = checkpoint.Checkpoint("", GPT(MODEL, dtype=np.float64), TOKENIZER, 0, SETTINGS, None, info)
    return preferences.PairsDataset(pairs, held_out, state), state


def odd_batch(config, pairs, time, seed=0):
    """Tokens, targets of which a reply's are at least one and at most all, and a reference: of pairs."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, config.vocab_size, (2 * pairs, time))
    targets = rng.integers(0, config.vocab_size, (2 * pairs, time, config.predict))
    first, last = rng.integers(0, time // 2, 2 * pairs), rng.integers(time // 2, time, 2 * pairs)
    places = np.arange(time)
    targets[(places < first[:, None]) | (places > last[:, None])] = -1
    return tokens, targets, rng.normal(-5, 2, 2 * pairs)


def by_hand(nats, reference, beta, noise, robust):
    total = 0.0
    for i in range(0, len(nats), 2):
        ratio = [-math.fsum(nats[j]) - reference[j] for j in (i, i + 1)]
        chance = 1 / (1 + math.exp(-beta * (ratio[0] - ratio[1])))
        right, wrong = -math.log(chance), -math.log(1 - chance)
        mixed = (1 - noise) * right + (-noise if robust else noise) * wrong
        total += mixed / (1 - 2 * noise) if robust else mixed
    return total / (len(nats) // 2)


@pytest.mark.parametrize("version, noise, robust", [("plain", 0.0, False), ("cpu", 0.2, True)])
def test_the_gradient_is_the_slope_for_every_parameter(version, noise, robust):
    """tests/model/test_oracle.py compares the loss of noisy labels that is not robust with PyTorch's."""
    model = GPT(ODD, oracles.random_parameters(ODD))
    tokens, targets, reference = odd_batch(ODD, 3, 7)

    def loss():
        return by_hand(model.losses(tokens, targets[..., 0]), reference, 0.3, noise, robust)

    with ops.use(version), patch.object(plan_module, "LOGIT_ROWS", 4):
        figures, grads = model.weighted_gradients(tokens, targets, weigher(reference, 0.3, noise, robust))
    naive = oracles.naive_losses(model.params, ODD, tokens, targets)[..., 0].reshape(tokens.shape)
    oracles.close(figures[0], by_hand(naive, reference, 0.3, noise, robust), 1e-12)
    slope = numeric_gradient(loss, model.params.flat)
    later = np.zeros_like(grads["heads"])
    later[:, ODD.vocab_size :] = 1
    assert not grads["heads"][later == 1].any()  # the policy is head 0
    assert np.abs(grads.flat - slope).max() <= 1e-6 * np.abs(slope).max()
    assert np.abs(slope).max() > 1e-2


def test_losses_far_from_the_reference_do_not_overflow():
    far = dpo_loss(np.array([[5e3, 0.0], [0.0, 5e3]]), np.zeros((2, 2)), 1.0)
    np.testing.assert_array_equal(far[0], [0, 5e3])
    np.testing.assert_array_equal(far[1], [[0, 0], [-1, 1]])


def test_a_log_probability_is_that_of_the_last_reply_and_its_end():
    """Whatever stands before it, and whatever length the row has: token by token, from the logits."""
    talk = [("hi", "ho"), ("a or b?", "a.")], [("hi", "ho"), ("a or b?", "not b, not c")]
    dataset, state = encoded([talk, *PAIRS])
    found = preferences.log_probabilities(state.model, dataset.part)
    for pair, logps in zip([talk, *PAIRS], found, strict=True):
        for example, logp in zip(pair, logps, strict=True):
            reply = [*TOKENIZER.encode(example[-1][1]), TOKENIZER.end]
            ids = sft_data.encode(example, TOKENIZER).ids
            assert ids[-len(reply) :].tolist() == reply
            logits = state.model.logits(ids[None, :-1])[0][-len(reply) :]
            oracles.close(logp, sum(z[t] - np.logaddexp.reduce(z) for z, t in zip(logits, reply, strict=True)), 1e-12)


def test_a_batch_has_chosen_and_rejected_by_turns_with_their_reference(tmp_path):
    dataset, state = encoded(PAIRS)
    dataset.prepare(tmp_path, state)
    model = GPT(MODEL, oracles.random_parameters(MODEL))
    inputs, targets, weigh = dataset.batch(3, 8)
    nats = model.losses(inputs, targets[..., 0])
    for row, (ids, goals) in enumerate(zip(inputs, targets[..., 0], strict=True)):
        text = TOKENIZER.decode(ids.tolist())
        assert TOKENIZER.decode(goals[goals >= 0][:-1].tolist()).startswith("not ") == bool(row % 2) and " or " in text
    before = state.model.losses(inputs, targets[..., 0])
    figures, weights = weigh(slice(0, 8), nats)
    oracles.close(figures[0], by_hand(nats, -before.sum(axis=1), 1.0, 0, False), 1e-9)
    assert (weights[::2] > 0).all() and (weights[1::2] < 0).all()
    parts = [weigh(part, nats[part]) for part in (slice(0, 2), slice(2, 6), slice(6, 8))]
    oracles.close(sum(part[0] for part in parts), figures, 1e-12)
    oracles.close(np.concatenate([part[1] for part in parts]), weights, 1e-12)
    assert dataset.seen(0) == 0 and 0 < dataset.seen(1) <= dataset.seen(40) == 1


def test_a_run_learns_and_leaves_its_reference_alone(tmp_path):
    start = base()
    before = start[0].params.flat.copy()
    settings = TrainConfig(**SETTINGS.to_dict() | {"steps": 60})
    prefer(tmp_path / "run", start, PAIRS, HELD_OUT, settings, beta=0.5, quiet=True)
    assert np.array_equal(start[0].params.flat, before)
    log = [e for e in report.read_log(tmp_path / "run") if "valid_loss" in e]
    assert abs(log[0]["valid_loss"] - math.log(2)) < 1e-6 and log[-1]["valid_loss"] < 0.3
    assert log[-1]["figures"]["accuracy"] == 1 and log[-1]["figures"]["margin"] > 1
    page = report.report(tmp_path / "run").read_text("utf-8")
    assert "| data | pairs, 24 pairs to train on |" in page and "| step | nats per pair | accuracy |" in page
    file = tmp_path / "run" / "reference.safetensors"
    good = file.read_bytes()
    for damaged, told in ((good[:-8] + b"\0" * 8, "the file that the run began with"), (good[:-1], "cannot be read")):
        file.write_bytes(damaged)
        assert told in error_of(loop.resume, tmp_path / "run", PAIRS, HELD_OUT, steps=61)


@pytest.mark.parametrize("option, values, said", [
    ("beta", (0, -1, math.nan, "x"), "--beta must be a number above 0"),
    ("label_noise", (-0.1, 0.5, math.nan), "--label-noise must be at least 0 and below 0.5"),
    ("robust", (True,), "--robust needs --label-noise above 0"),
])  # fmt: skip
def test_what_a_run_refuses(tmp_path, option, values, said):
    new = lambda base, **options: error_of(prefer, tmp_path / "new", base, PAIRS, HELD_OUT, SETTINGS, **options)
    assert all(said in new(base(), **{option: value}) for value in values)
    untaught = GPT(CONFIG), Tokenizer([(97, 98)], ("<|endoftext|>",))
    assert "fine-tune the model first" in new(untaught) and not (tmp_path / "new").exists()


def test_pairs_that_do_not_fit_or_do_not_differ_are_left_out_whole():
    long = ([("a?", "a")], [("a?", "b" * 60)])
    dataset, _ = encoded([*PAIRS, long, ([("a?", "a")], [("a?", "a")])])
    assert len(dataset.part) == len(PAIRS) and dataset.reach == 24 / 26
    starts = ["1 of 26 training pairs have two", "1 of 26 training pairs have a r"]
    assert [warning[:31] for warning in dataset.warnings] == starts
    held_out = encoded(PAIRS, [([("q" * 60, "a")], [("q" * 60, "b")]), *PAIRS])[0]
    assert held_out.prompt == PAIRS[0][0][-1][0], "a sample answers a prompt that fits"
    assert "none of 1 training pairs has two different replies" in error_of(encoded, [long])


WRONG = {
    '{"prompt": "a", "chosen": "b"}': "prompt, chosen and rejected, got keys ['chosen', 'prompt']",
    "7": "chosen and rejected, got a int",
    '{"chosen": "a", "rejected": "b"}': "prompt must be text, got null",
    '{"prompt": "a", "chosen": "a", "rejected": [1]}': "rejected must be text, got [1]",
    '{"chosen": [{"role": "user", "content": "a"}], "rejected": "b"}': "chosen 1, the last one, must be from assistant",
    '{"prompt": "\\ud800", "chosen": "a", "rejected": "b"}': "half a surrogate pair",
    "": "must hold at least one pair",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_file_of_pairs_is_told_what_is_wrong(tmp_path, line):
    (tmp_path / "pairs.jsonl").write_text(line)
    message = error_of(sft_data.read_pairs, tmp_path / "pairs.jsonl")
    assert WRONG[line] in message and message.startswith(str(tmp_path)) and "\n" not in message


def test_pairs_of_a_file_as_texts_and_as_messages(tmp_path):
    said = (("user", "a"), ("assistant", "b"), ("assistant", "c"))
    ask, yes, no = ({"role": role, "content": text} for role, text in said)
    forms = [
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        {"prompt": "ignored", "chosen": [ask, yes], "rejected": [ask, no]},
        {"prompt": [ask], "chosen": [yes], "rejected": [no]},
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, forms)))
    assert sft_data.read_pairs(tmp_path / "pairs.jsonl") == [([("a", "b")], [("a", "c")])] * 3
    other = {"chosen": [ask, yes], "rejected": [ask | {"content": "z"}, no]}
    (tmp_path / "other.jsonl").write_text(json.dumps(other))
    assert "must differ only in the last reply" in error_of(sft_data.read_pairs, tmp_path / "other.jsonl")


def test_built_in_pairs_differ_in_their_reason_alone():
    pairs, held_out = sources.pairs("konigsberg", 20, 3)
    assert pairs == sources.pairs("konigsberg", 20, 3)[0] and len(pairs) == 20 and len(held_out) == sources.HELD_OUT
    assert not set(map(str, pairs)) & set(map(str, held_out))
    for chosen, rejected in pairs:
        assert chosen[0][0] == rejected[0][0] and "\n" not in chosen[0][0]
        assert chosen[0][1] != rejected[0][1] and chosen[0][1].split()[0] == rejected[0][1].split()[0]


def test_the_command(tmp_path, capsys):
    texts = [{"prompt": c[0][0], "chosen": c[0][1], "rejected": r[0][1]} for c, r in PAIRS]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, texts)))
    data, run = ["--data", str(tmp_path / "pairs.jsonl")], str(tmp_path / "run")
    assert cli.main(["dpo", *data, "--run", run, *"--steps 2 --batch 2 --beta 0.3 --workers 1 --quiet".split()]) == 0
    assert cli.main(["dpo", "--resume", run, "--steps", "3", "--quiet"]) == 0
    assert checkpoint.read_head(run)["step"] == 3 and checkpoint.read_head(run)["info"]["beta"] == 0.3
    assert "validation loss 0." in capsys.readouterr().out
    assert cli.main(["sft", "--resume", run]) == 2
    assert "must be a run of nanoeuler sft" in capsys.readouterr().err


def graded(problem, said):
    return sum(map(ord, problem.prompt + said)) % 997 / 997


ASKED = [[[(f"{a}{part}?", f"{a}{a}.")] for a in "abcdefgh"] for part in range(4)]
KINDS = {  # what a dataset is made of, and four parts of it
    "text": (datasets.TextDataset, [f"{part} and " * 99 for part in range(4)]),
    "examples": (datasets.SFTDataset, ASKED),
    "pairs": (preferences.PairsDataset, [[(e, [(e[0][0], "no")]) for e in part] for part in ASKED]),
    "questions": (
        partial(rewards.RewardDataset, verifiers={"route": graded}),
        [[*map(konigsberg.route_problem, range(8 * n, 8 * n + 8))] for n in range(4)],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_run_learns_from_one_part_by_its_seed_and_is_measured_on_the_other(kind, tmp_path):
    config = ModelConfig(**MODEL.to_dict() | {"context": 256})
    other, batches, measured = GPT(config, oracles.random_parameters(config, 1, 0.5, np.float32)), {}, {}
    info = {"template": "plain", "source": "x", "beta": 1.0, "label_noise": 0.0}
    info |= {"rewards": RewardConfig(group=2, answer_tokens=5).to_dict()}
    for key in ((0, 2, 0), (1, 2, 0), (0, 3, 0), (0, 2, 1)):  # training part, held-out part, seed
        train, (made, parts) = TrainConfig(batch=4, accumulate=2, seed=key[2]), KINDS[kind]
        state = checkpoint.Checkpoint(tmp_path, GPT(config, seed=5), TOKENIZER, 0, train, None, info | {})
        dataset = made(parts[key[0]], parts[key[1]], state)
        dataset.prepare(tmp_path, state)
        batches[key] = b"".join(dataset.batch(step, 8)[0].tobytes() for step in range(3))
        assert dataset.seen(1 + key[0]) == 1 or kind not in ("examples", "pairs")  # a step takes all eight
        measured[key] = [dataset.validation(other), dataset.sample(other, 0), getattr(dataset, "prompt", "")]
    for a, b in combinations(batches, 2):
        assert (batches[a] == batches[b]) == (a[::2] == b[::2])
        if a[2] == b[2]:
            assert measured[a] == measured[b] if a[1] == b[1] else measured[a][0] != measured[b][0]
