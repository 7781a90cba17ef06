"""The `nanoeuler` command, with one function for each subcommand; `arguments` defines and explains the options."""

import io
import json
import math
import os
import signal
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from nanoeuler_lib.command import arguments
from nanoeuler_lib.command.arguments import CORPORA, FORMATS, REWARDS, SHAPE, TRAINING
from nanoeuler_lib.config import (
    CHANGEABLE,
    DPO_DATA_SEED,
    DPO_DEFAULTS,
    GRPO_DATA_SEED,
    GRPO_DEFAULTS,
    SFT_DATA_SEED,
    SFT_DEFAULTS,
    RewardConfig,
    TrainConfig,
    preset,
)
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import Voice, expect_new, one_line, printable, to_json, write_text


def tokenizer_train(args):
    from nanoeuler_lib.text.data import count_file_words
    from nanoeuler_lib.text.tokenizer import Tokenizer, find_merges, merges_for

    expect_new(args.out)
    merges_for(args.vocab, ())  # raise an error for an impossible size before reading the text
    if not args.json:
        size = sum(os.path.getsize(file) for file in args.data if file.is_file()) / 1e6
        packed = any(file.suffix in (".xz", ".gz", ".parquet") for file in args.data)
        memory = "1.3 times the unpacked text" if packed else f"{70 + 1.3 * size:,.0f} MB"
        print(f"{size:,.1f} MB to read; expected memory: up to {memory}", flush=True)
    words, special = count_file_words(*args.data, end_of_text=args.end_of_text)
    tokenizer = Tokenizer(find_merges(words, merges_for(args.vocab, special)), special)
    tokenizer.save(args.out)
    facts = {"vocab_size": tokenizer.vocab_size, "merges": len(tokenizer.merges), "out": str(args.out)}
    fewer = ": the text has no more pairs to merge" if tokenizer.vocab_size < args.vocab else ""
    _print(args, facts, f"{args.out}: {facts['vocab_size']} tokens, {facts['merges']} of them merges{fewer}")


def tokenizer_encode(args):
    tokenizer = _tokenizer(args)
    text = _utf8(args.text) if args.text is not None else _stdin_text()
    ids = [int(i) for i in tokenizer.encode(text, allowed_special="all" if args.special else frozenset())]
    pieces = [tokenizer.token_bytes[i].decode(errors="backslashreplace") for i in ids]
    _print(args, {"ids": ids, "tokens": pieces, "bytes": len(text.encode())}, " ".join(map(str, ids)))


def tokenizer_decode(args):
    tokenizer = _tokenizer(args)
    ids = []
    for word in args.ids or _stdin_text().split():
        try:
            ids.append(int(word))
        except ValueError:
            raise NanoEulerError(f"token id must be an integer, got {short(word)}") from None
        if not 0 <= ids[-1] < tokenizer.vocab_size:
            raise NanoEulerError(f"token id must be 0 to {tokenizer.vocab_size - 1}, got {short(ids[-1])}")
    if args.json:
        _print(args, {"text": tokenizer.decode(ids)})
    elif sys.stdout.isatty():
        print(printable(tokenizer.decode(ids)))
    else:  # exactly the bytes that were encoded
        _write_bytes(tokenizer.decode_bytes(ids))


def corpus_konigsberg(args):
    import konigsberg

    _not_negative(args, "seed")
    if args.bytes < 1:
        raise NanoEulerError(f"--bytes must be at least 1, got {args.bytes}")
    if args.out is None:
        sys.stdout.write(konigsberg.corpus(args.bytes, args.seed) + "\n" * sys.stdout.isatty())
        return
    expect_new(args.out)
    text = konigsberg.corpus(args.bytes, args.seed)
    write_text(args.out, text)
    if not args.json:
        print(f"{args.out}: {len(text.encode())} bytes", flush=True)
    bits = konigsberg.floor(_progress(text.split(konigsberg.SEPARATOR), "measuring the floor", "stories"))
    facts = {"out": str(args.out), "bytes": len(text.encode()), "seed": args.seed, "floor_bits_per_byte": bits}
    _print(args, facts, f"floor: {bits:.4f} bits per byte under the source itself; on average, no model can be better")


def corpus_fetched(args):
    from nanoeuler_lib.corpus import make

    _not_negative(args, "seed")
    shown = lambda documents: _progress(documents, f"reading {args.corpus}", "documents")
    report = make(
        args.corpus, args.out, args.downloads, args.have, args.bytes, args.seed, args.valid_fraction, args.skip,
        follow=shown,
    )  # fmt: skip
    lines = [
        f"{args.out / name}: {part['documents']:,} documents, {part['bytes']:,} bytes"
        for name, part in report["parts"].items()
    ]
    lines += [f"dropped: {count:,}, {why}" for why, count in report["dropped"].items()]
    lines += [f"skipped: {name}" for name in report["skipped"]]
    lines += [f"note: {note}" for note in report["notes"]]
    lines += [f"documents with reasons: {args.out / 'documents.jsonl'}; files and hashes: {args.out / 'report.json'}"]
    lines += [f"licence: {report['licence']}"]
    train, *valid = (args.out / name for name in report["parts"])
    if train.suffix == ".jsonl":
        lines += [f"fine-tune a model on it: nanoeuler sft --data {train} --run RUN"]
    else:
        held_out = f" --valid {valid[0]}" if valid else ""
        lines += [f"train on it: nanoeuler train --data {train}{held_out} --run RUN"]
    _print(args, {"out": str(args.out)} | report, "\n".join(lines))


