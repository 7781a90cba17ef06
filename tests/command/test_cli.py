"""The `nanoeuler` command: every subcommand, what it says about bad input, and that it then leaves everything alone."""

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from oracles import assert_same_run, run_text, seal

import konigsberg
from nanoeuler_lib import __version__
from nanoeuler_lib.command import arguments, cli
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.model import gradcheck
from nanoeuler_lib.text.chat_template import alpaca_prompt
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import checkpoint, run_folder

SMALL = "--vocab-size 258 --dim 16 --heads 2 --kv-heads 1 --layers 1 --context 12 --predict 2".split()
SHORT = "--steps 4 --batch 4 --warmup 1 --valid-every 2 --sample-every 2 --save-every 2".split()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A text, a run on it, a tokenizer: to be copied before they are changed."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "text.txt").write_text(run_text(), "utf-8")
    command = [
        "train",
        "--data",
        str(folder / "text.txt"),
        "--run",
        str(folder / "run"),
        "--quiet",
        *SMALL,
        *SHORT,
    ]
    assert cli.main(command) == 0
    Tokenizer.train(run_text(), 260).save(folder / "bpe.json")
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """A working directory that holds copies of them."""
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def nanoeuler(capsys):
    """Run the command in this process: its exit code, standard output and standard error."""

    def run(*arguments, stdin=None):
        content = stdin if isinstance(stdin, bytes) else (stdin or "").encode()
        with patch("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8")):
            try:
                code = cli.main([str(argument) for argument in arguments])
            except SystemExit as end:  # argparse's
                code = end.code
        return code, *capsys.readouterr()

    return run


def contents() -> dict:
    return {str(f): f.read_bytes() for f in Path.cwd().rglob("*") if f.is_file()}


# Each subcommand does its work.


def test_tokenizer(here, nanoeuler):
    code, out, err = nanoeuler(
        "tokenizer", "train", "--data", "text.txt", "--vocab", 262, "--out", "new.json", "--json"
    )
    assert (code, err) == (0, "")
    assert json.loads(out) == {"vocab_size": 262, "merges": 6, "out": "new.json"}
    tokenizer = Tokenizer.load("new.json")
    assert tokenizer.merges == Tokenizer.train(run_text(), 262, ()).merges
    text = "the cat, Käthe\n"
    code, out, _ = nanoeuler("tokenizer", "encode", text, "--tokenizer", "new.json")
    ids = [int(i) for i in out.split()]
    assert code == 0 and ids == tokenizer.encode(text).tolist() and max(ids) >= 256
    code, out, _ = nanoeuler("tokenizer", "encode", "--tokenizer", "new.json", "--json", stdin=text)
    found = json.loads(out)
    assert found["ids"] == ids and found["bytes"] == len(text.encode()) and len(found["tokens"]) == len(ids)
    assert nanoeuler("tokenizer", "decode", *ids, "--tokenizer", "new.json") == (0, text, "")
    code, out, _ = nanoeuler("tokenizer", "decode", "--tokenizer", "new.json", "--json", stdin=" ".join(map(str, ids)))
    assert json.loads(out) == {"text": text}


def test_tokenizer_with_end_of_text(here, nanoeuler):
    command = (
        "tokenizer",
        "train",
        "--data",
        "text.txt",
        "--vocab",
        262,
        "--out",
        "new.json",
        "--end-of-text",
    )
    memory = nanoeuler(*command)[1].splitlines()[0]
    assert memory == "0.0 MB to read; expected memory: up to 70 MB"
    assert "no more pairs to merge" in nanoeuler(*command[:5], 9999, "--out", "all.json")[1]
    assert Tokenizer.load("new.json").special_tokens == {END_OF_TEXT: 261}
    as_text = nanoeuler("tokenizer", "encode", END_OF_TEXT, "--tokenizer", "new.json")[1].split()
    assert "261" not in as_text and len(as_text) > 1
    assert nanoeuler("tokenizer", "encode", END_OF_TEXT, "--special", "--tokenizer", "new.json")[1] == "261\n"


def test_train_and_resume(here, nanoeuler):
    code, out, err = nanoeuler("train", "--data", "text.txt", "--run", "new", *SMALL, *SHORT)
    assert code == 0 and "new: done" in out and "step 4: validation" in out and err == ""
    head = json.loads(Path("new/run.json").read_text())
    assert head["model"]["dim"] == 16 and head["train"]["steps"] == 4 and head["data"]["source"] == "text.txt"
    assert head["data"]["files"] == {"text": str(here / "text.txt"), "valid": None}
    shutil.rmtree("new/checkpoints/step-000004")
    before = checkpoint.load("run").model.params.flat
    code, out, err = nanoeuler("train", "--resume", "new", "--data", "text.txt", "--quiet")
    assert (code, err) == (0, "") and out.startswith("new: done, 4 steps, ") and out.count("\n") == 3
    assert "nanoeuler report new\n" in out and re.search(r"validation \d\.\d{4} bits", out)
    assert np.array_equal(checkpoint.load("new").model.params.flat, before)


def test_train_with_tokenizer_and_validation_text(here, nanoeuler):
    Path("valid.txt").write_text("the cat ran. " * 20)
    texts = ["--data", "text.txt", "--valid", "valid.txt", "--tokenizer", "bpe.json"]
    code, _, err = nanoeuler("train", *texts, "--run", "new", *SMALL[2:], *SHORT, "--quiet")
    assert (code, err) == (0, "")
    found = checkpoint.load("new")
    assert found.model.config.vocab_size == found.tokenizer.vocab_size == 260
    head = json.loads(Path("new/run.json").read_text())
    assert head["data"]["train_tokens"] == len(found.tokenizer.encode(run_text()))


