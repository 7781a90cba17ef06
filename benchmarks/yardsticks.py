"""Compute baselines for the held-out sets of chapter 32, to judge a loss in bits per byte; needs no GPU.

    python -m benchmarks.yardsticks xz     --data A.txt --valid B.txt ...               # xz that has read A
    python -m benchmarks.yardsticks ngrams --data SHARDS --valid SHARDS ...              # 1- to 5-grams, and a cloze
    python -m benchmarks.yardsticks cloze  --valid SHARDS ... --run RUN --device gpu     # the same cloze for a model
    python -m benchmarks.yardsticks collect --from FOLDER            # ch32_yardsticks.json from xz and ngrams

xz: it takes no dictionary, but its window may be as long as the whole input. The size of a set after the training text
of its kind is therefore the compressed length of both in one stream, minus that of the training text. WINDOW is large
enough for both.

ngrams: `nanoeuler_book.ngram` on the same tokens, scored in a model's windows (`datasets.ShardDataset`). Shorter
contexts get the weight, of STRENGTHS, that is best on these same sets, which favours the n-grams a little.

cloze: ITEMS positions of each held-out set. A word of five letters or more is removed, and offered with three other
words that occur about as often in the same document, so that topic and frequency help little. The model gets BEFORE
tokens of text before the position, and chooses the word for which the word and the next AFTER letters are most likely.
Guessing gives a quarter. Each section adds rows to rows-SECTION.jsonl in `--out`.
"""

import argparse
import json
import lzma
import multiprocessing
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from nanoeuler_book.ngram import Ngrams
from nanoeuler_lib.config import TrainConfig, preset
from nanoeuler_lib.engine.device import choose
from nanoeuler_lib.text.shards import Shards
from nanoeuler_lib.training import checkpoint, datasets
from tools.notebooks.results import save