def shards(args):
    from nanoeuler_lib.text import data, shards
    from nanoeuler_lib.text.tokenizer import Tokenizer

    _check_workers(args)
    began = time.perf_counter()
    texts = [file for path in args.texts for file in data.files_of(path)]
    folder = shards.write(args.out, texts, Tokenizer.load(args.tokenizer), args.workers, quiet=args.json)
    seconds = time.perf_counter() - began
    facts = {name: getattr(folder, name) for name in ("tokens", "documents", "bytes")}
    line = f"{args.out}: {folder.tokens:,} tokens of {folder.documents:,} documents in {len(folder.shards)} shards"
    line += f"; {folder.bytes:,} bytes, {folder.bytes / seconds / 1e6:.1f} MB/s"
    _print(args, {"out": str(args.out)} | facts, line)


def train(args):
    return _on_cards(args, "train", lambda group: _train_here(args, group))


def _on_cards(args, command, work):
    """Do a command's work in this process, or start the processes of --gpus, or work as one of them."""
    from nanoeuler_lib.command import cards
    from nanoeuler_lib.engine.data_parallel import tried

    if cards.needs_launcher(args.cards):
        return cards.launch(args.cards, [command, *args.parser.words])
    group = cards.group(args.cards)
    return work(None) if group is None else tried(group, lambda: work(group))


def _train_here(args, group):
    began = time.perf_counter()
    _not_negative(args, "profile")
    if args.resume:
        if args.base:
            raise NanoEulerError(
                "--resume and --from must not be combined: --resume continues a run on its own text, --from begins a "
                "new run with another run's model"
            )
        _resume(args, "train", [*SHAPE, "preset", "tokenizer", "precision"], group)
    else:
        _begin_training(args, group)
    if group is None or group.rank == 0:
        _came_out(args.resume or args.run, began, "continue a prompt: nanoeuler generate PROMPT --run")


def _resume(args, command, fixed, group=None):
    """Resume a run of `train`, `sft`, `dpo` or `grpo`. fixed: options that must not be given, because they are kept."""
    from nanoeuler_lib.command import sources
    from nanoeuler_lib.training import loop

    _only_resume(args, fixed)
    files, head = _files_of(args.resume, args, command)
    config, kind = TrainConfig.from_dict(head["train"]), TAUGHT.get(command)
    if kind:
        _, *numbers = head["info"][kind]
        data = getattr(sources, kind)(files[kind], *numbers, config.valid_fraction)[:2]
    else:
        data = _read_data(files)
    context = head["model"].get("context")
    changes = {name: _in_steps(value, config, context) for name, value in _given(args, CHANGEABLE).items()}
    options = dict(quiet=args.quiet, files=files, device=args.device, profile=getattr(args, "profile", 0), group=group)
    loop.resume(args.resume, *data, verifiers=_verifiers(args, head), **options, **changes)


def _verifiers(args, head):
    """Return the verifiers for a resumed run; a run's header never decides which module of the user's is imported."""
    from nanoeuler_lib.command import sources

    given, rewards = getattr(args, "reward", None), head["info"].get("rewards")
    if isinstance(rewards, dict) and given != (own := rewards.get("reward")):
        if given:
            raise NanoEulerError(f"--reward must be the reward of the run, {short(own)}, got {short(given)}")
        if ":" in str(own):
            raise NanoEulerError(f"--reward {one_line(own, 60)} must be given again with --resume: it is your function")
    return sources.verifiers(given)


def _begin_training(args, group):
    from nanoeuler_lib.command import sources
    from nanoeuler_lib.engine.device import choose
    from nanoeuler_lib.text.shards import Shards
    from nanoeuler_lib.training import run_folder
    from nanoeuler_lib.training import train as training

    for option in ("data", "run"):
        if getattr(args, option) is None:
            begun = f"--from {args.base} " if args.base else ""
            raise NanoEulerError(f"--{option} is required: give {begun}--data FILE --run FOLDER, or --resume FOLDER")
    run_folder.expect_new(args.run)
    given = {**_numbered("text", args.data), **_numbered("valid", args.valid)}
    files = {name: path and os.path.abspath(path) for name, path in given.items()}
    data, valid = _read_data(given)
    model_config, tokenizer, base = _model_to_train(args, data.tokenizer if isinstance(data, Shards) else None)
    batching = TrainConfig(**_given(args, ["batch", "accumulate"]))
    settings = _given(args, TRAINING).items()
    config = TrainConfig(**{n: _in_steps(value, batching, model_config.context) for n, value in settings})
    _check_workers(args)
    device = choose(args.device or ("cpu" if group is None else "auto"), args.precision, model_config, group)
    options = dict(
        quiet=args.quiet, workers=args.workers, files=files, device=device, profile=args.profile, base=base,
        floor=sources.floor, settings=arguments.to_toml(args, config, *(() if base else (model_config,))),
    )  # fmt: skip
    if isinstance(data, Shards):
        training.pretrain(args.run, data, valid, model_config, config, **options)
    else:
        source = " ".join(map(str, args.data))
        training.train(args.run, data, model_config, config, tokenizer, source, valid, **options)


def replay(args):
    first, _, last = args.steps.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise NanoEulerError(f"--steps must be two steps, the lower one first, as in 40:50, got {short(args.steps)}")
    return _on_cards(args, "replay", lambda group: _replay_here(args, int(first), int(last), group))


