"""The options of the `nanoeuler` command: what each means, in which unit, and what a mistyped one may have meant."""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from nanoeuler_lib import __version__
from nanoeuler_lib.config import (
    DPO_DATA_SEED,
    DPO_DEFAULTS,
    GRPO_DATA_SEED,
    GRPO_DEFAULTS,
    KL_ESTIMATORS,
    PRESETS,
    SFT_DATA_SEED,
    SFT_DEFAULTS,
    RewardConfig,
    TrainConfig,
    preset,
)
from nanoeuler_lib.errors import NanoEulerError, did_you_mean, short

EXAMPLES = """examples:
  nanoeuler generate "Käthe had"                    continue a prompt with the model that comes with the package
  nanoeuler corpus konigsberg --bytes 4000000 --seed 1 --out world.txt
  nanoeuler corpus books --out books                real text: 95 classics, fetched and cleaned
  nanoeuler train --data world.txt --run runs/world
  nanoeuler train --resume runs/world
  nanoeuler report runs/world                       curves and a page about the run: runs/world/report
  nanoeuler generate "Käthe had" --run runs/world
  nanoeuler score FILE.txt --run runs/world --out score.html    bits per byte of a text of yours, dear tokens marked
  nanoeuler answers --out answers                   what a model of Königsberg uses of what it knows
  nanoeuler train --resume runs/world --steps 4000   go on for longer
  nanoeuler train --from runs/world --data other.txt --run runs/other   begin with its model, on another text
  nanoeuler sft --base runs/world --run runs/answers   teach it to answer questions
  nanoeuler dpo --base runs/answers --data pairs.jsonl --run runs/prefers   and which of two replies is preferred
  nanoeuler sft --data konigsberg-routes --steps 50 --run runs/routes
  nanoeuler grpo --base runs/routes --run runs/rewarded    let it draw answers, and reward the right ones
  nanoeuler chat --run runs/answers                 and ask (default: the chat model in the package)
  nanoeuler export runs/world --to hf --out world-hf    for transformers; gguf: for llama.cpp
  nanoeuler release runs/world --out world-1        what one publishes of it, with a card to fill in
  nanoeuler import TinyLlama-1.1B --run runs/tiny   a Llama of other people's, as a run
  nanoeuler check                                   every gradient against difference quotients

Bad input ends with one line on standard error and exit code 2."""

