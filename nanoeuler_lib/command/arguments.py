"""The options of the `nanoeuler` command with their help texts, and the parser with its error messages."""

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from nanoeuler_lib import __version__, config
from nanoeuler_lib.errors import NanoEulerError, did_you_mean, short
from nanoeuler_lib.files import one_line, to_json

EXAMPLES = """examples:
  nanoeuler generate "Käthe had"
  nanoeuler corpus konigsberg --bytes 4000000 --seed 1 --out world.txt
  nanoeuler train --data world.txt --run runs/world
  nanoeuler train --resume runs/world --steps 4000     continue it for longer
  nanoeuler train --from runs/world --data other.txt --run runs/other
  nanoeuler train --config runs/world/settings.toml --lr 0.001 --run runs/slower
  nanoeuler report runs/world
  nanoeuler compare runs/world runs/slower
  nanoeuler generate "Käthe had" --run runs/world
  nanoeuler score FILE.txt --run runs/world --out score.html
  nanoeuler answers --out answers
  nanoeuler sft --base runs/world --run runs/answers   train it to answer
  nanoeuler chat --run runs/answers                    ask it questions
  nanoeuler dpo --base runs/answers --data pairs.jsonl --run runs/prefers
  nanoeuler sft --data konigsberg-routes --steps 50 --run runs/routes
  nanoeuler grpo --base runs/routes --run runs/rewarded
  nanoeuler export runs/world --to hf --out world-hf   for transformers
  nanoeuler release runs/world --out world-1
  nanoeuler import TinyLlama-1.1B --run runs/tiny
  nanoeuler check

Bad input ends with one line on standard error and exit code 2."""

SHAPE = {  # fields of ModelConfig; `info` and `train` take the defaults from a preset
    "dim": "width of the residual stream",
    "heads": "query heads",
    "kv_heads": "key/value heads, each shared by the same number of query heads",
    "layers": "transformer blocks",
    "context": "maximum sequence length in tokens",
    "vocab_size": "vocabulary size in tokens",
    "predict": "prediction heads; the k-th predicts the k-th token ahead",
}
TRAINING = {  # fields of TrainConfig
    "steps": "optimisation steps in total; with --resume, the new total",
    "batch": "sequences per batch",
    "accumulate": "gradient accumulation: batches per step, whose gradients are averaged",
    "optimizer": "adamw; or muon for the matrices inside blocks, with AdamW for all other parameters",
    "rate": "peak learning rate, reached after warm-up; a cosine lowers it to a tenth; with --resume, a new peak",
    "warmup": "steps of linear warm-up, in which the learning rate rises from 0 to its peak",
    "decay": "weight decay of matrices, multiplied by the learning rate",
    "clip": "maximum gradient norm; larger gradients are scaled down; 0: off",
    "later_heads": "loss weight of every prediction head except the first, whose weight is 1",
    "seed": "seed of weights and batches; the same seed gives the same run",
    "valid_fraction": "fraction held out for validation, the end of each file, 0 to 0.9; 0: none",
    "valid_every": "steps between measurements of the validation loss",
    "sample_every": "steps between text samples in the log; 0: none",
    "save_every": "steps between checkpoints; a crash loses at most this many",
    "keep_every": "steps between checkpoints that are never deleted, for nanoeuler replay; 0: keep only the last two "
    "and the best",
}
HELD_OUT = {"valid_fraction": "fraction of the examples, but at least one, held out for validation, 0 to 0.9"}
REWARDS = {  # fields of RewardConfig
    "reward": "verifier; route: reward 1 for an open way to the goal; hackable and brief are flawed on purpose; "
    "MODULE:FUNCTION: your own function (problem, answer) -> number, such as mine:reward for reward in mine.py here; "
    "problem has the texts prompt, start, goal and answer, and the tuple closed; an unfinished answer ends in ...",
    "group": "answers sampled for each question, which are compared with one another",
    "answer_tokens": "maximum answer length in tokens; an unfinished answer has reward 0",
    "updates": "steps per set of sampled answers; --save-every and --steps must be multiples of it",
    "clip_ratio": "clipping range: each token's ratio of new to old probability is clipped to 1 +- this; 0: off",
    "kl": "beta, the weight of the KL penalty to the initial model; 0: off",
    "kl_by": f"estimator of the KL penalty: {', '.join(config.KL_ESTIMATORS)}",
}
RENAMED = {"rate": "--lr", "decay": "--weight-decay", "cards": "--gpus"}  # the old names work, too
ELSEWHERE = {  # names of options in other programs -> names here, for hints
    "--learning-rate": "--lr", "--batch-size": "--batch", "--iters": "--steps", "--iterations": "--steps",
    "--max-steps": "--steps", "--epochs": "--steps", "--wd": "--weight-decay", "--grad-clip": "--clip",
    "--block-size": "--context", "--seq-len": "--context", "--n-layers": "--layers", "--n-heads": "--heads",
    "--width": "--dim", "--hidden": "--dim", "--input": "--data", "--text": "--data", "--file": "--data",
    "--output": "--out", "--checkpoint": "--run", "--model": "--run", "--max-tokens": "--tokens",
    "--length": "--tokens", "--temp": "--temperature", "--vocab": "--vocab-size", "--threads": "--workers",
    "--val": "--valid", "--grad-accum": "--accumulate", "--continue": "--resume", "--tokens": "--steps",
}  # fmt: skip

