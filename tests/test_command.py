"""What each subcommand of `nanoeuler` hands on and what it prints, whole lines of it, without doing the work.

`test_cli.py` runs the commands; here a listener stands between them and the library, so that every option, also one
that changes nothing visible, is seen to arrive.
"""

import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import ANY, patch

import numpy as np
import pytest

from nanoeuler_lib import ops, world
from nanoeuler_lib.command import ask, cli
from nanoeuler_lib.config import SFT_DEFAULTS, ModelConfig, TrainConfig, preset
from nanoeuler_lib.engine import device
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import gradcheck
from nanoeuler_lib.school.assign import papers
from nanoeuler_lib.school.drills import breaks, diagnose
from nanoeuler_lib.speaking import chat, generate
from nanoeuler_lib.text import data
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import checkpoint, loop, report, run_folder, sft, train


class Stream(io.TextIOWrapper):
    """A standard stream that may be a terminal, and that knows what had been flushed when."""

    def __init__(self, terminal=False, content=b""):
        super().__init__(io.BytesIO(content), "utf-8", newline="")
        self.terminal = terminal

    def isatty(self):
        return self.terminal

    def text(self):
        self.flush()
        return self.flushed()

    def flushed(self):
        return self.buffer.getvalue().decode()


@pytest.fixture
def streams(monkeypatch):
    """Make the three streams anew, by default none of them a terminal."""

    def make(stdin=b"", terminal=False):
        found = SimpleNamespace(
            stdin=Stream(terminal, stdin), stdout=Stream(terminal), stderr=Stream(terminal)
        )
        for name, stream in vars(found).items():
            monkeypatch.setattr(sys, name, stream)
        return found

    return make