def _replay_here(args, first, last, group):
    from nanoeuler_lib.training.replay import replay

    files, _ = _files_of(args.run, args, "train")
    start, rows = replay(args.run, *_read_data(files), first, last, args.device, group)
    good = all(not row["differs"] for row in rows)
    if group is None or group.rank == 0:
        lines = [f"step {row['step']}: {', '.join(row['differs'])}" for row in rows if row["differs"]]
        hashes = sum("hash" in row for row in rows)
        what = f"{len(rows)} steps from the checkpoint of step {start}, losses, norms and {hashes} hashes of weights"
        lines += [f"{args.run}: {what}: {'same as in the log' if good else 'NOT the same as in the log'}"]
        _print(args, {"from": start, "same": good, "steps": rows}, "\n".join(lines))
    return 0 if good else 1


def _model_to_train(args, of_shards):
    """Return a model's shape, its tokenizer (None: train one) and its initial checkpoint (None: a new model)."""
    from nanoeuler_lib.text.tokenizer import Tokenizer
    from nanoeuler_lib.training import checkpoint

    changes = _given(args, SHAPE)
    if args.base:
        if given := [*_given(args, ["preset", "tokenizer"]), *changes]:
            option = given[0].replace("_", "-")
            raise NanoEulerError(
                f"--{option} must not be given with --from, which takes shape and tokenizer from {args.base}"
            )
        base = checkpoint.load(args.base)
        if of_shards and of_shards.__reduce__() != base.tokenizer.__reduce__():
            raise NanoEulerError(
                f"--data must be shards with the tokenizer of {base.path}, got {args.data[0]}: make them with "
                f"--tokenizer {base.path / 'tokenizer.json'}"
            )
        return base.model.config, base.tokenizer, base
    if args.tokenizer and of_shards:
        raise NanoEulerError(f"--tokenizer must not be given with shards, because {args.data[0]} has a tokenizer")
    tokenizer = of_shards or (Tokenizer.load(args.tokenizer) if args.tokenizer else None)
    if tokenizer and "vocab_size" not in changes:
        changes["vocab_size"] = tokenizer.vocab_size
    return preset(args.preset or "small", **changes), tokenizer, None


def _read_data(files):
    """Read training and validation data: texts and a text, or shards and a list; None: to be held out."""
    from nanoeuler_lib.text.data import files_of, read_text
    from nanoeuler_lib.text.shards import Shards

    valid = [path for name, path in files.items() if name.startswith("valid") and path]
    texts = [path for name, path in files.items() if name.startswith("text")]
    if folders := [path for path in texts if os.path.exists(os.path.join(path, "shards.json"))]:
        if len(texts) > 1:
            raise NanoEulerError(
                f"--data must name only one folder if it has shards, got {len(texts)}, among them {folders[0]}"
            )
        return Shards(folders[0]), [Shards(path) for path in valid] or None
    if len(valid) > 1:
        raise NanoEulerError(f"--valid must be given at most once, except for shards, got {len(valid)} texts")
    parts = tuple(read_text(file) for path in texts for file in files_of(path))
    return parts, read_text(valid[0]) if valid else None


def _numbered(name, paths):
    """Return paths by their names in a run's header: valid, valid_2, ..."""
    names = [name, *(f"{name}_{number}" for number in range(2, len(paths or ()) + 1))]
    return dict(zip(names, paths or [None], strict=True))


