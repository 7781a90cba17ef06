"""The command as people meet it: on other file systems, under limits, in containers and notebooks; and its uses."""

import errno
import html
import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from oracles import RUN_MODEL, run_text

import konigsberg
from nanoeuler_lib.command import cli
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generation import score
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import checkpoint
from nanoeuler_lib.training.run_folder import read_log

TINY = "--steps 2 --batch 2 --dim 16 --heads 2 --kv-heads 1 --layers 1 --context 16 --vocab-size 300".split()


@pytest.fixture
def nanoeuler(capsys, tmp_path, monkeypatch):
    """Run the command in an empty folder with a text in it: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(run_text())

    def run(*words):
        code = cli.main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


def refusing(error, folders_only=False, real=os.fsync):
    def refuse(handle, *_):
        if not folders_only or stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(error, os.strerror(error))
        return real(handle)

    return refuse


@pytest.mark.parametrize("name, error, folders_only", [
    ("fsync", errno.EINVAL, True), ("fsync", errno.ENOSYS, False), ("fsync", errno.EACCES, True),
    ("chmod", errno.EPERM, False),
])  # fmt: skip
def test_a_file_system_that_cannot_do_it_is_no_reason_not_to_train(nanoeuler, monkeypatch, name, error, folders_only):
    monkeypatch.setattr(os, name, refusing(error, folders_only))
    assert nanoeuler("train", "--data", "a.txt", "--run", "r", "--quiet", *TINY)[0] == 0
    assert checkpoint.load("r", training=True).step == 2
    assert nanoeuler("report", "r")[0] == 0


def test_a_broken_disk_is_one(nanoeuler, monkeypatch):
    monkeypatch.setattr(os, "fsync", refusing(errno.EIO))
    code, _, said = nanoeuler("train", "--data", "a.txt", "--run", "r", "--quiet", *TINY)
    assert code == 2 and "Input/output error" in said


def test_a_report_needs_no_backend_of_a_notebook(nanoeuler):
    assert nanoeuler("train", "--data", "a.txt", "--run", "r", "--quiet", *TINY)[0] == 0
    for backend in ("module://nowhere", "nonsense"):
        command = [sys.executable, "-m", "nanoeuler_lib.command.cli", "report", "r"]
        done = subprocess.run(command, env=os.environ | {"MPLBACKEND": backend}, capture_output=True, text=True)
        assert done.returncode == 0 and Path("r/report/loss.png").exists(), done.stderr
        shutil.rmtree("r/report")
    before = dict(os.environ)
    assert nanoeuler("report", "r")[0] == 0 and os.environ == before


FIRST = "import os; os.getpid = lambda: 1; from nanoeuler_lib.command import cli; raise SystemExit(cli.main())"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
def test_the_first_process_of_a_container_ends_when_it_is_told_to(nanoeuler):
    command = [sys.executable, "-c", FIRST, "corpus", "konigsberg", "--bytes", "100000000", "--out", "a"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        time.sleep(3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 130 and process.stderr.read() == b"" and not Path("a").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are not forked")
@pytest.mark.parametrize("forks", [0, 1, 2])
def test_a_limit_of_processes_is_told_with_what_helps(nanoeuler, monkeypatch, forks):
    real, begun = os.fork, []

    def fork():
        if len(begun) == forks:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        begun.append(real())
        return begun[-1]

    assert nanoeuler("tokenizer", "train", "--data", "a.txt", "--out", "t.json", "--end-of-text")[0] == 0
    monkeypatch.setattr(os, "fork", fork)
    code, _, said = nanoeuler("shards", "a.txt", "--tokenizer", "t.json", "--out", "s", "--workers", 3)
    assert code == 2 and said.endswith(
        "nanoeuler: 3 processes cannot be started (Resource temporarily unavailable): expected fewer --workers; with "
        "--workers 1 none is\n"
    )
    assert not multiprocessing.active_children() and not Path("s").exists()
    assert nanoeuler("shards", "a.txt", "--tokenizer", "t.json", "--out", "s", "--workers", 1)[0] == 0


# Prompts, samples and prices.


def test_a_prompt_comes_from_a_file_or_from_standard_input(nanoeuler, monkeypatch):
    whole = nanoeuler("generate", "Käthe had", "--tokens", 9)
    for name, content in (("a", "Käthe had"), ("b", "\ufeffKäthe had\r\n"), ("c", "Käthe had\n")):
        Path(name).write_bytes(content.encode())
        assert nanoeuler("generate", "--tokens", 9, "--prompt-file", name) == whole
        monkeypatch.setattr(sys, "stdin", io.StringIO(content))
        assert nanoeuler("generate", "--tokens", 9, "--prompt-file", "-") == whole
    code, _, said = nanoeuler("generate", "--prompt-file", "a.txt", "--tokens", 1)
    ids = 1 + len(json.loads(nanoeuler("tokenizer", "encode", run_text(), "--json")[1])["ids"])
    assert (code, said) == (
        0, f"the first {ids - 128:,} tokens of the prompt are left out: the model reads 128 tokens at a time\n"
    )  # fmt: skip
    for words, expected in (
        (["x", "--prompt-file", "a"], "--prompt-file stands beside a prompt, expected one of them"),
        (["--prompt-file", "none"], "none: no such file, expected a UTF-8 text file"),
        (["--samples", 0], "--samples is 0, expected 1 to 1000000"),
        (["--stop", ""], "stop is empty, expected a text"),
        (
            ["--propose", 1, "--repetition-penalty", 2],
            "propose is 1 beside a repetition_penalty, expected one of them",
        ),
        (
            ["--repetition-penalty", "nan"],
            "repetition_penalty is nan, expected more than 0 and at most 100; 1 is none",
        ),
    ):
        assert nanoeuler("generate", *words) == (2, "", f"nanoeuler: {expected}\n")


def test_samples_are_those_of_the_seeds_and_end_before_a_stop(nanoeuler):
    ones = [nanoeuler("generate", "Käthe", "--seed", seed, "--tokens", 30)[1].removesuffix("\n") for seed in (4, 5)]
    code, out, _ = nanoeuler("generate", "Käthe", "--seed", 4, "--tokens", 30, "--samples", 2)
    assert code == 0 and out == f"\n{END_OF_TEXT}\n".join(ones) + "\n"
    facts = json.loads(nanoeuler("generate", "Käthe", "--seed", 4, "--tokens", 30, "--samples", 2, "--json")[1])
    assert facts["continuations"] == [one.removeprefix("Käthe") for one in ones]
    said = ones[0].removeprefix("Käthe")
    for stop in (said[3:9], said[-2:], said[0], "never"):
        out = nanoeuler("generate", "Käthe", "--seed", 4, "--tokens", 30, "--stop", "nor this", "--stop", stop)[1]
        assert out == f"Käthe{said.partition(stop)[0]}\n"
    assert nanoeuler("generate", "a", "--tokens", "9" * 30, "--stop", ".")[0] == 0


def test_a_text_is_scored_as_validation_scores_it(nanoeuler):
    """Documents that fit cost what the log of the run says; the page has every letter, and marks the dear ones."""
    sizes = [*TINY, "--context", 512, "--valid", "v.txt"]
    Path("a.txt").write_text(konigsberg.corpus(6000, 4))
    Path("v.txt").write_text(konigsberg.corpus(3000, 5))
    assert nanoeuler("train", "--data", "a.txt", "--run", "r", "--quiet", *sizes)[0] == 0
    code, out, _ = nanoeuler("score", "v.txt", "--run", "r", "--out", "p.html", "--json")
    facts, text = json.loads(out), Path("v.txt").read_text()
    documents = text.split(f"\n{END_OF_TEXT}\n")
    assert code == 0 and facts["documents"] == len(documents) and facts["bytes"] == len("".join(documents).encode())
    assert facts["bits_per_byte"] == pytest.approx(read_log("r")[-1]["valid_bits_per_byte"], rel=1e-5)
    assert facts["bits_per_token"] * facts["tokens"] == pytest.approx(facts["bits_per_byte"] * facts["bytes"])
    page = Path("p.html").read_text()
    shown = re.sub("<[^>]*>", "", page.split("<div>")[1].split("</div>")[0])
    assert html.unescape(shown) == "".join(documents) and 'class="b3"' in page
    assert "p.html: exists already, expected a new name" in nanoeuler("score", "v.txt", "--out", "p.html")[2]


@pytest.mark.parametrize("command", [
    "tokenizer train --data a.txt --out", "corpus konigsberg --out", "shards a.txt --tokenizer t.json --out",
    "train --data a.txt --run", "sft --run", "dpo --run", "grpo --base r --run", "report r --out", "score a.txt --out",
    "answers --out", "export r --to hf --out", "release r --out", "import hf --run",
])  # fmt: skip
def test_a_place_that_takes_no_result_is_told_before_the_work(command, nanoeuler, monkeypatch):
    """It lies in a file, not in a folder. None of the work that is forbidden here is begun."""
    forbidden = """text.data.read_blocks formats.load formats._read training.checkpoint.load
        training.report.read_log command.sources.examples command.sources.pairs command.sources.questions"""
    Tokenizer([]).save("t.json")
    others = "konigsberg.corpus", "nanoeuler_book.interpretability.answers.make"
    for name in (*(f"nanoeuler_lib.{name}" for name in forbidden.split()), *others):
        monkeypatch.setattr(name, None)
    code, out, err = nanoeuler(*command.split(), "a.txt/x")
    assert (code, out, err.count("\n")) == (2, "", 1) and "Not a directory" in err, err


def test_a_long_text_is_scored_behind_at_least_half_a_context():
    """Against a pass over each prefix that the rule allows, token by token, at odd lengths."""
    model, tokenizer = GPT(replace(RUN_MODEL, context=9), seed=3), Tokenizer([], (END_OF_TEXT,))
    for length in (1, 8, 9, 10, 13, 14, 31):
        text = "".join(chr(97 + i * i % 23) for i in range(length))
        ids = [tokenizer.special_tokens[END_OF_TEXT], *tokenizer.encode(text).tolist()]
        scored = score.score(model, tokenizer, text, rows=2)
        assert scored.ids.tolist() == ids[1:] and (scored.bytes, scored.documents) == (length, 1)
        for at in range(1, len(ids)):
            seen = at if at < 10 else 5 + 1 + (at - 10) % 4  # a window of 10 ids moves on by 4
            seen = seen if at < 10 or len(ids) >= 10 + 4 * ((at - 10) // 4 + 1) else 9 - (len(ids) - 1 - at)
            logits = model.logits(np.array([ids[at - seen : at]]))[0, -1].astype(np.float64)
            bits = (np.log(np.exp(logits).sum()) - logits[ids[at]]) / np.log(2)
            assert scored.bits[at - 1] == pytest.approx(bits, rel=1e-4)
    with pytest.raises(NanoEulerError, match="the text has 1 tokens, expected at least 2"):
        score.score(model, Tokenizer([], ()), "a")


def test_several_files_are_one_text_of_documents(nanoeuler):
    texts = ["Käthe went home.\n" * 40, "Jürgen stayed.\n" * 40]
    Path("1.txt").write_text(texts[0])
    Path("2.jsonl").write_text(json.dumps({"text": texts[1]}))
    Path("both.txt").write_text(f"\n{END_OF_TEXT}\n".join(texts))
    all_found = []
    for words in (["1.txt", "2.jsonl"], ["1.txt", "--data", "2.jsonl"], ["both.txt"]):
        assert nanoeuler("tokenizer", "train", "--data", *words, "--vocab", 300, "--out", "t.json")[0] == 0
        ids = Path("t.json").read_bytes()
        assert nanoeuler("train", "--data", *words, "--run", "r", "--quiet", *TINY)[0] == 0
        info = checkpoint.load("r").info
        all_found.append((ids, info["fingerprint"], info["valid_fingerprint"]))
        Path("t.json").unlink()
        if "2.jsonl" in words:
            Path("2.jsonl").rename("moved.jsonl")
            assert "2.jsonl: no such file; it is the text_2" in nanoeuler("train", "--resume", "r", "--steps", 4)[2]
            assert "--data names 1, expected 2" in nanoeuler("train", "--resume", "r", "--data", "1.txt")[2]
            assert nanoeuler("train", "--resume", "r", "--data", "1.txt", "moved.jsonl", "--steps", 4)[0] == 0
            Path("moved.jsonl").rename("2.jsonl")
        shutil.rmtree("r")
    assert all_found[0] == all_found[1], "however they are named"
    assert all_found[0][0] == all_found[2][0], "the same tokenizer; of two files, the end of each is held out"
    Path("s").mkdir()
    Path("s/shards.json").touch()
    assert "--data names 2, s among them" in nanoeuler("train", "--data", "1.txt", "s", "--run", "r")[2]
