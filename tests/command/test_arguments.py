"""The options of the `nanoeuler` command, all of them, and what it says of words that are none.

`options.txt` is what scripts and readers rely on: names, types, defaults and the text of every help. A change that is
meant is written there by `python tests/command/test_arguments.py`, and is seen in the commit.
"""

import argparse
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from nanoeuler_lib.command import arguments, cli
from nanoeuler_lib.errors import NanoEulerError

WRITTEN = Path(__file__).with_name("options.txt")


def pages() -> str:
    """Every command's options as text that does not depend on argparse's layout, which differs between Pythons."""
    return "\n".join(line for parser in every(top()) for line in page(parser))


def top():
    return arguments.parser({name: name for name in cli.COMMANDS})


def every(parser):
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from every(sub)


def page(parser):
    yield f"{parser.prog}: {parser.description or 'one of its commands:'}"
    if (function := parser.get_default("function")) is not None:
        yield f"  calls {function} with its own parser: {parser.get_default('parser') is parser}"
    for group in parser._action_groups:
        if group._group_actions:
            yield f"  {group.title}"
        for action in group._group_actions:
            yield "    " + line(action)
    yield ""


def line(action):
    if isinstance(action, argparse._SubParsersAction):
        known = ", ".join(f"{choice.dest} ({choice.help})" for choice in action._choices_actions)
        return f"{action.metavar}, required: {action.required}: {known}"
    name = " ".join([*(action.option_strings or [action.dest]), *([action.metavar] if action.metavar else [])])
    facts = [getattr(action.type, "__name__", ""), "required" if action.required and action.option_strings else ""]
    facts += [f"takes {action.nargs}"] if action.nargs is not None else []
    facts += [f"{action.const} without a value"] if action.nargs == "?" and action.option_strings else []
    facts += [f"one of {', '.join(action.choices)}"] if action.choices else []
    facts += [f"else {action.default!r}"] if action.default != argparse.SUPPRESS else []
    return f"{name} [{', '.join(fact for fact in facts if fact)}] {action.help}"


def test_a_switch_of_the_shape_is_an_option_with_the_default_of_its_config(monkeypatch):
    monkeypatch.setattr(arguments, "SHAPE", {"gated": "gates"})
    monkeypatch.setattr(arguments.config, "preset", lambda name: SimpleNamespace(gated=name == "big"))
    given = [top().parse_args(["train", *words]).gated for words in ([], ["--gated"], ["--no-gated"])]
    assert given == [None, True, False]
    assert "gates (small False, big True, base False, large False)" in pages()


def test_every_option_is_the_one_that_is_written_down():
    assert pages().splitlines() == WRITTEN.read_text("utf-8").splitlines()


def test_the_first_page_shows_the_examples_line_by_line():
    text = {p.prog: p.format_help() for p in every(top())}
    assert arguments.EXAMPLES in text["nanoeuler"]
    commands = {name.partition(" ")[0] for name in cli.COMMANDS}
    assert sorted(" ".join(arguments.JOBS.values()).split()) == sorted(commands)  # each is listed under one job
    assert "steps may be given in tokens, as in 300Mtok" in text["nanoeuler train"]
    for line in arguments.EXAMPLES.splitlines():
        if line.startswith("  nanoeuler "):
            assert cli.parser().parse_args(shlex.split(line.split("   ")[0])[1:]).function


# What is wrong with a command line, as one line. The words and the message belong together, whole.
WRONG = {
    "": "COMMAND must be given: one of tokenizer, corpus, shards, train, replay, sft, dpo, grpo, report, compare, "
    "generate, score, answers, chat, check, lab, test, progress, diagnose, break, assign, info, export, release, "
    "import",
    "--verison": "'--verison' is not an option, did you mean --version?",
    "--colour train": "train: '--colour' is not an option: see nanoeuler train --help",
    "tokenizer": "tokenizer: COMMAND must be given: one of train, encode, decode",
    "tokenizer tarin": "tokenizer: COMMAND must be one of train, encode, decode, got 'tarin', did you mean train?",
    "tokenizer train": "tokenizer train: --data, --out must be given",
    "tokenizer train --out a --input b": "tokenizer train: '--input' is not an option, did you mean --data?",
    "tokenizer train --dat b": "tokenizer train: --out must be given",  # cut short is good enough
    "report a b c": "report: takes one run, got 'b' as well",
    "train a": "train: takes only options, got 'a' as well",
    "report a --run=b": "report: '--run' is not an option: see nanoeuler report --help",
    "corpus berlin": "corpus: CORPUS must be one of konigsberg, books, web, alpaca, dolly, shakespeare, "
    "classics, featured, got 'berlin'",
    "train --steps 1.5": "train: --steps must be an integer, or tokens as in 300Mtok, got '1.5'",
    "train --lr fast": "train: --lr must be a number, got 'fast'",
    "train --learning-rate 1": "train: '--learning-rate' is not an option, did you mean --lr?",
    "train --ste=3": None,
    "assign 05 --seed s --student a --grade b": "assign: --grade must not be combined with --student",
    "assign --seed s --student a": "assign: chapter must be given",
    "generate x -- --tokens 3": "generate: --tokens must come before --, because no options follow it",
    r"check --ops 'g\npu'": r"check: --ops must be one of cpu, plain, got 'g\npu'",
    "generate -x": "generate: '-x' is not an option: see nanoeuler generate --help",
}


def message(words):
    try:
        args, unknown = cli.parser().parse_known_args(words)
        if unknown:
            args.parser.refuse(unknown)
    except NanoEulerError as error:
        return str(error)


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_command_line_is_told_in_one_line(words):
    assert message(shlex.split(words.replace(r"\n", "\n"))) == WRONG[words]


def test_old_names_of_options_work_and_are_not_shown():
    for words in ("--cards 2 --rate 0.5 --decay 0.25", "--gpus 2 --lr 0.5 --weight-decay 0.25"):
        args = cli.parser().parse_args(["train", *words.split()])
        assert (args.cards, args.rate, args.decay) == (2, 0.5, 0.25)
    assert message("replay a --cards 2".split()) == "replay: --steps must be given"
    assert not {"--cards", "--rate", "--decay"} & set(pages().split())


def test_the_words_of_the_process_are_looked_at_when_none_are_given(monkeypatch):
    monkeypatch.setattr("sys.argv", ["nanoeuler", "--verison"])
    assert message(None) == WRONG["--verison"]


def test_what_others_call_an_option_is_told_by_a_name_of_ours():
    """Each entry leads to an option of a command that has none of the other name."""
    options = [{o for a in p._actions for o in a.option_strings} for p in every(cli.parser())]
    for other, ours in arguments.ELSEWHERE.items():
        having = [known for known in options if ours in known]
        assert having and not any(other in known for known in having if ours != "--run"), other


def test_steps_in_tokens():
    words = {"7": 7, "300tok": 300, "0.3Gtok": 300_000_000, "1.5ktok": 1500, "10Mtok": 10**7}
    for word, number in words.items():
        steps = arguments.steps_or_tokens(word)
        assert steps == number and (type(steps) is int) == word.isdigit()
    for word in ("7.5", "300M", "tok", "1e3tok", "-3tok", ""):
        with pytest.raises(ValueError):
            arguments.steps_or_tokens(word)


if __name__ == "__main__":
    WRITTEN.write_text(pages(), "utf-8")