SHAPE = {  # the model's shape; `info` and `train` take their defaults from a preset
    "dim": "width of the residual stream",
    "heads": "query heads",
    "kv_heads": "key/value heads, each for an equal share of the query heads",
    "layers": "blocks",
    "context": "longest sequence, in tokens",
    "vocab_size": "tokens of the vocabulary",
    "predict": "prediction heads: the last of 4 predicts the fourth token ahead",
}
TRAINING = {
    "steps": "optimisation steps in all; with --resume, to go on for longer or shorter than was planned",
    "batch": "sequences in a batch",
    "accumulate": "batches whose mean gradient makes a step",
    "optimizer": "adamw; or muon, which moves the matrices inside blocks, and leaves the others to AdamW",
    "rate": "learning rate at its peak, behind the warm-up; it falls along a cosine to a tenth of that; with --resume, "
    "another one from there on",
    "warmup": "steps in which the rate rises from 0 to its peak",
    "decay": "weight decay of matrices, a share of the rate",
    "clip": "largest norm of a step's gradient, longer ones are shortened to it; 0: any",
    "later_heads": "weight of the loss of each prediction head but the first, which has 1",
    "seed": "seed of weights and batches; the same seed gives the same run",
    "valid_fraction": "share of the data, the end of each file, that is held out to validate on, 0 to 0.9; train: 0 is "
    "none",
    "valid_every": "steps between validations",
    "sample_every": "steps between samples of text in the log; 0: none",
    "save_every": "steps between checkpoints, the most that a power cut can cost",
    "keep_every": "steps between checkpoints that stay, for nanoeuler replay; 0: the last two stay",
}
REWARDS = {  # how answers are rewarded: the fields of RewardConfig
    "reward": "route: 1 for an open way to the goal; hackable, brief: verifiers with a hole, on purpose",
    "group": "answers to each question, which are compared with one another",
    "answer_tokens": "longest answer; one that has not ended by then has reward 0",
    "updates": "steps that each set of answers serves; save-every and steps are multiples of it",
    "clip_ratio": "a token's ratio, new to old probability, further from 1 than this is held there; 0: none is",
    "kl": "how dear it is to move away from the model of the beginning, beta; 0: nothing",
    "kl_by": f"how that is estimated: {', '.join(KL_ESTIMATORS)}",
}
OTHERS_SAY = {  # what options are called elsewhere
    "--lr": "--rate", "--learning-rate": "--rate", "--batch-size": "--batch", "--iters": "--steps",
    "--iterations": "--steps", "--max-steps": "--steps", "--epochs": "--steps", "--weight-decay": "--decay",
    "--wd": "--decay", "--grad-clip": "--clip", "--block-size": "--context", "--seq-len": "--context",
    "--n-layers": "--layers", "--n-heads": "--heads", "--width": "--dim", "--hidden": "--dim", "--input": "--data",
    "--text": "--data", "--file": "--data", "--output": "--out", "--checkpoint": "--run", "--model": "--run",
    "--max-tokens": "--tokens", "--length": "--tokens", "--temp": "--temperature", "--vocab": "--vocab-size",
    "--threads": "--workers", "--val": "--valid", "--grad-accum": "--accumulate", "--continue": "--resume",
    "--tokens": "--steps",
}  # fmt: skip

CORPORA = {  # those that are fetched
    "books": "classics of Project Gutenberg, fetched, freed of its licence texts, in one file (69 MB)",
    "web": "educational web pages, FineWeb-Edu, as many as you ask for (default 1 GB from 2.1 GB of parquet)",
    "alpaca": "52,002 instructions with answers by a model, for nanoeuler sft (CC BY-NC: not for commerce)",
    "dolly": "15,011 instructions with answers by people, for nanoeuler sft (CC BY-SA)",
    "shakespeare": "tiny Shakespeare, one file of 1.1 MB",
    "classics": "the books of chapter 32's run, from files that you have (126 MB)",
    "featured": "the articles of chapter 32's run, from files that you have (105 MB)",
}
VALID_FRACTION = {"books": 0.1, "web": 0.005}  # held out of those whose documents are held out whole
WEB_BYTES = 1_000_000_000

FORMATS = {"hf": "transformers and what reads its folders", "gguf": "llama.cpp and what reads its files"}

METAVAR = {int: "N", float: "X", str: "NAME"}
# of a run that goes on
CHANGEABLE = "steps", "rate", "valid_every", "sample_every", "save_every", "keep_every"
IN_STEPS = "steps", "warmup", "valid_every", "sample_every", "save_every"  # `train` takes them in tokens, too


class Tokens(int):
    """A number of steps that was given in tokens."""


def steps_or_tokens(word: str) -> int:
    """Read a word as a number of steps (2000) or of tokens (300Mtok). k, M and G stand for a thousand, ..."""
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)tok", word):
        return Tokens(round(float(match[1]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[match[2]]))
    try:
        return int(word)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"is {short(word)}, expected a whole number, or tokens as in 300Mtok"
        ) from None


