"""Chapter 24: time the versions of a sum, count how often each gives different bits, and time reading a row twice.

    python -m experiments.ch24              # on a GPU: 2^28 numbers, and the rows of `base`
    python -m experiments.ch24 --small      # small arrays, few launches: a test that it runs on a CPU

Kernels and measurements are in the chapter: its cells tagged `experiment` are run here, including those of CUDA C++.
Without a GPU, the rows are for a CPU, and the chapter says so.
"""

import argparse

from nanoeuler_lib import cuda
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

CHAPTER = "24_reductions"
FULL = {"measure_sums": {}, "measure_layers": {}}
SMALL = {
    "measure_sums": dict(n=1 << 20, launches=5, runs=20),
    "measure_layers": dict(rows=256, D=768, V=4096, blocks=(64, 128), launches=5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="small arrays and few launches")
    small = parser.parse_args().small
    names, rows = run_tagged(CHAPTER, "experiment"), []
    for function, sizes in (SMALL if small else FULL).items():
        for row in names[function](**sizes):
            print(row, flush=True)
            rows.append(row)
    save("ch24", {"device": cuda.device(), "small": small}, rows)


if __name__ == "__main__":
    main()
