"""Chapter 18: what models of Königsberg know, and what they use of it.

    python -m experiments.ch18 --processes 2        # every part that is missing, and all of them collected
    python -m experiments.ch18 --only model         # one part alone, for all seeds

A part of a seed is a file `_build/ch18/PART-SEED.json`; one that is there is not made again. The model of seed 0 comes
with the package. Those of the other seeds are trained here, a run folder each, with its settings, text and tokenizer.
"""

import argparse
import json
import multiprocessing
import os
from pathlib import Path

from nanoeuler_lib import world
from nanoeuler_lib.config import TrainConfig, preset
from nanoeuler_lib.files import write_text
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.training import checkpoint, loop
from nanoeuler_lib.training import train as training
from tools.notebooks.results import ROOT

SEEDS = [0, 1, 2, 3, 4]
FOLDER = ROOT / "_build" / "ch18"
STEPS = 12_500
TEXT_SEEDS, TEXT_BYTES = (101, 102, 103, 104), 5_000_000  # as in benchmarks/pretrained.py
VALID_SEED, VALID_BYTES = 2, 200_000


def text() -> str:
    """What the model of the package was trained on; kept in a file, since making it takes a minute."""
    file = FOLDER / "text.txt"
    if not file.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")  # several processes may want it at once
        partial.write_text(
            world.SEPARATOR.join(world.corpus(TEXT_BYTES, seed) for seed in TEXT_SEEDS), "utf-8"
        )
        os.replace(partial, file)
    return file.read_text("utf-8")


def run_of(seed: int) -> Path:
    """The run folder of a seed's model."""
    return FOLDER / f"seed{seed}"


def make_model(seed: int, steps: int = STEPS, workers: int = 1) -> dict:
    """Train the model of a seed, or go on where its training was stopped; seed 0 is that of the package."""
    if seed == 0:
        return {"seed": 0, "step": checkpoint.read_head(checkpoint.PRETRAINED / "konigsberg-small")["step"]}
    run, valid = run_of(seed), world.corpus(VALID_BYTES, VALID_SEED)
    with one_blas_thread():
        if checkpoint.folders(run):
            if checkpoint.read_head(run)["step"] < steps:
                loop.resume(run, text(), valid, quiet=True)
        else:
            config = TrainConfig(
                steps=steps, rate=2e-3, later_heads=0.25, valid_every=500, sample_every=0, save_every=500, seed=seed
            )  # fmt: skip
            source = f"Königsberg, seeds {TEXT_SEEDS}, {TEXT_BYTES} bytes each"
            tokenizer = checkpoint.load_pretrained()[1]
            training.train(run, text(), preset("small"), config, tokenizer, source, valid, True, workers)
    head = checkpoint.read_head(run)
    return {"seed": seed, "step": head["step"]} | {
        name: value for name, value in head["info"].items() if name.endswith("bits_per_byte")
    }


PARTS = {"model": make_model}


def one(seed: int, part: str) -> Path:
    """Make a part of a seed, unless its file is there; return the file."""
    file = FOLDER / f"{part}-{seed}.json"
    if not file.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(PARTS[part](seed), ensure_ascii=False, allow_nan=False) + "\n")
    return file


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options.add_argument("--only", choices=PARTS, help="one part, and no result is stored")
    given = options.parse_args()
    parts = [given.only] if given.only else list(PARTS)
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        for part in parts:  # the models first: the others need them
            for file in pool.starmap(one, [(seed, part) for seed in given.seeds], chunksize=1):
                print(file, flush=True)


if __name__ == "__main__":
    main()
