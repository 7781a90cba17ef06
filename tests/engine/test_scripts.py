"""Run benchmarks and experiments that need a GPU or hours once, in tiny form, on the CPU runtime; check their rows."""

import dataclasses
import json
import lzma
import multiprocessing
from multiprocessing.pool import ThreadPool
from types import SimpleNamespace

import many_worker
import numpy as np
import pytest
from test_engine import WHERE

import konigsberg
from benchmarks import (
    collectives,
    english,
    gpu_arch80,
    gpu_decode,
    gpu_flash_step,
    gpu_muon,
    gpu_numbers,
    gpu_speculate,
    gpu_step,
    large,
    many_cards,
    million,
    race,
    yardsticks,
)
from experiments import ch19, ch19_runs
from nanoeuler_lib import engine
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.engine import data_parallel
from nanoeuler_lib.engine.device import CPU, Device
from nanoeuler_lib.text import data, shards
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import checkpoint

pytestmark = [] if WHERE == "gpu" else [pytest.mark.compiler]
TINY = ModelConfig(dim=64, heads=2, kv_heads=1, layers=2, context=9, vocab_size=40, predict=2, ffn=24)
LINES = "".join(f"Line {n} of {n * n % 97} lines that tell of a river, and of who swam in it.\n" for n in range(300))


def beside_torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed: make oracle")


def rows_in(file):
    return json.loads(file.read_text())["rows"]


# ----------------------------------------------------------------------------------------------------------------
# comparisons of two models: each of these scripts stops if the two do not compute the same


@pytest.mark.full
def test_gpu_step(monkeypatch):
    beside_torch()
    monkeypatch.setattr(gpu_step, "STEPS", 1)
    row = gpu_step.measure(TINY, "bfloat16", rows=2, rounds=1, where="cpu")
    assert set(row["milliseconds"]) == {gpu_step.US, gpu_step.PEER} and len(row["first_losses"]) == gpu_step.AGREE


@pytest.mark.full
def test_gpu_arch80():
    beside_torch()
    row = gpu_arch80.measure(TINY, rows=2, rounds=2, where="cpu")
    names = [gpu_arch80.US, gpu_arch80.WITHOUT, gpu_arch80.PEER]
    assert list(row["rounds"]) == names and all(len(times) == 2 for times in row["rounds"].values())
    assert set(row["attention"]) == set(names[:2])


@pytest.mark.full
def test_gpu_arch75():
    row = gpu_arch80.measure(TINY, rows=2, rounds=2, where="cpu", turing=True)
    names = list(gpu_arch80.TURING)
    assert list(row["rounds"]) == list(row["attention"]) == names
    assert ["<__half, CORES" in row["attention"][name] for name in names] == [True, False]


@pytest.mark.full
def test_gpu_decode(monkeypatch):
    beside_torch()
    monkeypatch.setattr(gpu_decode, "TOKENS", 2)
    row = gpu_decode.measure(TINY, "bfloat16", start=5, rounds=2, where="cpu")
    assert min(row["milliseconds"].values()) > 0 < row["speedup"]


@pytest.mark.full
def test_gpu_flash_step(monkeypatch):
    monkeypatch.setattr(gpu_flash_step, "STEPS", 1)
    shape = dataclasses.replace(TINY, layers=1, predict=1)
    row = gpu_flash_step.measure(shape, "bfloat16", rows=1, rounds=2, where=WHERE)
    names = [gpu_flash_step.FLASH, gpu_flash_step.PLAIN, gpu_flash_step.GRAPH]
    assert list(row["milliseconds"]) == names and all(len(each) == 2 for each in row["ratios"].values())


@pytest.mark.full
def test_gpu_numbers(monkeypatch):
    beside_torch()
    monkeypatch.setattr(gpu_numbers, "LAST", 2)
    made, _ = gpu_numbers.trained(TINY, "float32", 0, "cpu", 1)
    found = gpu_numbers.gradients(TINY, made, 2)
    assert found.keys() == made.params.keys() and all(0 < x < 1e-5 for both in found.values() for x in both)
    assert gpu_numbers.curves(TINY, 0, "cpu", 2).keys() == {gpu_step.US, gpu_numbers.PEER}


@pytest.mark.full
def test_gpu_speculate(monkeypatch):
    monkeypatch.setattr(gpu_speculate, "ROUNDS", 2)
    model = engine.GPT(dataclasses.replace(TINY, context=40, predict=3), where="cpu", checked=False)
    rows = gpu_speculate.measure(model, [[1, 2, 3], [4, 5]], 12)
    assert [(row["way"], row["propose"]) for row in rows] == [(x, n) for x in ("greedy", "sampled") for n in range(3)]
    assert [row["same"] for row in rows[:3]] == [2, 2, 2], "proposals must not change a greedy text"