MISSING = "the following arguments are required: "  # argparse's words


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with what was perhaps meant."""

    def parse_known_args(self, args=None, namespace=None):
        """As argparse's, which reports a missing argument even where a mistyped option is the cause: see `error`."""
        self.words = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> None:
        if message.startswith(MISSING):
            known = self._options()
            for word in self.words:  # an option may be cut short
                if word.startswith("--") and not any(o.startswith(word.partition("=")[0]) for o in known):
                    self.refuse([word])
        raise NanoEulerError(self._where() + self._reworded(message))

    def refuse(self, unknown: list[str]) -> None:
        """The error for words that no option and no position takes."""
        word = unknown[0]
        name = word.partition("=")[0]
        if not name.startswith("-"):
            names = [a.dest for a in self._actions if not a.option_strings]
            takes = f"one {' and one '.join(names)}" if names else "only options"
            raise NanoEulerError(f"{self._where()}takes {takes}, got also {short(word)}")
        known, other = self._options(), OTHERS_SAY.get(name)
        if name in known:
            raise NanoEulerError(f"{self._where()}{name} stands behind --, where no options stand: expected it before")
        hint = f", did you mean {other}?" if other in known else did_you_mean(name, known)
        raise NanoEulerError(f"{self._where()}{short(name)} is no option{hint or f': {self.prog} --help lists them'}")

    def _print_message(self, message, file=None):
        """Print help or the version; unlike argparse's own method this raises when they cannot be printed."""
        (file or sys.stderr).write(message)

    def _options(self):
        return [option for action in self._actions for option in action.option_strings]

    def _where(self):
        return f"{self.prog.partition(' ')[2]}: ".removeprefix(": ")

    def _reworded(self, message):
        """argparse's message in this project's words; a message of unknown form stays as it is."""
        if match := re.match(r"argument (.+?): invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL):
            name, word, known = match[1], match[2], [w.strip().strip("'") for w in match[3].split(",")]
            return f"{name} is {short(word)}, expected one of {', '.join(known)}{did_you_mean(word, known)}"
        if match := re.match(r"argument (.+?): invalid (int|float) value: '(.*)'", message, re.DOTALL):
            kind = {"int": "a whole number", "float": "a number"}[match[2]]
            return f"{match[1]} is {short(match[3])}, expected {kind}"
        if match := re.match(r"argument (.+?): (is .*)", message, re.DOTALL):
            return f"{match[1]} {match[2]}"
        if message.startswith(MISSING):
            missing = message.removeprefix(MISSING)
            words = [word for a in self._actions if a.metavar == missing for word in a.choices or ()]
            return f"{missing} is missing" + (f", expected one of {', '.join(words)}" if words else "")
        return message


def parser(functions: Mapping[str, Callable]) -> Parser:
    """The parser of the `nanoeuler` command; functions: what each subcommand calls, such as "tokenizer train"."""
    top = Parser(
        "nanoeuler", description="Build, train and run a small language model made by hand.",
        epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    top.add_argument("--version", action="version", version=f"nanoeuler {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def group(name, text, title="commands", metavar="COMMAND"):
        return commands.add_parser(name, help=text).add_subparsers(title=title, required=True, metavar=metavar)

    def command(name, text, add, parent=commands, as_json=True):
        new = parent.add_parser(name.split()[-1], help=text, description=text)
        new.set_defaults(function=functions[name], parser=new)
        if as_json:
            new.add_argument("--json", action="store_true", help="print one JSON object for a script to read")
        add(new)

    tokenizer = group("tokenizer", "train and use a byte-level BPE tokenizer")
    command(
        "tokenizer train",
        "learn merges from UTF-8 text, in up to 1.3 times its size of memory",
        _tokenizer_train,
        tokenizer,
    )
    command("tokenizer encode", "text to token ids", _tokenizer_encode, tokenizer)
    command("tokenizer decode", "token ids to the bytes of their text", _tokenizer_decode, tokenizer)
    corpus = group("corpus", "make or fetch text to train on", "corpora", "CORPUS")
    command("corpus konigsberg", "stories from the embedded world, any amount, from a seed", _konigsberg, corpus)
    for name, text in CORPORA.items():
        command(f"corpus {name}", text, partial(_corpus, name), corpus)
    command("shards", "tokenize texts larger than memory, to train on", _shards)
    command("train", "train a model on UTF-8 text, or on shards", _train, as_json=False)
    command("replay", "take steps of a run again, and compare them with its log", _replay)
    command("sft", "teach a base model to answer", _sft, as_json=False)
    command("dpo", "teach a model that answers which of two replies is preferred", _dpo, as_json=False)
    command("grpo", "teach a model that answers by rewards for what it draws", _grpo, as_json=False)
    command("report", "curves, throughput, samples and warnings of a run, as a page", _report)
    command("generate", "continue a prompt", _generate)
    command("score", "what a text of yours costs a model: bits per byte and per token", _score)
    command("answers", "an answer key: what a model of Königsberg uses of what it knows", _answers)
    command("chat", "ask a model that was taught to answer", _chat, as_json=False)
    command("check", "compare every gradient with difference quotients", _check)
    command("diagnose", "what is wrong with this package? the book's tools as a checklist", _diagnose)
    command("break", "plant a bug in a copy of the package, to find it", _break, as_json=False)
    command("assign", "papers that are marked: for an instructor, from a secret seed", _assign)
    command("info", "shapes, sizes and memory of a preset or a checkpoint", _info)
    command("export", "a run as other programs read it", _export)
    command("release", "what one publishes of a run: weights, card, hashes and their check", _release)
    command("import", "other people's weights as a run", _import)
    return top


TEXTS = 'UTF-8 text, also .xz or .gz; or documents as .jsonl or .parquet, their text under "text"; or a folder of these'
SEVERAL = {"type": Path, "action": "extend", "nargs": "+", "metavar": "FILE"}


def _tokenizer_train(new):
    new.add_argument("--data", required=True, **SEVERAL, help=f"{TEXTS}; several follow one another")
    new.add_argument(
        "--vocab",
        type=int,
        default=512,
        metavar="N",
        help="vocabulary size, special tokens included (default 512)",
    )
    new.add_argument("--out", required=True, type=Path, metavar="FILE", help="JSON file to write; must not exist")
    new.add_argument(
        "--end-of-text", action="store_true", help="reserve <|endoftext|> even if the text has no such line"
    )


def _tokenizer_encode(new):
    new.add_argument("text", nargs="?", help="text (default: standard input, byte for byte)")
    _tokenizer_file(new)
    new.add_argument("--special", action="store_true", help="read <|endoftext|> in the text as the special token")


def _tokenizer_decode(new):
    new.add_argument("ids", nargs="*", help="token ids (default: standard input)")
    _tokenizer_file(new)


def _tokenizer_file(new):
    text = "tokenizer file (default: the one that comes with the package)"
    new.add_argument("--tokenizer", type=Path, metavar="FILE", help=text)


def _konigsberg(new):
    new.add_argument("--bytes", type=int, default=4_000_000, metavar="N", help="about how many bytes (default 4000000)")
    new.add_argument("--seed", type=int, default=0, help="seed (default 0); validation text wants another one")
    new.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write; must not exist (default: standard output)"
    )


def _corpus(name, new):
    new.set_defaults(corpus=name, bytes=None, seed=0, valid_fraction=0.0, skip=[])
    new.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="folder to make; must not exist")
    text = "where the files fetched are kept, to go on with and to use again (default downloads)"
    new.add_argument("--downloads", type=Path, default=Path("downloads"), metavar="FOLDER", help=text)
    text = "files you have, texts also as .xz: taken from here, and fetched only where they are not (default: none)"
    new.add_argument("--from", dest="have", type=Path, metavar="FOLDER", help=text)
    if name == "web":
        text = f"about how many bytes of text (default {WEB_BYTES})"
        new.add_argument("--bytes", type=int, default=WEB_BYTES, metavar="N", help=text)
    if name == "books":
        text = "books to do without, by number, such as 1342"
        new.add_argument("--skip", nargs="+", default=[], metavar="N", help=text)
    if name in VALID_FRACTION:
        new.add_argument("--seed", type=int, default=0, help="seed of what is held out (default 0)")
        text = f"share of the documents held out, whole (default {VALID_FRACTION[name]:g})"
        new.add_argument("--valid-fraction", type=float, default=VALID_FRACTION[name], metavar="X", help=text)


def _shards(new):
    new.add_argument("texts", nargs="+", type=Path, metavar="TEXT", help=f"{TEXTS}; one after another")
    new.add_argument(
        "--tokenizer",
        required=True,
        type=Path,
        metavar="FILE",
        help="tokenizer file, of at most 65536 tokens",
    )
    new.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="folder to make; must not exist")
    new.add_argument("--workers", type=int, metavar="N", help="processes (default: one for each core)")


