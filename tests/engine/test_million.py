"""The run of chapter 32 as one command, small and on the CPU: each part once, stopped and gone on with, its rows."""

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest

import konigsberg
from benchmarks import large, million, yardsticks
from nanoeuler_lib.config import ModelConfig, preset
from nanoeuler_lib.engine import program
from nanoeuler_lib.text import shards
from nanoeuler_lib.text.data import SEPARATOR
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer

TINY = (
    "--dim 16 --heads 2 --kv-heads 1 --layers 1 --context 16 --steps 30 --batch 2 --warmup 3 --valid-every 10 "
    "--sample-every 0 --save-every 7 --quiet"
)


@pytest.fixture
def texts(tmp_path):
    """The folder of a run whose corpora are there already."""
    for number, name in enumerate(("classics", "featured")):
        (tmp_path / name).mkdir()
        parts = {}
        for part, count in (("train", 5), ("valid", 2)):
            stories = [konigsberg.corpus(2000, 10 * number + i) for i in range(count)]
            (tmp_path / name / f"{part}.txt").write_text(SEPARATOR.join(s.replace(SEPARATOR, "\n") for s in stories))
            parts[f"{part}.txt"] = {"documents": count}
        (tmp_path / name / "report.json").write_text(json.dumps({"parts": parts}))
    return tmp_path


@pytest.mark.skipif(not hasattr(__import__("signal"), "SIGALRM"), reason="signals of POSIX")
def test_a_run_goes_on_where_it_was_stopped(texts, monkeypatch):
    asked = []
    monkeypatch.setattr(
        million.Parts, "done", lambda self, module, section, words, **names: asked.append((section, words))
    )
    with pytest.raises(SystemExit) as stopped:
        million.run(million.Parts(texts, 0.0), texts, "cpu", TINY, 300)
    assert stopped.value.code
    million.run(million.Parts(texts), texts, "cpu", TINY, 300)
    rows = million.read(texts / "rows-parts.jsonl")
    assert [row["part"] for row in rows][-4:] == ["shards", "shards", "shards", "train"] and not rows[-1]["code"]
    million.run(million.Parts(texts), texts, "cpu", TINY, 300)
    assert million.read(texts / "rows-parts.jsonl") == rows  # nothing is done twice
    (texts / "rows-parts.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows[:-1], rows[-1] | {"code": 130}])
    )
    million.run(million.Parts(texts), texts, "cpu", TINY, 300)
    assert million.read(texts / "rows-parts.jsonl")[-1]["command"] == "nanoeuler train --resume base"
    starts = million.Shards(texts / "train").starts
    assert ("known", f"--border {starts[5]}") in [
        (section, words[-len(f"--border {starts[5]}") :]) for section, words in asked
    ]
    assert [section for section, _ in asked] == ["cloze", "says", "known"] * 3

    (texts / "rows-cloze.jsonl").write_text('{"what": "cloze", "right": 3}\n')
    (texts / "results").mkdir()
    run = dict(step_median=1.0, step_seconds=2.0, valid=[])
    old = [dict(what="run", run="base", **run), dict(what="run", run="dolly"), dict(what="rate"), dict(what="known"),
           dict(what="replies", run="base"), dict(what="wall", milliseconds=1.0)]  # fmt: skip
    stored = {"date": "1", "config": {"gpu": "x"}, "rows": old, "machine": {"gpu": "x"}}
    (texts / "results" / "ch32.json").write_text(json.dumps(stored))
    million.collect(texts, texts / "results")
    made = json.loads((texts / "results" / "ch32.json").read_text())
    kept = [row for row in made["rows"] if row in old]
    assert kept == [old[1], old[2], old[4]] and made["machine"] == {"gpu": "x"}
    (base,) = [row for row in made["rows"] if (row["what"], row.get("run")) == ("run", "base")]
    assert base["curve"][-1][0] == 30 and len(base["valid"]) == 4
    assert sum(row["what"] == "wall" for row in made["rows"]) == 2
    before = dict(date="1", commit=None, machine={"gpu": "x"}, walls=[0.001], **run)
    assert made["config"]["before"] == before | {"he or she": {}}
    million.collect(texts, texts / "results")
    assert json.loads((texts / "results" / "ch32.json").read_text()) == made  # twice is once
    assert made["config"]["again"]["commands"][-2].startswith(
        "nanoeuler train --run base --data train --valid books_val"
    )


# ---- large beside base