def test_a_new_run_begins_with_the_model_of_another(here, nanoeuler):
    """On another text, with a schedule of its own, from a run or from its best checkpoint; that run stays as it is."""
    Path("other.txt").write_text(run_text().replace("cat", "dog"))
    before = contents()
    for source in ("run", "run/checkpoints/best"):
        command = (
            "train",
            "--from",
            source,
            "--data",
            "other.txt",
            "--run",
            "new",
            *SHORT[:-6],
            "--rate",
            1e-9,
        )
        code, _, err = nanoeuler(*command, "--sample-every", 0, "--quiet")
        found, base = checkpoint.load("new"), checkpoint.load(source)
        assert (code, err) == (0, "") and found.info["base"] == str(base.path) and found.info["source"] == "other.txt"
        assert found.tokenizer.__reduce__() == base.tokenizer.__reduce__() and found.train.rate == 1e-9
        assert np.allclose(found.model.params.flat, base.model.params.flat, atol=1e-6)
        shutil.rmtree("new")
    assert contents() == before
    assert nanoeuler("shards", "other.txt", "--tokenizer", "bpe.json", "--out", "tokens")[0] == 0
    refused = nanoeuler("train", "--from", "run", "--data", "tokens", "--run", "new")
    assert refused[0] == 2 and "tokens, shards of another tokenizer than run/checkpoints/step-000004" in refused[2]
    for command in (
        ("--data", "tokens", "--run", "base", *SMALL[2:]),
        ("--from", "base", "--data", "tokens", "--run", "new"),
    ):
        assert nanoeuler("train", *command, *SHORT, "--valid-fraction", 0, "--quiet")[0] == 0
    assert checkpoint.load("new").info["base"] == "base/checkpoints/step-000004"


def test_the_best_checkpoint_stays_beside_the_last(here, nanoeuler):
    """Its step is that of the lowest validation; it opens for use, and no run goes on from it."""
    before = checkpoint.load("run").model.params.flat
    code, out, _ = nanoeuler("train", "--resume", "run", "--steps", 8, "--rate", 2)
    valid = [(e["valid_bits_per_byte"], e["step"]) for e in run_folder.read_log("run") if "valid_bits_per_byte" in e]
    assert code == 0 and min(valid[1:])[1] == 4, valid
    head = checkpoint.read_head("run/checkpoints/best")
    assert (head["step"], head["info"]["valid_bits_per_byte"]) == min(valid[1:])[::-1]
    assert "the best by validation is of step 4: run/checkpoints/best\n" in out
    assert np.array_equal(checkpoint.load("run/checkpoints/best").model.params.flat, before)
    assert nanoeuler("generate", "a", "--run", "run/checkpoints/best", "--tokens", 3)[0] == 0


def test_another_rate_on_resume_is_written_down(here, nanoeuler):
    code, out, _ = nanoeuler("train", "--resume", "run", "--steps", 6, "--rate", 0.001)
    assert code == 0 and "from step 4 on: steps 4 -> 6\nfrom step 4 on: rate 0.003 -> 0.001\n" in out
    log = run_folder.read_log("run")
    assert [e["changed"] for e in log if "changed" in e] == ["steps 4 -> 6", "rate 0.003 -> 0.001"]
    assert max(e["rate"] for e in log if "rate" in e and e["step"] > 4) <= 0.001 == checkpoint.load("run").train.rate
    assert json.loads(Path("run/run.json").read_text())["train"]["rate"] == 0.001
    assert nanoeuler("report", "run")[0] == 0
    assert "| from step 4 on | rate 0.003 -> 0.001 |" in Path("run/report/report.md").read_text()


def test_a_run_without_validation(here, nanoeuler):
    """All of the text is learnt from; the run goes on, is reported and gives no bits per byte."""
    command = ["train", "--data", "text.txt", "--run", "new", *SMALL, *SHORT, "--valid-fraction", 0]
    code, out, err = nanoeuler(*command)
    head = json.loads(Path("new/run.json").read_text())["data"]
    assert (code, err, head["valid_tokens"]) == (0, "", 0) and "there is nothing to validate on" in out
    assert (
        head["train_tokens"] == len(checkpoint.load("new").tokenizer.encode(run_text())) and "bits per byte;" not in out
    )
    assert nanoeuler("train", "--resume", "new", "--steps", 6, "--quiet")[0] == 0 == nanoeuler("report", "new")[0]
    assert not Path("new/checkpoints/best").exists() and checkpoint.load("new").step == 6
    Path("valid.txt").write_text("the cat ran. " * 20)
    assert "step 4: validation" in nanoeuler(*command[:4], "b", *command[5:], "--valid", "valid.txt")[1]


def test_without_its_optimizer_a_checkpoint_opens_for_use_alone(here, nanoeuler):
    for file in Path("run").rglob("optimizer.safetensors"):
        file.unlink()
    for command in (("generate", "a", "--tokens", 2, "--run"), ("info", "--run"), ("info",), ("report",)):
        code, out, _ = nanoeuler(*command, "run")
        assert code == 0 and ("info" not in command or "checkpoint: run/checkpoints/step-000004" in out)
    assert nanoeuler("info", "run", "--run", "b")[2] == "nanoeuler: info takes one run, got run and --run b\n"
    begun = ("train", "--from", "run", "--data", "text.txt", "--run", "new", *SHORT, "--quiet")
    assert nanoeuler(*begun)[0] == 0
    before = contents()
    code, out, err = nanoeuler("train", "--resume", "run", "--steps", 9)
    assert (code, out, err.count("\n")) == (2, "", 1) and "holds no optimizer state, expected" in err
    assert contents() == before