def _train(new):
    text = f"{TEXTS}; several follow one another; or shards (--resume: where they stand now, if they moved)"
    new.add_argument("--data", **SEVERAL, help=text)
    new.add_argument(
        "--valid",
        type=Path,
        action="append",
        metavar="FILE",
        help="validation text, or shards, each time another set (default: the end of --data; --resume: as --data)",
    )
    _run_folder(new)
    new.add_argument(
        "--from",
        dest="base",
        type=Path,
        metavar="RUN",
        help="begin a new run with the model and tokenizer of this run or checkpoint, on any text (to go on with a run "
        "on its own text: --resume)",
    )
    new.add_argument("--preset", help=f"model shape: {', '.join(PRESETS)} (default small)")
    new.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="tokenizer file (default: trained on the training part; shards have theirs)",
    )
    _how_to_run(new)
    _cards(
        new,
        "1, 2, 4 or 8, each with its part of a step's --accumulate batches: the same bits on any number",
    )
    text = "time every launch of N steps on the GPU, and say where the time goes (default 0)"
    new.add_argument("--profile", type=int, default=0, metavar="N", help=text)
    shape = new.add_argument_group("model shape (default: the preset's)")
    for name, meaning in SHAPE.items():
        values = {of: getattr(preset(of), name) for of in PRESETS}
        kind = type(values["small"])
        switch = {"action": argparse.BooleanOptionalAction}
        how = switch if kind is bool else {"type": kind, "metavar": METAVAR[kind]}
        text = ", ".join(f"{of} {value}" for of, value in values.items())
        shape.add_argument(_option(name), help=f"{meaning} ({text})", **how)
    _training(new, {}, in_tokens=IN_STEPS)


