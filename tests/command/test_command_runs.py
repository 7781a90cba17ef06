"""Test `nanoeuler train` and `nanoeuler sft`: their output and files, and how a run starts and resumes."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
from commands import SHORT
from oracles import assert_same_run, contents, run_text

from nanoeuler_lib.command import sources
from nanoeuler_lib.text.chat_template import alpaca_prompt
from nanoeuler_lib.text.data import SEPARATOR
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import checkpoint, run_folder

FEW = SHORT.removesuffix(" --valid-every 2 --sample-every 2 --save-every 2")


def head_of(run):
    return json.loads(Path(run, "run.json").read_text())


def test_train_says_what_it_will_do_and_what_came_out(here, nanoeuler):
    """Check that measuring the time of a step changes no bit: a quiet run gives the same weights."""
    settings = "SMALL --steps 60 --batch 4 --warmup 1 --valid-every 30 --sample-every 0 --workers 2"
    code, out, err = nanoeuler(f"train --data text.txt --run new {settings}")
    assert (code, err) == (0, "")
    data = head_of("new")["data"]
    lines = out.splitlines()
    size, tokens = checkpoint.load("new").model.size, data["train_tokens"]
    assert lines[0].startswith(f"model: {size:,} parameters; data: {tokens:,} train tokens, ")
    held_out = data["valid_tokens"] / (tokens + data["valid_tokens"])
    plan = f"plan: 60 steps of 48 tokens, 2,880 in all, {60 * 48 / tokens:.1f} passes over the data"
    assert lines[1] == f"{plan}; rows cover 100% of its tokens; {held_out:.1%} held out"
    assert lines[2].startswith("step 0: validation ")
    assert re.fullmatch(r"about \d+ s to go, at [\d.e-]+ s per step, measured now", lines[3])
    bits = checkpoint.load("new").info["valid_bits_per_byte"]
    done = rf"new: done, 60 steps, \d+ s this time; validation loss {bits:.4f} bits per byte"
    assert re.fullmatch(rf"{done}; [\d.]+% of the training text was used", lines[-3])
    parts = ", ".join(rf"{name} \d+\.\d s" for name in ("validation", "samples", "checkpoints"))
    assert re.fullmatch(rf"time outside the steps: {parts}, \d+\.\d% of the total", lines[-4])
    assert lines[-2:] == ["look at it: nanoeuler report new", "continue a prompt: nanoeuler generate PROMPT --run new"]
    code, out, _ = nanoeuler(f"train --data text.txt --run quiet --quiet {settings}")
    assert code == 0 and out.startswith("quiet: done, 60 steps, ") and out.count("\n") == 3
    assert_same_run("new", "quiet")
    code, out, _ = nanoeuler("train --resume new --steps 400")
    assert code == 0 and "plan: continue after step 60 up to 400 steps" in out
    assert out.index("warning: the data will repeat: 400 steps draw") < out.index("step 90: ")


def test_a_run_goes_on_from_anywhere_with_the_same_bits(here, nanoeuler, monkeypatch):
    """Resume a run: it records the paths of its text, validation text and tokenizer; options name a moved text."""
    Path("valid.txt").write_text("the cat ran. " * 20)
    shape = "--dim 16 --heads 2 --kv-heads 1 --layers 1 --context 12"
    texts = "--data text.txt --valid valid.txt --tokenizer bpe.json"
    assert nanoeuler(f"train {texts} --run new {shape} SHORT --quiet")[0] == 0
    head, found = head_of("new"), checkpoint.load("new")
    assert head["model"]["dim"] == 16 and head["train"]["steps"] == 4 and head["data"]["source"] == "text.txt"
    assert head["data"]["files"] == {name: str(here / f"{name}.txt") for name in ("text", "valid")}
    assert found.tokenizer.__reduce__() == Tokenizer.load("bpe.json").__reduce__()
    assert found.model.config.vocab_size == found.tokenizer.vocab_size == 260
    assert head["data"]["train_tokens"] == len(found.tokenizer.encode(run_text()))
    shutil.copytree("new", "parts")
    shutil.rmtree("parts/checkpoints/step-000004")
    Path("deeper").mkdir()
    monkeypatch.chdir("deeper")
    assert nanoeuler("train --resume ../parts --quiet")[0] == 0
    assert_same_run("../new", "../parts")
    Path("../valid.txt").rename("moved.txt")
    shutil.rmtree("../parts/checkpoints/step-000004")
    for more, said in (
        ("", "valid.txt: no such file, but the run began with it (valid): if it moved, give its new path with --valid"),
        ("--valid ../text.txt", "got a different one"),
    ):
        code, _, err = nanoeuler(f"train --resume ../parts {more}")
        assert code == 2 and said in err
    for more in ("--valid moved.txt", ""):  # the second time, the run has recorded the new path
        assert nanoeuler(f"train --resume ../parts --quiet {more}")[0] == 0
        assert_same_run("../new", "../parts")


def test_a_new_run_begins_with_the_model_of_another(here, nanoeuler):
    """Start from a run or its best checkpoint, with a different text and schedule; the first run does not change."""
    Path("other.txt").write_text(run_text().replace("cat", "dog"))
    before = contents(here)
    for source in ("run", "run/checkpoints/best"):
        more = f"--run new {FEW} --rate 1e-9 --sample-every 0 --quiet"
        code, _, err = nanoeuler(f"train --from {source} --data other.txt {more}")
        found, base = checkpoint.load("new"), checkpoint.load(source)
        assert (code, err) == (0, "") and found.info["base"] == str(base.path) and found.info["source"] == "other.txt"
        assert found.tokenizer.__reduce__() == base.tokenizer.__reduce__() and found.train.rate == 1e-9
        assert np.allclose(found.model.params.flat, base.model.params.flat, atol=1e-6)
        shutil.rmtree("new")
    assert contents(here) == before
    assert nanoeuler("shards other.txt --tokenizer bpe.json --out tokens")[0] == 0
    refused = nanoeuler("train --from run --data tokens --run new")
    assert refused[0] == 2 and "the tokenizer of run/checkpoints/step-000004, got tokens" in refused[2]
    shape = "--dim 16 --heads 2 --kv-heads 1 --layers 1 --context 12 --predict 2"
    for begun in (f"--run base {shape}", "--from base --run new"):
        assert nanoeuler(f"train --data tokens {begun} SHORT --valid-fraction 0 --quiet")[0] == 0
    assert checkpoint.load("new").info["base"] == "base/checkpoints/step-000004"


def test_the_best_checkpoint_stays_beside_the_last(here, nanoeuler):
    """Check that it has the step with the lowest validation loss, and can be used but not resumed."""
    before = checkpoint.load("run").model.params.flat
    code, out, _ = nanoeuler("train --resume run --steps 8 --rate 2")
    valid = [(e["valid_bits_per_byte"], e["step"]) for e in run_folder.read_log("run") if "valid_bits_per_byte" in e]
    assert code == 0 and min(valid[1:])[1] == 4, valid
    head = checkpoint.read_head("run/checkpoints/best")
    assert (head["step"], head["info"]["valid_bits_per_byte"]) == min(valid[1:])[::-1]
    assert "the checkpoint with the lowest validation loss is that of step 4: run/checkpoints/best\n" in out
    assert np.array_equal(checkpoint.load("run/checkpoints/best").model.params.flat, before)
    assert nanoeuler("generate a --run run/checkpoints/best --tokens 3")[0] == 0


def test_a_run_records_settings_that_begin_it_again(here, nanoeuler):
    """Check that the same run comes out, with the same bits, and that the command line wins over the file."""
    shape = "--preset big --dim 16 --heads 2 --kv-heads 1 --layers 1 --context 12 --vocab-size 258"
    Path("valid.txt").write_text("the cat ran. " * 20)
    settings = f"steps = '200tok'\nlr = 1\nbatch = 2\nsave_every = 2\nquiet = true\ndata = '{here}/text.txt'\n"
    Path("my.toml").write_text(settings)
    given = f"--valid valid.txt {shape} --batch 4 --warmup 1 --lr 1e-5"
    code, out, err = nanoeuler(f"train --config my.toml --run a {given}")
    assert (code, err) == (0, "") and out.startswith("a: done")
    found = head_of("a")["train"]
    assert [found[name] for name in ("steps", "rate", "batch", "save_every", "clip")] == [5, 1e-5, 4, 2, 1.0]
    recorded = tomllib.loads(Path("a/settings.toml").read_text())
    assert recorded["data"] == [str(here / "text.txt")] and recorded["lr"] == 1e-5 and recorded["predict"] == 4
    assert not {"run", "preset", "quiet", "config", "profile"} & recorded.keys() and recorded["steps"] == 5
    assert nanoeuler("train --config a/settings.toml --run b --quiet")[0] == 0
    assert_same_run("a", "b")
    assert nanoeuler("train --config a/settings.toml --data valid.txt --run c --quiet")[0] == 0
    assert head_of("c")["data"]["source"] == "valid.txt", "replaced, not extended"
    assert nanoeuler(f"train --from {here}/run --data {here}/text.txt --run d {FEW}")[0] == 0
    assert "dim" not in Path("d/settings.toml").read_text()
    assert nanoeuler("train --config d/settings.toml --run e --quiet")[0] == 0
    assert_same_run("d", "e")


def test_another_rate_on_resume_is_written_down(here, nanoeuler):
    code, out, _ = nanoeuler("train --resume run --steps 6 --rate 0.001")
    assert code == 0 and "from step 4 on: steps 4 -> 6\nfrom step 4 on: rate 0.003 -> 0.001\n" in out
    log = run_folder.read_log("run")
    assert [e["changed"] for e in log if "changed" in e] == ["steps 4 -> 6", "rate 0.003 -> 0.001"]
    assert max(e["rate"] for e in log if "rate" in e and e["step"] > 4) <= 0.001 == checkpoint.load("run").train.rate
    assert head_of("run")["train"]["rate"] == 0.001
    assert nanoeuler("report run")[0] == 0
    assert "| from step 4 on | rate 0.003 -> 0.001 |" in Path("run/report/report.md").read_text()


def test_a_run_without_validation(here, nanoeuler):
    """Train on the whole text: the run can be resumed and reported, and has no bits per byte."""
    code, out, err = nanoeuler("train --data text.txt --run new SMALL SHORT --valid-fraction 0")
    data, tokens = head_of("new")["data"], len(checkpoint.load("new").tokenizer.encode(run_text()))
    assert (code, err, data["valid_tokens"], data["train_tokens"]) == (0, "", 0, tokens)
    assert "there is no validation data" in out and "bits per byte;" not in out
    assert nanoeuler("train --resume new --steps 6 --quiet")[0] == 0 == nanoeuler("report new")[0]
    assert not Path("new/checkpoints/best").exists() and checkpoint.load("new").step == 6
    Path("valid.txt").write_text("the cat ran. " * 20)
    out = nanoeuler("train --data text.txt --run b SMALL SHORT --valid-fraction 0 --valid valid.txt")[1]
    assert "step 4: validation" in out


def test_without_its_optimizer_a_checkpoint_opens_for_use_only(here, nanoeuler):
    for file in Path("run").rglob("optimizer.safetensors"):
        file.unlink()
    for command in ("generate a --tokens 2 --run run", "info --run run", "info run"):
        code, out, _ = nanoeuler(command)
        assert code == 0 and ("info" not in command or "checkpoint: run/checkpoints/step-000004" in out)
    assert nanoeuler("train --from run --data text.txt --run new SHORT --quiet")[0] == 0
    before = contents(here)
    code, out, err = nanoeuler("train --resume run --steps 9")
    assert (code, out, err.count("\n")) == (2, "", 1) and "so it cannot be resumed" in err
    assert contents(here) == before


def test_tokens_become_steps_the_last_one_whole(here, nanoeuler):
    settings = "--steps 0.2ktok --batch 2 --accumulate 3 --warmup 1 --valid-every 144tok --save-every 73tok"
    assert nanoeuler(f"train --data text.txt --run new --quiet SMALL --sample-every 0 {settings}")[0] == 0
    found = head_of("new")["train"]  # 72 tokens per step
    assert [found[name] for name in ("steps", "valid_every", "save_every")] == [3, 2, 2]


def test_several_files_are_one_text_of_documents(here, nanoeuler, lines):
    texts = ["Käthe went home.\n" * 40, "Jürgen stayed.\n" * 40]
    Path("1.txt").write_text(texts[0])
    lines("2.jsonl", [{"text": texts[1]}])
    Path("both.txt").write_text(SEPARATOR.join(texts))
    shape = f"--vocab-size 300 --dim 16 --heads 2 --layers 1 --context 16 {FEW}"
    all_found = []
    for data in ("1.txt 2.jsonl", "1.txt --data 2.jsonl", "both.txt"):
        assert nanoeuler(f"tokenizer train --data {data} --vocab 300 --out t.json")[0] == 0
        assert nanoeuler(f"train --data {data} --run r --quiet {shape}")[0] == 0
        info = checkpoint.load("r").info
        all_found.append((Path("t.json").read_bytes(), info["fingerprint"], info["valid_fingerprint"]))
        Path("t.json").unlink()
        if "2.jsonl" in data:
            Path("2.jsonl").rename("moved.jsonl")
            assert "2.jsonl: no such file, but the run began with it" in nanoeuler("train --resume r --steps 6")[2]
            assert "--data must name 2 files, as when the run" in nanoeuler("train --resume r --data 1.txt")[2]
            assert nanoeuler("train --resume r --data 1.txt moved.jsonl --steps 6")[0] == 0
            Path("moved.jsonl").rename("2.jsonl")
        shutil.rmtree("r")
    assert all_found[0] == all_found[1], "the order of the options does not matter"
    assert all_found[0][0] == all_found[2][0], "the same tokenizer; of two files, the end of each is held out"
    Path("s").mkdir()
    Path("s/shards.json").touch()
    assert "only one folder if it has shards, got 2, among them s" in nanoeuler("train --data 1.txt s --run r")[2]


# sft


def test_what_sft_taught_is_chatted_with_and_goes_on(nanoeuler, monkeypatch):
    monkeypatch.setattr(sources, "HELD_OUT", 20)
    settings = "--examples 30 --steps 4 --batch 4 --warmup 1 --valid-every 4 --sample-every 0 --save-every 2"
    assert nanoeuler(f"sft --run whole --quiet {settings}")[0] == 0
    shutil.copytree("whole", "parts")
    shutil.rmtree("parts/checkpoints/step-000004")
    code, out, err = nanoeuler("sft --resume parts --quiet")
    assert (code, err) == (0, "") and out.startswith("parts: done, 4 steps, ") and "nanoeuler chat --run parts" in out
    assert_same_run("whole", "parts")
    assert nanoeuler("sft --config whole/settings.toml --run again --quiet")[0] == 0
    assert_same_run("whole", "again")
    info = checkpoint.load("parts").info
    assert info["template"] == "plain" and info["examples"] == ["konigsberg", 30, 201] and "turns" not in info
    code, out, err = nanoeuler("chat --run parts --temperature 0", stdin="/story 3\nWho?\n\n/x\nWho?\n")
    assert (code, err) == (0, "") and "(It answers: " in out and "/x is not a command" in out
    for ends in ("", "/quit\nWho?\n"):
        assert nanoeuler("chat --run parts", stdin=ends) == (0, "", "")


def test_sft_from_a_file_in_all_its_parts(nanoeuler, lines, monkeypatch):
    """Check that options reach the run, a resume finds moved examples, and the chat uses the run's template."""
    lines("lines.jsonl", [{"instruction": f"{n}", "response": "x"} for n in range(20)])
    settings = f"--data lines.jsonl --quiet --data-seed 0 --valid-fraction 0.3 --workers 1 --save-every 2 {FEW}"
    assert nanoeuler(f"sft --run new {settings}")[0] == 0
    info, data = checkpoint.load("new").info, head_of("new")["data"]
    assert (info["template"], info["workers"], info["examples"][2]) == ("alpaca", 1, 0)
    assert (data["train_examples"], data["valid_examples"], data["base"]) == (14, 6, "konigsberg-small")
    assert nanoeuler(f"sft --base new --run again {settings}")[0] == 0
    assert checkpoint.load("again").info["base"] == "new"
    seen = []

    def reply(self, text, tokens, seed, **options):
        seen.append((self.prompt_of("t"), tokens, seed, options["temperature"]))
        return iter(["a\x1b[2Jb"])

    monkeypatch.setattr("nanoeuler_lib.generation.chat.Chat.reply", reply)
    out = nanoeuler("chat --run new --tokens 7 --seed 3 --temperature 0.5", stdin="hi\nho\n")[1]
    assert seen == [(alpaca_prompt("t"), 7, 3, 0.5), (alpaca_prompt("t"), 7, 4, 0.5)]
    assert out == "a\x1b[2Jb\n" * 2  # a pipe gets the unchanged text
    shutil.copytree("new", "here/parts")
    shutil.rmtree("here/parts/checkpoints/step-000004")
    Path("lines.jsonl").rename("moved.jsonl")
    code, _, err = nanoeuler("sft --resume here/parts")
    assert code == 2 and "lines.jsonl: no such file" in err and "--data FILE" in err
    assert nanoeuler("sft --resume here/parts --data moved.jsonl --quiet")[0] == 0
    assert_same_run("new", "here/parts")
    assert nanoeuler("sft --resume here/parts --steps 6 --quiet")[0] == 0  # the run has recorded the new path
    assert checkpoint.load("here/parts").step == 6


def test_dialogues_of_many_turns_are_learnt_from_whole_or_their_last_turn_alone(nanoeuler, lines):
    """Train on ShareGPT's format with more turns than fit; a resumed run keeps its data."""
    turns = [{"from": who, "value": f"{n} " * 9} for n in range(6) for who in ("human", "gpt")]
    lines("talk.jsonl", [{"conversations": turns}] * 12)
    for run, more, rows in (("windows", "", "train rows"), ("last", "--last-turn", "")):
        settings = "--steps 2 --warmup 1 --batch 4 --sample-every 0"
        code, out, err = nanoeuler(f"sft --data talk.jsonl {settings} --run {run} {more}")
        assert (code, err) == (0, "") and "rows cover 100% of its reply tokens" in out and rows in out
        assert ("which do not contain the turns before them" in out) == (run == "windows")
        shutil.rmtree(f"{run}/checkpoints/step-000002")
        assert nanoeuler(f"sft --resume {run} --quiet")[0] == 0
        assert checkpoint.load(run).info["turns"] == run