def _in_steps(value, config, context):
    """Return a setting, converted to steps (rounded up) if it was given in tokens. config: has the rows per step."""
    if not isinstance(value, arguments.Tokens):
        return value
    return -(-value // (config.batch * config.accumulate * context))


def report(args):
    with _drawing():
        from nanoeuler_lib.training.report import report, write_csv

        if args.csv:
            if args.out:
                raise NanoEulerError("--csv must not be combined with --out, because it writes no page")
            rows = write_csv(args.run, args.csv)
            _print(args, {"csv": str(args.csv), "rows": rows}, f"{args.csv}: {rows:,} rows, one per step")
            return
        page = report(args.run, args.out)
    beside = ", with loss.png and layers.png next to it" if (page.parent / "loss.png").exists() else ""
    _print(args, {"page": str(page)}, f"{page}: written{beside}")


def compare(args):
    with _drawing():
        from nanoeuler_lib.training.compare import compare, rows_of

        runs = compare(args.runs, args.out)
    settings = rows_of([run.settings for run in runs], differing=True)
    lines = [f"{run.name}: {'; '.join(f'{name} {text}' for name, text in run.results.items())}" for run in runs]
    lines += [f"settings that differ: {', '.join(settings) or 'none'}", f"{args.out}: written"]
    facts = {"page": str(args.out), "runs": [{"run": run.name} | run.results for run in runs], "settings": settings}
    _print(args, facts, "\n".join(lines))


@contextmanager
def _drawing():
    """Have Matplotlib write to files in the block; it reads MPLBACKEND when it is imported."""
    asked = os.environ.get("MPLBACKEND")  # inherited from a notebook, it may name a backend that is not installed
    os.environ["MPLBACKEND"] = "agg"
    try:
        yield
    finally:
        os.environ.pop("MPLBACKEND")
        os.environ |= {} if asked is None else {"MPLBACKEND": asked}


def generate(args):
    from nanoeuler_lib.generation.generate import stream, unread
    from nanoeuler_lib.text.data import SEPARATOR

    if not 1 <= args.samples <= 1_000_000:
        raise NanoEulerError(f"--samples must be 1 to 1000000, got {args.samples}")
    options, prompt, checkpoint = _sampling(args), _prompt(args), _checkpoint(args)
    options |= {name: getattr(args, name) for name in ("propose", "repetition_penalty")}
    options["stop"] = [_utf8(text) for text in args.stop]
    if cut := unread(checkpoint.model, checkpoint.tokenizer, prompt):
        read = f"the model reads at most {checkpoint.model.config.context} tokens"
        Voice(sys.stderr).line(f"the first {cut:,} tokens of the prompt are left out, because {read}")
    samples = []
    for seed in range(options.pop("seed"), args.seed + args.samples):
        pieces = []
        for piece in stream(checkpoint.model, checkpoint.tokenizer, prompt, args.tokens, seed=seed, **options):
            if not args.json:
                _say(piece if pieces else SEPARATOR * bool(samples) + prompt + piece)
            pieces.append(piece)
        if not (pieces or args.json):
            _say(SEPARATOR * bool(samples) + prompt)
        samples.append("".join(pieces))
    several = {"continuations": samples} if args.samples > 1 else {}
    _print(args, {"prompt": prompt, "continuation": samples[0]} | several)


def _prompt(args):
    from nanoeuler_lib.text.data import read_blocks

    if args.prompt_file is None:
        return _utf8(args.prompt)
    if args.prompt:
        raise NanoEulerError("--prompt-file must not be combined with a prompt")
    text = _stdin_text() if args.prompt_file == "-" else "".join(read_blocks(args.prompt_file))
    return text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")


def score(args):
    from nanoeuler_lib.generation import score
    from nanoeuler_lib.text.data import read_text

    if args.out:
        expect_new(args.out)
    text, checkpoint = read_text(args.text), _checkpoint(args)
    shown = lambda batches: _progress(batches, f"scoring {args.text}", "batches")
    scored = score.score(checkpoint.model, checkpoint.tokenizer, text, follow=shown)
    line = (
        f"{scored.bits_per_byte:.4f} bits per byte, {scored.bits_per_token:.4f} bits per token: "
        f"{scored.bytes:,} bytes, {len(scored.ids):,} tokens, {scored.documents:,} document"
        f"{'s' * (scored.documents != 1)}"
    )
    facts = {name: getattr(scored, name) for name in ("bits_per_byte", "bits_per_token", "bytes", "documents")}
    facts |= {"text": str(args.text), "run": str(checkpoint.path), "tokens": len(scored.ids)}
    if args.out:
        write_text(args.out, score.page(scored, checkpoint.tokenizer, args.text.name, f"{line}; {checkpoint.path}"))
        facts["page"] = str(args.out)
    shown = f"\n{args.out}: written, with high-loss tokens marked" if args.out else ""
    _print(args, facts, f"{args.text}: {line}{shown}")


def answers(args):
    from nanoeuler_book.interpretability import answers
    from nanoeuler_book.interpretability.posteriors import FACTS, belief
    from nanoeuler_lib.training.checkpoint import load

    expect_new(args.out, parents=True)
    _not_negative(args, "seed")
    found = load(_folder(args, "konigsberg-small"))
    holder = lambda text: belief(text, found.tokenizer, FACTS["holder"]).beliefs
    key = answers.make(found.model, found.tokenizer, args.pairs, args.seed, args.told, holder)
    rows = answers.rows(key)
    about = {"pairs": args.pairs, "told": args.told, "seed": args.seed, "run": str(found.path), "rows": rows}
    answers.save(key, args.out, found.tokenizer, about)
    lines = [f"{'method':22} depth  bits per position  gap closed  p(new name)  p(old name)"]
    lines += ["{method:22} {depth:5}  {bits:17.3f}  {closed:10.2f}  {new:11.2f}  {old:11.2f}".format(**r) for r in rows]
    lines += [f"the unedited model: {rows[0]['unedited']:.3f} on the story, {rows[0]['best']:.3f} on its twin"]
    lines += [f"{args.out}: {args.pairs} pairs to learn from, {args.pairs} pairs to score"]
    _print(args, {"out": str(args.out)} | about, "\n".join(lines))


def export(args):
    from nanoeuler_lib import formats

    left = formats.export(args.run, args.to, args.out, args.dtype)
    lines = [f"{args.out}: written for {FORMATS[args.to]}", *(f"left out: {what}" for what in left)]
    _print(args, {"out": str(args.out), "to": args.to, "left": left}, "\n".join(lines))


def release(args):
    with _drawing():
        from nanoeuler_lib.formats.release import release

        blank = release(args.run, args.out, args.to or (), args.corpus or ())
    lines = [f"{args.out}: files for publishing {args.run}; check them: python {args.out / 'check.py'}"]
    lines += [f"fill in: {args.out / line}" for line in blank]
    _print(args, {"out": str(args.out), "blank": blank}, "\n".join(lines))


def import_(args):
    from nanoeuler_lib import formats

    model = formats.import_run(args.path, args.run, args.tokenizer).model
    facts = {"run": str(args.run), "parameters": model.size, "model": model.config.to_dict()}
    line = f"{args.run}: {model.size:,} parameters; continue a prompt: nanoeuler generate PROMPT --run {args.run}"
    _print(args, facts, line)


# command -> the name under which the header of its runs has the source, number and seed of the data
TAUGHT = {"sft": "examples", "dpo": "pairs", "grpo": "questions"}
DPO_LOSS = ["beta", "label_noise", "robust"]


def sft(args):
    _teach(args, "sft", ["last_turn"], _begin_sft)


def _begin_sft(args):
    from nanoeuler_lib.command import sources
    from nanoeuler_lib.engine.device import choose
    from nanoeuler_lib.training import sft as tuning

    if args.last_turn and (args.data or sources.KONIGSBERG) in sources.NAMES:
        raise NanoEulerError(
            "--last-turn needs --data FILE with your own dialogues, because in the generated ones the story is in the "
            "first turn"
        )
    config, base, source, info, options = _to_teach(args, "examples", SFT_DEFAULTS, SFT_DATA_SEED, "konigsberg-small")
    info |= {} if source[0] in sources.NAMES else {"turns": "last" if args.last_turn else "windows"}
    device = choose(args.device or "cpu", args.precision, base.model.config)
    examples, held_out, template = sources.examples(*source, config.valid_fraction)
    model = base.model, base.tokenizer
    tuning.fine_tune(args.run, model, examples, held_out, config, template, info, device=device, **options)


def dpo(args):
    _on_the_cpu(args, "dpo")
    _teach(args, "dpo", DPO_LOSS, _begin_dpo)


def _begin_dpo(args):
    from nanoeuler_lib.command import sources
    from nanoeuler_lib.training import train as training

    config, base, source, info, options = _to_teach(args, "pairs", DPO_DEFAULTS, DPO_DATA_SEED, "konigsberg-chat")
    pairs = sources.pairs(*source, config.valid_fraction)
    options |= _given(args, DPO_LOSS) | dict(template=base.info.get("template", "plain"), info=info)
    training.prefer(args.run, (base.model, base.tokenizer), *pairs, config, **options)


def grpo(args):
    _on_the_cpu(args, "grpo")
    _teach(args, "grpo", [name for name in REWARDS if name != "reward"], _begin_grpo)


def _begin_grpo(args):
    from nanoeuler_lib.command import sources
    from nanoeuler_lib.training import train as training

    learning, args.data = RewardConfig(**_given(args, REWARDS)), sources.ROUTES
    verifiers = sources.verifiers(learning.reward)
    config, base, source, info, options = _to_teach(args, "questions", GRPO_DEFAULTS, GRPO_DATA_SEED, None, learning)
    model, problems = (base.model, base.tokenizer), sources.questions(*source)
    training.reinforce(args.run, model, *problems, learning, config, info, verifiers=verifiers, **options)


def _teach(args, command, fixed, begin):
    """Begin or resume a run of `sft`, `dpo` or `grpo`. fixed: options that must not be given with --resume."""
    began = time.perf_counter()
    if args.resume:
        _resume(args, command, [TAUGHT[command], "data_seed", "base", "precision", *fixed])
    else:
        begin(args)
    _came_out(args.resume or args.run, began, "chat with it: nanoeuler chat --run")


def _on_the_cpu(args, command):
    """Raise NanoEulerError if --device or --precision asks for a GPU."""
    from nanoeuler_lib.engine.device import choose

    if args.device not in (None, "auto", "cpu"):
        raise NanoEulerError(f"--device must be cpu for {command}, got {short(args.device)}")
    args.device = "cpu"
    if not args.resume:
        choose("cpu", args.precision)  # raises for a precision that only a GPU has


def _to_teach(args, what, defaults, data_seed, base=None, *configs):
    """Return the settings, the initial checkpoint, the source of the data, the header's info and options of a new run.

    configs: further settings, to be recorded.
    """
    from nanoeuler_lib.command import sources
    from nanoeuler_lib.training import checkpoint, run_folder

    if args.run is None:
        raise NanoEulerError("--run is required: give --run FOLDER, or --resume FOLDER")
    run_folder.expect_new(args.run)
    config = TrainConfig(**defaults | _given(args, TRAINING))
    _check_workers(args)
    for name in (what, "data_seed"):
        if (value := getattr(args, name)) is not None and not 0 <= value < 2**53:
            raise NanoEulerError(f"--{name.replace('_', '-')} must be 0 to 2^53 - 1, got {value}")
    if not (args.base or base):
        raise NanoEulerError(
            "--base is required: give a run trained on routes (nanoeuler sft --data konigsberg-routes --run RUN)"
        )
    name, seed = args.data or sources.KONIGSBERG, data_seed if args.data_seed is None else args.data_seed
    source = name, getattr(args, what) or 0, seed
    file = name if name in sources.NAMES else os.path.abspath(name)
    info = {"source": name, what: source, "base": str(args.base or base), "files": {what: file}}
    settings = arguments.to_toml(args, config, *configs, data=file, data_seed=seed)
    options = dict(quiet=args.quiet, workers=args.workers, settings=settings)
    return config, checkpoint.load(args.base or checkpoint.PRETRAINED / base), source, info, options


def _files_of(run, args, command):
    """Return the paths of the data files of a run of this command, and the header of its latest checkpoint."""
    from nanoeuler_lib.command import sources
    from nanoeuler_lib.training import checkpoint, run_data

    head, kind = checkpoint.read_head(run), TAUGHT.get(command)
    info = head["info"]
    if head["train"] is None or run_data.kind_of(info) != kind or (kind and kind not in info):
        raise NanoEulerError(f"{run}: must be a run of nanoeuler {command}, got a different kind of run")
    data = getattr(args, "data", None)
    given = {"data": [data] if kind and data else data, "valid": getattr(args, "valid", None)}
    return run_data.files_of(info, given, sources.NAMES), head


def _came_out(run, began, what):
    """Print the results of a training run, and commands to look at it. It is not an error if nobody reads them."""
    from nanoeuler_lib.training import checkpoint
    from nanoeuler_lib.training.journal import duration
    from nanoeuler_lib.training.monitor import MEASURES, measured, percent
    from nanoeuler_lib.training.run_folder import read_log

    head, out = checkpoint.read_head(run), Voice(sys.stdout)
    try:
        log = read_log(run)
    except NanoEulerError as error:  # the run is usable without its log
        log = []
        out.line(f"warning: {error}")
    warnings = sum("warning" in entry for entry in log)
    warned = f", {warnings} {'warning' if warnings == 1 else 'warnings'}" if warnings else ""
    measure, spent = measured(head["info"]), duration(time.perf_counter() - began)
    validation = f"; validation loss {head['info'][measure]:.4f} {MEASURES[measure]}" if measure else ""
    validation += "".join(f", {name} {part:.4f}" for name, part in head["info"].get("valid_sets", {}).items())
    if seen := [entry["seen"] for entry in log if "seen" in entry]:
        units = {"examples": "replies", "pairs": "pairs", "questions": "questions"}
        unit = next((unit for what, unit in units.items() if what in head["info"]), "text")
        validation += f"; {percent(seen[-1])} of the training {unit} {'was' if unit == 'text' else 'were'} used"
    out.line(f"{run}: done, {head['step']:,} steps, {spent} this time{validation}{warned}")
    best = Path(run) / "checkpoints" / checkpoint.BEST
    if best.is_dir() and (step := checkpoint.read_head(best)["step"]) != head["step"]:
        out.line(f"the checkpoint with the lowest validation loss is that of step {step:,}: {best}")
    out.line(f"look at it: nanoeuler report {run}")
    out.line(f"{what} {run}")


def chat(args):
    from nanoeuler_lib.command.ask import Loop
    from nanoeuler_lib.command.sources import NAMES
    from nanoeuler_lib.generation.chat import Chat

    options = _sampling(args)
    checkpoint = _checkpoint(args, "konigsberg-chat")
    template = checkpoint.info.get("template", "plain")
    stories = checkpoint.info.get("source") in NAMES
    conversation = Chat(checkpoint.model, checkpoint.tokenizer, template)
    loop = Loop(conversation, _say, args.tokens, stories=stories, **options)
    interactive = sys.stdin.isatty()
    if interactive:
        with suppress(ImportError):  # Windows has no readline, so lines cannot be edited there
            import readline  # noqa: F401  makes the arrow keys work in input()
        if stories:
            print("This model knows stories from Königsberg and a few questions about each, and nothing else.")
        print("Ask, or /story for a story and its questions, or /help. Ctrl-D ends, Ctrl-C stops a reply.")
    while True:
        try:
            line = _utf8(input("> " if interactive else ""))
        except EOFError:
            return
        except (NanoEulerError, UnicodeDecodeError) as error:  # a line that is not UTF-8 must not end the chat
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
    """Print a model's text, without control characters if the output is a terminal."""
    print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)


