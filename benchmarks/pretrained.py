"""Train the model that comes with the package: `small` on Königsberg.

    python -m benchmarks.pretrained --run runs/konigsberg            # trains, evaluates and exports
    python -m benchmarks.pretrained --run runs/konigsberg            # the same command continues a stopped run

Writes nanoeuler_lib/pretrained/konigsberg-small (parameters in float16, the tokenizer, the configuration) and
data/results/konigsberg-small.json (the curves, the floor, and the accuracy on tokens that are determined by a fact).
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import konigsberg
from nanoeuler_book import evaluate
from nanoeuler_lib.command import sources
from nanoeuler_lib.config import TrainConfig, preset
from nanoeuler_lib.training import checkpoint, loop, run_folder
from nanoeuler_lib.training import train as training
from nanoeuler_lib.training.checkpoint import PRETRAINED
from tools.notebooks.results import save

SEEDS, SEED_BYTES = (101, 102, 103, 104), 5_000_000  # training text
VALID_SEED, VALID_BYTES = 2, 200_000
TEST_SEED, TEST_STORIES = 3, 1000


def text_of(seed: int) -> str:
    return konigsberg.corpus(SEED_BYTES, seed)


def figures(model, tokenizer) -> dict:
    """Compare the model with the floor and with the facts, on stories that were not in the training text."""
    tested = evaluate.measure(model, tokenizer, konigsberg.stories(TEST_STORIES, TEST_SEED))
    return {
        "bits_per_byte": round(tested.bits_per_byte, 5),
        "floor": round(tested.floor, 5),
        "fact_accuracy": round(tested.accuracy(konigsberg.FACT), 4),
        "fact_accuracy_beyond_10_words": round(tested.accuracy(konigsberg.FACT, 10), 4),
        "fact_accuracy_beyond_20_words": round(tested.accuracy(konigsberg.FACT, 20), 4),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--run", type=Path, default=Path("runs/konigsberg"))
    arguments.add_argument("--steps", type=int, default=12_500)
    arguments.add_argument("--rate", type=float, default=2e-3)
    arguments.add_argument("--later-heads", type=float, default=0.25)
    arguments.add_argument("--export", type=Path, default=PRETRAINED / "konigsberg-small")
    args = arguments.parse_args()
    with ProcessPoolExecutor() as pool:
        text = konigsberg.SEPARATOR.join(pool.map(text_of, SEEDS))
    valid = konigsberg.corpus(VALID_BYTES, VALID_SEED)
    if args.run.exists():
        loop.resume(args.run, text, valid)
    else:
        config = TrainConfig(
            steps=args.steps, rate=args.rate, later_heads=args.later_heads, valid_every=500, sample_every=0,
            save_every=500,
        )  # fmt: skip
        source = f"Königsberg, seeds {SEEDS}, {SEED_BYTES} bytes each"
        training.train(args.run, text, preset("small"), config, source=source, valid_text=valid, floor=sources.floor)
    found = checkpoint.load(args.run)
    checkpoint.export(found, args.export)
    shipped = checkpoint.load(args.export)  # the model that a reader gets, in float16
    result = figures(shipped.model, shipped.tokenizer)
    print(result)
    log = run_folder.read_log(args.run)
    curve = [[e["step"], round(e["valid_bits_per_byte"], 5)] for e in log if "valid_bits_per_byte" in e]
    losses = [e for e in log if "loss" in e]
    loss = [
        [losses[i + 49]["step"], round(sum(e["loss"] for e in losses[i : i + 50]) / 50, 5)]
        for i in range(0, len(losses) - 49, 50)
    ]
    config = {
        "model": found.model.config.to_dict(),
        "train": found.train.to_dict(),
        "data": found.info["source"],
    }
    valid_floor = round(konigsberg.floor(valid), 5)
    save("konigsberg-small", config | {"valid_floor": valid_floor}, [result | {"valid": curve, "loss": loss}])


if __name__ == "__main__":
    main()