@pytest.mark.full
def test_gpu_muon():
    rows = []
    shape = dataclasses.replace(TINY, context=16, vocab_size=264)
    trial = gpu_muon.Tiny(LINES, shape, 4, "cpu", rows.append)
    for name in ("adamw", "muon"):
        trial.run(0, "x", optimizer=name, rate=0.01, batch=2, steps=4)
    gpu_muon.set_muon()
    assert [row["recipe"]["optimizer"] for row in rows] == ["adamw", "muon"] and all(row["bits"][4] for row in rows)


@pytest.mark.full
def test_many_cards(monkeypatch):
    torch = beside_torch()
    monkeypatch.setattr(torch._dynamo.config, "disable", True)
    monkeypatch.setattr(many_cards, "STEPS", 1)
    group, shape = data_parallel.Group(), many_worker.MODEL
    try:
        rows = many_cards.speed(group, shape, 1, 3, where="cpu") + many_cards.ddp(group, shape, 1, 3, device="cpu")
    finally:
        torch.distributed.destroy_process_group()
    rows.append(many_cards.tree(shape, 1, 2, 1, where="cpu"))
    assert [row["what"] for row in rows] == ["speed", "ddp", "ddp", "tree"]
    assert [row["compiled"] for row in rows[1:3]] == ["whole", "by bucket"]
    assert all(row["interval"][0] <= row["efficiency"] <= row["interval"][1] for row in rows[:3])


def test_many_cards_keeps_rows_of_earlier_commits(tmp_path, monkeypatch):
    """A row that is measured again replaces the old row; the others stay, with the GPU and commit they come from."""
    monkeypatch.setenv("NANOEULER_COMMIT", "one")
    old = [{"what": "ddp", "cards": n, "rows": 16, "compiled": "whole", "ms": 1} for n in (2, 4)]
    many_cards.store(old, {"gpu": "A"}, tmp_path)
    monkeypatch.setenv("NANOEULER_COMMIT", "two")
    many_cards.store([old[0] | {"ms": 2}], {"gpu": "B"}, tmp_path)
    four, two = rows_in(tmp_path / "many_cards.json")
    assert (four["ms"], four["gpu"], four["commit"]) == (1, "A", "one")
    assert two == old[0] | {"ms": 2}


def test_nccl_settings_of_the_environment_are_recorded(monkeypatch):
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    found = collectives.nccl_settings()
    assert (found["NCCL_NVLS_ENABLE"], found["NCCL_ALGO"]) == ("0", None) and "NCCL_PROTO" in found


# ----------------------------------------------------------------------------------------------------------------
# runs of chapters 19 and 32, of appendix A3, and of the English model


def test_ch19_takes_the_same_steps_on_a_gpu_and_on_the_cpu(tmp_path, monkeypatch):
    """Train with a separate learning rate and decay for each part of the model."""
    for name, value in dict(CONTEXT=16, LAYERS=1, VOCABULARY=64, BASE=32).items():
        monkeypatch.setattr(ch19_runs, name, value)
    settings = ch19_runs.Run.settings.fget
    few = property(lambda run: dataclasses.replace(settings(run), steps=3, warmup=1))
    monkeypatch.setattr(ch19_runs.Run, "settings", few)
    np.save(tmp_path / "stories.npy", np.random.default_rng(0).integers(0, 64, (6, 17)).astype(np.uint16))
    np.save(tmp_path / "lengths.npy", [3, 16, 9, 12, 5, 8])
    ch19_runs.text_of.cache_clear()
    run = ch19_runs.Run(64, 0, 0.003, batch=2, seed=3, rule="mup, independent")
    on_gpu = Device("gpu" if WHERE == "gpu" else "checked", "float32")
    host, there = (ch19_runs.train(run, tmp_path, on)[0].params.host() for on in (CPU, on_gpu))
    first = run.first_weights()
    for name in host:
        moved = np.linalg.norm(host[name] - first[name])
        assert 0 < moved and np.linalg.norm(host[name] - there[name]) < 1e-2 * moved, name


def test_ch19_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    (tmp_path / "lengths.npy").touch()  # marks the stories as already sampled
    runs = [ch19_runs.Run(32, 1000 * k, 0.01, batch=2) for k in (1, 2, 3)]
    monkeypatch.setattr(ch19, "runs_of", lambda section, out: runs)
    monkeypatch.setattr(ch19_runs, "work", lambda task: dataclasses.asdict(task[0]))
    threads = SimpleNamespace(Pool=ThreadPool, Value=multiprocessing.Value)
    monkeypatch.setattr(ch19.multiprocessing, "get_context", lambda name: threads)
    assert not ch19.sweep("pilot", tmp_path, 0, 1, seconds=-1) and ch19.sweep("pilot", tmp_path, 0, 1, seconds=1e9)
    assert [ch19_runs.Run(**row) for row in ch19.rows_of(tmp_path, "pilot")] == runs