def check(args):
    from nanoeuler_lib import ops
    from nanoeuler_lib.engine.device import CPU, choose
    from nanoeuler_lib.model import gradcheck

    device = choose(args.device or "cpu", args.precision)
    if device != CPU:
        return _check_engine(args, device)
    tables, good = {}, True
    with ops.use(args.ops):
        for std, definition in ((0.3, gradcheck.DEFINITION), (0.02, gradcheck.DEFINITION_NORM)):
            rows, by_norm = gradcheck.check_model(std=std), std != 0.3
            passed = all(row.norm_rel <= 1e-6 if by_norm else row.ok for row in rows)
            tables[str(std)], good = [vars(row) for row in rows], good and passed
            if not args.json:
                print(f"weights N(0, {std}); {definition}\n{gradcheck.table(rows, by_norm)}")
                print(f"worst: {max(r.norm_rel for r in rows):.1e} in norm, {'passed' if passed else 'FAILED'}\n")
    if args.json:
        print(json.dumps({"definition": gradcheck.DEFINITION, "passed": good, "weights_std": tables}, default=str))
    return 0 if good else 1


def _check_engine(args, device):
    from nanoeuler_lib.model import gradcheck

    rows, definition = gradcheck.check_engine(device.place, device.precision), gradcheck.DEFINITION_ENGINE
    good = all(row.norm_rel <= allowed for row, _, allowed in rows)
    tensors = [dict(tensor=row.name, error=row.norm_rel, float32=float32, allowed=a) for row, float32, a in rows]
    facts = {"definition": definition, "device": str(device), "passed": good, "tensors": tensors}
    text = f"{device}; {definition}\n{gradcheck.engine_table(rows)}\n{'passed' if good else 'FAILED'}"
    _print(args, facts, text)
    return 0 if good else 1


