"""What one publishes: does it open, does its check tell damage, and does the card say what records say?"""

import json
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import safetensors.numpy
from oracles import run_text
from safetensors.numpy import load_file

from nanoeuler_lib import formats
from nanoeuler_lib.command import cli
from nanoeuler_lib.files import sha256
from nanoeuler_lib.formats import release, release_check
from nanoeuler_lib.training import checkpoint

TINY = "--steps 2 --batch 2 --dim 16 --heads 2 --kv-heads 1 --layers 1 --context 16 --vocab-size 300 --quiet"
LICENCE = "CC BY-SA 3.0: name the source | and share alike"


def record(text):
    part = {"documents": 3, "bytes": text.stat().st_size, "sha256": sha256(text)}
    return {"corpus": "tales", "about": "three tales", "licence": LICENCE, "source": "https://tales.example",
            "parts": {text.name: part}}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a run on a text that has its record, and its release."""
    pytest.importorskip("gguf")
    home = tmp_path_factory.mktemp("PRIVATE")
    (home / "tales").mkdir()
    text = home / "tales" / "train.txt"
    text.write_text(run_text())
    (home / "tales" / "report.json").write_text(json.dumps(record(text)))
    assert cli.main(f"train --data {text} --run {home}/run {TINY}".split()) == 0
    assert cli.main(f"release {home}/run --out {home}/out".split()) == 0
    return home


@pytest.fixture
def copy(made, tmp_path):
    return Path(shutil.copytree(made / "out", tmp_path / "out"))


def test_every_form_is_the_run(made):
    run, again = checkpoint.load(made / "run"), checkpoint.load(made / "out" / "nanoeuler")
    assert again.model.params.flat.tobytes() == run.model.params.flat.tobytes() and again.step == run.step == 2
    there = formats.import_run(made / "out", made / "back").model
    ids = np.arange(16)[None]
    assert np.array_equal(there.logits(ids), run.model.logits(ids)[..., :300])
    for form, name in (("gguf", "model.gguf"), ("hf", "hf")):
        formats.export(made / "run", form, made / "exported" / name)
    for name in ("model.gguf", "hf/model.safetensors", "hf/tokenizer.json"):
        assert sha256(made / "exported" / name) == sha256(made / "out" / name.removeprefix("hf/"))
    listed = (made / "out" / "SHA256SUMS").read_text().splitlines()
    files = {str(f.relative_to(made / "out")) for f in (made / "out").rglob("*") if f.is_file()}
    assert {line.split("  ")[1] for line in listed} == files - {"README.md", "SHA256SUMS"}
    assert not [f for f in files if "optimizer" in f]


def test_the_card_says_what_the_records_say(made, nanoeuler):
    card = (made / "out" / "README.md").read_text()
    assert f"licence: {LICENCE}" in card and sha256(made / "tales" / "train.txt") in card
    assert "three tales" in card and "## What it must not be used for" in card and "(loss.png)" in card
    info = checkpoint.read_head(made / "run")["info"]
    assert f"| bits per byte | {info['valid_bits_per_byte']:.4f}, held out |" in card
    assert "trained on | 64 tokens" in card
    (made / "run" / "checkpoints" / "x").mkdir()
    code, out, _ = nanoeuler(f"release {made}/run --out json --to hf --json")
    lines = Path("json/README.md").read_text().splitlines()
    told = {int(re.match(r"README.md:(\d+): ", line)[1]) for line in json.loads(out)["blank"]}
    assert told == {n for n, line in enumerate(lines, 1) if release.BLANK in line} and len(told) == 4
    assert code == 0 and not Path("json/model.gguf").exists() and "model.gguf" not in "\n".join(lines)


def test_no_path_of_this_machine_is_published(made, nanoeuler, lines, monkeypatch):
    """Of every kind of run; its paths, relative and absolute, have a name that no file of a release may hold."""
    monkeypatch.chdir(made / "tales")
    monkeypatch.setattr("konigsberg.tasks.DRAWS", 100)
    there, once = f"../../{made.name}", "--steps 1 --batch 2 --warmup 0 --quiet"
    shutil.copytree(checkpoint.PRETRAINED / "konigsberg-chat", made / "chat")
    lines(made / "asked.jsonl", [{"prompt": a, "chosen": a, "rejected": "no"} for a in "abcdefgh"])
    for run, words in enumerate((
        f"train --data {there}/tales/train.txt --valid {made}/tales/train.txt --from {there}/run {once}",
        f"dpo --base {there}/chat --data {there}/asked.jsonl {once}",
        f"grpo --base {made}/chat --questions 4 --group 2 --answer-tokens 8 {once}",
        f"import {there}/out",
    )):  # fmt: skip
        assert nanoeuler(f"{words} --run {run}")[0] == nanoeuler(f"release {run} --out of-{run} --to hf")[0] == 0
        files = [file for file in Path(f"of-{run}").rglob("*") if file.is_file()]
        assert files and not [file for file in files if b"PRIVATE" in file.read_bytes()]
    info = {"new": {"deep": ["/PRIVATE/a"]}, "base": "/PRIVATE/b/checkpoints/step-000001"}
    assert checkpoint.public(info) == {"new": {"deep": ["a"]}, "base": "b"}


def test_the_card_of_an_earlier_checkpoint_tells_its_own_steps(made, tmp_path):
    shutil.copytree(made / "run", tmp_path / "run")
    log = tmp_path / "run/log.jsonl"
    taken = next(entry for entry in map(json.loads, log.open()) if "loss" in entry) | {"tokens_per_second": 2}
    steps = [{"step": n, "seconds": 10**n, "warning": f"warned {n}"} for n in (1, 2, 3)]
    log.write_text("\n".join(json.dumps(taken | step) for step in steps))
    for step in (0, 2):
        release.release(tmp_path / f"run/checkpoints/step-{step:06}", tmp_path / f"{step}", ["hf"])
        card = (tmp_path / f"{step}/README.md").read_text()
        words = "220 tokens", "in 110 s of steps", "(loss.png)", "warned 2", "warned 3"
        assert [word in card for word in words] == [step == 2] * 4 + [False]


def test_the_check_tells_damage(copy):
    def checked():
        """How the folder's own check ends; with -S Python has nothing that was installed."""
        return subprocess.run([sys.executable, "-S", copy / "check.py"], capture_output=True, text=True, cwd="/")

    done = checked()
    assert done.returncode == 0 and "model.safetensors: as published" in done.stdout, done.stderr
    assert "logits: not compared, torch is not installed" in done.stdout
    assert "README.md: 4 lines are still to be filled in" in done.stdout
    (copy / "README.md").write_text("# filled in\n")
    names = "model.safetensors", "model.gguf", "nanoeuler/checkpoint.json"
    for name in names:
        content = (copy / name).read_bytes()
        (copy / name).write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    (copy / "tokenizer.json").unlink()
    done = checked()
    assert done.returncode == 1 and "logits:" not in done.stdout and "tokenizer.json: is missing\n" in done.stderr
    assert all(f"{name}: SHA-256 must be" in done.stderr for name in names) and done.stderr.count("\n") == 4