CORPORA = {  # corpora that are downloaded, or made from files
    "books": "download classics from Project Gutenberg as one file without licence texts (69 MB)",
    "web": "download educational web pages (FineWeb-Edu): 1 GB, or as much as you choose, from 2.1 GB of parquet",
    "alpaca": "download 52,002 instructions with a model's answers, for nanoeuler sft (CC BY-NC: no commercial use)",
    "dolly": "download 15,011 instructions with people's answers, for nanoeuler sft (CC BY-SA)",
    "shakespeare": "download tiny Shakespeare, one file of 1.1 MB",
    "classics": "make the book corpus of chapter 32's run from files that you have (126 MB)",
    "featured": "make the article corpus of chapter 32's run from files that you have (105 MB)",
}
NO_ADDRESS = "classics", "featured"
VALID_FRACTION = {"books": 0.1, "web": 0.005}  # default for the corpora whose validation part is whole documents
WEB_BYTES = 1_000_000_000

JOBS = {  # `nanoeuler --help` lists the commands by job
    "prepare text": "corpus tokenizer shards",
    "train a model": "train sft dpo grpo",
    "look at a run": "report compare replay info",
    "use a model": "generate chat score answers",
    "exchange models": "export import release",
    "read the book": "lab test progress",
    "check, learn and teach": "check diagnose break assign",
}
DTYPES = "float32", "bfloat16"
FORMATS = {"hf": "transformers and compatible programs", "gguf": "llama.cpp and compatible programs"}

IN_STEPS = "steps", "warmup", "valid_every", "sample_every", "save_every"  # `train` also accepts these in tokens


class Tokens(int):
    """Hold a number of tokens, given for an option that usually counts steps."""