def diagnose(args):
    from nanoeuler_book.drills.diagnose import TOOLS
    from nanoeuler_book.drills.diagnose import diagnose as examine

    by_tool = {}
    for name, findings in examine(args.tool):
        by_tool[name] = findings
        if not args.json:
            lines = [f"FOUND   {name}: {finding}" for finding in findings]
            print("\n".join(lines or [f"ok      {name}: {TOOLS[name][0].__doc__}"]), flush=True)
    good = not any(by_tool.values())
    if args.json:
        print(to_json({"sound": good, "findings": by_tool}))
    return 0 if good else 1


def break_(args):
    try:
        from nanoeuler_book.drills import breaks
    except ImportError:  # copies with a planted bug do not contain this module
        raise NanoEulerError("nanoeuler break must be run from the installed package, not from a broken copy") from None

    chosen = [args.seed is not None, args.hand_in is not None, isinstance(args.reveal, Path)]
    if sum(chosen) != 1 or (args.out and (args.seed is None or args.reveal)):
        raise NanoEulerError(
            "give one of --seed N [--out FOLDER], --hand-in FOLDER, --reveal FOLDER, or --seed N --reveal"
        )
    if args.hand_in:
        right, text = breaks.hand_in(args.hand_in)
        print(text)
        return 0 if right else 1
    if args.reveal:
        seed, bug = (args.seed, breaks.bug_of(args.seed)) if args.reveal is True else breaks.found_in(args.reveal)
        print(f"seed {seed}: {breaks.reveal(bug)}", end="")
        return 0
    out = breaks.plant(args.seed, args.out)
    print(f"{out}: a copy of the package with one bug; begin with {out / 'README.md'}")
    return 0


