"""The `nanoeuler` command: each subcommand is one function below."""

import argparse
import io
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from nanoeuler_lib import __version__
from nanoeuler_lib.config import PRESETS, SFT_DATA_SEED, SFT_DEFAULTS, TrainConfig, preset
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import printable, write_text

EXAMPLES = """examples:
  nanoeuler generate "Käthe had"                    continue a prompt with the model that comes with the package
  nanoeuler corpus konigsberg --bytes 4000000 --seed 1 --out world.txt
  nanoeuler train --data world.txt --run runs/world
  nanoeuler train --resume runs/world
  nanoeuler report runs/world                       curves and a page about the run: runs/world/report
  nanoeuler generate "Käthe had" --run runs/world
  nanoeuler sft --base runs/world --run runs/answers   teach it to answer questions
  nanoeuler chat --run runs/answers                 and ask (default: the chat model in the package)
  nanoeuler check                                   every gradient against difference quotients

Bad input ends with one line on standard error and exit code 2."""


def tokenizer_train(args):
    from nanoeuler_lib.data import SEPARATOR, read_text
    from nanoeuler_lib.tokenizer import END_OF_TEXT, Tokenizer

    _refuse_existing(args.out)
    text = read_text(args.data)
    special = (END_OF_TEXT,) if SEPARATOR in text or args.end_of_text else ()
    tokenizer = Tokenizer.train(text, args.vocab, special_tokens=special)
    tokenizer.save(args.out)
    found = {"vocab_size": tokenizer.vocab_size, "merges": len(tokenizer.merges), "out": str(args.out)}
    fewer = ": the text has no more pairs to merge" if tokenizer.vocab_size < args.vocab else ""
    _print(args, found, f"{args.out}: {found['vocab_size']} tokens, {found['merges']} of them merges{fewer}")


def tokenizer_encode(args):
    tokenizer = _tokenizer(args)
    text = _argument_or_stdin(args.text)
    ids = [int(i) for i in tokenizer.encode(text, allowed_special="all" if args.special else frozenset())]
    pieces = [tokenizer.token_bytes[i].decode("utf-8", "backslashreplace") for i in ids]
    _print(args, {"ids": ids, "tokens": pieces, "bytes": len(text.encode())}, " ".join(map(str, ids)))


def tokenizer_decode(args):
    tokenizer = _tokenizer(args)
    ids = args.ids or _argument_or_stdin(None).split()
    try:
        ids = [int(i) for i in ids]
    except ValueError as error:
        raise NanoEulerError(f"token ids: {error}, expected whole numbers") from None
    for i in ids:
        if not 0 <= i < tokenizer.vocab_size:
            raise NanoEulerError(f"token id is {i}, expected 0 to {tokenizer.vocab_size - 1}")
    text = tokenizer.decode(ids)
    _print(args, {"text": text}, text)


def corpus_konigsberg(args):
    from nanoeuler_lib import world

    _not_negative(args, "seed")
    if args.bytes < 1:
        raise NanoEulerError(f"--bytes is {args.bytes}, expected at least 1")
    text = world.corpus(args.bytes, args.seed)
    if args.out is None:
        sys.stdout.write(text)
        return
    _refuse_existing(args.out)
    write_text(args.out, text)
    bits = world.floor(text)
    found = {
        "out": str(args.out),
        "bytes": len(text.encode()),
        "seed": args.seed,
        "floor_bits_per_byte": bits,
    }
    _print(
        args,
        found,
        f"{args.out}: {found['bytes']} bytes; the source itself needs {bits:.4f} bits per byte, on average the fewest",
    )


