"""What each subcommand of `nanoeuler` hands on, without doing the work, and the frame around all of them.

`test_cli.py` runs the commands; here a listener stands between them and the library, so that every option, also one
that changes nothing visible, is seen to arrive.
"""

import argparse
import io
import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import DEFAULT, MagicMock, patch

import numpy as np
import pytest

import konigsberg
from nanoeuler_lib import corpus, ops
from nanoeuler_lib.command import arguments, ask, cli, sources
from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.engine import device
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generation import chat, generate, score
from nanoeuler_lib.model import gradcheck
from nanoeuler_lib.text import data, shards
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import checkpoint, loop, report, sft, train
from tools.course.papers import papers


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
        found = SimpleNamespace(stdin=Stream(terminal, stdin), stdout=Stream(terminal), stderr=Stream(terminal))
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


@pytest.fixture(autouse=True)
def every_prompt_fits(monkeypatch):
    monkeypatch.setattr(generate, "unread", lambda *_: 0)


# Tokenizers and the corpus.


def test_what_ids_stand_for_reaches_a_terminal_without_control_characters(run):
    Tokenizer([]).save("bpe.json")
    assert run("tokenizer decode 97 0 10 --tokenizer bpe.json")[1] == "a\0\n"
    assert run("tokenizer decode 97 0 9 98 --tokenizer bpe.json", terminal=True)[1] == "a\ufffd\tb\n"
    assert run(["tokenizer", "encode", "", "--tokenizer", "bpe.json"], b"not read")[1] == "\n"


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


def test_a_corpus_in_a_file_is_told_before_it_is_measured(run):
    shown = []
    with (
        patch.object(konigsberg, "corpus", return_value="ab"),
        patch.object(konigsberg, "floor", lambda stories: shown.append(sys.stdout.flushed()) or len(list(stories)) / 8),
    ):
        code, _, err = run("corpus konigsberg --out a.txt", terminal=True)
    assert (code, shown) == (0, ["a.txt: 2 bytes\n"]) and "measuring the floor" in err
    assert not err.rsplit("\r", 1)[1].strip(), "the bar is wiped away at the end"


# Every option arrives.

SETTINGS = {
    "steps": 7, "batch": 3, "accumulate": 2, "optimizer": "muon", "rate": 0.5, "warmup": 4, "decay": 0.25, "clip": 2.0,
    "later_heads": 0.75, "seed": 9, "valid_fraction": 0.2, "valid_every": 5, "sample_every": 6, "save_every": 8,
}  # fmt: skip
SHAPES = {"dim": 32, "heads": 8, "kv_heads": 1, "layers": 3, "context": 20, "vocab_size": 300, "predict": 2}
VALUES = SETTINGS | SHAPES | {"preset": "big", "ops": "plain", "device": "gpu", "precision": "tf32", "cards": 1}
LINES = {  # tokenizer, report, diagnose, break, assign and info are run whole, in test_cli, test_breaks and test_assign
    "corpus konigsberg": "--out new", **{f"corpus {name}": "--out new" for name in arguments.CORPORA},
    "shards": "a.txt --tokenizer bpe.json --out new", "train": "--data a.txt --run r", "train --resume": "r",
    "sft": "--run r", "sft --resume": "r", "generate": "a", "score": "a.txt", "chat": "",
    "check": "",
}  # fmt: skip
ROW = gradcheck.Row("heads", (3, 4), 1e-9, 1e-8, 0.5, 2e-7)


def head(info):
    return {"info": info, "train": TrainConfig().to_dict(), "step": 5, "model": {}}


@pytest.fixture
def heard():
    """One listener in place of all that takes time."""
    heard = MagicMock()
    report = {"parts": {"train.txt": {"documents": 1, "bytes": 1}}, "dropped": {}, "skipped": [], "notes": []}
    heard.make.return_value = report | {"licence": ""}
    heard.write.return_value = SimpleNamespace(tokens=1, documents=1, bytes=0, shards=[])
    heard.tokenizer.return_value.vocab_size = 257
    heard.corpus.return_value, heard.floor.return_value = "text", 1.0
    heard.examples.return_value = ["some"], ["others"], "alpaca"
    heard.load.side_effect = lambda _: SimpleNamespace(
        model=SimpleNamespace(config="its shape"), tokenizer="tokens", info={}, path=None
    )
    heard.stream.side_effect = lambda *_, **__: iter("b")
    heard.score.return_value = score.Scored(np.array([1]), np.array([2.0]), 1, 1)
    heard.choose.side_effect = lambda name, *_: device.CPU if name == "cpu" else DEFAULT
    heard.model.return_value, heard.engine.return_value = [ROW], [(ROW, 0.0, 1.0)]
    with ExitStack() as stack:
        for owner, name, child in (
            (corpus, "make", lambda *given, follow: heard.make(*given)), (konigsberg, "corpus", heard.corpus),
            (konigsberg, "floor", heard.floor), (shards, "write", heard.write), (Tokenizer, "load", heard.tokenizer),
            (data, "read_text", heard.read), (train, "train", heard.train), (train, "pretrain", heard.pretrain),
            (sft, "fine_tune", heard.tune), (loop, "resume", heard.resume), (sources, "examples", heard.examples),
            (checkpoint, "load", heard.load), (checkpoint, "read_head", heard.head), (device, "choose", heard.choose),
            (cli, "_came_out", lambda *_: None), (generate, "stream", heard.stream), (ask, "Loop", heard.loop),
            (score, "score", lambda *given, follow: heard.score(*given)), (score, "page", lambda *_: "<p>"),
            (chat, "Chat", heard.chat), (gradcheck, "check_model", heard.model), (ops, "use", heard.use),
            (gradcheck, "check_engine", heard.engine),
        ):  # fmt: skip
            stack.enter_context(patch.object(owner, name, child))
        yield heard