def lab(args):
    from nanoeuler_book import notebooks

    return notebooks.lab(args.folder)


def test(args):
    from nanoeuler_book import notebooks

    return notebooks.test(args.chapters, args.folder)


def progress(args):
    from nanoeuler_book import notebooks

    rows = notebooks.progress(notebooks.find(args.folder, own=True))
    shown = [row for row in rows if row.state != "not begun"]
    table = [("chapter", "gaps", "exercises")]
    table += [(row.name, *(f"{right}/{number}" for right, number in (row.gaps, row.exercises))) for row in shown]
    lines = [f"{name:25}{gaps:>6}{exercises:>11}" for name, gaps, exercises in table] if shown else []
    left = next((row for row in rows if row.state != "done"), None)
    lines.append(f"next: {left.name} ({left.state})" if left else "all chapters are done")
    facts = {row.name: {"gaps": row.gaps, "exercises": row.exercises} for row in rows}
    _print(args, {"chapters": facts, "next": left and left.name}, "\n".join(lines))


def assign(args):
    clones = Path(__file__).parents[2], Path.cwd(), *Path.cwd().parents
    clone = next((folder for folder in clones if (folder / "tools/course/papers").is_dir()), None)
    if clone is None:
        raise NanoEulerError(
            "nanoeuler assign must be run in a clone of the book's repository, got a folder without one"
        )
    if str(clone) not in sys.path:
        sys.path.insert(0, str(clone))
    from tools.course.papers import command

    _print(args, *command.assign(args, _stdin_text))


def info(args):
    from nanoeuler_lib.model import parameter_shapes
    from nanoeuler_lib.model.plan import shapes

    if args.run and args.also:
        raise NanoEulerError(f"info takes only one run, got {args.run} and --run {args.also}")
    if run := args.run or args.also:
        from nanoeuler_lib.training.checkpoint import load

        checkpoint = load(run)
        config = checkpoint.model.config
        facts = {"checkpoint": str(checkpoint.path), "step": checkpoint.step, **checkpoint.info}
        facts |= {"train": checkpoint.train.to_dict()} if checkpoint.train else {}
    else:
        config = preset(args.preset)
        facts = {"preset": args.preset}
    tensors = {name: list(shape) for name, shape in parameter_shapes(config).items()}
    layer, step, scratch = shapes(config, 1, config.context)
    size = _count(tensors)
    buffers = 4 * (config.layers * _count(layer) + _count(step) + _count(scratch))
    lines = [
        f"{one_line(key.replace('_', ' '), 60)}: {_shown(value)}" for key, value in facts.items() if key != "train"
    ]
    lines += [
        f"model: {_shown(config.to_dict())}",
        f"parameters: {size:,}, {4 * size / 1e6:,.1f} MB as float32; training needs four times as much",
        f"buffers: {buffers / 1e6:,.1f} MB for a row of {config.context} tokens and its gradient",
    ]
    lines += [f"training: {_shown(facts['train'])}"] if "train" in facts else []
    lines += [f"  {name:<20} {'x'.join(map(str, shape))}" for name, shape in tensors.items()]
    sizes = {"parameters": size, "float32_bytes": 4 * size, "plan_bytes_one_row": buffers}
    _print(args, facts | {"model": config.to_dict()} | sizes | {"tensors": tensors}, "\n".join(lines))


def _shown(value):
    """Return a value as readable text; a dict becomes a list of names and values."""
    if isinstance(value, dict):
        value = ", ".join(f"{name.replace('_', ' ')} {one}" for name, one in value.items())
    return one_line(str(value))


def _count(shapes):
    return sum(math.prod(shape) for shape in shapes.values())


def _given(args, names):
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _only_resume(args, names):
    """Raise NanoEulerError for options that must not be given with --resume; names: those besides the settings."""
    fixed = ["config", *(name for name in TRAINING if name not in CHANGEABLE), *names, "run", "workers"]
    if given := list(_given(args, fixed)):
        base, names = ("--from", CHANGEABLE) if args.function is train else ("--base", CHANGEABLE[:-1])
        *some, last = map(arguments.option, names)
        raise NanoEulerError(
            f"{arguments.option(given[0])} must not be given with --resume, which takes it from the run: only "
            f"{', '.join(some)} and {last} may change; {base} {args.resume} begins a new run with its model"
        )


def _check_workers(args):
    if args.workers is not None and not 1 <= args.workers <= 4096:
        raise NanoEulerError(f"--workers must be 1 to 4096, got {args.workers}")


def _checkpoint(args, default="konigsberg-small"):
    """Load the checkpoint of --run, --model or the default; by default on the CPU, where small models are faster."""
    from nanoeuler_lib.engine.device import choose
    from nanoeuler_lib.training.checkpoint import load

    checkpoint = load(_folder(args, default))
    if args.device or args.precision:
        device = choose(args.device or "gpu", args.precision, checkpoint.model.config)
        checkpoint.model = device.place(checkpoint.model)
    return checkpoint


