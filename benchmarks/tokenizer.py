"""Compare the tokenizer with Hugging Face tokenizers, tiktoken and rustbpe: equal ids, and speed.

    NANOEULER_DATA=... python -m benchmarks.tokenizer [SECTION ...] [--rounds N]

Sections (default: all): reference fuzz exact train encode short. Peers that are not installed are left out. Times are
medians over rounds in which the contenders alternate, so that a busy machine slows all of them. Each section also
returns what it prints, as rows for a table (experiments/chA4.py stores the rows of chapter A4).
"""

import argparse
import gc
import itertools
import json
import lzma
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from nanoeuler_lib.text.data import SEPARATOR
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # otherwise it warns about the processes that we fork

try:
    import tokenizers
except ImportError:
    tokenizers = None
try:
    import tiktoken
except ImportError:
    tiktoken = None
try:
    import rustbpe
except ImportError:
    rustbpe = None

PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
VOCAB_SIZE = 4096
SENTENCE = "Euler walked over the seven bridges of Königsberg."
MB = 1_000_000
CORPORA = ("books/books_core_train.txt.xz", "web/web_featured_train.txt.xz")


def documents(path: Path, batch: int = 64) -> Iterator[list[str]]:
    """Yield the documents of a compressed corpus, in batches."""
    with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
        texts = file.read().split(SEPARATOR)
    for start in range(0, len(texts), batch):
        yield texts[start : start + batch]


@dataclass(frozen=True)
class Cost:
    """Hold the median seconds of a contender: wall-clock time, and the processor time of all processes.

    Other work on the machine disturbs the processor time less.
    """

    clock: float
    processors: float


def take_turns(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, Cost]:
    """Return the cost of each contender; a round calls each contender once."""
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            gc.collect()
            start, before = time.perf_counter(), sum(os.times()[:4])
            call()
            costs[name].append((time.perf_counter() - start, sum(os.times()[:4]) - before))
    return {name: Cost(*map(statistics.median, zip(*values, strict=True))) for name, values in costs.items()}


