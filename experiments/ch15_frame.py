"""Chapter 15: train the frame of chapters 06 to 10 with two key/value heads and with one, for five seeds.

    make results CH=15_frame

The chapter compares these models with the frame's four key/value heads (`07: positions` of experiments/mine.py).
"""

from dataclasses import replace
from itertools import product

from experiments.mine import trained
from nanoeuler_book import frame
from tools.notebooks.results import save

GROUPS, SEEDS = (2, 1), [0, 1, 2, 3, 4]
CONFIG = frame.CONFIG


def run(groups: int, seed: int) -> dict:
    """Train one frame with this many key/value heads and measure it."""
    frame.CONFIG = replace(CONFIG, kv_heads=groups)
    row = {"groups": groups} | trained(seed)
    print(row, flush=True)
    return row


if __name__ == "__main__":
    config = {"seeds": SEEDS, "groups": GROUPS, "model": CONFIG.to_dict()}
    save("ch15_frame", config, [run(*which) for which in product(GROUPS, SEEDS)])