def test_large_runs_for_a_pass_and_base_for_its_time(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(million.Parts, "done", lambda *_, **names: None)
    million.run(million.Parts(texts), texts, "cpu", TINY, 300)
    shapes = {"base": (16, 1), "large": (32, 2)}
    make = lambda name: ModelConfig(dim=shapes[name][0], heads=2, kv_heads=1, layers=shapes[name][1], context=16,
                                    vocab_size=300, predict=2)  # fmt: skip
    monkeypatch.setattr(large, "preset", make)
    monkeypatch.setattr(large, "ROWS", 16)
    tiny, settings = TINY.partition(" --steps")[0], "--warmup 1 --valid-every 5 --sample-every 0 --quiet"
    parts = million.Parts(tmp_path / "out")
    large.runs(parts, texts, 1, "cpu", tiny, settings)
    tokens = large.Shards(texts / "train").tokens
    commands = {row["part"]: row["command"] for row in million.read(parts.took)}
    assert list(commands) == ["train base_pass", "train large_pass", "train base_time"]
    assert f"--steps {tokens // 256} --rate 0.0006" in commands["train base_pass"]
    assert f"--steps {tokens // 256} --rate 0.0003" in commands["train large_pass"]
    logs = [[e["seconds"] for e in million.read(parts.out / f"{name}_pass.log.jsonl") if "loss" in e]
            for name in ("base", "large")]  # fmt: skip
    wanted = round(tokens // 256 * np.median(logs[1]) / np.median(logs[0]))
    assert f"--steps {wanted} " in commands["train base_time"] and [len(log) for log in logs] == [tokens // 256] * 2
    for name in ("cards", "machine"):
        (parts.out / f"{name}.json").write_text("1")
    large.collect(parts.out, tmp_path)
    rows = json.loads((tmp_path / "large.json").read_text())["rows"]
    assert [row["run"] for row in rows if row["what"] == "run"] == ["base_pass", "base_time", "large_pass"]


@pytest.mark.compiler
def test_a_step_of_each_is_timed_beside_pytorch(monkeypatch):
    pytest.importorskip("torch", reason="PyTorch is not installed: make oracle")
    shape = dict(dim=64, heads=2, kv_heads=1, context=9, vocab_size=40, predict=2, ffn=24)
    make = lambda name: ModelConfig(layers=1 + (name == "large"), **shape)
    monkeypatch.setattr(large, "preset", make)
    monkeypatch.setattr(large, "ROWS", 2)
    monkeypatch.setattr(large.gpu_step, "STEPS", 1)
    rows = list(large.measure(1, "cpu", "float32"))
    assert [row["model"] for row in rows] == ["base", "large"] and rows[0]["first_losses"] != rows[1]["first_losses"]
    assert all(min(row["tokens_per_second"].values()) > 0 for row in rows)


def test_large_is_base_by_four_thirds():
    """What the comment beside the preset and chapter 32 say of it."""
    base, big = preset("base"), preset("large")
    assert big.dim * 3 == base.dim * 4 and abs(big.layers / base.layers - 4 / 3) < 0.05
    assert big.head_dim == base.head_dim and (big.context, big.vocab_size) == (base.context, base.vocab_size)
    assert large.size("large") == 263_599_104 and large.size("base") == 116_417_280
    program.check_config(big, "bfloat16", SimpleNamespace(capability=90))


# ---- Yardsticks


@pytest.fixture
def part(tmp_path, monkeypatch):
    """A set of three documents of made-up words, of which some are frequent and some are not."""
    rng = random.Random(3)
    words = ["".join(rng.choice("bdfgklmnrst") + rng.choice("aeiou") for _ in range(3)) for _ in range(40)]
    text = SEPARATOR.join(" ".join(rng.choice(words[i : i + 20]) for _ in range(500)) + "." for i in (0, 10, 20))
    (tmp_path / "held.txt").write_text(text)
    tokenizer = Tokenizer.train(text, 300, special_tokens=(END_OF_TEXT,))
    monkeypatch.setattr(yardsticks, "BEFORE", 20)
    return shards.write(tmp_path / "held", [tmp_path / "held.txt"], tokenizer, workers=1)


def test_words_to_choose_from_are_alike(part):
    text = part.tokenizer.decode(part.read(1, int(part.starts[1])).tolist())
    items = yardsticks.items_of(text, np.random.default_rng(0), 30)
    assert len(items) == 30
    for before, words, behind in items:
        assert f"{before} {words[0]}{behind}" in text and len(set(words)) == 4 and len(behind) == yardsticks.BEHIND
        often = [f" {text} ".count(f" {word} ") for word in words]
        assert max(often) <= 1.5 * yardsticks.OFTEN * min(often) and min(often) > 0


def test_the_cloze_counts_who_finds_the_word_likeliest(part):
    items = yardsticks.cloze_of(part, 40)
    assert len(items) == 40 and all(len(ids) == 20 for ids, _ in items)
    firsts = {tuple(ways[0]) for _, ways in items}

    def losses(sign):
        def of(inputs, targets):
            true = [tuple(row[row >= 0]) in firsts for row in targets]
            return np.where(targets >= 0, 1.0, 0.0) * np.where(true, sign, 0.0)[:, None]

        return SimpleNamespace(losses=of)

    found = [yardsticks.answered("x", losses(sign), part, 40)["right"] for sign in (-1.0, 1.0, 0.0)]
    assert found[0] >= 38 and found[1:] == [0, 0]  # who finds all alike has found nothing


def test_counts_are_scored_as_a_model_is(part):
    ids = part.read(0, part.tokens).astype(np.int64)
    counted = yardsticks.Counted(yardsticks.Ngrams(ids, part.tokenizer.vocab_size, 2), 2, 1.0)
    inputs, targets = ids[None, :9], ids[None, 1:10].copy()
    whole = counted.ngrams.probabilities(inputs)[0]
    targets[0, 4] = -1
    wanted = [-np.log(whole[t, ids[t + 1]]) * (t != 4) for t in range(9)]
    assert np.allclose(counted.losses(inputs, targets)[0], wanted)


def test_xz_uses_what_it_has_read(tmp_path):
    rng = random.Random(1)
    old, new = (bytes(rng.randrange(97, 123) for _ in range(30_000)) for _ in range(2))
    for name, text in (("old", old), ("part", old[5000:9000])):
        (tmp_path / name).write_bytes(text)
    alone, with_part = yardsticks.shortened(tmp_path / "old", tmp_path / "part", 1 << 20)
    assert with_part - alone < 200 < 2000 < yardsticks.shortened(tmp_path / "part")[0]
    (tmp_path / "old").write_bytes(old + new)  # out of sight, in a short window
    alone, with_part = yardsticks.shortened(tmp_path / "old", tmp_path / "part", 4096)
    assert with_part - alone > 2000
