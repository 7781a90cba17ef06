"""Chapter 11: train the frame of chapters 06 to 10 with SGD, at its best learning rate, for five seeds.

    make results CH=11_frame

The learning rate is chosen with a seed that the comparison does not use. experiments/mine.py trains it with AdamW.
"""

import math

from experiments.mine import trained
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

RATES, SEEDS, CHOOSING_SEED = (0.5, 1, 2), [0, 1, 2, 3, 4], 99


def main() -> None:
    sgd_step, rows = run_tagged("11_optimisers", "experiment")["sgd_step"], []

    def bits(rate: float, seed: int) -> float:
        """Train one frame, store its measurements, and return its bits per byte, infinite if it has diverged."""
        rows.append({"rate": rate} | trained(seed, rate=rate, adamw_step=sgd_step))
        print(rows[-1], flush=True)
        return math.inf if rows[-1]["bits"] is None else rows[-1]["bits"]

    chosen = min(RATES, key=lambda rate: bits(rate, CHOOSING_SEED))
    for seed in SEEDS:
        bits(chosen, seed)
    save("ch11_frame", {"rates": RATES, "seeds": SEEDS, "choosing_seed": CHOOSING_SEED, "chosen": chosen}, rows)


if __name__ == "__main__":
    main()