def _sft(new):
    text = "konigsberg (the default), konigsberg-reworded, konigsberg-routes, or a file: Alpaca's or Dolly's JSON, "
    text += "messages, ShareGPT's conversations, prompt and completion; .xz and .gz too"
    text += " (--resume: where it stands now, if it moved)"
    new.add_argument("--data", metavar="FILE", help=text)
    new.add_argument(
        "--examples",
        type=int,
        metavar="N",
        help="how many stories (default 10000), or of the file's examples (default all)",
    )
    new.add_argument(
        "--data-seed",
        type=int,
        metavar="N",
        help=f"seed of the stories, or of the file's order (default {SFT_DATA_SEED})",
    )
    new.add_argument(
        "--last-turn",
        action="store_true",
        default=None,
        help="learn from the last reply of each dialogue alone (default: from all)",
    )
    new.add_argument(
        "--base",
        type=Path,
        metavar="RUN",
        help="run or checkpoint to begin with (default: the model in the package)",
    )
    _run_folder(new)
    _how_to_run(new)
    _training(new, SFT_DEFAULTS, leave_out=["keep_every"])


def _dpo(new):
    text = "konigsberg (the default: true reasons and wrong ones), or a file of JSON objects with prompt, chosen and "
    text += "rejected, texts or messages; .xz and .gz too (--resume: where it stands now, if it moved)"
    new.add_argument("--data", metavar="FILE", help=text)
    text = "how many stories (default 2000), or of the file's pairs (default all)"
    new.add_argument("--pairs", type=int, metavar="N", help=text)
    text = f"seed of the stories, or of the file's order (default {DPO_DATA_SEED})"
    new.add_argument("--data-seed", type=int, metavar="N", help=text)
    text = "run or checkpoint to begin with, which is also the reference (default: the chat model in the package)"
    new.add_argument("--base", type=Path, metavar="RUN", help=text)
    text = "how dear it is to move away from the reference, above 0 (default 0.1)"
    new.add_argument("--beta", type=float, metavar="X", help=text)
    text = "share of the pairs taken to be labelled the wrong way round, below 0.5 (default 0)"
    new.add_argument("--label-noise", type=float, metavar="X", help=text)
    text = "with --label-noise: weigh both labels so that wrong ones cancel in the mean"
    new.add_argument("--robust", action="store_true", default=None, help=text)
    _run_folder(new)
    _how_to_run(new)
    meanings = TRAINING | {"batch": "pairs in a batch"}
    _training(new, DPO_DEFAULTS, meanings=meanings, leave_out=["later_heads", "keep_every"])


