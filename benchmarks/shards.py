"""Time the other work of a long run: tokenizing into shards, reading batches, copying and writing checkpoints.

    NANOEULER_DATA=... python -m benchmarks.shards [--megabytes N] [--corpora books web] [SECTION ...]

Sections (default: all): tokenize load checkpoint. `tokenize` writes shards of the first N MB of each corpus with one
process and with two, which start with no cached words. The tokenizer has 4,096 tokens, learnt from the beginning of the
text. `load` reads batches for `base` from the shards. `checkpoint` copies and writes the state of `base`, 1.4 GB.
Each line shows what fraction of the processors' time was available to this process. On a busy machine, wall-clock time
says little, and CPU seconds show what the time would be on an idle one.
"""

import argparse
import lzma
import os
import pickle
import resource
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from nanoeuler_lib.config import TrainConfig, preset
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.text import shards
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import checkpoint, datasets, run_folder

CORPORA = {"books": "books/books_core_train.txt.xz", "web": "web/web_featured_train.txt.xz"}
MB = 1_000_000


def cpu_seconds() -> float:
    """Of this process and its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def unpack(name: str, megabytes: float, folder: Path) -> Path:
    """The first megabytes of a corpus as a text file."""
    with lzma.open(Path(os.environ["NANOEULER_DATA"]) / CORPORA[name]) as file:
        content = file.read(int(megabytes * MB))
    (folder / f"{name}.txt").write_bytes(content.decode(errors="ignore").encode())
    return folder / f"{name}.txt"


def tokenize(texts: list[Path], tokenizer: Tokenizer, folder: Path) -> None:
    for text in texts:
        for workers in (1, 2):
            out = folder / f"{text.stem}-{workers}"
            fresh = pickle.loads(pickle.dumps(tokenizer))  # has met no word yet
            wall, cpu = time.perf_counter(), cpu_seconds()
            made = shards.write(out, [text], fresh, workers)
            wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
            size = made.bytes / MB
            print(
                f"tokenize {text.stem}, {workers} process{'es' * (workers > 1)}: {size:.0f} MB, {made.tokens:,} tokens "
                f"in {wall:.1f} s, {size / wall:.1f} MB/s; CPU {cpu:.1f} s, {size / cpu:.1f} MB/s a core, "
                f"{cpu / wall:.2f} cores had",
                flush=True,
            )


def load(texts: list[Path], tokenizer: Tokenizer, folder: Path, rows: int = 64, steps: int = 200) -> None:
    out = folder / f"{texts[0].stem}-2"
    made = shards.Shards(out) if out.exists() else shards.write(out, texts[:1], tokenizer)
    config = preset("base", layers=1, dim=64, heads=2, kv_heads=1)  # the data are those of `base`
    found = checkpoint.Checkpoint(out, GPT(config), tokenizer, 0, TrainConfig(), None, {})
    began = time.perf_counter()
    dataset = datasets.ShardDataset(made, None, found)
    print(f"load: opened in {time.perf_counter() - began:.2f} s, {made.tokens:,} tokens")
    times = []
    for step in range(steps):
        began = time.perf_counter()
        dataset.batch(step, rows)
        times.append(time.perf_counter() - began)
    tokens = rows * config.context
    print(
        f"load: {rows} rows of {config.context}: {1e3 * np.median(times):.2f} ms a batch (first {1e3 * times[0]:.1f}, "
        f"slowest {1e3 * max(times[1:]):.1f}), {tokens / np.median(times) / 1e6:.1f} million tokens a second",
        flush=True,
    )


def save(folder: Path, tokenizer: Tokenizer) -> None:
    config, settings = preset("base"), TrainConfig()
    optimizer = AdamW(config, settings)
    optimizer.m.flat[...] = optimizer.v.flat[...] = 1.0
    found = checkpoint.Checkpoint(folder, GPT(config), tokenizer, 1, settings, optimizer, {})
    waits = []
    for _ in range(3):  # the first ones take memory that nobody has touched
        began = time.perf_counter()
        copy = found.copy()
        waits.append(time.perf_counter() - began)
    pauses, began, cpu = [], time.perf_counter(), cpu_seconds()
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(run_folder.save, folder / "run", copy, 1)
        last = began
        while not written.done():  # what a run does meanwhile: it comes back to Python every few milliseconds
            time.sleep(0.002)
            now = time.perf_counter()
            pauses.append(now - last)
            last = now
        written.result()
    wall, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    long = sum(pause for pause in pauses if pause > 0.02)
    print(
        f"checkpoint of base, {found.model.size:,} parameters: a run waits {', '.join(f'{w:.2f}' for w in waits)} s "
        f"for a copy; a thread then writes for {wall:.1f} s (CPU {cpu:.1f} s) and holds Python up for {long:.2f} s of "
        f"them, {max(pauses):.2f} s at most at a time",
        flush=True,
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("sections", nargs="*", help="tokenize, load, checkpoint (default: all)")
    options.add_argument("--megabytes", type=float, default=40, help="of each corpus (default 40)")
    options.add_argument("--corpora", nargs="+", choices=CORPORA, default=[*CORPORA])
    options.add_argument("--tokenizer", type=Path, help="tokenizer file (default: learnt from the text's beginning)")
    options = options.parse_args()
    sections = options.sections or ["tokenize", "load", "checkpoint"]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    folder = Path(tempfile.mkdtemp())
    try:
        texts = [unpack(name, options.megabytes, folder) for name in options.corpora]
        if options.tokenizer:
            tokenizer = Tokenizer.load(options.tokenizer)
        else:
            beginning = "".join(text.read_text("utf-8")[: 4 * MB] for text in texts)
            tokenizer = Tokenizer.train(beginning, 4096, special_tokens=(END_OF_TEXT,))
        if "tokenize" in sections:
            tokenize(texts, tokenizer, folder)
        if "load" in sections:
            load(texts, tokenizer, folder)
        if "checkpoint" in sections:
            save(folder, tokenizer)
        print(f"load {os.getloadavg()[0]:.1f} afterwards")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
