"""The five models of chapter 18: the package's model, and four trained like it with other seeds."""

import os
from pathlib import Path

import konigsberg
from nanoeuler_lib.command import sources
from nanoeuler_lib.config import TrainConfig, preset
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text.tokenizer import Tokenizer
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
            konigsberg.SEPARATOR.join(konigsberg.corpus(TEXT_BYTES, seed) for seed in TEXT_SEEDS), "utf-8"
        )
        os.replace(partial, file)
    return file.read_text("utf-8")


def run_of(seed: int) -> Path:
    """The run folder of a seed's model."""
    return FOLDER / f"seed{seed}"


def make_model(seed: int, steps: int = STEPS, workers: int = 1) -> list[dict]:
    """Train the model of a seed, or go on where its training was stopped; seed 0 is that of the package."""
    if seed == 0:
        head = checkpoint.read_head(checkpoint.PRETRAINED / "konigsberg-small")
        return [{"step": head["step"], "valid_bits_per_byte": head["info"]["valid_bits_per_byte"]}]
    run, valid = run_of(seed), konigsberg.corpus(VALID_BYTES, VALID_SEED)
    if checkpoint.folders(run):
        if checkpoint.read_head(run)["step"] < steps:
            loop.resume(run, text(), valid, quiet=True)
    else:
        config = TrainConfig(
            steps=steps, rate=2e-3, later_heads=0.25, valid_every=500, sample_every=0, save_every=500, seed=seed
        )  # fmt: skip
        source = f"Königsberg, seeds {TEXT_SEEDS}, {TEXT_BYTES} bytes each"
        tokenizer = checkpoint.load_pretrained()[1]
        options = dict(quiet=True, workers=workers, floor=sources.floor)
        training.train(run, text(), preset("small"), config, tokenizer, source, valid, **options)
    head = checkpoint.read_head(run)
    return [
        {"step": head["step"]} | {name: value for name, value in head["info"].items() if name.endswith("bits_per_byte")}
    ]


def model_of(seed: int) -> tuple[GPT, Tokenizer]:
    """The model of a seed, and its tokenizer."""
    if seed == 0:
        return checkpoint.load_pretrained()
    found = checkpoint.load(run_of(seed))
    return found.model, found.tokenizer