def train(args):
    from nanoeuler_lib import checkpoint, data
    from nanoeuler_lib import train as training
    from nanoeuler_lib.tokenizer import Tokenizer

    valid = data.read_text(args.valid) if args.valid else None
    if args.resume:
        _only_resume(args, [*TRAIN_OPTIONS, *MODEL_OPTIONS, "preset", "tokenizer", "run", "workers"])
        source = args.data or checkpoint.load(args.resume).info.get("source", "")
        training.resume(args.resume, data.read_text(source), valid, quiet=args.quiet)
        print(f"{args.resume}: done")
        return
    for option in ("data", "run"):
        if getattr(args, option) is None:
            raise NanoEulerError(
                f"--{option} is missing, expected --data FILE --run FOLDER, or --resume FOLDER"
            )
    text = data.read_text(args.data)
    tokenizer = Tokenizer.load(args.tokenizer) if args.tokenizer else None
    changes = _given(args, MODEL_OPTIONS)
    if tokenizer and "vocab_size" not in changes:
        changes["vocab_size"] = tokenizer.vocab_size
    model_config = preset(args.preset or "small", **changes)
    config = TrainConfig(**_given(args, TRAIN_OPTIONS))
    _check_workers(args)
    training.train(
        args.run, text, model_config, config, tokenizer, str(args.data), valid, args.quiet, args.workers
    )
    print(f"{args.run}: done; continue a prompt with: nanoeuler generate PROMPT --run {args.run}")


def report(args):
    from nanoeuler_lib.report import report

    page = report(args.run, args.out)
    _print(args, {"page": str(page)}, f"{page}: written, with loss.png and layers.png beside it")


def generate(args):
    from nanoeuler_lib.generate import stream

    model, tokenizer = _model(args)
    pieces = []
    options = _sampling(args) | {"propose": args.propose}
    for piece in stream(model, tokenizer, _utf8(args.prompt), args.tokens, **options):
        if not args.json:
            _say(piece if pieces else args.prompt + piece)
        pieces.append(piece)
    if not (pieces or args.json):
        print(args.prompt, end="")
    _print(args, {"prompt": args.prompt, "continuation": "".join(pieces)}, "")


def sft(args):
    from nanoeuler_lib import checkpoint
    from nanoeuler_lib import sft as tuning

    if args.resume:
        _only_resume(args, [*TRAIN_OPTIONS, "data", "examples", "data_seed", "base", "run", "workers"])
        found = checkpoint.load(args.resume)
        if "examples" not in found.info or found.train is None:
            raise NanoEulerError(f"{args.resume}: was not begun by nanoeuler sft, expected one of its runs")
        *examples, _ = tuning.examples_of(*found.info["examples"], found.train.valid_fraction)
        tuning.resume(args.resume, *examples, quiet=args.quiet)
        print(f"{args.resume}: done")
        return
    if args.run is None:
        raise NanoEulerError("--run is missing, expected --run FOLDER, or --resume FOLDER")
    config = TrainConfig(**SFT_DEFAULTS | _given(args, TRAIN_OPTIONS))
    _check_workers(args)
    _not_negative(args, "examples", "data_seed")
    data_seed = SFT_DATA_SEED if args.data_seed is None else args.data_seed
    source = (args.data or tuning.KONIGSBERG, args.examples or 0, data_seed)
    base = checkpoint.load(args.base or checkpoint.PRETRAINED / "konigsberg-small")
    info = {"source": source[0], "examples": source, "base": str(args.base or "konigsberg-small")}
    examples, held_out, template = tuning.examples_of(*source, config.valid_fraction)
    tuning.fine_tune(
        args.run, (base.model, base.tokenizer), examples, held_out, config, template, info, args.quiet,
        args.workers,
    )  # fmt: skip
    print(f"{args.run}: done; talk with it: nanoeuler chat --run {args.run}")


