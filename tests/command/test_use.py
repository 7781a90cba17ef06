"""Test the commands tokenizer, corpus konigsberg, generate, score, info and check."""

import html
import io
import json
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from oracles import RUN_MODEL, run_text

import konigsberg
from nanoeuler_lib import __version__
from nanoeuler_lib.command import cli
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generation import generate, score
from nanoeuler_lib.model import GPT, gradcheck
from nanoeuler_lib.model.plan import Plan
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import checkpoint
from nanoeuler_lib.training.run_folder import read_log

# Tokenizer and corpus.


def test_tokenizer(here, nanoeuler):
    code, out, err = nanoeuler("tokenizer train --data text.txt --vocab 262 --out new.json --json")
    assert (code, err) == (0, "") and json.loads(out) == {"vocab_size": 262, "merges": 6, "out": "new.json"}
    tokenizer = Tokenizer.load("new.json")
    assert tokenizer.merges == Tokenizer.train(run_text(), 262, ()).merges
    text = "the cat, Käthe\n"
    code, out, _ = nanoeuler("tokenizer encode --tokenizer new.json", text)
    ids = [int(i) for i in out.split()]
    assert code == 0 and ids == tokenizer.encode(text).tolist() and max(ids) >= 256
    found = json.loads(nanoeuler("tokenizer encode --tokenizer new.json --json", stdin=text)[1])
    assert found["ids"] == ids and found["bytes"] == len(text.encode()) and len(found["tokens"]) == len(ids)
    assert nanoeuler("tokenizer decode --tokenizer new.json", *ids) == (0, text, "")
    shown = nanoeuler("tokenizer decode --tokenizer new.json --json", stdin=" ".join(map(str, ids)))[1]
    assert json.loads(shown) == {"text": text}
    ours = checkpoint.load_pretrained()[1]
    assert nanoeuler("tokenizer encode the")[1].split() == [str(i) for i in ours.encode("the")], "the default"
    assert nanoeuler("tokenizer encode ''", stdin="not read")[1] == "\n"
    out = nanoeuler("tokenizer train --data text.txt --vocab 262 --out end.json --end-of-text")[1]
    assert out.splitlines()[0] == "0.0 MB to read; expected memory: up to 70 MB"
    assert "no more pairs to merge" in nanoeuler("tokenizer train --data text.txt --vocab 9999 --out all.json")[1]
    assert "261" not in nanoeuler("tokenizer encode --tokenizer end.json", END_OF_TEXT)[1].split()
    assert nanoeuler("tokenizer encode --special --tokenizer end.json", END_OF_TEXT)[1] == "261\n"


def test_encode_and_decode_give_the_bytes_back(here, nanoeuler):
    """Keep line ends of every kind, a missing last line end, and an incomplete character."""
    tokenizer = Tokenizer.load("bpe.json")
    for content in ("a\r\nb\rc\n\nKäthe \u2028 \x00 d", "x", "", "\n"):
        code, ids, _ = nanoeuler("tokenizer encode --tokenizer bpe.json", stdin=content)
        assert code == 0 and [int(i) for i in ids.split()] == tokenizer.encode(content).tolist()
        assert nanoeuler("tokenizer decode --tokenizer bpe.json", stdin=ids) == (0, content, "")
    half = tokenizer.encode("ü")[:1]
    assert nanoeuler("tokenizer decode --tokenizer bpe.json", *half)[1] == "\udcc3"
    code, _, err = nanoeuler("tokenizer encode --tokenizer bpe.json", stdin=b"abc\xff")
    assert code == 2 and err == "nanoeuler: standard input: must be UTF-8 text, but byte 3 is not UTF-8\n"


