"""Chapter 23: time sums of vectors and transposes, version by version, against a copy of as many bytes; needs a GPU.

    python -m experiments.ch23              # 8192 x 8192 numbers
    python -m experiments.ch23 --side 512   # a smaller table

Kernels and measurements are in the chapter: its cells tagged `experiment` are run here, including those of CUDA C++.
Without a GPU, the rows are for a CPU, and the chapter says so.
"""

import argparse

from nanoeuler_lib import cuda
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

CHAPTER, SIDE, ROUNDS = "23_first_kernels", 8192, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--side", type=int, default=SIDE, help="of the matrix, a multiple of 32 (default: %(default)s)")
    side = parser.parse_args().side
    rows = run_tagged(CHAPTER, "experiment")["measure"](side, ROUNDS)
    for row in rows:
        print(f"{row['version']:30} {row['copy_seconds'] / row['seconds']:.0%} of a copy")
    save("ch23", {"side": side, "rounds": ROUNDS, "launches": 30, "device": cuda.device()}, rows)


if __name__ == "__main__":
    main()