def chat(args):
    from nanoeuler_lib import checkpoint
    from nanoeuler_lib.chat import Chat, Loop

    options = _sampling(args)
    found = checkpoint.load(args.run or checkpoint.PRETRAINED / "konigsberg-chat")
    template = found.info.get("template", "plain")
    loop = Loop(Chat(found.model, found.tokenizer, template), _say, args.tokens, **options)
    interactive = sys.stdin.isatty()
    if interactive:
        with suppress(ImportError):  # not on Windows: there lines cannot be edited
            import readline  # noqa: F401  input() uses it: arrow keys, earlier lines
        print("Ask, or /story for a story to ask about, or /help. Ctrl-D ends, Ctrl-C stops a reply.")
    while True:
        try:
            line = _utf8(input("> " if interactive else ""))
        except EOFError:
            return
        except (NanoEulerError, UnicodeDecodeError) as error:  # a line that is not UTF-8 ends no conversation
            _say(f"{error}\n")
            continue
        except KeyboardInterrupt:
            _say("\n")
            if not interactive:
                raise
            continue
        if not loop.line(line):
            return


def _say(text):
    """Print a model's text: to a terminal without control codes, to a pipe as it is."""
    print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)


def check(args):
    from nanoeuler_lib import gradcheck, ops

    tables, good = {}, True
    with ops.use(args.ops):
        for std in (0.3, 0.02):
            rows = gradcheck.check_model(std=std)
            tables[std] = rows
            passed = all(row.ok for row in rows) if std == 0.3 else all(row.norm_rel <= 1e-6 for row in rows)
            good = good and passed
            if not args.json:
                print(
                    f"weights N(0, {std}); {gradcheck.DEFINITION if std == 0.3 else gradcheck.DEFINITION_NORM}"
                )
                print(gradcheck.table(rows, by_norm=std != 0.3))
                print(
                    f"worst: {max(r.norm_rel for r in rows):.1e} in norm, {'passed' if passed else 'FAILED'}\n"
                )
    if args.json:
        found = {str(std): [vars(row) for row in rows] for std, rows in tables.items()}
        print(
            json.dumps(
                {"definition": gradcheck.DEFINITION, "passed": good, "weights_std": found}, default=str
            )
        )
    return 0 if good else 1


def diagnose(args):
    from nanoeuler_lib.diagnose import TOOLS
    from nanoeuler_lib.diagnose import diagnose as examine

    found = {}
    for name, findings in examine(args.tool):
        found[name] = findings
        if not args.json:
            lines = [f"FOUND   {name}: {finding}" for finding in findings]
            print("\n".join(lines or [f"ok      {name}: {TOOLS[name][0].__doc__}"]), flush=True)
    good = not any(found.values())
    if args.json:
        print(json.dumps({"sound": good, "findings": found}, ensure_ascii=False))
    return 0 if good else 1


def break_(args):
    if not (Path(__file__).parent / "breaks.toml").exists():
        raise NanoEulerError("this is a broken copy, expected the installed command: nanoeuler break")
    from nanoeuler_lib import breaks

    chosen = [args.seed is not None, args.hand_in is not None, isinstance(args.reveal, Path)]
    if sum(chosen) != 1 or (args.out and (args.seed is None or args.reveal)):
        raise NanoEulerError(
            "expected --seed N [--out FOLDER], --hand-in FOLDER, --reveal FOLDER or --seed N --reveal"
        )
    if args.hand_in:
        right, text = breaks.hand_in(args.hand_in)
        print(text)
        return 0 if right else 1
    if args.reveal:
        seed, bug = (
            (args.seed, breaks.bug_of(args.seed)) if args.reveal is True else breaks.found_in(args.reveal)
        )
        print(f"seed {seed}: {breaks.reveal(bug)}", end="")
        return 0
    out = breaks.plant(args.seed, args.out)
    print(f"{out}: a copy of the package with one bug in it; begin with {out / 'README.md'}")
    return 0