def test_a_corpus_of_stories(nanoeuler):
    command = "corpus konigsberg --bytes 3000 --seed 3"
    code, out, err = nanoeuler(f"{command} --out w.txt --json")
    found, text = json.loads(out), Path("w.txt").read_text("utf-8")
    assert (code, err) == (0, "") and found["bytes"] == len(text.encode()) and 0 < found["floor_bits_per_byte"] < 3
    real, shown = konigsberg.floor, []  # the file is reported before the floor is measured
    measured = lambda stories: shown.append(sys.stdout.flushed()) or real(list(stories))
    with patch.object(konigsberg, "floor", measured):
        code, said, err = nanoeuler(f"{command} --out again.txt", terminal=True)
    told = re.fullmatch(r"again.txt: (\d+) bytes\nfloor: (0\.\d{4}) bits per byte under the source itself; .*\n", said)
    bits = real(text.split(konigsberg.SEPARATOR))
    assert code == 0 and told.groups() == (str(len(text.encode())), f"{bits:.4f}")
    assert shown == [f"again.txt: {told[1]} bytes\n"]
    assert "measuring the floor" in err and not err.rsplit("\r", 1)[1].strip(), "the progress bar must be erased"
    assert nanoeuler(command)[:2] == (0, text)
    assert nanoeuler(command.replace("3", "4"))[1] != text


# Prompts, samples and scores.


def test_generate(here, nanoeuler):
    command = "generate 'the cat' --run run --tokens 20"
    code, out, err = nanoeuler(command)
    assert (code, err) == (0, "") and out.startswith("the cat") and len(out) > 10
    found = json.loads(nanoeuler(f"{command} --json")[1])
    assert found["prompt"] == "the cat" and f"the cat{found['continuation']}\n" == out
    assert nanoeuler(f"{command} --seed 1")[1] != out
    greedy = {nanoeuler(f"generate --run run --temperature 0 --tokens 9 --seed {seed}")[1] for seed in (1, 2)}
    assert len(greedy) == 1
    assert nanoeuler("generate Kä --run run --tokens 0") == (0, "Kä\n", "")


def test_a_prompt_comes_from_a_file_or_from_standard_input(nanoeuler):
    whole = nanoeuler("generate 'Käthe had' --tokens 9")
    for name, content in (("a", "Käthe had"), ("b", "\ufeffKäthe had\r\n"), ("c", "Käthe had\n")):
        Path(name).write_bytes(content.encode())
        assert nanoeuler(f"generate --tokens 9 --prompt-file {name}") == whole
        assert nanoeuler("generate --tokens 9 --prompt-file -", stdin=content) == whole
    Path("long").write_text(run_text())
    code, _, said = nanoeuler("generate --prompt-file long --tokens 1")
    ids = 1 + len(checkpoint.load_pretrained()[1].encode(run_text()))
    told = f"the first {ids - 128:,} tokens of the prompt are left out, because the model reads at most 128 tokens\n"
    assert (code, said) == (0, told)


def test_samples_are_those_of_the_seeds_and_end_before_a_stop(nanoeuler):
    command = "generate Käthe --tokens 30 --seed"
    ones = [nanoeuler(command, seed)[1].removesuffix("\n") for seed in (4, 5)]
    assert nanoeuler(f"{command} 4 --samples 2") == (0, f"\n{END_OF_TEXT}\n".join(ones) + "\n", "")
    facts = json.loads(nanoeuler(f"{command} 4 --samples 2 --json")[1])
    assert facts["continuations"] == [one.removeprefix("Käthe") for one in ones]
    said = ones[0].removeprefix("Käthe")
    for stop in (said[3:9], said[-2:], said[0], "never"):
        out = nanoeuler(f"{command} 4 --stop 'nor this' --stop", stop)[1]
        assert out == f"Käthe{said.partition(stop)[0]}\n"
    assert nanoeuler("generate a --stop . --tokens", "9" * 30)[0] == 0