def options_of(command):
    parser = cli.parser()
    for word in command.removesuffix(" --resume").split():
        (sub,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        parser = sub.choices[word]
    return [a for a in parser._actions if a.option_strings and a.dest not in ("help", "resume")]


@pytest.mark.parametrize("command", LINES)
def test_every_option_changes_what_the_library_is_asked_or_is_refused(command, run, heard):
    """An option that is parsed and not handed on is seen here, whatever it is called."""
    info = {"examples": ["a.txt", 1, 2]} if "sft" in command else {"source": "a.txt"}
    heard.head.return_value = head(info)
    Path("a.txt").touch()

    def done(*more):
        heard.reset_mock()
        found = run([*f"{command} {LINES[command]}".split(), *more]), heard.mock_calls[:]
        Path("new").unlink(missing_ok=True)
        return found

    plain = done()
    assert plain == done() and plain[0][0] == 0, plain
    for action in options_of(command):
        if action.dest == "prompt_file":
            continue  # in the place of the prompt: test_use
        option = action.option_strings[0]
        value = VALUES.get(action.dest, {int: 3, float: 0.5}.get(action.type, "x"))
        if option == "--model":  # another one than the default
            value = "konigsberg-small" if command == "chat" else "konigsberg-chat"
        changed = done(option, *([str(value)] if action.nargs != 0 else []))
        if command.endswith("--resume") and changed[0][0] == 2:
            said = f"nanoeuler: --resume takes its settings from the run, got also {option}: only --steps, --lr, "
            said = "nanoeuler: --resume goes on with a run" if option == "--from" else said
            assert changed[0][:2] == (2, "") and changed[0][2].startswith(said)
        elif option in ("--last-turn", "--from"):  # for examples of one's own; a run to begin with
            continue
        else:
            assert changed[0][0] == 0, (option, changed)
            assert changed != plain, option


def test_training_s_words_of_what_is_missing_or_too_much(run, heard):
    for workers in (0, 4097):
        expected = f"nanoeuler: --workers is {workers}, expected 1 to 4096\n"
        assert run(f"train --data a.txt --run r --workers {workers}") == (2, "", expected)
        assert run(f"sft --run r --workers {workers}") == (2, "", expected)
    for given, missing in (("--data a.txt", "run"), ("--run r", "data"), ("", "data")):
        assert run(f"train {given}")[2] == (
            f"nanoeuler: --{missing} is missing, expected --data FILE --run FOLDER, or --resume FOLDER\n"
        )
    for command, info in (("train", {"examples": ["konigsberg", 1, 2]}), ("sft", {})):
        heard.head.return_value = head(info)
        assert run(f"{command} --resume r")[2] == (
            f"nanoeuler: r: was not begun by nanoeuler {command}, expected one of its runs\n"
        )


def test_a_run_whose_file_has_no_name_or_an_odd_one_says_so(run, heard):
    for name in (None, "a\0b"):
        heard.head.return_value = head({"source": name, "files": {"text": name, "valid": None}})
        assert ": no such file; it is the text that" in run("train --resume r")[2]


# What looks at a run or a model.


def test_a_model_of_the_package_is_taken_by_its_name(run, heard):
    assert run("generate a --model konigsberg-chat")[0] == 0
    assert heard.load.call_args.args[0] == checkpoint.PRETRAINED / "konigsberg-chat"
    code, out, said = run("generate a --model english-smal")
    known = ", ".join(sorted(folder.name for folder in checkpoint.PRETRAINED.iterdir()))
    assert (code, out) == (2, "")
    assert said == f"nanoeuler: no pretrained model 'english-smal', the package has {known}\n"
    assert run("generate a --model=")[2] == said.replace("english-smal'", "'", 1)
    said = "nanoeuler: --model stands beside --run, expected one of them\n"
    assert run("score a.txt --model konigsberg-small --run r") == (2, "", said)


def test_what_a_model_says_reaches_a_terminal_without_control_characters(run, heard):
    heard.stream.side_effect = lambda *_, **__: iter(["b\x1b", "ü"])
    assert run(["generate", "aä"])[1] == "aäb\x1bü\n"
    assert run(["generate", "aä"], terminal=True)[1] == "aäb\ufffdü\n"


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
    assert first == "Ask, or /story for a story and its questions, or /help. Ctrl-D ends, Ctrl-C stops a reply."
    assert rest == ["", "<b\ufffd>"]
    talk.found.info["source"] = "konigsberg"
    with patch("builtins.input", side_effect=EOFError):
        first, *rest = run("chat", terminal=True)[1].splitlines()
    assert first == "This model knows stories from Königsberg and a few questions about each, and nothing else."
    assert [line[:5] for line in rest] == ["Ask, "]


FLAWED = {
    "nothing": (ROW, ROW, 0),
    "an element": (replace(ROW, worst=2.0), ROW, 1),
    "a norm": (ROW, replace(ROW, norm_rel=1.1e-6), 1),
    "a norm of large weights": (replace(ROW, norm_rel=1e-3), ROW, 0),
    "an element of small weights": (ROW, replace(ROW, worst=9.0, norm_rel=1e-6), 0),
}


@pytest.mark.parametrize("flaw", FLAWED)
def test_check_judges_large_weights_by_element_and_small_ones_by_norm(run, flaw):
    large, small, expected = FLAWED[flaw]
    rows = {0.3: [ROW, large], 0.02: [small, ROW]}
    with patch.object(gradcheck, "check_model", lambda std: rows[std]):
        code, out, _ = run("check")
        assert (code, out.count("FAILED")) == (expected, expected)
        code, out, _ = run("check --json")
        assert (code, json.loads(out)["passed"]) == (expected, expected == 0)


def test_numbers_of_numpy_can_stand_in_the_json_of_a_check(run):
    odd = gradcheck.Row("heads", (3,), np.float32(0.5), 0.0, 0.0, 0.0)
    with patch.object(gradcheck, "check_model", lambda std: [odd]):
        code, out, _ = run("check --json")
    assert code == 0 and json.loads(out)["weights_std"]["0.3"][0]["max_abs"] == "0.5"


@pytest.mark.parametrize("wrong", [False, True])
def test_check_of_a_device_compares_the_engine_s_gradients(run, wrong):
    """One tensor beyond what is allowed is a failure."""
    second = replace(ROW, norm_rel=0.25 if wrong else 0.125)
    rows = [(ROW, 3e-7, 2e-7), (second, 5e-7, 0.125)]
    with patch.object(gradcheck, "check_engine", return_value=rows):
        code, out, _ = run("check --device checked --precision float32")
        assert code == int(wrong) and out.endswith("\nFAILED\n" if wrong else "\npassed\n")
        code, out, _ = run("check --device checked --precision float32 --json")
        assert code == int(wrong) and json.loads(out)["passed"] is not wrong


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


def test_a_short_seed_of_papers_is_told_and_a_secret_one_comes_from_a_pipe(run):
    with patch.object(papers, "hand_out") as hand_out:
        assert "; the seed is short" in run("assign 05 --seed eleven-word --student ada")[1]
        assert "short" not in run("assign 05 --seed twelve-words --student ada")[1]
        assert run("assign 05 --seed - --student ada", b" from a pipe \n")[0] == 0
        assert hand_out.call_args.args[1] == "from a pipe", "and not in the list of processes"


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
        (OSError(28, "No space left"), 2, "nanoeuler: No space left\n"),  # of what, nobody knows
        (OSError("of an odd kind"), 2, "nanoeuler: of an odd kind\n"),
        (
            RuntimeError("can't start new thread"),
            2,
            "nanoeuler: the system starts no further thread or process for "
            "this user or container: expected a higher limit (ulimit -u, --pids-limit), or fewer --workers\n",
        ),
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


class Full(Stream):
    """A stream onto a disk that is full: it takes text and cannot let go of it."""

    def flush(self):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("line, must", [("info", True), ("train --data a --run r", False), ("sft --run r", False)])
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
            patch.object(sources, "examples", return_value=([], [], "plain")),
            patch.dict(cli.COMMANDS, {"info": lambda args: None}),
        ):  # fmt: skip
            code = cli.main(line.split())
        assert opened and set(opened) == {sink.fileno()}
    assert code == (2 if must else 0)
    assert made.stderr.text() == ("nanoeuler: standard output: No space left on device\n" if must else "")


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


def test_the_bytes_of_an_argument_are_utf_8(monkeypatch):
    """Under a locale such as POSIX Python has taken them for something else."""
    assert cli._utf8("ü") == "ü" and cli._utf8("\udcc3\udcbc") == "ü"
    monkeypatch.setattr(cli.os, "fsencode", lambda text: text.encode("ascii"))  # a letter that came from elsewhere
    assert cli._utf8("ü") == "ü"