def test_dialogues_of_many_turns_are_learnt_from_whole_or_their_last_turn_alone(here, nanoeuler):
    """ShareGPT's form, with more turns than fit; what a run began with, it goes on with."""
    turns = [{"from": who, "value": f"{n} " * 9} for n in range(6) for who in ("human", "gpt")]
    Path("talk.jsonl").write_text("\n".join(json.dumps({"conversations": turns}) for _ in range(12)))
    command = [
        "sft",
        "--data",
        "talk.jsonl",
        "--steps",
        2,
        "--warmup",
        1,
        "--batch",
        4,
        "--sample-every",
        0,
        "--run",
    ]
    for name, more, rows in (("all", [], "train rows"), ("last", ["--last-turn"], "")):
        code, out, err = nanoeuler(*command, name, *more)
        assert (code, err) == (0, "") and "rows reach 100% of its reply tokens" in out and rows in out
        assert ("in which the turns before them are forgotten" in out) == (name == "all")
        shutil.rmtree(f"{name}/checkpoints/step-000002")
        assert nanoeuler("sft", "--resume", name, "--quiet")[0] == 0
    kinds = [checkpoint.load(name).info["turns"] for name in ("all", "last")]
    assert (
        kinds == ["windows", "last"] and "turns" not in checkpoint.load(checkpoint.PRETRAINED / "konigsberg-chat").info
    )


def test_generate(here, nanoeuler):
    code, out, err = nanoeuler("generate", "the cat", "--run", "run", "--tokens", 20)
    assert (code, err) == (0, "") and out.startswith("the cat") and len(out) > 10
    code, as_json, _ = nanoeuler("generate", "the cat", "--run", "run", "--tokens", 20, "--json")
    found = json.loads(as_json)
    assert code == 0 and found["prompt"] == "the cat" and "the cat" + found["continuation"] + "\n" == out
    assert nanoeuler("generate", "the cat", "--run", "run", "--tokens", 20, "--seed", 1)[1] != out
    greedy = [nanoeuler("generate", "--run", "run", "--temperature", 0, "--tokens", 9, "--seed", s)[1] for s in (1, 2)]
    assert greedy[0] == greedy[1]
    assert nanoeuler("generate", "Kä", "--run", "run", "--tokens", 0) == (0, "Kä\n", "")
    long = "the cat sat on a mat and ran " * 20  # more than a context: its end is read
    assert nanoeuler("generate", long, "--run", "run/checkpoints/step-000004", "--tokens", 20)[0] == 0


QUICK = "--examples 30 --steps 4 --batch 4 --warmup 1 --valid-every 2 --sample-every 2 --save-every 2".split()


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    """A run that taught the model of the package a little: to be copied before it is changed."""
    run = tmp_path_factory.mktemp("answering") / "run"
    assert cli.main(["sft", "--run", str(run), "--quiet", *QUICK]) == 0
    return run


def test_sft_and_chat(here, answering, nanoeuler):
    shutil.copytree(answering, "answers")
    found = checkpoint.load("answers")
    assert found.info["template"] == "plain" and found.info["examples"] == ["konigsberg", 30, 201]
    code, out, err = nanoeuler("chat", "--run", "answers", "--temperature", 0, stdin="/story 3\nWho?\n\n/x\nWho?\n")
    assert (code, err) == (0, "") and "/x is not a command" in out
    story = konigsberg.sample(3).text.rpartition("\n")[0]
    assert out.startswith(f"{story}\n") and len(out.splitlines()) >= 4
    assert nanoeuler("chat", "--run", "answers", stdin="") == (0, "", "")
    assert nanoeuler("chat", "--run", "answers", stdin="/quit\nWho?\n") == (0, "", "")


def test_sft_goes_on(here, answering, nanoeuler):
    shutil.copytree(answering, "whole")
    shutil.copytree(answering, "parts")
    shutil.rmtree("parts/checkpoints/step-000004")
    code, out, err = nanoeuler("sft", "--resume", "parts", "--quiet")
    assert (code, err) == (0, "") and out.startswith("parts: done, 4 steps, ") and "nanoeuler chat --run parts" in out
    assert_same_run("whole", "parts")