def _grpo(new):
    text = "run that was taught routes: nanoeuler sft --data konigsberg-routes; also what --kl keeps it near"
    new.add_argument("--base", type=Path, metavar="RUN", help=text)
    new.add_argument("--questions", type=int, metavar="N", help="how many to learn from (default 2000)")
    new.add_argument("--data-seed", type=int, metavar="N", help=f"their seed (default {GRPO_DATA_SEED})")
    defaults = RewardConfig().to_dict()
    group = new.add_argument_group("rewards")
    for name, meaning in REWARDS.items():
        kind = type(defaults[name])
        text = f"{meaning} (default {defaults[name] if kind is str else f'{defaults[name]:g}'})"
        group.add_argument(_option(name), type=kind, metavar=METAVAR[kind], help=text)
    _run_folder(new)
    _how_to_run(new)
    meanings = TRAINING | {
        "batch": "answers in a batch",
        "valid_every": "steps between looks at questions held out",
    }
    _training(new, GRPO_DEFAULTS, meanings=meanings, leave_out=["later_heads", "valid_fraction", "keep_every"])


def _cards(new, text):
    new.add_argument("--cards", type=int, metavar="N", help=f"graphics cards, {text}")


def _replay(new):
    new.add_argument("run", type=Path, help="run folder")
    text = "take the steps behind A up to B again, from the last checkpoint that was kept before them, as in 40:50"
    new.add_argument("--steps", required=True, metavar="A:B", help=text)
    text = "where the files stand now that the run learns from, if they moved"
    new.add_argument("--data", **SEVERAL, help=text)
    new.add_argument("--valid", type=Path, action="append", metavar="FILE", help="the same of validation files")
    _device(new, "where the run was")
    _cards(new, "as many as may be")


def _run_folder(new):
    new.add_argument("--run", type=Path, metavar="FOLDER", help="new folder for log and checkpoints")
    new.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="go on with this run from its latest checkpoint; steps, rate and how often something is done may change",
    )


def _how_to_run(new):
    _device(new, "cpu; --resume: where the run was")
    new.add_argument("--workers", type=int, metavar="N", help="threads (default: one for each core)")
    new.add_argument("--quiet", action="store_true", help="nothing but what came out: no plan, progress or samples")


def _device(new, default):
    text = "cpu; gpu, or gpu:1 for the second; auto: a GPU if there is one that takes the model; checked: the GPU's "
    text += f"launches on the CPU, each access checked, slow (default {default})"
    new.add_argument("--device", metavar="NAME", help=text)
    text = "of products on a GPU: float32, tf32, bfloat16 (default bfloat16 where the card has it)"
    new.add_argument("--precision", metavar="NAME", help=text)