def _folder(args, default):
    from nanoeuler_lib.training.checkpoint import pretrained

    if args.run and args.model is not None:
        raise NanoEulerError("--model must not be combined with --run")
    return args.run or pretrained(default if args.model is None else args.model)


def _tokenizer(args):
    from nanoeuler_lib.text.other_tokenizers import load
    from nanoeuler_lib.training.checkpoint import load_pretrained

    return load(args.tokenizer) if args.tokenizer else load_pretrained()[1]


def _sampling(args):
    _not_negative(args, "tokens", "seed")
    return {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "min_p", "seed")}


def _not_negative(args, *names):
    for name in names:
        if (value := getattr(args, name)) is not None and value < 0:
            raise NanoEulerError(f"--{name.replace('_', '-')} must be 0 or more, got {value}")


def _stdin_text():
    """Read all of standard input as UTF-8, with its line ends unchanged."""
    stream = getattr(sys.stdin, "buffer", sys.stdin)
    content = stream.read()
    try:
        return content.decode() if isinstance(content, bytes) else content
    except UnicodeDecodeError as error:
        raise NanoEulerError(f"standard input: must be UTF-8 text, but byte {error.start} is not UTF-8") from None


def _utf8(text):
    """Decode an argument again as UTF-8, because Python decodes it differently under a locale such as POSIX."""
    try:
        return os.fsencode(text).decode()
    except (UnicodeEncodeError, UnicodeDecodeError):
        pass
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NanoEulerError(f"text: must be UTF-8, but character {error.start} is not UTF-8") from None
    return text


def _write_bytes(content):
    sys.stdout.flush()
    if hasattr(sys.stdout, "buffer"):
        sys.stdout.buffer.write(content)
    else:
        sys.stdout.write(content.decode(errors="replace"))


def _progress(items, what, unit):
    """Iterate over items, with a progress bar if standard error is a terminal."""
    from tqdm import tqdm

    return tqdm(items, what, unit=f" {unit}", disable=None, leave=False, file=Voice(sys.stderr))


def _print(args, facts, text=""):
    print(to_json(facts) if args.json else text)


COMMANDS = {
    "tokenizer train": tokenizer_train, "tokenizer encode": tokenizer_encode, "tokenizer decode": tokenizer_decode,
    "corpus konigsberg": corpus_konigsberg, **{f"corpus {name}": corpus_fetched for name in CORPORA}, "shards": shards,
    "train": train, "replay": replay, "sft": sft, "dpo": dpo, "grpo": grpo, "report": report, "compare": compare,
    "generate": generate, "score": score, "answers": answers, "chat": chat, "check": check, "diagnose": diagnose,
    "break": break_, "lab": lab, "test": test, "progress": progress,
    "assign": assign, "info": info, "export": export, "release": release, "import": import_,
}  # fmt: skip


def parser() -> arguments.Parser:
    """Return the argument parser of the `nanoeuler` command."""
    return arguments.parser(COMMANDS)


def main(words: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 1 (a check failed), 2 (bad input) or 130 (stopped by a signal)."""
    _prepare_streams()
    if os.getpid() == 1:  # in a container, process 1 gets only the signals for which it has set a handler
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        try:
            args, unknown = parser().parse_known_args(words)
            if unknown:
                args.parser.refuse(unknown)
            args.parser.configure(args)
            code = args.function(args) or 0
        except SystemExit as end:  # --help, --version
            args, code = None, end.code or 0
        lost = _flush()
        if lost and getattr(args, "function", None) not in (train, sft, dpo, grpo):  # they write to a folder
            return _fail(f"standard output: {lost}")
        return code
    except NanoEulerError as error:
        return _fail(error)
    except ValueError as error:
        from konigsberg import KonigsbergError

        if not isinstance(error, KonigsbergError):
            raise
        return _fail(error)
    except MemoryError as error:
        return _fail(error if str(error) else "not enough memory")
    except KeyboardInterrupt:
        _flush()
        return 130
    except BrokenPipeError:  # `nanoeuler corpus ... | head`
        _flush()
        return 0
    except OSError as error:
        name = error.filename or ("standard output" if _flush() else "")
        return _fail(f"{name}: {error.strerror or error}".removeprefix(": "))
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        return _fail(
            "the system cannot start another thread or process for this user or container: raise the limit "
            "(ulimit -u, --pids-limit), or use fewer --workers"
        )


def _fail(error):
    _flush()
    Voice(sys.stderr).line(f"nanoeuler: {one_line(str(error))}")
    _flush()
    return 2


def _flush():
    """Flush the output streams. Returns why standard output failed; "" if it did not, or if its reader is gone."""
    lost = ""
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except (OSError, ValueError) as error:  # ValueError: it was closed
            with suppress(OSError, ValueError):  # otherwise Python would flush again at exit, with exit code 120
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if stream is sys.stdout and not isinstance(error, BrokenPipeError):
                lost = getattr(error, "strerror", None) or str(error)
    return lost


def _prepare_streams():
    """Open the standard streams that the process was started without, and set their encodings."""
    for name, access, mode in (("stdin", os.O_RDWR, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_RDWR, "w")):
        if getattr(sys, name) is None:  # otherwise the next file to be opened would get its descriptor
            setattr(sys, name, open(os.open(os.devnull, access), mode))  # O_RDONLY, so that printing is an error
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    if isinstance(sys.stdout, io.TextIOWrapper):  # files get UTF-8; a terminal that has no ü shows ?
        sys.stdout.reconfigure(errors="replace", **({} if sys.stdout.isatty() else {"encoding": "utf-8"}))


if __name__ == "__main__":
    sys.exit(main())
