"""Train English models that are small enough for a web page and a wheel: three sizes in int8, one of which is shipped.

    NANOEULER_DATA=... python -m benchmarks.english prepare      # CPU: writes texts and tokenizers into FOLDER
    python -m benchmarks.english xz ngrams                       # CPU: baselines on the same held-out books
    python -m benchmarks.english pilot --out OUT                 # GPU: vocabulary and rate per size, one pass each
    python -m benchmarks.english train measure --out OUT         # GPU: the three runs and their results; uses the
                                                                 # pilot's rows in FOLDER (else 2048 tokens)
    python -m benchmarks.english collect --from OUT --ship 6     # data/results/english.json; the model into the package

FOLDER (--folder, default work/english, which git ignores) and the repository are all that the GPU machine needs: three
texts as xz, and a tokenizer. The training texts are the books of $NANOEULER_DATA/books. 16 other books, none of which
shares a passage with them, are held out: half of them are used for choosing (`choose`), and the other half only for the
final measurement (`held_out`). Licences: LICENCE.

One tokenizer serves all vocabularies, because the merges of a smaller vocabulary are the first merges of the larger
one. SHAPES gives each size and vocabulary a shape with about the same number of bytes. `pilot` trains each shape for
one pass over the text, then the best shape of a size with other learning rates, and measures on `choose`. `train` uses
the best settings for PASSES passes, or for as many as fit into --minutes at the pilot's speed. The models have one head
(K = 1), because the page and the command use only head 0, and additional heads did not improve it (chapter 16).

In int8, the package's wheel of 4.4 MB grows by about SIZE, in float16 by twice that. A package index accepts 100 MB.
But a clone of the repository contains every version of the file, and a reader of the page must load four thirds of it,
in base64.

Each section adds rows to rows-SECTION.jsonl in OUT; `train` also writes the exported checkpoint, english-SIZE.tar. The
rule for the shipped size was fixed before any training: it is the smallest size for which doubling the bytes saves less
than WORTH of the bits on `held_out`, or 12 MB if there is no such size.
"""

import argparse
import json
import lzma
import os
import tarfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from nanoeuler_book.ngram import Ngrams
from nanoeuler_book.significance import half_width
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.engine.device import choose
from nanoeuler_lib.generation.generate import generate
from nanoeuler_lib.machine import cores
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text import data, shards
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import checkpoint, run_folder, train
from nanoeuler_lib.training.checkpoint import PRETRAINED
from nanoeuler_lib.training.datasets import nats_of
from tools.notebooks.results import save

NAME = "english-small"
LICENCE = (
    "text: public domain in the United States (first published before 1930); a few authors died after 1955, so not "
    "all of it is public domain elsewhere"
)
BOOKS = {"train": "books_core_train.txt.xz", "valid": "books_val.txt.xz"}
TEXTS = "train", "choose", "held_out"
# lzma for text: the last four bits of a letter help to predict the next letter
XZ = [dict(id=lzma.FILTER_LZMA2, preset=9 | lzma.PRESET_EXTREME, lc=4, lp=0, pb=0, dict_size=1 << 27)]

CONTEXT = 512
SHAPES = {  # MB: vocabulary: width, query heads, key/value heads, layers
    3: {1024: (192, 6, 2, 7), 2048: (192, 6, 2, 6), 4096: (192, 6, 2, 4)},
    6: {1024: (256, 4, 2, 8), 2048: (256, 4, 2, 7), 4096: (256, 4, 2, 6)},
    12: {1024: (384, 6, 2, 7), 2048: (384, 6, 2, 7), 4096: (384, 6, 2, 6)},
}
RATES = 2.4e-3, 1.2e-3, 4.8e-3  # the first rate is used to compare vocabularies
UNTRIED = dict(vocabulary=2048, rate=RATES[0], bits=np.inf)  # settings if there is no pilot
PASSES = {3: 12, 6: 10, 12: 8}
ROWS, WORTH = 64, 0.05
ORDER, STRENGTHS = 5, (1.0, 3.0, 10.0, 30.0)
PROMPTS = "It was a dark and", '"My dear', ""


def shape_of(size: int, vocabulary: int) -> ModelConfig:
    dim, heads, kv_heads, layers = SHAPES[size][vocabulary]
    return ModelConfig(dim, heads, kv_heads, layers, CONTEXT, vocabulary, predict=1)