def _training(new, defaults, in_tokens=(), meanings=TRAINING, leave_out=()):
    about = "numbers of steps may be given in tokens, as in 300Mtok" if in_tokens else None
    group, defaults = new.add_argument_group("training", about), TrainConfig().to_dict() | defaults
    new.set_defaults(**dict.fromkeys(leave_out))
    for name, meaning in meanings.items():
        if name in leave_out:
            continue
        kind = type(defaults[name])
        metavar = METAVAR[kind]
        kind = steps_or_tokens if name in in_tokens else kind
        default = defaults[name] if kind is str else f"{defaults[name]:g}"
        group.add_argument(_option(name), type=kind, metavar=metavar, help=f"{meaning} (default {default})")


def _report(new):
    new.add_argument("run", type=Path, help="run folder, finished or not")
    new.add_argument("--out", type=Path, metavar="FOLDER", help="folder to write to (default: RUN/report)")


def _generate(new):
    new.add_argument("prompt", nargs="?", default="", help="text to continue (default: start a new one)")
    new.add_argument(
        "--propose",
        type=int,
        default=0,
        metavar="N",
        help="tokens that later heads propose a pass (default 0)",
    )
    text = "file with the text to continue, without the line end that closes it; -: standard input"
    new.add_argument("--prompt-file", metavar="FILE", help=text)
    text = "continuations, of this seed and those after it, divided by the line <|endoftext|> (default 1)"
    new.add_argument("--samples", type=int, default=1, metavar="N", help=text)
    text = "text that ends the continuation, and is left out; each time another one"
    new.add_argument("--stop", action="append", default=[], metavar="TEXT", help=text)
    text = "more than 1: what the prompt holds or was said is less likely to come again (default 1; not with --propose)"
    new.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X", help=text)
    _sampling(new)


def _score(new):
    new.add_argument("text", type=Path, metavar="FILE", help=TEXTS)
    _model(new)
    text = "page to write, HTML with the dear tokens marked; must not exist (default: none)"
    new.add_argument("--out", type=Path, metavar="FILE", help=text)
    _device(new, "cpu")


def _answers(new):
    text = "folder to make, for answers.json and answers.npz; must not exist"
    new.add_argument("--out", required=True, type=Path, metavar="FOLDER", help=text)
    _model(new)
    text = "pairs of twins to learn from, and as many to score (default 50)"
    new.add_argument("--pairs", type=int, default=50, metavar="N", help=text)
    text = "steps told before the twins are asked: 1, the holder set out with the thing; 2, was given it (default 1)"
    new.add_argument("--told", type=int, default=1, metavar="N", help=text)
    new.add_argument("--seed", type=int, default=18, help="seed of the stories (default 18)")


def _model(new):
    new.add_argument("--run", type=Path, help="run or checkpoint folder (default: the one in the package)")
    text = "a model that comes with the package, by its name, instead of --run; an unknown one says which there are"
    new.add_argument("--model", metavar="NAME", help=text)


def _sampling(new, temperature=0.8):
    _model(new)
    new.add_argument("--tokens", type=int, default=200, metavar="N", help="at most this many tokens (default 200)")
    default = f"0 is greedy (default {temperature:g})"
    new.add_argument("--temperature", type=float, default=temperature, metavar="X", help=default)
    new.add_argument("--top-k", type=int, default=0, metavar="K", help="only the k most likely tokens (default 0: all)")
    new.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="only tokens that together reach p (default 1)"
    )
    new.add_argument(
        "--min-p",
        type=float,
        default=0.0,
        metavar="P",
        help="only tokens this share as likely as the likeliest (default 0)",
    )
    new.add_argument("--seed", type=int, default=0, help="seed of the sampling (default 0)")
    _device(new, "cpu")


def _chat(new):
    _sampling(new, temperature=0.0)  # a question has one right answer


def _check(new):
    new.add_argument("--ops", choices=["cpu", "plain"], default="cpu", help="which operations (default cpu)")
    _device(new, "cpu")


def _diagnose(new):
    new.add_argument("--tool", nargs="+", metavar="NAME", help="only these (default: all, which prints their names)")