def steps_or_tokens(word: str) -> int:
    """Convert "2000" to steps, or "300Mtok" to `Tokens` (k, M, G: 10^3, 10^6, 10^9). Raises ValueError."""
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)tok", word):
        return Tokens(round(float(match[1]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[match[2]]))
    return int(word)


EXPECTED = {int: "an integer", float: "a number", steps_or_tokens: "an integer, or tokens as in 300Mtok"}
EXPECTED |= {str: "a text", Path: "a text", bool: "true or false"}
IN_TOML = {int: (int,), float: (int, float), steps_or_tokens: (int, str), str: (str,), Path: (str,), bool: (bool,)}
NOT_IN_FILE = {"help", "config", "resume"}  # attributes of options that a settings file must not have
NOT_RECORDED = NOT_IN_FILE | {"run", "quiet", "profile", "preset"}  # the shape is recorded instead of the preset
MISSING = "the following arguments are required: "  # how argparse's message begins


class Parser(argparse.ArgumentParser):
    """Parse arguments, and raise each error as a NanoEulerError of one line, with a hint for mistyped words."""

    def parse_known_args(self, args=None, namespace=None):
        """Parse as argparse does, and keep the words for `error` and `configure`."""
        self.words = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def configure(self, args: argparse.Namespace) -> None:
        """Set the options that the file of --config has, except those given on the command line."""
        if (file := getattr(args, "config", None)) is None:
            return
        try:
            settings = tomllib.loads(file.read_bytes().decode())
        except OSError as error:
            raise NanoEulerError(f"{file}: cannot be read ({error.strerror}), expected a settings file") from None
        except (ValueError, RecursionError) as error:  # not UTF-8, not TOML
            raise NanoEulerError(f"{file}: not readable as TOML ({one_line(str(error), 200)})") from None
        for action in self._actions:  # parse again without defaults, to see which options were given
            action.default = argparse.SUPPRESS
        given, _ = super().parse_known_args(self.words)
        options = {name[2:]: a for name, a in self._option_string_actions.items() if a.dest not in NOT_IN_FILE}
        for key, value in settings.items():
            if (action := options.get(key.replace("_", "-"))) is None:
                hint = did_you_mean(key, options) or f": its keys are the options of {self.prog}, without dashes"
                raise NanoEulerError(f"{file}: {short(key)} is not a setting{hint}")
            value = _setting(f"{file}: {key}", value, action)
            if action.dest not in given:
                setattr(args, action.dest, value)

    def error(self, message: str) -> None:
        """Raise argparse's error message as a NanoEulerError in the words of this package."""
        if message.startswith(MISSING):
            for word in self.words:  # the missing option may have been mistyped; abbreviations are allowed
                name = word.partition("=")[0]
                if name.startswith("--") and not any(o.startswith(name) for o in self._option_string_actions):
                    self.refuse([word])
            name = message.removeprefix(MISSING)
            choices = [word for action in self._actions if action.metavar == name for word in action.choices or ()]
            message = f"{name} must be given" + (f": one of {', '.join(choices)}" if choices else "")
        message = message.replace(": not allowed with argument", " must not be combined with", 1)
        raise NanoEulerError(self._where() + message.removeprefix("argument ").replace(": must be", " must be", 1))

    def refuse(self, unknown: list[str]) -> None:
        """Raise NanoEulerError for the first of some words that the parser did not recognise."""
        name = unknown[0].partition("=")[0]
        if not name.startswith("-"):
            names = [action.dest for action in self._actions if not action.option_strings]
            takes = f"one {' and one '.join(names)}" if names else "only options"
            raise NanoEulerError(f"{self._where()}takes {takes}, got {short(unknown[0])} as well")
        if name in self._option_string_actions:
            raise NanoEulerError(f"{self._where()}{name} must come before --, because no options follow it")
        known = [option for action in self._actions for option in action.option_strings]
        hint = f", did you mean {ELSEWHERE[name]}?" if ELSEWHERE.get(name) in known else did_you_mean(name, known)
        raise NanoEulerError(f"{self._where()}{short(name)} is not an option{hint or f': see {self.prog} --help'}")

    def _get_value(self, action, word):
        try:
            return super()._get_value(action, word)
        except argparse.ArgumentError:
            raise argparse.ArgumentError(action, f"must be {EXPECTED[action.type]}, got {short(word)}") from None

    def _check_value(self, action, value):
        if action.choices is not None and value not in action.choices:
            wanted = f"must be one of {', '.join(action.choices)}, got {short(value)}"
            raise argparse.ArgumentError(action, wanted + did_you_mean(value, action.choices))

    def _print_message(self, message, file=None):
        """Print help or the version; unlike argparse's own method, this raises an error if that fails."""
        (file or sys.stderr).write(message)

    def _where(self):
        return f"{self.prog.partition(' ')[2]}: ".removeprefix(": ")


def option(name: str) -> str:
    """Return the option that sets an attribute, such as --save-every for save_every."""
    return RENAMED.get(name, f"--{name.replace('_', '-')}")


def _setting(name, value, action):
    """Return an option's value for a value in a settings file."""
    kind, several = action.type if action.nargs != 0 else bool, isinstance(action, argparse._AppendAction)
    values = value if several and isinstance(value, list) else [value]
    try:
        if not values or any(type(one) not in IN_TOML[kind] for one in values):
            raise ValueError
        values = [one if kind is bool else kind(str(one)) for one in values]
    except ValueError:
        some = " or a list of them" * several
        raise NanoEulerError(f"{name} must be {EXPECTED[kind]}{some}, got {short(value)}") from None
    return values if several else values[0]


def to_toml(args: argparse.Namespace, *configs: config._Config, **known: object) -> str:
    """Return the options with which a command began a run as TOML, so that `--config` can begin the same run again.

    configs: settings of the run, whose values replace the options of the same name; known: values of further options.
    """
    values = vars(args) | {name: x for one in configs for name, x in one.to_dict().items()} | known
    lines = [f"# nanoeuler {__version__}: {args.parser.prog} --config THIS_FILE --run FOLDER begins the same run"]
    for action in args.parser._actions:
        value = values.get(action.dest)
        if value is not None and action.dest not in NOT_RECORDED:
            paths = [os.path.abspath(path) for path in value] if isinstance(value, list) else value
            value = os.path.abspath(value) if isinstance(value, Path) else paths
            lines.append(f"{action.option_strings[0][2:]} = {to_json(value)}")
    return "\n".join(lines) + "\n"


REQUIRED = object()  # used as the default of a required option


def add(to, name, kind, default, text, **how):
    """Add an option ("--vocab N") or a positional argument ("run") to a parser or group.

    kind: bool for a switch; default: or `REQUIRED`; text: help without the default; how: arguments of `add_argument`.
    """
    name, _, metavar = name.partition(" ")
    old = {new: f"--{old}" for old, new in RENAMED.items()}.get(name)
    kinds = {"action": "store_true"} if kind is bool else {"type": kind, "metavar": metavar or None}
    if default is REQUIRED:
        kinds["required"], default = True, None
    elif default or type(default) in (int, float):
        text += f" (default {default:g})" if type(default) is float else f" (default {default})"
    if old is None:
        to.add_argument(name, default=default, help=text, **kinds | how)
    else:  # the old name works, but the help does not show it
        to.add_argument(name, old, dest=old[2:], default=default, help=text, **kinds | how).option_strings.remove(old)


def parser(functions: Mapping[str, Callable]) -> Parser:
    """Return the parser of the `nanoeuler` command. functions: by subcommand, such as "tokenizer train"."""
    top = Parser("nanoeuler", description="Build, train and run a small language model written by hand.")
    top.epilog, top.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    top.add_argument("--version", action="version", version=f"nanoeuler {__version__}")
    top.usage = "nanoeuler [-h] [--version] COMMAND ..."
    commands = top.add_subparsers(prog="nanoeuler", required=True, metavar="COMMAND", help=argparse.SUPPRESS)
    new = commands.add_parser("tokenizer", help="train and use a byte-level BPE tokenizer")
    groups = {"": commands, "tokenizer": new.add_subparsers(title="commands", required=True, metavar="COMMAND")}
    new = commands.add_parser("corpus", help="generate or download text to train on")
    groups["corpus"] = new.add_subparsers(title="corpora", required=True, metavar="CORPUS")

    def command(name, text, as_json=True):
        of, _, last = name.rpartition(" ")
        new = groups[of].add_parser(last, help=text, description=text)
        new.set_defaults(function=functions[name], parser=new)
        if as_json:
            add(new, "--json", bool, False, "print one JSON object for a script to read")
        return new

    for define in (_text, _pretraining, _fine_tuning, _use, _tools, _formats):
        define(command)
    listed = {row.dest: row for row in commands._choices_actions}
    for job, names in JOBS.items():
        top.add_argument_group(job)._group_actions += [listed[name] for name in names.split()]
    return top


# The commands, in the order of the help. If a default is None, the help text states what is used instead.

TEXTS = 'UTF-8 text (also .xz, .gz), documents with a "text" field (.jsonl, .parquet), or a folder of these'
MOVED = "with --resume: its new path, if it moved"
SEVERAL = {"action": "extend", "nargs": "+"}
REPEATED = {"action": "append"}


def _text(command):
    text = "train a BPE tokenizer on UTF-8 text; uses memory of up to 1.3 times the text's size"
    p = command("tokenizer train", text)
    add(p, "--data FILE", Path, REQUIRED, f"{TEXTS}; several are read one after another", **SEVERAL)
    add(p, "--vocab N", int, 512, "vocabulary size, special tokens included")
    add(p, "--out FILE", Path, REQUIRED, "JSON file to write; must not exist")
    add(p, "--end-of-text", bool, False, "reserve a token for <|endoftext|> even if the text has no such line")
    p = command("tokenizer encode", "convert text to token ids")
    add(p, "text", str, None, "text (default: standard input, byte for byte)", nargs="?")
    add(p, "--tokenizer FILE", Path, None, "tokenizer file (default: the one in the package)")
    add(p, "--special", bool, False, "encode <|endoftext|> in the text as the special token")
    p = command("tokenizer decode", "convert token ids to text")
    add(p, "ids", str, None, "token ids (default: standard input)", nargs="*")
    add(p, "--tokenizer FILE", Path, None, "tokenizer file (default: the one in the package)")
    p = command("corpus konigsberg", "generate any amount of stories about a simulated Königsberg, from a seed")
    add(p, "--bytes N", int, 4_000_000, "approximate size in bytes")
    add(p, "--seed N", int, 0, "seed of the stories; use a different one for validation text")
    add(p, "--out FILE", Path, None, "file to write; must not exist (default: standard output)")
    for name, text in CORPORA.items():
        p = command(f"corpus {name}", text)
        p.set_defaults(corpus=name, bytes=None, seed=0, valid_fraction=0.0, skip=[])
        add(p, "--out FOLDER", Path, REQUIRED, "folder to create; must not exist")
        add(p, "--downloads FOLDER", Path, Path("downloads"), "folder for downloads, which are resumed and reused")
        text = "folder with the files, which cannot be downloaded (also .xz)"
        if name not in NO_ADDRESS:
            text = "folder with files you have (also .xz); the others are downloaded"
        add(p, "--from FOLDER", Path, None, text, dest="have")
        if name == "web":
            add(p, "--bytes N", int, WEB_BYTES, "approximate size of the text in bytes")
        elif name == "books":
            add(p, "--skip N", str, [], "numbers of books to leave out, such as 1342", nargs="+")
        if (fraction := VALID_FRACTION.get(name)) is not None:
            add(p, "--seed N", int, 0, "seed that selects the validation documents")
            add(p, "--valid-fraction X", float, fraction, "fraction of the documents held out for validation")
    p = command("shards", "tokenize text larger than memory, for training")
    add(p, "texts TEXT", Path, None, f"{TEXTS}; several are read one after another", nargs="+")
    add(p, "--tokenizer FILE", Path, REQUIRED, "tokenizer file, with at most 65536 tokens")
    add(p, "--out FOLDER", Path, REQUIRED, "folder to create; must not exist")
    add(p, "--workers N", int, None, "number of processes (default: one per core)")


def _pretraining(command):
    p = command("train", "pretrain a model on UTF-8 text or on shards", as_json=False)
    add(p, "--data FILE", Path, None, f"{TEXTS}; or shards; several texts are joined; {MOVED}", **SEVERAL)
    text = "validation text or shards; repeatable (default: end of each file of --data)"
    add(p, "--valid FILE", Path, None, text, **REPEATED)
    add(p, "--from RUN", Path, None, "run or checkpoint whose model and tokenizer begin a new run", dest="base")
    add(p, "--preset NAME", str, None, f"model shape: {', '.join(config.PRESETS)} (default small)")
    add(p, "--tokenizer FILE", Path, None, "tokenizer file (default: trained on the training part; shards have one)")
    _run(p)
    add(p, "--gpus N", int, None, "number of GPUs (1, 2, 4 or 8), which share the --accumulate batches of a step")
    add(p, "--profile N", int, 0, "number of GPU steps in which each launch is timed, to show where the time goes")
    shape = p.add_argument_group("model shape (default: the preset's)")
    for name, text in SHAPE.items():
        values = {of: getattr(config.preset(of), name) for of in config.PRESETS}
        switch = {"action": argparse.BooleanOptionalAction} if type(values["small"]) is bool else {}
        text += f" ({', '.join(f'{of} {value}' for of, value in values.items())})"
        add(shape, f"{option(name)} N", type(values["small"]), None, text, **switch)
    _settings(p, "training", TRAINING, {}, in_tokens=IN_STEPS)
    p = command("replay", "repeat steps of a run and compare them with its log")
    add(p, "run", Path, None, "run folder")
    add(p, "--steps A:B", str, REQUIRED, "steps to repeat: A+1 to B, from the last checkpoint before them, as in 40:50")
    add(p, "--data FILE", Path, None, "new path of the run's data, if it moved", **SEVERAL)
    add(p, "--valid FILE", Path, None, "new path of the run's validation data, if it moved", **REPEATED)
    _device(p, "default: the run's")
    add(p, "--gpus N", int, None, "number of GPUs, as for nanoeuler train; may differ from the run's")


def _fine_tuning(command):
    p = command("sft", "SFT: train a base model to answer", as_json=False)
    text = "konigsberg (the default), konigsberg-reworded, konigsberg-routes, or a file of dialogues: Alpaca, Dolly, "
    add(p, "--data FILE", str, None, f"{text}ShareGPT, messages, or prompt and completion (also .xz, .gz); {MOVED}")
    add(p, "--examples N", int, None, "number of stories (default 10000) or of the file's examples (default all)")
    add(p, "--data-seed N", int, None, f"seed of the stories or of the file's order (default {config.SFT_DATA_SEED})")
    add(p, "--last-turn", bool, None, "train only on the last reply of each dialogue (default: on all of them)")
    add(p, "--base RUN", Path, None, "run or checkpoint to begin with (default: the model in the package)")
    _run(p)
    _settings(p, "training", TRAINING | HELD_OUT, config.SFT_DEFAULTS, leave_out=["keep_every"])
    p = command("dpo", "DPO: train a chat model on preference pairs, on the CPU", as_json=False)
    text = "konigsberg (the default: true and false reasons), or a file of JSON objects with prompt, chosen and "
    add(p, "--data FILE", str, None, f"{text}rejected, each a text or messages (also .xz, .gz); {MOVED}")
    add(p, "--pairs N", int, None, "number of stories (default 2000) or of the file's pairs (default all)")
    add(p, "--data-seed N", int, None, f"seed of the stories or of the file's order (default {config.DPO_DATA_SEED})")
    add(p, "--base RUN", Path, None, "run or checkpoint to train, and reference (default: the package's chat model)")
    add(p, "--beta X", float, None, "weight of the KL penalty to the reference, above 0 (default 0.1)")
    add(p, "--label-noise X", float, None, "assumed fraction of pairs with swapped labels, below 0.5 (default 0)")
    add(p, "--robust", bool, None, "with --label-noise: weight both labels so that swapped ones cancel on average")
    _run(p, only_cpu=True)
    meanings = TRAINING | HELD_OUT | {"batch": "pairs per batch"}
    _settings(p, "training", meanings, config.DPO_DEFAULTS, leave_out=["later_heads", "keep_every"])
    p = command("grpo", "GRPO: train a chat model with rewards on its samples, on the CPU", as_json=False)
    add(p, "--base RUN", Path, None, "run trained on routes (sft --data konigsberg-routes), also the reference of --kl")
    add(p, "--questions N", int, None, "number of questions to learn from (default 2000)")
    add(p, "--data-seed N", int, None, f"seed of the questions (default {config.GRPO_DATA_SEED})")
    _settings(p, "rewards", REWARDS, {}, config.RewardConfig)
    _run(p, only_cpu=True)
    meanings = TRAINING | {"batch": "answers per batch", "valid_every": "steps between tests on held-out questions"}
    _settings(p, "training", meanings, config.GRPO_DEFAULTS, leave_out=["later_heads", "valid_fraction", "keep_every"])


def _run(p, only_cpu=False):
    """Add the options of a command that begins or resumes a run. only_cpu: leave the device out of the help."""
    add(p, "--run FOLDER", Path, None, "new folder for log and checkpoints")
    text = "TOML file of settings, such as lr = 0.001, with the names of these options; options given here win; a "
    add(p, "--config FILE", Path, None, f"{text}run stores its own as RUN/settings.toml; not with --resume")
    text = "run to continue; only --steps, --lr and the --...-every options may change"
    text += "" if only_cpu else "; --device and new paths of moved data may be given too"
    add(p, "--resume RUN", Path, None, text)
    if only_cpu:
        add(p, "--device NAME", str, None, argparse.SUPPRESS)
        add(p, "--precision NAME", str, None, argparse.SUPPRESS)
    else:
        _device(p, "default cpu; with --resume: the run's", "; not with --resume")
    add(p, "--workers N", int, None, "number of threads (default: one per core); not with --resume")
    add(p, "--quiet", bool, False, "print only the result: no plan, progress or samples")


def _device(p, default="default cpu", never=""):
    text = "cpu; gpu, or gpu:1 for the second; auto: a GPU if one can run the model; checked: the GPU's code on the "
    add(p, "--device NAME", str, None, f"{text}CPU, with every memory access checked, slow ({default})")
    text = "GPU matmuls in float32, tf32, bfloat16 or float16 (default: bfloat16, on compute capability 7.5 float16)"
    add(p, "--precision NAME", str, None, text + never)


def _settings(p, title, meanings, changes, of=config.TrainConfig, in_tokens=(), leave_out=()):
    """Add a group of options that set a config's fields. changes: the defaults that differ in a command."""
    p.set_defaults(**dict.fromkeys(leave_out))
    group = p.add_argument_group(title, "steps may be given in tokens, as in 300Mtok" if in_tokens else None)
    for name in (name for name in meanings if name not in leave_out):
        default = getattr(of(**changes), name)
        metavar = {int: "N", float: "X", str: "NAME"}[type(default)]
        kind = steps_or_tokens if name in in_tokens else type(default)
        text = f"{meanings[name]} (default {default if kind is str else f'{default:g}'})"
        add(group, f"{option(name)} {metavar}", kind, None, text)


def _use(command):
    p = command("report", "write a page about a run: curves, throughput, samples and warnings")
    add(p, "run", Path, None, "run folder, finished or not")
    add(p, "--out FOLDER", Path, None, "folder to write to (default: RUN/report)")
    text = "CSV file to write instead of the page: the numbers of the log, one row per step; must not exist"
    add(p, "--csv FILE", Path, None, text)
    p = command("compare", "write a page about several runs: curves, results, settings that differ, samples")
    add(p, "runs RUN", Path, None, "run folders, at least two, finished or not", nargs="+")
    add(p, "--out FILE", Path, Path("compare.html"), "HTML page to write; must not exist")
    p = command("generate", "continue a prompt")
    add(p, "prompt", str, "", "text to continue (default: start a new one)", nargs="?")
    add(p, "--propose N", int, 0, "speculative decoding: tokens drafted per pass by later prediction heads")
    add(p, "--prompt-file FILE", str, None, "file with the prompt; its last line end is ignored; -: standard input")
    add(p, "--samples N", int, 1, "number of continuations, with consecutive seeds, separated by a line <|endoftext|>")
    add(p, "--stop TEXT", str, [], "text that ends the continuation and is left out; repeatable", **REPEATED)
    add(p, "--repetition-penalty X", float, 1.0, "penalty above 1 for repeated tokens; 1: off; not with --propose")
    _sampling(p)
    p = command("score", "measure your text under a model: bits per byte and per token")
    add(p, "text FILE", Path, None, TEXTS)
    _model(p)
    add(p, "--out FILE", Path, None, "HTML page to write, with high-loss tokens marked; must not exist (default: none)")
    _device(p)
    p = command("answers", "measure which facts of a story a model of Königsberg uses")
    add(p, "--out FOLDER", Path, REQUIRED, "folder to create, for answers.json and answers.npz; must not exist")
    _model(p)
    add(p, "--pairs N", int, 50, "pairs of twin stories to learn from, and as many to score")
    text = "story steps in the prompt; 1: the thing's holder has it from the start; 2: the holder received it"
    add(p, "--told N", int, 1, text)
    add(p, "--seed N", int, 18, "seed of the stories")
    p = command("chat", "chat with a model that was trained to answer", as_json=False)
    _sampling(p, temperature=0.0)  # a question has one right answer


def _model(p):
    add(p, "--run RUN", Path, None, "run or checkpoint folder (default: a model in the package)")
    text = "name of a model in the package, in place of --run; an unknown name prints the list"
    add(p, "--model NAME", str, None, text)


def _sampling(p, temperature=0.8):
    _model(p)
    add(p, "--tokens N", int, 200, "maximum number of tokens")
    add(p, "--temperature X", float, temperature, "sampling temperature; 0: greedy")
    add(p, "--top-k K", int, 0, "number of most likely tokens to sample from; 0: all")
    add(p, "--top-p P", float, 1.0, "total probability of the most likely tokens to sample from; 1: all")
    add(p, "--min-p P", float, 0.0, "only tokens at least this fraction as likely as the top one")
    add(p, "--seed N", int, 0, "seed of the sampling")
    _device(p)


def _tools(command):
    p = command("check", "compare every gradient with difference quotients")
    add(p, "--ops NAME", str, "cpu", "operations to check: cpu, plain", choices=["cpu", "plain"])
    _device(p)
    text = "folder with chapters (default: this folder, or the clone that it belongs to)"
    p = command("lab", "open the chapters of the book in JupyterLab", as_json=False)
    add(p, "folder", Path, None, text, nargs="?")
    p = command("test", "run chapters of the book again, and compare their outputs with the stored ones", as_json=False)
    add(p, "chapters CHAPTER", str, None, "chapter number, such as 06, or notebook file", nargs="+")
    add(p, "--folder FOLDER", Path, None, text)
    p = command("progress", "count your right answers in the chapters, and show what comes next")
    add(p, "folder", Path, None, text, nargs="?")
    p = command("diagnose", "run the book's debugging tools on this package, as a checklist")
    add(p, "--tool NAME", str, None, "tools to run (default: all; their names are printed)", nargs="+")
    p = command("break", "plant a bug in a copy of the package, for you to find", as_json=False)
    add(p, "--seed N", int, None, "any integer; selects the bug")
    add(p, "--out FOLDER", Path, None, "folder to create; must not exist (default: broken-SEED)")
    text = "folder to grade: runs its test_found.py (code that somebody else wrote) against the bug and against this "
    add(p, "--hand-in FOLDER", Path, None, f"{text}package")
    add(p, "--reveal FOLDER", Path, None, "folder whose bug is explained (default: --seed's)", nargs="?", const=True)
    p = command("assign", "hand out and grade assignments, a different one for each student")
    add(p, "chapter", str, None, "chapter number: 02, 03, 05, 06, 07, 08, 10, 11, 14, 20 or 25")
    add(p, "--seed NAME", str, REQUIRED, "secret text, the same for handing out and grading; -: read standard input")
    what = p.add_mutually_exclusive_group()
    add(what, "--student NAME", str, None, "student who gets an assignment")
    text = "students who get assignments or, with --grade, are graded: one name per line, or a CSV file exported by "
    add(p, "--students FILE", Path, None, f"{text}Canvas, Moodle or Blackboard")
    text = "folder of NAME/answers.py or NAME.py to grade: runs the students' code; a later call adds what is missing"
    add(what, "--grade FOLDER", Path, None, text)
    add(p, "--due DATE", str, None, "with --grade: deadline, as 2026-12-01T12:00; the table counts the days late")
    add(p, "--user NAME", str, "", "with --grade, as root: user who runs the answers and cannot read your files")
    text = "folder to create; must not exist, except that --grade continues in the folder of an earlier call "
    add(p, "--out FOLDER", Path, None, f"{text}(default: paper-CHAPTER-NAME, papers-CHAPTER or marks-CHAPTER)")


def _formats(command):
    p = command("info", "show shapes, sizes and memory of a preset or a checkpoint")
    add(p, "--preset NAME", str, "small", f"preset to show: {', '.join(config.PRESETS)}")
    add(p, "run", Path, None, "run folder, whose latest checkpoint is shown, or checkpoint folder", nargs="?")
    add(p, "--run RUN", Path, None, "the same as the argument run", dest="also")
    p = command("export", "convert a run for other programs")
    add(p, "run", Path, None, "run or checkpoint folder")
    text = "; ".join(f"{name}: for {readers}" for name, readers in FORMATS.items())
    add(p, "--to FORMAT", str, REQUIRED, text, choices=FORMATS)
    add(p, "--out PATH", Path, REQUIRED, "folder (hf) or file (gguf) to create; must not exist")
    text = "number format of the weights: float32, or bfloat16, rounded to nearest, ties to even"
    add(p, "--dtype NAME", str, "float32", text, choices=DTYPES)
    p = command("release", "collect the files for publishing a run: weights, model card, hashes and a check")
    add(p, "run", Path, None, "run or checkpoint folder")
    add(p, "--out FOLDER", Path, REQUIRED, "folder to create; must not exist")
    add(p, "--to FORMAT", str, None, "hf or gguf; repeatable (default: all possible ones)", choices=FORMATS, **REPEATED)
    add(p, "--corpus FOLDER", Path, None, "folder of nanoeuler corpus, for the text's licence; repeatable", **REPEATED)
    p = command("import", "convert other people's weights to a run")
    add(p, "path", Path, None, "folder of a Llama or GPT-2 (config.json and safetensors), or llama2.c's model.bin")
    add(p, "--run FOLDER", Path, REQUIRED, "new folder for the run")
    add(p, "--tokenizer FILE", Path, None, "tokenizer.json, tokenizer.bin or a run's (default: next to the weights)")