WINDOW, PIECE = 2**27, 2**24  # bytes in xz's window; bytes that it gets at a time
ORDER, STRENGTHS = 5, (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
ITEMS, CHOICES, BEFORE, AFTER, TIME = 500, 4, 150, 60, 255  # TIME: tokens per row, context and continuation
WORD, OFTEN = re.compile(r"(?<= )[a-z]{5,}(?= )"), 1.5  # the counts of the offered words differ at most by this factor
SEED = 32


# ---- Compressing and counting


def shortened(text: Path, after: Path | None = None, window: int = WINDOW) -> tuple[int, int]:
    """Return the bytes of a text in xz, and the bytes of one stream with this text and the text `after` it (else 0)."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": window}]
    packer, size = lzma.LZMACompressor(lzma.FORMAT_RAW, filters=filters), 0
    with open(text, "rb") as file:
        while piece := file.read(PIECE):
            size += len(packer.compress(piece))
    both = 0
    if after:  # a copy of this process continues the stream, so the first text is compressed only once
        ours, theirs = multiprocessing.Pipe()
        more = lambda: theirs.send(len(packer.compress(after.read_bytes())) + len(packer.flush()))
        multiprocessing.get_context("fork").Process(target=more).start()
        both = size + ours.recv()
    return size + len(packer.flush()), both


def xz(options):
    for train, path in zip(map(Path, options.data), map(Path, options.valid), strict=True):
        size, (alone, both) = path.stat().st_size, shortened(train, path)
        found = {"by itself": shortened(path)[0], "after the training text": both - alone}
        for how, packed in found.items():
            yield dict(what="xz", how=how, set=path.stem, bits_per_byte=round(8 * packed / size, 4))


class Counted:
    """Give n-grams the method `losses` of a model, so that they are scored like one."""

    def __init__(self, ngrams: Ngrams, order: int, strength: float):
        self.ngrams, self.order, self.strength = ngrams, order, strength

    def losses(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the loss of each target in nats [B, T]; 0 for a target of -1."""
        self.ngrams.strength = self.strength
        p = self.ngrams.probability(inputs, np.maximum(targets, 0), self.order)
        return np.where(targets >= 0, -np.log(p), 0.0)


def ngrams(options):
    part, valid = Shards(options.data[0]), [Shards(one) for one in options.valid]
    shape = preset(options.preset, vocab_size=part.tokenizer.vocab_size)
    state = SimpleNamespace(model=SimpleNamespace(config=shape), train=TrainConfig(), tokenizer=part.tokenizer, info={})
    dataset = datasets.ShardDataset(part, valid, state)
    counts = Ngrams(part.read(0, part.tokens), part.tokenizer.vocab_size, ORDER)
    at = 0
    for order in range(1, ORDER + 1):
        scored = lambda strength, order=order: dataset.validation(Counted(counts, order, strength))
        found = scored(STRENGTHS[at])
        for strength in STRENGTHS[at + 1 :]:  # longer contexts need at least this strength
            other = scored(strength)
            if other["valid_bits_per_byte"] >= found["valid_bits_per_byte"]:
                break
            at, found = at + 1, other
        bits = found["valid_bits_per_byte"]
        sets = found.get("valid_sets") or {valid[0].name: bits}
        yield dict(what="ngrams", order=order, strength=STRENGTHS[at], tokens=part.tokens,
                   valid_bits_per_byte=bits, valid_sets=sets)  # fmt: skip
        for one in valid:
            yield answered(f"{order}-gram", Counted(counts, order, STRENGTHS[at]), one, options.items)


# ---- The cloze


def items_of(text: str, rng: np.random.Generator, count: int) -> list[tuple[str, list[str], str]]:
    """Return at most `count` items of a document: (text before, words with the true word first, text after).

    Only words between two spaces are used, so that the white space does not reveal the true word.
    """
    places = list(WORD.finditer(text))
    often = {}
    for place in places:
        often[place[0]] = often.get(place[0], 0) + 1
    found = []
    for at in rng.permutation(len(places)):
        place, word = places[at], places[at][0]
        least, most = often[word] / OFTEN, often[word] * OFTEN
        others = sorted(other for other in often if other != word and least <= often[other] <= most)
        after = text[place.end() :][:AFTER].split("\n")[0]
        if len(others) >= CHOICES - 1 and place.start() > 8 * BEFORE and len(after) == AFTER:
            chosen = [others[i] for i in rng.choice(len(others), CHOICES - 1, replace=False)]
            found.append((text[: place.start() - 1], [word, *chosen], after))
        if len(found) == count:
            break
    return found


def cloze_of(part: Shards, count: int) -> list[tuple[np.ndarray, list[np.ndarray]]]:
    """Return items of a held-out set, as many per document: the tokens before, and the tokens of each continuation."""
    rng, found = np.random.default_rng(SEED), []
    ends = [*part.starts[1:], part.tokens - 1]
    each = -(-5 * count // (4 * part.documents))  # a quarter more, since some items are too long
    for start, end in zip(part.starts, ends, strict=True):
        text = part.tokenizer.decode(part.read(int(start) + 1, int(end)).tolist())
        for before, words, after in items_of(text, rng, each):
            ids = part.tokenizer.encode(before[-8 * BEFORE :])[-BEFORE:].astype(np.int64)
            ways = [part.tokenizer.encode(f" {word}{after}").astype(np.int64) for word in words]
            if len(ids) == BEFORE and max(map(len, ways)) <= TIME - BEFORE:
                found.append((ids, ways))
    return [found[i] for i in rng.permutation(len(found))[:count]]


def answered(who: str, model, part: Shards, count: int) -> dict:
    """Return a row with the number of right answers of a model; a tie with a wrong word counts as wrong."""
    items, right = cloze_of(part, count), 0
    for first in range(0, len(items), 16):
        some = items[first : first + 16]
        shape = 16 * CHOICES, TIME
        inputs, targets = np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
        for row, (ids, way) in enumerate((ids, way) for ids, ways in some for way in ways):
            whole = np.concatenate([ids, way])
            inputs[row, : len(whole) - 1] = whole[:-1]
            targets[row, len(ids) - 1 : len(whole) - 1] = way
        nats = model.losses(inputs, targets).sum(axis=1, dtype=np.float64).reshape(-1, CHOICES)
        right += int((nats[: len(some), 0] < nats[: len(some), 1:].min(axis=1)).sum())
    return dict(what="cloze", who=who, set=part.name, right=right, items=len(items), chance=1 / CHOICES)


def cloze(options):
    found = checkpoint.load(options.run)
    made = choose(options.device, options.precision, found.model.config).place(found.model)
    for one in options.valid:
        yield answered(Path(options.run).name, made, Shards(one), options.items)


# ---- The rows


def collect(options):
    rows = []
    for name in ("xz", "ngrams"):
        rows += map(json.loads, (Path(options.source) / f"rows-{name}.jsonl").read_text().splitlines())
    config = dict(window=WINDOW, order=ORDER, strengths=STRENGTHS, before=BEFORE, after=AFTER, seed=SEED)
    save("ch32_yardsticks", config, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sections = dict(xz=xz, ngrams=ngrams, cloze=cloze)
    parser.add_argument("section", choices=[*sections, "collect"])
    parser.add_argument("--data", action="append", default=[])
    parser.add_argument("--valid", action="append", default=[])
    parser.add_argument("--run")
    parser.add_argument("--from", dest="source")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision")
    parser.add_argument("--items", type=int, default=ITEMS)
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    if options.section == "collect":
        return collect(options)
    for row in sections[options.section](options):
        with open(options.out / f"rows-{options.section}.jsonl", "a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(row, flush=True)


if __name__ == "__main__":
    main()