def test_sft_from_a_run_and_a_file(here, nanoeuler):
    lines = [{"instruction": c, "response": c.upper()} for c in "abcdefghij"]
    Path("lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    long = nanoeuler("sft", "--base", "run", "--data", "lines.jsonl", "--run", "new", "--quiet", *QUICK)
    assert long[0] == 2 and "0 of 9 training examples fit in 12 tokens" in long[2] and not Path("new").exists()
    talk = [[{"role": "user", "content": c}, {"role": "assistant", "content": c.upper()}] for c in "abcdefghij"]
    Path("talk.jsonl").write_text("\n".join(json.dumps({"messages": messages}) for messages in talk))
    code, out, err = nanoeuler("sft", "--base", "run", "--data", "talk.jsonl", "--run", "new", "--quiet", *QUICK)
    assert (code, err) == (0, "") and "nanoeuler chat --run new" in out
    assert checkpoint.load("new").tokenizer.vocab_size == checkpoint.load("run").tokenizer.vocab_size + 3


def test_sft_from_a_file_in_all_its_parts(here, nanoeuler, monkeypatch):
    """Options reach the run, a resume takes the same examples, and the chat puts the run's template on."""
    lines = [{"instruction": f"{n}", "response": "x"} for n in range(20)]
    Path("lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = [
        "--data-seed",
        0,
        "--valid-fraction",
        0.3,
        "--workers",
        1,
        "--steps",
        4,
        "--batch",
        4,
        "--warmup",
        1,
        "--save-every",
        2,
    ]
    assert nanoeuler("sft", "--data", "lines.jsonl", "--run", "new", "--quiet", *options)[0] == 0
    info = checkpoint.load("new").info
    assert (info["template"], info["workers"], info["examples"][2]) == ("alpaca", 1, 0)
    head = json.loads(Path("new/run.json").read_text())["data"]
    assert (head["train_examples"], head["valid_examples"], head["base"]) == (14, 6, "konigsberg-small")
    shutil.copytree("new", "parts")
    shutil.rmtree("parts/checkpoints/step-000004")
    assert nanoeuler("sft", "--resume", "parts", "--quiet")[0] == 0
    assert_same_run("new", "parts")
    assert nanoeuler("sft", "--base", "new", "--data", "lines.jsonl", "--run", "again", "--quiet", *options)[0] == 0
    assert checkpoint.load("again").info["base"] == "new"
    seen = []
    monkeypatch.setattr(
        "nanoeuler_lib.generation.chat.Chat.reply",
        lambda self, text, tokens, seed, **options: (
            seen.append((self.prompt_of("t"), tokens, seed, options["temperature"])) or iter(["a\x1b[2Jb"])
        ),
    )
    _, out, _ = nanoeuler("chat", "--run", "new", "--tokens", 7, "--seed", 3, "--temperature", 0.5, stdin="hi\nho\n")
    prompt = alpaca_prompt("t")
    assert seen == [(prompt, 7, 3, 0.5), (prompt, 7, 4, 0.5)]
    assert out == "a\x1b[2Jb\n" * 2  # a pipe gets the text as it is


@pytest.fixture
def quick_check(monkeypatch):
    """The command on a model of a few hundred numbers, not of thousands."""
    config = ModelConfig(dim=8, heads=4, kv_heads=2, layers=1, context=5, vocab_size=6, predict=2, ffn=5)
    monkeypatch.setattr(gradcheck, "check_model", partial(gradcheck.check_model, config, time=3))


def test_check(quick_check, nanoeuler):
    code, out, err = nanoeuler("check")
    assert (code, err) == (0, "")
    assert gradcheck.DEFINITION in out and gradcheck.DEFINITION_NORM in out
    assert out.count("passed") == 2 and out.count("layers.0.qkv") == 2 and "WRONG" not in out
    code, out, _ = nanoeuler("check", "--ops", "plain", "--json")
    found = json.loads(out)
    assert code == 0 and found["passed"] is True and set(found["weights_std"]) == {"0.3", "0.02"}
    assert {row["name"] for row in found["weights_std"]["0.3"]} >= {"embed", "layers.0.norm1", "heads"}


def test_info(here, nanoeuler):
    code, out, err = nanoeuler("info")
    assert (
        (code, err) == (0, "") and "parameters: 1,053,824, 4.2 MB" in out and "layers.3.qkv" in out and "128x256" in out
    )
    found = json.loads(nanoeuler("info", "--preset", "base", "--json")[1])
    assert found["parameters"] == 116_417_280 and found["model"]["layers"] == 16
    assert sum(int(np.prod(shape)) for shape in found["tensors"].values()) == found["parameters"]
    found = json.loads(nanoeuler("info", "--run", "run", "--json")[1])
    assert found["step"] == 4 and found["model"]["dim"] == 16 and found["valid_bits_per_byte"] > 0
    config = ModelConfig.from_dict(found["model"])
    from nanoeuler_lib.model.plan import Plan

    plan = Plan(config, 1, config.context)
    assert found["plan_bytes_one_row"] == plan.nbytes and found["parameters"] == checkpoint.load("run").model.size


def test_corpus(tmp_path, monkeypatch, nanoeuler):
    pytest.importorskip("konigsberg")
    monkeypatch.chdir(tmp_path)
    code, out, err = nanoeuler("corpus", "konigsberg", "--bytes", 3000, "--seed", 3, "--out", "w.txt", "--json")
    found = json.loads(out)
    text = Path("w.txt").read_text("utf-8")
    assert (code, err) == (0, "") and found["bytes"] == len(text.encode()) and 0 < found["floor_bits_per_byte"] < 3
    code, said, _ = nanoeuler("corpus", "konigsberg", "--bytes", 3000, "--seed", 3, "--out", "again.txt")
    assert code == 0 and re.fullmatch(
        r"again.txt: (\d+) bytes\nthe source itself needs (0\.\d{4}) bits per byte of it: .*\n", said
    ).groups() == (str(len(text.encode())), f"{konigsberg.floor(text.split(konigsberg.SEPARATOR)):.4f}")
    code, out, _ = nanoeuler("corpus", "konigsberg", "--bytes", 3000, "--seed", 3)
    assert code == 0 and out == text
    assert nanoeuler("corpus", "konigsberg", "--bytes", 3000, "--seed", 4)[1] != text


def test_version(nanoeuler):
    assert nanoeuler("--version") == (0, f"nanoeuler {__version__}\n", "")


# Help.


def test_every_documented_command_parses():
    """The examples below `nanoeuler --help`, taken apart as a shell would."""
    for line in arguments.EXAMPLES.splitlines():
        if line.startswith("  nanoeuler "):
            assert cli.parser().parse_args(shlex.split(line.split("   ")[0])[1:]).function


# Bad input: one line on standard error, exit code 2, nothing changed.


def _texts():
    Path("short.txt").write_text("hello")
    Path("one.txt").write_text("Q")
    Path("folder").mkdir()
    Path("folder/keep.txt").write_text("mine")
    Path("list.json").write_text("[1, 2]")
    Path("cut.json").write_text(Path("bpe.json").read_text()[:200])
    shutil.copytree("run", "moved")
    checkpoints = Path("moved/checkpoints")
    for folder in checkpoints.iterdir():
        seal(
            folder,
            info=json.loads((folder / "checkpoint.json").read_text())["info"] | {"files": {"text": "/none/text.txt"}},
        )
    lines = [{"instruction": "a", "output": "b"}, {"instruction": "a", "output": "\ud800"}]
    Path("half.jsonl").write_text("\n".join(map(json.dumps, lines)))
    Path("key.jsonl").write_text(json.dumps({"x" * 100_000: 1}))


TRAIN = ("train", "--run", "new", *SMALL, *SHORT, "--data")
BAD = {
    "text missing": ((*TRAIN, "nothing.txt"), "nothing.txt: no such file"),
    "text a folder of none": (
        (*TRAIN, "run/checkpoints"), "run/checkpoints: a folder must hold texts (.txt, .md, .jsonl, .parquet, also"),
    "batch too large": ((*TRAIN, "text.txt", "--batch", 2**50), "batch times accumulate must be at most"),
    "text too short": ((*TRAIN, "short.txt"), "tokens, expected at least 14"),
    "validation text too short": (
        (*TRAIN, "text.txt", "--valid", "one.txt"), "here/one.txt: validation part has 1 tokens, expected at least 2"),
    "context too long": (
        (*TRAIN, "text.txt", "--context", 100_000), "at least 100002, 100000 of --context and 2 of --predict"),
    "seed of nanoseconds": (
        (*TRAIN, "text.txt", "--seed", 1_764_000_000_000_000_000), "expected a whole number from 0 to 2^53 - 1"),
    "folder of checkpoints": (
        ("generate", "a", "--run", "run/checkpoints"), "holds checkpoints, expected its run run, or one of them: "
        "run/checkpoints/step-000004"),
    "from and resume": (("train", "--resume", "run", "--from", "run"), "--from begins a new one with the model of"),
    "from without a text": (
        ("train", "--from", "run", "--run", "new"), "--data is missing, expected --from run --data FILE --run FOLDER"),
    "from with a shape": ((*TRAIN, "text.txt", "--from", "run"), "--from takes shape and tokenizer from run, got"),
    "best to go on from": (
        ("train", "--resume", "run/checkpoints/best"), "best: is a checkpoint, expected its run folder: run"),
    "data seed": (("sft", "--run", "new", "--data-seed", 2**53), f"--data-seed is {2**53}, expected 0 to 2^53 - 1"),
    "examples": (("sft", "--run", "new", "--examples", 2**53), f"--examples is {2**53}, expected 0 to 2^53 - 1"),
    "last turn of stories": (("sft", "--run", "new", "--last-turn"), "expected --data FILE too"),
    "heads do not divide": ((*TRAIN, "text.txt", "--heads", 3), "dim is 16, expected a multiple of heads (3)"),
    "more memory than there is": (
        (*TRAIN, "text.txt", "--dim", 2**20, "--heads", 2**12, "--kv-heads", 2**12), "GiB at least, and this machine"),
    "run exists": (("train", "--data", "text.txt", "--run", "run"), "run: exists and is not an empty folder"),
    "tokenizer missing": ((*TRAIN, "text.txt", "--tokenizer", "none.json"), "none.json"),
    "tokenizer too large": (
        (*TRAIN, "text.txt", "--tokenizer", "bpe.json"), "tokenizer has 260 tokens, expected at most"),
    "tokenizer cut off": ((*TRAIN, "text.txt", "--tokenizer", "cut.json"), "cut.json"),
    "tokenizer another JSON": ((*TRAIN, "text.txt", "--tokenizer", "list.json"), "list.json"),
    "resume nothing": (("train", "--resume", "none", "--data", "text.txt"), "none: no such folder"),
    "resume no run": (("train", "--resume", "folder", "--data", "text.txt"), "folder: holds no checkpoint"),
    "resume another text": (("train", "--resume", "run", "--data", "other.txt"), "not the text the run began with"),
    "text that moved": (
        ("train", "--resume", "moved"), "text.txt: no such file; it is the text that the run began with. If it "
        "moved, say where it is now: --data FILE"),
    "text a device": ((*TRAIN, "/dev/zero"), "/dev/zero: is a device"),
    "text NUL": ((*TRAIN, "a\0b"), "cannot be read"),
    "preset mistyped": (
        (*TRAIN, "text.txt", "--preset", "bigg"), "expected one of small, big, base, large, did you mean big?"),
    "tool mistyped": (("diagnose", "--tool", "scheduled"), "did you mean schedule?"),
    "break nowhere": (("break", "--reveal", "nowhere"), "nowhere: no broken copy of this version, expected a folder"),
    "sft surrogate": (("sft", "--data", "half.jsonl", "--run", "new"), "half.jsonl: line 2 holds '\\ud800', half a"),
    "sft long key": (("sft", "--data", "key.jsonl", "--run", "new"), "key.jsonl: line 1 has keys ['xxxxxxxxxxxx..."),
    "resume with a zero": (("train", "--resume", "run", "--data", "text.txt", "--warmup", 0), "got also --warmup"),
    "temperature negative": (
        ("generate", "a", "--run", "run", "--temperature", -1), "temperature is -1.0, expected 0 to 100"),
    "too many proposals": (("generate", "a", "--run", "run", "--propose", 2), "propose is 2, expected 0 to 1"),
    "sampling seed negative": (("generate", "a", "--run", "run", "--seed", -1), "--seed is -1, expected 0 or more"),
    "chat with a base model": (("chat", "--run", "run"), "expected that of a model made to answer (nanoeuler sft)"),
    "sft negative": (("sft", "--run", "new", "--examples", -1), "--examples is -1, expected 0 to 2^53 - 1"),
    "tokens negative": (("generate", "a", "--run", "run", "--tokens", -1), "--tokens is -1, expected 0 or more"),
    "corpus of nothing": (("corpus", "konigsberg", "--bytes", 0), "--bytes is 0, expected at least 1"),
    "decode negative id": (("tokenizer", "decode", -1, "--tokenizer", "bpe.json"), "token id is -1, expected 0 to 259"),
    "sft of nothing": (("sft", "--data", "none.json", "--run", "new"), "none.json: cannot be read"),
    "sft of text": (("sft", "--data", "text.txt", "--run", "new"), "text.txt: line 1 is not JSON"),
    "sft over a run": (("sft", "--run", "run", "--examples", 9), "run: exists and is not an empty folder"),
    "sft resumes pretraining": (("sft", "--resume", "run"), "was not begun by nanoeuler sft"),
    "resume of a checkpoint": (
        ("train", "--resume", "run/checkpoints/step-000004", "--data", "text.txt"), "is a checkpoint, expected its"),
    "train resumes sft": (("train", "--resume", "run", "--data", "bpe.json"), "fingerprint"),
    "prompt not UTF-8": (("generate", "a\udcff", "--run", "run"), "character 1 is not UTF-8"),
    "encode not UTF-8": (("tokenizer", "encode", "a\udcff", "--tokenizer", "bpe.json"), "character 1 is not UTF-8"),
    "decode words": (
        ("tokenizer", "decode", "hi", "--tokenizer", "bpe.json"), "token id is 'hi', expected a whole number"),
    "decode unknown id": (
        ("tokenizer", "decode", 260, "--tokenizer", "bpe.json"), "token id is 260, expected 0 to 259"),
    "tokenizer too small": (
        ("tokenizer", "train", "--data", "text.txt", "--vocab", 9, "--out", "new.json"), "vocab_size is 9"),
    "corpus seed negative": (("corpus", "konigsberg", "--seed", -1), "--seed is -1, expected 0 or more"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, here, nanoeuler):
    arguments, expected = BAD[case]
    _texts()
    Path("other.txt").write_text(run_text().replace("cat", "dog"))
    before = contents()
    code, out, err = nanoeuler(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("nanoeuler: ") and err.endswith("\n") and err.count("\n") == 1, err
    assert expected in err and len(err) < 700 and err[:-1].isprintable()
    assert contents() == before
    assert not Path("new").exists() and not Path("new.json").exists()


@pytest.mark.parametrize("command", ["generate", "chat", "info", "train", "sft"])
def test_damaged_checkpoint(command, here, nanoeuler):
    path = Path("run/checkpoints/step-000004/model.safetensors")
    path.write_bytes(path.read_bytes()[:-9])
    before = contents()
    more = {"train": ["--resume", "run", "--data", "text.txt"], "sft": ["--base", "run", "--run", "new"]}
    more = more.get(command, ["--run", "run"])
    code, out, err = nanoeuler(command, *more, stdin="the\n")
    assert (code, out) == (2, "") and err.startswith("nanoeuler: run") and err.count("\n") == 1, err
    assert contents() == before


# As a process of its own.


def process(*arguments, environment=None, **options):
    root = str(Path(cli.__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"} | (environment or {"PYTHONUTF8": "1"})
    command = [sys.executable, "-m", "nanoeuler_lib.command.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=120, env=environment, **options)


def test_process(here):
    """From nothing to a trained model in one process each, as a user does it."""
    done = process("train", "--data", "text.txt", "--run", "new", *SMALL, *SHORT)
    assert done.returncode == 0 and done.stderr == b"" and b"new: done" in done.stdout
    done = process("generate", "the cät", "--run", "new", "--tokens", 8)
    assert done.returncode == 0 and done.stdout.decode().startswith("the cät") and done.stderr == b""
    high = ["--rate", 10, "--warmup", 0, "--clip", 0, "--decay", 10, "--steps", 200]
    done = process("train", "--data", "text.txt", "--run", "wild", *SMALL, *SHORT, *high)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and done.stderr.startswith(b"nanoeuler: step")


def test_encode_and_decode_give_the_bytes_back(here):
    """Line ends of every kind, and none at the end."""
    for content in ("a\r\nb\rc\n\nKäthe \u2028 \x00 d".encode(), b"x", b"", b"\n"):
        ids = process("tokenizer", "encode", "--tokenizer", "bpe.json", input=content)
        assert ids.returncode == 0 and ids.stderr == b""
        back = process("tokenizer", "decode", "--tokenizer", "bpe.json", input=ids.stdout)
        assert (back.returncode, back.stdout, back.stderr) == (0, content, b"")
    ids = process("tokenizer", "encode", "--tokenizer", "bpe.json", input=b"a\r\nb").stdout.split()
    assert [int(i) for i in ids] == Tokenizer.load("bpe.json").encode("a\r\nb").tolist()
    half = Tokenizer.load("bpe.json").encode("ü")[:1]  # half a character is half a character
    assert process("tokenizer", "decode", "--tokenizer", "bpe.json", *half).stdout == "ü".encode()[:1]


@pytest.mark.parametrize("locale", ["POSIX", "C.UTF-8"])
def test_a_locale_without_umlauts(here, locale):
    """The bytes of an argument are UTF-8 whatever the locale; a file gets UTF-8."""
    environment = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = process("generate", "Käthe", "--run", "run", "--tokens", 0, environment=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Käthe\n".encode(), b"")
    done = process("tokenizer", "encode", "--tokenizer", "bpe.json", input="ü".encode(), environment=environment)
    assert len(done.stdout.split()) == len(Tokenizer.load("bpe.json").encode("ü")) and done.returncode == 0


def shell(line, **options):
    """A line for bash in which NE is the command."""
    root = str(Path(cli.__file__).parents[2])
    line = line.replace("NE ", f"{sys.executable} -m nanoeuler_lib.command.cli ")
    environment = os.environ | {"PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(["bash", "-c", line], capture_output=True, timeout=120, env=environment, **options)


TINY = f"--data text.txt {' '.join(SMALL)} --batch 4 --warmup 1 --valid-every 1 --workers 1"
GONE = {
    "reader of both": f"NE train --run new --steps 60 {TINY} 2>&1 | head -n 1; exit ${{PIPESTATUS[0]}}",
    "all three": f"NE train --run new --steps 60 {TINY} <&- >&- 2>&-",
    "full": f"NE train --run new --steps 60 {TINY} >/dev/full 2>/dev/full",
}


@pytest.mark.parametrize("gone", GONE)
def test_training_outlives_its_output(here, gone):
    """Nobody reads what it prints: it goes on to the end, and its files are those of any run."""
    done = shell(GONE[gone])
    assert done.returncode == 0 and b"Traceback" not in done.stderr and b"Exception" not in done.stderr
    assert checkpoint.load("new", training=True).step == 60
    assert [e["step"] for e in run_folder.read_log("new") if "loss" in e] == list(range(1, 61))
    assert json.loads(Path("new/run.json").read_text())["train"]["steps"] == 60
    assert sorted(f.name for f in Path("new").iterdir()) == ["checkpoints", "lock", "log.jsonl", "run.json"]


@pytest.mark.parametrize("command", ["generate a --run run", "info", "--help"])
@pytest.mark.parametrize("sink", [">&-", ">/dev/full"])
def test_output_that_cannot_be_written(here, command, sink):
    """Output is what these commands are for: one line, exit code 2."""
    done = shell(f"NE {command} {sink}")
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1
    assert done.stderr.startswith(b"nanoeuler: standard output: ")


def test_a_complaint_that_cannot_be_written(here):
    """The exit code still says what happened."""
    assert shell("NE info --run none >/dev/full 2>/dev/full").returncode == 2


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs pseudo-terminals")
def test_a_terminal_that_is_closed(here):
    """The shell and what runs in it are hung up: a checkpoint of the last whole step, and the run can go on."""
    import pty
    import time

    root = str(Path(cli.__file__).parents[2])
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1"}
        many = TINY.replace("--valid-every 1 ", "--valid-every 1000 ").split()
        command = ["train", "--run", "new", "--steps", "1000000", "--save-every", "1000000", *many]
        os.execv(sys.executable, [sys.executable, "-m", "nanoeuler_lib.command.cli", *command])
    until = time.monotonic() + 60
    while not (Path("new/log.jsonl").exists() and Path("new/log.jsonl").read_bytes().count(b'"loss"') > 5):
        assert time.monotonic() < until
        os.read(terminal, 1000)
    os.close(terminal)
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.05)
    assert os.waitstatus_to_exitcode(ended[1]) == 130
    found = checkpoint.load("new", training=True)
    assert found.step == max(entry["step"] for entry in run_folder.read_log("new")) > 5


def test_resume_from_anywhere(here, nanoeuler, monkeypatch, tmp_path):
    """The run knows where its text and its validation text are, and is told when they have moved."""
    Path("valid.txt").write_text("the cat ran. " * 20)
    texts = ["--data", "text.txt", "--valid", "valid.txt"]
    assert nanoeuler("train", *texts, "--run", "new", *SMALL, *SHORT, "--quiet")[0] == 0
    shutil.copytree("new", "parts")
    shutil.rmtree("parts/checkpoints/step-000004")
    monkeypatch.chdir(tmp_path)
    assert nanoeuler("train", "--resume", "here/parts", "--quiet")[0] == 0
    assert_same_run("here/new", "here/parts")
    Path("here/valid.txt").rename("moved.txt")
    shutil.rmtree("here/parts/checkpoints/step-000004")
    code, _, err = nanoeuler("train", "--resume", "here/parts")
    assert code == 2 and "valid.txt: no such file; it is the valid" in err and "--valid FILE" in err
    code, _, err = nanoeuler("train", "--resume", "here/parts", "--valid", "here/text.txt")
    assert code == 2 and "not the validation text the run began with, which --valid FILE names" in err
    assert nanoeuler("train", "--resume", "here/parts", "--valid", "moved.txt", "--quiet")[0] == 0
    assert_same_run("here/new", "here/parts")
    assert nanoeuler("train", "--resume", "here/parts", "--quiet")[0] == 0  # it knows the new place


def test_sft_resume_from_anywhere(here, nanoeuler, monkeypatch, tmp_path):
    lines = [{"instruction": f"{n}", "response": "x"} for n in range(30)]
    Path("lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = ["--valid-fraction", 0.3, *QUICK[2:], "--quiet"]
    assert nanoeuler("sft", "--data", "lines.jsonl", "--run", "new", *options)[0] == 0
    shutil.copytree("new", "parts")
    shutil.rmtree("parts/checkpoints/step-000004")
    monkeypatch.chdir(tmp_path)
    Path("here/lines.jsonl").rename("lines.jsonl")
    code, _, err = nanoeuler("sft", "--resume", "here/parts")
    assert code == 2 and "lines.jsonl: no such file" in err and "--data FILE" in err
    assert nanoeuler("sft", "--resume", "here/parts", "--data", "lines.jsonl", "--quiet")[0] == 0
    assert_same_run("here/new", "here/parts")
    assert nanoeuler("sft", "--resume", "here/parts", "--steps", 6, "--quiet")[0] == 0
    assert checkpoint.load("here/parts").step == 6


def test_sft_says_what_it_leaves_out(here, nanoeuler):
    """Before the first step, in the log and in the report; a rest that measures nothing is refused."""
    lines = [{"instruction": "x" * (900 if n % 3 else 5), "response": f"{n}"} for n in range(90)]
    Path("lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = ["--data", "lines.jsonl", "--run", "new", "--steps", 1, "--sample-every", 0]
    code, out, err = nanoeuler("sft", *options)
    assert code == 2 and "lines.jsonl: 3 of 9 validation examples fit in 128 tokens, expected at least 5" in err
    assert not Path("new").exists()
    code, out, err = nanoeuler("sft", *options, "--valid-fraction", 0.5)
    assert code == 0 and re.search(r"warning: \d+ of 45 training examples fit in 128 tokens; the others", out)
    assert out.index("warning: ") < out.index("step 0: validation")
    assert nanoeuler("report", "new")[0] == 0
    assert "of 45 training examples fit in 128 tokens" in Path("new/report/report.md").read_text()
    assert "3 warnings" in out and "warning: the warm-up of 50 steps is longer than the run of 1" in out


def test_tokens_become_steps_the_last_one_whole(here, nanoeuler):
    settings = "--steps 0.2ktok --batch 2 --accumulate 3 --warmup 1 --valid-every 144tok --save-every 73tok".split()
    command = ["train", "--data", "text.txt", "--run", "new", "--quiet", *SMALL, "--sample-every", "0"]
    assert nanoeuler(*command, *settings)[0] == 0  # 72 tokens a step
    found = json.loads(Path("new/run.json").read_text())["train"]
    assert [found[name] for name in ("steps", "valid_every", "save_every")] == [3, 2, 2]


def test_train_says_what_it_will_do_and_what_came_out(here, nanoeuler):
    settings = "--steps 60 --batch 4 --warmup 1 --valid-every 30 --sample-every 0".split()
    code, out, err = nanoeuler("train", "--data", "text.txt", "--run", "new", *SMALL, *settings)
    assert (code, err) == (0, "")
    head = json.loads(Path("new/run.json").read_text())["data"]
    lines = out.splitlines()
    size, tokens = checkpoint.load("new").model.size, head["train_tokens"]
    assert lines[0].startswith(f"model: {size:,} parameters; data: {tokens:,} train tokens, ")
    passes = 60 * 48 / tokens
    shown = f"{passes:{'.1f' if passes >= 1 else '.2g'}}"
    assert lines[1] == (
        f"plan: 60 steps of 48 tokens, 2,880 in all, {shown} passes over the data; rows reach 100% of its tokens; "
        f"held out {head['valid_tokens'] / (tokens + head['valid_tokens']):.1%}"
    )
    assert lines[2].startswith("step 0: validation ")
    assert re.fullmatch(r"about \d+ s to go, at [\d.e-]+ s a step, measured now", lines[3])
    bits = checkpoint.load("new").info["valid_bits_per_byte"]
    assert re.fullmatch(
        rf"new: done, 60 steps, \d+ s this time; validation {bits:.4f} bits per byte; "
        r"(\d+\.?\d*)% of the training text was used", lines[-3],
    )  # fmt: skip
    parts = ", ".join(rf"{name} \d+\.\d s" for name in ("validation", "samples", "checkpoints"))
    assert re.fullmatch(rf"outside the steps: {parts}, \d+\.\d% of the time", lines[-4])
    assert lines[-2:] == [
        "look at it: nanoeuler report new",
        "continue a prompt: nanoeuler generate PROMPT --run new",
    ]
    code, out, _ = nanoeuler("train", "--resume", "new", "--steps", 400)
    assert code == 0 and "plan: from step 60 on, 400 steps" in out
    assert out.index("warning: the data will repeat: 400 steps draw") < out.index("step 90: ")


def test_no_bit_depends_on_who_watches(here, nanoeuler):
    """The measuring of a step's time changes nothing."""
    settings = "--steps 30 --batch 4 --warmup 1 --valid-every 30 --sample-every 0 --workers 2".split()
    for name, quiet in (("a", ["--quiet"]), ("b", [])):
        assert nanoeuler("train", "--data", "text.txt", "--run", name, *SMALL, *settings, *quiet)[0] == 0
    assert_same_run("a", "b")


def test_messages_show_no_control_characters(here, nanoeuler):
    """A checkpoint may come from anywhere; a terminal obeys what it is sent."""
    folder = checkpoint.find("run")
    info = json.loads((folder / "checkpoint.json").read_text())["info"]
    evil = "\x1b]0;owned\x07\x1b[2J\n\r\u202e" + "x" * 5000
    seal(folder, info=info | {"source": evil, "title": evil, "files": {"text": evil}})
    for command in (
        ("info", "--run", "run"),
        ("train", "--resume", "run"),
        ("generate", "--run", f"n{evil}"),
    ):
        code, out, err = nanoeuler(*command)
        shown = out if command[0] == "info" else err
        assert all(c.isprintable() or c == "\n" for c in out + err) and "owned" in shown
        assert code == (0 if command[0] == "info" else 2) and len(max(shown.splitlines(), key=len)) < 700


def test_process_with_bytes_that_are_not_text(here):
    done = process("tokenizer", "encode", "--tokenizer", "bpe.json", input=b"abc\xff")
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"UTF-8" in done.stderr


def test_the_reader_of_a_pipe_may_leave(here):
    """`nanoeuler info | head -1` ends without a complaint."""
    root = str(Path(cli.__file__).parents[2])
    command = f"{sys.executable} -m nanoeuler_lib.command.cli info --run run | head -1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, timeout=60, env=os.environ | {"PYTHONPATH": root}
    )
    assert done.stdout.count(b"\n") == 1 and done.stderr == b""


def test_the_command_starts_fast():
    """`--help` does not wait for NumPy: the command imports what it needs when it needs it."""
    code = "import sys, nanoeuler_lib.command.cli as c; c.parser().format_help(); print('numpy' in sys.modules)"
    root = str(Path(cli.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=os.environ | {"PYTHONPATH": root})
    assert done.stdout == b"False\n", done.stderr