def test_million_and_large(tmp_path, monkeypatch):
    """Run chapter 32 on two prepared corpora, then its large model and `base`, all by the command."""
    for number, name in enumerate(("classics", "featured")):
        (tmp_path / name).mkdir()
        for part, count in (("train", 4), ("valid", 2)):
            texts = [konigsberg.corpus(1000, 10 * number + i).replace(data.SEPARATOR, "\n") for i in range(count)]
            (tmp_path / name / f"{part}.txt").write_text(data.SEPARATOR.join(texts))
        parts = {"train.txt": {"documents": 4}, "valid.txt": {"documents": 2}}
        (tmp_path / name / "report.json").write_text(json.dumps({"parts": parts}))
    shape = "--dim 16 --heads 2 --kv-heads 1 --layers 1 --context 16"
    settings = "--warmup 1 --valid-every 3 --sample-every 0 --quiet"
    monkeypatch.setattr(million.Parts, "done", lambda *_, **names: None)
    million.run(million.Parts(tmp_path), tmp_path, "cpu", f"{shape} --steps 4 --batch 2 {settings}", 300)
    rows = million.read(tmp_path / "rows-parts.jsonl")
    assert [row["part"] for row in rows][-4:] == ["shards", "shards", "shards", "train"] and not rows[-1]["code"]
    run = dict(what="run", run="base", step_median=1.0, step_seconds=2.0, valid=[])
    stored = {"date": "1", "config": {"gpu": "x"}, "rows": [run], "machine": {"gpu": "x"}}
    (tmp_path / "ch32.json").write_text(json.dumps(stored))
    million.collect(tmp_path, tmp_path)
    assert [row["curve"][-1][0] for row in rows_in(tmp_path / "ch32.json") if row["what"] == "run"] == [4]

    small = dict(heads=2, kv_heads=1, context=16, vocab_size=304, predict=2)
    shapes = {"base": ModelConfig(dim=64, layers=1, **small), "large": ModelConfig(dim=128, layers=2, **small)}
    monkeypatch.setattr(large, "preset", shapes.get)
    monkeypatch.setattr(large, "ROWS", 16)
    parts = million.Parts(tmp_path / "out")
    monkeypatch.setattr(gpu_step, "ROUNDS", 1)
    changed = dict(shape=shape, settings=settings)
    large.runs(parts, tmp_path, 1, "cpu", **changed)
    for name in large.NAMES:
        large.timed(parts, tmp_path, name, 0.0, "cpu", **changed)
    (parts.out / "machine.json").write_text(json.dumps({"gpu": "new"}))
    old = [dict(what="step", model="base"), dict(what="run", run="base_pass")]
    (tmp_path / "large.json").write_text(json.dumps({"rows": old, "machine": {"gpu": "old"}}))
    large.collect(parts.out, tmp_path)
    rows = rows_in(tmp_path / "large.json")
    gpus = {row["run"]: row["gpu"] for row in rows if row["what"] == "run"}
    assert rows[0] == old[0] and gpus == dict.fromkeys(("base_pass", "base_time", "large_pass", "large_time"), "new")


def test_yardsticks(tmp_path, monkeypatch):
    (tmp_path / "held.txt").write_text(LINES)
    monkeypatch.setattr(yardsticks, "BEFORE", 20)
    monkeypatch.setattr(yardsticks, "ORDER", 2)
    tokenizer = Tokenizer.train(LINES, 300, special_tokens=(END_OF_TEXT,))
    shards.write(tmp_path / "held", [tmp_path / "held.txt"], tokenizer, workers=1)
    options = SimpleNamespace(data=[tmp_path / "held"], valid=[tmp_path / "held"], preset="base", items=8)
    assert [row["what"] for row in yardsticks.ngrams(options)] == ["ngrams", "cloze"] * 2
    options.data = options.valid = [tmp_path / "held.txt"]
    by_itself, behind = yardsticks.xz(options)
    assert behind["bits_per_byte"] < by_itself["bits_per_byte"], "a text after itself must shrink to nothing"