def as_gpt2_writes(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens, with each byte as the character that stands for it in GPT-2's files."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    written = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return ["".join(written[byte] for byte in token) for token in tokenizer.token_bytes]


def verdict(what: str, value: float, aim: float, at_least: bool) -> None:
    met = value >= aim if at_least else value <= aim
    sign = ">=" if at_least else "<="
    print(f"  {'met' if met else 'MISSED'}: {what} {value:.2f}, aim {sign} {aim}")


# Equal results


def reference(data: Path) -> list[dict]:
    """Compare with the 243 reference merges and with the reference ids of GPT-2."""
    tokenizer = Tokenizer.train(data / "tokenizer_fixtures/corpus.en", 500)
    tokens = as_gpt2_writes(tokenizer)
    lines = (data / "tokenizer_fixtures/train-bpe-reference-merges.txt").read_text("utf-8").strip("\n").split("\n")
    merges = sum(f"{tokens[a]} {tokens[b]}" == line for (a, b), line in zip(tokenizer.merges, lines, strict=True))
    print(f"merges equal to the reference: {merges} of {len(lines)}")
    gpt2 = Tokenizer.from_gpt2(data / "gpt2/encoder.json", data / "gpt2/vocab.bpe")
    cases = json.loads((data / "gpt2/test_vectors.json").read_text("utf-8"))["cases"]
    equal = sum(gpt2.encode(case["text"]).tolist() == case["ids"] for case in cases)
    print(f"texts with GPT-2's reference ids: {equal} of {len(cases)}")
    return [
        {"what": "reference merges", "equal": merges, "of": len(lines)},
        {"what": "reference texts", "equal": equal, "of": len(cases)},
    ]


def fuzz(data: Path, count: int = 1_000_000) -> list[dict]:
    """Encode and decode random byte strings; half consist of random bytes and half of fragments of text."""
    rng = random.Random(0)
    tokenizer = Tokenizer.train(data / "tokenizer_fixtures/corpus.en", 500)
    words = (data / "tokenizer_fixtures/corpus.en").read_bytes().split()[:2000]
    fragments = [
        b" ",
        b"  ",
        b"\n",
        b"\t",
        b"'s",
        b"\x1c",
        END_OF_TEXT.encode(),
        "ß漢🙂\xa0\u2003".encode(),
        *words,
    ]
    failures = 0
    for number in range(count):
        if number % 2:
            text = rng.randbytes(rng.randrange(40))
        else:
            text = b"".join(rng.choices(fragments, k=rng.randrange(8)))
            cut = rng.randrange(len(text) + 1)
            text = text[:cut] + rng.randbytes(rng.randrange(2)) + text[cut:]
        failures += tokenizer.decode_bytes(tokenizer.encode_bytes(text)) != text
    print(f"byte strings that did not round-trip: {failures} of {count:,}")
    return [{"what": "byte strings that round-trip", "equal": count - failures, "of": count}]


def exact(data: Path) -> list[dict]:
    """Compare GPT-2's ids of whole corpora with those of Hugging Face tokenizers."""
    if not tokenizers:
        print("tokenizers is not installed")
        return []
    rows = []
    files = data / "gpt2/encoder.json", data / "gpt2/vocab.bpe"
    ours, theirs = Tokenizer.from_gpt2(*files), tokenizers.ByteLevelBPETokenizer(*map(str, files))
    for corpus in CORPORA:
        size = ids = mismatches = differing = 0
        for texts in documents(data / corpus):
            for text, encoding in zip(texts, theirs.encode_batch(texts), strict=True):
                found, expected = ours.encode(text), np.array(encoding.ids)
                size += len(text.encode())
                ids += len(found)
                if len(found) != len(expected) or (found != expected).any():
                    differing += 1
                    pairs = itertools.zip_longest(found.tolist(), expected.tolist())
                    mismatches += sum(a != b for a, b in pairs)
        print(f"{corpus}: {size / MB:.1f} MB, {ids:,} ids, {mismatches} mismatches in {differing} documents")
        rows.append({"what": corpus, "bytes": size, "equal": ids - mismatches, "of": ids})
    return rows


# Speed


def train(data: Path, rounds: int) -> list[dict]:
    """Measure the seconds to learn a vocabulary from 1 MB and from 77 MB of books."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, lzma.open(data / CORPORA[0]) as corpus:
        text = corpus.read(77 * MB)
        for size, processes, aim in ((MB, 1, 1.0), (77 * MB, 2, 0.5)):
            path = Path(folder) / f"{size // MB}MB.txt"
            path.write_bytes(text[:size])
            contenders: dict[str, Callable[[], object]] = {
                f"NanoEuler, {count} process{'es' if count > 1 else ''}": (
                    lambda path=path, count=count: Tokenizer.train(path, VOCAB_SIZE, processes=count)
                )
                for count in sorted({processes, 1}, reverse=True)
            }
            if tokenizers:
                contenders["Hugging Face (Rust)"] = lambda path=path: hugging_face_train(path)
            if rustbpe:
                contenders["rustbpe"] = lambda path=path: rustbpe_train(path)
            costs = take_turns(contenders, rounds if size > MB else 3 * rounds + 2)
            ours = next(iter(costs.values()))
            print(f"train, {size // MB} MB of books, vocabulary {VOCAB_SIZE}; wall-clock seconds, processor seconds:")
            for name, cost in costs.items():
                print(f"  {name:24s} {cost.clock:7.3f} {cost.processors:7.3f}")
                rows.append({"who": name, "bytes": size, "seconds": cost.clock, "processors": cost.processors})
            if tokenizers:
                peer = costs["Hugging Face (Rust)"]
                print(f"  processor time / Hugging Face's {ours.processors / peer.processors:.2f}")
                verdict("time / Hugging Face's", ours.clock / peer.clock, aim, at_least=False)
    return rows


def hugging_face_train(path: Path) -> None:
    trainer = tokenizers.ByteLevelBPETokenizer()
    trainer.train([str(path)], vocab_size=VOCAB_SIZE, special_tokens=[END_OF_TEXT], show_progress=False)


def rustbpe_train(path: Path) -> None:
    texts = path.read_text(encoding="utf-8", errors="replace").split(END_OF_TEXT)
    rustbpe.Tokenizer().train_from_iterator(iter(texts), VOCAB_SIZE - 1, pattern=PATTERN)


def encode(data: Path, rounds: int) -> list[dict]:
    """Measure the megabytes per second on 77 MB of books, with a vocabulary learnt from them."""
    with tempfile.TemporaryDirectory() as folder, lzma.open(data / CORPORA[0]) as corpus:
        path = Path(folder) / "books.txt"
        path.write_bytes(corpus.read(77 * MB))
        text = path.read_text(encoding="utf-8", errors="ignore")
        warm = Tokenizer.train(path, VOCAB_SIZE, processes=2)
        ids = warm.encode(text)
        with lzma.open(data / "books/books_val.txt.xz") as file:
            held_out = file.read()
        size = len(text.encode())
        contenders: dict[str, Callable[[], object]] = {
            "NanoEuler, cold": lambda: Tokenizer(warm.merges).encode(text),
            "NanoEuler, warm": lambda: warm.encode(text),
        }
        if tiktoken:
            ranks = {token: id for id, token in enumerate(warm.token_bytes[:-1])}
            theirs = tiktoken.Encoding("ours", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
            assert np.array_equal(theirs.encode_ordinary(text), ids), "tiktoken gives other ids"
            contenders["tiktoken"] = lambda: theirs.encode_ordinary(text)
        contenders["NanoEuler, cold, file, 2 processes"] = lambda: Tokenizer(warm.merges).encode_file(path, processes=2)
        costs = take_turns(contenders, rounds)
        sizes = dict.fromkeys(costs, size)
        if tokenizers:
            slow, part = hugging_face(warm, Path(folder)), text[: 5 * MB]
            name = "Hugging Face, first 5 MB"
            costs |= take_turns({name: lambda: slow.encode(part)}, rounds)
            sizes[name] = len(part.encode())
    print(f"encode, {size // MB} MB of books, vocabulary {VOCAB_SIZE}; MB/s by wall-clock time, by processor time:")
    for name, cost in costs.items():
        print(f"  {name:36s} {sizes[name] / cost.clock / MB:6.1f} {sizes[name] / cost.processors / MB:6.1f}")
    verdict("MB/s cold", size / costs["NanoEuler, cold"].clock / MB, 10, at_least=True)
    if tiktoken:
        speed = costs["tiktoken"].clock / costs["NanoEuler, warm"].clock
        verdict("warm / tiktoken", speed, 0.8, at_least=True)
    print(f"bytes per token: {size / len(ids):.3f} on these books")
    rate = len(held_out) / len(warm.encode_bytes(held_out))
    verdict("bytes per token on held-out books", rate, 3.4, at_least=True)
    return [
        {"who": name, "bytes": sizes[name], "seconds": cost.clock, "processors": cost.processors}
        for name, cost in costs.items()
    ]


def hugging_face(tokenizer: Tokenizer, folder: Path) -> "tokenizers.ByteLevelBPETokenizer":
    """Return Hugging Face's tokenizer with our merges; its files write bytes as GPT-2's files do."""
    tokens = as_gpt2_writes(tokenizer)[:-1]
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    vocab.write_text(json.dumps({token: id for id, token in enumerate(tokens)}))
    merges.write_text("".join(f"{tokens[a]} {tokens[b]}\n" for a, b in tokenizer.merges), encoding="utf-8")
    return tokenizers.ByteLevelBPETokenizer(str(vocab), str(merges))


def short(data: Path) -> None:
    """Measure the times that a reader at a prompt waits: loading, a first sentence, and the same sentence again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        gpt2 = Tokenizer.from_gpt2(data / "gpt2/encoder.json", data / "gpt2/vocab.bpe")
        for name, tokenizer in (
            (f"{VOCAB_SIZE} tokens", Tokenizer(gpt2.merges[: VOCAB_SIZE - 257], byte_order=gpt2.byte_order)),
            ("GPT-2", gpt2),
        ):
            tokenizer.save(path)
            start = time.perf_counter()
            loaded = Tokenizer.load(path)
            middle = time.perf_counter()
            loaded.encode(SENTENCE)
            end = time.perf_counter()
            again = take_turns({"": partial(loaded.encode, SENTENCE)}, 9)[""].clock
            loading, first = (middle - start) * 1e3, (end - middle) * 1e6
            print(f"{name}: load {loading:.1f} ms, first sentence {first:.0f} us, again {again * 1e6:.0f} us")


SECTIONS = {
    "reference": reference,
    "fuzz": fuzz,
    "exact": exact,
    "train": train,
    "encode": encode,
    "short": short,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"sections to run, of {', '.join(SECTIONS)}; default: all"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the slow comparisons; default: 3")
    args = parser.parse_args()
    if unknown := set(args.sections) - SECTIONS.keys():
        parser.error(f"a section must be one of {', '.join(SECTIONS)}, got {' '.join(sorted(unknown))}")
    if "NANOEULER_DATA" not in os.environ:
        parser.error("NANOEULER_DATA must be the folder of the test data, but it is not set")
    data = Path(os.environ["NANOEULER_DATA"])
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, {load}".rstrip(", "))
    for peer in (tokenizers, tiktoken, rustbpe):
        if peer:
            print(f"  {peer.__name__} {getattr(peer, '__version__', '')}")
    for name in args.sections or SECTIONS:
        print(f"\n{name}: {SECTIONS[name].__doc__}", flush=True)
        if SECTIONS[name] in (train, encode):
            SECTIONS[name](data, args.rounds)
        else:
            SECTIONS[name](data)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
