"""What each subcommand of `nanoeuler` hands on, what it refuses, and the frame around all of them.

Elsewhere the commands do their work; here a listener stands between them and the library, so that every option, also
one that changes nothing visible, is seen to arrive.
"""

import argparse
import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import DEFAULT, MagicMock, patch

import numpy as np
import pytest
from oracles import contents, run_text, seal

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

# Every option arrives.

SETTINGS = {
    "steps": 7, "batch": 3, "accumulate": 2, "optimizer": "muon", "rate": 0.5, "warmup": 4, "decay": 0.25, "clip": 2.0,
    "later_heads": 0.75, "seed": 9, "valid_fraction": 0.2, "valid_every": 5, "sample_every": 6, "save_every": 8,
}  # fmt: skip
SHAPES = {"dim": 32, "heads": 8, "kv_heads": 1, "layers": 3, "context": 20, "vocab_size": 300, "predict": 2}
VALUES = SETTINGS | SHAPES | {"preset": "big", "ops": "plain", "device": "gpu", "precision": "tf32", "cards": 1}
VALUES |= {"config": "settings.toml"}
LINES = {  # tokenizer, report, diagnose, break, assign and info are run whole: test_use, test_breaks and test_assign
    "corpus konigsberg": "--out new", **{f"corpus {name}": "--out new" for name in arguments.CORPORA},
    "shards": "a.txt --tokenizer bpe.json --out new", "train": "--data a.txt --run r", "train --resume": "r",
    "sft": "--run r", "sft --resume": "r", "generate": "a", "score": "a.txt", "chat": "",
    "check": "",
}  # fmt: skip
ROW = gradcheck.Row("heads", (3, 4), 1e-9, 1e-8, 0.5, 2e-7)


def head(info):
    return {"info": info, "train": TrainConfig().to_dict(), "step": 5, "model": {}}


def unrecorded(child):
    """Leave out the text of settings.toml, which has every option, also one that is not handed on."""
    return lambda *given, settings, **named: child(*given, **named)