def _break(new):
    new.add_argument("--seed", type=int, help="which bug: any whole number")
    new.add_argument("--out", type=Path, metavar="FOLDER", help="folder to make; must not exist (default: broken-SEED)")
    text = "run its test_found.py against the bug and against this package: a folder from someone else is their code"
    new.add_argument("--hand-in", type=Path, metavar="FOLDER", help=text)
    new.add_argument(
        "--reveal",
        nargs="?",
        const=True,
        type=Path,
        metavar="FOLDER",
        help="tell all about a folder's or a seed's bug",
    )


def _assign(new):
    new.add_argument("chapter", help="03, 04, 05, 06, 07, 08, 10, 11, 14, 20 or 25")
    text = (
        "any text that students do not know and cannot guess, the same for handing out and marking; "
        "-: one line of standard input"
    )
    new.add_argument("--seed", required=True, metavar="NAME", help=text)
    what = new.add_mutually_exclusive_group()
    what.add_argument("--student", metavar="NAME", help="hand out a paper: one student")
    text = (
        "hand out papers to these, or with --grade mark those of these: a name a line, or a CSV file that "
        "Canvas, Moodle or Blackboard exports"
    )
    new.add_argument("--students", type=Path, metavar="FILE", help=text)
    text = (
        "mark NAME/answers.py or NAME.py of each student in this folder: a file from someone else is "
        "their code; the table is written after each student, and another call marks who is missing in it or "
        "has handed in other answers"
    )
    what.add_argument("--grade", type=Path, metavar="FOLDER", help=text)
    text = "with --grade: when answers were due, as 2026-12-01T12:00; the table counts the days late"
    new.add_argument("--due", metavar="DATE", help=text)
    text = "with --grade, as root: run answers as this user, who cannot read yours and has no other process"
    new.add_argument("--user", metavar="NAME", default="", help=text)
    new.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder to make; must not exist, but --grade goes on with that of an earlier call "
        "(default: paper-CHAPTER-NAME, papers-CHAPTER or marks-CHAPTER)",
    )


def _info(new):
    new.add_argument("--preset", default="small", help=f"{', '.join(PRESETS)} (default small)")
    text = "run, whose latest checkpoint is shown, or checkpoint folder"
    new.add_argument("run", nargs="?", type=Path, help=text)
    new.add_argument("--run", dest="also", type=Path, metavar="RUN", help="the same")


def _export(new):
    new.add_argument("run", type=Path, help="run or checkpoint folder")
    text = "; ".join(f"{name}: {readers}" for name, readers in FORMATS.items())
    new.add_argument("--to", required=True, choices=list(FORMATS), help=text)
    text = "folder (hf) or file (gguf) to make; must not exist"
    new.add_argument("--out", required=True, type=Path, metavar="PATH", help=text)


def _release(new):
    new.add_argument("run", type=Path, help="run or checkpoint folder")
    text = "folder to make; must not exist"
    new.add_argument("--out", required=True, type=Path, metavar="FOLDER", help=text)
    text = f"{' and '.join(FORMATS)}, or one of them (default: all that the model has)"
    new.add_argument("--to", choices=list(FORMATS), action="append", help=text)
    text = "folder of nanoeuler corpus whose report.json says the licence of a text behind shards; of several, again"
    new.add_argument("--corpus", type=Path, action="append", metavar="FOLDER", help=text)


def _import(new):
    text = "folder of a Llama with config.json and safetensors; or a model.bin of llama2.c"
    new.add_argument("path", type=Path, help=text)
    new.add_argument("--run", required=True, type=Path, metavar="FOLDER", help="new folder for the run")
    text = "tokenizer.json, llama2.c's tokenizer.bin, or a run's (default: the one beside the weights)"
    new.add_argument("--tokenizer", type=Path, metavar="FILE", help=text)


def _option(name):
    return f"--{name.replace('_', '-')}"