def test_text_is_shown_while_it_is_made(nanoeuler):
    """Remove control characters for a terminal, and pass the text unchanged to a pipe."""
    seen = []

    def pieces(*_, **__):
        for piece in ("a", "\x1b", "ü"):
            yield piece
            seen.append(sys.stdout.flushed())

    found = SimpleNamespace(model=0, tokenizer=0)
    with (
        patch.object(generate, "stream", pieces), patch.object(generate, "unread", lambda *_: 0),
        patch.object(checkpoint, "load", return_value=found),
    ):  # fmt: skip
        assert nanoeuler("generate x") == (0, "xa\x1bü\n", "")
        assert nanoeuler("generate x", terminal=True) == (0, "xa\ufffdü\n", "")
    assert seen == ["xa", "xa\x1b", "xa\x1bü", "xa", "xa\ufffd", "xa\ufffdü"]
    Tokenizer([]).save("bpe.json")
    assert nanoeuler("tokenizer decode 97 0 9 98 --tokenizer bpe.json", terminal=True)[1] == "a\ufffd\tb\n"


def test_a_text_is_scored_as_validation_scores_it(nanoeuler):
    """Compare with the run's log for documents that fit; the page has all letters and marks high-loss tokens."""
    Path("a.txt").write_text(konigsberg.corpus(6000, 4))
    Path("v.txt").write_text(konigsberg.corpus(3000, 5))
    shape = "--dim 16 --heads 2 --kv-heads 1 --layers 1 --context 512 --vocab-size 300 --steps 2 --batch 2"
    assert nanoeuler(f"train --data a.txt --valid v.txt --run r --quiet {shape}")[0] == 0
    code, out, _ = nanoeuler("score v.txt --run r --out p.html --json")
    facts, text = json.loads(out), Path("v.txt").read_text()
    documents = text.split(f"\n{END_OF_TEXT}\n")
    assert code == 0 and facts["documents"] == len(documents) and facts["bytes"] == len("".join(documents).encode())
    assert facts["bits_per_byte"] == pytest.approx(read_log("r")[-1]["valid_bits_per_byte"], rel=1e-5)
    assert facts["bits_per_token"] * facts["tokens"] == pytest.approx(facts["bits_per_byte"] * facts["bytes"])
    page = Path("p.html").read_text()
    shown = re.sub("<[^>]*>", "", page.split("<div>")[1].split("</div>")[0])
    assert html.unescape(shown) == "".join(documents) and 'class="b3"' in page