@pytest.fixture
def heard(monkeypatch):
    """One listener in place of all that takes time."""
    heard = MagicMock()
    monkeypatch.setattr(generate, "unread", lambda *_: 0)
    report = {"parts": {"train.txt": {"documents": 1, "bytes": 1}}, "dropped": {}, "skipped": [], "notes": []}
    heard.make.return_value = report | {"licence": ""}
    heard.write.return_value = SimpleNamespace(tokens=1, documents=1, bytes=0, shards=[])
    heard.tokenizer.return_value.vocab_size = 257
    heard.corpus.return_value, heard.floor.return_value = "text", 1.0
    heard.examples.return_value = ["some"], ["others"], "alpaca"
    loaded = {"tokenizer": "tokens", "info": {}, "path": None}
    heard.load.side_effect = lambda _: SimpleNamespace(model=SimpleNamespace(config="its shape"), **loaded)
    heard.stream.side_effect = lambda *_, **__: iter("b")
    heard.score.return_value = score.Scored(np.array([1]), np.array([2.0]), 1, 1)
    heard.choose.side_effect = lambda name, *_: device.CPU if name == "cpu" else DEFAULT
    heard.model.return_value, heard.engine.return_value = [ROW], [(ROW, 0.0, 1.0)]
    with ExitStack() as stack:
        for owner, name, child in (
            (corpus, "make", lambda *given, follow: heard.make(*given)), (konigsberg, "corpus", heard.corpus),
            (konigsberg, "floor", heard.floor), (shards, "write", heard.write), (Tokenizer, "load", heard.tokenizer),
            (data, "read_text", heard.read), (train, "train", unrecorded(heard.train)),
            (train, "pretrain", unrecorded(heard.pretrain)), (sft, "fine_tune", unrecorded(heard.tune)),
            (loop, "resume", heard.resume), (sources, "examples", heard.examples),
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
def test_every_option_changes_what_the_library_is_asked_or_is_refused(command, nanoeuler, heard):
    """An option that is parsed and not handed on is seen here, whatever it is called."""
    info = {"examples": ["a.txt", 1, 2]} if "sft" in command else {"source": "a.txt"}
    heard.head.return_value = head(info)
    Path("a.txt").touch()
    Path("settings.toml").write_text("seed = 9")

    def done(*more):
        heard.reset_mock()
        found = nanoeuler(f"{command} {LINES[command]}", *more), heard.mock_calls[:]
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
            said = f"nanoeuler: {option} must not be given with --resume, which takes it from the run: only --steps, "
            said = "nanoeuler: --resume and --from must not be combined" if option == "--from" else said
            assert changed[0][:2] == (2, "") and changed[0][2].startswith(said)
        elif option in ("--last-turn", "--from"):  # for examples of one's own; a run to begin with
            continue
        else:
            assert changed[0][0] == 0, (option, changed)
            assert changed != plain, option


def test_a_run_that_a_command_did_not_begin_or_whose_file_has_no_name_is_refused(nanoeuler, heard):
    for command, info in (("train", {"examples": ["konigsberg", 1, 2]}), ("sft", {})):
        heard.head.return_value = head(info)
        said = f"nanoeuler: r: must be a run of nanoeuler {command}, got a different kind of run\n"
        assert nanoeuler(f"{command} --resume r")[2] == said
    for name in (None, "a\0b"):
        heard.head.return_value = head({"source": name, "files": {"text": name, "valid": None}})
        assert ": no such file, but the run began with it (text)" in nanoeuler("train --resume r")[2]


def test_a_model_of_the_package_is_taken_by_its_name(nanoeuler, heard):
    assert nanoeuler("generate a --model konigsberg-chat")[0] == 0
    assert heard.load.call_args.args[0] == checkpoint.PRETRAINED / "konigsberg-chat"
    known = ", ".join(sorted(folder.name for folder in checkpoint.PRETRAINED.iterdir()))
    for name in ("english-smal", "", "../konigsberg-chat"):
        said = f"nanoeuler: model must be one in the package ({known}), got '{name}'\n"
        assert nanoeuler(f"generate a --model={name}") == (2, "", said)
    said = "nanoeuler: --model must not be combined with --run\n"
    assert nanoeuler("score a.txt --model konigsberg-small --run r") == (2, "", said)


@pytest.mark.parametrize("options, given", [
    ("", None), ("--device checked", ("checked", None)), ("--precision tf32", ("gpu", "tf32")),
    ("--device gpu:1 --precision float32", ("gpu:1", "float32")),
])  # fmt: skip
@pytest.mark.parametrize("command", ["generate a", "chat"])
def test_a_model_is_put_on_the_device_asked_for(nanoeuler, heard, command, options, given):
    """Without one it stays on the CPU; a precision alone asks for a GPU."""
    assert nanoeuler(f"{command} {options}")[0] == 0
    used = (heard.chat if command == "chat" else heard.stream).call_args.args[0]
    if given is None:
        heard.choose.assert_not_called()
        assert used.config == "its shape"
    else:
        heard.choose.assert_called_once_with(*given, "its shape")
        assert used is heard.choose.return_value.place.return_value


def test_a_short_seed_of_papers_is_told_and_a_secret_one_comes_from_a_pipe(nanoeuler):
    with patch.object(papers, "hand_out") as hand_out:
        assert "; the seed is short" in nanoeuler("assign 05 --seed eleven-word --student ada")[1]
        assert "short" not in nanoeuler("assign 05 --seed twelve-words --student ada")[1]
        assert nanoeuler("assign 05 --seed - --student ada", stdin=" from a pipe \n")[0] == 0
        assert hand_out.call_args.args[1] == "from a pipe", "and not in the list of processes"


# Bad input: one line on standard error, exit code 2, nothing changed. What is given, and what the line must say.

REFUSED = {
    "TRAIN nothing.txt": "nothing.txt: no such file",
    "TRAIN run/checkpoints": "run/checkpoints: a folder must hold texts (.txt, .md, .jsonl, .parquet, also",
    "TRAIN /dev/zero": "/dev/zero: must be a UTF-8 text file, got a device",
    "TRAIN short.txt": "training part must have at least 14 tokens",
    "TRAIN text.txt --valid one.txt": "one.txt: validation part must have at least 2 tokens, got 1",
    f"TRAIN text.txt --batch {2**50}": "--batch times --accumulate must be at most",
    "TRAIN text.txt --context 100000": "at least 100002 tokens (--context 100000 plus --predict 2), got",
    f"TRAIN text.txt --dim {2**20} --heads 4096 --kv-heads 4096": "which need at least",
    "TRAIN text.txt --preset bigg": "preset must be one of small, big, base, large, got 'bigg', did you mean big?",
    "TRAIN text.txt --tokenizer none.json": "none.json",
    "TRAIN text.txt --tokenizer bpe.json": "tokenizer must have at most vocab_size",
    "TRAIN text.txt --from run": "must not be given with --from, which takes shape and tokenizer from run",
    "TRAIN text.txt --workers 0": "--workers must be 1 to 4096, got 0",
    "train --from run --run new": "--data is required: give --from run --data FILE --run FOLDER",
    "train --data text.txt": "--run is required: give --data FILE --run FOLDER, or --resume FOLDER",
    "train --run new": "--data is required: give --data FILE --run FOLDER, or --resume FOLDER",
    "sft": "--run is required: give --run FOLDER, or --resume FOLDER",
    "train --data text.txt --run run": "run: must be a new or an empty folder",
    "sft --run run --examples 9": "run: must be a new or an empty folder",
    "train --resume run --config s.toml": "--config must not be given with --resume",
    **{f"train --data text.txt --run new --config {name}": f"{name}: {told}" for name, told in {
        "none.toml": "cannot be read (No such file or directory), expected a settings file",
        "list.json": "not readable as TOML (", "rat.toml": "'lrr' is not a setting, did you mean lr?",
        "resume.toml": "'resume' is not a setting", "lr.toml": "lr must be a number, got 'fast'",
        "steps.toml": "steps must be an integer, or tokens as in 300Mtok, got True",
        "data.toml": "data must be a text or a list of them, got ['a', 3]",
        "quiet.toml": "quiet must be true or false, got 'no'",
    }.items()},
    "compare run": "compare takes at least two runs, got 1",
    "report run --csv new --out new": "--csv must not be combined with --out",
    "grpo --base run --run new --reward mine.py:f": "--reward must be MODULE:FUNCTION, such as mine:reward",
    "grpo --base run --run new --reward mine:f": "the module mine cannot be imported (ModuleNotFoundError",
    "grpo --base run --run new --reward os:name": "name must be a function of the module os, got 'posix'",
    "train --resume run --from run": "--resume and --from must not be combined",
    "train --resume run/checkpoints/best": "best: must be a run folder, got a checkpoint: use run",
    "train --resume none --data text.txt": "none: no such folder",
    "train --resume folder --data text.txt": "folder: has no checkpoint",
    "train --resume run --data other.txt": "text must be the one that the run began with",
    "train --resume run --data bpe.json": "fingerprint",
    "train --resume run --data text.txt --warmup 0": "--warmup must not be given with --resume",
    "train --resume moved": "text.txt: no such file, but the run began with it (text): if it moved, give its new path "
    "with --data FILE",
    "sft --resume run": "must be a run of nanoeuler sft",
    f"sft --run new --data-seed {2**53}": f"--data-seed must be 0 to 2^53 - 1, got {2**53}",
    "sft --run new --examples -1": "--examples must be 0 to 2^53 - 1, got -1",
    "sft --run new --last-turn": "--last-turn needs --data FILE",
    "sft --data key.jsonl --run new": "key.jsonl: line 1 must have texts under instruction",
    "sft --data text.txt --run new": "text.txt: line 1 must be JSON",
    "generate a --run run/checkpoints": "has several checkpoints, expected the run run, or one of them: "
    "run/checkpoints/step-000004",
    "generate a --temperature -1": "temperature must be 0 to 100, got -1.0",
    "generate a --run run --propose 2": "propose must be 0 to 1",
    "generate a --propose 1 --repetition-penalty 2": "propose must be 0 with a repetition_penalty, got 1",
    "generate a --repetition-penalty nan": "repetition_penalty must be more than 0 and at most 100, got nan",
    "generate a --seed -1": "--seed must be 0 or more, got -1",
    "generate a --tokens -1": "--tokens must be 0 or more, got -1",
    "generate a --samples 0": "--samples must be 1 to 1000000, got 0",
    "generate a --stop ''": "stop must be a non-empty text",
    "generate a --prompt-file text.txt": "--prompt-file must not be combined with a prompt",
    "generate --prompt-file none": "none: no such file, expected a UTF-8 text file",
    "generate 'a\udcff'": "character 1 is not UTF-8",
    "chat --run run": "fine-tune the model first (nanoeuler sft)",
    "info run --run b": "info takes only one run, got run and --run b",
    "score text.txt --out list.json": "list.json: already exists: choose a new name",
    "tokenizer train --data text.txt --vocab 9 --out new.json": "special tokens) to 1114112, got 9",
    "tokenizer encode 'a\udcff'": "character 1 is not UTF-8",
    "tokenizer decode 260 --tokenizer bpe.json": "token id must be 0 to 259, got 260",
    "tokenizer decode hi": "token id must be an integer, got 'hi'",
    "corpus konigsberg --bytes 0": "--bytes must be at least 1, got 0",
    "corpus konigsberg --seed -1": "--seed must be 0 or more, got -1",
    "diagnose --tool scheduled": "did you mean schedule?",
    "break --reveal nowhere": "nowhere: must be made by --seed with this version",
    **{f"{command} damaged": "damaged/checkpoints/step-000004/model.safetensors" for command in (
        "generate a --run", "chat --run", "info --run", "sft --run new --base", "train --data text.txt --resume")},
}  # fmt: skip


@pytest.fixture(scope="module")
def spoilt(made, tmp_path_factory):
    """A folder of all that the table names, and its contents. No command of the table changes them."""
    folder = Path(shutil.copytree(made, tmp_path_factory.mktemp("spoilt"), dirs_exist_ok=True))
    for name, text in {
        "short.txt": "hello", "one.txt": "Q", "other.txt": run_text().replace("cat", "dog"), "list.json": "[1, 2]",
        "key.jsonl": json.dumps({"x" * 100_000: 1}), "s.toml": "lr = 1", "rat.toml": "lrr = 1",
        "resume.toml": "resume = 'run'", "lr.toml": "lr = 'fast'", "steps.toml": "steps = true",
        "data.toml": "data = ['a', 3]", "quiet.toml": "quiet = 'no'",
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    (folder / "folder").mkdir()
    for checkpoint_ in Path(shutil.copytree(folder / "run", folder / "moved"), "checkpoints").iterdir():
        info = json.loads((checkpoint_ / "checkpoint.json").read_text())["info"]
        seal(checkpoint_, info=info | {"files": {"text": "/none/text.txt"}})
    shutil.copytree(folder / "run", folder / "damaged")
    file = folder / "damaged/checkpoints/step-000004/model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    return folder, contents(folder)


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input(line, spoilt, nanoeuler, monkeypatch):
    folder, before = spoilt
    monkeypatch.chdir(folder)
    code, out, err = nanoeuler(line, stdin="the\n")
    for left in (made := list(folder.glob("new*"))):  # of a command that should have been refused
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    assert (code, out, made) == (2, "", [])
    assert err.startswith("nanoeuler: ") and err.endswith("\n") and err.count("\n") == 1, err
    assert REFUSED[line] in err and len(err) < 700 and err[:-1].isprintable(), err
    assert contents(folder) == before


@pytest.mark.parametrize("command", [
    "tokenizer train --data a.txt --out", "corpus konigsberg --out", "shards a.txt --tokenizer t.json --out",
    "train --data a.txt --run", "sft --run", "dpo --run", "grpo --base r --run", "report r --out", "score a.txt --out",
    "report r --csv", "compare r s --out",
    "answers --out", "export r --to hf --out", "release r --out", "import hf --run",
])  # fmt: skip
def test_a_place_that_takes_no_result_is_told_before_the_work(command, nanoeuler, monkeypatch):
    """It lies in a file, not in a folder. None of the work that is forbidden here is begun."""
    forbidden = """text.data.read_blocks formats.load formats._read training.checkpoint.load
        training.report.read_log command.sources.examples command.sources.pairs command.sources.questions"""
    Path("a.txt").write_text(run_text())
    Tokenizer([]).save("t.json")
    others = "konigsberg.corpus", "nanoeuler_book.interpretability.answers.make"
    for name in (*(f"nanoeuler_lib.{name}" for name in forbidden.split()), *others):
        monkeypatch.setattr(name, None)
    code, out, err = nanoeuler(command, "a.txt/x")
    assert (code, out, err.count("\n")) == (2, "", 1) and "Not a directory" in err, err


def test_messages_show_no_control_characters(here, nanoeuler):
    """A checkpoint may come from anywhere; a terminal obeys what it is sent."""
    folder = checkpoint.find("run")
    info = json.loads((folder / "checkpoint.json").read_text())["info"]
    evil = "\x1b]0;owned\x07\x1b[2J\n\r\u202e" + "x" * 5000
    seal(folder, info=info | {"source": evil, "title": evil, "files": {"text": evil}})
    for command, expected in (("info --run run", 0), ("train --resume run", 2), (f"generate --run 'n{evil}'", 2)):
        code, out, err = nanoeuler(command)
        shown = err if expected else out
        assert all(c.isprintable() or c == "\n" for c in out + err) and "owned" in shown
        assert code == expected and len(max(shown.splitlines(), key=len)) < 700


# The frame around all of them.

NO_THREAD = (
    "nanoeuler: the system cannot start another thread or process for this user or container: raise the limit "
    "(ulimit -u, --pids-limit), or use fewer --workers\n"
)


@pytest.mark.parametrize("error, code, said", [
    (NanoEulerError("bad\nthing"), 2, "nanoeuler: bad thing\n"),
    (MemoryError(), 2, "nanoeuler: not enough memory\n"),
    (MemoryError("of this size"), 2, "nanoeuler: of this size\n"),
    (KeyboardInterrupt(), 130, ""),
    (BrokenPipeError(), 0, ""),
    (OSError(28, "No space left", "a.txt"), 2, "nanoeuler: a.txt: No space left\n"),
    (OSError(28, "No space left"), 2, "nanoeuler: No space left\n"),  # of what, nobody knows
    (OSError("of an odd kind"), 2, "nanoeuler: of an odd kind\n"),
    (RuntimeError("can't start new thread"), 2, NO_THREAD),
    (SystemExit(3), 3, ""),
    (SystemExit(), 0, ""),
])  # fmt: skip
def test_how_the_command_ends(nanoeuler, error, code, said):
    """What was printed before an error still comes out, and before what is said of it."""

    def fail(*_):
        print("so far")
        raise error

    with patch.object(report, "report", fail):
        assert nanoeuler("report r") == (code, "so far\n", said)


@pytest.mark.parametrize("line, code", [("generate a", 2), ("train --data a --run r", 0), ("sft --run r", 0)])
def test_output_matters_unless_a_run_was_trained(nanoeuler, heard, line, code):
    """The result of a training is the folder of its run."""
    with patch.object(cli, "_flush", return_value="no space left"):
        assert nanoeuler(line)[0] == code