def info(args):
    import numpy as np

    from nanoeuler_lib.model import parameter_shapes
    from nanoeuler_lib.plan import shapes

    if args.run:
        from nanoeuler_lib import checkpoint

        found = checkpoint.load(args.run)
        config = found.model.config
        facts = {"checkpoint": str(found.path), "step": found.step, **found.info}
        facts |= {"train": found.train.to_dict()} if found.train else {}
    else:
        config = preset(args.preset)
        facts = {"preset": args.preset}
    tensors = {name: list(shape) for name, shape in parameter_shapes(config).items()}
    size = sum(int(np.prod(shape)) for shape in tensors.values())
    layer, step, scratch = shapes(config, 1, config.context)
    buffers = config.layers * _count(layer) + _count(step) + _count(scratch)
    facts |= {
        "model": config.to_dict(),
        "parameters": size,
        "float32_bytes": 4 * size,
        "plan_bytes_one_row": 4 * buffers,
    }
    lines = [f"{key}: {value}" for key, value in facts.items()]
    lines += [f"  {name:<20} {'x'.join(map(str, shape))}" for name, shape in tensors.items()]
    _print(args, facts | {"tensors": tensors}, "\n".join(lines))


def _count(shapes):
    import math

    return sum(math.prod(shape) for shape in shapes.values())


MODEL_OPTIONS = ["dim", "heads", "kv_heads", "layers", "context", "vocab_size", "predict"]
TRAIN_OPTIONS = ["steps", "batch", "accumulate", "rate", "warmup", "decay", "clip", "later_heads", "seed"]
TRAIN_OPTIONS += ["valid_fraction", "valid_every", "sample_every", "save_every"]


def _given(args, names):
    """The options that stand on the command line."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _only_resume(args, names):
    if given := list(_given(args, names)):
        raise NanoEulerError(
            f"--resume takes its settings from the run, got also --{given[0].replace('_', '-')}"
        )


def _check_workers(args):
    if args.workers is not None and not 1 <= args.workers <= 4096:
        raise NanoEulerError(f"--workers is {args.workers}, expected 1 to 4096")


def _model(args):
    from nanoeuler_lib import checkpoint

    if args.run is None:
        return checkpoint.load_pretrained()
    found = checkpoint.load(args.run)
    return found.model, found.tokenizer


def _tokenizer(args):
    from nanoeuler_lib.checkpoint import load_pretrained
    from nanoeuler_lib.tokenizer import Tokenizer

    return Tokenizer.load(args.tokenizer) if args.tokenizer else load_pretrained()[1]


def _sampling(args):
    _not_negative(args, "tokens", "seed")
    return {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "min_p", "seed")}


def _not_negative(args, *names):
    for name in names:
        if (value := getattr(args, name)) is not None and value < 0:
            raise NanoEulerError(f"--{name.replace('_', '-')} is {value}, expected 0 or more")


def _argument_or_stdin(text):
    if text is not None:
        return _utf8(text)
    try:
        return _utf8(sys.stdin.read())
    except UnicodeDecodeError as error:
        raise NanoEulerError(
            f"standard input: byte {error.start} is not UTF-8, expected UTF-8 text"
        ) from None


def _utf8(text):
    """The text; refused if it holds bytes that were not UTF-8, which Python carries as half surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NanoEulerError(f"text: character {error.start} is not UTF-8, expected UTF-8 text") from None
    return text


def _refuse_existing(path):
    if Path(path).exists():
        raise NanoEulerError(f"{path}: exists already, expected a new file name")


def _print(args, facts, text):
    print(json.dumps(facts, ensure_ascii=False) if args.json else text)