@pytest.fixture
def run(streams, tmp_path, monkeypatch):
    """Run the command in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def main(line, stdin=b"", terminal=False):
        made = streams(stdin, terminal)
        words = line.split() if isinstance(line, str) else line
        code = cli.main(words)
        return code, made.stdout.text(), made.stderr.text()

    return main


def same(found, text):
    """JSON is that of the text: values, and the order of keys, in which a reader sees them."""
    assert found == text + "\n", found


# Tokenizers.


def test_tokenizer_train_says_what_it_made(run):
    Path("text.txt").write_text("abab abab\n")
    assert run("tokenizer train --data text.txt --vocab 258 --out a.json") == (
        0,
        "a.json: 258 tokens, 2 of them merges\n",
        "",
    )
    out = run("tokenizer train --data text.txt --vocab 258 --out b.json --json")[1]
    same(out, '{"vocab_size": 258, "merges": 2, "out": "b.json"}')
    out = run("tokenizer train --data text.txt --vocab 999 --out c.json")[1]
    many = Tokenizer.load("c.json").vocab_size
    assert out == f"c.json: {many} tokens, {many - 256} of them merges: the text has no more pairs to merge\n"
    assert Tokenizer.load("a.json").special_tokens == {}
    Path("two.txt").write_text(f"abab\n{END_OF_TEXT}\nabab\n")
    run("tokenizer train --data two.txt --vocab 258 --out d.json")
    assert Tokenizer.load("d.json").special_tokens == {END_OF_TEXT: 257}


def test_tokenizer_encode_and_decode(run):
    Tokenizer([], (END_OF_TEXT,)).save("bpe.json")
    code, out, _ = run(["tokenizer", "encode", "aü", "--tokenizer", "bpe.json", "--json"])
    same(out, r'{"ids": [97, 195, 188], "tokens": ["a", "\\xc3", "\\xbc"], "bytes": 3}')
    assert run(["tokenizer", "encode", "aü", "--tokenizer", "bpe.json"])[1] == "97 195 188\n"
    assert run(["tokenizer", "encode", "", "--tokenizer", "bpe.json"], b"not read")[1] == "\n"
    assert run("tokenizer encode --tokenizer bpe.json", "ü\r\n".encode())[1] == "195 188 13 10\n"
    assert run(f"tokenizer encode {END_OF_TEXT} --special --tokenizer bpe.json")[1] == "256\n"
    assert run(f"tokenizer encode a{END_OF_TEXT} --tokenizer bpe.json")[1].startswith("97 60 124 ")
    same(run("tokenizer decode 195 188 --tokenizer bpe.json --json")[1], '{"text": "ü"}')
    same(run("tokenizer decode --tokenizer bpe.json --json", b"0 97\n")[1], r'{"text": "\u0000a"}')
    assert run("tokenizer decode 97 0 10 --tokenizer bpe.json")[1] == "a\0\n"
    assert run("tokenizer decode 97 0 9 98 --tokenizer bpe.json", terminal=True)[1] == "a\ufffd\tb\n"
    for number in (257, 300):
        code, out, err = run(f"tokenizer decode 1 {number} 2 --tokenizer bpe.json")
        assert (code, out, err) == (2, "", f"nanoeuler: token id is {number}, expected 0 to 256\n")
    assert (
        run("tokenizer decode x --tokenizer bpe.json")[2]
        == "nanoeuler: token id is 'x', expected a whole number\n"
    )


def test_the_tokenizer_of_the_package_is_the_default(run):
    _, ours = checkpoint.load_pretrained()
    assert run("tokenizer encode the")[1].split() == [str(i) for i in ours.encode("the")]


def test_standard_output_may_have_no_bytes_below_it(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    cli._write_bytes(b"a\xc3\xbc\xff")
    assert sys.stdout.getvalue() == "aü\ufffd"
    monkeypatch.setattr(sys, "stdin", io.StringIO("aü\r\n"))
    assert cli._stdin_text() == "aü\r\n"


def test_bytes_follow_what_was_printed_before_them(streams):
    made = streams()
    sys.stdout.write("first ")
    cli._write_bytes(b"then")
    assert made.stdout.flushed() == "first then"


def test_input_that_is_not_utf_8_is_told_by_its_place(run):
    Tokenizer([]).save("bpe.json")
    code, out, err = run("tokenizer encode --tokenizer bpe.json", b"abc\xff")
    assert (code, out, err) == (
        2,
        "",
        "nanoeuler: standard input: byte 3 is not UTF-8, expected UTF-8 text\n",
    )
    code, out, err = run(["tokenizer", "encode", "ab\ud800", "--tokenizer", "bpe.json"])
    assert (code, out, err) == (2, "", "nanoeuler: text: character 2 is not UTF-8, expected UTF-8 text\n")


# The corpus.


def test_corpus_to_a_pipe_and_to_a_terminal(run):
    with patch.object(world, "corpus", lambda size, seed: f"{size} {seed}"):
        assert run("corpus konigsberg") == (0, "4000000 0", "")
        assert run("corpus konigsberg --bytes 9 --seed 3", terminal=True)[1] == "9 3\n"
        assert run("corpus konigsberg --bytes 1")[0] == 0
    assert run("corpus konigsberg --bytes 0") == (2, "", "nanoeuler: --bytes is 0, expected at least 1\n")
    assert run("corpus konigsberg --seed -1") == (2, "", "nanoeuler: --seed is -1, expected 0 or more\n")


def test_corpus_into_a_file_says_so_before_it_measures(run):
    shown = []

    def floor(stories):
        shown.append(sys.stdout.flushed())
        return len(list(stories)) / 8

    text = f"äb{world.SEPARATOR}cd{world.SEPARATOR}e"
    with patch.object(world, "corpus", return_value=text) as corpus, patch.object(world, "floor", floor):
        code, out, err = run("corpus konigsberg --bytes 9 --seed 3 --out a.txt")
        corpus.assert_called_once_with(9, 3)
        size = len(text.encode())
        assert (code, err, shown) == (0, "", [f"a.txt: {size} bytes\n"])
        assert out == shown[0] + (
            "the source itself needs 0.3750 bits per byte of it: on average, no model needs fewer\n"
        )
        assert Path("a.txt").read_text("utf-8") == text
        code, out, err = run("corpus konigsberg --bytes 9 --seed 3 --out b.txt --json")
        same(out, f'{{"out": "b.txt", "bytes": {size}, "seed": 3, "floor_bits_per_byte": 0.375}}')
        assert (
            run("corpus konigsberg --out a.txt")[2]
            == "nanoeuler: a.txt: exists already, expected a new file name\n"
        )
        code, out, err = run("corpus konigsberg --out c.txt", terminal=True)
        assert "measuring the floor" in err and " stories" in err
        assert not err.rsplit("\r", 1)[1].strip(), "the bar is wiped away at the end"


# Training.


MODEL = SimpleNamespace(config="its shape")


@pytest.fixture
def heard():
    """Listeners in place of all that takes time; what came out is asked for as after a training."""
    with (
        patch.object(data, "read_text", lambda path: f"text of {path}"),
        patch.object(train, "train") as begun,
        patch.object(loop, "resume") as resumed,
        patch.object(sft, "fine_tune") as tuned,
        patch.object(loop, "resume") as tuned_on,
        patch.object(sft, "examples_of", return_value=(["some"], ["others"], "alpaca")) as examples,
        patch.object(checkpoint, "load") as load,
        patch.object(cli, "_came_out") as came_out,
        patch.object(device, "choose", return_value="device") as choose,
    ):
        load.return_value = SimpleNamespace(model=MODEL, tokenizer="tokens")
        yield SimpleNamespace(
            train=begun,
            resume=resumed,
            tune=tuned,
            tune_on=tuned_on,
            examples=examples,
            load=load,
            out=came_out,
            choose=choose,
        )


CONTINUE, TALK = "continue a prompt: nanoeuler generate PROMPT --run", "talk with it: nanoeuler chat --run"
SETTINGS = {
    "steps": 7, "batch": 3, "accumulate": 2, "rate": 0.5, "warmup": 4, "decay": 0.25, "clip": 2.0, "later_heads": 0.75,
    "seed": 9, "valid_fraction": 0.2, "valid_every": 5, "sample_every": 6, "save_every": 8,
}  # fmt: skip
SHAPES = {"dim": 32, "heads": 8, "kv_heads": 2, "layers": 3, "context": 20, "vocab_size": 300, "predict": 2}


def words_of(options):
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def test_every_option_of_train_arrives(run, heard, tmp_path):
    assert run("train --data a.txt --run r") == (0, "", "")
    heard.train.assert_called_once_with(
        Path("r"), "text of a.txt", preset("small"), TrainConfig(), None, "a.txt", None, False, None,
        files={"text": str(tmp_path / "a.txt"), "valid": None}, device="device", profile=0,
    )  # fmt: skip
    heard.choose.assert_called_once_with("cpu", None, preset("small"))
    heard.out.assert_called_once_with(Path("r"), ANY, CONTINUE)
    assert isinstance(heard.out.call_args.args[1], float)
    bpe = Tokenizer([], (END_OF_TEXT,))
    bpe.save("bpe.json")
    line = "train --data a.txt --run r --valid v.txt --preset big --tokenizer bpe.json --quiet --workers 4096".split()
    line += "--device gpu:1 --precision tf32 --profile 4".split()
    assert run([*line, *words_of(SETTINGS)]) == (0, "", "")
    call = heard.train.call_args
    assert call.args[4].vocab_size == 257
    assert call.args[:4] == (
        Path("r"),
        "text of a.txt",
        preset("big", vocab_size=257),
        TrainConfig(**SETTINGS),
    )
    assert call.args[5:] == ("a.txt", "text of v.txt", True, 4096)
    files = {"text": str(tmp_path / "a.txt"), "valid": str(tmp_path / "v.txt")}
    assert call.kwargs == {"files": files, "device": "device", "profile": 4}
    heard.choose.assert_called_with("gpu:1", "tf32", preset("big", vocab_size=257))
    assert run([*line, *words_of(SHAPES)]) == (0, "", "")  # a size that is asked for is not the tokenizer's
    assert heard.train.call_args.args[2] == preset("big", **SHAPES)
    assert run("train --data a.txt --run r --workers 1")[0] == 0
    for workers in (0, 4097):
        expected = f"nanoeuler: --workers is {workers}, expected 1 to 4096\n"
        assert run(f"train --data a.txt --run r --workers {workers}") == (2, "", expected)
        assert run(f"sft --run r --workers {workers}") == (2, "", expected)
    for given, missing in (("--data a.txt", "run"), ("--run r", "data"), ("", "data")):
        assert run(f"train {given}")[2] == (
            f"nanoeuler: --{missing} is missing, expected --data FILE --run FOLDER, or --resume FOLDER\n"
        )


@pytest.mark.parametrize(
    "option", [*words_of(SETTINGS | SHAPES)[::2], "--preset", "--tokenizer", "--run", "--workers"]
)
def test_train_resume_refuses_settings(option, run, heard):
    if option != "--steps":
        code, out, err = run(f"train --resume r {option} 3")
        assert (code, out, err) == (
            2,
            "",
            f"nanoeuler: --resume takes its settings from the run, got also {option}\n",
        )


@pytest.mark.parametrize(
    "option", [*words_of(SETTINGS)[::2], "--examples", "--data-seed", "--base", "--run", "--workers"]
)
def test_sft_resume_refuses_settings(option, run, heard):
    if option != "--steps":
        code, out, err = run(f"sft --resume r {option} 3")
        assert (code, out, err) == (
            2,
            "",
            f"nanoeuler: --resume takes its settings from the run, got also {option}\n",
        )


def head(info, settings=None):
    return {"info": info, "train": TrainConfig(**(settings or {})).to_dict(), "step": 5, "model": {}}


def test_every_option_of_train_resume_arrives(run, heard, tmp_path):
    Path("a.txt").touch()
    Path("v.txt").touch()
    info = {"source": "a.txt"}
    with patch.object(checkpoint, "read_head", return_value=head(info)) as read:
        assert run("train --resume r") == (0, "", "")
        read.assert_called_once_with(Path("r"))
        heard.resume.assert_called_once_with(
            Path("r"),
            "text of a.txt",
            None,
            False,
            files={"text": "a.txt", "valid": None},
            steps=None,
            device=None,
        )
        heard.out.assert_called_once_with(Path("r"), ANY, CONTINUE)
        assert isinstance(heard.out.call_args.args[1], float)
        info["files"] = {"text": "none.txt", "valid": "none.txt"}
        assert run("train --resume r --data a.txt --valid v.txt --quiet --steps 9 --device cpu") == (
            0,
            "",
            "",
        )
        files = {"text": str(tmp_path / "a.txt"), "valid": str(tmp_path / "v.txt")}
        heard.resume.assert_called_with(
            Path("r"), f"text of {files['text']}", f"text of {files['valid']}", True, files=files, steps=9,
            device="cpu",
        )  # fmt: skip
        moved = "nanoeuler: none.txt: no such file; it is the {} that the run began with. If it moved, "
        moved += "say where it is now: --{} FILE\n"
        assert run("train --resume r --valid v.txt")[2] == moved.format("text", "data")
        assert run("train --resume r --data a.txt")[2] == moved.format("valid", "valid")
        info.update(files={"text": None, "valid": None}, source=None)
        assert run("train --resume r")[2].startswith("nanoeuler: no name: no such file; it is the text that")
        info["files"]["text"] = "a\0b"
        assert ": no such file; it is the text that" in run("train --resume r")[2]
    for other in (head({"examples": ["konigsberg", 1, 2]}), head({}) | {"train": None}):
        with patch.object(checkpoint, "read_head", return_value=other):
            assert run("train --resume r")[2] == (
                "nanoeuler: r: was not begun by nanoeuler train, expected one of its runs\n"
            )


def test_every_option_of_sft_arrives(run, heard, tmp_path):
    assert run("sft --run r") == (0, "", "")
    source = ("konigsberg", 0, 201)
    heard.examples.assert_called_once_with(
        *source, SFT_DEFAULTS.get("valid_fraction", TrainConfig().valid_fraction)
    )
    heard.load.assert_called_once_with(checkpoint.PRETRAINED / "konigsberg-small")
    info = {
        "source": "konigsberg",
        "examples": source,
        "base": "konigsberg-small",
        "files": {"examples": "konigsberg"},
    }
    heard.tune.assert_called_once_with(
        Path("r"),
        (MODEL, "tokens"),
        ["some"],
        ["others"],
        TrainConfig(**SFT_DEFAULTS),
        "alpaca",
        info,
        False,
        None,
        device="device",
    )
    heard.choose.assert_called_once_with("cpu", None, "its shape")
    heard.out.assert_called_once_with(Path("r"), ANY, TALK)
    assert isinstance(heard.out.call_args.args[1], float)
    line = "sft --run r --data e.json --examples 30 --data-seed 0 --base b --quiet --workers 3".split()
    line += "--device checked --precision float32".split()
    assert run([*line, *words_of(SETTINGS)]) == (0, "", "")
    source = ("e.json", 30, 0)
    heard.examples.assert_called_with(*source, SETTINGS["valid_fraction"])
    heard.load.assert_called_with(Path("b"))
    info = {
        "source": "e.json",
        "examples": source,
        "base": "b",
        "files": {"examples": str(tmp_path / "e.json")},
    }
    heard.tune.assert_called_with(
        Path("r"), (MODEL, "tokens"), ["some"], ["others"], TrainConfig(**SETTINGS), "alpaca", info, True, 3,
        device="device",
    )  # fmt: skip
    heard.choose.assert_called_with("checked", "float32", "its shape")
    assert run("sft")[2] == "nanoeuler: --run is missing, expected --run FOLDER, or --resume FOLDER\n"
    for option in ("examples", "data-seed"):
        assert run(f"sft --run r --{option} -1")[2] == f"nanoeuler: --{option} is -1, expected 0 or more\n"


def test_every_option_of_sft_resume_arrives(run, heard, tmp_path):
    Path("e.json").touch()
    info = {"examples": ["e.json", 30, 4], "source": "e.json"}
    with patch.object(checkpoint, "read_head", return_value=head(info, {"valid_fraction": 0.3})):
        assert run("sft --resume r") == (0, "", "")
        heard.examples.assert_called_once_with("e.json", 30, 4, 0.3)
        heard.tune_on.assert_called_once_with(
            Path("r"), ["some"], ["others"], False, files={"examples": "e.json"}, steps=None, device=None
        )
        heard.out.assert_called_once_with(Path("r"), ANY, TALK)
        assert isinstance(heard.out.call_args.args[1], float)
        assert run("sft --resume r --data e.json --quiet --steps 7 --device gpu") == (0, "", "")
        path = str(tmp_path / "e.json")
        heard.examples.assert_called_with(path, 30, 4, 0.3)
        heard.tune_on.assert_called_with(
            Path("r"), ["some"], ["others"], True, files={"examples": path}, steps=7, device="gpu"
        )
        info["files"] = {"examples": "moved.json"}
        assert run("sft --resume r")[2] == (
            "nanoeuler: moved.json: no such file; it is the examples that the run began with. If it moved, say where "
            "it is now: --data FILE\n"
        )
        assert run("sft --resume r --data konigsberg")[0] == 0
        assert heard.tune_on.call_args.kwargs["files"] == {"examples": "konigsberg"}
        info["files"] = {"examples": "konigsberg"}  # needs no file
        assert run("sft --resume r")[0] == 0 and heard.examples.call_args.args[0] == "konigsberg"
    with patch.object(checkpoint, "read_head", return_value=head({})):
        assert (
            run("sft --resume r")[2]
            == "nanoeuler: r: was not begun by nanoeuler sft, expected one of its runs\n"
        )


@pytest.mark.parametrize(
    "line", ["train --data a.txt --run r", "train --resume r", "sft --run r", "sft --resume r"]
)
@pytest.mark.parametrize("warnings", [0, 1, 2])
def test_the_last_lines_of_a_training(line, warnings, run):
    """What came out, and how to look at it."""
    info = {"valid_bits_per_byte": 1.23456} | (
        {"examples": ["konigsberg", 1, 2]} if "sft" in line else {"source": "a.txt"}
    )
    Path("a.txt").write_text("text")
    clock = iter([1000.0, 1130.0])
    log = [{"step": 1, "loss": 1.0}, *[{"step": 1, "warning": "odd"}] * warnings]
    with (
        patch.object(checkpoint, "read_head", return_value=head(info) | {"step": 12345}),
        patch.object(run_folder, "read_log", return_value=log),
        patch.object(train, "train"), patch.object(loop, "resume"), patch.object(sft, "fine_tune"),
        patch.object(loop, "resume"), patch.object(sft, "examples_of", return_value=([], [], "plain")),
        patch.object(checkpoint, "load"), patch.object(cli.time, "perf_counter", lambda: next(clock)),
    ):  # fmt: skip
        code, out, err = run(line)
    said = {0: "", 1: ", 1 warning", 2: ", 2 warnings"}[warnings]
    what = TALK if "sft" in line else CONTINUE
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"r: done, 12,345 steps, 2 min this time; validation 1.2346 bits per byte{said}",
        "look at it: nanoeuler report r",
        f"{what} r",
    ]


def test_a_run_that_was_never_validated(run):
    with (
        patch.object(checkpoint, "read_head", return_value=head({})),
        patch.object(run_folder, "read_log", return_value=[]),
    ):
        with patch.object(cli.time, "perf_counter", lambda: 3.0):
            made = cli.Voice(stream := io.StringIO())
            with patch.object(cli, "Voice", lambda _: made):
                cli._came_out(Path("r"), 1.0, "see")
    assert stream.getvalue() == "r: done, 5 steps, 2 s this time\nlook at it: nanoeuler report r\nsee r\n"


# What looks at a run or a model.


def test_report_hands_on_and_says_where(run):
    with patch.object(report, "report", return_value=Path("x/report.md")) as made:
        assert run("report r") == (0, "x/report.md: written, with loss.png and layers.png beside it\n", "")
        made.assert_called_once_with(Path("r"), None)
        same(run("report r --out o --json")[1], '{"page": "x/report.md"}')
        made.assert_called_with(Path("r"), Path("o"))


OPTIONS = {"temperature": 0.5, "top_k": 3, "top_p": 0.75, "min_p": 0.125, "seed": 4}


def test_every_option_of_generate_arrives(run):
    loaded = SimpleNamespace(model="its model", tokenizer="its tokens")
    with (
        patch.object(generate, "stream", return_value=iter(())) as stream,
        patch.object(checkpoint, "load", return_value=loaded) as load,
    ):
        assert run("generate") == (0, "\n", "")
        usual = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "propose": 0}
        stream.assert_called_once_with("its model", "its tokens", "", 200, **usual)
        load.assert_called_once_with(checkpoint.PRETRAINED / "konigsberg-small")
        stream.return_value = iter(["b\x1b", "ü"])
        line = ["generate", "aä", "--run", "r", "--tokens", "0", "--propose", "2", *words_of(OPTIONS)]
        assert run(line) == (0, "aäb\x1bü\n", "")
        stream.assert_called_with("its model", "its tokens", "aä", 0, **OPTIONS, propose=2)
        load.assert_called_with(Path("r"))
        stream.return_value = iter(["b\x1b", "ü"])
        assert run(line, terminal=True)[1] == "aäb\ufffdü\n"
        stream.return_value = iter(["b", "ü"])
        same(run([*line, "--json"])[1], '{"prompt": "aä", "continuation": "bü"}')
        stream.return_value = iter(())
        same(run([*line, "--json"])[1], '{"prompt": "aä", "continuation": ""}')
        stream.return_value = iter(())
        assert run(line)[1] == "aä\n"
        for option in ("tokens", "seed"):
            assert run(f"generate --{option} -1")[2] == f"nanoeuler: --{option} is -1, expected 0 or more\n"


def test_text_is_shown_while_it_is_made(streams):
    made, seen = streams(), []

    def pieces(*_, **__):
        for piece in "abc":
            yield piece
            seen.append(made.stdout.flushed())

    with (
        patch.object(generate, "stream", pieces),
        patch.object(checkpoint, "load", return_value=SimpleNamespace(model=0, tokenizer=0)),
    ):
        assert cli.main(["generate", "x"]) == 0
    assert seen == ["xa", "xab", "xabc"] and made.stdout.text() == "xabc\n"


@pytest.fixture
def talk():
    """A conversation of which the lines are heard."""
    lines = []

    class Loop:
        def __init__(self, chat, write, tokens, **options):
            self.write = write
            lines.append((chat, tokens, options))

        def line(self, text):
            lines.append(text)
            self.write(f"<{text}\x1b>\n")
            return text != "/quit"

    found = SimpleNamespace(model="model", tokenizer="tokens", info={"template": "alpaca"})
    with (
        patch.object(checkpoint, "load", return_value=found) as load,
        patch.object(ask, "Loop", Loop),
        patch.object(chat, "Chat", lambda *given: given),
    ):
        yield SimpleNamespace(lines=lines, load=load, found=found)


def test_every_option_of_chat_arrives(run, talk):
    assert run("chat", "a\nä\n/quit\nb\n".encode()) == (0, "<a\x1b>\n<ä\x1b>\n</quit\x1b>\n", "")
    talk.load.assert_called_once_with(checkpoint.PRETRAINED / "konigsberg-chat")
    usual = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "stories": False}
    assert talk.lines == [(("model", "tokens", "alpaca"), 200, usual), "a", "ä", "/quit"]
    del talk.lines[:], talk.found.info["template"]
    assert run(["chat", "--run", "r", "--tokens", "7", *words_of(OPTIONS)], b"") == (0, "", "")
    talk.load.assert_called_with(Path("r"))
    assert talk.lines == [(("model", "tokens", "plain"), 7, OPTIONS | {"stories": False})]
    for source, stories in (("konigsberg", True), ("konigsberg-reworded", True), ("/a/konigsberg", False)):
        del talk.lines[:]
        talk.found.info["source"] = source
        assert run("chat", b"") == (0, "", "") and talk.lines[0][2]["stories"] is stories


def test_a_line_that_is_not_utf_8_ends_no_conversation(run, talk):
    code, out, err = run("chat", b"a\xff\nb\n")
    assert (code, err, talk.lines[1:]) == (0, "", ["b"])
    assert out == "text: character 1 is not UTF-8, expected UTF-8 text\n<b\x1b>\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_ctrl_c_at_the_prompt(run, talk, terminal):
    """On a terminal a line begins anew; else the program ends as one that was interrupted does."""
    given, prompts = iter([KeyboardInterrupt, "b", EOFError]), []

    def read(prompt):
        prompts.append(prompt)
        if isinstance(found := next(given), str):
            return found
        raise found

    with patch("builtins.input", read):
        code, out, err = run("chat", terminal=terminal)
    if not terminal:
        assert (code, out, err, prompts) == (130, "\n", "", [""])
        return
    assert (code, err, prompts, talk.lines[1:]) == (0, "", ["> "] * 3, ["b"])
    first, *rest = out.splitlines()
    assert (
        first == "Ask, or /story for a story and its questions, or /help. Ctrl-D ends, Ctrl-C stops a reply."
    )
    assert rest == ["", "<b\ufffd>"]
    talk.found.info["source"] = "konigsberg"
    with patch("builtins.input", side_effect=EOFError):
        first, *rest = run("chat", terminal=True)[1].splitlines()
    assert (
        first == "This model knows stories from Königsberg and a few questions about each, and nothing else."
    )
    assert [line[:5] for line in rest] == ["Ask, "]


ROW = gradcheck.Row("heads", (3, 4), 1e-9, 1e-8, 0.5, 2e-7)
FLAWED = {
    "nothing": (ROW, ROW, 0),
    "an element": (gradcheck.Row("heads", (3, 4), 1e-9, 1e-8, 2.0, 2e-7), ROW, 1),
    "a norm": (ROW, gradcheck.Row("heads", (3, 4), 1e-9, 1e-8, 0.5, 1.1e-6), 1),
    "a norm of large weights": (gradcheck.Row("heads", (3, 4), 1e-9, 1e-8, 0.5, 1e-3), ROW, 0),
    "an element of small weights": (ROW, gradcheck.Row("heads", (3, 4), 1e-9, 1e-8, 9.0, 1e-6), 0),
}


@pytest.mark.parametrize("flaw", FLAWED)
def test_check_judges_large_weights_by_element_and_small_ones_by_norm(run, flaw):
    large, small, expected = FLAWED[flaw]
    rows = {0.3: [ROW, large], 0.02: [small, ROW]}
    with (
        patch.object(gradcheck, "check_model", lambda std: rows[std]),
        patch.object(ops, "use", wraps=ops.use) as use,
    ):
        code, out, err = run("check --ops plain")
        use.assert_called_once_with("plain")
        assert (code, err) == (expected, "")
        lines = []
        for std, definition, failed in (
            (0.3, gradcheck.DEFINITION, flaw == "an element"), (0.02, gradcheck.DEFINITION_NORM, flaw == "a norm"),
        ):  # fmt: skip
            worst = max(row.norm_rel for row in rows[std])
            lines += [
                f"weights N(0, {std}); {definition}",
                *gradcheck.table(rows[std], std == 0.02).splitlines(),
            ]
            lines += [f"worst: {worst:.1e} in norm, {'FAILED' if failed else 'passed'}", ""]
        assert out.splitlines() == lines
        code, out, _ = run("check --json")
        assert use.call_args.args == ("cpu",) and code == expected
        found = json.loads(out)
        assert list(found) == ["definition", "passed", "weights_std"] and found["passed"] is (expected == 0)
        assert found["definition"] == gradcheck.DEFINITION and list(found["weights_std"]) == ["0.3", "0.02"]
        assert found["weights_std"]["0.3"][1]["worst"] == large.worst
        assert found["weights_std"]["0.02"][0]["norm_rel"] == small.norm_rel
        assert list(found["weights_std"]["0.3"][0]) == [
            "name",
            "shape",
            "max_abs",
            "max_rel",
            "worst",
            "norm_rel",
        ]


def test_numbers_of_numpy_can_stand_in_the_json_of_a_check(run):
    odd = gradcheck.Row("heads", (3,), np.float32(0.5), 0.0, 0.0, 0.0)
    with patch.object(gradcheck, "check_model", lambda std: [odd]):
        code, out, _ = run("check --json")
    assert code == 0 and json.loads(out)["weights_std"]["0.3"][0]["max_abs"] == "0.5"


@pytest.mark.parametrize("wrong", [False, True])
def test_check_of_a_device_compares_the_engine_s_gradients(run, wrong):
    """On the device and in the precision asked for; one tensor beyond what is allowed is a failure."""
    placed = device.Device("checked", "tf32")
    second = gradcheck.Row("embed", (2, 3), 1e-9, 1e-8, 9.0, 0.25 if wrong else 0.125)
    rows = [(ROW, 3e-7, 2e-7), (second, 5e-7, 0.125)]
    with (
        patch.object(device, "choose", return_value=placed) as choose,
        patch.object(gradcheck, "check_engine", return_value=rows) as check,
        patch.object(gradcheck, "check_model") as own,
    ):
        verdict = "FAILED" if wrong else "passed"
        text = f"checked, tf32; {gradcheck.DEFINITION_ENGINE}\n{gradcheck.engine_table(rows)}\n{verdict}\n"
        assert run("check --device gpu:1 --precision tf32") == (int(wrong), text, "")
        choose.assert_called_once_with("gpu:1", "tf32")
        check.assert_called_once_with(placed.place, "tf32")
        code, out, _ = run("check --device checked --json")
        choose.assert_called_with("checked", None)
        assert code == int(wrong) and list(json.loads(out).items()) == [
            ("definition", gradcheck.DEFINITION_ENGINE), ("device", "checked, tf32"), ("passed", not wrong),
            ("tensors", [
                {"tensor": "heads", "error": 2e-7, "float32": 3e-7, "allowed": 2e-7},
                {"tensor": "embed", "error": second.norm_rel, "float32": 5e-7, "allowed": 0.125},
            ]),
        ]  # fmt: skip
        assert list(json.loads(out)["tensors"][0]) == ["tensor", "error", "float32", "allowed"]
        own.assert_not_called()
    with patch.object(gradcheck, "check_model", lambda std: [ROW]), patch.object(device, "choose") as choose:
        choose.return_value = device.CPU
        assert run("check --precision float32")[0] == 0
        choose.assert_called_once_with("cpu", "float32")


@pytest.mark.parametrize("options, given", [
    ("--device checked", ("checked", None)), ("--precision tf32", ("gpu", "tf32")),
    ("--device gpu:1 --precision float32", ("gpu:1", "float32")),
])  # fmt: skip
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_model_is_put_on_the_device_asked_for(run, talk, command, options, given):
    """Without one it stays on the CPU; a precision alone asks for a GPU."""
    talk.found.model = SimpleNamespace(config="its shape")
    with (
        patch.object(device, "choose") as choose,
        patch.object(generate, "stream", return_value=iter(["a"])) as stream,
    ):
        choose.return_value.place = lambda model: ("placed", model)
        used = lambda: stream.call_args.args[0] if command == "generate" else talk.lines[-1][0][0]
        model = talk.found.model
        assert run(command)[0] == 0 and used() is model
        choose.assert_not_called()
        assert run(f"{command} {options}")[0] == 0
        choose.assert_called_once_with(*given, "its shape")
        assert used() == ("placed", model)


def test_diagnose_says_each_tool_s_findings_as_they_come(streams):
    made, seen = streams(), []

    def examine(tools):
        assert tools == ["schedule", "sampling"]
        yield "schedule", []
        seen.append(made.stdout.flushed())
        yield "sampling", ["ä is odd", "and b"]

    fine = f"ok      schedule: {diagnose.TOOLS['schedule'][0].__doc__}\n"
    with patch.object(diagnose, "diagnose", examine):
        assert cli.main("diagnose --tool schedule sampling".split()) == 1
        assert seen == [fine]
        assert made.stdout.text() == fine + "FOUND   sampling: ä is odd\nFOUND   sampling: and b\n"
        made = streams()
        assert cli.main("diagnose --json --tool schedule sampling".split()) == 1
        same(
            made.stdout.text(),
            '{"sound": false, "findings": {"schedule": [], "sampling": ["ä is odd", "and b"]}}',
        )
    with patch.object(diagnose, "diagnose", lambda tools: iter([("schedule", [])] if tools is None else [])):
        made = streams()
        assert cli.main(["diagnose"]) == 0 and made.stdout.text() == fine
        made = streams()
        assert cli.main(["diagnose", "--json"]) == 0
        same(made.stdout.text(), '{"sound": true, "findings": {"schedule": []}}')


WAYS = "nanoeuler: expected --seed N [--out FOLDER], --hand-in FOLDER, --reveal FOLDER or --seed N --reveal\n"


def test_every_way_of_break(run):
    with (
        patch.object(breaks, "plant", return_value=Path("p")) as plant,
        patch.object(breaks, "hand_in", return_value=(True, "verdict")) as hand_in,
        patch.object(breaks, "reveal", lambda bug: f"all about {bug}\n"),
        patch.object(breaks, "bug_of", lambda seed: f"bug {seed}"),
        patch.object(breaks, "found_in", lambda folder: (8, f"bug in {folder}")),
    ):
        planted = "p: a copy of the package with one bug in it; begin with p/README.md\n"
        assert run("break --seed 0") == (0, planted, "")
        plant.assert_called_once_with(0, None)
        assert run("break --seed 3 --out o") == (0, planted, "")
        plant.assert_called_with(3, Path("o"))
        assert run("break --hand-in h") == (0, "verdict\n", "")
        hand_in.assert_called_once_with(Path("h"))
        hand_in.return_value = (False, "verdict")
        assert run("break --hand-in h") == (1, "verdict\n", "")
        assert run("break --reveal f") == (0, "seed 8: all about bug in f\n", "")
        assert run("break --seed 0 --reveal") == (0, "seed 0: all about bug 0\n", "")
        for wrong in (
            "", "--reveal", "--out o", "--seed 1 --reveal f", "--seed 1 --hand-in h", "--hand-in h --out o",
            "--reveal f --out o", "--seed 1 --reveal --out o", "--hand-in h --reveal f",
        ):  # fmt: skip
            assert run(f"break {wrong}") == (2, "", WAYS), wrong


def test_a_broken_copy_has_no_bugs_to_plant(run, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "nanoeuler_lib" / "cli.py"))
    said = "nanoeuler: this is a broken copy, expected the installed command: nanoeuler break\n"
    assert run("break --seed 1") == (2, "", said)


# Papers.

SHORT = "; the seed is short: whoever tries all of that length has the data that papers are marked with"


def test_papers_are_handed_out(run):
    """To one student or to all of a file, each into a folder of its own."""
    with patch.object(papers, "hand_out") as hand_out, patch.object(papers, "roster") as roster:
        assert run("assign 05 --seed twelve-words --student ada") == (
            0,
            "paper-05-ada: 1 of chapter 05\n",
            "",
        )
        hand_out.assert_called_once_with("05", "twelve-words", "ada", Path("paper-05-ada"))
        assert run("assign 05 --seed eleven-word --student ada --out o") == (
            0,
            f"o: 1 of chapter 05{SHORT}\n",
            "",
        )
        hand_out.assert_called_with("05", "eleven-word", "ada", Path("o"))
        roster.return_value = ["emmy", "ada"]
        for option, out in (("", "papers-08"), (" --out a/b", "a/b")):
            hand_out.reset_mock()
            line = f"assign 08 --seed twelve-words --students names.txt{option}"
            assert run(line) == (0, f"{out}: 2 of chapter 08\n", "")
            roster.assert_called_with(Path("names.txt"))
            assert [call.args for call in hand_out.call_args_list] == [
                ("08", "twelve-words", name, Path(out, name)) for name in ("emmy", "ada")
            ]
            same(
                run(f"{line} --json")[1],
                f'{{"out": "{out}", "papers": {{"emmy": "{out}/emmy", "ada": "{out}/ada"}}}}',
            )
        same(
            run("assign 05 --seed twelve-words --student ada --json")[1],
            '{"out": "paper-05-ada", "papers": {"ada": "paper-05-ada"}}',
        )
        assert run("assign 05 --seed - --student ada", b" from a pipe \n")[0] == 0
        assert hand_out.call_args.args[1] == "from a pipe", "and not in the list of processes"
        hand_out.reset_mock()
        for words, stdin in ((["--seed", ""], b""), (["--seed", "-"], b" \n")):
            assert run(["assign", "05", *words, "--student", "ada"], stdin) == (
                2, "", "nanoeuler: --seed is empty, expected a text that cannot be guessed\n",
            )  # fmt: skip
        hand_out.assert_not_called()


def test_papers_are_marked(streams, tmp_path, monkeypatch):
    """A line for each student as soon as there is one; what is wrong with the command is told before the first."""
    monkeypatch.chdir(tmp_path)
    made, seen, asked = None, [], []

    def grade(chapter, seed, student, answers):
        seen.append(made.stdout.flushed())
        asked.append((chapter, seed, student, answers))
        wrong = student != "ada"
        return [papers.Mark("weights", 0 if wrong else 4, 4, "odd" * wrong), papers.Mark("norm", 6, 6, "")]

    def run(line):
        nonlocal made
        made = streams()
        return cli.main(line.split()), made.stdout.text(), made.stderr.text()

    work = {"ada": Path("work/ada.py"), "e\x1bmmy": Path("work/emmy.py")}
    with (
        patch.object(papers, "paper") as paper,
        patch.object(papers, "submissions", return_value=work) as submissions,
        patch.object(papers, "grade", grade),
        patch.object(papers, "write_marks") as write,
    ):
        first = "ada                  10 of 10   weights 4  norm 6\n"
        second = "e\ufffdmmy                6 of 10    weights 0  norm 6\n"
        last = "{}/marks.csv: 2 students, and a page for each\n"
        assert run("assign 05 --seed s --grade work") == (0, first + second + last.format("marks-05"), "")
        assert seen == ["", first]
        assert asked == [("05", "s", student, file) for student, file in work.items()]
        paper.assert_called_once_with("05", "s", "")
        submissions.assert_called_once_with(Path("work"))
        ((out, chapter, marks), _) = write.call_args
        assert (out, chapter, list(marks)) == (Path("marks-05"), "05", list(work))
        assert [[mark.points for mark in row] for row in marks.values()] == [[4, 6], [0, 6]]
        code, out, err = run("assign 05 --seed s --grade work --out o --json")
        right, wrong = (
            [
                {"problem": "weights", "points": points, "of": 4, "said": said},
                {"problem": "norm", "points": 6, "of": 6, "said": ""},
            ]
            for points, said in ((4, ""), (0, "odd"))
        )
        same(out, json.dumps({"out": "o", "students": dict(zip(work, (right, wrong)))}))
        assert (code, err, write.call_args.args[0]) == (0, "", Path("o"))
        del asked[:]
        paper.side_effect = NanoEulerError("no such chapter")
        assert run("assign 5 --seed s --grade work") == (2, "", "nanoeuler: no such chapter\n")
        paper.side_effect = None
        Path("marks-05").mkdir()
        assert run("assign 05 --seed s --grade work") == (
            2, "", "nanoeuler: marks-05: exists already, expected a new file name\n",
        )  # fmt: skip
        assert asked == []


CONFIG = ModelConfig(dim=8, heads=4, kv_heads=2, layers=1, context=5, vocab_size=6, predict=2, ffn=3)
TENSORS = {
    "embed": [6, 8], "layers.0.norm1": [8], "layers.0.qkv": [8, 16], "layers.0.out": [8, 8], "layers.0.norm2": [8],
    "layers.0.gate_up": [8, 6], "layers.0.down": [3, 8], "norm_final": [8], "heads": [8, 12],
}  # fmt: skip


def test_the_page_about_a_model(run):
    """Every line of `info` about a small run, and the same facts as JSON in the same order."""
    size = sum(int(np.prod(shape)) for shape in TENSORS.values())
    found = SimpleNamespace(
        model=SimpleNamespace(config=CONFIG), path=Path("r/step-000003"), step=3, train=TrainConfig(steps=3),
        info={"source": "a\nb", "files": {"text_file": "x"}},
    )  # fmt: skip
    from nanoeuler_lib.model.plan import Plan

    buffers = Plan(CONFIG, 1, 5).nbytes
    with patch.object(checkpoint, "load", return_value=found) as load:
        out = run("info --run r")[1]
        load.assert_called_once_with(Path("r"))
        model = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in CONFIG.to_dict().items())
        settings = ", ".join(f"{n.replace('_', ' ')} {v}" for n, v in TrainConfig(steps=3).to_dict().items())
        assert out.splitlines() == [
            "checkpoint: r/step-000003",
            "step: 3",
            "source: a b",
            "files: text file x",
            f"model: {model}",
            f"parameters: {size:,}, {4 * size / 1e6:,.1f} MB as float32; training keeps four times that",
            f"buffers: {buffers / 1e6:,.1f} MB for a row of 5 tokens and its gradient",
            f"training: {settings}",
            *(f"  {name:<20} {'x'.join(map(str, shape))}" for name, shape in TENSORS.items()),
        ]
        found.info["a_name_of_" + "x" * 99] = "y" * 999
        long = [line for line in run("info --run r")[1].splitlines() if line.startswith("a name of x")]
        name, _, value = long[0].partition(": ")
        assert len(name) == 65 and 600 < len(value) < 610
        del found.info["a_name_of_" + "x" * 99]
        facts = json.loads(run("info --run r --json")[1])
        assert list(facts.items()) == list(
            {
                "checkpoint": "r/step-000003", "step": 3, "source": "a\nb", "files": {"text_file": "x"},
                "train": TrainConfig(steps=3).to_dict(), "model": CONFIG.to_dict(), "parameters": size,
                "float32_bytes": 4 * size, "plan_bytes_one_row": buffers, "tensors": TENSORS,
            }.items()
        )  # fmt: skip
        found.train = None
        assert "training" not in [line.split(":")[0] for line in run("info --run r")[1].splitlines()]
        assert "train" not in json.loads(run("info --run r --json")[1])
    lines = run("info")[1].splitlines()
    assert lines[0] == "preset: small" and lines[1].startswith("model: ") and len(lines) == 4 + 4 * 6 + 3
    assert json.loads(run("info --preset big --json")[1])["preset"] == "big"


# The frame around all of them.


@pytest.mark.parametrize(
    "error, code, said",
    [
        (NanoEulerError("bad\nthing"), 2, "nanoeuler: bad thing\n"),
        (MemoryError(), 2, "nanoeuler: not enough memory\n"),
        (MemoryError("of this size"), 2, "nanoeuler: of this size\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 0, ""),
        (OSError(28, "No space left", "a.txt"), 2, "nanoeuler: a.txt: No space left\n"),
        (OSError(28, "No space left"), 2, "nanoeuler: standard output: No space left\n"),
        (OSError("of an odd kind"), 2, "nanoeuler: standard output: of an odd kind\n"),
        (SystemExit(3), 3, ""),
        (SystemExit(), 0, ""),
    ],
)
def test_how_the_command_ends(run, error, code, said):
    """What was printed before an error still comes out, and before what is said of it."""

    def fail(*_):
        print("so far")
        raise error

    with patch.object(report, "report", fail):
        assert run("report r") == (code, "so far\n", said)


def test_a_command_that_finds_a_fault_ends_with_1_and_the_others_with_0(run):
    with patch.dict(cli.COMMANDS, {"info": lambda args: 1}):
        assert run("info")[0] == 1
    with patch.dict(cli.COMMANDS, {"info": lambda args: None}):
        assert run("info")[0] == 0


class Full(Stream):
    """A stream onto a disk that is full: it takes text and cannot let go of it."""

    def flush(self):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "line, must", [("info", True), ("train --data a --run r", False), ("sft --run r", False)]
)
def test_output_matters_unless_a_run_was_trained(streams, monkeypatch, line, must):
    """For a training the run's folder is the result; what another command prints is."""
    made = streams()
    opened = []
    with open("/dev/null", "w") as sink:
        full = Full()
        full.fileno = sink.fileno
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(cli.os, "dup2", lambda new, old: opened.append(old))
        with (
            patch.object(cli, "_prepare_streams"), patch.object(cli, "_came_out"), patch.object(data, "read_text"),
            patch.object(train, "train"), patch.object(checkpoint, "load"), patch.object(sft, "fine_tune"),
            patch.object(sft, "examples_of", return_value=([], [], "plain")),
            patch.dict(cli.COMMANDS, {"info": lambda args: None}),
        ):  # fmt: skip
            code = cli.main(line.split())
        assert opened and set(opened) == {sink.fileno()}
    assert code == (2 if must else 0)
    assert made.stderr.text() == ("nanoeuler: standard output: No space left on device\n" if must else "")