def test_race_takes_the_same_steps_on_both_sides(tmp_path, monkeypatch):
    """Compare in float32, across a change of the window's length; appendix A3 explains why."""
    beside_torch()
    tokenizer = Tokenizer.train(LINES, 264)
    for name, text in (("train", LINES), ("valid", LINES[:60].swapcase())):
        (tmp_path / f"{name}.txt").write_text(text)
        shards.write(tmp_path / name, [tmp_path / f"{name}.txt"], tokenizer, 1)
    shape = dataclasses.replace(TINY, dim=32, heads=1, context=32, layers=1, vocab_size=264)
    for name, value in dict(TOKENS=64, preset=lambda name: shape, FOLDER=tmp_path / "out").items():
        monkeypatch.setattr(race, name, value)
    for where, name in ((race.program, "MOVE"), (race.program, "SCHULZ"), (race.optim, "MUON_BETA")):
        monkeypatch.setattr(where, name, getattr(where, name))  # a run sets these names: restore them after the test
    options = SimpleNamespace(
        data=tmp_path / "train", valid=[tmp_path / "valid"], preset="tiny", device="checked", precision="float32",
        mode=None, where=WHERE, seeds=[3], change=dict(steps=3, warmup=1, rate=0.01, lengths=((0.4, 16), (1.0, 32))),
    )  # fmt: skip
    for options.section in ("recipe", "peer"):
        with open(tmp_path / f"rows-{options.section}.jsonl", "w") as file:
            race.runs(options, lambda row, file=file: file.write(json.dumps(row) + "\n"))
    (tmp_path / "config.json").write_text(json.dumps({"machine": {"card": "none"}}))
    race.collect(SimpleNamespace(source=tmp_path))
    rows = {row["section"]: row for row in rows_in(tmp_path / "out" / "race.json")}
    assert rows["recipe"]["losses"] == pytest.approx(rows["peer"]["losses"], rel=1e-4)
    assert rows["recipe"]["bits"] == pytest.approx(rows["peer"]["bits"], rel=1e-4)


def test_race_ends_with_the_mean_of_the_last_weights():
    """Compare with the mean of the weights of the same run without averaging, also as the products read it."""
    shape, options = dataclasses.replace(TINY, context=16), SimpleNamespace(device="checked", precision="bfloat16")
    recipe = race.RECIPE | dict(steps=5, warmup=1, lengths=((1.0, 16),), tokens=32)
    seen, batch = [], gpu_step.batch(shape, 2, 0)
    plain = race.Engine(options, shape, recipe, 0)
    mean = race.Engine(options, shape, recipe | dict(average=[0.8, 2]), 0)
    for made in (plain, mean):
        made.begin()
        for number in range(5):
            made.take(number, *batch)
            seen += [made.model.params.host().flat]
    assert not np.array_equal(seen[3], seen[4]) and all(map(np.array_equal, seen[:4], seen[5:9]))
    np.testing.assert_allclose(seen[9], (seen[2] + seen[4]) / 2, rtol=1e-6, atol=1e-9)
    again = engine.GPT(shape, mean.model.params.host(), precision="bfloat16", where=WHERE)
    np.testing.assert_array_equal(mean.model.logits(batch[0]), again.logits(batch[0]))


def test_english_from_the_books_to_the_model_in_the_package(tmp_path, monkeypatch):
    sizes = {3: {304: (32, 1, 1, 1)}, 6: {304: (64, 2, 1, 1), 336: (64, 2, 1, 1)}}
    tiny = dict(SHAPES=sizes, PASSES={3: 1, 6: 2}, CONTEXT=16, ROWS=2, PROMPTS=("Murr",), RATES=english.RATES[:2])
    for name, value in (tiny | dict(XZ=[dict(id=lzma.FILTER_LZMA2, preset=1)])).items():
        monkeypatch.setattr(english, name, value)
    monkeypatch.setenv("NANOEULER_DATA", str(tmp_path))
    (tmp_path / "books").mkdir()
    for file, count in ((english.BOOKS["train"], 12), (english.BOOKS["valid"], 5)):
        books = [f"Title {i}\n\n{konigsberg.sample(100 * count + i).text}" for i in range(count)]
        (tmp_path / "books" / file).write_bytes(lzma.compress(data.SEPARATOR.join(books).encode()))
    folders = dict(folder="work", runs="runs", package="package", results=".")
    common = [word for name, at in folders.items() for word in (f"--{name}", str(tmp_path / at))]
    common += "--device cpu --sizes 3 6 --steps 2 --tokens 3".split()
    english.main([*"prepare xz ngrams".split(), *common])
    english.main([*"pilot train measure --out".split(), str(tmp_path / "out"), *common])
    english.main(["collect", "--from", str(tmp_path / "out"), "--ship", "6", *common])
    kinds = [row["what"] for row in rows_in(tmp_path / "english.json")]
    assert {"text", "pilot", "run", "measured"} <= set(kinds) and kinds.count("measured") == len(sizes)
    found = checkpoint.load(tmp_path / "package" / english.NAME)
    assert found.model.config.dim == 64 and "United States" in found.info["licence"] and "files" not in found.info
