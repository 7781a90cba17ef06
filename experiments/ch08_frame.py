"""Chapter 08: train the frame of chapters 06 to 10 with a constant in place of its norm, for five seeds.

    make results CH=08_frame

The chapter compares these models with the frame that has its norm and the frame that has none (experiments/mine.py).
"""

from itertools import product

from experiments.mine import trained
from tools.notebooks.results import save

CONSTANTS, SEEDS = (5, 50, 500), [0, 1, 2, 3, 4]


def times(constant: float) -> dict:
    """Return functions for `ops.use` that multiply by a constant in place of RMSNorm."""

    def backward(dy, saved):
        x, gain = saved
        return constant * dy * gain, (constant * dy * x).reshape(-1, gain.size).sum(axis=0)

    return {"rmsnorm_forward": lambda x, gain, eps: (constant * x * gain, (x, gain)), "rmsnorm_backward": backward}


def run(constant: float, seed: int) -> dict:
    """Train one frame and measure it."""
    row = {"constant": constant} | trained(seed, **times(constant))
    print(row, flush=True)
    return row


if __name__ == "__main__":
    save("ch08_frame", {"constants": CONSTANTS, "seeds": SEEDS}, [run(*which) for which in product(CONSTANTS, SEEDS)])
