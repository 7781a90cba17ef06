"""Chapter 28: time the backward pass of attention in two passes and with atomics, and count its different results.

    python -m experiments.ch28              # on a GPU: three shapes of `base`
    python -m experiments.ch28 --small      # small shapes, few launches: a test that it runs on a CPU

Kernels and measurements are in the chapter: its cells tagged `experiment` are run here. `python -m
benchmarks.gpu_attention` compares the library's kernels with PyTorch's.
"""

import argparse

from nanoeuler_lib import cuda
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

CHAPTER = "28_flash_backward"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="small arrays and few launches")
    small = parser.parse_args().small
    names = run_tagged(CHAPTER, "experiment")
    options = dict(shapes=((1, 4, 2, 64), (1, 4, 2, 130)), launches=3, runs=3) if small else {}
    rows = names["measure_backward"](**options)
    for row in rows:
        print(row, flush=True)
    save("ch28", {"device": cuda.device(), "small": small}, rows)


if __name__ == "__main__":
    main()
