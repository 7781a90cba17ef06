"""Train `small` on tiny Shakespeare: bits per byte on the last tenth of the text, compared with the goal and PyTorch.

    NANOEULER_DATA=... python -m benchmarks.shakespeare --seeds 0 1 2

A byte-pair encoding of 512 tokens is trained on the first nine tenths, and the model for 2,000 steps of 16 x 128
tokens. Writes data/results/tinyshakespeare.json: for each seed the final figure, the validation curve and the training
curve. A seed takes a few minutes on two idle cores.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import mean, median, stdev

from threadpoolctl import threadpool_info

from nanoeuler_lib.config import TrainConfig, preset
from nanoeuler_lib.text.data import read_text
from nanoeuler_lib.training.run_folder import read_log
from nanoeuler_lib.training.train import train
from tools.notebooks.results import save

GOAL = 2.16  # bits per byte, the mean of three seeds
TWIN = 2.141  # the same model and settings in PyTorch 2.13
MODEL = preset("small")
SETTINGS = dict(
    steps=2000, batch=16, rate=3e-3, rate_end=0.1, warmup=100, beta1=0.9, beta2=0.95, decay=0.1, clip=1.0,
    later_heads=0.25, valid_fraction=0.1, valid_every=100, sample_every=0, save_every=1000,
)  # fmt: skip


def run(text: str, seed: int) -> dict:
    """Train once and return what the run's log says."""
    with tempfile.TemporaryDirectory() as folder:
        train(
            Path(folder) / "run",
            text,
            MODEL,
            TrainConfig(seed=seed, **SETTINGS),
            source="tinyshakespeare.txt",
        )
        log = read_log(Path(folder) / "run")
    valid = [(entry["step"], entry["valid_bits_per_byte"]) for entry in log if "valid_bits_per_byte" in entry]
    steps = [entry for entry in log if "loss" in entry]
    return {
        "seed": seed,
        "bits_per_byte": valid[-1][1],
        "valid_bits_per_byte": [[step, round(bits, 5)] for step, bits in valid],
        "loss": [  # nats per token of head 0, means over 20 steps
            [steps[i + 19]["step"], round(mean(entry["loss"] for entry in steps[i : i + 20]), 5)]
            for i in range(0, len(steps) - 19, 20)
        ],
        "tokens_per_second": round(median(entry["tokens_per_second"] for entry in steps)),
        "seconds": round(sum(entry["seconds"] for entry in steps), 1),
    }


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    seeds = arguments.parse_args().seeds
    if "NANOEULER_DATA" not in os.environ:
        sys.exit("NANOEULER_DATA is not set, expected the folder that holds tinyshakespeare.txt")
    text = read_text(Path(os.environ["NANOEULER_DATA"]) / "tinyshakespeare.txt")
    for blas in threadpool_info():
        print(f"BLAS: {blas.get('internal_api')} {blas.get('version')}, kernels for {blas.get('architecture')}")
    print(f"OPENBLAS_CORETYPE: {os.environ.get('OPENBLAS_CORETYPE', 'not set')}", flush=True)
    rows = []
    for seed in seeds:
        rows.append(run(text, seed))
        row = rows[-1]
        print(
            f"seed {seed}: {row['bits_per_byte']:.4f} bits per byte, "
            f"{row['tokens_per_second']} tokens/s, {row['seconds']:.0f} s",
            flush=True,
        )
        save("tinyshakespeare", {"model": MODEL.to_dict(), "train": SETTINGS, "goal": GOAL, "twin": TWIN}, rows)
    bits = [row["bits_per_byte"] for row in rows]
    spread = f" +- {stdev(bits):.4f}" if len(bits) > 1 else ""
    verdict = "met" if mean(bits) <= GOAL else "MISSED"
    print(f"mean of {len(bits)} seeds: {mean(bits):.4f}{spread} bits per byte; goal {GOAL}: {verdict}; twin {TWIN}")
    return 0 if mean(bits) <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