def test_closed_streams_are_named(monkeypatch):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    cli._prepare_streams()
    for stream, name in (
        (sys.stdin, "standard input"),
        (sys.stdout, "standard output"),
        (sys.stderr, "standard error"),
    ):
        for act in (lambda s: s.write("x"), lambda s: s.read(), lambda s: s.read(3), lambda s: s.readline()):
            with pytest.raises(OSError, match="is closed") as caught:
                act(stream)
            assert caught.value.filename == name and caught.value.errno == 9


@pytest.mark.parametrize("terminal", [True, False])
def test_what_streams_do_with_letters_they_do_not_have(monkeypatch, terminal):
    """Input is UTF-8 whatever the locale, and its other bytes come back as they were; a file gets UTF-8."""

    class Ascii(io.TextIOWrapper):
        def __init__(self, content=b""):
            super().__init__(io.BytesIO(content), "ascii")

        def isatty(self):
            return terminal

    monkeypatch.setattr(sys, "stdin", Ascii("ü".encode() + b"\xff"))
    monkeypatch.setattr(sys, "stdout", Ascii())
    cli._prepare_streams()
    assert sys.stdin.read() == "ü\udcff"
    sys.stdout.write("aü\ud800")
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue() == (b"a??" if terminal else "aü?".encode())


def test_streams_of_another_kind_are_left_alone(monkeypatch):
    """As in a notebook or a test: they have no encoding to be changed."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("x"))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    cli._prepare_streams()
    assert isinstance(sys.stdin, io.StringIO) and isinstance(sys.stdout, io.StringIO)


def test_a_closed_number_is_taken_before_a_file_gets_it():
    """Standard error closed: else the next file opened would receive what is printed to number 2."""
    taken, fstat = [], os.fstat

    def without_2(number):
        if number == 2:
            raise OSError
        return fstat(number)

    with (
        patch.object(cli.os, "fstat", without_2),
        patch.object(cli.os, "open", lambda *given: taken.append(given)),
    ):
        cli._prepare_streams()
    assert taken == [(os.devnull, os.O_RDWR)]


def test_the_bytes_of_an_argument_are_utf_8(monkeypatch):
    """Under a locale such as POSIX Python has taken them for something else."""
    assert cli._utf8("ü") == "ü" and cli._utf8("\udcc3\udcbc") == "ü"
    monkeypatch.setattr(
        cli.os, "fsencode", lambda text: text.encode("ascii")
    )  # a letter that came from elsewhere
    assert cli._utf8("ü") == "ü"