def test_a_long_text_is_scored_behind_at_least_half_a_context():
    """Compare with a forward pass for each token over the prefix that the rule allows, at odd lengths."""
    model, tokenizer = GPT(replace(RUN_MODEL, context=9), seed=3), Tokenizer([], (END_OF_TEXT,))
    for length in (1, 8, 9, 10, 13, 14, 31):
        text = "".join(chr(97 + i * i % 23) for i in range(length))
        ids = [tokenizer.special_tokens[END_OF_TEXT], *tokenizer.encode(text).tolist()]
        scored = score.score(model, tokenizer, text, rows=2)
        assert scored.ids.tolist() == ids[1:] and (scored.bytes, scored.documents) == (length, 1)
        for at in range(1, len(ids)):
            seen = at if at < 10 else 5 + 1 + (at - 10) % 4  # a window of 10 ids moves by 4
            seen = seen if at < 10 or len(ids) >= 10 + 4 * ((at - 10) // 4 + 1) else 9 - (len(ids) - 1 - at)
            logits = model.logits(np.array([ids[at - seen : at]]))[0, -1].astype(np.float64)
            bits = (np.log(np.exp(logits).sum()) - logits[ids[at]]) / np.log(2)
            assert scored.bits[at - 1] == pytest.approx(bits, rel=1e-4)
    with pytest.raises(NanoEulerError, match="the text must have at least 2 tokens, got 1"):
        score.score(model, Tokenizer([], ()), "a")


# Facts and checks.


def test_info(here, nanoeuler):
    assert nanoeuler("--version") == (0, f"nanoeuler {__version__}\n", "")
    out = nanoeuler("info")[1]
    assert "parameters: 1,053,824, 4.2 MB" in out and "layers.3.qkv" in out and "128x256" in out
    found = json.loads(nanoeuler("info --preset base --json")[1])
    assert found["parameters"] == 116_417_280 and found["model"]["layers"] == 16
    assert sum(int(np.prod(shape)) for shape in found["tensors"].values()) == found["parameters"]
    found = json.loads(nanoeuler("info --run run --json")[1])
    assert found["step"] == 4 and found["model"]["dim"] == 16 and found["valid_bits_per_byte"] > 0
    config = ModelConfig.from_dict(found["model"])
    assert found["plan_bytes_one_row"] == Plan(config, 1, config.context).nbytes
    assert found["parameters"] == checkpoint.load("run").model.size


def test_check(nanoeuler, monkeypatch):
    config = ModelConfig(dim=8, heads=4, kv_heads=2, layers=1, context=5, vocab_size=6, predict=2, ffn=5)
    monkeypatch.setattr(gradcheck, "check_model", partial(gradcheck.check_model, config, time=3))
    code, out, err = nanoeuler("check")
    assert (code, err) == (0, "") and gradcheck.DEFINITION in out and gradcheck.DEFINITION_NORM in out
    assert out.count("passed") == 2 and out.count("layers.0.qkv") == 2 and "WRONG" not in out
    code, out, _ = nanoeuler("check --ops plain --json")
    found = json.loads(out)
    assert code == 0 and found["passed"] is True and set(found["weights_std"]) == {"0.3", "0.02"}
    assert {row["name"] for row in found["weights_std"]["0.3"]} >= {"embed", "layers.0.norm1", "heads"}


ROW = gradcheck.Row("heads", (3, 4), 1e-9, 1e-8, 0.5, 2e-7)
FLAWS = {  # large weights are judged by element, small ones by norm: a row of both, and the exit code
    "none": (ROW, ROW, 0),
    "an element": (replace(ROW, worst=2.0), ROW, 1),
    "a norm": (ROW, replace(ROW, norm_rel=1.1e-6), 1),
    "a norm of large weights": (replace(ROW, norm_rel=1e-3), ROW, 0),
    "an element of small weights": (ROW, replace(ROW, worst=9.0, norm_rel=1e-6), 0),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_check_fails_on_a_flaw(nanoeuler, flaw):
    large, small, expected = FLAWS[flaw]
    rows = {0.3: [ROW, large], 0.02: [small, ROW]}
    with patch.object(gradcheck, "check_model", lambda std: rows[std]):
        code, out, _ = nanoeuler("check")
        assert (code, out.count("FAILED")) == (expected, expected)
        code, out, _ = nanoeuler("check --json")
        assert (code, json.loads(out)["passed"]) == (expected, expected == 0)


@pytest.mark.parametrize("error, expected", [(0.125, 0), (0.25, 1)])
def test_check_of_a_device_compares_the_engine_s_gradients(nanoeuler, error, expected):
    """Check that one tensor with an error above 0.125 fails the check."""
    rows = [(ROW, 3e-7, 2e-7), (replace(ROW, norm_rel=error), 5e-7, 0.125)]
    with patch.object(gradcheck, "check_engine", return_value=rows):
        code, out, _ = nanoeuler("check --device checked --precision float32")
        assert code == expected and out.endswith("\nFAILED\n" if expected else "\npassed\n")
        code, out, _ = nanoeuler("check --device checked --precision float32 --json")
        assert code == expected and json.loads(out)["passed"] is (expected == 0)


def test_in_a_notebook_the_streams_have_no_bytes_below_them(monkeypatch):
    for name, stream in (("stdout", io.StringIO()), ("stdin", io.StringIO("aü\r\n"))):
        monkeypatch.setattr(sys, name, stream)
    assert cli.main(["tokenizer", "encode"]) == 0
    ids = sys.stdout.getvalue().split()
    assert cli.main(["tokenizer", "decode", *ids]) == 0
    assert sys.stdout.getvalue().partition("\n")[2] == "aü\r\n"
