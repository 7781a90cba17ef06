"""Chapter 27: time attention with the whole matrix (float32; bfloat16 on tensor cores), in tiles, and in the library.

    python -m experiments.ch27              # on a GPU: three shapes of `base`'s heads
    python -m experiments.ch27 --small      # small shapes, few launches: a test that it runs on a CPU

Kernels and measurements are in the chapter: its cells tagged `experiment` are run here. `python -m
benchmarks.gpu_attention` compares the library's kernels with PyTorch's.
"""

import argparse

from nanoeuler_lib import cuda
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

CHAPTER = "27_flash_forward"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="small arrays and few launches")
    small = parser.parse_args().small
    names = run_tagged(CHAPTER, "experiment")
    options = dict(shapes=((1, 4, 2, 64), (1, 4, 2, 130)), launches=3) if small else {}
    rows = names["measure_attention"](**options)
    for row in rows:
        print(row, flush=True)
    save("ch27", {"device": cuda.device(), "small": small}, rows)


if __name__ == "__main__":
    main()
