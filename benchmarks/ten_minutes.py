"""What `small` has learned of Königsberg after ten minutes on a laptop's processor, from a text file to the end.

    python -m benchmarks.ten_minutes                  # on an otherwise idle machine
    python -m benchmarks.ten_minutes --steps 5000     # on a slower one

The clock runs from the text in memory to the trained model: the tokenizer, the encoding, every step, every checkpoint
and the validation. Writing the stories before it and measuring after it are outside. Stores its figures in
data/results/ten_minutes.json. The model is the preset with one prediction head: head 0 and the trunk get the same
gradients as with later heads of weight 0, which would only take time.
"""

import os

os.environ.pop("OPENBLAS_CORETYPE", None)  # a name for an older processor would halve NumPy
os.environ.pop("OPENBLAS_NUM_THREADS", None)

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.pretrained import SEEDS, figures, text_of
from nanoeuler_lib import world
from nanoeuler_lib.config import TrainConfig, preset
from nanoeuler_lib.machine import cores
from nanoeuler_lib.training import checkpoint, run_folder
from nanoeuler_lib.training import train as training
from tools.notebooks.results import save

LIMIT = 600.0  # seconds


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--steps", type=int, default=6330)
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--rate", type=float, default=3e-3)
    args = arguments.parse_args()
    text = world.SEPARATOR.join(text_of(seed) for seed in SEEDS)
    valid = world.corpus(30_000, 2)
    config = TrainConfig(
        steps=args.steps, batch=args.batch, rate=args.rate, rate_end=0.02,
        valid_every=2000, sample_every=0, save_every=2000,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        start = time.monotonic()
        training.train(
            run,
            text,
            preset("small", predict=1),
            config,
            source=f"Königsberg, seeds {SEEDS}",
            valid_text=valid,
        )
        seconds = time.monotonic() - start
        found = checkpoint.load(run)
        speeds = sorted(entry["tokens_per_second"] for entry in run_folder.read_log(run) if "loss" in entry)
    result = figures(found.model, found.tokenizer)
    result |= {
        "seconds": round(seconds, 1),
        "within_ten_minutes": seconds <= LIMIT,
        "tokens": args.steps * args.batch * found.model.config.context,
        "tokens_per_second": speeds[len(speeds) // 2],
        "cores": cores(),
        "load_at_the_end": round(os.getloadavg()[0], 2),
    }
    print(result)
    save("ten_minutes", {"model": found.model.config.to_dict(), "train": found.train.to_dict()}, [result])


if __name__ == "__main__":
    main()