def settings(rate: float, steps: int) -> TrainConfig:
    return TrainConfig(
        steps=steps, batch=ROWS, rate=rate, rate_end=0.02, warmup=min(200, steps // 10), optimizer="muon",
        valid_every=max(1, steps // 10), sample_every=0, save_every=steps,
    )  # fmt: skip


# ---- Texts and tokenizers


def prepare(options):
    """Write the texts as xz and the largest tokenizer; yield a row per text."""
    given, out = Path(os.environ["NANOEULER_DATA"]) / "books", options.folder
    out.mkdir(parents=True, exist_ok=True)
    texts = {name: lzma.decompress((given / file).read_bytes()).decode() for name, file in BOOKS.items()}
    held = data.documents(texts.pop("valid"))
    texts |= {name: data.SEPARATOR.join(held[i::2]) for i, name in enumerate(TEXTS[1:])}
    largest = max(max(of) for of in SHAPES.values())
    tokenizer = Tokenizer.train(texts["train"], largest)
    tokenizer.save(out / "tokenizer.json")
    for name, text in texts.items():
        (out / f"{name}.txt.xz").write_bytes(lzma.compress(text.encode(), filters=XZ))
        titles = [book.split("\n", 1)[0] for book in data.documents(text)]
        yield dict(what="text", text=name, bytes=len(text.encode()), books=len(titles), titles=titles)


def text_of(options, name: str) -> str:
    return lzma.decompress((options.folder / f"{name}.txt.xz").read_bytes()).decode()


def tokenizer_of(options, vocabulary: int) -> Tokenizer:
    whole = Tokenizer.load(options.folder / "tokenizer.json")
    return Tokenizer(whole.merges[: vocabulary - 256 - len(whole.special_tokens)], whole.special_tokens)


def shards_of(options, vocabulary: int) -> dict[str, shards.Shards]:
    """Return the texts `train` and `choose` as shards of a vocabulary, written into the folder of the runs."""
    found, tokenizer = {}, tokenizer_of(options, vocabulary)
    for name in TEXTS[:2]:
        out = options.runs / f"{name}-{vocabulary}"
        if not out.exists():
            text = options.runs / f"{name}.txt"
            options.runs.mkdir(parents=True, exist_ok=True)
            if not text.exists():
                text.write_text(text_of(options, name), encoding="utf-8", newline="")
            shards.write(out, [text], tokenizer, cores())
        found[name] = shards.Shards(out)
    return found


def xz(options):
    """Yield xz's bits per byte for the held-out books, by themselves and after the training text."""
    train, held = text_of(options, "train"), text_of(options, "held_out")
    size, length = len(held.encode()), lambda text: len(lzma.compress(text.encode(), filters=XZ))
    yield dict(what="xz", bits_per_byte=round(8 * length(held) / size, 4))
    more = length(train + data.SEPARATOR + held) - (options.folder / "train.txt.xz").stat().st_size
    yield dict(what="xz after the training text", bits_per_byte=round(8 * more / size, 4))


def ngrams(options):
    """Yield the bits per byte of n-grams up to ORDER, in a model's windows; the strength is chosen on `choose`."""
    train, choosing, held = (text_of(options, name) for name in TEXTS)
    tokenizer = tokenizer_of(options, sorted(SHAPES[6])[1])
    counted = Ngrams(data.tokenize(train, tokenizer).ids, tokenizer.vocab_size, ORDER)

    def bits(text, order):
        tokens = data.tokenize(text, tokenizer)
        inputs, targets = data.validation_rows(tokens, CONTEXT)
        nats = 0.0
        for i in range(0, len(inputs), 64):
            p = counted.probability(inputs[i : i + 64], targets[i : i + 64], order)
            nats -= float(np.log(p[targets[i : i + 64] >= 0]).sum())
        return float(nats / np.log(2) / len(text.encode()))

    tried = {}
    for counted.strength in STRENGTHS:
        tried[counted.strength] = round(bits(choosing, ORDER), 4)
    counted.strength = min(tried, key=tried.get)
    yield dict(what=f"{ORDER}-gram", vocabulary=tokenizer.vocab_size, strength=counted.strength, on_choose=tried,
               counts=[len(table.keys) for table in counted.tables],
               orders={order: round(bits(held, order), 4) for order in range(1, ORDER + 1)})  # fmt: skip


# ---- On a GPU


def trained(options, size: int, vocabulary: int, rate: float, passes: float, run: Path, minutes=None, speed=None):
    """Train a model for `passes` passes, or for at most `minutes` at the speed `speed`; return its row."""
    parts, shape, took = shards_of(options, vocabulary), shape_of(size, vocabulary), time.perf_counter()
    steps = max(1, round(passes * parts["train"].tokens / (ROWS * CONTEXT)))
    if minutes and speed:
        steps = max(1, min(steps, int(60 * minutes * speed / (ROWS * CONTEXT))))
    config = settings(rate, min(steps, options.steps or steps))
    precision = None if options.device == "cpu" else "bfloat16"
    device = choose(options.device, precision, shape)
    train.pretrain(run, parts["train"], [parts["choose"]], shape, config, quiet=True, device=device)
    log = run_folder.read_log(run)
    taken = [entry for entry in log if "loss" in entry]
    seconds = [entry["seconds"] for entry in taken]  # the first step compiles
    part = max(1, len(taken) // 200)
    return dict(
        size=size, vocabulary=vocabulary, rate=rate, parameters=GPT(shape).size, steps=config.steps,
        tokens=config.steps * ROWS * CONTEXT, passes=round(config.steps * ROWS * CONTEXT / parts["train"].tokens, 3),
        bits=round([entry for entry in log if "valid_bits_per_byte" in entry][-1]["valid_bits_per_byte"], 5),
        seconds=round(sum(seconds), 2), tokens_per_second=round(ROWS * CONTEXT / float(np.median(seconds))),
        wall=round(time.perf_counter() - took, 2), warnings=[entry["warning"] for entry in log if "warning" in entry],
        curve=[[few[-1]["step"], round(float(np.mean([e["loss"] for e in few])), 4)]
               for few in (taken[i : i + part] for i in range(0, len(taken), part))],
        valid=[[e["step"], round(e["valid_bits_per_byte"], 5)] for e in log if "valid_bits_per_byte" in e],
    )  # fmt: skip


def pilot(options):
    """Train each vocabulary of each size at one learning rate, then the best vocabulary at the other rates."""

    def run(size, vocabulary, rate):
        folder = options.runs / f"pilot-{size}-{vocabulary}-{rate:g}"
        return dict(what="pilot") | trained(options, size, vocabulary, rate, 1, folder)

    for vocabulary in sorted({v for size in options.sizes for v in SHAPES[size]}):
        shards_of(options, vocabulary)  # starts processes, so it runs before the GPU is in use
    for size in options.sizes:
        rows = []
        for vocabulary in SHAPES[size]:
            rows.append(run(size, vocabulary, RATES[0]))
            yield rows[-1]
        best = min(rows, key=lambda row: row["bits"])["vocabulary"]
        for rate in RATES[1:]:
            yield run(size, best, rate)


def rows_of(*folders: Path) -> list[dict]:
    """Return the rows of all sections in these folders, each row once."""
    files = [file for folder in folders for file in sorted(folder.glob("rows-*.jsonl"))]
    return [json.loads(line) for line in dict.fromkeys(x for file in files for x in file.read_text().splitlines())]


def training(options):
    """Train each size with the pilots' best settings, and write its exported checkpoint."""
    pilots, best_of = [row for row in rows_of(options.folder, options.out) if row["what"] == "pilot"], {}
    for size in options.sizes:
        of_size = [row for row in pilots if row["size"] == size] or [UNTRIED]
        best_of[size] = min(of_size, key=lambda row: row["bits"])
        shards_of(options, best_of[size]["vocabulary"])  # before the GPU is in use
    for size, best in best_of.items():
        run, speed = options.runs / f"english-{size}", best.get("tokens_per_second")
        row = trained(options, size, best["vocabulary"], best["rate"], PASSES[size], run, options.minutes, speed)
        # the facts that the shipped checkpoint contains
        books = shards_of(options, best["vocabulary"])["train"].documents
        info = dict(source=f"{books} books in English", licence=LICENCE, valid_bits_per_byte=row["bits"])
        exported = options.runs / "exported" / str(size)
        checkpoint.export(replace(checkpoint.load(run), info=info), exported, eight_bits=True)
        with tarfile.open(options.out / f"english-{size}.tar", "w") as file:
            for one in sorted(exported.iterdir()):
                file.add(one, one.name)
        yield dict(what="run") | row


def measure(options):
    """Yield the bits per byte of each held-out book, with float32 and int8 weights, and samples of each model."""
    books = data.documents(text_of(options, "held_out"))
    for size in options.sizes:
        whole = checkpoint.load(options.runs / f"english-{size}")
        shipped = checkpoint.load(options.runs / "exported" / str(size))
        folder = options.runs / "exported" / str(size)
        row = dict(what="measured", size=size, bytes=sum(file.stat().st_size for file in folder.iterdir()),
                   file=(folder / "model.safetensors").stat().st_size)  # fmt: skip
        for name, found in (("float32", whole), ("int8", shipped)):
            made = choose(options.device, None if options.device == "cpu" else "float32").place(found.model)
            each = [bits_of(made, found.tokenizer, book) for book in books]
            row[name] = dict(
                bits_per_byte=round(sum(b for b, _ in each) / sum(n for _, n in each), 5),
                books=[round(bits / size, 5) for bits, size in each],
            )
        matrices = [np.abs(p - q).max() / np.abs(p).max() for p, q in pairs(whole.model, shipped.model)]
        row |= dict(largest_error=round(float(max(matrices)), 5))
        row["samples"] = [
            dict(prompt=prompt, seed=seed, text=generate(shipped.model, shipped.tokenizer, prompt, options.tokens,
                                                         temperature=0.8, seed=seed))
            for prompt in PROMPTS for seed in (0, 1)
        ]  # fmt: skip
        yield row


def pairs(one, other):
    """Return the pairs of matrices of two models of the same shape."""
    return [(one.params[name], other.params[name]) for name in one.params if one.params[name].ndim == 2]


def bits_of(model: GPT, tokenizer: Tokenizer, book: str) -> tuple[float, int]:
    """Return a model's bits for a book, and the book's bytes; non-overlapping windows score every token once."""
    tokens = data.tokenize(book, tokenizer)
    inputs, targets = data.validation_rows(tokens, model.config.context)
    nats = nats_of(model, ((inputs[i : i + 16], targets[i : i + 16]) for i in range(0, len(inputs), 16)))
    return nats / np.log(2), int(tokens.lengths[targets[targets >= 0]].sum())


# ---- The results


def collect(options):
    """Write all rows into data/results/english.json, and the model of --ship (else the rule's) into the package."""
    rows = rows_of(options.folder, *options.sources)
    measured = sorted((row for row in rows if row["what"] == "measured"), key=lambda row: row["size"])
    shapes = {f"{size} MB, {v} tokens": shape_of(size, v).to_dict() for size in SHAPES for v in SHAPES[size]}
    config = dict(licence=LICENCE, rows=ROWS, passes=PASSES, worth=WORTH, shapes=shapes)
    config["shipped"] = options.ship or worth(measured)
    config["saved"] = [saved(*both) for both in pairwise(measured)]
    tars = [source / f"english-{config['shipped']}.tar" for source in options.sources]
    for tar in filter(Path.is_file, tars):
        with tarfile.open(tar) as file:
            file.extractall(options.package / NAME, filter="data")
        checkpoint.load(options.package / NAME)
    made_on = json.loads(options.machine.read_text()) if options.machine else None
    save("english", config, rows, options.results, made_on)
    for row in [row for row in rows if "xz" in row["what"] or "gram" in row["what"]]:
        print(row["what"], row.get("bits_per_byte") or row["orders"][str(ORDER)])
    for row in measured:
        print(f"{row['size']} MB", *(f"{name} {row[name]['bits_per_byte']:.4f}" for name in ("float32", "int8")))
    print("saved by the next size:", *config["saved"])


def saved(row: dict, larger: dict) -> dict:
    """Return the fraction of bits that the next size saves, as a mean over books, and half of its 95% interval."""
    share = 1 - np.divide(*(one["int8"]["books"] for one in (larger, row)))
    sizes = f"{row['size']} to {larger['size']} MB"
    return dict(sizes=sizes, share=round(float(share.mean()), 4), half_width=round(float(half_width(share)), 4))


def worth(measured: list[dict]) -> int:
    """Return the size that the rule ships."""
    for row, larger in pairwise(measured):
        if larger["int8"]["bits_per_byte"] > (1 - WORTH) * row["int8"]["bits_per_byte"]:
            return row["size"]
    return measured[-1]["size"]


SECTIONS = dict(prepare=prepare, xz=xz, ngrams=ngrams, pilot=pilot, train=training, measure=measure)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="+", choices=[*SECTIONS, "collect"])
    parser.add_argument("--folder", type=Path, default=Path("work/english"))
    parser.add_argument("--runs", type=Path, default=Path("runs/english"))
    parser.add_argument("--out", type=Path, help="folder for rows and exports (default: FOLDER)")
    parser.add_argument("--from", dest="sources", type=Path, nargs="+", default=[])
    parser.add_argument("--sizes", type=int, nargs="+", default=[*SHAPES], choices=[*SHAPES])
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--minutes", type=float, default=2.5, help="maximum time of a run, at the pilot's speed")
    parser.add_argument("--steps", type=int, help="maximum number of steps of a run or a pilot")
    parser.add_argument("--tokens", type=int, default=200, help="tokens per sample")
    parser.add_argument("--ship", type=int, choices=[*SHAPES])
    parser.add_argument("--machine", type=Path, help="JSON file with the machine of the run, if it was not this one")
    parser.add_argument("--package", type=Path, default=PRETRAINED)
    parser.add_argument("--results", type=Path, default=Path("data/results"))
    options = parser.parse_args(words)
    options.out = options.out or options.folder
    for section in options.sections:
        if section == "collect":
            collect(options)
            continue
        options.out.mkdir(parents=True, exist_ok=True)
        for row in SECTIONS[section](options):
            with open(options.out / f"rows-{section}.jsonl", "a") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            print({k: v for k, v in row.items() if k not in ("curve", "samples", "titles")}, flush=True)


if __name__ == "__main__":
    main()