def parser() -> argparse.ArgumentParser:
    """The argument parser of the `nanoeuler` command."""
    top = argparse.ArgumentParser(
        "nanoeuler", description="Build, train and run a small language model made by hand.",
        epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    top.add_argument("--version", action="version", version=f"nanoeuler {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(group, name, function, text, as_json=True):
        new = group.add_parser(name, help=text, description=text)
        new.set_defaults(function=function)
        if as_json:
            new.add_argument("--json", action="store_true", help="print one JSON object for a script to read")
        return new

    group = commands.add_parser("tokenizer", help="train and use a byte-level BPE tokenizer")
    group = group.add_subparsers(title="commands", required=True, metavar="COMMAND")
    new = command(group, "train", tokenizer_train, "learn merges from a UTF-8 text file")
    new.add_argument("--data", required=True, type=Path, help="UTF-8 text file")
    new.add_argument(
        "--vocab", type=int, default=512, help="vocabulary size, special tokens included (default 512)"
    )
    new.add_argument("--out", required=True, type=Path, help="JSON file to write; must not exist")
    new.add_argument(
        "--end-of-text", action="store_true", help="reserve <|endoftext|> even if the text has no such line"
    )
    new = command(group, "encode", tokenizer_encode, "text to token ids")
    new.add_argument("text", nargs="?", help="text (default: standard input)")
    new.add_argument(
        "--tokenizer", type=Path, help="tokenizer file (default: the one that comes with the package)"
    )
    new.add_argument(
        "--special", action="store_true", help="read <|endoftext|> in the text as the special token"
    )
    new = command(group, "decode", tokenizer_decode, "token ids to text")
    new.add_argument("ids", nargs="*", help="token ids (default: standard input)")
    new.add_argument(
        "--tokenizer", type=Path, help="tokenizer file (default: the one that comes with the package)"
    )

    group = commands.add_parser("corpus", help="make or fetch text to train on")
    group = group.add_subparsers(title="corpora", required=True, metavar="CORPUS")
    new = command(
        group, "konigsberg", corpus_konigsberg, "stories from the embedded world, any amount, from a seed"
    )
    new.add_argument("--bytes", type=int, default=4_000_000, help="about how many bytes (default 4000000)")
    new.add_argument(
        "--seed", type=int, default=0, help="seed (default 0); validation text wants another one"
    )
    new.add_argument("--out", type=Path, help="file to write; must not exist (default: standard output)")

    new = command(commands, "train", train, "train a model on a UTF-8 text file", as_json=False)
    new.add_argument(
        "--data", type=Path, help="UTF-8 text file (--resume: default the one the run began with)"
    )
    new.add_argument("--valid", type=Path, help="validation text (default: the last part of --data)")
    new.add_argument("--run", type=Path, help="new folder for log and checkpoints")
    new.add_argument(
        "--resume", type=Path, metavar="RUN", help="go on with this run from its latest checkpoint"
    )
    new.add_argument("--preset", help=f"model shape: {', '.join(PRESETS)} (default small)")
    new.add_argument("--tokenizer", type=Path, help="tokenizer file (default: trained on the training part)")
    new.add_argument("--workers", type=int, help="threads (default: one for each core)")
    new.add_argument("--quiet", action="store_true", help="no progress bar, no samples")
    shape = new.add_argument_group("model shape (default: the preset's)")
    meaning = dict(
        dim="width of the residual stream", heads="query heads", kv_heads="key/value heads", layers="blocks",
        context="longest sequence, in tokens", vocab_size="tokens of the vocabulary", predict="prediction heads",
    )  # fmt: skip
    for name in MODEL_OPTIONS:
        shape.add_argument(f"--{name.replace('_', '-')}", type=int, help=meaning[name])
    _add_training(new, {})

    new = command(commands, "sft", sft, "teach a base model to answer", as_json=False)
    new.add_argument(
        "--data", help="konigsberg (the default), or a file: Alpaca's or Dolly's JSON, or messages; .xz too"
    )
    new.add_argument(
        "--examples",
        type=int,
        help="how many stories (default 10000), or of the file's examples (default all)",
    )
    new.add_argument(
        "--data-seed", type=int, help=f"seed of the stories, or of the file's order (default {SFT_DATA_SEED})"
    )
    new.add_argument(
        "--base", type=Path, help="run or checkpoint to begin with (default: the model in the package)"
    )
    new.add_argument("--run", type=Path, help="new folder for log and checkpoints")
    new.add_argument(
        "--resume", type=Path, metavar="RUN", help="go on with this run from its latest checkpoint"
    )
    new.add_argument("--workers", type=int, help="threads (default: one for each core)")
    new.add_argument("--quiet", action="store_true", help="no progress bar, no samples")
    _add_training(new, SFT_DEFAULTS)

    new = command(commands, "report", report, "curves, throughput, samples and warnings of a run, as a page")
    new.add_argument("run", type=Path, help="run folder, finished or not")
    new.add_argument("--out", type=Path, help="folder to write to (default: RUN/report)")

    for name, function, text in (
        ("generate", generate, "continue a prompt"),
        ("chat", chat, "ask a model that was taught to answer"),
    ):
        new = command(commands, name, function, text, as_json=name == "generate")
        if name == "generate":
            new.add_argument(
                "prompt", nargs="?", default="", help="text to continue (default: start a new one)"
            )
            new.add_argument(
                "--propose", type=int, default=0, help="tokens that later heads propose a pass (default 0)"
            )
        new.add_argument(
            "--run", type=Path, help="run or checkpoint folder (default: the one in the package)"
        )
        new.add_argument("--tokens", type=int, default=200, help="at most this many tokens (default 200)")
        new.add_argument("--temperature", type=float, default=0.8, help="0 is greedy (default 0.8)")
        new.add_argument(
            "--top-k", type=int, default=0, help="only the k most likely tokens (default 0: all)"
        )
        new.add_argument(
            "--top-p", type=float, default=1.0, help="only tokens that together reach p (default 1)"
        )
        new.add_argument(
            "--min-p",
            type=float,
            default=0.0,
            help="only tokens this share as likely as the likeliest (default 0)",
        )
        new.add_argument("--seed", type=int, default=0, help="seed of the sampling (default 0)")

    new = command(commands, "check", check, "compare every gradient with difference quotients")
    new.add_argument("--ops", choices=["cpu", "plain"], default="cpu", help="which operations (default cpu)")
    new = command(
        commands, "diagnose", diagnose, "what is wrong with this package? the book's tools as a checklist"
    )
    new.add_argument(
        "--tool", nargs="+", metavar="NAME", help="only these (default: all, which prints their names)"
    )
    new = command(
        commands, "break", break_, "plant a bug in a copy of the package, to find it", as_json=False
    )
    new.add_argument("--seed", type=int, help="which bug: any whole number")
    new.add_argument("--out", type=Path, help="folder to make; must not exist (default: broken-SEED)")
    new.add_argument(
        "--hand-in",
        type=Path,
        metavar="FOLDER",
        help="run its test_found.py against the bug and against this package",
    )
    new.add_argument(
        "--reveal",
        nargs="?",
        const=True,
        type=Path,
        metavar="FOLDER",
        help="tell all about a folder's or a seed's bug",
    )
    new = command(commands, "info", info, "shapes, sizes and memory of a preset or a checkpoint")
    new.add_argument("--preset", default="small", help=f"{', '.join(PRESETS)} (default small)")
    new.add_argument("--run", type=Path, help="run or checkpoint folder")
    return top


def _add_training(command, defaults):
    group, defaults = command.add_argument_group("training"), TrainConfig().to_dict() | defaults
    for name in TRAIN_OPTIONS:
        kind = type(defaults[name])
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, help=f"default {defaults[name]:g}")


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns its exit code: 0, 1 (a check failed), 2 (bad input) or 130 (stopped by Ctrl-C)."""
    args = parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without ü gets a ? for it
        sys.stdout.reconfigure(errors="replace")
    try:
        return args.function(args) or 0
    except NanoEulerError as error:
        print(f"nanoeuler: {error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"nanoeuler: {error or 'not enough memory'}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `nanoeuler corpus ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