def test_the_check_compares_logits(copy, monkeypatch, capsys):
    """With stand-ins for the packages that compute them; off by so many times what is allowed, NaN or infinity."""
    logits = load_file(copy / "logits.safetensors")["logits"]
    found = SimpleNamespace(logits=logits[None].copy())
    theirs = SimpleNamespace(from_pretrained=lambda *_, **__: lambda tokens: found)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(no_grad=nullcontext, float32=None))
    monkeypatch.setitem(sys.modules, "safetensors.torch", safetensors.numpy)
    named = {"AutoModelForCausalLM": theirs, "__version__": "0"}
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(**named))
    monkeypatch.setattr(release_check, "HERE", copy)
    for off, right in ((0, True), (0.9, True), (1.1, False), (np.nan, False), (np.inf, False)):
        found.logits[0, 3, 5] = logits[3, 5] + off * release_check.APART * np.abs(logits).max()
        assert release_check.main() == (not right)
        assert ("apart, the largest" in capsys.readouterr().err) == (not right)


def test_what_no_record_says_is_to_be_filled_in(made, nanoeuler):
    """A record holds for the text that has its hash; the texts of a run that it began with are its texts as well."""
    text = made / "tales" / "train.txt"
    Path("other.txt").write_text("The king had a garden, and nobody knew of it.\n" * 40)
    once = "--steps 1 --quiet --batch 1 --warmup 1"
    assert nanoeuler(f"train --from {made}/run --data other.txt --run next {once}")[0] == 0

    def texts(run):
        return list(release._texts(checkpoint.read_head(run)["info"], False))

    assert texts(made / "run") == [record(text)]
    assert texts("next") == ["other.txt", record(text)]
    blank = release.release("next", "a", ["hf"], [made / "tales"])
    assert not [line for line in blank if "where it is from" in line]
    kept = text.read_text()
    text.write_text(kept + "x")
    assert texts(made / "run") == ["train.txt"]
    text.write_text(kept)
    away = made / "run" / "checkpoints"
    away.rename(made / "away")
    assert texts("next")[1].startswith("the texts of run,")
    (made / "away").rename(away)


def test_bad_input_is_one_line_and_leaves_nothing(made, nanoeuler, tmp_path, monkeypatch):
    def refused(words):
        code, _, told = nanoeuler(f"release {words}")
        assert code == 2 and told.startswith("nanoeuler: ") and told.count("\n") == 1
        return told

    run = f"{made}/run --out new"
    assert "report.json: must be a record" in refused(f"{run} --corpus .")
    with patch.dict(sys.modules, {"gguf": None}):
        assert "pip install gguf, or choose --to hf" in refused(run)
    with monkeypatch.context() as full:
        full.setattr(release, "save_file", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert "new: cannot be written (No space left" in refused(run)
    assert "none: no such folder, expected a checkpoint or a run folder" in refused("none --out new")
    assert not list(tmp_path.glob("*new*"))
    left = tmp_path / ".new.partial" / "nanoeuler"  # of a killed process
    left.mkdir(parents=True)
    (left / "x").write_text("half")
    assert nanoeuler(f"release {run} --to hf")[0] == 0 and not Path("new/nanoeuler/x").exists()
    before = sha256("new/SHA256SUMS")
    assert "new: already exists: choose a new name" in refused(run) and sha256("new/SHA256SUMS") == before
    shutil.copytree(checkpoint.PRETRAINED / "konigsberg-small", package := tmp_path / "we|ird <b>")
    blank = release.release(package, tmp_path / "c", ["hf"])  # no run: no log, no curves
    assert "# we\\|ird \\<b>\n" in (card := (tmp_path / "c" / "README.md").read_text()) and "user types" in card
    assert any("The log of the run is not here" in line for line in blank)
