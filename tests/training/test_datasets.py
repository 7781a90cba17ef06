"""What a run learns from and what it is measured on are two parts, whatever it learns from."""

from itertools import combinations
from zlib import crc32

import pytest
from test_sft import TOKENIZER
from test_shards import text_of

from nanoeuler_lib.config import ModelConfig, RewardConfig, TrainConfig
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text import shards
from nanoeuler_lib.training import datasets, preferences, rewards, sft
from nanoeuler_lib.training.checkpoint import Checkpoint

SHAPE = ModelConfig(dim=8, heads=2, kv_heads=1, layers=1, context=256, vocab_size=260, predict=1, ffn=8)
TEXTS = [text_of(range(9 * part, 9 * part + 9)) for part in range(4)]
ASKED = [[[(f"{a}{part}?", f"{a}{a}.")] for a in "abcdefgh"] for part in range(4)]


def dataset_of(kind, numbers, state, folder):
    """Of a training part and a held-out part of these numbers."""
    if kind == "shards":
        for number in numbers:
            (folder / f"{number}.txt").write_text(TEXTS[number])
            shards.write(folder / f"{number}", [folder / f"{number}.txt"], TOKENIZER, 1, quiet=True)
        part, valid = (shards.Shards(folder / f"{number}") for number in numbers)
        return datasets.ShardDataset(part, [valid], state)
    made, parts = {
        "text": (datasets.TextDataset, TEXTS),
        "examples": (datasets.SFTDataset, ASKED),
        "pairs": (preferences.PairsDataset, [[(e, [(e[0][0], "no")]) for e in part] for part in ASKED]),
        "questions": (rewards.RewardDataset, [rewards.problems_of(8, part)[0] for part in range(4)]),
    }[kind]
    return made(parts[numbers[0]], parts[numbers[1]], state)


@pytest.mark.parametrize("kind", ["text", "shards", "examples", "pairs", "questions"])
def test_batches_are_of_one_part_and_a_seed_and_validations_of_the_other_part(kind, tmp_path, monkeypatch):
    monkeypatch.setitem(rewards.REWARDS, "route", lambda p, said: crc32((p.prompt + said).encode()) / 2**32)
    batches, measured, other = {}, {}, GPT(SHAPE, seed=6)
    for key in ((0, 2, 0), (1, 2, 0), (0, 3, 0), (0, 2, 1)):
        (folder := tmp_path / "-".join(map(str, key))).mkdir()
        info = {"template": "plain", "source": "x", "beta": 1.0, "label_noise": 0.0}
        info |= {"rewards": RewardConfig(group=2, answer_tokens=5).to_dict()}
        train = TrainConfig(batch=4, accumulate=2, seed=key[2])
        state = Checkpoint(folder, GPT(SHAPE, seed=5), TOKENIZER, 0, train, None, info)
        dataset = dataset_of(kind, key[:2], state, folder)
        dataset.prepare(folder, state)
        batches[key] = b"".join(dataset.batch(step, 8)[0].tobytes() for step in range(3))
        measured[key] = [dataset.validation(other), dataset.sample(other, 0), getattr(dataset, "prompt", "")]
        assert kind not in ("examples", "pairs") or dataset.seen(1) == 1  # a step of all eight
    for a, b in combinations(batches, 2):
        assert (batches[a] == batches[b]) == (a[::2] == b[::2])
        if a[2] == b[2]:
            assert measured[a] == measured[b] if a[1] == b[1] else measured[a][0] != measured[b][0]


@pytest.mark.parametrize("of", [preferences.pairs_of, sft.examples_of])
def test_nothing_built_in_is_both_learnt_and_held_out(of):
    for source in sft.SOURCES if of is sft.examples_of else ["konigsberg"]:
        part, held_out, *_ = of(source, 250, 7)
        assert len(part) == 250 and len(held_out) > 150 and not set(map(str, part)) & set(map(str, held_out))
